from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.jobs.effects import (
    EvictionHeld,
    FleetFull,
    FleetNews,
    NameTaken,
    WorkerJudged,
    WorkerLost,
    WorkerRegistered,
    WorkerReturned,
)
from talka.control.jobs.workers.fleet import REAP_NS, Fleet, Leaves, NotFree
from talka.control.jobs.workers.health import SILENT_NS
from talka.control.jobs.workers.worker_life import HeardLives, WorkerLife
from talka.control.jobs.workers.worker_views import views_of
from talka.errors import Invalid
from talka.units import NEVER, SECOND
from talka.wire.jobs import Beat, QuietCore, Running, TaskLoad, WorkerFacts
from talka.wire.machines import WorkerMachine
from tests.sim.variants import without

LEASE = 5_100_000_000
"""Five seconds, and the two percent that clocks may be off."""
quick = settings(deadline=None, derandomize=True, max_examples=150)


def beat(
    fleet: Fleet, name: str, at: int = 0, *, boot: int = 1, number: int | None = None, source: str = "", **facts: Any
) -> list[FleetNews]:
    said = WorkerFacts(**{"cores": 4, "folder": boot, **facts})
    return fleet.beat(at, name, boot, source or f"{name}:8471", Beat(at if number is None else number, said))


def fleet_of(**cores: int) -> Fleet:
    fleet = Fleet()
    for name, count in cores.items():
        beat(fleet, name, cores=count)
    return fleet


def alive(fleet: Fleet, at: int, *names: str) -> None:
    for name in names:
        beat(fleet, name, at)


def life_of(fleet: Fleet, name: str) -> WorkerLife:
    life = fleet.life(name)
    assert life is not None
    return life


def lease_over_at(fleet: Fleet, name: str, boot: int) -> int | None:
    life = fleet.life(name, boot)
    return None if life is None or life.is_lost else life.until


# Leases.


def test_a_worker_is_registered_with_its_first_beat_and_then_only_refreshed() -> None:
    fleet = Fleet()

    assert beat(fleet, "a", 0) == [WorkerRegistered("a", 1, 4)]
    assert beat(fleet, "a", SECOND) == []

    assert fleet.holds("a", 1)
    assert not fleet.holds("a", 2) and not fleet.holds("b", 1)
    assert lease_over_at(fleet, "a", 1) == SECOND + LEASE
    assert lease_over_at(fleet, "a", 2) is None
    assert len(fleet) == 1


def test_a_silent_worker_gets_no_work_after_three_beats_and_is_lost_when_its_lease_is_surely_over() -> None:
    fleet = fleet_of(a=4)

    assert fleet.tick(3 * SECOND - 1) == []
    assert (fleet.total(), life_of(fleet, "a").is_calm) == (4, True)
    assert fleet.tick(3 * SECOND) == []
    assert (fleet.total(), life_of(fleet, "a").is_usable) == (0, False)
    assert fleet.holds("a", 1)

    assert fleet.tick(LEASE - 1) == []
    assert fleet.tick(LEASE) == [WorkerLost("a", 1, "its lease is over: silent for 5 s")]
    assert (fleet.holds("a", 1), lease_over_at(fleet, "a", 1), life_of(fleet, "a").free) == (False, None, 0)


def test_a_worker_that_beats_is_never_lost() -> None:
    fleet = fleet_of(a=4)
    for turn in range(1, 20):
        assert beat(fleet, "a", turn * SECOND) == []
        assert fleet.tick(turn * SECOND) == []

    assert fleet.total() == 4


def test_the_next_tick_is_when_something_changes() -> None:
    fleet = Fleet()
    assert fleet.next_tick_at == NEVER
    beat(fleet, "a")

    times = []
    for _ in range(4):
        times.append(fleet.next_tick_at)
        fleet.tick(fleet.next_tick_at)

    assert times == [3 * SECOND, LEASE, LEASE + REAP_NS, NEVER]
    assert len(fleet) == 0


def test_a_worker_that_was_given_up_can_return() -> None:
    fleet = fleet_of(a=4)
    fleet.reserve("job", "a", 3)
    fleet.tick(LEASE)

    assert beat(fleet, "a", 9 * SECOND) == [WorkerReturned("a", 1)]

    assert (fleet.holds("a", 1), life_of(fleet, "a").free) == (True, 4)


