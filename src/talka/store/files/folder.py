"""The data folder of a node: one process at a time, and files in it that survive a crash or were never written.

What is called durable here has been through `fdatasync`; a new name has been through a sync of its folder as well.
"""

import contextlib
import errno
import fcntl
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from talka.errors import Invalid, Unavailable

LOCK_NAME: Final = "lock"
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
MOST_SET_ASIDE: Final = 100
"""So many damaged copies of one file are kept. A disk that spoils more is to be replaced."""
PID_BYTES: Final = 20
ADVICE: Final = {
    errno.ENOSPC: "free some space there and start again",
    errno.EDQUOT: "free some space there or raise the quota, and start again",
    errno.EFBIG: "raise the limit of a file's size and start again",
    errno.EACCES: "let this user read and write there",
    errno.EPERM: "let this user read and write there",
    errno.EROFS: "make the file system writable or name another --data-dir",
    errno.EIO: "look after the disk; a voter may start with another --data-dir and is then admitted again",
    errno.EISDIR: "move that folder away",
}
NOT_USABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT})


class StoreFailed(Unavailable):
    """The disk did not do what was asked: full, broken, or closed to this user."""


class BadFolder(Invalid):
    """This path cannot be a data folder."""


class FolderInUse(Invalid):
    """Another process works in this data folder."""

    def __init__(self, path: Path, pid: str) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"the data folder {path} is in use by {holder}: stop that one or name another --data-dir")
        self.pid = pid


def failed(path: Path, doing: str, error: OSError) -> StoreFailed:
    advice = ADVICE.get(error.errno or 0, "fix that and start again")
    return StoreFailed(f"{path} could not be {doing} ({error.strerror or error}): {advice}")


def write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(descriptor: int) -> None:
    """Return once content and length are on the disk itself."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync stops at the cache of the disk there
    else:
        os.fdatasync(descriptor)


def sync_folder(path: Path) -> None:
    """Make new, changed and removed names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, limit_bytes: int) -> bytes | None:
    """The content, None where there is no file. More than the limit is cut to one byte above it."""
    try:
        with open(path, "rb") as file:
            return file.read(limit_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failed(path, "read", error) from error


def write_file(path: Path, content: bytes) -> None:
    """A file of its owner alone. Its content is durable when this returns, its name is not."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        write_all(descriptor, content)
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Put this content in place of the file's: after a crash one of the two is there, whole."""
    beside = path.with_name(path.name + ".new")
    try:
        write_file(beside, content)
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise failed(path, "written", error) from error


def set_aside(path: Path) -> Path:
    """Rename a damaged file so that it is kept and no longer read; its new name."""
    for number in range(1, MOST_SET_ASIDE + 1):
        aside = path.with_name(path.name + (".damaged" if number == 1 else f".damaged.{number}"))
        if not os.path.lexists(aside):
            try:
                os.rename(path, aside)
                sync_folder(path.parent)
            except OSError as error:
                raise failed(path, "set aside", error) from error
            return aside
    raise StoreFailed(
        f"{path} is damaged, and {MOST_SET_ASIDE} damaged copies lie beside it: look after the disk, "
        "move the copies away and start again"
    )


class DataFolder:
    """A folder that belongs to this process from now until `release`, or its end however it comes.

    The lock is the kernel's: a process that was killed leaves none, unless a child made by a bare fork shares it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self._descriptor: int | None = None
        try:
            self._make()
            self._lock()
        except OSError as error:
            self.release()
            raise self._refusal(error) from error

    @property
    def identity(self) -> str:
        """Its path, and which file is locked: on one machine no two processes have the same at a time."""
        assert self._descriptor is not None
        found = os.fstat(self._descriptor)
        return f"{self.path} ({found.st_dev:x}:{found.st_ino:x})"

    def release(self) -> None:
        """Let another process have the folder. The file stays: removing it could take away the next one's lock."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            # Closing is not enough: a program started just now may share the descriptor for a moment longer.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _make(self) -> None:
        missing = [folder for folder in (self.path, *self.path.parents) if not os.path.lexists(folder)]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process made it just now
                os.mkdir(folder, FOLDER_MODE)
            sync_folder(folder.parent)
        if not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _lock(self) -> None:
        path = self.path / LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            write_all(descriptor, b"%d\n" % os.getpid())
        except BlockingIOError:
            pid = os.read(descriptor, PID_BYTES).strip()
            os.close(descriptor)
            raise FolderInUse(self.path, pid.decode() if pid.isdigit() else "") from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _refusal(self, error: OSError) -> BadFolder | StoreFailed:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOTDIR:
            return BadFolder(f"{self.path} cannot be the data folder: a file is in the way; name another --data-dir")
        if error.errno == errno.EISDIR:
            return BadFolder(f"{self.path / LOCK_NAME} is a folder and must be a file: move it away")
        if error.errno in NOT_USABLE:
            return BadFolder(
                f"the data folder {self.path} cannot be used ({reason}): let this user write there "
                "or name another --data-dir"
            )
        return failed(self.path, "made or locked", error)
