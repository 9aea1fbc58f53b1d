"""Jobs on this machine: how classes and files become one, what may go wrong before it, and what it ends with."""

import asyncio
import importlib.util
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from talka.clock import monotonic_ns
from talka.control.load.load_job import LoadJob
from talka.control.load.planning import Overrides
from talka.engine.loader import NoSuchFile, in_memory
from talka.errors import Invalid
from talka.net.descriptors import TooFewDescriptors
from talka.nodes import local
from talka.nodes.local import (
    LocalJob,
    LocalOptions,
    NoSuchEngine,
    TooManyUsers,
    importable_file,
    job_from_file,
    job_from_url,
    physical_cores,
    run_workflows,
)
from talka.wire.shards import FileSource, MemorySource
from talka.work.dsl import Provide, Use, Workflow, action, depends, state, step
from talka.work.inspection import inspect_workflows
from talka.work.outcome import ExitCode
from talka.work.responses import CustomResponse
from talka.work.shapes import ConstantVUs, IterationsPerVU, SharedIterations
from talka.work.specs import BadWorkflows

Answer = CustomResponse[Any]

SHOP = """
import os
from talka import CustomResponse, IterationsPerVU, Workflow, step

class Shop(Workflow):
    load = IterationsPerVU(4, 5)

    @step()
    async def go(self) -> CustomResponse[int]:
        return CustomResponse(os.getpid())

class Other(Workflow):
    @step()
    async def go(self) -> CustomResponse[int]:
        return CustomResponse(1)
"""


