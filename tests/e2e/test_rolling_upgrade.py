"""Every node is replaced by one of the next minor version, one after the other, and back again, while a job runs."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from talka.control.fleet import LEFT, STARTED_ANEW
from talka.version import VERSION
from talka.wire.versions import VERSION as PROTOCOL
from talka.wire.versions import ProtocolVersion
from tests.e2e.cluster import Life
from tests.e2e.conftest import Server
from tests.e2e.job_cluster import JobCluster, until

NEXT = Path(__file__).parent / "next_version" / "talka_next.py"
STAGES = NEXT.with_name("stages.py")
REQUESTS = 9 * 200
"""Stages, and the arrivals of each."""
UNREAD = re.compile(r'^talka_frames_refused_total\{reason="body"\} (\d+)$', re.MULTILINE)


class MixedCluster(JobCluster):
    """Those named in `are_next` are of the next version. Of three workers of one core each a job uses two."""

    def __init__(self, folder: Path, target: str) -> None:
        super().__init__(folder, managers=3, workers=3, target=target)
        self.are_next: set[str] = set()

    def _spawn(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> Life:
        if name in self.are_next:
            at = words.index("-m")
            assert words[at + 1] == "talka"
            words = [*words[:at], str(NEXT), *words[at + 2 :]]
        return super()._spawn(name, words, environment)

    def replace(self, name: str, *, by_next: bool) -> None:
        """SIGTERM, then the other version on the same data; until it does its work again."""
        assert self.stop(name) == 0
        if by_next:
            self.are_next.add(name)
        else:
            self.are_next.remove(name)
        self.restart(name)
        if name in self.workers:
            self.wait_for(name, "lease")
        else:
            self.wait_for_leader()
            until(lambda: self.answer(name, "readyz"), self, 15, f"{name} to be ready")

    def answer(self, name: str, path: str) -> str:
        """What this manager's API says there; nothing while it says no."""
        try:
            with urllib.request.urlopen(f"http://{self.api(name)}/{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            return ""

    def unread(self) -> int:
        """Messages that managers of the present version could not read."""
        present = [name for name in self.managers if name not in self.are_next]
        return sum(int(count) for name in present for count in UNREAD.findall(self.answer(name, "metrics")))


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


@pytest.mark.parametrize("by_next", [True, False], ids=["upgrade", "downgrade"])
def test_a_job_ends_complete_and_exact_while_every_node_is_replaced(
    cluster: MixedCluster, server: Server, by_next: bool
) -> None:
    nodes = [*cluster.managers, *cluster.workers]
    cluster.are_next = set() if by_next else set(nodes)
    cluster.start_nodes()
    submitted = cluster.start_submit(STAGES, "--cores", "2")
    cluster.wait_until_running(submitted.job(), tasks=2)

    for name in nodes:
        cluster.replace(name, by_next=by_next)
        if name == nodes[0]:
            until(cluster.unread, cluster, 15, "the present version to count what it cannot read")
    assert {worker.version for worker in cluster.client().workers()} == {f"{VERSION}+next" if by_next else VERSION}
    assert submitted.process.poll() is None, "the job ended before the last node was replaced: this proves nothing"
    ended = submitted.ended()

    document = ended.document()
    assert (ended.code, document["status"], document["lost_shards"]) == (0, "completed", []), ended.text
    assert document["totals"]["requests"] == document["totals"]["ok"] == server.count() == REQUESTS
    assert cluster.said("refused") == cluster.said("lease-ended") == cluster.said("task-killed") == []
    # A goodbye reaches whoever leads at that moment, or nobody, and then its next life tells. None was taken for dead.
    assert {event["cause"] for _, event in cluster.said("worker-lost")} <= {LEFT, STARTED_ANEW}
    # What the next version says is heard where it is known, and agreed on where both know it.
    heard = {(who, event["what"]) for who, event in cluster.said("heard")}
    assert heard == {(who, what) for who in nodes for what in ("field", "message")}
    agreed = {(event["version"], "weather" in event["capabilities"]) for _, event in cluster.said("agreed")}
    next_protocol = str(ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 1))
    assert (next_protocol, True) in agreed
    assert agreed <= {(next_protocol, True), (str(PROTOCOL), False)}
    if by_next:  # the first of them meets none of its kind
        assert (str(PROTOCOL), False) in agreed
