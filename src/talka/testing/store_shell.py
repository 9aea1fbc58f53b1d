"""The store of a simulated manager: that of a real one, in memory, changed when a simulated write ends. A crash loses
what had not.

Decisions: docs/decisions/0021-dag-jobs-live-in-one-store.md,
docs/decisions/0031-whose-attempt-it-is.md,
docs/decisions/0034-no-clock-decides-who-has-the-store.md, docs/decisions/0040-partitions-of-jobs.md.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, Literal, TypeAlias

from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keepers import DagKeepers
from talka.control.dags.turns import DagTurns
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.tasks.delivery import worker_of
from talka.control.tasks.paced_frames import RoomWanted
from talka.control.tasks.partition import Partition
from talka.control.tasks.store_effects import Commit, DagEffect, RaiseEpoch, ReadOutputs, WorkerDropped
from talka.store.dags.memory import Remembered, StoreMemory
from talka.store.dags.records import Lease, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_life import open_life
from talka.testing.disk import Disk, Puts
from talka.testing.handler_cores import SimulatedRun
from talka.testing.host import Effects, Host
from talka.testing.line import CallLine
from talka.testing.trust import SIGNER
from talka.testing.world import Observer, World
from talka.units import MILLISECOND
from talka.wire.attempts import NOWHERE, StoreLife
from talka.work.dags.dag import TaskSpec
from talka.work.dags.elements import fans_of, whole_specs
from talka.work.dags.records import Change, ClaimTask, JobRow, LiveTask, TaskKey, TaskRow

FSYNC_MEAN_NS: Final = 4 * MILLISECOND
READ_NS: Final = (MILLISECOND // 10, 30 * MILLISECOND)
LOAD_NS: Final = (20 * MILLISECOND, 400 * MILLISECOND)
SLOW_LOAD_NS: Final = (2_000 * MILLISECOND, 9_000 * MILLISECOND)
"""Of one start in six: there were many tasks to read."""
OWNER: Final = "manager"
ALL_ROWS: Final = 1 << 40
"""More than a simulated store ever has."""

Applied: TypeAlias = Callable[[Sequence[Change], list[int]], None]
"""Told of changes that became durable, and how many rows each changed."""


# What is asked of the store besides its verbs.


def jobs_in(records: SqliteRecords) -> list[JobRow]:
    """All of them, newest first."""
    return records.jobs((), ALL_ROWS, ALL_ROWS)


def job_numbered(records: SqliteRecords, number: int) -> JobRow | None:
    return next((row for row in records.jobs((), number + 1, 1) if row.number == number), None)


def task_at(records: SqliteRecords, key: TaskKey) -> TaskRow | None:
    number, index = key
    return next((row for row in records.tasks(number, (), index - 1, 1) if row.index == index), None)


def keyed_in(records: SqliteRecords, keys: Sequence[str]) -> dict[str, tuple[bytes, str]]:
    """Output and blob of tasks that completed, by their idempotency keys."""
    return {key: (row.output, row.blob) for key, row in records.keyed(keys).items()}


def all_tasks(records: SqliteRecords, job: int) -> list[LiveTask]:
    return records.live_tasks(job, -1, ALL_ROWS)


class FolderMemory(StoreMemory):
    """What a manager's folder remembers of stores, on a simulated disk."""

    def __init__(self) -> None:
        self._stores: dict[int, Remembered] = {}
        self.is_damaged = False

    def remember(self, store: int, life: int, epoch: int) -> None:
        self._stores[store] = Remembered(life, epoch)

    def copied(self) -> "FolderMemory":
        copy = FolderMemory()
        copy._stores = dict(self._stores)
        return copy


