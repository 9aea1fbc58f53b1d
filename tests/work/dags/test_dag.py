"""Dag jobs as they are submitted: values as people write them, graphs, and what is said of those that cannot be."""

import re
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.work.dags import dag as module
from talka.work.dags.dag import (
    CONFIG_LIMIT_BYTES,
    DEPENDENCIES_LIMIT,
    BadDag,
    Bounds,
    DagSettings,
    DagSpec,
    Limit,
    Param,
    Retry,
    TaskSpec,
    Timeouts,
    bytes_of,
    check_settings,
    checked,
    decode_dag,
    decode_head,
    decode_task,
    encode_task,
    examined,
    identity_of,
    rate_of,
    seconds_of,
    source_of,
)


def tasks_of(**depends_on: str) -> list[TaskSpec]:
    """`a="b c"`: a depends on b and c."""
    return [TaskSpec(id=id, handler="h", depends_on=tuple(names.split())) for id, names in depends_on.items()]


def problem_of(tasks: list[TaskSpec], **options: object) -> BadDag:
    with pytest.raises(BadDag) as caught:
        checked(tasks, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [(0.0, 0.0), (90, 90.0), (1.5, 1.5), ("90s", 90.0), ("5m", 300.0), ("500ms", 0.5), ("2", 2.0)],
)
def test_durations_are_seconds(duration: float | str, seconds: float) -> None:
    assert seconds_of(duration, "delay") == seconds


@pytest.mark.parametrize("duration", [-1.0, float("nan"), float("inf"), 31 * 86_400.0, "soon", ""])
def test_a_duration_that_cannot_be_is_told_by_its_name(duration: float | str) -> None:
    with pytest.raises(Invalid, match="^delay = "):
        seconds_of(duration, "delay")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        ("1.5K", 1500),
        ("2GiB", 2 << 30),
        (" 1 B ", 1),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_are_bytes(value: int | str, size: int) -> None:
    assert bytes_of(value, "min_memory") == size


@pytest.mark.parametrize("value", [-1, 1 << 61, "2PiBs", "many", "", "-1MB", "9999999PB"])
def test_a_size_that_cannot_be_is_told_by_its_name(value: int | str) -> None:
    with pytest.raises(Invalid, match="^min_memory = .* is (not a size|too large)"):
        bytes_of(value, "min_memory")


def test_rates_are_starts_per_second() -> None:
    assert rate_of("10/s", "rate") == 10
    assert rate_of("300/m", "rate") == 5
    assert rate_of("1/h", "rate") == Fraction(1, 3600)
    assert rate_of("", "rate") == 0


@pytest.mark.parametrize("text", ["fast", "10/d", "0/s"])
def test_a_rate_that_cannot_be_is_told_by_its_name(text: str) -> None:
    with pytest.raises(Invalid, match="^rate = "):
        rate_of(text, "rate")


def test_dependencies_are_indexes_each_once() -> None:
    assert checked(tasks_of(a="", b="a", c="b a b")) == [(), (0,), (1, 0)]


def test_a_task_may_depend_on_one_that_comes_later() -> None:
    assert checked(tasks_of(a="c b", b="c", c="")) == [(2, 1), (2,), ()]


def test_a_later_part_is_numbered_on_and_knows_the_earlier_one() -> None:
    assert checked(tasks_of(c="a", d="c b"), {"a": 0, "b": 1}) == [(0,), (2, 1)]
    assert checked(tasks_of(c="d a", d="b"), {"a": 0, "b": 1}) == [(3, 0), (1,)]


def test_where_tasks_are_streamed_dependencies_come_first() -> None:
    assert checked(tasks_of(c="a", d="c"), {"a": 0}, forward=False) == [(0,), (1,)]

    problem = problem_of(tasks_of(b="a c", c=""), known={"a": 0}, forward=False)

    assert str(problem).startswith("task b: depends on c, which comes after it")
    assert (problem.task, problem.index, problem.field) == ("b", 0, "depends_on[1]")


