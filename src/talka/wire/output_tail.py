"""The end of what an attempt wrote: how much of it is kept, and how it travels.

Decision: docs/decisions/0047-the-last-words-of-an-attempt.md.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

STREAM_LIMIT_BYTES: Final = 64 * 1024
"""Of each stream of an attempt its last bytes are kept."""
Stream: TypeAlias = Literal["stdout", "stderr", "traceback"]
STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr", "traceback")
"""As numbers in a store: the position here. New ones go last."""


class StreamTail(msgspec.Struct, frozen=True, array_like=True):
    """The last bytes of a stream."""

    stream: Stream
    content: Annotated[bytes, msgspec.Meta(max_length=STREAM_LIMIT_BYTES)]
    written: Annotated[int, msgspec.Meta(ge=0)]
    """How many bytes there were in all."""


Tails = Annotated[tuple[StreamTail, ...], msgspec.Meta(max_length=len(STREAMS))]
NO_TAILS: Final[tuple[StreamTail, ...]] = ()


class Wrote(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt has written since it was told last, or the end of that."""

    fence: Annotated[int, msgspec.Meta(ge=0)]
    tails: Tails


class OutputTail:
    """One stream, of which the last `limit` bytes are kept."""

    __slots__ = ("_content", "_limit", "_told", "written")

    def __init__(self, limit: int = STREAM_LIMIT_BYTES) -> None:
        self.written = 0
        self._limit = limit
        self._told = 0
        """Of the bytes written, those that `fresh` has answered."""
        self._content = bytearray()

    def __len__(self) -> int:
        """How many bytes are kept."""
        return len(self._content)

    def write(self, content: bytes) -> None:
        self.written += len(content)
        self._content += content[-self._limit :]
        if len(self._content) > self._limit:
            del self._content[: -self._limit]

    def take(self, tail: StreamTail) -> None:
        """What somebody who has the whole has told of it."""
        if tail.written - len(tail.content) != self.written:
            self._content.clear()  # something in between never came: what is kept has no holes
        self.write(tail.content)
        self.written = tail.written

    def all(self, stream: Stream, limit: int = STREAM_LIMIT_BYTES) -> StreamTail:
        """Of what is kept, the last `limit` bytes."""
        return StreamTail(stream, bytes(self._content[-limit:]), self.written)

    def fresh(self, stream: Stream) -> StreamTail | None:
        """What was written since the last time."""
        count, self._told = self.written - self._told, self.written
        return StreamTail(stream, bytes(self._content[-count:]), self.written) if count else None


def tails_bytes(tails: tuple[StreamTail, ...]) -> int:
    return sum([len(tail.content) for tail in tails])
