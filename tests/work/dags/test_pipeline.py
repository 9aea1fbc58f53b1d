"""The builder of dag jobs."""

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.work.dags.dag import Bounds, DagSettings, DagSpec, Limit, Param, Retry, TaskSpec, Timeouts, checked
from talka.work.dags.notify import Notify
from talka.work.dags.params import filled
from talka.work.dags.pipeline import BadPipeline, Dag, Files
from talka.work.handlers import handler
from talka.work.specs import BadWorkflows


def problems_of(dag: Dag) -> list[str]:
    """Without the name of this file."""
    with pytest.raises(BadPipeline) as caught:
        dag.spec()
    assert isinstance(caught.value, BadWorkflows)
    assert all(problem.file == __file__ for problem in caught.value.problems)
    return [problem.text for problem in caught.value.problems]


def test_tasks_are_put_down_after_those_they_need() -> None:
    dag = Dag("nightly")
    pages = [dag.task(f"page[{number}]", "fetch", {"number": number}) for number in range(3)]
    merged = dag.task("merge", "merge", after=pages)
    dag.task("mail", "mail", after=[merged, "page[0]"])
    dag.task("log", "log", after=merged)
    dag.task("count", "count", after="merge")

    spec = dag.spec()

    assert (spec.name, spec.settings, spec.schedule) == ("nightly", DagSettings(), "")
    assert checked(spec.tasks) == [(), (), (), (0, 1, 2), (3, 0), (3,), (3,)]
    assert msgspec.json.decode(spec.tasks[2].config) == {"number": 2}
    assert len(dag) == 7 and dag
    assert repr(dag) == "Dag('nightly', 7 tasks)" and repr(merged) == "<task merge>"


OF_ONE_SUBMISSION = ("values", "wait_for_workers", "bundle")


def test_everything_that_a_file_can_say_can_be_built() -> None:
    dag = Dag(
        "full",
        on_failure="continue",
        retry={"max": 1},
        timeouts=Timeouts(attempt="1m"),
        timeout="1h",
        notify=[
            {"on": ["failed", "partial"], "url": "https://a.example/"},
            Notify(("completed",), "http://b.example/"),
        ],
        schedule="@daily",
        params={"day": {"type": "date"}},
        timezone="Europe/Berlin",
        catch_up="skip",
        on_timeout="pause",
    )
    first = dag.task(
        "a",
        "h",
        {"day": "${day}"},
        priority=9,
        retry=Retry(max=2),
        timeouts={"queue": "5s"},
        capabilities=["gpu"],
        min_memory="2GB",
        delay="1s",
        key="k",
        limits=[{"key": "api", "rate": "10/s"}, Limit("db", concurrency=1)],
        bounds={"memory": "1GB"},
        on_timeout="notify",
    )
    dag.task("b", "h", after=first, for_each="a.parts", max_parallel=3)

    spec = dag.spec()

    one, other = spec.tasks
    notices = Notify(("failed", "partial"), "https://a.example/"), Notify(("completed",), "http://b.example/")
    assert spec.settings == DagSettings("continue", Retry(max=1), Timeouts(attempt="1m"), "1h", notices, "pause")
    assert (spec.schedule, spec.timezone, spec.catch_up) == ("@daily", "Europe/Berlin", "skip")
    assert spec.params == {"day": Param("date")}
    assert one == TaskSpec(
        id="a",
        handler="h",
        config=one.config,
        priority=9,
        retry=Retry(max=2),
        timeouts=Timeouts(queue="5s"),
        capabilities=("gpu",),
        min_memory="2GB",
        delay="1s",
        key="k",
        limits=(Limit("api", rate="10/s"), Limit("db", concurrency=1)),
        bounds=Bounds(memory="1GB"),
        on_timeout="notify",
    )
    assert msgspec.json.decode(one.config) == {"day": "${day}"}
    assert other == TaskSpec(id="b", handler="h", depends_on=("a",), for_each="a.parts", max_parallel=3)
    plain = DagSpec(name="", tasks=()), DagSettings(), TaskSpec(id="", handler="")
    for usual, parts in zip(plain, ([spec], [spec.settings], [one, other]), strict=True):
        unsaid = [
            name
            for name in usual.__struct_fields__
            if all(getattr(part, name) == getattr(usual, name) for part in parts) and name not in OF_ONE_SUBMISSION
        ]
        assert unsaid == [], "a file can say it, and it is not tried here"


def test_one_address_may_be_told_without_a_list() -> None:
    for one in ({"on": ["failed"], "url": "https://a.example/"}, Notify(("failed",), "https://a.example/")):
        dag = Dag("d", notify=one)
        dag.task("a", "h")
        assert dag.spec().settings == DagSettings(notify=Notify(("failed",), "https://a.example/"))


