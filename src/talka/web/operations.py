"""Everything the API can do, as data: the routes, the roles they take and the OpenAPI document all come from here."""

from typing import Any, Final, Literal, NamedTuple

from talka.client.requests import (
    PAGE_DEFAULT,
    PAGE_LIMIT,
    CancelRequest,
    ClusterView,
    JobFacts,
    JobOrder,
    JobsPage,
    JobUpdate,
    WorkerView,
)
from talka.report.document import ResultDocument
from talka.web.auth import Role
from talka.work.lifecycle import JobState


class Parameter(NamedTuple):
    name: str
    where: Literal["query", "header"]
    about: str
    schema: dict[str, Any]


class Operation(NamedTuple):
    name: str
    """Also what rates are limited by."""
    method: Literal["GET", "HEAD", "PUT", "POST", "WEBSOCKET"]
    path: str
    role: Role | None
    """The least role that may do it; None: everybody, without a token and under any host name."""
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


OPERATIONS: Final = (
    Operation(
        "put_bundle",
        "PUT",
        "/v1/bundles/{digest}",
        "submitter",
        "upload a bundle",
        status=204,
        body=bytes,
        problems=(408, 413, 422),
    ),
    Operation("has_bundle", "HEAD", "/v1/bundles/{digest}", "submitter", "ask for a bundle", problems=(404, 422)),
    Operation(
        "submit",
        "POST",
        "/v1/jobs",
        "submitter",
        "submit a job",
        JobFacts,
        201,
        JobOrder,
        (
            Parameter(
                "Idempotency-Key",
                "header",
                "The same order with the same key is the same job: a retry is safe.",
                {"type": "string", "maxLength": 200},
            ),
        ),
        (400, 408, 409, 413, 415, 422),
    ),
    Operation(
        "jobs",
        "GET",
        "/v1/jobs",
        "viewer",
        "list jobs",
        JobsPage,
        parameters=(
            Parameter(
                "state",
                "query",
                "Only jobs in this state.",
                {"type": "string", "enum": [str(state) for state in JobState]},
            ),
            Parameter("cursor", "query", "`next` of the page before.", {"type": "string"}),
            Parameter(
                "limit",
                "query",
                "The most jobs of the page.",
                {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT, "default": PAGE_DEFAULT},
            ),
        ),
        problems=(422,),
    ),
    Operation("job", "GET", "/v1/jobs/{id}", "viewer", "look at a job", JobFacts, problems=(404,)),
    Operation("order", "GET", "/v1/jobs/{id}/order", "viewer", "read what was submitted", JobOrder, problems=(404,)),
    Operation(
        "cancel",
        "POST",
        "/v1/jobs/{id}/cancel",
        "submitter",
        "cancel a job",
        JobFacts,
        body=CancelRequest,
        problems=(400, 404, 408, 413, 415, 422),
    ),
    Operation(
        "result",
        "GET",
        "/v1/jobs/{id}/result",
        "viewer",
        "read the result of a job",
        ResultDocument,
        problems=(404, 409),
    ),
    Operation(
        "watch",
        "WEBSOCKET",
        "/v1/jobs/{id}/watch",
        "viewer",
        "watch a job",
        JobUpdate,
        parameters=(
            Parameter(
                "steps", "query", "1: with what was counted for each step.", {"type": "string", "enum": ["0", "1"]}
            ),
            Parameter(
                "format",
                "query",
                "Text frames of JSON, or binary frames of MessagePack.",
                {"type": "string", "enum": ["json", "msgpack"], "default": "json"},
            ),
        ),
        problems=(404, 422),
    ),
    Operation("workers", "GET", "/v1/workers", "viewer", "list workers", list[WorkerView]),
    Operation("drain", "POST", "/v1/workers/{name}/drain", "operator", "drain a worker", WorkerView, problems=(404,)),
    Operation("cluster", "GET", "/v1/cluster", "viewer", "look at the cluster", ClusterView),
    Operation("openapi", "GET", "/v1/openapi.json", "viewer", "read this document", dict),
    Operation("livez", "GET", "/livez", None, "ask whether the process lives", str),
    Operation("readyz", "GET", "/readyz", None, "ask whether the node takes requests", str),
    Operation("metrics", "GET", "/metrics", "viewer", "read the node's metrics", str),
)
PUBLIC: Final = frozenset(operation.path for operation in OPERATIONS if operation.role is None)
