"""What an attempt tells its manager of its counts: merged over its cores, cumulative, and only what changed."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from talka.control.load.shard_run import ShardAttempt
from talka.control.worker.windows import ShardWindows
from talka.stats.tally import MetricTally, StepTally, Tally
from talka.wire.shards import FromCore, Gap, MetricTotals, StepTotals, Totals

Counted = TypeVar("Counted")

REMEMBERED: Final = 8
"""Reports whose acknowledgement still counts: an answer may take longer than the next report."""


class ShardsSummary(msgspec.Struct, frozen=True):
    """What closes a report beside counts and windows."""

    vus: int
    started_at_ns: int
    shares: tuple[int, ...]
    spread_ns: int
    gaps: tuple[Gap, ...]
    age_ns: int = 0
    made_at_ns: int = 0


class _Sent(msgspec.Struct, frozen=True):
    counts: dict[tuple[str, str | None], int]
    values: dict[str, int]
    last_window: int


class ShardsReport:
    """The reports of one attempt. A report may be lost: what it told is told again until one was acknowledged."""

    def __init__(self) -> None:
        self.windows = ShardWindows()
        self.sequence = 0
        self._counts: dict[tuple[str, str | None], int] = {}
        """Of each step, and of each name of calls in it, as far as it was acknowledged."""
        self._values: dict[str, int] = {}
        """Of each metric likewise."""
        self._sent: dict[int, _Sent] = {}

    def build(
        self, attempts: Sequence[ShardAttempt], summary: ShardsSummary, *, everything: bool, blurred: bool = False
    ) -> list[FromCore]:
        """`blurred`: windows to 1 part in 32, which are a quarter of the work to whoever merges those of many
        workers."""
        self.sequence += 1
        tallies = [attempt.tally for attempt in attempts if attempt.sequence]
        report: list[FromCore] = []
        counts: dict[tuple[str, str | None], int] = {}
        values: dict[str, int] = {}

        def tell(name: str, call: str | None, tallies: Sequence[StepTally], measured: bool) -> None:
            counts[name, call] = count = sum(tally.seen for tally in tallies)
            if everything or self._counts.get((name, call)) != count:
                report.append(StepTotals(self.sequence, name, _merged_steps(tallies), measured, call))

        for measured in (True, False):
            for name, steps in _by_name(tally.steps if measured else tally.actions for tally in tallies).items():
                tell(name, None, steps, measured)
        for name in dict.fromkeys(name for tally in tallies for name in tally.calls):
            for call, calls in _by_name(tally.calls.get(name, {}) for tally in tallies).items():
                tell(name, call, calls, measured=False)
        for name, metrics in _by_name(tally.metrics for tally in tallies).items():
            values[name] = count = sum(metric.values for metric in metrics)
            if everything or self._values.get(name) != count:
                report.append(MetricTotals(self.sequence, name, _merged_metrics(metrics)))
        windows = self.windows.take()
        if blurred:
            windows = [window.blurred() for window in windows]
        report.append(
            Totals(
                self.sequence,
                _rest_of(tallies),
                windows,
                summary.vus,
                summary.started_at_ns,
                shares=summary.shares,
                spread_ns=summary.spread_ns,
                gaps=summary.gaps,
                parts=len(report),
                age_ns=summary.age_ns,
                made_at_ns=summary.made_at_ns,
            )
        )
        self._sent[self.sequence] = _Sent(counts, values, windows[-1].index if windows else -1)
        if len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]
        return report

    def acknowledged(self, sequence: int) -> bool:
        """Whether this was news."""
        sent = self._sent.get(sequence)
        if sent is None:
            return False
        self._counts, self._values = sent.counts, sent.values
        self.windows.acknowledge(sent.last_window)
        for earlier in [earlier for earlier in self._sent if earlier <= sequence]:
            del self._sent[earlier]
        return True

    def reset(self) -> None:
        """A new manager leads: it has nothing, and what the earlier one acknowledges says nothing."""
        self._sent.clear()
        self._counts, self._values = {}, {}
        self.windows.reset()


def _by_name(groups: Iterable[dict[str, Counted]]) -> dict[str, list[Counted]]:
    found: dict[str, list[Counted]] = {}
    for group in groups:
        for name, tally in group.items():
            found.setdefault(name, []).append(tally)
    return found


def _merged_steps(steps: Sequence[StepTally]) -> StepTally:
    if len(steps) == 1:
        return steps[0]
    whole = StepTally()
    for step in steps:
        whole.merge(step)
    return whole


def _merged_metrics(metrics: Sequence[MetricTally]) -> MetricTally:
    if len(metrics) == 1:
        return metrics[0]
    whole = MetricTally(metrics[0].kind)
    for metric in metrics:
        whole.merge(metric)
    return whole


def _rest_of(tallies: Sequence[Tally]) -> Tally:
    """Everything but steps, actions, calls and metrics: they travel by themselves."""
    rests = [
        Tally(
            iterations=tally.iterations,
            started=tally.started,
            dropped=tally.dropped,
            interrupted_iterations=tally.interrupted_iterations,
            busy_ns=tally.busy_ns,
            exchanges=tally.exchanges,
            checks=tally.checks,
            generator=tally.generator,
        )
        for tally in tallies
    ]
    if len(rests) == 1:
        return rests[0]
    whole = Tally()
    for rest in rests:
        whole.merge(rest)
    return whole