def test_a_task_is_fanned_out_over_the_output_of_another() -> None:
    dag = Dag("d")
    extract = dag.task("extract", "h")
    clean = dag.task("clean", "h", for_each="extract.parts", max_parallel=20)
    dag.task("twice", "h", for_each=clean, after=extract)

    assert dag.spec().tasks[1:] == (
        TaskSpec(id="clean", handler="h", for_each="extract.parts", max_parallel=20),
        TaskSpec(id="twice", handler="h", for_each="clean", depends_on=("extract",)),
    )


def test_a_list_of_a_task_of_another_dag_is_not_fanned_out_over() -> None:
    dag = Dag("d")
    dag.task("a", "h", for_each=Dag("other").task("b", "h"))
    with pytest.raises(BadPipeline, match="after names b, which is a task of another Dag"):
        dag.spec()


def test_a_task_of_which_nothing_more_is_said_is_as_one_in_a_file() -> None:
    dag = Dag("d")
    dag.task("a", "h")

    assert dag.spec().tasks == (TaskSpec(id="a", handler="h"),)


def test_a_handler_may_be_named_by_its_function() -> None:
    @handler("resize:fast")
    def resize(task: Any) -> None: ...

    dag = Dag("d")
    dag.task("a", resize)

    assert dag.spec().tasks[0].handler == "resize:fast"


def test_a_client_is_given_the_job_and_its_answer_is_passed_on() -> None:
    class Client:
        def submit_dag(self, spec: DagSpec, key: str = "") -> tuple[str, str]:
            return spec.name, key

    dag = Dag("d")
    dag.task("a", "h")

    assert dag.submit(Client(), key="k") == ("d", "k")


def test_a_client_is_given_the_files_that_travel_with_it() -> None:
    class Client:
        def submit_dag(self, spec: DagSpec, key: str = "", *, with_files: Files = ()) -> tuple[str, str, Files]:
            return spec.name, key, with_files

    dag = Dag("d")
    dag.task("a", "h")

    assert dag.submit(Client(), "k", with_files=["h.py"]) == ("d", "k", ["h.py"])
    assert dag.submit(Client()) == ("d", "", ())


def test_a_task_that_cannot_be_is_told_with_the_line_it_is_written_in() -> None:
    dag = Dag("d")
    dag.task("a", "h", priority=11)

    with pytest.raises(BadPipeline) as caught:
        dag.spec()

    (problem,) = caught.value.problems
    assert problem.text == "task a: priority: must be at most 10"
    assert problem.line is not None
    assert "priority=11" in Path(__file__).read_text().splitlines()[problem.line - 1]


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ({"id": "a b"}, "task a b: id: has a character that an id may not have"),
        ({"handler": ""}, "task a: handler: must have at least 1 character"),
        ({"handler": len}, 'task a: its handler len is not under @handler("name")'),
        ({"config": object()}, "task a: holds what JSON cannot: "),
        ({"after": ["b"]}, "task a: depends on b, but there is no such task"),
        ({"after": ["a"]}, "task a: depends on itself"),
        ({"after": [5]}, "task a: after names 5: name tasks or their ids"),
        ({"retry": {"maxx": 1}}, 'task a: retry: unknown field "maxx" (did you mean max?)'),
        ({"retry": {"backoff": "x"}}, 'task a: retry.backoff = "x" is not a duration'),
        ({"capabilities": "gpu"}, "task a: capabilities: must be a list, not text"),
        ({"limits": {"key": "k"}}, "task a: limits: must be a list, not an object"),
    ],
)
def test_every_kind_of_mistake_in_a_task_is_told(task: dict[str, Any], text: str) -> None:
    dag = Dag("d")
    dag.task(**{"id": "a", "handler": "h", **task})

    (told,) = problems_of(dag)

    assert told.startswith(text)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": ""}, "Dag : its name must be text of 1 to 200 characters"),
        ({"name": 5}, "Dag 5: its name must be text of 1 to 200 characters"),
        ({"timezone": "Europe/Berlin"}, "Dag d: timezone: belongs to a schedule, and there is none"),
        ({"schedule": "@daily", "timezone": 5}, "Dag d: timezone: must be text, not a whole number"),
        ({"schedule": "@daily", "catch_up": "some"}, 'Dag d: catch_up: "some" is not one of skip, one, all'),
        ({"schedule": "* *"}, 'Dag d: schedule "* *" has 2 fields, not 5'),
        ({"on_timeout": "stop"}, 'Dag d: on_timeout: "stop" is not one of kill, notify, pause'),
        ({"on_failure": "stop"}, 'Dag d: on_failure: "stop" is not one of'),
        ({"retry": {"max": -1}}, "Dag d: retry.max: must be at least 0"),
        ({"retry": 5}, "Dag d: retry: must be an object, not a whole number"),
        ({"timeout": object()}, "Dag d: its settings hold what JSON cannot"),
        ({"timeout": "x"}, 'Dag d: timeout = "x" is not a duration'),
        ({"name": "n-${day}"}, 'Dag n-${day}: name = "n-${day}" has ${: it would stay as it is'),
        ({"notify": {"on": ["failed"], "url": "https://a.example/${d}"}}, "Dag d: notify.url: the address has ${: it"),
        ({"notify": [{"on": [], "url": "https://a.example/"}]}, "Dag d: notify[0].on: must have at least 1 entry"),
    ],
)
def test_every_kind_of_mistake_in_the_settings_is_told(settings: dict[str, Any], text: str) -> None:
    dag = Dag(**{"name": "d", **settings})
    dag.task("a", "h")

    (told,) = problems_of(dag)

    assert told.startswith(text)


