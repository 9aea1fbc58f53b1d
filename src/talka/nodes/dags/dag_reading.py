"""What people ask about dag jobs: what has ended is read from the store, what is under way is looked up in memory too.

Memory is ahead of the store by what is on its way there; an end is not shown before it is kept.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec

from talka.client.dags import DagEnd, DagsPage, Ended
from talka.client.requests import NoSuchAttempt, NoSuchJob, NoSuchTask
from talka.clock import boottime_ns
from talka.control.dags.ended import ended_why
from talka.control.dags.job import DagJob
from talka.control.dags.keeper import DagKeeper
from talka.errors import Invalid, TalkaError, Unavailable
from talka.nodes.dags.dag_views import (
    attempt_view,
    brief_facts,
    dead_letter,
    event_view,
    facts_of,
    last_attempt,
    line_view,
    live_facts,
    notice_view,
    stream_text,
    task_view,
)
from talka.nodes.dags.job_code import JobCode
from talka.nodes.dags.job_ends import JobEnds
from talka.nodes.dags.kept_partitions import KeptPartitions
from talka.nodes.dags.runnable import who_could_run
from talka.store.dags.records import Store, StoreLost
from talka.wire.task_views import (
    AttemptsPage,
    DagFacts,
    DeadLetter,
    DeadLettersPage,
    EventsPage,
    EventView,
    GraphView,
    LogPage,
    OutputView,
    QueuesView,
    RetryPlan,
    RetryRequest,
    RetryTask,
    TasksPage,
    TaskView,
    TaskWants,
    TaskWorkers,
    WhyView,
)
from talka.wire.views import instant_text
from talka.work.dags.dag import KeptSettings
from talka.work.dags.elements import kept_element
from talka.work.dags.records import AttemptRow, FanRow, JobRow, LiveTask, StreamRow, TaskKey, TaskRow
from talka.work.deadlines import told
from talka.work.lifecycle import JobState, TaskState, is_final

GRAPH_LIMIT: Final = 10_000
RETRY_LIMIT: Final = 10_000
"""Tasks that a plan of a retry names."""
WATCH_S: Final = 0.05
NEWEST: Final = 1 << 62
NOTIFIES: Final = b'"notify"'
"""In the settings of jobs whose ends somebody is told of."""


class ReadingLimits(NamedTuple):
    graph: int = GRAPH_LIMIT
    retry: int = RETRY_LIMIT
    watch_s: float = WATCH_S


class DagReading:
    """The half of `client.dags.DagControl` that changes nothing."""

    _code: JobCode

    def __init__(self, kept: KeptPartitions, store: Store, limits: ReadingLimits, datacenter: str = "") -> None:
        self._kept = kept
        self.keepers = kept.keepers
        self.loaded = asyncio.Event()
        """Set once what the store had was read."""
        self.lost: StoreLost | None = None
        """Why this manager has its store no more."""
        self._opened_store = store
        self._reading = limits
        self._datacenter = datacenter
        self._watchers: dict[str, set[asyncio.Future[None]]] = {}
        self._ends = JobEnds()
        self._late: set[asyncio.Task[None]] = set()
        """Look up jobs that may have ended before their end was waited for."""

    @property
    def is_loaded(self) -> bool:
        return self.loaded.is_set()

    def _check_loaded(self) -> Store:
        """Memory has a part of what there is until all was read, and a part would be told for the whole."""
        if self.lost is not None:
            raise type(self.lost)(str(self.lost))
        if not self.is_loaded:
            raise Unavailable("this manager is still reading its dag jobs from the store: try again in a moment")
        return self._opened_store

    @property
    def _store(self) -> Store:
        return self._check_loaded()

    # One job.

    def _job(self, id: str) -> DagJob | None:
        """In memory, of a partition that is kept here. Of others the store tells."""
        keeper = self.keepers.of_job(id)
        return None if keeper is None else keeper.job(id)

    def _submitted_facts(self, told: str | TalkaError, *, is_brief: bool) -> DagFacts | TalkaError:
        """Of a job that was just submitted, told by its id."""
        if isinstance(told, TalkaError):
            return told
        job = self._job(told)
        if job is None:
            return Unavailable("the job is gone already")
        # Where it stands among others is asked for apart: it takes a while.
        return brief_facts(job) if is_brief else live_facts(job, None, self._datacenter)

    def _keeper_of(self, id: str) -> DagKeeper:
        """Of the partition that a job of this id is in."""
        keeper = self.keepers.of_job(id)
        if keeper is None:
            raise Unavailable(f"another manager has the part of the store that job {id} is in: ask it")
        return keeper

    def _is_draft(self, id: str) -> bool:
        keeper = self.keepers.of_job(id)
        return keeper is not None and id in keeper.shelf.drafts

    def _live_facts(self, id: str) -> DagFacts | None:
        job = self._job(id)
        if job is None:
            return None
        is_waiting = job.row.state is not JobState.SUBMITTED and not job.is_running
        return live_facts(job, self._kept.turns.dispatcher.position(job) if is_waiting else None, self._datacenter)

    async def _row(self, id: str) -> JobRow:
        row = await self._store.job(id)
        if row is None or row.state is JobState.SUBMITTED:  # a draft
            raise NoSuchJob.named(id)
        return row

    async def has_dag(self, id: str) -> bool:
        self._check_loaded()
        if self._is_draft(id):
            return False
        if self._job(id) is not None:
            return True
        row = await self._store.job(id)
        return row is not None and row.state is not JobState.SUBMITTED

    async def dag(self, id: str) -> DagFacts:
        self._check_loaded()
        if self._is_draft(id):
            raise NoSuchJob.named(id)
        live = self._live_facts(id)
        if live is not None:
            return live
        row = await self._row(id)
        facts = facts_of(row, row.counts, self._datacenter)
        if NOTIFIES not in row.settings:
            return facts
        notices = [notice_view(notice) for notice in await self._store.notices(row.number)]
        return msgspec.structs.replace(facts, notifications=notices)

    async def dags(self, state: str, cursor: str, limit: int) -> DagsPage:
        before = _number(cursor) if cursor else NEWEST
        rows = await self._store.jobs((state,) if state else (), before, limit + 1)
        shown = [row for row in rows[:limit] if row.state is not JobState.SUBMITTED]
        items = [self._live_facts(row.id) or facts_of(row, row.counts, self._datacenter) for row in shown]
        following = str(rows[limit - 1].number) if len(rows) > limit else ""
        return DagsPage(items, following, [str(row.number + 1) for row in shown])

    async def watch_dag(self, id: str) -> AsyncGenerator[DagFacts, None]:
        told: DagFacts | None = None
        while True:
            facts = await self.dag(id)
            if facts != told:
                told = facts
                yield facts
            if is_final(facts.state):
                return
            watchers = self._watchers.setdefault(id, set())
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            watchers.add(ended)
            try:
                await asyncio.wait({ended}, timeout=self._reading.watch_s)
            finally:
                watchers.discard(ended)
                if not watchers:
                    self._watchers.pop(id, None)

    def at_end(self, id: str, told: Ended) -> Callable[[], None]:
        give_up = self._ends.wait(id, told)
        if self._job(id) is None:
            late = asyncio.create_task(self._tell_late(id))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
        return give_up

    async def _tell_late(self, id: str) -> None:
        """It is not in memory: it has ended, or is not kept here."""
        try:
            self._keeper_of(id)
            facts = await self.dag(id)
        except TalkaError as error:
            self._ends.tell(id, error)
            return
        if is_final(facts.state):  # else it runs again
            self._ends.tell(id, DagEnd(facts.state, facts.reason, facts.counts))

    def _wake_watchers(self, id: str) -> None:
        """A job has ended: nobody need wait for the next look."""
        for watcher in self._watchers.pop(id, ()):
            if not watcher.done():
                watcher.set_result(None)

    async def dag_events(self, id: str, cursor: str, limit: int) -> EventsPage:
        row = await self._row(id)
        after = _number(cursor) if cursor else 0
        events = await self._store.events(row.number, after, limit + 1)
        named = await self._store.tasks_at([(row.number, event.index) for event in events if event.index >= 0])
        names = {task.index: task.id for task in named}
        items = [event_view(event, names.get(event.index, "")) for event in events[:limit]]
        if not after:
            items.insert(0, EventView(instant_text(row.submitted_ms), "started"))
        if row.ended_ms and len(events) <= limit:
            items.append(EventView(instant_text(row.ended_ms), "ended", "", row.reason or f"It is {row.state}."))
        return EventsPage(items, str(events[limit - 1].number) if len(events) > limit else "")

    async def dag_graph(self, id: str) -> GraphView:
        row = await self._row(id)
        rows = await self._store.tasks(row.number, (), -1, self._reading.graph)
        tasks = await self._views(id, [one for one in rows if kept_element(one.spec) is None])
        edges = [(before, task.id) for task in tasks for before in task.depends_on]
        elements = sum([fan.count for fan in await self._store.fans(row.number)])
        return GraphView(tasks, edges, max(0, row.tasks - elements - len(tasks)))

    # Tasks.

    async def dag_tasks(self, id: str, state: str, cursor: str, limit: int) -> TasksPage:
        row = await self._row(id)
        after = _number(cursor) if cursor else -1
        job = self._job(id)
        if job is not None and state in (TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED, TaskState.RUNNING):
            # The store does not tell those apart.
            keys = [(row.number, task.index) for task in job.tasks[after + 1 :] if task.state == state][: limit + 1]
            rows = await self._store.tasks_at(keys)
        else:
            states = (state,) if state else ()
            rows = await self._store.tasks(row.number, states, after, limit + 1)
        views = await self._views(id, rows[:limit])
        return TasksPage(views, str(rows[limit - 1].index) if len(rows) > limit else "")

    async def dag_task(self, id: str, task: str) -> TaskView:
        _, found = await self._task(id, task)
        (view,) = await self._views(id, [found])
        return view

    async def _task(self, id: str, task: str) -> tuple[JobRow, TaskRow]:
        row = await self._row(id)
        found = await self._store.task(row.number, task)
        if found is None:
            raise NoSuchTask.named(id, task)
        return row, found

    async def _views(self, id: str, rows: Sequence[TaskRow]) -> list[TaskView]:
        outputs = [await self._output(row) for row in rows]
        views = await asyncio.to_thread(lambda: list(map(task_view, rows, outputs)))  # there may be thousands
        views = [
            await self._fanned(id, row, view) if view.for_each else view for row, view in zip(rows, views, strict=True)
        ]
        job = self._job(id)
        if job is None:
            return views
        shown: list[TaskView] = []
        for row, view in zip(rows, views, strict=True):
            live = job.tasks[row.index].state
            if not is_final(row.state) and not is_final(live):
                view = msgspec.structs.replace(view, state=live)
                if (kept := job.time_of(job.tasks[row.index])) is not None:
                    view = msgspec.structs.replace(view, more_time=told(kept.record.extensions))
            shown.append(view)
        return shown

    async def _fanned(self, id: str, row: TaskRow, view: TaskView) -> TaskView:
        """Of a task that is fanned out: what it depends on, and how its elements stand."""
        named = {one.index: one.id for one in await self._store.tasks_at([(row.job, row.depends_on[-1])])}
        before = dict.fromkeys([*view.depends_on, *named.values()])
        job = self._job(id)
        if job is not None:
            elements = job.elements_by_state(row.index)
        else:
            fans = [fan for fan in await self._store.fans(row.job) if fan.index == row.index]
            elements = await self._store.counts_of(row.job, fans[0]) if fans else {}
        return msgspec.structs.replace(view, depends_on=list(before), elements=elements)

    async def _output(self, row: TaskRow) -> bytes:
        return (await self._store.blob(row.blob) or b"") if row.blob else row.output

    async def why(self, id: str, task: str) -> WhyView:
        row, found = await self._task(id, task)
        if is_final(found.state):
            job = self._job(id)
            return ended_why(found, row.reason if job is None else job.reason)
        return self._keeper_of(id).why(boottime_ns(), id, task, found.index, found.state)

    async def retry_plan(self, id: str, request: RetryRequest) -> RetryPlan:
        self._check_loaded()
        job = self._job(id)
        if job is None or self._is_draft(id):
            row = await self._row(id)
            self._code.check_kept(row)
            live = await self._store.live_tasks(row.number, -1, row.tasks + 1)
            job = ended_job(row, live, await self._store.fans(row.number))
        limit = self._reading.retry
        tasks = job.again(request.tasks, request.config)
        kept = {task.fan for task in tasks}  # else their elements make room for others
        shown = [
            RetryTask(task.id, task.state, 0 if task.index in kept else len(job.elements_of(task) or ()))
            for task in tasks[:limit]
        ]
        return RetryPlan(shown, max(0, len(tasks) - limit))

    async def task_logs(self, id: str, task: str, cursor: str, limit: int) -> LogPage:
        row, found = await self._task(id, task)
        after = _number(cursor) if cursor else 0
        lines = await self._store.logs(row.number, found.index, after, limit)
        is_over = is_final(row.state) and self._job(id) is None
        last = str(lines[-1].number) if lines else cursor or "0"
        next = "" if is_over and len(lines) < limit else last
        return LogPage([line_view(line) for line in lines], next, row.output_gone)

    async def task_attempts(self, id: str, task: str, cursor: str, limit: int) -> AttemptsPage:
        row, found = await self._task(id, task)
        after = _number(cursor) if cursor else 0
        rows = [one for one in await self._attempts_of(row, found) if one.fence > after]
        streams: dict[int, list[StreamRow]] = {}
        for stream in await self._store.stream_sizes(row.number, found.index):
            if stream.written:
                streams.setdefault(stream.fence, []).append(stream)
        times = {one.fence: one for one in await self._store.times(row.number, found.index)}
        items = [attempt_view(one, streams.get(one.fence, ()), times.get(one.fence)) for one in rows[:limit]]
        return AttemptsPage(items, str(rows[limit - 1].fence) if len(rows) > limit else "")

    async def _attempts_of(self, job: JobRow, task: TaskRow) -> list[AttemptRow]:
        rows = await self._store.attempts([(job.number, task.index)])
        last = last_attempt(task)
        if last is not None and all(row.fence != last.fence for row in rows):
            rows = [*rows, last]
        return rows

    async def task_output(self, id: str, task: str, attempt: int, stream: str) -> OutputView:
        row, found = await self._task(id, task)
        sizes = await self._store.stream_sizes(row.number, found.index)
        wanted = [one for one in sizes if attempt in (0, one.attempt) and one.written]
        if not wanted:
            known = await self._attempts_of(row, found) if attempt else []
            if attempt and all(one.attempt != attempt for one in known):
                raise NoSuchAttempt.named(id, task, attempt)
            return OutputView(attempt, is_gone=row.output_gone)
        last = wanted[-1]
        rows = await self._store.streams(row.number, found.index, last.fence)
        is_over = found.state is not TaskState.ASSIGNED or last.fence != found.fence
        shown = [one for one in rows if one.written and stream in ("", one.stream)]
        return OutputView(last.attempt, [stream_text(one) for one in shown], is_over)

    # All jobs together.

    async def who_could_run(self, wants: Sequence[TaskWants]) -> list[TaskWorkers]:
        self._check_loaded()
        dispatcher, now = self._kept.turns.dispatcher, boottime_ns()
        # A worker obeys in all partitions that are kept here, or is about to.
        partition = next(iter(self.keepers)).partition.number
        return [who_could_run(dispatcher, now, one, partition) for one in wants]

    async def queues(self) -> QueuesView:
        self._check_loaded()
        return self._kept.turns.queues(boottime_ns())

    async def dead_letters(self, cursor: str, limit: int) -> DeadLettersPage:
        after = (0, -1)
        if cursor:
            job, _, index = cursor.partition(".")
            after = (_number(job), _number(index))
        rows, letters = await self._dead(after, limit + 1)
        following = f"{rows[limit - 1].job}.{rows[limit - 1].index}" if len(rows) > limit else ""
        return DeadLettersPage(letters[:limit], following)

    async def _dead(self, after: TaskKey, limit: int) -> tuple[list[TaskRow], list[DeadLetter]]:
        rows = await self._store.dead_letters(after, limit)
        attempts = await self._store.attempts([(row.job, row.index) for row in rows])
        names: dict[int, str] = {}
        for number in dict.fromkeys([row.job for row in rows]):
            names |= {job.number: job.id for job in await self._store.jobs((), number + 1, 1)}
        tried: dict[TaskKey, list[AttemptRow]] = {}
        for attempt in attempts:
            tried.setdefault((attempt.job, attempt.index), []).append(attempt)
        times = {one.fence: one for row in rows for one in await self._store.times(row.job, row.index)}
        letters = [dead_letter(names.get(row.job, ""), row, tried.get((row.job, row.index), []), times) for row in rows]
        return rows, letters


def ended_job(row: JobRow, live: Sequence[LiveTask], fans: Sequence[FanRow]) -> DagJob:
    """As the store has it, to be looked at: nothing runs in it."""
    job = DagJob(row, msgspec.json.decode(row.settings, type=KeptSettings), Random(0), lambda now: 0)
    job.restore(0, live)
    job.restore_fans(fans)
    job.restored(0)
    return job


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Invalid("the cursor is not known: use `next` of the page before")
    return int(text)
