"""The changes a dag job makes to its tasks in the store, and the sentences in them.

Decision: docs/decisions/0021-dag-jobs-live-in-one-store.md.
"""

from typing import Final

from talka.control.tasks.retries import RetryVerdict
from talka.control.tasks.task import DagTask
from talka.units import MILLISECOND, MINUTE, SECOND
from talka.wire.output_tail import Stream, StreamTail
from talka.wire.tasks import TaskResult
from talka.work.dags.endings import tries_text
from talka.work.dags.records import AttemptRow, Complete, PutAttempt, PutStreams, StreamRow
from talka.work.durations import format_duration
from talka.work.lifecycle import TaskState

BY_WORTH: Final[tuple[Stream, ...]] = ("traceback", "stderr", "stdout")
"""What there is room for is kept in this order: the reason of a failure before what else was written."""


def attempt_of(number: int, task: DagTask, result: TaskResult, started_ms: int, at_ms: int) -> PutAttempt:
    row = AttemptRow(
        job=number,
        index=task.index,
        attempt=task.attempts,
        fence=task.fence,
        worker=task.worker,
        started_ms=started_ms,
        ended_ms=at_ms,
        cause=result.cause or result.outcome,
        error=result.error,
        exit_code=result.exit_code or None,
        signal=result.signal,
        memory_bytes=result.memory_bytes,
        outcome="lost" if result.cause == "lost" else result.outcome,
    )
    return PutAttempt(row)


def kept_streams(number: int, task: DagTask, tails: tuple[StreamTail, ...], kept_bytes: int, limit: int) -> PutStreams:
    """Of an attempt. `kept_bytes`: what the job has of others; there may be `limit` of it."""
    rows: list[StreamRow] = []
    told: dict[str, StreamTail] = {tail.stream: tail for tail in tails}
    for tail in [told[stream] for stream in BY_WORTH if stream in told]:
        room = max(0, limit - kept_bytes)
        content = tail.content[-room:] if room else b""
        kept_bytes += len(content)
        rows.append(
            StreamRow(
                job=number,
                index=task.index,
                attempt=task.attempts,
                fence=task.fence,
                stream=tail.stream,
                written=tail.written,
                kept=len(content),
                content=content,
            )
        )
    return PutStreams(tuple(rows), kept_bytes)


def given_up(
    number: int,
    task: DagTask,
    state: TaskState,
    verdict: RetryVerdict,
    started_ms: int,
    at_ms: int,
    memory_bytes: int,
) -> Complete:
    return Complete(
        number,
        task.index,
        task.fence,
        state,
        at_ms,
        error=verdict.error,
        cause=verdict.cause,
        started_ms=started_ms,
        worker=task.worker,
        attempts=task.attempts,
        memory_bytes=memory_bytes,
    )


def done(
    number: int, task: DagTask, fence: int, times: tuple[int, int], output: bytes, blob: str, memory_bytes: int
) -> Complete:
    """`times`: when it was started and ended, ms."""
    started_ms, ended_ms = times
    return Complete(
        number,
        task.index,
        fence,
        TaskState.COMPLETED,
        ended_ms,
        output,
        blob,
        started_ms=started_ms,
        worker=task.worker,
        attempts=task.attempts,
        key=task.key,
        memory_bytes=memory_bytes,
    )


def again_text(task: DagTask, verdict: RetryVerdict) -> str:
    wait_ns = verdict.wait_ns // MILLISECOND * MILLISECOND
    when = f"in {format_duration(wait_ns)}" if wait_ns else "at once"
    return f"attempt {task.attempts}: {verdict.error}; tried again {when}"


def failed_text(task: DagTask) -> str:
    """Of a task that was given up, for the reason of its job."""
    counted = task.failures + task.deaths
    tried = f" after {tries_text(counted, task.attempts)}" if counted and task.attempts > 1 else ""
    return f"Task {task.id} failed{tried}: {task.error}" if task.error else f"Task {task.id} failed{tried}."


def queue_timeout_text(task: DagTask, in_the_way: str) -> str:
    """`in_the_way`: why no worker took it; empty: not known."""
    assert task.policy is not None
    queue_ns = task.policy.queue_ns
    waited = f"{queue_ns / SECOND:g} s" if queue_ns < MINUTE else format_duration(queue_ns)
    return f"waited {waited} in the queue: {in_the_way or 'no worker could take it'}"


def no_list_text(source: DagTask) -> str:
    """Of a task that is to be fanned out over the output of another."""
    return (
        f"it is fanned out over the output of task {source.id}, which is {source.state} and has none: run that one"
        " again, or skip this one too"
    )


def total_timeout_text(task: DagTask) -> str:
    assert task.policy is not None
    return f"it had not ended {format_duration(task.policy.total_ns)} after the job was submitted"
