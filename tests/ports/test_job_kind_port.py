"""A kind of job that only counts, in a folder of its own: registered at a real manager beside load and dag jobs, asked
through the real API by the real client and the real commands. Nothing in `src` knows it."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import talka
from talka.cli.main import run_command
from talka.client.client import Client
from talka.client.requests import Conflict, NoResult, NoSuchJob, NotEnded, TooLarge, WrongKind
from talka.errors import Invalid
from talka.nodes.manager import ManagerNode
from talka.web.app import make_app
from talka.web.server import serve
from talka.work.dags.dag import DagSpec, TaskSpec
from talka.work.lifecycle import JobState
from tests.nodes.small_cluster import small_cluster
from tests.ports.count_kind.kind import CountKind
from tests.ports.count_kind.spec import CountSpec

LIMIT_S = 60
FOLDER = Path(__file__).parent / "count_kind"
MOST_FILES = 6
DAG = DagSpec(name="nightly", tasks=(TaskSpec("a", "etl"),), wait_for_workers=True)

Found = TypeVar("Found")


class Counting:
    """A manager with its API in a thread of its own, and the kind at it."""

    def __init__(self, folder: Path) -> None:
        self.to = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="manager", daemon=True)
        self._thread.start()
        self._parts = contextlib.AsyncExitStack()
        self.do(self._start(folder))

    def do(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _start(self, folder: Path) -> None:
        self.may_count = asyncio.Semaphore(0)
        store = f"sqlite:///{folder / 'jobs.db'}"
        cluster = await self._parts.enter_async_context(small_cluster(folder, "m1", store=store))
        node = await cluster.leader()
        kind = CountKind(self._pace)
        self._parts.push_async_callback(kind.close)
        node.kinds.add(kind)
        self.to = await self._parts.enter_async_context(api_of(node))
        self.client = Client([self.to])

    async def _pace(self) -> None:
        await self.may_count.acquire()

    def let_count(self, numbers: int) -> None:
        async def release() -> None:
            for _ in range(numbers):
                self.may_count.release()

        self.do(release())

    def close(self) -> None:
        self.do(self._parts.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.asynccontextmanager
async def api_of(node: ManagerNode) -> AsyncIterator[str]:
    listener, stop, started = socket.create_server(("127.0.0.1", 0)), asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(
        serve(make_app(node.control, node.kinds), listener, stop=stop, on_started=started.set)
    )
    await started.wait()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        await serving
        listener.close()


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counting]:
    found = Counting(tmp_path_factory.mktemp("counting"))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def client(counting: Counting) -> Iterator[talka.Client]:
    with talka.Client(counting.to) as client:
        yield client


def test_the_kind_is_a_folder_of_at_most_six_files_and_nothing_in_src_names_it() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert 0 < len(files) <= MOST_FILES
    words = ("count_kind", "CountKind", "CountJob", "CountSpec", '"count" job', "kind: count", 'kind == "count"')
    sources = [path for path in Path(talka.__file__).parent.rglob("*.py")]
    assert [path for path in sources if any(word in path.read_text() for word in words)] == []


def test_a_job_is_submitted_fetched_watched_to_its_end_and_its_result_read(
    client: talka.Client, counting: Counting
) -> None:
    job = client.submit_any(CountSpec(3, "three"))

    assert (job.kind, job.name, job.state, job.tasks) == ("count", "three", JobState.RUNNING, 3)
    assert client.any_job(job.id) == job
    assert client.submit_any(CountSpec(4), "k").id == client.submit_any(CountSpec(4), "k").id != job.id
    with pytest.raises(Conflict, match="'k' was used for another job"):
        client.submit_any(CountSpec(5), "k")
    with pytest.raises(NotEnded, match=f"job {job.id} is running"):
        counting.do(counting.client.result(job.id))
    seen = []
    for update in client.watch_any(job.id):
        if not seen:
            counting.let_count(7)
        seen.append((update.state, update.counts["completed"]))
    assert seen[0] == (JobState.RUNNING, 0) and seen[-1] == (JobState.COMPLETED, 3)
    assert json.loads(counting.do(counting.client.result(job.id))) == {"counted": 3}
    sheet = client.view(job.id)
    assert (sheet.kind, sheet.state) == ("count", JobState.COMPLETED) and ("counted", "3 of 3") in sheet.rows


def test_a_job_is_cancelled_and_says_why(client: talka.Client) -> None:
    job = client.submit_any(CountSpec(1000))

    facts = client.cancel(job.id, "enough")

    assert (facts.state, facts.reason) == (JobState.CANCELLED, "enough")
    assert client.cancel(job.id, "again").reason == "enough"
    assert [update.state for update in client.watch_any(job.id)] == [JobState.CANCELLED]


def test_jobs_of_all_kinds_are_listed_newest_first_over_all_pages(
    client: talka.Client, counting: Counting, tmp_path: Path
) -> None:
    test = tmp_path / "port_shop.py"
    test.write_text(
        "from talka import CustomResponse, Workflow, step\n\n\nclass Shop(Workflow):\n    @step()\n"
        "    async def go(self) -> CustomResponse[int]:\n        return CustomResponse(1)\n"
    )
    ids = []
    for _ in range(3):
        ids.append(client.submit_any(CountSpec(1000)).id)
        ids.append(client.submit_dag(DAG).id)
        ids.append(client.submit(test, iterations=1).id)
    kinds = {job.id: job.kind for job in client.all_jobs()}
    assert [kinds[id] for id in ids] == ["count", "dag", "load"] * 3

    page = counting.do(counting.client.all_jobs("", "", 2))
    late = client.submit_dag(DAG).id
    found = page.items
    while page.next:
        page = counting.do(counting.client.all_jobs("", page.next, 2))
        assert 0 < len(page.items) <= 2
        found += page.items

    assert sorted(job.id for job in found) == sorted(kinds), "each once, and none that came after the first page"
    assert [job.submitted_at for job in found] == sorted([job.submitted_at for job in found], reverse=True)
    assert late in [job.id for job in client.all_jobs()]
    assert {job.kind for job in client.all_jobs("running") if job.id in ids} == {"count", "dag"}


def test_what_another_kind_can_do_is_refused_with_a_sentence(client: talka.Client, counting: Counting) -> None:
    count, dag = client.submit_any(CountSpec(1000)).id, client.submit_dag(DAG).id

    with pytest.raises(WrongKind, match=f"job {count} is a count job: how far it came is at /v1/jobs/{count}/result"):
        client.pause_dag(count)
    with pytest.raises(NoResult, match=f"job {count} is a count job"):
        counting.do(counting.client.order(count))
    with pytest.raises(NoResult, match=f"job {dag} is a dag job: what its tasks gave is at /v1/jobs/{dag}/tasks"):
        counting.do(counting.client.result(dag))
    for ask in (client.any_job, client.view, client.cancel, client.pause_dag):
        with pytest.raises(NoSuchJob, match="there is no job nojob: talka jobs lists those that are known") as refusal:
            ask("nojob")
        assert not isinstance(refusal.value, WrongKind)


def test_what_is_no_job_is_refused_by_its_kind(client: talka.Client) -> None:
    for spec, error, words in (
        ({"kind": "count", "to": 0}, Invalid, "`int` >= 1"),
        ({"kind": "count", "to": 1, "name": "n" * 2000}, TooLarge, "at most 1024 are read of a count job"),
        ({"kind": "guess"}, Invalid, "no job is of kind 'guess': kinds are dag, count, load"),
    ):
        with pytest.raises(error, match=words):
            client.submit_any(spec)


def test_commands_list_show_watch_and_cancel_it(
    client: talka.Client, counting: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = run_command(["jobs", *arguments, "--to", counting.to])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    job = client.submit_any(CountSpec(2, "two"))
    code, out, _ = command("list", "--state", "running")
    assert code == 0 and f"{job.id}  two " in out and " 0/2 " in out
    code, out, _ = command("show", job.id)
    assert code == 0 and "counted    0 of 2" in out and "state      running" in out
    assert json.loads(command("show", job.id, "--json")[1])["kind"] == "count"
    assert command("result", job.id)[0] == 2
    code, out, err = command("cancel", job.id, "--reason", "enough")
    assert (code, err) == (0, "") and f"job {job.id} has ended: it is cancelled" in out
    code, out, err = command("watch", job.id)
    assert code == 8 and "state      cancelled: enough" in out and f"watching job {job.id}" in err
    code, out, _ = command("result", job.id, "--json")
    assert code == 0 and json.loads(out) == {"counted": 0}
    code, _, err = command("logs", job.id)
    assert code == 2 and f"job {job.id} is a count job: only load tests print lines" in err

    job = client.submit_any(CountSpec(2))
    counting.let_count(10_000)
    code, out, _ = command("watch", job.id, "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and told[-1]["state"] == "completed" and told[-1]["counts"]["completed"] == 2
    assert command("watch", job.id, "--ui", "none") == (0, command("show", job.id)[1], "")
