"""Messages on a stream of bytes: four bytes of length, then as many of content.

The length is judged before anything is parsed or kept.
"""

from typing import Final

from talka.errors import Untrusted

FRAME_LIMIT_BYTES: Final = 1024 * 1024
HEADER_BYTES: Final = 4


class FrameTooLong(Untrusted):
    """A frame that says it is longer than any frame may be."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes is over the limit of {FRAME_LIMIT_BYTES}")
        self.size_bytes = size_bytes


def framed(content: bytes) -> bytes:
    if len(content) > FRAME_LIMIT_BYTES:
        raise FrameTooLong(len(content))
    return len(content).to_bytes(HEADER_BYTES, "big") + content


class Deframer:
    """Cuts a stream into frames. Holds at most one frame that is not complete yet."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._pending += data
        frames = []
        while len(self._pending) >= HEADER_BYTES:
            size = int.from_bytes(self._pending[:HEADER_BYTES], "big")
            if size > FRAME_LIMIT_BYTES:
                raise FrameTooLong(size)
            end = HEADER_BYTES + size
            if len(self._pending) < end:
                break
            frames.append(bytes(self._pending[HEADER_BYTES:end]))
            del self._pending[:end]
        return frames
