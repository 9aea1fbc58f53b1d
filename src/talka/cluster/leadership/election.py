"""Leadership of a group: one voter's part in electing, following and being the leader.

Told what arrived and what time it is, it answers with `Send`s, `Persist`s and news. One leader per term is certain:
votes are on disk before they are given. One acting leader at a time holds while clocks drift within the limit and
nobody stalls between a check and its effect; the token (`fencing.py`) is what makes the rest harmless.

Raft (Ongaro's dissertation) §3.4 leader election, §3.8 persisted state, §3.10 leadership transfer, §6.2 a leader
without a majority steps down, §9.6 pre-vote. docs/decisions/0012-the-holes-of-leadership.md.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from random import Random
from typing import Final

from talka.cluster.effects import Lane, Send
from talka.cluster.leadership.ballot import Ballot, BallotStage
from talka.cluster.leadership.election_timeouts import CLEARLY, ElectionTimeouts
from talka.cluster.leadership.followed_leader import FollowedLeader
from talka.cluster.leadership.leader_term import LeaderTerm
from talka.cluster.leadership.lease_terms import LeaseDiffers, LeaseFit, OwnLease, decode_terms
from talka.cluster.leadership.news import (
    LeaderChanged,
    LeadershipEffect,
    PhaseChanged,
    ReadEnded,
    SteppedDown,
    WriteEnded,
)
from talka.cluster.leadership.peer_checks import PeerChecks
from talka.cluster.leadership.quorum import check_size
from talka.cluster.leadership.register import Acceptor
from talka.cluster.leadership.timings import LAN, LeadershipConfig
from talka.cluster.leadership.voter_startup import Lesson, VoterStartup
from talka.cluster.leadership.voter_sync import VoterSync
from talka.cluster.leadership.voters import CONFIG_KEY, Electorate, VoterConfig
from talka.units import NEVER
from talka.wire.leadership import (
    CHANNEL,
    Collect,
    Collected,
    Heartbeat,
    HeartbeatReply,
    LeadershipMessage,
    PreVote,
    PreVoteReply,
    ProposalAccepted,
    ProposalRefused,
    Propose,
    RegisterSnapshot,
    Released,
    SnapshotReply,
    Vote,
    VoteReply,
    VoterHello,
    VoterWelcome,
    pages,
)


class VoterRole(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


ROLES: Final = {
    BallotStage.NONE: VoterRole.FOLLOWER,
    BallotStage.ASKING: VoterRole.PRE_CANDIDATE,
    BallotStage.RUNNING: VoterRole.CANDIDATE,
}


class Phase(Enum):
    SYNCING = "syncing"
    """Asks its peers what they remember of it, or waits for state: gives no votes yet."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Votes, and leads no more."""


