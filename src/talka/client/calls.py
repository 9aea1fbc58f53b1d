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
from talka.client.manager_book import BookCounts, ClusterMemory, ManagerBook, is_of, known_managers
from talka.client.requests import ClusterUnreachable, NoSuchJob, NoSuchWorker, NotAuthorised, Problem, TooBusy, error_of
from talka.clock import monotonic_ns
from talka.control.member.peer_pool import NOWHERE_SAID, Place
from talka.errors import Invalid, Superseded, TalkaError, Unavailable
from talka.store.files.known_clusters import KnownCluster
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
PROOF_S: Final = 5.0
"""For a manager that was known before to say of which cluster it is."""
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
        place: Place = NOWHERE_SAID,
        memory: ClusterMemory | None = None,
    ) -> None:
        """`place`: where the client stands, so that near managers are asked first. `memory`: who was known before, to
        be asked where none of the `addresses` answers."""
        if not addresses:
            raise Invalid("a client needs the address of at least one manager")
        if isinstance(addresses, str):
            addresses = (addresses,)
        given = [parse_address(address, is_tls=ca is not None) for address in addresses]
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        self.tls: ssl.SSLContext | None = None
        if any(address.scheme == "https" for address in given):
            self.tls = trust(ca)
        self.question_s = question_s
        self._result_s = result_s
        # How long to wait before asking again; nothing that must be unpredictable.
        self._rng = rng or random.Random()
        self.book = ManagerBook(given, place, self._rng)
        self._given = [str(address) for address in given]
        self._memory = memory
        self._known = None if memory is None else memory.cluster_of(self._given)
        """The cluster as it was before; None once it was asked there too."""
        self._has_learned = False
        self._was_answered = False
        self.on_trouble: Callable[[str], None] | None = None
        """Told once, when everybody was asked in vain and nobody has ever answered: it is tried again, but whoever
        waits may know already what is wrong."""

    @property
    def addresses(self) -> list[str]:
        """Where managers are asked, the next one first."""
        return [str(address) for address in self.book.all(monotonic_ns())]

    @property
    def next_address(self) -> ApiAddress:
        return self.book.ask(monotonic_ns())

    def peers(self) -> BookCounts:
        """How many managers are known, how often one did not answer and another was asked, and how quick it is."""
        return self.book.counts()

    async def cluster(self) -> ClusterView:
        view = await self._ask("GET", "/v1/cluster", ClusterView)
        self.book.learn(view)
        if self._memory is not None:
            self._memory.note(self._given, KnownCluster(view.name, known_managers(view.managers)))
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
        """The first answer that is one, from the manager that is then `next_address`."""
        patience = Patience(patience_s or self.question_s)
        while True:
            address, asked_at = self.next_address, monotonic_ns()
            try:
                await self.prove(address)
                answer = await call(
                    address,
                    method,
                    path,
                    headers={**self.headers, **(headers or {})},
                    body=body,
                    # One that is silent must leave time for the others.
                    timeout_s=min(attempt_s, patience.left_s, patience.whole_s / min(3, self._others + 1)),
                    limit_bytes=limit_bytes,
                    tls=self.tls,
                )
                self._was_answered = True
                if answer.status < 300 or is_fine(answer.status):
                    self.book.answered(monotonic_ns(), address, asked_at)
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
                await self.try_next(address, patience, error, asked_at)

    @property
    def _others(self) -> int:
        """How many could be asked instead of one."""
        return len(self.book) - 1 + (self._known is not None)

    async def prove(self, address: ApiAddress) -> None:
        """A manager that was only known before says of which cluster it is, before it is asked anything else."""
        known = self.book.must_be(address)
        if known is None:
            return
        answer = await call(
            address,
            "GET",
            "/v1/cluster",
            headers=self.headers,
            timeout_s=PROOF_S,
            limit_bytes=ANSWER_LIMIT_BYTES,
            tls=self.tls,
        )
        if answer.status >= 300:
            raise error_in(address, answer)
        view = decoded(address, answer.body, ClusterView, "gave an answer to GET /v1/cluster that does not match")
        if not is_of(view, known):
            self.book.drop(address)
            raise Unavailable(f"{address} was a manager of cluster {known.name}, and is none of it any more")
        self.book.learn(view)

    def _remembered(self) -> list[ApiAddress]:
        """Those that were known before, when nobody else answers: once."""
        known, self._known = self._known, None
        return [] if known is None else self.book.add_remembered(known)

    async def try_next(
        self, failed: ApiAddress, patience: "Patience", problem: object, asked_at: int | None = None
    ) -> None:
        """Raises `ClusterUnreachable` when patience is at its end."""
        patience.problems[str(failed)] = str(problem)
        now = monotonic_ns()
        self.book.failed(now, failed, now if asked_at is None else asked_at)
        patience.attempts += 1
        rounds, rest = divmod(patience.attempts, len(self.book))
        if not rest:  # everyone was asked
            if remembered := self._remembered():
                if self.on_trouble is not None:
                    others = ", ".join(str(address) for address in remembered)
                    self.on_trouble(f"{patience.told}: asking {others}, known from before")
                patience.attempts = 0
                return
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
            address, asked_at = self.next_address, monotonic_ns()
            problem: object = f"{address} ended the watch"
            try:
                await self.prove(address)
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
            await self.try_next(address, patience, problem, asked_at)

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
