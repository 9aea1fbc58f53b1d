"""A plugin for pytest: which lines each test executes, and how long it takes. One record per process of xdist.

Processes that a test starts are measured as well (`patch = subprocess`), under the test that started them, unless they
are killed before they can write.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import coverage
import pytest

FOLDER_VARIABLE: Final = "TALKA_MUTANTS_RECORD"
SETTINGS: Final = """[run]
data_file = {folder}/lines
parallel = true
source = {sources}
context = ${{PYTEST_CURRENT_TEST-}}
patch = subprocess, _exit
disable_warnings = no-data-collected, module-not-measured, module-not-imported
"""


class Recording:
    def __init__(self, folder: Path) -> None:
        self.coverage = coverage.Coverage(config_file=str(folder / "coverage.ini"))
        self.coverage.start()
        self.times: dict[str, tuple[float, float]] = {}
        """Seconds of the clock, and of the processor."""
        self.failed: set[str] = set()
        self._file = folder / f"times-{os.getpid()}.json"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        began, computed = time.perf_counter(), time.process_time()
        try:
            return (yield)
        finally:
            self.times[item.nodeid] = (time.perf_counter() - began, time.process_time() - computed)
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":  # what is skipped here notices nothing
            self.failed.add(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        passed = {name: seconds for name, seconds in self.times.items() if name not in self.failed}
        self._file.write_text(json.dumps({"passed": passed, "left out": sorted(self.failed)}))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Before anything of ours is imported: what runs at import belongs to no test."""
    if "PYTEST_XDIST_WORKER" in os.environ or "-n" not in args:  # whoever hands tests out to others runs none
        early_config.pluginmanager.register(Recording(Path(os.environ[FOLDER_VARIABLE])), "recording")
