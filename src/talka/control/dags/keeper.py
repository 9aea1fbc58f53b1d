"""Dag jobs of one partition of a store, as one pure thing: what clients ask, what workers tell and the time come in;
changes to be made durable, messages to workers and news go out.

Memory is ahead of the store by what is on its way there. Nobody is told of anything before it is durable: no submitter,
no worker whose result was taken, no task that waits for another.

Decisions: docs/decisions/0021-dag-jobs-live-in-one-store.md, docs/decisions/0022-who-runs-a-task.md,
docs/decisions/0040-partitions-of-jobs.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from random import Random
from typing import Final

import msgspec

from talka.control.dags.commits import Commits
from talka.control.dags.fan_outs import FanOuts
from talka.control.dags.flow import NOTHING, DagStep
from talka.control.dags.job import DagJob, job_of
from talka.control.dags.job_timers import JobTimers
from talka.control.dags.keeper_limits import KEEPER_LIMITS, KeeperLimits
from talka.control.dags.shelf import DagShelf
from talka.control.dags.spec_reading import SpecReading
from talka.control.dags.turns import DagTurns
from talka.control.dags.waiting import why, why_not_yet
from talka.control.tasks.attempts import Attempts
from talka.control.tasks.delivery import Claimed, Delivery, unsigned
from talka.control.tasks.epoch_floor import EpochFloor
from talka.control.tasks.partition import Partition
from talka.control.tasks.store_effects import (
    CallAnswered,
    DagEffect,
    ReadOutputs,
    WorkerDropped,
)
from talka.control.tasks.task import DagTask
from talka.control.tasks.worker_link import KeeperEnd, ToWorker, WorkerBeat
from talka.control.tasks.worker_room import DispatchWorker
from talka.errors import Invalid, TalkaError
from talka.units import MILLISECOND
from talka.wire.attempts import NOWHERE, StoreLife
from talka.wire.task_views import WhyView
from talka.wire.tasks import Done, Held, TaskProgress, TaskResult, WorkerMessage
from talka.work.dags.dag import DagSettings, DagSpec, KeptSettings, TaskSpec, checked, with_bundle
from talka.work.dags.params import values_text
from talka.work.dags.records import (
    EPOCH_SHIFT,
    DropJob,
    FanRow,
    JobRow,
    LiveTask,
    MoveJob,
    PutJob,
    PutTasks,
    Release,
    StreamRow,
    TaskKey,
    TimeRow,
)
from talka.work.lifecycle import JobState, TaskState

UNTIL_BEAT: Final = ("lease", "draining", "cores", "full")
"""Causes of refusals: a worker that gave one refuses whatever else it is given, and gets nothing until it beats
again."""
NO_KEYS: Final[Mapping[str, tuple[bytes, str]]] = {}


class Edit(msgspec.Struct, frozen=True):
    """Another config for a task that is to be run again."""

    index: int
    spec: TaskSpec
    """As it is."""
    checkpoint: bytes
    config: msgspec.Raw


class DagKeeper(KeeperEnd[DagEffect]):
    """Call what fits as things happen, and `tick` once `next_tick_at` has come; carry out what they return, in order:
    each effect names its partition, which is another than this one's where its tasks got their turn."""

    def __init__(
        self,
        *,
        epoch: int,
        next_number: int,
        rng: Random,
        wall_offset_ns: int,
        life: StoreLife = NOWHERE,
        limits: KeeperLimits = KEEPER_LIMITS,
        turns: DagTurns | None = None,
        sign: Callable[[str], bytes] = unsigned,
    ) -> None:
        """`life`: of the partition that has the epoch. `turns`: of all keepers in this process; none: it is alone.
        `sign`: gives the manager's word for the bundle of a digest."""
        self.partition = Partition.of(life)
        number = self.partition.number
        self.floor = EpochFloor(epoch, life)
        self.turns = turns or DagTurns(rng)
        self.dispatcher = self.turns.dispatcher
        self.attempts = Attempts(self.floor, taken_limit=limits.taken, recalls_limit=limits.recalls)
        self.shelf = DagShelf(next_number, rng, self._wall_ms, self.partition, limits, self.turns.handlers)
        self.jobs: Mapping[int, DagJob] = self.shelf.jobs
        """By number, also drafts and those whose end is being kept."""
        self.stale_results = 0
        """Results of attempts that were not the last one given out: refused."""
        self.foreign_messages = 0
        """What workers told of attempts of another store, or of another life of this one: refused."""
        self.silence_of: Callable[[int, str, int], str] = lambda now, name, boot: ""
        """What is waited for of a life of a worker that has tasks and is silent, to go on a sentence."""
        self.wall_offset_ns = wall_offset_ns
        """Of the clock of the day: what is put down tells it as it is set."""
        self._rows_at_once = limits.rows
        # Of an epoch that is shared with other partitions of the store by chance, all attempts differ.
        self._counters = count(self.partition.first_number(1), self.partition.count)
        tickets = count(1)
        self._delivery = Delivery(self.floor, self.attempts.beat_of, tickets, limits.delivery, sign)
        self._timers = JobTimers(self.jobs, limits.spare_instants)
        self._specs = SpecReading(tickets, number, at_once=limits.specs_at_once, ahead=limits.specs_ahead)
        self._commits = Commits(self.partition)
        self._fan_outs = FanOuts(self.shelf, self._delivery, self._commits, tickets, limits)
        self._is_restored = turns is None
        """Nothing was there before, or it was read: until then others give out nothing either."""
        self.turns.join(number, self)

    @property
    def next_tick_at(self) -> int:
        return 0 if self._fan_outs.is_busy else min(self.dispatcher.next_tick_at, self._timers.next_at)

    def leave(self, now: int) -> None:
        """Another has the partition, or will: nothing of it is given out here any more."""
        tasks = (task for job in self.jobs.values() for task in job.tasks)
        self.turns.leave(now, self.partition.number, tasks)
        self.shelf.uncount()

    # -- restart

    def restore_job(self, now: int, row: JobRow) -> None:
        """A job that had not ended. Its tasks follow in pages, then `restored`."""
        self.shelf.put(row, msgspec.json.decode(row.settings, type=KeptSettings))

    def restore_tasks(self, now: int, job: int, live: Sequence[LiveTask], streams: Iterable[StreamRow]) -> None:
        self.jobs[job].restore(now, live, streams)
        self.shelf.tasks += len(live)

    def restore_fans(self, job: int, fans: Sequence[FanRow]) -> None:
        """After all of its tasks."""
        self.jobs[job].restore_fans(fans)

    def restore_times(self, job: int, times: Sequence[TimeRow]) -> None:
        self.jobs[job].restore_times(times)

    def restored(self, now: int) -> list[DagEffect]:
        """Everything was read: go on."""
        self._is_restored = True
        for number, job in list(self.jobs.items()):
            if job.row.state is JobState.SUBMITTED:
                self._commits.changes.append(DropJob(number))  # a stream that was broken off: nobody was told of it
                self._forget(job)
                continue
            step = job.restored(now)
            for task in job.given_out():
                self.attempts.add(task)
                self.attempts.handed(now, task.fence)
            self._follow(now, job, step)
        return self._out(now)

    # -- what clients ask. Each raises Invalid or Unavailable at once, or answers later with CallAnswered.

    def submit(
        self,
        now: int,
        call: int,
        spec: DagSpec,
        *,
        key: str = "",
        by: str = "",
        digest: str = "",
        keyed: Mapping[str, tuple[bytes, str]] = NO_KEYS,
        has_more: bool = False,
    ) -> list[DagEffect]:
        """`keyed`: output and blob of tasks that completed before, by their idempotency keys. The spec is filled.
        `has_more`: others follow at once, then `tick`: all go together."""
        self.shelf.check_room(jobs=1, tasks=len(spec.tasks))
        self.shelf.check_key(key)
        depends_on = checked(spec.tasks)
        tasks, state = len(spec.tasks), JobState.RUNNING
        params, settings = values_text(spec.values), with_bundle(spec.settings, spec.bundle)
        job = self.shelf.new_job(
            now, spec.name, settings, state, tasks=tasks, key=key, digest=digest, by=by, params=params
        )
        self._commits.changes.append(PutJob(job.row))
        self._add_tasks(now, job, spec.tasks, depends_on)
        self._start(now, job, keyed)
        self._commits.after.answers.append(CallAnswered(call, job.row.id))
        return [] if has_more else self._out(now)

    def begin(
        self,
        now: int,
        name: str,
        settings: DagSettings,
        *,
        key: str = "",
        by: str = "",
        digest: str = "",
        params: bytes = b"",
    ) -> str:
        """A job whose tasks come in parts: the name of the draft, which is the id of the job to be."""
        self.shelf.check_room(jobs=1, tasks=1)
        self.shelf.check_key(key)
        state = JobState.SUBMITTED
        job = self.shelf.new_job(now, name, settings, state, key=key, digest=digest, by=by, params=params)
        self.shelf.drafts[job.row.id] = job
        return job.row.id

    def add(self, now: int, call: int, draft: str, tasks: Sequence[TaskSpec]) -> list[DagEffect]:
        job = self.shelf.draft(draft)
        self.shelf.check_room(jobs=0, tasks=len(tasks))
        depends_on = checked(tasks, job.index_by_id(), forward=False)
        if tasks and not job.tasks:
            self._commits.changes.append(PutJob(job.row))
        self._add_tasks(now, job, tasks, depends_on)
        return self.confirm(now, call, draft)

    def end(
        self, now: int, call: int, draft: str, *, keyed: Mapping[str, tuple[bytes, str]] = NO_KEYS
    ) -> list[DagEffect]:
        """`keyed`: as in `submit`."""
        job = self.shelf.draft(draft)
        if not job.tasks:
            self._forget(job)  # nothing of it was written
            raise Invalid("the job has no tasks: give it at least one")
        del self.shelf.drafts[draft]
        started = MoveJob(job.row.number, JobState.RUNNING, self._wall_ms(now), tasks=len(job.tasks))
        self._commits.changes.append(started)
        self._start(now, job, keyed)
        return self.confirm(now, call, draft)

    def drop(self, now: int, draft: str) -> list[DagEffect]:
        job = self.shelf.drafts.get(draft)
        if job is None:
            return []
        self._commits.changes.append(DropJob(job.row.number))
        self._forget(job)
        return self._out(now)

    def confirm(self, now: int, call: int, id: str) -> list[DagEffect]:
        """Answer once all that was asked for before is durable."""
        self._commits.after.answers.append(CallAnswered(call, id))
        return self._out(now)

    def change(self, now: int, call: int, id: str, what: Callable[[DagJob], DagStep]) -> list[DagEffect]:
        """Pause, resume, cancel or skip, or run again what is in memory."""
        job = self._started(id)
        self._follow(now, job, what(job))
        return self.confirm(now, call, id)

    def rerun(
        self,
        now: int,
        call: int,
        id: str,
        ids: Sequence[str] = (),
        edits: Sequence[Edit] = (),
        ended: tuple[JobRow, Sequence[LiveTask], Iterable[StreamRow], Sequence[FanRow]] | None = None,
    ) -> list[DagEffect]:
        """Run these tasks again and all that depends on them. `ended`: what the store has of a job that is not in
        memory any more."""
        if ended is not None and self.job(id) is None:
            row, live, streams, fans = ended
            self.shelf.check_room(jobs=1, tasks=len(live))
            self.restore_job(now, row)
            self.restore_tasks(now, row.number, live, streams)
            self.restore_fans(row.number, fans)
            self.jobs[row.number].restored(now)
        job = self._started(id)
        specs: list[tuple[DagTask, TaskSpec]] = []
        for edit in edits:
            task = job.tasks[edit.index]
            self._delivery.drop_spec(task)
            self._take(now, job.loaded(now, task, edit.spec, edit.checkpoint))
            self._delivery.keep_spec(task, is_needed=True)
            specs.append((task, edit.spec))
        try:
            step = job.rerun(now, ids, {job.tasks[edit.index].id: edit.config for edit in edits})
        except TalkaError:
            if job.has_ended and not self._commits.is_ending(job):
                self._forget(job)  # it was in memory for this alone
            raise
        for task, former in specs:
            self._delivery.replaced_spec(task, former)
        self._follow(now, job, step)
        return self.confirm(now, call, id)

    def _started(self, id: str) -> DagJob:
        job = self.job(id)
        if job is None or id in self.shelf.drafts:
            raise Invalid(f"job {id} is not under way")
        return job

    def job(self, id: str) -> DagJob | None:
        return self.shelf.find(id)

    def may_fetch(self, worker: str, digest: str) -> bool:
        return self.attempts.may_fetch(worker, digest)

    def why(self, now: int, id: str, task_id: str, index: int, state: TaskState) -> WhyView:
        """Why a task does not run, by the rules that decide whether it does."""
        job = self.job(id)
        if job is None:
            return WhyView(task_id, state, "its job has ended just now: ask again in a moment")
        return why(job.tasks[index], now, self.dispatcher, self.silence_of)

    # -- workers

    def on_beat(self, now: int, beat: WorkerBeat) -> list[DagEffect]:
        floor, name, number = self.floor, beat.worker, self.partition.number
        obeyed = beat.obeyed(number)
        if not beat.names or floor.is_below(obeyed.epoch, obeyed.of):
            self.dispatcher.workers.remove_worker(now, name, number)
            return [*(floor.too_high(now, name, obeyed.epoch, obeyed.of) if beat.names else floor.too_old(name))]
        floor.forget(name)
        is_foreign = obeyed.epoch > 0 and not obeyed.of.is_of(floor.life)
        effects = self.attempts.heard(now, name, beat.boot, beat.facts.folder, beat.number, is_foreign=is_foreign)
        if self.attempts.knows(name):
            self.dispatcher.workers.set_worker(now, DispatchWorker.of(beat.facts, beat.cores, beat.state), number)
        return effects + self._out(now)

    def on_worker_lost(self, now: int, worker: str, boot: int, cause: str) -> list[DagEffect]:
        """This life of a worker runs nothing any more."""
        self.floor.forget(worker)
        was_present, tasks = self.attempts.lost(worker, boot)
        if was_present:
            self.dispatcher.workers.remove_worker(now, worker, self.partition.number)
        for task in tasks:
            self._lost(now, task, cause)
        return self._out(now)

    def on_stepped_down(self, now: int) -> None:
        """Nobody tells any more which workers live: those that beat again are given work again."""
        for name in self.attempts.forget_idle():
            self.dispatcher.workers.remove_worker(now, name, self.partition.number)

    def on_epoch(self, now: int, epoch: int) -> list[DagEffect]:
        """The store has this one, as `RaiseEpoch` asked for; or still has the one before, and is asked again."""
        self.floor.raised(epoch)
        return self._out(now)

    def on_message(self, now: int, worker: str, message: WorkerMessage) -> list[DagEffect]:
        if not message.of.is_of(self.floor.life):
            self.foreign_messages += 1
            return []  # its sender is asked what it holds, and drops it then
        match message:
            case Done(results=results):
                others = self.attempts.of_others(results, worker)
                for result in results:
                    if result.fence in others:
                        self.stale_results += 1
                    else:
                        self._on_result(now, worker, result)
            case TaskProgress():
                self._commits.changes += self.attempts.underway(now, message, worker, self._commits.after.timed)
            case Held(dropped=dropped):  # pragma: no branch - the type checker sees that no other is left
                news = [WorkerDropped(worker, one) for one in dropped if self.attempts.is_waited_for(worker)]
                for task in self.attempts.holding(worker, message):
                    self._lost(now, task, "its worker never got it")
                return [*news, *self._out(now)]
        return self._out(now)

    def _on_result(self, now: int, worker: str, result: TaskResult) -> None:
        fence = result.fence
        task = self.attempts.of_result(result)
        if task is None:
            if not self.attempts.was_taken(fence):
                self.stale_results += 1
            self._commits.after.took.setdefault(worker, []).append(fence)
            return
        if task.policy is None:
            return  # what rules hold for it is being read; it is told again
        self._commits.after.took.setdefault(worker, []).append(fence)
        self.attempts.taken(task)
        self.attempts.gone(task)
        has_run = result.outcome in ("completed", "failed")
        self.dispatcher.ended(now, task, result.took_us * 1000 if has_run else None)
        job = job_of(task)
        if result.tails or job.has_writers:
            self._commits.changes += job.wrote(task, result)
        if result.outcome == "completed":
            self._delivery.drop_spec(task)
            task.checkpoint = b""
            key = (job.row.number, task.index)
            if job.is_read(task):
                self._delivery.keep_output(key, result.output)
            # What waited for it is claimed in the same commit, and handed when that holds.
            ended = result.output, "", result.took_us, result.memory_bytes
            self._commits.changes += job.completing(now, task, *ended)
            if (step := job.completed(now, task)) is not NOTHING:
                self._take(now, step)
            self._look_after(now, job)
            return
        if result.outcome == "refused" and result.cause in UNTIL_BEAT:
            self.dispatcher.workers.remove_worker(now, worker, self.partition.number)
        if result.outcome == "died" and result.alone:
            self.dispatcher.workers.died(now, (job.row.number, task.index), worker)
        self._follow(now, job, job.failed(now, task, result))

    # -- time and the store

    def tick(self, now: int) -> list[DagEffect]:
        why_not = why_not_yet(now, self.dispatcher)
        for job in self._timers.due(now):
            self._follow(now, job, job.tick(now, why_not))
        self._fan_outs.advance(now, self._follow)
        return self._out(now)

    def hand(self, now: int, *tickets: int) -> list[DagEffect]:
        """What those that became durable together give out. Whoever has a core at hand that waits for it carries this
        out first, and tells `on_committed` of them at once."""
        return [*self._given(now, self._delivery.give(self._commits.to_hand(tickets)))]

    def on_committed(self, now: int, *tickets: int) -> list[DagEffect]:
        """Those that became durable together: what they give out travels together."""
        handed, after = self.hand(now, *tickets), self._commits.held(tickets)
        effects: list[DagEffect] = [*after.answers, *self._delivery.stored(after.took, after.timed), *handed]
        for task, number in after.fan_out:
            effects += self._fan_outs.ask(task, number)
        self._fan_outs.advance(now, self._follow)
        for job, ended in after.ended:
            effects.append(ended)
            if self._commits.ended(job) and job.is_over:  # nobody wanted it to run again meanwhile
                self._forget(job)
        return effects + self._out(now)

    def on_fetched(
        self, now: int, ticket: int, specs: Mapping[TaskKey, tuple[TaskSpec, bytes]], outputs: Mapping[TaskKey, bytes]
    ) -> list[DagEffect]:
        read = self._specs.on_read(ticket)
        if read is not None:
            self._on_read(now, read, specs)
            return self._out(now)
        reads = self._fan_outs.on_fetched(ticket, specs, outputs)
        if reads is not None:
            self._fan_outs.advance(now, self._follow)
            return [*reads, *self._out(now)]
        return self._given(now, self._delivery.on_fetched(ticket, specs, outputs)) + self._out(now)

    def _on_read(self, now: int, read: list[DagTask], specs: Mapping[TaskKey, tuple[TaskSpec, bytes]]) -> None:
        for task in read:
            found = specs.get((task.job.row.number, task.index))
            if found is None or task.job.row.number not in self.jobs or job_of(task).tasks[task.index] is not task:
                continue  # gone meanwhile
            self._delivery.drop_spec(task)
            job = job_of(task)
            self._take(now, job.loaded(now, task, *found))
            self._delivery.keep_spec(task)
            if task.worker:
                self.dispatcher.restore(now, task)
            self._look_after(now, job)

    # -- how it is done

    def _wall_ms(self, now: int) -> int:
        return (now + self.wall_offset_ns) // MILLISECOND

    def _forget(self, job: DagJob) -> None:
        self.shelf.forget(job)
        for task in job.tasks:
            self._delivery.drop_spec(task)
        job.let_go()

    def _add_tasks(
        self, now: int, job: DagJob, specs: Sequence[TaskSpec], depends_on: Sequence[tuple[int, ...]]
    ) -> None:
        tasks = job.add(now, specs, depends_on)
        self.shelf.tasks += len(tasks)
        for first in range(0, len(tasks), self._rows_at_once):
            self._commits.changes.append(PutTasks(tuple(job.rows(tasks[first : first + self._rows_at_once]))))
        for task in tasks:
            self._delivery.keep_spec(task)

    def _start(self, now: int, job: DagJob, keyed: Mapping[str, tuple[bytes, str]]) -> None:
        """With what was written of it: what starts is claimed in the same commit. Tasks that another did before are
        done with it."""
        step = job.start(now)
        known = [task for task in job.tasks if task.key in keyed] if keyed else []
        if known:
            indexes = dict.fromkeys([task.index for task in known])  # their delays do not count
            changes = [one for one in step.changes if not (type(one) is Release and one.index in indexes)]
            step = msgspec.structs.replace(step, changes=changes)
        self._take(now, step)
        if known:
            self.dispatcher.remove([task for task in known if task.state is TaskState.READY])
        for task in known:
            output, blob = keyed[task.key]
            self._delivery.drop_spec(task)
            if not blob and job.dependents_of(task.index):
                self._delivery.keep_output((job.row.number, task.index), output)
            self._commits.changes += job.completing(now, task, output, blob, 0)
        for task in known:
            self._take(now, job.completed(now, task))
        self._look_after(now, job)

    def _take(self, now: int, step: DagStep) -> None:
        """Let a step of a job have its effects."""
        self._commits.changes += step.changes
        if step.unqueue:
            self.dispatcher.remove(step.unqueue)
        if step.ready:
            self.dispatcher.put(now, step.ready)
        for task in step.load:
            self._specs.add(task)
        for task in step.recalls:
            self.attempts.recall(task)
        for task in step.gone:
            self._delivery.drop_spec(task)
        self.shelf.tasks -= len(step.gone)
        self._commits.after.fan_out += [(task, job_of(task).asked(task)) for task in step.fan_out]

    def _follow(self, now: int, job: DagJob, step: DagStep) -> None:
        self._take(now, step)
        self._look_after(now, job)

    def _look_after(self, now: int, job: DagJob) -> None:
        """After every step of a job."""
        if job.is_over and not job.has_ended:
            self._commits.changes += job.end(now)
            self._commits.end(job)
        self._timers.set(job)

    def _lost(self, now: int, task: DagTask, cause: str) -> None:
        self._follow(now, job := self._gone(now, task), job.lost(now, task, cause))

    def _gone(self, now: int, task: DagTask) -> DagJob:
        """Its attempt is over without a result: the job that has to know."""
        self.attempts.gone(task)
        self.dispatcher.ended(now, task, None)
        return job_of(task)

    # -- giving out, with the other keepers of this process

    @property
    def is_behind(self) -> bool:
        return self._specs.is_behind or not self._is_restored

    def claim(self, now: int, task: DagTask, worker: str) -> None:
        """It is given to the worker of this name: claimed now, handed once that is durable."""
        fence = self.floor.epoch << EPOCH_SHIFT | next(self._counters)
        self._commits.changes += job_of(task).claimed(now, task, self.attempts.key_of(worker), fence)
        self.attempts.add(task)
        self.dispatcher.took(task, fence)
        self._commits.after.hand.append((task, fence))

    def _given(self, now: int, given: Claimed) -> list[ToWorker | ReadOutputs]:
        for fence in given.fences:
            self.attempts.handed(now, fence)
        for problem in given.unfit:
            result = TaskResult(problem.task.fence, "failed", error=problem.text, cause="inputs")
            job = self._gone(now, problem.task)
            self._follow(now, job, job.unfit(now, problem.task, result))
        return given.effects

    def _out(self, now: int) -> list[DagEffect]:
        """What is to be done after an input: tasks given out, changes committed together."""
        others = [keeper for keeper in self.turns.give_out(now) if keeper is not self]
        effects = self.flush(now)
        for keeper in others:
            effects += keeper.flush(now)
        return effects

    def flush(self, now: int) -> list[DagEffect]:
        effects: list[DagEffect] = list(self._specs.read(self.dispatcher.ready))
        effects += self.attempts.recalls()
        commit = self._commits.take()
        if commit is not None:
            effects.append(commit)
        return effects
