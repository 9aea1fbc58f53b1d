"""What people read at the end of a job, before one and while it runs: its content, and that it fits any terminal."""

import re
import types
import typing
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.load_job import LoadJob
from talka.control.load.planning import plan_load_job
from talka.report.document import (
    Call,
    Check,
    CoreHealth,
    ErrorSample,
    Generator,
    Job,
    Lost,
    Metric,
    ResultDocument,
    Threshold,
    Totals,
)
from talka.report.plan import plan_document, plan_text
from talka.report.summary import BadStats, cause_text, frequent_errors, parse_stats, progress_line, summary
from talka.report.text import bytes_text, cut, number_text, rate_text, seconds_text, share_text, time_text
from talka.stats import hdr
from talka.stats.histogram import Histogram
from talka.stats.tally import Exchanges, Sample, StepTally, Tally
from talka.units import SECOND
from talka.wire.shards import Armed, Settings, StepTotals, UrlSource
from talka.wire.shards import Totals as TotalsMessage
from talka.work import dsl
from talka.work.dsl import Provide, Use, action, check, depends, metric, on_start, on_stop, state, step
from talka.work.feeds import Feed, between
from talka.work.inspection import inspect_workflows
from talka.work.responses import HTTPResponse
from talka.work.shapes import ConstantRate, ConstantVUs, IterationsPerVU, RampingVUs, SharedIterations
from talka.work.specs import WorkflowSpec
from tests.report.documents import METRICS, RULES, a_document, a_step, a_workflow, times, view_of

SGR = re.compile(r"\x1b\[[0-9]*m")


# Given: documents.


def failing_document() -> ResultDocument:
    """Something of everything."""
    pay = a_step(
        "pay",
        ok=12_100,
        failed=53,
        interrupted=2,
        response_time_ms=times(3),
        service_time_ms=times(2.9),
        status_codes={"200": 12_100, "503": 50},
        errors={"status": 50, "timeout": 3},
        samples=[
            ErrorSample(0.412, "status", "POST http://shop.test/pay answered 503"),
            ErrorSample(8.2, "timeout", "POST http://shop.test/pay: no answer within 10 s"),
        ],
    )
    tidy = a_step("tidy", measured=False, response_time_ms=None, service_time_ms=None, status_codes={})
    workflow = a_workflow(
        steps=[a_step("login"), pay, tidy],
        checks=[
            Check("paid", 12_000, 100, [ErrorSample(1.0, "check", "paid returned False")]),
            Check("fresh", 7, 0, []),
        ],
        metrics=METRICS,
    )
    return a_document(
        exit_code=4,
        reasons=["At least one threshold was crossed."],
        totals=Totals(24_310, 24_255, 53, 2, 4, 2426.1, 2_100_000, 14_300_000, 12_155, 0, 20, 3),
        workflows=[workflow],
        thresholds=RULES,
        lost_shards=[Lost("Checkout", 1, "was killed by SIGKILL", 3.0, 4.2, 10, 0)],
        generator=Generator("python", "1.2.3", 0.93, times(0.01), times(0.02), True, []),
        warnings=["the generator was the bottleneck: its busiest core used 93% of a CPU"],
    )


GOLDEN = """\
✗ COMPLETED, THRESHOLD CROSSED  shop.py  (exit code 4)
  20 VUs for 10s · ran 10.0 s on 2 cores · started 2026-11-15T12:00:00+00:00
  At least one threshold was crossed.
  Most frequent error: status 503 from shop.test × 50.

THRESHOLDS
  ✓ response_time.p99 < 250ms  120 ms
  ✗ pay.failed < 0.1%          0.436 %

TOTALS
  requests     24,310  2,426/s
  ok           24,255  99.77 %
  failed           53  0.22 %
  interrupted       2
  not sent          4  0.23 % failed with these
  steps failed     53  0.22 %
  iterations   12,155
  dropped           0
  data         2.10 MB sent, 14.3 MB received
  connections  20 opened, 3 reconnects

STEPS of Checkout
  20 VUs for 10s · closed model · 2 cores · completed after 10.0 s ·
  12,155 iterations
                   p50       p90       p95       p99     p99.9       max
  login  12,155 runs  1,216/s  failed 0
    response   23.1 ms   25.9 ms   30.4 ms   41.2 ms    100 ms    1.20 s
    service     462 µs    518 µs    608 µs    824 µs   2.00 ms   24.1 ms
    status    200 × 12,155
  pay    12,155 runs  1,216/s  failed 53 (0.44 %)  interrupted 2
    response   69.3 ms   77.7 ms   91.2 ms    124 ms    300 ms    3.61 s
    service    67.0 ms   75.1 ms   88.2 ms    119 ms    290 ms    3.49 s
    status    200 × 12,100, 503 × 50
  not measured: tidy 12,155 runs

response: time from the intended start. service: time from the send.
Closed model: a stalled server is met only by the requests under way. Use an
arrival rate to see what users would feel.

ERRORS
  status  50
    0.4 s  pay: POST http://shop.test/pay answered 503
  timeout  3
    8.2 s  pay: POST http://shop.test/pay: no answer within 10 s

CHECKS
  ✗ paid   passed 12,000  failed 100 (0.83 %)
      1.0 s  paid returned False
  ✓ fresh  passed 7  failed 0

METRICS
  orders  count  total 12,000  1,198/s
  basket  distribution  12,000 values  min 0.5  mean 10.5  p50 9.5  p99.9 50.25
          max 99

LOST SHARDS
  Checkout shard 1  3.0 s to 4.2 s, without 10 VUs: the core was killed by
                    SIGKILL

GENERATOR
  engine python · busiest core at 93 % of a CPU · start lag p99 412 µs ·
  loop lag p99 824 µs · start skew 410 µs
  Saturated: the target may be faster than these numbers.

WARNINGS
  ! the generator was the bottleneck: its busiest core used 93% of a CPU"""


