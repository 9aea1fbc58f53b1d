"""Whether the generator kept up."""

import pytest

from talka.report.generator import late_from_us, median_of, verdict_of, worst
from talka.stats.tally import GeneratorTally, StepTally
from talka.units import SECOND


def health(cpu: float, *, loop_lag_us: int | None = None, wall_ns: int = 10 * SECOND) -> GeneratorTally:
    found = GeneratorTally(cpu_ns=round(cpu * wall_ns), wall_ns=wall_ns)
    if loop_lag_us is not None:
        found.loop_lag.record(loop_lag_us)
    return found


@pytest.mark.parametrize(("median_us", "limit_us"), [(0, 1_000), (10_000, 1_000), (20_000, 1_000), (200_000, 10_000)])
def test_late_is_more_than_a_millisecond_and_a_twentieth_of_the_median(median_us: int, limit_us: int) -> None:
    assert late_from_us(median_us) == limit_us


def test_the_median_is_that_of_all_steps() -> None:
    quick, slow = StepTally(), StepTally()
    quick.response_time.record(100, 1)
    slow.response_time.record(900, 2)
    assert (median_of([quick, slow]), median_of([])) == (900, 0)


@pytest.mark.parametrize(
    ("found", "start_lag_us", "verdict"),
    [
        (health(0.99), 1_000, "on time"),
        (health(0.01), 1_001, "disturbed"),
        (health(0.84), 1_001, "disturbed"),
        (health(0.85), 1_001, "saturated"),
        (health(0.85, wall_ns=SECOND // 2), 1_001, "disturbed"),
        (health(0.5, loop_lag_us=1_000), 2_000, "saturated"),
        (health(0.5, loop_lag_us=999), 2_001, "disturbed"),
        (health(0.19, loop_lag_us=9_000), 2_000, "disturbed"),
        (GeneratorTally(), 2_000, "disturbed"),
    ],
)
def test_late_and_busy_is_saturated_and_late_and_idle_is_disturbed(
    found: GeneratorTally, start_lag_us: int, verdict: str
) -> None:
    assert verdict_of(found, start_lag_us, 1_000) == verdict


@pytest.mark.parametrize(("cpu", "wall_ns", "verdict"), [(0.84, SECOND, "on time"), (0.85, SECOND, "saturated")])
def test_where_nothing_is_due_at_an_instant_a_core_without_cpu_left_is_saturated(
    cpu: float, wall_ns: int, verdict: str
) -> None:
    assert verdict_of(health(cpu, wall_ns=wall_ns), None, 0) == verdict
    assert verdict_of(health(cpu, wall_ns=wall_ns // 2), None, 0) == "on time"


def test_the_worst_of_all_cores_counts() -> None:
    assert worst([]) == worst(["on time"]) == "on time"
    assert worst(["on time", "disturbed"]) == "disturbed"
    assert worst(["disturbed", "saturated", "on time"]) == "saturated"
