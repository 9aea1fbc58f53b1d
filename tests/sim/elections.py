"""Elections, the register, leases and fences of one group under drawn faults.

One seed is one history: voters, receivers of commands, owners of leases, a workload, faults, and then a calm in which
a majority must make progress while the rest may stay broken.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.cluster.leadership.election import Phase
from talka.cluster.leadership.news import ConfigChanged, Elected, ReadEnded, WriteEnded
from talka.cluster.leadership.timings import LAN, LeadershipConfig
from talka.cluster.leadership.voters import VoterConfig
from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.member.composite import ClusterMember
from talka.control.member.owner import Owner
from talka.control.member.receiver import Receiver
from talka.control.member.voter import Voter
from talka.testing.faults import HOST_FAULTS, LINK_FAULTS, NETWORK_FAULTS, FaultLimits, Faults, link_profile, missing
from talka.testing.host import Clock, Host
from talka.testing.network import LinkProfile
from talka.testing.world import Boot, Observer, Starter, World
from talka.units import MILLISECOND, SECOND
from tests.sim.checkers.leadership import (
    CapsHold,
    LeaderInTime,
    NoReplayAccepted,
    NoStaleEffect,
    NothingGoesBack,
    OneLeaderPerTerm,
    OneLeaseAtATime,
    OneOwnerPerKey,
    RegisterIsLinearizable,
)

DRIFT_LIMIT_PPM: Final = 20_000
FAULTS_FROM: Final = 4 * SECOND
CALM_FROM: Final = 42 * SECOND
LEADER_WITHIN: Final = 10 * SECOND
ENDS_AT: Final = 64 * SECOND
FOCUS: Final = ("crash", "partition", "one-way cut", "isolation", "flapping link")
KEYS: Final = "abc"
SPARE: Final = "vx"
LONG: Final = msgspec.structs.replace(LAN, lease_ns=4 * LAN.lease_ns)
"""A lease of leaders as another preset has it."""
CLASSES: Final = (*HOST_FAULTS, *NETWORK_FAULTS, *(name for name in LINK_FAULTS if name != "bandwidth"))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a seed decides before the run; the rest follows from it."""

    seed: int
    voters: int
    receivers: int = 2
    owners: int = 2
    classes: tuple[str, ...]
    gap_ns: int
    drifts_ppm: tuple[int, ...]
    offsets_ns: tuple[int, ...]
    drift_limit_ppm: int = DRIFT_LIMIT_PPM
    """How far clocks are off; what is promised holds up to the default."""
    lease_ttl_ns: int
    handovers: int
    are_members: bool
    """Whether voters also watch each other as members, as a node does: slower, so not always."""
    changes: int
    """How often a voter is added or removed; there is one to spare then."""
    down_ns: tuple[int, int]
    """How long a crashed host stays down."""
    stagger_ns: int
    """Hosts first start within this time."""
    broken: str
    """What those outside the majority suffer in the calm."""
    is_mixed: bool = False
    """Whether each start of a voter draws how long it counts a leader's lease; in the calm all count it alike."""

    def lines(self) -> list[str]:
        also = ", members of each other too" if self.are_members else ""
        return [
            f"seed {self.seed}: {self.voters} voters{also}, {self.receivers} receivers, {self.owners} owners of"
            f" leases of {self.lease_ttl_ns / SECOND:.1f} s",
            f"faults {FAULTS_FROM // SECOND} s to {CALM_FROM // SECOND} s, every {self.gap_ns / SECOND:.1f} s on"
            f" average: {', '.join(self.classes)}",
            f"clocks: {', '.join(f'{ppm / 10_000:+.1f} %' for ppm in self.drifts_ppm)}",
            f"leadership handed over {self.handovers} times, voters changed {self.changes} times",
            f"outside the majority in the calm: {self.broken}",
        ]


