from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.stats.windows import SPANS, UNACKNOWLEDGED_LIMIT, WINDOW_NS, Span, StepWindow, Timeline, Window, WindowLog
from talka.units import SECOND

quick = settings(deadline=None, derandomize=True, max_examples=60)
MINUTE_OF_WINDOWS, HOUR_OF_WINDOWS, WEEK_OF_WINDOWS = 600, 36_000, 6_048_000

# Hours of a job: reports arrive about in order, some late, now and then after a long silence.
steps = st.one_of(st.integers(0, 3), st.integers(-700, 700), st.integers(0, 40_000))
walks = st.lists(steps, min_size=1, max_size=80)


def window(index: int, *, requests: int = 1, vus: int = 0) -> Window:
    made = Window(index, started=2 * requests, requests=requests, failed=requests // 2, vus=vus)
    made.response_time.record(1000 + index % 500, requests)
    return made


def timeline_of(*parts: Window, kept: tuple[tuple[int, int], ...] = SPANS) -> Timeline:
    timeline = Timeline(kept=kept)
    for one in parts:
        timeline.add(one)
    return timeline


def indexes_of(walk: list[int]) -> list[int]:
    indexes, at = [], 0
    for step in walk:
        at = max(0, at + step)
        indexes.append(at)
    return indexes


def shown(spans: list[Span]) -> list[tuple[float, float, int]]:
    """Start and length in seconds, and requests."""
    return [(span.start_ns / SECOND, span.length_ns / SECOND, span.window.requests) for span in spans]


def step_window(count: int, **errors: int) -> StepWindow:
    made = StepWindow(count, sum(errors.values()), errors)
    made.response_time.record(1000, count)
    return made


# A window.


def test_windows_add_up_step_by_step_and_kind_by_kind() -> None:
    whole = Window(1, steps={"buy": step_window(3, reset=1)})
    whole.add(Window(1, steps={"buy": step_window(2, reset=1, status=1), "look": step_window(1)}))
    buy = whole.steps["buy"]
    assert (buy.count, buy.failed, buy.errors, buy.response_time.count) == (5, 3, {"reset": 2, "status": 1}, 5)
    assert whole.steps["look"].count == 1


def test_a_timeline_of_several_workflows_keeps_no_steps() -> None:
    timeline = Timeline(with_steps=False)
    timeline.add(Window(1, requests=2, steps={"buy": step_window(3)}))
    (span,) = timeline.spans()
    assert (span.window.requests, span.window.steps) == (2, {})


def test_a_window_tells_how_much_its_histograms_take_and_blurred_ones_take_less() -> None:
    wide = Window(1, steps={"buy": StepWindow()})
    for value in range(1000, 2000):
        wide.response_time.record(value)
        wide.steps["buy"].response_time.record(value)
    blurred = wide.blurred()
    assert blurred.counters < wide.counters
    assert blurred.steps["buy"].response_time.count == blurred.response_time.count == 1000
    assert Window(1).counters < Window(1, steps={"buy": StepWindow()}).counters


def test_windows_add_up_and_leave_the_other_as_it_was() -> None:
    whole, other = window(5, requests=3, vus=2), window(6, requests=4, vus=7)
    whole.add(other)

    assert (whole.index, whole.started, whole.requests, whole.failed, whole.vus) == (5, 14, 7, 3, 2)
    assert (whole.response_time.count, whole.response_time.max) == (7, 1006)
    assert other == window(6, requests=4, vus=7)


# Windows that were not acknowledged yet.


def test_windows_are_kept_until_they_are_acknowledged() -> None:
    log = WindowLog()
    for index in (3, 4, 5):
        log.close(window(index))

    log.acknowledge([window(3), window(5), window(99)])

    assert log.open_windows() == [window(4)]
    assert log.lost == 0


def test_a_report_takes_the_oldest_windows_by_number_and_by_size_and_always_one() -> None:
    log = WindowLog()
    assert log.oldest(10, 10) == []
    for index in range(5):
        log.close(window(index))  # one counter each

    assert [one.index for one in log.oldest(3, 100)] == [0, 1, 2]
    assert [one.index for one in log.oldest(10, 4)] == [0, 1, 2, 3]
    assert [one.index for one in log.oldest(10, 0)] == [0]
    assert log.oldest(10, 100) == log.open_windows(), "looking takes nothing away"


def test_a_receiver_that_never_acknowledges_loses_the_oldest_windows_and_it_is_counted() -> None:
    log = WindowLog()
    for index in range(UNACKNOWLEDGED_LIMIT + 2):
        log.close(window(index))

    assert [one.index for one in log.open_windows()] == list(range(2, UNACKNOWLEDGED_LIMIT + 2))
    assert log.lost == 2


def test_what_was_handed_out_does_not_change_when_more_is_closed() -> None:
    log = WindowLog()
    log.close(window(0))
    sent = log.open_windows()
    log.close(window(1))

    assert sent == [window(0)]


# The timeline.


def test_an_empty_timeline_has_no_spans() -> None:
    assert Timeline().spans() == []


def test_windows_of_several_shards_are_one_span_and_their_users_add_up() -> None:
    timeline = timeline_of(window(7, requests=3, vus=10), window(7, requests=5, vus=4), window(8, vus=10))

    first, second = timeline.spans()
    assert (first.start_ns, first.length_ns) == (7 * WINDOW_NS, WINDOW_NS)
    assert (first.window.requests, first.window.failed, first.window.vus) == (8, 3, 14)
    assert first.window.response_time.count == 8
    assert second.window.vus == 10


def test_what_is_added_is_not_changed_by_what_comes_after() -> None:
    one = window(7)
    timeline_of(one, window(7))

    assert one == window(7)


def test_spans_are_told_oldest_first_whatever_the_order_of_arrival() -> None:
    timeline = timeline_of(window(9), window(2), window(5))

    assert [span.window.index for span in timeline.spans()] == [2, 5, 9]


def test_a_minute_is_kept_window_by_window() -> None:
    timeline = timeline_of(*(window(index) for index in range(MINUTE_OF_WINDOWS)))

    assert shown(timeline.spans()) == [(index / 10, 0.1, 1) for index in range(MINUTE_OF_WINDOWS)]


def test_older_time_is_kept_in_spans_of_ten_seconds_and_the_highest_number_of_users() -> None:
    timeline = timeline_of(*(window(index, vus=index) for index in range(MINUTE_OF_WINDOWS + 100)))

    first, *others = timeline.spans()
    assert shown([first]) == [(0.0, 10.0, 100)]
    assert first.window.vus == 99
    assert [span.window.index for span in others] == list(range(100, 700))


def test_no_time_is_told_in_two_widths_at_once() -> None:
    timeline = timeline_of(*(window(index) for index in range(MINUTE_OF_WINDOWS + 150)))

    assert shown(timeline.spans())[:2] == [(0.0, 10.0, 100), (10.0, 0.1, 1)], (
        "the second ten seconds are still told apart"
    )


def test_after_an_hour_time_is_kept_by_the_minute() -> None:
    timeline = timeline_of(*(window(index, vus=3) for index in range(0, HOUR_OF_WINDOWS + 1200, 50)))

    spans = timeline.spans()
    assert shown(spans)[:2] == [(0.0, 60.0, 12), (60.0, 60.0, 12)]
    assert [span.length_ns for span in spans[2:4]] == [10 * SECOND] * 2
    assert {span.window.vus for span in spans} == {3}


def test_a_window_that_comes_late_lands_in_the_wider_span_its_time_has_become() -> None:
    now = 2 * HOUR_OF_WINDOWS
    timeline = timeline_of(window(now), window(now - 700, vus=5), window(now - 700, vus=2), window(3))

    assert shown(timeline.spans()) == [(0.0, 60.0, 1), (7130.0, 10.0, 2), (7200.0, 0.1, 1)]
    assert timeline.spans()[1].window.vus == 5


def test_a_window_that_comes_late_but_within_the_minute_is_counted_in_its_own() -> None:
    timeline = timeline_of(window(1000), window(401, vus=5), window(401, vus=2))

    assert shown(timeline.spans()) == [(40.1, 0.1, 2), (100.0, 0.1, 1)]
    assert timeline.spans()[0].window.vus == 7


def test_what_is_older_than_a_week_is_forgotten() -> None:
    timeline = timeline_of(window(0), window(WEEK_OF_WINDOWS + 600), window(0))

    assert [span.window.index for span in timeline.spans()] == [WEEK_OF_WINDOWS + 600]


@given(walk=walks)
@quick
def test_ageing_loses_and_invents_nothing(walk: list[int]) -> None:
    indexes = indexes_of(walk)
    timeline = Timeline()
    for count, index in enumerate(indexes, 1):
        timeline.add(window(index, requests=3))
        spans = timeline.spans()
        assert sum(span.window.requests for span in spans) == 3 * count
        assert sum(span.window.started for span in spans) == 6 * count
        assert sum(span.window.failed for span in spans) == count
        assert sum(span.window.response_time.count for span in spans) == 3 * count


@given(walk=walks)
@quick
def test_every_window_is_in_the_span_of_its_time_and_spans_do_not_overlap(walk: list[int]) -> None:
    indexes = indexes_of(walk)
    spans = timeline_of(*(window(index) for index in indexes)).spans()

    for span in spans:
        first, beyond = span.start_ns // WINDOW_NS, (span.start_ns + span.length_ns) // WINDOW_NS
        assert span.window.requests == sum(first <= index < beyond for index in indexes)
    for span, after in zip(spans, spans[1:], strict=False):
        assert span.start_ns + span.length_ns <= after.start_ns


@given(walk=walks, order=st.randoms(use_true_random=False))
@quick
def test_within_a_minute_the_order_of_arrival_does_not_matter(walk: list[int], order: Random) -> None:
    indexes = [index % MINUTE_OF_WINDOWS for index in indexes_of(walk)]
    in_order = [window(index, vus=index % 7) for index in indexes]
    shuffled = list(in_order)
    order.shuffle(shuffled)

    assert timeline_of(*in_order).spans() == timeline_of(*shuffled).spans()


def test_the_number_of_spans_is_bounded_however_long_a_job_runs() -> None:
    # As in earnest, but small: 60 windows, 36 spans of 10, 40 spans of 60.
    timeline = timeline_of(*(window(index) for index in range(5000)), kept=((1, 60), (10, 36), (60, 40)))

    spans = timeline.spans()
    widths = [span.length_ns // WINDOW_NS for span in spans]
    assert widths == sorted(widths, reverse=True)
    assert 60 <= widths.count(1) < 60 + 10
    assert widths.count(10) <= 36 + 5
    assert widths.count(60) <= 40
    # From the oldest on, all of the time is there.
    assert spans[0].start_ns + sum(span.length_ns for span in spans) == 5000 * WINDOW_NS
    assert 2300 < sum(widths) < 2500


# -- windows that are laid over, and those after another


def test_windows_laid_over_are_shown_after_the_others_until_new_ones_replace_them() -> None:
    timeline = timeline_of(window(0), window(1))

    timeline.lay_over([window(2, requests=3), window(3)])
    timeline.lay_over([window(2, requests=5), window(3), window(4)])

    shown = [(span.start_ns // WINDOW_NS, span.length_ns, span.window.requests) for span in timeline.spans()]
    assert shown == [(at, WINDOW_NS, requests) for at, requests in ((0, 1), (1, 1), (2, 5), (3, 1), (4, 1))]


def test_a_window_that_is_added_is_laid_over_no_more_and_counts_once() -> None:
    timeline = Timeline()
    timeline.lay_over([window(0), window(1), window(2)])

    timeline.add(window(0, requests=7))

    assert [span.window.requests for span in timeline.spans()] == [7, 1, 1]
    assert [one.index for one in timeline.recent] == [1, 2]
    timeline.add(window(2))
    assert timeline.recent == [], "what is missing in between was no part of it"


def test_windows_after_another_are_told_with_the_index_of_their_first() -> None:
    timeline = timeline_of(*(window(index) for index in range(0, HOUR_OF_WINDOWS + 3_000, 50)))
    timeline.lay_over([window(HOUR_OF_WINDOWS + 3_000)])

    every = timeline.after(-1)

    assert [(one.index, one.requests) for one in every] == [
        (span.start_ns // WINDOW_NS, span.window.requests) for span in timeline.spans()[:-1]
    ]
    assert {later - one for one, later in pairwise(one.index for one in every)} == {600, 100, 50}
    for index in (0, 599, 600, 5_000, HOUR_OF_WINDOWS, HOUR_OF_WINDOWS + 2_950):
        assert timeline.after(index) == [one for one in every if one.index > index]


def test_after_a_window_of_which_nothing_is_known_there_is_nothing() -> None:
    assert Timeline().after(-1) == []
    assert timeline_of(window(3)).after(3) == timeline_of(window(3)).after(700) == []
