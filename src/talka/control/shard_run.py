"""One shard of a workflow while it runs: its attempts, what each has counted, and the gaps between them."""

from typing import Final

import msgspec

from talka.stats.tally import MetricTally, StepTally, Tally
from talka.stats.windows import Window
from talka.wire.shards import MetricTotals, StepTotals, Totals
from talka.work.load import Shard

ATTEMPTS_LIMIT: Final = 4
"""A core that dies at once would otherwise be replaced for ever."""


class LostShard(msgspec.Struct):
    """A core died; from its last acknowledged report until its replacement started, nobody knows or nothing ran."""

    workflow: str
    shard: int
    cause: str
    from_ns: int
    to_ns: int
    vus_missing: int
    arrivals_missing: int


class Attempt:
    """One core's try at a shard. Its last acknowledged totals stay, whatever becomes of it."""

    def __init__(self, core: int, now: int) -> None:
        self.core = core
        self.spawned_ns = now
        self.armed = False
        self.went_ns = 0
        self.started_at_ns = 0
        self.ended_at_ns = 0
        self.reported_ns = 0
        self.sequence = 0
        self.vus = 0
        self.tally = Tally()
        self._newest_window = -1
        self._steps: dict[str, StepTally] = {}
        self._actions: dict[str, StepTally] = {}
        self._metrics: dict[str, MetricTally] = {}

    def on_step_totals(self, message: StepTotals) -> None:
        if message.sequence > self.sequence:
            (self._steps if message.measured else self._actions)[message.name] = message.tally

    def on_metric_totals(self, message: MetricTotals) -> None:
        if message.sequence > self.sequence:
            self._metrics[message.name] = message.tally

    def on_totals(self, now: int, message: Totals) -> list[Window]:
        """Takes a new report in. Answers with those of its windows that no report before it had."""
        # Steps and metrics that did not change are not sent again: what was known of them still holds.
        message.tally.steps = self.tally.steps | self._steps
        message.tally.actions = self.tally.actions | self._actions
        message.tally.metrics = self.tally.metrics | self._metrics
        self._steps, self._actions, self._metrics = {}, {}, {}
        self.tally = message.tally
        self.sequence = message.sequence
        self.started_at_ns = message.started_at_ns
        self.ended_at_ns = message.ended_at_ns
        self.reported_ns = now
        self.vus = 0 if message.final else message.vus
        # The last report does not wait for the one before it to be acknowledged, and repeats its windows.
        news = [window for window in message.windows if window.index > self._newest_window]
        self._newest_window = max((window.index for window in news), default=self._newest_window)
        return news


class ShardRun:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.attempts: list[Attempt] = []
        self.is_done = False
        self.provided: dict[str, bytes] = {}
        self.gap: LostShard | None = None
        """Open until a replacement starts."""

    @property
    def current(self) -> Attempt:
        return self.attempts[-1]

    @property
    def iterations_done(self) -> int:
        return sum(attempt.tally.started for attempt in self.attempts)

    @property
    def has_more_to_run(self) -> bool:
        """Whether a replacement would find iterations left; plans bound by time alone always have."""
        total = self.shard.iterations_in_all
        return total is None or self.iterations_done < total

    def close_gap(self, until_ns: int, *, plan_ns: int, due_until_ns: int) -> None:
        """The gap, if any, ends at `until_ns`; arrivals went missing up to `due_until_ns`.

        Instants count from the start of the job; the plan began at `plan_ns`.
        """
        if self.gap is None:
            return
        self.gap.to_ns = max(self.gap.from_ns, until_ns)
        self.gap.arrivals_missing = self.shard.arrivals_between(self.gap.from_ns - plan_ns, due_until_ns - plan_ns)
        self.gap = None
