"""The tasks of one dag job in memory: their states, how many there are of each, and who waits for whom.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from talka.control.dags.graph import Dependents
from talka.control.tasks.retries import Terms
from talka.control.tasks.task import DagTask, Needs, packed, unpacked
from talka.errors import Invalid, Unavailable
from talka.units import MILLISECOND
from talka.work.dags.dag import DagSettings, TaskSpec, bundle_of, encode_task
from talka.work.dags.records import TASK_STATES, JobRow, LiveTask, Reset, TaskRow
from talka.work.lifecycle import JobState, TaskState, begin_again, is_final, move

STOPPING: Final = (JobState.CANCELLING, JobState.COMPLETING)
ENDED: Final = frozenset(state for state in TaskState if is_final(state))
FAILED: Final = (TaskState.DEAD, TaskState.FAILED, TaskState.TIMEOUT)

_PENDING, _READY, _ASSIGNED, _RUNNING = TaskState.PENDING, TaskState.READY, TaskState.ASSIGNED, TaskState.RUNNING
_COMPLETED = TaskState.COMPLETED

NONE_YET: Final = dict.fromkeys(TaskState, 0)


class DagBook:
    """What there is. What happens to it is decided by `DagJob`, which is the only kind of book."""

    def __init__(self, row: JobRow, settings: DagSettings, clock: Callable[[int], int], partition: int = 0) -> None:
        """`clock` tells the wall clock's milliseconds at an instant of the local one."""
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
        self._terms = Terms(settings, partition)
        self._counts = NONE_YET.copy()
        self._open = 0
        """Tasks that have not ended, or whose end is not kept yet."""
        self._index_by_id: dict[str, int] | None = None
        self._dependents = Dependents(())
        self._first_failed: DagTask | None = None

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
                spec=encode_task(task.spec),
                depends_on=unpacked(task.after),
            )
            for task in tasks
            if task.spec is not None
        ]

    def restore(self, now: int, live: Sequence[LiveTask]) -> None:
        """Tasks as the store has them, in order of their index, in as many pages as there are; then `restored`."""
        tasks, counts, wall_ms = self.tasks, self._counts, self._clock(now)
        handlers: dict[str, str] = {}
        for one in live:
            state = TASK_STATES[one.state]
            if state is _READY:  # of memory alone: whatever wrote it, it has to become so again
                state = _PENDING
            handler = handlers.setdefault(one.handler, one.handler)
            task = DagTask(self, one.index, one.id, state, handler, one.priority, one.depends_on)
            counts[state] += 1
            if state in ENDED:
                task.is_settled = True
            elif one.attempts:
                task.attempts, task.failures, task.fence = one.attempts, one.failures, one.fence
                task.deaths, task.alone = one.deaths, one.deaths > 0
            if one.ready_ms:
                task.ready_at = max(1, now + (one.ready_ms - wall_ms) * MILLISECOND)
            if state is _ASSIGNED or state is _RUNNING:
                task.worker = one.worker
            tasks.append(task)
        if live and live[-1].index != len(tasks) - 1:
            raise Invalid(f"tasks of job {self.row.id} are missing in the store: look at it with talka store check")

    def _connect(self) -> None:
        """All tasks are there."""
        tasks = self.tasks
        self._index_by_id = None
        self._dependents = Dependents(tasks)
        self._open = sum([count for state, count in self._counts.items() if state not in ENDED])
        self._find_failed()

    def _find_failed(self) -> None:
        self._first_failed = None
        if any([self._counts[state] for state in FAILED]):
            self._first_failed = next(task for task in self.tasks if task.state in FAILED)

    # -- what people may know

    def counts(self) -> dict[str, int]:
        """Tasks by state, where there are any."""
        return {state.value: count for state, count in self._counts.items() if count}

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
        return self._dependents.of(index)

    # -- changes

    def _move(self, task: DagTask, state: TaskState) -> None:
        counts = self._counts
        counts[task.state] -= 1
        counts[state] += 1
        task.state = move(task.state, state)

    def began(self, now: int, task: DagTask) -> None:
        if task.state is _ASSIGNED:
            self._move(task, _RUNNING)
            task.started_at = now

    def _settle(self, task: DagTask, state: TaskState) -> None:
        self._move(task, state)
        task.is_settled = True
        self._open -= 1

    def _named(self, ids: Iterable[str]) -> list[DagTask]:
        wanted = dict.fromkeys(ids)
        found = [task for task in self.tasks if task.id in wanted]
        if len(found) < len(wanted):
            known = dict.fromkeys([task.id for task in found])
            missing = next(id for id in wanted if id not in known)
            raise Invalid(f"job {self.row.id} has no task {missing}: see its tasks")
        return found

    def again(self, ids: Sequence[str], others: Iterable[str] = ()) -> list[DagTask]:
        """Which tasks are run again with these and `others`, in the order of the job, or why they cannot be: all that
        depends on them too; no `ids`: all that ended without being completed."""
        if self.state is JobState.SUBMITTED or self.state in STOPPING:
            raise Invalid(f"job {self.row.id} is {self.state}: nothing of it can be run again now")
        chosen = self._named([*ids, *others])
        if not ids:
            chosen += [task for task in self.tasks if task.state in ENDED and task.state is not _COMPLETED]
        if not chosen:
            raise Invalid(f"no task of job {self.row.id} ended without being completed: name those to be run again")
        tasks = [self.tasks[index] for index in self._dependents.downstream([task.index for task in chosen])]
        for task in tasks:
            if task.worker or (task.state is _COMPLETED and not task.is_settled):
                raise Invalid(f"task {task.id} is running: wait for it, or cancel the job")
        return tasks

    def _again(self, ids: Sequence[str], configs: Mapping[str, msgspec.Raw]) -> list[tuple[DagTask, TaskSpec | None]]:
        """With their new specs if they get any."""
        again: list[tuple[DagTask, TaskSpec | None]] = []
        for task in self.again(ids, configs):
            config = configs.get(task.id)
            if config is not None and task.spec is None:
                raise Unavailable(f"the spec of task {task.id} is not in memory: ask again in a moment")
            edited = None if config is None or task.spec is None else msgspec.structs.replace(task.spec, config=config)
            again.append((task, edited))
        return again

    def _reset(self, task: DagTask, spec: TaskSpec | None) -> Reset | None:
        """As if nothing had been tried. None: nothing was."""
        change = None
        if task.is_settled or task.attempts or spec is not None:
            change = Reset(self.row.number, task.index, b"" if spec is None else encode_task(spec))
        if task.is_settled:
            self._open += 1
        if task.state in ENDED:
            self._counts[task.state] -= 1
            self._counts[_PENDING] += 1
            task.state = begin_again(task.state)
        elif task.state is not _PENDING:
            self._move(task, _PENDING)
        task.spec = spec or task.spec
        task.attempts = task.failures = task.deaths = task.refusals = task.fence = task.ready_at = 0
        task.kib = 0 if task.spec is None else len(memoryview(task.spec.config)) >> 10
        task.is_settled = task.alone = False
        task.checkpoint = b""
        task.cause = task.error = ""
        return change

    def _count_waits(self, tasks: Iterable[DagTask]) -> list[DagTask]:
        """How many each waits for, after its dependencies may have changed. Those that wait for none."""
        every = self.tasks
        free: list[DagTask] = []
        for task in tasks:
            if task.after:
                task.waits_for = sum([not every[index].is_settled for index in unpacked(task.after)])
            if not task.waits_for:
                free.append(task)
        return free
