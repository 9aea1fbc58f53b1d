import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.clients.overload import Level
from talka.control.clients.rate_limits import LIMITS, RateLimit, RateLimits
from talka.control.clients.request_classes import CLASSES
from talka.errors import Invalid
from talka.units import SECOND
from talka.wire.security.access import LEAST

quick = settings(deadline=None, derandomize=True, max_examples=150)


def of(requests: int, window_s: int = 10, **more: bool) -> RateLimits:
    return RateLimits({"submit": RateLimit(requests, window_s * SECOND, **more)})


def passed(limits: RateLimits, now: int, tries: int, operation: str = "submit", client: str = "ann") -> int:
    return sum(limits.check(now, operation, client) == 0 for _ in range(tries))


def test_a_client_may_ask_as_often_as_the_limit_says_and_then_waits() -> None:
    limits = of(3)

    assert passed(limits, 0, 5) == 3
    assert limits.refused == {"submit": 2}


def test_clients_and_operations_do_not_use_up_each_others_requests() -> None:
    limits = RateLimits({"submit": RateLimit(1), "jobs": RateLimit(1)})
    limits.check(0, "submit", "ann")

    assert limits.check(0, "submit", "ben") == 0
    assert limits.check(0, "jobs", "ann") == 0
    assert limits.check(0, "submit", "ann") > 0


def test_operations_without_a_limit_of_their_own_share_one() -> None:
    limits = RateLimits({}, other=RateLimit(2))

    assert [limits.check(0, operation, "ann") == 0 for operation in ("this", "that", "those")] == [True, True, False]


def test_the_last_window_counts_in_part() -> None:
    limits = of(100)
    passed(limits, 9 * SECOND, 100)

    # A quarter into the next window three quarters of the last one are in sight.
    assert passed(limits, 12_500_000_000, 100) == 25


def test_a_window_before_the_last_one_counts_no_more() -> None:
    limits = of(3)
    passed(limits, 0, 3)

    assert passed(limits, 20 * SECOND, 5) == 3


def test_who_is_refused_is_told_when_to_come_again() -> None:
    limits = of(4)
    passed(limits, 8 * SECOND, 4)

    # The next window begins in two seconds; a quarter into it one of four has faded.
    assert limits.check(8 * SECOND, "submit", "ann") == 4_500_000_000
    assert limits.check(10 * SECOND, "submit", "ann") == 2_500_000_000
    assert limits.check(12_500_000_000, "submit", "ann") == 0


@pytest.mark.parametrize(("level", "requests"), [(0, 20), (1, 15), (2, 10), (3, 5)])
def test_limits_shrink_with_the_load_of_the_node(level: int, requests: int) -> None:
    limits = of(20)
    limits.level = Level(level)

    assert passed(limits, 0, 30) == requests


def test_under_stress_all_clients_together_have_the_requests_of_a_few_and_each_its_fair_share() -> None:
    limits = of(20)
    limits.level = Level.STRESSED
    crowd = [f"client {number}" for number in range(20)]

    assert sum(passed(limits, 0, 1, client=client) for client in crowd) == 20, "each has one"
    # Four times 20 requests for 20 clients: the first to ask takes nothing from the others.
    assert passed(limits, 1, 30, client=crowd[0]) == 3
    assert [passed(limits, 2, 30, client=client) for client in crowd[1:]] == [3] * 19


def test_two_clients_under_stress_have_no_less_than_one() -> None:
    limits = of(20)
    limits.level = Level.STRESSED

    assert [passed(limits, 0, 30, client=client) for client in ("ann", "ben")] == [10, 10]


@given(
    asked=st.lists(st.integers(0, 40), min_size=1, max_size=300),
    level=st.sampled_from((Level.STRESSED, Level.OVERLOADED)),
    requests=st.integers(1, 30),
)
@quick
def test_however_many_flood_it_whoever_asks_for_the_first_time_is_let_and_nobody_has_more_than_a_part(
    asked: list[int], level: Level, requests: int
) -> None:
    limits = of(requests)
    limits.level = level
    let: dict[int, int] = {}
    for client in asked:
        let[client] = let.get(client, 0) + passed(limits, 0, 1, client=f"client {client}")

    most = max(1, requests // (2 if level is Level.STRESSED else 4))
    assert all(1 <= number <= most for number in let.values())


def test_clients_that_asked_two_windows_ago_share_no_more() -> None:
    limits = of(20)
    limits.level = Level.STRESSED
    for number in range(40):
        passed(limits, 0, 1, client=f"client {number}")

    assert passed(limits, 10 * SECOND, 30) == 2, "40 asked in the window before"
    assert passed(limits, 40 * SECOND, 30) == 10


def test_what_is_never_shed_has_limits_of_its_own_that_do_not_shrink() -> None:
    never = [name for rule in CLASSES.values() if rule.shed_from is None for name in rule.operations]

    assert [name for name in never if LEAST[name] is not None and not LIMITS[name].is_steady] == []


def test_cancels_are_not_shared_out() -> None:
    limits = of(20, is_steady=True)
    limits.level = Level.OVERLOADED
    for number in range(100):
        passed(limits, 0, 1, client=f"client {number}")

    assert passed(limits, 1, 30) == 20


def test_something_always_passes_and_what_must_pass_is_not_shrunk() -> None:
    small, steady = of(2), of(20, is_steady=True)
    small.level = steady.level = Level.OVERLOADED

    assert (passed(small, 0, 5), passed(steady, 0, 30)) == (1, 20)
    assert LIMITS["cancel"].is_steady and not LIMITS["submit"].is_steady


def test_a_limit_that_shrank_below_what_was_used_still_names_a_time() -> None:
    limits = of(20)
    passed(limits, 0, 20)
    limits.level = Level.OVERLOADED

    wait_ns = limits.check(0, "submit", "ann")

    assert limits.check(wait_ns - 1, "submit", "ann") > 0
    assert limits.check(wait_ns, "submit", "ann") == 0


def test_the_client_that_asked_longest_ago_is_forgotten() -> None:
    limits = RateLimits({"submit": RateLimit(1)}, clients_limit=2)
    for client in ("ann", "ben", "ann", "cid"):
        limits.check(0, "submit", client)

    assert len(limits) == 2
    assert limits.check(0, "submit", "ann") > 0
    assert limits.check(0, "submit", "ben") == 0, "it was forgotten, and cid is now"


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0)])
def test_a_limit_without_a_meaning_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(Invalid, match="at least 1"):
        RateLimit(*wrong)


def test_limits_without_room_for_a_client_are_refused() -> None:
    with pytest.raises(Invalid, match="clients_limit"):
        RateLimits(clients_limit=0)


@given(requests=st.integers(1, 6), waits=st.lists(st.integers(0, 12), min_size=1, max_size=40))
@quick
def test_no_window_lets_more_through_and_the_told_wait_is_the_shortest(requests: int, waits: list[int]) -> None:
    limits = of(requests)
    now = 0
    let_through: dict[int, int] = {}
    for wait_s in waits:
        now += wait_s * SECOND // 2
        wait_ns = limits.check(now, "submit", "ann")
        if wait_ns:
            assert wait_ns <= 20 * SECOND
            assert limits.check(now + wait_ns - 1, "submit", "ann") == 1
            now += wait_ns
            assert limits.check(now, "submit", "ann") == 0
        let_through[now // (10 * SECOND)] = let_through.get(now // (10 * SECOND), 0) + 1

    assert max(let_through.values()) <= requests
