"""Files that results are written to: checked before the run, and never seen half written."""

import contextlib
import os
import stat
from collections.abc import Iterator
from io import FileIO

from talka.errors import Invalid, TalkaError, Unavailable


class BadOutput(Invalid):
    """An output that is asked for and cannot be had."""


class CannotDeliver(Unavailable):
    """A file or a server that did not take what was meant for it."""


class FileFailed(CannotDeliver):
    """A file could not be written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def reason_of(error: BaseException) -> str:
    """What was wrong, without the place."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, TalkaError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class FilePlace:
    """A file that can be written as far as can be told without writing it."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self._mode: int | None = None
        """Of the file that is there already."""
        try:
            self._look()
        except (OSError, ValueError) as error:
            reason = "its folder does not exist" if isinstance(error, FileNotFoundError) else reason_of(error)
            raise BadOutput(f"{what}: {path} cannot be written: {reason}") from None

    def replace(self, content: bytes) -> None:
        """Write all of it anew. A reader never sees half of it: it is written beside its place and moved there."""
        with self._failing():
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

    def append(self, content: bytes) -> None:
        with self._failing(), open(self.path, "ab") as file:
            file.write(content)

    def stream(self) -> "Stream":
        return Stream(self)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileFailed(self.path, reason_of(error)) from None

    def _look(self) -> None:
        if self.path in ("", "-"):
            raise OSError(0, "name a file (/dev/stdout prints it)")
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

    @property
    def _place(self) -> str:
        # A link stays a link: the file it points to is the one to replace.
        return os.path.realpath(self.path)

    def _open_beside(self) -> tuple[int, str]:
        beside = os.path.join(os.path.dirname(self._place), f".talka-{os.urandom(6).hex()}.part")
        return os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), beside


class Stream:
    """A file that is written piece by piece, from its beginning. After an error it takes nothing more.

    Half a piece followed by a whole one would make the file unreadable; half a piece at its end can be skipped.
    """

    def __init__(self, place: FilePlace) -> None:
        self._path = place.path
        self._file: FileIO | None = None
        self._problem: CannotDeliver | None = None

    @property
    def is_new(self) -> bool:
        return self._file is None

    def write(self, content: bytes) -> None:
        if self._problem is not None:
            raise self._problem
        try:
            if self._file is None:
                self._file = open(self._path, "wb", buffering=0)
            rest = memoryview(content)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._problem = FileFailed(self._path, reason_of(error))
            raise self._problem from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
