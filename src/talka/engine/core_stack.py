"""The Python stack of a core process whose event loop does not turn.

Such a core cannot answer. A signal handler of the interpreter itself writes the stack into a pipe: it needs neither the
loop nor the interpreter's lock.

Decision: docs/decisions/0045-a-core-works-while-its-loop-turns.md.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from talka.units import SECOND

STACK_SIGNAL: Final[int] = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""A real-time signal where there are any: the two that are for users are left to them."""
READ_BYTES: Final = 65_536
STACK_BYTES_LIMIT: Final = 16_384
STACK_CHARACTERS_LIMIT: Final = 4000
SETTLE_S: Final = 0.05
"""A stack is written in many pieces: what comes within this is told at once."""
CURRENT: Final = "Current thread"


class CoreLook(msgspec.Struct, frozen=True):
    """What was seen of a core process from outside."""

    cpu_ns: int
    """Processor time that it has used since it began; 0: not known."""
    stack: str
    """Empty: it said nothing, as a process that is stopped."""


class StackPipe:
    """The owner's side. Bounded: what a core writes beyond the limit is dropped."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        os.set_blocking(self.theirs, False)
        self._settle_s = settle_s
        self._content = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, pid: int, told: Callable[[CoreLook], None]) -> None:
        """`told` what it is doing, once it has said so; and at once how much processor time it has used."""
        self._forget()
        with contextlib.suppress(BlockingIOError):
            os.read(self._ours, READ_BYTES)  # an answer that came late
        told(CoreLook(cpu_of(pid), ""))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read, pid, told)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, STACK_SIGNAL)

    def _read(self, pid: int, told: Callable[[CoreLook], None]) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._ours, READ_BYTES)
            if not data and self._loop is not None:
                self._loop.remove_reader(self._ours)  # it has ended
            self._content = (self._content + data)[:STACK_BYTES_LIMIT]
        if self._timer is None and self._content and self._loop is not None:
            self._timer = self._loop.call_later(self._settle_s, self._tell, pid, told)

    def _tell(self, pid: int, told: Callable[[CoreLook], None]) -> None:
        self._timer = None
        told(CoreLook(cpu_of(pid), readable(self._content)))

    def _forget(self) -> None:
        self._content = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is not None:
            self._loop.remove_reader(self._ours)
            self._loop = None

    def started(self) -> None:
        """The core has its end: the pipe ends with it."""
        os.close(self.theirs)

    def close(self) -> None:
        self._forget()
        os.close(self._ours)


def show_stack_in(fd: int) -> None:
    """Of this process, whenever its owner asks."""
    os.set_inheritable(fd, False)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)
    # A child that the user's code forks is not the core.
    os.register_at_fork(after_in_child=partial(_leave, fd))


def _leave(fd: int) -> None:
    faulthandler.unregister(STACK_SIGNAL)
    os.close(fd)


def readable(content: bytes, limit: int = STACK_CHARACTERS_LIMIT) -> str:
    """The thread that was interrupted first: that is the one with the event loop, unless it holds signals back."""
    threads = content.decode("utf-8", "replace").strip().split("\n\n")
    ordered = sorted(threads, key=lambda thread: not thread.startswith(CURRENT))
    text = "\n\n".join(ordered)
    return text if len(text) <= limit else f"{text[: limit - 4]}\n..."


def cpu_of(pid: int) -> int:
    """Nanoseconds of processor time that a process has used; 0: it is gone, or not ours to look at."""
    import psutil  # not at the start of every core

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0
    return int((times.user + times.system) * SECOND)
