"""What every peer's program does: submit many tasks, or one at a time, and tell the seconds as one line of JSON.

`PROGRAM bulk N` submits N and waits until that many results are stored; `PROGRAM starts N` submits one after the other
to an idle worker and tells how long each took to its first line. The worker is started elsewhere, with the same file.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

BROKER_URL = os.environ.get("PEER_REDIS", "redis://127.0.0.1:6379") + "/0"
RESULTS_URL = os.environ.get("PEER_REDIS", "redis://127.0.0.1:6379") + "/1"
"""A database of their own: its size is how many results are stored."""
POSTGRES = os.environ.get("PEER_POSTGRES", "")
POLL_S = 0.02
IDLE_S = 0.01
"""Between two tasks that meet an idle worker."""
LIMIT_S = 120.0


def stored_in_redis() -> tuple[Callable[[], None], Callable[[], int]]:
    """How results are forgotten, and how they are counted."""
    import redis

    results = redis.Redis.from_url(RESULTS_URL)
    return lambda: results.flushdb(), lambda: int(results.dbsize())


async def serve(
    submit_all: Callable[[int], Awaitable[object]],
    start_one: Callable[[], Awaitable[int]],
    forget: Callable[[], object],
    stored: Callable[[], int],
) -> None:
    """`start_one` submits a task and returns the monotonic instant of its first line."""
    word, number = sys.argv[1], int(sys.argv[2])
    if word == "bulk" and number == 0:
        told: object = {}  # only what must be there beforehand is made
    elif word == "bulk":
        forget()
        cpu_s, began = time.process_time(), time.perf_counter()
        await submit_all(number)
        submitted = time.perf_counter()
        while stored() < number:
            if time.perf_counter() - began > LIMIT_S:
                sys.exit(f"{stored()} of {number} results were stored in {LIMIT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        ended = time.perf_counter()
        told = {
            "submit_s": submitted - began,
            "total_s": ended - began,
            "client_cpu_s": time.process_time() - cpu_s,
        }
    else:
        waits_ms = []
        for _ in range(number):
            await asyncio.sleep(IDLE_S)
            before = time.monotonic_ns()
            waits_ms.append((await start_one() - before) / 1e6)
        told = waits_ms
    print(json.dumps(told), flush=True)
