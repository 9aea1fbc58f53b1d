from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.clients.overload import Level, Overload, OverloadConfig
from talka.errors import Invalid
from talka.units import MILLISECOND, SECOND

quick = settings(deadline=None, derandomize=True, max_examples=150)


def sampled(overload: Overload, *lags_ms: int, from_s: int = 0) -> list[Level]:
    return [
        overload.sample(from_s * SECOND + turn * SECOND // 10, lag_ns=lag_ms * MILLISECOND)
        for turn, lag_ms in enumerate(lags_ms)
    ]


@pytest.mark.parametrize(
    ("late_ms", "level"), [(199, 0), (200, 1), (499, 1), (500, 2), (1999, 2), (2000, 3), (60_000, 3)]
)
def test_lateness_is_judged_by_bounds_that_hold_everywhere(late_ms: int, level: int) -> None:
    assert Overload().sample(0, lag_ns=late_ms * MILLISECOND) == level


def test_how_late_the_loop_is_while_the_node_reads_what_it_begins_with_is_no_load() -> None:
    overload = Overload(OverloadConfig(warm_up=1))

    assert overload.sample(0, lag_ns=3 * SECOND, cpu_percent=100, is_starting=True) is Level.NORMAL
    assert overload.sample(SECOND, lag_ns=60 * MILLISECOND) is Level.NORMAL, "nor is it what is usual here"
    assert overload.sample(2 * SECOND, lag_ns=3 * SECOND) is Level.OVERLOADED


@pytest.mark.parametrize(
    ("late_ms", "level"),
    [
        (119, 0),  # 19 % above the usual 100 ms
        (120, 1),
        (199, 1),  # 99 % above, and healthy by its bound
        (200, 2),  # busy by its bound
        (500, 3),  # stressed by its bound
    ],
)
def test_what_is_far_above_the_usual_counts_as_one_level_more(late_ms: int, level: int) -> None:
    overload = Overload()
    sampled(overload, *[100] * 20)

    assert sampled(overload, late_ms, from_s=2) == [level]


def test_what_is_small_is_not_far_above_anything() -> None:
    overload = Overload()
    sampled(overload, *[0] * 20)

    assert sampled(overload, 59, from_s=2) == [Level.NORMAL]
    assert sampled(overload, 60, from_s=2) == [Level.BUSY]


def test_before_there_is_a_baseline_only_the_bounds_count() -> None:
    overload = Overload(OverloadConfig(warm_up=3))

    assert sampled(overload, 0, 150, 0) == [0, 0, 0]
    assert sampled(overload, 150, from_s=1) == [Level.BUSY]


def test_a_load_that_has_become_usual_still_counts_by_the_bounds() -> None:
    overload = Overload()

    levels = sampled(overload, *[600] * 50)

    assert levels == [Level.STRESSED] * 50


def test_the_level_rises_at_once_and_falls_after_five_lower_samples() -> None:
    overload = Overload(OverloadConfig(warm_up=1000))

    assert sampled(overload, 0, 2000, 0, 0, 0, 0, 0) == [0, 3, 3, 3, 3, 3, 0]


def test_whoever_is_refused_waits_for_as_many_samples_as_must_still_be_lower() -> None:
    overload = Overload(OverloadConfig(warm_up=1000), every_ns=SECOND)
    left_s = []
    for lag_ms in (500, 0, 0, 500, 0, 0, 0, 0):
        sampled(overload, lag_ms)
        left_s.append(overload.retry_after_ns(0) / SECOND)

    assert left_s == [5, 4, 3, 5, 4, 3, 2, 1]
    assert sampled(overload, 0) == [0]


def test_the_level_falls_no_lower_than_the_highest_of_the_calm_samples() -> None:
    overload = Overload(OverloadConfig(warm_up=1000))

    assert sampled(overload, 2000, 0, 250, 0, 0, 0)[-1] is Level.BUSY
    assert sampled(overload, 0, 0, 0, 0, 0)[-1] is Level.NORMAL


def test_a_relapse_starts_the_count_of_calm_samples_anew() -> None:
    overload = Overload(OverloadConfig(warm_up=1000))

    assert sampled(overload, 2000, 0, 0, 0, 0, 2000, 0, 0, 0, 0)[-1] is Level.OVERLOADED


@pytest.mark.parametrize(
    ("waited_ms", "level"), [(499, 0), (500, 1), (1999, 1), (2000, 2), (4999, 2), (5000, 3)], ids=str
)
def test_the_age_of_the_oldest_that_waits_is_judged_by_bounds(waited_ms: int, level: int) -> None:
    assert Overload().sample(0, lag_ns=0, queue_ns=waited_ms * MILLISECOND) == level


@pytest.mark.parametrize(
    ("percent", "level"), [(84, 0), (85, 1), (94, 1), (95, 2), (97, 2), (98, 3), (100, 3)], ids=str
)
def test_memory_that_is_full_counts_by_its_bounds_alone(percent: int, level: int) -> None:
    assert Overload().sample(0, lag_ns=0, memory_percent=percent) == level


@pytest.mark.parametrize(
    ("percent", "late_ms", "level"),
    [
        (84, 0, 0),
        (85, 0, 1),
        (100, 0, 1),  # nothing waits: a load test on the same machine fills its processors
        (94, 200, 1),
        (95, 200, 2),
        (100, 200, 2),
        (98, 500, 2),
        (99, 500, 3),
        (100, 2000, 3),
    ],
    ids=str,
)
def test_a_full_processor_counts_as_one_level_more_than_what_waits_and_no_more(
    percent: int, late_ms: int, level: int
) -> None:
    overload = Overload()
    for turn in range(9):
        assert overload.sample(turn, lag_ns=0, cpu_percent=percent) <= Level.BUSY

    assert overload.sample(9, lag_ns=late_ms * MILLISECOND, cpu_percent=percent) == level


def test_a_processor_that_one_long_turn_of_the_loop_fills_is_not_full() -> None:
    overload = Overload()

    assert overload.sample(0, lag_ns=200 * MILLISECOND, cpu_percent=100) is Level.BUSY
    assert overload.values["cpu_percent"] == 10


def answered(overload: Overload, *took_ms: int, from_s: int = 0) -> list[Level]:
    """Ten times a second."""
    return [
        overload.sample(from_s * SECOND + turn * SECOND // 10, lag_ns=0, latency_ns=took * MILLISECOND)
        for turn, took in enumerate(took_ms)
    ]


@pytest.mark.parametrize(("took_ms", "level"), [(499, 0), (500, 1), (999, 1), (1000, 2), (2999, 2), (3000, 3)], ids=str)
def test_how_long_requests_take_is_judged_by_bounds(took_ms: int, level: int) -> None:
    assert answered(Overload(), *[took_ms] * 3)[-1] == level


def test_one_slow_request_says_nothing_and_neither_do_two() -> None:
    assert answered(Overload(), 9000, 9000) == [0, 0]


def test_requests_of_a_while_ago_say_nothing_of_now() -> None:
    overload = Overload(OverloadConfig(calm=1))
    answered(overload, 3000, 3000, 3000)

    assert overload.sample(5 * SECOND, lag_ns=0) is Level.OVERLOADED
    assert overload.sample(6 * SECOND, lag_ns=0) is Level.NORMAL
    assert overload.values["latency_seconds"] == 0


def test_requests_that_take_longer_and_longer_count_as_one_level_more_before_they_reach_it() -> None:
    config = OverloadConfig(warm_up=1000)

    # 20 ms more with each sample, ten of them a second: in two seconds it is 400 ms more.
    assert answered(Overload(config), 60, 80, 100, 120, 140) == [0, 0, 0, 0, 1]
    assert answered(Overload(config), 100, 100, 100, 100) == [0] * 4
    assert answered(Overload(config), 480, 400, 320, 240) == [0] * 4, "they get faster"
    assert answered(Overload(config), 60, 600, 1200, 1800)[-1] is Level.STRESSED, "and by no more than one"


def test_requests_of_one_instant_have_no_trend() -> None:
    overload = Overload()

    levels = [overload.sample(0, lag_ns=0, latency_ns=took_ns) for took_ns in (0, SECOND // 10, SECOND // 5)]

    assert levels == [0, 0, 0]
    assert overload.values["latency_rise_ratio"] == 0


def test_requests_that_take_much_longer_than_usual_count_as_one_level_more() -> None:
    overload = Overload()
    answered(overload, *[300] * 20)

    assert answered(overload, *[450] * 10, from_s=9)[-1] is Level.BUSY


def test_the_worst_signal_counts_and_each_is_told() -> None:
    overload = Overload()

    for _ in range(9):
        overload.sample(0, lag_ns=0, cpu_percent=99)
    level = overload.sample(
        0, lag_ns=250 * MILLISECOND, queue_ns=2 * SECOND, cpu_percent=99, memory_percent=86, latency_ns=SECOND
    )

    assert level is Level.OVERLOADED
    assert overload.levels == {"late": 1, "queue": 2, "latency": 0, "cpu": 3, "memory": 1}
    assert overload.values == {
        "late_seconds": 0.25,
        "queue_seconds": 2.0,
        "latency_seconds": 1.0,
        "latency_rise_ratio": 0.0,
        "cpu_percent": 99,
        "memory_percent": 86,
    }


def test_that_nothing_was_wrong_for_long_makes_nobody_wait() -> None:
    overload = Overload()
    sampled(overload, 0)

    assert overload.retry_after_ns(1000 * SECOND) == SECOND // 2


def test_whoever_is_refused_waits_longer_the_higher_the_level_is_and_the_longer_it_lasts() -> None:
    overload = Overload(OverloadConfig(warm_up=1000, retry_most_ns=10 * SECOND))

    sampled(overload, 500)
    assert overload.retry_after_ns(0) == SECOND // 2, "five samples of a tenth of a second"
    sampled(overload, 2000, from_s=1)
    assert overload.retry_after_ns(SECOND) == SECOND
    sampled(overload, 2000, from_s=9)
    assert overload.retry_after_ns(9 * SECOND) == 4 * SECOND, "a quarter of what it has lasted, twice"
    assert overload.retry_after_ns(100 * SECOND) == 10 * SECOND


@pytest.mark.parametrize(
    "wrong",
    [
        *({"late_ns": (2, 1, 3)}, {"late_ns": (0, 1, 3)}, {"above_percent": (1, 3, 2)}),
        *({"late_floor_ns": 0}, {"calm": 0}, {"recent": 2}),
    ],
    ids=str,
)
def test_bounds_without_a_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="overload"):
        OverloadConfig(**wrong)


@given(lags_ms=st.lists(st.sampled_from([0, 100, 250, 700, 3000]), min_size=1, max_size=40))
@quick
def test_a_level_is_never_below_what_its_bound_says_and_falls_only_when_all_was_calm(lags_ms: list[int]) -> None:
    levels = sampled(Overload(), *lags_ms)

    for turn, (lag_ms, level) in enumerate(zip(lags_ms, levels, strict=True)):
        assert level >= sum(lag_ms >= bound for bound in (200, 500, 2000))
        if turn and level < levels[turn - 1]:
            assert turn >= 5 and levels[turn - 5 : turn] == [levels[turn - 1]] * 5
