"""A worker or its only manager stands still, is gone or begins anew: what ran goes on, or ends before others begin it.

What ran when is told by the code that runs: it writes down, again and again, that it does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import BEATS, HANDLERS, DagCluster, dag_cluster, one_after_the_other
from tests.e2e.job_cluster import JobCluster, job_cluster, until

LEASE_S = 2.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagCluster]:
    """Two workers. Each test leaves it whole."""
    folder, lease = tmp_path_factory.mktemp("frozen"), ("--lease", f"{LEASE_S:g}s")
    with dag_cluster(folder, 2, 1, handlers=HANDLERS + BEATS, manager_options=lease) as cluster:
        yield cluster


@pytest.mark.parametrize("handler", ["go-on", "go-on-blocked", "go-on-plain", "go-on-command"])
def test_task_of_a_frozen_worker_has_ended_there_before_it_begins_elsewhere(cluster: DagCluster, handler: str) -> None:
    job = cluster.dag(handler, {"id": "t", "handler": handler, "config": f"gate-{handler}"})
    cluster.wait_for_lines(5, job=job, word="alive")
    victim = cluster.tasks(job)["t"]["worker"]

    cluster.stop_process(victim)
    try:
        cluster.wait_until_begun_again(job)
        cluster.open_gate(f"gate-{handler}")
        facts = cluster.wait_for_end(job)
    finally:
        cluster.continue_process(victim)
    cluster.wait_until_leased()

    assert facts["counts"] == {"completed": 1}
    one_after_the_other(cluster.ledger(job=job, word="alive"))


def test_a_worker_that_comes_back_late_is_refused_what_others_have_done(cluster: DagCluster) -> None:
    job = cluster.dag("late", *({"id": f"t{n}", "handler": "work", "config": "gate-late"} for n in range(2)))
    lines = cluster.wait_for_lines(2, job=job, word="began")
    victim = cluster.tasks(job)[lines[0].task]["worker"]
    before = cluster.metric("dag_results_stale_total")

    cluster.stop_process(victim)
    try:
        cluster.open_gate("gate-late")
        facts = cluster.wait_for_end(job)
    finally:
        cluster.continue_process(victim)
    cluster.wait(
        lambda: cluster.metric("dag_results_stale_total") > before or cluster.hear(0.05), SOON_S, "a refused result"
    )
    cluster.wait_until_leased()

    stored = {task.id: task for task in cluster.stored() if task.job == job}
    assert facts["counts"] == {"completed": 2}
    assert all(task.output == task.fence for task in stored.values()), stored
    assert max(task.attempts for task in stored.values()) > 1, stored


def test_a_worker_started_again_frees_its_old_task_before_a_lease_is_over(tmp_path: Path) -> None:
    with dag_cluster(tmp_path, 1, 1, handlers=HANDLERS + BEATS, manager_options=("--lease", "1m")) as cluster:
        job = cluster.dag("reborn", {"id": "t", "handler": "go-on", "config": "gate-reborn"})
        cluster.wait_for_lines(job=job, word="alive")

        cluster.restart("w1")
        cluster.wait_until_begun_again(job)
        cluster.open_gate("gate-reborn")
        facts = cluster.wait_for_end(job)

        assert facts["counts"] == {"completed": 1}
        one_after_the_other(cluster.ledger(job=job, word="alive"))
        # Its new life proved the old one dead: nobody waited for a lease.
        lost, registered = (cluster.up["m1"].said(news, name="w1")[-1] for news in ("worker-lost", "worker-registered"))
        assert lost["at"] <= registered["at"]
        assert lost["cause"] == "it was restarted"


# The only manager


def test_workers_go_on_without_their_only_manager_and_offer_their_results_when_it_is_back(cluster: DagCluster) -> None:
    tasks = [{"id": f"t{n}", "handler": "go-on", "config": "gate-alone"} for n in range(2)]
    job = cluster.dag("alone", *tasks, {"id": "all", "handler": "echo", "depends_on": ["t0", "t1"]})
    for task in ("t0", "t1"):
        cluster.wait_for_lines(job=job, task=task, word="alive")

    cluster.kill("m1")
    over_ns = round((cluster.now() + 1.5 * LEASE_S) * 1e9)
    for task in ("t0", "t1"):
        cluster.wait(
            lambda task=task: cluster.ledger(job=job, task=task)[-1].at_ns > over_ns or cluster.hear(0.02),  # type: ignore[misc]
            SOON_S,
            f"{task} to run for longer than a lease",
        )
    cluster.open_gate("gate-alone")
    cluster.wait_for_lines(2, job=job, word="ended")
    cluster.start_manager("m1")
    cluster.wait_until_ready()
    facts = cluster.wait_for_end(job)

    assert facts["counts"] == {"completed": 3}
    began = {(line.task, line.fence) for line in cluster.ledger(job=job, word="alive")}
    assert len(began) == 2, "what was done while nobody led was done again"


def test_the_task_of_a_worker_that_a_new_manager_never_heard_waits_and_tells_for_whom(cluster: DagCluster) -> None:
    job = cluster.dag("gone", {"id": "t", "handler": "go-on", "config": "gate-gone"})
    cluster.wait_for_lines(job=job, word="alive")
    victim = cluster.tasks(job)["t"]["worker"]

    cluster.kill("m1", victim)
    cluster.start_manager("m1")
    cluster.wait_until_ready()
    told = cluster.talka("jobs", "show", job, "--why", "t")

    assert told.code == 0, told.text
    assert f"{victim} may go on without it" in told.out, told.text
    assert 240 < float(told.out.partition("given to others in ")[2].split()[0]) < 320, "five minutes"
    assert cluster.tasks(job)["t"]["attempts"] == 1
    # A new life of it is the proof that nobody had.
    cluster.restart(victim)
    cluster.wait_until_begun_again(job)
    cluster.open_gate("gate-gone")
    assert cluster.wait_for_end(job)["counts"] == {"completed": 1}
    cluster.wait_until_leased()


# Load


LOAD = """
import os, time
from talka import *

