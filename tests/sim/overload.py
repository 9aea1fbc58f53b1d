"""Jobs on a cluster whose managers have too much to do now and then, beside all other faults.

How much each has to do is decided by the world, not measured: it goes up and down all the time, also when all else is
well again, and one manager has too much to do until the end. Workers say of themselves that they have too much to do.
Clients show tokens, so that they are refused what is shed, and ask again; others ask at the doors for whatever there
is.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from talka.control.clients.overload import Level
from talka.control.manager import Manager
from talka.control.member.composite import ClusterMember
from talka.testing.cores import WorkerPart
from talka.testing.host import Host
from talka.testing.world import World
from talka.units import MILLISECOND, SECOND
from talka.wire.security.access import Asker
from tests.sim import jobs
from tests.sim.checkers.jobs import manager_on
from tests.sim.checkers.shedding import NEVER_SHED, SHED, ShedInOrder
from tests.sim.job_clients import Clients, Job, manager_act

FAULT: Final = "overload"
LEVELS: Final = (Level.NORMAL, Level.NORMAL, Level.BUSY, Level.STRESSED, Level.OVERLOADED, Level.OVERLOADED)
LASTS_NS: Final = 3 * SECOND
VISIT_NS: Final = SECOND // 4


class CountedClients(Clients):
    """They show tokens."""

    order: ShedInOrder

    def _is_shed(self, host: Host, manager: Manager, operation: str) -> bool:
        is_shed = manager.shedding.sheds(operation, is_counted=True)
        self.order.asked(self._world, host, operation, is_shed=is_shed)
        return is_shed

    def _asker(self, job: Job, operation: str) -> Asker:
        return Asker(operation, "submitter", f"client {job.errand.client}", f"t{job.errand.client}")


class Story(jobs.Story):
    def __init__(self, plan: jobs.Plan, verbose: Callable[[str], None] | None) -> None:
        super().__init__(plan, verbose, clients=CountedClients)
        assert isinstance(self.clients, CountedClients)
        self.order = self.clients.order = ShedInOrder()
        self.world.observers.append(self.order)
        self._rng = self.world.rng(FAULT)
        self._stays = self._rng.choice(self.managers)

    def run(self) -> World:
        world = self.world
        for name in self.managers:
            world.at(jobs.FAULTS_FROM, partial(self._change, world.hosts[name]))
        for name in world.hosts:
            if name not in self.managers:
                world.at(jobs.FAULTS_FROM, partial(self._change_worker, world.hosts[name]))
        world.at(jobs.FAULTS_FROM, self._visit)
        return super().run()

    def _change(self, host: Host) -> None:
        world = self.world
        level = self._rng.choice(LEVELS)
        if host.name == self._stays and world.now >= jobs.LATE_UNTIL:
            level = Level.OVERLOADED

        def act(manager: Manager, now: int) -> list[object]:
            manager.shedding.level = level
            self.order.set_level(host, level)
            return []

        if manager_act(world, host, host.boot, act) and level > Level.BUSY:
            world.count_fault(FAULT)
        world.after(int(self._rng.expovariate(1.0) * LASTS_NS) + MILLISECOND, partial(self._change, host))

    def _change_worker(self, host: Host) -> None:
        """What it says of itself with its next beat. It goes on as it is."""
        node = host.node
        if isinstance(node, ClusterMember) and isinstance(node.jobs, WorkerPart):
            worker = node.jobs.worker
            worker.set_facts(msgspec.structs.replace(worker.facts, overload=int(self._rng.choice(LEVELS))))
        self.world.after(int(self._rng.expovariate(1.0) * LASTS_NS) + MILLISECOND, partial(self._change_worker, host))

    def _visit(self) -> None:
        """Somebody asks for something, and would be answered or not."""
        world = self.world
        host = world.hosts[self._rng.choice(self.managers)]
        operation = self._rng.choice((*SHED, *NEVER_SHED))
        manager = manager_on(host)
        if manager is not None and host.state == "up":
            is_shed = manager.shedding.sheds(operation, is_counted=True)
            self.order.asked(world, host, operation, is_shed=is_shed)
        world.after(VISIT_NS, self._visit)


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    """The history of this seed, finished and judged."""
    return Story(jobs.plan_of(seed), verbose).run()


def describe(seed: int) -> list[str]:
    return [*jobs.plan_of(seed).lines(), "managers have too much to do now and then, one of them until the end"]
