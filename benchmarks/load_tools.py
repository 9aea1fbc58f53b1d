"""The generators of the load benchmark: how each is called, what it says of itself, and how peers are installed.

Each has as many users as it is told, each on a connection of its own, without a pause; nothing but that is the same.
"""

import json
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import msgspec
from load_meter import Reading, Run
from load_server import ADDRESSES, NotMeasured, Server, have

from talka.engine.load import native
from talka.work.dsl import Workflow

HOME: Final = Path(__file__).resolve().parent.parent / "build" / "peers-load"
USERS_FILE: Final = "users.py"
RESULT: Final = "result.json"
OPEN_USERS: Final = 100
"""The most of the open model at the same time; nginx answers so fast that a few suffice."""

USERS: Final = """
from talka import URL, HTTPResponse, Workflow, step


class Plain(Workflow):
    @step()
    async def get(self, url: URL = "{plain}") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.status == 200
        return response


class Tasks(Workflow):
    driver = "task"

    @step()
    async def get(self, url: URL = "{plain}") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.status == 200
        return response


class JSON(Workflow):
    @step()
    async def get(self, url: URL = "{json}") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.json()["id"] == 7
        return response


class TLS(Workflow):
    verify = False

    @step()
    async def get(self, url: URL = "{tls}") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.status == 200
        return response
"""

K6: Final = """
import http from "k6/http";
export const options = {{ vus: {vus}, duration: "{seconds}s", discardResponseBodies: true,
  summaryTrendStats: ["med", "p(99)"] }};
export default function () {{
  if (http.get("{url}").status !== 200) {{ throw new Error("not 200"); }}
}}
"""

LOCUST: Final = """
from locust import FastHttpUser, constant, task


class Plain(FastHttpUser):
    host = "{url}"
    wait_time = constant(0)

    @task
    def get(self):
        with self.client.get("/", catch_response=True) as response:
            if response.status_code != 200:
                response.failure("not 200")
"""


class Case(msgspec.Struct, frozen=True):
    """What a generator is asked: so many users in a closed loop, or so many arrivals a second."""

    target: str
    vus: int
    rate: int = 0

    @property
    def url(self) -> str:
        return ADDRESSES[self.target]


class Tool(ABC):
    """A generator. `missing` says why it cannot be had here, and is empty when it can."""

    name = ""
    codes: tuple[int, ...] = (0,)
    """With which of these it ends when it has measured."""

    @abstractmethod
    def missing(self) -> str: ...

    def version(self) -> str:
        return ""

    @abstractmethod
    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        """For so many seconds of load; may write what it needs into the folder, where it will run."""

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        """Put its own words into the reading. Some say nothing of use."""
        return

    def measure(self, case: Case, server: Server, folder: Path, window_s: float, seconds: int) -> Reading:
        with Run.started(self.command(case, seconds, folder), server, folder) as run:
            reading = run.read(1 if case.rate else case.vus, window_s)
            output = run.ended(reading, self.codes)
        self.note(reading, output, folder)
        return reading


class Packaged(Tool):
    """A program of a Debian package."""

    program = package = ""

    def missing(self) -> str:
        return "" if have(self.program, self.package) else f"the Debian package {self.package} is not installed"

    def version(self) -> str:
        asked = subprocess.run(
            ["dpkg-query", "--show", "--showformat=${Version}", self.package],
            capture_output=True,
            text=True,
            check=False,
        )
        return re.split(r"[-+]", asked.stdout)[0]


class Wrk(Packaged):
    name = program = package = "wrk"

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        return ["wrk", "-t1", f"-c{case.vus}", f"-d{seconds}s", "--latency", case.url]

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        reading.p50_ms = duration_ms(found(r"^\s+50%\s+(\S+)", output))
        reading.p99_ms = duration_ms(found(r"^\s+99%\s+(\S+)", output))
        if wrong := re.findall(r"Non-2xx or 3xx responses: \d+|Socket errors: .*[1-9].*", output):
            reading.warnings.append(", ".join(wrong))


class H2Load(Packaged):
    name, program, package = "h2load", "h2load", "nghttp2-client"

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        return ["h2load", "--h1", "-t1", f"-c{case.vus}", f"-D{seconds}", case.url]

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        found(r"finished in .* (\S+) req/s", output)  # no percentiles in this version


class Hey(Packaged):
    name = program = package = "hey"

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        return ["hey", "-c", str(case.vus), "-z", f"{seconds}s", case.url]

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        reading.p50_ms = 1000 * float(found(r"50% in (\S+) secs", output))
        reading.p99_ms = 1000 * float(found(r"99% in (\S+) secs", output))


class Autocannon(Tool):
    name = "autocannon"
    folder = HOME / "node_modules" / "autocannon"

    def missing(self) -> str:
        if not (self.folder / "autocannon.js").exists():
            if shutil.which("npm") is None:
                return "npm is not installed"
            HOME.mkdir(parents=True, exist_ok=True)
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(HOME), "autocannon"]
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return "" if (self.folder / "autocannon.js").exists() else "npm could not install it"

    def version(self) -> str:
        return str(json.loads((self.folder / "package.json").read_bytes())["version"])

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        script = str(self.folder / "autocannon.js")
        return ["node", script, "-c", str(case.vus), "-d", str(seconds), "--json", "--no-progress", case.url]

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        told = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        reading.p50_ms, reading.p99_ms = float(told["latency"]["p50"]), float(told["latency"]["p99"])


