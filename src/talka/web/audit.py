"""Who did what: a line for every change that was asked for and for everybody who was refused.

Lines are JSON, in `audit.log` of the data folder. They are written by a thread, in order; what a disk does not take in
time is left out and counted, for no request waits for its line.
"""

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from talka.clock import monotonic_ns, realtime_ns
from talka.report.tame import tame, tame_json
from talka.units import SECOND
from talka.wire.views import instant_text

FILE_LIMIT_BYTES: Final = 16 * 1024 * 1024
FILES: Final = 4
WAITING_LIMIT: Final = 10_000
TEXT_LIMIT: Final = 300
PAGE_LIMIT: Final = 500
TAIL_BYTES: Final = 256 * 1024

logger = logging.getLogger("talka.web")


class AuditLine(msgspec.Struct, frozen=True, omit_defaults=True):
    at: str
    who: str
    """Of the token; empty where none are used, or when it did not hold."""
    what: str
    """The operation; of what never came so far, the method and path."""
    status: int
    """Of the answer; 0: there was none."""
    source: str = ""
    """The address that asked."""
    role: str = ""
    token: str = ""
    """Its id."""
    job: str = ""
    """Or worker, schedule or dead letter."""
    text: str = ""
    """Why it was refused; how many jobs a stream brought."""


class AuditPage(msgspec.Struct, frozen=True):
    """The last lines, newest last."""

    items: list[AuditLine]


def append_line(
    path: Path, at_ns: int, what: str, status: int, *, who: str = "", source: str = "", text: str = ""
) -> None:
    """One line, written at once: for what happens rarely, and beside the API."""
    line = AuditLine(instant_text(at_ns // 1_000_000), who, what, status, source, text=text[:TEXT_LIMIT])
    append(path, msgspec.json.encode(line) + b"\n")


def append(path: Path, lines: bytes) -> int:
    """How many bytes the file has now. It is opened each time: whoever moves it away gets a new one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(descriptor, "ab", buffering=0) as file:
        file.write(lines)
        return file.tell()


class ApiAudit:
    """`note` in the loop's thread; `close` at the end. Without a path refusals are logged, and nothing else is."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        limit_bytes: int = FILE_LIMIT_BYTES,
        files: int = FILES,
        now_ns: Callable[[], int] = realtime_ns,
        waiting_limit: int = WAITING_LIMIT,
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        self._waiting_limit = waiting_limit
        self._tail_bytes = tail_bytes
        self.left_out = 0
        self._path = None if path is None else Path(path)
        self._limit_bytes = limit_bytes
        self._files = files
        self._now_ns = now_ns
        self._waiting: deque[bytes] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._refusals = Refusals()
        self._is_broken = False
        self._is_closed = False

    def note(
        self,
        what: str,
        status: int,
        *,
        who: str = "",
        role: str = "",
        token: str = "",
        source: str = "",
        job: str = "",
        text: str = "",
    ) -> None:
        if status in (401, 403):
            self._refusals.tell(f"refused {what} of {who or 'somebody'} from {source or 'somewhere'}: {text}")
        if self._path is None or self._is_closed:
            return
        at = instant_text(self._now_ns() // 1_000_000)
        line = AuditLine(at, who, what[:TEXT_LIMIT], status, source, role, token, job[:TEXT_LIMIT], text[:TEXT_LIMIT])
        if len(self._waiting) >= self._waiting_limit:
            self.left_out += 1
            return
        self._waiting.append(tame_json(msgspec.json.encode(line)) + b"\n")
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())

    async def flush(self) -> None:
        while self._writer is not None and not self._writer.done():
            await self._writer

    def close(self) -> None:
        """Write what still waits. Afterwards nothing is written."""
        lines, self._waiting = b"".join(self._waiting), deque()
        if lines:
            self._append(lines)
        self._is_closed = True

    async def tail(self, limit: int) -> list[AuditLine]:
        await self.flush()
        return [] if self._path is None else await asyncio.to_thread(read_tail, self._path, limit, self._tail_bytes)

    async def _write_all(self) -> None:
        while self._waiting:
            lines = b"".join(self._waiting)
            self._waiting.clear()
            await asyncio.to_thread(self._append, lines)

    def _append(self, lines: bytes) -> None:
        assert self._path is not None
        try:
            if append(self._path, lines) >= self._limit_bytes:
                self._rotate()
            self._is_broken = False
        except OSError as error:
            self.left_out += lines.count(b"\n")
            if not self._is_broken:
                logger.error("the audit log %s cannot be written: %s", self._path, error.strerror)
            self._is_broken = True

    def _rotate(self) -> None:
        assert self._path is not None
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files))]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.replace(older)


class Refusals:
    """Log lines about refusals, one a second: whoever tries many tokens must not fill a disk."""

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self._now_ns = now_ns
        self._next_ns = 0
        self._untold = 0

    def tell(self, text: str) -> None:
        now = self._now_ns()
        if now < self._next_ns:
            self._untold += 1
            return
        logger.warning("%s%s", tame(text[:TEXT_LIMIT]), f" (and {self._untold} more before)" if self._untold else "")
        self._next_ns, self._untold = now + SECOND, 0


def read_tail(path: Path, limit: int, tail_bytes: int) -> list[AuditLine]:
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - tail_bytes))
            lines = file.read(tail_bytes).splitlines()
    except FileNotFoundError:
        return []
    if size_bytes > tail_bytes:
        lines = lines[1:]  # it begins in the middle
    found: list[AuditLine] = []
    for line in lines[-limit:]:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):  # cut off by a death, or not ours
            found.append(msgspec.json.decode(line, type=AuditLine))
    return found