def test_an_id_may_be_there_once() -> None:
    twice = [*tasks_of(a="", b=""), *tasks_of(a="b")]

    problem = problem_of(twice)

    assert str(problem) == "there are two tasks with the id a"
    assert (problem.task, problem.index, problem.field) == ("a", 2, "id")
    assert str(problem_of(tasks_of(b="", a=""), known={"a": 0})) == "there are two tasks with the id a"


def test_an_unknown_dependency_is_told_with_the_closest_one() -> None:
    problem = problem_of(tasks_of(extract="", load="extrakt"))

    assert str(problem) == "task load: depends on extrakt, but there is no such task (did you mean extract?)"
    assert problem.field == "depends_on[0]"
    assert str(problem_of(tasks_of(b="abd"), known={"abc": 0})).endswith("(did you mean abc?)")
    assert str(problem_of(tasks_of(a="zzzzz"))).endswith("there is no such task")


def test_a_task_may_not_depend_on_itself() -> None:
    assert str(problem_of(tasks_of(a="", b="a b"))) == "task b: depends on itself"


def test_a_circle_is_named() -> None:
    problem = problem_of(tasks_of(start="", a="start c", b="a", c="b", d="a c"))

    assert str(problem) == "task a: waits for itself: a → c → b → a"
    assert (problem.index, problem.field) == (1, "depends_on")
    assert "a → b → a" in str(problem_of(tasks_of(a="b", b="a"), known={"x": 0}))


def test_a_long_circle_is_told_shortly() -> None:
    ring = [TaskSpec(id=f"t{n}", handler="h", depends_on=(f"t{(n + 1) % 50}",)) for n in range(50)]

    assert str(problem_of(ring)) == (
        "task t0: waits for itself: t0 → t1 → t2 → t3 → t4 → t5 → (42 more) → t48 → t49 → t0"
    )


@pytest.mark.parametrize(("length", "more"), [(12, ""), (13, "(5 more)")])
def test_a_circle_of_twelve_is_told_whole(length: int, more: str) -> None:
    ring = [TaskSpec(id=f"t{n}", handler="h", depends_on=(f"t{(n + 1) % length}",)) for n in range(length)]
    names = [f"t{n}" for n in range(length)] if not more else ["t0", "t1", "t2", "t3", "t4", "t5", more, "t11", "t12"]

    assert str(problem_of(ring)) == f"task t0: waits for itself: {' → '.join([*names, 't0'])}"


def test_a_way_back_to_the_same_task_over_two_others_is_no_circle() -> None:
    # The stack holds c twice when the first of its two is entered.
    assert checked(tasks_of(a="c b", b="c d", c="d", d="")) == [(2, 1), (2, 3), (3,), ()]


def test_a_chain_as_long_as_there_are_tasks_needs_no_recursion() -> None:
    count = 20_000
    chain = [TaskSpec(id=f"t{n}", handler="h", depends_on=(f"t{n + 1}",)) for n in range(count - 1)]
    chain.append(TaskSpec(id=f"t{count - 1}", handler="h"))

    assert checked(chain)[0] == (1,)


def test_all_problems_are_found_at_once() -> None:
    broken = [
        *tasks_of(a="b x", b="a", c="y"),
        TaskSpec(id="d", handler="h", delay="later", min_memory="big"),
        *tasks_of(a=""),
    ]

    texts = [str(problem) for problem in examined(broken)[1]]

    assert [text.partition(":")[0] for text in texts] == [
        "there are two tasks with the id a",
        "task a",
        "task c",
        "task d",
        "task d",
    ]


def test_problems_are_told_up_to_a_limit() -> None:
    assert len(examined(tasks_of(a="", b="x", c="x", d="x", e="x"), problems_limit=3)[1]) == 3
    assert len(examined([TaskSpec(id="a", handler="h")] * 9, problems_limit=3)[1]) == 3
    rings = tasks_of(a="b", b="a", c="d", d="c", e="f", f="e", g="h", h="g")
    assert len(examined(rings, problems_limit=3)[1]) == 3


