"""A manager's hold on its store: had, kept and let go. Calls block.

Decision: docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

from collections.abc import Callable
from typing import Final

from talka.clock import boottime_ns, monotonic_ns, sleep_until
from talka.control.tasks.store_hold import LOOK_NS, Hold, Vigil
from talka.nodes.member_events import Event
from talka.store.dags.records import Lease, RecordsUnavailable, StoreGone, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.units import SECOND

MANAGER_LEASE: Final = "manager"


class StoreLease:
    """From when it is made until `release`. Everything that `records` changes from then on is changed under it."""

    def __init__(
        self,
        records: SqliteRecords,
        owner: str,
        tell: Callable[[Event], None],
        *,
        vigil: Vigil | None = None,
        sleep: Callable[[int], None] = sleep_until,
    ) -> None:
        """`owner` names a folder that is locked: whoever had the lease from there is dead, and this life gets an epoch
        of its own at once. Of another owner it is not known whether it lives: it is looked at, until it stirs or has
        been silent for so long that it may be taken from it."""
        self._records = records
        self._owner = owner
        self.hold = Hold(boottime_ns())
        earlier = [(lease.key, lease.epoch) for lease in records.leases(MANAGER_LEASE) if lease.owner == owner]
        records.release(owner, earlier)
        lease = self._acquired() or self._taken(vigil or Vigil(), tell, sleep)
        self.epoch: Final = lease.epoch
        self._held = lease.epoch
        self._beat = lease.beat
        self.hold.renewed(boottime_ns())
        records.fence(lease)

    def _acquired(self) -> Lease | None:
        return next(iter(self._records.acquire([MANAGER_LEASE], self._owner)), None)

    def _taken(self, vigil: Vigil, tell: Callable[[Event], None], sleep: Callable[[int], None]) -> Lease:
        is_told = False
        while True:
            found = list(self._records.leases(MANAGER_LEASE))
            if not found:  # it was let go
                if lease := self._acquired():
                    return lease
                continue
            is_over = vigil.look(monotonic_ns(), (found[0].epoch, found[0].beat))
            if is_over and (taken := self._records.take(self._owner, found[:1])):
                return taken[0]
            if vigil.has_stirred:
                raise StoreTaken(
                    f"another manager has the store {self._records.place} and is alive (it works in {found[0].owner}): "
                    "stop that one, or give this one a store of its own"
                )
            if not is_told:
                is_told = True
                seconds = -(-vigil.left_ns // SECOND)
                had = f"another manager had the store (it worked in {found[0].owner})"
                text = f"{had}: unless it stirs, it is this one's in {seconds} s"
                tell({"event": "alarm", "kind": "store", "text": text})
            sleep(monotonic_ns() + LOOK_NS)

    def keep(self) -> None:
        """Raises `StoreLost` when it is lost, and `RecordsUnavailable` when the store cannot be written."""
        asked_at = boottime_ns()
        self._records.file.check_place()
        try:
            kept = self._records.renew(self._owner, [(MANAGER_LEASE, self._held)])
        except RecordsUnavailable:
            # Who has it can still be read. As long as it is this one, a full disk is no reason to let workers go.
            if not any(
                (one.owner, one.epoch) == (self._owner, self._held) for one in self._records.leases(MANAGER_LEASE)
            ):
                raise self._lost() from None
            self.hold.renewed(asked_at)
            raise
        if not kept:
            raise self._lost()
        if kept[0].beat <= self._beat:
            raise StoreGone(
                f"{self._records.place} is an older state of the store than this manager wrote: nothing more is kept "
                "or acknowledged; stop this manager, and start it again with the store it should have"
            )
        self._beat = kept[0].beat
        self.hold.renewed(asked_at)

    def raise_to(self, epoch: int) -> int:
        """The epoch that is held then, this one or a higher one. Raises `StoreTaken` when somebody else has it."""
        raised = self._records.raise_epoch(self._owner, (MANAGER_LEASE, self._held), epoch)
        if not raised:
            raise self._lost()
        self._held = raised
        return raised

    def _lost(self) -> StoreTaken:
        return StoreTaken(
            f"another manager has taken the store {self._records.place}, and this one writes nothing more to it: "
            "have one manager for a store, and start this one again when it should have the store"
        )

    def release(self) -> None:
        self._records.release(self._owner, [(MANAGER_LEASE, self._held)])
