"""More time for work that is late but advances: ever less of it, and not for ever.

Each extension is half of the one before, and there are five. After the last one, or without progress, comes a warning,
then a grace period in which to save what can be saved, then the end.
"""

from typing import Final, TypeAlias

import msgspec

from talka.errors import Invalid
from talka.units import SECOND

GRANT_LEAST_NS: Final = SECOND
GRANTS_LIMIT: Final = 5
GRACE_NS: Final = 10 * SECOND


class MoreTime(msgspec.Struct, frozen=True):
    """Go on for so much longer."""

    ns: int


class Warned(msgspec.Struct, frozen=True):
    """There will be no more time: so much is left to come to an end."""

    grace_ns: int


class Evict(msgspec.Struct, frozen=True):
    """The time is over."""


Reply: TypeAlias = MoreTime | Warned | Evict
EVICT: Final = Evict()


def grant_ns(base_ns: int, granted: int) -> int:
    """The extension after so many: 15, 7.5, 3.75, 1.875 and 1 s for a base of 30 s."""
    return max(GRANT_LEAST_NS, base_ns >> (granted + 1))


class Deadline:
    """Call `ask` when `until` is near or has come, and whenever the work itself asks for more time.

    `progressed` says whether the work has advanced since the last grant. Work that advances again while it is warned
    gets what grants are left.
    """

    __slots__ = ("_base_ns", "_due", "granted", "until")

    def __init__(self, base_ns: int, until: int) -> None:
        if base_ns < 1:
            raise Invalid(f"a deadline needs base_ns of at least 1, not {base_ns}")
        self._base_ns = base_ns
        self._due: int | None = None
        """When it would have ended without the grace period; None unless it is warned."""
        self.granted = 0
        """Extensions so far."""
        self.until = until
        """When it is time to ask, at the latest; once warned, the end."""

    def ask(self, now: int, progressed: bool) -> Reply:
        if self._due is not None and now >= self.until:
            return EVICT
        if progressed and self.granted < GRANTS_LIMIT:
            ns = grant_ns(self._base_ns, self.granted)
            self.granted += 1
            # The grace period of a warning that is withdrawn does not add up.
            due = self.until if self._due is None else self._due
            self.until = max(due, now) + ns
            self._due = None
            return MoreTime(ns)
        if self._due is None:
            self._due = self.until
            self.until = max(self.until, now) + GRACE_NS
        return Warned(self.until - now)
