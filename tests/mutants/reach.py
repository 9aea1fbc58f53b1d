"""Which tests execute a line: found by one run of them, kept while neither they nor the sources change."""

import ast
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import coverage
from coverage.numbits import num_in_numbits, numbits_to_nums

from tests.mutants.operators import Mutant
from tests.mutants.recording import FOLDER_VARIABLE, SETTINGS
from tests.mutants.sample import ROOMS

SIMULATOR: Final = (
    "tests/sim/test_ablation.py::test_the_same_seed_is_clean_with_every_safeguard",
    "tests/sim/test_leases.py::test_a_history_that_once_broke_an_invariant_is_clean",
    "tests/sim/histories.py",
)
"""Seeds that once caught something and some of members, one history per test."""
OWN_LIMIT_S: Final = 20.0
SIMULATOR_LIMIT_S: Final = 40.0
"""Tests are chosen up to so many seconds of the run that found them, the quickest first; without coverage, a third.
The simulator only computes, so its seconds are the processor's, whatever else the machine does."""
MOST_TESTS: Final = 400
PHASE: Final = re.compile(r" \((setup|call|teardown)\)$")


class Project(NamedTuple):
    """What is mutated, and where its tests are."""

    root: Path
    package: str
    rooms: Sequence[str] = ROOMS
    simulator: Sequence[str] = SIMULATOR

    @property
    def sources(self) -> Path:
        return self.root / "src" / self.package

    @property
    def build(self) -> Path:
        return self.root / "build" / "mutants"

    def module_of(self, file: str) -> str:
        return ".".join([self.package, *Path(file).with_suffix("").parts]).removesuffix(".__init__")


class Chosen(NamedTuple):
    tests: dict[str, float]
    """In the order in which they run, each with its usual seconds."""
    left_out: int
    """Tests that execute the line as well, beyond what a mutant may cost."""


class Reach:
    """The lines of the tests of one room, or of the simulator."""

    def __init__(self, project: Project, room: str) -> None:
        folder, is_simulator = project.build / room, room == "sim"
        self._project = project
        self._database = folder / "lines"
        self._limit_s = SIMULATOR_LIMIT_S if is_simulator else OWN_LIMIT_S
        told = [json.loads(path.read_text()) for path in sorted(folder.glob("times-*.json"))]
        self.times: dict[str, float] = {
            name: computed if is_simulator else took for one in told for name, (took, computed) in one["passed"].items()
        }
        self.failed: list[str] = sorted(name for one in told for name in one["left out"])

    def chosen(self, mutant: Mutant) -> Chosen:
        """Those of the mutant's own file and folder first."""
        folder, file = Path(mutant.file).parent, Path(mutant.file).stem
        own = (f"tests/{folder}/test_{file}", f"tests/{folder}/")
        reached = sorted(
            self._reaching(mutant), key=lambda test: (*(not test.startswith(place) for place in own), self.times[test])
        )
        tests: dict[str, float] = {}
        for test in reached:
            if len(tests) < MOST_TESTS and (not tests or sum(tests.values()) + self.times[test] <= self._limit_s):
                tests[test] = self.times[test]
        return Chosen(tests, len(reached) - len(tests))

    def _reaching(self, mutant: Mutant) -> set[str]:
        """What runs at import is reached by all tests that use the file; of a file of values, by all there are."""
        rows = self._rows(mutant.file)
        lines = range(mutant.line, mutant.last_line + 1)
        found = {context for context, bits in rows if any(num_in_numbits(line, bits) for line in lines)}
        if found == {""}:
            found = {context for context, _ in rows} - {""} or set(self.times)
        if not found:  # a line in the middle of a statement: the nearest one above that anything executes
            above = {line for _, bits in rows for line in numbits_to_nums(bits) if line < mutant.line}
            nearest = max(above, default=0)
            if _is_one_statement(self._project.sources / mutant.file, nearest, mutant.line):
                found = {context for context, bits in rows if num_in_numbits(nearest, bits)}
        return {test for test in (PHASE.sub("", context) for context in found) if test in self.times}

    def _rows(self, file: str) -> list[tuple[str, bytes]]:
        """(test, the lines of the file that it executes)."""
        query = (
            "select context.context, line_bits.numbits from line_bits join context on context.id = line_bits.context_id"
            " join file on file.id = line_bits.file_id where file.path = ?"
        )
        with closing(sqlite3.connect(self._database)) as database:
            return list(database.execute(query, [str(self._project.sources / file)]))


def _is_one_statement(path: Path, first: int, line: int) -> bool:
    """No statement begins between them."""
    begins = {node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)}
    return first > 0 and not any(number in begins for number in range(first + 1, line + 1))


def reach_of(project: Project, room: str, processes: int) -> Reach:
    """Of a room's tests; of the simulator when `room` is "sim"."""
    folder = project.build / room
    tests = list(project.simulator) if room == "sim" else [f"tests/{room}"]
    files = [project.root / test.partition("::")[0] for test in (f"tests/{room}", "tests/conftest.py", *tests)]
    state = digest(project.root, {project.sources, *(file for file in files if file.exists())})
    kept = folder / "digest"
    if not kept.is_file() or kept.read_text() != state:
        _record(project, folder, tests, processes)
        kept.write_text(state)
    return Reach(project, room)


def digest(root: Path, places: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for place in sorted(places):
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and path.suffix in {".py", ".sql", ".so"}:
                found.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _record(project: Project, folder: Path, tests: Sequence[str], processes: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = folder / "coverage.ini"
    sources = ", ".join(f"{project.package}.{room}" for room in project.rooms)
    settings.write_text(SETTINGS.format(folder=folder, sources=sources))
    environment = {**os.environ, FOLDER_VARIABLE: str(folder), "PYTHONHASHSEED": "0"}
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.recording", "-p", "no:schemathesis"]
    command += ["-n", str(processes)] if processes > 1 else []
    command += ["-m", "not serial and not long", "-p", "no:cacheprovider", "--timeout", "600", "--tb=line", *tests]
    with (folder / "log").open("w") as log:
        subprocess.run(command, cwd=project.root, env=environment, stdout=log, stderr=log, check=False)
    if not list(folder.glob("times-*.json")):
        raise SystemExit(f"the tests of {folder.name} did not run:\n{(folder / 'log').read_text()[-3000:]}")
    found = coverage.Coverage(config_file=str(settings))
    found.combine()
    found.save()
