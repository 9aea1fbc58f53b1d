"""How much load does one core make? Ours against wrk, on nginx, in one run.

nginx is pinned to one core and every generator to another; each round measures wrk and ours one after the other, and
the ratio is the median over rounds, because the machine's speed changes from minute to minute. Needs nginx and wrk
(Debian packages; installed when this runs as root): a ratio against a slow target would mean nothing.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROUNDS = 5
SECONDS = 3
VUS = 64
PORT = 18480

NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port} backlog=16384; location / {{ return 200 "ok"; }} }}
}}
"""

WORKFLOW = """
from talka import URL, HTTPResponse, Workflow, step

class Plain(Workflow):
    vus = {vus}
    duration = "{seconds}s"

    @step()
    async def get(self, url: URL = "http://127.0.0.1:{port}/") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.status == 200
        return response
"""


def have(program: str, package: str) -> bool:
    if shutil.which(program) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", package],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return shutil.which(program) is not None


def measured(command: list[str]) -> tuple[str, float, float]:
    """Output, and the user and system seconds of the command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(["taskset", "-c", "1", *command], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.stdout, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def wrk() -> tuple[int, float, float]:
    out, user, system = measured(["wrk", "-t1", f"-c{VUS}", f"-d{SECONDS}s", f"http://127.0.0.1:{PORT}/"])
    requests = next(int(line.split()[0]) for line in out.splitlines() if "requests in" in line)
    return requests, user, system


def ours(file: Path, result: Path) -> tuple[int, float, float]:
    _, user, system = measured(
        [sys.executable, "-m", "talka", "run", str(file), "--cores", "1", "--ui", "none", "--json", str(result)]
    )
    return json.loads(result.read_bytes())["totals"]["requests"], user, system


def main() -> None:
    for program, package in (("nginx", "nginx-light"), ("wrk", "wrk"), ("taskset", "util-linux")):
        if not have(program, package):
            sys.exit(f"{program} is missing (Debian package {package}): nothing was measured")
    if (os.cpu_count() or 1) < 2:
        sys.exit("this needs two cores: nothing was measured")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=PORT))
        file = folder / "plain.py"
        file.write_text(WORKFLOW.format(vus=VUS, seconds=SECONDS, port=PORT))
        nginx = subprocess.Popen(["taskset", "-c", "0", "nginx", "-p", name, "-c", str(folder / "nginx.conf")])
        try:
            wait_for_server()
            rounds = []
            print(f"{'round':>5}  {'wrk/s':>9}  {'ours/s':>9}  {'ratio':>5}  user µs/request: wrk, ours")
            for number in range(1, ROUNDS + 1):
                theirs, mine = wrk(), ours(file, folder / "result.json")
                rounds.append((mine[0] / theirs[0], mine[1] / mine[0] * 1e6))
                print(
                    f"{number:>5}  {theirs[0] / SECONDS:>9,.0f}  {mine[0] / SECONDS:>9,.0f}  {rounds[-1][0]:>5.2f}"
                    f"  {theirs[1] / theirs[0] * 1e6:.1f}, {rounds[-1][1]:.1f} (start-up included)",
                    flush=True,
                )
        finally:
            nginx.terminate()
            nginx.wait()
    ratio, user = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"median of {ROUNDS}: {ratio:.2f} of wrk, {user:.1f} µs of user CPU per request; {VUS} VUs, one core each")


def wait_for_server() -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=1).read()
            return
        except OSError:
            if time.monotonic() > deadline:
                sys.exit("nginx did not start: nothing was measured")


if __name__ == "__main__":
    main()
