"""When a voter stands: after the lease it knows of is over, and later when it has reason to doubt itself.

Every reason delays; none excludes. A group whose voters are all unwell still elects one of them.

Raft (Ongaro's dissertation) §3.4 randomized election timeouts, §3.9 timing.
docs/decisions/0012-the-holes-of-leadership.md.
"""

from collections import deque
from random import Random
from typing import Final

from talka.cluster.leadership.timings import LeadershipConfig

UNWELL_SCORE: Final = 3
"""Local health from which on a voter lets others go first."""
WORST_SCORE: Final = 8
CLEARLY: Final = 3
"""By how much of local health another voter must be better off to be handed leadership."""
FLAP_WINDOW_NS: Final = 60_000_000_000
FLAPS_KEPT: Final = 8
DELAY_LIMIT_LEASES: Final = 3


class ElectionTimeouts:
    """Draws the waits before a candidacy. Times and randomness are passed in."""

    def __init__(self, config: LeadershipConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._shortest_ns = config.voter_lease_ns()
        self._losses: deque[int] = deque(maxlen=FLAPS_KEPT)
        self.score = 0
        """Local health, 0 (well) to 8."""
        self.may_lead = True
        """False of one that does so badly that it lets all others go first."""
        self._others_until: int | None = None

    def lost_leadership(self, now: int) -> None:
        """This voter led and was deposed: the more often lately, the later it stands again."""
        self._losses.append(now)

    def doubt(self, now: int) -> int:
        """What is told to peers, 0 (well) to 8: who was deposed lately may be well, and be so again."""
        return min(WORST_SCORE, self.score + CLEARLY * self._flaps(now))

    def wait_ns(self, now: int) -> int:
        """From the last word of a leader to a candidacy: 1.02 to 1.5 leases, and what doubts add."""
        self._others_until = None
        longest = max(self._shortest_ns + 1, self._config.lease_ns * 3 // 2)
        return self._rng.randrange(self._shortest_ns, longest) + self._doubt_ns(now)

    def retry_ns(self, now: int) -> int:
        """From a candidacy that found no majority to the next one."""
        lease = self._config.lease_ns
        return self._rng.randrange(lease // 20, lease // 4) + self._doubt_ns(now) // 4

    def others_go_first_until(self, now: int) -> int:
        """Ask when it is time to stand. One that should not lead waits longer than all others together wait at most,
        once: where nobody has come to lead by then, somebody who does badly is better than nobody."""
        if self.may_lead:
            return now
        if self._others_until is None:
            self._others_until = now + DELAY_LIMIT_LEASES * self._config.lease_ns
        return self._others_until

    def hint_ns(self) -> int:
        """From the news that the leader is dead: voters decide by their own clocks whether they agree."""
        return self._rng.randrange(0, self._config.lease_ns // 5)

    def _doubt_ns(self, now: int) -> int:
        lease = self._config.lease_ns
        doubt = 0
        if self.score >= UNWELL_SCORE:
            doubt += lease * (self.score - UNWELL_SCORE + 1) // 4
        flaps = self._flaps(now)
        if flaps > 1:
            doubt += self._rng.randrange(1, lease * 2 ** (flaps - 1) // 4)
        return min(doubt, DELAY_LIMIT_LEASES * lease)

    def _flaps(self, now: int) -> int:
        return sum(1 for at in self._losses if now - at < FLAP_WINDOW_NS)
