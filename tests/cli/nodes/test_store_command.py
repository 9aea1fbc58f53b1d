"""`talka store`: what it makes, checks and copies, and what it says when it cannot."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_file import QUERIES
from talka.work.dags.records import JobRow, PutJob, PutTasks, TaskRow
from talka.work.lifecycle import JobState, TaskState


class Done(NamedTuple):
    code: int
    out: str
    err: str


Ask = Callable[..., Done]
URL = "sqlite:///jobs.sqlite"
NOW = QUERIES.version


@pytest.fixture
def kept(folder: Path) -> Path:
    """A store with a job of two tasks."""
    path = folder / "jobs.sqlite"
    job = JobRow(number=1, id="job-1", name="etl", state=JobState.RUNNING, submitted_ms=1, settings=b"{}", tasks=2)
    rows = [
        TaskRow(job=1, index=index, id=f"t{index}", state=TaskState.PENDING, spec=b'{"id":"t","handler":"sum"}')
        for index in range(2)
    ]
    with SqliteRecords(str(path)) as store:
        store.apply([PutJob(job), PutTasks(tuple(rows))])
    return path


def test_migrate_makes_a_store_and_is_harmless_the_second_time(command: Ask, folder: Path) -> None:
    place = folder / "jobs.sqlite"
    assert command("store", "migrate", "--store", URL) == (0, f"{place} was made, with schema {NOW}\n", "")
    assert command("store", "migrate", "--store", "jobs.sqlite") == (0, f"{place} has schema {NOW} already\n", "")


def test_migrate_tells_from_which_version_it_came(
    command: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    from talka.store.dags.sqlite_file import SqliteFile
    from talka.store.sql_text import Migration

    file = SqliteFile(str(kept))
    file.close()
    more = Migration(NOW + 1, "CREATE TABLE talka_more (name TEXT);\n")
    monkeypatch.setattr(QUERIES, "migrations", (*QUERIES.migrations, more))
    assert command("store", "check", "--store", URL).err.endswith(
        f"its schema is {NOW}, and {NOW + 1} is known: run talka store migrate\n"
    )
    assert command("store", "migrate", "--store", URL) == (
        0,
        f"{kept} had schema {NOW} and has schema {NOW + 1} now\n",
        "",
    )
    assert command("store", "check", "--store", URL).code == 0


def test_check_of_a_whole_store_counts_what_is_in_it(command: Ask, kept: Path) -> None:
    assert command("store", "check", "--store", URL) == (0, f"{kept} is whole: 1 job, 2 tasks\n", "")


def test_check_tells_everything_that_does_not_fit_together(command: Ask, kept: Path) -> None:
    with closing(sqlite3.connect(kept)) as connection:
        connection.execute("INSERT INTO talka_keys VALUES ('k', 5)")
        connection.execute("UPDATE talka_jobs SET tasks = 3")
        connection.commit()
    done = command("store", "check", "--store", URL)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        f"{kept}: there are idempotency keys without their task: 1, the first of job number 0",
        f"{kept}: job job-1 says that it has 3 tasks, and 2 are there",
    ]


def test_check_of_a_damaged_file_is_a_sentence(command: Ask, kept: Path) -> None:
    content = kept.read_bytes()
    kept.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    done = command("store", "check", "--store", URL)
    assert (done.code, done.out) == (2, "")
    assert str(kept) in done.err and "is damaged" in done.err and "internal error" not in done.err


def test_backup_copies_a_store_that_can_be_used_in_its_place(command: Ask, kept: Path, folder: Path) -> None:
    assert command("store", "backup", "copy.sqlite", "--store", URL) == (0, f"{kept} was copied to copy.sqlite\n", "")
    with SqliteRecords(str(folder / "copy.sqlite")) as copy:
        assert copy.counts(1) == {"pending": 2}


def test_backup_leaves_a_file_alone_that_is_there(command: Ask, kept: Path) -> None:
    done = command("store", "backup", "jobs.sqlite", "--store", URL)
    assert done == (2, "", "jobs.sqlite is there already: name a new file for the copy\n")


@pytest.mark.parametrize("arguments", [["check"], ["backup", "copy.sqlite"]], ids=["check", "backup"])
def test_a_store_that_is_not_there_is_not_made_by_looking(command: Ask, folder: Path, arguments: list[str]) -> None:
    done = command("store", *arguments, "--store", URL)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"there is no store {folder / 'jobs.sqlite'}: check --store")
    assert not (folder / "jobs.sqlite").exists() and not (folder / "copy.sqlite").exists()


@pytest.mark.parametrize("verb", ["migrate", "check"])
def test_a_store_of_another_kind_comes_later(command: Ask, verb: str) -> None:
    done = command("store", verb, "--store", "postgresql://ada:secret@db/jobs")
    assert done.code == 2 and "this version keeps dag jobs in SQLite only" in done.err and "secret" not in done.err


def test_a_store_must_be_named(command: Ask) -> None:
    done = command("store", "check")
    assert done.code == 2 and "--store" in done.err and "talka store check --help" in done.err
