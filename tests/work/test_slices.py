"""Consecutive shards for the cores of one machine: whatever the split, nothing is lost and nothing runs twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.units import SECOND
from talka.work.load import RATE_PER_S, BadShape, Plan, PlanSlice, Segment, Shard
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, RampingVUs, SharedIterations

quick = settings(deadline=None, derandomize=True, max_examples=100)
segments = st.builds(
    Segment,
    st.integers(1, 40).map(lambda tenths: tenths * SECOND // 10),
    *(st.integers(0, 12).map(lambda rate: rate * RATE_PER_S) for _ in range(2)),
)
open_plans = (
    st.lists(segments, min_size=1, max_size=3)
    .filter(lambda parts: any(part.area for part in parts))
    .map(lambda parts: Plan.of_rate(parts, max_vus=10, policy="queue"))
)
counts = st.integers(1, 60)
plans = st.one_of(
    open_plans,
    st.builds(lambda vus: ConstantVUs(vus, "3s").plan(), counts),
    st.builds(lambda vus: RampingVUs([(vus, "3s")], 1).plan(), counts),
    st.builds(lambda vus, each: IterationsPerVU(vus, each).plan(), counts, counts),
    st.builds(lambda vus, shared: SharedIterations(vus, shared, "3s").plan(), counts, counts),
)
instants = st.integers(-SECOND, 13 * SECOND) | st.integers(-10, 130).map(lambda tenths: tenths * SECOND // 10)
splits = st.lists(st.integers(1, 5), min_size=1, max_size=5)
"""Cores of each machine."""


def sliced(plan: Plan, cores: list[int]) -> list[PlanSlice]:
    return [PlanSlice(plan, sum(cores[:turn]), count, sum(cores)) for turn, count in enumerate(cores)]


@given(plan=plans, cores=splits, from_ns=instants, to_ns=instants)
@quick
def test_slices_of_any_split_add_up_to_the_plan(plan: Plan, cores: list[int], from_ns: int, to_ns: int) -> None:
    slices, whole = sliced(plan, cores), Shard(plan, 0, 1)

    assert [shard for part in slices for shard in part.shards] == list(plan.split(sum(cores)))
    assert sum(part.vus for part in slices) == plan.vus
    if whole.iterations_in_all is None:
        assert [part.iterations_in_all for part in slices] == [None] * len(slices)
    else:
        assert sum(part.iterations_in_all or 0 for part in slices) == whole.iterations_in_all
    arrivals = [part.arrivals_between(from_ns, to_ns) for part in slices]
    assert sum(arrivals) == whole.arrivals_between(from_ns, to_ns)
    assert {part.plan.length_ns for part in slices} == {plan.length_ns}


@given(plan=plans, cores=splits, data=st.data())
@quick
def test_parts_of_a_slice_add_up_to_it(plan: Plan, cores: list[int], data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(sliced(plan, cores)))
    cut = data.draw(st.integers(0, whole.count))
    parts = [whole.part(offset, count) for offset, count in ((0, cut), (cut, whole.count - cut)) if count]

    assert [shard for part in parts for shard in part.shards] == list(whole.shards)
    assert sum(part.vus for part in parts) == whole.vus
    assert sum(part.arrivals_between(0, SECOND) for part in parts) == whole.arrivals_between(0, SECOND)


def test_a_shard_is_one_and_a_slice_as_many_as_it_says() -> None:
    plan = ConstantVUs(7, "1s").plan()

    assert Shard(plan, 1, 3).count == 1
    assert PlanSlice(plan, 1, 2, 3).count == 2
    assert (PlanSlice(plan, 1, 2, 3).index, PlanSlice(plan, 1, 2, 3).vus) == (1, 5)


@pytest.mark.parametrize(("first", "count", "of"), [(0, 0, 3), (-1, 1, 3), (2, 2, 3), (3, 1, 3)])
def test_shards_that_do_not_exist_are_refused(first: int, count: int, of: int) -> None:
    with pytest.raises(BadShape, match=f"^shards {first} to {first + count - 1} of {of} do not exist"):
        PlanSlice(ConstantRate(5, "1s").plan(), first, count, of)


def test_a_part_reaches_no_further_than_the_split() -> None:
    with pytest.raises(BadShape):
        PlanSlice(ConstantVUs(5, "1s").plan(), 1, 2, 3).part(1, 2)
