"""What a store keeps of dag jobs: rows, and the changes that are made to them, many at once and all or none.

A job has a number, a task an index in its job; (number, index) is its key. An attempt is named by its fence, a number
that is never used twice and grows with every attempt that is given out, also across restarts: the manager's epoch in
the upper bits, a counter below.
"""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec

from talka.work.dags.dag import CatchUp
from talka.work.lifecycle import JobState, TaskState

EPOCH_SHIFT: Final = 32
TASK_STATES: Final = tuple(TaskState)
"""As numbers in a store: the position here. New ones go last."""
JOB_STATES: Final = tuple(JobState)

TaskKey: TypeAlias = tuple[int, int]
NoticeState: TypeAlias = Literal["waiting", "sent", "given_up"]


class JobRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    number: int
    id: str
    name: str
    state: JobState
    submitted_ms: int
    settings: bytes
    """`DagSettings` as JSON."""
    tasks: int = 0
    key: str = ""
    """Idempotency key of the submission; `digest` is of what was submitted with it."""
    digest: str = ""
    submitted_by: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    reason: str = ""
    counts: dict[str, int] = {}
    """Tasks by state, once the job has ended."""
    params: bytes = b""
    """Values that it was filled with, as JSON; empty: none."""
    output_bytes: int = 0
    """Of what its attempts wrote, that is kept."""
    output_gone: bool = False
    """It ended so long ago that what they wrote is not kept any more."""


class TaskRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything of a task."""

    job: int
    index: int
    id: str
    state: TaskState
    spec: bytes
    """`TaskSpec` as JSON."""
    depends_on: tuple[int, ...] = ()
    attempts: int = 0
    fence: int = 0
    """Of the attempt given out last."""
    worker: str = ""
    """`name#boot` of whoever has or had it."""
    ready_ms: int = 0
    """Not before this instant: a delay, or the wait before another try."""
    started_ms: int = 0
    ended_ms: int = 0
    output: bytes = b""
    """JSON; empty: none. A larger one is in a blob, and this is empty."""
    blob: str = ""
    """Digest of a large output."""
    error: str = ""
    cause: str = ""
    """Of its end, or of its last failed attempt: a word such as exception, timeout, oom, SIGSEGV, exit, cancelled."""
    deaths: int = 0
    """Processes that died with it alone in them."""
    checkpoint: bytes = b""
    """What the handler last gave `task.heartbeat`."""
    failures: int = 0
    """Attempts that count against its retries: not those that were lost with their worker. Neither here nor in `deaths`
    is the one after which it was given up."""
    memory_bytes: int = 0
    """Of the attempt that ended it; 0: not measured."""

    @property
    def counted(self) -> int:
        """Attempts that count against it, since it was last run again."""
        return self.failures + self.deaths + (self.state is TaskState.DEAD)


class LiveTask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a manager must know of a task to go on with its job: one of millions, so little."""

    index: int
    state: int
    """Position in TASK_STATES."""
    id: str
    depends_on: bytes
    """Indexes, four bytes each, little end first."""
    attempts: int
    fence: int
    worker: str
    ready_ms: int
    deaths: int
    handler: str
    priority: int
    failures: int = 0
    started_ms: int = 0
    """When the attempt was given out that is under way, or was last."""
    cause: str = ""
    error: str = ""
    """Of its end, or of its last failed attempt."""


class FanRow(msgspec.Struct, frozen=True, gc=False):
    """A task that is fanned out: its elements are tasks of the same job, one after the other."""

    index: int
    first: int
    """The index of its first element."""
    count: int


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt that did not complete its task; the one that did is in the task's own row, and here once that is run
    again."""

    job: int
    index: int
    attempt: int
    fence: int
    worker: str
    started_ms: int
    ended_ms: int
    cause: str
    error: str = ""
    exit_code: int | None = None
    signal: str = ""
    memory_bytes: int = 0
    """The most that its process had meanwhile; 0: not measured."""
    outcome: str = ""
    """As `wire.tasks.Outcome`, or lost. Empty: put down by a version that did not tell it."""


class StreamRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of what an attempt wrote to one stream."""

    job: int
    index: int
    attempt: int
    fence: int
    stream: str
    """One of `wire.output_tail.STREAMS`."""
    written: int
    """Bytes in all."""
    kept: int
    """The last so many of them; fewer than `written` where one of the bounds was met."""
    content: bytes = b""
    """Empty where only sizes were asked for."""


class TimeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much time an attempt got that asked for more than its timeout, or was warned."""

    job: int
    index: int
    attempt: int
    fence: int
    kept: bytes
    """As `control.tasks.attempt_time.encoded` made it."""


class EventRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something people may want to know of a job. When it was started and ended is in its own row, the ends of tasks in
    theirs; neither is repeated here."""

    job: int
    at_ms: int
    kind: str
    """paused, resumed, retry, lost, dead, skipped, rerun, cancelled, ended …"""
    index: int = -1
    text: str = ""
    number: int = 0
    """Given by the store, growing."""


class LogRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    job: int
    index: int
    attempt: int
    at_ms: int
    text: str
    number: int = 0


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str
    cron: str
    spec: bytes
    """`DagSpec` as JSON, without its schedule."""
    next_ms: int
    last_job: str = ""
    """That it submitted last because it was due: part of the key of the next one."""
    submitted_by: str = ""
    timezone: str = ""
    """Empty: UTC."""
    catch_up: CatchUp = "one"
    is_paused: bool = False
    ran_ms: int = 0
    """Of which instant its last job is, for whatever reason it was submitted."""
    ran_job: str = ""


class NoticeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a job, to be told to somebody."""

    id: str
    job: int
    job_id: str
    url: str
    body: bytes
    state: NoticeState = "waiting"
    tries: int = 0
    next_ms: int = 0
    """While it waits: when it is sent next. Then: when it was settled."""
    error: str = ""
    """Of the last try."""


# Changes. A store makes a batch of them in one transaction, in order. Those with a fence change nothing when the row's
# is another: the number of rows that were changed is answered, and whoever asked counts the rest as refused.


class PutJob(msgspec.Struct, frozen=True, gc=False):
    """A new job. Its tasks follow in `PutTasks`, possibly in later batches while its state is SUBMITTED."""

    row: JobRow


class PutTasks(msgspec.Struct, frozen=True, gc=False):
    rows: tuple[TaskRow, ...]


class MoveJob(msgspec.Struct, frozen=True, gc=False):
    job: int
    state: JobState
    at_ms: int
    reason: str = ""
    tasks: int | None = None
    counts: dict[str, int] | None = None


class ClaimTask(msgspec.Struct, frozen=True, gc=False):
    """An attempt is given out: ASSIGNED, unless the row has a higher fence already."""

    job: int
    index: int
    attempt: int
    fence: int
    worker: str
    at_ms: int


class Complete(msgspec.Struct, frozen=True, gc=False):
    """The end of a task. Only under its fence; 0: whatever it is (a task that is not given out: skipped, cancelled)."""

    job: int
    index: int
    fence: int
    state: TaskState
    at_ms: int
    output: bytes = b""
    blob: str = ""
    error: str = ""
    cause: str = ""
    started_ms: int = 0
    worker: str = ""
    attempts: int = 0
    key: str = ""
    """Idempotency key of a task that completed: remembered with its output."""
    memory_bytes: int = 0
    """Of the attempt that ended it; 0: not measured, or none did."""


class ClaimRange(msgspec.Struct, frozen=True, gc=False):
    """Attempts at `count` tasks in a row are given out to one worker, under as many fences in a row: the same as a
    `ClaimTask` for each. Rows that have a higher fence or have ended stay as they are."""

    job: int
    first: int
    """The index of the first task."""
    count: int
    attempt: int
    fence: int
    """Of the first task; each one after it has the next."""
    worker: str
    at_ms: int

    def each(self) -> Iterator[ClaimTask]:
        """What it means."""
        for n in range(self.count):
            yield ClaimTask(self.job, self.first + n, self.attempt, self.fence + n, self.worker, self.at_ms)


class CompleteRange(msgspec.Struct, frozen=True, gc=False):
    """The same end of `count` tasks in a row, each under its own fence: the same as a `Complete` for each. Rows with
    another fence stay as they are."""

    job: int
    first: int
    """The index of the first task."""
    count: int
    fence: int
    """Of the first task, and each one after it has the next; 0: whatever they are."""
    state: TaskState
    at_ms: int
    output: bytes = b""
    error: str = ""
    cause: str = ""

    def each(self) -> Iterator[Complete]:
        """What it means."""
        for n in range(self.count):
            fence = self.fence + n if self.fence else 0
            end = self.output, "", self.error, self.cause
            yield Complete(self.job, self.first + n, fence, self.state, self.at_ms, *end)


class Release(msgspec.Struct, frozen=True, gc=False):
    """Not running any more and to be tried again: PENDING, from `ready_ms` on. Only under its fence; 0: whatever."""

    job: int
    index: int
    fence: int
    ready_ms: int
    attempts: int
    deaths: int = 0
    cause: str = ""
    error: str = ""
    failures: int = 0


class Extend(msgspec.Struct, frozen=True, gc=False):
    """A handler's checkpoint, only under its fence."""

    job: int
    index: int
    fence: int
    checkpoint: bytes


