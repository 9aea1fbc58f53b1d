"""A file of SQLite that holds dag jobs: opened, brought to this version, checked, copied; its troubles as sentences.

There are two connections, so that whoever looks never waits for one who writes.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from talka.clock import monotonic_ns
from talka.errors import Invalid, TalkaError
from talka.store.dags.records import AlreadyKept, BadRecords, RecordsBroken, RecordsUnavailable, StoreGone
from talka.store.files.folder import FILE_MODE, FOLDER_MODE, sync_folder
from talka.store.sql_text import read_queries
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
from talka.work.dags.records import TASK_STATES

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
Rows: TypeAlias = list[tuple[Any, ...]]
Answer = TypeVar("Answer")

BUSY_S: Final = 5
"""How long another writer is waited for. There should be none: one manager at a time has the store."""
LOOK_NS: Final = 200_000_000
"""Before a commit it is looked whether the file is still in its place, if that was not done for so long."""
CACHE_KIBIBYTES: Final = 64 * 1024
CHECKPOINT_PAGES: Final = 4000
"""So much is written to the log before it goes to the file itself: a page that changes often goes there once."""
LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""To this the log is cut when it was longer for a while, because somebody read."""
LOG_LEAST_BYTES: Final = 4 * 1024 * 1024
"""So long the log is made before it is written to: for a file that grows, the file system keeps a log of its own, and
each commit waits for both. The log is begun anew before it is longer where commits are small."""
ZEROS: Final = bytes(64 * 1024)
PRAGMAS: Final = (
    f"cache_size = -{CACHE_KIBIBYTES}",
    f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
    f"journal_size_limit = {LOG_LIMIT_BYTES}",
    "fullfsync = ON",  # on macOS fsync stops at the cache of the disk
)
STATEMENTS: Final = 256
LOG_SUFFIX: Final = "-wal"
INDEX_BITS: Final = 32
LAST_INDEX: Final = (1 << INDEX_BITS) - 1
VERSION_TABLE: Final = "talka_tasks_version"
QUERIES: Final = read_queries("talka.store.dags", "sqlite")
CHECKS: Final = {
    "check_tasks": "tasks without their job",
    "check_attempts": "attempts without their task",
    "check_fans": "tasks that were fanned out, without themselves",
    "check_streams": "what attempts wrote without their task",
    "check_times": "times of attempts without their task",
    "check_logs": "lines of logs without their task",
    "check_keys": "idempotency keys without their task",
    "check_events": "events without their job",
}
"""Query, and what it looks for."""
FILE_ERRORS: Final = (sqlite3.Error, OverflowError, UnicodeEncodeError, OSError)
"""What reading and writing the file may raise, for which there are sentences."""
_counts: Final = msgspec.json.Decoder(dict[str, int])


class FileLimits(NamedTuple):
    busy_s: float = BUSY_S
    look_ns: int = LOOK_NS
    log_bytes: int = LOG_LEAST_BYTES


USUAL_LIMITS: Final = FileLimits()


class WriterBusy(Exception):
    """Another thread writes just now, and whoever asked does not wait."""


