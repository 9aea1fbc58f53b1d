"""Dag jobs: the port through which they are asked for, and what is said there beside `wire.task_views`.

`DagControl` is implemented by a manager that has a store. `web` turns HTTP into calls of it, and `DagCalls` gives the
same calls to programs elsewhere.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Annotated, Final, Literal, Protocol, TypeAlias

import msgspec

from talka.client.requests import KEY_LIMIT, Problem
from talka.errors import TalkaError
from talka.wire.task_views import (
    AttemptsPage,
    BackfillRequest,
    BackfillView,
    DagFacts,
    DeadLettersPage,
    EventsPage,
    GraphView,
    LogPage,
    OutputView,
    QueuesView,
    RetryPlan,
    RetryRequest,
    ScheduleView,
    SkipRequest,
    TasksPage,
    TaskView,
    TaskWants,
    TaskWorkers,
    WhyView,
)
from talka.work.dags.dag import CodeBundle, DagHead, DagSettings, DagSpec, Params, ParamValues, TaskSpec
from talka.work.lifecycle import JobState

DAG_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""Of a body that holds whole dags. Larger ones are streamed."""
BULK_LIMIT: Final = 1000
"""Dags of one request."""
PART_TASKS: Final = 1000
PART_BYTES: Final = 1024 * 1024
"""A streamed job is added to in parts of at most these."""
SUBMITS_LIMIT: Final = 4096
"""Submissions of one WebSocket that wait for their answer."""
SUBMIT_FRAME_LIMIT_BYTES: Final = 1024 * 1024
"""Of one of these. Larger jobs are posted."""
WANTS_LIMIT: Final = 200
"""Kinds of tasks of one question who could run them."""
NO_SETTINGS: Final = DagSpec(name="any", tasks=()).settings

Submitted: TypeAlias = Callable[[DagFacts | TalkaError], None]
Ended: TypeAlias = "Callable[[DagEnd | TalkaError], None]"