def plan_of(seed: int) -> Plan:
    rng = Random(f"{seed}:plan")
    voters = rng.choice((3, 3, 3, 5, 5, 7))
    # A subset for every seed: heavy faults together would hide what one of them does alone.
    classes = rng.sample(CLASSES, rng.randrange(3, 8))
    changes = rng.choice((0, 0, 0, 2, 5))
    hosts = voters + 5
    return Plan(
        seed=seed,
        voters=voters,
        classes=tuple(name for name in CLASSES if name in classes),
        gap_ns=rng.randrange(500, 2000) * MILLISECOND,
        drifts_ppm=tuple(rng.choice((-DRIFT_LIMIT_PPM, 0, DRIFT_LIMIT_PPM)) for _ in range(hosts)),
        offsets_ns=tuple(rng.randrange(1000) * SECOND for _ in range(hosts)),
        lease_ttl_ns=rng.randrange(1000, 4000) * MILLISECOND,
        handovers=rng.choice((0, 0, 1, 3)),
        are_members=rng.randrange(10) == 0,
        changes=changes,
        down_ns=rng.choice(((10 * MILLISECOND, 300 * MILLISECOND), (50 * MILLISECOND, 4 * SECOND))),
        stagger_ns=rng.choice((MILLISECOND, 500 * MILLISECOND, 3 * SECOND)),
        # While voters change, who is a majority of whom is not for the scenario to say.
        broken="nothing" if changes else rng.choice(("down", "deaf", "mute", "flapping", "nothing")),
    )


class Workload(Observer):
    """Clients of the group: writes and reads of the register, commands to receivers, leases wanted and given back."""

    def __init__(self, world: World, plan: Plan, register: RegisterIsLinearizable) -> None:
        self._world = world
        self._plan = plan
        self._rng = world.rng("load")
        self._register = register
        self._open: dict[int, int] = {}  # reference to operation
        self._ref = 0
        self.changed_at = 0
        self.is_quiet: Callable[[], bool] = lambda: True

    def begin(self) -> None:
        self._world.after(self._gap(), self._act)

    def _gap(self) -> int:
        return self._rng.randrange(20, 400) * MILLISECOND

    @property
    def has_changed(self) -> bool:
        """Whether the configuration changed within the last seconds."""
        return self._world.now - self.changed_at < 3 * SECOND and self.changed_at > FAULTS_FROM

    def reference(self) -> int:
        self._ref += 1
        return self._ref

    def voters(self) -> list[Host]:
        return [host for name, host in self._world.hosts.items() if name.startswith("v")]

    def leaders(self) -> list[Host]:
        """Those who believe that they lead; a deposed one may be among them."""
        found = []
        for host in self.voters():
            node = host.node
            if (
                isinstance(node, ClusterMember)
                and node.voter is not None
                and node.voter.election.leader_term is not None
            ):
                found.append(host)
        return found

    def _act(self) -> None:
        self._world.after(self._gap(), self._act)
        leaders = self.leaders()
        if not leaders:
            return
        host = self._rng.choice(leaders)
        kind = self._rng.randrange(6)
        if kind < 2:
            self.write(host, self._rng.choice(KEYS))
        elif kind < 4:
            self.read(host, self._rng.choice(KEYS))
        else:
            self._command(host)

    def write(self, host: Host, key: str) -> int:
        self._ref += 1
        ref = self._ref
        value = b"%d" % ref
        operation = self._register.history.invoke(self._world.now, key, "write", value)
        self._open[ref] = operation
        boot = host.boot
        if not host.act(lambda now: member_of(host, boot).act(now, voter_of(host).write(now, ref, key, value))):
            del self._open[ref]
            self._register.history.ended(self._world.now, operation, "refused", None)
        return operation

    def read(self, host: Host, key: str) -> None:
        self._ref += 1
        ref = self._ref
        operation = self._register.history.invoke(self._world.now, key, "read", None)
        self._open[ref] = operation
        boot = host.boot
        if host.node is None or not host.act(
            lambda now: member_of(host, boot).act(now, voter_of(host).read(now, ref, key))
        ):
            del self._open[ref]
            self._register.history.ended(self._world.now, operation, "refused", None)

    def _command(self, host: Host) -> None:
        self._ref += 1
        ref = self._ref
        receiver = f"r{self._rng.randrange(self._plan.receivers)}"
        boot = host.boot
        if "pause" in self._plan.classes and not self.is_quiet() and self._rng.randrange(20) == 0:
            # The process stops between the check that it leads and the command leaving it.
            host.stall(self._rng.randrange(500, 4000) * MILLISECOND, mid_step=True)
        host.act(lambda now: member_of(host, boot).act(now, voter_of(host).command(now, receiver, ref, b"")))

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if isinstance(effect, ConfigChanged):
            self.changed_at = world.now
        elif isinstance(effect, Elected):
            for key in KEYS:  # clients that lost their leader ask the new one at once
                world.after(MILLISECOND, partial(self.read, host, key))
        elif isinstance(effect, WriteEnded | ReadEnded):
            found = self._open.pop(effect.ref, None)
            if found is not None:
                value = effect.value if isinstance(effect, ReadEnded) else None
                self._register.history.ended(world.now, found, effect.outcome, value)


