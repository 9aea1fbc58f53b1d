"""Everything the API can do, as data: the routes, the roles they take and the OpenAPI document all come from here."""

from typing import Any, Final, Literal, NamedTuple

from talka.client.dags import BULK_LIMIT, ReplayRequest
from talka.client.kinds import AnyJob, AnyJobsPage
from talka.client.requests import PAGE_DEFAULT, PAGE_LIMIT, CancelRequest, Problem
from talka.client.sheets import JobSheet
from talka.report.document import ResultDocument
from talka.web.audit import AuditPage
from talka.wire.orders import JobOrder
from talka.wire.output_tail import STREAMS
from talka.wire.security.access import LEAST, UserRole
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
from talka.wire.views import ClusterView, JobFacts, JobUpdate, WorkerView
from talka.work.dags.dag import DagSpec
from talka.work.lifecycle import JobState, TaskState


class Parameter(NamedTuple):
    name: str
    where: Literal["query", "header"]
    about: str
    schema: dict[str, Any]


class Either(NamedTuple):
    """What is one of these."""

    kinds: tuple[Any, ...]
    is_list: bool = False
    """A list, each of whose entries is one of these."""


class ApiOperation(NamedTuple):
    name: str
    """Also what rates are limited by."""
    method: Literal["GET", "HEAD", "PUT", "POST", "DELETE", "WEBSOCKET"]
    path: str
    does: str
    """To follow "may not" and to head a paragraph."""
    answer: Any = None
    """The type of what comes back; None for nothing, str for text."""
    status: int = 200
    body: Any = None
    """The type of what is sent; bytes for a bundle."""
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()
    """Statuses of errors beside those that every operation may have."""
    needs_body: bool = False
    about: str = ""
    """More than its heading says."""

    @property
    def role(self) -> UserRole | None:
        """The least role that may do it; None: everybody, without a token and under any host name."""
        return LEAST[self.name]

    @property
    def changes(self) -> bool:
        """Something, so that it is put down who did it."""
        return self.method in ("PUT", "POST", "DELETE") or self.name == "submit_frames"


def one_of(name: str, about: str, *choices: str) -> Parameter:
    return Parameter(name, "query", about, {"type": "string", "enum": [str(choice) for choice in choices]})


KEY: Final = Parameter(
    "Idempotency-Key",
    "header",
    "The same job with the same key is the same job: a retry is safe.",
    {"type": "string", "maxLength": 200},
)
CURSOR: Final = Parameter("cursor", "query", "`next` of the page before.", {"type": "string"})
LIMIT: Final = Parameter(
    "limit",
    "query",
    "The most entries of the page.",
    {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT, "default": PAGE_DEFAULT},
)
WAIT: Final = Parameter(
    "wait",
    "query",
    "Answer when the job has ended, or after so long, such as `30s`, at most 5 minutes. Its state tells which.",
    {"type": "string"},
)
BODY: Final = (400, 408, 413, 415, 422)
"""Problems of whatever reads a body."""
NO_DAGS: Final = 501
JOB: Final = Either((JobFacts, DagFacts, AnyJob))
"""A job as its kind describes it; those that have no words of their own say what all have."""


