"""What every node answers over HTTP, also one that has no API: does it live, is it ready, what has it counted."""

from collections.abc import Callable, Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from talka.errors import Unavailable
from talka.web.answers import answer_to_error
from talka.web.app import Gate, no_route
from talka.web.auth import LOOPBACK_NAMES, Tokens
from talka.web.cluster import PROMETHEUS


def make_health_app(
    why_not_ready: Callable[[], str],
    metrics: Callable[[], str],
    *,
    auth: Tokens | None = None,
    allowed_hosts: Collection[str] = (),
) -> Starlette:
    """`/livez` and `/readyz` are for everybody, `/metrics` for whoever has a token, where there are any."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(request: Request) -> Response:
        if problem := why_not_ready():
            return answer_to_error(Unavailable(problem), request.url.path)
        return PlainTextResponse("ready\n")

    async def counted(request: Request) -> Response:
        return Response(metrics(), headers={"content-type": PROMETHEUS})

    hosts = {name.lower() for name in allowed_hosts} | (set(LOOPBACK_NAMES) if auth is None else set())
    app = Starlette(
        routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", counted)],
        middleware=[Middleware(Gate, auth=auth, hosts=frozenset(hosts))],
        exception_handlers={HTTPException: no_route},
    )
    app.router.redirect_slashes = False
    return app
