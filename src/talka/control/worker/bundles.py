"""The bundles a worker has on disk, and those on their way to it.

Decision: docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

from collections.abc import Collection, Iterable
from random import Random
from typing import Final

from talka.cluster.effects import PersistBlob, Send
from talka.control.blobs.fetching import BlobFetch
from talka.control.member.peer_pool import PeerPool, PooledPeer
from talka.control.worker.writes import WorkerWrites
from talka.units import NEVER
from talka.wire.jobs import JobMessage, Piece

KEPT_LIMIT: Final = 64
"""On disk. The one that was used longest ago gives way."""
FETCHES_LIMIT: Final = 8


class WorkerBundles:
    """Call `need` for a bundle that is not here, then `on_piece`, `tick` and `on_persisted` as things happen.

    After each, `take_problems` says what cannot be had.
    """

    def __init__(self, here: Iterable[str], own: PooledPeer, rng: Random, writes: WorkerWrites) -> None:
        self.pool = PeerPool(own, "bundles", rng)
        """Managers, who keep bundles: a near one is asked first, and the next one where it does not answer."""
        self._here = dict.fromkeys(here)
        """By digest, least recently used first."""
        self._writes = writes
        self._fetches: dict[str, BlobFetch] = {}
        self._on_way: dict[int, str] = {}
        """Digests of bundles that are being written, by ticket."""
        self._problems: dict[str, str] = {}

    @property
    def next_tick_at(self) -> int:
        return min((fetch.next_tick_at for fetch in self._fetches.values()), default=NEVER)

    @property
    def is_busy(self) -> bool:
        """As many are on their way as may be."""
        return len(self._fetches) >= FETCHES_LIMIT

    def has(self, digest: str) -> bool:
        return digest in self._here

    def is_fetching(self, digest: str) -> bool:
        return digest in self._fetches

    def use(self, digest: str) -> None:
        self._here[digest] = self._here.pop(digest)

    def need(self, now: int, digest: str, size_bytes: int) -> list[Send[JobMessage] | PersistBlob]:
        if self.is_busy:
            self._problems[digest] = f"{FETCHES_LIMIT} others are on their way"
            return []
        fetch = self._fetches[digest] = BlobFetch(digest, size_bytes, self.pool.order(now))
        return self._after(fetch, fetch.start(now), ())

    def on_piece(
        self, now: int, sender: str, piece: Piece, wanted: Collection[str]
    ) -> list[Send[JobMessage] | PersistBlob]:
        """`wanted` are the digests of bundles that shards run from or wait for."""
        fetch = self._fetches.get(piece.digest)
        if fetch is None:
            return []
        if sender == fetch.awaited:
            self.pool.succeeded(now, sender, fetch.asked_at)
        return self._after(fetch, fetch.on_piece(now, sender, piece), wanted)

    def tick(self, now: int, wanted: Collection[str]) -> list[Send[JobMessage] | PersistBlob]:
        effects: list[Send[JobMessage] | PersistBlob] = []
        for digest, fetch in list(self._fetches.items()):
            if now < fetch.next_tick_at:
                continue
            if fetch.awaited:
                self.pool.failed(now, fetch.awaited, fetch.asked_at)
            if digest in wanted:
                effects += self._after(fetch, fetch.tick(now), wanted)
            else:  # whoever waited for it is gone
                del self._fetches[digest]
        return effects

    def on_persisted(self, ticket: int) -> bool:
        """Whether a bundle is here now."""
        digest = self._on_way.pop(ticket, None)
        if digest is None:
            return False
        self._here[digest] = None
        del self._fetches[digest]
        return True

    def on_not_persisted(self, ticket: int, text: str) -> None:
        digest = self._on_way.pop(ticket, None)
        if digest is not None:
            del self._fetches[digest]
            self._problems[digest] = text

    def take_problems(self) -> dict[str, str]:
        """Digests that cannot be had, and why."""
        problems, self._problems = self._problems, {}
        return problems

    def _after(
        self, fetch: BlobFetch, asked: list[Send[JobMessage]], wanted: Collection[str]
    ) -> list[Send[JobMessage] | PersistBlob]:
        if fetch.problem:
            del self._fetches[fetch.digest]
            self._problems[fetch.digest] = fetch.problem
        elif fetch.content is not None and fetch.digest not in self._on_way.values():
            unused = [digest for digest in self._here if digest not in wanted]
            gone = unused[: max(0, len(self._here) + 1 - KEPT_LIMIT)]
            for digest in gone:
                del self._here[digest]
            write = PersistBlob(self._writes.ticket(), fetch.digest, fetch.content, tuple(gone))
            self._on_way[write.ticket] = fetch.digest
            return [*asked, write]
        return [*asked]
