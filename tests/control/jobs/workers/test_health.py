import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.jobs.workers.health import CorrelatedFailure
from talka.errors import Invalid
from talka.units import SECOND

quick = settings(deadline=None, derandomize=True, max_examples=150)


def holds(failure: CorrelatedFailure, at_s: int, since_s: list[int], known: int, is_due: bool = True) -> bool:
    return failure.holds(at_s * SECOND, [since * SECOND for since in since_s], known, is_due=is_due)


@pytest.mark.parametrize(
    ("since_s", "known", "held"),
    [
        ([0, 5, 10], 5, True),
        ([0, 5, 11], 5, False),  # not within ten seconds
        ([11, 1, 0, 6], 5, True),  # the last three are
        ([0, 0], 3, False),  # too few
        ([0, 0, 0], 6, False),  # just half
        ([0, 0, 0, 0], 6, True),
        ([], 0, False),
    ],
    ids=["close", "apart", "unordered", "few", "half", "most", "nobody"],
)
def test_evictions_wait_when_most_fell_silent_close_together(since_s: list[int], known: int, held: bool) -> None:
    assert holds(CorrelatedFailure(), 12, since_s, known) is held


def test_a_hold_begins_with_the_first_eviction_that_is_due_and_ends_ten_seconds_later() -> None:
    failure = CorrelatedFailure()

    assert not holds(failure, 3, [0, 0, 0], 3, is_due=False)
    assert failure.until is None
    assert holds(failure, 5, [0, 0, 0], 3)
    assert holds(failure, 14, [0, 0, 0], 3)
    assert not holds(failure, 15, [0, 0, 0], 3)


def test_a_hold_is_not_repeated_while_the_same_failure_lasts() -> None:
    failure = CorrelatedFailure()
    holds(failure, 5, [0, 0, 0, 4, 4, 4], 6)

    assert not holds(failure, 15, [0, 0, 0, 4, 4, 4], 6)
    assert not holds(failure, 16, [4, 4, 4], 3)
    assert not holds(failure, 17, [4], 3)
    assert holds(failure, 90, [80, 80, 80], 3), "this is another one"


@pytest.mark.parametrize("wrong", [{"window_ns": -1}, {"hold_ns": 0}, {"least": 0}], ids=str)
def test_a_correlated_failure_without_a_meaning_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Invalid, match="correlated failure"):
        CorrelatedFailure(**wrong)


def test_a_failure_of_a_single_instant_may_be_asked_for() -> None:
    failure = CorrelatedFailure(window_ns=0)

    assert holds(failure, 12, [0, 0, 0], 3)
    assert not holds(failure, 12, [0, 0, 1], 3)


@given(since=st.lists(st.integers(0, 30), max_size=8), more=st.integers(0, 6))
@quick
def test_a_hold_needs_three_and_more_than_half_within_some_window(since: list[int], more: int) -> None:
    known = len(since) + more
    closest = max((sum(first <= other <= first + 10 for other in since) for first in since), default=0)

    assert holds(CorrelatedFailure(), 40, since, known) is (closest >= 3 and 2 * closest > known)
