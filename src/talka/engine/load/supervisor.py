"""Starts cores, carries messages to and from them, and sees them end. Decides nothing."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from talka.engine.core_child import Confines, CoreChild, CoreChildren, CoreEnd
from talka.engine.core_stack import CoreLook
from talka.engine.load.core import OwnerGone
from talka.engine.load.core_process import serve
from talka.engine.load.recorder import described
from talka.engine.process_start import new_event_loop
from talka.errors import Untrusted
from talka.wire.framing import Deframer, framed
from talka.wire.shards import (
    THE_PROCESS,
    Arm,
    FromCore,
    MemorySource,
    ToCore,
    decode_from_core,
    encode,
    enveloped,
    opened,
)

CORE_MODULE = "talka.engine.load.core_process"
READ_BYTES = 262_144
LAST_WORD_S = 0.5
"""For cores that have said their last word: they end by themselves."""
END_WAIT_S = 5
TERMINATE_S = 0.2
"""Between asking and killing. Whoever calls has waited for the grace period already."""
BREAK_OFF_S = 5.0
"""An attempt that shares its process is broken off; where that takes longer, the process ends and the others with
it."""
LINE_BYTES_LIMIT = 4096


class CoreThread:
    """A core in a thread of this process, for classes no file holds. It cannot be killed; closing its socket ends
    it."""

    def __init__(self, sock: socket.socket) -> None:
        self.pid = os.getpid()
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._end = CoreEnd("ended")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                with contextlib.suppress(OwnerGone, ConnectionError):
                    runner.run(serve(self._sock))
        except BaseException as error:  # noqa: BLE001 - also the user's sys.exit: it ends this core, not the owner
            self._end = CoreEnd(f"ended with {described(error)}", status=1)
        with contextlib.suppress(RuntimeError):  # the owner's loop is closed already
            self._loop.call_soon_threadsafe(self._over.set)

    async def ended(self) -> CoreEnd:
        await self._over.wait()
        return self._end

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    terminate = kill


@dataclass(eq=False)
class SharedProcess:
    """A process, or a thread, and the attempts that it runs."""

    number: int
    """By which attempts name it."""
    runs: CoreChild | CoreThread
    writer: asyncio.StreamWriter
    folder: str | None
    arms: dict[int, Arm] = field(default_factory=dict)
    """Of the attempts that have not ended."""
    greeted: dict[int, None] = field(default_factory=dict)
    """Attempts that it has begun with."""
    over: dict[int, None] = field(default_factory=dict)
    """Attempts that have ended and are the last here: their exit is told with the end of the process."""
    blamed: str = ""
    """Why it was killed, where one of its attempts is to blame and not the process."""

    def say(self, core: int, content: bytes = b"") -> None:
        self.writer.write(framed(enveloped(core, content)))


class Lines:
    """Bytes in, lines out. One without an end is told in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        found = [line.decode("utf-8", "replace").rstrip("\r") for line in whole]
        return found + self.rest() if len(self._rest) > LINE_BYTES_LIMIT else found

    def rest(self) -> list[str]:
        """What has no end yet."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "replace")] if rest else []


class Supervisor:
    """The cores of one job. `on_message` and `on_exit` are called in the order in which things happened.

    Numbers are those of attempts. One exits when its process has ended, or before that, if others go on there.
    """

    def __init__(
        self,
        on_message: Callable[[int, FromCore], None],
        on_exit: Callable[[int, str], None],
        on_lines: Callable[[int, list[str]], None] | None = None,
        on_turn: Callable[[int], None] | None = None,
        *,
        has_lease: bool = False,
        confines: Confines | None = None,
        share_bytes: int = 0,
        terminate_s: float = TERMINATE_S,
        break_off_s: float = BREAK_OFF_S,
    ) -> None:
        """`on_lines` is told what core processes print; it goes to our own stderr in any case. `on_turn` is told the
        number of a process whose event loop turns, and then `look` shows what one does. With a lease cores end by
        themselves at what `tell_end` says. `share_bytes` of memory are what a core may set aside; 0: no bound."""
        self.children = CoreChildren(
            CORE_MODULE, has_lease=has_lease, confines=confines, shows_stack=on_turn is not None
        )
        self._on_turn = on_turn
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_lines = on_lines
        self._share_bytes = share_bytes
        self._terminate_s = terminate_s
        self._break_off_s = break_off_s
        self._cores: dict[int, SharedProcess] = {}
        self._processes: dict[int, SharedProcess] = {}
        """By the number that attempts name to share one."""
        self._is_closing = False
        self._listening: dict[int, asyncio.Task[None]] = {}

    def pids(self) -> dict[int, int]:
        return {core: shared.runs.pid for core, shared in self._cores.items()}

    def look(self, process: int, told: Callable[[CoreLook], None]) -> None:
        """What the process of this number does, though it may not answer."""
        shared = self._processes.get(process)
        if shared is not None and isinstance(shared.runs, CoreChild):
            shared.runs.look(told)

    async def start(self, core: int, arm: Arm, process: int = 0, folder: str | None = None) -> None:
        """In the process of this number, if it lives; in a new one that has the number from now on, if not, which is in
        this `folder`."""
        process = process or core
        shared = self._processes.get(process)
        if shared is None:
            shared = self._processes[process] = await self._new(process, arm, folder)
        self._cores[core] = shared
        shared.arms[core] = arm
        shared.say(core, encode(arm))
        self._let_go(shared)

    def _let_go(self, shared: SharedProcess) -> None:
        """Tell of attempts that have ended, while others go on in their process."""
        for core in list(shared.over):
            if len(shared.arms) > 1:
                del shared.over[core], shared.arms[core], self._cores[core]
                self._on_exit(core, "ended")

    def _process_of(self, folder: str | None, output: int = 2) -> tuple[CoreChild, socket.socket]:
        child, ours = self.children.start(output=output, folder=folder)
        child.limit(data_bytes=self._share_bytes)
        if self.children.end_ns:
            child.tell_end(self.children.end_ns)  # one that has come already, too: what was to run may run elsewhere
        return child, ours

    async def _new(self, process: int, arm: Arm, folder: str | None) -> SharedProcess:
        runs: CoreChild | CoreThread
        pipe: IO[bytes] | None = None
        if isinstance(arm.source, MemorySource):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            runs = CoreThread(theirs)
        elif self._on_lines is None:
            runs, ours = self._process_of(folder)
        else:
            ours_out, theirs_out = os.pipe()
            pipe = os.fdopen(ours_out, "rb", 0)
            runs, ours = self._process_of(folder, theirs_out)
            os.close(theirs_out)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        shared = SharedProcess(process, runs, writer, folder)
        if pipe is not None and self._on_lines is not None:
            self._listening[process] = asyncio.create_task(self._listen(process, shared, pipe, self._on_lines))
        self.children.attend(self._attend(process, shared, reader))
        return shared

    def send(self, core: int, message: ToCore) -> None:
        if core in self._cores:
            self._cores[core].say(core, encode(message))

    def kill(self, core: int) -> None:
        if core in self._cores and not self._break_off(core):
            self._cores[core].runs.kill()

    def end(self, core: int) -> None:
        """Ask the core and its children to end, and see to it that they do."""
        if core not in self._cores or self._break_off(core):
            return
        runs = self._cores[core].runs
        runs.terminate()
        asyncio.get_running_loop().call_later(self._terminate_s, runs.kill)

    def _break_off(self, core: int) -> bool:
        """End one attempt of several in a process; False when it is alone there."""
        shared = self._cores[core]
        if len(shared.arms) == 1:
            return False
        shared.say(core)
        asyncio.get_running_loop().call_later(self._break_off_s, self._see_it_gone, core, shared)
        return True

    def _see_it_gone(self, core: int, shared: SharedProcess) -> None:
        if core in shared.arms:
            shared.blamed = f"was killed with {shared.arms[core].workflow}, which shared its core and did not end"
            shared.runs.kill()

    async def close(self) -> None:
        """End every core that is left."""
        self._is_closing = True
        await self.children.wait(LAST_WORD_S)
        for shared in list(self._cores.values()):
            shared.runs.kill()
        await self.children.close(END_WAIT_S)

    async def _attend(self, process: int, shared: SharedProcess, reader: asyncio.StreamReader) -> None:
        reading = asyncio.create_task(self._read(shared, reader))
        end = await shared.runs.ended()
        if isinstance(shared.runs, CoreChild):
            await shared.runs.removed()
        # A child that left its group may hold the socket open for ever; what the core said is there at once.
        listening = self._listening.pop(process, None)
        waits = {reading} if listening is None else {reading, listening}
        await asyncio.wait(waits, timeout=1)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        shared.writer.close()
        with contextlib.suppress(ConnectionError):
            await shared.writer.wait_closed()
        if self._processes.get(process) is shared:
            del self._processes[process]
        left, shared.arms = shared.arms, {}
        for core in left:
            del self._cores[core]
        missed = {core: arm for core, arm in left.items() if shared.greeted and core not in shared.greeted}
        for core in left:
            if core not in missed:
                self._on_exit(core, shared.blamed or end.text)
        for core, arm in missed.items():
            if end.status == 0 and not self._is_closing:
                # The last of its others had ended before it was heard of: it has lost nothing.
                await self.start(core, arm, process, shared.folder)
            else:
                self._on_exit(core, shared.blamed or end.text)

    async def _listen(
        self, process: int, shared: SharedProcess, file: IO[bytes], on_lines: Callable[[int, list[str]], None]
    ) -> None:
        """Until nobody holds the other end; a child that left its group may hold it for ever, and whoever attends to
        the process then cancels this. Lines are told of the first of its attempts: all are of one job."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        lines = Lines()
        try:
            while data := await reader.read(READ_BYTES):
                with contextlib.suppress(OSError):
                    os.write(2, data)
                on_lines(next(iter(shared.arms), process), lines.feed(data))
        finally:
            on_lines(next(iter(shared.arms), process), lines.rest())
            pipe.close()

    async def _read(self, shared: SharedProcess, reader: asyncio.StreamReader) -> None:
        """Everything the core said, to the end: a report that arrived before a death counts."""
        deframer = Deframer()
        try:
            while data := await reader.read(READ_BYTES):
                for frame in deframer.feed(data):
                    core, content = opened(frame)
                    if core == THE_PROCESS:
                        if self._on_turn is not None:
                            self._on_turn(shared.number)
                        continue
                    if core not in shared.arms:
                        continue  # its last words
                    shared.greeted[core] = None
                    if content:
                        self._on_message(core, decode_from_core(content))
                    else:
                        shared.over[core] = None
                        self._let_go(shared)
        except ConnectionError:
            return
        except Untrusted:
            shared.runs.kill()
