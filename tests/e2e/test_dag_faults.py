"""What dies, and what becomes of its tasks."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import processes
from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import HANDLERS, UP, DagCluster, Line, dag_cluster, kill_process
from tests.e2e.soak import Soak
from tests.processes import TALKA

LEASE_S = 5.0
LONG_LEASE_S = 60.0
"""Where nobody may wait for the end of a lease: on a busy machine anything else takes a few seconds too."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagCluster]:
    """Two workers, for tests that leave no more than a restarted process behind."""
    options = ("--lease", f"{LONG_LEASE_S:g}s")
    with dag_cluster(tmp_path_factory.mktemp("faults"), 2, 2, manager_options=options) as cluster:
        yield cluster


def waited_s(lines: list[Line], killed_ns: int) -> float:
    """From a blow to the first attempt that began after it."""
    return (min(line.at_ns for line in lines if line.at_ns > killed_ns) - killed_ns) / 1e9


ENDS = """

command("ends", ["sh", "-c", '''
read -r given
echo "began $TALKA_JOB $TALKA_TASK $TALKA_FENCE $TALKA_ATTEMPT $$ $(date +%s%N) " >> "$LEDGER"
case "$given" in
  *exit*) exit 7 ;;
  *fault*) kill -SEGV $$ ;;
  *stop*) kill -TERM $$ ;;
esac
'''])
"""
"""A command that ends as its config says. To go after HANDLERS."""


def test_functions_and_commands_are_given_up_by_one_table(tmp_path: Path) -> None:
    def chain(**tasks: dict[str, object]) -> list[dict[str, object]]:
        # One after the other: a core that dies takes with it what else is in it, and that costs others nothing.
        names = list(tasks)
        return [{"id": name, "depends_on": names[:place][-1:], **tasks[name]} for place, name in enumerate(names)]

    with dag_cluster(tmp_path, 1, 1, handlers=HANDLERS + ENDS) as cluster:
        job = cluster.dag(
            "endings",
            *chain(
                exits={"handler": "ends", "config": "exit"},
                faults={"handler": "ends", "config": "fault"},
                core_exits={"handler": "end", "config": "exit"},
                core_faults={"handler": "end", "config": "segfault"},
                raises={"handler": "wrong"},
                exits_twice={"handler": "ends", "config": "exit", "retry": {"max": 1, "backoff": 0}},
                core_faults_twice={"handler": "end", "config": "segfault", "retry": {"max": 1, "backoff": 0}},
                exits_often={"handler": "ends", "config": "exit", "retry": {"max": 4, "backoff": 0}},
                core_faults_often={"handler": "end", "config": "segfault", "retry": {"max": 4, "backoff": 0}},
            ),
            settings={"on_failure": "continue"},
        )
        cluster.wait_for_end(job)
        stopped = cluster.dag("stopped", {"id": "stops", "handler": "ends", "config": "stop"})
        cluster.wait_for_lines(6, job=stopped, task="stops")
        cluster.talka("jobs", "cancel", stopped)
        cluster.wait_for_end(stopped)
        tasks, state = cluster.tasks(job), cluster.tasks(stopped)["stops"]["state"]

    assert {name: task["state"] for name, task in tasks.items()} == dict.fromkeys(tasks, "dead")
    attempts = {name: (task["attempts"], task["cause"]) for name, task in tasks.items()}
    assert attempts == {
        "exits": (3, "exit"),
        "faults": (2, "SIGSEGV"),
        "core_exits": (3, "exit"),
        "core_faults": (2, "SIGSEGV"),
        "raises": (4, "ValueError"),
        "exits_twice": (2, "exit"),
        "core_faults_twice": (2, "SIGSEGV"),
        "exits_often": (5, "exit"),
        "core_faults_often": (5, "SIGSEGV"),
    }
    assert state == "cancelled", "SIGTERM from outside is nobody's failure"


# talka up


