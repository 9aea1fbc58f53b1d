"""A load job from start to end: which workflows run now and on how many cores, and what became of them.

Pure: it is told what happened and what time it is, and answers with effects. The owner of the processes carries them
out: the local runner here, a worker in a cluster.
"""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from talka.control.allocation import Claim, allocate
from talka.control.shard_run import ATTEMPTS_LIMIT, Attempt, LostShard, ShardRun
from talka.stats.tally import Tally, merged
from talka.stats.windows import Timeline
from talka.wire.shards import (
    RECEIVED_LIMIT_BYTES,
    Ack,
    Arm,
    Armed,
    FromCore,
    Go,
    Hello,
    MetricTotals,
    Refused,
    Settings,
    Source,
    StepTotals,
    Stop,
    ToCore,
)
from talka.wire.shards import Totals as TotalsMessage
from talka.work.dsl import Priority
from talka.work.lifecycle import TaskState
from talka.work.load import Plan
from talka.work.thresholds import Threshold, Verdict, judge, should_abort

SECOND: Final = 1_000_000_000
TICK_NS: Final = SECOND // 10
START_DELAY_NS: Final = SECOND // 50
"""Between the order to go and the instant itself: every core must have read the order by then."""
JUDGE_EVERY_NS: Final = SECOND // 2
ARM_LIMIT_NS: Final = 60 * SECOND
STOP_SLACK_NS: Final = 5 * SECOND
"""Beyond the grace period: a core that has not reported its end by then is stuck in the user's code."""

ENDED: Final = frozenset(
    {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED, TaskState.TIMEOUT, TaskState.SKIPPED}
)


class JobWorkflow(msgspec.Struct, frozen=True):
    """A workflow as the planner sees it."""

    name: str
    plan: Plan
    priority: Priority
    is_test: bool
    depends_on: frozenset[str]
    timeout_ns: int
    thresholds: tuple[Threshold, ...]
    flows: tuple[tuple[str, str], ...]
    """(workflow, key) of the values it receives: those on which both sides agree."""


class JobSpec(msgspec.Struct, frozen=True):
    job: str
    source: Source
    workflows: tuple[JobWorkflow, ...]
    cores: int
    settings: Settings
    thresholds: tuple[Threshold, ...] = ()
    """Rules over the whole job."""


class StartCore(msgspec.Struct, frozen=True):
    core: int
    arm: Arm


class Send(msgspec.Struct, frozen=True):
    core: int
    message: ToCore


class KillCore(msgspec.Struct, frozen=True):
    core: int


class JobEnded(msgspec.Struct, frozen=True):
    pass


Effect: TypeAlias = StartCore | Send | KillCore | JobEnded


class WorkflowRun:
    """What is known of one workflow of the job."""

    def __init__(self, spec: JobWorkflow) -> None:
        self.spec = spec
        self.state = TaskState.PENDING
        self.shards: list[ShardRun] = []
        self.origin_ns = 0
        self.ended_ns = 0
        self.stopped_ns = 0
        """From when on it starts nothing new: it was told to stop, or its plan is over."""
        self.has_timed_out = False
        self.refused: Refused | None = None
        self.failure: str | None = None
        self.provided: dict[str, bytes] = {}
        self.notes: list[str] = []

    @property
    def is_under_way(self) -> bool:
        return self.state in (TaskState.ASSIGNED, TaskState.RUNNING)

    @property
    def runs_alone(self) -> bool:
        """It has the whole pool, however many of the cores it can use."""
        return self.spec.is_test and self.spec.priority == "exclusive"

    def tally(self) -> Tally:
        return merged([attempt.tally for shard in self.shards for attempt in shard.attempts])

    def elapsed_ns(self, now: int) -> int:
        return max(0, (self.ended_ns or now) - self.origin_ns) if self.origin_ns else 0


