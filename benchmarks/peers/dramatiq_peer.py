"""Dramatiq on Redis. Worker: dramatiq dramatiq_peer --processes 1 --threads 8"""

import asyncio
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from peer_client import BROKER_URL, RESULTS_URL, serve, stored_in_redis

broker = RedisBroker(url=BROKER_URL)
broker.add_middleware(Results(backend=RedisBackend(url=RESULTS_URL)))
dramatiq.set_broker(broker)


# A result of None is stored only where the actor says so.
@dramatiq.actor(store_results=True)
def nothing() -> int:
    return 0


@dramatiq.actor(store_results=True)
def instant() -> int:
    return time.monotonic_ns()


async def submit_all(number: int) -> None:
    for _ in range(number):
        nothing.send()


async def start_one() -> int:
    return int(instant.send().get_result(block=True, timeout=30_000))


if __name__ == "__main__":
    asyncio.run(serve(submit_all, start_one, *stored_in_redis()))
