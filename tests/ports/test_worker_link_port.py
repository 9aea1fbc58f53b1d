"""The port between a keeper of tasks and its workers: frames carry it between nodes, a call does here."""

import ast
import inspect
from collections import deque
from pathlib import Path
from random import Random

import msgspec
import pytest

from talka.cluster.effects import Lane, Persist
from talka.control.dags import keeper as keeper_module
from talka.control.dags.keeper import DagKeeper
from talka.control.tasks import attempts, delivery, epoch_floor, store_effects, worker_link
from talka.control.tasks.attempts import CHECK_AFTER_NS, CHECK_EVERY_NS
from talka.control.tasks.frame_link import FRAMES
from talka.control.tasks.store_effects import CallAnswered, Commit, DagEffect, DagEnded
from talka.control.tasks.worker_link import ToKeeper, ToWorker, WorkerBeat
from talka.control.tasks.worker_room import CoresForTasks
from talka.control.worker import handlers_filling, handlers_outbox, handlers_pool, handlers_room
from talka.control.worker.effects import ExitFacts, HandlerEffect, HandlersLoaded, StartHandlers, TellHandlers
from talka.control.worker.handlers_outbox import AGAIN_NS
from talka.control.worker.handlers_pool import HandlerPool
from talka.control.worker.writes import WorkerWrites
from talka.units import SECOND
from talka.wire.attempts import NOWHERE
from talka.wire.jobs import CHANNEL, Beat, WorkerFacts
from talka.wire.tasks import (
    AskHeld,
    AssignTasks,
    Done,
    HandedTask,
    Held,
    Load,
    Loaded,
    Ran,
    Recall,
    ResultsStored,
    RunTasks,
    TaskProgress,
    TaskResult,
)
from talka.work.dags.dag import DagSpec, TaskSpec
from talka.work.lifecycle import JobState
from tests.ports.direct_link import KEEPER, DirectLink
from tests.ports.files_that_run import files_that_run

BOOT = 3
SUM = DagSpec(
    name="sum",
    tasks=(
        *[TaskSpec(id=id, handler="one") for id in "abcd"],
        TaskSpec(id="left", handler="sum", depends_on=("a", "b")),
        TaskSpec(id="right", handler="sum", depends_on=("c", "d")),
        TaskSpec(id="all", handler="sum", depends_on=("left", "right")),
    ),
)


