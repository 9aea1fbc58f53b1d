"""Starts cores that run handlers, carries messages to and from them, and sees how they end. Decides nothing."""

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Final, cast

import msgspec

from talka.clock import boottime_ns
from talka.control.worker.effects import ExitFacts
from talka.engine.containment import MemoryGroup, peak_of
from talka.engine.core_child import Confines, CoreChild, CoreChildren
from talka.engine.core_stack import CoreLook, last_calls
from talka.engine.exit_facts import KillCount, facts_of, memory_kills
from talka.engine.handlers import handler_run
from talka.engine.handlers.handler_core import framed_message, new_deframer
from talka.engine.handlers.short_wait import ShortWait
from talka.engine.waits import within
from talka.errors import Untrusted
from talka.wire.tasks import FromHandlers, RunTasks, ToHandlers, decode_from_handlers

END_S: Final = 2.0
"""For a core that is asked to end; then it is killed."""
CLOSE_S: Final = 5.0
LAST_WORDS_S: Final = 0.25
"""What a core said before it ended is there at once. A child that left its group may hold the socket open for ever."""
DATA_MARGIN_BYTES: Final = 128 * 1024 * 1024
"""What Python and its libraries set aside and do not use: the bound of a task is about what is used."""
SHOW_S: Final = 1.0
"""For a core that is to show what it does before it is killed. One that is stopped does not."""
FILES_AT_LEAST: Final = 64
"""A core with fewer descriptors could not even import its files."""


class HandlerProcess(asyncio.Protocol):
    """One core: its process, what is said on its socket, and how it was ended."""

    def __init__(self, child: CoreChild, on_message: Callable[[FromHandlers], None]) -> None:
        self.child = child
        self.silent = asyncio.Event()
        """Everything it said was told."""
        self._on_message = on_message
        self._deframer = new_deframer()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._wait = ShortWait()
        self._doing = ""
        self._peak_bytes = 0

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        for data in self._unsent:
            self._transport.write(data)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._wait.end()
        try:
            for frame in self._deframer.feed(data):
                self._on_message(decode_from_handlers(frame))
        except Untrusted:
            self.kill("it sent a malformed message")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.silent.set()

    def tell(self, message: ToHandlers) -> None:
        if isinstance(message, RunTasks):
            self._peak_bytes = 0  # of what has ended
        data = framed_message(message)
        if self._transport is not None:
            self._transport.write(data)
            if isinstance(message, RunTasks) and len(message.tasks) == 1:
                self._wait.begin()  # where there are more, somebody has something to do anyway
        elif not self.silent.is_set():
            self._unsent.append(data)

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

    def kill(self, reason: str, *, shows_stack: bool = False) -> None:
        """`shows_stack`: it says first where it is, or has had a moment to; its end tells."""
        if not self.child.is_over:
            self._doing = self._doing or reason
            self.sample()
            if shows_stack:
                self.child.look(self._seen)
                asyncio.get_running_loop().call_later(SHOW_S, self.child.kill)
            else:
                self.child.kill()

    def _seen(self, look: CoreLook) -> None:
        if look.stack:
            self.child.kill()

    def sample(self) -> None:
        """A process that has ended does not say any more how much it used."""
        self._peak_bytes = peak_of(self.child.pid) or self._peak_bytes

    async def ended(self, kills: KillCount, memory_bytes: int, cpu_ms: int) -> ExitFacts:
        """`memory_bytes` and `cpu_ms` are what it may use; 0: no bound."""
        end = await self.child.ended()
        peak_bytes, is_out_of_memory = max(self._peak_bytes, end.memory_bytes), False
        if isinstance(self.child.group, MemoryGroup):
            peak_bytes = self.child.group.peak_bytes() or peak_bytes
            is_out_of_memory = bool(memory_kills(self.child.group.folder))
        elif end.status == -signal.SIGKILL:
            is_out_of_memory = kills.has_risen()
        facts = facts_of(
            end.status,
            is_out_of_memory=is_out_of_memory,
            doing=self._doing,
            memory_bytes=peak_bytes,
            limit_bytes=memory_bytes,
            cpu_ms=cpu_ms,
        )
        return msgspec.structs.replace(facts, stack=last_calls(end.stack, handler_run.__file__))


class HandlerSupervisor:
    """The cores of one worker. `on_message` and `on_exit` are called in the order in which things happened."""

    def __init__(
        self,
        on_message: Callable[[int, FromHandlers], None],
        on_exit: Callable[[int, ExitFacts], None],
        confines: Confines | None = None,
        *,
        end_s: float = END_S,
    ) -> None:
        self._end_s = end_s
        self.children = CoreChildren(
            "talka.engine.handlers.handler_core", has_lease=True, confines=confines, shows_stack=True
        )
        self._on_message = on_message
        self._on_exit = on_exit
        self._kills = KillCount()
        self._cores: dict[int, HandlerProcess] = {}

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
        """It may be told things at once. It may set aside `share_bytes` of memory, unless it has a bound of its own,
        and is in a `folder` of its own, which is its home too, if there is one for it."""
        try:
            child, sock = self.children.start(folder=folder, group_bytes=memory_bytes)
        except OSError as error:
            facts = ExitFacts("start", text=f"a core could not be started: {error}")
            asyncio.get_running_loop().call_soon(self._on_exit, core, facts)
            return
        child.limit(
            data_bytes=memory_bytes + DATA_MARGIN_BYTES if memory_bytes else share_bytes,
            files=max(files, FILES_AT_LEAST) if files else 0,
        )
        if self.children.end_ns > boottime_ns():  # one that waits for a lease has no end
            child.tell_end(self.children.end_ns)
        process = self._cores[core] = HandlerProcess(child, lambda message: self._on_message(core, message))
        self.children.attend(self._attend(core, process, sock, memory_bytes, cpu_ms))

    def tell(self, core: int, message: ToHandlers) -> None:
        process = self._cores.get(core)
        if process is not None:
            process.tell(message)

    def end(self, core: int, *, hard: bool, shows_stack: bool = False) -> None:
        """`hard`: kill it and its children, now or once it has shown where it is. Else ask it, and see to it that it
        ends."""
        process = self._cores.get(core)
        if process is None:
            return
        if hard:
            process.kill("its worker killed it", shows_stack=shows_stack)
            return
        process.ask()
        asyncio.get_running_loop().call_later(self._end_s, process.kill, "it did not end when it was asked to")

    def look(self) -> None:
        """Now and then: how much memory the cores use, and whether their guard lives."""
        self.children.guard.restart_if_gone()
        self._kills.look()
        for process in self._cores.values():
            process.sample()

    async def close(self) -> None:
        """End every core that is left."""
        for process in list(self._cores.values()):
            process.kill("its worker ends")
        await self.children.close(CLOSE_S)

    async def _attend(
        self, core: int, process: HandlerProcess, sock: socket.socket, memory_bytes: int, cpu_ms: int
    ) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: process, sock=sock)
        facts = await process.ended(self._kills, memory_bytes, cpu_ms)
        await within(LAST_WORDS_S, process.silent)
        process.close()
        del self._cores[core]
        self._on_exit(core, facts)
        await process.child.removed()
