"""The figures that membership promises, with fixed seeds."""

from collections.abc import Callable

import pytest

from tests.sim.membership_figures import (
    Comparison,
    buddy,
    confirmations,
    detection,
    gate_alone,
    lag_gate,
    lifeguard,
    nack,
)


@pytest.mark.parametrize(
    "loss", [0.0, pytest.param(0.05, marks=pytest.mark.long)], ids=["without loss", "with 5 % loss"]
)
def test_a_death_among_100_is_known_to_all_within_seconds_and_nobody_is_falsely_accused(loss: float) -> None:
    found = detection("default", loss=loss)

    assert len(found.times_s) == 30
    assert (found.median_s <= 4.5, found.worst_s <= 7.0, found.false_verdicts) == (True, True, 0), found
    assert found.idle_bytes_per_s <= 600, found
    assert found.joined_s <= 2.5, found


@pytest.mark.long
def test_the_fast_preset_needs_half_the_time_for_twice_the_traffic() -> None:
    found = detection("fast")

    assert (found.median_s <= 3.0, found.worst_s <= 3.5, found.false_verdicts) == (True, True, 0), found
    assert found.idle_bytes_per_s <= 1200, found


@pytest.mark.long
def test_with_the_periods_of_serf_it_takes_as_long_as_serf() -> None:
    found = detection("serf-lan")

    assert found.median_s == pytest.approx(9.9, rel=0.15)
    assert found.false_verdicts == 0


@pytest.mark.parametrize("service_ms", [250, *(pytest.param(ms, marks=pytest.mark.long) for ms in (500, 1000))])
def test_lifeguard_leaves_a_twentieth_of_the_false_verdicts_of_plain_swim(service_ms: int) -> None:
    found = lifeguard(service_ms, seeds=(1,))

    assert found.is_at_least(20), found
    assert found.fewer >= 100, found


@pytest.mark.long
def test_the_lag_gate_alone_takes_plain_swim_to_a_tenth() -> None:
    found = gate_alone(seeds=(1,))

    assert found.is_at_least(10), found


@pytest.mark.long
def test_the_lag_gate_takes_lifeguard_to_a_tenth() -> None:
    found = lag_gate()

    assert found.is_at_least(10), found


@pytest.mark.long
@pytest.mark.parametrize("compare", [nack, buddy, confirmations], ids=lambda compare: str(compare.__name__))
def test_each_safeguard_halves_the_false_verdicts_at_least(compare: Callable[[], Comparison]) -> None:
    found = compare()

    assert found.is_at_least(2), found
    assert found.fewer >= 10, found