class OneProcess:
    """A keeper whose store takes everything at once, and pools whose cores run a handler as soon as they are let."""

    def __init__(self, *workers: str, cores: int = 2) -> None:
        self.now = 100 * SECOND
        self.keeper = DagKeeper(epoch=1, next_number=1, rng=Random(7), wall_offset_ns=0)
        self.links: dict[str, DirectLink] = {}
        self.ran: list[tuple[str, str]] = []
        """Worker and task of each attempt that came to its end."""
        self.ended: list[DagEnded] = []
        self.outputs: dict[str, object] = {}
        self.is_held = False
        """Cores take tasks, and run none."""
        self._held: list[tuple[str, int, tuple[HandedTask, ...]]] = []
        self._pools: dict[str, HandlerPool] = {}
        self._beats = 0
        for name in workers:
            pool = HandlerPool(name, cores, {}, boot=BOOT, files=("sums.py",), writes=WorkerWrites())
            pool.lease_granted(1)
            self._pools[name] = pool
            self.links[name] = DirectLink(self.now, self.keeper, name, pool)
            self.do(name, pool.start(self.now))
        self.beat()

    def do(self, who: str, effects: list[DagEffect] | list[HandlerEffect]) -> None:
        """Carry out all that follows."""
        open_effects = deque([(who, effect) for effect in effects])
        while open_effects:
            who, effect = open_effects.popleft()
            match effect:
                case ToWorker():
                    open_effects += self.links[effect.worker].to_worker(effect)
                case ToKeeper():
                    open_effects += self.links[who].to_keeper(effect)
                case Commit(ticket=ticket):
                    open_effects += [(KEEPER, one) for one in self.keeper.on_committed(self.now, ticket)]
                case Persist(ticket=ticket):
                    open_effects += [(who, one) for one in self._pools[who].on_persisted(self.now, ticket)]
                case TellHandlers(core=core, message=Load()):
                    loaded = Loaded(1, ("one", "sum"))
                    open_effects += [(who, one) for one in self._pools[who].on_handlers_said(self.now, core, loaded)]
                case TellHandlers(core=core, message=RunTasks(tasks=tasks)):
                    if self.is_held:
                        self._held.append((who, core, tasks))
                    else:
                        open_effects += [(who, one) for one in self._run(who, core, tasks)]
                case DagEnded():
                    self.ended.append(effect)
                case CallAnswered() | StartHandlers() | HandlersLoaded():
                    pass
                case _:
                    raise AssertionError(effect)

    def _run(self, worker: str, core: int, tasks: tuple[HandedTask, ...]) -> list[HandlerEffect]:
        results = []
        for task in tasks:
            self.ran.append((worker, task.id))
            output = 1 if task.handler == "one" else sum(msgspec.json.decode(one) for one in task.inputs.values())
            self.outputs[task.id] = output
            encoded = msgspec.json.encode(output)
            results.append(TaskResult(task.fence, "completed", encoded, job=task.job, task=task.id))
        return self._pools[worker].on_handlers_said(self.now, core, Ran(tuple(results)))

    def beat(self) -> None:
        self._beats += 1
        for name in self.present:
            pool = self._pools[name]
            facts = WorkerFacts(pool.room.cores.limit, folder=5, handlers=pool.room.handlers, plain=pool.room.plain)
            obeyed = pool.obeyed()
            beat = WorkerBeat(name, BOOT, self._beats, facts, facts.cores, "healthy", obeyed.epoch, obeyed.life)
            self.do(KEEPER, self.keeper.on_beat(self.now, beat))

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += SECOND
            for link in self.links.values():
                link.now = self.now
            for name in self.present:
                if self.now >= self._pools[name].next_tick_at:
                    self.do(name, self._pools[name].tick(self.now))
            if self.now >= self.keeper.next_tick_at:
                self.do(KEEPER, self.keeper.tick(self.now))
            self.beat()

    def submit(self, spec: DagSpec = SUM) -> None:
        self.do(KEEPER, self.keeper.submit(self.now, 1, spec))

    def kill_core(self, worker: str, core: int) -> None:
        self._held = [held for held in self._held if held[:2] != (worker, core)]
        self.do(worker, self._pools[worker].on_handlers_exit(self.now, core, ExitFacts("SIGKILL", signal="SIGKILL")))

    def lose(self, name: str) -> None:
        """Its machine is gone, with all that ran there."""
        self.links[name].is_cut = True
        self._held = [held for held in self._held if held[0] != name]
        self.do(KEEPER, self.keeper.on_worker_lost(self.now, name, BOOT, "its machine is gone"))

    def let_run(self) -> None:
        self.is_held = False
        held, self._held = self._held, []
        for worker, core, tasks in held:
            self.do(worker, self._run(worker, core, tasks))

    @property
    def present(self) -> list[str]:
        return [name for name, link in self.links.items() if not link.is_cut]

    @property
    def has_completed(self) -> bool:
        return [end.state for end in self.ended] == [JobState.COMPLETED] and self.outputs["all"] == 4


def test_a_pipeline_runs_to_its_end_over_calls() -> None:
    process = OneProcess("w1", "w2")
    process.submit()
    assert process.has_completed
    assert sorted(task for _, task in process.ran) == sorted(task.id for task in SUM.tasks), "each of them once"


def test_what_a_lost_worker_had_runs_on_another() -> None:
    process = OneProcess("w1", "w2")
    process.is_held = True
    process.submit()
    had = {task.id for worker, _, tasks in process._held for task in tasks if worker == "w1"}
    assert had, "both have some"

    process.lose("w1")
    process.let_run()
    process.pass_time(60)

    assert process.has_completed
    assert {worker for worker, _ in process.ran} == {"w2"}
    assert had <= {task for _, task in process.ran}


