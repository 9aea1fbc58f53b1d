"""The epoch under which a manager gives out tasks of a partition: never below what a worker remembers of it.

The epoch lives in the store, and a store may be put back: then its next epochs were given out before, and workers obey
whoever had them. A manager that hears of such an epoch takes one above it, through the store, before it gives that
worker anything.

Decisions: docs/decisions/0031-whose-attempt-it-is.md, docs/decisions/0040-partitions-of-jobs.md.
"""

from typing import Final

from talka.control.tasks.store_effects import RaiseEpoch, WorkerTooOld
from talka.units import SECOND
from talka.wire.attempts import StoreLife

STEP_LIMIT: Final = 1024
"""So much an epoch grows at once: a worker that names a huge one cannot use them up. The rest follows with its next
beats."""
PAUSE_NS: Final = SECOND
"""Between two: who tells of ever higher ones, all the time, has used them up after weeks of alarms."""
TOO_OLD: Final = "it gets no tasks: its version is too old to say to which store its attempts belong: update it"
TOO_HIGH: Final = (
    "it obeyed a later epoch of this store than the store has, as after a restored copy: it gets tasks once the store"
    " has a higher one, usually within seconds"
)
EPOCH_LIMIT: Final = (1 << 31) - 1
"""A fence has 63 bits, 32 of which count within an epoch."""


class EpochFloor:
    """Ask `is_below` with each beat; tell `raised` when the store has taken what was wanted, or has not."""

    def __init__(self, epoch: int, life: StoreLife, epoch_limit: int = EPOCH_LIMIT) -> None:
        self._epoch_limit = epoch_limit
        self.epoch = epoch
        self.life = life
        self.raised_total = 0
        self._is_raising = False
        self._not_before = 0
        self.denied: dict[str, str] = {}
        """Workers that are given nothing, and why: no more than there are in the fleet."""

    def is_below(self, epoch: int, life: StoreLife) -> bool:
        """Whether a worker that remembers this would obey another than this manager."""
        return epoch > self.epoch or (epoch == self.epoch and life != self.life)

    def wanted(self, now: int, epoch: int) -> int:
        """The epoch to be taken, because somebody remembers this one; 0: not now, or one is being taken already."""
        to = min(epoch + 1, self.epoch + STEP_LIMIT)
        if self._is_raising or now < self._not_before or to > self._epoch_limit:
            return 0
        self._is_raising, self._not_before = True, now + PAUSE_NS
        return to

    def too_high(self, now: int, name: str, epoch: int, life: StoreLife) -> list[RaiseEpoch]:
        """What is to be done because of a worker that remembers such an epoch, and is given nothing before."""
        self.denied[name] = TOO_HIGH
        to = self.wanted(now, epoch)
        return [RaiseEpoch(to, name, epoch, life.is_of(self.life), self.life.partition)] if to else []

    def too_old(self, name: str) -> list[WorkerTooOld]:
        """A worker does not tell whose its attempts are: what is told of it, once."""
        is_new = self.denied.get(name) != TOO_OLD
        self.denied[name] = TOO_OLD
        return [WorkerTooOld(name)] if is_new else []

    def forget(self, name: str) -> None:
        """A worker is gone, or may be given something again."""
        self.denied.pop(name, None)

    def raised(self, epoch: int) -> None:
        """The store has this one now."""
        self._is_raising = False
        self.raised_total += epoch > self.epoch
        self.epoch = max(self.epoch, epoch)
