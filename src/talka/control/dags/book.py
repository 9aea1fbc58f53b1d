"""The tasks of one dag job in memory: their states, how many there are of each, and who waits for whom.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

from talka.control.dags.graph import NO_DEPENDENTS, Dependents
from talka.control.dags.handler_counts import HandlerCounts
from talka.control.dags.kept_output import KeptOutput
from talka.control.dags.kept_times import KeptTimes
from talka.control.tasks.attempt_time import KeptTime
from talka.control.tasks.retries import Terms
from talka.control.tasks.task import DagTask, Needs, TaskOwner, packed, unpacked
from talka.errors import Invalid
from talka.units import MILLISECOND
from talka.wire.output_tail import StreamTail
from talka.wire.tasks import MoreTime, TaskResult, TimeAnswer
from talka.work.dags.dag import DagSettings, TaskSpec, bundle_of
from talka.work.dags.elements import encode_spec
from talka.work.dags.records import TASK_STATES, Change, JobRow, LiveTask, Reset, StreamRow, TaskRow, TimeRow
from talka.work.lifecycle import JobState, TaskState, begin_again, is_final, move

STOPPING: Final = (JobState.CANCELLING, JobState.COMPLETING)
ENDED: Final = frozenset(state for state in TaskState if is_final(state))
FAILED: Final = (TaskState.DEAD, TaskState.FAILED, TaskState.TIMEOUT)

_PENDING, _READY, _ASSIGNED, _RUNNING = TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED, TaskState.RUNNING
_COMPLETED = TaskState.COMPLETED

OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""Of what all attempts of a job write; half of it is for those that did not complete their tasks."""
NONE_YET: Final = dict.fromkeys(TaskState, 0)


class _Nobody:
    """The job of what is of no job any more. Nobody asks it anything."""


GONE: Final = DagTask(cast(TaskOwner, _Nobody()), -1, "", _COMPLETED, "", 0, b"", is_settled=True)
"""At the index of an element that went: indexes are not given twice."""


