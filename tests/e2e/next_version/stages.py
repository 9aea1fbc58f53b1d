"""A long test in short stages, one after the other: a worker that leaves in the middle has only a stage to finish."""

import os

from talka import URL, ConstantRate, HTTPResponse, Workflow, depends, step

STAGES = 9


class Stage(Workflow):
    abstract = True
    load = ConstantRate("100/s", "2s")

    @step()
    async def get(self, url: URL = os.environ["TARGET"] + "/delay/5") -> HTTPResponse:
        return await self.client.http.get(url)


class Stage1(Stage):
    pass


for number in range(2, STAGES + 1):
    stage = type(f"Stage{number}", (Stage,), {"__module__": __name__})
    globals()[stage.__name__] = depends(f"Stage{number - 1}")(stage)
