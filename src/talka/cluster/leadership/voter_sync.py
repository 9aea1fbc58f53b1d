"""When a voter that starts may vote again: once its peers were heard, and no promise of an earlier life can be running.

Votes and the term survive a restart on disk, as in Raft (dissertation §3.8); the answers a lease rests on (§6.4.1) do
not, so none is given while one may still bind. docs/decisions/0012-the-holes-of-leadership.md.
"""

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.news import LeadershipEffect
from talka.cluster.leadership.peer_checks import PeerChecks
from talka.cluster.leadership.register import Acceptor
from talka.cluster.leadership.timings import LeadershipConfig
from talka.cluster.leadership.voter_startup import VoterStartup
from talka.cluster.leadership.voters import Electorate
from talka.wire.leadership import CHANNEL, VoterHello, VoterWelcome


class VoterSync:
    """Greets the other voters, answers those that greet, and says when this one is settled."""

    def __init__(
        self,
        now: int,
        config: LeadershipConfig,
        acceptor: Acceptor,
        electorate: Electorate,
        startup: VoterStartup,
        checks: PeerChecks,
    ) -> None:
        self._config = config
        self._acceptor = acceptor
        self._electorate = electorate
        self._startup = startup
        self._checks = checks
        promised_ns = self._promised_ns()
        self.votes_from = now + promised_ns
        """A promise made before this start may have been forgotten: none is given while one could still be running."""
        self.stands_from = now + promised_ns
        self.hello_at = now

    def _promised_ns(self) -> int:
        """How long a promise of an earlier life may run, which may have counted another lease; and count from now
        on."""
        own_ns, record = self._config.lease_ns, self._acceptor.record
        voter_lease_ns = self._config.voter_lease_ns()
        if record.lease_ns < own_ns:
            self._acceptor.count_with(own_ns)
        earlier = msgspec.structs.replace(self._config, lease_ns=record.lease_ns)
        return max(voter_lease_ns, earlier.voter_lease_ns())

    def greet(self, now: int, leader: str, out: list[LeadershipEffect]) -> None:
        if now < self.hello_at:
            return
        self.hello_at = now + self._config.hello_ns
        names = dict.fromkeys(self._electorate.others())
        if leader:
            names[leader] = None  # it may have become a voter after this one's disk was lost
        for name in names:
            # What a VoterHello says of the disk must be true of the disk.
            self._acceptor.answer(name, self._startup.hello(name), out)

    def on_hello(self, sender: str, message: VoterHello, out: list[LeadershipEffect]) -> bool:
        """Answer one that starts. Whether a leader may act on it."""
        if self._checks.is_stranger(sender, message.group_id, out):
            return False
        is_new = not self._acceptor.record.group_id and not message.group_id
        if is_new and message.voters != self._startup.digest:
            text = f"{sender!r} was started with other voters than {self._startup.name!r}: give all the same list"
            self._checks.alarm("voters", sender, text, out)
            return False
        is_fresh = self._startup.is_fresh(sender, message)
        welcome = self._startup.welcome(sender, message, self._electorate.config)
        out.append(Send(CHANNEL, sender, welcome, Lane.CONTROL))
        return is_fresh

    def on_welcome(self, sender: str, message: VoterWelcome, out: list[LeadershipEffect]) -> bool:
        """Hear what a peer remembers of this voter. Whether it is of this group."""
        if self._checks.is_stranger(sender, message.group_id, out):
            return False
        if problem := self._startup.judge(sender, message):
            self._checks.alarm("disk", self._startup.name, problem, out)
            self._electorate.config = self._startup.founders
        if self._electorate.is_voter(sender):
            self._startup.heard(sender, message)
        return True

    def settle(self, now: int) -> bool:
        """Whether a majority has been heard and no promise of an earlier life can still be running."""
        if now < self.votes_from or not self._startup.is_settled(now, self._electorate):
            return False
        self._acceptor.admit()
        self._acceptor.count_with(self._config.lease_ns)  # what was promised by a longer one is over
        return True
