"""A manager that is asked for far more than it can answer, by many at once."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from talka.cli.nodes.token import read_keys
from talka.web.auth import Tokens
from tests import processes
from tests.e2e.cluster import SOON_S
from tests.e2e.job_cluster import JobCluster, job_cluster, until
from tests.processes import TALKA

WORKFLOWS = Path(__file__).parent / "workflows"
AT_ONCE_S = 1.0
CONNECTIONS = 5
"""Of each of the fifty clients."""


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "token.key"
    processes.run([*TALKA, "token", "key", "-o", str(file)], check=True, timeout=60, capture_output=True)
    return file


class Answer(NamedTuple):
    status: int
    content: bytes
    took_s: float


class Door:
    """One manager, asked without our client, which would ask others too."""

    def __init__(self, cluster: JobCluster, manager: str, token: str) -> None:
        self._cluster, self._manager, self._token = cluster, manager, token

    def ask(self, method: str, path: str) -> Answer:
        link = http.client.HTTPConnection(self._cluster.api(self._manager), timeout=SOON_S)
        begun_s = time.monotonic()
        try:
            link.request(method, path, headers={"authorization": f"Bearer {self._token}"})
            answer = link.getresponse()
            return Answer(answer.status, answer.read(), time.monotonic() - begun_s)
        finally:
            link.close()

    def ask_in_time(self, method: str, path: str) -> Answer:
        with self._cluster.standstill(is_seen_here=True) as machine:
            answer = self.ask(method, path)
        assert machine.allows(answer.took_s, AT_ONCE_S), f"{method} {path} took {answer.took_s:.2f} s"
        return answer

    def metrics(self) -> dict[str, float]:
        lines = self.ask("GET", "/metrics").content.decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name.removeprefix("talka_"): float(value) for name, value in pairs}

    def shed(self) -> dict[str, float]:
        """By class."""
        return {name.split('"')[1]: value for name, value in self.metrics().items() if "requests_shed" in name}


@contextmanager
def flood(api: str, key_file: Path) -> "Iterator[subprocess.Popen[str]]":
    words = [sys.executable, "-m", "tests.e2e.flood", api, "--key-file", str(key_file)]
    words += ["--connections", str(CONNECTIONS)]
    process = processes.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def token_of(key_file: Path) -> str:
    return Tokens(read_keys(str(key_file), "the key"), "default").issue("ann", "operator", int(time.time()) + 3600, "t")


def test_in_a_flood_cancels_results_and_votes_pass_and_what_is_shed_is_told(
    key_file: Path, tmp_path: Path, job_server: Any
) -> None:
    token = token_of(key_file)
    with job_cluster(
        tmp_path / "cluster", 3, 1, target=job_server.url, manager_options=("--token-key-file", str(key_file))
    ) as cluster:
        env = {"TALKA_TOKEN": token}
        ended = cluster.start_submit(WORKFLOWS / "plain.py", "--iterations", "5", env=env)
        done = ended.job()
        assert ended.ended().code == 0
        running = cluster.start_submit(WORKFLOWS / "plain.py", "--rate", "20/s", "--for", "300s", env=env)
        job = running.job()
        cluster.wait_until_running(job)
        leader = cluster.wait_for_leader()
        flooded = next(name for name in cluster.managers if name != leader)
        life = cluster.up[flooded]
        door = Door(cluster, flooded, token)

        with flood(cluster.api(flooded), key_file) as flooding:
            until(lambda: door.shed().get("lists", 0) > 0, cluster, SOON_S, "requests to be shed")
            result = door.ask_in_time("GET", f"/v1/jobs/{done}/result")
            assert result.status == 200 and json.loads(result.content)["status"] == "completed"
            assert door.ask_in_time("POST", f"/v1/jobs/{job}/cancel").status == 200
            assert door.ask_in_time("GET", "/livez").status == 200
            # Without its leader the cluster needs the vote of the manager that is flooded.
            leader = cluster.wait_for_leader()
            if leader != flooded:
                cluster.kill(leader)
                assert cluster.wait_for_leader() != leader
            until(lambda: door.ask("GET", f"/v1/jobs/{job}/result").status == 200, cluster, SOON_S, "the result")
            shed = door.shed()
            assert flooding.poll() is None, "it goes on"
            told, _ = flooding.communicate("", timeout=SOON_S)

        assert shed["lists"] > 0 and not shed.keys() & {"results", "vital"}, shed
        found = json.loads(told)
        assert found["jobs"]["429"] > 0
        assert running.ended().code == 8
        until(lambda: door.metrics()["overload_level"] == 0, cluster, SOON_S, "it to recover")
        assert door.ask("GET", "/v1/jobs").status == 200
        assert cluster.up[flooded] is life and not life.is_over
