"""A voter and what it does when it leads: the election, the leases it gives out, the commands it may send.

Pure. It routes the election's news to the lease table and the table's writes to the register; what is left goes out.

docs/decisions/0012-the-holes-of-leadership.md.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.fencing import Token
from talka.cluster.leadership.election import Election
from talka.cluster.leadership.lease_terms import OwnLease
from talka.cluster.leadership.news import Elected, LeadershipEffect, SteppedDown, WriteEnded
from talka.cluster.leadership.quorum import breaker_text, majority
from talka.cluster.leadership.timings import LAN, LeadershipConfig
from talka.cluster.leadership.voters import CONFIG_KEY, LEADER_KEY
from talka.cluster.leases import Busy, Ended, GrantedNow, HeldLease, LeaseExpired, LeasesFull, LeaseTable, Write
from talka.control.member.breaker import Breaker, BreakerState
from talka.errors import Invalid
from talka.wire.leadership import LeadershipMessage
from talka.wire.leases import (
    CHANNEL,
    AcquireLease,
    CommandAnswer,
    LeaseAnswer,
    LeaseCommand,
    LeaseMessage,
    ReleaseLease,
)

LEASE_PREFIX: Final = "lease/"
BREAKER_FAILURES: Final = 3
BREAKER_WINDOW_NS: Final = 30_000_000_000
OWN_REFS: Final = 1 << 40
"""References from here on are of the voter's own writes; callers use smaller ones."""


class CommandEnded(msgspec.Struct, frozen=True):
    """A receiver applied a command, or refused it because it has seen the token `highest`."""

    receiver: str
    number: int
    is_applied: bool
    highest: Token


VoterEffect: TypeAlias = LeadershipEffect | Send[LeaseMessage] | CommandEnded | LeaseExpired


