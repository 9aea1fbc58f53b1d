"""An attempt at a task on a worker, and the core that it is in."""

from enum import IntEnum
from typing import Final, Literal

from talka.control.worker.handlers_effects import ExitFacts
from talka.wire.tasks import ERROR_LIMIT, HandedTask, TaskResult

WORD_LIMIT: Final = 200


class Stage(IntEnum):
    LOADING = 0
    READY = 1
    ENDING = 2
    """It has nothing to do, and was asked to end."""
    KILLED = 3


class Attempt:
    """One that waits or runs here."""

    __slots__ = (
        "core",
        "fence",
        "handler",
        "id",
        "is_plain",
        "is_told",
        "job",
        "kill_at",
        "limit_ms",
        "run_at",
        "size_bytes",
        "task",
        "verdict",
        "weight",
    )

    def __init__(self, task: HandedTask, size_bytes: int) -> None:
        self.fence = task.fence
        self.job = task.job
        self.id = task.id
        self.handler = task.handler
        self.task: HandedTask | None = task
        """None once a core has it: an attempt is begun once."""
        self.size_bytes = size_bytes
        self.limit_ms = task.attempt_ms
        self.core: HandlerCore | None = None
        self.weight = 1
        self.is_plain = False
        self.run_at = 0
        self.is_told = False
        """That it runs."""
        self.verdict: Literal["", "timeout", "cancelled"] = ""
        """What becomes of it when its core is killed for it."""
        self.kill_at = 0
        """When its core is killed, once there is a verdict."""


class HandlerCore:
    """One process, from when its number is drawn until its end is heard of."""

    __slots__ = (
        "batch",
        "due_at",
        "free_at",
        "idle_at",
        "is_alone",
        "is_bounded",
        "is_spent",
        "is_surplus",
        "load",
        "number",
        "reason",
        "stage",
        "tasks",
    )

    def __init__(self, number: int, due_at: int, *, is_bounded: bool) -> None:
        self.number = number
        self.stage = Stage.LOADING
        self.due_at = due_at
        """When its patience ends, by stage: of one that loads, ends or was killed."""
        self.idle_at = 0
        """Since when it has nothing to do."""
        self.free_at = 0
        """When a plain function ended in it last."""
        self.tasks: dict[int, Attempt] = {}
        self.load = 0
        self.batch: list[Attempt] = []
        self.is_alone = self.is_bounded = is_bounded
        self.is_surplus = False
        self.is_spent = False
        """Processes of an attempt that did not return are left in it: it is given nothing more."""
        self.reason: Literal["", "neighbour", "lease", "load", "dropped"] = ""
        """Why it was killed."""


def is_bounded(task: HandedTask | None) -> bool:
    return task is not None and (task.memory_bytes > 0 or task.cpu_ms > 0 or task.files > 0)


def last_word(now: int, core: HandlerCore, attempt: Attempt, facts: ExitFacts, *, is_only: bool) -> TaskResult:
    """What became of an attempt whose core has ended."""
    took_us = (now - attempt.run_at) // 1000 if attempt.run_at else 0
    job, id = attempt.job, attempt.id
    if attempt.verdict == "timeout":
        text = f"it ran longer than {attempt.limit_ms} ms, did not stop when asked, and was ended with its process"
        return TaskResult(attempt.fence, "timeout", error=text, cause="timeout", took_us=took_us, job=job, task=id)
    if attempt.verdict == "cancelled":
        text = "it was stopped, and ended with its process"
        return TaskResult(attempt.fence, "cancelled", error=text, cause="cancelled", took_us=took_us, job=job, task=id)
    if core.reason == "lease":
        text = "its worker lost its lease and ended it"
        return TaskResult(attempt.fence, "refused", error=text, cause="lease", took_us=took_us, job=job, task=id)
    if core.reason == "neighbour":
        text = "another task in the same process had to be ended with it"
        return TaskResult(attempt.fence, "died", error=text, cause="neighbour", took_us=took_us, job=job, task=id)
    return TaskResult(
        attempt.fence,
        "died",
        error=(facts.text or f"its process ended: {facts.cause}")[:ERROR_LIMIT],
        cause=("load" if core.reason == "load" else facts.cause)[:WORD_LIMIT],
        exit_code=facts.exit_code,
        signal=facts.signal[:WORD_LIMIT],
        took_us=took_us,
        memory_bytes=facts.memory_bytes,
        alone=is_only,
        job=job,
        task=id,
    )
