"""Two results side by side: which rows there are, what is said about them, when a rule is broken."""

import json
import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest

from talka.report.compare import compare_all, parse_rule, parse_within
from talka.report.compare_text import about_text, comparisons_text
from talka.report.comparison import (
    MOST_RUNS,
    ROWS_SHOWN,
    SCHEMA,
    SEVERAL_SCHEMA,
    STATS,
    TOO_SHORT,
    BadRule,
    BadWithin,
    Comparison,
    ComparisonRow,
    Comparisons,
    NotComparable,
)
from talka.report.document import BadResult, Generator, Job, ResultDocument, Step, TimelineRow, Times, Totals, Workflow
from talka.report.html.comparison_page import comparison_html
from talka.stats import hdr
from talka.stats.histogram import Histogram

# Given: documents of made-up runs.

WINDOWS = 50
NO_TIMES = hdr.encode(Histogram())


def compare(a: ResultDocument, b: ResultDocument, *rules: Any, **more: Any) -> Comparison:
    return compare_all([a, b], *rules, **{"files": ("A", "B"), **more}).comparisons[0]


def comparison_text(found: Comparison, **shown: Any) -> str:
    return comparisons_text(Comparisons(base=found.a, comparisons=[found]), **shown)


def times_around(ms: float, count: int, seed: int) -> Histogram:
    chance = random.Random(seed)
    times = Histogram()
    for _ in range(count):
        times.record(round(1000 * (ms + chance.expovariate(2))))
    return times


def a_step(name: str = "get", *, ms: float = 20.0, count: int = 1000, failed: int = 0, seed: int = 1) -> Step:
    times = times_around(ms, count, seed)
    return Step(
        name=name,
        measured=True,
        count=count,
        ok=count - failed,
        failed=failed,
        interrupted=0,
        rate_per_s=count / 5,
        response_time_ms=None,
        service_time_ms=None,
        status_codes={},
        errors={},
        samples=[],
        histogram=hdr.encode(times),
        service_histogram=hdr.encode(times),
        tags={},
    )


def a_workflow(*steps: Step, name: str = "Shop", **changes: Any) -> Workflow:
    found = Workflow(
        name=name,
        status="completed",
        model="open",
        load="200/s for 5s",
        vus=400,
        cores=2,
        duration_s=5.0,
        iterations=1000,
        dropped_iterations=0,
        failure=None,
        steps=list(steps),
        checks=[],
        metrics=[],
    )
    return msgspec.structs.replace(found, **changes)


def lags(ms: float) -> Times:
    return Times(**dict.fromkeys(Times.__struct_fields__, ms))