def test_talka_up_killed_in_mid_job_goes_on_with_every_acknowledged_job_at_once(tmp_path: Path) -> None:
    lease = ("--lease", f"{LONG_LEASE_S:g}s")
    with dag_cluster(tmp_path, cores=2, is_up=True, start=False) as cluster:
        cluster.start_up(SOON_S, *lease)
        chain = [{"id": f"t{n}", "handler": "mark", "depends_on": [f"t{n - 1}"] if n else []} for n in range(6)]
        chain[2] |= {"handler": "until", "config": "gate"}
        jobs = [cluster.dag(f"chain-{n}", *chain) for n in range(5)]
        long = {"id": "long", "handler": "until", "config": "never"}
        held = cluster.dag("held", long, {"id": "short", "handler": "mark"})
        cluster.wait_for_lines(1, job=held, task="long")
        cluster.wait_for_lines(2, job=jobs[0], word="ended")

        cluster.kill(UP)
        done_before = {(task.job, task.id) for task in cluster.stored() if task.state == "completed"}
        life = cluster.start_up(SOON_S, *lease)
        back_ns = round(life.said("up")[0]["at"] * 1e9)
        fresh = cluster.dag("fresh", {"id": "one", "handler": "mark"})
        cluster.open_gate("gate")
        for job in [*jobs, fresh]:
            cluster.wait_for_end(job)
        for job in jobs:
            assert cluster.facts(job)["counts"] == {"completed": 6}
        again = cluster.wait_for_lines(2, job=held, task="long")
        cancelled = cluster.talka("jobs", "cancel", held)
        cluster.wait_for_end(held)

        lines = cluster.ledger(word="began")
        [first_new] = cluster.ledger(job=fresh, word="began")

    assert cancelled.code == 0, cancelled.text
    assert done_before
    late = [line for line in lines if (line.job, line.task) in done_before and line.at_ns > back_ns]
    assert not late, "tasks that were completed before ran again"
    assert again[1].fence > again[0].fence
    # Its old tasks were free at once: nobody waited for a lease or for a worker that is no more, only for cores to be
    # there, as those of a new job do.
    assert (again[1].at_ns - first_new.at_ns) / 1e9 < LONG_LEASE_S / 6


def test_a_second_manager_is_refused_the_store_with_a_sentence(cluster: DagCluster, tmp_path: Path) -> None:
    words = [
        *(*TALKA, "up", "--port", "0", "--data-dir", str(tmp_path / "other")),
        *("--store", cluster.url, "--handlers", str(cluster.handlers_file)),
    ]
    ended = processes.run(words, capture_output=True, text=True, timeout=SOON_S)

    assert ended.returncode not in (0, -9), ended
    assert "another manager has the store" in ended.stderr
    assert "Traceback" not in ended.stderr


# Cores


def test_the_task_of_a_killed_core_runs_in_a_new_one_within_a_second(tmp_path: Path) -> None:
    """One worker of one core: there is nobody else to go to, and no lease or poll that would do it in time."""
    options = ("--lease", f"{LONG_LEASE_S:g}s")
    with dag_cluster(tmp_path, 1, 1, manager_options=options) as cluster:
        job = cluster.dag("core", {"id": "held", "handler": "until", "config": "gate"})
        (line,) = cluster.wait_for_lines(job=job, task="held")
        assert [core.pid for core in cluster.core_processes("w1")] == [line.pid]

        with cluster.standstill(is_seen_here=False) as machine:
            killed_ns, killed_s = round(cluster.now() * 1e9), time.monotonic()
            kill_process(line.pid)
            cluster.wait_for_lines(2, job=job, task="held")
        cluster.open_gate("gate")
        facts = cluster.wait_for_end(job)

        began = cluster.ledger(job=job, word="began")
        assert facts["state"] == "completed"
        assert len({line.pid for line in began}) == 2 == len(began)
        took_s = waited_s(began, killed_ns)
        slack_s = machine.slack_s(took_s, killed_s)
        assert machine.allows(took_s, 1.0, killed_s), f"{took_s:.2f} s, {slack_s:.2f} s of it for a processor"
        assert cluster.tasks(job)["held"]["output"] == began[1].fence


def test_all_tasks_of_a_killed_core_run_again_and_none_is_charged(cluster: DagCluster) -> None:
    job = cluster.dag("cores", *({"id": f"t{n}", "handler": "until", "config": "cores-gate"} for n in range(8)))
    lines = cluster.wait_for_lines(8, job=job)

    for pid in {line.pid for line in lines}:
        kill_process(pid)
    cluster.wait_for_lines(9, job=job)  # the others wait for the first ones: each is alone in its process now
    cluster.open_gate("cores-gate")
    facts = cluster.wait_for_end(job)

    assert facts["counts"] == {"completed": 8}
    assert all(task["attempts"] == 2 for task in cluster.tasks(job).values())


