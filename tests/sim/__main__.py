"""Run the simulator: replay one seed, or run seeds for a while, or take the safeguards away one by one.

python -m tests.sim replay SEED [--kind elections|jobs|leases|overload|queues|dags|membership|searching|skew|zones]
                            [--quiet]
python -m tests.sim long [--seconds 600] [--from-seed N]
python -m tests.sim ablation [--write]
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple

from talka.testing.world import World
from talka.units import SECOND
from tests.sim import (
    ablation,
    dags,
    elections,
    jobs,
    leases,
    membership,
    membership_figures,
    overload,
    queues,
    searching,
    skew,
    zones,
)

KINDS = {
    "dags": dags,
    "elections": elections,
    "jobs": jobs,
    "leases": leases,
    "membership": membership,
    "overload": overload,
    "searching": searching,
    "queues": queues,
    "skew": skew,
    "zones": zones,
}


def replay(kind: str, seed: int, is_quiet: bool) -> int:
    for line in KINDS[kind].describe(seed):
        print(line)
    world: World = KINDS[kind].run(seed, verbose=None if is_quiet else print)
    for violation in world.violations:
        print(f"VIOLATED {violation.invariant} at {violation.time / SECOND:.3f} s: {violation.text}")
    for line in faults_text(world.struck, world.met_nothing, world.drawn_again):
        print(line)
    print(f"trace hash: {world.trace_hash()}")
    return 1 if world.violations else 0


def faults_text(struck: Mapping[str, int], met_nothing: Mapping[str, int], drawn_again: Mapping[str, int]) -> list[str]:
    """How many had an effect, how many had none, and of these in the place of how many another was drawn."""
    had = ", ".join(f"{name} {count:,}" for name, count in sorted(struck.items()))
    none = ", ".join(f"{name} {count:,} ({drawn_again.get(name, 0):,})" for name, count in sorted(met_nothing.items()))
    number, again = sum(met_nothing.values()), sum(drawn_again.values())
    return [
        f"{sum(struck.values()):,} faults struck" + (f": {had}" if had else ""),
        f"{number:,} met nothing, {again:,} of them drawn again" + (f": {none}" if none else ""),
    ]


class Ran(NamedTuple):
    kind: str
    seed: int
    node_seconds: int
    """Simulated."""
    told: list[str]
    """What was violated."""
    struck: dict[str, int]
    met_nothing: dict[str, int]
    drawn_again: dict[str, int]


def one(kind: str, seed: int) -> Ran:
    world: World = KINDS[kind].run(seed)
    told = [f"{violation.invariant}: {violation.text}" for violation in world.violations]
    return Ran(
        kind, seed, len(world.hosts) * world.now // SECOND, told, world.struck, world.met_nothing, world.drawn_again
    )


def commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def work(first: int) -> Iterator[tuple[str, int]]:
    """Elections mostly: their rare holes need thousands of seeds."""
    seed = first
    while True:
        is_of_work = "jobs" if seed % 4 == 1 else "dags" if seed % 4 == 3 else "elections"
        yield ("membership" if seed % 20 == 0 else "skew" if seed % 20 == 10 else is_of_work), seed
        seed += 1


def long(seconds: float, first: int) -> int:
    print(f"seeds from {first}, for {seconds:.0f} s, at commit {commit()}")
    started = time.monotonic()
    counts = dict.fromkeys(KINDS, 0)
    node_seconds = 0
    struck: Counter[str] = Counter()
    met_nothing: Counter[str] = Counter()
    drawn_again: Counter[str] = Counter()
    failures = 0
    todo = work(first)
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores) as pool:
        running: set[Future[Ran]] = set()
        thousand = pool.submit(membership_figures.thousand)
        while running or time.monotonic() - started < seconds:
            while len(running) < 2 * cores and time.monotonic() - started < seconds:
                running.add(pool.submit(one, *next(todo)))
            done, running = wait(running, timeout=60, return_when=FIRST_COMPLETED)
            for future in done:
                ran = future.result()
                counts[ran.kind] += 1
                node_seconds += ran.node_seconds
                struck.update(ran.struck)
                met_nothing.update(ran.met_nothing)
                drawn_again.update(ran.drawn_again)
                for text in ran.told:
                    failures += 1
                    print(f"{ran.kind} seed {ran.seed}: {text}\n  make sim SEED={ran.seed} KIND={ran.kind}")
        for line in thousand.result():
            print(line)
    elapsed = time.monotonic() - started
    print(", ".join(f"{count} seeds of {kind}" for kind, count in counts.items()) + f" in {elapsed:.0f} s")
    print(f"{node_seconds} simulated node-seconds, {node_seconds / elapsed:.0f} per second on {cores} cores")
    for line in faults_text(struck, met_nothing, drawn_again):
        print(line)
    print("clean" if not failures else f"{failures} violations")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.sim")
    commands = parser.add_subparsers(dest="command", required=True)
    one_seed = commands.add_parser("replay")
    one_seed.add_argument("seed", type=int)
    one_seed.add_argument("--kind", choices=sorted(KINDS), default="elections")
    one_seed.add_argument("--quiet", action="store_true")
    for_long = commands.add_parser("long")
    for_long.add_argument("--seconds", type=float, default=600)
    for_long.add_argument("--from-seed", type=int, default=None)
    table = commands.add_parser("ablation")
    table.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "replay":
        return replay(arguments.kind, arguments.seed, arguments.quiet)
    if arguments.command == "long":
        first = arguments.from_seed
        return long(arguments.seconds, first if first is not None else time.time_ns() % 10**9 * 1000)
    return ablation.main(arguments.write)


if __name__ == "__main__":
    sys.exit(main())
