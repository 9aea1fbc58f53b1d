"""Managers and workers that do badly, fall silent together, or get on with nothing: what their cluster makes of it.

One seed is one history: which of six troubles, whom it strikes, and when. Everything else goes well, so that what is
broken is broken by that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.cluster.leadership.news import Elected
from talka.cluster.leadership.timings import LAN, WAN, LeadershipConfig
from talka.cluster.membership.local_health import NO_WORK_FROM
from talka.control.clients.overload import Level
from talka.control.jobs.effects import OwnerChanged
from talka.control.manager import Manager, ManagerEffect
from talka.control.member.composite import ClusterMember
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import MILLISECOND, SECOND
from tests.sim import jobs
from tests.sim.checkers.jobs import manager_on
from tests.sim.job_orders import Errand, mix

TROUBLES: Final = (
    "late voter",
    "all voters late",
    "silence",
    "manager that dispatches nothing",
    "late worker",
    "overloaded manager",
)
STRUCK_AT: Final = 8 * SECOND
SUBMITTED_BEFORE_NS: Final = 4 * SECOND
FOUNDED_AT: Final = 24 * SECOND
"""By then somebody leads, also where the lease of leadership is long."""
LEADER_WITHIN_NS: Final = 15 * SECOND
KNOWN_NS: Final = 4 * SECOND
"""After so long the leader knows what a manager announced."""
AMID_NS: Final = 14 * SECOND
"""Amid the second time that a late worker stands still."""


class Deaf(Manager):
    """One that dispatches nothing of the jobs it is given, as long as it is in `deaf`, and is well in all else."""

    deaf: frozenset[str] = frozenset()

    def _on_lead(self, now: int, sender: str, content: bytes) -> Sequence[ManagerEffect]:
        return [] if self.name in type(self).deaf else super()._on_lead(now, sender, content)


def trouble_of(seed: int) -> str:
    return TROUBLES[seed % len(TROUBLES)]


def struck_at(trouble: str) -> int:
    return FOUNDED_AT if trouble == "silence" else STRUCK_AT


def plan_of(seed: int) -> jobs.Plan:
    trouble = trouble_of(seed)
    rng = Random(f"{seed}:health")
    drawn = jobs.plan_of(seed, classes=())
    managers = 3
    cores = (2, 2) if trouble == "late worker" else (4, 4, 2)
    asked_for = {"late worker": (4,), "overloaded manager": (1,) * 8, "silence": (1,) * 6}.get(trouble, (2, 1))
    gap_ns = rng.randrange(300, 700) * MILLISECOND
    first_ns = struck_at(trouble) - SUBMITTED_BEFORE_NS
    if trouble in ("late worker", "overloaded manager", "manager that dispatches nothing"):
        first_ns = struck_at(trouble) + (AMID_NS if trouble == "late worker" else KNOWN_NS)
    errands: tuple[Errand, ...] = tuple(
        mix(number, workflows=1, cores=count, at_ns=first_ns + number * gap_ns)
        for number, count in enumerate(asked_for)
    )
    hosts = managers + len(cores)
    return msgspec.structs.replace(
        drawn,
        managers=managers,
        cores=cores,
        errands=errands,
        are_members=True,
        drifts_ppm=(0,) * hosts,
        offsets_ns=tuple(rng.randrange(1000) * SECOND for _ in range(hosts)),
    )


class Judge(Observer):
    """What the decisions about managers and workers must add up to."""

    def __init__(self, world: World, trouble: str) -> None:
        self.owners: dict[str, list[str]] = {}
        """Of each job, in the order in which they had it."""
        self.elected: list[str] = []
        self.overloaded = self.unwell = ""
        self.held = 0
        """Looks at which a worker was late and was given nothing, though a job waited."""
        self._trouble = trouble
        self._granted: dict[str, int] = {}

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if isinstance(effect, Elected):
            self.elected.append(host.name)
            if host.name == self.unwell:
                world.violate("unwell leader", f"{host.name}, which does badly, was elected though another could lead")
        if isinstance(effect, OwnerChanged):
            self._on_owner(world, effect)

    def _on_owner(self, world: World, news: OwnerChanged) -> None:
        self.owners.setdefault(news.job, []).append(news.owner)
        if self._trouble == "silence" and "does not answer" in news.reason:
            world.violate("held managers", f"job {news.job} was taken away as most managers were silent: {news.reason}")
        if news.owner == self.overloaded:
            world.violate("ready managers", f"job {news.job} was given to {news.owner}, which is overloaded")

    def on_second(self, world: World) -> None:
        for host in world.hosts.values():
            manager = manager_on(host)
            if manager is None or manager.registry is None:
                continue
            lives = {life.name: life for life in manager.registry.fleet.lives()}
            for entry in manager.registry.entries.values():
                grants = {grant.worker for grant in entry.grants if not grant.lost}
                waits = not entry.owner
                for name, life in lives.items():
                    if life.condition.health < NO_WORK_FROM:
                        continue
                    self.held += waits
                    if name in grants and self._granted.get(entry.job, 0) == 0:
                        text = f"job {entry.job} was granted cores of {name}, which handles everything late"
                        world.violate("late worker", text)
                self._granted[entry.job] = len(grants)


def leads(host: Host) -> bool:
    manager = manager_on(host)
    return host.state == "up" and manager is not None and manager.registry is not None


class Story(jobs.Story):
    def __init__(self, seed: int, verbose: Callable[[str], None] | None = None) -> None:
        plan = plan_of(seed)
        self.trouble = trouble_of(seed)
        config: LeadershipConfig = WAN if self.trouble == "silence" else LAN
        self.deaf = type("DeafManager", (Deaf,), {})
        world = jobs.build(plan, verbose, announces=True, make_manager=self.deaf, config=config)
        super().__init__(plan, verbose, world=world)
        self.judge = Judge(world, self.trouble)
        world.observers.append(self.judge)
        self._rng = world.rng("trouble")

    def run(self) -> World:
        world = self.world
        strike: Callable[[], None] = {
            "late voter": self._late_voter,
            "all voters late": self._all_late,
            "silence": self._silence,
            "manager that dispatches nothing": self._deafen,
            "late worker": self._late_worker,
            "overloaded manager": self._overload,
        }[self.trouble]
        world.at(struck_at(self.trouble), strike)
        return super().run()

    def _leader(self) -> str:
        return next((name for name in self.managers if leads(self.world.hosts[name])), "")

    def _others(self) -> list[str]:
        leader = self._leader()
        return [name for name in self.managers if name != leader]

    # What strikes.

    def _late_voter(self) -> None:
        """One does badly when the leader dies, and the other, which is well, is cut off for so long that both stand."""
        world = self.world
        unwell, well = self._others()
        self._keep_unwell(self._member(unwell), STRUCK_AT + 12 * SECOND, 6)
        self.judge.unwell = unwell
        world.at(STRUCK_AT + 12 * SECOND, partial(setattr, self.judge, "unwell", ""))
        leader = world.hosts[self._leader()]
        leader.crash()
        self._cut(unwell, [well])
        world.after(self._rng.randrange(3000, 4200) * MILLISECOND, partial(self._heal, unwell, [well]))
        world.at(STRUCK_AT + 10 * SECOND, self._must_lead)
        world.at(STRUCK_AT + 12 * SECOND, leader.start)

    def _member(self, name: str) -> ClusterMember:
        member = self.world.hosts[name].node
        assert isinstance(member, ClusterMember)
        return member

    def _all_late(self) -> None:
        """All are late, and the leader dies all the same: there must be one again."""
        world = self.world
        leader = world.hosts[self._leader()]
        for name in self.managers:
            self._keep_unwell(self._member(name), STRUCK_AT + 2 * LEADER_WITHIN_NS, 7)
        world.at(STRUCK_AT + 4 * SECOND, leader.crash)
        world.at(STRUCK_AT + 4 * SECOND + LEADER_WITHIN_NS, self._must_lead)
        world.at(STRUCK_AT + 5 * SECOND + LEADER_WITHIN_NS, leader.start)

    def _keep_unwell(self, member: ClusterMember, until: int, score: int) -> None:
        """Its own measure says so, whatever its probes do."""
        assert member.membership is not None
        if self.world.now < until:
            member.membership.health.score = score
            self.world.after(100 * MILLISECOND, partial(self._keep_unwell, member, until, score))

    def _must_lead(self) -> None:
        if not self._leader():
            self.world.violate("I14", "nobody leads")

    def _silence(self) -> None:
        """The leader hears nobody for longer than a manager may be silent, and shorter than its own lease."""
        world, leader = self.world, self._leader()
        others = [name for name in world.hosts if name != leader]
        self._cut(leader, others)
        world.after(self._rng.randrange(2500, 4500) * MILLISECOND, partial(self._heal, leader, others))

    def _cut(self, name: str, others: list[str]) -> None:
        for other in others:
            self.world.network.cut(name, other)
            self.world.network.cut(other, name)

    def _heal(self, name: str, others: list[str]) -> None:
        for other in others:
            self.world.network.heal(name, other)
            self.world.network.heal(other, name)

    def _deafen(self) -> None:
        """One that does not lead is given jobs, and does nothing about them."""
        self.deaf.deaf = frozenset(self._others())

    def _late_worker(self) -> None:
        """One stands still for longer than its lease, twice in a row. Meanwhile a job comes that needs all workers."""
        host = self.world.hosts["w0"]
        for_ns = self._rng.randrange(5500, 8000) * MILLISECOND
        host.stall(for_ns)
        self.world.after(for_ns + 200 * MILLISECOND, partial(host.stall, 9 * SECOND))

    def _overload(self) -> None:
        name = self._rng.choice(self._others())
        self._keep_overloaded(self.world.hosts[name], STRUCK_AT + 20 * SECOND)
        self.world.after(KNOWN_NS, partial(setattr, self.judge, "overloaded", name))
        self.world.at(STRUCK_AT + 20 * SECOND, partial(setattr, self.judge, "overloaded", ""))

    def _keep_overloaded(self, host: Host, until: int) -> None:
        manager = manager_on(host)
        assert manager is not None
        is_over = self.world.now >= until
        manager.shedding.level = Level(0) if is_over else Level.OVERLOADED
        if not is_over:
            self.world.after(SECOND, partial(self._keep_overloaded, host, until))


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    """The history of this seed, finished and judged."""
    return Story(seed, verbose).run()


def describe(seed: int) -> list[str]:
    return [f"{trouble_of(seed)}, from {STRUCK_AT // SECOND} s on", *plan_of(seed).lines()]