@pytest.mark.parametrize(
    ("how", "bounds", "deaths", "causes"),
    [
        pytest.param("segfault", None, 2, {"SIGSEGV"}, id="segfault"),
        pytest.param("exit", None, 3, {"exit"}, id="os._exit"),
        pytest.param("memory", {"memory": "200MB"}, 3, {"oom", "MemoryError"}, id="memory"),
    ],
)
def test_a_task_with_which_processes_die_is_a_dead_letter_with_all_attempts_and_is_replayed(
    cluster: DagCluster, how: str, bounds: dict[str, str] | None, deaths: int, causes: set[str]
) -> None:
    job = cluster.dag(
        f"poison-{how}",
        {
            "id": "poison",
            "handler": "end",
            "config": how,
            "retry": {"backoff": 0},
            **({"bounds": bounds} if bounds else {}),
        },
        {"id": "beside", "handler": "mark", "config": 0.5},
        {"id": "after", "handler": "echo", "depends_on": ["poison"]},
        settings={"on_failure": "skip_dependents"},
    )

    facts = cluster.wait_for_end(job)
    task = cluster.tasks(job)["poison"]
    letters = [one for one in cluster.ask_api("GET", "/v1/dead-letters?limit=500").body["items"] if one["job"] == job]
    replayed = cluster.ask_api("POST", f"/v1/dead-letters/{job}/poison/replay", {"config": "nothing"})
    again = cluster.wait_for_end(job)

    assert (facts["state"], task["state"]) == ("partial", "dead"), cluster.tasks(job)
    assert cluster.tasks(job)["beside"]["state"] == "completed"
    attempts = letters[0]["attempts"]
    # One more where the first was not alone in its process, and could not be told from the others.
    assert deaths <= len(attempts) <= deaths + 1, attempts
    assert [attempt["attempt"] for attempt in attempts] == list(range(1, len(attempts) + 1))
    assert causes & {attempts[-1]["cause"], attempts[-1]["signal"]}, attempts
    if how == "exit":
        assert attempts[-1]["exit_code"] == 3
    assert replayed.status == 200, replayed
    assert again["counts"] == {"completed": 3}


CHILDREN = """

@handler("leave")
async def leave(task):
    child = await asyncio.create_subprocess_exec("sleep", "1000")
    note("child", task, str(child.pid))
    if task.config == "fail":
        raise ConnectionError("nobody is there")
    await asyncio.Event().wait()
"""


@pytest.mark.parametrize("how", ["fail", "timeout", "cancel"])
def test_children_of_attempts_that_did_not_return_end_with_their_core(tmp_path: Path, how: str) -> None:
    with dag_cluster(tmp_path, 1, 1, handlers=HANDLERS + CHILDREN) as cluster:
        beside = cluster.dag("beside", {"id": "beside", "handler": "until", "config": "gate"})
        cluster.wait_for_lines(job=beside, word="began")
        job = cluster.dag(
            "leave",
            {
                **{"id": "t", "handler": "leave", "config": how, "retry": {"max": 4, "backoff": "10ms", "factor": 1}},
                **({"timeouts": {"attempt": "500ms"}} if how == "timeout" else {}),
            },
        )
        if how == "cancel":
            cluster.wait_for_lines(job=job, word="child")
            cluster.ask_api("POST", f"/v1/jobs/{job}/cancel")
        cluster.wait_for_end(job)
        cluster.open_gate("gate")
        assert cluster.wait_for_end(beside)["counts"] == {"completed": 1}, "who shared a core ends as he would"

        children = [int(line.text) for line in cluster.ledger(job=job, word="child")]
        assert len(children) == (1 if how == "cancel" else 5)
        cluster.wait(
            lambda: not [pid for pid in children if psutil.pid_exists(pid)] or cluster.hear(0.05),
            SOON_S,
            "the children to end",
        )
        assert len(cluster.ledger(job=beside, word="began")) == 1


