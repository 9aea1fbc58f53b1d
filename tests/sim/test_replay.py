"""One integer is one history, in every process."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from talka.units import SECOND
from tests.sim import dags, jobs
from tests.sim.__main__ import faults_text

ROOT = Path(__file__).parent.parent.parent


def last_line(kind: str, seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.sim", "replay", str(seed), "--kind", kind]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("kind", ["dags", "elections", "jobs", "membership"])
def test_a_seed_gives_the_same_trace_in_every_process_and_under_every_hash_seed(kind: str) -> None:
    lines = {last_line(kind, 7, hash_seed) for hash_seed in ("0", "1", "4242")}

    assert len(lines) == 1
    assert next(iter(lines)).startswith("trace hash: ")
    assert last_line(kind, 8, "0") not in lines


def test_faults_are_told_with_how_many_met_nothing_and_in_the_place_of_how_many_another_was_drawn() -> None:
    assert faults_text({"crash": 1200, "drift": 3}, {"stall": 2, "crash": 4}, {"crash": 3}) == [
        "1,203 faults struck: crash 1,200, drift 3",
        "6 met nothing, 3 of them drawn again: crash 4 (3), stall 2 (0)",
    ]
    assert faults_text({}, {}, {}) == ["0 faults struck", "0 met nothing, 0 of them drawn again"]


@pytest.mark.parametrize("kind", [dags, jobs])
def test_the_death_of_a_core_that_met_none_is_drawn_again_soon(
    kind: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = next(plan for plan in map(kind.plan_of, range(100)) if kind.CORE_DIES in plan.classes)
    story = kind.Story(plan, None)
    at: list[int] = []

    def strike(rng: Random) -> bool:
        at.append(story.world.now)
        return not 2 <= len(at) <= 5

    monkeypatch.setattr(story.cores, "strike", strike)
    world = story.run()

    assert len(at) > 5 and at[5] - at[1] < 3 * SECOND
    assert world.met_nothing[kind.CORE_DIES] == world.drawn_again[kind.CORE_DIES] == 4