def a_document(*workflows: Workflow, job: str = "job-a", lag_ms: float | None = 0.1, **changes: Any) -> ResultDocument:
    steps = [step for workflow in workflows for step in workflow.steps]
    failed, requests = sum(step.failed for step in steps), sum(step.count for step in steps)
    per_window = requests // WINDOWS
    found = ResultDocument(
        job=Job(job, "shop.py", "shop.py"),
        status="completed",
        exit_code=0,
        reasons=[],
        started_at="2026-11-15T12:00:00+00:00",
        duration_s=5.0,
        totals=Totals(requests, requests - failed, failed, 0, 0, requests / 5, 0, 0, 1000, 0, 2, 0),
        workflows=list(workflows),
        thresholds=[],
        timeline=[
            TimelineRow(number / 10, 0.1, per_window, per_window, failed // WINDOWS, 2, 20.5, 22.0)
            for number in range(WINDOWS)
        ],
        lost_shards=[],
        datacenters=[],
        start_skew_ms=0.0,
        generator=Generator("python", "1", 0.3, None, None if lag_ms is None else lags(lag_ms), False, []),
        warnings=[],
    )
    return msgspec.structs.replace(found, **changes)


def one_step(job: str = "job-b", **changes: Any) -> ResultDocument:
    return a_document(a_workflow(a_step(**changes)), job=job)


def row_of(comparison: Comparison, measure: str, stat: str | None = None, step: str | None = "get") -> ComparisonRow:
    (row,) = [row for row in comparison.rows if (row.measure, row.stat, row.step) == (measure, stat, step)]
    return row


def compared(a: ResultDocument, b: ResultDocument, *rules: str) -> Comparison:
    return compare(a, b, [parse_rule(rule) for rule in rules])


# Rows and verdicts.


def test_equal_runs_do_not_differ() -> None:
    found = compared(one_step("job-a", seed=1, count=2000), one_step("job-b", seed=2, count=2000))
    assert not found.different and found.headline == "Same: all 14 figures are within ± 5 %."
    assert {row.verdict for row in found.rows} == {row.answer for row in found.rows} == {"same"}
    assert found.warnings == []
    for row in found.rows:
        assert row.a is not None and row.low is not None and row.high is not None
        reach = 0.01 if row.measure == "failed" else row.a * 0.05
        assert -reach <= row.low <= row.high <= reach and row.needs is None


def swinging(document: ResultDocument) -> ResultDocument:
    """The same with a rate and times that swing from window to window."""
    rows = [
        msgspec.structs.replace(
            row, requests=row.requests * (number // 4 % 2) * 2, response_p99_ms=20 + 20.0 * (number // 4 % 2)
        )
        for number, row in enumerate(document.timeline)
    ]
    return msgspec.structs.replace(document, timeline=rows)


def test_rate_41_percent_lower_within_noise_is_not_called_the_same() -> None:
    a, b = swinging(one_step("job-a", count=2000)), swinging(one_step("job-b", count=1180))
    found = compared(a, b)
    row = row_of(found, "rate")
    assert row.relative == pytest.approx(-0.41) and (row.answer, row.verdict) == ("cannot tell", "cannot tell")
    assert row.needs == "length" and row.needs_s is not None and row.needs_s > 5
    assert not found.different
    assert re.match(
        r"Cannot tell: no difference beyond noise, but \d+ of 14 figures are not known to ± 5 % \(such as .*\)\. "
        r"Runs of about \d+ s would tell",
        found.headline,
    )
    assert re.search(r"cannot tell +get rate .* -41 % .* \d+ s$", comparison_text(found), re.MULTILINE)


def test_no_interval_reaches_below_nothing_or_above_all() -> None:
    a = swinging(one_step("job-a", count=200, failed=90))
    b = swinging(one_step("job-b", count=100, failed=99))
    for one, other in ((a, b), (b, a)):
        for row in compared(one, other).rows:
            for end in (row.a_low, row.a_high, row.b_low, row.b_high):
                assert end is None or end >= 0 and (row.measure != "failed" or end <= 1)
            if row.a is not None and row.low is not None and row.high is not None:
                assert row.a + row.low >= -1e-9 and (row.measure != "failed" or row.a + row.high <= 1 + 1e-9)


def test_what_counts_as_the_same_can_be_set() -> None:
    a, b = one_step("job-a", ms=50, count=2000), one_step("job-b", ms=54, count=2000)
    assert row_of(compare(a, b), "response_time", "p50").verdict == "slower"
    found = compare(a, b, within=parse_within("10%"))
    assert row_of(found, "response_time", "p50").answer == "same" and "within ± 10 %" in found.headline
    assert "± 10 % of A (failures: ± 2 points" in found.method


@pytest.mark.parametrize("text", ["", "5", "0%", "101%", "-5%", "five", "9" * 50 + "%", "5%%"])
def test_tolerance_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(BadWithin, match=r"write a share above 0 % and up to 100 %, as 5%"):
        parse_within(text)
    assert (parse_within("5%"), parse_within(" 2.5 % "), parse_within("100%")) == (0.05, 0.025, 1.0)


def test_results_measured_by_different_rules_are_not_mixed() -> None:
    old, new = one_step("job-a"), msgspec.structs.replace(one_step("job-b"), measures=2)
    for documents, files in (
        ([old, new], ["old.json", "new.json"]),
        ([new, new, old], ["new.json", "n.json", "old.json"]),
    ):
        with pytest.raises(NotComparable, match=r"Run what old\.json is of again with this version") as raised:
            compare_all(documents, files=files)
        assert "by rules 1" in str(raised.value) and "by rules 2" in str(raised.value)
    both = [msgspec.structs.replace(document, measures=2) for document in (old, new)]
    assert compare(both[0], both[1]).rows


def test_slower_run_is_called_slower_with_its_size() -> None:
    found = compared(one_step("job-a", ms=50), one_step("job-b", ms=60))
    for stat in STATS:
        row = row_of(found, "response_time", stat)
        assert row.verdict == "slower" and row.difference == pytest.approx(10, abs=0.5)
        assert row.low is not None and row.high is not None and 0 < row.low < 10 < row.high
    assert re.fullmatch(
        r"B is slower: (response|service) \w+ \+9\.98 ms \(\+20 %, at least \+1\d %\)\.", found.headline
    )


def test_faster_run_is_called_faster() -> None:
    found = compared(one_step("job-a", ms=60), one_step("job-b", ms=50))
    assert found.headline.startswith("B is faster: ") and "-9.98 ms (-17 %, at least -1" in found.headline


def test_failures_come_before_times_that_are_a_little_worse() -> None:
    found = compared(one_step("job-a", ms=50), one_step("job-b", ms=60, failed=500))
    assert found.headline.startswith("B fails more often: all: failed +50.00 points, at least +4")
    assert [row.verdict for row in found.rows[:3]] == ["more failures", "more failures", "slower"]
    row = row_of(found, "failed")
    assert (row.a, row.b, row.relative) == (0, 0.5, None)


def test_worse_rows_come_first_then_what_cannot_be_told() -> None:
    a = a_document(a_workflow(a_step("slow", ms=50), a_step("fast", ms=60), a_step("rare", count=50)), job="a")
    b = a_document(a_workflow(a_step("slow", ms=70), a_step("fast", ms=50), a_step("rare", count=50)), job="b")
    found = compared(a, b)
    groups = [row.verdict for row in found.rows]
    assert list(dict.fromkeys(groups)) == ["slower", "faster", "cannot tell", "same"]
    assert groups == sorted(groups, key=["slower", "faster", "cannot tell", "same"].index)
    rare = row_of(found, "response_time", "p99", "rare")
    assert (rare.verdict, rare.difference) == ("cannot tell", None)
    assert (rare.needs, rare.needs_s) == ("length", 100), "ten values above p99 take twenty times the 5 s"


def test_lower_rate_is_worse() -> None:
    b = one_step("job-b", count=800)
    found = compared(one_step("job-a"), b)
    assert found.headline.startswith("B has a lower rate: all: rate -40.0/s (-20 %, at least -1")
    assert compared(b, one_step("job-a")).headline.startswith("B has a higher rate")


def test_rate_of_users_in_a_loop_is_forgiven_what_the_generator_was_late() -> None:
    def run(job: str, model: str, count: int, lag_ms: float) -> ResultDocument:
        return a_document(a_workflow(a_step(count=count), model=model), job=job, lag_ms=lag_ms)

    late = run("job-b", "closed", 800, lag_ms=10.0)
    assert row_of(compared(run("job-a", "closed", 1000, 0.1), late), "rate").verdict == "cannot tell"
    assert row_of(compared(run("job-a", "open", 1000, 0.1), run("b", "open", 800, 10.0)), "rate").is_different


def test_time_that_the_generator_may_have_added_is_not_blamed_on_the_target() -> None:
    a = one_step("job-a", ms=50)
    late = a_document(a_workflow(a_step(ms=60)), job="job-b", lag_ms=15.0)
    unknown = a_document(a_workflow(a_step(ms=60)), job="job-b", lag_ms=None)
    assert not compared(a, late).different
    assert compared(a, unknown).different


def test_whole_job_has_times_of_its_own_only_with_several_steps() -> None:
    one = compared(one_step("job-a"), one_step("job-b"))
    assert {row.measure for row in one.rows if row.step is None} == {"failed", "rate"} and len(one.rows) == 14
    two = a_document(a_workflow(a_step("home"), a_step("buy", ms=40)), job="job-b")
    found = compared(a_document(a_workflow(a_step("home"), a_step("buy", ms=40))), two)
    whole = row_of(found, "response_time", "p50", None)
    assert len(found.rows) == 36 and whole.a is not None and 20 < whole.a < 41


def test_steps_of_one_run_only_are_listed_apart() -> None:
    a = a_document(a_workflow(a_step("home"), a_step("old")), job="job-a")
    b = a_document(a_workflow(a_step("home"), a_step("new")), job="job-b")
    found = compared(a, b)
    assert (found.only_in_a, found.only_in_b) == (["Shop.old"], ["Shop.new"])
    assert {row.step for row in found.rows} == {None, "home"}
    text = comparison_text(found)
    assert "ONLY IN A\n  Shop.old" in text and "ONLY IN B\n  Shop.new" in text
    assert 'Only in A</h2><ul class=""><li>Shop.old' in page_of(a, b)


def test_steps_that_are_not_measured_or_never_ran_are_left_out() -> None:
    other = msgspec.structs.replace(a_step("setup"), measured=False, histogram=None)
    never = msgspec.structs.replace(a_step("never"), count=0)
    a = a_document(a_workflow(a_step(), other, never))
    assert {row.step for row in compared(a, a).rows} == {None, "get"}


def test_runs_without_a_common_step_cannot_be_compared() -> None:
    a = a_document(a_workflow(*(a_step(f"step{number}", count=1) for number in range(10))))
    with pytest.raises(NotComparable, match=r"A has Shop\.step0, .* and 2 more; B has Shop\.get\."):
        compare(a, one_step())
    with pytest.raises(NotComparable, match="B has none that ran"):
        compare(a, a_document(a_workflow()))


def test_run_without_a_timeline_is_too_short_to_tell() -> None:
    short = msgspec.structs.replace(one_step("job-b", ms=60), timeline=[])
    found = compared(one_step("job-a"), short, "response_time.p99 +10%")
    assert found.headline.startswith(f"{TOO_SHORT} Longer runs would not tell") and not found.different
    assert {row.verdict for row in found.rows} == {"cannot tell"}
    assert found.rules[0].shown == "too few samples; runs of both in turn would tell"
    assert not found.is_broken and found.is_unsure
    row = row_of(found, "response_time", "p50")
    assert row.a is not None and row.difference is None and row.needs == "repeats"
    assert "cannot tell" in comparison_text(found)


def test_run_of_a_few_windows_is_told_how_long_it_should_be() -> None:
    short = msgspec.structs.replace(one_step("job-b"), timeline=one_step().timeline[:4])
    found = compared(one_step("job-a"), short)
    assert found.headline == f"{TOO_SHORT} Runs of about 5 s would tell them."


def test_step_that_answered_nothing_has_failures_and_no_times() -> None:
    silent = msgspec.structs.replace(
        a_step(failed=1000), histogram=NO_TIMES, service_histogram=NO_TIMES, rate_per_s=0.0
    )
    b = a_document(a_workflow(silent), job="job-b")
    found = compared(one_step("job-a"), b)
    assert row_of(found, "failed").verdict == "more failures"
    row = row_of(found, "response_time", "mean")
    assert (row.b, row.verdict, row.needs) == (None, "cannot tell", "repeats")
    assert row_of(found, "rate").verdict == "lower rate"
    back = compared(b, one_step("job-a"), "get.rate +5%")
    assert row_of(back, "rate").relative is None and back.rules[0].broken
    assert comparison_text(back) and page_of(b, one_step("job-a"))


def test_step_that_was_only_interrupted_has_no_share_of_failures() -> None:
    cut_off = msgspec.structs.replace(a_step(), ok=0, failed=0, interrupted=1000)
    found = compared(one_step("job-a"), a_document(a_workflow(cut_off), job="job-b"))
    assert (row_of(found, "failed").b, row_of(found, "failed").verdict) == (None, "cannot tell")


# What cannot be read.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"histogram": None}, "Shop.get has no histogram"),
        ({"service_histogram": "rubbish"}, "Shop.get: The HdrHistogram text cannot be read"),
        ({"ok": -5}, "below 0"),
    ],
)
def test_damaged_step_is_named_with_its_file(changes: dict[str, Any], words: str) -> None:
    broken = a_document(a_workflow(msgspec.structs.replace(a_step(), **changes)))
    with pytest.raises(BadResult, match=f"after.json: .*{words}"):
        compare(one_step(), broken, files=("before.json", "after.json"))


