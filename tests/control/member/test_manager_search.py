"""How a worker that no manager leads finds some."""

from random import Random
from typing import Any

import msgspec

from talka.control.member.manager_search import ANSWER_NS, MET_NS, ManagerSearch, place_of
from talka.control.member.peer_pool import Place
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import ManagerAt, WorkerFacts

HERE = Place("z1", "d1", "r1")
A, B, C = ManagerAt("a", "10.0.0.1:1"), ManagerAt("b", "10.0.0.2:1"), ManagerAt("c", "10.0.0.3:1")
LATEST = int(5.1 * SECOND)
"""The longest pause between two greetings, a quarter more by chance, and the wait for an answer."""


def searching(content: bytes | None = None, *, seed: int = 1, **limits: Any) -> ManagerSearch:
    return ManagerSearch("w", HERE, content, Random(seed), 0, **limits)


def greeted(search: ManagerSearch, until: int, *, since: int = 0) -> list[tuple[int, str]]:
    """When whom it greets, up to this instant."""
    said = []
    while search.next_tick_at <= until:
        now = max(since, search.next_tick_at)
        said += [(now, effect.address) for effect in search.tick(now)]
    return said


def addresses(said: list[tuple[int, str]]) -> list[str]:
    return sorted(dict.fromkeys(address for _, address in said))


def test_with_nobody_known_it_waits_to_be_told_of_somebody() -> None:
    search = searching()
    assert search.tick(0) == []
    assert (search.next_tick_at, search.has_found, search.is_alone) == (NEVER, False, True)

    search.found(SECOND, ["10.0.0.9:1"])

    assert search.next_tick_at == SECOND
    assert search.tick(SECOND - 1) == []
    assert greeted(search, SECOND, since=SECOND) == [(SECOND, "10.0.0.9:1")]
    assert search.has_found


def test_what_was_written_in_an_earlier_life_is_greeted_at_once() -> None:
    earlier = searching()
    content = earlier.told(0, (A, B, C))
    assert content is not None

    later = searching(content)

    assert later.remembered == (A, B, C)
    assert addresses(greeted(later, 0)) == [A.address, B.address, C.address]


def test_what_cannot_be_read_is_as_if_nothing_was_remembered() -> None:
    for content in (b"", b"\xc1", msgspec.msgpack.encode([["a", 7]]), msgspec.msgpack.encode("x" * 9)):
        search = searching(content)
        search.found(0, [B.address])
        assert search.remembered == ()
        assert addresses(greeted(search, 0)) == [B.address]


def test_what_is_told_again_is_not_written_again() -> None:
    search = searching()
    assert search.told(0, (A, B)) is not None
    assert search.told(1, (B, A)) is None
    assert search.told(2, (A,)) is None
    assert search.told(3, (A, C)) is not None
    assert search.remembered == (A, C, B), "those told of last come first, and earlier ones stay"


def test_a_manager_that_moved_is_sought_where_it_is_and_whose_address_another_has_is_forgotten() -> None:
    search = searching()
    search.told(0, (A, B))
    search.told(1, (ManagerAt("a", B.address),))
    assert search.remembered == (ManagerAt("a", B.address),)
    assert (search.name_at(B.address), search.name_at("10.9.9.9:1")) == ("a", "")


def test_no_more_managers_are_remembered_than_the_limit_says() -> None:
    search = searching(remembered_limit=2)
    search.told(0, (A, B))
    search.told(1, (C,))
    assert search.remembered == (C, A)


def test_near_managers_are_greeted_before_far_ones() -> None:
    near = [ManagerAt(f"n{number}", f"10.1.0.{number}:1", "z1", "d1", "r1") for number in range(3)]
    far = [ManagerAt(f"f{number}", f"10.2.0.{number}:1", "z1", "d1", "r2") for number in range(3)]
    search = searching(at_once=3)
    search.told(0, (*far, *near))
    assert addresses(greeted(search, 0)) == [one.address for one in near]
    assert (search.peer("n0").place, search.peer("unknown").place) == (HERE, Place())


