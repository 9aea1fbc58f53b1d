"""What must hold of cores that jobs wait for, judged by what is on disk, by what workers have, and by who starts when.

Each checker is an observer of its own. None knows a scenario or a safeguard.
"""

import msgspec

from talka.cluster.leadership.news import Elected
from talka.control.jobs.effects import JobEndStored, OwnerChanged, TaskLost, WorkerLost
from talka.control.jobs.registry import Registry
from talka.control.load.allocation import demand
from talka.control.load.cores_back import time_of
from talka.control.member.composite import ClusterMember
from talka.testing.cores import WorkerPart
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.work.lifecycle import JobState, is_final
from tests.sim.checkers.jobs import leading_registry, manager_on


class CoresHaveOneOwner(Observer):
    """Grants that are on disk never come to more cores than a worker has. Where nothing goes wrong no worker has to
    decline what it is given, either."""

    def __init__(self, *, is_calm: bool) -> None:
        self.looks = 0
        self._is_calm = is_calm

    def on_second(self, world: World) -> None:
        registry = leading_registry(world)
        if registry is None:
            return
        granted: dict[tuple[str, int], int] = {}
        for entry in registry.book.written.values():
            if not is_final(entry.state):
                for grant in entry.grants:
                    if not grant.lost:
                        granted[grant.worker, grant.boot] = granted.get((grant.worker, grant.boot), 0) + grant.cores
        for (worker, boot), cores in granted.items():
            life = registry.fleet.life(worker, boot)
            if life is None or life.facts is None or life.is_lost:
                continue
            self.looks += 1
            if cores > life.facts.cores:
                world.violate("one owner", f"{cores} cores of {worker} are granted, and it has {life.facts.cores}")
        if self._is_calm:
            self._check_workers(world)

    def _check_workers(self, world: World) -> None:
        for host in world.hosts.values():
            part = host.node.jobs if isinstance(host.node, ClusterMember) else None
            if isinstance(part, WorkerPart) and part.worker.shards.declined:
                world.violate("one owner", f"{host.name} was given more than it has room for")


class _Pass(msgspec.Struct, frozen=True):
    ahead_of: str
    over_by: int
    """True time by which it has ended, if its estimate holds."""


class NobodyIsDelayed(Observer):
    """Who passes the job that is next has ended when that could start. What nobody could know when it passed is no
    fault of it: a worker that comes or goes, a job that fails or is cancelled, a shard that is lost, another leader."""

    def __init__(self) -> None:
        self.passed = 0
        self.kept = 0
        """Looks at a job that had been passed and waited."""
        self._passes: dict[str, _Pass] = {}
        self._pool = 0

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        match effect:
            case Elected() | WorkerLost() | TaskLost():
                self._passes.clear()
            case JobEndStored(job=job, state=state):
                self._passes.pop(job, None)
                if state is not JobState.COMPLETED:
                    self._passes.clear()
            case OwnerChanged(job=job):
                manager = manager_on(host)
                if manager is not None and manager.registry is not None:
                    self._began(world, manager.registry, job)
            case _:
                pass

    def _began(self, world: World, registry: Registry, job: str) -> None:
        """A job has its cores, or another manager."""
        waiting = registry.queue.jobs()
        entry = registry.entries[job]
        if not waiting or job in self._passes or entry.checkpoint:
            return
        first = registry.entries[waiting[0]]
        if (-first.order.priority, first.number) < (-entry.order.priority, entry.number):
            self.passed += 1
            most_ns = time_of(entry.order).most_ns
            # One that promises no end is to hold up nobody at all.
            self._passes[job] = _Pass(first.job, world.now + (1 << 62 if most_ns is None else most_ns))

    def on_second(self, world: World) -> None:
        registry = leading_registry(world)
        if registry is None:
            return
        total = registry.fleet.total()
        if total != self._pool:
            self._passes.clear()
            self._pool = total
        waiting = registry.queue.jobs()
        if not waiting:
            return
        reserved = registry.fleet.reserved()
        held = sum(
            reserved.get(job, 0)
            for job, one in self._passes.items()
            if one.ahead_of == waiting[0] and world.now <= one.over_by
        )
        least, _ = demand(registry.entries[waiting[0]].order, total)
        free = registry.fleet.total_unreserved()
        self.kept += held > 0
        if free < least <= free + held:
            text = f"{least} cores are wanted by job {waiting[0]}, {free} are free and {held} with those that passed it"
            world.violate("no delay", text)
