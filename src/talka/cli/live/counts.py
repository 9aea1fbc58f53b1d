"""The numbers of the live view: counts of all cores, rates of the last seconds, and histograms merged bit by bit.

Merging histograms is what a view costs. They are brought up to date a few at a time, those that waited longest first,
so that a job of many steps on many cores makes the view a little late but never the job.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from talka.report.job_view import JobView, WorkflowView
from talka.stats.histogram import Histogram
from talka.stats.tally import CheckTally, Exchanges, MetricTally, StepTally, Tally, merged
from talka.stats.windows import WINDOW_NS, StepWindow, Timeline
from talka.units import SECOND
from talka.work.thresholds import Threshold, Verdict, judge, scoped

RATE_OVER_NS: Final = 2 * SECOND
REPORT_LATE_NS: Final = SECOND // 2
"""Reports come five times a second. Without one for so long, the rate is taken to have changed."""
PERCENTS: Final = (50, 95, 99)
COUNTERS_AT_ONCE: Final = 10_000
"""Of histograms, merged for one view: about 5 ms."""
COUNTER_NS: Final = 500
JUDGE_EVERY_NS: Final = SECOND
JUDGE_SHARE: Final = 0.01
"""Of the time, for judging."""

STRETCH_S: Final = 3
STRETCH_WINDOWS: Final = STRETCH_S * SECOND // WINDOW_NS
STRETCHES: Final = 20
"""Of a minute."""
LATE_WINDOWS: Final = 2

Kind = Literal["response_time", "service_time"]
Key: TypeAlias = tuple[str, ...]
"""Workflow, step, which of its times, and of calls their name."""
KINDS: Final[tuple[Kind, ...]] = ("response_time", "service_time")


class LiveCounts:
    """What all cores of a workflow have counted so far; nothing is merged that costs."""

    def __init__(self, run: WorkflowView) -> None:
        self.started = self.iterations = self.dropped = 0
        self.exchanges = Exchanges()
        self.steps: dict[str, list[StepTally]] = {}
        self.actions: dict[str, list[StepTally]] = {}
        self.calls: dict[str, dict[str, list[StepTally]]] = {}
        self.checks: dict[str, CheckTally] = {}
        self.metrics: dict[str, list[MetricTally]] = {}
        for tally in run.tallies.values():
            self.started += tally.started
            self.iterations += tally.iterations
            self.dropped += tally.dropped
            self.exchanges.merge(tally.exchanges)
            for name, step in tally.steps.items():
                self.steps.setdefault(name, []).append(step)
            for name, action in tally.actions.items():
                self.actions.setdefault(name, []).append(action)
            for name, calls in tally.calls.items():
                for call, counted in calls.items():
                    self.calls.setdefault(name, {}).setdefault(call, []).append(counted)
            for name, check in tally.checks.items():
                whole = self.checks.setdefault(name, CheckTally())
                whole.passed += check.passed
                whole.failed += check.failed
            for name, metric in tally.metrics.items():
                self.metrics.setdefault(name, []).append(metric)


def finished(parts: Iterable[StepTally]) -> int:
    return sum(part.ok + part.failed for part in parts)


def reported_ns(run: WorkflowView, now: int) -> int:
    """The instant for which the counts hold; long ago, where nobody reports any more, they are of now."""
    return max(run.counted_at_ns, now - REPORT_LATE_NS)


class RecentRates:
    """Rates over the last seconds of counters that are looked at now and then."""

    def __init__(self, origin_ns: int) -> None:
        self._seen: deque[tuple[int, Mapping[str, int]]] = deque([(origin_ns, {})])

    def look(self, at_ns: int, counts: Mapping[str, int]) -> None:
        if at_ns > self._seen[-1][0]:
            self._seen.append((at_ns, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= at_ns - RATE_OVER_NS:
            self._seen.popleft()

    @property
    def stretch(self) -> tuple[int, int]:
        """From when to when."""
        return self._seen[0][0], self._seen[-1][0]

    def of(self, name: str) -> float:
        (from_ns, before), (to_ns, after) = self._seen[0], self._seen[-1]
        return (after.get(name, 0) - before.get(name, 0)) * SECOND / (to_ns - from_ns) if to_ns > from_ns else 0.0


def rows_of_calls(counts: LiveCounts) -> dict[str, dict[str, list[StepTally]]]:
    """Of methods whose calls have other names than their own."""
    return {step: calls for step, calls in counts.calls.items() if calls.keys() != {step}}


class Trends:
    """What became of each step of a workflow over the last minute, in stretches that are over.

    Each is looked at once, but for those of which some windows may still grow.
    """

    def __init__(self) -> None:
        self._next = self._end = 0
        self._p99_ms: dict[str, dict[int, float]] = {}
        self._errors: dict[str, dict[int, int]] = {}

    def look(self, timeline: Timeline) -> None:
        windows = [span.window for span in timeline.spans() if span.length_ns == WINDOW_NS]
        if not windows:
            return
        # Windows of the newest instants are still to come from other cores.
        end = (windows[-1].index - LATE_WINDOWS) // STRETCH_WINDOWS
        steps: dict[tuple[int, str], StepWindow] = {}
        for window in windows:
            stretch = window.index // STRETCH_WINDOWS
            if self._next <= stretch < end:
                for name, step in window.steps.items():
                    steps.setdefault((stretch, name), StepWindow()).add(step)
        for (stretch, name), whole in steps.items():
            if whole.response_time.count:
                self._p99_ms.setdefault(name, {})[stretch] = whole.response_time.percentile(99) / 1000
        errors: Counter[tuple[str, int]] = Counter()
        for (stretch, _), whole in steps.items():
            errors.update({(kind, stretch): times for kind, times in whole.errors.items()})
        for (kind, stretch), times in errors.items():
            self._errors.setdefault(kind, {})[stretch] = times
        unsettled = [window.index // STRETCH_WINDOWS for window in timeline.recent[:1]]
        self._next = max(self._next, min([end, *unsettled]))
        self._end = max(self._end, end)
        oldest = self._end - STRETCHES
        for times_ms in self._p99_ms.values():
            forget(times_ms, oldest)
        for counts in self._errors.values():
            forget(counts, oldest)

    @property
    def stretches(self) -> range:
        return range(max(0, self._end - STRETCHES), self._end)

    def p99_ms(self, step: str) -> list[float | None]:
        found = self._p99_ms.get(step, {})
        return [found.get(stretch) for stretch in self.stretches] if found else []

    def errors(self) -> Mapping[str, Mapping[int, int]]:
        """Failures by kind and stretch."""
        return self._errors


def forget(values: MutableMapping[int, Any], oldest: int) -> None:
    for stretch in [stretch for stretch in values if stretch < oldest]:
        del values[stretch]


def errors_over_time(trends: Iterable[Trends]) -> list[tuple[str, list[float]]]:
    """Failures a second by kind in the stretches of the last minute, the most frequent kind first."""
    trends = list(trends)
    first = min((one.stretches.start for one in trends if one.stretches), default=0)
    end = max((one.stretches.stop for one in trends), default=0)
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for one in trends:
        for kind, values in one.errors().items():
            counts[kind].update(values)
    often = sorted((kind for kind in counts if counts[kind].total()), key=lambda kind: (-counts[kind].total(), kind))
    return [(kind, [counts[kind][at] / STRETCH_S for at in range(first, end)]) for kind in often]


class Merged:
    """A histogram of all cores as it was when its turn came."""

    def __init__(self, parts: Sequence[Histogram], turn: int) -> None:
        self.turn = turn
        self.whole = parts[0]
        if len(parts) > 1:
            self.whole = parts[0].copy()
            for part in parts[1:]:
                self.whole.merge(part)

    @cached_property
    def percentiles(self) -> tuple[int, ...]:
        return tuple(self.whole.percentile(percent) for percent in PERCENTS)


class Histograms:
    def __init__(self, counters_at_once: int = COUNTERS_AT_ONCE) -> None:
        self._counters_at_once = counters_at_once
        self._merged: dict[Key, Merged] = {}
        self._turn = 0

    def refresh(self, wanted: Mapping[Key, Sequence[Histogram]]) -> None:
        """Bring those that have grown up to date, as many as may be at once and at least one."""
        grown = [key for key, parts in wanted.items() if sum(part.count for part in parts) != self._count(key)]
        room = self._counters_at_once
        for key in sorted(grown, key=lambda key: self._merged[key].turn if key in self._merged else 0):
            if room <= 0:
                break
            self._turn += 1
            self._merged[key] = Merged(wanted[key], self._turn)
            room -= sum(len(part.counts) for part in wanted[key])

    def get(self, key: Key) -> Merged | None:
        return self._merged.get(key)

    def _count(self, key: Key) -> int:
        return self._merged[key].whole.count if key in self._merged else 0


class Judge:
    """How the rules of a job stand, as `LoadJob.verdicts` says it, from histograms that are there already."""

    def __init__(self, histograms: Histograms) -> None:
        self._histograms = histograms
        self._next_at_ns = 0
        self._verdicts: list[tuple[str | None, Verdict]] = []

    def verdicts(self, job: JobView, now: int, counts: Mapping[str, LiveCounts]) -> list[tuple[str | None, Verdict]]:
        """Every rule with its workflow (None: the whole job)."""
        rules_of = {name: (*job.thresholds, *run.spec.thresholds) for name, run in job.workflows.items()}
        wanted: dict[Key, Sequence[Histogram]] = {}
        for name, rules in rules_of.items():
            wanted |= histograms_for(rules, name, counts[name])
        self._histograms.refresh(wanted)
        if now >= self._next_at_ns or job.ended_ns:
            found = [one for key in wanted if (one := self._histograms.get(key))]
            rules_in_all = len(job.thresholds) + sum(len(run.spec.thresholds) for run in job.workflows.values())
            cost_ns = sum(len(one.whole.counts) for one in found) * rules_in_all * COUNTER_NS
            self._next_at_ns = now + max(JUDGE_EVERY_NS, round(cost_ns / JUDGE_SHARE))
            tallies = {name: self._tally(rules, name, counts[name]) for name, rules in rules_of.items() if rules}
            self._verdicts = list(self._judged(job, now, tallies))
        return self._verdicts

    def _judged(self, job: JobView, now: int, tallies: Mapping[str, Tally]) -> Iterable[tuple[str | None, Verdict]]:
        every = list(tallies.values())
        whole = every[0] if len(every) == 1 else merged(every)
        for rule in job.thresholds:
            part = job.workflows.get(rule.workflow or "", job)
            yield None, judge(rule, scoped(rule, tallies, whole), part.span_ns(now) / SECOND)
        for name, run in job.workflows.items():
            for rule in run.spec.thresholds:
                yield name, judge(rule, scoped(rule, tallies, tallies[name]), run.span_ns(now) / SECOND)

    def _tally(self, rules: Sequence[Threshold], workflow: str, counts: LiveCounts) -> Tally:
        """As much of a tally as these rules look at."""
        tally = Tally(iterations=counts.iterations, started=counts.started, dropped=counts.dropped)
        tally.exchanges.merge(counts.exchanges)
        for name, parts in counts.steps.items():
            tally.steps[name] = self._row(parts, (workflow, name))
        for name, calls in counts.calls.items():
            tally.calls[name] = {call: self._row(parts, (workflow, name), call) for call, parts in calls.items()}
        for name, check in counts.checks.items():
            tally.checks.setdefault(name, CheckTally()).merge(check)
        for name in {str(rule.name) for rule in rules if rule.measure == "metrics"} & counts.metrics.keys():
            for metric in counts.metrics[name]:
                tally.metrics.setdefault(name, MetricTally(metric.kind)).merge(metric)
        return tally

    def _row(self, parts: Sequence[StepTally], place: tuple[str, str], *call: str) -> StepTally:
        row = StepTally(ok=sum(part.ok for part in parts), failed=sum(part.failed for part in parts))
        for kind in KINDS:
            if found := self._histograms.get((*place, kind, *call)):
                setattr(row, kind, found.whole)
        return row


def histograms_for(rules: Sequence[Threshold], workflow: str, counts: LiveCounts) -> dict[Key, Sequence[Histogram]]:
    """What the rules look at, of every core."""
    wanted: dict[Key, Sequence[Histogram]] = {}
    for rule in rules:
        if rule.measure not in KINDS or rule.workflow not in (None, workflow):
            continue
        kind, chosen = rule.measure, set(counts.steps) if rule.step is None else {rule.step}
        if rule.tags:
            chosen &= {step for of, step in rule.members if of == workflow}
        for step in chosen:
            calls = counts.calls.get(step, {})
            if rule.call is not None:
                calls = {rule.call: calls[rule.call]} if rule.call in calls else {}
            elif kind == "response_time" or not calls:
                wanted[workflow, step, kind] = [getattr(part, kind) for part in counts.steps.get(step, ())]
                continue
            for call, parts in calls.items():
                wanted[workflow, step, kind, call] = [getattr(part, kind) for part in parts]
    return {key: parts for key, parts in wanted.items() if parts}
