"""Which specs are read from the store, and when: after a restart none is in memory, and there may be a million.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from heapq import heappop, heappush
from itertools import count
from typing import Final

from talka.control.tasks.delivery import Delivery
from talka.control.tasks.store_effects import ReadOutputs
from talka.control.tasks.task import DagTask

READ_AT_ONCE: Final = 5_000
SEEN_AHEAD: Final = 20_000
"""With so many in the queues no more are read."""


class SpecReading:
    """`add` tasks whose specs are wanted, and `read` after each change."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._unread: list[DagTask] = []
        """Running since before this life. What limits they hold is in the store: until it was read, nothing starts."""
        self._is_reading = False
        self._unseen: list[tuple[int, int, DagTask]] = []
        """Ready, and what they need is in the store: it is read when their turn comes."""
        self._is_seeing = False
        self._turns = count()

    def add(self, task: DagTask) -> None:
        if task.worker:
            self._unread.append(task)
        else:
            heappush(self._unseen, (-task.priority, next(self._turns), task))

    @property
    def is_behind(self) -> bool:
        """What runs since before this life is not known yet."""
        return bool(self._unread) or self._is_reading

    def read(self, ready: int) -> list[ReadOutputs]:
        """What is to be read now; so many tasks wait in the queues."""
        fetches: list[ReadOutputs] = []
        if self._unread and not self._is_reading:
            self._is_reading = True
            some, self._unread = self._unread[:READ_AT_ONCE], self._unread[READ_AT_ONCE:]
            fetches.append(self._delivery.read(some, is_first=True))
        if self._unseen and not self._is_seeing and ready < SEEN_AHEAD:
            self._is_seeing = True
            some = [heappop(self._unseen)[2] for _ in range(min(READ_AT_ONCE, len(self._unseen)))]
            fetches.append(self._delivery.read(some))
        return fetches

    def on_read(self, ticket: int) -> list[DagTask] | None:
        """The tasks that were read under this ticket; None when it is not one of these."""
        found = self._delivery.on_read(ticket)
        if found is None:
            return None
        tasks, is_first = found
        if is_first:
            self._is_reading = False
        else:
            self._is_seeing = False
        return tasks
