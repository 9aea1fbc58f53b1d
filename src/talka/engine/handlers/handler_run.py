"""One attempt in a core: what its handler is given, and what is told of how it ended."""

import os
import sys
import threading
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from functools import cached_property
from traceback import walk_tb
from typing import Final, Literal, Protocol

import msgspec

from talka.clock import monotonic_ns, realtime_ns
from talka.engine.handlers import attempt_output
from talka.engine.handlers.attempt_memory import MemoryMeter
from talka.engine.handlers.attempt_output import AttemptOutput, current, stack_of, traceback_of
from talka.engine.handlers.attempt_warning import AttemptWarning
from talka.engine.handlers.forked_child import end_child
from talka.errors import Invalid, sendable, text_of
from talka.units import MICROSECOND, MILLISECOND
from talka.wire.output_tail import NO_TAILS, Stream, StreamTail
from talka.wire.tasks import (
    ERROR_LIMIT,
    LOG_LINE_LIMIT,
    HandedTask,
    HandlerProgress,
    Outcome,
    TaskLine,
    TaskResult,
    TimeWanted,
)
from talka.work.dags.dag import OUTPUT_LIMIT_BYTES
from talka.work.durations import format_duration
from talka.work.handlers import AskedTime, Callback

DETAILS_LIMIT_BYTES: Final = 64 * 1024
"""Of what is given to one heartbeat: it is kept with the task."""
WORD_LIMIT: Final = 200
CLASSES_LIMIT: Final = 32
NULL: Final = b"null"
NO_CONFIG: Final = b"{}"

Reason = Literal["cancelled", "timeout"]


class TooMuchDetail(Invalid):
    """A heartbeat was given more than is kept."""


class Says(Protocol):
    """Where an attempt's words go. Every thread may speak."""

    def progress(self, progress: HandlerProgress) -> None: ...
    def line(self, line: TaskLine) -> None: ...
    def wrote(self, attempt: "HandlerRun", *, ends_line: bool) -> None:
        """It has written more."""

    def wants(self, wanted: TimeWanted) -> None: ...
    def heeds(self, fence: int) -> None:
        """It does something when it is warned."""


class HandlerRun:
    """The `task` of a handler. What nobody looks at is not decoded."""

    is_copy = False
    """This is a child that was forked while it ran; it goes on in the parent."""

    def __init__(self, handed: HandedTask, says: Says, meter: MemoryMeter | None = None) -> None:
        """`meter`: of the process; None: nobody wants to know what it uses."""
        self.handed = handed
        self.id, self.job, self.key = handed.id, handed.job, handed.key
        self.attempt, self.fence = handed.attempt, handed.fence
        self.index = handed.place if handed.place >= 0 else None
        self._says = says
        self.is_cancelled = False
        """Whoever waits for it would rather not: end soon."""
        self.reason: Reason | None = None
        self.began_ns = 0
        """0: it waits for its turn."""
        self.cancel: Callable[[], object] | None = None
        """How a coroutine is told; a plain function looks for itself."""
        self.end_softly: Callable[[], object] | None = None
        """How a command is warned."""
        self.meter = meter
        self.memory_bytes = 0
        """Of its command, once that has ended; 0: not measured."""
        self._is_metered = False
        self.output: AttemptOutput | None = None
        """What it wrote. None: nothing, as nearly all."""
        self.is_over = False
        """Its result is made: what is written from now on is not its."""
        self.thread = 0
        """Where a plain function runs."""
        self.time = AttemptWarning(handed.fence, says)

    @cached_property
    def config(self) -> object:
        return msgspec.json.decode(self.handed.config or NO_CONFIG)

    @cached_property
    def item(self) -> object:
        return msgspec.json.decode(self.handed.item or NULL)

    @cached_property
    def inputs(self) -> dict[str, object]:
        return {name: msgspec.json.decode(content) for name, content in self.handed.inputs.items()}

    @cached_property
    def checkpoint(self) -> object:
        """What an earlier attempt gave its last heartbeat; None: nothing."""
        return msgspec.json.decode(self.handed.checkpoint or NULL)

    def heartbeat(self, details: object = None) -> None:
        if details is None:
            return  # it would hide what was told before
        content = msgspec.json.encode(details)
        if len(content) > DETAILS_LIMIT_BYTES:
            raise TooMuchDetail(
                f"a heartbeat of {len(content)} bytes is over the limit of {DETAILS_LIMIT_BYTES}: "
                "tell where the state is, not what it is"
            )
        done = self.time.advanced(content)
        self._says.progress(HandlerProgress(self.fence, content, done))

    @property
    def is_evicted(self) -> bool:
        self.time.heed()
        return self.time.is_warned

    def extend(self, more: float | str, reason: str = "", *, progress: float | None = None) -> AskedTime:
        return self.time.ask(more, reason, progress)

    def on_evict(self, callback: Callback) -> Callback:
        self.time.on_evict(callback)
        return callback

    def log(self, text: object) -> None:
        at_ms = realtime_ns() // MILLISECOND
        for line in str(text).splitlines():
            self._says.line(TaskLine(self.fence, at_ms, sendable(line, LOG_LINE_LIMIT)))

    def wrote(self, stream: Stream, content: bytes) -> None:
        self.keep(stream, content)
        self._says.wrote(self, ends_line=content.endswith(b"\n"))

    def keep(self, stream: Stream, content: bytes) -> None:
        """It is told with the result, which comes at once."""
        if self.output is None:
            self.output = AttemptOutput(self.fence)
        self.output.write(stream, content)

    @property
    def tails(self) -> tuple[StreamTail, ...]:
        return NO_TAILS if self.output is None else self.output.all()

    def stop(self, reason: Reason) -> None:
        self.is_cancelled = True
        if self.thread and not self.is_over and self.reason is None:
            # It may never look, and is killed then: where it hangs is worth most of all.
            frame = sys._current_frames().get(self.thread)
            if frame is not None:
                self.wrote("traceback", stack_of(frame, __file__))
        self.reason = reason
        # A coroutine that is cancelled before its first line would end without a result: it sees by itself.
        if self.cancel is not None and self.began_ns:
            self.cancel()

    def begin(self) -> None:
        """Its function is about to run."""
        self.began_ns = monotonic_ns()
        attempt_output.usual.begins(self)
        if self.meter is not None:
            self._is_metered = True
            self.meter.begin(self.fence)

    def _memory(self, took_us: int) -> int:
        if self._is_metered and self.meter is not None:
            self._is_metered = False
            self.memory_bytes = self.meter.end(self.fence, took_us)
        return self.memory_bytes

    def result(
        self,
        outcome: Outcome,
        error: str = "",
        cause: str = "",
        *,
        exit_code: int = 0,
        signal: str = "",
        classes: tuple[str, ...] = (),
    ) -> TaskResult:
        """Of one that did not complete."""
        took_us = self.took_us()
        self.is_over = True
        return TaskResult(
            self.fence,
            outcome,
            b"",
            sendable(error, ERROR_LIMIT),
            sendable(cause, WORD_LIMIT),
            exit_code,
            signal,
            took_us,
            self._memory(took_us),
            False,
            classes,
            self.job,
            self.id,
            self.tails,
        )

    def completed(self, output: bytes) -> TaskResult:
        if len(output) > OUTPUT_LIMIT_BYTES:
            text = (
                f"its output of {len(output):,} bytes is over the limit of {OUTPUT_LIMIT_BYTES // 1024} KiB: "
                "return where it is, not what it is"
            )
            return self.result("failed", text, "output")
        took_us = self.took_us()
        self.is_over = True
        return TaskResult(
            self.fence,
            "completed",
            output,
            took_us=took_us,
            memory_bytes=self._memory(took_us),
            job=self.job,
            task=self.id,
            tails=self.tails,
        )

    def stopped(self, text: str = "") -> TaskResult:
        """It ended because it was told to."""
        assert self.reason is not None
        if self.reason == "timeout":
            limit = format_duration((self.handed.attempt_ms + self.time.granted_ms) * MILLISECOND)
            why = f"it took longer than the {limit} that an attempt may"
        else:
            why = "it was cancelled"
        return self.result(self.reason, f"{why}; {text}" if text else why, self.reason)

    def took_us(self) -> int:
        return max(0, monotonic_ns() - self.began_ns) // MICROSECOND if self.began_ns else 0


