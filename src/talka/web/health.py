"""What every node answers over HTTP, also one that has no API: does it live, is it ready, what has it counted."""

from collections.abc import Callable, Collection

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from talka.errors import Unavailable
from talka.web.answers import answer_to_error
from talka.web.app import gated
from talka.web.auth import Tokens
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

    return gated([Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", counted)], auth, allowed_hosts)
