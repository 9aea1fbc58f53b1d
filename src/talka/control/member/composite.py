"""A node of the cluster as one pure thing: frames and time in, frames, writes and news out.

It puts the state machines together and routes their news: a leader that membership holds for dead is asked about
sooner, a member that doubts itself leads later or not at all. What a node runs and what the simulator runs is this.

docs/decisions/0015-one-member-one-loop.md.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, Never, Protocol, TypeAlias, TypeVar, cast, get_args

import msgspec

from talka.cluster.effects import HANDLE, Lane, Persist, PersistBlob, Send, Transmit
from talka.cluster.leadership.news import Elected, LeadershipNews, SteppedDown, WriteEnded
from talka.cluster.leases import HolderNews, LeaseExpired
from talka.cluster.membership.federation import FederatedProber, FederationNews
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.news import MemberJoined, MemberLeft, MemberLost, MemberNews, StateLearned
from talka.control.member.admission import Admission, HelloDeclined, RingChanged, Welcomed
from talka.control.member.agreements import Agreements, VersionDiffers
from talka.control.member.announcement import Announcer, ManagerPhase, standing_of
from talka.control.member.key_distribution import KeyDistribution
from talka.control.member.life_proofs import ArrivedPacket
from talka.control.member.owner import Owner
from talka.control.member.receiver import FENCE_KEY, Applied, Receiver
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.role_check import NotForThisRole, RoleCheck, RoleRefused, why_not
from talka.control.member.three_signals import MemberDoubted
from talka.control.member.voter import CommandEnded, Voter
from talka.errors import Untrusted
from talka.units import NEVER, SECOND
from talka.wire import asking, greeting, jobs, leadership, leases, membership
from talka.wire.asking import Ask, AskAnswer
from talka.wire.channels import Message
from talka.wire.condition import NodeCondition
from talka.wire.greeting import ShareRing
from talka.wire.jobs import JobMessage, Renew
from talka.wire.leases import AcquireLease, CommandAnswer, LeaseAnswer, LeaseCommand, LeaseMessage, ReleaseLease
from talka.wire.manager_calls import CallAnswer, ManagerCall
from talka.wire.membership import WatchGroup, WatchReply
from talka.wire.packets import BadPacket
from talka.wire.security.keys import decode_ring
from talka.wire.security.permissions import name_of
from talka.wire.security.roles import NOBODY, Proven, Role
from talka.wire.tasks import TaskMessage
from talka.wire.versions import ONE_LIFE

ADDRESSES_LIMIT: Final = 16_384
ANNOUNCE_EVERY_NS: Final = SECOND
"""How often a member looks at itself for what it should say of itself."""
VOTER: Final = 0
RECEIVER: Final = 1
JOBS: Final = 2
BY_ADDRESS: Final = (membership.CHANNEL, greeting.CHANNEL)
"""Channels whose messages go to addresses. On the others a frame is sealed for the node of that name alone."""


AsideMessage: TypeAlias = TaskMessage | Renew
"""What goes to a neighbour without a frame: all that is said of tasks, and the lease that a worker takes them under,
which must not come behind them."""
ASIDE: Final = frozenset(get_args(TaskMessage)) | {Renew}


class ToNeighbour(msgspec.Struct, frozen=True, gc=False):
    """Let the node hear this that is in the same process, behind what it was told before."""

    message: AsideMessage


class QuestionAsked(msgspec.Struct, frozen=True):
    """News: somebody wants to know something. Answer with `ClusterMember.answer`."""

    source: str
    sender: str
    ask: Ask
    key_id: str = ""
    """The key it was asked under: the asker may have no other, so the answer is sealed with it."""
    proven: Proven = NOBODY


NodeNews: TypeAlias = (
    MemberNews
    | LeadershipNews
    | FederationNews
    | HolderNews
    | LeaseExpired
    | CommandEnded
    | Applied
    | RoleRefused
    | VersionDiffers
)
"""What a member's shell tells of."""
RoutedNews: TypeAlias = (
    MemberLost
    | MemberLeft
    | MemberJoined
    | StateLearned
    | RingChanged
    | Elected
    | SteppedDown
    | WriteEnded
    | MemberDoubted
)
"""What other parts of the member hear of too."""
ROUTED_NEWS: Final = frozenset(get_args(RoutedNews))
MemberEffect: TypeAlias = (
    Transmit | ToNeighbour | Persist | PersistBlob | Welcomed | HelloDeclined | RingChanged | QuestionAsked | NodeNews
)
"""What a member's shell carries out or tells of, beside what its jobs part asks for."""
Announced: TypeAlias = Callable[[int], tuple[NodeCondition, ManagerPhase]]
PartEffect = TypeVar("PartEffect")
PartEffect_co = TypeVar("PartEffect_co", covariant=True)