def test_of_a_short_lease_silence_is_a_share() -> None:
    fleet = Fleet(lease_ns=SECOND // 2)
    beat(fleet, "a")

    assert fleet.next_tick_at == 300_000_000
    assert fleet.tick(300_000_000) == []
    assert (fleet.total(), fleet.holds("a", 1)) == (0, True)
    assert fleet.next_tick_at == 510_000_000
    assert fleet.tick(510_000_000) == [WorkerLost("a", 1, "its lease is over: silent for 510 ms")]


def test_of_a_long_lease_silence_is_three_beats() -> None:
    fleet = Fleet(lease_ns=60 * SECOND)
    beat(fleet, "a")

    assert fleet.tick(3 * SECOND) == [] and fleet.total() == 0
    assert lease_over_at(fleet, "a", 1) == 61_200_000_000


def test_a_lease_that_an_earlier_leader_gave_may_be_longer_than_those_of_this_one() -> None:
    fleet = Fleet(lease_ns=SECOND // 2, earlier_until=LEASE)
    beat(fleet, "a", SECOND)
    fleet.expect(SECOND, "b", 1)

    assert (lease_over_at(fleet, "a", 1), lease_over_at(fleet, "b", 1)) == (LEASE, LEASE)
    beat(fleet, "a", 5 * SECOND)
    assert lease_over_at(fleet, "a", 1) == 5 * SECOND + 510_000_000


def test_a_beat_that_was_overtaken_refreshes_the_lease_and_nothing_else() -> None:
    fleet = Fleet()
    beat(fleet, "a", 0, number=5, cores=4)

    beat(fleet, "a", SECOND, number=4, cores=8)

    assert (life_of(fleet, "a").free, lease_over_at(fleet, "a", 1)) == (4, SECOND + LEASE)


# Lives of one name.


def test_a_new_life_from_the_same_folder_proves_the_earlier_one_dead_at_once() -> None:
    fleet = Fleet()
    beat(fleet, "a", folder=7)
    fleet.reserve("job", "a", 3)

    news = beat(fleet, "a", SECOND, boot=2, folder=7)

    assert news == [WorkerLost("a", 1, "it was restarted"), WorkerRegistered("a", 2, 4)]
    assert (fleet.holds("a", 1), fleet.holds("a", 2), life_of(fleet, "a").free) == (False, True, 4)


def test_a_late_beat_of_a_life_that_is_proven_dead_changes_nothing() -> None:
    fleet = Fleet()
    beat(fleet, "a", folder=7)
    beat(fleet, "a", SECOND, boot=2, folder=7)

    assert beat(fleet, "a", SECOND, boot=1, folder=7) == []

    assert fleet.holds("a", 2)
    assert not fleet.expect(SECOND, "a", 1)


def test_a_life_that_seemed_dead_and_goes_on_beating_is_heard_once_the_other_is_silent() -> None:
    fleet = Fleet()
    beat(fleet, "a", folder=7)
    beat(fleet, "a", SECOND, boot=2, folder=7)
    beat(fleet, "a", 2 * SECOND, boot=1, folder=7)
    fleet.tick(4 * SECOND)

    news = beat(fleet, "a", 4 * SECOND, boot=1, folder=7)

    assert news == [WorkerLost("a", 2, "it was restarted"), WorkerRegistered("a", 1, 4)]
    assert beat(fleet, "a", 4 * SECOND, boot=2, folder=7) == []


def test_a_life_that_was_heard_again_no_longer_counts_as_dead() -> None:
    fleet = Fleet()
    beat(fleet, "a", folder=7)
    beat(fleet, "a", SECOND, boot=2, folder=7)
    fleet.tick(4 * SECOND)
    beat(fleet, "a", 4 * SECOND, boot=1, folder=7)
    fleet.tick(4 * SECOND + LEASE)
    beat(fleet, "a", 10 * SECOND, boot=3, folder=8)

    assert beat(fleet, "a", 10 * SECOND, boot=2, folder=7) == []
    assert beat(fleet, "a", 10 * SECOND, boot=1, folder=7) == [NameTaken("a", 1, "a:8471", "a:8471")]


def test_a_new_life_from_the_same_folder_after_a_loss_is_no_second_loss() -> None:
    fleet = Fleet()
    beat(fleet, "a", folder=7)
    fleet.tick(LEASE)

    assert beat(fleet, "a", LEASE, boot=2, folder=7) == [WorkerRegistered("a", 2, 4)]


def test_a_worker_of_the_same_name_waits_until_the_lease_of_the_first_is_over() -> None:
    fleet = Fleet()
    beat(fleet, "a", source="here")

    assert beat(fleet, "a", SECOND, boot=2, source="there") == [NameTaken("a", 2, "there", "here")]
    assert beat(fleet, "a", 2 * SECOND, boot=2, source="there") == [], "it was told"
    assert not fleet.holds("a", 2)
    fleet.tick(3 * SECOND)
    assert beat(fleet, "a", 4 * SECOND, boot=2) == [], "silence alone proves nothing"

    fleet.tick(LEASE)
    assert beat(fleet, "a", LEASE, boot=2) == [WorkerRegistered("a", 2, 4)]


def test_folders_that_nobody_knows_prove_nothing() -> None:
    fleet = Fleet()
    beat(fleet, "a", folder=0)

    assert beat(fleet, "a", SECOND, boot=2, folder=0) == [NameTaken("a", 2, "a:8471", "a:8471")]


# After a take-over.


def test_an_expected_worker_counts_as_running_for_a_whole_lease() -> None:
    fleet = Fleet()

    assert fleet.expect(SECOND, "a", 1)

    life = life_of(fleet, "a")
    assert (life.state, life.facts, life.is_usable) == ("registering", None, False)
    assert (lease_over_at(fleet, "a", 1), fleet.holds("a", 1)) == (SECOND + LEASE, False)
    assert (life_of(fleet, "a").free, fleet.total(), fleet.total_free()) == (0, 0, 0)
    assert fleet.choose(1, rng=Random(1)) is None
    assert fleet.tick(SECOND + LEASE - 1) == []
    lost = fleet.tick(SECOND + LEASE)
    assert lost == [WorkerLost("a", 1, "not heard since the leader changed: silent for 5 s")]
    assert not fleet.expect(SECOND + LEASE, "a", 1), "it is known to be over"
    assert beat(fleet, "a", 7 * SECOND) == [WorkerReturned("a", 1)]


def test_the_worker_of_a_sole_manager_is_waited_for_as_long_as_it_may_go_on() -> None:
    fleet = Fleet()

    fleet.expect(0, "a", 1, sole=True)

    assert lease_over_at(fleet, "a", 1) == LEASE + 306 * SECOND


def test_the_grace_is_for_workers_that_this_process_has_not_heard() -> None:
    heard = HeardLives()
    before = Fleet(heard=heard)
    beat(before, "a")
    fleet = Fleet(heard=heard)

    for name, boot in (("a", 1), ("a", 2), ("b", 1)):
        fleet.expect(0, name, boot, sole=True)

    assert lease_over_at(fleet, "a", 1) == LEASE
    assert lease_over_at(fleet, "a", 2) == LEASE + 306 * SECOND, "another life of it"
    assert lease_over_at(fleet, "b", 1) == LEASE + 306 * SECOND


def test_of_lives_that_were_heard_only_so_many_are_remembered() -> None:
    heard = HeardLives(limit=2)
    for name in ("a", "b", "a", "c"):
        heard.add(name, 1)

    assert [heard.has(name, 1) for name in "abc"] == [True, False, True], "the one heard longest ago is forgotten"


def test_what_is_waited_for_is_said_of_silent_workers_only() -> None:
    fleet = fleet_of(a=1, b=1, c=1)
    alive(fleet, 4 * SECOND, "b", "c")
    fleet.tick(4 * SECOND)

    assert fleet.silence(4 * SECOND, "b", 1) == ""
    assert fleet.silence(4 * SECOND, "a", 1) == (
        ", which is silent for 4.0 s: it is given to others in 1.1 s, unless a is heard before"
    )
    assert fleet.silence(LEASE - 1, "a", 1).endswith("it is given to others in < 0.1 s, unless a is heard before")
    assert fleet.silence(4 * SECOND, "x", 1) == ""
    fleet.tick(LEASE)
    assert fleet.silence(LEASE, "a", 1) == "", "it is lost already"


def test_what_is_waited_for_is_said_when_evictions_are_held() -> None:
    names = [f"w{number}" for number in range(10)]
    fleet = fleet_of(**dict.fromkeys(names, 1))
    assert [type(one) for one in fleet.tick(LEASE)] == [EvictionHeld]

    assert fleet.silence(LEASE, "w1", 1) == (
        ", which is silent for 5.1 s: too many workers are silent at once, so none is given up yet"
    )


def test_an_expected_worker_that_beats_keeps_what_was_reserved() -> None:
    fleet = Fleet()
    fleet.expect(0, "a", 1)
    fleet.reserve("job", "a", 3, boot=1)

    assert beat(fleet, "a", SECOND) == [WorkerRegistered("a", 1, 4)]
    assert fleet.expect(SECOND, "a", 1)

    assert (life_of(fleet, "a").free, lease_over_at(fleet, "a", 1)) == (1, SECOND + LEASE)


def test_more_cores_stored_than_a_worker_has_leave_none_free() -> None:
    fleet = Fleet()
    fleet.expect(0, "a", 1)
    fleet.reserve("job", "a", 6, boot=1)

    beat(fleet, "a", SECOND)

    assert life_of(fleet, "a").free == 0


def test_an_expected_life_keeps_no_other_out_and_is_lost_when_its_lease_is_over() -> None:
    fleet = Fleet()
    fleet.expect(0, "a", 1)
    fleet.reserve("job", "a", 3)

    assert beat(fleet, "a", SECOND, boot=2) == [WorkerRegistered("a", 2, 4)]
    assert (life_of(fleet, "a").free, lease_over_at(fleet, "a", 1)) == (4, LEASE)
    for turn in range(2, 6):
        beat(fleet, "a", turn * SECOND, boot=2)
        assert fleet.tick(turn * SECOND) == []

    assert fleet.tick(LEASE) == [WorkerLost("a", 1, "its lease is over, and another worker has its name")]
    fleet.release("job")
    assert life_of(fleet, "a").free == 4


def test_an_expected_life_is_proven_dead_by_a_new_one_from_the_same_folder() -> None:
    fleet = Fleet()
    fleet.expect(0, "a", 1, folder=7, sole=True)

    news = beat(fleet, "a", SECOND, boot=2, folder=7)

    assert news == [WorkerLost("a", 1, "it was restarted"), WorkerRegistered("a", 2, 4)]


def test_a_life_expected_after_a_later_one_was_heard_is_lost_at_once_or_when_its_lease_is_over() -> None:
    fleet = Fleet()
    beat(fleet, "a", boot=3, folder=7)

    assert fleet.expect(0, "a", 1, folder=7)
    assert fleet.expect(0, "a", 2, folder=8)
    fleet.reserve("job", "a", 3, boot=2)

    assert [news.boot for news in fleet.tick(0) if isinstance(news, WorkerLost)] == [1]
    assert life_of(fleet, "a").free == 4
    alive_until = 0
    while alive_until < LEASE:
        alive_until += SECOND
        beat(fleet, "a", alive_until, boot=3, folder=7)
    assert [news.boot for news in fleet.tick(LEASE) if isinstance(news, WorkerLost)] == [2]


def test_every_expected_life_from_the_folder_of_a_new_one_is_dead() -> None:
    fleet = Fleet()
    fleet.expect(0, "a", 1, folder=7)
    fleet.expect(0, "a", 2, folder=8)
    fleet.expect(0, "b", 3, folder=8)

    news = beat(fleet, "a", SECOND, boot=4, folder=8)

    assert news == [WorkerLost("a", 2, "it was restarted"), WorkerRegistered("a", 4, 4)]
    assert lease_over_at(fleet, "a", 1) == LEASE


def test_an_expected_life_whose_name_another_has_gets_it_back_when_that_one_is_lost() -> None:
    fleet = Fleet()
    fleet.expect(0, "a", 1, sole=True)
    fleet.reserve("job", "a", 3)
    beat(fleet, "a", SECOND, boot=2)
    fleet.tick(SECOND + LEASE)

    assert beat(fleet, "a", 7 * SECOND, boot=1) == [WorkerRegistered("a", 1, 4)]
    assert life_of(fleet, "a").free == 1


# Many at once.


def test_when_most_fall_silent_at_once_nobody_is_given_up_for_ten_more_seconds() -> None:
    fleet = fleet_of(a=4, b=4, c=4, d=4)
    fleet.tick(3 * SECOND)
    alive(fleet, 4 * SECOND, "d")

    assert fleet.tick(LEASE) == [EvictionHeld(("a", "b", "c"))]
    assert fleet.next_tick_at == 7 * SECOND, "d is looked at as ever"
    for turn in range(6, 15):
        alive(fleet, turn * SECOND, "d")
        assert fleet.tick(turn * SECOND) == []

    assert [news.name for news in fleet.tick(LEASE + 10 * SECOND) if isinstance(news, WorkerLost)] == ["a", "b", "c"]


def test_who_is_not_given_up_because_others_are_silent_too_is_told_so_until_the_hold_ends() -> None:
    fleet = fleet_of(a=4, b=4, c=4, d=4)
    alone = "nothing is heard of it, and it is given nothing new"
    fleet.tick(3 * SECOND)
    alive(fleet, 4 * SECOND, "d")
    assert life_of(fleet, "a").reason == alone

    fleet.tick(LEASE)

    spared = f"{alone}; too many workers are silent at once, so none is given up yet"
    assert {name: life_of(fleet, name).reason for name in "abcd"} == dict.fromkeys("abc", spared) | {"d": ""}
    alive(fleet, 6 * SECOND, "a", "b", "d")
    fleet.tick(6 * SECOND)
    alive(fleet, 8 * SECOND, "b", "d")
    fleet.tick(9 * SECOND)
    assert life_of(fleet, "a").reason == alone


def test_a_hold_ends_as_soon_as_enough_have_returned() -> None:
    fleet = fleet_of(a=4, b=4, c=4)
    fleet.tick(LEASE)

    assert beat(fleet, "b", 6 * SECOND) == [], "it was never given up"
    assert fleet.next_tick_at == 6 * SECOND

    assert [news.name for news in fleet.tick(6 * SECOND) if isinstance(news, WorkerLost)] == ["a", "c"]


def test_a_hold_is_the_next_thing_to_look_at_when_everybody_is_silent() -> None:
    fleet = fleet_of(a=4, b=4, c=4)

    fleet.tick(LEASE)

    assert fleet.next_tick_at == LEASE + 10 * SECOND
    assert len(fleet.tick(LEASE + 10 * SECOND)) == 3


def test_two_silent_workers_are_no_reason_to_hold() -> None:
    fleet = fleet_of(a=4, b=4)

    assert [news.name for news in fleet.tick(LEASE) if isinstance(news, WorkerLost)] == ["a", "b"]


# Many, one after the other.


def looks(fleet: Fleet, from_ms: int, to_ms: int, beating: str) -> list[FleetNews]:
    """Every tenth of a second, also the last: these beat, and the fleet is looked at."""
    news = []
    for ms in range(from_ms, to_ms + 1, 100):
        alive(fleet, ms * SECOND // 1000, *beating)
        news += fleet.tick(ms * SECOND // 1000)
    return news


def lost(news: list[FleetNews]) -> list[str]:
    return [one.name for one in news if isinstance(one, WorkerLost)]


def one_given_up() -> Fleet:
    """Of five workers with a lease of a second a is given up at 1.1 s, when all others still beat."""
    fleet = Fleet(lease_ns=SECOND)
    assert lost(looks(fleet, 0, 0, "abcde") + looks(fleet, 100, 1100, "bcde")) == ["a"]
    return fleet


def test_workers_that_fall_silent_a_lease_apart_are_one_failure() -> None:
    fleet = one_given_up()

    assert looks(fleet, 1200, 12_100, "de") == [EvictionHeld(("b", "c"))], "due at 2.2 s"
    assert lost(looks(fleet, 12_200, 12_200, "de")) == ["b", "c"], "after the whole wait, and no longer"


def test_a_worker_that_was_given_up_counts_as_silent_for_ten_seconds() -> None:
    in_time = one_given_up()
    looks(in_time, 1200, 10_000, "bcde")
    late = one_given_up()
    looks(late, 1200, 10_100, "bcde")

    assert looks(in_time, 10_100, 11_100, "de") == [EvictionHeld(("b", "c"))]
    assert lost(looks(late, 10_200, 11_200, "de")) == ["b", "c"]


def test_a_worker_that_was_given_up_counts_among_those_that_are_known() -> None:
    fleet = Fleet(lease_ns=SECOND)
    looks(fleet, 0, 0, "abcdef")
    assert lost(looks(fleet, 100, 1100, "bcdef")) == ["a"]

    assert lost(looks(fleet, 1200, 2200, "def")) == ["b", "c"], "three of six are just half"


def test_a_worker_that_left_does_not_count_as_silent() -> None:
    fleet = Fleet(lease_ns=SECOND)
    looks(fleet, 0, 0, "abcde")
    looks(fleet, 100, 700, "bcde")
    fleet.left(700 * SECOND // 1000, "a", 1)
    assert not life_of(fleet, "a").is_usable

    assert lost(looks(fleet, 800, 1900, "de")) == ["b", "c"]


def test_a_worker_that_returns_after_it_was_given_up_ends_the_hold() -> None:
    fleet = one_given_up()
    looks(fleet, 1200, 3000, "de")

    assert beat(fleet, "a", 3050 * SECOND // 1000) == [WorkerReturned("a", 1)]
    assert fleet.next_tick_at == 3050 * SECOND // 1000

    assert lost(fleet.tick(fleet.next_tick_at)) == ["b", "c"]


def test_a_new_life_of_a_worker_that_was_given_up_ends_the_hold() -> None:
    fleet = one_given_up()
    looks(fleet, 1200, 3000, "de")

    assert beat(fleet, "a", 3050 * SECOND // 1000, boot=2) == [WorkerRegistered("a", 2, 4)]

    assert lost(looks(fleet, 3100, 3700, "ade")) == ["b", "c"]


def test_those_given_up_after_a_wait_are_no_reason_against_the_next_one() -> None:
    fleet = Fleet(lease_ns=SECOND)
    looks(fleet, 0, 0, "abcdefgh")
    held = looks(fleet, 100, 12_000, "fgh")
    assert (held[0], lost(held)) == (EvictionHeld(("a", "b", "c", "d", "e")), ["a", "b", "c", "d", "e"])

    assert looks(fleet, 12_100, 14_000, "") == [EvictionHeld(("f", "g", "h"))]


def test_a_worker_that_was_forgotten_for_another_one_no_longer_counts_as_silent() -> None:
    fleet = Fleet(lease_ns=SECOND, limit=5)
    looks(fleet, 0, 0, "abcde")
    looks(fleet, 100, 1100, "bcde")
    looks(fleet, 1200, 1200, "bcdef")

    assert lost(looks(fleet, 1300, 2300, "def")) == ["b", "c"]


@without("correlated_hold")
def test_without_the_safeguard_many_silent_workers_are_given_up_at_once() -> None:
    fleet = Fleet()
    for name in ("a", "b", "c"):
        beat(fleet, name)

    assert len(fleet.tick(LEASE)) == 3


def test_workers_beyond_the_limit_get_no_lease_until_a_lost_one_makes_room() -> None:
    fleet = Fleet(limit=2)
    beat(fleet, "a")
    beat(fleet, "b")

    assert beat(fleet, "c") == [FleetFull("c", 2)]
    assert not fleet.holds("c", 1)
    alive(fleet, 4 * SECOND, "b")
    fleet.tick(LEASE)
    assert beat(fleet, "c", LEASE) == [WorkerRegistered("c", 1, 4)]
    assert [life.name for life in fleet.lives()] == ["b", "c"]


def test_the_worker_that_was_lost_first_makes_room_first() -> None:
    fleet = Fleet(limit=2)
    beat(fleet, "a", SECOND)
    beat(fleet, "b", 0)
    fleet.tick(LEASE)
    fleet.tick(SECOND + LEASE)

    beat(fleet, "c", 7 * SECOND)

    assert [life.name for life in fleet.lives()] == ["a", "c"]


def test_of_lives_that_are_proven_dead_only_so_many_are_remembered() -> None:
    fleet = Fleet(limit=1)
    for boot in (1, 2, 3):
        beat(fleet, "a", boot=boot, folder=7)

    assert beat(fleet, "a", boot=2, folder=7) == []
    assert len(beat(fleet, "a", boot=1, folder=7)) == 2, "it was forgotten, so it counts as new"


@pytest.mark.parametrize("wrong", [{"lease_ns": 0}, {"grace_ns": -1}, {"limit": 0}], ids=str)
def test_a_fleet_without_time_or_room_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="a fleet needs"):
        Fleet(**wrong)


# Which workers get work.


@pytest.mark.parametrize("facts", [{"state": "degraded"}, {"state": "draining"}], ids=["degraded", "draining"])
def test_a_worker_that_says_it_is_not_well_gets_no_work(facts: dict[str, Any]) -> None:
    fleet = Fleet()
    beat(fleet, "a", reason="the disk is full", **facts)

    assert (fleet.total(), fleet.total_free(), life_of(fleet, "a").free) == (0, 0, 4)
    life = life_of(fleet, "a")
    assert (life.state, life.is_usable, life.reason) == (facts["state"], False, "the disk is full")


def test_a_busy_worker_is_taken_only_where_the_others_do_not_suffice() -> None:
    fleet = Fleet()
    beat(fleet, "busy", cores=8, load_percent=95)
    beat(fleet, "calm", cores=2, load_percent=94)

    assert (life_of(fleet, "busy").is_calm, life_of(fleet, "busy").is_usable) == (False, True)
    assert fleet.choose(2, rng=Random(1)) == [("calm", 1, 2)]
    assert fleet.choose(3, rng=Random(1)) == [("busy", 1, 3)]
    assert (fleet.total(), fleet.total_free()) == (10, 10)


def test_an_overloaded_worker_is_taken_last_and_lives() -> None:
    fleet = Fleet()
    beat(fleet, "busy", cores=2, load_percent=95)
    beat(fleet, "overloaded", cores=8, overload=3)
    beat(fleet, "stressed", cores=2, overload=2)

    life = life_of(fleet, "overloaded")
    assert (life.state, life.is_usable, life.is_calm) == ("healthy", True, False)
    assert life_of(fleet, "stressed").is_calm
    assert fleet.choose(2, rng=Random(1)) == [("stressed", 1, 2)]
    assert sorted(fleet.choose(4, rng=Random(1)) or ()) == [("busy", 1, 2), ("stressed", 1, 2)]
    assert fleet.choose(5, rng=Random(1)) == [("overloaded", 1, 5)]
    fleet.review(0)
    assert [one.what for one in life.decisions] == ["overloaded"]
    assert [one.level for one in views_of(fleet.lives(), 0, 0)] == ["normal", "overloaded", "stressed"]
    beat(fleet, "overloaded", SECOND, cores=8)
    assert life.is_calm


def test_a_drained_worker_gets_no_work_until_it_starts_anew() -> None:
    fleet = fleet_of(a=4)

    assert fleet.drain("a")
    assert (fleet.total(), fleet.is_drained("a"), life_of(fleet, "a").state) == (0, True, "draining")
    beat(fleet, "a", SECOND, boot=2, folder=1)
    assert (fleet.total(), fleet.is_drained("a")) == (4, False)


def test_only_a_worker_that_is_there_can_be_drained() -> None:
    fleet = fleet_of(a=4)
    fleet.tick(LEASE)

    assert not fleet.drain("a")
    assert not fleet.drain("b")
    assert not fleet.is_drained("b")


def test_an_undrained_worker_gets_work_when_it_says_that_it_takes_it() -> None:
    fleet = fleet_of(a=4)
    assert fleet.drain("a", by="ann")
    beat(fleet, "a", SECOND, state="draining")

    assert fleet.undrain("a")

    assert (fleet.is_drained("a"), fleet.is_undraining("a"), fleet.total()) == (False, True, 0)
    beat(fleet, "a", 2 * SECOND, state="draining")
    assert fleet.is_undraining("a"), "it has not heard of it"
    beat(fleet, "a", 3 * SECOND)
    assert (fleet.is_undraining("a"), fleet.total()) == (False, 4)


def test_a_worker_that_was_undrained_and_has_not_heard_of_it_is_not_told_as_one_that_is_to_drain() -> None:
    fleet = fleet_of(a=4)
    fleet.drain("a", by="ann")
    beat(fleet, "a", SECOND, state="draining", reason="it was told to drain")
    fleet.review(SECOND)
    fleet.undrain("a")

    (told,) = fleet.review(2 * SECOND)

    assert (told.what, told.reason) == ("draining", "it was told to take new work again, and has not heard of it yet")
    beat(fleet, "a", 3 * SECOND)
    assert [(news.what, news.is_over) for news in fleet.review(3 * SECOND)] == [("draining", True), ("healthy", False)]


def test_a_worker_that_was_not_told_to_drain_yet_has_nothing_to_be_told() -> None:
    fleet = fleet_of(a=4)
    fleet.drain("a")

    assert fleet.undrain("a")

    assert (fleet.is_undraining("a"), fleet.total()) == (False, 4)
    assert fleet.undrain("a")
    fleet.drain("a")
    assert (fleet.is_drained("a"), fleet.is_undraining("a")) == (True, False)


def test_a_worker_that_says_late_that_it_drains_is_told_to_take_work_again() -> None:
    fleet = fleet_of(a=4)
    fleet.drain("a")
    fleet.undrain("a")
    for second in (1, 3):  # an answer that told it to drain was under way
        beat(fleet, "a", second * SECOND, state="draining")
        assert (fleet.is_undraining("a"), fleet.total()) == (True, 0)
        beat(fleet, "a", (second + 1) * SECOND)
        assert (fleet.is_undraining("a"), fleet.total()) == (False, 4)

    beat(fleet, "a", 5 * SECOND, state="draining")
    fleet.beat(
        6 * SECOND, "a", 1, "a:8471", Beat(6 * SECOND, WorkerFacts(cores=4, folder=1, state="draining"), leaves=True)
    )
    assert not fleet.is_undraining("a"), "it was told to end"


def test_only_a_worker_that_is_there_and_stays_can_be_undrained() -> None:
    fleet = fleet_of(a=4)
    fleet.beat(SECOND, "a", 1, "a:8471", Beat(SECOND, WorkerFacts(cores=4, folder=1, state="draining"), leaves=True))
    with pytest.raises(Leaves, match="^worker a was told to end: start it again, and it takes work$"):
        fleet.undrain("a")
    fleet.tick(SECOND + LEASE)

    assert not fleet.undrain("a") and not fleet.undrain("b") and not fleet.is_undraining("b")


def tell(fleet: Fleet, at: int, *running: Running) -> None:
    fleet.beat(at, "a", 1, "a:8471", Beat(at, WorkerFacts(cores=4, folder=1), running))


def test_counters_that_stand_still_say_nothing_of_a_worker() -> None:
    """A target that stalls, or a request of 40 s, is no fault of whoever waits for it."""
    fleet = fleet_of(a=4)
    for second in range(1, 60):
        running = (Running("job", 1, 1, "running", 7),)
        fleet.beat(second * SECOND, "a", 1, "a:8471", Beat(second, WorkerFacts(cores=4, folder=1), running))

    assert (life_of(fleet, "a").is_usable, fleet.total_free()) == (True, 4)


QUIET = QuietCore("j1", ("Shop",), 4711, "stuck", 31_000, 'Current thread 0x1:\n  File "shop.py", line 9 in go')


def judged(fleet: Fleet, at: int, name: str = "") -> list[tuple[str, str, bool]]:
    return [(one.what, one.reason, one.is_over) for one in fleet.review(at, name) if isinstance(one, WorkerJudged)]


def decided(fleet: Fleet, name: str = "a") -> list[tuple[str, int]]:
    return [(decision.what, decision.since) for decision in life_of(fleet, name).decisions]


def test_a_core_that_does_not_turn_is_told_and_its_worker_is_usable() -> None:
    fleet = fleet_of(a=4)
    assert judged(fleet, 0) == [] and decided(fleet) == [("healthy", 0)]
    told = Beat(
        40, WorkerFacts(cores=4, folder=1), quiet=(QUIET, msgspec.structs.replace(QUIET, state="stalled", stack=""))
    )
    fleet.beat(40 * SECOND, "a", 1, "a:8471", told)

    text = (
        'core 4711 of job j1 (Shop) does not turn its event loop, in File "shop.py", line 9 in go; '
        "the other cores are usable"
    )
    plain = "core 4711 of job j1 (Shop) does not turn its event loop; the other cores are usable"
    assert judged(fleet, 40 * SECOND, "a") == [("stuck", text, False), ("stalled", plain, False)]
    assert decided(fleet) == [("stuck", 9 * SECOND), ("stalled", 9 * SECOND)]
    assert (life_of(fleet, "a").is_usable, fleet.total_free()) == (True, 4)
    assert judged(fleet, 40 * SECOND) == [], "once"
    beat(fleet, "a", 41 * SECOND)
    over = [("stuck", text, True), ("stalled", plain, True), ("healthy", "", False)]
    assert judged(fleet, 41 * SECOND) == over and decided(fleet) == [("healthy", 41 * SECOND)]


def quiet_beat(fleet: Fleet, second: int, *quiet: QuietCore) -> list[tuple[str, str, bool]]:
    fleet.beat(second * SECOND, "a", 1, "a:8471", Beat(second, WorkerFacts(cores=4, folder=1), quiet=quiet))
    return judged(fleet, second * SECOND, "a")


def test_a_second_core_that_gets_stuck_is_told_and_how_long_they_are_is_not_told_again() -> None:
    fleet = fleet_of(a=4)
    judged(fleet, 0)
    other = msgspec.structs.replace(QUIET, pid=4712, stack="")
    ((_, first, _),) = quiet_beat(fleet, 40, QUIET)

    ((what, both, is_over),) = quiet_beat(fleet, 41, QUIET, other)

    assert (what, is_over) == ("stuck", False) and "4711" in first and "4712" not in first
    assert "core 4711" in both and "core 4712" in both
    assert decided(fleet) == [("stuck", 10 * SECOND)]
    later = [msgspec.structs.replace(core, quiet_ms=33_000, stack="") for core in (other, QUIET)]
    assert quiet_beat(fleet, 42, *later) == []
    ((_, one, _),) = quiet_beat(fleet, 43, other)
    assert "4711" not in one and "4712" in one


def test_another_reason_is_told_when_the_numbers_in_it_are_not_all_that_differs() -> None:
    fleet = Fleet()
    reasons = ["disk: 500 MiB are free", "disk: 499 MiB are free", "it cannot load its handlers: line 7"]
    told = []
    for second, reason in enumerate(reasons):
        beat(fleet, "a", second * SECOND, state="degraded", reason=reason)
        told += judged(fleet, second * SECOND, "a")
    assert told == [("degraded", reasons[0], False), ("degraded", reasons[2], False)]
    assert decided(fleet) == [("degraded", 0)]


def test_a_worker_that_is_busier_or_of_which_more_is_held_for_the_same_job_is_not_told_again() -> None:
    fleet = fleet_of(a=4)
    judged(fleet, 0)
    life = life_of(fleet, "a")
    told = []
    for second, (load, held, job) in enumerate([(97, 1, "j1"), (98, 2, "j1"), (99, 2, "j2")], 1):
        beat(fleet, "a", second * SECOND, load_percent=load)
        life.held, life.held_for = held, job
        told += [(what, reason[:30]) for what, reason, _ in judged(fleet, second * SECOND, "a")]
    of_cores = "of its cores get no new tasks: job"
    assert told == [
        ("held", f"1 {of_cores}"[:30]),
        ("busy", "its processors are busy (97 %)"),
        ("held", f"2 {of_cores}"[:30]),
    ]


def test_of_a_worker_that_was_lost_it_is_not_told_that_it_is_no_longer_silent() -> None:
    fleet = fleet_of(a=4)
    judged(fleet, 0)
    beat(fleet, "a", SECOND, load_percent=97)
    judged(fleet, SECOND)
    fleet.tick(4 * SECOND)
    assert [what for what, _, _ in judged(fleet, 4 * SECOND)] == ["silent"]
    fleet.tick(SECOND + LEASE)

    told = judged(fleet, SECOND + LEASE)

    assert [(what, is_over) for what, _, is_over in told] == [("busy", True)]


def test_news_of_a_decision_say_since_when_it_is_so_also_when_it_is_over() -> None:
    fleet = fleet_of(a=4)
    fleet.review(0)
    fleet.drain("a")
    news = fleet.review(SECOND)
    fleet.undrain("a")

    news += fleet.review(3 * SECOND)

    told = [(one.what, one.is_over, one.since) for one in news if isinstance(one, WorkerJudged)]
    assert told == [("draining", False, SECOND), ("draining", True, SECOND), ("healthy", False, 3 * SECOND)]


def test_every_decision_about_a_worker_is_told_with_its_reason_and_since_when() -> None:
    fleet = fleet_of(a=4)
    judged(fleet, 0)
    fleet.drain("a", by="ann")
    assert judged(fleet, SECOND) == [("draining", "it was told to drain by ann, and takes nothing new", False)]
    beat(fleet, "a", 2 * SECOND, state="draining", reason="it was told to drain", load_percent=97)
    fleet.undrain("a")
    for _ in range(3):
        fleet.failed(2 * SECOND, "a")
    fleet.note_tasks("a", None, ("quarantined", "tasks died on it"))
    assert judged(fleet, 2 * SECOND, "a") == [
        ("draining", "it was told to take new work again, and has not heard of it yet", False),
        ("blocked", "attempts could not be placed there again and again: one is tried after 10 s", False),
        ("quarantined", "tasks died on it", False),
        ("busy", "its processors are busy (97 %): load tests go to others first", False),
    ]
    assert decided(fleet)[0] == ("draining", SECOND)
    fleet.tick(6 * SECOND)
    assert ("silent", "nothing is heard of it, and it is given nothing new", False) in judged(fleet, 6 * SECOND)
    assert decided(fleet)[0] == ("silent", 2 * SECOND)
    fleet.tick(2 * SECOND + LEASE)
    ends = judged(fleet, 2 * SECOND + LEASE)
    assert all(is_over for _, _, is_over in ends), "its loss has news of its own"
    assert decided(fleet) == [("lost", 2 * SECOND + LEASE)]
    assert judged(fleet, 0, "ghost") == []


def test_the_reasons_that_a_worker_tells_itself_are_told_on() -> None:
    fleet = Fleet()
    beat(fleet, "a", state="degraded", reason="the disk is full")
    assert judged(fleet, 0) == [("degraded", "the disk is full", False)]
    fleet.drain("a")
    beat(fleet, "a", SECOND, state="draining")
    assert judged(fleet, SECOND)[-1] == ("draining", "it was told to drain, and takes nothing new", False)
    beat(fleet, "b", state="draining")
    assert life_of(fleet, "b").reason == "it takes nothing new"


def test_a_worker_that_is_only_expected_is_registering() -> None:
    fleet = Fleet()
    fleet.expect(0, "a", 7)
    assert judged(fleet, 0) == [] and decided(fleet) == [("registering", 0)]
    fleet.tick(4 * SECOND)

    assert [what for what, _, _ in judged(fleet, 4 * SECOND)] == ["silent"]


def test_a_worker_is_busy_until_it_is_well_below_what_made_it_so() -> None:
    fleet = Fleet()
    for at, (load, is_busy) in enumerate([(94, False), (95, True), (86, True), (85, True), (84, False), (94, False)]):
        beat(fleet, "a", at, load_percent=load)
        assert life_of(fleet, "a").is_busy is is_busy, load


def test_a_probe_is_told_as_what_it_is() -> None:
    fleet = fleet_of(a=4)
    for _ in range(3):
        fleet.failed(0, "a")
    alive(fleet, 10 * SECOND, "a")
    fleet.tick(10 * SECOND)
    fleet.reserve("j1", "a", 1)

    assert life_of(fleet, "a").reason.endswith("the next one is the test whether it takes them again")


# Cores that tasks take.


def tasks_on(fleet: Fleet, name: str, cores: int, *, of: int = 4, at: int = 0) -> None:
    told = Beat(at + 1, WorkerFacts(cores=of, folder=1), tasks=TaskLoad(cores + 1, 2, cores))
    fleet.beat(at, name, 1, f"{name}:8471", told)


def shifted(fleet: Fleet) -> list[tuple[str, int]]:
    return [(cores.name, cores.cores) for cores in fleet.take_shifted()]


def test_a_core_that_tasks_keep_busy_is_not_free_and_not_reserved() -> None:
    fleet = Fleet()
    tasks_on(fleet, "a", 3)
    life = life_of(fleet, "a")

    assert (life.free, life.unreserved, life.for_tasks.cores, life.load_percent) == (1, 4, 4, 75)
    assert (fleet.total(), fleet.total_unreserved(), fleet.total_free(), fleet.total_present()) == (4, 4, 1, 4)
    assert fleet.choose(2, rng=Random(1)) is None
    assert fleet.choose(2, rng=Random(1), beside_tasks=True) == [("a", 1, 2)]


def test_a_worker_with_a_free_core_is_taken_before_one_with_tasks() -> None:
    fleet = Fleet()
    tasks_on(fleet, "a", 2, of=2)
    beat(fleet, "b", cores=1)

    assert fleet.choose(1, rng=Random(1)) == [("b", 1, 1)]


def test_who_keeps_tasks_knows_of_new_ones_and_that_none_runs_sooner_than_a_beat_does() -> None:
    fleet = Fleet()
    tasks_on(fleet, "a", 2)

    fleet.note_tasks("a", 3)
    assert life_of(fleet, "a").free == 1
    fleet.note_tasks("a", 0)
    assert life_of(fleet, "a").free == 4
    fleet.note_tasks("a", None)
    assert life_of(fleet, "a").free == 2
    fleet.left(1, "a", 1)
    fleet.note_tasks("a", 2)
    assert (life_of(fleet, "a").busy_cores, life_of(fleet, "a").free, fleet.total_present()) == (0, 0, 0)


def test_a_worker_that_spreads_its_tasks_over_more_cores_than_they_fill_has_so_many_busy() -> None:
    fleet = Fleet()
    tasks_on(fleet, "a", 3)

    fleet.note_tasks("a", 1)

    assert (life_of(fleet, "a").busy_cores, life_of(fleet, "a").free) == (3, 1)


def test_held_cores_get_no_new_tasks_until_they_are_let_go() -> None:
    fleet = fleet_of(a=4, b=2)
    tasks_on(fleet, "a", 4, at=1)

    fleet.hold("j1", 3, rng=Random(1))

    assert (life_of(fleet, "a").for_tasks.cores, life_of(fleet, "b").for_tasks.cores, fleet.held()) == (1, 2, 3)
    assert life_of(fleet, "a").reason == "3 of its cores get no new tasks: job j1 is to have them"
    assert shifted(fleet) == [("a", 1)] and shifted(fleet) == []
    fleet.let_go()
    fleet.let_go()
    assert (fleet.held(), shifted(fleet)) == (0, [("a", 4)])
    fleet.hold("j1", 7, rng=Random(1))
    assert fleet.held() == 0, "so many there are not"


def test_whoever_gives_tasks_learns_of_each_core_that_a_load_job_takes_or_gives_back() -> None:
    fleet = fleet_of(a=4, b=2)
    fleet.reserve("j1", "a", 3)
    fleet.reserve("j1", "b", 1)
    assert shifted(fleet) == [("a", 1), ("b", 1)]

    fleet.release_worker("j1", "b")
    fleet.release("j1")

    assert shifted(fleet) == [("b", 2), ("a", 4)]
    fleet.reserve("j2", "a", 1)
    fleet.left(SECOND, "a", 1)
    fleet.tick(REAP_NS + SECOND)
    assert shifted(fleet) == [("b", 0)], "there is nobody of the name a to be given tasks"


def test_a_worker_has_no_core_for_tasks_while_it_is_silent_and_whoever_gives_them_learns_of_it() -> None:
    fleet = fleet_of(a=4, b=2)
    alive(fleet, SECOND, "b")

    fleet.tick(SILENT_NS)
    fleet.tick(SILENT_NS + 1)

    assert fleet.take_shifted() == [("a", 0, "nothing is heard of it, and it is given nothing new until it is")]
    alive(fleet, 2 * SILENT_NS, "a")
    assert life_of(fleet, "a").for_tasks == ("a", 4, "load jobs have all of its cores"), "its beat says so"
    fleet.tick(2 * SILENT_NS)
    assert shifted(fleet) == [("b", 0)]


def test_a_worker_that_is_no_longer_silent_by_a_longer_lease_has_its_cores_again() -> None:
    fleet = Fleet()
    fleet.set_lease(5 * SECOND, SECOND)
    alive(fleet, 0, "a")
    alive(fleet, SECOND // 2, "b")
    fleet.tick(SECOND)
    assert shifted(fleet) == [("a", 0)]

    fleet.set_lease(5 * SECOND, 5 * SECOND)
    fleet.tick(2 * SECOND)

    assert shifted(fleet) == [("a", 4)]


def test_cores_that_are_held_are_told_from_those_that_load_jobs_have() -> None:
    fleet = fleet_of(a=4)
    fleet.reserve("j1", "a", 2)
    assert life_of(fleet, "a").for_tasks == ("a", 2, "load jobs have all of its cores")

    fleet.hold("j2", 2, rng=Random(1))

    why = "the cores that load jobs leave of it are held for job j2, which is next"
    assert life_of(fleet, "a").for_tasks == ("a", 0, why)
    fleet.reserve("j3", "a", 2)
    assert life_of(fleet, "a").for_tasks == ("a", 0, "load jobs have all of its cores")


def failing(fleet: Fleet) -> None:
    for turn in range(3):
        fleet.failed(turn, "a")


def test_a_worker_that_failed_three_times_is_left_alone_and_then_probed_once() -> None:
    fleet = fleet_of(a=4)
    fleet.failed(0, "a")
    fleet.failed(0, "a")
    assert fleet.total_free() == 4
    fleet.failed(0, "a")
    assert (fleet.total_free(), life_of(fleet, "a").is_usable) == (0, False)
    for turn in range(1, 10):
        alive(fleet, turn * SECOND, "a")
        fleet.tick(turn * SECOND)
        assert fleet.total_free() == 0

    assert fleet.next_tick_at == 10 * SECOND
    fleet.tick(10 * SECOND)
    assert fleet.total_free() == 4
    fleet.reserve("job", "a", 1)
    assert fleet.total_free() == 0, "the probe is under way"


def test_a_probe_that_fails_blocks_the_worker_again() -> None:
    fleet = fleet_of(a=4)
    failing(fleet)
    alive(fleet, 11 * SECOND, "a")
    fleet.tick(11 * SECOND)
    fleet.reserve("job", "a", 1)

    fleet.failed(12 * SECOND, "a")

    alive(fleet, 21 * SECOND, "a")
    fleet.tick(21 * SECOND)
    assert fleet.total_free() == 0
    fleet.tick(22 * SECOND)
    assert fleet.total_free() == 3


def test_a_probe_whose_outcome_is_never_told_is_given_up() -> None:
    fleet = fleet_of(a=4)
    failing(fleet)
    alive(fleet, 11 * SECOND, "a")
    fleet.tick(11 * SECOND)
    fleet.reserve("job", "a", 1)
    alive(fleet, 21 * SECOND, "a")

    fleet.tick(21 * SECOND)

    assert fleet.total_free() == 3


def test_a_worker_that_runs_what_it_was_probed_with_is_trusted_again() -> None:
    fleet = fleet_of(a=4)
    failing(fleet)
    alive(fleet, 11 * SECOND, "a")
    fleet.tick(11 * SECOND)
    fleet.reserve("job", "a", 1)
    tell(fleet, 12 * SECOND, Running("other", 1, 1, "running"), Running("job", 2, 1, "arming"))
    assert fleet.total_free() == 0, "it may still decline"

    tell(fleet, 13 * SECOND, Running("job", 2, 1, "running"))

    assert fleet.total_free() == 3
    fleet.reserve("next", "a", 1)
    assert fleet.total_free() == 2, "as many jobs as there are cores, not one in ten seconds"


def test_more_cores_for_a_job_that_runs_there_prove_nothing() -> None:
    fleet = fleet_of(a=4)
    fleet.reserve("job", "a", 1)
    failing(fleet)
    alive(fleet, 11 * SECOND, "a")
    fleet.tick(11 * SECOND)
    fleet.reserve("job", "a", 1)

    tell(fleet, 12 * SECOND, Running("job", 1, 1, "running"))

    assert fleet.total_free() == 0, "this may be what ran there before"


def test_the_outcome_of_what_was_given_to_a_worker_that_is_gone_means_nothing() -> None:
    fleet = fleet_of(a=4)

    fleet.failed(0, "ghost")

    assert fleet.total_free() == 4


# Cores.


def test_reserved_cores_are_not_free_until_they_are_released() -> None:
    fleet = fleet_of(a=4, b=2)
    fleet.reserve("shop", "a", 2)
    fleet.reserve("shop", "a", 1)
    fleet.reserve("shop", "b", 1)
    fleet.reserve("blog", "a", 1)
    assert (life_of(fleet, "a").free, life_of(fleet, "b").free, fleet.total_free(), fleet.total()) == (0, 1, 1, 6)
    assert [life.reserved for life in fleet.lives()] == [{"shop": 3, "blog": 1}, {"shop": 1}]

    fleet.release_worker("shop", "a")
    assert (life_of(fleet, "a").free, life_of(fleet, "b").free) == (3, 1)
    fleet.release_worker("shop", "b")
    fleet.release_worker("shop", "b")
    assert life_of(fleet, "b").free == 2
    fleet.release("blog")
    fleet.release("blog")
    assert fleet.total_free() == 6
    assert fleet.life("ghost") is None


def test_cores_of_a_lost_worker_are_released_and_the_jobs_others_are_not() -> None:
    fleet = fleet_of(a=4, b=4)
    fleet.reserve("shop", "a", 2)
    fleet.reserve("shop", "b", 2)
    fleet.reserve("blog", "a", 1)
    alive(fleet, 4 * SECOND, "b")
    fleet.tick(LEASE)

    fleet.release_worker("shop", "a")
    fleet.release("blog")
    assert life_of(fleet, "b").free == 2
    fleet.release("shop")

    assert (life_of(fleet, "a").free, life_of(fleet, "b").free) == (0, 4)


@pytest.mark.parametrize(("worker", "cores", "free"), [("a", 3, 2), ("ghost", 1, 0), ("lost", 1, 0)])
def test_cores_that_are_not_there_cannot_be_reserved(worker: str, cores: int, free: int) -> None:
    fleet = fleet_of(lost=4)
    fleet.tick(LEASE)
    beat(fleet, "a", LEASE, cores=2)

    with pytest.raises(NotFree, match=f"{cores} cores are wanted and {free} are free") as refused:
        fleet.reserve("job", worker, cores)

    assert (refused.value.worker, refused.value.asked, refused.value.free) == (worker, cores, free)
    assert fleet.total_free() == 2


def test_less_than_one_core_is_neither_reserved_nor_chosen() -> None:
    fleet = fleet_of(a=4)

    with pytest.raises(Invalid, match="at least 1"):
        fleet.reserve("job", "a", 0)
    with pytest.raises(Invalid, match="at least 1"):
        fleet.choose(0, rng=Random(1))


def test_as_few_workers_as_can_be_are_chosen() -> None:
    fleet = fleet_of(a=2, b=8, c=4, d=1)

    assert fleet.choose(8, rng=Random(1)) == [("b", 1, 8)]
    assert fleet.choose(10, rng=Random(1)) in ([("b", 1, 8), ("a", 1, 2)], [("b", 1, 8), ("c", 1, 2)])
    assert fleet.choose(14, rng=Random(1)) == [("b", 1, 8), ("c", 1, 4), ("a", 1, 2)]
    assert fleet.choose(15, rng=Random(1)) == [("b", 1, 8), ("c", 1, 4), ("a", 1, 2), ("d", 1, 1)]
    assert fleet.choose(16, rng=Random(1)) is None


def test_the_less_loaded_of_two_that_serve_equally_well_is_chosen() -> None:
    fleet = Fleet()
    beat(fleet, "a", cores=4, load_percent=50)
    beat(fleet, "b", cores=8, load_percent=10)

    assert [fleet.choose(2, rng=Random(seed)) for seed in range(5)] == [[("b", 1, 2)]] * 5
    fleet.reserve("job", "b", 5)
    assert [fleet.choose(2, rng=Random(seed)) for seed in range(5)] == [[("a", 1, 2)]] * 5


def test_among_many_the_random_source_decides_and_the_same_seed_decides_the_same() -> None:
    fleet = fleet_of(**{f"w{turn}": 4 for turn in range(10)})

    chosen = [str(fleet.choose(2, rng=Random(seed))) for seed in range(40)]

    assert chosen == [str(fleet.choose(2, rng=Random(seed))) for seed in range(40)]
    assert len(set(chosen)) > 5


def test_excluded_workers_are_not_chosen() -> None:
    fleet = Fleet()
    beat(fleet, "a")
    beat(fleet, "b")

    assert fleet.choose(4, rng=Random(1), exclude={"a"}) == [("b", 1, 4)]
    assert fleet.choose(1, rng=Random(1), exclude=("a", "b")) is None


def test_people_see_every_worker_and_why_it_is_gone() -> None:
    fleet = Fleet()
    fleet.beat(0, "b", 1, "b:1", Beat(1, WorkerFacts(4)))
    beat(fleet, "a", 4 * SECOND)

    fleet.tick(LEASE)

    seen = [(life.name, life.state, life.heard_at, life.reason) for life in fleet.lives()]
    assert seen == [("a", "healthy", 4 * SECOND, ""), ("b", "offline", 0, "its lease is over: silent for 5 s")]
    assert fleet.life("ghost") is None


@given(
    cores=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 9)), max_size=25),
    seed=st.integers(0, 1000),
)
@quick
def test_reservations_never_exceed_the_cores_and_what_is_chosen_can_be_reserved(
    cores: list[int], moves: list[tuple[int, int, int]], seed: int
) -> None:
    fleet = fleet_of(**{f"w{turn}": count for turn, count in enumerate(cores)})
    rng = Random(seed)
    held: dict[str, dict[str, int]] = {}
    for move, which, count in moves:
        job, worker = f"job {which % 3}", f"w{which % len(cores)}"
        if move == 0:
            held.pop(job, None)
            fleet.release(job)
        elif move == 1:
            held.get(job, {}).pop(worker, None)
            fleet.release_worker(job, worker)
        else:
            before = fleet.total_free()
            chosen = fleet.choose(count, rng=rng)
            assert (chosen is not None) is (count <= before)
            sizes = sorted((life_of(fleet, f"w{turn}").free for turn in range(len(cores))), reverse=True)
            for name, _, taken in chosen or ():
                assert 1 <= taken <= life_of(fleet, name).free
                fleet.reserve(job, name, taken)
                mine = held.setdefault(job, {})
                mine[name] = mine.get(name, 0) + taken
            if chosen is not None:
                assert sum(taken for _, _, taken in chosen) == count
                assert len({name for name, _, _ in chosen}) == len(chosen)
                assert sum(sizes[: len(chosen) - 1]) < count, "fewer would not do"
        for turn, count_of_worker in enumerate(cores):
            used = sum(mine.get(f"w{turn}", 0) for mine in held.values())
            assert life_of(fleet, f"w{turn}").free == count_of_worker - used >= 0
        assert fleet.total_free() == sum(life_of(fleet, f"w{turn}").free for turn in range(len(cores)))


@given(
    moves=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(1, 3), st.integers(0, 2), st.integers(0, 4)),
        max_size=40,
    )
)
@quick
def test_no_life_is_lost_before_its_lease_is_over_unless_a_later_one_proves_it(
    moves: list[tuple[int, str, int, int, int]],
) -> None:
    fleet = Fleet()
    now = 0
    renewed: dict[tuple[str, int], int] = {}
    for turn, (move, name, boot, folder, wait_s) in enumerate(moves):
        now += wait_s * SECOND
        if move == 0:
            fleet.expect(now, name, boot)
            if lease_over_at(fleet, name, boot) is not None:
                renewed.setdefault((name, boot), now)
            continue
        news = fleet.tick(now) if move == 1 else beat(fleet, name, now, boot=boot, number=turn, folder=folder)
        for lost in news:
            if isinstance(lost, WorkerLost) and lost.cause != "it was restarted":
                assert now >= renewed.pop((lost.name, lost.boot)) + LEASE
            elif isinstance(lost, WorkerLost):
                assert folder and (lost.name, lost.boot != boot) == (name, True)
                renewed.pop((lost.name, lost.boot))
        if move > 1 and fleet.holds(name, boot):
            renewed[name, boot] = now
        assert fleet.next_tick_at > now or move != 1


def test_a_worker_that_says_goodbye_is_lost_at_once_and_its_late_beats_mean_nothing() -> None:
    fleet = fleet_of(a=4, b=4)
    fleet.reserve("job", "a", 3)

    assert fleet.left(SECOND, "a", 1) == [WorkerLost("a", 1, "it left")]

    assert fleet.left(SECOND, "a", 1) == fleet.left(SECOND, "ghost", 1) == []
    assert (fleet.total(), life_of(fleet, "a").free) == (4, 0)
    assert fleet.choose(4, rng=Random(1)) == [("b", 1, 4)]
    assert beat(fleet, "a", 2 * SECOND, boot=2) == [WorkerRegistered("a", 2, 4)]


def test_a_beat_of_an_earlier_life_from_the_same_folder_that_was_long_on_its_way_means_nothing() -> None:
    fleet = Fleet()
    beat(fleet, "a", boot=7, folder=5, life=3)

    assert beat(fleet, "a", SECOND, boot=6, folder=5, life=2) == []

    assert fleet.holds("a", 7) and not fleet.holds("a", 6)
    assert beat(fleet, "a", 2 * SECOND, boot=8, folder=5, life=4)[0] == WorkerLost("a", 7, "it was restarted")


def test_what_was_told_of_a_machine_is_kept_until_it_is_told_anew() -> None:
    fleet, one, other = Fleet(), WorkerMachine("one"), WorkerMachine("other")
    beat(fleet, "w", 0, number=1, machine=one)
    beat(fleet, "w", 1, number=2)
    assert life_of(fleet, "w").machine == one

    beat(fleet, "w", 2, number=4)
    beat(fleet, "w", 3, number=3, machine=other)
    assert life_of(fleet, "w").machine == other, "the beat was overtaken; it is answered, and tells no more"
    beat(fleet, "w", 4, number=1, machine=one)
    assert life_of(fleet, "w").machine == other
    assert life_of(fleet, "w").registered_at == 0

    beat(fleet, "w", 20 * SECOND, number=1, boot=1, machine=one)
    assert life_of(fleet, "w").machine == other


def test_workers_are_counted_by_their_state_and_by_that_of_their_breaker() -> None:
    fleet = fleet_of(a=1, b=2, c=3)
    fleet.left(1, "c", 1)
    for _ in range(3):
        fleet.failed(2, "a")

    assert fleet.states() == {"registering": 0, "healthy": 2, "degraded": 0, "draining": 0, "offline": 1}
    assert fleet.breakers() == {"closed": 2, "open": 1, "half-open": 0}
    assert fleet.silent == 0

    beat(fleet, "b", 4 * SECOND)
    fleet.tick(4 * SECOND)
    assert fleet.silent == 1, "a; and c has left"
