"""Pipelines as files: what can be written, and the sentence and line that every mistake gets."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from talka.engine.handlers.pipeline_file import read_pipeline
from talka.engine.handlers.positions import read_located
from talka.engine.loader import NoSuchFile
from talka.work.dags.dag import DagSettings, DagSpec, Limit, Param, Retry, TaskSpec, Timeouts
from talka.work.dags.notify import Notify
from talka.work.dags.params import filled
from talka.work.dags.pipeline import BadPipeline
from talka.work.specs import BadWorkflows


def told_of(path: Path, **limits: int) -> list[str]:
    """Problems as `LINE: text`."""
    with pytest.raises(BadWorkflows) as caught:
        read_pipeline(path, **limits)
    assert all(Path(problem.file or "").name == path.name for problem in caught.value.problems)
    return [f"{problem.line}: {problem.text}" for problem in caught.value.problems]


def file_of(folder: Path, content: str | bytes, name: str = "pipeline.yaml") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


FULL = """\
# Every night.
kind: dag
name: nightly
schedule: 30 2 * * mon-fri
settings:
  on_failure: skip_dependents
  retry: &patient {max: 5, backoff: 2s, never: [ValueError]}
  timeouts:
    attempt: 10m
tasks:
  - id: extract
    handler: fetch
    config:
      url: "http://example.com/"
      pages: [1, 0x10, 2.5, true, null, yes, 007, 12:30, 2026-01-01, ~, "5", 0o17, 1e3, -3]
    retry: *patient
    limits:
      - key: api
        rate: 10/s
  - {id: load, handler: store, depends_on: [extract], priority: 9, min_memory: 2GB}
