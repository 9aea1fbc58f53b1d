"""A store of dag jobs over dicts, to be thrown away: that the port `Store` asks for no file, no thread and no SQL.

It is one file, and `dict` one line in `store/dags/opening.py`.
"""

import asyncio
import copy
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from talka.errors import Invalid
from talka.store.dags.memory import OpenedLife, StoreMemory, why_new
from talka.store.dags.records import (
    AlreadyKept,
    BadRecords,
    CommitListener,
    Condition,
    Fetched,
    KeyedRow,
    Lease,
    Migrated,
    RecordsUnavailable,
    Store,
    StoreTaken,
    check_taken,
)
from talka.units import MILLISECOND
from talka.wire.output_tail import STREAMS
from talka.work.dags.records import (
    JOB_STATES,
    TASK_STATES,
    AttemptRow,
    Change,
    ClaimRange,
    ClaimTask,
    Complete,
    CompleteRange,
    DropElements,
    DropJob,
    DropSchedule,
    EventRow,
    Extend,
    FanOut,
    FanRow,
    JobRow,
    LiveTask,
    LogRow,
    MoveJob,
    MoveNotice,
    NoticeRow,
    PutAttempt,
    PutEvent,
    PutJob,
    PutLogs,
    PutNotice,
    PutSchedule,
    PutStreams,
    PutTasks,
    PutTime,
    Release,
    Reset,
    ScheduleRow,
    StreamRow,
    TaskKey,
    TaskRow,
    TimeRow,
)
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.retention import Keep, Retention

replace = msgspec.structs.replace


class Gist(msgspec.Struct):
    handler: str = ""
    priority: int = 5


class Life(msgspec.Struct, frozen=True):
    store: int
    life: int
    is_copy: bool = False


class Rows(msgspec.Struct):
    """All that one store keeps."""

    jobs: dict[int, JobRow] = {}
    tasks: dict[TaskKey, TaskRow] = {}
    keys: dict[str, TaskKey] = {}
    fans: dict[TaskKey, FanRow] = {}
    attempts: dict[tuple[int, int, int], AttemptRow] = {}
    events: dict[int, EventRow] = {}
    logs: dict[int, LogRow] = {}
    streams: dict[tuple[int, int, int, int], StreamRow] = {}
    times: dict[tuple[int, int, int], TimeRow] = {}
    schedules: dict[str, ScheduleRow] = {}
    notices: dict[str, NoticeRow] = {}
    leases: dict[str, Lease] = {}
    ages: dict[int, int] = {}
    """How old the store was when the end of a job was seen."""
    age_ms: int = 0
    highest: int = 0
    numbered: int = 0
    """Events and lines so far."""
    life: Life | None = None

    def copied(self) -> "Rows":
        return Rows(*map(copy.copy, msgspec.structs.astuple(self)))


