"""Many submissions on one WebSocket: frames go out together, answers come back as they are done."""

import asyncio
import contextlib
import ssl
from typing import Any, Final, cast

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from talka.client.calls import FRAME_LIMIT_BYTES, OPEN_S, ApiCalls, Patience, refusal_in, websocket_uri
from talka.client.dags import SUBMIT_FRAME_LIMIT_BYTES, SUBMITS_LIMIT, SubmitAnswer, SubmitFrame
from talka.client.http import ApiAddress, ApiSilent, reached
from talka.client.requests import NotAuthorised, TooLarge, error_of
from talka.clock import monotonic_ns
from talka.errors import Invalid, Superseded, Unavailable
from talka.work.dags.dag import DagSpec, TaskSpec

PATH: Final = "/v1/jobs/submit?batch=1"
FLUSH_FRAMES: Final = 64
CLOSE_S: Final = 1.0
SILENT_S: Final = 30.0
"""A manager that pings so seldom is gone: it does every 10 s."""

_encoder = msgspec.json.Encoder()
_answers: msgspec.json.Decoder[list[SubmitAnswer]] = msgspec.json.Decoder(list[SubmitAnswer])


class Submitting:
    """`async with` opens it, and waits at its end until every job is taken or refused, and has ended where `run` gave a
    future of that. Whoever does not want one any more cancels it."""

    def __init__(self, calls: "ApiCalls", *, submits_limit: int = SUBMITS_LIMIT, silent_s: float = SILENT_S) -> None:
        self._calls = calls
        self._submits_limit = submits_limit
        self._silent_s = silent_s
        self._connection: SubmitConnection | None = None

    async def __aenter__(self) -> "Submitting":
        calls = self._calls
        await calls.learn()
        patience = Patience(calls.question_s)
        while True:
            address, asked_at = calls.next_address, monotonic_ns()
            try:
                await calls.prove(address)
                self._connection = await connected(
                    address, calls.headers, calls.tls, self._submits_limit, self._silent_s
                )
                return self
            except NotAuthorised:
                raise
            except (Unavailable, Superseded) as error:
                await calls.try_next(address, patience, error, asked_at)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None
        if error is None:
            await connection.drain()
            await connection.drain_ends()
        await connection.close()

    async def submit(self, what: DagSpec | TaskSpec, key: str = "") -> "asyncio.Future[SubmitAnswer]":
        """What becomes of a job, or of a job of one task. Waits only while too many are without an answer.

        With a `key` it may be submitted again when the connection broke: the same spec with the same key is the same
        job.
        """
        if self._connection is None:
            raise Invalid("this was closed: open_submit opens another")
        answer, _ = await self._connection.submit(what, key)
        return answer

    async def run(self, what: DagSpec | TaskSpec, key: str = "") -> "asyncio.Future[SubmitAnswer]":
        """The same, but the answer is that of its end: with its last state and its tasks by state."""
        if self._connection is None:
            raise Invalid("this was closed: open_submit opens another")
        _, end = await self._connection.submit(what, key, tell_end=True)
        assert end is not None
        return end

    async def drain(self) -> None:
        """Until every submission was answered."""
        if self._connection is not None:
            await self._connection.drain()


async def connected(
    address: ApiAddress, headers: dict[str, str], tls: ssl.SSLContext | None, submits_limit: int, silent_s: float
) -> "SubmitConnection":
    loop = asyncio.get_running_loop()
    encrypted = tls if address.scheme == "https" else None
    connecting = loop.create_connection(
        lambda: SubmitConnection(address, PATH, headers, submits_limit, silent_s),
        address.host,
        address.port,
        ssl=encrypted,
    )
    _, connection = await reached(address, connecting)
    try:
        await connection.open()
    except BaseException:
        connection.abort()
        raise
    return connection


