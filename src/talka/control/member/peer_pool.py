"""Which peers a node keeps connections to: near, well, few, and not all the same ones as its neighbours keep.

An order by rendezvous hashing spreads the nodes over the peers, two random choices spread their load, and a connection
stays until its peer does badly.

No node uses this yet: workers, clients and gates will, to choose and remember peers.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, IntEnum
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.placement import choose, order
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND

OUTCOMES_KEPT: Final = 100
"""Of each peer; the error rate is over these."""
LATENCIES_KEPT: Final = 64
"""Of each peer; the baseline is over these of the others."""
LATENCY_CHECK_EVERY: Final = 16
"""Answers of a peer between two comparisons with the baseline, which sorts a few hundred numbers."""
LOWEST_WEIGHT: Final = 0.1


class Tier(IntEnum):
    """How near a peer is."""

    DATACENTER = 0
    REGION = 1
    ANY = 2


class EvictionReason(Enum):
    """Why a peer left the pool."""

    ERRORS = "error_rate"
    FAILURES = "consecutive_failures"
    SLOW = "latency"
    GONE = "gone"
    """It is no longer among the known peers."""


class PooledPeer(msgspec.Struct, frozen=True):
    name: str
    datacenter: str = ""
    region: str = ""


class Added(msgspec.Struct, frozen=True):
    """Connect to this peer: it is in the pool now."""

    peer: str
    is_primary: bool


class Promoted(msgspec.Struct, frozen=True):
    """This backup carries requests from now on. Its connection stays."""

    peer: str


class Evicted(msgspec.Struct, frozen=True):
    """Close the connection to this peer."""

    peer: str
    reason: EvictionReason


class RefreshDue(msgspec.Struct, frozen=True):
    """The connection to this peer is old: open a new one when it suits, then call `reconnected`."""

    peer: str


PoolNews: TypeAlias = Added | Promoted | Evicted | RefreshDue


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of a pool; the defaults suit clusters of any size."""

    primaries: int = 3
    """Peers that carry requests, in turn."""
    backups: int = 2
    """Peers connected and idle, for the moment when a primary fails."""
    candidates: int = 8
    """The first of the order by rendezvous hashing, among which two are drawn."""
    min_peers: int = 3
    """With fewer peers this near, the next tier is added."""
    alpha: float = 0.2
    """How much the latest latency counts in the mean. More follows faster and forgives less."""
    error_rate_limit: float = 0.05
    samples_min: int = 20
    """Outcomes before an error rate means anything, and latencies of others before a baseline does."""
    failures_limit: int = 3
    """More failures than this in a row, and the peer is evicted."""
    slow_factor: float = 3.0
    """A mean latency above this many times the baseline, and the peer is evicted."""
    rest_ns: int = 30 * SECOND
    """An evicted peer is not chosen again for this long, unless nobody else is left."""
    replenish_min_ns: int = 100 * MILLISECOND
    replenish_max_ns: int = 500 * MILLISECOND
    """A vacancy is filled after a random time between the two: not by all nodes at once when a peer dies."""
    age_ns: int = 3600 * SECOND
    """Connections older than this, and up to a tenth more by chance, are due for refresh."""
    peers_limit: int = 1024

    def __post_init__(self) -> None:
        for name in ("primaries", "min_peers", "samples_min", "failures_limit", "rest_ns", "age_ns", "peers_limit"):
            value: int = getattr(self, name)
            if value < 1:
                raise Invalid(f"pool: {name} is {value}; give at least 1")
        if self.backups < 0:
            raise Invalid(f"pool: backups is {self.backups}; give at least 0")
        if self.candidates < self.primaries + self.backups:
            raise Invalid(
                f"pool: candidates is {self.candidates}; give at least primaries + backups, "
                f"which is {self.primaries + self.backups}"
            )
        if self.samples_min > OUTCOMES_KEPT:
            raise Invalid(f"pool: samples_min is {self.samples_min}; give at most {OUTCOMES_KEPT}, as many are kept")
        if not 0.0 < self.alpha <= 1.0 or not 0.0 <= self.error_rate_limit < 1.0 or not self.slow_factor > 1.0:
            raise Invalid(
                "pool: give alpha above 0 and up to 1, error_rate_limit from 0 to below 1 and slow_factor above 1, "
                f"not {self.alpha}, {self.error_rate_limit} and {self.slow_factor}"
            )
        if not 0 <= self.replenish_min_ns <= self.replenish_max_ns:
            raise Invalid(
                "pool: replenish_min_ns must be at least 0 and at most replenish_max_ns, "
                f"not {self.replenish_min_ns} and {self.replenish_max_ns}"
            )


