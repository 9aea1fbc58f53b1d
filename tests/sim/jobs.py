"""Jobs on a cluster under drawn faults: managers, workers with cores, clients that submit, watch and cancel.

One seed is one history. Faults strike managers and workers for a while; then all is well, and every job must end.
"""

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.cluster.leadership.lease_terms import OwnLease
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.member.peer_pool import Place
from talka.control.member.voter import Voter
from talka.control.worker.composite import MANAGERS_KEY, Worker
from talka.testing.core_runs import Ledger
from talka.testing.cores import Cores, WorkerPart
from talka.testing.disk import BLOB_PREFIX
from talka.testing.faults import FaultLimits, Faults, FrozenWorkers, link_profile, missing
from talka.testing.host import Clock
from talka.testing.network import LinkProfile
from talka.testing.trust import SIGNER, keys_of_workers, trust_of_worker
from talka.testing.world import Boot, Starter, World
from talka.units import HOUR, MILLISECOND, SECOND
from talka.wire.jobs import ManagerAt, WorkerFacts
from tests.sim.checkers.blocked import BlockedCoresAreReplaced
from tests.sim.checkers.jobs import (
    CountsAreTrue,
    EveryJobEnds,
    JobCapsHold,
    JobHistory,
    NoEvictionStorm,
    NoStaleCommand,
    OneAttemptAtATime,
    manager_on,
)
from tests.sim.checkers.journeys import JourneysAddUp, RulesAreTrue, ValuesAreHandedOn
from tests.sim.checkers.leadership import CapsHold, NothingGoesBack, OneLeaderPerTerm, OneLeaseAtATime
from tests.sim.checkers.secrecy import NothingForgedRuns, VariablesStaySealed
from tests.sim.elections import a_membership
from tests.sim.forging import Forger
from tests.sim.hostile import Hostility, known_of
from tests.sim.job_clients import Clients, Duties
from tests.sim.job_orders import GRACE_NS, Errand, errand

EPOCH_NS: Final = 1_700_000_000 * SECOND
DRIFT_LIMIT_PPM: Final = 20_000
FAULTS_FROM: Final = 6 * SECOND
CALM_FROM: Final = 40 * SECOND
LATE_UNTIL: Final = CALM_FROM + 15 * SECOND
ENDS_EARLIEST: Final = 62 * SECOND
ENDS_LATEST: Final = 180 * SECOND
"""Jobs that lost their cores wait for those of others; there may be seven, and some run for half a minute."""
STOP_WITHIN_NS: Final = GRACE_NS + 12 * SECOND
ENDS_LATEST_BLOCKED: Final = 420 * SECOND
"""Where cores are blocked: one is given up after a minute and a half at most, and others wait for what it has."""
CORE_DIES: Final = "core dies"
CORE_BLOCKED: Final = "core blocked"
"""The event loop of a core process stands still, for a while or for good."""
EVENTS: Final = (
    "crash",
    "stall",
    "pause",
    "slow disk",
    "drift",
    "partition",
    "one-way cut",
    "isolation",
    "flapping link",
    CORE_DIES,
)
LINKS: Final = ("loss", "duplicates", "reordering")
CLASSES: Final = (*EVENTS, *LINKS)
OWN: Final = (CORE_DIES, CORE_BLOCKED, FrozenWorkers.NAME)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a seed decides before the run; the rest follows from it."""

    seed: int
    managers: int
    cores: tuple[int, ...]
    """Of each worker."""
    classes: tuple[str, ...]
    gap_ns: int
    drifts_ppm: tuple[int, ...]
    offsets_ns: tuple[int, ...]
    are_members: bool
    errands: tuple[Errand, ...]
    has_hostile: bool = False
    """There are certificates, and somebody with a worker's says everything to everybody."""

    def lines(self) -> list[str]:
        also = ", members of each other too" if self.are_members else ""
        cores = ", ".join(str(count) for count in self.cores)
        told = [
            f"{one.key}: {one.shape}, {one.order.cores or 'any'} cores, at {one.at_ns / SECOND:.1f} s"
            + (f", cancelled at {one.cancel_at_ns / SECOND:.1f} s" if one.cancel_at_ns else "")
            for one in self.errands
        ]
        return [
            f"seed {self.seed}: {self.managers} managers{also}, {len(self.cores)} workers of {cores} cores",
            f"faults {FAULTS_FROM // SECOND} s to {CALM_FROM // SECOND} s, every {self.gap_ns / SECOND:.1f} s on"
            f" average: {', '.join(self.classes) or 'none'}",
            f"clocks: {', '.join(f'{ppm / 10_000:+.1f} %' for ppm in self.drifts_ppm)}",
            *told,
        ]


