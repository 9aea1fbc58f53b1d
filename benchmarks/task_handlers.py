"""Handlers of the tasks that `tasks.py` submits."""

import time

from talka import HandlerTask, handler


@handler("nothing")
async def nothing(task: HandlerTask) -> None:
    return None


@handler("nothing-plain")
def nothing_plain(task: HandlerTask) -> None:
    return None


@handler("instant")
async def instant(task: HandlerTask) -> int:
    """When it began, by the clock that all processes of a machine share."""
    return time.monotonic_ns()
