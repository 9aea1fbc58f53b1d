"""Dag jobs of one manager with a store under drawn faults: workers with handler cores, clients that submit and change.

One seed is one history. The manager is alone: its crashes, and the tail of the store that is lost with them, are the
hard cases. Faults strike for a while; then all is well, and every job must end.
"""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random
from typing import Final, Literal

import msgspec

from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.control.member.voter import Voter
from talka.control.tasks.paced_frames import PaceLimits
from talka.control.worker.composite import Worker
from talka.testing.cores import WorkerPart, worker_act
from talka.testing.disk import BLOB_PREFIX
from talka.testing.faults import FaultLimits, Faults, FrozenWorkers, link_profile, missing
from talka.testing.handler_cores import FILES, HandlerLedger, Script, SimulatedHandlerCores
from talka.testing.host import Clock, Host
from talka.testing.network import LinkProfile
from talka.testing.store_chores import StoreChores, StoreRival
from talka.testing.store_shell import StoreDisk, StoreShell, keepers_on
from talka.testing.trust import SIGNER, keys_of_workers, trust_of_worker
from talka.testing.world import Boot, Observer, World
from talka.units import HOUR, MILLISECOND, MINUTE, SECOND
from talka.wire.jobs import ManagerAt, WorkerFacts
from talka.work.dags.cron import Cron
from talka.work.dags.dag import DagSpec, TaskSpec
from talka.work.dags.records import PutSchedule, ScheduleRow
from tests.sim.checkers.brought import CodeRunsWhereItMay
from tests.sim.checkers.clocks import EndedJobsStay, SchedulesFire
from tests.sim.checkers.dags import CountsFit, DagHistory, ResultsCountOnce, RunsAreInOrder, Specs
from tests.sim.checkers.fans import FansAreWhole
from tests.sim.checkers.queues import QueuesFit
from tests.sim.checkers.times import TimesAreKept
from tests.sim.dag_clients import DagClients, Resumer
from tests.sim.dag_orders import CAPABILITY, DagErrand, dag_errand, limits_of, with_code, with_fans, with_late
from tests.sim.hostile import Hostility, known_of_dags
from tests.sim.job_clients import Duties
from tests.sim.jobs import remembering

