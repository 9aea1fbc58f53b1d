"""Which manager of dag jobs a worker obeys in a partition: that of the highest epoch it has seen there, and whose store
that was.

See docs/decisions/0034-no-clock-decides-who-has-the-store.md and 0040-partitions-of-jobs.md.
"""

from collections.abc import Mapping
from typing import Final

from talka.control.worker.writes import Puts
from talka.errors import Invalid
from talka.wire.attempts import DRAWN_BITS, NOWHERE, PARTITIONS_LIMIT, ObeyedLife, StoreLife

EPOCH_KEY: Final = "epoch"
"""Of partition 0, as when there was no other; `epoch/3` of partition 3. With `/life` behind it: whose it was."""


class BrokenEpoch(Invalid):
    """What was stored is no epoch, so nobody can say which manager is to be obeyed."""

    def __init__(self) -> None:
        super().__init__(
            "the stored epoch of this worker is no number; restore it, or start the worker with an empty data folder"
        )


class ObeyedEpoch:
    """What is obeyed now, and what has to be on disk before it is."""

    __slots__ = ("_key", "epoch", "life")

    def __init__(self, stored: Mapping[str, bytes], partition: int = 0) -> None:
        self._key = _key(partition)
        content = stored.get(self._key, b"0")
        words = stored.get(f"{self._key}/life", b"0 0 0").split(b" ")
        if not all(word.isdigit() for word in (content, *words)) or len(words) not in (3, 4):
            raise BrokenEpoch
        store, life, opening, count = [int(word) for word in [*words, b"1"][:4]]
        is_drawn = any((store, life, opening))
        if max(store, life, opening) >> DRAWN_BITS or not 1 <= count <= PARTITIONS_LIMIT:
            raise BrokenEpoch
        self.epoch = int(content)
        """The highest seen."""
        self.life = StoreLife(store, life, opening, partition, count) if is_drawn else NOWHERE

    def told(self) -> ObeyedLife:
        """As a beat tells it."""
        return ObeyedLife(self.epoch, self.life)

    def rise(self, epoch: int, life: StoreLife) -> Puts:
        """From now on these, once this is on disk."""
        self.epoch, self.life = epoch, life
        words = f"{life.store} {life.life} {life.opening}"
        if life.partitions > 1:  # of a store with one, it is written as it was before there were any
            words = f"{words} {life.partitions}"
        return ((self._key, str(epoch).encode()), (f"{self._key}/life", words.encode()))


def obeyed_partitions(stored: Mapping[str, bytes]) -> list[int]:
    """Numbers of those that are on disk, and 0."""
    return [number for number in range(PARTITIONS_LIMIT) if number == 0 or _key(number) in stored]


def _key(partition: int) -> str:
    return EPOCH_KEY if partition == 0 else f"{EPOCH_KEY}/{partition}"
