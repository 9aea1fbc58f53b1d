import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.deadlines import EVICT, GRACE_NS, Deadline, MoreTime, Warned, grant_ns
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=150)


def test_extensions_of_thirty_seconds_halve_down_to_one_second() -> None:
    assert [grant_ns(30 * SECOND, granted) / SECOND for granted in range(5)] == [15, 7.5, 3.75, 1.875, 1]


def test_work_that_advances_gets_five_extensions_then_a_warning_then_the_end() -> None:
    deadline = Deadline(30 * SECOND, until=30 * SECOND)
    granted = []
    for _ in range(5):
        reply = deadline.ask(deadline.until, True)
        assert isinstance(reply, MoreTime)
        granted.append(reply.ns)

    assert deadline.until == 30 * SECOND + sum(granted) == 59_125 * MILLISECOND
    assert deadline.ask(deadline.until, True) == Warned(GRACE_NS)
    assert deadline.until == 69_125 * MILLISECOND
    assert deadline.ask(deadline.until - 1, True) == Warned(1)
    assert deadline.ask(deadline.until, True) == EVICT


def test_work_that_does_not_advance_is_warned_at_once() -> None:
    deadline = Deadline(30 * SECOND, until=30 * SECOND)

    assert deadline.ask(30 * SECOND, False) == Warned(10 * SECOND)
    assert deadline.ask(32 * SECOND, False) == Warned(8 * SECOND)
    assert deadline.ask(40 * SECOND, True) == EVICT
    assert deadline.granted == 0


def test_work_that_advances_after_a_warning_goes_on_without_the_grace_period() -> None:
    deadline = Deadline(30 * SECOND, until=30 * SECOND)
    deadline.ask(20 * SECOND, False)

    assert deadline.ask(25 * SECOND, True) == MoreTime(15 * SECOND)

    assert deadline.until == 45 * SECOND
    assert deadline.ask(45 * SECOND, True) == MoreTime(7_500 * MILLISECOND)


def test_an_extension_asked_for_late_counts_from_then() -> None:
    deadline = Deadline(30 * SECOND, until=30 * SECOND)

    deadline.ask(40 * SECOND, True)

    assert deadline.until == 55 * SECOND


def test_a_deadline_without_time_is_refused() -> None:
    with pytest.raises(Invalid, match="base_ns"):
        Deadline(0, 0)


@given(
    base_s=st.integers(1, 10_000), asks=st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=40)
)
@quick
def test_all_extensions_together_are_bounded(base_s: int, asks: list[tuple[int, bool]]) -> None:
    base_ns = base_s * SECOND
    deadline = Deadline(base_ns, until=0)
    now = granted_ns = grants = 0
    for wait_s, progressed in asks:
        now = min(now + wait_s * SECOND, max(now, deadline.until))
        reply = deadline.ask(now, progressed)
        if isinstance(reply, MoreTime):
            assert progressed
            grants += 1
            granted_ns += reply.ns
        if reply == EVICT:
            break

    assert grants <= 5
    assert granted_ns <= base_ns + 5 * SECOND
    assert deadline.until <= granted_ns + (grants + 1) * GRACE_NS
