"""Charts: axes that fit what they show, fewer points without hiding a spike, and SVG that a reader can trust."""

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.report.charts import (
    EXTREMES,
    MOST_TICKS,
    Axis,
    Band,
    Cell,
    ChartLine,
    Mark,
    average_line,
    averages,
    chart,
    count_label,
    extremes_line,
    instant_label,
    linear_axis,
    log_axis,
    milliseconds_label,
    nice_step,
    path,
    percent_label,
    percentile_axis,
    percentile_place,
    spark,
    time_axis,
    value_axis,
)

X = linear_axis(10, count_label)


def labels(axis: Axis) -> list[str]:
    return [label for _, label in axis.ticks]


def drawn(*lines: ChartLine, **more: object) -> ET.Element:
    """The figure, read back: what does not parse fails here."""
    return ET.fromstring(chart("a", "A title", "A description.", X, X, lines, **more))  # type: ignore[arg-type]


def tenths(*values: float | None) -> list[Cell]:
    return [Cell(number / 10, 0.1, value) for number, value in enumerate(values)]


# Axes.


def test_a_linear_axis_starts_at_zero_and_ends_at_a_round_number() -> None:
    axis = linear_axis(873, count_label)
    assert (axis.low, axis.high) == (0, 1000)
    assert labels(axis) == ["0", "500", "1,000"]


def test_an_axis_of_whole_things_has_no_half_of_one() -> None:
    assert labels(linear_axis(2, count_label, least_step=1.0)) == ["0", "1", "2"]
    assert labels(linear_axis(2, count_label)) == ["0", "0.5", "1", "1.5", "2"]


@pytest.mark.parametrize(
    ("length_s", "shown"),
    [
        (0.4, ["0", "100ms", "200ms", "300ms", "400ms"]),
        (15.1, ["0", "5s", "10s", "15s"]),
        (60, ["0", "10s", "20s", "30s", "40s", "50s", "1m"]),
        (3600, ["0", "10m", "20m", "30m", "40m", "50m", "1h"]),
        (86_400 * 30, ["0", "5d", "10d", "15d", "20d", "25d", "30d"]),
    ],
)
def test_a_time_axis_has_round_instants(length_s: float, shown: list[str]) -> None:
    assert labels(time_axis(length_s)) == shown


def test_a_log_axis_ends_at_round_numbers_and_gives_each_factor_the_same_room() -> None:
    axis = log_axis(0.7, 180, milliseconds_label)
    assert (axis.low, axis.high) == (0.5, 200)
    assert labels(axis) == ["1 ms", "10 ms", "100 ms"]
    assert axis.place(10) - axis.place(1) == pytest.approx(axis.place(100) - axis.place(10))


def test_a_log_axis_of_a_single_value_is_still_wide() -> None:
    axis = log_axis(7, 7, milliseconds_label)
    assert axis.high >= 4 * axis.low
    assert axis.low < 7 < axis.high


def test_times_are_on_a_log_scale_only_if_the_small_ones_would_be_lost() -> None:
    assert not value_axis([10, 20], milliseconds_label).is_log
    assert value_axis([1, 200], milliseconds_label).is_log
    assert value_axis([], milliseconds_label).high == 1


def test_a_percentile_axis_goes_as_far_as_the_samples() -> None:
    assert labels(percentile_axis(100)) == ["0 %", "50 %", "90 %", "99 %"]
    assert labels(percentile_axis(100_000)) == ["50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"]
    assert percentile_place(99) == pytest.approx(2)


NUMBERS = st.floats(0, 1e300, allow_subnormal=False)


@settings(deadline=None, derandomize=True)
@given(first=NUMBERS, second=NUMBERS)
def test_every_axis_has_few_ticks_in_order_and_places_within_its_ends(first: float, second: float) -> None:
    low, high = sorted((first, second))
    for axis in (
        linear_axis(high, count_label),
        time_axis(high),
        log_axis(low, high, milliseconds_label),
        value_axis([low, high], milliseconds_label),
        percentile_axis(int(high)),
    ):
        places = [axis.place(value) for value, _ in axis.ticks]
        assert 1 <= len(places) <= MOST_TICKS
        assert places == sorted(set(places))
        assert 0 <= axis.place(low) <= axis.place(high) <= 1
        assert len(set(labels(axis))) == len(places)