class Election:
    """Call `on_message` for every arrival, `on_persisted` for every ticket, `tick` once `next_tick_at`
    has come. Carry out what they return, in order."""

    def __init__(
        self,
        *,
        name: str,
        voters: tuple[str, ...],
        stored: Mapping[str, bytes],
        rng: Random,
        now: int,
        config: LeadershipConfig = LAN,
        allow_two: bool = False,
        parent: int = 0,
        own_lease: OwnLease | None = None,
    ) -> None:
        """`own_lease`: of workers, as this voter was told it; None where it leads none."""
        check_size(list(voters), allow_two=allow_two)
        self.name = name
        self.phase = Phase.SYNCING
        self.leader_term: LeaderTerm | None = None
        self.next_tick_at = now
        self._config = config
        self._parent = parent
        self._acceptor = Acceptor(stored, rng.getrandbits(62) | 1)
        self._startup = VoterStartup(name=name, voters=voters, acceptor=self._acceptor, rng=rng)
        known = self._acceptor.config() or self._startup.founders
        self.electorate = Electorate(name, known, 2 * config.lease_ns)
        self._timeouts = ElectionTimeouts(config, rng)
        self._followed = FollowedLeader(config.voter_lease_ns())
        self.fit = LeaseFit(config.lease_ns, own_lease)
        self._checks = PeerChecks(name, self._acceptor, self.fit)
        self._sync = VoterSync(now, config, self._acceptor, self.electorate, self._startup, self._checks)
        self._stand_at = self._sync.stands_from
        self._ballot = Ballot(
            me=name,
            acceptor=self._acceptor,
            electorate=self.electorate,
            followed=self._followed,
            lease_ns=config.lease_ns,
        )
        self._woken_at = now

    # -- what others may ask

    @property
    def role(self) -> VoterRole:
        return VoterRole.LEADER if self.leader_term is not None else ROLES[self._ballot.stage]

    @property
    def leader(self) -> str:
        """Whom this voter holds for the leader; empty when none is known."""
        return self._followed.leader

    @property
    def term(self) -> int:
        return self._acceptor.record.term

    @property
    def config(self) -> VoterConfig:
        return self.electorate.config

    @property
    def is_admitted(self) -> bool:
        """Whether this voter's disk holds what it is supposed to, so that its word counts."""
        return self._acceptor.record.admitted

    def is_leading(self, now: int) -> bool:
        """Whether this voter may act as the leader at this instant. Ask again after every wait."""
        leader_term = self.leader_term
        return (
            leader_term is not None
            and leader_term.is_serving
            and leader_term.holds_lease(now)
            and not self._has_slept(now)
        )

    def held(self) -> dict[str, bytes]:
        """What this voter's own disk holds of the register: it may be behind, and some of it may never be decided."""
        return {key: entry.value for key, entry in self._acceptor.entries.items()}

    def set_health(self, score: int, *, may_lead: bool = True) -> None:
        self._timeouts.score, self._timeouts.may_lead = score, may_lead

    # -- inputs

    def on_persisted(self, now: int, ticket: int) -> list[LeadershipEffect]:
        out = self._wake(now)
        out += self._acceptor.persisted(ticket)
        return self._finish(now, out)

    def on_message(self, now: int, sender: str, message: LeadershipMessage) -> list[LeadershipEffect]:
        out = self._wake(now)
        self.electorate.heard(now, sender)
        self._hear(now, sender, message, out)
        return self._finish(now, out)

    def tick(self, now: int) -> list[LeadershipEffect]:
        out = self._wake(now)
        if self.phase is Phase.SYNCING:
            self._sync.greet(now, self.leader, out)
            self._settle(now, out)
        if self.leader_term is not None:
            if now >= self.leader_term.deadline():
                self._step_down(now, "no majority answered within the lease", out)
            else:
                self.leader_term.tick(now, out)
        elif now >= self._stand_at:
            self._stand(now, out)
        return self._finish(now, out)

    def write(self, now: int, ref: int, key: str, value: bytes) -> list[LeadershipEffect]:
        """Put `value` on a majority of disks; `WriteEnded(ref)` tells what became of it."""
        refused = WriteEnded(ref, "refused", reason="this voter does not lead")
        return self._ask_leader(now, lambda leader_term, out: leader_term.write(now, ref, key, value, out), refused)

    def read(self, now: int, ref: int, key: str) -> list[LeadershipEffect]:
        """The value a majority holds now, proven by a round of heartbeats; told by `ReadEnded(ref)`."""
        refused = ReadEnded(ref, "refused", reason="this voter does not lead")
        return self._ask_leader(now, lambda leader_term, out: leader_term.read(now, ref, key, out), refused)

    def change_voters(
        self, now: int, ref: int, names: tuple[str, ...], *, allow_two: bool = False
    ) -> list[LeadershipEffect]:
        """Add or remove one voter; `WriteEnded(ref)` tells what became of it."""
        refused = WriteEnded(ref, "refused", reason="this voter does not lead")
        return self._ask_leader(
            now, lambda leader_term, out: leader_term.change_voters(now, ref, names, out, allow_two=allow_two), refused
        )

    def _ask_leader(
        self, now: int, ask: Callable[[LeaderTerm, list[LeadershipEffect]], None], refused: WriteEnded | ReadEnded
    ) -> list[LeadershipEffect]:
        out = self._wake(now)
        if self.leader_term is None:
            out.append(refused)
        else:
            ask(self.leader_term, out)
        return self._finish(now, out)

    def suspect_leader(self, now: int, name: str) -> list[LeadershipEffect]:
        """Membership holds `name` for dead. A hint: it shortens the wait before the question, not before the answer."""
        if self.leader == name and self.leader_term is None:
            self._stand_at = min(self._stand_at, now + self._timeouts.hint_ns())
        return self._finish(now, [])

    def hand_over(self, now: int) -> list[LeadershipEffect]:
        """Give leadership up and invite a voter that answered lately to take it. Nothing happens when none did."""
        out = self._wake(now)
        if self.leader_term is not None and self.leader_term.best_successor()[0]:
            self._step_down(now, "handed over", out, is_wanted=True)
        return self._finish(now, out)

    def hand_over_if_worse(self, now: int) -> list[LeadershipEffect]:
        """Give leadership up to a voter that is clearly better off. Where all are unwell, it stays where it is."""
        if self.leader_term is None:
            return []
        name, health = self.leader_term.best_successor()
        return self.hand_over(now) if name and health + CLEARLY <= self._timeouts.score else []

    def drain(self, now: int) -> list[LeadershipEffect]:
        """Lead no more; go on voting until stopped."""
        out = self._wake(now)
        if self.phase is Phase.SYNCING:
            self._sync.votes_from = NEVER  # it has not heard yet whether its promises are still its own
        if self.phase is not Phase.DRAINING:
            self._enter(Phase.DRAINING, out)
        self._step_down(now, "draining", out, is_wanted=True)
        return self._finish(now, out)

    # -- every step begins and ends alike

    def _wake(self, now: int) -> list[LeadershipEffect]:
        """A leader that slept for long must not act on what it knew before."""
        out: list[LeadershipEffect] = []
        if self.leader_term is not None and self._has_slept(now):
            self._step_down(now, f"stalled for {(now - self._woken_at) // 1_000_000} ms", out)
        self._woken_at = now
        return out

    def _has_slept(self, now: int) -> bool:
        if now - self._woken_at <= self._config.heartbeat_ns + self._config.lease_ns // 4:
            return False
        # Where nobody else votes, nobody else can lead: within its lease it goes on, and its work is not interrupted.
        return self.leader_term is None or not self.leader_term.holds_lease(now) or bool(self.electorate.others())

    def _finish(self, now: int, out: list[LeadershipEffect]) -> list[LeadershipEffect]:
        """Hear what this voter says to itself, make everything durable, and set the clock."""
        done: list[LeadershipEffect] = []
        index = 0
        while index < len(out):
            effect = out[index]
            index += 1
            if isinstance(effect, Send) and effect.to == self.name:
                self._hear(now, self.name, effect.message, out)
            else:
                done.append(effect)
        persist = self._acceptor.flush()
        if persist is not None:
            done.append(persist)
        at = self._stand_at if self.leader_term is None else min(self.leader_term.next_at, self.leader_term.deadline())
        self.next_tick_at = min(at, self._sync.hello_at) if self.phase is Phase.SYNCING else at
        return done

    def _enter(self, phase: Phase, out: list[LeadershipEffect]) -> None:
        self.phase = phase
        out.append(PhaseChanged(phase.value))

    # -- messages

    def _hear(self, now: int, sender: str, message: LeadershipMessage, out: list[LeadershipEffect]) -> None:
        if self._checks.is_unreadable(sender, message, out):
            return
        match message:
            case Heartbeat():
                self._on_heartbeat(now, sender, message, out)
            case HeartbeatReply():
                self._startup.see(sender, message.disk_id, message.revision)
                if not self.electorate.has_seat(sender, message.disk_id):
                    return
                if self._is_of_my_term(now, sender, message.term, out) and self.leader_term is not None:
                    self.leader_term.on_heartbeat_reply(now, sender, message, out)
            case Propose():
                self._on_propose(now, sender, message, out)
            case ProposalAccepted():
                self._startup.see(sender, message.disk_id, message.revision)
                if not self.electorate.has_seat(sender, message.disk_id):
                    return
                if self._is_of_my_term(now, sender, message.term, out) and self.leader_term is not None:
                    self.leader_term.on_accepted(now, sender, message, out)
                    if self.config.disk_id_of(self.name) is None:
                        self._step_down(now, "no longer a voter", out)
            case PreVote():
                self._on_pre_vote(now, sender, message, out)
            case PreVoteReply():
                self._on_pre_vote_reply(now, sender, message, out)
            case Vote():
                self._on_vote(now, sender, message, out)
            case VoteReply():
                self._on_vote_reply(now, sender, message, out)
            case Collect():
                self._on_collect(now, sender, message, out)
            case Collected():
                if self._is_of_my_term(now, sender, message.term, out) and self.leader_term is not None:
                    self.leader_term.on_collected(now, sender, message, out)
                    self._heed_objection(now, out)
            case ProposalRefused():
                self._is_of_my_term(now, sender, message.term, out)
            case VoterHello():
                if self._sync.on_hello(sender, message, out) and self.leader_term is not None:
                    self.leader_term.on_hello(now, sender, message, out)
            case VoterWelcome():
                if self.phase is Phase.SYNCING and self._sync.on_welcome(sender, message, out):
                    self._settle(now, out)
            case RegisterSnapshot():
                self._on_snapshot(now, sender, message, out)
            case SnapshotReply():
                if self.leader_term is not None and message.term == self.leader_term.term:
                    self.leader_term.on_snapshot_reply(now, sender, message, out)
            case Released():  # pragma: no branch - the type checker sees that no message is left
                self._on_released(now, sender, message, out)

    def _is_of_my_term(self, now: int, sender: str, term: int, out: list[LeadershipEffect]) -> bool:
        """Whether an answer is for this leader; one of a later term ends its leadership. Only voters' answers count."""
        if not self.electorate.is_voter(sender):
            return False
        if term > self.term:
            self._follow_term(now, term, out)
            return False
        return self.leader_term is not None and term == self.leader_term.term

    def _follow_term(self, now: int, term: int, out: list[LeadershipEffect]) -> bool:
        """Adopt a later term. False when it is too far ahead to be believed."""
        if self._checks.is_too_far(term, out):
            return False
        if term > self.term:
            self._step_down(now, f"term {term} has begun", out)
            self._acceptor.adopt(term)
        return True

    # -- following

    def _on_heartbeat(self, now: int, sender: str, message: Heartbeat, out: list[LeadershipEffect]) -> None:
        if message.term < self.term:
            if self._acceptor.record.admitted:
                self._acceptor.answer_heartbeat(sender, message.round, self._timeouts.doubt(now), out)
            return
        if message.term <= self._followed.released:
            return  # sent before its leader gave up, and overtaken by that news
        if self._checks.is_stranger(sender, message.group_id, out) or self._checks.counts_otherwise(
            sender, message.lease_ns, out
        ):
            return
        if not self._follow_term(now, message.term, out):
            return
        if self.leader_term is not None and self.leader_term.term == message.term:
            self._checks.alarm("two leaders", sender, f"{sender!r} claims to lead term {message.term} as well", out)
            return
        self._follow(now, sender, message.term, out)
        if message.worker_lease and (text := self.fit.objection(decode_terms(message.worker_lease))):
            out.append(LeaseDiffers(text))
        if message.group_id:
            self._acceptor.confirm(message.group_id)
        if self._may_promise():
            self._acceptor.answer_heartbeat(sender, message.round, self._timeouts.doubt(now), out)

    def _may_promise(self) -> bool:
        """Whether this voter's word counts: it has its disk, and its peers have not said otherwise since it started."""
        is_known = self.phase is not Phase.SYNCING and self._sync.votes_from < NEVER
        return is_known and self._acceptor.record.admitted

    def _follow(self, now: int, leader: str, term: int, out: list[LeadershipEffect]) -> None:
        self._ballot.drop()
        if self._followed.follow(now, leader, term):
            out.append(LeaderChanged(leader, term))
        self._stand_at = now + self._timeouts.wait_ns(now)

    def _on_propose(self, now: int, sender: str, message: Propose, out: list[LeadershipEffect]) -> None:
        if not self._may_serve(now, sender, message.term, out) or not self._acceptor.accept(message.entries):
            return
        self._adopt_config()
        record = self._acceptor.record
        self._acceptor.answer(
            sender, ProposalAccepted(message.term, message.batch, record.disk_id, record.revision), out
        )

    def _may_serve(self, now: int, leader: str, term: int, out: list[LeadershipEffect]) -> bool:
        """Whether to do what the leader of this term asks. One of an earlier term is told so."""
        if not self._may_promise():
            return False
        if term < self.term:
            out.append(Send(CHANNEL, leader, ProposalRefused(self.term), Lane.CONTROL))
            return False
        return self._follow_term(now, term, out)

    def _adopt_config(self) -> None:
        """What this voter holds is what it goes by; a leader goes by what it has written."""
        config = self._acceptor.config()
        if config is not None and self.leader_term is None:
            self.electorate.config = config

    def _on_collect(self, now: int, sender: str, message: Collect, out: list[LeadershipEffect]) -> None:
        if not self._may_serve(now, sender, message.term, out):
            return
        parts = pages(self._acceptor.after(message.after))
        self._acceptor.answer(sender, Collected(message.term, message.after, parts[0], len(parts) > 1), out)

    def _on_released(self, now: int, sender: str, message: Released, out: list[LeadershipEffect]) -> None:
        if self.leader_term is not None or not self._followed.release(sender, message.term):
            return
        self._forget_leader(out)
        self._stand_at = now if message.invited == self.name else now + self._timeouts.retry_ns(now)

    # -- voting

    def _objection(self, now: int, candidate: str, message: PreVote | Vote, out: list[LeadershipEffect]) -> bool:
        """Whether this voter has a reason, beside its term, not to vote for this candidate now."""
        if not self._may_promise() or now < self._sync.votes_from:
            return True
        own, config, released = self._acceptor.version_of(CONFIG_KEY), message.config, message.released
        if config < own or self._checks.is_stranger(candidate, message.group_id, out):
            return True
        if self._checks.counts_otherwise(candidate, message.lease_ns, out):
            return True
        if config == own and self.electorate.config.disk_id_of(candidate) is None:
            return True  # by a configuration this voter has not seen, the candidate may well be a voter
        if self.leader_term is not None and self.leader_term.holds_lease(now):
            return True
        # Nobody can have led, and given up, a term that this voter has not heard of.
        return now < self._followed.binds_until(released if released <= self.term else 0)

    def _on_pre_vote(self, now: int, sender: str, message: PreVote, out: list[LeadershipEffect]) -> None:
        granted = message.term > self.term and not self._objection(now, sender, message, out)
        if granted or self._acceptor.record.admitted:
            out.append(Send(CHANNEL, sender, PreVoteReply(self.term, message.round, granted), Lane.CONTROL))

    def _on_vote(self, now: int, sender: str, message: Vote, out: list[LeadershipEffect]) -> None:
        record = self._acceptor.record
        is_free = message.term > record.term or (message.term == record.term and record.voted_for in ("", sender))
        if not is_free or self._objection(now, sender, message, out):
            if record.admitted:
                # No revision: a refusal may be said before what is being written is on disk.
                out.append(Send(CHANNEL, sender, VoteReply(record.term, False, record.disk_id, 0), Lane.CONTROL))
            return
        if not self._follow_term(now, message.term, out):
            return
        if record.voted_for != sender:
            self._acceptor.promise(message.term, sender)
        record = self._acceptor.record
        self._stand_at = max(self._stand_at, now + self._config.ask_timeout_ns + self._timeouts.retry_ns(now))
        self._acceptor.answer(sender, VoteReply(record.term, True, record.disk_id, record.revision), out)

    # -- standing

    def _stand(self, now: int, out: list[LeadershipEffect]) -> None:
        self._stand_at = now + self._config.ask_timeout_ns + self._timeouts.retry_ns(now)
        is_voter = self.electorate.config.disk_id_of(self.name) is not None
        if self.phase is not Phase.ACTIVE or not is_voter or self.fit.is_misfit:
            return
        if not self._acceptor.is_durable:
            return  # a slow disk must not raise the term again and again
        if now < self._followed.binds_until():
            # Its own answer to the leader is one of those a lease rests on, whatever membership says.
            self._stand_at = self._followed.binds_until()
            return
        self._forget_leader(out)
        if self.electorate.others() and now < (until := self._timeouts.others_go_first_until(now)):
            self._stand_at = min(self._stand_at, until)
            return
        if self._ballot.ask(now, out):
            self._ballot.run()

    def _forget_leader(self, out: list[LeadershipEffect]) -> None:
        if self._followed.forget():
            out.append(LeaderChanged("", self.term))

    def _on_pre_vote_reply(self, now: int, sender: str, message: PreVoteReply, out: list[LeadershipEffect]) -> None:
        if not self.electorate.is_voter(sender):
            return
        if message.term > self.term:
            self._follow_term(now, message.term, out)
        elif self._ballot.is_wanted(now, sender, message):
            self._ballot.run()

    def _on_vote_reply(self, now: int, sender: str, message: VoteReply, out: list[LeadershipEffect]) -> None:
        self._startup.see(sender, message.disk_id, message.revision)
        if not self.electorate.is_voter(sender):
            return
        if message.term > self.term:
            self._follow_term(now, message.term, out)
        elif self._ballot.is_elected(now, sender, message):
            self._lead(now, out)

    def _lead(self, now: int, out: list[LeadershipEffect]) -> None:
        self._ballot.drop()
        self._followed.lead(self.name, self.term)
        out.append(LeaderChanged(self.name, self.term))
        self.leader_term = LeaderTerm(
            now,
            me=self.name,
            term=self.term,
            parent=self._parent,
            config=self._config,
            electorate=self.electorate,
            acceptor=self._acceptor,
            founding=self._startup.founding() if self._acceptor.config() is None else None,
            fit=self.fit,
        )
        self.leader_term.begin(now, out)
        self._heed_objection(now, out)

    def _heed_objection(self, now: int, out: list[LeadershipEffect]) -> None:
        """What a majority holds may be that this voter must not lead."""
        if self.leader_term is not None and (text := self.leader_term.objection):
            out.append(LeaseDiffers(text))
            self._step_down(now, "it was told another lease of workers", out)

    # -- ceasing to lead

    def _step_down(self, now: int, reason: str, out: list[LeadershipEffect], *, is_wanted: bool = False) -> None:
        """Stop leading, or standing. Voters are told that the lease is free, so that nobody waits for its end."""
        self._ballot.drop()
        if self.leader_term is None:
            return
        leader_term, self.leader_term = self.leader_term, None
        leader_term.end(out)
        out.append(SteppedDown(leader_term.term, reason))
        self._forget_leader(out)
        self._followed.release(self.name, leader_term.term)
        successor, _ = leader_term.best_successor()
        for name in self.electorate.others():
            out.append(Send(CHANNEL, name, Released(leader_term.term, successor), Lane.CONTROL))
        self._adopt_config()
        if not is_wanted:
            self._timeouts.lost_leadership(now)
        self._stand_at = now + self._timeouts.wait_ns(now)

    # -- starting: what do peers remember?

    def _settle(self, now: int, out: list[LeadershipEffect]) -> None:
        if self._sync.settle(now):
            self._enter(Phase.ACTIVE, out)
            if not self.leader:
                self._stand_at = now + self._timeouts.retry_ns(now)

    def _on_snapshot(self, now: int, sender: str, message: RegisterSnapshot, out: list[LeadershipEffect]) -> None:
        record = self._acceptor.record
        if message.term < record.term or not self._follow_term(now, message.term, out):
            return
        lesson = self._startup.learn(sender, message)
        if lesson is Lesson.TOO_MUCH:
            return
        if lesson is Lesson.LEARNED:
            self._adopt_config()
            if self.electorate.config.disk_id_of(self.name) == record.disk_id:
                self._acceptor.admit()
                if self.phase is Phase.SYNCING:
                    self._settle(now, out)
        self._acceptor.answer(sender, SnapshotReply(message.term, message.number, message.page, record.disk_id), out)
