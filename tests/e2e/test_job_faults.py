"""Whatever dies while a job runs: nothing is lost, nothing counted twice, nothing left behind, and the result says
why."""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.accounts import adds_up
from tests.e2e.cluster import SOON_S
from tests.e2e.job_cluster import until

WORKFLOWS = Path(__file__).parent / "workflows"
PLAIN = WORKFLOWS / "plain.py"


@pytest.fixture(scope="module")
def cluster(start_jobs, tmp_path_factory):
    """Three managers and three workers of one core. Each test leaves it whole.

    Leases bear that a leader is missed for long: on a busy machine the next one may take longer than the usual lease.
    """
    with start_jobs(tmp_path_factory.mktemp("faults"), 3, 3, manager_options=("--lease", "20s")) as cluster:
        yield cluster


@contextmanager
def mended(cluster):
    """Whatever was killed is there again afterwards."""
    try:
        yield
    finally:
        for name in [*cluster.managers, *cluster.workers]:
            if name not in cluster.up:
                cluster.restart(name)
        cluster.wait_until_ready()
        cluster.wait_until_idle()


class Truth:
    """By how much the server's count has grown."""

    def __init__(self, server) -> None:
        self._server, self._before = server, server.count()

    def count(self) -> int:
        return self._server.count() - self._before


@pytest.fixture
def truth(job_server) -> Truth:
    return Truth(job_server)


def under_way(cluster, truth, *options: str, tasks: int = 2, requests: int = 50, file: Path = PLAIN):
    """A job that runs: the command, its id, and the workers that run its tasks."""
    started = cluster.start_submit(file, *options)
    job = started.job()
    running = cluster.wait_until_running(job, tasks)
    cluster.wait(lambda: truth.count() >= requests, SOON_S, f"{requests} requests")
    return started, job, running


def led_apart(cluster, job_server, *options: str):
    """A job that runs, led by another manager than the one that leads the cluster; and the server's count of it."""
    cluster.wait_for_voters()
    for _ in range(12):
        truth = Truth(job_server)
        started = cluster.start_submit(PLAIN, *options)
        job = started.job()
        if cluster.wait_for_owner(job) != cluster.wait_for_leader():
            cluster.wait_until_running(job, 2)
            cluster.wait(lambda truth=truth: truth.count() >= 50, SOON_S, "50 requests")
            return started, job, truth
        cluster.client().cancel(job)
        started.ended()
        cluster.wait_until_idle()
    raise AssertionError("twelve jobs in a row were led by the leader of the cluster")


def workflow(tmp_path: Path, step: str, *, head: str = "", body: str = "", name: str = "odd.py") -> Path:
    """A test file with one step of these lines, after a request that the server counts."""
    lines = "".join(f"        {line}\n" for line in step.splitlines())
    file = tmp_path / name
    file.write_text(
        f"import asyncio, os, signal, subprocess, sys, time\nfrom talka import *\n{head}\n"
        f"class Odd(Workflow):\n    vus = 2\n    duration = '60s'\n{body}    @step()\n"
        "    async def odd(self, url: URL = os.environ['TARGET'] + '/') -> HTTPResponse:\n"
        f"        answer = await self.client.http.get(url)\n{lines}        return answer\n"
    )
    return file


# Workers and cores


def test_killed_worker_is_replaced_by_a_spare_one_for_the_rest_of_the_plan(make_jobs, truth) -> None:
    cluster = make_jobs(1, 3, manager_options=("--lease", "2s"))  # after it the plan has a rest
    started, job, running = under_way(cluster, truth, "--rate", "60/s", "--for", "8s", "--cores", "2")
    victim, _ = running
    [spare] = set(cluster.workers) - set(running)
    cluster.kill(victim)
    cluster.wait_for(spare, "task-started", job=job)
    ended = started.ended()
    assert ended.code == 6, ended.text
    document = ended.document()
    assert document["status"] == "partial"
    [lost] = document["lost_shards"]
    assert victim in lost["cause"]
    assert 0 < lost["from_s"] < lost["to_s"] <= 8
    adds_up(document, 480, truth.count())
    assert victim in ended.out and "lost" in ended.out


