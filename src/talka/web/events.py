"""Watching a job over a WebSocket."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from talka.client.kinds import JobDirectory, KindUpdate
from talka.client.requests import TooBusy
from talka.errors import Invalid, TalkaError, Unavailable
from talka.web.api_limits import API_LIMITS, ApiLimits
from talka.web.bodies import checked_job_id

REASON_LIMIT_BYTES: Final = 120
"""A close frame has no room for more."""

DONE: Final = 1000
BROKEN: Final = 1011
GO_ELSEWHERE: Final = 1012
TRY_LATER: Final = 1013


class EventWatches:
    def __init__(self, limits: ApiLimits = API_LIMITS) -> None:
        self._limits = limits
        self._open = 0

    async def watch(self, websocket: WebSocket, kinds: JobDirectory) -> None:
        """Until the last update, or until the watcher goes. Errors before the first update are the caller's to
        tell."""
        job_id = checked_job_id(websocket.path_params["id"])
        steps = choice(websocket, "steps", ("0", "1"))
        format = choice(websocket, "format", ("json", "msgpack"))
        if self._open >= self._limits.watchers:
            raise TooBusy(f"{self._limits.watchers} watchers are here already: ask another manager", 5)
        self._open += 1
        try:
            kind = await kinds.of(job_id)
            async with contextlib.aclosing(kind.watch(job_id, steps == "1")) as updates:
                await serve_updates(websocket, updates, self._limits, is_text=format == "json")
        finally:
            self._open -= 1


async def serve_updates(
    websocket: WebSocket, updates: AsyncGenerator[KindUpdate, None], limits: ApiLimits, *, is_text: bool
) -> None:
    try:
        async with asyncio.timeout(limits.first_s):
            first = await anext(updates, None)
    except TimeoutError:
        raise Unavailable(f"nothing was heard of the job within {limits.first_s} s") from None
    if first is None:
        raise Unavailable("nobody leads the job at the moment")
    try:
        await websocket.accept()
    except WebSocketDisconnect:
        return
    # The reader ends when the watcher goes; without it a watch of a quiet job would outlive its watcher.
    sender = asyncio.create_task(send_updates(websocket, first, updates, limits.send_s, is_text=is_text))
    reader = asyncio.create_task(read_until_gone(websocket))
    try:
        await asyncio.wait({sender, reader}, return_when=asyncio.FIRST_COMPLETED)
        is_gone = reader.done()
    finally:
        sender.cancel()
        reader.cancel()
        outcome, _ = await asyncio.gather(sender, reader, return_exceptions=True)
    if is_gone or isinstance(outcome, WebSocketDisconnect):
        return
    code, reason = close_of(outcome)
    with contextlib.suppress(WebSocketDisconnect, TimeoutError):
        async with asyncio.timeout(limits.close_s):
            await websocket.close(code, reason)
    if isinstance(outcome, Exception) and code == BROKEN:
        raise outcome


async def send_updates(
    websocket: WebSocket, first: KindUpdate, updates: AsyncGenerator[KindUpdate, None], send_s: float, *, is_text: bool
) -> bool:
    """Whether the final update was sent."""
    update: KindUpdate | None = first
    while update is not None:
        async with asyncio.timeout(send_s):
            if is_text:
                await websocket.send_text(msgspec.json.encode(update.content).decode())
            else:
                await websocket.send_bytes(msgspec.msgpack.encode(update.content))
        if update.is_last:
            return True
        update = await anext(updates, None)
    return False


async def read_until_gone(websocket: WebSocket) -> None:
    """What a watcher says means nothing."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


def close_of(outcome: bool | BaseException) -> tuple[int, str]:
    match outcome:
        case True:
            return DONE, ""
        case False:
            return GO_ELSEWHERE, "the watch was broken off"
        case Unavailable() | TimeoutError():
            return TRY_LATER, shortened(str(outcome))
        case TalkaError():
            return GO_ELSEWHERE, shortened(str(outcome))
        case _:
            return BROKEN, "internal error"


def shortened(text: str) -> str:
    return text.encode()[:REASON_LIMIT_BYTES].decode(errors="ignore")


def choice(websocket: WebSocket, name: str, choices: tuple[str, ...]) -> str:
    """The first is the default."""
    value = websocket.query_params.get(name, choices[0])
    if value not in choices:
        raise Invalid(f"{name} is {' or '.join(choices)}, not {value[:50]!r}")
    return value
