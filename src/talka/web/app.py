"""The API as an application: who comes in, which handler answers, and what becomes of errors."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from talka.client.kinds import JobDirectory
from talka.client.requests import Control, Malformed, Problem, TooBusy
from talka.errors import TalkaError, Unavailable
from talka.report.tame import tame
from talka.web import cluster, dags, job_routes
from talka.web.answers import (
    NO_STOPWATCH,
    SUBMITS,
    ApiQuestion,
    Handler,
    Limiter,
    Stopwatch,
    answer_to_error,
    json_answer,
    no_limit,
    problem_answer,
    rate_at_door,
    source_of,
)
from talka.web.api_limits import API_LIMITS, ApiLimits
from talka.web.audit import ApiAudit
from talka.web.auth import LOCAL, LOOPBACK_NAMES, Identity, Tokens, check_host, check_origin, check_site
from talka.web.bodies import NDJSON, page_in, type_of
from talka.web.events import EventWatches, choice
from talka.web.operations import OPERATIONS, PUBLIC, ApiOperation
from talka.web.task_stream import SubmitSockets

IDENTITY: Final = "talka.identity"
UPLOAD_TIMEOUT_S: Final = 180
STREAM_TIMEOUT_S: Final = 4 * 3600
LOOKED_AT: Final = (b"host", b"origin", b"sec-fetch-site", b"authorization")
REFUSALS: Final = (401, 403, 429)
HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

logger = logging.getLogger("talka.web")


def make_app(
    control: Control,
    kinds: JobDirectory,
    *,
    auth: Tokens | None = None,
    allowed_hosts: Collection[str] = (),
    limiter: Limiter = no_limit,
    stopwatch: Stopwatch = NO_STOPWATCH,
    audit: ApiAudit | None = None,
    limits: ApiLimits = API_LIMITS,
) -> Starlette:
    """The API of one node: `control` of the cluster, and its `kinds` of job.

    Without `auth` whoever reaches it may do everything, so it must listen on loopback (`server.listen` sees to that)
    and answers only to loopback's names and `allowed_hosts`. With `auth` host names are checked when some are given.
    Who changed something and who was refused is told to `audit`, which stays the caller's to close.
    """
    audit = audit or ApiAudit()
    replay_guard = ApiDoor(control, kinds, limiter, stopwatch, audit, limits)
    watches, sockets = EventWatches(limits), SubmitSockets(kinds, limits)
    by_path: dict[str, dict[str, ApiOperation]] = {}
    routes: list[BaseRoute] = []
    for operation in OPERATIONS:
        path = operation.path.replace("{task}", "{task:path}").replace("schedules/{name}", "schedules/{name:path}")
        if operation.method == "WEBSOCKET":
            routes.append(Route(path, needs_websocket(operation), methods=["GET"]))
        if operation.name == "watch":
            routes.append(WebSocketRoute(path, watch_endpoint(watches, operation, replay_guard)))
        elif operation.name == "submit_frames":
            routes.append(WebSocketRoute(path, SubmitEndpoint(sockets, operation, replay_guard)))
        else:
            by_path.setdefault(path, {})[operation.method] = operation
    handlers = all_handlers()
    for path, by_method in by_path.items():
        routes.append(Route(path, endpoint(replay_guard, by_method, handlers), methods=list(by_method)))
    return gated(routes, auth, allowed_hosts, audit)


def gated(
    routes: Sequence[BaseRoute], auth: Tokens | None, allowed_hosts: Collection[str], audit: ApiAudit | None = None
) -> Starlette:
    hosts = {name.lower() for name in allowed_hosts} | (set(LOOPBACK_NAMES) if auth is None else set())
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, auth=auth, hosts=frozenset(hosts), audit=audit)],
        exception_handlers={HTTPException: no_route},
    )
    app.router.redirect_slashes = False
    return app


def all_handlers() -> dict[str, Handler]:
    return {
        "put_bundle": job_routes.Uploads().put_bundle,
        "has_bundle": job_routes.has_bundle,
        "submit": job_routes.submit,
        "execute": dags.execute,
        "bulk": dags.bulk,
        "jobs": job_routes.list_jobs,
        "job": job_routes.job,
        "view": job_routes.view,
        "order": job_routes.order,
        "cancel": job_routes.cancel,
        "result": job_routes.result,
        "tasks": dags.tasks,
        "task": dags.task,
        "why": dags.why,
        "logs": dags.logs,
        "attempts": dags.attempts,
        "output": dags.output,
        "events": dags.events,
        "graph": dags.graph,
        "pause": dags.pause,
        "resume": dags.resume,
        "retry": dags.retry,
        "retry_plan": dags.retry_plan,
        "skip": dags.skip,
        "who_could_run": dags.who_could_run,
        "queues": lambda asked: asked.dag_control.queues(),
        "dead_letters": lambda asked: asked.dag_control.dead_letters(*page_in(asked.request)),
        "replay": dags.replay,
        "schedules": lambda asked: asked.dag_control.schedules(),
        "put_schedule": dags.put_schedule,
        "drop_schedule": dags.drop_schedule,
        "pause_schedule": dags.pause_schedule,
        "resume_schedule": dags.resume_schedule,
        "run_schedule": dags.run_schedule,
        "backfill": dags.backfill,
        "workers": lambda asked: asked.control.workers(),
        "worker": cluster.worker,
        "drain": cluster.drain,
        "undrain": cluster.undrain,
        "cluster": lambda asked: asked.control.cluster(),
        "audit": cluster.audit,
        "openapi": cluster.openapi,
        "livez": cluster.livez,
        "readyz": cluster.readyz,
        "metrics": cluster.metrics,
    }


class Gate:
    """Lets in whoever may come in, before anything else of a request is looked at, and marks every answer."""

    def __init__(self, app: ASGIApp, auth: Tokens | None, hosts: frozenset[str], audit: ApiAudit | None = None) -> None:
        self._app = app
        self._auth = auth
        self._hosts = hosts
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            scope[IDENTITY] = self._identify(scope)
        except TalkaError as error:
            answer = answer_to_error(error, scope["path"])
            if self._audit is not None:
                what = f"{scope.get('method', 'WEBSOCKET')} {scope['path']}"
                self._audit.note(what, answer.status_code, source=source_of(scope), text=str(error))
            await refuse(scope, receive, send_marked, answer)
            return
        await self._app(scope, receive, send_marked)

    def _identify(self, scope: Scope) -> Identity:
        if scope["path"] in PUBLIC:
            return Identity("", "viewer")
        headers: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in LOOKED_AT:
                if name in headers:
                    raise Malformed(f"there is more than one {name.decode()} header")
                headers[name] = value.decode("latin-1")
        host = headers.get(b"host", "")
        if self._hosts:
            check_host(host, self._hosts)
        check_site(headers.get(b"sec-fetch-site", ""))
        if origin := headers.get(b"origin"):
            scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
            check_origin(origin, host, scheme)
        return LOCAL if self._auth is None else self._auth.identify(headers.get(b"authorization", ""))


async def refuse(scope: Scope, receive: Receive, send: Send, answer: Response) -> None:
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)


class ApiDoor:
    """What every endpoint needs: who is behind it, and who may pass."""

    def __init__(
        self,
        control: Control,
        kinds: JobDirectory,
        limiter: Limiter,
        stopwatch: Stopwatch,
        audit: ApiAudit,
        limits: ApiLimits,
    ) -> None:
        self.limits = limits
        self.stopwatch = stopwatch
        self.control = control
        self.kinds = kinds
        self.limiter = limiter
        self._audit = audit

    def check(self, scope: Scope, operation: ApiOperation) -> Identity:
        identity: Identity = scope[IDENTITY]
        if operation.role is not None:
            identity.check(operation.role, operation.does)
            rate = rate_at_door(self.kinds, operation.name)
            wait_s = self.limiter(rate, identity.counted_as)
            if wait_s > 0:
                raise TooBusy(f"too many requests to {operation.does}: try again later", wait_s)
        return identity

    def kinds_for(self, scope: Scope, identity: Identity, operation: ApiOperation) -> JobDirectory:
        """What is asked of others is asked in the name of whoever asks here."""
        return self.kinds.on_behalf(identity.asks(operation.name, source_of(scope)))

    def asked(self, request: Request, identity: Identity, operation: ApiOperation) -> ApiQuestion:
        control, kinds = self.control, self.kinds
        if operation.role is not None:
            control = control.on_behalf(identity.asks(operation.name, source_of(request.scope)))
            kinds = self.kinds_for(request.scope, identity, operation)
        return ApiQuestion(control, request, identity, kinds, self._audit, self.limiter, self.limits)

    def put_down(self, scope: Scope, operation: ApiOperation, status: int, *, job: str = "", text: str = "") -> None:
        """Every change that was asked for, and every refusal."""
        if not operation.changes and status not in REFUSALS:
            return
        identity: Identity = scope[IDENTITY]
        parts: dict[str, str] = scope.get("path_params", {})
        self._audit.note(
            operation.name,
            status,
            who=identity.name,
            role=identity.role,
            token=identity.token,
            source=source_of(scope),
            job=job or "/".join(str(part) for part in parts.values()),
            text=text,
        )


def endpoint(
    replay_guard: ApiDoor, by_method: dict[str, ApiOperation], handlers: dict[str, Handler]
) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        operation = by_method.get(request.method) or by_method["GET"]  # a HEAD is a GET whose body is left out
        number, status = replay_guard.stopwatch.begin(operation.name), 500
        try:
            given, text = await answered(request, operation)
            status = given.status_code
        finally:
            replay_guard.stopwatch.end(number, status)
        location = given.headers.get("location", "")
        replay_guard.put_down(request.scope, operation, given.status_code, job=location.rpartition("/")[2], text=text)
        return given

    async def answered(request: Request, operation: ApiOperation) -> tuple[Response, str]:
        """And why not, in a sentence."""
        timeout_s = timeout_of(request, operation, replay_guard.limits)
        try:
            identity = replay_guard.check(request.scope, operation)
            async with asyncio.timeout(timeout_s):
                found = await handlers[operation.name](replay_guard.asked(request, identity, operation))
            return found if isinstance(found, Response) else json_answer(found), ""
        except TalkaError as error:
            return answer_to_error(error, request.url.path), str(error)
        except TimeoutError:
            late = Unavailable(f"nobody who could {operation.does} answered within {timeout_s} s: try again")
            return answer_to_error(late, request.url.path), str(late)
        except ClientDisconnect:
            return Response(status_code=400), "it went away"  # nobody is there to read it
        except Exception:
            logger.exception("%s %s failed", request.method, tame(request.url.path))
            return internal_error(request.url.path), "internal error"

    return answer


def timeout_of(request: Request, operation: ApiOperation, limits: ApiLimits) -> float:
    if operation.name == "put_bundle":
        return UPLOAD_TIMEOUT_S
    if operation.name == "submit" and type_of(request) == NDJSON:
        return STREAM_TIMEOUT_S  # whoever sends nothing for a while is cut off before
    return limits.call_s + (limits.wait_s if operation.name in SUBMITS and "wait" in request.query_params else 0)


def watch_endpoint(
    watches: EventWatches, operation: ApiOperation, replay_guard: ApiDoor
) -> Callable[[WebSocket], object]:
    async def watch(websocket: WebSocket) -> None:
        async with denying(websocket, operation, replay_guard, f"watching {tame(websocket.url.path)}"):
            identity = replay_guard.check(websocket.scope, operation)
            await watches.watch(websocket, replay_guard.kinds_for(websocket.scope, identity, operation))

    return watch


class SubmitEndpoint:
    """Below Starlette's WebSocket: this one has thousands of frames a second."""

    def __init__(self, sockets: SubmitSockets, operation: ApiOperation, replay_guard: ApiDoor) -> None:
        self._sockets = sockets
        self._operation = operation
        self._replay_guard = replay_guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        async with denying(websocket, self._operation, self._replay_guard, "submissions over a WebSocket"):
            identity = self._replay_guard.check(scope, self._operation)
            is_batched = choice(websocket, "batch", ("0", "1")) == "1"
            socket = await self._sockets.serve(receive, send, identity.name, is_batched=is_batched)
            text = f"{socket.accepted} jobs accepted, {socket.refused} refused"
            self._replay_guard.put_down(scope, self._operation, 101, text=text)


