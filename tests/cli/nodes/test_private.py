"""`talka up --private`: other users of the machine are kept out, and commands of its own user need nothing."""

import http.client
import http.server
import json
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from talka.cli.nodes import private as module
from talka.cli.nodes.private import NotPrivate, announced, drawn_tokens, found_token, place_of, read_own
from tests import processes
from tests.node_process import NodeProcess
from tests.processes import TALKA, own_environment

LIMIT_S = 60


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# A real one.


class Up(NodeProcess):
    """Its user's home is a folder of the test."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home = home
        self.environment = {**own_environment(), "HOME": str(home)}
        words = ("up", "--port", "0", "--cores", "1", "--json", *flags)
        super().__init__(*words, folder=home, environment=self.environment)

    def command(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return processes.run(
            [*TALKA, *arguments],
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=self.environment | variables,
        )


Started = Callable[..., Up]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    with ExitStack() as stack:

        def start(*flags: str) -> Up:
            node = Up(tmp_path, *flags)
            stack.callback(node.close)
            return node

        yield start


def status_without_token(address: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request("GET", "/v1/jobs")
        return connection.getresponse().status
    finally:
        connection.close()


def test_up_says_that_other_users_can_submit(started: Started) -> None:
    node = started()
    address = node.until("up")["address"]

    node.until("open")

    assert status_without_token(address) == 200
    assert "--private" in module_sentence("open")
    assert node.stop() == 0


def module_sentence(word: str) -> str:
    from talka.cli.nodes.life import brief_sentence

    return brief_sentence({"at": 0.0, "event": word, "user": "ada"})


def test_a_private_one_is_open_to_commands_of_its_user_and_closed_to_others(started: Started) -> None:
    node = started("--private", "--data-dir", "mine")
    address = node.until("up")["address"]
    node.until("private")
    assert "only ada can use it" in module_sentence("private")

    assert status_without_token(address) == 401
    found = node.command("jobs", "--json", "--to", address)
    assert (found.returncode, json.loads(found.stdout)["jobs"]) == (0, [])
    assert node.command("workers", "--to", address).returncode == 0
    stranger = node.command("jobs", "--to", address, HOME=str(node.home / "elsewhere"))
    assert stranger.returncode == 7 and "this needs a token" in stranger.stderr
    for file in (node.home / "mine" / "token", node.home / "mine" / "token.key"):
        assert mode_of(file) == 0o600
    [place] = (node.home / ".local/state/talka/private").iterdir()
    assert mode_of(place) == 0o600 and mode_of(place.parent) == 0o700

    (node.home / "mine" / "token").chmod(0o644)
    refused = node.command("jobs", "--to", address)
    assert refused.returncode == 2
    assert "others can use" in refused.stderr and "(mode 644)" in refused.stderr

    key = (node.home / "mine" / "token.key").read_bytes()
    assert node.stop() == 0
    assert list(place.parent.iterdir()) == []
    again = started("--private", "--data-dir", "mine")
    address = again.until("up")["address"]
    assert again.command("jobs", "--to", address).returncode == 0
    assert (again.home / "mine" / "token.key").read_bytes() == key  # tokens that were given to others still hold


class Listener(http.server.BaseHTTPRequestHandler):
    """Somebody else at the address."""

    shown: list[str | None] = []

    def do_GET(self) -> None:
        self.shown.append(self.headers["authorization"])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"items": [], "next": ""}')

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_whoever_takes_the_address_of_one_that_was_killed_is_shown_no_token(started: Started) -> None:
    node = started("--private")
    address = node.until("up")["address"]
    assert node.command("jobs", "--to", address).returncode == 0
    node.close()
    assert (node.home / ".local/state/talka/private" / address).exists()

    with http.server.ThreadingHTTPServer(("127.0.0.1", int(address.rpartition(":")[2])), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert node.command("jobs", "--to", address).returncode == 0
        server.shutdown()

    assert Listener.shown == [None]


# Where the token is, and whose.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


ADDRESS = "127.0.0.1:8470"


def test_a_token_is_found_by_its_address_alone_and_while_it_is_announced(home: Path) -> None:
    tokens, file = drawn_tokens(home)
    with announced(ADDRESS, file):
        token = found_token([ADDRESS])
        assert token is not None and tokens.identify(f"Bearer {token}").role == "admin"
        assert found_token([f"http://{ADDRESS}/"]) == token
        for others in (
            ["127.0.0.1:8471"],
            ["localhost:8470"],
            ["[::1]:8470"],
            [ADDRESS, "10.0.0.1:8470"],
            [f"https://{ADDRESS}"],
            [f"10.0.0.1/{ADDRESS}"],
        ):
            assert found_token(others) is None
    assert found_token([ADDRESS]) is None


@pytest.mark.parametrize("address", ["", "http://", "/", ".", ".."])
def test_what_is_no_address_has_no_token_nor_a_complaint_about_the_folder_of_those_that_have(
    home: Path, address: str
) -> None:
    _, file = drawn_tokens(home)
    with announced(ADDRESS, file):
        assert found_token([address]) is None


def test_what_was_left_at_its_place_is_replaced(home: Path) -> None:
    _, file = drawn_tokens(home)
    place_of(ADDRESS).parent.mkdir(parents=True)
    (home / "elsewhere").write_text("precious")
    place_of(ADDRESS).symlink_to(home / "elsewhere")
    assert found_token([ADDRESS]) is None

    with announced(ADDRESS, file):
        assert found_token([ADDRESS]) is not None
    assert (home / "elsewhere").read_text() == "precious"


@pytest.mark.parametrize("which", ["token", "place"])
def test_a_file_of_another_user_or_that_others_can_use_is_refused(
    home: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file = drawn_tokens(home)
    with announced(ADDRESS, file):
        looked_at = file if which == "token" else place_of(ADDRESS)
        for mode in (0o640, 0o604, 0o620):
            looked_at.chmod(mode)
            with pytest.raises(NotPrivate, match=rf"others can use {looked_at} \(mode {mode:03o}\)"):
                found_token([ADDRESS])
        looked_at.chmod(0o600)
        assert found_token([ADDRESS]) is not None
        monkeypatch.setattr(module.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(NotPrivate, match=r"is another user's \(uid \d+\): it is not used; give --token-file"):
            found_token([ADDRESS])


def test_a_key_that_others_can_read_is_not_used(home: Path) -> None:
    drawn_tokens(home)
    (home / "token.key").chmod(0o644)

    with pytest.raises(NotPrivate, match="token.key"):
        drawn_tokens(home)


def test_what_is_no_plain_file_or_cannot_be_read_is_said(home: Path) -> None:
    (home / "folder").mkdir()
    os.mkfifo(home / "pipe")
    for path, words in (
        (home / "folder", "is not a regular file"),
        (home / "pipe", "is not a regular file"),
        (home / "none", "cannot be read: No such file"),
    ):
        with pytest.raises(NotPrivate, match=words):
            read_own(path)


def test_a_place_that_cannot_be_written_is_said(home: Path) -> None:
    _, file = drawn_tokens(home)
    (home / ".local").write_text("in the way")

    with pytest.raises(NotPrivate, match="so commands would not find the token"), announced(ADDRESS, file):
        pass


def test_a_user_without_a_name_is_called_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 4_000_000)

    assert module.own_user() == "uid-4000000"
