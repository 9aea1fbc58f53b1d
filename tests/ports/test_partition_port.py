"""The port `Partition`: two partitions of one store in one process, and a worker that serves both."""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.clock import boottime_ns
from talka.cluster.effects import Persist
from talka.cluster.placement import partition_of, shard_of
from talka.control.dags.keeper import DagKeeper
from talka.control.dags.keepers import DagKeepers
from talka.control.dags.turns import DagTurns
from talka.control.tasks.partition import Partition
from talka.control.tasks.store_effects import (
    CallAnswered,
    Commit,
    DagEffect,
    DagEnded,
    RaiseEpoch,
    ReadOutputs,
    WorkerDropped,
)
from talka.control.tasks.worker_link import ToKeeper, ToWorker, WorkerBeat
from talka.control.worker.effects import (
    AttemptsDropped,
    EndHandlers,
    ExitFacts,
    HandlerEffect,
    HandlersLoaded,
    StartHandlers,
    TellHandlers,
)
from talka.control.worker.handlers_outbox import AGAIN_NS, HANDLER_LIMITS, HandlerLimits
from talka.control.worker.handlers_pool import HELD_BACK_LEAST, HandlerPool
from talka.control.worker.obeyed_epoch import BrokenEpoch, ObeyedEpoch, obeyed_partitions
from talka.control.worker.writes import WorkerWrites
from talka.errors import Invalid, Unavailable
from talka.ids import new_job_id
from talka.store.dags.records import Lease, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.units import SECOND
from talka.wire.attempts import NOBODY, NOWHERE, PARTITIONS_LIMIT, Dropped, ObeyedLife, StoreLife
from talka.wire.jobs import WorkerFacts
from talka.wire.tasks import (
    AskHeld,
    AssignTasks,
    Done,
    HandedTask,
    HandlerProgress,
    Held,
    KeeperMessage,
    Load,
    Loaded,
    Ran,
    Recall,
    ResultsStored,
    RunTasks,
    Said,
    StopTasks,
    TaskInputs,
    TaskLine,
    TaskProgress,
    TaskResult,
)
from talka.work.dags.dag import Bounds, DagHead, DagSpec, Limit, TaskSpec, decode_task
from talka.work.dags.records import EPOCH_SHIFT, ClaimTask, PutSchedule
from talka.work.lifecycle import JobState
from tests.nodes.dags.test_dag_service import Node
from tests.ports.files_that_run import files_that_run

BOOT = 3
STORE, LIFE = 0x5706E, 0x11FE
TWO = Partition.all(2)
quick = settings(deadline=None, derandomize=True, max_examples=200)


def spec(name: str, tasks: int = 2, **more: Any) -> DagSpec:
    """A chain, or tasks side by side that have something of their own."""
    if more:
        alike = tuple(TaskSpec(id=f"{name}{i}", handler="h", **more) for i in range(tasks))
        return DagSpec(name=name, tasks=alike, wait_for_workers=True)
    return DagSpec(
        name=name,
        wait_for_workers=True,
        tasks=tuple(
            TaskSpec(id=f"{name}{i}", handler="h", depends_on=(f"{name}{i - 1}",) if i else ()) for i in range(tasks)
        ),
    )


class Process:
    """A manager's part: the keepers of its partitions, and the leases under which they write to the store."""

    def __init__(self, name: str, records: SqliteRecords, opening: int) -> None:
        self.name = name
        self.turns = DagTurns(Random(opening))
        self.keepers = DagKeepers()
        self.leases: dict[int, Lease] = {}
        self.lost: list[int] = []
        """Partitions whose lease was found to be another's."""
        self._records = records
        self._opening = opening

    def take(self, now: int, partition: Partition) -> list[DagEffect]:
        """Have its lease, read its jobs, and go on with them."""
        records, key = self._records, partition.lease_key
        held = [lease for lease in records.leases(key) if lease.key == key]
        (lease,) = records.take(self.name, held) if held else records.acquire([key], self.name)
        self.leases[partition.number] = lease
        keeper = DagKeeper(
            epoch=lease.epoch,
            next_number=records.next_number(),
            rng=Random(f"{self.name} {partition.number} {lease.epoch}"),
            wall_offset_ns=0,
            life=partition.life(STORE, LIFE, self._opening),
            turns=self.turns,
        )
        for row in records.live_jobs():
            if partition.holds(row.id):
                keeper.restore_job(now, row)
                keeper.restore_tasks(now, row.number, records.live_tasks(row.number, -1, 10_000), ())
        self.keepers.set(keeper)
        return keeper.restored(now)

    def keeper(self, partition: int) -> DagKeeper:
        keeper = self.keepers.get(partition)
        assert keeper is not None
        return keeper


