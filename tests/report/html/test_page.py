"""The HTML report: the verdict at a glance, every number of the document, and nothing that a document can smuggle
in."""

import base64
import hashlib
import random
import re
import types
import typing
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from talka.report.building import step_of
from talka.report.charts import log_axis, milliseconds_label, percentile_axis
from talka.report.document import (
    BadResult,
    Check,
    CoreHealth,
    ErrorSample,
    Generator,
    Lost,
    ResultDocument,
    Step,
    StepRow,
    Threshold,
    TimelineRow,
    Totals,
    Workflow,
)
from talka.report.html.charts_page import (
    STEPS_DRAWN,
    binned,
    counted_rows,
    course_of,
    curve,
    ended_at,
    errors_by_kind,
    outline,
    per_second,
)
from talka.report.html.page import html_report
from talka.report.html.script import SCRIPT
from talka.report.plan import PlanDocument, PlannedWorkflow, PlanPoint
from talka.stats.histogram import Histogram
from talka.stats.tally import StepTally
from tests.report import documents
from tests.report.documents import METRICS, RULES, times

TIME_CHARTS = ["rate", "times", "vus", "started"]


# Given: documents.


def recorded(seed: int, count: int, median_us: int = 20_000) -> Histogram:
    source, histogram = random.Random(seed), Histogram()
    for _ in range(count):
        histogram.record(int(source.lognormvariate(0, 0.7) * median_us))
    return histogram