@pytest.mark.parametrize(
    "changes",
    [
        {"duration_s": 1e300},
        {"timeline": [TimelineRow(0.0, 5e-324, 1, 1, 0, 1, -1.0, 1.0)]},
        {"timeline": [TimelineRow(-1.0, 0.1, 1, 1, 0, 1, 1.0, 1.0)]},
        {"timeline": [TimelineRow(0.0, 0.1, 1, 1, 0, 1, 1.0, 1e200)]},
        {"generator": Generator("python", "1", 0.3, None, lags(1e99), False, [])},
    ],
)
def test_numbers_that_nobody_measured_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadResult, match=r"B: a number is below 0 or beyond measure"):
        compare(one_step("job-a"), msgspec.structs.replace(one_step("job-b"), **changes))


def test_windows_of_no_width_have_no_rate() -> None:
    rows = [TimelineRow(0.0, 5e-324, 1, 1, 0, 1, 1.0, 1.0), *one_step().timeline]
    found = compare(one_step("job-a"), msgspec.structs.replace(one_step("job-b"), timeline=rows))
    assert row_of(found, "rate").answer == "same"


# Warnings.


def test_same_run_twice_is_said() -> None:
    found = compared(one_step("job-a"), one_step("job-a"))
    assert found.warnings == ["A and B are the same run, so nothing can differ."] and not found.different


