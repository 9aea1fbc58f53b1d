from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.clients.overload import Level
from talka.control.clients.request_classes import CLASS_OF, CLASSES, RequestClass
from talka.control.clients.shedding import Backpressure, Shedding, report_interval_ms
from talka.stats.tally import Tally
from talka.web.operations import OPERATIONS
from talka.wire import jobs, tasks
from talka.wire.jobs import Beat, Finished, JobMessage, LogLines, Renew, Report, WorkerFacts
from talka.wire.security.access import LEAST, OF_NODES, Asker
from talka.wire.security.permissions import ENVELOPES, MESSAGES
from talka.wire.shards import Armed, Refused, TimeAsked, Totals, encode
from talka.wire.tasks import MoreTime, TaskProgress

quick = settings(deadline=None, derandomize=True, max_examples=50)
TO_WORKERS = (
    *(jobs.Renew, jobs.Elsewhere, jobs.Assign, jobs.Start, jobs.Halt, jobs.Acknowledge, jobs.ResultAccepted),
    *(jobs.Reconcile, jobs.Sync, tasks.AssignTasks, tasks.Recall, tasks.ResultsStored, tasks.AskHeld),
    *(tasks.TaskInputs, tasks.TimeAnswers),
)
"""What no manager takes."""
COUNTS = Report("b4k7", 1, encode(Totals(1, Tally(), [], 1, 0)))


def at(level: Level) -> Shedding:
    shedding = Shedding()
    shedding.level = level
    return shedding


def test_every_operation_is_in_exactly_one_class() -> None:
    named = [name for rule in CLASSES.values() for name in rule.operations]

    assert sorted(named) == sorted({*LEAST, *OF_NODES, "submit_dag"})
    assert {operation.name for operation in OPERATIONS} <= set(named)


def test_every_message_that_a_manager_takes_is_in_exactly_one_class() -> None:
    called = {row for rows in ENVELOPES.values() for row in rows}
    sent = {kind for _, kind in MESSAGES if kind not in called} | set(ENVELOPES)
    named = [message for rule in CLASSES.values() for message in rule.messages]

    assert len(named) == len(set(named))
    assert set(named) == sent - set(TO_WORKERS)


def test_seven_classes_are_shed_in_their_order_and_the_last_two_never() -> None:
    assert list(CLASSES) == list(RequestClass)
    assert len(CLASSES) == 7
    levels = [rule.shed_from for rule in CLASSES.values()]
    assert all(level is not None and level > Level.BUSY for level in levels[:5])
    assert levels[5:] == [None, None]
    assert all((before or 9) <= (after or 9) for before, after in pairwise(levels))


def test_health_votes_cancels_and_results_are_in_classes_that_are_never_shed() -> None:
    never = [kind for kind, rule in CLASSES.items() if rule.shed_from is None]

    for operation in ("cancel", "result", "livez", "readyz", "metrics"):
        assert CLASS_OF[operation] in never
    messages = [message for kind in never for message in CLASSES[kind].messages]
    for message in (Beat, Finished, tasks.Done, *jobs_of_votes()):
        assert message in messages


def jobs_of_votes() -> list[type]:
    return [kind for number, kind in MESSAGES if kind.__module__.endswith("leadership")]


@pytest.mark.parametrize(
    ("level", "shed"),
    [
        (Level.NORMAL, []),
        (Level.BUSY, []),
        (Level.STRESSED, ["watch", "jobs"]),
        (Level.OVERLOADED, ["watch", "jobs", "job", "submit", "retry"]),
    ],
)
def test_more_is_shed_at_each_level_and_counted_by_class(level: Level, shed: list[str]) -> None:
    shedding = at(level)
    asked = ("watch", "jobs", "job", "submit", "retry", "cancel", "result", "metrics")

    assert [operation for operation in asked if shedding.sheds(operation, is_counted=True)] == shed
    assert shedding.shed == {CLASS_OF[operation]: 1 for operation in shed}


