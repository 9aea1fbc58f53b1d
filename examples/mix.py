"""A mix: one rate for the whole file, which two kinds of user share 7 to 3, at every instant.

See the split with `talka check examples/mix.py`. Another load for both: talka run examples/mix.py --vus 20 --for 10s
"""

import os

from talka import URL, ConstantRate, Data, HTTPResponse, Workflow, step

TARGET = os.environ.get("TARGET", "http://127.0.0.1:8400")

load = ConstantRate("100/s", "10s")


class Browse(Workflow):
    share = 7

    @step()
    async def front_page(self, url: URL = f"{TARGET}/") -> HTTPResponse:
        return await self.client.http.get(url)


class Buy(Workflow):
    share = 3

    @step()
    async def order(self, url: URL = f"{TARGET}/echo", order: Data = {"item": 7}) -> HTTPResponse:
        return await self.client.http.post(url, data=order)
