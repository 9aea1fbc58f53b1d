"""Sealed members with certificates, somebody who has the secret and no certificate, and a manager that lies.

The one without a certificate sends datagrams of its own: other keys, and where members are said to be. The manager has
a certificate and sends keys of a version that nobody could outrank. Hosts crash and come back with the keys they kept.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Final

import msgspec

from talka.cluster.effects import Lane, Transmit
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.member.admission import Admission, RingChanged
from talka.control.member.announcement import Announcement
from talka.control.member.composite import ClusterMember
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.testing.faults import FaultLimits, Faults
from talka.testing.host import Clock, Host
from talka.testing.network import LinkProfile
from talka.testing.world import Boot, Observer, World
from talka.units import MILLISECOND, SECOND
from talka.wire import greeting, membership
from talka.wire.greeting import Self, ShareRing
from talka.wire.membership import Alive, Gossip, MemberState, Stated, encode_update
from talka.wire.security.keys import JUMP_LIMIT, Keyring, encode_ring, key_id
from talka.wire.security.roles import NOBODY, Proven, Role
from talka.wire.security.sealing import Seal
from tests.sim.checkers.leadership import OneLeaderPerTerm
from tests.sim.checkers.membership import FullViews, membership_of
from tests.sim.sealed import CLASSES, played_out

GROUP: Final = "shop/staging"
ME: Final = Self("shop", "staging", "manager", "1.0")
SECRET: Final = "kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu"
THEIRS: Final = "Vb5nXz1Qm_Ke6WtSy0UhDgLr7AoPi2Cj"
VOTERS: Final = tuple(f"v{index}" for index in range(3))
MEMBERS: Final = tuple(f"m{index}" for index in range(4))
ATTACKED_FROM: Final = 4 * SECOND
CALM_FROM: Final = 40 * SECOND
ATTACKED_EVERY_NS: Final = 400 * MILLISECOND
INTRUDER: Final = "intruder"
LIAR: Final = "liar"


class SimulatedNotary:
    """Its signatures are digests with a key of the name; who has no certificate has no such key."""

    def __init__(self, name: str) -> None:
        self.certificate = name.encode()
        self._name = name

    def sign(self, purpose: str, statement: bytes) -> bytes:
        return _signature(self._name, purpose, statement)

    def has_signed(self, name: str, purpose: str, statement: bytes, signature: bytes, certificate: bytes) -> bool:
        return certificate == name.encode() and signature == _signature(name, purpose, statement)


def _signature(name: str, purpose: str, statement: bytes) -> bytes:
    return blake2b(purpose.encode() + statement, key=f"key of {name}".encode(), digest_size=16).digest()


class Stranger:
    """Speaks from an address of its own, proves that it lives when it is asked, and is no host."""

    def __init__(self, world: World, address: str, name: str, lane: Lane, rng: Random) -> None:
        self._world = world
        self._address = address
        self._lane = lane
        boot = rng.getrandbits(60)
        self._admission = Admission(
            replay_guard=ReplayGuard(group=GROUP, name=name, boot=boot),
            seal=Seal(Keyring.of((SECRET,)), boot),
            name=name,
            me=ME,
            rng=rng,
        )
        world.network.tap(self._hear)

    def say(self, to: str, channel: int, body: bytes, updates: list[bytes] | None = None) -> None:
        self._send(to, self._admission.wrap(self._world.now, channel, body, updates))

    def _hear(self, source: str, to: str, sealed: bytes, lane: Lane) -> None:
        frame = self._world.network.unseal(sealed) if to == self._address else None
        if frame is not None:
            for effect in self._admission.receive(self._world.now, source, frame, lane, 0)[1]:
                if isinstance(effect, Transmit) and effect.lane is self._lane:
                    self._send(effect.to, effect.frame)

    def _send(self, to: str, frame: bytes) -> None:
        network = self._world.network
        network.inject(to, self._address, network.seal(frame), self._lane)


class Attack:
    def __init__(self, world: World) -> None:
        self.said = 0
        self._world = world
        self._rng = world.rng("attack")
        # One that calls itself as a member is called, and one that calls itself as nobody is.
        self._intruders = [
            Stranger(world, f"{INTRUDER}-{name}", name, Lane.DATAGRAM, self._rng) for name in (INTRUDER, VOTERS[0])
        ]
        self._liar = Stranger(world, LIAR, LIAR, Lane.STREAM, self._rng)

    def begin(self) -> None:
        world, rng = self._world, self._rng
        if world.now >= CALM_FROM:
            return
        world.after(ATTACKED_EVERY_NS, self.begin)
        up = [host for host in world.hosts.values() if host.state == "up"]
        if not up:
            return
        self.said += 1
        victim, subject = rng.choice(up), rng.choice(up)
        intruder = rng.choice(self._intruders)
        mine = Keyring.of((SECRET,))
        match rng.randrange(3):
            case 0:
                taken = mine.with_key(THEIRS).with_primary(key_id(THEIRS)).without(key_id(SECRET))
                intruder.say(victim.name, greeting.CHANNEL.number, _share(taken))
            case 1:
                elsewhere = Alive(subject.name, subject.boot, rng.randrange(50, 90), f"{INTRUDER}-elsewhere")
                state = MemberState(
                    rng.randrange(1000, 2000), msgspec.msgpack.encode(Announcement("", api="http://evil"))
                )
                news = [elsewhere, Stated(subject.name, subject.boot, state), Alive("ghost", 1, 0, INTRUDER)]
                updates = [encode_update(each) for each in news]
                intruder.say(victim.name, membership.CHANNEL.number, membership.encode(Gossip()), updates)
            case _:
                ahead = msgspec.structs.replace(mine, primary=(2**61, mine.primary_id))
                self._liar.say(victim.name, greeting.CHANNEL.number, _share(ahead))


def _share(ring: Keyring) -> bytes:
    return greeting.encode(ShareRing(encode_ring(ring)))


class KeysAndAddresses(Observer):
    """Nobody takes over keys that no manager brought, nor a version that cannot be outranked, nor an address or a state
    that its member did not say."""

    def __init__(self) -> None:
        self.rings: dict[str, Keyring] = {}
        """What each host kept, as its file would."""

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if not isinstance(effect, RingChanged):
            return
        self.rings[host.name] = effect.ring
        if key_id(THEIRS) in effect.ring.accepted():
            world.violate("keys", f"{host.name} has keys that no manager brought, told by {effect.by}")
        elif effect.ring.version > JUMP_LIMIT:
            world.violate("keys", f"{host.name} has keys of version {effect.ring.version}, told by {effect.by}")

    def on_second(self, world: World) -> None:
        for host in world.hosts.values():
            view = membership_of(host)
            for member in [] if view is None else view.members():
                if member.address != member.name:
                    world.violate("address", f"{host.name} holds {member.name} to be at {member.address}")
                elif member.state is not None and b"evil" in member.state.payload:
                    world.violate("address", f"{host.name} believes a state that {member.name} did not say")


class Story:
    def __init__(self, seed: int, *, verbose: Callable[[str], None] | None = None) -> None:
        self.world = world = World(seed, verbose=verbose)
        rng = world.rng("plan")
        world.network.default = LinkProfile(
            latency_ns=rng.randrange(100, 2000) * 1000,
            jitter_ns=rng.randrange(50, 2000) * 1000,
            loss=0.01 + 0.02 * rng.random(),
            duplicate=0.02 + 0.1 * rng.random(),
        )
        for name in (*VOTERS, *MEMBERS):
            world.add_host(name, self._start, clock=Clock(rng.randrange(1000) * SECOND))
            world.identities[name] = Proven(name, Role.MANAGER)
        world.identities[LIAR] = Proven(LIAR, Role.MANAGER)
        for name in (INTRUDER, VOTERS[0]):
            world.identities[f"{INTRUDER}-{name}"] = NOBODY
        self.attack = Attack(world)
        self.views = FullViews()
        self.keys = KeysAndAddresses()
        world.observers += [OneLeaderPerTerm(), self.views, self.keys]
        limits = FaultLimits(gap_ns=rng.randrange(1500, 4000) * MILLISECOND, down_ns=(50 * MILLISECOND, 8 * SECOND))
        self.faults = Faults(world, list(world.hosts), CLASSES, limits=limits)

    def _start(self, boot: Boot) -> ClusterMember:
        replay_guard = ReplayGuard(group=GROUP, name=boot.name, boot=boot.boot)
        ring = Keyring.of((SECRET,))
        kept = self.keys.rings.get(boot.name)
        admission = Admission(
            replay_guard=replay_guard,
            seal=Seal(ring if kept is None else ring.merge(kept), boot.boot, (SECRET,)),
            name=boot.name,
            me=ME,
            rng=self.world.rng("nonce", f"{boot.name}:{boot.boot}"),
            certified=True,
        )
        members = Membership(
            name=boot.name,
            boot=boot.boot,
            address=boot.name,
            group=GROUP,
            config=PRESETS["default"],
            rng=boot.rng,
            now=boot.now,
            notary=SimulatedNotary(boot.name),
        )
        voter = None
        if boot.name in VOTERS:
            voter = Voter(name=boot.name, voters=VOTERS, stored=boot.stored, rng=boot.rng, now=boot.now)
        return ClusterMember(
            group=GROUP,
            name=boot.name,
            boot=boot.boot,
            membership=members,
            voter=voter,
            seeds=VOTERS,
            replay_guard=replay_guard,
            admission=admission,
        )

    def run(self) -> World:
        self.world.at(ATTACKED_FROM, self.attack.begin)
        return played_out(self.world, self.faults, self.views, ATTACKED_FROM, CALM_FROM)


def run(seed: int) -> World:
    return Story(seed).run()
