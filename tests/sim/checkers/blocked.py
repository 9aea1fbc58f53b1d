"""What must hold of core processes whose event loop is blocked."""

from collections.abc import Collection
from typing import Final

from talka.testing.core_runs import CoreProcess
from talka.testing.cores import Cores
from talka.testing.world import Observer, World
from talka.units import SECOND
from tests.sim.checkers.jobs import leading_registry

SILENCE_S: Final = 60
EXTENSIONS_S: Final = 30
"""Of one that computes."""
MARGIN_S: Final = 10
QUIET: Final = ("stalled", "stuck")


class BlockedCoresAreReplaced(Observer):
    """T1: a core of a load test that stays blocked is killed once its deadline is over, and its worker takes other work
    meanwhile. What is counted of it is a matter of I6 and I9."""

    def __init__(self, cores: Cores, others: Collection[str] = ()) -> None:
        """`others`: names of workflows that measure nothing. Their deadline is their own."""
        self.told = 0
        """Seconds in which the leader knew of a quiet core."""
        self.beside = 0
        """Shards that began on a worker of which a core had been blocked for long."""
        self._cores = cores
        self._others = others
        self._silent: dict[tuple[CoreProcess, int], int] = {}
        """Seconds that each was blocked while its host ran, each time."""
        self._begun: set[int] = set()

    @property
    def for_good(self) -> int:
        """How many were silent until their deadline was over, or next to."""
        return sum(seconds >= SILENCE_S - 2 for seconds in self._silent.values())

    def on_second(self, world: World) -> None:
        for process in self._cores.blocked:
            self._look(world, process)
        registry = leading_registry(world)
        for life in [] if registry is None else registry.fleet.lives():
            found = [decision.what for decision in life.decisions]
            if not any(what in QUIET for what in found):
                continue
            self.told += 1
            if all(what in QUIET for what in found) and not life.is_silent and not life.is_usable:
                text = f"of which nothing is found but {' and '.join(found)}, is given nothing more"
                world.violate("T1", f"{life.name}, {text}")

    def _look(self, world: World, process: CoreProcess) -> None:
        runs = list(process.runs.values())
        if not runs or world.now >= process.blocked_until or not process.host.is_running:
            return
        time = process, process.blocked_at
        seconds = self._silent[time] = self._silent.get(time, 0) + 1
        is_judged = all(run.arm.workflow not in self._others for run in runs)
        if is_judged and seconds > SILENCE_S + EXTENSIONS_S * process.is_computing + MARGIN_S:
            what = ", ".join(f"attempt {run.attempt} of job {run.arm.job}" for run in runs)
            world.violate("T1", f"a core of {process.host.name} is blocked for {seconds} s and lives: it has {what}")
        for run in self._cores.runs_on(process.host):
            if run.process is not process and run.began_at > process.blocked_at + 10 * SECOND:
                if id(run) not in self._begun:
                    self._begun.add(id(run))
                    self.beside += 1
