"""Params of dag jobs, and the placeholders that they fill."""

from typing import Any

import msgspec
import pytest

from talka.errors import Invalid
from talka.work.dags.dag import CONFIG_LIMIT_BYTES, BadDag, DagHead, DagSpec, Param, TaskSpec, decode_dag
from talka.work.dags.params import (
    SCHEDULE_SAMPLES,
    BadPlaceholder,
    Filler,
    FillLimits,
    filled,
    stands_in,
    text_of,
    try_filling,
    typed,
    values_for,
    values_in,
    values_of,
    values_text,
)


def spec_of(config: Any, key: str = "", **params: Param) -> DagSpec:
    content = config if isinstance(config, bytes) else msgspec.json.encode(config)
    return DagSpec(name="n", tasks=(TaskSpec("load", "load", msgspec.Raw(content), key=key),), params=params)


def config_of(spec: DagSpec) -> Any:
    return msgspec.json.decode(spec.tasks[0].config)


def problems_of(spec: DagSpec, values: dict[str, Any] | None = None, **more: Any) -> list[tuple[str, str]]:
    return [(problem.field, str(problem)) for problem in try_filling(spec, values or {}, **more)[1]]


def test_a_text_that_is_a_placeholder_becomes_the_typed_value() -> None:
    spec = spec_of(
        {"day": "${day}", "parts": ["${parts}", "${share}"], "deep": {"full": "${full}"}, "who": "${who}"},
        day=Param("date"),
        parts=Param("int", 4),
        share=Param("float", 1),
        full=Param("bool"),
        who=Param(),
    )

    found = filled(spec, {"day": "2026-11-16", "full": "true", "who": "Ana"})

    wanted = {"day": "2026-11-16", "parts": [4, 1.0], "deep": {"full": True}, "who": "Ana"}
    assert config_of(found) == wanted
    assert found.params == {}
    assert found.values == {"day": "2026-11-16", "parts": 4, "share": 1.0, "full": True, "who": "Ana"}


def test_inside_other_text_and_in_a_key_a_placeholder_becomes_text() -> None:
    params = {"n": Param("int"), "full": Param("bool"), "day": Param("date"), "share": Param("float")}
    spec = spec_of(["day=${day}/${n}", "${full}${share}"], key="load-${day}-${n}", **params)

    found = filled(spec, {"n": 7, "full": False, "day": "2026-11-16", "share": 2})

    assert config_of(found) == ["day=2026-11-16/7", "false2.0"]
    assert found.tasks[0].key == "load-2026-11-16-7"
    assert filled(spec_of(None, key="${n}", n=Param("int", 3))).tasks[0].key == "3"


def test_two_dollars_stand_for_the_placeholder_itself() -> None:
    spec = spec_of({"$${a}": "$${n} ${n} $n $$${n} {n}", "cost": "5$"}, n=Param("int", 1))
    assert config_of(filled(spec)) == {"${a}": "${n} 1 $n $${n} {n}", "cost": "5$"}


def test_the_rest_of_a_config_stays_as_it_was_written() -> None:
    written = b'{ "a" : 1.10, "b":12345678901234567890123, "c\\u00e9": "\\u00e9", "d" : "\\"${who}\\"\\n" }'
    found = filled(spec_of(written, who=Param()), {"who": 'é"\\'})
    assert bytes(found.tasks[0].config) == (
        b'{ "a" : 1.10, "b":12345678901234567890123, "c\\u00e9": "\\u00e9", "d" : "\\"\xc3\xa9\\"\\\\\\"\\n" }'
    )


def test_a_dollar_may_be_written_by_its_number() -> None:
    assert config_of(filled(spec_of(b'["\\u0024{n}", "\\u007b"]', n=Param("int", 5)))) == [5, "{"]


def test_what_a_value_holds_is_not_filled_again() -> None:
    spec = spec_of("${a} ${b}", a=Param(), b=Param())
    assert config_of(filled(spec, {"a": "${b}", "b": "$${a}"})) == "${b} $${a}"


def test_tasks_without_placeholders_are_the_same_objects() -> None:
    plain = TaskSpec("plain", "h", msgspec.Raw(b'{"a": "$x"}'))
    spec = DagSpec(name="n", tasks=(plain, TaskSpec("t", "h", msgspec.Raw(b'"${n}"'))), params={"n": Param("int", 1)})
    assert filled(spec).tasks[0] is plain
    alone = DagSpec(name="n", tasks=(plain,))
    assert filled(alone) == alone and filled(alone).tasks is alone.tasks


