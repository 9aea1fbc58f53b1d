"""The store of a simulated manager: rows in memory, changed when a simulated write ends. A crash loses what had not.

The rows follow the statements of `store/sql/tasks`; a test holds the two together.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, Literal, TypeAlias

import msgspec

from talka.cluster.safeguards import ALL, Safeguards
from talka.control.dags.keeper import DagKeeper
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.tasks.delivery import worker_of
from talka.control.tasks.store_effects import Commit, RaiseEpoch, ReadOutputs, WorkerDropped
from talka.control.tasks.task import packed
from talka.testing.disk import Disk, Puts
from talka.testing.handler_cores import SimulatedRun
from talka.testing.host import Host
from talka.testing.line import CallLine
from talka.testing.world import Observer, World
from talka.units import MILLISECOND
from talka.wire.attempts import StoreLife
from talka.work.dag import TaskSpec, decode_task
from talka.work.lifecycle import JobState, TaskState, is_final
from talka.work.records import (
    TASK_STATES,
    AttemptRow,
    Change,
    ClaimTask,
    Complete,
    DropJob,
    DropSchedule,
    Extend,
    JobRow,
    LiveTask,
    MoveJob,
    PutAttempt,
    PutEvent,
    PutJob,
    PutLogs,
    PutSchedule,
    PutTasks,
    Release,
    Reset,
    ScheduleRow,
    TaskKey,
    TaskRow,
)

FSYNC_MEAN_NS: Final = 4 * MILLISECOND
READ_NS: Final = (MILLISECOND // 10, 30 * MILLISECOND)
LOAD_NS: Final = (20 * MILLISECOND, 400 * MILLISECOND)
SLOW_LOAD_NS: Final = (2_000 * MILLISECOND, 9_000 * MILLISECOND)
"""Of one start in six: there were many tasks to read."""

Applied: TypeAlias = Callable[[Sequence[Change], list[int]], None]
"""Told of changes that became durable, and how many rows each changed."""

_replace = msgspec.structs.replace


class RowStore:
    """What a store has of dag jobs, by number and index. Every change is durable as soon as it is made."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobRow] = {}
        self.tasks: dict[int, list[TaskRow]] = {}
        """By job; a task's place is its index."""
        self.attempts: list[AttemptRow] = []
        self.keys: dict[str, TaskKey] = {}
        """Idempotency keys of tasks that completed."""
        self.schedules: dict[str, ScheduleRow] = {}
        self.epoch = 0
        self.age_ms = 0
        self._ended_ages: dict[int, int] = {}
        """How old the store was when the end of a job was first seen."""
        self.life = StoreLife(1, 1)
        self.claims: dict[int, ClaimTask] = {}
        """All that were made, by fence."""
        self._by_id: dict[str, int] = {}
        self._highest = 0

    # -- verbs

    def acquire(self) -> int:
        """The epoch of a new life of the manager."""
        self.epoch += 1
        return self.epoch

    def copied(self) -> "RowStore":
        """As it is now."""
        copy = RowStore()
        copy.put_back(self)
        return copy

    def put_back(self, copy: "RowStore") -> None:
        """Have what this copy has, and nothing that came later."""
        self.jobs, self.tasks = dict(copy.jobs), {job: list(rows) for job, rows in copy.tasks.items()}
        self.attempts, self.keys, self.claims = list(copy.attempts), dict(copy.keys), dict(copy.claims)
        self.epoch, self.life = copy.epoch, copy.life
        self.schedules, self.age_ms = dict(copy.schedules), copy.age_ms
        self._ended_ages = dict(copy._ended_ages)
        self._by_id, self._highest = dict(copy._by_id), copy._highest

    def apply(self, changes: Iterable[Change]) -> list[int]:
        return [self._change(change) for change in changes]

    def sweep(self, grown_ms: int, kept_ms: int) -> list[int]:
        """Drop jobs whose end was seen so long ago; their numbers."""
        self.age_ms += grown_ms
        gone = []
        for number, row in list(self.jobs.items()):
            if is_final(row.state) and self._ended_ages.setdefault(number, self.age_ms) <= self.age_ms - kept_ms:
                self._change(DropJob(number))
                gone.append(number)
        return gone

    def drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._change(DropJob(number))

    def next_number(self) -> int:
        return self._highest + 1

    def job(self, id: str) -> JobRow | None:
        return self.jobs.get(self._by_id.get(id, -1))

    def job_by_key(self, key: str) -> JobRow | None:
        return next((row for row in self.jobs.values() if row.key == key != ""), None)

    def live_jobs(self) -> list[JobRow]:
        return [row for row in self.jobs.values() if not is_final(row.state)]

    def live_tasks(self, job: int) -> list[LiveTask]:
        return [_live(row) for row in self.tasks.get(job, ())]

    def specs(self, keys: Iterable[TaskKey]) -> dict[TaskKey, tuple[TaskSpec, bytes]]:
        rows = self._rows(keys)
        return {key: (decode_task(row.spec), row.checkpoint) for key, row in rows.items()}

    def outputs(self, keys: Iterable[TaskKey]) -> dict[TaskKey, bytes]:
        return {key: row.output for key, row in self._rows(keys).items() if row.state is TaskState.COMPLETED}

    def keyed(self, keys: Iterable[str]) -> dict[str, tuple[bytes, str]]:
        """Output and blob of tasks that completed, by their idempotency keys."""
        rows = {key: self.task(self.keys[key]) for key in keys if key in self.keys}
        return {
            key: (row.output, row.blob)
            for key, row in rows.items()
            if row is not None and row.state is TaskState.COMPLETED
        }

    def counts(self, job: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.tasks.get(job, ()):
            found[row.state.value] = found.get(row.state.value, 0) + 1
        return found

    def task(self, key: TaskKey) -> TaskRow | None:
        rows = self.tasks.get(key[0], [])
        return rows[key[1]] if 0 <= key[1] < len(rows) else None

    def _rows(self, keys: Iterable[TaskKey]) -> dict[TaskKey, TaskRow]:
        found = {key: self.task(key) for key in keys}
        return {key: row for key, row in found.items() if row is not None}

    # -- changes

    def _change(self, change: Change) -> int:
        match change:
            case PutJob(row=row):
                self.jobs[row.number] = row
                self._by_id[row.id] = row.number
                self._highest = max(self._highest, row.number)
                return 1
            case PutTasks(rows=rows):
                for one in rows:
                    kept = self.tasks.setdefault(one.job, [])
                    assert one.index == len(kept), "tasks come in the order of their index"
                    kept.append(one)
                return len(rows)
            case MoveJob():
                return self._move(change)
            case DropJob(job=job):
                self.keys = {key: task for key, task in self.keys.items() if task[0] != job}
                self.attempts = [row for row in self.attempts if row.job != job]
                self.tasks.pop(job, None)
                self._ended_ages.pop(job, None)
                gone = self.jobs.pop(job, None)
                if gone is not None:
                    del self._by_id[gone.id]
                return int(gone is not None)
            case ClaimTask() | Complete() | Release() | Extend() | Reset():
                return self._change_task(change)
            case PutAttempt(row=attempt):
                self.attempts.append(attempt)
                return 1
            case PutLogs(rows=lines):
                return len(lines)
            case PutSchedule(row=schedule):
                self.schedules[schedule.name] = schedule
                return 1
            case DropSchedule(name=name):
                return int(self.schedules.pop(name, None) is not None)
            case PutEvent():  # pragma: no branch - the last one there is
                return 1

    def _move(self, change: MoveJob) -> int:
        row = self.jobs.get(change.job)
        if row is None:
            return 0
        has_ended = is_final(change.state)
        self._ended_ages.pop(change.job, None)
        counts = row.counts if change.counts is None and has_ended else change.counts or {}
        started_ms = row.started_ms or (change.at_ms if change.state is JobState.RUNNING else 0)
        self.jobs[change.job] = _replace(
            row,
            state=change.state,
            started_ms=started_ms,
            ended_ms=change.at_ms if has_ended else 0,
            reason=change.reason,
            tasks=row.tasks if change.tasks is None else change.tasks,
            counts=counts,
        )
        return 1

    def _change_task(self, change: ClaimTask | Complete | Release | Extend | Reset) -> int:
        row = self.task((change.job, change.index))
        if row is None:
            return 0
        changed = _changed(row, change)
        if changed is not None and isinstance(change, ClaimTask):
            self.claims[change.fence] = change
        if changed is not None:
            row = self.tasks[change.job][change.index] = changed
        if isinstance(change, Complete) and change.key and row.state is TaskState.COMPLETED:
            if change.fence in (row.fence, 0):
                self.keys[change.key] = (change.job, change.index)
        return int(changed is not None)


def _changed(row: TaskRow, change: ClaimTask | Complete | Release | Extend | Reset) -> TaskRow | None:
    """The row as it is then; None when the change is refused."""
    if isinstance(change, Reset):
        return TaskRow(
            job=row.job,
            index=row.index,
            id=row.id,
            state=TaskState.PENDING,
            spec=change.spec or row.spec,
            depends_on=row.depends_on,
        )
    if is_final(row.state):
        return None
    match change:
        case ClaimTask():
            if row.fence > change.fence:
                return None
            return _replace(
                row,
                state=TaskState.ASSIGNED,
                attempts=change.attempt,
                fence=change.fence,
                worker=change.worker,
                started_ms=change.at_ms,
            )
        case Extend():
            return _replace(row, checkpoint=change.checkpoint) if row.fence == change.fence else None
        case Release():
            if change.fence not in (row.fence, 0):
                return None
            return _replace(
                row,
                state=TaskState.PENDING,
                ready_ms=change.ready_ms,
                attempts=change.attempts,
                deaths=change.deaths,
                failures=change.failures,
                cause=change.cause,
                error=change.error,
            )
        case Complete():  # pragma: no branch - the type checker sees that no other is left
            if change.fence not in (row.fence, 0):
                return None
            return _replace(
                row,
                state=change.state,
                ended_ms=change.at_ms,
                output=change.output,
                blob=change.blob,
                error=change.error,
                cause=change.cause,
                started_ms=change.started_ms or row.started_ms,
                worker=change.worker or row.worker,
                attempts=change.attempts or row.attempts,
            )


def _live(row: TaskRow) -> LiveTask:
    spec = decode_task(row.spec)
    return LiveTask(
        row.index,
        TASK_STATES.index(row.state),
        row.id,
        packed(row.depends_on),
        row.attempts,
        row.fence,
        row.worker,
        row.ready_ms,
        row.deaths,
        spec.handler,
        spec.priority,
        row.failures,
    )


class StoreDisk(Disk):
    """The disk of a manager's host, with the store on it: slow and struck together, written apart."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Disk(fsync_mean_ns=FSYNC_MEAN_NS)
        self.on_stored: Callable[[], None] = lambda: None

    def attach(self, world: World, name: str, on_durable: Callable[[int, Puts], None]) -> None:
        super().attach(world, name, on_durable)
        self.store.attach(world, f"{name} store", lambda ticket, puts: self.on_stored())

    def slow_down(self, factor: int, duration_ns: int) -> None:
        super().slow_down(factor, duration_ns)
        self.store.slow_down(factor, duration_ns)

    def crash(self) -> None:
        super().crash()
        self.store.crash()


class StoreListener:
    """Told when the store is copied, and when what is there is replaced: by the copy, or by nothing at all."""

    def backed_up(self) -> None: ...
    def put_back(self) -> None: ...


class StoreShell(Observer):
    """What a manager's shell does for its dag jobs: reads them when it starts, commits in groups, fetches.

    Commits that come while one is written wait and become one write. Reading does not wait for writing.
    """

    def __init__(self, world: World, host: Host, wall_ns: int, safeguards: Safeguards = ALL) -> None:
        """`wall_ns`: what the wall clock shows when the world begins."""
        assert isinstance(host.disk, StoreDisk)
        self.rows = RowStore()
        self.applied: list[Applied] = []
        self.listeners: list[StoreListener] = []
        self.epochs_raised = 0
        self.dropped = 0
        """Attempts and results of another store or life that workers told to have dropped."""
        self.commits = 0
        self.writes = 0
        self.lost = 0
        """Commits that a crash took."""
        self.refused = 0
        """Writes of a manager whose store was taken meanwhile."""
        self.wall_shift_ns = 0
        """By which the manager's clock of the day is wrong."""
        self._epoch = 0
        self._world = world
        self._host = host
        self._disk = host.disk
        self._disk.on_stored = self._on_stored
        self._wall_ns = wall_ns
        self._safeguards = safeguards
        self._rng: Random = world.rng("store", host.name)
        self._waiting: deque[Commit] = deque()
        self._writing: list[Commit] = []
        self._tickets = 0
        self._commits: CallLine | None = None
        self._reads: CallLine | None = None
        self._copy: RowStore | None = None
        self._drawn = 1
        """Stores, lives and openings so far: each has a number of its own."""
        self._life_at = 0
        """Since when the store is in its present life."""
        self._was_replaced = False

    @property
    def is_writing(self) -> bool:
        return bool(self._writing)

    def wall_ns(self) -> int:
        """What the clock of the day shows on the manager's host."""
        return self._wall_ns + self._world.now + self.wall_shift_ns

    # -- copies

    def back_up(self) -> None:
        """Copy it as it is, while it is in use."""
        self._copy = self.rows.copied()
        for listener in self.listeners:
            listener.backed_up()

    def replace(self, how: Literal["backup", "rollback", "new"]) -> None:
        """While the manager is down: by the copy, which begins a life of its own; by the copy together with everything
        that would have told that it is one; or by a new store."""
        assert self._host.state == "down"
        copy = RowStore() if how == "new" or self._copy is None else self._copy
        self.rows.put_back(copy)
        self._was_replaced = True
        if how != "rollback" or self._copy is None:
            self._drawn += 1
            store = self._drawn if copy is not self._copy else self.rows.life.store
            self.rows.life = StoreLife(store, self._drawn)
            self.rows.claims = {}
            self._life_at = self._world.now
        for listener in self.listeners:
            listener.put_back()

    def is_lost(self, run: SimulatedRun, key: TaskKey) -> bool:
        """Whether nobody who has this store has given out what runs there: it came from one that was replaced. `key` is
        that of its task."""
        if not self._was_replaced:
            return False
        claim = self.rows.claims.get(run.fence)
        if claim is None or run.began_at < self._life_at or self.rows.job(run.job) is None:
            return True
        return (claim.job, claim.index) != key or worker_of(claim.worker)[0] != run.host.name

    # -- the life of the manager

    def on_boot(self, world: World, host: Host) -> None:
        if host is not self._host:
            return
        self._tickets = 0
        self._commits, self._reads = CallLine(world, host), CallLine(world, host)
        epoch = self._epoch = self.rows.acquire()
        self._drawn += 1
        span = SLOW_LOAD_NS if self._rng.randrange(6) == 0 else LOAD_NS
        world.after(self._rng.randrange(*span), partial(self._load, self._reads, epoch))

    def on_crash(self, world: World, host: Host) -> None:
        if host is self._host:
            self.lost += len(self._waiting) + len(self._writing)
            self._waiting.clear()
            self._writing = []

    def _load(self, line: CallLine, epoch: int) -> None:
        line.put(partial(self._go_on, epoch))

    def _go_on(self, epoch: int, now: int) -> list[object]:
        member = self._host.node
        assert isinstance(member, ClusterMember) and isinstance(member.jobs, Manager)
        rows, manager = self.rows, member.jobs
        durable = DagKeeper(
            epoch=epoch,
            next_number=rows.next_number(),
            rng=self._world.rng("durable", f"{self._host.name}:{epoch}"),
            wall_offset_ns=self.wall_ns() - now,
            safeguards=self._safeguards,
            life=_replace(rows.life, opening=self._drawn),
        )
        for row in rows.live_jobs():
            durable.restore_job(now, row)
            durable.restore_tasks(now, row.number, rows.live_tasks(row.number))
        effects = manager.act(now, durable.restored(now))
        return member.act(now, effects + manager.set_durable(now, durable))

    # -- writing

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if host is not self._host:
            return
        if type(effect) is Commit:
            self.commits += 1
            self._waiting.append(effect)
            if not self._writing:
                self._write()
        elif type(effect) is ReadOutputs:
            assert self._reads is not None
            # A reader has its turn when it has it: what is committed meanwhile is seen.
            world.after(self._rng.randrange(*READ_NS), partial(self._fetch, self._reads, effect))
        elif type(effect) is RaiseEpoch:
            assert self._reads is not None
            world.after(self._rng.randrange(*READ_NS), partial(self._raise, self._reads, effect.epoch))
        elif type(effect) is WorkerDropped:
            self.dropped += effect.dropped.attempts + effect.dropped.results

    def _write(self) -> None:
        self._writing = list(self._waiting)
        self._waiting.clear()
        self._tickets += 1
        self.writes += 1
        self._disk.store.write(self._tickets, ())

    def _on_stored(self) -> None:
        """The write under way has ended, or a crash let it through."""
        batch, self._writing = self._writing, []
        if self._safeguards.store_fence and self.rows.epoch != self._epoch:
            self._lose_store()
            return
        self.apply([change for commit in batch for change in commit.changes])
        if self._host.state == "down":
            return
        if self._waiting:
            self._write()
        assert self._commits is not None
        for commit in batch:
            self._commits.put(partial(self._committed, commit.ticket))

    def apply(self, changes: Sequence[Change]) -> None:
        changed = self.rows.apply(changes)
        for listener in self.applied:
            listener(changes, changed)

    def _lose_store(self) -> None:
        """Another had it meanwhile: the manager ends, and starts again from what is there."""
        self.refused += 1
        if self._host.state != "down":
            self._host.crash()
            self._world.after(self._rng.randrange(*LOAD_NS), self._bring_back)

    def _bring_back(self) -> None:
        self._host.start()

    def _committed(self, ticket: int, now: int) -> list[object]:
        durable = durable_on(self._host)
        assert durable is not None
        return act_on(self._host, now, durable.on_committed(now, ticket))

    def _raise(self, line: CallLine, epoch: int) -> None:
        line.put(partial(self._raised, epoch))

    def _raised(self, epoch: int, now: int) -> list[object]:
        durable = durable_on(self._host)
        assert durable is not None
        if self._safeguards.store_fence and self.rows.epoch != self._epoch:
            return []  # another has it, and the next write tells
        self.epochs_raised += 1
        self.rows.epoch = self._epoch = max(self.rows.epoch + 1, epoch)
        return act_on(self._host, now, durable.on_epoch(now, self.rows.epoch))

    # -- reading

    def _fetch(self, line: CallLine, fetch: ReadOutputs) -> None:
        specs, outputs = self.rows.specs(fetch.specs), self.rows.outputs(fetch.outputs)
        line.put(partial(self._fetched, fetch.ticket, specs, outputs))

    def _fetched(
        self,
        ticket: int,
        specs: Mapping[TaskKey, tuple[TaskSpec, bytes]],
        outputs: Mapping[TaskKey, bytes],
        now: int,
    ) -> list[object]:
        durable = durable_on(self._host)
        assert durable is not None
        return act_on(self._host, now, durable.on_fetched(now, ticket, specs, outputs))


def durable_on(host: Host) -> DagKeeper | None:
    """The keeper of dag jobs on this host, once it has read them."""
    node = host.node
    return node.jobs.durable if isinstance(node, ClusterMember) and isinstance(node.jobs, Manager) else None


def act_on(host: Host, now: int, effects: list[object]) -> list[object]:
    """Carry out what the keeper on this host answered."""
    node = host.node
    assert isinstance(node, ClusterMember) and isinstance(node.jobs, Manager)
    return node.act(now, node.jobs.act(now, effects))