class SqliteFile:
    """Any thread may call: writers take turns, and so do readers, but neither waits for the other.

    It is made if it is not there, and brought to this version; not so `as_it_is`, for those who only look. After a
    write whose outcome nobody can know, further ones are refused, and a new start finds out.
    """

    def __init__(
        self, path: str, synchronous: Synchronous = "FULL", *, as_it_is: bool = False, limits: FileLimits = USUAL_LIMITS
    ) -> None:
        self.place = place_of(path)
        self._in_memory = self.place == MEMORY
        self._synchronous = synchronous
        self._limits = limits
        self._queries = QUERIES
        self.found_version: int
        """Of its tables before they were brought to this version; 0: there were none."""
        self._is_older = False
        self._failure = ""
        self._writing = threading.Lock()
        # In memory there is but one connection.
        self._reading = self._writing if self._in_memory else threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._is_open = False
        self._looked_ns = 0
        self._files: dict[str, tuple[int, int]] = {}
        """Device and inode of what is open here, by path: the file and its log."""
        try:
            with self._sentences():
                self._open(as_it_is)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """Of the tables, which are those of this version of Talka."""
        return self._queries.version

    def close(self) -> None:
        """Let the file go. What was acknowledged stays."""
        with self._writing:
            writer, self._writer = self._writer, None
            if writer is not None and not self._in_memory:
                with contextlib.suppress(sqlite3.Error):  # everything is durable already
                    writer.close()
        with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                with contextlib.suppress(sqlite3.Error):
                    reader.close()

    def read(self, query: str, values: dict[str, object] | None = None) -> Rows:
        with self._reading, self._sentences():
            return self._open_one(self._reader).execute(self._queries[query], values or {}).fetchall()

    def write(self, act: Callable[[sqlite3.Connection], Answer], *, waits: bool = True) -> Answer:
        """What `act` does is durable once this returns; if it raises, nothing of it was done."""
        if not self._writing.acquire(waits):
            raise WriterBusy
        try:
            if self._failure:
                raise RecordsBroken(
                    f"nothing more is written to {self.place} by this process ({self._failure}): start it again"
                )
            writer = self._open_one(self._writer)
            try:
                with Transaction(writer):
                    answer = act(writer)
                    if monotonic_ns() - self._looked_ns > self._limits.look_ns:
                        self._check_place()
                    return answer
            except FILE_ERRORS as error:
                raise self._sentence(error) from error
        finally:
            self._writing.release()

    def check_place(self) -> None:
        """Raises `StoreGone` when what lies at its path is not what is open here."""
        with self._writing:
            self._open_one(self._writer)
            self._check_place()

    def _check_place(self) -> None:
        """What is written to a file without a name, or to one that is no longer there, nobody will ever find."""
        self._looked_ns = monotonic_ns()
        if self._in_memory:
            return
        for path in (self.place, self.place + LOG_SUFFIX):
            try:
                found = os.stat(path)
            except FileNotFoundError:
                if path in self._files:
                    raise self._is_gone(f"{path} was deleted") from None
                continue  # there is no log where this file system allows none
            except OSError as error:
                raise RecordsUnavailable(
                    f"{path} cannot be looked at ({error.strerror}): look after the disk"
                ) from None
            known = self._files.setdefault(path, (found.st_dev, found.st_ino))
            if known != (found.st_dev, found.st_ino):
                raise self._is_gone(f"another file is in the place of {path}")

    def _is_gone(self, what: str) -> StoreGone:
        self._looked_ns = 0  # the next one is looked at as well
        return StoreGone(
            f"{what} while this manager had it: nothing more is kept or acknowledged; stop this manager, put the store "
            "or a copy made by talka store backup in its place, and start it again"
        )

    def problems(self) -> list[str]:
        """What is wrong inside, in sentences. It reads everything."""
        found = [f"SQLite says: {line}" for (line,) in self.read("check_file") if line != "ok"]
        if self._is_older:
            return [*found, f"its schema is {self.found_version}, and {self.version} is known: run talka store migrate"]
        for query, text in CHECKS.items():
            ((count, job),) = self.read(query)
            if count:
                found.append(f"there are {text}: {count:,}, the first of job number {job}")
        for id, tasks, rows in self.read("check_sizes"):
            found.append(f"job {id} says that it has {tasks:,} tasks, and {rows:,} are there")
        for number, id, counts in self.read("check_counts"):
            said = {state: count for state, count in _counts.decode(counts).items() if count}
            if said != self.counted(number):
                found.append(f"job {id} has ended, and its tasks are not in the states that it counted at its end")
        return found

    def counted(self, job: int, first: int = 0, last: int = LAST_INDEX) -> dict[str, int]:
        rows = self.read("counts", {"first": job << INDEX_BITS | first, "last": job << INDEX_BITS | last})
        return {str(TASK_STATES[state]): count for state, count in rows}

    def sizes(self) -> tuple[int, int]:
        """How many jobs and tasks are kept."""
        ((jobs, tasks),) = self.read("sizes")
        return jobs, tasks

    def checkpoint(self) -> None:
        """Bring the log into the file, as far as readers let it."""
        with self._writing, self._sentences():
            self._open_one(self._writer).execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def lengthen_log(self) -> None:
        """What follows its last commit means nothing to SQLite, be it zeros or commits of an earlier round. Where there
        is no room for it, the log stays as it is."""
        if self._in_memory or self._synchronous != "FULL":
            return
        # Within a transaction: nobody, of this process or another, writes to it meanwhile.
        with self._writing, self._sentences(), Transaction(self._open_one(self._writer)):
            lengthen(self.place + LOG_SUFFIX, self._limits.log_bytes)

    def backup(self, target: Path) -> None:
        """Copy it as it is at one instant, while it is in use, to a new file."""
        if os.path.lexists(target):
            raise BadRecords(f"{target} is there already: name a new file for the copy")
        beside = target.with_name(target.name + ".new")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)  # of a copy that was broken off
            os.close(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
            self._copy(beside)
            os.replace(beside, target)
            sync_folder(target.parent)
        except OSError as error:
            raise BadRecords(f"{target} cannot be written: {folder_reason(error)}") from None

    def _copy(self, path: Path) -> None:
        with self._reading, self._sentences():
            source = self._open_one(self._reader)
            copy = sqlite3.connect(path, isolation_level=None)
            try:
                source.backup(copy)  # in one step: it is one snapshot, and writers go on
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it
                self._mark(copy)
            except sqlite3.Error as error:
                os.unlink(path)
                raise RecordsUnavailable(
                    f"{self.place} could not be copied to {path} ({error}): free some space there, or look after the "
                    "disk"
                ) from error
            finally:
                copy.close()

    def copy_into(self, other: "SqliteFile", *, is_marked: bool) -> None:
        """As it is at one instant, in place of all that the other has. `is_marked`: it begins a life of its own
        there."""
        with self._reading, other._writing, self._sentences():
            copy = other._open_one(other._writer)
            self._open_one(self._reader).backup(copy)
            if is_marked:
                self._mark(copy)

    def _mark(self, copy: sqlite3.Connection) -> None:
        """So that it begins a life of its own when a manager opens it: it gives numbers out again that the original
        gives out after this instant. One of a version that knew of no lives draws its first."""
        tables = copy.execute(self._queries["tables"]).fetchall()
        if ("talka_life",) in tables:
            copy.execute(self._queries["mark_copy"])
        if ("talka_leases",) in tables:
            copy.execute(self._queries["free_leases"])

    def _open(self, as_it_is: bool) -> None:
        if not self._in_memory:
            self._find(as_it_is)
        synchronous = f"synchronous = {self._synchronous}"
        self._writer = connected(self.place, self._limits.busy_s, *PRAGMAS, synchronous, statements=STATEMENTS)
        self.found_version = self._version(self._writer)
        if self.found_version > self.version:
            raise BadRecords(
                f"{self.place} was written by a later version of talka (its schema is {self.found_version}, known here "
                f"is {self.version}): use that version or a newer one, or name another --store"
            )
        if as_it_is:
            self._is_older = self.found_version < self.version
        else:
            write_ahead(self._writer)
            # Also when there is nothing to do: a file that cannot be written is told of now.
            migrate(self._writer, self._queries, self._version)
        if self._in_memory:
            self._reader = self._writer
        else:
            self._reader = connected(
                self.place, self._limits.busy_s, *PRAGMAS, "query_only = ON", statements=STATEMENTS
            )
        self._check_place()
        self._is_open = True

    def _find(self, as_it_is: bool) -> None:
        if os.path.isdir(self.place):
            raise BadRecords(f"{self.place} is a folder: name a file in it with --store")
        if os.path.exists(self.place):
            # SQLite opens such a file for reading, and begins a transaction that wants to write as one that reads.
            if not as_it_is and not os.access(self.place, os.W_OK):
                raise self._not_writable()
            return
        if as_it_is:
            raise BadRecords(f"there is no store {self.place}: check --store, or make one with talka store migrate")
        # Configs and outputs may hold secrets: file and folder are their owner's alone. SQLite's other files follow it.
        folder = os.path.dirname(self.place)
        os.makedirs(folder, mode=FOLDER_MODE, exist_ok=True)
        os.close(os.open(self.place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        sync_folder(Path(folder))

    def _version(self, connection: sqlite3.Connection) -> int:
        version = version_of(connection, self._queries, VERSION_TABLE)
        if version is None:
            raise BadRecords(f"{self.place} is a database of something else: name another file with --store")
        return version

    def _open_one(self, connection: sqlite3.Connection | None) -> sqlite3.Connection:
        if connection is None:
            raise RecordsUnavailable(f"{self.place} has been closed: open it again")
        return connection

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except FILE_ERRORS as error:
            raise self._sentence(error) from error

    def _sentence(self, error: Exception) -> TalkaError:
        if isinstance(error, sqlite3.Error):
            return self._problem(error)
        if isinstance(error, OSError):
            return BadRecords(f"{self.place} cannot be made: {folder_reason(error)}")
        return Invalid(f"{self.place} cannot keep this ({error}): a number is too large, or a text is none")

    def _not_writable(self) -> TalkaError:
        text = f"{self.place} cannot be written: check the permissions of the file and of its folder, "
        if self._is_open:  # it could be, and can be again
            return RecordsUnavailable(text + "and whether its disk may be written to")
        return BadRecords(text + "or name another file with --store")

    def _problem(self, error: sqlite3.Error) -> TalkaError:
        code = getattr(error, "sqlite_errorcode", None)
        if code in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC):
            # The kernel may have dropped what it could not write, and would call the next attempt a success.
            self._failure = f"the disk did not keep what was written: {error}"
            return RecordsBroken(f"{self.place} was not written ({self._failure}): look after the disk and start again")
        match primary_code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return RecordsUnavailable(
                    f"{self.place} is in use by another process for over {self._limits.busy_s:g} s: "
                    "stop that one, or try again later"
                )
            case sqlite3.SQLITE_FULL:
                return RecordsUnavailable(f"{self.place} cannot be written (the disk is full): free some space there")
            case sqlite3.SQLITE_CONSTRAINT:
                return AlreadyKept(
                    f"{self.place}: a job or a task of these is kept already ({error}): nothing was changed"
                )
            case sqlite3.SQLITE_NOTADB:
                return BadRecords(f"{self.place} is not a database of SQLite: name another file with --store")
            case sqlite3.SQLITE_CORRUPT:
                return BadRecords(
                    f"{self.place} is damaged ({error}): put a copy made by talka store backup in its place, "
                    "or name another file with --store"
                )
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return self._not_writable()
            case _:
                return RecordsUnavailable(f"{self.place} cannot be used ({error}): look after the disk and start again")


def lengthen(path: str, bytes_: int) -> None:
    """With zeros that are on the disk. All of it or nothing; nothing where the file is not there."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    found = at = os.fstat(file).st_size
    try:
        while at < bytes_:
            at += os.pwrite(file, ZEROS[: bytes_ - at], at)
        os.fsync(file)
    except OSError:  # the disk is full
        os.ftruncate(file, found)
    finally:
        os.close(file)
