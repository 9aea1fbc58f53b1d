"""The run history in a file of SQLite, or in memory for tests."""

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from talka.errors import TalkaError
from talka.store.history.runs import (
    COLUMNS,
    EVERY_RUN,
    MOST_BASELINES,
    BadStore,
    History,
    KeptRun,
    NewerStore,
    RunFacts,
    Runs,
    StoreUnavailable,
    checked_limit,
    is_storable,
    oldest_to_keep,
)
from talka.store.sql_text import Queries, read_queries

IN_MEMORY: Final = ":memory:"
BUSY_S: Final = 10
"""How long another writer is waited for. Keeping a run takes milliseconds, so this is a crowd or a stopped process."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
VERSION_TABLE: Final = "talka_history_version"
QUERIES: Final = read_queries("talka.store.history", "sqlite")
Answer = TypeVar("Answer")
Rows: TypeAlias = list[tuple[Any, ...]]


class SqliteHistory(History):
    def __init__(self, path: str, keep_count: int) -> None:
        # Absolute at once: a test may change the folder between the first call and the last.
        self.place = "memory" if path == IN_MEMORY else os.path.abspath(path)
        self._in_memory = path == IN_MEMORY
        self._keep_count = keep_count
        self._queries = QUERIES
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        self._write(lambda connection: None, creates=True, otherwise=None)
        if not self._in_memory:
            self.close()  # a run may take hours: meanwhile the file may be moved, and we must not write to the old one

    def keep(self, run: KeptRun) -> None:
        values = msgspec.structs.asdict(run)
        values["started_at_us"] = microseconds(values.pop("started_at"))

        def act(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["keep_run"], values)
            bounds = {"oldest_us": microseconds(oldest_to_keep(None, run.started_at)), "keep_count": self._keep_count}
            connection.execute(self._queries["prune_runs"], bounds)

        self._write(act, creates=True, otherwise=None)

    def list(self, limit: int = 50, name: str | None = None) -> Runs:
        if name is not None and not is_storable(name):
            return []
        return self._facts("list_runs", {"limit": checked_limit(limit), "name": name})

    def forget(self, ids: Iterable[str]) -> int:
        wanted = [{"id": id} for id in ids if is_storable(id)]

        def act(connection: sqlite3.Connection) -> int:
            return sum(connection.execute(self._queries["forget_run"], values).rowcount for values in wanted)

        return self._write(act, creates=False, otherwise=0)

    def prune(self, keep_count: int | None, keep_age_s: float | None, now: datetime) -> int:
        bounds = {
            "oldest_us": microseconds(oldest_to_keep(keep_age_s, now)),
            "keep_count": EVERY_RUN if keep_count is None else keep_count,
        }
        return self._write(
            lambda connection: connection.execute(self._queries["prune_runs"], bounds).rowcount,
            creates=False,
            otherwise=0,
        )

    def baselines(self) -> dict[str, str]:
        return dict(self._read("baselines", {}))

    def drop_baseline(self, name: str) -> bool:
        def act(connection: sqlite3.Connection) -> bool:
            return connection.execute(self._queries["drop_baseline"], {"name": name}).rowcount > 0

        return is_storable(name) and self._write(act, creates=False, otherwise=False)

    def close(self) -> None:
        with self._lock, self._sentences():
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _beginning_with(self, start: str, limit: int) -> Runs:
        return self._facts("find_runs", {"start": start, "limit": limit})

    def _set_baseline(self, name: str, id: str) -> bool:
        values = {"name": name, "id": id, "most": MOST_BASELINES}
        return is_storable(id) and self._write(
            lambda connection: connection.execute(self._queries["set_baseline"], values).rowcount > 0,
            creates=False,
            otherwise=False,
        )

    def _document(self, id: str) -> bytes | None:
        for (document,) in self._read("load_document", {"id": id}):
            return bytes(document)
        return None

    def _facts(self, query: str, values: Mapping[str, object]) -> Runs:
        return [facts_of(row) for row in self._read(query, values)]

    def _read(self, query: str, values: Mapping[str, object]) -> Rows:
        with self._lock, self._sentences():
            connection = self._opened(creates=False)
            return [] if connection is None else connection.execute(self._queries[query], values).fetchall()

    def _write(self, act: Callable[[sqlite3.Connection], Answer], *, creates: bool, otherwise: Answer) -> Answer:
        with self._lock, self._sentences():
            connection = self._opened(creates=creates)
            if connection is None:
                return otherwise
            with transaction(connection):
                return act(connection)

    def _opened(self, *, creates: bool) -> sqlite3.Connection | None:
        """The connection, with every table in place; None where there is nothing yet and nothing is to be made."""
        if self._connection is None:
            if not self._in_memory and not os.path.exists(self.place):
                if not creates:
                    return None
                # Results name servers and may quote their answers: a folder made for them is its owner's alone.
                os.makedirs(os.path.dirname(self.place), mode=0o700, exist_ok=True)
            self._connection = self._connected()
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

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            IN_MEMORY if self._in_memory else self.place,
            timeout=BUSY_S,
            isolation_level=None,  # transactions begin where we say so
            check_same_thread=False,  # the lock sees to it
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:  # it is no database
            connection.close()
            raise
        return connection

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
                return StoreUnavailable(f"{self.place} is in use by other writers for over {BUSY_S} s: try again later")
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


def write_ahead(connection: sqlite3.Connection) -> None:
    """So that nobody who looks waits for one who writes. The file remembers it."""
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # While others are busy this fails at once. Nothing is lost with the other kind of journal, and the next to
        # write tries again.
        if primary_code(error) != sqlite3.SQLITE_BUSY:
            raise


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # Immediate: who reads first and writes later would fail at once when somebody else has written in between.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Some errors have rolled it back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def version_of(connection: sqlite3.Connection, queries: Queries, table: str) -> int | None:
    """Of the schema; 0: there is none yet, None: the file holds something else."""
    tables = {name for (name,) in connection.execute(queries["tables"])}
    if table in tables:
        (version,) = connection.execute(queries["read_version"]).fetchone()
        return int(version or 0)
    return None if tables else 0


def migrate(connection: sqlite3.Connection, queries: Queries, version_now: Callable[[sqlite3.Connection], int]) -> None:
    with transaction(connection):
        version = version_now(connection)  # another process may have been quicker
        for migration in queries.migrations:
            if migration.version > version:
                for statement in statements(migration.sql):
                    connection.execute(statement)
                connection.execute(queries["write_version"], {"version": migration.version})


def statements(script: str) -> Iterator[str]:
    """One by one: the driver's own way to run a script commits what is under way."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def facts_of(row: tuple[Any, ...]) -> RunFacts:
    values = dict(zip(COLUMNS, row, strict=True))
    values["started_at"] = EPOCH + values["started_at"] * MICROSECOND
    return RunFacts(**values)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


def primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def folder_reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "you may not write to its folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} is not a folder"
    return f"{error.filename}: {error.strerror}"
