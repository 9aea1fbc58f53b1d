from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.clients.overload import (
    SHED_FROM,
    Level,
    Overload,
    OverloadConfig,
    is_shed,
    report_interval_ms,
)
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

    assert overload.sample(0, lag_ns=3 * SECOND, cpu_percent=100, is_starting=True) is Level.HEALTHY
    assert overload.sample(SECOND, lag_ns=60 * MILLISECOND) is Level.HEALTHY, "nor is it what is usual here"
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

    assert sampled(overload, 59, from_s=2) == [Level.HEALTHY]
    assert sampled(overload, 60, from_s=2) == [Level.BUSY]


def test_before_there_is_a_baseline_only_the_bounds_count() -> None:
    overload = Overload(OverloadConfig(warm_up=3))

    assert sampled(overload, 0, 150, 0) == [0, 0, 0]
    assert sampled(overload, 150, from_s=1) == [Level.BUSY]


def test_a_load_that_has_become_usual_still_counts_by_the_bounds() -> None:
    overload = Overload()

    levels = sampled(overload, *[600] * 50)

    assert levels == [Level.STRESSED] * 50


def test_a_full_processor_alone_means_busy_and_no_more() -> None:
    overload = Overload()

    assert overload.sample(0, lag_ns=0, cpu_percent=89) is Level.HEALTHY
    assert overload.sample(0, lag_ns=0, cpu_percent=100) is Level.BUSY


def test_the_level_rises_at_once_and_falls_after_five_lower_samples() -> None:
    overload = Overload(OverloadConfig(warm_up=1000))

    assert sampled(overload, 0, 2000, 0, 0, 0, 0, 0) == [0, 3, 3, 3, 3, 3, 0]


def test_so_many_lower_samples_are_left_before_the_level_can_fall() -> None:
    overload = Overload(OverloadConfig(warm_up=1000))
    left = []
    for lag_ms in (2000, 0, 0, 2000, 0, 0, 0, 0):
        sampled(overload, lag_ms)
        left.append((overload.level, overload.samples_to_fall))

    assert left == [(3, 5), (3, 4), (3, 3), (3, 5), (3, 4), (3, 3), (3, 2), (3, 1)]
    assert sampled(overload, 0) == [0]


def test_the_level_falls_no_lower_than_the_highest_of_the_calm_samples() -> None:
    overload = Overload(OverloadConfig(warm_up=1000))

    assert sampled(overload, 2000, 0, 250, 0, 0, 0)[-1] is Level.BUSY
    assert sampled(overload, 0, 0, 0, 0, 0)[-1] is Level.HEALTHY


def test_a_relapse_starts_the_count_of_calm_samples_anew() -> None:
    overload = Overload(OverloadConfig(warm_up=1000))

    assert sampled(overload, 2000, 0, 0, 0, 0, 2000, 0, 0, 0, 0)[-1] is Level.OVERLOADED


@pytest.mark.parametrize(
    ("level", "shed"), [(0, []), (1, []), (2, ["jobs"]), (3, ["jobs", "submit"])], ids=lambda value: str(value)
)
def test_lists_are_shed_first_then_submissions_and_cancels_never(level: int, shed: list[str]) -> None:
    assert [operation for operation in ("jobs", "submit", "cancel") if is_shed(operation, Level(level))] == shed


def test_of_whoever_is_not_counted_watches_are_shed_alone() -> None:
    assert [operation for operation in SHED_FROM if is_shed(operation, Level.OVERLOADED, is_counted=False)] == ["watch"]
    assert not is_shed("watch", Level.BUSY, is_counted=False)


@pytest.mark.parametrize(
    ("level", "workers", "interval_ms"),
    [(0, 1, 50), (0, 300, 300), (1, 1, 200), (2, 1, 500), (2, 800, 800), (3, 1, 1000), (0, 5000, 1000)],
)
def test_workers_report_less_often_when_there_are_many_or_the_node_is_late(
    level: int, workers: int, interval_ms: int
) -> None:
    assert report_interval_ms(Level(level), workers) == interval_ms


@pytest.mark.parametrize(
    "wrong",
    [{"late_ns": (2, 1, 3)}, {"late_ns": (0, 1, 3)}, {"above_percent": (1, 3, 2)}, {"floor_ns": 0}, {"calm": 0}],
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
