"""Noise is called noise, a difference is called one with its size, and intervals are what textbooks say."""

import random
from statistics import NormalDist, stdev

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.stats import comparison
from talka.stats.comparison import (
    BLOCKS_WANTED,
    ENDS_LATE,
    FEWEST_BLOCKS,
    LEAST_MS,
    LEAST_SHARE,
    Estimate,
    Noise,
    TimeSlice,
    Unit,
    Verdict,
    Weighed,
    answer_of,
    blocks_of,
    difference,
    error_of_mean,
    mean_of,
    noise_of,
    parts_of,
    percentile_of,
    quantile,
    rate_of,
    share_of,
    times_as_long_for,
)
from talka.stats.histogram import Histogram

CALM = Noise(
    blocks=1_000_001,
    middle=1.0,
    tail=1.0,
    failures=1.0,
    mean_error=0.0,
    rate_error=0.0,
    middle_drift=0.0,
    tail_drift=0.0,
    rate_drift=0.0,
)
"""So many blocks that Student's t is the normal distribution."""


# Given: runs.


def noise(**changes: float) -> Noise:
    return msgspec.structs.replace(CALM, **changes)


def a_run(
    chance: random.Random, *, level_ms: float, wander: float = 0.0, windows: int = 50, per_window: int = 20
) -> tuple[Noise | None, Histogram]:
    """A run whose level wanders slowly, so that neighbouring windows are alike."""
    times, slices, drift = Histogram(), [], 0.0
    for _ in range(windows):
        drift = 0.9 * drift + chance.gauss(0, wander)
        found = sorted(
            max(1, round(1000 * (level_ms * (1 + drift) + chance.expovariate(2)))) for _ in range(per_window)
        )
        for value in found:
            times.record(value)
        slices.append(TimeSlice(0.1, per_window, 0, found[per_window // 2] / 1000, found[-1] / 1000))
    return noise_of(slices, times), times


def verdicts(one: tuple[Noise | None, Histogram], other: tuple[Noise | None, Histogram]) -> list[Verdict]:
    found = []
    for percent in (50, 90, 95, 99):
        estimates = []
        for known, times in (one, other):
            assert known is not None
            estimate = percentile_of(times, percent, known, lag_ms=0.0, rows=4)
            assert estimate is not None
            estimates.append(estimate)
        found.append(difference(estimates[0], estimates[1], "time").verdict)
    return found


def slices_of(*requests: int, failed: int = 0) -> list[TimeSlice]:
    return [TimeSlice(0.1, count, failed, 5.0, 9.0) for count in requests]


def uniform(count: int = 1000) -> Histogram:
    """1 ms to 2 ms, each value as often."""
    times = Histogram()
    for number in range(count):
        times.record(1000 + 1000 * number // count)
    return times


# Noise and differences.


@pytest.mark.parametrize("wander", [0.0, 0.01, 0.05])
def test_at_most_two_of_twenty_pairs_of_equal_runs_are_called_different(wander: float) -> None:
    chance = random.Random(7)
    pairs = [[a_run(chance, level_ms=20, wander=wander) for _ in "AB"] for _ in range(20)]
    assert sum(not {"same", "cannot tell"}.issuperset(verdicts(*pair)) for pair in pairs) <= 2


def test_requests_taken_as_independent_would_call_noise_a_difference() -> None:
    chance = random.Random(7)
    pairs = [[a_run(chance, level_ms=20, wander=0.05) for _ in "AB"] for _ in range(20)]
    naive = [[(CALM, times) for _, times in pair] for pair in pairs]
    assert sum(not {"same", "cannot tell"}.issuperset(verdicts(*pair)) for pair in naive) > 10


def test_fifth_more_time_is_called_slower_and_a_fifth_less_faster() -> None:
    chance = random.Random(7)
    fast, slow = a_run(chance, level_ms=50, wander=0.005), a_run(chance, level_ms=60, wander=0.005)
    assert set(verdicts(fast, slow)) == {"slower"}
    assert set(verdicts(slow, fast)) == {"faster"}


def test_size_of_a_difference_lies_in_its_interval() -> None:
    found = difference(Estimate(50, 49, 51), Estimate(60, 59, 62), "time")
    assert (found.absolute, found.relative, found.verdict) == (10, 0.2, "slower")
    # Newcombe: the ends nearest to each other, and those farthest apart.
    assert found.low == pytest.approx(10 - 2**0.5) and found.high == pytest.approx(10 + 5**0.5)


@pytest.mark.parametrize(
    ("unit", "rising", "falling"),
    [
        ("time", "slower", "faster"),
        ("rate", "higher rate", "lower rate"),
        ("share", "more failures", "fewer failures"),
    ],
)
def test_every_unit_has_its_words(unit: Unit, rising: Verdict, falling: Verdict) -> None:
    few, many = Estimate(0.1, 0.09, 0.11), Estimate(0.9, 0.8, 0.95)
    assert difference(few, many, unit).verdict == rising
    assert difference(many, few, unit).verdict == falling
    exact = Estimate(0.1, 0.1, 0.1)
    assert difference(exact, exact, unit).verdict == "same"
    assert difference(exact, exact, unit).at_least == 0


def test_rate_that_fell_by_41_percent_within_noise_is_not_called_the_same() -> None:
    found = difference(Estimate(100, 30, 170), Estimate(59, 10, 120), "rate")
    assert found.relative == pytest.approx(-0.41)
    assert (found.verdict, answer_of(found.verdict)) == ("cannot tell", "cannot tell")
    assert found.need == "length" and found.times_as_long is not None and found.times_as_long > 1


def test_same_is_said_only_where_the_interval_lies_within_what_counts_as_same() -> None:
    inside, across = Estimate(101, 98, 104), Estimate(101, 95, 107)
    exact = Estimate(100, 100, 100)
    assert difference(exact, inside, "rate").verdict == "same"
    assert difference(exact, across, "rate").verdict == "cannot tell"
    assert difference(exact, across, "rate", within=0.1).verdict == "same"
    assert difference(exact, inside, "rate", within=0.01).verdict == "cannot tell"
    found = difference(exact, Estimate(115, 113, 117), "rate", within=0.2)
    assert found.verdict == "same" and found.is_beyond_noise, "it is known to differ, by what was called none"


def test_difference_of_times_within_a_tenth_of_a_millisecond_is_none() -> None:
    assert difference(Estimate(0.5, 0.48, 0.52), Estimate(0.54, 0.52, 0.56), "time").verdict == "same"
    assert difference(Estimate(0.5, 0.48, 0.52), Estimate(0.7, 0.68, 0.72), "time").verdict == "slower"


def test_failures_that_surely_rose_are_never_the_same() -> None:
    found = difference(Estimate(0, 0, 0.0001), Estimate(0.005, 0.0048, 0.0052), "share")
    assert found.verdict == "more failures", "half a point is within a point, and still no chance"
    assert difference(Estimate(0, 0, 0.001), Estimate(0.0005, 0, 0.002), "share").verdict == "same"
    assert difference(Estimate(0, 0, 0.02), Estimate(0, 0, 0.02), "share").verdict == "cannot tell"


def test_difference_within_its_interval_cannot_be_told_and_longer_runs_would_tell() -> None:
    found = difference(Estimate(50, 40, 60), Estimate(60, 50, 70), "time")
    assert found.verdict == "cannot tell" and not found.is_beyond_noise
    # hypot(10, 10) shrinks below 10 with twice the length and a little.
    assert (found.need, found.times_as_long) == ("length", 3)


@pytest.mark.parametrize(("half", "times"), [(6, 1.5), (10, 4), (50, 100)])
def test_so_many_times_as_long_runs_would_tell_that_it_is_the_same(half: float, times: float) -> None:
    found = difference(Estimate(100, 100, 100), Estimate(100, 100 - half, 100 + half), "rate")
    assert (found.verdict, found.times_as_long) == ("cannot tell", times)
    assert times / 1.5 <= (half / 5) ** 2 <= times


def test_no_length_of_a_run_tells_what_runs_differ_by_anyway() -> None:
    lucky = Estimate(100, 99, 101, luck=6), Estimate(108, 107, 109, luck=6)
    found = difference(*lucky, "rate")
    assert (found.verdict, found.need, found.times_as_long) == ("cannot tell", "repeats", None)


def test_no_length_of_a_run_tells_what_the_generator_was_late() -> None:
    found = difference(Estimate(100, 99, 101), Estimate(120, 119, 121, less=25), "time")
    assert (found.verdict, found.need, found.times_as_long) == ("cannot tell", "no lag", None)


def test_difference_reaches_no_further_than_is_possible() -> None:
    rate = difference(Estimate(100, 20, 300), Estimate(60, 10, 110), "rate")
    assert rate.low == -100, "beside 100/s nothing is below -100/s"
    failed = difference(Estimate(0.5, 0.1, 0.9), Estimate(0.8, 0.3, 1.0), "share")
    assert failed.high == 0.5 and failed.low >= -0.5
    assert Estimate(5, 4, 6, luck=30, less=3).down == 5, "no time is below nothing"


def test_what_is_left_of_a_difference_after_everything_else_is_at_least() -> None:
    found = difference(Estimate(100, 97, 103, luck=4), Estimate(130, 127, 133, luck=4, less=2), "time")
    assert found.verdict == "slower"
    assert found.at_least == pytest.approx(30 - (7**2 + 5**2) ** 0.5)
    back = difference(Estimate(130, 127, 133), Estimate(100, 97, 103), "time")
    assert back.verdict == "faster" and back.at_least == pytest.approx(-(30 - 18**0.5))


def test_percentile_with_too_few_values_needs_ten_above_it() -> None:
    assert times_as_long_for(50, 99) == pytest.approx(20)
    assert times_as_long_for(50_000, 99) == 1
    assert times_as_long_for(0, 99) is None


@pytest.mark.parametrize(
    ("a", "b", "unit"),
    [
        (1.0, 1.0 + LEAST_MS * 0.9, "time"),
        (100.0, 101.9, "time"),
        (100.0, 98.1, "rate"),
        (0.01, 0.01 + LEAST_SHARE * 0.9, "share"),
    ],
)
def test_difference_too_small_to_concern_anybody_is_none(a: float, b: float, unit: Unit) -> None:
    assert difference(Estimate(a, a, a), Estimate(b, b, b), unit).verdict == "same"
    beyond = a + 1.2 * (b - a)
    assert difference(Estimate(a, a, a), Estimate(beyond, beyond, beyond), unit).is_beyond_noise
    assert not difference(Estimate(a, a, a), Estimate(b, b, b), unit).is_beyond_noise


def test_difference_from_nothing_has_no_share() -> None:
    found = difference(Estimate(0, 0, 0.01), Estimate(0.5, 0.4, 0.6), "share")
    assert found.relative is None and found.verdict == "more failures"


estimates = st.tuples(*[st.floats(0, 1000)] * 3).map(lambda parts: Estimate(sorted(parts)[1], min(parts), max(parts)))


@given(estimates, estimates)
@settings(deadline=None, derandomize=True)
def test_b_from_a_is_the_mirror_of_a_from_b(a: Estimate, b: Estimate) -> None:
    there, back = difference(a, b, "time"), difference(b, a, "time")
    # Each may reach down to nothing, and no further.
    assert there.low == pytest.approx(max(-back.high, -a.value)) and back.low == pytest.approx(
        max(-there.high, -b.value)
    )
    assert there.absolute == -back.absolute
    assert there.low <= there.absolute <= there.high


# Blocks.


def test_five_seconds_of_windows_make_the_blocks_wanted() -> None:
    blocks = blocks_of(slices_of(*[20] * 50))
    assert len(blocks) == BLOCKS_WANTED and {len(block) for block in blocks} == {2}


def test_wide_slices_stand_alone() -> None:
    wide = [TimeSlice(10.0, 2000, 0, 5.0, 9.0)] * 3
    blocks = blocks_of([*wide, *slices_of(*[20] * 600)])
    assert [len(block) for block in blocks[:3]] == [1, 1, 1]
    assert {len(block) for block in blocks[3:-1]} == {36}


@given(st.lists(st.sampled_from([0.1, 10.0, 60.0]), max_size=300))
@settings(deadline=None, derandomize=True)
def test_blocks_hold_every_slice_once_and_in_order(widths: list[float]) -> None:
    slices = [TimeSlice(width, number, 0, None, None) for number, width in enumerate(widths)]
    blocks = blocks_of(slices)
    assert [part for block in blocks for part in block] == slices and all(blocks)


def test_run_too_short_to_know_its_noise_has_none() -> None:
    assert noise_of(slices_of(*[20] * (FEWEST_BLOCKS - 1)), uniform()) is None
    assert noise_of(slices_of(*[20] * FEWEST_BLOCKS), uniform()) is not None


def test_slices_without_width_are_passed_over() -> None:
    assert noise_of([TimeSlice(0.0, 20, 0, 5.0, 9.0)] * 50, uniform()) is None


def test_run_that_never_wavers_is_worth_all_its_requests() -> None:
    found = noise_of(slices_of(*[20] * 50), uniform())
    assert found == noise(blocks=25, rate_error=pytest.approx(0, abs=1e-12), rate_drift=pytest.approx(0, abs=1e-12))


def test_run_that_wanders_is_worth_fewer_requests_than_it_made() -> None:
    still, _ = a_run(random.Random(7), level_ms=20)
    wandering, _ = a_run(random.Random(7), level_ms=20, wander=0.05)
    assert still is not None and wandering is not None
    assert still.middle < 3 and wandering.middle > 20


def test_run_without_answers_has_no_scatter_of_times() -> None:
    silent = [TimeSlice(0.1, 0, 0, None, None)] * 50
    assert noise_of(silent, Histogram()) == noise(blocks=25)


def test_windows_with_times_beside_steps_without_any_say_nothing() -> None:
    found = noise_of(drifting(1, 2, 1, 2, 1), Histogram())
    assert found is not None and (found.middle, found.tail) == (1, 1)


def test_times_of_nothing_at_all_do_not_divide_by_zero() -> None:
    times = Histogram()
    times.record(0, 1000)
    swinging = [TimeSlice(0.1, 20, 0, float(number // 2 % 2), 1.0) for number in range(50)]
    found = noise_of(swinging, times)
    assert found is not None and found.middle > 1


def test_answer_in_a_slice_without_requests_counts() -> None:
    slices = [TimeSlice(0.1, 0, 0, 1.0 + number // 10, 2.0) for number in range(50)]
    found = noise_of(slices, uniform())
    assert found is not None and found.middle > 1


def test_failures_that_come_together_are_worth_less_than_scattered_ones() -> None:
    together = [TimeSlice(0.1, 20, 20 if number < 4 else 0, 5.0, 9.0) for number in range(50)]
    scattered = [TimeSlice(0.1, 20, 2 if number % 5 else 0, 5.0, 9.0) for number in range(50)]
    burst, rain = noise_of(together, uniform()), noise_of(scattered, uniform())
    assert burst is not None and rain is not None
    assert burst.failures > 20 and rain.failures < 2


def test_when_all_failed_there_is_nothing_to_scatter() -> None:
    found = noise_of([TimeSlice(0.1, 20, 20, 5.0, 9.0)] * 50, uniform())
    assert found is not None and found.failures == 1.0


def test_rate_that_swings_is_less_certain() -> None:
    swinging = noise_of(slices_of(*[10, 10, 30, 30] * 13), uniform())
    assert swinging is not None and swinging.rate_error == pytest.approx(0.5 / 25**0.5, rel=0.05)


def test_end_of_a_run_says_nothing_about_its_rate() -> None:
    found = noise_of(slices_of(*[20] * 50, 1), uniform())
    assert found is not None and found.rate_error == pytest.approx(0)


def drifting(*levels: float) -> list[TimeSlice]:
    """A run whose parts, of ten windows each, were at these levels."""
    return [TimeSlice(0.1, round(20 * level), 0, 5 * level, 9 * level) for level in levels for _ in range(10)]


def test_run_whose_parts_differ_may_have_differed_as_a_whole() -> None:
    found = noise_of(drifting(1, 1, 2, 2, 1), uniform())
    assert found is not None
    drift = stdev([1, 1, 2, 2, 1]) / 1.4
    assert (found.middle_drift, found.tail_drift) == pytest.approx((drift, drift))
    # The last block is left out, so parts begin a little earlier.
    assert found.rate_drift == pytest.approx(drift, rel=0.2)


def test_run_that_answered_in_one_part_only_shows_no_drift() -> None:
    silence = [TimeSlice(0.1, 20, 20, None, None)] * 40
    found = noise_of([*silence, *drifting(1)], uniform())
    assert found is not None and (found.middle_drift, found.tail_drift) == (0, 0)


def test_parts_of_a_run_weigh_all_its_blocks() -> None:
    blocks = [Weighed(float(number), 1 + number % 3) for number in range(25)]
    parts = parts_of(blocks)
    assert len(parts) == 5 and sum(part.weight for part in parts) == sum(block.weight for block in blocks)
    assert parts[0] == Weighed((0 * 1 + 1 * 2 + 2 * 3 + 3 * 1 + 4 * 2) / 9, 9)


def test_median_that_jumps_between_steps_drifts_no_more_than_the_tail() -> None:
    jumping = [TimeSlice(0.1, 20, 0, 5.0 if number // 10 % 2 else 50.0, 60.0) for number in range(50)]
    found = noise_of(jumping, uniform())
    assert found is not None and (found.middle_drift, found.tail_drift, found.mean_error) == (0, 0, 0)


def test_drift_widens_every_interval() -> None:
    times = Histogram()
    times.record(100_000, 10_000)

    def reach(percent: float, **drifts: float) -> float:
        found = percentile_of(times, percent, noise(**drifts), 0.0, 1)
        assert found is not None
        return found.high / found.value - 1

    assert reach(50, middle_drift=0.3) == pytest.approx(1.96 * 0.3, rel=0.01)
    assert reach(99, tail_drift=0.3) == pytest.approx(1.96 * 0.3, rel=0.01)
    assert reach(50, tail_drift=0.3) == reach(50) and reach(99, middle_drift=0.3) == reach(99)
    assert reach(50) < reach(90, middle_drift=0.3) < reach(50, middle_drift=0.3)
    mean = mean_of(times, noise(middle_drift=0.3, tail_drift=0.5), 0.0, 1)
    assert mean is not None and mean.high / mean.value - 1 == pytest.approx(1.96 * 0.4, rel=0.01)
    assert rate_of(100, noise(rate_drift=0.3), 0.0, 1).high == pytest.approx(100 + 1.96 * 30, rel=0.01)


def test_design_effect_goes_from_the_median_to_the_tail() -> None:
    found = noise(middle=4.0, tail=100.0)
    assert found.at(50) == pytest.approx(4) and found.at(99) == pytest.approx(100)
    assert 4 < found.at(90) < found.at(95) < 100
    assert found.at(10) == pytest.approx(4) and found.at(99.9) == pytest.approx(100)


def alike(*values: float) -> list[Weighed]:
    return [Weighed(value, 1.0) for value in values]


def test_error_of_a_mean_is_the_textbooks_without_correlation() -> None:
    assert error_of_mean(alike(1, 3, 1, 3)) == pytest.approx((4 / 3 / 4) ** 0.5)
    assert error_of_mean([Weighed(2, 1), Weighed(2, 2), Weighed(2, 3)]) == 0


def test_neighbours_that_are_alike_count_for_less() -> None:
    mixed, ordered = alike(*[1, 3] * 10), alike(*[1] * 10, *[3] * 10)
    # At the bound of correlation, nine times the variance.
    assert error_of_mean(ordered) == pytest.approx(3 * error_of_mean(mixed))


# Estimates.


@pytest.mark.parametrize(
    ("rows", "blocks", "reach"), [(1, 11, 2.228), (1, 25, 2.064), (1, 1_000_001, 1.960), (10, 1_000_001, 2.807)]
)
def test_reach_of_an_interval_is_students(rows: int, blocks: int, reach: float) -> None:
    assert quantile(rows, blocks) == pytest.approx(reach, abs=0.001)


def test_many_rows_hold_together_only_if_each_is_wider() -> None:
    assert quantile(1, 25) < quantile(14, 25) < quantile(1000, 25)


def test_percentile_reaches_over_the_ranks_that_are_likely() -> None:
    found = percentile_of(uniform(), 50, CALM, lag_ms=0.0, rows=1)
    assert found is not None
    half = 1.96 * (0.25 / 1000) ** 0.5
    assert (found.low, found.value, found.high) == pytest.approx((1.5 - half, 1.5, 1.5 + half), abs=0.002)


def test_tail_reaches_no_further_than_what_was_measured() -> None:
    found = percentile_of(uniform(100), 99, CALM, lag_ms=0.0, rows=1000)
    assert found is not None and found.high < 2.3 and found.low > 1.0


def test_percentile_needs_a_value_above_it() -> None:
    assert percentile_of(uniform(98), 99, CALM, lag_ms=0.0, rows=1) is None
    assert percentile_of(uniform(101), 99, CALM, lag_ms=0.0, rows=1) is not None
    assert percentile_of(Histogram(), 50, CALM, lag_ms=0.0, rows=1) is None


def test_lag_of_the_generator_lowers_only_the_low_end() -> None:
    for estimate in (
        lambda lag_ms: percentile_of(uniform(), 50, CALM, lag_ms, 1),
        lambda lag_ms: mean_of(uniform(), CALM, lag_ms, 1),
    ):
        prompt, late, later = estimate(0.0), estimate(0.2), estimate(50.0)
        assert prompt is not None and late is not None and later is not None
        assert (late.low, late.high) == (prompt.low, prompt.high), "it says nothing about chance"
        assert late.up == prompt.up and late.down == pytest.approx(prompt.down + ENDS_LATE * 0.2)
        assert later.down == later.value


def test_mean_is_the_textbooks() -> None:
    found = mean_of(uniform(), CALM, lag_ms=0.0, rows=1)
    assert found is not None and found.value == pytest.approx(1.4995)
    assert found.high - found.value == pytest.approx(1.96 * 0.2887 / 1000**0.5, rel=0.01)


def test_mean_of_a_run_that_wanders_is_less_certain() -> None:
    times = Histogram()
    times.record(100_000, 10_000)
    found = mean_of(times, noise(mean_error=0.3), 0.0, 1)
    assert found is not None and found.high / found.value - 1 == pytest.approx(1.96 * 0.3, rel=0.01)
    wandering, _ = a_run(random.Random(7), level_ms=20, wander=0.05)
    still, _ = a_run(random.Random(7), level_ms=20)
    assert still is not None and wandering is not None and wandering.mean_error > 5 * still.mean_error > 0


def test_mean_needs_two_values() -> None:
    assert mean_of(uniform(1), CALM, lag_ms=0.0, rows=1) is None


def test_runs_of_one_thing_differ_by_more_than_each_shows() -> None:
    times = Histogram()
    times.record(100_000, 10_000)
    middle, tail = (percentile_of(times, percent, CALM, lag_ms=0.0, rows=1) for percent in (50, 99))
    assert middle is not None and tail is not None
    assert middle.up / middle.value == pytest.approx(1.96 * comparison.RUN_SPREAD, rel=0.01)
    assert tail.up / tail.value == pytest.approx(1.96 * comparison.RUN_SPREAD_TAIL, rel=0.01)
    assert middle.high == pytest.approx(middle.value), "which no length of a run shows"


def test_share_is_wilsons() -> None:
    found = share_of(10, 100, CALM, rows=1)
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((0.0552, 0.1, 0.1744), abs=0.0001)


def test_share_of_none_and_of_all_stays_a_share() -> None:
    none, every = share_of(0, 100, CALM, rows=1), share_of(100, 100, CALM, rows=1)
    assert none is not None and every is not None
    assert (none.low, every.high) == (0, 1) and 0 < none.high < 0.05 and 0.95 < every.low < 1


def test_share_of_nothing_is_not_known() -> None:
    assert share_of(0, 0, CALM, rows=1) is None


def test_failures_that_came_together_make_a_share_less_certain() -> None:
    burst = noise(failures=10.0)
    few, calm = share_of(100, 1000, burst, rows=1), share_of(100, 1000, CALM, rows=1)
    assert few is not None and calm is not None and few.high > calm.high and few.low < calm.low
    assert few.high == pytest.approx(0.1744, abs=0.0001)


def test_rate_reaches_as_far_as_blocks_and_runs_differ() -> None:
    found = rate_of(100, noise(rate_error=0.03), lag_share=0.0, rows=1)
    chance = NormalDist().inv_cdf(0.975) * 100 * 0.03
    assert (found.low, found.high) == pytest.approx((100 - chance, 100 + chance))
    reach = NormalDist().inv_cdf(0.975) * 100 * (0.03**2 + comparison.RUN_SPREAD**2) ** 0.5
    assert (found.down, found.up) == pytest.approx((reach, reach))


def test_generator_that_was_late_may_have_lowered_the_rate() -> None:
    prompt, late = rate_of(100, CALM, lag_share=0.0, rows=1), rate_of(100, CALM, lag_share=0.5, rows=1)
    assert late.down == prompt.down and late.up == pytest.approx(prompt.up + ENDS_LATE * 50)


def test_rate_of_nothing_is_certain() -> None:
    assert rate_of(0, CALM, lag_share=0.5, rows=1) == Estimate(0, 0, 0)
