"""A worker whose process stands still while its cores go on: they end by themselves before others begin.

What ran when is told by the code that runs: it writes down, again and again, that it does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import HANDLERS, DagCluster, dag_cluster
from tests.e2e.job_cluster import JobCluster, job_cluster, until

BEATS = '''

def go_on(task):
    """So often that nobody could begin between two of them unseen."""
    note("alive", task)
    return not is_open(task.config)


@handler("go-on")
async def go_on_async(task):
    while go_on(task):
        await asyncio.sleep(0.01)


@handler("go-on-blocked")
async def go_on_blocked(task):
    while go_on(task):
        time.sleep(0.01)


@handler("go-on-plain")
def go_on_plain(task):
    while go_on(task):
        time.sleep(0.01)


command("go-on-command", ["sh", "-c", """
read -r given
gate=$(dirname "$LEDGER")/$(echo "$given" | sed 's/.*"config":"\\\\([^"]*\\\\)".*/\\\\1/')
while [ ! -e "$gate" ]; do
  echo "alive $TALKA_JOB $TALKA_TASK $TALKA_FENCE $TALKA_ATTEMPT $$ $(date +%s%N) " >> "$LEDGER"
  sleep 0.01
done
"""])
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagCluster]:
    folder = tmp_path_factory.mktemp("frozen")
    with dag_cluster(folder, 2, 1, handlers=HANDLERS + BEATS, manager_options=("--lease", "2s")) as cluster:
        yield cluster


@pytest.mark.serial
@pytest.mark.parametrize("handler", ["go-on", "go-on-blocked", "go-on-plain", "go-on-command"])
def test_task_of_a_frozen_worker_has_ended_there_before_it_begins_elsewhere(cluster: DagCluster, handler: str) -> None:
    job = cluster.dag(handler, {"id": "t", "handler": handler, "config": f"gate-{handler}"})
    cluster.wait_for_lines(5, job=job, word="alive")
    victim = cluster.tasks(job)["t"]["worker"]

    cluster.stop_process(victim)
    try:
        cluster.wait(
            lambda: len({line.fence for line in cluster.ledger(job=job, word="alive")}) == 2 or cluster.hear(0.02),
            SOON_S,
            "the task to begin elsewhere",
        )
        cluster.open_gate(f"gate-{handler}")
        facts = cluster.wait_for_end(job)
    finally:
        cluster.continue_process(victim)
    cluster.wait_for(victim, "lease", SOON_S)

    lines = cluster.ledger(job=job, word="alive")
    first = [line.at_ns for line in lines if line.fence == lines[0].fence]
    second = [line.at_ns for line in lines if line.fence != lines[0].fence]
    assert facts["counts"] == {"completed": 1}
    assert max(first) < min(second), f"both ran for {(max(first) - min(second)) / 1e9:.3f} s"


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


@pytest.mark.serial
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
