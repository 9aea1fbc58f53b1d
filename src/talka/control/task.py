"""An attempt at a task on this worker: consecutive shards of a workflow, one core process each, told of as one.

To the manager that leads the job a task looks as a core does to `talka run`: it is armed, told to go, reports all it
has counted, and is told to stop. Inwards it is the owner of its cores and replaces those that die.
"""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from talka.control.load_job import ARM_LIMIT_NS, SECOND, STOP_SLACK_NS, KillCore, Send, StartCore
from talka.control.shard_run import ATTEMPTS_LIMIT, Attempt, LostShard, ShardRun
from talka.control.task_report import Summary, TaskReport
from talka.stats.tally import merged
from talka.stats.windows import WINDOW_NS
from talka.wire.jobs import Assign, AttemptResult, Start, encode_result
from talka.wire.shards import (
    Ack,
    Arm,
    Armed,
    FromCore,
    Gap,
    Go,
    Hello,
    MetricTotals,
    Refused,
    Source,
    StepTotals,
    Stop,
    Totals,
    engines_of,
)
from talka.work.load import Shard

NEVER: Final = (1 << 63) - 1
NOTES_LIMIT: Final = 64

TaskStage: TypeAlias = Literal["arming", "armed", "running", "ended"]
CoreEffect: TypeAlias = StartCore | Send | KillCore
SILENCE_NS: Final = 4 * SECOND
"""As long as a worker's lease runs by its own clock. A worker that stands still cannot stop its cores when it is over."""
ORDERED_SLACK_NS: Final = SECOND // 2
"""Beyond the grace period of a task that was told to stop: who ordered it waits for the last word."""


