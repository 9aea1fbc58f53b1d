"""The histogram against plain lists of values, and against HdrHistogram as the judge of its layout."""

import math
import statistics

import msgspec
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.stats.histogram import (
    COARSE_COUNTERS,
    COARSE_PRECISION,
    COUNTERS,
    HIGHEST,
    PRECISION,
    CoarseHistogram,
    Histogram,
    highest_of,
    index_of,
    lowest_of,
    middle_of,
)

PERCENTS = [0, 50, 90, 95, 99, 99.9, 100]
EDGES = sorted({edge + near for bits in range(33) for edge in [1 << bits] for near in (-1, 0, 1)} | {0, HIGHEST})
VALUES = st.one_of(
    st.integers(0, 5_000),
    st.integers(0, HIGHEST),
    st.sampled_from([edge for edge in EDGES if edge <= HIGHEST]),
)
RECORDINGS = st.lists(st.tuples(VALUES, st.integers(1, 1_000)), max_size=40)
LAYOUTS = [(PRECISION, COUNTERS, 3), (COARSE_PRECISION, COARSE_COUNTERS, 2)]


def histogram_of(recordings: list[tuple[int, int]]) -> Histogram:
    histogram = Histogram()
    for value, times in recordings:
        histogram.record(value, times)
    return histogram


def coarse_of(recordings: list[tuple[int, int]]) -> CoarseHistogram:
    histogram = CoarseHistogram()
    for value, times in recordings:
        histogram.record(value, times)
    return histogram


def oracle_of(recordings: list[tuple[int, int]], digits: int = 3) -> HdrHistogram:
    oracle = HdrHistogram(1, HIGHEST, digits)
    for value, times in recordings:
        assert oracle.record_value(value, times)
    return oracle


# Layout


@pytest.mark.parametrize(("precision", "counters", "digits"), LAYOUTS)
def test_the_layout_is_that_of_hdrhistogram(precision: int, counters: int, digits: int) -> None:
    oracle = HdrHistogram(1, HIGHEST, digits)
    assert counters == oracle.counts_len
    for value in EDGES[:-1]:
        index = index_of(value, precision)
        assert index == oracle.get_counts_array_index(value)
        assert lowest_of(index, precision) == oracle.get_lowest_equivalent_value(value)
        assert highest_of(index, precision) == oracle.get_highest_equivalent_value(value)
        assert middle_of(index, precision) == oracle._hdr_median_equiv_value(value)


@pytest.mark.parametrize(("precision", "counters", "digits"), LAYOUTS)
def test_counters_follow_one_another_without_gap_or_overlap(precision: int, counters: int, digits: int) -> None:
    following = 0
    for index in range(counters):
        assert lowest_of(index, precision) == following
        following = highest_of(index, precision) + 1
    assert following > HIGHEST


def test_unless_told_otherwise_a_counter_is_one_of_three_digits() -> None:
    assert index_of(2_048) == index_of(2_049) == 2_048
    assert (lowest_of(2_048), middle_of(2_048), highest_of(2_048)) == (2_048, 2_049, 2_049)


# Recording


@settings(deadline=None, derandomize=True)
@given(RECORDINGS)
def test_number_sum_least_and_greatest_are_exact(recordings: list[tuple[int, int]]) -> None:
    histogram = histogram_of(recordings)
    values = [value for value, _ in recordings]
    assert histogram.count == sum(times for _, times in recordings)
    assert histogram.total == sum(value * times for value, times in recordings)
    assert (histogram.min, histogram.max) == (min(values, default=0), max(values, default=0))


@settings(deadline=None, derandomize=True)
@given(VALUES, st.integers(1, 1_000))
def test_a_value_is_counted_where_its_index_says(value: int, times: int) -> None:
    assert histogram_of([(value, times)]).counts == {index_of(value): times}
    assert coarse_of([(value, times)]).counts == {index_of(value, COARSE_PRECISION): times}


def test_a_value_counts_once_unless_told_otherwise() -> None:
    histogram, coarse = Histogram(), CoarseHistogram()
    for _ in range(3):
        histogram.record(7)
        coarse.record(7)
    assert histogram == Histogram(counts={7: 3}, count=3, total=21, min=7, max=7)
    assert coarse == CoarseHistogram(counts={7: 3}, count=3, max=7)


