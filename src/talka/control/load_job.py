"""A load job from start to end: which workflows run now and on how many cores, and what became of them.

Pure: it is told what happened and what time it is, and answers with effects. The owner of the processes carries them
out: the local runner here, a worker in a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from talka.control.allocation import Claim, allocate
from talka.control.deadlines import Deadline, Granted
from talka.control.shard_run import ATTEMPTS_LIMIT, Attempt, LostShard, ShardRun
from talka.stats.tally import Tally, fold_calls, merged
from talka.stats.windows import Timeline
from talka.wire.jobs import AttemptResult
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
    Unread,
    UnreadMetric,
    UnreadStep,
    engines_of,
)
from talka.wire.shards import Totals as TotalsMessage
from talka.work.dsl import Priority
from talka.work.lifecycle import TaskState
from talka.work.load import Plan, Shard, Slice
from talka.work.thresholds import Threshold, Verdict, judge, scoped, should_abort

SECOND: Final = 1_000_000_000
TICK_NS: Final = SECOND // 10
START_DELAY_NS: Final = SECOND // 50
"""Between the order to go and the instant itself: every core must have read the order by then."""
JUDGE_EVERY_NS: Final = SECOND // 2
MERGE_STEP_NS: Final = SECOND // 2500
"""What reading and merging one step of one attempt takes, about: two histograms of a thousand counters each."""
ARM_LIMIT_NS: Final = 60 * SECOND
EXTENSION_BASE_NS: Final = 30 * SECOND
STOP_SLACK_NS: Final = 5 * SECOND
"""Beyond the grace period: a core that has not reported its end by then is stuck in the user's code."""

Interruption: TypeAlias = Literal["SIGINT", "SIGTERM", "cancel"]
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
    """Start a core for this shard; with a `place`, a task of so many shards from this one on at that worker."""

    core: int
    arm: Arm
    place: str = ""
    iterations_done: tuple[int, ...] = (0,)
    """Of each of the shards."""


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
        self.deadline: Deadline | None = None
        """Once it has run longer than its timeout."""
        self.started_before = 0
        self.timeline = Timeline()

    @property
    def is_under_way(self) -> bool:
        return self.state in (TaskState.ASSIGNED, TaskState.RUNNING)

    @property
    def runs_alone(self) -> bool:
        """It has the whole pool, however many of the cores it can use."""
        return self.spec.is_test and self.spec.priority == "exclusive"

    @property
    def cores(self) -> int:
        return sum(shard.shard.count for shard in self.shards if not shard.is_replaced)

    def collect_provided(self) -> None:
        for shard in reversed(self.shards):  # so that the lowest shard with a value wins
            self.provided |= shard.provided

    def tally(self) -> Tally:
        whole = merged([attempt.tally for shard in self.shards for attempt in shard.attempts])
        fold_calls(whole.calls)
        return whole

    def counts(self) -> Tally:
        """Numbers alone, without anything that takes long to merge."""
        whole = Tally()
        for tally in (attempt.counts for shard in self.shards for attempt in shard.attempts):
            whole.iterations += tally.iterations
            whole.started += tally.started
            whole.dropped += tally.dropped
            whole.interrupted_iterations += tally.interrupted_iterations
            whole.exchanges.merge(tally.exchanges)
        return whole

    def elapsed_ns(self, now: int) -> int:
        return max(0, (self.ended_ns or now) - self.origin_ns) if self.origin_ns else 0

    def span_ns(self, now: int) -> int:
        """What rates are over: the plan as far as it came, without the time in which the last iterations ended."""
        lengths = [self.elapsed_ns(now)]
        if self.spec.plan.length_ns is not None:
            lengths.append(self.spec.plan.length_ns)
        if self.stopped_ns:
            lengths.append(max(0, self.stopped_ns - self.origin_ns))
        return min(lengths)


def first_failure(tally: Tally) -> str | None:
    """What went wrong in a workflow that measures nothing: there a failure is no result but the end."""
    for name, action in tally.actions.items():
        if action.samples:
            return f"{name} raised {action.samples[0].text}"
    return None


