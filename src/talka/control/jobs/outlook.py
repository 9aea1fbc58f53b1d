"""When cores of running jobs come back: a reservation for the job that is next, and when those that wait may start.

EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", 1995) without its second rule, that a long job may have
cores which the next one will not need: cores come back one by one, and the next job may start with the first of them.

Decision: docs/decisions/0064-cores-come-back-one-by-one.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from talka.cluster.leases import margin_ns
from talka.control.load.cores_back import TimeLeft
from talka.units import SECOND
from talka.wire.jobs import CoresBack

TOLD_LATE_NS: Final = SECOND
"""How long it may take until the leader is told when cores come back: so much earlier they may come."""


class _Return(msgspec.Struct, frozen=True):
    cores: int
    least_at: int
    likely_at: int | None
    most_at: int | None

    def expected_at(self, now: int) -> int | None:
        """None: it is not known, or it should have been."""
        if self.likely_at is not None and now <= self.likely_at:
            return self.likely_at
        return self.most_at if self.likely_at is not None and self.most_at is not None and now <= self.most_at else None


class Waiting(msgspec.Struct, frozen=True):
    """A job in the queue, as far as it matters to those behind it."""

    job: str
    least: int
    """The fewest cores with which it starts."""
    likely_ns: int | None
    """How long it takes then; None: that is not known."""


class Outlook:
    """Call `begun` for each job that starts, `told` for what its owner says, and `forget` when it has ended."""

    def __init__(self) -> None:
        self._returns: dict[str, list[_Return]] = {}

    def knows(self, job: str) -> bool:
        return job in self._returns

    def begun(self, now: int, job: str, cores: int, time: TimeLeft) -> None:
        self._returns[job] = [_return(now, cores, time.least_ns, time.likely_ns, time.most_ns)]

    def told(self, now: int, job: str, back: Iterable[CoresBack]) -> None:
        self._returns[job] = [
            _return(
                now, one.cores, one.least_ns, _known(one.likely_ns), None if one.likely_ns < 0 else _known(one.most_ns)
            )
            for one in back
        ]

    def forget(self, job: str) -> None:
        self._returns.pop(job, None)

    def endless(self, now: int, reserved: Mapping[str, int]) -> str:
        """A job of which nobody knows when its cores come back; empty: there is none."""
        return next((job for job in reserved if any(one is None for _, one in self._expected(now, job, 1))), "")

    def earliest(self, now: int, free: int, least: int, reserved: Mapping[str, int]) -> int | None:
        """Before this instant there are no `least` cores, of which `free` are there now, if no plan ends early. None:
        there never are. `reserved`: cores of each job that runs."""
        returns = [pair for job, cores in reserved.items() for pair in self._soonest(now, job, cores)]
        at = now
        for back_at, cores in sorted(returns):
            if free >= least:
                break
            at, free = max(now, back_at), free + cores
        return at if free >= least else None

    def _soonest(self, now: int, job: str, cores: int) -> list[tuple[int, int]]:
        """Of cores about which nothing was told it is now."""
        found: list[tuple[int, int]] = []
        for one in sorted(self._returns.get(job, ()), key=lambda one: one.least_at):
            found.append((one.least_at, min(cores, one.cores)))
            cores -= found[-1][1]
        return [*found, (now, cores)]

    def _expected(self, now: int, job: str, cores: int) -> list[tuple[int, int | None]]:
        found: list[tuple[int, int | None]] = []
        for one in self._returns.get(job, ()):
            found.append((min(cores, one.cores), one.expected_at(now)))
            cores -= found[-1][0]
        return [*found, (cores, None)] if cores else found

    def starts(
        self, now: int, free: int, total: int, waiting: Sequence[Waiting], reserved: Mapping[str, int]
    ) -> dict[str, int]:
        """When each of those that wait is expected to start, one after the other. Those of which it is not known are
        left out, and all behind them."""
        returns = [
            (at, cores)
            for job, held in reserved.items()
            for cores, at in self._expected(now, job, held)
            if at is not None
        ]
        heapify(returns)
        found: dict[str, int] = {}
        at = now
        for one in waiting:
            while free < one.least and returns:
                back_at, cores = heappop(returns)
                at, free = max(at, back_at), free + cores
            if one.least > min(free, total):
                break
            found[one.job] = at
            free -= one.least
            if one.likely_ns is not None:
                heappush(returns, (at + one.likely_ns, one.least))
        return found


def _return(now: int, cores: int, least_ns: int, likely_ns: int | None, most_ns: int | None) -> _Return:
    # Clocks of workers may be faster than this one.
    least_ns = max(0, least_ns - margin_ns(least_ns) - TOLD_LATE_NS)
    return _Return(
        cores,
        now + least_ns,
        None if likely_ns is None else now + likely_ns,
        None if most_ns is None else now + most_ns,
    )


def _known(ns: int) -> int | None:
    return None if ns < 0 else ns
