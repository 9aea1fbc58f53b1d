"""The planner of one dag job: which of its tasks may run now, and what follows when one of them ends.

It decides and remembers; the rows of the store are what it can be built from again. READY and RUNNING are of memory
alone: in the store such tasks are PENDING and ASSIGNED.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Mapping, Sequence

import msgspec

from talka.control.dags.book import STOPPING
from talka.control.dags.ends import end_of, stopped
from talka.control.dags.fans import Fan
from talka.control.dags.flow import NOTHING, DagFlow, DagStep
from talka.control.dags.kept_times import put_aside_text
from talka.control.dags.rows import done
from talka.control.tasks.notices import notices_of
from talka.control.tasks.retries import STOPPED, RetryVerdict, ending_of_result, judged, longest_wait_ns
from talka.control.tasks.task import DagTask
from talka.errors import Invalid
from talka.units import NEVER
from talka.wire.tasks import TaskResult
from talka.work.dags.dag import TaskSpec
from talka.work.dags.endings import TOLD_TO_STOP
from talka.work.dags.records import Change, ClaimTask, MoveJob
from talka.work.lifecycle import JobState, TaskState, begin_again, move

_PENDING, _READY, _ASSIGNED, _RUNNING = TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED, TaskState.RUNNING


class DagJob(DagFlow):
    """Call what fits as things happen, and `tick` once `next_tick_at` has come. When `is_over`, call `end` once."""

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
        self._times.over(task.fence)
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
            if result.outcome == "timeout" and policy.on_timeout == "pause":
                verdict = RetryVerdict(None, "timeout", put_aside_text(task, result), pauses=True)
            else:
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
        self.state, self.reason = move(self.state, JobState.RUNNING), ""
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


def job_of(task: DagTask) -> DagJob:
    """What gives tasks out knows of their job only a part."""
    job = task.job
    assert isinstance(job, DagJob)
    return job