"""


def test_a_yaml_file_is_read_as_it_is_meant(tmp_path: Path) -> None:
    spec = read_pipeline(file_of(tmp_path, FULL))

    config = spec.tasks[0].config
    patient = Retry(max=5, backoff="2s", never=("ValueError",))
    assert spec == DagSpec(
        name="nightly",
        schedule="30 2 * * mon-fri",
        settings=DagSettings("skip_dependents", patient, Timeouts(attempt="10m")),
        tasks=(
            TaskSpec(id="extract", handler="fetch", config=config, retry=patient, limits=(Limit("api", rate="10/s"),)),
            TaskSpec(id="load", handler="store", depends_on=("extract",), priority=9, min_memory="2GB"),
        ),
    )
    pages = [1, 16, 2.5, True, None, "yes", "007", "12:30", "2026-01-01", None, "5", 15, 1000.0, -3]
    assert msgspec.json.decode(config) == {"url": "http://example.com/", "pages": pages}


def test_a_json_file_is_read_like_the_same_yaml(tmp_path: Path) -> None:
    spec = read_pipeline(file_of(tmp_path, FULL))
    value = msgspec.to_builtins(spec, builtin_types=(msgspec.Raw,)) | {
        "tasks": [msgspec.json.decode(msgspec.json.encode(task)) for task in spec.tasks]
    }

    for indent in (None, 2, "\t"):
        again = read_pipeline(file_of(tmp_path, "\ufeff" + json.dumps(value, indent=indent), "pipeline.json"))
        assert msgspec.json.encode(again) == msgspec.json.encode(spec)


def test_a_file_says_who_is_told_of_the_end(tmp_path: Path) -> None:
    one = Notify(("failed", "partial"), "https://hooks.example.com/a?b=c")
    text = "  notify:\n    on: [failed, partial]\n    url: https://hooks.example.com/a?b=c\n"
    other = "  notify:\n    - {on: [failed, partial], url: 'https://hooks.example.com/a?b=c'}\n"
    more = other + "    - on: [completed]\n      url: http://b.example/\n"

    told = [
        read_pipeline(file_of(tmp_path, f"settings:\n{said}{HEAD}")).settings.notify for said in (text, other, more)
    ]

    assert told == [one, (one,), (one, Notify(("completed",), "http://b.example/"))]


def test_json_texts_keep_their_characters(tmp_path: Path) -> None:
    content = (
        '{"name":"n","tasks":[{"id":"a","handler":"h","config":["\\ud83d\\ude00 \\/ \\"{,:[", "é", "", -0.5e-3]}]}'
    )

    spec = read_pipeline(file_of(tmp_path, content, "p.json"))

    assert msgspec.json.decode(spec.tasks[0].config) == ['😀 / "{,:[', "é", "", -0.0005]


HEAD = "name: n\ntasks:\n  - id: a\n    handler: h\n"


@pytest.mark.parametrize("blank", ["config:", "config: ~", "config: null", "config: {}", "priority: 5"])
def test_a_config_that_is_left_blank_is_an_empty_one(blank: str, tmp_path: Path) -> None:
    (task,) = read_pipeline(file_of(tmp_path, f"{HEAD}    {blank}\n")).tasks

    assert (task, bytes(task.config)) == (TaskSpec(id="a", handler="h"), b"{}")


def test_a_config_that_is_null_in_json_is_an_empty_one_and_what_is_null_in_it_stays(tmp_path: Path) -> None:
    content = '{"name":"n","tasks":[{"id":"a","handler":"h","config":null},{"id":"b","handler":"h","config":[null]}]}'

    spec = read_pipeline(file_of(tmp_path, content, "p.json"))

    assert [bytes(task.config) for task in spec.tasks] == [b"{}", b"[null]"]


BROKEN = {
    "unknown field": (HEAD + "    prio: 5\n", '5: task a: unknown field "prio" (did you mean priority?)'),
    "unknown field of the job": ("nme: n\n" + HEAD, '1: unknown field "nme" (did you mean name?)'),
    "field of the settings": ("on_failure: continue\n" + HEAD, '1: unknown field "on_failure": it belongs into '
                                                               'settings'),
    "wrong type": (HEAD + "    priority: high\n", "5: task a: priority: must be a whole number, not text"),
    "wrong type in a list": (HEAD + "    capabilities:\n    - gpu\n    - 5\n", "7: task a: capabilities[1]: must be "
                                                                               "text, not"),
    "missing id": ("name: n\ntasks:\n  - handler: h\n", "3: task number 1: id is missing"),
    "missing handler": ("name: n\ntasks:\n  - id: a\n", "3: task a: handler is missing"),
    "missing key of a limit": (HEAD + "    limits:\n    - rate: 1/s\n", "6: task a: limits[0]: key is missing"),
    "bad id": ("name: n\ntasks:\n  - id: a b\n    handler: h\n", "3: task a b: id: has a character that an id may "
                                                                 "not have"),
    "empty id": ("name: n\ntasks:\n  - id: ''\n    handler: h\n", "3: task number 1: id: must have at least 1 "
                                                                  "character"),
    "bad duration": (HEAD + "    delay: soon\n", '5: task a: delay = "soon" is not a duration'),
    "bad duration inside": (HEAD + "    retry:\n      max: 1\n      cap: x\n", '7: task a: retry.cap = "x" is not a '
                                                                               'duration'),
    "bad size": (HEAD + "    min_memory: lots\n", '5: task a: min_memory = "lots" is not a size'),
    "bad rate": (HEAD + "    limits:\n    - {key: k, rate: fast}\n", '6: task a: limits[0].rate = "fast" is not a '
                                                                     'rate'),
    "bad priority": (HEAD + "    priority: 11\n", "5: task a: priority: must be at most 10"),
    "bad cron": ("schedule: 0 0 30 2 *\n" + HEAD, '1: schedule "0 0 30 2 *" is never due'),
    "unknown zone": (
        f'schedule: "@daily"\ntimezone: Europe/Berlim\n{HEAD}',
        "2: timezone: there is no time zone 'Europe/Berlim' (did you mean Europe/Berlin?)",
    ),
    "zone that is not text": (f'schedule: "@daily"\ntimezone: 5\n{HEAD}', "2: timezone: must be text"),
    "zone without a schedule": (f"timezone: Europe/Berlin\n{HEAD}", "1: timezone: belongs to a schedule"),
    "catch_up without a schedule": (f"catch_up: skip\n{HEAD}", "1: catch_up: belongs to a schedule"),
    "catch_up of another word": (
        f'schedule: "@daily"\ncatch_up: some\n{HEAD}',
        '2: catch_up: "some" is not one of skip, one, all',
    ),
    "schedule that is empty": ('schedule: ""\n' + HEAD, "1: schedule: must be text"),
    "schedule that is not text": ("schedule: 5\n" + HEAD, "1: schedule: must be text"),
    "bad policy": ("settings:\n  on_failure: stop\n" + HEAD, '2: settings: on_failure: "stop" is not one of fail_fast'),
    "bad end of a timeout": (
        "settings:\n  on_timeout: stop\n" + HEAD,
        '2: settings: on_timeout: "stop" is not one of kill, notify, pause',
    ),
    "bad end of a timeout of a task": (
        HEAD + "    on_timeout: later\n",
        '5: task a: on_timeout: "later" is not one of kill, notify, pause',
    ),
    "end of a timeout that is not text": (HEAD + "    on_timeout: 5\n", "5: task a: on_timeout: must be text"),
    "bad timeout": ("settings:\n  timeout: 0s\n" + HEAD, '2: settings: timeout = "0s" leaves no time to run'),
    "settings that are none": ("settings: fast\n" + HEAD, "1: settings: must have fields, such as on_failure"),
    "retry that is none": (HEAD + "    retry: 5\n", "5: task a: retry: must have fields, such as max"),
    "limits that are no list": (HEAD + "    limits: {key: k}\n", "5: task a: limits: must be a list"),
    "limit that is none": (HEAD + "    limits:\n    - k\n", "6: task a: limits[0]: must have fields, such as key"),
    "too many limits": (HEAD + "    limits: [" + "{key: k}, " * 9 + "]\n", "5: task a: limits: must have at most 8 "
                                                                           "entries"),
    "placeholder in a limit": (HEAD + "    limits:\n    - rate: 1/s\n      key: k-${n}\n", "7: task a: limits[0].key"),
    "placeholder in a capability": (HEAD + "    capabilities:\n    - gpu\n    - ${n}\n", "7: task a: capabilities[1] "),
    "placeholder in a handler": ("name: n\ntasks:\n  - id: a\n    handler: h-${n}\n", "4: task a: handler = "),
    "placeholder in a for_each": (HEAD + "    for_each: ${n}\n", "5: task a: for_each = "),
    "placeholder in the name": ("settings: {}\nname: n-${day}\n" + HEAD[8:], '2: name = "n-${day}" has ${: it would '
                                                                            'stay as it is'),
    "placeholder in an address": (
        "settings:\n  notify:\n    on: [failed]\n    url: https://a.example/${day}\n" + HEAD,
        "4: settings: notify.url: the address has ${: it would stay as it is",
    ),
    "placeholder in one of several addresses": (
        "settings:\n  notify:\n    - {on: [failed], url: https://a.example/}\n"
        "    - on: [failed]\n      url: https://a.example/x?d=${d}\n" + HEAD,
        "5: settings: notify[1].url: the address has ${: ",
    ),
    "address that is none": ("settings:\n  notify:\n    on: [failed]\n    url: ftp://a.example/\n" + HEAD,
                             '4: settings: notify.url: url "a.example": write http://HOST'),
    "unknown dependency": (HEAD + "    depends_on: [b]\n", "5: task a: depends on b, but there is no such task"),
    "itself": (HEAD + "    depends_on:\n      - a\n", "6: task a: depends on itself"),
    "cycle": (
        HEAD + "    depends_on: [b]\n  - id: b\n    handler: h\n    depends_on: [a]\n",
        "5: task a: waits for itself: a → b → a",
    ),
    "duplicate id": (HEAD + "  - id: a\n    handler: h\n", "5: there are two tasks with the id a"),
    "duplicate key": (HEAD + "    handler: g\n", '5: "handler" is there twice: first in line 4'),
    "tab": (HEAD + "\tpriority: 5\n", "5: a tab stands where the line begins: indent with spaces"),
    "syntax": (HEAD + "    depends_on: [a\n", "6: this is not YAML: "),
    "undefined alias": (HEAD + "    retry: *r\n", "5: *r names nothing: there is no &r before it"),
    "alias inside itself": (HEAD + "    config: &c\n      - *c\n", "6: *c stands inside of what it names"),
    "tag": (HEAD + "    config: !!python/name:os.system x\n", "5: the tag tag:yaml.org,2002:python/name:os.system is "
                                                              "not"),
    "tag of a list": (HEAD + "    config: !mine []\n", "5: the tag !mine is not read"),
    "merge key": (HEAD + "    config:\n      <<: {a: 1}\n", "6: merge keys are not read: write the fields out"),
    "key that is not text": (HEAD + "    config:\n      [a]: 1\n", "6: a key must be text"),
    "alias as a key": (HEAD + "    config:\n      - &a [1]\n      - {*a : 1}\n", "7: a key must be text"),
    "number too large": (HEAD + f"    config: {'9' * 30}\n", "5: the number "),
    "hexadecimal too large": (HEAD + f"    config: 0x{'f' * 40}\n", "5: the number "),
    "no number": (HEAD + "    config: [.inf]\n", '5: ".inf" is not a number that JSON can hold'),
    "nested too deeply": (HEAD + "    config: " + "[" * 200 + "]" * 200 + "\n", "5: this is nested more than 100 deep"),
    "control character": (HEAD + "    config: \x07\n", "5: the character "),
    "several documents": (HEAD + "---\n" + HEAD, "5: a second document begins here: one file holds one pipeline"),
    "empty": ("# nothing\n", "1: is empty: write name and tasks"),
    "null": ("---\n~\n", "2: a pipeline has fields: begin with name: and tasks:"),
    "list": ("- id: a\n  handler: h\n", "1: a pipeline has fields: begin with name: and tasks:"),
    "name missing": ("tasks:\n  - {id: a, handler: h}\n", "1: name is missing"),
    "name that is not text": ("name: [n]\n" + HEAD[8:], "1: name: must be text, not a list"),
    "tasks missing": ("name: n\n", "1: tasks is missing"),
    "tasks that are no list": ("name: n\ntasks:\n  a: {handler: h}\n", "3: tasks: must be a list: begin each task "
                                                                       "with a"),
    "tasks that are none": ("name: n\ntasks: []\n", "2: tasks: must have at least 1 entry"),
    "task that is none": ("name: n\ntasks:\n  - a\n", "3: task number 1: must have fields, such as id, handler, "
                                                      "config"),
    "another kind": ("kind: load\n" + HEAD, '1: kind: must be dag, not "load"'),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_every_kind_of_mistake_in_yaml_gets_a_sentence_with_its_line(kind: str, tmp_path: Path) -> None:
    content, told = BROKEN[kind]

    (found,) = told_of(file_of(tmp_path, content))

    assert found.startswith(told)


JSON_HEAD = '{\n  "name": "n",\n  "tasks": [\n    {\n      "id": "a",\n      "handler": "h"'
BROKEN_JSON = {
    "syntax": ('{\n  "name": "n",\n  tasks: []\n}', "3: this is not JSON: expecting property name"),
    "cut off": ('{\n  "name": "n",\n', "3: this is not JSON: expecting property name"),
    "constant": (JSON_HEAD + ',\n      "config": ["NaN", NaN]}]}', "7: NaN is not JSON: write it in quotes"),
    "unknown field": (JSON_HEAD + ',\n      "prio": 5}]}', '7: task a: unknown field "prio" (did you mean priority?)'),
    "duplicate key": (JSON_HEAD + ',\n      "id": "b"}]}', '7: "id" is there twice: first in line 5'),
    "wrong type": (JSON_HEAD + ',\n      "priority": "5"}]}', "7: task a: priority: must be a whole number, not text"),
    "unknown dependency": (JSON_HEAD + ',\n      "depends_on": [\n "b"]}]}', "8: task a: depends on b, but there is "
                                                                             "no"),
    "half a character": (JSON_HEAD + ',\n      "config": "\\ud800"}]}', "7: half a character: "),
    "number too large": (JSON_HEAD + ',\n      "config": ' + "9" * 5000 + "}]}", "7: the number "),
    "float too large": (JSON_HEAD + ',\n      "config": 1e999}]}', '7: "1e999" is not a number that JSON can hold'),
    "nested too deeply": (JSON_HEAD + ',\n      "config": ' + "[" * 200 + "]" * 200 + "}]}", "7: this is nested more "
                                                                                             "than"),
    "nested far too deeply": ("[" * 100_000, "1: this is nested more than 100 deep"),
    "empty": ("\n \n", "1: is empty: write name and tasks"),
    "text": ('"a"', "1: a pipeline has fields"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN_JSON)
def test_every_kind_of_mistake_in_json_gets_a_sentence_with_its_line(kind: str, tmp_path: Path) -> None:
    content, told = BROKEN_JSON[kind]

    (found,) = told_of(file_of(tmp_path, content, "pipeline.json"))

    assert found.startswith(told)


def test_all_mistakes_of_a_file_are_told_at_once_in_its_order(tmp_path: Path) -> None:
    content = """\
