"""A core that runs handlers, told what to run over a socket. `python -m talka.engine.handlers.handler_core FD PPID END
stack=FD` is its process.

Coroutines run side by side on its event loop, plain functions and command lines one after the other beside it. All
that is told goes out once per turn of the loop: what an attempt said before how it ended.

Decision: docs/decisions/0023-a-core-that-dies.md.
"""

import asyncio
import contextvars
import gc
import os
import queue
import resource
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from talka.clock import cpu_ns, monotonic_ns, realtime_ns
from talka.engine.handlers.attempt_memory import MemoryMeter
from talka.engine.handlers.attempt_output import current, route_streams
from talka.engine.handlers.attempt_warning import call_in_loop, call_in_thread
from talka.engine.handlers.command_run import run_command
from talka.engine.handlers.forked_child import end_child, take_from_child
from talka.engine.handlers.handler_run import HandlerRun, Reason, described, failure, run_async, run_plain
from talka.engine.handlers.kin import is_of_command, kin
from talka.engine.loader import import_file
from talka.engine.process_start import begin_core, new_event_loop
from talka.engine.unpack import as_in_bundle, unpack
from talka.errors import Invalid, Unavailable, sendable
from talka.units import MILLISECOND, SECOND
from talka.wire.channels import BadMessage
from talka.wire.framing import HEADER_BYTES, Deframer
from talka.wire.output_tail import tails_bytes
from talka.wire.tasks import (
    FromHandlers,
    HandedTask,
    HandlerProgress,
    Load,
    Loaded,
    Ran,
    RunTasks,
    Said,
    Spent,
    StopTasks,
    TaskLine,
    TaskResult,
    TellTime,
    TimeWanted,
    ToHandlers,
    WarnTasks,
    decode_to_handlers,
    encode,
)
from talka.work.handlers import BadHandlers, HandlerSpec, handlers_of
from talka.work.specs import SpecProblem

