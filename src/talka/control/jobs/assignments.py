"""The orders that give workers their attempts, with the variables of the job sealed to the worker.

See docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

import msgspec

from talka.control.jobs.worker_keys import WorkerKeys
from talka.control.load.load_job import LoadJob
from talka.wire.entries import JobEntry
from talka.wire.jobs import Assign


class Assignments:
    def __init__(self, entry: JobEntry, keys: WorkerKeys, *, is_sealed: bool = True) -> None:
        self._entry = entry
        self._keys = keys
        self._is_sealed = is_sealed
        self._waiting: dict[int, None] = {}
        """Attempts whose workers have not told yet which key variables are sealed to."""

    def make(self, job: LoadJob, number: int, boot: int) -> Assign | None:
        """The order for an attempt that runs; `boot` is its worker's life. None: the worker has not told its key yet, and
        the attempt is among `waiting`. `CannotSeal` when it has none that can be used."""
        run, shard, attempt = job.running()[number]
        part, order = shard.shard, self._entry.order
        bundle, variables = order.bundle, b""
        if bundle.env and self._is_sealed:
            sealed = self._keys.seal(bundle.env, self._entry.job, number, attempt.place, boot)
            if sealed is None:
                self._waiting[number] = None
                return None
            bundle, variables = msgspec.structs.replace(bundle, env={}), sealed
        return Assign(
            job=self._entry.job,
            fence=self._entry.fence,
            attempt=number,
            workflow=run.spec.name,
            plan=run.spec.plan,
            first=part.index,
            count=part.count,
            of=part.of,
            iterations_done=shard.done_by_shard,
            values=job.values_for(run),
            settings=order.settings,
            bundle=bundle,
            is_test=run.spec.is_test,
            boot=boot,
            seats=attempt.seats,
            variables=variables,
            life=attempt.life,
        )

    def waiting(self) -> list[int]:
        """Attempts to be tried again: workers beat once a second to every manager, and some may have told their key."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting)
