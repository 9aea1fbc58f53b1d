"""A workflow that takes longer than it may, and goes on with the rest once a person lets it."""

import asyncio

from talka import CustomResponse, IterationsPerVU, Workflow, setup, step


class Paused(Workflow):
    load = IterationsPerVU(2, 80)
    timeout = "1s"
    on_timeout = "pause"

    @setup()
    async def begin(self) -> None:
        self.metric("done_before", self.context.get("done", 0))

    @step()
    async def work(self) -> CustomResponse[None]:
        self.context["done"] = 1
        return await self.client.custom.call(asyncio.sleep(0.1))