def test_gap_begins_where_the_load_ended_although_the_only_manager_stood_still(make_jobs, truth) -> None:
    cluster = make_jobs(1, 1, manager_options=("--lease", "3s"))  # for less than that it stops by itself
    per_s, length_s, still_s = 50, 12, 4.0
    started, _, _ = under_way(cluster, truth, "--rate", f"{per_s}/s", "--for", f"{length_s}s", "--cores", "1", tasks=1)
    [name] = cluster.managers
    cores = cluster.core_processes("w1")
    cluster.stop_process(name)
    try:
        before = truth.count()
        cluster.wait(lambda: truth.count() >= before + per_s // 2, SOON_S, "load that nobody reads of")
        cluster.kill("w1")
        psutil.wait_procs(cores, timeout=SOON_S)
        # Arrivals are evenly spread: the server's count tells where in the plan the load ended.
        ran, over_at = truth.count(), time.monotonic() + still_s
        cluster.wait(lambda: time.monotonic() >= over_at, SOON_S, "the manager stands still")
    finally:
        cluster.continue_process(name)
    ended = started.ended(120)

    assert ended.code == 6, ended.text
    document = ended.document()
    [lost] = document["lost_shards"]
    [workflow] = document["workflows"]
    # What is not answered is told again once a second, so a report may be older than the last request by that.
    assert ran / per_s - 2.0 <= lost["from_s"] <= ran / per_s + still_s / 2, document["lost_shards"]
    assert lost["to_s"] >= lost["from_s"] + still_s
    assert workflow["iterations"] <= ran and workflow["dropped_iterations"] == 0
    assert workflow["iterations"] + workflow["interrupted_iterations"] + lost["arrivals_missing"] == per_s * length_s


def test_killed_core_is_replaced_by_its_worker(cluster, truth) -> None:
    with mended(cluster):
        started, job, running = under_way(cluster, truth, "--rate", "100/s", "--for", "5s", "--cores", "2")
        name = next(iter(running))
        [core] = cluster.core_processes(name)
        core.kill()
        ended = started.ended()
        assert ended.code == 6, ended.text
        document = ended.document()
        [lost] = document["lost_shards"]
        assert "SIGKILL" in lost["cause"]
        adds_up(document, 500, truth.count())
        assert len(cluster.up[name].said("task-started", job=job)) == 1, "the task itself went on"


@pytest.mark.serial
def test_worker_that_is_told_to_stop_finishes_its_task_first(cluster, truth) -> None:
    with mended(cluster):
        started, job, running = under_way(cluster, truth, "--rate", "60/s", "--for", "3s", "--cores", "2")
        name = next(iter(running))
        cluster.signal(name, signal.SIGTERM)
        life = cluster.up.pop(name)
        ended = started.ended()
        assert ended.code == 0, ended.text
        assert ended.document()["totals"]["requests"] == truth.count() == 180
        cluster.wait(lambda: life.is_over, SOON_S, f"{name} to end")
        assert life.process.wait(10) == 0
        assert life.said("drained")


# Managers


def test_job_survives_the_manager_that_leads_it(cluster, job_server) -> None:
    with mended(cluster):
        started, job, truth = led_apart(cluster, job_server, "--rate", "60/s", "--for", "6s")
        owner = cluster.owner(job)
        cluster.kill(owner)
        ended = started.ended()
        assert ended.code == 0, ended.text
        document = ended.document()
        assert document["status"] == "completed"
        assert document["totals"]["requests"] == truth.count() == 360
        assert cluster.owner(job) != owner


def test_job_survives_the_leader_of_the_cluster(cluster, job_server) -> None:
    with mended(cluster):
        started, job, truth = led_apart(cluster, job_server, "--rate", "60/s", "--for", "6s")
        leader = cluster.wait_for_leader()
        cluster.kill(leader)
        ended = started.ended()
        assert ended.code == 0, ended.text
        document = ended.document()
        assert document["status"] == "completed"
        assert document["totals"]["requests"] == truth.count() == 360


@pytest.mark.serial
def test_job_goes_on_when_all_managers_were_killed_and_started_again(cluster, truth) -> None:
    with mended(cluster):
        started, job, _ = under_way(cluster, truth, "--rate", "60/s", "--for", "10s", "--cores", "2")
        cluster.kill(*cluster.managers)
        for name in cluster.managers:
            cluster.restart(name)
        ended = started.ended()
        document = ended.document()
        # A worker whose lease ran out before a leader was there again has stopped, and the result says so.
        assert document["status"] in ("completed", "partial"), ended.text
        adds_up(document, 600, truth.count())
        assert cluster.client().job(job).state == document["status"]


def test_killed_talka_up_knows_its_job_when_it_is_started_again(make_jobs, truth) -> None:
    cluster = make_jobs(1, 0, start=False)
    words = ("up", "--port", cluster.api("m1").rpartition(":")[2], "--cores", "1", "--json")
    words += ("--data-dir", str(cluster.data("up")), "--lease", "1s")
    first = cluster.start_talka(*words)
    first.wait_for_text('"up"')
    submitted = cluster.start_submit(PLAIN, "--rate", "50/s", "--for", "6s")
    until(lambda: truth.count() >= 30, cluster, SOON_S, "requests")
    first.process.kill()
    first.ended()
    job = submitted.job()  # read now: its process may take longer to say so than the job to run
    sent = truth.count()
    second = cluster.start_talka(*words)
    second.wait_for_text('"up"')
    shown = cluster.talka("jobs", "watch", job, "--ui", "none", timeout_s=120)
    facts = json.loads(cluster.talka("jobs", "show", job, "--json").out)
    assert facts["state"] in ("partial", "failed"), shown.text
    assert facts["reason"]
    assert shown.code == facts["exit_code"] != 0
    assert sent <= truth.count() <= 300
    second.process.terminate()
    assert second.ended().code == 0


@pytest.mark.serial
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_manager_with_a_full_disk_says_so_and_the_job_ends_without_it(start_jobs, tmp_path, truth) -> None:
    disk = tmp_path / "faulty" / "data-m1"
    disk.mkdir(parents=True, mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        with start_jobs(tmp_path / "faulty", 3, 2) as cluster:
            fill(disk / "ballast")
            ended = cluster.submit(PLAIN, "--rate", "60/s", "--for", "2s")
            assert ended.code == 0, ended.text
            assert ended.document()["totals"]["requests"] == truth.count() == 120
            life = cluster.lives["m1"][0]
            cluster.wait(lambda: life.said("alarm") or life.is_over, SOON_S, "m1 to say that its disk is full")
            told = " ".join(event["text"] for event in life.said("alarm")) + life.errors.read_text()
            assert "No space left on device" in told
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(file: Path) -> None:
    with file.open("wb") as stream:
        size = 1 << 16
        while size:
            try:
                os.write(stream.fileno(), b"x" * size)
            except OSError:
                size //= 2


# Code of users


@pytest.mark.serial
@pytest.mark.parametrize(
    ("step", "head"),
    [
        pytest.param("await asyncio.sleep(3600)", "", id="never returns"),
        pytest.param("while True:\n    time.sleep(1)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", id="blocks"),
    ],
)
def test_cancel_ends_what_does_not_want_to_end_within_its_grace(cluster, truth, tmp_path, step, head) -> None:
    file = workflow(tmp_path, step, head=head)
    with mended(cluster):
        started, job, running = under_way(cluster, truth, "--grace", "1s", "--cores", "2", file=file, requests=2)
        cores = [core for name in running for core in cluster.core_processes(name)]
        assert len(cores) == 2
        with cluster.standstill(is_seen_here=True) as machine:
            cancelled_at = cluster.now()
            cluster.client().cancel(job)
            ended = started.ended()
            assert ended.code == 8, ended.text
            assert cluster.client().job(job).state == "cancelled"
            assert psutil.wait_procs(cores, timeout=SOON_S)[1] == []
        ends = [event["at"] for kind in ("task-ended", "task-killed") for _, event in cluster.said(kind, job=job)]
        # Grace and a second.
        took_s = max(ends) - cancelled_at
        assert len(ends) == 2 and machine.allows(took_s, 1 + 1)


def test_a_core_that_hangs_is_shown_with_its_stack_and_the_next_job_starts_beside_it(
    make_jobs, truth, tmp_path
) -> None:
    cluster = make_jobs(1, 1, 2)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    file = workflow(tmp_path, f"open({str(gate)!r}).close()")  # waits in C, and the loop with it
    started, job, (name,) = under_way(
        cluster, truth, "--cores", "1", "--vus", "1", "--iterations", "1", tasks=1, requests=1, file=file
    )
    [pid] = [core.pid for core in cluster.core_processes(name)]
    told = cluster.wait_for(name, "core-stack", job=job)
    assert told["pid"] == pid and "odd.py" in told["where"] and "in odd" in told["stack"]

    beside = cluster.submit(PLAIN, "--vus", "1", "--iterations", "5", "--cores", "1")
    assert beside.code == 0, beside.text

    [worker] = cluster.client().workers()
    [quiet] = worker.quiet_cores
    assert (worker.state, worker.cores, worker.free, worker.load_cores) == ("healthy", 2, 1, 1)
    assert (quiet.job, quiet.pid) == (job, pid) and "in odd" in quiet.stack
    assert {"stalled", "stuck"} & {decision.what for decision in worker.decisions}
    assert "in odd" in cluster.talka("workers").out
    with gate.open("w"):  # it goes on
        assert started.ended().code == 0
    cluster.wait_for(name, "core-turns", job=job)


@pytest.mark.serial
def test_memory_is_refused_to_a_test_that_wants_all_of_it(cluster, truth, tmp_path) -> None:
    share = int(psutil.virtual_memory().total * 0.9)
    file = workflow(tmp_path, f"self.context['hoard'] = bytearray({share})")
    ended = cluster.submit(file, "--iterations", "5", "--vus", "1", "--cores", "1")
    assert ended.code == 6, ended.text
    assert "MemoryError" in ended.out
    cluster.wait_until_idle()


@pytest.mark.serial
def test_children_of_a_test_end_with_it(cluster, truth, tmp_path) -> None:
    file = workflow(
        tmp_path,
        "if not self.context.get('child'):\n    self.context['child'] = subprocess.Popen(['sleep', '1000'])",
    )
    ended = cluster.submit(file, "--iterations", "20", "--cores", "2", "--vus", "2")
    assert ended.code == 0, ended.text
    assert ended.document()["totals"]["requests"] == truth.count()
    cluster.wait(lambda: not [one for one in cluster.processes() if one.name() == "sleep"], SOON_S, "children to end")


@pytest.mark.serial
def test_test_that_ends_its_own_process_is_given_up_after_a_few_tries(cluster, truth, tmp_path) -> None:
    ended = cluster.submit(workflow(tmp_path, "os._exit(3)"), "--for", "2s", "--vus", "1", "--cores", "1")
    assert ended.code in (6, 8), ended.text
    assert "exited with status 3" in ended.out
    assert ended.document()["status"] in ("partial", "failed")
    cluster.wait_until_idle()


@pytest.mark.serial
def test_test_that_raises_in_setup_fails_with_what_it_raised(cluster, truth, tmp_path) -> None:
    body = "    @setup()\n    async def begin(self) -> None:\n        raise ValueError('the till is shut')\n"
    ended = cluster.submit(workflow(tmp_path, "pass", body=body), "--for", "2s", "--cores", "2")
    assert ended.code == 3, ended.text
    assert "the till is shut" in ended.out
    assert ended.document()["status"] == "failed"
    assert truth.count() == 0


def test_a_worker_whose_only_manager_is_gone_finds_the_others_when_it_is_started_again(cluster) -> None:
    with mended(cluster):
        gone, worker = cluster.managers[0], cluster.workers[0]
        cluster.kill(gone, worker)

        life = cluster.start_worker(worker, "--zone", "z1", "--region", "r1", seeds=[gone])

        cluster.wait_for(worker, "lease")
        assert life.said("lease")[0]["manager"] != gone
        (shown,) = [one for one in cluster.client().workers() if one.name == worker]
        assert (shown.zone, shown.region) == ("z1", "r1")
