"""Core processes as their owner has them, whatever they run: each is started, confined, bounded, guarded, told its end,
waited for and killed here, with all that it has started."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from talka.engine.containment import ControlGroup, Guard, MemoryGroup, kill_group, signal_name
from talka.engine.core_stack import CoreLook, StackPipe
from talka.engine.own_end import EndPipe
from talka.engine.process_start import STACK_WORD
from talka.engine.waits import until_exit

REMOVE_TRIES: Final = 100
REMOVE_PAUSE_S: Final = 0.01


class Confines(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every core of a worker. Of a run on one machine there are none: it is as its user."""

    env: Mapping[str, str]
    """The whole environment of a core."""
    uid: int | None = None
    """Of another user than the worker's; None: the same."""
    gid: int | None = None


class CoreEnd(msgspec.Struct, frozen=True):
    """How a core ended."""

    text: str
    """In words that follow "the core"."""
    status: int = 0
    """As of subprocess: below 0 it is a signal; 0: it had nothing left to do."""
    memory_bytes: int = 0
    """The most memory that it had in use; 0: not known."""
    stack: bytes = b""
    """What it wrote of its Python stack, if it is one that shows that."""


class CoreChild:
    """One core process, leader of a process group and, where the system lends one, alone in a control group."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        guard: Guard,
        end: EndPipe | None,
        group_bytes: int,
        stack: StackPipe | None = None,
    ) -> None:
        self.pid = process.pid
        self._stack = stack
        self._process = process
        self._guard = guard
        self._end = end
        guard.watch(self.pid)
        self.group: ControlGroup | None = MemoryGroup.bounded(self.pid, group_bytes) if group_bytes else None
        if self.group is None:
            self.group = ControlGroup.around(self.pid)

    @property
    def is_over(self) -> bool:
        """It was waited for, so its number may be another's by now."""
        return self._process.returncode is not None

    def limit(self, *, data_bytes: int = 0, files: int = 0) -> None:
        """By the kernel; 0: no bound."""
        for kind, most in ((resource.RLIMIT_DATA, data_bytes), (resource.RLIMIT_NOFILE, files)):
            if most:
                with contextlib.suppress(OSError, ValueError, AttributeError):  # it has ended, or this is not Linux
                    resource.prlimit(self.pid, kind, (most, most))

    def tell_end(self, end_ns: int) -> None:
        """It stops itself at this instant, where its owner has a lease."""
        if self._end is not None:
            self._end.tell(end_ns)

    def look(self, told: Callable[[CoreLook], None]) -> None:
        """What it does now, if it is one that shows that."""
        if self._stack is not None and not self.is_over:
            self._stack.ask(self.pid, told)

    def terminate(self) -> None:
        """Let it end by itself."""
        if not self.is_over:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if not self.is_over:
            kill_group(self.pid)
            if self.group is not None:
                self.group.kill()

    async def ended(self) -> CoreEnd:
        """Once it has, and all that it started was killed."""
        await until_exit(self.pid)
        # The group is named after a process nobody has waited for yet, so its number cannot belong to others.
        self.kill()
        _, waited, usage = os.wait4(self.pid, 0)  # noqa: ASYNC222 - it has ended
        status = self._process.returncode = os.waitstatus_to_exitcode(waited)
        self._guard.forget(self.pid)
        if self._end is not None:
            self._end.close()
            self._end = None
        stack = b""
        if self._stack is not None:
            stack = self._stack.rest()
            self._stack.close()
            self._stack = None
        text = f"was killed by {signal_name(-status)}" if status < 0 else f"exited with status {status}"
        # A process counts what its parent had when it was started.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return CoreEnd(text, status, usage.ru_maxrss * 1024 if usage.ru_maxrss > own else 0, stack)

    async def removed(self) -> None:
        """The kernel lets a control group go a moment after the last that was in it, and has no event for it."""
        if self.group is not None:
            for _ in range(REMOVE_TRIES):
                if self.group.remove():
                    return
                await asyncio.sleep(REMOVE_PAUSE_S)


class CoreChildren:
    """The core processes of one owner: one guard, one lease, and the tasks that see them end."""

    def __init__(
        self, module: str, *, has_lease: bool, confines: Confines | None = None, shows_stack: bool = False
    ) -> None:
        """`module` is what they run. With a lease they end by themselves at what `tell_end` says. `shows_stack`: what
        each does can be looked at."""
        self.end_ns = 0
        """What was told last; 0: nothing."""
        self.guard = Guard(has_lease=has_lease, env=None if confines is None else confines.env)
        self._module = module
        self._has_lease = has_lease
        self._shows_stack = shows_stack
        self._confines = confines
        self._living: list[CoreChild] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, *, output: int = 2, folder: str | None = None, group_bytes: int = 0
    ) -> tuple[CoreChild, socket.socket]:
        """A core, and our end of its socket. What the user's code prints goes to the descriptor `output`: it must not
        mix with what its owner says. In a `folder` of its own, which is its home too, if there is one for it; within
        `group_bytes` of memory, where the system lends a control group for it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        end = EndPipe() if self._has_lease else None
        stack = StackPipe() if self._shows_stack else None
        try:
            process = self._spawned(theirs, end, stack, output, folder)
        except BaseException:
            ours.close()
            for pipe in (end, stack):
                if pipe is not None:
                    pipe.close()
            raise
        finally:
            theirs.close()
            if stack is not None:
                stack.started()
        child = CoreChild(process, self.guard, end, group_bytes, stack)
        self._living = [*(one for one in self._living if not one.is_over), child]
        return child, ours

    def _spawned(
        self, sock: socket.socket, end: EndPipe | None, stack: StackPipe | None, output: int, folder: str | None
    ) -> "subprocess.Popen[bytes]":
        """It inherits no other descriptor than those it is told of."""
        confines, ends = self._confines, [] if end is None else [end.theirs]
        stacks = [] if stack is None else [stack.theirs]
        words = [*map(str, (sock.fileno(), os.getpid(), *ends)), *(f"{STACK_WORD}{fd}" for fd in stacks)]
        env = None if confines is None else dict(confines.env)
        if env is not None and folder is not None:
            env["HOME"] = folder
        is_other = confines is not None and confines.uid is not None
        return subprocess.Popen(
            [sys.executable, "-P", "-m", self._module, *words],
            pass_fds=(sock.fileno(), *ends, *stacks),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=env,
            cwd=folder,
            user=confines.uid if confines is not None else None,
            group=confines.gid if confines is not None else None,
            extra_groups=[] if is_other else None,
        )

    def tell_end(self, end_ns: int) -> None:
        """Of every core there is, and of those to come while it has not come."""
        self.end_ns = end_ns
        self.guard.tell_end(end_ns)
        for child in self._living:
            child.tell_end(end_ns)

    def attend(self, work: Coroutine[Any, Any, None]) -> None:
        """`work` sees a core end, and is waited for before the owner is gone."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, within_s: float) -> None:
        """Until all have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    async def close(self, within_s: float) -> None:
        """The owner has killed those that are left."""
        await self.wait(within_s)
        self.guard.close()
