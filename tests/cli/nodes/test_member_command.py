"""`talka member` as people run it: its lines, its end, and what it says about a wrong command line."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from talka.cli.main import run_command
from talka.cli.nodes import member as module
from talka.cli.nodes.member import Printer
from talka.nodes.member_events import sentence_of
from tests.node_process import NodeProcess, nodes

LIMIT_S = 60.0
SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
HEAVY = {"asyncio", "cryptography", "httptools", "msgspec", "psutil", "rich", "socket", "ssl", "starlette", "uvloop"}
LIST_MODULES = """
import sys
from talka.cli.main import run_command
assert run_command(sys.argv[1:]) == 0
print(*sorted(sys.modules), file=sys.stderr)
"""


@pytest.fixture
def member(folder: Path, environment: dict[str, str]):
    (folder / "secret").write_text(SECRET + "\n")

    with nodes() as begin:

        def start(name: str, *more: str, flags: tuple[str, ...] = ()) -> NodeProcess:
            words = ["--name", name, "--bind", "127.0.0.1:0", "--secret-file", "secret", "--data-dir", f"data-{name}"]
            return begin("member", *words, "--preset", "fast", *more, environment=environment, flags=flags)

        yield start


# Lines.


def test_events_are_lines_of_json_and_sigterm_says_good_bye(member) -> None:
    # Patient ones: nobody is suspected while a busy machine keeps it from saying good-bye.
    a = member("a", "--json", "--voters", "a", "--preset", "wan")
    ready = a.until("ready")
    assert abs(ready["at"] - time.time()) < LIMIT_S
    assert ready["name"] == "a" and ready["address"].startswith("127.0.0.1:") and int(ready["boot"]) >= 0
    b = member("b", "--json", "--seed", ready["address"], "--preset", "wan")
    joined = a.until("joined", name="b")
    assert joined["address"] == b.until("ready")["address"]
    b.until("joined", name="a")
    elected = next((json.loads(line) for line in a.lines if '"elected"' in line), None) or a.until("elected")
    assert elected["term"] == elected["token"][1] == 1

    told_at = time.time()
    b.signal(signal.SIGTERM)
    assert b.wait() == 0
    assert json.loads(b.lines[-1])["event"] == "stopped" and b.errors == ""
    a.until("left", name="b")
    a.signal(signal.SIGINT)
    assert a.wait() == 0
    assert json.loads(a.lines[-1])["event"] == "stopped" and a.errors == ""
    # Before, on a busy machine, each may have waited for the other for a while.
    after = [event for event in map(json.loads, a.lines + b.lines) if event["at"] > told_at]
    assert "left" in [event["event"] for event in after]
    assert not [event for event in after if event["event"] in ("suspected", "lost")]


def test_events_are_sentences_for_people(member) -> None:
    a = member("a", "--voters", "a")
    ready = a.line(lambda line: "ready at 127.0.0.1:" in line)
    assert ready[:13].count(":") == 2 and ready[12:14] == "  "
    b = member("b", "--seed", ready.split()[-1])
    a.line(lambda line: "b joined (127.0.0.1:" in line)
    b.line(lambda line: "a joined (127.0.0.1:" in line)
    if not any("leads from now on" in line for line in a.lines):
        a.line(lambda line: re.search(r"leads from now on, term \d+\n$", line) is not None)
    b.signal(signal.SIGTERM)
    a.line(lambda line: line.endswith("b left\n"))
    a.signal(signal.SIGTERM)
    assert (a.wait(), b.wait()) == (0, 0)
    assert a.lines[-1].endswith("stopped\n")


def test_wrong_secret_is_told_where_it_is_wrong(member, folder: Path) -> None:
    a = member("a", "--json")
    address = a.until("ready")["address"]
    (folder / "other").write_text("pL2k9Vb7Xs4Qw1Zr8Mn5Td3Jh6Gy0Fcd\n")
    b = member("b", "--secret-file", "other", "--seed", address, "--json")
    refused = b.until("refused")
    assert address in refused["text"] and "does not know this secret" in refused["text"]
    assert "not sealed with a key that is known here" in a.until("refused")["text"]


def test_voter_whose_disk_fails_ends_with_a_sentence(member, folder: Path) -> None:
    # A voter writes at its start; the folder becomes a place where it cannot.
    program = (
        "import talka.store.files.voter_file as v\n"
        "from pathlib import Path\n"
        "from talka.store.files.folder import StoreFailed\n"
        "def fail(self, puts): raise StoreFailed('votes could not be written (disk full)')\n"
        "v.VoterFile.write = fail\n"
        "import sys\n"
        "from talka.cli.main import run_command\n"
        "sys.exit(run_command(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, "member", "--name", "a", "--bind", "127.0.0.1:0"),
            *("--secret-file", "secret", "--data-dir", "data", "--voters", "a", "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1
    assert done.stderr == "votes could not be written (disk full)\n"
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "stopped"


# Weight.


def test_bare_member_imports_nothing_it_does_not_need(member) -> None:
    a = member("a", "--json", "--voters", "a", flags=("-X", "importtime"))
    b = member("b", "--json", "--seed", a.until("ready")["address"])
    b.until("joined", name="a")
    a.until("elected")
    a.signal(signal.SIGTERM)
    assert a.wait() == 0
    imported = {line.rpartition("|")[2].strip() for line in a.errors.splitlines() if line.startswith("import time:")}
    assert {"talka.nodes.member", "talka.net.streams", "cryptography.hazmat.primitives.ciphers.aead"} <= imported
    tops = {name.partition(".")[0] for name in imported}
    assert not tops & {"dns", "httptools", "psutil", "rich", "sqlite3", "starlette", "uvicorn"}
    # `ssl` is not looked for: asyncio imports it for itself.
    assert not imported & {
        "cryptography.x509",
        "talka.engine",
        "talka.net.certificates",
        "talka.net.identity",
        "talka.net.tls",
    }


@pytest.mark.parametrize(
    "command", [["member"], ["cluster"], ["cluster", "members"], ["cluster", "keys"]], ids=" ".join
)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *command, "--help"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert not HEAVY & set(done.stderr.split())


# Wrong command lines.


@pytest.fixture
def refused(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs the command with what is wrong in place of what is right, and sees that it was refused as it should be."""
    (folder / "secret").write_text(SECRET + "\n")
    monkeypatch.delenv("TALKA_SECRET_FILE", raising=False)

    def run(*words: str, **options: str | None) -> str:
        right: dict[str, str | None] = {
            "name": "a",
            "bind": "127.0.0.1:0",
            "secret-file": "secret",
            "data-dir": "data",
        }
        asked = right | {name.replace("_", "-"): value for name, value in options.items()}
        arguments = [part for name, value in asked.items() if value is not None for part in (f"--{name}", value)]
        code = run_command(["member", *arguments])
        printed = capfd.readouterr()
        assert (code, printed.out) == (2, ""), printed.err
        assert all(word in printed.err for word in words), printed.err
        assert len(printed.err.splitlines()) <= 2
        return printed.err

    return run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": None}, ["--name", "talka member --help"]),
        ({"bind": None}, ["--bind", "talka member --help"]),
        ({"name": "a b"}, ["name 'a b' is not an id", "1 to 64 letters"]),
        ({"name": ""}, ["name '' is not an id"]),
        ({"name": "a" * 65}, ["is not an id"]),
        ({"cluster": "a/b"}, ["cluster 'a/b' is not an id"]),
        ({"environment": "é"}, ["environment 'é' is not an id"]),
        ({"datacenter": "x y"}, ["datacenter 'x y' is not an id"]),
        ({"bind": "127.0.0.1"}, ["127.0.0.1", "has no port"]),
        ({"bind": "127.0.0.1:99999"}, ["no usable port"]),
        ({"bind": ":80"}, ["has no host"]),
        ({"bind": "::1:80"}, ["[::1]:7400"]),
        ({"bind": "0.0.0.0:0"}, ["--advertise HOST:PORT"]),
        ({"bind": "192.0.2.1:0"}, ["cannot listen on 192.0.2.1:0"]),
        ({"bind": "no-such-host.invalid:0"}, ["cannot listen on no-such-host.invalid:0"]),
        ({"advertise": "10.0.0.1:0"}, ["no usable port"]),
        ({"advertise": "10.0.0.1"}, ["has no port"]),
        ({"advertise": "host.example:8472"}, ["--advertise host.example:8472", "give the IP address"]),
        ({"advertise": "0.0.0.0:8472"}, ["--advertise 0.0.0.0:8472", "give the IP address"]),
        ({"seed": "10.0.0.1"}, ["10.0.0.1", "has no port"]),
        ({"seed": "srv:a b"}, ["is not a host name"]),
        ({"seed": "file:"}, ["file:PATH"]),
        ({"secret_file": None}, ["--secret-file FILE", "TALKA_SECRET_FILE"]),
        ({"secret_file": "none"}, ["the secret file none cannot be read: No such file"]),
        ({"secret_file": "."}, ["the secret file . cannot be read", "directory"]),
        ({"secret_file": "/dev/zero"}, ["/dev/zero is too large"]),
        ({"data_dir": "secret"}, ["a file is in the way"]),
        ({"preset": "quick"}, ["quick", "serf-lan"]),
        ({"forget_after": "0"}, ["--forget-after", "0"]),
        ({"forget_after": "nan"}, ["--forget-after", "nan"]),
        ({"voters": "a,b"}, ["2 voters"]),
        ({"voters": "b,c"}, ["2 voters"]),  # also where it is none of them
        ({"voters": "a,b,a"}, ["'a' is configured twice"]),
        ({"voters": ""}, ["voter '' is not an id"]),
        ({"voters": "a,,b"}, ["voter '' is not an id"]),
        ({"voters": ",".join(f"v{number}" for number in range(30))}, ["30 voters", "at most"]),
        ({"certs": "none"}, ["none is not a folder of certificates"]),
    ],
)
def test_wrong_argument_is_told_in_a_sentence(refused, options: dict[str, str | None], words: list[str]) -> None:
    refused(*words, **options)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"too short\n", ["bad line 1: the secret cannot be used"]),
        (b"# only a comment\n", ["bad line 1: there is no secret"]),
        (b"a" * 40 + b"\n", ["bad line 1: the secret cannot be used"]),
        (b"\xff\xfe" * 40, ["the secret file bad is not text"]),
        (f"{SECRET}\n{SECRET}\n".encode(), ["bad line 2: the secret is the same as in line 1"]),
    ],
    ids=["short", "none", "weak", "no text", "twice"],
)
def test_secret_that_cannot_be_used_is_told(refused, folder: Path, content: bytes, words: list[str]) -> None:
    (folder / "bad").write_bytes(content)
    assert SECRET not in refused(*words, secret_file="bad")


