"""What `talka check` says of a pipeline."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.cli.pipeline_check import (
    GroupPlan,
    LayerPlan,
    PipelinePlan,
    bundle_text,
    groups_of,
    layers_of,
    params_of,
    plan_of,
    plan_text,
)
from talka.client.requests import ClusterUnreachable
from talka.wire.task_views import Reason, TaskWants, TaskWorkers
from talka.work.dags.dag import CodeBundle, DagSpec, Param, TaskSpec

NIGHTLY = """
name: nightly
params:
  day: {type: date}
  parts: {type: int, default: 4}
tasks:
  - {id: load, handler: load, depends_on: [clean-1, clean-2, clean-3], min_memory: 2GB}
  - {id: extract, handler: extract, config: {day: "${day}"}}
  - {id: clean-1, handler: clean, depends_on: [extract]}
  - {id: clean-2, handler: clean, depends_on: [extract]}
  - {id: clean-3, handler: clean, depends_on: [extract], capabilities: [gpu]}
"""
DAG = """
from talka import Dag

print("imported")
dag = Dag("made", params={"day": {"type": "date"}})
dag.task("load", "load", "${day}", after=dag.task("extract", "extract"))
"""
FITS = TaskWorkers("", 2, [Reason("w1", "", "it can run here"), Reason("w2", "slots", "it is full")])
LACKS = TaskWorkers(
    'no worker with the handler "clean" has the capability "gpu"; known: ssd',
    0,
    [Reason("w1", "capability", "it lacks gpu"), Reason("w2", "handler", "it has no clean")],
)


class FakeClient:
    def __init__(self) -> None:
        self.asked: list[list[TaskWants]] = []
        self.answers: dict[tuple[str, ...], TaskWorkers] = {}
        self.error: Exception | None = None

    def __call__(self, addresses: list[str], token: str | None, ca: str | None, **more: Any) -> "FakeClient":
        return self

    async def who_could_run(self, wants: Sequence[TaskWants]) -> list[TaskWorkers]:
        self.asked.append(list(wants))
        if self.error is not None:
            raise self.error
        return [self.answers.get((one.handler, *one.capabilities), FITS) for one in wants]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr("talka.client.client.Client", client)
    return client


@pytest.fixture
def file(folder: Path) -> str:
    (folder / "nightly.yaml").write_text(NIGHTLY)
    return "nightly.yaml"


def test_a_pipeline_is_shown_and_nobody_is_asked(
    file: str, command: Any, cluster: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALKA_TO", "127.0.0.1:9")
    code, out, err = command("check", file)
    assert (code, err, cluster.asked) == (0, "", [])
    assert (
        out
        == """\
nightly: 5 tasks in 3 layers, at most 3 at once
param day: must be given, --param day=DATE
param parts = 4 (the default)

LAYER  TASKS
1      1      extract
2      3      clean-1, clean-2, clean-3
3      1      load

HANDLER  TASKS  WANTS
load     1      2,000,000,000 bytes
extract  1
clean    2
clean    1      gpu
"""
    )


def test_with_values_all_of_them_are_checked(file: str, command: Any, cluster: FakeClient) -> None:
    code, out, _ = command("check", file, "--param", "day=2026-11-16")
    assert code == 0 and "param day = 2026-11-16\n" in out
    code, out, err = command("check", file, "--param", "parts=x")
    assert (code, out) == (3, "")
    assert "nightly.yaml:4: param day has no default" in err and 'nightly.yaml:5: param parts: "x" is not' in err


def test_what_is_wrong_with_a_file_is_told(folder: Path, command: Any, cluster: FakeClient) -> None:
    (folder / "bad.yaml").write_text("name: n\ntasks:\n  - {id: a, handler: h, depends_on: [a], config: '${x}'}\n")
    code, out, err = command("check", "bad.yaml", "--to", "127.0.0.1:9")
    assert (code, out, cluster.asked) == (3, "", [])
    assert "bad.yaml:3: task a: depends on itself" in err and "there is no such param" in err


def test_a_pipeline_in_python_is_checked_too(folder: Path, command: Any, cluster: FakeClient) -> None:
    (folder / "made.py").write_text(DAG)
    code, out, err = command("check", "made.py")
    assert (code, err) == (0, "imported\n") and out.startswith("made: 2 tasks in 2 layers, at most 1 at once\n")
    assert command("check", "made.py", "--param", "day=1").code == 3


def test_who_could_run_its_tasks_is_asked_once_for_equal_ones(file: str, command: Any, cluster: FakeClient) -> None:
    code, out, err = command("check", file, "--to", "127.0.0.1:9")
    assert (code, err) == (0, "")
    assert cluster.asked == [
        [TaskWants("load", [], 2 * 10**9), TaskWants("extract"), TaskWants("clean"), TaskWants("clean", ["gpu"])]
    ]
    assert "extract  1                           ✓ w1, w2\n" in out


def test_what_nobody_could_run_comes_first_with_why_and_is_exit_code_3(
    file: str, command: Any, cluster: FakeClient
) -> None:
    cluster.answers = {
        ("clean", "gpu"): LACKS,
        ("load",): TaskWorkers('no worker has the handler "load"; known: x', 0, [Reason("w1", "handler", "it has x")]),
        ("extract",): TaskWorkers("", 0, [Reason("w1", "draining", "it is draining")]),
        ("clean",): TaskWorkers(),
    }
    code, out, err = command("check", file, "--to", "127.0.0.1:9")
    assert code == 3
    assert err == (
        "no worker could run 2 tasks of 5: start workers that have what they want, or submit with --wait-for-workers\n"
    )
    assert out.endswith(
        """\
