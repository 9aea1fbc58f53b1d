"""Admission of frames on a real network: lets in what is sealed, of this cluster, and alive now.

`receive` is the way of a frame from outside to the member:

1. A key of the ring opens its seal, and it holds a packet of the life that sealed it.
2. Where there are certificates, that of its connection names its sender.
3. A greeting is answered here and goes no further: who is there, may it come in, does it live?
4. Anything else is of this cluster and environment, and bound to this node unless it may be heard twice.
5. The life of its sender is known. If not, the frame is kept for a moment and the sender is asked to echo a nonce,
   which a recording cannot do (`life_proofs.py`).
6. The replay guard lets it in once.
7. What was agreed on with this life of its sender is known (`agreements.py`), or it is asked.

A sender under an older key is told the keys of today. Whether keys that others bring count is for `ring_guard.py`.

docs/decisions/0014-sealed-and-alive.md.
"""

from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Transmit
from talka.cluster.leadership.news import LeadershipAlarm
from talka.control.member.agreements import Agreements, VersionDiffers
from talka.control.member.life_proofs import ArrivedPacket, SentFrames, UnprovenLives
from talka.control.member.replay_guard import REPEATABLE, ReplayGuard
from talka.control.member.ring_guard import RingGuard
from talka.errors import Invalid
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
from talka.wire.security.sealing import BadSeal, Seal
from talka.wire.versions import NotCompatible, disagreement, offer_of

WELCOME_NS: Final = 10 * SECOND
"""How long a GreetingHello may be answered: a connection may have to be opened first."""
HELLOS_LIMIT: Final = 64
SHARE_NS: Final = SECOND
"""How often one sender is told the keys of today at most."""
SHARED_LIMIT: Final = 4096
KEYS_NOTED_LIMIT: Final = 16_384
NAMESAKES_LIMIT: Final = 16


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


