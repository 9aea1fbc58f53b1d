"""Load jobs from Python: `await talka.run([…])`, and a blocking twin for notebooks and pytest."""

import asyncio
import concurrent.futures
from collections.abc import Sequence

from talka.control.planning_load import Overrides
from talka.nodes.local import LocalOptions, run_workflows
from talka.report.document import ResultDocument
from talka.work.dsl import Workflow


async def run(
    workflows: Sequence[type[Workflow]] | type[Workflow],
    *,
    cores: int | None = None,
    vus: int | None = None,
    rate: str | float | None = None,
    duration: str | float | None = None,
    iterations: int | None = None,
    thresholds: Sequence[str] = (),
    grace: str | float = "30s",
    seed: int | None = None,
    allow_partial: bool = False,
) -> ResultDocument:
    """Run workflows on this machine and return the result. What is given here replaces what the classes say."""
    options = LocalOptions(
        cores=cores,
        overrides=Overrides(vus=vus, rate=rate, duration=duration, iterations=iterations),
        thresholds=tuple(thresholds),
        grace=grace,
        seed=seed,
        allow_partial=allow_partial,
    )
    classes = [workflows] if isinstance(workflows, type) else list(workflows)
    return await run_workflows(classes, options)


def run_blocking(
    workflows: Sequence[type[Workflow]] | type[Workflow],
    *,
    cores: int | None = None,
    vus: int | None = None,
    rate: str | float | None = None,
    duration: str | float | None = None,
    iterations: int | None = None,
    thresholds: Sequence[str] = (),
    grace: str | float = "30s",
    seed: int | None = None,
    allow_partial: bool = False,
) -> ResultDocument:
    """`run` for callers that cannot await. Where an event loop is running already, as in a notebook, it gets its own."""

    def work() -> ResultDocument:
        return asyncio.run(
            run(
                workflows,
                cores=cores,
                vus=vus,
                rate=rate,
                duration=duration,
                iterations=iterations,
                thresholds=thresholds,
                grace=grace,
                seed=seed,
                allow_partial=allow_partial,
            )
        )

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
