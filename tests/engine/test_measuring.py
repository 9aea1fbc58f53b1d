"""What calls of clients that wait with plain asyncio have in common: counts, times, deadlines, traces, failures."""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, NotSent, current_call
from talka.engine.clients.deadlines import BadTimeout
from talka.engine.clients.measuring import Measuring
from talka.engine.clients.port import ClientParts
from talka.errors import Invalid
from talka.stats.tally import Exchanges
from talka.work.responses import Response
from tests.engine.node_runs import Told, node_run


class Word(Response):
    def __init__(self, word: str = "OK") -> None:
        super().__init__()
        self.word = word
        self.accepted = word == "OK"


async def answer(word: str = "OK") -> Word:
    await asyncio.sleep(0)
    return Word(word)


class Called:
    """A measuring client in a step of its own, and everybody it tells."""

    def __init__(self) -> None:
        self.exchanges, self.traced, self.rows = Exchanges(), list[Any](), Told()
        parts = ClientParts(exchanges=self.exchanges, trace=lambda sent, came: self.traced.append((list(sent), came)))
        self.measuring = Measuring(parts)

    async def call(self, exchange: Callable[[], Awaitable[Response]], **more: Any) -> Response:
        token = current_call.set(node_run(42, rows=self.rows))
        try:
            return await self.measuring.call(exchange, ["PING"], **more)
        finally:
            current_call.reset(token)

    @property
    def told(self) -> list[tuple[str, str | None]]:
        return [(what, name) for what, name, _ in self.rows.calls]


@pytest.fixture
def called() -> Called:
    return Called()


async def test_an_answer_is_counted_timed_traced_and_told_to_its_step_once(called: Called) -> None:
    before = monotonic_ns()
    response = await called.call(answer, name="ping")
    assert response.intended_ns == 42
    assert before <= response.sent_ns < response.done_ns <= monotonic_ns()
    assert called.exchanges == Exchanges(ok=1)
    assert called.told == [("answered", "ping")]
    assert called.traced == [(["PING"], response)]


async def test_an_answer_that_is_not_accepted_is_an_exchange_that_failed(called: Called) -> None:
    await called.call(lambda: answer("BUSY"))
    assert called.exchanges == Exchanges(failed=1)
    assert called.told == [("answered", None)]


async def test_an_exchange_that_had_to_connect_says_when_it_sent(called: Called) -> None:
    async def connecting() -> Word:
        word = await answer()
        word.sent_ns = 7
        return word

    assert (await called.call(connecting)).sent_ns == 7


async def test_outside_of_a_step_and_without_a_trace_calls_are_counted_all_the_same() -> None:
    exchanges = Exchanges()
    measuring = Measuring(ClientParts(exchanges=exchanges))
    response = await measuring.call(answer, ["PING"])
    assert response.intended_ns == response.sent_ns
    with pytest.raises(ExchangeFailed):
        await measuring.call(failing(EOFError()), ["PING"])
    task = asyncio.create_task(measuring.call(asyncio.Event().wait, ["PING"]))  # type: ignore[type-var]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert exchanges == Exchanges(ok=1, failed=1, interrupted=1)


def failing(error: BaseException) -> Callable[[], Awaitable[Response]]:
    async def exchange() -> Response:
        raise error

    return exchange


@pytest.mark.parametrize(
    ("error", "kind", "text", "is_sent"),
    [
        (socket.gaierror(-2, "Name or service not known"), "dns", "PING: .*not known", False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "refused", "PING: connection refused", False),
        (TimeoutError(errno.ETIMEDOUT, "x"), "timeout", "PING: connection timed out", False),
        (NotSent("tls", "no handshake"), "tls", "no handshake", False),
        (ConnectionResetError(errno.ECONNRESET, "x"), "reset", "PING: connection reset by peer", True),
        (asyncio.IncompleteReadError(b"O", None), "reset", "PING: the connection was closed before the answer", True),
        (ExchangeFailed("protocol", "no line"), "protocol", "no line", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_what_the_network_raises_is_a_failure_of_its_kind(
    called: Called, error: Exception, kind: str, text: str, is_sent: bool
) -> None:
    with pytest.raises(ExchangeFailed, match=text) as caught:
        await called.call(failing(error), name="ping")
    assert caught.value.kind == kind
    assert called.exchanges == (Exchanges(failed=1) if is_sent else Exchanges(not_sent=1))
    assert called.told == [("failed", "ping")]
    assert called.traced == [(["PING"], caught.value)]


async def test_an_answer_that_does_not_come_in_time_is_a_timeout(called: Called) -> None:
    with pytest.raises(ExchangeFailed, match=r"PING: no answer within 0\.01 s") as caught:
        await called.call(asyncio.Event().wait, timeout=0.01)  # type: ignore[arg-type]
    assert caught.value.kind == "timeout"
    assert called.exchanges == Exchanges(failed=1)


async def test_what_the_client_itself_raises_passes_through_and_has_failed(called: Called) -> None:
    with pytest.raises(KeyError, match="mine"):
        await called.call(failing(KeyError("mine")))
    assert (called.exchanges, called.told, called.traced) == (Exchanges(failed=1), [("failed", None)], [])


async def test_arguments_that_make_no_call_are_not_sent_and_no_call(called: Called) -> None:
    with pytest.raises(Invalid, match="no such word"):
        await called.call(failing(Invalid("no such word")))
    assert (called.exchanges, called.told) == (Exchanges(not_sent=1), [])


@pytest.mark.parametrize(("options", "error"), [({"timeout": 0}, BadTimeout), ({"name": 7}, TypeError)])
async def test_senseless_options_are_refused_before_anything_is_begun(
    called: Called, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await called.call(answer, **options)
    assert (called.exchanges, called.told) == (Exchanges(not_sent=1), [])


async def test_a_call_that_is_cancelled_is_interrupted(called: Called) -> None:
    task = asyncio.create_task(called.call(asyncio.Event().wait, name="ping"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (called.exchanges, called.told) == (Exchanges(interrupted=1), [("cut", "ping")])
