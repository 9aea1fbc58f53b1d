"""The live view on a terminal: when to draw it, and drawing it with `rich`, which is imported only then.

What it shows is made in `talka.cli.live.view`. It is drawn on stderr and gone when the job has ended.
"""

import contextlib
import fcntl
import os
import select
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Protocol, TextIO, TypeVar

from talka.cli.live.layout import FrameView, Size
from talka.cli.output import harmless
from talka.clock import monotonic_ns
from talka.report.text import counted_text
from talka.units import SECOND

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

DRAW_EVERY_NS: Final = SECOND // 5
DRAW_SHARE: Final = 0.02
"""Of the time, for drawing: a redraw of over 5 ms makes the next one wait longer. The promise is 3 %."""
DRAW_AT_LEAST_EVERY_NS: Final = 10 * SECOND
"""A redraw that took so long that this is too often was not slow but held up, by the terminal or the machine."""
PLAIN_SIZE: Final = Size(80, 24)
PIPE_BYTES: Final = 1 << 20
READ_BYTES: Final = 1 << 16
LINE_BYTES: Final = 1 << 16
LAST_WORDS_S: Final = 0.5
PRINTED_LINES_SHOWN: Final = 50
"""Of what a test prints, at each redraw. Whoever prints more cannot read it anyway."""


