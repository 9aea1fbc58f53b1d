"""The API as an application: who comes in, which handler answers, and what becomes of errors."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from talka.client.requests import Control, Malformed, Problem, TooBusy
from talka.errors import TalkaError, Unavailable
from talka.web import cluster, jobs
from talka.web.answers import Asked, Handler, answer_to_error, problem_answer
from talka.web.auth import LOCAL, LOOPBACK_NAMES, Identity, Tokens, check_host, check_origin
from talka.web.events import Watches
from talka.web.operations import OPERATIONS, PUBLIC, Operation

Limiter: TypeAlias = Callable[[str, str], float]
"""(operation, client) to seconds to wait; 0: go on."""

IDENTITY: Final = "talka.identity"
CALL_TIMEOUT_S: Final = 30
UPLOAD_TIMEOUT_S: Final = 180
HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

logger = logging.getLogger("talka.web")


def no_limit(operation: str, client: str) -> float:
    return 0.0


def make_app(
    control: Control,
    *,
    auth: Tokens | None = None,
    allowed_hosts: Collection[str] = (),
    limiter: Limiter = no_limit,
) -> Starlette:
    """The API of one node.

    Without `auth` whoever reaches it may do everything, so it must listen on loopback (`server.listen` sees to that)
    and answers only to loopback's names and `allowed_hosts`. With `auth` host names are checked when some are given.
    """
    hosts = {name.lower() for name in allowed_hosts}
    if auth is None:
        hosts.update(LOOPBACK_NAMES)
    watches = Watches(control)
    handlers: dict[str, Handler] = {
        "put_bundle": jobs.Uploads().put_bundle,
        "has_bundle": jobs.has_bundle,
        "submit": jobs.submit,
        "jobs": jobs.list_jobs,
        "job": jobs.job,
        "order": jobs.order,
        "cancel": jobs.cancel,
        "result": jobs.result,
        "workers": cluster.workers,
        "drain": cluster.drain,
        "cluster": cluster.cluster,
        "openapi": cluster.openapi,
        "livez": cluster.livez,
        "readyz": cluster.readyz,
        "metrics": cluster.metrics,
    }
    by_path: dict[str, dict[str, Operation]] = {}
    routes: list[BaseRoute] = []
    for operation in OPERATIONS:
        if operation.method == "WEBSOCKET":
            routes.append(WebSocketRoute(operation.path, watch_endpoint(watches, operation, limiter)))
        else:
            by_path.setdefault(operation.path, {})[operation.method] = operation
    for path, by_method in by_path.items():
        routes.append(Route(path, endpoint(control, by_method, handlers, limiter), methods=list(by_method)))
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, auth=auth, hosts=frozenset(hosts))],
        exception_handlers={HTTPException: no_route},
    )
    app.router.redirect_slashes = False
    return app


class Gate:
    """Lets in whoever may come in, before anything else of a request is looked at, and marks every answer."""

    def __init__(self, app: ASGIApp, auth: Tokens | None, hosts: frozenset[str]) -> None:
        self._app = app
        self._auth = auth
        self._hosts = hosts

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
            await refuse(scope, receive, send_marked, answer_to_error(error, scope["path"]))
            return
        await self._app(scope, receive, send_marked)

    def _identify(self, scope: Scope) -> Identity:
        if scope["path"] in PUBLIC:
            return Identity("", "viewer")
        headers: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in (b"host", b"origin", b"authorization"):
                if name in headers:
                    raise Malformed(f"there is more than one {name.decode()} header")
                headers[name] = value.decode("latin-1")
        host = headers.get(b"host", "")
        if self._hosts:
            check_host(host, self._hosts)
        if origin := headers.get(b"origin"):
            scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
            check_origin(origin, host, scheme)
        return LOCAL if self._auth is None else self._auth.identify(headers.get(b"authorization", ""))


async def refuse(scope: Scope, receive: Receive, send: Send, answer: Response) -> None:
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)


def check_call(scope: Scope, operation: Operation, limiter: Limiter) -> Identity:
    identity: Identity = scope[IDENTITY]
    if operation.role is not None:
        identity.check(operation.role, operation.does)
        client = scope.get("client") or ("", 0)
        wait_s = limiter(operation.name, identity.name or client[0])
        if wait_s > 0:
            raise TooBusy(f"too many requests to {operation.does}: try again later", wait_s)
    return identity


def endpoint(
    control: Control, by_method: dict[str, Operation], handlers: dict[str, Handler], limiter: Limiter
) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        operation = by_method.get(request.method) or by_method["GET"]  # a HEAD is a GET whose body is left out
        timeout_s = UPLOAD_TIMEOUT_S if operation.name == "put_bundle" else CALL_TIMEOUT_S
        try:
            identity = check_call(request.scope, operation, limiter)
            async with asyncio.timeout(timeout_s):
                return await handlers[operation.name](Asked(control, request, identity))
        except TalkaError as error:
            return answer_to_error(error, request.url.path)
        except TimeoutError:
            late = Unavailable(f"nobody who could {operation.does} answered within {timeout_s} s: try again")
            return answer_to_error(late, request.url.path)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        except Exception:
            logger.exception("%s %s failed", request.method, request.url.path)
            return internal_error(request.url.path)

    return answer


def watch_endpoint(watches: Watches, operation: Operation, limiter: Limiter) -> Callable[[WebSocket], object]:
    async def watch(websocket: WebSocket) -> None:
        try:
            check_call(websocket.scope, operation, limiter)
            await watches.watch(websocket)
        except TalkaError as error:
            # Only before the first update; afterwards the close frame has told it.
            with contextlib.suppress(WebSocketDisconnect):
                await websocket.send_denial_response(answer_to_error(error, websocket.url.path))
        except Exception:
            logger.exception("watching %s failed", websocket.url.path)
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it was accepted, and closed then
                await websocket.send_denial_response(internal_error(websocket.url.path))

    return watch


async def no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    detail = f"{request.url.path} is not there" if error.status_code == 404 else f"only {allowed} can be done here"
    problem = Problem("about:blank", error.detail, error.status_code, detail, request.url.path)
    return problem_answer(problem, error.headers)


def internal_error(path: str) -> Response:
    return problem_answer(Problem("about:blank", "Internal error", 500, "the node's log says more", path))
