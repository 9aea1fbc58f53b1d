"""What the live view of a job shows, as lines of text. Pure: the job, the time and the size of the terminal come in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from talka.cli.live.counts import (
    COUNTERS_AT_ONCE,
    PERCENTS,
    Histograms,
    Judge,
    Key,
    LiveCounts,
    RecentRates,
    Trends,
    errors_over_time,
    finished,
    reported_ns,
    rows_of_calls,
)
from talka.cli.live.layout import (
    FrameView,
    Line,
    Part,
    Section,
    Size,
    Style,
    bar,
    chosen,
    clock_text,
    fitted,
    more,
    pulse,
    selected,
    sparkline,
    styled,
    titled,
)
from talka.control.load.load_job import ENDED
from talka.report.generator import LATE_US, cpu_of, late_from_us, median_of, verdict_of, worst
from talka.report.generator import Verdict as Upkeep
from talka.report.job_view import JobView, Loss, WorkflowView
from talka.report.summary import FrequentError, frequent_errors
from talka.report.text import (
    columns,
    counted_text,
    padded,
    rate_text,
    room_for,
    share_text,
    sign,
    significant,
    time_text,
)
from talka.stats.histogram import CoarseHistogram, Histogram
from talka.stats.tally import StepTally, Tally
from talka.stats.windows import WINDOW_NS
from talka.units import SECOND
from talka.wire.orders import Outlined
from talka.work.failures import of_requests, of_steps, worse
from talka.work.lifecycle import TaskState
from talka.work.thresholds import Verdict

MINUTE_S: Final = 60
WIDEST: Final = 140
"""Beyond, the eye loses the row."""
SPARK_AT: Final = 36
"""Columns before a sparkline."""
ERRORS_SHOWN: Final = 5
LOOK_AGAIN: Final = 1.1
"""As many times more starts make it worth to merge response times again."""
NAME_COLUMNS: Final = 12
"""A name gets at least so many before columns of numbers are left out for it."""

STATE_STYLES: Final[dict[TaskState, Style]] = {
    TaskState.RUNNING: "cyan",
    TaskState.COMPLETED: "green",
    TaskState.FAILED: "red",
    TaskState.TIMEOUT: "red",
    TaskState.CANCELLED: "yellow",
    TaskState.SKIPPED: "yellow",
}
TREND: Final = "p99 LAST MINUTE"
KINDS_SHOWN: Final = 3
"""Kinds of errors that have a line of their own over time."""
# The least important first: what narrow terminals go without.
DROPPED_IN_TURN: Final = (TREND, "share", "AVERAGE", "OK", "p50")


class LiveStepRow(NamedTuple):
    name: str
    ok: int
    failed: int
    rate: float | None
    """Of the last seconds; None once the workflow has ended."""
    average: float
    is_running: bool
    key: Key
    parts: tuple[Histogram, ...]
    trend: str = ""
    """Its p99 over the last minute."""


class Lag(NamedTuple):
    """By how much a core's starts are late."""

    starts: int
    p99_us: int
    late_from_us: int
    looked_at: int
    """How many starts there were when its response times were looked at."""