def test_too_many_tasks_and_dependencies_are_refused() -> None:
    wide = TaskSpec(id="sink", handler="h", depends_on=tuple(f"t{n}" for n in range(DEPENDENCIES_LIMIT + 1)))
    many = [TaskSpec(id=f"t{n}", handler="h") for n in range(DEPENDENCIES_LIMIT + 1)]

    assert "task sink: depends on 10,001 tasks, more than 10,000" in str(problem_of([*many, wide]))

    assert examined(tasks_of(b=""), {"a": 0}, tasks_limit=2) == ([()], [])
    assert "more than 2 tasks" in str(examined(tasks_of(b="", c=""), {"a": 0}, tasks_limit=2)[1][0])


def test_a_large_config_is_refused() -> None:
    config = msgspec.Raw(b'"' + b"x" * CONFIG_LIMIT_BYTES + b'"')

    problem = problem_of([TaskSpec(id="a", handler="h", config=config)])

    assert str(problem).startswith("task a: its config has 262,146 bytes, more than 262,144")
    assert problem.field == "config"


@pytest.mark.parametrize(
    ("task", "field", "says"),
    [
        (TaskSpec(id="a", handler="h", delay="x"), "delay", "is not a duration"),
        (TaskSpec(id="a", handler="h", delay=-1.0), "delay", "is negative"),
        (TaskSpec(id="a", handler="h", retry=Retry(backoff="x")), "retry.backoff", "is not a duration"),
        (TaskSpec(id="a", handler="h", retry=Retry(cap="90d")), "retry.cap", "is too long"),
        (TaskSpec(id="a", handler="h", timeouts=Timeouts(queue="x")), "timeouts.queue", "is not a duration"),
        (TaskSpec(id="a", handler="h", timeouts=Timeouts(attempt=0.0)), "timeouts.attempt", "leaves no time"),
        (TaskSpec(id="a", handler="h", timeouts=Timeouts(total="1us")), "timeouts.total", "leaves no time"),
        (TaskSpec(id="a", handler="h", min_memory="x"), "min_memory", "is not a size"),
        (TaskSpec(id="a", handler="h", bounds=Bounds(memory="x")), "bounds.memory", "is not a size"),
        (TaskSpec(id="a", handler="h", bounds=Bounds(cpu="x")), "bounds.cpu", "is not a duration"),
        (
            TaskSpec(id="a", handler="h", limits=(Limit("k"), Limit("l", rate="x"))),
            "limits[1].rate",
            "is not a rate",
        ),
    ],
)
def test_values_that_cannot_be_are_told_with_their_field(task: TaskSpec, field: str, says: str) -> None:
    problem = problem_of([TaskSpec(id="b", handler="h"), task])

    assert (problem.task, problem.index, problem.field) == ("a", 1, field)
    assert str(problem).startswith(f"task a: {field} = ") and says in str(problem)


@pytest.mark.parametrize(
    ("task", "field", "value"),
    [
        (TaskSpec(id="a", handler="h-${n}"), "handler", "h-${n}"),
        (TaskSpec(id="a", handler="h", capabilities=("gpu", "${n}")), "capabilities[1]", "${n}"),
        (TaskSpec(id="a", handler="h", limits=(Limit("k"), Limit("db-${n}"))), "limits[1].key", "db-${n}"),
        (TaskSpec(id="a", handler="h", for_each="b.${n}"), "for_each", "b.${n}"),
        (TaskSpec(id="a", handler="h", for_each="b-${n}"), "for_each", "b-${n}"),
        (TaskSpec(id="a", handler="$${n}"), "handler", "$${n}"),
    ],
)
def test_placeholders_where_nothing_is_filled_are_told_with_their_field(task: TaskSpec, field: str, value: str) -> None:
    (problem,) = examined([TaskSpec(id="b", handler="h"), task])[1]
    assert (problem.task, problem.index, problem.field) == ("a", 1, field)
    assert str(problem) == (
        f'task a: {field} = "{value}" has ${{: it would stay as it is, for only configs and keys of tasks are filled'
    )


