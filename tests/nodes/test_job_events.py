"""What happens to workers and their cores, as people and programs read it."""

from typing import Any

import pytest

from talka.control.jobs.effects import HealthDecided, JobLate, ManagersHeld, WorkerJudged
from talka.control.member.three_signals import MemberDoubted
from talka.control.worker.effects import CoreGivenUp, CoreQuiet, CoreSeen, Undrained
from talka.nodes.job_events import job_event_of, where_text, worker_event_of
from talka.nodes.member_events import WORDS
from talka.units import SECOND

CALL = 'File "shop.py", line 9 in go'


@pytest.mark.parametrize(
    ("news", "text"),
    [
        (WorkerJudged("w1", "stuck", "core 7 hangs", 5 * SECOND), "worker w1 is stuck: core 7 hangs"),
        (WorkerJudged("w1", "stuck", "core 7 hangs", 5 * SECOND, is_over=True), "worker w1 is no longer stuck"),
        (WorkerJudged("w1", "healthy", "", 5 * SECOND), "worker w1 is healthy"),
    ],
)
def test_each_decision_about_a_worker_is_an_event_with_its_reason_and_since_when(news: WorkerJudged, text: str) -> None:
    event = job_event_of(news, wall_offset_ns=1_700_000_000 * SECOND)

    assert event is not None and (event["event"], event["what"], event["reason"], event["since"]) == (
        "worker-judged",
        news.what,
        news.reason,
        "2023-11-14T22:13:25.000Z",
    )
    assert WORDS[event["event"]].format(**event) == text


def test_a_workflow_that_is_late_is_an_event() -> None:
    event = job_event_of(JobLate("j1", "Shop", "given", "it was given 15s more"), 0)

    assert event == {"event": "job-late", "job": "j1", "workflow": "Shop", "text": "it was given 15s more"}
    assert WORDS["job-late"].format(**event) == "workflow Shop of job j1: it was given 15s more"


@pytest.mark.parametrize(
    ("news", "text"),
    [
        (HealthDecided("m2", "hold", "it is overloaded"), "manager m2: hold, for it is overloaded"),
        (HealthDecided("m2", "route", ""), "manager m2: route"),
        (
            ManagersHeld(("m2", "m3")),
            "managers m2, m3 fell silent together: waiting before their jobs are given to others",
        ),
    ],
)
def test_each_decision_about_a_manager_is_an_event_with_its_reason(news: Any, text: str) -> None:
    event = job_event_of(news, 0)

    assert event is not None and WORDS[event["event"]].format(**event) == text


def test_that_a_member_is_asked_out_of_its_turn_is_no_event() -> None:
    assert job_event_of(MemberDoubted("m2"), 0) is None


@pytest.mark.parametrize(
    ("news", "text"),
    [
        (
            CoreQuiet("j1", ("Shop", "Pay"), 4711, "stalled", 10 * SECOND),
            "core 4711 of job j1 (Shop, Pay) is stalled: its event loop has not turned for 10 s",
        ),
        (
            CoreQuiet("j1", ("Shop",), 4711, "turns", 12 * SECOND),
            "core 4711 of job j1 (Shop) turns its event loop again, after 12 s",
        ),
        (
            CoreGivenUp("j1", ("Shop",), 4711, 60 * SECOND),
            "core 4711 of job j1 (Shop) is killed, for its event loop has not turned for 60 s: what is left of its "
            "plan goes to another",
        ),
        (CoreSeen("j1", 4711, f"Current thread\n  {CALL}"), f"core 4711 of job j1 is in {CALL}"),
        (Undrained(), "takes new work again"),
    ],
    ids=["quiet", "turns", "given up", "seen", "undrained"],
)
def test_what_a_worker_tells_of_its_cores_is_an_event(news: Any, text: str) -> None:
    event = worker_event_of(news)

    assert event is not None and WORDS[event["event"]].format(**event) == text


def test_a_stack_is_told_to_people_in_one_line_and_to_programs_as_a_whole() -> None:
    calls = [f'File "shop.py", line {line} in go' for line in range(5)]
    stack = "\n  ".join(["Current thread (most recent call first):", *calls]) + "\n\nThread 2:\n  File other"

    event = worker_event_of(CoreSeen("j1", 4711, stack))

    assert event is not None and event["stack"] == stack
    text = WORDS["core-stack"].format(**event)
    assert text == f"core 4711 of job j1 is in {', called from '.join(calls[:3])} and 2 more"
    assert where_text("Current thread") == "code that its stack does not name"
