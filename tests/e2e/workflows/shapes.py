"""Every load shape, one workflow each."""

import os

from talka import (
    URL,
    ConstantRate,
    ConstantVUs,
    CustomRate,
    CustomVUs,
    HTTPResponse,
    IterationsPerVU,
    RampingRate,
    RampingVUs,
    SharedIterations,
    Workflow,
    step,
)


class Base(Workflow):
    abstract = True

    @step()
    async def get(self, url: URL = os.environ["TARGET"] + "/delay/5") -> HTTPResponse:
        return await self.client.http.get(url)


class ConstantUsers(Base):
    load = ConstantVUs(7, "1.5s")


class RampingUsers(Base):
    load = RampingVUs([(10, "1s"), (3, "1s")], start=2)


class SteadyRate(Base):
    load = ConstantRate("150/s", "2s")


class RampedRate(Base):
    load = RampingRate([("200/s", "1s"), ("50/s", "1s")])


class PerUser(Base):
    load = IterationsPerVU(5, 40)


class Shared(Base):
    load = SharedIterations(5, 203)


class CustomUsers(Base):
    load = CustomVUs(lambda second: 2 + 3 * int(second * 2), "2s", every="500ms")


class CustomArrivals(Base):
    load = CustomRate(lambda second: 40 if second < 1 else 120, "2s", every="500ms")
