"""Arrivals that go through three steps of 400 ms each: when the last of them begin, the plan is nearly over."""

import os

from talka import URL, ConstantRate, HTTPResponse, Workflow, step

TARGET = os.environ["TARGET"]


class Journey(Workflow):
    load = ConstantRate("10/s", "3s")

    @step()
    async def search(self, url: URL = f"{TARGET}/delay/400") -> HTTPResponse:
        return await self.client.http.get(url)

    @step(search)
    async def choose(self, url: URL = f"{TARGET}/delay/400") -> HTTPResponse:
        return await self.client.http.get(url)

    @step(choose)
    async def order(self, url: URL = f"{TARGET}/delay/400") -> HTTPResponse:
        return await self.client.http.get(url)