DEFAULT_CONFIG: Final = PoolConfig()


class _Record:
    """What is known of one peer."""

    __slots__ = (
        "answers",
        "errors",
        "failures",
        "latencies",
        "mean_ns",
        "outcomes",
        "refresh_at",
        "rests_until",
        "tier",
    )

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.mean_ns = 0.0
        """0 before the first answer, so that a new peer is tried."""
        self.rests_until = 0
        self.refresh_at = NEVER
        self.forgive()

    def forgive(self) -> None:
        """Begin a new account. The mean latency stays: it still tells which of two is quicker."""
        self.outcomes: deque[bool] = deque(maxlen=OUTCOMES_KEPT)
        self.latencies: deque[int] = deque(maxlen=LATENCIES_KEPT)
        self.errors = 0
        self.failures = 0
        self.answers = 0

    @property
    def error_rate(self) -> float:
        return self.errors / len(self.outcomes) if self.outcomes else 0.0

    def note(self, is_error: bool) -> None:
        outcomes = self.outcomes
        if len(outcomes) == OUTCOMES_KEPT:
            self.errors -= outcomes[0]
        outcomes.append(is_error)
        self.errors += is_error
        self.failures = self.failures + 1 if is_error else 0


class PeerPool:
    """The sticky pool of one node: primaries that carry requests in turn, and backups.

    Call `set_peers` with all peers known, `succeeded` or `failed` after every request, `tick` once `next_tick_at` has
    come, and carry out the news they return. The first peers are connected at once, later vacancies after a pause.
    The counters `evictions`, `promotions`, `additions` and `tiers` (additions by tier) only grow.
    """

    __slots__ = (
        "_backups",
        "_config",
        "_datacenter",
        "_is_started",
        "_key",
        "_own",
        "_primaries",
        "_records",
        "_region",
        "_replenish_at",
        "_rng",
        "_turn",
        "additions",
        "evictions",
        "next_tick_at",
        "promotions",
        "tiers",
    )

    def __init__(self, own: PooledPeer, role: str, rng: Random, config: PoolConfig = DEFAULT_CONFIG) -> None:
        self._config = config
        self._rng = rng
        self._datacenter = own.datacenter
        self._region = own.region
        self._own = own.name
        self._key = f"{own.name}/{role}"
        self._records: dict[str, _Record] = {}
        self._primaries: list[str] = []
        self._backups: list[str] = []
        self._is_started = False
        self._replenish_at = NEVER
        self._turn = 0
        self.next_tick_at = NEVER
        self.evictions = dict.fromkeys(EvictionReason, 0)
        self.promotions = 0
        self.additions = 0
        self.tiers = [0] * len(Tier)

    @property
    def primaries(self) -> tuple[str, ...]:
        return tuple(self._primaries)

    @property
    def backups(self) -> tuple[str, ...]:
        return tuple(self._backups)

    def latency_ns(self, peer: str) -> float:
        """The mean latency of a peer; 0 for one that has not answered yet."""
        record = self._records.get(peer)
        return record.mean_ns if record else 0.0

    def error_rate(self, peer: str) -> float:
        """Of the latest `OUTCOMES_KEPT` requests; 0 without any."""
        record = self._records.get(peer)
        return record.error_rate if record else 0.0

    def next_primary(self) -> str | None:
        """The peer for the next request: each primary in turn. None when there is none."""
        primaries = self._primaries
        if not primaries:
            return None
        self._turn = (self._turn + 1) % len(primaries)
        return primaries[self._turn]

    def set_peers(self, now: int, peers: Iterable[PooledPeer]) -> list[PoolNews]:
        """These peers are known now and no others, oneself aside. Beyond `peers_limit` the farthest are left out."""
        nearest = sorted((self._tier(peer), peer.name) for peer in peers if peer.name != self._own)[
            : self._config.peers_limit
        ]
        known: dict[str, _Record] = {}
        for tier, name in nearest:
            record = self._records.get(name) or _Record(tier)
            record.tier = tier
            known[name] = record
        # Those that are gone may not be promoted, so all leave before any promotion.
        gone = [name for name in (*self._primaries, *self._backups) if name not in known]
        self._primaries = [name for name in self._primaries if name in known]
        self._backups = [name for name in self._backups if name in known]
        self._records = known
        self.evictions[EvictionReason.GONE] += len(gone)
        news: list[PoolNews] = [Evicted(name, EvictionReason.GONE) for name in gone]
        self._promote(news)
        if known and not self._is_started:
            self._is_started = True
            self._fill(now, news)
        self._plan(now)
        return news

    def succeeded(self, now: int, peer: str, latency_ns: int) -> list[PoolNews]:
        """A request to this peer was answered."""
        record = self._records.get(peer)
        if record is None:
            return []
        alpha = self._config.alpha
        record.mean_ns = alpha * latency_ns + (1.0 - alpha) * record.mean_ns if record.mean_ns else float(latency_ns)
        record.latencies.append(latency_ns)
        record.note(False)
        record.answers += 1
        if record.answers % LATENCY_CHECK_EVERY or not self._is_in(peer):
            return []
        baseline_ns = self._baseline_ns(peer, record.tier)
        if baseline_ns is None or record.mean_ns <= self._config.slow_factor * baseline_ns:
            return []
        # Slow is better than none.
        if not self._backups and not self._eligible(now):
            return []
        return self._evict(now, peer, EvictionReason.SLOW)

    def failed(self, now: int, peer: str) -> list[PoolNews]:
        """A request to this peer failed, or nobody answered in time."""
        record = self._records.get(peer)
        if record is None:
            return []
        config = self._config
        record.note(True)
        if not self._is_in(peer):
            return []
        if record.failures > config.failures_limit:
            return self._evict(now, peer, EvictionReason.FAILURES)
        if len(record.outcomes) >= config.samples_min and record.error_rate > config.error_rate_limit:
            return self._evict(now, peer, EvictionReason.ERRORS)
        return []

    def reconnected(self, now: int, peer: str) -> None:
        """There is a new connection to this peer: its age begins now."""
        if self._is_in(peer):
            self._records[peer].refresh_at = self._refresh_at(now)
            self._plan(now)

    def tick(self, now: int) -> list[PoolNews]:
        if now < self.next_tick_at:
            return []
        news: list[PoolNews] = []
        if now >= self._replenish_at:
            self._replenish_at = NEVER
            self._fill(now, news)
        for name in (*self._primaries, *self._backups):
            record = self._records[name]
            if now >= record.refresh_at:
                record.refresh_at = self._refresh_at(now)
                news.append(RefreshDue(name))
        self._plan(now)
        return news

    def candidates(self, now: int) -> list[str]:
        """The peers to choose from, best first: near enough, not resting, in an order that is this node's own."""
        awake = [(name, record) for name, record in self._records.items() if now >= record.rests_until]
        if not self._primaries and not awake:
            awake = list(self._records.items())
        weights: dict[str, float] = {}
        for tier in Tier:
            if len(weights) >= self._config.min_peers:
                break
            weights.update((name, self._weight(name, record)) for name, record in awake if record.tier is tier)
        return order(self._key, weights)[: self._config.candidates]

    def _tier(self, peer: PooledPeer) -> Tier:
        if peer.datacenter == self._datacenter:
            return Tier.DATACENTER
        # Two that have no region are not therefore in the same one.
        return Tier.REGION if peer.region and peer.region == self._region else Tier.ANY

    def _is_in(self, peer: str) -> bool:
        return peer in self._primaries or peer in self._backups

    def _eligible(self, now: int) -> list[str]:
        return [name for name in self.candidates(now) if not self._is_in(name)]

    def _weight(self, peer: str, record: _Record) -> float:
        """1 for a peer in full health, down to `LOWEST_WEIGHT`.

        The latency counts by how far it is from the baseline (0) to where it would be evicted (1).
        """
        factor = 0.0
        baseline_ns = self._baseline_ns(peer, record.tier) if record.mean_ns else None
        if baseline_ns:
            factor = (record.mean_ns / baseline_ns - 1.0) / (self._config.slow_factor - 1.0)
        return max(LOWEST_WEIGHT, 1.0 - 2.0 * record.error_rate - 0.5 * min(1.0, max(0.0, factor)))

    def _baseline_ns(self, peer: str, tier: Tier) -> int | None:
        """The 99th percentile of the recent latencies of the other peers in the pool that are as near as this one.

        Without its own: a slow peer would raise the mark it is measured by. As near: a far peer is far, not slow.
        """
        samples: list[int] = []
        for name in (*self._primaries, *self._backups):
            record = self._records[name]
            if name != peer and record.tier is tier:
                samples.extend(record.latencies)
        if len(samples) < self._config.samples_min:
            return None
        samples.sort()
        # The nearest rank, upwards.
        return samples[-(-99 * len(samples) // 100) - 1]

    def _evict(self, now: int, peer: str, reason: EvictionReason) -> list[PoolNews]:
        record = self._records[peer]
        record.rests_until = now + self._config.rest_ns
        record.forgive()
        (self._primaries if peer in self._primaries else self._backups).remove(peer)
        self.evictions[reason] += 1
        news: list[PoolNews] = [Evicted(peer, reason)]
        self._promote(news)
        self._plan(now)
        return news

    def _promote(self, news: list[PoolNews]) -> None:
        while self._backups and len(self._primaries) < self._config.primaries:
            best = min(self._backups, key=lambda name: (self._records[name].mean_ns, name))
            self._backups.remove(best)
            self._primaries.append(best)
            self.promotions += 1
            news.append(Promoted(best))

    def _fill(self, now: int, news: list[PoolNews]) -> None:
        config = self._config
        eligible = self._eligible(now)
        while self._has_vacancy() and eligible:
            means = {name: self._records[name].mean_ns for name in eligible}
            chosen = choose(self._rng, eligible, means)
            assert chosen is not None  # There are some.
            eligible.remove(chosen)
            is_primary = len(self._primaries) < config.primaries
            (self._primaries if is_primary else self._backups).append(chosen)
            record = self._records[chosen]
            record.refresh_at = self._refresh_at(now)
            self.additions += 1
            self.tiers[record.tier] += 1
            news.append(Added(chosen, is_primary))

    def _has_vacancy(self) -> bool:
        return len(self._primaries) + len(self._backups) < self._config.primaries + self._config.backups

    def _refresh_at(self, now: int) -> int:
        return now + self._config.age_ns + self._rng.randint(0, self._config.age_ns // 10)

    def _plan(self, now: int) -> None:
        """Say when `tick` is due: for a vacancy that somebody could fill, now or after a rest, and for old
        connections."""
        config = self._config
        if not self._has_vacancy():
            self._replenish_at = NEVER
        elif self._replenish_at == NEVER or not self._primaries:
            # Without primaries also those that rest are eligible: what was planned for after a rest is too late.
            pause_ns = self._rng.randint(config.replenish_min_ns, config.replenish_max_ns)
            if self._eligible(now):
                self._replenish_at = min(self._replenish_at, now + pause_ns)
            else:
                rests = [record.rests_until for record in self._records.values() if record.rests_until > now]
                self._replenish_at = min(rests) + pause_ns if rests else NEVER
        pooled = (*self._primaries, *self._backups)
        self.next_tick_at = min((self._records[name].refresh_at for name in pooled), default=NEVER)
        self.next_tick_at = min(self.next_tick_at, self._replenish_at)
