"""Which manager of dag jobs a worker obeys: that of the highest epoch it has seen, and whose store that was.

See docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

from collections.abc import Mapping
from typing import Final

from talka.control.worker.writes import Puts
from talka.errors import Invalid
from talka.wire.attempts import DRAWN_BITS, NOWHERE, StoreLife

EPOCH_KEY: Final = "epoch"
LIFE_KEY: Final = "epoch/life"


class BrokenEpoch(Invalid):
    """What was stored is no epoch, so nobody can say which manager is to be obeyed."""

    def __init__(self) -> None:
        super().__init__(
            "the stored epoch of this worker is no number; restore it, or start the worker with an empty data folder"
        )


class ObeyedEpoch:
    """What is obeyed now, and what has to be on disk before it is."""

    __slots__ = ("epoch", "life")

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        content = stored.get(EPOCH_KEY, b"0")
        words = stored.get(LIFE_KEY, b"0 0 0").split(b" ")
        if not all(word.isdigit() for word in (content, *words)) or len(words) != 3:
            raise BrokenEpoch
        drawn = [int(word) for word in words]
        if any(number >> DRAWN_BITS for number in drawn):
            raise BrokenEpoch
        self.epoch = int(content)
        """The highest seen."""
        self.life = StoreLife(*drawn) if any(drawn) else NOWHERE

    def rise(self, epoch: int, life: StoreLife) -> Puts:
        """From now on these, once this is on disk."""
        self.epoch, self.life = epoch, life
        words = f"{life.store} {life.life} {life.opening}"
        return ((EPOCH_KEY, str(epoch).encode()), (LIFE_KEY, words.encode()))
