"""Each user of the feed logs in once, on whichever core; setup, teardown and pauses on the way."""

import os

from talka import URL, Feed, HTTPResponse, Workflow, between, setup, step, teardown

TARGET = os.environ["TARGET"]


class Fed(Workflow):
    vus = 6
    duration = "30s"
    think = between("1ms", "5ms")
    users = Feed.csv("users.csv", order="once")

    @setup()
    async def warm_up(self) -> None:
        await self.client.http.get(f"{TARGET}/json")

    @step()
    async def login(self, url: URL = f"{TARGET}/echo") -> HTTPResponse:
        return await self.client.http.post(url, json={"user": self.users.next()["name"]})

    @teardown()
    async def cool_down(self) -> None:
        await self.client.http.get(f"{TARGET}/json")
