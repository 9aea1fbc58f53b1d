"""How much each source may send: asked for every datagram, before anything in it is looked at.

Decision: docs/decisions/0014-sealed-and-alive.md.
"""

from collections import OrderedDict
from typing import Final

from talka.errors import Invalid
from talka.units import SECOND

SOURCES_LIMIT: Final = 4096


class TokenBuckets:
    """One bucket for each source: it holds `burst` tokens and gains `rate_per_s`.

    At `sources_limit` the source heard of longest ago is forgotten; when it returns, its bucket is full. A flood
    under ever new addresses is therefore bounded in memory here, and in work only by what follows the bucket.
    """

    __slots__ = ("_depth", "_rate_per_s", "_sources_limit", "_spent", "refused")

    def __init__(self, rate_per_s: int, burst: int, sources_limit: int = SOURCES_LIMIT) -> None:
        if rate_per_s < 1 or burst < 1 or sources_limit < 1:
            raise Invalid(
                "token buckets need rate_per_s, burst and sources_limit of at least 1, "
                f"not {rate_per_s}, {burst} and {sources_limit}"
            )
        self._rate_per_s = rate_per_s
        # Counted in billionths of a token: as many as nanoseconds times the rate, so whole numbers hold it exactly.
        self._depth = burst * SECOND
        self._sources_limit = sources_limit
        # For each source the point of its own time up to which tokens are spent, in the order of the last use. An
        # ordered dict: taking the oldest from a plain one walks over all that were deleted before it.
        self._spent: OrderedDict[str, int] = OrderedDict()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._spent)

    def allows(self, now_ns: int, source: str, cost: int = 1) -> bool:
        """Whether `source` may have `cost` tokens now; they are taken only if so."""
        spent = self._spent
        gained = now_ns * self._rate_per_s
        floor = gained - self._depth
        used = spent.get(source)
        if used is None:
            if len(spent) >= self._sources_limit:
                spent.popitem(last=False)
            used = floor
            spent[source] = used
        else:
            spent.move_to_end(source)
            # Above the brim nothing is kept.
            if used < floor:
                used = floor
        used += cost * SECOND
        if used > gained:
            self.refused += 1
            return False
        spent[source] = used
        return True
