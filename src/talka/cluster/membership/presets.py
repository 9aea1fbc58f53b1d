"""How fast a group notices things, and what it pays for that."""

from typing import Final

import msgspec

from talka.errors import Invalid
from talka.units import MILLISECOND, MINUTE, SECOND


class MembershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of one group's membership, the same for all its members. `PRESETS` spare users the choice."""

    probe_interval_ns: int
    """Time between probes. Half of it means twice the traffic and half the detection time."""
    probe_timeout_ns: int
    """Wait for a direct answer; then helpers are asked. Should be above nearly every round trip."""
    indirect_probes: int = 3
    """Helpers asked when a direct probe stays silent."""
    suspicion_multiplier: int
    """Shortest suspicion, in probe intervals per power of ten members. Two less of it are the confirmations wanted."""
    suspicion_max: int
    """How many times longer a suspicion lasts that nobody confirms. Larger forgives more and costs nothing when
    others confirm."""
    gossip_interval_ns: int
    """Time between rounds of gossip while there is news; without news nothing is sent."""
    gossip_fanout: int = 3
    """Members told in each round."""
    retransmit_multiplier: int = 4
    """Times each news is sent on, per power of ten members. Fewer leave more to the sync."""
    sync_interval_ns: int
    """Time between comparisons of the whole view with one other member, over TCP. Finds what gossip missed."""
    gossip_to_dead_ns: int
    """How long a dead member is still told the news, so that one wrongly declared dead learns of it and refutes."""
    reap_ns: int = 15 * MINUTE
    """When a dead member is dropped from the view."""
    rejoin_interval_ns: int = 30 * SECOND
    """Time between attempts to reach a seed or a dead member, for ever: a partition of any length heals."""
    lag_limit_ns: int = 100 * MILLISECOND
    """A member that handles datagrams or timers later than this doubts itself."""
    awareness_max: int = 8
    """The worst score of local health; at score s, probes take s + 1 times as long."""
    members_limit: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.probe_timeout_ns < self.probe_interval_ns:
            raise Invalid(
                f"membership: probe_timeout_ns is {self.probe_timeout_ns}; "
                f"give one above 0 and below probe_interval_ns, which is {self.probe_interval_ns}"
            )
        if self.reap_ns < self.gossip_to_dead_ns:
            raise Invalid(
                f"membership: reap_ns is {self.reap_ns}; give at least gossip_to_dead_ns, "
                f"which is {self.gossip_to_dead_ns}: nobody can be told who is no longer known"
            )
        for name, (lowest, highest) in _RANGES.items():
            value: int = getattr(self, name)
            if not lowest <= value <= highest:
                raise Invalid(f"membership: {name} is {value}; give {lowest} to {highest}")


_LONGEST: Final = 24 * 60 * MINUTE
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "probe_interval_ns": (10 * MILLISECOND, _LONGEST),
    "indirect_probes": (0, 16),
    "suspicion_multiplier": (1, 16),
    "suspicion_max": (1, 24),
    "gossip_interval_ns": (MILLISECOND, _LONGEST),
    "gossip_fanout": (1, 16),
    "retransmit_multiplier": (1, 16),
    "sync_interval_ns": (100 * MILLISECOND, _LONGEST),
    "gossip_to_dead_ns": (0, _LONGEST),
    "reap_ns": (SECOND, 7 * _LONGEST),
    "rejoin_interval_ns": (100 * MILLISECOND, _LONGEST),
    "lag_limit_ns": (MILLISECOND, _LONGEST),
    "awareness_max": (0, 8),
    "members_limit": (1, 100_000),
}

PRESETS: Final[dict[str, MembershipConfig]] = {
    # A local network. A death is known to all of 100 members in about 4 s. Idle, a member sends and receives about
    # twice what it does at serf-lan, some 0.5 kB/s.
    "default": MembershipConfig(
        probe_interval_ns=500 * MILLISECOND,
        probe_timeout_ns=200 * MILLISECOND,
        suspicion_multiplier=3,
        suspicion_max=8,
        gossip_interval_ns=100 * MILLISECOND,
        sync_interval_ns=10 * SECOND,
        gossip_to_dead_ns=30 * SECOND,
    ),
    # A quiet local network with processor time to spare. About 2.5 s at 100 members, for twice the traffic of default;
    # a network that often takes more than 120 ms makes it ask helpers all the time.
    "fast": MembershipConfig(
        probe_interval_ns=250 * MILLISECOND,
        probe_timeout_ns=120 * MILLISECOND,
        suspicion_multiplier=4,
        suspicion_max=6,
        gossip_interval_ns=50 * MILLISECOND,
        sync_interval_ns=10 * SECOND,
        gossip_to_dead_ns=30 * SECOND,
    ),
    # Between sites. Round trips of up to 1 s are borne; a death among 10 members is known within 15 s. A quarter of
    # the traffic of default.
    "wan": MembershipConfig(
        probe_interval_ns=2 * SECOND,
        probe_timeout_ns=1 * SECOND,
        suspicion_multiplier=4,
        suspicion_max=6,
        gossip_interval_ns=500 * MILLISECOND,
        gossip_fanout=4,
        sync_interval_ns=30 * SECOND,
        gossip_to_dead_ns=60 * SECOND,
    ),
    # What Serf does on a local network, to compare with. About 10 s at 100 members, half the traffic of default.
    "serf-lan": MembershipConfig(
        probe_interval_ns=1 * SECOND,
        probe_timeout_ns=500 * MILLISECOND,
        suspicion_multiplier=4,
        suspicion_max=6,
        gossip_interval_ns=200 * MILLISECOND,
        sync_interval_ns=30 * SECOND,
        gossip_to_dead_ns=30 * SECOND,
    ),
}
