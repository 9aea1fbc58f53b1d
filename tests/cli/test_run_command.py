"""`talka run`, `talka debug`, `talka demo` and `talka demo-server` as processes."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from talka.cli.demo.command import own_command
from tests import processes
from tests.processes import TALKA, own_environment

ONE = ["--cores", "1"]
"""Where their number does not matter: each is a process that loads its modules."""
FIVE = ["--iterations", "5", "--ui", "none", *ONE]
LIMIT_S = 60

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Iterator[Start]:
    """Starts the command and hands over its process, which is stopped at the end if it still runs."""
    started: list[subprocess.Popen[str]] = []

    def popen(*arguments: str) -> "subprocess.Popen[str]":
        process = processes.Popen(
            [*TALKA, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


class Plain(NamedTuple):
    done: "subprocess.CompletedProcess[str]"
    requests: int
    files: list[str]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, started_server) -> Plain:
    """Five requests to an address and nothing else asked for: what that did is looked at by several tests."""
    empty = tmp_path_factory.mktemp("plain")
    (empty / ".git").mkdir()
    started_server.ask("POST", "/count/reset")
    done = processes.run(
        [*TALKA, "run", f"{started_server.url}/json", *FIVE],
        cwd=empty,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**own_environment(), "TERM": "xterm"},
    )
    return Plain(done, started_server.requests, os.listdir(empty))


def line_with(stream, words: str) -> str:
    """The next line that has the words; the stream must not end before it."""
    for line in stream:
        if words in line:
            return str(line)
    raise AssertionError(f"nobody said {words!r}")


# Targets.


def test_file_runs_all_its_workflows(talka, server, shop: Path) -> None:
    done = talka("run", "shop.py", "--ui", "none")
    assert done.returncode == 0, done.stderr
    assert server.requests == 3
    assert "STEPS of Browse" in done.stdout and "STEPS of Buy" in done.stdout


def test_named_class_runs_without_those_that_depend_on_it(talka, server, shop: Path) -> None:
    done = talka("run", "shop.py:Browse", *FIVE)
    assert done.returncode == 0, done.stderr
    assert server.requests == 5 and "Buy" not in done.stdout


def test_named_class_brings_those_it_depends_on(talka, server, shop: Path) -> None:
    assert talka("run", "shop.py:Buy", "--ui", "none", *ONE).returncode == 0
    assert server.requests == 3


def test_several_classes_are_named_with_commas(talka, server, shop: Path) -> None:
    assert talka("run", "shop.py:Browse,Buy", *FIVE).returncode == 0
    assert server.requests == 10


def test_file_with_a_colon_in_its_name_is_still_a_file(here, server, shop: Path) -> None:
    shop.rename(shop.with_name("shop:Browse"))
    done = here("check", "shop:Browse")
    # It is found; what follows is about its name as a module.
    assert done.returncode == 3 and ".py" in done.stderr


def test_url_needs_no_file(plain: Plain) -> None:
    assert plain.done.returncode == 0, plain.done.stderr
    assert plain.requests == 5


def test_url_runs_fifty_requests_each_second_for_ten_seconds_unless_told_otherwise(talka, server) -> None:
    done = talka("check", f"{server.url}/json")
    assert "50/s for 10s" in done.stdout and "open model" in done.stdout
    done = talka("run", f"{server.url}/json", "--duration", "200ms", "--ui", "none", *ONE)
    assert done.returncode == 0 and server.requests == 10


# Options.


def test_load_of_the_command_line_replaces_that_of_the_file(talka, server, shop: Path) -> None:
    done = talka("run", "shop.py:Browse", "--rate", "1000/m", "--for", "600ms", "--vus", "30", "--ui", "none", *ONE)
    assert done.returncode == 0, done.stderr
    assert server.requests == 10 and "1000/m for 600ms, at most 30 VUs" in done.stdout


def test_settings_come_from_the_environment_and_files_too(talka, server, shop: Path, folder: Path) -> None:
    (folder / "talka.toml").write_text('ui = "none"\nrate = "100/s"')
    done = talka("run", "shop.py:Browse", *ONE, TALKA_ITERATIONS="7")
    assert (done.returncode, server.requests) == (0, 7), done.stderr
    assert done.stderr == "the file was imported\n" * done.stderr.count("\n")


def test_crossed_threshold_has_its_exit_code(talka, server, shop: Path) -> None:
    rules = ["--threshold", "failed < 1%", "--threshold", "home.response_time.p50 < 1ns"]
    done = talka("run", "shop.py:Browse", *FIVE, *rules)
    assert done.returncode == 4, done.stderr
    assert "✓ failed < 1%" in done.stdout and "✗ home.response_time.p50 < 1ns" in done.stdout


def test_threshold_that_aborts_has_its_exit_code(talka, server) -> None:
    rule = "response_time.p50 < 1ns abort"
    done = talka("run", f"{server.url}/", "--duration", "30s", "--threshold", rule, "--ui", "none", *ONE)
    assert done.returncode == 5, done.stdout


def test_variable_reaches_the_file_here_and_in_the_cores(talka, server, shop: Path) -> None:
    done = talka("run", "shop.py:Buy", "--ui", "none", "--env", "PAGE=gzip", *ONE)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(server.ask("GET", "/count"))["paths"]) == {"/", "/gzip"}


def test_variable_without_a_value_is_the_callers(talka, server, shop: Path) -> None:
    assert talka("run", "shop.py:Buy", "--ui", "none", "--env", "PAGE", *ONE, PAGE="gzip").returncode == 0
    assert "/gzip" in json.loads(server.ask("GET", "/count"))["paths"]


def test_progress_goes_to_stderr_and_can_be_turned_off(talka, server, plain: Plain) -> None:
    load = ["--rate", "20/s", "--duration", "300ms", *ONE]
    done = talka("run", f"{server.url}/", *load, "--ui", "ci")
    assert re.search(r"^ +\d+s  active \d+ VUs?  ", done.stderr, re.MULTILINE), done.stderr
    assert "active" not in done.stdout
    assert plain.done.stderr == "", "--ui none"


# The result.


def test_json_is_written_beside_the_summary(talka, server, folder: Path) -> None:
    done = talka("run", f"{server.url}/", *FIVE, "--json", "out.json")
    assert done.returncode == 0 and "TOTALS" in done.stdout
    document = json.loads((folder / "out.json").read_bytes())
    assert document["schema"] == "talka.result/1" and document["totals"]["requests"] == 5
    assert sorted(os.listdir(folder)) == [".git", "out.json"]


def test_json_on_stdout_takes_the_place_of_the_summary(talka, server, shop: Path) -> None:
    done = talka("run", "shop.py:Browse", *FIVE, "--json", "-")
    # The file prints when it is imported; that must not come between.
    assert json.loads(done.stdout)["totals"]["requests"] == 5
    assert "the file was imported" in done.stderr


def test_nothing_is_written_unasked(plain: Plain) -> None:
    assert plain.files == [".git"]


def test_json_keeps_the_mode_of_the_file_it_replaces_and_follows_links(talka, server, folder: Path) -> None:
    old = folder / "old.json"
    old.write_text("old")
    old.chmod(0o640)
    (folder / "link.json").symlink_to(old)
    assert talka("run", f"{server.url}/", *FIVE, "--json", "link.json").returncode == 0
    assert (folder / "link.json").is_symlink()
    assert json.loads(old.read_bytes())["exit_code"] == 0
    assert old.stat().st_mode & 0o777 == 0o640


def test_device_is_written_to_and_not_replaced(talka, server) -> None:
    assert talka("run", f"{server.url}/", *FIVE, "--json", "/dev/null").returncode == 0
    assert Path("/dev/null").is_char_device()


def test_file_that_cannot_be_written_in_the_end_is_told_and_fails_the_command(talka, server) -> None:
    flags = ("--json", "--html", "--junit")
    done = talka("run", f"{server.url}/", *FIVE, *(word for flag in flags for word in (flag, "/dev/full")))
    assert done.returncode == 1
    told = [f"{flag}: /dev/full cannot be written: No space left on device" for flag in flags]
    assert sorted(done.stderr.splitlines()) == sorted(told)
    assert "COMPLETED" in done.stdout


def test_first_ctrl_c_says_what_is_waited_for(start: Start, server) -> None:
    run = start("run", f"{server.url}/delay/50000", "--vus", "3", "--duration", "60s", "--ui", "ci", "--cores", "1")
    line_with(run.stderr, "active 3 VUs")
    run.send_signal(signal.SIGINT)
    told = line_with(run.stderr, "stopping")
    assert told == "stopping: waiting for 3 iterations under way, Ctrl-C again to end at once\n"
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130


def test_lines_for_a_ci_tell_the_rate_of_now_beside_the_average_and_the_cause_of_errors(start: Start) -> None:
    run = start("run", "http://127.0.0.1:9/", "--duration", "60s", "--ui", "ci", "--cores", "1")
    line = line_with(run.stderr, " now ")
    assert "on average" in line and "mostly refused by 127.0.0.1:9 × " in line
    run.send_signal(signal.SIGINT)
    summary, _ = run.communicate(timeout=LIMIT_S)
    assert "Most frequent error: refused by 127.0.0.1:9" in summary.partition("TOTALS")[0]


def test_interrupted_run_still_reports(start: Start, server, folder: Path) -> None:
    run = start("run", f"{server.url}/", "--duration", "60s", "--json", "out.json", "--cores", "1")
    line_with(run.stderr, "active")
    run.send_signal(signal.SIGINT)
    summary, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130
    assert "interrupted by SIGINT" in summary
    document = json.loads((folder / "out.json").read_bytes())
    assert document["exit_code"] == 130 and document["status"] == "cancelled"


def test_terminated_run_still_reports(start: Start, server) -> None:
    run = start("run", f"{server.url}/", "--duration", "60s", "--cores", "1")
    line_with(run.stderr, "active")
    run.terminate()
    summary, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 143 and "interrupted by SIGTERM" in summary


# Debug.


def test_debug_runs_each_workflow_once_and_shows_the_requests(talka, server, shop: Path) -> None:
    done = talka("debug", "shop.py:Browse")
    assert done.returncode == 0, done.stderr
    assert server.requests == 1
    assert "> GET / HTTP/1.1" in done.stdout and "< 200" in done.stdout and "is_fine" in done.stdout


def test_debug_pays_no_heed_to_settings_about_load(talka, server, shop: Path) -> None:
    assert talka("debug", "shop.py", TALKA_RATE="5").returncode == 0
    assert server.requests == 2


def test_debug_of_a_wrong_file_tells_what_is_wrong(here, folder: Path) -> None:
    (folder / "wrong.py").write_text("answer = = 42")
    done = here("debug", "wrong.py")
    assert done.returncode == 3 and "wrong.py:1: " in done.stderr


# The demonstration.


def test_demo_shows_a_summary_and_leaves_no_server_behind(talka) -> None:
    # Long enough for its threshold on times to bear a machine that stands still for a moment.
    done = talka("demo", "--duration", "10s", "--rate", "40/s", "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every threshold held" in done.stdout and "order_is_confirmed" in done.stdout
    url = line_with(iter(done.stderr.splitlines()), "listens on").split()[5].rstrip(";")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), LIMIT_S)
    assert "Next: " in done.stderr.splitlines()[-1]


def test_demo_is_the_same_in_every_folder(talka, folder: Path) -> None:
    (folder / "talka.toml").write_text('thresholds = ["requests > 1000000"]')
    done = talka("demo", "--duration", "2s", "--rate", "40/s", *ONE, TALKA_VUS="wrong")
    # Whether its own thresholds on times hold is the machine's business.
    assert "order_is_confirmed" in done.stdout, done.stdout + done.stderr
    assert "requests >" not in done.stdout + done.stderr


def test_demo_refuses_wrong_values_before_it_starts_anything(here) -> None:
    done = here("demo", "--rate", "fast")
    assert done.returncode == 2 and done.stderr.startswith("--rate = ")


def test_demo_server_dies_with_the_demo(start: Start) -> None:
    demo = start("demo", "--duration", "60s", "--cores", "1")
    url = urlsplit(line_with(demo.stderr, "listens on").split()[5].rstrip(";"))
    with socket.create_connection((str(url.hostname), url.port), LIMIT_S) as connection:
        demo.kill()
        # The end of the server is the end of its connections.
        assert connection.recv(1) == b""


def test_demo_server_serves_until_ctrl_c(start: Start) -> None:
    running = start("demo-server", "--port", "0")
    url = urlsplit(line_with(running.stdout, "listening on").split()[-1])
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=LIMIT_S)
    connection.request("GET", "/json")
    assert connection.getresponse().read()
    connection.close()
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, told) == (0, "")


def test_demo_server_speaks_tls(start: Start) -> None:
    running = start("demo-server", "--port", "0", "--tls")
    assert line_with(running.stdout, "listening on").split()[-1].startswith("https://127.0.0.1:")


def test_port_in_use_is_told(talka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = talka("demo-server", "--port", port)
    assert done.returncode == 2 and port in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_port_that_cannot_be_is_told(here, port: str) -> None:
    done = here("demo-server", "--port", port)
    assert done.returncode == 2 and port in done.stderr and "--port" in done.stderr


def test_host_that_is_not_ours_is_told(here) -> None:
    done = here("demo-server", "--host", "nosuch.invalid")
    assert done.returncode == 2 and "nosuch.invalid" in done.stderr


def test_summary_shows_the_times_that_are_asked_for(talka, server) -> None:
    done = talka("run", server.url, *FIVE, "--summary", "p75,max")
    assert done.returncode == 0, done.stderr
    (head,) = [line for line in done.stdout.splitlines() if "p75" in line]
    assert head.split() == ["p75", "max"]


def test_demo_says_what_to_type_where_the_shell_does_not_know_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / ".venv" / "bin" / "talka"
    command.parent.mkdir(parents=True)
    command.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(command), "demo"])
    monkeypatch.chdir(tmp_path)

    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert own_command() == ".venv/bin/talka"
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    assert own_command() == "talka"
    monkeypatch.setattr(sys, "argv", ["/somewhere/talka/__main__.py", "demo"])
    assert own_command() == "talka"