class Cluster:
    """One store with two partitions, managers that have them, and a worker. Everything is done at once."""

    def __init__(
        self, *, cores: int = 2, disk: dict[str, bytes] | None = None, managers: tuple[str, ...] = ("m1",)
    ) -> None:
        self.now = 100 * SECOND
        self.records = SqliteRecords(":memory:")
        self.managers = {name: Process(name, self.records, 7 + index) for index, name in enumerate(managers)}
        self.disk = dict(disk or {})
        self.pool = HandlerPool("w", cores, self.disk, boot=BOOT, files=("h.py",), writes=WorkerWrites())
        self.pool.lease_granted(1)
        self.silent: set[int] = set()
        """Partitions whose keepers hear nothing of the worker."""
        self.is_held = False
        """Cores take tasks, and run none."""
        self.held: list[tuple[int, HandedTask]] = []
        self.ran: list[str] = []
        self.told: list[KeeperMessage] = []
        self.raises: list[RaiseEpoch] = []
        self.answers: list[CallAnswered] = []
        self.ended: list[DagEnded] = []
        self.cores, self._calls, self._beats = cores, 0, 0
        self.do("w", self.pool.start(self.now))

    def start(self, *partitions: Partition, manager: str = "m1") -> "Cluster":
        for partition in partitions or TWO:
            self.do(manager, self.managers[manager].take(self.now, partition))
        self.beat()
        return self

    def do(self, who: str, effects: "list[DagEffect] | list[HandlerEffect]") -> None:
        queue: deque[tuple[str, DagEffect | HandlerEffect]] = deque([(who, effect) for effect in effects])
        while queue:
            who, effect = queue.popleft()
            queue += [(whose, one) for whose, ones in self._done(who, effect) for one in ones]

    def _done(self, who: str, effect: "DagEffect | HandlerEffect") -> Iterator[tuple[str, list[Any]]]:
        match effect:
            case ToWorker(message=message):
                self.told.append(message)
                yield "w", self.pool.on_message(self.now, who, message)
            case ToKeeper(keeper=keeper, message=message):
                if message.of.partition not in self.silent:
                    yield keeper, self.managers[keeper].keepers.on_message(self.now, "w", message)
            case Commit(ticket=ticket, changes=changes, partition=partition):
                manager = self.managers[who]
                lease = manager.leases[partition]
                self.records.fence(lease)
                try:
                    self.records.apply(changes, (lease.key,))
                except StoreTaken:
                    manager.lost.append(partition)
                    manager.keepers.drop(self.now, partition)
                    return
                yield who, manager.keeper(partition).on_committed(self.now, ticket)
            case ReadOutputs(ticket=ticket, specs=specs, outputs=outputs, partition=partition):
                found = {key: (decode_task(one), point) for key, (one, point) in self.records.specs(specs).items()}
                read = {key: output for key, (output, _) in self.records.outputs(outputs).items()}
                yield who, self.managers[who].keeper(partition).on_fetched(self.now, ticket, found, read)
            case RaiseEpoch(epoch=epoch, partition=partition):
                self.raises.append(effect)
                manager = self.managers[who]
                lease = manager.leases[partition]
                raised = self.records.raise_epoch(who, (lease.key, lease.epoch), epoch)
                manager.leases[partition] = lease._replace(epoch=raised)
                yield who, manager.keeper(partition).on_epoch(self.now, raised)
            case Persist(ticket=ticket, puts=puts):
                self.disk.update({key: content for key, content in puts if content is not None})
                yield "w", self.pool.on_persisted(self.now, ticket)
            case TellHandlers(core=core, message=Load()):
                yield "w", self.pool.on_handlers_said(self.now, core, Loaded(1, ("h",), plain=("h",)))
            case TellHandlers(core=core, message=RunTasks(tasks=tasks)):
                self.held += [(core, task) for task in tasks]
                if not self.is_held:
                    yield "w", self.run_held()
            case EndHandlers(core=core):
                self.held = [held for held in self.held if held[0] != core]
                yield "w", self.pool.on_handlers_exit(self.now, core, ExitFacts("exit"))
            case CallAnswered():
                self.answers.append(effect)
            case DagEnded():
                self.ended.append(effect)
            case TellHandlers(message=StopTasks()) | StartHandlers() | HandlersLoaded():
                pass
            case WorkerDropped() | AttemptsDropped():
                pass
            case _:
                raise AssertionError(effect)

    def run_held(self) -> list[HandlerEffect]:
        effects: list[HandlerEffect] = []
        held, self.held = self.held, []
        for core, task in held:
            self.ran.append(task.id)
            result = TaskResult(task.fence, "completed", b"1", job=task.job, task=task.id)
            effects += self.pool.on_handlers_said(self.now, core, Ran((result,)))
        return effects

    def let_run(self) -> None:
        self.is_held = False
        self.do("w", self.run_held())

    def beat(self) -> None:
        self._beats += 1
        facts = WorkerFacts(self.cores, folder=5, handlers=self.pool.room.handlers, plain=self.pool.room.plain)
        obeyed, others = self.pool.obeyed(), self.pool.obeyed_besides()
        beat = WorkerBeat(
            "w", BOOT, self._beats, facts, self.cores, "healthy", obeyed.epoch, obeyed.life, others=others
        )
        for name, manager in self.managers.items():
            self.do(name, manager.keepers.on_beat(self.now, beat))

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += SECOND
            self.do("w", self.pool.tick(self.now))
            for name, manager in self.managers.items():
                self.do(name, manager.keepers.tick(self.now))
            self.beat()

    def submit(self, partition: int, dag: DagSpec, manager: str = "m1") -> str:
        """The id of the job."""
        self._calls += 1
        keeper = self.managers[manager].keeper(partition)
        self.do(manager, keeper.submit(self.now, self._calls, dag))
        return self.answers[-1].job

    def states(self) -> dict[str, JobState]:
        return {row.name: row.state for row in self.records.jobs((), 1 << 40, 1000)}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster().start()


# Jobs of two partitions.


def test_jobs_of_both_partitions_complete_on_one_worker(cluster: Cluster) -> None:
    for index in range(6):
        cluster.submit(index % 2, spec(f"j{index}"))

    assert set(cluster.states().values()) == {JobState.COMPLETED}
    assert len(cluster.ran) == 12 and len(set(cluster.ran)) == 12, "each task once"
    assert cluster.pool.is_idle


def test_a_second_partition_takes_no_file_but_the_number() -> None:
    with files_that_run() as files:
        cluster = Cluster().start()
        cluster.submit(0, spec("a"))
        cluster.submit(1, spec("b"))
    assert set(cluster.states().values()) == {JobState.COMPLETED}
    assert files.of_tests == ["test_partition_port.py"], "no second keeper, store or worker was made"


