"""When dag jobs want to be ticked."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from talka.control.dags.job import DagJob
from talka.units import NEVER

SPARE: Final = 1_000
"""Instants at which nothing is due any more are left where they are until there are as many as jobs, and so many
more."""


class JobTimers:
    """`set` after every step of a job; those that are `due` want their `tick`."""

    def __init__(self, jobs: Mapping[int, DagJob]) -> None:
        """`jobs`: those that there are, by number, as they come and go."""
        self._jobs = jobs
        self._heap: list[tuple[int, int]] = []
        """Instants and numbers, those of jobs that changed their mind included."""

    @property
    def next_at(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def set(self, job: DagJob) -> None:
        if job.next_tick_at < NEVER:
            heappush(self._heap, (job.next_tick_at, job.row.number))
            if len(self._heap) > 2 * len(self._jobs) + SPARE:
                self._heap = [(job.next_tick_at, number) for number, job in self._jobs.items()]
                heapify(self._heap)

    def due(self, now: int) -> list[DagJob]:
        heap, numbers = self._heap, dict[int, None]()
        while heap and heap[0][0] <= now:
            numbers[heappop(heap)[1]] = None
        found = [self._jobs[number] for number in numbers if number in self._jobs]
        return [job for job in found if now >= job.next_tick_at]
