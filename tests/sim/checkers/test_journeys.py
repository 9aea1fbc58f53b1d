"""Checkers of journeys tell every count that cannot be, and let pass whatever was merged of what cores told."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from talka.stats.tally import OTHER_CALLS, StepTally, Tally, fold_calls, merged
from talka.testing.journeys import (
    BUY,
    FIRST,
    LOOK,
    PAGE,
    SECOND,
    JourneyCounts,
    Journeys,
    Manner,
    counts_in,
    discrepancies,
    rows_of,
    tally_of,
    totals_of,
)
from talka.testing.world import World
from talka.wire.jobs import AttemptResult
from talka.work.lifecycle import TaskState
from tests.sim.checkers.jobs import Document, JobRule
from tests.sim.checkers.journeys import JourneysAddUp, RulesAreTrue

MANNER = Manner.of(1)
COUNTS = (JourneyCounts(70, 60, 8), JourneyCounts(41, 41, 0), JourneyCounts(9, 0, 9))


def a_tally(manner: Manner = MANNER) -> Tally:
    return merged([tally_of(manner, shard, counts) for shard, counts in enumerate(COUNTS)])


@pytest.mark.parametrize("seed", range(16))
def test_whatever_was_merged_of_what_cores_told_adds_up(seed: int) -> None:
    assert list(discrepancies(Manner.of(seed), a_tally(Manner.of(seed)))) == []


@pytest.mark.parametrize("seed", range(16))
def test_what_a_core_tells_of_its_requests_is_the_sum_of_its_calls(seed: int) -> None:
    manner = Manner.of(seed | 1)

    assert list(discrepancies(manner, tally_of(manner, 0, JourneyCounts(70, 60, 8)))) == []
    assert tally_of(manner, 0, COUNTS[0]).exchanges == totals_of(manner, COUNTS[0]).exchanges


def test_names_that_were_folded_still_add_up() -> None:
    manner = Manner.of(1 | 4)
    tally = merged([tally_of(manner, shard, JourneyCounts(200, 200, 0)) for shard in range(3)])
    fold_calls(tally.calls)

    assert OTHER_CALLS in tally.calls[PAGE]
    assert list(discrepancies(manner, tally)) == []


def drop_call(tally: Tally) -> None:
    del tally.calls[PAGE][FIRST]


def double_call(tally: Tally) -> None:
    tally.calls[PAGE][SECOND].merge(tally.calls[PAGE][SECOND])


def cut_twice(tally: Tally) -> None:
    tally.interrupted_iterations *= 2


def end_twice(tally: Tally) -> None:
    tally.iterations *= 2


def forget_skipped(tally: Tally) -> None:
    tally.steps[BUY].skipped = 0


def forget_action(tally: Tally) -> None:
    tally.actions.clear()


def count_more_looks(tally: Tally) -> None:
    tally.calls[LOOK]["another"] = StepTally(ok=1)


def lose_a_request(tally: Tally) -> None:
    tally.exchanges.failed -= 1


def forget_a_failure(tally: Tally) -> None:
    tally.steps[PAGE].failed -= 1
    tally.steps[PAGE].ok += 1


@pytest.mark.parametrize(
    "change",
    [
        drop_call,
        double_call,
        cut_twice,
        end_twice,
        forget_skipped,
        forget_action,
        count_more_looks,
        lose_a_request,
        forget_a_failure,
    ],
)
def test_what_cannot_be_is_told(change: Callable[[Tally], None]) -> None:
    tally = a_tally()

    change(tally)

    assert list(discrepancies(MANNER, tally))


def test_iterations_end_after_their_time_or_are_cut() -> None:
    journeys = Journeys()
    journeys.begin(0, 8, is_slow=True)
    journeys.advance(1_200_000_000)
    assert journeys.counts == JourneyCounts(8, 6, 0) and not journeys.are_over

    journeys.cut()

    assert journeys.counts == JourneyCounts(8, 6, 2) and journeys.are_over


def test_rows_of_which_nothing_was_counted_are_not_told() -> None:
    assert rows_of(MANNER, 0, JourneyCounts()) == []
    assert {row.name for row in rows_of(MANNER, 0, JourneyCounts(started=3))} == {PAGE}


# Results against what cores did.


def a_core(attempt: int, shard: int, counts: JourneyCounts, *, has_ended_well: bool = True, **more: Any) -> Any:
    known = more.get("known", counts)
    return SimpleNamespace(
        attempt=attempt,
        arm=SimpleNamespace(workflow="Shop", shard=SimpleNamespace(index=shard)),
        manner=MANNER,
        journeys=SimpleNamespace(counts=counts),
        known=known,
        reported=counts,
        started=counts.started,
        most_under_way=known.under_way,
        has_ended_well=has_ended_well,
    )


def a_checker(*cores: Any) -> tuple[World, JourneysAddUp]:
    ledger: Any = SimpleNamespace(cores={"job": list(cores)})
    return World(0), JourneysAddUp(ledger)


def document(tally: Tally, lost: bool = False, **more: Any) -> Document:
    gaps = [("Shop", 0, 0, 1)] if lost else []
    return Document("job", {"Shop": tally}, {"Shop": TaskState.COMPLETED}, gaps, **{"rules": [], "aborted": "", **more})


def judged(world: World, checker: JourneysAddUp, tally: Tally, result: AttemptResult, *, lost: bool = False) -> str:
    host: Any = SimpleNamespace()
    checker.on_attempt(world, result)
    checker.on_document(world, host, document(tally, lost))
    return "\n".join(violation.text for violation in world.violations)


def test_a_result_of_all_that_cores_counted_is_let_pass() -> None:
    world, checker = a_checker(a_core(1, 0, JourneyCounts(9, 7, 2)))
    tally = tally_of(MANNER, 0, JourneyCounts(9, 7, 2))

    assert judged(world, checker, tally, AttemptResult("job", 1, tally, [])) == ""
    assert (checker.counted, checker.whole) == (JourneyCounts(9, 7, 2), 1)


@pytest.mark.parametrize("counts", [JourneyCounts(9, 7, 0), JourneyCounts(8, 7, 1), JourneyCounts(10, 8, 2)])
def test_a_result_of_fewer_or_more_is_told_where_nothing_was_lost(counts: JourneyCounts) -> None:
    world, checker = a_checker(a_core(1, 0, JourneyCounts(9, 7, 2)))
    tally = tally_of(MANNER, 0, counts)

    assert "nothing was lost" in judged(world, checker, tally, AttemptResult("job", 1, tally, []))


def test_of_a_core_that_was_lost_what_it_said_at_some_instant_is_enough_if_that_is_told() -> None:
    core = a_core(1, 0, JourneyCounts(9, 7, 0), has_ended_well=False, known=JourneyCounts(5, 3, 0))
    tally = tally_of(MANNER, 0, JourneyCounts(5, 3, 0))
    result = AttemptResult("job", 1, tally, [], is_lost=True)

    assert judged(*a_checker(core), tally, result, lost=True) == ""
    assert "nothing was lost" in judged(*a_checker(core), tally, result)


def test_more_iterations_under_way_than_can_have_been_lost_are_told() -> None:
    tally = tally_of(MANNER, 0, JourneyCounts(9, 5, 1))
    result = AttemptResult("job", 1, tally, [])

    text = judged(*a_checker(a_core(1, 0, JourneyCounts(9, 7, 2))), tally, result, lost=True)

    assert "3 iterations neither ended nor were cut, and 0 can have been lost" in text


def test_a_result_that_is_not_the_sum_of_its_attempts_is_told() -> None:
    tally = tally_of(MANNER, 0, JourneyCounts(9, 7, 2))
    twice = merged([tally, tally])
    checked = a_checker(a_core(1, 0, JourneyCounts(9, 7, 2)))

    assert "those accepted" in judged(*checked, twice, AttemptResult("job", 1, tally, []), lost=True)
    assert counts_in(twice) == JourneyCounts(18, 14, 4)


# Rules.


@pytest.mark.parametrize(("value", "is_told"), [(0.5, False), (0.25, True), (None, True)])
def test_failed_is_held_against_both_shares(value: float | None, is_told: bool) -> None:
    tally = Tally(steps={"get": StepTally(ok=3, failed=1)})
    tally.exchanges.ok = tally.exchanges.failed = 4
    world, checker = World(0), RulesAreTrue()
    host: Any = SimpleNamespace()

    checker.on_document(world, host, document(tally, rules=[JobRule(None, "failed < 1%", value)]))

    assert bool(world.violations) is is_told


def test_a_job_that_a_rule_stopped_is_not_completed() -> None:
    world, checker = World(0), RulesAreTrue()
    host: Any = SimpleNamespace()

    checker.on_document(world, host, document(Tally(), aborted="failed < 1% abort"))

    assert [violation.invariant for violation in world.violations] == ["rules"]
