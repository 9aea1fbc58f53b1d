"""How much each source may send."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.member.token_bucket import TokenBuckets
from talka.errors import Invalid
from talka.units import SECOND

quick = settings(deadline=None, derandomize=True, max_examples=100)


def test_a_new_source_may_send_a_burst_and_no_more() -> None:
    buckets = TokenBuckets(rate_per_s=10, burst=3)
    assert [buckets.allows(0, "a") for _ in range(5)] == [True, True, True, False, False]
    assert buckets.refused == 2


def test_tokens_return_at_the_rate_to_the_nanosecond() -> None:
    buckets = TokenBuckets(rate_per_s=10, burst=1)
    assert buckets.allows(0, "a")
    assert not buckets.allows(SECOND // 10 - 1, "a")
    assert buckets.allows(SECOND // 10, "a")
    assert not buckets.allows(SECOND // 10, "a")


def test_a_rate_that_does_not_divide_a_second_loses_nothing() -> None:
    buckets = TokenBuckets(rate_per_s=3, burst=2)
    allowed = sum(buckets.allows(now, "a") for now in range(0, 10 * SECOND + 1, SECOND // 1000))
    assert allowed == 2 + 3 * 10


def test_a_source_that_was_silent_has_no_more_than_a_burst() -> None:
    buckets = TokenBuckets(rate_per_s=10, burst=2)
    assert buckets.allows(0, "a")
    assert [buckets.allows(3600 * SECOND, "a") for _ in range(3)] == [True, True, False]


def test_sources_do_not_spend_each_others_tokens() -> None:
    buckets = TokenBuckets(rate_per_s=1, burst=1)
    assert buckets.allows(0, "a")
    assert not buckets.allows(0, "a")
    assert buckets.allows(0, "b")


def test_what_is_refused_costs_nothing() -> None:
    buckets = TokenBuckets(rate_per_s=1, burst=4)
    assert buckets.allows(0, "a", cost=3)
    assert not buckets.allows(0, "a", cost=2)
    assert buckets.allows(0, "a", cost=1)


def test_a_cost_above_the_burst_is_never_allowed() -> None:
    buckets = TokenBuckets(rate_per_s=100, burst=4)
    assert not buckets.allows(3600 * SECOND, "a", cost=5)
    assert buckets.allows(3600 * SECOND, "a", cost=4)


def test_at_the_limit_the_source_heard_of_longest_ago_is_forgotten() -> None:
    buckets = TokenBuckets(rate_per_s=1, burst=1, sources_limit=2)
    assert buckets.allows(0, "a")
    assert buckets.allows(0, "b")
    assert not buckets.allows(0, "a")  # Refused, and yet heard of.
    assert buckets.allows(0, "c")  # b gives way.
    assert len(buckets) == 2
    assert not buckets.allows(0, "a")
    assert buckets.allows(0, "b")


def test_a_flood_of_new_sources_is_bounded() -> None:
    buckets = TokenBuckets(rate_per_s=1, burst=1, sources_limit=16)
    for number in range(1000):
        buckets.allows(0, f"source {number}")
    assert len(buckets) == 16


def test_a_clock_that_steps_back_gives_no_tokens() -> None:
    buckets = TokenBuckets(rate_per_s=1, burst=1)
    assert buckets.allows(10 * SECOND, "a")
    assert not buckets.allows(0, "a")
    assert buckets.allows(11 * SECOND, "a")


@quick
@given(
    st.integers(1, 1000),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, SECOND), st.integers(1, 3)), min_size=1, max_size=60),
)
def test_no_stretch_of_time_lets_more_through_than_burst_and_rate(
    rate_per_s: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    buckets = TokenBuckets(rate_per_s, burst)
    now = 0
    taken: list[tuple[int, int]] = []
    for step_ns, cost in steps:
        now += step_ns
        if buckets.allows(now, "a", cost):
            taken.append((now, cost))
    for first, (since, _) in enumerate(taken):
        for last in range(first, len(taken)):
            passed_ns = taken[last][0] - since
            total = sum(cost for _, cost in taken[first : last + 1])
            assert total * SECOND <= burst * SECOND + passed_ns * rate_per_s


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0)], ids=["rate", "burst", "sources"])
def test_buckets_that_would_allow_nothing_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(Invalid, match="at least 1"):
        TokenBuckets(*numbers)