def test_values_given_later_go_before_those_of_the_job_and_those_before_defaults() -> None:
    spec = spec_of(["${a}", "${b}", "${c}"], a=Param("int", 1), b=Param("int", 1), c=Param("int", 1))
    spec = msgspec.structs.replace(spec, values={"b": 2, "c": 2})
    assert config_of(filled(spec, {"c": "3"})) == [1, 2, 3]


@pytest.mark.parametrize(
    ("param", "value", "wanted"),
    [
        (Param(), "x", "x"),
        (Param("int"), "-12", -12),
        (Param("int"), "+007", 7),
        (Param("int"), 2**63 - 1, 2**63 - 1),
        (Param("float"), "1e3", 1000.0),
        (Param("float"), ".5", 0.5),
        (Param("float"), "2.", 2.0),
        (Param("float"), 3, 3.0),
        (Param("bool"), "false", False),
        (Param("bool"), True, True),
        (Param("date"), "2024-02-29", "2024-02-29"),
        (Param("int", choices=(1, 2)), "2", 2),
        (Param("date", choices=("2026-01-01",)), "2026-01-01", "2026-01-01"),
    ],
)
def test_values_are_read_by_their_type(param: Param, value: Any, wanted: Any) -> None:
    found = typed(param, value)
    assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize(
    ("param", "value", "text"),
    [
        (Param(), 5, "5 is not text: write it in quotes"),
        (Param(), True, "true is not text: write it in quotes"),
        (Param(), "x" * 4097, "its text has more than 4,096 characters: put it into a file, and its path here"),
        (Param("int"), "1.5", '"1.5" is not a whole number of at most 64 bits'),
        (Param("int"), 1.0, "1.0 is not a whole number of at most 64 bits"),
        (Param("int"), True, "True is not a whole number of at most 64 bits"),
        (Param("int"), "9223372036854775808", '"9223372036854775808" is not a whole number of at most 64 bits'),
        (Param("int"), "9" * 30, f'"{"9" * 30}" is not a whole number of at most 64 bits'),
        (Param("int"), "-9223372036854775809", '"-9223372036854775809" is not a whole number of at most 64 bits'),
        (Param("float"), "x", '"x" is not a number'),
        (Param("float"), "1e999", '"1e999" is not a number'),
        (Param("float"), float("nan"), "nan is not a number"),
        (Param("float"), 10**30, None),
        (Param("float"), 10**400, "a number of very many digits is not a number"),
        (Param("float"), False, "False is not a number"),
        (Param("bool"), "yes", '"yes" is neither true nor false'),
        (Param("bool"), 1, "1 is neither true nor false"),
        (Param("date"), "2026-02-29", '"2026-02-29" is not a date: write it as 2026-11-16'),
        (Param("date"), "20261116", '"20261116" is not a date: write it as 2026-11-16'),
        (Param("date"), 20261116, "20261116 is not a date: write it as 2026-11-16"),
        (Param("int", choices=(1, 2)), "3", '"3" is not one of 1, 2'),
        (Param("string", choices=("a", "b")), "c", '"c" is not one of a, b'),
    ],
)
def test_a_value_of_another_type_is_refused(param: Param, value: Any, text: str | None) -> None:
    if text is None:
        assert typed(param, value) == float(value)
        return
    with pytest.raises(Invalid) as caught:
        typed(param, value)
    assert str(caught.value) == text


def test_everything_that_is_wrong_with_values_is_told_at_once() -> None:
    params = {
        "day": Param("date"),
        "n": Param("int"),
        "mode": Param("string", choices=("fast", "safe")),
        "full": Param("bool", False),
    }
    assert problems_of(spec_of("${day} ${n} ${dya}", **params), {"n": "x", "dya": 1, "zzzzz": "1"}) == [
        ("params.day", "param day has no default and is not given: --param day=DATE gives it"),
        ("values.n", 'param n: "x" is not a whole number of at most 64 bits'),
        ("params.mode", "param mode has no default and is not given: --param mode=fast or safe gives it"),
        ("values.dya", 'there is no param "dya" (did you mean day?)'),
        ("values.zzzzz", 'there is no param "zzzzz": there are day, n, mode, full'),
        (
            "config",
            "task load: its config has ${dya}, and there is no such param (did you mean day?);"
            " $${ stands for the text ${ itself",
        ),
    ]


