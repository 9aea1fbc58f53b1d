"""Asking a cluster until one of its managers answers: what every call of a client goes through."""

import asyncio
import contextlib
import random
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import websockets
from websockets.asyncio.client import connect as open_websocket
from websockets.http11 import Response

from talka.client.http import ApiAddress, HttpAnswer, call, parse_address, trust
from talka.client.requests import ClusterUnreachable, NoSuchJob, NoSuchWorker, NotAuthorised, Problem, TooBusy, error_of
from talka.clock import monotonic_ns
from talka.errors import Invalid, Superseded, TalkaError, Unavailable
from talka.units import SECOND
from talka.wire.views import ClusterView

QUESTION_S: Final = 10.0
"""How long a question is asked again before the cluster counts as unreachable."""
RESULT_S: Final = 60.0
"""The same while a job is waited for: long enough for a new leader, and for a manager to start again."""
ATTEMPT_S: Final = 35.0
"""Of one manager to one call; a little longer than it gives itself."""
ANSWER_LIMIT_BYTES: Final = 16 * 1024 * 1024
FRAME_LIMIT_BYTES: Final = 16 * 1024 * 1024
ADDRESSES_LIMIT: Final = 32
BACKOFF_S: Final = 0.1
BACKOFF_MOST_S: Final = 2.0
LAST_TRY_S: Final = 0.5
"""With less time left there is nothing to be learned from another try."""
PING_S: Final = 5.0
"""A manager that was cut off answers no ping: a watch notices after two of these."""
OPEN_S: Final = 20.0

NAME: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,255}")

Shape = TypeVar("Shape")
Update = TypeVar("Update")


