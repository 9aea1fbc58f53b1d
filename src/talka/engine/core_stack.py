"""The Python stack of a core process whose event loop does not turn, or that dies by a signal.

Such a core cannot answer. A signal handler of the interpreter itself writes the stack into a pipe: it needs neither the
loop nor the interpreter's lock.

Decisions: docs/decisions/0045-a-core-works-while-its-loop-turns.md, 0047-the-last-words-of-an-attempt.md.
"""

import asyncio
import contextlib
import faulthandler
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from talka.units import SECOND

STACK_SIGNAL: Final[int] = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""A real-time signal where there are any: the two that are for users are left to them."""
STACK_BYTES_LIMIT: Final = 65_536
"""As much as a pipe holds: of many threads that with the event loop is written last."""
STACK_CHARACTERS_LIMIT: Final = 4000
SETTLE_S: Final = 0.05
"""A stack is written in many pieces: it is told when none has come for so long."""
CURRENT: Final = "Current thread"
FATAL: Final = "Fatal Python error:"
STDERR: Final = 2
THREAD: Final = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
FRAME: Final = re.compile(r'  File "(.*)", line .* in ')
TALKA: Final = f"{Path(__file__).parents[1]}{os.sep}"
LOOP: Final = re.compile(r"[/\\](asyncio[/\\]\w+|selectors)\.py$")


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
            os.read(self._ours, STACK_BYTES_LIMIT)  # an answer that came late
        told(CoreLook(cpu_of(pid), ""))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read, pid, told)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, STACK_SIGNAL)

    def _read(self, pid: int, told: Callable[[CoreLook], None]) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._ours, STACK_BYTES_LIMIT)
            if not data and self._loop is not None:
                self._loop.remove_reader(self._ours)  # it has ended
            self._content = (self._content + data)[:STACK_BYTES_LIMIT]
        if self._content and self._loop is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(self._settle_s, self._tell, pid, told)

    def _tell(self, pid: int, told: Callable[[CoreLook], None]) -> None:
        self._timer = None
        told(CoreLook(cpu_of(pid), readable(self._content)))

    def rest(self) -> bytes:
        """All that it wrote since it was asked last, once it has ended."""
        with contextlib.suppress(BlockingIOError):  # a child that was forked otherwise than by Python may have the end
            self._content += os.read(self._ours, STACK_BYTES_LIMIT)
        self._content = self._content[-STACK_BYTES_LIMIT:]
        return self._content

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


def show_stack_in(fd: int, *, at_death: bool = False) -> None:
    """Of this process, whenever its owner asks. `at_death`: also when it dies by the signal of a fault, or by that of
    too much processor time."""
    os.set_inheritable(fd, False)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)
    if at_death:
        faulthandler.enable(file=fd, all_threads=True)
        faulthandler.register(signal.SIGXCPU, file=fd, all_threads=True, chain=True)
    # A child that the user's code forks is not the core.
    os.register_at_fork(after_in_child=partial(_leave, fd, at_death=at_death))


def _leave(fd: int, *, at_death: bool) -> None:
    faulthandler.unregister(STACK_SIGNAL)
    if at_death:
        # Where it dies is for its own output; and what the user's code has enabled for that instead stays.
        os.dup2(STDERR, fd, inheritable=False)
    else:
        os.close(fd)


def readable(content: bytes, limit: int = STACK_CHARACTERS_LIMIT) -> str:
    """The thread that was interrupted first: that is the one with the event loop, unless it holds signals back."""
    threads = content.decode("utf-8", "replace").strip().split("\n\n")
    ordered = sorted(threads, key=lambda thread: not thread.startswith(CURRENT))
    text = "\n\n".join(ordered)
    return text if len(text) <= limit else f"{text[: limit - 4]}\n..."


def last_calls(content: bytes, own_file: str) -> bytes:
    """What a process left, as a traceback: the latest call of each thread comes last, and last of all the thread that
    it is about. Only calls that `own_file` made, in threads where it made some, and threads that are not of Talka.
    Empty: the user's code did nothing."""
    why = ""
    threads: list[list[str]] = []
    for line in content.decode("utf-8", "replace").splitlines():
        if line.startswith(FATAL):
            why = line
        elif THREAD.match(line):
            threads.append([line])
        elif threads and line.startswith("  "):
            threads[-1].append(line)
    told: list[str] = []
    for heading, *calls in sorted(threads, key=lambda thread: thread[0].startswith(CURRENT)):
        files = [file_of(call) for call in calls]
        # What a call of the user's code led to, a print for one, may come back to that file.
        own = max([place for place, file in enumerate(files) if file == own_file], default=None)
        if is_at_work(files, own) or (why and heading.startswith(CURRENT)):
            latest_last = [heading.replace("call first", "call last"), *reversed(calls[:own])]
            told.append("".join([f"{line}\n" for line in latest_last]))
    return ("\n".join(told) + (f"{why}\n" if why else "")).encode()


def is_at_work(files: list[str], own: int | None) -> bool:
    """Something runs in this thread that is neither Talka nor a loop that waits. `files` of its calls, the latest
    first; `own`: the place of the one that called the user's code, if there is one."""
    is_talkas = [file.startswith(TALKA) for file in files]
    if own is not None or True not in is_talkas:
        return False in is_talkas[:own]
    return not is_talkas[0] and LOOP.search(files[0]) is None


def file_of(call: str) -> str:
    found = FRAME.match(call)
    return found[1] if found else ""


def cpu_of(pid: int) -> int:
    """Nanoseconds of processor time that a process has used; 0: it is gone, or not ours to look at."""
    import psutil  # not at the start of every core

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0
    return int((times.user + times.system) * SECOND)
