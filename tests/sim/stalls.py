"""Dag jobs of one manager that stands still while a worker dies: whom it has heard it gives up with the lease.

The grace that workers have without their only manager is for those that this process never heard.
"""

from functools import partial
from typing import Final

from talka.testing.world import World
from talka.units import MILLISECOND, SECOND
from tests.sim import dags
from tests.sim.checkers.jobs import manager_on

DEAD: Final = "w0"
STRUCK_AT: Final = 10 * SECOND
STALLS_MS: Final = (1000, 2500, 9000)
"""Shorter than a lease of leadership, longer than it, and longer than a lease of workers."""
GIVEN_UP_WITHIN: Final = 12 * SECOND
"""Of the manager's return: an election, and a lease of workers with its margin."""


class Story(dags.Story):
    def __init__(self, seed: int) -> None:
        super().__init__(dags.plan_of(seed, classes=()), None)
        self._stall_ns = STALLS_MS[seed % len(STALLS_MS)] * MILLISECOND

    def run(self) -> World:
        world, dead = self.world, self.world.hosts[DEAD]
        world.at(STRUCK_AT, partial(self.manager.stall, self._stall_ns))
        world.at(STRUCK_AT + 200 * MILLISECOND, partial(dead.crash))
        world.at(STRUCK_AT + self._stall_ns + GIVEN_UP_WITHIN, self._look)
        world.at(dags.CALM_FROM, partial(dead.start))
        return super().run()

    def _look(self) -> None:
        manager = manager_on(self.manager)
        assert manager is not None and manager.registry is not None
        life = manager.registry.fleet.life(DEAD)
        # Forgotten: the leader before it stood still had no tasks there, and nothing is waited for.
        if life is not None and not life.is_lost:
            self.world.violate("given up", f"{DEAD} died, was heard before, and is {life.state}")


def run(seed: int) -> World:
    return Story(seed).run()