def first_failure(tally: Tally) -> str | None:
    """What went wrong in a workflow that measures nothing: there a failure is no result but the end."""
    for name, action in tally.actions.items():
        if action.samples:
            return f"{name} raised {action.samples[0].text}"
    return None


class LoadJob:
    """Call `start` once, then `on_message`, `on_exit` and `tick` as things happen, and carry out what they return."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.workflows = {workflow.name: WorkflowRun(workflow) for workflow in spec.workflows}
        self.timeline = Timeline()
        self.lost: list[LostShard] = []
        self.origin_ns = 0
        self.ended_ns = 0
        self.next_tick_at = 0
        self.interrupted_by: Literal["SIGINT", "SIGTERM"] | None = None
        self.aborted: Verdict | None = None
        self.engine = ""
        self._running: dict[int, tuple[WorkflowRun, ShardRun, Attempt]] = {}
        self._cores_started = 0
        self._judge_at_ns = 0

    # What happens to the job.

    def start(self, now: int) -> list[Effect]:
        return self._schedule(now)

    def on_message(self, now: int, core: int, message: FromCore) -> list[Effect]:
        if core not in self._running:
            return []  # its last words: the attempt was given up already
        run, shard, attempt = self._running[core]
        match message:
            case Hello(engine=engine):
                self.engine = engine
                return []
            case Armed():
                attempt.armed = True
                return self._go(now, run, shard)
            case Refused():
                run.refused = message
                run.failure = message.text
                return self._end(now, run, TaskState.FAILED)
            case StepTotals():
                attempt.on_step_totals(message)
                return []
            case MetricTotals():
                attempt.on_metric_totals(message)
                return []
            case TotalsMessage():  # pragma: no branch - the type checker sees that no message is left
                return self._on_totals(now, core, message)

    def on_exit(self, now: int, core: int, cause: str) -> list[Effect]:
        """A core's process ended. Before its final report that is a loss."""
        if core not in self._running:
            return []
        run, shard, attempt = self._running.pop(core)
        if run.state is TaskState.ASSIGNED:
            return self._lost_while_arming(now, run, shard, cause)
        if attempt.went_ns:  # a replacement that never began leaves the gap of the one before it open
            shard.gap = self._gap_after(now, run, shard, cause)
            self.lost.append(shard.gap)
        until_ns, length_ns = now, shard.shard.length_ns
        is_over = length_ns is not None and now >= run.origin_ns + length_ns
        if not run.stopped_ns and not is_over and shard.has_more_to_run:
            if len(shard.attempts) < ATTEMPTS_LIMIT:
                return [self._start_core(now, run, shard)]
            until_ns = now if length_ns is None else run.origin_ns + length_ns
        if not run.spec.is_test and not self._is_stopping:
            # Others depend on what it does, and nobody knows whether it was done.
            run.failure = run.failure or f"its core {cause}"
        self._close_gap(run, shard, until_ns)
        return self._shard_done(now, run, shard)

    def interrupt(self, now: int, signal: Literal["SIGINT", "SIGTERM"]) -> list[Effect]:
        """The first one ends the job gently, the second at once."""
        if self.interrupted_by is not None:
            effects: list[Effect] = []
            for run in self.workflows.values():
                if run.state not in ENDED:
                    effects += self._end(now, run, TaskState.CANCELLED)
            return effects
        self.interrupted_by = signal
        return self._stop_all(now)

    def tick(self, now: int) -> list[Effect]:
        self.next_tick_at = now + TICK_NS
        effects: list[Effect] = []
        # First, so that nothing is started which they would stop.
        if not self._is_stopping and not self.ended_ns:
            effects += self._check_thresholds(now)
        for run in self.workflows.values():
            if run.state is TaskState.ASSIGNED:
                effects += self._check_arming(now, run)
            elif run.state is TaskState.RUNNING:
                effects += self._check_running(now, run)
        return effects

    # What is known of it.

    def tally(self) -> Tally:
        return merged([run.tally() for run in self.workflows.values()])

    def elapsed_ns(self, now: int) -> int:
        return max(0, (self.ended_ns or now) - self.origin_ns) if self.origin_ns else 0

    def verdicts(self, now: int) -> list[tuple[str | None, Threshold, Verdict]]:
        """Every rule with its workflow (None: the whole job) and how it stands."""
        found: list[tuple[str | None, Threshold, Verdict]] = []
        if self.spec.thresholds:
            whole, elapsed_s = self.tally(), self.elapsed_ns(now) / SECOND
            found += [(None, rule, judge(rule, whole, elapsed_s)) for rule in self.spec.thresholds]
        for run in self.workflows.values():
            if run.spec.thresholds:
                tally, elapsed_s = run.tally(), run.elapsed_ns(now) / SECOND
                found += [(run.spec.name, rule, judge(rule, tally, elapsed_s)) for rule in run.spec.thresholds]
        return found

    def active_vus(self) -> int:
        return sum(attempt.vus for _, _, attempt in self._running.values())

    @property
    def _is_stopping(self) -> bool:
        return self.interrupted_by is not None or self.aborted is not None

    def _cores_of(self, run: WorkflowRun) -> list[tuple[int, ShardRun, Attempt]]:
        return [(core, shard, attempt) for core, (other, shard, attempt) in self._running.items() if other is run]

    # Starting.

    def _schedule(self, now: int) -> list[Effect]:
        self._wake_dependents()
        ready = [run for run in self.workflows.values() if run.state is TaskState.READY]
        effects: list[Effect] = []
        if ready and not self._is_stopping:
            claims = [
                Claim(run.spec.name, run.spec.priority, run.spec.is_test, run.spec.plan.shards_for(self.spec.cores))
                for run in ready
            ]
            granted = allocate(claims, total=self.spec.cores, free=self._free_cores())
            for name, cores in granted.items():
                effects += self._assign(now, self.workflows[name], cores)
        if not self.ended_ns and all(run.state in ENDED for run in self.workflows.values()):
            self.ended_ns = max((run.ended_ns for run in self.workflows.values()), default=0) or now
            effects.append(JobEnded())
        return effects

    def _wake_dependents(self) -> None:
        """Workflows come after those they depend on, so one pass sees everything."""
        for run in self.workflows.values():
            if run.state is not TaskState.PENDING:
                continue
            before = [self.workflows[name].state for name in run.spec.depends_on]
            if self._is_stopping:
                run.state = TaskState.CANCELLED
            elif any(state in ENDED and state is not TaskState.COMPLETED for state in before):
                run.state = TaskState.SKIPPED
                run.failure = "a workflow it depends on did not complete"
            elif all(state is TaskState.COMPLETED for state in before):
                run.state = TaskState.READY
                size = sum(len(value) for values in self._values_for(run).values() for value in values.values())
                if size > RECEIVED_LIMIT_BYTES:
                    text = (
                        f"it receives {size} bytes from other workflows: at most {RECEIVED_LIMIT_BYTES} are handed on"
                    )
                    run.refused, run.failure, run.state = Refused("setup", text), text, TaskState.FAILED

    def _free_cores(self) -> int:
        under_way = [run for run in self.workflows.values() if run.is_under_way]
        return self.spec.cores - sum(self.spec.cores if run.runs_alone else len(run.shards) for run in under_way)

    def _assign(self, now: int, run: WorkflowRun, cores: int) -> list[Effect]:
        run.state = TaskState.ASSIGNED
        run.shards = [ShardRun(shard) for shard in run.spec.plan.split(cores)]
        return [self._start_core(now, run, shard) for shard in run.shards]

    def _start_core(self, now: int, run: WorkflowRun, shard: ShardRun) -> Effect:
        self._cores_started += 1
        core = self._cores_started
        arm = Arm(
            job=self.spec.job,
            source=self.spec.source,
            workflow=run.spec.name,
            shard=shard.shard,
            iterations_done=shard.iterations_done,
            values=self._values_for(run),
            settings=self.spec.settings,
        )
        attempt = Attempt(core, now)
        shard.attempts.append(attempt)
        self._running[core] = (run, shard, attempt)
        return StartCore(core, arm)

    def _values_for(self, run: WorkflowRun) -> dict[str, dict[str, bytes]]:
        values: dict[str, dict[str, bytes]] = {}
        for source, key in run.spec.flows:
            if key in self.workflows[source].provided:
                values.setdefault(source, {})[key] = self.workflows[source].provided[key]
        return values

    def _go(self, now: int, run: WorkflowRun, shard: ShardRun) -> list[Effect]:
        if run.state is TaskState.RUNNING:
            # A replacement: it joins the plan where the plan is now.
            shard.current.went_ns = start_ns = max(now, run.origin_ns)
            self._close_gap(run, shard, start_ns)
            return [Send(shard.current.core, Go(start_ns, run.origin_ns, self.origin_ns))]
        if not all(other.current.armed for other in run.shards):
            return []
        run.state = TaskState.RUNNING
        run.origin_ns = now + START_DELAY_NS
        self.origin_ns = self.origin_ns or run.origin_ns
        for other in run.shards:
            other.current.went_ns = run.origin_ns
        go = Go(run.origin_ns, run.origin_ns, self.origin_ns)
        return [Send(other.current.core, go) for other in run.shards]

    # Running.

    def _on_totals(self, now: int, core: int, message: TotalsMessage) -> list[Effect]:
        run, shard, attempt = self._running[core]
        if message.sequence > attempt.sequence:
            for window in attempt.on_totals(now, message):
                self.timeline.add(window)
        effects: list[Effect] = [Send(core, Ack(message.sequence))]
        if message.final:
            del self._running[core]
            shard.provided = message.provided
            run.notes += [note for note in message.notes if note not in run.notes]
            run.failure = run.failure or message.failure
            effects += self._shard_done(now, run, shard)
        return effects

    def _check_arming(self, now: int, run: WorkflowRun) -> list[Effect]:
        slow = [shard.current for shard in run.shards if not shard.current.armed]
        if all(now - attempt.spawned_ns < ARM_LIMIT_NS for attempt in slow):
            return []
        run.refused = Refused("setup", f"{run.spec.name} was not ready to start within {ARM_LIMIT_NS // SECOND} s")
        run.failure = run.refused.text
        return self._end(now, run, TaskState.FAILED)

    def _check_running(self, now: int, run: WorkflowRun) -> list[Effect]:
        effects: list[Effect] = []
        length_ns = run.spec.plan.length_ns
        if not run.stopped_ns:
            if now - run.origin_ns > run.spec.timeout_ns:
                run.has_timed_out = True
                run.failure = f"it ran longer than its timeout of {run.spec.timeout_ns / SECOND:g} s"
                effects += self._stop(now, run)
            elif length_ns is not None and now - run.origin_ns > length_ns:
                run.stopped_ns = run.origin_ns + length_ns
        elif now > run.stopped_ns + self.spec.settings.grace_ns + STOP_SLACK_NS:
            for core, _, _ in self._cores_of(run):
                effects += self._kill(now, core, "did not stop in time and was killed")
        for core, _, attempt in self._cores_of(run):
            if not attempt.armed and now - attempt.spawned_ns >= ARM_LIMIT_NS:
                effects += self._kill(now, core, f"was not ready to start within {ARM_LIMIT_NS // SECOND} s")
        return effects

    def _check_thresholds(self, now: int) -> list[Effect]:
        if now < self._judge_at_ns or not any(rule.abort for rule in self._rules()):
            return []
        # Merging every histogram takes a while where there are many steps: as often as people could act on it.
        self._judge_at_ns = now + JUDGE_EVERY_NS
        for workflow, rule, verdict in self.verdicts(now):
            elapsed_ns = self.workflows[workflow].elapsed_ns(now) if workflow else self.elapsed_ns(now)
            if should_abort(rule, verdict, elapsed_ns):
                self.aborted = verdict
                return self._stop_all(now)
        return []

    def _rules(self) -> Sequence[Threshold]:
        return [*self.spec.thresholds, *(rule for run in self.workflows.values() for rule in run.spec.thresholds)]

    # Ending.

    def _stop(self, now: int, run: WorkflowRun) -> list[Effect]:
        run.stopped_ns = run.stopped_ns or now
        effects: list[Effect] = []
        for core, shard, attempt in self._cores_of(run):
            if attempt.went_ns:
                effects.append(Send(core, Stop()))
            else:  # a replacement that has not begun has nothing to finish
                del self._running[core]
                self._close_gap(run, shard, now)
                effects += [KillCore(core), *self._shard_done(now, run, shard)]
        return effects

    def _stop_all(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for run in self.workflows.values():
            if run.state is TaskState.RUNNING:
                effects += self._stop(now, run)
            elif run.state not in ENDED:
                effects += self._end(now, run, TaskState.CANCELLED)
        return effects

    def _kill(self, now: int, core: int, cause: str) -> list[Effect]:
        return [KillCore(core), *self.on_exit(now, core, cause)]

    def _lost_while_arming(self, now: int, run: WorkflowRun, shard: ShardRun, cause: str) -> list[Effect]:
        if len(shard.attempts) < ATTEMPTS_LIMIT:
            return [self._start_core(now, run, shard)]
        run.refused = Refused("setup", f"the core process of {run.spec.name} {cause} while it loaded the test")
        run.failure = run.refused.text
        return self._end(now, run, TaskState.FAILED)

    def _gap_after(self, now: int, run: WorkflowRun, shard: ShardRun, cause: str) -> LostShard:
        last_known_ns = max(shard.current.reported_ns, shard.current.went_ns)
        return LostShard(
            workflow=run.spec.name,
            shard=shard.shard.index,
            cause=cause,
            from_ns=last_known_ns - self.origin_ns,
            to_ns=max(last_known_ns, now) - self.origin_ns,
            vus_missing=shard.shard.vus,
            arrivals_missing=0,
        )

    def _close_gap(self, run: WorkflowRun, shard: ShardRun, until_ns: int) -> None:
        due_until_ns = min(until_ns, run.stopped_ns or until_ns)
        shard.close_gap(
            until_ns - self.origin_ns,
            plan_ns=run.origin_ns - self.origin_ns,
            due_until_ns=due_until_ns - self.origin_ns,
        )

    def _shard_done(self, now: int, run: WorkflowRun, shard: ShardRun) -> list[Effect]:
        shard.is_done = True
        if not all(other.is_done for other in run.shards):
            return []
        for other in reversed(run.shards):  # so that the lowest shard with a value wins
            run.provided |= other.provided
        if not run.spec.is_test:
            run.failure = run.failure or first_failure(run.tally())
        if run.has_timed_out:
            state = TaskState.TIMEOUT
        elif run.failure:
            state = TaskState.FAILED
        elif self._is_stopping:
            state = TaskState.CANCELLED
        else:
            state = TaskState.COMPLETED
        return self._end(now, run, state)

    def _end(self, now: int, run: WorkflowRun, state: TaskState) -> list[Effect]:
        run.state = state
        # Of a core that was lost only its last report is known.
        ends = [attempt.ended_at_ns or attempt.reported_ns for shard in run.shards for attempt in shard.attempts]
        run.ended_ns = max(ends, default=0) or now
        for shard in run.shards:
            self._close_gap(run, shard, now)
        cores = [core for core, _, _ in self._cores_of(run)]
        for core in cores:
            del self._running[core]
        return [*(KillCore(core) for core in cores), *self._schedule(now)]
