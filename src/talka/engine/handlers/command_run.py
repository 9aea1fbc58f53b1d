"""A command line as a handler: JSON on its standard input, its output on the standard one.

It runs in the process group of its core, so that it goes when the core goes. Its own children are known by what they
inherited in their environment: they end with it, or when it is stopped.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import msgspec

from talka.clock import monotonic_ns
from talka.engine.containment import signal_name
from talka.engine.handlers.handler_run import NO_CONFIG, NULL, HandlerRun, failure
from talka.engine.handlers.kin import FENCE, kin
from talka.engine.handlers.measured_process import MeasuredProcess, start_measured
from talka.engine.waits import within
from talka.wire.tasks import LOG_LINE_LIMIT, TaskResult
from talka.work.dags.dag import OUTPUT_LIMIT_BYTES

INPUT, OUTPUT, ERRORS = range(3)
TERMINATE_S: Final = 2.0
"""Between asking and killing."""
CLOSE_S: Final = 0.05
"""For what is left in its pipes. A child that it left behind may hold them open, and is killed then."""


async def run_command(
    attempt: HandlerRun, arguments: Sequence[str], environment: Mapping[str, str], *, terminate_s: float = TERMINATE_S
) -> TaskResult:
    if attempt.reason is not None:
        return attempt.stopped()
    attempt.began_ns = monotonic_ns()
    command = CommandRun(attempt, terminate_s)
    # What tells the command which attempt it is comes last.
    told = {"TALKA_TASK": attempt.id, "TALKA_JOB": attempt.job, "TALKA_ATTEMPT": str(attempt.attempt)}
    environment = {**os.environ, **environment, **told, FENCE: str(attempt.fence)}
    starting = asyncio.ensure_future(start_measured(command, arguments, environment, attempt.meter))
    while not starting.done():
        try:
            await asyncio.wait({starting})
        except asyncio.CancelledError:
            command.is_stopped = True  # once it is there: half a start cannot be undone
    error = starting.exception()
    if error is None:
        return await command.run()
    result = failure(attempt, error)
    text = f"the command {arguments[0]} cannot be started: {error}"
    return msgspec.structs.replace(result, error=text) if result.outcome == "failed" else result


def given(attempt: HandlerRun) -> bytes:
    handed = attempt.handed
    inputs = {name: msgspec.Raw(content) for name, content in handed.inputs.items()}
    config, checkpoint = msgspec.Raw(handed.config or NO_CONFIG), msgspec.Raw(handed.checkpoint or NULL)
    told: dict[str, object] = {"config": config, "inputs": inputs, "checkpoint": checkpoint}
    if attempt.index is not None:
        told |= {"item": msgspec.Raw(handed.item), "index": attempt.index}
    return msgspec.json.encode(told)


def output_of(written: bytes) -> bytes:
    """JSON if it is, else the text as JSON."""
    content = written.strip()
    if not content:
        return NULL
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(content.decode("utf-8", "replace"))
    return content


class CommandRun(asyncio.SubprocessProtocol):
    """A process, until it has ended and its children with it."""

    def __init__(self, attempt: HandlerRun, terminate_s: float) -> None:
        self.is_stopped = False
        """It is to end as soon as it is there."""
        self._attempt = attempt
        self._terminate_s = terminate_s
        self._is_warned = False
        """It was asked to end, and had time to."""
        self._transport: MeasuredProcess | None = None
        self._output = bytearray()
        self._open = {OUTPUT, ERRORS}
        self._exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._over = asyncio.Event()
        """It has ended, or is to be ended for what it wrote."""

    # What goes in and out.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(MeasuredProcess, transport)
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(INPUT))
        if not stdin.is_closing():  # it need not read it, and may have ended
            stdin.write(given(self._attempt))
        stdin.close()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == ERRORS:
            self._attempt.wrote("stderr", data)
        elif not self._is_too_long:
            self._attempt.wrote("stdout", data)
            self._output += data
            if self._is_too_long:
                self._over.set()

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self._silent.set()

    def process_exited(self) -> None:
        self._exited.set()
        self._over.set()

    @property
    def _is_too_long(self) -> bool:
        return len(self._output) > OUTPUT_LIMIT_BYTES

    # How it ends.

    async def run(self) -> TaskResult:
        try:
            if self.is_stopped:
                raise asyncio.CancelledError
            if self._attempt.handed.on_timeout != "notify":
                self._attempt.end_softly = self._end_softly
            await self._over.wait()
            if not self._is_too_long:
                await within(CLOSE_S, self._silent)
        except asyncio.CancelledError:
            # Ask, wait, kill. Told a second time to stop, it is killed at once.
            if not self._is_warned:
                self._signal(signal.SIGTERM)
                with contextlib.suppress(asyncio.CancelledError):
                    await within(self._terminate_s, self._exited)
        await self._end()
        self._attempt.memory_bytes = self._transport.memory_bytes if self._transport is not None else 0
        return self._result()

    def _end_softly(self) -> None:
        """Its time is over. However it ends from now on, it was ended for that."""
        self._is_warned = True
        self._attempt.reason = self._attempt.reason or "timeout"
        self._signal(signal.SIGTERM)

    async def _end(self) -> None:
        """Whoever is left is killed; what hangs in the kernel is not waited for."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(asyncio.CancelledError):
            await within(self._terminate_s, self._exited)
            await within(CLOSE_S, self._silent)
        assert self._transport is not None
        self._transport.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self._transport is not None
        running = [] if self._exited.is_set() else [self._transport.get_pid()]
        for pid in dict.fromkeys([*running, *family(running, str(self._attempt.fence))]):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _result(self) -> TaskResult:
        assert self._transport is not None
        attempt, status = self._attempt, self._transport.get_returncode()
        if attempt.reason is not None:
            return attempt.stopped()
        if self._is_too_long:
            limit = OUTPUT_LIMIT_BYTES // 1024
            text = f"it wrote more than the {limit} KiB that an output may have: print where it is, not what it is"
            return attempt.result("failed", text, "output")
        line = last_line(attempt)
        last = f": {line}" if line else ""
        if status is None:
            return attempt.result("failed", f"its command did not end{last}", "exit")
        if status < 0:
            name = signal_name(-status)
            return attempt.result("failed", f"its command was killed by {name}{last}", name, signal=name)
        if status:
            return attempt.result("failed", f"its command exited with status {status}{last}", "exit", exit_code=status)
        written = bytes(self._output)
        output = output_of(written)
        if attempt.output is not None and output in (NULL, written.strip()):
            attempt.output.drop("stdout")  # all of it is the output
        return attempt.completed(output)


def last_line(attempt: HandlerRun) -> str:
    """Of its standard error, the last that says anything."""
    written = b"" if attempt.output is None else attempt.output.end_of("stderr")
    for line in reversed(written.split(b"\n")):
        if text := line[: 4 * LOG_LINE_LIMIT].decode("utf-8", "replace").rstrip():
            return text[:LOG_LINE_LIMIT]
    return ""


def family(pids: list[int], fence: str) -> Iterator[int]:
    """Processes of this group that carry the fence in their environment, and children of `pids`."""
    import psutil  # a core that runs no commands need not load it

    for pid in pids:
        with contextlib.suppress(psutil.Error):
            yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
    for pid in kin():
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).environ().get(FENCE) == fence:
                yield pid