def test_the_whole_summary_looks_like_this() -> None:
    assert summary(failing_document(), width=80) == GOLDEN


# The verdict.


@pytest.mark.parametrize(
    ("status", "exit_code", "first_line"),
    [
        ("completed", 0, "✓ COMPLETED  shop.py"),
        ("partial", 0, "✓ PARTIAL  shop.py"),
        ("completed", 4, "✗ COMPLETED, THRESHOLD CROSSED  shop.py  (exit code 4)"),
        ("failed", 5, "✗ FAILED  shop.py  (exit code 5)"),
        ("partial", 6, "✗ PARTIAL  shop.py  (exit code 6)"),
        ("cancelled", 130, "✗ CANCELLED  shop.py  (exit code 130)"),
    ],
)
def test_the_first_line_is_the_verdict(status: str, exit_code: int, first_line: str) -> None:
    assert summary(a_document(status=status, exit_code=exit_code)).splitlines()[0] == first_line


def test_reasons_stand_before_everything_else() -> None:
    text = summary(a_document(exit_code=6, status="failed", reasons=["No answer came.", "One shard was lost."]))
    assert 0 < text.index("No answer came.") < text.index("One shard was lost.") < text.index("TOTALS")


def test_a_good_job_says_whether_anything_was_judged() -> None:
    rule = Threshold("failed < 1%", 0.0, True, None, "0 %")
    assert "Every threshold held (1)." in summary(a_document(thresholds=[rule]))
    assert "No threshold was set" in summary(a_document())
    assert "No threshold was set" not in summary(a_document(exit_code=6, status="failed"))


def test_failed_requests_of_a_good_job_are_told_at_once() -> None:
    totals = msgspec.structs.replace(a_document().totals, ok=12_000, failed=155)
    head = summary(a_document(totals=totals)).partition("TOTALS")[0]
    assert "155 of 12,155 requests failed (1.28 %)." in head


def test_failed_steps_of_a_good_job_are_told_where_they_are_the_worse() -> None:
    """Every request was answered well, and half of the steps say that it was not what they wanted."""
    half = a_step(ok=6_000, failed=6_000, count=12_000, errors={"check": 6_000})
    head = summary(a_document(workflows=[a_workflow(steps=[half])])).partition("TOTALS")[0]
    assert "6,000 of 12,000 steps failed (50.00 %)." in head


def test_a_step_of_which_more_than_half_failed_is_told_at_the_top() -> None:
    bad = a_step("pay", ok=4, failed=6, count=10, errors={"status": 5, "timeout": 1})
    fair = a_step("login", ok=5, failed=5, count=10, errors={"status": 5})
    document = a_document(exit_code=4, workflows=[a_workflow(steps=[fair, bad]), a_workflow("Browse")])
    head = summary(document).partition("TOTALS")[0]
    assert "  Checkout.pay: 6 of 10 runs failed (60.00 %), mostly by their status.\n" in head
    assert "login" not in head


def test_of_many_failing_steps_some_are_named_and_the_others_counted() -> None:
    steps = [a_step(f"s{number}", ok=0, failed=10, count=10) for number in range(5)]
    head = summary(a_document(workflows=[a_workflow(steps=steps)])).partition("TOTALS")[0]
    assert "s2: 10 of 10 runs failed (100 %).\n  2 more steps failed in more than half of their runs." in head


def test_an_exception_of_the_test_is_told_as_its_own_error_with_file_and_line() -> None:
    text = "KeyError: 'token' (shop.py:31)"
    samples = [ErrorSample(4.0, "exception", "later"), ErrorSample(0.5, "exception", text)]
    broken = a_step("pay", failed=3, errors={"exception": 3}, samples=samples)
    found = summary(a_document(workflows=[a_workflow(steps=[broken])]))
    assert f"  The test's own code raised 3 times, first in pay: {text}\n" in found.partition("TOTALS")[0]
    assert "  exception  3  the test's own code\n" in found


def test_cores_of_several_workflows_do_not_add_up() -> None:
    both = [a_workflow("A", cores=2), a_workflow("B", cores=3), a_workflow("C", cores=0, status="skipped")]
    assert "3 workflows · ran 10.0 s on 2 to 3 cores each" in summary(a_document(workflows=both))
    assert "ran 10.0 s on 1 core ·" in summary(a_document(workflows=[a_workflow(cores=1)]))


# Numbers are those of the document.


def test_totals_are_those_of_the_document() -> None:
    totals = Totals(1_234_567, 1_200_000, 34_000, 567, 89, 20_576.1, 999, 1_500_000_000, 7_654, 321, 43, 21)
    text = summary(a_document(totals=totals))
    for expected in (
        "requests     1,234,567  20,576/s",
        "ok           1,200,000  97.20 %",
        "failed          34,000  2.76 %",
        "interrupted        567",
        "not sent            89  2.76 % failed with these",
        "iterations       7,654",
        "dropped            321",
        "999 B sent, 1.50 GB received",
        "43 opened, 21 reconnects",
    ):
        assert expected in text


def test_steps_show_both_times_with_their_percentiles() -> None:
    lines = summary(a_document()).splitlines()
    assert row(lines, "p50") == ["p50", "p90", "p95", "p99", "p99.9", "max"]
    response, service = row(lines, "response"), row(lines, "service")
    assert response == "response 23.1 ms 25.9 ms 30.4 ms 41.2 ms 100 ms 1.20 s".split()
    assert service == "service 462 µs 518 µs 608 µs 824 µs 2.00 ms 24.1 ms".split()
    assert row(lines, "get") == "get 12,155 runs 1,216/s failed 0".split()
    assert row(lines, "status") == "status 200 × 12,155".split()


def row(lines: list[str], first: str) -> list[str]:
    return next(line.split() for line in lines if line.split()[:1] == [first])


