"""A task with a `for_each` becomes a task for each element of a list: once it is durable, all at once, and for good."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from talka.control.dags.keeper_limits import KeeperLimits
from talka.control.tasks.delivery import DeliveryLimits
from talka.errors import Invalid
from talka.wire.tasks import HandedTask, Held, TaskInputs
from talka.work.dags.dag import OUTPUT_LIMIT_BYTES, Limit, Retry, Timeouts
from talka.work.dags.records import DropElements, FanOut, FanRow, PutEvent, PutTasks, Release, TaskRow
from talka.work.lifecycle import JobState, TaskState
from tests.control.dag_play import DagPlay

Play = Any
PlayOf = Callable[..., Any]
ONCE = Retry(max=0)
RAW = msgspec.Raw

FAN: dict[str, Any] = {"extract": "", "clean": {"for_each": "extract.parts"}, "load": {"depends_on": ("clean",)}}


@pytest.fixture
def play() -> Play:
    return started(DagPlay())


def started(play: DagPlay) -> DagPlay:
    play.beat("w", cores=16)
    return play


def parts(*items: Any) -> bytes:
    return msgspec.json.encode({"parts": items})


def fanned(play: Play, *items: Any, tasks: Any = FAN, **settings: Any) -> str:
    """The id of a job whose `clean` was fanned out over these."""
    id: str = play.submit(tasks, **settings)
    play.done("extract", output=parts(*items))
    return id


def handed(play: Play, id: str) -> HandedTask:
    return play.handed[play.fence(id)]  # type: ignore[no-any-return]


def states(play: Play, job: int = 1) -> dict[str, str]:
    """As the store has them."""
    return {row.id: str(row.state) for row in play.records.tasks(job, (), -1, 1000)}


def row_of(play: Play, id: str, job: int = 1) -> TaskRow:
    row = play.records.task(job, id)
    assert row is not None
    return row  # type: ignore[no-any-return]


def again(play: Play) -> None:
    """The manager dies and starts again; the worker still has what it was handed."""
    play.restart()
    play.go_on()
    play.beat("w", cores=16)
    play.hear("w", Held(play.epoch, tuple(fence for fence in play.keeper.attempts.running if fence in play.given)))
    play.beat("w", cores=16)


# From one task to many, and back.


def test_each_element_of_the_list_becomes_a_task_and_followers_get_their_outputs_in_order(play: Play) -> None:
    id = fanned(play, "a", {"b": 1}, 3)
    assert play.names() == {"extract", "clean[0]", "clean[1]", "clean[2]"}
    items = [(handed(play, f"clean[{place}]").item, handed(play, f"clean[{place}]").place) for place in range(3)]
    assert items == [(b'"a"', 0), (b'{"b":1}', 1), (b"3", 2)]
    for place in (2, 0, 1):
        assert "load" not in play.names()
        play.done(f"clean[{place}]", output=b"%d" % (10 * place))
    assert handed(play, "load").inputs == {"clean": b"[0,10,20]"}
    assert handed(play, "load").item == b"" and handed(play, "load").place == -1
    play.done("load")
    assert [(one.job, one.state) for one in play.ended] == [(id, JobState.COMPLETED)]
    assert set(states(play).values()) == {"completed"} and play.job_row().tasks == 6


def test_what_an_element_gets_is_what_its_task_depends_on_and_not_the_whole_list(play: Play) -> None:
    play.submit({"extract": "", "other": "", "clean": {"for_each": "extract", "depends_on": ("other",)}})
    play.done("other", output=b'"o"')
    play.done("extract", output=b"[1,2]")
    assert [handed(play, f"clean[{place}]").inputs for place in range(2)] == [{"other": b'"o"'}] * 2


def test_a_list_whose_task_is_named_as_a_dependency_too_is_passed_on_whole(play: Play) -> None:
    play.submit({"extract": "", "clean": {"for_each": "extract", "depends_on": ("extract",)}})
    play.done("extract", output=b"[1,2]")
    assert handed(play, "clean[0]").inputs == {"extract": b"[1,2]"}


def test_elements_have_what_their_task_says_and_a_delay_is_waited_for_once(play: Play) -> None:
    fields = {
        "for_each": "extract.parts",
        "config": RAW(b'{"x":1}'),
        "delay": 5.0,
        "timeouts": Timeouts(attempt=7.0),
        "priority": 9,
        "retry": ONCE,
    }
    fanned(play, 1, tasks={"extract": "", "clean": fields})
    assert "clean[0]" not in play.names()
    play.pass_time(5)
    task = handed(play, "clean[0]")
    assert (task.config, task.attempt_ms) == (b'{"x":1}', 7000)
    assert play.task("clean[0]").priority == 9
    play.result(task.fence, "failed", error="E: no")
    assert row_of(play, "clean[0]").state is TaskState.DEAD


def test_a_delay_that_a_wrong_clock_put_far_ahead_keeps_no_task_waiting_whose_elements_have_ended(play: Play) -> None:
    play.submit({**FAN, "clean": {"for_each": "extract.parts", "delay": 5.0}})
    play.done("extract", output=parts(1, 2))
    play.pass_time(5)
    play.done("clean[0]")
    row = row_of(play, "clean")
    assert row.ready_ms
    play.records.apply([Release(1, row.index, 0, row.ready_ms + 30 * 86_400_000, 0)])
    again(play)
    play.result(row_of(play, "clean[1]").fence, output=b"1")
    play.done("load")
    assert play.ended[-1].state is JobState.COMPLETED


def test_a_list_without_elements_gives_an_empty_output(play: Play) -> None:
    fanned(play)
    assert handed(play, "load").inputs == {"clean": b"[]"}
    play.lose("w")
    again(play)
    assert handed(play, "load").inputs == {"clean": b"[]"}
    play.done("load")
    assert [one.state for one in play.ended] == [JobState.COMPLETED]


def test_an_output_that_is_a_list_is_fanned_out_over_again(play: Play) -> None:
    fanned(play, 1, 2, tasks={**FAN, "twice": {"for_each": "clean"}, "load": {"depends_on": ("twice",)}})
    play.done("clean[1]", output=b'"y"')
    play.done("clean[0]", output=b'{"x":0}')
    assert [handed(play, f"twice[{place}]").item for place in range(2)] == [b'{"x":0}', b'"y"']
    play.done("twice[0]", output=b"7")
    play.done("twice[1]", output=b"8")
    assert handed(play, "load").inputs == {"clean": b"[7,8]"} or handed(play, "load").inputs == {"twice": b"[7,8]"}


def test_the_longest_id_that_is_there_is_the_task_of_the_list(play: Play) -> None:
    play.submit({"a": "", "a.b": "", "clean": {"for_each": "a.b.c", "depends_on": ("a",)}})
    play.done("a", output=b'{"b":{"c":[1]}}')
    play.done("a.b", output=b'{"c":["right"]}')
    assert handed(play, "clean[0]").item == b'"right"'


def test_no_more_elements_run_at_once_than_max_parallel_also_after_a_restart(play: Play) -> None:
    fanned(play, *range(5), tasks={"extract": "", "clean": {"for_each": "extract.parts", "max_parallel": 2}})
    assert play.names() == {"extract", "clean[0]", "clean[1]"}
    again(play)
    assert play.handed == {}, "two run already"
    assert "lets 2 run at a time" in play.why(play.job_row().id, "clean[3]").workers[0].text
    first, second = (play.records.tasks(1, (), 1 + place, 1)[0].fence for place in range(2))
    play.result(first, output=b"0")
    assert play.names() == {"clean[2]"}
    play.result(second, output=b"1")
    for place in (2, 3, 4):
        play.done(f"clean[{place}]")
    assert [one.state for one in play.ended] == [JobState.COMPLETED]
    assert play.keeper.dispatcher._limits._held == {}


def test_limits_of_the_task_hold_for_its_elements_too(play: Play) -> None:
    limits = (Limit("db", concurrency=1),)
    fanned(play, *range(3), tasks={"extract": "", "clean": {"for_each": "extract.parts", "limits": limits}})
    assert play.names() == {"extract", "clean[0]"}


# What is no list.


@pytest.mark.parametrize(
    ("output", "for_each", "text"),
    [
        (b"7", "extract", "extract is a number, not a list"),
        (b'"x"', "extract", "extract is text, not a list"),
        (b"null", "extract", "extract is null, not a list"),
        (b"true", "extract", "extract is true, not a list"),
        (b"false", "extract", "extract is false, not a list"),
        (b"{}", "extract", "extract is an object, not a list"),
        (b"", "extract", "extract is nothing, not a list"),
        (b"[1]", "extract.parts", 'extract is a list and has no "parts"'),
        (b'{"rows":[1],"day":2}', "extract.parts", r'extract has no "parts" \(it has rows, day\)'),
        (b"{}", "extract.parts", r'extract has no "parts" \(it has no fields\)'),
        (b'{"a":{"b":5}}', "extract.a.b", "extract.a.b is a number, not a list"),
        (b"[1,2,3,4]", "extract", "extract has 4 elements, and 3 can be fanned out over: let extract return larger"),
        (b'["' + b"x" * 262_143 + b'"]', "extract", "element 0 of extract has 262,145 bytes, more than 262,144"),
    ],
)
def test_a_list_that_cannot_be_used_fails_the_task_with_a_sentence(output: bytes, for_each: str, text: str) -> None:
    play = started(DagPlay(limits=KeeperLimits(elements=3)))
    play.submit({"extract": "", "clean": {"for_each": for_each}, "load": ("clean",)}, on_failure="skip_dependents")
    play.done("extract", output=output)
    assert states(play) == {"extract": "completed", "clean": "failed", "load": "skipped"}
    row = row_of(play, "clean")
    assert row.cause == "for_each"
    assert re.search(text, row.error), row.error
    assert [one.state for one in play.ended] == [JobState.PARTIAL]


def test_a_task_without_an_output_leaves_nothing_to_fan_out_over(play: Play) -> None:
    id = play.submit(FAN, on_failure="continue")
    play.change(id, "pause")
    play.hold()
    play.submit({"x": ""})
    play.release()
    play.result(play.fence("extract"), "failed", error="E: no", classes=("E",))
    play.change(id, "resume")
    play.change(id, "cancel", "")
    assert [one.state for one in play.ended] == [JobState.CANCELLED]
    id = play.submit(FAN, on_failure="continue", retry=ONCE)
    play.result(play.fence("extract"), "failed", error="E: no")
    row = row_of(play, "clean", 3)
    assert row.state is TaskState.FAILED
    assert row.error == (
        "it is fanned out over the output of task extract, which is dead and has none: run that one again, or skip this"
        " one too"
    )


def test_outputs_that_are_larger_together_than_may_be_passed_on_are_not_fanned_out_over() -> None:
    play = started(DagPlay(limits=KeeperLimits(delivery=DeliveryLimits(inputs_bytes=40))))
    fanned(play, 1, 2, tasks={**FAN, "twice": {"for_each": "clean"}}, on_failure="continue")
    play.done("clean[0]", output=b'"%s"' % (b"x" * 30))
    play.done("clean[1]", output=b'"%s"' % (b"x" * 30))
    assert "have more than 40 bytes together: let the tasks before it return where" in row_of(play, "twice").error
    assert (
        "its inputs have" in row_of(play, "load").error
        and "let the tasks before it return" in row_of(play, "load").error
    )


def test_an_output_that_is_lost_is_told(play: Play) -> None:
    play.submit(FAN)
    play.hold()
    play.done("extract", output=parts(1))
    play.keeper._delivery._outputs.clear()
    play.hold_reads()
    play.release_commits()
    play.fetched({})
    assert row_of(play, "clean").error == "the output of task extract is lost: run that one again"


# Durable and exactly once.


def test_nothing_is_fanned_out_before_the_list_is_durable_and_then_all_of_it_at_once(play: Play) -> None:
    play.submit(FAN)
    play.hold()
    play.done("extract", output=parts(*range(5)))
    assert play.changes(PutTasks)[1:] == []
    play.commit()
    assert [type(one).__name__ for one in play.commits[-1].changes][:2] == ["PutTasks", "FanOut"]
    assert play.changes(FanOut) == [FanOut(1, 1, 3, 5, 8)]
    assert play.names() == {"extract"}, "who runs an element must not be told before it is durable"
    play.release()
    assert play.names() == {"extract", *(f"clean[{place}]" for place in range(5))}
    assert play.records.fans(1) == [FanRow(1, 3, 5)]


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_manager_that_dies_between_the_two_goes_on_with_nothing_or_all_of_it(play: Play, commits: int) -> None:
    """It dies when nothing is durable, the end of the list's task, its elements, and nobody was told."""
    play.submit(FAN)
    fence = play.fence("extract")
    play.hold()
    play.result(fence, output=parts("a", "b"))
    if commits:
        play.commit()
    if commits == 2:
        play.records.apply(play.commits[-1].changes)
    assert list(states(play)) == ["extract", "clean", "load", *(["clean[0]", "clean[1]"] if commits == 2 else [])]
    again(play)
    if commits == 0:
        play.result(fence, output=parts("a", "b"))
    assert play.names() == {"clean[0]", "clean[1]"}
    play.done("clean[1]", output=b"1")
    again(play)
    play.result(row_of(play, "clean[0]").fence, output=b"0")
    assert handed(play, "load").inputs == {"clean": b"[0,1]"}
    play.done("load")
    assert [one.state for one in play.ended] == [JobState.COMPLETED]
    assert [row.id for row in play.records.tasks(1, (), -1, 99)] == ["extract", "clean", "load", "clean[0]", "clean[1]"]