@settings(deadline=None, derandomize=True)
@given(span=st.floats(1e-9, 1e15), most=st.integers(1, 100))
def test_a_nice_step_is_round_and_cuts_into_few_enough_parts(span: float, most: int) -> None:
    step = nice_step(span, most)
    assert span / step <= most * (1 + 1e-6)
    assert f"{step:e}"[0] in "125"


def test_labels_of_ticks_are_short() -> None:
    assert [count_label(value) for value in (0, 0.5, 1500, 20_000, 1_500_000, 3e9)] == [
        "0",
        "0.5",
        "1,500",
        "20k",
        "1.5M",
        "3G",
    ]
    assert [milliseconds_label(value) for value in (0, 0.05, 1, 250, 2000)] == [
        "0 ms",
        "50 µs",
        "1 ms",
        "250 ms",
        "2 s",
    ]
    assert percent_label(2.5) == "2.5 %"
    assert [instant_label(value) for value in (0, 0.5, 90, 0.30000000000000004)] == ["0", "500ms", "1m30s", "300ms"]


# Fewer points.


def test_a_spike_is_drawn_as_high_as_it_was_however_long_the_run() -> None:
    cells = [Cell(second, 1.0, 900.0 if second == 1777 else 10.0 + second % 3) for second in range(10_000)]
    (piece,) = extremes_line("p99", "main", cells, 10_000.0).pieces
    assert len(piece) <= 2 * EXTREMES + 4
    assert max(value for _, value in piece) == 900
    assert min(value for _, value in piece) == 10


def test_the_range_of_an_averaged_line_holds_the_spike() -> None:
    cells = [Cell(second, 1.0, 500.0 if second == 42 else 100.0) for second in range(1000)]
    line = average_line("requests", "main", cells, 1000.0)
    assert len(line.pieces[0]) <= 110
    assert max(value for _, value in line.pieces[0]) == pytest.approx(140)
    assert max(high for _, _, high in line.spread[0]) == 500


def test_a_line_without_a_range_draws_none() -> None:
    assert average_line("requests", "main", tenths(5, 5, 5), 0.3).spread == []


def test_an_average_weighs_stretches_by_their_length() -> None:
    ((found,),) = averages([Cell(0, 9, 10.0), Cell(9, 1, 20.0)], 1000.0)
    assert (found.start, found.end, found.mean, found.low, found.high) == (0, 10, 11, 10, 20)


def test_where_nothing_was_measured_the_line_is_cut() -> None:
    line = extremes_line("p50", "main", tenths(1, 2, None, 4, 5), 0.5)
    assert [{value for _, value in piece} for piece in line.pieces] == [{1, 2}, {4, 5}]
    assert len(average_line("rate", "main", [Cell(0, 0.1, 1), Cell(5, 0.1, 1)], 5.1).pieces) == 2


def test_long_stretches_are_drawn_along_their_whole_length() -> None:
    cells = [Cell(0, 10, 3.0), Cell(10, 10, 5.0), *(Cell(20 + number / 10, 0.1, 7.0) for number in range(600))]
    (piece,) = extremes_line("p50", "main", cells, 80.0).pieces
    assert piece[:5] == [(0, 3), (0, 3), (10, 3), (10, 5), (20, 5)]
    assert piece[-1][0] == pytest.approx(80)


def test_values_that_are_no_numbers_are_left_out() -> None:
    assert extremes_line("p50", "main", tenths(math.inf, math.nan, None), 0.3).pieces == []
    assert extremes_line("p50", "main", [Cell(1e300, 1.0, 1.0)], 1e300).pieces == []


# Drawing.


def test_a_path_goes_in_steps_and_a_single_point_is_a_dot() -> None:
    assert path([(0, 10), (5, 8), (5, 8), (7, 12)]) == "M0 10l5-2 2 4"
    assert path([(3, 4)]) == "M3 4l0 0"


