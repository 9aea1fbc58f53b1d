"""A small package with tests of its own: what they notice is killed, what they do not survives."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]

CODE = """\
import subprocess
import sys

least = 3


def is_enough(n: int) -> bool:
    return n >= least


def half_tested(n: int) -> int:
    if n > 10:
        return 1
    return 0


def nobody_calls(n: int) -> int:
    return n + 1


def countdown(n: int) -> int:
    while n > 0:
        n -= 1
    return n


def elsewhere() -> int:
    return 4


def asked() -> str:
    command = "import tiny.room.code as code; print(code.elsewhere())"
    return subprocess.run([sys.executable, "-c", command], capture_output=True, text=True).stdout
"""
VALUES = "class Values:\n    gap = 5\n"
TESTS = """\
import subprocess
from tiny.room import code, values


def test_enough():
    assert code.is_enough(3) and not code.is_enough(2)


def test_values():
    assert values.Values.gap == 5


def test_half():
    assert code.half_tested(50) == 1


def test_countdown():
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    open("SLEEPERS", "a").write(f"{sleeper.pid}\\n")
    sleeper.returncode = 0  # nobody waits for it
    assert code.countdown(2) == 0


def test_elsewhere():
    assert code.asked() == "4\\n"
"""
EXPECTED = {
    "code.py:4:8:int+1": "killed",
    "code.py:8:16:gte-gt": "killed",
    "code.py:12:7:if-true": "survived",
    "code.py:18:4:return-none": "not reached",
    "code.py:23:8:minus-plus": "timed out",
    "code.py:28:4:return-none": "killed",
    "values.py:2:10:int+1": "killed",
}


PROGRAM = """\
import json, sys, time
from pathlib import Path
from tests.mutants.__main__ import Campaign
from tests.mutants.operators import mutants_of
from tests.mutants.reach import Project
from tests.mutants.runner import Limits

names, minutes, lanes = json.loads(sys.argv[1]), float(sys.argv[2]), 1
project = Project(Path.cwd(), "tiny", rooms=("room",), simulator=())
sources = {f"room/{name}.py": (project.sources / "room" / f"{name}.py").read_text() for name in ("code", "values")}
mutants = [mutant for file, source in sources.items() for mutant in mutants_of(source, file)]
mutants = [mutant for mutant in mutants if mutant.name.removeprefix("room/") in names]
campaign = Campaign(project, lanes, limits=Limits(test_s=2, run_s=20))
campaign.prepare(mutants)
campaign.run(mutants, time.monotonic() + 60 * minutes)
verdicts = {one.mutant.name.removeprefix("room/"): one.result._asdict() for one in campaign.verdicts}
print(json.dumps({"verdicts": verdicts, "unseen": campaign.unseen}))
"""


def run(root: Path, names: list[str], minutes: float = 5) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(ROOT)])}
    command = [sys.executable, "-c", PROGRAM, json.dumps(names), str(minutes)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    for name, text in {
        "src/tiny/__init__.py": "",
        "src/tiny/room/__init__.py": "",
        "src/tiny/room/code.py": CODE,
        "src/tiny/room/values.py": VALUES,
        "tests/room/test_code.py": TESTS.replace("SLEEPERS", str(folder / "sleepers")),
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\nmarkers =\n    serial: s\n    long: l\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def verdicts(root: Path) -> dict[str, dict[str, Any]]:
    return run(root, list(EXPECTED))["verdicts"]


def test_each_mutant_is_judged_by_the_tests_that_reach_it(verdicts: dict[str, dict[str, Any]]) -> None:
    assert {name: verdict["state"] for name, verdict in verdicts.items()} == EXPECTED
    assert verdicts["code.py:8:16:gte-gt"]["by"] == "tests/room/test_code.py::test_enough"


def test_nothing_that_tests_started_is_left_and_no_source_is_changed(root: Path, verdicts: object) -> None:
    looked, *tried = [int(line) for line in (root / "sleepers").read_text().split()]
    psutil.Process(looked).kill()  # of the run that only looks who reaches what

    assert len(tried) >= 1
    assert [pid for pid in tried if psutil.pid_exists(pid) and psutil.Process(pid).name() == "sleep"] == []
    assert (root / "src" / "tiny" / "room" / "code.py").read_text() == CODE


def test_without_time_mutants_are_counted_and_nobody_looks_again_who_reaches_them(root: Path, verdicts: object) -> None:
    kept = root / "build" / "mutants" / "room" / "digest"
    before = kept.stat().st_mtime_ns

    late = run(root, ["code.py:8:16:gte-gt", "code.py:12:7:if-true"], minutes=-1)

    assert late == {"verdicts": {}, "unseen": 2}
    assert kept.stat().st_mtime_ns == before
