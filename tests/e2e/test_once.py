"""`@setup(once=True)` and `@teardown(once=True)` run once for a job, however many cores it has."""

import signal
import time
from pathlib import Path

import pytest

ENGINES = ("native", "python")
ONCE = Path(__file__).parent / "workflows" / "once.py"
PLANNED = 80


def ran_once(document) -> None:
    workflows = {workflow["name"]: workflow for workflow in document["workflows"]}
    assert list(workflows) == ["Shop.setup", "Shop", "Shop.teardown"]
    for name in ("Shop.setup", "Shop.teardown"):
        assert [(step["ok"], step["failed"]) for step in workflows[name]["steps"]] == [(1, 0)]
    assert [(check["passed"], check["failed"]) for check in workflows["Shop"]["checks"]] == [(PLANNED, 0)]
    assert document["status"] == "completed"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_setup_for_the_job_runs_once_and_its_value_reaches_every_core(command, server) -> None:
    ended = command.run_file("once.py", "--cores", "2")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = command.document()
    ran_once(document)
    assert document["workflows"][1]["cores"] == 2
    assert server.count() == PLANNED + 2


def test_a_setup_for_the_job_runs_once_on_a_cluster(shared_jobs, job_server) -> None:
    before = job_server.count()

    ended = shared_jobs.submit(ONCE)

    assert ended.code == 0, ended.text
    ran_once(ended.document())
    assert job_server.count() - before == PLANNED + 2


def test_a_teardown_for_the_job_also_runs_when_the_job_is_interrupted(command, server) -> None:
    running = command.start("run", str(ONCE), "--cores", "1", "--json", str(command.result), "--ui", "none")
    until = time.monotonic() + 60
    while server.count() < 10:
        assert time.monotonic() < until, "the load never began"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)

    assert running.returncode == 130, out + err
    workflows = {workflow["name"]: workflow for workflow in command.document()["workflows"]}
    assert workflows["Shop"]["status"] == "cancelled"
    assert [(step["ok"], step["failed"]) for step in workflows["Shop.teardown"]["steps"]] == [(1, 0)]
