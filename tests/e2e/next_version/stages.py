"""A long test in stages, one after the other. Each ends when its gate is open: a worker that leaves in the middle has
only its stage to finish, and the test says when."""

import asyncio
import os
from pathlib import Path

from talka import URL, ConstantRate, HTTPResponse, Workflow, depends, step, teardown

STAGES = 6
TARGET = os.environ["TARGET"] + "/delay/5"
GATES = Path(os.environ["GATES"])


class Stage(Workflow):
    abstract = True
    load = ConstantRate("100/s", "1s")

    @step()
    async def get(self, url: URL = TARGET) -> HTTPResponse:
        return await self.client.http.get(url)

    @teardown()
    async def wait_at_the_gate(self) -> None:
        """Not in silence: requests are counted all the time."""
        while not (GATES / type(self).__name__).exists():
            await self.client.http.get(TARGET)
            await asyncio.sleep(0.02)


class Stage1(Stage):
    pass


for number in range(2, STAGES + 1):
    stage = type(f"Stage{number}", (Stage,), {"__module__": __name__})
    globals()[stage.__name__] = depends(f"Stage{number - 1}")(stage)
