"""A pipeline in this process, for tests of handlers: no cluster, no store, and the planner that a manager has.

Time is simulated: where nothing but the clock is waited for, it is set forward. Delays, waits before another try and
timeouts cost nothing then, and the same seed gives the same run. While something outside is under way (a socket, a
thread, a command) time passes as it does. Limits, capabilities and memory of workers are not looked at, and a handler
that ends its process ends the test.
"""

import asyncio
import heapq
import inspect
import selectors
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import date
from random import Random
from types import ModuleType
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec

from talka.clock import monotonic_ns
from talka.control.dags.flow import DagStep
from talka.control.dags.job import DagJob
from talka.control.dags.rows import no_list_text
from talka.control.tasks.attempt_time import terms_of
from talka.control.tasks.task import DagTask
from talka.engine.handlers.attempt_warning import call_in_loop
from talka.engine.handlers.command_run import run_command
from talka.engine.handlers.handler_run import HandlerRun, run_async, run_plain
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.tasks import HandedTask, HandlerProgress, TaskLine, TaskResult, TimeTold, TimeWanted
from talka.work.dags.dag import DagSpec, ParamValue, checked
from talka.work.dags.elements import ElementMaker, ElementSpec, joined, listed
from talka.work.dags.params import NO_VALUES, SCHEDULE_SAMPLES, filled, plain
from talka.work.dags.pipeline import Dag
from talka.work.dags.records import JobRow
from talka.work.deadlines import Deadline, Denied, Evict, Granted, PutAside
from talka.work.handlers import HandlerSpec, handlers_of
from talka.work.lifecycle import JobState, TaskState

START_NS: Final = SECOND
"""Not 0, which means "never" in rows."""
AT_ONCE: Final = 16
JOB: Final = "inline"
WORKER: Final = "inline#1"
FENCE: Final = 1 << 32

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class InlineTask(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one task."""

    state: TaskState
    output: Any = None
    attempts: int = 0
    error: str = ""
    cause: str = ""
    log: tuple[str, ...] = ()
    progress: Any = None
    """What its handler told last."""
    stdout: str = ""
    """Of a command, the end of what its last attempt wrote; what functions print is printed. Empty of one that
    completed with JSON: that is its output."""
    stderr: str = ""
    traceback: str = ""
    """Of the last attempt, if it raised."""


class InlineRun(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job."""

    state: JobState
    """Its end; or paused, by `on_timeout`, and what else of it ran has ended."""
    reason: str
    tasks: dict[str, InlineTask]
    took_s: float
    """Of the simulated clock."""

    @property
    def outputs(self) -> dict[str, Any]:
        """Of the tasks that completed."""
        return {id: task.output for id, task in self.tasks.items() if task.state is TaskState.COMPLETED}

    @property
    def states(self) -> dict[str, str]:
        return {id: task.state.value for id, task in self.tasks.items()}


def run_dag_inline(
    dag: Dag | DagSpec,
    handlers: ModuleType | Mapping[str, Callable[..., Any]],
    *,
    seed: int = 0,
    at_once: int = AT_ONCE,
    values: Mapping[str, ParamValue | date] = NO_VALUES,
) -> InlineRun:
    """Runs the job to its end. `handlers` is the module that declares them, or functions by the names of handlers.
    `at_once`: how many async ones run side by side; `values`: of the params of the job."""
    spec = filled_now(dag, values)
    known = handlers_of(handlers) if isinstance(handlers, ModuleType) else _specs(handlers)
    for task in spec.tasks:
        if task.handler not in known:
            raise Invalid(f"task {task.id}: no handler is named {task.handler}: there are {', '.join(known) or 'none'}")
    if at_once < 1:
        raise Invalid(f"at_once = {at_once} lets nothing run: write at least 1")
    run = Inline(spec, known, seed, at_once)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _in_loop(run)
    # Beside a loop that runs already, as in an async test, which waits.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(_in_loop, run).result()


def filled_now(dag: Dag | DagSpec, values: Mapping[str, ParamValue | date]) -> DagSpec:
    """What a schedule would give are samples: the same run is the same whenever it is made."""
    spec = dag.spec(values) if isinstance(dag, Dag) else dag
    return filled(spec, plain(values), SCHEDULE_SAMPLES if spec.schedule else NO_VALUES)


def _specs(handlers: Mapping[str, Callable[..., Any]]) -> dict[str, HandlerSpec]:
    return {
        name: HandlerSpec(name=name, function=function, is_async=inspect.iscoroutinefunction(function))
        for name, function in handlers.items()
    }


def _in_loop(run: "Inline") -> InlineRun:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(run.to_its_end())


class SimulatedClock(selectors.DefaultSelector):
    """Where a loop waits: it returns at once, later."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = START_NS
        self.outside = 0
        """Calls under way whose end is told from outside of the loop."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # One is the loop's own, by which threads wake it.
        if timeout is None or self.outside or len(self.get_map()) > 1:
            began_ns = monotonic_ns()
            found = super().select(timeout)
            self.now_ns += monotonic_ns() - began_ns
            return found
        found = super().select(0)
        if not found and timeout > 0:
            self.now_ns += -int(-timeout * SECOND // 1)
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = SimulatedClock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_ns / SECOND

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Result], *args: *Arguments
    ) -> "asyncio.Future[Result]":
        future = super().run_in_executor(executor, func, *args)
        self.clock.outside += 1
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, _: object) -> None:
        self.clock.outside -= 1


