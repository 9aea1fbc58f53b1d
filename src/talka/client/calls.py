"""Asking a cluster until one of its managers answers: what every call of a client goes through."""

import asyncio
import random
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import websockets
from websockets.asyncio.client import connect as open_websocket

from talka.client.http import ApiAddress, HttpAnswer, call, parse_address, trust
from talka.client.requests import (
    ClusterUnreachable,
    ClusterView,
    NoSuchJob,
    NoSuchWorker,
    NotAuthorised,
    Problem,
    TooBusy,
    error_of,
)
from talka.clock import monotonic_ns
from talka.errors import Invalid, Superseded, TalkaError, Unavailable
from talka.units import SECOND

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
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls: ssl.SSLContext | None = None
        if any(address.scheme == "https" for address in self._addresses):
            self._tls = trust(ca)
        self._question_s = question_s
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

    # For connections that last.

    @property
    def next_address(self) -> ApiAddress:
        return self._addresses[0]

    @property
    def headers(self) -> dict[str, str]:
        return dict(self._headers)

    @property
    def tls(self) -> ssl.SSLContext | None:
        return self._tls

    @property
    def question_s(self) -> float:
        return self._question_s

    async def learn(self) -> None:
        await self._learn()

    async def try_next(self, failed: ApiAddress, patience: "Patience") -> None:
        self._try_next(failed)
        await self._pause_or_give_up(patience)

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
        try:
            return msgspec.json.decode(answer.body, type=shape)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid) as error:
            raise not_ours(
                self._addresses[0], f"gave an answer to {method} {path} that does not match the API: {error}"
            ) from None

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
                self._was_answered = True
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

    def _try_next(self, failed: ApiAddress) -> None:
        if self._addresses[0] == failed:  # else another call has moved on already
            self._addresses.append(self._addresses.pop(0))

    async def _pause_or_give_up(self, patience: "Patience") -> None:
        patience.attempts += 1
        rounds, rest = divmod(patience.attempts, len(self._addresses))
        if not rest:  # everyone was asked
            if not self._was_answered and self.on_trouble is not None and patience.left_s >= LAST_TRY_S:
                told = "; ".join(patience.problems.values())
                self.on_trouble(f"{told}: trying again for up to {patience.left_s:.0f} s")
                self.on_trouble = None
            await self._pause(rounds - 1, most_s=patience.left_s)
        if patience.left_s < LAST_TRY_S:
            told = "; ".join(patience.problems.values())
            raise ClusterUnreachable(f"no manager answered within {patience.whole_s:g} s: {told}")

    async def _pause(self, attempts: int, most_s: float = BACKOFF_MOST_S) -> None:
        longest_s = min(BACKOFF_MOST_S, BACKOFF_S * 2 ** min(attempts, 10))
        await asyncio.sleep(min(most_s, self._rng.uniform(longest_s / 2, longest_s)))

    def _open(self, address: ApiAddress, path: str) -> "Opening":
        """A WebSocket."""
        scheme = "wss" if address.scheme == "https" else "ws"
        return Opening(f"{scheme}://{address}{path}", address, self._headers, self._tls if scheme == "wss" else None)


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


class Opening:
    """A WebSocket whose refusal is told as the error it was."""

    def __init__(self, uri: str, address: ApiAddress, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
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
            raise error_in(
                self._address, HttpAnswer(response.status_code, headers, bytes(response.body or b""))
            ) from None

    async def __aexit__(self, *exception: Any) -> None:
        await self._connecting.__aexit__(*exception)


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
