"""How every core process begins, whatever it runs. Imports little: it is the first thing a new process waits for."""

import asyncio
import contextlib
import ctypes
import io
import os
import signal
import sys

from talka.engine.core_stack import show_stack_in
from talka.engine.hiding import hide
from talka.engine.own_end import end_in_time

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29
OUT_OF_MEMORY_FIRST = "800"
STACK_WORD = "stack="
"""Before the descriptor that its stack is wanted in."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its owner dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(1)


def go_first_out_of_memory() -> None:
    """Where memory is short, cores go before the worker that would tell of it. Before `hide`: afterwards nobody may."""
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(OUT_OF_MEMORY_FIRST)


def begin_core(*, leaves_stack: bool = False) -> tuple[int, int]:
    """What every core process does first: the descriptor of its socket, and its parent. One of a worker is told its end
    in a pipe. `leaves_stack`: where it shows its stack it leaves it too when it dies by a fault."""
    told = sys.argv[1:]
    fd, parent, *end_fds = [int(word) for word in told if not word.startswith(STACK_WORD)]
    stack_fds = [int(word.removeprefix(STACK_WORD)) for word in told if word.startswith(STACK_WORD)]
    die_with_parent(parent)
    if end_fds:
        go_first_out_of_memory()
        hide()
    for end_fd in end_fds:
        end_in_time(end_fd)
    for stack_fd in stack_fds:
        show_stack_in(stack_fd, at_death=leaves_stack)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what the user's code prints is wanted when it is printed
    return fd, parent


def wake_in_time() -> None:
    """Ask the kernel not to put off this thread's timers; by default it may by 50 microseconds, to save power."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, 1)  # nanoseconds; 0 would mean the default


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's when it is installed: about twice as fast, otherwise the same."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
