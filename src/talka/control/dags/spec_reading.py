"""Which specs are read from the store, and when: after a restart none is in memory, and there may be a million.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from talka.control.tasks.store_effects import ReadOutputs
from talka.control.tasks.task import DagTask

"""With so many in the queues no more are read."""


class SpecReading:
    """`add` tasks whose specs are wanted, and `read` after each change."""

    def __init__(self, tickets: Iterator[int], partition: int = 0, *, at_once: int, ahead: int) -> None:
        self._at_once = at_once
        self._ahead = ahead
        self._tickets = tickets
        self._partition = partition
        self._unread: list[DagTask] = []
        """Running since before this life. What limits they hold is in the store: until it was read, nothing starts."""
        self._unseen: list[tuple[int, int, DagTask]] = []
        """Ready, and what they need is in the store: it is read when their turn comes."""
        self._reading: dict[int, list[DagTask]] = {}
        """By ticket: some of the unread; of the unseen in `_seeing`."""
        self._seeing: dict[int, list[DagTask]] = {}
        self._turns = count()

    def add(self, task: DagTask) -> None:
        if task.worker:
            self._unread.append(task)
        else:
            heappush(self._unseen, (-task.priority, next(self._turns), task))

    @property
    def is_behind(self) -> bool:
        """What runs since before this life is not known yet."""
        return bool(self._unread or self._reading)

    def read(self, ready: int) -> list[ReadOutputs]:
        """What is to be read now; so many tasks wait in the queues."""
        fetches: list[ReadOutputs] = []
        if self._unread and not self._reading:
            some, self._unread = self._unread[: self._at_once], self._unread[self._at_once :]
            fetches.append(self._read(some, self._reading))
        if self._unseen and not self._seeing and ready < self._ahead:
            some = [heappop(self._unseen)[2] for _ in range(min(self._at_once, len(self._unseen)))]
            fetches.append(self._read(some, self._seeing))
        return fetches

    def _read(self, tasks: list[DagTask], into: dict[int, list[DagTask]]) -> ReadOutputs:
        ticket = next(self._tickets)
        into[ticket] = tasks
        return ReadOutputs(ticket, tuple((task.job.row.number, task.index) for task in tasks), (), self._partition)

    def on_read(self, ticket: int) -> list[DagTask] | None:
        """The tasks that were read under this ticket; None when it is not one of these."""
        return self._reading.pop(ticket, None) or self._seeing.pop(ticket, None)
