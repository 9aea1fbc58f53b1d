"""Windows of a task: sent once each, kept for ever in fewer and fewer pieces."""

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.worker.windows import LAG_LIMIT, ShardWindows
from talka.stats.histogram import COARSE_PRECISION, lowest_of
from talka.stats.windows import COUNTERS_PER_REPORT, SPANS, Window
from talka.wire.shards import WINDOWS_PER_REPORT

SINGLE, TEN_S, MINUTE = (width for width, _ in SPANS)
HOUR = SPANS[1][0] * SPANS[1][1]


def window(index: int, started: int = 1, vus: int = 1) -> Window:
    return Window(index, started=started, vus=vus)


def filled(until: int, start: int = 0) -> ShardWindows:
    """Every window up to here was told, sent and acknowledged."""
    windows = ShardWindows()
    for index in range(start, until):
        windows.add(window(index))
        windows.advance(index)
        for sent in windows.take():
            windows.acknowledge(sent.index)
    return windows


def indexes(windows: list[Window]) -> list[int]:
    return [window.index for window in windows]


def test_windows_of_one_instant_add_up() -> None:
    windows = ShardWindows()
    windows.add(window(3, started=2, vus=4))
    windows.add(window(3, started=5, vus=1))
    windows.advance(None)

    assert windows.take() == [window(3, started=7, vus=5)]


def test_what_is_given_is_not_changed_by_what_is_added_to_it() -> None:
    windows = ShardWindows()
    given = window(3)
    given.response_time.record(5)
    windows.add(given)
    windows.add(given)

    assert (given.started, given.response_time.count) == (1, 1)


def test_only_what_every_core_has_told_is_sent_oldest_first() -> None:
    windows = ShardWindows()
    for index in (2, 0, 1):
        windows.add(window(index))
    assert windows.take() == []
    windows.advance(1)

    assert windows.has_more
    assert indexes(windows.take()) == [0, 1]
    assert not windows.has_more


def test_a_report_carries_a_limited_number_of_windows() -> None:
    windows = ShardWindows()
    for index in range(WINDOWS_PER_REPORT + 5):
        windows.add(window(index))
    windows.advance(None)

    assert indexes(windows.take()) == list(range(WINDOWS_PER_REPORT))
    assert windows.has_more
    windows.acknowledge(WINDOWS_PER_REPORT - 1)
    assert indexes(windows.take()) == list(range(WINDOWS_PER_REPORT, WINDOWS_PER_REPORT + 5))


def test_a_report_carries_fewer_windows_when_they_are_wide_and_always_one() -> None:
    windows = ShardWindows()
    for index in range(30):
        wide = window(index)
        for counter in range(2500):
            wide.response_time.record(lowest_of(counter, COARSE_PRECISION))
        windows.add(wide)
    windows.advance(None)

    assert len(windows.take()) == COUNTERS_PER_REPORT // 2500 < 30


def test_a_stretch_in_which_nothing_ran_is_passed_over() -> None:
    windows = ShardWindows()
    windows.add(window(0))
    windows.add(window(9))
    windows.advance(5)
    windows.acknowledge(windows.take()[-1].index)
    assert windows.has_more

    assert windows.take() == []

    assert not windows.has_more
    windows.advance(9)
    assert indexes(windows.take()) == [9]


def test_a_core_that_stalls_holds_the_others_back_for_a_minute_at_most() -> None:
    windows = ShardWindows()
    for index in range(LAG_LIMIT + 3):
        windows.add(window(index))
        windows.advance(-1)

    assert indexes(windows.take()) == [0, 1, 2]


def test_what_comes_too_late_for_a_report_is_still_in_the_result() -> None:
    windows = filled(LAG_LIMIT + 2 * TEN_S)
    windows.add(window(5, started=4, vus=9))
    windows.add(window(LAG_LIMIT, started=4))

    windows.advance(None)

    assert windows.take() == []
    assert sum(w.started for w in windows.all()) == LAG_LIMIT + 2 * TEN_S + 8
    assert windows.all()[0] == window(0, started=TEN_S + 4, vus=9)


def test_windows_older_than_a_minute_are_kept_in_spans_of_ten_seconds() -> None:
    windows = filled(LAG_LIMIT + 2 * TEN_S)

    kept = windows.all()

    assert indexes(kept) == [0, TEN_S, *range(2 * TEN_S, LAG_LIMIT + 2 * TEN_S)]
    assert kept[:2] == [window(0, started=TEN_S), window(TEN_S, started=TEN_S)], "the highest count of users tells most"


