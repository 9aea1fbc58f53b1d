"""Everything that could make a count go wrong: redirects, two calls in one step, a server that drops connections."""

import os

from talka import URL, HTTPResponse, Workflow, step

TARGET = os.environ["TARGET"]


class Exact(Workflow):
    @step()
    async def redirected(self, url: URL = f"{TARGET}/redirect/2") -> HTTPResponse:
        return await self.client.http.get(url)

    @step(redirected)
    async def twice(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        await self.client.http.get(f"{TARGET}/")
        return await self.client.http.get(url)

    @step(redirected)
    async def dropped(self, url: URL = f"{TARGET}/drop/7") -> HTTPResponse:
        return await self.client.http.get(url)
