"""Celery on Redis. Worker: celery -A celery_peer worker --pool prefork --concurrency 1 --prefetch-multiplier 64"""

import asyncio
import time

from celery import Celery
from peer_client import BROKER_URL, RESULTS_URL, serve, stored_in_redis

app = Celery("celery_peer", broker=BROKER_URL, backend=RESULTS_URL)
app.conf.update(task_serializer="json", result_serializer="json", worker_hijack_root_logger=False)


@app.task(name="nothing")
def nothing() -> None:
    return None


@app.task(name="instant")
def instant() -> int:
    return time.monotonic_ns()


async def submit_all(number: int) -> None:
    for _ in range(number):
        nothing.delay()


async def start_one() -> int:
    return int(instant.delay().get(timeout=30))


if __name__ == "__main__":
    asyncio.run(serve(submit_all, start_one, *stored_in_redis()))
