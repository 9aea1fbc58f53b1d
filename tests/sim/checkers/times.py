"""What must hold of the time that attempts get: one rule gives it, for the whole life of an attempt, whichever life
of its manager gives it.

Each checker is an observer of its own. None knows a scenario or a safeguard.
"""

from collections.abc import Sequence

from talka.control.tasks.attempt_time import KeptTime, decoded_time
from talka.testing.handler_cores import RunListener, SimulatedRun
from talka.testing.store_shell import StoreListener, StoreShell
from talka.testing.world import World
from talka.work.dags.records import Change, Complete, PutTime
from talka.work.deadlines import EXTENSIONS_LIMIT
from talka.work.lifecycle import TaskState
from tests.sim.checkers.dags import Specs


class TimesAreKept(RunListener, StoreListener):
    """D14: an attempt is given more time so many times at most, each time no more than before, and is warned once; what
    was given stays given. D15: a task that is put aside when it takes too long is never given up for that."""

    def __init__(self, world: World, shell: StoreShell, specs: Specs) -> None:
        self.granted = 0
        self.warned = 0
        self.spoken: dict[int, None] = {}
        """Numbers of runs that were told anything of their time."""
        self._world = world
        self._shell = shell
        self._specs = specs
        self._kept: dict[int, KeptTime] = {}
        """By fence, of this life of the store."""
        self._since = 0
        """When the store was replaced: what was given before is not in it."""
        shell.applied.append(self.applied)
        shell.listeners.append(self)

    def put_back(self) -> None:
        self._kept = {}
        self._since = self._world.now

    def applied(self, changes: Sequence[Change], changed: list[int]) -> None:
        for change in changes:
            if isinstance(change, PutTime):
                self._check_kept(change)
            elif isinstance(change, Complete) and change.state is TaskState.DEAD and change.cause == "timeout":
                self._check_end(change)

    def _check_kept(self, change: PutTime) -> None:
        row, kept = change.row, decoded_time(change.row.kept)
        known = self._kept.get(row.fence)
        if known is not None:
            before, after = known.record.extensions, kept.record.extensions
            if after[: len(before)] != before:
                self._violate(row.fence, f"it was given {len(before)} times more time, and {len(after)} are kept")
            if known.record.is_warned and (len(after) > len(before) or not kept.record.is_warned):
                self._violate(row.fence, "it was warned, and that is forgotten")
        self._kept[row.fence] = kept

    def _check_end(self, change: Complete) -> None:
        for (job, task), key in self._specs.keys.items():
            if key == (change.job, change.index) and self._specs.jobs.get(change.job) == job:
                if self._specs.tasks[job, task].on_timeout == "pause":
                    self._world.violate("D15", f"task {task} of job {job} is put aside, and was given up")

    def told_time(self, run: SimulatedRun) -> None:
        self.spoken[run.number] = None
        self.granted += bool(run.granted_ms) and not run.warnings
        self.warned += bool(run.warnings)
        if run.began_at < self._since:
            return
        if len(run.granted_ms) > EXTENSIONS_LIMIT:
            self._violate(run.fence, f"it was given more time {len(run.granted_ms)} times")
        if sorted(run.granted_ms, reverse=True) != run.granted_ms:
            self._violate(run.fence, f"it was given {run.granted_ms} ms, which grows")
        if run.warnings > 1:
            self._violate(run.fence, f"it was warned {run.warnings} times")

    def _violate(self, fence: int, text: str) -> None:
        self._world.violate("D14", f"attempt {fence:x}: {text}")
