"""Dag jobs in words, tables and pictures."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cli.dag_text import (
    FAILED_SHOWN,
    LINES_DRAWN,
    TaskPace,
    TaskReport,
    attempts_table,
    dag_summary,
    exit_code_of,
    graph_text,
    last_of,
    layers_of,
    letter_text,
    letters_table,
    live_view,
    log_text,
    more_time_text,
    names_text,
    progress_text,
    retries_text,
    schedules_table,
    slowest_of,
    task_text,
    tried_text,
    why_text,
)
from talka.cli.live.layout import Size
from talka.cli.output import sheet_text
from talka.client.sheets import counts_text, dag_sheet, ended_count, took_s, took_text, without_cause
from talka.client.sheets import why_text as why_text_of
from talka.report.text import columns
from talka.units import SECOND
from talka.wire.task_views import (
    AttemptView,
    DagFacts,
    DeadLetter,
    ExtensionView,
    GraphView,
    LogLineView,
    OutputView,
    Reason,
    ScheduleView,
    StreamText,
    TaskView,
    WhyView,
)
from talka.work.lifecycle import JobState, TaskState

EVIL = "\x1b[2Jboo"


def facts(state: JobState = JobState.RUNNING, **more: Any) -> DagFacts:
    return DagFacts("job1", "etl", state, **{"tasks": 10, **more})


def task(id: str, state: TaskState = TaskState.COMPLETED, *, seconds: int | None = None, **more: Any) -> TaskView:
    if seconds is not None:
        more |= {"started_at": "2026-01-02T03:00:00.000Z", "ended_at": f"2026-01-02T03:00:{seconds:02}.000Z"}
    return TaskView(id, state, **{"handler": "work", **more})


def graph(edges: list[tuple[str, str]], **states: TaskState) -> GraphView:
    names = dict.fromkeys(name for edge in edges for name in edge)
    return GraphView([task(name, states.get(name, TaskState.PENDING)) for name in names], edges)


# Facts.


@pytest.mark.parametrize(
    ("state", "told", "code"),
    [
        (JobState.COMPLETED, None, 0),
        (JobState.PARTIAL, None, 6),
        (JobState.FAILED, None, 8),
        (JobState.CANCELLED, None, 8),
        (JobState.TIMEOUT, None, 8),
        (JobState.FAILED, 3, 3),
    ],
)
def test_exit_code_is_what_the_job_says_or_follows_from_its_end(state: JobState, told: int | None, code: int) -> None:
    assert exit_code_of(facts(state, exit_code=told)) == code


def test_counts_are_told_in_the_order_of_a_tasks_life() -> None:
    counts = {"completed": 1200, "pending": 3, "dead": 1, "skipped": 0, "of another version": 5}
    assert counts_text(counts) == "3 pending, 1,200 completed, 1 dead"
    assert ended_count(counts) == 1201


def test_facts_of_a_job_leave_out_what_has_not_happened() -> None:
    text = sheet_text(dag_sheet(facts(position=1, counts={"ready": 10}, submitted_at="2026-01-02T03:04:05.678Z"), []))
    assert text.splitlines() == [
        "job        job1",
        "name       etl",
        "state      running",
        "tasks      10: 10 ready",
        "queue      1 ready task of other jobs comes first",
        "submitted  2026-01-02 03:04:05 UTC",
    ]
    params = {"day": "2026-11-16", "parts": 4, "full": True}
    assert "params     day = 2026-11-16, parts = 4, full = true\n" in sheet_text(dag_sheet(facts(params=params), []))
    ended = sheet_text(dag_sheet(facts(JobState.FAILED, reason=EVIL, exit_code=8), []))
    assert "exit code  8" in ended and "\x1b" not in ended


def test_facts_of_a_task_have_its_output_and_its_error() -> None:
    done = task("load", seconds=5, attempts=2, output=msgspec.Raw(b'{"rows": 3}'), depends_on=list("abcd"))
    assert 'output     {"rows": 3}' in task_text(done) and "after      a … d (4)" in task_text(done)
    assert "memory     3.15 MB" in task_text(task("load", memory_bytes=3 << 20)) and "memory" not in task_text(done)
    dead = task_text(task("load", TaskState.DEAD, cause="exception", error=EVIL, progress=msgspec.Raw(b"7")))
    assert "state      dead (exception)" in dead and "progress   7" in dead
    assert "output" not in dead and "\x1b" not in dead


def test_table_of_tasks_says_who_ran_them_and_what_went_wrong() -> None:
    tasks = [task("a", seconds=3, worker="w1#9f"), task("b", TaskState.DEAD, cause="oom", error="x\ny")]
    *_, heading, first, second = sheet_text(dag_sheet(facts(), tasks)).splitlines()
    assert heading.split() == ["TASK", "STATE", "HANDLER", "WORKER", "TOOK", "NOTE"]
    assert first.split() == ["a", "completed", "work", "w1", "3.0", "s"] and second.endswith("oom: x y")


def test_short_times_are_told_in_milliseconds() -> None:
    start = "2026-01-02T03:00:00.000Z"
    ends = ("2026-01-02T03:00:00.025Z", "2026-01-02T03:01:05Z", start, "2026-01-02T02:00:00Z", "")
    assert [took_text(start, end) for end in ends] == ["25.0 ms", "1m5s", "< 1 ms", "", ""]


def test_time_taken_is_known_only_between_two_instants() -> None:
    assert took_s("2026-01-02T03:00:00.000Z", "2026-01-02T03:00:01.500Z") == 1.5
    assert took_s("", "2026-01-02T03:00:01.500Z") is None and took_s("soon", "later") is None
    assert took_s("2026-01-02T03:00:00", "2026-01-02T03:00:01.500Z") is None


def test_why_is_a_sentence_and_a_row_for_each_worker() -> None:
    why = WhyView(
        "load", TaskState.READY, "no worker has room", [Reason("w1", "slots", "8 of 8"), Reason("w2", "", EVIL)]
    )
    sentence, empty, heading, first, second = why_text("load", why).splitlines()
    assert (sentence, empty) == ("load is ready: no worker has room", "")
    assert heading.split() == ["WORKER", "CONSTRAINT", "WHY"] and first.split() == ["w1", "slots", "8", "of", "8"]
    assert second.split()[:2] == ["w2", "none"] and "\x1b" not in second
    assert why_text("load", WhyView("load", TaskState.COMPLETED, "")) == "load is completed"


def test_log_line_has_its_instant_and_attempt() -> None:
    assert log_text(LogLineView("2026-01-02T03:04:05.678Z", 2, "half\x1b")) == "2026-01-02 03:04:05.678 [2] half\\x1b"


def test_schedules_are_a_table() -> None:
    text = schedules_table([ScheduleView("etl", "0 3 * * *", "2026-01-02T03:00:00.000Z", "job1")])
    words = [word.strip() for word in text.splitlines()[1].split("  ") if word.strip()]
    assert words == ["etl", "0 3 * * *", "UTC", "2026-01-02 03:00:00 UTC", "one", "job1"]


# Dead letters.


def letter(attempts: list[AttemptView]) -> DeadLetter:
    return DeadLetter("job1/load", "job1", "load", "work", "SIGSEGV", EVIL, "2026-01-02T03:04:05.678Z", attempts)


def test_dead_letter_is_told_with_every_attempt() -> None:
    one = AttemptView(1, "w1#1", "2026-01-02T03:00:00Z", "2026-01-02T03:00:02Z", "exception", "ValueError: no")
    two = AttemptView(
        *(2, "w2#1", "2026-01-02T03:00:04Z", "2026-01-02T03:00:05Z", "SIGSEGV"),
        signal="SIGSEGV",
        memory_bytes=5_000_000,
    )
    text = letter_text(letter([one, two]))
    assert "cause      SIGSEGV" in text and "\x1b" not in text
    assert text.splitlines()[-3:] == attempts_table([one, two]).splitlines()
    assert "ValueError: no" in text.splitlines()[-2] and "5.00 MB" in text.splitlines()[-1]
    assert "ATTEMPT" not in letter_text(letter([]))
    row = letters_table([letter([one, two])]).splitlines()[1]
    assert row.split()[:4] == ["job1/load", "work", "SIGSEGV", "2"] and "\x1b" not in row


def test_attempts_tell_how_often_they_were_given_more_time_and_why() -> None:
    plain = AttemptView(1, "w1#1", "2026-01-02T03:00:00Z", "2026-01-02T03:00:02Z", "timeout")
    rows, disk = ExtensionView(20.0, 15.0, "rows\x1b"), ExtensionView(40.0, 7.5, "disk")
    late = msgspec.structs.replace(plain, extensions=[rows, ExtensionView(30.0, 3.0), rows, disk], warned=True)
    told = [more_time_text(one) for one in (plain, msgspec.structs.replace(plain, extensions=[rows]), late)]

    assert told[0] == "" and told[1].startswith("15s in 1 (rows") and told[2].endswith("; disk), warned")
    assert told[2].startswith("40.5s in 4 (rows") and "\x1b" not in attempts_table([late])
    assert "MORE TIME" in attempts_table([plain, late]) and "MORE TIME" not in attempts_table([plain])


# Progress.


def test_time_left_follows_from_what_ended_of_late() -> None:
    pace = TaskPace()
    pace.look(0, facts(counts={"pending": 10}))
    now = facts(counts={"pending": 6, "completed": 4})
    assert pace.left_ns(0, now) is None
    assert pace.per_s(2 * SECOND, now) == 2 and pace.left_ns(2 * SECOND, now) == 3 * SECOND


def test_time_left_is_unknown_before_anything_ended_and_after_tasks_are_run_again() -> None:
    pace = TaskPace()
    assert pace.left_ns(SECOND, facts()) is None
    pace.look(0, facts(counts={"completed": 8}))
    pace.look(SECOND, facts(counts={"completed": 3}))
    assert pace.left_ns(2 * SECOND, facts(counts={"completed": 3})) is None


def test_rate_forgets_what_was_long_ago_however_often_it_is_looked_at() -> None:
    pace = TaskPace()
    for tenth in range(0, 2000):  # 200 s: nothing for the first 150
        pace.look(tenth * SECOND // 10, facts(tasks=1000, counts={"completed": max(0, tenth - 1500)}))
    last = facts(tasks=1000, counts={"completed": 499})
    assert pace.per_s(200 * SECOND, last) == pytest.approx(10, rel=0.1)


def test_line_of_progress_says_what_runs_what_was_given_up_and_how_long_it_takes() -> None:
    pace = TaskPace()
    pace.look(0, facts())
    now = facts(counts={"running": 2, "assigned": 1, "completed": 4, "dead": 1, "pending": 2})
    assert progress_text(now, 5 * SECOND, pace) == (
        "running: 5 of 10 tasks ended, 3 running, 1 given up, about 0:05 left"
    )
    assert progress_text(facts(), SECOND, TaskPace()) == "running: 0 of 10 tasks ended"
    idle = facts(counts={"ready": 2, "pending": 8})
    assert progress_text(idle, SECOND, TaskPace()) == "running: 0 of 10 tasks ended, 2 ready and waiting for a worker"
    waits = facts(JobState.QUEUED, position=3)
    assert progress_text(waits, SECOND, pace) == "queued: 3 ready tasks of other jobs come first"


@pytest.mark.parametrize("size", [Size(20, 2), Size(60, 8), Size(120, 40)], ids=str)
def test_live_view_fits_its_terminal(size: Size) -> None:
    running = [task(f"clean[{number}]", TaskState.RUNNING, worker="w1#1", attempts=2) for number in range(8)]
    counts = {"running": 12, "completed": 4, "dead": 1}
    now = facts(JobState.RUNNING, tasks=100, counts=counts, reason="a reason" * 9, position=4)
    view = live_view(now, running, 10 * SECOND, 0, TaskPace(), size)
    assert len(view.lines) <= size.rows
    assert all(columns(line) <= max(size.columns, 20) for line in view.text.splitlines())


def test_live_view_shows_counts_running_tasks_and_the_time() -> None:
    pace = TaskPace()
    pace.look(0, facts())
    running = [
        task("load", TaskState.RUNNING, worker="w1#1", attempts=2, progress=msgspec.Raw(b'"half"')),
        task("scan", TaskState.RUNNING),
    ]
    now = facts(counts={"running": 5, "completed": 5})
    text = live_view(now, running, 5 * SECOND, 0, pace, Size(100, 20)).text
    assert "etl  job1  running" in text and "5 of 10  0:05  1.00/s  about 0:05 left" in text
    assert "5 running   5 completed" in text and "… and 3 more run" in text
    assert '▶ load  work on w1, try 2  "half"' in text and "▶ scan  work" in text


def test_live_view_of_a_job_without_known_progress_moves_to_and_fro() -> None:
    frames = [live_view(facts(JobState.PAUSED), [], at * SECOND, 0, TaskPace(), Size(80, 20)).text for at in (1, 2)]
    assert frames[0] != frames[1] and "paused" in frames[0]


# The end.


def test_summary_begins_with_the_verdict() -> None:
    done = facts(
        JobState.COMPLETED,
        counts={"completed": 10},
        started_at="2026-01-02T03:00:00Z",
        ended_at="2026-01-02T03:00:09Z",
        exit_code=0,
    )
    slow = [task("load", seconds=7), task("scan", seconds=2)]
    lines = dag_summary(done, slow, []).splitlines()
    assert lines[0] == "✓ COMPLETED  etl  job job1" and lines[1].strip() == "10 tasks · ran 9.0 s"
    assert "10 completed" in lines[2] and lines[4] == "SLOWEST"
    assert lines[5].split() == ["7.0", "s", "load", "(work)"] and len(lines) == 7


def test_summary_says_what_failed_why_and_what_to_do() -> None:
    bad = facts(JobState.PARTIAL, counts={"completed": 8, "dead": 1, "timeout": 1}, reason="2 tasks were given up")
    failed = [
        task("load", TaskState.DEAD, attempts=4, failures=4, cause="exception", error=f"ValueError: {EVIL}"),
        task("scan", TaskState.TIMEOUT),
    ]
    text = dag_summary(bad, [], failed)
    assert text.startswith("✗ PARTIAL  etl  job job1  (exit code 6)") and "2 tasks were given up" in text
    assert "✗ load  dead, 4 attempts, exception" in text and "ValueError: " in text and "\x1b" not in text
    assert "✗ scan  timeout, never run" in text
    assert "talka jobs show job1 --why load" in text and "talka dead-letters" in text
    assert "more" not in text


def test_commands_that_name_an_element_can_be_pasted_into_a_shell() -> None:
    element = task_of("clean[3]", TaskState.DEAD, 1, error="E: no")
    text = dag_summary(facts(JobState.FAILED, counts={"dead": 1}), [], [element])
    assert [f"--{flag} 'clean[3]' " in text for flag in ("why", "task", "logs")] == [True] * 3
    report = TaskReport("clean[3]", TaskState.DEAD, wrote=[OutputView(1, [StreamText("stdout", 3, 3, "one")], True)])
    assert "talka jobs show job1 --logs 'clean[3]' shows" in tried_text("job1", report)


def test_summary_names_some_of_many_failures_and_counts_the_rest() -> None:
    failed = [task(f"t{number}", TaskState.FAILED) for number in range(FAILED_SHOWN)]
    text = dag_summary(facts(JobState.FAILED, counts={"failed": FAILED_SHOWN + 7}), [], failed)
    assert "… and 7 more" in text and "talka dead-letters" not in text


def task_of(
    id: str, state: TaskState = TaskState.COMPLETED, attempts: int = 1, ended: str = "", **more: Any
) -> TaskView:
    at = f"2026-01-02T03:00:{ended}Z" if ended else ""
    return TaskView(id, state, "work", attempts, ended_at=at, **more)


def test_summary_has_retries_and_what_the_last_task_gave() -> None:
    tasks = [
        task_of("a", attempts=3, failures=2, ended="01.000", output=msgspec.Raw(b"1")),
        task_of("b", attempts=2, failures=1, ended="04.000", output=msgspec.Raw(b'{"rows":  3}')),
        task_of("c", TaskState.DEAD, attempts=2, failures=2, ended="09.000", output=msgspec.Raw(b"9")),
        task_of("d", attempts=2, failures=1, ended="02.000"),
        task_of("e", ended="04.000", output=msgspec.Raw(b'"last\\u001b[31m"')),
    ]
    text = dag_summary(facts(JobState.PARTIAL), [], [], tasks)
    assert "retries    5: a (2), b (1), c (1) and 1 more task\n" in text
    again = [task_of(name, attempts=2, failures=1) for name in "abcde"]
    assert "retries    5: a (1), b (1), c (1) and 2 more tasks\n" in dag_summary(
        facts(JobState.PARTIAL), [], again[:1], again
    )
    assert 'output     of e: "last\\u001b[31m"' in text
    plain = dag_summary(facts(JobState.COMPLETED), [], [], [task_of("a", ended="01.000")])
    assert "retries" not in plain and "output" not in plain


def test_attempts_that_were_no_retries_are_told_beside_them() -> None:
    """Such as those that no worker began, or of before a task was run again."""
    refused = task_of("a", attempts=4, failures=0)
    replayed = task_of("b", attempts=3, failures=1)
    given_up = task_of("c", TaskState.DEAD, attempts=3, failures=1, error="E: no")
    waited = task_of("d", TaskState.CANCELLED, attempts=2, failures=2)
    never = task_of("e", TaskState.CANCELLED, attempts=0)
    assert retries_text([refused]) == "none; 3 attempts do not count as such: a (3)"
    assert retries_text([replayed]) == "1: b (1); 1 attempt does not count as such: b (1)"
    assert retries_text([given_up]) == "none; 2 attempts do not count as such: c (2)"
    assert retries_text([waited]) == "1: d (1)", "it was cancelled before it was tried once more"
    every = [refused, replayed, given_up, waited, never]
    assert retries_text(every) == "2: b (1), d (1); 6 attempts do not count as such: a (3), c (2), b (1)"
    assert retries_text([never, task_of("f", failures=0)]) == ""
    assert retries_text([task_of("g", attempts=3)]) == "2: g (2)", "its manager tells of no others"
    text = dag_summary(facts(JobState.FAILED, counts={"dead": 1}), [], [given_up], [given_up])
    assert "✗ c  dead, 1 attempt that counts (3 in all)\n" in text
    assert "retries    none; 2 attempts do not count as such: c (2)\n" in text


def test_summary_of_a_job_with_tasks_that_are_not_listed_says_of_which_tasks_its_numbers_are() -> None:
    listed = [
        task_of("a", ended="01.000", output=msgspec.Raw(b"1")),
        task_of("b", attempts=3, failures=2, ended="02.000"),
    ]
    done = facts(JobState.COMPLETED, counts={"completed": 5})
    text = dag_summary(done, [task("b", seconds=7)], [], listed, left_out=3)
    assert "retries    of the first 2 tasks: 2: b (2)" in text
    assert "SLOWEST of the first 2 tasks" in text
    assert "output" not in text, "one that is not listed may have completed last"
    assert "retries    of the first 1 task: none" in dag_summary(done, [], [], listed[:1], left_out=4)


def fanned(**more: Any) -> TaskView:
    """Over a hundred elements, of which few are listed."""
    fan = {"for_each": "extract", "depends_on": ["extract"], "elements": {"completed": 98, "dead": 2}}
    return task_of(**{"id": "clean", "attempts": 0, "ended": "04.000", **fan, **more})


LISTED = [
    task_of("extract", ended="01.000", output=msgspec.Raw(b"1")),
    fanned(),
    task_of("load", ended="05.000", depends_on=["clean"], output=msgspec.Raw(b'"all"')),
    *(task_of(f"clean[{n}]", ended="03.000", element_of="clean", output=msgspec.Raw(b"2")) for n in range(3)),
]


def changed(id: str, **fields: Any) -> list[TaskView]:
    return [msgspec.structs.replace(one, **fields) if one.id == id else one for one in LISTED]


@pytest.mark.parametrize(
    ("listed", "left_out", "is_told"),
    [
        pytest.param(LISTED, 97, True, id="it waited for all elements of the task that was fanned out"),
        pytest.param(changed("load", depends_on=["clean[0]", "x"]), 97, False, id="for some of them"),
        pytest.param(LISTED, 98, False, id="one more task is not listed, and may be after it"),
        pytest.param(
            [*changed("load", depends_on=["gather"]), task_of("gather", ended="04.500", depends_on=["clean"])],
            97,
            True,
            id="it waited for one that waited for them",
        ),
        pytest.param(
            changed("load", depends_on=["clean", "x", "y", "x"]), 99, True, id="it names all others that are not listed"
        ),
        pytest.param(changed("load", depends_on=["clean", "x"]), 99, False, id="it names one of two"),
        pytest.param(
            [*LISTED, fanned(id="wash", elements={"completed": 5})], 102, False, id="not for those of another task"
        ),
        pytest.param([*LISTED, task_of("late", ended="06.000")], 97, False, id="one that is listed ended later"),
        pytest.param(
            changed("clean", state=TaskState.SKIPPED), 97, False, id="elements that run go on when it is skipped"
        ),
        pytest.param(
            changed("load", attempts=0), 97, False, id="its key was completed before, and it waited for nothing"
        ),
        pytest.param(changed("load", state=TaskState.DEAD), 97, False, id="it did not complete"),
    ],
)
def test_the_output_of_a_task_that_none_of_those_left_out_can_have_followed_is_shown(
    listed: list[TaskView], left_out: int, is_told: bool
) -> None:
    text = dag_summary(facts(JobState.PARTIAL), [], [], listed, left_out=left_out)
    assert ('output     of load: "all"\n' in f"{text}\n") is is_told and ("output  " in text) is is_told


def test_the_last_task_is_the_one_that_waited_for_the_others_of_its_millisecond() -> None:
    tasks = [
        task_of("load", ended="04.000", depends_on=["clean"], output=msgspec.Raw(b'"all"')),
        task_of("clean", ended="04.000", for_each="extract"),
        task_of("clean[0]", ended="04.000", element_of="clean", output=msgspec.Raw(b'"part"')),
    ]
    for some in (tasks, [tasks[1], tasks[2], tasks[0]]):
        last = last_of(some)
        assert last is not None and last.id == "load"
    # Its own output is the list of theirs, which is not shown: one of theirs is.
    alone = [msgspec.structs.replace(tasks[1], ended_at=f"2026-01-02T03:00:05.{n}Z") for n in (1, 2)]
    assert last_of([tasks[2], *alone]) == tasks[2]


def test_elements_are_named_so_that_a_shell_leaves_them_alone() -> None:
    failed = [task("clean[3]", TaskState.DEAD)]
    text = dag_summary(facts(JobState.FAILED, counts={"dead": 1}), [], failed)
    assert text.count(" 'clean[3]' ") == 3 and "✗ clean[3]  dead" in text
    view = OutputView(1, [StreamText("stderr", 2, 2, "no")])
    report = TaskReport("clean[3]", TaskState.DEAD, tried=[], wrote=[view])
    assert "talka jobs show job1 --logs 'clean[3]' shows all" in tried_text("job1", report)


def test_a_cause_is_said_once_where_the_error_begins_with_it() -> None:
    assert why_text_of("IndexError", "IndexError in handlers.py:21") == "IndexError in handlers.py:21"
    assert why_text_of("exit", "its command exited with status 3") == "exit: its command exited with status 3"
    assert (why_text_of("oom", ""), why_text_of("", "no"), why_text_of("", "")) == ("oom", "no", "")
    assert without_cause("ValueError", "ValueError: no (h.py:3)") == "no (h.py:3)"
    assert without_cause("ValueError", "ValueError in h.py:3") == "in h.py:3"
    assert (without_cause("exit", "status 3"), without_cause("", "no")) == ("status 3", "no")
    failed = task_of("load", TaskState.DEAD, 2, cause="IndexError", error="IndexError in handlers.py:21")
    for text in (
        dag_summary(facts(JobState.FAILED, counts={"dead": 1}), [], [failed]),
        task_text(failed),
        "\n".join(" ".join(line) for line in dag_sheet(facts(tasks=1), [failed]).lines),
    ):
        assert text.count("IndexError") == 1, text


def test_a_cause_is_not_said_where_the_state_is_the_same_word() -> None:
    waited = task_of("load", TaskState.TIMEOUT, 0, cause="timeout", error="waited 15 s in the queue")
    texts = [
        dag_summary(facts(JobState.FAILED, counts={"timeout": 1}), [], [waited]).partition("GIVEN UP")[2],
        task_text(waited),
        *(" ".join(line) for line in dag_sheet(facts(tasks=1), [waited]).lines),
    ]
    for text in texts:
        assert text.count("timeout") == 1, text
    skipped = task_of("load", TaskState.SKIPPED, 0, cause="skipped", error="by ann")
    assert dag_sheet(facts(tasks=1), [skipped]).lines[0][-1] == "by ann"


def test_slowest_tasks_come_first_and_those_without_times_not_at_all() -> None:
    tasks = [task("a", seconds=1), task("b"), task("c", seconds=5), task("d", seconds=5)]
    assert [found.id for found in slowest_of(tasks, 2)] == ["c", "d"]


# The graph.


def test_graph_is_drawn_layer_by_layer_with_arrows_to_what_waits() -> None:
    edges = [("extract", "clean"), ("extract", "count"), ("clean", "load"), ("count", "load")]
    text = graph_text(facts(), graph(edges, extract=TaskState.COMPLETED, clean=TaskState.RUNNING))
    assert [line.rstrip() for line in text.splitlines()] == [
        "LAYER  TASK     STATE      THEN",
        "1      extract  completed  ──▶ clean, count",
        "2      clean    running    ──▶ load",
        "       count    pending    ──▶ load",
        "3      load     pending",
    ]


def test_tasks_that_stand_alike_are_one_line_and_those_that_do_not_are_their_own() -> None:
    parts = [f"clean[{number}]" for number in range(50)]
    edges = [("extract", part) for part in parts] + [(part, "load") for part in parts]
    drawn = graph_text(facts(), graph(edges, **{"clean[7]": TaskState.DEAD}))
    assert len(drawn.splitlines()) == 5
    assert "──▶ clean[0] … clean[49] (50)" in drawn and "clean[0] … clean[49] (49)" in drawn
    [dead] = [line for line in drawn.splitlines() if "dead" in line]
    assert dead.split() == ["clean[7]", "dead", "──▶", "load"]


def test_graph_that_is_too_large_is_a_sentence() -> None:
    chain = [(f"t{number}", f"t{number + 1}") for number in range(LINES_DRAWN)]
    assert len(graph_text(facts(), graph(chain[1:])).splitlines()) == LINES_DRAWN + 1
    told = graph_text(facts(counts={"completed": 3}), graph(chain))
    assert "101 tasks in 101 layers, too many to draw: 3 completed; talka jobs show job1 --graph --json" in told
    cut_off = msgspec.structs.replace(graph([("a", "b")]), left_out=20_000)
    assert "20,002 tasks in at least 2 layers" in graph_text(facts(), cut_off)
    assert graph_text(facts(), GraphView([], [])) == "job job1 has no tasks"


def test_edges_to_tasks_that_were_left_out_are_not_drawn() -> None:
    view = GraphView([task("b"), task("c")], [("a", "b"), ("b", "c"), ("b", "c"), ("c", "d")])
    assert layers_of(view) == {"b": 0, "c": 1}
    assert "──▶ c" in graph_text(facts(), view) and "d" not in graph_text(facts(), view).split()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_every_task_stands_below_all_that_it_waits_for(pairs: list[tuple[int, int]]) -> None:
    edges = [(f"t{min(pair)}", f"t{max(pair)}") for pair in pairs if pair[0] != pair[1]]
    layers = layers_of(graph(edges))
    assert all(layers[before] < layers[after] for before, after in edges)
    waiting = {after for _, after in edges}
    assert all((layers[name] == 0) == (name not in waiting) for name in layers)


def test_few_names_are_all_told_and_many_by_their_ends() -> None:
    assert names_text(["a", "b", "c"]) == "a, b, c" and names_text(list("abcd")) == "a … d (4)"


# Tasks that are fanned out.

ELEMENTS = {"completed": 9_000, "running": 1_000}


def test_a_task_that_is_fanned_out_is_one_line_of_the_graph_with_its_elements() -> None:
    fan = task("clean", TaskState.PENDING, for_each="extract.parts", elements=ELEMENTS)
    text = graph_text(
        facts(), GraphView([task("extract"), fan, task("load")], [("extract", "clean"), ("clean", "load")])
    )
    (line,) = [line for line in text.splitlines() if "clean[0..9999]" in line]
    assert line.split("clean[0..9999]")[1].split("──▶")[0].strip() == "1,000 running, 9,000 completed"
    assert "──▶ load" in line


def test_a_task_and_an_element_of_it_are_told() -> None:
    text = task_text(task("clean", for_each="extract.parts", elements=ELEMENTS))
    assert "extract.parts" in text and "1,000 running, 9,000 completed" in text
    text = task_text(task("clean[3]", element_of="clean", item=msgspec.Raw(b'{"part":3}')))
    assert "element of clean" in text and '{"part":3}' in text


def test_the_sheet_of_a_job_has_elements_in_the_line_of_their_task() -> None:
    sheet = dag_sheet(facts(), [task("clean", TaskState.PENDING, elements=ELEMENTS)])
    assert sheet.lines[0][-1] == "10,000 elements: 1,000 running, 9,000 completed"


def test_how_fast_tasks_ended_before_a_fan_out_says_nothing_of_its_elements() -> None:
    pace = TaskPace()
    pace.look(0, facts(tasks=3))
    fanned_out = facts(tasks=100_003, counts={"completed": 1})
    pace.look(SECOND, fanned_out)
    assert "left" not in progress_text(fanned_out, SECOND, pace)
    later = facts(tasks=100_003, counts={"completed": 10_001})
    pace.look(2 * SECOND, later)
    assert progress_text(later, 2 * SECOND, pace).endswith("about 0:10 left")


def test_while_a_task_is_to_be_fanned_out_no_end_is_foretold() -> None:
    pace = TaskPace()
    pace.look(0, facts(counts={"completed": 1}))
    open_facts = facts(counts={"completed": 5}, to_fan_out=1)
    pace.look(20 * SECOND, open_facts)
    assert progress_text(open_facts, 20 * SECOND, pace) == "running: 5 of 10 tasks ended, 1 to be fanned out"
    frame = live_view(open_facts, [], 20 * SECOND, 0, pace, Size(80, 24))
    assert any(
        "5 of 10+" in "".join(part if isinstance(part, str) else part[0] for part in line) for line in frame.lines
    )
