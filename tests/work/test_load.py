import heapq
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.units import SECOND
from talka.work.load import RATE_PER_S, BadShape, Plan, Segment, Shard
from talka.work.shapes import (
    ConstantRate,
    ConstantVUs,
    CustomRate,
    CustomVUs,
    IterationsPerVU,
    LoadShape,
    RampingRate,
    RampingVUs,
    SharedIterations,
)

quick = settings(deadline=None, derandomize=True, max_examples=150)
DAY_NS = 86_400 * SECOND


def whole(plan: Plan) -> Shard:
    return Shard(plan, 0, 1)


def dues(shape: LoadShape) -> list[int]:
    return list(whole(shape.plan()).arrivals())


def line_at(plan: Plan, t_ns: int) -> Fraction:
    """The plan's line at an instant within it, by the book."""
    for part in plan.segments:
        if t_ns < part.length_ns:
            return part.start + Fraction((part.end - part.start) * t_ns, part.length_ns)
        t_ns -= part.length_ns
    raise AssertionError("beyond the end")


def integral_at(plan: Plan, t_ns: int) -> Fraction:
    """Arrivals up to an instant, by the book: the mean of the rates at both ends of each stretch, times its length."""
    total = Fraction(0)
    for part in plan.segments:
        stretch_ns = min(t_ns, part.length_ns)
        reached = part.start + Fraction((part.end - part.start) * stretch_ns, part.length_ns)
        total += (part.start + reached) / 2 * stretch_ns / (RATE_PER_S * SECOND)
        t_ns -= stretch_ns
    return total


def segments_of(lengths: st.SearchStrategy[int], values: st.SearchStrategy[int]) -> st.SearchStrategy[list[Segment]]:
    steady = st.builds(lambda length_ns, value: Segment(length_ns, value, value), lengths, values)
    # Almost level: one unit up or down moves no corner, but shows which way the arithmetic rounds.
    almost = st.builds(
        lambda length_ns, value, up: Segment(length_ns, value + 3, value + 3 + up), lengths, values, st.integers(-3, 3)
    )
    return st.lists(st.builds(Segment, lengths, values, values) | steady | almost, min_size=1, max_size=4)


def made(make: Callable[..., Plan], *inputs: st.SearchStrategy[Any]) -> st.SearchStrategy[Plan]:
    """Plans made from these inputs, leaving out those in which nothing would run."""

    def attempt(args: tuple[Any, ...]) -> Plan | None:
        try:
            return make(*args)
        except BadShape:
            return None

    return st.tuples(*inputs).map(attempt).filter(lambda plan: plan is not None)  # type: ignore[return-value]


