"""A manager's hold on its store: had, kept and let go.

Decision: docs/decisions/0034-no-clock-decides-who-has-the-store.md.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from talka.clock import boottime_ns, monotonic_ns
from talka.control.tasks.partition import LEASE
from talka.control.tasks.store_hold import LOOK_NS, Hold, Vigil
from talka.nodes.member_events import Event
from talka.store.dags.records import Lease, RecordsUnavailable, Store, StoreGone, StoreTaken
from talka.units import SECOND


async def sleep_until(instant_ns: int) -> None:
    """Of the monotonic clock."""
    await asyncio.sleep(max(0, instant_ns - monotonic_ns()) / SECOND)


class HoldClocks(NamedTuple):
    """By which a hold is counted."""

    boot: Callable[[], int] = boottime_ns
    steady: Callable[[], int] = monotonic_ns
    sleep: Callable[[int], Awaitable[None]] = sleep_until


OWN_CLOCKS: Final = HoldClocks()


class StoreLease:
    """A lease that is held, from `had` until `release`. Everything that the store changes under its key meanwhile is
    changed under it."""

    def __init__(self, store: Store, lease: Lease, hold: Hold, clocks: HoldClocks) -> None:
        self._store = store
        self._owner = lease.owner
        self._clocks = clocks
        self.hold = hold
        self.key: Final = lease.key
        self.epoch: Final = lease.epoch
        self._held = lease.epoch
        self._beat = lease.beat

    @classmethod
    async def had(
        cls,
        store: Store,
        owner: str,
        tell: Callable[[Event], None],
        *,
        key: str = LEASE,
        vigil: Vigil | None = None,
        clocks: HoldClocks = OWN_CLOCKS,
    ) -> "StoreLease":
        """`owner` names a folder that is locked: whoever had the lease from there is dead, and this life gets an epoch
        of its own at once. Of another owner it is not known whether it lives: it is looked at, until it stirs or has
        been silent for so long that it may be taken from it."""
        hold = Hold(clocks.boot())
        earlier = [(lease.key, lease.epoch) for lease in await leases_of(store, key) if lease.owner == owner]
        await store.release(owner, earlier)
        lease = await acquired(store, key, owner) or await taken(store, key, owner, vigil or Vigil(), tell, clocks)
        hold.renewed(clocks.boot())
        store.fence(lease)
        return cls(store, lease, hold, clocks)

    async def keep(self) -> None:
        """Raises `StoreLost` when it is lost, and `RecordsUnavailable` when the store cannot be written."""
        asked_at = self._clocks.boot()
        try:
            kept = await self._store.renew(self._owner, [(self.key, self._held)])
        except RecordsUnavailable:
            # Who has it can still be read. As long as it is this one, a full disk is no reason to let workers go.
            found = await leases_of(self._store, self.key)
            if not any((one.owner, one.epoch) == (self._owner, self._held) for one in found):
                raise StoreTaken.at(self._store.place, self.key) from None
            self.hold.renewed(asked_at)
            raise
        if not kept:
            raise StoreTaken.at(self._store.place, self.key)
        if kept[0].beat <= self._beat:
            raise StoreGone(
                f"{self._store.place} is an older state of the store than this manager wrote: nothing more is kept "
                "or acknowledged; stop this manager, and start it again with the store it should have"
            )
        self._beat = kept[0].beat
        self.hold.renewed(asked_at)

    async def raise_to(self, epoch: int) -> int:
        """The epoch that is held then, this one or a higher one. Raises `StoreTaken` when somebody else has it."""
        raised = await self._store.raise_epoch(self._owner, (self.key, self._held), epoch)
        if not raised:
            raise StoreTaken.at(self._store.place, self.key)
        self._held = raised
        return raised

    async def release(self) -> None:
        await self._store.release(self._owner, [(self.key, self._held)])


async def leases_of(store: Store, key: str) -> list[Lease]:
    """Of this key alone: at most one."""
    return [lease for lease in await store.leases(key) if lease.key == key]


async def acquired(store: Store, key: str, owner: str) -> Lease | None:
    return next(iter(await store.acquire([key], owner)), None)


async def taken(
    store: Store, key: str, owner: str, vigil: Vigil, tell: Callable[[Event], None], clocks: HoldClocks
) -> Lease:
    is_told = False
    while True:
        found = await leases_of(store, key)
        if not found:  # it was let go
            if lease := await acquired(store, key, owner):
                return lease
            continue
        is_over = vigil.look(clocks.steady(), (found[0].epoch, found[0].beat))
        if is_over and (mine := await store.take(owner, found)):
            return mine[0]
        if vigil.has_stirred:
            raise StoreTaken(
                f"another manager has the store {store.place} and is alive (it works in {found[0].owner}): "
                "stop that one, or give this one a store of its own"
            )
        if not is_told:
            is_told = True
            seconds = -(-vigil.left_ns // SECOND)
            had = f"another manager had the store (it worked in {found[0].owner})"
            text = f"{had}: unless it stirs, it is this one's in {seconds} s"
            tell({"event": "alarm", "kind": "store", "text": text})
        await clocks.sleep(clocks.steady() + LOOK_NS)
