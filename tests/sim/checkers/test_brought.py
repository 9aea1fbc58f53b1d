"""The checker of handlers that travel with their job sees what it is there for."""

import msgspec
import pytest

from talka.control.tasks.store_effects import Commit
from talka.testing.handler_cores import Script, SimulatedRun
from talka.testing.store_shell import StoreDisk, StoreShell
from talka.testing.world import World
from talka.wire.tasks import HandedTask
from talka.work.dags.dag import CodeBundle, DagSettings, TaskSpec, encode_task, with_bundle
from talka.work.dags.records import ClaimTask, JobRow, PutJob, PutTasks, TaskRow
from talka.work.lifecycle import JobState, TaskState
from tests.sim.checkers.brought import CodeRunsWhereItMay
from tests.sim.checkers.dags import Specs
from tests.sim.quiet import Quiet

DIGEST = "ab" * 32
BUNDLE = CodeBundle(DIGEST, 9, ("handlers.py",), ("quick",))
CONFIG = msgspec.json.encode(Script())


class Play:
    """A store with one job, which brought the handler of its first task; `taker` accepts code."""

    def __init__(self) -> None:
        self.world = World(1)
        self.world.stop_at_first = False
        self.host = self.world.add_host("m", Quiet, disk=StoreDisk())
        self.host.start()
        self.shell, specs = StoreShell(self.world, self.host, 0), Specs()
        self.code = CodeRunsWhereItMay(self.world, self.shell, specs, ("taker",))
        settings = msgspec.json.encode(with_bundle(DagSettings(), BUNDLE))
        job = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=1, settings=settings, tasks=2)
        tasks = TaskSpec(id="a", handler="quick"), TaskSpec(id="b", handler="plain")
        rows = tuple(
            TaskRow(job=1, index=index, id=task.id, state=TaskState.PENDING, spec=encode_task(task), depends_on=())
            for index, task in enumerate(tasks)
        )
        changes = (PutJob(job), PutTasks(rows))
        specs.on_effect(self.world, self.host, Commit(1, changes))
        self.shell.apply(changes)

    def give(self, index: int, worker: str) -> None:
        self.shell.apply([ClaimTask(1, index, 1, index + 1, f"{worker}#1#1", 2)])

    def begin(self, id: str, code: str) -> None:
        handler = "quick" if id == "a" else "plain"
        self.code.began(SimulatedRun(self.host, 1, HandedTask(1, "j", id, handler, 1, CONFIG), 0, code))

    @property
    def found(self) -> list[str]:
        return [f"{violation.invariant}: {violation.text}" for violation in self.world.violations]


@pytest.fixture
def play() -> Play:
    return Play()


def test_all_that_is_well_is_no_violation(play: Play) -> None:
    play.give(0, "taker")
    play.give(1, "other")
    play.begin("a", DIGEST)
    play.begin("b", "")

    assert play.found == []
    assert (play.code.given, play.code.begun) == (1, 1)


def test_code_is_given_to_no_worker_that_takes_none(play: Play) -> None:
    play.give(0, "other")

    assert play.found == ["D13: task a of job j: attempt 1 was given to other, which takes no code"]


@pytest.mark.parametrize("id, code", [("a", ""), ("a", "cd" * 32), ("b", DIGEST)])
def test_handlers_run_in_no_core_that_has_loaded_others(play: Play, id: str, code: str) -> None:
    play.begin(id, code)

    assert len(play.found) == 1 and play.found[0].startswith(f"D13: task {id} of job j, attempt 1: it began in a core")