def scaled(most: int, unit: int) -> st.SearchStrategy[int]:
    """Up to `most` units, exactly or a little more; plain wide integers would nearly all be next to nothing."""
    return st.builds(
        lambda count, more: count * unit + more, st.integers(0, most), st.sampled_from([0, 0, 1, unit // 3])
    )


# Few VUs over few nanoseconds, so that every instant can be looked at.
tiny_ramps = made(Plan.of_vus, segments_of(st.integers(1, 40), st.integers(0, 25)))
ramps = made(Plan.of_vus, segments_of(scaled(100, SECOND).map(lambda ns: ns + 1), st.integers(0, 200)))
slow_rates = segments_of(scaled(200, SECOND // 100).map(lambda ns: ns + 1), scaled(30, RATE_PER_S))
fast_rates = segments_of(st.integers(1, 3_000), scaled(99, 100_000 * RATE_PER_S))
open_plans = made(
    lambda segments, max_vus, policy: Plan.of_rate(segments, max_vus=max_vus, policy=policy),
    slow_rates | fast_rates,
    st.integers(1, 50),
    st.sampled_from(["queue", "drop"]),
)
counts = st.integers(1, 300)
iteration_plans = st.builds(
    lambda shape, vus, iterations, longest: shape(vus, iterations, longest).plan(),
    st.sampled_from([IterationsPerVU, SharedIterations]),
    counts,
    counts,
    st.sampled_from([None, "10s"]),
)
plans = ramps | open_plans | iteration_plans
splits = st.integers(1, 17)


# Closed model.


def test_constant_vus_exist_from_the_first_instant_to_just_before_the_end() -> None:
    plan = ConstantVUs(50, "30s").plan()
    assert (plan.model, plan.vus, plan.length_ns) == ("closed", 50, 30 * SECOND)
    assert [plan.vus_at(t) for t in (-1, 0, 30 * SECOND - 1, 30 * SECOND)] == [0, 50, 50, 0]
    assert plan.rate_at(0) == 0.0
    assert plan.arrivals_total == plan.arrivals_before(SECOND) == 0
    assert list(whole(plan).arrivals()) == []


def test_a_ramp_of_vus_goes_in_straight_lines_and_counts_whole_vus() -> None:
    plan = RampingVUs([(50, "10s"), (50, "2s"), (0, "5s")]).plan()
    assert plan.vus == 50
    seconds = {
        0: 0,
        0.0999: 0,
        0.1: 1,
        5: 25,
        9.8999: 49,
        9.9: 50,
        11: 50,
        12.05: 50,
        12.06: 49,
        14.5: 25,
        16.96: 0,
        17: 0,
    }
    assert {s: plan.vus_at(round(s * SECOND)) for s in seconds} == seconds


def test_a_stage_of_no_length_is_a_jump() -> None:
    plan = RampingVUs([(10, 0), (10, "1s"), (3, "0s"), (3, "1s"), (99, 0)], start=7).plan()
    assert plan.segments == (Segment(SECOND, 10, 10), Segment(SECOND, 3, 3))
    assert plan.vus == 10


def test_a_last_ramp_reaches_its_target_before_it_ends() -> None:
    assert RampingVUs([(50, "10s")]).plan().vus == 50
    assert RampingVUs([(1, "10s")]).plan().vus == 1
    assert RampingVUs([(50, "10s")], start=50).plan().vus == 50


def test_what_does_not_divide_evenly_goes_to_the_last_shard() -> None:
    assert [shard.vus for shard in ConstantVUs(2000, "1s").plan().split(6)] == [333] * 5 + [335]
    assert [shard.iterations for shard in SharedIterations(6, 20).plan().split(6)] == [3] * 5 + [5]
    assert [shard.max_vus for shard in ConstantRate(5, "9s", max_vus=8).plan().split(3)] == [2, 2, 4]


def test_vus_are_dealt_out_in_turn_and_the_rest_to_the_last_shard() -> None:
    shards = ConstantVUs(8, "1s").plan().split(3)
    assert [[shard.vu_number(k) for k in range(shard.vus)] for shard in shards] == [[0, 3], [1, 4], [2, 5, 6, 7]]


@given(plan=tiny_ramps)
@quick
def test_the_vus_at_every_instant_are_the_whole_number_nearest_to_the_line(plan: Plan) -> None:
    assert plan.length_ns is not None
    there = [plan.vus_at(t) for t in range(plan.length_ns)]
    assert there == [(line_at(plan, t) + Fraction(1, 2)).__floor__() for t in range(plan.length_ns)]
    assert max(there) == plan.vus
    assert plan.vus_at(-1) == plan.vus_at(plan.length_ns) == 0


@given(plan=tiny_ramps, of=splits)
@quick
def test_a_shard_has_the_vus_whose_numbers_are_its_own_and_below_the_target(plan: Plan, of: int) -> None:
    assert plan.length_ns is not None
    shards = plan.split(of)
    numbers = [[shard.vu_number(k) for k in range(shard.vus)] for shard in shards]
    assert sorted(sum(numbers, [])) == list(range(plan.vus))
    for shard, own in zip(shards, numbers, strict=True):
        assert own == sorted(own)
        assert all(number % of == shard.index for number in own if number < plan.vus // of * of)
        for t in range(-1, plan.length_ns + 1):
            assert shard.vus_at(t) == sum(number < plan.vus_at(t) for number in own)


@given(plan=tiny_ramps, of=splits, data=st.data())
@quick
def test_next_change_is_the_next_instant_with_another_number_of_vus(plan: Plan, of: int, data: st.DataObject) -> None:
    assert plan.length_ns is not None
    shard = Shard(plan, data.draw(st.integers(0, of - 1)), of)
    for t in range(-3, plan.length_ns + 2):
        changes = (later for later in range(t + 1, plan.length_ns) if shard.vus_at(later) != shard.vus_at(t))
        assert shard.next_change(t) == next(changes, None)


@given(plan=plans, of=splits, data=st.data())
@quick
def test_vus_of_the_shards_add_up_at_every_change_and_at_any_instant(plan: Plan, of: int, data: st.DataObject) -> None:
    shards = plan.split(of)
    instants = data.draw(st.lists(st.integers(-2, (plan.length_ns or DAY_NS) + 2), max_size=20))
    for shard in shards:
        change = shard.next_change(-1)
        while change is not None and len(instants) < 500:
            instants += [change - 1, change]
            following = shard.next_change(change)
            assert following is None or shard.vus_at(following - 1) == shard.vus_at(change) != shard.vus_at(following)
            change = following
    for t in instants:
        assert sum(shard.vus_at(t) for shard in shards) == plan.vus_at(t)
    assert sum(shard.vus for shard in shards) == plan.vus


def test_an_executor_that_sleeps_until_the_next_change_sees_every_step_of_a_ramp() -> None:
    shard = RampingVUs([(4, "4s"), (0, "4s")]).plan().split(2)[1]
    seen, t = [], shard.next_change(0)
    while t is not None:
        seen.append((t / SECOND, shard.vus_at(t)))
        t = shard.next_change(t)
    assert seen == [(1.5, 1), (3.5, 2), (4.500000001, 1), (6.500000001, 0)]


# Iterations.


def test_iteration_plans_have_no_length_unless_one_is_given() -> None:
    plan = IterationsPerVU(20, 500).plan()
    assert (plan.length_ns, plan.iterations_per_vu, plan.shared_iterations) == (None, 500, None)
    assert [plan.vus_at(t) for t in (-1, 0, 10**18)] == [0, 20, 20]
    assert [shard.iterations for shard in plan.split(2)] == [None, None]
    shared = SharedIterations(20, 10_000, max_duration="1m").plan()
    assert (shared.length_ns, shared.iterations_per_vu, shared.shared_iterations) == (60 * SECOND, None, 10_000)
    assert [shared.vus_at(t) for t in (0, 60 * SECOND)] == [20, 0]


def test_plans_of_steady_vus_change_only_at_their_start() -> None:
    for shape in (IterationsPerVU(2, 5), ConstantRate(5, "1s"), ConstantVUs(2, "1s")):
        first, _ = shape.plan().split(2)
        assert [first.next_change(t) for t in (-5, -1, 0, 10)] == [0, 0, None, None]
    # One VU over two shards: the first has none, ever.
    assert IterationsPerVU(1, 5).plan().split(2)[0].next_change(-1) is None


@given(vus=counts, iterations=counts, of=splits)
@quick
def test_shared_iterations_of_the_shards_add_up(vus: int, iterations: int, of: int) -> None:
    shards = SharedIterations(vus, iterations).plan().split(of)
    assert sum(shard.iterations or 0 for shard in shards) == iterations
    assert [shard.iterations_in_all for shard in shards] == [shard.iterations for shard in shards]


def test_a_shard_is_done_after_the_iterations_of_all_its_vus() -> None:
    assert [shard.iterations_in_all for shard in IterationsPerVU(5, 10).plan().split(2)] == [20, 30]
    assert ConstantVUs(5, "1s").plan().split(2)[0].iterations_in_all is None


# Open model.


def test_a_constant_rate_has_exactly_rate_times_duration_arrivals_evenly_spaced() -> None:
    plan = ConstantRate(500, "10s").plan()
    assert plan.arrivals_total == 5000
    assert list(whole(plan).arrivals()) == [n * 2_000_000 for n in range(5000)]
    assert plan.rate_at(0) == plan.rate_at(10 * SECOND - 1) == 500.0
    assert plan.rate_at(-1) == plan.rate_at(10 * SECOND) == 0.0


def test_before_the_start_nothing_is_due_and_after_the_end_everything_was() -> None:
    plan = ConstantRate(500, "10s", max_vus=7).plan()
    assert [plan.arrivals_before(t) for t in (-DAY_NS, -1, 0, 1, 10 * SECOND, DAY_NS)] == [0, 0, 0, 1, 5000, 5000]
    assert [plan.vus_at(t) for t in (-1, 0, 10 * SECOND - 1, 10 * SECOND)] == [0, 7, 7, 0]
    assert next(whole(plan).arrivals(-DAY_NS)) == 0
    assert list(whole(plan).arrivals(10 * SECOND)) == []


@pytest.mark.parametrize(
    ("rate", "duration", "total"), [("2000/h", "1h", 2000), ("1/m", "61s", 2), (3, "1s", 3), (0.3, "10s", 3)]
)
def test_rates_that_no_decimal_holds_give_exact_totals(rate: str | float, duration: str, total: int) -> None:
    assert len(dues(ConstantRate(rate, duration))) == total


def test_gaps_do_not_add_up_over_a_month() -> None:
    plan = ConstantRate("2000/h", "30d").plan()
    assert plan.arrivals_total == 2000 * 24 * 30
    *_, last = whole(plan).arrivals(30 * DAY_NS - 2 * SECOND)
    assert last == 30 * DAY_NS - 1_800_000_000
    third = next(ConstantRate(3, "30d").plan().split(1)[0].arrivals(29 * DAY_NS + 1))
    assert third == 29 * DAY_NS + 333_333_333


def test_a_ramp_from_nothing_starts_at_once_and_follows_the_square_root() -> None:
    arrivals = dues(RampingRate([(10, "10s")]))
    assert len(arrivals) == 50  # the area of a triangle of 10/s by 10 s
    assert arrivals[:5] == [0, 1_414_213_562, 2 * SECOND, 2_449_489_742, 2_828_427_124]
    assert arrivals[-1] < 10 * SECOND


def test_a_ramp_to_nothing_is_the_same_backwards() -> None:
    arrivals = dues(RampingRate([(0, "10s")], start=10))
    assert len(arrivals) == 50
    assert arrivals[0] == 0
    # Number 50 - n is due where a ramp upwards would be n from its end.
    assert [10 * SECOND - t - 1 for t in reversed(arrivals[-3:])] == [
        1_414_213_562,
        2 * SECOND - 1,
        2_449_489_742,
    ]


def test_nothing_arrives_during_a_pause_and_the_next_arrival_waits_for_its_end() -> None:
    arrivals = dues(RampingRate([(10, 0), (10, "1s"), (0, 0), (0, "5s"), (10, 0), (10, "1s"), (0, 0), (0, "1s")]))
    assert len(arrivals) == 20
    assert arrivals[9:11] == [SECOND * 9 // 10, 6 * SECOND]


def test_a_first_arrival_waits_until_the_rate_is_above_nothing() -> None:
    assert dues(RampingRate([(0, "2s"), (1, 0), (1, "2s")])) == [2 * SECOND, 3 * SECOND]


def test_the_slowest_load_still_has_its_first_arrival() -> None:
    assert dues(ConstantRate("1/h", "1s")) == [0]


def test_the_highest_and_longest_load_is_counted_exactly_and_entered_anywhere() -> None:
    plan = RampingRate([(10_000_000, "30d")], start=1).plan()
    shard = plan.split(7)[3]
    middle_ns = 15 * DAY_NS + 12_345
    arrivals = list(islice(shard.arrivals(middle_ns), 5))
    assert middle_ns <= arrivals[0] < middle_ns + 2_000
    assert arrivals == sorted(arrivals)
    assert plan.arrivals_total == 10_000_001 * 30 * 86_400 // 2


@given(plan=open_plans)
@quick
def test_an_arrival_is_due_when_the_integral_is_about_to_exceed_its_number(plan: Plan) -> None:
    assert plan.length_ns is not None
    arrivals = list(whole(plan).arrivals())
    assert len(arrivals) == plan.arrivals_total == integral_at(plan, plan.length_ns).__ceil__()
    for number, due in list(enumerate(arrivals))[:40] + list(enumerate(arrivals))[-40:]:
        assert 0 <= due < plan.length_ns
        assert integral_at(plan, due) <= number < integral_at(plan, due + 1)


@given(plan=open_plans, of=splits)
@quick
def test_the_arrivals_of_the_shards_merge_into_those_of_the_whole(plan: Plan, of: int) -> None:
    shards = plan.split(of)
    arrivals = list(whole(plan).arrivals())
    assert list(heapq.merge(*(shard.arrivals() for shard in shards))) == arrivals
    for shard in shards:
        assert list(shard.arrivals()) == arrivals[shard.index :: of]
        assert shard.arrivals_total == len(arrivals[shard.index :: of])


@given(plan=open_plans, of=splits, data=st.data())
@quick
def test_arrivals_from_an_instant_on_are_the_tail_of_all(plan: Plan, of: int, data: st.DataObject) -> None:
    assert plan.length_ns is not None
    shard = Shard(plan, data.draw(st.integers(0, of - 1)), of)
    arrivals = list(shard.arrivals())
    at_arrivals = st.sampled_from(arrivals or [0]).flatmap(lambda due: st.integers(due - 1, due + 1))
    from_ns = data.draw(st.integers(-1, plan.length_ns + 1) | at_arrivals)
    assert list(shard.arrivals(from_ns)) == [due for due in arrivals if due >= from_ns]
    assert plan.arrivals_before(from_ns) == sum(due < from_ns for due in whole(plan).arrivals())
    to_ns = data.draw(st.integers(-1, plan.length_ns + 1))
    assert shard.arrivals_between(from_ns, to_ns) == sum(from_ns <= due < to_ns for due in arrivals)


@given(plan=open_plans, data=st.data())
@quick
def test_the_rate_at_an_instant_is_that_of_the_line(plan: Plan, data: st.DataObject) -> None:
    assert plan.length_ns is not None
    t = data.draw(st.integers(0, plan.length_ns - 1))
    assert plan.rate_at(t) == float(line_at(plan, t) / RATE_PER_S)


def test_arrivals_are_worked_out_one_by_one() -> None:
    endless = ConstantRate(10_000_000, "30d").plan().split(1)[0].arrivals()
    assert list(islice(endless, 3)) == [0, 100, 200]


@pytest.mark.parametrize(
    ("rate", "max_vus", "expected"),
    [(1, None, 100), (50.5, None, 102), (1000, None, 2000), (100_000, None, 10_000), (1, 3, 3)],
)
def test_the_pool_of_vus_follows_the_peak_rate_unless_given(rate: float, max_vus: int | None, expected: int) -> None:
    assert ConstantRate(rate, "1s", max_vus).plan().vus == expected
    assert RampingRate([(0, "1s")], start=rate, max_vus=max_vus).plan().vus == expected


def test_a_shard_of_arrivals_has_a_vu_even_when_there_are_more_shards_than_vus() -> None:
    assert [shard.max_vus for shard in ConstantRate(9, "1s", max_vus=2).plan().split(3)] == [1, 1, 2]
    assert ConstantRate(9, "1s", policy="drop").plan().policy == "drop"


# Custom shapes.


def test_a_custom_shape_is_sampled_into_steps_when_the_plan_is_made() -> None:
    asked: list[float] = []

    def staircase(elapsed_s: float) -> float:
        asked.append(elapsed_s)
        return 5.0 if elapsed_s < 1 else 7

    shape = CustomVUs(staircase, "1.75s", every="500ms")
    assert asked == []
    plan = shape.plan()
    assert asked == [0.0, 0.5, 1.0, 1.5]
    assert plan.segments == (Segment(SECOND, 5, 5), Segment(750_000_000, 7, 7))
    rate_plan = CustomRate(lambda s: 2.5 * s, "3s", max_vus=7, policy="drop").plan()
    assert [rate_plan.rate_at(s * SECOND) for s in (0, 1, 2)] == [0.0, 2.5, 5.0]
    assert (rate_plan.vus, rate_plan.policy, rate_plan.arrivals_total) == (7, "drop", 8)


def test_numbers_of_other_libraries_are_taken_for_what_they_are() -> None:
    three: Any = Fraction(6, 2)
    half: Any = Fraction(1, 2)
    assert CustomVUs(lambda s: three, "1s").plan().vus == 3
    assert CustomRate(lambda s: half, "1s").plan().rate_at(0) == 0.5


@pytest.mark.parametrize("returned", [-1, 2.5, float("nan"), float("inf"), 1_000_001, True])
def test_a_custom_function_must_return_a_possible_number_of_vus(returned: float) -> None:
    shape = CustomVUs(lambda s: 1 if s < 2 else returned, "5s")
    with pytest.raises(
        BadShape, match="^CustomVUs: function's value at second 2 = .* whole number from 0 to 1,000,000$"
    ):
        shape.plan()


@pytest.mark.parametrize("returned", [-0.5, float("nan"), float("inf"), 10_000_001, True])
def test_a_custom_function_must_return_a_possible_rate(returned: float) -> None:
    shape = CustomRate(lambda s: 1 if s < 2.5 else returned, "5s", every=0.5)
    with pytest.raises(BadShape, match="^CustomRate: function's value at second 2.5 = "):
        shape.plan()


@pytest.mark.parametrize("returned", [None, "5", "5/s", 2j, Decimal(3), [1]])
def test_a_custom_function_must_return_a_number(returned: Any) -> None:
    for shape in (CustomVUs(lambda s: returned, "5s"), CustomRate(lambda s: returned, "5s")):
        with pytest.raises(BadShape, match="function's value at second 0 = .* is not a number$"):
            shape.plan()


def test_a_custom_function_that_fails_is_named_with_its_second_and_reason() -> None:
    def broken(elapsed_s: float) -> float:
        if elapsed_s == 3:
            raise ValueError("no data")
        return 1

    with pytest.raises(BadShape, match=r'^CustomVUs: function raised ValueError\("no data"\) at second 3$') as raised:
        CustomVUs(broken, "5s").plan()
    assert isinstance(raised.value.__cause__, ValueError)


# What is refused.


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ConstantVUs(0, "1s"),
            "ConstantVUs: vus = 0 means that nothing would run: write a whole number from 1 to",
        ),
        (lambda: ConstantVUs(True, "1s"), "ConstantVUs: vus = True is not possible"),
        (lambda: ConstantVUs(1.5, "1s"), "ConstantVUs: vus = 1.5 is not possible"),  # type: ignore[arg-type]
        (
            lambda: ConstantVUs(1_000_001, "1s"),
            "vus = 1000001 is not possible: write a whole number from 1 to 1,000,000",
        ),
        (lambda: ConstantVUs(1, "soon"), 'ConstantVUs: duration = "soon" is not a duration: write'),
        (lambda: ConstantVUs(1, "31d"), 'duration = "31d" is too long'),
        (lambda: ConstantVUs(1, 0), "ConstantVUs: duration = 0 means that nothing would run: write a duration above 0"),
        (lambda: RampingVUs([]), "RampingVUs: stages must be a list of 1 to 1,000 pairs of (VUs, duration)"),
        (lambda: RampingVUs([(1, 1)] * 1001), "stages must be a list of 1 to 1,000"),
        (lambda: RampingVUs(5), "stages must be a list"),  # type: ignore[arg-type]
        (lambda: RampingVUs([(5, "1s"), (5,)]), "stages[1] = (5,) is not a pair of (VUs, duration)"),  # type: ignore[list-item]
        (lambda: RampingVUs(["5s"]), 'stages[0] = "5s" is not a pair'),  # type: ignore[list-item]
        (
            lambda: RampingVUs([(-1, "1s")]),
            "RampingVUs: stages[0] target = -1 is not possible: write a whole number from 0",
        ),
        (lambda: RampingVUs([(1, "1s"), (1, "x")]), 'stages[1] duration = "x" is not a duration'),
        (lambda: RampingVUs([(1, "1s")], start=-1), "start = -1 is not possible"),
        (lambda: RampingVUs([(1, "20d"), (1, "11d")]), "the stages last 31d together: 30 days is the most"),
        (lambda: RampingVUs([(0, "1s")]), "nothing would run: not one VU is wanted"),
        (lambda: RampingVUs([(9, 0)]), "nothing would run: the load has no length"),
        (lambda: ConstantRate("fast", "1s"), 'ConstantRate: rate = "fast" is not a rate'),
        (lambda: ConstantRate(-5, "1s"), "ConstantRate: rate = -5 is negative"),
        (lambda: ConstantRate(0, "1s"), "nothing would run: the rate is 0 all the time"),
        (lambda: ConstantRate(1, "0s"), 'duration = "0s" means that nothing would run'),
        (lambda: ConstantRate(1, "1s", max_vus=0), "ConstantRate: max_vus = 0 means that nothing would run"),
        (lambda: ConstantRate(1, "1s", policy="wait"), 'policy = "wait" is not known: write "queue" or "drop"'),  # type: ignore[arg-type]
        (lambda: RampingRate([("x", "1s")]), 'RampingRate: stages[0] target = "x" is not a rate'),
        (lambda: RampingRate([(1, "1s"), 1]), "stages[1] = 1 is not a pair of (rate, duration)"),  # type: ignore[list-item]
        (lambda: RampingRate([(5, "1s")], start="x"), 'start = "x" is not a rate'),
        (lambda: RampingRate([(0, "1s")]), "nothing would run: the rate is 0"),
        (lambda: RampingRate([(5, 0)]), "nothing would run: the load has no length"),
        (lambda: IterationsPerVU(0, 1), "IterationsPerVU: vus = 0 means that nothing would run"),
        (lambda: IterationsPerVU(1, 0), "IterationsPerVU: iterations = 0 means that nothing would run"),
        (lambda: IterationsPerVU(1, 1, max_duration=0), "max_duration = 0 means that nothing would run"),
        (lambda: SharedIterations(1_000_001, 1), "SharedIterations: vus = 1000001 is not possible"),
        (lambda: SharedIterations(1, 10**12 + 1), "write a whole number from 1 to 1,000,000,000,000"),
        (lambda: SharedIterations(1, 1, "x"), 'SharedIterations: max_duration = "x" is not a duration'),
        (lambda: CustomVUs(5, "1s"), "CustomVUs: function = 5 cannot be called"),  # type: ignore[arg-type]
        (lambda: CustomVUs(abs, "x"), 'duration = "x" is not a duration'),
        (lambda: CustomVUs(abs, 0), "CustomVUs: duration = 0 means that nothing would run"),
        (lambda: CustomVUs(abs, "1s", every="x"), 'every = "x" is not a duration'),
        (lambda: CustomVUs(abs, "1s", every=0), "every = 0 makes more than 100,000 steps: write at least 10us"),
        (lambda: CustomRate(abs, "30d"), 'every = "1s" makes more than 100,000 steps: write at least 25.92s'),
        (lambda: CustomRate(abs, "1s", max_vus=-1), "CustomRate: max_vus = -1 is not possible"),
        (lambda: CustomRate(abs, "1s", policy="x"), 'policy = "x" is not known'),  # type: ignore[arg-type]
        (lambda: CustomVUs(lambda s: 0, "1s").plan(), "nothing would run: not one VU"),
        (lambda: CustomRate(lambda s: 0, "1s").plan(), "nothing would run: the rate is 0"),
        (lambda: ConstantVUs(1, "1s").plan().split(0), "a plan cannot be split into 0 shards"),
        (lambda: Shard(ConstantVUs(1, "1s").plan(), 2, 2), "shard 2 of 2 does not exist"),
        (lambda: Shard(ConstantVUs(1, "1s").plan(), -1, 2), "shard -1 of 2 does not exist"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_field_and_the_reason(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BadShape) as raised:
        make()
    assert sentence in str(raised.value)
    assert isinstance(raised.value, Invalid)


def test_the_largest_values_are_accepted() -> None:
    assert ConstantVUs(1_000_000, "30d").plan().vus == 1_000_000
    assert SharedIterations(1, 10**12).plan().shared_iterations == 10**12
    assert len(RampingVUs([(1, 1), (0, 1)] * 500).plan().segments) == 1000
    assert len(CustomVUs(lambda s: 1 + int(s) % 2, 100_000).plan().segments) == 100_000


def test_stages_are_safe_from_later_changes_to_the_list() -> None:
    stages = [(5, "1s"), (5, "1s")]
    shape = RampingVUs(stages)
    stages.clear()
    assert shape.plan().length_ns == 2 * SECOND
    assert shape == RampingVUs([[5, "1s"], [5, "1s"]])  # type: ignore[list-item]
    assert hash(shape)


# Splitting, sending, showing.


@given(plan=plans, cores=st.integers(0, 40))
@quick
def test_no_shard_is_left_without_work(plan: Plan, cores: int) -> None:
    of = plan.shards_for(cores)
    assert 1 <= of <= max(cores, 1)
    for shard in plan.split(of):
        assert shard.vus >= 1
        assert shard.iterations is None or shard.iterations >= 1
        assert plan.model == "closed" or shard.arrivals_total >= 1
        first = shard.next_change(-1)
        assert first is not None and (shard.vus_at(0) or shard.vus_at(first))


@pytest.mark.parametrize(
    ("shape", "shards"),
    [
        (ConstantVUs(50, "1s"), 8),
        (ConstantVUs(3, "1s"), 3),
        (SharedIterations(50, 5), 5),
        (IterationsPerVU(50, 1), 8),
        (ConstantRate(2, "1s"), 2),
        (ConstantRate(100, "1s", max_vus=4), 4),
    ],
)
def test_a_plan_makes_as_many_shards_as_have_work_and_no_more_than_cores(shape: LoadShape, shards: int) -> None:
    assert shape.plan().shards_for(8) == shards


@given(plan=plans, of=splits)
@quick
def test_plans_and_shards_survive_the_wire(plan: Plan, of: int) -> None:
    assert plan.starts_ns  # what was worked out already must not travel
    shard = plan.split(of)[-1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(shard), type=Shard)
    assert again == shard
    assert list(islice(again.arrivals(), 20)) == list(islice(shard.arrivals(), 20))


def test_the_largest_rate_fits_the_wire() -> None:
    plan = ConstantRate(10_000_000, "30d").plan()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan


@pytest.mark.parametrize("segment", [[0, 1, 1], [1, -1, 1], [1, 1, -1]])
def test_an_impossible_segment_is_refused_from_the_wire(segment: list[int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(segment), type=Segment)


def test_a_preview_shows_the_corners_and_a_jump_as_two_values() -> None:
    preview = RampingRate([(10, "2s"), (10, "1s"), (4, 0), (0, "2s")]).plan().preview()
    assert [(t // SECOND, value) for t, value in preview] == [(0, 0.0), (2, 10.0), (3, 10.0), (3, 4.0), (5, 0.0)]
    assert ConstantVUs(5, "1s").plan().preview() == [(0, 5.0), (SECOND, 5.0)]
    assert IterationsPerVU(5, 1).plan().preview() == [(0, 5.0)]


def test_a_long_preview_is_thinned_out_and_keeps_both_ends() -> None:
    plan = CustomVUs(lambda s: 1 + int(s), "1000s").plan()
    preview = plan.preview(points=11)
    assert len(preview) == 11
    assert (preview[0], preview[-1]) == ((0, 1.0), (1000 * SECOND, 1000.0))
    assert preview == sorted(preview)
    assert len(plan.preview(points=0)) == 2


class Tide:
    def __call__(self, elapsed_s: float) -> float:
        return 1


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        (ConstantVUs(50, "30s"), "50 VUs for 30s"),
        (ConstantVUs(vus=1, duration=90), "1 VU for 1m30s"),
        (RampingVUs(stages=[(50, "10s"), (0, "5s")]), "ramp of VUs: 0 → 50 in 10s → 0 in 5s"),
        (RampingVUs([(5, "1s"), (5, "1m"), (20_000, 0), (1, "2s")]), "ramp of VUs: 0 → 5 in 1s, held for 1m → 20,000 "
                                                                     "at once → 1 in 2s"),
        (RampingVUs([(n % 2, "1s") for n in range(20)], start=2), "ramp of VUs: 2 → 0 in 1s → 1 in 1s → 0 in 1s → 1 "
                                                                  "in 1s → 0 in 1s → 1 in 1s → 0 in 1s → … 12 more … "
                                                                  "→ 1 in 1s"),
        (ConstantRate(500, "10s", max_vus=1000), "500/s for 10s, at most 1000 VUs, late arrivals queue"),
        (ConstantRate("2000/h", "1h", policy="drop"), "2000/h for 1h, at most 100 VUs, late arrivals are dropped"),
        (RampingRate([("30/m", "10s"), (9, 0)], start=2), "ramp of the rate: 2/s → 0.5/s in 10s → 9/s at once, at "
                                                          "most 100 VUs, late arrivals queue"),
        (IterationsPerVU(20, 500), "20 VUs, 500 iterations each"),
        (IterationsPerVU(1, 1, "10m"), "1 VU, 1 iteration each, for at most 10m"),
        (SharedIterations(20, 10_000), "10,000 iterations shared by 20 VUs"),
        (SharedIterations(20, 9_999), "9999 iterations shared by 20 VUs"),
        (SharedIterations(20, 10, "1m"), "10 iterations shared by 20 VUs, for at most 1m"),
        (CustomVUs(abs, "1m"), "VUs by abs for 1m, every 1s"),
        (CustomRate(Tide(), "1m", every=5), "rate by Tide for 1m, every 5s, late arrivals queue"),
        (CustomRate(Tide(), "1m", max_vus=9, policy="drop"), "rate by Tide for 1m, every 1s, at most 9 VUs, late "
                                                             "arrivals are dropped"),
    ],
)  # fmt: skip
def test_a_shape_describes_itself_in_one_line(shape: LoadShape, line: str) -> None:
    assert shape.describe() == line
