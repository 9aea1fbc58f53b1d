"""The planner of one dag job: which of its tasks may run now, and what follows when one of them ends.

It decides and remembers; the rows of the store are what it can be built from again. READY and RUNNING are of memory
alone: in the store such tasks are PENDING and ASSIGNED.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from talka.control.dags.book import ENDED, FAILED, OUTPUT_BYTES, STOPPING
from talka.control.dags.ends import end_of, stopped
from talka.control.dags.fans import Fan, FanBook
from talka.control.dags.handler_counts import HandlerCounts
from talka.control.dags.rows import (
    again_text,
    attempt_of,
    done,
    failed_text,
    given_up,
    queue_timeout_text,
    total_timeout_text,
)
from talka.control.tasks.notices import notices_of
from talka.control.tasks.retries import STOPPED, RetryVerdict, ending_of_result, judged, longest_wait_ns
from talka.control.tasks.task import DagTask
from talka.control.tasks.timers import QUEUE, WAKE, Timers
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER
from talka.wire.tasks import TaskResult
from talka.work.dags.dag import DagSettings, TaskSpec
from talka.work.dags.endings import TOLD_TO_STOP
from talka.work.dags.records import Change, ClaimTask, Complete, EventRow, JobRow, MoveJob, PutEvent, Release
from talka.work.durations import format_duration, parse_duration
from talka.work.lifecycle import JobState, TaskState, begin_again, move

AT_ONCE: Final = 10_000
"""Tasks that become ready or are cancelled in one step; the others follow in ticks, so that no step takes long."""
ERROR_KEPT: Final = 300
"""Characters of an error that stay in memory; all of them are in its row."""

_PENDING, _READY, _ASSIGNED, _RUNNING = TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED, TaskState.RUNNING


class DagStep(msgspec.Struct):
    """What follows from something that happened: to be read, not to be changed."""

    ready: list[DagTask] = []
    """Go into the queues now."""
    changes: list[Change] = []
    recalls: list[DagTask] = []
    """Run and must be stopped."""
    unqueue: list[DagTask] = []
    """Were in the queues and leave them."""
    load: list[DagTask] = []
    """Their specs must be read from the store and given to `loaded`, which says whether they go into the queues."""
    fan_out: list[DagTask] = []
    """Are to be fanned out once all this is durable: see `fanned`, `unlisted` and `postponed`."""
    gone: list[DagTask] = []
    """Elements that are of the job no more."""


NOTHING: Final = DagStep()


class DagJob(FanBook):
    """Call what fits as things happen, and `tick` once `next_tick_at` has come. When `is_over`, call `end` once."""

    def __init__(
        self,
        row: JobRow,
        settings: DagSettings,
        rng: Random,
        clock: Callable[[int], int],
        partition: int = 0,
        at_once: int = AT_ONCE,
        output_bytes: int = OUTPUT_BYTES,
        handlers: HandlerCounts | None = None,
    ) -> None:
        """`partition`: the number of that which the job is in."""
        super().__init__(row, settings, clock, partition, output_bytes, handlers)
        self.next_tick_at = NEVER
        self._number = row.number
        self._rng = rng
        self._at_once = at_once
        self._timers = Timers(self.tasks)
        self._backlog: deque[DagTask] = deque()
        """Pending ones that nothing holds back."""
        self._sweep_at: int | None = None
        """While the job is stopped: those below have been cancelled. None: all of them."""
        self._timeout_ns = 0 if settings.timeout is None else parse_duration(settings.timeout, what="timeout")
        self._begun_at = 0
        """From when on the times of tasks and job count."""
        self._deadline = NEVER

    # -- its life

    def start(self, now: int) -> DagStep:
        """All tasks are there, and the store has them. That it runs is written by whoever submits it."""
        step = DagStep()
        if self.state is JobState.SUBMITTED:
            self.state = move(self.state, JobState.RUNNING)
        self._connect()
        self._set_deadlines(now)
        self._backlog.extend([task for task in self.tasks if not task.waits_for])
        return self._go_on(now, step)

    def restored(self, now: int) -> DagStep:
        """All were restored: go on where it was left. Attempts under way keep their fence and worker."""
        step = DagStep()
        self._connect_restored()
        if self.has_ended:
            return step
        for task in self._count_waits([task for task in self.tasks if not task.is_settled]):
            if task.worker:
                step.load.append(task)
            elif task.ready_at > now:
                self._wake(task)
                if task.ready_at - now > STOPPED.cap_ns:
                    step.load.append(task)  # its spec tells whether that can be, or a clock was wrong
            else:
                self._backlog.append(task)
        self._set_deadlines(now)
        if self.state in STOPPING:
            self._wind_down(step)
        return self._go_on(now, step)

    def loaded(self, now: int, task: DagTask, spec: TaskSpec, checkpoint: bytes) -> DagStep:
        task.spec, task.checkpoint = spec, checkpoint
        if task.needs is not None:
            return NOTHING
        self._terms.learn(task, spec)
        if spec.for_each and task.index not in self._fans:
            self._fans[task.index] = Fan()
        if task.is_settled:
            return NOTHING
        step = DagStep()
        self._expire(task)
        latest = now + longest_wait_ns(task.policy or self._terms.usual)
        if task.state is _PENDING and task.ready_at > latest:
            task.ready_at = latest
            self._wake(task)
        if task.state is _READY:
            self._move(task, _PENDING)
            self._enter(now, step, task)
        self._set_next_tick(now)
        return step

    def end(self, now: int) -> list[Change]:
        """The last of its changes, once `is_over`."""
        if self._open or self.has_ended:
            return []
        state, self.reason = end_of(self)
        if self.state not in STOPPING:
            self.state = move(self.state, JobState.COMPLETING)
        self.state = move(self.state, state)
        self.next_tick_at, self._sweep_at = NEVER, None
        at_ms = self._clock(now)
        counts = self.counts()
        notices = notices_of(self.row, self.settings, self.state, self.reason, counts, at_ms)
        return [MoveJob(self._number, self.state, at_ms, self.reason, counts=counts), *notices]

    # -- attempts

    def claimed(self, now: int, task: DagTask, worker: str, fence: int) -> list[Change]:
        self._move(task, _ASSIGNED)
        task.attempts += 1
        task.fence = fence
        task.worker = worker
        task.started_at = now
        return [ClaimTask(self._number, task.index, task.attempts, fence, worker, self._clock(now))]

    def completing(
        self, now: int, task: DagTask, output: bytes, blob: str, took_us: int, memory_bytes: int = 0
    ) -> list[Change]:
        """It is done; who waits for it must not know before that is durable, and `completed` is called. One that was
        not given out is done too when another with its key was."""
        at_ms, fence, started_ms = self._clock(now), 0, 0
        if task.worker:
            fence, started_ms = task.fence, at_ms - took_us // 1000
        change = done(self._number, task, fence, (started_ms, at_ms), output, blob, memory_bytes)
        self._handlers.row(task.handler).ended(now)
        self._move(task, TaskState.COMPLETED)
        task.worker = task.recall = ""
        task.output_kib = len(output) >> 10
        return [change]

    def completed(self, now: int, task: DagTask) -> DagStep:
        """What `completing` said is durable."""
        task.is_settled = True
        self._open -= 1
        dependents = self.dependents_of(task.index)
        if not dependents or self.state in STOPPING:
            return NOTHING
        step = DagStep()
        self._release_all(dependents)
        return self._go_on(now, step)

    def failed(self, now: int, task: DagTask, result: TaskResult) -> DagStep:
        """An attempt ended without completing its task."""
        verdict = stopped(self, task)
        if verdict is None:
            # A result may be here before the spec was read again: the job's own rules hold then.
            policy = task.policy or self._terms.usual
            verdict = judged(task, policy, result, self._rng)
            is_suspect = result.outcome == "died" and ending_of_result(result) is not TOLD_TO_STOP
            if is_suspect and verdict.state is None:
                self._terms.isolate(task)
        return self._after_attempt(now, task, verdict, result)

    def unfit(self, now: int, task: DagTask, result: TaskResult) -> DagStep:
        """It was claimed and can be given to nobody."""
        verdict = stopped(self, task) or RetryVerdict(TaskState.FAILED, result.cause, result.error)
        return self._after_attempt(now, task, verdict, result)

    def lost(self, now: int, task: DagTask, cause: str) -> DagStep:
        """Whoever had it runs it no more: it goes to another at once, and that costs it nothing."""
        verdict = stopped(self, task) or RetryVerdict(None, "lost", cause)
        return self._after_attempt(now, task, verdict, TaskResult(task.fence, "cancelled", cause="lost", error=cause))

    # -- what people ask for

    def pause(self, now: int) -> DagStep:
        """Nothing more is given out; what runs goes on."""
        if self.state is JobState.PAUSED:
            return NOTHING
        self._check_goes_on("paused")
        step = DagStep()
        self.state = move(self.state, JobState.PAUSED)
        self._unqueue_all(step)
        self._tell(now, step, "paused")
        return self._go_on(now, step)

    def resume(self, now: int) -> DagStep:
        if self.state is JobState.RUNNING:
            return NOTHING
        self._check_goes_on("resumed")
        step = DagStep()
        self.state = move(self.state, JobState.RUNNING)
        self._backlog.clear()
        self._backlog.extend([task for task in self.tasks if task.state is _PENDING and not task.waits_for])
        self._tell(now, step, "resumed")
        return self._go_on(now, step)

    def cancel(self, now: int, reason: str) -> DagStep:
        """What does not run is cancelled, what runs is stopped. A job that stops already goes on stopping."""
        if self.state in STOPPING or not self._open:
            return NOTHING
        self._check_goes_on("cancelled")
        step = DagStep()
        self._stop(now, step, JobState.CANCELLING, reason or "It was cancelled.")
        return self._go_on(now, step)

    def skip(self, now: int, ids: Sequence[str], by: str = "") -> DagStep:
        """These are not run, as somebody asked for; what waits for them goes on without their output."""
        self._check_goes_on("changed")
        tasks = self._named(ids)
        for task in tasks:
            if task.state not in (_PENDING, _READY, TaskState.SKIPPED):
                raise Invalid(f"task {task.id} is {task.state} and cannot be skipped: only one that waits can")
        step, by_whom = DagStep(), f"by {by}" if by else ""
        for task in tasks:
            if task.state is not TaskState.SKIPPED:
                for one in self.elements_of(task) or ():
                    if one.state is _PENDING or one.state is _READY:
                        self._close(now, step, one, TaskState.SKIPPED, "skipped", by_whom)
                self._close(now, step, task, TaskState.SKIPPED, "skipped", by_whom)
                self._event(now, step, "skipped", task.index, by_whom)
                self._release_all(self.dependents_of(task.index))
        return self._go_on(now, step)

    def rerun(self, now: int, ids: Sequence[str], configs: Mapping[str, msgspec.Raw] | None = None) -> DagStep:
        """Run these and all that depends on them once more; none named: all that ended without being completed. The
        specs of those that get another config must be in memory (`loaded`)."""
        again, anew = self._again(ids, configs or {})
        step = DagStep()
        for task in anew:
            step.gone += self._let_go(task, step.changes)
        step.unqueue += [one for one in step.gone if one.state is _READY and one.needs is not None]
        for task, spec in again:
            if task.state is _READY and task.needs is not None:
                step.unqueue.append(task)
            reset = self._reset(task, spec)
            if reset is not None:
                step.changes.append(reset)
        self._backlog.extend(self._count_waits([task for task, _ in again]))
        self._find_failed()
        self._set_deadlines(now, now)
        if self.has_ended:
            self.state, self.reason = begin_again(self.state), ""
            step.changes.append(MoveJob(self._number, self.state, self._clock(now)))
        text = "1 task is run again" if len(again) == 1 else f"{len(again)} tasks are run again"
        self._event(now, step, "rerun", text=text)
        return self._go_on(now, step)

    # -- tasks that are fanned out

    def fanned(self, now: int, task: DagTask, elements: Sequence[DagTask]) -> DagStep:
        """It has these elements: their rows become durable with what follows from this, or none of it does."""
        step = DagStep()
        step.changes.append(self._take_in(task, elements))
        self._event(now, step, "fanned-out", task.index, f"it has {len(elements):,} elements")
        for one in elements:
            self._expire(one)
        self._backlog.extend(elements or [task])
        return self._go_on(now, step)

    def unlisted(self, now: int, task: DagTask, error: str) -> DagStep:
        """What it is to be fanned out over is no list, or none that can be used."""
        step = DagStep()
        self._close(now, step, task, TaskState.FAILED, "for_each", error)
        self._gave_up(now, step, task, error)
        return self._go_on(now, step)

    def postponed(self, now: int, task: DagTask, wait_ns: int) -> DagStep:
        """There is no room for its elements now."""
        self._fans[task.index].asked = 0
        task.ready_at = now + wait_ns
        self._wake(task)
        return self._go_on(now, DagStep())

    def _fan_out(self, now: int, step: DagStep, task: DagTask, fan: Fan) -> None:
        if fan.is_out:  # and all of its elements have ended
            task.output_kib = sum([one.output_kib for one in self.elements_of(task) or ()])
            self._close(now, step, task, TaskState.COMPLETED, "", "")
            self._release_all(self.dependents_of(task.index))
        elif not fan.asked:
            self._asks += 1
            fan.asked = self._asks
            step.fan_out.append(task)

    # -- time

    def tick(self, now: int, in_the_way: Callable[[DagTask], str] = lambda task: "") -> DagStep:
        """What is due. There may be more at once: see `next_tick_at`. `in_the_way` says why no worker has taken a task
        that is ready."""
        step = DagStep()
        for kind, task in self._timers.due(now):
            if kind == WAKE:
                self._delays_no_more(task)
                self._backlog.append(task)
            elif kind == QUEUE:
                self._overdue(now, step, task, queue_timeout_text(task, in_the_way(task)))
            elif task.policy is not None and self._begun_at + task.policy.total_ns <= now:
                # Otherwise the job was run again since.
                self._overdue(now, step, task, total_timeout_text(task))
        if now >= self._deadline and self._open and self.state not in STOPPING:
            reason = f"It took longer than its timeout of {format_duration(self._timeout_ns)}."
            self._stop(now, step, JobState.COMPLETING, reason)
        return self._go_on(now, step)

    # -- how it is done

    def _go_on(self, now: int, step: DagStep) -> DagStep:
        """The last of every step, and the only place where tasks become ready: what leaves the queues is never in the
        same step as what enters them."""
        if self._sweep_at is not None:
            self._sweep(now, step, self._sweep_at)
        elif self.state is JobState.RUNNING:
            backlog, room = self._backlog, self._at_once
            while backlog and room:  # a task whose elements have ended lets others follow it
                room -= 1
                self._enter(now, step, backlog.popleft())
        self._set_next_tick(now)
        return step

    def _set_next_tick(self, now: int) -> None:
        if self._sweep_at is not None or (self._backlog and self.state is JobState.RUNNING):
            self.next_tick_at = now
            return
        at = self._timers.next_at
        self.next_tick_at = at if self.state in STOPPING else min(at, self._deadline)

    def _enter(self, now: int, step: DagStep, task: DagTask) -> None:
        """A task that nothing holds back any more, unless something does."""
        if task.state is not _PENDING or task.waits_for:
            return
        policy, fan = task.policy, self._fans.get(task.index)
        if fan is not None and fan.is_out:  # whatever it waited for before, as a clock that was wrong may have it
            self._fan_out(now, step, task, fan)
            return
        if task.ready_at > now:
            return
        if policy is not None and policy.delay_ns and not task.fence and not task.ready_at:
            self._wait(now, step, task, policy.delay_ns)
            return
        if fan is not None:
            self._fan_out(now, step, task, fan)
            return
        self._move(task, _READY)
        task.queued_at = now
        if policy is None:
            step.load.append(task)
            return
        step.ready.append(task)
        if policy.queue_ns:
            self._timers.queue(task, policy.queue_ns)

    def _wait(self, now: int, step: DagStep, task: DagTask, wait_ns: int) -> None:
        """Kept in the store: a restart does not begin the wait again."""
        task.ready_at = now + wait_ns
        self._wake(task)
        ready_ms = self._clock(task.ready_at)
        step.changes.append(Release(self._number, task.index, 0, ready_ms, task.attempts))

    def _wake(self, task: DagTask) -> None:
        """A pending task waits until its `ready_at`."""
        self._timers.wake(task)
        self._delays(task)

    def _release_all(self, dependents: Sequence[int]) -> None:
        tasks, backlog = self.tasks, self._backlog
        for index in dependents:
            task = tasks[index]
            task.waits_for -= 1
            if not task.waits_for:
                backlog.append(task)

    def _after_attempt(self, now: int, task: DagTask, verdict: RetryVerdict, result: TaskResult) -> DagStep:
        step = DagStep()
        self._kept.over(task.fence)
        at_ms = self._clock(now)
        started_ms = self._clock(now - result.took_us * 1000 if result.took_us else task.started_at or now)
        step.changes.append(attempt_of(self._number, task, result, started_ms, at_ms))
        task.cause, task.error = verdict.cause, verdict.error[:ERROR_KEPT]
        if verdict.state is None:
            self._try_again(now, step, task, verdict)
        else:
            step.changes.append(
                given_up(self._number, task, verdict.state, verdict, started_ms, at_ms, result.memory_bytes)
            )
            task.worker = task.recall = ""
            self._settle(now, task, verdict.state)
            if verdict.state in FAILED:
                self._gave_up(now, step, task, verdict.error)
        return self._go_on(now, step)

    def _try_again(self, now: int, step: DagStep, task: DagTask, verdict: RetryVerdict) -> None:
        task.ready_at = now + verdict.wait_ns
        at_ms, cause, error = self._clock(task.ready_at), verdict.cause, verdict.error
        tried = (task.attempts, task.deaths, cause, error, task.failures)
        step.changes.append(Release(self._number, task.index, task.fence, at_ms, *tried))
        task.worker = ""
        self._move(task, _PENDING)
        if verdict.wait_ns:
            self._wake(task)
        else:
            self._backlog.appendleft(task)  # it has waited its turn already
        kind = "lost" if verdict.cause == "lost" else "retry"
        self._event(now, step, kind, task.index, again_text(task, verdict))

    def _overdue(self, now: int, step: DagStep, task: DagTask, error: str) -> None:
        """A task has waited too long, or runs too long."""
        if self.state in STOPPING or task.state in ENDED or task.is_settled or self.is_out(task):
            return
        if task.worker:
            task.recall = "timeout"
            step.recalls.append(task)
            return
        self._close(now, step, task, TaskState.TIMEOUT, "timeout", error)
        self._gave_up(now, step, task, error)

    def _close(self, now: int, step: DagStep, task: DagTask, state: TaskState, cause: str, error: str) -> None:
        """The end of a task that is not given out."""
        if task.state is _READY and task.needs is not None:
            step.unqueue.append(task)
        task.cause, task.error = cause, error[:ERROR_KEPT]
        at_ms = self._clock(now)
        change = Complete(self._number, task.index, 0, state, at_ms, error=error, cause=cause, attempts=task.attempts)
        step.changes.append(change)
        self._settle(now, task, state)

    def _gave_up(self, now: int, step: DagStep, task: DagTask, error: str) -> None:
        """A task failed for good: what the job's policy says of the others."""
        self._event(now, step, "dead", task.index, error)
        if self.first_failed is None:
            self.first_failed = task
        if self.settings.on_failure == "fail_fast":
            self._stop(now, step, JobState.COMPLETING, failed_text(task))
        elif self.settings.on_failure == "continue":
            self._release_all(self.dependents_of(task.index))
        else:
            self._skip_downstream(now, step, task)

    def _skip_downstream(self, now: int, step: DagStep, failed: DagTask) -> None:
        # All in one step, which is kept as a whole: rows do not say whether one was skipped for this or by somebody.
        error = f"task {failed.id}, which it waited for, was not completed"
        skipped, open_ones = 0, [failed.index]
        while open_ones:
            for index in self.dependents_of(open_ones.pop()):
                task = self.tasks[index]
                if task.state is _PENDING:
                    self._close(now, step, task, TaskState.SKIPPED, "dependency", error)
                    skipped += 1
                    open_ones.append(index)
        if skipped:
            which = "1 task that waits for it is" if skipped == 1 else f"{skipped} tasks that wait for it are"
            self._event(now, step, "skipped", failed.index, f"{which} skipped")

    def _stop(self, now: int, step: DagStep, state: JobState, reason: str) -> None:
        self.state, self.reason = move(self.state, state), reason
        self._wind_down(step)
        self._tell(now, step, "cancelled" if state is JobState.CANCELLING else "stopped")

    def _wind_down(self, step: DagStep) -> None:
        self._unqueue_all(step)
        for task in self.given_out():
            if not task.recall:
                task.recall = "cancelled"
                step.recalls.append(task)
        self._sweep_at = 0

    def _unqueue_all(self, step: DagStep) -> None:
        self._backlog.clear()
        for task in self.tasks:
            if task.state is _READY:
                if task.needs is not None:
                    step.unqueue.append(task)
                self._move(task, _PENDING)

    def _sweep(self, now: int, step: DagStep, first: int) -> None:
        """Cancel the next of those that wait."""
        tasks = self.tasks
        end = first + self._at_once
        for index in range(first, min(end, len(tasks))):
            if tasks[index].state is _PENDING:
                self._close(now, step, tasks[index], TaskState.CANCELLED, "cancelled", "")
        self._sweep_at = end if end < len(tasks) else None

    def _check_goes_on(self, change: str) -> None:
        if self.state not in (JobState.RUNNING, JobState.PAUSED):
            raise Invalid(f"job {self.row.id} is {self.state} and cannot be {change}")

    def _set_deadlines(self, now: int, begun_at: int | None = None) -> None:
        if begun_at is None:
            begun_ms = self.row.started_ms or self.row.submitted_ms
            begun_at = now - (self._clock(now) - begun_ms) * MILLISECOND
        self._begun_at = begun_at
        self._deadline = begun_at + self._timeout_ns if self._timeout_ns else NEVER
        for task in self.tasks:
            policy = task.policy
            if policy is not None and policy.total_ns and not task.is_settled:
                self._expire(task)

    def _expire(self, task: DagTask) -> None:
        policy = task.policy
        if policy is not None and policy.total_ns:
            self._timers.expire(task, self._begun_at + policy.total_ns)

    def _tell(self, now: int, step: DagStep, kind: str) -> None:
        step.changes.append(MoveJob(self._number, self.state, self._clock(now), self.reason))
        self._event(now, step, kind, text=self.reason)

    def _event(self, now: int, step: DagStep, kind: str, index: int = -1, text: str = "") -> None:
        row = EventRow(job=self._number, at_ms=self._clock(now), kind=kind, index=index, text=text)
        step.changes.append(PutEvent(row))


def job_of(task: DagTask) -> DagJob:
    """What gives tasks out knows of their job only a part."""
    job = task.job
    assert isinstance(job, DagJob)
    return job
