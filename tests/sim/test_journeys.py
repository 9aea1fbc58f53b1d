"""Journeys on a cluster: how iterations ended, what was called, what failed and what is handed on, whatever strikes."""

from functools import partial

import pytest

from talka.stats.tally import CALL_NAMES_KEPT, OTHER_CALLS, merged
from talka.testing.host import Host
from talka.testing.journeys import NAMES_PER_CORE, PAGE, JourneyCounts
from talka.testing.world import World
from talka.units import SECOND
from talka.work.lifecycle import JobState, TaskState
from talka.work.thresholds import Threshold, parse_threshold
from tests.sim import job_orders, jobs
from tests.sim.checkers.jobs import manager_on
from tests.sim.job_orders import Errand
from tests.sim.late import OwnerFalls
from tests.sim.seeds import first_of

ROWS, SLOW, MANY_NAMES, FAILING_ACTION = 1, 2, 4, 8
"""See `Manner`."""
WORKERS = (1, 1, 2, 1)
LENGTH_NS = 8 * SECOND
"""Of the plan of each workflow."""


def a_story(seed: int, *errands: Errand, classes: tuple[str, ...] = ()) -> jobs.Story:
    return jobs.Story(jobs.plan_for(seed, errands, WORKERS, classes=classes), None)


def run(story: jobs.Story) -> World:
    world = story.run()
    assert not world.violations, f"{story.plan.lines()[0]}: {world.violations[0]}"
    return world


def truth(story: jobs.Story) -> JourneyCounts:
    runs = [run for runs in story.ledger.cores.values() for run in runs]
    return sum((run.journeys.counts for run in runs), JourneyCounts())


# How iterations end.

