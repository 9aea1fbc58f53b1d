"""What to do with a worker, by three signals that say different things.

Liveness: it beats. Readiness: it would take work. Progress: what it has been given advances, measured by counters and
not by completions. A busy worker is not a sick one: load speaks to readiness alone.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import product
from typing import Final, Literal

from talka.errors import Invalid
from talka.units import SECOND

SILENT_NS: Final = 3 * SECOND
"""Three beats missed."""
STALLED_NS: Final = 10 * SECOND
STUCK_NS: Final = 30 * SECOND
LOAD_LIMIT_PERCENT: Final = 95


class ProgressSignal(Enum):
    IDLE = "idle"
    """Nothing to do."""
    PROGRESSING = "progressing"
    STALLED = "stalled"
    """Something to do, and its counters stand still."""
    STUCK = "stuck"
    """Still so after a long time."""


class Decision(Enum):
    ROUTE = "route"
    """Give it work."""
    HOLD = "hold"
    """Give it no new work."""
    INVESTIGATE = "investigate"
    """Give it no new work and look closer."""
    DRAIN = "drain"
    """Let it end what it has; give it nothing more."""
    EVICT = "evict"
    """Give it up as soon as its lease is surely over."""


RULES: Final[tuple[tuple[bool | None, bool | None, ProgressSignal | None, Decision], ...]] = (
    # live, ready, progress; None: whatever it is. The first row that fits decides.
    (False, None, None, Decision.EVICT),
    (True, None, ProgressSignal.STUCK, Decision.DRAIN),
    (True, False, None, Decision.HOLD),
    (True, True, ProgressSignal.STALLED, Decision.INVESTIGATE),
    (True, True, None, Decision.ROUTE),
)


def _by_rules(is_live: bool, is_ready: bool, progress: ProgressSignal) -> Decision:
    return next(
        decision
        for live, ready, advance, decision in RULES
        if live in (None, is_live) and ready in (None, is_ready) and advance in (None, progress)
    )


DECISIONS: Final[dict[tuple[bool, bool, ProgressSignal], Decision]] = {
    signals: _by_rules(*signals) for signals in product((True, False), (True, False), ProgressSignal)
}
"""The rules, spelled out for every combination."""


def is_ready(state: Literal["healthy", "degraded", "draining"], load_percent: int, *, is_trusted: bool) -> bool:
    """Whether a worker would take work: by what it says of itself, its load, and whether its breaker lets work
    through."""
    return state == "healthy" and is_trusted and load_percent < LOAD_LIMIT_PERCENT


class ProgressWatch:
    """Whether a piece of work advances, by a counter that grows with everything it does.

    Call `saw` with every report while there is something to do, and `rested` when there is nothing. A counter that
    falls is a new count, so it counts as an advance.
    """

    __slots__ = ("_advanced_at", "_counter", "_is_idle")

    def __init__(self) -> None:
        self._advanced_at = 0
        self._counter = 0
        self._is_idle = True

    def saw(self, now: int, counter: int) -> None:
        if self._is_idle or counter != self._counter:
            self._is_idle = False
            self._counter = counter
            self._advanced_at = now

    def rested(self) -> None:
        """It has nothing to do: standing still is no fault."""
        self._is_idle = True

    def progress(self, now: int) -> ProgressSignal:
        if self._is_idle:
            return ProgressSignal.IDLE
        still_ns = now - self._advanced_at
        if still_ns < STALLED_NS:
            return ProgressSignal.PROGRESSING
        return ProgressSignal.STALLED if still_ns < STUCK_NS else ProgressSignal.STUCK


class CorrelatedFailure:
    """Whether so many fell silent so close together that the fault is likelier near the listener than at each of them.

    Evictions then wait for `hold_ns`, once: whoever is silent after that is given up. Safe at any length, because
    waiting never gives a task to two workers.
    """

    __slots__ = ("_hold_ns", "_least", "until", "window_ns")

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
