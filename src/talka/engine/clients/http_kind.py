"""HTTP's row in the table of clients: which engine it has, how its arguments are prepared, how it is rehearsed."""

import asyncio
from typing import Final, cast

from talka.engine.calls import ExchangeFailed
from talka.engine.clients.http import HTTPEngine
from talka.engine.clients.port import ClientKind, ClientParts, Rehearsal
from talka.engine.clients.requests import (
    prepare_auth,
    prepare_cookies,
    prepare_data,
    prepare_file,
    prepare_headers,
    prepare_params,
)
from talka.engine.clients.urls import parse_url
from talka.version import VERSION
from talka.work.arguments import URL
from talka.work.dsl import Workflow, step
from talka.work.responses import HTTPResponse, shown_body

ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class Partner(asyncio.Protocol):
    """The server of the rehearsal: the same answer to whatever comes."""

    _transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of no class of asyncio's

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)


def rehearsed(host: str, port: int) -> type[Workflow]:
    class Rehearsed(Workflow):
        @step()
        async def get(self, url: URL = f"http://{host}:{port}/") -> HTTPResponse:
            return await self.client.http.get(url)

    return Rehearsed


def engine_class(*, is_native: bool) -> type[HTTPEngine]:
    if not is_native:
        return HTTPEngine
    from talka.engine.clients.native_http import NativeHTTPEngine  # the extension need not be there

    return NativeHTTPEngine


def new_engine(parts: ClientParts) -> HTTPEngine:
    trace = parts.trace

    def told(answer: HTTPResponse | ExchangeFailed, payload: bytes) -> None:
        assert trace is not None
        trace(sent_lines(payload), answer)

    kind = engine_class(is_native=parts.is_native)
    return kind(parts.exchanges, version=VERSION, verify=parts.verify, trace=None if trace is None else told)


def sent_lines(payload: bytes) -> list[str]:
    """A request as people read it: its head, and the beginning of its body."""
    head, _, body = payload.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    return [*lines, shown_body(body)] if body else lines


HTTP: Final = ClientKind(
    new_engine,
    encoders={
        "url": parse_url,
        "headers": prepare_headers,
        "data": prepare_data,
        "params": prepare_params,
        "cookies": prepare_cookies,
        "auth": prepare_auth,
        "file": prepare_file,
    },
    rehearsal=Rehearsal(Partner, rehearsed),
)
