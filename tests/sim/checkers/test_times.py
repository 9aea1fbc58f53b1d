"""The checker of the time that attempts get sees what it is there for."""

from collections.abc import Sequence

import pytest

from talka.control.tasks.attempt_time import KeptTime, encoded
from talka.testing.handler_cores import SimulatedRun
from talka.testing.store_shell import StoreDisk, StoreShell
from talka.testing.world import World
from talka.units import SECOND
from talka.wire.tasks import HandedTask
from talka.work.dags.dag import TaskSpec
from talka.work.dags.records import Complete, PutTime, TimeRow
from talka.work.deadlines import DeadlineRecord, Extension
from talka.work.lifecycle import TaskState
from tests.sim.checkers.dags import Specs
from tests.sim.checkers.times import TimesAreKept
from tests.sim.quiet import Quiet

FENCE = 7


class Play:
    def __init__(self) -> None:
        self.world = World(1)
        self.world.stop_at_first = False
        host = self.world.add_host("m", Quiet, disk=StoreDisk())
        host.start()
        specs = Specs()
        specs.jobs[1] = "j"
        for index, on_timeout in enumerate(("kill", "pause")):
            task = TaskSpec(id=on_timeout, handler="h", on_timeout=on_timeout)  # type: ignore[arg-type]
            specs.tasks["j", on_timeout], specs.keys["j", on_timeout] = task, (1, index)
        self.times = TimesAreKept(self.world, StoreShell(self.world, host, 0), specs)
        self.run = SimulatedRun(host, 1, HandedTask(FENCE, "j", "kill", "h", 1, b"{}"), 5)
        self.run.number = 1

    def kept(self, *granted_s: int, is_warned: bool = False) -> None:
        record = DeadlineRecord(0, tuple(Extension(one * SECOND) for one in granted_s), is_warned=is_warned)
        row = TimeRow(job=1, index=0, attempt=1, fence=FENCE, kept=encoded(KeptTime(record, 1)))
        self.times.applied([PutTime(row)], [1])

    def told(self, *granted_ms: int, warnings: int = 0) -> None:
        self.run.granted_ms, self.run.warnings = list(granted_ms), warnings
        self.times.told_time(self.run)

    @property
    def found(self) -> list[str]:
        return [violation.invariant for violation in self.world.violations]


def test_what_grows_by_one_rule_is_clean() -> None:
    play = Play()
    play.kept(15)
    play.kept(15, 7)
    play.kept(15, 7, is_warned=True)
    play.told(15_000, 7_500, warnings=1)

    assert play.found == [] and (play.times.granted, play.times.warned) == (0, 1)


@pytest.mark.parametrize("then", [(), (7,), (14, 7)])
def test_what_is_kept_and_shrinks_or_changes_is_told(then: Sequence[int]) -> None:
    play = Play()
    play.kept(15)
    play.kept(*then)

    assert play.found == ["D14"]


@pytest.mark.parametrize(("granted_s", "is_warned"), [((15,), False), ((15, 7), True)])
def test_a_warning_that_is_forgotten_or_followed_by_more_time_is_told(
    granted_s: tuple[int, ...], is_warned: bool
) -> None:
    play = Play()
    play.kept(15, is_warned=True)
    play.kept(*granted_s, is_warned=is_warned)

    assert play.found == ["D14"]


@pytest.mark.parametrize(("granted_ms", "warnings"), [((1,) * 6, 0), ((1, 2), 0), ((), 2)])
def test_an_attempt_that_is_told_too_much_is_told(granted_ms: tuple[int, ...], warnings: int) -> None:
    play = Play()
    play.told(*granted_ms, warnings=warnings)

    assert play.found == ["D14"]


def test_a_store_that_is_replaced_knows_nothing_of_what_came_before() -> None:
    play = Play()
    play.kept(15)
    play.world.run_until(SECOND)
    play.times.put_back()
    play.kept()
    play.told(*(1,) * 6)

    assert play.found == []


@pytest.mark.parametrize(("index", "found"), [(0, []), (1, ["D15"])])
def test_a_task_that_is_put_aside_is_not_given_up(index: int, found: list[str]) -> None:
    play = Play()
    play.times.applied([Complete(1, index, FENCE, TaskState.DEAD, 1, cause="timeout")], [1])

    assert play.found == found
