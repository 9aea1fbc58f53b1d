"""What is written down: windows that add up to the totals, and samples that stay small."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.clock import MICROSECOND, MILLISECOND
from talka.engine.calls import ExchangeFailed
from talka.engine.recorder import FILLED_LIMIT, SAMPLE_CHARACTERS_LIMIT, Recorder, described, kind_of
from talka.stats.tally import SAMPLES_KEPT
from talka.stats.windows import WINDOW_NS, Timeline, Window
from talka.work.dsl import Workflow, action, check, metric, step
from talka.work.inspection import inspect_workflows
from talka.work.responses import BrokenBody, CustomResponse, HTTPResponse

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


def windows(of: Recorder) -> dict[int, Window]:
    return {window.index: window for window in of.log.open_windows()}


def test_each_node_is_counted_in_its_own_place() -> None:
    tally = recorder().tally
    assert list(tally.steps) == ["buy"]
    assert set(tally.actions) == {"wait", "prepare_it", "price"}
    assert list(tally.checks) == ["is_cheap"]
    assert tally.metrics["price"].kind == "rate"


def test_a_response_is_counted_with_both_of_its_times_and_its_status() -> None:
    of = recorder()
    buy = of.tally.steps["buy"]
    of.response(buy, response(ORIGIN_NS + 10 * MILLISECOND))
    assert (buy.ok, buy.failed, buy.status_codes) == (1, 0, {200: 1})
    assert (buy.response_time.total, buy.service_time.total) == (3_000, 1_000)


def test_an_unaccepted_answer_that_is_not_http_has_failed_too() -> None:
    of = recorder()
    buy = of.tally.steps["buy"]
    answer: CustomResponse[Any] = CustomResponse(None)
    answer.accepted = False
    of.response(buy, answer)
    assert (buy.failed, buy.errors, buy.status_codes) == (1, {"status": 1}, {})
    assert buy.samples[0].text == "the answer was not accepted"


# Windows.


def test_a_window_ends_after_a_hundred_milliseconds() -> None:
    of = recorder()
    of.roll(ORIGIN_NS + WINDOW_NS - 1)
    assert windows(of) == {}
    of.roll(ORIGIN_NS + WINDOW_NS)
    assert list(windows(of)) == [0]
    of.roll(ORIGIN_NS + WINDOW_NS + 1)
    assert list(windows(of)) == [0]


def test_a_response_is_counted_in_the_window_in_which_it_was_done() -> None:
    of = recorder()
    buy = of.tally.steps["buy"]
    of.response(buy, response(ORIGIN_NS + WINDOW_NS - 1))
    of.response(buy, response(ORIGIN_NS + WINDOW_NS))
    of.response(buy, response(ORIGIN_NS + 7 * WINDOW_NS))
    of.finish()
    assert {index: window.response_time.count for index, window in windows(of).items()} == {0: 1, 1: 1, 7: 1}


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
                of.response(buy, response(now))
            case "timeout":
                of.error(buy, ExchangeFailed("timeout", "no answer"), now, now - MILLISECOND)
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
        window.response_time.record(7, 3)

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
        of.error(buy, ValueError(number), now, now)
        of.error(buy, ExchangeFailed("reset", str(number)), now, now)
        of.response(buy, response(now, status=500))
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
    of.error(buy, ValueError(text), ORIGIN_NS, ORIGIN_NS)
    of.error(buy, ExchangeFailed("reset", text), ORIGIN_NS, ORIGIN_NS)
    of.response(buy, response(ORIGIN_NS, status=500, url=text))
    of.check_failed("is_cheap", text, ORIGIN_NS)
    samples = [*buy.samples, *of.tally.checks["is_cheap"].samples]
    assert [len(sample.text) for sample in samples] == [SAMPLE_CHARACTERS_LIMIT] * 4
    msgspec.msgpack.encode(samples)


def test_a_timeout_is_part_of_the_response_times_of_its_window() -> None:
    of = recorder()
    buy = of.tally.steps["buy"]
    now = ORIGIN_NS + 50 * MILLISECOND
    of.error(buy, ExchangeFailed("timeout", "no answer"), now, now - 30 * MILLISECOND)
    of.finish()
    assert buy.response_time.max == 30 * MILLISECOND // MICROSECOND
    assert windows(of)[0].response_time.count == 1


# Words.


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ExchangeFailed("dns", "no such host"), "dns"),
        (AssertionError(), "check"),
        (BrokenBody("no JSON"), "protocol"),
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


def test_an_error_that_was_never_raised_is_described_without_a_line() -> None:
    assert described(ValueError("odd")) == "ValueError: odd"
    assert described(ValueError()) == "ValueError"
