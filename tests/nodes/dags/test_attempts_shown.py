"""Attempts at a task and what they wrote, as a manager shows them: under way, ended, and read from the store alone."""

import pytest

from talka.client.requests import NoSuchAttempt, NoSuchTask
from talka.nodes.dags.dag_views import stream_text
from talka.wire.output_tail import StreamTail, Wrote
from talka.wire.task_views import ExtensionView, StreamText, StreamView
from talka.wire.tasks import MoreTime, TaskProgress
from talka.work.dags.dag import DagSettings, Retry, Timeouts
from talka.work.dags.records import StreamRow
from talka.work.lifecycle import TaskState
from tests.nodes.dags import test_dag_service
from tests.nodes.dags.test_dag_service import Node, dag

AGAIN = DagSettings(retry=Retry(max=1, backoff=0.0), on_failure="continue")


node_of, node = test_dag_service.node_of, test_dag_service.node


def out(content: bytes, stream: str = "stdout") -> StreamTail:
    return StreamTail(stream, content, len(content))  # type: ignore[arg-type]


async def test_attempts_of_a_task_are_shown_with_what_they_wrote(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": ""}, AGAIN), "", "")
    await node.finish(
        "a", "failed", error="ValueError: no", cause="ValueError", tails=(out(b"one"), out(b"Tr", "traceback"))
    )
    second = await node.handed("a", 2)
    node.hear(TaskProgress(wrote=(Wrote(second.fence, (out(b"two"),)),), of=node.keeper.floor.life))
    await node.until(lambda: len(node.records.stream_sizes(1, 0)) == 3)
    page = await node.jobs.task_attempts(facts.id, "a", "", 1)
    (first,) = page.items
    assert (first.attempt, first.outcome, first.cause, first.worker) == (1, "failed", "ValueError", "w")
    assert first.streams == [StreamView("stdout", 3, 3), StreamView("traceback", 2, 2)]
    rest = await node.jobs.task_attempts(facts.id, "a", page.next, 9)
    (last,) = rest.items
    assert (last.attempt, last.outcome, last.ended_at, rest.next) == (2, "running", "", "")
    running = await node.jobs.task_output(facts.id, "a", 0, "")
    assert (running.attempt, running.is_over, running.streams) == (2, False, [StreamText("stdout", 3, 3, "two")])
    ended = await node.jobs.task_output(facts.id, "a", 1, "traceback")
    assert (ended.attempt, ended.is_over, ended.streams) == (1, True, [StreamText("traceback", 2, 2, "Tr")])


async def test_attempts_of_a_job_that_has_ended_are_read_from_the_store(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": "", "b": ""}, AGAIN), "", "")
    await node.finish("a", tails=(out(b"done"),))
    await node.finish("b", "failed", error="IndexError in h.py:3", cause="IndexError")
    await node.finish("b", "failed", count=2, error="IndexError in h.py:3", cause="IndexError")
    await node.ended(facts.id)
    (attempt,) = (await node.jobs.task_attempts(facts.id, "a", "", 9)).items
    assert (attempt.attempt, attempt.outcome, attempt.cause) == (1, "completed", "completed")
    assert attempt.ended_at and attempt.streams == [StreamView("stdout", 4, 4)]
    assert (await node.jobs.task_output(facts.id, "a", 0, "")).streams == [StreamText("stdout", 4, 4, "done")]
    tried = (await node.jobs.task_attempts(facts.id, "b", "", 9)).items
    assert [one.outcome for one in tried] == ["failed", "failed"]
    nothing = await node.jobs.task_output(facts.id, "b", 0, "")
    assert (nothing.attempt, nothing.streams) == (0, [])
    assert (await node.jobs.task_output(facts.id, "b", 2, "")).attempt == 2
    with pytest.raises(NoSuchAttempt, match="had no attempt 3"):
        await node.jobs.task_output(facts.id, "b", 3, "")
    with pytest.raises(NoSuchTask):
        await node.jobs.task_attempts(facts.id, "z", "", 9)
    assert (await node.jobs.why(facts.id, "b")).text == "gave up after 2 attempts: IndexError in h.py:3"
    assert (await node.jobs.why(facts.id, "a")).text.startswith("completed at ")


async def test_attempts_before_a_replay_are_shown_and_did_not_count(node: Node) -> None:
    node.beat()
    facts = await node.jobs.submit_dag(dag({"a": ""}, DagSettings(retry=Retry(max=0))), "", "")
    await node.finish("a", "failed", error="E: no", cause="E")
    await node.ended(facts.id)
    await node.jobs.replay(f"{facts.id}/a", None)
    await node.finish("a", "failed", count=2, error="E: no", cause="E")
    await node.ended(facts.id)
    task = await node.jobs.dag_task(facts.id, "a")
    assert (task.attempts, task.failures) == (2, 1)
    sentence = "after 1 attempt that counts (2 in all): E: no"
    assert (await node.jobs.why(facts.id, "a")).text == f"gave up {sentence}"
    assert (await node.jobs.dag(facts.id)).reason == f"Task a failed {sentence}"


async def test_why_of_an_ended_task_tells_what_happened_while_its_job_goes_on(node: Node) -> None:
    node.beat()
    settings = DagSettings(retry=Retry(max=0), on_failure="skip_dependents")
    facts = await node.jobs.submit_dag(dag({"a": "", "b": "a", "c": ""}, settings), "", "")
    await node.finish("a", "failed", error="E: no", cause="E")
    await node.until(lambda: node.records.tasks(1, (), 0, 1)[0].state is TaskState.SKIPPED)
    assert (await node.jobs.why(facts.id, "a")).text == "gave up after 1 attempt: E: no"
    skipped = await node.jobs.why(facts.id, "b")
    assert skipped.text.endswith(": task a, which it waited for, was not completed")


@pytest.mark.parametrize(
    ("content", "written", "text"),
    [
        (b"whole \xe2\x80\x93", 9, "whole –"),
        (b"\x80\x93 cut", 100, " cut"),
        (b"\x93 cut", 100, " cut"),
        ("– cut".encode(), 100, "– cut"),
        (b"\x80\x80\x80\x80", 100, "\ufffd"),
        (b"\x80", 100, ""),
        (b"", 100, ""),
        (b"\xff raw", 5, "\ufffd raw"),
    ],
    ids=range(8),
)
def test_the_end_of_a_stream_begins_with_a_whole_character(content: bytes, written: int, text: str) -> None:
    row = StreamRow(
        job=1, index=0, attempt=1, fence=1, stream="stdout", written=written, kept=len(content), content=content
    )
    assert stream_text(row).text == text


async def test_more_time_that_attempts_were_given_is_shown_with_them_and_with_dead_letters(node: Node) -> None:
    node.beat()
    settings = DagSettings(retry=Retry(max=1, backoff=0.0), on_failure="continue", timeouts=Timeouts(attempt="30s"))
    facts = await node.jobs.submit_dag(dag({"a": ""}, settings), "", "")
    of = node.keeper.floor.life
    first = await node.handed("a", 1)
    asked = MoreTime(first.fence, 1, 20_000, 1, "rows", 60_000), MoreTime(first.fence, 2, 25_000, 1)
    node.hear(TaskProgress(more_time=(*asked, MoreTime(first.fence, 3, 45_000, is_warned=True)), of=of))
    await node.until(lambda: node.records.times(1, 0))
    (running,) = (await node.jobs.task_attempts(facts.id, "a", "", 9)).items
    assert running.extensions == [ExtensionView(20.0, 15.0, "rows", 60.0)]
    assert (running.denied, running.warned) == ("it has not advanced since it was given more", True)
    assert (await node.jobs.dag_task(facts.id, "a")).more_time == "it was given 15s more, in 1 extension: rows"
    assert "it was given 15s more, in 1 extension: rows" in (await node.jobs.why(facts.id, "a")).text
    metrics = node.jobs.metrics()
    assert metrics["dag_more_time_total"] == {"granted": 1, "denied": 1, "warned": 1}

    await node.finish("a", "timeout")
    await node.finish("a", "timeout", count=2)
    await node.ended(facts.id)
    (letter,) = (await node.jobs.dead_letters("", 9)).items
    assert [len(one.extensions) for one in letter.attempts] == [1, 0]
    assert (await node.jobs.dag_task(facts.id, "a")).more_time == ""