def a_step(name: str = "get", *, seed: int = 7, count: int = 2000, median_us: int = 20_000, **changes: Any) -> Step:
    tally = StepTally(ok=count, response_time=recorded(seed, count, median_us))
    tally.service_time = recorded(seed + 1000, count, median_us // 2)
    tally.outcomes = {"200": count}
    return msgspec.structs.replace(step_of(name, True, tally, 10.0, {}), **changes)


def a_workflow(name: str = "Checkout", **changes: Any) -> Workflow:
    return documents.a_workflow(name, **{"iterations": 2000, "steps": [a_step()], **changes})


def a_timeline(length_s: float = 10.0, failed: int = 0) -> list[TimelineRow]:
    source = random.Random(3)
    return [
        TimelineRow(
            round(number / 10, 1), 0.1, 20, 20 + source.randrange(9), failed, 20, 20 + source.random(), 40 + number % 37
        )
        for number in range(round(length_s * 10))
    ]


def a_document(**changes: Any) -> ResultDocument:
    core = CoreHealth("Checkout", 0, 1, 0.43, 1.2, 2.5, 31_000_000)
    usual = {
        "totals": Totals(2000, 2000, 0, 0, 0, 199.6, 2_100_000, 14_300_000, 2000, 0, 20, 0),
        "workflows": [a_workflow()],
        "timeline": a_timeline(),
        "generator": Generator("python", "1.2.3", 0.43, times(0.01), times(0.02), False, [core]),
    }
    return documents.a_document(**{**usual, **changes})


def failing_document() -> ResultDocument:
    """Something of everything."""
    pay = a_step(
        "pay",
        failed=53,
        ok=1945,
        interrupted=2,
        response_time_ms=times(3),
        status_codes={"200": 1945, "503": 50, "0": 3},
        errors={"status": 50, "timeout": 3},
        samples=[
            ErrorSample(0.412, "status", "POST http://shop.test/pay answered 503"),
            ErrorSample(0.5, "status", "POST http://shop.test/pay answered 503"),
            ErrorSample(8.2, "timeout", "POST http://shop.test/pay: no answer within 10 s"),
        ],
    )
    tidy = msgspec.structs.replace(step_of("tidy", False, StepTally(), 10.0, {}), count=2000, ok=2000)
    workflow = a_workflow(
        steps=[a_step("login"), pay, tidy],
        checks=[
            Check("paid", 1900, 100, [ErrorSample(1.0, "check", "paid returned False")]),
            Check("fresh", 7, 0, []),
            Check("late", 0, 0, []),
        ],
        metrics=METRICS,
    )
    return a_document(
        status="partial",
        exit_code=6,
        reasons=["1 shard was lost; what it had not reported is missing.", "At least one threshold was crossed."],
        totals=Totals(4000, 3945, 53, 2, 4, 399.2, 2_100_000, 14_300_000, 2000, 8, 20, 3),
        workflows=[workflow],
        thresholds=RULES,
        timeline=a_timeline(failed=3),
        lost_shards=[Lost("Checkout", 1, "was killed by SIGKILL", 3.0, 4.2, 10, 5)],
        generator=Generator("python", "1.2.3", 0.93, times(0.01), times(0.02), True, []),
        warnings=["the generator was the bottleneck: its busiest core used 93% of a CPU"],
    )


def empty_document() -> ResultDocument:
    step = msgspec.structs.replace(a_step(count=0), count=0, status_codes={})
    return a_document(
        status="failed",
        exit_code=6,
        reasons=["No step was measured, so the job says nothing about the target."],
        duration_s=0.0,
        totals=Totals(0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0),
        workflows=[a_workflow(steps=[step], cores=0, iterations=0)],
        timeline=[],
        generator=Generator("", "1.2.3", 0.0, None, None, False, []),
    )


DOCUMENTS = {"good": a_document(), "failing": failing_document(), "empty": empty_document()}


# When: the page, read back. What does not parse fails here.


def page_of(document: ResultDocument, plan: PlanDocument | None = None) -> ET.Element:
    text = html_report(document, plan)
    doctype, _, markup = text.partition("\n")
    assert doctype == "<!doctype html>"
    return ET.fromstring(markup)


def words(element: ET.Element | None) -> str:
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def part(page: ET.Element, title: str) -> ET.Element:
    return next(found for found in page.iter("section") if found.findtext("h2") == title)


def titles(page: ET.Element) -> list[str]:
    return [words(found) for found in page.iter("h2")]


def table_rows(element: ET.Element) -> list[list[str]]:
    return [[words(cell) for cell in row] for row in element.findall(".//tr")]


def tiles(page: ET.Element) -> dict[str, str]:
    return {words(found.find("dt")): words(found.find("dd")) for found in page.findall(".//dl/div")}


# The verdict.


@pytest.mark.parametrize(
    ("changes", "tone", "verdict"),
    [
        ({"thresholds": [Threshold("failed < 1%", 0.0, True, None, "0 %")]}, "good", "✓ Passed completed, exit code 0"),
        ({"exit_code": 4}, "bad", "✗ Failed completed, exit code 4"),
        ({"exit_code": 6, "status": "partial"}, "bad", "✗ Failed partial, exit code 6"),
        ({"exit_code": 130, "status": "cancelled"}, "bad", "✗ Failed cancelled, exit code 130"),
        (
            {"status": "partial", "reasons": ["1 shard was lost."]},
            "unsure",
            "! Passed, but look closer partial, exit code 0",
        ),
    ],
)
def test_the_banner_says_in_words_and_colour_whether_it_was_good(
    changes: dict[str, Any], tone: str, verdict: str
) -> None:
    page = page_of(a_document(**changes))
    assert words(page.find(".//header/p")) == verdict
    body = page.find("body")
    assert body is not None and body.get("class") == tone


def test_the_banner_gives_the_reasons_and_what_was_crossed() -> None:
    banner = page_of(failing_document()).find(".//header")
    assert banner is not None
    assert [words(item) for item in banner.findall("ul/li")] == [
        "1 shard was lost; what it had not reported is missing.",
        "At least one threshold was crossed.",
        "The generator was saturated: the target may be faster than these numbers.",
        "✗ pay.failed < 0.1%: measured 0.436 %",
    ]
    assert "20 VUs for 10s" in words(banner) and "ran 10.0 s on 2 cores" in words(banner)


def test_an_exit_code_without_a_reason_is_explained() -> None:
    assert "A threshold was crossed." in words(page_of(a_document(exit_code=4)).find(".//header"))
    assert "no meaning that is known" in words(page_of(a_document(exit_code=77)).find(".//header"))


def test_of_many_crossed_thresholds_the_banner_names_a_few_and_counts_the_rest() -> None:
    rules = [Threshold(f"step_{number}.failed < 1%", 0.5, False, None, "50 %") for number in range(12)]
    page = page_of(a_document(exit_code=4, thresholds=rules))
    assert "✗ 7 more thresholds were crossed." in words(page.find(".//header"))
    assert len(table_rows(part(page, "Thresholds"))) == 13


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"totals": Totals(2000, 1990, 10, 0, 0, 199.6, 0, 0, 2000, 0, 20, 0)},
            "10 of 2,000 requests failed (0.50 %).",
        ),
        ({"totals": Totals(2000, 2000, 0, 0, 7, 199.6, 0, 0, 2000, 0, 20, 0)}, "7 requests could not be sent."),
        ({"workflows": [a_workflow(checks=[Check("paid", 5, 3, [])])]}, "Checks failed 3 times."),
        ({"generator": Generator("python", "1", 0.9, None, None, True, [])}, "The generator was saturated"),
    ],
)
def test_a_job_nobody_judged_is_not_plainly_good_if_something_went_wrong(changes: dict[str, Any], said: str) -> None:
    page = page_of(a_document(**changes))
    assert "Passed, but look closer" in words(page.find(".//header/p"))
    assert said in words(page.find(".//header/ul"))


def test_failures_that_a_threshold_allows_leave_it_good() -> None:
    held = Threshold("failed < 1%", 0.005, True, None, "0.5 %")
    totals = Totals(2000, 1990, 10, 0, 0, 199.6, 0, 0, 2000, 0, 20, 0)
    page = page_of(a_document(totals=totals, thresholds=[held]))
    assert words(page.find(".//header/p")).startswith("✓ Passed completed")
    assert "Every threshold held (1)." in words(page.find(".//header/ul"))


def test_a_job_without_thresholds_says_that_nothing_was_judged() -> None:
    assert "No threshold was set" in words(page_of(a_document()).find(".//header/ul"))


