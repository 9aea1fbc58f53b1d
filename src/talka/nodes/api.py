"""Load jobs from Python: `await talka.run([…])`, and a blocking twin for notebooks and pytest."""

import asyncio
import concurrent.futures
from collections.abc import Sequence
from typing import Literal, TypeAlias, TypedDict, Unpack

from talka.control.load.planning import Overrides
from talka.nodes.local import LocalOptions, run_workflows
from talka.report.document import ResultDocument
from talka.work.dsl import Workflow

Workflows: TypeAlias = Sequence[type[Workflow]] | type[Workflow]


class RunOptions(TypedDict, total=False):
    """What is given here replaces what the classes say."""

    cores: int | None
    vus: int | None
    rate: str | float | None
    duration: str | float | None
    iterations: int | None
    thresholds: Sequence[str]
    grace: str | float
    seed: int | None
    engine: Literal["auto", "native", "python"]
    allow_partial: bool


async def run(workflows: Workflows, **options: Unpack[RunOptions]) -> ResultDocument:
    """Run workflows on this machine and return the result."""
    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(
            f"run() does not know {', '.join(sorted(unknown))}: it takes {', '.join(RunOptions.__annotations__)}"
        )
    classes = [workflows] if isinstance(workflows, type) else list(workflows)
    return await run_workflows(
        classes,
        LocalOptions(
            cores=options.get("cores"),
            overrides=Overrides(
                vus=options.get("vus"),
                rate=options.get("rate"),
                duration=options.get("duration"),
                iterations=options.get("iterations"),
            ),
            thresholds=tuple(options.get("thresholds", ())),
            grace=options.get("grace", "30s"),
            seed=options.get("seed"),
            engine=options.get("engine", "auto"),
            allow_partial=options.get("allow_partial", False),
        ),
    )


def run_blocking(workflows: Workflows, **options: Unpack[RunOptions]) -> ResultDocument:
    """`run` for callers that cannot await. Where an event loop is running already, as in a notebook, it gets its
    own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run(workflows, **options))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(run(workflows, **options))).result()
