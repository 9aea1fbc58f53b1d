"""Dag jobs of the tests' own making: nothing runs, everything is remembered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from talka.client.dags import DagEnd, DagsPage, Ended, Submitted
from talka.client.requests import Conflict, NoSuchAttempt, NoSuchJob, NoSuchSchedule, NoSuchTask
from talka.errors import TalkaError
from talka.wire.task_views import (
    AttemptsPage,
    AttemptView,
    BackfillRequest,
    BackfillRun,
    BackfillView,
    DagFacts,
    DeadLetter,
    DeadLettersPage,
    EventsPage,
    EventView,
    GraphView,
    LimitView,
    LogLineView,
    LogPage,
    OutputView,
    QueuesView,
    QueueView,
    Reason,
    RetryPlan,
    RetryRequest,
    RetryTask,
    ScheduleView,
    SkipRequest,
    StreamText,
    StreamView,
    TasksPage,
    TaskView,
    TaskWants,
    TaskWorkers,
    WhyView,
)
from talka.work.dags.dag import DagHead, DagSpec, TaskSpec, checked
from talka.work.lifecycle import JobState, TaskState

NULL = msgspec.Raw(b"null")


class FakeDag:
    def __init__(self, facts: DagFacts, tasks: list[TaskSpec]) -> None:
        self.facts = facts
        self.tasks = tasks

    def move(self, state: JobState, reason: str = "") -> DagFacts:
        self.facts = msgspec.structs.replace(self.facts, state=state, reason=reason)
        return self.facts


class Draft:
    def __init__(self, head: DagHead, key: str, by: str) -> None:
        self.head, self.key, self.by = head, key, by
        self.tasks: list[TaskSpec] = []
        self.known: dict[str, int] = {}
        self.parts: list[int] = []


class FakeDags:
    """Implements `DagControl`. What was asked is in `asked`; an error in `errors` is raised by the call of that
    name."""

    def __init__(self) -> None:
        self.jobs: dict[str, FakeDag] = {}
        self.keys: dict[str, tuple[DagSpec, str]] = {}
        self.drafts: dict[str, Draft] = {}
        self.dropped: list[str] = []
        self.plans: dict[str, ScheduleView] = {}
        self.scheduled: dict[str, DagSpec] = {}
        self.errors: dict[str, Exception] = {}
        self.asked: list[tuple[str, ...]] = []
        self.hold: asyncio.Event | None = None
        """Calls wait for it, when there is one."""
        self.held: list[tuple[DagSpec, str, str, Submitted]] = []
        self.holds_submits = False
        self.is_held = asyncio.Event()
        self.updates: dict[str, asyncio.Queue[DagFacts]] = {}
        self.watches = 0
        """Under way."""
        self.ends: dict[str, list[Ended]] = {}
        """Who waits for the end of which job."""
        self.changed = asyncio.Event()

    async def _note(self, *asked: str) -> None:
        self.asked.append(asked)
        self.changed.set()
        if self.hold is not None:
            await self.hold.wait()
        if asked[0] in self.errors:
            raise self.errors[asked[0]]

    def add(self, id: str = "dag1", tasks: Sequence[TaskSpec] = (), state: JobState = JobState.RUNNING) -> FakeDag:
        job = FakeDag(DagFacts(id, "nightly", state, tasks=len(tasks)), list(tasks))
        self.jobs[id] = job
        return job

    def _job(self, id: str) -> FakeDag:
        if id not in self.jobs:
            raise NoSuchJob.named(id)
        return self.jobs[id]

    def _task(self, id: str, task: str) -> TaskSpec:
        for one in self._job(id).tasks:
            if one.id == task:
                return one
        raise NoSuchTask.named(id, task)

    def _accept(self, spec: DagSpec, key: str, by: str) -> DagFacts:
        checked(spec.tasks)
        if key in self.keys:
            known, id = self.keys[key]
            if msgspec.json.encode(known) != msgspec.json.encode(spec):
                raise Conflict(f"the key {key} was used for another job")
            return self._job(id).facts
        id = f"dag{len(self.jobs) + 1}"
        facts = DagFacts(
            id, spec.name, JobState.QUEUED, submitted_by=by, submitted_at=f"2026-01-01T00:00:{len(self.jobs):02d}.000Z"
        )
        facts = msgspec.structs.replace(facts, tasks=len(spec.tasks), counts={"ready": len(spec.tasks)})
        self.jobs[id] = FakeDag(facts, list(spec.tasks))
        self.changed.set()
        if key:
            self.keys[key] = (spec, id)
        return facts

    # -- the port

    async def submit_dag(self, spec: DagSpec, key: str, by: str) -> DagFacts:
        await self._note("submit_dag", spec.name, key, by)
        return self._accept(spec, key, by)

    def submit_soon(self, spec: DagSpec, key: str, by: str, done: Submitted, *, is_brief: bool = False) -> None:
        if self.holds_submits:
            self.held.append((spec, key, by, done))
            self.is_held.set()
            return
        self._answer(spec, key, by, done)

    def _answer(self, spec: DagSpec, key: str, by: str, done: Submitted) -> None:
        try:
            if "submit_soon" in self.errors:
                raise self.errors["submit_soon"]
            done(self._accept(spec, key, by))
        except TalkaError as error:
            done(error)

    async def are_held(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.held) < count:
                self.is_held.clear()
                await self.is_held.wait()

    def let_go(self, count: int, *, last_first: bool = False) -> None:
        some, self.held = self.held[:count], self.held[count:]
        for one in reversed(some) if last_first else some:
            self._answer(*one)

    async def begin_dag(self, head: DagHead, key: str, by: str) -> str:
        await self._note("begin_dag", head.name, key, by)
        draft = f"draft{len(self.drafts) + 1}"
        self.drafts[draft] = Draft(head, key, by)
        return draft

    async def add_tasks(self, draft: str, tasks: Sequence[TaskSpec]) -> int:
        await self._note("add_tasks", draft, str(len(tasks)))
        found = self.drafts[draft]
        checked(tasks, found.known, forward=False)
        for task in tasks:
            found.known[task.id] = len(found.known)
        found.tasks += tasks
        found.parts.append(len(tasks))
        return len(found.tasks)

    async def end_dag(self, draft: str) -> DagFacts:
        await self._note("end_dag", draft)
        found = self.drafts[draft]
        head = found.head
        spec = DagSpec(
            name=head.name, tasks=tuple(found.tasks), settings=head.settings, params=head.params, values=head.values
        )
        return self._accept(spec, found.key, found.by)

    async def drop_dag(self, draft: str) -> None:
        await self._note("drop_dag", draft)
        self.drafts.pop(draft, None)
        self.dropped.append(draft)

    async def dags(self, state: str, cursor: str, limit: int) -> DagsPage:
        await self._note("dags", state, cursor, str(limit))
        facts = [job.facts for job in reversed(self.jobs.values()) if state in ("", job.facts.state)]
        start = int(cursor) if cursor.isdecimal() else 0
        items = facts[start : start + limit]
        cursors = [str(start + number) for number in range(len(items))]
        return DagsPage(items, str(start + limit) if start + limit < len(facts) else "", cursors)

    async def has_dag(self, id: str) -> bool:
        try:
            self._job(id)
        except NoSuchJob:
            return False
        return True

    async def dag(self, id: str) -> DagFacts:
        await self._note("dag", id)
        return self._job(id).facts

    async def watch_dag(self, id: str) -> AsyncIterator[DagFacts]:
        await self._note("watch_dag", id)
        yield self._job(id).facts
        updates = self.updates.setdefault(id, asyncio.Queue())
        self.watches += 1
        self.changed.set()
        try:
            while True:
                yield await updates.get()
        finally:
            self.watches -= 1
            self.changed.set()

    def at_end(self, id: str, told: Ended) -> Callable[[], None]:
        self.ends.setdefault(id, []).append(told)
        self.changed.set()

        def give_up() -> None:
            self.ends[id].remove(told)
            self.changed.set()

        return give_up

    def end(self, id: str, end: DagEnd | TalkaError) -> None:
        for told in self.ends[id]:
            told(end)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    def tell(self, id: str, state: JobState) -> None:
        self.updates.setdefault(id, asyncio.Queue()).put_nowait(self._job(id).move(state))

    async def dag_tasks(self, id: str, state: str, cursor: str, limit: int) -> TasksPage:
        await self._note("dag_tasks", id, state, cursor, str(limit))
        tasks = self._job(id).tasks
        start = int(cursor) if cursor.isdecimal() else 0
        items = [TaskView(task.id, TaskState.READY, task.handler) for task in tasks[start : start + limit]]
        return TasksPage(items, str(start + limit) if start + limit < len(tasks) else "")

    async def dag_task(self, id: str, task: str) -> TaskView:
        await self._note("dag_task", id, task)
        spec = self._task(id, task)
        return TaskView(spec.id, TaskState.COMPLETED, spec.handler, 1, msgspec.Raw(b'{"rows":3}'))

    async def dag_events(self, id: str, cursor: str, limit: int) -> EventsPage:
        await self._note("dag_events", id, cursor, str(limit))
        self._job(id)
        return EventsPage([EventView("2026-01-01T00:00:00.000Z", "submitted", number=1)])

    async def dag_graph(self, id: str) -> GraphView:
        await self._note("dag_graph", id)
        tasks = self._job(id).tasks
        edges = [(before, task.id) for task in tasks for before in task.depends_on]
        return GraphView([TaskView(task.id, TaskState.READY) for task in tasks], edges)

    async def why(self, id: str, task: str) -> WhyView:
        await self._note("why", id, task)
        self._task(id, task)
        return WhyView(task, TaskState.READY, "no worker has its handler", [Reason("w1", "handler", "it has none")])

    async def task_attempts(self, id: str, task: str, cursor: str, limit: int) -> AttemptsPage:
        await self._note("task_attempts", id, task, cursor, str(limit))
        return AttemptsPage(
            [AttemptView(1, "w1", "", "", "OSError", outcome="failed", streams=[StreamView("stderr", 9, 4)])]
        )

    async def task_output(self, id: str, task: str, attempt: int, stream: str) -> OutputView:
        await self._note("task_output", id, task, str(attempt), stream)
        if attempt > 1:
            raise NoSuchAttempt.named(id, task, attempt)
        return OutputView(1, [StreamText("stderr", 9, 4, "oops")])

    async def task_logs(self, id: str, task: str, cursor: str, limit: int) -> LogPage:
        await self._note("task_logs", id, task, cursor, str(limit))
        self._task(id, task)
        return LogPage([LogLineView("2026-01-01T00:00:00.000Z", 1, "began")], "1")

    async def cancel_dag(self, id: str, reason: str) -> DagFacts:
        await self._note("cancel_dag", id, reason)
        return self._job(id).move(JobState.CANCELLING, reason)

    async def pause_dag(self, id: str) -> DagFacts:
        await self._note("pause_dag", id)
        return self._job(id).move(JobState.PAUSED)

    async def resume_dag(self, id: str) -> DagFacts:
        await self._note("resume_dag", id)
        return self._job(id).move(JobState.RUNNING)

    async def retry_dag(self, id: str, request: RetryRequest) -> DagFacts:
        await self._note(
            "retry_dag", id, *request.tasks, *(f"{k}={bytes(v).decode()}" for k, v in request.config.items())
        )
        return self._job(id).move(JobState.RUNNING)

    async def retry_plan(self, id: str, request: RetryRequest) -> RetryPlan:
        await self._note("retry_plan", id, *request.tasks)
        self._job(id)
        return RetryPlan([RetryTask("a", TaskState.COMPLETED)])

    async def skip_dag(self, id: str, request: SkipRequest, by: str = "") -> DagFacts:
        await self._note("skip_dag", id, *request.tasks, *([by] if by else []))
        return self._job(id).facts

    async def who_could_run(self, wants: Sequence[TaskWants]) -> list[TaskWorkers]:
        await self._note("who_could_run", *[one.handler for one in wants])
        return [TaskWorkers("", 1, [Reason("w1", "", "it can run here")]) for _ in wants]

    async def queues(self) -> QueuesView:
        await self._note("queues")
        return QueuesView([QueueView("etl", 3, 1, 2, 0.5)], [LimitView("db", 1, 2)])

    async def dead_letters(self, cursor: str, limit: int) -> DeadLettersPage:
        await self._note("dead_letters", cursor, str(limit))
        attempt = AttemptView(1, "w1#1", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z", "exception", "no")
        letter = DeadLetter("dag1/a", "dag1", "a", "etl", "exception", "no", "2026-01-01T00:00:01.000Z", [attempt])
        return DeadLettersPage([letter])

    async def replay(self, id: str, config: msgspec.Raw | None) -> DagFacts:
        await self._note("replay", id, "" if config is None else bytes(config).decode())
        job, _, task = id.partition("/")
        self._task(job, task)
        return self._job(job).facts

    async def schedules(self) -> list[ScheduleView]:
        await self._note("schedules")
        return list(self.plans.values())

    async def put_schedule(self, spec: DagSpec, by: str) -> ScheduleView:
        await self._note("put_schedule", spec.name, by)
        view = ScheduleView(spec.name, spec.schedule, "2026-01-01T03:00:00.000Z")
        self.plans[spec.name], self.scheduled[spec.name] = view, spec
        return view

    async def drop_schedule(self, name: str) -> None:
        await self._note("drop_schedule", name)
        if name not in self.plans:
            raise NoSuchSchedule.named(name)
        del self.plans[name]

    def _plan(self, name: str, **values: Any) -> ScheduleView:
        if name not in self.plans:
            raise NoSuchSchedule.named(name)
        self.plans[name] = msgspec.structs.replace(self.plans[name], **values)
        return self.plans[name]

    async def pause_schedule(self, name: str) -> ScheduleView:
        await self._note("pause_schedule", name)
        return self._plan(name, paused=True)

    async def resume_schedule(self, name: str) -> ScheduleView:
        await self._note("resume_schedule", name)
        return self._plan(name, paused=False)

    async def run_schedule(self, name: str, key: str, by: str) -> DagFacts:
        await self._note("run_schedule", name, by)
        self._plan(name)
        return self.add(f"run{len(self.jobs)}").facts

    async def backfill(self, name: str, request: BackfillRequest, by: str) -> BackfillView:
        await self._note("backfill", name, request.begin, request.end, str(request.dry_run), by)
        self._plan(name)
        return BackfillView(name, [BackfillRun("2026-11-01T03:00:00+01:00", "2026-11-01T02:00:00.000Z", "due")])
