"""Which charts a result has: what happened over time, and how long it took."""

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from talka.report.charts import (
    EXTREMES,
    Axis,
    Band,
    Cell,
    ChartLine,
    Mark,
    Paint,
    Point,
    average_line,
    chart,
    count_label,
    extremes_line,
    linear_axis,
    log_axis,
    milliseconds_label,
    percent_label,
    percentile_axis,
    spark,
    time_axis,
    value_axis,
)
from talka.report.document import BadResult, Lost, ResultDocument, Step, StepRow, TimelineRow, Times, Workflow
from talka.report.plan import PlanDocument, PlannedWorkflow
from talka.report.summary import missing_text
from talka.report.text import time_text
from talka.stats import hdr
from talka.stats.histogram import Histogram, add_counts, highest_of, middle_of

BINS: Final = 60
SPARK_BINS: Final = 36
CURVE_POINTS: Final = 120
BANDS_DRAWN: Final = 100
STEPS_DRAWN: Final = 12
"""With charts of their own over time; the result document has them all."""
STEP_STRETCHES: Final = 50
"""Points of a step's charts, which are small and many."""
TIME_PAINTS: Final[dict[str, Paint]] = {"p99": "second", "p95": "third", "p50": "main"}
ERROR_PAINTS: Final[tuple[Paint, ...]] = ("bad", "second", "main", "third", "fourth", "fifth")
"""Of the most frequent kinds of error; the last is that of all others."""
LEAST_OF_A_WINDOW: Final = 0.5
"""The last row is drawn if so much of its time was part of the run: less of it is too little to make a rate of."""


class Distribution(NamedTuple):
    """Times of all measured steps together, in microseconds."""

    response: Histogram
    service: Histogram
    of_steps: dict[tuple[str, str], Histogram]
    """Response times by workflow and step."""


def timeline_charts(document: ResultDocument, plan: PlanDocument | None) -> list[str]:
    """With a plan, its course is drawn where it can be compared with what was reached."""
    rows = counted_rows(document)
    length_s = length_of(document, rows)
    x_axis = time_axis(length_s)
    bands = [Band(lost.from_s, lost.to_s, lost_text(lost)) for lost in document.lost_shards[:BANDS_DRAWN]]
    requests = per_second(rows, lambda row: row.requests)
    failed = per_second(rows, lambda row: row.failed)
    started = per_second(rows, lambda row: row.iterations_started)
    vus = [Cell(row.t_s, row.width_s, row.vus) for row in rows]
    times = times_of(rows, "response_{}_ms")
    planned_vus, planned_rate = (ended_at(length_s, course_of(plan, model)) for model in ("closed", "open"))
    return [
        chart(
            "rate",
            "Requests",
            f"At most {highest(requests)} requests and {highest(failed)} failures per second.",
            x_axis,
            count_axis(requests),
            [
                average_line("requests", "main", requests, length_s, is_filled=True),
                average_line("failed", "bad", failed, length_s, is_filled=True),
            ]
            if any(values_of(requests, failed))
            else [],
            unit="per second",
            bands=bands,
            empty="Nothing was sent.",
        ),
        times_chart("times", "Response time", times, times_lines(times, length_s), x_axis, bands),
        chart(
            "vus",
            "Virtual users",
            f"At most {highest(vus)} users were active.",
            x_axis,
            count_axis(vus, planned_vus, least_step=1.0),
            [*planned_line(planned_vus), extremes_line("active", "main", vus, length_s)],
            unit="active",
            bands=bands,
        ),
        chart(
            "started",
            "Iterations started",
            f"At most {highest(started)} iterations were started per second.",
            x_axis,
            count_axis(started, planned_rate),
            [*planned_line(planned_rate), average_line("started", "main", started, length_s)],
            unit="per second",
            bands=bands,
        ),
        *error_charts(document, rows, x_axis, length_s, bands),
    ]


def times_of(rows: Sequence[TimelineRow] | Sequence[StepRow], field: str) -> dict[str, list[Cell]]:
    """Percentiles of the response time over time; `field` has {} for the percentile."""
    return {
        name: [Cell(row.t_s, row.width_s, getattr(row, field.format(name))) for row in rows] for name in TIME_PAINTS
    }


def times_lines(times: Mapping[str, Sequence[Cell]], length_s: float, stretches: int = EXTREMES) -> list[ChartLine]:
    return [
        extremes_line(name, TIME_PAINTS[name], cells, length_s, stretches=stretches) for name, cells in times.items()
    ]