name: n
settings: {timeout: x}
tasks:
  - id: a
    handler: h
    priority: 11
    delay: soon
    depends_on: [b, c]
  - id: b
    depends_on: [a]
    colour: red
  - id: a
    handler: h
"""

    lines = [told.partition(":")[0] for told in told_of(file_of(tmp_path, content))]

    assert lines == ["2", "6", "7", "8", "9", "11", "12"]


def test_mistakes_are_told_up_to_a_limit(tmp_path: Path) -> None:
    content = "name: n\ntasks:\n" + "  - {id: a b, handler: 5, x: 1}\n" * 200

    assert len(told_of(file_of(tmp_path, content))) == 100


def test_an_alias_of_a_text_may_be_a_key(tmp_path: Path) -> None:
    spec = read_pipeline(file_of(tmp_path, HEAD + "    config: [&k name, {*k : 1}]\n"))

    assert msgspec.json.decode(spec.tasks[0].config) == ["name", {"name": 1}]


def test_a_path_leads_as_far_as_there_is_something() -> None:
    found, problems = read_located("a:\n  b:\n    - 1\n    - 2\n", "p.yaml")

    assert found is not None and problems == []
    assert [found.at(path).line for path in ("a.b[1]", "a.b[2]", "a.c", "a.b.c", "x")] == [4, 3, 2, 3, 1]


def test_aliases_that_stand_for_billions_are_refused(tmp_path: Path) -> None:
    lines = [f"  - &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]" for level in range(1, 12)]
    content = "name: n\ntasks: []\nbomb:\n  - &l0 x\n" + "\n".join(lines) + "\n"

    (told,) = [line for line in told_of(file_of(tmp_path, content)) if "aliases" in line]

    assert re.match(r"\d+: aliases stand for more than 100,000 values", told)


def test_a_file_that_is_not_utf_8_is_told_with_the_line_of_the_wrong_byte(tmp_path: Path) -> None:
    path = file_of(tmp_path, HEAD.encode() + b"    config: \xff\n")

    assert told_of(path) == ["5: is not UTF-8: save it in that encoding"]


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    path = file_of(tmp_path, "# " + "x" * (2 << 20))

    assert told_of(path, size_limit_bytes=1 << 20) == [
        "1: is larger than 1 MiB: submit many tasks as a stream of lines instead"
    ]


def test_a_file_that_is_not_there_or_no_pipeline_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="there is no file"):
        read_pipeline(tmp_path / "none.yaml")
    with pytest.raises(NoSuchFile, match="is a folder: name a pipeline file"):
        read_pipeline(tmp_path)
    assert told_of(file_of(tmp_path, "", "pipeline.toml")) == [
        "None: is not a pipeline: its name must end in .yaml, .yml, .json, .py"
    ]


def test_a_file_that_cannot_be_opened_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = file_of(tmp_path, HEAD)
    monkeypatch.setattr(Path, "open", refuse)

    assert told_of(path) == ["None: cannot be read: Permission denied"]


BUILT = 'from talka import Dag\n\ndag = Dag("built")\ndag.task("a", "h")\n'


def test_a_python_file_is_imported_for_its_dag(tmp_path: Path) -> None:
    assert read_pipeline(file_of(tmp_path, BUILT + "again = dag\n", "built.py")).name == "built"


def test_a_dag_of_several_is_named_after_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, BUILT + '\nother = Dag("other")\nother.task("b", "h")\n', "two_dags.py")

    assert told_of(path) == ["6: has 2 Dags: name one of them, two_dags.py:dag or two_dags.py:other"]
    assert read_pipeline(tmp_path / "two_dags.py:other").name == "other"
    with pytest.raises(BadPipeline, match="the Dag othr is asked for, but there is no such one .did you mean other"):
        read_pipeline(tmp_path / "two_dags.py:othr")
    with pytest.raises(BadPipeline, match="but there is no such one$"):
        read_pipeline(tmp_path / "two_dags.py:zzz")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("no_dag.py", "x = 1\n", "1: has no Dag: write dag"),
        ("raises.py", "x = 1\nraise ValueError('no')\n", "2: raised ValueError: no when it was imported"),
        ("syntax.py", "x = 1\nx = = 2\n", "2: syntax error: invalid syntax"),
        ("bad_task.py", BUILT + 'dag.task("b", "h", priority=11)\n', "5: task b: priority: must be at most 10"),
        ("bad_text.py", BUILT + 'dag.task("b", "h-${n}")\n', '5: task b: handler = "h-${n}" has ${: it would stay'),
        ("bad_name.py", BUILT.replace('"built"', '"n ${n}"'), '3: Dag n ${n}: name = "n ${n}" has ${: it would stay'),
        ("bad_cycle.py", BUILT + 'dag.task("b", "h", after=["b"])\n', "5: task b: depends on itself"),
        ("bad_dag.py", BUILT.replace('"built"', '""'), "3: Dag : its name must be text"),
    ],
)
def test_every_kind_of_mistake_in_python_gets_a_sentence_with_its_line(
    name: str, content: str, told: str, tmp_path: Path
) -> None:
    (found,) = told_of(file_of(tmp_path, content, name))

    assert found.startswith(told)


# Params.

WITH_PARAMS = """\
name: nightly
params:
  day: {type: date}
  parts: {type: int, default: 4, choices: [2, 4]}