async def run_async(
    attempt: HandlerRun,
    function: Callable[[HandlerRun], Awaitable[object]],
    done: Callable[[TaskResult], None],
    root: str,
) -> None:
    if attempt.reason is not None:
        done(attempt.stopped())
        return
    attempt.begin()
    current.set(attempt)
    try:
        output = await function(attempt)
        if attempt.is_copy:
            end_child()
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure, also sys.exit()
        if attempt.is_copy:
            end_child(error, __file__)
        attempt.keep("traceback", traceback_of(error, __file__))
        done(failure(attempt, error, root))
    else:
        done(returned(attempt, output))
    current.set(None)  # it has the task in its hands, and the task this context: nobody else ends that ring


def run_plain(attempt: HandlerRun, function: Callable[[HandlerRun], object], root: str) -> TaskResult:
    if attempt.reason is not None:
        return attempt.stopped()
    attempt.begin()
    attempt.thread = threading.get_ident()
    current.set(attempt)
    try:
        output = function(attempt)
        if attempt.is_copy:
            end_child()
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure, also sys.exit()
        if attempt.is_copy:
            end_child(error, __file__)
        attempt.keep("traceback", traceback_of(error, __file__))
        return failure(attempt, error, root)
    return returned(attempt, output)


def returned(attempt: HandlerRun, output: object) -> TaskResult:
    if output is None:
        return attempt.completed(NULL)
    try:
        content = msgspec.json.encode(output)
    except Exception as error:  # noqa: BLE001 - the user's own types may raise anything when they are looked at
        text = f"its output is not JSON: {text_of(error) or type(error).__name__}"
        return attempt.result("failed", text, "output", classes=classes_of(error))
    return attempt.completed(content)


def failure(attempt: HandlerRun, error: BaseException, root: str = "") -> TaskResult:
    if attempt.time.is_warned and attempt.handed.on_timeout != "notify":
        attempt.reason = attempt.reason or "timeout"  # it ends because it was warned, in its own way
    if attempt.reason is not None:
        return attempt.stopped("" if isinstance(error, CancelledError) else described(error, root))
    return attempt.result("failed", described(error, root), type(error).__name__, classes=classes_of(error))


def described(error: BaseException, root: str = "") -> str:
    """The class, its text, and the deepest line that lies below `root`; the deepest of all when none does."""
    text, name = text_of(error), type(error).__name__
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    places = [place for place in frames if place[0] != __file__]
    own = [place for place in places if root and place[0].startswith(root)] or places
    place = f"{os.path.basename(own[-1][0])}:{own[-1][1]}" if own else ""
    if not place:
        return f"{name}: {text}" if text else name
    if not text:
        return f"{name} in {place}"
    # The place comes last and must not be what is cut.
    return f"{f'{name}: {text}'[: ERROR_LIMIT - len(place) - 3]} ({place})"


def classes_of(error: BaseException) -> tuple[str, ...]:
    classes = type(error).__mro__[:CLASSES_LIMIT]
    return tuple(sendable(one.__name__, WORD_LIMIT) for one in classes if one is not object)
