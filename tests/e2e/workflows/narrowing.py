"""Two kinds of users: of one nothing is left after a moment."""

import os

from talka import URL, HTTPResponse, Workflow, step


class Short(Workflow):
    vus = 1
    duration = "1s"

    @step()
    async def get(self, url: URL = os.environ["TARGET"]) -> HTTPResponse:
        return await self.client.http.get(url)


class Long(Workflow):
    vus = 1
    duration = "10m"

    @step()
    async def get(self, url: URL = os.environ["TARGET"] + "/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