def member_of(host: Host, boot: int) -> ClusterMember:
    assert isinstance(host.node, ClusterMember) and host.boot == boot
    return host.node


def _change(host: Host, boot: int, ref: int, names: tuple[str, ...], now: int) -> list[object]:
    return member_of(host, boot).act(now, voter_of(host).change_voters(now, ref, names))


def voter_of(host: Host) -> Voter:
    assert isinstance(host.node, ClusterMember) and host.node.voter is not None
    return host.node.voter


def voter_starter(
    voters: tuple[str, ...],
    *,
    are_members: bool = False,
    config_of: Callable[[Boot], LeadershipConfig] = lambda boot: LAN,
) -> Starter:
    def start(boot: Boot) -> ClusterMember:
        voter = Voter(
            name=boot.name,
            voters=voters,
            stored=boot.stored,
            rng=boot.rng,
            now=boot.now,
            config=config_of(boot),
        )
        member = ClusterMember(
            group="g",
            name=boot.name,
            boot=boot.boot,
            voter=voter,
            membership=a_membership(boot) if are_members else None,
            seeds=voters,
        )
        return member

    return start


def a_membership(boot: Boot) -> Membership:
    return Membership(
        name=boot.name,
        boot=boot.boot,
        address=boot.name,
        group="g",
        config=PRESETS["default"],
        rng=boot.rng,
        now=boot.now,
    )


def build(plan: Plan, verbose: Callable[[str], None] | None) -> World:
    world = World(plan.seed, verbose=verbose)
    world.network.default = link_profile(world.rng("plan", "links"), plan.classes)
    voters = tuple(f"v{index}" for index in range(plan.voters))

    def start_receiver(boot: Boot) -> ClusterMember:
        receiver = Receiver(boot.stored)
        return ClusterMember(group="g", name=boot.name, boot=boot.boot, receiver=receiver)

    def start_owner(boot: Boot) -> ClusterMember:
        owner = Owner(voters=voters, rng=boot.rng)
        return ClusterMember(group="g", name=boot.name, boot=boot.boot, owner=owner)

    def config_of(boot: Boot) -> LeadershipConfig:
        if not plan.is_mixed or world.now >= CALM_FROM:
            return LAN
        return world.rng("preset", f"{boot.name}{world.now}").choice((LAN, LAN, LONG))

    starter = voter_starter(voters, are_members=plan.are_members, config_of=config_of)
    names = [(name, starter) for name in voters]
    if plan.changes:
        # The spare one knows the others, and that it is not one of them yet.
        names.append((SPARE, voter_starter((*voters, SPARE))))
    names += [(f"r{index}", start_receiver) for index in range(plan.receivers)]
    names += [(f"o{index}", start_owner) for index in range(plan.owners)]
    for index, (name, starter) in enumerate(names):
        world.add_host(name, starter, clock=Clock(plan.offsets_ns[index], plan.drifts_ppm[index]))
    return world