def test_a_step_that_never_ran_says_so() -> None:
    ran = a_step("ship", count=0, ok=0, rate_per_s=0.0, response_time_ms=None, service_time_ms=None, status_codes={})
    text = summary(a_document(workflows=[a_workflow(steps=[ran])]))
    assert "ship  never ran" in text
    assert "p50" not in text and "Closed model" not in text


def test_steps_that_are_not_measured_stand_in_a_line_of_their_own() -> None:
    steps = [a_step(), a_step("warm", measured=False), a_step("tidy", measured=False, ok=12_152, failed=3)]
    text = summary(a_document(workflows=[a_workflow(steps=steps)]))
    assert "  not measured: warm 12,155 runs; tidy 12,155 runs  failed 3 (0.02 %)\n" in text


def a_call(name: str, **changes: Any) -> Call:
    found = Call(name, 30, 28, 2, 0, 3.0, times(0.5), times(0.4), {"200": 28, "503": 2}, {"status": 2}, [], None, None)
    return msgspec.structs.replace(found, **changes)


def test_calls_have_rows_below_their_step() -> None:
    shop = a_step("shop", calls=[a_call("page"), a_call("GET /a.html", failed=0, ok=30)])
    lines = summary(a_document(workflows=[a_workflow(steps=[shop, a_step("pay")])]), width=100).splitlines()
    at = lines.index("  shop  12,155 runs  1,216/s  failed 0")
    assert lines[at + 4] == "  └ page         30 calls  3.00/s  failed 2 (6.67 %)"
    assert lines[at + 5].split()[:3] == ["response", "11.6", "ms"]
    assert lines[at + 7] == "    status    200 × 28, 503 × 2"
    assert lines[at + 8] == "  └ GET /a.html  30 calls  3.00/s  failed 0"
    assert lines[at + 12].startswith("  pay ")


def test_actions_that_made_calls_are_shown_with_their_times() -> None:
    tidy = a_step("tidy", measured=False, histogram="x", calls=[a_call("sweep")])
    text = summary(a_document(workflows=[a_workflow(steps=[a_step(), tidy])]))
    assert "  tidy  12,155 runs\n    response" in text and "  └ sweep  30 calls" in text
    assert "not measured" not in text


def test_errors_of_calls_are_told_where_the_method_itself_does_not_fail_by_them() -> None:
    sample = ErrorSample(0.3, "status", "GET /x answered 500")
    sweep = a_call("sweep", errors={"status": 2, "timeout": 1}, samples=[sample])
    tidy = a_step("tidy", measured=False, histogram="x", calls=[sweep], errors={"timeout": 1})
    shop = a_step("shop", failed=2, errors={"status": 2}, calls=[sweep])
    text = summary(a_document(workflows=[a_workflow(steps=[shop, tidy])]))
    assert "  status  4\n    0.3 s  tidy: GET /x answered 500\n" in text and "  timeout  1\n" in text


def test_skipped_runs_and_tags_are_told_with_a_step() -> None:
    steps = [
        a_step("home", skipped=7, tags={"kind": "page", "area": "shop"}),
        a_step("pay", count=0, ok=0, skipped=3, response_time_ms=None, service_time_ms=None, status_codes={}),
    ]
    text = summary(a_document(workflows=[a_workflow(steps=steps)]))
    assert "  home  12,155 runs  1,216/s  failed 0  skipped 7  {area=shop, kind=page}\n" in text
    assert "  pay   never ran  skipped 3\n" in text


def test_iterations_that_were_cut_off_are_told() -> None:
    totals = msgspec.structs.replace(a_document().totals, interrupted_iterations=12)
    text = summary(a_document(totals=totals, workflows=[a_workflow(interrupted_iterations=12)]))
    assert "  cut off          12  iterations that began and did not end\n" in text
    assert "12,155 iterations · 12 cut off\n" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "open", "implied_vus": 4.2, "mean_vus": None}, "on average 4.2 VUs were busy"),
        ({"model": "open", "implied_vus": 0.0421, "mean_vus": None}, "on average 0.042 VUs were busy"),
        ({"implied_vus": 9.8, "mean_vus": 10.0}, "on average 9.8 of 10.0 VUs were busy"),
        ({"implied_vus": 27.0, "busy_vus": 4.2, "mean_vus": 10.0}, "on average 4.2 of 10.0 VUs were busy"),
        (
            {"implied_vus": 27.0, "mean_vus": 10.0},
            "on average 27.0 steps were under way, as 10.0 VUs ran several at a time",
        ),
    ],
)
def test_how_many_users_were_busy_is_told_and_never_more_than_there_were(changes: Any, told: str) -> None:
    assert f"  {told}\n" in summary(a_document(workflows=[a_workflow(**changes)]))


def test_a_workflow_of_which_nothing_is_known_says_nothing_of_its_users() -> None:
    assert "on average" not in summary(a_document())


def test_of_many_status_codes_the_most_frequent_are_shown() -> None:
    codes = {str(code): code for code in range(400, 412)} | {"0": 9_999}
    text = summary(a_document(workflows=[a_workflow(steps=[a_step(status_codes=codes)])]))
    assert "other × 9,999, 411 × 411, 410 × 410" in text
    assert "5 more codes" in text and "400 ×" not in text


def test_outcomes_of_other_protocols_are_shown_as_status_codes_are() -> None:
    outcomes = {f"WORD{number}": number for number in range(1, 11)} | {"OK": 12_000}
    text = summary(a_document(workflows=[a_workflow(steps=[a_step(status_codes={}, outcomes=outcomes)])]))
    assert "    outcome   OK × 12,000, WORD10 × 10, " in text
    assert "3 more outcomes" in text and "WORD1 ×" not in text and "    status" not in text


