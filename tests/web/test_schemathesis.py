"""Requests made of the API's own description, right ones and wrong ones: none may bring the server down.

The answers must be as described, too. The cluster behind it knows every job and task that it is asked for, so that
requests come further than a 404.
"""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from talka.web.openapi import document
from talka.work.dags.dag import TaskSpec
from talka.work.lifecycle import JobState
from tests.web.fake_control import Apis, FakeControl, FakeJob
from tests.web.fake_dags import FakeDag, FakeDags

EXAMPLES = 12
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


class KnowsEveryJob(FakeControl):
    def _job(self, id: str) -> FakeJob:
        return self.jobs_by_id[id] if id in self.jobs_by_id else self.add_job(id[:20])


class KnowsEveryDag(FakeDags):
    """But for those that begin with a capital: these are load jobs."""

    def _job(self, id: str) -> FakeDag:
        if id[:1].isupper():
            return super()._job(id)
        return self.jobs[id] if id in self.jobs else self.add(id, state=JobState.COMPLETED)

    def _task(self, id: str, task: str) -> TaskSpec:
        self._job(id)
        return TaskSpec(task, "etl")


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: schemathesis.SerializationContext, value: object) -> bytes:
    return str(value).encode(errors="replace")


schema = schemathesis.openapi.from_dict(
    json.loads(document()),
    config=schemathesis.Config.from_dict(
        {
            "seed": 7,
            "generation": {"deterministic": True, "database": "none"},
            # Their bodies are those of POST /v1/jobs, where every way to be wrong is tried.
            "operations": [
                {"include-operation-id": name, "phases": {"coverage": {"enabled": False}}}
                for name in ("bulk", "put_schedule")
            ],
        }
    ),
)


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """The API on a real socket, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[Apis, str]:
        apis = Apis()
        api = await apis.start(KnowsEveryJob(), dags=KnowsEveryDag())
        return apis, f"http://{api.address}"

    apis, url = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield url
    finally:
        asyncio.run_coroutine_threadsafe(apis.close(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@schema.exclude(operation_id=["watch", "submit_frames"]).parametrize()
@seed(7)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_brings_the_server_down(case: schemathesis.Case, base_url: str, session: requests.Session) -> None:
    case.call_and_validate(base_url=base_url, session=session, checks=list(CHECKS), timeout=20)