class ApiCalls:
    """The managers of a cluster, and what is said to whichever of them answers."""

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
        if isinstance(addresses, str):
            addresses = (addresses,)
        self._addresses = [parse_address(address, is_tls=ca is not None) for address in addresses]
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        self.tls: ssl.SSLContext | None = None
        if any(address.scheme == "https" for address in self._addresses):
            self.tls = trust(ca)
        self.question_s = question_s
        self._result_s = result_s
        # How long to wait before asking again; nothing that must be unpredictable.
        self._rng = rng or random.Random()
        self._has_learned = False
        self._was_answered = False
        self.on_trouble: Callable[[str], None] | None = None
        """Told once, when everybody was asked in vain and nobody has ever answered: it is tried again, but whoever
        waits may know already what is wrong."""

    @property
    def addresses(self) -> list[str]:
        """Where managers are asked, the next one first."""
        return [str(address) for address in self._addresses]

    @property
    def next_address(self) -> ApiAddress:
        return self._addresses[0]

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

    # Asking until somebody answers.

    async def learn(self) -> None:
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
        patience_s: float = 0,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> Shape:
        headers = dict(headers or {})
        body = b""
        if value is not None:
            headers["content-type"] = "application/json"
            body = msgspec.json.encode(value)
        answer = await self._call(
            method, path, headers=headers, body=body, patience_s=patience_s, limit_bytes=limit_bytes
        )
        what = f"gave an answer to {method} {path} that does not match the API"
        return decoded(self.next_address, answer.body, shape, what)

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
    ) -> HttpAnswer:
        """The first answer that is one, from the manager that is then `self._addresses[0]`."""
        patience = Patience(patience_s or self.question_s)
        while True:
            address = self._addresses[0]
            try:
                answer = await call(
                    address,
                    method,
                    path,
                    headers={**self.headers, **(headers or {})},
                    body=body,
                    # One that is silent must leave time for the others.
                    timeout_s=min(attempt_s, patience.left_s, patience.whole_s / min(3, len(self._addresses))),
                    limit_bytes=limit_bytes,
                    tls=self.tls,
                )
                self._was_answered = True
                if answer.status < 300 or is_fine(answer.status):
                    return answer
                raise error_in(address, answer)
            except TooBusy as error:
                if error.retry_after_s >= patience.left_s:
                    raise
                patience.problems[str(address)] = str(error)
                await asyncio.sleep(error.retry_after_s)
            except NotAuthorised:
                raise
            except (Unavailable, Superseded) as error:
                await self.try_next(address, patience, error)

    async def try_next(self, failed: ApiAddress, patience: "Patience", problem: object) -> None:
        """Raises `ClusterUnreachable` when patience is at its end."""
        patience.problems[str(failed)] = str(problem)
        if self._addresses[0] == failed:  # else another call has moved on already
            self._addresses.append(self._addresses.pop(0))
        patience.attempts += 1
        rounds, rest = divmod(patience.attempts, len(self._addresses))
        if not rest:  # everyone was asked
            if not self._was_answered and self.on_trouble is not None and patience.left_s >= LAST_TRY_S:
                self.on_trouble(f"{patience.told}: trying again for up to {patience.left_s:.0f} s")
                self.on_trouble = None
            await self._pause(rounds - 1, most_s=patience.left_s)
        if patience.left_s < LAST_TRY_S:
            raise ClusterUnreachable(f"no manager answered within {patience.whole_s:g} s: {patience.told}") from None

    async def _pause(self, attempts: int, most_s: float = BACKOFF_MOST_S) -> None:
        longest_s = min(BACKOFF_MOST_S, BACKOFF_S * 2 ** min(attempts, 10))
        await asyncio.sleep(min(most_s, self._rng.uniform(longest_s / 2, longest_s)))

    async def _watch(self, path: str, decode: Callable[[ApiAddress, bytes], Update]) -> AsyncGenerator[Update, None]:
        """Every frame of a WebSocket, opened again at the next manager when one dies: whoever looks knows the last."""
        await self.learn()
        patience = Patience(self._result_s)
        while True:
            address = self.next_address
            problem: object = f"{address} ended the watch"
            try:
                async with self._open(address, path) as websocket:
                    async for frame in websocket:
                        update = decode(address, frame.encode() if isinstance(frame, str) else frame)
                        patience = Patience(self._result_s)
                        yield update
            except NotAuthorised:
                raise
            except (Unavailable, Superseded) as error:
                problem = error
            except (OSError, TimeoutError, websockets.WebSocketException) as error:
                problem = f"{address}: {error or type(error).__name__}"
            await self.try_next(address, patience, problem)

    @contextlib.asynccontextmanager
    async def _open(self, address: ApiAddress, path: str) -> AsyncIterator[Any]:
        """A WebSocket. Its refusal is told as the error it was."""
        try:
            async with open_websocket(
                websocket_uri(address, path),
                additional_headers=self.headers,
                ssl=self.tls if address.scheme == "https" else None,
                compression=None,
                proxy=None,
                open_timeout=OPEN_S,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                close_timeout=1,
                max_size=FRAME_LIMIT_BYTES,
            ) as websocket:
                yield websocket
        except websockets.InvalidStatus as error:
            raise refusal_in(address, error.response) from None


class Patience:
    """How long a call is tried, and what went wrong so far, last at each manager."""

    def __init__(self, whole_s: float) -> None:
        self.whole_s = whole_s
        self.attempts = 0
        self.problems: dict[str, str] = {}
        self._until_ns = monotonic_ns() + round(whole_s * SECOND)

    @property
    def told(self) -> str:
        return "; ".join(self.problems.values())

    @property
    def left_s(self) -> float:
        return max(0.0, (self._until_ns - monotonic_ns()) / SECOND)


def websocket_uri(address: ApiAddress, path: str) -> str:
    return f"{'wss' if address.scheme == 'https' else 'ws'}://{address}{path}"


def refusal_in(address: ApiAddress, response: Response) -> TalkaError:
    """Of a WebSocket."""
    headers = {name.lower(): value for name, value in response.headers.raw_items()}
    return error_in(address, HttpAnswer(response.status_code, headers, bytes(response.body or b"")))


def decoded(address: ApiAddress, content: bytes | msgspec.Raw, shape: type[Shape], what: str) -> Shape:
    """`what` the content is, in the words in which it is told that it does not match."""
    try:
        return msgspec.json.decode(content, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid) as error:
        raise not_ours(address, f"{what}: {error}") from None


def error_in(address: ApiAddress, answer: HttpAnswer) -> TalkaError:
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


def not_ours(address: ApiAddress, what: str) -> ClusterUnreachable:
    return ClusterUnreachable(f"{address} {what}: is a manager of the same version there?")
