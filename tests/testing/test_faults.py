import pytest

from talka.cluster.effects import Lane, Persist, Transmit
from talka.testing.faults import (
    DISK_FAULTS,
    HOST_FAULTS,
    LAST_CALL_NS,
    LINK_FAULTS,
    NETWORK_FAULTS,
    FaultLimits,
    Faults,
    FrozenWorkers,
    link_profile,
    missing,
)
from talka.testing.world import Boot, World
from talka.units import SECOND

NAMES = ("a", "b", "c")
UNTIL = 60 * SECOND


class Talker:
    """Says something to everybody ten times a second, and writes it down."""

    def __init__(self, boot: Boot) -> None:
        self.next_tick_at = boot.now
        self.frames_admitted = 0
        self._name = boot.name
        self._ticket = 0

    def start(self, now: int) -> list[object]:
        return []

    def on_frame(self, now: int, source: str, frame: bytes, lane: Lane, age_ns: int) -> list[object]:
        self.frames_admitted += 1
        return []

    def tick(self, now: int) -> list[object]:
        self.next_tick_at = now + SECOND // 10
        self._ticket += 1
        # Two at once: the second waits where the link is narrow.
        frames = [b"%d" % now + bytes(1000), b"%d" % now]
        words = [Transmit(name, frame, Lane.DATAGRAM) for name in NAMES if name != self._name for frame in frames]
        return [*words, Persist(self._ticket, (("last", b"%d" % now),))]

    def on_persisted(self, now: int, ticket: int) -> list[object]:
        return []


def world_of(seed: int = 1) -> World:
    world = World(seed)
    for name in NAMES:
        world.add_host(name, Talker).start()
    return world


