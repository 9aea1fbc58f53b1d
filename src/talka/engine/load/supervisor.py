"""Starts cores, carries messages to and from them, and sees them end. Decides nothing."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Protocol

from talka.engine.containment import ControlGroup, Guard, kill_group
from talka.engine.core_spawn import Confines, start_core
from talka.engine.load.core import OwnerGone
from talka.engine.load.core_process import serve
from talka.engine.load.recorder import described
from talka.engine.process_start import new_event_loop
from talka.errors import Untrusted
from talka.wire.framing import Deframer, framed
from talka.wire.shards import (
    Arm,
    FromCore,
    MemorySource,
    ToCore,
    decode_from_core,
    encode,
    enveloped,
    opened,
)

READ_BYTES = 262_144
END_WAIT_S = 5
TERMINATE_S = 0.2
"""Between asking and killing. Whoever calls has waited for the grace period already."""
BREAK_OFF_S = 5.0
"""An attempt that shares its process is broken off; where that takes longer, the process ends and the others with it."""
LINE_BYTES_LIMIT = 4096
REMOVE_TRIES = 100
REMOVE_PAUSE_S = 0.01


class Runs(Protocol):
    """Whatever runs a core: a process, or a thread of this process."""

    @property
    def pid(self) -> int: ...
    async def ended(self) -> str:
        """Wait until it has ended; how, in words that follow "the core"."""

    def tell_end(self, end_ns: int) -> None:
        """It stops itself at this instant. Of one whose owner has a lease."""

    def terminate(self) -> None:
        """Let it end by itself."""

    def kill(self) -> None: ...

    @property
    def ended_well(self) -> bool:
        """Whether it ended because it had nothing left to do."""


class CoreProcess:
    ended_well = False

    def __init__(
        self,
        sock: socket.socket,
        guard: Guard,
        output: int = 2,
        *,
        has_lease: bool = False,
        confines: Confines | None = None,
        folder: str | None = None,
    ) -> None:
        """As `start_core` has it."""
        self._guard = guard
        module = "talka.engine.load.core_process"
        started = start_core(module, sock, output=output, has_lease=has_lease, confines=confines, folder=folder)
        self._process, self._end = started.process, started.end
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
        if self._end is not None:
            self._end.close()
            self._end = None
        if self._control_group is not None:
            await self._removed(self._control_group)
        self.ended_well = status == 0
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    async def _removed(self, control_group: ControlGroup) -> None:
        for _ in range(REMOVE_TRIES):
            if control_group.remove():
                return
            await asyncio.sleep(REMOVE_PAUSE_S)  # the kernel has no event for it

    def tell_end(self, end_ns: int) -> None:
        if self._end is not None:
            self._end.tell(end_ns)

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

    @property
    def ended_well(self) -> bool:
        return self._end == "ended"

    async def ended(self) -> str:
        await self._over.wait()
        return self._end

    def tell_end(self, end_ns: int) -> None:
        """A thread ends with its process."""

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


class Shared:
    """A process, or a thread, and the attempts that it runs."""

    def __init__(self, runs: Runs, writer: asyncio.StreamWriter, folder: str | None) -> None:
        self.runs = runs
        self.folder = folder
        self.writer = writer
        self.arms: dict[int, Arm] = {}
        """Of the attempts that have not ended."""
        self.greeted: dict[int, None] = {}
        """Attempts that it has begun with."""
        self.over: dict[int, None] = {}
        """Attempts that have ended and are the last here: their exit is told with the end of the process."""
        self.blamed = ""
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
        *,
        has_lease: bool = False,
        confines: Confines | None = None,
    ) -> None:
        """`on_lines` is told what core processes print; it goes to our own stderr in any case. With a lease cores end by
        themselves at what `tell_end` says."""
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_lines = on_lines
        self._has_lease = has_lease
        self._confines = confines
        self._end_ns = 0
        self._guard = Guard(has_lease=has_lease, env=None if confines is None else confines.env)
        self._cores: dict[int, Shared] = {}
        self._processes: dict[int, Shared] = {}
        """By the number that attempts name to share one."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._listening: dict[int, asyncio.Task[None]] = {}

    def pids(self) -> dict[int, int]:
        return {core: shared.runs.pid for core, shared in self._cores.items()}

    def tell_end(self, end_ns: int) -> None:
        """Of every core there is, and of those to come while it has not come."""
        self._end_ns = end_ns
        self._guard.tell_end(end_ns)
        for shared in self._processes.values():
            shared.runs.tell_end(end_ns)

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

    def _let_go(self, shared: Shared) -> None:
        """Tell of attempts that have ended, while others go on in their process."""
        for core in list(shared.over):
            if len(shared.arms) > 1:
                del shared.over[core], shared.arms[core], self._cores[core]
                self._on_exit(core, "ended")

    def _process_of(self, folder: str | None, theirs: socket.socket, output: int = 2) -> CoreProcess:
        runs = CoreProcess(
            theirs, self._guard, output, has_lease=self._has_lease, confines=self._confines, folder=folder
        )
        if self._end_ns:
            runs.tell_end(self._end_ns)  # one that has come already, too: what was to run may run elsewhere
        return runs

    async def _new(self, process: int, arm: Arm, folder: str | None) -> Shared:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        runs: Runs
        pipe: IO[bytes] | None = None
        if isinstance(arm.source, MemorySource):
            runs = CoreThread(theirs)
        elif self._on_lines is None:
            runs = self._process_of(folder, theirs)
            theirs.close()
        else:
            ours_out, theirs_out = os.pipe()
            pipe = os.fdopen(ours_out, "rb", 0)
            runs = self._process_of(folder, theirs, theirs_out)
            theirs.close()
            os.close(theirs_out)
        shared = Shared(runs, writer, folder)
        if pipe is not None and self._on_lines is not None:
            self._listening[process] = asyncio.create_task(self._listen(process, shared, pipe, self._on_lines))
        task = asyncio.create_task(self._attend(process, shared, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
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
        asyncio.get_running_loop().call_later(TERMINATE_S, runs.kill)

    def _break_off(self, core: int) -> bool:
        """End one attempt of several in a process; False when it is alone there."""
        shared = self._cores[core]
        if len(shared.arms) == 1:
            return False
        shared.say(core)
        asyncio.get_running_loop().call_later(BREAK_OFF_S, self._see_it_gone, core, shared)
        return True

    def _see_it_gone(self, core: int, shared: Shared) -> None:
        if core in shared.arms:
            shared.blamed = f"was killed with {shared.arms[core].workflow}, which shared its core and did not end"
            shared.runs.kill()

    async def close(self) -> None:
        """End every core that is left."""
        self._is_closing = True
        if self._tasks:
            # Those that have said their last word end by themselves.
            await asyncio.wait(self._tasks, timeout=0.5)
        for shared in list(self._cores.values()):
            shared.runs.kill()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_WAIT_S)
        self._guard.close()

    def check_guard(self) -> None:
        self._guard.restart_if_gone()

    async def _attend(self, process: int, shared: Shared, reader: asyncio.StreamReader) -> None:
        reading = asyncio.create_task(self._read(shared, reader))
        cause = await shared.runs.ended()
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
                self._on_exit(core, shared.blamed or cause)
        for core, arm in missed.items():
            if shared.runs.ended_well and not self._is_closing:
                # The last of its others had ended before it was heard of: it has lost nothing.
                await self.start(core, arm, process, shared.folder)
            else:
                self._on_exit(core, shared.blamed or cause)

    async def _listen(
        self, process: int, shared: Shared, file: IO[bytes], on_lines: Callable[[int, list[str]], None]
    ) -> None:
        """Until nobody holds the other end; a child that left its group may hold it for ever, and whoever attends to the
        process then cancels this. Lines are told of the first of its attempts: all are of one job."""
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

    async def _read(self, shared: Shared, reader: asyncio.StreamReader) -> None:
        """Everything the core said, to the end: a report that arrived before a death counts."""
        deframer = Deframer()
        try:
            while data := await reader.read(READ_BYTES):
                for frame in deframer.feed(data):
                    core, content = opened(frame)
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
