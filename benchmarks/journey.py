"""One journey written for k6, for Locust and for us: how long is each script, and are its counts the server's?

Each user logs in once, then in a loop looks at one to five pages with a pause after each and orders in three of ten
visits. The scripts are in benchmarks/peers; all have as many users, each on a connection of its own, against the server
in C. Peers are installed once into build/peers-load, or left out with a line. Rate and CPU are those of some seconds in
the middle; counts are of the whole run, as each says at its end and as the server counted. Exits with 1 if ours counted
otherwise than the server, or is longer than another.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
from epoll_server import EpollServer, compiled
from load import aligned, say
from load_meter import Reading, Run
from load_server import NotMeasured, have
from load_tools import RESULT, Case, K6Wheel, LocustWheel, Ours
from wheels import FEATURES

SCRIPTS: Final = Path(__file__).resolve().parent / "peers"
NAMES: Final = ("login", "page", "order")
SPARE_S: Final = 3


class Settings(argparse.Namespace):
    users: int
    seconds: int
    engine: str
    output: Path


def settings_of(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--users", type=int, default=200, help="of each tool (200)")
    parser.add_argument("--seconds", type=int, default=10, help="in which rate and CPU are measured (10)")
    parser.add_argument("--engine", choices=("native", "python"), default="native", help="ours (native)")
    default = Path(__file__).resolve().parent.parent / "build" / "bench-journey.json"
    parser.add_argument("--output", type=Path, default=default, help="JSON file")
    return parser.parse_args(arguments, namespace=Settings())


class Journey(msgspec.Struct):
    """What came of one tool's run."""

    tool: str
    lines: int
    problem: str = ""
    reading: Reading | None = None
    told: dict[str, int] = {}
    served: dict[str, int] = {}


def lines_of(script: Path) -> int:
    """Lines that are neither empty nor a comment."""
    lines = [line.strip() for line in script.read_text().splitlines()]
    return sum(1 for line in lines if line and not line.startswith(("#", "//")))


class K6Journey(K6Wheel):
    script = SCRIPTS / "journey.js"

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        # Counts by name are in its summary only where a rule names them: one that always holds, outside the script.
        rules = {f"http_reqs{{name:{name}}}": ["count>=0"] for name in NAMES}
        (folder / "rules.json").write_text(json.dumps({"thresholds": rules}))
        load = ["--vus", str(case.vus), "--duration", f"{seconds}s", "--config", "rules.json"]
        program = str(self.home / "bin" / "k6")
        return [program, "run", "--quiet", "--no-usage-report", "--summary-export", RESULT, *load, str(self.script)]

    def told(self, output: str, folder: Path) -> dict[str, int]:
        metrics = json.loads((folder / RESULT).read_bytes())["metrics"]
        return {name: int(metrics[f"http_reqs{{name:{name}}}"]["count"]) for name in NAMES}


class LocustJourney(LocustWheel):
    script = SCRIPTS / "journey_locust.py"

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        load = ["-u", str(case.vus), "-r", str(case.vus), "-t", f"{seconds}s", "--stop-timeout", "10s"]
        return [str(self.home / "bin" / "locust"), "-f", str(self.script), "--headless", "--json", *load]

    def told(self, output: str, folder: Path) -> dict[str, int]:
        begin = output.find("\n[\n")
        if begin < 0:
            raise NotMeasured("it printed no result")
        rows, _ = json.JSONDecoder().raw_decode(output[begin + 1 :])
        return {row["name"]: row["num_requests"] for row in rows}


