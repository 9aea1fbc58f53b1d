"""The checker of tasks that are fanned out sees what it is there for."""

import msgspec
import pytest

from talka.testing.store_shell import StoreDisk, StoreShell
from talka.testing.world import World
from talka.work.dags.dag import TaskSpec, encode_task
from talka.work.dags.elements import ElementMaker, encode_spec
from talka.work.dags.records import (
    Change,
    Complete,
    DropElements,
    FanOut,
    JobRow,
    PutJob,
    PutTasks,
    Reset,
    TaskRow,
)
from talka.work.lifecycle import JobState, TaskState
from tests.sim.checkers.dags import Specs
from tests.sim.checkers.fans import FansAreWhole
from tests.sim.quiet import Quiet

CLEAN = TaskSpec(id="clean", handler="h", for_each="extract.parts")
TWICE = TaskSpec(id="twice", handler="h", for_each="clean")


class Play:
    """A store with one job: extract, clean over its parts, and twice over the outputs of clean."""

    def __init__(self) -> None:
        self.world = World(1)
        self.world.stop_at_first = False
        host = self.world.add_host("m", Quiet, disk=StoreDisk())
        host.start()
        self.shell = StoreShell(self.world, host, 0)
        self.fans = FansAreWhole(self.world, self.shell, Specs())
        row = JobRow(number=1, id="j", name="n", state=JobState.RUNNING, submitted_ms=1, settings=b"{}", tasks=3)
        tasks = (TaskSpec(id="extract", handler="h"), CLEAN, TWICE)
        waits: tuple[tuple[int, ...], ...] = ((), (0,), (1,))
        rows = [
            TaskRow(job=1, index=index, id=task.id, state=TaskState.PENDING, spec=encode_task(task), depends_on=before)
            for index, (task, before) in enumerate(zip(tasks, waits, strict=True))
        ]
        self.shell.apply([PutJob(row), PutTasks(tuple(rows)), completed(0, b'{"parts":["a","b"]}')])

    def elements(self, first: int, fan: int = 1, items: tuple[bytes, ...] = (b'"a"', b'"b"'), step: int = 1) -> Change:
        maker = ElementMaker((CLEAN, TWICE)[fan - 1], fan)
        specs = [maker.spec(place, msgspec.Raw(item)) for place, item in enumerate(items)][::step]
        return PutTasks(
            tuple(
                TaskRow(job=1, index=first + n, id=spec.id, state=TaskState.PENDING, spec=encode_spec(spec))
                for n, spec in enumerate(specs)
            )
        )

    @property
    def found(self) -> list[str]:
        return [violation.invariant for violation in self.world.violations]


@pytest.fixture
def play() -> Play:
    return Play()


def completed(index: int, output: bytes = b"") -> Complete:
    return Complete(1, index, 0, TaskState.COMPLETED, 5, output)


def test_all_that_is_well_is_no_violation(play: Play) -> None:
    play.shell.apply([play.elements(3), FanOut(1, 1, 3, 2, 5)])
    play.shell.apply([completed(3, b"1"), Complete(1, 4, 0, TaskState.DEAD, 5), completed(1)])
    play.shell.apply([play.elements(5, 2, (b"1", b"null")), FanOut(1, 2, 5, 2, 7)])
    play.shell.apply([DropElements(1, 1, 3, 2, 5), Reset(1, 1)])
    assert play.found == []
    assert (play.fans.fanned, play.fans.elements, play.fans.dropped) == (2, 4, 1)


def test_elements_without_the_word_that_they_are_there_are_seen(play: Play) -> None:
    play.shell.apply([play.elements(3)])
    assert play.found == ["D12"]


def test_the_word_without_its_elements_is_seen(play: Play) -> None:
    play.shell.apply([FanOut(1, 1, 3, 2, 5)])
    assert play.found == ["D12", "D12"]


@pytest.mark.parametrize(
    ("items", "step"),
    [((b'"a"',), 1), ((b'"a"', b'"b"', b'"b"'), 1), ((b'"b"', b'"a"'), 1), ((b'"a"', b'"b"'), -1)],
    ids=["one is missing", "one twice", "other items", "another order"],
)
def test_other_elements_than_those_of_the_list_are_seen(play: Play, items: tuple[bytes, ...], step: int) -> None:
    play.shell.apply([play.elements(3, 1, items, step), FanOut(1, 1, 3, len(items), 3 + len(items))])
    assert play.found == ["D12"]


def test_a_list_that_is_made_again_in_the_same_write_is_not_looked_at(play: Play) -> None:
    play.shell.apply([play.elements(3, 1, (b"9",)), FanOut(1, 1, 3, 1, 4), Reset(1, 0)])
    assert play.found == []


def test_a_task_that_is_completed_before_its_elements_is_seen(play: Play) -> None:
    play.shell.apply([play.elements(3), FanOut(1, 1, 3, 2, 5)])
    play.shell.apply([completed(3, b"1"), completed(1)])
    assert play.found == ["D12"]
    play.shell.apply([Reset(1, 1), completed(1), Reset(1, 1)])
    assert play.found == ["D12"], "run again in the same write"
