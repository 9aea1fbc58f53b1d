"""A worker's lease: until when it may go on with its work without hearing from the leader.

See docs/decisions/0033-one-lease.md.
"""

from typing import Final

from talka.units import NEVER, SECOND

BEATS_REMEMBERED: Final = 16
USUAL_NS: Final = 5 * SECOND
"""Of a lease that nobody has told the length of yet. For a longer one beats are as frequent, for a shorter one more."""
BEATS_A_LEASE: Final = 5
AGAIN_A_LEASE: Final = 20
"""Beats while a renewal is late: a new leader is to hear of this worker before its lease is over."""
LATE_PERCENT: Final = 30
"""Without a renewal for so long the leader is gone, or what it said was lost: a beat is answered before the next."""
LEAST_BEAT_NS: Final = SECOND // 100
REFUSAL_COUNTS_NS: Final = 4 * SECOND
"""A connection that was refused so long ago says nothing of now. No manager that lives since has heard of this worker
before it, so whatever lease it counts is longer; and it needs two seconds from its first connection to its first
answer. Of a shorter lease it is less: those two seconds and two fifths of it."""
ANSWERS_AFTER_NS: Final = 2 * SECOND
DISCONNECT_GRACE_NS: Final = 300 * SECOND


class WorkerLease:
    """Counted from when the beat that was answered was sent, and a fifth shorter than the leader counts it.

    With a single manager whose address refuses connections nobody could give the tasks away: then it goes on for the
    grace. Silence is a cut, and ends it.
    """

    def __init__(self) -> None:
        self.is_held = False
        """As of the last `renew` or `has_ended`."""
        self._beats: dict[int, int] = {}
        self._lease_ns = USUAL_NS
        self._number = 0
        self._end_ns = 0
        self._grace_end_ns = 0
        self._refused_until_ns = 0
        self._renewed_ns = 0
        """When the last beat that was answered was sent."""
        self._sole = ""
        """The only manager there is, as the last renewal said."""

    @property
    def next_check_at(self) -> int:
        if not self.is_held:
            return NEVER
        return max(self._end_ns, min(self._refused_until_ns, self._grace_end_ns) if self._sole else 0)

    @property
    def _short_ns(self) -> int:
        return min(self._lease_ns, USUAL_NS)

    @property
    def beat_every_ns(self) -> int:
        return max(self._short_ns // BEATS_A_LEASE, LEAST_BEAT_NS)

    def next_beat_at(self, now: int) -> int:
        """After one that is sent now."""
        is_late = self.is_held and now - self._renewed_ns > self._short_ns * LATE_PERCENT // 100
        return now + (max(self._short_ns // AGAIN_A_LEASE, LEAST_BEAT_NS) if is_late else self.beat_every_ns)

    def beat(self, now: int) -> int:
        """A beat is sent now. Answers with its number."""
        self._number += 1
        self._beats[self._number] = now
        if len(self._beats) > BEATS_REMEMBERED:
            del self._beats[next(iter(self._beats))]
        return self._number

    def renew(self, now: int, sender: str, number: int, lease_ns: int, *, sole: bool) -> bool:
        """The leader has answered a beat. Whether it is one of those remembered, and its lease not over already."""
        sent_ns = self._beats.get(number)
        if sent_ns is None:
            return False
        end_ns = sent_ns + lease_ns * 4 // 5
        if end_ns >= self._end_ns:  # an answer that was overtaken by a later one takes nothing back
            self._end_ns, self._renewed_ns, self._lease_ns = end_ns, sent_ns, lease_ns
            self._grace_end_ns = sent_ns + DISCONNECT_GRACE_NS
            self._sole = sender if sole else ""
        self.is_held = self.is_held or now < self._end_ns
        return self.is_held

    def refused(self, now: int, manager: str) -> None:
        """The manager's address refuses connections."""
        if manager == self._sole:
            self._refused_until_ns = now + min(REFUSAL_COUNTS_NS, ANSWERS_AFTER_NS + self._lease_ns * 2 // 5)

    def has_ended(self, now: int) -> bool:
        """Whether it ended since it was last asked."""
        if now < self.next_check_at:
            return False
        self.is_held = False
        return True
