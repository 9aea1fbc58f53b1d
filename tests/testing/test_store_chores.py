"""Schedules, retention and a second manager in the simulator: what its checkers find, and that they find nothing
else."""

from collections.abc import Callable

import pytest

from talka.store.dags.sqlite import SqliteRecords
from talka.testing.world import World
from talka.units import SECOND
from talka.work.dags.records import MoveJob, PutSchedule, ScheduleRow
from talka.work.lifecycle import JobState
from tests.sim import dags
from tests.sim.checkers.clocks import EndedJobsStay, SchedulesFire

ROW = ScheduleRow(name="s", cron="* * * * *", spec=b"", next_ms=7)


class Shell:
    def __init__(self) -> None:
        self.records = SqliteRecords(":memory:")
        self.applied: list[Callable[..., None]] = []
        self.fired: dict[str, list[int]] = {}
        self.swept: list[tuple[int, int]] = []


def test_a_schedule_that_is_not_followed_by_a_right_clock_is_told() -> None:
    shell = Shell()
    shell.records.apply([PutSchedule(ROW)])
    checker = SchedulesFire(shell, shell, 70 * SECOND, 50 * SECOND)  # type: ignore[arg-type]
    for fired, ends_at, found in [([49], 119, []), ([49], 120, ["D10"]), ([49, 50], 120, []), ([], 121, ["D10"])]:
        world = World(1)
        world.run_until(ends_at * SECOND)
        shell.fired = {"s": [at * SECOND for at in fired]}
        checker.at_end(world)
        assert [violation.invariant for violation in world.violations] == found


def test_a_job_that_is_dropped_before_its_time_is_told() -> None:
    world, shell = World(1), Shell()
    checker = EndedJobsStay(world, shell, shell, 100 * SECOND)  # type: ignore[arg-type]
    checker.applied([MoveJob(1, JobState.COMPLETED, 1), MoveJob(2, JobState.COMPLETED, 1)], [1, 1])
    world.run_until(60 * SECOND)
    checker.applied([MoveJob(2, JobState.RUNNING, 1), MoveJob(2, JobState.FAILED, 1)], [1, 1])
    world.run_until(100 * SECOND)
    shell.swept.append((1, world.now))
    checker.on_second(world)
    assert not world.violations
    shell.swept.append((2, world.now))
    checker.on_second(world)
    assert "job number 2 was dropped 40 s after its end" in world.violations[0].text


@pytest.mark.parametrize("name", dags.RARE)
def test_a_rare_fault_alone_breaks_nothing(name: str) -> None:
    for seed in range(3):
        story = dags.Story(dags.plan_of(seed, classes=(name,)), None)
        world = story.run()
        assert not world.violations and world.struck[name] >= 2


def test_a_manager_whose_store_was_taken_starts_again_from_what_is_there() -> None:
    story = dags.Story(dags.plan_of(2, classes=(dags.STORE_TAKEN,)), None)
    story.run()
    assert story.shell.refused >= 1
    assert story.manager.boot > 1