def test_the_task_of_a_core_that_died_is_in_the_one_that_takes_its_place_before_time_passes() -> None:
    """So that it is the start of a process alone that takes time: no tick, no beat and no backoff is waited for."""
    process = OneProcess("w", cores=1)
    process.is_held = True
    process.submit(DagSpec(name="one", tasks=(TaskSpec(id="all", handler="one"),)))
    before = process._held

    process.kill_core("w", 1)

    assert [(core, [task.id for task in tasks]) for _, core, tasks in before] == [(1, ["all"])]
    assert [(core, [task.id for task in tasks]) for _, core, tasks in process._held] == [(2, ["all"])]
    assert process._held[0][2][0].fence > before[0][2][0].fence


def test_tasks_that_never_came_are_handed_again() -> None:
    process = OneProcess("w")
    process.links["w"].loses = [AssignTasks]
    process.submit()
    assert process.ran == []

    process.pass_time(4 * (CHECK_EVERY_NS + CHECK_AFTER_NS) // SECOND)

    assert process.has_completed


@pytest.mark.parametrize("lost", [Done, ResultsStored])
def test_a_result_that_was_lost_on_its_way_or_whose_receipt_was_is_told_again_and_taken_once(
    lost: type[Done | ResultsStored],
) -> None:
    process = OneProcess("w")
    process.links["w"].loses = [lost]
    process.submit()

    process.pass_time(3 * AGAIN_NS // SECOND)

    assert process.has_completed
    assert len(process.ran) == len(SUM.tasks), "none ran twice"
    assert process.keeper.stale_results == 0
    assert process._pools["w"].is_idle, "all were taken, and it knows"


def test_a_second_carrier_takes_one_file() -> None:
    with files_that_run() as files:
        process = OneProcess("w1", "w2")
        process.submit()
    assert process.has_completed
    assert set(files.of_tests) - {Path(__file__).name} == {"direct_link.py"}
    assert {"control/dags/keeper.py", "control/worker/handlers_pool.py"} <= set(files.of_talka)
    of_frames = ("control/tasks/frame_link", "control/manager", "control/worker/composite", "control/member/")
    others = (*of_frames, "net/", "nodes/", "wire/framing", "wire/packets")
    assert [file for file in files.of_talka if file.startswith(others)] == []


@pytest.mark.parametrize(
    "module",
    [
        keeper_module,
        attempts,
        delivery,
        epoch_floor,
        store_effects,
        worker_link,
        handlers_outbox,
        handlers_pool,
        handlers_filling,
        handlers_room,
    ],
    ids=lambda module: module.__name__,
)
def test_neither_end_names_a_channel_a_lane_or_a_frame(module: object) -> None:
    tree = ast.parse(inspect.getsource(module))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names & {"Send", "Transmit", "Lane", "CHANNEL", "Channel", "Packet", "FRAMES", "FrameLink"} == set()


def test_frames_carry_all_that_is_said_and_only_progress_may_be_shed() -> None:
    for said in (AssignTasks(1, ()), Recall(1, ()), ResultsStored(1, ()), AskHeld(1)):
        send = FRAMES.to_worker(ToWorker("w", said))
        assert (send.channel, send.to, send.message, send.lane) == (CHANNEL, "w", said, Lane.RESULTS)
    for told, lane in ((Done(()), Lane.RESULTS), (Held(1, ()), Lane.RESULTS), (TaskProgress(), Lane.STATISTICS)):
        send = FRAMES.to_keeper(ToKeeper("m", told))
        assert (send.channel, send.to, send.message, send.lane) == (CHANNEL, "m", told, lane)


def test_a_keeper_is_told_of_a_beat_what_concerns_tasks() -> None:
    facts = WorkerFacts(8, folder=5, handlers=("one",))
    beat = FRAMES.beat(3, Beat(17, facts, epoch=4, names=True), CoresForTasks("w", 6, "busy"), "degraded")
    assert beat == WorkerBeat("w", 3, 17, facts, 6, "degraded", epoch=4, of=NOWHERE, why_none="busy")