PLACE = os.open(os.environ["PLACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

class Beat(Workflow):
    vus = 1
    duration = "60s"

    @step()
    async def alive(self) -> CustomResponse[int]:
        os.write(PLACE, f"{os.getpid()} {time.time_ns()}\\n".encode())
        time.sleep(0.01)
        return CustomResponse(1)
"""


class Beat(NamedTuple):
    pid: int
    at_ns: int


def beats(place: Path) -> list[Beat]:
    text = place.read_text() if place.exists() else ""
    return [Beat(*map(int, line.split())) for line in text.splitlines()]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[JobCluster]:
    with job_cluster(tmp_path, 1, 2, manager_options=("--lease", "500ms")) as cluster:
        yield cluster


def test_shard_of_a_frozen_worker_has_ended_there_before_it_begins_elsewhere(jobs: JobCluster, tmp_path: Path) -> None:
    file, place = tmp_path / "beat.py", tmp_path / "beats"
    file.write_text(LOAD)
    started = jobs.start_submit(file, "--cores", "1", "--env", "PLACE", env={"PLACE": str(place)})
    job = started.job()
    until(lambda: len(beats(place)) >= 5, jobs, SOON_S, "five beats")
    (victim,) = jobs.wait_until_running(job, 1)

    jobs.stop_process(victim)
    try:
        until(lambda: len({one.pid for one in beats(place)}) == 2, jobs, SOON_S, "the shard to begin elsewhere")
    finally:
        jobs.continue_process(victim)
    jobs.client().cancel(job)
    started.ended()

    lines = beats(place)
    first = [one.at_ns for one in lines if one.pid == lines[0].pid]
    second = [one.at_ns for one in lines if one.pid != lines[0].pid]
    assert max(first) < min(second), f"both ran for {(max(first) - min(second)) / 1e9:.3f} s"
