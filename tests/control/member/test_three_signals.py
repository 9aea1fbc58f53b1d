import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talka.control.member.three_signals import (
    HealthDecision,
    HealthSignals,
    Liveness,
    Progress,
    Readiness,
    decide,
)

HEARD, SILENT, GONE = Liveness
READY, UNREADY, LEAVING = Readiness
IDLE, MOVING, STALLED, STUCK = Progress
EVERY = [HealthSignals(*signals) for signals in itertools.product(Liveness, Readiness, Progress)]
a_signal = st.builds(HealthSignals, st.sampled_from(Liveness), st.sampled_from(Readiness), st.sampled_from(Progress))


@pytest.mark.parametrize(
    ("signals", "word"),
    [
        ((HEARD, READY, IDLE), "route"),
        ((HEARD, READY, MOVING), "route"),
        ((HEARD, READY, STALLED), "investigate"),
        ((HEARD, UNREADY, IDLE), "hold"),
        ((HEARD, UNREADY, MOVING), "hold"),
        ((HEARD, UNREADY, STALLED), "hold"),
        ((HEARD, READY, STUCK), "drain"),
        ((HEARD, UNREADY, STUCK), "drain"),
        ((HEARD, LEAVING, IDLE), "drain"),
        ((HEARD, LEAVING, MOVING), "drain"),
        ((HEARD, LEAVING, STALLED), "drain"),
        ((HEARD, LEAVING, STUCK), "drain"),
        ((SILENT, READY, IDLE), "hold"),
        ((SILENT, READY, STALLED), "hold"),
        ((SILENT, UNREADY, MOVING), "hold"),
        ((SILENT, LEAVING, MOVING), "drain"),
        ((SILENT, READY, STUCK), "drain"),
        ((GONE, READY, IDLE), "evict"),
        ((GONE, READY, MOVING), "evict"),
        ((GONE, UNREADY, STALLED), "evict"),
        ((GONE, LEAVING, STUCK), "evict"),
    ],
)
def test_every_row_of_the_table(signals: tuple[Liveness, Readiness, Progress], word: str) -> None:
    assert decide(HealthSignals(*signals)).word == word


def test_a_node_that_is_well_is_given_work() -> None:
    assert decide(HealthSignals()) is HealthDecision.ROUTE


@given(a_signal, a_signal)
def test_worse_signals_never_lead_to_a_milder_decision(one: HealthSignals, other: HealthSignals) -> None:
    worse = HealthSignals(*map(max, zip(one, other, strict=True)))

    assert decide(worse) >= max(decide(one), decide(other))


@given(a_signal)
def test_only_one_that_is_gone_is_given_up_and_only_a_ready_one_that_is_heard_is_given_work(
    signals: HealthSignals,
) -> None:
    decision = decide(signals)

    assert (decision is HealthDecision.EVICT) == (signals.liveness is GONE)
    takes_work = (signals.liveness, signals.readiness) == (HEARD, READY) and signals.progress is not STUCK
    assert (decision <= HealthDecision.INVESTIGATE) == takes_work


@given(a_signal, st.sampled_from(Readiness), st.sampled_from(Progress))
def test_neither_load_nor_lack_of_progress_makes_anybody_dead(
    signals: HealthSignals, readiness: Readiness, progress: Progress
) -> None:
    other = signals._replace(readiness=readiness, progress=progress)

    assert (decide(signals) is HealthDecision.EVICT) == (decide(other) is HealthDecision.EVICT)


def test_every_decision_is_come_to_and_has_a_word_of_its_own() -> None:
    assert {decide(signals) for signals in EVERY} == set(HealthDecision)
    assert [decision.word for decision in HealthDecision] == ["route", "investigate", "hold", "drain", "evict"]
