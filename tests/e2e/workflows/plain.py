"""One quick request."""

import os

from talka import URL, HTTPResponse, Workflow, step


class Plain(Workflow):
    vus = 4
    duration = "30s"

    @step()
    async def get(self, url: URL = os.environ["TARGET"] + "/delay/2") -> HTTPResponse:
        return await self.client.http.get(url)
