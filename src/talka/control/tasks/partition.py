"""One of the parts that jobs of a store are split into: what is leased, fenced, kept and served apart from the rest.

A partition has a lease in the store with an epoch of its own, one keeper at a time, and on each worker an epoch that is
obeyed, attempts that are held and an outbox. A store in a file has one, and looks as it did before there were any.

Decision: docs/decisions/0040-partitions-of-jobs.md.
"""

from typing import Final

import msgspec

from talka.cluster.placement import partition_of
from talka.errors import Invalid
from talka.wire.attempts import PARTITIONS_LIMIT, StoreLife

LEASE: Final = "manager"
"""The lease of partition 0, also where there is no other: who opens a store with another count than it has meets
whoever holds this one."""


class Partition(msgspec.Struct, frozen=True):
    number: int = 0
    count: int = 1
    """How many the store has. It never changes while anybody has the store."""

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count <= PARTITIONS_LIMIT:
            raise Invalid(
                f"there is no partition {self.number} of {self.count}: a store has 1 to {PARTITIONS_LIMIT} partitions,"
                " numbered from 0 on"
            )

    @classmethod
    def all(cls, count: int) -> "tuple[Partition, ...]":
        """Those of a store with so many."""
        return tuple(cls(number, count) for number in range(max(count, 1)))

    @classmethod
    def of(cls, life: StoreLife) -> "Partition":
        """The one whose life it is."""
        return cls(life.partition, life.partitions)

    @property
    def lease_key(self) -> str:
        """Under which the store keeps who has it, and its epoch."""
        return LEASE if self.number == 0 else f"{LEASE}/{self.number}"

    def holds(self, job_id: str) -> bool:
        """Whether a job is one of these."""
        return partition_of(job_id, self.count) == self.number

    def life(self, store: int, life: int, opening: int) -> StoreLife:
        """What is given out here is named so."""
        return StoreLife(store, life, opening, self.number, self.count)

    def first_number(self, at_least: int) -> int:
        """The first of its own numbers of jobs and of attempts that is not below; the next ones follow in steps of
        `count`. So keepers of one store never draw the same, though none asks another."""
        return at_least + (self.number - at_least) % self.count


WHOLE: Final = Partition()
"""All jobs of a store that has one partition."""
