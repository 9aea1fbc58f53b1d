"""Admission of frames on a real network: lets in what is sealed, of this cluster, and alive now.

A frame of a life that is not known is kept for a moment and its sender is asked to echo a nonce: a recording cannot.
Only then, and only frames sent shortly before, go on to the replay guard. What greets is answered here.

docs/decisions/0014-sealed-and-alive.md.
"""

from collections import deque
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Transmit
from talka.cluster.leadership.news import LeadershipAlarm
from talka.control.member.replay_guard import REPEATABLE, ReplayGuard
from talka.control.member.ring_guard import RingGuard
from talka.units import SECOND
from talka.wire import asking, greeting
from talka.wire.channels import BadMessage
from talka.wire.framing import BadContent, packed, unpacked
from talka.wire.greeting import (
    NONCE_BYTES,
    TEXT_LIMIT,
    Challenge,
    GreetingHello,
    GreetingMessage,
    GreetingRefusal,
    GreetingWelcome,
    Proof,
    Self,
    ShareRing,
)
from talka.wire.packets import BadPacket, Packet, decode_packet
from talka.wire.security.keys import Keyring, encode_ring
from talka.wire.security.roles import NOBODY, Proven, Role, a, may_connect
from talka.wire.security.sealing import BadSeal, Opened, Seal
from talka.wire.versions import Offer, ProtocolVersion, disagreement

PROOF_NS: Final = 3 * SECOND
"""How long a nonce may be echoed, how long a frame is kept for its proof, and how old one may be that counts as
fresh."""
WELCOME_NS: Final = 10 * SECOND
"""How long a GreetingHello may be answered: a connection may have to be opened first."""
ASK_AGAIN_NS: Final = SECOND // 4
WAITING_LIMIT: Final = 1024
"""Lives that are asked for a proof at once; the one asked longest ago is forgotten first."""
HELD_LIMIT: Final = 8
"""Frames of one such life that are kept."""
HELD_LIMIT_BYTES: Final = 64 * 1024
"""And of them together, unpacked: somebody who plays back long ones must not fill the memory."""
HELLOS_LIMIT: Final = 64
SHARE_NS: Final = SECOND
SHARED_LIMIT: Final = 4096
KEYS_NOTED_LIMIT: Final = 16_384
NAMESAKES_LIMIT: Final = 16


class ArrivedPacket(msgspec.Struct, frozen=True):
    """A packet that may be looked at."""

    packet: Packet
    source: str
    age_ns: int
    key_id: str = ""
    """The key it was sealed with."""
    proven: Proven = NOBODY
    """Whom the certificate names of the connection it came on."""


class Welcomed(msgspec.Struct, frozen=True):
    """News: the node at this address lets this one in."""

    address: str
    name: str
    who: Self
    lane: Lane


class HelloDeclined(msgspec.Struct, frozen=True):
    """News: the node at this address does not let this one in."""

    address: str
    reason: str
    text: str


class RingChanged(msgspec.Struct, frozen=True):
    """News: other keys hold from now on. They should be kept across restarts."""

    ring: Keyring
    by: str = ""
    """The node that told of them; empty where they were changed here."""


AdmissionEffect: TypeAlias = Transmit | Welcomed | HelloDeclined | RingChanged | LeadershipAlarm


class _Waiting:
    __slots__ = ("asked_at", "held", "held_bytes", "nonce", "since")

    def __init__(self, nonce: bytes, now: int) -> None:
        self.nonce = nonce
        self.since = now
        self.asked_at = now - ASK_AGAIN_NS
        self.held: list[ArrivedPacket] = []
        self.held_bytes = 0


