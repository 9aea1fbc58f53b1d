"""When people are warned that a certificate ends.

Decision: docs/decisions/0067-certificates-that-are-renewed.md.
"""

from collections.abc import Mapping
from typing import Final

from talka.units import SECOND

DAY: Final = 24 * 3600 * SECOND
WARNINGS: Final = (30 * DAY, 7 * DAY, DAY, 0)
"""So long before its end a certificate is told of, each time once. The last one is the end itself."""


class ExpiryWarnings:
    def __init__(self, before: tuple[int, ...] = WARNINGS) -> None:
        self._before = before
        self._told: dict[str, tuple[int, int]] = {}
        """By certificate: its end, and how many warnings of it are behind."""

    def due(self, ends: Mapping[str, int], now: int) -> list[str]:
        """Those of these certificates of which it is time to tell (again). Instants are of the clock of the day."""
        found: list[str] = []
        for name, end in ends.items():
            passed = sum(end - now <= before for before in self._before)
            told_end, told = self._told.get(name, (end, 0))
            if passed > (told if told_end == end else 0):
                found.append(name)
            self._told[name] = (end, passed)
        return found