def test_with_the_usual_limits_a_hundred_thousand_numbers_are_fanned_out_over_and_one_more_is_refused() -> None:
    found = []
    for count in (100_000, 100_001):
        output = msgspec.json.encode(list(range(count)))
        assert len(output) <= OUTPUT_LIMIT_BYTES, "a handler can return it"
        play = started(DagPlay())
        play.submit({"extract": "", "clean": {"for_each": "extract"}})
        play.done("extract", output=output)
        play.pass_time(1)
        job, clean, last = play.job_row(), row_of(play, "clean"), play.records.task(1, "clean[99999]")
        assert job is not None
        found.append((job.tasks, clean.state, clean.error, last is not None))
        play.records.close()
    sentence = "extract has 100,001 elements, and 100,000 can be fanned out over: let extract return larger parts"
    assert found == [(100_002, "pending", "", True), (2, "failed", sentence, False)]


def test_many_elements_are_made_in_steps_and_become_durable_in_one_commit() -> None:
    limits = KeeperLimits(elements_at_once=10, tasks_at_once=7)
    play = started(DagPlay(limits=limits))
    fanned(play, *range(35))
    play.hold()
    steps = 0
    while not play.waits[0]:
        assert play.keeper.next_tick_at <= play.now and not play.changes(FanOut)
        play.take(play.keeper.tick(play.now))
        steps += 1
    assert steps == 4, "the first elements were made when the list was durable"
    (commit,) = [one for one in play.commits if any(isinstance(change, FanOut) for change in one.changes)]
    assert [len(change.rows) for change in commit.changes if isinstance(change, PutTasks)] == [1, 10, 10, 10, 4]
    play.release()
    play.pass_time(1)
    assert len(play.names()) == 36