@pytest.mark.serial
@pytest.mark.timeout(240)
def test_a_handler_that_blocks_for_twenty_short_leases_is_not_given_to_another(tmp_path: Path) -> None:
    lease_s = 0.5
    with dag_cluster(tmp_path, 2, 1, manager_options=("--lease", "500ms")) as cluster:
        for _ in range(5):
            before = len(cluster.said("worker-lost"))
            with cluster.standstill(is_seen_here=False) as machine:
                job = cluster.dag("blocked", {"id": "blocked", "handler": "block", "config": lease_s * 20})
                (line,) = cluster.wait_for_lines(job=job, word="began")
                tasks = [{"id": f"t{n}", "handler": "mark"} for n in range(20)]
                beside = cluster.wait_for_end(cluster.dag("beside", *tasks))
                facts = cluster.wait_for_end(job)
            lost, began = cluster.said("worker-lost")[before:], cluster.ledger(job=job, word="began")
            if not lost:
                break
            # A manager or a worker that does not run for as long as between two beats ends a lease, as it should.
            lost_s = time.monotonic() - (cluster.now() - lost[0][1]["at"])
            if not machine.excuses(lease_s / 5, lost_s - 2 * lease_s, lost_s):
                break

        worker = cluster.tasks(job)["blocked"]["worker"]
        killed_at, before = cluster.now(), len(cluster.said("worker-lost"))
        cluster.kill(worker)
        cluster.wait(lambda: len(cluster.said("worker-lost")) > before, SOON_S, f"{worker} to be given up")
        _, late = cluster.said("worker-lost")[-1]

    assert (facts["state"], beside["counts"]) == ("completed", {"completed": 20})
    assert began == [line]
    assert not lost
    # The lease was as short as that: one whose process is gone is given up.
    assert late["name"] == worker and late["at"] - killed_at < LEASE_S


# Workers and managers


def test_tasks_of_a_killed_worker_run_on_another_within_ten_seconds(tmp_path: Path) -> None:
    with dag_cluster(tmp_path, 2, 1) as cluster:
        job = cluster.dag("worker", *({"id": f"t{n}", "handler": "until", "config": "gate"} for n in range(4)))
        cluster.wait_for_lines(4, job=job)
        given = {name: task["worker"] for name, task in cluster.tasks(job).items()}
        # Whoever was there first may have all of them.
        victim = given["t0"]
        (other,) = {"w1", "w2"} - {victim}
        on_victim = [name for name, worker in given.items() if worker == victim]

        killed_ns = round(cluster.now() * 1e9)
        cluster.kill(victim)
        cluster.wait_for_lines(4 + len(on_victim), job=job)
        cluster.open_gate("gate")
        facts = cluster.wait_for_end(job)

        assert facts["counts"] == {"completed": 4}
        for name in on_victim:
            assert waited_s(cluster.ledger(job=job, task=name, word="began"), killed_ns) < 10
        assert all(task["worker"] == other for name, task in cluster.tasks(job).items() if name in on_victim)


def test_a_worker_started_again_frees_its_old_tasks_at_once(tmp_path: Path) -> None:
    with dag_cluster(tmp_path, 1, 1) as cluster:
        job = cluster.dag("reborn", {"id": "held", "handler": "until", "config": "gate"})
        cluster.wait_for_lines(job=job)

        cluster.restart("w1")
        cluster.wait_for_lines(2, job=job)
        cluster.open_gate("gate")
        facts = cluster.wait_for_end(job)

        first, second = cluster.ledger(job=job, word="began")
        assert facts["state"] == "completed"
        assert first.fence < second.fence
        # They were free when it was known again, and no lease had to end. Where it takes longer to start than a lease
        # lasts, that had ended before.
        told = [event["event"] for event in cluster.up["m1"].events if event["event"].startswith("worker-")]
        # Its processors may be busy, which is judged.
        known = [event for event in told if event != "worker-judged"]
        assert known == ["worker-registered", "worker-lost", "worker-registered"]


def test_workers_go_on_without_their_manager_and_their_results_are_taken_by_its_next_life(tmp_path: Path) -> None:
    with dag_cluster(tmp_path, 2, 1) as cluster:
        job = cluster.dag(
            "on",
            *({"id": f"t{n}", "handler": "until", "config": "gate"} for n in range(6)),
            {"id": "all", "handler": "echo", "depends_on": [f"t{n}" for n in range(6)]},
        )
        cluster.wait_for_lines(6, job=job, word="began")

        cluster.kill("m1")
        cluster.open_gate("gate")
        cluster.wait_for_lines(6, job=job, word="ended")
        cluster.start_manager("m1")
        cluster.wait_until_ready()
        facts = cluster.wait_for_end(job)

        assert facts["counts"] == {"completed": 7}
        began = [line for line in cluster.ledger(job=job, word="began") if line.task != "all"]
        assert len(began) == 6, "what was done while nobody led was done again"