class Story:
    """Runs a plan from its first second to its last."""

    def __init__(self, plan: Plan, verbose: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.world = world = build(plan, verbose)
        self.register = RegisterIsLinearizable()
        self.liveness = LeaderInTime(self.register.history)
        self.leases = OneLeaseAtATime(plan.drift_limit_ppm)
        self.workload = Workload(world, plan, self.register)
        world.observers += [
            OneLeaderPerTerm(),
            NothingGoesBack(),
            NoStaleEffect(),
            self.leases,
            OneOwnerPerKey(plan.drift_limit_ppm),
            self.register,
            NoReplayAccepted(),
            CapsHold(),
            self.liveness,
            self.workload,
        ]
        self.faults = Faults(
            world,
            list(world.hosts),
            plan.classes,
            limits=FaultLimits(gap_ns=plan.gap_ns, down_ns=plan.down_ns, drift_ppm=plan.drift_limit_ppm),
            favourites=lambda: [host.name for host in self.workload.leaders()],
            may_lose_disk=self._may_lose_disk,
        )
        self.workload.is_quiet = lambda: self.faults.is_quiet

    def run(self) -> World:
        world = self.world
        stagger = world.rng("stagger")
        for name, host in world.hosts.items():
            world.at(stagger.randrange(self.plan.stagger_ns) + (3 * SECOND if name == SPARE else 0), host.start)
            if name.startswith("o"):
                world.after(SECOND, lambda host=host: self._want(host))  # type: ignore[misc]
        world.at(2 * SECOND, self.workload.begin)
        world.at(FAULTS_FROM, partial(self.faults.begin, CALM_FROM))
        for index in range(self.plan.changes):
            world.at(FAULTS_FROM + (index + 1) * 6 * SECOND, partial(self._change_voters, 20))
        for index in range(self.plan.handovers):
            world.at(FAULTS_FROM + (index + 1) * 7 * SECOND, self._hand_over)
        world.at(CALM_FROM, self._calm)
        world.run_until(ENDS_AT)
        if not world.stopped:
            world.finish()
            for name in missing(world, self.plan.classes):
                world.violate("plan", f"the fault {name!r} of the plan never struck")
        return world

    def _want(self, host: Host) -> None:
        """Owners fight for the same keys; what they hold they give back after a while."""
        self.world.after(
            self.world.rng("want", f"{host.name}{self.world.now}").randrange(2, 9) * SECOND, lambda: self._want(host)
        )
        if not isinstance(host.node, ClusterMember) or host.node.owner is None:
            return
        member, owner = host.node, host.node.owner
        key = "x" if self.world.now // SECOND % 2 else "y"

        def turn(now: int) -> list[object]:
            if owner.holds(now, key) is not None:
                return member.act(now, owner.unwant(now, key))
            return member.act(now, owner.want(now, key, self.plan.lease_ttl_ns))

        host.act(turn)

    def _hand_over(self) -> None:
        for host in self.workload.leaders():
            boot = host.boot
            host.act(lambda now, host=host, boot=boot: member_of(host, boot).act(now, voter_of(host).hand_over(now)))  # type: ignore[misc]

    def _change_voters(self, tries: int) -> None:
        """Add the spare voter, or remove any when it is one already. Tried again until a leader takes it."""
        for host in self.workload.leaders():
            election = voter_of(host).election
            names = list(election.config.names())
            if SPARE in names:
                names.remove(self.world.rng("change", str(self.world.now)).choice(names))
            else:
                names.append(SPARE)
            ref = self.workload.reference()
            boot = host.boot
            host.act(partial(_change, host, boot, ref, tuple(names)))
        if tries and not self.workload.has_changed:
            self.world.after(SECOND // 4, partial(self._change_voters, tries - 1))

    def _config(self) -> VoterConfig:
        """The latest configuration any running voter goes by."""
        found = [voter_of(host).election for host in self.workload.voters() if host.node is not None]
        return max((election.config for election in found), key=lambda config: config.epoch)

    def _admitted(self) -> list[str]:
        names = []
        for name, host in self.world.hosts.items():
            if name.startswith("v"):
                node = host.node
                if isinstance(node, ClusterMember) and node.voter is not None and node.voter.election.is_admitted:
                    names.append(name)
        return names

    def _is_syncing(self, name: str) -> bool:
        return voter_of(self.world.hosts[name]).election.phase is Phase.SYNCING

    def _may_lose_disk(self, name: str) -> bool:
        """A voter may lose its disk while all others have theirs, and one leads and has heard of everybody."""
        if not name.startswith("v"):
            return False  # a receiver without its fence is a new one, under a new name; an owner has no disk
        if any(host.state != "up" for host in self.workload.voters()):
            return False
        names = self._config().names()
        if name not in names or any(other not in self._admitted() for other in names):
            return False
        if any(self._is_syncing(other) for other in names):
            return False  # whether its disk was rolled back is not known yet
        leaders = [host for host in self.workload.leaders() if host.name != name]
        now = self.world.now
        return any(voter_of(host).election.is_leading(host.local(now)) for host in leaders)

    def _calm(self) -> None:
        """Faults end for a majority; the others may stay broken for good."""
        world = self.world
        self.faults.stop()
        rng = world.rng("calm")
        world.network.default = LinkProfile()
        # Of one that has just started it is not known yet whether its disk was rolled back.
        known = [name for name in self._admitted() if not self._is_syncing(name)]
        if self.plan.is_mixed:
            for host in self.workload.voters():
                host.crash()
                host.start()  # all with the same preset
        admitted = self._admitted()
        spare = max(0, len(known) - (self.plan.voters // 2 + 1))
        broken = rng.sample(admitted, rng.randrange(spare + 1)) if self.plan.broken != "nothing" else []
        for name in broken:
            self._break(name)
        core = [name for name in admitted if name not in broken]
        self.liveness.begin(world, core, LEADER_WITHIN + (2 * LONG.lease_ns if self.plan.is_mixed else 0))
        world.at(ENDS_AT - 4 * SECOND, self._probe)

    def _break(self, name: str) -> None:
        world = self.world
        others = [other for other in world.hosts if other != name]
        if self.plan.broken == "down":
            world.hosts[name].crash()
        elif self.plan.broken == "deaf":
            for other in others:
                world.network.cut(other, name)
        elif self.plan.broken == "mute":
            for other in others:
                world.network.cut(name, other)
        else:
            self._flap(name, others, True)

    def _flap(self, name: str, others: list[str], is_cut: bool) -> None:
        for other in others:
            if is_cut:
                self.world.network.cut(name, other)
                self.world.network.cut(other, name)
            else:
                self.world.network.heal(name, other)
                self.world.network.heal(other, name)
        delay = self.world.rng("flap", f"{name}{self.world.now}").randrange(1000, 4000) * MILLISECOND
        self.world.after(delay, lambda: self._flap(name, others, not is_cut))

    def _probe(self) -> None:
        for host in self.workload.leaders():
            if voter_of(host).election.is_leading(host.local(self.world.now)):
                self.liveness.expect_progress(self.workload.write(host, "probe"))


def run(
    seed: int,
    *,
    drift_limit_ppm: int = DRIFT_LIMIT_PPM,
    is_focused: bool = False,
    is_mixed: bool = False,
    verbose: Callable[[str], None] | None = None,
) -> World:
    """The history of this seed, finished and judged.

    Clocks may be made worse than they are promised to be. A focused plan has three voters, which crash for moments and
    are cut off from each other, and nothing else: some holes are too narrow for chance to find among all faults. In a
    mixed one voters count the leader's lease differently.
    """
    plan = plan_of(seed)
    if is_focused:
        moments = (5 * MILLISECOND, 100 * MILLISECOND)
        plan = msgspec.structs.replace(
            plan, voters=3, classes=FOCUS, changes=0, gap_ns=500 * MILLISECOND, down_ns=moments, broken="nothing"
        )
    if is_mixed:
        plan = msgspec.structs.replace(plan, classes=FOCUS, changes=0, broken="nothing", is_mixed=True)
    if drift_limit_ppm != DRIFT_LIMIT_PPM:
        drifts = tuple(drift * drift_limit_ppm // DRIFT_LIMIT_PPM for drift in plan.drifts_ppm)
        plan = msgspec.structs.replace(plan, drifts_ppm=drifts, drift_limit_ppm=drift_limit_ppm)
    return Story(plan, verbose).run()


def describe(seed: int) -> list[str]:
    return plan_of(seed).lines()
