"""What a test prints reaches whoever follows its job: bounded, each line once, and what is missing is known."""

from hypothesis import given, settings
from hypothesis import strategies as st

from talka.control.load.log_lines import (
    KEPT_OF_A_JOB,
    KEPT_OF_AN_ATTEMPT,
    SOURCES_LIMIT,
    TOLD_FOR_NS,
    JobLines,
    ShardLines,
    news_in,
)
from talka.wire.jobs import LINE_CHARACTERS_LIMIT, LINES_LIMIT, LogLines
from talka.wire.views import LogLine

quick = settings(deadline=None, derandomize=True, max_examples=100)


def test_lines_are_taken_once_in_order() -> None:
    lines = ShardLines()
    assert not lines.has_news

    lines.add(["a", "b"])
    assert lines.has_news
    assert lines.take() == (0, ("a", "b"))
    assert not lines.has_news

    lines.add(["c"])
    assert lines.take() == (2, ("c",))


def test_a_long_line_is_cut() -> None:
    lines = ShardLines()
    lines.add(["x" * 10_000])

    assert lines.take() == (0, ("x" * LINE_CHARACTERS_LIMIT,))


def test_of_many_lines_the_newest_are_kept_and_the_numbers_tell_how_many_are_gone() -> None:
    lines = ShardLines()
    lines.add([str(number) for number in range(1000)])

    first, taken = lines.take()
    assert (first, len(taken), taken[0]) == (1000 - KEPT_OF_AN_ATTEMPT, LINES_LIMIT, str(1000 - KEPT_OF_AN_ATTEMPT))
    assert lines.take()[1][-1] == "999"
    assert not lines.has_news


def test_a_new_manager_is_told_everything_that_is_kept() -> None:
    lines = ShardLines()
    lines.add(["a"])
    lines.take()

    lines.reset()

    assert lines.take() == (0, ("a",))


@given(st.lists(st.integers(0, 350), max_size=20))
@quick
def test_numbers_of_what_is_taken_never_overlap(batches: list[int]) -> None:
    lines, expected = ShardLines(), 0
    for count in batches:
        lines.add([str(expected + offset) for offset in range(count)])
        expected += count
        while lines.has_news:
            first, taken = lines.take()
            assert [str(first + offset) for offset in range(len(taken))] == list(taken)


def test_lines_of_all_workers_are_numbered_as_they_come() -> None:
    job = JobLines()
    job.add(1, "w1", LogLines("b4k7", 1, 0, ("a", "b")))
    job.add(2, "w2", LogLines("b4k7", 2, 5, ("c",)))

    assert job.all() == [LogLine(1, "w1", "a"), LogLine(2, "w1", "b"), LogLine(3, "w2", "c")]


def test_a_line_that_is_told_again_counts_once() -> None:
    job = JobLines()
    job.add(1, "w1", LogLines("b4k7", 1, 0, ("a", "b")))
    job.add(2, "w1", LogLines("b4k7", 1, 1, ("b", "c")))
    job.add(3, "w1", LogLines("b4k7", 1, 0, ("a",)))

    assert [line.text for line in job.all()] == ["a", "b", "c"]


def test_only_the_newest_lines_of_a_job_are_kept_and_old_ones_are_told_no_more() -> None:
    job = JobLines()
    for number in range(KEPT_OF_A_JOB + 1):
        job.add(number, "w1", LogLines("b4k7", 1, number, (str(number),)))

    assert len(job.all()) == KEPT_OF_A_JOB and job.all()[0].text == "1"
    assert [line.text for line in job.recent(KEPT_OF_A_JOB + TOLD_FOR_NS)] == [str(KEPT_OF_A_JOB)]


def test_however_many_tasks_print_the_manager_remembers_so_many() -> None:
    job = JobLines()
    for attempt in range(SOURCES_LIMIT + 1):
        job.add(1, "w1", LogLines("b4k7", attempt, 0, ("a",)))
    job.add(1, "w1", LogLines("b4k7", 0, 0, ("a",)))  # forgotten: it is told once more, and no harm is done

    assert job.all()[-1].number == SOURCES_LIMIT + 2


def test_news_are_the_lines_above_a_number_and_what_is_missing_before_them() -> None:
    lines = [LogLine(number, "w1", str(number)) for number in (4, 5, 6)]

    assert news_in(lines, 0) == (lines, 0), "who has just come has missed nothing"
    assert news_in(lines, 4) == (lines[1:], 0)
    assert news_in(lines, 1) == (lines, 2)
    assert news_in(lines, 6) == ([], 0)