def test_lists_of_several_tasks_are_fanned_out_one_after_the_other() -> None:
    play = started(DagPlay(limits=KeeperLimits(elements_at_once=3)))
    play.submit({"extract": "", "a": {"for_each": "extract"}, "b": {"for_each": "extract"}, "c": "ab"})
    play.done("extract", output=b"[1,2,3,4]")
    play.pass_time(1)
    assert play.records.fans(1) == [FanRow(1, 4, 4), FanRow(2, 8, 4)]
    for place in range(4):
        play.done(f"a[{place}]", output=b'"a%d"' % place)
        play.done(f"b[{place}]", output=b'"b%d"' % place)
    assert handed(play, "c").inputs == {"a": b'["a0","a1","a2","a3"]', "b": b'["b0","b1","b2","b3"]'}


def test_what_memory_does_not_have_is_read_a_few_outputs_at_a_time() -> None:
    small = DeliveryLimits(outputs_bytes=0, specs_bytes=0, outputs_at_once=2)
    play = started(DagPlay(limits=KeeperLimits(delivery=small)))
    fanned(play, *range(5), tasks={**FAN, "twice": {"for_each": "clean"}})
    for place in range(5):
        play.done(f"clean[{place}]", output=b"%d" % place)
    assert handed(play, "load").inputs == {"clean": b"[0,1,2,3,4]"}
    assert handed(play, "twice[4]").item == b"4"
    assert max(len(fetch.outputs) for fetch in play.fetches) == 2