tasks:
  - id: extract
    handler: fetch
    config:
      day: ${day}
      parts: [ "${parts}" ]
"""


def told_with(path: Path, **values: str) -> list[str]:
    with pytest.raises(BadWorkflows) as caught:
        read_pipeline(path, values)
    return [f"{problem.line}: {problem.text}" for problem in caught.value.problems]


def test_a_file_declares_params_and_is_given_values(tmp_path: Path) -> None:
    path = file_of(tmp_path, WITH_PARAMS)
    params = {"day": Param("date"), "parts": Param("int", 4, (2, 4))}

    assert read_pipeline(path).params == params, "which values it is given is said later"
    spec = read_pipeline(path, {"day": "2026-11-16"})

    assert (spec.params, spec.values) == (params, {"day": "2026-11-16"})
    assert msgspec.json.decode(filled(spec).tasks[0].config) == {"day": "2026-11-16", "parts": [4]}


def test_a_file_without_params_may_say_so(tmp_path: Path) -> None:
    assert read_pipeline(file_of(tmp_path, WITHOUT.replace("PARAMS", "params:"))).params == {}
    assert read_pipeline(file_of(tmp_path, WITHOUT.replace("PARAMS", "params: {}"))).params == {}


def test_everything_wrong_with_values_is_told_at_the_line_of_its_param(tmp_path: Path) -> None:
    assert told_with(file_of(tmp_path, WITH_PARAMS), parts="3", dy="1") == [
        "3: param day has no default and is not given: --param day=DATE gives it",
        '3: there is no param "dy" (did you mean day?)',
        '4: param parts: "3" is not one of 2, 4',
    ]


def test_a_param_that_cannot_be_read_is_not_asked_for(tmp_path: Path) -> None:
    text = """\
