"""Workers that find managers again: in zones that are cut from each other, while the managers they were told of first
are gone for good and they themselves are restarted.

Frames are sealed and nodes greet each other, as on a real network. Each worker is given the address of one manager when
it starts, and keeps its disk. Nobody has a job: a worker that has a lease could be given one.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.cluster.membership.membership import Membership
from talka.cluster.membership.presets import PRESETS
from talka.control.manager import Manager
from talka.control.member.admission import Admission, Welcomed
from talka.control.member.composite import ClusterMember
from talka.control.member.manager_search import GreetManager
from talka.control.member.peer_pool import Place
from talka.control.member.replay_guard import ReplayGuard
from talka.control.member.voter import Voter
from talka.control.worker.composite import Worker
from talka.control.worker.effects import ManagersLearned
from talka.testing.cores import WorkerPart
from talka.testing.faults import FaultLimits, Faults, link_profile, missing
from talka.testing.host import Clock, Host
from talka.testing.network import LinkProfile
from talka.testing.trust import SIGNER, keys_of_workers, trust_of_worker
from talka.testing.world import Boot, Observer, World
from talka.units import MILLISECOND, SECOND
from talka.wire.greeting import Self
from talka.wire.jobs import ManagerAt, WorkerFacts
from talka.wire.security.keys import Keyring
from talka.wire.security.sealing import Seal
from tests.sim.checkers.leadership import OneLeaderPerTerm
from tests.sim.checkers.searching import EveryWorkerIsFound

GROUP: Final = "shop/staging"
RING: Final = Keyring.of(("kD7wq2Zr-9xMvB4tYpLs8HnGfJc3RaEu",))
FOUND_BY: Final = 10 * SECOND
FAULTS_FROM: Final = 12 * SECOND
CALM_FROM: Final = 42 * SECOND
ENDS: Final = CALM_FROM + 18 * SECOND
ZONE_CUT: Final = "zone cut"
GONE: Final = "manager gone"
RESTART: Final = "worker restarted"
OWN: Final = (ZONE_CUT, GONE, RESTART)
EVENTS: Final = ("crash", "stall", "partition", "one-way cut", "isolation")
LINKS: Final = ("loss", "duplicates", "reordering")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    places: dict[str, Place]
    """Of managers (m…) and workers (w…)."""
    seeds: dict[str, str]
    """The manager each worker is given when it starts."""
    gone: tuple[str, ...]
    """Managers that end for good: fewer than half."""
    classes: tuple[str, ...]
    gap_ns: int

    def lines(self) -> list[str]:
        where = ", ".join(f"{name} in {place.zone}" for name, place in self.places.items())
        given = ", ".join(f"{worker} knows {manager}" for worker, manager in self.seeds.items())
        return [
            f"seed {self.seed}: {where}",
            f"{given}; {', '.join(self.gone)} will be gone",
            f"faults {FAULTS_FROM // SECOND} s to {CALM_FROM // SECOND} s, every {self.gap_ns / SECOND:.1f} s on"
            f" average: {', '.join(self.classes)}",
        ]


def plan_of(seed: int) -> Plan:
    rng = Random(f"{seed}:searching")
    managers = [f"m{number}" for number in range(rng.choice((3, 3, 5)))]
    workers = [f"w{number}" for number in range(rng.randrange(3, 6))]
    zones = ("z1", "z2", "z3")
    places = {name: Place(zones[number % 3], "d1", "r1") for number, name in enumerate(managers)}
    places |= {name: Place(rng.choice(zones), "d1", "r1") for name in workers}
    seeds = {name: rng.choice(managers) for name in workers}
    # Somebody's only address is among those that are gone.
    gone = {seeds[rng.choice(workers)]: None}
    gone |= dict.fromkeys(rng.sample(managers, (len(managers) - 1) // 2))
    classes = (*rng.sample(EVENTS, rng.randrange(1, 4)), *rng.sample(LINKS, rng.randrange(1, 3)), *OWN)
    return Plan(
        seed=seed,
        places=places,
        seeds=seeds,
        gone=tuple(gone)[: (len(managers) - 1) // 2],
        classes=classes,
        gap_ns=rng.randrange(1000, 4000) * MILLISECOND,
    )


class Shells(Observer):
    """What the shell of a worker does: it greets, and notes where managers are."""

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        node = host.node
        if not isinstance(node, ClusterMember) or not isinstance(node.jobs, WorkerPart):
            return
        worker = node.jobs.worker
        match effect:
            case GreetManager(address=address):
                host.act(partial(_hello, node, address))
            case Welcomed(address=address, name=name):
                node.note_address(name, address)
                host.act(partial(_welcomed, node, worker, address, name))
            case ManagersLearned(managers=managers):
                for manager in managers:
                    node.note_address(manager.name, manager.address)
            case _:
                pass


def _hello(node: ClusterMember, address: str, now: int) -> list[object]:
    assert node.admission is not None
    return [*node.admission.hello(now, address)]


def _welcomed(node: ClusterMember, worker: Worker, address: str, name: str, now: int) -> list[object]:
    return [*node.act(now, worker.on_welcomed(now, address, name))]


class Story:
    """Runs a plan from its first second to its last."""

    def __init__(self, plan: Plan, verbose: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.world = world = World(plan.seed, verbose=verbose)
        world.network.default = link_profile(world.rng("plan", "links"), plan.classes)
        self.managers = tuple(name for name in plan.places if name.startswith("m"))
        self.workers = tuple(plan.seeds)
        rng = world.rng("plan", "clocks")
        for name in plan.places:
            starter = self._start_manager if name in self.managers else self._start_worker
            world.add_host(name, starter, clock=Clock(rng.randrange(1000) * SECOND))
        self.found = EveryWorkerIsFound(self.managers, self.workers)
        world.observers += [Shells(), OneLeaderPerTerm(), self.found]
        self._rng = world.rng("own faults")
        self.faults = Faults(
            world,
            [name for name in plan.places if name not in plan.gone],
            [name for name in plan.classes if name not in OWN],
            limits=FaultLimits(gap_ns=plan.gap_ns, down_ns=(50 * MILLISECOND, 9 * SECOND), cut_ns=(SECOND, 9 * SECOND)),
        )

    def _admission(self, boot: Boot, role: str, guard: ReplayGuard) -> Admission:
        return Admission(
            replay_guard=guard,
            seal=Seal(RING, boot.boot),
            name=boot.name,
            me=Self("shop", "staging", role, "1.0"),
            rng=self.world.rng("nonce", f"{boot.name}:{boot.boot}"),
        )

    def _start_manager(self, boot: Boot) -> ClusterMember:
        membership = Membership(
            name=boot.name,
            boot=boot.boot,
            address=boot.name,
            group=GROUP,
            config=PRESETS["default"],
            rng=boot.rng,
            now=boot.now,
        )
        voter = Voter(name=boot.name, voters=self.managers, stored=boot.stored, rng=boot.rng, now=boot.now)
        part = Manager(
            name=boot.name,
            boot=boot.boot,
            voter=voter,
            rng=boot.rng,
            wall_offset_ns=0,
            keys=keys_of_workers(boot.boot),
            signer=SIGNER.public,
            managers=lambda: (
                self._at(boot.name),
                *(self._at(one.name) for one in membership.alive() if one.name in self.managers),
            ),
        )
        guard = ReplayGuard(group=GROUP, name=boot.name, boot=boot.boot)
        return ClusterMember(
            group=GROUP,
            name=boot.name,
            boot=boot.boot,
            voter=voter,
            membership=membership,
            part=part,
            seeds=self.managers,
            replay_guard=guard,
            admission=self._admission(boot, "manager", guard),
        )

    def _at(self, name: str) -> ManagerAt:
        place = self.plan.places[name]
        return ManagerAt(name, name, place.zone, place.datacenter, place.region)

    def _start_worker(self, boot: Boot) -> ClusterMember:
        trust, place = trust_of_worker(boot.name, boot.boot), self.plan.places[boot.name]
        number = self.workers.index(boot.name) + 1
        worker = Worker(
            boot.name,
            boot.boot,
            boot.stored,
            WorkerFacts(
                cores=2,
                folder=number,
                sealing=trust.sealing,
                zone=place.zone,
                datacenter=place.datacenter,
                region=place.region,
            ),
            (),
            boot.rng,
            boot.now,
            signers=trust.signers,
            variables=trust.variables,
        )
        worker.search.found(boot.now, [self.plan.seeds[boot.name]])
        guard = ReplayGuard(group=GROUP, name=boot.name, boot=boot.boot)
        return ClusterMember(
            group=GROUP,
            name=boot.name,
            boot=boot.boot,
            part=WorkerPart(worker),
            replay_guard=guard,
            admission=self._admission(boot, "worker", guard),
        )

    # -- what happens

    def run(self) -> World:
        world, rng = self.world, self._rng
        for host in world.hosts.values():
            world.at(rng.randrange(1000) * MILLISECOND, partial(_start, host))
        world.at(FOUND_BY, partial(self.found.begin, world))
        world.at(FAULTS_FROM, partial(self.faults.begin, CALM_FROM))
        for name in self.plan.gone:
            world.at(rng.randrange(FAULTS_FROM, CALM_FROM - 10 * SECOND), partial(self._end, name))
        for _ in range(rng.randrange(1, 4)):
            world.at(rng.randrange(FAULTS_FROM, CALM_FROM - 10 * SECOND), self._cut_zones)
        for name in self.workers:
            # Late enough that what it was told first is gone.
            world.at(CALM_FROM - rng.randrange(2000, 9000) * MILLISECOND, partial(self._restart, name))
        world.at(CALM_FROM, self._calm)
        world.run_until(ENDS)
        if not world.stopped:
            world.finish()
            for name in missing(world, self.plan.classes):
                world.violate("plan", f"the fault {name!r} of the plan never struck")
        return world

    def _end(self, name: str) -> None:
        self.world.count_fault(GONE, has_met=self.world.hosts[name].crash())

    def _restart(self, name: str) -> None:
        host = self.world.hosts[name]
        if not host.crash():
            # It is down by another fault: it is to be restarted all the same.
            self.world.after(SECOND // 2, partial(self._restart, name))
            return
        self.world.count_fault(RESTART)
        self.world.after(self._rng.randrange(50, 500) * MILLISECOND, partial(_start, host))

    def _cut_zones(self) -> None:
        world, rng = self.world, self._rng
        one, other = rng.sample(("z1", "z2", "z3"), 2)
        pairs = [
            (source, to)
            for source, place in self.plan.places.items()
            for to, opposite in self.plan.places.items()
            if {place.zone, opposite.zone} == {one, other}
        ]
        for source, to in pairs:
            world.network.cut(source, to)
        world.count_fault(ZONE_CUT, has_met=bool(pairs))
        world.after(rng.randrange(2000, 9000) * MILLISECOND, partial(self._heal, pairs))

    def _heal(self, pairs: list[tuple[str, str]]) -> None:
        for source, to in pairs:
            self.world.network.heal(source, to)

    def _calm(self) -> None:
        self.faults.stop()
        self.world.network.heal_all()
        self.world.network.default = LinkProfile()


def _start(host: Host) -> None:
    host.start()


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    """The history of this seed, finished and judged."""
    return Story(plan_of(seed), verbose).run()


def describe(seed: int) -> list[str]:
    return plan_of(seed).lines()
