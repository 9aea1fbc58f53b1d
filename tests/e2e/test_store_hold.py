"""Real managers and one store: another manager, a clock that is moved, a file that is taken away, a disk that is
full."""

import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import DagCluster, dag_cluster
from tests.e2e.moved_clock import MovedClock
from tests.node_process import NodeProcess, nodes

HOUR_S, MONTH_S = 3600, 30 * 86_400
needs_a_clock = pytest.mark.skipif(bool(MovedClock.why_not()), reason=MovedClock.why_not())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DagCluster]:
    with dag_cluster(tmp_path / "cluster", 1, 1) as cluster:
        yield cluster


@contextmanager
def second_manager(cluster: DagCluster, folder: Path, environment: dict[str, str]) -> Iterator[NodeProcess]:
    words = ("up", "--port", "0", "--data-dir", str(folder / "other"), "--json", "--store", cluster.url)
    environment = {**os.environ, "LEDGER": str(cluster.ledger_file), **environment}
    with nodes() as start:
        yield start(*words, "--handlers", str(cluster.handlers_file), environment=environment)


def runs(cluster: DagCluster, name: str) -> None:
    """A job is taken and done."""
    job = cluster.dag(name, {"id": "t", "handler": "mark"})
    assert cluster.wait_for_end(job)["state"] == "completed"


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def not_ready(cluster: DagCluster, says: str) -> Any:
    def is_so() -> bool:
        cluster.hear(0.05)
        answer = cluster.ask_api_once("GET", "/readyz")
        return answer.status == 503 and says in answer.body["detail"]

    cluster.wait(is_so, SOON_S, f"the manager not to be ready: {says}")
    return cluster.ask_api_once("GET", "/readyz")


@needs_a_clock
def test_a_second_manager_whose_clock_is_a_minute_ahead_leaves_the_store_to_the_one_that_lives(
    cluster: DagCluster, tmp_path: Path
) -> None:
    clock = MovedClock(tmp_path)
    clock.set(60)
    assert 59 < clock.shown() < 61

    with second_manager(cluster, tmp_path, clock.environment) as other:
        assert other.wait() not in (0, -9)
    said = other.errors
    assert "another manager has the store" in said and "is alive" in said and "Traceback" not in said
    runs(cluster, "after")
    assert not [event for event in cluster.up["m1"].events if event["event"] == "alarm"]


