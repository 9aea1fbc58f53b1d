"""Does a change cost a cluster anything? The benchmarks of jobs and of tasks, by two wheels in turns.

OLD and NEW are revisions of this repository, whose wheels are built and installed below build/wheels (NEW also "." for
the files as they are). Each has the benchmark scripts of its own revision. Of jobs, what nodes cost beside a core is
measured in turns of two minutes, old, new, old, new …. Reports and tasks are measured in turns of a second or two, by a
process or a cluster of each that is up all the while: a machine that is slow for some time is so for both.
Told are the medians of the ratios of such pairs, with the range between which half of them are. All figures are CPU
time. Exits with 1 if a median is above the bound.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from load import aligned, markdown, say
from load_server import NotMeasured
from tasks import Up, bulk, frames
from wheels import HOME, ROOT, Wheel, run_quietly, wheel_of

from talka.client.client import Client

RATIO_MOST: Final = 1.02
TURN_S: Final = 900.0
BULK: Final = 20_000
FRAMES: Final = 6000
WARM_UP: Final = 3
SECONDS: Final = """
import sys
sys.path.insert(0, "")
from job_progress import Bench
bench = Bench(int(sys.argv[1]), 1, None)
bench.begin()
for number, _ in enumerate(sys.stdin, 1):
    bench.second(number)
    print(bench.cpu_s, flush=True)
