"""What must hold of handlers that travel with their job."""

from collections.abc import Collection, Sequence

import msgspec

from talka.control.tasks.delivery import worker_of
from talka.testing.handler_cores import RunListener, SimulatedRun
from talka.testing.store_shell import StoreShell, job_numbered, task_at
from talka.testing.world import World
from talka.work.dags.dag import KeptSettings
from talka.work.dags.records import Change, ClaimTask
from tests.sim.checkers.dags import Specs


class CodeRunsWhereItMay(RunListener):
    """D13: an attempt whose handler was brought is given to a worker that accepts code and to no other, and runs in a
    core that loaded this bundle; one of a worker's own handlers runs in a core of the worker's own files."""

    def __init__(self, world: World, shell: StoreShell, specs: Specs, takers: Collection[str]) -> None:
        """`takers`: names of workers that accept code."""
        self.given = 0
        """Attempts whose handlers were brought."""
        self.begun = 0
        self._world = world
        self._shell = shell
        self._records = shell.records
        self._specs = specs
        self._takers = takers
        shell.applied.append(self.applied)

    def applied(self, changes: Sequence[Change], changed: list[int]) -> None:
        for change, count in zip(changes, changed, strict=True):
            if count and isinstance(change, ClaimTask):
                self._on_given(change)

    def _on_given(self, change: ClaimTask) -> None:
        job, task = job_numbered(self._records, change.job), task_at(self._records, (change.job, change.index))
        if job is None or task is None or not self._brought(job.settings, self._specs.tasks[job.id, task.id].handler):
            return
        self.given += 1
        worker = worker_of(change.worker)[0]
        if worker not in self._takers:
            text = f"attempt {change.fence:x} was given to {worker}, which takes no code"
            self._world.violate("D13", f"task {task.id} of job {job.id}: {text}")

    def began(self, run: SimulatedRun) -> None:
        job = self._records.job(run.job)
        if job is None or self._shell.is_lost(run, self._specs.keys[run.job, run.id]):
            return  # it was on its way when the store was replaced, and nobody waits for it
        wanted = self._brought(job.settings, self._specs.tasks[run.job, run.id].handler)
        self.begun += bool(wanted)
        if run.code != wanted:
            text = f"it began in a core of {_named(run.code)}, and its handler is in {_named(wanted)}"
            self._world.violate("D13", f"task {run.id} of job {run.job}, attempt {run.fence:x}: {text}")

    def _brought(self, settings: bytes, handler: str) -> str:
        """Digest of the bundle that a handler came in; empty: it is of the workers' own."""
        bundle = msgspec.json.decode(settings, type=KeptSettings).bundle
        return bundle.digest if bundle is not None and handler in bundle.handlers else ""


def _named(digest: str) -> str:
    return f"the bundle {digest[:12]}" if digest else "its worker's own files"