AdmissionEffect: TypeAlias = Transmit | Welcomed | HelloDeclined | RingChanged | LeadershipAlarm | VersionDiffers
Admitted: TypeAlias = tuple[list[ArrivedPacket], list[AdmissionEffect]]
"""What the member may look at, and what is to be sent or told."""


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
        shared_limit: int = SHARED_LIMIT,
        keys_noted_limit: int = KEYS_NOTED_LIMIT,
    ) -> None:
        self._shared_limit = shared_limit
        self._keys_noted_limit = keys_noted_limit
        self.me = me
        """What this node says of itself when it greets."""
        self.certified = certified
        """Whether connections prove who is at their other end."""
        self.rings = RingGuard(certified=certified)
        self.lives = UnprovenLives(rng)
        self.opened = 0
        """Frames whose seal was good, whatever became of them."""
        self._replay_guard = replay_guard
        self._seal = seal
        self._name = name
        self._role = Role(me.role)
        self._offer = offer_of(me.version, me.capabilities, me.required)
        self.agreements = Agreements(self._offer)
        self._rng = rng
        self._sent = SentFrames()
        self._hellos: dict[bytes, tuple[str, int]] = {}
        """Greetings that wait for an answer: nonce to address and instant."""
        self._shared_at: dict[str, int] = {}
        """When each sender under an older key was last told the keys of today."""
        self._key_of: dict[str, str] = {}
        """The key each sender used last."""
        self._namesakes: dict[str, None] = {}
        """Addresses from which another node of this name asked to be let in."""

    # -- what leaves

    def wrap(
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
        """A sealed frame. With `to` only the node of that name can open it, with `life` only that life of it hears
        it."""
        self._sent.note(now, self._replay_guard.counter)
        frame = self._replay_guard.wrap(channel, body, updates, life=life)
        return self._seal.seal(self._replay_guard.counter, packed(frame), key_id=key_id, to=to)

    def hello(self, now: int, address: str) -> list[AdmissionEffect]:
        """Ask the node at this address, over datagrams and over the stream; one answer is enough."""
        for nonce in [nonce for nonce, (_, at) in self._hellos.items() if now - at > WELCOME_NS]:
            del self._hellos[nonce]
        effects: list[AdmissionEffect] = []
        for lane in (Lane.DATAGRAM, Lane.STREAM):
            if len(self._hellos) >= HELLOS_LIMIT:
                del self._hellos[next(iter(self._hellos))]
            nonce = self._rng.randbytes(NONCE_BYTES)
            self._hellos[nonce] = (address, now)
            effects.append(self._reply(now, address, lane, GreetingHello(self.me, nonce), ""))
        return effects

    def _reply(self, now: int, to: str, lane: Lane, message: GreetingMessage, key_id: str) -> Transmit:
        return Transmit(to, self.wrap(now, greeting.CHANNEL.number, greeting.encode(message), key_id=key_id), lane)

    # -- what arrives

    def receive(
        self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int, proven: Proven = NOBODY
    ) -> Admitted:
        """`proven` is whom the sender's certificate names."""
        is_stream = lane is not Lane.DATAGRAM
        # What repairs a ring may come under a key that the ring has lost, from a manager that shows its certificate.
        may_repair = self.certified and is_stream and proven.role is Role.MANAGER
        try:
            opened = self._seal.open(frame, me=self._name, spare=may_repair)
            content = unpacked(opened.content)
            packet = decode_packet(content)
        except (BadSeal, BadContent, BadPacket) as problem:
            return self._turn_away(problem.reason)
        self.opened += 1
        if self.certified and is_stream and proven.name != packet.sender:
            return self._turn_away("certificate")  # who holds the key could speak in anybody's name
        if (packet.boot, packet.counter) != (opened.boot, opened.counter):
            return self._turn_away("forged")
        arrival = ArrivedPacket(packet, source, age_ns, opened.key_id, proven)
        if packet.channel == greeting.CHANNEL.number:
            try:
                message = greeting.decode(packet.body)
            except BadMessage:
                unreadable = self._difference(packet.group) or ("body", "")
                return self._turn_away(unreadable[0])
            if not isinstance(message, ShareRing):
                return self._greet(now, lane, arrival, message)
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
            if self.certified and not is_stream:  # no certificate comes with it
                return self._turn_away("certificate")
        if not self._replay_guard.knows(packet):
            return self._challenge(now, lane, arrival, len(content))
        replies = self._share(now, arrival)
        if not self._replay_guard.passes(packet):
            return [], replies
        if not opened.is_spare:
            self._note_key(packet.sender, opened.key_id)
        if self.agreements.life_of(packet.sender) != packet.boot:
            replies += self._ask(now, lane, arrival)
        return [arrival], replies

    def _challenge(self, now: int, lane: Lane, arrival: ArrivedPacket, size_bytes: int) -> Admitted:
        """Keep the frame until its sender has proven that it lives, and ask it to."""
        if arrival.packet.sender == self._name:
            return self._turn_away("own")
        self.lives.meet(now, arrival.packet).hold(arrival, size_bytes)
        return [], self._ask(now, lane, arrival)

    def _ask(self, now: int, lane: Lane, arrival: ArrivedPacket) -> list[AdmissionEffect]:
        """Have this life prove that it lives, and say what it is."""
        life = self.lives.meet(now, arrival.packet)
        if not life.is_to_be_asked(now):
            return []
        return [self._reply(now, arrival.source, lane, Challenge(life.nonce), arrival.key_id)]

    def _turn_away(self, reason: str) -> Admitted:
        self._replay_guard.turn_away(reason)
        return [], []

    # -- greeting

    def _greet(
        self,
        now: int,
        lane: Lane,
        arrival: ArrivedPacket,
        message: GreetingHello | GreetingWelcome | Challenge | Proof | GreetingRefusal,
    ) -> Admitted:
        packet, source, key_id = arrival.packet, arrival.source, arrival.key_id
        if isinstance(message, GreetingRefusal):  # also of another cluster
            address, _ = self._hellos.pop(message.echo, ("", 0))
            return [], [HelloDeclined(address, message.reason, message.text)] if address else []
        if isinstance(message, GreetingHello):
            reason, text = self._objection(packet, message.me, arrival.proven)
            if reason:
                self._replay_guard.turn_away(reason)
                refusal = GreetingRefusal(message.nonce, reason, text[:TEXT_LIMIT])
                return [], [self._reply(now, source, lane, refusal, key_id), *self._meet_namesake(source, reason)]
        elif difference := self._difference(packet.group):
            return self._turn_away(difference[0])
        if isinstance(message, GreetingWelcome) and self._pretends(message.me, arrival.proven):
            return self._turn_away("role")
        if packet.sender == self._name:
            return self._turn_away("own")
        match message:
            case GreetingHello(nonce=echo):
                welcome = GreetingWelcome(self.me, echo, self.lives.meet(now, packet).nonce)
                return [], [self._reply(now, source, lane, welcome, key_id)]
            case Challenge(nonce=nonce):
                return [], [self._prove(now, source, lane, nonce, key_id)]
            case GreetingWelcome(echo=echo, nonce=nonce, me=who):
                address, asked_at = self._hellos.pop(echo, ("", 0))
                if not address or now - asked_at > WELCOME_NS:
                    return self._turn_away("replayed")
                try:
                    differs = self._meet(arrival, who.version, who.capabilities)
                except (Invalid, NotCompatible):
                    return self._turn_away("version")
                if not self._replay_guard.knows(packet):
                    self._replay_guard.raise_floor(packet, packet.counter)
                self.rings.asked(packet.sender, packet.boot)
                proof = self._prove(now, source, lane, nonce, key_id)
                return [], [proof, Welcomed(address, packet.sender, who, lane), *differs]
            case Proof(
                echo=echo, floor=floor, version=version, capabilities=capabilities
            ):  # pragma: no branch - the type checker sees that no other is left
                if not self.lives.has(packet) and self._replay_guard.knows(packet):
                    return [], []  # it was greeted over both lanes, and has proven itself over the other
                life = self.lives.prove(now, packet, echo)
                if life is None:
                    return self._turn_away("replayed")
                try:
                    differs = self._meet(arrival, version, capabilities)
                except (Invalid, NotCompatible):
                    return self._turn_away("version")
                self._replay_guard.raise_floor(packet, floor)
                held = [kept for kept in life.held if self._replay_guard.passes(kept.packet)]
                return held, [*differs, *self._share(now, arrival)]

    def _prove(self, now: int, to: str, lane: Lane, nonce: bytes, key_id: str) -> Transmit:
        """This life lives: it echoes the nonce, and says which of its frames are fresh."""
        floor = self._sent.floor(now, self._replay_guard.counter)
        return self._reply(now, to, lane, Proof(nonce, floor, self.me.version, self.me.capabilities), key_id)

    def _meet(self, arrival: ArrivedPacket, version: str, capabilities: list[str]) -> list[VersionDiffers]:
        """It lives, and says this of itself."""
        packet = arrival.packet
        return self.agreements.meet(packet.sender, packet.boot, version, capabilities, arrival.source)

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

    # -- keys

    @property
    def ring(self) -> Keyring:
        return self._seal.ring

    @property
    def spare_ids(self) -> tuple[str, ...]:
        """Keys under which a manager still reads what repairs its ring, though the ring has them no more."""
        return self._seal.spare_ids if self.certified else ()

    def key_of(self, name: str) -> str:
        """The key this node sealed with last, if it is still in use and another than ours; else nothing."""
        key_id = self._key_of.get(name, "")
        return key_id if key_id != self.ring.primary_id and key_id in self.ring.secrets() else ""

    def _note_key(self, name: str, key_id: str) -> None:
        if self._key_of.get(name) == key_id:
            return
        if name not in self._key_of and len(self._key_of) >= self._keys_noted_limit:
            del self._key_of[next(iter(self._key_of))]
        self._key_of[name] = key_id

    def use(self, ring: Keyring, by: str = "") -> list[RingChanged]:
        """Seal and open with these keys from now on."""
        if ring == self.ring:
            return []
        self._seal.ring = ring
        return [RingChanged(ring, by)]

    def _share(self, now: int, arrival: ArrivedPacket) -> list[AdmissionEffect]:
        """Tell one that seals with an older key which keys there are, under the key it has."""
        name, key_id = arrival.packet.sender, arrival.key_id
        if key_id == self.ring.primary_id or now - self._shared_at.get(name, -SHARE_NS) < SHARE_NS:
            return []
        self._shared_at.pop(name, None)
        if len(self._shared_at) >= self._shared_limit:
            del self._shared_at[next(iter(self._shared_at))]
        self._shared_at[name] = now
        return [self._reply(now, arrival.source, Lane.STREAM, ShareRing(encode_ring(self.ring)), key_id)]
