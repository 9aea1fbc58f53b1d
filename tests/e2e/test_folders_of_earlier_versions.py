"""A manager and a worker of this version go on where those of an earlier one were killed."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import DagCluster, dag_cluster
from tests.e2e.job_cluster import until
from tests.e2e.moved_clock import MovedClock
from tests.store.make_folders import FOLDERS, LARGE, NOBODY, unpack

ENDED = {
    ("shop.py", "completed", 0),
    ("completes", "completed", 0),
    ("fails", "failed", 8),
    ("cancelled", "cancelled", 8),
}
"""Jobs of both kinds, as they were listed before: name, state and exit code."""


def listed(cluster: DagCluster) -> list[Any]:
    """Oldest first."""
    items: list[Any] = cluster.ask_api("GET", "/v1/jobs?limit=100").good()["items"]
    return items[::-1]


def result(cluster: DagCluster, job: str) -> Any:
    return cluster.ask_api("GET", f"/v1/jobs/{job}/result").good()


@pytest.mark.patient
@pytest.mark.skipif(bool(MovedClock.why_not()), reason=MovedClock.why_not())
@pytest.mark.parametrize("pack", sorted(FOLDERS.glob("*.tar.xz")), ids=lambda pack: pack.name.removesuffix(".tar.xz"))
def test_nodes_go_on_with_what_an_earlier_version_was_killed_at(tmp_path: Path, pack: Path) -> None:
    killed = unpack(pack, tmp_path / "unpacked") / "killed"
    with dag_cluster(tmp_path / "nodes", 1, 1, start=False) as cluster:
        shutil.copytree(killed, cluster.folder, dirs_exist_ok=True)
        # By the clock of the day when they were killed: jobs end when their time is over, also while nobody runs.
        clock = MovedClock(tmp_path)
        clock.set(round(max(path.stat().st_mtime for path in killed.rglob("*")) - time.time()))
        cluster.own_environment |= dict.fromkeys(("m1", "w1"), clock.environment)

        cluster.start_nodes()

        # What had ended is listed, and its results are there.
        jobs = listed(cluster)
        assert {(job["name"], job["state"], job["exit_code"]) for job in jobs} >= ENDED
        first, cancelled, *_ = [job["id"] for job in jobs if job.get("kind") != "dag"]
        assert result(cluster, first)["status"] == "completed"
        assert result(cluster, cancelled)["status"] == "cancelled"
        dags = {job["name"]: job["id"] for job in jobs if job.get("kind") == "dag"}
        assert cluster.tasks(dags["completes"])["again"]["attempts"] == 2
        large = cluster.ask_api("GET", f"/v1/jobs/{dags['completes']}/tasks/large").good()
        assert large["output"] == {"config": LARGE, "inputs": {}}
        assert [schedule["name"] for schedule in cluster.ask_api("GET", "/v1/schedules").good()] == ["nightly"]
        audited = cluster.ask_api("GET", "/v1/audit").good()["items"]
        assert (audited[0]["what"], audited[1]["what"], audited[1]["job"]) == ("put_bundle", "submit", first)

        # The result that lay on the worker's shelf is fetched, and what was queued behind it runs.
        *_, running, queued = [job["id"] for job in jobs if job.get("kind") != "dag"]
        assert cluster.wait_for_end(running)["state"] == "completed", cluster.story()
        assert result(cluster, running)["totals"]["failed"] == 0
        assert cluster.wait_for_end(queued)["name"] == NOBODY
        assert result(cluster, queued)["totals"]["iterations"] == 20

        # Pipelines go on at the task where they were, once it is due, and when they are told to.
        assert cluster.facts(dags["paused"])["state"] == "paused"
        cluster.ask_api("POST", f"/v1/jobs/{dags['paused']}/resume").good()
        cluster.open_gate("open")
        for name in ("delayed", "paused", "goes-on"):
            assert cluster.wait_for_end(dags[name])["state"] == "completed", name
        tasks = cluster.tasks(dags["goes-on"])
        assert (tasks["first"]["attempts"], tasks["gate"]["attempts"]) == (1, 2)
        until(lambda: cluster.tasks(dags["retries"])["bad"]["attempts"] > 1, cluster, SOON_S, "another try")
        # The key of a task that completed then is known: it has that output, and is not run again.
        again = cluster.dag("again", {"id": "again", "handler": "echo", "key": "extract-1"})
        assert cluster.wait_for_end(again)["state"] == "completed"
        assert cluster.ledger(job=again) == []
        assert cluster.tasks(again)["again"]["output"] == {"config": {"n": 1}, "inputs": {}}
