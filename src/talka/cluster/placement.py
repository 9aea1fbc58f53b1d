"""Where things belong, by rendezvous hashing, and which of two is less loaded. Pure functions of what they are given.

Two members with different views give different answers. So a placement is an order of candidates and never a
permission: ownership is granted by a majority.

Weighted rendezvous hashing: Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005.
No node uses `owner` and `assign` yet: owners of partitions and slots will.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from math import ceil, log
from random import Random
from typing import Final

from talka.errors import Invalid

SHARDS: Final = 1024
"""Jobs are owned by the shard, not one by one. Changing it moves every job: never within a running cluster."""
WEIGHT_LIMIT: Final = 1e9
# One key for each use: a node's place for a job says nothing about the job's shard.
_PLACE_KEY: Final = b"talka placement 1"
_SHARD_KEY: Final = b"talka job shard 1"


class BadWeight(Invalid):
    """A node's weight gives it no share that could be computed."""

    def __init__(self, node: str, weight: float) -> None:
        super().__init__(
            f"the node {node!r} has weight {weight}: a weight is above 0 and at most {WEIGHT_LIMIT:.0f};"
            " leave out a node that should get nothing"
        )
        self.node, self.weight = node, weight


def shard_of(job_id: str) -> int:
    """The shard a job belongs to, for ever: 0 to `SHARDS` − 1."""
    return int.from_bytes(blake2b(job_id.encode(), digest_size=8, key=_SHARD_KEY).digest()) % SHARDS


def partition_of(job_id: str, count: int) -> int:
    """The partition of a store with so many that a job belongs to, for ever: 0 to `count` − 1."""
    return shard_of(job_id) % count if count > 1 else 0


def order(key: str, nodes: Mapping[str, float]) -> list[str]:
    """All nodes (with their weights) in the order in which they should own `key`: owner, backup, and so on.

    A node that comes or goes changes nothing in the order of the others.
    """
    return _ordered(_scores(key, nodes))


def owner(key: str, nodes: Mapping[str, float]) -> str | None:
    """The first of `order`, None without nodes."""
    return _first(_scores(key, nodes)) if nodes else None


def assign(keys: Iterable[str], nodes: Mapping[str, float], slack: float = 1.25) -> dict[str, str]:
    """A node for every key, none with more than `ceil(slack · its share by weight)` of them; empty without nodes.

    A key whose first choice is full goes to the next with room. Keys choose in the order of their names, so the
    answer depends on the set of keys alone. Bounded loads: Mirrokni, Thorup, Zadimoghaddam, SODA 2018.
    """
    if not 1.0 <= slack <= WEIGHT_LIMIT:
        raise Invalid(f"slack must be from 1 to {WEIGHT_LIMIT:.0f}, not {slack}: below 1 some keys find no room")
    wanted = sorted(dict.fromkeys(keys))
    room = _room(len(wanted), nodes, slack)
    chosen: dict[str, str] = {}
    if not room:
        return chosen
    for key in wanted:
        scores = _scores(key, nodes)
        best = _first(scores)
        if not room[best]:
            best = next(node for node in _ordered(scores) if room[node])
        room[best] -= 1
        chosen[key] = best
    return chosen


def choose(rng: Random, candidates: Sequence[str], loads: Mapping[str, float]) -> str | None:
    """The less loaded of two candidates drawn at random; one that has no load yet counts as idle. None without any.

    Two choices suffice: all that chose the least loaded of old figures would choose the same one. Mitzenmacher 2001.
    """
    drawn = _draw_two(rng, candidates)
    if drawn is None:
        return None
    first, second = drawn
    return second if loads.get(second, 0.0) < loads.get(first, 0.0) else first


class Ewma:
    """A mean of samples in which each weighs half as much after every half-life."""

    __slots__ = ("_at", "_half_life_ns", "_sum", "_weight")

    def __init__(self, half_life_ns: int) -> None:
        if half_life_ns < 1:
            raise Invalid(f"half_life_ns must be at least 1, not {half_life_ns}")
        self._half_life_ns = half_life_ns
        self._sum = 0.0
        self._weight = 0.0
        self._at = 0

    @property
    def value(self) -> float:
        """The mean; 0 before the first sample."""
        return self._sum / self._weight if self._weight else 0.0

    def add(self, now: int, sample: float) -> None:
        kept = self._kept(now)
        self._sum = self._sum * kept + sample
        self._weight = self._weight * kept + 1.0
        self._at = max(self._at, now)

    def _kept(self, now: int) -> float:
        age_ns = now - self._at
        if age_ns <= 0:
            return 1.0
        return float(0.5 ** (age_ns / self._half_life_ns))


def _scores(key: str, nodes: Mapping[str, float]) -> list[tuple[float, str]]:
    """For each node (−score, name): sorted, the best comes first and ties fall by name.

    A score is −weight / ln u with u drawn from (key, node) alone: that other nodes come or go does not change it, and
    a node is first with a chance in proportion to its weight.
    """
    content = key.encode()
    # The length before the key: no other key and node join to the same bytes.
    keyed = blake2b(len(content).to_bytes(4) + content, digest_size=8, key=_PLACE_KEY)
    scores: list[tuple[float, str]] = []
    for node, weight in nodes.items():
        if not 0.0 < weight <= WEIGHT_LIMIT:
            raise BadWeight(node, weight)
        digest = keyed.copy()
        digest.update(node.encode())
        # 52 bits and a half: exact as a float, and strictly between 0 and 1.
        u = ((int.from_bytes(digest.digest()) >> 12) + 0.5) * 2.0**-52
        scores.append((weight / log(u), node))
    return scores


def _first(scores: list[tuple[float, str]]) -> str:
    return min(scores)[1]


def _ordered(scores: list[tuple[float, str]]) -> list[str]:
    scores.sort()
    return [node for _, node in scores]


def _room(keys: int, nodes: Mapping[str, float], slack: float) -> dict[str, int]:
    """How many keys each node may get. Exact fractions: rounding could leave one key without a place."""
    shares: dict[str, Fraction] = {}
    for node, weight in nodes.items():
        if not 0.0 < weight <= WEIGHT_LIMIT:
            raise BadWeight(node, weight)
        shares[node] = Fraction(weight)
    total = sum(shares.values(), Fraction())
    return {node: ceil(Fraction(slack) * keys * share / total) for node, share in shares.items()}


def _draw_two(rng: Random, candidates: Sequence[str]) -> tuple[str, str] | None:
    """Two different places of `candidates`, each pair as likely as any other; the same one twice when it is alone."""
    count = len(candidates)
    if count == 0:
        return None
    if count == 1:
        return candidates[0], candidates[0]
    first = rng.randrange(count)
    second = rng.randrange(count - 1)
    return candidates[first], candidates[second + (second >= first)]
