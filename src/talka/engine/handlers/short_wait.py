"""A wait so short that it is not worth going to sleep for it.

Decision: docs/decisions/0053-credits-in-bytes-and-fewer-turns.md.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from talka.clock import monotonic_ns

SHORT_NS: Final = 100_000


class ShortWait:
    """For one core: say `begin` when it was given something to do, and `end` when it was heard.

    Where the core was heard within `short_ns` the last time, the event loop turns that long without sleeping, or until
    the core is heard: to wake a processor that sleeps takes as long as a short task. Where that was in vain it is not
    done again before the core was as quick once more, so that it costs nothing beside long tasks, nor where both share
    one processor."""

    def __init__(self, short_ns: int = SHORT_NS, now: Callable[[], int] = monotonic_ns) -> None:
        self.is_awake = False
        """The loop is kept from sleeping."""
        self._short_ns = short_ns
        self._now = now
        self._began = 0
        """0: nothing is waited for."""
        self._was_short = False

    def begin(self) -> None:
        self._began = self._now()
        if self._was_short and not self.is_awake:
            self.is_awake = True
            self._turn()

    def end(self) -> None:
        if self._began:
            self._was_short = self._now() - self._began <= self._short_ns
            self._began = 0

    def _turn(self) -> None:
        if self._began and self._now() - self._began <= self._short_ns:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self.is_awake = False
