"""What a worker has of one partition of dag jobs: whom it obeys there, what waits until that is on disk, which attempts
are over, and the outbox. What waits or runs is in the room, which all partitions share.

See docs/decisions/0031-whose-attempt-it-is.md and 0040-partitions-of-jobs.md.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from talka.control.worker.handlers_outbox import HANDLER_LIMITS, HandlerLimits, HandlerOutbox
from talka.control.worker.obeyed_epoch import ObeyedEpoch
from talka.wire.attempts import Dropped
from talka.wire.tasks import AssignTasks, KeeperMessage, TaskInputs

DROPS_LIMIT: Final = 16


class ServedPartition:
    """Nothing of it is of any other: a keeper that is silent, deposed or too old holds up its own partition alone."""

    def __init__(self, number: int, stored: Mapping[str, bytes], limits: HandlerLimits = HANDLER_LIMITS) -> None:
        self.number = number
        self._closed_limit = limits.closed
        """Attempts that are over and remembered at least, of all partitions together."""
        self.obeyed = ObeyedEpoch(stored, number)
        self.outbox = HandlerOutbox(limits)
        self.outbox.life = self.obeyed.life
        self.ticket = 0
        """Of the write that puts the obeyed epoch on disk; 0: it is there."""
        self.held_back: list[tuple[str, KeeperMessage]] = []
        """By whom, until then."""
        self.drops: list[Dropped] = []
        """What was dropped, until it is clear that the manager knows."""
        self._closed: dict[int, None] = {}
        """Fences of attempts whose results are stored."""
        self._closed_before: dict[int, None] = {}
        """Likewise, the ones before these. When `_closed` is full it takes their place: old ones go at once."""

    def is_over(self, fence: int) -> bool:
        """Whether its result is kept for good by whoever gave it out."""
        return fence in self._closed or fence in self._closed_before

    def close(self, fences: Iterable[int]) -> None:
        """Their results are stored."""
        self.outbox.stored(fences)
        self._closed.update(dict.fromkeys(fences))
        if len(self._closed) >= self._closed_limit // self.outbox.life.partitions:
            self._closed_before, self._closed = self._closed, {}

    def lease_ended(self) -> None:
        """What was assigned under it, and waits for the disk, does not begin."""
        self.held_back = [held for held in self.held_back if not isinstance(held[1], AssignTasks | TaskInputs)]

    def forget_all(self, attempts: int) -> Dropped:
        """What is here is nobody's any more, and `attempts` that wait or run: the report of it."""
        life = self.outbox.life
        report = Dropped(life.store, life.life, attempts, len(self.outbox.results))
        self.outbox.drop_all()
        self._closed, self._closed_before = {}, {}
        if attempts or report.results:
            self.drops = [*self.drops, report][-DROPS_LIMIT:]
        return report
