"""Load shapes: ramps of users, ramps of arrivals, and a shape made by a function.

See the plans with `talka check examples/shapes.py`; run one with `talka run examples/shapes.py:RushHour`.
"""

import math
import os

from talka import URL, CustomVUs, HTTPResponse, RampingRate, RampingVUs, Workflow, step

TARGET = os.environ.get("TARGET", "http://127.0.0.1:8400")


class Page(Workflow):
    abstract = True  # only others inherit from it

    @step()
    async def page(self, url: URL = f"{TARGET}/delay/10") -> HTTPResponse:
        return await self.client.http.get(url)


class WarmUp(Page):
    load = RampingVUs([(20, "5s"), (20, "5s"), (0, "2s")])


class RushHour(Page):
    load = RampingRate([("200/s", "5s"), ("20/s", "5s")], start="20/s")


class Waves(Page):
    load = CustomVUs(lambda second: round(10 + 8 * math.sin(second)), "10s")