def test_reading_ends_where_more_was_read_than_may_be_passed_on() -> None:
    small = DeliveryLimits(outputs_bytes=0, outputs_at_once=2, inputs_bytes=9)
    play = started(DagPlay(limits=KeeperLimits(delivery=small)))
    fanned(play, *range(9), tasks={**FAN, "clean": {"for_each": "extract"}}, on_failure="continue")
    assert row_of(play, "clean").state is TaskState.FAILED, "the list itself is larger"
    play = started(DagPlay(limits=KeeperLimits(delivery=small)))
    play.submit({"extract": "", "clean": {"for_each": "extract"}, "load": ("clean",), "twice": {"for_each": "clean"}})
    play.done("extract", output=b"[1,2,3,4]")
    reads = len(play.fetches)
    for place in range(4):
        play.done(f"clean[{place}]", output=b'"xxxx"')
    assert "more than 12 bytes together, and 9 may be passed on" in row_of(play, "load").error
    assert len(play.fetches) - reads == 2


def test_elements_wait_until_the_manager_has_room_for_them() -> None:
    play = started(DagPlay(limits=KeeperLimits(tasks=6)))
    other = play.submit({"x": ""})
    play.submit(FAN)
    play.done("extract", output=parts(1, 2, 3))
    assert "clean[0]" not in play.names()
    play.done("x")
    assert play.keeper.job(other) is None
    play.pass_time(5)
    assert {"clean[0]", "clean[1]", "clean[2]"} <= play.names()
    assert play.keeper.shelf.tasks == 6


