"""The run history in a file of SQLite, or in memory for tests."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from talka.clock import realtime_ns
from talka.errors import TalkaError
from talka.store.history.runs import (
    HISTORY_LIMITS,
    NO_ROWS,
    BadStore,
    History,
    HistoryLimits,
    KeptRun,
    NewerStore,
    Rows,
    RunFacts,
    RunRows,
    StoreUnavailable,
)
from talka.store.sql_text import is_storable, read_queries
from talka.store.sqlite_opening import (
    MEMORY,
    Transaction,
    connected,
    folder_reason,
    migrate,
    place_of,
    primary_code,
    version_of,
    write_ahead,
)
from talka.units import NEVER
from talka.work.retention import Retention

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
VERSION_TABLE: Final = "talka_history_version"
QUERIES: Final = read_queries("talka.store.history", "sqlite")
Answer = TypeVar("Answer")


class SqliteHistory(History):
    def __init__(self, path: str, kept: Retention, limits: HistoryLimits = HISTORY_LIMITS) -> None:
        self.limits = limits
        # Absolute at once: a test may change the folder between the first call and the last.
        self.place = place_of(path)
        self._in_memory = self.place == MEMORY
        self._kept = kept
        self._queries = QUERIES
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        self._write(lambda connection: None, creates=True, otherwise=None)
        if not self._in_memory:
            self.close()  # a run may take hours: meanwhile the file may be moved, and we must not write to the old one

    def keep(self, run: KeptRun, rows: RunRows = NO_ROWS) -> None:
        values = msgspec.structs.asdict(run)
        values["started_at_us"] = (values.pop("started_at") - EPOCH) // MICROSECOND

        def act(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["drop_run"], {"id": run.id})
            connection.execute(self._queries["keep_run"], values)
            for query, parts in rows.by_query(run.id).items():
                connection.executemany(self._queries[query], parts)
            for passed in (True, False):
                keep = self._kept.of(is_completed=passed)
                oldest_us = -(1 << 63) if keep.age_ns == NEVER else (realtime_ns() - keep.age_ns) // 1000
                connection.execute(
                    self._queries["prune_runs"], {"passed": passed, "oldest_us": oldest_us, "keep_count": keep.count}
                )

        self._write(act, creates=True, otherwise=None)

    def forget(self, ids: Iterable[str]) -> int:
        return self._change("forget_runs", ids=msgspec.json.encode([id for id in ids if is_storable(id)]).decode())

    def close(self) -> None:
        with self._lock, self._sentences():
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _run_of(self, values: dict[str, Any]) -> RunFacts:
        return RunFacts(**values | {"started_at": EPOCH + values["started_at"] * MICROSECOND})

    def _read(self, query: str, **values: object) -> Rows:
        with self._lock, self._sentences():
            connection = self._opened(creates=False)
            return [] if connection is None else connection.execute(self._queries[query], values).fetchall()

    def _change(self, query: str, **values: object) -> int:
        return self._write(
            lambda connection: connection.execute(self._queries[query], values).rowcount, creates=False, otherwise=0
        )

    def _write(self, act: Callable[[sqlite3.Connection], Answer], *, creates: bool, otherwise: Answer) -> Answer:
        with self._lock, self._sentences():
            connection = self._opened(creates=creates)
            if connection is None:
                return otherwise
            with Transaction(connection):
                return act(connection)

    def _opened(self, *, creates: bool) -> sqlite3.Connection | None:
        """The connection, with every table in place; None where there is nothing yet and nothing is to be made."""
        if self._connection is None:
            if not self._in_memory and not os.path.exists(self.place):
                if not creates:
                    return None
                # Results name servers and may quote their answers: a folder made for them is its owner's alone.
                os.makedirs(os.path.dirname(self.place), mode=0o700, exist_ok=True)
            self._connection = connected(self.place, self.limits.busy_s, "synchronous = FULL", "foreign_keys = ON")
        version = self._version(self._connection)
        if version > self._queries.version:
            raise NewerStore(self.place, found=version, known=self._queries.version)
        if version == 0 and not creates:
            return None
        if creates:
            write_ahead(self._connection)
        if version < self._queries.version:
            migrate(self._connection, self._queries, self._version)
        return self._connection

    def _version(self, connection: sqlite3.Connection) -> int:
        version = version_of(connection, self._queries, VERSION_TABLE)
        if version is None:
            raise BadStore(f"{self.place} is a database of something else: name another file with --store")
        return version

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._problem(error) from None
        except OSError as error:
            raise BadStore(f"{self.place} cannot be made: {folder_reason(error)}") from None

    def _problem(self, error: sqlite3.Error) -> TalkaError:
        match primary_code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                waited = f"{self.limits.busy_s:g} s"
                return StoreUnavailable(f"{self.place} is in use by other writers for over {waited}: try again later")
            case sqlite3.SQLITE_NOTADB:
                return BadStore(f"{self.place} is not a database of SQLite: name another file with --store")
            case sqlite3.SQLITE_CORRUPT:
                return BadStore(f"{self.place} is damaged ({error}): move it away, or name another file with --store")
            case sqlite3.SQLITE_CANTOPEN if os.path.isdir(self.place):
                return BadStore(f"{self.place} is a folder: name a file in it with --store")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return BadStore(
                    f"{self.place} cannot be written: check the permissions of the file and of its folder, "
                    "or name another file with --store"
                )
            case sqlite3.SQLITE_FULL:
                return StoreUnavailable(f"{self.place} cannot be written: the disk is full")
            case _:
                return StoreUnavailable(f"{self.place} cannot be used: SQLite says {error}")