def test_jobs_land_by_the_shard_of_their_id(cluster: Cluster) -> None:
    for index in range(20):
        id = cluster.submit(index % 2, spec(f"j{index}"))
        assert shard_of(id) % 2 == index % 2

    numbers = [row.number for row in cluster.records.jobs((), 1 << 40, 100)]
    assert sorted(numbers) == list(range(1, 21)), "one sequence for both, though neither asks the other"


def test_a_message_reaches_the_keeper_of_its_partition_alone(cluster: Cluster) -> None:
    keepers = cluster.managers["m1"].keepers
    life = TWO[1].life(STORE, LIFE, 1)

    keepers.on_message(cluster.now, "w", Done((TaskResult(99, "completed"),), life))
    keepers.on_message(cluster.now, "w", Done((), Partition(2, 3).life(STORE, LIFE, 1)))

    assert [keeper.stale_results for keeper in keepers] == [0, 1]
    assert keepers.strayed == 1, "nobody here keeps that one"


def test_a_job_and_a_key_have_one_keeper(cluster: Cluster) -> None:
    keepers = cluster.managers["m1"].keepers
    id = cluster.submit(1, spec("a"))
    assert keepers.of_job(id) is keepers.get(1)
    assert {keepers.of_key(f"key {index}") for index in range(50)} == set(keepers)
    assert keepers.of_key("one") is keepers.of_key("one")
    assert DagKeepers().of_job(id) is None and DagKeepers().of_turn(1) is None
    assert [keepers.of_turn(turn) for turn in (0, 1, 2)] == [keepers.get(0), keepers.get(1), keepers.get(0)]


def test_what_concerns_all_reaches_every_keeper(cluster: Cluster) -> None:
    keepers = cluster.managers["m1"].keepers
    cluster.is_held = True
    for partition in (0, 1):
        cluster.submit(partition, spec(f"p{partition}", 1))
    assert keepers.expected() == [("w", BOOT, 5)], "once, though both have tasks there"
    keepers.set_wall_offset(7)
    assert [keeper.wall_offset_ns for keeper in keepers] == [7, 7]

    keepers.on_stepped_down(cluster.now)
    cluster.do("m1", keepers.on_worker_lost(cluster.now, "w", BOOT, "it is gone"))

    assert keepers.expected() == []
    assert [task.worker for keeper in keepers for job in keeper.jobs.values() for task in job.tasks] == ["", ""]
    assert keepers.next_tick_at == min(keeper.next_tick_at for keeper in keepers)


# Epochs and leases.


def test_each_partition_raises_its_epoch_alone() -> None:
    """The worker has obeyed a higher epoch of partition 1: of another life of the store, say."""
    former = ObeyedEpoch({}, 1).rise(40, Partition(1, 2).life(STORE, 0xBEF0, 5))
    cluster = Cluster(disk={key: content for key, content in former if content is not None})
    cluster.start(TWO[0])
    cluster.submit(0, spec("a"))
    assert cluster.states() == {"a": JobState.COMPLETED}

    cluster.start(TWO[1])
    cluster.submit(1, spec("b"))
    cluster.submit(0, spec("c"))
    cluster.pass_time(2)

    assert [(raised.partition, raised.epoch, raised.remembered) for raised in cluster.raises] == [(1, 41, 40)]
    assert set(cluster.states().values()) == {JobState.COMPLETED}
    floors = [keeper.floor.epoch for keeper in cluster.managers["m1"].keepers]
    assert floors == [1, 41] == [cluster.pool.obeyed(number).epoch for number in (0, 1)]


def test_while_one_partition_raises_its_epoch_the_other_is_given_out() -> None:
    former = ObeyedEpoch({}, 1).rise(40, Partition(1, 2).life(STORE, 0xBEF0, 5))
    cluster = Cluster(disk={key: content for key, content in former if content is not None})
    manager = cluster.managers["m1"]
    for partition in TWO:
        cluster.do("m1", manager.take(cluster.now, partition))
    beat = WorkerBeat(
        "w",
        BOOT,
        1,
        WorkerFacts(2, folder=5, handlers=("h",)),
        2,
        "healthy",
        0,
        NOWHERE,
        others=cluster.pool.obeyed_besides(),
    )
    effects = manager.keepers.on_beat(cluster.now, beat)
    (wanted,) = [effect for effect in effects if isinstance(effect, RaiseEpoch)]
    assert wanted.partition == 1

    cluster.submit(0, spec("a"))
    cluster.submit(1, spec("b"))

    assert cluster.states() == {"a": JobState.COMPLETED, "b": JobState.RUNNING}
    (reason,) = manager.keeper(1).why(cluster.now, *_first(manager.keeper(1))).workers
    assert reason.constraint == "offline", "for this partition there is none yet"
    cluster.do("m1", [wanted])
    cluster.beat()  # it is asked what it holds
    cluster.beat()
    assert cluster.states()["b"] is JobState.COMPLETED


def _first(keeper: DagKeeper) -> tuple[str, str, int, Any]:
    job = next(iter(keeper.jobs.values()))
    return job.row.id, job.tasks[0].id, 0, job.tasks[0].state


