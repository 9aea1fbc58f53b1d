"""What one kind of user leaves in its context is there for the kinds that depend on it."""

import os

from talka import URL, HTTPResponse, IterationsPerVU, Workflow, check, depends, step

TARGET = os.environ["TARGET"]


class Login(Workflow):
    load = IterationsPerVU(vus=2, iterations=1)

    @step()
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        response = await self.client.http.get(url)
        self.context["token"] = {"kind": "bearer", "digits": [4, 2]}
        self.context["client"] = self.client
        return response


@depends(Login)
class Buy(Workflow):
    load = IterationsPerVU(vus=2, iterations=3)

    @step()
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url, headers={"x-token": str(self.context["token"]["digits"])})

    @check(get)
    def has_the_token(self) -> bool:
        return self.context["token"] == {"kind": "bearer", "digits": [4, 2]} and "client" not in self.context


@depends(Buy)
class Leave(Buy):
    """Of what reached Buy, and stayed in its context."""
