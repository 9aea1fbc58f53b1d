"""How far other machines' clocks are from this one's, estimated from questions and answers.

The answer to a question was given at some instant between asking and hearing; the quickest exchange of late says most.
Its error is at most half of what it took.
"""

from typing import Final

PEERS_LIMIT: Final = 8192
OPEN_LIMIT: Final = 16
"""Questions of one peer that wait for an answer."""
FRESH_NS: Final = 60_000_000_000
"""An older estimate gives way to any newer one: clocks drift."""
DRIFT_NS: Final = 12_000_000
"""By which two estimates may differ for that reason: 200 millionths of the time an estimate is fresh."""


class _Peer:
    __slots__ = ("asked", "measured_at", "offset_ns", "round_trip_ns")

    def __init__(self) -> None:
        self.asked: dict[int, int] = {}
        self.offset_ns: int | None = None
        self.round_trip_ns = 0
        self.measured_at = 0


class ClockOffsets:
    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._numbers = 0

    def asked(self, now: int, peer: str) -> int:
        """A number for a question that is asked now."""
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= PEERS_LIMIT:
                del self._peers[next(iter(self._peers))]
            known = self._peers[peer] = _Peer()
        if len(known.asked) >= OPEN_LIMIT:
            del known.asked[next(iter(known.asked))]
        self._numbers += 1
        known.asked[self._numbers] = now
        return self._numbers

    def heard(self, now: int, peer: str, number: int, clock_ns: int) -> None:
        known = self._peers.get(peer)
        asked_at = None if known is None else known.asked.pop(number, None)
        if known is None or asked_at is None:
            return
        round_trip_ns = now - asked_at
        offset_ns = clock_ns - (asked_at + now) // 2
        if known.offset_ns is not None and now - known.measured_at <= FRESH_NS and round_trip_ns > known.round_trip_ns:
            # No one clock gives two answers further apart than this: the name is another machine's by now.
            if abs(offset_ns - known.offset_ns) <= (round_trip_ns + known.round_trip_ns) // 2 + DRIFT_NS:
                return
        known.offset_ns, known.round_trip_ns, known.measured_at = offset_ns, round_trip_ns, now

    def knows(self, peer: str) -> bool:
        known = self._peers.get(peer)
        return known is not None and known.offset_ns is not None

    def there(self, peer: str, here_ns: int) -> int:
        """An instant of this clock, by the peer's. As it is when nothing is known of the peer's."""
        return here_ns + self._offset(peer)

    def here(self, peer: str, there_ns: int) -> int:
        return there_ns - self._offset(peer)

    def _offset(self, peer: str) -> int:
        known = self._peers.get(peer)
        return known.offset_ns or 0 if known is not None else 0
