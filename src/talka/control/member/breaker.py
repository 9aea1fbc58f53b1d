"""Leaves alone what keeps failing, and tries it again now and then."""

from collections import deque
from enum import Enum

from talka.errors import Invalid
from talka.units import SECOND


class BreakerState(Enum):
    CLOSED = "closed"
    """Calls go through."""
    OPEN = "open"
    """No call goes through until it is time for a probe."""
    HALF_OPEN = "half-open"
    """One call is under way as a probe; its outcome decides."""


class Breaker:
    """Opens after `failures` within `window_ns`, and lets one probe through every `probe_after_ns`.

    Call `allows` before a call: True is a permission for this one call, so ask once. Then say `succeeded` or `failed`.
    A probe whose outcome is never told is given up after `probe_after_ns`, and another is allowed.
    """

    __slots__ = ("_failed_at", "_probe_after_ns", "_waits_from", "_window_ns", "state")

    def __init__(self, *, failures: int = 3, window_ns: int = 30 * SECOND, probe_after_ns: int = 10 * SECOND) -> None:
        if failures < 1 or window_ns < 1 or probe_after_ns < 1:
            raise Invalid(
                "a breaker needs failures, window_ns and probe_after_ns of at least 1, "
                f"not {failures}, {window_ns} and {probe_after_ns}"
            )
        self.state = BreakerState.CLOSED
        # As many as decide: the oldest of them says whether all are within the window.
        self._failed_at: deque[int] = deque(maxlen=failures)
        self._window_ns = window_ns
        self._probe_after_ns = probe_after_ns
        self._waits_from = 0

    def allows(self, now: int) -> bool:
        """Whether a call may be made now. When not closed, True hands out the probe."""
        if self.state is BreakerState.CLOSED:
            return True
        if now - self._waits_from < self._probe_after_ns:
            return False
        self.state = BreakerState.HALF_OPEN
        self._waits_from = now
        return True

    def succeeded(self, now: int) -> None:
        """A call went well. Only the probe's success closes: one that began before the breaker opened proves little."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.CLOSED
            self._failed_at.clear()

    def failed(self, now: int) -> None:
        """A call failed. Failures of calls that began before the breaker opened do not prolong its wait."""
        if self.state is BreakerState.OPEN:
            return
        failed_at = self._failed_at
        failed_at.append(now)
        is_full = len(failed_at) == failed_at.maxlen
        if self.state is BreakerState.HALF_OPEN or (is_full and now - failed_at[0] <= self._window_ns):
            self.state = BreakerState.OPEN
            self._waits_from = now

    def retry_in_ns(self, now: int) -> int:
        """How long until a call may be allowed; 0 when it may now."""
        if self.state is BreakerState.CLOSED:
            return 0
        return max(0, self._waits_from + self._probe_after_ns - now)
