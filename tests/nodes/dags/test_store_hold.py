"""A manager's hold on its store: who gets it, who loses it, and what is left to whoever lost it."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from talka.control.tasks.partition import LEASE
from talka.control.tasks.store_hold import LEASE_NS, MARGIN_NS, RENEW_NS, Vigil
from talka.nodes.dags.store_hold import HoldClocks, StoreLease
from talka.nodes.member_events import Event
from talka.store.dags.records import RecordsUnavailable, StoreGone, StoreTaken
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_store import SqliteStore
from talka.store.files.blobs import Blobs
from talka.units import SECOND
from talka.work.dags.records import JobRow, PutJob
from talka.work.lifecycle import JobState

WHOLE_S = (LEASE_NS + MARGIN_NS) // SECOND


class Time:
    """Of one process: its own, and whatever happens while it sleeps."""

    def __init__(self) -> None:
        self.now_ns = 5 * SECOND
        self.boot_ns = 0
        self.slept = 0
        self.meanwhile: Callable[[], Awaitable[object] | None] = lambda: None
        self.clocks = HoldClocks(lambda: self.boot_ns, lambda: self.now_ns, self.sleep)

    async def sleep(self, until_ns: int) -> None:
        self.now_ns = until_ns
        self.slept += 1
        if (happens := self.meanwhile()) is not None:
            await happens


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Callable[[], SqliteStore]]:
    async with contextlib.AsyncExitStack() as stack:

        def open_one() -> SqliteStore:
            store = SqliteStore(SqliteRecords(str(tmp_path / "store.db"), "NORMAL"), Blobs(tmp_path / "blobs"))
            stack.push_async_callback(store.close)
            return store

        yield open_one


Opened = Callable[[], SqliteStore]


def nothing(event: Event) -> None:
    pass


def job(number: int) -> PutJob:
    row = JobRow(number=number, id=str(number), name="n", state=JobState.RUNNING, submitted_ms=1, settings=b"{}")
    return PutJob(row)


# Getting it.


async def test_a_new_life_from_the_same_folder_has_the_store_at_once_and_a_new_epoch(
    opened: Opened, time: Time
) -> None:
    first, second = opened(), opened()
    killed = await StoreLease.had(first, "folder", nothing)
    lease = await StoreLease.had(second, "folder", nothing, clocks=time.clocks)
    assert (killed.epoch, lease.epoch, time.slept) == (1, 2, 0)
    await second.apply([job(1)])
    with pytest.raises(StoreTaken):
        await first.apply([job(2)])


async def test_a_manager_that_lives_keeps_its_store_from_one_whose_clock_is_a_minute_ahead(
    opened: Opened, time: Time
) -> None:
    """No clock of the day is asked, so none can be ahead."""
    records = opened()
    holder = await StoreLease.had(records, "first", nothing)
    time.now_ns += 60 * SECOND
    time.meanwhile = lambda: None if time.slept % (RENEW_NS // SECOND) else holder.keep()
    with pytest.raises(StoreTaken, match=r"another manager has the store .* and is alive \(it works in first\): stop"):
        await StoreLease.had(opened(), "second", nothing, clocks=time.clocks)
    assert time.slept <= RENEW_NS // SECOND + 1
    await holder.keep()
    assert await records.apply([job(1)]) == [1]


async def test_the_store_of_a_manager_that_died_is_had_after_a_whole_lease_and_that_is_told(
    opened: Opened, time: Time
) -> None:
    records, told = opened(), list[Event]()
    await StoreLease.had(records, "first", nothing)
    lease = await StoreLease.had(opened(), "second", told.append, clocks=time.clocks)
    assert (lease.epoch, time.slept) == (2, WHOLE_S)
    (event,) = told
    assert event["text"].endswith(f"(it worked in first): unless it stirs, it is this one's in {WHOLE_S} s")
    with pytest.raises(StoreTaken, match="another manager has taken the store"):
        await records.apply([job(1)])


async def test_a_store_that_is_let_go_is_had_without_waiting_longer(opened: Opened, time: Time) -> None:
    holder = await StoreLease.had(opened(), "first", nothing)
    time.meanwhile = holder.release
    assert (await StoreLease.had(opened(), "second", nothing, clocks=time.clocks)).epoch == 2
    assert time.slept == 1


async def test_of_two_who_wait_for_it_one_has_it(opened: Opened, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    await StoreLease.had(opened(), "first", nothing)
    rival, store = opened(), opened()
    take = store.take

    async def too_late(owner: str, seen: Any) -> Any:
        await rival.take("third", seen)
        return await take(owner, seen)

    monkeypatch.setattr(store, "take", too_late)
    with pytest.raises(StoreTaken, match="it works in third"):
        await StoreLease.had(store, "second", nothing, clocks=time.clocks)


# Keeping it.


async def test_a_hold_that_was_lost_is_told_when_it_is_to_be_kept(opened: Opened, time: Time) -> None:
    holder = await StoreLease.had(opened(), "first", nothing)
    other = await StoreLease.had(opened(), "second", nothing, clocks=time.clocks)
    with pytest.raises(StoreTaken, match="this one writes nothing more to it"):
        await holder.keep()
    await holder.release()
    await other.keep()


async def test_a_file_that_was_deleted_is_noticed_when_the_lease_is_kept(opened: Opened, tmp_path: Path) -> None:
    holder = await StoreLease.had(opened(), "first", nothing)
    await holder.keep()
    os.unlink(tmp_path / "store.db")
    with pytest.raises(StoreGone, match=r"store.db was deleted while this manager had it"):
        await holder.keep()


async def test_an_older_state_in_the_same_file_is_noticed_when_the_lease_is_kept(
    opened: Opened, tmp_path: Path
) -> None:
    records = opened()
    holder = await StoreLease.had(records, "first", nothing)
    await holder.keep()
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as other:  # as a copy that is played back
        other.execute("UPDATE talka_leases SET beat = 0")
        other.commit()
    with pytest.raises(StoreGone, match="is an older state of the store than this manager wrote"):
        await holder.keep()


async def test_a_store_that_cannot_be_written_is_still_held_as_long_as_it_can_be_read(
    opened: Opened, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    holder = await StoreLease.had(store, "first", nothing, clocks=time.clocks)

    async def full(owner: str, held: Any) -> Any:
        raise RecordsUnavailable("the disk is full")

    monkeypatch.setattr(store, "renew", full)
    for _ in range(5):
        time.boot_ns += RENEW_NS
        with pytest.raises(RecordsUnavailable, match="full"):
            await holder.keep()
        assert not holder.hold.is_over(time.boot_ns + LEASE_NS - 1)
    assert holder.hold.is_over(time.boot_ns + LEASE_NS)
    other = opened()
    await other.take("second", await other.leases(LEASE))
    with pytest.raises(StoreTaken):
        await holder.keep()


# In any order.


class Manager:
    def __init__(self, place: str, name: str) -> None:
        self.records = SqliteRecords(place, "NORMAL")
        self.name = name
        self.vigil: Vigil | None = None
        self.epoch = 0
        self.kept_at = 0
        """When it renewed the last time; by true time."""
        self.rate = 1.0
        self.starts_at = 0

    def clock(self, true_ns: int) -> int:
        return self.starts_at + int(true_ns * self.rate)


NAMES = ("a", "b", "c")
names = st.sampled_from(NAMES)


class Rivals(RuleBasedStateMachine):
    """Managers that want one store, with clocks that begin anywhere and run fast or slow. Each may stand still for any
    time and go on where it was. What must hold: only the last that got it writes, and one that renews in time is never
    robbed."""

    @initialize(
        rates=st.lists(st.floats(0.95, 1.05), min_size=3, max_size=3),
        starts=st.lists(st.integers(0, 10**15), min_size=3, max_size=3),
    )
    def begin(self, rates: list[float], starts: list[int]) -> None:
        self.folder = tempfile.mkdtemp()
        self.now = 0
        self.number = 0
        self.holder = ""
        self.epochs: list[int] = []
        self.managers = {name: Manager(f"{self.folder}/store.db", name) for name in NAMES}
        for manager, rate, start in zip(self.managers.values(), rates, starts, strict=True):
            manager.rate, manager.starts_at = rate, start

    def teardown(self) -> None:
        if hasattr(self, "managers"):
            for manager in self.managers.values():
                manager.records.close()
            shutil.rmtree(self.folder)

    @rule(ms=st.sampled_from([10, 500, 1000, 2000, 11_000, 60_000]))
    def wait(self, ms: int) -> None:
        self.now += ms * 1_000_000

    @rule(name=names, seconds=st.integers(1, 15))
    def look_on(self, name: str, seconds: int) -> None:
        """For a while, while a holder that lives renews in time."""
        manager = self.managers[name]
        if manager.epoch:
            return
        for _ in range(seconds):
            self.look(manager)
            self.now += SECOND

    def look(self, manager: Manager) -> None:
        found = list(manager.records.leases(LEASE))
        if not found:
            self.got(manager, manager.records.acquire([LEASE], manager.name))
            return
        manager.vigil = manager.vigil or Vigil()
        if manager.vigil.look(manager.clock(self.now), (found[0].epoch, found[0].beat)):
            taken = manager.records.take(manager.name, found)
            if taken:
                silent_ns = self.now - self.managers[self.holder].kept_at
                assert silent_ns >= LEASE_NS, f"robbed after {silent_ns} ns"
            self.got(manager, taken)

    def got(self, manager: Manager, leases: Any) -> None:
        if leases:
            manager.epoch, manager.vigil, manager.kept_at = leases[0].epoch, None, self.now
            manager.records.fence(leases[0])
            self.holder = manager.name
            self.epochs.append(manager.epoch)

    @rule(name=names)
    def keep(self, name: str) -> None:
        manager = self.managers[name]
        if not manager.epoch:
            return
        kept = manager.records.renew(name, [(LEASE, manager.epoch)])
        assert bool(kept) == (name == self.holder)
        if kept:
            manager.kept_at = self.now
        else:
            manager.epoch = 0

    @rule(name=names)
    def write(self, name: str) -> None:
        """Whoever was robbed while it stood still does not know yet."""
        manager = self.managers[name]
        if not manager.epoch:
            return
        self.number += 1
        try:
            manager.records.apply([job(self.number)])
        except StoreTaken:
            assert name != self.holder
            manager.epoch = 0
        else:
            assert name == self.holder

    @precondition(lambda self: self.holder)
    @rule()
    def let_go(self) -> None:
        manager = self.managers[self.holder]
        assert manager.records.release(manager.name, [(LEASE, manager.epoch)]) == 1
        manager.epoch, self.holder = 0, ""

    @invariant()
    def every_epoch_is_given_once(self) -> None:
        if hasattr(self, "epochs"):
            assert self.epochs == sorted(set(self.epochs))


TestRivals = Rivals.TestCase
TestRivals.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
