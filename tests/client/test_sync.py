"""`talka.Client` from a program without an event loop of its own."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import talka
from talka.client.requests import PAGE_LIMIT, NoSuchJob
from talka.errors import Invalid
from talka.report.document import BadResult
from talka.wire.task_views import SkipRequest, TaskWants
from talka.wire.views import JobUpdate
from talka.work.dags.dag import BadDag, DagSpec, TaskSpec
from talka.work.lifecycle import JobState
from talka.work.specs import BadWorkflows
from tests.web.fake_control import Api, Apis
from tests.web.fake_dags import FakeDags

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


def test_jobs_of_every_page_are_listed(client: talka.Client, elsewhere: Elsewhere) -> None:
    count = 2 * PAGE_LIMIT + 1
    for number in range(count):
        elsewhere.api.control.add_job(f"job{number}")
    elsewhere.api.control.add_job("queued", JobState.QUEUED)

    assert [facts.id for facts in client.jobs("running")] == [f"job{number}" for number in range(count)]


def test_workers_and_the_cluster_are_shown(client: talka.Client) -> None:
    assert [worker.name for worker in client.workers()] == ["w1"]
    assert client.drain("w1").state == "draining"
    assert client.undrain("w1").state == "healthy"
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


# Dag jobs.


@pytest.fixture
def dag_client(elsewhere: Elsewhere) -> Iterator[tuple[talka.Client, FakeDags]]:
    dags = elsewhere.do(make_dags())
    api = elsewhere.do(elsewhere.apis.start(dags=dags))
    with talka.Client(str(api.address)) as client:
        yield client, dags


async def make_dags() -> FakeDags:
    return FakeDags()


SPEC = DagSpec(name="nightly", tasks=(TaskSpec("a", "etl"), TaskSpec("b", "etl", depends_on=("a",))))


def test_dags_are_submitted_in_every_way(dag_client: tuple[talka.Client, FakeDags]) -> None:
    client, dags = dag_client

    facts = client.submit_dag(SPEC, "k")

    assert client.submit_dag(SPEC, "k") == facts == client.dag(facts.id)
    assert [type(one) for one in client.submit_dags([SPEC])] == [type(facts)]
    assert client.stream_dag("streamed", (TaskSpec(f"t{n}", "etl") for n in range(3))).tasks == 3
    assert [answer.id for answer in client.submit_many([SPEC, TaskSpec("alone", "etl")])] == ["dag4", "dag5"]
    assert [(job.id, job.kind) for job in client.all_jobs()] == [(f"dag{n}", "dag") for n in range(5, 0, -1)]
    with pytest.raises(BadDag):
        client.submit_many([TaskSpec("a", "etl", depends_on=("b",)), SPEC])


ETL = """
from talka import handler

@handler("etl")
def etl(task):
    return 1
"""


def test_handlers_are_sent_along_with_each_way_to_submit_them(
    dag_client: tuple[talka.Client, FakeDags], elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, dags = dag_client
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "sync_etl.py").write_text(ETL)
    files = [tmp_path / "sync_etl.py"]

    facts = client.submit_dag(SPEC, "k", with_files=files)

    bundle = dags.keys["k"][0].bundle
    assert bundle is not None and (bundle.files, bundle.handlers) == (("sync_etl.py",), ("etl",))
    bundles = elsewhere.apis.started[-1].control.bundles
    [(digest, content)] = sent = bundles.items()
    assert (digest, len(content)) == (bundle.digest, bundle.size_bytes)
    bundles.clear()
    elsewhere.loop.call_soon_threadsafe(dags.tell, facts.id, JobState.COMPLETED)
    ended = client.run_dag(SPEC, "k", with_files=files)
    assert (ended.id, ended.state) == (facts.id, JobState.COMPLETED), "the same files are the same job"
    assert [*sent] == [(digest, content)]
    bundles.clear()
    client.put_schedule(msgspec.structs.replace(SPEC, schedule="@daily"), with_files=files)
    assert dags.scheduled["nightly"].bundle == bundle
    assert [*sent] == [(digest, content)]

    (tmp_path / "sync_etl.py").write_text("x = (\n")
    for send in (client.submit_dag, client.run_dag, client.put_schedule):
        with pytest.raises(BadWorkflows, match="sync_etl.py:1"):
            send(SPEC, with_files=files)
    assert len(dags.jobs) == 1


def test_dags_are_looked_at_and_changed(dag_client: tuple[talka.Client, FakeDags]) -> None:
    client, dags = dag_client
    id = client.submit_dag(SPEC).id

    assert [task.id for task in client.dag_tasks(id)] == ["a", "b"]
    assert client.dag_task(id, "a").handler == "etl"
    assert client.dag_events(id)[0].kind == "submitted"
    assert client.dag_graph(id).edges == [("a", "b")]
    assert client.why(id, "b").task == "b"
    assert client.task_logs(id, "a").items[0].text == "began"
    assert client.queues().queues[0].handler == "etl"
    assert client.dead_letters()[0].id == "dag1/a"
    assert client.pause_dag(id).state == JobState.PAUSED
    assert client.resume_dag(id).state == JobState.RUNNING
    assert client.retry_dag(id).state == JobState.RUNNING
    assert client.retry_plan(id).tasks[0].id == "a"
    assert client.who_could_run([TaskWants("etl")])[0].able == 1
    assert client.skip_dag(id, SkipRequest(("a",))).id == id
    assert client.replay(f"{id}/a").id == id
    assert client.cancel_dag(id, "enough").reason == "enough"
    view = client.put_schedule(msgspec.structs.replace(SPEC, schedule="@daily"))
    assert client.schedules() == [view]
    assert client.pause_schedule("nightly").paused and not client.resume_schedule("nightly").paused
    assert client.run_schedule("nightly").state == JobState.RUNNING
    assert client.backfill("nightly", "2026-11-01", "2026-11-02").name == "nightly"
    client.drop_schedule("nightly")
    assert client.schedules() == []


def test_a_dag_is_watched_and_waited_for(dag_client: tuple[talka.Client, FakeDags], elsewhere: Elsewhere) -> None:
    client, dags = dag_client
    id = client.submit_dag(SPEC).id
    updates = client.watch_dag(id)
    assert next(updates).state == JobState.QUEUED

    elsewhere.loop.call_soon_threadsafe(dags.tell, id, JobState.COMPLETED)

    assert [facts.state for facts in updates] == [JobState.COMPLETED]
    assert client.wait_dag(id).state == JobState.COMPLETED