def times_chart(
    name: str,
    title: str,
    times: Mapping[str, Sequence[Cell]],
    lines: Sequence[ChartLine],
    x_axis: Axis,
    bands: Sequence[Band] = (),
) -> str:
    y_axis = value_axis(values_of(*times.values()), milliseconds_label)
    p50, p99 = highest_time(times["p50"]), highest_time(times["p99"])
    text = f"The median was at most {p50}, the 99th percentile at most {p99}."
    return chart(name, title, text, x_axis, y_axis, lines, unit="log scale" if y_axis.is_log else "", bands=bands)


Row = TypeVar("Row", TimelineRow, StepRow)


def counted_rows(document: ResultDocument) -> list[TimelineRow]:
    return cut_short(document.timeline, document.duration_s)


def cut_short(rows: Sequence[Row], duration_s: float) -> list[Row]:
    """Rows in order, the last of which are as wide as the run was long: cut short, they would look like a collapse."""
    rows = sorted(rows, key=lambda row: row.t_s)
    last_s = rows[-1].t_s if rows else 0.0
    is_only = not rows or rows[0].t_s == last_s
    kept = []
    for row in rows:
        real_s = duration_s - row.t_s
        if row.t_s < last_s or not 0 < real_s < row.width_s:
            kept.append(row)
        elif is_only or real_s >= LEAST_OF_A_WINDOW * row.width_s:
            kept.append(msgspec.structs.replace(row, width_s=real_s))
    return kept


def length_of(document: ResultDocument, rows: Sequence[TimelineRow]) -> float:
    return max([document.duration_s, *(row.t_s + row.width_s for row in rows)])


def error_charts(
    document: ResultDocument, rows: Sequence[TimelineRow], x_axis: Axis, length_s: float, bands: Sequence[Band]
) -> list[str]:
    """Failures by kind over time, where the result tells them."""
    series = errors_by_kind([(row.t_s, row.width_s, row.errors) for row in rows])
    if not series:
        by_step = [row for workflow in document.workflows for row in workflow.timeline]
        series = errors_by_kind(merged_errors(cut_short(by_step, document.duration_s)))
    if not series:
        return []
    lines = [
        average_line(kind, paint, cells, length_s)
        for (kind, cells), paint in zip(series.items(), ERROR_PAINTS, strict=False)
    ]
    return [
        chart(
            "errors",
            "Errors by kind",
            "; ".join(f"{kind}: at most {highest(cells)} per second" for kind, cells in series.items()) + ".",
            x_axis,
            count_axis(list(itertools.chain(*series.values()))),
            lines,
            unit="per second",
            bands=bands,
        )
    ]


def merged_errors(rows: Iterable[StepRow]) -> list[tuple[float, float, dict[str, int]]]:
    """(start, width, failures by kind) over all steps."""
    found: dict[tuple[float, float], dict[str, int]] = {}
    for row in rows:
        add_counts(found.setdefault((row.t_s, row.width_s), {}), row.errors)
    return [(start, width, errors) for (start, width), errors in sorted(found.items())]


def errors_by_kind(rows: Sequence[tuple[float, float, dict[str, int]]]) -> dict[str, list[Cell]]:
    """Per second, the most frequent kinds first; what is beyond those that can be told apart is "others"."""
    totals: dict[str, int] = {}
    for _, _, errors in rows:
        add_counts(totals, errors)
    kinds = sorted(totals, key=lambda kind: (-totals[kind], kind))
    shown, others = kinds[: len(ERROR_PAINTS) - 1], kinds[len(ERROR_PAINTS) - 1 :]
    groups = {kind: [kind] for kind in shown} | ({"others": others} if others else {})
    return {
        name: [
            Cell(start, width, sum(errors.get(kind, 0) for kind in group) / width)
            for start, width, errors in rows
            if width > 1e-6
        ]
        for name, group in groups.items()
    }


def step_charts(document: ResultDocument) -> list[str]:
    """Two small charts for each of the first steps: how long it took, and how often it ran and failed."""
    found: dict[tuple[str, str], list[StepRow]] = {}
    for workflow in document.workflows:
        for row in cut_short(workflow.timeline, document.duration_s):
            found.setdefault((workflow.name, row.step), []).append(row)
    is_named = len({workflow for workflow, _ in found}) > 1
    length_s = max(
        [length_of(document, document.timeline), *(row.t_s + row.width_s for rows in found.values() for row in rows)]
    )
    drawn = list(found.items())[:STEPS_DRAWN]
    return [
        figure
        for number, ((workflow, step), rows) in enumerate(drawn)
        for figure in charts_of_step(number, f"{workflow}.{step}" if is_named else step, rows, length_s)
    ]


