"""What is made of a worker or a manager, by three signals: does it live, would it take work, does its work get on.

Each signal alone asks for a decision, and the gravest of them counts. So a worse signal never leads to a milder
decision, whatever the others say; and that a node is busy never says that it is dead.

Decision: docs/decisions/0061-three-signals-one-table.md.
"""

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from talka.wire.views import HealthDecisionName


class HealthDecision(IntEnum):
    """From the mildest to the gravest."""

    ROUTE = 0
    """It is given work."""
    INVESTIGATE = 1
    """It is given work, and somebody looks what keeps it."""
    HOLD = 2
    """It is given nothing new. What it has goes on."""
    DRAIN = 3
    """It is given nothing new, and what it has ends or is handed over."""
    EVICT = 4
    """It is given up: what it has goes to others, by leases and fences."""

    @property
    def word(self) -> HealthDecisionName:
        return _WORDS[self]


_WORDS: Final[dict[HealthDecision, HealthDecisionName]] = {
    HealthDecision.ROUTE: "route",
    HealthDecision.INVESTIGATE: "investigate",
    HealthDecision.HOLD: "hold",
    HealthDecision.DRAIN: "drain",
    HealthDecision.EVICT: "evict",
}


class Liveness(IntEnum):
    HEARD = 0
    SILENT = 1
    """Not heard for longer than usual; or for so long that it would be given up, were there not too many silent
    beside it."""
    GONE = 2
    """Silent for longer than its lease; or it left, or was proven dead."""


class Readiness(IntEnum):
    READY = 0
    UNREADY = 1
    """It would take no work now: it starts, is overloaded, or says itself that it does badly."""
    LEAVING = 2


class Progress(IntEnum):
    IDLE = 0
    MOVING = 1
    STALLED = 2
    """Some of its work has not moved for longer than it should take."""
    STUCK = 3
    """None of its work will move without help."""


class HealthSignals(NamedTuple):
    liveness: Liveness = Liveness.HEARD
    readiness: Readiness = Readiness.READY
    progress: Progress = Progress.IDLE


_BY_LIVENESS: Final = (HealthDecision.ROUTE, HealthDecision.HOLD, HealthDecision.EVICT)
_BY_READINESS: Final = (HealthDecision.ROUTE, HealthDecision.HOLD, HealthDecision.DRAIN)
_BY_PROGRESS: Final = (
    HealthDecision.ROUTE,
    HealthDecision.ROUTE,
    HealthDecision.INVESTIGATE,
    HealthDecision.DRAIN,
)


def decide(signals: HealthSignals) -> HealthDecision:
    return max(_BY_LIVENESS[signals.liveness], _BY_READINESS[signals.readiness], _BY_PROGRESS[signals.progress])


class MemberDoubted(msgspec.Struct, frozen=True):
    """Somebody should look at this member now: ask it whether it is there, before it is its turn."""

    name: str
