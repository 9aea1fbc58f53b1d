"""Jobs on a cluster whose managers were told different leases of workers, and whose lease is changed meanwhile.

Like `jobs`, with two more kinds of trouble: a manager that is told another lease than the cluster has is stopped, as
its node stops it, and started again by somebody who read the sentence; and somebody has the lease changed again and
again, asking whichever manager, while faults strike: in every second history, for a change hides what a difference
does.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from talka.cluster.leadership.lease_terms import LeaseDiffers, OwnLease
from talka.control.jobs.effects import LeaseChanged
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import MILLISECOND, SECOND
from talka.wire.manager_calls import SetLease
from tests.sim import jobs
from tests.sim.job_clients import manager_act

LEASES_NS: Final = (SECOND, 2 * SECOND, 5 * SECOND, 20 * SECOND)
CHANGE_EVERY_NS: Final = 6 * SECOND


def told_of(plan: jobs.Plan) -> dict[str, OwnLease]:
    """What each manager is told when it first starts: at least two differ."""
    rng = Random(f"{plan.seed}:leases")
    drawn = [rng.choice(LEASES_NS) for _ in range(plan.managers)]
    if len(set(drawn)) == 1:
        drawn[0] = LEASES_NS[(LEASES_NS.index(drawn[0]) + 1) % len(LEASES_NS)]
    return {f"m{index}": OwnLease(ns, "--lease") for index, ns in enumerate(drawn)}


def is_changed(seed: int) -> bool:
    return seed % 2 == 0


class Operator(Observer):
    """Reads what a manager says that was stopped, and has the lease changed."""

    def __init__(self, world: World, told: dict[str, OwnLease], managers: tuple[str, ...]) -> None:
        self.refused: dict[str, str] = {}
        self.begun = self.held = 0
        self._told = told
        self._managers = managers
        self._rng = world.rng("operator")

    def begin(self, world: World) -> None:
        world.at(jobs.FAULTS_FROM, partial(self._change, world))

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if isinstance(effect, LeaseDiffers):
            self.refused[host.name] = effect.text
            del self._told[host.name]
            host.crash()
            world.after(self._rng.randrange(500, 3000) * MILLISECOND, partial(_start, host))
        elif isinstance(effect, LeaseChanged):
            self.begun += effect.next_ns > 0
            self.held += effect.next_ns == 0

    def _change(self, world: World) -> None:
        if world.now >= jobs.CALM_FROM:
            return
        lease_ns = self._rng.choice(LEASES_NS)
        host = world.hosts[self._rng.choice(self._managers)]
        call = SetLease(lease_ns, "talka cluster lease")
        manager_act(world, host, host.boot, lambda manager, now: manager.call(now, call)[1])
        world.after(int(self._rng.expovariate(1.0) * CHANGE_EVERY_NS) + MILLISECOND, partial(self._change, world))


def _start(host: Host) -> None:
    host.start()


class Story(jobs.Story):
    def __init__(self, plan: jobs.Plan, verbose: Callable[[str], None] | None) -> None:
        told = told_of(plan)
        super().__init__(plan, verbose, told)
        self.operator = Operator(self.world, told, self.managers)
        self.world.observers.append(self.operator)
        if is_changed(plan.seed):
            self.operator.begin(self.world)


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    """The history of this seed, finished and judged."""
    return Story(jobs.plan_of(seed), verbose).run()


def describe(seed: int) -> list[str]:
    plan = jobs.plan_of(seed)
    told = ", ".join(f"{name} {own.ns / SECOND:.0f} s" for name, own in told_of(plan).items())
    return [
        *plan.lines(),
        f"leases of workers as managers are told them: {told}" + (", changed" if is_changed(seed) else ""),
    ]
