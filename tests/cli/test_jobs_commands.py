"""`talka jobs …`, `talka workers …` and `talka cluster status`: tables for people, JSON for programs."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.cli.cluster_jobs import newest, stopped_text
from talka.cli.live.layout import Size
from talka.cli.live.view import Composer
from talka.client.client import Client
from talka.client.kinds import AnyJob
from talka.client.sheets import waiting_text
from talka.client.watched_job import WatchedJob
from talka.wire.machines import GpuView, MachineView
from talka.wire.views import CertificateView, JobFacts, ManagerView, QuietCoreView, WorkerDecision, WorkerView
from talka.work.lifecycle import JobState
from tests import processes
from tests.processes import TALKA

URL = "http://127.0.0.1:9/"
LIMIT_S = 60


@pytest.fixture
def ended(remote: Any, command: Any) -> str:
    """The id of a job that has ended."""
    return str(command("submit", URL, "--to", remote.to, "--ui", "none", "--detach").out.strip())


@pytest.fixture
def endless(remote: Any, command: Any) -> str:
    """The id of a job that runs until it is cancelled."""
    remote.control.is_endless = True
    return str(command("submit", URL, "--to", remote.to, "--detach").out.strip())


# Lists.


@pytest.mark.parametrize("words", [["jobs"], ["jobs", "list"]], ids=" ".join)
def test_jobs_are_listed_as_a_table(words: list[str], remote: Any, command: Any, ended: str) -> None:
    remote.control.stays_queued = True
    command("submit", URL, "--to", remote.to, "--detach")
    code, out, err = command(*words, "--to", remote.to)
    heading, first, second = out.splitlines()
    assert (code, err) == (0, "") and heading.split() == ["JOB", "NAME", "STATE", "EXIT", "NOTE"]
    assert first.split() == ["job1", URL, "completed", "0"]
    assert second.split()[:3] == ["job2", URL, "queued"]
    assert second.endswith("position 2: waits for 4 cores: 1 of 8 are free")


def test_jobs_are_listed_as_json(remote: Any, command: Any, ended: str) -> None:
    code, out, _ = command("jobs", "--json", "--to", remote.to)
    [job] = json.loads(out)["jobs"]
    assert code == 0 and (job["id"], job["state"], job["exit_code"]) == ("job1", "completed", 0)


def test_jobs_of_one_state(remote: Any, command: Any, ended: str) -> None:
    assert "job1" in command("jobs", "--state", "completed", "--to", remote.to).out
    assert command("jobs", "--state", "queued", "--to", remote.to) == (0, "", "no job is queued\n")
    code, _, err = command("jobs", "--state", "odd", "--to", remote.to)
    assert code == 2 and "--state" in err and "completing" in err


def test_no_more_jobs_are_listed_than_asked_for(remote: Any, command: Any) -> None:
    for number in range(6):
        remote.control.add_job(f"j{number}")
    code, out, err = command("jobs", "--limit", "5", "--to", remote.to)
    assert code == 0 and [line.split()[0] for line in out.splitlines()[1:]] == ["j0", "j1", "j2", "j3", "j4"]
    assert "newest 5" in err
    assert len(command("jobs", "--to", remote.to).out.splitlines()) == 7
    by_pages = asyncio.run(newest(Client([remote.to]), "", 5, page_limit=2))
    assert [job.id for job in by_pages] == ["j0", "j1", "j2", "j3", "j4"]


def test_cluster_without_jobs_says_how_to_make_one(remote: Any, command: Any) -> None:
    code, out, err = command("jobs", "--to", remote.to)
    assert (code, out) == (0, "") and "talka submit" in err


# One job.


def test_job_is_shown_with_what_is_known_of_it(remote: Any, command: Any, endless: str) -> None:
    job = remote.control.jobs_by_id[endless]
    job.facts = msgspec.structs.replace(
        job.facts, submitted_at="2026-01-02T03:04:05.678Z", submitted_by="ada\x1b[2J", reason="all is well"
    )
    code, out, _ = command("jobs", "show", endless, "--to", remote.to)
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0 and rows["state"] == "running: all is well" and rows["workers"] == "w1"
    assert (rows["cores"], rows["submitted"]) == ("4", "2026-01-02 03:04:05 UTC")
    assert "\x1b" not in out and "exit" not in rows
    assert json.loads(command("jobs", "show", endless, "--json", "--to", remote.to).out)["cores"] == 4


@pytest.mark.parametrize("what", ["show", "watch", "cancel", "result"])
def test_job_that_nobody_knows_is_a_sentence(what: str, remote: Any, command: Any) -> None:
    code, out, err = command("jobs", what, "nowhere", "--to", remote.to)
    assert (code, out) == (2, "") and "there is no job nowhere" in err


def test_cancel_says_what_becomes_of_the_job(remote: Any, command: Any, endless: str) -> None:
    remote.control.ignores_cancel = True
    code, out, _ = command("jobs", "cancel", endless, "--reason", "enough", "--to", remote.to)
    assert (code, out) == (0, "job job1 is being cancelled\n") and ("cancel", "job1", "enough") in remote.control.asked
    remote.control.ignores_cancel = False
    command("jobs", "cancel", endless, "--to", remote.to)
    assert "has ended: it is cancelled" in command("jobs", "cancel", endless, "--to", remote.to).out
    assert json.loads(command("jobs", "cancel", endless, "--json", "--to", remote.to).out)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("kind", "stopped", "text"),
    [
        ("load", None, ""),
        ("load", 1, "; 1 workflow was stopped"),
        ("dag", 0, "; 0 tasks were stopped"),
        ("dag", 2, "; 2 tasks were stopped"),
    ],
)
def test_cancel_says_how_much_it_stopped(kind: str, stopped: int | None, text: str) -> None:
    assert stopped_text(AnyJob("job1", "shop", JobState.CANCELLED, kind=kind, stopped=stopped)) == text


def test_result_is_summed_up_and_written(remote: Any, command: Any, ended: str, folder: Path) -> None:
    code, out, _ = command("jobs", "result", ended, "--to", remote.to)
    assert code == 0 and out.startswith("✓ COMPLETED")
    code, out, _ = command("jobs", "result", ended, "--json", "r.json", "--html", "r.html", "--to", remote.to)
    assert code == 0 and out.startswith("✓ COMPLETED")
    assert json.loads((folder / "r.json").read_text())["totals"]["requests"] == 60
    assert "<html" in (folder / "r.html").read_text()
    code, out, _ = command("jobs", "result", ended, "--to", remote.to, "--json")
    assert code == 0 and json.loads(out)["job"]["id"] == ended


def test_result_of_a_job_that_runs_is_a_sentence(remote: Any, command: Any, endless: str) -> None:
    code, out, err = command("jobs", "result", endless, "--to", remote.to)
    assert (code, out) == (2, "") and "job job1 is running: there is no result yet" in err


def test_result_cannot_be_printed_twice(remote: Any, command: Any, ended: str) -> None:
    code, _, err = command("jobs", "result", ended, "--to", remote.to, "--html", "-", "--json")
    assert code == 2 and "--html" in err


def test_watch_ends_with_the_exit_code_of_the_job(remote: Any, command: Any, folder: Path) -> None:
    remote.control.exit_code = 6
    command("submit", URL, "--to", remote.to, "--detach")
    (folder / "talka.toml").write_text('json = "unwanted.json"\nkeep = true\n')
    code, out, err = command("jobs", "watch", "job1", "--to", remote.to)
    assert code == 6 and "exit code 6" in out and "watching job job1" in err and "60 requests" in err
    assert not (folder / "unwanted.json").exists()  # results are written where it was submitted


def test_watch_prints_every_update_for_programs(remote: Any, command: Any) -> None:
    remote.control.exit_code = 4
    command("submit", URL, "--to", remote.to, "--detach")
    code, out, err = command("jobs", "watch", "job1", "--json", "--to", remote.to)
    updates = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (4, "") and [update["job"]["state"] for update in updates][-1] == "completed"
    assert [update["final"] for update in updates] == [False, False, True]


def test_whoever_stops_watching_leaves_the_job_alone(remote: Any, endless: str, environment: dict[str, str]) -> None:
    process = processes.Popen(
        [*TALKA, "jobs", "watch", endless, "--to", remote.to],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    remote.until(lambda control: control.watchers == 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "") and "job job1 goes on" in err
    assert not any(asked[0] == "cancel" for asked in remote.control.asked)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (JobFacts("j", "n", JobState.SUBMITTED), "queued"),
        (JobFacts("j", "n", JobState.QUEUED, position=3), "queued, position 3"),
        (JobFacts("j", "n", JobState.QUEUED, waits_for="waits for workers"), "queued: waits for workers"),
        (JobFacts("j", "n", JobState.DISPATCHING), "starting"),
        (JobFacts("j", "n", JobState.DISPATCHING, cores=1), "starting on 1 core"),
        (JobFacts("j", "n", JobState.DISPATCHING, cores=8, workers=["a", "b"]), "starting on 8 cores of 2 workers"),
        (JobFacts("j", "n", JobState.RUNNING), ""),
        (JobFacts("j", "n", JobState.COMPLETED), ""),
    ],
    ids=lambda value: value or "nothing" if isinstance(value, str) else value.state,
)
def test_what_a_job_waits_for_in_words(facts: JobFacts, text: str) -> None:
    assert waiting_text(facts) == text


# Workers and the cluster.


def test_workers_are_listed(remote: Any, command: Any) -> None:
    remote.control.found_workers = [
        WorkerView("w2", "draining", "told to by ada", 8, 0, 8 * 1024**3, 1, ["ssd"], "1.0", ["job1"], 4000, "h:1"),
        WorkerView("w1", "healthy", cores=4, free=4),
    ]
    code, out, err = command("workers", "--to", remote.to)
    heading, first, second = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "") and heading[:4] == ["NAME", "STATE", "CORES", "FREE"]
    assert first == ["w1", "healthy", "4", "4"]
    assert second == "w2 draining 8 0 8.0 GiB 1 job1 ssd h:1 1.0 told to by ada".split()
    names = [worker["name"] for worker in json.loads(command("workers", "--json", "--to", remote.to).out)["workers"]]
    assert names == ["w1", "w2"]


def test_what_is_so_with_a_worker_since_when_its_tasks_and_its_quiet_cores_are_listed(
    remote: Any, command: Any
) -> None:
    stack = "Current thread 0x1 (most recent call first):\n" + "".join(
        f'  File "s.py", line {n} in go\n' for n in range(20)
    )
    at = "2026-09-21T14:13:20.007Z"
    remote.control.found_workers = [
        WorkerView(
            "w1",
            "healthy",
            "core 4711 hangs",
            2,
            1,
            decisions=[
                WorkerDecision("stuck", "core 4711 hangs", at),
                WorkerDecision("busy", "its processors are busy", at),
            ],
            quiet_cores=[
                QuietCoreView("j1", ["Shop"], 4711, "stuck", at, stack),
                QuietCoreView("j1", [], 9, "stalled", at),
            ],
            tasks=3,
            tasks_waiting=1,
            task_cores=2,
        )
    ]

    code, out, _ = command("workers", "--to", remote.to)

    assert code == 0
    table, first, second = out.split("\n\n")
    heading, row = table.splitlines()
    assert "TASKS" in heading.split() and "3 on 2 cores, 1 wait" in row
    note = (
        "stuck since 2026-09-21 14:13:20 UTC: core 4711 hangs; busy since 2026-09-21 14:13:20 UTC: its processors are"
    )
    assert note in row
    lines = first.splitlines()
    assert lines[0] == "w1: core 4711 of job j1 (Shop) is stuck since 2026-09-21 14:13:20 UTC"
    assert lines[2] == '    File "s.py", line 0 in go' and lines[-1] == "  ... and 9 lines more: --json has them"
    assert len(lines) == 14 and second.splitlines()[1] == "  its Python stack is not known"
    told = json.loads(command("workers", "--json", "--to", remote.to).out)["workers"][0]
    assert told["quiet_cores"][0]["stack"] == stack


def test_cluster_without_workers_says_how_to_start_one(remote: Any, command: Any) -> None:
    remote.control.found_workers = []
    code, out, err = command("workers", "list", "--to", remote.to)
    assert (code, out) == (0, "") and "talka worker" in err


def test_worker_is_shown_with_its_machine(remote: Any, command: Any) -> None:
    at = "2026-09-21T14:13:20.007Z"
    machine = MachineView(
        *("host1", 4711, "Debian GNU/Linux 12, Linux 6.1", "x86_64", "Xeon", ["avx", "sse2"], 8, "CPython 3.11.2"),
        *(100 * 1024**3, 25 * 1024**3, [GpuView("T4", 16 * 1024**3), GpuView("old")], {"rack": "7", "spare": ""}),
    )
    remote.control.shown_worker = WorkerView(
        *("w1", "healthy", "", 4, 2, 8 * 1024**3, 2),
        load_percent=40,
        registered_at=at,
        heard_at=at,
        zone="z1",
        region="r1",
        handlers=["load", "resize"],
        machine=machine,
        quiet_cores=[QuietCoreView("j1", ["Shop"], 9, "stalled", at)],
    )

    code, out, err = command("workers", "show", "w1", "--to", remote.to)

    facts, quiet = out.split("\n\n")
    assert (code, err) == (0, "") and quiet.startswith("w1: core 9 of job j1")
    shown = {line[:11].strip(): line[11:] for line in facts.splitlines()}
    assert shown == {
        "worker": "w1",
        "state": "healthy",
        "heard": "2026-09-21 14:13:20 UTC",
        "registered": "2026-09-21 14:13:20 UTC",
        "cores": "4, 2 free",
        "load": "40 % of its processors",
        "handlers": "load, resize",
        "tags": "rack=7, spare",
        "stands": "z1, r1",
        "host": "host1",
        "pid": "4711",
        "system": "Debian GNU/Linux 12, Linux 6.1, x86_64",
        "cpu": "8 CPUs, Xeon (2 flags: --json has them)",
        "memory": "8.0 GiB",
        "disk": "25.0 GiB free of 100.0 GiB",
        "gpus": "T4 (16.0 GiB), old",
        "python": "CPython 3.11.2",
    }
    told = json.loads(command("workers", "show", "w1", "--json", "--to", remote.to).out)
    assert told["machine"]["cpu_flags"] == ["avx", "sse2"]


def test_worker_of_an_earlier_version_is_shown_without_a_machine(remote: Any, command: Any) -> None:
    remote.control.shown_worker = WorkerView("w1", "offline", "it left", gpus=1)

    code, out, _ = command("workers", "show", "w1", "--to", remote.to)

    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["worker", "state", "note", "cores", "gpus"]


def test_worker_is_drained(remote: Any, command: Any) -> None:
    code, out, _ = command("workers", "drain", "w1", "--to", remote.to)
    assert (code, out) == (0, "worker w1 is draining: it gets no new work\n")
    assert json.loads(command("workers", "drain", "w1", "--json", "--to", remote.to).out)["state"] == "draining"
    code, _, err = command("workers", "drain", "w9", "--to", remote.to)
    assert code == 2 and "there is no worker w9" in err


def test_worker_is_undrained(remote: Any, command: Any) -> None:
    code, out, _ = command("workers", "undrain", "w1", "--to", remote.to)
    assert (code, out) == (0, "worker w1 takes new work\n")
    assert json.loads(command("workers", "undrain", "w1", "--json", "--to", remote.to).out)["state"] == "healthy"
    code, _, err = command("workers", "undrain", "w9", "--to", remote.to)
    assert code == 2 and "there is no worker w9" in err
    code, _, err = command("workers", "undrain", "w2", "--to", remote.to)
    assert code != 0 and "worker w2 was told to end: start it again" in err
    remote.control.undrained = WorkerView("w1", "draining")
    code, out, _ = command("workers", "undrain", "w1", "--to", remote.to)
    assert (code, out) == (0, "worker w1 is told so, and takes new work in a moment\n")


def test_status_of_the_cluster(remote: Any, command: Any) -> None:
    remote.control.managers = [ManagerView("m2", "active", "127.0.0.1:2"), ManagerView("m1", "active", "", True, 3)]
    code, out, err = command("cluster", "status", "--to", remote.to)
    assert (code, err) == (0, "") and "2 of 4 are free" in out and "m1, term 3" in out and "empty" in out
    assert f"answered   by {remote.to} after " in out
    assert [line.split() for line in out.splitlines()[-2:]] == [
        ["m1", "active", "3", "leads"],
        ["m2", "active", "127.0.0.1:2", "0"],
    ]
    assert json.loads(command("cluster", "status", "--json", "--to", remote.to).out)["leader"] == "m1"


def test_status_of_a_cluster_with_certificates_says_when_they_end(remote: Any, command: Any) -> None:
    ends = "2030-05-06T07:08:09Z"
    remote.control.certificates = [CertificateView("w1", "worker", ends, 12, "ends soon")]

    out = command("cluster", "status", "--to", remote.to).out

    assert [line.split() for line in out.splitlines()[-2:]] == [
        ["CERTIFICATE", "ROLE", "UNTIL", "DAYS", "NOTE"],
        ["w1", "worker", ends, "12", "ends", "soon"],
    ]
    document = json.loads(command("cluster", "status", "--json", "--to", remote.to).out)
    assert document["certificates"] == [
        {"name": "w1", "role": "worker", "until": ends, "days": 12, "note": "ends soon"}
    ]


def test_what_the_leader_makes_of_a_manager_or_worker_is_shown_unless_it_is_well(remote: Any, command: Any) -> None:
    remote.control.managers = [
        ManagerView("m1", "active", leads=True, decision="hold", reason="it is overloaded"),
        ManagerView("m2", "draining", decision="drain", reason="it leaves, and takes nothing new"),
    ]
    remote.control.found_workers = [WorkerView("w1", "degraded", "its disk is full", 4, 0, decision="hold")]

    status = command("cluster", "status", "--to", remote.to).out
    workers = command("workers", "--to", remote.to).out

    assert "leads, hold: it is overloaded" in status and "drain: it leaves, and takes nothing new" in status
    assert "hold: its disk is full" in workers


# Where the cluster is, and what opens it.


def test_address_may_come_from_the_environment_or_the_configuration(
    remote: Any, command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "talka.toml").write_text(f'to = "{remote.to}"\n')
    assert command("workers").code == 0
    (folder / "talka.toml").unlink()
    monkeypatch.setenv("TALKA_TO", remote.to)
    assert command("workers").code == 0


@pytest.mark.parametrize("words", [["jobs"], ["workers"], ["cluster", "status"], ["jobs", "watch", "j"]], ids=" ".join)
def test_cluster_that_is_not_there_has_exit_code_7(words: list[str], command: Any, impatient: None) -> None:
    code, out, err = command(*words, "--to", "127.0.0.1:1")
    assert (code, out) == (7, "") and "127.0.0.1:1 cannot be reached" in err


@pytest.mark.parametrize("words", [["jobs"], ["workers"], ["cluster", "status"], ["jobs", "watch", "j"]], ids=" ".join)
def test_whoever_has_no_token_is_told_how_to_show_one(words: list[str], guarded: Any, command: Any) -> None:
    code, out, err = command(*words, "--to", guarded.to)
    assert (code, out) == (7, "") and "--token-file" in err


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "holds no token"), (b"two words", "one line"), (b"\xff", "holds no token"), (b"x" * 9000, "holds no token")],
    ids=["empty", "two", "binary", "long"],
)
def test_file_that_holds_no_token_is_a_sentence(
    content: bytes, text: str, guarded: Any, command: Any, folder: Path
) -> None:
    (folder / "token").write_bytes(content)
    code, _, err = command("jobs", "--to", guarded.to, "--token-file", "token")
    assert code == 2 and "--token-file" in err and text in err


def test_live_view_says_what_the_job_waits_for_until_it_begins(remote: Any, command: Any) -> None:
    remote.control.stays_queued = True
    command("submit", URL, "--to", remote.to, "--detach")
    [order] = remote.control.orders
    waiting = ["queued, position 2"]
    composer = Composer(order.name, order.workflows, lambda: waiting[0])
    job = WatchedJob("job1", order).view

    def head() -> str:
        return "".join(text for text, _ in composer.view(job, 1, Size(100, 20)).lines[0])

    assert "queued, position 2" in head() and "running" not in head()
    waiting[0] = ""
    assert "running" in head()