def all_stand(pid: int) -> bool:
    """Every thread of a process that was sent SIGSTOP."""
    states = [file.read_text().rpartition(")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def is_locked(store: Path) -> bool:
    """Whether somebody is writing, or stood still while writing."""
    with closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


@contextmanager
def taken_over(cluster: DagCluster, folder: Path) -> Iterator[None]:
    """Another manager has the store, because this one stood still until just now; not in the middle of a commit,
    which would lock the file for everybody."""

    def stands_between_commits() -> bool:
        cluster.stop_process("m1")
        cluster.wait(lambda: all_stand(cluster.up["m1"].process.pid), SOON_S, "every thread of m1 to stand still")
        if not is_locked(cluster.store):
            return True
        cluster.continue_process("m1")
        return False

    cluster.wait(stands_between_commits, SOON_S, "m1 to stand still while it does not write")
    with second_manager(cluster, folder, {}) as other:
        other.until("up")
        cluster.continue_process("m1")
        yield


def test_a_manager_that_stood_still_for_too_long_loses_its_store_and_says_so(
    cluster: DagCluster, tmp_path: Path
) -> None:
    runs(cluster, "before")
    with taken_over(cluster, tmp_path):
        # Never a job that is acknowledged by the one that lost it.
        answer = not_ready(cluster, "another manager has taken the store")
        assert answer.headers["retry-after"]
        body = {"kind": "dag", "name": "late", "tasks": [{"id": "t", "handler": "mark"}], "wait_for_workers": True}
        refused = cluster.ask_api_once("POST", "/v1/jobs", body)
        assert refused.status == 503 and "another manager has taken the store" in refused.body["detail"]
        assert refused.headers["retry-after"]
    assert {task.state for task in cluster.stored()} == {"completed"}


def test_a_manager_whose_store_another_one_has_ends_with_the_reason(cluster: DagCluster, tmp_path: Path) -> None:
    life = cluster.up["m1"]
    with taken_over(cluster, tmp_path):
        cluster.wait(lambda: life.is_over, SOON_S, "the manager to end")
        assert life.process.wait(SOON_S) == 1
        assert "another manager has taken the store" in life.errors.read_text()
    cluster.up.pop("m1")


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_store_that_is_taken_away_under_a_manager_is_noticed_within_its_lease(cluster: DagCluster, how: str) -> None:
    runs(cluster, "before")
    away = cluster.store.with_name("away")
    cluster.store.rename(away)
    if how == "replaced":
        cluster.store.write_bytes(away.read_bytes())

    answer = not_ready(cluster, "while this manager had it: nothing more is kept or acknowledged")

    assert answer.headers["retry-after"]
    body = {"kind": "dag", "name": "late", "tasks": [{"id": "t", "handler": "mark"}], "wait_for_workers": True}
    for _ in range(3):
        assert cluster.ask_api_once("POST", "/v1/jobs", body).status == 503
    cluster.wait_for("m1", "alarm", SOON_S)
    assert cluster.ask_api_once("GET", "/livez").status == 200
    cluster.kill("m1")
    away.replace(cluster.store)
    cluster.restart("m1")
    cluster.wait_until_ready()
    runs(cluster, "after")


def test_a_manager_is_not_ready_while_its_store_cannot_be_written_and_is_again_afterwards(cluster: DagCluster) -> None:
    """No file of it may grow any more: not even root may write then."""
    runs(cluster, "before")
    process = psutil.Process(cluster.up["m1"].process.pid)
    before = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (4096, before[1]))

    answer = not_ready(cluster, "the store cannot be written: ")

    assert answer.headers["retry-after"]
    body = {"kind": "dag", "name": "full", "tasks": [{"id": "t", "handler": "mark"}], "wait_for_workers": True}
    assert cluster.ask_api_once("POST", "/v1/jobs", body).status == 503
    process.rlimit(resource.RLIMIT_FSIZE, before)
    cluster.wait_until_loaded()
    runs(cluster, "after")


@needs_a_clock
def test_a_manager_whose_clock_is_moved_keeps_its_store_its_schedules_and_its_jobs(tmp_path: Path) -> None:
    clock = MovedClock(tmp_path)
    with dag_cluster(tmp_path / "cluster", 1, 1, start=False) as cluster:
        cluster.own_environment["m1"] = clock.environment
        cluster.start_nodes()
        runs(cluster, "before")
        jobs = [job["id"] for job in cluster.ask_api("GET", "/v1/jobs").good()["items"]]
        spec = {
            "name": "hourly",
            "schedule": "0 * * * *",
            "tasks": [{"id": "t", "handler": "mark"}],
            "wait_for_workers": True,
        }
        put = cluster.ask_api("PUT", "/v1/schedules", spec)
        assert put.status in (200, 201), put
        held = cluster.dag("held", {"id": "t", "handler": "until", "config": "gate"})
        cluster.wait_for_lines(1, job=held)

        for seconds, says in [(MONTH_S, "forward by 30 days"), (0, "back by 30 days: 1 schedule was recomputed")]:
            clock.set(seconds)
            cluster.wait(
                lambda says=says: any(says in event.get("text", "") for event in cluster.up["m1"].said("alarm")),  # type: ignore[misc]
                SOON_S,
                f"the manager to tell that its clock went {says}",
            )
        (schedule,) = cluster.ask_api("GET", "/v1/schedules").good()
        assert schedule["last_job"], "it was due, by that clock"
        assert abs(instant(schedule["next_at"]) - instant(put.body["next_at"])) <= timedelta(hours=1)
        for seconds in (-HOUR_S, HOUR_S, 0):
            clock.set(seconds)
            runs(cluster, f"at {seconds}")
        cluster.open_gate("gate")
        assert cluster.wait_for_end(held)["state"] == "completed"
        for job in jobs:
            assert cluster.facts(job)["state"] == "completed"
        assert len(cluster.lives["m1"]) == 1
        assert cluster.ask_api_once("GET", "/readyz").status == 200
