"""The users of `make bench-wheels` for wheels that name calls, start users and let them pause."""

import os

from talka import URL, Workflow, on_start, step

TARGET = os.environ["TARGET"]
PAUSE = "20ms"


class TwoCalls(Workflow):
    @step()
    async def visit(self, page: URL = f"{TARGET}/", data: URL = f"{TARGET}/json") -> None:
        await self.client.http.get(page, name="page")
        await self.client.http.get(data, name="data")


class Loop(Workflow):
    @step()
    async def browse(self, page: URL = f"{TARGET}/page") -> None:
        for _ in range(5):
            await self.client.http.get(page, name="page")


class Started(Workflow):
    """In the closed model once for each user, in the open one at each arrival."""

    @on_start()
    async def login(self, url: URL = f"{TARGET}/login") -> None:
        await self.client.http.post(url)

    @step()
    async def get(self, url: URL = f"{TARGET}/") -> None:
        await self.client.http.get(url)


class Thinking(Workflow):
    think = PAUSE

    @step()
    async def get(self, url: URL = f"{TARGET}/") -> None:
        await self.client.http.get(url)


class Pausing(Workflow):
    @step()
    async def get(self, url: URL = f"{TARGET}/") -> None:
        await self.client.http.get(url)
        await self.pause(PAUSE)
