"""One integer is one history, in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