HANDLER  TASKS  WANTS                COULD RUN
load     1      2,000,000,000 bytes  ✗ no worker has the handler "load"; known: x
clean    1      gpu                  ✗ no worker with the handler "clean" has the capability "gpu"; known: ssd
                                       w1: it lacks gpu
                                       w2: it has no clean
extract  1                           ! not now: w1: it is draining
clean    2                           ! not now: whoever could is away
"""
    )


def test_of_tasks_that_nobody_takes_now_it_is_told_why_those_do_not_that_could(
    file: str, command: Any, cluster: FakeClient
) -> None:
    lacks = Reason("w1", "capability", "it lacks gpu")
    cluster.answers = {
        ("clean", "gpu"): TaskWorkers("", 0, [lacks, Reason("w2", "draining", "it is draining")]),
        ("extract",): TaskWorkers("", 0, [Reason("w1", "handler", "it has x")]),
    }
    code, out, _ = command("check", file, "--to", "127.0.0.1:9")
    assert code == 0
    assert "gpu                  ! not now: w2: it is draining\n" in out
    assert "extract  1                           ! not now: whoever could is away\n" in out


def test_a_cluster_that_cannot_be_reached_is_exit_code_7(file: str, command: Any, cluster: FakeClient) -> None:
    cluster.error = ClusterUnreachable("nobody is there")
    code, out, err = command("check", file, "--to", "127.0.0.1:9")
    assert (code, out) == (7, "") and "nobody is there" in err


def test_for_programs_it_is_json(file: str, folder: Path, command: Any, cluster: FakeClient) -> None:
    cluster.answers = {("clean", "gpu"): LACKS}
    code, out, _ = command("check", file, "--to", "127.0.0.1:9", "--json")
    plan = msgspec.json.decode(out, type=PipelinePlan)
    assert code == 3 and (plan.name, plan.tasks, plan.schema) == ("nightly", 5, "talka.pipeline-plan/1")
    assert plan.layers[1] == LayerPlan(3, ["clean-1", "clean-2", "clean-3"])
    assert plan.groups[3] == GroupPlan(1, "clean-3", "clean", ["gpu"], 0, LACKS)
    code, out, _ = command("check", file, "--json", "plan.json")
    assert code == 0 and out.startswith("nightly: 5 tasks")
    assert json.loads((folder / "plan.json").read_text())["groups"][0]["found"] is None


def test_flags_of_the_other_kind_are_refused(file: str, folder: Path, command: Any, cluster: FakeClient) -> None:
    (folder / "shop.py").write_text("from talka import Workflow\n")
    for words, text in (
        ([file, "--rate", "5"], "--rate is for load tests, and nightly.yaml is a pipeline"),
        (["shop.py", "--to", "127.0.0.1:9"], "--to is for pipelines, and shop.py is a load test"),
        (["shop.py", "--param", "a=1"], "--param is for pipelines, and shop.py is a load test"),
        (["http://127.0.0.1:9/", "--ca", "ca.crt"], "--ca is for pipelines"),
    ):
        code, out, err = command("check", *words)
        assert (code, out) == (2, "") and text in err


# With handlers that travel.


HANDLERS = """
from talka import handler

print("imported")

@handler("extract")
def extract(task): ...

