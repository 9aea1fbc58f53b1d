"""One shard of a workflow while it runs: its attempts, what each has counted, and the gaps between them.

Decision: docs/decisions/0003-shards-and-lost-cores.md.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from talka.stats.tally import MetricTally, StepTally, Tally
from talka.stats.windows import Window
from talka.wire.channels import BadMessage
from talka.wire.jobs import AttemptResult
from talka.wire.shards import Gap, MetricTotals, StepTotals, Totals, UnreadMetric, UnreadStep, read_metric, read_step
from talka.work.load import PlanSlice, Shard

Kind: TypeAlias = Literal["steps", "actions", "metrics", "calls"]
Part: TypeAlias = tuple[Kind, str, str | None]
"""Of a report: what kind of thing was counted, its name, and of calls the name they were made under."""
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

    def gap(self) -> Gap:
        return Gap(*msgspec.structs.astuple(self)[1:])


class Seats(msgspec.Struct, frozen=True):
    """Where an attempt runs: a worker, and for each of its shards the number of the core there that the job may use."""

    place: str
    """Empty: this machine."""
    numbers: tuple[int, ...]
    """From 0. Shards of several workflows may sit on one core: then one process runs them all."""


class ShardAttempt:
    """One try at a shard by one core, or by the cores of one worker. Its last acknowledged totals stay, whatever
    becomes of it."""

    def __init__(self, number: int, now: int, place: str = "", seats: tuple[int, ...] = (0,), process: int = 0) -> None:
        self.number = number
        self.place = place
        """The worker that runs it; empty on this machine."""
        self.seats = seats
        """The number of its core, per shard: see `Seats`."""
        self.life = 0
        """Of the manager that drew its number: the two together name it."""
        self.process = process
        """The process that runs it on this machine; 0 on a worker, which numbers its own."""
        self.spawned_ns = now
        self.armed = False
        self.go_at_ns = 0
        """When it was told to start its plan, by the clock of whoever keeps this; 0: not yet."""
        self.started_at_ns = 0
        self.ended_at_ns = 0
        self.reported_ns = 0
        """When its last counts were taken, by the clock of whoever keeps this."""
        self.sequence = 0
        self.vus = 0
        self.shares: tuple[int, ...] = ()
        self.spread_ns = 0
        self.gaps: tuple[Gap, ...] = ()
        """Cores the worker lost and replaced by itself."""
        self.ended: tuple[int, ...] = ()
        """Of an attempt of several shards: places of those that have ended, while others of it run."""
        self.answered = 0
        """Number of its latest ask for more time that was answered."""
        self._newest_window = -1
        self._tally = Tally()
        self._unread: dict[Part, bytes] = {}
        """Parts of the last report that nobody has looked at; older ones of the same name are forgotten unread."""
        self._parts: dict[Part, int] = {}
        """Which report each part was last in, while the report is not closed."""
        self._coming: dict[Part, StepTally | MetricTally | bytes] = {}

    @property
    def busy_seats(self) -> tuple[int, ...]:
        """Those of its cores on which it runs."""
        if not self.ended:
            return self.seats
        return tuple(seat for place, seat in enumerate(self.seats) if place not in self.ended)

    @property
    def counts(self) -> Tally:
        """The tally without those of its steps, actions and metrics that nobody has read: what is cheap to know."""
        return self._tally

    @property
    def tally(self) -> Tally:
        for part, content in self._unread.items():
            try:
                self._put(part, read_metric(content) if part[0] == "metrics" else read_step(content))
            except BadMessage:
                continue  # what was known of it before still holds
        self._unread = {}
        return self._tally

    @tally.setter
    def tally(self, tally: Tally) -> None:
        self._tally = tally
        self._unread = {}

    def _put(self, part: Part, counted: StepTally | MetricTally) -> None:
        kind, name, call = part
        if isinstance(counted, MetricTally):
            self._tally.metrics[name] = counted
        elif call is not None:
            self._tally.calls.setdefault(name, {})[call] = counted
        else:
            (self._tally.steps if kind == "steps" else self._tally.actions)[name] = counted

    def on_part(self, message: StepTotals | UnreadStep | MetricTotals | UnreadMetric) -> None:
        """A part of a report that is not closed yet."""
        if message.sequence <= self.sequence:
            return
        part: Part = ("metrics", message.name, None)
        if isinstance(message, StepTotals | UnreadStep):
            kind: Kind = "calls" if message.call is not None else "steps" if message.measured else "actions"
            part = (kind, message.name, message.call)
        self._parts[part] = message.sequence
        self._coming[part] = message.tally

    def is_whole(self, message: Totals) -> bool:
        """Whether every part of the report that this message closes has arrived."""
        return sum(sequence == message.sequence for sequence in self._parts.values()) >= message.parts

    def on_totals(self, now: int, message: Totals) -> list[Window]:
        """Takes a new report in. Answers with those of its windows that no report before it had."""
        # Steps and metrics that did not change are not sent again: what was known of them still holds.
        known, self._tally = self._tally, message.tally
        message.tally.steps, message.tally.actions = known.steps.copy(), known.actions.copy()
        message.tally.metrics, message.tally.calls = known.metrics.copy(), known.calls
        for part, content in self._coming.items():
            if isinstance(content, bytes):
                self._unread[part] = content
            else:
                self._put(part, content)
        self._coming, self._parts = {}, {}
        self.sequence = message.sequence
        self.started_at_ns = message.started_at_ns
        self.ended_at_ns = message.ended_at_ns
        self.reported_ns = min(now, message.made_at_ns) if message.made_at_ns else now - message.age_ns
        self.vus = 0 if message.final else message.vus
        self.shares, self.spread_ns, self.gaps = message.shares, message.spread_ns, message.gaps
        self.ended = tuple(place for place in range(len(self.seats)) if place in message.ended or place in self.ended)
        # The last report does not wait for the one before it to be acknowledged, and repeats its windows.
        return self._news(message.windows)

    def on_result(self, now: int, result: AttemptResult, job_origin_ns: int) -> list[Window]:
        """Everything the attempt came to, at once. Answers as `on_totals` does."""
        self.tally, self.vus = result.tally, 0
        self.shares, self.spread_ns, self.gaps = result.shares, result.spread_ns, result.gaps
        self.started_at_ns = result.started_at_ns + job_origin_ns if result.started_at_ns else 0
        self.ended_at_ns = result.ended_at_ns + job_origin_ns if result.ended_at_ns else 0
        self.reported_ns = self.ended_at_ns if result.is_lost else now
        return self._news(result.windows)

    def _news(self, windows: list[Window]) -> list[Window]:
        news = [window for window in windows if window.index > self._newest_window]
        self._newest_window = max((window.index for window in news), default=self._newest_window)
        return news

    @property
    def accounted(self) -> int:
        """Iterations of which it is known what became of them, or that they are missing."""
        tally = self._tally
        missing = sum(gap.arrivals_missing for gap in self.gaps)
        return tally.iterations + tally.interrupted_iterations + tally.dropped + missing

    def started_by(self, count: int) -> tuple[int, ...]:
        """Iterations started by each of its shards."""
        return self.shares if len(self.shares) == count else (self._tally.started, *(0,) * (count - 1))


class ShardRun:
    def __init__(
        self, shard: Shard | PlanSlice, done_before: tuple[int, ...] = (), tries_before: int = 0, sharing: int = 1
    ) -> None:
        """`done_before`: iterations that a larger slice, of which this is a part, had started before it was lost."""
        self.shard = shard
        self.attempts: list[ShardAttempt] = []
        self.done_before = done_before or (0,) * shard.count
        self.tries_before = tries_before
        self.sharing = sharing
        """The most shards, itself among them, that were on one of its cores: its replacement may be as close."""
        self.aside = 0
        """Attempts that ended because their workflow was put aside."""
        self.is_done = False
        self.is_replaced = False
        """Lost, and its parts run on as shards of their own."""
        self.provided: dict[str, bytes] = {}
        self.missing = 0
        """Arrivals that went missing in gaps that are closed."""
        self.gap: LostShard | None = None
        """Open until a replacement starts."""

    @property
    def current(self) -> ShardAttempt:
        return self.attempts[-1]

    @property
    def ended(self) -> tuple[int, ...]:
        """Places of its shards that have ended while others run, as far as it is known."""
        return self.current.ended if self.attempts else ()

    @property
    def left(self) -> list[int]:
        return [place for place in range(self.shard.count) if place not in self.ended]

    @property
    def vus_left(self) -> int:
        """Of the shards that have not ended."""
        shard = self.shard
        return shard.vus if isinstance(shard, Shard) else sum(shard.shards[place].vus for place in self.left)

    @property
    def tries(self) -> int:
        """Since it was put aside, if ever."""
        return self.tries_before + len(self.attempts) - self.aside

    @property
    def done_by_shard(self) -> tuple[int, ...]:
        """Iterations started by each of its shards, in all attempts."""
        count = self.shard.count
        return tuple(
            map(sum, zip(self.done_before, *(attempt.started_by(count) for attempt in self.attempts), strict=True))
        )

    @property
    def iterations_done(self) -> int:
        return sum(self.done_by_shard)

    @property
    def has_more_to_run(self) -> bool:
        """Whether a replacement would find iterations left; plans bound by time alone always have."""
        total = self.shard.iterations_in_all
        return total is None or self.iterations_done < total

    @property
    def rest(self) -> list[int]:
        """Places of its shards that have iterations left; of plans bound by time alone all have."""
        parts = (self.shard,) if isinstance(self.shard, Shard) else self.shard.shards
        return [
            place
            for place, (part, done) in enumerate(zip(parts, self.done_by_shard, strict=True))
            if part.iterations_in_all is None or done < part.iterations_in_all
        ]

    def close_gap(self, until_ns: int, *, plan_ns: int, due_until_ns: int) -> None:
        """The gap, if any, ends at `until_ns`; arrivals went missing up to `due_until_ns`.

        Instants count from the start of the job; the plan began at `plan_ns`.
        """
        if self.gap is None:
            return
        self.gap.to_ns = max(self.gap.from_ns, until_ns)
        self.gap.arrivals_missing = self._missing(self.gap.from_ns - plan_ns, due_until_ns - plan_ns)
        self.missing += self.gap.arrivals_missing
        self.gap = None

    def _missing(self, from_ns: int, due_until_ns: int) -> int:
        """Arrivals of the plan that were due and of which nobody knows what became. Instants are of the plan.

        Also those that were under way, or late, when the last counts were taken: what is counted and what is missing
        is the plan. Of a part of a lost slice it is not known which of the slice's iterations were its own: those that
        were due since count.
        """
        if self.tries_before:
            return self.shard.arrivals_between(from_ns, due_until_ns)
        known = self.missing + sum(attempt.accounted for attempt in self.attempts)
        return max(0, self.shard.arrivals_between(0, due_until_ns) - known)
