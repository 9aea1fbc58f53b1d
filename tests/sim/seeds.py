"""Which histories are run: those that are stored in every test run, and fresh ones in the long one.

Stored is every seed that ever caught something: the seeds of `ablation.ROWS`, each of which catches a removed safeguard
and is clean with it, and those of `ONCE_BROKEN`, which showed a fault of ours. Fresh ones are drawn from the commit: a
commit has the same ones wherever it is tested, and the next commit has others.
"""

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import pytest
from _pytest.mark import ParameterSet

from talka.version import VERSION

ROOT: Final = Path(__file__).parents[2]
SPREAD: Final = 100_000_000


class Stored(msgspec.Struct, frozen=True):
    """A history that broke an invariant before a fault was mended."""

    kind: str
    """A module of this folder, whose `run(seed)` is its history; `hostile` for jobs with a hostile member, `blocked`
    for jobs with cores that are blocked, `fans` for dag jobs with tasks that are fanned out."""
    seed: int
    name: str


ONCE_BROKEN: Final = (
    Stored("leases", 15, "managers that were told different leases gave one task to two workers"),
    Stored("leases", 55, "a worker declines a task and runs another one of the job"),
    Stored("leases", 76, "workers fall silent a lease of a second apart"),
    Stored("jobs", 19, "a value that is handed on comes from the lowest shard although its worker was lost"),
    Stored("hostile", 50030852038, "three of seven workers are given up while a hostile one says that it leaves"),
    Stored("elections", 50030852613, "no host is up whenever it is the turn of a pause"),
    Stored("elections", 486, "whoever starts with a disk that was rolled back seems to have a vote in the calm"),
    Stored("elections", 58169190466, "links flap between those that do not speak with each other"),
    Stored("elections", 58169190813, "leadership is handed to a voter that loses it again and again"),
    Stored("jobs", 77685, "a core goes on while its worker stands still, and what it says is heard in its order"),
    Stored("jobs", 58169190015, "a manager leads a job again after another, and nobody stored what it had counted"),
    Stored("fans", 8835045075, "a clock is wrong by a month when a task begins its delay that is fanned out later"),
    Stored("blocked", 29073965091, "no core works before the calm, of those that are to be blocked"),
    Stored("late", 11, "an ask is heard again after the warning, and answered as it was before"),
    Stored("blocked", 58169190068, "a core is blocked that could not say that it turns, as its host stood still"),
)


@cache
def _first_fresh() -> int:
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    drawn_from = found.stdout.strip() or VERSION
    return int.from_bytes(hashlib.sha256(drawn_from.encode()).digest()[:4]) % SPREAD * 1000


def fresh(number: int, at_once: int) -> pytest.MarkDecorator:
    """Parametrizes a test of `make test-all` with `seeds`: so many of them, in parts."""
    first = _first_fresh()
    parts = [range(first + part, first + min(part + at_once, number)) for part in range(0, number, at_once)]

    def decorate(test: object) -> object:
        marked = pytest.mark.parametrize("seeds", parts, ids=[f"{part.start}-{part.stop - 1}" for part in parts])(test)
        return pytest.mark.long(marked)

    return decorate  # type: ignore[return-value]


def stored(kind: str) -> list[ParameterSet]:
    return [pytest.param(one.seed, id=one.name) for one in ONCE_BROKEN if one.kind == kind]


def first_of(seeds: range, number: int = 1) -> list[ParameterSet]:
    """So many of them in every test run, and the others in the long one."""
    return [
        pytest.param(seed, marks=() if position < number else pytest.mark.long) for position, seed in enumerate(seeds)
    ]
