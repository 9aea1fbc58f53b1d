"""Blobs that managers keep for each other: bundles, results of attempts, result documents. Named by their digest.

A blob counts as kept once a majority of managers has it on disk. Contents are read by the shell: pieces are served and
whole blobs loaded through effects.

docs/decisions/0019-results-are-blobs-on-a-majority.md.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, PersistBlob, Send
from talka.cluster.leadership.quorum import majority
from talka.control.blobs.fetching import BlobFetch
from talka.errors import Invalid, Unavailable
from talka.units import NEVER, SECOND
from talka.wire.jobs import BLOB_LIMIT_BYTES, CHANNEL, PIECE_LIMIT_BYTES, JobMessage, KeepBlob, Kept, Piece, WantBlob

AGAIN_NS: Final = SECOND
LINGER_NS: Final = 10 * SECOND
"""After a majority has it, the others are given so long."""


class BlobKept(msgspec.Struct, frozen=True):
    """A majority of managers has it on disk."""

    digest: str


class BlobFailed(msgspec.Struct, frozen=True):
    """It cannot be kept, and why."""

    digest: str
    text: str


class BlobReady(msgspec.Struct, frozen=True):
    """What was wanted; None when nobody has it."""

    digest: str
    content: bytes | None


class LoadBlob(msgspec.Struct, frozen=True):
    """Read this from the disk, then say `on_loaded`."""

    digest: str


class ServeBlob(msgspec.Struct, frozen=True):
    """Read a piece from the disk and say it, as `piece_of` makes it."""

    to: str
    digest: str
    offset: int


BlobEffect: TypeAlias = Send[JobMessage] | PersistBlob | BlobKept | BlobFailed | BlobReady | LoadBlob | ServeBlob


class BlobLimits(msgspec.Struct, frozen=True):
    """What one manager holds in memory of blobs on their way."""

    keeping_bytes: int = 256 * 1024 * 1024
    """Bytes that are passed on to others."""
    incoming: int = 64
    """Blobs of others that are not whole."""
    incoming_bytes: int = 256 * 1024 * 1024
    """Bytes of these."""
    piece_bytes: int = PIECE_LIMIT_BYTES


BLOB_LIMITS: Final = BlobLimits()


class BlobsFull(Unavailable):
    """This manager passes on as many bytes as it may at a time."""

    def __init__(self, keeping_bytes: int) -> None:
        super().__init__(
            f"this manager is already passing on {keeping_bytes >> 20} MiB to others: try again in a moment"
        )


class _Keeping:
    def __init__(self, content: bytes, now: int) -> None:
        self.content = content
        self.stored: dict[str, None] = {}
        self.have: dict[str, int] = {}
        self.again_at: dict[str, int] = {}
        self.is_kept = False
        self.ends_at = NEVER
        self.since = now


def piece_of(digest: str, content: bytes | None, offset: int, piece_bytes: int = PIECE_LIMIT_BYTES) -> Piece:
    if content is None or offset > len(content):
        return Piece(digest, offset, 0, b"")
    return Piece(digest, offset, len(content), content[offset : offset + piece_bytes])


class ReplicatedBlobs:
    def __init__(
        self,
        me: str,
        managers: Callable[[], Iterable[str]],
        has: Iterable[str],
        rng: Random,
        limits: BlobLimits = BLOB_LIMITS,
    ) -> None:
        self.limits = limits
        self._me = me
        self._managers = managers
        self._has: dict[str, None] = dict.fromkeys(has)
        self._rng = rng
        self._tickets = 0
        self._writing: dict[int, tuple[str, str]] = {}
        """Ticket to digest and whom to tell; this manager's own writes name itself."""
        self._keeping: dict[str, _Keeping] = {}
        self._incoming: dict[str, bytearray] = {}
        self._fetches: dict[str, BlobFetch] = {}
        self.next_tick_at = NEVER

    def has(self, digest: str) -> bool:
        """Whether it is here, or on a majority of disks if this manager's own would not take it."""
        return digest in self._has or (digest in self._keeping and self._keeping[digest].is_kept)

    def forget(self, digests: Iterable[str]) -> None:
        """The shell removed these from the disk."""
        for digest in digests:
            self._has.pop(digest, None)

    # -- keeping

    def keep(self, now: int, digest: str, content: bytes) -> list[BlobEffect]:
        if not 0 < len(content) <= BLOB_LIMIT_BYTES:
            raise Invalid(f"a blob may have from 1 to {BLOB_LIMIT_BYTES} bytes, not {len(content)}")
        if digest in self._keeping:
            return [BlobKept(digest)] if self._keeping[digest].is_kept else []
        if sum(len(one.content) for one in self._keeping.values()) + len(content) > self.limits.keeping_bytes:
            raise BlobsFull(self.limits.keeping_bytes)
        keeping = self._keeping[digest] = _Keeping(content, now)
        effects: list[BlobEffect] = []
        if digest in self._has:
            effects += self._stored(now, digest, self._me)
        else:
            effects.append(self._persist(digest, content, self._me))
        for manager in self._managers():
            if manager != self._me:
                effects.append(self._offer(now, digest, keeping, manager))
        self._set_timer()
        return effects

    def _persist(self, digest: str, content: bytes, tell: str) -> PersistBlob:
        self._tickets += 1
        self._writing[self._tickets] = (digest, tell)
        return PersistBlob(self._tickets, digest, content)

    def _offer(self, now: int, digest: str, keeping: _Keeping, manager: str) -> Send[JobMessage]:
        offset = keeping.have.setdefault(manager, 0)
        keeping.again_at[manager] = now + AGAIN_NS
        data = keeping.content[offset : offset + self.limits.piece_bytes]
        return Send(CHANNEL, manager, KeepBlob(digest, offset, len(keeping.content), data), Lane.RESULTS)

    def _stored(self, now: int, digest: str, manager: str) -> list[BlobEffect]:
        keeping = self._keeping.get(digest)
        if keeping is None:
            return []
        keeping.stored[manager] = None
        keeping.again_at.pop(manager, None)
        managers = list(self._managers())
        present = sum(1 for name in managers if name in keeping.stored)
        effects: list[BlobEffect] = []
        if not keeping.is_kept and present >= majority(len(managers)):
            keeping.is_kept = True
            keeping.ends_at = now + LINGER_NS
            effects.append(BlobKept(digest))
        if present == len(managers):
            del self._keeping[digest]
        return effects

    def on_kept(self, now: int, sender: str, message: Kept) -> list[BlobEffect]:
        keeping = self._keeping.get(message.digest)
        if keeping is None or sender not in keeping.have:
            return []
        if message.problem:
            keeping.have[sender] = 0
            return []  # offered again after a while
        if message.have_bytes >= len(keeping.content):
            effects = self._stored(now, message.digest, sender)
        elif message.have_bytes != keeping.have[sender]:
            keeping.have[sender] = message.have_bytes
            effects = [self._offer(now, message.digest, keeping, sender)]
        else:
            effects = []
        self._set_timer()
        return effects

    def on_keep(self, now: int, sender: str, message: KeepBlob) -> list[BlobEffect]:
        digest = message.digest
        if digest in self._has:
            return [Send(CHANNEL, sender, Kept(digest, message.size_bytes), Lane.RESULTS)]
        if any(writing == digest for writing, _ in self._writing.values()):
            return []  # told when it is on disk; it is offered again anyhow
        if not 0 < message.size_bytes <= BLOB_LIMIT_BYTES:
            return [Send(CHANNEL, sender, Kept(digest, 0, "it is empty or too large"), Lane.RESULTS)]
        have = self._incoming.setdefault(digest, bytearray())
        if message.offset == len(have) and len(have) + len(message.data) <= message.size_bytes:
            have += message.data
        if len(have) < message.size_bytes:
            self._bound_incoming(digest)
            return [Send(CHANNEL, sender, Kept(digest, len(have)), Lane.RESULTS)]
        content = bytes(self._incoming.pop(digest))
        if sha256(content).hexdigest() != digest:
            return [Send(CHANNEL, sender, Kept(digest, 0, "it is not what its digest says"), Lane.RESULTS)]
        return [self._persist(digest, content, sender)]

    def _bound_incoming(self, newest: str) -> None:
        size_bytes = sum(len(part) for part in self._incoming.values())
        limits = self.limits
        while len(self._incoming) > limits.incoming or size_bytes > limits.incoming_bytes:
            oldest = next(digest for digest in self._incoming if digest != newest)
            size_bytes -= len(self._incoming.pop(oldest))

    def on_persisted(self, now: int, ticket: int) -> list[BlobEffect]:
        digest, tell = self._writing.pop(ticket)
        self._has[digest] = None
        if tell == self._me:
            return self._stored(now, digest, self._me)
        # Any offset beyond the end says that all of it is here.
        return [Send(CHANNEL, tell, Kept(digest, BLOB_LIMIT_BYTES), Lane.RESULTS)]

    def on_not_persisted(self, now: int, ticket: int, text: str) -> list[BlobEffect]:
        """The disk would not take it. Others may have it all the same."""
        digest, tell = self._writing.pop(ticket)
        if tell != self._me:
            return [Send(CHANNEL, tell, Kept(digest, 0, text[:1000]), Lane.RESULTS)]
        managers = len(list(self._managers()))
        if managers - 1 >= majority(managers):
            return []  # the others are a majority without this one
        self._keeping.pop(digest, None)
        self._set_timer()
        return [BlobFailed(digest, text)]

    # -- fetching and serving

    def fetch(self, now: int, digest: str, size_bytes: int = 0, holders: tuple[str, ...] = ()) -> list[BlobEffect]:
        """Get a blob, then say `BlobReady`. A size of 0: it is not known."""
        if digest in self._has:
            return [LoadBlob(digest)]
        keeping = self._keeping.get(digest)
        if keeping is not None:
            return [BlobReady(digest, keeping.content)]
        sources = holders or tuple(name for name in self._managers() if name != self._me)
        if digest in self._fetches:
            # Whoever was asked first may have forgotten it since.
            self._fetches[digest].also(now, sources)
            return []
        first = self._rng.randrange(len(sources)) if sources else 0  # so that not all ask the same one
        fetch = self._fetches[digest] = BlobFetch(digest, size_bytes, (*sources[first:], *sources[:first]))
        return [*fetch.start(now), *self._over(digest, fetch)]

    def on_loaded(self, now: int, digest: str, content: bytes | None) -> list[BlobEffect]:
        if content is None:
            self._has.pop(digest, None)
            return self.fetch(now, digest)
        return [BlobReady(digest, content)]

    def on_piece(self, now: int, sender: str, message: Piece) -> list[BlobEffect]:
        fetch = self._fetches.get(message.digest)
        if fetch is None:
            return []
        return [*fetch.on_piece(now, sender, message), *self._over(message.digest, fetch)]

    def _over(self, digest: str, fetch: BlobFetch) -> list[BlobEffect]:
        self._set_timer()
        if not fetch.is_over:
            return []
        del self._fetches[digest]
        self._set_timer()
        return [BlobReady(digest, fetch.content)]

    def on_want(self, sender: str, message: WantBlob) -> list[BlobEffect]:
        keeping = self._keeping.get(message.digest)
        if keeping is not None:
            piece = piece_of(message.digest, keeping.content, message.offset, self.limits.piece_bytes)
            return [Send(CHANNEL, sender, piece, Lane.STREAM)]
        if message.digest in self._has:
            return [ServeBlob(sender, message.digest, message.offset)]
        return [Send(CHANNEL, sender, piece_of(message.digest, None, message.offset), Lane.STREAM)]

    # -- time

    def tick(self, now: int) -> list[BlobEffect]:
        effects: list[BlobEffect] = []
        for digest, keeping in list(self._keeping.items()):
            if now >= keeping.ends_at:
                del self._keeping[digest]
                continue
            for manager in [name for name, at in keeping.again_at.items() if now >= at]:
                effects.append(self._offer(now, digest, keeping, manager))
        for digest, fetch in list(self._fetches.items()):
            if now >= fetch.next_tick_at:
                effects += [*fetch.tick(now), *self._over(digest, fetch)]
        self._set_timer()
        return effects

    def _set_timer(self) -> None:
        at = min((fetch.next_tick_at for fetch in self._fetches.values()), default=NEVER)
        for keeping in self._keeping.values():
            at = min(at, keeping.ends_at, *keeping.again_at.values()) if keeping.again_at else min(at, keeping.ends_at)
        self.next_tick_at = at
