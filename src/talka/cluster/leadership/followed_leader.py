"""Whom a voter follows, and until when it is bound by having answered.

Raft (Ongaro's dissertation) §6.4.1 leases, §4.2.3 voters that hear a leader do not vote.
docs/decisions/0012-the-holes-of-leadership.md.
"""

from typing import Final

LONG_AGO: Final = -(2**62)


class FollowedLeader:
    """The leader a voter knows, and the lease that its answers are part of.

    A voter counts from when it handled a heartbeat, which is later than the leader counts from.
    """

    __slots__ = ("_followed", "_heard_at", "_lease_ns", "leader", "released", "term")

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._heard_at = LONG_AGO
        self._followed = ""  # who led `term`; kept when the leader is given up for lost
        self.leader = ""
        """Empty when none is known."""
        self.term = 0
        """The latest term whose leader was heard."""
        self.released = 0
        """The highest term known to have been given up by its leader."""

    def follow(self, now: int, leader: str, term: int) -> bool:
        """A heartbeat was heard. Whether that is news."""
        is_news = self.leader != leader or self.term != term
        self.leader = self._followed = leader
        self.term = term
        self._heard_at = now
        return is_news

    def lead(self, me: str, term: int) -> None:
        self.leader = self._followed = me
        self.term = term

    def forget(self) -> bool:
        """No leader is known any more. Whether one was."""
        was_known = bool(self.leader)
        self.leader = ""
        return was_known

    def release(self, sender: str, term: int) -> bool:
        """The leader of a term gave its lease up; only that leader itself can. Whether it was the one followed."""
        if term != self.term or sender != self._followed:
            return False
        self.released = term
        return True

    def binds_until(self, claimed: int = 0) -> int:
        """Until when a leader that was answered may still act. `claimed`: the term a peer says was given up."""
        if max(self.released, claimed) >= self.term:
            return LONG_AGO
        return self._heard_at + self._lease_ns
