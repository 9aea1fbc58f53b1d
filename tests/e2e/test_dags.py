"""Pipelines on real processes: a manager with a store, two workers, and the commands as users run them."""

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import HANDLERS, DagCluster, Line, dag_cluster, kill_process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagCluster]:
    """For tests that leave it as it was."""
    with dag_cluster(tmp_path_factory.mktemp("dags"), 2, 1) as cluster:
        yield cluster


# To the end


def test_a_pipeline_passes_outputs_on_and_exits_with_0(cluster: DagCluster) -> None:
    file = cluster.pipeline(
        "passes",
        {"id": "one", "handler": "echo", "config": {"n": 1}},
        {"id": "two", "handler": "shell"},
        {"id": "both", "handler": "echo", "depends_on": ["one", "two"]},
    )

    ended = cluster.submit(file)

    assert ended.code == 0, ended.text
    job, tasks = cluster.document(ended)
    assert job["state"] == "completed"
    assert tasks["both"]["output"]["inputs"] == {
        "one": {"config": {"n": 1}, "inputs": {}},
        "two": {"by": "two"},
    }


def test_a_worker_that_was_drained_takes_tasks_again_when_it_is_told_so(cluster: DagCluster) -> None:
    first, second = cluster.workers
    for name in cluster.workers:
        assert cluster.talka("workers", "drain", name).code == 0
        cluster.wait(lambda name=name: cluster.up[name].said("drained"), SOON_S, f"{name} to hear of it")
    job = cluster.dag("waits", {"id": "t", "handler": "mark"})
    why = cluster.talka("jobs", "show", job, "--why", "t")
    told = cluster.talka("workers", "undrain", first)
    ended = cluster.wait_for_end(job)
    ran_on = cluster.tasks(job)["t"]["worker"]
    cluster.talka("workers", "undrain", second)
    cluster.wait(lambda: cluster.up[second].said("undrained"), SOON_S, f"{second} to take tasks again")

    assert why.out.count("it is draining") == 2, why.text
    assert told.code == 0 and "takes new work" in told.out, told.text
    assert (ended["state"], ran_on.partition("#")[0]) == ("completed", first)


def test_a_failing_step_is_tried_again_until_it_works(cluster: DagCluster) -> None:
    file = cluster.pipeline(
        "again",
        {"id": "weak", "handler": "fails", "config": 2, "retry": {"max": 2, "backoff": "50ms"}},
        {"id": "after", "handler": "echo", "depends_on": ["weak"]},
    )

    ended = cluster.submit(file)

    assert ended.code == 0, ended.text
    job, tasks = cluster.document(ended)
    assert (tasks["weak"]["attempts"], tasks["weak"]["output"]) == (3, 3)
    assert tasks["after"]["output"]["inputs"] == {"weak": 3}
    assert [line.attempt for line in cluster.ledger(job=job["id"], task="weak")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "code", "state", "states"),
    [
        ("fail_fast", 8, "failed", {"bad": "dead", "after": "cancelled", "long": "cancelled", "late": "cancelled"}),
        (
            "skip_dependents",
            6,
            "partial",
            {"bad": "dead", "after": "skipped", "long": "completed", "late": "completed"},
        ),
        ("continue", 6, "partial", {"bad": "dead", "after": "completed", "long": "completed", "late": "completed"}),
    ],
)
def test_what_a_failure_means_for_the_others_is_the_pipelines_to_say(
    cluster: DagCluster, policy: str, code: int, state: str, states: dict[str, str]
) -> None:
    file = cluster.pipeline(
        f"policy-{policy}",
        {"id": "bad", "handler": "wrong"},
        {"id": "after", "handler": "echo", "depends_on": ["bad"]},
        {"id": "long", "handler": "until", "config": f"gate-{policy}"},
        {"id": "late", "handler": "echo", "depends_on": ["long"]},
        settings={"on_failure": policy, "retry": {"max": 0}},
    )

    started = cluster.start_submit(file)
    cluster.wait_for_task(started.job().rstrip(":"), "bad", "dead")
    if policy != "fail_fast":  # there nobody lets it go on
        cluster.open_gate(f"gate-{policy}")
    ended = started.ended()

    job, tasks = cluster.document(ended)
    assert {name: task["state"] for name, task in tasks.items()} == states
    assert (ended.code, job["state"]) == (code, state), ended.text
    assert "ValueError" in tasks["bad"]["error"], tasks["bad"]
    if policy == "continue":
        assert tasks["after"]["output"]["inputs"] == {}


