"""Half of the requests are answered with 500; what the step returns is always the good half."""

import os
from itertools import count

from talka import URL, ConstantRate, HTTPResponse, Workflow, step

TARGET = os.environ["TARGET"]
iterations = count()


class Half(Workflow):
    load = ConstantRate("20/s", "2s")

    @step()
    async def both(self, bad: URL = f"{TARGET}/status/500", good: URL = f"{TARGET}/json") -> HTTPResponse:
        if next(iterations) % 2:
            await self.client.http.get(bad)
            await self.client.http.get(bad)
        return await self.client.http.get(good)