class Task:
    """Call `start` once, then the others as things happen; carry out what they return, and look at `stage` after it.

    A task that has ended was refused (`refused`), killed (`is_killed`), or has a `result`.
    """

    def __init__(self, assign: Assign, source: Source, new_core: Callable[[], int], *, worker: str = "") -> None:
        self.assign = assign
        self.stage: TaskStage = "arming"
        self.refused: Refused | None = None
        self.is_killed = False
        self.origin_ns = 0
        self.job_origin_ns = 0
        self.next_tick_at = NEVER
        self.reports = TaskReport()
        self._source = source
        self._new_core = new_core
        self._worker = worker
        self._shards = [
            ShardRun(Shard(assign.plan, assign.first + offset, assign.of), (done,))
            for offset, done in enumerate(assign.iterations_done)
        ]
        self._running: dict[int, tuple[ShardRun, Attempt]] = {}
        self._told_up_to: dict[int, int] = {}
        """The last window of each core that began: what it has not told yet is later."""
        self._lost: list[LostShard] = []
        self._causes: dict[int, str] = {}
        """By shard: how the last core went that died before it began."""
        self._stopped_ns = 0
        """From when on it starts nothing new: it was told to stop, or its plan is over."""
        self._is_told_to_stop = self._is_cancelled = False
        self._failure: str | None = None
        self._notes: list[str] = []
        self._engine = ""

    # What happens to it.

    def start(self, now: int) -> list[CoreEffect]:
        return self._planned([self._start_core(now, shard) for shard in self._shards])

    def on_message(self, now: int, core: int, message: FromCore) -> list[CoreEffect]:
        if core not in self._running:
            return []  # its last words: it was given up already
        shard, attempt = self._running[core]
        match message:
            case Hello(engine=engine):
                self._engine = self._engine or engine
                return []
            case Armed(engine=engine):
                self._engine = engines_of(self._engine, engine)
                attempt.armed = True
                return self._planned(self._on_armed(now, shard))
            case Refused():
                return self._refuse(message)
            case StepTotals():
                attempt.on_step_totals(message)
                return []
            case MetricTotals():
                attempt.on_metric_totals(message)
                return []
            case Totals():  # pragma: no branch - the type checker sees that no message is left
                return self._on_totals(now, core, message)

    def on_exit(self, now: int, core: int, cause: str) -> list[CoreEffect]:
        """A core's process ended. Before its final report that is a loss; its replacement is in what is returned."""
        if core not in self._running:
            return []
        shard, attempt = self._running.pop(core)
        if self.stage != "running":
            return self._lost_before_start(now, shard, cause)
        if attempt.went_ns:  # a replacement that never began leaves the gap of the one before it open
            self._open_gap(shard, cause, max(attempt.reported_ns, attempt.went_ns), now)
        until_ns, length_ns = now, shard.shard.length_ns
        is_over = length_ns is not None and now >= self.origin_ns + length_ns
        if not self._stopped_ns and not is_over and shard.has_more_to_run:
            if len(shard.attempts) < ATTEMPTS_LIMIT:
                return self._planned([self._start_core(now, shard)])
            until_ns = now if length_ns is None else self.origin_ns + length_ns
        if not self.assign.is_test and not self._is_told_to_stop:
            self._failure = self._failure or f"its core {cause}"
        self._close_gap(shard, until_ns)
        return self._shard_done(shard)

    def go(self, now: int, start: Start) -> list[CoreEffect]:
        """Start together. A core that died since it was armed joins as soon as its replacement is ready."""
        if self.stage != "armed":
            return []
        self.stage = "running"
        self.origin_ns, self.job_origin_ns = start.origin_ns, start.job_origin_ns
        effects: list[CoreEffect] = []
        for shard in self._shards:
            attempt = shard.current
            if attempt.armed:
                effects.append(self._send_off(attempt, start.start_at_ns))
            else:
                cause = self._causes[shard.shard.index]
                self._open_gap(shard, cause, start.start_at_ns, now)
        return self._planned(effects)

    def stop(self, now: int, *, is_cancelled: bool = False) -> list[CoreEffect]:
        """Start nothing new, finish what is under way. A task that has not begun has nothing to finish."""
        if self._is_told_to_stop or self.stage == "ended":
            return []
        self._is_told_to_stop, self._is_cancelled = True, is_cancelled
        self._stopped_ns = self._stopped_ns or now
        effects: list[CoreEffect] = []
        for core, (shard, attempt) in list(self._running.items()):
            if attempt.went_ns:
                effects.append(Send(core, Stop()))
            else:
                del self._running[core]
                self._close_gap(shard, now)
                effects += [KillCore(core), *self._shard_done(shard)]
        return self._planned(effects)

    def kill(self) -> list[CoreEffect]:
        """End it now; there will be no result."""
        if self.stage == "ended":
            return []
        self.is_killed = True
        return self._end()

    def tick(self, now: int) -> list[CoreEffect]:
        effects: list[CoreEffect] = []
        if self.stage == "running":
            effects += self._check_stopping(now)
        late = [core for core, (_, attempt) in self._running.items() if self._is_late(now, attempt)]
        text = f"was not ready to start within {ARM_LIMIT_NS // SECOND} s"
        if late and self.stage != "running":
            effects += self._refuse(Refused("setup", f"{self.assign.workflow} {text}"))
        else:
            for core in late:
                effects += [KillCore(core), *self.on_exit(now, core, text)]
        return self._planned(effects)

    # What is told of it.

    def report(self, now: int, everything: bool = False, *, blurred: bool = False) -> list[FromCore]:
        """The next report; `everything` also what has not changed. Instants are of this machine's clock."""
        self.reports.windows.advance(self._frontier(now))
        starts = self._starts()
        summary = Summary(
            vus=sum(attempt.vus for _, attempt in self._running.values()),
            started_at_ns=min(starts, default=0),
            shares=self._shares(),
            spread_ns=max(starts) - min(starts) if starts else 0,
            gaps=self._gaps(),
            age_ns=self._age_ns(now),
        )
        attempts = [attempt for shard in self._shards for attempt in shard.attempts]
        return self.reports.build(attempts, summary, everything=everything, blurred=blurred)

    def acknowledged(self, sequence: int) -> bool:
        """Whether this was news."""
        return self.reports.acknowledged(sequence)

    def reset(self) -> None:
        """A new manager leads: everything is to be told again. The sequence goes on growing."""
        self.reports.reset()

    @property
    def started(self) -> int:
        """Iterations so far, of all its shards."""
        return sum(attempt.counts.started for shard in self._shards for attempt in shard.attempts)

    def result(self) -> AttemptResult:
        """Everything it came to, once it has ended. Instants count from the start of the job."""
        self.reports.windows.advance(None)
        attempts = [attempt for shard in self._shards for attempt in shard.attempts]
        starts = self._starts()
        # Of a core that was lost only its last report is known.
        ended_ns = max((attempt.ended_at_ns or attempt.reported_ns for attempt in attempts), default=0)
        provided: dict[str, bytes] = {}
        for shard in reversed(self._shards):  # so that the lowest shard with a value wins
            provided |= shard.provided
        return AttemptResult(
            job=self.assign.job,
            attempt=self.assign.attempt,
            tally=merged([attempt.tally for attempt in attempts]),
            windows=self.reports.windows.all(),
            shares=self._shares(),
            started_at_ns=max(1, min(starts) - self.job_origin_ns) if starts else 0,
            ended_at_ns=max(1, ended_ns - self.job_origin_ns) if ended_ns else 0,
            spread_ns=max(starts) - min(starts) if starts else 0,
            provided=provided,
            failure=self._failure,
            notes=tuple(self._notes),
            gaps=self._gaps(),
            engine=self._engine,
            worker=self._worker,
            is_cancelled=self._is_cancelled,
        )

    def _starts(self) -> list[int]:
        """When each shard began. A replacement begins later by nature: that is its gap."""
        found = []
        for shard in self._shards:
            began = [attempt.started_at_ns for attempt in shard.attempts if attempt.started_at_ns]
            found += began[:1]
        return found

    def _shares(self) -> tuple[int, ...]:
        return tuple(sum(attempt.tally.started for attempt in shard.attempts) for shard in self._shards)

    def _gaps(self) -> tuple[Gap, ...]:
        return tuple(Gap(*msgspec.structs.astuple(lost)[1:]) for lost in self._lost)

    def _age_ns(self, now: int) -> int:
        """How long ago the core that was silent longest told what it has counted."""
        told = [max(attempt.reported_ns, attempt.went_ns) for _, attempt in self._running.values() if attempt.went_ns]
        return max(0, now - min(told, default=now))

    def _frontier(self, now: int) -> int | None:
        """The last window that no core will add to; None when none will ever add to any."""
        current = (now - self.job_origin_ns) // WINDOW_NS
        # One that has not begun will begin in the window that is open now, or later.
        return min((self._told_up_to.get(core, current - 1) for core in self._running), default=None)

    # Starting.

    def _start_core(self, now: int, shard: ShardRun) -> StartCore:
        core = self._new_core()
        assign = self.assign
        arm = Arm(
            job=assign.job,
            source=self._source,
            workflow=assign.workflow,
            shard=Shard(assign.plan, shard.shard.index, assign.of),
            iterations_done=shard.iterations_done,
            values=assign.values,
            settings=msgspec.structs.replace(assign.settings, silence_ns=SILENCE_NS),
        )
        attempt = Attempt(core, now)
        shard.attempts.append(attempt)
        self._running[core] = (shard, attempt)
        return StartCore(core, arm)

    def _on_armed(self, now: int, shard: ShardRun) -> list[CoreEffect]:
        if self.stage == "running":
            # A replacement: it joins the plan where the plan is now.
            start_ns = max(now, self.origin_ns)
            self._close_gap(shard, start_ns)
            return [self._send_off(shard.current, start_ns)]
        if self.stage == "arming" and all(other.current.armed for other in self._shards):
            self.stage = "armed"
        return []

    def _send_off(self, attempt: Attempt, start_ns: int) -> Send:
        attempt.went_ns = start_ns
        self._told_up_to[attempt.core] = max(0, start_ns - self.job_origin_ns) // WINDOW_NS - 1
        return Send(attempt.core, Go(start_ns, self.origin_ns, self.job_origin_ns))

    def _lost_before_start(self, now: int, shard: ShardRun, cause: str) -> list[CoreEffect]:
        if len(shard.attempts) < ATTEMPTS_LIMIT:
            self._causes[shard.shard.index] = cause
            return self._planned([self._start_core(now, shard)])
        text = f"the core process of {self.assign.workflow} {cause} while it loaded the test"
        return self._refuse(Refused("setup", text))

    def _refuse(self, refused: Refused) -> list[CoreEffect]:
        self.refused = refused
        return self._end()

    # Running.

    def _on_totals(self, now: int, core: int, message: Totals) -> list[CoreEffect]:
        shard, attempt = self._running[core]
        if message.sequence > attempt.sequence:
            for window in attempt.on_totals(now, message):
                self.reports.windows.add(window)
                self._told_up_to[core] = max(self._told_up_to.get(core, -1), window.index)
        effects: list[CoreEffect] = [Send(core, Ack(message.sequence))]
        if message.final:
            del self._running[core]
            shard.provided = message.provided
            new = [note for note in message.notes if note not in self._notes]
            self._notes += new[: NOTES_LIMIT - len(self._notes)]
            self._failure = self._failure or message.failure
            effects += self._shard_done(shard)
        return effects

    def _check_stopping(self, now: int) -> list[CoreEffect]:
        length_ns = self.assign.plan.length_ns
        if not self._stopped_ns:
            if length_ns is not None and now > self.origin_ns + length_ns:
                self._stopped_ns = self.origin_ns + length_ns
            return []
        effects: list[CoreEffect] = []
        if now > self._stop_limit_ns:
            for core in list(self._running):
                effects += [KillCore(core), *self.on_exit(now, core, "did not stop in time and was killed")]
        return effects

    @property
    def _stop_limit_ns(self) -> int:
        slack_ns = ORDERED_SLACK_NS if self._is_told_to_stop else STOP_SLACK_NS
        return self._stopped_ns + self.assign.settings.grace_ns + slack_ns

    def _is_late(self, now: int, attempt: Attempt) -> bool:
        return not attempt.armed and now - attempt.spawned_ns >= ARM_LIMIT_NS

    def _open_gap(self, shard: ShardRun, cause: str, from_ns: int, now: int) -> None:
        shard.gap = LostShard(
            workflow=self.assign.workflow,
            shard=shard.shard.index,
            cause=cause,
            from_ns=from_ns - self.job_origin_ns,
            to_ns=max(from_ns, now) - self.job_origin_ns,
            vus_missing=shard.shard.vus,
            arrivals_missing=0,
        )
        self._lost.append(shard.gap)

    def _close_gap(self, shard: ShardRun, until_ns: int) -> None:
        due_until_ns = min(until_ns, self._stopped_ns or until_ns)
        shard.close_gap(
            until_ns - self.job_origin_ns,
            plan_ns=self.origin_ns - self.job_origin_ns,
            due_until_ns=due_until_ns - self.job_origin_ns,
        )

    # Ending.

    def _shard_done(self, shard: ShardRun) -> list[CoreEffect]:
        shard.is_done = True
        return self._end() if all(other.is_done for other in self._shards) else []

    def _end(self) -> list[CoreEffect]:
        self.stage = "ended"
        self.next_tick_at = NEVER
        cores = list(self._running)
        self._running.clear()
        return [KillCore(core) for core in cores]

    def _planned(self, effects: list[CoreEffect]) -> list[CoreEffect]:
        """What is to be done, with the time of the next look at it settled."""
        at = NEVER
        for _, attempt in self._running.values():
            if not attempt.armed:
                at = min(at, attempt.spawned_ns + ARM_LIMIT_NS)
        if self.stage == "running":
            length_ns = self.assign.plan.length_ns
            if self._stopped_ns:
                at = min(at, self._stop_limit_ns + 1)
            elif length_ns is not None:
                at = min(at, self.origin_ns + length_ns + 1)
        self.next_tick_at = at
        return effects


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
