"""`talka dead-letters`: tasks that were given up are listed, shown and run again."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from talka.cli.dead_letters import LETTERS, letters_of
from talka.client.requests import Conflict
from talka.wire.task_views import AttemptView, DagFacts, DeadLetter, DeadLettersPage
from talka.work.lifecycle import JobState


def letter(job: str, task: str) -> DeadLetter:
    attempt = AttemptView(
        1, "w1", "2026-01-02T03:00:00.000Z", "2026-01-02T03:00:02.000Z", "exception", "ValueError: no"
    )
    return DeadLetter(
        f"{job}/{task}", job, task, "work", "exception", "ValueError: no", "2026-01-02T03:00:02.000Z", [attempt]
    )


class FakeClient:
    """A cluster with dead letters, two on a page."""

    def __init__(self) -> None:
        self.letters = [letter("job1", "load"), letter("job1", "a/b"), letter("job2", "load")]
        self.replayed: list[tuple[str, bytes | None]] = []
        self.error: Exception | None = None
        self.pages = 0

    def __call__(self, addresses: list[str], token: str | None, ca: str | None, **more: Any) -> "FakeClient":
        return self

    async def dead_letters(self, cursor: str = "", limit: int = 50) -> DeadLettersPage:
        self.pages += 1
        start = int(cursor or 0)
        return DeadLettersPage(self.letters[start : start + 2], str(start + 2) if start + 2 < len(self.letters) else "")

    async def replay(self, id: str, config: msgspec.Raw | None = None) -> DagFacts:
        if self.error is not None:
            raise self.error
        self.replayed.append((id, None if config is None else bytes(config)))
        return DagFacts(id.partition("/")[0], "etl", JobState.RUNNING)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr("talka.client.client.Client", client)
    return client


@pytest.mark.parametrize("words", [["dead-letters"], ["dead-letters", "list"]], ids=" ".join)
def test_dead_letters_of_all_pages_are_a_table(words: list[str], command: Any, cluster: FakeClient) -> None:
    code, out, err = command(*words)
    assert (code, err) == (0, "") and [line.split()[0] for line in out.splitlines()[1:]] == [
        "job1/load",
        "job1/a/b",
        "job2/load",
    ]
    assert "ValueError: no" in out


def test_dead_letters_are_listed_for_programs(command: Any, cluster: FakeClient) -> None:
    found = json.loads(command("dead-letters", "--json").out)["dead_letters"]
    assert [one["id"] for one in found] == ["job1/load", "job1/a/b", "job2/load"]
    assert found[0]["attempts"][0]["worker"] == "w1"


def test_dead_letters_of_one_job(command: Any, cluster: FakeClient) -> None:
    assert len(command("dead-letters", "list", "--job", "job2").out.splitlines()) == 2
    code, out, err = command("dead-letters", "list", "--job", "job3")
    assert (code, out, err) == (0, "", "nothing of job job3 was given up\n")


def test_no_more_are_listed_than_asked_for(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("dead-letters", "list", "--limit", "1")
    assert code == 0 and len(out.splitlines()) == 2 and "first 1" in err and cluster.pages == 1


def test_search_ends_after_so_many(cluster: FakeClient) -> None:
    found = letters_of(cluster, 1, job="job2", task="load", looked_at_most=2)  # type: ignore[arg-type]
    assert asyncio.run(found) == [] and cluster.pages == 1


def test_nothing_given_up_is_a_sentence(command: Any, cluster: FakeClient) -> None:
    cluster.letters = []
    assert command("dead-letters") == (0, "", "nothing was given up\n")


def test_dead_letter_is_shown_with_every_attempt_and_what_to_do(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("dead-letters", "show", "job1/a/b")
    assert code == 0 and "task       a/b" in out and "ATTEMPT" in out
    assert "talka dead-letters replay job1/a/b runs it again" in err
    assert json.loads(command("dead-letters", "show", "job2/load", "--json").out)["job"] == "job2"


def test_an_element_is_named_so_that_a_shell_leaves_it_alone(command: Any, cluster: FakeClient) -> None:
    cluster.letters = [letter("job1", "clean[3]")]
    err = command("dead-letters", "show", "job1/clean[3]").err
    assert "talka dead-letters replay 'job1/clean[3]' runs it again" in err
    assert "talka jobs show job1 --task 'clean[4]' shows" in command("dead-letters", "show", "job1/clean[4]").err


def test_letter_that_is_none_is_a_sentence(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("dead-letters", "show", "job1/scan")
    assert (code, out) == (2, "") and "job1/scan is not a dead letter" in err


@pytest.mark.parametrize("name", ["load", "job1/", "/load"])
@pytest.mark.parametrize("what", ["show", "replay"])
def test_name_that_is_not_of_a_letter_is_a_sentence(what: str, name: str, command: Any, cluster: FakeClient) -> None:
    code, out, err = command("dead-letters", what, name)
    assert (code, out, cluster.pages, cluster.replayed) == (2, "", 0, []) and "JOB/TASK" in err


def test_letter_is_replayed_as_it_was_or_with_another_config(command: Any, cluster: FakeClient) -> None:
    code, out, _ = command("dead-letters", "replay", "job1/a/b")
    assert (code, out) == (0, "a/b runs again: job job1 is running; talka jobs watch job1 shows it\n")
    out = command("dead-letters", "replay", "job1/load", "--config", '{"rows": 10}', "--json").out
    assert json.loads(out)["state"] == "running"
    assert cluster.replayed == [("job1/a/b", None), ("job1/load", b'{"rows": 10}')]


def test_replay_that_is_refused_is_a_sentence(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("dead-letters", "replay", "job1/load", "--config", "{rows}")
    assert (code, out) == (2, "") and "--config" in err and "is not JSON" in err
    cluster.error = Conflict("task load of job job1 is running: only dead letters are replayed")
    code, out, err = command("dead-letters", "replay", "job1/load")
    assert (code, out) == (2, "") and "only dead letters are replayed" in err


@pytest.mark.parametrize("words", [[], *([name] for name in LETTERS)], ids=str)
def test_help_starts_with_examples(words: list[str], command: Any) -> None:
    out = command("dead-letters", *words, "--help").out
    assert out.index("Examples:") < out.index("Usage:")