def test_windows_older_than_an_hour_are_kept_in_spans_of_a_minute() -> None:
    windows = ShardWindows()
    until = HOUR + LAG_LIMIT + 2 * MINUTE
    for index in range(0, until, 10):
        windows.add(window(index))
        windows.advance(index)
        windows.take()
        windows.acknowledge(index)

    kept = windows.all()

    assert indexes(kept)[:4] == [0, MINUTE, 2 * MINUTE, 2 * MINUTE + TEN_S]
    assert kept[0].started == MINUTE // 10
    assert sum(w.started for w in kept) == until // 10


def test_a_task_that_runs_for_more_than_a_week_forgets_its_beginning() -> None:
    windows = ShardWindows()
    week = SPANS[2][0] * SPANS[2][1]
    for index in range(0, week + 3 * HOUR, HOUR // 2):
        windows.add(window(index))
        windows.advance(index)
        windows.take()
        windows.acknowledge(index)
    first = windows.all()[0].index

    windows.add(window(0))

    assert first > 0
    assert windows.all()[0].index == first


def test_a_task_that_starts_late_in_its_job_sends_its_windows_all_the_same() -> None:
    windows = ShardWindows()
    for index in (1_000_007, 1_000_006):
        windows.add(window(index))
    windows.advance(None)

    assert indexes(windows.take()) == [1_000_006, 1_000_007]


def test_a_new_receiver_gets_all_there_is_newest_last() -> None:
    until = LAG_LIMIT + 2 * TEN_S + 3
    windows = filled(until)

    windows.reset()

    got: list[Window] = []
    while taken := windows.take():
        got += taken
        windows.acknowledge(taken[-1].index)
    assert indexes(got) == [0, TEN_S, *range(2 * TEN_S, until)]
    assert got == windows.all()


def test_a_span_of_which_a_part_was_sent_is_not_merged_before_all_of_it_has_arrived() -> None:
    windows = filled(TEN_S // 2)
    for index in range(TEN_S // 2, LAG_LIMIT + TEN_S + 20):
        windows.add(window(index))
        windows.advance(index)
    assert indexes(windows.take())[0] == TEN_S // 2, "the first half of the span has arrived"
    windows.acknowledge(TEN_S // 2 + WINDOWS_PER_REPORT - 1)

    assert indexes(windows.take())[0] == TEN_S // 2 + WINDOWS_PER_REPORT
    assert indexes(windows.all())[0:2] == [0, 1]


def test_spans_of_which_nothing_was_sent_are_merged_and_sent_as_they_are() -> None:
    windows = ShardWindows()
    for index in range(LAG_LIMIT + 2 * TEN_S):
        windows.add(window(index))
        windows.advance(index)

    assert windows.take()[:2] == [window(0, started=TEN_S), window(TEN_S, started=TEN_S)]


def test_a_receiver_that_acknowledges_nothing_for_minutes_does_not_fill_the_memory() -> None:
    windows = ShardWindows()
    for index in range(5 * LAG_LIMIT):
        windows.add(window(index))
        windows.advance(index)
        if index == 3:
            assert indexes(windows.take()) == [0, 1, 2, 3]

    assert len(windows.all()) < 3 * LAG_LIMIT
    assert sum(w.started for w in windows.all()) == 5 * LAG_LIMIT
    assert indexes(windows.take())[0] == TEN_S, "the first span goes on in the result alone"


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=60), st.integers(0, 10_000))
def test_whoever_filters_by_index_counts_every_window_once(steps: list[tuple[int, bool, bool]], start: int) -> None:
    """Reports and acknowledgements may be lost; as long as they are not lost for minutes, nothing is missing."""
    windows = ShardWindows()
    newest, got, index = -1, 0, start
    for count, arrives, is_answered in steps:
        for _ in range(count):
            windows.add(window(index))
            index += 1
        windows.advance(None)
        taken = windows.take()
        if arrives:
            for sent in taken:
                if sent.index > newest:
                    newest, got = sent.index, got + sent.started
            if taken and is_answered:
                windows.acknowledge(taken[-1].index)
    while taken := windows.take():
        for sent in taken:
            if sent.index > newest:
                newest, got = sent.index, got + sent.started
        windows.acknowledge(taken[-1].index)

    assert got == index - start == sum(w.started for w in windows.all())
