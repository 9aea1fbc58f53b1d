"""Steps that write down what they did: a line for each, in a file of each core process, in one write.

A line has the monotonic clock of the machine in nanoseconds. `LEDGER` is a folder, `TARGET` the server's address.
"""

import os
import signal
import time

from talka import URL, HTTPResponse, Workflow, step

LEDGER = os.environ["LEDGER"]
TARGET = os.environ["TARGET"]


def write_down() -> None:
    file = os.open(f"{LEDGER}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, b"%d\n" % time.monotonic_ns())
    os.close(file)


class Ledger(Workflow):
    @step()
    async def get(self, url: URL = f"{TARGET}/delay/5") -> HTTPResponse:
        response = await self.client.http.get(url)
        write_down()
        return response


class Deaf(Workflow):
    """Hears neither its core nor SIGTERM once it has begun."""

    @step()
    async def get(self, url: URL = f"{TARGET}/") -> HTTPResponse:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        response = await self.client.http.get(url)
        write_down()
        while True:
            time.sleep(0.1)  # noqa: ASYNC251 - that the loop stands still is the point
        return response
