"""What the comparing benchmarks conclude from what they measured, and that the compared scripts are what is said."""

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import journey
import wheels
from journey import Journey, K6Journey, LocustJourney, OurJourney, faults_of, lines_of
from load_server import NotMeasured
from wheels import ROWS, Outcome, Ratio, Turn, disturbed_of, pooled_us, relative_error, settings_of, tables_of, wheel_of

OURS, *PEERS = OurJourney.script, K6Journey.script, LocustJourney.script


def turn(user_us: float, *, system_us: float = 4.0, seconds: float = 8.0, warnings: list[str] | None = None) -> Turn:
    all_us = user_us + system_us
    return Turn(user_us, all_us, 1e6 / all_us, user_us / all_us, seconds, 0.5, 0.0, warnings or [])


def row_of(key: str) -> wheels.Row:
    return next(row for row in ROWS if row.key == key)


# Wheels


def test_all_turns_together_weigh_by_their_calls() -> None:
    """Ten seconds at 2 + 8 µs are a million calls, ten at 6 + 14 µs half of that."""
    turns = [turn(2, system_us=8, seconds=10), turn(6, system_us=14, seconds=10)]
    assert pooled_us(turns) == pytest.approx((2 * 1e6 + 6 * 0.5e6) / 1.5e6)


def test_error_shrinks_with_the_root_of_time_and_grows_as_the_share_shrinks() -> None:
    short, long = relative_error([turn(1)]), relative_error([turn(1)] * 4)
    assert short == pytest.approx(2 * long)
    assert relative_error([turn(1, system_us=20)]) > short > relative_error([turn(10)])
    # A fifth of 2,000 looks: a standard deviation of 17.9 in 400.
    assert short == pytest.approx(17.89 / 400, rel=1e-3)


def test_ratio_is_that_of_pairs_whatever_the_machine_did_between_them() -> None:
    old, new = [turn(1), turn(2), turn(4)], [turn(1.1), turn(2.2), turn(4.4)]
    ratio = Ratio.of(old, new)
    assert (ratio.median, ratio.least, ratio.most) == pytest.approx((1.1, 1.1, 1.1))


def test_row_over_its_bound_is_broken_only_beyond_the_error_of_the_measurement() -> None:
    def mark(user_us: float, seconds: float) -> str:
        return Ratio.of([turn(1, seconds=seconds)] * 5, [turn(user_us, seconds=seconds)] * 5).mark(1.05)

    assert mark(1.04, 8) == mark(0.5, 0.1) == "✓"
    assert mark(1.08, 1) == "?"
    assert mark(1.08, 1000) == mark(2.0, 8) == "✗"


def test_table_judges_new_rows_by_their_own_bounds() -> None:
    def marks(outcomes: list[Outcome]) -> list[str]:
        return [cells[-1] for cells in tables_of(outcomes)[1][1:]]

    loop, think, pause = row_of("loop"), row_of("think"), row_of("pause")
    assert marks([Outcome(loop, {"new": [turn(1.9)]})]) == ["✓"]
    assert marks([Outcome(loop, {"new": [turn(2.1)]})]) == ["?"]
    assert marks([Outcome(loop, {"new": [turn(2.1, seconds=1000)]})]) == ["✗"]
    assert marks([Outcome(loop, {"new": [turn(1.9, warnings=["driver task, instead of direct"])]})]) == ["✗"]
    thinking = Outcome(think, {"new": [turn(9)]})
    assert marks([thinking, Outcome(pause, {"new": [turn(10)]})]) == ["", "✓"]
    assert marks([thinking, Outcome(pause, {"new": [turn(11)]})]) == ["", "✗"]


def test_turns_that_others_disturbed_are_counted() -> None:
    quiet, disturbed = turn(1), turn(1)
    disturbed.others_busy = 0.5
    assert disturbed_of([Outcome(row_of("plain"), {"old": [quiet], "new": [quiet]})]) == ""
    outcome = Outcome(row_of("plain"), {"old": [quiet, disturbed], "new": [disturbed, disturbed]})
    assert disturbed_of([outcome]) == "In 3 of 4 turns others took more than 10% of a core."


def test_row_that_was_not_measured_says_why_in_the_table() -> None:
    both, alone = tables_of(
        [Outcome(row_of("plain"), {}, "not measured: it ended"), Outcome(row_of("loop"), {}, "no name=")]
    )
    assert both[1][:2] == ["one step, 64 users", "not measured: it ended"] and len(both[1]) == len(both[0])
    assert alone[1][1] == "no name=" and len(alone[1]) == len(alone[0])


def test_every_row_has_its_users_in_the_file_it_names() -> None:
    for row in ROWS:
        tree = ast.parse((wheels.HERE / row.file).read_text())
        assert row.workflow in [node.name for node in tree.body if isinstance(node, ast.ClassDef)], row.key
    assert len({row.key for row in ROWS}) == len({row.title for row in ROWS}) == len(ROWS)


def test_what_is_neither_wheel_nor_revision_is_said() -> None:
    with pytest.raises(NotMeasured, match="there is no wheel /nowhere/talka.whl"):
        wheel_of("/nowhere/talka.whl")
    with pytest.raises(NotMeasured, match="no-such-revision is no revision"):
        wheel_of("no-such-revision")
    with pytest.raises(SystemExit):
        settings_of(["HEAD", "--pairs", "0"])


# The journey


def test_our_journey_is_not_longer_than_that_of_a_peer() -> None:
    assert all(lines_of(OURS) <= lines_of(peer) for peer in PEERS)


def test_comments_and_empty_lines_are_no_lines_of_code(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text("// about\n\nfirst();\n  // why\n  # why\nsecond(); // last\n")
    assert lines_of(script) == 2


def test_all_scripts_name_the_same_calls() -> None:
    for script in (OURS, *PEERS):
        assert all(f"/{name}" in script.read_text() for name in journey.NAMES), script.name


def test_counts_are_read_from_what_each_tool_tells(tmp_path: Path) -> None:
    counts = {"login": 5, "page": 70, "order": 8}
    result = tmp_path / journey.RESULT
    result.write_text(
        json.dumps({"metrics": {f"http_reqs{{name:{name}}}": {"count": n} for name, n in counts.items()}})
    )
    assert K6Journey().told("", tmp_path) == counts
    rows = [{"name": name, "num_requests": number} for name, number in counts.items()]
    assert LocustJourney().told(f"[info] it ran\n{json.dumps(rows, indent=1)}\nthe end", tmp_path) == counts
    calls = [{"name": "page", "count": 70}, {"name": "order", "count": 8}]
    steps = [{"name": "login", "count": 5, "calls": []}, {"name": "visit", "count": 25, "calls": calls}]
    result.write_text(json.dumps({"workflows": [{"steps": steps}]}))
    assert OurJourney("native").told("", tmp_path) == counts


def test_fault_is_a_longer_script_or_a_count_that_is_not_the_servers() -> None:
    ours = Journey("ours", 17, told={"page": 3}, served={"page": 3})
    assert faults_of(ours, [Journey("other", 17)]) == []
    assert faults_of(ours, [Journey("other", 16)]) == ["ours has 17 lines, that of other 16"]
    ours.served = {"page": 4}
    assert faults_of(ours, []) == ["ours counts {'page': 3}, the server {'page': 4}"]
    assert faults_of(Journey("ours", 1, "this version has no name="), []) == ["ours: this version has no name="]
