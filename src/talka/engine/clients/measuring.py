"""One call of a client that waits with plain asyncio: its deadline, its counts, its trace, and what its step is told.

HTTP does the same for itself, in pieces that its engines can share; see docs/decisions/0027 for what is counted.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, NotSent, checked_name, current_call, taken_ns
from talka.engine.clients.deadlines import Timeout, kept_timeout
from talka.engine.clients.opening import reason_of
from talka.engine.clients.port import ClientParts
from talka.errors import Invalid
from talka.work.responses import Response

Answer = TypeVar("Answer", bound=Response)

DEFAULT_TIMEOUT: Final = Timeout()


class Measuring:
    """For the clients of one shard."""

    def __init__(self, parts: ClientParts) -> None:
        self._exchanges = parts.exchanges
        self._trace = parts.trace

    async def call(
        self,
        exchange: Callable[[], Awaitable[Answer]],
        sent: Sequence[str],
        *,
        name: str | None = None,
        timeout: Timeout | float | None = None,
    ) -> Answer:
        """Run the exchange and measure it. `sent` is what it sends, in lines, the first of which names it in errors.

        The exchange may set `sent_ns` of its response, where it had to connect first. What the network raises becomes
        `ExchangeFailed`; an exchange that is cancelled or fails must leave no connection for the next to use.
        """
        run, exchanges = current_call.get(None), self._exchanges
        try:
            checked_name(name)
            limits = DEFAULT_TIMEOUT if timeout is None else kept_timeout(timeout)
        except (Invalid, TypeError):
            exchanges.not_sent += 1
            raise
        started_ns = monotonic_ns()
        intended_ns = taken_ns(run, started_ns)
        try:
            response = await answer_within(limits.total_s, exchange, sent[0])
        except (asyncio.CancelledError, GeneratorExit):
            exchanges.interrupted += 1
            if run is not None:
                run.cut(name)
            raise
        except Invalid:
            exchanges.not_sent += 1
            raise
        except Exception as error:
            if isinstance(error, NotSent):
                exchanges.not_sent += 1
            else:
                exchanges.failed += 1
            if self._trace is not None and isinstance(error, ExchangeFailed):
                self._trace(sent, error)
            if run is not None:
                run.failed(name, error, intended_ns)
            raise
        response.intended_ns, response.done_ns = intended_ns, monotonic_ns()
        response.sent_ns = response.sent_ns or started_ns
        if response.accepted:
            exchanges.ok += 1
        else:
            exchanges.failed += 1
        if self._trace is not None:
            self._trace(sent, response)
        if run is not None:
            run.answered(name, response)
        return response


async def answer_within(seconds: float, exchange: Callable[[], Awaitable[Answer]], what: str) -> Answer:
    """The exchange's answer. Raises `ExchangeFailed` for whatever the network or the clock is the reason of."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await exchange()
    except TimeoutError as error:
        if limit.expired():
            raise ExchangeFailed("timeout", f"{what}: no answer within {seconds:g} s") from None
        raise failure_of(error, what) from None
    except (OSError, EOFError) as error:
        raise failure_of(error, what) from None


def failure_of(error: OSError | EOFError, what: str) -> ExchangeFailed:
    text = f"{what}: {reason_of(error)}"
    match error:
        case socket.gaierror():
            return NotSent("dns", text)
        case ConnectionRefusedError():
            return NotSent("refused", text)
        case TimeoutError():  # the system's own, of a connection that nobody answers
            return NotSent("timeout", text)
        case EOFError():
            return ExchangeFailed("reset", f"{what}: the connection was closed before the answer was complete")
        case _:
            return ExchangeFailed("reset", text)
