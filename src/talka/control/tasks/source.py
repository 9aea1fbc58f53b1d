"""Where ready tasks come from, as a dispatcher draws them.

Tasks of dag jobs are objects: each has its own needs, and waits in a lane of its job (`Dispatcher.put`). A job of a
million tasks that are alike has no object for each of them: it is a `Source`, which says how many are ready, and of
which a dispatcher draws runs of consecutive ones, as long as a worker has room for (`Dispatcher.offer`). Both wait in
the same queues, under the same rules.

Decision: docs/decisions/0042-a-source-gives-ranges.md.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from talka.control.tasks.task import Needs

TaskRange: TypeAlias = tuple[int, int]
"""The index of the first of consecutive tasks of a job, and how many they are."""


class Source(Protocol):
    """Ready tasks of one job that need the same. What it says may change at any time, `needs` and `job` apart; tell
    whoever draws from it (`Dispatcher.offer`), unless that draw was what changed it."""

    @property
    def job(self) -> object:
        """Whose tasks they are: a job has one source for the same needs."""

    @property
    def needs(self) -> Needs: ...

    @property
    def priority(self) -> int:
        """From 1 to 10, the highest."""

    @property
    def queued_at(self) -> int:
        """When the one that has waited longest became ready."""

    @property
    def ready(self) -> int:
        """Tasks that could be drawn."""

    def draw(self, now: int, most: int) -> TaskRange:
        """The next ones, at least one and at most so many: they are not ready any more."""


@dataclass(slots=True, eq=False)
class DrawnRange:
    """Tasks that were drawn for one worker, until the last of them has ended there."""

    source: Source
    first: int
    count: int
    worker: str
    left: int
    """Tasks that have not ended."""