def test_before_values_are_given_none_is_missed() -> None:
    params = {name: Param(kind) for name, kind in [("s", "string"), ("i", "int"), ("f", "float"), ("b", "bool")]}  # type: ignore[arg-type]
    spec = spec_of(["${s}", "${i}", "${f}", "${b}", "${d}"], d=Param("date"), **params)
    found, problems = try_filling(spec, is_sample=True)
    assert not problems and config_of(found) == ["", 0, 0.0, False, "2026-01-01"]


def test_a_job_without_params_has_no_placeholders() -> None:
    assert problems_of(spec_of("${HOME} ${HOME} ${} ${a b", key="${HOME"), {"x": 1}) == [
        ("values.x", 'there is no param "x": the pipeline has none'),
        (
            "config",
            "task load: its config has ${HOME}, and there is no such param: the pipeline has none;"
            " $${ stands for the text ${ itself",
        ),
        ("config", "task load: its config has ${ without a name and a }: $${ stands for the text itself"),
        ("key", "task load: its key has ${ without a name and a }: $${ stands for the text itself"),
    ]


def test_a_problem_of_a_placeholder_says_how_it_is_written() -> None:
    [problem] = try_filling(spec_of(["${a}"]))[1]
    assert isinstance(problem, BadPlaceholder)
    assert (problem.placeholder, problem.task, problem.index) == ("${a}", "load", 0)


def test_names_of_fields_are_not_filled() -> None:
    assert problems_of(spec_of({"${n}": 1}, n=Param("int", 1))) == [
        ("config", "task load: its config has ${n} in the name of a field: only values are filled")
    ]


def test_what_is_wrong_with_a_param_itself_is_told_and_its_value_is_not_looked_at() -> None:
    params = {
        "scheduled_for": Param(),
        "1st": Param(),
        "n": Param("int", "x"),
        "c": Param("int", 3, (1, "b")),
        "d": Param("int", 3, (1, 2)),
        "s": Param("string", 5),
    }
    assert problems_of(spec_of("${n}", **params), {"n": "y"}) == [
        ("params.scheduled_for", "param scheduled_for: schedules give this one: choose another name"),
        (
            "params.1st",
            "param 1st: its name must begin with a letter and have letters, digits, _ and - only, at most 64 of them",
        ),
        ("params.n.default", 'param n: its default "x" is not a whole number of at most 64 bits'),
        ("params.c.choices[1]", 'param c: "b" is not a whole number of at most 64 bits'),
        ("params.d.default", "param d: its default 3 is not one of 1, 2"),
        ("params.s.default", "param s: its default 5 is not text: write it in quotes"),
    ]


def test_what_a_schedule_gives_fills_placeholders_and_is_among_the_values() -> None:
    spec = spec_of({"for": "${scheduled_for}", "file": "${scheduled_day}-${n}.csv"}, n=Param("int", 1))
    builtin = {"scheduled_for": "2026-11-16T03:00:00+01:00", "scheduled_day": "2026-11-16"}
    found = filled(spec, {}, builtin)
    assert config_of(found) == {"for": "2026-11-16T03:00:00+01:00", "file": "2026-11-16-1.csv"}
    assert found.values == {"n": 1, **builtin}
    assert filled(spec, {}, SCHEDULE_SAMPLES).values["scheduled_day"] == "2026-01-01"


def test_without_a_schedule_its_values_are_refused() -> None:
    assert problems_of(spec_of("${scheduled_for}")) == [
        ("config", "task load: its config has ${scheduled_for}, which only a pipeline with a schedule has")
    ]


def test_an_unknown_placeholder_of_a_schedule_is_told_the_params_alone() -> None:
    assert problems_of(spec_of("${x}", n=Param("int", 1)), builtin=SCHEDULE_SAMPLES) == [
        (
            "config",
            "task load: its config has ${x}, and there is no such param: there are n;"
            " $${ stands for the text ${ itself",
        )
    ]


def test_the_first_problem_is_raised() -> None:
    with pytest.raises(BadDag) as caught:
        filled(spec_of("${a} ${b}"))
    assert "${a}" in str(caught.value) and caught.value.field == "config"