FAN = """

@handler("list")
async def list_of(task):
    note("began", task)
    while not is_open(task.config["gate"]):
        await asyncio.sleep(0.02)
    return {"parts": list(range(task.config["parts"]))}


@handler("part")
async def part(task):
    note("began", task, f"{task.index}:{task.item}")
    return 2 * task.item


@handler("total")
async def total(task):
    note("began", task)
    outputs = task.inputs["clean"]
    return outputs == [2 * number for number in range(len(outputs))] and len(outputs)
"""
"""A list, what is done with each of its elements, and with all they gave. To go after HANDLERS."""
PARTS = 3000


def changed_bytes(before: bytes, now: bytes, page: int = 4096) -> int:
    """Of the log beside a store, which is as long as it gets before anything is written: its length tells nothing."""
    return sum(page for start in range(0, len(now), page) if now[start : start + page] != before[start : start + page])


@pytest.mark.parametrize("when", ["before it is begun", "while it is written", "while its elements run"])
def test_a_manager_killed_where_a_task_is_fanned_out_loses_no_element_and_makes_none_twice(
    tmp_path: Path, when: str
) -> None:
    lease = ("--lease", f"{LONG_LEASE_S:g}s")
    with dag_cluster(tmp_path, 1, 2, handlers=HANDLERS + FAN, manager_options=lease) as cluster:
        job = cluster.dag(
            "fan",
            {"id": "extract", "handler": "list", "config": {"gate": "listed", "parts": PARTS}},
            {"id": "clean", "handler": "part", "for_each": "extract.parts", "max_parallel": 500},
            {"id": "load", "handler": "total", "depends_on": ["clean"]},
        )
        cluster.wait_for_lines(1, task="extract")
        # A paused job fans nothing out: its list is durable, and its elements are not there yet.
        cluster.talka("jobs", "pause", job)
        cluster.open_gate("listed")
        cluster.wait_for_task(job, "extract", "completed")
        between = [task.id for task in cluster.stored()]
        log = Path(f"{cluster.store}-wal")
        before = log.read_bytes()
        if when != "before it is begun":
            assert cluster.ask_api("POST", f"/v1/jobs/{job}/resume").status == 200
        if when == "while it is written":
            until = time.monotonic() + SOON_S
            while changed_bytes(before, log.read_bytes()) <= PARTS << 5:
                cluster.hear(0.001)
                assert time.monotonic() < until, "no elements were written"
        elif when == "while its elements run":
            cluster.wait_for_lines(100, word="began")
        cluster.kill("m1")
        after = [task.id for task in cluster.stored()]
        cluster.start_manager("m1")
        cluster.wait_until_ready()
        if when == "before it is begun":
            assert cluster.ask_api("POST", f"/v1/jobs/{job}/resume").status == 200
        facts = cluster.wait_for_end(job, 6 * SOON_S)
        tasks = {task.id: task for task in cluster.stored()}
        lines = [line for line in cluster.ledger(word="began") if line.task.startswith("clean[")]

    own = ["extract", "clean", "load"]
    every = [*own, *(f"clean[{place}]" for place in range(PARTS))]
    assert between == own
    assert after in ([own] if when == "before it is begun" else [own, every]), len(after)
    assert when != "while its elements run" or after == every
    assert (facts["state"], facts["tasks"], facts["counts"]) == ("completed", PARTS + 3, {"completed": PARTS + 3})
    assert list(tasks) == every and tasks["load"].output == PARTS
    assert [tasks[f"clean[{place}]"].output for place in range(PARTS)] == [2 * place for place in range(PARTS)]
    # Its worker lived on: what it had begun, nobody began again.
    assert sorted(line.text for line in lines) == sorted(f"{place}:{place}" for place in range(PARTS))