FRAME_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Of this socket: a task comes with all of its inputs."""
SAY_EVERY_S: Final = 0.01
"""A handler that talks without end must not keep its worker busy: what is said waits so long, or for a result."""
LOOK_AFTER_S: Final = 0.05
"""From an attempt that did not return to the look for processes it left: of many that fail, one look is enough."""
DID_NOT_RETURN: Final = ("failed", "cancelled", "timeout")
PROBLEM_LIMIT: Final = 20_000
READ_BYTES: Final = 262_144
EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
"""Up to its first wait at once: most handlers that wait for nothing need no turn of the loop."""
LAST_WORDS_S: Final = 1.0
"""For what runs when the worker wants this core no more."""


def framed_message(message: ToHandlers | FromHandlers) -> bytes:
    content = encode(message)
    return len(content).to_bytes(HEADER_BYTES, "big") + content


def new_deframer() -> Deframer:
    return Deframer(FRAME_LIMIT_BYTES)


class HandlerCoreLimits(msgspec.Struct, frozen=True):
    """What waits to be said, and goes in one frame."""

    batch_bytes: int = 8 * 1024 * 1024
    """Bytes of outputs that travel in one frame, unless one alone is larger."""
    lines: int = 10_000
    """Lines that wait to be sent; those beyond are left out, and a line says how many."""
    lines_per_frame: int = 1000
    say_every_s: float = SAY_EVERY_S
    heard_within_s: float = 0.02
    """So long the thread of a function waits at most until the loop has told what it said."""


HANDLER_CORE_LIMITS: Final = HandlerCoreLimits()


class HandlerCore(asyncio.Protocol):
    """The conversation with the worker, and everything that runs. Threads may call `progress`, `line` and `done`."""

    def __init__(
        self,
        handlers: Mapping[str, HandlerSpec],
        threads: int = 1,
        *,
        limits: HandlerCoreLimits = HANDLER_CORE_LIMITS,
    ) -> None:
        self._limits = limits
        self._say_every_ns = round(limits.say_every_s * SECOND)
        self.over = asyncio.Event()
        """The worker closed its side."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._handlers = handlers
        self._roots = {name: f"{Path(spec.file).resolve().parent}{os.sep}" for name, spec in handlers.items()}
        self._deframer = new_deframer()
        self._transport: asyncio.Transport | None = None
        self._is_held_up = False
        self._attempts: dict[int, HandlerRun] = {}
        self._meter = MemoryMeter(lambda: len(self._attempts) > 1)
        self._queue: queue.SimpleQueue[HandlerRun] = queue.SimpleQueue()
        self._waiting: dict[int, HandlerRun] = {}
        """Those of the queue. Whoever takes one out, a thread to run it or the loop to stop it, has it alone."""
        self._threads_wanted = threads
        # Each is only ever taken from its end: threads add while the loop takes.
        self._results: deque[TaskResult] = deque()
        self._progress: dict[int, HandlerProgress] = {}
        self._lines: deque[TaskLine] = deque()
        self._left_out: dict[int, int] = {}
        self._wanted: deque[TimeWanted] = deque()
        self._heeding: deque[int] = deque()
        self._called: dict[int, list[asyncio.Task[None]]] = {}
        """What was called when an attempt was warned, and goes on."""
        self._writers: dict[int, HandlerRun] = {}
        """Those that wrote something of which the worker was not told."""
        self._is_due = False
        self._is_saying = False
        self._is_awaited = False
        """A thread waits until the loop has told what is new."""
        self._say_at_ns = 0
        """Before that nothing is said out of turn."""
        self._has_broken_off = False
        """An attempt did not return since the last look for what it left."""
        self._is_looking = False
        self._is_copy = False
        """This is a child that was forked: nothing is begun here and nothing told."""
        self._left_by_loading = set(kin())
        """Processes that were there before anything ran: they are of the file, not of an attempt."""

    # The worker.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it

    def data_received(self, data: bytes) -> None:
        for frame in self._deframer.feed(data):
            self.on_message(decode_to_handlers(frame))

    def eof_received(self) -> bool:
        self.over.set()
        return True  # what runs may still tell how it ended

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.over.set()

    def pause_writing(self) -> None:
        self._is_held_up = True

    def resume_writing(self) -> None:
        self._is_held_up = False
        self._say()

    def on_message(self, message: ToHandlers) -> None:
        match message:
            case RunTasks(tasks=tasks):
                for handed in tasks:
                    self._begin(handed)
            case StopTasks(fences=fences, reason=reason):
                for fence in fences:
                    self._stop(fence, reason)
            case WarnTasks(fences=fences):
                for fence in fences:
                    self._warn(fence)
            case TellTime(told=told):
                for one in told:
                    if (attempt := self._attempts.get(one.fence)) is not None:
                        attempt.time.told(one)
            case Load():
                raise BadMessage("a core loads its files once, before everything else")

    # What runs.

    def _begin(self, handed: HandedTask) -> None:
        if handed.fence in self._attempts:
            return
        attempt = HandlerRun(handed, self, self._meter)
        spec = self._handlers.get(handed.handler)
        if spec is None:
            self.done(attempt.result("refused", f"no file of this worker has a handler {handed.handler}", "handler"))
            return
        self._attempts[handed.fence] = attempt
        if handed.cpu_ms:
            limit_cpu(handed.cpu_ms)
        if spec.function is not None and spec.is_async:
            work = run_async(attempt, spec.function, self.done, self._roots[handed.handler])
            attempt.cancel = asyncio.Task(work, loop=self._loop, **EAGER).cancel
            return
        if self._threads_wanted:
            self._threads_wanted -= 1
            threading.Thread(target=self._work, name="handler", daemon=True).start()
        self._waiting[handed.fence] = attempt
        self._queue.put(attempt)

    def _stop(self, fence: int, reason: Reason) -> None:
        attempt = self._attempts.get(fence)
        if attempt is None:
            return
        attempt.stop(reason)
        if self._waiting.pop(fence, None) is not None:
            self.done(attempt.stopped())  # its turn may be far away

    def _warn(self, fence: int) -> None:
        """It has time to save what it has."""
        attempt = self._attempts.get(fence)
        if attempt is None:
            return
        callbacks = attempt.time.warn()
        if attempt.end_softly is not None:
            attempt.end_softly()
            return
        context = contextvars.copy_context()
        context.run(current.set, attempt)
        if attempt.thread:
            call = partial(context.run, call_in_thread, callbacks, attempt.log)
            threading.Thread(target=call, name="on_evict", daemon=True).start()
        else:
            self._called[fence] = context.run(call_in_loop, callbacks, attempt.log)

    def _work(self) -> None:
        """A thread: one after the other, in the order in which they came."""
        while True:
            attempt = self._queue.get()
            if self._waiting.pop(attempt.fence, None) is None:
                continue
            name = attempt.handed.handler
            spec = self._handlers[name]
            if spec.function is None:
                asyncio.run_coroutine_threadsafe(self._command(attempt, spec), self._loop).result()
            else:
                # Each in a context of its own, as coroutines are.
                self.done(contextvars.copy_context().run(run_plain, attempt, spec.function, self._roots[name]))
            del attempt

    async def _command(self, attempt: HandlerRun, spec: HandlerSpec) -> None:
        task = asyncio.current_task()
        assert task is not None
        attempt.cancel = task.cancel
        if attempt.handed.on_timeout != "notify":  # it is told by a signal, which would end it
            attempt.time.heed()
        try:
            self.done(await run_command(attempt, spec.command, spec.env))
        except BaseException as error:  # noqa: BLE001 - every attempt has a result
            self.done(failure(attempt, error))

    async def stop_all(self) -> None:
        """Tell everything to end, and give it a moment."""
        for fence in list(self._attempts):
            self._stop(fence, "cancelled")
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=LAST_WORDS_S)
        self._tell()

    def leave_to_child(self) -> None:
        """Of a child that was just forked, in its thread: what runs goes on in its parent alone."""
        self._is_copy, self._transport = True, None
        for attempt in list(self._attempts.values()):
            attempt.is_copy = True
        if threading.get_ident() == self._thread and self._loop.is_running():
            # Should it come back to the loop, other attempts would go on here too, and be done twice.
            error = RuntimeError("a forked child cannot go on in the event loop of its parent")
            self._loop.call_soon(end_child, error)

    def sole(self) -> HandlerRun | None:
        """The only one that runs."""
        running = [attempt for attempt in list(self._attempts.values()) if attempt.began_ns]
        return running[0] if len(running) == 1 else None

    # What is told.

    def done(self, result: TaskResult) -> None:
        self._attempts.pop(result.fence, None)
        if self._called:
            for task in self._called.pop(result.fence, ()):
                self._loop.call_soon_threadsafe(task.cancel)
        if result.tails:
            self._writers.pop(result.fence, None)  # all of it is in the result
        self._results.append(result)
        if result.outcome in DID_NOT_RETURN:
            self._has_broken_off = True
        if self._is_due:
            return
        if self._attempts or threading.get_ident() != self._thread:
            self._wake()
        else:
            self._tell()  # nothing else can end in this turn of the loop

    def progress(self, progress: HandlerProgress) -> None:
        if self._is_copy:
            return
        self._progress[progress.fence] = progress
        self._say_soon()

    def wants(self, wanted: TimeWanted) -> None:
        if self._is_copy:
            return
        self._wanted.append(wanted)
        self._say_soon()

    def heeds(self, fence: int) -> None:
        if self._is_copy:
            return
        self._heeding.append(fence)
        self._say_soon()

    def line(self, line: TaskLine) -> None:
        if self._is_copy:
            sys.stderr.write(f"{line.text}\n")
            return
        if len(self._lines) >= self._limits.lines:
            self._left_out[line.fence] = self._left_out.get(line.fence, 0) + 1
            return
        self._lines.append(line)
        self._say_soon()

    def wrote(self, attempt: HandlerRun, *, ends_line: bool) -> None:
        if attempt.fence not in self._attempts:
            return
        self._writers[attempt.fence] = attempt
        # If the process dies now it counts against this one, and its first line is all that is known. With others here
        # it does not, and this one is tried again alone: they need not wait for each other's first lines.
        is_first = len(self._attempts) == 1 and attempt.output is not None and not attempt.output.is_told
        self._say_soon(out_of_turn=ends_line, is_first=is_first)

    # Whoever adds something looks at the flag afterwards, whoever takes clears it before: nothing is left lying.

    def _wake(self) -> None:
        self._is_due = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._tell)
        else:
            self._loop.call_soon_threadsafe(self._tell)

    def _say_soon(self, *, out_of_turn: bool = True, is_first: bool = False) -> None:
        is_in_loop = threading.get_ident() == self._thread
        is_due = out_of_turn and (is_first or monotonic_ns() >= self._say_at_ns)
        if is_due and is_in_loop:
            # A coroutine speaks. It may keep the loop from turning from now on, and be killed then.
            self._say_at_ns = monotonic_ns() + self._say_every_ns
            self._tell_sayings()
        elif is_due and not self._is_awaited:
            # A function speaks, in its thread. Its next line may kill the process: it waits until the loop has told
            # this, and not for long, since a coroutine that holds the loop may be waiting for this very thread.
            self._is_awaited = True
            told = threading.Event()
            self._loop.call_soon_threadsafe(self._say_for, told)
            told.wait(self._limits.heard_within_s)
        elif not self._is_saying:
            self._is_saying = True
            if is_in_loop:
                self._loop.call_later(self._limits.say_every_s, self._say)
            else:
                self._loop.call_soon_threadsafe(self._loop.call_later, self._limits.say_every_s, self._say)

    def _tell(self) -> None:
        self._is_due = False
        if self._has_broken_off and not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_AFTER_S, self._look)
        # Counted first: what an attempt said goes before its result.
        ended = len(self._results)
        if self._lines or self._progress or self._wanted or self._heeding:
            self._tell_sayings()
        while ended > 0:
            batch: list[TaskResult] = []
            size = 0
            while ended > 0 and size < self._limits.batch_bytes:
                result = self._results.popleft()
                batch.append(result)
                size += len(result.output) + (tails_bytes(result.tails) if result.tails else 0)
                ended -= 1
            self._write(Ran(tuple(batch)))
        if not self._attempts:
            self._loop.call_soon(self._meter.rest)  # once the last of them has let go of what it had

    def _look(self) -> None:
        """Whose the processes are nobody can say, for attempts run side by side: the core ends with all of them."""
        self._is_looking = self._has_broken_off = False
        left = [pid for pid in kin() if pid not in self._left_by_loading and not is_of_command(pid)]
        if left:
            self._write(Spent(len(left)))

    def _say(self) -> None:
        self._is_saying = False
        self._say_at_ns = monotonic_ns() + self._say_every_ns
        self._tell_sayings()

    def _say_for(self, told: threading.Event) -> None:
        self._is_awaited = False
        self._say()
        told.set()

    def _tell_sayings(self) -> None:
        if self._is_held_up:
            return
        at_ms = realtime_ns() // MILLISECOND
        while self._left_out:
            fence, number = self._left_out.popitem()
            self._lines.append(TaskLine(fence, at_ms, f"{number} lines are left out here: too many at once"))
        progress = [self._progress.popitem()[1] for _ in range(len(self._progress))]
        wanted = tuple([self._wanted.popleft() for _ in range(len(self._wanted))])
        heeding = tuple([self._heeding.popleft() for _ in range(len(self._heeding))])
        waiting = len(self._lines)  # threads add more meanwhile, perhaps without end
        while progress or waiting:
            lines = [self._lines.popleft() for _ in range(min(waiting, self._limits.lines_per_frame))]
            waiting -= len(lines)
            self._write(Said(tuple(progress), tuple(lines)))
            progress = []
        if wanted or heeding:
            self._write(Said(wanted=wanted, heeding=heeding))
        for _ in range(len(self._writers)):
            _, attempt = self._writers.popitem()
            if attempt.output is not None and (wrote := attempt.output.fresh()) is not None:
                self._write(Said(wrote=(wrote,)))

    def _write(self, message: FromHandlers) -> None:
        if self._transport is not None:
            self._transport.write(framed_message(message))