EPOCH_NS: Final = 1_700_000_000 * SECOND
DRIFT_LIMIT_PPM: Final = 20_000
FAULTS_FROM: Final = 5 * SECOND
CALM_FROM: Final = 40 * SECOND
LATE_UNTIL: Final = CALM_FROM + 15 * SECOND
ENDS_EARLIEST: Final = 60 * SECOND
ENDS_LATEST: Final = 420 * SECOND
"""A worker on which tasks died is given none for five minutes; it may be the only one that can run some."""
RIGHT_FROM: Final = CALM_FROM + 10 * SECOND
"""By then the manager's clock is right, and it is well."""
WRONG_MOST_NS: Final = 5 * SECOND
"""A clock is wrong for less."""
MANAGER: Final = "m0"
WINDOW_BYTES: Final = 8_000
"""Of what is said to a worker before there has to be room: little, so that some waits."""
CORE_DIES: Final = "core dies"
LONG_MS: Final = 2000
TAIL_LOST: Final = "tail lost"
"""The manager dies while a write of its store is under way."""
CLOCK_MOVED: Final = "clock moved"
"""The manager's clock of the day is wrong for a moment, by an hour or by 30 days."""
STORE_TAKEN: Final = "store taken"
"""Another manager takes the store from the one that has it, and changes something."""
KEPT_NS: Final = HOUR
SCRIPT: Final = msgspec.Raw(msgspec.json.encode(Script(50)))
SCHEDULED: Final = DagSpec(name="scheduled", tasks=(TaskSpec(id="a", handler="quick", config=SCRIPT),))
RESTORED: Final = "store restored"
"""The store is replaced by a backup made earlier."""
ROLLED_BACK: Final = "store rolled back"
"""Likewise by an image of the whole disk: nothing on it tells that it is a copy."""
NEW_STORE: Final = "new store"
"""There is another store under the same name, with nothing in it."""
STORE_FAULTS: Final = (RESTORED, ROLLED_BACK, NEW_STORE)
HOW: Final[dict[str, Literal["backup", "rollback", "new"]]] = {
    RESTORED: "backup",
    ROLLED_BACK: "rollback",
    NEW_STORE: "new",
}
OWN: Final = (CORE_DIES, TAIL_LOST, FrozenWorkers.NAME, CLOCK_MOVED, STORE_TAKEN, *STORE_FAULTS)
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
    TAIL_LOST,
)
LINKS: Final = ("loss", "duplicates", "reordering")
CLASSES: Final = (*EVENTS, *LINKS, *STORE_FAULTS)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a seed decides before the run; the rest follows from it."""

    seed: int
    cores: tuple[int, ...]
    """Of each worker. The first two have a capability that some tasks need."""
    classes: tuple[str, ...]
    gap_ns: int
    drifts_ppm: tuple[int, ...]
    offsets_ns: tuple[int, ...]
    is_refused: bool
    """Where the manager is down, its address refuses connections: its machine is there. Else there is silence."""
    errands: tuple[DagErrand, ...]
    rare: str = ""
    """One of the faults that only some histories have, beside the others."""
    has_hostile: bool = False
    """There are certificates, and somebody with a worker's says everything to everybody."""
    has_fans: bool = False
    """Tasks are fanned out over lists that others return."""
    has_late: bool = False
    """Tasks take longer than their timeouts, and ask for more time."""
    takers: tuple[str, ...] = ()
    """Workers that accept code, where some jobs bring it."""

    def lines(self) -> list[str]:
        told = [
            f"{one.key}: {len(one.spec.tasks)} tasks, {one.spec.settings.on_failure}, at {one.at_ns / SECOND:.1f} s"
            + "".join(f", {wish.what} at {wish.at_ns / SECOND:.1f} s" for wish in one.wishes)
            for one in self.errands
        ]
        return [
            f"seed {self.seed}: a manager, {len(self.cores)} workers of {', '.join(map(str, self.cores))} cores",
            f"faults {FAULTS_FROM // SECOND} s to {CALM_FROM // SECOND} s, every {self.gap_ns / SECOND:.1f} s on"
            f" average: {', '.join((*self.classes, *filter(None, [self.rare]))) or 'none'}",
            f"clocks: {', '.join(f'{ppm / 10_000:+.1f} %' for ppm in self.drifts_ppm)}",
            "a manager that is down " + ("refuses connections" if self.is_refused else "is silent"),
            *told,
        ]


