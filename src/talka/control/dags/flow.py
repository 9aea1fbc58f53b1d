"""How the tasks of one dag job go on: when they become ready, what follows from an attempt and from the time, and how
all of them are stopped.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from talka.control.dags.book import ENDED, FAILED, OUTPUT_BYTES, STOPPING
from talka.control.dags.fans import Fan, FanBook
from talka.control.dags.handler_counts import HandlerCounts
from talka.control.dags.rows import (
    again_text,
    attempt_of,
    failed_text,
    given_up,
    queue_timeout_text,
    total_timeout_text,
)
from talka.control.tasks.retries import RetryVerdict
from talka.control.tasks.task import DagTask
from talka.control.tasks.timers import QUEUE, WAKE, Timers
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER
from talka.wire.tasks import TaskResult
from talka.work.dags.dag import DagSettings
from talka.work.dags.records import Change, Complete, EventRow, JobRow, MoveJob, PutEvent, Release
from talka.work.durations import format_duration, parse_duration
from talka.work.lifecycle import JobState, TaskState, move

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


class DagFlow(FanBook):
    """What follows from what happens to a job. That is told to a `DagJob`, the only kind of this."""

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

    def _fan_out(self, now: int, step: DagStep, task: DagTask, fan: Fan) -> None:
        if fan.is_out:  # and all of its elements have ended
            task.output_kib = sum([one.output_kib for one in self.elements_of(task) or ()])
            self._close(now, step, task, TaskState.COMPLETED, "", "")
            self._release_all(self.dependents_of(task.index))
        elif not fan.asked:
            self._asks += 1
            fan.asked = self._asks
            step.fan_out.append(task)

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
        self._times.over(task.fence)
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
        if verdict.pauses:
            self._put_aside(now, step, verdict.error)
            return
        kind = "lost" if verdict.cause == "lost" else "retry"
        self._event(now, step, kind, task.index, again_text(task, verdict))

    def _put_aside(self, now: int, step: DagStep, reason: str) -> None:
        """A task waits until somebody resumes the job."""
        if self.state is JobState.RUNNING:
            self.state, self.reason = move(self.state, JobState.PAUSED), reason
            self._unqueue_all(step)
            self._tell(now, step, "paused")

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
