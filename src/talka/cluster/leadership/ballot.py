"""One candidacy: first the question whether a majority would vote, then the vote.

The question promises nothing and raises no term, so a voter without company disturbs nobody by asking.

Raft (Ongaro's dissertation) §3.4 leader election, §9.6 pre-vote. docs/decisions/0012-the-holes-of-leadership.md.
"""

from enum import Enum

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.followed_leader import FollowedLeader
from talka.cluster.leadership.news import LeadershipEffect
from talka.cluster.leadership.register import Acceptor
from talka.cluster.leadership.voters import CONFIG_KEY, Electorate
from talka.wire.leadership import CHANNEL, PreVote, PreVoteReply, Vote, VoteReply


class BallotStage(Enum):
    NONE = "none"
    ASKING = "asking"
    RUNNING = "running"


class Ballot:
    """Counts who would vote, and who has voted, for this voter."""

    def __init__(
        self, *, me: str, acceptor: Acceptor, electorate: Electorate, followed: FollowedLeader, lease_ns: int
    ) -> None:
        self._me = me
        self._acceptor = acceptor
        self._electorate = electorate
        self._followed = followed
        self._lease_ns = lease_ns
        self._round = 0
        self._ayes: dict[str, None] = {}
        self.stage = BallotStage.NONE

    def drop(self) -> None:
        self.stage = BallotStage.NONE

    def ask(self, now: int, out: list[LeadershipEffect]) -> bool:
        """Ask everybody. Whether the own word is a majority already."""
        self.stage = BallotStage.ASKING
        self._round += 1
        self._ayes = {self._me: None}
        record = self._acceptor.record
        version = self._acceptor.version_of(CONFIG_KEY)
        released = self._followed.released
        question = PreVote(record.term + 1, self._round, version, record.group_id, released, self._lease_ns)
        for name in self._electorate.others():
            out.append(Send(CHANNEL, name, question, Lane.CONTROL))
        return self._electorate.is_majority(now, self._ayes)

    def is_wanted(self, now: int, sender: str, message: PreVoteReply) -> bool:
        """Count an answer. Whether a majority would vote for this voter."""
        if self.stage is not BallotStage.ASKING or message.round != self._round or not message.granted:
            return False
        self._ayes[sender] = None
        return self._electorate.is_majority(now, self._ayes)

    def run(self) -> None:
        """Stand for the next term. The own vote is one like others: on disk before it is given."""
        self.stage = BallotStage.RUNNING
        self._ayes = {}
        self._acceptor.promise(self._acceptor.record.term + 1, self._me)
        record = self._acceptor.record
        version = self._acceptor.version_of(CONFIG_KEY)
        request = Vote(record.term, version, record.group_id, self._followed.released, self._lease_ns)
        for name in self._electorate.others():
            self._acceptor.hold(Send(CHANNEL, name, request, Lane.CONTROL))
        self._acceptor.hold(
            Send(CHANNEL, self._me, VoteReply(record.term, True, record.disk_id, record.revision), Lane.CONTROL)
        )

    def is_elected(self, now: int, sender: str, message: VoteReply) -> bool:
        """Count a vote. Whether a majority has voted for this voter."""
        if self.stage is not BallotStage.RUNNING or message.term != self._acceptor.record.term or not message.granted:
            return False
        if not self._electorate.has_seat(sender, message.disk_id):
            return False
        self._ayes[sender] = None
        return self._electorate.is_majority(now, self._ayes)