class OurJourney(Ours):
    script = SCRIPTS / "journey_talka.py"
    codes = (0,)

    def missing(self) -> str:
        asked = subprocess.run([sys.executable, "-c", FEATURES], capture_output=True, text=True, check=True)
        lacks = asked.stdout.split()
        return f"this version has no {', '.join(lacks)}" if lacks else super().missing()

    def command(self, case: Case, seconds: int, folder: Path) -> list[str]:
        command = [sys.executable, "-m", "talka", "run", str(self.script), "--engine", self.engine, "--cores", "1"]
        command += ["--vus", str(case.vus), "--duration", f"{seconds}s"]
        return [*command, "--ui", "none", "--no-keep", "--json", RESULT]

    def told(self, output: str, folder: Path) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for workflow in json.loads((folder / RESULT).read_bytes())["workflows"]:
            for step in workflow["steps"]:
                # A method whose calls have one name, its own, is one row.
                for row in step.get("calls") or [step]:
                    counts[row["name"]] += row["count"]
        return dict(counts)


Tool = K6Journey | LocustJourney | OurJourney


def measured(tool: Tool, server: EpollServer, folder: Path, settings: Settings) -> Journey:
    journey = Journey(tool.name, lines_of(tool.script))
    journey.problem = tool.missing()
    if journey.problem:
        return journey
    case = Case("plain", settings.users)
    command = ["env", f"TARGET={server.url}", *tool.command(case, settings.seconds + SPARE_S, folder)]
    before = served(server)
    try:
        with Run.started(command, server, folder) as run:
            reading = run.read(settings.users, settings.seconds)
            output = run.ended(reading, tool.codes)
        journey.told = tool.told(output, folder)
    except NotMeasured as problem:
        journey.problem = f"not measured: {problem}"
        return journey
    journey.reading = reading
    journey.served = dict(served(server) - before)
    return journey


def served(server: EpollServer) -> Counter[str]:
    """How many by name: that is the path, without its slash."""
    return Counter({path.lstrip("/"): count for path, count in server.counts()["paths"].items()})


def cells_of(journey: Journey) -> list[str]:
    start = [journey.tool, str(journey.lines)]
    reading = journey.reading
    if reading is None:
        return [*start, journey.problem, *[""] * (len(NAMES) + 1)]
    cpu_us = (reading.all.user_s + reading.all.system_s) / reading.requests * 1e6
    counts = [f"{journey.told.get(name, 0):,} / {journey.served.get(name, 0):,}" for name in NAMES]
    return [*start, *counts, f"{reading.per_s:,.0f}", f"{cpu_us:,.0f}"]


def faults_of(ours: Journey, others: list[Journey]) -> list[str]:
    """What may not be."""
    faults = [
        f"ours has {ours.lines} lines, that of {other.tool} {other.lines}"
        for other in others
        if ours.lines > other.lines
    ]
    if ours.problem:
        return [*faults, f"ours: {ours.problem}"]
    if ours.told != ours.served:
        faults.append(f"ours counts {ours.told}, the server {ours.served}")
    return faults


def main() -> None:
    settings = settings_of(sys.argv[1:])
    if (os.cpu_count() or 1) < 2:
        sys.exit("this needs two cores: nothing was measured")
    if not have("taskset", "util-linux"):
        sys.exit("taskset is missing (Debian package util-linux): nothing was measured")
    tools: tuple[Tool, ...] = (OurJourney(settings.engine), K6Journey(), LocustJourney())
    journeys = []
    try:
        program = compiled()
        for tool in tools:
            with (
                tempfile.TemporaryDirectory(prefix="bench-journey-", ignore_cleanup_errors=True) as name,
                EpollServer.started(program=program) as server,
            ):
                journeys.append(measured(tool, server, Path(name), settings))
            say(f"{tool.name}: {journeys[-1].problem or 'done'}")
    except (NotMeasured, ConnectionError) as problem:
        sys.exit(f"not measured: {problem}")
    heads = ["", "lines", *(f"{name}: told / served" for name in NAMES), "calls/s", "CPU, µs/call"]
    say("\n" + aligned([heads, *map(cells_of, journeys)]))
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    settings.output.write_bytes(msgspec.json.format(msgspec.json.encode(journeys)) + b"\n")
    ours, *others = journeys
    faults = faults_of(ours, others)
    for fault in faults:
        say(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