def test_port_in_use_is_told(refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(f"cannot listen on 127.0.0.1:{port}, TCP and UDP", "in use", bind=f"127.0.0.1:{port}")


def test_data_folder_in_use_is_told(member, refused) -> None:
    member("a", "--json").until("ready")
    refused("data-a is in use by process", "--data-dir", data_dir="data-a")


# A reader that does not read.


class Pipe:
    """Standard output is a pipe, and this its other end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading, self.writing = os.pipe()
        self._monkeypatch = monkeypatch

    def printer(self, *, as_json: bool, **limits: Any) -> Printer:
        with self._monkeypatch.context() as patched:
            patched.setattr(module.sys, "stdout", self)
            return Printer(asyncio.get_running_loop(), as_json, sentence_of, **limits)

    def fileno(self) -> int:
        return self.writing

    def read(self) -> bytes:
        os.set_blocking(self.reading, False)
        return os.read(self.reading, 1 << 20)

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch):
    made = Pipe(monkeypatch)
    yield made
    made.close()


EVENT = {"at": 1.0, "event": "alarm", "text": "x" * 1000}


async def test_lines_that_wait_are_written_as_the_reader_reads(pipe: Pipe) -> None:
    printer = pipe.printer(as_json=True)
    for _ in range(200):
        printer.event(EVENT)
    assert printer._waiting
    loop = asyncio.get_running_loop()
    received = b""
    complete = loop.create_future()

    def read() -> None:
        nonlocal received
        received += pipe.read()
        if received.count(b"\n") == 200 and not complete.done():
            complete.set_result(None)

    loop.add_reader(pipe.reading, read)
    async with asyncio.timeout(LIMIT_S):
        await complete
    loop.remove_reader(pipe.reading)
    assert [json.loads(line) for line in received.splitlines()] == [EVENT] * 200
    assert printer._waiting == []


async def test_lines_that_wait_at_the_end_are_written(pipe: Pipe) -> None:
    printer = pipe.printer(as_json=True)
    for _ in range(200):
        printer.event(EVENT)
    received = [pipe.read()]
    assert received[0] and printer._waiting
    reader = threading.Thread(target=lambda: received.extend(iter(lambda: os.read(pipe.reading, 65_536), b"")))
    os.set_blocking(pipe.reading, True)
    reader.start()
    printer.finish()
    os.close(pipe.writing)
    reader.join(LIMIT_S)
    assert [json.loads(line) for line in b"".join(received).splitlines()] == [EVENT] * 200


async def test_end_does_not_wait_for_a_reader_that_does_not_read(
    pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = pipe.printer(as_json=False, finish_s=0.01, lines_limit=10)
    for _ in range(500):
        printer.event(EVENT)
    assert len(printer._waiting) == 10
    printer.finish()
    left_out = int(capsys.readouterr().err.split()[0])
    assert pipe.read().count(b"\n") == 500 - left_out
    assert os.get_blocking(pipe.writing)


async def test_member_goes_on_when_its_reader_has_gone(pipe: Pipe) -> None:
    printer = pipe.printer(as_json=True)
    os.close(pipe.reading)
    printer.event(EVENT)
    printer.event(EVENT)
    printer.finish()
    assert printer._waiting == []


async def test_what_peers_say_does_not_steer_the_terminal(pipe: Pipe) -> None:
    printer = pipe.printer(as_json=False)
    printer.event({"at": 1.0, "event": "alarm", "text": "\x1b[2J {name} \r"})
    printer.finish()
    line = pipe.read()
    assert b"\x1b" not in line and b"\r" not in line and b"{name}" in line


def test_slip_in_one_step_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TALKA_TRACEBACK", raising=False)
    text = module.mishap({"message": "m", "exception": ZeroDivisionError("a slip\nof ours")})
    assert text.splitlines()[0] == "internal error: ZeroDivisionError: a slip of ours"
    assert module.mishap({"message": "no exception"}).startswith("internal error: no exception")
    monkeypatch.setenv("TALKA_TRACEBACK", "1")
    try:
        raise ZeroDivisionError("a slip")
    except ZeroDivisionError as error:
        assert module.mishap({"message": "m", "exception": error}).startswith("Traceback")