def test_a_partition_that_another_manager_takes_is_lost_alone() -> None:
    cluster = Cluster(managers=("m1", "m2")).start()
    cluster.is_held = True
    for index in range(4):
        cluster.submit(index % 2, spec(f"j{index}"))
    before = len(cluster.held)

    cluster.start(TWO[1], manager="m2")
    cluster.submit(0, spec("more"))
    late = cluster.managers["m1"].keeper(1)
    cluster.do("m1", late.submit(cluster.now, 99, spec("late")))

    assert cluster.managers["m1"].lost == [1], "the store refused what the former owner wrote"
    assert [keeper.partition.number for keeper in cluster.managers["m1"].keepers] == [0]
    assert "late" not in cluster.states()
    assert len(cluster.held) >= before > 0, "what ran goes on"
    cluster.let_run()
    cluster.pass_time(2)
    assert set(cluster.states().values()) == {JobState.COMPLETED}
    assert len(cluster.ran) == len(set(cluster.ran)) == 10, (
        "the next owner took the results of what its jobs had running"
    )
    assert {type(message).__name__ for message in cluster.told if message.of.partition == 0} == {
        "AssignTasks",
        "ResultsStored",
    }, "nobody asked what is held of the other partition"


def test_what_a_lost_partition_had_leaves_room_and_limits_to_the_other() -> None:
    cluster = Cluster(cores=1).start()
    limited = {"limits": (Limit(key="k", concurrency=1),)}
    cluster.is_held = True
    cluster.submit(1, spec("b", 3, **limited))
    cluster.submit(0, spec("a", 3, **limited))
    assert len(cluster.held) == 1, "one limit for both"

    lost = cluster.managers["m1"].keeper(1)
    for _ in range(2):  # it is told by whoever notices first, and by the other
        cluster.managers["m1"].keepers.drop(cluster.now, 1)
        lost.leave(cluster.now)
    assert cluster.managers["m1"].turns.dispatcher.ready == 3, "those of the other"
    cluster.submit(0, spec("c", 1))
    cluster.let_run()

    assert cluster.states() == {"a": JobState.COMPLETED, "b": JobState.RUNNING, "c": JobState.COMPLETED}


# The room of a worker.


def test_two_keepers_do_not_give_a_workers_room_out_twice() -> None:
    cluster = Cluster(cores=2).start()
    cluster.is_held = True
    alone = {"bounds": Bounds(files=100)}
    for partition in (0, 1):
        cluster.submit(partition, spec(f"p{partition}", 3, **alone))

    handed = [task for message in cluster.told if isinstance(message, AssignTasks) for task in message.tasks]
    assert len(handed) == 2, "as many as there are cores, whoever gives them out"
    cluster.let_run()
    assert set(cluster.states().values()) == {JobState.COMPLETED}


def test_what_one_partition_gives_back_the_other_is_given_in_the_same_breath() -> None:
    """The keeper that hears of an end answers for the one whose task is next."""
    cluster = Cluster(cores=1).start()
    cluster.is_held = True
    alone = {"bounds": Bounds(files=100)}
    cluster.submit(0, spec("a", 1, **alone))
    cluster.submit(1, spec("b", 1, **alone))
    (given,) = [message for message in cluster.told if isinstance(message, AssignTasks)]
    assert given.of.partition == 0

    done = TaskResult(given.tasks[0].fence, "completed", b"1", job=given.tasks[0].job, task="a0")
    effects = cluster.managers["m1"].keepers.on_message(cluster.now, "w", Done((done,), given.of))

    commits = [effect for effect in effects if isinstance(effect, Commit)]
    claims = [(commit.partition, [type(change) for change in commit.changes]) for commit in commits]
    assert claims[-1] == (1, [ClaimTask])


def test_nothing_is_given_out_while_a_partition_is_being_read(cluster: Cluster) -> None:
    """What its attempts hold of limits is not known yet."""
    manager = cluster.managers["m1"]
    keeper = DagKeeper(
        epoch=9, next_number=100, rng=Random(1), wall_offset_ns=0, life=TWO[1].life(STORE, LIFE, 9), turns=manager.turns
    )
    cluster.submit(0, spec("a"))
    assert cluster.states() == {"a": JobState.RUNNING}

    manager.keepers.set(keeper)
    cluster.do("m1", keeper.restored(cluster.now))

    assert cluster.states() == {"a": JobState.COMPLETED}


# Outboxes.


