"""`talka submit`: a test on a cluster, told of like one on this machine."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from talka.cli.remote import LineTeller
from talka.client.client import Client
from talka.client.requests import ClusterUnreachable
from talka.wire.views import JobFacts, JobUpdate, LogLine
from talka.work.lifecycle import JobState
from tests import processes
from tests.processes import TALKA

URL = "http://127.0.0.1:9/"
LIMIT_S = 60
SHOP = """
import os

from talka import URL, HTTPResponse, Workflow, step

print("the file was imported")


class Browse(Workflow):
    vus = 2

    @step()
    async def home(self, url: URL = "http://127.0.0.1:9/" + os.environ.get("PAGE", "")) -> HTTPResponse:
        return await self.client.http.get(url)
"""


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "shop.py"
    path.write_text(SHOP)
    return path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Start:
    """The real command, to send signals to."""

    def run(*arguments: str) -> "subprocess.Popen[str]":
        return processes.Popen(
            [*TALKA, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    return run


# What is told.


def test_job_is_submitted_watched_and_summed_up(remote: Any, command: Any) -> None:
    code, out, err = command("submit", URL, "--to", remote.to)
    assert code == 0, err
    assert f"submitted {URL} as job job1" in err and "Ctrl-C cancels it" in err
    assert "COMPLETED" in out and "60  20.0/s" in out and "STEPS of Url" in out


def test_place_in_the_queue_and_what_it_waits_for_are_told_before_progress(remote: Any, command: Any) -> None:
    err = command("submit", URL, "--to", remote.to).err
    queued = err.index("queued, position 2: waits for 4 cores: 1 of 8 are free")
    assert queued < err.index("60 requests")


def test_results_and_outputs_are_written_as_by_run(remote: Any, command: Any, folder: Path) -> None:
    code, out, err = command(
        *("submit", URL, "--to", remote.to, "--ui", "none", "--json", "-", "--html", "page.html"),
        *("--junit", "cases.xml", "--output", "jsonl=windows.jsonl", "--keep", "--store", "kept.sqlite"),
    )
    assert code == 0 and json.loads(out)["totals"]["requests"] == 60
    assert "job1" in err and "submitted" not in err  # only where the result is kept
    assert "planned" in (folder / "page.html").read_text() and (folder / "cases.xml").exists()
    rows = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    assert sum(row.get("requests", 0) for row in rows if "t_s" in row) == 60
    assert command("history", "show", "job1", "--store", "kept.sqlite").out.startswith("✓ COMPLETED")


def test_exit_code_is_the_jobs(remote: Any, command: Any) -> None:
    remote.control.exit_code = 4
    assert command("submit", URL, "--to", remote.to, "--ui", "none").code == 4


def test_detached_job_is_left_to_the_cluster(remote: Any, command: Any) -> None:
    remote.control.is_endless = True
    assert command("submit", URL, "--to", remote.to, "--detach") == (0, "job1\n", "")


@pytest.mark.parametrize(
    "flags", [["--json", "r.json"], ["--html", "r.html"], ["--junit", "r.xml"], ["--keep"], ["--output", "csv=a/"]]
)
def test_whoever_detaches_is_told_that_there_will_be_no_result_here(
    flags: list[str], remote: Any, command: Any, folder: Path
) -> None:
    code, out, err = command("submit", URL, "--to", remote.to, "--detach", *flags)
    assert (code, out) == (2, "") and flags[0] in err and "talka jobs result ID" in err
    assert remote.control.asked == []


def test_job_that_left_no_result_ends_with_a_sentence_and_its_exit_code(remote: Any, command: Any) -> None:
    remote.control.stays_queued = True
    facts = command("submit", URL, "--to", remote.to, "--detach", "--key", "k").out.strip()
    command("jobs", "cancel", facts, "--to", remote.to)
    code, out, err = command("submit", URL, "--to", remote.to, "--key", "k")
    assert (code, out) == (8, "") and "ended before anything ran" in err and "it is cancelled" in err


# What is sent.


def test_order_says_what_the_flags_say(remote: Any, command: Any) -> None:
    flags = ["--vus", "7", "--iterations", "70", "--threshold", "failed < 1%", "--cores", "3", "--priority", "9"]
    more = ["--seed", "5", "--grace", "2s", "--allow-partial", "--key", "nightly-1"]
    assert command("submit", URL, "--to", remote.to, "--detach", *flags, *more).code == 0
    [order] = remote.control.orders
    assert (order.name, order.bundle.url, order.cores, order.priority) == (URL, URL, 3, 9)
    assert order.workflows[0].plan.vus == 7 and order.workflows[0].plan.shared_iterations == 70
    assert [rule.text for rule in order.thresholds] == ["failed < 1%"]
    assert (order.settings.seed, order.settings.grace_ns, order.allow_partial) == (5, 2_000_000_000, True)
    assert ("submit", "nightly-1") in remote.control.asked


def test_same_key_is_the_same_job(remote: Any, command: Any) -> None:
    ids = [command("submit", URL, "--to", remote.to, "--detach", "--key", "k").out for _ in range(2)]
    assert ids == ["job1\n", "job1\n"]


def test_file_travels_with_the_variables_that_are_named(remote: Any, talka: Any, file: Path, tmp_path: Path) -> None:
    done = talka("submit", "shop.py", "--to", remote.to, "--env", "PAGE=json", "--env", "OWN", "--detach", OWN="mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "job1\n" and "the file was imported" in done.stderr
    [order] = remote.control.orders
    assert order.bundle.env == {"PAGE": "json", "OWN": "mine"} and order.name == "shop.py"
    (tmp_path / "bundle.zip").write_bytes(remote.control.bundles[order.bundle.digest])
    with ZipFile(tmp_path / "bundle.zip") as bundle:
        assert bundle.read("shop.py").decode() == SHOP


def test_variable_that_would_be_missing_on_workers_is_told_before_anything_is_sent(
    remote: Any, talka: Any, file: Path
) -> None:
    done = talka("submit", "shop.py", "--to", remote.to, "--detach", PAGE="json")
    assert done.returncode == 3 and "PAGE" in done.stderr and "--env PAGE" in done.stderr
    assert remote.control.asked == []


def test_module_that_workers_may_lack_is_refused_unless_they_have_it(remote: Any, talka: Any, file: Path) -> None:
    file.write_text("import pytest\n" + SHOP)
    done = talka("submit", "shop.py", "--to", remote.to, "--detach")
    assert done.returncode == 3 and "pytest" in done.stderr and remote.control.asked == []
    assert talka("submit", "shop.py", "--to", remote.to, "--detach", "--workers-have", "pytest").returncode == 0


def test_settings_may_come_from_the_configuration(remote: Any, command: Any, folder: Path) -> None:
    (folder / "talka.toml").write_text(f'to = "{remote.to}"\npriority = 2\nvus = 3\niterations = 9\n')
    assert command("submit", URL, "--detach").code == 0
    [order] = remote.control.orders
    assert (order.priority, order.workflows[0].plan.vus) == (2, 3)


def test_of_several_addresses_the_one_that_answers_is_used(remote: Any, command: Any) -> None:
    assert command("submit", URL, "--to", f"127.0.0.1:1, {remote.to}", "--detach").code == 0


# What is wrong.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--vus", "none"], ["--vus"]),
        (["--priority", "11"], ["--priority", "1 to 10"]),
        (["--cores", "0"], ["--cores"]),
        (["--threshold", "p99"], ["--threshold"]),
        (["--env", "NOT_SET_ANYWHERE"], ["NOT_SET_ANYWHERE"]),
        (["--to", "http://"], ["address of a manager"]),
        (["--token-file", "nowhere"], ["--token-file", "nowhere"]),
        (["--html", "nowhere/page.html"], ["--html", "nowhere"]),
        (["--ca", "nowhere", "--to", "https://127.0.0.1"], ["nowhere"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_command_line_is_a_sentence_and_nothing_is_sent(
    flags: list[str], words: list[str], remote: Any, command: Any
) -> None:
    code, out, err = command("submit", URL, "--to", remote.to, *flags)
    assert (code, out) == (2, "") and all(word in err for word in words)
    assert remote.control.asked == []


@pytest.mark.parametrize(
    ("text", "code"), [("x =", 3), ("raise ValueError('no')", 3), ("x = 1", 3)], ids=["syntax", "raises", "empty"]
)
def test_wrong_file_has_the_exit_code_it_has_with_run(
    text: str, code: int, remote: Any, talka: Any, file: Path
) -> None:
    file.write_text(text)
    done = talka("submit", "shop.py", "--to", remote.to)
    assert done.returncode == code == talka("run", "shop.py").returncode
    assert "shop.py" in done.stderr and remote.control.asked == []


def test_missing_file_has_the_exit_code_it_has_with_run(remote: Any, command: Any) -> None:
    assert command("submit", "nowhere.py", "--to", remote.to).code == 2


def test_cluster_that_is_not_there_is_told_with_exit_code_7(command: Any, impatient: None) -> None:
    code, out, err = command("submit", URL, "--to", "127.0.0.1:1")
    assert (code, out) == (7, "") and "127.0.0.1:1 cannot be reached" in err


def test_cluster_that_goes_away_is_told_with_the_job_that_goes_on(
    remote: Any, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(self: object, *_: object, **__: object) -> Any:
        raise ClusterUnreachable("no manager answered")
        yield

    monkeypatch.setattr(Client, "watch", gone)
    code, out, err = command("submit", URL, "--to", remote.to)
    assert (code, out) == (7, "") and "no manager answered" in err and "talka jobs watch job1" in err


def test_token_opens_the_cluster(guarded: Any, command: Any, folder: Path, token_key: bytes) -> None:
    (folder / "key").write_bytes(token_key)
    code, out, err = command("submit", URL, "--to", guarded.to, "--detach")
    assert (code, out) == (7, "") and "--token-file" in err and "TALKA_TOKEN" in err
    for role, expected in (("viewer", 7), ("submitter", 0)):
        token = command("token", "issue", "--key-file", "key", "--role", role, "--name", "ada").out
        (folder / role).write_text(token)
        done = command("submit", URL, "--to", guarded.to, "--detach", "--token-file", role)
        assert done.code == expected, done.err
    [order] = guarded.control.orders
    assert order.submitted_by == "ada"


def test_token_of_the_environment_opens_it_too_but_a_flag_comes_first(
    guarded: Any, command: Any, folder: Path, token_key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "key").write_bytes(token_key)
    token = command("token", "issue", "--key-file", "key", "--role", "submitter", "--name", "ada").out
    monkeypatch.setenv("TALKA_TOKEN", token.strip())
    (folder / "talka.toml").write_text('token_file = "nowhere"\n')
    assert command("submit", URL, "--to", guarded.to, "--detach").code == 0
    (folder / "wrong").write_text("not-a-token\n")
    code, _, err = command("submit", URL, "--to", guarded.to, "--detach", "--token-file", "wrong")
    assert code == 7 and "is not valid" in err


# Interrupted.


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_first_signal_cancels_the_job_and_still_reports(
    number: signal.Signals, code: int, remote: Any, start: Start
) -> None:
    remote.control.is_endless = True
    process = start("submit", URL, "--to", remote.to, "--json", "-")
    remote.until(lambda control: control.watchers == 1)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    document = json.loads(out)
    assert process.returncode == code == document["exit_code"] and document["status"] == "cancelled"
    assert ("cancel", "job1", f"{number.name} to the command that submitted it") in remote.control.asked
    assert "cancelling job job1" in err


def test_second_signal_leaves_at_once_and_says_what_becomes_of_the_job(remote: Any, start: Start) -> None:
    remote.control.is_endless = remote.control.ignores_cancel = True
    process = start("submit", URL, "--to", remote.to)
    remote.until(lambda control: control.watchers == 1)
    process.send_signal(signal.SIGINT)
    remote.until(lambda control: any(asked[0] == "cancel" for asked in control.asked))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "")
    # The answer to the cancel may still have been on its way.
    assert "goes on being cancelled" in err or "may not have been cancelled" in err


def test_job_that_waits_is_cancelled_too_and_has_no_result(remote: Any, start: Start) -> None:
    remote.control.stays_queued = True
    process = start("submit", URL, "--to", remote.to)
    remote.until(lambda control: control.watchers == 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "") and "ended before anything ran" in err


# What the test prints on workers.


def update_with(*lines: tuple[int, str], owner: str = "m1") -> JobUpdate:
    logs = [LogLine(number, "w1", text) for number, text in lines]
    return JobUpdate(JobFacts("job1", "shop", JobState.RUNNING, owner=owner), 1, logs=logs)


def test_each_line_is_told_once_with_its_worker_and_what_is_missing_is_told_too() -> None:
    said: list[str] = []
    teller = LineTeller(said.append)

    teller(update_with((3, "a"), (4, "b")))
    teller(update_with((4, "b"), (5, "c")))
    teller(update_with((8, "d")))
    teller(update_with((1, "e"), owner="m2"))

    assert said == ["w1: a", "w1: b", "w1: c", "(2 lines of the test were not kept)", "w1: d", "w1: e"]


def test_lines_are_shown_where_they_are_asked_for(remote: Any, command: Any) -> None:
    remote.control.logs = [LogLine(1, "w1", "said by a step")]

    assert "said by a step" not in command("submit", URL, "--to", remote.to).err
    code, out, err = command("submit", URL, "--to", remote.to, "--logs", "--ui", "none")
    assert code == 0 and err.count("w1: said by a step") == 1 and "said by a step" not in out


def test_lines_of_a_job_that_runs_are_printed_and_the_job_is_left(remote: Any, command: Any) -> None:
    remote.control.is_endless = True
    remote.control.logs = [LogLine(1, "w1", "said \x1b[31mby a step")]
    assert command("submit", URL, "--to", remote.to, "--detach").code == 0

    code, out, err = command("jobs", "logs", "job1", "--to", remote.to)

    assert (code, out, err) == (0, "w1: said \\x1b[31mby a step\n", "")


def test_of_a_job_that_waits_there_are_no_lines_yet(remote: Any, command: Any) -> None:
    remote.control.stays_queued = True
    assert command("submit", URL, "--to", remote.to, "--detach").code == 0

    code, out, err = command("jobs", "logs", "job1", "--to", remote.to)

    assert (code, out, err) == (0, "", "job job1 is queued and has printed nothing; --follow waits for it\n")


def test_of_a_job_that_has_ended_there_are_no_lines(remote: Any, command: Any) -> None:
    assert command("submit", URL, "--to", remote.to, "--ui", "none").code == 0

    code, out, err = command("jobs", "logs", "job1", "--to", remote.to, "--follow")

    assert (code, out) == (0, "") and "job job1 has ended: what it prints is kept while it runs" in err


def test_whoever_detaches_follows_no_lines(remote: Any, command: Any) -> None:
    code, _, err = command("submit", URL, "--to", remote.to, "--detach", "--logs")

    assert code == 2 and "--logs follows the job, which --detach does not" in err
