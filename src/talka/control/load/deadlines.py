"""More time for what is late but advances: each extension is half of the one before, and there are five."""

from typing import Final

from talka.units import SECOND

EXTENSION_BASE_NS: Final = 30 * SECOND
EXTENSION_LEAST_NS: Final = SECOND
EXTENSIONS_LIMIT: Final = 5


class Deadline:
    """Call `extend` when `until` has come."""

    def __init__(self, until: int) -> None:
        self.until = until
        self._extensions = 0
        self._done = 0

    def extend(self, now: int, done: int) -> int:
        """By how many nanoseconds; 0: not at all. `done` grows with everything that the work does."""
        has_advanced, self._done = done > self._done, done
        if not has_advanced or self._extensions == EXTENSIONS_LIMIT:
            return 0
        self._extensions += 1
        ns = max(EXTENSION_LEAST_NS, EXTENSION_BASE_NS >> self._extensions)
        self.until = now + ns
        return ns