def test_an_answer_that_failed_is_named_by_its_label_as_a_cause() -> None:
    assert cause_text("status", "GET http://shop.test:80/a answered 503") == "status 503 from shop.test:80"
    assert cause_text("status", "PING answered BUSY") == "status BUSY"


def test_what_went_wrong_with_a_workflow_is_told_with_it() -> None:
    failed = a_workflow(status="failed", failure="login raised KeyError: 'x'", dropped_iterations=5)
    skipped = a_workflow("Browse", status="skipped", cores=0, iterations=0, duration_s=0.0, steps=[])
    text = summary(a_document(workflows=[failed, skipped]))
    assert "login raised KeyError: 'x'" in text
    assert "12,155 iterations · 5 dropped" in text
    assert "closed model · skipped\n" in text


def test_both_times_are_explained_and_the_closed_model_says_what_it_cannot_see() -> None:
    closed = " ".join(summary(a_document(), width=60).split())
    assert "response: time from the intended start. service: time from the send." in closed
    assert (
        "a stalled server is met only by the requests under way. Use an arrival rate to see what users would feel"
        in closed
    )
    opened = summary(a_document(workflows=[a_workflow(model="open")]))
    assert "intended start" in opened and "stalled" not in opened


def test_names_tell_the_workflow_where_there_are_several() -> None:
    sample = ErrorSample(0.0, "status", "answered 503")
    one = a_workflow(
        "One",
        steps=[a_step(errors={"status": 1}, samples=[sample])],
        checks=[Check("paid", 1, 0, [])],
        metrics=[Metric("size", "sample", 2, 3.0, 0.3, 1.0, 1.5, 2.0, None)],
    )
    rules = [Threshold("failed < 1%", 0.0, True, "One", "0 %"), Threshold("rate > 1/s", 5.0, True, None, "5/s")]
    text = summary(a_document(workflows=[one, a_workflow("Two")], thresholds=rules))
    assert "One.get: answered 503" in text and "✓ One.paid" in text and "One.size  sample  2 values" in text
    assert "✓ One: failed < 1%" in text and "✓ rate > 1/s" in text


def test_at_most_five_samples_are_shown_of_every_kind_in_turn() -> None:
    many = [ErrorSample(float(number), "status", f"answered {500 + number}") for number in range(5)]
    late = [ErrorSample(90.0 + number, "reset", f"broken pipe {number}") for number in range(3)]
    found = a_step(errors={"status": 50, "reset": 3}, samples=[*late, *many])
    text = summary(a_document(workflows=[a_workflow(steps=[found])]))
    assert re.findall(r"answered \d+|broken pipe \d", text) == [
        "answered 500",
        "answered 501",
        "answered 502",
        "broken pipe 0",
        "broken pipe 1",
    ]
    assert text.index("status  50") < text.index("answered 500") < text.index("reset  3") < text.index("broken pipe 0")


def test_samples_that_say_the_same_are_shown_once() -> None:
    same = [ErrorSample(float(number), "refused", "connection refused") for number in range(5)]
    text = summary(a_document(workflows=[a_workflow(steps=[a_step(errors={"refused": 5}, samples=same)])]))
    assert text.count("connection refused") == 1
    assert "    0.0 s  get: connection refused" in text


def test_a_sample_without_a_text_still_tells_when_and_where() -> None:
    silent = a_step(errors={"exception": 1}, samples=[ErrorSample(2.5, "exception", "")])
    assert "    2.5 s  get:\n" in summary(a_document(workflows=[a_workflow(steps=[silent])]))


def test_errors_of_one_kind_add_up_over_steps() -> None:
    steps = [a_step("a", errors={"timeout": 2}), a_step("b", errors={"timeout": 1_000}, measured=False)]
    assert "  timeout  1,002\n" in summary(a_document(workflows=[a_workflow(steps=steps)]))


def test_checks_show_a_sign_and_a_check_that_never_ran_has_none() -> None:
    checks = [Check("good", 10, 0, []), Check("bad", 97, 3, []), Check("unused", 0, 0, [])]
    text = summary(a_document(workflows=[a_workflow(checks=checks)]))
    assert "  ✓ good    passed 10  failed 0\n" in text
    assert "  ✗ bad     passed 97  failed 3 (3.00 %)\n" in text
    assert "  - unused  never ran\n" in text


def test_metrics_are_shown_by_their_kind() -> None:
    metrics = [
        Metric("orders", "rate", 3, 4.5, 0.45, 1.0, 1.5, 2.0, None),
        Metric("size", "sample", 3, 4.5, 0.45, 1.0, 1.5, 2.0, None),
        Metric("unused", "count", 0, 0.0, 0.0, None, None, None, None),
    ]
    text = summary(a_document(workflows=[a_workflow(metrics=metrics)]))
    assert "  orders  rate  total 4.5  0.45/s\n" in text
    assert "  size    sample  3 values  min 1  mean 1.5  max 2\n" in text
    assert "  unused  count, no value\n" in text


def test_lost_shards_tell_when_and_what_is_missing() -> None:
    lost = Lost("Checkout", 3, "exited with status 1", 1.0, 2.5, 1, 1_200)
    text = summary(a_document(lost_shards=[lost]))
    assert "Checkout shard 3  1.0 s to 2.5 s, without 1 VU and 1,200 arrivals: the core exited with status 1" in text


def test_the_generator_says_whether_it_kept_up() -> None:
    assert "Not saturated" in summary(a_document())
    text = summary(failing_document())
    assert "busiest core at 93 % of a CPU" in text and "start lag p99 412 µs" in text and "loop lag p99 824 µs" in text
    assert "start skew 410 µs" in text and "Saturated: " in text
    disturbed = msgspec.structs.replace(a_document().generator, verdict="disturbed")
    assert "Disturbed: it was late while it was idle" in summary(a_document(generator=disturbed))