def test_results_that_wait_for_one_keeper_do_not_hold_up_those_of_the_other(cluster: Cluster) -> None:
    cluster.silent = {1}
    cluster.submit(1, spec("b"))
    for index in range(3):
        cluster.submit(0, spec(f"a{index}"))

    assert {name for name, state in cluster.states().items() if state is JobState.COMPLETED} == {"a0", "a1", "a2"}
    assert cluster.pool.counts()["results_untaken"] == 1 and not cluster.pool.is_idle

    cluster.silent = set()
    cluster.pass_time(2 * AGAIN_NS // SECOND)
    assert cluster.states()["b"] is JobState.COMPLETED and cluster.pool.is_idle


class Rig:
    """A worker's pool by itself: the test is the keepers of its partitions."""

    def __init__(
        self, cores: int = 1, disk: dict[str, bytes] | None = None, limits: HandlerLimits = HANDLER_LIMITS
    ) -> None:
        self.now = 100 * SECOND
        self.disk = dict(disk or {})
        self.pool = HandlerPool("w", cores, self.disk, boot=BOOT, files=("h.py",), limits=limits, writes=WorkerWrites())
        self.pool.lease_granted(1)
        self.is_slow = False
        """Its disk is: tickets wait."""
        self.tickets: list[int] = []
        self.told: list[tuple[str, Any]] = []
        self.runs: list[tuple[int, HandedTask]] = []
        self.stops: list[int] = []
        self.ends: list[int] = []
        self.drops: list[Dropped] = []
        self.take(self.pool.start(self.now))

    def take(self, effects: list[HandlerEffect]) -> "Rig":
        for effect in effects:
            match effect:
                case ToKeeper(keeper=keeper, message=message):
                    self.told.append((keeper, message))
                case Persist(ticket=ticket, puts=puts):
                    self.disk.update({key: content for key, content in puts if content is not None})
                    self.tickets.append(ticket)
                    if not self.is_slow:
                        self.persisted()
                case TellHandlers(core=core, message=Load()):
                    self.take(self.pool.on_handlers_said(self.now, core, Loaded(1, ("h",))))
                case TellHandlers(core=core, message=RunTasks(tasks=tasks)):
                    self.runs += [(core, task) for task in tasks]
                case TellHandlers(message=StopTasks(fences=fences)):
                    self.stops += fences
                case EndHandlers(core=core):
                    self.ends.append(core)
                case AttemptsDropped(dropped=dropped):
                    self.drops.append(dropped)
                case StartHandlers() | HandlersLoaded():
                    pass
                case _:
                    raise AssertionError(effect)
        return self

    def persisted(self) -> None:
        for ticket in self.tickets:
            self.take(self.pool.on_persisted(self.now, ticket))
        self.tickets = []

    def hear(self, message: KeeperMessage, keeper: str = "m") -> "Rig":
        return self.take(self.pool.on_message(self.now, keeper, message))

    def ran(self, *fences: int) -> None:
        for fence in fences:
            core, task = next((core, task) for core, task in self.runs if task.fence == fence)
            result = TaskResult(fence, "completed", b"1", job=task.job, task=task.id)
            self.take(self.pool.on_handlers_said(self.now, core, Ran((result,))))

    def results(self, partition: int) -> list[TaskResult]:
        return [one for _, m in self.told if isinstance(m, Done) and m.of.partition == partition for one in m.results]


def task(fence: int, job: str = "j", **more: Any) -> HandedTask:
    return HandedTask(fence, job, f"t{fence & 0xFFFF}", "h", 1, b"null", **more)


A, B = TWO[0].life(1, 10, 100), TWO[1].life(2, 20, 200)
"""Partition 0 of one store and partition 1 of another: numbers of attempts mean nothing between them."""
FENCE = 7 << EPOCH_SHIFT | 1


def test_each_partition_has_its_part_of_the_outbox() -> None:
    full, other = Partition(3, PARTITIONS_LIMIT).life(1, 10, 100), Partition(4, PARTITIONS_LIMIT).life(1, 10, 100)
    most = HANDLER_LIMITS.results // PARTITIONS_LIMIT
    rig = Rig(4, limits=HandlerLimits(told_bytes=HANDLER_LIMITS.results_bytes))  # all of them are told at once
    fences = [FENCE + number for number in range(most)]
    rig.hear(AssignTasks(7, tuple(map(task, fences)), of=full))
    while rig.runs:
        runs = list(rig.runs)
        rig.ran(*[one.fence for _, one in runs])
        rig.runs = rig.runs[len(runs) :]
    assert len({result.fence for result in rig.results(3)}) == most

    rig.hear(AssignTasks(7, (task(FENCE + most),), of=full))
    rig.hear(AssignTasks(7, (task(FENCE + most + 1),), of=other))

    assert [(result.outcome, result.cause) for result in rig.results(3)[-1:]] == [("refused", "full")]
    assert [one.fence for _, one in rig.runs] == [FENCE + most + 1], "the other partition has room"
    rig.hear(ResultsStored(7, (FENCE,), full))
    rig.hear(AssignTasks(7, (task(FENCE + most + 2),), of=full))
    assert [one.fence for _, one in rig.runs] == [FENCE + most + 1, FENCE + most + 2]


def test_words_of_one_partition_reach_its_keeper_alone() -> None:
    rig = Rig()
    rig.hear(AssignTasks(7, (task(FENCE),), of=A), "ma").hear(AssignTasks(7, (task(FENCE + 1),), of=B), "mb")
    rig.ran(FENCE + 1)
    said = Said(
        (HandlerProgress(FENCE, b"1"), HandlerProgress(FENCE + 1, b"2"), HandlerProgress(99, b"3")),
        (TaskLine(FENCE, 1, "of a"), TaskLine(FENCE + 1, 1, "after its end"), TaskLine(99, 1, "of nobody")),
    )
    rig.take(rig.pool.on_handlers_said(rig.now, rig.runs[0][0], said))
    rig.now += SECOND
    rig.take(rig.pool.tick(rig.now))
    rig.take(rig.pool.on_handlers_said(rig.now, rig.runs[0][0], Said((), ())))

    words = [(to, m.of, m) for to, m in rig.told if isinstance(m, TaskProgress)]
    assert {(to, of) for to, of, _ in words} == {("ma", A), ("mb", B)}
    assert [(to, line.text) for to, _, m in words for line in m.lines] == [("ma", "of a"), ("mb", "after its end")]
    assert {(to, one.fence) for to, _, m in words for one in m.progress} == {("ma", FENCE)}
    assert [(to, fence) for to, _, m in words for fence in m.began] == [("ma", FENCE)]


# Equal numbers.


def test_a_fence_of_one_partition_is_none_of_the_other_though_the_numbers_are_equal() -> None:
    rig = Rig()
    rig.hear(AssignTasks(7, (task(FENCE, "a"),), of=A), "ma")

    rig.hear(AskHeld(7, B), "mb").hear(Recall(7, (FENCE,), 0, B), "mb").hear(ResultsStored(7, (FENCE,), B), "mb")
    rig.hear(AssignTasks(7, (task(FENCE, "b"),), of=B), "mb")

    assert [m.fences for _, m in rig.told if isinstance(m, Held)] == [()], "it holds nothing of that one"
    assert rig.stops == [], "nothing was stopped"
    assert {(result.outcome, result.cause) for result in rig.results(1)} == {("cancelled", "cancelled")}
    rig.told.clear()
    rig.ran(FENCE)
    assert [(to, m.of, [one.job for one in m.results]) for to, m in rig.told] == [("ma", A, ["a"])]
    rig.hear(ResultsStored(7, (FENCE,), B), "mb")
    assert not rig.pool.is_idle, "the other's word does not count for it"
    rig.hear(ResultsStored(7, (FENCE,), A), "ma")
    assert rig.pool.is_idle


def test_an_attempt_whose_number_another_store_has_here_is_refused() -> None:
    """A core tells attempts apart by that number alone."""
    rig = Rig()
    rig.hear(AssignTasks(7, (task(FENCE, "a"),), of=A), "ma").hear(AssignTasks(7, (task(FENCE, "b"),), of=B), "mb")
    assert [(one.outcome, one.cause, one.job) for one in rig.results(1)] == [("refused", "number", "b")]
    assert [one.job for _, one in rig.runs] == ["a"]


def test_a_keeper_refuses_a_result_that_names_another_partition_though_the_number_is_its_own() -> None:
    cluster = Cluster().start()
    cluster.is_held = True
    cluster.submit(0, spec("a"))
    ((_, handed),) = cluster.held
    keeper = cluster.managers["m1"].keeper(0)
    result = TaskResult(handed.fence, "completed", b"1", job=handed.job, task=handed.id)

    effects = keeper.on_message(cluster.now, "w", Done((result,), TWO[1].life(STORE, LIFE, 7)))

    assert effects == [] and keeper.foreign_messages == 1 and handed.fence in keeper.attempts.running


def test_inputs_that_came_early_are_for_their_partition() -> None:
    rig = Rig()
    rig.hear(TaskInputs(7, FENCE, {"x": b"1"}, of=A)).hear(TaskInputs(7, FENCE, {"x": b"2"}, of=B))
    rig.hear(AssignTasks(7, (task(FENCE, fed=1),), of=B))
    assert [one.inputs for _, one in rig.runs] == [{"x": b"2"}]


# What a worker remembers.


def test_a_too_old_epoch_of_one_partition_does_not_touch_the_other() -> None:
    rig = Rig()
    rig.hear(AssignTasks(7, (task(FENCE),), of=A)).hear(AssignTasks(7, (task(FENCE + 1),), of=B))

    rig.hear(AssignTasks(6, (task(FENCE + 2),), of=A))
    rig.hear(AssignTasks(7, (task(FENCE + 3),), of=B))

    assert rig.pool.refused == {"epoch": 1}
    assert [one.fence for _, one in rig.runs] == [FENCE, FENCE + 1, FENCE + 3]


def test_while_the_epoch_of_one_partition_is_on_its_way_to_disk_the_other_is_obeyed() -> None:
    rig = Rig()
    rig.hear(AskHeld(7, A))
    rig.is_slow = True
    for number in range(HELD_BACK_LEAST + 33):
        rig.hear(AssignTasks(8, (task(FENCE + number),), of=B))
    rig.hear(AssignTasks(7, (task(FENCE + 100),), of=A))
    assert [one.fence for _, one in rig.runs] == [FENCE + 100]
    assert rig.pool.refused == {"busy": HELD_BACK_LEAST + 33 - 32}, "it has its part of what may wait"

    rig.persisted()
    assert len(rig.runs) == 1 + 32


def test_a_worker_remembers_each_partition_on_its_disk() -> None:
    rig = Rig()
    rig.hear(AskHeld(7, A)).hear(AskHeld(9, B))
    assert rig.disk == {"epoch": b"7", "epoch/life": b"1 10 100 2", "epoch/1": b"9", "epoch/1/life": b"2 20 200 2"}

    again = Rig(disk=rig.disk).pool
    assert (again.obeyed().told(), again.obeyed_besides()) == (ObeyedLife(7, A), (ObeyedLife(9, B),))
    assert obeyed_partitions(rig.disk) == [0, 1]


def test_what_is_on_disk_of_a_store_with_one_partition_is_as_it_was_before_there_were_any() -> None:
    rig = Rig().hear(AskHeld(7, StoreLife(1, 10, 100)))
    assert rig.disk == {"epoch": b"7", "epoch/life": b"1 10 100"}
    assert rig.pool.obeyed_besides() == ()


def test_a_stored_epoch_of_another_partition_that_is_none_is_told() -> None:
    with pytest.raises(BrokenEpoch):
        HandlerPool("w", 1, {"epoch/5": b"x"}, boot=BOOT, writes=WorkerWrites())


def test_another_life_drops_what_is_held_of_its_partition_alone() -> None:
    rig = Rig()
    rig.hear(AssignTasks(7, (task(FENCE), task(FENCE + 1)), of=A)).hear(AssignTasks(7, (task(FENCE + 2),), of=B))
    rig.ran(FENCE)
    rig.hear(TaskInputs(7, FENCE + 9, {"x": b"1"}, of=A))

    rig.hear(AskHeld(8, TWO[0].life(1, 11, 101)))

    assert rig.drops == [Dropped(1, 10, 1, 1)]
    assert rig.pool.counts()["attempts_dropped_total"] == 2
    assert rig.ends == [1], "they shared a process"
    rig.take(rig.pool.on_handlers_exit(rig.now, 1, ExitFacts("SIGKILL")))
    assert [(one.fence, one.outcome, one.cause) for one in rig.results(1)] == [(FENCE + 2, "died", "neighbour")]
    assert [one.fence for one in rig.results(0)] == [FENCE], "what was dropped says nothing more"


def test_a_store_with_fewer_partitions_leaves_nothing_of_those_it_has_not() -> None:
    """Nobody would ever take their results: the worker could not drain."""
    rig = Rig()
    rig.hear(AssignTasks(7, (task(FENCE),), of=A)).hear(AssignTasks(7, (task(FENCE + 1),), of=B))
    rig.ran(FENCE + 1)
    assert rig.pool.obeyed(1).epoch == 7

    rig.hear(AskHeld(8, StoreLife(5, 50, 500)))
    rig.take(rig.pool.on_handlers_exit(rig.now, 1, ExitFacts("SIGKILL")))

    assert rig.drops == [Dropped(1, 10, 1, 0), Dropped(2, 20, 0, 1)]
    assert rig.pool.is_idle
    assert rig.pool.obeyed(1).epoch == 7, "who commanded there is remembered"


def test_a_lease_that_ends_lets_nothing_begin_in_any_partition() -> None:
    rig = Rig()
    rig.is_slow = True
    rig.hear(AssignTasks(7, (task(FENCE),), of=A)).hear(AssignTasks(7, (task(FENCE + 1),), of=B))
    rig.take(rig.pool.lease_ended(rig.now))
    rig.persisted()
    assert rig.runs == []


# Routing, whatever the ids and counts.


counts = st.integers(1, PARTITIONS_LIMIT)


@quick
@given(seed=st.integers(0, 2**32), count=counts)
def test_an_id_is_in_one_partition_and_stays_there(seed: int, count: int) -> None:
    id = new_job_id(Random(seed))
    (own,) = [partition for partition in Partition.all(count) if partition.holds(id)]
    assert own.number == partition_of(id, count) == shard_of(id) % count
    assert Partition.of(own.life(1, 2, 3)) == own
    assert partition_of(id, 1) == 0, "as stores are that know of no partitions"


@quick
@given(count=counts, first=st.integers(0, 10_000))
def test_numbers_of_partitions_never_meet(count: int, first: int) -> None:
    drawn = [
        number
        for partition in Partition.all(count)
        for number in range(partition.first_number(first), first + 3 * count, count)
    ]
    assert sorted(drawn) == list(range(first, first + 3 * count))


@quick
@given(count=st.integers(2, 16), data=st.data())
def test_what_is_said_of_a_partition_is_heard_by_nobody_else(count: int, data: st.DataObject) -> None:
    owned = data.draw(st.sets(st.integers(0, count - 1)))
    keepers, turns = DagKeepers(), DagTurns(Random(1))
    for number in sorted(owned):
        life = Partition(number, count).life(STORE, LIFE, 1)
        keepers.set(DagKeeper(epoch=1, next_number=1, rng=Random(1), wall_offset_ns=0, life=life, turns=turns))
    said = data.draw(st.lists(st.integers(0, count - 1), max_size=20))
    for number in said:
        keepers.on_message(0, "w", Done((TaskResult(1, "completed"),), Partition(number, count).life(STORE, LIFE, 1)))
    heard = {keeper.partition.number: keeper.stale_results for keeper in keepers}
    assert heard == {number: said.count(number) for number in sorted(owned)}
    assert keepers.strayed == sum(number not in owned for number in said)


@quick
@given(numbers=st.sets(st.integers(0, PARTITIONS_LIMIT - 1)), asked=st.integers(0, PARTITIONS_LIMIT - 1))
def test_a_beat_tells_of_each_partition_whom_the_worker_obeys(numbers: set[int], asked: int) -> None:
    lives = {number: ObeyedLife(number + 5, Partition(number, PARTITIONS_LIMIT).life(1, 2, 3)) for number in numbers}
    first, others = lives.get(0, NOBODY), tuple(life for number, life in lives.items() if number)
    beat = WorkerBeat("w", 1, 1, WorkerFacts(1), 1, "healthy", first.epoch, first.of, others=others)
    assert beat.obeyed(asked) == lives.get(asked, NOBODY)


@pytest.mark.parametrize(("number", "count"), [(-1, 2), (2, 2), (0, 0), (0, PARTITIONS_LIMIT + 1)])
def test_there_is_no_partition_outside_of_the_count(number: int, count: int) -> None:
    with pytest.raises(Invalid, match="a store has 1 to 64 partitions, numbered from 0 on"):
        Partition(number, count)
    with pytest.raises(Invalid):
        Partition.all(0)


def test_leases_of_partitions_have_keys_of_their_own_and_the_first_is_as_it_was() -> None:
    keys = [partition.lease_key for partition in Partition.all(16)]
    assert keys[:2] == ["manager", "manager/1"] and len(set(keys)) == 16
    assert Partition().lease_key == "manager"


def test_a_life_says_which_partition_it_is_of() -> None:
    one, other = TWO[0].life(0xAB, 0xCD, 1), TWO[1].life(0xAB, 0xCD, 1)
    assert not one.is_of(other) and not other.is_of(one)
    assert not Partition(1, 3).life(0xAB, 0xCD, 1).is_of(other), "split anew, it has other jobs"
    assert one.is_of(msgspec.structs.replace(one, opening=9))
    assert str(other) == "store ab, life cd, partition 1 of 2" and str(NOWHERE) == "store 0, life 0"


# A manager's shell, on a store in a file.


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path, partitions=TWO, lease_every_s=3600.0, sweep_s=3600.0, schedule_s=3600.0)
    await node.open()
    await node.jobs.start()
    yield node
    await node.jobs.close()


