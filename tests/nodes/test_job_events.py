"""What happens to workers and their cores, as people and programs read it."""

from typing import Any

import pytest

from talka.control.jobs.effects import WorkerJudged
from talka.control.worker.effects import CoreQuiet, CoreSeen, Undrained
from talka.nodes.job_events import job_event_of, worker_event_of
from talka.nodes.member_events import WORDS
from talka.units import SECOND


@pytest.mark.parametrize(
    ("news", "text"),
    [
        (WorkerJudged("w1", "stuck", "core 7 hangs"), "worker w1 is stuck: core 7 hangs"),
        (WorkerJudged("w1", "stuck", "core 7 hangs", is_over=True), "worker w1 is no longer stuck"),
        (WorkerJudged("w1", "healthy", ""), "worker w1 is healthy"),
    ],
)
def test_each_decision_about_a_worker_is_an_event_with_its_reason(news: WorkerJudged, text: str) -> None:
    event = job_event_of(news)

    assert event is not None and (event["event"], event["what"], event["reason"]) == (
        "worker-judged",
        news.what,
        news.reason,
    )
    assert WORDS[event["event"]].format(**event) == text


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
        (CoreSeen("j1", 4711, "File a\nFile b"), "core 4711 of job j1 is in:\nFile a\nFile b"),
        (Undrained(), "takes new work again"),
    ],
    ids=["quiet", "turns", "seen", "undrained"],
)
def test_what_a_worker_tells_of_its_cores_is_an_event(news: Any, text: str) -> None:
    event = worker_event_of(news)

    assert event is not None and WORDS[event["event"]].format(**event) == text
