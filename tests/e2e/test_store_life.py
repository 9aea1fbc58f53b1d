"""A store that was put back, or is another one, while workers still hold what they were given before."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chaos_store import replace_store
from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import DagCluster, dag_cluster

LEASE = ("--lease", "60s")
"""Nobody waits for the end of a lease here."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DagCluster]:
    with dag_cluster(tmp_path, 1, 2, manager_options=LEASE) as cluster:
        yield cluster


def lost_attempts(cluster: DagCluster) -> str:
    """A manager that starts after the copy gives out attempts, which its worker holds on to: the job. It is down
    then."""
    cluster.restart("m1")
    cluster.wait_until_ready()
    lost = cluster.dag("lost", *({"id": f"t{n}", "handler": "until", "config": "gate"} for n in range(3)))
    cluster.wait_for_lines(3, job=lost, word="began")
    cluster.kill("m1")
    return lost


def said(cluster: DagCluster, event: str) -> list[dict[str, Any]]:
    return [told for name, told in cluster.said(event) if name == "m1"]


def complete_another(cluster: DagCluster) -> None:
    """The first tasks that are given out now have the numbers of those that the worker still runs."""
    cluster.restart("m1")
    cluster.wait_until_ready()
    other = cluster.dag("other", *({"id": f"t{n}", "handler": "echo", "config": n} for n in range(3)))

    def are_given_out() -> bool:
        cluster.hear(0.05)
        return not {"pending", "ready"} & cluster.facts(other)["counts"].keys()

    cluster.wait(are_given_out, SOON_S, "all tasks to be given out")
    cluster.open_gate("gate")
    facts = cluster.wait_for_end(other)

    outputs = [task["output"] for task in cluster.tasks(other).values()]
    assert facts["counts"] == {"completed": 3}
    assert outputs == [{"config": n, "inputs": {}} for n in range(3)]
    assert {line.task for line in cluster.ledger(job=other, word="ended")} == {"t0", "t1", "t2"}


def test_after_a_restored_backup_no_task_completes_with_the_output_of_a_lost_job(cluster: DagCluster) -> None:
    copy = cluster.folder / "copy.sqlite"
    kept = cluster.dag("kept", {"id": "one", "handler": "mark"})
    cluster.wait_for_end(kept)
    backup = cluster.talka("store", "backup", str(copy), "--store", cluster.url)
    assert backup.code == 0, backup.text
    cluster.kill("m1")
    lost = lost_attempts(cluster)

    replace_store(cluster.store, copy)
    complete_another(cluster)

    assert cluster.facts(kept)["state"] == "completed"
    (life,) = said(cluster, "store-life")
    assert "begins a new life, because it is a copy made by talka store backup" in life["text"]
    (raised,) = said(cluster, "epoch-raised")
    assert "worker w1 remembers epoch 2 of another store or life" in raised["text"]
    (dropped,) = said(cluster, "attempts-dropped")
    assert dropped["text"].startswith("worker w1 held 3 attempts and 0 results of store ")
    assert (cluster.metric("dag_attempts_dropped_total"), cluster.metric("dag_epochs_raised_total")) == (3, 1)
    assert cluster.ask_api("GET", f"/v1/jobs/{lost}").status == 404


def test_after_a_plain_copy_was_put_back_no_task_completes_with_the_output_of_a_lost_job(cluster: DagCluster) -> None:
    copy = cluster.folder / "copy.sqlite"
    cluster.wait_for_end(cluster.dag("kept", {"id": "one", "handler": "mark"}))
    cluster.kill("m1")
    closed = cluster.talka("store", "check", "--store", cluster.url)  # its log is in the file then
    assert closed.code == 0, closed.text
    shutil.copyfile(cluster.store, copy)
    lost_attempts(cluster)

    replace_store(cluster.store, copy)
    complete_another(cluster)


def test_with_a_new_store_no_task_completes_with_the_output_of_a_lost_job(cluster: DagCluster) -> None:
    cluster.kill("m1")
    replace_store(cluster.store, None)
    lost_attempts(cluster)

    replace_store(cluster.store, None)
    complete_another(cluster)
