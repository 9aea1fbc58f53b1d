"""A disk: when writes become durable, and what a crash, a loss or an old image leaves of them."""

import pytest

from talka.errors import Invalid
from talka.testing.disk import Disk, Puts
from talka.testing.store_shell import StoreDisk
from talka.testing.world import World
from talka.units import MILLISECOND, SECOND
from tests.sim.quiet import Quiet


class Desk:
    """A disk in a world, and what it said."""

    def __init__(self, seed: int = 1, fsync_mean_ns: int = MILLISECOND) -> None:
        self.world = World(seed)
        self.disk = Disk(fsync_mean_ns=fsync_mean_ns)
        self.durable_at: list[tuple[int, int]] = []
        self.disk.attach(self.world, "a", self.on_durable)

    def on_durable(self, ticket: int, puts: Puts) -> None:
        self.durable_at.append((ticket, self.world.now))

    def write(self, *tickets: int) -> None:
        for ticket in tickets:
            self.disk.write(ticket, ((f"key{ticket}", b"%d" % ticket),))

    @property
    def tickets(self) -> list[int]:
        return [ticket for ticket, _ in self.durable_at]


def test_a_write_is_durable_only_after_some_time_and_then_said_so() -> None:
    desk = Desk()
    desk.write(1)
    assert desk.disk.durable == {} and desk.disk.unfinished == 1
    desk.world.run_until(SECOND)
    assert desk.disk.durable == {"key1": b"1"} and desk.disk.unfinished == 0
    assert desk.durable_at[0][0] == 1 and 0 < desk.durable_at[0][1] < SECOND


def test_a_write_is_never_durable_in_the_step_that_asked_for_it() -> None:
    desk = Desk(fsync_mean_ns=0)
    desk.write(1)
    assert desk.durable_at == []
    desk.world.run_until(0)
    assert desk.durable_at == [(1, 0)]


def test_writes_are_answered_in_order_and_one_after_the_other() -> None:
    desk = Desk()
    desk.write(*range(1, 501))
    desk.world.run_until(10 * SECOND)
    assert desk.tickets == list(range(1, 501))
    # Then: 500 writes took 500 times the mean, near enough.
    assert 400 * MILLISECOND < desk.durable_at[-1][1] < 600 * MILLISECOND


def test_all_puts_of_a_write_take_effect_and_none_removes_a_key() -> None:
    desk = Desk()
    desk.disk.write(1, (("term", b"1"), ("vote", b"a")))
    desk.disk.write(2, (("term", b"2"), ("vote", None), ("never there", None)))
    desk.world.run_until(SECOND)
    assert desk.disk.durable == {"term": b"2"}


def test_a_slow_disk_takes_a_multiple_and_windows_that_overlap_multiply() -> None:
    def taken(*windows: tuple[int, int]) -> int:
        desk = Desk()
        for factor, duration_ns in windows:
            desk.disk.slow_down(factor, duration_ns)
        desk.world.run_until(10 * MILLISECOND)
        desk.write(1)
        desk.world.run_until(100 * SECOND)
        return desk.durable_at[0][1] - 10 * MILLISECOND

    usual = taken()
    assert taken((10, SECOND)) == 10 * usual
    assert taken((10, SECOND), (3, SECOND)) == 30 * usual
    assert taken((10, 5 * MILLISECOND), (3, SECOND)) == 3 * usual
    assert taken((10, 5 * MILLISECOND)) == usual


def test_a_crash_keeps_a_drawn_prefix_of_the_unfinished_writes() -> None:
    kept = []
    for seed in range(60):
        desk = Desk(seed)
        desk.write(1, 2, 3)
        desk.disk.crash()
        count = len(desk.tickets)
        kept.append(count)
        assert desk.tickets == list(range(1, count + 1))
        assert list(desk.disk.durable) == [f"key{ticket}" for ticket in range(1, count + 1)]
        assert desk.disk.lost_writes == 3 - count
        assert desk.disk.torn_writes == (count < 3)
        # Then: what was lost stays lost.
        desk.world.run_until(SECOND)
        assert len(desk.tickets) == count
    assert sorted(set(kept)) == [0, 1, 2, 3]


def test_a_crash_leaves_what_was_durable() -> None:
    desk = Desk()
    desk.write(1)
    desk.world.run_until(SECOND)
    desk.disk.crash()
    assert desk.disk.durable == {"key1": b"1"}
    assert desk.disk.lost_writes == desk.disk.torn_writes == 0


def test_after_a_crash_tickets_may_begin_anew_and_nothing_waits_for_lost_writes() -> None:
    desk = Desk(fsync_mean_ns=10 * SECOND)
    desk.write(*range(1, 20))
    desk.disk.crash()
    told = len(desk.tickets)
    desk.write(1)
    desk.world.run_until(100 * SECOND)
    assert desk.tickets[told:] == [1]


def test_the_end_of_a_write_that_a_crash_took_does_not_end_a_later_one() -> None:
    desk = Desk()
    desk.write(*range(1, 20))
    desk.disk.crash()
    told = len(desk.tickets)
    desk.disk.slow_down(1_000_000, SECOND)
    desk.write(1)
    desk.world.run_until(SECOND)
    assert desk.tickets[told:] == []


def test_tickets_that_do_not_grow_are_refused() -> None:
    desk = Desk()
    desk.write(2)
    with pytest.raises(Invalid, match="host a: ticket 2 of a Persist follows 2"):
        desk.write(2)


def test_a_lost_disk_is_empty() -> None:
    desk = Desk()
    desk.write(1)
    desk.world.run_until(SECOND)
    desk.disk.lose()
    assert desk.disk.durable == {}


def test_a_disk_can_be_rolled_back_to_its_last_image_more_than_once() -> None:
    desk = Desk()
    assert not desk.disk.roll_back() and not desk.disk.has_changed
    desk.write(1)
    desk.world.run_until(SECOND)
    desk.disk.snapshot()
    for ticket in (2, 3):
        desk.write(ticket)
        desk.world.run_until(desk.world.now + SECOND)
        assert len(desk.disk.durable) == 2 and desk.disk.has_changed
        assert desk.disk.roll_back() and not desk.disk.has_changed
        assert desk.disk.durable == {"key1": b"1"}


def test_wrong_speeds_are_refused() -> None:
    with pytest.raises(Invalid, match="at least 0, not -1"):
        Disk(fsync_mean_ns=-1)
    with pytest.raises(Invalid, match="at least 1, not 0"):
        Desk().disk.slow_down(0, SECOND)


def test_writes_of_a_store_on_a_slow_disk_are_slowed_writes_of_that_disk() -> None:
    disk = StoreDisk()
    World(1).add_host("m", Quiet, disk=disk).start()
    disk.store.write(1, ())
    assert disk.slowed_writes == 0

    disk.slow_down(10, SECOND)
    disk.store.write(2, ())
    disk.write(1, ())

    assert disk.slowed_writes == 2