def test_the_memory_of_short_attempts_that_completed_is_shown(tmp_path: Path) -> None:
    fill = "held = bytearray(300 << 20)\nfor place in range(0, len(held), 4096): held[place] = 1"
    handlers = f"""
import sys

@handler("fill")
def fill(task):
    exec({fill!r})

command("fat", [sys.executable, "-I", "-S", "-c", {fill!r}])
"""
    with dag_cluster(tmp_path, 1, 1, handlers=HANDLERS + handlers) as cluster:
        job = cluster.dag(
            "memory",
            {"id": "function", "handler": "fill"},
            {"id": "command", "handler": "fat", "depends_on": ["function"]},
            {"id": "small", "handler": "echo", "depends_on": ["command"]},
        )
        assert cluster.wait_for_end(job)["state"] == "completed"
        told = {name: task["memory_bytes"] for name, task in cluster.tasks(job).items()}
        shown = cluster.talka("jobs", "show", job, "--task", "command").text

    assert told["function"] > 300 << 20
    assert 300 << 20 < told["command"] < told["function"]
    assert 1 << 20 < told["small"] < 200 << 20
    assert "memory     3" in shown


def test_a_crash_and_a_coroutine_that_blocks_its_loop_are_shown_with_the_lines_where_they_were(tmp_path: Path) -> None:
    handlers = """
import ctypes
import time

@handler("crash")
def crash(task):
    ctypes.string_at(0)

@handler("hang")
async def hang(task):
    time.sleep(1000)
"""
    with dag_cluster(tmp_path, 1, 1, handlers=HANDLERS + handlers) as cluster:
        job = cluster.dag(
            "ends",
            {"id": "crash", "handler": "crash"},
            {"id": "hang", "handler": "hang", "timeouts": {"attempt": "100ms"}},
            settings={"on_failure": "continue", "retry": {"max": 0}},
        )
        assert cluster.wait_for_end(job)["state"] == "failed"
        crashed = cluster.talka("jobs", "show", job, "--task", "crash").text
        hung = cluster.talka("jobs", "show", job, "--task", "hang").text

    place = r'File "\S*handlers\w*\.py", line \d+ in '
    assert re.search(place + r"crash\n +File .* in string_at\n +Fatal Python error: Segmentation fault\n", crashed), (
        crashed
    )
    assert "was here before it was killed" in hung and re.search(place + r"hang\n", hung), hung


def test_every_attempt_keeps_its_last_words_also_one_whose_process_was_killed(tmp_path: Path) -> None:
    handlers = """
import logging
import sys

@handler("speaks")
def speaks(task):
    print("begun", task.attempt)
    logging.warning("careful \\x1b[31m%s", task.attempt)
    if task.attempt == 1:
        note("began", task)
        hold("never")
    raise IndexError

command("shouts", ["sh", "-c", "echo half; echo why >&2; kill -9 $$"])
"""
    with dag_cluster(tmp_path, 1, 1, handlers=HANDLERS + handlers) as cluster:
        # given an attempt whose words have reached the manager
        job = cluster.dag(
            "words",
            {"id": "fn", "handler": "speaks"},
            {"id": "cmd", "handler": "shouts", "retry": {"max": 0}},
            settings={"on_failure": "continue", "retry": {"max": 1, "backoff": "0s"}},
        )
        (line,) = cluster.wait_for_lines(job=job, task="fn", word="began")
        output = f"/v1/jobs/{job}/tasks/fn/output"

        def is_told() -> bool:
            cluster.hear(0.05)
            return any(one["stream"] == "stdout" for one in cluster.ask_api("GET", output).good()["streams"])

        cluster.wait(is_told, SOON_S, "the words of an attempt under way")

        # when its process is killed, and the next one raises
        kill_process(line.pid)
        assert cluster.wait_for_end(job)["state"] == "failed"

        # then each attempt is shown with what it wrote, and what happened is said
        first, second = cluster.ask_api("GET", f"/v1/jobs/{job}/tasks/fn/attempts").good()["items"]
        assert (first["outcome"], first["signal"], second["outcome"], second["cause"]) == (
            *("died", "SIGKILL"),
            *("failed", "IndexError"),
        )
        died = {one["stream"]: one["text"] for one in cluster.ask_api("GET", f"{output}?attempt=1").good()["streams"]}
        assert died["stdout"] == "begun 1\n" and "careful \x1b[31m1" in died["stderr"]
        shown = cluster.talka("jobs", "show", job, "--task", "fn").text
        assert "attempt 2, stdout:\n  begun 2\n" in shown and "  IndexError\n" in shown
        assert "\\x1b[31m2" in shown and "\x1b" not in shown
        command = {
            one["stream"]: one["text"] for one in cluster.ask_api("GET", output.replace("fn", "cmd")).good()["streams"]
        }
        assert command == {"stdout": "half\n", "stderr": "why\n"}
        why = cluster.talka("jobs", "show", job, "--why", "fn").text
        assert re.search(r"fn is dead: gave up after 2 attempts: IndexError in handlers\w*\.py:\d+", why), why


