"""Makes the result document out of a job that has ended."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from talka.control.load.load_job import LoadJob
from talka.control.load.shard_group import ShardGroup
from talka.control.load.shard_run import LostShard, ShardAttempt
from talka.report.document import (
    MEASURES,
    Call,
    Check,
    CoreHealth,
    ErrorSample,
    Generator,
    Job,
    Lost,
    Metric,
    MoreTimeGiven,
    ResultDocument,
    Step,
    Threshold,
    Times,
    Totals,
    Workflow,
)
from talka.report.generator import cpu_of, late_from_us, median_of, verdict_of, worst
from talka.report.over_time import step_rows, timeline_of
from talka.stats import hdr
from talka.stats.histogram import Histogram, merged
from talka.stats.machine import Machine
from talka.stats.tally import (
    OTHER_CALLS,
    CheckTally,
    GeneratorTally,
    MetricTally,
    Sample,
    StepTally,
    Tally,
)
from talka.units import SECOND
from talka.wire.orders import Outlined
from talka.work.deadlines import Deadline
from talka.work.failures import of_requests, of_steps
from talka.work.lifecycle import TaskState
from talka.work.load import Plan
from talka.work.outcome import Outcome, OutcomeFacts, decide
from talka.work.specs import NodeOutline, NodeSpec

PLAN_POINTS: Final = 1000
"""At which a plan is looked at for its mean."""
ROWS_LIMIT: Final = 1_000
"""Steps and calls of a whole job: each is a set of labels in the systems that results are sent to."""


Node: TypeAlias = NodeSpec | NodeOutline


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What the job itself does not know."""

    name: str
    file: str | None
    started_at: str
    version: str
    allow_partial: bool = False
    warnings: tuple[str, ...] = ()
    datacenters: tuple[str, ...] = ()
    """Where it ran; empty for a local run."""


def build(job: LoadJob, specs: Sequence[Outlined], meta: Meta) -> ResultDocument:
    tally = job.tally()
    verdicts = job.verdicts(job.ended_ns)
    outcome = outcome_of(job, tally, [verdict.passed for _, _, verdict in verdicts], meta.allow_partial)
    generator = generator_of(job, tally, meta.version)
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
        timeline=timeline_of(job.timeline, [run.timeline for run in job.workflows.values()]),
        lost_shards=[lost_of(lost) for lost in job.lost],
        datacenters=list(meta.datacenters),
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
        OutcomeFacts(
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
        **msgspec.structs.asdict(exchanges),
        requests=exchanges.requests,
        rate_per_s=per_second(exchanges.requests, span_s),
        iterations=tally.iterations,
        dropped_iterations=tally.dropped,
        interrupted_iterations=tally.interrupted_iterations,
    )


def fold_rows(tallies: Mapping[str, Tally]) -> list[str]:
    """Names of calls beyond as many rows as a result has are counted as others. Answers with a warning that shows
    one."""
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
        f"a result has at most {ROWS_LIMIT:,} rows: calls of {len(rest):,} names, such as {name!r} in "
        f"{workflow}.{node},"
        f" are counted as {OTHER_CALLS}; leave ids out of name="
    ]


def workflow_of(job: LoadJob, run: ShardGroup, spec: Outlined, tally: Tally) -> Workflow:
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
        checks=[
            Check(name, check.passed, check.failed, samples_of(check.samples)) for name, check in tally.checks.items()
        ],
        metrics=[metric_of(name, metric, span_s) for name, metric in tally.metrics.items()],
        implied_vus=implied_vus(run, tally, spec.think_ns, span_s),
        busy_vus=per_second(tally.busy_ns / SECOND, span_s),
        mean_vus=mean_vus(run.spec.plan, round(elapsed_s * SECOND)),
        timeline=step_rows(run.timeline),
        interrupted_iterations=tally.interrupted_iterations,
        shares_cores_with=list(run.shares_with),
        more_time=more_time_of(run.deadline),
        was_warned=run.deadline is not None and run.deadline.is_warned,
    )


def more_time_of(deadline: Deadline | None) -> list[MoreTimeGiven]:
    return [
        MoreTimeGiven(
            round(given.at_ns / SECOND, 3), given.ns / SECOND, given.reason, round(given.estimate_ns / SECOND, 3)
        )
        for given in ([] if deadline is None else deadline.extensions)
    ]


