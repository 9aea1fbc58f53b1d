"""Starts cores that run handlers, carries messages to and from them, and sees how they end. Decides nothing."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Final, cast

from talka.clock import boottime_ns
from talka.control.worker.handlers_effects import ExitFacts
from talka.engine.containment import ControlGroup, Guard, kill_group
from talka.engine.core_spawn import Confines, start_core
from talka.engine.exit_facts import KillCount, MemoryGroup, facts_of, memory_kills, peak_of
from talka.engine.handlers.handler_core import framed_message, new_deframer
from talka.engine.load.supervisor import REMOVE_PAUSE_S, REMOVE_TRIES, wait_for_exit
from talka.engine.own_end import EndPipe
from talka.errors import Untrusted
from talka.wire.tasks import FromHandlers, ToHandlers, decode_from_handlers

END_S: Final = 2.0
"""For a core that is asked to end; then it is killed."""
CLOSE_S: Final = 5.0
LAST_WORDS_S: Final = 0.25
"""What a core said before it ended is there at once. A child that left its group may hold the socket open for ever."""
DATA_MARGIN_BYTES: Final = 128 * 1024 * 1024
"""What Python and its libraries set aside and do not use: the bound of a task is about what is used."""
FILES_AT_LEAST: Final = 64
"""A core with fewer descriptors could not even import its files."""


class HandlerProcess(asyncio.Protocol):
    """One core: its process, its socket and its bounds."""

    def __init__(
        self,
        guard: Guard,
        on_message: Callable[[FromHandlers], None],
        confines: Confines | None = None,
        folder: str | None = None,
    ) -> None:
        self._confines = confines
        self._folder = folder
        self._end: EndPipe | None = None
        self.silent = asyncio.Event()
        """Everything it said was told."""
        self._guard = guard
        self._on_message = on_message
        self._deframer = new_deframer()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._doing = ""
        self._peak_bytes = 0
        self._limit_bytes = 0
        self._cpu_ms = 0
        self._group: ControlGroup | None = None

    def start(self, *, memory_bytes: int, share_bytes: int, cpu_ms: int, files: int) -> socket.socket:
        """Our end of its socket. `share_bytes` is what any core may set aside; 0: no bound."""
        self._limit_bytes, self._cpu_ms = memory_bytes, cpu_ms
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            started = start_core(
                "talka.engine.handlers.handler_core",
                theirs,
                output=2,
                has_lease=True,
                confines=self._confines,
                folder=self._folder,
            )
            self._process, self._end = started.process, started.end
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._guard.watch(self.pid)
        if memory_bytes:
            self._group = MemoryGroup.bounded(self.pid, memory_bytes)
        if self._group is None:
            self._group = ControlGroup.around(self.pid)
        self._bound(memory_bytes + DATA_MARGIN_BYTES if memory_bytes else share_bytes, files)
        ours.setblocking(False)
        return ours

    def _bound(self, data_bytes: int, files: int) -> None:
        """By the kernel. Of the processor's time the core sees to itself, once it has imported what it needs."""
        limits = []
        if data_bytes:
            limits.append((resource.RLIMIT_DATA, data_bytes))
        if files:
            limits.append((resource.RLIMIT_NOFILE, max(files, FILES_AT_LEAST)))
        for kind, most in limits:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # it has ended, or this is not Linux
                resource.prlimit(self.pid, kind, (most, most))

    @property
    def pid(self) -> int:
        return self._process.pid

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        for data in self._unsent:
            self._transport.write(data)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._deframer.feed(data):
                self._on_message(decode_from_handlers(frame))
        except Untrusted:
            self.kill("it sent a malformed message")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.silent.set()

    def tell(self, message: ToHandlers) -> None:
        data = framed_message(message)
        if self._transport is not None:
            self._transport.write(data)
        elif not self.silent.is_set():
            self._unsent.append(data)

    def tell_end(self, end_ns: int) -> None:
        if self._end is not None:
            self._end.tell(end_ns)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Its end.

    def ask(self) -> None:
        """Nothing more comes: let it end by itself."""
        self._doing = self._doing or "its worker no longer needed it"
        if self._transport is not None:
            self._transport.write_eof()
        else:
            self.kill(self._doing)

    def kill(self, reason: str) -> None:
        if self._process.returncode is not None:
            return  # it was waited for, so its number may be another's by now
        self._doing = self._doing or reason
        self.sample()
        kill_group(self.pid)
        if self._group is not None:
            self._group.kill()

    def sample(self) -> None:
        """A process that has ended does not say any more how much it used."""
        self._peak_bytes = max(self._peak_bytes, peak_of(self.pid))

    async def ended(self, kills: KillCount) -> ExitFacts:
        await wait_for_exit(self._process)
        # The group is named after a process nobody has waited for yet, so its number cannot belong to others.
        kill_group(self.pid)
        if self._group is not None:
            self._group.kill()
        _, status, usage = os.wait4(self.pid, 0)  # noqa: ASYNC222 - it has ended
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._guard.forget(self.pid)
        if self._end is not None:
            self._end.close()
            self._end = None
        most = usage.ru_maxrss * 1024
        # A process counts what its parent had when it was started.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak = max(self._peak_bytes, most if most > own else 0)
        is_out_of_memory = False
        if isinstance(self._group, MemoryGroup):
            peak = self._group.peak_bytes() or peak
            is_out_of_memory = bool(memory_kills(self._group.folder))
        elif self._process.returncode == -signal.SIGKILL:
            is_out_of_memory = kills.has_risen()
        return facts_of(
            self._process.returncode,
            is_out_of_memory=is_out_of_memory,
            doing=self._doing,
            memory_bytes=peak,
            limit_bytes=self._limit_bytes,
            cpu_ms=self._cpu_ms,
        )

    async def removed(self) -> None:
        """The kernel lets a control group go a moment after the last that was in it, and has no event for it."""
        if self._group is not None:
            for _ in range(REMOVE_TRIES):
                if self._group.remove():
                    return
                await asyncio.sleep(REMOVE_PAUSE_S)


