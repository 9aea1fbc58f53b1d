"""Whole results of a job's attempts on their way: from the worker, to a majority of managers, into the checkpoint.

See docs/decisions/0019-results-are-blobs-on-a-majority.md.
"""

from collections.abc import Mapping
from hashlib import sha256

from talka.control.jobs.effects import BlobWanted, KeepWanted
from talka.control.load.shard_run import ShardAttempt
from talka.errors import Untrusted
from talka.wire.jobs import AttemptResult, decode_result, encode_result


class AttemptResults:
    """`fetch` asks for a result by its digest, `keep` puts it on a majority of disks. Bounded by the attempts."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._fetching: dict[str, int] = {}
        """Number of the attempt, per digest that was asked for."""
        self._keeping: dict[str, AttemptResult] = {}
        """Results that a majority does not have yet, by digest."""
        self.kept: dict[int, str] = {}
        """Digest of the result that a majority has, per attempt. The checkpoint names these."""

    def fetch_kept(self, kept: Mapping[int, str]) -> list[BlobWanted]:
        """Ask for the results that the checkpoint of the manager before names."""
        self.kept = dict(kept)
        return [self.fetch(attempt, digest, 0) for attempt, digest in kept.items()]

    def fetch(self, attempt: int, digest: str, size_bytes: int, *holders: str) -> BlobWanted:
        self._fetching[digest] = attempt
        return BlobWanted(self._job, digest, size_bytes, holders)

    def fetched(self, digest: str, content: bytes | None) -> tuple[int, AttemptResult | None] | None:
        """The attempt whose result was asked for under this digest, and the result: None where nobody has it, or it
        cannot be read. None for both: nobody asked."""
        attempt = self._fetching.pop(digest, None)
        if attempt is None:
            return None
        try:
            return attempt, None if content is None else decode_result(content)
        except Untrusted:
            return attempt, None

    def keep(self, digest: str, content: bytes, result: AttemptResult) -> KeepWanted:
        self._keeping[digest] = result
        return KeepWanted(self._job, digest, content)

    def keep_counts(self, lost: ShardAttempt, saved: dict[str, bytes], origin_ns: int) -> KeepWanted:
        """What a lost attempt had told last is its result, with what it had saved when it was warned. `origin_ns`: when
        the load of the job began."""
        result = AttemptResult(
            job=self._job,
            attempt=lost.number,
            tally=lost.tally,
            windows=[],
            shares=lost.shares,
            started_at_ns=lost.started_at_ns - origin_ns if lost.started_at_ns else 0,
            ended_at_ns=lost.reported_ns - origin_ns,
            spread_ns=lost.spread_ns,
            provided=saved,
            gaps=lost.gaps,
            is_lost=True,
            worker=lost.place,
            life=lost.life,
        )
        content = encode_result(result)
        return self.keep(sha256(content).hexdigest(), content, result)

    def release(self, digest: str) -> AttemptResult | None:
        """A majority has this blob: the result that it is, unless nobody waits for it."""
        return self._keeping.pop(digest, None)

    @property
    def is_fetching(self) -> bool:
        return bool(self._fetching)

    def is_fetched(self, attempt: int) -> bool:
        """Whether the result of this attempt is on its way to this manager."""
        return attempt in self._fetching.values()

    def is_known(self, attempt: int, digest: str) -> bool:
        """Whether this result need not be fetched: it is on its way, is here, or one of the attempt is kept."""
        return attempt in self.kept or digest in self._keeping or self.is_fetched(attempt)

    def has(self, attempt: int) -> bool:
        """Whether this manager has the whole result of the attempt: it will count."""
        return attempt in self.kept or any(result.attempt == attempt for result in self._keeping.values())

    def arriving(self) -> dict[int, None]:
        """Attempts that are over for their workers: they are not killed for being late."""
        keeping = [result.attempt for result in self._keeping.values()]
        return dict.fromkeys([*self._fetching.values(), *keeping, *self.kept])
