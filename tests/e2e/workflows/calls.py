"""A step of two calls, of which the first is slow, and an action that calls too."""

import os

from talka import URL, ConstantRate, HTTPResponse, Workflow, action, step

TARGET = os.environ["TARGET"]


class Reader(Workflow):
    load = ConstantRate("20/s", "2s")

    @step()
    async def read(self, slow: URL = f"{TARGET}/delay/120", quick: URL = f"{TARGET}/json") -> HTTPResponse:
        await self.client.http.get(slow, name="page")
        return await self.client.http.get(quick, name="data")

    @action(read)
    async def leave(self, url: URL = f"{TARGET}/echo") -> None:
        await self.client.http.get(url)