name: n
params:
  day: {type: dat}
  n: {type: int, defualt: 4}
  m: {type: int, default: abc}
tasks:
  - {id: a, handler: h, config: "${day} ${n} ${m}"}
"""
    assert told_with(file_of(tmp_path, text), m="5") == [
        '3: param "day": type: "dat" is not one of string, int, float, bool, date',
        '4: param "n": unknown field "defualt" (did you mean default?)',
        '5: param m: its default "abc" is not a whole number of at most 64 bits',
    ]


def test_placeholders_are_told_at_their_own_line_with_all_else(tmp_path: Path) -> None:
    text = """\
name: n
params:
  scheduled_day: {}
  n: {type: number, default: 1}
  m: {typ: int}
  b: {type: bool, default: "yes"}
  x: 5
tasks:
  - id: a
    handler: h
    key: a-${nn}
    config:
      - "${n} ${m}"
      - in: [ "${${n}", {deep: "${scheduled_for}"} ]
        "${n}": 1
  - {id: b, handler: h, depends_on: [z], config: "${q}"}
"""
    wrong = "there is no such param"
    assert told_of(file_of(tmp_path, text)) == [
        "3: param scheduled_day: schedules give this one: choose another name",
        '4: param "n": type: "number" is not one of string, int, float, bool, date',
        '5: param "m": unknown field "typ" (did you mean type?)',
        '6: param b: its default "yes" is neither true nor false',
        '7: param "x": must have fields, such as type, default, choices',
        f"11: task a: its key has ${{nn}}, and {wrong} (did you mean n?); $${{ stands for the text ${{ itself",
        "14: task a: its config has ${ without a name and a }: $${ stands for the text itself",
        "14: task a: its config has ${scheduled_for}, which only a pipeline with a schedule has",
        "15: task a: its config has ${n} in the name of a field: only values are filled",
        "16: task b: depends on z, but there is no such task",
        f"16: task b: its config has ${{q}}, and {wrong}: there are n, m, b, x; $${{ stands for the text ${{ itself",
    ]


def test_a_placeholder_is_told_at_the_text_that_has_it_and_not_at_one_that_looks_like_it(tmp_path: Path) -> None:
    text = """\
