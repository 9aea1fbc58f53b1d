"""The allowance for a machine that keeps processes from running: as much as was counted, and reported when needed."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.e2e.standstill import Standstill, Tally, waits_of


class Machine:
    """Looked at twice a second; what is told of it are the seconds for which threads waited since the last look."""

    def __init__(self, shared: list[int], either: list[int]) -> None:
        self.tally = Tally()
        self._waited: dict[int, dict[int, float]] = {pid: {pid: 5.0} for pid in (*shared, *either)}
        self._now_s = 100.0
        self.seen = Standstill(
            shared, either, tally=self.tally, waits=lambda pid: dict(self._waited[pid]), begun_s=self._now_s
        )

    def passes(self, waits: dict[int, float], *, thread: int | None = None) -> None:
        for pid, wait_s in waits.items():
            threads = self._waited[pid]
            threads[thread or pid] = threads.get(thread or pid, 0.0) + wait_s
        self._now_s += 0.5
        self.seen.count(self._now_s)

    def slack_s(self, taken_s: float, begun_s: float = 0.0) -> float:
        return round(self.seen.slack_s(taken_s, 100.0 + begun_s), 3)


def test_a_promise_may_take_as_much_longer_as_its_processes_waited_for_a_processor_and_no_more() -> None:
    machine = Machine([1, 2], [])
    for waits in ({}, {1: 0.3}, {}, {2: 0.1}, {}):
        machine.passes(waits)
    allows = machine.seen.allows
    assert allows(1.9, 2.0) and allows(2.35, 2.0) and not allows(2.45, 2.0)
    tally = machine.tally
    assert (tally.judged, tally.fired, round(tally.longest_s, 3)) == (3, 1, 0.35)
    assert tally.text() == (
        "1 of 3 times were judged by when the machine let processes run, which needed up to 0.35 s; asked again 0 times"
    )


def test_a_wait_before_the_blow_or_after_the_recovery_excuses_nothing() -> None:
    machine = Machine([1], [])
    for waits in ({1: 0.5}, {1: 0.5}, {}, {1: 0.2}, {}, {1: 0.5}):
        machine.passes(waits)
    assert machine.slack_s(3.0) == 1.7
    assert machine.slack_s(1.5, begun_s=1.0) == 0.2
    assert not machine.seen.allows(1.5, 1.2, 101.0)


def test_waits_in_parallel_count_once() -> None:
    machine = Machine([1, 2, 3], [])
    for _ in range(4):
        machine.passes({1: 0.5, 2: 0.5, 3: 0.5})
    assert machine.slack_s(2.0) == 2.0
    assert machine.slack_s(1.0, begun_s=0.5) == 1.0


def test_waits_one_after_the_other_add_up() -> None:
    machine = Machine([1, 2], [3])
    for pid in (1, 2, 3):
        machine.passes({pid: 0.4})
    assert machine.slack_s(1.5) == 1.2


def test_a_wait_longer_than_between_two_looks_counts_in_full_and_once() -> None:
    machine = Machine([1, 2], [])
    for waits in ({}, {}, {2: 0.3}, {1: 1.5}):
        machine.passes(waits)
    assert machine.slack_s(2.0) == 1.5


def test_of_workers_beside_each_other_the_one_that_waited_most_counts() -> None:
    machine = Machine([1], [2, 3])
    machine.passes({1: 0.1, 2: 0.1})
    machine.passes({3: 0.3})
    machine.passes({2: 0.1})
    assert machine.slack_s(1.5) == 0.4


def test_a_core_that_is_begun_after_the_first_look_counts_from_its_beginning() -> None:
    machine = Machine([], [1])
    machine.passes({1: 0.2}, thread=9)
    assert machine.slack_s(0.5) == 0.2


def test_a_child_that_is_not_seen_once_is_not_taken_for_a_new_one() -> None:
    looks = iter(({1: 0.0, 9: 5.0}, {1: 0.0}, {1: 0.0, 9: 5.2}))
    seen = Standstill([], [1], tally=Tally(), waits=lambda pid: next(looks), begun_s=0.0)
    seen.count(1.0)
    seen.count(2.0)
    assert round(seen.slack_s(2.0), 3) == 0.2


def test_what_only_explains_who_did_not_run_just_before_is_counted() -> None:
    machine = Machine([1], [2])
    for waits in ({1: 0.5}, {}, {1: 0.1, 2: 0.2}, {}):
        machine.passes(waits)
    excuses, tally = machine.seen.excuses, machine.tally
    assert excuses(0.25, 100.75, 101.5) and not excuses(0.25, 100.5, 101.0) and not excuses(0.35, 100.5, 102.0)
    assert (tally.judged, tally.fired, round(tally.longest_s, 3)) == (3, 1, 0.3)


def test_threads_of_a_process_and_of_its_children_are_counted_and_its_own_alone_of_this_one(tmp_path: Path) -> None:
    def thread(pid: int, number: int, waited: str, children: str = "") -> None:
        folder = tmp_path / str(pid) / "task" / str(number)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(waited)
        (folder / "children").write_text(children)

    thread(7, 7, "100 1500000000 3\n", "11 12 ")
    thread(7, 8, "1 500000000 1\n")
    thread(7, 9, "")
    thread(12, 12, "1 250000000 1\n")
    thread(os.getpid(), 13, "1 750000000 1\n", "7 ")
    assert waits_of(7, tmp_path) == {7: 1.5, 8: 0.5, 12: 0.25}
    assert waits_of(os.getpid(), tmp_path) == {13: 0.75}
    assert waits_of(8, tmp_path) == {}, "it has ended"


def test_what_processes_of_a_run_judged_is_told_by_the_one_that_began_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are begun by one that collects nothing, and so knows no hook of a folder below this one."""
    ended, began, lines = Tally(judged=3, fired=1, longest_s=0.5), Tally(), list[str]()
    for status in (503, 429, 503):
        ended.add_asked(status)
    there = SimpleNamespace(config=SimpleNamespace(workeroutput={}))
    monkeypatch.setattr(conftest, "TALLY", ended)
    conftest.pytest_sessionfinish(there)  # type: ignore[arg-type]

    monkeypatch.setattr(conftest, "TALLY", began)
    conftest.pytest_testnodedown(there.config)
    conftest.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))

    assert lines == [f"standstill: {ended.text()}"]
    assert ended.text().endswith("; asked again 3 times: 1 × 429, 2 × 503")


def test_a_run_in_which_nothing_was_allowed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    nobody, kept = Tally(), Tally(judged=2)
    for tally in (nobody, kept):
        monkeypatch.setattr(conftest, "TALLY", tally)
        conftest.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))

    assert lines == [
        "standstill: 0 of 2 times were judged by when the machine let processes run; asked again 0 times"
    ], "and one that judged nothing is silent"
