"""A comparison as one HTML file: the answers, pictures of every run beside each other, and every figure.

It loads nothing. Its script shows values under the pointer, and nothing is missing without it.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from talka.report.charts import (
    AVERAGES,
    EXTREMES,
    Axis,
    Cell,
    ChartLine,
    Whisker,
    average_line,
    chart,
    count_label,
    escaped,
    linear_axis,
    milliseconds_label,
    percent_at,
    time_axis,
    value_axis,
    whiskers,
)
from talka.report.compare_text import cells_of, facts_of, headline_text, style_of
from talka.report.comparison import LETTERS, Comparison, ComparisonRow, Comparisons
from talka.report.document import ResultDocument
from talka.report.html.charts_page import counted_rows, per_second, times_lines, times_of, values_of
from talka.report.html.page import bullets, charts, html_page, section, table
from talka.report.text import Style
from talka.stats import comparison as statistics

WIDEST: Final = 8.0
"""Times what counts as same: wider intervals are cut off at the edge of their picture."""
FEWEST_POINTS: Final = 30
"""Of a chart, with however many others beside it."""
TONES: Final[dict[Style | None, str]] = {"red": "bad-text", "green": "good-text", "yellow": "unsure-text"}
RULE_TONES: Final = {"held": "good-text", "broken": "bad-text", "cannot tell": "unsure-text"}
TITLES: Final = ("verdict", "figure", "difference", ">A", ">B", ">B - A", ">%", ">interval", ">needs")
PICTURED: Final = ("p50", "p90", "p95", "p99", "mean")


def comparison_html(found: Comparisons, documents: Sequence[ResultDocument]) -> str:
    """The whole page. `documents` are the runs that were compared, the base first."""
    is_several = len(found.comparisons) > 1
    heads = [headline_text(comparison, is_several) for comparison in found.comparisons]
    worst = [style_of(comparison.rows[0]) for comparison in found.comparisons]
    tone = "bad" if "red" in worst else "unsure" if "yellow" in worst else "good"
    runs = [found.base, *(comparison.b for comparison in found.comparisons)]
    listed = bullets([f"{letter}  {facts_of(run)}" for letter, run in zip(LETTERS, runs, strict=False)])
    said = "".join(f'<p class="verdict small">{escaped(head)}</p>' for head in heads)
    parts = [
        f'<header class="banner">{said}{listed}</header>',
        section("Side by side", charts(percentile_pictures(found)) + charts(run_pictures(found, documents))),
        *(part for comparison in found.comparisons for part in sections_of(comparison, is_several)),
        f'<footer class="note">{escaped(found.comparisons[0].method)}</footer>',
    ]
    return html_page("Comparison – Talka", tone, parts)


def sections_of(comparison: Comparison, is_several: bool) -> list[str]:
    one, other = comparison.names
    parts = []
    notes = bullets(comparison.warnings, kind="warnings")
    if comparison.rules:
        rules = [
            f'<li>{escaped(rule.rule)} <span class="{RULE_TONES[rule.answer]}">{rule.answer}</span>: '
            f"{escaped(rule.shown)}</li>"
            for rule in comparison.rules
        ]
        notes += f"<h3>Rules</h3><ul>{''.join(rules)}</ul>"
    heads = [head.replace("A", one).replace("B", other) for head in TITLES]
    rows = [row_cells(row, comparison) for row in comparison.rows]
    title = f"{other} as seen from {one}" if is_several else "Every figure"
    parts.append(section(title, notes + table(heads, rows, kind="figures")))
    for name, steps in ((one, comparison.only_in_a), (other, comparison.only_in_b)):
        if steps:
            parts.append(section(f"Only in {name}" + (f" of {one} and {other}" if is_several else ""), bullets(steps)))
    return parts


def row_cells(row: ComparisonRow, comparison: Comparison) -> list[str]:
    verdict, figure, *numbers = (escaped(text) for text in cells_of(row, comparison.rows))
    return [
        f'<td class="{TONES.get(style_of(row), "")}">{verdict}</td>',
        f'<td class="name">{figure}</td>',
        f'<td class="shape">{interval_picture(row, comparison.within)}</td>',
        *(f'<td class="number">{text}</td>' for text in numbers),
    ]


def interval_picture(row: ComparisonRow, within: float) -> str:
    """The interval beside what counts as same, which is as wide for every figure."""
    if row.low is None or row.high is None or row.difference is None:
        return ""
    same = statistics.tolerance_of(row.a or 0.0, row.unit, within)
    if not same:
        return ""

    def at(amount: float) -> float:
        return (min(max(amount / same, -WIDEST), WIDEST) + WIDEST) / (2 * WIDEST)

    low, middle, high = at(row.low), at(row.difference), at(row.high)
    tone = TONES.get(style_of(row), "plain-text")
    left, right = percent_at(at(-same)), percent_at(at(same) - at(-same))
    return (
        '<svg class="interval" aria-hidden="true">'
        f'<rect class="same" x="{left}" width="{right}" height="100%"/>'
        '<line class="none" x1="50%" x2="50%" y1="0" y2="100%"/>'
        f'<line class="reach {tone}" x1="{percent_at(low)}" x2="{percent_at(high)}" y1="50%" y2="50%"/>'
        f'<circle class="{tone}" cx="{percent_at(middle)}" cy="50%" r="3.5"/></svg>'
    )


# Pictures of the runs.


def percentile_pictures(found: Comparisons) -> list[str]:
    """The percentiles of every run with their intervals, over the steps that all are compared by."""
    series: list[list[Whisker]] = []
    for number, comparison in enumerate(found.comparisons):
        rows = pictured_rows(comparison)
        if number == 0:
            series.append([Whisker(stat, row.a, row.a_low, row.a_high) for stat, row in rows.items()])
        series.append([Whisker(stat, row.b, row.b_low, row.b_high) for stat, row in rows.items()])
    known = [item for one in series for item in one if item.value is not None]
    axis = value_axis([max(item.high or 0.0, item.value or 0.0) for item in known], milliseconds_label)
    if axis.is_log:
        axis = value_axis([item.value or 0.0 for item in known], milliseconds_label)
    return [
        whiskers(
            "intervals",
            "Response time with its intervals",
            "Percentiles and mean of every run, with the interval that chance within the run allows.",
            PICTURED,
            axis,
            list(zip(LETTERS, series, strict=False)),
            unit="log scale" if axis.is_log else "",
        )
    ]


def pictured_rows(comparison: Comparison) -> dict[str, ComparisonRow]:
    """Response times of the whole job; of the one step, where there is only one."""
    rows = [row for row in comparison.rows if row.measure == "response_time" and row.stat]
    whole = [row for row in rows if row.step is None] or rows
    found = {row.stat: row for row in whole if row.stat}
    return {stat: found[stat] for stat in PICTURED if stat in found}


def run_pictures(found: Comparisons, documents: Sequence[ResultDocument]) -> list[str]:
    """Two charts for every run, all on the same axes."""
    timelines = [counted_rows(document) for document in documents]
    length_s = max([0.1, *(row.t_s + row.width_s for row in itertools.chain(*timelines))])
    rates = [per_second(rows, lambda row: row.requests) for rows in timelines]
    times = [times_of(rows, "response_{}_ms") for rows in timelines]
    intervals = [rate_interval(found, number) for number in range(len(documents))]
    # However many runs there are, the page stays small.
    points = max(EXTREMES // len(documents), FEWEST_POINTS)
    x_axis = time_axis(length_s)
    times_axis = value_axis(values_of(*(cells for run in times for cells in run.values())), milliseconds_label)
    tops = [high for interval in intervals if interval for high in (interval[2],)]
    rate_axis = linear_axis(max([0.0, *values_of(*rates), *tops]), count_label)
    pictures = []
    for letter, run, cells, interval in zip(LETTERS, times, rates, intervals, strict=False):
        pictures.append(
            chart(
                f"times-{letter}",
                f"{letter}: response time",
                f"Percentiles of {letter} over time.",
                x_axis,
                times_axis,
                times_lines(run, length_s, points),
                unit="log scale" if times_axis.is_log else "",
            )
        )
        pictures.append(run_rate(letter, cells, interval, x_axis, rate_axis, length_s, points))
    return pictures


def run_rate(
    letter: str,
    cells: list[Cell],
    interval: tuple[float, float, float] | None,
    x_axis: Axis,
    y_axis: Axis,
    length_s: float,
    points: int,
) -> str:
    lines = [average_line("requests", "main", cells, length_s, is_filled=True, stretches=min(points, AVERAGES))]
    if interval is not None and any(cells):
        value, low, high = interval
        ends = (0.0, max((cell.start + cell.width for cell in cells), default=length_s))
        course = [[(at, value) for at in ends]]
        lines.append(ChartLine("mean and its interval", "plan", course, [[(at, low, high) for at in ends]]))
    return chart(
        f"rate-{letter}",
        f"{letter}: requests",
        f"Requests per second of {letter}.",
        x_axis,
        y_axis,
        lines,
        unit="per second",
        empty="Nothing was sent.",
    )


def rate_interval(found: Comparisons, number: int) -> tuple[float, float, float] | None:
    """The rate of a run with its interval."""
    comparison = found.comparisons[max(number - 1, 0)]
    row = next((row for row in comparison.rows if row.measure == "rate" and row.step is None), None)
    if row is None:
        return None
    parts = (row.b, row.b_low, row.b_high) if number else (row.a, row.a_low, row.a_high)
    value, low, high = parts
    return None if value is None or low is None or high is None else (value, low, high)
