"""The target of the load benchmark: one nginx worker on a core of its own, which also counts what it is asked."""

import contextlib
import http.client
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec
import psutil
import trustme

SERVER_CORE: Final = 0
HOST: Final = "127.0.0.1"
PORT, TLS_PORT, STATUS_PORT = 18480, 18481, 18482
READY_S: Final = 10.0
JSON_BODY: Final = '{"id": 7, "name": "talka", "tags": ["load", "test"], "price": 12.5, "in_stock": true, "left": 41}'
ADDRESSES: Final = {
    "plain": f"http://{HOST}:{PORT}/",
    "json": f"http://{HOST}:{PORT}/json",
    "tls": f"https://{HOST}:{TLS_PORT}/",
}

# An answer of constant text needs no file and no upstream: nginx has no cheaper one. Keep-alive never ends, so that
# connections are opened once. The status has a port of its own, so that it can be asked for while the others are busy.
CONFIGURATION: Final = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections {connections}; multi_accept on; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 300s;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen {host}:{port} backlog=16384;
    listen {host}:{tls_port} ssl backlog=16384;
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    location / {{ return 200 "ok"; }}
    location /json {{ default_type application/json; return 200 '{json}'; }}
  }}
  server {{ listen {host}:{status_port}; location / {{ stub_status; }} }}
}}
"""


class NotMeasured(Exception):
    """Why there is no number."""


def have(program: str, package: str) -> bool:
    """Whether there is such a program; Debian's package is installed where that is allowed."""
    if shutil.which(program) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
            subprocess.run(
                ["apt-get", *command],
                check=False,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    return shutil.which(program) is not None


class Counted(msgspec.Struct, frozen=True):
    """What the server knows at one instant."""

    at_s: float
    requests: int
    """All since it started, those for the status included."""
    connections: int


class Target(Protocol):
    """A server that tells what it counted. `worker` is the process that answers."""

    asked: int
    worker: psutil.Process

    def counted(self) -> Counted: ...


class Server:
    """nginx while `started`. Its own counter is what all generators are judged by."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._status = http.client.HTTPConnection(HOST, STATUS_PORT, timeout=READY_S)
        self.asked = 0
        """How many of the requests were for the status."""
        self.worker = psutil.Process()

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, connections: int) -> "Iterator[Server]":
        authority = trustme.CA()
        certificate = authority.issue_cert(HOST)
        certificate.private_key_pem.write_to_path(folder / "server.key")
        for part in certificate.cert_chain_pems:
            part.write_to_path(folder / "server.pem", append=True)
        (folder / "nginx.conf").write_text(
            CONFIGURATION.format(
                folder=folder,
                # Short of them, nginx would close idle ones: those that are closing count as well.
                connections=2 * connections,
                host=HOST,
                port=PORT,
                tls_port=TLS_PORT,
                status_port=STATUS_PORT,
                json=JSON_BODY,
            )
        )
        command = ["taskset", "-c", str(SERVER_CORE), "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            server = cls(process, folder)
            try:
                server.wait()
                yield server
            finally:
                process.terminate()

    def wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.counted()
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise NotMeasured(f"nginx did not start: {self._complaint()}") from None
                time.sleep(0.02)
        (self.worker,) = psutil.Process(self._process.pid).children()

    def counted(self) -> Counted:
        try:
            self._status.request("GET", "/")
            text = self._status.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as error:
            self._status.close()
            raise ConnectionError(f"nginx does not tell its status: {error}") from None
        self.asked += 1
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        # Active connections; then accepted, handled, requests. The first is that for the status.
        return Counted(time.monotonic(), numbers[3], numbers[0] - 1)

    def _complaint(self) -> str:
        file = self._folder / "error.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return lines[-1] if lines else "it says nothing"