class DictPlace:
    """Where one store is, whoever has it open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = Rows()
        self.on_trip: Callable[[str], None] = lambda verb: None
        """Told of every question and every transaction."""
        self.on_step: Callable[[], None] = lambda: None
        """Told of everything within a transaction; if it raises, the process ends there."""


class DictStore:
    """One who has it open."""

    def __init__(self, place: DictPlace) -> None:
        self._place = place
        self._fences: dict[str, Lease] = {}
        self._commits: CommitListener | None = None
        self._lost: set[str] = set()
        self._is_broken = self._is_drained = self._is_closed = False

    @property
    def place(self) -> str:
        return f"dict:///{self._place.name}"

    @property
    def problem(self) -> str:
        return ""

    def _rows(self, verb: str) -> Rows:
        if self._is_closed:
            raise RecordsUnavailable(f"{self.place} has been closed: open it again")
        self._place.on_trip(verb)
        return self._place.rows

    def _write(self, act: Callable[[Rows], Any], key: str) -> Any:
        """All of it or nothing."""
        rows = self._rows("write").copied()
        for fence in [self._fences.get(key, Lease(key, "", 0, 0))] if key else self._fences.values():
            held = rows.leases.get(fence.key)
            if held is None or held[:3] != fence[:3] or not held.owner:
                raise StoreTaken.at(self.place, fence.key)
        self._place.on_step()
        answer = act(rows)
        self._place.on_step()
        self._place.rows = rows
        return answer

    # Commits.

    def start(self, commits: CommitListener) -> None:
        self._commits = commits

    def commit(self, ticket: int, changes: Sequence[Change], key: str = "") -> bool:
        """Nothing is ever waited for, so each holds when this returns."""
        assert self._commits is not None
        if self._is_broken or self._is_drained or (key in self._lost if key else self._lost):
            return False
        try:
            check_taken(changes, self._applied(changes, key))
        except BaseException as error:  # noqa: BLE001 - whatever it is, nothing that comes later may be made
            self.give_up(error.key if isinstance(error, StoreTaken) else "")
            asyncio.get_running_loop().call_soon(self._commits.on_broken, error)
            return False
        return True

    def give_up(self, key: str = "") -> None:
        if key:
            self._lost.add(key)
        else:
            self._is_broken = True

    async def drain(self) -> None:
        self._is_drained = True

    async def close(self) -> None:
        self._is_drained = self._is_closed = True

    # Changes.

    async def apply(self, changes: Sequence[Change], key: str = "") -> list[int]:
        return self._applied(changes, key)

    def _applied(self, changes: Sequence[Change], key: str) -> list[int]:
        def act(rows: Rows) -> list[int]:
            counts = []
            for change in changes:
                self._place.on_step()
                counts.append(changed(rows, change))
            return counts

        return self._write(act, key)  # type: ignore[no-any-return]

    async def sweep(self, grown_ms: int, kept: Retention, limit: int, key: str = "") -> int:
        def act(rows: Rows) -> int:
            rows.age_ms += max(grown_ms, 0)
            for row in rows.jobs.values():
                if is_final(row.state):
                    rows.ages.setdefault(row.number, rows.age_ms)
            old: list[JobRow] = []
            for completed in (True, False):
                keep, ended = kept.of(is_completed=completed), ends_of(rows, completed)
                too_many = {row.number for row in ended[: max(0, len(ended) - keep.count)]}
                too_many -= {notice.job for notice in rows.notices.values() if notice.state == "waiting"}
                old += [r for r in ended if r.number in too_many or is_beyond(rows, r, keep)]
            return sum(changed(rows, DropJob(row.number)) for row in old[: max(limit, 0)])

        return self._write(act, key)  # type: ignore[no-any-return]

    async def sweep_output(self, kept: Retention, key: str = "") -> bool:
        def act(rows: Rows) -> bool:
            for completed in (True, False):
                keep = kept.of(is_completed=completed)
                having = [row for row in ends_of(rows, completed) if not row.output_gone and row.number in rows.ages]
                if having and (len(having) > keep.count or is_beyond(rows, having[0], keep)):
                    number = having[0].number
                    drop_lines(rows, number)
                    rows.jobs[number] = replace(having[0], output_gone=True, output_bytes=0)
                    return True
            return False

        return self._write(act, key)  # type: ignore[no-any-return]

    async def clear(self, key: str = "") -> bool:
        return False  # all of a job goes at once

    async def sweep_blobs(self, older_than_s: float, now_s: float) -> None:
        """Outputs of any size are in their rows."""

    # Leases.

    async def acquire(self, keys: Sequence[str], owner: str) -> list[Lease]:
        if not owner or any("\0" in key for key in keys):
            raise Invalid(f"{owner!r} cannot have a lease of {list(keys)!r}: an owner has a name, a key no NUL in it")
        return self._leased(
            dict.fromkeys(keys),
            lambda key, old: (
                Lease(key, owner, 1, 0)
                if old is None
                else Lease(key, owner, old.epoch + (old.owner != owner), old.beat + 1)
                if old.owner in ("", owner)
                else None
            ),
        )

    async def renew(self, owner: str, held: Sequence[tuple[str, int]]) -> list[Lease]:
        wanted = set(held)
        return self._leased(
            dict(held),
            lambda key, old: (
                old._replace(beat=old.beat + 1)
                if old is not None and old.owner == owner and (key, old.epoch) in wanted
                else None
            ),
        )

    async def take(self, owner: str, seen: Sequence[Lease]) -> list[Lease]:
        if not owner:
            raise Invalid("nobody cannot have a lease: an owner has a name")
        marks = {(lease.key, lease.epoch, lease.beat) for lease in seen}
        return self._leased(
            {lease.key: None for lease in seen},
            lambda key, old: (
                Lease(key, owner, old.epoch + 1, old.beat + 1)
                if old is not None and (key, old.epoch, old.beat) in marks
                else None
            ),
        )

    async def release(self, owner: str, held: Sequence[tuple[str, int]]) -> int:
        wanted = set(held)
        freed = self._leased(
            dict(held),
            lambda key, old: (
                old._replace(owner="")
                if old is not None and old.owner == owner and (key, old.epoch) in wanted
                else None
            ),
        )
        return len(freed)

    def _leased(self, keys: Iterable[str], becomes: Callable[[str, Lease | None], Lease | None]) -> list[Lease]:
        rows = self._rows("leases")
        new = [lease for key in keys if (lease := becomes(key, rows.leases.get(key))) is not None]
        rows.leases.update({lease.key: lease for lease in new})
        return new

    async def raise_epoch(self, owner: str, held: tuple[str, int], epoch: int) -> int:
        key, now_held = held
        found = self._rows("leases").leases.get(key)
        if found is None or (found.owner, found.epoch) != (owner, now_held):
            return 0
        raised = found._replace(epoch=max(epoch, now_held + 1))
        self._place.rows.leases[key] = raised
        if key in self._fences and self._fences[key][:3] == (key, owner, now_held):
            self._fences[key] = raised
        return raised.epoch

    async def leases(self, prefix: str) -> list[Lease]:
        found = self._rows("leases").leases
        return [found[key] for key in sorted(found) if key.startswith(prefix) and found[key].owner]

    def fence(self, lease: Lease) -> None:
        self._fences[lease.key] = lease

    async def open_life(self, epoch: int, memory: StoreMemory, draw: Callable[[], int]) -> OpenedLife:
        rows = self._rows("life")
        if rows.life is None:
            opened = OpenedLife(draw(), draw(), "")
        else:
            store, life = rows.life.store, rows.life.life
            reason = why_new(life, epoch, memory.of(store), memory, rows.life.is_copy, True)
            opened = OpenedLife(store, draw() if reason else life, reason)
        rows.life = Life(opened.store, opened.life)
        return opened

    # Jobs.

    async def next_number(self) -> int:
        return self._rows("next_number").highest + 1

    async def live_jobs(self) -> list[JobRow]:
        return [row for _, row in sorted(self._rows("live_jobs").jobs.items()) if not is_final(row.state)]

    async def job(self, id: str) -> JobRow | None:
        return next((row for row in self._rows("job").jobs.values() if row.id == id), None)

    async def job_by_key(self, key: str) -> JobRow | None:
        return next((row for row in self._rows("job_by_key").jobs.values() if key and row.key == key), None)

    async def jobs_keyed(self, begins: Sequence[str]) -> list[tuple[str, str]]:
        rows = self._rows("jobs_keyed").jobs.values()
        return sorted((row.key, row.id) for row in rows if row.key and row.key.startswith(tuple(begins)))

    async def jobs(self, states: Sequence[str], before: int, limit: int) -> list[JobRow]:
        check_states(states, JOB_STATES)
        rows = [row for _, row in sorted(self._rows("jobs").jobs.items(), reverse=True)]
        return first(limit, (row for row in rows if row.number < before and (not states or row.state in states)))

    async def events(self, job: int, after: int, limit: int) -> list[EventRow]:
        rows = self._rows("events").events.values()
        return first(limit, (row for row in rows if row.job == job and row.number > after))

    async def schedules(self) -> list[ScheduleRow]:
        return [row for _, row in sorted(self._rows("schedules").schedules.items())]

    async def notices(self, job: int) -> list[NoticeRow]:
        rows = self._rows("notices").notices
        return [row for _, row in sorted(rows.items()) if row.job == job]

    async def waiting_notices(self, limit: int, after: tuple[int, str] = (-1, "")) -> list[NoticeRow]:
        rows = self._rows("waiting_notices").notices.values()
        waiting = [row for row in rows if row.state == "waiting" and (row.next_ms, row.id) > after]
        return first(limit, sorted(waiting, key=lambda row: (row.next_ms, row.id)))

    # Tasks.

    def _tasks(self, verb: str) -> list[TaskRow]:
        return [row for _, row in sorted(self._rows(verb).tasks.items())]

    async def live_tasks(self, job: int, after: int, limit: int) -> list[LiveTask]:
        return first(limit, (live(row) for row in self._tasks("live_tasks") if row.job == job and row.index > after))

    async def fetch(self, specs: Sequence[TaskKey], outputs: Sequence[TaskKey]) -> Fetched:
        tasks = self._rows("fetch").tasks
        ended = {key: tasks[key] for key in outputs if key in tasks and tasks[key].state is TaskState.COMPLETED}
        return Fetched(
            {key: (tasks[key].spec, tasks[key].checkpoint) for key in specs if key in tasks},
            {key: row.output for key, row in ended.items() if not row.blob},
        )

    async def keyed(self, keys: Sequence[str]) -> dict[str, KeyedRow]:
        rows = self._rows("keyed")
        found = {}
        for key in keys:
            row = rows.tasks.get(rows.keys.get(key, (0, -1)))
            if row is not None and row.state is TaskState.COMPLETED and row.job in rows.jobs:
                found[key] = KeyedRow(rows.jobs[row.job].id, row.id, row.output, row.blob)
        return found

    async def tasks(self, job: int, states: Sequence[str], after: int, limit: int) -> list[TaskRow]:
        check_states(states, TASK_STATES)
        rows = [row for row in self._tasks("tasks") if row.job == job and row.index > after]
        return first(limit, (row for row in rows if not states or row.state in states))

    async def tasks_at(self, keys: Sequence[TaskKey]) -> list[TaskRow]:
        tasks = self._rows("tasks_at").tasks
        return [tasks[key] for key in sorted(set(keys)) if key in tasks]

    async def task(self, job: int, id: str) -> TaskRow | None:
        return next((row for row in self._tasks("task") if (row.job, row.id) == (job, id)), None)

    async def blob(self, digest: str) -> bytes | None:
        return None

    async def fans(self, job: int) -> list[FanRow]:
        return [fan for (number, _), fan in sorted(self._rows("fans").fans.items()) if number == job]

    async def counts(self, job: int) -> dict[str, int]:
        return self._counted([row for row in self._tasks("counts") if row.job == job])

    async def counts_of(self, job: int, fan: FanRow) -> dict[str, int]:
        rows = [row for row in self._tasks("counts_of") if row.job == job]
        return self._counted([row for row in rows if fan.first <= row.index < fan.first + fan.count])

    def _counted(self, rows: Sequence[TaskRow]) -> dict[str, int]:
        states = [row.state for row in rows]
        return {str(state): states.count(state) for state in TASK_STATES if state in states}

    async def attempts(self, keys: Sequence[TaskKey]) -> list[AttemptRow]:
        wanted = set(keys)
        return [row for key, row in sorted(self._rows("attempts").attempts.items()) if key[:2] in wanted]

    async def logs(self, job: int, index: int, after: int, limit: int) -> list[LogRow]:
        rows = self._rows("logs").logs.values()
        return first(limit, (row for row in rows if (row.job, row.index) == (job, index) and row.number > after))

    async def stream_sizes(self, job: int, index: int, count: int = 1) -> list[StreamRow]:
        rows = [row for _, row in sorted(self._rows("stream_sizes").streams.items()) if row.job == job]
        return [replace(row, content=b"") for row in rows if index <= row.index < index + count]

    async def times(self, job: int, index: int, count: int = 1) -> list[TimeRow]:
        rows = [row for _, row in sorted(self._rows("times").times.items()) if row.job == job]
        return [row for row in rows if index <= row.index < index + count]

    async def streams(self, job: int, index: int, fence: int) -> list[StreamRow]:
        return [row for key, row in sorted(self._rows("streams").streams.items()) if key[:3] == (job, index, fence)]

    async def dead_letters(self, after: TaskKey, limit: int) -> list[TaskRow]:
        rows = self._tasks("dead_letters")
        return first(limit, (row for row in rows if (row.job, row.index) > after and row.state is TaskState.DEAD))


def first(limit: int, rows: Iterable[Any]) -> list[Any]:
    return list(islice(rows, max(limit, 0)))


def check_states(states: Sequence[str], known: Sequence[str]) -> None:
    for state in states:
        if state not in known:
            raise Invalid(f"there is no state {state!r}: write one of {', '.join(known)}")


def gist_of(spec: bytes) -> Gist:
    try:
        return msgspec.json.decode(spec, type=Gist)
    except msgspec.MsgspecError as error:
        raise Invalid(f"the spec of a task cannot be kept ({error}): it is no JSON of a task") from None


def live(row: TaskRow) -> LiveTask:
    gist = gist_of(row.spec)
    waits = struct.pack(f"<{len(row.depends_on)}I", *row.depends_on)
    state = TASK_STATES.index(row.state)
    of_attempts = (row.attempts, row.fence, row.worker, row.ready_ms, row.deaths)
    so_far = (row.failures, row.started_ms, row.cause, row.error)
    return LiveTask(row.index, state, row.id, waits, *of_attempts, gist.handler, gist.priority, *so_far)


# What each change does.


def changed(rows: Rows, change: Change) -> int:
    """How many rows."""
    match change:
        case PutJob(row):
            others = rows.jobs.values()
            if row.number in rows.jobs or any(row.id == old.id or (row.key and row.key == old.key) for old in others):
                raise AlreadyKept(f"job {row.id} is kept already: nothing was changed")
            rows.jobs[row.number] = row
            rows.highest = max(rows.highest, row.number)
        case PutTasks(tasks):
            for task in tasks:
                gist_of(task.spec)
                if any(isinstance(value, int) and value >> 63 for value in msgspec.structs.astuple(task)):
                    raise Invalid("this cannot be kept: a number is too large")
                if (task.job, task.index) in rows.tasks:
                    raise AlreadyKept(f"task {task.id} is kept already: nothing was changed")
                rows.tasks[task.job, task.index] = task
            return len(tasks)
        case MoveJob(number):
            return moved(rows, number, change)
        case DropJob(number):
            return dropped(rows, number)
        case FanOut(number, index, first_one, count, size):
            sized(rows, number, size)
            if (number, index) in rows.fans:
                return 0
            rows.fans[number, index] = FanRow(index, first_one, count)
        case DropElements(number, index, first_one, count, size):
            return unfanned(rows, number, FanRow(index, first_one, count), size)
        case PutAttempt(row):
            rows.attempts[row.job, row.index, row.fence] = row
        case PutEvent(row):
            rows.numbered += 1
            rows.events[rows.numbered] = replace(row, number=rows.numbered)
        case PutLogs(lines):
            for line in lines:
                rows.numbered += 1
                rows.logs[rows.numbered] = replace(line, number=rows.numbered)
            return len(lines)
        case PutTime(row):
            rows.times[row.job, row.index, row.fence] = row
            return 1
        case PutStreams(streams, output_bytes):
            for stream in streams:
                rows.streams[stream.job, stream.index, stream.fence, STREAMS.index(stream.stream)] = stream
                if stream.job in rows.jobs:
                    rows.jobs[stream.job] = replace(rows.jobs[stream.job], output_bytes=output_bytes)
            return len(streams)
        case PutSchedule(row):
            rows.schedules[row.name] = row
        case DropSchedule(name):
            return int(rows.schedules.pop(name, None) is not None)
        case PutNotice(row):
            rows.notices[row.id] = row
        case MoveNotice(id, state, tries, next_ms, error):
            notice = rows.notices.get(id)
            if notice is None or notice.state != "waiting":
                return 0
            rows.notices[id] = replace(notice, state=state, tries=tries, next_ms=next_ms, error=error)
        case ClaimRange() | CompleteRange():
            number, last = change.job, change.first + change.count
            kept = [index for job, index in rows.tasks if job == number and change.first <= index < last]
            return sum(changed(rows, one) for index in kept for one in part(change, index))
        case ClaimTask() | Complete() | Release() | Extend() | Reset():
            found = rows.tasks.get((change.job, change.index))
            values = {} if found is None else task_values(found, change)
            if found is None or not values:
                return 0
            if isinstance(change, Reset) and found.state is TaskState.COMPLETED and found.fence:
                keep_completed(rows, found)
            rows.tasks[change.job, change.index] = replace(found, **values)
            if isinstance(change, Complete) and change.key and change.state is TaskState.COMPLETED:
                rows.keys[change.key] = (change.job, change.index)
    return 1


def keep_completed(rows: Rows, task: TaskRow) -> None:
    """The attempt that completed a task, which is to be run again."""
    row = AttemptRow(
        job=task.job,
        index=task.index,
        attempt=task.attempts,
        fence=task.fence,
        worker=task.worker,
        started_ms=task.started_ms,
        ended_ms=task.ended_ms,
        cause="completed",
        memory_bytes=task.memory_bytes,
        outcome="completed",
    )
    rows.attempts.setdefault((task.job, task.index, task.fence), row)


def part(change: ClaimRange | CompleteRange, index: int) -> Iterator[ClaimTask | Complete]:
    """Of a range: what it means for one task."""
    fence = change.fence + index - change.first if change.fence else 0
    return replace(change, first=index, count=1, fence=fence).each()


def moved(rows: Rows, number: int, change: MoveJob) -> int:
    old = rows.jobs.get(number)
    if old is None:
        return 0
    has_ended = is_final(change.state)
    rows.ages.pop(number, None)
    rows.jobs[number] = replace(
        old,
        state=change.state,
        output_gone=False,
        reason=change.reason,
        started_ms=old.started_ms or (change.at_ms if change.state is JobState.RUNNING else 0),
        ended_ms=change.at_ms if has_ended else 0,
        tasks=old.tasks if change.tasks is None else change.tasks,
        counts=old.counts if has_ended and change.counts is None else change.counts or {},
    )
    return 1


def ends_of(rows: Rows, completed: bool) -> list[JobRow]:
    """Of jobs that completed, or of all others; the oldest first."""
    ended = [row for row in rows.jobs.values() if is_final(row.state)]
    ended = [row for row in ended if (row.state is JobState.COMPLETED) is completed]
    return sorted(ended, key=lambda row: (rows.ages.get(row.number, rows.age_ms), row.ended_ms, row.number))


def is_beyond(rows: Rows, row: JobRow, keep: Keep) -> bool:
    return rows.ages[row.number] <= rows.age_ms - keep.age_ns // MILLISECOND


def drop_lines(rows: Rows, number: int) -> None:
    rows.logs = {key: row for key, row in rows.logs.items() if row.job != number}
    rows.streams = {key: row for key, row in rows.streams.items() if row.job != number}


def dropped(rows: Rows, number: int) -> int:
    """With all that is its own."""
    rows.ages.pop(number, None)
    rows.tasks = {key: row for key, row in rows.tasks.items() if row.job != number}
    rows.keys = {key: task for key, task in rows.keys.items() if task[0] != number}
    rows.fans = {key: row for key, row in rows.fans.items() if key[0] != number}
    rows.attempts = {key: row for key, row in rows.attempts.items() if row.job != number}
    rows.events = {key: row for key, row in rows.events.items() if row.job != number}
    drop_lines(rows, number)
    rows.times = {key: row for key, row in rows.times.items() if row.job != number}
    rows.notices = {key: row for key, row in rows.notices.items() if row.job != number}
    return int(rows.jobs.pop(number, None) is not None)


def sized(rows: Rows, number: int, size: int) -> None:
    if number in rows.jobs:
        rows.jobs[number] = replace(rows.jobs[number], tasks=size)


def unfanned(rows: Rows, number: int, fan: FanRow, size: int) -> int:
    """Its elements, with all that is their own."""
    has_fan = rows.fans.get((number, fan.index)) == fan
    if has_fan:
        del rows.fans[number, fan.index]
    gone = {(number, index) for index in range(fan.first, fan.first + fan.count)}
    rows.tasks = {key: row for key, row in rows.tasks.items() if key not in gone}
    rows.fans = {key: row for key, row in rows.fans.items() if key not in gone}
    rows.keys = {key: task for key, task in rows.keys.items() if task not in gone}
    rows.attempts = {key: row for key, row in rows.attempts.items() if key[:2] not in gone}
    rows.logs = {key: row for key, row in rows.logs.items() if (row.job, row.index) not in gone}
    wrote = [key for key in rows.streams if key[:2] in gone]
    if number in rows.jobs:
        less = sum([rows.streams[key].kept for key in wrote])
        rows.jobs[number] = replace(rows.jobs[number], output_bytes=rows.jobs[number].output_bytes - less)
    rows.streams = {key: row for key, row in rows.streams.items() if key not in wrote}
    rows.times = {key: row for key, row in rows.times.items() if key[:2] not in gone}
    sized(rows, number, size)
    return int(has_fan)


def task_values(row: TaskRow, change: ClaimTask | Complete | Release | Extend | Reset) -> dict[str, Any]:
    """What becomes of a task; nothing: it was refused."""
    if isinstance(change, Reset):
        if change.spec:
            gist_of(change.spec)
        plain = TaskRow(job=row.job, index=row.index, id=row.id, state=TaskState.PENDING, spec=change.spec or row.spec)
        return msgspec.structs.asdict(replace(plain, depends_on=row.depends_on, attempts=row.attempts))
    if is_final(row.state):
        return {}
    match change:
        case ClaimTask() if change.fence >= row.fence:
            of_attempt = {"attempts": change.attempt, "fence": change.fence, "worker": change.worker}
            return {"state": TaskState.ASSIGNED, "started_ms": change.at_ms, **of_attempt}
        case Extend() if change.fence == row.fence:
            return {"checkpoint": change.checkpoint}
        case Complete() if change.fence in (0, row.fence):
            return {
                **{name: getattr(change, name) for name in ("state", "output", "blob", "error", "cause")},
                **{name: getattr(change, name) or getattr(row, name) for name in ("started_ms", "worker", "attempts")},
                "ended_ms": change.at_ms,
                "memory_bytes": change.memory_bytes,
            }
        case Release() if change.fence in (0, row.fence):
            names = ("ready_ms", "attempts", "deaths", "cause", "error", "failures")
            return {"state": TaskState.PENDING, **{name: getattr(change, name) for name in names}}
        case _:
            return {}


class DictKind:
    """`dict:///NAME`: as long as this process lives."""

    name = "a dict"
    is_shared = False

    def __init__(self) -> None:
        self.places: dict[str, DictPlace] = {}

    def check_url(self, url: str) -> None:
        if not url.removeprefix("dict:///").isidentifier():
            raise BadRecords("a store over a dict has a name: write dict:///NAME")

    def place(self, url: str) -> DictPlace:
        return self.places.setdefault(url, DictPlace(url.removeprefix("dict:///")))

    def found(self, url: str) -> DictPlace:
        if url not in self.places:
            raise BadRecords(f"there is no store {url}")
        return self.places[url]

    async def open(self, url: str) -> Store:
        return DictStore(self.place(url))

    async def migrate(self, url: str) -> Migrated:
        was_there = url in self.places
        self.place(url)
        return Migrated(url, int(was_there), 1)

    async def look_over(self, url: str) -> Condition:
        rows = self.found(url).rows
        return Condition(url, [], len(rows.jobs), len(rows.tasks))

    async def backup(self, url: str, target: str) -> str:
        rows = self.found(url).rows.copied()
        rows.leases = {key: lease._replace(owner="") for key, lease in rows.leases.items()}
        rows.life = rows.life and replace(rows.life, is_copy=True)
        self.place(target).rows = rows
        return url
