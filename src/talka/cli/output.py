"""Where words and results go: sentences to stderr, results to stdout or to a file that was checked beforehand."""

import contextlib
import io
import os
import stat
import sys
from typing import TextIO

from talka.errors import Invalid, Unavailable

PLAIN_COLUMNS = 100
FEWEST_COLUMNS = 60
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


def columns_of(stream: TextIO) -> int:
    if not stream.isatty():
        return PLAIN_COLUMNS
    # A terminal that does not know its size says 0.
    columns = os.get_terminal_size(stream.fileno()).columns or PLAIN_COLUMNS
    return max(FEWEST_COLUMNS, min(MOST_COLUMNS, columns))


class CannotWrite(Invalid):
    """The place for the result is no place to write to."""

    def __init__(self, what: str, path: str, reason: str) -> None:
        super().__init__(f"{what}: {path} cannot be written: {reason}")
        self.path = path


class ResultFile:
    """A file for the result, checked when it is named and written when there is something to write.

    A reader never sees half of it: it is written beside its place and moved there. `-` is stdout.
    """

    def __init__(self, path: str, *, what: str) -> None:
        self.path, self.what = path, what
        self._mode: int | None = None
        """Of the file that is there already."""
        if path == "-":
            return
        try:
            self._look()
        except (OSError, ValueError) as error:
            raise self._problem(error) from None

    @property
    def is_stdout(self) -> bool:
        return self.path == "-"

    def write(self, content: bytes) -> None:
        if self.is_stdout:
            say(content)
            return
        try:
            self._write(content)
        except OSError as error:
            raise self._problem(error) from None

    def _look(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._mode = os.stat(self.path).st_mode
        if self.path.endswith(os.sep) or (self._mode is not None and stat.S_ISDIR(self._mode)):
            raise IsADirectoryError(0, "it is a folder; name a file in it")
        if self._mode is not None and not os.access(self.path, os.W_OK):
            raise PermissionError(0, "you may not write to it")
        if self._is_moved_into_place:
            # Asking for permission is not enough: the disk may be mounted read-only, or full.
            descriptor, beside = self._open_beside()
            os.close(descriptor)
            os.unlink(beside)

    @property
    def _is_moved_into_place(self) -> bool:
        """Not for devices and pipes: moving a file there would replace them."""
        return self._mode is None or stat.S_ISREG(self._mode)

    def _write(self, content: bytes) -> None:
        if not self._is_moved_into_place:
            with open(self.path, "wb") as file:
                file.write(content)
            return
        descriptor, beside = self._open_beside()
        try:
            with open(descriptor, "wb") as file:
                if self._mode is not None:
                    os.fchmod(descriptor, stat.S_IMODE(self._mode))
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            os.replace(beside, self._place)
        except BaseException:
            os.unlink(beside)
            raise

    @property
    def _place(self) -> str:
        # A link stays a link: the file it points to is the one to replace.
        return os.path.realpath(self.path)

    def _open_beside(self) -> tuple[int, str]:
        beside = os.path.join(os.path.dirname(self._place), f".talka-{os.urandom(6).hex()}.part")
        return os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), beside

    def _problem(self, error: OSError | ValueError) -> CannotWrite:
        if isinstance(error, FileNotFoundError):
            reason = "its folder does not exist"
        else:
            reason = getattr(error, "strerror", None) or str(error)
        return CannotWrite(self.what, self.path, reason)
