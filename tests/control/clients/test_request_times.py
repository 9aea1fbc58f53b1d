from talka.control.clients.request_times import RequestTimes
from talka.units import SECOND


def led_by(leader: str = "m1") -> RequestTimes:
    """Since so long ago that it does not matter."""
    times = RequestTimes()
    times.led(-100 * SECOND, leader)
    return times


def test_what_was_answered_since_the_last_look_is_told_on_average() -> None:
    times = led_by()
    first, second = times.begin(0), times.begin(SECOND)
    times.end(2 * SECOND, second, is_answered=True)
    times.end(3 * SECOND, first, is_answered=True)

    assert times.take() == 2 * SECOND
    assert times.take() is None
    times.end(9 * SECOND, times.begin(8 * SECOND), is_answered=True)
    assert times.take() == SECOND


def test_what_failed_because_others_are_not_there_says_nothing() -> None:
    times = led_by()
    times.end(9 * SECOND, times.begin(0), is_answered=False)

    assert times.take() is None


def test_the_oldest_that_waits_is_told_until_it_is_answered() -> None:
    times = led_by()
    first = times.begin(0)
    times.begin(2 * SECOND)

    assert times.oldest_ns(3 * SECOND) == 3 * SECOND
    times.end(3 * SECOND, first, is_answered=True)
    assert times.oldest_ns(3 * SECOND) == SECOND


def test_nobody_waits_where_nobody_asks() -> None:
    assert led_by().oldest_ns(SECOND) == 0


def test_whoever_waited_for_a_leader_says_nothing_of_this_node() -> None:
    times = led_by()
    times.begin(0)
    waited = times.begin(0)
    times.led(SECOND, "")
    assert times.oldest_ns(9 * SECOND) == 0
    times.led(9 * SECOND, "m2")
    times.end(9 * SECOND, waited, is_answered=True)

    assert times.take() is None
    assert times.oldest_ns(10 * SECOND) == 0, "who leads is only found out"
    assert times.oldest_ns(12 * SECOND) == 2 * SECOND


def test_the_same_leader_is_no_other_one() -> None:
    times = led_by()
    number = times.begin(0)
    times.led(SECOND, "m1")
    times.end(2 * SECOND, number, is_answered=True)

    assert times.take() == 2 * SECOND