FAILED = parse_threshold("failed < 30% abort after 4s")
ENDS: dict[str, tuple[int, int, tuple[Threshold, ...], JobState]] = {
    "the plan is over": (ROWS | SLOW, 0, (), JobState.COMPLETED),
    "it is cancelled": (ROWS | SLOW, 9 * SECOND, (), JobState.CANCELLED),
    "a rule stops it": (ROWS | SLOW | FAILING_ACTION, 0, (FAILED,), JobState.FAILED),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("seed", range(2))
def test_every_iteration_that_began_ended_or_is_counted_as_cut_when(end: str, seed: int) -> None:
    manner, cancel_at_ns, rules, state = ENDS[end]
    story = a_story(
        seed, job_orders.journeys(0, at_ns=3 * SECOND, seed=manner, cancel_at_ns=cancel_at_ns, thresholds=rules)
    )

    run(story)

    assert list(story.history.ended.values()) == [state]
    counted = story.journeys.counted
    assert counted == truth(story)
    assert counted.started == counted.iterations + counted.interrupted
    assert counted.iterations > 0 and counted.interrupted > 0, "some ended within the grace, and some did not"


@pytest.mark.parametrize("seed", first_of(range(6)))
def test_no_iteration_is_silently_missing_whatever_strikes_when_jobs_end(seed: int) -> None:
    errands = [
        job_orders.journeys(
            number,
            at_ns=(3 + 7 * number) * SECOND,
            seed=ROWS | SLOW,
            cancel_at_ns=(3 + 7 * number + 4) * SECOND if number % 2 else 0,
        )
        for number in range(4)
    ]
    story = a_story(seed, *errands, classes=jobs.plan_of(seed).classes)

    run(story)

    counted = story.journeys.counted
    assert counted.iterations + counted.interrupted <= counted.started <= truth(story).started
    assert story.journeys.documents, "the checker has looked at results"


def has_state(state: TaskState, workflow: str, host: Host) -> bool:
    manager = manager_on(host)
    led = list(manager.led.values()) if manager is not None else []
    return any(one.job is not None and one.job.workflows[workflow].state is state for one in led)


def is_ending(host: Host) -> bool:
    """The plan is over, and iterations are still under way."""
    manager = manager_on(host)
    led = list(manager.led.values()) if manager is not None else []
    return any(one.job is not None and one.job.workflows["Journey"].stopped_ns > 0 for one in led)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("cancel_at_ns", [0, 8 * SECOND], ids=["the plan is over", "it is cancelled"])
def test_iterations_under_way_are_all_counted_when_the_owner_falls_while_they_end(seed: int, cancel_at_ns: int) -> None:
    story = a_story(seed, job_orders.journeys(0, at_ns=3 * SECOND, seed=ROWS | SLOW, cancel_at_ns=cancel_at_ns))
    falls = OwnerFalls(story, partial(is_ending))

    run(story)

    assert falls.fell
    assert story.journeys.counted == truth(story)
    assert story.journeys.counted.under_way == 0 and story.journeys.counted.interrupted > 0


# What was called.


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_the_sum_of_what_cores_counted_though_reports_are_lost_repeated_and_overtaken(seed: int) -> None:
    errands = [job_orders.journeys(number, at_ns=(3 + 9 * number) * SECOND, seed=ROWS) for number in range(2)]
    story = a_story(seed, *errands, classes=("loss", "duplicates", "reordering"))

    run(story)

    assert story.journeys.whole == 2 and story.journeys.counted == truth(story)


@pytest.mark.parametrize(("seed", "classes"), [(0, ()), (1, ("loss", "duplicates", "reordering")), (2, ("core dies",))])
def test_names_of_calls_are_bounded_and_no_call_is_missing(seed: int, classes: tuple[str, ...]) -> None:
    story = a_story(seed, job_orders.journeys(0, at_ns=6 * SECOND, seed=ROWS | MANY_NAMES), classes=classes)

    run(story)

    [document] = story.journeys.documents
    calls = document.tallies["Journey"].calls[PAGE]
    assert 3 * NAMES_PER_CORE > CALL_NAMES_KEPT >= len(calls) - 1, "a name of a step's own is not counted"
    assert calls[OTHER_CALLS].count > 0


# What failed.


@pytest.mark.parametrize(("manner", "is_stopped"), [(ROWS, False), (ROWS | FAILING_ACTION, True)])
def test_failed_is_the_worse_of_steps_and_requests_and_a_rule_on_it_stops_the_job(
    manner: int, is_stopped: bool
) -> None:
    rules = (FAILED, parse_threshold("steps.failed < 30%"), parse_threshold("requests.failed < 30%"))
    story = a_story(1, job_orders.journeys(0, at_ns=3 * SECOND, seed=manner, thresholds=rules))

    run(story)

    [document] = story.journeys.documents
    shares = {rule.text.split()[0]: rule.value or 0.0 for rule in document.rules}
    assert shares["failed"] == max(shares["steps.failed"], shares["requests.failed"])
    assert (shares["requests.failed"] > 0.3 > shares["steps.failed"] > 0.1) is is_stopped
    assert bool(story.rules.aborted) is is_stopped
    runs = [run for runs in story.ledger.cores.values() for run in runs]
    assert all(run.is_over is not is_stopped for run in runs)
    assert story.rules.judged == 1, "the checker has looked at it"


@pytest.mark.parametrize("seed", range(3))
def test_a_rule_stops_a_job_whatever_strikes(seed: int) -> None:
    errands = [
        job_orders.journeys(
            number, at_ns=(3 + 8 * number) * SECOND, seed=ROWS | SLOW | FAILING_ACTION, thresholds=(FAILED,)
        )
        for number in range(3)
    ]
    story = a_story(seed, *errands, classes=jobs.plan_of(seed).classes)

    run(story)

    assert story.rules.aborted


# What is handed on.


@pytest.mark.parametrize("seed", range(3))
def test_what_a_workflow_left_reaches_those_after_it_when_the_owner_falls_between_them(seed: int) -> None:
    names = ("First", "Second", "Third")
    story = a_story(seed, job_orders.journeys(0, at_ns=3 * SECOND, seed=0, names=names))
    falls = OwnerFalls(story, partial(has_state, TaskState.COMPLETED, "First"))

    run(story)

    assert falls.fell and story.history.owner_changes > 0
    assert story.values.handed >= 2 * 3, "on three cores each"
    [document] = story.journeys.documents
    assert set(document.states.values()) == {TaskState.COMPLETED}
    assert merged(list(document.tallies.values())).started == truth(story).started