def test_runs_that_were_not_made_alike_are_warned_about() -> None:
    a = a_document(a_workflow(a_step()), a_workflow(name="Gone"), job="job-a")
    b = a_document(a_workflow(a_step(), load="50/s for 9s", cores=1), job="job-b", duration_s=9.0)
    b = msgspec.structs.replace(b, generator=msgspec.structs.replace(b.generator, engine="", version="2"))
    assert compared(a, b).warnings == [
        "These runs were not made alike: Shop had the load 200/s for 5s in A and 50/s for 9s in B; "
        "Shop ran on 2 cores in A and 1 in B; A ran 5.0 s and B 9.0 s; the engine was python in A and unknown in B; "
        "the version was 1 in A and 2 in B."
    ]


def test_run_that_did_not_end_well_is_warned_about() -> None:
    b = msgspec.structs.replace(one_step("job-b"), status="cancelled")
    b = msgspec.structs.replace(b, generator=msgspec.structs.replace(b.generator, saturated=True))
    first, second = compared(one_step("job-a"), b).warnings
    assert first.startswith("B ended cancelled") and second.startswith("In B the generator was the bottleneck")


# Rules.


@pytest.mark.parametrize(
    ("rule", "is_broken"),
    [
        ("response_time.p99 +10%", True),
        ("response_time.p99 + 10 %", True),
        ("response_time.p99 +30%", False),
        ("response_time.p99 -1%", False),
        ("get.response_time.p95 +9ms", True),
        ("Shop.get.response_time.p95 +9000us", True),
        ("get.response_time.p95 +20ms", False),
        ("service_time.mean +0.005s", True),
        ("failed +1%", True),
        ("failed +6%", False),
        ("get.failed +1%", True),
        ("rate -5%", False),
        ("rate -1/s", False),
        ("response_time.p50 +0%", True),
    ],
)
def test_rule_is_broken_by_what_is_beyond_noise_and_beyond_the_limit(rule: str, is_broken: bool) -> None:
    found = compared(one_step("job-a", ms=50), one_step("job-b", ms=60, failed=50), rule)
    assert found.is_broken is is_broken and found.rules[0].rule == " ".join(rule.split())


