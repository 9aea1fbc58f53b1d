"""News about members waiting to be sent on: each often enough to reach nearly everybody, and no oftener.

SWIM §4.1 infection-style dissemination. docs/decisions/0013-membership-measures-itself.md.
"""

from bisect import bisect_left, insort
from enum import IntEnum
from typing import Final, TypeAlias

from talka.cluster.membership.presets import MembershipConfig
from talka.wire.packets import DATAGRAM_LIMIT_BYTES

QUEUE_LIMIT: Final = 4096
NEWS_LIMIT_BYTES: Final = DATAGRAM_LIMIT_BYTES - 160
"""What is left beside a packet's header. Larger news could never leave; the sync carries it."""
MISFITS_LIMIT: Final = 8
"""So many that do not fit are passed over in search of smaller ones: a long queue is not searched to its end."""


class Priority(IntEnum):
    """Lower is sent first. Good news goes before bad: it prevents verdicts, which cost more than they are late."""

    JOINED_OR_LEFT = 0
    ALIVE = 1
    SUSPECT = 2
    DEAD = 3


# (times sent, priority, minus the order of arrival, name, raw); the third is unique, so names are never compared.
_News: TypeAlias = tuple[int, int, int, str, bytes]


class GossipQueue:
    """At most one news of each member: the newest."""

    __slots__ = ("_arrivals", "_by_name", "_limit", "_multiplier", "_queue")

    def __init__(self, config: MembershipConfig, limit: int = QUEUE_LIMIT) -> None:
        self._multiplier = config.retransmit_multiplier
        self._limit = limit
        self._arrivals = 0
        self._by_name: dict[str, _News] = {}
        self._queue: list[_News] = []
        """Sorted: what is sent next comes first, what is given up next comes last."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def pending(self) -> bool:
        return bool(self._queue)

    def push(self, name: str, raw: bytes, priority: int) -> None:
        """News of a member, encoded. It replaces what was still to be told of that member."""
        self.forget(name)
        if len(raw) > NEWS_LIMIT_BYTES:
            return
        self._arrivals += 1
        news = (0, priority, -self._arrivals, name, raw)
        self._by_name[name] = news
        insort(self._queue, news)
        if len(self._queue) > self._limit:
            self._give_up_last()

    def take(self, budget_bytes: int, members: int) -> list[bytes]:
        """What rides along now: the least sent first, then by priority, then the newest. It counts as sent."""
        queue = self._queue
        if not queue:
            return []
        # The digits of n are ceil(log10(n + 1)), without its rounding.
        sendings = self._multiplier * len(str(members))
        while queue and queue[-1][0] >= sendings:  # the group has shrunk
            self._give_up_last()
        taken: list[_News] = []
        misfits: list[_News] = []
        for news in queue:
            size_bytes = len(news[4])
            if size_bytes <= budget_bytes:
                taken.append(news)
                budget_bytes -= size_bytes
            else:
                misfits.append(news)
                if len(misfits) == MISFITS_LIMIT:
                    break
        if not taken:
            return []
        # What was looked at is the head of the queue; misfits go back to where they were.
        queue[: len(taken) + len(misfits)] = misfits
        for times, priority, order, name, raw in taken:
            if times + 1 < sendings:
                news = (times + 1, priority, order, name, raw)
                self._by_name[name] = news
                insort(queue, news)
            else:
                del self._by_name[name]
        return [news[4] for news in taken]

    def forget(self, name: str) -> None:
        """Tell nothing more of this member."""
        news = self._by_name.pop(name, None)
        if news is not None:
            del self._queue[bisect_left(self._queue, news)]

    def _give_up_last(self) -> None:
        del self._by_name[self._queue.pop()[3]]
