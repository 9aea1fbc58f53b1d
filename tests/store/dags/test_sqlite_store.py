"""The verbs of a store in SQLite: each in its thread, and what is told of a file without taking it up."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from talka.store.dags.records import CommitListener, Condition
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_file import LOG_LEAST_BYTES
from talka.store.dags.sqlite_store import SqliteKind, SqliteStore
from talka.store.files.blobs import Blobs


class Waiting:
    """Records that answer once they may."""

    place = "here"

    def __init__(self) -> None:
        self.may = threading.Event()

    def leases(self, prefix: str) -> list[Any]:
        assert self.may.wait(30)
        return []

    def next_number(self) -> int:
        assert self.may.wait(30)
        return 1

    def close(self) -> None: ...


@pytest.mark.parametrize("verb", ["leases", "next_number"])
async def test_what_is_asked_while_an_answer_is_awaited_gets_no_thread_of_its_own(tmp_path: Path, verb: str) -> None:
    records = Waiting()
    store = SqliteStore(cast(SqliteRecords, records), Blobs(tmp_path / "blobs"))
    before = set(threading.enumerate())
    asked = [asyncio.ensure_future(store.leases("") if verb == "leases" else store.next_number()) for _ in range(3)]
    await asyncio.sleep(0)
    try:
        assert len(set(threading.enumerate()) - before) == 1
    finally:
        records.may.set()
        await asyncio.gather(*asked)
        await store.close()


async def test_jobs_and_tasks_of_a_store_with_problems_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with SqliteRecords(str(path)) as records:
        records.file.write(lambda connection: connection.execute("INSERT INTO talka_keys VALUES ('k', 5)"))

    found = await SqliteKind().look_over(str(path))

    assert len(found.problems) == 1
    assert found == Condition(str(path), found.problems, 0, 0)


async def test_a_store_that_takes_commits_has_a_log_that_need_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    store = await SqliteKind().open(f"sqlite:///{path}")
    try:
        log = path.with_name("jobs.sqlite-wal")
        assert log.stat().st_size < LOG_LEAST_BYTES
        store.start(CommitListener(lambda tickets: None, lambda text: None, lambda error: None))
        await store.leases("")  # the same thread has done what it was given before
        assert log.stat().st_size == LOG_LEAST_BYTES
    finally:
        await store.close()
