"""Jobs on a cluster whose managers and workers stand in several zones: workers fetch bundles from near managers.

Like `jobs`, with managers that crash and are cut off; links lose nothing, and disks are quick, so that a manager is
silent only when something is wrong with it.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from talka.control.member.peer_pool import Place
from talka.testing.world import World
from tests.sim import jobs
from tests.sim.checkers.searching import NearIsAskedFirst

CLASSES: Final = ("crash", "partition", "isolation")
ZONES: Final = (Place("z1", "d1", "r1"), Place("z2", "d1", "r1"), Place("z1", "d2", "r1"), Place("z1", "d1", "r2"))


def plan_of(seed: int) -> jobs.Plan:
    # In every second history nothing goes wrong.
    return jobs.plan_of(seed, classes=CLASSES if seed % 2 else ())


def places_of(plan: jobs.Plan) -> dict[str, Place]:
    rng = Random(f"{plan.seed}:zones")
    names = [*(f"m{number}" for number in range(plan.managers)), *(f"w{number}" for number in range(len(plan.cores)))]
    return {name: rng.choice(ZONES) for name in names}


class Story(jobs.Story):
    def __init__(self, plan: jobs.Plan, verbose: Callable[[str], None] | None = None) -> None:
        places = places_of(plan)
        super().__init__(plan, verbose, places=places)
        self.near = NearIsAskedFirst(self.world, places)
        self.world.observers.append(self.near)


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    """The history of this seed, finished and judged."""
    return Story(plan_of(seed), verbose).run()


def describe(seed: int) -> list[str]:
    plan = plan_of(seed)
    return [
        *plan.lines(),
        ", ".join(
            f"{name} in {'/'.join((place.region, place.datacenter, place.zone))}"
            for name, place in places_of(plan).items()
        ),
    ]
