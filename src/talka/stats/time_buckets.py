"""Times counted by fixed bounds, as Prometheus wants them: cheap to add to, and of one size."""

from bisect import bisect_left
from typing import Final

from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND

BOUNDS_NS: Final = tuple(
    round(bound * MILLISECOND) for bound in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
)


class TimeBuckets:
    def __init__(self, bounds_ns: tuple[int, ...] = BOUNDS_NS) -> None:
        if not bounds_ns or list(bounds_ns) != sorted(set(bounds_ns)):
            raise Invalid(f"bounds of times must grow, unlike {bounds_ns}")
        self._bounds_ns = bounds_ns
        self._counts = [0] * (len(bounds_ns) + 1)
        self.total_ns = 0

    def add(self, time_ns: int) -> None:
        self._counts[bisect_left(self._bounds_ns, time_ns)] += 1
        self.total_ns += time_ns

    def up_to(self) -> list[tuple[float, int]]:
        """(bound in seconds, how many times were not above it); the last bound is endless."""
        counted, found = 0, []
        for bound_ns, count in zip((*self._bounds_ns, None), self._counts, strict=True):
            counted += count
            found.append((float("inf") if bound_ns is None else bound_ns / SECOND, counted))
        return found