async def submitted(node: Node, name: str, *, key: str = "") -> str:
    return (await node.jobs.submit_dag(spec(name, 1), key, "me")).id


async def test_a_manager_serves_both_partitions_of_a_store(node: Node) -> None:
    node.beat()
    ids = [await submitted(node, f"j{index}") for index in range(4)]
    assert [shard_of(id) % 2 for id in ids] == [0, 1, 0, 1], "new jobs are spread by turns"
    for index, id in enumerate(ids):
        await node.finish(f"j{index}0")
        assert (await node.ended(id)).state is JobState.COMPLETED
    leases = [(lease.key, lease.epoch) for lease in node.records.leases("manager")]
    assert leases == [("manager", 1), ("manager/1", 1)]
    metrics = node.jobs.metrics()
    assert metrics["dag_jobs_ended_total"] == {"completed": 4} and metrics["dag_jobs_live"] == 0


async def test_jobs_of_both_partitions_go_on_with_the_next_life_of_a_manager(node: Node, tmp_path: Path) -> None:
    ids = [await submitted(node, f"j{index}", key=f"k{index}") for index in range(6)]
    assert {shard_of(id) % 2 for id in ids} == {0, 1}
    await node.jobs.close()

    again = Node(tmp_path, partitions=TWO, lease_every_s=3600.0, sweep_s=3600.0, schedule_s=3600.0)
    await again.open()
    await again.jobs.start()
    again.beat()
    for index, id in enumerate(ids):
        assert await submitted(again, f"j{index}", key=f"k{index}") == id, "its key is found in its partition"
        await again.finish(f"j{index}0")
        assert (await again.ended(id)).state is JobState.COMPLETED
    await again.jobs.close()


