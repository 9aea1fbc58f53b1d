"""Watching a job over a WebSocket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from talka.client.dags import DagControl
from talka.client.requests import Control, NoSuchJob, TooBusy
from talka.errors import Invalid, TalkaError, Unavailable
from talka.web.bodies import checked_job_id
from talka.wire.task_views import DagFacts
from talka.wire.views import JobUpdate
from talka.work.lifecycle import is_final

Updates: TypeAlias = AsyncIterator[JobUpdate] | AsyncIterator[DagFacts]

WATCHERS_LIMIT: Final = 256
FIRST_TIMEOUT_S: Final = 15
SEND_TIMEOUT_S: Final = 20
"""A watcher that has not taken an update for so long is gone, or as good as gone."""
CLOSE_TIMEOUT_S: Final = 1
REASON_LIMIT_BYTES: Final = 120
"""A close frame has no room for more."""

DONE: Final = 1000
BROKEN: Final = 1011
GO_ELSEWHERE: Final = 1012
TRY_LATER: Final = 1013


class EventWatches:
    def __init__(self, dags: DagControl | None = None) -> None:
        self._dags = dags
        self._open = 0

    async def watch(self, websocket: WebSocket, control: Control) -> None:
        """Until the final update, or until the watcher goes. Errors before the first update are the caller's to
        tell."""
        job_id = checked_job_id(websocket.path_params["id"])
        steps = choice(websocket, "steps", ("0", "1"))
        kind = choice(websocket, "format", ("json", "msgpack"))
        if self._open >= WATCHERS_LIMIT:
            raise TooBusy(f"{WATCHERS_LIMIT} watchers are here already: ask another manager", 5)
        self._open += 1
        try:
            if self._dags is not None:
                with contextlib.suppress(NoSuchJob):
                    await self._serve(websocket, self._dags.watch_dag(job_id), is_text=kind == "json")
                    return
            await self._serve(websocket, control.watch(job_id, steps == "1"), is_text=kind == "json")
        finally:
            self._open -= 1

    async def _serve(self, websocket: WebSocket, updates: Updates, *, is_text: bool) -> None:
        try:
            await serve_updates(websocket, updates, is_text=is_text)
        finally:
            close = getattr(updates, "aclose", None)
            if close is not None:
                await close()


def is_last(update: JobUpdate | DagFacts) -> bool:
    return is_final(update.state) if isinstance(update, DagFacts) else update.final


async def serve_updates(websocket: WebSocket, updates: Updates, *, is_text: bool) -> None:
    try:
        async with asyncio.timeout(FIRST_TIMEOUT_S):
            first: JobUpdate | DagFacts | None = await anext(updates, None)
    except TimeoutError:
        raise Unavailable(f"nothing was heard of the job within {FIRST_TIMEOUT_S} s") from None
    if first is None:
        raise Unavailable("nobody leads the job at the moment")
    try:
        await websocket.accept()
    except WebSocketDisconnect:
        return
    # The reader ends when the watcher goes; without it a watch of a quiet job would outlive its watcher.
    sender = asyncio.create_task(send_updates(websocket, first, updates, is_text=is_text))
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
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await websocket.close(code, reason)
    if isinstance(outcome, Exception) and code == BROKEN:
        raise outcome


async def send_updates(websocket: WebSocket, first: JobUpdate | DagFacts, updates: Updates, *, is_text: bool) -> bool:
    """Whether the final update was sent."""
    update: JobUpdate | DagFacts | None = first
    while update is not None:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            if is_text:
                await websocket.send_text(msgspec.json.encode(update).decode())
            else:
                await websocket.send_bytes(msgspec.msgpack.encode(update))
        if is_last(update):
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
