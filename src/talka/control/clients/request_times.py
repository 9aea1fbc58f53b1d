"""How long requests take, and how old the oldest is that waits for its answer."""

from talka.units import SECOND

SETTLED_NS = SECOND
"""After another manager began to lead: who asked before was answered late because there was no leader, and that is no
load that clients could be spared."""


class RequestTimes:
    """`begin` and `end` each request; `take` what was answered since the last time; say `led` what leads."""

    def __init__(self, settled_ns: int = SETTLED_NS) -> None:
        self._settled_ns = settled_ns
        self._open: dict[int, int] = {}
        """Since when, by number, in their order. Connections are bounded, and each has one request."""
        self._numbers = 0
        self._leader = ""
        self._counts_from = 0
        self._took_ns = 0
        self._answered = 0

    def led(self, now: int, leader: str) -> None:
        """Who leads; empty: nobody, and nothing can be answered."""
        if leader != self._leader:
            self._leader = leader
            self._counts_from = now + self._settled_ns

    def begin(self, now: int) -> int:
        self._numbers += 1
        self._open[self._numbers] = now
        return self._numbers

    def end(self, now: int, number: int, *, is_answered: bool) -> None:
        """`is_answered` is False of one that failed because others are not there."""
        begun = self._open.pop(number)
        if is_answered and self._leader and begun >= self._counts_from:
            self._took_ns += now - begun
            self._answered += 1

    def take(self) -> int | None:
        """How long those took that were answered since this was last asked, on average; None: none was."""
        if not self._answered:
            return None
        took_ns = self._took_ns // self._answered
        self._took_ns = self._answered = 0
        return took_ns

    def oldest_ns(self, now: int) -> int:
        """For how long the oldest waits."""
        if not self._leader or not self._open:
            return 0
        return max(0, now - max(next(iter(self._open.values())), self._counts_from))
