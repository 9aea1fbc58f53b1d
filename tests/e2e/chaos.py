"""Chaos on a real cluster: jobs one after the other, and in each of them somebody is killed, stopped or cut off.

python -m tests.e2e.chaos [--minutes 25] [--seed N] [--only ROLE[:FAULT]] [--rounds N] [--keep]

Instant, order and victim are drawn by the seed. One line for each round, a table in the end, and exit code 1 when a
promise was broken; what nodes said in such a round is kept in a folder.
"""

import argparse
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.chaos_cluster import ChaosCluster
from tests.e2e.chaos_hostile import table_of
from tests.e2e.chaos_rounds import CLOCKS_S, KINDS, MEDIAN_LIMITS_S, Outcome, Round, drawn
from tests.e2e.chaos_store import StoreRound
from tests.e2e.moved_clock import MovedClock
from tests.e2e.networks import Namespaces
from tests.e2e.standstill import TALLY

ROUND_S = 40.0
"""No round is begun with less time left."""
LEAST_ROUNDS, WHOLE_MINUTES = 8, 20.0
"""So many of each role, in a run of so many minutes that chooses none."""
LEAST_OF_ONE_KIND = 3
"""Of a role that is struck in one way only."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def schedule(seed: int, kinds: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """All kinds, again and again, each time in another order."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(kinds, len(kinds))


def table(outcomes: list[Outcome]) -> str:
    rows = [("ROLE", "FAULT", "ROUNDS", "OUTCOMES", "RECOVERY MEDIAN", "WORST", "BROKEN")]
    for kind in KINDS:
        of_kind = [outcome for outcome in outcomes if outcome.draw.kind == kind]
        if not of_kind:
            continue
        states = sorted({outcome.status for outcome in of_kind})
        told = ", ".join(f"{sum(o.status == state for o in of_kind)} {state}" for state in states)
        times = [outcome.recovery_s for outcome in of_kind if outcome.recovery_s is not None]
        median, worst = (f"{statistics.median(times):.2f} s", f"{max(times):.2f} s") if times else ("", "")
        broken = sum(bool(outcome.broken) for outcome in of_kind)
        rows.append((*kind, str(len(of_kind)), told, median, worst, str(broken) if broken else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def broken_medians(outcomes: list[Outcome]) -> list[str]:
    told = []
    for kind, limit_s in MEDIAN_LIMITS_S.items():
        times = [o.recovery_s for o in outcomes if o.draw.kind == kind and o.recovery_s is not None]
        if times and statistics.median(times) > limit_s:
            told.append(f"{' '.join(kind)}: median {statistics.median(times):.2f} s, and {limit_s:g} s are promised")
    return told


def too_few(outcomes: list[Outcome]) -> list[str]:
    roles = {role: sum(outcome.draw.role == role for outcome in outcomes) for role, _ in KINDS}
    ways = {role: sum(other == role for other, _ in KINDS) for role in roles}
    return [
        f"only {number} rounds with {role}: give more --minutes"
        for role, number in roles.items()
        if number < (LEAST_ROUNDS if ways[role] > 1 else LEAST_OF_ONE_KIND)
    ]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.chaos", description="Chaos on a real cluster.")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], metavar="ROLE[:FAULT]")
    parser.add_argument("--rounds", type=int, default=0, help="no more than so many")
    parser.add_argument("--keep", action="store_true", help="keep the files, also when no promise was broken")
    asked = parser.parse_args(words)
    kinds = [kind for kind in KINDS if not asked.only or kind[0] in asked.only or ":".join(kind) in asked.only]
    problem = Namespaces.why_not()
    if problem:
        kinds = [kind for kind in kinds if kind[1] != "cut"]
        say(f"nothing is cut off here: {problem}")
    if reason := MovedClock.why_not():
        kinds = [kind for kind in kinds if kind[1] not in CLOCKS_S]
        say(f"no clock is moved here: {reason}")
    until = time.monotonic() + asked.minutes * 60
    folder = Path(tempfile.mkdtemp(prefix="talka-chaos-"))
    say(f"seed {asked.seed}, {asked.minutes:g} minutes, files in {folder}")
    outcomes: list[Outcome] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    cluster = ChaosCluster(folder, None if problem else Namespaces())
    try:
        cluster.open()
        for number, kind in enumerate(schedule(asked.seed, kinds), 1):
            if time.monotonic() > until - ROUND_S or (asked.rounds and number > asked.rounds):
                break
            draw = drawn(number, asked.seed, kind)
            one = StoreRound(folder, draw) if draw.role == "store" else Round(cluster, draw)
            outcomes.append(one.run())
            say(outcomes[-1].line())
    finally:
        cluster.close()
    say(f"\n{table(outcomes)}\n")
    say(f"standstill: {TALLY.text()}")
    assaults = [outcome.assault for outcome in outcomes if outcome.assault is not None]
    if assaults:
        say(f"what a hostile member with a worker's certificate said:\n{table_of(assaults)}\n")
    broken = [f"round {o.draw.number}: {text}" for o in outcomes for text in o.broken] + broken_medians(outcomes)
    if asked.minutes >= WHOLE_MINUTES and not asked.only and not asked.rounds:
        broken += too_few(outcomes)
    for text in broken:
        say(f"BROKEN {text}")
    if broken or asked.keep:
        say(f"everything of this run is in {folder}")
    else:
        shutil.rmtree(folder)
    if not broken:
        say(f"{len(outcomes)} rounds, and every promise was kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
