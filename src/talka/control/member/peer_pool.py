"""Which of several peers that can all do the same a node asks: a near one, the quicker of two, the same one as long as
it does well, and not the one that all its neighbours ask.

Power of two choices: Mitzenmacher 2001.
Decision: docs/decisions/0062-peers-are-remembered-and-near-ones-preferred.md.
"""

from collections.abc import Iterable
from enum import IntEnum
from random import Random
from typing import Final

import msgspec

from talka.cluster.placement import choose, order
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND
from talka.work.retry import RetryPolicy, delay

RESTS: Final = RetryPolicy(attempts=None, base_ns=500 * MILLISECOND, factor=2.0, cap_ns=30 * SECOND, jitter="quarter")
"""How long one that failed is left alone, after each failure in a row."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a node or a user stands. What is empty was not said."""

    zone: str = ""
    datacenter: str = ""
    region: str = ""


NOWHERE_SAID: Final = Place()


class Tier(IntEnum):
    """How near a peer is."""

    ZONE = 0
    DATACENTER = 1
    REGION = 2
    ANY = 3


def tier_of(own: Place, other: Place) -> Tier:
    if own.region and other.region and own.region != other.region:
        return Tier.ANY
    if own.datacenter != other.datacenter:
        # Two that have said no region are not therefore in the same one.
        return Tier.REGION if own.region and own.region == other.region else Tier.ANY
    return Tier.ZONE if own.zone and own.zone == other.zone else Tier.DATACENTER


