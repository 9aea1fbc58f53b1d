"""Where things belong, by rendezvous hashing, and which of two is less loaded. Pure functions of what they are given.

Two members with different views give different answers. So a placement is an order of candidates and never a
permission: ownership is granted by a majority.

Weighted rendezvous hashing: Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA 2005.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import log
from random import Random
from typing import Final

from talka.errors import Invalid

WEIGHT_LIMIT: Final = 1e9
_PLACE_KEY: Final = b"talka placement 1"


def order(key: str, nodes: Mapping[str, float]) -> list[str]:
    """All nodes (with their weights) in the order in which they should own `key`: owner, backup, and so on.

    A node that comes or goes changes nothing in the order of the others.
    """
    return [node for _, node in sorted(_scores(key, nodes))]


def choose(rng: Random, candidates: Sequence[str], loads: Mapping[str, float]) -> str | None:
    """The less loaded of two candidates drawn at random; one that has no load yet counts as idle. None without any.

    Two choices suffice: all that chose the least loaded of old figures would choose the same one. Mitzenmacher 2001.
    """
    if len(candidates) < 2:
        return next(iter(candidates), None)
    place = rng.randrange(len(candidates))
    other = rng.randrange(len(candidates) - 1)
    first, second = candidates[place], candidates[other + (other >= place)]
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
        kept = 0.5 ** (max(0, now - self._at) / self._half_life_ns)
        self._sum = self._sum * kept + sample
        self._weight = self._weight * kept + 1.0
        self._at = max(self._at, now)


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
            raise Invalid(
                f"the node {node!r} has weight {weight}: a weight is above 0 and at most {WEIGHT_LIMIT:.0f};"
                " leave out a node that should get nothing"
            )
        digest = keyed.copy()
        digest.update(node.encode())
        # 52 bits and a half: exact as a float, and strictly between 0 and 1.
        u = ((int.from_bytes(digest.digest()) >> 12) + 0.5) * 2.0**-52
        scores.append((weight / log(u), node))
    return scores
