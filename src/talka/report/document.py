"""The result document, schema `talka.result/1`: what `--json` writes and every other report is made from.

Its fields are promised: later versions add some and change none.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from talka.control.load_job import LoadJob, WorkflowRun
from talka.control.shard_run import Attempt, LostShard
from talka.errors import Invalid
from talka.report.generator import Machine, cpu_of, late_from_us, median_of, verdict_of, worst
from talka.stats import hdr
from talka.stats.histogram import Histogram
from talka.stats.tally import (
    OTHER_CALLS,
    CheckTally,
    GeneratorTally,
    MetricTally,
    Sample,
    StepTally,
    Tally,
    add_counts,
)
from talka.stats.windows import Span, StepWindow, Timeline
from talka.work.failures import Failures, of_requests, of_steps, worse
from talka.work.lifecycle import TaskState
from talka.work.load import Plan
from talka.work.outcome import Facts, Outcome, decide
from talka.work.specs import Node, NodeOutline, Outlined

SCHEMA: Final = "talka.result/1"
SECOND: Final = 1_000_000_000
PLAN_POINTS: Final = 1000
"""At which a plan is looked at for its mean."""
MEASURES: Final = 2
"""Every call has a name and a row, and a step's response time is that of all its calls. Before, 1, it was that of the
response it returned."""
ROWS_LIMIT: Final = 1_000
"""Steps and calls of a whole job: each is a set of labels in the systems that results are sent to."""
STEP_ROWS: Final = 300
"""Of a step over time: as many as a picture can show."""
WORKFLOW_ROWS: Final = 6_000
"""Of all steps of a workflow. Where there are many, each has fewer."""
STEP_ROWS_AT_LEAST: Final = 20
ROW_WIDTHS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400)
"""Every one of which is a whole part, or a multiple, of the spans of a timeline."""


class BadResult(Invalid):
    """A file that is not a result document we can read."""


class Job(msgspec.Struct, frozen=True):
    id: str
    name: str
    file: str | None


class Totals(msgspec.Struct, frozen=True):
    """Every exchange, by what became of it: requests = ok + failed + interrupted."""

    requests: int
    ok: int
    failed: int
    interrupted: int
    not_sent: int
    rate_per_s: float
    bytes_sent: int
    bytes_received: int
    iterations: int
    dropped_iterations: int
    connections: int
    reconnects: int
    interrupted_iterations: int = 0
    """Iterations that began and were cut off before their end."""


class Times(msgspec.Struct, frozen=True):
    """Milliseconds."""

    min: float
    mean: float
    stdev: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float


class ErrorSample(msgspec.Struct, frozen=True):
    t_s: float
    kind: str
    text: str


class Call(msgspec.Struct, frozen=True):
    """Calls of one name in one method, each from the instant its user wanted it."""

    name: str
    count: int
    ok: int
    failed: int
    interrupted: int
    rate_per_s: float
    response_time_ms: Times | None
    service_time_ms: Times | None
    status_codes: dict[str, int]
    errors: dict[str, int]
    samples: list[ErrorSample]
    histogram: str | None
    service_histogram: str | None


class Step(msgspec.Struct, frozen=True):
    """Runs of one method. Service times and status codes are those of all its calls."""

    name: str
    measured: bool
    count: int
    ok: int
    failed: int
    interrupted: int
    rate_per_s: float
    response_time_ms: Times | None
    service_time_ms: Times | None
    status_codes: dict[str, int]
    errors: dict[str, int]
    samples: list[ErrorSample]
    histogram: str | None
    """Response times in microseconds, HdrHistogram V2, compressed, base64."""
    service_histogram: str | None
    tags: dict[str, str]
    skipped: int = 0
    """Runs that did nothing, on purpose or because what they wait for gave nothing: in no other count."""
    calls: list[Call] = []
    """By name, where they have others than the method's own, or where there were or failed more of them than runs."""


class Check(msgspec.Struct, frozen=True):
    name: str
    passed: int
    failed: int
    samples: list[ErrorSample]


