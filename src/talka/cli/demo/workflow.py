"""The test that `talka demo` runs: a customer looks at a shop, reads its list of goods and places an order."""

import os

from talka.work.arguments import URL, Data, Headers
from talka.work.dsl import Workflow, check, metric, step
from talka.work.responses import HTTPResponse
from talka.work.shapes import ConstantRate

BASE = os.environ.get("TALKA_DEMO_URL", "http://127.0.0.1:8400")


class Customer(Workflow):
    load = ConstantRate("50/s", "5s")
    thresholds = ("failed < 1%", "response_time.p95 < 500ms", "checks > 99%")

    @step()
    async def home(self, url: URL = f"{BASE}/") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("home")
    async def goods(self, url: URL = f"{BASE}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @step("goods")
    async def order(
        self,
        url: URL = f"{BASE}/echo",
        headers: Headers = {"Content-Type": "application/json"},  # noqa: B006 - prepared once and never changed
        data: Data = '{"item": 2, "pieces": 1}',
    ) -> HTTPResponse:
        return await self.client.http.post(url, headers=headers, data=data)

    @check()
    def order_is_confirmed(self, order: HTTPResponse) -> bool:
        return bool(order.json()["method"] == "POST")

    @metric("distribution")
    def goods_listed(self, goods: HTTPResponse) -> int:
        return len(goods.json()["items"])