OPERATIONS: Final = (
    ApiOperation(
        "put_bundle",
        "PUT",
        "/v1/bundles/{digest}",
        "upload a bundle",
        status=204,
        body=bytes,
        problems=(408, 413, 422),
        needs_body=True,
    ),
    ApiOperation("has_bundle", "HEAD", "/v1/bundles/{digest}", "ask for a bundle", problems=(404, 422)),
    ApiOperation(
        "submit",
        "POST",
        "/v1/jobs",
        "submit a job",
        JOB,
        201,
        Either((JobOrder, DagSpec)),
        (KEY, WAIT),
        (*BODY, 409, NO_DAGS),
        needs_body=True,
        about=(
            'A dag job says "kind": "dag". As application/x-ndjson its tasks follow one a line, after a first line that'
            " is the job without them, and may depend on tasks before them."
        ),
    ),
    ApiOperation(
        "execute",
        "POST",
        "/v1/execute",
        "submit a dag job in other words",
        DagFacts,
        201,
        dict,
        (KEY, WAIT),
        (*BODY, 409, NO_DAGS),
        needs_body=True,
        about="Takes jobs for tasks, type for handler and dependsOn for depends_on, and needs no kind and no name.",
    ),
    ApiOperation(
        "bulk",
        "POST",
        "/v1/jobs/bulk",
        "submit many dag jobs",
        Either((DagFacts, Problem), is_list=True),
        200,
        list[DagSpec],
        (KEY,),
        (*BODY, NO_DAGS),
        needs_body=True,
        about=f"At most {BULK_LIMIT}. Each is taken or refused for itself; answers are in the order of the jobs.",
    ),
    ApiOperation(
        "submit_frames",
        "WEBSOCKET",
        "/v1/jobs/submit",
        "submit dag jobs one a frame",
        parameters=(one_of("batch", "1: answers that are ready together come as one array.", "0", "1"),),
        problems=(422, NO_DAGS),
        about=(
            'A WebSocket: each frame is a dag, or {"task": {…}} for a job of one task, with "key" beside it for an'
            ' idempotency key, and "tell_end": true for a second answer, {"n", "id", "state", "has_ended": true}, when'
            ' the job has ended. Answers are {"n", "id", "state"} or {"n", "problem"}, n counting frames from 0, in the'
            " order in which they are done."
        ),
    ),
    ApiOperation(
        "jobs",
        "GET",
        "/v1/jobs",
        "list jobs",
        AnyJobsPage,
        parameters=(
            one_of("state", "Only jobs in this state.", *JobState),
            CURSOR,
            LIMIT,
        ),
        problems=(422,),
    ),
    ApiOperation("job", "GET", "/v1/jobs/{id}", "look at a job", JOB, problems=(404,)),
    ApiOperation(
        "view",
        "GET",
        "/v1/jobs/{id}/view",
        "look at a job as people are shown it",
        JobSheet,
        problems=(404,),
        about="The same for every kind of job: words and texts, and a table of its parts.",
    ),
    ApiOperation(
        "tasks",
        "GET",
        "/v1/jobs/{id}/tasks",
        "list the tasks of a job",
        TasksPage,
        parameters=(
            one_of("state", "Only tasks in this state.", *TaskState),
            CURSOR,
            LIMIT,
        ),
        problems=(404, 422, NO_DAGS),
    ),
    ApiOperation(
        "why",
        "GET",
        "/v1/jobs/{id}/tasks/{task}/why",
        "ask what a task waits for",
        WhyView,
        problems=(404, NO_DAGS),
    ),
    ApiOperation(
        "logs",
        "GET",
        "/v1/jobs/{id}/tasks/{task}/logs",
        "read what a task logged",
        LogPage,
        parameters=(CURSOR, LIMIT),
        problems=(404, 422, NO_DAGS),
    ),
    ApiOperation(
        "attempts",
        "GET",
        "/v1/jobs/{id}/tasks/{task}/attempts",
        "list the attempts at a task",
        AttemptsPage,
        parameters=(CURSOR, LIMIT),
        problems=(404, 422, NO_DAGS),
        about="Also those before it was run again: their numbers go on.",
    ),
    ApiOperation(
        "output",
        "GET",
        "/v1/jobs/{id}/tasks/{task}/output",
        "read what an attempt wrote",
        OutputView,
        parameters=(
            Parameter(
                "attempt",
                "query",
                "Its number; without one, the last attempt that wrote something.",
                {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
            ),
            one_of("stream", "Only this one.", *STREAMS),
        ),
        problems=(404, 422, NO_DAGS),
        about="The end of its standard output and error, and its traceback.",
    ),
    ApiOperation(
        "task",
        "GET",
        "/v1/jobs/{id}/tasks/{task}",
        "look at a task",
        TaskView,
        problems=(404, NO_DAGS),
    ),
    ApiOperation(
        "events",
        "GET",
        "/v1/jobs/{id}/events",
        "read what happened to a job",
        EventsPage,
        parameters=(CURSOR, LIMIT),
        problems=(404, 422, NO_DAGS),
    ),
    ApiOperation(
        "graph",
        "GET",
        "/v1/jobs/{id}/graph",
        "look at the graph of a job",
        GraphView,
        problems=(404, NO_DAGS),
    ),
    ApiOperation(
        "pause",
        "POST",
        "/v1/jobs/{id}/pause",
        "pause a job",
        DagFacts,
        problems=(404, 408, 409, 413, 422, NO_DAGS),
    ),
    ApiOperation(
        "resume",
        "POST",
        "/v1/jobs/{id}/resume",
        "resume a job",
        JOB,
        problems=(404, 408, 409, 413, 422),
    ),
    ApiOperation(
        "retry",
        "POST",
        "/v1/jobs/{id}/retry",
        "run tasks again",
        DagFacts,
        body=RetryRequest,
        problems=(*BODY, 404, 409, NO_DAGS),
    ),
    ApiOperation(
        "retry_plan",
        "POST",
        "/v1/jobs/{id}/retry/plan",
        "look at what a retry would run again",
        RetryPlan,
        body=RetryRequest,
        problems=(*BODY, 404, NO_DAGS),
    ),
    ApiOperation(
        "skip",
        "POST",
        "/v1/jobs/{id}/skip",
        "skip tasks",
        DagFacts,
        body=SkipRequest,
        problems=(*BODY, 404, 409, NO_DAGS),
        needs_body=True,
    ),
    ApiOperation(
        "who_could_run",
        "POST",
        "/v1/queues/check",
        "ask who could run tasks",
        list[TaskWorkers],
        body=list[TaskWants],
        problems=(*BODY, NO_DAGS),
        needs_body=True,
        about="For each kind of task, by the workers that are known now. At most 200 kinds. It changes nothing.",
    ),
    ApiOperation("queues", "GET", "/v1/queues", "look at the queues", QueuesView, problems=(NO_DAGS,)),
    ApiOperation(
        "dead_letters",
        "GET",
        "/v1/dead-letters",
        "list dead letters",
        DeadLettersPage,
        parameters=(CURSOR, LIMIT),
        problems=(422, NO_DAGS),
    ),
    ApiOperation(
        "replay",
        "POST",
        "/v1/dead-letters/{id}/{task}/replay",
        "replay a dead letter",
        DagFacts,
        body=ReplayRequest,
        problems=(*BODY, 404, 409, NO_DAGS),
    ),
    ApiOperation("schedules", "GET", "/v1/schedules", "list schedules", list[ScheduleView], problems=(NO_DAGS,)),
    ApiOperation(
        "put_schedule",
        "PUT",
        "/v1/schedules",
        "put a schedule",
        ScheduleView,
        body=DagSpec,
        problems=(*BODY, NO_DAGS),
        needs_body=True,
        about="One of the same name is replaced.",
    ),
    ApiOperation(
        "drop_schedule",
        "DELETE",
        "/v1/schedules/{name}",
        "drop a schedule",
        status=204,
        problems=(404, 408, 413, NO_DAGS),
    ),
    ApiOperation(
        "pause_schedule",
        "POST",
        "/v1/schedules/{name}/pause",
        "pause a schedule",
        ScheduleView,
        problems=(404, 408, 413, NO_DAGS),
    ),
    ApiOperation(
        "resume_schedule",
        "POST",
        "/v1/schedules/{name}/resume",
        "resume a schedule",
        ScheduleView,
        problems=(404, 408, 413, 422, NO_DAGS),
        about="What was due meanwhile is caught up with as its `catch_up` says.",
    ),
    ApiOperation(
        "run_schedule",
        "POST",
        "/v1/schedules/{name}/run",
        "run the job of a schedule now",
        DagFacts,
        201,
        parameters=(KEY,),
        problems=(404, 408, 409, 413, 422, NO_DAGS),
    ),
    ApiOperation(
        "backfill",
        "POST",
        "/v1/schedules/{name}/backfill",
        "backfill a schedule",
        BackfillView,
        body=BackfillRequest,
        problems=(*BODY, 404, 409, NO_DAGS),
        needs_body=True,
        about="One job for each instant that it was due, oldest first. Asked again, those that were run are not run"
        " again.",
    ),
    ApiOperation("order", "GET", "/v1/jobs/{id}/order", "read what was submitted", JobOrder, problems=(404,)),
    ApiOperation(
        "cancel",
        "POST",
        "/v1/jobs/{id}/cancel",
        "cancel a job",
        JOB,
        body=CancelRequest,
        problems=(400, 404, 408, 413, 415, 422),
    ),
    ApiOperation(
        "result",
        "GET",
        "/v1/jobs/{id}/result",
        "read the result of a job",
        ResultDocument,
        problems=(404, 409),
    ),
    ApiOperation(
        "watch",
        "WEBSOCKET",
        "/v1/jobs/{id}/watch",
        "watch a job",
        Either((JobUpdate, DagFacts, AnyJob)),
        parameters=(
            one_of("steps", "1: with what was counted for each step.", "0", "1"),
            Parameter(
                "format",
                "query",
                "Text frames of JSON, or binary frames of MessagePack.",
                {"type": "string", "enum": ["json", "msgpack"], "default": "json"},
            ),
        ),
        problems=(404, 422),
        about=(
            "A WebSocket: each frame is one update. It closes with 1000 after the final one, and with 1012 or 1013 when"
            " the watch is to be opened anew, at this or another manager."
        ),
    ),
    ApiOperation("workers", "GET", "/v1/workers", "list workers", list[WorkerView]),
    ApiOperation(
        "worker",
        "GET",
        "/v1/workers/{name}",
        "look at one worker",
        WorkerView,
        problems=(404,),
        about="With its handlers and its machine, which lists leave out.",
    ),
    ApiOperation("drain", "POST", "/v1/workers/{name}/drain", "drain a worker", WorkerView, problems=(404,)),
    ApiOperation(
        "undrain",
        "POST",
        "/v1/workers/{name}/undrain",
        "let a worker take new work again",
        WorkerView,
        problems=(404, 409),
    ),
    ApiOperation("cluster", "GET", "/v1/cluster", "look at the cluster", ClusterView),
    ApiOperation(
        "audit",
        "GET",
        "/v1/audit",
        "read the audit log",
        AuditPage,
        parameters=(LIMIT,),
        problems=(422,),
        about="Its last lines.",
    ),
    ApiOperation("openapi", "GET", "/v1/openapi.json", "read this document", dict),
    ApiOperation("livez", "GET", "/livez", "ask whether the process lives", str),
    ApiOperation("readyz", "GET", "/readyz", "ask whether the node takes requests", str),
    ApiOperation("metrics", "GET", "/metrics", "read the node's metrics", str),
)
PUBLIC: Final = frozenset(operation.path for operation in OPERATIONS if operation.role is None)
