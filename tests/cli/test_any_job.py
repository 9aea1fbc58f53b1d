"""Jobs of a kind that commands have never heard of."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.cli.any_job import LINE_EVERY_NS, AnyFollowing, progress_text
from talka.cli.output import sheet_text
from talka.client.kinds import AnyJob
from talka.client.requests import ClusterUnreachable
from talka.client.sheets import JobSheet
from talka.work.lifecycle import JobState

EVIL = "\x1b[2J\nforged"


class FakeClient:
    """A cluster with one job, which ends as soon as it is watched, as the test says."""

    def __init__(self) -> None:
        self.job = AnyJob("g1", "bag", JobState.RUNNING, kind="group", tasks=4, counts={"completed": 1, "ready": 3})
        self.end = JobState.COMPLETED
        self.on_watch: Callable[[], None] | None = None
        """Called instead of an end: the job goes on."""

    def __call__(self, addresses: list[str], token: str | None, ca: str | None, **more: Any) -> "FakeClient":
        return self

    async def any_job(self, id: str) -> AnyJob:
        return self.job

    async def watch_any(self, id: str) -> AsyncGenerator[AnyJob, None]:
        yield self.job
        if self.on_watch is not None:
            self.on_watch()
            await asyncio.Event().wait()
        self.job = msgspec.structs.replace(self.job, state=self.end)
        yield self.job

    async def view(self, id: str) -> JobSheet:
        return JobSheet(
            id, "group", "bag", self.job.state, [("job", id)], ["PART", "STATE"], [["p1", "done"]], "and so on"
        )

    async def result(self, id: str) -> bytes:
        return b'{"done":4}'


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr("talka.client.client.Client", client)
    return client


@pytest.mark.parametrize(
    ("end", "code"), [(JobState.COMPLETED, 0), (JobState.PARTIAL, 6), (JobState.FAILED, 8), (JobState.CANCELLED, 8)]
)
def test_job_is_watched_to_its_end_which_is_the_exit_code(
    command: Any, cluster: FakeClient, end: JobState, code: int
) -> None:
    done = command("jobs", "watch", "g1")
    if end is JobState.COMPLETED:
        assert done.err.splitlines()[:2] == [
            "watching job g1: Ctrl-C leaves, and the job goes on",
            "running: 1 of 4 tasks ended",
        ]
    assert done.out == "job        g1\n\nPART  STATE\np1    done\n"
    cluster.end = end
    assert command("jobs", "watch", "g1", "--json").code == command("jobs", "watch", "g1", "--ui", "none").code == code


def test_whoever_interrupts_is_told_that_the_job_goes_on(command: Any, cluster: FakeClient) -> None:
    cluster.on_watch = lambda: os.kill(os.getpid(), signal.SIGINT)
    code, out, err = command("jobs", "watch", "g1")
    assert (code, out) == (130, "") and "talka jobs watch g1 shows it again, talka jobs cancel g1 ends it" in err


def test_cluster_that_is_gone_in_the_middle_is_exit_code_seven(command: Any, cluster: FakeClient) -> None:
    def die() -> None:
        raise ClusterUnreachable("no manager answered within 60 s")

    cluster.on_watch = die
    code, out, err = command("jobs", "watch", "g1")
    assert (code, out) == (7, "") and "no manager answered" in err and "Job g1 goes on: talka jobs watch" in err


def test_progress_is_told_when_it_changes_and_not_too_often(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    following = AnyFollowing(cluster, cluster.job, tells=True)  # type: ignore[arg-type]
    for at, ended in ((1, 1), (2, 1), (3, 2), (1 + LINE_EVERY_NS, 3), (2 + 2 * LINE_EVERY_NS, 3)):
        following.job = msgspec.structs.replace(cluster.job, counts={"completed": ended})
        following._tell(at)
    assert capsys.readouterr().err.splitlines() == ["running: 1 of 4 tasks ended", "running: 3 of 4 tasks ended"]
    assert progress_text(AnyJob("g1", "bag", JobState.QUEUED, kind="group")) == "queued"


def test_result_is_printed_or_written_and_no_page_is_made_of_it(
    command: Any, cluster: FakeClient, folder: Path
) -> None:
    assert json.loads(command("jobs", "result", "g1").out) == {"done": 4}
    assert json.loads(command("jobs", "result", "g1", "--json").out) == {"done": 4}
    assert command("jobs", "result", "g1", "--json", "r.json").code == 0
    assert json.loads((folder / "r.json").read_text()) == {"done": 4}
    code, out, err = command("jobs", "result", "g1", "--html", "page.html")
    assert (code, out) == (2, "") and "job g1 is a group job, and pages are made of load tests" in err


def test_job_that_prints_no_lines_says_so(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", "logs", "g1")
    assert (code, out) == (2, "") and "job g1 is a group job: only load tests print lines" in err


def test_what_a_manager_says_of_a_job_stays_in_its_line_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    sheet = JobSheet(
        "g1", "group", EVIL, JobState.RUNNING, [(EVIL, EVIL)], [EVIL, "B"], [[EVIL], ["a", "b", "c"]], EVIL
    )
    text = sheet_text(sheet)
    assert len(text.splitlines()) == 5 and all(line.isprintable() for line in text.split("\n"))
    assert "\x1b" not in capsys.readouterr().err
