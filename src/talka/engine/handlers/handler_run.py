"""One attempt in a core: what its handler is given, and what is told of how it ended."""

import os
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from talka.clock import monotonic_ns, realtime_ns
from talka.engine.containment import peak_in
from talka.errors import Invalid
from talka.units import MICROSECOND, MILLISECOND
from talka.wire.tasks import ERROR_LIMIT, LOG_LINE_LIMIT, HandedTask, Outcome, TaskLine, TaskResult
from talka.work.dag import OUTPUT_LIMIT_BYTES

DETAILS_LIMIT_BYTES: Final = 64 * 1024
"""Of what is given to one heartbeat: it is kept with the task."""
WORD_LIMIT: Final = 200
CLASSES_LIMIT: Final = 32
NULL: Final = b"null"
STATUS: Final = Path("/proc/self/status")

Reason = Literal["cancelled", "timeout"]


class TooMuchDetail(Invalid):
    """A heartbeat was given more than is kept."""


class Says(Protocol):
    """Where an attempt's words go. Every thread may speak."""

    def progress(self, fence: int, details: bytes) -> None: ...
    def line(self, line: TaskLine) -> None: ...


class HandlerRun:
    """The `task` of a handler. What nobody looks at is not decoded."""

    __slots__ = (
        "_checkpoint",
        "_config",
        "_handed",
        "_inputs",
        "_says",
        "began_ns",
        "cancel",
        "is_cancelled",
        "reason",
    )

    def __init__(self, handed: HandedTask, says: Says) -> None:
        self._handed = handed
        self._says = says
        self._config: object = msgspec.UNSET
        self._inputs: dict[str, object] | None = None
        self._checkpoint: object = msgspec.UNSET
        self.is_cancelled = False
        """Whoever waits for it would rather not: end soon."""
        self.reason: Reason | None = None
        self.began_ns = 0
        """0: it waits for its turn."""
        self.cancel: Callable[[], object] | None = None
        """How a coroutine is told; a plain function looks for itself."""

    @property
    def handed(self) -> HandedTask:
        return self._handed

    @property
    def id(self) -> str:
        return self._handed.id

    @property
    def job(self) -> str:
        return self._handed.job

    @property
    def attempt(self) -> int:
        return self._handed.attempt

    @property
    def fence(self) -> int:
        return self._handed.fence

    @property
    def key(self) -> str:
        return self._handed.key

    @property
    def config(self) -> object:
        if self._config is msgspec.UNSET:
            self._config = msgspec.json.decode(self._handed.config or NULL)
        return self._config

    @property
    def inputs(self) -> dict[str, object]:
        if self._inputs is None:
            found = {name: msgspec.json.decode(content) for name, content in self._handed.inputs.items()}
            self._inputs = found
        return self._inputs

    @property
    def checkpoint(self) -> object:
        """What an earlier attempt gave its last heartbeat; None: nothing."""
        if self._checkpoint is msgspec.UNSET:
            self._checkpoint = msgspec.json.decode(self._handed.checkpoint or NULL)
        return self._checkpoint

    def heartbeat(self, details: object = None) -> None:
        if details is None:
            return  # it would hide what was told before
        content = msgspec.json.encode(details)
        if len(content) > DETAILS_LIMIT_BYTES:
            raise TooMuchDetail(
                f"a heartbeat of {len(content)} bytes is over the limit of {DETAILS_LIMIT_BYTES}: "
                "tell where the state is, not what it is"
            )
        self._says.progress(self._handed.fence, content)

    def log(self, text: object) -> None:
        at_ms = realtime_ns() // MILLISECOND
        for line in str(text).splitlines():
            self._says.line(TaskLine(self._handed.fence, at_ms, sendable(line, LOG_LINE_LIMIT)))

    def stop(self, reason: Reason) -> None:
        self.is_cancelled = True
        self.reason = reason
        # A coroutine that is cancelled before its first line would end without a result: it sees by itself.
        if self.cancel is not None and self.began_ns:
            self.cancel()

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
        return TaskResult(
            self._handed.fence,
            outcome,
            b"",
            sendable(error, ERROR_LIMIT),
            sendable(cause, WORD_LIMIT),
            exit_code,
            signal,
            self.took_us(),
            peak_bytes() if self._handed.alone else 0,
            False,
            classes,
            self._handed.job,
            self._handed.id,
        )

    def completed(self, output: bytes) -> TaskResult:
        if len(output) > OUTPUT_LIMIT_BYTES:
            text = (
                f"its output of {len(output)} bytes is over the limit of {OUTPUT_LIMIT_BYTES}: "
                "return where it is, not what it is"
            )
            return self.result("failed", text, "output")
        handed = self._handed
        memory_bytes = peak_bytes() if handed.alone else 0
        return TaskResult(
            handed.fence,
            "completed",
            output,
            took_us=self.took_us(),
            memory_bytes=memory_bytes,
            job=handed.job,
            task=handed.id,
        )

    def stopped(self, text: str = "") -> TaskResult:
        """It ended because it was told to."""
        assert self.reason is not None
        if self.reason == "timeout":
            why = f"it took longer than the {self._handed.attempt_ms} ms that an attempt may"
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
    attempt.began_ns = monotonic_ns()
    try:
        output = await function(attempt)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure, also sys.exit()
        done(failure(attempt, error, root))
    else:
        done(returned(attempt, output))


def run_plain(attempt: HandlerRun, function: Callable[[HandlerRun], object], root: str) -> TaskResult:
    if attempt.reason is not None:
        return attempt.stopped()
    attempt.began_ns = monotonic_ns()
    try:
        output = function(attempt)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure, also sys.exit()
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
    if attempt.reason is not None:
        return attempt.stopped("" if isinstance(error, CancelledError) else described(error, root))
    return attempt.result("failed", described(error, root), type(error).__name__, classes=classes_of(error))


def described(error: BaseException, root: str = "") -> str:
    """The class, its text, and the deepest line that lies below `root`; the deepest of all when none does."""
    text, name = text_of(error), type(error).__name__
    place = deepest = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != __file__:
            deepest = f"{os.path.basename(file)}:{trace.tb_lineno}"
            if root and file.startswith(root):
                place = deepest
        trace = trace.tb_next
    place = place or deepest
    said = f"{name}: {text}" if text else name
    # The place comes last and must not be what is cut.
    return f"{said[: ERROR_LIMIT - len(place) - 3]} ({place})" if place else said


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own __str__ may raise anything
        return ""


def classes_of(error: BaseException) -> tuple[str, ...]:
    names = (sendable(one.__name__, WORD_LIMIT) for one in type(error).__mro__[:CLASSES_LIMIT] if one is not object)
    return tuple(names)


def sendable(text: str, limit: int) -> str:
    """Short enough, and without the halves of characters that no message can carry."""
    text = text[:limit]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def peak_bytes() -> int:
    """The most memory this process had, as the kernel counts it; 0 where it does not say."""
    try:
        return peak_in(STATUS.read_text())
    except OSError:
        return 0
