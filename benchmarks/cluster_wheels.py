"""Does a change cost a cluster anything? The benchmarks of jobs and of tasks, by two wheels in turns.

OLD and NEW are revisions of this repository, whose wheels are built and installed below build/wheels (NEW also "." for the
files as they are). Each runs the benchmark scripts of its own revision, old, new, old, new …; told are the medians of
the ratios of such pairs with their range. All figures are CPU time. Exits with 1 if a median is above the bound.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from load import aligned, markdown, say
from load_server import NotMeasured
from wheels import HOME, ROOT, Wheel, run_quietly, wheel_of

RATIO_MOST: Final = 1.02
TURN_S: Final = 900.0


class Figure(msgspec.Struct, frozen=True):
    """One number of what a script wrote."""

    title: str
    script: str
    read: Callable[[Any], float]


FIGURES: Final = (
    Figure(
        "jobs: manager and worker beside a core, CPU s",
        "jobs",
        lambda found: statistics.median(one["nodes_s"] for one in found["overhead"]),
    ),
    Figure(
        "jobs: reports of a thousand workers, CPU s a second",
        "jobs",
        lambda found: statistics.median(found["progress"]["cpu_s"]),
    ),
    Figure("tasks: asynchronous, CPU µs a task", "tasks", lambda found: task_us(found, "bulk")),
    Figure("tasks: plain, CPU µs a task", "tasks", lambda found: task_us(found, "plain")),
    Figure("tasks: a frame each, CPU µs a task", "tasks", lambda found: task_us(found, "frames")),
)
ARGUMENTS: Final = {"jobs": ["--only", "overhead,progress"], "tasks": ["--alone", "--rounds", "1"]}


def task_us(found: Any, part: str) -> float:
    return float(found["found"]["full"][0][part]["cpu_us"]["nodes and core"])


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
    parser.add_argument("--pairs", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--only", nargs="+", choices=list(ARGUMENTS), default=list(ARGUMENTS), help="scripts (both)")
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


def turn(python: Path, source: Path, script: str, *, quick: bool) -> Any:
    """What the script wrote. That something did not hold is not asked here."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        command = [str(python), str(source / "benchmarks" / f"{script}.py"), *ARGUMENTS[script]]
        command += ["--output", str(output), *(["--quick"] if quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TURN_S, cwd=source)
        if not output.exists():
            lines = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
            raise NotMeasured(f"{script} of {source.name}: {lines[-1]}")
        return json.loads(output.read_bytes())


def measured(figure: Figure, found: Any) -> float:
    try:
        return figure.read(found)
    except (KeyError, IndexError, TypeError, statistics.StatisticsError):
        raise NotMeasured(f"{figure.title}: the script did not measure it") from None


def main() -> None:
    settings = settings_of(sys.argv[1:])
    figures = [figure for figure in FIGURES if figure.script in settings.only]
    turns: dict[tuple[str, str], list[float]] = {}
    try:
        wheels = {name: Wheel(name, wheel_of(what)) for name, what in (("old", settings.old), ("new", settings.new))}
        sources = {"old": source_of(settings.old), "new": source_of(settings.new)}
        for wheel in wheels.values():
            wheel.install()
        machine = (
            f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} processors, {platform.platform()}, Python"
            f" {platform.python_version()}; {settings.pairs} turns each; old {settings.old}, new {settings.new}."
        )
        say(machine)
        for number in range(1, settings.pairs + 1):
            for script in settings.only:
                for name in ("old", "new"):
                    found = turn(wheels[name].python, sources[name], script, quick=settings.quick)
                    for figure in figures:
                        if figure.script == script:
                            turns.setdefault((figure.title, name), []).append(measured(figure, found))
                            say(f"turn {number}, {name}: {figure.title}: {turns[figure.title, name][-1]:.2f}")
    except NotMeasured as problem:
        sys.exit(f"not measured: {problem}")
    table = [["", "old", "new", "new / old (range)", "must", ""]]
    for figure in figures:
        old, new = turns[figure.title, "old"], turns[figure.title, "new"]
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        ratio = statistics.median(ratios)
        table.append(
            [figure.title, f"{statistics.median(old):.2f}", f"{statistics.median(new):.2f}"]
            + [f"{ratio:.3f} ({min(ratios):.3f}–{max(ratios):.3f})", f"≤ {RATIO_MOST}"]
            + ["✓" if ratio <= RATIO_MOST else "✗"]
        )
    say("\n" + aligned(table))
    settings.output.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine, "turns": {" / ".join(key): values for key, values in turns.items()}}
    settings.output.write_text(json.dumps(results, indent=2) + "\n")
    settings.output.with_suffix(".md").write_text(f"{machine}\n\n{markdown(table)}\n")
    sys.exit(1 if any(row[-1] == "✗" for row in table) else 0)


if __name__ == "__main__":
    main()