def test_rule_that_noise_may_have_broken_cannot_be_told() -> None:
    a, b = one_step("job-a"), a_document(a_workflow(a_step(ms=22)), job="job-b", lag_ms=5.0)
    found = compared(a, b, "response_time.p50 +1%", "response_time.p50 +20%", "response_time.p50 -1%")
    assert [rule.answer for rule in found.rules] == ["cannot tell", "held", "held"]
    assert not found.is_broken and found.is_unsure
    late = "+2.00 ms (+9.8 %), within what the generator was late"
    assert [rule.shown for rule in found.rules] == [f"{late}; a generator that is less late would tell", late, late]
    assert row_of(found, "response_time", "p50").relative == pytest.approx(0.1, abs=0.01)


def test_rule_is_held_only_if_the_whole_interval_holds_it() -> None:
    a, b = swinging(one_step("job-a", count=2000)), swinging(one_step("job-b", count=1900))
    found = compared(a, b, "rate -10%", "failed +1%")
    assert [rule.answer for rule in found.rules] == ["cannot tell", "held"]
    assert re.match(
        r"-\d+\.\d/s \(-5\.0 %\), within noise, anything from -.* to \+.*; runs of .*", found.rules[0].shown
    )
    sure = compared(one_step("job-a", count=2000), one_step("job-b", count=1900), "rate -10%")
    assert [rule.answer for rule in sure.rules] == ["held"] and not sure.is_unsure


def test_rule_finer_than_what_counts_as_the_same_is_still_broken_by_what_is_beyond_noise() -> None:
    a, b = one_step("job-a", ms=50, count=2000), one_step("job-b", ms=55, count=2000)
    found = compare(a, b, [parse_rule("response_time.p50 +5%")], within=0.2)
    assert row_of(found, "response_time", "p50").answer == "same" and found.is_broken


def test_rule_can_forbid_to_fall() -> None:
    a, b = one_step("job-a", ms=60), one_step("job-b", ms=50, count=800)
    found = compared(a, b, "rate -5%", "rate -30/s", "rate -50%", "response_time.p50 -5ms")
    assert [rule.broken for rule in found.rules] == [True, True, False, True]


