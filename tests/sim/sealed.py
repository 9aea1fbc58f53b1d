"""Members and voters whose frames are sealed, and somebody without the key who plays back what was on the wire.

Hosts crash and come back, links lose and double, and those who come back are played what was said before their life.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from talka.cluster.effects import Lane
from talka.cluster.leadership.news import Elected
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.member.admission import Admission
from talka.control.member.composite import ClusterMember
from talka.control.member.life_proofs import PROOF_NS
from talka.control.member.replay_guard import REPEATABLE, ReplayGuard
from talka.control.member.voter import Voter
from talka.testing.faults import FaultLimits, Faults, missing
from talka.testing.host import Clock, Host
from talka.testing.network import LinkProfile
from talka.testing.world import Boot, Observer, World
from talka.units import MILLISECOND, SECOND
from talka.wire import greeting, membership
from talka.wire.greeting import Self
from talka.wire.packets import Packet
from talka.wire.security.keys import Keyring
from talka.wire.security.sealing import Seal
from tests.sim.checkers.leadership import NoReplayAccepted, OneLeaderPerTerm
from tests.sim.checkers.membership import FULL_WITHIN_NS, FullViews

GROUP: Final = "shop/staging"
ME: Final = Self("shop", "staging", "manager", "1.0")
RING: Final = Keyring.of(("kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu",))
VOTERS: Final = tuple(f"v{index}" for index in range(5))
MEMBERS: Final = tuple(f"m{index}" for index in range(5))
SEEDS: Final = VOTERS[:3]
FAULTS_FROM: Final = 5 * SECOND
PLAYED_FROM: Final = 8 * SECOND
CALM_FROM: Final = PLAYED_FROM + 60 * SECOND
CLASSES: Final = ("crash", "duplicates", "loss")
PLAYED_EVERY_NS: Final = 250 * MILLISECOND
PLAYED_AT_ONCE: Final = 12
KEPT_LIMIT: Final = 20_000
STALE_NS: Final = PROOF_NS + SECOND
"""What was sent so long before a life began must never be heard by it."""
FOR_EVERYBODY: Final = (membership.CHANNEL.number, greeting.CHANNEL.number)
"""What is said on other channels is for its recipient only."""


class Sent(msgspec.Struct, frozen=True):
    """A frame as it was seen on the wire."""

    at: int
    source: str
    to: str
    sealed: bytes
    lane: Lane
    life: tuple[int, int]
    """(boot, number): what a frame says of itself in the clear."""


class WatchedDoor(ReplayGuard):
    """Tells of every packet that it lets in, also of those that were held before."""

    def __init__(self, boot: Boot, on_passed: Callable[[str, Packet], None]) -> None:
        super().__init__(group=GROUP, name=boot.name, boot=boot.boot)
        self._on_passed = on_passed
        self._at = boot.name

    def passes(self, packet: Packet) -> bool:
        if not super().passes(packet):
            return False
        self._on_passed(self._at, packet)
        return True


class Adversary(Observer):
    """Records everything, plays it to whoever was restarted, and sees what is let in."""

    def __init__(self, world: World, stale_ns: int) -> None:
        """Plays what was sent at least `stale_ns` before the life of its victim began."""
        self.played = 0
        self.played_elsewhere = 0
        """Frames that were meant for another host."""
        self.heard_by_two_lives = 0
        """Votes, leases and commands that a host heard which an earlier life of it had heard, sent just before it
        ended."""
        self.admitted = 0
        self.leaders = 0
        self._world = world
        self._stale_ns = stale_ns
        self._rng = world.rng("adversary")
        self._kept: list[Sent] = []
        self._sent: dict[tuple[int, int], tuple[int, str]] = {}
        self._booted_at: dict[str, int] = {}
        self._boots: dict[str, int] = {}
        self._heard: dict[str, set[tuple[int, int]]] = {}
        self._heard_before: dict[str, set[tuple[int, int]]] = {}
        world.network.tap(self._record)

    def _record(self, source: str, to: str, sealed: bytes, lane: Lane) -> None:
        life = (int.from_bytes(sealed[6:14], "big"), int.from_bytes(sealed[14:22], "big"))
        self._sent[life] = (self._world.now, to)
        sent = Sent(self._world.now, source, to, sealed, lane, life)
        if len(self._kept) < KEPT_LIMIT:
            self._kept.append(sent)
        else:
            self._kept[self._rng.randrange(KEPT_LIMIT)] = sent

    def on_boot(self, world: World, host: Host) -> None:
        name = host.name
        self._booted_at[name] = world.now
        self._boots[name] = self._boots.get(name, 0) + 1
        self._heard_before.setdefault(name, set()).update(self._heard.get(name, ()))
        self._heard[name] = set()

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        self.leaders += type(effect) is Elected

    def begin(self) -> None:
        self._play()

    def _play(self) -> None:
        world = self._world
        if world.now >= CALM_FROM:
            return
        world.after(PLAYED_EVERY_NS, self._play)
        restarted = [name for name, count in self._boots.items() if count > 1 and world.hosts[name].state == "up"]
        if not restarted:
            return
        victim = self._rng.choice(restarted)
        before = self._booted_at[victim] - self._stale_ns
        for sent in self._rng.sample(self._kept, min(len(self._kept), 8 * PLAYED_AT_ONCE)):
            # Mostly what was meant for the victim; what was meant for others as well.
            if sent.at < before and (sent.to == victim or self._rng.random() < 0.1):
                self.played += 1
                self.played_elsewhere += sent.to != victim
                world.network.inject(victim, sent.source, sent.sealed, sent.lane)

    def on_passed(self, name: str, packet: Packet) -> None:
        """A replay guard let this in."""
        world, life = self._world, (packet.boot, packet.counter)
        at, to = self._sent[life]
        self.admitted += 1
        if at < self._booted_at[name] - STALE_NS:
            age_s = (self._booted_at[name] - at) / SECOND
            world.violate("replay", f"{name} let in what {packet.sender} had said {age_s:.1f} s before its life began")
        if packet.channel not in FOR_EVERYBODY and to != name:
            world.violate("replay", f"{name} let in what {packet.sender} had said to {to}")
        if life in self._heard[name]:
            world.violate("replay", f"{name} let frame {packet.counter} of {packet.sender} in twice")
        self._heard[name].add(life)
        self.heard_by_two_lives += packet.channel not in REPEATABLE and life in self._heard_before[name]


class Story:
    """Five voters and five members, 60 s of crashes and recordings, then a calm in which every view must become
    full."""

    def __init__(self, seed: int, *, stale_ns: int = STALE_NS, verbose: Callable[[str], None] | None = None) -> None:
        self.world = world = World(seed, verbose=verbose)
        rng = world.rng("plan")
        world.network.default = LinkProfile(
            latency_ns=rng.randrange(100, 2000) * 1000,
            jitter_ns=rng.randrange(50, 2000) * 1000,
            loss=0.01 + 0.02 * rng.random(),
            duplicate=0.02 + 0.1 * rng.random(),
        )
        self.adversary = Adversary(world, stale_ns)
        for name in (*VOTERS, *MEMBERS):
            world.add_host(name, self._start, clock=Clock(rng.randrange(1000) * SECOND))
        self.views = FullViews()
        world.observers += [OneLeaderPerTerm(), NoReplayAccepted(), self.views, self.adversary]
        limits = FaultLimits(gap_ns=rng.randrange(1500, 4000) * MILLISECOND, down_ns=(50 * MILLISECOND, 8 * SECOND))
        self.faults = Faults(world, list(world.hosts), CLASSES, limits=limits, favourites=self._leaders)

    def _start(self, boot: Boot) -> ClusterMember:
        replay_guard = WatchedDoor(boot, self.adversary.on_passed)
        # Of its own, as on a real network: nonces must not be guessed from what else a member draws.
        nonces = self.world.rng("nonce", f"{boot.name}:{boot.boot}")
        admission = Admission(replay_guard=replay_guard, seal=Seal(RING, boot.boot), name=boot.name, me=ME, rng=nonces)
        config = PRESETS["default"]
        members = Membership(
            name=boot.name, boot=boot.boot, address=boot.name, group=GROUP, config=config, rng=boot.rng, now=boot.now
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
            seeds=SEEDS,
            replay_guard=replay_guard,
            admission=admission,
        )

    def _leaders(self) -> list[str]:
        found: list[str] = []
        for name in VOTERS:
            node = self.world.hosts[name].node
            if (
                isinstance(node, ClusterMember)
                and node.voter is not None
                and node.voter.election.leader_term is not None
            ):
                found.append(name)
        return found

    def run(self) -> World:
        self.world.at(PLAYED_FROM, self.adversary.begin)
        return played_out(self.world, self.faults, self.views, FAULTS_FROM, CALM_FROM)

    def refused(self) -> dict[str, int]:
        """By reason, of all nodes that run at the end."""
        total: dict[str, int] = {}
        for host in self.world.hosts.values():
            if isinstance(host.node, ClusterMember):
                for reason, count in host.node.replay_guard.refused.items():
                    total[reason] = total.get(reason, 0) + count
        return total


def played_out(world: World, faults: Faults, views: FullViews, faults_from: int, calm_from: int) -> World:
    """Everybody starts, faults strike until it is calm, and then all have to see each other."""

    def calm() -> None:
        faults.stop()
        views.begin(world)

    rng = world.rng("join")
    for host in world.hosts.values():
        world.at(rng.randrange(SECOND), partial(_start, host))
    world.at(faults_from, partial(faults.begin, calm_from))
    world.at(calm_from, calm)
    world.run_until(calm_from + 5 * SECOND)
    while not world.stopped and views.full_after_ns is None and world.now < calm_from + FULL_WITHIN_NS:
        world.run_until(world.now + SECOND)
    if not world.stopped:
        world.finish()
        for name in missing(world, CLASSES):
            world.violate("plan", f"the fault {name!r} of the plan never struck")
    return world


def _start(host: Host) -> None:
    host.start()
