"""A cluster lives past the end of its first certificates: nobody is restarted, and a job runs all the while."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from talka.client.sync import Client
from talka.clock import realtime_ns, utc_now
from talka.net.certificates import describe, issue, make_authority, renew
from talka.units import SECOND
from tests.e2e.cluster import SOON_S
from tests.e2e.conftest import Server
from tests.e2e.job_cluster import NEXT, JobCluster, until

STAGES = NEXT.with_name("stages.py")
STAGE_COUNT, ARRIVALS = 6, 100
LIFE_S = 75.0
"""Of the first certificates: until then everything must have started and been renewed."""
DAY = timedelta(days=1)


class CertifiedCluster(JobCluster):
    """Its certificates are made with it, and end soon."""

    def __init__(self, folder: Path, target: str) -> None:
        super().__init__(folder, managers=3, workers=2, target=target)
        self.certs = self.folder / "certs"
        self.nodes = [*self.managers, *self.workers]
        # Valid for a day, made nearly a day ago.
        made = utc_now() - DAY + timedelta(seconds=LIFE_S)
        make_authority(self.certs, "default", "default", now=utc_now())
        for name in self.managers:
            issue(self.certs, name=name, role="manager", hosts=("127.0.0.1",), days=1, now=made)
        for name in self.workers:
            issue(self.certs, name=name, role="worker", days=1, now=made)
        for name, role in (("client", "client"), ("late", "worker")):
            issue(self.certs, name=name, role=role, now=utc_now())
        self.end_ns = realtime_ns() + round(LIFE_S * SECOND)
        for options in (self._manager_options, self._worker_options):
            options += ["--certs", str(self.certs)]
        self._environment["TALKA_CA"] = str(self.certs / "ca.crt")

    def client(self) -> Client:
        self._clients.append(Client([self.api(name) for name in self.managers], ca=str(self.certs / "ca.crt")))
        return self._clients[-1]


@pytest.fixture
def cluster(tmp_path: Path, server: Server) -> Iterator[CertifiedCluster]:
    cluster = CertifiedCluster(tmp_path, server.url)
    try:
        yield cluster
        mistakes = cluster.mistakes()
    finally:
        cluster.close()
    assert mistakes == {}


def told(cluster: CertifiedCluster, what: str) -> set[str]:
    return {who for who, event in cluster.said("certificate") if event["what"] == what}


@pytest.mark.patient
@pytest.mark.timeout(300)
def test_a_cluster_lives_past_the_end_of_its_first_certificates_without_a_restart(
    cluster: CertifiedCluster, server: Server
) -> None:
    cluster.start_nodes()
    gates = {"GATES": str(cluster.folder)}
    submitted = cluster.start_submit(STAGES, "--cores", "2", "--grace", "300s", "--env", "GATES", env=gates)
    cluster.wait_until_running(submitted.job(), tasks=2)
    cluster.wait(lambda: told(cluster, "own") == {*cluster.nodes}, SOON_S, "every node to warn of its end")
    pids = {name: cluster.up[name].process.pid for name in cluster.nodes}
    client = cluster.client()
    assert {one.name for one in client.cluster().certificates if one.note == "ends soon"} == {*cluster.nodes}

    for name in cluster.nodes:
        renew(cluster.certs, name, days=90, now=utc_now())
    cluster.wait(lambda: told(cluster, "renewed") == {*cluster.nodes}, SOON_S, "every node to take its new certificate")
    until(
        lambda: not any(one.note for one in client.cluster().certificates),
        cluster,
        SOON_S,
        "all to know of the new ones",
    )
    assert realtime_ns() < cluster.end_ns, (
        "this machine was too slow: the first certificates ended before they were renewed"
    )
    time.sleep(max(0.0, (cluster.end_ns - realtime_ns()) / SECOND + 1.0))  # the end itself is what this waits for

    # What is new is let in, and what is asked is answered over connections that are opened now.
    cluster.start_worker("late")
    cluster.wait_for("late", "lease")
    shown = {one.name: one for one in cluster.client().cluster().certificates}
    assert {name for name in cluster.nodes if shown[name].days >= 88} == {*cluster.nodes}
    members = cluster.talka("cluster", "members", "--to", cluster.place("m1").advertised, *asking(cluster))
    states = {one["name"]: one["state"] for one in json.loads(members.out)}
    here = [*cluster.nodes, "late"]
    assert states == {name: "alive" if name in cluster.managers else "healthy" for name in here}, members.text
    for stage in range(1, STAGE_COUNT + 1):
        (cluster.folder / f"Stage{stage}").touch()
    ended = submitted.ended()
    again = cluster.submit(STAGES, "--cores", "2", "--env", "GATES", env=gates)

    for one in (ended, again):
        document = one.document()
        assert (one.code, document["status"], document["lost_shards"]) == (0, "completed", []), one.text
        assert document["totals"]["iterations"] == STAGE_COUNT * ARRIVALS
    assert cluster.said("lease-ended") == cluster.said("worker-lost") == cluster.said("refused") == []
    assert {name: cluster.up[name].process.pid for name in cluster.nodes} == pids
    assert all(describe(cluster.certs / f"{name}.crt", now=utc_now()).problem == "" for name in cluster.nodes)


def asking(cluster: CertifiedCluster) -> list[str]:
    return ["--secret-file", str(cluster.secret_file), "--certs", str(cluster.certs), "--json"]
