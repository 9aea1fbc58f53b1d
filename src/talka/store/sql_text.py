"""The SQL of one store in one dialect: a file whose sections are migrations, by number, and statements, by name.

A section begins with a line `-- migration: 1` or `-- name: claim` and goes on to the next such line.
"""

import re
from importlib import resources
from typing import Final, NamedTuple

SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""Of the address of a store."""
HEADING: Final = re.compile(r"^-- (migration|name): (\S+)$", re.MULTILINE)
REMARK: Final = re.compile(r"(--.*)?")


class BadSqlText(ValueError):
    """A file of SQL whose sections cannot be told apart."""


class Migration(NamedTuple):
    version: int
    """The version that the tables have after it."""
    sql: str
    """Statements, each ended by a semicolon."""


class Queries(dict[str, str]):
    """Statements by their names; `migrations` make the tables, in their order."""

    def __init__(self, text: str) -> None:
        head, *parts = HEADING.split(text)
        if not all(REMARK.fullmatch(line) for line in head.splitlines()):
            raise BadSqlText("there is SQL before the first section: begin it with a line -- name: …")
        super().__init__()
        migrations: list[Migration] = []
        for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            sql = body.strip() + "\n"
            if not sql.endswith(";\n"):
                raise BadSqlText(f"the section {name} does not end with a semicolon")
            if kind == "migration":
                if name != str(len(migrations) + 1):
                    raise BadSqlText(f"migration {name} stands where migration {len(migrations) + 1} belongs")
                migrations.append(Migration(len(migrations) + 1, sql))
            elif name in self:
                raise BadSqlText(f"two sections have the name {name}")
            else:
                self[name] = sql
        self.migrations = tuple(migrations)

    @property
    def version(self) -> int:
        """Of the tables after the last migration."""
        return len(self.migrations)

    def __missing__(self, name: str) -> str:
        raise KeyError(f"no section has the name {name}")


def read_queries(package: str, dialect: str) -> Queries:
    """What `DIALECT.sql` in this package says."""
    return Queries((resources.files(package) / f"{dialect}.sql").read_text(encoding="utf-8"))


def is_storable(text: str) -> bool:
    """Neither store takes half a character, and PostgreSQL no NUL."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
