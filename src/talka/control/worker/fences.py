"""The fences of the jobs a worker has shards of: who may command them, on disk before anything is done.

See docs/decisions/0018-who-may-act-on-a-job.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from talka.cluster.fencing import ZERO, Admission, Fence, Token
from talka.units import NEVER, SECOND
from talka.wire import jobs

PREFIX: Final = "fence/"
IDLE_LIMIT_NS: Final = 600 * SECOND
"""A job without a task is remembered so long: what is still under way to it must find the fence."""
JOBS_LIMIT: Final = 4096
JOBS_KEPT: Final = 2048
"""The next sweep makes room down to these. More than a worker has tasks and commands: none of those gives way."""
SWEEP_EVERY_NS: Final = 10 * SECOND


@dataclass(slots=True)
class _Job:
    fence: Fence
    idle_since_ns: int
    manager: str = ""


class JobFences:
    """For every command call `admit`, and obey it as `cluster.fencing.Fence` says; `key` is where the fence is kept."""

    def __init__(self, now: int, stored: Mapping[str, bytes]) -> None:
        self._jobs: dict[str, _Job] = {}
        for key in sorted(stored):
            if key.startswith(PREFIX):
                self._jobs[key.removeprefix(PREFIX)] = _Job(Fence(stored[key]), now)
        self.next_sweep_at = now + SWEEP_EVERY_NS if self._jobs else NEVER

    def manager(self, job: str) -> str:
        """Who commands the job: whoever sent the command with the highest fence. Empty when nobody has yet."""
        known = self._jobs.get(job)
        return "" if known is None else known.manager

    def highest(self, job: str) -> jobs.Fence:
        known = self._jobs.get(job)
        token = ZERO if known is None else known.fence.highest
        return (token.parent, token.term, token.sequence)

    def is_stale(self, job: str, fence: jobs.Fence) -> bool:
        return fence < self.highest(job)

    def has_room(self, job: str) -> bool:
        return job in self._jobs or len(self._jobs) < JOBS_LIMIT

    def admit(self, now: int, job: str, fence: jobs.Fence) -> Admission:
        """What to do with a command; only where there is room."""
        known = self._jobs.get(job)
        if known is None:
            known = self._jobs[job] = _Job(Fence(None), now)
            self.next_sweep_at = min(self.next_sweep_at, now + SWEEP_EVERY_NS)
        return known.fence.admit(Token(*fence))

    def obeyed(self, job: str, fence: jobs.Fence, sender: str) -> None:
        """A command is carried out."""
        known = self._jobs[job]
        if Token(*fence) == known.fence.highest:
            known.manager = sender

    def persisted(self, job: str, fence: jobs.Fence) -> None:
        self._jobs[job].fence.persisted(Token(*fence))

    def sweep(self, now: int, busy: Iterable[str]) -> list[tuple[str, None]]:
        """What to remove from disk: fences of jobs that have had no task for long. `busy` are those that have one."""
        for job in busy:
            if job in self._jobs:
                self._jobs[job].idle_since_ns = now
        by_age = sorted(self._jobs, key=lambda job: (self._jobs[job].idle_since_ns, job))
        excess = len(by_age) - JOBS_KEPT
        gone = [
            job
            for position, job in enumerate(by_age)
            if now - self._jobs[job].idle_since_ns >= IDLE_LIMIT_NS or position < excess
        ]
        for job in gone:
            del self._jobs[job]
        self.next_sweep_at = now + SWEEP_EVERY_NS if self._jobs else NEVER
        return [(PREFIX + job, None) for job in gone]
