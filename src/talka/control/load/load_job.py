"""A load job from start to end: which workflows run now and on how many cores, and what became of them.

Pure: it is told what happened and what time it is, and answers with effects. The local runner carries them out, or the
manager that leads the job. See docs/decisions/0003-shards-and-lost-cores.md and 0020-cores-are-granted-per-job.md.
"""

from collections.abc import Collection, Container, Sequence
from itertools import islice
from typing import Final, Literal, TypeAlias

import msgspec

from talka.control.load import more_time, pausing
from talka.control.load.allocation import Seat, allocate, by_room, claim_of
from talka.control.load.core_effects import CoreEffect, JobEnded, LoadEffect, WorkflowLate
from talka.control.load.shard_group import ShardGroup
from talka.control.load.shard_run import LostShard, Seats, ShardAttempt, ShardRun
from talka.control.load.times import JobTimes
from talka.stats.tally import Tally, merged
from talka.stats.windows import Timeline, Window
from talka.units import SECOND
from talka.wire.jobs import AttemptResult
from talka.wire.orders import WorkflowOrder
from talka.wire.shards import (
    CONTEXT_PREFIX,
    RECEIVED_LIMIT_BYTES,
    Arm,
    Armed,
    FromCore,
    Hello,
    Refused,
    Settings,
    Source,
    TimeAsked,
    Unread,
    engines_of,
)
from talka.work.lifecycle import TaskState, move
from talka.work.load import PlanSlice, Shard
from talka.work.thresholds import Threshold, Verdict, judge, scoped, should_abort

TICK_NS: Final = SECOND // 10
START_DELAY_NS: Final = SECOND // 50
"""Between the order to go and the instant itself: every core must have read the order by then."""
JUDGE_EVERY_NS: Final = SECOND // 2
MERGE_STEP_NS: Final = SECOND // 2500
"""What reading and merging one step of one attempt takes, about: two histograms of a thousand counters each."""
Interruption: TypeAlias = Literal["SIGINT", "SIGTERM", "cancel"]
ENDED: Final = frozenset(
    {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED, TaskState.TIMEOUT, TaskState.SKIPPED}
)


class JobSpec(msgspec.Struct, frozen=True):
    job: str
    source: Source
    workflows: tuple[WorkflowOrder, ...]
    cores: int
    settings: Settings
    thresholds: tuple[Threshold, ...] = ()
    """Rules over the whole job."""


def first_failure(tally: Tally) -> str | None:
    """What went wrong in a workflow that measures nothing: there a failure is no result but the end."""
    for name, action in tally.actions.items():
        if action.samples:
            return f"{name} raised {action.samples[0].text}"
    return None


