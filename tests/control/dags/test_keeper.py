"""Dag jobs of a manager as one pure thing: what is told to whom, and that it is durable before."""

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from talka.control.dags.keeper_limits import KeeperLimits
from talka.control.dags.keepers import DagKeepers
from talka.control.dags.shelf import KeyTaken, NoRoomForJobs
from talka.control.tasks.delivery import DeliveryLimits
from talka.control.tasks.quarantine import QUARANTINED
from talka.control.tasks.store_effects import CallAnswered, Commit, DagEnded, ReadOutputs
from talka.errors import Invalid
from talka.units import NEVER, SECOND
from talka.wire.tasks import (
    AskHeld,
    AssignTasks,
    HandlerProgress,
    Held,
    Recall,
    ResultsStored,
    TaskLine,
    TaskProgress,
    TaskResult,
)
from talka.work.dags.dag import BadDag, DagSpec, Limit, Retry, TaskSpec, Timeouts
from talka.work.dags.records import (
    ClaimTask,
    Complete,
    DropJob,
    Extend,
    MoveJob,
    PutEvent,
    PutJob,
    PutLogs,
    PutTasks,
    Release,
)
from talka.work.lifecycle import IllegalMove, JobState, TaskState
from tests.sim.variants import without

Play = Any
PlayOf = Callable[..., Any]


def kinds(commit: Commit) -> list[type]:
    """Of what a commit changes; events only tell of it."""
    return [type(change) for change in commit.changes if not isinstance(change, PutEvent)]


# Nothing is told before it is durable.


def test_a_job_is_acknowledged_and_runs_once_it_is_durable(play: Play) -> None:
    play.beat("w")
    play.hold()
    id = play.submit({"a": ""})
    assert play.answers == [] and play.handed == {}
    assert len(play.changes(ClaimTask)) == 1 and play.waits == (1, 0), "it is claimed in the commit that submits it"
    play.commit()
    assert play.answers == [CallAnswered(1, id)]
    assert [task.id for task in play.handed.values()] == ["a"]
    assert play.keeper.job(id).state is JobState.RUNNING


def test_jobs_that_come_together_are_claimed_in_one_commit_and_each_is_acknowledged_once_it_holds(play: Play) -> None:
    play.beat("w")
    play.hold()
    spec = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="h"),))
    for call in (901, 902):
        assert play.keeper.submit(play.now, call, spec, has_more=True) == []
    assert play.changes(PutJob) == [] and len(play.keeper.jobs) == 2
    play.take(play.keeper.tick(play.now))
    assert len(play.changes(PutJob)) == 2 and len(play.changes(ClaimTask)) == 2 and play.waits == (1, 0)
    assert play.answers == [] and play.handed == {}, "nothing is told before it is durable"
    play.commit()
    assert [answer.call for answer in play.answers] == [901, 902] and len(play.handed) == 2


def test_what_follows_from_commits_that_became_durable_together_travels_together(play: Play) -> None:
    play.beat("w")
    first = play.submit({"a": "", "b": "a"})
    (fence,) = play.handed
    play.hold()
    play.done("a")
    second = play.submit({"c": ""})
    third = play.submit({"d": ""})
    assert play.waits == (3, 0) and len(play.answers) == 1
    handed = len(play.told_all)
    play.commit_together()
    assert [answer.job for answer in play.answers] == [first, second, third]
    assert play.took == [fence]
    (message,) = [told.message for told in play.told_all[handed:] if isinstance(told.message, AssignTasks)]
    assert [task.id for task in message.tasks] == ["b", "c", "d"]


