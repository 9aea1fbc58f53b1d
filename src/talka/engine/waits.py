"""Waiting for an event, and not for ever."""

import asyncio
import contextlib
import os


async def within(seconds: float | None, event: asyncio.Event) -> None:
    """Until it is set, or as long as that; None: for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def until_exit(pid: int) -> None:
    """Until this child has ended; it stays to be waited for."""
    loop = asyncio.get_running_loop()
    if hasattr(os, "pidfd_open"):
        fd = os.pidfd_open(pid)
        over = loop.create_future()
        loop.add_reader(fd, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            loop.remove_reader(fd)
            os.close(fd)
    else:
        await loop.run_in_executor(None, os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