def written(folder: Path, text: str = SHOP, name: str = "shop.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def job_of(*workflows: type[Workflow], **options: Any) -> LocalJob:
    return LocalJob(MemorySource("none"), inspect_workflows(workflows), LocalOptions(**options))


class Plain(Workflow):
    load = ConstantVUs(10, "1h")

    @step()
    async def go(self) -> Answer:
        return CustomResponse(1)


# Classes no file holds.


async def test_classes_of_a_function_run_in_a_thread_of_this_process_on_one_core() -> None:
    seen: set[tuple[int, int]] = set()

    class Shop(Workflow):
        load = IterationsPerVU(3, 4)

        @step()
        async def go(self) -> Answer:
            seen.add((os.getpid(), threading.get_ident()))
            return CustomResponse(1)

    document = await run_workflows([Shop], LocalOptions(cores=4))
    assert (document.status, document.exit_code) == ("completed", ExitCode.HELD)
    [workflow] = document.workflows
    assert (workflow.cores, workflow.iterations, workflow.steps[0].ok) == (1, 12, 12)
    [(pid, thread)] = seen
    assert pid == os.getpid() and thread != threading.get_ident()
    assert (document.job.name, document.job.file) == ("Shop", None)
    assert in_memory == {}


async def test_values_flow_from_one_workflow_to_the_next() -> None:
    used: list[str] = []

    class Login(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse("secret")

        @state("Shop")
        def token(self) -> Provide[str]:
            return str(self.go.response.value)

    @depends(Login)
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            used.extend([self.known(), self.context["token"]])
            return CustomResponse(1)

        @state(Login)
        def known(self, token: str) -> Use[str]:
            return token

    document = await run_workflows([Login, Shop], LocalOptions())
    assert document.status == "completed"
    assert used == ["secret", "secret"]


async def test_a_job_that_cannot_be_planned_leaves_nothing_in_memory() -> None:
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

    with pytest.raises(Invalid, match="p99"):
        await run_workflows([Shop], LocalOptions(thresholds=("p99 of nothing < 1ms",)))
    assert in_memory == {}


async def test_a_user_that_exits_ends_the_job_and_not_the_process() -> None:
    class Leaving(Workflow):
        load = ConstantVUs(1, "1h")

        @step()
        async def go(self) -> Answer:
            sys.exit(3)

    document = await run_workflows([Leaving], LocalOptions())
    assert document.exit_code == ExitCode.INCOMPLETE
    assert {lost.cause.partition(" (")[0] for lost in document.lost_shards} == {"ended with SystemExit: 3"}


async def test_a_setup_that_raises_fails_the_job_before_its_load() -> None:
    class Setup(Workflow):
        @action()
        def create(self) -> None:
            raise LookupError("no database")

    @depends(Setup)
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            raise AssertionError("must not run")

    document = await run_workflows([Setup, Shop], LocalOptions())
    assert document.exit_code == ExitCode.BAD_FILE
    assert document.reasons[0].startswith("Setup: create raised LookupError: no database")
    assert [workflow.status for workflow in document.workflows] == ["failed", "skipped"]


# Classes of a file.


@pytest.fixture
def imported() -> Iterator[Callable[[str], ModuleType]]:
    names: list[str] = []

    def import_it(path: str) -> ModuleType:
        name = f"imported_{len(names)}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield import_it
    for name in names:
        del sys.modules[name]


async def test_classes_of_a_file_run_in_core_processes(
    tmp_path: Path, imported: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = psutil.Process().children()
    progress: list[tuple[LoadJob, int]] = []
    path = written(tmp_path)
    job = job_from_file(path, ["Shop"], LocalOptions(cores=2))
    document = await job.run(on_progress=lambda job, now: progress.append((job, now)))
    assert document.status == "completed", document.reasons
    [workflow] = document.workflows
    assert (workflow.name, workflow.cores, workflow.iterations) == ("Shop", 2, 20)
    assert (document.job.name, document.job.file) == ("shop.py", path)
    assert progress and progress[0][1] <= monotonic_ns()
    assert psutil.Process().children() == before

    module = imported(path)
    document = await run_workflows([module.Shop], LocalOptions(cores=1))
    assert (document.status, document.job.file) == ("completed", path)
    assert [workflow.name for workflow in document.workflows] == ["Shop"]


def test_the_file_that_holds_all_the_classes_is_found(tmp_path: Path, imported: Callable[[str], ModuleType]) -> None:
    one = imported(written(tmp_path))
    assert importable_file([one.Shop]) == importable_file([one.Shop, one.Other]) == str(tmp_path / "shop.py")


def test_classes_that_no_one_file_holds_have_no_file(tmp_path: Path, imported: Callable[[str], ModuleType]) -> None:
    one, two = imported(written(tmp_path)), imported(written(tmp_path, name="two.py"))
    assert importable_file([one.Shop, two.Other]) is None, "two files"

    class Nested(Workflow):
        pass

    assert importable_file([Nested]) is None, "inside a function"
    replaced, one.Shop = one.Shop, one.Other
    assert importable_file([replaced]) is None, "its name means another class by now"
    (tmp_path / "two.py").unlink()
    assert importable_file([two.Shop]) is None, "the file is gone"
    adrift = type("Adrift", (Workflow,), {"__module__": "a_module_nobody_imported"})
    assert importable_file([adrift]) is None, "no module"
    console = type("Console", (Workflow,), {"__module__": "builtins"})
    assert importable_file([console]) is None, "a module without a file, such as a notebook's"


async def test_no_workflows_are_refused() -> None:
    with pytest.raises(Invalid, match="there are no workflows to run"):
        await run_workflows([], LocalOptions())


def test_a_file_that_starts_its_own_job_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, SHOP + "\nimport talka\ntalka.run_blocking(Shop)\n")
    with pytest.raises(BadWorkflows, match=r"shop\.py:18: .*under if __name__ == \"__main__\" only"):
        job_from_file(path, [], LocalOptions())


def test_cores_find_the_file_even_if_its_import_changes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = written(tmp_path, SHOP + "\nos.chdir('elsewhere')\n")
    monkeypatch.chdir(tmp_path)
    job = job_from_file("shop.py", [], LocalOptions())
    assert Path.cwd().name == "elsewhere"
    assert job.spec.source == FileSource(path)


def test_only_the_named_workflows_of_a_file_are_planned(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert [spec.name for spec in job_from_file(path, [], LocalOptions()).specs] == ["Shop", "Other"]
    assert [spec.name for spec in job_from_file(path, ["Other"], LocalOptions()).specs] == ["Other"]
    with pytest.raises(NoSuchFile, match="Shopp"):
        job_from_file(path, ["Shopp"], LocalOptions())


def test_a_url_is_a_job_of_its_own() -> None:
    job = job_from_url("http://localhost:1/x", LocalOptions())
    assert (job.name, job.file) == ("http://localhost:1/x", None)
    assert [spec.name for spec in job.specs] == ["Url"]


# Options.


@pytest.mark.parametrize("cores", [0, -1])
def test_a_job_needs_a_core(cores: int) -> None:
    with pytest.raises(Invalid, match=f"cores = {cores} means that nothing would run: give at least 1"):
        job_of(Plain, cores=cores)


def test_a_native_engine_that_is_not_there_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.native, "available", lambda: "it was not built")
    with pytest.raises(NoSuchEngine, match="there is no native engine here: it was not built"):
        job_from_url("http://127.0.0.1:1/", LocalOptions(engine="native"))
    assert job_from_url("http://127.0.0.1:1/", LocalOptions()).spec.settings.engine == "auto"


def test_cores_are_those_given_or_those_of_the_machine() -> None:
    assert job_of(Plain, cores=3).spec.cores == 3
    assert job_of(Plain).spec.cores == physical_cores()


def test_what_is_given_replaces_what_the_class_says() -> None:
    job = job_of(Plain, overrides=Overrides(vus=2, iterations=7))
    assert job.specs[0].shape == SharedIterations(2, 7)
    assert job.spec.workflows[0].plan.shared_iterations == 7


def test_settings_reach_every_core() -> None:
    settings = job_of(Plain, grace="5s", seed=9, engine="python").spec.settings
    assert (settings.grace_ns, settings.seed, settings.engine) == (5_000_000_000, 9, "python")


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": ("response_time.p99 < soon",)},
        {"thresholds": ("nosuch.response_time.p99 < 1ms",)},
        {"grace": "a while"},
        {"overrides": Overrides(rate=5, iterations=5)},
        {"overrides": Overrides(vus=0)},
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        job_of(Plain, **options)


def test_arguments_that_cannot_be_prepared_are_refused_before_anything_runs(tmp_path: Path) -> None:
    text = SHOP.replace("self)", "self, page: File = 'none.html')").replace(
        "import os", "from talka import File\nimport os"
    )
    with pytest.raises(BadWorkflows, match=r"shop\.py:\d+: Shop\.go, page: .*none\.html"):
        job_from_file(written(tmp_path, text), [], LocalOptions())


def test_thresholds_over_the_whole_job_are_judged_in_the_end() -> None:
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

    document = asyncio.run(run_workflows([Shop], LocalOptions(thresholds=("failed < 1%", "response_time.p99 < 0ms"))))
    assert [rule.passed for rule in document.thresholds] == [True, False]
    assert document.exit_code == ExitCode.THRESHOLD_CROSSED


# The machine.


def test_physical_cores_are_never_more_than_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = len(os.sched_getaffinity(0))
    assert 1 <= physical_cores() <= allowed
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 4_000)
    assert physical_cores() == allowed
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    assert physical_cores() == allowed
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 1)
    assert physical_cores() == 1


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The limit of open files, soft and hard, as the system would tell it; `set` is what it was asked for."""
    told: dict[str, Any] = {"now": (50, 1000), "set": None, "refuses": False}

    def setrlimit(_: int, wanted: tuple[int, int]) -> None:
        if told["refuses"]:
            raise ValueError("current limit exceeds maximum limit")
        told["set"] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: told["now"])
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    return told


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(limits: dict[str, Any]) -> None:
    local.raise_descriptor_limit(job_of(Plain).spec)
    assert limits["set"] == (1000, 1000)


async def test_more_users_than_files_may_be_open_are_refused(limits: dict[str, Any]) -> None:
    job = job_of(Plain, cores=2, overrides=Overrides(vus=1874, duration="1s"))
    with pytest.raises(TooManyUsers, match=r"Plain wants 937 virtual users in one core process, which may open 1000"):
        await job.run()
    local.raise_descriptor_limit(job_of(Plain, cores=2, overrides=Overrides(vus=1872)).spec)


def test_users_of_workflows_that_share_a_core_add_up(limits: dict[str, Any]) -> None:
    class Other(Plain):
        load = ConstantVUs(900, "1h")

    local.raise_descriptor_limit(job_of(Plain, Other, cores=2, overrides=Overrides(vus=900)).spec)
    text = (
        r"Other wants 900 virtual users in one core process, which may open 1000 files and has 900 of other workflows: "
    )
    with pytest.raises(TooManyUsers, match=text):
        local.raise_descriptor_limit(job_of(Plain, Other, cores=1, overrides=Overrides(vus=900)).spec)


def test_where_the_limit_cannot_be_raised_the_present_one_counts(limits: dict[str, Any]) -> None:
    limits["refuses"] = True
    with pytest.raises(TooFewDescriptors, match=r"this process may open 50 files, .* raise the limit \(ulimit -n"):
        local.raise_descriptor_limit(job_of(Plain).spec)


# Several workflows.


async def test_classes_no_file_holds_run_at_the_same_time_in_one_thread() -> None:
    begun: dict[str, None] = {}

    class Meeting(Workflow):
        abstract = True

        @step()
        async def go(self) -> Answer:
            """Ends only where the other has begun as well."""
            begun[type(self).__name__] = None
            while len(begun) < 2:  # noqa: ASYNC110 - they run in another thread's event loop
                await asyncio.sleep(0.001)
            return CustomResponse(1)

    class One(Meeting): ...

    class Two(Meeting): ...

    result = await run_workflows([One, Two], LocalOptions(grace=60))

    assert result.status == "completed"
    assert {workflow.name: workflow.shares_cores_with for workflow in result.workflows} == {
        "One": ["Two"],
        "Two": ["One"],
    }


# Signals.


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each signal that has reached the job."""
    heard = threading.Semaphore(0)
    interrupt = local.LocalRunner.interrupt

    def note(runner: local.LocalRunner, name: Any) -> None:
        interrupt(runner, name)
        heard.release()

    monkeypatch.setattr(local.LocalRunner, "interrupt", note)
    return heard