def test_key_numbers_are_those_of_the_document() -> None:
    document = a_document()
    (step,) = document.workflows[0].steps
    assert step.response_time_ms is not None
    assert tiles(page_of(document)) == {
        "Requests": "2,000",
        "Rate": "200/s",
        "Failed": "0 %",
        "Response p50": f"{step.response_time_ms.p50:.1f} ms",
        "Response p95": f"{step.response_time_ms.p95:.1f} ms",
        "Response p99": f"{step.response_time_ms.p99:.1f} ms",
        "Virtual users": "20",
        "Iterations": "2,000",
    }


def test_what_was_dropped_not_sent_or_interrupted_is_a_key_number_only_if_there_is_any() -> None:
    found = tiles(page_of(failing_document()))
    assert (found["Dropped"], found["Not sent"], found["Interrupted"]) == ("8", "4", "2")
    assert found["Failed"] == "1.42 %"


def test_thresholds_have_a_sign_and_what_was_measured() -> None:
    assert table_rows(part(page_of(failing_document()), "Thresholds"))[1:] == [
        ["✗", "pay.failed < 0.1%", "0.436 %"],
        ["✓", "response_time.p99 < 250ms", "120 ms"],
    ]


def test_many_thresholds_that_held_are_folded_and_crossed_ones_never() -> None:
    held = [Threshold(f"step_{number}.failed < 1%", 0.0, True, None, "0 %") for number in range(30)]
    crossed = [Threshold(f"worse_{number}.failed < 1%", 0.5, False, None, "50 %") for number in range(10)]
    few = part(page_of(a_document(thresholds=held)), "Thresholds")
    assert words(few.find("details/summary")) == "22 more held"
    many = part(page_of(a_document(exit_code=4, thresholds=held + crossed)), "Thresholds")
    shown = many.find("div")
    assert shown is not None
    assert [row[0] for row in table_rows(shown)[1:]] == ["✗"] * 10
    assert words(many.find("details/summary")) == "30 more held"


# Charts.


def test_all_charts_are_there_and_their_names_are_unique() -> None:
    page = page_of(a_document())
    names = [str(found.get("id")).removesuffix("-title") for found in page.findall(".//svg/title[@id]")]
    assert names == [*TIME_CHARTS, "distribution", "percentiles"]
    assert len({found.get("id") for found in page.iter() if found.get("id")}) == 2 * len(names) + 1


def test_rows_of_any_width_become_rates() -> None:
    rows = [TimelineRow(0, 60, 0, 6000, 0, 1, None, None), TimelineRow(60, 0.1, 0, 10, 0, 1, None, None)]
    assert [cell.value for cell in per_second(rows, lambda row: row.requests)] == [100, 100]
    assert per_second([TimelineRow(0, 0, 0, 6, 0, 1, None, None)], lambda row: row.requests)[0].value is None


def test_charts_say_the_highest_values_to_who_cannot_see_them() -> None:
    rows = [TimelineRow(0, 10, 20, 500, 30, 4, 12.0, 80.0), TimelineRow(10, 0.1, 3, 9, 1, 5, None, None)]
    texts = [words(found) for found in page_of(a_document(timeline=rows, duration_s=10.1)).findall(".//desc")]
    assert texts[:4] == [
        "At most 90 requests and 10 failures per second.",
        "The median was at most 12.0 ms, the 99th percentile at most 80.0 ms.",
        "At most 5 users were active.",
        "At most 30 iterations were started per second.",
    ]


def frame_of(page: ET.Element, name: str) -> ET.Element:
    found = page.find(f".//svg[@aria-labelledby='{name}-title {name}-text']")
    assert found is not None
    return found


def values_in(page: ET.Element, name: str) -> dict[str, list[tuple[float, float]]]:
    """The values that the script shows, by the name of their line."""
    return {
        str(path.get("data-name")): [
            (float(x), float(value)) for pair in str(path.get("data-values")).split() for x, value in [pair.split(",")]
        ]
        for path in frame_of(page, name).findall(".//path[@data-values]")
    }


def test_lines_carry_the_values_that_were_measured_for_the_pointer() -> None:
    rows = [TimelineRow(0.0, 0.5, 5, 50, 0, 3, 12.25, 80.0, 40.5), TimelineRow(0.5, 0.5, 5, 60, 2, 3, 13.5, 90.0, 41.0)]
    page = page_of(a_document(timeline=rows, duration_s=1.0))
    assert frame_of(page, "times").get("data-x") == "time 0 1 linear"
    assert frame_of(page, "times").get("data-y") == "ms"
    found = values_in(page, "times")
    assert {name: sorted({value for _, value in points}) for name, points in found.items()} == {
        "p99": [80, 90],
        "p95": [40.5, 41],
        "p50": [12.25, 13.5],
    }
    assert [x for x, _ in found["p50"]] == [0, 500, 500, 1000]
    assert sorted({value for _, value in values_in(page, "rate")["requests"]}) == [100, 120]


