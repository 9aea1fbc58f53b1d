"""Workers, the cluster and this node itself over HTTP."""

import re
from typing import Final

from starlette.responses import PlainTextResponse, Response

from talka.client.requests import NoSuchWorker
from talka.errors import Unavailable
from talka.web.answers import Asked, json_answer
from talka.web.audit import AuditPage
from talka.web.bodies import page_in, read_body
from talka.web.openapi import document

WORKER_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,256}")
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


async def workers(asked: Asked) -> Response:
    return json_answer(await asked.control.workers())


async def drain(asked: Asked) -> Response:
    name: str = asked.request.path_params["name"]
    await read_body(asked.request, 0)
    if not WORKER_NAME.fullmatch(name):
        raise NoSuchWorker.named(repr(name[:64]))
    return json_answer(await asked.control.drain(name))


async def cluster(asked: Asked) -> Response:
    return json_answer(await asked.control.cluster())


async def audit(asked: Asked) -> Response:
    _, limit = page_in(asked.request)
    return json_answer(AuditPage([] if asked.audit is None else await asked.audit.tail(limit)))


async def openapi(asked: Asked) -> Response:
    return Response(document(), media_type="application/json")


async def livez(asked: Asked) -> Response:
    return PlainTextResponse("alive\n")


async def readyz(asked: Asked) -> Response:
    if problem := asked.control.is_ready():
        raise Unavailable(problem)
    return PlainTextResponse("ready\n")


async def metrics(asked: Asked) -> Response:
    return Response(asked.control.metrics(), headers={"content-type": PROMETHEUS})
