"""Each frame of a sender's boot is accepted once, also when the network doubles it or somebody plays it back.

The window: RFC 6479 section 2.
Decision: docs/decisions/0014-sealed-and-alive.md.
"""

from typing import Final

WINDOW: Final = 1024
"""Frames that may overtake each other by up to this many are still told apart."""


class ReplayWindow:
    """The counters seen of one (sender, boot): the highest, and a bit for each of the `WINDOW` below it."""

    __slots__ = ("_floor", "_highest", "_seen", "strict_floor")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0
        self._floor = 0
        self.strict_floor = 0
        """The floor of what must not be heard twice even across a restart. Who asks for it compares."""

    def raise_floor(self, floor: int) -> None:
        """From now on what is below counts as seen."""
        self._floor = max(self._floor, floor)

    def admit(self, counter: int) -> bool:
        """Whether this counter is new. One below the window counts as seen: it can no longer be told."""
        if counter < self._floor:
            return False
        ahead = counter - self._highest
        if ahead > 0:
            self._seen = ((self._seen << ahead) | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            self._highest = counter
            return True
        if -ahead >= WINDOW:
            return False
        bit = 1 << -ahead
        if self._seen & bit:
            return False
        self._seen |= bit
        return True