class PooledPeer(msgspec.Struct, frozen=True):
    name: str
    """What it is asked by: its name or its address."""
    place: Place = NOWHERE_SAID


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of a pool; the defaults suit clusters of any size."""

    candidates: int = 8
    """The first of the order by rendezvous hashing, among which two are drawn."""
    alpha: float = 0.2
    """How much the latest latency counts in the mean. More follows faster and forgives less."""
    slow_factor: float = 3.0
    """A mean latency above this many times that of another as near, and the peer is left as if it had failed."""
    samples_min: int = 20
    """Answers of a peer before its mean latency is compared."""
    rests: RetryPolicy = RESTS
    peers_limit: int = 256

    def __post_init__(self) -> None:
        for name in ("candidates", "samples_min", "peers_limit"):
            value: int = getattr(self, name)
            if value < 1:
                raise Invalid(f"pool: {name} is {value}; give at least 1")
        if not 0.0 < self.alpha <= 1.0 or not self.slow_factor > 1.0:
            raise Invalid(
                f"pool: give alpha above 0 and up to 1 and slow_factor above 1, not {self.alpha} and {self.slow_factor}"
            )


DEFAULT_CONFIG: Final = PoolConfig()


class _Record:
    """What is known of one peer."""

    __slots__ = ("answers", "failed_at", "failures", "mean_ns", "rests_until", "tier")

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.mean_ns = 0.0
        """0 before the first answer, so that a new peer is tried."""
        self.answers = 0
        self.failures = 0
        """In a row."""
        self.failed_at = -NEVER
        self.rests_until = -NEVER


class PeerPool:
    """Call `set_peers` with all peers known, ask the one that `choose` names, and say `succeeded` or `failed`.

    `choose` stays with a peer until it fails, is slow beside another, or a nearer one can be asked; as long as anybody
    is known it names somebody. The counters `failures`, `slow` and `switches` only grow.
    """

    __slots__ = ("_config", "_key", "_own", "_place", "_records", "_rng", "current", "failures", "slow", "switches")

    def __init__(self, own: PooledPeer, role: str, rng: Random, config: PoolConfig = DEFAULT_CONFIG) -> None:
        self._config = config
        self._rng = rng
        self._own = own.name
        self._place = own.place
        self._key = f"{own.name}/{role}"
        self._records: dict[str, _Record] = {}
        self.current = ""
        """Whom `choose` named last; empty when that one is no longer known."""
        self.failures = 0
        self.slow = 0
        self.switches = 0
        """How often another was named than before."""

    def __len__(self) -> int:
        return len(self._records)

    def set_peers(self, peers: Iterable[PooledPeer]) -> None:
        """These peers are known now and no others, oneself aside. Beyond `peers_limit` the farthest are left out."""
        nearest = sorted((tier_of(self._place, peer.place), peer.name) for peer in peers if peer.name != self._own)
        known: dict[str, _Record] = {}
        for tier, name in nearest[: self._config.peers_limit]:
            record = known[name] = self._records.get(name) or _Record(tier)
            record.tier = tier
        self._records = known
        if self.current not in known:
            self.current = ""

    def tier(self, peer: str) -> Tier:
        """Of one that is known."""
        return self._records[peer].tier

    def latency_ns(self, peer: str) -> float:
        """The mean latency of a peer; 0 for one that has not answered yet."""
        record = self._records.get(peer)
        return record.mean_ns if record else 0.0

    def choose(self, now: int) -> str | None:
        """The peer to ask. None when nobody is known."""
        awake = self._awake(now)
        if not awake:
            # Somebody that failed is better than nobody: the one that has rested longest.
            chosen = min(self._records, key=lambda name: (self._records[name].rests_until, name), default="")
            return self._name(chosen) if chosen else None
        nearest = min(record.tier for record in awake.values())
        if self.current in awake and awake[self.current].tier is nearest:
            return self.current
        near = order(self._key, {name: 1.0 for name, record in awake.items() if record.tier is nearest})
        means = {name: record.mean_ns for name, record in awake.items()}
        drawn = choose(self._rng, near[: self._config.candidates], means)
        assert drawn is not None  # There are some.
        return self._name(drawn)

    def order(self, now: int) -> list[str]:
        """All of them in the order in which to ask: the chosen one, others that are awake from near to far, and those
        that rest, by when they have rested."""
        first = self.choose(now)
        if first is None:
            return []
        return [first, *(name for name in self.due(now) if name != first), *self._resting(now, but=first)]

    def due(self, now: int) -> list[str]:
        """Those that may be asked now, from near to far; among equals in an order that is this node's own."""
        awake = self._awake(now)
        ranks = {name: rank for rank, name in enumerate(order(self._key, dict.fromkeys(awake, 1.0)))}
        return sorted(awake, key=lambda name: (awake[name].tier, ranks[name]))

    def next_awake_at(self, now: int) -> int:
        """When the next of those that rest has rested; `NEVER` where none does."""
        return min((one.rests_until for one in self._records.values() if one.rests_until > now), default=NEVER)

    def succeeded(self, now: int, peer: str, asked_at: int) -> None:
        """It answered what it was asked then."""
        record = self._records.get(peer)
        if record is None:
            return
        alpha, latency_ns = self._config.alpha, now - asked_at
        record.mean_ns = alpha * latency_ns + (1.0 - alpha) * record.mean_ns if record.answers else float(latency_ns)
        record.answers += 1
        record.failures = 0
        record.rests_until = -NEVER
        if peer == self.current and self._is_slow(now, peer, record):
            self.slow += 1
            # Its account begins anew: after the rest it is compared by how it answers then.
            record.answers = 0
            self._rest(now, record)

    def failed(self, now: int, peer: str, asked_at: int) -> None:
        """It refused what it was asked then, was silent for too long, or said that it cannot answer now."""
        self.failures += 1
        record = self._records.get(peer)
        # Several questions that one death ends are one failure.
        if record is not None and asked_at >= record.failed_at:
            self._rest(now, record)

    def _name(self, chosen: str) -> str:
        self.switches += self.current not in ("", chosen)
        self.current = chosen
        return chosen

    def _awake(self, now: int) -> dict[str, _Record]:
        return {name: record for name, record in self._records.items() if now >= record.rests_until}

    def _resting(self, now: int, but: str) -> list[str]:
        resting = [name for name, record in self._records.items() if now < record.rests_until and name != but]
        return sorted(resting, key=lambda name: (self._records[name].rests_until, name))

    def _rest(self, now: int, record: _Record) -> None:
        record.failures += 1
        record.failed_at = now
        record.rests_until = now + delay(self._config.rests, record.failures, 0, self._rng)

    def _is_slow(self, now: int, peer: str, record: _Record) -> bool:
        """Beside the quickest that is as near and could be asked instead. A far peer is far, not slow."""
        config = self._config
        if record.answers < config.samples_min:
            return False
        others = [
            other.mean_ns
            for name, other in self._awake(now).items()
            if name != peer and other.tier is record.tier and other.answers >= config.samples_min
        ]
        return bool(others) and record.mean_ns > config.slow_factor * min(others)
