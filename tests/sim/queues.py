"""Jobs of all sizes that queue for few cores: they come back one by one, and small jobs pass large ones that wait.

One seed is one history. In every second one nothing goes wrong and nobody cancels: there plans are over when they say.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from talka.testing.world import World
from talka.units import MILLISECOND, SECOND
from tests.sim import jobs
from tests.sim.checkers.cores import CoresHaveOneOwner, NobodyIsDelayed
from tests.sim.job_orders import queued

POOLS: Final = ((4,), (2, 2), (3, 3), (1, 2, 4), (6, 2))
ENDS_LATEST: Final = 700 * SECOND
"""Jobs run for a minute and a half, and some are as large as the pool."""


def plan_of(seed: int) -> jobs.Plan:
    rng = Random(f"{seed}:queues")
    cores = rng.choice(POOLS)
    is_calm = seed % 2 == 0
    drawn = jobs.plan_of(seed)
    errands = tuple(
        queued(
            rng,
            number,
            size=size,
            longest_s=longest_s,
            client=rng.randrange(2),
            at_ns=rng.randrange(4000 + 2000 * min(number, 3), 12_000 + 4000 * number) * MILLISECOND,
            is_cancelled=not is_calm and rng.randrange(5) == 0,
        )
        for number, (size, longest_s) in enumerate(_sizes(rng, sum(cores)))
    )
    return jobs.plan_for(seed, errands, cores, classes=() if is_calm else drawn.classes)


def _sizes(rng: Random, pool: int) -> list[tuple[int, int]]:
    """Cores and seconds of each job: one that leaves little for others, one that waits for it, and small ones."""
    first = (pool - rng.randrange(1, 1 + pool // 2), 120)
    large = (rng.randrange(pool // 2 + 1, pool + 1), 20)
    others = [(rng.choice((1, 1, 2, pool // 2, pool)), rng.choice((4, 8, 60))) for _ in range(rng.randrange(2, 6))]
    return [first, large, *others]


class Story(jobs.Story):
    ends_latest = ENDS_LATEST

    def __init__(self, plan: jobs.Plan, verbose: Callable[[str], None] | None) -> None:
        super().__init__(plan, verbose)
        self.owners = CoresHaveOneOwner(is_calm=not plan.classes)
        self.delays = NobodyIsDelayed()
        self.world.observers += [self.owners, self.delays]


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    """The history of this seed, finished and judged."""
    return Story(plan_of(seed), verbose).run()


def describe(seed: int) -> list[str]:
    return plan_of(seed).lines()
