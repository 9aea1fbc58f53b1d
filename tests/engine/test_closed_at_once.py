"""A server that accepts connections and closes them at once: one kind of error, counted alike by both engines."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from talka.cli.main import run_command
from talka.engine.load import native

ENGINES = ["python", *([] if native.available() else ["native"])]
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(params=["with a FIN", "with a RST"])
def closing(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of one."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if request.param == "with a RST":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("load", [["--iterations", "300", "--vus", "5"], ["--rate", "200/s", "--for", "1s"]])
def test_connection_that_is_closed_at_once_is_a_reset_on_both_engines(
    closing: str, engine: str, load: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"

    code = run_command(["run", closing, *load, "--cores", "1", "--ui", "none", "--engine", engine, "--json", str(file)])

    document = json.loads(file.read_bytes())
    totals, (step,) = document["totals"], document["workflows"][0]["steps"]
    assert code == 6
    assert set(step["errors"]) == {"reset"}, step["samples"]
    assert (totals["requests"], totals["not_sent"]) == (totals["failed"], 0)
    assert totals["failed"] == step["failed"] == step["errors"]["reset"] >= 200