def test_p95_is_drawn_over_time_where_the_result_has_it() -> None:
    old = a_document()
    new = a_document(timeline=[msgspec.structs.replace(row, response_p95_ms=30.0) for row in a_timeline()])
    assert list(values_in(page_of(old), "times")) == ["p99", "p50"]
    assert list(values_in(page_of(new), "times")) == ["p99", "p95", "p50"]


@pytest.mark.parametrize(
    ("duration_s", "requests", "widths"),
    [
        (1.0, 10, [0.1] * 10),
        (0.96, 6, [*[0.1] * 9, 0.06]),
        (0.92, 2, [0.1] * 9),
        (0.9, 2, [0.1] * 10),
        (5.0, 2, [0.1] * 10),
    ],
)
def test_last_window_that_was_cut_short_is_no_collapse(duration_s: float, requests: int, widths: list[float]) -> None:
    rows = [TimelineRow(number / 10, 0.1, 10, 10, 0, 3, 5.0, 9.0) for number in range(9)]
    rows.append(TimelineRow(0.9, 0.1, requests, requests, 0, 3, 5.0, 9.0))
    found = counted_rows(a_document(timeline=rows, duration_s=duration_s))
    assert [row.width_s for row in found] == pytest.approx(widths)
    if duration_s == 0.96:
        assert per_second(found, lambda row: row.requests)[-1].value == pytest.approx(100)


def test_only_window_of_a_run_stays_however_short_it_was() -> None:
    (row,) = counted_rows(a_document(timeline=[TimelineRow(0.0, 0.1, 1, 1, 0, 1, 5.0, 5.0)], duration_s=0.01))
    assert row.width_s == 0.01
    assert counted_rows(a_document(timeline=[])) == []


def test_planned_line_of_a_stopped_run_ends_where_the_run_ended() -> None:
    ramp = [(0.0, 0.0), (10.0, 100.0), (10.0, 50.0), (20.0, 50.0)]
    assert ended_at(4.0, ramp) == [(0.0, 0.0), (4.0, 40.0)]
    assert ended_at(15.0, ramp) == [(0.0, 0.0), (10.0, 100.0), (10.0, 50.0), (15.0, 50.0)]
    assert ended_at(20.0, ramp) == ramp and ended_at(25.0, ramp) == ramp and ended_at(5.0, []) == []
    stopped = a_document(timeline=a_timeline(4.0), duration_s=4.0, status="cancelled", exit_code=130)
    page = page_of(stopped, plan_of(planned("A", (0, 0), (100, 1000), model="closed")))
    assert values_in(page, "vus")["planned"][-1] == (1000, 40)
    labels = [words(found) for found in frame_of(page, "vus").findall(".//text[@class='y']")]
    assert "1,000" not in labels, "the scale is that of what could be reached"


def step_rows(*names: str, failed: int = 0) -> list[StepRow]:
    return [
        StepRow(name, number / 10, 0.1, 5, failed, {"status": failed} if failed else {}, 10.0, 20.0, 30.0 + number)
        for number in range(20)
        for name in names
    ]


def test_each_step_has_its_series_where_the_result_has_them() -> None:
    assert "Steps over time" not in titles(page_of(a_document()))
    workflow = a_workflow(timeline=step_rows("login", "pay", failed=1))
    page = page_of(a_document(workflows=[workflow]))
    captions = [words(found.find("figcaption/b")) for found in part(page, "Steps over time").iter("figure")]
    assert captions == [
        "login: response time",
        "login: runs per second",
        "pay: response time",
        "pay: runs per second",
    ]
    assert list(values_in(page, "step-0-times")) == ["p99", "p95", "p50"]
    assert max(value for _, value in values_in(page, "step-0-times")["p99"]) == 49
    assert {name: {value for _, value in points} for name, points in values_in(page, "step-1-rate").items()} == {
        "runs": {50},
        "failed": {10},
    }


def test_last_window_of_a_step_that_was_cut_short_is_no_collapse_either() -> None:
    rows = [row for row in step_rows("login", "pay") if row.t_s < 1.0]
    rows += [StepRow(name, 1.0, 0.1, 1, 0, {}, 9.0, 9.0, 9.0) for name in ("login", "pay")]
    for duration_s, rates in ((1.02, {50}), (1.1, {10, 50}), (1.05, {20, 50})):
        page = page_of(a_document(workflows=[a_workflow(timeline=rows)], timeline=[], duration_s=duration_s))
        for number in (0, 1):
            assert {round(value) for _, value in values_in(page, f"step-{number}-rate")["runs"]} == rates


def test_steps_of_several_workflows_are_named_with_them_and_the_rest_is_counted() -> None:
    names = [f"step{number}" for number in range(STEPS_DRAWN)]
    workflows = [a_workflow(timeline=step_rows(*names)), a_workflow("Pay", timeline=step_rows("pay"))]
    found = part(page_of(a_document(workflows=workflows)), "Steps over time")
    assert len(list(found.iter("figure"))) == 2 * STEPS_DRAWN
    assert "Checkout.step0: response time" in words(found)
    assert "1 more are in the result document." in words(found)