def test_what_never_helps_is_not_tried_again(cluster: DagCluster) -> None:
    job = cluster.dag("never", {"id": "bad", "handler": "wrong", "retry": {"max": 5, "never": ["ValueError"]}})

    facts = cluster.wait_for_end(job)

    assert (facts["state"], facts["exit_code"]) == ("failed", 8)
    assert cluster.tasks(job)["bad"]["attempts"] == 1


def test_an_attempt_that_takes_too_long_is_stopped_and_tried_again(cluster: DagCluster) -> None:
    job = cluster.dag(
        "slow",
        {
            "id": "slow",
            "handler": "block",
            "config": 60,
            "timeouts": {"attempt": "1s"},
            "retry": {"max": 1, "backoff": 0},
        },
    )

    facts = cluster.wait_for_end(job)

    task = cluster.tasks(job)["slow"]
    assert (facts["state"], task["state"], task["attempts"], task["cause"]) == ("failed", "dead", 2, "timeout")


def test_a_checkpoint_is_found_by_the_next_attempt(cluster: DagCluster) -> None:
    job = cluster.dag("steps", {"id": "steps", "handler": "steps", "config": 30, "retry": {"backoff": 0}})
    [first] = cluster.wait_for_lines(job=job, task="steps")

    def is_kept() -> bool:
        cluster.hear(0.05)
        return [task.checkpoint for task in cluster.stored() if task.job == job] == [15]

    cluster.wait(is_kept, SOON_S, "the checkpoint to be kept")
    kill_process(first.pid)
    facts = cluster.wait_for_end(job)

    assert facts["state"] == "completed", cluster.tasks(job)
    assert [line.text for line in cluster.ledger(job=job, task="steps")] == ["None", "15"]


# Watching and steering


def test_a_task_says_what_it_waits_for(cluster: DagCluster) -> None:
    job = cluster.dag(
        "why",
        {"id": "first", "handler": "until", "config": "never"},
        {"id": "second", "handler": "mark", "depends_on": ["first"]},
        {"id": "nowhere", "handler": "unheard-of"},
        {"id": "special", "handler": "mark", "capabilities": ["gpu"]},
    )
    cluster.wait_for_task(job, "first", "running")  # its manager is told after it has begun

    told = {
        task: cluster.talka("jobs", "show", job, "--why", task).out
        for task in ("first", "second", "nowhere", "special")
    }
    cancelled = cluster.talka("jobs", "cancel", job)

    assert "running" in told["first"]
    assert "waits for first" in told["second"]
    assert all(name in told["nowhere"] for name in ("w1", "w2", "unheard-of")), told["nowhere"]
    assert "gpu" in told["special"]
    assert cancelled.code == 0, cancelled.text


DATED = """\
name: dated
params:
  day: {type: date}
  parts: {type: int, default: 4}
tasks:
  - id: a
    handler: echo
    config: {file: "orders-${day}.csv", parts: "${parts}", literally: "$${day}"}
"""


