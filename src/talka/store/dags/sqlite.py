"""Dag jobs in a file of SQLite: the verbs of `records.Store` as calls that block. `sqlite_store.py` makes a store of
them; the simulator, which has no threads, calls them itself.

A task's key is one integer, its job's number and its index together.

Decision: docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

import sqlite3
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from talka.errors import Invalid
from talka.store.dags.records import BadRecords, KeyedRow, Lease, StoreTaken
from talka.store.dags.sqlite_changes import (
    JOB_NUMBERS,
    OF_RANGES,
    SET_ASIDE,
    TASK_NUMBERS,
    ChangeStep,
    drop_jobs,
    plan,
)
from talka.store.dags.sqlite_file import (
    INDEX_BITS,
    LAST_INDEX,
    QUERIES,
    USUAL_LIMITS,
    FileLimits,
    Rows,
    SqliteFile,
    Synchronous,
)
from talka.store.sql_text import SCHEME, is_storable
from talka.units import MILLISECOND
from talka.wire.output_tail import STREAMS
from talka.work.dags.records import (
    JOB_STATES,
    TASK_STATES,
    AttemptRow,
    Change,
    DropJob,
    EventRow,
    FanRow,
    JobRow,
    LiveTask,
    LogRow,
    NoticeRow,
    ScheduleRow,
    StreamRow,
    TaskKey,
    TaskRow,
    TimeRow,
)
from talka.work.retention import Keep, Retention

Answer = TypeVar("Answer")
RowType = TypeVar("RowType", bound=msgspec.Struct)

SYNCHRONOUS: Final = ("FULL", "NORMAL")


class ClearLimits(NamedTuple):
    """How much of dropped jobs one transaction deletes: others wait for it."""

    rows: int = 1000
    bytes: int = 1 << 20


USUAL_CLEARING: Final = ClearLimits()


class NotAll(Exception):
    """Some row of a step was not changed."""


class SqliteRecords:
    """Records and leases. Calls block; any thread may make them, and reading never waits for writing."""

    def __init__(
        self,
        path: str,
        synchronous: Synchronous = "FULL",
        *,
        limits: FileLimits = USUAL_LIMITS,
        clearing: ClearLimits = USUAL_CLEARING,
    ) -> None:
        self.file = SqliteFile(path, synchronous, limits=limits)
        self._clearing = clearing
        self.is_quick = synchronous == "NORMAL"
        """Its commits do not wait for the disk, and a power cut may take the last of them."""
        self._queries = QUERIES
        self._is_held = self._queries["is_held"]
        self._fences: dict[str, tuple[str, str, int]] = {}
        """Key, owner and epoch of the leases under which everything is changed, by key."""

    @property
    def place(self) -> str:
        """For people."""
        return self.file.place

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> "SqliteRecords":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Changes.

    def fence(self, lease: Lease) -> None:
        self._fences = {**self._fences, lease.key: (lease.key, lease.owner, lease.epoch)}

    def checkpoint(self) -> None:
        """Bring what the log has to its place. Waits for the disk, which commits do not have to do then."""
        self.file.checkpoint()

    def _write(
        self, act: Callable[[sqlite3.Connection], Answer], keys: Collection[str], *, waits: bool = True
    ) -> Answer:
        """As long as the leases of these keys are held, without keys all that this handle is fenced with. It is looked
        up where nobody can take them meanwhile."""

        def fenced(connection: sqlite3.Connection) -> Answer:
            fences = self._fences
            for key in keys or fences:
                fence = fences.get(key)  # none: nobody here has ever had it
                if fence is None or connection.execute(self._is_held, fence).fetchone() is None:
                    raise StoreTaken.at(self.place, key)
            return act(connection)

        return self.file.write(fenced, waits=waits)

    def apply(self, changes: Sequence[Change], keys: Collection[str] = (), *, waits: bool = True) -> list[int]:
        """`waits`: for other writers of this process; else their turn is `WriterBusy`."""
        steps, order = plan(changes)
        try:
            counts = self._write(lambda connection: self._at_once(connection, steps), keys, waits=waits)
        except NotAll:
            # Rare, and all of it was taken back: which rows it was is only seen one by one.
            counts = self._write(lambda connection: self._one_by_one(connection, steps), keys, waits=waits)
        changed = [0] * len(changes)
        for position, count in zip(order, counts, strict=True):
            changed[position] = count
        return changed

    def _at_once(self, connection: sqlite3.Connection, steps: list[ChangeStep]) -> list[int]:
        changed: list[int] = []
        for query, rows, sizes, ranges in steps:
            count = connection.executemany(self._queries[query], rows).rowcount if rows else 0
            if query == SET_ASIDE:
                self._clear(connection)
            if sizes is None:
                sizes = ranges or [1] * len(rows)
            if sizes and count != sum(sizes):
                raise NotAll
            changed += sizes
        return changed

    def _one_by_one(self, connection: sqlite3.Connection, steps: list[ChangeStep]) -> list[int]:
        changed: list[int] = []
        for query, rows, sizes, _ in steps:
            sql = self._queries[query]
            counts = [connection.execute(sql, row).rowcount for row in rows]
            if query == SET_ASIDE:
                self._clear(connection)
            if sizes is None:
                changed += counts
            else:
                rest = iter(counts)
                changed += [sum(next(rest) for _ in range(size)) for size in sizes]
        return changed

    def sweep(self, grown_ms: int, kept: Retention, limit: int, keys: Collection[str] = ()) -> int:
        def act(connection: sqlite3.Connection) -> int:
            age_ms = self._age_ms(connection, grown_ms)
            connection.execute(self._queries["see_ends"], {"age_ms": age_ms})
            found: list[int] = []
            for completed in (True, False):
                keep = kept.of(is_completed=completed)
                found += self._swept(connection, age_ms, keep, max(limit, 0) - len(found), completed)
            return sum(self._at_once(connection, drop_jobs([DropJob(number) for number in found])))

        return self._write(act, keys)

    def _age_ms(self, connection: sqlite3.Connection, grown_ms: int = 0) -> int:
        ((age_ms,),) = connection.execute(self._queries["grow_older"], {"grown_ms": max(grown_ms, 0)}).fetchall()
        return int(age_ms)

    def _swept(self, connection: sqlite3.Connection, age_ms: int, keep: Keep, limit: int, completed: bool) -> list[int]:
        """The oldest first, whichever of the two bounds they are beyond. One whose end somebody is still to be told of
        goes by its age alone: tries end long before, and a server that is silent does not make the store grow without
        end. So many are looked at that they suffice, and not all that have ended."""
        before_ms, queries = age_ms - keep.age_ns // MILLISECOND, self._queries
        ((kept_for,),) = connection.execute(queries["jobs_to_tell"]).fetchall()
        most = limit + kept_for
        values = {"completed": completed, "most": keep.count + most}
        ((ended,),) = connection.execute(queries["ended_jobs"], values).fetchall()
        oldest = connection.execute(queries["oldest_ends"], values | {"most": most}).fetchall()
        return [
            number
            for place, (number, ended_age_ms, is_to_tell) in enumerate(oldest)
            if ended_age_ms <= before_ms or (place < ended - keep.count and not is_to_tell)
        ][:limit]

    def sweep_output(self, kept: Retention, keys: Collection[str] = ()) -> bool:
        def act(connection: sqlite3.Connection) -> bool:
            age_ms = self._age_ms(connection)
            for completed in (True, False):
                keep = kept.of(is_completed=completed)
                before_ms = age_ms - keep.age_ns // MILLISECOND
                values = {"completed": completed, "before_ms": before_ms, "keep": keep.count}
                found = connection.execute(self._queries["oldest_output"], values).fetchone()
                if found is not None:
                    self._clear_output(connection, found[0])
                    return True
            return False

        return self._write(act, keys)

    def _clear_output(self, connection: sqlite3.Connection, job: int) -> None:
        """As much of it as one transaction may hold up."""
        rows, size = self._clearing
        first, last = job << INDEX_BITS, job << INDEX_BITS | LAST_INDEX
        found = connection.execute(self._queries["next_outputs"], (first, last, rows)).fetchall()
        part = fitting(found, size)
        if part:
            connection.execute(self._queries["drop_streams"], (first, part[-1][0]))
        if len(part) == len(found) < rows:
            if connection.execute(self._queries["drop_some_logs"], (first, last, rows)).rowcount < rows:
                connection.execute(self._queries["note_output_gone"], (job,))

    def clear(self, keys: Collection[str] = ()) -> bool:
        return bool(self.file.read("next_drop")) and self._write(self._clear, keys)

    def _clear(self, connection: sqlite3.Connection) -> bool:
        """Whether there is more than one transaction may hold up."""
        rows, size = self._clearing
        while dropped := connection.execute(self._queries["next_drop"]).fetchone():
            if rows <= 0 or size <= 0:
                return True
            (job,) = dropped
            first, last = job << INDEX_BITS, job << INDEX_BITS | LAST_INDEX
            found = connection.execute(self._queries["next_drops"], (first, last, rows)).fetchall()
            part = fitting(found, size)
            is_rest = len(part) == len(found) < rows
            for query in OF_RANGES:
                connection.execute(self._queries[query], (first, last if is_rest else part[-1][0]))
            rows, size = rows - len(part) - 1, size - sum([of_task for _, of_task in part])
            if is_rest:
                most = max(rows, 1)
                events = connection.execute(self._queries["drop_events"], (job, most)).rowcount
                rows -= events
                if events < most:
                    connection.execute(self._queries["drop_drop"], (job,))
        return False

    # Jobs.

    def next_number(self) -> int:
        ((number,),) = self.file.read("next_number")
        return int(number)

    def live_jobs(self) -> list[JobRow]:
        return [job_of(row) for row in self.file.read("live_jobs")]

    def job(self, id: str) -> JobRow | None:
        return next((job_of(row) for row in self.file.read("job", {"id": id})), None)

    def job_by_key(self, key: str) -> JobRow | None:
        return next((job_of(row) for row in self.file.read("job_by_key", {"key": key})), None)

    def jobs_keyed(self, begins: Sequence[str]) -> list[tuple[str, str]]:
        packed = packed_texts([begin for begin in begins if is_storable(begin)])
        return [(key, id) for key, id in self.file.read("jobs_keyed", {"begins": packed})]

    def jobs(self, states: Sequence[str], before: int, limit: int) -> list[JobRow]:
        packed = packed_states(states, JOB_NUMBERS)
        rows = self.file.read("jobs", {"states": packed, "before": before, "limit": max(limit, 0)})
        return [job_of(row) for row in rows]

    def events(self, job: int, after: int, limit: int) -> list[EventRow]:
        rows = self.file.read("events", {"job": job, "after": after, "limit": max(limit, 0)})
        return rows_as(EventRow, rows)

    def schedules(self) -> list[ScheduleRow]:
        rows = rows_as(ScheduleRow, self.file.read("schedules"))
        return [msgspec.structs.replace(row, is_paused=bool(row.is_paused)) for row in rows]

    def notices(self, job: int) -> list[NoticeRow]:
        return rows_as(NoticeRow, self.file.read("notices", {"job": job}))

    def waiting_notices(self, limit: int, after: tuple[int, str]) -> list[NoticeRow]:
        values = {"limit": max(limit, 0), "after_ms": after[0], "after": after[1]}
        return rows_as(NoticeRow, self.file.read("waiting_notices", values))

    # Tasks.

    def live_tasks(self, job: int, after: int, limit: int) -> list[LiveTask]:
        return [LiveTask(*row) for row in self.file.read("live_tasks", page(job, after, limit))]

    def tasks(self, job: int, states: Sequence[str], after: int, limit: int) -> list[TaskRow]:
        values = page(job, after, limit) | {"states": packed_states(states, TASK_NUMBERS)}
        return [task_of(row) for row in self.file.read("tasks", values)]

    def task(self, job: int, id: str) -> TaskRow | None:
        values = {"first": job << INDEX_BITS, "last": job << INDEX_BITS | LAST_INDEX, "id": id}
        return next((task_of(row) for row in self.file.read("task", values)), None)

    def tasks_at(self, keys: Sequence[TaskKey]) -> list[TaskRow]:
        return [task_of(row) for row in self.file.read("tasks_at", {"keys": packed_keys(keys)})]

    def dead_letters(self, after: TaskKey, limit: int) -> list[TaskRow]:
        values: dict[str, object] = {"after": (after[0] << INDEX_BITS) + after[1], "limit": max(limit, 0)}
        return [task_of(row) for row in self.file.read("dead_letters", values)]

    def fans(self, job: int) -> list[FanRow]:
        values: dict[str, object] = {"first": job << INDEX_BITS, "last": job << INDEX_BITS | LAST_INDEX}
        return [FanRow(*row) for row in self.file.read("fans", values)]

    def counts(self, job: int, first: int = 0, last: int = LAST_INDEX) -> dict[str, int]:
        return self.file.counted(job, first, last)

    def specs(self, keys: Sequence[TaskKey]) -> dict[TaskKey, tuple[bytes, bytes]]:
        rows = self.file.read("specs", {"keys": packed_keys(keys)})
        return {(job, index): (spec, checkpoint) for job, index, spec, checkpoint in rows}

    def outputs(self, keys: Sequence[TaskKey]) -> dict[TaskKey, tuple[bytes, str]]:
        rows = self.file.read("outputs", {"keys": packed_keys(keys)})
        return {(job, index): (output, blob) for job, index, output, blob in rows}

    def keyed(self, keys: Sequence[str]) -> dict[str, KeyedRow]:
        rows = self.file.read("keyed", {"keys": packed_texts([key for key in keys if is_storable(key)])})
        return {key: KeyedRow(*rest) for key, *rest in rows}

    def attempts(self, keys: Sequence[TaskKey]) -> list[AttemptRow]:
        return rows_as(AttemptRow, self.file.read("attempts", {"keys": packed_keys(keys)}))

    def logs(self, job: int, index: int, after: int, limit: int) -> list[LogRow]:
        values: dict[str, object] = {"key": job << INDEX_BITS | index, "after": after, "limit": max(limit, 0)}
        return rows_as(LogRow, self.file.read("logs", values))

    def stream_sizes(self, job: int, index: int, count: int = 1) -> list[StreamRow]:
        return [stream_of(row) for row in self.file.read("stream_sizes", in_a_row(job, index, count))]

    def times(self, job: int, index: int, count: int = 1) -> list[TimeRow]:
        return rows_as(TimeRow, self.file.read("times", in_a_row(job, index, count)))

    def streams(self, job: int, index: int, fence: int) -> list[StreamRow]:
        rows = self.file.read("streams", {"key": job << INDEX_BITS | index, "fence": fence})
        return [stream_of(row) for row in rows]

    def blobs(self, after: str, limit: int) -> list[str]:
        """Digests of large outputs that are kept, in order, those above `after`: all others may go."""
        return [blob for (blob,) in self.file.read("blobs", {"after": after, "limit": max(limit, 0)})]

    # Leases.

    def acquire(self, keys: Sequence[str], owner: str) -> list[Lease]:
        if not owner or not all(map(is_storable, keys)):
            raise Invalid(f"{owner!r} cannot have a lease of {list(keys)!r}: an owner has a name, a key no NUL in it")
        return self._leases("acquire", {"owner": owner, "keys": packed_texts(keys)})

    def renew(self, owner: str, held: Sequence[tuple[str, int]]) -> list[Lease]:
        return self._leases("renew", {"owner": owner, "held": packed_held(held)})

    def take(self, owner: str, seen: Sequence[Lease]) -> list[Lease]:
        if not owner:
            raise Invalid("nobody cannot have a lease: an owner has a name")
        rows = msgspec.json.encode([(lease.key, lease.epoch, lease.beat) for lease in seen if is_storable(lease.key)])
        return self._leases("take_leases", {"owner": owner, "seen": rows.decode()})

    def release(self, owner: str, held: Sequence[tuple[str, int]]) -> int:
        values = {"owner": owner, "held": packed_held(held)}
        return self.file.write(lambda connection: connection.execute(self._queries["release_leases"], values).rowcount)

    def raise_epoch(self, owner: str, held: tuple[str, int], epoch: int) -> int:
        key, now_held = held
        values = {"owner": owner, "key": key, "held": now_held, "epoch": max(epoch, now_held + 1)}
        before = self._fences

        def act(connection: sqlite3.Connection) -> int:
            rows = connection.execute(self._queries["raise_epoch"], values).fetchall()
            raised = next((epoch for (epoch,) in rows), 0)
            if raised and self._fences.get(key) == (key, owner, now_held):  # before anybody else writes
                self._fences = {**self._fences, key: (key, owner, raised)}
            return raised

        try:
            return self.file.write(act)
        except BaseException:
            self._fences = before
            raise

    def leases(self, prefix: str) -> Iterator[Lease]:
        return (Lease(*row) for row in self.file.read("leases", {"prefix": prefix}))

    def _leases(self, query: str, values: dict[str, Any]) -> list[Lease]:
        rows = self.file.write(lambda connection: connection.execute(self._queries[query], values).fetchall())
        return [Lease(*row) for row in rows]


def place_of(url: str) -> tuple[str, Synchronous]:
    """The file that is meant by `sqlite:///FILE` or a plain path. `?synchronous=NORMAL` is faster: a power cut may take
    the last moments with it."""
    scheme = SCHEME.match(url)
    if scheme is not None and not url.startswith("sqlite:///"):
        raise BadRecords(f"{scheme[1]}:// is not the address of a store: write sqlite:///FILE or the path of a file")
    path, synchronous = url, "FULL"
    if scheme is not None:
        path, _, query = url.removeprefix("sqlite:///").partition("?")
        for setting in filter(None, query.split("&")):
            name, _, synchronous = setting.upper().partition("=")
            if name != "SYNCHRONOUS" or synchronous not in SYNCHRONOUS:
                raise BadRecords(
                    f"{setting!r} is not a setting of a store: write ?synchronous=FULL or ?synchronous=NORMAL"
                )
    if not path or path.endswith("/") or not is_storable(path):
        raise BadRecords(f"{url!r} names no file for the store: write sqlite:///FILE or the path of a file")
    return path, cast(Synchronous, synchronous)


# Rows as they are read.

_counts: Final = msgspec.json.Decoder(dict[str, int])


def rows_as(kind: type[RowType], rows: Rows) -> list[RowType]:
    """The columns are its fields, in order."""
    return [kind(**dict(zip(kind.__struct_fields__, row, strict=True))) for row in rows]


def job_of(row: tuple[Any, ...]) -> JobRow:
    values = dict(zip(JobRow.__struct_fields__, row, strict=True))
    values["state"] = JOB_STATES[values["state"]]
    values["counts"] = _counts.decode(values["counts"])
    values["output_gone"] = bool(values["output_gone"])
    return JobRow(**values)


def stream_of(row: tuple[Any, ...]) -> StreamRow:
    values = dict(zip(StreamRow.__struct_fields__, row, strict=True))
    values["stream"] = STREAMS[values["stream"]]
    return StreamRow(**values)


def task_of(row: tuple[Any, ...]) -> TaskRow:
    values = dict(zip(TaskRow.__struct_fields__, row, strict=True))
    values["state"] = TASK_STATES[values["state"]]
    values["depends_on"] = unpacked_indexes(values["depends_on"])
    return TaskRow(**values)


def in_a_row(job: int, index: int, count: int) -> dict[str, object]:
    """Keys of so many tasks."""
    start = job << INDEX_BITS
    return {"first": start + index, "last": start + min(index + count - 1, LAST_INDEX)}


def page(job: int, after: int, limit: int) -> dict[str, object]:
    first = job << INDEX_BITS
    return {"after": first + after, "last": first | LAST_INDEX, "limit": max(limit, 0)}


def fitting(found: Rows, size: int) -> Rows:
    """The first of these keys and sizes, one at least."""
    for position, (_, of_one) in enumerate(found):
        if size <= 0:
            return found[:position]
        size -= of_one
    return found


def packed_states(states: Sequence[str], numbers: Mapping[Any, int]) -> str:
    unknown = [state for state in states if state not in numbers]
    if unknown:
        raise Invalid(f"there is no state {unknown[0]!r}: write one of {', '.join(numbers)}")
    return msgspec.json.encode([numbers[state] for state in states]).decode()


def packed_keys(keys: Iterable[TaskKey]) -> str:
    return msgspec.json.encode([job << INDEX_BITS | index for job, index in dict.fromkeys(keys)]).decode()


def packed_texts(texts: Iterable[str]) -> str:
    return msgspec.json.encode(list(dict.fromkeys(texts))).decode()


def packed_held(held: Iterable[tuple[str, int]]) -> str:
    return msgspec.json.encode([pair for pair in dict.fromkeys(held) if is_storable(pair[0])]).decode()


def unpacked_indexes(content: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(content) // 4}I", content)
