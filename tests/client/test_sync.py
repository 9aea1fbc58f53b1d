"""`talka.Client` from a program without an event loop of its own."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import talka
from talka.client.requests import JobUpdate, NoSuchJob
from talka.errors import Invalid
from talka.report.document import BadResult
from talka.work.lifecycle import JobState
from tests.web.fake_control import Api, Apis

FILE = """
from talka import URL, HTTPResponse, Workflow, step


class Shop(Workflow):
    @step()
    async def front(self, url: URL = "http://127.0.0.1:1/") -> HTTPResponse:
        return await self.client.http.get(url)
"""


class Elsewhere:
    """An API in a thread of its own, as in another process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.apis = self.do(self._apis())
        self.api: Api = self.do(self.apis.start())

    async def _apis(self) -> Apis:
        return Apis()

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def close(self) -> None:
        self.do(self.apis.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    elsewhere = Elsewhere()
    try:
        yield elsewhere
    finally:
        elsewhere.close()


@pytest.fixture
def client(elsewhere: Elsewhere) -> Iterator[talka.Client]:
    with talka.Client(str(elsewhere.api.address)) as client:
        yield client


def test_a_file_is_submitted_watched_cancelled_and_its_result_read(
    client: talka.Client, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    path = tmp_path / "sync_shop.py"
    path.write_text(FILE)
    control = elsewhere.api.control

    facts = client.submit(path, vus=3, duration="5s", thresholds=["failed < 1%"], name="nightly")

    job = control.jobs_by_id[facts.id]
    assert (facts.name, job.order.workflows[0].plan.vus) == ("nightly", 3)
    assert client.job(facts.id) == facts
    assert client.jobs() == [facts]
    assert client.cancel(facts.id, "enough").cancel == "enough"
    elsewhere.do(control.tell(job, JobUpdate(facts, 1)))
    elsewhere.do(control.tell(job, JobUpdate(facts, 2, final=True)))
    assert [update.sequence for update in client.watch(facts.id)] == [1, 2]
    job.result = b"{}"
    with pytest.raises(BadResult):
        client.result(facts.id)


def test_a_watch_that_is_left_is_closed(client: talka.Client, elsewhere: Elsewhere) -> None:
    control = elsewhere.api.control
    job = control.add_job("job1")
    elsewhere.do(control.tell(job, JobUpdate(job.facts, 1)))

    for _ in client.watch("job1"):
        break

    elsewhere.do(control.watchers_become(0))


def test_jobs_of_every_page_are_listed(
    client: talka.Client, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talka.client.sync.PAGE_LIMIT", 2)
    for number in range(5):
        elsewhere.api.control.add_job(f"job{number}")
    elsewhere.api.control.add_job("queued", JobState.QUEUED)

    assert [facts.id for facts in client.jobs("running")] == [f"job{number}" for number in range(5)]


def test_workers_and_the_cluster_are_shown(client: talka.Client) -> None:
    assert [worker.name for worker in client.workers()] == ["w1"]
    assert client.drain("w1").state == "draining"
    assert client.cluster().leader == "m1"


def test_errors_come_through(client: talka.Client) -> None:
    with pytest.raises(NoSuchJob):
        client.job("nojob")
    with pytest.raises(TypeError, match="submit.. does not know users: it takes vus"):
        client.submit("shop.py", users=3)  # type: ignore[call-arg]


async def test_it_works_where_a_loop_is_running_already(elsewhere: Elsewhere) -> None:
    with talka.Client([str(elsewhere.api.address)]) as client:
        assert client.cluster().name == "shop"


def test_a_closed_client_says_so() -> None:
    client = talka.Client()
    client.close()
    client.close()

    with pytest.raises(Invalid, match="was closed"):
        client.cluster()
