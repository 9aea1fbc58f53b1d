"""A command's process, which is waited for here: only so does the kernel say what it used. To its protocol it looks as
the transports of asyncio do.

Decision: docs/decisions/0055-what-an-attempt-used.md.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Final, cast

from talka.engine.handlers.attempt_memory import KIBIBYTE, MemoryMeter, seen_peak
from talka.engine.waits import until_exit

UNIT_BYTES: Final = 1 if sys.platform == "darwin" else KIBIBYTE
FIRST_LOOK_S: Final = 0.001
LOOKS_GROW: Final = 2.0
LAST_LOOK_S: Final = 0.25
"""Looks at a running command: soon, for it may be short, then ever less often, so that the last one is never long
before its end."""


class MeasuredProcess(asyncio.SubprocessTransport):
    """One process with three pipes. Tells `protocol` as a transport does."""

    def __init__(
        self, protocol: asyncio.SubprocessProtocol, process: "subprocess.Popen[bytes]", floor: int | None
    ) -> None:
        """`floor`: what the kernel counts of it whatever it does. None: it is not measured."""
        super().__init__()
        self.memory_bytes = 0
        """The most that it or one of those it waited for had, once it has exited; 0: not known."""
        self.seen_bytes = 0
        """Likewise, by the last look."""
        self._protocol = protocol
        self._process = process
        self._floor = floor
        self._pipes: dict[int, asyncio.BaseTransport] = {}
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Task[None] | None = None
        if floor is not None:
            self._look = self._loop.call_later(FIRST_LOOK_S, self._look_again, FIRST_LOOK_S)

    async def open(self) -> None:
        """Connect its pipes. Whatever comes through them is told at once."""
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        for fd, stream in enumerate(cast(tuple[IO[bytes], ...], streams)):
            end = _PipeEnd(self._protocol, fd)
            connect = self._loop.connect_read_pipe if fd else self._loop.connect_write_pipe
            self._pipes[fd], _ = await connect(lambda end=end: end, stream)  # type: ignore[misc]
        self._protocol.connection_made(self)
        self._waiter = self._loop.create_task(self._wait())

    async def _wait(self) -> None:
        await until_exit(self._process.pid)
        _, waited, usage = os.wait4(self._process.pid, 0)  # noqa: ASYNC222 - it has ended
        self._process.returncode = os.waitstatus_to_exitcode(waited)
        self.stop_looking()
        counted = usage.ru_maxrss * UNIT_BYTES
        if self._floor is not None:
            self.memory_bytes = counted if counted > self._floor else self.seen_bytes
        self._protocol.process_exited()

    def _look_again(self, after_s: float) -> None:
        self.seen_bytes = max(self.seen_bytes, seen_peak(self._process.pid))
        after_s = min(after_s * LOOKS_GROW, LAST_LOOK_S)
        self._look = self._loop.call_later(after_s, self._look_again, after_s)

    def stop_looking(self) -> None:
        """What was seen until now is all that is seen."""
        if self._look is not None:
            self._look.cancel()
            self._look = None

    # As a transport.

    def get_pid(self) -> int:
        return self._process.pid

    def get_returncode(self) -> int | None:
        return self._process.returncode

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        return self._pipes.get(fd)

    def is_closing(self) -> bool:
        return self._waiter is None

    def close(self) -> None:
        """What has not ended is left to itself: whoever closes has killed it."""
        self.stop_looking()
        for pipe in self._pipes.values():
            pipe.close()


class _PipeEnd(asyncio.Protocol):
    def __init__(self, owner: asyncio.SubprocessProtocol, fd: int) -> None:
        self._owner = owner
        self._fd = fd

    def data_received(self, data: bytes) -> None:
        self._owner.pipe_data_received(self._fd, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.pipe_connection_lost(self._fd, error)


async def start_measured(
    protocol: asyncio.SubprocessProtocol,
    arguments: Sequence[str],
    env: Mapping[str, str],
    meter: MemoryMeter | None = None,
) -> MeasuredProcess:
    """Raises OSError where there is no such program."""

    def start() -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=env, bufsize=0)

    process, floor = (start(), None) if meter is None else meter.started(start)
    started = MeasuredProcess(protocol, process, floor)
    try:
        await started.open()
    except BaseException:
        process.kill()
        started.close()
        raise
    return started
