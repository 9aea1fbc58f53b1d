"""What must hold of jobs that are put aside, judged by what is on disk, by what cores really ran and by the result."""

from typing import Final

import msgspec

from talka.control.jobs.effects import JobEndStored
from talka.testing.core_runs import CoreRun, Ledger
from talka.testing.host import Host
from talka.testing.world import Observer, World
from talka.units import SECOND
from talka.wire.entries import JobEntry
from talka.work.lifecycle import JobState
from tests.sim.checkers.jobs import Document, blob_of, leading_registry

LAST_HEARD_NS: Final = 12 * SECOND


class PausedJobsStandStill(Observer):
    """T3: of a paused job nothing runs and nothing is kept busy; resumed, it does what was left, and that once."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.paused: dict[str, int] = {}
        """How often each job was paused, as far as anybody looked."""
        self.looks = 0
        self.completed: dict[str, int] = {}
        """Iterations of each job that completed."""
        self._world = world
        self._ledger = ledger
        self._since: dict[str, int] = {}
        self._states: dict[str, JobState] = {}
        self._resumes: dict[str, int] = {}
        self._in_all: dict[tuple[str, str], int] = {}

    def ran(self, run: CoreRun) -> None:
        """A core has started iterations just now."""
        entry = self._written(self._world).get(run.arm.job)
        if entry is not None and entry.state is JobState.PAUSED:
            self._world.violate("T3", f"job {entry.job} is paused, and {run.host.name} starts iterations of it")

    def on_second(self, world: World) -> None:
        for job, entry in self._written(world).items():
            for one in entry.order.workflows:
                if one.plan.iterations_per_vu is not None:
                    self._in_all[job, one.name] = one.plan.vus * one.plan.iterations_per_vu
            before = self._states.get(job)
            self._states[job] = entry.state
            if entry.resumes < self._resumes.get(job, 0):
                world.violate("T3", f"job {job} was resumed {self._resumes[job]} times, and now {entry.resumes}")
            self._resumes[job] = entry.resumes
            if entry.state is not JobState.PAUSED:
                continue
            self.looks += 1
            self.paused[job] = self.paused.get(job, 0) + (before is not JobState.PAUSED)
            since = self._since[job] if before is JobState.PAUSED else world.now
            self._since[job] = since
            for run in self._ledger.alive(job):
                # One that got ready and never began may not have heard that it is over.
                if run.is_working or (run.host.is_running and world.now - since > LAST_HEARD_NS):
                    world.violate("T3", f"job {job} is paused, and core {run.number} of {run.host.name} lives")
            cores = sum(grant.cores for grant in entry.grants if not grant.lost)
            if cores:
                world.violate("T3", f"job {job} is paused, and has {cores} cores")

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is not JobEndStored or not effect.result:
            return
        content = blob_of(world, effect.result)
        if content is None:
            return  # I6 says so
        document = msgspec.json.decode(content, type=Document)
        for workflow, started in document.started.items():
            in_all = self._in_all.get((effect.job, workflow))
            if in_all is None:
                continue
            if started > in_all or (started < in_all and effect.state is JobState.COMPLETED):
                text = f"{started} iterations count, and its plan has {in_all}"
                world.violate("T3", f"job {effect.job}, {workflow}, is {effect.state}: {text}")
        if effect.state is JobState.COMPLETED:
            self.completed[effect.job] = sum(document.started.values())

    @staticmethod
    def _written(world: World) -> dict[str, JobEntry]:
        registry = leading_registry(world)
        return {} if registry is None else registry.book.written
