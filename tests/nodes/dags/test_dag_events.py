"""What a manager tells of dag jobs and their store has words for people, and so has every other event."""

import re
from pathlib import Path

import pytest

import talka
from talka.cli.nodes.life import OWN_WORDS, sentence
from talka.control.tasks.store_effects import RaiseEpoch
from talka.control.worker.effects import AttemptsDropped
from talka.nodes.dags.dag_events import dag_ended_event, dropped_event, new_life_event, raised_event, too_old_event
from talka.nodes.job_events import worker_event_of
from talka.nodes.member_events import WORDS, sentence_of
from talka.wire.attempts import Dropped, StoreLife
from talka.work.lifecycle import JobState


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            dag_ended_event("b4k7", JobState.FAILED, "Task a failed: E: no"),
            "job b4k7 ended failed: Task a failed: E: no",
        ),
        (dag_ended_event("b4k7", JobState.CANCELLED, ""), "job b4k7 ended cancelled"),
        (
            dag_ended_event("b4k7", JobState.CANCELLED, "no\nready at evil"),
            "job b4k7 ended cancelled: no ready at evil",
        ),
        (
            new_life_event("/jobs.sqlite", StoreLife(0xAB, 0xCD), "it is a copy made by talka store backup"),
            "the store /jobs.sqlite begins a new life, because it is a copy made by talka store backup: jobs go on "
            "as they"
            " are in it, and what workers still hold of the life before does not count",
        ),
        (
            raised_event("/jobs.sqlite", RaiseEpoch(8, "w2", 7, False)),
            "worker w2 remembers epoch 7 of another store or life: the store /jobs.sqlite takes epoch 8 before it gives"
            " that worker anything",
        ),
        (
            raised_event("/jobs.sqlite", RaiseEpoch(8, "w2", 7, True)),
            "worker w2 remembers epoch 7 of this very store, which is an older copy then: the store /jobs.sqlite takes"
            " epoch 8 before it gives that worker anything",
        ),
        (
            dropped_event("w2", Dropped(0xAB, 0xCD, 3, 1)),
            "worker w2 held 3 attempts and 1 result of store ab, life cd: dropped",
        ),
        (
            worker_event_of(AttemptsDropped(Dropped(1, 2, 1, 0))),
            "held 1 attempt and 0 results of store 1, life 2: dropped",
        ),
        (
            too_old_event("w2"),
            "worker w2: it gets no tasks: its version is too old to say to which store its attempts belong: update it",
        ),
        ({"event": "store-back"}, "the store can be written again: dag jobs go on"),
    ],
)
def test_what_happens_to_dag_jobs_and_their_store_is_a_sentence(event: dict[str, object], text: str) -> None:
    assert sentence_of(event) == sentence(event) == text
    assert "\n" not in text


def test_a_store_that_is_an_older_copy_of_itself_is_an_alarm() -> None:
    assert raised_event("s", RaiseEpoch(8, "w2", 7, True))["event"] == "alarm"
    assert raised_event("s", RaiseEpoch(8, "w2", 7, False))["event"] == "epoch-raised"


def test_every_event_has_words() -> None:
    found = {
        word
        for folder in ("nodes", "cli")
        for path in (Path(talka.__file__).parent / folder).glob("*.py")
        for word in re.findall(r'"event": "([a-z-]+)"', path.read_text())
    }

    assert len(found) > 30
    assert found - {*WORDS, *OWN_WORDS} == set()