def test_a_dollar_that_is_no_placeholder_is_a_letter_like_others() -> None:
    task = TaskSpec(id="a", handler="h$", capabilities=("{x}", "$x"), limits=(Limit("5$"),))
    assert checked([task]) == [()]


def fan(for_each: str, id: str = "clean", **fields: object) -> TaskSpec:
    return TaskSpec(id=id, handler="h", for_each=for_each, **fields)  # type: ignore[arg-type]


def test_a_task_depends_on_what_it_is_fanned_out_over() -> None:
    tasks = [*tasks_of(a="", b=""), fan("b.parts", depends_on=("a",)), fan("clean", "twice"), fan("a", "x")]
    assert checked(tasks) == [(), (), (0, 1), (2,), (0,)]
    assert checked([*tasks_of(a="", b=""), fan("b", depends_on=("b", "a"))]) == [(), (), (1, 0)]


def test_the_longest_id_that_a_for_each_begins_with_is_meant() -> None:
    assert checked([*tasks_of(**{"a": "", "a.b": ""}), fan("a.b.c")])[2] == (1,)
    assert checked([fan("a.b.c", max_parallel=1)], {"a": 0, "a.b": 1}) == [(1,)]
    assert checked([*tasks_of(**{"a.b": ""}), fan("a.b.c")], {"a": 0})[1] == (1,)
    assert source_of("a.b.c.d", ("a", "a.b")) == ("a.b", ["c", "d"])
    assert source_of("x.y", ("a",)) == ("", ["x", "y"])


@pytest.mark.parametrize(
    ("task", "field", "says"),
    [
        (
            fan("extrac.parts"),
            "for_each",
            r'for_each = "extrac.parts" names no task: there is no extrac \(did you mean ex',
        ),
        (fan("clean.parts"), "for_each", "depends on itself"),
        (fan("extract..x"), "for_each", 'has an empty name in its path: write "TASK.path.to.list"'),
        (fan("extract."), "for_each", "has an empty name in its path"),
        (fan("", max_parallel=2), "max_parallel", "max_parallel is for a task with for_each: leave it out"),
        (fan("extract", key="k"), "key", "since a key stands for one output: leave key out"),
        (fan("", "bad[7]"), "id", "is an id of an element of task bad, which is fanned out: name it otherwise"),
    ],
)
def test_what_cannot_be_fanned_out_is_told_with_its_field(task: TaskSpec, field: str, says: str) -> None:
    problem = problem_of([*tasks_of(extract=""), task, fan("extract", "bad")])
    assert (problem.task, problem.index, problem.field) == (task.id, 1, field)
    assert re.search(says, str(problem)), str(problem)


def test_where_tasks_are_streamed_the_list_comes_first() -> None:
    problem = problem_of([fan("extract"), *tasks_of(extract="")], forward=False)
    assert (problem.field, str(problem)) == (
        "for_each",
        "task clean: depends on extract, which comes after it: where tasks are streamed, dependencies come first",
    )


def test_values_that_can_be_pass() -> None:
    full = TaskSpec(
        id="a",
        handler="h",
        delay="1m",
        retry=Retry(backoff="0s"),
        timeouts=Timeouts(queue="1h", total="2h"),
        min_memory="2GB",
        limits=(Limit("k", concurrency=2, rate="1/s"),),
        bounds=Bounds(memory="1GiB", cpu=10.0),
    )

    assert checked([full]) == [()]


