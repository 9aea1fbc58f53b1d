"""What happened to a task that has ended, in a sentence, by what the store has of it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from talka.control.tasks.delivery import worker_of
from talka.control.tasks.task import Needs
from talka.wire.task_views import Reason, WhyView
from talka.wire.views import instant_text
from talka.work.dags.endings import tries_text
from talka.work.dags.records import TaskRow
from talka.work.durations import format_duration
from talka.work.lifecycle import TaskState

NEAREST: Final = (
    "",
    "rate",
    "limit",
    "slots",
    "cores",
    "quarantine",
    "draining",
    "memory",
    "capability",
    "code",
    "handler",
)
"""All constraints that a dispatcher tells, the one first that keeps a task least from running."""


class FannedOut(msgspec.Struct):
    """What a spec says of that."""

    for_each: str = ""


def ended_why(task: TaskRow, reason: str) -> WhyView:
    """`reason`: of its job, why that was stopped or ended as it did."""
    return WhyView(task.id, task.state, _happened(task, reason))


def _happened(task: TaskRow, reason: str) -> str:
    at = when(task.ended_ms)
    match task.state:
        case TaskState.COMPLETED if task.worker:
            took_ms = task.ended_ms - task.started_ms
            took = f", after {format_duration(took_ms * 1_000_000)}" if task.started_ms and took_ms > 0 else ""
            tried = f", at attempt {task.attempts}" if task.attempts > 1 else ""
            return f"completed at {at} on {worker_of(task.worker)[0]}{took}{tried}"
        case TaskState.COMPLETED if msgspec.json.decode(task.spec, type=FannedOut).for_each:
            return f"completed at {at}: every element of its list had ended"
        case TaskState.COMPLETED:
            return f"completed at {at} without a run of its own: another task with its key had completed before"
        case TaskState.DEAD:
            return f"gave up after {tries_text(task.counted, task.attempts)}: {task.error or task.cause}"
        case TaskState.SKIPPED if task.cause == "skipped":
            return f"skipped at {at} {task.error or 'by somebody'}"
        case TaskState.SKIPPED:
            return f"skipped at {at}: {task.error}"
        case TaskState.CANCELLED:
            why = task.error or reason
            # Whether that one ran or it waited to be tried again cannot be told from what is kept.
            ran = f"attempt {task.attempts} was its last" if task.attempts else "before it ran"
            return f"cancelled at {at} with its job, {ran}{f': {why}' if why else ''}"
        case _:
            return task.error or task.cause or f"{task.state} at {at}"


def when(at_ms: int) -> str:
    return f"{instant_text(at_ms)[:19].replace('T', ' ')} UTC"


def in_the_way(needs: Needs, reasons: Sequence[Reason]) -> str:
    """Why no worker runs such a task, by the worker that comes nearest to it."""
    known = [reason for reason in reasons if reason.worker]
    if not known:
        return "there is no worker"
    nearest = min(known, key=lambda reason: NEAREST.index(reason.constraint))
    capabilities = " and ".join(needs.capabilities)
    # Who was refused earlier may well have what this one lacks.
    earlier = {reason.constraint for reason in known}
    had = [f'the handler "{needs.handler}"'] if "handler" in earlier else []
    who = "worker that takes code" if "code" in earlier else "worker"
    match nearest.constraint:
        case "handler":
            return f'no worker has the handler "{needs.handler}"'
        case "code":
            return "no worker takes the code of its job (--accept-code)"
        case "capability":
            return f"no {_worker(who, had)} has {capabilities}"
        case "memory":
            had += [capabilities] if "capability" in earlier else []
            return f"no {_worker(who, had)} has {needs.min_memory_bytes:,} bytes of memory"
        case "slots":
            return "every worker that can run it has all it may have at a time"
        case "":
            return "it was about to be given out"
        case _:
            return f"{nearest.worker}: {nearest.text}"


def _worker(who: str, had: Sequence[str]) -> str:
    """`had`: what it has of what is asked for."""
    return f"{who} with {' and '.join(had)}" if had else who
