"""Pipelines: found in files, submitted, followed to their end, shown and steered."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.cli import pipelines
from talka.client.kinds import AnyJob, AnyJobsPage
from talka.client.requests import ClusterUnreachable, NobodyCanRun, NoSuchJob, NotAuthorised
from talka.client.sheets import TASKS_SHOWN, JobSheet, dag_sheet, load_sheet
from talka.engine.handlers.inline import run_dag_inline
from talka.engine.handlers.pipeline_file import read_pipeline
from talka.engine.loader import import_file
from talka.units import SECOND
from talka.wire.task_views import (
    AttemptsPage,
    AttemptView,
    BackfillRun,
    BackfillView,
    DagFacts,
    GraphView,
    LimitView,
    LogLineView,
    LogPage,
    OutputView,
    QueuesView,
    QueueView,
    Reason,
    RetryPlan,
    RetryRequest,
    RetryTask,
    ScheduleView,
    SkipRequest,
    StreamText,
    StreamView,
    TasksPage,
    TaskView,
    WhyView,
)
from talka.work.dags.dag import DagSpec
from talka.work.dags.notify import Notify
from talka.work.handlers import handlers_of
from talka.work.lifecycle import JobState, TaskState

ROOT = Path(__file__).parents[2]
BERLIN = ScheduleView(
    "etl",
    "30 2 * * *",
    "2026-03-29T01:30:00.000Z",
    "job1",
    timezone="Europe/Berlin",
    catch_up="all",
    next_in_zone="2026-03-29T03:30:00+02:00",
    last_at="2026-03-28T01:30:00.000Z",
    last_in_zone="2026-03-28T02:30:00+01:00",
)
LOAD_TEST = """
from talka import URL, HTTPResponse, Workflow, step

print("the load test was imported")


class Browse(Workflow):
    vus = 2

    @step()
    async def home(self, url: URL = "http://127.0.0.1:9/") -> HTTPResponse:
        return await self.client.http.get(url)
"""
PIPELINE = """
from talka import Dag

print("the pipeline was imported")

etl = Dag("etl")
etl.task("load", "work", after=[etl.task("extract", "work")])
"""
YAML = """
name: etl
tasks:
  - {id: extract, handler: work}
  - {id: load, handler: work, depends_on: [extract]}