class Voter:
    """Drive it as an `Election`; give it lease requests with `on_lease_message`."""

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
        own_lease: OwnLease | None = None,
    ) -> None:
        self.name = name
        self.election = Election(
            name=name,
            voters=voters,
            stored=stored,
            rng=rng,
            now=now,
            config=config,
            allow_two=allow_two,
            own_lease=own_lease,
        )
        self.leases = LeaseTable()
        self.token: Token | None = None
        self._breaker = _new_breaker()
        self._ref = OWN_REFS
        self._writes: dict[int, int] = {}  # callers' references; bounded like the grants
        self._grants: dict[int, Write] = {}  # bounded by the writes a term may have under way

    @property
    def is_breaker_open(self) -> bool:
        """No majority answered again and again: writes are refused until a probe succeeds."""
        return self._breaker.state is not BreakerState.CLOSED

    @property
    def next_tick_at(self) -> int:
        return min(self.election.next_tick_at, self.leases.next_tick_at)

    def tick(self, now: int) -> list[VoterEffect]:
        effects: list[VoterEffect] = []
        if now >= self.election.next_tick_at:
            effects = self._route(now, self.election.tick(now))
        effects += self.leases.expire(now)
        return effects

    def on_persisted(self, now: int, ticket: int) -> list[VoterEffect]:
        return self._route(now, self.election.on_persisted(now, ticket))

    def on_message(self, now: int, sender: str, message: LeadershipMessage) -> list[VoterEffect]:
        return self._route(now, self.election.on_message(now, sender, message))

    def suspect_leader(self, now: int, name: str) -> list[VoterEffect]:
        return self._route(now, self.election.suspect_leader(now, name))

    def hand_over(self, now: int) -> list[VoterEffect]:
        return self._route(now, self.election.hand_over(now))

    def hand_over_if_worse(self, now: int) -> list[VoterEffect]:
        return self._route(now, self.election.hand_over_if_worse(now))

    def drain(self, now: int) -> list[VoterEffect]:
        return self._route(now, self.election.drain(now))

    def write(self, now: int, ref: int, key: str, value: bytes) -> list[VoterEffect]:
        _check_ref(ref)
        if key in (CONFIG_KEY, LEADER_KEY) or key.startswith(LEASE_PREFIX):
            raise Invalid(f"key {key!r} is the group's own: take another")
        if not self._breaker.allows(now):
            retry_in_ns = self._breaker.retry_in_ns(now)
            reason = breaker_text(BREAKER_FAILURES, BREAKER_WINDOW_NS, retry_in_ns)
            return [WriteEnded(ref, "refused", reason=reason)]
        self._writes[ref] = 1
        return self._route(now, self.election.write(now, ref, key, value))

    def read(self, now: int, ref: int, key: str) -> list[VoterEffect]:
        return self._route(now, self.election.read(now, ref, key))

    def change_voters(
        self, now: int, ref: int, names: tuple[str, ...], *, allow_two: bool = False
    ) -> list[VoterEffect]:
        _check_ref(ref)
        return self._route(now, self.election.change_voters(now, ref, names, allow_two=allow_two))

    def command(self, now: int, to: str, number: int, body: bytes) -> list[VoterEffect]:
        """Command a receiver under this leader's token. Nothing happens when it may not lead at this instant."""
        if self.token is None or not self.election.is_leading(now):
            return []
        token = (self.token.parent, self.token.term, self.token.sequence)
        return [Send(CHANNEL, to, LeaseCommand(token, number, body), Lane.CONTROL)]

    def on_lease_message(self, now: int, sender: str, message: AcquireLease | ReleaseLease) -> list[VoterEffect]:
        if not self.election.is_leading(now):
            if isinstance(message, ReleaseLease):
                return []
            leader = "" if self.election.leader == self.name else self.election.leader
            return [_answer(sender, LeaseAnswer(message.key, message.number, "elsewhere", leader=leader))]
        if isinstance(message, ReleaseLease):
            self.leases.release(message.key, sender, message.epoch)
            return []
        key, number = message.key, message.number
        answer = self.leases.acquire(now, key, sender, message.ttl_ns, message.epoch, number)
        match answer:
            case Write():
                self._ref += 1
                self._grants[self._ref] = answer
                return self._route(now, self.election.write(now, self._ref, LEASE_PREFIX + key, answer.value))
            case GrantedNow():
                return [_granted(answer)]
            case HeldLease(epoch=epoch, wait_ns=wait_ns):
                return [_answer(sender, LeaseAnswer(key, number, "held", epoch, wait_ns=wait_ns))]
            case Ended(epoch=epoch):
                return [_answer(sender, LeaseAnswer(key, number, "ended", epoch))]
            case Busy():
                return [_answer(sender, LeaseAnswer(key, number, "busy"))]
            case LeasesFull():  # pragma: no branch - the type checker sees that no other is left
                return [_answer(sender, LeaseAnswer(key, number, "full"))]

    def on_command_answer(self, sender: str, message: CommandAnswer) -> list[VoterEffect]:
        """News for who commanded. A refusal deposes nobody: whether this voter leads is for voters to say."""
        return [CommandEnded(sender, message.number, message.is_applied, Token(*message.highest))]

    def _route(self, now: int, effects: Sequence[LeadershipEffect]) -> list[VoterEffect]:
        """What the election tells the lease table is kept here; everything is passed on in order."""
        if all(isinstance(effect, Send) for effect in effects):
            return [*effects]  # most steps have no news
        out: list[VoterEffect] = []
        for effect in effects:
            if isinstance(effect, WriteEnded) and effect.ref > OWN_REFS:
                out += self._on_grant_written(now, effect)
                continue
            out.append(effect)
            if isinstance(effect, WriteEnded):
                if self._writes.pop(effect.ref, 0):
                    self._note_write(now, effect)
            elif isinstance(effect, Elected):
                self.token = effect.token
                self._breaker = _new_breaker()  # a majority has just written: what failed before says nothing now
                assert self.election.leader_term is not None
                values = self.election.leader_term.values()
                held = {key.removeprefix(LEASE_PREFIX): v for key, v in values.items() if key.startswith(LEASE_PREFIX)}
                self.leases.take_over(now, held)
            elif isinstance(effect, SteppedDown):
                self.token = None
                self.leases.stepped_down()
        return out

    def _note_write(self, now: int, ended: WriteEnded) -> None:
        """Leave voters alone that keep failing. One that was refused for what it asked, or because another voter leads,
        says nothing of them."""
        if ended.outcome == "accepted":
            self._breaker.succeeded(now)
            return
        election = self.election
        answering = len(election.electorate.answering(now))
        is_lonely = not election.leader and answering < majority(len(election.config.voters))
        if ended.outcome == "unknown" or is_lonely:
            self._breaker.failed(now)

    def _on_grant_written(self, now: int, ended: WriteEnded) -> list[VoterEffect]:
        write = self._grants.pop(ended.ref)
        if ended.outcome != "accepted":
            self.leases.abandoned(write.key, write.epoch)
            return []
        granted = self.leases.committed(now, write.key, write.epoch)
        return [] if granted is None else [_granted(granted)]


def _new_breaker() -> Breaker:
    return Breaker(failures=BREAKER_FAILURES, window_ns=BREAKER_WINDOW_NS)


def _check_ref(ref: int) -> None:
    if not 0 < ref <= OWN_REFS:
        raise Invalid(f"reference {ref} of a write: give a number from 1 to 2^40, larger ones are the voter's own")


def _granted(answer: GrantedNow) -> Send[LeaseMessage]:
    return _answer(answer.owner, LeaseAnswer(answer.key, answer.number, "granted", answer.epoch, answer.ttl_ns))


def _answer(to: str, answer: LeaseAnswer) -> Send[LeaseMessage]:
    return Send(CHANNEL, to, answer, Lane.CONTROL)
