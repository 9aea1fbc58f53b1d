"""The result's rows over time: of the whole job, and of every step."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from talka.report.document import StepRow, TimelineRow
from talka.stats.histogram import add_counts
from talka.stats.windows import Span, StepWindow, Timeline
from talka.units import SECOND

STEP_ROWS: Final = 300
"""Of a step over time: as many as a picture can show."""
WORKFLOW_ROWS: Final = 6_000
"""Of all steps of a workflow. Where there are many, each has fewer."""
STEP_ROWS_AT_LEAST: Final = 20
ROW_WIDTHS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400)
"""Every one of which is a whole part, or a multiple, of the spans of a timeline."""


def timeline_of(job: Timeline, workflows: Iterable[Timeline]) -> list[TimelineRow]:
    return with_errors([row_of(span) for span in job.spans()], workflows)


def with_errors(rows: Sequence[TimelineRow], workflows: Iterable[Timeline]) -> list[TimelineRow]:
    """Rows of a job with kinds of failures, which the timelines of its workflows know."""
    if not rows:
        return []
    starts = [round(row.t_s * SECOND) for row in rows]
    ends = [start + round(row.width_s * SECOND) for start, row in zip(starts, rows, strict=True)]
    errors: list[dict[str, int]] = [{} for _ in rows]
    for timeline in workflows:
        # The job's timeline is never finer than a workflow's: each of their spans lies in one of its own.
        for span in timeline.spans():
            place = bisect_right(starts, span.start_ns) - 1
            if place >= 0 and span.start_ns < ends[place]:
                for step in span.window.steps.values():
                    add_counts(errors[place], step.errors)
    return [
        msgspec.structs.replace(row, errors=dict(sorted(found.items())))
        for row, found in zip(rows, errors, strict=True)
    ]


def step_rows(timeline: Timeline) -> list[StepRow]:
    """What became of each step over time, in stretches so wide that there are not too many of them."""
    spans = timeline.spans()
    names = list(dict.fromkeys(name for span in spans for name in span.window.steps))
    if not names:
        return []
    most = min(STEP_ROWS, max(STEP_ROWS_AT_LEAST, WORKFLOW_ROWS // len(names)))
    stretches = next(found for width_s in ROW_WIDTHS_S if len(found := stretches_of(spans, width_s)) <= most)
    return [row for name in names for stretch in stretches for row in [step_row(name, stretch)]]


def stretches_of(spans: Sequence[Span], width_s: float) -> list[list[Span]]:
    """Neighbours that begin in the same stretch of time. Spans that are wider stay as they are."""
    found: dict[int, list[Span]] = {}
    for span in spans:
        found.setdefault(span.start_ns // round(width_s * SECOND), []).append(span)
    return list(found.values())


def step_row(name: str, stretch: Sequence[Span]) -> StepRow:
    whole = StepWindow()
    for span in stretch:
        if name in span.window.steps:
            whole.add(span.window.steps[name])
    start_ns, times = stretch[0].start_ns, whole.response_time

    def at(percent: float) -> float | None:
        return times.percentile(percent) / 1000 if times.count else None

    return StepRow(
        step=name,
        t_s=start_ns / SECOND,
        width_s=(stretch[-1].start_ns + stretch[-1].length_ns - start_ns) / SECOND,
        count=whole.count,
        failed=whole.failed,
        errors=dict(sorted(whole.errors.items())),
        p50_ms=at(50),
        p95_ms=at(95),
        p99_ms=at(99),
    )


def row_of(span: Span) -> TimelineRow:
    times = span.window.response_time
    return TimelineRow(
        t_s=span.start_ns / SECOND,
        width_s=span.length_ns / SECOND,
        iterations_started=span.window.started,
        requests=span.window.requests,
        failed=span.window.failed,
        vus=span.window.vus,
        response_p50_ms=times.percentile(50) / 1000 if times.count else None,
        response_p99_ms=times.percentile(99) / 1000 if times.count else None,
        response_p95_ms=times.percentile(95) / 1000 if times.count else None,
    )
