"""What `make bench-tasks` concludes from what it measured, and what it says where something cannot be measured."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import task_rows
import tasks
from job_progress import NotMeasured
from task_peers import PEERS, Peers
from task_rows import Part, chain_part, frames_part
from tasks import Bulk, Found, Ours, Row, Table, settings_of, word_of


def rows_of(*parts: Part) -> list[Row]:
    table = Table()
    task_rows.judge(table, [*parts])
    return table.rows


# What must be and what is aimed at


@pytest.mark.parametrize(
    ("ours_s", "theirs_s", "word"),
    [([0.45] * 3, [0.9] * 3, "held"), ([0.34] * 3, [0.9] * 3, "aim"), ([0.6] * 3, [0.9] * 3, "BROKE")],
)
def test_a_chain_must_take_so_much_less_than_the_other_and_aims_at_seconds(
    ours_s: list[float], theirs_s: list[float], word: str
) -> None:
    (row,) = rows_of(chain_part(ours_s, theirs_s))
    assert (row.must, row.aim, word_of(row)) == ("at most 0.6 x", "0.35 s", word)


def test_a_chain_without_another_checkout_is_told_and_judged_by_nothing() -> None:
    (row,) = rows_of(chain_part([0.4, 0.5, 0.45], []))
    assert row.measured == "0.45 s; the aim is 0.35 s" and word_of(row) == ""


def test_rounds_are_held_against_each_other_one_by_one() -> None:
    """What the machine did in one round happened to both."""
    part = frames_part("BullMQ", [900, 90, 9], [1000, 100, 10])
    assert part.ratio() == pytest.approx(0.9) and part.holds(0.8) and not part.is_aim()


@pytest.mark.parametrize(("worst_ms", "word"), [(999, "aim"), (1001, "BROKE")])
def test_one_answer_that_was_waited_for_too_long_breaks_its_row_however_quick_the_others_were(
    worst_ms: float, word: str
) -> None:
    part = Part("submit", 150, 300, [400] * 3, unit="jobs/s", worst_ms=worst_ms, worst_must_ms=1000)
    (row,) = rows_of(part)
    assert (row.must, word_of(row)) == ("at least 150 jobs/s, no wait above 1 s", word)


def alone(starts_ms: float) -> Ours:
    bulk = Bulk(1, 1, {"client": 1})
    return Ours(bulk=bulk, plain=bulk, frames=bulk, dag_s=[0.1], dag_inside_s=[0.1], starts_ms=[starts_ms] * 100)


@pytest.mark.parametrize(("full_ms", "word"), [(1.01, "BROKE"), (1.0, "held"), (0.6, "aim")])
def test_both_rows_of_an_idle_start_must_hold_the_same(full_ms: float, word: str) -> None:
    table = Table()
    part = Part("idle submit to start, p50, FULL", 1.0, 0.6, [full_ms], unit="ms", is_least=False)
    found = Found(full=[alone(full_ms)], normal=[alone(0.5)], syncs_ms=[1], is_alone=True, rows=[part])
    tasks.judge(table, found, {})
    assert [word_of(row) for row in table.rows if row.name.startswith("idle submit to start")] == [word] * 2


# What cannot be measured


class Bench(SimpleNamespace):
    """Of `tasks`, what frames are measured with."""

    async def frames(self, client: Any, up: Any, number: int) -> Bulk:
        return Bulk(1000, 1000, {})


class Missing(SimpleNamespace):
    """Peers, of which one was found or none."""

    def title(self, peer: Any) -> str:
        return str(peer.name)

    def turn(self, peer: Any, number: int, starts: int) -> Any:
        raise NotMeasured("redis-server did not start")


@pytest.mark.parametrize(
    ("peers", "why"),
    [
        (Missing(found=[], missing={"BullMQ": "npm failed"}), "BullMQ is not there: npm failed"),
        (Missing(found=[PEERS[-1]], missing={}), "redis-server did not start"),
        (None, "BullMQ is not there: peers were left out"),
    ],
)
def test_frames_without_their_peer_break_their_row_and_end_nothing(peers: Any, why: str) -> None:
    settings = SimpleNamespace(rounds=2, frames=10)
    part = asyncio.run(task_rows.frames(None, None, Bench(), peers, settings))  # type: ignore[arg-type]
    row, other = rows_of(part, chain_part([0.3], [0.9]))
    assert (row.measured, word_of(row), word_of(other)) == (why, "BROKE", "aim")


class Nodeless(Peers):
    def _node(self) -> Path:
        raise NotMeasured("there is no node for this machine")


def test_a_machine_that_there_is_no_node_for_leaves_that_peer_out(tmp_path: Path) -> None:
    assert Nodeless(tmp_path)._npm(PEERS[-1]) == "there is no node for this machine"


def test_the_python_of_another_checkout_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert settings_of(["--against", "./python"]).against == str(tmp_path / "python")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--parts", "chain", "--write"], "--write rewrites the whole table: leave out --parts"),
        (["--against", "/nowhere/python"], "--against: /nowhere/python cannot be run"),
        (["--parts", "chains"], "there is no part chains: there are configs, chain"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_of(arguments)
    assert sentence in f"{ended.value} {capsys.readouterr().err}"
