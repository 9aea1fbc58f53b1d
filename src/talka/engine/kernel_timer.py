"""Timers of the kernel (timerfd), which Python has from 3.13 on only; and waiting for one of them beside a pipe."""

import ctypes
import os
import select
import sys
from typing import Any, Final

from talka.clock import boottime_ns
from talka.units import MILLISECOND, SECOND

CLOCK_BOOTTIME: Final = 7
TFD_TIMER_ABSTIME: Final = 1
LOOK_EVERY_MS: Final = 50
"""Where the kernel has no such timers. Waits of other calls stand still while the machine sleeps."""


class TimerSetting(ctypes.Structure):
    """`struct itimerspec`: how long between rings, of which there is one, and when."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


def timer_calls() -> Any:
    """The library with calls for timers of the kernel; None where it has none."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "timerfd_create"):
        return None
    libc.timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(TimerSetting), ctypes.c_void_p]
    return libc


class EndWait:
    """Waits for words in a pipe, or for an instant of the clock that goes on while the machine sleeps."""

    def __init__(self, fd: int, libc: Any) -> None:
        """`libc` as of `timer_calls`."""
        self._fd = fd
        self._libc = libc
        self._timer = -1 if libc is None else libc.timerfd_create(CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        if self._timer >= 0:
            self._poll.register(self._timer, select.POLLIN)

    def wait(self, end_ns: int) -> bool:
        """True: there are words, or nobody will say any. False: the instant has come. 0: it never comes."""
        if self._timer >= 0:
            at_s, at_ns = divmod(end_ns, SECOND)
            self._libc.timerfd_settime(self._timer, TFD_TIMER_ABSTIME, TimerSetting(0, 0, at_s, at_ns), None)
        while True:
            left_ns = end_ns - boottime_ns() if end_ns else SECOND
            # What was said counts before what is late: whoever wakes up late itself may have been told of more time.
            found = self._poll.poll(None if self._timer >= 0 and left_ns > 0 else self._look_ms(left_ns))
            if any(fd == self._fd for fd, _ in found):
                return True
            if end_ns and boottime_ns() >= end_ns:
                return False

    def _look_ms(self, left_ns: int) -> int:
        return max(0, min(LOOK_EVERY_MS, -(-left_ns // MILLISECOND)))
