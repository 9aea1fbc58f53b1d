"""A cluster from elsewhere: the calls of `Control` over HTTP, from whichever manager answers.

Any manager answers any question, so a call that finds one dead goes to the next. Every call can be made twice without
harm: a submission carries a key under which the managers know it again.
"""

import asyncio
import contextlib
import random
import re
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
import websockets
from websockets.asyncio.client import connect as open_websocket

from talka.client.http import Address, Answer, call, parse_address, trust
from talka.client.requests import (
    PAGE_DEFAULT,
    BundleMissing,
    CancelRequest,
    ClusterUnreachable,
    ClusterView,
    JobFacts,
    JobOrder,
    JobsPage,
    JobUpdate,
    NoSuchJob,
    NoSuchWorker,
    NotAuthorised,
    NotEnded,
    Problem,
    TooBusy,
    WorkerView,
    error_of,
)
from talka.clock import SECOND, monotonic_ns
from talka.errors import Invalid, Superseded, TalkaError, Unavailable

QUESTION_S: Final = 10.0
"""How long a question is asked again before the cluster counts as unreachable."""
RESULT_S: Final = 60.0
"""The same while a job is waited for: long enough for a new leader, and for a manager to start again."""
ATTEMPT_S: Final = 35.0
"""Of one manager to one call; a little longer than it gives itself."""
UPLOAD_S: Final = 180.0
ANSWER_LIMIT_BYTES: Final = 16 * 1024 * 1024
RESULT_LIMIT_BYTES: Final = 64 * 1024 * 1024
FRAME_LIMIT_BYTES: Final = 16 * 1024 * 1024
ADDRESSES_LIMIT: Final = 32
BACKOFF_S: Final = 0.1
BACKOFF_MOST_S: Final = 2.0
LAST_TRY_S: Final = 0.5
"""With less time left there is nothing to be learned from another try."""
PING_S: Final = 5.0
"""A manager that was cut off answers no ping: a watch notices after two of these."""
OPEN_S: Final = 20.0
UPLOADS: Final = 3

NAME: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,255}")

Shape = TypeVar("Shape")
_updates: msgspec.msgpack.Decoder[JobUpdate] = msgspec.msgpack.Decoder(JobUpdate)


