"""Messages on a stream of bytes: four bytes of length, then as many of content, which may be compressed.

The length is judged before anything is parsed or kept, and what is compressed is judged while it is opened.

Decision: docs/decisions/0015-one-member-one-loop.md.
"""

import zlib
from typing import Final

from talka.errors import Untrusted

FRAME_LIMIT_BYTES: Final = 1024 * 1024
HEADER_BYTES: Final = 4
COMPRESSED_FROM_BYTES: Final = 16 * 1024
"""Below it, compressing costs more than it saves: a manager that gives out tasks spent a twentieth of its time on
it."""
PROBE_BYTES: Final = 2 * 1024
"""From the middle of a content, compressed first: whether the rest is worth it."""
PROBE_LIMIT_PERCENT: Final = 60
"""Of its size. Histograms stay above it: opening those of a thousand workers would cost a manager more than a third of
their bytes is worth. Text is far below."""
DECOMPRESSED_LIMIT_BYTES: Final = 50 * 1024 * 1024
RATIO_LIMIT: Final = 100
"""How many times as long as its compressed form a content may be."""
GRACE_BYTES: Final = 64 * 1024
"""As long a content may be at any ratio: the ratio of something tiny says nothing."""

_PLAIN: Final = b"\x00"
_ZLIB: Final = b"\x01"
_LEVEL: Final = 1
_STEP_BYTES: Final = 1024 * 1024


class FrameTooLong(Untrusted):
    """A frame that says it is longer than any frame may be."""

    reason = "too-long"

    def __init__(self, size_bytes: int, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        super().__init__(f"a frame of {size_bytes} bytes is over the limit of {limit_bytes}")
        self.size_bytes = size_bytes


def framed(content: bytes) -> bytes:
    if len(content) > FRAME_LIMIT_BYTES:
        raise FrameTooLong(len(content))
    return len(content).to_bytes(HEADER_BYTES, "big") + content


class Deframer:
    """Cuts a stream into frames. Holds at most one frame that is not complete yet."""

    def __init__(self, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        """Strangers may be given a lower limit, until `lift`."""
        self._pending = bytearray()
        self._limit_bytes = limit_bytes

    def lift(self) -> None:
        self._limit_bytes = FRAME_LIMIT_BYTES

    def feed(self, data: bytes) -> list[bytes]:
        self._pending += data
        frames = []
        while len(self._pending) >= HEADER_BYTES:
            size = int.from_bytes(self._pending[:HEADER_BYTES], "big")
            if size > self._limit_bytes:
                raise FrameTooLong(size, self._limit_bytes)
            end = HEADER_BYTES + size
            if len(self._pending) < end:
                break
            frames.append(bytes(self._pending[HEADER_BYTES:end]))
            del self._pending[:end]
        return frames


class BadContent(Untrusted):
    """Content that cannot be unpacked. `reason` is a word for counters: malformed, bomb, too-long."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def packed(content: bytes) -> bytes:
    """`content` for a frame on a stream: compressed when it is long and gets much shorter by it."""
    size = len(content)
    if size > DECOMPRESSED_LIMIT_BYTES:
        raise BadContent("too-long", f"a content of {size} bytes is over the limit of {DECOMPRESSED_LIMIT_BYTES}")
    if size > COMPRESSED_FROM_BYTES and _is_worth_it(content):
        compressed = zlib.compress(content, _LEVEL)
        # What no receiver would open is sent plain.
        if len(compressed) < size <= _allowed(len(compressed)):
            return _ZLIB + compressed
    return _PLAIN + content


def unpacked(data: bytes) -> bytes:
    """The content that `packed` made `data` of. One that grows beyond what is allowed is given up at once."""
    kind = data[:1]
    if kind == _PLAIN:
        return data[1:]
    if kind != _ZLIB:
        raise BadContent("malformed", f"a content is of no known kind: it begins with {kind.hex() or 'nothing'}")
    allowed = _allowed(len(data) - 1)
    inflater = zlib.decompressobj()
    parts: list[bytes] = []
    size = 0
    rest = data[1:]
    while not inflater.eof:
        try:
            part = inflater.decompress(rest, min(_STEP_BYTES, allowed + 1 - size))
        except zlib.error as error:
            raise BadContent("malformed", f"a content was not compressed as it says: {error}") from None
        if not part and not inflater.eof:
            raise BadContent("malformed", "a compressed content ends too early")
        size += len(part)
        if size > allowed:
            reason = "bomb" if allowed < DECOMPRESSED_LIMIT_BYTES else "too-long"
            raise BadContent(reason, f"a content of {len(data)} bytes opens to more than the {allowed} allowed")
        parts.append(part)
        rest = inflater.unconsumed_tail
    if inflater.unused_data:
        raise BadContent("malformed", f"{len(inflater.unused_data)} bytes follow a compressed content")
    return b"".join(parts)


def _is_worth_it(content: bytes) -> bool:
    if len(content) > FRAME_LIMIT_BYTES // 2:
        return True  # it might not fit a frame as it is
    start = (len(content) - PROBE_BYTES) // 2
    probe = zlib.compress(content[start : start + PROBE_BYTES], _LEVEL)
    return 100 * len(probe) <= PROBE_LIMIT_PERCENT * PROBE_BYTES


def _allowed(compressed_bytes: int) -> int:
    """How long a content may be that is this long compressed."""
    return min(DECOMPRESSED_LIMIT_BYTES, max(GRACE_BYTES, RATIO_LIMIT * compressed_bytes))