class LoadJob(JobTimes[ShardGroup]):
    """Call `start` once, then `on_message`, `on_exit` and `tick` as things happen, and carry out what they return."""

    def __init__(
        self, spec: JobSpec, *, start_delay_ns: int = START_DELAY_NS, pause_limit_ns: int = pausing.PAUSE_LIMIT_NS
    ) -> None:
        super().__init__()
        self.spec = spec
        grace_ns = spec.settings.grace_ns
        self.workflows = {one.name: ShardGroup(self, one, grace_ns=grace_ns) for one in spec.workflows}
        self.timeline = Timeline(with_steps=False)
        self.workers: dict[str, int] | None = None
        """Workers and how many of their cores the job may use; None: the cores of this machine."""
        self.pool = spec.cores
        """The cores that shares by priority are shares of."""
        self.own_lost: list[LostShard] = []
        self.next_tick_at = 0
        self.interrupted_by: Interruption | None = None
        self.aborted: Verdict | None = None
        self.engine = ""
        self.attempts: dict[int, tuple[ShardGroup, ShardRun, ShardAttempt]] = {}
        self._place_of: dict[int, str] = {}
        self.cores_started = 0
        self.life = 0
        """Of the manager that leads it: who draws numbers of attempts."""
        self.taken_up_ns = 0
        self.arriving: dict[int, None] = {}
        self.gone: Container[int] = ()
        """Attempts that are lost, of which it will be told once there is room for what takes their place."""
        self.resumes = 0
        """How often people resumed it."""
        self._start_delay_ns = start_delay_ns
        self._pause_limit_ns = pause_limit_ns
        self._judge_at_ns = 0
        self._is_hurried = False
        self._has_just_ended = False
        """Its last workflow has, and nobody was told."""
        self._news: list[WorkflowLate] = []
        """Of which nobody was told."""

    # What happens to the job.

    def start(self, now: int) -> list[LoadEffect]:
        """Also after a pause in which cores may have become free."""
        return self._settled(self._schedule(now))

    def on_message(self, now: int, attempt: int, message: FromCore | Unread) -> list[LoadEffect]:
        if attempt not in self.attempts:
            return []  # its last words: the attempt was given up already
        run = self.attempts[attempt][0]
        effects = run.on_message(now, attempt, message)
        if isinstance(message, Hello | Armed):
            self.engine = engines_of(self.engine, run.engine)
        return self._settled(effects)

    def on_exit(self, now: int, attempt: int, cause: str) -> list[LoadEffect]:
        """The process of an attempt ended. Before its final report that is a loss."""
        if attempt not in self.attempts:
            return []
        return self._settled(self.attempts[attempt][0].on_exit(now, attempt, cause))

    def interrupt(self, now: int, signal: Interruption) -> list[LoadEffect]:
        """The first one ends the job gently, the second at once."""
        if self.interrupted_by is not None:
            self._is_hurried = True
            effects: list[CoreEffect] = []
            for run in self.workflows.values():
                if run.state not in ENDED:
                    effects += self._end(now, run, TaskState.CANCELLED)
            return self._settled(effects)
        self.interrupted_by = signal
        return self._settled(self._stop_all(now))

    def tick(self, now: int) -> list[LoadEffect]:
        self.next_tick_at = now + TICK_NS
        effects: list[CoreEffect] = []
        # First, so that nothing is started which they would stop.
        if not self.is_stopping and not self.ended_ns:
            effects += self._check_thresholds(now)
        for run in self.workflows.values():
            if run.state is TaskState.RUNNING and not run.stopped_ns:
                effects += more_time.look(now, run, self._news, can_wait=self.workers is not None)
            effects += run.tick(now)
            if run.aside_ns and now - run.aside_ns >= self._pause_limit_ns:
                run.has_timed_out, run.failure = True, f"{run.put_aside_for}; {pausing.NOBODY_RESUMED}"
                effects += self._end(now, run, TaskState.TIMEOUT)
        return self._settled(effects)

    def on_result(self, now: int, attempt: int, result: AttemptResult) -> list[LoadEffect]:
        """Everything an attempt on a worker came to: its reports before it are of no more interest."""
        if attempt not in self.attempts:
            return []
        run, _, known = self.attempts[attempt]
        self.engine = engines_of(self.engine, result.engine)
        self.on_windows(attempt, known.on_result(now, result, self.origin_ns))
        is_news = result.is_cancelled and not self.is_stopping
        if is_news:
            self.interrupted_by = "cancel"  # else what stopped early would pass for what was asked for
        effects = run.on_final(now, attempt, result.provided, result.notes, result.failure)
        return self._settled([*effects, *self._stop_all(now)] if is_news else effects)

    def stop_again(self, now: int) -> list[LoadEffect]:
        """Tell those that run to stop: the manager before may have died before it did."""
        if self.is_stopping:
            return self._settled(self._stop_all(now))
        stopped = [run for run in self.workflows.values() if run.state is TaskState.RUNNING and run.is_told_to_stop]
        return self._settled([effect for run in stopped for effect in run.stop(now)])

    def resume(self, now: int, times: int) -> list[LoadEffect]:
        """`start`, and for the first time with this number what was put aside goes on: people resumed it so often."""
        aside = [run for run in self.workflows.values() if run.aside_ns] if times > self.resumes else []
        self.resumes = max(self.resumes, times)
        self._news += [pausing.resume(run) for run in aside]
        return self._settled(self._schedule(now))

    def _settled(self, effects: list[CoreEffect]) -> list[LoadEffect]:
        """What is to be done and told; the end of the job comes last, and once."""
        has_ended, self._has_just_ended = self._has_just_ended, False
        news, self._news = self._news, []
        return [*effects, *news, JobEnded()] if has_ended else [*effects, *news]

    # What is known of it.

    @property
    def lost(self) -> list[LostShard]:
        """Every gap: of attempts that were lost, and of cores their workers replaced by themselves."""
        inner = [
            LostShard(run.spec.name, *msgspec.structs.astuple(gap))
            for run in self.workflows.values()
            for shard in run.shards
            for attempt in shard.attempts
            for gap in attempt.gaps
        ]
        return [*self.own_lost, *inner]

    @property
    def is_paused(self) -> bool:
        """Something of it is put aside, and nothing else can run before a person resumes it."""
        waiting = pausing.held_up(self.workflows)
        return bool(waiting) and all(run.state in ENDED or name in waiting for name, run in self.workflows.items())

    @property
    def job_origin_ns(self) -> int:
        return self.origin_ns

    @property
    def cores(self) -> int:
        return self.spec.cores if self.workers is None else sum(self.workers.values())

    def adopt(self, run: ShardGroup, shard: ShardRun, attempt: ShardAttempt) -> None:
        """Go on with an attempt that another manager began."""
        self.attempts[attempt.number] = (run, shard, attempt)
        self._place_of[attempt.number] = attempt.place
        self._note_sharing(attempt)

    def room_besides(self, attempt: int) -> int:
        """Cores of workers that have room for what takes the place of a lost attempt."""
        if attempt not in self.attempts:
            return 0
        _, shard, lost = self.attempts[attempt]
        # Where only the attempt is gone and not its worker, its own cores are free too.
        return len(self._open_seats(shard, but=lost))

    def start_anew(self, run: ShardGroup) -> None:
        """Its start was decided, and no core was told of it or ever will be: it is decided again."""
        run.state, run.deadline = move(run.state, TaskState.ASSIGNED), None
        if not run.behind_ns:
            run.origin_ns = 0
        if not any(other.origin_ns for other in self.workflows.values()):
            self.origin_ns = 0

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
        """Numbers of the attempts that run on a worker."""
        return [number for number, (_, _, attempt) in self.attempts.items() if attempt.place == place]

    def place_of(self, attempt: int) -> str:
        """The worker an attempt was given to, also one that is over."""
        return self._place_of.get(attempt, "")

    def arm_for(self, attempt: int) -> Arm | None:
        """What an attempt on this machine is to run; None: it is over."""
        if attempt not in self.attempts:
            return None
        run, shard, _ = self.attempts[attempt]
        assert isinstance(shard.shard, Shard)  # several shards at once are for a worker, which arms each of its cores
        return Arm(
            job=self.spec.job,
            source=self.spec.source,
            workflow=run.spec.name,
            shard=shard.shard,
            iterations_done=shard.iterations_done,
            values=self.values_for(run),
            settings=self.spec.settings,
        )

    def tally(self) -> Tally:
        return merged([run.tally() for run in self.workflows.values()])

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

    @property
    def is_stopping(self) -> bool:
        return self.interrupted_by is not None or self.aborted is not None

    # Starting.

    def _schedule(self, now: int) -> list[CoreEffect]:
        self._wake_dependents()
        ready = [run for run in self.workflows.values() if run.state is TaskState.READY]
        effects: list[CoreEffect] = []
        if self.is_stopping:
            ready = [run for run in ready if run.spec.is_teardown]
        if ready and not any(run.is_under_way and run.runs_alone for run in self.workflows.values()):
            for run in ready:
                if run.behind_ns:
                    effects += self._go_on(now, run)
            claims = [claim_of(run.spec, self.cores) for run in ready if not run.behind_ns]
            for name, seats in allocate(claims, self._loads(), total=self.pool).items():
                effects += self._assign(now, self.workflows[name], seats)
        if not self.ended_ns and all(run.state in ENDED for run in self.workflows.values()):
            self.ended_ns = max((run.ended_ns for run in self.workflows.values()), default=0) or now
            self._has_just_ended = True
        return effects

    def _wake_dependents(self) -> None:
        """Workflows come after those they depend on, so one pass sees everything."""
        for run in self.workflows.values():
            if run.state is not TaskState.PENDING or run.aside_ns:
                continue
            before = [self.workflows[name].state for name in run.spec.depends_on]
            if run.spec.is_teardown:
                if all(state in ENDED for state in before):
                    run.state = move(run.state, self._state_of_teardown(run))
                    self._refuse_what_does_not_fit(run)
            elif self.is_stopping:
                run.state = move(run.state, TaskState.CANCELLED)
            elif any(state in ENDED and state is not TaskState.COMPLETED for state in before):
                run.state = move(run.state, TaskState.SKIPPED)
                run.failure = "a workflow it depends on did not complete"
            elif all(state is TaskState.COMPLETED for state in before):
                run.state = move(run.state, TaskState.READY)
                self._refuse_what_does_not_fit(run)

    def _refuse_what_does_not_fit(self, run: ShardGroup) -> None:
        text = self._size_problem(run) or self._conflict(run)
        if run.state is TaskState.READY and text:
            run.refused, run.failure = Refused("setup", text), text
            run.state = move(run.state, TaskState.FAILED)

    def _state_of_teardown(self, run: ShardGroup) -> TaskState:
        """Once all is over that it cleans up after."""
        if not self._may_clean_up:
            return TaskState.CANCELLED
        has_run = any(self.workflows[name].origin_ns for name in run.spec.depends_on)
        return TaskState.READY if has_run else TaskState.SKIPPED

    @property
    def _may_clean_up(self) -> bool:
        """Workers end by themselves what they have of a cancelled job: there nothing is begun any more."""
        return not self._is_hurried and (self.workers is None or self.interrupted_by is None)

    def _size_problem(self, run: ShardGroup) -> str:
        size = sum(len(value) for values in self.values_for(run).values() for value in values.values())
        if size <= RECEIVED_LIMIT_BYTES:
            return ""
        return f"it receives {size} bytes from other workflows: at most {RECEIVED_LIMIT_BYTES} are handed on"

    def _conflict(self, run: ShardGroup) -> str:
        """Why what its parents left in `self.context` cannot be put together; empty when it can."""
        if run.spec.is_teardown:
            return ""  # what the class left comes after what its setup left
        found: dict[str, tuple[str, bytes]] = {}
        for source in self._parents(run):
            for key, content in self.workflows[source].provided.items():
                other, known = found.setdefault(key, (source, content))
                if key.startswith(CONTEXT_PREFIX) and _are_different(known, content):
                    name = key.removeprefix(CONTEXT_PREFIX)
                    return (
                        f"{other} and {source}, on which it depends, left different values in self.context[{name!r}]: "
                        "use different keys, or delete one of them in a teardown"
                    )
        return ""

    def _parents(self, run: ShardGroup) -> list[str]:
        return [name for name in self.workflows if name in run.spec.depends_on]

    def _sitting(self, but: ShardAttempt | None = None) -> dict[Seat, list[ShardGroup]]:
        """The job's cores, and whose shards run on each."""
        cores_of = {"": self.spec.cores} if self.workers is None else self.workers
        used: dict[str, dict[int, None]] = {}
        for place, number in self.used_seats():
            used.setdefault(place, {})[number] = None
        found: dict[Seat, list[ShardGroup]] = {
            (place, number): [] for place, cores in cores_of.items() for number in _numbers(used.get(place, {}), cores)
        }
        for run, _, attempt in self.attempts.values():
            for number in attempt.busy_seats:
                if attempt is not but and (attempt.place, number) in found:
                    found[attempt.place, number].append(run)
        return found

    def used_seats(self) -> dict[Seat, None]:
        """Cores on which something runs, without attempts that are gone."""
        return {
            (attempt.place, number): None
            for one, (_, _, attempt) in self.attempts.items()
            if one not in self.gone
            for number in attempt.busy_seats
        }

    def _loads(self) -> dict[Seat, float | None]:
        """What each core has to carry; None: nothing runs on it."""
        return {
            seat: sum(claim_of(run.spec, self.cores).weight / run.cores for run in runs) if runs else None
            for seat, runs in self._sitting().items()
        }

    def _open_seats(self, shard: ShardRun, but: ShardAttempt | None = None) -> list[Seat]:
        """Cores for what takes the place of a lost shard: empty ones of workers that have most of
        them first, then such as are no fuller than its own was."""
        sitting = self._sitting(but)
        empty = [seat for seat, runs in sitting.items() if not runs]
        shared = [seat for seat, runs in sitting.items() if 0 < len(runs) < shard.sharing]
        return [*by_room(empty), *sorted(shared, key=lambda seat: (len(sitting[seat]), seat))]

    def _assign(self, now: int, run: ShardGroup, seats: Sequence[Seat]) -> list[CoreEffect]:
        if self.workers is None:
            parts = run.spec.plan.split(len(seats))
            placed = zip(parts, seats, strict=True)
            return run.start(now, [(ShardRun(part), Seats(place, (number,))) for part, (place, number) in placed])
        slices: list[tuple[ShardRun, Seats]] = []
        first = 0
        for place in _by_place(seats):
            count = len(place.numbers)
            slices.append((ShardRun(PlanSlice(run.spec.plan, first, count, len(seats))), place))
            first += count
        return run.start(now, slices)

    def _go_on(self, now: int, run: ShardGroup) -> list[CoreEffect]:
        """Its shards are as many as before: that of a plan which is left is no other load."""
        sitting = self._sitting()
        count = sum(len(shard.rest) for shard in run.shards if not shard.is_replaced)
        if len(sitting) < count or (run.runs_alone and any(sitting.values())):
            return []
        return run.go_on(now, sorted(sorted(sitting, key=lambda seat: (len(sitting[seat]), seat))[:count]))

    # What groups ask for.

    def draw(self, seats: Seats) -> tuple[int, int]:
        self.cores_started += 1
        attempt = self.cores_started
        self._place_of[attempt] = seats.place
        if self.workers is not None:
            return attempt, 0
        beside = [other.process for _, _, other in self.attempts.values() if other.seats == seats.numbers]
        return attempt, beside[0] if beside else attempt

    def seats_for(self, group: ShardGroup, shard: ShardRun) -> list[Seats]:
        if self.workers is None:
            return [Seats("", shard.current.seats)]  # its process is gone, its core is not
        return _by_place(self._open_seats(shard)[: len(shard.left)])

    def on_started(self, attempt: ShardAttempt) -> None:
        attempt.life = self.life
        self._note_sharing(attempt)

    def _note_sharing(self, attempt: ShardAttempt) -> None:
        here = [known for known in self.attempts.values() if known[2].place == attempt.place]
        for number in attempt.seats:
            beside = [(run, shard) for run, shard, other in here if number in other.busy_seats]
            for run, shard in beside:
                shard.sharing = max(shard.sharing, len(beside))
                run.shares_with |= {other.spec.name: None for other, _ in beside if other is not run}

    def on_windows(self, attempt: int, windows: Sequence[Window]) -> None:
        group, _, _ = self.attempts[attempt]
        for window in windows:
            group.timeline.add(window)
            self.timeline.add(window)

    def on_asked(self, now: int, group: ShardGroup, attempt: int, asked: TimeAsked) -> list[CoreEffect]:
        return more_time.on_asked(now, group, attempt, asked, self._news)

    def on_armed(self, now: int, group: ShardGroup) -> list[CoreEffect]:
        """Those that get ready on cores in common start together: getting ready would disturb the first that runs."""
        together = self._arming_beside(group)
        if not all(other.is_armed for other in together):
            return []
        start_ns = now + self._start_delay_ns
        self.origin_ns = self.origin_ns or start_ns
        return [effect for other in together for effect in other.go(now, start_ns, start_ns - other.behind_ns)]

    def _arming_beside(self, group: ShardGroup) -> list[ShardGroup]:
        """Groups that have not begun and share cores with this one, or with one that does; itself among them."""
        names = [group.spec.name]
        for name in names:  # it grows
            names += [
                other
                for other in self.workflows[name].shares_with
                if other not in names and self.workflows[other].state is TaskState.ASSIGNED
            ]
        return [self.workflows[name] for name in names]

    def on_failed(self, now: int, group: ShardGroup) -> list[CoreEffect]:
        return self._end(now, group, TaskState.FAILED)

    def on_done(self, now: int, group: ShardGroup) -> list[CoreEffect]:
        group.collect_provided()
        if not group.spec.is_test:
            group.failure = group.failure or first_failure(group.tally())
        if pausing.is_to_wait(group) and not self.is_stopping:
            self._news.append(pausing.put_aside(now, group))
            return self._schedule(now)
        if group.put_aside_for and group.counts().interrupted_iterations:
            # Nothing is left to go on with, and not all of it was done.
            group.has_timed_out, group.failure = True, group.failure or group.put_aside_for
        if group.has_timed_out:
            state = TaskState.TIMEOUT
        elif group.failure:
            state = TaskState.FAILED
        elif self.is_stopping and not group.spec.is_teardown:
            state = TaskState.CANCELLED
        else:
            state = TaskState.COMPLETED
        return self._end(now, group, state)

    def values_for(self, run: ShardGroup) -> dict[str, dict[str, bytes]]:
        values: dict[str, dict[str, bytes]] = {}
        for source, key in run.spec.flows:
            if key in self.workflows[source].provided:
                values.setdefault(source, {})[key] = self.workflows[source].provided[key]
        for source in self._parents(run):
            for key, content in self.workflows[source].provided.items():
                if key.startswith(CONTEXT_PREFIX):
                    values.setdefault(source, {})[key] = content
        left = {key: content for key, content in run.provided.items() if key.startswith(CONTEXT_PREFIX)}
        if run.behind_ns and left:  # what it left itself is later than what it was given
            values[run.spec.name] = left
        return values

    # Running.

    def _check_thresholds(self, now: int) -> list[CoreEffect]:
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

    def _stop_all(self, now: int) -> list[CoreEffect]:
        effects: list[CoreEffect] = []
        for run in self.workflows.values():
            if run.spec.is_teardown and self._may_clean_up:
                continue  # it has its turn when the others have stopped
            if run.state is TaskState.RUNNING:
                effects += run.stop(now)
            elif run.state not in ENDED:
                effects += self._end(now, run, TaskState.CANCELLED)
        return effects

    def _end(self, now: int, run: ShardGroup, state: TaskState) -> list[CoreEffect]:
        effects: list[CoreEffect] = list(run.end(now, state))
        for other in run.shares_with:
            if self.workflows[other].is_armed and not self.is_stopping:  # it waited for this one to get ready
                effects += self.on_armed(now, self.workflows[other])
        return [*effects, *self._schedule(now)]


def _are_different(one: bytes, other: bytes) -> bool:
    """By what they mean: dicts may have been filled in another order."""
    if one == other:
        return False
    try:
        return bool(msgspec.msgpack.decode(one) != msgspec.msgpack.decode(other))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True


def _numbers(used: Collection[int], cores: int) -> list[int]:
    """Of the cores that a job has on a worker: those that are used, which may be any, and the lowest others."""
    free = (number for number in range(cores + len(used)) if number not in used)
    return sorted([*used, *islice(free, max(0, cores - len(used)))])


def _by_place(seats: Sequence[Seat]) -> list[Seats]:
    """Those of each worker together, workers in the order in which they come first."""
    found: dict[str, tuple[int, ...]] = {}
    for place, number in seats:
        found[place] = (*found.get(place, ()), number)
    return [Seats(place, numbers) for place, numbers in found.items()]
