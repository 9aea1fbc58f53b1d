"""How much memory an attempt used, where that can be told: the most that its process had while it ran.

Functions share a core. The kernel keeps the highest use of a whole process, so it says something of an attempt only if
that was by itself there from its beginning to its end. A command has a process of its own, but the kernel counts that
from the fork on, when it was as large as its core.

Decision: docs/decisions/0055-what-an-attempt-used.md.
"""

import contextlib
import os
import re
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from talka.clock import monotonic_ns
from talka.engine.containment import PROCESSES
from talka.units import MILLISECOND

KIBIBYTE: Final = 1024
PEAK: Final = re.compile(rb"^VmHWM:\s*(\d+) kB", re.MULTILINE)
STATUS_BYTES: Final = 4096
"""Of /proc/PID/status; what is asked for is in the first half."""
SIZES_BYTES: Final = 128
"""Of /proc/PID/statm: seven numbers."""
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
FRESH_NS: Final = 100 * MILLISECOND
"""After that what was seen of a core that rests is seen anew: it may have given memory back."""
SET_PEAK_BACK: Final = b"5"
"""To what is in use now: proc(5), clear_refs."""
SHORT_US: Final = 1000
UNKNOWN_FLOOR: Final = 0 if sys.platform == "darwin" else sys.maxsize
"""Elsewhere than on Linux a process is counted from its own program on."""
ANY_PROGRAM_BYTES: Final = 256 * KIBIBYTE
"""Less is seen of a process only while it begins or ends: the kernel counts for each processor, and adds up late."""
RELATIVES_LIMIT: Final = 64
"""Of a command, that are looked at."""

Started = TypeVar("Started")


class MemoryMeter:
    """The highest use of this process while one attempt runs in it by itself. Any thread may call."""

    def __init__(
        self,
        has_more: Callable[[], bool] = lambda: False,
        processes: Path = PROCESSES,
        *,
        faults: Callable[[], int] | None = None,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        """`has_more`: whether other attempts wait for the one that has just ended. `faults`: how often this process
        touched memory that it did not have; usually the kernel's count."""
        self._has_more = has_more
        self._count_faults = faults or page_faults
        self._now = now
        self._lock = threading.Lock()
        self._running = 0
        self._sole = 0
        """Fence of the one that has been by itself so far; 0: there is none."""
        self._status = self._sizes = self._set_back = -1
        self._resident_bytes = 0
        self._faults = -1
        """When the peak was set back; below 0: it could not be."""
        self._fresh_until_ns = 0
        with contextlib.suppress(OSError):  # not Linux, or it is not allowed here
            self._set_back = os.open(processes / "self" / "clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            self._sizes = os.open(processes / "self" / "statm", os.O_RDONLY | os.O_CLOEXEC)
            self._status = os.open(processes / "self" / "status", os.O_RDONLY | os.O_CLOEXEC)

    def rest(self) -> None:
        """Nothing runs: what the next one needs to know is seen now, and it need not wait for it."""
        with self._lock:
            if not self._running:
                self._look()

    def begin(self, fence: int) -> None:
        with self._lock:
            self._running += 1
            self._sole = 0
            if self._running == 1:
                if self._now() >= self._fresh_until_ns or self._count_faults() != self._faults:
                    self._look()
                if self._faults >= 0:
                    self._sole = fence

    def end(self, fence: int, took_us: int) -> int:
        """Bytes; 0: not measured. Once for each `begin`."""
        with self._lock:
            self._running -= 1
            if self._sole != fence:
                return 0
            self._sole = 0
            if took_us < SHORT_US and self._has_more():
                return 0  # to look would take as long as it did
            # The kernel takes ten times as long to tell a peak. Nothing comes into use without a page fault, and most
            # short ones have none.
            return self._resident_bytes if self._count_faults() == self._faults else self._peak()

    def started(self, start: Callable[[], Started]) -> tuple[Started, int]:
        """What `start` starts, and how many bytes the kernel counts of that process at least."""
        with self._lock:  # nobody sets the peak back meanwhile
            if not self._running:
                self._reset()
            return start(), self._peak() or UNKNOWN_FLOOR

    def close(self) -> None:
        for fd in (self._status, self._sizes, self._set_back):
            if fd >= 0:
                os.close(fd)
        self._status = self._sizes = self._set_back = -1

    def _reset(self) -> bool:
        with contextlib.suppress(OSError):
            return self._status >= 0 and os.write(self._set_back, SET_PEAK_BACK) > 0
        return False

    def _look(self) -> None:
        """Set the peak back, and see what is in use."""
        self._faults = -1
        if self._reset():
            self._resident_bytes, self._faults = self._resident(), self._count_faults()
            self._fresh_until_ns = self._now() + FRESH_NS

    def _resident(self) -> int:
        with contextlib.suppress(OSError):
            return int(os.pread(self._sizes, SIZES_BYTES, 0).split()[1]) * PAGE_BYTES
        return 0

    def _peak(self) -> int:
        if self._status < 0:
            return 0
        with contextlib.suppress(OSError):
            return _peak_in(os.pread(self._status, STATUS_BYTES, 0))
        return 0


def page_faults() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def seen_peak(pid: int) -> int:
    """Of a running process and what it has started, the largest of them: what it had until now. 0: it has ended."""
    most, open_ones, seen = 0, [pid], 0  # of processes
    while open_ones and seen < RELATIVES_LIMIT:
        one = open_ones.pop()
        seen += 1
        with contextlib.suppress(OSError, ValueError):
            most = max(most, _peak_in((PROCESSES / str(one) / "status").read_bytes()))
            children = (PROCESSES / str(one) / "task" / str(one) / "children").read_text()
            open_ones += [int(word) for word in children.split()]
    return most if most >= ANY_PROGRAM_BYTES else 0


def _peak_in(status: bytes) -> int:
    found = PEAK.search(status)
    return int(found[1]) * KIBIBYTE if found else 0
