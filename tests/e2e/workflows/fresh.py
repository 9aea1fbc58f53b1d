"""Arrivals that sign in unless they are known: three requests of a new user, two of one that was there before."""

import os

from talka import ConstantRate, HTTPResponse, Workflow, check, step

TARGET = os.environ["TARGET"]


class Visitor(Workflow):
    load = ConstantRate("30/s", "2s")

    @step()
    async def enter(self) -> HTTPResponse:
        self.visits = getattr(self, "visits", 0) + 1
        response = await self.client.http.get(f"{TARGET}/cookie", name="look")
        if not response.json():
            await self.client.http.get(f"{TARGET}/cookie/set?user=known", name="sign in")
        return response

    @step(enter)
    async def stay(self) -> HTTPResponse:
        return await self.client.http.get(f"{TARGET}/cookie")

    @check(enter)
    def is_nobody_yet(self, enter: HTTPResponse) -> bool:
        return enter.json() == {} and self.visits == 1

    @check(stay)
    def is_known_now(self, stay: HTTPResponse) -> bool:
        return stay.json() == {"user": "known"}