def test_a_config_that_is_too_large_once_filled_is_refused_before_it_is_put_together() -> None:
    many = "${s}" * (CONFIG_LIMIT_BYTES // 8)
    too_large = "too large once it is filled: put it into a file, and its path here"
    assert problems_of(spec_of([many, many, "${s}", "${a}"], s=Param()), {"s": "x" * 4000}) == [
        ("config", f"task load: its config is {too_large}")
    ]
    assert problems_of(spec_of(["${s}"] * 1000, s=Param()), {"s": "x" * 4000}) == [
        ("config", f"task load: its config is {too_large}")
    ]
    assert problems_of(spec_of(None, key="${s}", s=Param()), {"s": "x" * 200}) == [
        ("key", f"task load: its key is {too_large}")
    ]


def test_values_of_all_tasks_together_have_a_limit() -> None:
    task = TaskSpec("t", "h", msgspec.Raw(b'["${s}","${s}"]'))
    spec = DagSpec(name="n", tasks=(task,) * 5, params={"s": Param()})
    [(field, text)] = problems_of(spec, {"s": "x" * 8}, limits=FillLimits(job_bytes=45))
    assert field == "config"
    assert text == (
        "task t: the job has more than 45 bytes of values once it is filled: put long ones into files, and their paths"
        " here"
    )
    assert problems_of(spec, {"s": "x" * 8}, limits=FillLimits(job_bytes=100)) == []


def test_so_many_problems_are_told_and_no_more() -> None:
    spec = DagSpec(name="n", tasks=(TaskSpec("t", "h", msgspec.Raw(b'"${a}"')),) * 5)
    assert len(problems_of(spec, limits=FillLimits(problems=3))) == 3


def test_a_stream_is_filled_part_by_part() -> None:
    values, problems = values_of({"n": Param("int")}, {"n": 2})
    filler = Filler(values)
    for number in range(2):
        [task] = filler.tasks([TaskSpec(f"t{number}", "h", msgspec.Raw(b'"${n}"'))])
        assert bytes(task.config) == b"2"
    assert problems == filler.problems == []


def test_values_as_text() -> None:
    assert [text_of(one) for one in ("x", 1, 1.0, True)] == ["x", "1", "1.0", "true"]


def test_a_body_declares_params_and_gives_values() -> None:
    spec = decode_dag(
        b'{"kind":"dag","name":"n","tasks":[{"id":"a","handler":"h","config":"${n}"}],'
        b'"params":{"n":{"type":"int","choices":[1,2]}},"values":{"n":"2"}}'
    )
    assert config_of(filled(spec)) == 2


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (b'{"n":{"type":"number"}}', '"number" is not one of string, int, float, bool, date'),
        (b'{"n":{"typ":"int"}}', 'unknown field "typ" (did you mean type?)'),
    ],
)
def test_a_param_that_cannot_be_read_is_told(params: bytes, text: str) -> None:
    with pytest.raises(BadDag, match="params") as caught:
        decode_dag(b'{"kind":"dag","name":"n","tasks":[{"id":"a","handler":"h"}],"params":' + params + b"}")
    assert text in str(caught.value)


def test_all_values_of_a_job_together_have_a_limit() -> None:
    params = {name: Param() for name in "abc"}
    assert problems_of(spec_of(None, **params), dict.fromkeys("abc", "x" * 4000)) == [
        ("values", "the values of all params have more than 8,192 bytes: put long ones into files")
    ]


def test_values_of_a_job_whose_tasks_follow() -> None:
    head = DagHead(name="n", params={"n": Param("int")}, values={"n": "1"})
    assert values_for(head) == {"n": 1}
    with pytest.raises(BadDag, match="param n has no default"):
        values_for(msgspec.structs.replace(head, values={}))


def test_values_are_kept_as_json_whatever_their_order() -> None:
    assert values_text({"b": 1, "a": True}) == values_text({"a": True, "b": 1}) == b'{"a":true,"b":1}'
    assert values_in(b'{"a":true,"b":1.0}') == {"a": True, "b": 1.0}
    assert (values_text({}), values_in(b"")) == (b"", {})


@pytest.mark.parametrize(
    ("text", "is_there"),
    [("to ${day}", True), ("${days}", False), ("$${day}", False), ("$${day} and ${day}", True), ("day", False)],
)
def test_a_placeholder_stands_where_it_is_meant_and_not_in_what_looks_like_it(text: str, is_there: bool) -> None:
    assert stands_in(text, "${day}") is is_there


def test_an_open_placeholder_is_known_by_what_follows_it() -> None:
    assert stands_in("from ${day to the end", "${day to the end")
    assert not stands_in("from ${month to the end", "${day to the end")