def test_errors_by_kind_are_drawn_over_time() -> None:
    rows = [msgspec.structs.replace(row, errors={"status": 2, "timeout": 1}) for row in a_timeline(failed=3)]
    page = page_of(a_document(timeline=rows))
    found = values_in(page, "errors")
    assert {name: {value for _, value in points} for name, points in found.items()} == {"status": {20}, "timeout": {10}}
    by_step = page_of(a_document(workflows=[a_workflow(timeline=step_rows("login", "pay", failed=1))]))
    assert {value for _, value in values_in(by_step, "errors")["status"]} == {20}
    assert "Errors by kind" not in words(part(page_of(a_document()), "Over time"))


def test_rare_kinds_of_errors_are_one_line() -> None:
    found = errors_by_kind(
        [(0.0, 2.0, {f"kind{number}": 20 - number for number in range(9)}), (2.0, 0.0, {"kind0": 5})]
    )
    assert list(found) == ["kind0", "kind1", "kind2", "kind3", "kind4", "others"]
    assert [cell.value for cell in found["others"]] == [(15 + 14 + 13 + 12) / 2]
    assert [cell.value for cell in found["kind0"]] == [10]
    assert errors_by_kind([(0.0, 1.0, {})]) == {}


def test_lost_shards_are_bands_in_every_chart_over_time() -> None:
    page = page_of(failing_document())
    for name in TIME_CHARTS:
        frame = page.find(f".//svg[@aria-labelledby='{name}-title {name}-text']")
        assert frame is not None
        assert "Checkout shard 1: the core was killed by SIGKILL" in words(frame.find("rect[@class='band']"))
    assert "without 10 VUs and 5 arrivals" in words(part(page, "Lost shards"))


def test_a_job_that_sent_nothing_says_so_instead_of_drawing_it() -> None:
    page = page_of(empty_document())
    assert "Nothing was sent." in words(part(page, "Over time"))
    assert "Distribution" not in titles(page)
    assert tiles(page)["Response p99"] == tiles(page)["Failed"] == "–"


def planned(name: str, *course: tuple[float, float], model: str = "open", after: str = "") -> PlannedWorkflow:
    points = [PlanPoint(*point) for point in course]
    return PlannedWorkflow(name, model, "…", 10, 1, 10.0, None, None, points, [after] if after else [], [])


def plan_of(*workflows: PlannedWorkflow) -> PlanDocument:
    return PlanDocument(cores=2, workflows=list(workflows))


def test_courses_of_several_workflows_add_up_and_jumps_stay_jumps() -> None:
    ramp = planned("A", (0, 0), (10, 100))
    steps = planned("B", (0, 10), (5, 10), (5, 30), (10, 30))
    assert course_of(plan_of(ramp, steps), "open") == [(0, 10), (5, 60), (5, 80), (10, 130)]


def test_a_workflow_that_ends_early_adds_nothing_afterwards() -> None:
    plan = plan_of(planned("A", (0, 5), (10, 5)), planned("B", (0, 2), (4, 2)))
    assert course_of(plan, "open") == [(0, 7), (4, 7), (4, 5), (10, 5)]


@pytest.mark.parametrize(
    "plan",
    [
        None,
        plan_of(),
        plan_of(planned("A", (0, 1), (1, 1)), planned("B", (0, 1), (1, 1), after="A")),
        plan_of(planned("A", (0, 1), (1, 1)), planned("B", (0, 1), (1, 1), model="closed")),
        plan_of(planned("A")),
    ],
)
def test_a_course_that_cannot_be_compared_is_not_drawn(plan: PlanDocument | None) -> None:
    assert course_of(plan, "open") == course_of(plan, "closed") == []


@pytest.mark.parametrize(("model", "name"), [("open", "started"), ("closed", "vus")])
def test_the_plan_is_drawn_beside_what_was_reached(model: str, name: str) -> None:
    page = page_of(a_document(), plan_of(planned("A", (0, 10), (10, 500), model=model)))
    figures = {
        str(found.get("id")): words(figure.find("figcaption"))
        for figure in page.iter("figure")
        for found in figure.findall(".//title[@id]")
    }
    assert [found for found, caption in figures.items() if "planned" in caption] == [f"{name}-title"]
    frame = page.find(f".//svg[@aria-labelledby='{name}-title {name}-text']")
    assert frame is not None
    assert "600" in [words(found) for found in frame.findall(".//text[@class='y']")]


def test_the_percentile_curve_is_that_of_the_histogram() -> None:
    histogram = recorded(1, 5000)
    points = curve(histogram, percentile_axis(histogram.count))
    for place, ms in points[::7]:
        # At no percent the histogram gives the lowest value of a counter, the curve the highest.
        if place:
            assert round(ms * 1000) == histogram.percentile(100 * (1 - 10**-place))
    assert round(points[-1][1] * 1000) == histogram.max


