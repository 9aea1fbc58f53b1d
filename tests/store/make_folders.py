"""Folders as this version leaves them on disk: `python -m tests.store.make_folders OUT.tar.xz`.

Real nodes are started and asked for jobs of every kind. What they kept is packed, with a secret made for it alone:

- `stopped`: a manager, a worker and their store after SIGTERM, all jobs ended; and a history of kept runs;
- `killed`: the same a little later, after kill -9, in the midst of jobs;
- `members`: two members that met, after their keys were rotated.

`test_folders_of_earlier_versions.py` opens them with the version of the day. Run this again for every version that is
released, and leave the packs of the earlier ones as they are.
"""

import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tests import processes
from tests.e2e.cluster import SOON_S, Cluster
from tests.e2e.conftest import Server, demo_server
from tests.e2e.dag_cluster import DagCluster, dag_cluster
from tests.e2e.job_cluster import until
from tests.e2e.networks import Loopback
from tests.processes import TALKA

FOLDERS = Path(__file__).parent / "folders"
LOAD = """
import os

from talka import URL, HTTPResponse, IterationsPerVU, Workflow, check, depends, step

TARGET = os.environ["TARGET"]


class Login(Workflow):
    load = IterationsPerVU(vus=1, iterations=1)

    @step()
    async def login(self, url: URL = TARGET + "/json") -> HTTPResponse:
        response = await self.client.http.get(url)
        self.context["token"] = {"digits": [4, 2]}
        return response


@depends(Login)
class Shop(Workflow):
    vus = 2
    duration = "4s"
    thresholds = ["response_time.p99 < 10s"]

    @step(tags={"page": "front"})
    async def look(self, url: URL = TARGET + "/delay/50") -> HTTPResponse:
        return await self.client.http.get(url)

    @check(look)
    def has_the_token(self) -> bool:
        return self.context["token"] == {"digits": [4, 2]}
"""
KEPT = ("data-m1", "data-w1", "jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm", "jobs.sqlite.blobs")
QUICK = ("--vus", "2", "--iterations", "20")
FOR_LONG = ("--vus", "2", "--duration", "10m")
NOBODY = "http://127.0.0.1:1"
"""Where nobody listens: a job that is queued in the folders goes on wherever they are opened."""
THRESHOLD = 4
"""The exit code of a run that crossed one."""
LARGE = "large " * 7000
"""As the output of a task it has a blob of its own."""


def unpack(pack: Path, folder: Path) -> Path:
    with tarfile.open(pack) as tar:
        tar.extractall(folder, filter="data")
    return folder


def make(out: Path) -> None:
    # Some paths are kept in what nodes write: none of them is to tell where this was made.
    with tempfile.TemporaryDirectory(prefix="talka-", dir="/tmp") as place, demo_server() as server:
        work, made = Path(place) / "nodes", Path(place) / "made"
        made.mkdir()
        make_nodes(work, made, server)
        make_history(work, made / "stopped" / "history.sqlite", server)
        make_members(Path(place) / "members", made / "members")
        with tarfile.open(out, "w:xz", preset=9) as tar:
            for folder in sorted(made.iterdir()):
                tar.add(folder, folder.name, filter=without_owner)


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def make_nodes(work: Path, made: Path, server: Server) -> None:
    with dag_cluster(work, 1, 1, target=server.url) as cluster:
        load = work / "shop.py"
        load.write_text(LOAD)
        assert cluster.submit(load, "--key", "first").code == 0
        cancelled = cluster.start_submit(f"{server.url}/delay/50", *FOR_LONG)
        cluster.wait_until_running(cancelled.job())
        cluster.talka("jobs", "cancel", cancelled.job())
        cancelled.ended()
        make_ended_pipelines(cluster)
        for name in ("w1", "m1"):
            assert cluster.stop(name) == 0
        keep(work, made / "stopped")

        cluster.start_nodes()
        make_waiting_pipelines(cluster)
        running = cluster.start_submit(load).job()
        life = cluster.up["w1"]
        cluster.wait(lambda: len(life.said("task-started", job=running)) == 2, SOON_S, "both workflows to begin")
        queued = cluster.talka("submit", NOBODY, *QUICK, "--header", "x-shop: 1", "--detach")
        assert queued.code == 0, queued.text
        cluster.kill("m1")
        # Its result lies on the worker's shelf then: nobody is there to fetch it.
        cluster.wait(lambda: not cluster.running_tasks(running), SOON_S, "the second to end")
        cluster.kill("w1")
        keep(work, made / "killed")