def test_settings_are_checked_as_tasks_are() -> None:
    check_settings(DagSettings(timeout="1h"))

    for wrong, field in (
        (DagSettings(timeout=0.0), "settings.timeout"),
        (DagSettings(retry=Retry(backoff="x")), "settings.retry.backoff"),
        (DagSettings(timeouts=Timeouts(attempt="x")), "settings.timeouts.attempt"),
    ):
        with pytest.raises(BadDag, match="^settings: ") as caught:
            check_settings(wrong)
        assert caught.value.field == field


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.data())
def test_a_graph_is_refused_exactly_when_it_has_a_circle(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    edges = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=20))
    waits_for = {n: {after for before, after in edges if before == n and after != n} for n in range(count)}
    specs = [TaskSpec(id=str(n), handler="h", depends_on=tuple(map(str, sorted(waits_for[n])))) for n in range(count)]
    left = dict(waits_for)
    while free := [n for n, others in left.items() if not others & left.keys()]:
        for n in free:
            del left[n]

    dependencies, problems = examined(specs)

    assert bool(problems) == bool(left)
    assert dependencies == [tuple(sorted(waits_for[n])) for n in range(count)]
    for problem in problems:
        names = str(problem).rpartition(": ")[2].split(" → ")
        assert names[0] == names[-1]
        assert all(int(after) in waits_for[int(before)] for before, after in zip(names, names[1:], strict=False))


def test_a_job_survives_its_bytes() -> None:
    content = b'{"kind":"dag","name":"n","tasks":[{"id":"a","handler":"h","config":{"x":[1,"\xc3\xa9"]},"priority":7}]}'

    spec = decode_dag(content)

    assert spec.tasks[0].config == msgspec.Raw(b'{"x":[1,"\xc3\xa9"]}')
    assert decode_dag(msgspec.json.encode(spec)) == spec
    assert decode_task(encode_task(spec.tasks[0])) == spec.tasks[0]
    assert decode_dag(content.replace(b'"kind":"dag",', b"")) == spec
    assert decode_head(b'{"kind":"dag","name":"n"}').name == "n"


HEAD = b'{"name":"n","tasks":[{"id":"a","handler":"h"'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "this is not JSON: input data was truncated"),
        (b"{", "this is not JSON: input data was truncated"),
        (b"{]", "this is not JSON: object keys must be strings"),
        (b"[]", "must be an object, not a list"),
        (b'{"name":"n","tasks":[]}', "tasks: must have at least 1 entry"),
        (b'{"name":"","tasks":[{"id":"a","handler":"h"}]}', "name: must have at least 1 character"),
        (b'{"name":"n"}', "tasks is missing"),
        (b'{"kind":"load","name":"n","tasks":[]}', 'kind: must be "dag"'),
        (b'{"nam":"n","tasks":[]}', 'unknown field "nam" (did you mean name?)'),
        (b'{"on_failure":"continue"}', 'unknown field "on_failure": it belongs into settings'),
        (b'{"colour":1}', 'unknown field "colour": there are name, tasks, settings, schedule'),
        (HEAD + b',"prio":1}]}', 'tasks[0]: unknown field "prio" (did you mean priority?)'),
        (HEAD + b',"retry":{"maxx":1}}]}', 'tasks[0].retry: unknown field "maxx" (did you mean max?)'),
        (HEAD + b',"limits":[{"kei":1}]}]}', 'tasks[0].limits[0]: unknown field "kei" (did you mean key?)'),
        (HEAD + b',"priority":11}]}', "tasks[0].priority: must be at most 10"),
        (HEAD + b',"priority":"high"}]}', "tasks[0].priority: must be a whole number, not text"),
        (HEAD + b',"delay":true}]}', "tasks[0].delay: must be a number or text, not true or false"),
        (HEAD + b',"delay":"' + b"1" * 65 + b'"}]}', "tasks[0].delay: must have at most 64 characters"),
        (HEAD + b',"depends_on":["b c"]}]}', "tasks[0].depends_on[0]: has a character that an id may not have"),
        (HEAD + b',"retry":{"factor":0.5}}]}', "tasks[0].retry.factor: must be at least 1"),
        (HEAD + b',"config":"\xff"}]}', "this is not UTF-8: a wrong byte at position 55"),
        (HEAD + b',"config":' + b"[" * 100_000, "this is nested too deeply"),
        (HEAD + b',"on_timeout":"stop"}]}', 'tasks[0].on_timeout: "stop" is not one of kill, notify, pause'),
        (HEAD + b'}],"settings":{"on_failure":"stop"}}', 'settings.on_failure: "stop" is not one of fail_fast, '),
        (b'{"name":"n-${day}","tasks":[{"id":"a","handler":"h"}]}', 'name = "n-${day}" has ${: it would stay as it is'),
        (HEAD + b'}],"settings":{"timeout":"soon"}}', 'settings: timeout = "soon" is not a duration'),
    ],
)
def test_bytes_that_are_no_job_are_refused_with_a_sentence_that_names_the_place(content: bytes, says: str) -> None:
    with pytest.raises(BadDag) as caught:
        decode_dag(content)

    assert str(caught.value).startswith(says)


