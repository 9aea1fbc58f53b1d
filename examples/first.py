"""The smallest test: twenty users ask for one page for ten seconds.

Start a server with `talka demo-server` in another terminal, then: talka run examples/first.py
"""

import os

from talka import URL, HTTPResponse, Workflow, step

TARGET = os.environ.get("TARGET", "http://127.0.0.1:8400")


class FrontPage(Workflow):
    vus = 20
    duration = "10s"
    thresholds = ["failed < 1%", "response_time.p99 < 500ms"]

    @step()
    async def page(self, url: URL = f"{TARGET}/") -> HTTPResponse:
        return await self.client.http.get(url)
