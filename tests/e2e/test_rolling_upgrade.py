"""Every node is replaced by one of the next minor version, one after the other, and back again, while a job runs."""

import http.client
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from talka.client.sync import Client
from talka.control.jobs.workers.fleet import LEFT, STARTED_ANEW
from talka.version import VERSION
from talka.wire.versions import VERSION as PROTOCOL
from talka.wire.versions import ProtocolVersion
from tests.e2e.cluster import SOON_S
from tests.e2e.conftest import Server
from tests.e2e.job_cluster import NEXT, JobCluster, until

STAGES = NEXT.with_name("stages.py")
STAGE_COUNT, ARRIVALS = 6, 100
"""Of stages.py: how many there are, and what each begins with."""
UNREAD = re.compile(r'^talka_frames_refused_total\{reason="body"\} (\d+)$', re.MULTILINE)
UNSAID = re.compile(r'^talka_messages_unsaid_total\{message="Weather"\} (\d+)$', re.MULTILINE)
PROTOCOLS = (str(PROTOCOL), str(ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 1)))


class MixedCluster(JobCluster):
    """Of three workers of one core each a job uses two."""

    def __init__(self, folder: Path, target: str) -> None:
        super().__init__(folder, managers=3, workers=3, target=target)

    def open_gate(self, stage: int) -> None:
        """This stage ends, now or when it comes."""
        (self.folder / f"Stage{stage}").touch()

    def replace(self, name: str, *, by_next: bool, stage: int = 0) -> None:
        """SIGTERM, then the other version on the same data; until it does its work again.

        `stage` is the one whose end a worker that leaves must wait for. The next one is for those that stay.
        """
        life = self.up[name]
        life.process.terminate()
        if stage:
            client = self.client()
            until(lambda: takes_nothing(client, name), self, SOON_S, f"{name} to take nothing new")
            self.open_gate(stage)
        self.wait(lambda: life.is_over, SOON_S, f"{name} to stop")
        del self.up[name]
        assert life.process.wait(SOON_S) == 0
        if by_next:
            self.are_next.add(name)
        else:
            self.are_next.remove(name)
        self.restart(name)
        if name in self.workers:
            self.wait_for(name, "lease")
        else:
            self.wait_for_leader()
            until(lambda: self.answer(name, "readyz"), self, SOON_S, f"{name} to be ready")

    def answer(self, name: str, path: str) -> str:
        """What this manager's API says there; nothing while it says no."""
        try:
            with urllib.request.urlopen(f"http://{self.api(name)}/{path}", timeout=20) as answer:
                return str(answer.read().decode())
        except (OSError, http.client.HTTPException):  # also in the midst of an answer
            return ""

    def counted(self, pattern: re.Pattern[str]) -> int:
        """By all managers that are up."""
        return sum(int(count) for name in self.managers for count in pattern.findall(self.answer(name, "metrics")))


def takes_nothing(client: Client, worker: str) -> bool:
    """It is told to stop, and managers know."""
    return worker not in {view.name for view in client.workers() if view.state not in ("draining", "offline")}


def heard(cluster: MixedCluster) -> set[tuple[str, str]]:
    """Who heard which news of the next version."""
    return {(who, event["what"]) for who, event in cluster.said("heard")}


@pytest.fixture
def cluster(tmp_path: Path, server: Server) -> Iterator[MixedCluster]:
    """Not started yet."""
    cluster = MixedCluster(tmp_path, server.url)
    try:
        yield cluster
        mistakes = cluster.mistakes()
    finally:
        cluster.close()
    assert mistakes == {}


@pytest.mark.patient
@pytest.mark.timeout(300)
@pytest.mark.parametrize("by_next", [True, False], ids=["upgrade", "downgrade"])
def test_a_job_ends_complete_and_exact_while_every_node_is_replaced(
    cluster: MixedCluster, server: Server, by_next: bool
) -> None:
    nodes = [*cluster.managers, *cluster.workers]
    cluster.are_next = set() if by_next else set(nodes)
    cluster.start_nodes()
    gates = {"GATES": str(cluster.folder)}
    submitted = cluster.start_submit(STAGES, "--cores", "2", "--grace", "300s", "--env", "GATES", env=gates)
    cluster.wait_until_running(submitted.job(), tasks=2)
    cluster.wait_for_voters()

    for name in cluster.managers:
        cluster.replace(name, by_next=by_next)
        if name == cluster.managers[0]:
            cluster.open_gate(1)  # what follows is told to every manager
            until(
                lambda: cluster.counted(UNSAID), cluster, SOON_S, "the next version to keep from older ones what is new"
            )
        assert cluster.counted(UNREAD) == 0, "a side was told what it does not know"
    for stage, name in enumerate(cluster.workers, 2):
        cluster.replace(name, by_next=by_next, stage=stage)
        assert cluster.counted(UNREAD) == 0, "a side was told what it does not know"
    client, versions = cluster.client(), {f"{VERSION}+next" if by_next else VERSION}
    until(lambda: {each.version for each in client.workers()} == versions, cluster, SOON_S, "all to be replaced")
    assert submitted.process.poll() is None, "the job ended before the last node was replaced: this proves nothing"
    for stage in range(2 + len(cluster.workers), STAGE_COUNT + 1):
        cluster.open_gate(stage)
    ended = submitted.ended()

    document = ended.document()
    assert (ended.code, document["status"], document["lost_shards"]) == (0, "completed", []), ended.text
    assert document["totals"]["iterations"] == STAGE_COUNT * ARRIVALS
    assert document["totals"]["requests"] == document["totals"]["ok"] == server.count() > STAGE_COUNT * ARRIVALS
    assert cluster.said("refused") == cluster.said("lease-ended") == cluster.said("task-killed") == []
    # A goodbye reaches whoever leads at that moment, or nobody, and then its next life tells. None was taken for dead.
    assert {event["cause"] for _, event in cluster.said("worker-lost")} <= {LEFT, STARTED_ANEW}
    # What the next version says is heard by all who know it, and nodes of two versions told of each other.
    expected = {(who, what) for who in nodes for what in ("field", "message")}
    cluster.wait(lambda: heard(cluster) == expected, SOON_S, "every node to hear what the next version says")
    told = {(event["mine"], event["theirs"], event["agreed"]) for _, event in cluster.said("version")}
    present, newer = PROTOCOLS
    assert told == {(present, newer, present), (newer, present, present)}
    assert not any("weather" in event["capabilities"] for _, event in cluster.said("version"))
    assert f'talka_peers{{version="{PROTOCOLS[by_next]}"}}' in cluster.answer(cluster.managers[0], "metrics")
