"""Workers, the cluster and this node itself over HTTP."""

import re
from typing import Final

from starlette.responses import PlainTextResponse, Response

from talka.client.requests import NoSuchWorker
from talka.errors import Unavailable
from talka.web.answers import ApiQuestion
from talka.web.audit import AuditPage
from talka.web.bodies import page_in, read_body
from talka.web.openapi import document
from talka.wire.views import WorkerView

WORKER_NAME: Final = re.compile(r"[A-Za-z0-9._:-]{1,256}")
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


async def worker(asked: ApiQuestion) -> WorkerView:
    return await asked.control.worker(await _named(asked))


async def drain(asked: ApiQuestion) -> WorkerView:
    return await asked.control.drain(await _named(asked))


async def undrain(asked: ApiQuestion) -> WorkerView:
    return await asked.control.undrain(await _named(asked))


async def _named(asked: ApiQuestion) -> str:
    name: str = asked.request.path_params["name"]
    await read_body(asked.request, 0)
    if not WORKER_NAME.fullmatch(name):
        raise NoSuchWorker.named(repr(name[:64]))
    return name


async def audit(asked: ApiQuestion) -> AuditPage:
    _, limit = page_in(asked.request)
    return AuditPage([] if asked.audit is None else await asked.audit.tail(limit))


async def openapi(asked: ApiQuestion) -> Response:
    return Response(document(), media_type="application/json")


async def livez(asked: ApiQuestion) -> Response:
    return PlainTextResponse("alive\n")


async def readyz(asked: ApiQuestion) -> Response:
    if problem := asked.control.is_ready():
        raise Unavailable(problem)
    return PlainTextResponse("ready\n")


async def metrics(asked: ApiQuestion) -> Response:
    return Response(asked.control.metrics(), headers={"content-type": PROMETHEUS})
