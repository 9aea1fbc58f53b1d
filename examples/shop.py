"""A user's journey as a graph: log in, look at two things at once, buy; with checks, a metric and thresholds.

Start a server with `talka demo-server` in another terminal, then: talka run examples/shop.py
"""

import os

from talka import URL, Auth, ConstantRate, Data, Headers, HTTPResponse, Params, Workflow, check, metric, step

TARGET = os.environ.get("TARGET", "http://127.0.0.1:8400")


class Shopper(Workflow):
    # Fifty new journeys a second, whatever became of earlier ones: what users would do.
    load = ConstantRate("50/s", "10s")
    thresholds = ["response_time.p95 < 200ms", "checks > 99%", "buy.failed < 1%"]

    @step()
    async def login(self, url: URL = f"{TARGET}/echo", auth: Auth = ("ada", "secret")) -> HTTPResponse:
        return await self.client.http.post(url, auth=auth)

    # These two run at the same time: both wait only for the login.
    @step(login)
    async def search(self, url: URL = f"{TARGET}/json", params: Params = {"q": "tea", "page": 1}) -> HTTPResponse:
        return await self.client.http.get(url, params=params)

    @step(login)
    async def basket(self, login: HTTPResponse, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url, headers={"x-session": str(len(login.content))})

    @step(search, basket)
    async def buy(
        self,
        url: URL = f"{TARGET}/echo",
        headers: Headers = {"accept": "application/json"},
        data: Data = {"item": "tea", "amount": 2},
    ) -> HTTPResponse:
        return await self.client.http.post(url, headers=headers, data=data)

    @check()
    def order_was_understood(self, buy: HTTPResponse) -> None:
        assert '"amount":2' in buy.json()["body"]

    @metric("distribution")
    def answer_bytes(self, search: HTTPResponse) -> float:
        return len(search.content)