class Metric(msgspec.Struct, frozen=True):
    name: str
    kind: str
    values: int
    total: float
    rate_per_s: float
    min: float | None
    mean: float | None
    max: float | None
    percentiles: dict[str, float] | None


class StepRow(msgspec.Struct, frozen=True):
    """What became of one step in one stretch of time."""

    step: str
    t_s: float
    width_s: float
    count: int
    failed: int
    errors: dict[str, int] = {}
    """Failures by kind."""
    p50_ms: float | None = None
    """Response times of the stretch; None where nothing was measured."""
    p95_ms: float | None = None
    p99_ms: float | None = None


class Workflow(msgspec.Struct, frozen=True):
    name: str
    status: str
    model: str
    load: str
    vus: int
    cores: int
    duration_s: float
    iterations: int
    dropped_iterations: int
    failure: str | None
    steps: list[Step]
    checks: list[Check]
    metrics: list[Metric]
    implied_vus: float = 0.0
    """How many users the numbers stand for: throughput x (latency + think time). Close to `mean_vus` when users spend
    their time in measured steps; far above it, steps of a layer overlap; far below, they do something else."""
    mean_vus: float | None = None
    """How many there were on average (closed model)."""
    timeline: list[StepRow] = []
    """By step and stretch of time; empty in results that have none."""
    interrupted_iterations: int = 0
    busy_vus: float | None = None
    """How many users were in an iteration on average, pauses inside steps included; None: it was not measured."""
    shares_cores_with: list[str] = []
    """Workflows with shards on one of its cores at the same time: there were fewer cores than workflows."""


class Threshold(msgspec.Struct, frozen=True):
    rule: str
    value: float | None
    passed: bool
    workflow: str | None
    shown: str


class TimelineRow(msgspec.Struct, frozen=True):
    t_s: float
    width_s: float
    iterations_started: int
    requests: int
    failed: int
    vus: int
    response_p50_ms: float | None
    response_p99_ms: float | None
    response_p95_ms: float | None = None
    errors: dict[str, int] = {}
    """Failures by kind, in results that tell them by time."""


class Lost(msgspec.Struct, frozen=True):
    workflow: str
    shard: int
    cause: str
    from_s: float
    to_s: float
    vus_missing: int
    arrivals_missing: int


class CoreHealth(msgspec.Struct, frozen=True):
    workflow: str
    shard: int
    attempt: int
    cpu: float
    start_lag_p99_ms: float | None
    loop_lag_p99_ms: float | None
    max_rss_bytes: int
    process: str = ""
    """CPU, loop lag and memory are of the whole process: rows that name the same one tell the same. Its number, after that
    of its worker on a cluster; empty where a row is of several."""


class Generator(msgspec.Struct, frozen=True):
    """How well the generator kept up. `cpu` is the busiest core's share of one CPU."""

    engine: str
    """native or python; both where cores differed."""
    version: str
    cpu: float
    start_lag_ms: Times | None
    loop_lag_ms: Times | None
    saturated: bool
    cores: list[CoreHealth]
    ui_cpu: float = 0.0
    """The share of one CPU that drawing the live view took."""
    driver: str = ""
    """What ran the users on the native engine: direct, task, or both, as workflows differ."""
    verdict: str = ""
    """on time, saturated or disturbed; empty in results that do not tell them apart."""
    machine: Machine | None = None
    """What else went on; None where nobody looked."""

    @property
    def engine_text(self) -> str:
        return (self.engine or "unknown") + (f" ({self.driver})" if self.driver else "")


