"""Nobody is dead, and some do not hear each other: work ends before it begins elsewhere, and goes on afterwards."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from talka.client.client import Client
from tests.e2e.chaos_cluster import Watcher
from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import BEATS, HANDLERS, DagCluster, dag_cluster, one_after_the_other
from tests.e2e.job_cluster import until
from tests.e2e.networks import Relay, part

LEASE = ("--lease", "2s")
HELD = "too many workers are silent at once, so none is given up yet"
PLAIN = Path(__file__).parent / "workflows" / "plain.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagCluster]:
    """A manager and three workers that reach it through a relay. Each test leaves it whole."""
    folder = tmp_path_factory.mktemp("cut")
    made = dag_cluster(folder, 3, 1, handlers=HANDLERS + BEATS, network=Relay(), manager_options=LEASE)
    with made as cluster:
        yield cluster


@pytest.fixture
def whole(cluster: DagCluster) -> Iterator[DagCluster]:
    """Whatever was cut or stopped is not afterwards."""
    try:
        yield cluster
    finally:
        cluster.network.mend()
        for name in cluster.workers:
            cluster.continue_process(name)
        cluster.wait_until_leased()


def test_the_task_of_a_worker_that_is_cut_off_ends_there_before_it_begins_elsewhere(whole: DagCluster) -> None:
    cluster = whole
    job = cluster.dag("cut", {"id": "t", "handler": "go-on", "config": "gate-cut"})
    cluster.wait_for_lines(5, job=job, word="alive")
    victim = cluster.tasks(job)["t"]["worker"]

    part(cluster.network, ["m1"], [victim])
    cluster.wait_for(victim, "lease-ended", reason="no manager renewed the lease in time")
    cluster.wait_until_begun_again(job)
    cluster.open_gate("gate-cut")

    assert cluster.wait_for_end(job)["counts"] == {"completed": 1}
    assert cluster.tasks(job)["t"]["worker"] != victim
    one_after_the_other(cluster.ledger(job=job, word="alive"))
    assert not cluster.up[victim].is_over, "it was cut off, and lives"


def test_workers_stop_when_their_only_manager_is_cut_off_from_them(whole: DagCluster) -> None:
    cluster = whole
    ended = {name: len(cluster.up[name].said("lease-ended")) for name in cluster.workers}
    job = cluster.dag("silence", {"id": "t", "handler": "go-on", "config": "gate-silence"})
    line = cluster.wait_for_lines(job=job, word="alive")[-1]

    part(cluster.network, ["m1"], cluster.workers)
    cluster.wait(
        lambda: all(len(cluster.up[name].said("lease-ended")) > ended[name] for name in cluster.workers),
        SOON_S,
        "every worker to stop",
    )
    until(lambda: not psutil.pid_exists(line.pid), cluster, SOON_S, "the task's process to end")
    cluster.network.mend()
    cluster.wait_until_begun_again(job)
    cluster.open_gate("gate-silence")

    assert cluster.wait_for_end(job)["counts"] == {"completed": 1}
    one_after_the_other(cluster.ledger(job=job, word="alive"))


def test_when_most_workers_fall_silent_at_once_the_leader_suspects_the_network_and_says_so(whole: DagCluster) -> None:
    """That it waits for ten seconds is shown by `tests/control/jobs/workers/test_fleet.py`, on a clock of its own."""
    cluster, manager = whole, whole.up["m1"]
    held = len(manager.said("eviction-held"))
    job = cluster.dag("silent", {"id": "t", "handler": "go-on", "config": "gate-silent"})
    cluster.wait_for_lines(job=job, word="alive")

    for name in cluster.workers:
        cluster.stop_process(name)
    cluster.wait(lambda: len(manager.said("eviction-held")) > held, SOON_S, "the leader to suspect the network")
    told = manager.said("eviction-held")[held]
    # The first of them was due then; that of the task may be a moment later.
    until(
        lambda: HELD in str(cluster.ask_api("GET", f"/v1/jobs/{job}/tasks/t/why").good()), cluster, SOON_S, "the reason"
    )
    for name in cluster.workers:
        cluster.continue_process(name)
    cluster.open_gate("gate-silent")

    assert cluster.wait_for_end(job)["counts"] == {"completed": 1}
    assert told["names"] == "w1, w2, w3"


def test_without_a_majority_of_managers_workers_stop_and_the_api_answers_503(make_jobs, job_server) -> None:
    cluster = make_jobs(3, 1, manager_options=LEASE)
    cluster.wait_for_voters()
    before = job_server.count()
    started = cluster.start_submit(PLAIN, "--rate", "20/s", "--for", "8s", "--cores", "1")
    job = started.job()
    watcher = Watcher(Client([cluster.api(name) for name in cluster.managers]), job)
    until(watcher.counted, cluster, SOON_S, "the first requests to be counted")
    shown, left = watcher.counted(), cluster.owner(job)

    killed = [name for name in cluster.managers if name != left]
    cluster.kill(*killed)
    cluster.wait_for("w1", "lease-ended", reason="no manager renewed the lease in time")
    cluster.wait_for("w1", "task-killed", job=job)
    # What needs a leader is held for 20 s before it is refused: a client would have asked another manager meanwhile.
    until(lambda: cluster.status(left, "/readyz") == 503, cluster, SOON_S, "the API to answer 503")
    for name in killed:
        cluster.start_manager(name)
    ended = started.ended()

    # It was accepted: it ends, counts all that its manager had counted, and tells what is missing.
    document = ended.document()
    assert (ended.code, document["status"]) == (6, "partial"), ended.text
    assert document["lost_shards"][0]["arrivals_missing"] > 0
    assert shown <= document["totals"]["requests"] <= job_server.count() - before
    assert watcher.join(SOON_S) and not watcher.decrease(), watcher.problem or watcher.decrease()
