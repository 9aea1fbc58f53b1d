"""Attempts that ask for more time: what they are given, what is kept of it, and what follows once it is over."""

from collections.abc import Iterator

import msgspec
import pytest

from talka.control.tasks.attempt_time import decoded_time
from talka.units import SECOND
from talka.wire.tasks import HandlerProgress, MoreTime, TaskProgress, TimeAnswer, TimeAnswers
from talka.work.dags.dag import Retry, Timeouts
from talka.work.dags.records import EventRow, PutTime
from talka.work.lifecycle import JobState, TaskState
from tests.control.dag_play import ALL, DagPlay

AGAIN = Retry(max=2, backoff=0.0)
HALF_A_MINUTE = Timeouts(attempt="30s")


@pytest.fixture
def play() -> Iterator[DagPlay]:
    with_store = DagPlay()
    with_store.beat("w")
    yield with_store
    with_store.records.close()


def ask(play: DagPlay, number: int, done: int, ran_s: float = 20, worker: str = "w", **more: object) -> None:
    asked = MoreTime(play.fence("a"), number, round(ran_s * 1000), done, **more)  # type: ignore[arg-type]
    play.hear(worker, TaskProgress(more_time=(asked,), of=play.life))


def warn(play: DagPlay, number: int, ran_s: float = 30) -> None:
    ask(play, number, 0, ran_s, is_warned=True)


def answers(play: DagPlay) -> list[TimeAnswer]:
    return [answer for said in play.said(TimeAnswers) for answer in said.answers]


def events(play: DagPlay) -> list[tuple[str, str]]:
    found: list[EventRow] = play.records.events(1, 0, 100)
    return [(event.kind, event.text) for event in found]


