"""Bundles, results of attempts and result documents on a node's disk, each in a file named by its SHA-256.

A blob is there whole and durable, or it is not there. What was spoilt later is noticed when it is read.

Decision: docs/decisions/0019-results-are-blobs-on-a-majority.md.
"""

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Final

from talka.errors import Invalid
from talka.store.files.folder import FOLDER_MODE, StoreFailed, failed, read_file, set_aside, sync_folder, write_file
from talka.wire.jobs import BLOB_LIMIT_BYTES

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
UNFINISHED: Final = ".new"
DAMAGED: Final = re.compile(DIGEST.pattern + r"\.damaged(\.[0-9]+)?")
MOST_UNNAMED: Final = 10_000_000


class BadBlob(Invalid):
    """This cannot be kept as a blob, or is not the name of one."""


class Blobs:
    """A folder of blobs, of which this process has the only `Blobs`. Any thread may call."""

    def __init__(self, folder: Path, limit_bytes: int = BLOB_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._folder = Path(os.path.abspath(folder))
        self._numbers = count()
        self._sweeping = threading.Lock()
        """Of whoever looks how old a blob is, and removes it for that."""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._folder, FOLDER_MODE)
                sync_folder(self._folder.parent)
            for name in os.listdir(self._folder):
                if name.endswith(UNFINISHED):  # of a process that was killed while it wrote
                    os.unlink(self._folder / name)
        except OSError as error:
            raise failed(self._folder, "made or read", error) from error

    def path(self, digest: str) -> Path:
        """Where the blob is, or would be."""
        if not DIGEST.fullmatch(digest):
            raise BadBlob(f"{digest[:80]!r} is not the name of a blob: that has 64 digits of 0-9 and a-f")
        return self._folder / digest

    def has(self, digest: str) -> bool:
        """Whether it is there; `get` says whether it is whole."""
        return self.path(digest).is_file()

    def put(self, digest: str, content: bytes) -> None:
        """Keep this. It is durable when this returns; when this raises nothing of it is left."""
        path = self.path(digest)
        if len(content) > self._limit_bytes:
            raise BadBlob(
                f"a blob of {len(content)} bytes is not kept in {self._folder}: at most {self._limit_bytes} are"
            )
        if (found := hashlib.sha256(content).hexdigest()) != digest:
            raise BadBlob(f"a blob arrived as {digest} and its content is {found}: it was changed on its way")
        beside = path.with_name(f"{digest}.{next(self._numbers)}{UNFINISHED}")  # another thread may keep the same one
        try:
            try:
                write_file(beside, content)
                os.replace(beside, path)
            except BaseException:
                with contextlib.suppress(OSError):  # also of one that could not even be made
                    os.unlink(beside)
                raise
            sync_folder(self._folder)
        except OSError as error:
            raise failed(path, "written", error) from error

    def renew(self, digest: str) -> int | None:
        """Somebody names it from now on: it counts as put just now, also for a `sweep` that is under way. How many
        bytes it has; None: it is not there."""
        path = self.path(digest)
        with self._sweeping:
            try:
                os.utime(path)
                return path.stat().st_size
            except FileNotFoundError:
                return None
            except OSError as error:
                raise failed(path, "kept", error) from error

    def get(self, digest: str) -> bytes | None:
        """The content; None where there is none, and where it is damaged, which is then set aside."""
        path = self.path(digest)
        content = read_file(path, self._limit_bytes)
        if content is None or hashlib.sha256(content).hexdigest() == digest:
            return content
        try:
            set_aside(path)
        except StoreFailed:
            if path.exists():  # else another thread has found the damage too
                raise
        return None

    def digests(self) -> list[str]:
        """Of every blob that is there, in order."""
        return sorted(name for name in self._names() if DIGEST.fullmatch(name))

    def remove(self, digest: str) -> None:
        """Forget it, if it is there. After a crash it may be there again."""
        self._unlink(self.path(digest))

    def sweep(
        self,
        keep: Collection[str],
        older_than_s: float,
        now_s: float,
        *,
        most: int = MOST_UNNAMED,
        young_s: float = 0.0,
    ) -> list[str]:
        """Remove what nobody keeps and what was set aside, when it is older than this, and the oldest beyond `most`,
        except those that are younger than `young_s`; the digests of blobs removed.

        `now_s` is the wall clock's, like the times of files.
        """
        unnamed = []
        for name in self._names():
            is_blob = DIGEST.fullmatch(name) is not None
            if (is_blob and name in keep) or not (is_blob or DAMAGED.fullmatch(name)):
                continue
            with contextlib.suppress(FileNotFoundError):  # removed by another thread just now
                unnamed.append((now_s - (self._folder / name).stat().st_mtime, name))
        unnamed.sort()
        spare_s = min(older_than_s, young_s)
        ages = {name: older_than_s if place < most else spare_s for place, (_, name) in enumerate(unnamed)}
        return [name for name in sorted(ages) if self._drop_old(name, ages[name], now_s) and DIGEST.fullmatch(name)]

    def _drop_old(self, name: str, older_than_s: float, now_s: float) -> bool:
        """Asked again, as it may have been named since."""
        path = self._folder / name
        with self._sweeping, contextlib.suppress(FileNotFoundError):
            if now_s - path.stat().st_mtime > older_than_s:
                self._unlink(path)
                return True
        return False

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except OSError as error:
            raise failed(self._folder, "read", error) from error

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise failed(path, "removed", error) from error
