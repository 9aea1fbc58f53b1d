"""A result as families of numbers with labels, in base units: what Prometheus and OpenTelemetry are told.

Labels are bounded by the test and by the result: the job's name, its workflows, steps, calls, checks and metrics, tags,
and what became of them.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec

from talka.report.document import Call, ResultDocument, Step, TimelineRow, Times, Workflow
from talka.report.outputs.output import JobInfo, job_info
from talka.stats import hdr
from talka.units import SECOND

QUANTILES: Final = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p99_9"}
NOT_A_LABEL: Final = re.compile(r"[^a-zA-Z0-9_]")
OUTCOMES: Final = ("ok", "failed", "interrupted")


class MeasuredPoint(msgspec.Struct, frozen=True):
    labels: dict[str, str]
    value: float
    at_ns: int


class MeasuredSummary(msgspec.Struct, frozen=True):
    """Times, in seconds. `quantiles` is in rising order."""

    labels: dict[str, str]
    quantiles: dict[str, float]
    count: int
    total: float
    at_ns: int


class Family(msgspec.Struct, frozen=True):
    """Numbers of one meaning. A counter only grows while the job runs."""

    name: str
    unit: Literal["", "seconds", "bytes", "ratio"]
    kind: Literal["counter", "gauge", "summary"]
    meaning: str
    points: list[MeasuredPoint] = []
    summaries: list[MeasuredSummary] = []


class FamilyOutput:
    """Sends progress while the job runs, and the result at its end.

    Names of the progress differ from those of the result, which counts more exactly.
    """

    def __init__(self, name: str, send: Callable[[list[Family], JobInfo], None]) -> None:
        self.name = name
        self._send = send
        self._requests = self._failed = self._iterations = 0

    def rows(self, rows: Sequence[TimelineRow], job: JobInfo) -> None:
        self._send(self._progress(rows, job), job)

    def finish(self, document: ResultDocument) -> None:
        self._send(families_of(document), job_info(document))

    def close(self) -> None:
        pass

    def _progress(self, rows: Sequence[TimelineRow], job: JobInfo) -> list[Family]:
        labels = {"job": job.name}
        requests, failed, iterations, vus, times = (list[MeasuredPoint]() for _ in range(5))
        for row in rows:
            at_ns = job.started_ns + round((row.t_s + row.width_s) * SECOND)
            self._requests += row.requests
            self._failed += row.failed
            self._iterations += row.iterations_started
            requests.append(MeasuredPoint(labels, self._requests, at_ns))
            failed.append(MeasuredPoint(labels, self._failed, at_ns))
            iterations.append(MeasuredPoint(labels, self._iterations, at_ns))
            vus.append(MeasuredPoint(labels, row.vus, at_ns))
            for quantile, ms in (("0.5", row.response_p50_ms), ("0.99", row.response_p99_ms)):
                if ms is not None:
                    times.append(MeasuredPoint({**labels, "quantile": quantile}, seconds(ms), at_ns))
        return with_points(
            Family("progress_requests", "", "counter", "Requests so far.", requests),
            Family("progress_failed", "", "counter", "Requests that failed so far.", failed),
            Family("progress_iterations", "", "counter", "Iterations started so far.", iterations),
            Family("progress_vus", "", "gauge", "Virtual users at work.", vus),
            Family("progress_response_time", "seconds", "gauge", "Response times of each window by itself.", times),
        )


def families_of(document: ResultDocument) -> list[Family]:
    """Everything in the result that is a number."""
    return [*families_of_job(document), *families_of_workflows(document)]


def ended_ns(document: ResultDocument) -> int:
    return job_info(document).started_ns + round(document.duration_s * SECOND)


def families_of_job(document: ResultDocument) -> list[Family]:
    totals, at_ns, labels = document.totals, ended_ns(document), {"job": document.job.name}

    def one(value: float) -> list[MeasuredPoint]:
        return [MeasuredPoint(labels, value, at_ns)]

    def by_status(**values: float) -> list[MeasuredPoint]:
        return [MeasuredPoint({**labels, "status": status}, value, at_ns) for status, value in values.items()]

    requests = by_status(ok=totals.ok, failed=totals.failed, interrupted=totals.interrupted)
    held = sum(rule.passed for rule in document.thresholds)
    rules = by_status(held=held, crossed=len(document.thresholds) - held)
    started_s = job_info(document).started_ns / SECOND
    generator = document.generator
    return [
        Family("requests", "", "counter", "Requests put on the wire, by what became of them.", requests),
        Family("requests_not_sent", "", "counter", "Requests that never got on the wire.", one(totals.not_sent)),
        Family("sent", "bytes", "counter", "Bytes sent.", one(totals.bytes_sent)),
        Family("received", "bytes", "counter", "Bytes received.", one(totals.bytes_received)),
        Family("connections", "", "counter", "Connections opened.", one(totals.connections)),
        Family("reconnects", "", "counter", "Connections opened again.", one(totals.reconnects)),
        Family("thresholds", "", "gauge", "Thresholds, by whether they held.", rules),
        Family("lost_shards", "", "gauge", "Shards that were lost.", one(len(document.lost_shards))),
        Family("exit_code", "", "gauge", "0: it ran to its end and every threshold held.", one(document.exit_code)),
        Family("started_timestamp", "seconds", "gauge", "When the job started, since 1970.", one(started_s)),
        Family("duration", "seconds", "gauge", "From the first start to the last answer.", one(document.duration_s)),
        Family("generator_cpu", "ratio", "gauge", "The busiest core's share of one CPU.", one(generator.cpu)),
        Family("generator_saturated", "", "gauge", "1: the generator was the bottleneck.", one(generator.saturated)),
    ]


def families_of_workflows(document: ResultDocument) -> list[Family]:
    at_ns = ended_ns(document)
    checks, iterations, dropped, cut_off, skipped, metrics = (list[MeasuredPoint]() for _ in range(6))
    steps, calls = MeasuredRows(at_ns), MeasuredRows(at_ns)
    for workflow in document.workflows:
        labels = {"job": document.job.name, "workflow": workflow.name}
        iterations.append(MeasuredPoint(labels, workflow.iterations, at_ns))
        dropped.append(MeasuredPoint(labels, workflow.dropped_iterations, at_ns))
        cut_off.append(MeasuredPoint(labels, workflow.interrupted_iterations, at_ns))
        for step in workflow.steps:
            named = {**labels, "step": step.name, **tag_labels(step)}
            steps.add(step, named)
            skipped.append(MeasuredPoint(named, step.skipped, at_ns))
            for call in step.calls:
                calls.add(call, {**named, "call": call.name})
        for check in workflow.checks:
            named = {**labels, "check": check.name}
            checks.append(MeasuredPoint({**named, "status": "passed"}, check.passed, at_ns))
            checks.append(MeasuredPoint({**named, "status": "failed"}, check.failed, at_ns))
        metrics += points_of_metrics(workflow, labels, at_ns)
    return with_points(
        Family("iterations", "", "counter", "Iterations.", iterations),
        Family("dropped_iterations", "", "counter", "Arrivals for which no virtual user was free.", dropped),
        Family("interrupted_iterations", "", "counter", "Iterations that began and were cut off.", cut_off),
        Family("step_runs", "", "counter", "Runs of a step, by what became of them.", steps.runs),
        Family("step_skipped", "", "counter", "Runs of a step that did nothing.", skipped),
        Family("step_responses", "", "counter", "Responses, by status code or outcome.", steps.codes),
        Family("step_errors", "", "counter", "Failures of a step, by kind.", steps.errors),
        Family("step_response_time", "seconds", "summary", "From the intended start.", summaries=steps.response),
        Family("step_service_time", "seconds", "summary", "From the send.", summaries=steps.service),
        Family("calls", "", "counter", "Calls of one name in a step, by what became of them.", calls.runs),
        Family(
            "call_responses", "", "counter", "Responses to calls of one name, by status code or outcome.", calls.codes
        ),
        Family("call_errors", "", "counter", "Failures of calls of one name, by kind.", calls.errors),
        Family("call_response_time", "seconds", "summary", "From when its user wanted it.", summaries=calls.response),
        Family(
            "call_service_time", "seconds", "summary", "Of calls of one name, from the send.", summaries=calls.service
        ),
        Family("checks", "", "counter", "Checks, by whether they passed.", checks),
        Family("metric", "", "gauge", "Metrics of the test itself, in its own units.", metrics),
    )


class MeasuredRows:
    """What there is of steps, or of calls of one name."""

    def __init__(self, at_ns: int) -> None:
        self._at_ns = at_ns
        self.runs, self.codes, self.errors = list[MeasuredPoint](), list[MeasuredPoint](), list[MeasuredPoint]()
        self.response, self.service = list[MeasuredSummary](), list[MeasuredSummary]()

    def add(self, row: Step | Call, labels: dict[str, str]) -> None:
        at_ns = self._at_ns
        self.runs += [MeasuredPoint({**labels, "status": status}, getattr(row, status), at_ns) for status in OUTCOMES]
        for code, count in row.status_codes.items():
            self.codes.append(MeasuredPoint({**labels, "status": "other" if code == "0" else code}, count, at_ns))
        self.codes += [
            MeasuredPoint({**labels, "status": label}, count, at_ns) for label, count in row.outcomes.items()
        ]
        self.errors += [MeasuredPoint({**labels, "kind": kind}, count, at_ns) for kind, count in row.errors.items()]
        self.response += summary_of(labels, row.response_time_ms, row.histogram, at_ns)
        self.service += summary_of(labels, row.service_time_ms, row.service_histogram, at_ns)


def tag_labels(step: Step) -> dict[str, str]:
    """Tags of the test's own, under names that no other label has."""
    return {f"tag_{NOT_A_LABEL.sub('_', key)}": value for key, value in sorted(step.tags.items())}


