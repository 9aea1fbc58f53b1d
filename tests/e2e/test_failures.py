"""What failed means to a job that runs: in rules, in the exit code and in the first lines of the summary."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Command

ENGINES = ("native", "python")
FAILING = Path(__file__).parent / "workflows" / "failing.py"
TIMES = 10


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rule_on_failed_does_not_hold_with_half_of_the_requests_at_500(command, server) -> None:
    rules = ["failed < 1%", "steps.failed < 1%", "requests.failed <= 50%", 'get/"GET /json".failed < 1%']
    rules += ["response_time{kind=page}.p99 < 50s", "Half.failed <= 50%"]

    ended = command.run_file("failing.py:Half", *(word for rule in rules for word in ("--threshold", rule)))

    assert ended.returncode == 4, ended.stdout + ended.stderr
    document = command.document()
    found = {rule["rule"]: (rule["value"], rule["passed"]) for rule in document["thresholds"]}
    times = found.pop("response_time{kind=page}.p99 < 50s")
    assert times[1] and times[0] > 0
    assert found == {
        "failed < 1%": (0.5, False),
        "steps.failed < 1%": (0.0, True),
        "requests.failed <= 50%": (0.5, True),
        'get/"GET /json".failed < 1%': (0.0, True),
        "Half.failed <= 50%": (0.5, True),
    }
    assert server.count() == document["totals"]["requests"] == 2 * TIMES
    get, tidy = document["workflows"][0]["steps"]
    assert [(call["name"], call["count"]) for call in get["calls"]] == [("GET /json", TIMES)]
    assert [(call["name"], call["failed"]) for call in tidy["calls"]] == [("tidy", TIMES)]
    assert "status  10\n" in ended.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_of_the_test_is_its_own_error_with_file_and_line(command) -> None:
    ended = command.run_file("failing.py:Mistaken")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    steps = {step["name"]: step for step in command.document()["workflows"][0]["steps"]}
    assert steps["get"]["errors"] == {"exception": TIMES}
    line = 1 + FAILING.read_text().splitlines().index("        response.json()  # of a text")
    assert f"failing.py:{line}" in steps["get"]["samples"][0]["text"]
    head = " ".join(ended.stdout.partition("TOTALS")[0].split())
    assert "get: 10 of 10 runs failed (100 %), mostly by an exception of the test." in head
    assert "The test's own code raised 10 times, first in get: " in head


@pytest.mark.parametrize("engine", ENGINES)
def test_a_workflow_without_a_success_makes_the_result_incomplete_and_an_idle_one_is_a_warning(command) -> None:
    ended = command.run_file("failing.py:Half,Refused,Idle")

    assert ended.returncode == 6, ended.stdout + ended.stderr
    document = command.document()
    assert document["reasons"] == ["Refused: requests were sent and not one step succeeded."]
    assert [text for text in document["warnings"] if "skipped" in text] == [
        "every step of Idle was skipped, every time: it says nothing about the target"
    ]
    skipped = {workflow["name"]: workflow["steps"][0]["skipped"] for workflow in document["workflows"]}
    assert skipped == {"Half": 0, "Refused": 0, "Idle": TIMES}


WRONG = "from talka import *\nclass Wrong(Workflow):\n    vus = 1\n    @step()\n    async def get(self): return 1 /\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["failing.py:Half"], 0, "COMPLETED", id="it is fine"),
        pytest.param(["failing.py:Half", "--threshold", "failed < 1%"], 4, "failed < 1%", id="a threshold is crossed"),
        pytest.param(["failing.py:Half,Refused"], 6, "not one step succeeded", id="incomplete"),
        pytest.param(["failing.py:Refused"], 6, "none succeeded", id="nothing succeeded"),
        pytest.param(["wrong.py"], 3, "wrong.py", id="a wrong file"),
    ],
)
def test_the_exit_code_tells_the_cause(tmp_path: Path, job_server, words: list[str], code: int, says: str) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    file = tmp_path / words[0] if words[0] == "wrong.py" else FAILING.with_name(words[0])

    ended = Command(tmp_path, job_server.url, "auto").run("run", str(file), *words[1:], "--cores", "1", "--ui", "none")

    assert ended.returncode == code, ended.stdout + ended.stderr
    assert says in ended.stdout + ended.stderr


def test_a_job_of_a_cluster_judges_failures_alike(shared_jobs) -> None:
    ended = shared_jobs.submit(FAILING, "--threshold", "Half.failed < 1%", "--threshold", "failed{kind=page} < 1%")

    assert ended.code == 6, ended.err
    document = ended.document()
    assert document["reasons"][0] == "Refused: requests were sent and not one step succeeded."
    assert [(rule["value"], rule["passed"]) for rule in document["thresholds"]] == [(0.5, False), (0.0, True)]
    steps = {workflow["name"]: workflow["steps"][0] for workflow in document["workflows"]}
    assert [(call["name"], call["count"]) for call in steps["Half"]["calls"]] == [("GET /json", TIMES)]
    assert (steps["Idle"]["skipped"], steps["Mistaken"]["errors"]) == (TIMES, {"exception": TIMES})
