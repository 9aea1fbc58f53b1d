"""Starts cores, carries messages to and from them, and sees them end. Decides nothing."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Protocol

from talka.engine.beginnings import new_event_loop
from talka.engine.containment import ControlGroup, Guard, kill_group
from talka.engine.core import OwnerGone, serve
from talka.engine.recorder import described
from talka.errors import Untrusted
from talka.wire.framing import Deframer, framed
from talka.wire.shards import Arm, FromCore, MemorySource, ToCore, decode_from_core, encode

READ_BYTES = 262_144
END_WAIT_S = 5
TERMINATE_S = 0.2
"""Between asking and killing. Whoever calls has waited for the grace period already."""
LINE_BYTES_LIMIT = 4096
REMOVE_TRIES = 100
REMOVE_PAUSE_S = 0.01


class Runs(Protocol):
    """Whatever runs a core: a process, or a thread of this process."""

    @property
    def pid(self) -> int: ...
    async def ended(self) -> str:
        """Wait until it has ended; how, in words that follow "the core"."""

    def terminate(self) -> None:
        """Let it end by itself."""

    def kill(self) -> None: ...


class CoreProcess:
    def __init__(self, sock: socket.socket, guard: Guard, output: int = 2) -> None:
        """What the user's code prints goes to the descriptor `output`: it must not mix with the result."""
        self._guard = guard
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "talka.engine.core", str(sock.fileno()), str(os.getpid())],
            pass_fds=(sock.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        guard.watch(self.pid)
        self._control_group = ControlGroup.around(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> str:
        await wait_for_exit(self._process)
        # The group is named after a process nobody has waited for yet, so its number cannot belong to others.
        kill_group(self.pid)
        if self._control_group is not None:
            self._control_group.kill()
        status = self._process.wait()
        self._guard.forget(self.pid)
        if self._control_group is not None:
            await self._removed(self._control_group)
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    async def _removed(self, control_group: ControlGroup) -> None:
        for _ in range(REMOVE_TRIES):
            if control_group.remove():
                return
            await asyncio.sleep(REMOVE_PAUSE_S)  # the kernel has no event for it

    def terminate(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self._process.returncode is not None:
            return  # it was waited for, so its number may be another's by now
        kill_group(self.pid)
        if self._control_group is not None:
            self._control_group.kill()


async def wait_for_exit(process: "subprocess.Popen[bytes]") -> None:
    """Until the process has ended; it stays to be waited for."""
    loop = asyncio.get_running_loop()
    if hasattr(os, "pidfd_open"):
        fd = os.pidfd_open(process.pid)
        over = loop.create_future()
        loop.add_reader(fd, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            loop.remove_reader(fd)
            os.close(fd)
    else:
        await loop.run_in_executor(None, os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


class CoreThread:
    """A core in a thread of this process, for classes no file holds. It cannot be killed; closing its socket ends it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._end = "ended"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return os.getpid()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                with contextlib.suppress(OwnerGone, ConnectionError):
                    runner.run(serve(self._sock))
        except BaseException as error:  # noqa: BLE001 - also the user's sys.exit: it ends this core, not the owner
            self._end = f"ended with {described(error)}"
        with contextlib.suppress(RuntimeError):  # the owner's loop is closed already
            self._loop.call_soon_threadsafe(self._over.set)

    async def ended(self) -> str:
        await self._over.wait()
        return self._end

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


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
    """The cores of one job. `on_message` and `on_exit` are called in the order in which things happened."""

    def __init__(
        self,
        on_message: Callable[[int, FromCore], None],
        on_exit: Callable[[int, str], None],
        on_lines: Callable[[int, list[str]], None] | None = None,
    ) -> None:
        """`on_lines` is told what core processes print; it goes to our own stderr in any case."""
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_lines = on_lines
        self._guard = Guard()
        self._cores: dict[int, tuple[Runs, asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: dict[int, asyncio.Task[None]] = {}

    def pids(self) -> dict[int, int]:
        return {core: runs.pid for core, (runs, _) in self._cores.items()}

    async def start(self, core: int, arm: Arm) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        runs: Runs
        if isinstance(arm.source, MemorySource):
            runs = CoreThread(theirs)
        elif self._on_lines is None:
            runs = CoreProcess(theirs, self._guard)
            theirs.close()
        else:
            ours_out, theirs_out = os.pipe()
            pipe = os.fdopen(ours_out, "rb", 0)
            runs = CoreProcess(theirs, self._guard, theirs_out)
            theirs.close()
            os.close(theirs_out)
            self._listening[core] = asyncio.create_task(self._listen(core, pipe, self._on_lines))
        self._cores[core] = (runs, writer)
        self.send(core, arm)
        task = asyncio.create_task(self._attend(core, runs, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send(self, core: int, message: ToCore) -> None:
        if core in self._cores:
            self._cores[core][1].write(framed(encode(message)))

    def kill(self, core: int) -> None:
        if core in self._cores:
            self._cores[core][0].kill()

    def end(self, core: int) -> None:
        """Ask the core and its children to end, and see to it that they do."""
        if core not in self._cores:
            return
        runs = self._cores[core][0]
        runs.terminate()
        asyncio.get_running_loop().call_later(TERMINATE_S, runs.kill)

    async def close(self) -> None:
        """End every core that is left."""
        if self._tasks:
            # Those that have said their last word end by themselves.
            await asyncio.wait(self._tasks, timeout=0.5)
        for core in list(self._cores):
            self.kill(core)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_WAIT_S)
        self._guard.close()

    def check_guard(self) -> None:
        self._guard.restart_if_gone()

    async def _attend(self, core: int, runs: Runs, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading = asyncio.create_task(self._read(core, runs, reader))
        cause = await runs.ended()
        # A child that left its group may hold the socket open for ever; what the core said is there at once.
        listening = self._listening.pop(core, None)
        waits = {reading} if listening is None else {reading, listening}
        await asyncio.wait(waits, timeout=1)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        del self._cores[core]
        self._on_exit(core, cause)

    async def _listen(self, core: int, file: IO[bytes], on_lines: Callable[[int, list[str]], None]) -> None:
        """Until nobody holds the other end; a child that left its group may hold it for ever, and whoever attends to the core
        then cancels this."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        lines = Lines()
        try:
            while data := await reader.read(READ_BYTES):
                with contextlib.suppress(OSError):
                    os.write(2, data)
                on_lines(core, lines.feed(data))
        finally:
            on_lines(core, lines.rest())
            pipe.close()

    async def _read(self, core: int, runs: Runs, reader: asyncio.StreamReader) -> None:
        """Everything the core said, to the end: a report that arrived before a death counts."""
        deframer = Deframer()
        try:
            while data := await reader.read(READ_BYTES):
                for frame in deframer.feed(data):
                    self._on_message(core, decode_from_core(frame))
        except ConnectionError:
            return
        except Untrusted:
            runs.kill()
