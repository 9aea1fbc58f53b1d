"""Workers that fall silent, and whether the fault is theirs."""

from collections.abc import Sequence
from typing import Final

from talka.errors import Invalid
from talka.units import SECOND

SILENT_NS: Final = 3 * SECOND
"""Three beats missed."""


class CorrelatedFailure:
    """Whether so many fell silent so close together that the fault is likelier near the listener than at each of them.

    Evictions then wait for `hold_ns`, once: whoever is silent after that is given up. Safe at any length, because
    waiting never gives a task to two workers.
    """

    def __init__(self, *, window_ns: int = 10 * SECOND, hold_ns: int = 10 * SECOND, least: int = 3) -> None:
        if window_ns < 0 or hold_ns < 1 or least < 1:
            raise Invalid(
                "a correlated failure needs window_ns of at least 0, hold_ns and least of at least 1, "
                f"not {window_ns}, {hold_ns} and {least}"
            )
        self.window_ns = window_ns
        """So close together is one failure."""
        self._hold_ns = hold_ns
        self._least = least
        self.until: int | None = None
        """When the hold ends or has ended; None outside of a correlated failure."""

    def holds(self, now: int, silent_since: Sequence[int], known: int, *, is_due: bool) -> bool:
        """Whether evictions wait. Ask at every look at the fleet; a hold begins when the first eviction is due.

        `silent_since` says when each silent one was last heard, `known` how many there are in all. Both count those
        that were given up at most `window_ns` ago, or so long before the hold began: the fault may be the same.
        """
        if not self._is_correlated(silent_since, known):
            self.until = None
            return False
        if self.until is None:
            if not is_due:
                return False
            self.until = now + self._hold_ns
        return now < self.until

    def _is_correlated(self, silent_since: Sequence[int], known: int) -> bool:
        needed = max(self._least, known // 2 + 1)
        if len(silent_since) < needed:
            return False
        ordered = sorted(silent_since)
        return any(last - first <= self.window_ns for first, last in zip(ordered, ordered[needed - 1 :], strict=False))
