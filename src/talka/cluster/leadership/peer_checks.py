"""Whether a peer's word may count here: it is of this group, counts the same lease, and can be read.

What may not count is an alarm for a person (docs/decisions/0012-the-holes-of-leadership.md).
"""

from typing import Final

from talka.cluster.leadership.lease_terms import LeaseFit
from talka.cluster.leadership.news import LeadershipAlarm, LeadershipEffect
from talka.cluster.leadership.register import Acceptor
from talka.cluster.leadership.voters import config_problem
from talka.wire.leadership import Collected, LeadershipMessage, Propose, RegisterSnapshot
from talka.work.durations import format_duration

ALARMS_LIMIT: Final = 64
TERM_JUMP_LIMIT: Final = 2**20
"""A term that is further ahead is not believed: no group holds a million elections while a voter is away."""


class PeerChecks:
    """One for each voter. Every alarm is told once for each peer and kind."""

    def __init__(self, name: str, acceptor: Acceptor, fit: LeaseFit) -> None:
        self._name = name
        self._acceptor = acceptor
        self._fit = fit
        self._alarms: dict[str, None] = {}

    def alarm(self, kind: str, about: str, text: str, out: list[LeadershipEffect]) -> None:
        key = f"{kind} {about}"
        if key not in self._alarms and len(self._alarms) < ALARMS_LIMIT:
            self._alarms[key] = None
            out.append(LeadershipAlarm(kind, text))

    def is_unreadable(self, sender: str, message: LeadershipMessage, out: list[LeadershipEffect]) -> bool:
        """Whether it brings a configuration that nobody can read: such a one must not come to be held."""
        if not isinstance(message, Propose | Collected | RegisterSnapshot):
            return False
        problem = config_problem(message.entries)
        if problem:
            self.alarm("configuration", sender, f"{sender!r}: {problem}", out)
        return bool(problem)

    def is_too_far(self, term: int, out: list[LeadershipEffect]) -> bool:
        own = self._acceptor.record.term
        if term - own <= TERM_JUMP_LIMIT:
            return False
        self.alarm("term", str(term >> 20), f"term {term} is too far ahead of {own} to be true", out)
        return True

    def is_stranger(self, sender: str, group_id: int, out: list[LeadershipEffect]) -> bool:
        own = self._acceptor.record.group_id
        if not own or not group_id or own == group_id:
            return False
        self.alarm("stranger", sender, f"{sender!r} belongs to another group of the same name: it was refused", out)
        return True

    def counts_otherwise(self, sender: str, lease_ns: int, out: list[LeadershipEffect]) -> bool:
        """Whether a voter counts the leader's lease longer or shorter: what one promises, the other would not keep."""
        if not self._fit.is_other(lease_ns):
            return False
        theirs, own = format_duration(lease_ns), format_duration(self._fit.leader_ns)
        text = (
            f"{sender!r} counts a leader's lease as {theirs}, {self._name!r} as {own}: it was refused; give all "
            "the same --preset"
        )
        self.alarm("lease", sender, text, out)
        return True
