"""Several kinds of users in one job run at the same time, whatever the number of cores: the plan is the load."""

import os
import signal
import time
from pathlib import Path

import pytest

ENGINES = ("native", "python")
MIX = Path(__file__).parent / "workflows" / "mix.py"
KINDS = ["Browse", "Search", "Buy", "Return", "Rate", "Leave"]
PLANNED = 80
LENGTH_S = 4.0
"""Of each plan. Two after the other would take eight."""


def runs_as_planned(document) -> None:
    workflows = {workflow["name"]: workflow for workflow in document["workflows"]}
    assert {name: one["iterations"] for name, one in workflows.items()} == dict.fromkeys(KINDS, PLANNED)
    assert all(one["dropped_iterations"] == 0 for one in workflows.values())
    assert LENGTH_S <= document["duration_s"] < LENGTH_S * 1.9, "they ran one after the other"
    assert document["status"] == "completed"


def counted(workflow) -> int:
    """Arrivals of which the result says what became of them."""
    return workflow["iterations"] + workflow["interrupted_iterations"] + workflow["dropped_iterations"]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_six_kinds_of_users_run_at_the_same_time_on_fewer_cores(command, server, cores) -> None:
    ended = command.run_file("mix.py", "--cores", str(cores))

    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = command.document()
    runs_as_planned(document)
    assert document["totals"]["requests"] == len(KINDS) * PLANNED == server.count()
    shared = {workflow["name"]: workflow["shares_cores_with"] for workflow in document["workflows"]}
    assert {len(others) for others in shared.values()} == {len(KINDS) // cores - 1}
    assert len({row["process"] for row in document["generator"]["cores"]}) == cores
    assert any(f"fewer cores ({cores}) than workflows" in warning for warning in document["warnings"])


def test_check_says_who_would_share_a_core(command) -> None:
    text = command.run("check", str(MIX), "--cores", "2").stdout

    assert "shared with Buy, Rate" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_the_death_of_a_shared_core_is_a_gap_of_every_workflow_on_it(command, server, find_cores) -> None:
    running = command.start("run", str(MIX), "--cores", "1", "--json", str(command.result), "--ui", "none")
    until = time.monotonic() + 60
    while server.count() < 60:
        assert time.monotonic() < until, "the load never began"
    (core,) = find_cores(running.pid)
    os.kill(core.pid, signal.SIGKILL)
    out, err = running.communicate(timeout=60)

    assert running.returncode == 6, out + err
    document = command.document()
    assert sorted(lost["workflow"] for lost in document["lost_shards"]) == sorted(KINDS)
    assert {workflow["status"] for workflow in document["workflows"]} == {"partial"}
    for workflow in document["workflows"]:
        (lost,) = [lost for lost in document["lost_shards"] if lost["workflow"] == workflow["name"]]
        assert 0 < lost["arrivals_missing"]
        assert counted(workflow) + lost["arrivals_missing"] == PLANNED, "nothing counts twice, and nothing is forgotten"
    assert len({row["process"] for row in document["generator"]["cores"]}) == 2, "those that take their place share one"


def test_six_kinds_of_users_run_at_the_same_time_on_two_cores_of_a_cluster(shared_jobs, job_server) -> None:
    before = job_server.count()

    ended = shared_jobs.submit(MIX)

    assert ended.code == 0, ended.err
    document = ended.document()
    runs_as_planned(document)
    assert job_server.count() - before == len(KINDS) * PLANNED
    assert all(len(workflow["shares_cores_with"]) == 2 for workflow in document["workflows"])
    assert len({row["process"] for row in document["generator"]["cores"]}) == 2


def test_what_shared_the_core_of_a_lost_worker_goes_on_together_on_another(make_jobs) -> None:
    cluster = make_jobs(3, 3)
    submitted = cluster.start_submit(MIX, "--cores", "2", "--duration", "25s")
    job = submitted.job()
    running = cluster.wait_until_running(job, len(KINDS))
    assert sorted(map(len, running.values())) == [3, 3]

    cluster.kill(next(iter(running)))
    ended = submitted.ended(120)

    assert ended.code == 6, ended.text
    document = ended.document()
    lost = {one["workflow"]: one for one in document["lost_shards"]}
    workflows = {workflow["name"]: workflow for workflow in document["workflows"]}
    assert len(lost) == len(document["lost_shards"]) == 3
    assert {workflows[name]["iterations"] for name in set(KINDS) - set(lost)} == {25 * 20}
    for name, one in lost.items():
        assert one["to_s"] < 25, "another worker went on with it"
        assert 0 < one["arrivals_missing"] == 25 * 20 - counted(workflows[name])
