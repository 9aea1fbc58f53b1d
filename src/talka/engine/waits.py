"""Waiting for an event, and not for ever."""

import asyncio
import contextlib


async def within(seconds: float | None, event: asyncio.Event) -> None:
    """Until it is set, or as long as that; None: for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
