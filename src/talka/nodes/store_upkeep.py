"""A manager's hold on its store, and what is dropped from it in time. Calls block."""

from typing import Final

from talka.clock import SECOND, realtime_ns
from talka.errors import Unavailable
from talka.store.blobs import Blobs
from talka.store.sqlite_records import SqliteRecords

MANAGER_LEASE: Final = "manager"
LEASE_MS: Final = 10_000
KEPT_S: Final = 7 * 86_400
KEPT_JOBS: Final = 10_000
SWEPT_AT_ONCE: Final = 100
PAGE: Final = 20_000
BLOBS_KEPT_S: Final = 3600.0
"""A file is there before the row that names it. One that is older than this and not named belongs to nothing."""


class StoreTaken(Unavailable):
    """Another manager has the store."""


class StoreLease:
    """From when it is made until `release`, if `keep` is called in time."""

    def __init__(self, records: SqliteRecords, owner: str) -> None:
        """`owner` names a folder that is locked: whoever had the lease from there is dead, and this life gets an epoch of
        its own."""
        self._records = records
        self._owner = owner
        earlier = [(lease.key, lease.epoch) for lease in records.leases(MANAGER_LEASE) if lease.owner == owner]
        records.release(owner, earlier)
        leases = records.acquire([MANAGER_LEASE], owner, LEASE_MS)
        if not leases:
            raise StoreTaken(
                f"another manager has the store {records.place}: stop it; if it was killed, wait {LEASE_MS // 1000} s"
            )
        self.epoch: Final = leases[0].epoch
        self._held = leases[0].epoch

    def keep(self) -> None:
        """Raises `StoreTaken` when somebody else has had it."""
        if self._records.renew(self._owner, [(MANAGER_LEASE, self._held)], LEASE_MS):
            return
        # This machine slept, or its disk did: it is had again, and the epoch tells whether another had it meanwhile.
        again = self._records.acquire([MANAGER_LEASE], self._owner, LEASE_MS)
        if not again or again[0].epoch > self._held + 1:
            raise StoreTaken("another manager has taken the store: this one stops")
        self._held = again[0].epoch

    def raise_to(self, epoch: int) -> int:
        """The epoch that is held then, this one or a higher one. Raises `StoreTaken` when somebody else has it."""
        raised = self._records.raise_epoch(self._owner, (MANAGER_LEASE, self._held), epoch)
        if not raised:
            raise StoreTaken("another manager has taken the store: this one stops")
        self._held = raised
        return raised

    def release(self) -> None:
        self._records.release(self._owner, [(MANAGER_LEASE, self._held)])


def sweep(records: SqliteRecords, blobs: Blobs) -> None:
    """Drop jobs that ended long ago, and their files."""
    now_ns = realtime_ns()
    if not records.sweep(now_ns // 1_000_000 - KEPT_S * 1000, KEPT_JOBS, SWEPT_AT_ONCE):
        return
    named: dict[str, None] = {}
    after = ""
    while page := records.blobs(after, PAGE):
        named.update(dict.fromkeys(page))
        after = page[-1]
    blobs.sweep(named, BLOBS_KEPT_S, now_ns / SECOND)
