"""Whose task is next, where a process keeps several partitions of a store: one dispatcher for all of their keepers.

A worker has its room once, whichever partitions it serves, and a limit holds for all jobs together. So the keepers of
one process share what gives them out, and each claims its own tasks, under its own epoch. Keepers of other processes
know nothing of it: a worker refuses what is more than it can take.

Decision: docs/decisions/0040-partitions-of-jobs.md.
"""

from collections.abc import Iterable
from random import Random
from typing import Protocol

import msgspec

from talka.control.dags.handler_counts import HandlerCounts
from talka.control.tasks.dispatch import Dispatcher
from talka.control.tasks.store_effects import DagEffect
from talka.control.tasks.task import DagTask
from talka.wire.task_views import QueuesView, QueueView


class Claimer(Protocol):
    """The keeper of a partition, as the others of its process see it."""

    @property
    def is_behind(self) -> bool:
        """It does not know yet what its attempts hold of limits."""

    def claim(self, now: int, task: DagTask, worker: str) -> None:
        """A task of its own was given to a worker."""

    def flush(self, now: int) -> list[DagEffect]:
        """What is to be done of what was decided so far."""


class DagTurns:
    """Keepers `join` when they are made, and `leave` when they have their partition no more."""

    def __init__(self, rng: Random) -> None:
        self.dispatcher = Dispatcher(rng)
        self.handlers = HandlerCounts()
        """Of the tasks of all of them."""
        self._keepers: dict[int, Claimer] = {}
        """By the number of their partition."""

    def queues(self, now: int) -> QueuesView:
        """What people are shown of them."""
        view = self.dispatcher.queues(now)
        found = {queue.handler: queue for queue in view.queues}
        for handler, row in self.handlers.rows():
            known = found.get(handler) or QueueView(handler, 0, 0, 0)
            found[handler] = msgspec.structs.replace(
                known,
                waiting=row.ready,
                active=row.running,
                delayed=row.delayed,
                blocked=row.blocked,
                completed=row.completed,
                failed=row.failed,
                rate_per_s=row.rate_per_s(now),
            )
        return QueuesView([found[handler] for handler in sorted(found)], view.limits)

    def join(self, number: int, keeper: Claimer) -> None:
        self._keepers[number] = keeper

    def leave(self, now: int, number: int, tasks: Iterable[DagTask]) -> None:
        """`tasks`: all of that partition."""
        if self._keepers.pop(number, None) is not None:
            self.dispatcher.drop(now, number, tasks)

    def give_out(self, now: int) -> list[Claimer]:
        """Let keepers claim what can be given out. Those that did, which are to be flushed.

        Nothing is while one of them is behind: what its attempts hold of a limit, no other may be given.
        """
        keepers = self._keepers
        for one in keepers.values():
            if one.is_behind:
                return []
        claimed: dict[int, Claimer] = {}
        for task, worker in self.dispatcher.assign(now):
            number = task.job.partition
            keeper = claimed.get(number)
            if keeper is None:
                keeper = claimed[number] = keepers[number]
            keeper.claim(now, task, worker)
        return list(claimed.values())
