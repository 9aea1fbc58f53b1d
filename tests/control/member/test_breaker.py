import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.member.breaker import Breaker, BreakerState
from talka.errors import Invalid
from talka.units import SECOND


def open_breaker(*, opened_at: int = 0) -> Breaker:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(opened_at)
    assert breaker.state is BreakerState.OPEN
    return breaker


def probed_breaker(*, probed_at: int = 10 * SECOND) -> Breaker:
    breaker = open_breaker(opened_at=probed_at - 10 * SECOND)
    assert breaker.allows(probed_at)
    assert breaker.state is BreakerState.HALF_OPEN
    return breaker


def test_a_breaker_starts_closed_and_lets_everything_through() -> None:
    breaker = Breaker()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allows(0)
    assert breaker.allows(0)
    assert breaker.retry_in_ns(0) == 0


def test_it_opens_at_the_third_failure_within_thirty_seconds() -> None:
    breaker = Breaker()
    breaker.failed(0)
    breaker.failed(SECOND)
    assert breaker.allows(SECOND)
    breaker.failed(30 * SECOND)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows(30 * SECOND)


def test_failures_further_apart_do_not_open_it() -> None:
    breaker = Breaker()
    for at in (0, SECOND, 30 * SECOND + 1, 60 * SECOND):
        breaker.failed(at)
    assert breaker.state is BreakerState.CLOSED


def test_successes_between_failures_do_not_hide_them() -> None:
    breaker = Breaker()
    for at in range(3):
        breaker.failed(at)
        breaker.succeeded(at)
    assert breaker.state is BreakerState.OPEN


def test_an_open_breaker_says_how_long_until_the_probe() -> None:
    breaker = open_breaker(opened_at=SECOND)
    assert breaker.retry_in_ns(SECOND) == 10 * SECOND
    assert breaker.retry_in_ns(9 * SECOND) == 2 * SECOND
    assert not breaker.allows(11 * SECOND - 1)
    assert breaker.retry_in_ns(60 * SECOND) == 0
    assert breaker.state is BreakerState.OPEN


def test_one_probe_goes_through_at_a_time() -> None:
    breaker = open_breaker()
    assert breaker.allows(10 * SECOND)
    assert not breaker.allows(10 * SECOND)
    assert breaker.retry_in_ns(12 * SECOND) == 8 * SECOND


def test_a_probe_that_goes_well_closes_it_with_a_clean_slate() -> None:
    breaker = probed_breaker()
    breaker.succeeded(11 * SECOND)
    assert breaker.state is BreakerState.CLOSED
    breaker.failed(11 * SECOND)
    breaker.failed(11 * SECOND)
    assert breaker.allows(11 * SECOND)


def test_a_probe_that_fails_opens_it_for_another_wait() -> None:
    breaker = probed_breaker(probed_at=50 * SECOND)
    breaker.failed(51 * SECOND)
    assert breaker.state is BreakerState.OPEN
    assert breaker.retry_in_ns(51 * SECOND) == 10 * SECOND


def test_a_probe_nobody_reports_on_is_given_up_after_the_same_wait() -> None:
    breaker = probed_breaker(probed_at=10 * SECOND)
    assert not breaker.allows(20 * SECOND - 1)
    assert breaker.allows(20 * SECOND)
    assert not breaker.allows(20 * SECOND)


def test_outcomes_of_calls_from_before_it_opened_neither_close_nor_prolong() -> None:
    breaker = open_breaker()
    breaker.succeeded(SECOND)
    breaker.failed(2 * SECOND)
    assert breaker.state is BreakerState.OPEN
    assert breaker.retry_in_ns(2 * SECOND) == 8 * SECOND


def test_a_breaker_of_one_failure_opens_at_the_first() -> None:
    breaker = Breaker(failures=1, window_ns=1, probe_after_ns=5)
    breaker.failed(0)
    assert breaker.retry_in_ns(0) == 5


@pytest.mark.parametrize("name", ["failures", "window_ns", "probe_after_ns"])
def test_settings_below_one_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="at least 1"):
        Breaker(**{name: 0})


@given(st.lists(st.tuples(st.integers(0, 8 * SECOND), st.sampled_from(["ask", "fail", "succeed"])), max_size=60))
@settings(deadline=None, derandomize=True)
def test_it_allows_exactly_when_nothing_is_left_to_wait(steps: list[tuple[int, str]]) -> None:
    breaker, now = Breaker(), 0
    for wait_ns, step in steps:
        now += wait_ns
        if step == "fail":
            breaker.failed(now)
        elif step == "succeed":
            breaker.succeeded(now)
        left_ns = breaker.retry_in_ns(now)
        assert 0 <= left_ns <= 10 * SECOND
        if step == "ask":
            was_closed = breaker.state is BreakerState.CLOSED
            assert breaker.allows(now) == (left_ns == 0)
            assert breaker.allows(now) == was_closed