class Client:
    """`addresses` are HOST, HOST:PORT or URLs; one is enough, for the others are learned from the cluster.

    `token` is a bearer token; `ca` the file of the cluster's certificate authority, with which the connection is
    encrypted. A question is asked for `question_s` before the cluster counts as unreachable; while a job is waited for
    it may be away for `result_s`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str | None = None,
        ca: str | None = None,
        *,
        question_s: float = QUESTION_S,
        result_s: float = RESULT_S,
        rng: random.Random | None = None,
    ) -> None:
        if not addresses:
            raise Invalid("a client needs the address of at least one manager")
        self._addresses = [parse_address(address, is_tls=ca is not None) for address in addresses]
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls: ssl.SSLContext | None = None
        if any(address.scheme == "https" for address in self._addresses):
            self._tls = trust(ca)
        self._question_s = question_s
        self._result_s = result_s
        # How long to wait before asking again; nothing that must be unpredictable.
        self._rng = rng or random.Random()
        self._has_learned = False

    @property
    def addresses(self) -> list[str]:
        """Where managers are asked, the next one first."""
        return [str(address) for address in self._addresses]

    # Bundles and jobs.

    async def put_bundle(self, digest: str, content: bytes) -> None:
        headers = {"content-type": "application/octet-stream"}
        await self._call(
            "PUT",
            f"/v1/bundles/{digest}",
            headers=headers,
            body=content,
            patience_s=UPLOAD_S,
            attempt_s=UPLOAD_S,
        )

    async def has_bundle(self, digest: str) -> bool:
        answer = await self._call("HEAD", f"/v1/bundles/{digest}", is_fine=lambda status: status == 404)
        return answer.status == 200

    async def submit(self, order: JobOrder, key: str = "", *, bundle: bytes = b"") -> JobFacts:
        """Submit a job once, however often it must be said. `bundle` is uploaded if the managers lack it."""
        key = key or secrets.token_hex(16)
        await self._learn()
        with contextlib.suppress(NotAuthorised):  # the answer to a HEAD has no words: the order is refused with some
            if bundle and not await self.has_bundle(order.bundle.digest):
                await self.put_bundle(order.bundle.digest, bundle)
        for attempt in range(UPLOADS):
            try:
                return await self._ask("POST", "/v1/jobs", JobFacts, value=order, headers={"idempotency-key": key})
            except BundleMissing:
                # The manager that took it is gone, and with it the bundle.
                if not bundle or attempt == UPLOADS - 1:
                    raise
                await self.put_bundle(order.bundle.digest, bundle)
        raise AssertionError("the last attempt returns or raises")

    async def jobs(self, state: str = "", cursor: str = "", limit: int = PAGE_DEFAULT) -> JobsPage:
        query = {"state": state, "cursor": cursor, "limit": str(limit)}
        return await self._ask("GET", "/v1/jobs?" + urlencode({k: v for k, v in query.items() if v}), JobsPage)

    async def job(self, id: str) -> JobFacts:
        return await self._ask("GET", f"/v1/jobs/{job_part(id)}", JobFacts)

    async def order(self, id: str) -> JobOrder:
        return await self._ask("GET", f"/v1/jobs/{job_part(id)}/order", JobOrder)

    async def cancel(self, id: str, reason: str = "") -> JobFacts:
        return await self._ask("POST", f"/v1/jobs/{job_part(id)}/cancel", JobFacts, value=CancelRequest(reason))

    async def result(self, id: str) -> bytes:
        """The result document, as JSON."""
        path = f"/v1/jobs/{job_part(id)}/result"
        return (await self._call("GET", path, patience_s=self._result_s, limit_bytes=RESULT_LIMIT_BYTES)).body

    async def wait(self, id: str) -> bytes:
        """The result document, once the job has ended."""
        while True:
            async for _ in self.watch(id):
                pass
            try:
                return await self.result(id)
            except NotEnded:
                # The manager that was asked has not heard of the end yet.
                await self._pause(0)

    async def watch(self, id: str, steps: bool = False) -> AsyncGenerator[JobUpdate, None]:
        """How the job stands, up to and with its final update, whichever managers die in the meantime.

        After a new connection windows that were told already are left out.
        """
        await self._learn()
        patience = Patience(self._result_s)
        newest = -1
        while True:
            address = self._addresses[0]
            try:
                is_first = True
                async with self._websocket(address, id, steps) as websocket:
                    async for frame in websocket:
                        update = decoded_update(address, frame)
                        if is_first:
                            fresh = [window for window in update.windows if window.index > newest]
                            update = msgspec.structs.replace(update, windows=fresh)
                            is_first = False
                        newest = max([newest, *(window.index for window in update.windows)])
                        patience = Patience(self._result_s)
                        yield update
                        if update.final:
                            return
                patience.problems[str(address)] = f"{address} ended the watch"
            except NotAuthorised:
                raise
            except (Unavailable, Superseded) as error:
                patience.problems[str(address)] = str(error)
            except (OSError, TimeoutError, websockets.WebSocketException) as error:
                patience.problems[str(address)] = f"{address}: {error or type(error).__name__}"
            self._try_next(address)
            await self._pause_or_give_up(patience)

    # Workers and the cluster.

    async def workers(self) -> list[WorkerView]:
        return await self._ask("GET", "/v1/workers", list[WorkerView])

    async def drain(self, name: str) -> WorkerView:
        return await self._ask("POST", f"/v1/workers/{worker_part(name)}/drain", WorkerView)

    async def cluster(self) -> ClusterView:
        view = await self._ask("GET", "/v1/cluster", ClusterView)
        scheme = self._addresses[0].scheme
        for manager in view.managers:
            if manager.api and len(self._addresses) < ADDRESSES_LIMIT:
                address = parse_address(manager.api)._replace(scheme=scheme)
                if address not in self._addresses:
                    self._addresses.append(address)
        self._has_learned = True
        return view

    async def is_ready(self) -> str:
        """Empty, or why the first manager takes no requests."""
        answer = await self._call("GET", "/readyz", is_fine=lambda status: status == 503)
        return "" if answer.status == 200 else str(error_in(self._addresses[0], answer))

    async def metrics(self) -> str:
        return (await self._call("GET", "/metrics")).body.decode()

    # Asking until somebody answers.

    async def _learn(self) -> None:
        if not self._has_learned:
            await self.cluster()

    async def _ask(
        self,
        method: str,
        path: str,
        shape: type[Shape],
        *,
        value: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Shape:
        headers = dict(headers or {})
        body = b""
        if value is not None:
            headers["content-type"] = "application/json"
            body = msgspec.json.encode(value)
        answer = await self._call(method, path, headers=headers, body=body)
        try:
            return msgspec.json.decode(answer.body, type=shape)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid) as error:
            raise not_ours(self._addresses[0], f"answered {method} {path} with what does not fit: {error}") from None

    async def _call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        patience_s: float = 0,
        attempt_s: float = ATTEMPT_S,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
        is_fine: Callable[[int], bool] = lambda status: False,
    ) -> Answer:
        """The first answer that is one, from the manager that is then `self._addresses[0]`."""
        patience = Patience(patience_s or self._question_s)
        while True:
            address = self._addresses[0]
            try:
                answer = await call(
                    address,
                    method,
                    path,
                    headers={**self._headers, **(headers or {})},
                    body=body,
                    # One that is silent must leave time for the others.
                    timeout_s=min(attempt_s, patience.left_s, patience.whole_s / min(3, len(self._addresses))),
                    limit_bytes=limit_bytes,
                    tls=self._tls,
                )
                if answer.status < 300 or is_fine(answer.status):
                    return answer
                raise error_in(address, answer)
            except TooBusy as error:
                if error.retry_after_s >= patience.left_s:
                    raise
                patience.problems[str(address)] = str(error)
                await asyncio.sleep(error.retry_after_s)
                continue
            except NotAuthorised:
                raise
            except (Unavailable, Superseded) as error:
                patience.problems[str(address)] = str(error)
            self._try_next(address)
            await self._pause_or_give_up(patience)

    def _try_next(self, failed: Address) -> None:
        if self._addresses[0] == failed:  # else another call has moved on already
            self._addresses.append(self._addresses.pop(0))

    async def _pause_or_give_up(self, patience: "Patience") -> None:
        patience.attempts += 1
        rounds, rest = divmod(patience.attempts, len(self._addresses))
        if not rest:  # everyone was asked
            await self._pause(rounds - 1, most_s=patience.left_s)
        if patience.left_s < LAST_TRY_S:
            told = "; ".join(patience.problems.values())
            raise ClusterUnreachable(f"no manager answered within {patience.whole_s:g} s: {told}")

    async def _pause(self, attempts: int, most_s: float = BACKOFF_MOST_S) -> None:
        longest_s = min(BACKOFF_MOST_S, BACKOFF_S * 2 ** min(attempts, 10))
        await asyncio.sleep(min(most_s, self._rng.uniform(longest_s / 2, longest_s)))

    def _websocket(self, address: Address, id: str, steps: bool) -> "Watching":
        scheme = "wss" if address.scheme == "https" else "ws"
        uri = f"{scheme}://{address}/v1/jobs/{job_part(id)}/watch?format=msgpack&steps={int(steps)}"
        return Watching(uri, address, self._headers, self._tls if scheme == "wss" else None)


class Patience:
    """How long a call is tried, and what went wrong so far, last at each manager."""

    def __init__(self, whole_s: float) -> None:
        self.whole_s = whole_s
        self.attempts = 0
        self.problems: dict[str, str] = {}
        self._until_ns = monotonic_ns() + round(whole_s * SECOND)

    @property
    def left_s(self) -> float:
        return max(0.0, (self._until_ns - monotonic_ns()) / SECOND)


class Watching:
    """A WebSocket whose refusal is told as the error it was."""

    def __init__(self, uri: str, address: Address, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._connecting = open_websocket(
            uri,
            additional_headers=dict(headers),
            ssl=tls,
            compression=None,
            proxy=None,
            open_timeout=OPEN_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=1,
            max_size=FRAME_LIMIT_BYTES,
        )

    async def __aenter__(self) -> Any:
        try:
            return await self._connecting.__aenter__()
        except websockets.InvalidStatus as error:
            response = error.response
            headers = {name.lower(): value for name, value in response.headers.raw_items()}
            raise error_in(self._address, Answer(response.status_code, headers, bytes(response.body or b""))) from None

    async def __aexit__(self, *exception: Any) -> None:
        await self._connecting.__aexit__(*exception)


def decoded_update(address: Address, frame: str | bytes) -> JobUpdate:
    try:
        return _updates.decode(frame.encode() if isinstance(frame, str) else frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid) as error:
        raise not_ours(address, f"sent an update that does not fit: {error}") from None


def error_in(address: Address, answer: Answer) -> TalkaError:
    try:
        problem = msgspec.json.decode(answer.body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = f"answered with status {answer.status}"
        if answer.status < 500 and answer.status not in (401, 403, 429):
            return not_ours(address, text)
        problem = Problem("about:blank", f"{address} {text}", answer.status)  # what answers a HEAD has no body
    after = answer.headers.get("retry-after", "")
    return error_of(problem, float(after) if after.isdecimal() and len(after) < 6 else 1.0)


def job_part(id: str) -> str:
    """The id as a part of a path. What could be another path is no id."""
    if not NAME.fullmatch(id):
        raise NoSuchJob.named(repr(id[:64]))
    return id


def worker_part(name: str) -> str:
    if not NAME.fullmatch(name):
        raise NoSuchWorker.named(repr(name[:64]))
    return name


def not_ours(address: Address, what: str) -> ClusterUnreachable:
    return ClusterUnreachable(f"{address} {what}: is a manager of the same version there?")
