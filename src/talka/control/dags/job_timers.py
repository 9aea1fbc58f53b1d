"""When dag jobs want to be ticked."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from talka.control.dags.job import DagJob
from talka.units import NEVER


class JobTimers:
    """`set` after every step of a job; those that are `due` want their `tick`."""

    def __init__(self, jobs: Mapping[int, DagJob], spare: int) -> None:
        """`jobs`: those that there are, by number, as they come and go. So many instants may be `spare`."""
        self._spare = spare
        self._jobs = jobs
        self._heap: list[tuple[int, int]] = []
        """Instants and numbers, those of jobs that changed their mind included."""

    @property
    def next_at(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def set(self, job: DagJob) -> None:
        if job.next_tick_at < NEVER:
            heappush(self._heap, (job.next_tick_at, job.row.number))
            if len(self._heap) > 2 * len(self._jobs) + self._spare:
                self._heap = [(job.next_tick_at, number) for number, job in self._jobs.items()]
                heapify(self._heap)

    def due(self, now: int) -> list[DagJob]:
        heap, numbers = self._heap, dict[int, None]()
        while heap and heap[0][0] <= now:
            numbers[heappop(heap)[1]] = None
        found = [self._jobs[number] for number in numbers if number in self._jobs]
        return [job for job in found if now >= job.next_tick_at]
