"""What attempts write, each kept apart, though they share a process: `sys.stdout` and `sys.stderr` of a core know by a
context variable whose code writes.

Decision: docs/decisions/0047-the-last-words-of-an-attempt.md.
"""

import io
import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from traceback import format_exception, format_stack
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO

from talka.errors import sendable
from talka.wire.output_tail import NO_TAILS, STREAM_LIMIT_BYTES, OutputTail, Stream, StreamTail, Wrote

if TYPE_CHECKING:
    from talka.engine.handlers.handler_run import HandlerRun

FRAMES: Final = 200
"""Of one traceback: the deepest."""

current: ContextVar["HandlerRun | None"] = ContextVar("talka_attempt", default=None)
"""The attempt whose code runs. Tasks and threads of asyncio that it starts inherit it."""


class AttemptOutput:
    """Any thread may write."""

    def __init__(self, fence: int, limit: int = STREAM_LIMIT_BYTES) -> None:
        self.is_told = False
        """Some of it was asked for while the attempt ran."""
        self._fence = fence
        self._limit = limit
        self._tails: dict[Stream, OutputTail] = {}
        self._lock = threading.Lock()

    def write(self, stream: Stream, content: bytes) -> None:
        with self._lock:
            tail = self._tails.get(stream)
            if tail is None:
                tail = self._tails[stream] = OutputTail(self._limit)
            tail.write(content)

    def drop(self, stream: Stream) -> None:
        with self._lock:
            self._tails.pop(stream, None)

    def end_of(self, stream: Stream) -> bytes:
        tail = self._tails.get(stream)
        return b"" if tail is None else tail.all(stream).content

    def all(self) -> tuple[StreamTail, ...]:
        with self._lock:
            return tuple([tail.all(stream) for stream, tail in self._tails.items()]) or NO_TAILS

    def fresh(self) -> Wrote | None:
        """What was written since the last time."""
        self.is_told = True
        with self._lock:
            tails = [tail.fresh(stream) for stream, tail in self._tails.items()]
        news = tuple([tail for tail in tails if tail is not None])
        return Wrote(self._fence, news) if news else None


class RoutedBuffer(io.RawIOBase):
    """What is written within an attempt is the attempt's; all else goes where it went before."""

    def __init__(self, stream: Stream, own: TextIO, sole: Callable[[], "HandlerRun | None"]) -> None:
        """`sole`: the only attempt that runs here, if there is but one. A thread that the user's code made has no
        attempt of its own, and it is hers."""
        self.is_childs = False
        """This is a copy, in a child that was forked: nothing that is written here is of an attempt."""
        self._stream: Stream = stream
        self._own = own
        self._sole = sole

    @property
    def name(self) -> str:
        return f"<{self._stream}>"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._own.fileno()

    def close(self) -> None:
        """Nothing is closed: the attempts that follow in this process write to it too."""

    def write(self, data: Any) -> int:
        content = bytes(data)
        if self.is_childs:
            self._write_out(content)
            return len(content)
        attempt = current.get()
        if attempt is None or attempt.is_over:
            attempt = self._sole()
        if attempt is not None:
            attempt.wrote(self._stream, content)
        else:
            self._own.write(content.decode(errors="backslashreplace"))
            self._own.flush()
        return len(content)

    def _write_out(self, content: bytes) -> None:
        """Past the stream that was there: a thread that the child does not have may hold its lock."""
        fd = self._own.fileno()
        while content:
            content = content[os.write(fd, content) :]


class RoutedText(io.TextIOWrapper):
    def __init__(self, buffer: RoutedBuffer) -> None:
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", write_through=True)
        self.routed = buffer

    def close(self) -> None:
        """As its buffer. `with sys.stdout:` is what programs write that print to a file or to the terminal."""


def routed(stream: Stream, own: TextIO, sole: Callable[[], "HandlerRun | None"]) -> RoutedText:
    return RoutedText(RoutedBuffer(stream, own, sole))


class UsualStreams:
    """`sys.stdout` and `sys.stderr` as they are when the first attempt begins, so also what the user's files put in
    their place. What an attempt puts there and leaves is gone for the next one."""

    def __init__(self, sole: Callable[[], "HandlerRun | None"] = lambda: None) -> None:
        self._sole = sole
        self._streams: tuple[TextIO, TextIO] | None = None

    def begins(self, attempt: "HandlerRun") -> None:
        if self._streams is None:
            self._streams = sys.stdout, sys.stderr
        stdout, stderr = self._streams
        # Others that run here may have replaced them for a while.
        if (sys.stdout is not stdout or sys.stderr is not stderr) and self._sole() is attempt:
            sys.stdout, sys.stderr = stdout, stderr


usual = UsualStreams()


def route_streams(sole: Callable[[], "HandlerRun | None"]) -> None:
    """From now on. Before the user's files are imported: what they set up for logging keeps the stream it finds."""
    global usual
    sys.stdout, sys.stderr = routed("stdout", sys.stdout, sole), routed("stderr", sys.stderr, sole)
    usual = UsualStreams(sole)
    os.register_at_fork(after_in_child=partial(leave_to_child, sys.stdout, sys.stderr))


def leave_to_child(*streams: RoutedText) -> None:
    for stream in streams:
        stream.routed.is_childs = True


def traceback_of(error: BaseException, own_file: str) -> bytes:
    """Without the frames of `own_file` that called the user's code."""
    found: TracebackType | None = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename == own_file:
        found = found.tb_next
    try:
        lines = format_exception(type(error), error, found, limit=-FRAMES)
    except Exception as other:  # noqa: BLE001 - the user's own classes may raise anything when they are looked at
        lines = [f"{type(error).__name__}: its traceback cannot be written ({type(other).__name__})\n"]
    return _sendable(lines)


def stack_of(frame: FrameType, own_file: str) -> bytes:
    """Where a thread is now, below what called the user's code."""
    lines = format_stack(frame, FRAMES)
    own = [number for number, line in enumerate(lines) if f'"{own_file}"' in line]
    # What it is in may have come back to that file, as a print does.
    return _sendable(["It was here when it was told to stop:\n", *lines[own[0] + 1 if own else 0 :]])


def _sendable(lines: list[str]) -> bytes:
    text = "".join(lines)
    return sendable(text, len(text)).encode()