def test_a_sentence_nobody_foresaw_is_passed_on() -> None:
    assert module.explained(msgspec.ValidationError("Something new - at `$.name`"), TaskSpec) == (
        "name",
        "Something new",
    )


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(BadDag, match="is never due"):
        decode_dag(HEAD + b'}],"schedule":"0 0 30 2 *"}')
    assert decode_dag(HEAD + b'}],"schedule":"@daily"}').schedule == "@daily"
    zoned = decode_dag(HEAD + b'}],"schedule":"@daily","timezone":"Europe/Berlin","catch_up":"skip"}')
    assert (zoned.timezone, zoned.catch_up) == ("Europe/Berlin", "skip")
    for field in ("timezone", "catch_up"):
        with pytest.raises(BadDag, match=f"{field}: belongs to a schedule") as caught:
            decode_dag(HEAD + b'}],"' + field.encode() + b'":"all"}')
        assert caught.value.field == field


def test_lines_of_a_stream_are_read_one_by_one() -> None:
    with pytest.raises(BadDag, match='^unknown field "tasks": there are name, settings'):
        decode_head(b'{"name":"n","tasks":[]}')
    with pytest.raises(BadDag, match="^settings: timeout"):
        decode_head(b'{"name":"n","settings":{"timeout":"x"}}')
    with pytest.raises(BadDag, match="^name = .* has ..: it would stay as it is") as caught:
        decode_head(b'{"name":"n-${day}"}')
    assert caught.value.field == "name"
    with pytest.raises(BadDag, match="^handler is missing"):
        decode_task(b'{"id":"a"}')


def test_an_order_is_known_by_all_that_it_says() -> None:
    spec = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="h"),), settings=DagSettings(on_failure="continue"))
    others = [
        {"name": "m"},
        {"tasks": (TaskSpec(id="a", handler="g"),)},
        {"settings": DagSettings()},
        {"schedule": "@daily"},
        {"params": {"a": Param(), "b": Param("int")}},
        {"values": {"a": 1, "b": 2}},
        {"values": {"a": 1, "b": "2"}},
    ]
    found = [identity_of(spec), *(identity_of(msgspec.structs.replace(spec, **other)) for other in others)]
    assert len(set(found)) == len(found)
    assert identity_of(msgspec.structs.replace(spec, values={"b": 2, "a": 1})) in found
    assert identity_of(msgspec.structs.replace(spec, wait_for_workers=True)) == found[0]


def test_an_order_of_the_first_version_is_still_the_same_order() -> None:
    spec = DagSpec(name="n", tasks=(TaskSpec(id="a", handler="h"),))
    assert identity_of(spec) == (
        b'{"kind":"dag","name":"n","tasks":[{"id":"a","handler":"h"}],"settings":{},"schedule":""}'
    )