def test_ids_that_another_task_has_are_refused_when_they_are_seen(play: Play) -> None:
    draft = play.begin()
    play.add(draft, {"extract": "", "clean[1]": ""})
    play.add(draft, {"clean": {"for_each": "extract"}})
    play.end(draft)
    play.done("clean[1]")
    play.done("extract", output=b"[1,2]")
    assert row_of(play, "clean").error == (
        "there is a task clean[1] already, which is the id of one of its elements: name that one otherwise"
    )


# How elements end.


def test_an_element_that_is_given_up_fails_the_job_and_the_rest_is_cancelled(play: Play) -> None:
    fanned(play, 1, 2, retry=ONCE)
    play.result(play.fence("clean[1]"), "failed", error="E: no")
    play.result(play.fence("clean[0]"), "cancelled")
    assert [(one.state, one.reason) for one in play.ended] == [(JobState.FAILED, "Task clean[1] failed: E: no")]
    assert states(play)["clean"] == states(play)["load"] == "cancelled"


def test_with_skip_dependents_the_others_go_on_and_what_needs_them_all_is_skipped(play: Play) -> None:
    fanned(play, 1, 2, retry=ONCE, on_failure="skip_dependents")
    play.result(play.fence("clean[1]"), "failed", error="E: no")
    assert states(play)["clean"] == states(play)["load"] == "skipped"
    assert row_of(play, "clean").error == "task clean[1], which it waited for, was not completed"
    play.done("clean[0]")
    assert [one.state for one in play.ended] == [JobState.PARTIAL]


def test_with_continue_an_element_without_an_output_is_null_in_the_list(play: Play) -> None:
    fanned(play, 1, 2, 3, retry=ONCE, on_failure="continue")
    play.result(play.fence("clean[1]"), "failed", error="E: no")
    play.done("clean[2]", output=b"2")
    again(play)
    play.result(row_of(play, "clean[0]").fence, output=b"0")
    assert handed(play, "load").inputs == {"clean": b"[0,null,2]"}
    play.done("load")
    assert [one.state for one in play.ended] == [JobState.PARTIAL]


def test_the_total_timeout_ends_elements_and_their_task(play: Play) -> None:
    timeouts = Timeouts(total=10.0)
    fanned(play, 1, tasks={**FAN, "clean": {"for_each": "extract.parts", "timeouts": timeouts}}, on_failure="continue")
    play.pass_time(10)
    play.result(play.fence("clean[0]"), "timeout")
    assert states(play) == {"extract": "completed", "clean": "completed", "load": "assigned", "clean[0]": "timeout"}


def test_a_task_that_waits_for_its_list_too_long_is_given_up(play: Play) -> None:
    timeouts = Timeouts(total=10.0)
    play.submit({"extract": "", "clean": {"for_each": "extract", "timeouts": timeouts}}, on_failure="continue")
    play.pass_time(10)
    assert states(play)["clean"] == "timeout"


# What people do.


def test_a_paused_job_makes_its_elements_and_starts_none(play: Play) -> None:
    id = play.submit(FAN)
    play.hold()
    play.done("extract", output=parts(1, 2))
    play.change(id, "pause")
    play.release()
    assert states(play)["clean[1]"] == "pending" and play.names() == {"extract"}
    play.change(id, "resume")
    assert play.names() == {"extract", "clean[0]", "clean[1]"}


def test_a_task_that_is_paused_before_its_list_is_asked_for_is_fanned_out_when_its_job_goes_on(play: Play) -> None:
    id = play.submit(FAN)
    play.change(id, "pause")
    play.done("extract", output=parts(1))
    assert play.records.fans(1) == []
    again(play)
    play.change(id, "resume")
    assert play.names() == {"clean[0]"}