async def test_a_schedule_is_followed_over_all_partitions_and_each_instant_of_it_is_one_job(
    node: Node, tmp_path: Path
) -> None:
    hour_ms = 3_600_000
    clock = {"ms": 1_790_000_000_000}
    now_ms = clock["ms"]
    node.jobs._schedules._clocks = lambda: (0, clock["ms"] * 10**6)
    hourly = msgspec.structs.replace(spec("hourly", 1), schedule="0 * * * *", catch_up="all", wait_for_workers=True)
    await node.jobs.put_schedule(hourly, "me")
    (first,) = node.records.schedules()
    clock["ms"] = now_ms + 12 * hour_ms
    await node.jobs.follow_schedules()
    rows = await node.store.jobs((), 1 << 40, 100)
    assert len(rows) == 12 and {shard_of(row.id) % 2 for row in rows} == {0, 1}
    node.records.apply([PutSchedule(first)])  # as if it had died before the first of them was noted
    await node.jobs.follow_schedules()
    again = await node.store.jobs((), 1 << 40, 100)
    assert len({row.key.rpartition("/")[0] for row in again}) == 12
    assert len(again) == 12, "the keys of all of them were found where they are"


async def test_each_partition_of_a_manager_is_lost_alone(node: Node) -> None:
    node.beat()
    kept, lost = [await submitted(node, name) for name in ("a", "b")]
    draft = await node.jobs.begin_dag(DagHead(name="d", wait_for_workers=True), "", "me")
    draft = (
        await node.jobs.begin_dag(DagHead(name="d", wait_for_workers=True), "", "me")
        if shard_of(draft) % 2 == 0
        else draft
    )
    (lease,) = [lease for lease in node.records.leases("manager/1")]
    node.records.take("another", [lease])

    with pytest.raises(StoreTaken, match="another manager has taken partition 1 of the store"):
        await node.jobs.cancel_dag(lost, "")

    assert node.lost == [1] and node.broken == [] and node.jobs.lost is None
    assert [event["text"] for event in node.events if event.get("kind") == "store"] == [
        f"another manager has taken partition 1 of the store {node.store.place}: the others go on here"
    ]
    await node.finish("a0")
    assert (await node.ended(kept)).state is JobState.COMPLETED
    assert {shard_of(await submitted(node, f"c{index}")) % 2 for index in range(4)} == {0}
    assert (await node.jobs.dag(lost)).state is JobState.RUNNING, "the store tells"
    with pytest.raises(Unavailable, match=f"another manager has the part of the store that job {lost} is in"):
        await node.jobs.pause_dag(lost)
    foreign = next(f"k{index}" for index in range(99) if partition_of(f"k{index}", 2) == 1)
    with pytest.raises(Unavailable, match="jobs with the key 'k[0-9]+' are in"):
        await submitted(node, "e", key=foreign)
    await node.jobs.drop_dag(draft)
    await node.jobs.keep_leases()
    await node.jobs.sweep()
    await node.jobs.follow_schedules()
    assert node.jobs.why_not_ready() == "" and not node.jobs.is_doubtful(boottime_ns())


