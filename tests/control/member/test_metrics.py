"""What `/metrics` shows: figures that Prometheus reads, each with a line in the table."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cluster.effects import Lane
from talka.control.member.admin_queries import answer
from talka.control.member.metrics import metrics_text
from talka.control.member.metrics_table import GROUPS, METRICS, MetricLine
from talka.errors import Invalid
from talka.stats.time_buckets import TimeBuckets
from talka.units import MILLISECOND, SECOND
from talka.wire.asking import AskMetrics
from talka.wire.membership import Alive, Suspect
from tests.control.member.asked_members import figures, hear, member_of

LINES = [line for group in GROUPS for line in group.lines]


def test_metrics_are_read_by_prometheus_and_count_what_happened() -> None:
    member = member_of(voters=("a", "b", "c"))
    hear(member, Alive("x", 1, 0, "at-x"), Alive("y", 1, 0, "at-y"), Suspect("x", 1, 0, "y", "no answer"))
    member.on_frame(0, "from", b"garbage", Lane.DATAGRAM, 0)

    values = figures(member)

    states = {label: value for (name, label), value in values.items() if name == "talka_members"}
    assert states == {"alive": 2, "suspect": 1, "dead": 0, "left": 0}
    assert values["talka_frames_refused_total", "short"] == 1
    assert values["talka_recent_verdicts", "suspect"] == 1
    assert values["talka_datagrams_blocked", ""] == 0
    assert (values["talka_is_leader", ""], values["talka_keys", ""]) == (0, 1)
    assert ("talka_challenges_total", "") in values and ("talka_voters_answering", "") in values


def test_a_member_without_parts_still_has_metrics() -> None:
    values = figures(member_of(is_sealed=False, has_membership=False))

    assert values == {("talka_frames_admitted_total", ""): 0}


def test_what_the_shell_counts_is_told_too_with_the_words_of_the_table() -> None:
    counts = {"calls_total": 3, "process_cpu_seconds_total": 1.5, "calls_refused_total": {"busy": 2, "rate": 1}}

    text = metrics_text(member_of(), 0, counts)
    values = figures(member_of(), **counts)

    assert values["talka_calls_total", ""] == 3
    assert values["talka_process_cpu_seconds_total", ""] == 1.5
    assert values["talka_calls_refused_total", "rate"] == 1
    assert f"# HELP talka_calls_refused_total {METRICS['calls_refused_total'].text}\n" in text
    assert 'talka_calls_refused_total{reason="busy"} 2\n' in text


def test_what_has_no_line_in_the_table_is_not_shown_under_a_name_that_nobody_explains() -> None:
    with pytest.raises(Invalid, match="^made_up_total is no metric: give it a line in control/member/metrics_table"):
        metrics_text(member_of(), 0, {"made_up_total": 1})


@pytest.mark.parametrize("counts", [{"calls_total": {"a": 1}}, {"calls_refused_total": 1}])
def test_a_count_by_a_label_is_one_of_a_line_with_a_label(counts: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        metrics_text(member_of(), 0, counts)


def test_times_are_told_as_a_histogram() -> None:
    times = TimeBuckets((5 * MILLISECOND, 2 * SECOND))
    for time_ns in (5 * MILLISECOND, 6 * MILLISECOND, 3 * SECOND):
        times.add(time_ns)

    values = figures(member_of(), dag_store_commit_seconds=times)

    name = "talka_dag_store_commit_seconds"
    assert [values[f"{name}_bucket", bound] for bound in ("0.005", "2", "+Inf")] == [1, 2, 3]
    assert (values[f"{name}_count", ""], values[f"{name}_sum", ""]) == (3, 3.011)


def test_the_answer_to_a_question_for_metrics_is_their_text() -> None:
    member = member_of()

    assert answer(member, 0, AskMetrics())[0].decode() == metrics_text(member, 0, {})
    assert b"talka_calls_total 3" in answer(member, 0, AskMetrics(), counts={"calls_total": 3})[0]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.dictionaries(st.text(max_size=8), st.integers(0, 9), max_size=4))
def test_whatever_the_reasons_are_called_prometheus_reads_them(reasons: dict[str, int]) -> None:
    member = member_of(is_sealed=False, has_membership=False)

    values = figures(member, calls_refused_total=reasons)

    assert {label: value for (name, label), value in values.items() if name == "talka_calls_refused_total"} == reasons


# -- the table


def test_no_name_stands_twice_in_the_table() -> None:
    assert len(METRICS) == len(LINES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_each_line_of_the_table_follows_the_conventions_of_prometheus(line: MetricLine) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", line.name)
    assert line.name.endswith("_total") == (line.kind == "counter")
    assert line.kind != "histogram" or (line.name.endswith("_seconds") and not line.label)
    assert re.fullmatch(r"(?s)[A-Z01].{8,110}\.", line.text) and "\n" not in line.text and "\\" not in line.text
    assert re.fullmatch(r"[a-z]*", line.label)
