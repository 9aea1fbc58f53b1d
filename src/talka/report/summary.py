"""Plain text for terminals, files and CI logs: the end of a job, and a line of progress while it runs."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from talka.errors import Invalid
from talka.report.document import (
    Call,
    Check,
    ErrorSample,
    Generator,
    Lost,
    Metric,
    ResultDocument,
    Step,
    Threshold,
    Times,
    Workflow,
    failures_of,
)
from talka.report.job_view import JobView
from talka.report.text import (
    Style,
    TextPage,
    bytes_text,
    columns,
    counted_text,
    cut,
    glued,
    number_text,
    padded,
    rate_text,
    room_for,
    seconds_text,
    share_text,
    sign,
    time_text,
)
from talka.stats import hdr
from talka.stats.histogram import add_counts, merged
from talka.stats.tally import StepTally
from talka.units import SECOND
from talka.work.failures import of_all
from talka.work.lifecycle import TaskState
from talka.work.outcome import ExitCode

SAMPLES_SHOWN: Final = 5
SAMPLE_CHARACTERS_SHOWN: Final = 300
CODES_SHOWN: Final = 8
NAME_COLUMNS: Final = 20
FEWEST_COLUMNS: Final = 60
"""On a narrower page lines are broken rather than cut."""
NAMES_SHOWN: Final = 3
OVERLAP: Final = 1.05
"""As many times more at work than there are users cannot be chance."""
KIND_WORDS: Final = {"status": "their status", "check": "an assertion", "exception": "an exception of the test"}
STATS: Final = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p99.9": "p99_9", "max": "max"}
OTHER_STATS: Final = ("min", "mean", "stdev", "max")
PERCENTILE: Final = re.compile(r"p([0-9]{1,2}(\.[0-9]{1,4})?|100)")
STATS_LIMIT: Final = 12
ADDRESS: Final = re.compile(r"https?://((?:\[[^\]]+\]|[^/\s?#:\[]+)(?::[0-9]+)?)")
ANSWERED: Final = re.compile(r"answered (\S+)")
"""With which label, in the description of a response."""
CAUSE_CHARACTERS_SHOWN: Final = 60
CELL_COLUMNS: Final = 9
"""With less room than this for each time they are no table, but a list."""

Item = TypeVar("Item", Check, Metric, Step)

TWO_TIMES: Final = "response: time from the intended start. service: time from the send."
TLS_HINT: Final = (
    "If this server's certificate is meant to be so: -k (of a URL) or verify = False (in the workflow) trusts any, "
    'verify = "ca.pem" names who signed it.'
)
CLOSED_MODEL: Final = (
    "Closed model: a stalled server is met only by the requests under way. "
    "Use an arrival rate to see what users would feel."
)


class BadStats(Invalid):
    """Columns that the summary does not have."""


def parse_stats(text: str) -> tuple[str, ...]:
    """The columns of the summary, as in `p50,p95,p99.9`."""
    found = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    for name in found:
        if name not in OTHER_STATS and not PERCENTILE.fullmatch(name):
            raise BadStats(
                f"{name!r} is not a column: write percentiles such as p50 or p99.9, or {', '.join(OTHER_STATS)}"
            )
    if not 1 <= len(found) <= STATS_LIMIT:
        raise BadStats(f"{len(found)} columns cannot be shown: name 1 to {STATS_LIMIT}, as in p50,p95,p99.9")
    return found


class SummaryPage(TextPage):
    def __init__(self, width: int, *, color: bool, stats: Sequence[str]) -> None:
        super().__init__(width, color=color)
        self.stats = stats
        self.is_narrow = (self.width - 12) // len(stats) < CELL_COLUMNS


def summary(
    document: ResultDocument, *, width: int = 100, color: bool = False, stats: Sequence[str] = tuple(STATS)
) -> str:
    """What came of a job, the verdict first. The last line has no end of line."""
    page = SummaryPage(width, color=color, stats=stats)
    show_headline(page, document)
    show_thresholds(page, document)
    show_totals(page, document)
    for workflow in document.workflows:
        show_workflow(page, workflow)
    measured = [workflow for workflow in document.workflows if any(step.response_time_ms for step in workflow.steps)]
    if measured:
        page.gap()
        page.sentence(TWO_TIMES, indent=0)
    if any(workflow.model == "closed" for workflow in measured):
        page.sentence(CLOSED_MODEL, indent=0)
    show_errors(page, document)
    show_checks(page, document)
    show_metrics(page, document)
    show_lost_shards(page, document.lost_shards)
    show_generator(page, document)
    if document.warnings:
        page.section("WARNINGS")
        for warning in document.warnings:
            page.sentence(warning, lead="! ", style="yellow")
    return page.text()


def show_headline(page: TextPage, document: ResultDocument) -> None:
    is_good = document.exit_code == 0
    is_crossed = document.exit_code == ExitCode.THRESHOLD_CROSSED
    verdict = f"{sign(is_good)} {document.status.upper()}{', THRESHOLD CROSSED' if is_crossed else ''}"
    exit_code = "" if is_good else f"  (exit code {document.exit_code})"
    style: Style = "green" if is_good else "red"
    room = page.width - columns(verdict + exit_code) - 2
    if room >= min(columns(document.job.name), NAME_COLUMNS):
        page.line((verdict, style), "  ", (cut(document.job.name, room), "bold"), exit_code)
    else:
        page.fitted((verdict, style), glued(exit_code))
        page.line("  ", (cut(document.job.name, page.width - 2), "bold"))
    page.facts(facts_of(document))
    for reason in document.reasons:
        page.sentence(reason, style="yellow" if is_good else "red")
    if is_good:
        page.sentence(held_text(document), style="green" if document.thresholds else None)
    if is_good and (failed := failures_text(document)):
        page.sentence(failed, style="yellow")
    for sentence in failing_sentences(document):
        page.sentence(sentence, style="red")
    for error in frequent_errors(step for workflow in document.workflows for step in workflow.steps)[:1]:
        page.sentence(f"Most frequent error: {error.cause} × {error.times:,}.", style="yellow")


def facts_of(document: ResultDocument) -> list[str]:
    loads = [workflow.load for workflow in document.workflows]
    return [
        loads[0] if len(loads) == 1 else f"{len(loads)} workflows",
        f"ran {seconds_text(document.duration_s)}{cores_text(document)}",
        f"started {document.started_at}",
        *([f"in {', '.join(document.datacenters)}"] if document.datacenters else []),
    ]


def held_text(document: ResultDocument) -> str:
    """Of a job whose exit code is 0."""
    if not document.thresholds:
        return "No threshold was set: the exit code says only that the job ran."
    return f"Every threshold held ({len(document.thresholds)})."


def failures_text(document: ResultDocument) -> str:
    worst = failures_of(document)
    share = share_text(worst.failed, worst.ended)
    return f"{worst.failed:,} of {counted_text(worst.ended, worst.of)} failed ({share})." if worst.failed else ""


def failing_sentences(document: ResultDocument) -> list[str]:
    """Which steps failed more often than not, and what the test itself did wrong."""
    steps = [item for item in named(document, lambda workflow: workflow.steps) if item[1].measured]
    failing = [(name, step) for name, step in steps if step.failed * 2 > step.ok + step.failed]
    found = []
    for name, step in failing[:NAMES_SHOWN]:
        ended = step.ok + step.failed
        kind = next(iter(step.errors), "")
        mostly = f", mostly by {KIND_WORDS.get(kind, kind)}" if kind else ""
        share = share_text(step.failed, ended)
        found.append(f"{name}: {step.failed:,} of {counted_text(ended, 'run')} failed ({share}){mostly}.")
    if len(failing) > NAMES_SHOWN:
        more = len(failing) - NAMES_SHOWN
        found.append(
            f"{counted_text(more, 'more step')} failed in more than half of {'its' if more == 1 else 'their'} runs."
        )
    raised = [
        (name, step) for name, step in named(document, lambda workflow: workflow.steps) if "exception" in step.errors
    ]
    if raised:
        times = sum(step.errors["exception"] for _, step in raised)
        samples = [(sample, name) for name, step in raised for sample in step.samples if sample.kind == "exception"]
        first = min(samples, key=lambda item: item[0].t_s, default=None)
        what = f", first in {first[1]}: {sample_text(first[0])}" if first else ""
        found.append(f"The test's own code raised {counted_text(times, 'time')}{what}")
    return found


def cores_text(document: ResultDocument) -> str:
    """Workflows may have run side by side or one after the other, so their cores do not add up."""
    cores = sorted({workflow.cores for workflow in document.workflows if workflow.cores})
    if not cores:
        return ""
    counted = counted_text(cores[0], "core") if len(cores) == 1 else f"{cores[0]} to {cores[-1]} cores"
    return f" on {counted}{' each' if len(document.workflows) > 1 else ''}"


def show_thresholds(page: TextPage, document: ResultDocument) -> None:
    if not document.thresholds:
        return
    page.section("THRESHOLDS")
    labels = [rule_text(document, rule) for rule in document.thresholds]
    room = room_for(labels, page.width - 24)
    is_narrow = page.width < FEWEST_COLUMNS and room < room_for(labels, page.width)
    for label, rule in zip(labels, document.thresholds, strict=True):
        style: Style = "green" if rule.passed else "red"
        if is_narrow:
            page.fitted("  ", (sign(rule.passed), style), f" {label}  ", (rule.shown, style))
        else:
            page.line("  ", (sign(rule.passed), style), " ", padded(label, room), "  ", (rule.shown, style))


def rule_text(document: ResultDocument, rule: Threshold) -> str:
    return f"{rule.workflow}: {rule.rule}" if len(document.workflows) > 1 and rule.workflow else rule.rule


def show_totals(page: TextPage, document: ResultDocument) -> None:
    totals = document.totals
    all_failed = totals.failed + totals.not_sent
    with_these = f"{share_text(all_failed, totals.ok + all_failed)} failed with these" if totals.not_sent else ""
    page.section("TOTALS")
    rows: list[tuple[str, int, str, Style | None]] = [
        ("requests", totals.requests, rate_text(totals.rate_per_s), None),
        ("ok", totals.ok, share_text(totals.ok, totals.requests), None),
        ("failed", totals.failed, share_text(totals.failed, totals.ok + totals.failed), "red"),
        ("interrupted", totals.interrupted, "", "yellow"),
        ("not sent", totals.not_sent, with_these, "yellow"),
        ("iterations", totals.iterations, "", None),
        ("dropped", totals.dropped_iterations, "", "yellow"),
    ]
    steps = [step for workflow in document.workflows for step in workflow.steps if step.measured]
    if failed := sum(step.failed for step in steps):
        rows.insert(5, ("steps failed", failed, share_text(failed, failed + sum(step.ok for step in steps)), "red"))
    if totals.interrupted_iterations:
        rows.append(("cut off", totals.interrupted_iterations, "iterations that began and did not end", "yellow"))
    room = max(len(f"{count:,}") for _, count, _, _ in rows)
    for label, count, note, style in rows:
        page.fitted(f"  {label:<13}", (f"{count:>{room},}", style if count else None), f"  {note}", hang=15)
    sent, received = bytes_text(totals.bytes_sent), bytes_text(totals.bytes_received)
    page.fitted(f"  {'data':<13}{sent} sent, {received} received", hang=15)
    reconnects = counted_text(totals.reconnects, "reconnect")
    page.fitted(f"  {'connections':<13}{totals.connections:,} opened, {reconnects}", hang=15)


def show_workflow(page: SummaryPage, workflow: Workflow) -> None:
    page.section("STEPS", f" of {workflow.name}")
    facts = [workflow.load, f"{workflow.model} model"]
    if workflow.cores:
        facts.append(counted_text(workflow.cores, "core"))
        facts.append(f"{workflow.status} after {seconds_text(workflow.duration_s)}")
        facts.append(counted_text(workflow.iterations, "iteration"))
    else:
        facts.append(workflow.status)
    page.facts([*facts, *unfinished_facts(workflow)])
    if workflow.failure:
        page.sentence(workflow.failure, style="red")
    measured = [step for step in workflow.steps if step.measured]
    if not page.is_narrow and any(step.response_time_ms or step.service_time_ms for step in measured):
        show_cells(page, "", page.stats)
    room = room_for([step.name for step in measured], page.width // 2)
    for step in measured:
        show_step(page, step, room)
        show_calls(page, step)
    callers = [step for step in workflow.steps if not step.measured and step.histogram is not None]
    for step in callers:
        show_step(page, step, room_for([caller.name for caller in callers], page.width // 2))
        show_calls(page, step)
    if busy := busy_text(workflow):
        page.sentence(busy)
    others = [
        glued(f"{step.name} {runs_text(step)}")
        for step in workflow.steps
        if not step.measured and step.histogram is None
    ]
    if others:
        page.sentence("; ".join(others), lead="not measured: ")


def unfinished_facts(workflow: Workflow) -> list[str]:
    counts = {"dropped": workflow.dropped_iterations, "cut off": workflow.interrupted_iterations}
    return [f"{count:,} {what}" for what, count in counts.items() if count]


def busy_text(workflow: Workflow) -> str:
    """VUs that were busy on average. In results that did not measure it: iterations per second, times seconds per
    iteration, which is more than there are users where their steps overlap."""
    busy = workflow.implied_vus if workflow.busy_vus is None else workflow.busy_vus
    if not busy:
        return ""
    shown = f"{busy:,.1f}" if busy >= 1 else f"{busy:.2g}"
    there_are = workflow.mean_vus if workflow.mean_vus is not None else float(workflow.vus)
    if busy > there_are * OVERLAP:
        return f"on average {shown} steps were under way, as {there_are:,.1f} VUs ran several at a time"
    of = f" of {there_are:,.1f}" if workflow.mean_vus is not None else ""
    return f"on average {shown}{of} VUs were busy"


class CallRow(Step, frozen=True):
    """Calls of one name, shown as a step is."""


def show_calls(page: SummaryPage, step: Step) -> None:
    rows = [call_row(call) for call in step.calls]
    room = room_for([row.name for row in rows], page.width // 2)
    for row in rows:
        show_step(page, row, room)


def call_row(call: Call) -> CallRow:
    return CallRow(**msgspec.structs.asdict(call) | {"name": f"└ {call.name}", "measured": True, "tags": {}})


def show_step(page: SummaryPage, step: Step, room: int) -> None:
    show = page.fitted if page.width < FEWEST_COLUMNS else page.line
    runs = "  ".join(glued(part) for part in runs_text(step).split("  "))
    show("  ", (padded(step.name, room), "bold"), "  ", (runs, "red" if step.failed else None))
    show_times(page, "response", step.response_time_ms, step.histogram)
    show_times(page, "service", step.service_time_ms, step.service_histogram)
    show_outcomes(page, "status", "codes", codes_of(step))
    show_outcomes(page, "outcome", "outcomes", counted_labels(step.outcomes))


def show_outcomes(page: SummaryPage, lead: str, what: str, found: Sequence[str]) -> None:
    if found:
        more = [f"{len(found) - CODES_SHOWN} more {what}"] if len(found) > CODES_SHOWN else []
        page.sentence(", ".join([*found[:CODES_SHOWN], *more]), indent=4, lead=f"{lead:<10}")


def codes_of(step: Step) -> list[str]:
    return counted_labels({"other" if code == "0" else code: count for code, count in step.status_codes.items()})


def counted_labels(counts: Mapping[str, int]) -> list[str]:
    # Stable, so those of equal counts stay in the document's order.
    return [f"{label} × {count:,}" for label, count in sorted(counts.items(), key=lambda item: -item[1])]


def show_times(page: SummaryPage, label: str, times: Times | None, histogram: str | None) -> None:
    if times is None:
        return
    cells = [stat_text(name, times, histogram) for name in page.stats]
    if page.is_narrow:
        listed = [glued(f"{name} {cell}") for name, cell in zip(page.stats, cells, strict=True)]
        page.sentence("  ".join(listed), indent=4, lead=f"{label:<10}")
    else:
        show_cells(page, label, cells)


def stat_text(name: str, times: Times, histogram: str | None) -> str:
    """One time of a step. What the document does not say in figures, its histogram does."""
    value = getattr(times, name.replace(".", "_"), None)
    if value is None and histogram is not None:
        value = hdr.decode(histogram).percentile(float(name[1:])) / 1000
    return "-" if value is None else time_text(value)


def show_cells(page: SummaryPage, label: str, cells: Sequence[str]) -> None:
    room = min(10, (page.width - 12) // len(cells))
    page.line(f"    {label:<8}", "".join(f"{cell:>{room}}" for cell in cells))


def runs_text(step: Step) -> str:
    if not step.count:
        return f"never ran  skipped {step.skipped:,}" if step.skipped else "never ran"
    parts = [counted_text(step.count, "call" if isinstance(step, CallRow) else "run")]
    if step.measured:
        parts.append(rate_text(step.rate_per_s))
    if step.failed or step.measured:
        parts.append(failed_text(step.failed, step.ok + step.failed))
    if step.interrupted:
        parts.append(f"interrupted {step.interrupted:,}")
    if step.skipped:
        parts.append(f"skipped {step.skipped:,}")
    if step.tags:
        parts.append("{" + ", ".join(f"{key}={value}" for key, value in sorted(step.tags.items())) + "}")
    return "  ".join(parts)


def failed_text(failed: int, of: int) -> str:
    return f"failed {failed:,} ({share_text(failed, of)})" if failed else "failed 0"


def errors_of(step: Step) -> dict[str, int]:
    """Failures by kind. What is not measured does not fail by its calls, so theirs are told with it."""
    counts = dict(step.errors)
    for kind in {kind for call in step.calls for kind in call.errors} if not step.measured else ():
        counts[kind] = max(counts.get(kind, 0), sum(call.errors.get(kind, 0) for call in step.calls))
    return counts


def samples_of(step: Step) -> list[ErrorSample]:
    of_calls = [sample for call in step.calls for sample in call.samples] if not step.measured else []
    return [*step.samples, *of_calls]


def error_counts(document: ResultDocument) -> list[tuple[str, int]]:
    """The most frequent first."""
    counts: dict[str, int] = {}
    for _, step in named(document, lambda workflow: workflow.steps):
        add_counts(counts, errors_of(step))
    return sorted(counts.items(), key=lambda item: -item[1])


def all_samples(document: ResultDocument) -> list[tuple[str, ErrorSample]]:
    steps = named(document, lambda workflow: workflow.steps)
    return [(name, sample) for name, step in steps for sample in samples_of(step)]


def show_errors(page: TextPage, document: ResultDocument) -> None:
    errors = error_counts(document)
    if not errors:
        return
    page.section("ERRORS")
    shown = chosen(all_samples(document))
    for kind, count in errors:
        page.line("  ", (kind, "red"), f"  {count:,}", "  the test's own code" if kind == "exception" else "")
        for name, sample in shown:
            if sample.kind == kind:
                page.sentence(sample_text(sample), indent=4, lead=f"{sample.t_s:.1f} s  {cut(name, page.width // 4)}: ")
        if kind == "tls":
            page.sentence(TLS_HINT, indent=4, lead="→ ")


def chosen(samples: Sequence[tuple[str, ErrorSample]]) -> list[tuple[str, ErrorSample]]:
    """A few that say different things, from every kind in turn, the earliest first."""
    seen: dict[str, int] = {}
    said: set[tuple[str, str, str]] = set()
    ranked = []
    for item in sorted(samples, key=lambda item: item[1].t_s):
        words = (item[0], item[1].kind, item[1].text)
        if words in said:
            continue
        said.add(words)
        seen[item[1].kind] = seen.get(item[1].kind, 0) + 1
        ranked.append((seen[item[1].kind], item))
    ranked.sort(key=lambda pair: pair[0])
    return [item for _, item in ranked[:SAMPLES_SHOWN]]


def sample_text(sample: ErrorSample) -> str:
    return cut(sample.text, SAMPLE_CHARACTERS_SHOWN)


def show_checks(page: TextPage, document: ResultDocument) -> None:
    checks = list(named(document, lambda workflow: workflow.checks))
    if not checks:
        return
    page.section("CHECKS")
    room = room_for([name for name, _ in checks], page.width // 2)
    for name, check in checks:
        if not check.passed and not check.failed:
            page.line("  - ", padded(name, room), "  never ran")
            continue
        style: Style = "red" if check.failed else "green"
        failed = failed_text(check.failed, check.passed + check.failed)
        numbers = f"  {glued(f'passed {check.passed:,}')}  {glued(failed)}"
        show = page.fitted if page.width < FEWEST_COLUMNS else page.line
        show("  ", (sign(not check.failed), style), " ", padded(name, room), numbers)
        for sample in check.samples[:1]:
            page.sentence(sample_text(sample), indent=6, lead=f"{sample.t_s:.1f} s  ")


def show_metrics(page: TextPage, document: ResultDocument) -> None:
    metrics = list(named(document, lambda workflow: workflow.metrics))
    if not metrics:
        return
    page.section("METRICS")
    room = room_for([name for name, _ in metrics], page.width // 3)
    for name, metric in metrics:
        page.sentence(metric_text(metric), lead=padded(name, room) + "  ")


def metric_text(metric: Metric) -> str:
    if not metric.values:
        return f"{metric.kind}, no value"
    if metric.kind in ("count", "rate"):
        return f"{metric.kind}  total {number_text(metric.total)}  {number_text(metric.rate_per_s)}/s"
    numbers = {"min": metric.min, "mean": metric.mean}
    numbers |= {name.replace("_", "."): value for name, value in (metric.percentiles or {}).items()}
    numbers["max"] = metric.max
    parts = [glued(f"{name} {number_text(value)}") for name, value in numbers.items() if value is not None]
    return "  ".join([metric.kind, glued(f"{metric.values:,} values"), *parts])


def show_lost_shards(page: TextPage, lost_shards: Sequence[Lost]) -> None:
    if not lost_shards:
        return
    page.section("LOST SHARDS")
    for lost in lost_shards:
        page.sentence(
            f"{lost.from_s:.1f} s to {lost.to_s:.1f} s, without {missing_text(lost)}: the core {lost.cause}",
            lead=f"{cut(lost.workflow, page.width // 3)} shard {lost.shard}  ",
            style="red",
        )


def missing_text(lost: Lost) -> str:
    vus = counted_text(lost.vus_missing, "VU")
    return f"{vus} and {counted_text(lost.arrivals_missing, 'arrival')}" if lost.arrivals_missing else vus


def show_generator(page: TextPage, document: ResultDocument) -> None:
    generator = document.generator
    if not generator.cores and not generator.engine:
        return
    page.section("GENERATOR")
    facts = [f"engine {generator.engine_text}", f"busiest core at {generator.cpu * 100:.0f} % of a CPU"]
    if generator.start_lag_ms is not None:
        facts.append(f"start lag p99 {time_text(generator.start_lag_ms.p99)}")
    if generator.loop_lag_ms is not None:
        facts.append(f"loop lag p99 {time_text(generator.loop_lag_ms.p99)}")
    facts.append(f"start skew {time_text(document.start_skew_ms)}")
    page.facts(facts)
    is_good, verdict = generator_text(generator)
    page.sentence(verdict, style=None if is_good else "yellow")


def generator_text(generator: Generator) -> tuple[bool, str]:
    """Whether it kept up, and that in words."""
    if generator.saturated:
        return False, "Saturated: the target may be faster than these numbers."
    if generator.verdict == "disturbed":
        return False, "Disturbed: it was late while it was idle: something else on the machine delayed it."
    return True, "Not saturated: it kept up with the plan."


def named(document: ResultDocument, items: Callable[[Workflow], Sequence[Item]]) -> Iterator[tuple[str, Item]]:
    """The items of all workflows; their names tell the workflow where there are several."""
    for workflow in document.workflows:
        for item in items(workflow):
            yield (f"{workflow.name}.{item.name}" if len(document.workflows) > 1 else item.name), item


# Errors in a few words.


class FrequentError(NamedTuple):
    kind: str
    times: int
    cause: str
    """What went wrong and who did it: `refused by 127.0.0.1:9`."""


def frequent_errors(steps: Iterable[Step | StepTally]) -> list[FrequentError]:
    """Kinds of errors with their counts and a cause each, the most frequent first. Of a result, or of a job that
    runs."""
    counts: dict[str, int] = {}
    texts: dict[str, str] = {}
    for step in steps:
        add_counts(counts, step.errors)
        for sample in step.samples:
            texts.setdefault(sample.kind, sample.text)
    often = sorted(counts.items(), key=lambda item: -item[1])
    return [FrequentError(kind, count, cause_text(kind, texts.get(kind, ""))) for kind, count in often]


def cause_text(kind: str, sample: str) -> str:
    found, answered = ADDRESS.search(sample), ANSWERED.search(sample)
    if kind == "status" and answered:
        kind = f"status {answered[1]}"
    if found is None or "this machine" in sample:
        return kind
    word = "by" if kind in ("refused", "reset") else "from" if answered else "at"
    return f"{kind} {word} {found[1]}"


# A job that runs.


def progress_line(job: JobView, now: int, current_rate: float | None = None) -> str:
    """How the job stands. Merges every histogram: once a second is often enough.

    `current_rate` is of the requests since the line before; the average stands behind it.
    """
    arming = [name for name, run in job.workflows.items() if run.state is TaskState.ASSIGNED]
    names = ", ".join(arming[:NAMES_SHOWN]) + (f" and {len(arming) - NAMES_SHOWN} more" if arming[NAMES_SHOWN:] else "")
    elapsed_s = job.elapsed_ns(now) / SECOND
    parts = [f"{elapsed_s:>4.0f}s"]
    if job.origin_ns:
        tally = job.tally()
        worst, requests = of_all(tally), tally.exchanges.requests
        elapsed_s = job.span_ns(now) / SECOND  # what rates are over
        parts.append(f"active {counted_text(job.active_vus(), 'VU')}")
        parts.append(counted_text(requests, "request"))
        average = rate_text(requests / elapsed_s if elapsed_s else 0.0)
        parts.append(average if current_rate is None else f"now {rate_text(current_rate)}, on average {average}")
        parts.append(f"failed {share_text(worst.failed, worst.ended)}")
        times = merged(step.response_time for step in tally.steps.values())
        if times.count:
            parts += [f"p{percent} {time_text(times.percentile(percent) / 1000)}" for percent in (50, 99)]
    if arming:
        parts.append(f"arming {names}")
    if job.losses:
        parts.append(
            f"lost {counted_text(len(job.losses), 'core')}, the last one "
            f"{cut(job.losses[-1].shard.cause, CAUSE_CHARACTERS_SHOWN)}"
        )
    tallies = [tally for run in job.workflows.values() for tally in run.tallies.values()]
    for error in frequent_errors(
        step for tally in tallies for step in (*tally.steps.values(), *tally.actions.values())
    )[:1]:
        parts.append(f"mostly {error.cause} × {error.times:,}")
    return "  ".join(parts)
