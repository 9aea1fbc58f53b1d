"""What a member does with news of members: its own view, the suspicions under way, and what it passes on.

Nothing here knows of probes or timers; `Membership` calls it and owns the rest.

SWIM §4.1 and §4.2; Lifeguard's buddy system tells a suspect of it. docs/decisions/0013-membership-measures-itself.md.
"""

from heapq import heappop, heappush
from itertools import count
from typing import Final, assert_type

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.membership.gossip import GossipQueue, Priority
from talka.cluster.membership.local_health import LocalHealth
from talka.cluster.membership.members import (
    ALIVE,
    DEAD,
    LEFT,
    SUSPECT,
    Member,
    Members,
    Status,
    StatusClaim,
    claim_of,
    outranks,
)
from talka.cluster.membership.namesakes import Namesakes
from talka.cluster.membership.news import (
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberReturned,
    MembershipEffect,
    MemberSuspected,
    Refuted,
    StateLearned,
)
from talka.cluster.membership.presets import MembershipConfig
from talka.cluster.membership.suspicion import Suspicion, SuspicionBounds, bounds
from talka.cluster.membership.verdicts import MemberVerdict, VerdictLog
from talka.cluster.membership.vouched import Vouched, plain
from talka.units import NEVER, SECOND
from talka.wire.membership import (
    CHANNEL,
    Alive,
    Dead,
    MemberHasLeft,
    MemberRecord,
    MemberState,
    MemberUpdate,
    Ping,
    Stated,
    Suspect,
    encode_update,
)

ACCUSATIONS_PER_S: Final = 32
"""Of one accuser. A sick member must not make the others busy with refutations."""
DOUBTFUL_SCORE: Final = 2
"""At this score of local health a member gives no verdict that nobody confirmed."""
ASK_INTERVALS: Final = 3
"""Probe intervals that the answer to a last question may take: to the group by gossip, and back."""
CHALLENGE: Final = 0
"""The sequence of a ping whose answer matters, and not when it comes. Probes count from 1."""
UPDATES_LIMIT: Final = 128
"""Updates of one message that are looked at."""


