"""When cores of jobs that run come back, as their owners tell it."""

import pytest

from talka.control.jobs.outlook import TOLD_LATE_NS, Outlook, Waiting
from talka.control.jobs.queue import expected_text
from talka.control.load.cores_back import TimeLeft
from talka.units import SECOND
from talka.wire.jobs import CoresBack

FOR_EVER = TimeLeft(0, None, None)


def lasting(seconds: int, *, most_s: int = 30) -> TimeLeft:
    return TimeLeft(seconds * SECOND, seconds * SECOND, (seconds + most_s) * SECOND)


def soonest(seconds: int) -> int:
    """The leader's clock may be slower by 2 %, and it is told late."""
    return seconds * SECOND * 98 // 100 - TOLD_LATE_NS


def outlook_of(**jobs: tuple[int, TimeLeft]) -> tuple[Outlook, dict[str, int]]:
    outlook = Outlook()
    for job, (cores, time) in jobs.items():
        outlook.begun(0, job, cores, time)
    return outlook, {job: cores for job, (cores, _) in jobs.items()}


def test_enough_cores_are_there_once_the_first_plans_are_over_that_have_them() -> None:
    outlook, reserved = outlook_of(a=(2, lasting(50)), b=(3, lasting(100)))

    assert outlook.earliest(0, 1, 3, reserved) == soonest(50)
    assert outlook.earliest(0, 1, 4, reserved) == soonest(100)
    assert outlook.earliest(0, 3, 3, reserved) == 0
    assert outlook.earliest(0, 1, 7, reserved) is None
    assert outlook.earliest(90 * SECOND, 1, 3, reserved) == 90 * SECOND, "it is overdue"


def test_cores_of_which_nothing_was_told_may_come_back_at_any_moment() -> None:
    outlook, reserved = outlook_of(a=(2, lasting(50)), b=(2, FOR_EVER))

    assert outlook.earliest(7, 0, 2, reserved) == 7
    assert outlook.earliest(7, 0, 4, reserved) == soonest(50)
    assert outlook.earliest(7, 0, 5, {**reserved, "c": 1}) == soonest(50)
    assert outlook.earliest(7, 0, 1, {"a": 3}) == 7, "one more than it told of"
    outlook.forget("a")
    assert not outlook.knows("a") and outlook.knows("b")
    assert outlook.earliest(7, 0, 4, reserved) == 7


def test_jobs_are_expected_to_start_one_after_the_other_when_plans_are_over() -> None:
    outlook, reserved = outlook_of(a=(2, lasting(50)), b=(2, lasting(20)))
    waiting = [Waiting("c", 3, 10 * SECOND), Waiting("d", 4, None), Waiting("e", 1, SECOND)]

    starts = outlook.starts(0, 1, 5, waiting, reserved)

    assert starts == {"c": 20 * SECOND, "d": 50 * SECOND, "e": 50 * SECOND}
    assert outlook.starts(0, 0, 9, [Waiting("f", 5, None), Waiting("g", 1, 1)], reserved) == {}, "there never are five"
    assert outlook.starts(0, 5, 4, [Waiting("f", 5, None)], {}) == {}, "the pool has four"


def test_a_plan_that_is_overdue_is_over_at_the_latest_when_it_said_and_then_nobody_knows() -> None:
    outlook, reserved = outlook_of(a=(2, lasting(50)))
    waiting = [Waiting("c", 2, None)]

    starts = [outlook.starts(at * SECOND, 0, 2, waiting, reserved) for at in (50, 51, 80, 81)]

    assert starts == [{"c": 50 * SECOND}, {"c": 80 * SECOND}, {"c": 80 * SECOND}, {}]


def test_what_an_owner_tells_takes_the_place_of_what_was_known() -> None:
    outlook, reserved = outlook_of(a=(4, FOR_EVER))
    assert outlook.endless(0, reserved) == "a"

    outlook.told(0, "a", (CoresBack(3, 10 * SECOND, 12 * SECOND, 40 * SECOND), CoresBack(1, 20 * SECOND, -1, 9)))

    assert outlook.earliest(0, 0, 3, reserved) == soonest(10)
    assert outlook.starts(0, 0, 4, [Waiting("c", 3, None)], reserved) == {"c": 12 * SECOND}
    assert outlook.starts(0, 0, 4, [Waiting("c", 4, None)], reserved) == {}
    assert outlook.endless(0, reserved) == "a", "of one core it is not known"
    outlook.told(0, "a", (CoresBack(4, SECOND, SECOND, SECOND),))
    assert outlook.endless(0, reserved) == ""
    assert outlook.endless(0, {**reserved, "b": 1}) == "b"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "1 s"), (0.2, "1 s"), (40, "40 s"), (119.5, "2m"), (121, "3m"), (3600, "1h"), (3661, "1h2m")],
)
def test_when_a_job_is_expected_to_start_is_told_to_a_second_and_later_to_a_minute(seconds: float, told: str) -> None:
    assert expected_text(round(seconds * SECOND)) == f"expected to start in {told}"