class DrawPace:
    """When to draw, so that drawing takes its share of the time and no more."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.next_at_ns = 0

    def drew(self, from_ns: int, to_ns: int) -> None:
        cost_ns = to_ns - from_ns
        self.spent_ns += cost_ns
        every_ns = max(DRAW_EVERY_NS, round(cost_ns / DRAW_SHARE))
        self.next_at_ns = from_ns + min(every_ns, DRAW_AT_LEAST_EVERY_NS)


class Frame:
    """A view as `rich` takes it."""

    def __init__(self, view: FrameView) -> None:
        self.view = view

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.segment import Segment

        for number, line in enumerate(self.view.lines):
            if number:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, console.get_style(style) if style else None)


Shown = TypeVar("Shown")
Composed = TypeVar("Composed", contravariant=True)


class FrameComposer(Protocol[Composed]):
    """Makes the frames of a live view."""

    def opening(self, size: Size) -> FrameView:
        """Before there is anything to tell."""

    def view(self, job: Composed, now: int, size: Size) -> FrameView: ...


class LiveView(Generic[Shown]):
    """Shows a job on a terminal while it runs. Enter it, hand it to `LocalJob.run` as `on_progress`, and leave it.

    While it is shown, whatever this process and its cores print on stderr appears above it. `keep` leaves the last
    frame on the terminal, for results that go elsewhere.
    """

    def __init__(
        self,
        composer: FrameComposer[Shown],
        stream: TextIO,
        *,
        color: bool = True,
        keep: bool = False,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._composer = composer
        self._stream = stream
        self._color = color
        self._keep = keep
        self._clock = clock
        self._pace = DrawPace()
        self._size: Size | None = None
        self._live: Live | None = None
        self._printed: Printed | None = None
        self._job: Shown | None = None

    def cpu_share(self, elapsed_ns: int) -> float:
        """The share of one core that drawing took."""
        return self._pace.spent_ns / elapsed_ns if elapsed_ns > 0 else 0.0

    def __enter__(self) -> "LiveView[Shown]":
        from rich.console import Console
        from rich.live import Live

        self._stream.flush()
        self._printed = Printed(self._stream)
        console = Console(
            file=self._printed.terminal,
            color_system="standard" if self._color else None,
            force_terminal=True,
            force_interactive=True,
            legacy_windows=False,
            markup=False,
            highlight=False,
            emoji=False,
            _environ={},  # settings have read it already
        )
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=not self._keep,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        try:
            if self._can_draw():
                self._show(self._composer.opening)
        except BaseException:
            self._leave()
            raise
        return self

    def __call__(self, job: Shown, now: int) -> None:
        self._job = job
        if self._printed is not None:
            self._printed.collect()
        if now >= self._pace.next_at_ns and self._can_draw():
            from_ns = self._clock()
            self._show(lambda size: self._composer.view(job, now, size))
            self._pace.drew(from_ns, self._clock())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        job = self._job
        if self._keep and job is not None:
            self._show(lambda size: self._composer.view(job, self._clock(), size))
        self._leave()

    def _show(self, view_at: Callable[[Size], FrameView]) -> None:
        if self._live is None or self._printed is None:
            return
        try:
            # Not before there is something to draw: starting hides the cursor, which may be another command's.
            self._live.start()
            frame = Frame(view_at(self._take_size()))
            self._printed.collect()
            printed = self._printed.take()
            self._live.update(frame, refresh=not printed)
            if printed:
                # `rich` draws the frame below it.
                self._live.console.out("\n".join(printed), highlight=False)
        except OSError:
            self._leave()  # the terminal is gone; the job is not

    def _take_size(self) -> Size:
        assert self._live is not None and self._printed is not None
        found = os.get_terminal_size(self._printed.terminal.fileno())
        # A terminal that does not know its size says 0.
        size = Size(found.columns or PLAIN_SIZE.columns, found.lines or PLAIN_SIZE.rows)
        if self._size not in (size, None):
            # Where the old frame is now, only the terminal knows.
            self._live.console.clear()
        self._size = size
        self._live.console.size = size
        return size

    def _can_draw(self) -> bool:
        """Not while the terminal is stopped, which would stop us too, nor while it belongs to another command."""
        if self._printed is None:
            return False
        terminal = self._printed.terminal.fileno()
        with contextlib.suppress(OSError):  # it is not the terminal we were started from
            if os.tcgetpgrp(terminal) != os.getpgrp():
                return False
        return bool(select.select([], [terminal], [], 0)[1])

    def _leave(self) -> None:
        live, printed = self._live, self._printed
        self._live = self._printed = None
        with contextlib.suppress(OSError):
            if live is not None:
                live.stop()
        if printed is not None:
            printed.close()


class Printed:
    """Takes over what is printed on a terminal, so that it does not mix with the view. `terminal` still leads there."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=PRINTED_LINES_SHOWN)
        self._hidden = 0
        self._unfinished = b""
        self._descriptor = stream.fileno()
        kept = os.dup(self._descriptor)
        self.terminal = open(kept, "w", encoding=stream.encoding, errors="replace")
        self._from, into = os.pipe()
        os.set_blocking(self._from, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                # Room for what is printed from one redraw to the next: a core must never wait for us.
                fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.dup2(into, self._descriptor)
        os.close(into)

    def collect(self) -> None:
        """Makes room for more. Call it often: whoever prints into a full pipe has to wait."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._from, READ_BYTES):
                self._add(part)

    def take(self) -> list[str]:
        """The lines since the last call; only the latest of them, if they are too many."""
        lines, hidden = list(self._lines), self._hidden
        self._lines.clear()
        self._hidden = 0
        return [f"… {counted_text(hidden, 'more line')} printed before this", *lines] if hidden else lines

    def close(self) -> None:
        """Undo it, and print what is left."""
        self._stream.flush()
        os.dup2(self.terminal.fileno(), self._descriptor)
        # Cores print what they held back when they end, which the last of them may be doing right now.
        for _ in range(2 * PIPE_BYTES // READ_BYTES):
            is_there, _, _ = select.select([self._from], [], [], LAST_WORDS_S)
            part = os.read(self._from, READ_BYTES) if is_there else b""
            if not part:
                break
            self._add(part)
        os.close(self._from)
        if self._unfinished:
            self._add(b"\n")
        with contextlib.suppress(OSError), self.terminal:
            self.terminal.writelines(f"{line}\n" for line in self.take())

    def _add(self, part: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + part).split(b"\n")
        if len(self._unfinished) > LINE_BYTES:
            lines, self._unfinished = [*lines, self._unfinished], b""
        self._hidden += max(0, len(self._lines) + len(lines) - PRINTED_LINES_SHOWN)
        self._lines.extend(harmless(line.decode(errors="replace")) for line in lines[-PRINTED_LINES_SHOWN:])