def test_a_generator_whose_engine_is_unknown_is_still_shown() -> None:
    core = CoreHealth("Checkout", 0, 1, 0.2, None, None, 5)
    assert "engine unknown · busiest core at 20 %" in summary(
        a_document(generator=Generator("", "1", 0.2, None, None, False, [core]))
    )


def test_sections_without_content_are_left_out_and_the_others_are_in_order() -> None:
    titles = "THRESHOLDS TOTALS STEPS ERRORS CHECKS METRICS LOST GENERATOR WARNINGS".split()

    def found(document: ResultDocument) -> list[str]:
        starts = [line.split()[0] for line in summary(document).splitlines() if line and line[0].isupper()]
        return [word for word in starts if word in titles]

    assert found(failing_document()) == titles
    assert found(a_document()) == ["TOTALS", "STEPS", "GENERATOR"]


def empty_document() -> ResultDocument:
    return a_document(
        status="failed",
        exit_code=6,
        totals=Totals(*[0] * len(Totals.__struct_fields__)),
        workflows=[],
        duration_s=0.0,
        generator=Generator("", "1", 0.0, None, None, False, []),
    )


def test_a_job_that_sent_nothing_has_a_summary_too() -> None:
    text = summary(empty_document())
    assert text.startswith("✗ FAILED  shop.py  (exit code 6)\n  0 workflows · ran 0.0 s · started")
    assert "  requests     0  0/s\n" in text
    assert "GENERATOR" not in text


# Any terminal.


def test_plain_text_has_no_escapes_and_colour_changes_nothing_else() -> None:
    plain, painted = summary(failing_document()), summary(failing_document(), color=True)
    assert "\x1b" not in plain and "\x1b" in painted
    assert SGR.sub("", painted) == plain
    assert set(SGR.findall(painted)) == {"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"}


def test_what_a_server_sent_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 a\r\nb \u202e\ud800\x9b31m"
    step = a_step(
        evil, errors={evil: 1}, samples=[ErrorSample(0.0, evil, evil)], status_codes={evil: 1}, outcomes={evil: 1}
    )
    check = Check(evil, 0, 1, [ErrorSample(0.0, "check", evil)])
    document = a_document(
        job=Job("j", evil, None),
        reasons=[evil],
        warnings=[evil],
        workflows=[a_workflow(evil, load=evil, failure=evil, steps=[step], checks=[check])],
        thresholds=[Threshold(evil, 1.0, False, evil, evil)],
        lost_shards=[Lost(evil, 0, evil, 0.0, 1.0, 1, 0)],
    )
    assert not [char for char in summary(document) if char != "\n" and not char.isprintable()]
    painted = SGR.sub("", summary(document, color=True))
    assert not [char for char in painted if char != "\n" and not char.isprintable()]


def test_long_names_are_cut_with_an_ellipsis_and_numbers_stay() -> None:
    long = "x" * 300
    rule = Threshold(long, 1.0, True, None, "123 ms")
    workflow = a_workflow(steps=[a_step(long)], checks=[Check(long, 5, 0, [])])
    lines = summary(
        a_document(job=Job("j", long, None), workflows=[workflow], thresholds=[rule]), width=80
    ).splitlines()
    assert len(lines[0]) == 80 and lines[0].endswith("x…")
    assert any(line.startswith("  ✓ xxx") and line.endswith("x…  123 ms") for line in lines)
    assert any(line.startswith("  xxx") and line.endswith("x…  12,155 runs  1,216/s  failed 0") for line in lines)
    assert any(line.startswith("  ✓ xxx") and line.endswith("x…  passed 5  failed 0") for line in lines)