def test_a_pipeline_runs_with_the_values_that_it_is_given_and_not_without(cluster: DagCluster) -> None:
    file = cluster.folder / "dated.yaml"
    file.write_text(DATED)

    ended = cluster.submit(file, "--param", "day=2026-11-16", "--param", "parts=16")
    wrong = [cluster.submit(file, *words) for words in ((), ("--param", "day=16.11."), ("--param", "dy=1"))]

    assert ended.code == 0, ended.text
    job, tasks = cluster.document(ended)
    config = {"file": "orders-2026-11-16.csv", "parts": 16, "literally": "${day}"}
    assert tasks["a"]["output"]["config"] == config
    assert job["params"] == {"day": "2026-11-16", "parts": 16}
    assert [refused.code for refused in wrong] == [3, 3, 3]
    assert "dated.yaml:3: param day has no default" in wrong[0].err
    assert 'dated.yaml:3: param day: "16.11." is not a date' in wrong[1].err
    assert 'dated.yaml:3: there is no param "dy" (did you mean day?)' in wrong[2].err


def test_what_no_worker_could_run_is_refused_unless_it_waits(cluster: DagCluster) -> None:
    file = cluster.pipeline("typing-error", {"id": "a", "handler": "marck"})

    fits = cluster.pipeline("fits", {"id": "a", "handler": "mark"}, {"id": "b", "handler": "shell"})

    cluster.wait_until_leased()

    refused = cluster.submit(file)
    checked = cluster.talka("check", str(file), "--to", cluster.to)
    could = cluster.talka("check", str(fits), "--to", cluster.to)
    found = cluster.talka("check", str(fits), "--to", cluster.to, "--json")
    waits = cluster.submit(file, "--wait-for-workers", "--detach")

    sentence = 'no worker has the handler "marck" (did you mean mark?); known: block, echo, '
    assert refused.code == 3 and sentence in refused.err and "--wait-for-workers" in refused.err
    assert checked.code == 3 and sentence in checked.out
    assert [could.code, found.code] == [0, 0], could.text + found.text
    for line, group in zip(could.out.splitlines()[-2:], json.loads(found.out)["groups"], strict=True):
        assert sorted(re.split(", | +", line.partition("✓ ")[2])) == cluster.workers, could.text
        assert sorted(one["worker"] for one in group["found"]["workers"]) == cluster.workers
        assert (group["handler"], group["found"]["able"], group["found"]["lack"]) == (line.split()[0], 2, "")
    assert waits.code == 0, waits.text
    assert cluster.talka("jobs", "cancel", waits.out.strip()).code == 0


def test_a_cancelled_pipeline_stops_what_runs_and_starts_nothing(cluster: DagCluster) -> None:
    file = cluster.pipeline(
        "cancelled",
        {"id": "runs", "handler": "until", "config": "never"},
        {"id": "waits", "handler": "echo", "depends_on": ["runs"]},
    )
    started = cluster.start_submit(file)
    job = started.job().rstrip(":")
    cluster.wait_for_lines(job=job, task="runs")

    cluster.talka("jobs", "cancel", job, "--reason", "wrong day")
    ended = started.ended()

    told, tasks = cluster.document(ended)
    assert ended.code == 8, ended.text
    assert (told["state"], told["reason"]) == ("cancelled", "wrong day")
    assert {task["state"] for task in tasks.values()} == {"cancelled"}
    assert not cluster.ledger(job=job, task="waits")
    assert not cluster.ledger(job=job, task="runs", word="ended")


def test_a_paused_pipeline_starts_nothing_until_it_is_resumed(cluster: DagCluster) -> None:
    job = cluster.dag(
        "paused",
        {"id": "first", "handler": "until", "config": "paused-gate"},
        {"id": "second", "handler": "mark", "depends_on": ["first"]},
    )
    cluster.wait_for_lines(job=job, task="first")

    paused = cluster.talka("jobs", "pause", job)
    cluster.open_gate("paused-gate")
    cluster.wait_for_task(job, "first", "completed")
    cluster.listen(0.5)
    before = cluster.ledger(job=job, task="second")
    state = cluster.facts(job)["state"]
    resumed = cluster.talka("jobs", "resume", job)
    facts = cluster.wait_for_end(job)

    assert (paused.code, resumed.code) == (0, 0), paused.text + resumed.text
    assert (before, state) == ([], "paused")
    assert facts["state"] == "completed"


