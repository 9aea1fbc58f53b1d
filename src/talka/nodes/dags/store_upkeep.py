"""What is dropped from a store in time. Calls block."""

from typing import Final

from talka.clock import boottime_ns, realtime_ns
from talka.control.tasks.clock_watch import ClockWatch
from talka.store.dags.sqlite import SqliteRecords
from talka.store.files.blobs import Blobs
from talka.units import MILLISECOND, SECOND

KEPT_S: Final = 7 * 86_400
KEPT_JOBS: Final = 10_000
SWEPT_AT_ONCE: Final = 100
PAGE: Final = 20_000
BLOBS_KEPT_S: Final = 3600.0
"""A file is there before the row that names it. One that is older than this and not named belongs to nothing."""


class StoreUpkeep:
    """Call `sweep` now and then."""

    def __init__(self, records: SqliteRecords, blobs: Blobs, clock: ClockWatch) -> None:
        self._records = records
        self._blobs = blobs
        self._clock = clock
        self._swept_at = boottime_ns()
        self._has_files = False
        """Of jobs that are no more, perhaps."""

    def sweep(self) -> None:
        """Drop jobs that ended long ago, and their files."""
        now = boottime_ns()
        grown_ms = (now - self._swept_at) // MILLISECOND
        self._has_files |= bool(self._records.sweep(grown_ms, KEPT_S * 1000, KEPT_JOBS, SWEPT_AT_ONCE))
        self._swept_at += grown_ms * MILLISECOND  # not before it is kept
        if self._has_files and self._clock.is_steady(now, round(BLOBS_KEPT_S * SECOND)):
            self._sweep_files()
            self._has_files = False

    def _sweep_files(self) -> None:
        """Files are as old as the clock of the day says: not after it was set."""
        named: dict[str, None] = {}
        after = ""
        while page := self._records.blobs(after, PAGE):
            named.update(dict.fromkeys(page))
            after = page[-1]
        self._blobs.sweep(named, BLOBS_KEPT_S, realtime_ns() / SECOND)
