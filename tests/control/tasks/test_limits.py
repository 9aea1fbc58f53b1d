"""Limits on how many attempts that name a key run at once, and how often one starts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.tasks.limits import Limits
from talka.errors import Invalid
from talka.units import MILLISECOND, NEVER, SECOND
from talka.work.dags.dag import Limit

quick = settings(deadline=None, derandomize=True, max_examples=100)
TWO = (Limit("db", 2),)
TEN_A_SECOND = (Limit("api", rate="10/s"),)


def saying(*limits: tuple[Limit, ...], keys_limit: int = 10_000) -> Limits:
    """Limits that somebody names."""
    made = Limits(keys_limit)
    for some in limits:
        made.say(0, some)
    return made


def starts_between(limits: Limits, named: tuple[Limit, ...], first: int, last: int, step: int) -> list[int]:
    """The instants at which attempts start that are tried every `step`, each over at once."""
    starts: list[int] = []
    for now in range(first, last, step):
        while limits.refusal(named, now) is None:
            fence = len(starts) + 1
            limits.take(fence, named, now)
            limits.give(fence, now)
            starts.append(now)
    return starts


def test_as_many_run_as_are_allowed_and_one_more_when_one_is_over() -> None:
    limits = saying(TWO)
    limits.take(1, TWO, 0)
    assert limits.refusal(TWO, 0) is None
    limits.take(2, TWO, 0)
    assert limits.refusal(TWO, 0) == ("limit", 'limit "db" lets 2 run at a time, and 2 tasks that name it run', "db")
    limits.give(1, 0)
    assert limits.refusal(TWO, 0) is None
    assert limits.freed == {"db": None}


def test_one_that_runs_is_told_in_the_singular() -> None:
    one = (Limit("db", 1),)
    limits = saying(one)
    limits.take(1, one, 0)
    assert limits.refusal(one, 0) == ("limit", 'limit "db" lets 1 run at a time, and 1 task that names it runs', "db")


def test_what_was_given_back_is_not_given_back_again() -> None:
    limits = saying(TWO)
    for fence in (1, 2):
        limits.take(fence, TWO, 0)
    limits.give(1, 0)
    limits.give(1, 0)
    limits.give(7, 0)
    assert len(limits._held) == 1
    limits.take(3, TWO, 0)
    assert limits.refusal(TWO, 0) is not None


def test_a_fence_that_takes_again_holds_once() -> None:
    limits = saying(TWO)
    limits.take(1, TWO, 0)
    limits.take(1, TWO, 0)
    assert limits.refusal(TWO, 0) is None
    limits.give(1, 0)
    assert limits.views({})[0].held == 0


def test_a_hold_goes_over_to_another_fence() -> None:
    limits = saying(TWO)
    limits.take(-1, TWO, 0)
    limits.rename(-1, 9)
    limits.rename(-2, 10)
    limits.give(-1, 0)
    limits.give(10, 0)
    assert limits.views({})[0].held == 1
    limits.give(9, 0)
    assert limits.views({})[0].held == 0


def test_a_task_that_names_a_key_twice_holds_it_once_and_obeys_both() -> None:
    both = (Limit("db", 3), Limit("db", 1))
    limits = saying(both)
    limits.take(1, both, 0)
    assert [(view.held, view.concurrency) for view in limits.views({})] == [(1, 1)]
    limits.give(1, 0)
    assert [(view.held, view.concurrency) for view in limits.views({})] == [(0, 1)]


def test_the_strictest_of_those_who_name_a_key_counts_as_long_as_they_do() -> None:
    loose, strict = (Limit("db", 5, "100/s"),), (Limit("db", 2, "1/s"),)
    limits = saying(loose, strict)
    assert [(view.concurrency, view.rate) for view in limits.views({"db": 4})] == [(2, "1/s")]
    assert limits.views({"db": 4})[0].waiting == 4
    limits.freed.clear()
    limits.unsay(0, strict)
    assert [(view.concurrency, view.rate) for view in limits.views({})] == [(5, "100/s")]
    assert limits.freed == {"db": None}
    limits.unsay(0, loose)
    assert limits.views({}) == []


def test_one_who_runs_still_names_its_limit() -> None:
    strict = (Limit("db", 1),)
    limits = saying(TWO, strict)
    limits.take(1, strict, 0)
    limits.unsay(0, strict)
    assert limits.refusal(TWO, 0) is not None
    limits.give(1, 0)
    assert [limits.views({})[0].concurrency, limits.refusal(TWO, 0)] == [2, None]


def test_what_a_stricter_rate_held_back_is_free_soon_after_it_is_gone() -> None:
    hourly = (Limit("api", rate="1/h"),)
    limits = saying(TEN_A_SECOND, hourly)
    limits.take(1, TEN_A_SECOND, 0)
    assert limits.free_at("api", SECOND) == 3600 * SECOND
    limits.unsay(SECOND, hourly)
    assert limits.free_at("api", SECOND) == SECOND + SECOND // 10


def test_a_limit_that_nobody_named_refuses_nothing() -> None:
    assert Limits().refusal(TWO, 0) is None


def test_starts_follow_each_other_at_the_rate() -> None:
    limits = saying(TEN_A_SECOND)
    assert starts_between(limits, TEN_A_SECOND, 0, SECOND, MILLISECOND) == list(range(0, SECOND, SECOND // 10))


def test_a_refused_start_says_when_the_next_one_is() -> None:
    limits = saying(TEN_A_SECOND)
    limits.take(1, TEN_A_SECOND, 0)
    text = 'limit "api" lets 10/s start: the next one does in 60ms'
    assert limits.refusal(TEN_A_SECOND, 40 * MILLISECOND + 1) == ("rate", text, "api")
    assert limits.free_at("api", 0) == SECOND // 10
    assert limits.free_at("api", SECOND) == SECOND


def test_there_is_no_burst_at_first_and_a_tenth_of_a_second_of_it_later() -> None:
    fast = (Limit("api", rate="1000/s"),)
    limits = saying(fast)
    assert starts_between(limits, fast, 0, 1, 1) == [0]
    assert starts_between(limits, fast, 10 * SECOND, 10 * SECOND + 1, 1) == [10 * SECOND] * 100


def test_a_rate_of_nothing_lets_nothing_start() -> None:
    never = (Limit("api", rate="0/s"),)
    limits = saying(never)
    assert limits.refusal(never, 0) == ("rate", 'limit "api" lets 0/s start: none ever does', "api")
    assert limits.free_at("api", 0) == NEVER


def test_an_attempt_that_runs_already_costs_no_start_but_is_counted() -> None:
    both = (Limit("api", 1, "1/h"),)
    limits = saying(both)
    limits.take(1, both, 0, is_start=False)
    assert limits.refusal(both, 0) is not None
    limits.give(1, 0)
    assert limits.refusal(both, 0) is None


def test_a_rate_is_remembered_while_nobody_names_its_key() -> None:
    hourly = (Limit("api", rate="1/h"),)
    limits = saying(hourly)
    limits.take(1, hourly, 0)
    limits.give(1, 0)
    limits.unsay(0, hourly)
    limits.say(60 * SECOND, hourly)
    assert limits.free_at("api", 60 * SECOND) == 3600 * SECOND


def test_the_key_that_is_idle_longest_is_forgotten_first_and_no_rate_is_broken_by_it() -> None:
    hourly = {name: (Limit(name, rate="1/h"),) for name in "abcd"}
    limits = saying(*hourly.values(), keys_limit=3)
    assert len(limits._keys) == 4, "all are named"
    limits.take(1, hourly["b"], 0)
    limits.give(1, 0)
    for name in "bacd":
        limits.unsay(0, hourly[name])
    assert len(limits._keys) == 3
    limits.say(SECOND, hourly["b"])
    assert limits.free_at("b", SECOND) == 3600 * SECOND, "it may have been used up when it was forgotten"
    assert len(limits._keys) == 3


def test_a_key_that_had_a_start_free_is_forgotten_without_harm() -> None:
    limits = saying(TEN_A_SECOND, keys_limit=1)
    limits.unsay(0, TEN_A_SECOND)
    limits.say(0, TWO)
    limits.unsay(0, TWO)
    limits.say(0, TEN_A_SECOND)
    assert limits.free_at("api", 0) == 0


def test_limits_need_room_for_a_key() -> None:
    with pytest.raises(Invalid, match="keys_limit of at least 1, not 0"):
        Limits(0)


@quick
@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.booleans(), st.lists(st.sampled_from("abc"), max_size=3), st.integers(0, 3)),
        max_size=25,
    )
)
def test_what_is_held_is_what_was_taken_and_not_given_back(
    moves: list[tuple[int, bool, list[str], int]],
) -> None:
    limits = Limits()
    model: dict[int, list[Limit]] = {}
    for fence, is_take, keys, concurrency in moves:
        if is_take:
            model[fence] = [Limit(key, concurrency) for key in keys]
            limits.take(fence, tuple(model[fence]), 0)
        else:
            model.pop(fence, None)
            limits.give(fence, 0)
        shown = {view.key: (view.held, view.concurrency) for view in limits.views({})}
        named = sorted({limit.key for held in model.values() for limit in held})
        assert list(shown) == named
        for key in named:
            said = [limit.concurrency for held in model.values() for limit in held if limit.key == key]
            holders = sum(any(limit.key == key for limit in held) for held in model.values())
            assert shown[key] == (holders, min([some for some in said if some], default=0))
    for fence in list(model):
        limits.give(fence, 0)
    assert len(limits._held) == 0 and limits.views({}) == []


@quick
@given(st.integers(1, 2000), st.lists(st.integers(0, 300 * MILLISECOND), min_size=1, max_size=60))
def test_no_second_sees_more_starts_than_the_rate_and_its_burst(per_s: int, gaps: list[int]) -> None:
    named = (Limit("api", rate=f"{per_s}/s"),)
    limits = saying(named)
    now, starts = 0, []
    for gap in gaps:
        now += gap
        starts += starts_between(limits, named, now, now + 1, 1)
    for first in range(0, len(starts), 7):
        within = sum(starts[first] <= start < starts[first] + SECOND for start in starts)
        assert within <= per_s + max(1, per_s // 10)
