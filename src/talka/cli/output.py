"""Where words and results go: sentences to stderr, results to stdout or to a file that was checked beforehand."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from talka.errors import Invalid, Unavailable
from talka.report.files import FileFailed, FilePlace
from talka.report.tame import tame, tame_json

if TYPE_CHECKING:
    from talka.client.sheets import JobSheet

PLAIN_COLUMNS = 100
FEWEST_COLUMNS = 60
NARROW_COLUMNS = 40
"""For what breaks its lines rather than cut them."""
MOST_COLUMNS = 140
CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class CannotPrint(Unavailable):
    """Standard output takes no more."""


def prepare_streams() -> None:
    """What a terminal cannot show is replaced, and a stream that is closed swallows everything."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str | bytes) -> None:
    """A result, to stdout. When whoever reads it has seen enough, the rest is dropped and the command goes on."""
    try:
        # In one piece: others may be writing to the same place.
        if isinstance(text, bytes):
            sys.stdout.buffer.write(text + b"\n")
            sys.stdout.flush()
        else:
            print(f"{text}\n", end="", flush=True)
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        silence_stdout()
        raise CannotPrint(f"the result cannot be printed: {error.strerror}") from None


def json_of(value: Any) -> bytes:
    import msgspec

    return tame_json(msgspec.json.format(msgspec.json.encode(value), indent=1))


def say_list(
    key: str, found: Sequence[Any], as_json: bool, shown: Callable[[Sequence[Any]], str], none: str, cut: str = ""
) -> int:
    """A document for programs, or a table for people. `none` is told of an empty list, `cut` of one that may go on."""
    if as_json:
        say(json_of({key: found}))
    elif found:
        say(shown(found))
        if cut:
            tell(f"{cut}; --limit N shows more")
    else:
        tell(none)
    return 0


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; one that is empty in every row is left out."""
    kept = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    lines = [[headings[column] for column in kept], *([tame(row[column]) for column in kept] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(kept))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


PLACE: Final = ("ZONE", "DATACENTER", "REGION")


class Placed(Protocol):
    """What a table says of where somebody stands."""

    @property
    def zone(self) -> str: ...
    @property
    def datacenter(self) -> str: ...
    @property
    def region(self) -> str: ...


def place_of(one: Placed) -> tuple[str, str, str]:
    return one.zone, one.datacenter, one.region


def facts_rows(rows: Iterable[tuple[str, str]]) -> str:
    """A word and what it is, a line each; empty ones are left out."""
    return "\n".join(f"{word:<10} {tame(text)}" for word, text in rows if text)


def sheet_text(sheet: "JobSheet") -> str:
    """A job, with a table of its parts. What the table leaves out is told."""
    text = facts_rows((tame(word), text) for word, text in sheet.rows)
    if sheet.lines:
        width = len(sheet.columns)
        lines = [[*line, *([""] * width)][:width] for line in sheet.lines]
        text += f"\n\n{table([tame(heading) for heading in sheet.columns], lines)}"
    if sheet.note:
        tell(sheet.note)
    return text


def tell(text: str) -> None:
    """A sentence or progress, to stderr. If nobody can read it there is nothing left to do about it."""
    with contextlib.suppress(OSError):
        print(f"{harmless(text)}\n", end="", file=sys.stderr, flush=True)


def harmless(text: str) -> str:
    """Without control characters: what a test file or a server says must not steer the terminal."""
    return text.translate(CONTROLS)


def silence_stdout() -> None:
    """What is still buffered would fail again when the interpreter ends, and spoil the exit code."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def columns_of(stream: TextIO, fewest: int = FEWEST_COLUMNS) -> int:
    if not stream.isatty():
        return PLAIN_COLUMNS
    # A terminal that does not know its size says 0.
    columns = os.get_terminal_size(stream.fileno()).columns or PLAIN_COLUMNS
    return max(fewest, min(MOST_COLUMNS, columns))


class CannotWrite(Invalid):
    """The place for the result is no place to write to."""

    def __init__(self, what: str, path: str, reason: str) -> None:
        super().__init__(f"{what}: {path} cannot be written: {reason}")
        self.path = path


class ResultFile:
    """A file for a result, checked when it is named and written when there is something to write. `-` is stdout."""

    def __init__(self, path: str, *, what: str) -> None:
        self.path, self.what = path, what
        self._place = None if path == "-" else FilePlace(path, what)

    @property
    def is_stdout(self) -> bool:
        return self._place is None

    def write(self, content: bytes) -> None:
        if self._place is None:
            say(content)
            return
        try:
            self._place.replace(content)
        except FileFailed as error:
            raise CannotWrite(self.what, self.path, error.reason) from None