"""
"""For each line that it reads, the CPU seconds of one more simulated second."""


OVERHEAD: Final = "jobs: manager and worker beside a core, CPU s"
REPORTS: Final = "jobs: reports of a thousand workers, CPU ms a second"
TASKS: Final = {
    "tasks: asynchronous, CPU µs a task": "nothing",
    "tasks: plain, CPU µs a task": "nothing-plain",
    "tasks: a frame each, CPU µs a task": "",
}
"""Title and handler; without one, jobs of one task each."""
PARTS: Final = ("overhead", "reports", "tasks")


class Settings(argparse.Namespace):
    old: str
    new: str
    pairs: int
    only: list[str]
    quick: bool
    output: Path


def settings_of(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", help="a revision")
    parser.add_argument("new", nargs="?", default=".", help="likewise; . (as it comes) for the files as they are")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each (5); of short ones four times as many")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts (all)")
    parser.add_argument("--quick", action="store_true", help="one short pair: shows that it works, no more")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-cluster.json", help="JSON file")
    settings = parser.parse_args(arguments, namespace=Settings())
    if settings.quick:
        settings.pairs = 1
    if settings.pairs < 1:
        parser.error("--pairs must be at least 1")
    return settings


def source_of(what: str) -> Path:
    """Where the scripts of a revision are; `wheel_of` has put them there."""
    if what == ".":
        return ROOT
    revision = run_quietly(["git", "rev-parse", "--verify", f"{what}^{{commit}}"], f"{what} is no revision").strip()
    return HOME / revision[:12] / "source"


Turns = dict[tuple[str, str], list[float]]
"""What was measured, by title and wheel."""


def overhead(wheels: dict[str, Wheel], sources: dict[str, Path], pairs: int, *, quick: bool) -> Turns:
    turns: Turns = {}
    for number in range(1, pairs + 1):
        for name in ("old", "new"):
            nodes_s = overhead_turn(wheels[name].python, sources[name], quick=quick)
            turns.setdefault((OVERHEAD, name), []).append(nodes_s)
            say(f"turn {number}, {name}: {OVERHEAD}: {nodes_s:.3f}")
    return turns


def overhead_turn(python: Path, source: Path, *, quick: bool) -> float:
    """As the script wrote it. That something did not hold is not asked here."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        command = [str(python), str(source / "benchmarks" / "jobs.py"), "--only", "overhead"]
        command += ["--output", str(output), *(["--quick"] if quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TURN_S, cwd=source)
        try:
            return statistics.median(one["nodes_s"] for one in json.loads(output.read_bytes())["overhead"])
        except (OSError, KeyError, statistics.StatisticsError):
            lines = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
            raise NotMeasured(f"jobs of {source.name}: {lines[-1]}") from None


def reports(wheels: dict[str, Wheel], sources: dict[str, Path], pairs: int, *, quick: bool) -> Turns:
    turns: Turns = {}
    with contextlib.ExitStack() as stack:
        benches = {
            name: stack.enter_context(
                subprocess.Popen(
                    [str(wheel.python), "-c", SECONDS, "100" if quick else "1000"],
                    cwd=sources[name] / "benchmarks",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name, wheel in wheels.items()
        }
        for number in range(WARM_UP + pairs):
            for name in in_turns(number):
                cpu_s = next_second(name, benches[name])
                if number >= WARM_UP:
                    turns.setdefault((REPORTS, name), []).append(1000 * cpu_s)
    return turns


def next_second(name: str, bench: "subprocess.Popen[str]") -> float:
    assert bench.stdin is not None and bench.stdout is not None
    try:
        bench.stdin.write("\n")
        bench.stdin.flush()
        return float(bench.stdout.readline())
    except (OSError, ValueError):
        raise NotMeasured(f"reports of the {name} wheel: its process has ended") from None


def in_turns(number: int) -> tuple[str, str]:
    """Whoever is first in one pair is second in the next."""
    return ("old", "new") if number % 2 else ("new", "old")


async def tasks(wheels: dict[str, Wheel], pairs: int, *, quick: bool) -> Turns:
    turns: Turns = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ups = {
            name: stack.enter_context(Up.started(folder / name, "FULL", str(wheel.python)))
            for name, wheel in wheels.items()
        }
        clients = {name: Client([up.address]) for name, up in ups.items()}
        for number in range(pairs + 1):
            for name in in_turns(number):
                for title, handler in TASKS.items():
                    us = await task_turn(clients[name], ups[name], handler, quick=quick)
                    if number:  # the first is to warm up
                        turns.setdefault((title, name), []).append(us)
    return turns


async def task_turn(client: Client, up: Up, handler: str, *, quick: bool) -> float:
    number = (BULK if handler else FRAMES) // (10 if quick else 1)
    before_ns = up.running_ns()
    await (bulk(client, up, number, handler) if handler else frames(client, up, number))
    return (up.running_ns() - before_ns) / number / 1000


def main() -> None:
    settings = settings_of(sys.argv[1:])
    turns: Turns = {}
    try:
        wheels = {name: Wheel(name, wheel_of(what)) for name, what in (("old", settings.old), ("new", settings.new))}
        sources = {"old": source_of(settings.old), "new": source_of(settings.new)}
        for wheel in wheels.values():
            wheel.install()
        machine = (
            f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} processors, {platform.platform()}, Python"
            f" {platform.python_version()}; {settings.pairs} long turns each, {4 * settings.pairs} short ones;"
            f" old {settings.old}, new {settings.new}."
        )
        say(machine)
        if "tasks" in settings.only:
            turns |= asyncio.run(tasks(wheels, 4 * settings.pairs, quick=settings.quick))
        if "reports" in settings.only:
            turns |= reports(wheels, sources, 4 * settings.pairs, quick=settings.quick)
        if "overhead" in settings.only:
            turns |= overhead(wheels, sources, settings.pairs, quick=settings.quick)
    except NotMeasured as problem:
        sys.exit(f"not measured: {problem}")
    table = [["", "old", "new", "new / old (half are between)", "must", ""]]
    for title in dict.fromkeys(title for title, _ in turns):
        old, new = turns[title, "old"], turns[title, "new"]
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        table.append(
            [title, f"{statistics.median(old):.2f}", f"{statistics.median(new):.2f}"]
            + [f"{ratio:.3f} ({low:.3f}–{high:.3f})", f"≤ {RATIO_MOST}", "✓" if ratio <= RATIO_MOST else "✗"]
        )
    say("\n" + aligned(table))
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine, "turns": {" / ".join(key): values for key, values in turns.items()}}
    settings.output.write_text(json.dumps(results, indent=2) + "\n")
    settings.output.with_suffix(".md").write_text(f"{machine}\n\n{markdown(table)}\n")
    sys.exit(1 if any(row[-1] == "✗" for row in table) else 0)


if __name__ == "__main__":
    main()