def test_a_list_that_is_asked_for_is_not_asked_for_again_when_its_job_is_paused_and_goes_on() -> None:
    play = started(DagPlay(limits=KeeperLimits(delivery=DeliveryLimits(outputs_bytes=0))))
    id = play.submit(FAN)
    play.hold_reads()
    play.done("extract", output=parts(1))
    reads = len(play.fetches)
    play.change(id, "pause")
    play.change(id, "resume")
    assert len(play.fetches) == reads
    play.release()
    assert play.records.fans(1) == [FanRow(1, 3, 1)]


def test_a_list_is_made_again_before_it_was_fanned_out_over(play: Play) -> None:
    id = play.submit(FAN)
    play.change(id, "pause")
    play.done("extract", output=parts("old"))
    play.rerun(id, "extract")
    play.change(id, "resume")
    play.done("extract", output=parts("new"))
    assert handed(play, "clean[0]").item == b'"new"' and play.changes(DropElements) == []


def test_elements_without_an_output_are_null_in_a_list_that_is_fanned_out_over_again(play: Play) -> None:
    fanned(play, 1, 2, tasks={**FAN, "twice": {"for_each": "clean"}}, retry=ONCE, on_failure="continue")
    play.result(play.fence("clean[0]"), "failed", error="E: no")
    play.done("clean[1]", output=b"7")
    assert [handed(play, f"twice[{place}]").item for place in range(2)] == [b"null", b"7"]


@pytest.mark.parametrize("when", ["asked", "read", "made"])
def test_a_job_that_is_cancelled_while_a_task_is_fanned_out_has_no_elements(when: str) -> None:
    limits = KeeperLimits(elements_at_once=2, delivery=DeliveryLimits(outputs_bytes=0))
    play = started(DagPlay(limits=limits))
    id = play.submit(FAN)
    if when == "asked":
        play.hold()
    if when == "read":
        play.hold_reads()
    play.done("extract", output=parts(1, 2, 3, 4))
    play.change(id, "cancel", "enough")
    play.release()
    play.pass_time(1)
    assert [one.state for one in play.ended] == [JobState.CANCELLED]
    assert list(states(play)) == ["extract", "clean", "load"]


def test_a_task_whose_job_was_cancelled_while_its_list_was_read_is_fanned_out_when_it_is_run_again() -> None:
    play = started(DagPlay(limits=KeeperLimits(delivery=DeliveryLimits(outputs_bytes=0))))
    id = play.submit(FAN)
    play.hold_reads()
    play.done("extract", output=parts(1, 2))
    play.change(id, "cancel", "enough")
    assert play.ended[-1].state is JobState.CANCELLED
    play.rerun(id)
    play.release()
    assert {"clean[0]", "clean[1]"} <= play.names() and play.records.fans(1) == [FanRow(1, 3, 2)]


def test_a_job_that_is_being_stopped_gets_no_elements() -> None:
    """Where so many tasks wait that they are cancelled in several steps."""
    limits = KeeperLimits(tasks_at_once=1, elements_at_once=1)
    play = started(DagPlay(limits=limits))
    id = play.submit({"extract": "", "w": ("extract",), "x": ("w",), "clean": {"for_each": "extract"}, "y": ("clean",)})
    play.hold()
    play.done("extract", output=b"[1,2,3,4,5,6]")
    play.take(play.keeper.tick(play.now))
    play.release()
    play.change(id, "cancel", "enough")
    play.pass_time(1)
    play.result(play.fence("w"), "cancelled")
    play.pass_time(1)
    assert play.ended[-1].state is JobState.CANCELLED and play.records.fans(1) == []


def test_another_may_have_the_partition_after_elements_went(play: Play) -> None:
    id = fanned(play, 1, tasks={**FAN, "clean": {"for_each": "extract.parts", "capabilities": ("gpu",)}})
    play.rerun(id, "extract")
    play.keeper.leave(play.now)
    assert play.keeper.dispatcher.ready == 0
    rows = dict(play.keeper.turns.handlers.rows())
    assert rows and all(row.ready + row.running + row.delayed + row.blocked == 0 for row in rows.values())


def test_a_job_that_is_cancelled_ends_with_its_elements(play: Play) -> None:
    id = fanned(play, 1, 2, tasks={**FAN, "clean": {"for_each": "extract.parts", "max_parallel": 1}})
    play.change(id, "cancel", "enough")
    play.result(play.fence("clean[0]"), "cancelled")
    assert set(states(play).values()) == {"completed", "cancelled"}
    assert [one.state for one in play.ended] == [JobState.CANCELLED]


