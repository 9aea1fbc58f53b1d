"""What a worker must not forget: the fences it has obeyed and the results nobody has fetched yet. A file of SQLite.

Decision: docs/decisions/0018-who-may-act-on-a-job.md.
"""

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from talka.errors import Invalid, TalkaError
from talka.store.files.folder import FILE_MODE, StoreFailed, failed, sync_folder
from talka.store.sqlite_opening import Transaction, connected, primary_code

Puts: TypeAlias = tuple[tuple[str, bytes | None], ...]

APPLICATION: Final = 0x74616C6B
"""Tells our file from any other of SQLite: "talk"."""
FORMAT: Final = 1
BUSY_S: Final = 0.2
"""The folder is locked, so nobody else should be there at all."""
ADVICE: Final = (
    "start with another --data-dir, or move it away: this worker then starts as a new one, and results that no manager "
    "has fetched are lost"
)


class BadShelf(Invalid):
    """This file cannot be used: damaged, or not ours."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{path} {text}")


class Shelf:
    """Keys and values in a file of this process alone. Any thread may write.

    Give `stored` to the worker once, at its start: it is what the file held then and does not change. After a write
    whose outcome nobody can know, further ones are refused, and a new start finds out.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.abspath(path))
        self._lock = threading.Lock()
        self._failure = ""
        self._connection: sqlite3.Connection | None = None
        try:
            with self._sentences():
                self._connection = self._opened()
                self.stored = self._load(self._connection)
        except BaseException:
            self.close()
            raise

    def write(self, puts: Puts) -> None:
        """Make all of this durable, as one; None removes. A full disk changes nothing, and may be tried again."""
        with self._lock:
            if self._connection is None:
                raise Invalid(f"{self._path} has been closed: nothing can be written to it")
            if self._failure:
                raise StoreFailed(
                    f"nothing more is written to {self._path} by this process: {self._failure}; start again"
                )
            connection = self._connection
            with self._sentences(), Transaction(connection):
                for key, value in puts:
                    if value is None:
                        connection.execute("DELETE FROM shelf WHERE key = ?", (key,))
                    else:
                        connection.execute("REPLACE INTO shelf VALUES (?, ?, ?)", (key, value, checksum(key, value)))

    def close(self) -> None:
        """Let the file go. What was written stays; nothing is written any more."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):  # everything is durable already
                    connection.close()

    def _opened(self) -> sqlite3.Connection:
        # Made here, so that nobody else may read it; SQLite gives its other files the same rights.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        self._connection = connection = connected(str(self._path), BUSY_S, "locking_mode = EXCLUSIVE")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application not in (0, APPLICATION) or (application == 0 and tables):
            raise BadShelf(self._path, "is a database of something else: name another --data-dir")
        if version > FORMAT:
            raise BadShelf(
                self._path,
                f"was written by a later version of talka (its format is {version}, known here is {FORMAT}): "
                "use that version or a newer one",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # on macOS fsync stops at the cache of the disk
        with Transaction(connection):
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS shelf (key TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT "
                "NULL)"
            )
        sync_folder(self._path.parent)
        return connection

    def _load(self, connection: sqlite3.Connection) -> dict[str, bytes]:
        stored: dict[str, bytes] = {}
        for key, value, found in connection.execute("SELECT key, value, checksum FROM shelf ORDER BY key"):
            if not isinstance(value, bytes) or checksum(key, value) != found:
                raise BadShelf(self._path, f"is damaged (the value of {key!r} was changed): {ADVICE}")
            stored[key] = value
        return stored

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._problem(error) from error
        except OSError as error:
            raise failed(self._path, "opened", error) from error

    def _problem(self, error: sqlite3.Error) -> TalkaError:
        match primary_code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreFailed(f"{self._path} is in use by another process: stop that one")
            case sqlite3.SQLITE_FULL:
                return StoreFailed(f"{self._path} could not be written (the disk is full): free some space there")
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                problem: TalkaError = BadShelf(self._path, f"is damaged ({error}): {ADVICE}")
            case _:
                problem = StoreFailed(f"{self._path} could not be used ({error}): fix that and start again")
        self._failure = f"an earlier write failed ({error})"
        return problem


def checksum(key: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key.encode()))