class Composer:
    """Makes the views of one job, one after the other, and remembers what spares work or tells a change."""

    def __init__(
        self,
        name: str,
        specs: Sequence[Outlined],
        waiting: Callable[[], str] = lambda: "",
        *,
        counters_at_once: int = COUNTERS_AT_ONCE,
    ) -> None:
        """`waiting` says what the job waits for before it begins; empty once it has begun."""
        self._name = name
        self._waiting = waiting
        self._steps = {spec.name: [node.name for node in spec.nodes if node.measured] for spec in specs}
        self._rates: dict[str, RecentRates] = {}
        self._histograms = Histograms(counters_at_once)
        self._judge = Judge(self._histograms)
        self._lags: dict[int, Lag] = {}
        self._trends: dict[str, Trends] = {}
        self._stretches: dict[int, tuple[int, float | None]] = {}
        self._wide_s = 0
        self._room: dict[str, int] = {}
        """Columns of the table's cells. They only grow: numbers that jump to and fro cannot be read."""

    def opening(self, size: Size) -> FrameView:
        """Before there is anything to tell."""
        return FrameView((styled(min(size.columns, WIDEST), (self._name, "bold"), ("  starting", "dim")),))

    def view(self, job: JobView, now: int, size: Size) -> FrameView:
        width = min(size.columns, WIDEST)
        counts = {name: LiveCounts(run) for name, run in job.workflows.items()}
        self._look(job, now, counts)
        sections = [
            Section(0, 2, 2, lambda room: self._head(job, now, counts, width)[:room]),
            self._sparks(job, width),
            self._workflows(job, now, counts, width),
            self._table(self._rows(job, now, counts), width),
            self._errors(counts, width),
            self._checks(job, counts, width),
            self._thresholds(job, now, counts, width),
            self._generator(job, width),
            self._lost(job, width),
        ]
        return FrameView(tuple(fitted([section for section in sections if section.wish], max(size.rows - 1, 1))))

    def _look(self, job: JobView, now: int, counts: Mapping[str, LiveCounts]) -> None:
        for name, run in job.workflows.items():
            self._trends.setdefault(name, Trends()).look(run.timeline)
            if run.origin_ns and run.state not in ENDED:
                seen = {step: finished(parts) for step, parts in counts[name].steps.items()}
                for step, calls in rows_of_calls(counts[name]).items():
                    seen |= {f"{step}/{call}": finished(parts) for call, parts in calls.items()}
                rates = self._rates.setdefault(name, RecentRates(run.origin_ns))
                rates.look(reported_ns(run, now), seen | {"": counts[name].started})

    # Head.

    def _head(self, job: JobView, now: int, counts: Mapping[str, LiveCounts], width: int) -> list[Line]:
        state, style = state_of(job, now)
        if waiting := self._waiting():
            state, style = waiting, "yellow"
        cores = f"  {counted_text(job.cores, 'core')}" if job.cores else ""
        right = f"{state}{cores}"
        room = max(width - columns(right) - 2, 8)
        title = styled(width, (padded(self._name, room), "bold"), "  ", (state, style), (cores, "dim"))
        text = clock_text(job.elapsed_ns(now))
        end_ns, (done, total) = end_of(job, now), iterations_of(job, counts)
        share: float | None = None
        if end_ns is not None and job.origin_ns:
            share = job.elapsed_ns(now) / max(end_ns - job.origin_ns, 1)
            at_most = "at most " if total is not None else ""
            text += f" elapsed, {at_most}{clock_text(end_ns - now, up=True)} left" if end_ns > now else " elapsed"
        else:
            text += " elapsed"
        if total:
            share = max(share or 0.0, done / total)
            text += f", {done:,} of {counted_text(total, 'iteration')}"
        room = max(width - columns(text) - 2, 5)
        parts = bar(share, room) if share is not None else pulse(now, room)
        return [title, styled(width, *parts, f"  {text}")]

    # Sparklines.

    def _sparks(self, job: JobView, width: int) -> Section:
        wide_s = -(-MINUTE_S // max(min(MINUTE_S, width - SPARK_AT), 10))
        rates, times = self._last_minute(job, wide_s)
        rows: list[Line] = []
        known = [time_ms for time_ms in times if time_ms is not None]
        if rates:
            rows.append(spark_line(width, "requests", rate_text(rates[-1]), rate_text(max(rates)), sparkline(rates)))
        if known:
            latest = "-" if times[-1] is None else time_text(times[-1])
            rows.append(spark_line(width, "p99", latest, time_text(max(known)), sparkline(times)))
        for kind, per_s in errors_over_time(self._trends.values())[:KINDS_SHOWN]:
            rows.append(spark_line(width, kind, rate_text(per_s[-1]), rate_text(max(per_s)), sparkline(per_s)))
        return Section(5, min(1, len(rows)), len(rows), lambda room: rows[:room])

    def _last_minute(self, job: JobView, wide_s: int) -> tuple[list[float], list[float | None]]:
        """Requests per second and p99 in milliseconds of each stretch of the last minute that is over."""
        per_stretch = wide_s * SECOND // WINDOW_NS
        stretches: dict[int, list[tuple[int, CoarseHistogram]]] = {}
        newest = -1
        oldest = 0
        for span in job.timeline.spans():
            if span.length_ns > WINDOW_NS:
                oldest = (span.start_ns + span.length_ns) // WINDOW_NS
            else:
                newest = span.window.index
                window = (span.window.requests, span.window.response_time)
                stretches.setdefault(newest // per_stretch, []).append(window)
        # Windows of the newest instants are still to come from other cores.
        last = (newest - 2) // per_stretch - 1
        first = max(last - MINUTE_S // wide_s + 1, -(-oldest // per_stretch))
        if wide_s != self._wide_s:
            self._wide_s, self._stretches = wide_s, {}  # the terminal has another size
        self._stretches = {index: kept for index, kept in self._stretches.items() if index >= first}
        rates: list[float] = []
        times: list[float | None] = []
        for index in range(first, last + 1):
            windows = stretches.get(index, [])
            rates.append(sum(requests for requests, _ in windows) / wide_s)
            times.append(self._p99_ms(index, [response_time for _, response_time in windows]))
        return rates, times

    def _p99_ms(self, index: int, parts: Sequence[CoarseHistogram]) -> float | None:
        count = sum(part.count for part in parts)
        kept = self._stretches.get(index)
        if kept is None or kept[0] != count:
            whole = CoarseHistogram()
            for part in parts:
                whole.merge(part)
            kept = self._stretches[index] = (count, whole.percentile(99) / 1000 if count else None)
        return kept[1]

    # Workflows.

    def _workflows(self, job: JobView, now: int, counts: Mapping[str, LiveCounts], width: int) -> Section:
        runs = list(job.workflows.items())
        names = room_for([name for name, _ in runs], width // 4)

        def urgency(item: tuple[str, WorkflowView]) -> tuple[int, ...]:
            return (0 if item[1].is_under_way else 1 if item[1].failure else 2,)

        def line(item: tuple[str, WorkflowView]) -> Line:
            name, run = item
            state = state_text(run)
            parts: list[Part] = [(padded(name, names), "bold"), "  ", (state, STATE_STYLES.get(run.state, "dim"))]
            if run.failure:
                return styled(width, *parts, (f"  {run.failure}", "red"))
            late: list[Part] = [(f"  {run.late}", "yellow")] if run.late and run.state not in ENDED else []
            return styled(width, *parts, *self._load(run, counts[name], now), *late)

        return Section(4, 1, len(runs), lambda room: chosen(runs, room, urgency, line))

    def _load(self, run: WorkflowView, counts: LiveCounts, now: int) -> list[Part]:
        """How much runs, beside how much the plan wants at this instant."""
        if not run.origin_ns:
            return []
        plan, at_ns = run.spec.plan, now - run.origin_ns
        facts: list[Part] = []
        if run.state in ENDED:
            facts.append(f"  {counted_text(counts.iterations, 'iteration')}")
        elif plan.model == "open":
            rates = self._rates[run.spec.name]
            # Of the same stretch of time: on a ramp this very instant's would make every start look late.
            planned = sum(plan.rate_at(min(end, now) - run.origin_ns) for end in rates.stretch) / 2
            facts.append(f"  {significant(rates.of(''))} of {significant(planned)} arrivals/s")
            facts.append((f"  {run.vus:,}/{plan.vus:,} VUs busy", "yellow" if run.vus >= plan.vus else ""))
        else:
            wanted = plan.vus_at(at_ns)
            facts.append(f"  {run.vus:,} of {counted_text(wanted, 'VU')}")
            facts.append(f"  {counted_text(counts.iterations, 'iteration')}")
        if counts.dropped:
            facts.append((f"  {counts.dropped:,} dropped", "yellow"))
        failures = worse(
            of_requests(counts.exchanges), of_steps(part for parts in counts.steps.values() for part in parts)
        )
        if failures.failed:
            facts.append((f"  failed {share_text(failures.failed, failures.ended)}", "red"))
        return facts

    # Steps.

    def _rows(self, job: JobView, now: int, counts: Mapping[str, LiveCounts]) -> list[LiveStepRow]:
        rows = []
        for name, run in job.workflows.items():
            found = counts[name]
            is_running = run.state is TaskState.RUNNING
            span_s = run.span_ns(now) / SECOND
            calls = rows_of_calls(found)
            tallies = {step: found.steps.get(step, []) for step in (*self._steps.get(name, ()), *found.steps)}
            # What is not measured has no place here, unless it fails.
            tallies |= {action: parts for action, parts in found.actions.items() if any(part.failed for part in parts)}
            for step, parts in tallies.items():
                title = f"{name}.{step}" if len(job.workflows) > 1 else step
                rate = self._rates[name].of(step) if is_running and step in found.steps else None
                trend = sparkline(self._trends[name].p99_ms(step))
                key: Key = (name, step, "response_time")
                rows.append(step_row(title, parts, rate, span_s, is_running, key, trend))
                for call, counted in calls.get(step, {}).items():
                    rate = self._rates[name].of(f"{step}/{call}") if is_running else None
                    rows.append(step_row(f"└ {call}", counted, rate, span_s, is_running, (*key, call)))
        return rows

    def _table(self, rows: list[LiveStepRow], width: int) -> Section:
        def urgency(row: LiveStepRow) -> tuple[int, ...]:
            return -row.failed, not row.is_running, -row.ok

        def lines(room: int) -> list[Line]:
            shown = selected(rows, room - 1, urgency)
            self._histograms.refresh({row.key: row.parts for row in shown if row.parts})
            cells = [self._cells(row) for row in shown]
            for name, text in [(name, text) for row in cells for name, text in row.items()]:
                self._room[name] = max(self._room.get(name, 0), len(text), len(title_of(name)))
            names = min(room_for(["STEP", *(row.name for row in shown)], width), max(width // 3, NAME_COLUMNS))
            has_trend = any(row.trend for row in shown)
            kept = [name for name in cells[0] if name != TREND or has_trend] if cells else []
            for name in DROPPED_IN_TURN:
                # Names are rather cut than a percentile left out.
                need = min(names, NAME_COLUMNS) if name == "p50" else names
                if name in kept and need + sum(self._room[other] + 2 for other in kept) > width:
                    kept.remove(name)
            names = max(min(names, width - sum(self._room[name] + 2 for name in kept)), 4)
            heading = "".join(f"  {title_of(name):>{self._room[name]}}" for name in kept)
            table = [styled(width, (padded("STEP", names) + heading, "dim"))]
            for row, texts in zip(shown, cells, strict=True):
                parts: list[Part] = [padded(row.name, names)]
                for name in kept:
                    style: Style = "red" if name in ("FAILED", "share") and row.failed else ""
                    parts.append((f"  {texts[name]:>{self._room[name]}}", style if row.is_running or style else "dim"))
                table.append(styled(width, *parts))
            return table + more(width, len(rows) - len(shown), "step") if room > 2 else table

        return Section(1, min(3, 1 + len(rows)) if rows else 0, 1 + len(rows) if rows else 0, lines)

    def _cells(self, row: LiveStepRow) -> dict[str, str]:
        done = row.ok + row.failed
        cells = {
            "RATE": "-" if row.rate is None else rate_text(row.rate),
            "AVERAGE": rate_text(row.average) if done else "-",
            "OK": f"{row.ok:,}",
            "FAILED": f"{row.failed:,}",
            "share": share_text(row.failed, done) if row.failed else "",
        }
        times = self._times(row)
        cells |= {f"p{percent}": text for percent, text in zip(PERCENTS, times, strict=True)}
        return {**cells, TREND: row.trend}

    def _times(self, row: LiveStepRow) -> list[str]:
        if not any(part.count for part in row.parts):
            return ["-" for _ in PERCENTS]
        merged = self._histograms.get(row.key)
        # Without one its turn is still to come.
        return ["…" for _ in PERCENTS] if merged is None else [time_text(time / 1000) for time in merged.percentiles]

    # Errors.

    def _errors(self, counts: Mapping[str, LiveCounts], width: int) -> Section:
        tallies = [
            part
            for found in counts.values()
            for parts in (*found.steps.values(), *found.actions.values())
            for part in parts
            if part.errors
        ]
        errors = frequent_errors(tallies)

        def line(error: FrequentError) -> Line:
            return styled(width, (f"{error.times:>9,}", "red"), f"  {error.cause}")

        return titled("ERRORS", 3, errors[:ERRORS_SHOWN], width, lambda error: (-error.times,), line)

    # Verdicts.

    def _checks(self, job: JobView, counts: Mapping[str, LiveCounts], width: int) -> Section:
        checks = [
            (f"{workflow}.{name}" if len(job.workflows) > 1 else name, check.passed, check.failed)
            for workflow, found in counts.items()
            for name, check in found.checks.items()
        ]
        names = room_for([name for name, _, _ in checks], width // 2)

        def line(item: tuple[str, int, int]) -> Line:
            name, passed, failed = item
            style: Style = "red" if failed else "green"
            text = f"failed {failed:,} ({share_text(failed, passed + failed)})" if failed else f"passed {passed:,}"
            return styled(
                width, (sign(not failed), style), f" {padded(name, names)}  ", (text, "red" if failed else "")
            )

        return titled("CHECKS", 6, checks, width, lambda item: (-item[2],), line)

    def _thresholds(self, job: JobView, now: int, counts: Mapping[str, LiveCounts], width: int) -> Section:
        verdicts = self._judge.verdicts(job, now, counts)
        labels = {
            id(verdict): f"{workflow}: {verdict.rule}" if workflow and len(job.workflows) > 1 else verdict.rule
            for workflow, verdict in verdicts
        }
        room = room_for(list(labels.values()), width - 20)

        def line(item: tuple[str | None, Verdict]) -> Line:
            verdict = item[1]
            label = padded(labels[id(verdict)], room)
            if verdict.value is None:
                return styled(width, (f"- {label}  {verdict.shown}", "dim"))
            style: Style = "green" if verdict.passed else "red"
            return styled(width, (sign(verdict.passed), style), f" {label}  ", (verdict.shown, style))

        return titled("THRESHOLDS", 3, verdicts, width, lambda item: (item[1].passed,), line)

    # The generator.

    def _generator(self, job: JobView, width: int) -> Section:
        cpu, lag_us, verdicts = 0.0, -1, list[Upkeep]()
        for run in job.workflows.values():
            for number, tally in run.tallies.items():
                health = tally.generator
                cpu = max(cpu, cpu_of(health))
                lag = self._lag(number, tally) if health.start_lag.count else None
                lag_us = max(lag_us, lag.p99_us) if lag else lag_us
                verdicts.append(verdict_of(health, lag.p99_us if lag else None, lag.late_from_us if lag else 0))
        if not cpu:
            return Section(7, 0, 0, lambda room: [])
        verdict = worst(verdicts)
        text = f"busiest core {100 * cpu:.0f} % CPU" + (
            f", start lag p99 {time_text(lag_us / 1000)}" if lag_us >= 0 else ""
        )
        if verdict == "on time":
            row = styled(width, ("generator  ", "dim"), text)
        else:
            row = styled(width, (f"! generator {verdict}: ", "yellow"), (text, "yellow"))
        return Section(7 if verdict == "on time" else 2, 1, 1, lambda room: [row][:room])

    def _lag(self, attempt: int, tally: Tally) -> Lag:
        """Of one core. Its response times are merged only where it may be late, and again when there are more."""
        lags = tally.generator.start_lag
        kept = self._lags.get(attempt)
        if kept is None or kept.starts != lags.count:
            limit_us, looked_at = (kept.late_from_us, kept.looked_at) if kept else (LATE_US, 0)
            p99_us = lags.percentile(99)
            if p99_us > LATE_US and lags.count > looked_at * LOOK_AGAIN:
                limit_us, looked_at = late_from_us(median_of(tally.steps.values())), lags.count
            kept = self._lags[attempt] = Lag(lags.count, p99_us, limit_us, looked_at)
        return kept

    def _lost(self, job: JobView, width: int) -> Section:
        def line(loss: Loss) -> Line:
            lost = loss.shard
            until = "not replaced yet" if loss.is_open else f"missing until {clock_text(lost.to_ns)}"
            missing = f", {counted_text(lost.arrivals_missing, 'arrival')} missing" if lost.arrivals_missing else ""
            at = clock_text(lost.from_ns)
            return styled(width, (f"! a core of {lost.workflow} {lost.cause} after {at}, {until}{missing}", "yellow"))

        # The newest tells most.
        newest = {id(loss): -number for number, loss in enumerate(job.losses)}
        return Section(
            2,
            min(1, len(job.losses)),
            len(job.losses),
            lambda room: chosen(job.losses, room, lambda loss: (newest[id(loss)],), line),
        )


def step_row(
    name: str,
    tallies: Sequence[StepTally],
    rate: float | None,
    span_s: float,
    is_running: bool,
    key: Key,
    trend: str = "",
) -> LiveStepRow:
    """Of what every core counted."""
    return LiveStepRow(
        name=name,
        ok=sum(tally.ok for tally in tallies),
        failed=sum(tally.failed for tally in tallies),
        rate=rate,
        average=finished(tallies) / span_s if span_s else 0.0,
        is_running=is_running,
        key=key,
        parts=tuple(tally.response_time for tally in tallies),
        trend=trend,
    )


def spark_line(width: int, label: str, latest: str, peak: str, figure: str) -> Line:
    parts: tuple[Part, ...] = ((f"{label:<9}", "dim"), f"{latest:>9}", (f"  peak {peak:>9}  ", "dim"))
    return styled(width, *parts, (figure, "cyan"))


def title_of(column: str) -> str:
    return "" if column == "share" else column


# The job.


def state_of(job: JobView, now: int) -> tuple[str, Style]:
    if job.ended_ns:
        return "ended", ""
    if job.interrupted_by == "cancel":
        return "being cancelled", "yellow"
    if job.interrupted_by is not None:
        return "stopping, Ctrl-C again ends it at once", "yellow"
    if job.aborted is not None:
        return f"stopping: {job.aborted.rule} was crossed", "red"
    under_way = [run for run in job.workflows.values() if run.is_under_way]
    if under_way and all(run.stopped_ns for run in under_way):
        return "waiting for what is under way", "cyan"
    if not under_way and any(run.state is TaskState.PENDING and run.origin_ns for run in job.workflows.values()):
        return f"paused, until talka jobs resume {job.id}", "yellow"
    return "running", "cyan"


def state_text(run: WorkflowView) -> str:
    if run.state is TaskState.PENDING and run.origin_ns:
        return "paused"
    if run.state is TaskState.PENDING:
        return f"waits for {', '.join(sorted(run.spec.depends_on))}" if run.spec.depends_on else "waits"
    if run.state is TaskState.READY:
        return "waits for cores"
    if run.state is TaskState.ASSIGNED:
        return "starting"
    if run.state is TaskState.RUNNING and run.stopped_ns:
        return "finishing"
    return str(run.state)


def end_of(job: JobView, now: int) -> int | None:
    """When the plans say that the job is over; None where one of them does not."""
    ends: dict[str, int] = {}
    for name, run in job.workflows.items():
        length_ns = run.spec.plan.length_ns
        if run.state in ENDED:
            ends[name] = run.ended_ns
        elif run.stopped_ns:
            ends[name] = now
        elif length_ns is None:
            return None
        elif run.origin_ns:
            ends[name] = run.origin_ns + length_ns
        else:
            # It waits for those it depends on, or for cores that others have.
            before = run.spec.depends_on or (ends if run.state is TaskState.READY else ())
            ends[name] = max([now, *(ends[other] for other in before)]) + length_ns
    return max(ends.values(), default=now)


def iterations_of(job: JobView, counts: Mapping[str, LiveCounts]) -> tuple[int, int | None]:
    """How many have ended, and how many are planned where every workflow says it."""
    planned = [run.spec.plan.split(1)[0].iterations_in_all for run in job.workflows.values()]
    known = [total for total in planned if total is not None]
    done = sum(found.iterations for found in counts.values())
    return done, sum(known) if len(known) == len(planned) else None