def limit_cpu(cpu_ms: int) -> None:
    """From now on: what importing took is not the task's."""
    seconds = -(-(cpu_ns() + cpu_ms * MILLISECOND) // SECOND)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or seconds < hard:
        # One that ignores the first signal is killed by the second.
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def load_handlers(files: tuple[str, ...]) -> dict[str, HandlerSpec]:
    """Those of every file. Two with one name cannot both be meant."""
    found: dict[str, HandlerSpec] = {}
    for file in files:
        path = Path(file)
        if not path.is_file() or path.suffix != ".py":
            raise BadHandlers([SpecProblem("there is no such Python file", file)])
        handlers = handlers_of(import_file(path))
        if not handlers:
            raise BadHandlers([SpecProblem('has no handlers: write @handler("name") above a function', file)])
        for name, spec in handlers.items():
            other = found.setdefault(name, spec)
            if other is not spec and (other.file, other.line) != (spec.file, spec.line):
                text = f"there are two handlers named {name}: the other one is in {other.file}:{other.line}"
                raise BadHandlers([SpecProblem(text, spec.file, spec.line)])
    return found


def loaded(load: Load) -> tuple[dict[str, HandlerSpec], Loaded]:
    files, bundle = load.files, load.bundle
    try:
        if bundle is not None:
            unpack(bundle)
            files = tuple(os.path.join(os.path.abspath(bundle.folder), file) for file in files)
        handlers = load_handlers(files)
    except (Invalid, Unavailable) as error:
        text = str(error) if bundle is None else as_in_bundle(str(error), bundle)
        return {}, Loaded(os.getpid(), problem=sendable(text, PROBLEM_LIMIT))
    except BaseException as error:  # noqa: BLE001 - a user's file may raise anything when imported
        text = f"{', '.join(load.files)}: raised {described(error)} when it was imported"
        return {}, Loaded(os.getpid(), problem=sendable(text, PROBLEM_LIMIT))
    plain = tuple(name for name, spec in handlers.items() if not spec.is_async)
    return handlers, Loaded(os.getpid(), tuple(handlers), plain=plain)


def first_word(sock: socket.socket, read_bytes: int = READ_BYTES) -> tuple[Load, bytes] | None:
    """The Load, and what came with it. None: the worker is gone."""
    pending = b""
    while data := sock.recv(read_bytes):
        pending += data
        if len(pending) < HEADER_BYTES:
            continue
        end = HEADER_BYTES + int.from_bytes(pending[:HEADER_BYTES], "big")
        if len(pending) >= end:
            message = decode_to_handlers(pending[HEADER_BYTES:end])
            if not isinstance(message, Load):
                raise BadMessage(f"{type(message).__name__} came before Load")
            return message, pending[end:]
    return None


async def serve(
    sock: socket.socket, handlers: Mapping[str, HandlerSpec], threads: int, rest: bytes, served: list[HandlerCore]
) -> None:
    """`served` gets the core, for those who were there before it."""
    loop = asyncio.get_running_loop()
    core = HandlerCore(handlers, threads)
    served.append(core)
    await loop.create_unix_connection(lambda: core, sock=sock)
    core.data_received(rest)
    await core.over.wait()
    await core.stop_all()


def leave_to_child(fd: int, served: list[HandlerCore]) -> None:
    take_from_child(fd)
    for core in served:
        core.leave_to_child()


def main() -> None:
    fd, parent = begin_core(leaves_stack=True)
    sock = socket.socket(fileno=fd)
    # The conversation is this process's alone: a child would read what is meant for its parent, or hold the end back.
    sock.set_inheritable(False)
    served: list[HandlerCore] = []
    os.register_at_fork(after_in_child=partial(leave_to_child, fd, served))
    try:
        first = first_word(sock)
        if first is not None:
            load, rest = first
            route_streams(lambda: served[0].sole() if served else None)
            # No loop runs yet: a file may use one of its own while it is imported.
            handlers, answer = loaded(load)
            sock.sendall(framed_message(answer))
            # What was loaded by now stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(serve(sock, handlers, load.threads, rest, served))
    except ConnectionError:
        pass  # the worker is gone
    if os.getppid() != parent:
        # Nobody is left who would see to the children that the user's code started in this group.
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