def test_bins_hold_every_sample_and_their_outline_starts_and_ends_on_the_ground() -> None:
    histogram = recorded(1, 5000)
    axis = log_axis(histogram.min / 1000, histogram.max / 1000, milliseconds_label)
    shares = binned(histogram, axis, 60)
    assert sum(shares) == pytest.approx(100)
    points = outline(shares, axis)
    assert points[0] == (axis.low, 0) and points[-1] == (axis.high, 0)
    assert max(share for _, share in points) == max(shares)


def test_a_damaged_histogram_is_told_with_its_step() -> None:
    document = a_document(workflows=[a_workflow(steps=[a_step("login", histogram="AAAA")])])
    with pytest.raises(BadResult, match="step login is damaged: The HdrHistogram text cannot be read"):
        html_report(document)


# Tables.


def test_steps_show_both_times_with_their_percentiles() -> None:
    rows = table_rows(part(page_of(failing_document()), "Steps of Checkout"))
    assert rows[0] == [
        "step",
        "runs",
        "rate",
        "failed",
        "",
        "p50",
        "p90",
        "p95",
        "p99",
        "p99.9",
        "max",
        "response times",
    ]
    assert rows[3][:7] == [
        "pay200 × 1,945, 503 × 50, other × 3",
        "2,000",
        "200/s",
        "53 (2.65 %)",
        "response",
        "69.3 ms",
        "77.7 ms",
    ]
    assert rows[4][0] == "service" and len(rows[4]) == 7
    assert rows[5][:5] == ["tidynot measured", "2,000", "", "0", ""]


def test_names_tell_the_workflow_where_there_are_several() -> None:
    rule = Threshold("failed < 1%", 0.0, True, "Pay", "0 %")
    workflows = [a_workflow(), a_workflow("Pay", checks=[Check("paid", 1, 0, [])])]
    page = page_of(a_document(workflows=workflows, thresholds=[rule]))
    assert table_rows(part(page, "Thresholds"))[1][1] == "Pay: failed < 1%"
    assert table_rows(part(page, "Checks"))[1][1] == "Pay.paid"
    assert "2 workflows" in words(page.find(".//header"))


def test_a_step_that_never_ran_says_so() -> None:
    assert "never ran" in words(part(page_of(empty_document()), "Steps of Checkout"))


def test_what_went_wrong_with_a_workflow_is_told_with_it() -> None:
    page = page_of(a_document(workflows=[a_workflow(failure="its setup raised", dropped_iterations=3)]))
    assert "✗ its setup raised" in words(part(page, "Steps of Checkout"))
    assert "3 dropped" in words(part(page, "Steps of Checkout"))


def test_errors_are_counted_by_kind_with_samples_that_differ() -> None:
    found = [words(item) for item in part(page_of(failing_document()), "Errors").findall("details")]
    assert found == [
        "status × 50 the answer had a status that was not expected0.4 s pay: POST http://shop.test/pay answered 503",
        "timeout × 3 no answer in time8.2 s pay: POST http://shop.test/pay: no answer within 10 s",
    ]


def test_checks_and_metrics_are_listed() -> None:
    page = page_of(failing_document())
    assert table_rows(part(page, "Checks"))[1:] == [
        ["✗", "paid", "1,900", "100 (5.00 %)", "1.0 s paid returned False"],
        ["✓", "fresh", "7", "0", ""],
        ["", "late", "never ran", "0", ""],
    ]
    assert table_rows(part(page, "Metrics"))[1] == ["orders", "count total 12,000 1,198/s"]


def test_the_generator_shows_its_health_core_by_core() -> None:
    good = part(page_of(a_document()), "Generator")
    assert "Not saturated" in words(good)
    assert table_rows(good)[1] == ["Checkout", "0", "1", "43 %", "1.20 ms", "2.50 ms", "31.0 MB"]
    assert "Saturated: the target may be faster" in words(part(page_of(failing_document()), "Generator"))


def test_lags_that_were_not_measured_are_not_shown_as_numbers() -> None:
    core = CoreHealth("Checkout", 0, 1, 0.43, None, None, 31_000_000)
    found = part(page_of(a_document(generator=Generator("python", "1", 0.4, None, None, False, [core]))), "Generator")
    assert table_rows(found)[1][4:6] == ["–", "–"]


def test_the_environment_tells_version_file_start_and_cores() -> None:
    found = dict(table_rows(part(page_of(a_document()), "Environment")))
    assert found["Talka"] == "1.2.3, engine python"
    assert found["file"] == "tests/shop.py"
    assert found["started"] == "2026-11-15T12:00:00+00:00"
    assert (found["duration"], found["cores"]) == ("10.020 s", "2 cores")


def test_both_times_and_both_models_are_explained() -> None:
    text = words(page_of(a_document()))
    assert "Response time runs from the intended start" in text and "Service time runs from the send" in text
    assert "Open: users arrive on a schedule" in text and "Closed: users wait for their answers" in text