def plan_of(
    seed: int,
    *,
    classes: tuple[str, ...] | None = None,
    has_hostile: bool = False,
    store_fault: str = "",
    has_fans: bool = False,
    has_code: bool = False,
    has_late: bool = False,
) -> Plan:
    """What the seed decides; with `classes`, those faults instead of the drawn ones; with `store_fault`, that one
    too."""
    rng = Random(f"{seed}:dags")
    is_freezing = Random(f"{seed}:dags:frozen").randrange(3) == 0
    cores = tuple(rng.randrange(1, 4) for _ in range(rng.randrange(4, 6)))
    # A subset for every seed: heavy faults together would hide what one of them does alone.
    drawn = rng.sample(EVENTS, rng.randrange(2, 5))
    drawn += rng.sample(LINKS, rng.randrange(1, 3))
    drawn.append(rng.choice(("crash", TAIL_LOST)))  # what is durable matters only where somebody dies
    apart = Random(f"{seed}:dags, store")  # apart, so that all else of a seed is as it was
    if apart.randrange(2) or store_fault:
        drawn.append(store_fault or apart.choice(STORE_FAULTS))
    limits = limits_of(rng)
    errands = tuple(
        dag_errand(rng, number, limits, rng.randrange(2000, 25_000) * MILLISECOND)
        for number in range(rng.randrange(3, 6))
    )
    if has_fans:
        fans = Random(f"{seed}:dags, fans")
        errands = tuple(with_fans(fans, errand) for errand in errands)
    if has_late:
        late = Random(f"{seed}:dags, late")
        errands = tuple(with_late(late, errand) for errand in errands)
    takers: tuple[str, ...] = ()
    if has_code:
        brings = Random(f"{seed}:dags, code")
        errands = with_code(brings, errands)
        # One that has the capability, one or two that have not; another one with it takes none.
        able, others = brings.randrange(2), range(2, len(cores))
        takers = tuple(f"w{index}" for index in sorted((able, *brings.sample(others, brings.randrange(1, 3)))))
    rare = rare_of(seed) if classes is None else next((name for name in classes if name in RARE), "")
    if classes is None:
        classes = drawn_of(drawn, is_freezing=is_freezing)
    return Plan(
        seed=seed,
        cores=cores,
        classes=classes,
        gap_ns=rng.randrange(1000, 4000) * MILLISECOND,
        drifts_ppm=tuple(rng.choice((-DRIFT_LIMIT_PPM, 0, DRIFT_LIMIT_PPM)) for _ in range(1 + len(cores))),
        offsets_ns=tuple(rng.randrange(1000) * SECOND for _ in range(1 + len(cores))),
        is_refused=bool(rng.randrange(2)),
        errands=errands,
        has_hostile=has_hostile,
        has_fans=has_fans,
        has_late=has_late,
        takers=takers,
        rare="" if any(name in STORE_FAULTS for name in classes) else rare,
    )


RARE: Final = (CLOCK_MOVED, STORE_TAKEN)


def rare_of(seed: int) -> str:
    """Of dice of its own: the rest of a history does not depend on it. They spare those that others are known by."""
    return Random(f"{seed}:rare 13").choice((*RARE, "", ""))


def drawn_of(drawn: list[str], *, is_freezing: bool) -> tuple[str, ...]:
    classes = tuple(name for name in CLASSES if name in drawn)
    return (*classes, FrozenWorkers.NAME) if is_freezing else classes


def build(plan: Plan, verbose: Callable[[str], None] | None) -> World:
    world = World(plan.seed, verbose=verbose)
    world.network.default = link_profile(world.rng("plan", "links"), plan.classes)
    lives: dict[str, int] = {}

    def start_manager(boot: Boot) -> ClusterMember:
        voter = Voter(name=boot.name, voters=(MANAGER,), stored=boot.stored, rng=boot.rng, now=boot.now)
        part = Manager(
            name=boot.name,
            boot=boot.boot,
            voter=voter,
            rng=boot.rng,
            wall_offset_ns=EPOCH_NS + world.now - boot.now,
            keys=keys_of_workers(boot.boot),
            signer=SIGNER.public if plan.takers else b"",
            blobs=blobs_on(boot),
            managers=lambda: (ManagerAt(MANAGER, MANAGER),),
            pace=PaceLimits(window_bytes=WINDOW_BYTES),
        )
        return ClusterMember(
            group="g",
            name=boot.name,
            boot=boot.boot,
            voter=voter,
            part=part,
            seeds=(),
            certified=plan.has_hostile,
        )

    def start_worker(index: int, boot: Boot) -> ClusterMember:
        lives[boot.name] = lives.get(boot.name, 0) + 1
        facts = WorkerFacts(
            cores=plan.cores[index],
            folder=index + 1,
            life=lives[boot.name],
            capabilities=(CAPABILITY,) if index < 2 else (),
            accepts_code=boot.name in plan.takers,
        )
        trust = trust_of_worker(boot.name, boot.boot)
        worker = Worker(
            boot.name,
            boot.boot,
            remembering((ManagerAt(MANAGER, MANAGER),), boot),
            facts,
            (MANAGER,),
            boot.rng,
            boot.now,
            signers=trust.signers,
            variables=trust.variables,
            handlers=FILES,
            bundles=blobs_on(boot),
        )
        return ClusterMember(
            group="g",
            name=boot.name,
            boot=boot.boot,
            part=WorkerPart(worker),
            certified=plan.has_hostile,
        )

    clocks = [Clock(offset, drift) for offset, drift in zip(plan.offsets_ns, plan.drifts_ppm, strict=True)]
    disk = StoreDisk()
    world.add_host(MANAGER, start_manager, clock=clocks[0], disk=disk)
    for errand in plan.errands:
        if errand.code:  # it was uploaded before the job
            disk.durable[BLOB_PREFIX + sha256(errand.code).hexdigest()] = errand.code
    for index in range(len(plan.cores)):
        world.add_host(f"w{index}", partial(start_worker, index), clock=clocks[index + 1])
    return world


