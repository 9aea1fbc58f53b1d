# A journey for Talka: each user logs in once, then looks at one to five pages and orders in three of ten visits.
import os
import random

from talka import Workflow, on_start, step

TARGET = os.environ["TARGET"]


class Shopper(Workflow):
    @on_start()
    async def login(self):
        self.token = (await self.client.http.post(f"{TARGET}/login", json={"user": "ada"})).json()["token"]

    @step()
    async def visit(self):
        pages = random.randint(1, 5)
        for number in range(pages):
            await self.client.http.get(f"{TARGET}/page?id={number}", name="page")
            await self.pause("0.1s", "0.3s")
        if random.random() < 0.3:
            headers = {"Authorization": f"Bearer {self.token}"}
            await self.client.http.post(f"{TARGET}/order", json={"item": pages}, headers=headers, name="order")
