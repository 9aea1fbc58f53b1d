"""Files of SQLite: opened, changed in transactions, brought to the newest version of their tables."""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

from talka.store.sql_text import Queries

IN_MEMORY: Final = ":memory:"
MEMORY: Final = "memory"
"""The place of what is in memory, for people."""


def place_of(path: str) -> str:
    """Absolute at once: the folder of the process may change later."""
    return MEMORY if path == IN_MEMORY else os.path.abspath(path)


def connected(place: str, busy_s: float, *pragmas: str, statements: int = 128) -> sqlite3.Connection:
    """`busy_s`: how long another writer is waited for; `statements`: how many are kept compiled.

    Whoever has it sees to it that one thread at a time uses it, and says where transactions begin."""
    connection = sqlite3.connect(
        IN_MEMORY if place == MEMORY else place,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=statements,
    )
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:  # it is no database
        connection.close()
        raise
    return connection


def write_ahead(connection: sqlite3.Connection) -> None:
    """So that nobody who looks waits for one who writes. The file remembers it."""
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # While others are busy this fails at once. Nothing is lost with the other kind of journal, and the next to
        # write tries again.
        if primary_code(error) != sqlite3.SQLITE_BUSY:
            raise


class Transaction:
    """What is done within is kept when it is over, or nothing of it is."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        # Immediate: who reads first and writes later would fail at once when somebody else has written in between.
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            # Some errors have rolled it back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def version_of(connection: sqlite3.Connection, queries: Queries, table: str) -> int | None:
    """Of the schema; 0: there is none yet, None: the file holds something else."""
    tables = {name for (name,) in connection.execute(queries["tables"])}
    if table in tables:
        (version,) = connection.execute(queries["read_version"]).fetchone()
        return int(version or 0)
    return None if tables else 0


def migrate(connection: sqlite3.Connection, queries: Queries, version_now: Callable[[sqlite3.Connection], int]) -> None:
    with Transaction(connection):
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


def primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def folder_reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "you may not write to its folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} is not a folder"
    return f"{error.filename}: {error.strerror}"
