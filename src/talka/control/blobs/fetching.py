"""One blob on its way here, piece by piece, from whichever node has it.

docs/decisions/0019-results-are-blobs-on-a-majority.md.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from talka.cluster.effects import Lane, Send
from talka.units import NEVER, SECOND
from talka.wire.jobs import BLOB_LIMIT_BYTES, CHANNEL, JobMessage, Piece, WantBlob

RETRY_NS: Final = SECOND
LIMIT_NS: Final = 60 * SECOND


class BlobFetch:
    """One piece is asked for at a time. A source that is silent or has nothing gives way to the next one.

    Call `start`, then `on_piece` and `tick`, and say what they return. In the end `content` is there, and is what the
    digest names, or `problem` says why not.
    """

    def __init__(self, digest: str, size_bytes: int, sources: Sequence[str]) -> None:
        """The first of the sources is asked first. A size of 0 means that it is not known: whoever gives the first
        piece says it."""
        self.digest = digest
        self.size_bytes = size_bytes
        self._is_size_known = size_bytes > 0
        self.content: bytes | None = None
        self.problem = ""
        self.next_tick_at = NEVER
        self._sources = list(sources)
        self.awaited = ""
        """Who was asked and has not answered yet."""
        self.asked_at = 0
        self._have = bytearray()
        self._position = 0
        self._without = 0
        """Sources in a row that did not have it."""
        self._end_ns = 0

    @property
    def is_over(self) -> bool:
        return self.content is not None or bool(self.problem)

    def start(self, now: int) -> list[Send[JobMessage]]:
        if not 0 <= self.size_bytes <= BLOB_LIMIT_BYTES:
            return self._give_up(f"it is said to have {self.size_bytes} bytes: at most {BLOB_LIMIT_BYTES} are allowed")
        if not self._sources:
            return self._give_up("no node is known that could have it")
        self._end_ns = now + LIMIT_NS
        return self._ask(now)

    def also(self, now: int, sources: Sequence[str]) -> None:
        """These may have it too; they are given as long as the first ones were."""
        self._sources += [name for name in sources if name not in self._sources]
        self._end_ns = now + LIMIT_NS

    def on_piece(self, now: int, sender: str, piece: Piece) -> list[Send[JobMessage]]:
        if self.is_over or sender != self._asked or piece.digest != self.digest:
            return []  # an answer to what was asked before
        self.awaited = ""
        if not self.size_bytes and piece.size_bytes <= BLOB_LIMIT_BYTES:
            self.size_bytes = piece.size_bytes
        if not self.size_bytes or piece.size_bytes != self.size_bytes:
            return self._has_it_not(now)
        rest = self.size_bytes - len(self._have)
        if piece.offset != len(self._have) or not 0 < len(piece.data) <= rest:
            return []
        self._have += piece.data
        self._without = 0
        if len(self._have) < self.size_bytes:
            return self._ask(now)
        content = bytes(self._have)
        self._have.clear()
        if sha256(content).hexdigest() != self.digest:
            # A piece was damaged, and nobody knows which; or the size was.
            self.size_bytes = self.size_bytes if self._is_size_known else 0
            return self._next(now)
        self.content = content
        self.next_tick_at = NEVER
        return []

    def tick(self, now: int) -> list[Send[JobMessage]]:
        if now < self.next_tick_at:
            return []
        if now >= self._end_ns:
            return self._give_up(f"no manager gave all of it within {LIMIT_NS // SECOND} s")
        self._without = 0
        return self._next(now)

    @property
    def _asked(self) -> str:
        return self._sources[self._position]

    def _has_it_not(self, now: int) -> list[Send[JobMessage]]:
        self._without += 1
        if self._without < len(self._sources):
            return self._next(now)
        return []  # nobody has it yet: the next round begins with the tick

    def _next(self, now: int) -> list[Send[JobMessage]]:
        self._position = (self._position + 1) % len(self._sources)
        return self._ask(now)

    def _ask(self, now: int) -> list[Send[JobMessage]]:
        self.next_tick_at = now + RETRY_NS
        self.awaited, self.asked_at = self._asked, now
        return [Send(CHANNEL, self._asked, WantBlob(self.digest, len(self._have)), Lane.STREAM)]

    def _give_up(self, problem: str) -> list[Send[JobMessage]]:
        self.problem = problem
        self.next_tick_at = NEVER
        self._have.clear()
        return []
