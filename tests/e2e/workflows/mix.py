"""Six kinds of users, which all run at the same time."""

import os

from talka import URL, ConstantRate, HTTPResponse, Workflow, step

TARGET = os.environ["TARGET"]


class Kind(Workflow):
    abstract = True
    load = ConstantRate("20/s", "4s")

    @step()
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url)


class Browse(Kind): ...


class Search(Kind): ...


class Buy(Kind): ...


class Return(Kind): ...


class Rate(Kind): ...


class Leave(Kind): ...
