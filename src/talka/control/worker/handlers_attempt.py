"""An attempt at a task on a worker, and the core that it is in.

See docs/decisions/0023-a-core-that-dies.md.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, TypeAlias

from talka.control.worker.effects import ExitFacts
from talka.units import MILLISECOND
from talka.wire.output_tail import NO_TAILS, STREAM_LIMIT_BYTES, OutputTail, Stream, StreamTail
from talka.wire.tasks import ERROR_LIMIT, HandedTask, Outcome, TaskResult
from talka.work.durations import format_duration

WORD_LIMIT: Final = 200
SHARED_STACK_BYTES: Final = 4096
"""Of the stack of a process that several attempts shared: each of them has it."""
KillReason: TypeAlias = Literal["neighbour", "lease", "load"]


class CoreStage(IntEnum):
    LOADING = 0
    READY = 1
    ENDING = 2
    """It has nothing to do, and was asked to end."""
    KILLED = 3


@dataclass(slots=True, eq=False)
class HandlerAttempt:
    """An attempt at a task that waits or runs here."""

    task: HandedTask | None
    """None once a core has it: an attempt is begun once."""
    size_bytes: int
    fence: int
    job: str
    id: str
    """Name of its task."""
    handler: str
    limit_ms: int
    """It may run so long; 0: for ever."""
    partition: int = 0
    """Whose keeper is told of it."""
    core: "CoreState | None" = None
    weight: int = 1
    """Its part of `FULL`: what a core may have in its hands."""
    is_plain: bool = False
    """Its handler is a plain function, of which a core runs one at a time."""
    has_company: bool = False
    """Others were in the hands of its core with it."""
    run_at: int = 0
    """When a core was given it, ns; 0: not yet."""
    is_told: bool = False
    """The manager was told that it runs."""
    verdict: Literal["", "timeout", "cancelled"] = ""
    """What becomes of it when its core is killed for it."""
    kill_at: int = 0
    """When its core is killed, ns, once there is a verdict."""
    code: str = ""
    """Digest of the bundle that its handler is in; empty: it is of the worker's own files."""
    output: dict[Stream, OutputTail] | None = None
    """What its core told that it wrote: all that is left if the core dies. None: nothing, as of nearly all."""

    def wrote(self, tails: tuple[StreamTail, ...]) -> None:
        if self.output is None:
            self.output = {}
        for tail in tails:
            self.output.setdefault(tail.stream, OutputTail()).take(tail)

    def left(self, stream: Stream, content: bytes) -> None:
        """What its core did not tell, and was found when it had ended."""
        if self.output is None:
            self.output = {}
        self.output.setdefault(stream, OutputTail()).write(content)

    @property
    def has_traceback(self) -> bool:
        return self.output is not None and "traceback" in self.output

    @property
    def tails(self) -> tuple[StreamTail, ...]:
        return self.latest(STREAM_LIMIT_BYTES)

    def latest(self, limit: int) -> tuple[StreamTail, ...]:
        """Of each stream the last bytes, `limit` at most."""
        if self.output is None:
            return NO_TAILS
        return tuple([tail.all(stream, limit) for stream, tail in self.output.items()])


@dataclass(slots=True, eq=False)
class CoreState:
    """One process, from when its number is drawn until its end is heard of."""

    number: int
    due_at: int
    """When its patience ends, ns, by stage: of one that loads, ends or was killed."""
    is_bounded: bool
    """It has the bounds of the one task that it is for."""
    is_alone: bool
    """It is for one attempt."""
    stage: CoreStage = CoreStage.LOADING
    idle_at: int = 0
    """Since when it has nothing to do, ns."""
    free_at: int = 0
    """When a plain function ended in it last, ns."""
    tasks: dict[int, HandlerAttempt] = field(default_factory=dict)
    """Attempts in its hands, by fence."""
    load: int = 0
    """Sum of their weights."""
    batch: list[HandlerAttempt] = field(default_factory=list)
    """Those of them that it was not told of yet."""
    is_surplus: bool = False
    """One more than there may be: it ends when it has nothing to do."""
    is_spent: bool = False
    """Processes of an attempt that did not return are left in it: it is given nothing more."""
    reason: KillReason | Literal[""] = ""
    """Why it was killed."""
    code: str = ""
    """Digest of the bundle that it has loaded; empty: the worker's own files."""
    busy_since: int = 0
    """When it was given something after it had nothing, ns."""
    is_leaving: bool = False
    """Others wait for its place: it is given nothing more."""
    is_resting: bool = False
    """The first of the worker's own, kept though others have its place."""


def is_bounded(task: HandedTask | None) -> bool:
    return task is not None and (task.memory_bytes > 0 or task.cpu_ms > 0 or task.files > 0)


def without_run(
    attempt: HandlerAttempt | HandedTask, outcome: Literal["cancelled", "refused"], cause: str, text: str
) -> TaskResult:
    """Of one that never began."""
    return TaskResult(attempt.fence, outcome, cause=cause, error=text, job=attempt.job, task=attempt.id)


def last_stack(core: CoreState, attempt: HandlerAttempt, stack: bytes) -> bytes:
    """What an attempt has of where its process was at its end. One that was to be ended with another was not what
    hung."""
    if not stack or (core.reason and not attempt.verdict):
        return b""
    end = "before it was killed" if core.reason else "when it died"
    if len(core.tasks) == 1:
        return f"It was here {end}:\n".encode() + stack
    text = f"Its process, which {len(core.tasks)} attempts shared, was here {end}:\n"
    return text.encode() + stack[-SHARED_STACK_BYTES:]


def last_word(now: int, core: CoreState, attempt: HandlerAttempt, facts: ExitFacts, *, is_only: bool) -> TaskResult:
    """What became of an attempt whose core has ended."""
    outcome: Outcome
    cause: str
    if attempt.verdict:
        outcome = cause = attempt.verdict
        text = "it was stopped, and ended with its process"
        if attempt.verdict == "timeout":
            limit = format_duration(attempt.limit_ms * MILLISECOND)
            text = f"it ran longer than {limit}, did not stop when asked, and was ended with its process"
    elif core.reason == "lease":
        outcome, cause, text = "refused", "lease", "its worker lost its lease and ended it"
    elif core.reason == "neighbour":
        outcome, cause, text = "died", "neighbour", "another task in the same process had to be ended with it"
    else:
        outcome, cause = "died", "load" if core.reason == "load" else facts.cause
        text = facts.text or f"its process ended: {facts.cause}"
    if where := last_stack(core, attempt, facts.stack):
        attempt.left("traceback", where)
    if attempt.verdict or core.reason in ("lease", "neighbour"):
        facts, is_only = ExitFacts(cause), False  # how the process ended says nothing of it
    return TaskResult(
        attempt.fence,
        outcome,
        error=text[:ERROR_LIMIT],
        cause=cause[:WORD_LIMIT],
        took_us=(now - attempt.run_at) // 1000 if attempt.run_at else 0,
        job=attempt.job,
        task=attempt.id,
        exit_code=facts.exit_code,
        signal=facts.signal[:WORD_LIMIT],
        memory_bytes=0 if attempt.has_company else facts.memory_bytes,
        alone=is_only,
        tails=attempt.tails,
    )