def test_a_settings_field_that_is_unknown_is_told_as_one_of_the_settings() -> None:
    dag = Dag("d", retry={"backof": 1})
    dag.task("a", "h")

    assert problems_of(dag) == ['Dag d: retry: unknown field "backof" (did you mean backoff?)']


def test_a_dag_needs_a_task() -> None:
    assert problems_of(Dag("d")) == ['Dag d: has no tasks: write dag.task("id", "handler")']


def test_tasks_of_another_dag_are_not_waited_for() -> None:
    other = Dag("other").task("x", "h")
    dag = Dag("d")
    dag.task("a", "h", after=other)

    assert problems_of(dag) == ["task a: after names x, which is a task of another Dag"]


def test_all_mistakes_are_told_at_once_and_circles_once_the_tasks_can_be_read() -> None:
    dag = Dag("d", timeout="x")
    dag.task("a", "h", after="b")
    dag.task("b", "h", after="a")
    dag.task("c", "h", priority=0)

    assert [text.partition(":")[0] for text in problems_of(dag)] == ["Dag d", "task c"]

    dag = Dag("d")
    dag.task("a", "h", after="b")
    dag.task("b", "h", after="a")
    assert problems_of(dag) == ["task a: waits for itself: a → b → a"]


# Params.


def dated() -> Dag:
    params = {"day": Param("date"), "since": {"type": "date", "default": date(2026, 1, 1)}}
    dag = Dag("dated", params=params)
    dag.task("a", "h", {"day": "${day}", "since": "${since}"})
    return dag


def test_params_are_declared_and_given_values() -> None:
    assert dated().spec().params == {"day": Param("date"), "since": Param("date", "2026-01-01")}

    spec = dated().spec({"day": date(2026, 11, 16)})

    assert spec.values == {"day": "2026-11-16"}
    assert msgspec.json.decode(filled(spec).tasks[0].config) == {"day": "2026-11-16", "since": "2026-01-01"}


def test_values_are_submitted_with_it() -> None:
    class Client:
        def submit_dag(self, spec: DagSpec, key: str = "") -> tuple[DagSpec, str]:
            return spec, key

    spec, key = dated().submit(Client(), "k", values={"day": "2026-11-16"})
    assert (spec.values, key, spec.wait_for_workers) == ({"day": "2026-11-16"}, "k", False)
    assert dated().submit(Client(), values={"day": "2026-11-16"}, wait_for_workers=True)[0].wait_for_workers
    with pytest.raises(BadPipeline, match="param day has no default and is not given"):
        dated().submit(Client())


def test_what_is_wrong_with_params_and_placeholders_is_told_at_its_line() -> None:
    dag = Dag("n", params={"a": {"typ": "int"}})
    dag.task("t", "h", "${a} ${b} ${scheduled_day}")
    assert problems_of(dag) == [
        'Dag n: params: [...]: unknown field "typ" (did you mean type?)',
        "task t: its config has ${b}, and there is no such param: there are a; $${ stands for the text ${ itself",
        "task t: its config has ${scheduled_day}, which only a pipeline with a schedule has",
    ]
    assert problems_of(Dag("n", params={1: object()})) == [  # type: ignore[dict-item]
        "Dag n: its params hold what JSON cannot: Encoding objects of type object is unsupported",
        'Dag n: has no tasks: write dag.task("id", "handler")',
    ]
    assert problems_of(Dag("n", params=[]))[0].startswith("Dag n: has no tasks")  # type: ignore[arg-type]
    assert problems_of(Dag("n", params=["a"]))[0] == "Dag n: params: must be an object, not a list"  # type: ignore[arg-type]


def test_a_schedule_gives_its_instant() -> None:
    dag = Dag("n", schedule="@daily")
    dag.task("t", "h", "${scheduled_for}")
    assert dag.spec().schedule == "@daily"


def test_a_value_without_a_param_is_told_where_the_dag_is() -> None:
    dag = Dag("n")
    dag.task("t", "h")
    with pytest.raises(BadPipeline) as caught:
        dag.spec({"x": 1})
    [problem] = caught.value.problems
    assert (problem.text, problem.line) == ('Dag n: there is no param "x": the pipeline has none', dag.line)
