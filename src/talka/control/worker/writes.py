"""Writes of a worker to its disk. All its parts number them from one row, so they are answered in order."""

from typing import TypeAlias

from talka.cluster.effects import Persist

Puts: TypeAlias = tuple[tuple[str, bytes | None], ...]


class WorkerWrites:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0
        """Ticket of the newest write; 0: there was none."""

    def ticket(self) -> int:
        self.last += 1
        return self.last

    def persist(self, puts: Puts) -> Persist:
        return Persist(self.ticket(), puts)
