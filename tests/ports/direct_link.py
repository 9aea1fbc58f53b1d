"""A link between a keeper and a worker of the same process: what one says, the other is told by a call."""

from typing import TypeAlias

from talka.control.tasks.store_effects import DagEffect
from talka.control.tasks.worker_link import KeeperEnd, ToKeeper, ToWorker, WorkerEnd, WorkerLink
from talka.control.worker.effects import HandlerEffect
from talka.wire.tasks import TaskMessage

KEEPER = "keeper"
Answered: TypeAlias = list[tuple[str, DagEffect | HandlerEffect]]
"""What whoever was called wants done, with its name."""


class DirectLink(WorkerLink[Answered]):
    def __init__(self, now: int, keeper: KeeperEnd[DagEffect], worker: str, pool: WorkerEnd[HandlerEffect]) -> None:
        self.now = now
        self.is_cut = False
        self.loses: list[type[TaskMessage]] = []
        """The next message of each of these types does not arrive."""
        self._keeper = keeper
        self._worker = worker
        self._pool = pool

    def to_worker(self, said: ToWorker) -> Answered:
        assert said.worker == self._worker
        if self._is_lost(said.message):
            return []
        return [(self._worker, effect) for effect in self._pool.on_message(self.now, KEEPER, said.message)]

    def to_keeper(self, said: ToKeeper) -> Answered:
        assert said.keeper == KEEPER
        if self._is_lost(said.message):
            return []
        return [(KEEPER, effect) for effect in self._keeper.on_message(self.now, self._worker, said.message)]

    def _is_lost(self, message: TaskMessage) -> bool:
        if type(message) not in self.loses:
            return self.is_cut
        self.loses.remove(type(message))
        return True
