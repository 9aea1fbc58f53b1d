"""What happened to a task that has ended, in a sentence."""

from typing import Any

import pytest

from talka.control.dags.ended import ended_why, in_the_way
from talka.control.tasks.task import Needs
from talka.wire.task_views import Reason
from talka.work.dags.dag import Retry
from talka.work.dags.records import TaskRow
from talka.work.lifecycle import TaskState
from tests.control.dag_play import DagPlay

AT_MS = 1_700_000_000_000
AT = "2023-11-14 22:13:20 UTC"


def said(state: TaskState, reason: str = "", **fields: Any) -> str:
    row = TaskRow(job=1, index=0, id="load", state=state, ended_ms=AT_MS, **{"spec": b"{}", **fields})
    view = ended_why(row, reason)
    assert (view.task, view.state, view.workers) == ("load", state, [])
    return view.text


def test_one_that_completed_says_when_where_and_at_which_attempt() -> None:
    ran = {"worker": "w1#1#7", "started_ms": AT_MS - 1500}
    assert said(TaskState.COMPLETED, attempts=1, **ran) == f"completed at {AT} on w1, after 1.5s"
    assert said(TaskState.COMPLETED, attempts=3, **ran) == f"completed at {AT} on w1, after 1.5s, at attempt 3"
    assert said(TaskState.COMPLETED, attempts=1, worker="w1#1#7", started_ms=AT_MS) == f"completed at {AT} on w1"
    assert said(TaskState.COMPLETED, attempts=1, worker="w1#1#7") == f"completed at {AT} on w1"


def test_one_that_another_did_says_so() -> None:
    text = f"completed at {AT} without a run of its own: another task with its key had completed before"
    assert said(TaskState.COMPLETED) == text


def test_one_that_was_fanned_out_says_that_its_elements_ended() -> None:
    text = f"completed at {AT}: every element of its list had ended"
    assert said(TaskState.COMPLETED, spec=b'{"id":"load","handler":"h","for_each":"a.b"}') == text


def test_one_that_was_given_up_says_after_how_many_attempts_and_why() -> None:
    error = "IndexError in handlers.py:21"
    failed = {"error": error, "cause": "IndexError"}
    # Of the attempt that ended it, its state alone tells.
    assert said(TaskState.DEAD, attempts=3, failures=2, **failed) == f"gave up after 3 attempts: {error}"
    assert said(TaskState.DEAD, attempts=3, failures=1, deaths=1, **failed) == f"gave up after 3 attempts: {error}"
    assert said(TaskState.DEAD, attempts=1, cause="oom") == "gave up after 1 attempt: oom"


def test_attempts_before_a_replay_did_not_count_when_it_was_given_up() -> None:
    play = DagPlay()
    play.beat("w")
    id = play.submit({"a": ""}, retry=Retry(max=0))
    for text in ("gave up after 1 attempt: E: no", "gave up after 1 attempt that counts (2 in all): E: no"):
        play.result(play.fence("a"), "failed", error="E: no", cause="E")
        assert ended_why(play.row(0), "").text == text
        play.rerun(id, "a")
    fence = play.fence("a")
    play.restart()
    play.go_on()
    play.beat("w")
    play.result(fence, "failed", error="E: no", cause="E")
    assert ended_why(play.row(0), "").text == "gave up after 1 attempt that counts (3 in all): E: no"
    assert [one.reason for one in play.ended] == ["Task a failed after 1 attempt that counts (3 in all): E: no"]
    play.records.close()


def test_attempts_that_never_began_did_not_count_when_it_was_given_up() -> None:
    play = DagPlay()
    play.beat("w")
    play.submit({"a": ""}, retry=Retry(max=1, backoff=0.0))
    for number, cause in enumerate(("draining", "full", "signer"), 1):
        play.result(play.fence("a"), "refused", cause=cause, error=f"it is {cause}")
        play.pass_time(61)
        play.beat("w", number=number)
    for _ in range(2):
        play.result(play.fence("a"), "failed", error="E: no", cause="E")
    assert ended_why(play.row(0), "").text == "gave up after 2 attempts that count (5 in all): E: no"
    assert [one.reason for one in play.ended] == ["Task a failed after 2 attempts that count (5 in all): E: no"]
    play.records.close()


def test_one_that_was_skipped_says_because_of_which_task_or_by_whom() -> None:
    error = "task extract, which it waited for, was not completed"
    assert said(TaskState.SKIPPED, error=error, cause="dependency") == f"skipped at {AT}: {error}"
    assert said(TaskState.SKIPPED, error="by ann", cause="skipped") == f"skipped at {AT} by ann"
    assert said(TaskState.SKIPPED, cause="skipped") == f"skipped at {AT} by somebody"


def test_whoever_skipped_a_task_is_put_down() -> None:
    play = DagPlay()
    id = play.submit({"a": "", "b": ""})
    play.change(id, "skip", ["a"], "ann")
    play.change(id, "skip", ["b"])
    assert ended_why(play.row(0), "").text.endswith(" UTC by ann")
    assert ended_why(play.row(1), "").text.endswith(" UTC by somebody")
    play.records.close()


def test_one_that_was_cancelled_says_why_its_job_was() -> None:
    reason = "wrong day (cancelled by ann)"
    assert said(TaskState.CANCELLED, reason) == f"cancelled at {AT} with its job, before it ran: {reason}"
    ran = {"worker": "w#1#1", "attempts": 2, "error": "Task a failed."}
    why = "attempt 2 was its last: Task a failed."  # it ran, or waited for another: the row is the same
    assert said(TaskState.CANCELLED, "later", **ran) == f"cancelled at {AT} with its job, {why}"
    assert said(TaskState.CANCELLED) == f"cancelled at {AT} with its job, before it ran"


def test_one_that_took_too_long_or_failed_says_what_was_put_down() -> None:
    waited = "waited 15 s in the queue: no worker has gpu"
    assert said(TaskState.TIMEOUT, error=waited) == waited
    assert said(TaskState.FAILED, cause="inputs") == "inputs"
    assert said(TaskState.FAILED) == f"failed at {AT}"


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        ([], "there is no worker"),
        (["handler", "handler"], 'no worker has the handler "etl"'),
        (["code", "handler"], "no worker takes the code of its job (--accept-code)"),
        (["capability", "capability"], "no worker has gpu and ssd"),
        (["code", "capability"], "no worker that takes code has gpu and ssd"),
        (["handler", "capability"], 'no worker with the handler "etl" has gpu and ssd'),
        (["memory", "memory"], "no worker has 8,000 bytes of memory"),
        (["memory", "handler"], 'no worker with the handler "etl" has 8,000 bytes of memory'),
        (["memory", "code"], "no worker that takes code has 8,000 bytes of memory"),
        (["capability", "memory"], "no worker with gpu and ssd has 8,000 bytes of memory"),
        (
            ["capability", "memory", "handler"],
            'no worker with the handler "etl" and gpu and ssd has 8,000 bytes of memory',
        ),
        (["capability", "slots"], "every worker that can run it has all it may have at a time"),
        (["slots", "limit"], "w2: text of limit"),
        (["draining"], "w1: text of draining"),
        (["slots", ""], "it was about to be given out"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_was_in_the_way_is_told_of_the_worker_that_came_nearest(constraints: list[str], text: str) -> None:
    needs = Needs("etl", ("gpu", "ssd"), 8_000)
    reasons = [Reason(f"w{number}", one, f"text of {one}") for number, one in enumerate(constraints, 1)]
    assert in_the_way(needs, reasons or [Reason("", "offline", "there is none")]) == text