def test_a_skipped_task_is_not_waited_for(cluster: DagCluster) -> None:
    job = cluster.dag(
        "skipped",
        {"id": "first", "handler": "until", "config": "skipped-gate"},
        {"id": "second", "handler": "mark", "depends_on": ["first"], "delay": 600},
        {"id": "third", "handler": "echo", "depends_on": ["second"]},
    )

    skipped = cluster.talka("jobs", "skip", job, "second")
    cluster.open_gate("skipped-gate")
    facts = cluster.wait_for_end(job)

    assert skipped.code == 0, skipped.text
    tasks = cluster.tasks(job)
    assert {name: task["state"] for name, task in tasks.items()} == {
        "first": "completed",
        "second": "skipped",
        "third": "completed",
    }
    assert tasks["third"]["output"]["inputs"] == {}
    assert facts["exit_code"] is not None


def test_a_dead_letter_has_every_attempt_and_is_replayed_with_another_config(cluster: DagCluster) -> None:
    job = cluster.dag(
        "dead",
        {"id": "weak", "handler": "fails", "config": 100, "retry": {"max": 2, "backoff": 0}},
        {"id": "after", "handler": "echo", "depends_on": ["weak"]},
        settings={"on_failure": "skip_dependents"},
    )
    assert cluster.wait_for_end(job)["state"] == "failed"

    listed = cluster.talka("dead-letters", "--json")
    shown = cluster.talka("dead-letters", "show", f"{job}/weak")
    replayed = cluster.talka("dead-letters", "replay", f"{job}/weak", "--config", "0")
    facts = cluster.wait_for_end(job)

    letters = [letter for letter in json.loads(listed.out)["dead_letters"] if letter["job"] == job]
    assert [attempt["attempt"] for attempt in letters[0]["attempts"]] == [1, 2, 3]
    assert {attempt["cause"] for attempt in letters[0]["attempts"]} == {"ConnectionError"}
    assert "attempt 3 finds nobody" in shown.out, shown.text
    assert replayed.code == 0, replayed.text
    assert facts["state"] == "completed", cluster.tasks(job)
    assert cluster.tasks(job)["after"]["state"] == "completed"
    again = cluster.talka("dead-letters", "--json")
    assert job not in again.out


def test_an_ended_pipeline_is_run_again_from_a_task_on(cluster: DagCluster) -> None:
    job = cluster.dag(
        "rerun",
        {"id": "first", "handler": "mark"},
        {"id": "second", "handler": "echo", "config": 1, "depends_on": ["first"]},
        {"id": "third", "handler": "echo", "depends_on": ["second"]},
    )
    assert cluster.wait_for_end(job)["state"] == "completed"
    before = cluster.tasks(job)
    first = before["first"]["output"]

    plan = cluster.talka("jobs", "retry", job, "--from", "second", "--dry-run")
    listed = cluster.talka("jobs", "retry", job, "--from", "second", "--dry-run", "--json")
    assert [plan.code, listed.code] == [0, 0], plan.text + listed.text
    assert [line.split() for line in plan.out.splitlines()[1:3]] == [["second", "completed"], ["third", "completed"]]
    assert "2 tasks would be run again. Nothing was changed." in plan.out
    again = [{"id": name, "state": "completed"} for name in ("second", "third")]
    assert json.loads(listed.out) == {"tasks": again, "left_out": 0}
    assert (cluster.facts(job)["state"], cluster.tasks(job)) == ("completed", before)

    answer = cluster.talka("jobs", "retry", job, "second", "--config", "second=2")
    facts = cluster.wait_for_end(job)

    assert answer.code == 0, answer.text
    assert facts["state"] == "completed"
    tasks = cluster.tasks(job)
    assert tasks["first"]["output"] == first
    assert tasks["second"]["output"] == {"config": 2, "inputs": {"first": first}}
    assert tasks["third"]["output"]["inputs"]["second"]["config"] == 2
    assert [len(cluster.ledger(job=job, task=name, word="began")) for name in ("first", "second", "third")] == [1, 2, 2]