def test_sections_without_content_are_left_out() -> None:
    always = ["Over time", "Distribution", "Steps of Checkout", "Generator", "Environment"]
    assert titles(page_of(a_document())) == always
    assert titles(page_of(failing_document())) == [
        *["Thresholds", "Warnings", "Over time", "Distribution", "Steps of Checkout", "Errors", "Checks", "Metrics"],
        *["Lost shards", "Generator", "Environment"],
    ]


def test_of_very_many_steps_and_samples_the_rest_is_only_counted() -> None:
    steps = [a_step(f"step_{number}", count=3, errors={f"kind_{number}": 1}) for number in range(150)]
    page = page_of(a_document(workflows=[a_workflow(steps=steps)], warnings=["w"] * 150))
    assert "50 more are in the result document." in words(part(page, "Steps of Checkout"))
    assert "50 more are in the result document." in words(part(page, "Warnings"))
    assert len(part(page, "Errors").findall("details")) == 100


# One file, that asks for nothing and believes nothing.


def long_document() -> ResultDocument:
    """A minute, twenty steps, each with times of its own, failures and samples."""
    samples = [ErrorSample(number, "status", f"POST http://shop.test/{number} answered 503") for number in range(5)]
    steps = [
        a_step(
            f"step_number_{number}",
            seed=number,
            count=3000,
            median_us=500 * (number + 1) ** 2,
            failed=20,
            errors={"status": 20},
            samples=samples,
        )
        for number in range(20)
    ]
    rules = [Threshold(f"step_number_{number}.response_time.p99 < 9s", 0.1, True, None, "…") for number in range(20)]
    workflow = a_workflow(steps=steps, checks=[Check(f"check_{number}", 9, 1, samples) for number in range(20)])
    return a_document(duration_s=60.0, workflows=[workflow], thresholds=rules, timeline=a_timeline(60.0, failed=2))


def test_a_minute_of_twenty_steps_fits_in_200_kilobytes() -> None:
    assert len(html_report(long_document()).encode()) < 200_000


def busy_document() -> ResultDocument:
    """Ten minutes, ten steps: windows of 100 ms for the last minute, 10 s before, and a row for each step in each."""
    source = random.Random(5)
    stretches = [(start, 10.0) for start in range(0, 540, 10)]
    stretches += [(round(540 + number / 10, 1), 0.1) for number in range(600)]
    rows = []
    for start, width in stretches:
        for number in range(10):
            count = max(1, round(40 * width))
            times_ms = sorted(source.lognormvariate(3, 0.6) for _ in range(3))
            errors = {"status": source.randrange(3), "timeout": source.randrange(2)}
            failed = sum(errors.values())
            rows.append(StepRow(f"step_number_{number}", start, width, count, failed, errors, *times_ms))
    timeline = []
    for start, width in stretches:
        of_all = sorted(source.lognormvariate(3, 0.6) for _ in range(3))
        count = round(400 * width) + source.randrange(20)
        row = TimelineRow(
            start, width, count, count, 15, 20, of_all[0], of_all[2], of_all[1], {"status": 9, "timeout": 6}
        )
        timeline.append(row)
    busy = long_document()
    workflow = msgspec.structs.replace(busy.workflows[0], timeline=rows, steps=busy.workflows[0].steps[:10])
    return msgspec.structs.replace(busy, workflows=[workflow], timeline=timeline, duration_s=600.0)


def test_ten_minutes_of_ten_steps_with_their_series_fit_in_200_kilobytes() -> None:
    assert len(html_report(busy_document()).encode()) < 200_000


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_needs_no_other_file_and_has_one_script_of_its_own(name: str) -> None:
    page = page_of(DOCUMENTS[name])
    tags = {found.tag for found in page.iter()}
    assert not tags & {"img", "image", "iframe", "object", "embed", "use", "a", "form", "base"}
    assert [found.text for found in page.iter("script")] == [SCRIPT]
    (link,) = page.iter("link")
    assert link.get("href") == "data:,"
    for found in page.iter():
        assert not {name for name in found.attrib if name in ("style", "src", "srcset") or name.startswith("on")}
        if found is not link:
            assert "href" not in found.attrib
    style = page.findtext(".//style") or ""
    assert "@import" not in style and "@font-face" not in style
    assert set(re.findall(r"url\([^)]*\)", style)) == {"url(#hatch)"}


def test_the_page_forbids_all_but_its_own_style_and_script() -> None:
    page = page_of(a_document())
    digests = [
        base64.b64encode(hashlib.sha256((page.findtext(f".//{tag}") or "").encode()).digest()).decode()
        for tag in ("style", "script")
    ]
    policy = page.find(".//meta[@http-equiv='Content-Security-Policy']")
    assert policy is not None
    assert str(policy.get("content")).startswith(
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}';"
    )
    assert "unsafe" not in str(policy.get("content"))


def test_the_script_keeps_the_page_well_formed_and_asks_for_nothing() -> None:
    assert not set("<&") & set(SCRIPT)
    for word in ("fetch", "XMLHttp", "eval", "innerHTML", "import(", "localStorage", "document.cookie"):
        assert word not in SCRIPT


