"""When something of a dag job is due: tasks that wait for their time, and times after which they wait no longer."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from talka.control.tasks.task import DagTask
from talka.units import NEVER
from talka.work.lifecycle import TaskState

WAKE, QUEUE, TOTAL = 0, 1, 2
SPARE: Final = 1_000
"""Entries that came to nothing are left where they are until there are as many as tasks, and so many more."""


class Timers:
    """One heap. An entry counts if it still fits its task when its time has come: nothing is ever taken out."""

    __slots__ = ("_heap", "_tasks", "_total")

    def __init__(self, tasks: Sequence[DagTask]) -> None:
        self._tasks = tasks
        self._heap: list[tuple[int, int, int]] = []
        self._total: dict[int, list[int]] = {}
        """Tasks by the end of their time; of many tasks it is the same, so there is one entry for all of them."""

    @property
    def next_at(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def wake(self, task: DagTask) -> None:
        """A pending task has to wait until its `ready_at`."""
        self._push(task.ready_at, WAKE, task.index)

    def queue(self, task: DagTask, queue_ns: int) -> None:
        """It has just become ready and may be so for this long."""
        self._push(task.queued_at + queue_ns, QUEUE, task.index)

    def expire(self, task: DagTask, at: int) -> None:
        """By then it must have ended."""
        tasks = self._total.get(at)
        if tasks is None:
            self._total[at] = [task.index]
            self._push(at, TOTAL, 0)
        else:
            tasks.append(task.index)

    def due(self, now: int) -> list[tuple[int, DagTask]]:
        """What has come, as (WAKE, QUEUE or TOTAL, task), in order."""
        heap, tasks = self._heap, self._tasks
        found: list[tuple[int, DagTask]] = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if entry[1] == TOTAL:
                found += [(TOTAL, tasks[index]) for index in self._total.pop(entry[0])]
            elif self._counts(entry):
                found.append((entry[1], tasks[entry[2]]))
        return found

    def _push(self, at: int, kind: int, index: int) -> None:
        heappush(self._heap, (at, kind, index))
        if len(self._heap) > 2 * len(self._tasks) + SPARE:
            self._heap[:] = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)

    def _counts(self, entry: tuple[int, int, int]) -> bool:
        at, kind, index = entry
        task = self._tasks[index]
        if kind == WAKE:
            return task.state is TaskState.PENDING and task.ready_at == at and not task.waits_for
        if kind == QUEUE:
            policy = task.policy
            return task.state is TaskState.READY and policy is not None and task.queued_at + policy.queue_ns == at
        return True