def waiting_workflow(signals: list[signal.Signals], heard: threading.Semaphore) -> type[Workflow]:
    """Each signal is sent when the step is in; then it waits for ever."""

    class Waiting(Workflow):
        load = ConstantVUs(1, "1h")

        @step()
        async def go(self) -> Answer:
            for sent in signals:
                os.kill(os.getpid(), sent)
                await asyncio.to_thread(heard.acquire, timeout=30)  # two of a kind on their way are one
            return await self.client.custom.call(asyncio.Event().wait())

    return Waiting


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_an_interrupted_job_ends_with_its_report(
    sent: signal.Signals, code: int, heard: threading.Semaphore
) -> None:
    document = await run_workflows([waiting_workflow([sent], heard)], LocalOptions(grace=0.1), handle_signals=True)
    assert (document.status, document.exit_code) == ("cancelled", code)
    assert document.workflows[0].steps[0].interrupted == 1
    assert not asyncio.get_running_loop().remove_signal_handler(sent), "the handler is gone with the job"


async def test_a_second_interrupt_does_not_wait_for_the_grace_period(heard: threading.Semaphore) -> None:
    workflow = waiting_workflow([signal.SIGINT, signal.SIGINT], heard)
    async with asyncio.timeout(60):
        document = await run_workflows([workflow], LocalOptions(grace="1h"), handle_signals=True)
    assert (document.status, document.exit_code) == ("cancelled", 130)
    assert document.workflows[0].steps[0].interrupted == 1