async def test_a_manager_finds_a_partition_lost_when_it_renews_its_lease_or_raises_its_epoch(node: Node) -> None:
    (first, _) = node.records.leases("manager")
    node.records.take("another", [first])
    await node.jobs.keep_leases()
    assert node.lost == [0] and node.broken == []
    await node.jobs.sweep()  # which is its next owner's affair now
    await node.jobs.follow_schedules()
    effects: list[DagEffect] = [RaiseEpoch(9, "w", 8, False, 0), Commit(2, (), 0), ReadOutputs(2, (), (), 0)]
    for effect in effects:
        node.jobs.carry_out(effect)  # of the one that is lost: nobody is answered

    assert node.records.take("another", list(node.records.leases("manager/1")))
    node.jobs.carry_out(RaiseEpoch(9, "w", 8, False, 1))
    await node.until(lambda: bool(node.broken))
    assert isinstance(node.jobs.lost, StoreTaken), "that was the last one"


async def test_a_manager_raises_the_epoch_of_one_partition(node: Node) -> None:
    node.jobs.carry_out(RaiseEpoch(41, "w", 40, False, 1))
    await node.until(lambda: [keeper.floor.epoch for keeper in node.jobs.keepers] == [1, 41])
    assert [lease.epoch for lease in node.records.leases("manager")] == [1, 41]
    node.beat()
    for name in ("a", "b"):
        id = await submitted(node, name)
        await node.finish(f"{name}0")
        assert (await node.ended(id)).state is JobState.COMPLETED
