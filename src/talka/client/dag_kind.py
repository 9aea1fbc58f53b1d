"""Dag jobs as a kind of job, whoever keeps them: `DagControl` in the words of `JobKind`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from talka.client.dags import DAG_LIMIT_BYTES, DagControl
from talka.client.kinds import KindPage, KindUpdate, SubmitBounds
from talka.client.requests import NoResult
from talka.client.sheets import TASKS_SHOWN, JobSheet, dag_sheet
from talka.errors import Invalid
from talka.wire.security.access import Asker
from talka.wire.task_views import DagFacts
from talka.work.dags.dag import DagSpec, decode_dag
from talka.work.lifecycle import is_final

BOUNDS: Final = SubmitBounds(DAG_LIMIT_BYTES, "submit_dag")


class DagKind:
    name = "dag"

    def __init__(self, dags: DagControl, bounds: SubmitBounds = BOUNDS) -> None:
        self.bounds = bounds
        self.dags = dags
        """What else dag jobs can do."""

    def on_behalf(self, asker: Asker) -> "DagKind":
        return self

    def elsewhere(self, id: str) -> str:
        return f"what its tasks gave is at /v1/jobs/{id}/tasks"

    async def has(self, id: str) -> bool:
        return await self.dags.has_dag(id)

    async def submit(self, content: bytes, key: str, by: str) -> DagFacts:
        spec = decode_dag(content)
        check_not_scheduled(spec)
        return await self.dags.submit_dag(spec, key, by)

    async def get(self, id: str) -> DagFacts:
        return await self.dags.dag(id)

    async def list(self, state: str, cursor: str, limit: int) -> KindPage:
        page = await self.dags.dags(state, cursor, limit)
        return KindPage(page.items, page.cursors, page.next)

    async def cancel(self, id: str, reason: str) -> DagFacts:
        return await self.dags.cancel_dag(id, reason)

    async def watch(self, id: str, steps: bool) -> AsyncGenerator[KindUpdate, None]:
        async with aclosing(self.dags.watch_dag(id)) as updates:
            async for facts in updates:
                yield KindUpdate(facts, is_final(facts.state))

    async def result(self, id: str) -> bytes:
        """There may be too much for one document: it is read a page of tasks at a time."""
        await self.dags.dag(id)
        raise NoResult(f"job {id} is a {self.name} job: {self.elsewhere(id)}")

    async def view(self, id: str) -> JobSheet:
        facts = await self.dags.dag(id)
        return dag_sheet(facts, (await self.dags.dag_tasks(id, "", "", TASKS_SHOWN)).items)


def check_not_scheduled(spec: DagSpec) -> None:
    if spec.schedule:
        raise Invalid(f"{spec.name} has a schedule, so it is not submitted now: put it at /v1/schedules")