def points_of_metrics(workflow: Workflow, labels: dict[str, str], at_ns: int) -> Iterable[MeasuredPoint]:
    for metric in workflow.metrics:
        numbers: dict[str, float | None] = {"values": metric.values, "total": metric.total}
        numbers |= {"min": metric.min, "mean": metric.mean, "max": metric.max, **(metric.percentiles or {})}
        for statistic, number in numbers.items():
            if number is not None and math.isfinite(number):
                yield MeasuredPoint({**labels, "metric": metric.name, "statistic": statistic}, number, at_ns)


def summary_of(
    labels: dict[str, str], times: Times | None, histogram: str | None, at_ns: int
) -> Iterable[MeasuredSummary]:
    if times is not None and histogram is not None:
        # How many there are is told by the histogram alone: not every failure has a time.
        count = hdr.decode(histogram).count
        quantiles = {quantile: seconds(getattr(times, field)) for quantile, field in QUANTILES.items()}
        yield MeasuredSummary(labels, quantiles, count, seconds(times.mean * count), at_ns)


def seconds(ms: float) -> float:
    return round(ms / 1000, 9)


def with_points(*families: Family) -> list[Family]:
    return [family for family in families if family.points or family.summaries]


def times_of_step(step: Step | Call) -> dict[str, float]:
    """The times of a step by name, in milliseconds; those without a sample are left out."""
    return {
        f"{label}_{field}_ms": getattr(times, field)
        for label, times in (("response", step.response_time_ms), ("service", step.service_time_ms))
        if times is not None
        for field in Times.__struct_fields__
    }