class Updates:
    """The view of one member, kept by precedence. Effects are appended to the `out` that is passed in."""

    def __init__(
        self,
        me: Alive,
        *,
        config: MembershipConfig,
        members: Members,
        queue: GossipQueue,
        health: LocalHealth,
        audit: VerdictLog,
        vouched: Vouched,
    ) -> None:
        self.me = me
        self.state: MemberState | None = None
        self.is_leaving = False
        self.is_misjudged = False
        """Set when somebody repeats an accusation that this member has refuted. Who asks clears it first."""
        self.next_expiry_at = NEVER
        """When the next suspicion may run out."""
        self._config = config
        self._members = members
        self._queue = queue
        self._health = health
        self._audit = audit
        self._vouched = vouched
        self._namesakes = Namesakes()
        self._expiries: list[tuple[int, int, Member, Suspicion]] = []
        self._order = count()
        self._unknown_accusations = 0
        self._unknown_since = 0
        self._reminded_at = -NEVER

    def apply(
        self, now: int, update: MemberUpdate, raw: bytes, sender: str, boot: int, out: list[MembershipEffect]
    ) -> None:
        """An update as it came from `sender` in this life of it."""
        match update:
            case Alive():
                self.alive(now, update, raw, update.name == sender and update.boot == boot, out)
            case Suspect():
                self.suspect(now, update, raw, out)
            case Dead():
                self.dead(now, update, raw, out)
            case MemberHasLeft():
                self.left(now, update, raw, out)
            case _:
                self._stated(assert_type(update, Stated), raw, out)

    def apply_record(
        self, now: int, record: MemberRecord, sender: str, quiet: bool, out: list[MembershipEffect]
    ) -> None:
        """A line of another's table.

        That another holds somebody dead is no verdict here, only a suspicion: after a partition each side holds the
        other dead. `quiet` is for one who has just joined: the group knows what the group told it.
        """
        status = Status(record.status)
        accuser = record.accuser or sender
        if status <= SUSPECT:
            said = (record.name, record.boot, record.incarnation, record.address, record.zone, record.meta)
            alive = Alive(*said, record.certificate, record.signature)
            self.alive(now, alive, None, False, out, quiet=quiet)
        if status == SUSPECT or status == DEAD:
            # Of somebody dead whom one does not know nothing is kept, else the dead would be told of for ever.
            self.suspect(now, Suspect(record.name, record.boot, record.incarnation, accuser, record.reason), None, out)
        elif status == LEFT:
            self.left(now, MemberHasLeft(record.name, record.boot, record.incarnation), None, out)
        member = self._members.get(record.name)
        if record.state is not None and member is not None and member.boot == record.boot:
            self.learn_state(member, record.state, out)

    def alive(
        self,
        now: int,
        alive: Alive,
        raw: bytes | None,
        direct: bool,
        out: list[MembershipEffect],
        *,
        quiet: bool = False,
    ) -> None:
        """`direct` when it is the member itself that says so."""
        if alive.name == self.me.name:
            self._hear_of_myself_alive(now, alive, out)
            return
        member = self._members.get(alive.name)
        if not self._vouched.believes(alive, member):
            return
        if member is None:
            if self._members.add(alive, now) is None:
                return
            out.append(MemberJoined(alive.name, alive.boot, alive.address))
            priority = Priority.JOINED_OR_LEFT
        elif member.boot != alive.boot:
            if not self._begins_other_life(now, member, alive, direct, out):
                return
            priority = Priority.JOINED_OR_LEFT
        else:
            if not outranks(ALIVE, alive.incarnation, member.status, member.incarnation):
                return
            before = member.status
            member.renew(alive)
            priority = Priority.ALIVE
            if before != ALIVE:
                member.refuted(now)
                self._members.move(member, ALIVE, now)
                self._put_down(now, alive, "alive", alive.name, "refuted")
                out.append(MemberReturned(alive.name, alive.boot))
        if not quiet:
            self._queue.push(alive.name, bytes(raw) if raw is not None else encode_update(alive), priority)

    def suspect(
        self, now: int, suspect: Suspect, raw: bytes | None, out: list[MembershipEffect], *, own: bool = False
    ) -> None:
        if suspect.name == self.me.name:
            self._refute(now, suspect, out)
            return
        member = self._members.get(suspect.name)
        if member is None or member.boot != suspect.boot:
            return
        is_new = outranks(SUSPECT, suspect.incarnation, member.status, member.incarnation)
        suspicion = member.suspicion
        if not is_new and (suspicion is None or suspect.incarnation != member.incarnation):
            return
        if is_new:
            if not own and not self._admits_accusation(now, suspect.accuser):
                return
            limits = self._bounds().stretched(member.patience(now))
            zone = self._zone_of(suspect.accuser, limits.wanted)
            member.incarnation = suspect.incarnation
            member.accuser, member.reason = suspect.accuser, suspect.reason
            before = member.status
            self._members.move(member, SUSPECT, now)
            suspicion = member.suspicion = Suspicion(now, limits, suspect.accuser, zone, suspect.incarnation)
            if before == DEAD:
                out.append(MemberReturned(suspect.name, suspect.boot))
            out.append(MemberSuspected(suspect.name, suspect.boot, suspect.accuser, suspect.reason))
        else:
            assert suspicion is not None
            # Looked at first: the same accusation comes many times, and costs the accuser nothing.
            if suspect.accuser in suspicion.accusers:
                return
            if not suspicion.confirm(now, suspect.accuser, self._zone_of(suspect.accuser, self._bounds().wanted)):
                return
        self._put_down(now, suspect, "suspect", suspect.accuser, suspect.reason, own)
        self._watch(member, suspicion)
        self._queue.push(suspect.name, bytes(raw) if raw is not None else encode_update(suspect), Priority.SUSPECT)

    def dead(self, now: int, dead: Dead, raw: bytes | None, out: list[MembershipEffect], *, own: bool = False) -> None:
        if dead.name == self.me.name:
            self._refute(now, dead, out)
            return
        member = self._members.get(dead.name)
        if member is None or member.boot != dead.boot:
            return
        if not outranks(DEAD, dead.incarnation, member.status, member.incarnation):
            return
        if not own and not self._admits_accusation(now, dead.accuser):
            return
        member.incarnation = dead.incarnation
        member.accuser, member.reason = dead.accuser, dead.reason
        self._members.move(member, DEAD, now)
        self._put_down(now, dead, "dead", dead.accuser, dead.reason, own)
        self._queue.push(dead.name, bytes(raw) if raw is not None else encode_update(dead), Priority.DEAD)
        self._queue.forget(_state_key(dead.name))
        out.append(MemberLost(dead.name, dead.boot, dead.accuser, dead.reason, own))

    def left(self, now: int, left: MemberHasLeft, raw: bytes | None, out: list[MembershipEffect]) -> None:
        member = self._members.get(left.name)
        if member is None or member.boot != left.boot or member.status == LEFT:
            return
        self._members.move(member, LEFT, now)
        self._put_down(now, left, "left", left.name, "left")
        self._queue.push(left.name, bytes(raw) if raw is not None else encode_update(left), Priority.JOINED_OR_LEFT)
        self._queue.forget(_state_key(left.name))
        out.append(MemberLeft(left.name, left.boot))

    def _stated(self, stated: Stated, raw: bytes, out: list[MembershipEffect]) -> None:
        member = self._members.get(stated.name)
        if member is not None and member.boot == stated.boot and self.learn_state(member, stated.state, out):
            self._queue.push(_state_key(stated.name), bytes(raw), Priority.ALIVE)

    def learn_state(self, member: Member, state: MemberState, out: list[MembershipEffect]) -> bool:
        """Whether it was later than what is known of this life."""
        if state.version <= member.version or not self._vouched.believes_state(member, state):
            return False
        member.state = state
        out.append(StateLearned(member.name, state.version, state.payload))
        return True

    def contact(self, now: int, sender: str, boot: int, out: list[MembershipEffect]) -> Member | None:
        """The member that speaks, when this life of it is known. Speaking proves a life that others told of."""
        member = self._members.get(sender)
        if member is None or member.boot == boot:
            return member
        candidate = member.candidate
        if candidate is None or candidate.boot != boot:
            return None
        self.alive(now, candidate, None, True, out)
        return member

    def hears_former(self, now: int, source: str, sender: str, boot: int, out: list[MembershipEffect]) -> bool:
        """Whether a life speaks that one which seems alive has replaced."""
        member = self._members.get(sender)
        if member is None or boot not in member.former or member.status > SUSPECT:
            return False
        self._namesakes.heard(now, source, boot, member, out)
        return True

    def accuse(self, now: int, member: Member, reason: str, out: list[MembershipEffect]) -> None:
        """This member's own accusation."""
        self.suspect(
            now, Suspect(member.name, member.boot, member.incarnation, self.me.name, reason), None, out, own=True
        )

    def accusation_of(self, member: Member) -> bytes:
        """What a suspected or dead member should hear, so that it can refute."""
        kind = Suspect if member.status == SUSPECT else Dead
        return encode_update(kind(member.name, member.boot, member.incarnation, member.accuser, member.reason))

    def expire(self, now: int, out: list[MembershipEffect]) -> None:
        """Those whose suspicion has run out are dead, unless this member has reason to doubt itself."""
        expiries = self._expiries
        while expiries and expiries[0][0] <= now:
            _, _, member, suspicion = heappop(expiries)
            # A suspicion that moved has another entry.
            if member.suspicion is not suspicion or suspicion.expires_at > now:
                continue
            if self._health.gate_closed(now) or self._needs_confirmation(suspicion):
                suspicion.rearm(now)
                self._watch(member, suspicion)
                continue
            if suspicion.is_to_be_asked:
                self._ask(now, member, suspicion, out)
                continue
            verdict = Dead(member.name, member.boot, member.incarnation, self.me.name, member.reason)
            self.dead(now, verdict, None, out, own=True)
        self.next_expiry_at = expiries[0][0] if expiries else NEVER

    def _ask(self, now: int, member: Member, suspicion: Suspicion, out: list[MembershipEffect]) -> None:
        """Nobody shares this suspicion: it may never have been heard, or its refutation was missed.

        The group is told again as well: the way there may be broken for this member alone.
        """
        accusation = [self.accusation_of(member)]
        ping = Ping(CHALLENGE, member.name, member.boot)
        out.append(Send(CHANNEL, member.address, ping, Lane.DATAGRAM, accusation))
        over_stream = Ping(CHALLENGE, member.name, member.boot, stream=True)
        out.append(Send(CHANNEL, member.address, over_stream, Lane.STREAM, accusation))
        self._queue.push(member.name, accusation[0], Priority.SUSPECT)
        suspicion.ask(now, ASK_INTERVALS * self._config.probe_interval_ns * self._health.multiplier)
        self._watch(member, suspicion)

    def tell_of_myself(self, priority: Priority) -> None:
        self._queue.push(self.me.name, encode_update(self.me), priority)

    def sign_of_life(self) -> bytes:
        """For those who know this life and where it is."""
        return encode_update(plain(self.me))

    def tell_of_my_state(self) -> None:
        assert self.state is not None
        stated = Stated(self.me.name, self.me.boot, self.state)
        self._queue.push(_state_key(self.me.name), encode_update(stated), Priority.ALIVE)

    def forget(self, name: str) -> None:
        """Of this member nothing is passed on any more."""
        self._queue.forget(name)
        self._queue.forget(_state_key(name))

    def _begins_other_life(
        self, now: int, member: Member, alive: Alive, direct: bool, out: list[MembershipEffect]
    ) -> bool:
        claim = claim_of(alive.boot, member.former, member.status, direct)
        if claim is StatusClaim.TAKE:
            if member.status <= SUSPECT:
                self._put_down(now, member, "dead", member.name, "restarted")
                out.append(MemberLost(member.name, member.boot, member.name, "restarted", False))
            self._members.replace(member, alive, now)
            self._queue.forget(_state_key(member.name))
            out.append(MemberJoined(alive.name, alive.boot, alive.address))
            return True
        if claim is StatusClaim.VERIFY and now >= member.challenged_at + self._config.probe_interval_ns:
            member.candidate = alive
            member.challenged_at = now
            out.append(Send(CHANNEL, alive.address, Ping(CHALLENGE, alive.name, alive.boot), Lane.DATAGRAM, []))
        return False

    def _hear_of_myself_alive(self, now: int, alive: Alive, out: list[MembershipEffect]) -> None:
        """Somebody still tells of another life of this name: remind the group of this one, now and then."""
        if alive.boot == self.me.boot or self.is_leaving:
            return
        if self._vouched.believes(alive, None):
            self._namesakes.told_of(now, self.me, alive, out)
        if now >= self._reminded_at + SECOND:
            self._reminded_at = now
            self.tell_of_myself(Priority.ALIVE)

    def _refute(self, now: int, accusation: Suspect | Dead, out: list[MembershipEffect]) -> None:
        me = self.me
        if accusation.boot != me.boot or self.is_leaving:
            return
        if accusation.incarnation < me.incarnation:
            self.is_misjudged = True
            return
        self.me = me = msgspec.structs.replace(me, incarnation=accusation.incarnation + 1)
        self._health.refuted()
        self._put_down(now, accusation, "refuted", accusation.accuser, accusation.reason)
        self._queue.push(me.name, self.sign_of_life(), Priority.JOINED_OR_LEFT)
        out.append(Refuted(me.incarnation))

    def _needs_confirmation(self, suspicion: Suspicion) -> bool:
        """Whether this member does badly, nobody shares its suspicion, and there is somebody left who could."""
        return (
            suspicion.is_lone
            and self._health.score >= DOUBTFUL_SCORE
            and self._members.living > self._members.suspected
        )

    def _bounds(self) -> SuspicionBounds:
        return bounds(self._config, self._members.living + 1, self._health.multiplier - 1)

    def _zone_of(self, accuser: str, wanted: int) -> str:
        """The accuser's zone; none where there are too few zones for as many confirmations as are wanted."""
        member = self._members.get(accuser)
        zone = member.zone if member is not None else self.me.zone if accuser == self.me.name else ""
        if not zone:
            return ""
        seen = [zone]
        for other in self._members.all():
            if other.status <= SUSPECT and other.zone and other.zone not in seen:
                seen.append(other.zone)
                if len(seen) > wanted:
                    return zone
        return ""

    def _admits_accusation(self, now: int, accuser: str) -> bool:
        member = self._members.get(accuser)
        if member is None:
            # Strangers share one allowance: names cost nothing.
            if now >= self._unknown_since + SECOND:
                self._unknown_since, self._unknown_accusations = now, 0
            self._unknown_accusations += 1
            return self._unknown_accusations <= ACCUSATIONS_PER_S
        if now >= member.accusations_since + SECOND:
            member.accusations_since, member.accusations = now, 0
        member.accusations += 1
        return member.accusations <= ACCUSATIONS_PER_S

    def _watch(self, member: Member, suspicion: Suspicion) -> None:
        expires_at = suspicion.expires_at
        heappush(self._expiries, (expires_at, next(self._order), member, suspicion))
        if expires_at < self.next_expiry_at:
            self.next_expiry_at = expires_at

    def _put_down(
        self,
        now: int,
        about: Alive | Suspect | Dead | MemberHasLeft | Member,
        verdict: str,
        accuser: str,
        reason: str,
        own: bool = False,
    ) -> None:
        life = (about.name, about.boot, about.incarnation)
        self._audit.append(MemberVerdict(now, *life, verdict, accuser, reason, own))


def _state_key(name: str) -> str:
    """States queue beside the other news of a member. No name has a NUL in it that another could be mistaken for."""
    return f"\0{name}"
