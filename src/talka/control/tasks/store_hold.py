"""Who may write to a store that one manager has at a time: by what each sees itself, never by what a clock of the day
says.

The holder renews its lease again and again. Whoever wants it looks on, and takes it when nothing stirred for a whole
lease and a margin. Clocks of two processes are never compared, and both may run fast, slow or stand still: what decides
in the end is the epoch, which is looked up within every transaction.

Decision: docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

from typing import Final, TypeAlias

from talka.errors import Invalid
from talka.units import SECOND

LEASE_NS: Final = 10 * SECOND
RENEW_NS: Final = 2 * SECOND
MARGIN_NS: Final = 2 * SECOND
"""More than the lease, since the two count it by clocks of their own."""
LOOK_NS: Final = SECOND

Mark: TypeAlias = tuple[int, int]
"""Epoch and beat of a lease: another with every renewal."""


class Vigil:
    """Of one who wants the lease. Call `look` about every `look_ns`.

    A longer time between two looks counts for no more than that: this process, or the whole machine, stood still, and
    the holder may have too.
    """

    def __init__(self, *, silence_ns: int = LEASE_NS + MARGIN_NS, look_ns: int = LOOK_NS) -> None:
        if not 0 < look_ns <= silence_ns:
            raise Invalid(f"a look every {look_ns} ns cannot tell a silence of {silence_ns} ns")
        self.has_stirred = False
        """Its holder lives: it has renewed before our eyes."""
        self._silence_ns = silence_ns
        self._look_ns = look_ns
        self._mark: Mark | None = None
        self._looked_at = 0
        self._silent_ns = 0

    @property
    def left_ns(self) -> int:
        """For how long it must be looked on at least."""
        return self._silence_ns - self._silent_ns

    def look(self, now: int, mark: Mark) -> bool:
        """Whether the lease may be taken, if it is still as it is seen now."""
        if mark != self._mark:
            self.has_stirred = self._mark is not None
            self._mark = mark
            self._silent_ns = 0
        else:
            self._silent_ns += min(max(now - self._looked_at, 0), self._look_ns)
        self._looked_at = now
        return self._silent_ns >= self._silence_ns


class Hold:
    """Of one who has the lease: until when it may be sure of it."""

    def __init__(self, now: int, lease_ns: int = LEASE_NS) -> None:
        self._lease_ns = lease_ns
        self._until = now + lease_ns

    def renewed(self, asked_at: int) -> None:
        """It was renewed, or seen to be ours; that was asked at this instant."""
        self._until = max(self._until, asked_at + self._lease_ns)

    def is_over(self, now: int) -> bool:
        return now >= self._until