"""
DONE = {"started_at": "2026-01-02T03:00:00.000Z", "ended_at": "2026-01-02T03:00:04.000Z"}


class FakeClient:
    """A cluster with one dag job, which ends as soon as it is watched, as the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.tasks = [TaskView("extract", TaskState.COMPLETED, "work", 1, msgspec.Raw(b'{"rows": 3}'), **DONE)]
        self.facts = DagFacts("job1", "etl", JobState.RUNNING, tasks=1, counts={"running": 1})
        self.end = JobState.COMPLETED
        self.final_counts = {"completed": 1}
        self.error: Exception | None = None
        self.on_watch: Callable[[], None] | None = None
        """Called instead of an end: the job goes on."""
        self.log_pages = [LogPage([])]
        self.graph = GraphView(self.tasks, [])
        self.found_schedules: list[ScheduleView] = []
        self.found_queues = QueuesView([])
        self.next_at, self.next_in_zone = "2226-03-31T01:30:00.000Z", "2226-03-31T03:30:00+02:00"
        self.runs: list[BackfillRun] = []
        self.addresses: list[str] = []
        self.tried: list[list[AttemptView]] = [[]]
        """Attempts as they are asked for again and again; the last stays."""
        self.wrote: dict[int, list[StreamText]] = {}
        """By attempt."""

    def __call__(self, addresses: list[str], token: str | None, ca: str | None, **more: Any) -> "FakeClient":
        self.addresses = addresses
        return self

    def note(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error

    async def submit_dag(self, spec: DagSpec, key: str = "", *, code: bytes = b"") -> DagFacts:
        self.note("submit_dag", spec, key)
        return self.facts

    async def dag(self, id: str) -> DagFacts:
        self.note("dag", id)
        if id != "job1":
            raise NoSuchJob.named(id)
        return self.facts

    async def any_job(self, id: str) -> AnyJob:
        if id == "load1":
            return AnyJob(id, "shop.py", JobState.RUNNING, cores=4)
        return AnyJob(id, "etl", (await self.dag(id)).state, kind="dag")

    async def view(self, id: str) -> JobSheet:
        job = await self.any_job(id)
        return load_sheet(job) if job.kind == "load" else dag_sheet(self.facts, self.tasks[:TASKS_SHOWN])

    async def all_jobs(self, state: str = "", cursor: str = "", limit: int = 50) -> AnyJobsPage:
        load = AnyJob("load1", "shop.py", JobState.RUNNING, cores=4)
        return AnyJobsPage([AnyJob("job1", "etl", JobState.RUNNING, kind="dag", tasks=9, counts={"dead": 2}), load])

    async def watch_dag(self, id: str) -> AsyncIterator[DagFacts]:
        self.note("watch_dag", id)
        yield self.facts
        if self.on_watch is not None:
            self.on_watch()
            await asyncio.Event().wait()
        self.facts = msgspec.structs.replace(self.facts, state=self.end, counts=self.final_counts, **DONE)
        yield self.facts

    async def dag_tasks(self, id: str, state: str = "", cursor: str = "", limit: int = 50) -> TasksPage:
        self.note("dag_tasks", id, state, cursor, limit)
        found = [task for task in self.tasks if state in ("", task.state)]
        start = int(cursor or 0)
        return TasksPage(found[start : start + limit], str(start + limit) if start + limit < len(found) else "")

    async def dag_task(self, id: str, task: str) -> TaskView:
        self.note("dag_task", id, task)
        return self.tasks[0]

    async def why(self, id: str, task: str) -> WhyView:
        self.note("why", id, task)
        return WhyView(task, TaskState.READY, "no worker is free", [Reason("w1", "slots", "8 of 8 are taken")])

    async def dag_graph(self, id: str) -> GraphView:
        self.note("dag_graph", id)
        return self.graph

    async def task_logs(self, id: str, task: str, cursor: str = "", limit: int = 50) -> LogPage:
        self.note("task_logs", id, task, cursor, limit)
        return self.log_pages.pop(0)

    async def task_attempts(self, id: str, task: str, cursor: str = "", limit: int = 50) -> AttemptsPage:
        found = self.tried[0] if len(self.tried) == 1 or cursor else self.tried.pop(0)
        start = int(cursor or 0)
        return AttemptsPage(found[start : start + 2], str(start + 2) if start + 2 < len(found) else "")

    async def task_output(self, id: str, task: str, attempt: int = 0, stream: str = "") -> OutputView:
        found = [one for one in self.wrote[attempt] if stream in ("", one.stream)]
        running = {one.attempt for one in self.tried[0] if one.outcome == "running"}
        return OutputView(attempt, found, attempt not in running)

    async def pause_dag(self, id: str) -> DagFacts:
        self.note("pause_dag", id)
        return msgspec.structs.replace(self.facts, state=JobState.PAUSED)

    async def resume(self, id: str) -> DagFacts:
        self.note("resume", id)
        return self.facts

    async def retry_dag(self, id: str, request: RetryRequest) -> DagFacts:
        self.note("retry_dag", id, request)
        return self.facts

    async def retry_plan(self, id: str, request: RetryRequest) -> RetryPlan:
        self.note("retry_plan", id, request)
        return RetryPlan([RetryTask("load", TaskState.DEAD, 1500), RetryTask("report", TaskState.SKIPPED)], 1)

    async def skip_dag(self, id: str, request: SkipRequest) -> DagFacts:
        self.note("skip_dag", id, request)
        return self.facts

    async def put_schedule(self, spec: DagSpec, *, code: bytes = b"") -> ScheduleView:
        self.note("put_schedule", spec)
        return ScheduleView(spec.name, spec.schedule, "2026-01-02T03:00:00.000Z")

    async def queues(self) -> QueuesView:
        return self.found_queues

    async def schedules(self) -> list[ScheduleView]:
        self.note("schedules")
        return self.found_schedules

    async def drop_schedule(self, name: str) -> None:
        self.note("drop_schedule", name)

    async def pause_schedule(self, name: str) -> ScheduleView:
        self.note("pause_schedule", name)
        return ScheduleView(name, "0 3 * * *", "", paused=True)

    async def resume_schedule(self, name: str) -> ScheduleView:
        self.note("resume_schedule", name)
        return msgspec.structs.replace(BERLIN, next_at=self.next_at, next_in_zone=self.next_in_zone)

    async def run_schedule(self, name: str, key: str = "") -> DagFacts:
        self.note("run_schedule", name, key)
        return self.facts

    async def backfill(self, name: str, begin: str, end: str, *, dry_run: bool = False) -> BackfillView:
        self.note("backfill", name, begin, end, dry_run)
        return BackfillView(name, [] if begin == end else self.runs)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr("talka.client.client.Client", client)
    return client


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "etl.yaml"
    path.write_text(YAML)
    return path


# What a target is.


def test_files_of_yaml_and_json_are_pipelines(folder: Path, file: Path) -> None:
    (folder / "etl.json").write_text('{"name": "etl", "tasks": [{"id": "a", "handler": "work"}]}')
    found = [pipelines.pipeline_of(name) for name in ("etl.yaml", "etl.json")]
    assert [len(spec.tasks) for spec in found if spec is not None] == [2, 1]


@pytest.mark.parametrize("target", ["http://127.0.0.1:9/", "shop.py", "shop.py:Browse"])
def test_load_tests_are_no_pipelines_and_not_imported_to_find_out(
    target: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "shop.py").write_text(LOAD_TEST)
    assert pipelines.pipeline_of(target) is None and capsys.readouterr().out == ""


@pytest.mark.parametrize("target", ["etl.py", "etl.py:etl"])
def test_python_file_that_holds_a_dag_is_a_pipeline(target: str, folder: Path) -> None:
    (folder / "etl.py").write_text(PIPELINE)
    found = pipelines.pipeline_of(target)
    assert found is not None and [task.id for task in found.tasks] == ["extract", "load"]


def test_file_of_both_kinds_asks_which_is_meant(folder: Path) -> None:
    (folder / "both.py").write_text(LOAD_TEST + PIPELINE)
    with pytest.raises(pipelines.TwoKinds, match=r"both.py:Browse or both.py:etl"):
        pipelines.pipeline_of("both.py")
    assert pipelines.pipeline_of("both.py:Browse") is None
    assert pipelines.pipeline_of("both.py:etl") is not None


def test_kind_is_found_by_import_where_the_text_does_not_tell(folder: Path) -> None:
    (folder / "made.py").write_text(PIPELINE)
    (folder / "indirect.py").write_text("from made import etl as nightly\n")
    (folder / "annotated.py").write_text(f"from talka import Workflow\n{PIPELINE}")
    (folder / "empty.py").write_text("x = 1\n")
    assert pipelines.pipeline_of("indirect.py") is not None and pipelines.pipeline_of("annotated.py") is not None
    assert pipelines.pipeline_of("empty.py") is None  # whoever reads load tests says what is wrong with it


@pytest.mark.parametrize("text", ["def (", "\0"], ids=["syntax", "null"])
def test_file_that_cannot_be_parsed_is_left_to_who_says_so(text: str, folder: Path) -> None:
    (folder / "broken.py").write_text(text)
    assert pipelines.pipeline_of("broken.py") is None


@pytest.mark.parametrize("target", ["none.yaml", "etl.py:etl,other"])
def test_target_that_is_none_is_a_sentence(target: str, folder: Path, command: Any, cluster: FakeClient) -> None:
    (folder / "etl.py").write_text(PIPELINE)
    code, out, err = command("submit", target)
    assert (code, out) == (2, "") and target.partition(":")[0] in err and cluster.asked == []


def test_what_is_wrong_with_a_file_is_told_with_its_line_and_nothing_is_sent(
    folder: Path, command: Any, cluster: FakeClient
) -> None:
    (folder / "bad.yaml").write_text("name: etl\ntasks:\n  - {id: a, handler: work, depends_on: [b]}\n")
    code, out, err = command("submit", "bad.yaml")
    assert (code, out) == (3, "") and "bad.yaml:3" in err and cluster.asked == []


def test_settings_of_load_tests_are_refused_as_flags_and_ignored_elsewhere(
    file: Path, folder: Path, command: Any, cluster: FakeClient
) -> None:
    for flags in (["--vus", "3"], ["--cores", "2"], ["--html", "x.html"], ["--priority", "3"]):
        code, _, err = command("submit", "etl.yaml", *flags)
        assert code == 2 and f"{flags[0]} is for load tests" in err
    code, _, err = command("submit", "etl.yaml", "--env", "DAY=1")
    assert code == 2 and "--env" in err and cluster.asked == []
    (folder / "talka.toml").write_text("vus = 3\npriority = 7")
    assert command("submit", "etl.yaml").code == 0


# Params.


DATED = "name: etl\nparams:\n  day: {type: date}\ntasks:\n  - {id: load, handler: work, config: {day: '${day}'}}\n"


def test_values_of_params_are_given_on_the_command_line(folder: Path, command: Any, cluster: FakeClient) -> None:
    (folder / "dated.yaml").write_text(DATED)
    assert command("submit", "dated.yaml", "--detach", "--param", "day=2026-11-16").code == 0
    [(_, spec, _)] = cluster.asked
    assert spec.values == {"day": "2026-11-16"} and spec.params["day"].type == "date"


def test_values_that_are_missing_unknown_or_of_another_type_are_told_and_nothing_is_sent(
    folder: Path, command: Any, cluster: FakeClient
) -> None:
    (folder / "dated.yaml").write_text(DATED)
    code, out, err = command("submit", "dated.yaml", "--param", "dy=1", "--param", "x=a=b")
    assert (code, out) == (3, "")
    assert 'dated.yaml:3: there is no param "dy" (did you mean day?)' in err
    assert "dated.yaml:3: param day has no default and is not given: --param day=DATE gives it" in err
    code, _, err = command("submit", "dated.yaml", "--param", "day=16.11.2026")
    assert code == 3 and 'dated.yaml:3: param day: "16.11.2026" is not a date' in err
    assert cluster.asked == []


@pytest.mark.parametrize("verb", ["check", "submit"])
def test_placeholder_that_would_stay_as_it_is_is_told_with_its_line_and_nothing_is_sent(
    verb: str, folder: Path, command: Any, cluster: FakeClient
) -> None:
    notify = "settings:\n  notify:\n    on: [failed]\n    url: https://hooks.example.com/${day}\n"
    (folder / "named.yaml").write_text(DATED.replace("name: etl\n", f"name: etl-${{day}}\n{notify}"))
    code, out, err = command(verb, "named.yaml", "--param", "day=2026-11-16")
    assert (code, out, cluster.asked) == (3, "", [])
    assert 'named.yaml:1: name = "etl-${day}" has ${: it would stay as it is' in err
    assert "named.yaml:5: settings: notify.url: the address has ${: it would stay as it is" in err


def test_param_that_is_none_is_a_mistake_of_the_command_line(
    file: Path, folder: Path, command: Any, cluster: FakeClient
) -> None:
    (folder / "shop.py").write_text(LOAD_TEST)
    for words, text in (
        (["etl.yaml", "--param", "day"], '--param "day" names no value: write --param NAME=VALUE'),
        (["etl.yaml", "--param", "=1"], '--param "=1" names no value'),
        (["etl.yaml", "--param", "a=1", "--param", "a=2"], "--param a is given twice"),
        (["shop.py", "--param", "a=1"], "--param is for pipelines, and shop.py is a load test"),
        (["http://127.0.0.1:9/", "--param", "a=1"], "--param is for pipelines"),
    ):
        code, out, err = command("submit", *words)
        assert (code, out) == (2, "") and text in err
    assert cluster.asked == []


# What nobody could run.


def test_what_no_worker_could_run_is_a_mistake_of_the_file(file: Path, command: Any, cluster: FakeClient) -> None:
    cluster.error = NobodyCanRun('task load: no worker has the handler "work"; known: none')
    code, out, err = command("submit", "etl.yaml")
    assert (code, out) == (3, "") and 'no worker has the handler "work"; known: none' in err


def test_it_may_wait_for_workers(file: Path, folder: Path, command: Any, cluster: FakeClient) -> None:
    assert command("submit", "etl.yaml", "--detach").code == 0
    assert command("submit", "etl.yaml", "--detach", "--wait-for-workers").code == 0
    assert [spec.wait_for_workers for _, spec, _ in cluster.asked] == [False, True]
    (folder / "shop.py").write_text(LOAD_TEST)
    code, _, err = command("submit", "shop.py", "--wait-for-workers")
    assert code == 2 and "--wait-for-workers is for pipelines, and shop.py is a load test" in err


# Submitted and followed.


def test_pipeline_is_submitted_followed_and_summed_up(file: Path, command: Any, cluster: FakeClient) -> None:
    code, out, err = command("submit", "etl.yaml", "--key", "k")
    assert code == 0, err
    assert out.startswith("✓ COMPLETED  etl  job job1\n") and "4.0 s" in out and "extract (work)" in out
    assert "submitted etl as job job1: Ctrl-C leaves, and the job goes on" in err
    kind, spec, key = cluster.asked[0]
    assert (kind, key, len(spec.tasks)) == ("submit_dag", "k", 2)


def test_detached_pipeline_prints_its_id_or_its_facts(file: Path, command: Any, cluster: FakeClient) -> None:
    assert command("submit", "etl.yaml", "--detach") == (0, "job1\n", "")
    code, out, err = command("submit", "etl.yaml", "--detach", "--json")
    assert (code, err) == (0, "") and json.loads(out)["state"] == "running"
    assert command("submit", "etl.yaml", "--detach", "--json", "facts.json") == (0, "job1\n", "")
    assert json.loads(Path("facts.json").read_text())["id"] == "job1"
    assert {asked[0] for asked in cluster.asked} == {"submit_dag"}


def test_result_for_programs_has_the_outputs_of_tasks(file: Path, command: Any, cluster: FakeClient) -> None:
    code, out, _ = command("submit", "etl.yaml", "--ui", "none", "--json")
    document = json.loads(out)
    assert code == 0 and document["job"]["state"] == "completed" and document["left_out"] == 0
    assert document["tasks"][0]["output"] == {"rows": 3}
    code, out, err = command("submit", "etl.yaml", "--ui", "none", "--json", "result.json")
    assert (code, err) == (0, "") and out.startswith("✓ COMPLETED")
    assert json.loads(Path("result.json").read_text())["tasks"][0]["id"] == "extract"


def test_result_that_cannot_be_written_any_more_still_ends_with_a_summary(
    file: Path, command: Any, cluster: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object, content: bytes) -> None:
        raise pipelines.CannotWrite("--json", "r.json", "No space left on device")

    monkeypatch.setattr("talka.cli.output.ResultFile.write", fails)
    code, out, err = command("submit", "etl.yaml", "--ui", "none", "--json", "r.json")
    assert code == 1 and out.startswith("✓ COMPLETED") and "No space left" in err


@pytest.mark.parametrize(
    ("state", "code"), [(JobState.PARTIAL, 6), (JobState.FAILED, 8), (JobState.CANCELLED, 8), (JobState.TIMEOUT, 8)]
)
def test_exit_code_tells_how_the_job_ended(
    state: JobState, code: int, file: Path, command: Any, cluster: FakeClient
) -> None:
    cluster.end, cluster.final_counts = state, {"dead": 1}
    cluster.tasks = [TaskView("load", TaskState.DEAD, "work", 4, error="ValueError: no", cause="exception")]
    done = command("submit", "etl.yaml", "--ui", "none")
    assert done.code == code and "ValueError: no" in done.out and "talka jobs show job1 --why load" in done.out


def test_whoever_interrupts_is_told_that_the_job_goes_on(file: Path, command: Any, cluster: FakeClient) -> None:
    cluster.on_watch = lambda: os.kill(os.getpid(), signal.SIGINT)
    code, out, err = command("submit", "etl.yaml")
    assert (code, out) == (130, "")
    assert "talka jobs watch job1 shows it again, talka jobs cancel job1 ends it" in err


def test_interrupted_while_submitting_nobody_knows_whether_it_was(
    file: Path, command: Any, cluster: FakeClient
) -> None:
    cluster.error = KeyboardInterrupt()  # type: ignore[assignment]
    code, out, err = command("submit", "etl.yaml")
    assert (code, out) == (130, "") and "talka jobs list tells" in err


def test_cluster_that_is_gone_in_the_middle_is_exit_code_seven(file: Path, command: Any, cluster: FakeClient) -> None:
    def die() -> None:
        raise ClusterUnreachable("no manager answered within 60 s")

    cluster.on_watch = die
    code, out, err = command("submit", "etl.yaml")
    assert (code, out) == (7, "") and "no manager answered" in err and "Job job1 goes on: talka jobs watch" in err


@pytest.mark.parametrize("error", [ClusterUnreachable("nobody is there"), NotAuthorised("a token is wanted")])
def test_cluster_that_takes_no_pipeline_is_exit_code_seven(
    error: Exception, file: Path, command: Any, cluster: FakeClient
) -> None:
    cluster.error = error
    code, out, err = command("submit", "etl.yaml")
    assert (code, out) == (7, "") and str(error) in err


def test_pipeline_with_a_schedule_is_scheduled_and_not_run(file: Path, command: Any, cluster: FakeClient) -> None:
    file.write_text(YAML + 'schedule: "0 3 * * *"\n')
    code, out, err = command("submit", "etl.yaml")
    assert (code, err) == (0, "") and "etl is scheduled (0 3 * * *), next at 2026-01-02 03:00:00 UTC" in out
    assert [asked[0] for asked in cluster.asked] == ["put_schedule"]
    assert json.loads(command("submit", "etl.yaml", "--json").out)["cron"] == "0 3 * * *"


# While it runs.


def test_progress_is_told_when_it_changes_and_now_and_then_when_it_does_not(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    following = pipelines.Following(cluster, cluster.facts, wants_outputs=False)  # type: ignore[arg-type]
    for at in range(1, 41):
        following._tell(at * SECOND)
    following.facts = msgspec.structs.replace(cluster.facts, tasks=2)
    following._tell(41 * SECOND)
    following._tell(42 * SECOND)
    assert capsys.readouterr().err.splitlines() == [
        "running: 0 of 1 task ended, 1 running",
        "running: 0 of 1 task ended, 1 running",
        "running: 0 of 2 tasks ended, 1 running",
    ]


def test_job_that_takes_long_is_told_of_in_plain_lines_where_there_is_no_terminal(
    cluster: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def watch(id: str) -> AsyncIterator[DagFacts]:
        yield cluster.facts
        for _ in range(10):
            await asyncio.sleep(0)
        yield msgspec.structs.replace(cluster.facts, state=JobState.COMPLETED)

    monkeypatch.setattr(cluster, "watch_dag", watch)
    for ui, told in (("auto", "running: 0 of 1 task ended, 1 running\n"), ("none", "")):
        following = pipelines.Following(cluster, cluster.facts, wants_outputs=False, look_every_s=0)  # type: ignore[arg-type]
        following.run(ui)
        assert capsys.readouterr().err == told


def test_on_a_terminal_states_and_running_tasks_are_drawn(cluster: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    cluster.tasks = [TaskView("extract", TaskState.RUNNING, "work", 1, worker="w1#1")]
    asked = asyncio.Event()

    async def watch(id: str) -> AsyncIterator[DagFacts]:
        yield cluster.facts
        await asked.wait()
        await asyncio.sleep(0)
        yield msgspec.structs.replace(cluster.facts, state=JobState.COMPLETED)

    async def tasks(id: str, state: str, cursor: str, limit: int) -> TasksPage:
        asked.set()
        return TasksPage(cluster.tasks)

    monkeypatch.setattr(cluster, "watch_dag", watch)
    monkeypatch.setattr(cluster, "dag_tasks", tasks)
    for name, value in {"TERM": "xterm", "CI": "", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    with open(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        following = pipelines.Following(cluster, cluster.facts, wants_outputs=False)  # type: ignore[arg-type]
        following.run("full")
        monkeypatch.undo()
    drawn = b""
    with contextlib.suppress(OSError), open(leader, "rb", buffering=0) as screen:  # an error is its end
        while part := screen.read(1 << 16):
            drawn += part
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())
    assert "etl  job1  running" in plain and "▶ extract  work on w1" in plain and "1 running" in plain


def test_trouble_with_the_list_of_running_tasks_does_not_end_the_watch(
    cluster: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = 0

    async def tasks(id: str, state: str, cursor: str, limit: int) -> TasksPage:
        nonlocal asks
        asks += 1
        if asks == 1:
            raise ClusterUnreachable("not now")
        raise asyncio.CancelledError

    monkeypatch.setattr(cluster, "dag_tasks", tasks)
    following = pipelines.Following(cluster, cluster.facts, wants_outputs=False, running_every_s=0)  # type: ignore[arg-type]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(following._look())
    assert asks == 2 and following.running == []


# Results.


def results(cluster: FakeClient, *, wants_outputs: bool, **limits: int) -> Any:
    bounds = pipelines.ResultLimits(**limits)
    return asyncio.run(pipelines.result_of(cluster, cluster.facts, wants_outputs=wants_outputs, limits=bounds))  # type: ignore[arg-type]


def test_tasks_of_a_result_are_fetched_page_by_page_up_to_a_limit(cluster: FakeClient) -> None:
    cluster.tasks = [TaskView(f"t{number}", TaskState.COMPLETED) for number in range(9)]
    cluster.facts = msgspec.structs.replace(cluster.facts, tasks=9)
    result, failed = results(cluster, wants_outputs=False, page=2, tasks=5)
    assert [task.id for task in result.tasks] == ["t0", "t1", "t2", "t3", "t4"]
    assert (result.left_out, failed) == (4, [])


def test_outputs_beyond_what_a_result_may_hold_are_left_out(cluster: FakeClient) -> None:
    cluster.tasks = [TaskView(f"t{number}", TaskState.COMPLETED, output=msgspec.Raw(b'"12345"')) for number in range(4)]
    cluster.facts = msgspec.structs.replace(cluster.facts, tasks=4)
    result, _ = results(cluster, wants_outputs=True, page=1, output_bytes=10)
    assert (len(result.tasks), result.left_out) == (2, 2)
    result, _ = results(cluster, wants_outputs=False, page=1, output_bytes=10)
    assert [bytes(task.output) for task in result.tasks] == [b"null"] * 3 + [b'"12345"'], "that of the last is shown"


def test_summary_is_told_that_a_result_does_not_list_every_task(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.tasks = [
        TaskView(f"t{number}", TaskState.COMPLETED, output=msgspec.Raw(b"1"), **DONE) for number in range(4)
    ]
    cluster.tasks.append(TaskView("t4", TaskState.COMPLETED, attempts=3, output=msgspec.Raw(b"2"), **DONE))
    cluster.facts = msgspec.structs.replace(cluster.facts, state=JobState.COMPLETED, tasks=5)
    result, failed = results(cluster, wants_outputs=False, page=2, tasks=4)
    pipelines.reported(result, failed, None)
    told = capsys.readouterr().out
    assert "retries    of the first 4 tasks: none" in told and "SLOWEST of the first 4 tasks" in told
    assert "output" not in told, "t4 may be the last"


def test_summary_of_a_large_fan_out_has_the_output_of_the_task_after_it(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    load = {"started_at": DONE["ended_at"], "ended_at": "2026-01-02T03:00:05.000Z", "output": msgspec.Raw(b'"sum"')}
    cluster.tasks += [
        TaskView("clean", TaskState.COMPLETED, for_each="extract", elements={"completed": 9}, **DONE),
        TaskView("load", TaskState.COMPLETED, "work", 1, depends_on=["clean"], **load),
        *(TaskView(f"clean[{n}]", TaskState.COMPLETED, "work", 1, element_of="clean", **DONE) for n in range(9)),
    ]
    cluster.facts = msgspec.structs.replace(cluster.facts, state=JobState.COMPLETED, tasks=12)
    for wants_outputs in (False, True):
        result, failed = results(cluster, wants_outputs=wants_outputs, page=2, tasks=5)
        pipelines.reported(result, failed, None)
        told = capsys.readouterr().out
        assert result.left_out == 7 and 'output     of load: "sum"' in told
        assert "retries    of the first 5 tasks: none" in told


# Commands about one.


def test_pipeline_is_watched_like_it_was_submitted(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", "watch", "job1")
    assert code == 0 and out.startswith("✓ COMPLETED") and "watching job job1" in err
    cluster.end = JobState.PARTIAL
    code, out, _ = command("jobs", "watch", "job1", "--json")
    assert code == 6 and [json.loads(line)["state"] for line in out.splitlines()] == ["completed", "partial"]
    assert command("jobs", "watch", "job1", "--ui", "none").err == ""


def test_pipeline_is_shown_with_its_tasks(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", "show", "job1")
    assert (code, err) == (0, "") and "tasks      1: 1 running" in out and "extract  completed  work" in out
    assert json.loads(command("jobs", "show", "job1", "--json").out)["counts"] == {"running": 1}
    cluster.facts = msgspec.structs.replace(cluster.facts, tasks=7000)
    assert "first 1 of 7,000 tasks" in command("jobs", "show", "job1").err


def test_load_job_is_still_shown_as_one(command: Any, cluster: FakeClient) -> None:
    code, out, _ = command("jobs", "show", "load1")
    assert code == 0 and "cores      4" in out and "tasks" not in out


def test_jobs_of_both_kinds_are_listed(command: Any, cluster: FakeClient) -> None:
    heading, dag, load = command("jobs").out.splitlines()
    assert heading.split() == ["JOB", "NAME", "STATE", "CORES", "TASKS"]
    assert (dag.split()[3:], load.split()[3:]) == (["2/9"], ["4"])


def test_one_question_at_a_time_is_asked_of_a_pipeline(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", "show", "job1", "--graph", "--why", "load")
    assert (code, out) == (2, "") and "--graph and --why" in err
    code, out, err = command("jobs", "show", "job1", "--follow")
    assert (code, out) == (2, "") and "--logs TASK" in err and cluster.asked == []


def test_why_a_task_waits_is_a_sentence_and_a_table(command: Any, cluster: FakeClient) -> None:
    code, out, _ = command("jobs", "show", "job1", "--why", "load")
    assert code == 0 and out.startswith("load is ready: no worker is free\n") and "w1      slots" in out
    assert json.loads(command("jobs", "show", "job1", "--why", "load", "--json").out)["workers"][0]["worker"] == "w1"
    assert cluster.asked == [("why", "job1", "load")] * 2


def test_one_task_is_shown_with_its_output(command: Any, cluster: FakeClient) -> None:
    assert 'output     {"rows": 3}' in command("jobs", "show", "job1", "--task", "extract").out
    assert json.loads(command("jobs", "show", "job1", "--task", "extract", "--json").out)["output"] == {"rows": 3}


def test_graph_is_drawn_or_printed_for_programs(command: Any, cluster: FakeClient) -> None:
    cluster.graph = GraphView([*cluster.tasks, TaskView("load", TaskState.PENDING)], [("extract", "load")])
    assert "extract  completed  ──▶ load" in command("jobs", "show", "job1", "--graph").out
    assert json.loads(command("jobs", "show", "job1", "--graph", "--json").out)["edges"] == [["extract", "load"]]


def log_page(*texts: str, following: str = "") -> LogPage:
    return LogPage([LogLineView("2026-01-02T03:04:05.678Z", 1, text) for text in texts], following)


def test_logs_are_printed_up_to_what_there_is(command: Any, cluster: FakeClient) -> None:
    cluster.log_pages = [log_page("a", "b", following="2"), log_page(following="2")]
    code, out, err = command("jobs", "show", "job1", "--logs", "load")
    assert (code, err) == (0, "") and [line.rpartition(" ")[2] for line in out.splitlines()] == ["a", "b"]
    assert [asked[3] for asked in cluster.asked] == ["", "2"]
    cluster.log_pages = [log_page("a")]
    out = command("jobs", "show", "job1", "--logs", "load", "--json").out
    assert json.loads(out)["text"] == "a"
    cluster.log_pages = [log_page()]
    assert "load of job job1 has logged and printed nothing\n" in command("jobs", "show", "job1", "--logs", "load").err


def test_logs_that_are_no_longer_kept_are_told_from_logs_that_never_were(command: Any, cluster: FakeClient) -> None:
    cluster.log_pages = [LogPage([], "", is_gone=True)]
    code, out, err = command("jobs", "show", "job1", "--logs", "load")
    assert (code, out) == (0, "") and "job job1 ended so long ago that nothing of what its tasks logged" in err
    cluster.log_pages = [LogPage([], "", is_gone=True)]
    assert command("jobs", "show", "job1", "--logs", "load", "--json").err == ""


def test_followed_logs_go_on_until_no_more_can_come(cluster: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.log_pages = [log_page(following="0"), log_page(following="0"), log_page("a", following="1"), log_page("b")]
    code = pipelines.show_logs({}, "job1", "load", pipelines.LogsWanted(follow=True), every_s=0)
    out = capsys.readouterr().out
    assert code == 0 and [line.rpartition(" ")[2] for line in out.splitlines()] == ["a", "b"]


def tried(attempt: int, outcome: str = "failed", *streams: StreamText, **more: Any) -> AttemptView:
    views = [StreamView(one.stream, one.written, one.kept) for one in streams]
    cause = "" if outcome == "running" else more.pop("cause", "ValueError")
    return AttemptView(
        attempt, "w1", DONE["started_at"], DONE["ended_at"], cause, outcome=outcome, streams=views, **more
    )


def stream(name: str, text: str, written: int = 0) -> StreamText:
    kept = len(text.encode())
    return StreamText(name, written or kept, kept, text)


OUT, TRACEBACK = stream("stdout", "one\n\x1b[31mtwo\n"), stream("traceback", "Traceback\nValueError: no\n")


def test_one_task_is_shown_with_its_attempts_and_the_end_of_what_they_wrote(command: Any, cluster: FakeClient) -> None:
    long = stream("stderr", "".join(f"line {n}\n" for n in range(30)), 70_000)
    cluster.tried = [
        [
            tried(1, "failed", OUT, TRACEBACK, error="ValueError: no (h.py:3)"),
            tried(2, "died", cause="oom"),
            tried(3, "completed", long, cause="completed"),
        ]
    ]
    cluster.wrote = {1: [OUT, TRACEBACK], 3: [long]}

    out = command("jobs", "show", "job1", "--task", "extract").out
    assert re.search(r"1 +failed +w1 .* ValueError +stdout 13 B, traceback 25 B +no \(h.py:3\)\n", out)
    assert re.search(r"2 +died +w1 .* oom\n", out) and re.search(r"3 +completed +w1 .* stderr", out)
    assert "attempt 1, stdout:\n  one\n  \\x1b[31mtwo\n" in out and "\x1b" not in out
    assert "attempt 1, traceback:\n  Traceback\n  ValueError: no\n" in out
    assert "attempt 3, stderr (69,770 of 70,000 bytes are not kept: they never arrived, or" in out
    assert "; the last 10 of 30 lines):\n  line 20\n" in out
    assert "talka jobs show job1 --logs extract" in out

    report = json.loads(command("jobs", "show", "job1", "--task", "extract", "--json").out)
    assert report["id"] == "extract" and [one["outcome"] for one in report["tried"]] == ["failed", "died", "completed"]
    assert [one["attempt"] for one in report["wrote"]] == [1, 3]


def test_of_very_many_attempts_the_last_are_shown(command: Any, cluster: FakeClient) -> None:
    cluster.tried = [[tried(number, "lost") for number in range(1, 61)]]
    out = command("jobs", "show", "job1", "--task", "extract").out
    assert "(10 attempts before these: --json has them)" in out and "\n60 " in out and "\n10 " not in out


def test_logs_of_a_task_have_what_its_attempts_printed(command: Any, cluster: FakeClient) -> None:
    cluster.tried, cluster.wrote = [[tried(1, "failed", OUT, TRACEBACK), tried(2, "completed")]], {1: [OUT, TRACEBACK]}
    cluster.log_pages = [log_page("logged")]
    out = command("jobs", "show", "job1", "--logs", "load").out
    assert out.endswith(
        " logged\nattempt 1, stdout:\n  one\n  \\x1b[31mtwo\nattempt 1, traceback:\n  Traceback\n  ValueError: no\n"
    )

    cluster.log_pages = [log_page("logged")]
    out = command("jobs", "show", "job1", "--logs", "load", "--stream", "traceback", "--attempt", "1").out
    assert out == "attempt 1, traceback:\n  Traceback\n  ValueError: no\n"
    cluster.log_pages = [log_page("logged")]
    assert command("jobs", "show", "job1", "--logs", "load", "--stream", "log").out.endswith(" logged\n")
    cluster.log_pages = [log_page("logged")]
    code, out, err = command("jobs", "show", "job1", "--logs", "load", "--attempt", "2")
    assert (code, out) == (0, "") and "load of job job1 has logged and printed nothing there" in err
    cluster.tried, cluster.log_pages = [[tried(1, "died")]], [log_page()]
    _, out, err = command("jobs", "show", "job1", "--logs", "load")
    assert (out, err) == ("", "load of job job1 has logged and printed nothing that was told before its process died\n")
    cluster.tried = [[tried(1, "failed", OUT, TRACEBACK), tried(2, "completed")]]
    code, out, err = command("jobs", "show", "job1", "--logs", "load", "--attempt", "3")
    assert (code, out) == (2, "") and "task load of job job1 had no attempt 3: talka jobs show job1 --task load" in err
    cluster.log_pages = [log_page("logged")]
    first, second = command("jobs", "show", "job1", "--logs", "load", "--json").out.splitlines()
    assert json.loads(first)["text"] == "logged" and json.loads(second)["streams"][0]["stream"] == "stdout"
    code, out, err = command("jobs", "show", "job1", "--stream", "log")
    assert (code, out) == (2, "") and "--stream goes with --logs TASK" in err


def test_followed_logs_show_what_is_printed_as_it_comes(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sofar = [stream("stdout", "one\n"), stream("stdout", "one\ntwo\n"), stream("stdout", "two\nlast\n", 4_013)]
    cluster.tried = [[tried(1, "running", one)] for one in sofar] + [[tried(1, "failed", sofar[-1])]]
    cluster.log_pages = [log_page(following="0")] * 3 + [log_page()]
    turns = iter([*sofar, sofar[-1]])

    async def task_output(id: str, task: str, attempt: int = 0, stream: str = "") -> OutputView:
        return OutputView(1, [next(turns)], False)

    monkeypatch.setattr(cluster, "task_output", task_output)
    pipelines.show_logs({}, "job1", "load", pipelines.LogsWanted(follow=True), every_s=0)

    assert capsys.readouterr().out == (
        "attempt 1, stdout:\n  one\n"
        "attempt 1, stdout:\n  two\n"
        "attempt 1, stdout (the last of 4,013 bytes so far):\n  two\n  last\n"
    )


@pytest.mark.parametrize("flags", [["show"], ["watch"], ["result"]], ids=str)
def test_job_that_nobody_knows_is_a_sentence(flags: list[str], command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", *flags, "nowhere")
    assert (code, out) == (2, "") and "there is no job nowhere" in err


def test_result_of_a_pipeline_is_its_summary_once_it_has_ended(command: Any, cluster: FakeClient, folder: Path) -> None:
    code, out, err = command("jobs", "result", "job1")
    assert (code, out) == (2, "") and "job1 is running" in err
    cluster.facts = msgspec.structs.replace(cluster.facts, state=JobState.PARTIAL)
    code, out, _ = command("jobs", "result", "job1")
    assert code == 0 and out.startswith("✗ PARTIAL")
    assert json.loads(command("jobs", "result", "job1", "--json").out)["job"]["state"] == "partial"
    code, _, err = command("jobs", "result", "job1", "--html", "x.html")
    assert code == 2 and "is a pipeline" in err


# Steering.


def test_pipeline_is_paused_and_resumed(command: Any, cluster: FakeClient) -> None:
    assert command("jobs", "pause", "job1").out == (
        "job job1 is paused: no new task starts until talka jobs resume job1\n"
    )
    assert command("jobs", "resume", "job1").out == "job job1 is running\n"
    assert json.loads(command("jobs", "pause", "job1", "--json").out)["state"] == "paused"
    assert [asked[0] for asked in cluster.asked] == ["pause_dag", "resume", "pause_dag"]


def test_tasks_are_run_again_with_another_config(command: Any, cluster: FakeClient) -> None:
    code, out, _ = command("jobs", "retry", "job1", "load", "scan", "--config", 'load={"rows": [1]}')
    assert code == 0 and "talka jobs watch job1" in out
    [(_, id, request)] = cluster.asked
    assert (id, request.tasks) == ("job1", ("load", "scan"))
    assert {name: json.loads(bytes(value)) for name, value in request.config.items()} == {"load": {"rows": [1]}}
    command("jobs", "retry", "job1")
    assert cluster.asked[-1] == ("retry_dag", "job1", RetryRequest())


def test_what_would_be_run_again_from_a_task_on_is_listed_and_nothing_is_run(command: Any, cluster: FakeClient) -> None:
    code, out, _ = command("jobs", "retry", "job1", "--from", "load", "--dry-run")
    assert code == 0
    load, report = out.splitlines()[1:3]
    replaced = "others take the place of its 1,500 elements, and what is kept of those is deleted"
    assert load.split(maxsplit=2) == ["load", "dead", replaced]
    assert report.split() == ["report", "skipped"]
    assert "… and 1 more" in out and "3 tasks would be run again. Nothing was changed." in out
    document = json.loads(command("jobs", "retry", "job1", "--from", "load", "--dry-run", "--json").out)
    assert document == {
        "tasks": [{"id": "load", "state": "dead", "elements": 1500}, {"id": "report", "state": "skipped"}],
        "left_out": 1,
    }
    assert cluster.asked == [("retry_plan", "job1", RetryRequest(("load",)))] * 2
    command("jobs", "retry", "job1", "scan", "--from", "load")
    assert cluster.asked[-1] == ("retry_dag", "job1", RetryRequest(("scan", "load")))


@pytest.mark.parametrize(
    "config", ["load", "=1", "load={", "load=\ud800"], ids=["none", "nameless", "cut", "surrogate"]
)
def test_config_that_is_not_json_is_a_sentence(config: str, command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", "retry", "job1", "--config", config)
    assert (code, out, cluster.asked) == (2, "", []) and "--config" in err


def test_tasks_are_skipped(command: Any, cluster: FakeClient) -> None:
    assert "it goes on without load, scan" in command("jobs", "skip", "job1", "load", "scan").out
    assert cluster.asked == [("skip_dag", "job1", SkipRequest(("load", "scan")))]
    assert command("jobs", "skip", "job1").code == 2

    cluster.facts = msgspec.structs.replace(cluster.facts, state=JobState.PARTIAL)
    assert command("jobs", "skip", "job1", "load").out == "job job1 is partial: that was the last of it\n"


def test_queues_are_listed_by_handler_with_the_limits_that_tasks_wait_for(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", "queues")
    assert (code, out) == (0, "") and "no task waits" in err

    queue = QueueView("etl", 3, 1, 2, 90.0, delayed=4, blocked=5, completed=6, failed=7, rate_per_s=0.5)
    cluster.found_queues = QueuesView([queue, QueueView("idle", 0, 0, 1)])
    heading, first, second = command("jobs", "queues").out.splitlines()
    assert heading.split() == "HANDLER WAITING OLDEST ACTIVE DELAYED BLOCKED COMPLETED FAILED RATE WORKERS".split()
    assert first.split() == "etl 3 1m30s 1 4 5 6 7 0.500/s 2".split()
    assert second.split() == "idle 0 0 0 0 0 0 0/s 1".split()

    cluster.found_queues = QueuesView([queue], [LimitView("db", 1, 2, "", 3)])
    assert command("jobs", "queues").out.splitlines()[-1].split() == ["db", "2", "1", "3"]
    assert json.loads(command("jobs", "queues", "--json").out)["queues"][0]["delayed"] == 4


def test_schedules_are_listed_and_dropped(command: Any, cluster: FakeClient) -> None:
    code, out, err = command("jobs", "schedules")
    assert (code, out) == (0, "") and "nothing is scheduled" in err
    cluster.found_schedules = [ScheduleView("etl", "0 3 * * *", "2026-01-02T03:00:00.000Z")]
    assert "0 3 * * *" in command("jobs", "schedules").out
    assert json.loads(command("jobs", "schedules", "--json").out)["schedules"][0]["name"] == "etl"
    assert command("jobs", "schedules", "--drop", "etl").out == "etl is no longer scheduled\n"
    assert cluster.asked[-1] == ("drop_schedule", "etl")
    assert "schedules" in json.loads(command("jobs", "schedules", "--drop", "etl", "--json").out)


def test_a_schedule_is_listed_with_its_zone_its_next_instant_there_and_in_utc_and_its_last_run(
    command: Any, cluster: FakeClient
) -> None:
    paused = msgspec.structs.replace(BERLIN, name="off", paused=True, last_job="", last_in_zone="")
    cluster.found_schedules = [BERLIN, paused]
    heads, first, second = command("jobs", "schedules").out.splitlines()
    assert heads.split() == "NAME CRON ZONE NEXT THERE NEXT CATCH UP LAST RUN LAST JOB".split()
    for words in ("Europe/Berlin", "2026-03-29 03:30:00 +02:00", "2026-03-29 01:30:00 UTC", "all", "job1"):
        assert words in first
    assert "2026-03-28 02:30:00 +01:00" in first
    assert "paused" in second and "03:30:00" not in second and "01:30:00 UTC" in second
    listed = json.loads(command("jobs", "schedules", "--json").out)["schedules"][0]
    wanted = {"timezone": "Europe/Berlin", "catch_up": "all", "paused": False, "last_job": "job1"}
    assert listed | wanted == listed and listed["next_at"] == "2026-03-29T01:30:00.000Z"


def test_a_schedule_that_was_due_while_it_was_paused_is_caught_up_with(command: Any, cluster: FakeClient) -> None:
    cluster.next_at, cluster.next_in_zone = BERLIN.next_at, BERLIN.next_in_zone
    assert command("jobs", "schedules", "resume", "etl").out == (
        "etl is followed again, and what was due from 2026-03-29 03:30:00 +02:00 Europe/Berlin, 2026-03-29 01:30:00 UTC"
        " on is caught up with (catch_up: all)\n"
    )


def test_a_schedule_is_paused_resumed_and_run_now(command: Any, cluster: FakeClient) -> None:
    assert command("jobs", "schedules", "pause", "etl").out == (
        "etl is paused: talka jobs schedules resume etl goes on with it\n"
    )
    assert json.loads(command("jobs", "schedules", "pause", "etl", "--json").out)["paused"] is True
    assert command("jobs", "schedules", "resume", "etl").out == (
        "etl is followed again, next at 2226-03-31 03:30:00 +02:00 Europe/Berlin, 2226-03-31 01:30:00 UTC\n"
    )
    assert command("jobs", "schedules", "run-now", "etl", "--key", "k").out == f"{cluster.facts.id}\n"
    assert json.loads(command("jobs", "schedules", "run-now", "etl", "--json").out)["id"] == cluster.facts.id
    assert [asked[:2] for asked in cluster.asked] == [
        ("pause_schedule", "etl"),
        ("pause_schedule", "etl"),
        ("resume_schedule", "etl"),
        ("run_schedule", "etl"),
        ("run_schedule", "etl"),
    ]


def test_a_backfill_shows_each_instant_and_its_job(command: Any, cluster: FakeClient) -> None:
    cluster.runs = [
        BackfillRun("2026-11-01T03:00:00+01:00", "2026-11-01T02:00:00.000Z", "known", "job1"),
        BackfillRun("2026-11-02T03:00:00+01:00", "2026-11-02T02:00:00.000Z", "submitted", "job2"),
        BackfillRun("2026-11-03T03:00:00+01:00", "2026-11-03T02:00:00.000Z", "due"),
    ]
    asked = ("jobs", "schedules", "backfill", "etl", "--from", "2026-11-01")
    lines = command(*asked, "--to", "2026-11-04", "--dry-run").out.splitlines()
    assert cluster.asked[-1] == ("backfill", "etl", "2026-11-01", "2026-11-04", True)
    assert [" ".join(line.split()) for line in lines[:4]] == [
        "DUE UTC STATE JOB",
        "2026-11-01 03:00:00 +01:00 2026-11-01 02:00:00 UTC run before job1",
        "2026-11-02 03:00:00 +01:00 2026-11-02 02:00:00 UTC submitted job2",
        "2026-11-03 03:00:00 +01:00 2026-11-03 02:00:00 UTC would be submitted",
    ]
    assert lines[-1] == "etl was due 3 times: 1 would be submitted, 1 submitted, 1 run before"
    assert len(json.loads(command(*asked, "--to", "2026-11-04", "--json").out)["runs"]) == 3
    assert command(*asked, "--to", "2026-11-01").out == "etl was not due then\n"


def test_the_end_of_a_backfill_and_the_address_of_a_manager_are_both_told_with_to(
    command: Any, cluster: FakeClient
) -> None:
    asked = ("jobs", "schedules", "backfill", "etl", "--from", "2026-11-01")
    assert command(*asked, "--to", "10.0.0.5:8470", "--to", "2026-11-04T03:00").code == 0
    assert cluster.addresses == ["10.0.0.5:8470"] and cluster.asked[-1][3] == "2026-11-04T03:00"
    for wrong in (["here"], ["2026-11-04", "2026-11-05"], ["2026-11-04", "a:1", "b:1"]):
        code, _, err = command(*asked, *(word for one in wrong for word in ("--to", one)))
        assert code == 2 and "write the day or instant up to which" in err


# Nodes that keep and run pipelines.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["up", "--store", "redis://here"], "sqlite:///FILE"),
        (["manager", "--store", "sqlite://here"], "sqlite:///FILE"),
        (["up", "--handlers", "etl.txt"], "--handlers: etl.txt is not a Python file"),
        (["up", "--handlers", "nowhere.py"], "--handlers: there is no file nowhere.py"),
        (["worker", "--seed", "127.0.0.1:9", "--handlers", "nowhere.py"], "--handlers: there is no file nowhere.py"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_store_or_handlers_that_cannot_be_are_told_before_anything_starts(
    flags: list[str], words: str, command: Any
) -> None:
    code, out, err = command(*flags)
    assert (code, out) == (2, "") and words in err


def test_store_and_handlers_reach_the_nodes(command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def live_up(options: Any, api: Any, worker_at: Any, as_json: bool) -> int:
        seen.extend([options.store, worker_at("127.0.0.1:1").handlers])
        return 0

    async def live_manager(options: Any, api: Any, as_json: bool) -> int:
        seen.append(options.store)
        return 0

    async def live_worker(options: Any, api: Any, as_json: bool) -> int:
        seen.append(options.handlers)
        return 0

    for live in (live_up, live_manager, live_worker):
        monkeypatch.setattr(f"talka.cli.nodes.life.{live.__name__}", live)
    for name in ("a.py", "b.py"):
        (folder / name).write_text("")
    (folder / "secret").write_text("a secret of the tests, long and varied enough")
    (folder / "secret").chmod(0o600)
    place, files = "sqlite:///jobs.sqlite", (folder / "a.py", folder / "b.py")
    handlers = ["--handlers", "a.py", "--handlers", "b.py"]
    nodes = ["--data-dir", "d", "--secret-file", "secret"]
    assert command("up", "--port", "0", "--data-dir", "d", "--store", place, *handlers).code == 0
    assert command("manager", "--store", place, "--bind", "127.0.0.1:0", "--api", "127.0.0.1:0", *nodes).code == 0
    assert command("worker", "--seed", "127.0.0.1:9", *nodes, *handlers).code == 0
    assert seen == [place, files, place, files]


# The example and the documents.


def test_example_is_a_pipeline_whose_handlers_are_in_its_file() -> None:
    spec = read_pipeline(ROOT / "examples/etl/pipeline.yaml")
    handlers = handlers_of(import_file(ROOT / "examples/etl/handlers.py"))
    assert {task.handler for task in spec.tasks} == set(handlers)
    assert len([task for task in spec.tasks if task.depends_on == ("extract",)]) == 4
    assert len(next(task for task in spec.tasks if task.id == "merge").depends_on) == 4


def test_example_that_fans_out_adds_up_the_same(tmp_path: Path) -> None:
    handlers = import_file(ROOT / "examples/etl/handlers.py")
    run, whole = (
        run_dag_inline(read_pipeline(ROOT / "examples/etl" / name), handlers) for name in ("fan.yaml", "pipeline.yaml")
    )
    assert run.state is JobState.COMPLETED and len(run.tasks) == 16
    assert run.outputs["merge"] == whole.outputs["merge"] and run.outputs["report"] == whole.outputs["report"]
    assert run.outputs["clean"] == [run.outputs[f"clean[{place}]"] for place in range(12)]


def test_example_adds_up_every_order_once_though_a_part_of_it_fails_twice() -> None:
    handlers = import_file(ROOT / "examples/etl/handlers.py")
    run = run_dag_inline(read_pipeline(ROOT / "examples/etl/pipeline.yaml"), handlers)
    attempts = {name: task.attempts for name, task in run.tasks.items()}
    assert run.state is JobState.COMPLETED
    assert attempts == dict.fromkeys(attempts, 1) | {"clean-3": 3} and len(attempts) == 7
    orders = [order.split(",") for part in run.outputs["extract"]["parts"] for order in part]
    merged = run.outputs["merge"]
    assert sum(merged["amounts"].values()) == sum(int(amount) for _, amount in orders if amount)
    assert merged["dropped"] == 100 and "100 orders had no amount" in run.outputs["report"]


def shown(language: str) -> list[str]:
    page = (ROOT / "docs/pipelines.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_files_in_the_document_are_what_they_say(folder: Path) -> None:
    found = []
    for number, text in enumerate(shown("yaml")):
        (folder / f"{number}.yaml").write_text(text)
        found.append(read_pipeline(folder / f"{number}.yaml"))
    plain, dated, fanned, scheduled, told = found
    assert len(plain.tasks) == 3 and plain.settings.on_failure == "skip_dependents"
    assert list(dated.params) == ["day", "parts"]
    assert read_pipeline(folder / "1.yaml", {"day": "2026-11-16"}).values == {"day": "2026-11-16"}
    assert [(task.for_each, task.max_parallel) for task in fanned.tasks] == [("", 0), ("extract.parts", 20), ("", 0)]
    assert (scheduled.timezone, scheduled.catch_up) == ("Europe/Berlin", "all")
    assert told.settings.notify == Notify(("failed", "partial"), "https://hooks.example.com/pipelines")
    dag, _, handlers, *_ = shown("py")
    (folder / "nightly.py").write_text(dag)
    built = pipelines.pipeline_of("nightly.py")
    assert built is not None and len(built.tasks) == 52
    (folder / "shown_handlers.py").write_text(handlers)
    assert set(handlers_of(import_file(folder / "shown_handlers.py"))) == {"extract", "clean", "load"}


# Handlers that travel.


def test_handlers_travel_with_a_pipeline(file: Path, folder: Path, command: Any, cluster: FakeClient) -> None:
    (folder / "more.py").write_text(
        "from talka import handler\nprint('imported')\n@handler('work')\ndef run(task): ...\n"
    )
    done = command("submit", "etl.yaml", "--with", "more.py", "--detach", "--workers-have", "pandas")
    assert done.code == 0, done
    (spec,) = [asked[1] for asked in cluster.asked if asked[0] == "submit_dag"]
    assert spec.bundle.handlers == ("work",) and "imported" not in done.out


def test_handlers_travel_with_a_pipeline_in_python_also_from_its_own_file(
    folder: Path, command: Any, cluster: FakeClient
) -> None:
    own = "from talka import handler\nprint('imported')\n@handler('work')\ndef run(task): ...\n"
    (folder / "more_work.py").write_text(own)
    by_function = PIPELINE.replace('"work"', "run")
    (folder / "etl.py").write_text(f"from more_work import run\n{by_function}")
    (folder / "whole_etl.py").write_text(own + by_function)
    for target, more, files in (
        ("etl.py", "more_work.py", ("more_work.py",)),
        ("whole_etl.py:etl", "whole_etl.py", ("whole_etl.py",)),
    ):
        done = command("submit", target, "--with", more, "--detach")
        assert (done.code, done.out) == (0, "job1\n"), done
        spec = cluster.asked[-1][1]
        assert (spec.bundle.files, spec.bundle.handlers) == (files, ("work",))
        assert [task.handler for task in spec.tasks] == ["work", "work"]


def test_handlers_that_are_wrong_are_told_with_their_line_and_nothing_is_sent(
    file: Path, folder: Path, command: Any, cluster: FakeClient
) -> None:
    (folder / "more.py").write_text("\nraise ValueError('no')\n")
    code, _, err = command("submit", "etl.yaml", "--with", "more.py")
    assert code == 3 and "more.py:2: raised ValueError: no when it was imported" in err
    assert cluster.asked == []


def test_a_load_test_takes_no_handlers(folder: Path, command: Any) -> None:
    code, _, err = command("submit", "http://127.0.0.1:1/", "--with", "more.py")
    assert code == 2 and "--with is for pipelines" in err


def test_a_pipeline_file_does_not_name_a_bundle(folder: Path, command: Any) -> None:
    (folder / "with.yaml").write_text("name: n\nbundle: {}\ntasks: [{id: a, handler: h}]\n")
    code, _, err = command("submit", "with.yaml")
    assert code == 3 and "with.yaml:2: bundle: handlers travel by the command" in err