class StoreDisk(Disk):
    """The disk of a manager's host, with the store on it: slow and struck together, written apart."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Disk(fsync_mean_ns=FSYNC_MEAN_NS)
        self.on_stored: Callable[[], None] = lambda: None

    def attach(self, world: World, name: str, on_durable: Callable[[int, Puts], None]) -> None:
        super().attach(world, name, on_durable)
        self.store.attach(world, f"{name} store", lambda ticket, puts: self.on_stored())

    @property
    def slowed_writes(self) -> int:
        return super().slowed_writes + self.store.slowed_writes

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

    def __init__(self, world: World, host: Host, wall_ns: int, partitions: int = 1) -> None:
        """`wall_ns`: what the wall clock shows when the world begins. The manager has all `partitions` of the store."""
        assert isinstance(host.disk, StoreDisk)
        self.records = SqliteRecords(":memory:")
        self.partitions = Partition.all(partitions)
        self.lives = [NOWHERE] * partitions
        """By partition, of the store, while a manager has it."""
        self.claims: dict[int, ClaimTask] = {}
        """All that were made in this life of the store, by fence."""
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
        self.misread = 0
        """How often that clock was looked at while it was wrong."""
        self._leases = [Lease(partition.lease_key, OWNER, 0, 0) for partition in self.partitions]
        """By partition."""
        self._memory = FolderMemory()
        self._world = world
        self._host = host
        self._disk = host.disk
        self._disk.on_stored = self._on_stored
        self._wall_ns = wall_ns
        self._rng: Random = world.rng("store", host.name)
        self._room_rng = world.rng("room", host.name)
        self._waiting: deque[Commit] = deque()
        self._writing: list[Commit] = []
        self._tickets = 0
        self._commits: CallLine | None = None
        self._reads: CallLine | None = None
        self._copy: SqliteRecords | None = None
        self._memory_then = FolderMemory()
        self._claims_then: dict[int, ClaimTask] = {}
        """When the store was copied."""
        self._drawn = 0
        """Stores, lives and openings so far: each has a number of its own."""
        self._life_at = 0
        """Since when the store is in its present life."""
        self._was_replaced = False

    @property
    def is_writing(self) -> bool:
        return bool(self._writing)

    def wall_ns(self) -> int:
        """What the clock of the day shows on the manager's host."""
        self.misread += bool(self.wall_shift_ns)
        return self._wall_ns + self._world.now + self.wall_shift_ns

    # -- copies

    def back_up(self) -> None:
        """Copy it as it is, while it is in use."""
        self._copy = SqliteRecords(":memory:")
        self.records.file.copy_into(self._copy.file, is_marked=False)
        self._memory_then, self._claims_then = self._memory.copied(), dict(self.claims)
        for listener in self.listeners:
            listener.backed_up()

    def replace(self, how: Literal["backup", "rollback", "new"]) -> None:
        """While the manager is down: by the copy, which begins a life of its own; by the copy together with everything
        that would have told that it is one; or by a new store."""
        assert self._host.state == "down"
        copy = None if how == "new" else self._copy
        is_rollback = how == "rollback" and copy is not None
        (copy or SqliteRecords(":memory:")).file.copy_into(self.records.file, is_marked=how == "backup")
        self._was_replaced = True
        self.claims = dict(self._claims_then) if is_rollback else {}
        if is_rollback:
            self._memory = self._memory_then.copied()
        else:
            self._life_at = self._world.now
        for listener in self.listeners:
            listener.put_back()

    def is_lost(self, run: SimulatedRun, key: TaskKey) -> bool:
        """Whether nobody who has this store has given out what runs there: it came from one that was replaced. `key` is
        that of its task."""
        if not self._was_replaced:
            return False
        claim = self.claims.get(run.fence)
        if claim is None or run.began_at < self._life_at or self.records.job(run.job) is None:
            return True
        return (claim.job, claim.index) != key or worker_of(claim.worker)[0] != run.host.name

    # -- the life of the manager

    def on_boot(self, world: World, host: Host) -> None:
        if host is not self._host:
            return
        self._tickets = 0
        self._commits, self._reads = CallLine(world, host), CallLine(world, host)
        self._open()
        span = SLOW_LOAD_NS if self._rng.randrange(6) == 0 else LOAD_NS
        world.after(self._rng.randrange(*span), partial(self._load, self._reads))

    def on_crash(self, world: World, host: Host) -> None:
        if host is self._host:
            self.lost += len(self._waiting) + len(self._writing)
            self._waiting.clear()
            self._writing = []

    def _open(self) -> None:
        """As a manager does that finds its own lease of an earlier life, or none."""
        records, memory = self.records, self._memory
        first = self.partitions[0].lease_key
        records.release(OWNER, [(lease.key, lease.epoch) for lease in records.leases(first)])
        keys = [partition.lease_key for partition in self.partitions]
        held = {lease.key: lease for lease in records.acquire(keys, OWNER)}
        self._leases = [held[key] for key in keys]
        for lease in self._leases:
            records.fence(lease)
        opened = open_life(records, self._leases[0].epoch, memory, self._draw)
        memory.remember(opened.store, opened.life, self._leases[0].epoch)
        opening = self._draw()
        self.lives = [partition.life(opened.store, opened.life, opening) for partition in self.partitions]

    def _draw(self) -> int:
        self._drawn += 1
        return self._drawn

    def _load(self, line: CallLine) -> None:
        line.put(self._go_on)

    def _go_on(self, now: int) -> Effects:
        member = self._host.node
        assert isinstance(member, ClusterMember) and isinstance(member.jobs, Manager)
        rng = self._world.rng("durable", f"{self._host.name}:{self._leases[0].epoch}")
        turns = DagTurns(rng)
        keepers = [
            self.restored(now, epoch=lease.epoch, rng=rng, wall_offset_ns=self.wall_ns() - now, life=life, turns=turns)
            for lease, life in zip(self._leases, self.lives, strict=True)
        ]
        effects: Effects = []
        for keeper in keepers:
            effects += member.act(now, member.jobs.act(now, [*keeper.restored(now)]))
            effects += member.act(now, member.jobs.set_keeper(now, keeper))
        return effects

    def restored(
        self,
        now: int,
        *,
        epoch: int,
        rng: Random,
        wall_offset_ns: int,
        life: StoreLife,
        turns: DagTurns | None = None,
    ) -> DagKeeper:
        """A keeper that has read what the store has of its partition, and goes on once it is told so."""
        records = self.records
        keeper = DagKeeper(
            epoch=epoch,
            next_number=records.next_number(),
            rng=rng,
            wall_offset_ns=wall_offset_ns,
            life=life,
            turns=turns,
            sign=SIGNER.sign,
        )
        for row in records.live_jobs():
            if keeper.partition.holds(row.id):
                keeper.restore_job(now, row)
                streams = records.stream_sizes(row.number, 0, ALL_ROWS)
                keeper.restore_tasks(now, row.number, all_tasks(records, row.number), streams)
                keeper.restore_fans(row.number, records.fans(row.number))
                keeper.restore_times(row.number, records.times(row.number, 0, ALL_ROWS))
        return keeper

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
            world.after(self._rng.randrange(*READ_NS), partial(self._raise, self._reads, effect))
        elif type(effect) is RoomWanted:
            assert self._reads is not None
            told = partial(self._has_room, effect.worker)
            world.after(self._room_rng.randrange(*READ_NS), partial(self._reads.put, told))
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
        try:
            for lease, partition in zip(self._leases, self.partitions, strict=True):
                own = [commit for commit in batch if commit.partition == partition.number]
                keys = (lease.key,) if len(self.partitions) > 1 else ()
                self.apply([change for commit in own for change in commit.changes], keys)
        except StoreTaken:
            self._lose_store()
            return
        if self._host.state == "down":
            return
        if self._waiting:
            self._write()
        assert self._commits is not None
        for commit in batch:
            self._commits.put(partial(self._committed, commit))

    def apply(self, changes: Sequence[Change], keys: Sequence[str] = ()) -> None:
        """`keys`: of the leases under which they are made; none: all that are held."""
        changed = self.records.apply(changes, keys)
        for change, count in zip(changes, changed, strict=True):
            if count and isinstance(change, ClaimTask):
                self.claims[change.fence] = change
        for listener in self.applied:
            listener(changes, changed)

    @contextlib.contextmanager
    def fenced(self, lease: Lease) -> Iterator[None]:
        """Changes are made under this lease, of somebody else than the manager."""
        self.records.fence(lease)
        yield
        for own in self._leases:
            if own.key == lease.key:
                self.records.fence(own)

    def _lose_store(self) -> None:
        """Another had it meanwhile: the manager ends, and starts again from what is there."""
        self.refused += 1
        if self._host.state != "down":
            self._host.crash()
            self._world.after(self._rng.randrange(*LOAD_NS), self._bring_back)

    def _bring_back(self) -> None:
        self._host.start()

    def _keeper(self, partition: int) -> DagKeeper:
        keepers = keepers_on(self._host)
        keeper = None if keepers is None else keepers.get(partition)
        assert keeper is not None
        return keeper

    def _has_room(self, worker: str, now: int) -> Effects:
        node = self._host.node
        assert isinstance(node, ClusterMember) and isinstance(node.jobs, Manager)
        return node.act(now, node.jobs.on_room(now, worker))

    def _committed(self, commit: Commit, now: int) -> Effects:
        return act_on(self._host, now, self._keeper(commit.partition).on_committed(now, commit.ticket))

    def _raise(self, line: CallLine, wanted: RaiseEpoch) -> None:
        line.put(partial(self._raised, wanted))

    def _raised(self, wanted: RaiseEpoch, now: int) -> Effects:
        number = wanted.partition
        lease, life = self._leases[number], self.lives[number]
        raised = self.records.raise_epoch(OWNER, (lease.key, lease.epoch), wanted.epoch)
        if not raised:
            return []  # another has it, and the next write tells
        self.epochs_raised += 1
        self._leases[number] = lease._replace(epoch=raised)
        if number == 0:
            self._memory.remember(life.store, life.life, raised)
        return act_on(self._host, now, self._keeper(number).on_epoch(now, raised))

    # -- reading

    def _fetch(self, line: CallLine, fetch: ReadOutputs) -> None:
        found = self.records.specs(fetch.specs)
        specs = whole_specs(found, self.records.specs(fans_of(found)))
        outputs = {key: output for key, (output, _) in self.records.outputs(fetch.outputs).items()}
        line.put(partial(self._fetched, fetch, specs, outputs))

    def _fetched(
        self,
        fetch: ReadOutputs,
        specs: Mapping[TaskKey, tuple[TaskSpec, bytes]],
        outputs: Mapping[TaskKey, bytes],
        now: int,
    ) -> Effects:
        return act_on(self._host, now, self._keeper(fetch.partition).on_fetched(now, fetch.ticket, specs, outputs))


def keepers_on(host: Host) -> DagKeepers | None:
    """The keepers of dag jobs on this host, once they have read them."""
    node = host.node
    found = node.jobs.dags if isinstance(node, ClusterMember) and isinstance(node.jobs, Manager) else None
    return found or None


def act_on(host: Host, now: int, effects: list[DagEffect]) -> Effects:
    """Carry out what the keeper on this host answered."""
    node = host.node
    assert isinstance(node, ClusterMember) and isinstance(node.jobs, Manager)
    return node.act(now, node.jobs.act(now, [*effects]))