class ResultDocument(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    job: Job
    status: str
    exit_code: int
    reasons: list[str]
    started_at: str
    duration_s: float
    totals: Totals
    workflows: list[Workflow]
    thresholds: list[Threshold]
    timeline: list[TimelineRow]
    lost_shards: list[Lost]
    datacenters: list[str]
    start_skew_ms: float
    generator: Generator
    warnings: list[str]
    measures: int = 1
    """By which rules response times and failures were counted. Results of different rules cannot be compared."""

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What the job itself does not know."""

    name: str
    file: str | None
    started_at: str
    version: str
    allow_partial: bool = False
    warnings: tuple[str, ...] = ()
    machine: Machine | None = None


def build(job: LoadJob, specs: Sequence[Outlined], meta: Meta) -> ResultDocument:
    """The document of a job that has ended."""
    tally = job.tally()
    verdicts = job.verdicts(job.ended_ns)
    outcome = outcome_of(job, tally, [verdict.passed for _, _, verdict in verdicts], meta.allow_partial)
    generator = generator_of(job, tally, meta.version, meta.machine)
    by_name = {spec.name: spec for spec in specs}
    tallies = {name: run.tally() for name, run in job.workflows.items()}
    folded = fold_rows(tallies)
    return ResultDocument(
        job=Job(job.spec.job, meta.name, meta.file),
        status=str(outcome.state),
        exit_code=int(outcome.exit_code),
        reasons=outcome.reasons,
        started_at=meta.started_at,
        duration_s=round(job.elapsed_ns(job.ended_ns) / SECOND, 3),
        totals=totals_of(tally, job.span_ns(job.ended_ns) / SECOND),
        workflows=[workflow_of(job, run, by_name[name], tallies[name]) for name, run in job.workflows.items()],
        thresholds=[
            Threshold(verdict.rule, verdict.value, verdict.passed, workflow, verdict.shown)
            for workflow, _, verdict in verdicts
        ],
        timeline=timeline_of(job),
        lost_shards=[lost_of(lost) for lost in job.lost],
        datacenters=[],
        start_skew_ms=start_skew_ms(job),
        generator=generator,
        warnings=[*meta.warnings, *warnings_of(job, specs, generator), *folded],
        measures=MEASURES,
    )


def outcome_of(job: LoadJob, tally: Tally, passed: Sequence[bool], allow_partial: bool) -> Outcome:
    setup, unreachable = None, None
    for run in job.workflows.values():
        if run.refused is not None and run.refused.reason == "unreachable":
            unreachable = unreachable or run.refused.text
        elif run.state is TaskState.FAILED and (run.refused is not None or not run.spec.is_test):
            setup = setup or f"{run.spec.name}: {run.failure}"
    unfinished = (TaskState.FAILED, TaskState.SKIPPED, TaskState.TIMEOUT)
    steps = tally.steps.values()
    # Iterations of closed workflows beside them were no arrivals, and must not make the dropped ones look few.
    open_tallies = [run.tally() for run in job.workflows.values() if run.spec.plan.model == "open"]
    return decide(
        Facts(
            samples=sum(step.ok + step.failed for step in steps),
            ok=sum(step.ok for step in steps),
            arrivals=sum(part.started + part.dropped for part in open_tallies),
            dropped=tally.dropped,
            thresholds_held=all(passed),
            aborted=job.aborted is not None,
            interrupted_by=job.interrupted_by,
            timed_out=any(run.state is TaskState.TIMEOUT for run in job.workflows.values()),
            lost_shards=len(job.lost),
            unfinished_workflows=sum(run.state in unfinished for run in job.workflows.values()),
            fruitless=tuple(name for name, run in job.workflows.items() if is_fruitless(run.tally())),
            setup_failed=setup,
            unreachable=unreachable,
            allow_partial=allow_partial,
        )
    )


def is_fruitless(tally: Tally) -> bool:
    """Whether it sent requests and had no success. A step that succeeds without one is a success too."""
    steps, requests = of_steps(tally.steps.values()), of_requests(tally.exchanges)
    counted = steps if steps.ended else requests
    return requests.ended > 0 and counted.failed == counted.ended > 0


def totals_of(tally: Tally, span_s: float) -> Totals:
    exchanges = tally.exchanges
    return Totals(
        requests=exchanges.requests,
        ok=exchanges.ok,
        failed=exchanges.failed,
        interrupted=exchanges.interrupted,
        not_sent=exchanges.not_sent,
        rate_per_s=per_second(exchanges.requests, span_s),
        bytes_sent=exchanges.bytes_sent,
        bytes_received=exchanges.bytes_received,
        iterations=tally.iterations,
        dropped_iterations=tally.dropped,
        connections=exchanges.connections,
        reconnects=exchanges.reconnects,
        interrupted_iterations=tally.interrupted_iterations,
    )


def fold_rows(tallies: Mapping[str, Tally]) -> list[str]:
    """Names of calls beyond as many rows as a result has are counted as others. Answers with a warning that shows one."""
    methods = sum(len(tally.steps.keys() | tally.actions.keys() | tally.calls.keys()) for tally in tallies.values())
    named = [
        (-call.seen, workflow, node, name)
        for workflow, tally in tallies.items()
        for node, calls in tally.calls.items()
        for name, call in calls.items()
        if name not in (node, OTHER_CALLS)
    ]
    rest = sorted(named)[max(0, ROWS_LIMIT - methods) :]
    for _, workflow, node, name in rest:
        calls = tallies[workflow].calls[node]
        calls.setdefault(OTHER_CALLS, StepTally()).merge(calls.pop(name))
    if not rest:
        return []
    _, workflow, node, name = rest[-1]
    return [
        f"a result has at most {ROWS_LIMIT:,} rows: calls of {len(rest):,} names, such as {name!r} in {workflow}.{node},"
        f" are counted as {OTHER_CALLS}; leave ids out of name="
    ]


def workflow_of(job: LoadJob, run: WorkflowRun, spec: Outlined, tally: Tally) -> Workflow:
    elapsed_s = run.elapsed_ns(job.ended_ns) / SECOND
    span_s = run.span_ns(job.ended_ns) / SECOND
    # Attempts do not tell: a core replaced before the start cost nothing, one lost at the end was not replaced.
    partial = run.state is TaskState.COMPLETED and any(lost.workflow == run.spec.name for lost in job.lost)
    return Workflow(
        name=run.spec.name,
        status="partial" if partial else str(run.state),
        model=run.spec.plan.model,
        load=spec.load,
        vus=run.spec.plan.vus,
        cores=run.cores,
        duration_s=round(elapsed_s, 3),
        iterations=tally.iterations,
        dropped_iterations=tally.dropped,
        failure=run.failure,
        steps=[
            step_of(node.name, node.measured, runs_of(node, tally), span_s, node.tags, tally.calls.get(node.name) or {})
            for node in rows_of(spec, tally)
        ],
        checks=[check_of(name, check) for name, check in tally.checks.items()],
        metrics=[metric_of(name, metric, span_s) for name, metric in tally.metrics.items()],
        implied_vus=implied_vus(run, tally, spec.think_ns, span_s),
        busy_vus=per_second(tally.busy_ns / SECOND, span_s),
        mean_vus=mean_vus(run.spec.plan, round(elapsed_s * SECOND)),
        timeline=step_rows(run.timeline),
        interrupted_iterations=tally.interrupted_iterations,
        shares_cores_with=list(run.shares_with),
    )


def rows_of(spec: Outlined, tally: Tally) -> list[Node]:
    """The methods that have a row: steps and actions, and whatever else was counted or made calls."""
    listed = [
        node for node in spec.nodes if node.kind in ("step", "action") or node.measured or node.name in tally.calls
    ]
    known = {node.name for node in spec.nodes}
    others = [name for name in {**tally.steps, **tally.calls} if name not in known]
    return [*listed, *(NodeOutline(name, "step", name in tally.steps) for name in others)]


def implied_vus(run: WorkflowRun, tally: Tally, think_ns: int, span_s: float) -> float:
    """Little's law. Open model: from the send, as a call that waits for a free user keeps none busy."""
    if run.spec.plan.model == "open":
        calls = [call for by_name in tally.calls.values() for call in by_name.values()]
        in_steps_us = sum(part.service_time.total for part in calls or tally.steps.values())
    else:
        in_steps_us = sum(step.response_time.total for step in tally.steps.values())
    return per_second(in_steps_us / 1e6 + tally.iterations * think_ns / SECOND, span_s)


def mean_vus(plan: Plan, elapsed_ns: int) -> float | None:
    if plan.model == "open":
        return None
    length_ns = min(elapsed_ns, plan.length_ns or elapsed_ns)
    looks = [plan.vus_at(length_ns * (2 * point + 1) // (2 * PLAN_POINTS)) for point in range(PLAN_POINTS)]
    return round(sum(looks) / PLAN_POINTS, 3)


def step_of(
    name: str,
    measured: bool,
    runs: StepTally,
    span_s: float,
    tags: Mapping[str, str],
    by_name: Mapping[str, StepTally] = MappingProxyType({}),
) -> Step:
    """A method's row, with its calls by name."""
    # What was counted before calls had names is all in the step itself.
    calls = together(by_name.values()) if by_name else runs
    times = runs.response_time if measured else calls.response_time
    has_times = measured or bool(by_name)
    # A method of which each run makes one call under its own name is one row. An action does not fail by its calls.
    is_one_row = by_name.keys() <= {name} and calls.count <= runs.count and calls.failed <= runs.failed
    return Step(
        name=name,
        measured=measured,
        count=runs.count,
        ok=runs.ok,
        failed=runs.failed,
        interrupted=runs.interrupted,
        rate_per_s=per_second(runs.ok + runs.failed, span_s),
        response_time_ms=times_of(times),
        service_time_ms=times_of(calls.service_time),
        status_codes=codes_of(calls),
        errors=errors_of(runs),
        samples=samples_of(runs.samples),
        histogram=hdr.encode(times) if has_times else None,
        service_histogram=hdr.encode(calls.service_time) if has_times else None,
        tags=dict(tags),
        skipped=runs.skipped,
        calls=[call_of(call, by_name[call], span_s) for call in sorted(by_name)] if not is_one_row else [],
    )


def together(tallies: Iterable[StepTally]) -> StepTally:
    whole = StepTally()
    for tally in tallies:
        whole.merge(tally)
    return whole


def runs_of(node: Node, tally: Tally) -> StepTally:
    """Of a check its runs alone: what was wrong is told where checks are."""
    if node.kind == "check":
        check = tally.checks.get(node.name, CheckTally())
        return StepTally(ok=check.passed, failed=check.failed)
    return (tally.steps if node.measured else tally.actions).get(node.name, StepTally())


def call_of(name: str, tally: StepTally, span_s: float) -> Call:
    return Call(
        name=name,
        count=tally.count,
        ok=tally.ok,
        failed=tally.failed,
        interrupted=tally.interrupted,
        rate_per_s=per_second(tally.ok + tally.failed, span_s),
        response_time_ms=times_of(tally.response_time),
        service_time_ms=times_of(tally.service_time),
        status_codes=codes_of(tally),
        errors=errors_of(tally),
        samples=samples_of(tally.samples),
        histogram=hdr.encode(tally.response_time),
        service_histogram=hdr.encode(tally.service_time),
    )


def codes_of(tally: StepTally) -> dict[str, int]:
    return {str(code): count for code, count in sorted(tally.status_codes.items())}


def errors_of(tally: StepTally) -> dict[str, int]:
    return dict(sorted(tally.errors.items(), key=lambda item: -item[1]))


def check_of(name: str, tally: CheckTally) -> Check:
    return Check(name, tally.passed, tally.failed, samples_of(tally.samples))


def metric_of(name: str, tally: MetricTally, elapsed_s: float) -> Metric:
    percentiles = None
    if tally.kind == "distribution" and tally.values:
        percentiles = {
            f"p{percent:g}".replace(".", "_"): tally.thousandths.percentile(percent) / 1000
            for percent in (50, 90, 95, 99, 99.9)
        }
    return Metric(
        name=name,
        kind=tally.kind,
        values=tally.values,
        total=tally.total,
        rate_per_s=per_second(tally.total, elapsed_s),
        min=tally.min,
        mean=tally.total / tally.values if tally.values else None,
        max=tally.max,
        percentiles=percentiles,
    )


def samples_of(samples: Sequence[Sample]) -> list[ErrorSample]:
    return [ErrorSample(round(sample.at_ns / SECOND, 3), sample.kind, sample.text) for sample in samples]


def times_of(histogram: Histogram) -> Times | None:
    if not histogram.count:
        return None

    def at(percent: float) -> float:
        return histogram.percentile(percent) / 1000

    return Times(
        min=histogram.min / 1000,
        mean=round(histogram.mean / 1000, 3),
        stdev=round(histogram.stdev / 1000, 3),
        p50=at(50),
        p90=at(90),
        p95=at(95),
        p99=at(99),
        p99_9=at(99.9),
        max=histogram.max / 1000,
    )


def timeline_of(job: LoadJob) -> list[TimelineRow]:
    return with_errors([row_of(span) for span in job.timeline.spans()], job)


def with_errors(rows: Sequence[TimelineRow], job: LoadJob) -> list[TimelineRow]:
    """With kinds of failures, which the timelines of workflows know."""
    if not rows:
        return []
    starts = [round(row.t_s * SECOND) for row in rows]
    ends = [start + round(row.width_s * SECOND) for start, row in zip(starts, rows, strict=True)]
    errors: list[dict[str, int]] = [{} for _ in rows]
    for run in job.workflows.values():
        # The job's timeline is never finer than a workflow's: each of their spans lies in one of its own.
        for span in run.timeline.spans():
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


def lost_of(lost: LostShard) -> Lost:
    return Lost(
        lost.workflow,
        lost.shard,
        lost.cause,
        round(lost.from_ns / SECOND, 3),
        round(lost.to_ns / SECOND, 3),
        lost.vus_missing,
        lost.arrivals_missing,
    )


def start_skew_ms(job: LoadJob) -> float:
    """The most by which shards of one workflow started apart."""
    skews = [0.0]
    for run in job.workflows.values():
        first = [shard.attempts[0] for shard in run.shards if shard.attempts and shard.attempts[0].started_at_ns]
        if first:
            latest = max(attempt.started_at_ns + attempt.spread_ns for attempt in first)
            skews.append((latest - min(attempt.started_at_ns for attempt in first)) / 1e6)
    return round(max(skews), 3)


def generator_of(job: LoadJob, tally: Tally, version: str, machine: Machine | None = None) -> Generator:
    cores = [
        CoreHealth(
            workflow=name,
            shard=shard.shard.index,
            attempt=number,
            cpu=round(cpu_of(health), 3),
            start_lag_p99_ms=health.start_lag.percentile(99) / 1000 if health.start_lag.count else None,
            loop_lag_p99_ms=health.loop_lag.percentile(99) / 1000 if health.loop_lag.count else None,
            max_rss_bytes=health.max_rss_bytes,
            process=process_of(attempt),
        )
        for name, run in job.workflows.items()
        for shard in run.shards
        for number, attempt in enumerate(shard.attempts, 1)
        for health in [attempt.tally.generator]
    ]
    busiest = max((core.cpu for core in cores), default=0.0)
    verdict = worst(
        verdict_of(health, lag_us, late_from_us(median_of(counted.steps.values())) if lag_us is not None else 0)
        for attempt in attempts_of(job)
        for counted in [attempt.tally]
        for health in [counted.generator]
        for lag_us in [health.start_lag.percentile(99) if health.start_lag.count else None]
    )
    engines = [word.partition("/") for word in job.engine.split(", ")]
    return Generator(
        engine=", ".join(sorted({engine for engine, _, _ in engines})),
        version=version,
        cpu=busiest,
        start_lag_ms=times_of(tally.generator.start_lag),
        loop_lag_ms=times_of(loop_lag_of(job)),
        saturated=verdict == "saturated",
        cores=cores,
        driver=", ".join(sorted({driver for _, _, driver in engines if driver})),
        verdict=verdict,
        machine=machine,
    )


def failures_of(document: ResultDocument) -> Failures:
    """The share of all that failed, as rules mean it."""
    steps = [step for workflow in document.workflows for step in workflow.steps if step.measured]
    failed = sum(step.failed for step in steps)
    not_ok = document.totals.failed + document.totals.not_sent
    return worse(
        Failures("request", not_ok, not_ok + document.totals.ok),
        Failures("step", failed, failed + sum(step.ok for step in steps)),
    )


def process_of(attempt: Attempt) -> str:
    number = attempt.tally.generator.process
    if number < 1:
        return ""
    return f"{attempt.place}/{number}" if attempt.place else str(number)


def loop_lag_of(job: LoadJob) -> Histogram:
    """Of every core process once: shards that share one have all measured the same lag."""
    longest: dict[str, GeneratorTally] = {}
    rest: list[GeneratorTally] = []
    for attempt in attempts_of(job):
        health, process = attempt.tally.generator, process_of(attempt)
        if not process:
            rest.append(health)
        elif process not in longest or health.wall_ns > longest[process].wall_ns:
            longest[process] = health
    whole = Histogram()
    for health in [*longest.values(), *rest]:
        whole.merge(health.loop_lag)
    return whole


def attempts_of(job: LoadJob) -> list[Attempt]:
    return [attempt for run in job.workflows.values() for shard in run.shards for attempt in shard.attempts]


def sharing_text(job: LoadJob) -> str:
    """Who shared cores with whom, each set of them once; empty where nobody did."""
    sets: list[str] = []
    for name, run in job.workflows.items():
        together = [other for other in job.workflows if other == name or other in run.shares_with]
        if run.shares_with and together[0] == name:
            sets.append(f"{', '.join(together[:-1])} and {together[-1]}")
    if not sets:
        return ""
    return f"there were fewer cores ({job.cores}) than workflows, so that some shared one: {'; '.join(sets)}"


def warnings_of(job: LoadJob, specs: Sequence[Outlined], generator: Generator) -> list[str]:
    found = [announcement for spec in specs for announcement in spec.announcements]
    found += [f"{name}: {run.failure}" for name, run in job.workflows.items() if run.failure]
    found += [f"{name}: {note}" for name, run in job.workflows.items() for note in run.notes]
    found += [text for text in [sharing_text(job)] if text]
    for lost in job.lost:
        missing = f"{lost.arrivals_missing} arrivals" if lost.arrivals_missing else f"{lost.vus_missing} VUs"
        found.append(
            f"the core of {lost.workflow}, shard {lost.shard}, {lost.cause}: nothing is known of it from "
            f"{lost.from_ns / SECOND:.1f} s to {lost.to_ns / SECOND:.1f} s ({missing} missing)"
        )
    for name, run in job.workflows.items():
        for action, tally in run.tally().actions.items():
            if tally.failed:
                times = "once" if tally.failed == 1 else f"{tally.failed} times, first"
                found.append(f"{name}.{action} failed {times}: {tally.samples[0].text}")
    for name, run in job.workflows.items():
        steps = run.tally().steps.values()
        if any(step.skipped for step in steps) and not any(step.count for step in steps):
            found.append(f"every step of {name} was skipped, every time: it says nothing about the target")
    if generator.saturated:
        late = generator.start_lag_ms
        found.append(
            f"the generator was the bottleneck: its busiest core used {generator.cpu:.0%} of a CPU"
            + (f", starts were late by {late.p99:.1f} ms at p99" if late else "")
            + "; the target may be faster than these numbers"
        )
    if generator.verdict == "disturbed" and generator.start_lag_ms is not None:
        told = generator.machine.text if generator.machine is not None else ""
        found.append(
            f"starts were late by {generator.start_lag_ms.p99:.1f} ms at p99 while the generator was idle (its busiest"
            f" core used {generator.cpu:.0%} of a CPU): the machine, or code of the test that blocks, held it up"
            + (f" ({told})" if told else "")
        )
    return found


def per_second(count: float, elapsed_s: float) -> float:
    return round(count / elapsed_s, 3) if elapsed_s else 0.0


def read(content: bytes) -> ResultDocument:
    """A document written before, by this version or a later one: unknown fields are ignored."""
    try:
        document = msgspec.json.decode(content, type=ResultDocument)
    except msgspec.MsgspecError as error:
        raise BadResult(f"this is not a result of talka ({SCHEMA}): {error}") from None
    if document.schema != SCHEMA:
        raise BadResult(f"this is a document of schema {document.schema!r}: only {SCHEMA} can be read")
    return document