class LoadJob:
    """Call `start` once, then `on_message`, `on_exit` and `tick` as things happen, and carry out what they return."""

    def __init__(self, spec: JobSpec, *, start_delay_ns: int = START_DELAY_NS) -> None:
        self.spec = spec
        self.workflows = {workflow.name: WorkflowRun(workflow) for workflow in spec.workflows}
        self.timeline = Timeline(with_steps=False)
        self.places: dict[str, int] | None = None
        """Workers and how many of their cores the job may use; None: the cores of this machine."""
        self.pool = spec.cores
        """The cores that shares by priority are shares of."""
        self.own_lost: list[LostShard] = []
        self.origin_ns = 0
        self.ended_ns = 0
        self.next_tick_at = 0
        self.interrupted_by: Interruption | None = None
        self.aborted: Verdict | None = None
        self.engine = ""
        self._running: dict[int, tuple[WorkflowRun, ShardRun, Attempt]] = {}
        self._place_of: dict[int, str] = {}
        self.cores_started = 0
        self.taken_up_ns = 0
        """When another manager went on with it: nothing that stopped before can have been told in time."""
        self.arriving: dict[int, None] = {}
        """Cores whose whole result is on its way: they are not killed for being late."""
        self._start_delay_ns = start_delay_ns
        self._judge_at_ns = 0

    # What happens to the job.

    def start(self, now: int) -> list[Effect]:
        """Also after a pause in which cores may have become free."""
        return self._schedule(now)

    def on_message(self, now: int, core: int, message: FromCore | Unread) -> list[Effect]:
        if core not in self._running:
            return []  # its last words: the attempt was given up already
        run, shard, attempt = self._running[core]
        match message:
            case Hello(engine=engine):
                self.engine = self.engine or engine
                return []
            case Armed(engine=engine):
                self.engine = engines_of(self.engine, engine)
                attempt.armed = True
                return self._go(now, run, shard)
            case Refused():
                run.refused = message
                run.failure = message.text
                return self._end(now, run, TaskState.FAILED)
            case StepTotals() | UnreadStep():
                attempt.on_step_totals(message)
                return []
            case MetricTotals() | UnreadMetric():
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
        if attempt.went_ns or shard.gap is None:
            # Else it is a replacement that never began, and the gap of the one before it stays open.
            self._open_gap(now, run, shard, cause)
        until_ns, length_ns = now, shard.shard.length_ns
        is_over = length_ns is not None and now >= run.origin_ns + length_ns
        if not run.stopped_ns and not is_over and shard.has_more_to_run:
            if shard.tries < ATTEMPTS_LIMIT and (replacements := self._replace(now, run, shard)):
                return replacements
            until_ns = now if length_ns is None else run.origin_ns + length_ns
        if not run.spec.is_test and not self.is_stopping:
            # Others depend on what it does, and nobody knows whether it was done.
            run.failure = run.failure or f"its core {cause}"
        self._close_gap(run, shard, until_ns)
        return self._shard_done(now, run, shard)

    def interrupt(self, now: int, signal: Interruption) -> list[Effect]:
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
        if not self.is_stopping and not self.ended_ns:
            effects += self._check_thresholds(now)
        for run in self.workflows.values():
            if run.state is TaskState.ASSIGNED:
                effects += self._check_arming(now, run)
            elif run.state is TaskState.RUNNING:
                effects += self._check_running(now, run)
        return effects

    # What is known of it.

    @property
    def lost(self) -> list[LostShard]:
        """Every gap: of tasks that were lost, and of cores their workers replaced by themselves."""
        inner = [
            LostShard(run.spec.name, *msgspec.structs.astuple(gap))
            for run in self.workflows.values()
            for shard in run.shards
            for attempt in shard.attempts
            for gap in attempt.gaps
        ]
        return [*self.own_lost, *inner]

    @property
    def cores(self) -> int:
        return self.spec.cores if self.places is None else sum(self.places.values())

    def adopt(self, run: WorkflowRun, shard: ShardRun, attempt: Attempt) -> None:
        """Go on with an attempt that another manager began."""
        self._running[attempt.core] = (run, shard, attempt)
        self._place_of[attempt.core] = attempt.place

    def room_besides(self, core: int) -> int:
        """Cores of workers that are free for what takes the place of a lost attempt."""
        if core not in self._running:
            return 0
        _, shard, attempt = self._running[core]
        # Where only the task is gone and not its worker, its own cores are free too.
        own = shard.shard.count if self.places is not None and attempt.place in self.places else 0
        return sum(self._free_places().values()) + own

    def start_anew(self, run: WorkflowRun) -> None:
        """Its start was decided, and no core was told of it or ever will be: it is decided again."""
        run.state, run.origin_ns = TaskState.ASSIGNED, 0
        if not any(other.origin_ns for other in self.workflows.values()):
            self.origin_ns = 0

    def stop_again(self, now: int) -> list[Effect]:
        """Tell those that run to stop: the manager before may have died before it did."""
        return self._stop_all(now)

    @property
    def merging_ns(self) -> int:
        """About how long it takes to merge everything that was counted."""
        return MERGE_STEP_NS * sum(
            len(attempt.counts.steps) + len(attempt.counts.actions) + sum(map(len, attempt.counts.calls.values())) + 1
            for run in self.workflows.values()
            for shard in run.shards
            for attempt in shard.attempts
        )

    def attempts_at(self, place: str) -> list[int]:
        """Attempts that run on a worker."""
        return [core for core, (_, _, attempt) in self._running.items() if attempt.place == place]

    def running(self) -> Mapping[int, tuple[WorkflowRun, ShardRun, Attempt]]:
        """Attempts under way. A live view: copy it before anything is told to the job."""
        return self._running

    def place_of(self, core: int) -> str:
        """The worker an attempt was given to, also one that is over."""
        return self._place_of.get(core, "")

    def tally(self) -> Tally:
        return merged([run.tally() for run in self.workflows.values()])

    def elapsed_ns(self, now: int) -> int:
        return max(0, (self.ended_ns or now) - self.origin_ns) if self.origin_ns else 0

    def span_ns(self, now: int) -> int:
        """From the first start to where the last of its plans ended."""
        ends = [run.origin_ns + run.span_ns(now) for run in self.workflows.values() if run.origin_ns]
        return max(ends, default=self.origin_ns) - self.origin_ns

    def verdicts(self, now: int) -> list[tuple[str | None, Threshold, Verdict]]:
        """Every rule with its workflow (None: the whole job) and how it stands."""
        runs = [run for run in self.workflows.values() if self.spec.thresholds or run.spec.thresholds]
        tallies = {run.spec.name: run.tally() for run in runs}
        whole = merged(list(tallies.values())) if self.spec.thresholds else Tally()
        found: list[tuple[str | None, Threshold, Verdict]] = []
        for rule in self.spec.thresholds:
            part = self.workflows.get(rule.workflow or "", self)  # whoever ordered the job may have named another
            found.append((None, rule, judge(rule, scoped(rule, tallies, whole), part.span_ns(now) / SECOND)))
        for run in runs:
            name, span_ns = run.spec.name, run.span_ns(now)
            for rule in run.spec.thresholds:
                counted = scoped(rule, tallies, tallies[name])
                found.append((name, rule, judge(rule, counted, span_ns / SECOND)))
        return found

    def active_vus(self) -> int:
        return sum(attempt.vus for _, _, attempt in self._running.values())

    @property
    def is_stopping(self) -> bool:
        return self.interrupted_by is not None or self.aborted is not None

    def _cores_of(self, run: WorkflowRun) -> list[tuple[int, ShardRun, Attempt]]:
        return [(core, shard, attempt) for core, (other, shard, attempt) in self._running.items() if other is run]

    # Starting.

    def _schedule(self, now: int) -> list[Effect]:
        self._wake_dependents()
        ready = [run for run in self.workflows.values() if run.state is TaskState.READY]
        effects: list[Effect] = []
        if ready and not self.is_stopping:
            claims = [
                Claim(run.spec.name, run.spec.priority, run.spec.is_test, run.spec.plan.shards_for(self.cores))
                for run in ready
            ]
            granted = allocate(claims, total=self.pool, free=self._free_cores(), granted=self.cores)
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
            if self.is_stopping:
                run.state = TaskState.CANCELLED
            elif any(state in ENDED and state is not TaskState.COMPLETED for state in before):
                run.state = TaskState.SKIPPED
                run.failure = "a workflow it depends on did not complete"
            elif all(state is TaskState.COMPLETED for state in before):
                run.state = TaskState.READY
                size = sum(len(value) for values in self.values_for(run).values() for value in values.values())
                if size > RECEIVED_LIMIT_BYTES:
                    text = (
                        f"it receives {size} bytes from other workflows: at most {RECEIVED_LIMIT_BYTES} are handed on"
                    )
                    run.refused, run.failure, run.state = Refused("setup", text), text, TaskState.FAILED

    def _free_cores(self) -> int:
        under_way = [run for run in self.workflows.values() if run.is_under_way]
        free = self.cores - sum(self.cores if run.runs_alone else run.cores for run in under_way)
        return free if self.places is None else min(free, sum(self._free_places().values()))

    def _free_places(self) -> dict[str, int]:
        """Cores of each worker that nothing of this job runs on, the most first."""
        free = dict(self.places or {})
        for _, shard, attempt in self._running.values():
            if attempt.place in free:
                free[attempt.place] -= shard.shard.count
        return dict(sorted(((place, n) for place, n in free.items() if n > 0), key=lambda item: (-item[1], item[0])))

    def _place(self, cores: int) -> list[tuple[str, int]]:
        """Workers for so many cores, or for as many as there are."""
        found: list[tuple[str, int]] = []
        for place, free in self._free_places().items():
            taken = min(free, cores)
            if taken:
                found.append((place, taken))
                cores -= taken
        return found

    def _assign(self, now: int, run: WorkflowRun, cores: int) -> list[Effect]:
        run.state = TaskState.ASSIGNED
        if self.places is None:
            run.shards = [ShardRun(shard) for shard in run.spec.plan.split(cores)]
            return [self._start_core(now, run, shard) for shard in run.shards]
        effects: list[Effect] = []
        first = 0
        for place, count in self._place(cores):
            shard = ShardRun(Slice(run.spec.plan, first, count, cores))
            run.shards.append(shard)
            effects.append(self._start_core(now, run, shard, place))
            first += count
        return effects

    def _start_core(self, now: int, run: WorkflowRun, shard: ShardRun, place: str = "") -> Effect:
        self.cores_started += 1
        core = self.cores_started
        part = shard.shard
        arm = Arm(
            job=self.spec.job,
            source=self.spec.source,
            workflow=run.spec.name,
            shard=part if isinstance(part, Shard) else part.shards[0],
            iterations_done=shard.done_by_shard[0],
            values=self.values_for(run),
            settings=self.spec.settings,
        )
        effect = StartCore(core, arm, place, shard.done_by_shard)
        attempt = Attempt(core, now, place)
        shard.attempts.append(attempt)
        self._running[core] = (run, shard, attempt)
        self._place_of[core] = place
        return effect

    def _replace(self, now: int, run: WorkflowRun, shard: ShardRun) -> list[Effect]:
        """Run the rest of a lost shard elsewhere; on several workers, if no one has room for all of it."""
        part = shard.shard
        if isinstance(part, Shard):
            return [self._start_core(now, run, shard)]
        found = self._place(part.count)
        if [count for _, count in found] == [part.count]:
            return [self._start_core(now, run, shard, found[0][0])]
        effects: list[Effect] = []
        offset = 0
        for place, count in found:
            done = shard.done_by_shard[offset : offset + count]
            replacement = ShardRun(part.part(offset, count), done, shard.tries)
            run.shards.append(replacement)
            if shard.gap is not None:
                replacement.gap = msgspec.structs.replace(
                    shard.gap, shard=replacement.shard.index, vus_missing=replacement.shard.vus
                )
                self.own_lost.append(replacement.gap)
            effects.append(self._start_core(now, run, replacement, place))
            offset += count
        if found:
            shard.is_done = shard.is_replaced = True
            gap, shard.gap = shard.gap, None
            self.own_lost = [lost for lost in self.own_lost if lost is not gap]
            if offset < part.count:
                rest = ShardRun(part.part(offset, part.count - offset), shard.done_by_shard[offset:], shard.tries)
                rest.is_done = True
                run.shards.append(rest)
                assert gap is not None  # before the start it is all or nothing
                rest.gap = msgspec.structs.replace(gap, shard=rest.shard.index, vus_missing=rest.shard.vus)
                self.own_lost.append(rest.gap)
        return effects

    def values_for(self, run: WorkflowRun) -> dict[str, dict[str, bytes]]:
        values: dict[str, dict[str, bytes]] = {}
        for source, key in run.spec.flows:
            if key in self.workflows[source].provided:
                values.setdefault(source, {})[key] = self.workflows[source].provided[key]
        return values

    def _go(self, now: int, run: WorkflowRun, shard: ShardRun) -> list[Effect]:
        if run.state is TaskState.RUNNING:
            if shard.current.went_ns:
                return []  # said twice
            # A replacement: it joins the plan where the plan is now.
            start_ns = max(now, run.origin_ns)
            if shard.gap is None and start_ns > run.origin_ns:
                self._open_gap(now, run, shard, "was told to start late: its manager was lost")
            shard.current.went_ns = start_ns
            self._close_gap(run, shard, start_ns)
            return [Send(shard.current.core, Go(start_ns, run.origin_ns, self.origin_ns))]
        current = [other for other in run.shards if not other.is_done]
        if not all(other.current.armed for other in current):
            return []
        run.state = TaskState.RUNNING
        run.origin_ns = now + self._start_delay_ns
        self.origin_ns = self.origin_ns or run.origin_ns
        for other in current:
            other.current.went_ns = run.origin_ns
        go = Go(run.origin_ns, run.origin_ns, self.origin_ns)
        return [Send(other.current.core, go) for other in current]

    # Running.

    def _on_totals(self, now: int, core: int, message: TotalsMessage) -> list[Effect]:
        run, _, attempt = self._running[core]
        if message.sequence > attempt.sequence:
            if not attempt.is_whole(message):
                return []  # a part of it was shed on the way: the next report has everything
            for window in attempt.on_totals(now, message):
                run.timeline.add(window)
                self.timeline.add(window)
        effects: list[Effect] = [Send(core, Ack(message.sequence))]
        if message.final:
            effects += self._on_final(now, core, message.provided, message.notes, message.failure)
        return effects

    def on_result(self, now: int, core: int, result: AttemptResult) -> list[Effect]:
        """The result of a task, whole: its reports before it are of no more interest."""
        if core not in self._running:
            return []
        run, _, attempt = self._running[core]
        self.engine = engines_of(self.engine, result.engine)
        for window in attempt.on_result(now, result, self.origin_ns):
            run.timeline.add(window)
            self.timeline.add(window)
        is_news = result.is_cancelled and not self.is_stopping
        if is_news:
            self.interrupted_by = "cancel"  # else what stopped early would pass for what was asked for
        effects = self._on_final(now, core, result.provided, result.notes, result.failure)
        return [*effects, *self._stop_all(now)] if is_news else effects

    def _on_final(
        self, now: int, core: int, provided: dict[str, bytes], notes: Sequence[str], failure: str | None
    ) -> list[Effect]:
        run, shard, _ = self._running.pop(core)
        shard.provided = provided
        run.notes += [note for note in notes if note not in run.notes]
        run.failure = run.failure or failure
        return self._shard_done(now, run, shard)

    def _check_arming(self, now: int, run: WorkflowRun) -> list[Effect]:
        slow = [shard.current for shard in run.shards if not shard.is_done and not shard.current.armed]
        if all(now - attempt.spawned_ns < ARM_LIMIT_NS for attempt in slow):
            return []
        run.refused = Refused("setup", f"{run.spec.name} was not ready to start within {ARM_LIMIT_NS // SECOND} s")
        run.failure = run.refused.text
        return self._end(now, run, TaskState.FAILED)

    def _check_running(self, now: int, run: WorkflowRun) -> list[Effect]:
        effects: list[Effect] = []
        length_ns = run.spec.plan.length_ns
        if not run.stopped_ns:
            if now - run.origin_ns > run.spec.timeout_ns and not self._is_given_more_time(now, run):
                run.has_timed_out = True
                run.failure = f"it ran longer than its timeout of {run.spec.timeout_ns / SECOND:g} s"
                effects += self._stop(now, run)
            elif length_ns is not None and now - run.origin_ns > length_ns:
                run.stopped_ns = run.origin_ns + length_ns
                effects += self._give_up_waiting(now, run, run.stopped_ns)
        elif now > max(run.stopped_ns, self.taken_up_ns) + self.spec.settings.grace_ns + STOP_SLACK_NS:
            for core, _, _ in self._cores_of(run):
                if core not in self.arriving:
                    effects += self._kill(now, core, "did not stop in time and was killed")
        for core, _, attempt in self._cores_of(run):
            if not attempt.armed and now - attempt.spawned_ns >= ARM_LIMIT_NS:
                effects += self._kill(now, core, f"was not ready to start within {ARM_LIMIT_NS // SECOND} s")
        return effects

    def _is_given_more_time(self, now: int, run: WorkflowRun) -> bool:
        """On a cluster others may have made it late: while it advances it gets more time, ever less of it."""
        if self.places is None:
            return False
        if run.deadline is None:
            run.deadline = Deadline(EXTENSION_BASE_NS, run.origin_ns + run.spec.timeout_ns)
        if now < run.deadline.until:
            return True
        started = run.counts().started
        has_progressed, run.started_before = started > run.started_before, started
        granted = run.deadline.ask(now, has_progressed)
        if not isinstance(granted, Granted):
            return False
        run.notes.append(f"it was late and advanced, and was given {granted.ns / SECOND:g} s more")
        return True

    def _check_thresholds(self, now: int) -> list[Effect]:
        if now < self._judge_at_ns or not any(rule.abort for rule in self._rules()):
            return []
        # Merging every histogram takes a while where there are many steps: as often as people could act on it.
        self._judge_at_ns = now + max(JUDGE_EVERY_NS, self.merging_ns * 5)
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
        for core, _, attempt in self._cores_of(run):
            if attempt.went_ns:
                effects.append(Send(core, Stop()))
        return effects + self._give_up_waiting(now, run, now)

    def _give_up_waiting(self, now: int, run: WorkflowRun, end_ns: int) -> list[Effect]:
        """What has not begun has nothing to finish."""
        effects: list[Effect] = []
        for core, shard, attempt in self._cores_of(run):
            if not attempt.went_ns:
                del self._running[core]
                if shard.gap is None:  # no replacement
                    self._open_gap(now, run, shard, "was never told to start: its manager was lost")
                self._close_gap(run, shard, end_ns)
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
        if shard.tries < ATTEMPTS_LIMIT:
            if self.places is not None and sum(self._free_places().values()) < shard.shard.count:
                return self._no_room(now, run)  # with a part of it the load would be another than was asked for
            return self._replace(now, run, shard)
        run.refused = Refused("setup", f"the core process of {run.spec.name} {cause} while it loaded the test")
        run.failure = run.refused.text
        return self._end(now, run, TaskState.FAILED)

    def _no_room(self, now: int, run: WorkflowRun) -> list[Effect]:
        run.failure = "the worker it was given was lost before it could start, and there was no room on others"
        return self._end(now, run, TaskState.FAILED)

    def _open_gap(self, now: int, run: WorkflowRun, shard: ShardRun, cause: str) -> None:
        last_known_ns = max(shard.current.reported_ns, shard.current.went_ns, run.origin_ns)
        shard.gap = LostShard(
            workflow=run.spec.name,
            shard=shard.shard.index,
            cause=cause,
            from_ns=last_known_ns - self.origin_ns,
            to_ns=max(last_known_ns, now) - self.origin_ns,
            vus_missing=shard.shard.vus,
            arrivals_missing=0,
        )
        self.own_lost.append(shard.gap)

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
        run.collect_provided()
        if not run.spec.is_test:
            run.failure = run.failure or first_failure(run.tally())
        if run.has_timed_out:
            state = TaskState.TIMEOUT
        elif run.failure:
            state = TaskState.FAILED
        elif self.is_stopping:
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