def test_an_attempt_that_advances_gets_half_of_its_timeout_and_half_of_that_each_further_time(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    for number in range(1, 7):
        ask(play, number, done=number)

    assert [answer.granted_ms for answer in answers(play)] == [15_000, 7_500, 3_750, 1_875, 1_000, 0]
    assert [answer.left for answer in answers(play)] == [4, 3, 2, 1, 0, 0]
    assert answers(play)[-1].why == "it was given more time 5 times already, which is the limit"
    assert play.keeper.attempts.times == {"granted": 5, "denied": 1}


def test_one_that_does_not_advance_gets_none_and_is_told_why(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    ask(play, 1, done=0, reason="it is slow")
    ask(play, 2, done=1)
    ask(play, 3, done=1)

    assert [(answer.granted_ms, answer.why) for answer in answers(play)] == [
        (0, "it has not advanced"),
        (15_000, ""),
        (0, "it has not advanced since it was given more"),
    ]
    assert events(play) == [("more-time", "attempt 1: 15s more, and 4 times again at most: it advances")]


def test_what_it_has_left_is_counted_from_its_own_beginning(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    play.pass_time(1000)
    ask(play, 1, done=1, ran_s=10, estimate_ms=15_000)
    ask(play, 2, done=1, ran_s=20, estimate_ms=15_000, reason="the index is large")

    assert [answer.granted_ms for answer in answers(play)] == [0, 15_000]
    assert "it has 20.0 s left, which is enough for the 15s" in answers(play)[0].why
    assert events(play)[0][1].endswith("the index is large")


def test_nobody_is_told_before_it_is_durable(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    play.hold()
    ask(play, 1, done=1)
    assert not answers(play)

    play.release()
    assert [answer.granted_ms for answer in answers(play)] == [15_000]


def test_what_is_asked_again_is_answered_as_it_was(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    ask(play, 1, done=1)
    ask(play, 1, done=2)
    ask(play, 2, done=2)
    ask(play, 1, done=1)

    assert [(answer.number, answer.granted_ms) for answer in answers(play)] == [(1, 15_000), (1, 15_000), (2, 7_500)]
    assert len(play.changes(PutTime)) == 2
    assert play.keeper.attempts.times == {"granted": 2}


def test_who_is_told_once_more_that_it_gets_none_costs_no_write(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    for number in range(1, 5):
        ask(play, number, done=0)

    assert [answer.why for answer in answers(play)] == ["it has not advanced"] * 4
    assert len(play.changes(PutTime)) == 1


def test_only_the_worker_that_has_an_attempt_asks_for_it(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    ask(play, 1, done=1, worker="other")
    play.hear("w", TaskProgress(more_time=(MoreTime(99, 1, 20_000, 1),), of=play.life))

    assert not answers(play) and not play.changes(PutTime)


@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_a_manager_that_is_started_anew_goes_on_with_what_was_given(play: DagPlay, seconds: float) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    ask(play, 1, done=1)
    ask(play, 2, done=2)
    play.restart(seconds)
    play.hold_reads()
    play.go_on()
    fence = play.row(0).fence
    ask_of = TaskProgress(more_time=(MoreTime(fence, 3, 20_000, 3),), of=play.life)
    play.hear("w", ask_of)
    assert not answers(play), "its timeout is not known before its spec was read"

    play.release()
    play.hear("w", ask_of)
    play.hear("w", TaskProgress(more_time=(MoreTime(fence, 4, 20_000, 4),), of=play.life))
    play.hear("w", TaskProgress(more_time=(MoreTime(fence, 4, 20_000, 4),), of=play.life))
    assert [(answer.number, answer.granted_ms) for answer in answers(play)] == [(3, 3_750), (4, 1_875), (4, 1_875)]


def test_a_manager_that_is_started_anew_answers_as_the_one_before(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    ask(play, 1, done=1)
    warn(play, 2)
    play.restart()
    play.go_on()
    again = MoreTime(play.row(0).fence, 2, 31_000, 0, is_warned=True)
    play.hear("w", TaskProgress(more_time=(again,), of=play.life))

    assert [answer.number for answer in answers(play)] == [2]
    assert [kind for kind, _ in events(play)] == ["more-time", "warned"], "people are told once"


def test_times_of_attempts_that_are_over_are_not_taken_up(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE, retry=AGAIN)
    ask(play, 1, done=1)
    play.result(play.fence("a"), "failed")
    play.restart()
    play.go_on()

    assert play.job(play.records.live_jobs()[0].id).time_of(play.task("a")) is None
    play.hear("w", TaskProgress(more_time=(MoreTime(play.row(0).fence, 1, 20_000, 1),), of=play.life))
    assert [answer.granted_ms for answer in answers(play)] == [15_000], "the next attempt has all of it again"
    assert [row.attempt for row in play.records.times(1, 0)] == [1, 2]


def test_an_attempt_that_ends_is_forgotten_here_and_kept_in_the_store(play: DagPlay) -> None:
    id = play.submit({"a": "", "b": ["a"]}, timeouts=HALF_A_MINUTE)
    ask(play, 1, done=1, reason="rows")
    fence = play.fence("a")
    play.done("a")

    assert play.job(id).time_of(play.task("a")) is None
    (row,) = play.records.times(1, 0, ALL)
    assert (row.fence, row.attempt) == (fence, 1)
    assert [one.reason for one in decoded_time(row.kept).record.extensions] == ["rows"]


def test_what_an_attempt_that_failed_was_given_is_not_told_of_its_task(play: DagPlay) -> None:
    id = play.submit({"a": ""}, timeouts=HALF_A_MINUTE, retry=Retry(max=1, backoff="1h"))
    ask(play, 1, done=1)
    play.result(play.fence("a"), "failed")

    assert play.task("a").state is TaskState.PENDING and play.job(id).time_of(play.task("a")) is None


def test_once_it_was_warned_it_gets_no_more(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    ask(play, 1, done=1)
    warn(play, 2, 45)
    ask(play, 3, done=9, ran_s=46)

    assert [answer.granted_ms for answer in answers(play)] == [15_000, 0, 0]
    assert answers(play)[-1].why.startswith("it was warned that its time is over")
    text = "attempt 1: its 30s are over, though it was given 15s more, in 1 extension; it has 10s to save what it has"
    assert events(play)[-1] == ("warned", text)


@pytest.mark.parametrize(
    ("on_timeout", "follows"),
    [
        ("kill", "it has 10s to save what it has"),
        ("pause", "it has 10s to save what it has, and then its job is paused"),
        ("notify", "it goes on for at most 4m30s"),
    ],
)
def test_people_are_told_what_follows_a_warning(play: DagPlay, on_timeout: str, follows: str) -> None:
    play.submit({"a": {"on_timeout": on_timeout}}, timeouts=HALF_A_MINUTE)
    warn(play, 1)

    assert events(play) == [("warned", f"attempt 1: its 30s are over; {follows}")]


def test_an_attempt_that_took_too_long_counts_as_a_failure(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE, retry=AGAIN)
    play.result(play.fence("a"), "timeout", error="it took longer than the 30s that an attempt may")

    assert play.task("a").failures == 1 and play.task("a").state is TaskState.ASSIGNED


def test_one_that_pauses_is_tried_again_from_its_checkpoint_once_its_job_is_resumed(play: DagPlay) -> None:
    id = play.submit({"a": {"on_timeout": "pause"}, "b": "", "c": ["b"]}, timeouts=HALF_A_MINUTE, retry=Retry(max=0))
    play.hear("w", TaskProgress(progress=(HandlerProgress(play.fence("a"), b'{"row":7}', 1),), of=play.life))
    play.result(play.fence("a"), "timeout", error="it took longer than the 30s that an attempt may")
    task = play.task("a")

    assert play.job(id).state is JobState.PAUSED and task.state is TaskState.PENDING
    assert (task.failures, task.deaths) == (0, 0), "no retry is spent"
    reason = (
        "attempt 1 at task a took too long (it took longer than the 30s that an attempt may): "
        "resume the job to run the task again"
    )
    assert play.job(id).reason == reason and events(play) == [("paused", reason)]
    assert play.why(id, "a").text == f"its job is paused: {reason}"

    play.done("b")
    assert play.task("c").state is TaskState.PENDING, "nothing more is given out"
    play.change(id, "resume")
    assert play.job(id).reason == "" and play.given[play.fence("a")][1].checkpoint == b'{"row":7}'
    play.done("a")
    play.done("c")
    assert play.ended[-1].state is JobState.COMPLETED


def test_a_job_stays_paused_for_a_task_beyond_a_restart(play: DagPlay) -> None:
    play.submit({"a": {"on_timeout": "pause"}}, timeouts=HALF_A_MINUTE)
    play.hear("w", TaskProgress(progress=(HandlerProgress(play.fence("a"), b"1", 1),), of=play.life))
    play.result(play.fence("a"), "timeout")
    play.restart()
    play.go_on()
    play.beat("w")
    (row,) = play.records.live_jobs()

    assert row.state is JobState.PAUSED and "resume the job" in row.reason and not play.hands
    play.change(row.id, "resume")
    assert play.given[play.fence("a")][1].checkpoint == b"1"


def test_two_tasks_of_a_job_pause_it_once(play: DagPlay) -> None:
    id = play.submit({"a": "", "b": ""}, timeouts=HALF_A_MINUTE, on_timeout="pause")
    play.result(play.fence("a"), "timeout")
    play.result(play.fence("b"), "timeout")

    assert [kind for kind, _ in events(play)] == ["paused"]
    assert {task.state for task in play.job(id).tasks} == {TaskState.PENDING}


def test_a_job_that_is_cancelled_is_not_paused(play: DagPlay) -> None:
    id = play.submit({"a": ""}, timeouts=HALF_A_MINUTE, on_timeout="pause")
    play.change(id, "cancel", "enough")
    play.result(play.fence("a"), "timeout")

    assert play.ended[-1].state is JobState.CANCELLED


def test_a_task_says_for_itself_what_follows(play: DagPlay) -> None:
    play.submit({"a": {"on_timeout": "notify"}, "b": ""}, on_timeout="pause")

    assert [task.on_timeout for _, task in play.hands] == ["notify", "pause"]


def test_why_tells_how_often_a_running_task_was_given_more_time(play: DagPlay) -> None:
    id = play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    assert play.why(id, "a").text == "it is assigned on w"
    ask(play, 1, done=1, reason="rows")
    assert play.why(id, "a").text == "it is assigned on w; it was given 15s more, in 1 extension: rows"
    warn(play, 2, 45)
    assert play.why(id, "a").text.endswith("rows; it was warned that its time is over")


def test_answers_travel_in_batches(play: DagPlay) -> None:
    limits = play.limits
    play.keeper._delivery._limits = msgspec.structs.replace(limits.delivery, tasks=2)
    play.submit({f"t{n}": "" for n in range(3)}, timeouts=HALF_A_MINUTE)
    asked = tuple(MoreTime(task.fence, 1, 20_000, 1) for _, task in play.hands)
    play.hear("w", TaskProgress(more_time=asked, of=play.life))

    assert [len(said.answers) for said in play.said(TimeAnswers)] == [2, 1]


def test_answers_of_commits_that_hold_together_go_together(play: DagPlay) -> None:
    play.submit({"a": ""}, timeouts=HALF_A_MINUTE)
    play.hold()
    ask(play, 1, done=1)
    ask(play, 2, done=2)
    play.commit_together()

    assert [[answer.number for answer in said.answers] for said in play.said(TimeAnswers)] == [[1, 2]]
    assert play.now == 100 * SECOND