class Reset(msgspec.Struct, frozen=True, gc=False):
    """Run again: PENDING, no output, optionally with another spec. Its attempts stay, and those to come are counted on;
    the one that completed it is put with them."""

    job: int
    index: int
    spec: bytes = b""


class FanOut(msgspec.Struct, frozen=True, gc=False):
    """A task is fanned out, and has these elements, which are put in the same batch; the job has so many tasks now.
    Of one that is fanned out already nothing is done."""

    job: int
    index: int
    first: int
    count: int
    tasks: int


class DropElements(msgspec.Struct, frozen=True, gc=False):
    """A task is fanned out no more: its elements go, with all that belongs to them. The job has so many tasks now, and
    so much less of what attempts wrote as they had."""

    job: int
    index: int
    first: int
    count: int
    tasks: int


class PutAttempt(msgspec.Struct, frozen=True, gc=False):
    row: AttemptRow


class PutEvent(msgspec.Struct, frozen=True, gc=False):
    row: EventRow


class PutLogs(msgspec.Struct, frozen=True, gc=False):
    rows: tuple[LogRow, ...]


class PutStreams(msgspec.Struct, frozen=True, gc=False):
    """What one attempt wrote. A stream that is there already is replaced."""

    rows: tuple[StreamRow, ...]
    output_bytes: int
    """Of the job, all that is kept, with these."""


class PutTime(msgspec.Struct, frozen=True, gc=False):
    """What is kept of the time of an attempt, in place of what was."""

    row: TimeRow


class PutSchedule(msgspec.Struct, frozen=True, gc=False):
    row: ScheduleRow


class DropSchedule(msgspec.Struct, frozen=True, gc=False):
    name: str


class PutNotice(msgspec.Struct, frozen=True, gc=False):
    row: NoticeRow


class MoveNotice(msgspec.Struct, frozen=True, gc=False):
    """What became of a try, unless the notice was settled already."""

    id: str
    state: NoticeState
    tries: int
    next_ms: int
    error: str = ""


class DropJob(msgspec.Struct, frozen=True, gc=False):
    """A submission that was broken off, or a job that is kept no longer, with all that belongs to it: nobody finds it
    any more, whatever the store still has to delete."""

    job: int


Change: TypeAlias = (
    PutJob
    | PutTasks
    | MoveJob
    | ClaimTask
    | Complete
    | ClaimRange
    | CompleteRange
    | Release
    | Extend
    | Reset
    | FanOut
    | DropElements
    | PutAttempt
    | PutEvent
    | PutLogs
    | PutStreams
    | PutTime
    | PutSchedule
    | DropSchedule
    | PutNotice
    | MoveNotice
    | DropJob
)