def test_a_task_that_is_skipped_takes_the_elements_that_wait_with_it(play: Play) -> None:
    fields = {"for_each": "extract.parts", "max_parallel": 1}
    id = fanned(play, 1, 2, 3, tasks={**FAN, "clean": fields})
    play.change(id, "skip", ["clean[2]", "clean"])
    assert [states(play)[f"clean[{place}]"] for place in range(3)] == ["assigned", "skipped", "skipped"]
    assert handed(play, "load").inputs == {}
    play.done("clean[0]")
    play.done("load")
    assert [one.state for one in play.ended] == [JobState.PARTIAL]


def test_an_element_that_is_skipped_is_null_in_the_list(play: Play) -> None:
    fields = {"for_each": "extract.parts", "max_parallel": 1}
    id = fanned(play, 1, 2, tasks={**FAN, "clean": fields})
    play.change(id, "skip", ["clean[1]"])
    play.done("clean[0]", output=b"0")
    assert handed(play, "load").inputs == {"clean": b"[0,null]"}


def ended_with(play: Play, *items: Any, failed: Sequence[int] = ()) -> str:
    id = fanned(play, *items, retry=ONCE, on_failure="skip_dependents")
    for place in range(len(items)):
        if place in failed:
            play.result(play.fence(f"clean[{place}]"), "failed", error="E: no")
        else:
            play.done(f"clean[{place}]", output=b"%d" % place)
    if not failed:
        play.done("load")
    assert play.keeper.jobs == {}
    return id


def test_retry_runs_the_elements_that_failed_and_keeps_the_others(play: Play) -> None:
    id = ended_with(play, 1, 2, 3, failed=[1])
    play.rerun(id)
    assert [task.id for _, task in play.hands][-1] == "clean[1]" and len(play.hands) == 5
    play.done("clean[1]", output=b'"again"')
    assert handed(play, "load").inputs == {"clean": b'[0,"again",2]'}
    play.done("load")
    assert [one.state for one in play.ended] == [JobState.PARTIAL, JobState.COMPLETED]
    assert play.changes(DropElements) == []


def test_an_element_can_be_run_again_with_another_config(play: Play) -> None:
    id = ended_with(play, 1, 2)
    play.rerun(id, "clean[1]", configs={"clean[1]": RAW(b'{"fixed":1}')})
    assert (handed(play, "clean[1]").config, handed(play, "clean[1]").item) == (b'{"fixed":1}', b"2")
    again(play)
    play.lose("w")
    again(play)
    assert handed(play, "clean[1]").config == b'{"fixed":1}', "also by a manager that reads it"
    play.done("clean[1]", output=b'"again"')
    assert handed(play, "load").inputs == {"clean": b'[0,"again"]'}


@pytest.mark.parametrize("name", ["extract", "clean"])
def test_elements_of_an_earlier_list_are_replaced_when_it_is_fanned_out_anew(play: Play, name: str) -> None:
    id = ended_with(play, 1, 2, 3)
    play.rerun(id, name)
    assert play.changes(DropElements) == [DropElements(1, 1, 3, 3, 3)]
    if name == "extract":
        assert list(states(play)) == ["extract", "clean", "load"] and play.job_row().tasks == 3
        play.done("extract", output=parts("x", "y"))
    count = 2 if name == "extract" else 3
    rows = play.records.tasks(1, (), -1, 99)
    assert [(row.index, row.id) for row in rows[3:]] == [(6 + place, f"clean[{place}]") for place in range(count)]
    assert handed(play, "clean[1]").item == (b'"y"' if name == "extract" else b"2")
    again(play)
    for place in range(count):
        play.result(row_of(play, f"clean[{place}]").fence, output=b'"new%d"' % place)
    assert handed(play, "load").inputs["clean"].startswith(b'["new0","new1"')
    play.done("load")
    assert play.ended[-1].state is JobState.COMPLETED and play.job_row().tasks == 3 + count
    assert play.keeper.shelf.tasks == 0 and play.keeper._delivery.specs_bytes == 0
    assert play.records.file.problems() == []


def test_what_is_fanned_out_over_the_output_of_elements_is_made_anew_when_one_of_them_runs_again(play: Play) -> None:
    id = fanned(play, 1, tasks={"extract": "", "clean": {"for_each": "extract.parts"}, "twice": {"for_each": "clean"}})
    play.done("clean[0]", output=b'"old"')
    play.done("twice[0]")
    play.rerun(id, "clean[0]")
    play.done("clean[0]", output=b'"new"')
    assert handed(play, "twice[0]").item == b'"new"'


