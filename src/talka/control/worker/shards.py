"""An attempt on this worker: consecutive shards of a workflow, one core each, told of as one.

To the manager that leads the job it looks as a core does to `talka run`: it is armed, told to go, reports all it has
counted, and is told to stop. Inwards it owns its cores and replaces those that die.
See docs/decisions/0017-a-worker-is-a-core-to-its-manager.md.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from talka.control.load.core_effects import CoreEffect
from talka.control.load.shard_group import ShardGroup
from talka.control.load.shard_run import LostShard, Seats, ShardAttempt, ShardRun
from talka.control.worker.core_pool import CorePool, seat_at
from talka.control.worker.report import ShardsReport
from talka.stats.tally import merged
from talka.stats.windows import WINDOW_NS, Window
from talka.units import NEVER, SECOND
from talka.wire.jobs import Assign, AttemptResult, Start, encode_result
from talka.wire.orders import WorkflowOrder
from talka.wire.shards import Arm, FromCore, Gap, ShardAnswer, Source, TimeAsked, TimeOver, Totals
from talka.work.lifecycle import TaskState, move
from talka.work.load import Shard

ShardsStage: TypeAlias = Literal["arming", "armed", "running", "ended"]
ORDERED_SLACK_NS: Final = SECOND // 2
"""Beyond the grace period of shards that were told to stop: who ordered it waits for the last word."""


class WorkerShards:
    """Call `start` once, then the others as things happen; carry out what they return, and look at `stage` after it.

    One that has ended was refused (see `group`) or killed, or has a `result`.
    """

    def __init__(self, assign: Assign, source: Source, pool: CorePool, *, worker: str = "") -> None:
        self.assign = assign
        self.stage: ShardsStage = "arming"
        self.job_origin_ns = 0
        self.next_tick_at = NEVER
        self.reports = ShardsReport()
        self.attempts: dict[int, tuple[ShardGroup, ShardRun, ShardAttempt]] = {}
        self.own_lost: list[LostShard] = []
        self.arriving: dict[int, None] = {}
        self.taken_up_ns = 0
        self._source = source
        self._pool = pool
        self._worker = worker
        self._told_up_to: dict[int, int] = {}
        """Index of the last window that was told, by attempt: what it has not told yet is later."""
        self._is_cancelled = False
        self._asked: TimeAsked | None = None
        """What the manager is asked until it answers: of one or several cores, at most one at a time."""
        self._asks = 0
        self._askers: dict[int, int] = {}
        """Number of the ask of each core that waits for that answer, by number of its try."""
        self._saved_in = 0
        """The first report that told what was saved after a warning. 0: none yet."""
        spec = WorkflowOrder(
            name=assign.workflow,
            plan=assign.plan,
            priority="auto",
            is_test=assign.is_test,
            depends_on=(),
            timeout_ns=NEVER,
            thresholds=(),
            flows=(),
            load="",
            nodes=(),
        )
        self.group = ShardGroup(self, spec, grace_ns=assign.settings.grace_ns, ordered_slack_ns=ORDERED_SLACK_NS)

    # What happens to it.

    def start(self, now: int) -> list[CoreEffect]:
        assign = self.assign
        seats = assign.seats or range(assign.count)
        shards = [
            (ShardRun(Shard(assign.plan, assign.first + offset, assign.of), (done,)), Seats("", (seat,)))
            for offset, (done, seat) in enumerate(zip(assign.iterations_done, seats, strict=True))
        ]
        self.group.state = move(self.group.state, TaskState.READY)  # here it waits for nothing
        return self._planned(self.group.start(now, shards))

    def on_message(self, now: int, attempt: int, message: FromCore) -> list[CoreEffect]:
        if attempt not in self.attempts:
            return []  # its last words: it was given up already
        return self._planned(self.group.on_message(now, attempt, message))

    def on_exit(self, now: int, attempt: int, cause: str) -> list[CoreEffect]:
        """A core's process ended. Before its final report that is a loss; its replacement is in what is returned."""
        return self._planned(self.group.on_exit(now, attempt, cause)) if attempt in self.attempts else []

    def give_up(self, now: int, attempt: int, cause: str) -> list[CoreEffect]:
        """Kill a try that has begun; what takes its place is in what is returned."""
        return self._planned(self.group.give_up(now, attempt, cause)) if attempt in self.attempts else []

    def go(self, now: int, start: Start) -> list[CoreEffect]:
        """Start together. A core that died since it was armed joins as soon as its replacement is ready."""
        if self.stage != "armed":
            return []
        self.stage = "running"
        self.job_origin_ns = start.job_origin_ns
        return self._planned(self.group.go(now, start.start_at_ns, start.origin_ns))

    def stop(self, now: int, *, is_cancelled: bool = False) -> list[CoreEffect]:
        """Start nothing new, finish what is under way. What has not begun has nothing to finish."""
        if self.group.is_told_to_stop or self.stage == "ended":
            return []
        self._is_cancelled = is_cancelled
        return self._planned(self.group.stop(now))

    def kill(self, now: int) -> list[CoreEffect]:
        """End it now; there will be no result."""
        if self.stage == "ended":
            return []
        return self._planned(self.on_done(now, self.group))

    def on_answer(self, answer: ShardAnswer) -> list[CoreEffect]:
        """The manager answers an ask for more time."""
        if self._asked is None or answer.number != self._asked.number:
            return []
        askers, self._askers, self._asked = self._askers, {}, None
        return [
            effect
            for core, number in askers.items()
            for effect in self.group.answer(core, ShardAnswer(number, answer.answer))
        ]

    def warn(self, warning: TimeOver) -> list[CoreEffect]:
        """The manager says that its time is over; heard again, it says nothing new."""
        return self.group.warn(warning)

    def tick(self, now: int) -> list[CoreEffect]:
        return self._planned(self.group.tick(now))

    def _planned(self, effects: list[CoreEffect]) -> list[CoreEffect]:
        """What is to be done, with the time of the next look at it settled."""
        self.next_tick_at = NEVER if self.stage == "ended" else self.group.next_tick_at
        return effects

    # What its group asks for.

    def draw(self, seats: Seats) -> tuple[int, int]:
        return self._pool.draw((self.assign.job, self.assign.attempt), seat_at(self.assign, seats.numbers[0]))

    def seats_for(self, group: ShardGroup, shard: ShardRun) -> list[Seats]:
        return [Seats("", shard.current.seats)]  # its process is gone, its core is not

    def on_started(self, attempt: ShardAttempt) -> None:
        """Who shares cores is known to the manager, which has dealt them out."""

    def on_windows(self, attempt: int, windows: Sequence[Window]) -> None:
        for window in windows:
            self.reports.windows.add(window)
            self._told_up_to[attempt] = max(self._told_up_to.get(attempt, -1), window.index)

    def on_asked(self, now: int, group: ShardGroup, attempt: int, asked: TimeAsked) -> list[CoreEffect]:
        """Told with the next report. Cores that ask meanwhile get the same answer."""
        if self._asked is None:
            self._asks += 1
            self._asked = TimeAsked(self._asks, asked.estimate_ns, asked.reason)
        self._askers[attempt] = asked.number
        return []

    def on_armed(self, now: int, group: ShardGroup) -> list[CoreEffect]:
        self.stage = "armed"
        return []

    def on_failed(self, now: int, group: ShardGroup) -> list[CoreEffect]:
        return self.on_done(now, group)

    def on_done(self, now: int, group: ShardGroup) -> list[CoreEffect]:
        self.stage = "ended"
        return group.end(now, TaskState.COMPLETED)

    # What is told of it.

    def arm_for(self, attempt: int) -> Arm | None:
        if attempt not in self.attempts:
            return None
        assign, (_, shard, _) = self.assign, self.attempts[attempt]
        return Arm(
            job=assign.job,
            source=self._source,
            workflow=assign.workflow,
            shard=Shard(assign.plan, shard.shard.index, assign.of),
            iterations_done=shard.iterations_done,
            values=assign.values,
            settings=assign.settings,
        )

    def report(self, now: int, *, blurred: bool = False) -> list[FromCore]:
        """The next report. Instants are of this machine's clock."""
        self.reports.windows.advance(self._frontier(now))
        starts, made_at_ns = self._starts(), self._made_at_ns(now)
        attempts = [attempt for shard in self.group.shards for attempt in shard.attempts]
        tallies = [attempt.tally for attempt in attempts if attempt.sequence]
        parts, rest, windows = self.reports.build(tallies, blurred=blurred)
        totals = Totals(
            self.reports.sequence,
            rest,
            windows,
            vus=sum(attempt.vus for _, _, attempt in self.attempts.values()),
            started_at_ns=min(starts, default=0),
            shares=self._shares(),
            spread_ns=max(starts) - min(starts) if starts else 0,
            gaps=self._gaps(),
            parts=len(parts),
            age_ns=max(0, now - made_at_ns),
            made_at_ns=made_at_ns,
            ended=self.ended,
            asked=self._asked,
            provided=self._saved(),
        )
        return [*parts, totals]

    def _saved(self) -> dict[str, bytes]:
        """What its cores have saved after a warning, until a report with it was acknowledged."""
        if self.group.warning is None or (self._saved_in and self.reports.has_reached(self._saved_in)):
            return {}
        self.group.collect_provided()
        if not self.group.provided:
            return {}
        self._saved_in = self._saved_in or self.reports.sequence
        return self.group.provided

    @property
    def ended(self) -> tuple[int, ...]:
        """Places of its shards of which nothing runs any more."""
        return tuple(place for place, shard in enumerate(self.group.shards) if shard.is_done)

    @property
    def started(self) -> int:
        """Iterations so far, of all its shards."""
        return sum(attempt.counts.started for shard in self.group.shards for attempt in shard.attempts)

    def result(self) -> AttemptResult:
        """Everything it came to, once it has ended. Instants count from the start of the job."""
        self.reports.windows.advance(None)
        attempts = [attempt for shard in self.group.shards for attempt in shard.attempts]
        starts = self._starts()
        # Of a core that was lost only its last report is known.
        ended_ns = max((attempt.ended_at_ns or attempt.reported_ns for attempt in attempts), default=0)
        self.group.collect_provided()
        return AttemptResult(
            job=self.assign.job,
            attempt=self.assign.attempt,
            tally=merged([attempt.tally for attempt in attempts]),
            windows=self.reports.windows.all(),
            shares=self._shares(),
            started_at_ns=max(1, min(starts) - self.job_origin_ns) if starts else 0,
            ended_at_ns=max(1, ended_ns - self.job_origin_ns) if ended_ns else 0,
            spread_ns=max(starts) - min(starts) if starts else 0,
            provided=self.group.provided,
            failure=self.group.failure,
            notes=tuple(self.group.notes),
            gaps=self._gaps(),
            engine=self.group.engine,
            worker=self._worker,
            is_cancelled=self._is_cancelled,
            life=self.assign.life,
        )

    def _starts(self) -> list[int]:
        """When each shard began. A replacement begins later by nature: that is its gap."""
        found = []
        for shard in self.group.shards:
            began = [attempt.started_at_ns for attempt in shard.attempts if attempt.started_at_ns]
            found += began[:1]
        return found

    def _shares(self) -> tuple[int, ...]:
        return tuple(sum(attempt.tally.started for attempt in shard.attempts) for shard in self.group.shards)

    def _gaps(self) -> tuple[Gap, ...]:
        return tuple(lost.gap() for lost in self.own_lost)

    def _made_at_ns(self, now: int) -> int:
        """When the core that was silent longest took what it has counted."""
        went = [attempt for _, _, attempt in self.attempts.values() if attempt.go_at_ns]
        return min((max(attempt.reported_ns, attempt.go_at_ns) for attempt in went), default=now)

    def _frontier(self, now: int) -> int | None:
        """The last window that no core will add to; None when none will ever add to any."""
        current = (now - self.job_origin_ns) // WINDOW_NS
        return min((self._told(attempt, current) for _, _, attempt in self.attempts.values()), default=None)

    def _told(self, attempt: ShardAttempt, current: int) -> int:
        """The last window that this attempt has told all of. One that has not begun will begin in the one that is open
        now, or later."""
        began = max(0, attempt.go_at_ns - self.job_origin_ns) // WINDOW_NS if attempt.go_at_ns else current
        return self._told_up_to.get(attempt.number, began - 1)


def encoded_within(result: AttemptResult, limit_bytes: int) -> bytes:
    """The result as a blob. Of one that would be too large the oldest windows are left out, and it says so."""
    content = encode_result(result)
    left_out = 0
    while len(content) > limit_bytes and result.windows:
        left_out += len(result.windows) + 1 >> 1
        note = f"the timeline of worker {result.worker} begins late: its {left_out} oldest windows were left out"
        kept = result.windows[len(result.windows) + 1 >> 1 :]
        content = encode_result(msgspec.structs.replace(result, windows=kept, notes=(*result.notes, note)))
        result = msgspec.structs.replace(result, windows=kept)
    return content
