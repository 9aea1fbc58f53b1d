"""Dag jobs that arrive in pieces: one job as a task a line, or many jobs as a frame each on a WebSocket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Send

from talka.client.dag_kind import DagKind
from talka.client.dags import NO_SETTINGS, PART_BYTES, PART_TASKS, DagControl, DagEnd, SubmitAnswer, SubmitFrame
from talka.client.kinds import JobDirectory
from talka.client.requests import NoDags, TooBusy, TooLarge, TooSlow, problem_of
from talka.errors import TalkaError, Unavailable
from talka.web.answers import ApiQuestion, submitted, waited
from talka.web.api_limits import API_LIMITS, ApiLimits
from talka.web.bodies import key_in, wait_in
from talka.wire.task_views import DagFacts
from talka.work.dags.dag import (
    TASKS_LIMIT,
    BadDag,
    DagSpec,
    TaskSpec,
    check_name,
    check_settings,
    decode_head,
    decode_task,
    decoded,
)

TURN: Final = 64
"""Frames that are taken one after the other."""
SEND_TIMEOUT_S: Final = 20
"""Who has taken no answer for so long is gone, or as good as gone."""

Found = TypeVar("Found")
_tasks: msgspec.json.Decoder[TaskSpec] = msgspec.json.Decoder(TaskSpec)
_frames: msgspec.json.Decoder[SubmitFrame] = msgspec.json.Decoder(SubmitFrame)
_encoder = msgspec.json.Encoder()


# One job, a task a line.


class Part(NamedTuple):
    number: int
    """Of its first line, from 1."""
    lines: list[bytes]

    def number_of(self, index: int) -> int:
        """Of the line of a task of this part. Empty lines hold none."""
        filled = [number for number, line in enumerate(self.lines, self.number) if line.strip()]
        return filled[index] if 0 <= index < len(filled) else self.number


async def submit_stream(asked: ApiQuestion) -> Response:
    """The first line is the job without its tasks. Nothing of it is kept unless everything is right."""
    dags, key, wait_s = asked.dag_control, key_in(asked.request), wait_in(asked.request, asked.limits.wait_s)
    draft = ""
    is_ended = False
    try:
        async for part in parts_of(asked.request, asked.limits):
            if not draft:
                head_at = next((at for at, line in enumerate(part.lines) if line.strip()), None)
                if head_at is None:
                    continue
                head = at_line(part.number + head_at, decode_head, part.lines[head_at])
                draft = await dags.begin_dag(head, key, asked.identity.name)
                part = Part(part.number + head_at + 1, part.lines[head_at + 1 :])
            if tasks := tasks_in(part):
                await add(dags, draft, part, tasks, asked.limits.add_s)
        if not draft:
            raise BadDag('the body is empty: the first line is the job, such as {"kind": "dag", "name": "nightly"}')
        facts = await dags.end_dag(draft)
        is_ended = True
    finally:
        if draft and not is_ended:
            with contextlib.suppress(TalkaError):
                await dags.drop_dag(draft)
    return submitted(await waited(asked, facts, wait_s))


async def add(dags: DagControl, draft: str, part: Part, tasks: Sequence[TaskSpec], add_s: float) -> None:
    """Waits as long as the store is behind: nothing more is read of the body meanwhile."""
    try:
        async with asyncio.timeout(add_s):
            await dags.add_tasks(draft, tasks)
    except TimeoutError:
        raise Unavailable(f"the store took no tasks for {add_s} s: try again later") from None
    except BadDag as error:
        number = part.number_of(error.index)
        raise type(error)(f"line {number}: {error}", error.task, index=error.index, field=error.field) from None


async def parts_of(request: Request, limits: ApiLimits) -> AsyncIterator[Part]:
    chunks = request.stream()
    rest, number, waiting, waiting_bytes = b"", 1, list[bytes](), 0
    while True:
        try:
            async with asyncio.timeout(limits.chunk_s):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise TooSlow("the body of the request did not arrive in time: nothing of it is kept") from None
        if chunk is None:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > limits.line_bytes:
            raise TooLarge(f"line {number + len(waiting) + len(lines)} has more than {limits.line_bytes} bytes")
        waiting += lines
        waiting_bytes += len(chunk)
        while len(waiting) >= PART_TASKS or (waiting and waiting_bytes >= PART_BYTES):
            part, waiting = Part(number, waiting[:PART_TASKS]), waiting[PART_TASKS:]
            number += len(part.lines)
            waiting_bytes = 0
            if number > limits.lines:
                raise TooLarge(f"the body has more than {limits.lines} lines: a job has at most {TASKS_LIMIT} tasks")
            yield part
    yield Part(number, [*waiting, rest])


def tasks_in(part: Part) -> list[TaskSpec]:
    decode = _tasks.decode
    try:
        if all(map(bytes.isascii, part.lines)):
            return [decode(line) for line in part.lines if line.strip()]
    except (msgspec.MsgspecError, RecursionError):
        pass
    # Slower, and knows what is wrong and where.
    return [at_line(n, decode_task, line) for n, line in enumerate(part.lines, part.number) if line.strip()]


def at_line(number: int, decode: Callable[[bytes], Found], line: bytes) -> Found:
    try:
        return decode(line)
    except TalkaError as error:
        field = error.field if isinstance(error, BadDag) else ""
        raise BadDag(f"line {number}: {error}", field=field) from None


# Many jobs, a frame each.


class SubmitSockets:
    """WebSockets on which jobs are submitted. Frames are not answered in turn but as they are done."""

    def __init__(self, kinds: JobDirectory, limits: ApiLimits = API_LIMITS) -> None:
        self._kinds = kinds
        self._limits = limits
        self._open = 0

    async def serve(self, receive: Receive, send: Send, by: str, *, is_batched: bool) -> "SubmitSocket":
        kind = self._kinds.port(DagKind)
        if kind is None:
            raise NoDags.here()
        if self._open >= self._limits.sockets:
            raise TooBusy(f"{self._limits.sockets} submit here already: try again later", 5)
        self._open += 1
        try:
            socket = SubmitSocket(kind.dags, receive, send, by, self._limits, is_batched=is_batched)
            await socket.serve()
            return socket
        finally:
            self._open -= 1


class SubmitSocket:
    """One of them. It reads no further while too many wait for their answer, or to be told it, or for the end of their
    job."""

    def __init__(
        self, dags: DagControl, receive: Receive, send: Send, by: str, limits: ApiLimits, *, is_batched: bool
    ) -> None:
        self._limits = limits
        self.frames = 0
        self.accepted = 0
        self.refused = 0
        self._dags = dags
        self._receive = receive
        self._send = send
        self._by = by
        self._is_batched = is_batched
        self._open = 0
        self._ends: dict[int, Callable[[], None]] = {}
        """By the number of their frame, jobs whose end is waited for: how to give that up."""
        self._is_over = False
        """Jobs that are taken now are told to nobody."""
        self._answers: list[bytes] = []
        self._has_answers = asyncio.Event()
        self._has_room = asyncio.Event()

    async def serve(self) -> None:
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept"})
        sender = asyncio.create_task(self._send_answers())
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait({sender, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sender.cancel()
            reader.cancel()
            ends = await asyncio.gather(sender, reader, return_exceptions=True)
            self._is_over = True
            for give_up in self._ends.values():
                give_up()
        for end in ends:
            # Whoever is gone hears nothing any more: what was taken is on disk.
            if isinstance(end, Exception) and not isinstance(end, OSError | TimeoutError):
                raise end

    async def _read(self) -> None:
        receive, submit, by, done = self._receive, self._dags.submit_soon, self._by, self._done
        submits_limit, ends_limit = self._limits.submits, self._limits.ends
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                return
            n = self.frames
            self.frames = n + 1
            self._open += 1
            try:
                key, spec, tell_end = submission_in(message.get("text") or message.get("bytes") or b"")
                submit(spec, key, by, partial(done, n, tell_end), is_brief=True)
            except TalkaError as error:
                done(n, False, error)
            if not n % TURN:
                await asyncio.sleep(0)  # frames that lie ready do not make others wait
            while self._open >= submits_limit or len(self._ends) >= ends_limit:
                self._has_room.clear()
                await self._has_room.wait()

    def _done(self, n: int, tell_end: bool, answer: DagFacts | TalkaError) -> None:
        if not isinstance(answer, DagFacts):
            self.refused += 1
            self._answer(SubmitAnswer(n, problem=problem_of(answer)))
            return
        self.accepted += 1
        self._answer(SubmitAnswer(n, answer.id, answer.state))
        if tell_end and not self._is_over:
            self._ends[n] = self._dags.at_end(answer.id, partial(self._ended, n, answer.id))

    def _ended(self, n: int, id: str, end: DagEnd | TalkaError) -> None:
        del self._ends[n]
        self._open += 1  # until it is sent, as the answer before
        if isinstance(end, DagEnd):
            self._answer(SubmitAnswer(n, id, end.state, None, True, end.reason, end.counts))
        else:
            self._answer(SubmitAnswer(n, id, problem=problem_of(end), has_ended=True))

    def _answer(self, told: SubmitAnswer) -> None:
        self._answers.append(_encoder.encode(told))
        if len(self._answers) == 1:
            self._has_answers.set()

    async def _send_answers(self) -> None:
        """What is done within one turn of the loop goes out together."""
        while True:
            await self._has_answers.wait()
            self._has_answers.clear()
            answers, self._answers = self._answers, []
            async with asyncio.timeout(SEND_TIMEOUT_S):
                if self._is_batched:
                    await self._send({"type": "websocket.send", "text": f"[{b','.join(answers).decode()}]"})
                else:
                    for answer in answers:
                        await self._send({"type": "websocket.send", "text": answer.decode()})
            self._open -= len(answers)
            self._has_room.set()


def submission_in(content: str | bytes) -> tuple[str, DagSpec, bool]:
    """Idempotency key and job of a frame, and whether its end is to be told."""
    frame = decoded(_frames, content, SubmitFrame)
    settings = frame.settings
    if settings is not NO_SETTINGS:
        check_settings(settings)
    check_name(frame.name)
    task, tasks = frame.task, frame.tasks
    if task is not None:
        if tasks:
            raise BadDag("the frame has a task and tasks: send one or the other")
        return frame.key, spec_in(frame, frame.name or task.id, (task,)), frame.tell_end
    if not tasks:
        raise BadDag("the frame has neither a task nor tasks")
    if not frame.name:
        raise BadDag("name is missing")
    return frame.key, spec_in(frame, frame.name, tasks), frame.tell_end


def spec_in(frame: SubmitFrame, name: str, tasks: tuple[TaskSpec, ...]) -> DagSpec:
    return DagSpec(
        name=name,
        tasks=tasks,
        settings=frame.settings,
        params=frame.params,
        values=frame.values,
        wait_for_workers=frame.wait_for_workers,
        bundle=frame.bundle,
    )
