"""An attempt at a task on a worker, its time, and the core that it is in.

See docs/decisions/0023-a-core-that-dies.md and 0059-more-time-for-tasks.md.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from talka.control.tasks.attempt_time import terms_of
from talka.control.worker.effects import ExitFacts
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.output_tail import NO_TAILS, STREAM_LIMIT_BYTES, OutputTail, Stream, StreamTail
from talka.wire.tasks import (
    ERROR_LIMIT,
    HandedTask,
    MoreTime,
    Outcome,
    TaskResult,
    TimeAnswer,
    TimeTold,
    TimeWanted,
)
from talka.work.deadlines import Deadline, Evict, OnTimeout, PutAside, Turn, Warned
from talka.work.durations import format_duration

WORD_LIMIT: Final = 200
SHARED_STACK_BYTES: Final = 4096
"""Of the stack of a process that several attempts shared: each of them has it."""
ASK_AHEAD_NS: Final = 10 * SECOND
"""So long before its end more time is asked for an attempt that advances; a sixth of its timeout, if that is less."""
ASK_AGAIN_NS: Final = SECOND
WANTED_LIMIT: Final = 16
"""Of one attempt, that wait to be asked: one is under way at a time."""
KillReason: TypeAlias = Literal["neighbour", "lease", "load"]


class CoreStage(IntEnum):
    LOADING = 0
    READY = 1
    ENDING = 2
    """It has nothing to do, and was asked to end."""
    KILLED = 3


class TimeLook(NamedTuple):
    """What follows from the time of an attempt."""

    asks: list[MoreTime]
    """To be told to whoever keeps its job."""
    told: list[TimeTold]
    """To be told to its core."""
    turn: Turn | None


class AttemptTime:
    """Until when an attempt may run here. While it advances more time is asked for; without any it is warned.

    Call `look` once `next_at` has come. Whether it gets more time is decided by whoever keeps its job: `answered`.
    """

    def __init__(self, attempt: "HandlerAttempt", began_at: int, wanted_limit: int = WANTED_LIMIT) -> None:
        self._fence = attempt.fence
        self._began_at = began_at
        self._wanted_limit = wanted_limit
        limit_ns = attempt.limit_ms * MILLISECOND
        # What it gets is decided elsewhere: here there is none to be given.
        terms = msgspec.structs.replace(terms_of(limit_ns, attempt.on_timeout), extensions=0)
        self._deadline = Deadline(began_at + limit_ns if limit_ns else NEVER, terms)
        self._ahead_ns = min(ASK_AHEAD_NS, limit_ns // 6)
        self.heeds = False
        """Its code does something when it is warned."""
        self.done = 0
        """How often it has advanced."""
        self.granted_ns = 0
        self._asked_done = 0
        """How often it had, when more time was asked for last."""
        self._may_get_more = True
        self._wanted: deque[TimeWanted] = deque()
        self._number = 0
        self._open: MoreTime | None = None
        """It was not answered yet."""
        self._call = 0
        """Of the handler, to whom that is answered; 0: nobody."""
        self._told_at = 0

    @property
    def next_at(self) -> int:
        at = self._deadline.next_at
        if self._open is not None:
            return min(at, self._told_at + ASK_AGAIN_NS)
        if self._wanted:
            return 0
        return min(at, self._deadline.until - self._ahead_ns) if self._is_advancing else at

    @property
    def _is_advancing(self) -> bool:
        return self._may_get_more and not self._deadline.is_warned and self.done > self._asked_done

    def want(self, wanted: TimeWanted) -> list[TimeTold]:
        """Its handler asks for more: what it is answered at once."""
        self.done = max(self.done, wanted.done)
        if len(self._wanted) >= self._wanted_limit:
            why = f"it has asked {self._wanted_limit} times and was not answered yet"
            return [TimeTold(self._fence, wanted.call, why=why)]
        self._wanted.append(wanted)
        return []

    def answered(self, now: int, answer: TimeAnswer) -> list[TimeTold]:
        asked = self._open
        if asked is None or answer.number != asked.number:
            return []  # of what was asked before, or told twice
        self._open = None
        if asked.is_warned:
            return []
        self._may_get_more = answer.left > 0
        if answer.granted_ms:
            granted_ns = answer.granted_ms * MILLISECOND
            self.granted_ns += granted_ns
            self._deadline.until = max(now, self._deadline.until) + granted_ns
        return [TimeTold(self._fence, self._call, answer.granted_ms, answer.left, answer.why)]

    def look(self, now: int) -> TimeLook:
        look = TimeLook([], [], None)
        if now >= self._deadline.next_at:
            look = look._replace(told=self._not_answered(), turn=self._tick(now))
            is_told = isinstance(look.turn, Warned)
            if is_told:
                self._ask(now, is_warned=True)
        elif self._open is not None:
            is_told = now >= self._told_at + ASK_AGAIN_NS
        else:
            is_told = bool(self._wanted) or (self._is_advancing and now >= self._deadline.until - self._ahead_ns)
            if is_told:
                self._ask(now)
        if is_told and self._open is not None:
            self._told_at = now
            look.asks.append(msgspec.structs.replace(self._open, ran_ms=self._ran_ms(now)))
        return look

    def _tick(self, now: int) -> Turn | None:
        deadline = self._deadline
        if not self.heeds:
            deadline.terms = msgspec.structs.replace(deadline.terms, grace_ns=0)  # nobody would use it
        turn = deadline.tick(now, 0)
        return deadline.tick(now, 0) if deadline.until <= now and isinstance(turn, Warned) else turn

    def _not_answered(self) -> list[TimeTold]:
        """Those who still wait for more time."""
        calls = [wanted.call for wanted in self._wanted]
        if self._open is not None and self._call:
            calls.append(self._call)
        self._wanted.clear()
        self._open, self._call = None, 0
        return [TimeTold(self._fence, call, why="its time was over before that was answered") for call in calls]

    def _ask(self, now: int, *, is_warned: bool = False) -> None:
        wanted = self._wanted.popleft() if self._wanted else TimeWanted(self._fence, 0)
        self._number += 1
        self._call, self._asked_done = wanted.call, self.done
        said = self.done, wanted.reason, wanted.estimate_ms
        self._open = MoreTime(self._fence, self._number, self._ran_ms(now), *said, is_warned)

    def _ran_ms(self, now: int) -> int:
        return (now - self._began_at) // MILLISECOND


def is_over(turn: Turn | None) -> bool:
    """Whether the attempt is to be ended now."""
    return isinstance(turn, Evict | PutAside)


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
    on_timeout: OnTimeout = "kill"
    time: AttemptTime | None = None
    """None: it has told nothing of itself, and its timeout has not come."""
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
            more_ns = 0 if attempt.time is None else attempt.time.granted_ns
            limit = format_duration(attempt.limit_ms * MILLISECOND + more_ns)
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
