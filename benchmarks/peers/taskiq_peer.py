"""Taskiq on a stream of Redis. Worker: taskiq worker taskiq_peer:broker --workers 1"""

import asyncio
import time

from peer_client import BROKER_URL, RESULTS_URL, serve, stored_in_redis
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

AT_ONCE = 100

broker = RedisStreamBroker(url=BROKER_URL).with_result_backend(RedisAsyncResultBackend(redis_url=RESULTS_URL))


@broker.task(task_name="nothing")
async def nothing() -> None:
    return None


@broker.task(task_name="instant")
async def instant() -> int:
    return time.monotonic_ns()


async def submit_all(number: int) -> None:
    for begin in range(0, number, AT_ONCE):
        await asyncio.gather(*(nothing.kiq() for _ in range(min(AT_ONCE, number - begin))))


async def start_one() -> int:
    task = await instant.kiq()
    return int((await task.wait_result(check_interval=0.002, timeout=30)).return_value)


async def main() -> None:
    await broker.startup()
    await serve(submit_all, start_one, *stored_in_redis())
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