def test_elements_that_wait_leave_the_queues_when_their_task_is_run_again(play: Play) -> None:
    fields = {"for_each": "extract.parts", "capabilities": ("gpu",)}
    id = fanned(play, 1, 2, tasks={**FAN, "clean": fields})
    assert play.keeper.dispatcher.ready == 2
    play.rerun(id, "extract")
    assert play.keeper.dispatcher.ready == 0 and play.keeper.shelf.tasks == 3
    play.done("extract", output=parts(5))
    assert play.keeper.dispatcher.ready == 1
    play.beat("g", capabilities=("gpu",))
    assert handed(play, "clean[0]").item == b"5"


def test_elements_that_are_gone_while_they_are_read_are_not_run() -> None:
    play = DagPlay()
    play.beat("w", cores=16, handlers=("h",))
    id = fanned(play, 1, tasks={**FAN, "clean": {"for_each": "extract.parts", "capabilities": ("gpu",)}})
    play.restart()
    play.hold_reads()
    play.go_on()
    play.beat("w", cores=16)
    play.rerun(id, "extract")
    play.release()
    play.beat("w", cores=16)
    assert play.names() == {"extract"}
    play.done("extract", output=parts())
    play.done("load")
    assert play.ended[-1].state is JobState.COMPLETED


def test_what_runs_is_not_replaced(play: Play) -> None:
    id = fanned(play, 1, 2)
    with pytest.raises(Invalid, match=r"task clean\[0\] is running: wait for it, or cancel the job"):
        play.rerun(id, "extract")


def test_a_config_for_an_element_that_is_to_go_is_refused(play: Play) -> None:
    id = ended_with(play, 1)
    with pytest.raises(
        Invalid, match=r"task clean\[0\] is made anew with all elements of clean: give clean the config"
    ):
        play.rerun(id, "extract", configs={"clean[0]": RAW(b"1")})


def test_a_task_that_could_not_be_fanned_out_is_when_it_is_run_again(play: Play) -> None:
    id = fanned(play, tasks={**FAN, "clean": {"for_each": "extract.rows"}})
    assert play.ended[-1].state is JobState.FAILED
    play.rerun(id, "extract")
    play.done("extract", output=b'{"rows":[1]}')
    assert handed(play, "clean[0]").item == b"1"


def test_an_empty_name_names_nothing_that_is_gone(play: Play) -> None:
    id = ended_with(play, 1)
    play.rerun(id, "extract")
    with pytest.raises(Invalid, match="has no task : see its tasks"):
        play.change(id, "skip", [""])


# What is told.


def test_why_says_how_many_elements_a_task_waits_for(play: Play) -> None:
    id = fanned(play, *range(9), tasks={**FAN, "clean": {"for_each": "extract.parts", "max_parallel": 1}})
    assert play.why(id, "clean").text == (
        "it waits for 9 of its 9 elements: clean[0] (assigned), clean[1] (ready), clean[2] (ready), clean[3] (ready),"
        " clean[4] (ready) and 4 more"
    )
    play.done("clean[0]")
    assert play.job(id).elements_by_state(1) == {"ready": 7, "assigned": 1, "completed": 1}
    assert play.job(id).to_fan_out == 0 and play.job(id).elements_by_state(0) == {}
    assert play.why(id, "clean").text.startswith("it waits for 8 of its 9 elements: clean[1] (assigned), clean[2]")
    assert play.why(id, "load").text == "it waits for clean (pending)"
    (event,) = [one.row for one in play.changes(PutEvent) if one.row.kind == "fanned-out"]
    assert (event.index, event.text) == (1, "it has 9 elements")


def test_why_says_that_a_list_is_read(play: Play) -> None:
    id = play.submit(FAN)
    play.hold()
    play.done("extract", output=parts(1))
    assert play.why(id, "clean").text == "it is about to be fanned out"


def test_inputs_that_do_not_fit_a_batch_with_the_item_travel_before_it(play: Play) -> None:
    item, other = "x" * 200_000, b'"' + b"y" * 400_000 + b'"'
    play.submit({"other": "", "extract": "", "clean": {"for_each": "extract", "depends_on": ("other",)}})
    play.done("other", output=other)
    play.done("extract", output=msgspec.json.encode([item]))
    assert handed(play, "clean[0]").fed == 1 and len(handed(play, "clean[0]").item) == 200_002
    assert [one.inputs for one in play.said(TaskInputs)] == [{"other": other}]