class SubmitConnection(asyncio.Protocol):
    def __init__(
        self, address: ApiAddress, path: str, headers: dict[str, str], submits_limit: int, silent_s: float
    ) -> None:
        self._address = address
        self._submits_limit = submits_limit
        self._silent_s = silent_s
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._protocol = ClientProtocol(parse_uri(websocket_uri(address, path)), max_size=FRAME_LIMIT_BYTES)
        self._headers = headers
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[SubmitAnswer]] = {}
        self._ends: dict[int, asyncio.Future[SubmitAnswer]] = {}
        self._sent = 0
        self._unsent = 0
        self._has_turn = False
        self._has_room = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._message: list[bytes] = []

    # -- what users do

    async def submit(
        self, what: DagSpec | TaskSpec, key: str, *, tell_end: bool = False
    ) -> "tuple[asyncio.Future[SubmitAnswer], asyncio.Future[SubmitAnswer] | None]":
        """Its answer; with `tell_end` also that of its end, which is the same error where the job is refused."""
        while len(self._waiting) >= self._submits_limit or not self._writable.is_set():
            self._flush()
            await self._room()
        if self._error is not None:
            raise self._error
        if isinstance(what, TaskSpec):
            frame = SubmitFrame(task=what, key=key, tell_end=tell_end)
        elif what.schedule:
            raise Invalid(f"{what.name} has a schedule: put_schedule takes it")
        else:
            frame = SubmitFrame(
                name=what.name,
                tasks=what.tasks,
                settings=what.settings,
                key=key,
                params=what.params,
                values=what.values,
                bundle=what.bundle,
                wait_for_workers=what.wait_for_workers,
                tell_end=tell_end,
            )
        content = _encoder.encode(frame)
        if len(content) > SUBMIT_FRAME_LIMIT_BYTES:
            raise TooLarge(
                f"the job takes {len(content)} bytes: at most {SUBMIT_FRAME_LIMIT_BYTES} are read of a frame"
            )
        answer: asyncio.Future[SubmitAnswer] = self._loop.create_future()
        self._waiting[self._sent] = answer
        end: asyncio.Future[SubmitAnswer] | None = None
        if tell_end:
            end = self._ends[self._sent] = self._loop.create_future()
        self._sent += 1
        self._protocol.send_text(content)
        self._unsent += 1
        if not self._has_turn:
            # The first of a turn of the loop goes out at once, those that follow it in the same turn together.
            self._has_turn = True
            self._loop.call_soon(self._end_turn)
            self._flush()
        elif self._unsent >= FLUSH_FRAMES:
            self._flush()
        return answer, end

    async def drain(self) -> None:
        self._flush()
        while self._waiting:
            await self._room()

    async def drain_ends(self) -> None:
        """Until all ends that are wanted were told. A connection that breaks, or is silent for too long, fails them."""
        if wanted := [end for end in self._ends.values() if not end.done()]:
            await asyncio.wait(wanted)

    async def close(self) -> None:
        assert self._transport is not None
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._write()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._closed)
        self._transport.abort()
        await self._closed

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _room(self) -> None:
        self._has_room.clear()
        await self._has_room.wait()

    # -- what the connection does

    async def open(self) -> None:
        """Raises what the manager refused it with."""
        try:
            async with asyncio.timeout(OPEN_S):
                await self._opened
        except TimeoutError:
            raise ApiSilent(f"{self._address} did not answer within {OPEN_S:g} s") from None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        request = self._protocol.connect()
        request.headers.update(self._headers)
        self._protocol.send_request(request)
        self._write()
        self._timer = self._loop.call_later(self._silent_s, self._check)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._on_response(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._write()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._on_response(event)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._error = ApiSilent(
            f"{self._address} broke the connection: {error or 'it was closed'}. What has no answer may have been taken:"
            " submitted again under its key it is the same job"
        )
        self._writable.set()
        self._has_room.set()
        waiting = [*self._waiting.values(), *self._ends.values()]
        self._waiting, self._ends = {}, {}
        for answer in waiting:
            if not answer.done():
                answer.set_exception(self._error)
                answer.exception()  # whoever does not look at it does not want to know
        if not self._opened.done():
            self._opened.set_exception(self._error)
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self._has_room.set()

    def _on_response(self, response: Response) -> None:
        refusal = self._protocol.handshake_exc
        if refusal is None:
            if not self._opened.done():
                self._opened.set_result(None)
            return
        if self._opened.done():
            return
        if isinstance(refusal, InvalidStatus):
            self._opened.set_exception(refusal_in(self._address, response))
        else:
            self._opened.set_exception(ApiSilent(f"{self._address} does not answer as a manager does: {refusal}"))

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._message.append(bytes(frame.data))
        if not frame.fin:
            return
        content, self._message = b"".join(self._message), []
        try:
            answers = _answers.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._fail(f"sent answers that do not match the API: {error}")
            return
        for told in answers:
            if not told.has_ended:
                self._answer(self._waiting.pop(told.n, None), told)
            if told.has_ended or told.problem is not None:
                self._answer(self._ends.pop(told.n, None), told)
        self._has_room.set()

    def _answer(self, answer: "asyncio.Future[SubmitAnswer] | None", told: SubmitAnswer) -> None:
        if answer is None or answer.done():
            return
        if told.problem is None:
            answer.set_result(told)
        else:
            answer.set_exception(error_of(told.problem))
            answer.exception()

    def _fail(self, what: str) -> None:
        assert self._transport is not None
        self._protocol.fail(1002, what[:100])
        self._write()
        self._transport.abort()

    def _end_turn(self) -> None:
        self._has_turn = False
        self._flush()

    def _flush(self) -> None:
        if self._unsent:
            self._unsent = 0
            self._write()

    def _write(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        output = self._protocol.data_to_send()
        content = b"".join(output)
        if content:
            transport.write(content)
        if output and not output[-1]:  # the protocol's word for the end
            transport.close()

    def _check(self) -> None:
        assert self._transport is not None
        if self._loop.time() - self._heard_at >= self._silent_s:
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(self._silent_s / 2, self._check)