def test_what_is_given_out_may_be_asked_for_before_the_rest_and_is_given_once(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": "a"})
    (fence,) = play.handed
    play.hold()
    play.done("a")
    commit = play.commits[-1]
    first = play.keeper.hand(play.now, commit.ticket)
    assert [[task.id for task in said.message.tasks] for said in first] == [["b"]]
    assert play.keeper.hand(play.now, commit.ticket) == []
    play.take(first)
    play.commit()
    assert play.took == [fence]
    assert [task.id for _, task in play.hands] == ["a", "b"]


def test_a_job_whose_end_is_durable_is_no_ring_for_the_collector(play: Play) -> None:
    play.beat("w")
    gc.disable()
    try:
        job = weakref.ref(play.keeper.job(play.submit({"a": "", "b": "a"})))
        play.done("a")
        assert job() is not None
        play.done("b")
        assert play.keeper.jobs == {} and job() is None
    finally:
        gc.enable()


def test_a_job_that_came_in_parts_is_claimed_in_the_commit_of_its_end(play: Play) -> None:
    play.beat("w")
    draft = play.begin()
    play.add(draft, {"a": ""})
    play.hold()
    play.end(draft)
    assert play.handed == {}
    assert kinds(play.commits[-1]) == [MoveJob, ClaimTask]
    play.commit()
    assert play.names() == {"a"} and play.answers[-1].job == draft


def test_every_attempt_is_handed_once_its_claim_is_durable(play: Play) -> None:
    play.submit({"a": ""}, retry=Retry(max=3, backoff=0.0))
    play.hold()
    play.beat("w")
    assert len(play.changes(ClaimTask)) == 1 and play.handed == {}
    play.commit()
    (first,) = play.handed
    assert [change.fence for change in play.changes(ClaimTask)] == [first]
    play.result(first, "failed", error="E: no")
    assert list(play.handed) == [first]
    play.commit()
    _, second = play.handed
    assert play.handed[second].attempt == 2
    assert second > first


def test_a_result_is_taken_once_it_is_durable(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": "a"})
    play.hold()
    play.done("a")
    assert play.took == []
    assert "b" not in play.names()
    assert kinds(play.commits[-1]) == [Complete, ClaimTask], "what waited is claimed with it"
    play.commit()
    assert play.took == [play.fence("a")]
    assert "b" in play.names()
    assert play.waits == (0, 0)


def test_what_waited_for_a_task_that_failed_is_handed_once_that_is_durable(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": "a", "c": "", "d": "c", "e": "c"}, on_failure="continue", retry=Retry(max=0))
    play.hold()
    play.result(play.fence("a"), "failed")
    play.result(play.fence("c"), "failed")
    assert play.names() == {"a", "c"}
    play.commit()
    assert play.names() == {"a", "b", "c"}
    play.release()
    assert play.names() == {"a", "b", "c", "d", "e"}


def test_what_waited_for_a_task_that_is_skipped_is_handed_once_that_is_durable(play: Play) -> None:
    id = play.submit({"a": "", "b": "a"})
    play.hold()
    play.change(id, "skip", ["a"])
    play.beat("w")
    assert play.handed == {}
    play.release()
    assert play.names() == {"b"}


def test_the_end_of_a_job_is_told_once_it_is_on_record(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": ""})
    play.hold()
    play.done("a")
    assert play.ended == []
    assert play.keeper.job(id) is not None
    assert kinds(play.commits[-1]) == [Complete, MoveJob], "both or neither"
    play.commit()
    assert play.ended == [DagEnded(id, JobState.COMPLETED, "", {"completed": 1})]
    assert play.keeper.job(id) is None


def test_who_asks_again_is_answered_after_what_was_asked_before(play: Play) -> None:
    play.hold()
    id = play.submit({"a": ""}, key="k")
    assert play.keeper.shelf.of_key("k").row.id == id
    play.take(play.keeper.confirm(play.now, 7, id))
    assert play.answers == []
    play.commit()
    assert play.answers == [CallAnswered(1, id)]
    play.commit()
    assert play.answers[1:] == [CallAnswered(7, id)]


def test_a_job_that_is_not_durable_yet_is_changed_after_it(play: Play) -> None:
    play.hold()
    id = play.submit({"a": ""})
    play.change(id, "pause")
    play.commit()
    assert play.answers == [CallAnswered(1, id)]
    play.release()
    assert play.answers[1:] == [CallAnswered(2, id)]
    play.beat("w")
    assert play.handed == {} and play.keeper.job(id).state is JobState.PAUSED


def test_what_is_given_up_before_its_claim_is_durable_is_not_handed(play: Play) -> None:
    play.submit({"a": ""})
    play.hold()
    play.beat("w")
    play.lose("w")
    play.release()
    assert play.handed == {}
    play.beat("v")
    assert [(to, task.attempt) for to, task in play.hands] == [("v", 2)]


# Results.


def test_a_stale_result_is_refused_counted_and_taken(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    first = play.fence("a")
    play.lose("w")
    play.beat("v")
    second = play.fence("a")
    assert second != first
    play.result(first, output=b'"of the first"')
    assert (play.keeper.stale_results, play.took) == (1, [first])
    play.result(second, output=b'"of the second"')
    assert play.row(0).output == b'"of the second"'
    assert play.keeper.stale_results == 1


def test_a_result_that_is_told_again_is_taken_again_and_not_stale(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    play.hold()
    play.done("a")
    play.done("a")  # its commit took long
    assert play.took == []
    play.release()
    fence = play.fence("a")
    assert play.took == [fence, fence]
    assert play.keeper.stale_results == 0


@pytest.mark.parametrize("play", [KeeperLimits(taken=2)], indirect=True)
def test_results_are_remembered_for_a_while(play: Play) -> None:
    play.beat("w", cores=8)
    play.submit(dict.fromkeys("abcde", ""))
    for id in "abc":
        play.done(id)
    play.done("a")
    assert play.keeper.stale_results == 0
    play.done("d")
    play.done("a")
    assert play.keeper.stale_results == 1


@pytest.mark.parametrize("play", [KeeperLimits(delivery=DeliveryLimits(tasks=2))], indirect=True)
def test_many_results_are_taken_in_parts(play: Play) -> None:
    play.beat("w", cores=8)
    play.submit(dict.fromkeys("abcde", ""))
    play.results([TaskResult(play.fence(id), "completed", b"1") for id in "abcde"])
    assert [len(took.fences) for took in play.said(ResultsStored)] == [2, 2, 1]


def test_a_failure_is_tried_again_after_its_wait_and_given_up_in_the_end(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": ""}, retry=Retry(max=1, backoff=10.0))
    play.result(play.fence("a"), "failed", error="E: no", cause="E")
    assert re.fullmatch(r"it waits to be tried again in [0-9.]+ s: attempt 1 ended with E: no", play.why(id, "a").text)
    play.pass_time(11)
    assert play.handed[play.fence("a")].attempt == 2
    play.result(play.fence("a"), "failed", error="E: no", cause="E")
    assert play.row(0).state is TaskState.DEAD
    assert [one.state for one in play.ended] == [JobState.FAILED]


def test_how_long_a_task_took_counts_only_if_it_ran_to_an_end(play: Play) -> None:
    play.beat("w", cores=1)
    play.submit({f"t{number}": "" for number in range(600)})
    before = len(play.handed)
    play.result(play.fence("t0"), "refused", cause="handlers", took_us=1)
    assert len(play.handed) == before + 1, "nobody knows how long they take"
    play.result(play.fence("t1"), took_us=10)
    assert len(play.handed) > before + 2, "they are short"


def test_a_worker_that_has_no_room_or_no_lease_gets_nothing_until_it_beats(play: Play) -> None:
    play.beat("w", cores=1)
    play.submit({f"t{number}": "" for number in range(600)})
    before = len(play.handed)
    play.result(play.fence("t0"), "refused", cause="lease")
    assert len(play.handed) == before
    play.beat("w", cores=1)
    assert len(play.handed) == before + 1


def test_progress_and_lines_of_running_attempts_are_kept(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""}, retry=Retry(max=1, backoff=0.0))
    fence = play.fence("a")
    words = TaskProgress(
        (fence, 99),
        (HandlerProgress(fence, b"1"), HandlerProgress(99, b"2")),
        (TaskLine(fence, 5, "x"), TaskLine(99, 5, "y")),
    )
    play.hear("w", words)
    assert play.task("a").state is TaskState.RUNNING
    assert [change.checkpoint for change in play.changes(Extend)] == [b"1"]
    assert [[row.text for row in change.rows] for change in play.changes(PutLogs)] == [["x"]]
    play.hear("w", words)
    assert len(play.changes(Extend)) == 1, "that is known"
    play.hear("w", TaskProgress())
    play.result(fence, "failed")
    assert play.handed[play.fence("a")].checkpoint == b"1"
    task = play.task("a")
    play.done("a")
    assert task.checkpoint == b"", "memory has it no longer"


def test_lines_that_their_result_overtook_are_kept(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    fence = play.fence("a")
    play.done("a")
    play.hear("w", TaskProgress((), (HandlerProgress(fence, b"1"),), (TaskLine(fence, 5, "the last"),)))
    assert [(row.attempt, row.text) for row in play.records.logs(1, 0, 0, 9)] == [(1, "the last")]
    assert play.changes(Extend) == []


def test_result_of_an_attempt_counts_from_the_worker_that_was_given_it_alone(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    fence = play.fence("a")
    play.result(fence, output=b'"stolen"', worker="x")
    assert (play.keeper.stale_results, play.took) == (1, [])
    assert play.task("a").state is not TaskState.COMPLETED
    play.result(fence, output=b'"its own"')
    assert play.row(0).output == b'"its own"'


def test_what_another_worker_tells_of_an_attempt_is_not_kept(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    fence = play.fence("a")
    words = TaskProgress((fence,), (HandlerProgress(fence, b"1"),), (TaskLine(fence, 5, "x"),))
    play.hear("x", words)
    assert play.task("a").state is not TaskState.RUNNING
    play.done("a")
    play.hear("x", words)
    assert play.changes(Extend) == play.changes(PutLogs) == []


def test_what_managers_say_is_nothing_to_them(play: Play) -> None:
    assert play.keeper.on_message(play.now, "w", AskHeld(1)) == []


# Workers.


def test_tasks_of_a_lost_worker_are_given_to_another_at_once(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""}, retry=Retry(max=0))
    play.lose("w", boot=9)
    assert len(play.handed) == 1, "of another life"
    play.lose("w")
    assert len(play.keeper.attempts.running) == 0
    play.beat("v")
    assert [(to, task.attempt) for to, task in play.hands] == [("w", 1), ("v", 2)]
    play.done("a", worker="v")
    assert [one.state for one in play.ended] == [JobState.COMPLETED]


def test_when_nobody_knows_who_lives_nothing_is_given_out(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    play.keeper.on_stepped_down(play.now)
    play.submit({"b": ""})
    assert play.names() == {"a"} and len(play.keeper.attempts.running) == 1
    play.beat("w")
    assert play.names() == {"a", "b"}


def test_what_was_handed_is_not_lost_because_the_manager_did_not_lead_for_a_while(play: Play) -> None:
    play.beat("w")
    play.beat("idle")
    play.submit({"a": ""})
    worker = play.worker_of("a")
    play.keeper.on_stepped_down(play.now)
    play.beat(worker)
    assert play.said(AskHeld) == [], "it is of this epoch, and may be on its way"
    play.hear(worker, Held(play.epoch, ()))
    assert len(play.keeper.attempts.running) == 1
    assert list(play.keeper.attempts._workers) == [worker], "nobody would say of those without tasks that they left"


def test_what_is_handed_names_the_life_and_the_last_beat_of_its_worker(play: Play) -> None:
    play.beat("w", boot=3, number=41)
    play.beat("w", boot=3, number=40)
    play.submit({"a": ""})
    assert [(hand.boot, hand.beat) for hand in play.said(AssignTasks)] == [(3, 41)]
    play.hold()
    play.submit({"b": ""})
    play.beat("w", boot=3, number=42)
    play.release()
    assert [(hand.boot, hand.beat) for hand in play.said(AssignTasks)][1:] == [(3, 42)], "as it was when it was handed"
    play.lose("w", boot=3)
    play.beat("w", boot=4, number=1)
    assert (play.said(AssignTasks)[-1].boot, play.said(AssignTasks)[-1].beat) == (4, 1)


def test_a_worker_of_another_name_with_the_same_beginning_keeps_its_tasks(play: Play) -> None:
    play.beat("w#1")
    play.submit({"a": ""})
    play.lose("w", boot=1)
    assert len(play.keeper.attempts.running) == 1


def test_what_a_worker_was_handed_and_does_not_hold_is_lost_when_it_says_so_twice(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": ""})
    a, b = play.fence("a"), play.fence("b")
    play.pass_time(2)
    play.beat("w")
    assert play.said(AskHeld) == [], "it may be on its way"
    play.pass_time(4)
    play.beat("w")
    assert len(play.said(AskHeld)) == 1
    play.beat("w")
    assert len(play.said(AskHeld)) == 1, "it is being asked"
    play.hear("w", Held(play.epoch, (b,)))
    assert len(play.keeper.attempts.running) == 2
    play.hear("w", Held(play.epoch, (b,)))
    assert len(play.keeper.attempts.running) == 2, "that was not asked"
    play.pass_time(6)
    play.beat("w")
    play.hear("w", Held(play.epoch, (b,)))
    assert play.fence("a") > b > a
    assert play.handed[play.fence("a")].attempt == 2
    assert play.fence("b") == b


def test_what_it_holds_the_second_time_is_not_lost(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    for held in ((), (play.fence("a"),), (), (play.fence("a"),)):
        play.pass_time(6)
        play.beat("w")
        play.hear("w", Held(play.epoch, held))
    assert len(play.hands) == 1


def test_what_was_handed_a_moment_ago_may_be_on_its_way(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    for number in range(4):
        play.pass_time(6)
        play.submit({f"b{number}": ""})
        play.beat("w")
        play.hear("w", Held(play.epoch, tuple(list(play.handed)[:-1])))
    assert len(play.keeper.attempts.running) == len(play.hands) == 5


def test_who_does_not_answer_is_asked_again(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    for _ in range(20):
        play.pass_time(1)
        play.beat("w")
    assert len(play.said(AskHeld)) == 2


def test_what_was_not_handed_yet_cannot_be_missing(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""}, retry=Retry(max=3, backoff=0.0))
    play.hold()
    play.result(play.fence("a"), "failed")  # claimed again, which takes long
    for _ in range(3):
        play.pass_time(6)
        play.beat("w")
        play.hear("w", Held(play.epoch, ()))
    assert play.said(AskHeld) == []
    play.release()
    assert [task.attempt for _, task in play.hands] == [1, 2]


def test_an_attempt_whose_claim_was_overtaken_is_not_handed(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""}, retry=Retry(max=3, backoff=0.0))
    play.hold()
    play.result(play.fence("a"), "failed")
    play.lose("w")  # while the second attempt is being claimed
    play.beat("v")
    play.commit()
    play.commit()
    assert len(play.hands) == 1, "neither the second, nor the third before its own claim"
    play.release()
    assert [(to, task.attempt) for to, task in play.hands] == [("w", 1), ("v", 3)]


def test_answers_of_strangers_of_other_epochs_and_in_parts_say_nothing(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    play.hear("x", Held(play.epoch, ()))
    for _ in range(3):
        play.pass_time(6)
        play.beat("w")
        play.hear("w", Held(play.epoch - 1, ()))
        play.hear("w", Held(play.epoch, (), 0, 2))
    assert len(play.keeper.attempts.running) == 1


def test_what_a_worker_holds_and_nobody_waits_for_is_recalled(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": ""})
    a, b = play.fence("a"), play.fence("b")
    play.done("b")
    play.pass_time(6)
    play.beat("w")
    play.hear("w", Held(play.epoch, (a, b, 17)))
    assert [recall.fences for recall in play.said(Recall)] == [(17,)]


def test_a_recall_is_told_again_with_every_beat_until_its_result_comes(play: Play) -> None:
    play.beat("w")
    play.beat("v")
    id = play.submit({"a": "", "b": ""}, on_failure="continue")
    a = play.fence("a")
    play.change(id, "cancel", "no more")
    assert play.job_row().state is JobState.CANCELLING
    fences = [fence for recall in play.said(Recall) for fence in recall.fences]
    assert sorted(fences) == sorted([a, play.fence("b")])
    name = play.worker_of("a")
    play.beat(name)
    assert [(to, recall.fences) for to, recall in play.told(Recall)][2:] == [(name, (a,))]
    play.result(a, "cancelled", worker=name)
    before = len(play.said(Recall))
    play.beat(name)
    assert len(play.said(Recall)) == before
    play.result(play.fence("b"), "cancelled")
    assert [one.state for one in play.ended] == [JobState.CANCELLED]
    assert play.ended[0].reason == "no more"


@pytest.mark.parametrize("play", [KeeperLimits(recalls=2)], indirect=True)
def test_many_recalls_go_in_parts(play: Play) -> None:
    play.beat("w", cores=8)
    id = play.submit(dict.fromkeys("abcde", ""))
    play.change(id, "cancel", "")
    assert [len(recall.fences) for recall in play.said(Recall)] == [2, 2, 1]


def test_a_worker_on_which_different_tasks_died_is_left_alone(play: Play) -> None:
    play.beat("bad", cores=4)
    id = play.submit({f"t{number}": "" for number in range(4)}, retry=Retry(backoff=0.0))
    play.beat("good", handlers=())
    for number in range(3):
        play.result(play.fence(f"t{number}"), "died", signal="SIGSEGV", alone=True, worker="bad")
    keepers = DagKeepers()
    keepers.set(play.keeper)
    assert keepers.denied(play.now) == {"bad": ("quarantined", QUARANTINED)}
    reasons = {reason.worker: reason.constraint for reason in play.why(id, "t2").workers}
    assert reasons == {"bad": "quarantine", "good": "handler"}
    play.pass_time(301)
    assert play.why(id, "t2").text == "it is assigned on bad"


def test_a_task_that_died_among_others_is_handed_alone(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""})
    play.result(play.fence("a"), "died", signal="SIGKILL")
    assert play.handed[play.fence("a")].alone


# Why.


def test_why_tells_what_a_task_waits_for(play: Play) -> None:
    tasks = {f"d{number}": "" for number in range(7)}
    id = play.submit({**tasks, "z": {"depends_on": tuple(tasks)}, "late": {"delay": 90.0}})
    assert [reason.constraint for reason in play.why(id, "d0").workers] == ["offline"]
    text = "it waits for d0 (ready), d1 (ready), d2 (ready), d3 (ready), d4 (ready) and 2 more"
    assert play.why(id, "z").text == text
    assert play.why(id, "late").text == "it waits for its delay to be over in 90.0 s"
    play.pass_time(89.99)
    assert play.why(id, "late").text == "it waits for its delay to be over in < 0.1 s"
    play.beat("w", cores=8)
    assert play.why(id, "d0").text == "it is assigned on w"
    play.done("d6")
    assert play.why(id, "d6").text.startswith("it has ended just now")
    play.change(id, "pause")
    assert play.why(id, "z").text == "its job is paused"
    assert (
        play.keeper.why(play.now, "nowhere", "a", 0, TaskState.DEAD).text
        == "its job has ended just now: ask again in a moment"
    )


@pytest.mark.parametrize("play", [KeeperLimits(tasks_at_once=1)], indirect=True)
def test_a_task_whose_turn_comes_with_the_next_tick_is_about_to_be_ready(play: Play) -> None:
    id = play.submit({"a": "", "b": ""})
    assert play.why(id, "b").text == "it is about to be ready"
    play.pass_time(0)
    assert play.why(id, "b").text == "it is ready to run"


# Room, keys and drafts.


@pytest.mark.parametrize("play", [KeeperLimits(tasks=3)], indirect=True)
def test_there_is_room_for_so_many_tasks(play: Play) -> None:
    play.submit({"a": "", "b": ""})
    with pytest.raises(NoRoomForJobs, match="2 tasks are under way, and 3 may be: try again later"):
        play.submit({"a": "", "b": ""})
    play.beat("w")
    play.done("a")
    play.done("b")
    play.submit({"a": "", "b": ""})
    draft = play.begin()
    play.add(draft, {"a": ""})
    with pytest.raises(NoRoomForJobs, match="3 tasks are under way"):
        play.add(draft, {"b": ""})


@pytest.mark.parametrize("play", [KeeperLimits(jobs=2)], indirect=True)
def test_there_is_room_for_so_many_jobs(play: Play) -> None:
    play.submit({"a": "", "b": ""})
    play.add(play.begin(), {"b": ""})
    with pytest.raises(NoRoomForJobs, match="2 jobs are under way, which is the most"):
        play.submit({"a": ""})
    with pytest.raises(NoRoomForJobs, match="2 jobs"):
        play.begin()


def test_a_key_is_of_one_job_at_a_time(play: Play) -> None:
    id = play.submit({"a": ""}, key="k")
    with pytest.raises(KeyTaken, match=f"the key 'k' is of job {id}") as caught:
        play.submit({"a": ""}, key="k")
    assert caught.value.job == id
    with pytest.raises(KeyTaken):
        play.begin(key="k")
    play.beat("w")
    play.done("a")
    assert play.keeper.shelf.of_key("k") is None


def test_a_bad_job_leaves_nothing_behind(play: Play) -> None:
    with pytest.raises(BadDag):
        play.submit({"a": "b"})
    assert play.keeper.jobs == {} and play.commits == []


def test_a_job_comes_in_parts_and_runs_after_the_last(play: Play) -> None:
    play.beat("w")
    draft = play.begin(key="k", by="me")
    play.add(draft, {})
    play.add(draft, {"a": ""})
    play.add(draft, {"b": "a"})
    with pytest.raises(BadDag, match="comes after it"):
        play.add(draft, {"c": "d", "d": ""})
    with pytest.raises(Invalid, match="is not under way"):
        play.change(draft, "pause")
    assert draft in play.keeper.shelf.drafts
    assert [answer.job for answer in play.answers] == [draft] * 3
    assert play.handed == {}
    assert len(play.changes(PutJob)) == 1 and len(play.changes(PutTasks)) == 2
    play.end(draft)
    assert draft not in play.keeper.shelf.drafts
    row = play.job_row()
    assert (row.state, row.tasks, row.key, row.submitted_by) == (JobState.RUNNING, 2, "k", "me")
    play.done("a")
    play.done("b")
    assert [one.job for one in play.ended] == [draft]
    with pytest.raises(Invalid, match="is not being submitted, or was broken off"):
        play.add(draft, {"x": ""})


def test_a_draft_that_is_dropped_is_gone(play: Play) -> None:
    draft = play.begin(key="k")
    play.add(draft, {"a": ""})
    play.take(play.keeper.drop(play.now, draft))
    assert play.changes(DropJob) == [DropJob(1)]
    assert play.job_row() is None and play.keeper.jobs == {}
    assert play.keeper.drop(play.now, draft) == []
    play.begin(key="k")


def test_a_draft_without_tasks_cannot_be_ended(play: Play) -> None:
    draft = play.begin()
    with pytest.raises(Invalid, match="the job has no tasks: give it at least one"):
        play.end(draft)
    assert play.keeper.jobs == {} and play.commits == []


@pytest.mark.parametrize("play", [KeeperLimits(rows=2)], indirect=True)
def test_many_rows_go_in_parts(play: Play) -> None:
    play.submit(dict.fromkeys("abcde", ""))
    assert [len(change.rows) for change in play.changes(PutTasks)] == [2, 2, 1]


# Idempotency keys of tasks.


def test_a_task_whose_key_was_done_before_is_done_with_the_submission(play: Play) -> None:
    play.beat("w")
    play.hold()
    play.hold_reads()
    tasks = {"a": {"key": "ka"}, "b": "a", "c": {"key": "kc", "depends_on": ("b",)}, "d": "c"}
    play.submit(tasks, keyed={"ka": (b'"out"', ""), "kc": (b"", "0" * 64)})
    assert {(one.index, one.fence, one.attempts) for one in play.changes(Complete)} == {(0, 0, 0), (2, 0, 0)}
    assert play.handed == {}
    play.commit()
    assert play.names() == {"b"}, "and d waits for what its input is read"
    assert play.handed[play.fence("b")].inputs == {"a": b'"out"'}
    assert play.fetches[-1].outputs == ((1, 2),)
    play.fetched(outputs={(1, 2): b'"of a file"'})
    assert play.handed[play.fence("d")].inputs == {"c": b'"of a file"'}
    play.release()
    play.done("b")
    play.done("d")
    assert [one.state for one in play.ended] == [JobState.COMPLETED]
    assert play.row(0).attempts == 0


def test_the_delay_of_a_task_that_was_done_before_does_not_count(play: Play) -> None:
    play.submit({"a": {"key": "k", "delay": 60.0}, "b": {"delay": 60.0}}, keyed={"k": (b"1", "")})
    assert [change.index for change in play.changes(Release)] == [1]
    assert play.row(0).state is TaskState.COMPLETED


def test_a_job_of_which_all_was_done_before_is_over_at_once(play: Play) -> None:
    draft = play.begin()
    play.add(draft, {"a": {"key": "k"}, "b": {"key": "other"}})
    play.end(draft, keyed={"k": (b"1", ""), "other": (b"2", "")})
    assert [one.state for one in play.ended] == [JobState.COMPLETED]
    assert [play.row(index).output for index in (0, 1)] == [b"1", b"2"]
    assert play.keeper.jobs == {}


# Run again.


def test_a_job_that_has_ended_is_run_again_in_part(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": "", "b": "a"}, retry=Retry(max=0))
    play.done("a")
    play.result(play.fence("b"), "failed")
    assert play.keeper.job(id) is None
    play.rerun(id)
    assert play.handed[play.fence("b")].inputs == {"a": b'"a"'}
    assert play.handed[play.fence("b")].attempt == 2, "attempts are counted on"
    play.done("b")
    assert [one.state for one in play.ended] == [JobState.FAILED, JobState.COMPLETED]


def test_a_task_is_run_again_with_another_config(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": {"config": msgspec.Raw(b'"old"')}}, retry=Retry(max=0))
    assert play.handed[play.fence("a")].config == b'"old"'
    play.result(play.fence("a"), "failed")
    assert play.keeper._delivery.specs_bytes == 0
    play.rerun(id, configs={"a": msgspec.Raw(b'"a new one"')})
    assert play.handed[play.fence("a")].config == b'"a new one"'
    assert msgspec.json.decode(play.row(0).spec)["config"] == "a new one"
    play.done("a")
    assert play.keeper._delivery.specs_bytes == 0


def test_a_task_that_is_run_again_does_not_go_on_from_its_progress_of_before(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": ""}, retry=Retry(max=0))
    play.hear("w", TaskProgress((), (HandlerProgress(play.fence("a"), b"1"),)))
    play.result(play.fence("a"), "failed")
    assert play.row(0).checkpoint == b"1"
    play.rerun(id, configs={"a": msgspec.Raw(b'"a new one"')})
    assert play.handed[play.fence("a")].config == b'"a new one"'
    assert play.handed[play.fence("a")].checkpoint == play.row(0).checkpoint == b""


def test_a_job_that_cannot_be_run_again_is_not_kept_in_memory(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": ""})
    play.done("a")
    with pytest.raises(Invalid, match="name those to be run again"):
        play.rerun(id)
    with pytest.raises(Invalid, match="has no task z"):
        play.rerun(id, "z", configs={"a": msgspec.Raw(b"1")})
    assert play.keeper.jobs == {}
    assert play.keeper._delivery.specs_bytes == 0
    with pytest.raises(Invalid, match="is not under way"):
        play.keeper.rerun(play.now, 1, id)


def test_a_job_whose_end_is_being_kept_can_be_run_again(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": ""}, retry=Retry(max=0))
    play.hold()
    play.result(play.fence("a"), "failed")
    with pytest.raises(Invalid, match="has no task z"):
        play.rerun(id, "z")
    assert play.keeper.job(id) is not None, "it is forgotten when its end is kept"
    play.rerun(id, "a")
    play.commit()
    assert [one.state for one in play.ended] == [JobState.FAILED]
    assert play.keeper.job(id).state is JobState.RUNNING
    play.release()
    play.done("a")
    assert [one.state for one in play.ended] == [JobState.FAILED, JobState.COMPLETED]
    assert play.keeper.jobs == {}


def test_a_job_that_ended_twice_before_it_was_kept_is_forgotten_once(play: Play) -> None:
    play.beat("w")
    id = play.submit({"a": ""}, retry=Retry(max=0))
    play.hold()
    play.result(play.fence("a"), "failed")
    play.lose("w")
    play.rerun(id)
    play.change(id, "cancel", "")
    play.commit()
    assert play.keeper.job(id) is not None
    play.release()
    assert [one.state for one in play.ended] == [JobState.FAILED, JobState.CANCELLED]
    assert play.keeper.jobs == {}


# Memory.


@pytest.mark.parametrize("play", [KeeperLimits(delivery=DeliveryLimits(specs_bytes=400))], indirect=True)
def test_a_spec_without_room_in_memory_is_read_when_its_task_is_handed(play: Play) -> None:
    play.submit({"a": "", "b": {"config": msgspec.Raw(b'{"x":1}')}})
    assert play.task("b").spec is None
    play.hold_reads()
    play.beat("w")
    assert play.names() == {"a"}
    assert play.fetches == [ReadOutputs(1, ((1, 1),), ())]
    play.fetched()
    assert play.handed[play.fence("b")].config == b'{"x":1}'


@pytest.mark.parametrize("play", [KeeperLimits(delivery=DeliveryLimits(specs_bytes=1))], indirect=True)
def test_what_was_lost_while_it_was_read_is_not_handed(play: Play) -> None:
    play.submit({"a": ""})
    play.hold_reads()
    play.beat("w")
    play.lose("w")
    play.fetched()
    assert play.handed == {}


@pytest.mark.parametrize("play", [KeeperLimits(delivery=DeliveryLimits(inputs_bytes=10))], indirect=True)
def test_inputs_that_are_too_large_fail_their_task(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": "a", "c": ""}, on_failure="skip_dependents")
    play.done("a", output=b'"0123456789"')
    task = play.row(1)
    assert (task.state, task.cause) == (TaskState.FAILED, "inputs")
    assert "13 bytes together, and 10 may be passed on" in task.error
    assert len(play.keeper.attempts.running) == 1
    play.done("c")
    assert [one.state for one in play.ended] == [JobState.PARTIAL]


@pytest.mark.parametrize(
    "play", [KeeperLimits(delivery=DeliveryLimits(inputs_bytes=10, outputs_bytes=0))], indirect=True
)
def test_inputs_that_are_read_and_too_large_fail_their_task_too(play: Play) -> None:
    play.beat("w")
    play.submit({"a": "", "b": "a"})
    play.done("a", output=b'"0123456789"')
    assert play.row(1).state is TaskState.FAILED
    assert [one.state for one in play.ended] == [JobState.FAILED]


@pytest.mark.parametrize("play", [KeeperLimits(spare_instants=3)], indirect=True)
def test_instants_that_came_to_nothing_do_not_pile_up(play: Play) -> None:
    play.beat("w", cores=64)
    play.submit({f"t{number}": "" for number in range(60)}, timeout=3600.0)
    for number in range(59):
        play.done(f"t{number}")
    assert play.keeper.next_tick_at == play.start + 3600 * SECOND
    assert len(play.keeper._timers._heap) < 10
    play.pass_time(3601)
    play.result(play.fence("t59"), "cancelled")
    assert [one.state for one in play.ended] == [JobState.TIMEOUT]


def test_an_instant_of_a_job_that_is_gone_comes_to_nothing(play: Play) -> None:
    play.beat("w")
    play.submit({"a": ""}, timeout=60.0)
    play.done("a")
    assert play.keeper.next_tick_at < NEVER
    play.pass_time(61)
    assert play.keeper.next_tick_at == NEVER


def test_limits_hold_for_all_jobs_together(play: Play) -> None:
    play.beat("w", cores=8)
    limited = {"limits": (Limit(key="db", concurrency=1),)}
    first, second = play.submit({"a": limited}), play.submit({"b": limited})
    assert play.names() == {"a"}
    assert play.why(second, "b").workers[0].constraint == "limit"
    play.done("a")
    assert play.names() == {"a", "b"}
    assert play.ended == [DagEnded(first, JobState.COMPLETED, "", {"completed": 1})]


def test_a_task_that_holds_a_limit_is_handed_once_its_claim_is_durable(play: Play) -> None:
    play.submit({"a": {"limits": (Limit(key="db", concurrency=1),)}, "b": ""})
    play.hold()
    play.beat("w")
    assert play.names() == set() and len(play.changes(ClaimTask)) == 2
    play.release()
    assert play.names() == {"a", "b"}


def test_a_rate_lets_the_next_start_in_time(play: Play) -> None:
    play.beat("w", cores=8)
    play.submit(dict.fromkeys("abc", {"limits": (Limit(key="api", rate="1/s"),)}))
    assert len(play.handed) == 1
    play.pass_time(1)
    assert len(play.handed) == 2
    play.pass_time(1)
    assert len(play.handed) == 3


def test_a_task_that_nobody_takes_times_out(play: Play) -> None:
    play.submit({"a": {"timeouts": Timeouts(queue=5.0)}})
    assert play.keeper.next_tick_at == play.start + 5 * SECOND
    play.pass_time(5)
    assert play.row(0).state is TaskState.TIMEOUT


def test_hands_name_the_epoch(play_of: PlayOf) -> None:
    play = play_of(epoch=3)
    play.beat("w")
    play.submit({"a": ""})
    (hand,) = play.said(AssignTasks)
    assert hand.epoch == 3
    assert hand.tasks[0].fence == 3 << 32 | 1


# Without one of the safeguards, which are there for what is seen here.


@without("commit_first")
def test_without_waiting_for_the_store_a_crash_takes_what_was_told(play_of: PlayOf) -> None:
    play = play_of()
    play.hold()
    id = play.submit({"a": ""})
    assert play.answers == [CallAnswered(1, id)]
    play.release()
    play.restart()
    assert [job.row.id for job in play.keeper.jobs.values()] == [id], "this time it was written after all"


@without("task_result_key")
def test_without_a_memory_of_results_a_second_one_is_an_illegal_move(play_of: PlayOf) -> None:
    play = play_of()
    play.beat("w")
    play.submit({"a": "", "b": ""})
    play.hold()
    play.done("a")
    with pytest.raises(IllegalMove, match="task that is completed cannot become completed"):
        play.done("a")
    assert [change.index for change in play.changes(Complete)] == [0]


@without("attempt_fence")
def test_without_fences_the_result_of_a_lost_attempt_counts(play_of: PlayOf) -> None:
    play = play_of()
    play.beat("w")
    play.submit({"a": "", "b": ""})
    first = play.fence("a")
    play.lose("w")
    play.beat("v")
    play.result(first, output=b'"of the first"')
    assert play.keeper.stale_results == 0


@without("leased_limits")
def test_without_limits_that_outlive_the_manager_too_many_run(play_of: PlayOf) -> None:
    play = play_of()
    play.beat("w")
    limited = {"limits": (Limit(key="db", concurrency=1),)}
    play.submit({"a": limited})
    play.submit({"b": limited})
    assert play.names() == {"a"}
    play.restart()
    play.go_on()
    play.beat("v")
    assert play.names() == {"b"}, "while a runs"
