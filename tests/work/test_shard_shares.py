"""What a shard has still to run, by count: its iterations, and its arrivals between two instants."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.units import SECOND
from talka.work.load import RATE_PER_S, Plan, Segment, Shard
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, LoadShape, RampingVUs, SharedIterations

quick = settings(deadline=None, derandomize=True, max_examples=100)
splits = st.integers(1, 9)
counts = st.integers(1, 1000)
segments = st.builds(
    Segment,
    st.integers(1, 40).map(lambda tenths: tenths * SECOND // 10),
    *(st.integers(0, 12).map(lambda rate: rate * RATE_PER_S) for _ in range(2)),
)
open_plans = (
    st.lists(segments, min_size=1, max_size=4)
    .filter(lambda parts: any(part.area for part in parts))
    .map(lambda parts: Plan.of_rate(parts, max_vus=10, policy="queue"))
)
# Segments last up to 4 s and there are up to four: instants before, within and after the plan, on its grid and off it.
instants = st.integers(-SECOND, 17 * SECOND) | st.integers(-10, 170).map(lambda tenths: tenths * SECOND // 10)


@given(vus=counts, iterations=counts, of=splits)
@quick
def test_the_iterations_of_the_shards_add_up_whoever_runs_them(vus: int, iterations: int, of: int) -> None:
    each = IterationsPerVU(vus, iterations).plan().split(of)
    shared = SharedIterations(vus, iterations).plan().split(of)

    assert sum(shard.iterations_in_all or 0 for shard in each) == vus * iterations
    assert sum(shard.iterations_in_all or 0 for shard in shared) == iterations


def test_a_shard_runs_its_vus_times_the_iterations_of_each() -> None:
    assert [shard.iterations_in_all for shard in IterationsPerVU(7, 10).plan().split(3)] == [20, 20, 30]


def test_a_shard_runs_its_share_of_the_shared_iterations_however_many_vus_it_has() -> None:
    assert [shard.iterations_in_all for shard in SharedIterations(5, 11).plan().split(3)] == [3, 3, 5]


def test_an_end_in_time_does_not_take_the_count_away() -> None:
    assert Shard(IterationsPerVU(2, 10, "1s").plan(), 0, 1).iterations_in_all == 20


@pytest.mark.parametrize("shape", [ConstantVUs(3, "1s"), RampingVUs([(3, "1s")], 1), ConstantRate(5, "1s")])
def test_a_plan_bound_by_time_has_no_count_of_iterations(shape: LoadShape) -> None:
    assert Shard(shape.plan(), 0, 2).iterations_in_all is None


@given(plan=open_plans, of=splits, from_ns=instants, to_ns=instants)
@quick
def test_arrivals_between_two_instants_are_those_that_are_listed(plan: Plan, of: int, from_ns: int, to_ns: int) -> None:
    for shard in plan.split(of):
        listed = [due_ns for due_ns in shard.arrivals() if from_ns <= due_ns < to_ns]
        assert shard.arrivals_between(from_ns, to_ns) == len(listed)


def test_the_instants_themselves_count_from_the_first_and_not_the_last() -> None:
    shard = Shard(ConstantRate(10, "1s").plan(), 1, 2)  # due at 0.1, 0.3, 0.5, 0.7 and 0.9 s

    assert shard.arrivals_between(SECOND // 10, 5 * SECOND // 10) == 2
    assert shard.arrivals_between(SECOND // 10 + 1, 5 * SECOND // 10 + 1) == 2


def test_no_arrival_lies_between_an_instant_and_itself_or_an_earlier_one() -> None:
    shard = Shard(ConstantRate(1000, "1s").plan(), 0, 1)

    assert shard.arrivals_between(SECOND // 2, SECOND // 2) == 0
    assert shard.arrivals_between(SECOND, 0) == 0


def test_a_plan_of_vus_has_no_arrivals() -> None:
    assert Shard(ConstantVUs(5, "1s").plan(), 0, 2).arrivals_between(0, SECOND) == 0


def test_counting_arrivals_does_not_walk_through_them() -> None:
    shard = Shard(ConstantRate(1_000_000, "30d", max_vus=1).plan(), 2, 3)

    assert shard.arrivals_between(0, 86_400 * SECOND) == 86_400 * 1_000_000 // 3


def test_arrivals_of_the_shards_are_dealt_in_turn() -> None:
    assert [shard.arrivals_total for shard in ConstantRate(10, "1s").plan().split(3)] == [4, 3, 3]


def test_vus_beyond_an_even_deal_are_the_last_shards() -> None:
    shards = RampingVUs([(8, "8s")], 0).plan().split(3)

    assert [[shard.vus_at(t * SECOND) for shard in shards] for t in (3, 6, 7)] == [[1, 1, 1], [2, 2, 2], [2, 2, 3]]
