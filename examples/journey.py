"""A journey, as ordinary code: a login once for each user, a few pages, and an order from every third.

Every call is measured under its name. Each arrival is a user of its own, who begins with its login.
"""

import os
import random

from talka import URL, ConstantRate, Skip, Workflow, on_start, on_stop, step

TARGET = os.environ.get("TARGET", "http://127.0.0.1:8400")


class Shopper(Workflow):
    load = ConstantRate("20/s", "5s")
    thresholds = ["failed < 1%", "browse/page.failed < 1%"]

    @on_start()
    async def login(self, url: URL = f"{TARGET}/echo"):
        answer = await self.client.http.post(url, data=b"a token")
        self.token = answer.text

    @step(tags={"kind": "page"})
    async def browse(self, url: URL = f"{TARGET}/"):
        for _ in range(random.randint(1, 5)):
            await self.client.http.get(url, name="page")
            await self.pause("50ms", "150ms")

    @step(browse)
    async def order(self, url: URL = f"{TARGET}/echo"):
        if random.random() > 0.3:
            raise Skip
        await self.client.http.post(url, headers={"Authorization": f"Bearer {self.token}"}, json={"item": 7})
        self.metric("items", random.randint(1, 3))

    @on_stop()
    async def logout(self, url: URL = f"{TARGET}/echo"):
        await self.client.http.delete(url)
