"""The numbers of the live view: counts of all cores, rates of the last seconds, and histograms merged bit by bit.

Merging histograms is what a view costs. They are brought up to date a few at a time, those that waited longest first,
so that a job of many steps on many cores makes the view a little late but never the job.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, Literal, TypeAlias

from talka.control.load_job import LoadJob, WorkflowRun
from talka.stats.histogram import Histogram
from talka.stats.tally import CheckTally, MetricTally, StepTally, Tally
from talka.work.thresholds import Threshold, Verdict, judge

SECOND: Final = 1_000_000_000
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

Kind = Literal["response_time", "service_time"]
Key: TypeAlias = tuple[str, str, Kind]
"""Workflow, step, and which of its times."""
KINDS: Final[tuple[Kind, ...]] = ("response_time", "service_time")


class Counts:
    """What all cores of a workflow have counted so far; nothing is merged that costs."""

    def __init__(self, run: WorkflowRun) -> None:
        self.started = self.iterations = self.dropped = self.requests = 0
        self.steps: dict[str, list[StepTally]] = {}
        self.actions: dict[str, list[StepTally]] = {}
        self.checks: dict[str, CheckTally] = {}
        self.metrics: dict[str, list[MetricTally]] = {}
        for tally in (attempt.tally for shard in run.shards for attempt in shard.attempts):
            self.started += tally.started
            self.iterations += tally.iterations
            self.dropped += tally.dropped
            self.requests += tally.exchanges.requests
            for name, step in tally.steps.items():
                self.steps.setdefault(name, []).append(step)
            for name, action in tally.actions.items():
                self.actions.setdefault(name, []).append(action)
            for name, check in tally.checks.items():
                whole = self.checks.setdefault(name, CheckTally())
                whole.passed += check.passed
                whole.failed += check.failed
            for name, metric in tally.metrics.items():
                self.metrics.setdefault(name, []).append(metric)


def finished(parts: Iterable[StepTally]) -> int:
    return sum(part.ok + part.failed for part in parts)


def reported_ns(run: WorkflowRun, now: int) -> int:
    """The instant for which the counts hold: cores report at different times, and on the average at this one."""
    latest = [max(attempt.reported_ns for attempt in shard.attempts) for shard in run.shards if not shard.is_done]
    return max(sum(latest) // len(latest) if latest else 0, now - REPORT_LATE_NS)


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
    def __init__(self) -> None:
        self._merged: dict[Key, Merged] = {}
        self._turn = 0

    def refresh(self, wanted: Mapping[Key, Sequence[Histogram]]) -> None:
        """Bring those that have grown up to date, as many as may be at once and at least one."""
        grown = [key for key, parts in wanted.items() if sum(part.count for part in parts) != self._count(key)]
        room = COUNTERS_AT_ONCE
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

    def verdicts(self, job: LoadJob, now: int, counts: Mapping[str, Counts]) -> list[tuple[str | None, Verdict]]:
        """Every rule with its workflow (None: the whole job)."""
        scopes: list[tuple[str | None, Sequence[Threshold], Mapping[str, Counts], int]] = [
            (None, job.spec.thresholds, counts, job.elapsed_ns(now))
        ]
        for name, run in job.workflows.items():
            scopes.append((name, run.spec.thresholds, {name: counts[name]}, run.elapsed_ns(now)))
        wanted: dict[Key, Sequence[Histogram]] = {}
        for _, rules, counted, _ in scopes:
            wanted |= histograms_for(rules, counted)
        self._histograms.refresh(wanted)
        if now >= self._next_at_ns or job.ended_ns:
            merged = [found for key in wanted if (found := self._histograms.get(key))]
            rules_in_all = sum(len(rules) for _, rules, _, _ in scopes)
            cost_ns = sum(len(found.whole.counts) for found in merged) * rules_in_all * COUNTER_NS
            self._next_at_ns = now + max(JUDGE_EVERY_NS, round(cost_ns / JUDGE_SHARE))
            self._verdicts = [
                (workflow, judge(rule, tally, elapsed_ns / SECOND))
                for workflow, rules, counted, elapsed_ns in scopes
                if rules
                for tally in [self._tally(rules, counted)]
                for rule in rules
            ]
        return self._verdicts

    def _tally(self, rules: Sequence[Threshold], counted: Mapping[str, Counts]) -> Tally:
        """As much of a tally as these rules look at."""
        tally = Tally()
        metrics = {str(rule.name) for rule in rules if rule.measure == "metrics"}
        for workflow, counts in counted.items():
            tally.started += counts.started
            tally.iterations += counts.iterations
            tally.dropped += counts.dropped
            tally.exchanges.ok += counts.requests  # rules ask only how many there were
            for name, parts in counts.steps.items():
                step = tally.steps.setdefault(name, StepTally())
                step.ok += sum(part.ok for part in parts)
                step.failed += sum(part.failed for part in parts)
                step.response_time = self._with(step.response_time, (workflow, name, "response_time"))
                step.service_time = self._with(step.service_time, (workflow, name, "service_time"))
            for name, check in counts.checks.items():
                tally.checks.setdefault(name, CheckTally()).merge(check)
            for name in metrics & counts.metrics.keys():
                for metric in counts.metrics[name]:
                    tally.metrics.setdefault(name, MetricTally(metric.kind)).merge(metric)
        return tally

    def _with(self, histogram: Histogram, key: Key) -> Histogram:
        found = self._histograms.get(key)
        if found is None:
            return histogram
        if not histogram.count:
            return found.whole
        both = histogram.copy()
        both.merge(found.whole)
        return both


def histograms_for(rules: Sequence[Threshold], counted: Mapping[str, Counts]) -> dict[Key, Sequence[Histogram]]:
    """What the rules look at, of every core."""
    return {
        (workflow, step, kind): [getattr(part, kind) for part in parts]
        for workflow, counts in counted.items()
        for step, parts in counts.steps.items()
        for kind in KINDS
        if any(rule.measure == kind and rule.step in (None, step) for rule in rules)
    }