def rows_of(spec: Outlined, tally: Tally) -> list[Node]:
    """The methods that have a row: steps and actions, and whatever else was counted or made calls."""
    listed = [
        node for node in spec.nodes if node.kind in ("step", "action") or node.measured or node.name in tally.calls
    ]
    known = {node.name for node in spec.nodes}
    others = [name for name in {**tally.steps, **tally.calls} if name not in known]
    return [*listed, *(NodeOutline(name, "step", name in tally.steps) for name in others)]


def implied_vus(run: ShardGroup, tally: Tally, think_ns: int, span_s: float) -> float:
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
    shown = msgspec.structs.replace(runs, response_time=times, service_time=calls.service_time, outcomes=calls.outcomes)
    row = msgspec.structs.asdict(call_of(name, shown, span_s))
    if not has_times:
        row |= {"histogram": None, "service_histogram": None}
    return Step(
        **row,
        measured=measured,
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
        status_codes={str(code): count for code, count in tally.statuses.items()},
        errors=dict(sorted(tally.errors.items(), key=lambda item: -item[1])),
        samples=samples_of(tally.samples),
        histogram=hdr.encode(tally.response_time),
        service_histogram=hdr.encode(tally.service_time),
        outcomes=tally.labels,
    )


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


def lost_of(lost: LostShard) -> Lost:
    from_s, to_s = round(lost.from_ns / SECOND, 3), round(lost.to_ns / SECOND, 3)
    return Lost(lost.workflow, lost.shard, lost.cause, from_s, to_s, lost.vus_missing, lost.arrivals_missing)


def start_skew_ms(job: LoadJob) -> float:
    """The most by which shards of one workflow started apart."""
    skews = [0.0]
    for run in job.workflows.values():
        first = [shard.attempts[0] for shard in run.shards if shard.attempts and shard.attempts[0].started_at_ns]
        if first:
            latest = max(attempt.started_at_ns + attempt.spread_ns for attempt in first)
            skews.append((latest - min(attempt.started_at_ns for attempt in first)) / 1e6)
    return round(max(skews), 3)


def generator_of(job: LoadJob, tally: Tally, version: str) -> Generator:
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
        machine=machine_of(job),
    )


def machine_of(job: LoadJob) -> Machine | None:
    """Of the core that was latest, as it is what needs an explanation; of the one with the most going on where none
    was."""
    told = [
        health for attempt in attempts_of(job) for health in [attempt.tally.generator] if health.machine is not None
    ]

    def latest(health: GeneratorTally) -> tuple[float, ...]:
        assert health.machine is not None
        return (health.start_lag.percentile(99) if health.start_lag.count else -1, *health.machine.pressed)

    return max(told, key=latest).machine if told else None


def process_of(attempt: ShardAttempt) -> str:
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
    return merged(health.loop_lag for health in [*longest.values(), *rest])


def attempts_of(job: LoadJob) -> list[ShardAttempt]:
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
    if (text := lateness_text(generator)) is not None:
        found.append(text)
    return found


def lateness_text(generator: Generator) -> str | None:
    """Why these numbers may not be the target's alone. Cores are judged one by one, so the latest one's lag is told."""
    lags = [core.start_lag_p99_ms for core in generator.cores if core.start_lag_p99_ms is not None]
    late = ""
    if lags:
        late = f"starts were late by {max(lags):.1f} ms at p99" + (" on the latest core" if len(lags) > 1 else "")
    if generator.saturated:
        return (
            f"the generator was the bottleneck: its busiest core used {generator.cpu:.0%} of a CPU"
            + (f", {late}" if late else "")
            + "; the target may be faster than these numbers"
        )
    if generator.verdict == "disturbed":
        told = generator.machine.text if generator.machine is not None else ""
        return (
            f"{late} while the generator was idle (its busiest core used {generator.cpu:.0%} of a CPU): the machine, or"
            " code of the test that blocks, delayed it" + (f" ({told})" if told else "")
        )
    return None


def per_second(count: float, elapsed_s: float) -> float:
    return round(count / elapsed_s, 3) if elapsed_s else 0.0