def test_a_first_value_of_zero_is_the_least() -> None:
    assert histogram_of([(0, 1), (5, 1)]) == Histogram(counts={0: 1, 5: 1}, count=2, total=5, min=0, max=5)


def test_values_beyond_the_range_count_as_its_ends() -> None:
    assert histogram_of([(-3, 2), (HIGHEST + 1, 1), (1 << 80, 1)]) == histogram_of([(0, 2), (HIGHEST, 2)])
    assert coarse_of([(-3, 2), (HIGHEST + 1, 1), (1 << 80, 1)]) == coarse_of([(0, 2), (HIGHEST, 2)])


# Merging


@settings(deadline=None, derandomize=True)
@given(RECORDINGS, RECORDINGS)
def test_merging_equals_recording_everything_in_one(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    histogram, coarse = histogram_of(one), coarse_of(one)
    histogram.merge(histogram_of(other))
    coarse.merge(coarse_of(other))
    assert histogram == histogram_of(one + other)
    assert coarse == coarse_of(one + other)


@settings(deadline=None, derandomize=True)
@given(RECORDINGS, RECORDINGS, RECORDINGS)
@pytest.mark.parametrize("build", [histogram_of, coarse_of])
def test_merging_is_associative_and_commutative(build, one, two, three) -> None:
    def merged(left, right):
        left.merge(right)
        return left

    left_first = merged(merged(build(one), build(two)), build(three))
    right_first = merged(build(one), merged(build(two), build(three)))
    reversed_order = merged(merged(build(three), build(two)), build(one))
    assert left_first == right_first == reversed_order


def test_merging_leaves_the_other_as_it_was() -> None:
    one, other = histogram_of([(1, 1)]), histogram_of([(2, 1)])
    one.merge(other)
    one.record(2)
    assert other == histogram_of([(2, 1)])


def test_a_histogram_merged_with_itself_is_doubled() -> None:
    histogram = histogram_of([(3, 1), (5_000, 2)])
    histogram.merge(histogram)
    assert histogram == histogram_of([(3, 2), (5_000, 4)])


def test_a_copy_goes_its_own_way() -> None:
    histogram = histogram_of([(3, 1), (5_000, 2)])
    copy = histogram.copy()
    assert copy == histogram
    copy.record(3)
    assert histogram == histogram_of([(3, 1), (5_000, 2)])


# Questions


@settings(deadline=None, derandomize=True, max_examples=40)
@given(RECORDINGS)
def test_percentiles_are_those_of_hdrhistogram_but_never_above_the_greatest(recordings) -> None:
    histogram, coarse = histogram_of(recordings), coarse_of(recordings)
    expected = oracle_of(recordings).get_percentile_to_value_dict(PERCENTS)
    coarsely = oracle_of(recordings, digits=2).get_percentile_to_value_dict(PERCENTS)
    for percent in PERCENTS:
        assert histogram.percentile(percent) == min(expected.get(percent, 0), histogram.max)
        assert coarse.percentile(percent) == min(coarsely.get(percent, 0), coarse.max)


def test_percentiles_asked_one_by_one_are_those_of_hdrhistogram() -> None:
    recordings = [(value * value, 1 + value % 7) for value in range(1, 300)]
    histogram, oracle = histogram_of(recordings), oracle_of(recordings)
    for percent in [0, 50, 90, 95, 99]:
        assert histogram.percentile(percent) == oracle.get_value_at_percentile(percent)


@settings(deadline=None, derandomize=True)
@given(st.lists(VALUES, min_size=1, max_size=100), st.floats(0, 100, exclude_min=True))
def test_a_percentile_is_at_most_one_part_in_1024_above_the_true_value(values: list[int], percent: float) -> None:
    recordings = [(value, 1) for value in values]
    true = sorted(values)[max(int(percent * len(values) / 100 + 0.5), 1) - 1]
    assert 0 <= histogram_of(recordings).percentile(percent) - true <= true / 1024
    assert 0 <= coarse_of(recordings).percentile(percent) - true <= true / 128


def test_at_zero_percent_the_lowest_value_of_the_first_counter_is_given() -> None:
    assert histogram_of([(2_049, 1), (9_000, 1)]).percentile(0) == 2_048
    assert coarse_of([(257, 1), (9_000, 1)]).percentile(0) == 256


def test_percents_beyond_the_scale_count_as_its_ends() -> None:
    histogram = histogram_of([(2_049, 1), (9_000, 1)])
    assert histogram.percentile(-1) == histogram.percentile(0)
    assert histogram.percentile(250) == histogram.percentile(100) == 9_000


def test_a_percentile_of_more_values_than_floats_can_count_is_still_found() -> None:
    # 100 percent of them comes out one too many, and is reached all the same.
    count = (1 << 53) + 3
    assert int(100.0 * count / 100 + 0.5) > count
    assert histogram_of([(1, 1), (9, count - 1)]).percentile(100) == 9


def test_an_empty_histogram_answers_nothing_but_zero() -> None:
    histogram = Histogram()
    assert [histogram.percentile(percent) for percent in PERCENTS] == [0] * len(PERCENTS)
    assert (histogram.mean, histogram.stdev, histogram.min, histogram.max) == (0.0, 0.0, 0, 0)
    assert CoarseHistogram().percentile(50) == 0


def test_the_mean_is_exact() -> None:
    # Both values share a counter, whose middle is 1,000,448.
    assert histogram_of([(1_000_000, 1), (1_000_001, 1)]).mean == 1_000_000.5


@settings(deadline=None, derandomize=True)
@given(st.lists(VALUES, min_size=1, max_size=40))
def test_the_standard_deviation_is_that_of_the_middles(values: list[int]) -> None:
    expected = statistics.pstdev(middle_of(index_of(value)) for value in values)
    assert math.isclose(histogram_of([(value, 1) for value in values]).stdev, expected, rel_tol=1e-12)


def test_the_standard_deviation_is_that_of_hdrhistogram() -> None:
    recordings = [(value * value, 1 + value % 7) for value in range(300)]
    assert math.isclose(histogram_of(recordings).stdev, oracle_of(recordings).get_stddev(), rel_tol=1e-12)


# Encoding


@pytest.mark.parametrize("format", [msgspec.json, msgspec.msgpack])
@pytest.mark.parametrize("histogram", [histogram_of([(v, 2) for v in EDGES]), coarse_of([(v, 2) for v in EDGES])])
def test_a_histogram_survives_encoding(format, histogram) -> None:
    assert format.decode(format.encode(histogram), type=type(histogram)) == histogram


@pytest.mark.parametrize(
    ("kind", "counters"), [(Histogram, COUNTERS), (CoarseHistogram, COARSE_COUNTERS)], ids=["fine", "coarse"]
)
@pytest.mark.parametrize("format", [msgspec.json, msgspec.msgpack])
def test_a_peer_cannot_send_counters_that_do_not_exist(format, kind, counters: int) -> None:
    assert format.decode(format.encode({"counts": {counters - 1: 1}}), type=kind).counts == {counters - 1: 1}
    for counts in ({counters: 1}, {-1: 1}, {1: 0}):
        with pytest.raises(msgspec.ValidationError):
            format.decode(format.encode({"counts": counts}), type=kind)


@pytest.mark.parametrize("field", ["count", "total", "min", "max"])
def test_a_peer_cannot_send_a_negative_number(field: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({field: -1}), type=Histogram)


@given(st.lists(st.integers(0, HIGHEST), min_size=1, max_size=60), st.sampled_from([0, 1, 50, 90, 99, 100]))
@settings(deadline=None, derandomize=True)
def test_a_blurred_histogram_counts_the_same_and_is_at_most_one_part_in_32_higher(
    values: list[int], percent: int
) -> None:
    sharp = CoarseHistogram()
    for value in values:
        sharp.record(value)

    blurred = sharp.blurred()

    assert (blurred.count, blurred.max, sum(blurred.counts.values())) == (sharp.count, sharp.max, len(values))
    assert len(blurred.counts) <= len(sharp.counts)
    before, after = sharp.percentile(percent), blurred.percentile(percent)
    assert before <= after <= before + before // 32 + 1 or (percent == 0 and abs(after - before) <= before // 32 + 1)


@given(st.lists(st.integers(0, HIGHEST), max_size=40), st.lists(st.integers(0, HIGHEST), max_size=40))
@settings(deadline=None, derandomize=True)
def test_blurring_and_merging_may_change_places(one: list[int], other: list[int]) -> None:
    def histogram(values: list[int]) -> CoarseHistogram:
        made = CoarseHistogram()
        for value in values:
            made.record(value)
        return made

    blurred_first = histogram(one).blurred()
    blurred_first.merge(histogram(other).blurred())

    assert blurred_first == histogram([*one, *other]).blurred()
