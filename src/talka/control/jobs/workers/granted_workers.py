"""The workers a job was granted: which of their cores it may use, who is gone, and who cannot run its tasks.

See docs/decisions/0020-cores-are-granted-per-job.md.
"""

from collections.abc import Mapping

from talka.wire.entries import Grant
from talka.wire.jobs import SpareCores


class GrantedWorkers:
    """Call `update` with the grants of every newer entry. Everything is by the worker's name."""

    def __init__(self, grants: tuple[Grant, ...]) -> None:
        self._grants = grants
        self._ever = frozenset(grant.worker for grant in grants)
        self._unfit: dict[str, None] = {}
        """Workers that declined a task, until the leader has granted other cores in place of theirs."""
        self._given_back: dict[str, int] = {}
        """Cores that are not used any more, until the leader has changed the grants there."""

    def update(self, grants: tuple[Grant, ...]) -> None:
        def of(worker: str, among: tuple[Grant, ...]) -> list[Grant]:
            return [grant for grant in among if grant.worker == worker]

        before, self._grants = self._grants, grants
        self._ever = frozenset(grant.worker for grant in grants)
        self._unfit = {worker: None for worker in self._unfit if of(worker, before) == of(worker, grants)}
        self._given_back = {
            worker: cores for worker, cores in self._given_back.items() if of(worker, before) == of(worker, grants)
        }

    def turn_away(self, worker: str) -> None:
        """The worker cannot run tasks of this job: use none of its cores."""
        self._unfit[worker] = None

    def give_back(self, cores: Mapping[str, int]) -> bool:
        """Use so many cores of each worker no more; whether there are any."""
        for worker, count in cores.items():
            self._given_back[worker] = self._given_back.get(worker, 0) + count
        return bool(cores)

    def spare(self) -> tuple[SpareCores, ...]:
        """What is given back, as the leader is told it."""
        had = self._granted_cores()
        return tuple(
            SpareCores(worker, self.boot_of(worker), had[worker], had[worker] - count)
            for worker, count in self._given_back.items()
        )

    def has_cores(self) -> bool:
        """Whether the job has any, also such as it does not use."""
        return any(self._granted_cores().values())

    def cores(self) -> dict[str, int]:
        """Number of cores that the job may use now, per worker."""
        return {
            worker: cores - self._given_back.get(worker, 0)
            for worker, cores in self._granted_cores().items()
            if worker not in self._unfit
        }

    def _granted_cores(self) -> dict[str, int]:
        cores: dict[str, int] = {}
        for grant in self._grants:
            if not grant.lost:
                cores[grant.worker] = cores.get(grant.worker, 0) + grant.cores
        return cores

    def granted(self) -> list[str]:
        """Workers that are not lost, unfit ones among them."""
        return list(dict.fromkeys(grant.worker for grant in self._grants if not grant.lost))

    def gone(self) -> dict[str, str]:
        """Why each worker was lost that has no other grant."""
        granted = self.granted()
        return {grant.worker: grant.lost for grant in self._grants if grant.lost and grant.worker not in granted}

    def unfit(self) -> list[str]:
        return sorted(self._unfit)

    def was_granted(self, worker: str) -> bool:
        """Whether the job was ever granted cores of this worker."""
        return worker in self._ever

    def boot_of(self, worker: str) -> int:
        """The life of the worker that was granted; 0: none is."""
        return next((grant.boot for grant in self._grants if grant.worker == worker and not grant.lost), 0)