class InlineTime:
    """Of one attempt: all that its worker and its manager have between them."""

    def __init__(self, loop: SimulatedLoop, attempt: HandlerRun, *, is_command: bool) -> None:
        limit_ns, on_timeout = attempt.handed.attempt_ms * MILLISECOND, attempt.handed.on_timeout
        now = loop.clock.now_ns
        self.done = 0
        """How often it has advanced."""
        self.heeds = is_command and on_timeout != "notify"
        """It does something when it is warned."""
        self._loop = loop
        self._attempt = attempt
        self._deadline = Deadline(now + limit_ns, terms_of(limit_ns, on_timeout), began_ns=now)
        self._called: list[asyncio.Task[None]] = []
        self._timer = self._set_timer()

    def ask(self, wanted: TimeWanted) -> None:
        self.done = max(self.done, wanted.done)
        estimate_ns = wanted.estimate_ms * MILLISECOND
        match self._deadline.ask(self._loop.clock.now_ns, self.done, wanted.reason, estimate_ns=estimate_ns):
            case Granted(ns, left):
                told = TimeTold(wanted.fence, wanted.call, ns // MILLISECOND, left)
                self._timer.cancel()
                self._timer = self._set_timer()
            case Denied(why, left):
                told = TimeTold(wanted.fence, wanted.call, 0, left, why)
        self._attempt.time.told(told)

    def end(self) -> None:
        self._timer.cancel()
        for task in self._called:
            task.cancel()

    def _set_timer(self) -> asyncio.TimerHandle:
        return self._loop.call_at(self._deadline.next_at / SECOND, self._due)

    def _due(self) -> None:
        # Seconds as a float may be a little early.
        deadline, attempt = self._deadline, self._attempt
        now = self._loop.clock.now_ns = max(self._loop.clock.now_ns, deadline.next_at)
        if not self.heeds:
            deadline.terms = msgspec.structs.replace(deadline.terms, grace_ns=0)
        turn = deadline.tick(now, self.done)
        if isinstance(turn, Evict | PutAside):
            attempt.stop("timeout")
            return
        if isinstance(turn, Granted):
            attempt.time.told(TimeTold(attempt.fence, 0, turn.ns // MILLISECOND, turn.left))
        elif deadline.next_at > now:
            callbacks = attempt.time.warn()
            if attempt.end_softly is not None:
                attempt.end_softly()
            self._called = call_in_loop(callbacks, attempt.log)
        self._timer = self._set_timer()


class Inline:
    """One run. All that happens to its tasks is decided by their `DagJob`."""

    def __init__(self, spec: DagSpec, handlers: Mapping[str, HandlerSpec], seed: int, at_once: int) -> None:
        self._spec = spec
        self._handlers = handlers
        self._at_once = at_once
        row = JobRow(
            number=1,
            id=JOB,
            name=spec.name,
            state=JobState.SUBMITTED,
            submitted_ms=START_NS // MILLISECOND,
            settings=msgspec.json.encode(spec.settings),
        )
        self._job = DagJob(row, spec.settings, Random(seed), lambda now: now // MILLISECOND)
        self._ready: list[tuple[int, int]] = []
        """Heap of (−priority, index). One that was taken out of the queues is passed over."""
        self._attempts: dict[int, HandlerRun] = {}
        """By index, of those that run."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._times: dict[int, InlineTime] = {}
        """By fence."""
        self._ended: list[tuple[DagTask, TaskResult]] = []
        self._news = asyncio.Event()
        self._outputs: dict[int, bytes] = {}
        self._by_key: dict[str, bytes] = {}
        self._checkpoints: dict[int, bytes] = {}
        self._logs: dict[int, list[str]] = {}
        self._wrote: dict[int, dict[str, str]] = {}
        """By index, of the last attempt: the end of each stream."""
        self._fenced: dict[int, int] = {}
        """Indexes of tasks by the fences of their attempts."""

    async def to_its_end(self) -> InlineRun:
        """Only in a `SimulatedLoop`."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        clock, job = loop.clock, self._job
        job.add(clock.now_ns, self._spec.tasks, checked(self._spec.tasks))
        self._take(job.start(clock.now_ns))
        while not job.is_over:
            self._give_out()
            if job.is_over:  # what was left has the outputs of others with the same keys
                break
            if job.state is JobState.PAUSED and not self._running:  # for a task that took too long: nobody resumes it
                break
            await self._wait(job.next_tick_at)
            ended, self._ended = self._ended, []
            for task, result in ended:
                self._settle(task, result)
            if clock.now_ns >= job.next_tick_at:
                self._take(job.tick(clock.now_ns))
        job.end(clock.now_ns)
        tasks = {task.id: self._told(task) for task in job.tasks}
        took_s = (clock.now_ns - START_NS) / SECOND
        return InlineRun(state=job.state, reason=job.reason, tasks=tasks, took_s=took_s)

    async def _wait(self, until_ns: int) -> None:
        """For the end of an attempt, or until the planner has something to do."""
        clock = self._loop.clock
        self._news.clear()
        if until_ns >= NEVER:
            await self._news.wait()
            return

        def due() -> None:
            # Seconds as a float may be a little early, and the planner would say the same instant again.
            clock.now_ns = max(clock.now_ns, until_ns)
            self._news.set()

        timer = self._loop.call_at(until_ns / SECOND, due)
        await self._news.wait()
        timer.cancel()

    def _take(self, step: DagStep) -> None:
        for task in step.ready:
            heapq.heappush(self._ready, (-task.priority, task.index))
        for task in step.fan_out:
            self._fan_out(task)
        for task in step.recalls:
            attempt = self._attempts.get(task.index)
            if attempt is not None:
                attempt.stop("timeout" if task.recall == "timeout" else "cancelled")

    def _fan_out(self, task: DagTask) -> None:
        """As a manager does, from what its outputs are."""
        job, now = self._job, self._loop.clock.now_ns
        assert task.spec is not None
        over = job.list_of(task, task.spec)
        try:
            if over.source.state is not TaskState.COMPLETED:
                raise Invalid(no_list_text(over.source))
            items = listed(self._output(over.source), over.path, over.source.id)
            job.check_ids(task)
        except Invalid as error:
            self._take(job.unlisted(now, task, str(error)))
            return
        maker = ElementMaker(task.spec, task.index)
        elements = [job.element(task, maker, place, item, over.after) for place, item in enumerate(items)]
        self._take(job.fanned(now, task, elements))

    def _output(self, task: DagTask) -> bytes:
        """Of one that completed."""
        elements = self._job.elements_of(task)
        return (
            self._outputs[task.index]
            if elements is None
            else joined([self._outputs.get(one.index) for one in elements])
        )

    def _give_out(self) -> None:
        job = self._job
        while self._ready and len(self._running) < self._at_once:
            task = job.tasks[heapq.heappop(self._ready)[1]]
            if task.state is not TaskState.READY:
                continue
            now = self._loop.clock.now_ns
            if task.key and task.key in self._by_key:
                self._complete(now, task, self._by_key[task.key])
                continue
            fence = FENCE + 1 + len(self._fenced)
            self._fenced[fence] = task.index
            job.claimed(now, task, WORKER, fence)
            job.began(now, task)
            self._start(task)

    def _start(self, task: DagTask) -> None:
        assert task.spec is not None and task.policy is not None
        handed = HandedTask(
            fence=task.fence,
            job=JOB,
            id=task.id,
            handler=task.handler,
            attempt=task.attempts,
            config=bytes(task.spec.config),
            inputs={other.id: self._output(other) for other in self._job.inputs_of(task)},
            attempt_ms=task.policy.attempt_ns // MILLISECOND,
            key=task.key,
            checkpoint=self._checkpoints.get(task.index, b""),
            item=bytes(task.spec.item) if isinstance(task.spec, ElementSpec) else b"",
            place=task.spec.place if isinstance(task.spec, ElementSpec) else -1,
            on_timeout=task.policy.on_timeout,
        )
        attempt = self._attempts[task.index] = HandlerRun(handed, self)
        running = self._loop.create_task(self._run(task, attempt))
        self._running[task.index] = running
        attempt.cancel = running.cancel

    async def _run(self, task: DagTask, attempt: HandlerRun) -> None:
        """One attempt, from its turn to its result."""
        spec = self._handlers[task.handler]
        time = self._times[attempt.fence] = InlineTime(self._loop, attempt, is_command=spec.function is None)
        try:
            result = await self._result(spec, attempt)
        finally:
            time.end()
            del self._attempts[task.index], self._running[task.index], self._times[attempt.fence]
        self._wrote[task.index] = {tail.stream: tail.content.decode(errors="replace") for tail in result.tails}
        self._ended.append((task, result))
        self._news.set()

    async def _result(self, spec: HandlerSpec, attempt: HandlerRun) -> TaskResult:
        if spec.function is None:
            self._loop.clock.outside += 1
            try:
                return await run_command(attempt, spec.command, spec.env)
            finally:
                self._loop.clock.outside -= 1
        if not spec.is_async:
            return run_plain(attempt, spec.function, "")
        results: list[TaskResult] = []
        await run_async(attempt, spec.function, results.append, "")
        [result] = results
        return result

    def _settle(self, task: DagTask, result: TaskResult) -> None:
        now = self._loop.clock.now_ns
        if result.outcome == "completed":
            self._complete(now, task, result.output)
        else:
            # What it took by the real clock means nothing here.
            self._take(self._job.failed(now, task, msgspec.structs.replace(result, took_us=0)))

    def _complete(self, now: int, task: DagTask, output: bytes) -> None:
        self._outputs[task.index] = output
        if task.key:
            self._by_key[task.key] = output
        self._job.completing(now, task, output, "", 0)
        self._take(self._job.completed(now, task))

    def _told(self, task: DagTask) -> InlineTask:
        output = self._output(task) if task.state is TaskState.COMPLETED else None
        progress = self._checkpoints.get(task.index)
        return InlineTask(
            state=task.state,
            output=None if output is None else msgspec.json.decode(output),
            attempts=task.attempts,
            error="" if task.state is TaskState.COMPLETED else task.error,
            cause="" if task.state is TaskState.COMPLETED else task.cause,
            log=tuple(self._logs.get(task.index, ())),
            progress=None if progress is None else msgspec.json.decode(progress),
            **self._wrote.get(task.index, {}),
        )

    # What attempts say.

    def progress(self, progress: HandlerProgress) -> None:
        self._checkpoints[self._fenced[progress.fence]] = progress.details
        self._times[progress.fence].done = progress.done

    def wants(self, wanted: TimeWanted) -> None:
        self._times[wanted.fence].ask(wanted)

    def heeds(self, fence: int) -> None:
        self._times[fence].heeds = True

    def line(self, line: TaskLine) -> None:
        self._logs.setdefault(self._fenced[line.fence], []).append(line.text)

    def wrote(self, attempt: HandlerRun, *, ends_line: bool) -> None:
        """All of it is in its result."""
