"""How long leadership waits. Presets spare users the knobs."""

from typing import Final

import msgspec

from talka.cluster.safeguards import Safeguards
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND


class LeadershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_ns: int = 250 * MILLISECOND
    """Between heartbeats; each renews the lease. Half of it is twice the traffic and bears more loss."""
    lease_ns: int = 1500 * MILLISECOND
    """A dead leader is followed by a new one after 1 to 1.5 of these and a few round trips."""
    drift_per_mille: int = 20
    """How much faster or slower than true time a clock may run. Beyond it two voters may hold the lease at once."""
    ask_timeout_ns: int = 300 * MILLISECOND
    """How long a candidate waits for answers before it tries again."""
    hello_ns: int = 200 * MILLISECOND
    write_timeout_ns: int = 2 * SECOND
    read_spacing_ns: int = 20 * MILLISECOND
    """Reads may start rounds of heartbeats of their own, this far apart."""

    def __post_init__(self) -> None:
        if not 0 < 3 * self.heartbeat_ns <= self.lease_ns:
            raise Invalid("a lease must last for at least three heartbeats")
        if not 0 <= self.drift_per_mille <= 200:
            raise Invalid("drift_per_mille must be between 0 and 200")
        if min(self.ask_timeout_ns, self.hello_ns, self.write_timeout_ns, self.read_spacing_ns) <= 0:
            raise Invalid("timeouts must be above zero")

    def leader_lease_ns(self, safeguards: Safeguards) -> int:
        """A leader counts its lease shorter than it is …"""
        return self.lease_ns - (self.lease_ns * self.drift_per_mille // 1000 if safeguards.drift_margin else 0)

    def voter_lease_ns(self, safeguards: Safeguards) -> int:
        """… and a voter longer: whatever their clocks do within the limit, the leader stops first."""
        return self.lease_ns + (self.lease_ns * self.drift_per_mille // 1000 if safeguards.drift_margin else 0)


LAN: Final = LeadershipConfig()
WAN: Final = LeadershipConfig(
    heartbeat_ns=SECOND,
    lease_ns=8 * SECOND,
    ask_timeout_ns=2 * SECOND,
    hello_ns=SECOND,
    write_timeout_ns=10 * SECOND,
    read_spacing_ns=100 * MILLISECOND,
)
TIMINGS: Final = {"default": LAN, "wan": WAN}
