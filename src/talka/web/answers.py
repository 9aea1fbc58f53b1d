"""What handlers are given, and how answers and problems look."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from talka.client.dag_kind import DagKind
from talka.client.dags import DagControl
from talka.client.kinds import JobDirectory, JobKind, KindFacts
from talka.client.requests import Control, NoDags, NotAuthorised, Problem, TooBusy, problem_of
from talka.errors import TalkaError
from talka.web.api_limits import API_LIMITS, ApiLimits
from talka.web.audit import ApiAudit
from talka.web.auth import Identity
from talka.web.bodies import WrongType, checked_job_id

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER = "2"
"""Seconds, where nobody knows how long it lasts."""
STOPPING: Final = "talka.stopping"
"""In a scope, an event: this node answers what is under way and takes nothing more."""


Limiter: TypeAlias = Callable[[str, str], float]
"""(operation, who is counted) to seconds to wait; 0: go on. Nobody is counted where no tokens are used: queues are the
only bound then, and overload."""


class Stopwatch(Protocol):
    """By which a node sees how long its clients wait."""

    def begin(self, operation: str) -> int:
        """A number for `end`."""
        ...

    def end(self, number: int, status: int) -> None: ...


class NoStopwatch:
    def begin(self, operation: str) -> int:
        return 0

    def end(self, number: int, status: int) -> None:
        pass


NO_STOPWATCH: Final = NoStopwatch()


ANY_SUBMIT: Final = "submit_dag"
"""The rate of submissions whose kind is not known yet: that of the cheapest."""


SUBMITS: Final = ("submit", "execute")


def rate_at_door(kinds: JobDirectory, operation: str) -> str:
    """The rate under which a request is counted before it is read."""
    return ANY_SUBMIT if operation in SUBMITS and len(kinds.names) > 1 else operation


def no_limit(operation: str, client: str) -> float:
    return 0.0


def source_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


class ApiQuestion(NamedTuple):
    """A request that was let in."""

    control: Control
    request: Request
    identity: Identity
    kinds: JobDirectory
    audit: ApiAudit | None = None
    limiter: Limiter = no_limit
    limits: ApiLimits = API_LIMITS

    @property
    def job(self) -> str:
        return checked_job_id(self.request.path_params["id"])

    @property
    def kind(self) -> Awaitable[JobKind]:
        """Of the job that is asked about."""
        return self.kinds.of(self.job)

    @property
    def dag_control(self) -> DagControl:
        """Of all dag jobs together."""
        kind = self.kinds.port(DagKind)
        if kind is None:
            raise NoDags.here()
        return kind.dags

    async def job_dags(self) -> DagControl:
        """Of the job that is asked about, which must be a dag job."""
        if self.kinds.port(DagKind) is None:
            raise NoDags.here()
        return (await self.kinds.only(self.job, DagKind)).dags


Handler: TypeAlias = Callable[[ApiQuestion], Awaitable[Any]]
"""Answers with a `Response`, or with what is to be told as JSON."""


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")


async def waited(asked: ApiQuestion, facts: KindFacts, wait_s: float) -> KindFacts:
    """A job that was taken, as it is at its end or after so long, or once this node stops or nobody is there to be
    answered."""
    if not wait_s:
        return facts
    try:
        # Whoever waits watches: by a submission the leader tells nobody of a job.
        watcher = asked.identity.asks("watch", source_of(asked.request.scope))
        kind = await asked.kinds.on_behalf(watcher).of(facts.id)
        ended = asyncio.create_task(until_ended(kind, facts.id))
        gone = asyncio.create_task(until_gone(asked.request))
        stopped = asyncio.create_task(asked.request.scope[STOPPING].wait())
        tasks = ended, gone, stopped
        try:
            await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcome, *_ = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome
        return await kind.get(facts.id)
    except TalkaError:
        return facts  # it was taken, and that must be told, whatever became of the waiting


async def until_ended(kind: JobKind, id: str) -> None:
    async with contextlib.aclosing(kind.watch(id, False)) as updates:
        async for update in updates:
            if update.is_last:
                return


async def until_gone(request: Request) -> None:
    """Its body was read: nothing else comes of it."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def submitted(facts: KindFacts) -> Response:
    return json_answer(facts, status=201, headers={"location": f"/v1/jobs/{facts.id}"})


def problem_answer(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(problem), problem.status, dict(headers or {}), PROBLEM_JSON)


def answer_to_error(error: TalkaError, path: str) -> Response:
    problem = problem_of(error, path)
    headers = {}
    if isinstance(error, TooBusy):
        headers["retry-after"] = error.retry_after_header
    elif problem.status == 503:
        headers["retry-after"] = RETRY_AFTER
    elif problem.status == 401 and isinstance(error, NotAuthorised):
        headers["www-authenticate"] = 'Bearer realm="talka"'
    elif isinstance(error, WrongType):
        problem = msgspec.structs.replace(problem, status=415)
    return problem_answer(problem, headers)