class Admission:
    """Frames in, packets for the member and replies to the network out. Everything it keeps is bounded."""

    def __init__(
        self,
        *,
        replay_guard: ReplayGuard,
        seal: Seal,
        name: str,
        me: Self,
        rng: Random,
        certified: bool = False,
    ) -> None:
        self.me = me
        self.rings = RingGuard(certified=certified)
        self.opened = 0
        """Frames whose seal was good, whatever became of them."""
        self.challenged = 0
        """Lives that were asked for a proof."""
        self._replay_guard = replay_guard
        self._seal = seal
        self._name = name
        self._role = Role(me.role)
        self._offer = Offer(ProtocolVersion.parse(me.version), tuple(me.capabilities), tuple(me.required))
        self._rng = rng
        self.certified = certified
        """Whether connections prove who is at their other end."""
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._hellos: dict[bytes, tuple[str, int]] = {}
        self._shared_at: dict[str, int] = {}
        self._key_of: dict[str, str] = {}
        self._namesakes: dict[str, None] = {}
        self._marks: deque[tuple[int, int]] = deque(maxlen=8)

    @property
    def ring(self) -> Keyring:
        return self._seal.ring

    @property
    def spare_ids(self) -> tuple[str, ...]:
        """Keys under which a manager still reads what repairs its ring, though the ring has them no more."""
        return self._seal.spare_ids if self.certified else ()

    def wrap(
        self, now: int, channel: int, body: bytes, updates: list[bytes] | None = None, *, to: str = "", key_id: str = ""
    ) -> bytes:
        """A sealed frame. With `to` only the node of that name can open it."""
        if not self._marks or now - self._marks[-1][0] >= SECOND:
            self._marks.append((now, self._replay_guard.counter))
        frame = self._replay_guard.wrap(channel, body, updates)
        return self._seal.seal(self._replay_guard.counter, packed(frame), key_id=key_id, to=to)

    def hello(self, now: int, address: str) -> list[AdmissionEffect]:
        """Ask the node at this address, over datagrams and over the stream; one answer is enough."""
        for nonce in [nonce for nonce, (_, at) in self._hellos.items() if now - at > WELCOME_NS]:
            del self._hellos[nonce]
        return [self._hello(now, address, lane) for lane in (Lane.DATAGRAM, Lane.STREAM)]

    def _hello(self, now: int, address: str, lane: Lane) -> Transmit:
        if len(self._hellos) >= HELLOS_LIMIT:
            del self._hellos[next(iter(self._hellos))]
        nonce = self._nonce()
        self._hellos[nonce] = (address, now)
        return self._reply(now, address, lane, GreetingHello(self.me, nonce), "")

    def receive(
        self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int, proven: Proven = NOBODY
    ) -> tuple[list[ArrivedPacket], list[AdmissionEffect]]:
        """What may be looked at, and what is to be sent or told. `proven` is whom the sender's certificate names."""
        # What repairs a ring may come under a key that the ring has lost, from a manager that shows its certificate.
        is_manager = self.certified and lane is not Lane.DATAGRAM and proven.role is Role.MANAGER
        try:
            opened = self._seal.open(frame, me=self._name, spare=is_manager)
            content = unpacked(opened.content)
            packet = decode_packet(content)
        except (BadSeal, BadContent, BadPacket) as problem:
            return self._turn_away(problem.reason)
        self.opened += 1
        if self.certified and lane is not Lane.DATAGRAM and proven.name != packet.sender:
            return self._turn_away("certificate")  # who holds the key could speak in anybody's name
        if (packet.boot, packet.counter) != (opened.boot, opened.counter):
            return self._turn_away("forged")
        if packet.channel == greeting.CHANNEL.number:
            try:
                message = greeting.decode(packet.body)
            except BadMessage:
                unreadable = self._difference(packet.group) or ("body", "")
                return self._turn_away(unreadable[0])
            if not isinstance(message, ShareRing):
                return self._greet(now, source, lane, opened, packet, message, proven)
            if barred := self.rings.bars(lane, proven):
                self._replay_guard.turn_away("certificate")
                return [], [*self.rings.refuse(now, barred, packet.sender, source, message.ring)]
        elif opened.is_spare and packet.channel != asking.CHANNEL.number:
            return self._turn_away("key")
        if difference := self._difference(packet.group):
            return self._turn_away(difference[0])
        if packet.channel not in REPEATABLE:
            if not opened.addressed:  # a vote for one, played to another, would be a vote for both
                return self._turn_away("unaddressed")
            if self.certified and lane is Lane.DATAGRAM:  # no certificate comes with it
                return self._turn_away("certificate")
        arrival = ArrivedPacket(packet, source, age_ns, opened.key_id, proven)
        if not self._replay_guard.knows(packet):
            return [], self._challenge(now, lane, opened, arrival, len(content))
        replies: list[AdmissionEffect] = []
        if opened.key_id != self.ring.primary_id:
            replies = self._share(now, source, packet.sender, opened.key_id)
        if not self._replay_guard.passes(packet):
            return [], replies
        if not opened.is_spare:
            self._note_key(packet.sender, opened.key_id)
        return [arrival], replies

    def key_of(self, name: str) -> str:
        """The key this node sealed with last, if it is still in use and another than ours; else nothing."""
        key_id = self._key_of.get(name, "")
        return key_id if key_id != self.ring.primary_id and key_id in self.ring.secrets() else ""

    def _note_key(self, name: str, key_id: str) -> None:
        if self._key_of.get(name) == key_id:
            return
        if name not in self._key_of and len(self._key_of) >= KEYS_NOTED_LIMIT:
            del self._key_of[next(iter(self._key_of))]
        self._key_of[name] = key_id

    def use(self, ring: Keyring, by: str = "") -> list[RingChanged]:
        """Seal and open with these keys from now on."""
        if ring == self.ring:
            return []
        self._seal.ring = ring
        return [RingChanged(ring, by)]

    # -- greeting

    def _greet(
        self,
        now: int,
        source: str,
        lane: Lane,
        opened: Opened,
        packet: Packet,
        message: GreetingHello | GreetingWelcome | Challenge | Proof | GreetingRefusal,
        proven: Proven,
    ) -> tuple[list[ArrivedPacket], list[AdmissionEffect]]:
        key_id = opened.key_id
        if isinstance(message, GreetingRefusal):
            address, _ = self._hellos.pop(message.echo, ("", 0))
            return [], [HelloDeclined(address, message.reason, message.text)] if address else []
        if isinstance(message, GreetingHello):
            reason, text = self._objection(packet, message.me, proven)
            if reason:
                self._replay_guard.turn_away(reason)
                refusal = self._reply(
                    now, source, lane, GreetingRefusal(message.nonce, reason, text[:TEXT_LIMIT]), key_id
                )
                return [], [refusal, *self._meet_namesake(source, reason)]
        elif difference := self._difference(packet.group):
            return self._turn_away(difference[0])
        if isinstance(message, GreetingWelcome) and self._pretends(message.me, proven):
            return self._turn_away("role")
        if packet.sender == self._name:
            return self._turn_away("own")
        match message:
            case GreetingHello(nonce=echo):
                waiting = self._waiting_of(now, packet)
                return [], [self._reply(now, source, lane, GreetingWelcome(self.me, echo, waiting.nonce), key_id)]
            case Challenge(nonce=nonce):
                return [], [self._reply(now, source, lane, Proof(nonce, self._floor(now)), key_id)]
            case GreetingWelcome(echo=echo, nonce=nonce, me=who):
                address, asked_at = self._hellos.pop(echo, ("", 0))
                if not address or now - asked_at > WELCOME_NS:
                    return self._turn_away("replayed")
                if not self._replay_guard.knows(packet):
                    self._replay_guard.raise_floor(packet, packet.counter)
                self.rings.asked(packet.sender, packet.boot)
                proof = self._reply(now, source, lane, Proof(nonce, self._floor(now)), key_id)
                return [], [proof, Welcomed(address, packet.sender, who, lane)]
            case Proof(echo=echo, floor=floor):  # pragma: no branch - the type checker sees that no other is left
                waiting_for = self._waiting.get((packet.sender, packet.boot))
                if waiting_for is None and self._replay_guard.knows(packet):
                    return [], []  # it was greeted over both lanes, and has proven itself over the other
                if waiting_for is None or echo != waiting_for.nonce or now - waiting_for.since > PROOF_NS:
                    return self._turn_away("replayed")
                del self._waiting[(packet.sender, packet.boot)]
                self._replay_guard.raise_floor(packet, floor)
                held = [arrival for arrival in waiting_for.held if self._replay_guard.passes(arrival.packet)]
                replies = [] if key_id == self.ring.primary_id else self._share(now, source, packet.sender, key_id)
                return held, replies

    def _objection(self, packet: Packet, who: Self, proven: Proven) -> tuple[str, str]:
        """The first thing that forbids this node to come in: a word and a sentence, or two empty ones."""
        if difference := self._difference(packet.group):
            return difference
        if packet.sender == self._name and packet.boot != self._seal.boot:
            return "name", f"another node is called {self._name!r} here: start yours with another --name"
        if text := disagreement(self._offer, who.version, who.capabilities, who.required):
            return "version", text
        try:
            role = Role(who.role)
        except ValueError:
            return "role", f"{packet.sender!r} says it has the role {who.role!r}, which {self._name!r} does not know"
        if self._pretends(who, proven):
            return "role", f"{packet.sender!r} says it is {a(role)}, and its certificate does not"
        if text := may_connect(role, self._role):
            return "role", text
        return "", ""

    def _pretends(self, who: Self, proven: Proven) -> bool:
        """Whether it says another role than its certificate. With a datagram comes none: what follows is on a
        stream."""
        return self.certified and proven.role is not None and who.role != proven.role

    def _meet_namesake(self, source: str, reason: str) -> list[AdmissionEffect]:
        """Another node of this node's name asks to be let in. Each address is told once."""
        if reason != "name" or source in self._namesakes or len(self._namesakes) >= NAMESAKES_LIMIT:
            return []
        self._namesakes[source] = None
        text = f"another node calls itself {self._name!r} as this one does, at {source}: start it with another --name"
        return [LeadershipAlarm("name", text)]

    def _difference(self, group: str) -> tuple[str, str] | None:
        cluster, _, environment = group.partition("/")
        if cluster != self.me.cluster:
            return "cluster", f"{self._name!r} is of cluster {self.me.cluster!r}, not of {cluster!r}"
        if environment != self.me.environment:
            text = f"{self._name!r} is of environment {self.me.environment!r}, not of {environment!r}"
            return "environment", text
        return None

    # -- proofs

    def _challenge(
        self, now: int, lane: Lane, opened: Opened, arrival: ArrivedPacket, size_bytes: int
    ) -> list[AdmissionEffect]:
        packet = arrival.packet
        if packet.sender == self._name:
            self._replay_guard.turn_away("own")
            return []
        waiting = self._waiting_of(now, packet)
        if len(waiting.held) < HELD_LIMIT and waiting.held_bytes + size_bytes <= HELD_LIMIT_BYTES:
            waiting.held.append(arrival)
            waiting.held_bytes += size_bytes
        if now - waiting.asked_at < ASK_AGAIN_NS:
            return []
        waiting.asked_at = now
        return [self._reply(now, arrival.source, lane, Challenge(waiting.nonce), opened.key_id)]

    def _waiting_of(self, now: int, packet: Packet) -> _Waiting:
        life = (packet.sender, packet.boot)
        waiting = self._waiting.get(life)
        if waiting is not None and now - waiting.since <= PROOF_NS:
            return waiting
        while self._waiting:  # the one asked longest ago is the first
            oldest = next(iter(self._waiting))
            if len(self._waiting) < WAITING_LIMIT and now - self._waiting[oldest].since <= PROOF_NS:
                break
            del self._waiting[oldest]
        self.challenged += 1
        waiting = self._waiting[life] = _Waiting(self._nonce(), now)
        return waiting

    def _floor(self, now: int) -> int:
        """The number of the first frame that was sent within `PROOF_NS`, or of one before it."""
        floor = 0
        ends = [counter for _, counter in self._marks][1:] + [self._replay_guard.counter]
        for (at, counter), end in zip(self._marks, ends, strict=True):
            if now - at >= PROOF_NS + SECOND:  # what this mark is for was sent within a second of it
                floor = end + 1
            elif now - at >= PROOF_NS:
                floor = counter + 1
        return floor

    def _share(self, now: int, source: str, name: str, key_id: str) -> list[AdmissionEffect]:
        """Tell one that seals with an older key which keys there are, under the key it has."""
        if now - self._shared_at.get(name, -SHARE_NS) < SHARE_NS:
            return []
        self._shared_at.pop(name, None)
        if len(self._shared_at) >= SHARED_LIMIT:
            del self._shared_at[next(iter(self._shared_at))]
        self._shared_at[name] = now
        return [self._reply(now, source, Lane.STREAM, ShareRing(encode_ring(self.ring)), key_id)]

    def _reply(self, now: int, to: str, lane: Lane, message: GreetingMessage, key_id: str) -> Transmit:
        return Transmit(to, self.wrap(now, greeting.CHANNEL.number, greeting.encode(message), key_id=key_id), lane)

    def _nonce(self) -> bytes:
        return self._rng.randbytes(NONCE_BYTES)

    def _turn_away(self, reason: str) -> tuple[list[ArrivedPacket], list[AdmissionEffect]]:
        self._replay_guard.turn_away(reason)
        return [], []