def needs_websocket(operation: ApiOperation) -> Callable[[Request], object]:
    """What a plain request is told where only a WebSocket is served."""

    async def answer(request: Request) -> Response:
        text = f"{operation.path} is a WebSocket: ask for an upgrade of the connection"
        if operation.name == "submit_frames":
            text += ", or submit one job with POST /v1/jobs"
        problem = Problem("about:blank", "Upgrade required", 426, text, request.url.path)
        return problem_answer(problem, {"upgrade": "websocket", "connection": "upgrade"})

    return answer


@contextlib.asynccontextmanager
async def denying(
    websocket: WebSocket, operation: ApiOperation, replay_guard: ApiDoor, what: str
) -> AsyncIterator[None]:
    """An error refuses the WebSocket. One that comes after it was accepted, its close frame has told."""
    try:
        yield
    except TalkaError as error:
        answer = answer_to_error(error, websocket.url.path)
        replay_guard.put_down(websocket.scope, operation, answer.status_code, text=str(error))
        with contextlib.suppress(WebSocketDisconnect):
            await websocket.send_denial_response(answer)
    except Exception:
        logger.exception("%s failed", what)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it was accepted, and closed then
            await websocket.send_denial_response(internal_error(websocket.url.path))


async def no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    detail = f"{request.url.path} is not there" if error.status_code == 404 else f"only {allowed} can be done here"
    problem = Problem("about:blank", error.detail, error.status_code, detail, request.url.path)
    return problem_answer(problem, error.headers)


def internal_error(path: str) -> Response:
    return problem_answer(Problem("about:blank", "Internal error", 500, "the node's log says more", path))