def test_of_whoever_is_not_counted_watches_are_shed_alone() -> None:
    shedding = at(Level.OVERLOADED)

    assert [name for name in LEAST if shedding.sheds(name, is_counted=False)] == ["watch"]
    assert not at(Level.BUSY).sheds("watch", is_counted=False)


def test_a_submission_with_a_rate_of_its_own_is_a_submission() -> None:
    shedding = at(Level.OVERLOADED)

    assert shedding.sheds("submit_counts", is_counted=True)
    assert shedding.shed == {"submissions": 1}


@pytest.mark.parametrize(
    ("asker", "is_shed"),
    [
        (Asker("jobs", "viewer", "ann", "t1"), True),
        (Asker("jobs", "viewer", "ann"), True),
        (Asker("jobs", "viewer"), False),  # the one user of a machine
        (Asker("cancel", "submitter", "ann", "t1"), False),
        (Asker("watch", "viewer", "ann", "t1"), False),  # it was let in when it began
        (Asker("of a later version", "viewer", "ann", "t1"), False),
        (None, False),
    ],
    ids=str,
)
def test_what_is_passed_on_is_shed_as_if_it_was_asked_here(asker: Asker | None, is_shed: bool) -> None:
    assert at(Level.OVERLOADED).sheds_call(asker) == is_shed


def test_statistics_are_refused_when_all_else_is_taken() -> None:
    shedding = at(Level.OVERLOADED)
    milestones: list[JobMessage] = [
        Report("b4k7", 1, encode(Armed())),
        Report("b4k7", 1, encode(Refused("file", "there is none"))),
        Report("b4k7", 1, encode(Totals(2, Tally(), [], 1, 0, asked=TimeAsked(1, 0)))),
        Report("b4k7", 1, COUNTS.content, (encode(Totals(3, Tally(), [], 1, 0, provided={"token": b"x"})),)),
        Finished("b4k7", 1, "a" * 64, 3),
        Beat(1, WorkerFacts(1)),
        TaskProgress(more_time=(MoreTime(7, 1, 900),)),
        Renew((0, 1, 1), 1, 1, True),  # nobody may say this to a manager: it is no statistics
    ]

    assert [shedding.refuses(message) for message in milestones] == [False] * len(milestones)
    for told in (COUNTS, LogLines("b4k7", 1, 0, ("a line",)), TaskProgress((3,)), Report("b4k7", 1, b"\xc1")):
        assert shedding.refuses(told)
    assert shedding.statistics_refused == 4


@pytest.mark.parametrize("level", [Level.NORMAL, Level.BUSY, Level.STRESSED])
def test_below_overloaded_statistics_are_taken(level: Level) -> None:
    shedding = at(level)

    assert not shedding.refuses(COUNTS)
    assert shedding.statistics_refused == 0


def test_workers_are_asked_to_bear_more_at_each_level() -> None:
    assert [at(level).backpressure for level in Level] == [
        Backpressure.NONE,
        Backpressure.THROTTLE,
        Backpressure.THROTTLE,
        Backpressure.REJECT,
    ]


@pytest.mark.parametrize(
    ("level", "workers", "interval_ms"),
    [(0, 1, 50), (0, 300, 300), (1, 1, 200), (2, 1, 500), (2, 800, 800), (3, 1, 1000), (0, 5000, 1000)],
)
def test_workers_report_less_often_when_there_are_many_or_the_node_is_late(
    level: int, workers: int, interval_ms: int
) -> None:
    assert report_interval_ms(Level(level), workers) == interval_ms


@given(level=st.sampled_from(Level), is_counted=st.booleans())
@quick
def test_what_is_shed_is_always_the_first_classes(level: Level, is_counted: bool) -> None:
    shedding = at(level)
    shed = [any(shedding.sheds(name, is_counted=is_counted) for name in rule.operations) for rule in CLASSES.values()]

    assert shed == sorted(shed, reverse=True)