def plan_of(
    seed: int, *, classes: tuple[str, ...] | None = None, has_hostile: bool = False, has_blocked: bool = False
) -> Plan:
    """What the seed decides; with `classes`, those faults instead of the drawn ones; with `has_blocked`, cores whose
    loop is blocked too."""
    rng = Random(f"{seed}:jobs")
    is_freezing = Random(f"{seed}:jobs:frozen").randrange(3) == 0
    managers = rng.choice((3, 3, 3, 5))
    cores = tuple(rng.randrange(1, 5) for _ in range(rng.randrange(4, 7)))
    # A subset for every seed: heavy faults together would hide what one of them does alone.
    drawn = rng.sample(EVENTS, rng.randrange(2, 5))
    drawn += rng.sample(LINKS, rng.randrange(1, 3))
    hosts = managers + len(cores)
    errands = tuple(
        errand(
            rng,
            number,
            client=rng.randrange(2),
            at_ns=rng.randrange(3000, 28_000) * MILLISECOND,
            is_cancelled=rng.randrange(4) == 0,
        )
        for number in range(rng.randrange(3, 8))
    )
    if classes is None:
        classes = drawn_of(drawn, is_freezing=is_freezing)
    return Plan(
        seed=seed,
        managers=managers,
        cores=cores,
        classes=(*classes, CORE_BLOCKED) if has_blocked else classes,
        gap_ns=rng.randrange(1000, 4000) * MILLISECOND,
        drifts_ppm=tuple(rng.choice((-DRIFT_LIMIT_PPM, 0, DRIFT_LIMIT_PPM)) for _ in range(hosts)),
        offsets_ns=tuple(rng.randrange(1000) * SECOND for _ in range(hosts)),
        are_members=rng.randrange(10) == 0,
        errands=errands,
        has_hostile=has_hostile,
    )


def plan_for(
    seed: int, errands: tuple[Errand, ...], cores: tuple[int, ...], *, classes: tuple[str, ...] | None = None
) -> Plan:
    """As the seed decides, but for these jobs, on workers with so many cores each."""
    drawn = plan_of(seed, classes=classes)
    hosts = drawn.managers + len(cores)
    return msgspec.structs.replace(
        drawn,
        cores=cores,
        errands=errands,
        drifts_ppm=(*drawn.drifts_ppm, *(0,) * hosts)[:hosts],
        offsets_ns=(*drawn.offsets_ns, *(0,) * hosts)[:hosts],
    )


def drawn_of(drawn: list[str], *, is_freezing: bool) -> tuple[str, ...]:
    classes = tuple(name for name in CLASSES if name in drawn)
    return (*classes, FrozenWorkers.NAME) if is_freezing else classes


def build(
    plan: Plan,
    verbose: Callable[[str], None] | None,
    told: Mapping[str, OwnLease] = {},
    places: Mapping[str, Place] = {},
) -> World:
    """`told`: the lease of workers that a manager is told when it starts, where it is told one. `places`: where hosts
    stand, where they say so."""
    world = World(plan.seed, verbose=verbose)
    world.network.default = link_profile(world.rng("plan", "links"), plan.classes)
    managers = tuple(f"m{index}" for index in range(plan.managers))
    at = tuple(ManagerAt(name, name, *msgspec.structs.astuple(places.get(name, Place()))) for name in managers)

    def start_manager(boot: Boot) -> ClusterMember:
        voter = Voter(
            name=boot.name,
            voters=managers,
            stored=boot.stored,
            rng=boot.rng,
            now=boot.now,
            own_lease=told.get(boot.name, OwnLease()),
        )
        part = Manager(
            name=boot.name,
            boot=boot.boot,
            voter=voter,
            rng=boot.rng,
            wall_offset_ns=EPOCH_NS + world.now - boot.now,
            keys=keys_of_workers(boot.boot),
            signer=SIGNER.public,
            managers=lambda: at,
            blobs=[key.removeprefix(BLOB_PREFIX) for key in boot.stored if key.startswith(BLOB_PREFIX)],
        )
        return ClusterMember(
            group="g",
            name=boot.name,
            boot=boot.boot,
            voter=voter,
            membership=a_membership(boot) if plan.are_members else None,
            part=part,
            seeds=managers,
            certified=plan.has_hostile,
        )

    def start_worker(index: int, boot: Boot) -> ClusterMember:
        trust = trust_of_worker(boot.name, boot.boot)
        place = places.get(boot.name, Place())
        facts = WorkerFacts(
            cores=plan.cores[index],
            folder=index + 1,
            sealing=trust.sealing,
            zone=place.zone,
            datacenter=place.datacenter,
            region=place.region,
        )
        worker = Worker(
            boot.name,
            boot.boot,
            remembering(at, boot),
            facts,
            managers,
            boot.rng,
            boot.now,
            signers=trust.signers,
            variables=trust.variables,
            bundles=[key.removeprefix(BLOB_PREFIX) for key in boot.stored if key.startswith(BLOB_PREFIX)],
        )
        part = WorkerPart(worker)
        return ClusterMember(group="g", name=boot.name, boot=boot.boot, part=part, certified=plan.has_hostile)

    hosts: list[tuple[str, Starter]] = [(name, start_manager) for name in managers]
    hosts += [(f"w{index}", partial(start_worker, index)) for index in range(len(plan.cores))]
    for index, (name, starter) in enumerate(hosts):
        world.add_host(name, starter, clock=Clock(plan.offsets_ns[index], plan.drifts_ppm[index]))
    return world


