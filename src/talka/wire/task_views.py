"""What people are shown of dag jobs: the answers of the HTTP API. New fields go last and have a default."""

from typing import Annotated, Literal

import msgspec

from talka.work.lifecycle import JobState, TaskState


class JobNotice(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is told when a job has ended."""

    id: str
    """Of this delivery: it may come twice."""
    job: str
    name: str
    state: JobState
    reason: str
    tasks: int
    counts: dict[str, int]
    """Tasks by state."""
    submitted_at: str
    started_at: str
    ended_at: str


class NoticeView(msgspec.Struct, frozen=True):
    """What became of telling somebody of the end of a job."""

    id: str
    to: str
    """Scheme and host."""
    state: Literal["waiting", "sent", "given_up"]
    on: str
    """In which state the job had ended."""
    tries: int = 0
    next_at: str = ""
    """While it waits."""
    settled_at: str = ""
    error: str = ""
    """Of the last try."""


class DagFacts(msgspec.Struct, frozen=True):
    """A dag job."""

    id: str
    name: str
    state: JobState
    kind: str = "dag"
    reason: str = ""
    submitted_at: str = ""
    started_at: str = ""
    ended_at: str = ""
    submitted_by: str = ""
    tasks: int = 0
    counts: dict[str, int] = {}
    """Tasks by state."""
    position: int | None = None
    """Ready tasks of all jobs that come before its first one, while none of its own runs."""
    exit_code: int | None = None
    """Null until it has ended: 0 completed, 6 partial, 8 any other end."""
    params: dict[str, bool | int | float | str] = {}
    """With which values it runs, and what a schedule gave."""
    to_fan_out: int = 0
    """Tasks that are to be fanned out: `tasks` grows by their elements. Of those that wait since before a restart of
    the manager it is not known yet."""
    notifications: list[NoticeView] = []
    """Of one that has ended, where it is asked for alone."""
    stopped: int | None = None
    """Of a job that was cancelled: how many tasks did not run to their end for it."""
    datacenter: str = ""
    """Where it runs or ran; empty where that was not said."""


class TaskView(msgspec.Struct, frozen=True):
    id: str
    state: TaskState
    handler: str = ""
    attempts: int = 0
    output: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    cause: str = ""
    worker: str = ""
    depends_on: list[str] = []
    priority: int = 5
    ready_at: str = ""
    """It waits until then: a delay, or before another try."""
    started_at: str = ""
    ended_at: str = ""
    progress: msgspec.Raw = msgspec.Raw(b"null")
    """What its handler last told."""
    for_each: str = ""
    """The list that it is fanned out over."""
    elements: dict[str, int] = {}
    """Of a task that is fanned out: its elements by state. Its output is the list of theirs."""
    element_of: str = ""
    """The task that was fanned out, of one of its elements."""
    item: msgspec.Raw = msgspec.Raw(b"null")
    """Of an element: its part of the list."""
    memory_bytes: int | msgspec.UnsetType = msgspec.UNSET
    """The most that the process of its last attempt had meanwhile; left out: not measured."""
    failures: int | msgspec.UnsetType = msgspec.UNSET
    """Attempts that count against it since it was last run again: not those that were lost, refused or told to stop.
    Left out by managers that do not tell them."""
    more_time: str = ""
    """Of the attempt under way: how often it was given more time, how much and why."""


class TasksPage(msgspec.Struct, frozen=True):
    items: list[TaskView]
    next: str = ""


class EventView(msgspec.Struct, frozen=True):
    at: str
    kind: str
    task: str = ""
    text: str = ""
    number: int = 0


class EventsPage(msgspec.Struct, frozen=True):
    items: list[EventView]
    next: str = ""


class GraphView(msgspec.Struct, frozen=True):
    """Tasks and what they wait for. At most 10,000 tasks; `left_out` says how many more there are. Elements of a task
    that is fanned out are not among them: it has their number."""

    tasks: list[TaskView]
    edges: list[tuple[str, str]]
    """From a dependency to what waits for it."""
    left_out: int = 0


class Reason(msgspec.Struct, frozen=True):
    """Why one worker does not run a task: the first thing that stands in the way."""

    worker: str
    constraint: str
    """A word: offline, draining, handler, capability, memory, quarantine, slots, limit, rate …; empty: nothing does."""
    text: str

    @property
    def is_lasting(self) -> bool:
        """The worker could not run the task at another time either."""
        return self.constraint in ("handler", "code", "capability", "memory")


class TaskWants(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a task wants of a worker."""

    handler: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    capabilities: Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=32)] = []
    min_memory: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] = 0
    """Bytes."""
    is_brought: bool = False
    """The handler travels with its job: whoever takes code has it."""


class TaskWorkers(msgspec.Struct, frozen=True):
    """Who could run such a task, by the workers that are known now."""

    lack: str = ""
    """What nobody has who is here or was in the last ten minutes: submitted now, it would be refused. Empty: somebody
    has it."""
    able: int = 0
    """Workers that could run it now, or once they have room."""
    workers: list[Reason] = []
    """Those that are here, the able ones first, and what stands in the way of the others, of those that lack something
    last."""
    left_out: int = 0
    """Workers that are not listed."""


class WhyView(msgspec.Struct, frozen=True):
    task: str
    state: TaskState
    text: str
    """What it waits for, in a sentence."""
    workers: list[Reason] = []


class StreamView(msgspec.Struct, frozen=True):
    """One stream of an attempt: stdout, stderr or traceback."""

    stream: str
    written: int
    """Bytes in all."""
    kept: int
    """The last so many. Fewer than `written`: an attempt keeps the last 64 KiB of each stream, and a job a certain
    amount of all of them."""