@handler("clen")
def clean(task): ...
"""


@pytest.fixture
def handlers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("sys.path", list(sys.path))
    (folder / "check_etl.py").write_text(HANDLERS)
    yield "check_etl.py"
    sys.modules.pop("check_etl", None)


def test_handlers_that_travel_are_held_against_those_that_tasks_name(
    file: str, handlers: str, command: Any, cluster: FakeClient
) -> None:
    code, out, err = command("check", file, "--with", handlers)
    assert (code, err, cluster.asked) == (0, "imported\n", [])
    size = re.search(r"\ntravels with it: check_etl.py \((.*)\), handlers clen, extract\n", out)
    assert size is not None and size[1].endswith("B")
    assert "\nmust be on workers: clean (did you mean clen?), load\nnamed by no task: clen\n" in out
    assert "extract  1      code accepted\n" in out and "clean    1      gpu\n" in out


def test_all_files_that_travel_are_named_those_with_handlers_first(
    file: str, handlers: str, folder: Path, command: Any
) -> None:
    (folder / "a_help.py").write_text("")
    (folder / "cities.csv").write_text("Lima")
    (folder / handlers).write_text("import a_help\n" + HANDLERS)
    _, out, _ = command("check", file, "--with", handlers, "--with", "cities.csv")
    assert "\ntravels with it: check_etl.py, a_help.py, cities.csv (" in out
    sys.modules.pop("a_help", None)


def test_variables_that_do_not_travel_are_told(
    file: str, handlers: str, folder: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["DB_URL", "HOME", *(f"SETTING_{number}" for number in range(11))]
    for name in names:
        monkeypatch.setenv(name, "here")
    reads = "".join(f"os.getenv('{name}')\n" for name in [*names, "NOT_SET_HERE"])
    (folder / handlers).write_text("import os\n" + reads + HANDLERS)
    code, _, err = command("check", file, "--with", handlers)
    told = err.splitlines()
    assert code == 0 and told[1] == (
        "check_etl.py:2: reads the variable DB_URL, which is set here and does not travel: workers must have it"
        " (talka worker --core-env DB_URL)"
    )
    assert len(told) == 12 and told[-1] == "and 2 variables more" and "HOME" not in err and "NOT_SET" not in err


def test_who_accepts_code_is_asked_of_handlers_that_travel(
    file: str, handlers: str, command: Any, cluster: FakeClient
) -> None:
    words = ("check", file, "--with", handlers, "--to", "127.0.0.1:9")
    code, out, _ = command(*words)
    assert code == 0 and [(one.handler, one.is_brought) for [*wants] in cluster.asked for one in wants] == [
        ("load", False),
        ("extract", True),
        ("clean", False),
        ("clean", False),
    ]
    assert "extract  1      code accepted        ✓ w1, w2\n" in out
    lack = "no worker takes code that travels with a job (--accept-code)"
    cluster.answers = {("extract",): TaskWorkers(lack, 0, [Reason("w1", "code", "it takes no code")])}
    code, out, err = command(*words)
    assert code == 3 and "no worker could run 1 task of 5" in err
    assert f"extract  1      code accepted        ✗ {lack}\n" in out and "w1: it takes no code" not in out

    code, out, _ = command(*words, "--json")
    plan = msgspec.json.decode(out, type=PipelinePlan)
    assert code == 3 and plan.bundle is not None and plan.bundle.handlers == ("extract", "clen")
    assert [group.is_brought for group in plan.groups] == [False, True, False, False]


def test_what_is_wrong_with_handlers_that_travel_is_told_with_its_line(
    file: str, handlers: str, folder: Path, command: Any, cluster: FakeClient
) -> None:
    path, words = folder / handlers, ("check", file, "--with", handlers, "--to", "127.0.0.1:9")
    for text, sentence in (
        ("\nx = (\n", "check_etl.py:2"),
        (HANDLERS.replace('"extract"', '"other"'), "check_etl.py: no task of nightly names one of its handlers"),
        (HANDLERS + "import hypothesis\n", "hypothesis"),
    ):
        path.write_text(text)
        code, out, err = command(*words)
        assert (code, out, cluster.asked) == (3, "", []) and sentence in err
    assert command(*words, "--workers-have", "hypothesis").code == 0


def test_a_load_test_has_no_handlers_that_travel(folder: Path, command: Any) -> None:
    (folder / "shop.py").write_text("from talka import Workflow\n")
    code, out, err = command("check", "shop.py", "--with", "h.py")
    assert (code, out) == (2, "") and "--with is for pipelines, and shop.py is a load test" in err
    code, out, err = command("check", "shop.py", "--workers-have", "numpy")
    assert (code, out) == (2, "") and "--workers-have is about handlers that travel with a pipeline" in err


def test_of_very_many_handlers_that_travel_some_are_named() -> None:
    names = tuple(f"h{number}" for number in range(9))
    bundle = CodeBundle("a" * 64, 2_000_000, ("a.py", "b.py"), names)
    assert bundle_text(bundle, {"h0"}, ["a.py", "b.py", "c.csv", "d.py", "e.py"]) == [
        "travels with it: a.py, b.py, c.csv, d.py … 1 more (2.00 MB), handlers h0, h1, h2, h3 … 5 more",
        "named by no task: h1, h2, h3, h4 … 4 more",
    ]
    assert len(bundle_text(bundle, names, [])) == 1


# Parts of it.


def tasks_of(**depends_on: str) -> tuple[TaskSpec, ...]:
    return tuple(TaskSpec(id=id, handler="h", depends_on=tuple(names.split())) for id, names in depends_on.items())


def test_a_task_is_one_layer_below_the_lowest_that_it_waits_for() -> None:
    found = layers_of(tasks_of(e="d a", a="", b="a", c="a", d="b c", f=""))
    assert found == [LayerPlan(2, ["a", "f"]), LayerPlan(2, ["b", "c"]), LayerPlan(1, ["d"]), LayerPlan(1, ["e"])]


def test_a_long_chain_that_is_written_backwards_has_its_layers() -> None:
    chain = [TaskSpec(id=f"t{n}", handler="h", depends_on=(f"t{n + 1}",) if n < 4999 else ()) for n in range(5000)]
    layers = layers_of(chain)
    assert len(layers) == 5000 and layers[0].first == ["t4999"]


def test_a_plan_of_very_much_is_cut() -> None:
    chain = [TaskSpec(id=f"t{n}", handler=f"h{n:03}", depends_on=(f"t{n - 1}",) if n else ()) for n in range(50)]
    wide = [TaskSpec(id=f"w{n}", handler="h000") for n in range(9)]
    text = plan_text(plan_of(DagSpec(name="n", tasks=(*chain, *wide), schedule="@daily"), has_values=True))
    assert text.startswith("n: 59 tasks in 50 layers, at most 10 at once, scheduled at @daily in UTC\n")
    assert "… and 38 layers more" in text and "… and 10 handlers more: --json lists all" in text
    assert "t0, w0, w1, w2 … 6 more" in text


def test_a_schedule_is_shown_with_its_zone_and_what_is_caught_up_with() -> None:
    task = TaskSpec(id="t", handler="h")
    nightly = DagSpec(name="n", tasks=(task,), schedule="30 2 * * *", timezone="Europe/Berlin", catch_up="all")
    plan = plan_of(nightly, has_values=True)
    assert (plan.timezone, plan.catch_up) == ("Europe/Berlin", "all")
    assert ", scheduled at 30 2 * * * in Europe/Berlin, catch_up: all\n" in plan_text(plan)
    at_once = plan_of(DagSpec(name="n", tasks=(task,)), has_values=True)
    assert "scheduled" not in plan_text(at_once)


def test_tasks_that_are_fanned_out_are_said_to_be() -> None:
    tasks = [
        TaskSpec(id="extract", handler="h"),
        TaskSpec(id="clean", handler="h", for_each="extract.parts", max_parallel=20),
        TaskSpec(id="send", handler="h", for_each="clean"),
    ]
    plan = plan_of(DagSpec(name="n", tasks=tuple(tasks)), has_values=True)
    text = plan_text(plan)
    assert text.startswith("n: 3 tasks in 3 layers, at most 1 at once, and the elements of 2 of them\n")
    assert "\nclean: one task for each element of extract.parts, at most 20 at once\n" in text
    assert "\nsend: one task for each element of clean\n" in text
    many = [TaskSpec(id=f"c{n}", handler="h", for_each="extract") for n in range(9)]
    text = plan_text(plan_of(DagSpec(name="n", tasks=(tasks[0], *many)), has_values=True))
    assert "\nc3: one task for each element of extract\n… and 5 tasks more that are fanned out\n" in text


def test_tasks_that_want_the_same_are_one_group() -> None:
    tasks = [
        TaskSpec(id="a", handler="h", min_memory="1kB"),
        TaskSpec(id="b", handler="h", min_memory=1000),
        TaskSpec(id="c", handler="h", capabilities=("gpu",)),
    ]
    assert groups_of(tasks) == [GroupPlan(2, "a", "h", [], 1000), GroupPlan(1, "c", "h", ["gpu"])]


def test_params_are_shown_with_what_they_will_be() -> None:
    params = {"a": Param("int"), "b": Param("int", 1), "c": Param("int", 1)}
    found = params_of(params, {"c": "5"}, has_values=False)
    assert [(one.name, one.value, one.is_default) for one in found] == [
        ("a", None, True),
        ("b", 1, True),
        ("c", 5, False),
    ]