name: n
params:
  day: {}
tasks:
  - id: a
    handler: h
    config:
      a: "$${dya}"
      b: ${dya}
      c: ${day}
      d: ${
      "$${q}": 1
      "${q}": 1
"""
    wrong = "there is no such param"
    assert told_of(file_of(tmp_path, text)) == [
        f"9: task a: its config has ${{dya}}, and {wrong} (did you mean day?); $${{ stands for the text ${{ itself",
        "11: task a: its config has ${ without a name and a }: $${ stands for the text itself",
        f"13: task a: its config has ${{q}}, and {wrong}: there are day; $${{ stands for the text ${{ itself",
    ]


WITHOUT = """\
name: n
PARAMS
tasks:
  - {id: a, handler: h}
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("params: [a]", "2: params: must have a field for each param, such as day: {type: date}"),
        ("params: {a: {choices: [" + "1, " * 100 + "1]}}", '2: param "a": choices: must have at most 100 entries'),
        ("params: {" + ", ".join(f"p{n}: {{}}" for n in range(101)) + "}", "2: params: must have at most 100 entries"),
        (
            "values: {a: 1}",
            "2: values: is not of the pipeline but of one submission: declare params with defaults, and give --param",
        ),
        (
            "wait_for_workers: true",
            "2: wait_for_workers: is not of the pipeline but of one submission: give --wait-for-workers",
        ),
    ],
)
def test_params_that_cannot_be_are_told(text: str, told: str, tmp_path: Path) -> None:
    [problem] = told_of(file_of(tmp_path, WITHOUT.replace("PARAMS", text)))
    assert problem.startswith(told)


def test_with_a_schedule_what_it_gives_can_be_named(tmp_path: Path) -> None:
    text = WITHOUT.replace("PARAMS", 'schedule: "@daily"').replace(
        "handler: h", 'handler: h, config: "${scheduled_day}"'
    )
    assert read_pipeline(file_of(tmp_path, text), {}).schedule == "@daily"


def test_a_value_that_fills_too_much_is_told_at_its_task(tmp_path: Path) -> None:
    config = '"' + "${s}" * 1000 + '"'
    text = WITHOUT.replace("PARAMS", "params: {s: {}}").replace("handler: h", f"handler: h, config: {config}")
    [problem] = told_with(file_of(tmp_path, text), s="x" * 300)
    assert problem.startswith("4: task a: its config is too large once it is filled")


def test_a_for_each_that_names_no_task_is_told_with_its_line(tmp_path: Path) -> None:
    content = """\
name: n
tasks:
  - {id: extract, handler: h}
  - id: clean
    handler: h
    for_each: extarct.parts
    max_parallel: -1
"""
    assert told_of(file_of(tmp_path, content)) == [
        '6: task clean: for_each = "extarct.parts" names no task: there is no extarct (did you mean extract?)',
        "7: task clean: max_parallel: must be at least 0",
    ]
