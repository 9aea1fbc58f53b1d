"""Files of SQL with named sections, and that the ones of the stores are what their code asks for."""

import ast
import importlib
import re
import sqlite3
from collections import defaultdict
from pathlib import Path

import pytest

import talka
from talka.store.sql_text import BadSqlText, Migration, Queries, read_queries

STORE = Path(talka.__file__).parent / "store"
FILES = [
    pytest.param(*names, id="-".join(names))
    for names in [("dags", "sqlite"), ("history", "sqlite"), ("history", "postgres")]
]
TEXT = """-- Things, in SQLite.

-- migration: 1
-- Their table.
CREATE TABLE things (name TEXT);
CREATE INDEX things_by_name ON things (name);

-- migration: 2
ALTER TABLE things ADD COLUMN size INTEGER;

-- name: put
INSERT INTO things  -- name: nothing of a heading, since it is not alone
VALUES (:name, ?2);

-- name: get
-- All of it.
SELECT name
FROM things;
"""


def test_statements_are_found_by_their_names_with_their_remarks_and_parameters() -> None:
    queries = Queries(TEXT)
    assert queries["get"] == "-- All of it.\nSELECT name\nFROM things;\n"
    assert "(:name, ?2);" in queries["put"]
    assert list(queries) == ["put", "get"]


def test_migrations_are_in_their_order_and_the_last_is_the_version() -> None:
    queries = Queries(TEXT)
    assert queries.migrations == (
        Migration(
            1, "-- Their table.\nCREATE TABLE things (name TEXT);\nCREATE INDEX things_by_name ON things (name);\n"
        ),
        Migration(2, "ALTER TABLE things ADD COLUMN size INTEGER;\n"),
    )
    assert queries.version == 2


def test_a_name_that_no_section_has_is_told() -> None:
    with pytest.raises(KeyError, match="no section has the name drop"):
        Queries(TEXT)["drop"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TEXT + "-- name: put\nSELECT 1;\n", "two sections have the name put"),
        (TEXT + "-- migration: 2\nSELECT 1;\n", "migration 2 stands where migration 3 belongs"),
        (TEXT + "-- migration: 4\nSELECT 1;\n", "migration 4 stands where migration 3 belongs"),
        (TEXT + "-- migration: three\nSELECT 1;\n", "migration three stands where migration 3 belongs"),
        (TEXT + "-- name: none\n-- There is nothing.\n", "the section none does not end with a semicolon"),
        (TEXT + "-- name: none\nSELECT 1\n", "the section none does not end with a semicolon"),
        ("SELECT 1;\n" + TEXT, "there is SQL before the first section"),
    ],
)
def test_a_file_whose_sections_cannot_be_told_apart_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadSqlText, match=sentence):
        Queries(text)


@pytest.mark.parametrize(("store", "dialect"), FILES)
def test_the_code_asks_for_every_section_of_a_file(store: str, dialect: str) -> None:
    texts = {
        node.value
        for path in STORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(read_queries(f"talka.store.{store}", dialect)) <= texts


@pytest.mark.parametrize("store", ["dags", "history"])
def test_every_section_is_one_statement_that_sqlite_understands(store: str) -> None:
    queries = read_queries(f"talka.store.{store}", "sqlite")
    connection = sqlite3.connect(":memory:")
    for migration in queries.migrations:
        connection.executescript(migration.sql)
    for name, sql in queries.items():
        named = re.findall(r":[a-z]\w*", sql)
        numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
        values = defaultdict(int) if named else (0,) * max(numbered, default=sql.count("?"))
        connection.execute(f"EXPLAIN {sql}" if name != "check_file" else sql, values).fetchall()
    connection.close()


@pytest.mark.parametrize(
    ("module", "version"), [("dags.sqlite_file", 12), ("history.sqlite", 3), ("history.postgres", 3)]
)
def test_a_store_opens_with_the_version_of_its_last_migration(module: str, version: int) -> None:
    if module == "history.postgres":
        pytest.importorskip("asyncpg", reason="the package asyncpg is not installed")
    assert importlib.import_module(f"talka.store.{module}").QUERIES.version == version