class Wheel(Tool):
    """A program of a Python package, in an environment apart from ours."""

    program = package = ""
    home = HOME / "venv"

    def missing(self) -> str:
        if not (self.home / "bin" / "python").exists():
            HOME.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", str(self.home)], check=False)
        if not (self.home / "bin" / self.program).exists():
            self._python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.package)
        return "" if (self.home / "bin" / self.program).exists() else f"pip could not install {self.package}"

    def version(self) -> str:
        script = f"import importlib.metadata as found; print(found.version({self.package!r}))"
        return self._python("-c", script).strip()

    def _python(self, *arguments: str) -> str:
        command = [str(self.home / "bin" / "python"), *arguments]
        return subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


class K6Wheel(Wheel):
    name = program = package = "k6"

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        (folder / "k6.js").write_text(K6.format(vus=case.vus, seconds=seconds, url=case.url))
        program = str(self.home / "bin" / "k6")
        return [program, "run", "--quiet", "--no-usage-report", "--summary-export", RESULT, "k6.js"]

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        told = json.loads((folder / RESULT).read_bytes())["metrics"]["http_req_duration"]
        reading.p50_ms, reading.p99_ms = float(told["med"]), float(told["p(99)"])


class LocustWheel(Wheel):
    name, program, package = "Locust FastHttpUser", "locust", "locust"

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        (folder / "locusts.py").write_text(LOCUST.format(url=case.url.rstrip("/")))
        users = ["-u", str(case.vus), "-r", str(case.vus), "-t", f"{seconds}s"]
        return [str(self.home / "bin" / "locust"), "-f", "locusts.py", "--headless", "--json", *users]

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        start = re.search(r"^\[\s*$", output, re.MULTILINE)
        if start is None:
            raise NotMeasured("it printed no result")
        (told, *_), _ = json.JSONDecoder().raw_decode(output[start.start() :])
        times = {float(key): int(count) for key, count in told["response_times"].items()}
        reading.p50_ms, reading.p99_ms = percentile(times, 50), percentile(times, 99)
        if told["num_failures"]:
            reading.warnings.append(f"{told['num_failures']} requests failed")


class Ours(Tool):
    codes = (0, 6)
    """Also when arrivals were dropped."""

    def __init__(self, engine: str, workflow: str = "Plain", *, driver: str = "") -> None:
        self.engine = engine
        self.workflow = workflow
        self.driver = driver
        self.name = f"talka, {engine}" + (f", {driver}s" if driver else "")

    def missing(self) -> str:
        told = subprocess.run([sys.executable, "-m", "talka", "run", "--help"], capture_output=True, text=True)
        if not re.search(rf"--engine \[[^\]]*\b{self.engine}\b", " ".join(told.stdout.split())):
            return f"this version has no --engine {self.engine}"
        if self.engine == "native" and (why := native.available()) is not None:
            return why
        if self.driver and not hasattr(Workflow, "driver"):
            return "this version has no choice of a driver"
        return ""

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        (folder / USERS_FILE).write_text(USERS.format(**ADDRESSES))
        (folder / RESULT).unlink(missing_ok=True)
        command = [sys.executable, "-m", "talka", "run", f"{USERS_FILE}:{self.workflow}", "--engine", self.engine]
        command += ["--cores", "1", "--ui", "none", "--no-keep", "--json", RESULT, "--duration", f"{seconds}s"]
        if case.rate:
            return [*command, "--rate", f"{case.rate}/s", "--vus", str(OPEN_USERS)]
        return [*command, "--vus", str(case.vus)]

    def note(self, reading: Reading, output: str, folder: Path) -> None:
        document = json.loads((folder / RESULT).read_bytes())
        times = document["workflows"][0]["steps"][0]["response_time_ms"]
        reading.p50_ms, reading.p99_ms = times["p50"], times["p99"]
        if lag := document["generator"]["start_lag_ms"]:
            reading.lag_p50_ms, reading.lag_p99_ms = lag["p50"], lag["p99"]
        totals = document["totals"]
        if document["generator"]["engine"] != self.engine:
            reading.warnings.append(f"it ran on the engine {document['generator']['engine']!r}")
        if totals["failed"] or totals["not_sent"]:
            reading.warnings.append(f"{totals['failed']} requests failed, {totals['not_sent']} were not sent")
        if totals["dropped_iterations"]:
            reading.warnings.append(f"{totals['dropped_iterations']:,} arrivals were dropped")
        # Those under way at the end are cut off by their users, and the server may not have read them.
        if not totals["requests"] - totals["interrupted"] <= reading.served <= totals["requests"]:
            reading.warnings.append(f"it counts {totals['requests']:,} requests, the server {reading.served:,}")


class Peers:
    """All that are held against ours."""

    wrk: Final = Wrk()
    fast: Final[tuple[Tool, ...]] = (H2Load(),)
    """Those that can be asked for ten thousand users."""
    slow: Final[tuple[Tool, ...]] = (Hey(), Autocannon(), K6Wheel(), LocustWheel())


UNITS_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


def duration_ms(text: str) -> float:
    parsed = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    if parsed is None:
        raise NotMeasured(f"{text!r} is no duration")
    return float(parsed[1]) * UNITS_MS[parsed[2]]


def found(pattern: str, output: str) -> str:
    match = re.search(pattern, output, re.MULTILINE)
    if match is None:
        raise NotMeasured(f"it printed nothing like {pattern!r}")
    return match[1]


def percentile(counts: dict[float, int], percent: float) -> float | None:
    wanted = sum(counts.values()) * percent / 100
    passed = 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= wanted:
            return value
    return None