def remembering(managers: tuple[ManagerAt, ...], boot: Boot) -> dict[str, bytes]:
    """What is on a worker's disk: it was told of its managers before. How others find theirs is for `searching`."""
    return {MANAGERS_KEY: msgspec.msgpack.encode(managers), **boot.stored}


class Story:
    """Runs a plan from its first second to its last."""

    ends_latest: int = ENDS_LATEST

    def __init__(
        self,
        plan: Plan,
        verbose: Callable[[str], None] | None,
        told: Mapping[str, OwnLease] = {},
        *,
        places: Mapping[str, Place] = {},
        has_forger: bool = False,
        clients: type[Clients] = Clients,
    ) -> None:
        self.plan = plan
        self.world = world = build(plan, verbose, told, places)
        self.managers = tuple(name for name in world.hosts if name.startswith("m"))
        self.ledger = Ledger()
        self.cores = Cores(world, self.ledger)
        self.history = JobHistory(self.ledger)
        self.clients = clients(world, plan.errands, self.managers, self.history)
        self.ends = EveryJobEnds(self.history, self.ledger, STOP_WITHIN_NS)
        self.counts = CountsAreTrue(self.ledger)
        self.journeys = JourneysAddUp(self.ledger)
        self.rules = RulesAreTrue()
        self.values = ValuesAreHandedOn(self.ledger)
        by_digest = {one.order.bundle.digest: one.order.bundle.env for one in plan.errands}
        self.variables = VariablesStaySealed(world, by_digest, lambda name: name not in self.managers)
        self.forger = Forger(world, tuple(name for name in world.hosts if name not in self.managers))
        self._has_forger = has_forger
        self.fences = NoStaleCommand()
        self.storm = NoEvictionStorm()
        self.blocked = BlockedCoresAreReplaced(self.cores, _measure_nothing(plan))
        overlaps = OneAttemptAtATime(world, self.ledger)
        self.cores.listeners.append(overlaps.ran)
        world.observers += [
            OneLeaderPerTerm(),
            NothingGoesBack(),
            OneLeaseAtATime(DRIFT_LIMIT_PPM),
            CapsHold(),
            self.counts,
            self.journeys,
            self.rules,
            self.values,
            overlaps,
            self.fences,
            self.variables,
            NothingForgedRuns(self.forger.jobs),
            self.storm,
            self.blocked,
            JobCapsHold(),
            self.history,
            self.ends,
            self.cores,
            Duties(world),
            self.clients,
        ]
        nodes = list(world.hosts)
        self.hostility: Hostility | None = None
        if plan.has_hostile:
            known, keys = partial(known_of, world, tuple(nodes)), tuple(errand.key for errand in plan.errands)
            self.hostility = Hostility(world, known, keys=keys, until=ENDS_EARLIEST)
        self.faults = Faults(
            world,
            nodes,
            [name for name in plan.classes if name not in OWN],
            limits=FaultLimits(
                gap_ns=plan.gap_ns,
                down_ns=(50 * MILLISECOND, 9 * SECOND),
                cut_ns=(500 * MILLISECOND, 9 * SECOND),
                stall_ns=(200 * MILLISECOND, 7 * SECOND),
                drift_ppm=DRIFT_LIMIT_PPM,
            ),
            favourites=self._favourites,
        )

    def _favourites(self) -> list[str]:
        """Managers that lead the cluster or a job, and workers that have something to do."""
        found = []
        for name, host in self.world.hosts.items():
            manager = manager_on(host)
            if manager is not None and (manager.registry is not None or manager.led):
                found.append(name)
        return found + self._busy()

    def _busy(self) -> list[str]:
        return list(dict.fromkeys(run.host.name for runs in self.ledger.working.values() for run in runs))

    def run(self) -> World:
        world = self.world
        stagger = world.rng("stagger")
        for host in world.hosts.values():
            world.at(stagger.randrange(1000) * MILLISECOND, host.start)
        self.clients.begin()
        if self.plan.classes:
            world.at(FAULTS_FROM, partial(self.faults.begin, CALM_FROM))
        if self._has_forger:
            world.at(FAULTS_FROM, partial(self.forger.begin, CALM_FROM))
        if CORE_DIES in self.plan.classes:
            world.at(FAULTS_FROM, partial(self._kill_core, world.rng("core dies")))
        if FrozenWorkers.NAME in self.plan.classes:
            world.at(FAULTS_FROM, FrozenWorkers(world, self._busy, CALM_FROM).strike)
        ends_latest = self.ends_latest
        if CORE_BLOCKED in self.plan.classes:
            ends_latest = ENDS_LATEST_BLOCKED
            world.at(FAULTS_FROM, partial(self._block_core, world.rng(CORE_BLOCKED)))
        world.at(CALM_FROM, self._calm)
        world.run_until(ENDS_EARLIEST)
        while not world.stopped and world.now < ends_latest and not self.clients.are_done:
            world.run_until(world.now + 2 * SECOND)
        if not world.stopped:
            for job in self.clients.jobs:
                if not job.name:
                    world.violate("I14", f"{job.errand.key} was submitted again and again, and never answered")
            world.finish()
            for name in missing(world, self.plan.classes):
                world.violate("plan", f"the fault {name!r} of the plan never struck")
        return world

    def _kill_core(self, rng: Random, *, is_again: bool = False) -> None:
        # Where nothing ran while all went wrong, it strikes the first that runs then.
        if self.world.now >= (CALM_FROM if CORE_DIES in self.world.struck else LATE_UNTIL):
            return
        has_met = self.cores.strike(rng)
        self.world.count_fault(CORE_DIES, has_met=has_met, is_again=is_again)
        # It is to strike, also where there is little to strike at.
        gap_ns = 3 * SECOND if has_met else SECOND // 4
        again = partial(self._kill_core, rng, is_again=not has_met)
        self.world.after(int(rng.expovariate(1.0) * gap_ns) + MILLISECOND, again)

    def _block_core(self, rng: Random, *, is_again: bool = False) -> None:
        if self.world.now >= (CALM_FROM if CORE_BLOCKED in self.world.struck else LATE_UNTIL):
            return
        for_ns = HOUR if rng.randrange(2) else rng.randrange(3, 40) * SECOND
        has_met = self.cores.block(rng, for_ns, is_computing=rng.randrange(3) == 0)
        self.world.count_fault(CORE_BLOCKED, has_met=has_met, is_again=is_again)
        gap_ns = 6 * SECOND if has_met else SECOND // 4
        again = partial(self._block_core, rng, is_again=not has_met)
        self.world.after(int(rng.expovariate(1.0) * gap_ns) + MILLISECOND, again)

    def _calm(self) -> None:
        if CORE_BLOCKED in self.plan.classes and CORE_BLOCKED not in self.world.struck:
            self.clients.once_more()  # every job ended before it began: there was no core to block
        self.faults.stop()
        self.world.network.default = LinkProfile()
        self.ends.begin(self.world)


def _measure_nothing(plan: Plan) -> set[str]:
    return {spec.name for errand in plan.errands for spec in errand.order.workflows if not spec.is_test}


def run(
    seed: int,
    *,
    verbose: Callable[[str], None] | None = None,
    has_forger: bool = False,
    has_hostile: bool = False,
    has_blocked: bool = False,
) -> World:
    """The history of this seed, finished and judged. With a forger, somebody in it gives out tasks of its own."""
    return Story(plan_of(seed, has_hostile=has_hostile, has_blocked=has_blocked), verbose, has_forger=has_forger).run()


def describe(seed: int) -> list[str]:
    return plan_of(seed).lines()
