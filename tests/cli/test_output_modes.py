"""Plain text wherever it is not a terminal that reads, colours at most where one does, and no cursor codes at all."""

import errno
import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from talka.cli.main import run_command
from talka.cli.output import CannotWrite, ResultFile
from tests import processes
from tests.processes import TALKA

COLOR = re.compile(r"\x1b\[[0-9;]*m")
LIMIT_S = 60


@pytest.fixture
def load(server) -> list[str]:
    """A run with both verdicts, for both colours."""
    rules = ["--threshold", "failed < 1%", "--threshold", "response_time.p50 < 1ns"]
    return ["run", f"{server.url}/", "--iterations", "20", "--vus", "2", "--cores", "1", *rules]


@pytest.fixture
def on_terminal(folder: Path, environment: dict[str, str]):
    """Runs the command with a terminal for its stdout and stderr; returns its exit code and all it wrote."""

    def run(*arguments: str, columns: int = 100, **variables: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = processes.Popen(
            [*TALKA, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment | variables,
        )
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError as error:
            assert error.errno == errno.EIO  # how Linux says that the other end is closed
        os.close(ours)
        return process.wait(LIMIT_S), written.decode()

    return run


def test_pipe_gets_plain_text(talka, load: list[str]) -> None:
    done = talka(*load)
    assert done.returncode == 4, done.stderr
    assert "✗ response_time.p50 < 1ns" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr


def test_file_gets_plain_text(environment: dict[str, str], folder: Path, load: list[str]) -> None:
    with open("out.txt", "wb") as out, open("told.txt", "wb") as told:
        code = processes.run([*TALKA, *load], stdout=out, stderr=told, env=environment).returncode
    assert code == 4
    text = Path("out.txt").read_text() + Path("told.txt").read_text()
    assert "TOTALS" in text and "running " in text
    assert "\x1b" not in text and "\r" not in text


def test_terminal_may_get_colours_but_no_cursor_codes_without_a_live_view(on_terminal, load: list[str]) -> None:
    code, text = on_terminal(*load, "--ui", "ci")
    assert code == 4
    assert "\x1b[32m" in text and "\x1b[31m" in text
    rest = COLOR.sub("", text)
    assert "\x1b" not in rest and "\r" not in rest.replace("\r\n", "")


@pytest.mark.parametrize(
    "variables",
    [{"NO_COLOR": "1"}, {"NO_COLOR": "0"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}],
    ids=lambda variables: " ".join(f"{name}={value}" for name, value in variables.items()),
)
def test_terminal_gets_plain_text_where_it_is_asked_for(on_terminal, load: list[str], variables) -> None:
    code, text = on_terminal(*load, "--ui", "ci", **variables)
    assert code == 4 and "TOTALS" in text
    assert "\x1b" not in text


def test_wish_for_no_colours_takes_colours_away_and_not_the_live_view(on_terminal, load: list[str]) -> None:
    code, text = on_terminal(*load, NO_COLOR="1")
    assert code == 4 and "TOTALS" in text
    assert "\x1b[?25l" in text, "the live view hides the cursor"
    assert not re.search(r"\x1b\[[0-9;]*m", text)


def test_empty_wish_for_no_colours_is_none(on_terminal, load: list[str]) -> None:
    assert "\x1b[32m" in on_terminal(*load, NO_COLOR="")[1]


def test_colours_can_be_forced(talka, load: list[str]) -> None:
    assert "\x1b[32m" in talka(*load, FORCE_COLOR="1").stdout
    assert "\x1b[32m" in talka(*load, FORCE_COLOR="1", TERM="dumb").stdout
    assert "\x1b" not in talka(*load, FORCE_COLOR="0").stdout


def test_progress_is_plain_where_it_is_asked_for_and_in_ci(on_terminal, load: list[str]) -> None:
    for ui, variables in (
        ("ci", {}),
        ("auto", {"CI": "true"}),
        ("full", {"TERM": "dumb"}),
    ):
        _, text = on_terminal(*load, "--ui", ui, **variables)
        progress = text.partition("COMPLETED")[0]
        assert "running " in progress and "\x1b" not in progress.rpartition("\n")[0]


def test_summary_is_as_wide_as_the_terminal(on_terminal, load: list[str]) -> None:
    _, text = on_terminal(*load, "--ui", "none", columns=70, NO_COLOR="1")
    assert 60 < max(map(len, text.splitlines())) <= 70
    _, text = on_terminal(*load, "--ui", "none", columns=40, NO_COLOR="1")
    assert 30 < max(map(len, text.splitlines())) <= 40


def test_json_on_a_terminal_has_no_colours(on_terminal, load: list[str]) -> None:
    code, text = on_terminal(*load, "--ui", "none", "--json", "-")
    assert code == 4 and json.loads(text)["exit_code"] == 4


@pytest.mark.parametrize("arguments", [["--help"], ["config", "show"], ["help", "exit-codes"], ["completion", "zsh"]])
def test_reader_who_has_seen_enough_is_no_error(
    arguments: list[str], environment: dict[str, str], folder: Path
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = processes.run(
        [*TALKA, *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=LIMIT_S,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_exit_code_and_file_of_a_run_outlive_the_reader(
    environment: dict[str, str], folder: Path, load: list[str]
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = processes.run(
        [*TALKA, *load, "--ui", "none", "--json", "out.json"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment,
        timeout=LIMIT_S,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (4, b"")
    assert json.loads((folder / "out.json").read_bytes())["exit_code"] == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_full_disk_under_stdout_is_told(environment: dict[str, str], folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = processes.run(
            [*TALKA, "config", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=LIMIT_S,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr


def test_text_that_the_terminal_cannot_show_is_replaced(talka, load: list[str]) -> None:
    done = talka(*load, PYTHONIOENCODING="ascii")
    assert done.returncode == 4 and "TOTALS" in done.stdout
    assert "UnicodeEncodeError" not in done.stderr


def test_json_on_stdout_is_utf_8_whatever_the_terminal_can_show(talka, folder: Path) -> None:
    (folder / "wörter.py").write_text(
        "from talka import Workflow, step\n\n\nclass Nothing(Workflow):\n"
        "    @step()\n    async def wait(self) -> None:\n        pass\n"
    )
    done = talka("run", "wörter.py", "--ui", "none", "--cores", "1", "--json", "-", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["job"]["name"] == "wörter.py"


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell here")
def test_closed_streams_change_no_exit_code(environment: dict[str, str], folder: Path, load: list[str]) -> None:
    command = " ".join(shlex.quote(word) for word in [*TALKA, *load])
    assert subprocess.call(["sh", "-c", f"{command} >&- 2>&-"], env=environment, timeout=LIMIT_S) == 4


def disk_is_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_file_that_cannot_be_written_after_all_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "out.json").write_text("old")
    file = ResultFile("out.json", what="--json")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", disk_is_full)
        with pytest.raises(CannotWrite, match="--json: out.json cannot be written: No space left on device"):
            file.write(b"new")
    assert sorted(os.listdir(folder)) == [".git", "out.json"] and Path("out.json").read_text() == "old"
    file.write(b"new")
    assert Path("out.json").read_text() == "new"


def test_result_that_cannot_be_written_after_the_run_is_told_and_spoils_the_exit_code(
    server, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "replace", disk_is_full)
    code = run_command(
        ["run", f"{server.url}/", "--iterations", "5", "--cores", "1", "--ui", "none", "--json", "out.json"]
    )
    printed = capsys.readouterr()
    assert code == 1 and "TOTALS" in printed.out
    assert printed.err == "--json: out.json cannot be written: No space left on device\n"
