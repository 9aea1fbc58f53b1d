"""Users that fail, each in a way of its own."""

import os

from talka import URL, HTTPResponse, IterationsPerVU, Skip, Workflow, action, step

TARGET = os.environ["TARGET"]


class Kind(Workflow):
    abstract = True
    load = IterationsPerVU(1, 10)


class Half(Kind):
    """Half of its requests fail, and no step knows of it."""

    @step(tags={"kind": "page"})
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url, name="GET /json")

    @action("get")
    async def tidy(self) -> None:
        await self.client.http.get(f"{TARGET}/status/500")


class Refused(Kind):
    """Never succeeds."""

    @step()
    async def get(self, url: URL = f"{TARGET}/status/503") -> HTTPResponse:
        return await self.client.http.get(url)


class Mistaken(Kind):
    """Every answer is good; the test is not."""

    @step()
    async def get(self, url: URL = f"{TARGET}/") -> None:
        response = await self.client.http.get(url)
        response.json()  # of a text

    @step()
    async def fine(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url)


class Idle(Kind):
    """Has nothing to do, every time."""

    @step()
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        if url:
            raise Skip
        return await self.client.http.get(url)