def test_rule_about_a_step_of_several_workflows_is_about_each() -> None:
    def run(job: str, ms: float) -> ResultDocument:
        first, second = a_workflow(a_step(), name="Browse"), a_workflow(a_step(ms=ms), name="Buy")
        return a_document(first, second, job=job)

    found = compared(run("a", 20), run("b", 40), "get.response_time.p50 +50%", "Browse.get.response_time.p50 +50%")
    assert [rule.broken for rule in found.rules] == [True, False]
    assert "Buy.get response p50" in comparison_text(found)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("", "it needs a number that is measured"),
        ("response_time.p99", "it needs a number that is measured"),
        ("response_time.p99 10%", "it needs a number that is measured"),
        ("response_time.p99 < 10ms", "it needs a number that is measured"),
        ("respone_time.p99 +10%", 'perhaps you mean "response_time"'),
        ("zzz +10%", "there are response_time, service_time, failed, rate"),
        ("response_time +10%", "response_time needs one of p50, p90, p95, p99, mean"),
        ("response_time.p98 +10%", "response_time needs one of"),
        ("response_time.p99 +10", "needs a unit that fits: % or us or µs or ms or s"),
        ("failed +10ms", "needs a unit that fits: %"),
        ("rate -10ms", "needs a unit that fits: % or /s"),
        ("rate -" + "9" * 400 + "%", "it needs a number that is measured"),
    ],
)
def test_rule_that_cannot_be_read_is_refused_with_an_example(rule: str, words: str) -> None:
    with pytest.raises(BadRule, match=re.escape(words)) as raised:
        parse_rule(rule)
    parse_rule(re.findall(r'Write it like "(.*)"\.', str(raised.value))[0])


@pytest.mark.parametrize(
    ("rule", "words"), [("gte.rate -5%", 'perhaps you mean "get"'), ("zzz.rate -5%", "both have get")]
)
def test_rule_about_a_step_that_is_not_there_is_refused(rule: str, words: str) -> None:
    with pytest.raises(BadRule, match=words) as raised:
        compared(one_step("job-a"), one_step("job-b"), rule)
    example = re.findall(r'Write it like "(.*)"\.', str(raised.value))[0]
    assert compared(one_step("job-a"), one_step("job-b"), example).rules


# Forms.


def test_text_has_both_values_the_difference_its_interval_and_the_verdict() -> None:
    a, b = one_step("job-a", ms=50), one_step("job-b", ms=60, failed=200)
    found = compared(a, b, "response_time.p50 +10%", "rate -5%", "get.response_time.p99 +18%")
    text = comparison_text(found)
    assert text.startswith("B fails more often: all: failed +20.00 points")
    assert re.search(
        r"slower +response p50 +50\.\d ms +60\.\d ms +\+9\.\d+ ms +\+20 % +\+\d\.\d+ ms to \+1\d\.\d ms", text
    )
    assert re.search(r"same +get rate +200/s +200/s +±0/s +±0\.0 % +±0/s to ±0/s$", text, re.MULTILINE)
    assert re.search(
        r"more failures +get failed +0\.00 % +20\.00 % +\+20\.00 points +\+1\d\.\d\d to \+2\d\.\d\d points", text
    )
    assert "✗ response_time.p50 +10%      broken: +9.98 ms (+20 %)" in text
    assert "✓ rate -5%                    held: ±0/s (±0.0 %), within noise" in text
    assert "95 % for all 14 rows together (Bonferroni)" in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 60, 100, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    a = a_document(a_workflow(a_step("a_step_with_a_name_that_is_much_longer_than_any_other" * 2)), job="job-a")
    found = compared(a, a, "failed +1%")
    assert max(map(len, comparison_text(found, width=width).splitlines())) <= width


def test_intervals_give_way_where_the_terminal_is_narrow_and_needs_do_not() -> None:
    found = compared(swinging(one_step("job-a", count=2000)), swinging(one_step("job-b", count=1180)))
    wide, narrow = comparison_text(found, width=120), comparison_text(found, width=80)
    assert re.search(r"get rate .* -41 % +-\S+ to \+\S+ +\d+ s$", wide, re.MULTILINE)
    assert re.search(r"get rate .* -41 % +\d+ s$", narrow, re.MULTILINE)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "1 s"), (42, "42 s"), (60, "60 s"), (61, "2 min"), (3200, "54 min"), (7300, "3 h")]
)
def test_length_that_would_tell_is_rounded_up(seconds: float, text: str) -> None:
    assert about_text(seconds) == text