class DagsPage(msgspec.Struct, frozen=True):
    """Dag jobs, newest first."""

    items: list[DagFacts]
    next: str = ""
    cursors: list[str] = []
    """For each job the cursor of a page that begins with it."""


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    config: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Instead of what the task was given."""


class SubmitFrame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One frame of a WebSocket of submissions: a dag, or one task that is a job of its own."""

    kind: Literal["dag"] = "dag"
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Empty: what the task is called."""
    task: TaskSpec | None = None
    tasks: tuple[TaskSpec, ...] = ()
    settings: DagSettings = NO_SETTINGS
    key: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT)] = ""
    """Idempotency key of the submission."""
    tell_end: bool = False
    """Answer once more when the job has ended."""
    params: Params = {}
    values: ParamValues = {}
    wait_for_workers: bool = False
    bundle: CodeBundle | None = None


class SubmitAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """To the n-th frame of the connection, from 0 on; in the order in which they were done. One that asks to be told
    the end of its job has two, if the job is taken."""

    n: int
    id: str = ""
    state: str = ""
    problem: Problem | None = None
    """Why the job was not taken; with an id: why its end cannot be told."""
    has_ended: bool = False
    """This is the second answer."""
    reason: str = ""
    counts: dict[str, int] = {}
    """Tasks by state, at the end."""


class DagEnd(msgspec.Struct, frozen=True):
    """How a job ended."""

    state: JobState
    reason: str = ""
    counts: dict[str, int] = {}
    """Tasks by state."""


class DagControl(Protocol):
    """The dag jobs of a manager. Every call may raise the errors of `requests`; each may be made again.

    `by` is who asks, empty where no tokens are used. Cursors are `next` of the page before, or empty. A job that is not
    there is NoSuchJob, a task NoSuchTask, a schedule NoSuchSchedule; what cannot be taken now TooBusy.
    """

    async def submit_dag(self, spec: DagSpec, key: str, by: str) -> DagFacts:
        """Accept a job, filled with its values: from the answer on it is on disk. Raises BadDag; NobodyCanRun where no
        worker that is known has what a task wants, unless the spec waits for workers.

        `key` is the submitter's idempotency key, empty for none: the same spec with the same values and the same key is
        the same job, another one a Conflict. `spec.schedule` is empty: see `put_schedule`.
        """

    def submit_soon(self, spec: DagSpec, key: str, by: str, done: Submitted, *, is_brief: bool = False) -> None:
        """The same for callers that wait for many. `done` is called once, in this thread, possibly at once. `is_brief`:
        no more is asked for than id, name and state."""

    async def begin_dag(self, head: DagHead, key: str, by: str) -> str:
        """A job whose tasks follow in parts: the name of its draft. It is not listed and runs nothing before its end.

        Drafts that nobody adds to for some minutes are dropped. With a key that is known `end_dag` answers the job of
        that key if the tasks are the same, and raises Conflict otherwise.
        """

    async def add_tasks(self, draft: str, tasks: Sequence[TaskSpec]) -> int:
        """How many there are now. They are on disk then. Takes as long as the store is behind. Raises BadDag.

        Tasks may depend on those that came before them.
        """

    async def end_dag(self, draft: str) -> DagFacts: ...
    async def drop_dag(self, draft: str) -> None:
        """Of one that is gone already it does nothing."""

    async def dags(self, state: str, cursor: str, limit: int) -> DagsPage:
        """`state` is a JobState, or empty for all."""

    async def has_dag(self, id: str) -> bool: ...
    async def dag(self, id: str) -> DagFacts: ...
    def watch_dag(self, id: str) -> AsyncGenerator[DagFacts, None]:
        """How it stands whenever that changed, at most 20 times a second; the first at once, the last when it has
        ended."""

    def at_end(self, id: str, told: Ended) -> Callable[[], None]:
        """`told` is called once, in this thread, when the job has ended and that is on disk; soon where it has already.
        What is returned gives that up."""

    async def dag_tasks(self, id: str, state: str, cursor: str, limit: int) -> TasksPage:
        """`state` is a TaskState, or empty for all."""

    async def dag_task(self, id: str, task: str) -> TaskView: ...
    async def dag_events(self, id: str, cursor: str, limit: int) -> EventsPage: ...
    async def dag_graph(self, id: str) -> GraphView: ...
    async def why(self, id: str, task: str) -> WhyView: ...
    async def task_logs(self, id: str, task: str, cursor: str, limit: int) -> LogPage:
        """`next` is never empty while the job is under way: more may come."""

    async def task_attempts(self, id: str, task: str, cursor: str, limit: int) -> AttemptsPage: ...
    async def task_output(self, id: str, task: str, attempt: int, stream: str) -> OutputView:
        """Of the attempt with this number, 0: of the last that wrote something. `stream`: only this one, or empty for
        all. An attempt that is not there is NoSuchAttempt."""

    async def cancel_dag(self, id: str, reason: str) -> DagFacts:
        """Of one that has ended it changes nothing."""

    async def pause_dag(self, id: str) -> DagFacts: ...
    async def resume_dag(self, id: str) -> DagFacts: ...
    async def retry_dag(self, id: str, request: RetryRequest) -> DagFacts: ...
    async def retry_plan(self, id: str, request: RetryRequest) -> RetryPlan:
        """What `retry_dag` would run again now. Changes nothing."""

    async def skip_dag(self, id: str, request: SkipRequest, by: str = "") -> DagFacts: ...

    async def queues(self) -> QueuesView: ...
    async def who_could_run(self, wants: Sequence[TaskWants]) -> list[TaskWorkers]:
        """For each of these, by the workers that are known now. At most WANTS_LIMIT."""

    async def dead_letters(self, cursor: str, limit: int) -> DeadLettersPage: ...
    async def replay(self, id: str, config: msgspec.Raw | None) -> DagFacts:
        """Run a dead letter again; `id` is its `JOB/TASK`. `config` replaces what its task was given."""

    async def schedules(self) -> list[ScheduleView]: ...
    async def put_schedule(self, spec: DagSpec, by: str) -> ScheduleView:
        """`spec.schedule` is a cron line. A schedule of the same name is replaced."""

    async def drop_schedule(self, name: str) -> None: ...
    async def pause_schedule(self, name: str) -> ScheduleView:
        """What is due meanwhile is caught up with once it is resumed, as the schedule says."""

    async def resume_schedule(self, name: str) -> ScheduleView: ...
    async def run_schedule(self, name: str, key: str, by: str) -> DagFacts:
        """Submit its job now, paused or not. The same `key` is the same job."""

    async def backfill(self, name: str, request: BackfillRequest, by: str) -> BackfillView:
        """One job for each instant that it was due, oldest first; those that were run before are not run again."""
