"""A timer that is good to some ten microseconds. Those of event loops count milliseconds: an arrival that waits for one
starts up to a millisecond late on an idle machine, and the result would call the generator disturbed.

By a timer of the kernel (timerfd) where there is one, else by the loop's own. Python has the former from 3.13 on only.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from talka.clock import monotonic_ns
from talka.engine.kernel_timer import TFD_TIMER_ABSTIME, TimerSetting, timer_calls
from talka.units import SECOND

CLOCK_MONOTONIC: Final = 1
EXPIRATIONS: Final = 8
"""What a timer of the kernel answers is a number of so many bytes."""

LIBC: Final = timer_calls()
"""What sets timers of the kernel; None where it has none."""


class Alarm:
    """Rings once, at an instant of the monotonic clock or right after it; never before."""

    def __init__(self, ring: Callable[[], None], libc: Any = LIBC) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self.is_set = False
        self._at_ns = 0
        self._handle: asyncio.TimerHandle | None = None
        self._setting = TimerSetting()
        self._libc = libc
        self._fd = -1
        if self._libc is not None:
            # It answers -1 where no descriptor is left.
            self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._rung)

    def set(self, instant_ns: int) -> None:
        """In place of what it was set to."""
        self.is_set = True
        self._at_ns = max(1, instant_ns)
        self._arm()

    def clear(self) -> None:
        """What it was set to may still wake the loop, for nothing."""
        self.is_set = False

    def close(self) -> None:
        self.clear()
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _arm(self) -> None:
        if self._fd >= 0:
            # Nothing is left of an earlier setting, nor of a ring that nobody heard yet.
            self._setting.at_s, self._setting.at_ns = divmod(self._at_ns, SECOND)
            self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, self._setting, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        left_ns = self._at_ns - monotonic_ns()
        self._handle = self._loop.call_at(self._loop.time() + left_ns / SECOND, self._rung)

    def _rung(self) -> None:
        if self._fd >= 0:
            with suppress(BlockingIOError):
                os.read(self._fd, EXPIRATIONS)
        if not self.is_set:
            return
        if monotonic_ns() < self._at_ns:
            self._arm()  # some loops round their timers down
            return
        self.is_set = False
        self._ring()
