"""Whether the clock of the day was set: it is held against one that nobody sets.

Decision: docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

from typing import Final

from talka.units import SECOND

LEAST_NS: Final = SECOND
"""A smaller difference between two looks is drift, which is followed."""


class ClockWatch:
    """Call `look` every second or so, with both clocks read at one instant."""

    def __init__(self, now: int, wall_ns: int) -> None:
        self.offset_ns = wall_ns - now
        """What is to be added to the clock that nobody sets."""
        self._steady_since = now

    def look(self, now: int, wall_ns: int) -> int:
        """By how much it jumped since the last look, in nanoseconds; below 0: it went back; 0: it did not jump."""
        jump_ns = wall_ns - now - self.offset_ns
        self.offset_ns += jump_ns
        if abs(jump_ns) < LEAST_NS:
            return 0
        self._steady_since = now
        return jump_ns

    def is_steady(self, now: int, for_ns: int) -> bool:
        """Whether it has been watched for so long, and did not jump meanwhile."""
        return now - self._steady_since >= for_ns