def test_lines_of_handlers_are_kept_however_short_they_ran(cluster: DagCluster) -> None:
    number = 20
    # One after the other: the line of one is told while the next runs.
    chain = [
        {"id": f"t{n}", "handler": "echo", "depends_on": [f"t{n - 1}"] if n else [], "config": n} for n in range(number)
    ]
    job = cluster.dag("logs", *chain)
    cluster.wait_for_end(job)

    def missing() -> list[str]:
        cluster.listen(0.1)
        logs = {n: cluster.ask_api("GET", f"/v1/jobs/{job}/tasks/t{n}/logs").good()["items"] for n in range(number)}
        return [f"t{n}" for n, lines in logs.items() if [line["text"] for line in lines] != [f"attempt 1 of t{n}"]]

    cluster.wait(lambda: not missing(), SOON_S, f"lines of {missing()}")
    shown = cluster.talka("jobs", "show", job, "--logs", "t7")
    events = cluster.ask_api("GET", f"/v1/jobs/{job}/events").good()

    assert "attempt 1 of t7" in shown.out, shown.text
    assert {event["kind"] for event in events["items"]} >= {"started", "ended"}


# Limits, keys and schedules


def test_a_limit_holds_over_all_jobs_and_workers(cluster: DagCluster) -> None:
    limits = [{"key": "door", "concurrency": 1}]
    jobs = [
        cluster.dag(
            f"door-{n}", *({"id": f"t{m}", "handler": "mark", "config": 0.1, "limits": limits} for m in range(4))
        )
        for n in range(3)
    ]

    for job in jobs:
        assert cluster.wait_for_end(job)["state"] == "completed"

    lines = sorted((line for job in jobs for line in cluster.ledger(job=job)), key=lambda line: line.at_ns)
    assert len(lines) == 24
    assert [line.word for line in lines] == ["began", "ended"] * 12


def test_a_rate_limit_spreads_starts(cluster: DagCluster) -> None:
    limits = [{"key": "gate", "rate": "5/s"}]
    job = cluster.dag("gate", *({"id": f"t{n}", "handler": "mark", "limits": limits} for n in range(21)))

    assert cluster.wait_for_end(job)["state"] == "completed"

    # They take four seconds, of which a busy machine may keep the first one waiting for some.
    starts = sorted(line.at_ns for line in cluster.ledger(job=job, word="began"))
    assert starts[-1] - starts[0] >= 1_000_000_000


def test_a_task_whose_key_was_done_before_has_that_output(cluster: DagCluster) -> None:
    first = cluster.dag("once", {"id": "pays", "handler": "mark", "key": "invoice-17"})
    cluster.wait_for_end(first)
    second = cluster.dag("once more", {"id": "pays", "handler": "mark", "key": "invoice-17"})
    cluster.wait_for_end(second)

    outputs = [cluster.tasks(job)["pays"]["output"] for job in (first, second)]
    assert outputs[0] == outputs[1]
    assert not cluster.ledger(job=second)


def test_a_pipeline_submitted_twice_with_one_key_is_one_job(cluster: DagCluster) -> None:
    file = cluster.pipeline("twice", {"id": "one", "handler": "mark"})
    other = cluster.pipeline("other", {"id": "one", "handler": "mark", "config": 0.1})

    first, second = (cluster.submit(file, "--key", "monday") for _ in range(2))
    third = cluster.submit(other, "--key", "monday")

    assert cluster.document(first)[0]["id"] == cluster.document(second)[0]["id"]
    assert third.code not in (0, 6, 8), third.text
    assert "monday" in third.err


@pytest.mark.patient
def test_a_schedule_submits_its_pipeline_when_it_is_due(cluster: DagCluster) -> None:
    file = cluster.folder / "minutely.json"
    file.write_text(
        json.dumps({"name": "minutely", "schedule": "* * * * *", "tasks": [{"id": "tick", "handler": "mark"}]})
    )

    put = cluster.talka("submit", str(file))
    listed = cluster.talka("jobs", "schedules")
    cluster.wait_for_lines(task="tick", within_s=90)
    dropped = cluster.talka("jobs", "schedules", "--drop", "minutely")
    after = cluster.talka("jobs", "schedules")

    assert (put.code, dropped.code) == (0, 0), put.text + dropped.text
    assert "minutely" in listed.out
    assert "minutely" not in after.out


# Many


