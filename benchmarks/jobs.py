"""What a cluster costs a load test: CPU beside the core process, the reports of a thousand workers, uneven starts.

Depends on the machine, so it is no test: run it on a quiet one with two processors or more. Numbers are medians, or
stand beside others of the same run. Prints what was asked, what was measured and whether it held; exits 1 when
something did not. Results also go to build/bench-jobs.json. The whole takes about ten minutes; --quick two.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import job_nodes
import job_progress
import msgspec
from job_progress import NotMeasured

OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench-jobs.json"
PARTS = ("overhead", "progress", "skew")
SHARE_LIMIT = 0.10
CPU_LIMIT = 1.0
SKEW_LIMIT_MS = 5.0
SKEW_LIMIT_TIMES = 2.0


class Settings(argparse.Namespace):
    only: list[str]
    quick: bool
    profile: bool
    workers: int
    seed: int
    output: Path
    runs: int
    run_s: int
    seconds: int
    starts: int


def settings_of(arguments: list[str]) -> Settings:
    def parts(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [word for word in found if word not in PARTS]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: unknown; there are {', '.join(PARTS)}")
        return found

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=parts, default=list(PARTS), help=f"parts: {','.join(PARTS)}")
    parser.add_argument("--workers", type=int, help="simulated workers of 8 cores that report (1000)")
    parser.add_argument("--profile", action="store_true", help="of progress: what costs most; slows it down")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file")
    settings = parser.parse_args(arguments, namespace=Settings())
    quick = settings.quick
    settings.workers = settings.workers or (100 if quick else 1000)
    settings.runs, settings.run_s = (1, 4) if quick else (3, 20)
    settings.seconds, settings.starts = (3, 3) if quick else (5, 30)
    return settings


class Table:
    """Verdicts as they come, and all of them at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, part: str, name: str, asked: str, measured: str, held: bool | None) -> None:
        """`held` is None for what is only told."""
        self.rows.append({"part": part, "name": name, "asked": asked, "measured": measured, "held": held})

    def print(self) -> None:
        words = {True: "held", False: "BROKE", None: ""}
        for row in self.rows:
            print(
                f"  {words[row['held']]:<5}  {row['part']:<9} {row['name']:<52} {row['asked']:<22} {row['measured']}",
                flush=True,
            )

    @property
    def broken(self) -> list[str]:
        return [row["name"] for row in self.rows if row["held"] is False]


def overhead(settings: Settings, table: Table) -> object:
    found = []
    for number in range(1, settings.runs + 1):
        one = job_nodes.overhead(settings.run_s)
        found.append(one)
        say(
            f"  run {number} of {settings.runs}: core {one.core_s:.2f} s, manager and worker {one.nodes_s:.2f} s, "
            "client"
            f" {one.client_s:.2f} s: {one.share:.1%}; {one.requests / settings.run_s:,.0f} requests/s, by talka run"
            f" {one.requests_alone / settings.run_s:,.0f}"
        )
    share = statistics.median(one.share for one in found)
    rate = statistics.median(one.rate for one in found)
    median = f"median of {len(found)}"
    table.add(
        "overhead",
        "CPU of manager, worker and client / core's",
        f"at most {SHARE_LIMIT:.0%}",
        f"{share:.1%} ({median})",
        share <= SHARE_LIMIT,
    )
    table.add("overhead", "requests, talka submit / talka run", "", f"{rate:.2f} ({median})", None)
    return found


def progress(settings: Settings, table: Table) -> object:
    cost = job_progress.measure(
        workers=settings.workers, seconds=settings.seconds, seed=settings.seed, has_profile=settings.profile
    )
    say(
        f"  {cost.workers} workers, a report every {cost.every_ms} ms: {cost.frames:,} frames and"
        f" {cost.frame_bytes / 1e6:.1f} MB a second, {cost.report_bytes / 1e3:.0f} kB a report before compression"
    )
    say(f"  CPU seconds of each: {', '.join(f'{one:.2f}' for one in cost.cpu_s)}; steps told {cost.told_steps} times")
    if cost.profile:
        say(cost.profile)
    what = f"CPU s a second, {cost.workers} workers"
    times = f"({len(cost.cpu_s)} seconds)"
    # What is measured under the profiler means nothing beside a limit.
    held = None if settings.profile else cost.median < CPU_LIMIT
    table.add("progress", f"{what}, median", f"under {CPU_LIMIT:g}", f"{cost.median:.2f} {times}", held)
    table.add("progress", f"{what}, worst", "", f"{max(cost.cpu_s):.2f}", None)
    return cost


def skew(settings: Settings, table: Table) -> object:
    found = asyncio.run(job_nodes.skews(settings.starts))
    ours, bare = percentile(found.jobs_ms, 95), percentile(found.bare_ms, 95)
    held = ours <= SKEW_LIMIT_MS or ours <= SKEW_LIMIT_TIMES * bare
    asked = f"{SKEW_LIMIT_MS:g} ms or {SKEW_LIMIT_TIMES:g} x bare"
    workers = f"{job_nodes.WORKERS} workers"
    table.add("skew", f"first requests of {workers}, p95", asked, f"{ours:.2f} ms of {settings.starts} starts", held)
    table.add("skew", "the same of bare processes, p95", "", f"{bare:.2f} ms", None)
    told = percentile(found.told_ms, 95)
    table.add("skew", f"when the cores of {workers} began, as the result tells it, p95", "", f"{told:.2f} ms", None)
    median, median_bare = statistics.median(found.jobs_ms), statistics.median(found.bare_ms)
    table.add("skew", "medians: workers, bare", "", f"{median:.2f} ms, {median_bare:.2f} ms", None)
    return found


def percentile(values: list[float], percent: int) -> float:
    """The least value that so many of them do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def say(text: str) -> None:
    print(text, flush=True)


MEASURES: dict[str, Callable[[Settings, Table], object]] = {"overhead": overhead, "progress": progress, "skew": skew}


def main() -> None:
    settings = settings_of(sys.argv[1:])
    if "overhead" in settings.only and (shutil.which("taskset") is None or (os.cpu_count() or 1) < 2):
        sys.exit("overhead needs taskset (Debian package util-linux) and two processors: nothing was measured")
    machine = f"{os.cpu_count()} processors, {platform.platform()}, Python {platform.python_version()}"
    say(machine)
    table = Table()
    results: dict[str, object] = {"machine": machine, "seed": settings.seed}
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    for part in [part for part in PARTS if part in settings.only]:
        say(f"\n{part}")
        try:
            results[part] = msgspec.to_builtins(MEASURES[part](settings, table))
        except NotMeasured as problem:
            table.add(part, "not measured", "", str(problem), False)
        results["table"] = table.rows
        settings.output.write_text(json.dumps(results, indent=2) + "\n")
    say("")
    table.print()
    if table.broken:
        sys.exit(f"{len(table.broken)} did not hold: {', '.join(table.broken)}")
    say("Everything held.")


if __name__ == "__main__":
    main()