def blobs_on(boot: Boot) -> list[str]:
    return [key.removeprefix(BLOB_PREFIX) for key in boot.stored if key.startswith(BLOB_PREFIX)]


class Refusals(Observer):
    """Workers are told when the manager's address refuses connections."""

    def __init__(self, manager: Host) -> None:
        self.told = 0
        self._manager = manager

    def on_second(self, world: World) -> None:
        if self._manager.state != "down":
            return
        for name, host in world.hosts.items():
            if host is self._manager or host.state != "up":
                continue
            if world.network.is_cut(name, MANAGER) or world.network.is_cut(MANAGER, name):
                continue
            self.told += 1
            worker_act(world, host, host.boot, partial(_refused))


def _refused(worker: Worker, now: int) -> list[object]:
    return worker.on_refused(now, MANAGER)


class Story:
    """Runs a plan from its first second to its last."""

    def __init__(self, plan: Plan, verbose: Callable[[str], None] | None, partitions: int = 1) -> None:
        """`partitions`: of the store, all of which the manager has."""
        self.plan = plan
        self.world = world = build(plan, verbose)
        self.manager = world.hosts[MANAGER]
        self.ledger = HandlerLedger()
        self.cores = SimulatedHandlerCores(world, self.ledger)
        self.shell = StoreShell(world, self.manager, EPOCH_NS, partitions)
        self.history = DagHistory(self.shell)
        self.clients = DagClients(world, self.manager, self.shell, plan.errands, self.history)
        self.specs = Specs()
        self.results = ResultsCountOnce(world, self.shell, self.ledger, self.specs)
        self.runs = RunsAreInOrder(world, self.shell, self.ledger, self.specs)
        self.counts = CountsFit(world, self.manager, self.shell)
        self.queues = QueuesFit(self.manager, self.shell)
        self.fans = FansAreWhole(world, self.shell, self.specs)
        self.code = CodeRunsWhereItMay(world, self.shell, self.specs, plan.takers)
        self.refusals = Refusals(self.manager)
        self.times = TimesAreKept(world, self.shell, self.specs)
        self.cores.listeners += [self.runs, self.code, self.times]
        world.observers += [self.specs, self.history, self.counts, self.queues, self.shell, self.cores, self.clients]
        if plan.takers:
            world.observers.append(Duties(world))
        if plan.is_refused:
            world.observers.append(self.refusals)
        self.resumer = Resumer(self.manager)
        if plan.has_late:
            world.observers.append(self.resumer)
        self.rival = StoreRival(world, self.shell)
        self.chores = StoreChores(world, self.manager, self.shell, SCHEDULED, KEPT_NS // MILLISECOND)
        if plan.rare == CLOCK_MOVED:
            self.schedules_fire = SchedulesFire(self.chores, self.shell, MINUTE + 10 * SECOND, RIGHT_FROM)
            self.ended_stay = EndedJobsStay(world, self.chores, self.shell, KEPT_NS * 9 // 10)
            world.observers += [self.chores, self.schedules_fire, self.ended_stay]
            first_ms = Cron.parse("* * * * *").next_after(EPOCH_NS // MILLISECOND)
            for name in ("one", "two"):
                row = ScheduleRow(name=name, cron="* * * * *", spec=b"", next_ms=first_ms)
                self.shell.records.apply([PutSchedule(row)])
        nodes = list(world.hosts)
        self.hostility: Hostility | None = None
        if plan.has_hostile:
            known = partial(known_of_dags, world, self.manager, tuple(nodes))
            self.hostility = Hostility(world, known, keys=(), until=ENDS_EARLIEST)
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
            centre=MANAGER,
        )

    def _favourites(self) -> list[str]:
        """The manager, and workers that have something to do."""
        busy = self._busy()
        return [MANAGER, *busy] if len(busy) < 2 else [MANAGER, MANAGER, *busy]

    def _busy(self) -> list[str]:
        return list(dict.fromkeys(run.host.name for run in self.ledger.alive.values()))

    def _long_busy(self) -> list[str]:
        """With tasks that outlast a lease, where there are any."""
        runs = self.ledger.alive.values()
        return list(dict.fromkeys(run.host.name for run in runs if run.script.ms >= LONG_MS)) or self._busy()

    def run(self) -> World:
        world = self.world
        stagger = world.rng("stagger")
        for host in world.hosts.values():
            world.at(stagger.randrange(1000) * MILLISECOND, host.start)
        self.clients.begin()
        if self.plan.classes:
            world.at(FAULTS_FROM, partial(self.faults.begin, CALM_FROM))
        if CORE_DIES in self.plan.classes:
            world.at(FAULTS_FROM, partial(self._kill_core, world.rng("core dies")))
        if TAIL_LOST in self.plan.classes:
            world.at(FAULTS_FROM, partial(self._lose_tail, world.rng("tail lost")))
        if self.plan.rare == CLOCK_MOVED:
            world.at(FAULTS_FROM, partial(self._move_clock, world.rng("clock moved")))
        if self.plan.rare == STORE_TAKEN:
            world.at(FAULTS_FROM, partial(self._take_store, world.rng("store taken")))
        if FrozenWorkers.NAME in self.plan.classes:
            world.at(FAULTS_FROM, FrozenWorkers(world, self._long_busy, CALM_FROM).strike)
        for fault in STORE_FAULTS:
            if fault in self.plan.classes:
                world.at(FAULTS_FROM, partial(self._copy_store, fault, world.rng(fault)))
        world.at(CALM_FROM, self._calm)
        world.run_until(RIGHT_FROM + MINUTE + 15 * SECOND if self.plan.rare == CLOCK_MOVED else ENDS_EARLIEST)
        while not world.stopped and world.now < ENDS_LATEST and not self.clients.are_done:
            world.run_until(world.now + 2 * SECOND)
        if not world.stopped:
            for job in self.clients.jobs:
                if not job.id:
                    world.violate("D1", f"{job.errand.key} was submitted again and again, and never answered")
            world.finish()
            for name in missing(world, [*self.plan.classes, *filter(None, [self.plan.rare])]):
                world.violate("plan", f"the fault {name!r} of the plan never struck")
        return world

    def _is_over(self, fault: str) -> bool:
        """Faults end when all is well; one that found nothing to strike until then may strike once."""
        return self.world.now >= (CALM_FROM if fault in self.world.struck else LATE_UNTIL)

    def _kill_core(self, rng: Random, *, is_again: bool = False) -> None:
        if self._is_over(CORE_DIES):
            return
        has_met = self.cores.strike(rng)
        self.world.count_fault(CORE_DIES, has_met=has_met, is_again=is_again)
        gap_ns = 4 * SECOND if has_met else SECOND // 4
        again = partial(self._kill_core, rng, is_again=not has_met)
        self.world.after(int(rng.expovariate(1.0) * gap_ns) + MILLISECOND, again)

    def _lose_tail(self, rng: Random) -> None:
        """Waits for a write, and strikes within it."""
        world = self.world
        if self._is_over(TAIL_LOST):
            return
        if not self.shell.is_writing or self.manager.state == "down":
            world.after(MILLISECOND // 2, partial(self._lose_tail, rng))
            return
        self.manager.crash()
        world.struck[TAIL_LOST] = world.struck.get(TAIL_LOST, 0) + 1
        world.after(rng.randrange(50, 3000) * MILLISECOND, self._bring_back)
        world.after(int(rng.expovariate(1.0) * 5 * SECOND) + SECOND, partial(self._lose_tail, rng))

    def _copy_store(self, fault: str, rng: Random) -> None:
        """Copy it; often let the manager start once more, under the epoch that the copy will have next; replace it."""
        world = self.world
        if world.now >= CALM_FROM - 12 * SECOND:
            return
        self.shell.back_up()
        if rng.randrange(3):
            world.after(rng.randrange(200, 2000) * MILLISECOND, self._strike_manager)
            world.after(rng.randrange(2000, 2600) * MILLISECOND, self._bring_back)
        world.after(rng.randrange(4000, 11_000) * MILLISECOND, partial(self._replace_store, fault, rng))

    def _strike_manager(self) -> None:
        if self.manager.state != "down":
            self.manager.crash()

    def _replace_store(self, fault: str, rng: Random) -> None:
        world = self.world
        self._strike_manager()
        self.shell.replace(HOW[fault])
        world.struck[fault] = world.struck.get(fault, 0) + 1
        world.after(rng.randrange(50, 2000) * MILLISECOND, self._bring_back)
        world.after(rng.randrange(2500, 6000) * MILLISECOND, partial(self._copy_store, fault, rng))

    def _bring_back(self) -> None:
        self.manager.start()

    def _move_clock(self, rng: Random, *, is_again: bool = False) -> None:
        # Where nobody has looked at a wrong clock so far, there may be another one when all is well.
        if self.world.now >= (CALM_FROM if CLOCK_MOVED in self.world.struck else RIGHT_FROM - WRONG_MOST_NS):
            return
        self.shell.wall_shift_ns = rng.choice((-1, 1)) * rng.choice((HOUR, 30 * 24 * HOUR))
        wrong_ns = rng.randrange(500 * MILLISECOND, WRONG_MOST_NS, MILLISECOND)
        rest_ns = rng.randrange(6000, 15_000) * MILLISECOND - wrong_ns
        put_right = partial(self._put_clock_right, rng, rest_ns, self.shell.misread, is_again=is_again)
        self.world.after(wrong_ns, put_right)

    def _put_clock_right(self, rng: Random, rest_ns: int, misread: int, *, is_again: bool) -> None:
        self.shell.wall_shift_ns = 0
        has_met = self.shell.misread > misread
        self.world.count_fault(CLOCK_MOVED, has_met=has_met, is_again=is_again)
        again = partial(self._move_clock, rng, is_again=not has_met)
        self.world.after(rest_ns if has_met else SECOND // 4, again)

    def _take_store(self, rng: Random) -> None:
        if self._is_over(STORE_TAKEN):
            return
        if self.manager.state == "up" and keepers_on(self.manager) is not None and self.rival.strike(rng):
            self.world.struck[STORE_TAKEN] = self.world.struck.get(STORE_TAKEN, 0) + 1
            self.world.after(rng.randrange(5000, 12_000) * MILLISECOND, partial(self._take_store, rng))
        else:
            self.world.after(50 * MILLISECOND, partial(self._take_store, rng))

    def _calm(self) -> None:
        self.faults.stop()
        if missing(self.world, [name for name in LINKS if name in self.plan.classes]):
            self.world.after(5 * SECOND, self._calm_links)  # in a cluster that was cut to pieces nothing could strike
        else:
            self._calm_links()

    def _calm_links(self) -> None:
        self.world.network.default = LinkProfile()


def run(
    seed: int,
    *,
    verbose: Callable[[str], None] | None = None,
    has_hostile: bool = False,
    has_fans: bool = False,
) -> World:
    """The history of this seed, finished and judged."""
    return Story(plan_of(seed, has_hostile=has_hostile, has_fans=has_fans), verbose).run()


def describe(seed: int) -> list[str]:
    return plan_of(seed).lines()
