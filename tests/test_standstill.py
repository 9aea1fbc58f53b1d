"""The allowance for a machine that keeps processes from running: as much as was counted, and reported when needed."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.e2e.standstill import Standstill, Tally, waited_s


def test_a_promise_may_take_as_much_longer_as_its_processes_waited_for_a_processor_and_no_more() -> None:
    counted = {1: 5.0, 2: 0.0}
    tally = Tally()
    machine = Standstill([1, 2], tally=tally, waited=lambda pid: counted[pid])
    assert machine.allows(1.9, 2.0) and not machine.allows(2.1, 2.0)
    counted |= {1: 5.3, 2: 0.2}
    assert machine.allows(2.4, 2.0) and not machine.allows(2.6, 2.0)
    assert (tally.judged, tally.fired, round(tally.longest_s, 3)) == (4, 1, 0.4)
    assert tally.text() == "1 of 4 times were judged by when the machine let processes run, which needed up to 0.40 s"


def test_what_only_a_machine_that_stood_still_explains_is_counted() -> None:
    tally = Tally()
    machine = Standstill(tally=tally)
    machine.longest_s = 0.3
    assert machine.excuses(0.3) and not machine.excuses(0.4)
    assert (tally.judged, tally.fired) == (2, 1)


def test_a_process_has_waited_as_long_as_all_its_threads(tmp_path: Path) -> None:
    for thread, text in (("7", "100 1500000000 3\n"), ("8", "1 500000000 1\n"), ("9", "")):
        (tmp_path / "7" / "task" / thread).mkdir(parents=True)
        (tmp_path / "7" / "task" / thread / "schedstat").write_text(text)
    assert waited_s(7, tmp_path) == 2.0
    assert waited_s(8, tmp_path) == 0.0, "it has ended"


def test_what_processes_of_a_run_judged_is_told_by_the_one_that_began_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are begun by one that collects nothing, and so knows no hook of a folder below this one."""
    ended, began, lines = Tally(judged=3, fired=1, longest_s=0.5), Tally(), list[str]()
    there = SimpleNamespace(config=SimpleNamespace(workeroutput={}))
    monkeypatch.setattr(conftest, "TALLY", ended)
    conftest.pytest_sessionfinish(there)  # type: ignore[arg-type]

    monkeypatch.setattr(conftest, "TALLY", began)
    conftest.pytest_testnodedown(there.config)
    conftest.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))

    assert lines == [f"standstill: {ended.text()}"]
