"""Attempts that were lost with their workers, until something takes their place.

The last counts of a lost attempt are stored first; then the rest of its plan waits for cores, but not for ever.
See docs/decisions/0003-shards-and-lost-cores.md and 0020-cores-are-granted-per-job.md.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from talka.control.load.load_job import LoadJob
from talka.units import SECOND

REPLACE_WAIT_NS: Final = 300 * SECOND
"""How long the rest of a lost attempt waits for cores, at most: a plan that is over before waits for none."""


class _Loss(msgspec.Struct):
    cause: str
    since: int
    is_stored: bool
    """A majority of disks has its last counts, or it has none."""


class Losses:
    """`attempt in losses`: it is lost, and the load job was not told yet."""

    def __init__(self) -> None:
        self._losses: dict[int, _Loss] = {}

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._losses

    def add(self, now: int, attempt: int, cause: str, *, is_stored: bool) -> None:
        self._losses[attempt] = _Loss(cause, now, is_stored)

    def stored(self, attempt: int) -> None:
        """The last counts of this attempt are on a majority of disks."""
        if attempt in self._losses:
            self._losses[attempt].is_stored = True

    def forget(self, attempt: int) -> None:
        self._losses.pop(attempt, None)

    def clear(self) -> None:
        self._losses.clear()

    def are_all(self, attempts: Iterable[int]) -> bool:
        """Whether each of these is lost."""
        return all(attempt in self._losses for attempt in attempts)

    def due(self, now: int, job: LoadJob) -> Iterator[tuple[int, str]]:
        """Attempts, and the causes of their losses, that the load job is to be told of now: there are cores for the
        rest of their plans, or nothing waits for any. Tell it of each before the next is drawn: it takes cores."""
        for attempt in [attempt for attempt, loss in self._losses.items() if loss.is_stored]:
            loss = self._losses.get(attempt)
            if loss is None or self._waits(now, job, attempt, loss):
                continue
            del self._losses[attempt]
            if attempt in job.attempts:
                yield attempt, loss.cause

    def _waits(self, now: int, job: LoadJob, attempt: int, loss: _Loss) -> bool:
        if attempt not in job.attempts:
            return False
        run, shard, _ = job.attempts[attempt]
        length_ns = shard.shard.plan.length_ns
        is_over = length_ns is not None and run.origin_ns > 0 and now >= run.origin_ns + length_ns
        is_wanted = not run.stopped_ns and not job.is_stopping and not is_over
        return is_wanted and job.room_besides(attempt) < len(shard.left) and now - loss.since < REPLACE_WAIT_NS
