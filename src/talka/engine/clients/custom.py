"""Measuring calls that are not HTTP: whatever can be awaited."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from talka.clock import monotonic_ns
from talka.engine.calls import ExchangeFailed, checked_name, current_call
from talka.engine.clients.deadlines import BadTimeout, timeout_of
from talka.work.responses import CustomResponse

Value = TypeVar("Value")


class CustomClient:
    """`await self.client.custom.call(awaitable)`: the awaitable's result together with its time."""

    __slots__ = ()

    async def call(
        self, awaitable: Awaitable[Value], *, timeout: float | None = None, name: str | None = None
    ) -> CustomResponse[Value]:
        """Await and measure. The awaitable's own errors pass through as they are."""
        checked_name(name)
        run = current_call.get(None)
        sent_ns = monotonic_ns()
        intended_ns = sent_ns
        if run is not None and run.intended_ns:
            intended_ns = run.intended_ns
            run.intended_ns = 0
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
