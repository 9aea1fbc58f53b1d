"""The steps of a job that is watched, merged a few at a time.

Those of a thousand workers take seconds to merge. A manager that did nothing else for so long would lose its lease.
"""

from typing import Final

from talka.control.load.load_job import LoadJob
from talka.control.load.shard_run import ShardAttempt
from talka.stats.tally import Tally

MERGED_AT_ONCE: Final = 32
"""Steps of single attempts; each takes one or two milliseconds. At least one attempt is merged, however many it has."""
MERGE_EVERY_NS: Final = 250_000_000


class StepMerge:
    """Call `advance` at any pace. `latest` is what the last of the `passes` over all attempts came to."""

    def __init__(self, merged_at_once: int = MERGED_AT_ONCE) -> None:
        self._merged_at_once = merged_at_once
        self.passes = 0
        self.latest: dict[str, Tally] = {}
        """By workflow. Counted at different instants, but nothing twice."""
        self._at = 0
        self._rest: list[tuple[str, ShardAttempt]] = []
        self._merged: dict[str, Tally] = {}

    def advance(self, now: int, job: LoadJob) -> None:
        if now < self._at:
            return
        self._at = now + MERGE_EVERY_NS
        if not self._rest:
            self._merged = {name: Tally() for name in job.workflows}
            self._rest = [
                (name, attempt)
                for name, run in job.workflows.items()
                for shard in run.shards
                for attempt in shard.attempts
            ]
        done = 0
        while self._rest and done < self._merged_at_once:
            name, attempt = self._rest.pop()
            tally = attempt.tally
            self._merged[name].merge(tally)
            done += 1 + len(tally.steps) + len(tally.actions) + len(tally.metrics)
            done += sum(len(calls) for calls in tally.calls.values())
        if not self._rest:
            for merged in self._merged.values():
                merged.tell_statuses()
            self.latest = self._merged
            self.passes += 1