@pytest.mark.timeout(300)
def test_tasks_streamed_as_ndjson_are_one_job_once_all_are_there(cluster: DagCluster) -> None:
    number = 20_000
    head = json.dumps({"kind": "dag", "name": "stream"}).encode() + b"\n"
    lines = (
        json.dumps(
            {"id": f"t{n}", "handler": "mark", **({"depends_on": [f"t{n - 1000}"]} if n >= 1000 else {})}
        ).encode()
        for n in range(number)
    )

    answer = cluster.ask_api("POST", "/v1/jobs", head + b"\n".join(lines) + b"\n", kind="application/x-ndjson")
    facts = cluster.wait_for_end(answer.body["id"], 200)

    assert answer.status == 201, answer
    assert (facts["state"], facts["counts"]) == ("completed", {"completed": number})
    began = cluster.ledger(job=facts["id"], word="began")
    assert len(began) == len({line.task for line in began}) == number
    place = {line.task: line.at_ns for line in cluster.ledger(job=facts["id"], word="ended")}
    assert all(
        place[f"t{n - 1000}"] <= next_at for n, next_at in ((int(b.task[1:]), b.at_ns) for b in began) if n >= 1000
    )


def test_ten_dags_at_once_run_each_task_once_and_after_all_it_waits_for(cluster: DagCluster) -> None:
    layers, width = 6, 10
    tasks = [
        {
            "id": f"{layer}.{n}",
            "handler": "mark",
            "config": 0.02,
            "depends_on": [f"{layer - 1}.{(n + step) % width}" for step in range(3)] if layer else [],
        }
        for layer in range(layers)
        for n in range(width)
    ]
    tasks.append({"id": "sink", "handler": "mark", "depends_on": [f"{layers - 1}.{n}" for n in range(width)]})

    jobs = [cluster.dag(f"dag-{n}", *tasks) for n in range(10)]

    for job in jobs:
        assert cluster.wait_for_end(job)["counts"] == {"completed": layers * width + 1}
        began = {line.task: line for line in cluster.ledger(job=job, word="began")}
        ended = {line.task: line for line in cluster.ledger(job=job, word="ended")}
        assert len(cluster.ledger(job=job)) == 2 * len(tasks)
        for task in tasks:
            given = dict(word.split("=") for word in began[task["id"]].text.split(",") if word)
            assert given == {before: str(ended[before].fence) for before in task["depends_on"]}
            assert all(ended[before].at_ns <= began[task["id"]].at_ns for before in task["depends_on"])


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_a_hundred_jobs_on_ten_workers_lose_nothing_and_are_fair(tmp_path: Path) -> None:
    with dag_cluster(tmp_path, 10, 1, start=False) as cluster:
        cluster.start_manager("m1")
        cluster.wait_for("m1", "elected")
        cluster.wait_until_loaded()
        # Before there is anybody to run them: else the first job is done before the last is there.
        small = [{"id": f"t{n}", "handler": "work", "config": 0.04} for n in range(40)]
        jobs = [cluster.dag(f"job-{n}", *small) for n in range(100)]
        for name in cluster.workers:
            cluster.start_worker(name)
        for job in jobs:
            assert cluster.wait_for_end(job, 200)["counts"] == {"completed": 40}

        lines = cluster.ledger(word="began")

    assert len(lines) == len({(line.job, line.task) for line in lines}) == 4000
    assert least_fairness(lines, jobs) >= 0.9


def least_fairness(lines: list[Line], jobs: list[str], window_s: float = 5.0, starts_each: int = 8) -> float:
    """Jain's index of starts for each job in every window in which all of them still had work. On a slow machine
    windows are longer: few starts cannot be shared out evenly."""
    begun_ns = max(min(line.at_ns for line in lines if line.job == job) for job in jobs)
    over_ns = min(max(line.at_ns for line in lines if line.job == job) for job in jobs)
    starts = sorted((line.at_ns, line.job) for line in lines if begun_ns <= line.at_ns <= over_ns)
    least, windows = 1.0, 0
    for first, (at_ns, _) in enumerate(starts):
        end = max(bisect_left(starts, (at_ns + round(window_s * 1e9), "")), first + starts_each * len(jobs))
        if end >= len(starts):
            break
        windows += 1
        counts = Counter(job for _, job in starts[first:end])
        squares = sum(count * count for count in counts.values())
        least = min(least, (end - first) ** 2 / (len(jobs) * squares))
    assert windows, "no window in which all of them had work"
    return least