def test_no_more_are_greeted_at_once_than_the_limit_says_and_the_others_follow() -> None:
    search = searching(at_once=2)
    search.found(0, [f"10.0.0.{number}:1" for number in range(5)])
    assert len(greeted(search, 0)) == 2
    assert search.next_tick_at == ANSWER_NS
    assert len(addresses(greeted(search, 3 * SECOND))) == 5


def test_whoever_does_not_answer_is_greeted_again_after_pauses_that_grow_up_to_a_limit() -> None:
    search = searching()
    search.found(0, [A.address])
    at = [instant for instant, _ in greeted(search, 60 * SECOND)]
    gaps = [later - earlier for earlier, later in zip(at, at[1:], strict=False)]
    assert gaps[0] <= ANSWER_NS + 625 * MILLISECOND
    assert all(4 * SECOND <= gap - ANSWER_NS <= LATEST for gap in gaps[3:])
    assert (search.greetings, search.failures) == (len(at), len(at) - 1 + (search.next_tick_at > at[-1] + ANSWER_NS))


def test_workers_that_were_started_together_do_not_greet_together() -> None:
    at = []
    for seed in range(10):
        search = searching(seed=seed)
        search.found(0, [A.address])
        at.append(greeted(search, 10 * SECOND)[3][0])
    assert len(dict.fromkeys(at)) == 10


def test_one_that_lets_it_in_is_left_alone_until_it_has_led_to_nobody_for_a_while() -> None:
    search = searching()
    search.found(0, [A.address])
    assert greeted(search, 0) == [(0, A.address)]

    search.welcomed(MILLISECOND, A.address, "a")

    assert (search.is_alone, search.name_at(A.address), search.failures) == (False, "a", 0)
    assert greeted(search, MET_NS, since=MILLISECOND) == []
    assert greeted(search, MET_NS + MILLISECOND) == [(MET_NS + MILLISECOND, A.address)]


def test_with_a_lease_it_rests_and_when_that_is_over_it_greets_everybody_again() -> None:
    search = searching()
    search.found(0, [A.address])
    greeted(search, 0)
    search.welcomed(1, A.address, "a")
    search.rest()
    search.told(2, (A, B))
    search.found(3, [A.address, C.address])
    assert (search.next_tick_at, search.tick(SECOND)) == (NEVER, [])
    assert not search.is_alone

    search.seek(SECOND)

    assert (search.is_alone, search.searches) == (True, 2)
    assert addresses(greeted(search, SECOND)) == [A.address, B.address, C.address]
    search.heard()
    assert not search.is_alone


def test_where_seeds_and_names_say_nobody_any_more_what_they_said_before_counts() -> None:
    search = searching()
    search.found(0, [A.address])
    search.found(1, [])
    assert search.addresses == [A.address]
    search.found(2, [B.address])
    assert search.addresses == [B.address]


def test_who_is_no_longer_among_those_that_may_be_there_is_not_waited_for() -> None:
    search = searching(at_once=1)
    search.found(0, [A.address])
    greeted(search, 0)
    search.found(1, [B.address])
    assert greeted(search, 1, since=1) == [(1, B.address)]


def test_who_is_found_while_another_is_waited_for_is_greeted_at_once() -> None:
    search = searching()
    search.found(0, [A.address])
    greeted(search, 0)
    search.found(ANSWER_NS // 2, [A.address, B.address])
    assert greeted(search, ANSWER_NS // 2, since=ANSWER_NS // 2) == [(ANSWER_NS // 2, B.address)]


def test_names_of_addresses_that_are_gone_are_forgotten() -> None:
    search = searching()
    for number in range(600):
        search.found(number, [f"a{number}:1"])
        search.welcomed(number, f"a{number}:1", f"m{number}")
    assert search.name_at("a0:1") == ""
    assert search.name_at("a599:1") == "m599"


def test_where_a_worker_stands_is_in_its_facts() -> None:
    assert place_of(WorkerFacts(1, zone="z1", datacenter="d1", region="r1")) == HERE
