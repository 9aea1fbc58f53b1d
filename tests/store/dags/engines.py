"""Every engine of the port `Store`, with what goes on between it and whoever uses it in sight."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from talka.store.dags.records import Store
from talka.store.dags.sqlite_store import SqliteKind
from tests.ports.dict_store import DictPlace, DictStore


class Crash(Exception):
    """The process ends here."""


class Engine(Protocol):
    """A place for one store, and what goes on between it and whoever uses it."""

    calls: list[str]
    """What was sent, in order."""
    crash_at: int | None
    """Before the statement of this number nothing reaches the store any more."""
    calls_of_a_read: int
    calls_of_a_change: int
    """Of changes of one kind, together with what begins and ends them."""
    calls_of_more: int
    """Of every other kind of changes in the same transaction, and of looking up a lease there."""

    async def open(self) -> Store: ...


class SqliteEngine:
    calls_of_a_read = 1
    calls_of_a_change = 3
    calls_of_more = 1

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self.crash_at: int | None = None
        send = self.send

        class Counted(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                send(sql)
                return super().execute(sql, *values)

            def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
                send(sql)
                return super().executemany(sql, *values)

        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *places, **options: connect(*places, factory=Counted, **options))

    async def open(self) -> Store:
        store = await SqliteKind().open(str(self.folder / "jobs.sqlite"))
        self.calls.clear()
        return store

    def send(self, statement: str) -> None:
        if self.crash_at is not None and len(self.calls) >= self.crash_at:
            raise Crash
        self.calls.append(statement)


class DictEngine:
    """Of `tests/ports`: one file, thrown away."""

    calls_of_a_read = 1
    calls_of_a_change = 1
    calls_of_more = 0

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = DictPlace("jobs")
        self.place.on_trip = lambda verb: self.calls.append(verb)
        self.place.on_step = self.step
        self.calls: list[str] = []
        self.crash_at: int | None = None
        self.steps = 0

    async def open(self) -> Store:
        self.calls.clear()
        self.steps = 0
        return DictStore(self.place)

    def step(self) -> None:
        if self.crash_at is not None and self.steps >= self.crash_at:
            raise Crash
        self.steps += 1


ENGINES: dict[str, Callable[[Path, pytest.MonkeyPatch], Engine]] = {"sqlite": SqliteEngine, "dict": DictEngine}
"""Every implementation of the port."""


@contextlib.asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[Store]:
    store = await engine.open()
    try:
        yield store
    finally:
        await store.close()
