"""Times by fixed bounds: each is in the first bucket that holds it, and in all after it."""

import pytest

from talka.errors import Invalid
from talka.stats.time_buckets import BOUNDS_NS, TimeBuckets
from talka.units import MILLISECOND, SECOND


def test_a_time_counts_in_each_bucket_whose_bound_it_does_not_pass() -> None:
    buckets = TimeBuckets((10 * MILLISECOND, SECOND))
    for time_ns in (0, 10 * MILLISECOND, 10 * MILLISECOND + 1, 2 * SECOND):
        buckets.add(time_ns)

    assert buckets.up_to() == [(0.01, 2), (1.0, 3), (float("inf"), 4)]
    assert buckets.total_ns == 2 * SECOND + 20 * MILLISECOND + 1


def test_nothing_was_counted_at_first() -> None:
    assert [count for _, count in TimeBuckets().up_to()] == [0] * (len(BOUNDS_NS) + 1)


@pytest.mark.parametrize("bounds", [(), (2, 1), (1, 1)])
def test_bounds_that_do_not_grow_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(Invalid, match="bounds of times must grow, unlike"):
        TimeBuckets(bounds)