def charts_of_step(number: int, name: str, rows: Sequence[StepRow], length_s: float) -> list[str]:
    wide = [row for row in rows if row.width_s > 1e-6]
    count = [Cell(row.t_s, row.width_s, row.count / row.width_s) for row in wide]
    failed = [Cell(row.t_s, row.width_s, row.failed / row.width_s) for row in wide]
    x_axis, times = time_axis(length_s), times_of(rows, "{}_ms")
    lines = times_lines(times, length_s, STEP_STRETCHES)
    rates: list[tuple[str, Paint, list[Cell]]] = [("runs", "main", count)]
    if any(values_of(failed)):
        rates.append(("failed", "bad", failed))
    return [
        times_chart(f"step-{number}-times", f"{name}: response time", times, lines, x_axis),
        chart(
            f"step-{number}-rate",
            f"{name}: runs",
            f"At most {highest(count)} runs and {highest(failed)} failures per second.",
            x_axis,
            count_axis(count),
            [average_line(label, paint, cells, length_s, stretches=STEP_STRETCHES) for label, paint, cells in rates],
            unit="per second",
        ),
    ]


def lost_text(lost: Lost) -> str:
    return (
        f"{lost.workflow} shard {lost.shard}: the core {lost.cause}; nothing is known of it from {lost.from_s:.1f} s"
        f" to {lost.to_s:.1f} s, without {missing_text(lost)}"
    )


def per_second(rows: Iterable[TimelineRow], count: Callable[[TimelineRow], int]) -> list[Cell]:
    """Rows are of different widths, so counts cannot be compared and rates can."""
    return [Cell(row.t_s, row.width_s, count(row) / row.width_s if row.width_s > 1e-6 else None) for row in rows]


def values_of(*series: Sequence[Cell]) -> list[float]:
    return [found.value for found in itertools.chain(*series) if found.value is not None]


def highest(cells: Sequence[Cell]) -> str:
    return count_label(round(max(values_of(cells), default=0.0), 1))


def highest_time(cells: Sequence[Cell]) -> str:
    return time_text(max(values_of(cells), default=0.0))


def count_axis(cells: Sequence[Cell], course: Sequence[Point] = (), *, least_step: float = 0.0) -> Axis:
    return linear_axis(
        max([0.0, *values_of(cells), *(value for _, value in course)]), count_label, least_step=least_step
    )


def planned_line(course: Sequence[Point]) -> list[ChartLine]:
    return [ChartLine("planned", "plan", [course])] if course else []


def course_of(plan: PlanDocument | None, model: str) -> list[Point]:
    """What all workflows together were to reach; empty where it cannot be told or not be compared.

    The timeline counts all workflows as one, and a dependent one starts when others have ended, which no plan knows.
    """
    if plan is None or not plan.workflows:
        return []
    if any(found.model != model or found.depends_on or not found.course for found in plan.workflows):
        return []
    instants = sorted({point.t_s for found in plan.workflows for point in found.course})
    course = []
    for at in instants:
        for is_after in (False, True):
            course.append((at, sum(planned_at(found, at, is_after) for found in plan.workflows)))
    return course[1:-1]


def ended_at(end_s: float, course: Sequence[Point]) -> list[Point]:
    """The course as far as the run came: what was planned beyond the end of a stopped run is not beside anything."""
    kept = [point for point in course if point[0] <= end_s]
    if kept and len(kept) < len(course):
        (start, value), (end, to) = course[len(kept) - 1], course[len(kept)]
        kept.append((end_s, value + (to - value) * (end_s - start) / (end - start)))
    return kept


def planned_at(workflow: PlannedWorkflow, at: float, is_after: bool) -> float:
    """Just before the instant, or just after it: at a jump these differ."""
    for start, end in itertools.pairwise(workflow.course):
        if (start.t_s <= at < end.t_s) if is_after else (start.t_s < at <= end.t_s):
            return start.value + (end.value - start.value) * (at - start.t_s) / (end.t_s - start.t_s)
    return 0.0


def distribution_of(document: ResultDocument) -> Distribution:
    found = Distribution(Histogram(), Histogram(), {})
    for workflow in document.workflows:
        for step in workflow.steps:
            response = histogram_of(step, step.histogram, step.response_time_ms)
            found.of_steps[workflow.name, step.name] = response
            found.response.merge(response)
            found.service.merge(histogram_of(step, step.service_histogram, step.service_time_ms))
    return found


