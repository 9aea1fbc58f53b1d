"""A member's score of itself, the lag gate, and what it leaves out when it does badly."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.membership.local_health import Degradation, LocalHealth, degradation_of
from talka.cluster.membership.presets import PRESETS
from talka.units import MILLISECOND, SECOND
from tests.sim.variants import without

CONFIG = PRESETS["serf-lan"]  # intervals of 1 s
LIMIT = CONFIG.lag_limit_ns
LATE = LIMIT + 1
quick = settings(deadline=None, derandomize=True, max_examples=150)


def health_of(score: int = 0) -> LocalHealth:
    health = LocalHealth(CONFIG)
    for _ in range(score):
        health.refuted()
    assert health.score == score
    return health


def test_a_member_starts_well() -> None:
    health = health_of()

    assert (health.score, health.multiplier, health.level) == (0, 1, Degradation.NORMAL)
    assert not health.gate_closed(0)


def test_a_successful_probe_lowers_the_score_by_one_and_not_below_zero() -> None:
    health = health_of(score=1)

    health.probe_succeeded()
    assert (health.score, health.multiplier) == (0, 1)
    health.probe_succeeded()
    assert health.score == 0


@pytest.mark.parametrize(
    ("expected", "received", "raised_by"), [(0, 0, 1), (3, 3, 0), (3, 2, 1), (3, 0, 3), (1, 0, 1), (2, 5, 0)]
)
def test_a_failed_probe_raises_the_score_by_the_missing_nacks_or_one_without_helpers(
    expected: int, received: int, raised_by: int
) -> None:
    health = health_of(score=1)

    health.probe_failed(nacks_expected=expected, nacks_received=received)

    assert health.score == 1 + raised_by
    assert health.multiplier == 2 + raised_by


def test_having_to_refute_raises_the_score_by_one() -> None:
    health = health_of()

    health.refuted()

    assert health.score == 1


def test_the_score_ends_at_the_worst() -> None:
    health = health_of(score=7)

    health.probe_failed(3, 0)

    assert (health.score, health.multiplier) == (8, 9)


def test_the_worst_is_configured() -> None:
    health = LocalHealth(msgspec.structs.replace(CONFIG, awareness_max=2))

    health.probe_failed(3, 0)

    assert health.score == 2


@without("local_health")
def test_without_the_safeguard_the_score_never_moves() -> None:
    health = health_of()

    health.probe_failed(3, 0)
    health.refuted()
    health.handled(0, LATE)

    assert (health.score, health.multiplier) == (0, 1)
    assert health.gate_closed(0)


@without("lag_gate")
def test_without_the_lag_gate_lag_is_not_measured_and_probes_still_count() -> None:
    health = health_of()

    health.handled(0, 3 * SECOND)
    health.ticked(0, 3 * SECOND)

    assert not health.gate_closed(0)
    assert (health.score, health.level) == (0, Degradation.NORMAL)
    health.probe_failed(0, 0)
    assert health.score == 1


def test_a_datagram_handled_late_closes_the_gate_and_raises_the_score() -> None:
    health = health_of()

    health.handled(0, LIMIT)
    assert (health.score, health.gate_closed(0)) == (0, False)
    health.handled(0, LATE)
    assert (health.score, health.gate_closed(0)) == (1, True)


def test_a_datagram_of_unknown_age_neither_closes_the_gate_nor_opens_it() -> None:
    health = health_of()
    health.handled(0, -1)
    assert (health.score, health.gate_closed(0)) == (0, False)
    health.handled(0, 10 * SECOND)
    assert (health.score, health.gate_closed(0)) == (1, True)

    health.handled(1, -1)

    assert (health.score, health.gate_closed(1)) == (1, True)


def test_a_late_tick_closes_the_gate_and_raises_the_score() -> None:
    health = health_of()

    health.ticked(0, LIMIT)
    assert (health.score, health.gate_closed(0)) == (0, False)
    health.ticked(0, LATE)
    assert (health.score, health.gate_closed(0)) == (1, True)


def test_one_stall_raises_the_score_once_however_many_datagrams_waited() -> None:
    health = health_of()

    for number in range(20):
        health.handled(number, 400 * MILLISECOND - number)
    health.ticked(20, 400 * MILLISECOND)

    assert health.score == 1


def test_a_member_that_stays_late_is_raised_once_each_probe_interval() -> None:
    health = health_of()

    health.handled(0, LATE)
    health.handled(SECOND - 1, LATE)
    assert health.score == 1
    health.handled(SECOND, LATE)
    assert health.score == 2
    health.ticked(2 * SECOND - 1, LATE)
    assert health.score == 2
    health.ticked(2 * SECOND, LATE)
    assert health.score == 3


def test_the_first_late_observation_counts_also_on_a_clock_below_zero() -> None:
    health = health_of()

    health.handled(-5 * SECOND, LATE)

    assert (health.score, health.gate_closed(-5 * SECOND)) == (1, True)


def test_a_datagram_handled_young_opens_the_gate() -> None:
    health = health_of()
    health.ticked(0, 3 * SECOND)
    assert health.level.name == "SEVERE"

    health.handled(1, LIMIT)

    assert not health.gate_closed(1)
    assert health.level.name == "NORMAL"


def test_a_punctual_tick_does_not_open_the_gate_before_its_time() -> None:
    health = health_of()
    health.handled(0, 3 * SECOND)

    health.ticked(2 * SECOND - 1, 0)

    assert health.gate_closed(2 * SECOND - 1)
    assert health.level.name == "SEVERE"


def test_when_nothing_arrives_the_gate_opens_two_intervals_after_the_last_late_observation() -> None:
    health = health_of()
    health.handled(0, 3 * SECOND)
    health.handled(SECOND, 3 * SECOND)

    assert health.gate_closed(3 * SECOND - 1)
    assert not health.gate_closed(3 * SECOND)
    assert health.level.name == "SEVERE"
    health.ticked(3 * SECOND, 0)
    assert health.level.name == "ELEVATED"  # by its score of 2 alone


def test_a_tick_that_is_late_itself_keeps_the_gate_closed() -> None:
    health = health_of()
    health.handled(0, LATE)

    health.ticked(5 * SECOND, LATE)

    assert health.gate_closed(7 * SECOND - 1)
    assert not health.gate_closed(7 * SECOND)


@pytest.mark.parametrize(
    ("score", "level"),
    [
        (0, Degradation.NORMAL),
        (1, Degradation.NORMAL),
        (2, Degradation.ELEVATED),
        (3, Degradation.ELEVATED),
        (4, Degradation.HIGH),
        (5, Degradation.HIGH),
        (6, Degradation.SEVERE),
        (7, Degradation.CRITICAL),
        (8, Degradation.CRITICAL),
    ],
)
def test_the_level_follows_the_score(score: int, level: Degradation) -> None:
    assert health_of(score=score).level is level


@pytest.mark.parametrize(
    ("lag_ms", "level"),
    [
        (499, Degradation.NORMAL),
        (500, Degradation.ELEVATED),
        (999, Degradation.ELEVATED),
        (1000, Degradation.HIGH),
        (1999, Degradation.HIGH),
        (2000, Degradation.SEVERE),
        (4000, Degradation.SEVERE),
        (4001, Degradation.CRITICAL),
    ],
)
def test_the_level_follows_the_lag_in_probe_intervals(lag_ms: int, level: Degradation) -> None:
    health = health_of()

    health.handled(0, lag_ms * MILLISECOND)

    assert health.level is level


def test_the_level_is_the_worse_of_the_two_and_the_lag_is_the_last_one() -> None:
    health = health_of(score=4)

    health.handled(0, 200 * MILLISECOND)
    assert health.level.name == "HIGH"
    health.handled(1, 5 * SECOND)
    assert health.level.name == "CRITICAL"
    health.handled(2, 200 * MILLISECOND)
    assert health.level.name == "HIGH"


def test_what_each_level_leaves_out() -> None:
    table = [
        (
            level.name,
            level.skip_probes,
            level.gossip_stretch,
            level.may_lead,
            level.must_not_lead,
            level.piggyback_percent,
            level.takes_work,
        )
        for level in Degradation
    ]

    assert table == [
        ("NORMAL", 0, 1, True, False, 100, True),
        ("ELEVATED", 0, 1, True, False, 100, True),
        ("HIGH", 25, 2, True, False, 75, True),
        ("SEVERE", 50, 2, False, False, 50, True),
        ("CRITICAL", 75, 4, False, True, 50, False),
    ]
    assert list(Degradation) == sorted(Degradation)
    assert [level.value for level in Degradation] == [0, 1, 2, 3, 4]


def late_for(seconds: int) -> tuple[LocalHealth, int]:
    health = health_of()
    for second in range(seconds):
        health.ticked(second * SECOND, LATE)
    return health, seconds * SECOND


def test_what_lateness_made_of_the_score_is_forgotten_once_it_is_over() -> None:
    health, now = late_for(7)
    assert (health.score, health.level) == (7, Degradation.CRITICAL)

    scores = []
    for second in range(12):
        health.ticked(now + second * SECOND, 0)
        scores.append(health.score)

    assert scores == [7, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0]


def test_what_probes_made_of_the_score_is_not_forgotten_with_time() -> None:
    health, now = late_for(2)
    for _ in range(3):
        health.probe_failed(0, 0)

    for second in range(60):
        health.ticked(now + second * SECOND, 0)

    assert health.score == 3


def test_what_a_probe_took_back_is_not_taken_back_twice() -> None:
    health, now = late_for(3)
    health.probe_succeeded()
    health.probe_failed(0, 0)
    health.probe_failed(0, 0)

    for second in range(60):
        health.ticked(now + second * SECOND, 0)

    assert health.score == 2


def test_a_level_that_a_later_version_announces_is_the_worst_there_is() -> None:
    assert [degradation_of(number) for number in range(5)] == list(Degradation)
    assert degradation_of(77) is Degradation.CRITICAL


STEP = st.tuples(
    st.integers(0, 2 * SECOND),
    st.one_of(
        st.just(("succeeded", 0, 0)),
        st.just(("refuted", 0, 0)),
        st.tuples(st.just("failed"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.sampled_from(["handled", "ticked"]), st.sampled_from([0, LIMIT, LATE, 5 * SECOND]), st.just(0)),
    ),
)


@given(steps=st.lists(STEP, max_size=40))
@quick
def test_whatever_happens_the_score_stays_in_range_and_the_gate_is_closed_as_a_history_says(
    steps: list[tuple[int, tuple[str, int, int]]],
) -> None:
    health = health_of()
    now = 0
    last_late: int | None = None
    for wait_ns, (event, first, second) in steps:
        now += wait_ns
        match event:
            case "succeeded":
                health.probe_succeeded()
            case "refuted":
                health.refuted()
            case "failed":
                health.probe_failed(first, second)
            case "handled":
                health.handled(now, first)
            case _:
                health.ticked(now, first)
        if event in ("handled", "ticked") and first > LIMIT:
            last_late = now
        elif event == "handled":
            last_late = None

        assert 0 <= health.score <= 8
        assert health.multiplier == health.score + 1
        assert health.gate_closed(now) == (last_late is not None and now < last_late + 2 * SECOND)