def make_ended_pipelines(cluster: DagCluster) -> None:
    body = {
        "kind": "dag",
        "name": "completes",
        "tasks": [
            {"id": "extract", "handler": "echo", "config": {"n": 1}, "key": "extract-1"},
            {"id": "again", "handler": "fails", "config": 1, "retry": {"max": 1, "backoff": "10ms"}},
            {"id": "large", "handler": "echo", "config": LARGE},
            {"id": "load", "handler": "mark", "depends_on": ["extract", "again"]},
        ],
    }
    answer = cluster.ask_api("POST", "/v1/jobs", body, key="pipeline-1")
    assert answer.status == 201, answer
    cluster.wait_for_end(answer.body["id"])
    bad = {"id": "bad", "handler": "wrong", "retry": {"max": 0}}
    cluster.wait_for_end(cluster.dag("fails", bad, {"id": "after", "handler": "echo", "depends_on": ["bad"]}))
    job = cluster.dag("cancelled", {"id": "long", "handler": "until", "config": "never"})
    cluster.wait_for_task(job, "long", "running")
    cluster.ask_api("POST", f"/v1/jobs/{job}/cancel", {})
    cluster.wait_for_end(job)


def make_waiting_pipelines(cluster: DagCluster) -> None:
    nightly = {
        "kind": "dag",
        "name": "nightly",
        "schedule": "0 3 1 1 *",
        "tasks": [{"id": "extract", "handler": "echo"}],
    }
    answer = cluster.ask_api("PUT", "/v1/schedules", nightly)
    assert answer.status in (200, 201), answer
    cluster.dag("delayed", {"id": "later", "handler": "echo", "delay": "1m"})
    job = cluster.dag("retries", {"id": "bad", "handler": "wrong", "retry": {"max": 3, "backoff": "1m"}})
    until(lambda: is_to_be_retried(cluster, job), cluster, SOON_S, "the first attempt to fail")
    job = cluster.dag(
        "goes-on",
        {"id": "first", "handler": "echo", "config": 1},
        {"id": "gate", "handler": "until", "config": "open", "depends_on": ["first"]},
        {"id": "last", "handler": "echo", "depends_on": ["gate"]},
    )
    cluster.wait_for_lines(job=job, task="gate")
    job = cluster.dag("paused", {"id": "one", "handler": "echo", "delay": "5s"})
    cluster.ask_api("POST", f"/v1/jobs/{job}/pause").good()


def is_to_be_retried(cluster: DagCluster, job: str) -> bool:
    task = cluster.tasks(job)["bad"]
    return bool(task["attempts"] == 1 and task["state"] == "pending")


def keep(work: Path, folder: Path) -> None:
    folder.mkdir()
    shutil.copy(work / "secret", folder)
    for name in KEPT:
        if (work / name).is_dir():
            shutil.copytree(work / name, folder / name)
        elif (work / name).exists():
            shutil.copy(work / name, folder)


def make_history(work: Path, file: Path, server: Server) -> None:
    def talka(*words: str, code: int = 0) -> str:
        done = processes.run(
            [*TALKA, *words, "--store", f"sqlite:///{file}"],
            cwd=work,
            env={**os.environ, "TARGET": server.url},
            capture_output=True,
            text=True,
            timeout=SOON_S,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    talka("run", "shop.py", "--keep", "--ui", "none")
    talka("run", "shop.py", "--keep", "--ui", "none", "--threshold", "response_time.p50 < 1ms", code=THRESHOLD)
    runs = json.loads(talka("history", "list", "--json"))
    talka("history", "baseline", "main", runs["runs"][-1]["id"])


def make_members(work: Path, made: Path) -> None:
    work.mkdir()
    cluster = Cluster(work, Loopback())
    try:
        cluster.start_all(("a", "b"))
        new = cluster.write_secret("new-secret", "a second secret, for these folders alone")
        answer = cluster.ask("a", "keys", "--rotate", str(new))
        assert answer.returncode == 0, answer.stderr
        for name in ("a", "b"):
            assert cluster.stop(name) == 0
    finally:
        cluster.close()
        cluster.network.close()
    made.mkdir()
    for name in ("a", "b"):
        shutil.copytree(work / f"data-{name}", made / f"data-{name}")


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
