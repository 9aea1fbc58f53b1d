"""`talka run URL` with what curl's flags say of a request: method, headers, body, certificate, time limit."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from talka.cli.demo.command import running_demo_server
from talka.engine.load import native
from talka.wire.shards import PLAIN_GET, UrlRequest, digest_of_url

URL = "http://127.0.0.1:9/"
TWICE = ["--iterations", "2", "--vus", "1", "--ui", "none", "--cores", "1"]
ENGINES = ["python", *([] if native.available() else ["native"])]


class Seen(ThreadingHTTPServer):
    """A server that remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Seen

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers, body))
        if self.path == "/never":
            self.server.released.wait()
        self.send_response(204)
        self.end_headers()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = answer

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def seen() -> Iterator[Seen]:
    server = Seen()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("engine", ENGINES)
def test_method_headers_and_body_reach_the_server_as_given(talka, seen: Seen, folder: Path, engine: str) -> None:
    (folder / "secret.txt").write_text("X-Token: s3cret\n\nX-Shop: 7\n")
    flags = ["-X", "put", "-H", "a: b", "-H", "@secret.txt", "-d", '{"id": 7}']

    done = talka("run", f"{seen.url}/cart", *flags, "--engine", engine, *TWICE)

    assert done.returncode == 0, done.stderr
    assert len(seen.asked) == 2
    for method, path, headers, body in seen.asked:
        assert (method, path, json.loads(body)) == ("PUT", "/cart", {"id": 7})
        assert (headers["a"], headers["x-token"], headers["x-shop"]) == ("b", "s3cret", "7")
        assert headers["content-type"] == "application/json"
    assert "s3cret" not in done.stdout + done.stderr
    assert "put  2 runs" in done.stdout


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"])
def test_every_method_of_the_client_can_be_asked_for(command, seen: Seen, method: str) -> None:
    assert command("run", seen.url, "-X", method, "-H", "a: b", *TWICE).code == 0

    assert {asked[0] for asked in seen.asked} == {method}


@pytest.mark.parametrize(
    ("body", "flags", "type_"),
    [
        ('{"a": [1]}', [], "application/json"),
        ("[1, 2]", [], "application/json"),
        ("a=1&b=2", [], "application/x-www-form-urlencoded"),
        ("12", [], "application/x-www-form-urlencoded"),
        ('{"a": 1}', ["-H", "content-type: text/plain"], "text/plain"),
    ],
)
def test_body_without_a_method_is_a_post_of_a_type_that_fits_it(
    command, seen: Seen, body: str, flags: list[str], type_: str
) -> None:
    assert command("run", seen.url, "-d", body, *flags, *TWICE).code == 0

    method, _, headers, sent = seen.asked[0]
    assert (method, headers["content-type"], sent) == ("POST", type_, body.encode())


def test_body_from_a_file_is_sent_as_it_is(command, seen: Seen, folder: Path) -> None:
    (folder / "body.bin").write_bytes(b"\xff\x00\n")

    assert command("run", seen.url, "-d", "@body.bin", *TWICE).code == 0

    assert (seen.asked[0][2]["content-type"], seen.asked[0][3]) == ("application/octet-stream", b"\xff\x00\n")


@pytest.mark.parametrize("engine", ENGINES)
def test_request_that_takes_longer_than_the_timeout_fails_by_it(talka, seen: Seen, engine: str) -> None:
    flags = [
        "--timeout",
        "100ms",
        "--iterations",
        "1",
        "--ui",
        "none",
        "--cores",
        "1",
        "--json",
        "r.json",
        "--engine",
        engine,
    ]

    done = talka("run", f"{seen.url}/never", *flags)

    assert done.returncode == 6, done.stderr
    assert json.loads(Path("r.json").read_bytes())["workflows"][0]["steps"][0]["errors"] == {"timeout": 1}


@pytest.fixture(scope="module")
def secure() -> Iterator[str]:
    with running_demo_server("--tls") as url:
        yield url


@pytest.mark.parametrize("engine", ENGINES)
def test_unknown_certificate_is_refused_with_a_hint_and_accepted_on_demand(command, secure: str, engine: str) -> None:
    refused = command("run", secure, *TWICE, "--engine", engine)
    accepted = command("run", secure, "-k", *TWICE, "--engine", engine)

    assert refused.code == 6
    assert "-k (of a URL) or verify = False" in " ".join(refused.out.split())
    assert accepted.code == 0, accepted.out + accepted.err


def test_check_and_debug_take_the_same_flags(command, seen: Seen) -> None:
    checked = command("check", seen.url, "-d", "[1]")
    assert (checked.code, seen.asked) == (0, [])
    assert "post" in checked.out

    debugged = command("debug", seen.url, "-d", "[1]")
    assert debugged.code == 0
    assert [(asked[0], asked[3]) for asked in seen.asked] == [("POST", b"[1]")]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-X", "FETCH"], '-X "FETCH" is not a method of the client: the methods are GET, POST'),
        (["-H", "novalue"], "-H: there is no colon: write 'Name: value'"),
        (["-H", "Name:"], "-H: there is no value after the colon: write 'Name: value'"),
        (["-H", "a b: c"], "-H: header name 'a b' is not a token"),
        (["-H", "a: b", "-H", "A: c"], "-H: the header A is given twice"),
        (["-H", "@none.txt"], "-H @none.txt cannot be read: No such file"),
        (["-H", "@bad.txt"], "-H @bad.txt, line 2: there is no colon"),
        (["-d", "@none.txt"], "-d @none.txt cannot be read: No such file"),
        (["-d", "@large.bin"], "-d: it has more than 512 KiB"),
        (["--timeout", "0s"], '--timeout = "0s" is not possible: write a duration above 0'),
        (["--timeout", "soon"], "--timeout"),
        ([part for n in range(101) for part in ("-H", f"h{n}: 1")], "-H: 101 headers are given: 100 are the most"),
    ],
)
def test_wrong_request_is_said_before_anything_is_sent(command, folder: Path, flags: list[str], words: str) -> None:
    (folder / "bad.txt").write_text("a: b\nrain\n")
    (folder / "large.bin").write_bytes(bytes(512 * 1024 + 1))

    code, out, err = command("run", URL, *flags)

    assert (code, out) == (2, "")
    assert words in err


def test_request_goes_with_a_url_only(command, folder: Path) -> None:
    (folder / "shop.py").write_text("")

    code, _, err = command("run", "shop.py", "-X", "POST", "-k")

    assert code == 2
    assert "-X, -k go with a URL, and shop.py is a file" in err


def test_submitted_url_brings_its_request_along(command, remote) -> None:
    flags = ["-d", "[1]", "-H", "token: s3cret", "-k", "--timeout", "2s"]

    assert command("submit", URL, "--to", remote.to, "--detach", *flags).code == 0

    (order,) = remote.control.orders
    headers = {"token": "s3cret", "Content-Type": "application/json"}
    request = UrlRequest("POST", headers, b"[1]", verify=False, timeout_ns=2_000_000_000)
    assert (order.bundle.url, order.bundle.request) == (URL, request)
    assert order.bundle.digest == digest_of_url(URL, request) != digest_of_url(URL, PLAIN_GET)


def test_body_too_large_for_an_order_is_not_submitted(command, remote, folder: Path) -> None:
    (folder / "large.bin").write_bytes(bytes(64 * 1024 + 1))

    code, _, err = command("submit", URL, "--to", remote.to, "--detach", "-d", "@large.bin")

    assert code == 2
    assert "the body has 65,537 bytes" in err and not remote.control.orders
