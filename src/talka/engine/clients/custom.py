"""Measuring whatever can be awaited."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Final, TypeVar

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, checked_name, current_call, taken_ns
from talka.engine.clients.deadlines import BadTimeout, timeout_of
from talka.engine.clients.port import ClientKind, ClientParts
from talka.work.responses import CustomResponse

Value = TypeVar("Value")


class CustomClient:
    """`await self.client.custom.call(awaitable)`: the awaitable's result together with its time."""

    __slots__ = ()

    def forget(self, *, session: bool, connections: bool) -> None:
        """It remembers nothing."""

    def close(self) -> None:
        """It has nothing open."""

    async def call(
        self, awaitable: Awaitable[Value], *, timeout: float | None = None, name: str | None = None
    ) -> CustomResponse[Value]:
        """Await and measure. The awaitable's own errors pass through as they are."""
        checked_name(name)
        run = current_call.get(None)
        sent_ns = monotonic_ns()
        intended_ns = taken_ns(run, sent_ns)
        try:
            value = await (awaitable if timeout is None else within(awaitable, timeout))
        except (asyncio.CancelledError, GeneratorExit):
            if run is not None:
                run.cut(name)
            raise
        except Exception as error:
            if run is not None:
                run.failed(name, error, intended_ns)
            raise
        done_ns = monotonic_ns()
        response = CustomResponse(value)
        response.intended_ns, response.sent_ns, response.done_ns = intended_ns, sent_ns, done_ns
        if run is not None:
            run.answered(name, response)
        return response


class CustomEngine:
    """Its clients share nothing: what they await is not counted among requests, for nobody knows what it sends."""

    def __init__(self, parts: ClientParts) -> None:
        pass

    def new_client(self) -> CustomClient:
        return CustomClient()

    async def prepare(self, arguments: Iterable[Any]) -> None:
        pass

    async def close(self) -> None:
        pass


CUSTOM: Final = ClientKind(CustomEngine)


async def within(awaitable: Awaitable[Value], timeout_s: float) -> Value:
    try:
        limit = asyncio.timeout(timeout_of(timeout_s).total_s)
    except BadTimeout:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()  # or Python would warn, beside the error, that nobody awaited it
        raise
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        # The awaitable may have a timeout of its own, which is its own affair.
        if not limit.expired():
            raise
        raise ExchangeFailed("timeout", f"the awaited call was not done within {timeout_s:g} s") from None
