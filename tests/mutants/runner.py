"""Runs tests against mutants: each in a process forked from one that has imported what the tests need of others.

A keeper process stands above each: what its tests leave behind becomes the keeper's child, and ends with it.
"""

import ast
import contextlib
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import psutil
import pytest
from hypothesis import settings

from tests.mutants.operators import Mutant
from tests.mutants.reach import Chosen, Project

HOOK: Final = Path(__file__).parent / "site"
KILLED, TIMED_OUT, SURVIVED, NOT_REACHED = "killed", "timed out", "survived", "not reached"
MOST_MEMORY_BYTES: Final = 3 << 30
LOOK_S: Final = 0.5
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
OPTIONS: Final = [
    *("-q", "-x", "-s", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
    *(
        word
        for name in ("cacheprovider", "xdist", "cov", "pytest_cov", "schemathesis")
        for word in ("-p", f"no:{name}")
    ),
]


class Limits(NamedTuple):
    """What takes so many times as long as usual, and this beside it, does not end."""

    times: int = 5
    test_s: float = 10.0
    run_s: float = 40.0


USUAL: Final = Limits()


class Trial(NamedTuple):
    mutant: Mutant
    text: str
    """The whole source as it is tried."""
    chosen: Chosen
    limits: Limits


class Result(NamedTuple):
    state: str
    by: str
    """The test that failed, or what else told."""
    seconds: float
    tests: int
    """How many ran."""


class Judge:
    """A plugin for pytest: the chosen tests in their order, each with an end; what the first failure was."""

    def __init__(self, tests: dict[str, float], limits: Limits) -> None:
        self._order = {name: number for number, name in enumerate(tests)}
        self._times = tests
        self._limits = limits
        self.by = ""
        self.is_late = False
        self.ran = 0

    def pytest_sessionstart(self) -> None:
        # The same examples for every mutant, and none of them kept.
        settings.register_profile("mutants", parent=settings(), derandomize=True, database=None)
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._order), key=lambda i: self._order[i.nodeid])
        for item in items:
            limit_s = self._limits.test_s + self._limits.times * self._times[item.nodeid]
            item.add_marker(pytest.mark.timeout(limit_s), append=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.by = self.by or f"import of {report.nodeid}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.by:
            self.by = report.nodeid
            self.is_late = "Timeout (>" in report.longreprtext


def warm_up(project: Project) -> None:
    """Import what sources and simulator import of others, and nothing of their own: a mutant is in none of it."""
    names = {"_hypothesis_pytestplugin", "hypothesis.stateful", "pytest_asyncio.plugin", "pytest_timeout"}
    for path in [*project.sources.rglob("*.py"), *(project.root / "tests" / "sim").rglob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
    for name in sorted(names):
        if name.partition(".")[0] not in {project.package, "tests", "__future__", ""}:
            with contextlib.suppress(ImportError):  # not installed here: whoever needs it says so
                importlib.import_module(name)


def results(project: Project, trials: Iterable[Trial], lanes: int) -> Iterator[tuple[Trial, Result]]:
    """As they end. `trials` is asked for the next one only when there is a free lane."""
    running: list[tuple[int, Trial, int]] = []

    def one_ended() -> tuple[Trial, Result]:
        ended = select.select([answer for _, _, answer in running], [], [])[0][0]
        pid, trial, _ = running.pop(next(n for n, (_, _, answer) in enumerate(running) if answer == ended))
        with os.fdopen(ended) as told:
            said = told.read()
        os.waitpid(pid, 0)
        if not said:
            raise RuntimeError(f"nobody knows what became of {trial.mutant.name}")
        return trial, Result(**json.loads(said))

    for trial in trials:
        if len(running) == lanes:
            yield one_ended()
        ours, theirs = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _keep(project, trial, theirs)
        os.close(theirs)
        running.append((pid, trial, ours))
    while running:
        yield one_ended()


def _keep(project: Project, trial: Trial, answer: int) -> NoReturn:
    """The keeper: starts the tests, waits for their end or for too long, and ends all that is left of them."""
    folder = Path(tempfile.mkdtemp(prefix="talka-mutant-"))
    status = 1
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        folder.chmod(0o755)  # servers of tests run as somebody else
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.close(answer)
            _test(project, trial, folder)
        limit_s = trial.limits.run_s + trial.limits.times * sum(trial.chosen.tests.values())
        is_over = _ended(pid, began + limit_s)
        _end_all()
        said: dict[str, Any] = {"state": TIMED_OUT, "by": "the whole run", "tests": 0}
        if is_over:
            found = folder / "result.json"
            said = {"state": KILLED, "by": "the process of the tests ended", "tests": 0}
            said = json.loads(found.read_text()) if found.is_file() else said
        log = project.build / "logs" / f"{trial.mutant.name.replace('/', '.')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "log", log)
        os.write(answer, json.dumps({**said, "seconds": time.monotonic() - began}).encode())
        status = 0
    except BaseException:  # noqa: BLE001 - a forked process never returns into what its parent was doing
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            _end_all()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)


def _ended(pid: int, limit: float) -> bool:
    """It did by itself, before the limit and without all of the memory."""
    process, handle = psutil.Process(pid), os.pidfd_open(pid)
    try:
        while time.monotonic() < limit:
            if select.select([handle], [], [], LOOK_S)[0]:
                return True
            if process.memory_info().rss > MOST_MEMORY_BYTES:
                return False
        return False
    finally:
        os.close(handle)


def _end_all() -> None:
    """Every process below this one; those whose parents are gone are its children by now."""
    while found := psutil.Process().children(recursive=True):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _test(project: Project, trial: Trial, folder: Path) -> NoReturn:
    """In a process of its own."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(project.root)
        text = folder / "mutant.py"
        text.write_text(trial.text)
        file = trial.mutant.file
        os.environ["TALKA_MUTANT"] = f"{project.module_of(file)}={project.sources / file}={text}"
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        importlib.import_module("tests.mutants.site.sitecustomize")
        judge = Judge(trial.chosen.tests, trial.limits)
        files = sorted({test.partition("::")[0] for test in trial.chosen.tests})
        status = pytest.main([*OPTIONS, f"--basetemp={folder / 'pytest'}", *files], plugins=[judge])
        state = TIMED_OUT if judge.is_late else SURVIVED if status == 0 else KILLED
        by = judge.by or ("" if status == 0 else f"pytest: {status!s}")
        found = folder / "result.partial"
        found.write_text(json.dumps({"state": state, "by": by, "tests": judge.ran}))
        found.rename(folder / "result.json")
    except BaseException:  # noqa: BLE001 - as above
        traceback.print_exc()
    finally:
        os._exit(0)
