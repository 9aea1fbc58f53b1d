"""Procrastinate on PostgreSQL. Worker: procrastinate --app procrastinate_peer.app worker --concurrency 20

It stores no return values: that a job succeeded is its result, and an instant goes through a file.
"""

import asyncio
import os
import time
from pathlib import Path

import psycopg
from peer_client import POSTGRES, serve
from procrastinate import App, PsycopgConnector

STARTS = Path(os.environ.get("PEER_FOLDER", ".")) / "procrastinate-starts"

app = App(connector=PsycopgConnector(conninfo=POSTGRES))


@app.task(name="nothing")
async def nothing() -> None:
    return None


@app.task(name="instant")
async def instant() -> None:
    now = time.monotonic_ns()
    with STARTS.open("a") as file:
        file.write(f"{now}\n")


async def submit_all(number: int) -> None:
    await nothing.batch_defer_async(*({} for _ in range(number)))


async def start_one() -> int:
    STARTS.write_text("")
    await instant.defer_async()
    while not (text := STARTS.read_text()).endswith("\n"):  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.002)
    return int(text)


async def main() -> None:
    async with app.open_async():
        with psycopg.connect(POSTGRES, autocommit=True) as looking:
            if looking.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (None,):
                await app.schema_manager.apply_schema_async()

            def forget() -> None:
                looking.execute("TRUNCATE procrastinate_jobs CASCADE")

            def stored() -> int:
                (found,) = looking.execute("SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'")
                return int(found[0])

            await serve(submit_all, start_one, forget, stored)


if __name__ == "__main__":
    asyncio.run(main())