def test_ideographs_count_as_two_columns() -> None:
    text = summary(a_document(warnings=["警告" * 60], workflows=[a_workflow(steps=[a_step("支払" * 40)])]), width=80)
    assert max(columns(line) for line in text.splitlines()) <= 80
    assert text.count("警") == 60
    assert cut("支払い", 4) == "支…" and cut("支払い", 6) == "支払い" and cut("abc", 1) == "…" and cut("abc", 0) == ""


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["closed", "open"]),
    "exit_code": st.sampled_from([0, 3, 4, 5, 6, 130, 143]),
    "status": st.sampled_from(["completed", "partial", "failed", "cancelled", "skipped"]),
}
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 10**13),
    float: st.one_of(st.floats(0, 1e7), st.floats(min_value=0, allow_infinity=False)),
    str: st.one_of(st.text(max_size=40), st.sampled_from(["status", "count", "get", "支払い" * 30, "word " * 50])),
    bool: st.booleans(),
    type(None): st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of the type, however unlikely."""
    if kind in SCALARS:
        return SCALARS[kind]
    arguments = [values_of(argument) for argument in typing.get_args(kind)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return st.one_of(arguments)
    if typing.get_origin(kind) is list:
        return st.lists(arguments[0], max_size=2)
    if typing.get_origin(kind) is dict:
        return st.dictionaries(*arguments, max_size=2)
    fields = {
        field.name: CHOICES[field.name] if field.name in CHOICES else values_of(field.type)
        for field in msgspec.structs.fields(kind)
    }
    return st.builds(lambda found: kind(**found), st.fixed_dictionaries(fields))


def test_forty_columns_lose_nothing() -> None:
    narrow, wide = (summary(failing_document(), width=width) for width in (40, 200))

    assert all(columns(line) <= 40 for line in narrow.splitlines())
    assert "…" not in narrow
    assert sorted(narrow.split(), key=str) == sorted(
        [*wide.split(), *("p50 p90 p95 p99 p99.9 max".split() * 3)], key=str
    ), "the names of the times stand beside each of the four lists, and no more above them"


def test_summary_has_the_columns_that_are_asked_for() -> None:
    recorded = Histogram()
    for value in range(1, 1001):
        recorded.record(value * 1000)
    step = a_step(histogram=hdr.encode(recorded), service_histogram=hdr.encode(recorded))
    document = a_document(workflows=[a_workflow(steps=[step])])

    lines = summary(document, stats=parse_stats("p75, P99.9,mean,p75")).splitlines()

    (head,) = [line for line in lines if "p75" in line]
    assert head.split() == ["p75", "p99.9", "mean"]
    (row,) = [line for line in lines if line.startswith("    response")]
    assert row.split() == ["response", "750", "ms", "100", "ms", "20.0", "ms"]


def test_time_that_was_not_kept_is_not_shown() -> None:
    assert "    response         -" in summary(a_document(), stats=("p75",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("p50,fast", "'fast' is not a column: write percentiles such as p50 or p99.9, or min, mean, stdev, max"),
        ("p101", "'p101' is not a column"),
        ("p", "'p' is not a column"),
        (" , ", "0 columns cannot be shown: name 1 to 12, as in p50,p95,p99.9"),
        (",".join(f"p{number}" for number in range(13)), "13 columns cannot be shown"),
    ],
)
def test_columns_that_there_are_not_are_refused(text: str, words: str) -> None:
    with pytest.raises(BadStats, match=re.escape(words)):
        parse_stats(text)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(document=values_of(ResultDocument), width=st.integers(40, 200))
def test_every_document_fits_every_width(document: ResultDocument, width: int) -> None:
    plain = summary(document, width=width)
    for line in plain.splitlines():
        assert columns(line) <= width
        assert line == line.rstrip()
        assert line.isprintable()
    assert SGR.sub("", summary(document, width=width, color=True)) == plain


def test_a_page_is_never_narrower_than_what_can_be_read() -> None:
    assert summary(failing_document(), width=3) == summary(failing_document(), width=40)


# Numbers for people.


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (0.001, "1.00 µs"),
        (0.4123, "412 µs"),
        (0.9996, "1.00 ms"),
        (1, "1.00 ms"),
        (23.14, "23.1 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (61_000, "61.0 s"),
        (3_600_000, "3,600 s"),
    ],
)
def test_times_have_three_digits_and_a_fitting_unit(ms: float, shown: str) -> None:
    assert time_text(ms) == shown


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 0, "0 %"),
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 10**6, "<0.01 %"),
        (10**6 - 1, 10**6, ">99.99 %"),
        (1, 3, "33.33 %"),
    ],
)
def test_shares_are_never_rounded_to_none_or_all(part: int, whole: int, shown: str) -> None:
    assert share_text(part, whole) == shown


def test_amounts_have_units_people_know() -> None:
    assert [bytes_text(count) for count in (0, 999, 999_999, 1_500, 2 * 10**12)] == [
        "0 B",
        "999 B",
        "1.00 MB",
        "1.50 kB",
        "2.00 TB",
    ]
    assert [rate_text(rate) for rate in (0, 0.5, 12.34, 1234.5, float("inf"))] == [
        "0/s",
        "0.500/s",
        "12.3/s",
        "1,234/s",
        "inf/s",
    ]
    assert [seconds_text(seconds) for seconds in (0.04, 59.94, 59.96, 3725)] == ["0.0 s", "59.9 s", "1m", "1h2m5s"]
    assert [number_text(value) for value in (12_000.0, 0.12345, 1e20)] == ["12,000", "0.1235", "1e+20"]


# The plan.


class Seed(dsl.Workflow):
    @action()
    async def fill(self) -> None: ...

    @state("Checkout")
    def token(self) -> Provide[str]:
        return "t"


@depends(Seed)
class Checkout(dsl.Workflow):
    load = RampingVUs([(50, "10s"), (50, "1m"), (0, "5s")])
    priority = "normal"
    thresholds = ["response_time.p99 < 250ms", "pay.failed < 1%"]

    @state("Seed")
    def receive(self, token: str) -> Use[str]:
        return token

    @step()
    async def login(self) -> HTTPResponse: ...

    @step()
    async def warm(self) -> None: ...

    @step("login", "warm")
    async def pay(self) -> HTTPResponse: ...

    @check("pay")
    def paid(self, pay: HTTPResponse) -> None: ...

    @metric("distribution", "pay")
    def basket(self, pay: HTTPResponse) -> float: ...


class Browse(dsl.Workflow):
    load = ConstantRate("500/s", "30s")

    @step()
    async def home(self) -> HTTPResponse: ...


def specs_of(*workflows: type[dsl.Workflow]) -> tuple[WorkflowSpec, ...]:
    lines = {workflow.__name__: 10 * number for number, workflow in enumerate(workflows, 1)}
    return inspect_workflows(workflows, file="shop.py", lines=lines)


def loaded(shape: Any, priority: str = "auto") -> WorkflowSpec:
    return specs_of(type("Loaded", (Browse,), {"load": shape, "priority": priority}))[0]


def fields_of(text: str, name: str) -> dict[str, list[str]]:
    """The rows of one workflow by their label."""
    block = next(block for block in text.split("\n\n") if block.startswith(name))
    found: dict[str, list[str]] = {}
    label = ""
    for line in block.splitlines()[1:]:
        label = line[2:12].strip() or label
        found.setdefault(label, []).append(line[13:].strip())
    return found


def test_the_plan_tells_every_workflow_in_order_and_that_nothing_was_sent() -> None:
    text = plan_text(specs_of(Seed, Checkout, Browse), 4)
    order = [text.index(place) for place in ("Seed  shop.py:10", "Browse  shop.py:30", "Checkout  shop.py:20")]
    assert order == sorted(order)
    assert text.splitlines()[-1] == "Nothing was sent."


def test_the_plan_tells_load_model_start_and_split() -> None:
    text = plan_text(specs_of(Seed, Checkout, Browse), 4)
    assert fields_of(text, "Seed")["cores"] == ["1 of 4, as it measures nothing"]
    assert fields_of(text, "Seed")["starts"] == ["at once"]
    checkout = fields_of(text, "Checkout")
    assert checkout["load"] == ["ramp of VUs: 0 → 50 in 10s, held for 1m → 0 in 5s (closed model)"]
    assert checkout["starts"] == ["after Seed"]
    assert checkout["cores"] == ["3 of 4 (priority normal), 16 VUs each, 18 on the last"]
    # It starts beside Seed, which has one of the four.
    assert fields_of(text, "Browse")["cores"] == ["3 of 4 (priority auto), at most 333 VUs each, 334 on the last"]


def test_the_plan_shows_its_course() -> None:
    text = plan_text(specs_of(Seed, Checkout, Browse), 4)
    course = [line.split() for line in fields_of(text, "Checkout")["course"]]
    assert course == [["0s", "0", "VUs"], ["10s", "50", "VUs"], ["1m10s", "50", "VUs"], ["1m15s", "0", "VUs"]]
    assert [line.split() for line in fields_of(text, "Browse")["course"]] == [["0s", "500/s"], ["30s", "500/s"]]
    assert "course" not in fields_of(text, "Seed")


def test_the_plan_shows_steps_by_layer_and_what_follows_what() -> None:
    checkout = fields_of(plan_text(specs_of(Seed, Checkout), 2), "Checkout")
    assert [line.split(maxsplit=2) for line in checkout["steps"]] == [
        ["1", "login", "measured"],
        ["warm", "step,", "not measured"],
        ["2", "pay", "measured, after login, warm"],
        ["3", "paid", "check of pay"],
        ["basket", "metric", "(distribution) of pay"],
    ]


def test_the_plan_shows_rules_state_and_announcements() -> None:
    text = plan_text(specs_of(Seed, Checkout), 2)
    checkout = fields_of(text, "Checkout")
    assert checkout["threshold"] == [
        "response_time.p99 < 250ms  (p99 of the response time of all steps)",
        "pay.failed < 1%  (share that failed of step pay)",
    ]
    assert checkout["uses"] == ["token from Seed"]
    assert fields_of(text, "Seed")["provides"] == ["token to Checkout"]
    assert "  ! Checkout.warm runs but is not measured" in text


@pytest.mark.parametrize(
    ("shape", "planned"),
    [
        (ConstantRate("500/s", "30s"), ["15,000 arrivals, with 1 measured step each"]),
        (SharedIterations(7, 100), ["100 iterations, with 1 measured step each"]),
        (IterationsPerVU(7, 100, "1m"), ["at most 700 iterations, with 1 measured step each"]),
        (ConstantVUs(7, "1m"), None),
    ],
)
def test_the_plan_counts_what_follows_from_it(shape: Any, planned: list[str] | None) -> None:
    assert fields_of(plan_text([loaded(shape)], 2), "Loaded").get("planned") == planned


def test_the_plan_says_what_users_do_first_and_last_and_how_long_they_live() -> None:
    class Session(dsl.Workflow):
        load = ConstantRate("5/s", "1s")

        @on_start()
        async def login(self): ...

        @step()
        async def look(self) -> HTTPResponse: ...

        @on_stop()
        async def logout(self): ...

    class Kept(Browse):
        users = "kept"
        connections = "fresh"

    assert fields_of(plan_text(specs_of(Session), 2), "Session")["users"] == [
        "login first, logout last, a fresh one in every iteration"
    ]
    assert fields_of(plan_text(specs_of(Session), 2), "Session")["planned"] == ["5 arrivals, with 1 measured step each"]
    assert fields_of(plan_text(specs_of(Kept), 2), "Kept")["users"] == [
        "kept for the whole run, new connections in every iteration"
    ]
    assert "users" not in fields_of(plan_text(specs_of(Browse), 2), "Browse")


def test_the_plan_says_what_an_older_test_measures_otherwise_now() -> None:
    class Old(dsl.Workflow):
        load = ConstantRate("5/s", "1s")

        @step()
        async def enter(self) -> HTTPResponse:
            self.token = await self.client.http.get("http://localhost/token")
            return await self.client.http.get("http://localhost/")

        @step(enter)
        async def leave(self) -> HTTPResponse: ...

    class Kept(Old):
        users = "kept"

    class ByNumber(Old):
        load = SharedIterations(2, 10)

    several = "every call in enter counts, and is in the response time"
    finished = "iterations under way when the plan ends are finished"
    changes = {one.name: one.changes for one in plan_document(specs_of(Old, Kept, ByNumber, Browse), 2).workflows}

    assert changes == {
        "Old": [several, finished, 'each arrival is a fresh user (users = "kept" keeps them)'],
        "Kept": [several, finished],
        "ByNumber": [several],
        "Browse": [],
    }
    text = plan_text(specs_of(ByNumber, Browse), 2)
    assert " ".join(fields_of(text, "ByNumber")["changed"]) == f"against results with measures 1: {several}"
    assert "changed" not in fields_of(text, "Browse")


def test_the_split_heeds_priority_and_what_can_be_used() -> None:
    def cores(*specs: WorkflowSpec) -> str:
        return fields_of(plan_text(specs, 8), specs[-1].name)["cores"][0]

    assert cores(loaded(ConstantVUs(80, "1m"), "low")).startswith("2 of 8 (priority low), 40 VUs each")
    assert cores(loaded(ConstantVUs(1, "1m"))) == "1 of 8 (priority auto), 1 VU"
    exclusive = loaded(ConstantVUs(80, "1m"), "exclusive")
    assert cores(exclusive, *specs_of(Browse)) == "waits until the exclusive workflow has left it the 8 cores"


def test_the_plan_says_who_shares_a_core() -> None:
    specs = specs_of(Browse, Checkout, Seed)
    (seed,) = plan_document([loaded(ConstantVUs(8, "1m"))], 1).workflows
    assert seed.shares_cores_with == []

    text, document = plan_text(specs, 1), plan_document(specs, 1)

    assert fields_of(text, "Browse")["cores"][0].endswith("; shared with Seed")
    shared = {workflow.name: workflow.shares_cores_with for workflow in document.workflows}
    assert shared == {"Browse": ["Seed"], "Seed": ["Browse"], "Checkout": []}, "Checkout starts after Seed"


def test_a_workflow_without_a_file_has_no_place() -> None:
    (spec,) = inspect_workflows([Browse])
    assert plan_text([spec], 1).splitlines()[0] == "Browse"
    (spec,) = inspect_workflows([Browse], file="shop.py")
    assert plan_text([spec], 1).splitlines()[0] == "Browse  shop.py"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_plan_fits_the_width(width: int) -> None:
    text = plan_text(specs_of(Seed, Checkout, Browse), 64, width=width)
    assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text


# Progress.


def job_of(*workflows: type[dsl.Workflow]) -> tuple[LoadJob, dict[str, int]]:
    """A job that was started, and the core of each workflow that arms."""
    spec = plan_load_job(
        specs_of(*workflows), job="job-7", source=UrlSource("http://shop.test/"), cores=9, settings=Settings(grace_ns=0)
    )
    job = LoadJob(spec)
    job.start(SECOND)
    return job, {group.spec.name: number for number, (group, _, _) in job.attempts.items()}


class Slow(dsl.Workflow):
    vus = 1
    duration = "1m"

    @step()
    async def get(self) -> HTTPResponse: ...


def test_progress_names_the_workflows_that_arm() -> None:
    job, _ = job_of(Slow)
    assert progress_line(view_of(job), SECOND) == "   0s  arming Slow"
    many = [type(f"Slow{number}", (Slow,), {}) for number in range(5)]
    job, _ = job_of(*many)
    assert progress_line(view_of(job), SECOND) == "   0s  arming Slow0, Slow1, Slow2 and 2 more"


def test_progress_is_one_line_of_what_was_counted_so_far() -> None:
    job, cores = job_of(Slow, type("Other", (Slow,), {}))
    job.on_message(SECOND, cores["Slow"], Armed())
    tally = StepTally(ok=3_999)
    tally.response_time.record(23_000, 3_950)
    tally.response_time.record(41_000, 50)
    tally.fail(Sample(0, "status", "answered 503"))
    job.on_message(SECOND, cores["Slow"], StepTotals(1, "get", tally, measured=True))
    counted = Tally(exchanges=Exchanges(ok=3_999, failed=1))
    now = job.origin_ns + 11_900_000_000
    job.on_message(now, cores["Slow"], TotalsMessage(1, counted, [], vus=50, started_at_ns=job.origin_ns))
    line = progress_line(view_of(job), now)
    assert line == (
        "  12s  active 50 VUs  4,000 requests  336/s  failed 0.03 %  p50 23.0 ms  p99 41.0 ms  arming Other"
        "  mostly status 503 × 1"
    )
    assert "  4,000 requests  now 512/s, on average 336/s  failed" in progress_line(view_of(job), now, 512.0)
    job.on_exit(now, cores["Slow"], "was killed by SIGKILL")
    assert "  lost 1 core, the last one was killed by SIGKILL  mostly" in progress_line(view_of(job), now)


@pytest.mark.parametrize(
    ("kind", "sample", "cause"),
    [
        ("refused", "http://127.0.0.1:9/x: cannot connect to 127.0.0.1 port 9", "refused by 127.0.0.1:9"),
        ("refused", "http://shop/: this machine has no file left for a connection", "refused"),
        ("reset", "GET https://[::1]:8443/: the connection broke", "reset by [::1]:8443"),
        ("timeout", "GET http://shop.test/pay?a=b: no answer within 10 s", "timeout at shop.test"),
        ("status", "GET http://shop.test/pay answered 503", "status 503 from shop.test"),
        ("exception", "KeyError: 'a'", "exception"),
    ],
)
def test_an_error_is_told_with_whoever_caused_it(kind: str, sample: str, cause: str) -> None:
    step = a_step(errors={"other": 1, kind: 7}, samples=[ErrorSample(0.0, kind, sample)])

    assert frequent_errors([step])[0] == (kind, 7, cause)


def test_progress_at_the_very_start_has_nothing_to_divide_by() -> None:
    job, cores = job_of(Slow)
    job.on_message(SECOND, cores["Slow"], Armed())
    assert job.origin_ns > SECOND
    assert progress_line(view_of(job), SECOND) == "   0s  active 0 VUs  0 requests  0/s  failed 0 %"


def test_a_plan_tells_what_runs_once_what_is_fed_and_how_long_users_think() -> None:
    class Shop(dsl.Workflow):
        users = Feed.csv("users.csv", order="once")
        think = between("1s", "2s")

        @dsl.setup()
        def open_up(self) -> None: ...

        @dsl.teardown()
        def clear(self) -> None: ...

        @step()
        async def buy(self) -> HTTPResponse: ...

    class Steady(Shop):
        think = "3s"

    text = plan_text(inspect_workflows([Shop, Steady]), 2)
    for told in ("open_up, once on every core", "clear, once on every core", "users from users.csv, once", "1s to 2s"):
        assert told in text
    assert "think      3s\n" in text


def test_progress_tells_the_worse_of_failed_steps_and_failed_requests() -> None:
    job, cores = job_of(Slow)
    job.on_message(SECOND, cores["Slow"], Armed())
    job.on_message(SECOND, cores["Slow"], StepTotals(1, "get", StepTally(ok=6, failed=4), True))
    counted = Tally(iterations=10, started=10, exchanges=Exchanges(ok=90, failed=10))
    now = job.origin_ns + SECOND
    job.on_message(now, cores["Slow"], TotalsMessage(1, counted, [], vus=1, started_at_ns=job.origin_ns))
    assert "  failed 40.00 %" in progress_line(view_of(job), now)
