"""How long a suspected member has to refute: long when one member accuses it, short once others agree (Lifeguard).

SWIM §4.2 suspicion; Lifeguard's LHA-Suspicion. docs/decisions/0013-membership-measures-itself.md.
"""

from math import log, log10
from typing import Final

import msgspec

from talka.cluster.membership.presets import MembershipConfig

STRETCH_LIMIT: Final = 24
"""The most that own bad health and the lack of confirmations may stretch together: a sick member still converges."""


class SuspicionBounds(msgspec.Struct, frozen=True):
    min_ns: int
    """The wait when all the wanted confirmations have come."""
    max_ns: int
    """The wait when none has come."""
    wanted: int
    """Confirmations that bring the wait down to its minimum; 0 when there are too few members to ask for any."""

    def stretched(self, times: int) -> "SuspicionBounds":
        """For a member that is waited for so many times as long, whoever confirms."""
        if times == 1:
            return self
        min_ns = self.min_ns * times
        return SuspicionBounds(min_ns, max(self.max_ns, min_ns), self.wanted)


def bounds(config: MembershipConfig, members: int, score: int) -> SuspicionBounds:
    """The waits in a group of this many members, the own one counted, at this score of local health."""
    growth = max(1.0, log10(max(1, members)))
    min_ns = round(config.suspicion_multiplier * config.probe_interval_ns * growth) * (score + 1)
    max_ns = max(min_ns, min(config.suspicion_max * min_ns, STRETCH_LIMIT * min_ns // (score + 1)))
    wanted = max(0, config.suspicion_multiplier - 2)
    # Of two members nobody is left to confirm: neither the accuser nor the accused can.
    return SuspicionBounds(min_ns, max_ns, wanted if members - 2 >= wanted else 0)


class Suspicion:
    """One life of one member is suspected; once `expires_at` has come it is dead.

    Accusers are independent when they are different members and, where zones are known, of different zones: one bad
    link of a site must not count many times. A group that lies in one zone passes no zones.
    """

    __slots__ = ("_bounds", "_waits_from", "_zones", "accusers", "expires_at", "incarnation", "is_asked", "started_at")

    def __init__(self, now: int, bounds: SuspicionBounds, accuser: str, zone: str, incarnation: int) -> None:
        self.started_at = now
        self.incarnation = incarnation
        self.accusers = [accuser]
        """Those who counted, first accuser first."""
        self.is_asked = False
        """Whether the suspected one was asked a last time, and this is the wait for its answer."""
        self._zones = [zone]
        self._bounds = bounds
        self._waits_from = now
        self.expires_at = now + self._timeout_ns()

    @property
    def is_lone(self) -> bool:
        """Whether confirmations are wanted and none has come. Where none can come, nobody waits for one."""
        return self._bounds.wanted > 0 and len(self.accusers) == 1

    def confirm(self, now: int, accuser: str, zone: str) -> bool:
        """Another member says the same. Whether that counted; then the wait may be shorter, never longer."""
        if len(self.accusers) > self._bounds.wanted or accuser in self.accusers:
            return False
        if zone and zone in self._zones:
            return False
        self.accusers.append(accuser)
        self._zones.append(zone)
        self.expires_at = min(self.expires_at, max(now, self._waits_from + self._timeout_ns()))
        return True

    def rearm(self, now: int) -> None:
        """Wait anew, as long as the accusers so far allow: the verdict could not be trusted at this moment."""
        self._waits_from = now
        self.is_asked = False
        self.expires_at = now + self._timeout_ns()

    def ask(self, now: int, wait_ns: int) -> None:
        """Wait a little longer, for the answer to a last question."""
        self.is_asked = True
        self.expires_at = now + wait_ns

    def _timeout_ns(self) -> int:
        limits = self._bounds
        if limits.wanted == 0:
            return limits.min_ns
        confirmations = len(self.accusers) - 1
        # The first confirmation shortens the most.
        progress = log(confirmations + 1) / log(limits.wanted + 1)
        return max(limits.min_ns, limits.max_ns - round((limits.max_ns - limits.min_ns) * progress))
