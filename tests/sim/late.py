"""Jobs that run longer than they may, and managers that fall while they give them more time or have warned them.

One seed is one history, as in `jobs`.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND
from tests.sim import jobs
from tests.sim.checkers.deadlines import MoreTimeIsGivenOnce
from tests.sim.checkers.jobs import manager_on
from tests.sim.job_orders import late

WORKERS: Final = (1, 2, 1)


class OwnerFalls(Observer):
    """Crashes the manager that leads a job, once, as soon as it sees there what it waits for."""

    def __init__(self, story: jobs.Story, is_due: Callable[[Host], bool]) -> None:
        self.fell = ""
        self._story = story
        self._is_due = is_due
        story.world.observers.append(self)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if self.fell or manager_on(host) is None or not self._is_due(host):
            return
        self.fell = host.name
        world.after(1, host.crash)
        world.after(4 * SECOND, host.start)


def stands(host: Host, *, extensions: int, is_warned: bool) -> bool:
    """A manager leads a job that was given more time so often, or was warned."""
    manager = manager_on(host)
    for led in [] if manager is None else manager.led.values():
        run = None if led.job is None else led.job.workflows.get("Late")
        deadline = None if run is None else run.deadline
        if deadline is not None and deadline.is_warned >= is_warned and len(deadline.extensions) >= extensions:
            return True
    return False


class LateStory(jobs.Story):
    def __init__(self, seed: int, verbose: Callable[[str], None] | None = None) -> None:
        """Half of the seeds have the faults that they draw, too."""
        classes = () if seed // 4 % 2 else jobs.plan_of(seed).classes
        super().__init__(jobs.plan_for(seed, (late(0, at_ns=3 * SECOND),), WORKERS, classes=classes), verbose)
        self.deadlines = MoreTimeIsGivenOnce(self.cores)
        self.world.observers.append(self.deadlines)
        moment = seed % 4
        self.owner = OwnerFalls(self, partial(stands, extensions=moment, is_warned=not moment))


def run(seed: int, *, verbose: Callable[[str], None] | None = None) -> World:
    return LateStory(seed, verbose).run()
