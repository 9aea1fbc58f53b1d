from talka.control.load.deadlines import Deadline
from talka.units import SECOND


def test_work_that_advances_gets_five_extensions_each_half_of_the_one_before_and_no_sixth() -> None:
    deadline = Deadline(30 * SECOND)

    granted = [deadline.extend(deadline.until, done) / SECOND for done in range(1, 7)]

    assert granted == [15, 7.5, 3.75, 1.875, 1, 0]
    assert deadline.until == 59.125 * SECOND


def test_work_that_does_not_advance_gets_no_more_time() -> None:
    deadline = Deadline(30 * SECOND)
    assert deadline.extend(30 * SECOND, 0) == 0

    deadline.extend(30 * SECOND, 7)

    assert deadline.extend(45 * SECOND, 7) == 0
    assert deadline.until == 45 * SECOND


def test_an_extension_asked_for_late_counts_from_then() -> None:
    deadline = Deadline(30 * SECOND)

    deadline.extend(40 * SECOND, 1)

    assert deadline.until == 55 * SECOND