def histogram_of(step: Step, encoded: str | None, times: Times | None) -> Histogram:
    if encoded is None:
        return Histogram()
    try:
        histogram = hdr.decode(encoded)
    except hdr.BrokenHistogram as error:
        raise BadResult(f"the result's step {step.name} is damaged: {error}") from None
    if times is not None and histogram.count:
        # The encoding rounds both; the document has them exactly, and percentiles never exceed the greatest.
        low, high = histogram.min, histogram.max
        histogram.min = round(min(max(times.min * 1000, low), high))
        histogram.max = round(min(max(times.max * 1000, low), high))
    return histogram


def distribution_charts(distribution: Distribution) -> list[str]:
    """Of at least one sample."""
    response, service = distribution.response, distribution.service
    axis = times_axis_of([response, service])
    shares = {
        "response": binned(response, axis, BINS),
        "service": binned(service, axis, BINS),
    }
    most = max(max(found) for found in shares.values())
    p50, p99 = (response.percentile(percent) / 1000 for percent in (50, 99))
    percents = percentile_axis(response.count)
    return [
        chart(
            "distribution",
            "How long it took",
            f"Half of the response times are below {time_text(p50)}, 99 % below {time_text(p99)}.",
            axis,
            linear_axis(most, percent_label, least=0.1),
            [
                ChartLine("response time", "main", [outline(shares["response"], axis)], is_filled=True),
                ChartLine("service time", "second", [outline(shares["service"], axis)] if service.count else []),
            ],
            unit="share of samples",
            x_unit="time, log scale",
            marks=[Mark(p50, "p50", True), Mark(p99, "p99", False)],
        ),
        chart(
            "percentiles",
            "Percentiles",
            f"Response times reach {time_text(response.max / 1000)}, service times {time_text(service.max / 1000)}.",
            percents,
            axis,
            [
                ChartLine("response time", "main", [curve(response, percents)]),
                ChartLine("service time", "second", [curve(service, percents)] if service.count else []),
            ],
            unit="log scale",
            x_unit="share of samples at or below, towards the slowest",
        ),
    ]


def step_sparks(workflow: Workflow, distribution: Distribution) -> list[str]:
    """A small distribution for each step of a workflow, all on the same axis."""
    histograms = [distribution.of_steps[workflow.name, step.name] for step in workflow.steps]
    axis = times_axis_of(histograms)
    return [
        spark(binned(histogram, axis, SPARK_BINS), f"response times of {step.name}")
        for step, histogram in zip(workflow.steps, histograms, strict=True)
    ]


def times_axis_of(histograms: Iterable[Histogram]) -> Axis:
    found = [histogram for histogram in histograms if histogram.count]
    low = min((histogram.min for histogram in found), default=1)
    return log_axis(max(low, 1) / 1000, max((found.max for found in found), default=1) / 1000, milliseconds_label)


def binned(histogram: Histogram, axis: Axis, bins: int) -> list[float]:
    """Percent of the samples in each of so many bins of equal width on the axis."""
    counts = [0] * bins
    for index, times in histogram.counts.items():
        counts[min(int(axis.place(middle_of(index) / 1000) * bins), bins - 1)] += times
    return [100 * count / histogram.count if histogram.count else 0.0 for count in counts]


def outline(shares: Sequence[float], axis: Axis) -> list[Point]:
    ratio = (axis.high / axis.low) ** (1 / len(shares))
    points = [(axis.low, 0.0)]
    for number, share in enumerate(shares):
        points += [(axis.low * ratio**number, share), (axis.low * ratio ** (number + 1), share)]
    return [*points, (axis.high, 0.0)]


def curve(histogram: Histogram, axis: Axis) -> list[Point]:
    indexes = sorted(histogram.counts)
    reached = list(itertools.accumulate(histogram.counts[index] for index in indexes))
    points: list[Point] = []
    for number in range(CURVE_POINTS + 1):
        place = axis.high * number / CURVE_POINTS
        # As `Histogram.percentile`, without sorting anew for each of the points.
        wanted = int((1 - 10**-place) * histogram.count + 0.5)
        at = min(bisect.bisect_left(reached, wanted), len(indexes) - 1)
        points.append((place, min(highest_of(indexes[at]), histogram.max) / 1000))
    # The slowest of all is the end of the curve, wherever the axis had to stop.
    return [*points, (axis.high, histogram.max / 1000)]
