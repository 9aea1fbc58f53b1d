"""What an attempt tells its manager of its counts: merged over its cores, cumulative, and only what changed."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from talka.control.worker.windows import ShardWindows
from talka.stats.tally import MetricTally, StepTally, Tally
from talka.stats.windows import Window
from talka.wire.shards import FromCore, MetricTotals, StepTotals

Counted = TypeVar("Counted")
Whole = TypeVar("Whole", StepTally, MetricTally, Tally)

REMEMBERED: Final = 8
"""Reports whose acknowledgement still counts: an answer may take longer than the next report."""


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
        self._acknowledged = 0
        """The latest report of which whoever leads the job now is known to have all."""

    def build(self, tallies: Sequence[Tally], *, blurred: bool = False) -> tuple[list[FromCore], Tally, list[Window]]:
        """Steps and metrics that changed, what else was counted, and windows: those of the next `sequence`.

        `blurred`: windows to 1 part in 32, which are a quarter of the work to whoever merges those of many workers.
        """
        self.sequence += 1
        report: list[FromCore] = []
        counts: dict[tuple[str, str | None], int] = {}
        values: dict[str, int] = {}

        def tell(name: str, call: str | None, tallies: Sequence[StepTally], measured: bool) -> None:
            counts[name, call] = count = sum(tally.seen for tally in tallies)
            if self._counts.get((name, call)) != count:
                report.append(StepTotals(self.sequence, name, _merged(tallies, StepTally()), measured, call))

        for measured in (True, False):
            for name, steps in _by_name(tally.steps if measured else tally.actions for tally in tallies).items():
                tell(name, None, steps, measured)
        for name in dict.fromkeys(name for tally in tallies for name in tally.calls):
            for call, calls in _by_name(tally.calls.get(name, {}) for tally in tallies).items():
                tell(name, call, calls, measured=False)
        for name, metrics in _by_name(tally.metrics for tally in tallies).items():
            values[name] = count = sum(metric.values for metric in metrics)
            if self._values.get(name) != count:
                report.append(MetricTotals(self.sequence, name, _merged(metrics, MetricTally(metrics[0].kind))))
        windows = self.windows.take()
        if blurred:
            windows = [window.blurred() for window in windows]
        self._sent[self.sequence] = _Sent(counts, values, windows[-1].index if windows else -1)
        if len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]
        # The others travel by themselves.
        rests = [msgspec.structs.replace(tally, steps={}, actions={}, calls={}, metrics={}) for tally in tallies]
        return report, _merged(rests, Tally()), windows

    def acknowledged(self, sequence: int) -> bool:
        """Whether this was news."""
        sent = self._sent.get(sequence)
        if sent is None:
            return False
        self._acknowledged = max(self._acknowledged, sequence)
        self._counts, self._values = sent.counts, sent.values
        self.windows.acknowledge(sent.last_window)
        for earlier in [earlier for earlier in self._sent if earlier <= sequence]:
            del self._sent[earlier]
        return True

    def has_reached(self, sequence: int) -> bool:
        """Whether this report or a later one was acknowledged by whoever leads the job now."""
        return self._acknowledged >= sequence

    def reset(self) -> None:
        """A new manager leads: it has nothing, and what the earlier one acknowledges says nothing. The sequence goes on
        growing."""
        self._sent.clear()
        self._acknowledged = 0
        self._counts, self._values = {}, {}
        self.windows.reset()


def _by_name(groups: Iterable[dict[str, Counted]]) -> dict[str, list[Counted]]:
    found: dict[str, list[Counted]] = {}
    for group in groups:
        for name, tally in group.items():
            found.setdefault(name, []).append(tally)
    return found


def _merged(parts: Sequence[Whole], whole: Whole) -> Whole:
    """One alone stays as it is; of several, `whole` takes all in."""
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        whole.merge(part)
    return whole