class DagBook(ABC):
    """What there is. Which tasks are fanned out is in `FanBook`; what happens is decided by `DagJob`, the only kind of
    book that there are any of."""

    def __init__(
        self,
        row: JobRow,
        settings: DagSettings,
        clock: Callable[[int], int],
        partition: int = 0,
        output_bytes: int = OUTPUT_BYTES,
        handlers: HandlerCounts | None = None,
    ) -> None:
        """`clock` tells the wall clock's milliseconds at an instant of the local one. `output_bytes`: so much of what
        attempts write is kept. `handlers`: where its tasks are counted beside those of other jobs."""
        self.row = row
        """As it was submitted or read. What has changed since is in `state` and `reason`."""
        self.settings = settings
        self.partition = partition
        self.bundle = bundle_of(settings)
        self.state = row.state
        self.reason = row.reason
        self.tasks: list[DagTask] = []
        """By their index."""
        self._clock = clock
        self._terms = Terms(settings, partition, row.id)
        self._counts = NONE_YET.copy()
        self._handlers = HandlerCounts() if handlers is None else handlers
        self._delayed: dict[int, None] = {}
        """Indexes of pending tasks that wait for their time alone."""
        self._kept = KeptOutput(row.number, row.output_bytes, output_bytes)
        self._times = KeptTimes(row.number)
        self._open = 0
        """Tasks that have not ended, or whose end is not kept yet."""
        self._index_by_id: dict[str, int] | None = None
        self._dependents = NO_DEPENDENTS
        self.first_failed: DagTask | None = None

    # -- tasks come in

    def add(self, now: int, specs: Sequence[TaskSpec], depends_on: Sequence[tuple[int, ...]]) -> list[DagTask]:
        """New tasks with the indexes of what they depend on, before the job is started."""
        known = self._index_by_id
        added: list[DagTask] = []
        learn = self._terms.learn
        for index, (spec, before) in enumerate(zip(specs, depends_on, strict=True), len(self.tasks)):
            task = DagTask(self, index, spec.id, _PENDING, spec.handler, spec.priority, packed(before))
            task.waits_for = len(before)
            task.spec = spec
            learn(task, spec)
            self._handlers.row(task.handler).states[_PENDING] += 1
            added.append(task)
            if known is not None:
                known[spec.id] = index
        self.tasks += added
        self._counts[_PENDING] += len(added)
        self._open += len(added)
        return added

    def rows(self, tasks: Iterable[DagTask]) -> list[TaskRow]:
        """Of tasks that were just added and have their specs."""
        number = self.row.number
        return [
            TaskRow(
                job=number,
                index=task.index,
                id=task.id,
                state=_PENDING,
                spec=encode_spec(task.spec),
                depends_on=unpacked(task.after),
            )
            for task in tasks
            if task.spec is not None
        ]

    def restore(self, now: int, live: Sequence[LiveTask], streams: Iterable[StreamRow] = ()) -> None:
        """Tasks as the store has them, in order of their index, with what is kept of what their attempts wrote; in as
        many pages as there are. Then `restored`."""
        tasks, counts, wall_ms = self.tasks, self._counts, self._clock(now)
        handlers: dict[str, str] = {}
        for one in live:
            state = TASK_STATES[one.state]
            if state is _READY:  # of memory alone: whatever wrote it, it has to become so again
                state = _PENDING
            handler = handlers.setdefault(one.handler, one.handler)
            task = DagTask(self, one.index, one.id, state, handler, one.priority, one.depends_on)
            counts[state] += 1
            if state not in ENDED:
                self._handlers.row(handler).states[state] += 1
            task.attempts, task.failures, task.deaths = one.attempts, one.failures, one.deaths
            if state in ENDED:
                task.is_settled = True
                task.failures += state is TaskState.DEAD  # the attempt after which it was given up
            elif one.attempts:
                task.fence, task.alone = one.fence, one.deaths > 0
            if one.ready_ms:
                task.ready_at = max(1, now + (one.ready_ms - wall_ms) * MILLISECOND)
            if one.error:
                task.cause, task.error = one.cause, one.error
            if state is _ASSIGNED or state is _RUNNING:
                task.worker = one.worker
                task.started_at = max(1, now + (one.started_ms - wall_ms) * MILLISECOND)
            while len(tasks) < one.index:
                tasks.append(GONE)
            tasks.append(task)
        self._kept.restore(streams, tasks)

    def restore_times(self, rows: Iterable[TimeRow]) -> None:
        """After all tasks were restored."""
        self._times.restore(rows, self.tasks)

    def _connect(self) -> None:
        """All tasks are there. Elements come after all others, and it is known who waits for them."""
        self._index_by_id = None
        if any([task.after for task in self.tasks]):
            own = next((task.index for task in self.tasks if task.fan >= 0), len(self.tasks))
            self._dependents = Dependents(self.tasks[:own])

    def _connect_restored(self) -> None:
        """As `_connect`, when they are not new."""
        if self.row.tasks and self.row.tasks != self.size:
            raise Invalid(f"tasks of job {self.row.id} are missing in the store: look at it with talka store check")
        self._connect()
        self._open = sum([count for state, count in self._counts.items() if state not in ENDED])
        self._find_failed()

    def _find_failed(self) -> None:
        self.first_failed = None
        if any([self._counts[state] for state in FAILED]):
            self.first_failed = next(task for task in self.tasks if task.state in FAILED)

    def let_go(self) -> None:
        """Nobody looks at it any more. Job and tasks name each other: without this only the collector would find them,
        after thousands of others like them."""
        self.uncount()
        self.tasks.clear()

    def uncount(self) -> None:
        """Another process looks after it, or nobody: its tasks are none of those that wait and run here."""
        if self._open:
            for task in self.tasks:
                self._uncount_one(task)
        self._handlers = HandlerCounts()

    def _uncount_one(self, task: DagTask) -> None:
        if task is not GONE and task.state not in ENDED:
            self._delays_no_more(task)
            self._handlers.row(task.handler).states[task.state] -= 1

    # -- what people may know

    @property
    def is_over(self) -> bool:
        """Nothing is left to be done, and what must be durable before its end is."""
        return not self._open and self.state is not JobState.SUBMITTED

    @property
    def is_running(self) -> bool:
        """Something of it was given out."""
        return bool(self._counts[_ASSIGNED] or self._counts[_RUNNING])

    @property
    def has_ended(self) -> bool:
        return is_final(self.state)

    @property
    def size(self) -> int:
        """How many tasks it has."""
        return sum(self._counts.values())

    def count(self, state: TaskState) -> int:
        return self._counts[state]

    def counts(self) -> dict[str, int]:
        """Tasks by state, where there are any."""
        return {str(state): count for state, count in self._counts.items() if count}

    def index_by_id(self) -> Mapping[str, int]:
        """Kept until the job is started. It is large."""
        if self._index_by_id is None:
            self._index_by_id = {task.id: task.index for task in self.tasks}
        return self._index_by_id

    def given_out(self) -> list[DagTask]:
        return [task for task in self.tasks if task.state is _ASSIGNED or task.state is _RUNNING]

    def needs_of(self, handler: str) -> Needs:
        return self._terms.needs_of(handler)

    def inputs_of(self, task: DagTask) -> list[DagTask]:
        tasks = self.tasks
        return [tasks[index] for index in unpacked(task.after) if tasks[index].state is _COMPLETED]

    def dependents_of(self, index: int) -> Sequence[int]:
        fan = self.tasks[index].fan
        return self._dependents.of(index) if fan < 0 else (fan,)

    @abstractmethod
    def elements_of(self, task: DagTask) -> Sequence[DagTask] | None:
        """In order; None: it is not fanned out."""

    # -- changes

    def _move(self, task: DagTask, state: TaskState) -> None:
        counts, own = self._counts, self._handlers.row(task.handler).states
        if self._delayed:
            self._delays_no_more(task)
        former = task.state
        counts[former] -= 1
        counts[state] += 1
        own[former] -= 1
        own[state] += 1
        task.state = move(former, state)

    def _delays(self, task: DagTask) -> None:
        """A pending one waits for its time."""
        if task.index not in self._delayed:
            self._delayed[task.index] = None
            self._handlers.row(task.handler).delayed += 1

    def _delays_no_more(self, task: DagTask) -> None:
        if task.index in self._delayed:
            del self._delayed[task.index]
            self._handlers.row(task.handler).delayed -= 1

    def began(self, now: int, task: DagTask) -> None:
        if task.state is _ASSIGNED:
            self._move(task, _RUNNING)
            task.started_at = now

    @property
    def has_writers(self) -> bool:
        """Something is kept of what attempts under way wrote."""
        return self._kept.has_writers

    def more_time(self, now: int, task: DagTask, asked: MoreTime, changes: list[Change]) -> TimeAnswer | None:
        """See `TaskOwner`."""
        return self._times.asked(self._clock(now), task, asked, changes)

    def time_of(self, task: DagTask) -> KeptTime | None:
        """Of its attempt that is under way; None: it asked for no more than it has."""
        return self._times.of(task)

    def writes(self, task: DagTask, tails: tuple[StreamTail, ...]) -> Change:
        """What an attempt under way has written so far."""
        return self._kept.writes(task, tails)

    def wrote(self, task: DagTask, result: TaskResult) -> list[Change]:
        """What an attempt wrote that has just ended: instead of what was kept while it ran."""
        return self._kept.wrote(task, result)

    def _settle(self, now: int, task: DagTask, state: TaskState) -> None:
        self._handlers.row(task.handler).ended(now)
        self._move(task, state)
        task.is_settled = True
        self._open -= 1

    def _named(self, ids: Iterable[str]) -> list[DagTask]:
        wanted = dict.fromkeys(ids)
        found = [task for task in self.tasks if task.id in wanted and task is not GONE]
        if len(found) < len(wanted):
            known = dict.fromkeys([task.id for task in found])
            missing = next(id for id in wanted if id not in known)
            raise Invalid(f"job {self.row.id} has no task {missing}: see its tasks")
        return found

    def _reset(self, task: DagTask, spec: TaskSpec | None) -> Reset | None:
        """As if nothing had been tried, except that attempts are counted on. None: nothing was."""
        change = None
        if task.is_settled or task.attempts or spec is not None:
            change = Reset(self.row.number, task.index, b"" if spec is None else encode_spec(spec))
        if task.is_settled:
            self._open += 1
        self._delays_no_more(task)
        if task.state in ENDED:
            self._counts[task.state] -= 1
            self._counts[_PENDING] += 1
            self._handlers.row(task.handler).states[_PENDING] += 1
            task.state = begin_again(task.state)
        elif task.state is not _PENDING:
            self._move(task, _PENDING)
        task.spec = spec or task.spec
        task.failures = task.deaths = task.refusals = task.fence = task.ready_at = task.output_kib = 0
        task.is_settled = task.alone = False
        task.checkpoint = b""
        task.cause = task.error = ""
        return change
