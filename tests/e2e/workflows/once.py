"""An account is made once for the whole job, used by the users of every core, and closed once."""

import os

from talka import URL, ConstantRate, HTTPResponse, Workflow, check, setup, step, teardown

TARGET = os.environ["TARGET"]


class Shop(Workflow):
    load = ConstantRate("40/s", "2s")

    @setup(once=True)
    async def account(self, url: URL = f"{TARGET}/json") -> dict[str, int]:
        await self.client.http.get(url)
        return {"maker": os.getpid()}

    @step()
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @check(get)
    def is_the_account_of_the_job(self) -> bool:
        return set(self.context["account"]) == {"maker"}

    @teardown(once=True)
    async def close(self, url: URL = f"{TARGET}/json") -> None:
        assert "maker" in self.context["account"]
        await self.client.http.get(url)