class JobsPart(Protocol[PartEffect_co]):
    """What a node has to do with jobs: a manager, a worker."""

    @property
    def next_tick_at(self) -> int: ...

    def on_message(
        self, now: int, sender: str, message: JobMessage, boot: int = 0, source: str = "", role: Role | None = None
    ) -> Sequence[PartEffect_co]:
        """`role`: what the sender's certificate proves; None where there are none."""
        ...

    def on_news(self, now: int, news: Elected | SteppedDown | WriteEnded) -> Sequence[PartEffect_co]: ...
    def on_persisted(self, now: int, ticket: int) -> Sequence[PartEffect_co]: ...
    def on_not_persisted(self, now: int, ticket: int, text: str) -> Sequence[PartEffect_co]: ...
    def tick(self, now: int) -> Sequence[PartEffect_co]: ...


class ClusterMember(Generic[PartEffect]):
    """One node: a replay guard, and behind it any of membership, a prober of other groups, a voter, a receiver of
    commands, an owner of leases, and a part that has to do with jobs."""

    def __init__(
        self,
        *,
        group: str,
        name: str,
        boot: int,
        membership: Membership | None = None,
        prober: FederatedProber | None = None,
        voter: Voter | None = None,
        receiver: Receiver | None = None,
        owner: Owner | None = None,
        part: JobsPart[PartEffect] | None = None,
        seeds: tuple[str, ...] = (),
        watchers: tuple[str, ...] = (),
        replay_guard: ReplayGuard | None = None,
        admission: Admission | None = None,
        certified: bool = False,
        addresses_limit: int = ADDRESSES_LIMIT,
        announced: Announced | None = None,
    ) -> None:
        """On a real network an `admission` stands before its `replay_guard`; without one every frame is taken as it is,
        and `certified` says whether senders are proven all the same. `announced`: how its part does, which others are
        told with how it does itself."""
        self.name = name
        self._addresses_limit = addresses_limit
        self.membership = membership
        self.prober = prober
        self.voter = voter
        self.receiver = receiver
        self.owner = owner
        self.jobs = part
        self.replay_guard = replay_guard or ReplayGuard(group=group, name=name, boot=boot, watchers=watchers)
        self.admission = admission
        self.agreements = Agreements.alike() if admission is None else admission.agreements
        """What is spoken with each peer: where `_out` asks it of a message, a part may ask it of a capability."""
        is_certified = certified if admission is None else admission.certified
        self.roles = RoleCheck(is_certified=is_certified)
        self.neighbour = ""
        """The node of the same process with which this one speaks of tasks without frames; empty: there is none."""
        self.announcer: Announcer | None = None
        self.key_distribution: KeyDistribution | None = None
        self._announced = announced
        self._announce_at = 0
        if membership is not None and (admission is not None or announced is not None):
            self.announcer = Announcer(membership, admission)
        if admission is not None and membership is not None and self.announcer is not None:
            self.key_distribution = KeyDistribution(admission, membership, self.announcer)
        self.group = group
        self._timed = [part for part in (membership, prober, voter, owner, self.jobs) if part is not None]
        self._seeds = seeds
        self._addresses: dict[str, str] = {}
        """Where other peers are: told by membership, or learned from the frames they sent."""
        self._connections: dict[str, str] = {}
        """Of those that can only be answered on the connection they opened: workers."""
        self._tickets = 0
        self._ticket_of: dict[int, tuple[int, int]] = {}  # ours to (part, its own); bounded by writes under way
        self._spoken: tuple[object, bytes] = (None, b"")

    @property
    def frames_admitted(self) -> int:
        return self.replay_guard.admitted

    @property
    def next_tick_at(self) -> int:
        return min([part.next_tick_at for part in self._timed], default=NEVER)

    # -- inputs

    def start(self, now: int) -> list[MemberEffect | PartEffect]:
        effects: list[Send[Message] | MemberEffect | PartEffect] = []
        if self.announcer is not None:
            self.announcer.tell(now, spread=False)
        if self.membership is not None:
            effects += self.membership.join(now, list(self._seeds))
        if self.voter is not None:
            effects += self.voter.tick(now)
        return self._out(now, effects)

    def tick(self, now: int) -> list[MemberEffect | PartEffect]:
        effects: list[Send[Message] | MemberEffect | PartEffect] = []
        if self.membership is not None and now >= self.membership.next_tick_at:
            effects += self.membership.tick(now)
            self._judge_health(now, effects)
            self._announce(now)
            if self.key_distribution is not None:
                effects += self.key_distribution.tick(now)
        if self.prober is not None and now >= self.prober.next_tick_at:
            effects += self.prober.tick(now)
        if self.voter is not None and now >= self.voter.next_tick_at:
            effects += self.voter.tick(now)
        if self.owner is not None and now >= self.owner.next_tick_at:
            effects += self.owner.tick(now)
        if self.jobs is not None and now >= self.jobs.next_tick_at:
            effects += self.jobs.tick(now)
        return self._out(now, effects)

    def on_persisted(self, now: int, ticket: int) -> list[MemberEffect | PartEffect]:
        part, own = self._ticket_of.pop(ticket)
        if part == VOTER and self.voter is not None:
            return self._out(now, self.voter.on_persisted(now, own))
        if part == JOBS and self.jobs is not None:
            return self._out(now, self.jobs.on_persisted(now, own))
        assert self.receiver is not None
        return self._out(now, self.receiver.on_persisted(own))

    def on_not_persisted(self, now: int, ticket: int, text: str) -> list[MemberEffect | PartEffect]:
        """A write that the node can do without failed; only those of the part that has to do with jobs are such."""
        _, own = self._ticket_of.pop(ticket)
        return [] if self.jobs is None else self._out(now, self.jobs.on_not_persisted(now, own, text))

    def on_frame(
        self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int, proven: Proven = NOBODY
    ) -> list[MemberEffect | PartEffect]:
        """`age_ns`: how long the frame waited in this node before it was handled. `proven`: whom the certificate of the
        connection names that it came on."""
        if self.admission is None:
            packet = self.replay_guard.admit(frame)
            if packet is None:
                return []
            if self.roles.is_certified and lane is not Lane.DATAGRAM and proven.name != packet.sender:
                self.replay_guard.turn_away("certificate")
                return []
            return self._hear(now, ArrivedPacket(packet, source, age_ns, "", proven))
        arrivals, replies = self.admission.receive(now, source, frame, lane, age_ns, proven)
        out: list[MemberEffect | PartEffect] = [*replies]
        for arrival in arrivals:
            out += self._hear(now, arrival)
        return out

    def on_neighbour(self, now: int, boot: int, message: AsideMessage) -> list[MemberEffect | PartEffect]:
        """What a `ToNeighbour` of the other node had in it. Nothing is to be opened and nobody to be proven: who could
        say something else there could do anything here."""
        return [] if self.jobs is None else self._out(now, self.jobs.on_message(now, self.neighbour, message, boot))

    def _hear(self, now: int, arrival: ArrivedPacket) -> list[MemberEffect | PartEffect]:
        try:
            hear = self._understand(now, arrival)
        except NotForThisRole as refusal:
            self.replay_guard.turn_away(refusal.reason)
            return self._refuse(now, arrival, refusal.message)
        except BadPacket as problem:
            self.replay_guard.turn_away(problem.reason)
            return []
        except Untrusted:
            self.replay_guard.turn_away("body")
            return []
        return self._out(now, hear())

    def _refuse(self, now: int, arrival: ArrivedPacket, message: object) -> list[MemberEffect | PartEffect]:
        """It is told who said what; whoever asks a question is told why it is not answered."""
        sender, proven = arrival.packet.sender, arrival.proven
        effects: list[MemberEffect | PartEffect] = [*self.roles.note(proven, sender, arrival.source, message)]
        if isinstance(message, Ask) and proven.role is not None:
            asked = QuestionAsked(arrival.source, sender, message, arrival.key_id, proven)
            effects += self.answer(now, asked, AskAnswer(message.number, why_not(proven.role, message, sender)))
        return effects

    def _understand(
        self, now: int, arrival: ArrivedPacket
    ) -> Callable[[], Sequence[Send[Message] | MemberEffect | PartEffect]]:
        """What hearing this packet comes to. Only reading it can fail; what is heard is heard to the end."""
        packet, source, age_ns = arrival.packet, arrival.source, arrival.age_ns
        sender, boot = packet.sender, packet.boot
        if packet.channel == membership.CHANNEL.number:
            word = membership.decode(packet.body)
            self.roles.check(arrival.proven, word)
            if packet.group != self.group and not isinstance(word, WatchGroup | WatchReply):
                raise BadPacket("group", f"{sender!r} of group {packet.group!r} may only watch")
            if isinstance(word, WatchReply):
                prober = self.prober
                if self.membership is not None:
                    self.membership.health.handled(now, age_ns)  # the prober judges by it
                if prober is None:
                    return _nothing
                return lambda: prober.on_reply(now, packet.group, sender, boot, word)
            members = self.membership
            if members is None:
                return _nothing
            return lambda: members.on_message(now, source, sender, boot, word, packet.updates, age_ns)
        if packet.group != self.group:
            raise BadPacket("group", f"{sender!r} of group {packet.group!r} may only watch")
        if packet.channel == greeting.CHANNEL.number:
            greeted, key_distribution = greeting.decode(packet.body), self.key_distribution
            self.roles.check(arrival.proven, greeted)
            if key_distribution is None or not isinstance(greeted, ShareRing):
                return _nothing
            theirs = decode_ring(greeted.ring)
            merged = key_distribution.ring.merge(theirs)
            return lambda: key_distribution.learn(now, arrival, theirs, merged)
        if packet.channel == asking.CHANNEL.number:
            asked = asking.decode(packet.body)
            self.roles.check(arrival.proven, asked)
            if not isinstance(asked, Ask):
                return _nothing
            return lambda: [QuestionAsked(source, sender, asked, arrival.key_id, arrival.proven)]
        if packet.channel == leadership.CHANNEL.number:
            saying, voter = leadership.decode(packet.body), self.voter
            self._admit(arrival, saying)
            if voter is None:
                return _nothing
            return lambda: voter.on_message(now, sender, saying)
        if packet.channel == leases.CHANNEL.number:
            wanted = leases.decode(packet.body)
            self._admit(arrival, wanted)
            return lambda: self._on_lease_message(now, sender, wanted)
        if packet.channel == jobs.CHANNEL.number:
            said, part = jobs.decode(packet.body), self.jobs
            self._admit(arrival, said)
            if part is None:
                return _nothing
            role = arrival.proven.role if self.roles.is_certified else None
            return lambda: part.on_message(now, sender, said, boot, source, role)
        raise BadPacket("body", f"{sender!r} sent on channel {packet.channel}, which nobody knows")

    def _admit(self, arrival: ArrivedPacket, message: object) -> None:
        """Whoever may say this is answered where it speaks from."""
        self.roles.check(arrival.proven, message)
        self.note_address(arrival.packet.sender, arrival.source)

    def note_address(self, name: str, address: str) -> None:
        """Where a node was greeted, or speaks from."""
        if address.startswith(HANDLE):
            if name not in self._connections and len(self._connections) >= self._addresses_limit:
                del self._connections[next(iter(self._connections))]
            self._connections[name] = address
            return
        if name not in self._addresses and len(self._addresses) >= self._addresses_limit:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[name] = address

    def _on_lease_message(self, now: int, sender: str, message: LeaseMessage) -> Sequence[Send[Message] | MemberEffect]:
        match message:
            case AcquireLease() | ReleaseLease():
                return [] if self.voter is None else self.voter.on_lease_message(now, sender, message)
            case CommandAnswer():
                return [] if self.voter is None else self.voter.on_command_answer(sender, message)
            case LeaseCommand():
                return [] if self.receiver is None else self.receiver.on_command(sender, message)
            case LeaseAnswer():  # pragma: no branch - the type checker sees that no other is left
                return [] if self.owner is None else self.owner.on_answer(now, sender, message)

    # -- what callers ask of the parts

    def act(
        self, now: int, effects: Sequence[Send[Message] | MemberEffect | PartEffect]
    ) -> list[MemberEffect | PartEffect]:
        """Carry out what a part answered to a call, as `member.act(now, member.voter.write(now, …))`."""
        return self._out(now, effects)

    def answer(self, now: int, asked: QuestionAsked, answer: AskAnswer) -> list[MemberEffect | PartEffect]:
        frame = self._wrap(now, asking.CHANNEL.number, asking.encode(answer), to=asked.sender, key_id=asked.key_id)
        return [Transmit(asked.source, frame, Lane.STREAM)]

    # -- routing

    def _judge_health(self, now: int, effects: list[Send[Message] | MemberEffect | PartEffect]) -> None:
        if self.voter is None or self.membership is None:
            return
        health = self.membership.health
        self.voter.election.set_health(health.score, may_lead=health.level.may_lead)
        if health.level.must_not_lead and self.voter.election.is_leading(now):
            effects += self.voter.hand_over_if_worse(now)

    def _announce(self, now: int) -> None:
        if self.announcer is None or self.membership is None or now < self._announce_at:
            return
        self._announce_at = now + ANNOUNCE_EVERY_NS
        condition, phase = (NodeCondition(), _NO_PHASE) if self._announced is None else self._announced(now)
        level = self.membership.health.level
        self.announcer.note(now, msgspec.structs.replace(condition, health=int(level)), phase)

    def _out(
        self, now: int, asked: Sequence[Send[Message] | MemberEffect | PartEffect]
    ) -> list[MemberEffect | PartEffect]:
        """Put messages into frames, give tickets numbers of this node, and let news reach the parts they concern."""
        effects = list(asked)
        out: list[MemberEffect | PartEffect] = []
        for effect in effects:  # it grows
            if isinstance(effect, Send):
                if effect.to == self.name and isinstance(effect.message, LeaseMessage):
                    effects += self._on_lease_message(now, self.name, effect.message)
                elif effect.to == self.neighbour and type(effect.message) in ASIDE:
                    out.append(ToNeighbour(cast("AsideMessage", effect.message)))
                elif effect.message.needs and not self.agreements.may_say(effect.to, effect.message):
                    effects += self._on_unsaid(now, effect)
                else:
                    out.append(self._transmit(now, effect))
            elif isinstance(effect, Persist):
                out.append(Persist(self._ticket(self._writer_of(effect), effect.ticket), effect.puts))
            elif isinstance(effect, PersistBlob):
                ticket = self._ticket(JOBS, effect.ticket)
                out.append(PersistBlob(ticket, effect.digest, effect.content, effect.removed))
            else:
                out.append(effect)
                if type(effect) in ROUTED_NEWS:  # `isinstance` asks the classes of a union one by one
                    effects += self._on_news(now, cast("RoutedNews", effect))
        return out

    def _on_news(self, now: int, news: RoutedNews) -> Sequence[Send[Message] | MemberEffect | PartEffect]:
        effects: list[Send[Message] | MemberEffect | PartEffect] = []
        match news:
            case MemberLost(name=name, boot=boot):
                self.agreements.end(name, boot)
                if self.voter is not None:
                    effects += self.voter.suspect_leader(now, name)
            case MemberLeft(name=name, boot=boot):
                self.agreements.end(name, boot)
            case MemberJoined(name=name, address=address):
                self.note_address(name, address)
            case StateLearned() | RingChanged():
                if self.key_distribution is not None:
                    effects += self.key_distribution.hear(now, news)
                if isinstance(news, StateLearned):
                    effects += self._hear_version(news.name)
            case MemberDoubted(name=name):
                if self.membership is not None:
                    self.membership.doubt(name)
            case (
                Elected() | SteppedDown() | WriteEnded()
            ):  # pragma: no branch - the type checker sees that it is the last
                if self.announcer is not None and not isinstance(news, WriteEnded):
                    self.announcer.lead(now, news.token.term if isinstance(news, Elected) else 0)
                if self.jobs is not None:
                    effects += self.jobs.on_news(now, news)
        return effects

    def _hear_version(self, name: str) -> list[VersionDiffers]:
        """What a member announced to all counts until it speaks here itself."""
        speaker = None if self.membership is None or self.admission is None else self.membership.get(name)
        standing = None if speaker is None else standing_of(speaker)
        if speaker is None or standing is None:
            return []
        return self.agreements.hear(name, speaker.boot, standing.version)

    def _on_unsaid(self, now: int, send: Send[Message]) -> Sequence[Send[Message] | MemberEffect | PartEffect]:
        """Its receiver is too old for it. What can be lost is not said; who asked a question is told at once."""
        message = send.message
        if not isinstance(message, ManagerCall) or self.jobs is None:
            return []
        text = (
            f"{send.to} speaks protocol {self.agreements.of(send.to).version} and does not know "
            f"{name_of(message)}: it needs a newer release"
        )
        answer = CallAnswer(message.number, None, "unavailable", text)
        return self.jobs.on_message(now, send.to, answer, role=Role.MANAGER if self.roles.is_certified else None)

    def _transmit(self, now: int, send: Send[Message]) -> Transmit:
        body = self._encode(send.message)
        if send.channel in BY_ADDRESS:
            key_id = send.key_id or self._key_for(now, send.to)
            frame = self._wrap(now, send.channel.number, body, send.updates, key_id=key_id)
            return Transmit(send.to, frame, send.lane)
        # What only newer sides understand is for the life that was found to be one.
        is_meant = send.message.needs > 0 and self.agreements.of(send.to).knows(ONE_LIFE)
        life = self.agreements.life_of(send.to) if is_meant else 0
        frame = self._wrap(now, send.channel.number, body, to=send.to, life=life)
        return Transmit(self.address_of(send.to), frame, send.lane)

    def _ticket(self, part: int, own: int) -> int:
        self._tickets += 1
        self._ticket_of[self._tickets] = (part, own)
        return self._tickets

    def _writer_of(self, persist: Persist) -> int:
        """The part that asked for it. Of the jobs' part only workers, which have no voter, write other than blobs."""
        if self.voter is not None:
            return RECEIVER if persist.puts[0][0] == FENCE_KEY else VOTER
        return RECEIVER if self.jobs is None else JOBS

    def _key_for(self, now: int, address: str) -> str:
        return "" if self.key_distribution is None else self.key_distribution.key_for(now, address)

    def _wrap(
        self,
        now: int,
        channel: int,
        body: bytes,
        updates: list[bytes] | None = None,
        *,
        to: str = "",
        key_id: str = "",
        life: int = 0,
    ) -> bytes:
        if self.admission is None:
            return self.replay_guard.wrap(channel, body, updates, life=life)
        return self.admission.wrap(now, channel, body, updates, to=to, key_id=key_id, life=life)

    def _encode(self, message: msgspec.Struct) -> bytes:
        """The same message often goes to several peers: it is encoded once."""
        if self._spoken[0] is not message:
            self._spoken = (message, _encoder.encode(message))
        return self._spoken[1]

    def address_of(self, name: str) -> str:
        """Where a frame for it goes."""
        return self._addresses.get(name) or self._connections.get(name) or name


_encoder = msgspec.msgpack.Encoder()
_NO_PHASE: Final[ManagerPhase] = ""


def _nothing() -> list[Never]:
    """This node has no part that the packet is for."""
    return []
