"""Names of attempts. A fence is a number of one store in one of its lives: another copy of the store gives the same
numbers out again, so whatever is said of attempts says whose they are. All of it is an attempt's name, and a result
must match all of it: store, life and partition, told once in each message; job, task and fence, told with each attempt.

Decisions: docs/decisions/0031-whose-attempt-it-is.md, docs/decisions/0040-partitions-of-jobs.md.
"""

from typing import Annotated, Final

import msgspec

Drawn = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
DRAWN_BITS: Final = 62
PARTITIONS_LIMIT: Final = 64
"""Of one store: so many a worker remembers at most, and tells of in each beat."""
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_LIMIT)]
PartitionCount = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_LIMIT)]


class StoreLife(msgspec.Struct, frozen=True, array_like=True):
    """Told once in each message about attempts."""

    store: Drawn = 0
    """Drawn when the store was made."""
    life: Drawn = 0
    """Drawn with it, and anew when a copy is opened in its place: what was given out after the copy was made is not of
    this life, whatever its number."""
    opening: Drawn = 0
    """Drawn by each manager that opens the store. Two that have the same epoch of one life are told apart by it: the
    store was put back together with all that remembers it. Attempts of all openings of a life count."""
    partition: PartitionNumber = 0
    """Of the store's jobs: each has an epoch of its own, and a keeper that knows nothing of the others."""
    partitions: PartitionCount = 1
    """How many of them the store has. One that was split anew has other jobs in each, and none is the same."""

    def is_of(self, other: "StoreLife") -> bool:
        """Whether attempts of the one are attempts of the other."""
        return (
            self.life == other.life
            and self.store == other.store
            and self.partition == other.partition
            and self.partitions == other.partitions
        )

    def __str__(self) -> str:
        of = f", partition {self.partition} of {self.partitions}" if self.partitions > 1 else ""
        return f"store {self.store:x}, life {self.life:x}{of}"


NOWHERE: Final = StoreLife()
"""Of nobody's store: of this no attempt counts for any other."""


class ObeyedLife(msgspec.Struct, frozen=True, array_like=True):
    """Whom a worker obeys in one partition. There is one of each number, whichever store it is of."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    """The highest that it has obeyed; 0: none."""
    of: StoreLife = NOWHERE


NOBODY: Final = ObeyedLife()


def obeyed_in(partition: int, first: ObeyedLife, others: tuple[ObeyedLife, ...]) -> ObeyedLife:
    """Whom a worker obeys there, that tells whom in partition 0 and in others."""
    if partition == 0:
        return first
    return next((one for one in others if one.of.partition == partition), NOBODY)


class Dropped(msgspec.Struct, frozen=True, array_like=True):
    """What a worker held of another store, or of another life of this one, and forgot."""

    store: Drawn
    life: Drawn
    attempts: Drawn
    """That waited or ran."""
    results: Drawn
    """That nobody had taken."""