def test_there_is_a_look_for_paper_for_the_dark_and_for_phones() -> None:
    style = page_of(a_document()).findtext(".//style") or ""
    for query in ("@media print", "@media (prefers-color-scheme:dark)", "@media (max-width:600px)"):
        assert query in style


HOSTILE = "</style><script>alert('1')</script>\"><img src=x onerror=alert(1)>&amp;\x00\x1b]0;\u202e\ud800"


def spoiled(value: Any) -> Any:
    """The same document with all of its texts replaced. Histograms stay: they are read, not shown."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, list):
        return [spoiled(item) for item in value]
    if isinstance(value, dict):
        return {f"{HOSTILE}{key}": spoiled(item) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return type(value)(
            **{name: item if name.endswith("histogram") else spoiled(item) for name, item in fields.items()}
        )
    return value


def test_no_text_of_a_document_becomes_markup() -> None:
    honest, hostile = page_of(failing_document()), page_of(spoiled(failing_document()))
    assert {found.tag for found in hostile.iter()} <= {found.tag for found in honest.iter()}
    text = "".join(hostile.itertext())
    assert "<script>alert('1')</script>\"><img src=x onerror=alert(1)>&amp;\ufffd\ufffd]0;\ufffd\ufffd" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-5, 10**13),
    float: st.one_of(st.floats(0, 1e7), st.floats(allow_infinity=False, allow_nan=False)),
    str: st.one_of(st.text(max_size=40), st.sampled_from(["status", "count", "get", "支払い" * 30, "word " * 90])),
    bool: st.booleans(),
    type(None): st.none(),
}
CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "histogram": st.sampled_from([None, a_step().histogram, empty_document().workflows[0].steps[0].histogram]),
    "service_histogram": st.sampled_from([None, a_step().service_histogram]),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of the type, however unlikely."""
    if kind in SCALARS:
        return SCALARS[kind]
    arguments = [values_of(argument) for argument in typing.get_args(kind)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return st.one_of(arguments)
    if typing.get_origin(kind) is list:
        return st.lists(arguments[0], max_size=3)
    if typing.get_origin(kind) is dict:
        return st.dictionaries(*arguments, max_size=2)
    fields = {
        field.name: CHOICES[field.name] if field.name in CHOICES else values_of(field.type)
        for field in msgspec.structs.fields(kind)
    }
    return st.builds(lambda found: kind(**found), st.fixed_dictionaries(fields))


@settings(deadline=None, derandomize=True, max_examples=40, phases=[Phase.explicit, Phase.generate])
@given(document=values_of(ResultDocument))
def test_every_document_makes_a_page(document: ResultDocument) -> None:
    assert titles(page_of(document))[-1] == "Environment"


# Calls, and one meaning of failed.


def test_calls_have_rows_below_their_step_with_tags_and_skipped_runs() -> None:
    runs, page, own = StepTally(ok=3, skipped=7), StepTally(ok=5, failed=1), StepTally(ok=3)
    runs.response_time.record(90_000, 3)
    page.response_time.record(30_000, 6)
    page.service_time.record(20_000, 6)
    step = step_of("shop", True, runs, 10.0, {"kind": "page"}, {"GET /a": page, "shop": own})
    rows = table_rows(part(page_of(a_document(workflows=[a_workflow(steps=[step])])), "Steps of Checkout"))
    assert [row[:4] for row in rows if row[0].startswith(("shop", "└"))] == [
        ["shop kind=page skipped 7", "3", "0.300/s", "0"],
        ["└ GET /a", "6", "0.600/s", "1 (16.67 %)"],
        ["└ shop", "3", "0.300/s", "0"],
    ]


def test_many_calls_of_a_step_are_shown_in_part() -> None:
    calls = {f"/item/{number}": StepTally(ok=1) for number in range(500)}
    step = step_of("shop", True, StepTally(ok=1), 10.0, {}, calls)
    found = words(part(page_of(a_document(workflows=[a_workflow(steps=[step])])), "Steps of Checkout"))
    assert 50 <= found.count("└ /item/") <= 100


def test_failed_is_the_worse_of_steps_and_requests_and_who_failed_is_told_at_the_top() -> None:
    bad = a_step("pay", ok=400, failed=1600, errors={"check": 1600})
    page = page_of(a_document(workflows=[a_workflow(steps=[bad])]))
    assert tiles(page)["Failed"] == "80.00 %"
    banner = words(page)
    assert "1,600 of 2,000 steps failed (80.00 %)." in banner
    assert "pay: 1,600 of 2,000 runs failed (80.00 %), mostly by an assertion." in banner


def test_a_disturbed_generator_says_so() -> None:
    document = a_document()
    disturbed = msgspec.structs.replace(document.generator, verdict="disturbed")
    page = page_of(msgspec.structs.replace(document, generator=disturbed))
    assert "Disturbed: it was late while it was idle" in words(part(page, "Generator"))