@pytest.mark.patient
@pytest.mark.parametrize(("handler", "tasks"), [("work", 2), ("block", 1)])  # of two that block, one core may get both
def test_a_manager_away_for_longer_than_the_lease_costs_nothing_that_runs(
    tmp_path: Path, handler: str, tasks: int
) -> None:
    with dag_cluster(tmp_path, 2, 1) as cluster:
        job = cluster.dag("away", *({"id": f"t{n}", "handler": handler, "config": "gate"} for n in range(tasks)))
        cluster.wait_for_lines(tasks, job=job, word="began")

        cluster.kill("m1")
        cluster.listen(LEASE_S * 1.5)
        cluster.start_manager("m1")
        cluster.wait_until_ready()
        cluster.listen(LEASE_S)  # were they taken for lost, they would begin anew in this time
        cluster.open_gate("gate")
        facts = cluster.wait_for_end(job)

        assert facts["counts"] == {"completed": tasks}
        assert len(cluster.ledger(job=job, word="began")) == tasks, cluster.tasks(job)


def test_a_stopped_worker_that_comes_back_late_is_refused_what_others_have_done(tmp_path: Path) -> None:
    with dag_cluster(tmp_path, 2, 1) as cluster:
        job = cluster.dag("late", *({"id": f"t{n}", "handler": "work", "config": "gate"} for n in range(2)))
        lines = cluster.wait_for_lines(2, job=job, word="began")
        victim = cluster.tasks(job)[lines[0].task]["worker"]

        cluster.stop_process(victim)
        cluster.open_gate("gate")
        facts = cluster.wait_for_end(job)
        cluster.continue_process(victim)
        cluster.wait(lambda: cluster.metric("dag_results_stale_total") >= 1, SOON_S, "the late result to be refused")

        assert facts["counts"] == {"completed": 2}
        stored = {task.id: task for task in cluster.stored()}
        assert all(task.output == task.fence for task in stored.values()), stored
        assert [task.attempts for task in stored.values()].count(2) == 1


# The store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    made = processes.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        processes.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_refuses_jobs_with_a_sentence_and_goes_on_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    with dag_cluster(tmp_path / "cluster", 1, 1, store=small_disk / "jobs.sqlite") as cluster:
        first = cluster.dag("before", {"id": "held", "handler": "until", "config": "gate"})
        cluster.wait_for_lines(job=first, word="began")
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 65_536)
                file.flush()

        # What it has at hand may take a few more.
        statuses = []
        task = {"id": "t", "handler": "mark", "config": 0, "key": "k" * 200}
        body = {"kind": "dag", "name": "full", "tasks": [task], "wait_for_workers": True}
        for _ in range(200):
            answer = cluster.ask_api("POST", "/v1/jobs", body, timeout_s=SOON_S)
            statuses.append(answer.status)
            if answer.status == 503:
                break
        alive = cluster.ask_api("GET", "/livez").status
        cluster.open_gate("gate")
        cluster.wait_for_lines(job=first, word="ended")
        ballast.unlink()
        facts = cluster.wait_for_end(first)
        cluster.wait_until_loaded()  # its lease of the store, which could not be renewed either, is renewed each second
        after = cluster.dag("after", {"id": "one", "handler": "mark"})

        assert statuses[-1] == 503, statuses
        assert "detail" in answer.body and "Traceback" not in str(answer.body), answer.body
        assert alive == 200
        assert facts["state"] == "completed"
        assert cluster.wait_for_end(after)["state"] == "completed"


# All of it


@pytest.mark.serial
@pytest.mark.timeout(240)
def test_a_minute_of_blows_loses_nothing_and_accepts_nothing_twice(tmp_path: Path) -> None:
    soak = Soak(tmp_path, seed=7, minutes=1.0, tasks=10_000, say=print)

    broken = soak.run()

    assert not broken, "\n".join(broken)


def test_the_guard_of_handler_cores_ends_them_with_their_worker(tmp_path: Path) -> None:
    with dag_cluster(tmp_path, 1, 2) as cluster:
        job = cluster.dag("orphans", *({"id": f"t{n}", "handler": "work", "config": "never"} for n in range(2)))
        lines = cluster.wait_for_lines(2, job=job)

        cluster.signal("w1", signal.SIGKILL)
        cluster.wait(
            lambda: not any(psutil.pid_exists(line.pid) for line in lines), SOON_S, "cores to end with their worker"
        )
