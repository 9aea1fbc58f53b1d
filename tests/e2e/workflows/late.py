"""A workflow that takes longer than it may, until it is told that its time is over."""

import asyncio

from talka import CustomResponse, Workflow, on_evict, step

OVER = asyncio.Event()


class Late(Workflow):
    timeout = "1s"

    @step()
    async def build(self) -> CustomResponse[bool]:
        more = await self.extend("20s", "the index is built")
        self.metric("given", more.granted_s)
        return await self.client.custom.call(OVER.wait())

    @on_evict()
    async def save(self) -> None:
        self.metric("saved", 7)
        OVER.set()
