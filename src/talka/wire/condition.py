"""How a node does, as it says itself: members in their announcements, workers in their beats."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

LARGEST: Final = (1 << 32) - 1
UNMEASURED: Final = -1

Number = Annotated[int, Meta(ge=0, le=LARGEST)]
Percent = Annotated[int, Meta(ge=UNMEASURED, le=100)]


OVERLOAD_WORDS: Final = ("normal", "busy", "stressed", "overloaded")
HEALTH_WORDS: Final = ("normal", "elevated", "high", "severe", "critical")


class NodeCondition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is not measured is `UNMEASURED`. Of a manager, cores and what waits are those of the cluster that it leads,
    and 0 while it leads none."""

    cores: Number = 0
    free: Number = 0
    """Of these cores nobody has so many."""
    queue: Number = 0
    """Jobs that wait for cores; of a worker: tasks that wait there."""
    cpu_percent: Percent = UNMEASURED
    """Of a worker: of its machine's processors. Of a manager: of one processor, used by its process."""
    memory_percent: Percent = UNMEASURED
    """Of its machine's memory, in use."""
    overload: Annotated[int, Meta(ge=0, le=255)] = 0
    """0: none. The numbers are those of `control/clients/overload.py`; of a later version there may be others."""
    health: Annotated[int, Meta(ge=0, le=255)] = 0
    """0: well. The numbers are those of `Degradation` (`cluster/membership/local_health.py`)."""

    @property
    def overload_word(self) -> str:
        return OVERLOAD_WORDS[min(self.overload, len(OVERLOAD_WORDS) - 1)]

    @property
    def health_word(self) -> str:
        return HEALTH_WORDS[min(self.health, len(HEALTH_WORDS) - 1)]


def measured(percent: int) -> int | None:
    """As people are told it."""
    return None if percent == UNMEASURED else percent