def test_a_chart_has_a_title_a_description_a_legend_and_both_axes() -> None:
    figure = drawn(ChartLine("requests", "main", [[(0, 0), (10, 10)]]), ChartLine("failed", "bad", [[(0, 1), (10, 2)]]))
    frame = figure.find(".//svg[@role='img']")
    assert frame is not None
    title, text = frame.find("title"), frame.find("desc")
    assert title is not None and title.text == "A title"
    assert text is not None and text.text == "A description."
    assert frame.get("aria-labelledby") == f"{title.get('id')} {text.get('id')}"
    assert ["".join(item.itertext()) for item in figure.findall(".//ul/li")] == ["requests", "failed"]
    assert [item.text for item in figure.findall(".//text[@class='y']")] == ["0", "5", "10"]
    assert [item.text for item in figure.findall(".//text[@class='x']")] == ["0", "5", "10"]


def test_high_values_are_drawn_high() -> None:
    figure = drawn(ChartLine("requests", "main", [[(0, 0), (10, 10)]]))
    assert [item.get("d") for item in figure.findall(".//path")] == ["M0 1000l1000-1000"]


def test_pieces_of_a_line_are_not_joined() -> None:
    figure = drawn(ChartLine("p50", "main", [[(0, 5), (1, 5)], [(9, 5), (10, 5)]]))
    assert [item.get("d") for item in figure.findall(".//path")] == ["M0 500l100 0M900 500l100 0"]


def test_a_filled_line_and_a_range_have_areas_that_are_closed() -> None:
    figure = drawn(ChartLine("requests", "main", [[(0, 5), (10, 5)]], [[(0, 4, 6), (10, 4, 6)]], is_filled=True))
    area, spread, _ = figure.findall(".//path")
    assert area.get("d") == "M0 500l1000 0V1000H0z"
    assert spread.get("d") == "M0 400l1000 0 0 200-1000 0z"
    assert "range" in ["".join(item.itertext()) for item in figure.findall(".//ul/li")]


def test_bands_and_marks_stand_at_their_instants() -> None:
    figure = drawn(
        ChartLine("a", "main", [[(0, 1), (10, 1)]]), bands=[Band(2, 4, "core 3 was lost")], marks=[Mark(5, "p50", True)]
    )
    band = figure.find(".//div//rect[@class='band']")
    assert band is not None and (band.get("x"), band.get("width")) == ("20%", "20%")
    assert "".join(band.itertext()) == "core 3 was lost"
    mark = figure.find(".//g[@class='mark']/line")
    assert mark is not None and mark.get("x1") == "50%"
    assert "shard lost" in ["".join(item.itertext()) for item in figure.findall(".//ul/li")]


def test_a_chart_without_a_line_says_so_in_words() -> None:
    figure = drawn(ChartLine("a", "main", []), empty="Nothing was sent.")
    assert figure.findtext("p") == "Nothing was sent."
    assert figure.find(".//svg") is None


def test_texts_are_text_and_nothing_else() -> None:
    hostile = '<script>alert(1)</script>"&\x00\x1b[31m\ud800'
    figure = ET.fromstring(
        chart(
            "a",
            hostile,
            hostile,
            X,
            X,
            [ChartLine(hostile, "main", [[(0, 0)]])],
            unit=hostile,
            x_unit=hostile,
            bands=[Band(0, 1, hostile)],
            marks=[Mark(1, hostile, False)],
        )
    )
    assert figure.find(".//script") is None
    assert "".join(figure.itertext()).count('<script>alert(1)</script>"&\ufffd\ufffd[31m\ufffd') == 8


def test_nothing_needs_a_style_attribute_or_another_file() -> None:
    text = chart("a", "b", "c", X, X, [ChartLine("d", "main", [[(0, 0)]])], bands=[Band(0, 1, "e")])
    assert not re.search(r"style=|href|http|<script|<image|url\(", text)


def test_a_spark_shows_shares_and_nothing_if_there_are_none() -> None:
    figure = ET.fromstring(spark([0, 50, 25, 0], "response times of login"))
    assert figure.findtext("title") == "response times of login"
    path_found = figure.find("path")
    assert path_found is not None
    assert path_found.get("d") == "M0 1000l250 0 0-1000 250 0 0 500 250 0 0 500 250 0z"
    assert spark([0, 0], "never ran") == spark([], "never ran") == ""