def test_colours_come_only_when_asked_for() -> None:
    found = compared(one_step("job-a", ms=50), one_step("job-b", ms=60))
    assert "\x1b" not in comparison_text(found)
    painted = comparison_text(found, color=True)
    assert "\x1b[31mslower\x1b[0m" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == comparison_text(found)


def test_long_table_ends_with_a_count_of_the_rest() -> None:
    a = a_document(a_workflow(*(a_step(f"step{number}", count=100) for number in range(6))))
    found = compared(a, a)
    text = comparison_text(found)
    assert f"and {len(found.rows) - ROWS_SHOWN} more rows without a difference" in text
    assert page_of(a, a).count("<tr>") == len(found.rows) + 1


def test_no_difference_is_left_out_of_a_long_table() -> None:
    def run(job: str, ms: float) -> ResultDocument:
        return a_document(a_workflow(*(a_step(f"step{number}", count=200, ms=ms) for number in range(8))), job=job)

    found = compared(run("job-a", 20), run("job-b", 60))
    different = sum(row.is_different for row in found.rows)
    assert different > ROWS_SHOWN
    assert len(re.findall(r"^  slower ", comparison_text(found), re.MULTILINE)) == different


def page_of(*documents: ResultDocument, rules: tuple[str, ...] = ()) -> str:
    files = [f"{number}.json" for number in range(len(documents))]
    found = compare_all(documents, [parse_rule(rule) for rule in rules], files=files)
    page = comparison_html(found, documents)
    ET.fromstring(page.partition("\n")[2])  # well-formed, or it raises
    return page


def test_page_loads_nothing_and_runs_only_its_own_script_and_escapes_what_it_shows() -> None:
    b = msgspec.structs.replace(one_step("job-b", ms=60), job=Job("job-b", "<script>alert(1)</script>", None))
    page = page_of(one_step("job-a", ms=50), b, rules=("response_time.p50 +10%", "failed +1%"))
    assert page.count("<script>") == 1 and "&lt;script&gt;" in page
    without_script = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"https?://|src=|@import", without_script)
    assert "script-src 'sha256-" in page and "prefers-color-scheme:dark" in page
    assert '<span class="bad-text">broken</span>' in page and '<span class="good-text">held</span>' in page
    assert '<td class="bad-text">slower</td>' in page and page.endswith("</html>\n")


def test_page_has_pictures_of_every_run_and_of_every_interval() -> None:
    page = page_of(one_step("job-a", ms=50), one_step("job-b", ms=60), one_step("job-c", ms=50))
    names = re.findall(r'<title id="([\w-]+)-title">', page)
    assert names == ["intervals", "times-A", "rate-A", "times-B", "rate-B", "times-C", "rate-C"]
    found = compare_all([one_step("a", ms=50), one_step("b", ms=60), one_step("c", ms=50)], files=["a", "b", "c"])
    assert page.count('<svg class="interval"') == sum(len(one.rows) for one in found.comparisons)
    # Two of the three have five whiskers each beside those of A.
    assert page.count('<line class="reach run-') == 15
    assert re.search(r"<title>B p50: 60\.\d ms, 60\.\d ms to 60\.\d ms</title>", page)
    assert "B as seen from A" in page and "C as seen from A" in page


def test_page_of_ten_runs_of_a_minute_stays_small() -> None:
    def run(number: int) -> ResultDocument:
        chance = random.Random(number)
        rows = [
            TimelineRow(
                at / 10, 0.1, 20, 20 + chance.randrange(9), 0, 2, 20 + chance.random(), 40 + at % 37, 30.5 + at % 7
            )
            for at in range(600)
        ]
        return msgspec.structs.replace(one_step(f"job-{number}"), timeline=rows, duration_s=60.0)

    assert len(page_of(*map(run, range(10))).encode()) < 200_000


def test_charts_of_all_runs_have_the_same_axes() -> None:
    slow = one_step("job-b", ms=60, count=2000)
    slow = msgspec.structs.replace(
        slow, timeline=[msgspec.structs.replace(row, response_p99_ms=500.0) for row in slow.timeline]
    )
    page = page_of(one_step("job-a"), slow)
    for kind in ("times", "rate"):
        axes = [
            re.findall(r'class="y"[^>]*>([^<]*)', page[page.index(f'id="{kind}-{run}-title"') :])[:4] for run in "AB"
        ]
        assert axes[0] == axes[1]


def test_runs_without_windows_or_intervals_still_make_a_page() -> None:
    empty = [msgspec.structs.replace(one_step(job), timeline=[]) for job in ("job-a", "job-b")]
    page = page_of(*empty)
    assert "Nothing was measured." in page and "too short" in page