def test_every_class_strikes_again_and_again_also_where_disks_may_not_be_touched() -> None:
    world = world_of()
    faults = Faults(world, NAMES, (*HOST_FAULTS, *NETWORK_FAULTS), limits=FaultLimits(gap_ns=SECOND // 4))
    faults.begin(UNTIL + LAST_CALL_NS)
    world.run_until(UNTIL)

    assert not any(name in world.struck for name in DISK_FAULTS)
    assert all(world.struck[name] >= 2 for name in (*HOST_FAULTS, *NETWORK_FAULTS) if name not in DISK_FAULTS)


def test_towards_the_end_other_faults_make_way_for_those_of_disks() -> None:
    world = world_of()
    classes = ("partition", "flapping link", *DISK_FAULTS)
    faults = Faults(
        world,
        NAMES,
        classes,
        limits=FaultLimits(gap_ns=SECOND // 4),
        may_lose_disk=lambda name: world.now > 50 * SECOND,
    )
    faults.begin(UNTIL)
    world.run_until(UNTIL)

    assert all(world.struck[name] for name in DISK_FAULTS)


def test_when_faults_stop_links_heal_and_hosts_come_back() -> None:
    world = world_of()
    limits = FaultLimits(gap_ns=SECOND // 20, down_ns=(30 * SECOND, 31 * SECOND), cut_ns=(30 * SECOND, 31 * SECOND))
    faults = Faults(world, NAMES, ("crash", "isolation", "slow cpu"), limits=limits)
    faults.begin(UNTIL)
    world.run_until(2 * SECOND)
    assert any(host.state == "down" for host in world.hosts.values())
    faults.stop()
    before = {name: world.network.ports[name].frames_received for name in NAMES}
    world.run_until(UNTIL)

    assert faults.is_quiet
    assert all(host.state == "up" and not host.service_ns for host in world.hosts.values())
    assert not any(port.cuts for port in world.network.ports.values())
    # Two others say ten words a second each; what began before the end must not cut them off again.
    assert all(world.network.ports[name].frames_received - before[name] > 1000 for name in NAMES)


def test_what_leads_is_struck_more_often_than_by_chance() -> None:
    world = world_of()
    crashed = dict.fromkeys(NAMES, 0)
    # Crashes of hosts that are down are drawn again: with a shorter gap all of them would be down nearly always.
    faults = Faults(world, NAMES, ("crash",), limits=FaultLimits(gap_ns=2 * SECOND), favourites=lambda: ["b"])
    faults.begin(UNTIL)
    while world.now < UNTIL:
        world.run_until(world.now + SECOND // 20)
        for name, host in world.hosts.items():
            crashed[name] += host.state == "down"

    assert crashed["b"] > crashed["a"] + crashed["c"]


def test_links_show_the_faults_of_the_plan_and_no_other() -> None:
    for name in LINK_FAULTS:
        world = world_of()
        world.network.default = link_profile(world.rng("links"), [name])
        world.run_until(UNTIL)

        assert missing(world, LINK_FAULTS) == [other for other in LINK_FAULTS if other != name]


def test_a_class_that_never_struck_is_missing() -> None:
    world = world_of()
    world.struck["crash"] = 1

    assert missing(world, ["crash", "stall"]) == ["stall"]


class Mute(Talker):
    """Says nothing and writes nothing down."""

    def tick(self, now: int) -> list[object]:
        self.next_tick_at = now + SECOND // 10
        return []


@pytest.mark.parametrize("name", ["partition", "one-way cut", "isolation", "swizzle", "flapping link", "slow disk"])
def test_a_fault_that_met_nothing_is_counted_as_that_and_drawn_again(name: str) -> None:
    mute, loud = World(1), World(1)
    for world, starter in ((mute, Mute), (loud, Talker)):
        for host in NAMES:
            world.add_host(host, starter).start()
        faults = Faults(world, NAMES, (name,), limits=FaultLimits(gap_ns=20 * SECOND))
        faults.begin(UNTIL)
        world.run_until(UNTIL)
        faults.stop()

    assert missing(mute, (name,)) == [name] and missing(loud, (name,)) == []
    assert name == "slow disk" or not loud.met_nothing, "a disk that is slow already is struck in vain"
    # Three or four are planned in this time, and one at a time is drawn in the place of each that met nothing.
    assert mute.met_nothing[name] > 2 * loud.struck[name]


def test_a_disk_that_is_rolled_back_to_what_it_is_anyway_is_drawn_again_at_once() -> None:
    mute, loud = World(1), World(1)
    for world, starter in ((mute, Mute), (loud, Talker)):
        for host in NAMES:
            world.add_host(host, starter).start()
        limits = FaultLimits(gap_ns=20 * SECOND)
        faults = Faults(world, NAMES, ("disk rolled back",), limits=limits, may_lose_disk=lambda name: True)
        faults.begin(UNTIL + LAST_CALL_NS)  # towards the end it would be tried all the time
        world.run_until(UNTIL)

    assert loud.struck["disk rolled back"] > 0 and not loud.met_nothing
    assert mute.met_nothing["disk rolled back"] > 3 * loud.struck["disk rolled back"]


class ToAll(Talker):
    """Says something to all hosts of a star, and writes it down; nobody else does."""

    def tick(self, now: int) -> list[object]:
        return [*super().tick(now), *[Transmit(name, b"%d" % now, Lane.DATAGRAM) for name in STAR]]


STAR = tuple("bcdefghi")


def star_of(seed: int, name: str, centre: str, favourites: list[str] | None = None) -> World:
    world = World(seed)
    for host in ("a", *STAR):
        world.add_host(host, ToAll if host == "a" else Mute).start()
    limits = FaultLimits(gap_ns=20 * SECOND)
    hosts = ("a", "b", "c") if favourites else ("a", *STAR)  # the others are not of its kind
    faults = Faults(world, hosts, (name,), limits=limits, centre=centre, favourites=lambda: favourites or [])
    until = UNTIL // 4 if favourites else UNTIL
    faults.begin(until)
    world.run_until(until)
    faults.stop()
    return world


@pytest.mark.parametrize("name", ["flapping link", "one-way cut", "slow disk"])
def test_what_meets_nothing_by_chance_is_drawn_again_for_whom_all_talk_to(name: str) -> None:
    by_chance = [star_of(seed, name, "") for seed in range(12)]
    surely = [star_of(seed, name, "a") for seed in range(12)]

    assert all(world.struck.get(name) for world in surely)
    assert sum(world.met_nothing.get(name, 0) for world in surely) < sum(
        world.met_nothing[name] for world in by_chance if name in world.met_nothing
    )


def test_where_nobody_talks_to_all_a_link_that_flapped_for_nothing_is_drawn_again_for_who_leads() -> None:
    worlds = [star_of(seed, "flapping link", "", favourites=["a"]) for seed in range(12)]

    assert all(world.struck.get("flapping link") for world in worlds)


def test_a_crash_of_a_host_that_is_down_is_made_up_for() -> None:
    world = world_of()
    limits = FaultLimits(gap_ns=2 * SECOND, down_ns=(4 * SECOND, 5 * SECOND))
    Faults(world, NAMES, ("crash",), limits=limits, favourites=lambda: ["b"]).begin(UNTIL)
    world.run_until(UNTIL)

    assert world.met_nothing["crash"] > 5
    assert world.struck["crash"] > 10


def seldom(world: World, name: str) -> Faults:
    """One fault of this class on the first host, by the caller, and before the end no other but in its place."""
    limits = FaultLimits(gap_ns=1000 * UNTIL, cut_ns=(SECOND // 10, SECOND // 5))
    faults = Faults(world, NAMES[:1], (name,), limits=limits)
    faults.begin(UNTIL)
    faults._blow(name)
    return faults


def test_in_a_quiet_time_what_is_drawn_again_is_put_off_and_not_dropped() -> None:
    world = world_of()
    world.hosts["a"].crash()
    faults = seldom(world, "crash")
    faults._quiet_until = 10 * SECOND

    world.run_until(faults._quiet_until - 1)
    assert (world.met_nothing, world.drawn_again) == ({"crash": 1}, {})
    world.hosts["a"].start()
    world.run_until(faults._quiet_until + SECOND)

    assert (world.struck, world.met_nothing, world.drawn_again) == ({"crash": 1}, {"crash": 1}, {"crash": 1})


@pytest.mark.parametrize("name", ["crash", "one-way cut"])
def test_a_fault_that_meets_nothing_again_and_again_is_drawn_again_eight_times(name: str) -> None:
    """Whether it is known at once that it met nothing, or only when it is over."""
    world = World(1)
    for host in NAMES:
        world.add_host(host, Mute).start()
    world.hosts["a"].crash()

    seldom(world, name)
    world.run_until(UNTIL // 2)

    assert (world.struck, world.met_nothing, world.drawn_again) == ({}, {name: 9}, {name: 8})


def test_a_disk_that_was_rolled_back_in_the_place_of_one_that_could_not_is_counted_as_drawn_again() -> None:
    world = World(1)
    for host in NAMES:
        world.add_host(host, Mute).start()
    faults = Faults(world, NAMES, ("disk rolled back",), may_lose_disk=lambda name: True)

    faults.begin(UNTIL + LAST_CALL_NS)
    world.run_until(UNTIL)

    assert 0 < world.drawn_again["disk rolled back"] <= world.met_nothing["disk rolled back"]


def test_a_disk_that_was_not_rolled_back_before_faults_ended_is_not_drawn_again() -> None:
    world = World(1)
    for host in NAMES:
        world.add_host(host, Mute).start()
    faults = Faults(world, NAMES, ("disk rolled back",), may_lose_disk=lambda name: True)
    faults.begin(UNTIL)
    while not faults._is_image_kept:
        world.run_until(world.now + SECOND // 10)
    before = dict(world.drawn_again)
    faults._quiet_until = world.now + SECOND // 10
    faults.stop()

    world.run_until(world.now + 20 * SECOND)

    assert world.met_nothing["disk rolled back"] > 0 and world.drawn_again == before


class Busy:
    """Whom a frozen worker is to be drawn from."""

    def __init__(self, world: World) -> None:
        self.names: list[str] = []
        self.frozen = FrozenWorkers(world, lambda: self.names, UNTIL)


def test_where_nobody_is_busy_nobody_is_drawn_to_be_frozen_and_nothing_is_counted() -> None:
    world = world_of()
    busy = Busy(world)
    busy.frozen.strike()
    world.run_until(10 * SECOND)
    assert not (world.struck or world.met_nothing or world.drawn_again)

    world.hosts["b"].crash()
    busy.names = ["b"]
    world.run_until(11 * SECOND)
    assert world.met_nothing[FrozenWorkers.NAME] == world.drawn_again[FrozenWorkers.NAME] + 1 > 5
    world.hosts["b"].start()
    world.run_until(12 * SECOND)

    assert world.struck == {FrozenWorkers.NAME: 1}
    assert world.drawn_again == world.met_nothing


def test_a_clock_that_is_set_to_the_rate_it_has_was_not_struck() -> None:
    world = world_of()
    Faults(world, NAMES[:1], ("drift",), limits=FaultLimits(gap_ns=SECOND, drift_ppm=1)).begin(UNTIL)
    world.run_until(UNTIL)

    assert world.met_nothing["drift"] > 5 and world.struck["drift"] > 5


def test_a_fault_of_links_that_chance_left_out_is_made_likely_before_the_end() -> None:
    world = world_of()
    classes = [name for name in LINK_FAULTS if name != "bandwidth"]
    assert missing(world, classes) == classes

    Faults(world, NAMES, classes).begin(UNTIL)  # on links that show none of them
    world.run_until(UNTIL)

    assert missing(world, classes) == []


def test_a_fault_of_hosts_or_networks_that_chance_left_out_strikes_before_the_end() -> None:
    world = world_of()
    classes = ("crash", "stall", "pause", "isolation")

    Faults(world, NAMES, classes, limits=FaultLimits(gap_ns=1000 * UNTIL)).begin(UNTIL)
    world.run_until(UNTIL)

    assert missing(world, classes) == []
