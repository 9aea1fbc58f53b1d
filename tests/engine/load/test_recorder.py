"""What is written down: windows that add up to the totals, and samples that stay small."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, NodeRun
from talka.engine.load.recorder import (
    FILLED_LIMIT,
    METRIC_NAMES_LIMIT,
    NAME_CHARACTERS_LIMIT,
    SAMPLE_CHARACTERS_LIMIT,
    BadMetric,
    Recorder,
    StepRecords,
    described,
    kind_of,
)
from talka.stats.tally import CALL_NAMES_KEPT, OTHER_CALLS, SAMPLES_KEPT, Sample
from talka.stats.windows import WINDOW_NS, StepWindow, Timeline, Window
from talka.units import MICROSECOND, MILLISECOND
from talka.work.dsl import Workflow, action, check, metric, step
from talka.work.inspection import inspect_workflows
from talka.work.responses import BrokenBody, CustomResponse, HTTPResponse, NotJSON, Response

ORIGIN_NS = 5_000_000_000


class Shop(Workflow):
    @step()
    async def buy(self) -> HTTPResponse: ...

    @step()
    async def wait(self) -> None: ...

    @action()
    def prepare_it(self) -> None: ...

    @check("buy")
    def is_cheap(self) -> bool: ...

    @metric("rate", "buy")
    def price(self) -> float: ...


def recorder() -> Recorder:
    [spec] = inspect_workflows([Shop])
    made = Recorder(spec)
    made.start(ORIGIN_NS, ORIGIN_NS)
    return made


def response(done_ns: int, *, status: int = 200, url: str = "http://localhost:1/") -> HTTPResponse:
    made = HTTPResponse("GET", url, status, [], b"")
    made.intended_ns, made.sent_ns, made.done_ns = done_ns - 3 * MILLISECOND, done_ns - MILLISECOND, done_ns
    return made


def step_ended(of: Recorder, now: int, failure: Sample | None = None, *, has_time: bool = True) -> None:
    buy, intended_ns = of.tally.steps["buy"], now - 3 * MILLISECOND
    if failure is None:
        of.ended_well(of.times_of("buy", buy), now, intended_ns)
    else:
        of.ended_badly("buy", buy, now, intended_ns, failure, has_time=has_time)


def windows(of: Recorder) -> dict[int, Window]:
    return {window.index: window for window in of.log.open_windows()}


def test_each_node_is_counted_in_its_own_place() -> None:
    tally = recorder().tally
    assert list(tally.steps) == ["buy"]
    assert set(tally.actions) == {"wait", "prepare_it", "price"}
    assert list(tally.checks) == ["is_cheap"]
    assert tally.metrics["price"].kind == "rate"


def test_a_call_is_counted_with_both_of_its_times_and_its_status_under_its_name() -> None:
    of = recorder()
    rows = StepRecords(of, "buy")
    assert rows.answered(None, response(ORIGIN_NS + 10 * MILLISECOND)) is None
    assert rows.answered("page", response(ORIGIN_NS + 10 * MILLISECOND, status=201)) is None
    of.settle()
    own, page = of.tally.calls["buy"]["buy"], of.tally.calls["buy"]["page"]
    assert (own.ok, own.failed, own.outcomes, page.ok, page.outcomes) == (1, 0, {"200": 1}, 1, {"201": 1})
    assert (own.response_time.total, own.service_time.total) == (3_000, 1_000)


def test_an_unaccepted_answer_that_is_not_http_has_failed_too() -> None:
    of = recorder()
    answer: CustomResponse[Any] = CustomResponse(None)
    answer.accepted = False
    failure = StepRecords(of, "buy").answered(None, answer)
    row = of.tally.calls["buy"]["buy"]
    assert (row.failed, row.errors, row.outcomes, row.samples) == (1, {"status": 1}, {}, [failure])
    assert row.samples[0].text == "the answer was not accepted"


def test_an_answer_of_any_protocol_is_counted_under_its_label_and_told_in_its_own_words() -> None:
    class Word(Response):
        label = "BUSY"

        def describe(self) -> str:
            return "PING answered BUSY" + 1000 * "!"

    of, answer = recorder(), Word()
    answer.accepted = False
    StepRecords(of, "buy").answered(None, answer)
    of.settle()
    row = of.tally.calls["buy"]["buy"]
    assert (row.failed, row.outcomes, row.errors) == (1, {"BUSY": 1}, {"status": 1})
    assert row.samples[0].text.startswith("PING answered BUSY!")
    assert (len(row.samples[0].text), row.samples[0].status) == (SAMPLE_CHARACTERS_LIMIT, 0)


def test_a_call_that_was_cut_is_interrupted() -> None:
    of = recorder()
    StepRecords(of, "buy").cut("page")
    assert of.tally.calls["buy"]["page"].interrupted == 1


def test_calls_beyond_two_hundred_names_are_counted_together_and_one_of_them_is_shown() -> None:
    of = recorder()
    rows, others = StepRecords(of, "buy"), StepRecords(of, "prepare_it")
    for number in range(CALL_NAMES_KEPT + 5):
        rows.answered(f"/item/{number}", response(ORIGIN_NS))
    rows.answered(None, response(ORIGIN_NS))
    rows.answered("/item/3", response(ORIGIN_NS))
    others.answered("elsewhere", response(ORIGIN_NS))
    calls = of.tally.calls
    assert len(calls["buy"]) == CALL_NAMES_KEPT + 2
    assert (calls["buy"][OTHER_CALLS].ok, calls["buy"]["/item/3"].ok, calls["buy"]["buy"].ok) == (5, 2, 1)
    assert calls["prepare_it"][OTHER_CALLS].ok == 1, "the names are the workflow's, not the method's"
    assert "'/item/200'" in of.notes[0] and "buy" in of.notes[0]
    assert len(of.notes) == 2, "once for each method"


def test_a_name_as_long_as_a_book_is_cut_and_costs_one_row() -> None:
    of = recorder()
    for number in range(3):
        StepRecords(of, "buy").answered("x" * 1_000_000 + str(number), response(ORIGIN_NS))
    assert {len(name): row.ok for name, row in of.tally.calls["buy"].items()} == {NAME_CHARACTERS_LIMIT: 3}


def test_a_metric_that_steps_tell_is_counted_and_keeps_its_kind() -> None:
    of = recorder()
    of.metric("cart", 3, "distribution")
    of.metric("cart", 5, "distribution")
    of.metric("price", 2.5, "rate")
    assert (of.tally.metrics["cart"].values, of.tally.metrics["cart"].total) == (2, 8.0)
    assert of.tally.metrics["price"].total == 2.5
    with pytest.raises(BadMetric, match="'price' is a rate and cannot be a count too"):
        of.metric("price", 1, "count")
    with pytest.raises(BadMetric, match="'' is not the name of a metric"):
        of.metric("", 1, "count")
    with pytest.raises(ValueError, match="a metric cannot count nan"):
        of.metric("cart", float("nan"), "distribution")
    for number in range(METRIC_NAMES_LIMIT - 2):
        of.metric(f"metric {number}", 1, "count")
    with pytest.raises(BadMetric, match="200 metrics already"):
        of.metric("one more", 1, "count")


# Windows.


def test_a_window_ends_after_a_hundred_milliseconds() -> None:
    of = recorder()
    of.roll(ORIGIN_NS + WINDOW_NS - 1)
    assert windows(of) == {}
    of.roll(ORIGIN_NS + WINDOW_NS)
    assert list(windows(of)) == [0]
    of.roll(ORIGIN_NS + WINDOW_NS + 1)
    assert list(windows(of)) == [0]


def test_a_step_is_counted_in_the_window_in_which_it_ended_and_its_failures_by_kind() -> None:
    of = recorder()
    step_ended(of, ORIGIN_NS + WINDOW_NS - 1)
    step_ended(of, ORIGIN_NS + WINDOW_NS)
    step_ended(of, ORIGIN_NS + WINDOW_NS, Sample(0, "reset", "gone"), has_time=False)
    step_ended(of, ORIGIN_NS + 7 * WINDOW_NS)
    of.finish()
    found = windows(of)
    assert {index: window.response_time.count for index, window in found.items()} == {0: 1, 1: 1, 7: 1}
    step = found[1].steps["buy"]
    assert (step.count, step.failed, step.errors, step.response_time.count) == (2, 1, {"reset": 1}, 1)
    buy = of.tally.steps["buy"]
    assert (buy.ok, buy.failed, buy.errors, buy.response_time.count) == (3, 1, {"reset": 1}, 3)


def test_a_step_that_fails_as_a_window_ends_is_in_the_next() -> None:
    of = recorder()
    step_ended(of, ORIGIN_NS + WINDOW_NS - 1, Sample(0, "reset", "gone"))
    step_ended(of, ORIGIN_NS + WINDOW_NS, Sample(0, "reset", "gone"))
    of.finish()
    assert {index: window.steps["buy"].failed for index, window in windows(of).items()} == {0: 1, 1: 1}


def test_an_iteration_that_starts_as_a_window_ends_is_in_the_next() -> None:
    of = recorder()
    of.iteration(ORIGIN_NS + WINDOW_NS - 1)
    of.iteration(ORIGIN_NS + WINDOW_NS)
    of.roll(ORIGIN_NS + 2 * WINDOW_NS)
    assert {index: window.started for index, window in windows(of).items() if window.started} == {0: 1, 1: 1}


def test_windows_count_from_the_start_of_the_job_not_of_the_shard() -> None:
    [spec] = inspect_workflows([Shop])
    of = Recorder(spec)
    of.start(ORIGIN_NS + 5 * WINDOW_NS + 1, ORIGIN_NS)
    of.finish()
    assert list(windows(of)) == [5]


def test_a_window_shows_the_most_users_it_saw() -> None:
    of = recorder()
    of.vus = 3
    of.roll(ORIGIN_NS + WINDOW_NS)
    of.vus = 1
    of.roll(ORIGIN_NS + 2 * WINDOW_NS)
    of.roll(ORIGIN_NS + 3 * WINDOW_NS)
    assert {index: window.vus for index, window in windows(of).items()} == {0: 3, 1: 3, 2: 1}


def test_users_do_not_leave_the_windows_that_a_stalled_loop_skipped() -> None:
    of = recorder()
    of.vus = 5
    of.roll(ORIGIN_NS + WINDOW_NS)
    of.roll(ORIGIN_NS + 4 * WINDOW_NS)
    of.finish()
    assert {index: window.vus for index, window in windows(of).items()} == {0: 5, 1: 5, 2: 5, 3: 5, 4: 5}
    assert windows(of)[2].response_time.count == windows(of)[2].requests == 0


def test_sum_over_shards_does_not_dip_where_one_of_them_stalled() -> None:
    prompt, stalled, timeline = recorder(), recorder(), Timeline()
    prompt.vus, stalled.vus = 3, 4
    for number in range(1, 8):
        prompt.roll(ORIGIN_NS + number * WINDOW_NS)
    for number in (1, 2, 6, 7):
        stalled.roll(ORIGIN_NS + number * WINDOW_NS)
    for one in (prompt, stalled):
        one.finish()
        for window in one.log.open_windows():
            timeline.add(window)
    assert [span.window.vus for span in timeline.spans()] == [7] * 8


def test_very_long_stall_is_filled_only_at_its_end() -> None:
    of = recorder()
    of.vus = 5
    of.roll(ORIGIN_NS + 5000 * WINDOW_NS)
    assert list(windows(of)) == [0, *range(5000 - FILLED_LIMIT, 5000)]
    assert of.log.lost == 0


def test_what_happens_after_the_last_roll_is_in_the_window_that_finish_closes() -> None:
    of = recorder()
    of.roll(ORIGIN_NS + WINDOW_NS)
    of.tally.started += 4
    of.exchanges.ok += 2
    of.exchanges.failed += 1
    of.finish()
    last = windows(of)[1]
    assert (last.started, last.requests, last.failed) == (4, 3, 1)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "ok", "failed", "response", "timeout", "roll", "ack"]), st.integers(0, 250)),
    max_size=60,
)


@given(EVENTS)
@settings(deadline=None, derandomize=True)
def test_windows_add_up_to_the_totals_whatever_happens_when(events: list[tuple[str, int]]) -> None:
    of = recorder()
    buy = of.tally.steps["buy"]
    received: list[Window] = []
    now = ORIGIN_NS
    for event, after_ms in events:
        now += after_ms * MILLISECOND
        match event:
            case "start":
                of.tally.started += 1
            case "ok":
                of.exchanges.ok += 1
            case "failed":
                of.exchanges.failed += 1
            case "response":
                step_ended(of, now)
            case "timeout":
                step_ended(of, now, Sample(now, "timeout", "no answer"))
            case "roll":
                of.roll(now)
            case "ack":
                sent = of.log.open_windows()
                received += sent
                of.log.acknowledge(sent)
    of.finish()
    received += of.log.open_windows()
    assert len({window.index for window in received}) == len(received), "each window is given once"
    assert sum(window.started for window in received) == of.tally.started
    assert sum(window.requests for window in received) == of.exchanges.requests
    assert sum(window.failed for window in received) == of.exchanges.failed
    assert sum(window.response_time.count for window in received) == buy.response_time.count
    assert sum(window.steps["buy"].failed for window in received if window.steps) == buy.failed


# Samples.


class Counting:
    """A source that has counted three responses whenever it is asked."""

    def __init__(self, of: Recorder) -> None:
        self._recorder = of
        self.ends_ns: list[int] = []

    def pour(self, window: Window) -> None:
        self.close_window(window)
        self._recorder.tally.steps["buy"].ok += 3

    def close_window(self, window: Window) -> None:
        self._recorder.tally.started += 3
        window.steps.setdefault("buy", StepWindow()).response_time.record(7, 3)

    def open_window(self, ends_ns: int) -> None:
        self.ends_ns.append(ends_ns)


def test_what_a_source_has_counted_is_in_the_window_that_closes() -> None:
    made = recorder()
    source = Counting(made)
    made.sources.append(source)
    made.roll(ORIGIN_NS + WINDOW_NS)
    [closed] = made.log.open_windows()
    assert (closed.started, closed.response_time.count) == (3, 3)
    assert source.ends_ns == [ORIGIN_NS + 2 * WINDOW_NS]
    assert made.tally.steps["buy"].ok == 0  # that can wait


def test_settling_brings_in_all_that_sources_have_counted() -> None:
    made = recorder()
    made.sources.append(Counting(made))
    made.settle()
    assert (made.tally.steps["buy"].ok, made.tally.started) == (3, 3)
    made.finish()
    assert sum(window.started for window in made.log.open_windows()) == 6
    assert made.tally.steps["buy"].ok == 6


def test_only_the_first_few_failures_of_a_kind_are_kept_as_samples() -> None:
    of = recorder()
    buy, cheap = of.tally.steps["buy"], of.tally.checks["is_cheap"]
    for number in range(50):
        now = ORIGIN_NS + number
        buy.fail(of.sample(ValueError(number), now))
        buy.fail(of.sample(ExchangeFailed("reset", str(number)), now))
        step_ended(of, now, of.rejected(response(now, status=500)))
        of.check_failed("is_cheap", str(number), now)
    assert buy.errors == {"exception": 50, "reset": 50, "status": 50}
    assert len(buy.samples) == 3 * SAMPLES_KEPT
    assert [sample.text for sample in buy.samples if sample.kind == "reset"] == ["0", "1", "2", "3", "4"]
    assert (cheap.failed, len(cheap.samples)) == (50, SAMPLES_KEPT)
    assert buy.samples[0].at_ns == 0, "counted from the start of the job"


def test_samples_are_short_and_can_be_sent_whatever_they_say() -> None:
    of = recorder()
    buy = of.tally.steps["buy"]
    text = "\ud800" + "x" * 100_000
    buy.fail(of.sample(ValueError(text), ORIGIN_NS))
    buy.fail(of.sample(ExchangeFailed("reset", text), ORIGIN_NS))
    step_ended(of, ORIGIN_NS, of.rejected(response(ORIGIN_NS, status=500, url=text)))
    of.check_failed("is_cheap", text, ORIGIN_NS)
    samples = [*buy.samples, *of.tally.checks["is_cheap"].samples]
    assert [len(sample.text) for sample in samples] == [SAMPLE_CHARACTERS_LIMIT] * 4
    msgspec.msgpack.encode(samples)


def test_a_timeout_is_part_of_the_response_times_of_its_calls_and_a_refusal_is_not() -> None:
    of = recorder()
    rows = StepRecords(of, "buy")
    rows.failed(None, ExchangeFailed("timeout", "no answer"), monotonic_ns() - 30 * MILLISECOND)
    rows.failed(None, ExchangeFailed("refused", "nobody listens"), monotonic_ns() - 30 * MILLISECOND)
    of.settle()
    row = of.tally.calls["buy"]["buy"]
    assert (row.failed, row.errors, row.response_time.count) == (2, {"timeout": 1, "refused": 1}, 1)
    assert row.response_time.max >= 30 * MILLISECOND // MICROSECOND


def test_somebody_waited_if_a_call_was_answered_or_timed_out() -> None:
    rows = StepRecords(recorder(), "buy")
    without_calls, refused, answered, timed_out = (NodeRun(1, rows) for _ in range(4))
    refused.failed(None, ExchangeFailed("refused", "nobody listens"), 1)
    answered.answered(None, response(ORIGIN_NS))
    timed_out.failed(None, ExchangeFailed("timeout", "no answer"), 1)
    assert [run.has_waited for run in (without_calls, refused, answered, timed_out)] == [False, False, True, True]


def test_the_first_failed_call_is_the_failure_of_its_step() -> None:
    run = NodeRun(1, StepRecords(recorder(), "buy"))
    run.answered(None, response(ORIGIN_NS))
    assert run.failure is None
    run.answered(None, response(ORIGIN_NS, status=503))
    run.failed("page", ExchangeFailed("timeout", "no answer"), 1)
    assert run.failure is not None and run.failure.status == 503


# Words.


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ExchangeFailed("dns", "no such host"), "dns"),
        (AssertionError(), "check"),
        (BrokenBody("no gzip"), "protocol"),
        (NotJSON("no JSON"), "exception"),
        (OSError(), "exception"),
    ],
)
def test_the_kind_follows_from_the_error(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_an_error_is_described_with_the_deepest_line_of_it() -> None:
    def deep() -> None:
        raise LookupError("gone")

    try:
        deep()
    except LookupError as error:
        text = described(error)
    assert text == f"LookupError: gone ({__file__}:{deep.__code__.co_firstlineno + 1})"


def test_an_error_that_a_library_raised_is_described_with_the_line_of_the_test_that_led_to_it() -> None:
    try:
        json.loads("<html>")
    except ValueError as error:
        text = described(error)
        line = error.__traceback__.tb_lineno if error.__traceback__ is not None else 0
    assert text.endswith(f"({__file__}:{line})")


def test_an_error_that_was_never_raised_is_described_without_a_line() -> None:
    assert described(ValueError("odd")) == "ValueError: odd"
    assert described(ValueError()) == "ValueError"