class HandlerSupervisor:
    """The cores of one worker. `on_message` and `on_exit` are called in the order in which things happened."""

    def __init__(
        self,
        on_message: Callable[[int, FromHandlers], None],
        on_exit: Callable[[int, ExitFacts], None],
        confines: Confines | None = None,
    ) -> None:
        self._confines = confines
        self._on_message = on_message
        self._on_exit = on_exit
        self._end_ns = 0
        self._guard = Guard(has_lease=True, env=None if confines is None else confines.env)
        self._kills = KillCount()
        self._cores: dict[int, HandlerProcess] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def pids(self) -> dict[int, int]:
        return {core: process.pid for core, process in self._cores.items()}

    def start(
        self,
        core: int,
        *,
        memory_bytes: int = 0,
        share_bytes: int = 0,
        cpu_ms: int = 0,
        files: int = 0,
        folder: str | None = None,
    ) -> None:
        """It may be told things at once. In a `folder` of its own, which is its home too, if there is one for it."""
        process = HandlerProcess(self._guard, lambda message: self._on_message(core, message), self._confines, folder)
        try:
            sock = process.start(memory_bytes=memory_bytes, share_bytes=share_bytes, cpu_ms=cpu_ms, files=files)
        except OSError as error:
            facts = ExitFacts("start", text=f"a core could not be started: {error}")
            asyncio.get_running_loop().call_soon(self._on_exit, core, facts)
            return
        if self._end_ns > boottime_ns():
            process.tell_end(self._end_ns)
        self._cores[core] = process
        task = asyncio.create_task(self._attend(core, process, sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tell_end(self, end_ns: int) -> None:
        """Until when every core may run, those to come while that has not come, too."""
        self._end_ns = end_ns
        self._guard.tell_end(end_ns)
        for process in self._cores.values():
            process.tell_end(end_ns)

    def tell(self, core: int, message: ToHandlers) -> None:
        process = self._cores.get(core)
        if process is not None:
            process.tell(message)

    def end(self, core: int, *, hard: bool) -> None:
        """`hard`: kill it and its children now. Else ask it, and see to it that it ends."""
        process = self._cores.get(core)
        if process is None:
            return
        if hard:
            process.kill("its worker killed it")
            return
        process.ask()
        asyncio.get_running_loop().call_later(END_S, process.kill, "it did not end when it was asked to")

    def look(self) -> None:
        """Now and then: how much memory the cores use, and whether their guard lives."""
        self._guard.restart_if_gone()
        self._kills.look()
        for process in self._cores.values():
            process.sample()

    async def close(self) -> None:
        """End every core that is left."""
        for process in list(self._cores.values()):
            process.kill("its worker ends")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        self._guard.close()

    async def _attend(self, core: int, process: HandlerProcess, sock: socket.socket) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: process, sock=sock)
        facts = await process.ended(self._kills)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.silent.wait(), LAST_WORDS_S)
        process.close()
        del self._cores[core]
        self._on_exit(core, facts)
        await process.removed()