class ExtensionView(msgspec.Struct, frozen=True):
    """More time that an attempt was given."""

    at_s: float
    """So long after it began."""
    by_s: float
    reason: str = ""
    """Empty: it advanced, and did not say why it takes longer."""
    estimate_s: float = 0.0
    """How much longer it thought to take; 0: it did not say."""


class AttemptView(msgspec.Struct, frozen=True):
    attempt: int
    worker: str
    started_at: str
    ended_at: str
    cause: str
    error: str = ""
    exit_code: int | None = None
    signal: str = ""
    memory_bytes: int | msgspec.UnsetType = msgspec.UNSET
    """The most that its process had meanwhile; left out: not measured."""
    outcome: str = ""
    """completed, failed, died, timeout, cancelled, refused or lost; running while it is under way."""
    streams: list[StreamView] = []
    """What it wrote. Not told with dead letters."""
    extensions: list[ExtensionView] = []
    """In the order in which they were given."""
    denied: str = ""
    """Why it got no more time when it last asked for some."""
    warned: bool = False
    """It was told that its time is over, and had a while to save what it had."""


class AttemptsPage(msgspec.Struct, frozen=True):
    """Every attempt at a task, also those before it was run again, the oldest first."""

    items: list[AttemptView]
    next: str = ""


class StreamText(msgspec.Struct, frozen=True):
    stream: str
    written: int
    kept: int
    text: str
    """What is kept of it; what is no UTF-8 is replaced."""


class OutputView(msgspec.Struct, frozen=True):
    """What one attempt wrote."""

    attempt: int
    """0: none has written anything."""
    streams: list[StreamText] = []
    is_over: bool = True
    """While it runs, only the last of what it has written so far is here."""
    is_gone: bool = False
    """The job ended so long ago that nothing of this is kept any more."""


class LogLineView(msgspec.Struct, frozen=True):
    at: str
    attempt: int
    text: str


class LogPage(msgspec.Struct, frozen=True):
    items: list[LogLineView]
    next: str = ""
    is_gone: bool = False
    """The job ended so long ago that nothing of this is kept any more."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A task that was given up, with all that was tried."""

    id: str
    """`JOB/TASK`: by this it is replayed."""
    job: str
    task: str
    handler: str
    cause: str
    error: str
    ended_at: str
    attempts: list[AttemptView] = []


class DeadLettersPage(msgspec.Struct, frozen=True):
    items: list[DeadLetter]
    next: str = ""


class QueueView(msgspec.Struct, frozen=True):
    """Tasks of one handler, of the jobs of this manager that have not ended."""

    handler: str
    """`(other)`: of all handlers beyond the first 1,000."""
    waiting: int
    """Ready to run."""
    active: int
    """Given to workers."""
    workers: int
    """That have the handler."""
    oldest_s: float = 0.0
    """For how long the first of those that wait has been ready."""
    delayed: int = 0
    """They wait for their time, as after a failed attempt."""
    blocked: int = 0
    """They wait for other tasks, or their job is paused."""
    completed: int = 0
    """Since this manager started."""
    failed: int = 0
    """Given up since this manager started: dead letters, failures, time limits."""
    rate_per_s: float = 0.0
    """How many ended, over the last minute."""


class LimitView(msgspec.Struct, frozen=True):
    key: str
    held: int
    concurrency: int = 0
    rate: str = ""
    waiting: int = 0


class QueuesView(msgspec.Struct, frozen=True):
    queues: list[QueueView]
    limits: list[LimitView] = []


class ScheduleView(msgspec.Struct, frozen=True):
    name: str
    cron: str
    next_at: str
    """In UTC; empty while nobody can tell."""
    last_job: str = ""
    """That was submitted last, and not because somebody backfilled."""
    timezone: str = ""
    """Empty: UTC."""
    catch_up: str = "one"
    paused: bool = False
    next_in_zone: str = ""
    last_at: str = ""
    """The instant that `last_job` is for."""
    last_in_zone: str = ""


class BackfillRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run what a schedule was due for in [from, to): dates or instants in ISO 8601, in its zone unless they have an
    offset."""

    begin: Annotated[str, msgspec.Meta(max_length=64)] = msgspec.field(name="from")
    end: Annotated[str, msgspec.Meta(max_length=64)] = msgspec.field(name="to")
    dry_run: bool = False
    """Only tell what would be submitted."""


class BackfillRun(msgspec.Struct, frozen=True):
    """One instant of a backfill."""

    at: str
    """In the zone of the schedule."""
    at_utc: str
    state: Literal["due", "submitted", "known"]
    """`due`: it would be submitted. `known`: it was run before, and is not run again."""
    job: str = ""


class BackfillView(msgspec.Struct, frozen=True):
    """Oldest first."""

    name: str
    runs: list[BackfillRun]
    timezone: str = ""


class RetryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run again: the named tasks and all that depends on them; none named: every task that did not complete."""

    tasks: tuple[str, ...] = ()
    config: dict[str, msgspec.Raw] = {}
    """New configs by task id."""


class RetryTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that a retry would run again. One that is fanned out anew loses the `elements` that it has."""

    id: str
    state: TaskState
    """As it is now."""
    elements: int = 0


class RetryPlan(msgspec.Struct, frozen=True):
    """What a retry would run again, in the order of the job. At most 10,000 tasks; `left_out` says how many more."""

    tasks: list[RetryTask]
    left_out: int = 0


class SkipRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Do not run these: what waits for them goes on without their output."""

    tasks: tuple[str, ...]