# Several runs.


def test_several_runs_are_each_seen_from_the_first() -> None:
    runs = [one_step("job-a", ms=50), one_step("job-b", ms=60), one_step("job-c", ms=50, seed=2)]
    found = compare_all(runs, [parse_rule("response_time.p50 +10%")], files=["a.json", "b.json", "c.json"])
    assert isinstance(found, Comparisons) and found.base.file == "a.json"
    assert [one.names for one in found.comparisons] == [("A", "B"), ("A", "C")]
    assert found.comparisons[0].headline.startswith("B is slower") and not found.comparisons[1].different
    assert found.is_broken and found.comparisons[1].rules[0].answer == "held"
    data = json.loads(found.to_json())
    assert data["schema"] == SEVERAL_SCHEMA and len(data["comparisons"]) == 2


def test_intervals_of_several_comparisons_hold_together() -> None:
    runs = [one_step("job-a"), one_step("job-b"), one_step("job-c")]
    two, three = compare(runs[0], runs[1]), compare_all(runs, files=["a", "b", "c"]).comparisons[0]
    narrow, wide = row_of(two, "response_time", "p99"), row_of(three, "response_time", "p99")
    assert narrow.high is not None and wide.high is not None and wide.high > narrow.high
    assert "all 14 rows together" in two.method and "all 28 rows together" in three.method


def test_text_of_several_runs_has_a_column_for_each() -> None:
    runs = [
        a_document(a_workflow(a_step("home", ms=50), a_step("buy")), job="job-a"),
        a_document(a_workflow(a_step("home", ms=60), a_step("buy")), job="job-b"),
        a_document(a_workflow(a_step("home", ms=50)), job="job-c", status="cancelled"),
    ]
    found = compare_all(runs, [parse_rule("home.rate -5%")], files=["a.json", "b.json", "c.json"])
    text = comparisons_text(found, width=140)
    assert text.startswith("B is slower: ") and "\nC has a lower rate: all: rate" in text
    assert re.search(r"^ +A +B +C$", text, re.MULTILINE)
    assert re.search(r"home response p50 +50\.\d ms +60\.\d ms \+20 % slower +50\.\d ms ±0\.0 % same", text)
    assert re.search(r"buy response p50 +20\.\d ms +20\.\d ms ±0\.0 % same +–$", text, re.MULTILINE)
    assert "RULES FOR B" in text and "ONLY IN A OF A AND C\n  Shop.buy" in text
    assert text.count("C ended cancelled") == 1
    for width in (40, 80):
        assert max(map(len, comparisons_text(found, width=width).splitlines())) <= width
    assert "\x1b[31m" in comparisons_text(found, color=True)


def test_so_many_runs_that_nobody_could_read_them_are_refused() -> None:
    runs = [one_step(f"job-{number}") for number in range(MOST_RUNS + 1)]
    with pytest.raises(NotComparable, match="11 runs cannot be compared: name 2 to 10"):
        compare_all(runs, files=[str(number) for number in range(len(runs))])
    with pytest.raises(NotComparable, match="1 runs cannot be compared"):
        compare_all(runs[:1], files=["0"])
    assert len(compare_all(runs[:MOST_RUNS], files=[str(number) for number in range(MOST_RUNS)]).comparisons) == 9


def test_document_has_every_row_as_numbers() -> None:
    found = compared(one_step("job-a", ms=50), one_step("job-b", ms=60), "rate -5%")
    data = json.loads(found.to_json())
    assert data["schema"] == SCHEMA == "talka.comparison/1" and data["different"] is True
    (row,) = [row for row in data["rows"] if (row["measure"], row["stat"]) == ("response_time", "p99")]
    assert (row["workflow"], row["step"], row["verdict"]) == ("Shop", "get", "slower")
    assert row["low"] < row["difference"] < row["high"] and row["b"] - row["a"] == pytest.approx(row["difference"])
    assert data["rules"] == [
        {"rule": "rate -5%", "broken": False, "shown": "±0/s (±0.0 %), within noise", "answer": "held"}
    ]
    assert (row["answer"], row["needs"], data["within"]) == ("different", None, 0.05)
    assert row["a_low"] < row["a"] < row["a_high"] and row["at_least"] > 0


def test_comparison_is_the_same_every_time() -> None:
    a, b = one_step("job-a", ms=50), one_step("job-b", ms=60)
    assert compared(a, b).to_json() == compared(a, b).to_json()
