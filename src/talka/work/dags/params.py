"""Params of a dag job: what whoever submits it says, and where that goes.

A text of a config that is `${day}` and nothing else becomes the value with its type; inside other text, and in the key
of a task, a placeholder becomes the value's text. `$${` is `${` itself. All else of a config stays as it was written,
byte by byte.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from typing import Final, NamedTuple

import msgspec

from talka.errors import Invalid
from talka.work.dags.dag import (
    CONFIG_LIMIT_BYTES,
    PROBLEMS_LIMIT,
    BadDag,
    DagHead,
    DagSpec,
    Param,
    ParamType,
    ParamValue,
    TaskSpec,
)
from talka.work.durations import shown

BUILTINS: Final = ("scheduled_for", "scheduled_day")
"""Given by whoever fires a schedule: the instant it was due, in ISO 8601 with the offset of its zone, and its date."""
SCHEDULE_SAMPLES: Final[Mapping[str, ParamValue]] = {
    "scheduled_for": "2026-01-01T00:00:00+00:00",
    "scheduled_day": "2026-01-01",
}
"""With which a spec that has a schedule is tried out before it is kept."""
SAMPLES: Final[Mapping[ParamType, ParamValue]] = {
    "string": "",
    "int": 0,
    "float": 0.0,
    "bool": False,
    "date": "2026-01-01",
}
"""In the place of values that are missing or wrong, and told, so that the rest can be looked at."""
TEXT_LIMIT: Final = 4096
VALUES_LIMIT_BYTES: Final = 8192
"""Of all values of one job, as JSON: they are shown wherever the job is."""
LOWEST: Final = -(1 << 63)
HIGHEST: Final = (1 << 63) - 1
LARGEST: Final = sys.float_info.max
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
PLACEHOLDER: Final = re.compile(r"\$\$\{|\$\{(?P<name>[^{}]{0,64})\}|\$\{")
TEXTS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(?P<colon>[ \t\r\n]*:)?', re.DOTALL)
"""The texts of a JSON value, and whether they are keys."""
INTEGER: Final = re.compile(r"[-+]?[0-9]{1,20}")
NUMBER: Final = re.compile(r"[-+]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,4})?")
DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class FillLimits(NamedTuple):
    job_bytes: int = 256 * 1024 * 1024
    """Of the values put into the tasks of one job, all together: a short body may name a long value very often."""
    config_bytes: int = CONFIG_LIMIT_BYTES
    key_bytes: int = 200
    problems: int = PROBLEMS_LIMIT


FILL_LIMITS: Final = FillLimits()
_values: Final = msgspec.json.Decoder(dict[str, bool | int | float | str])
NO_VALUES: Final[Mapping[str, ParamValue]] = {}
NO_PARAMS: Final[Mapping[str, Param]] = {}


class BadPlaceholder(BadDag):
    """A placeholder cannot be filled. So that its line can be found, `placeholder` is how it is written, and `is_name`
    says whether it stands in the name of a field."""

    placeholder = ""
    is_name = False


def filled(
    spec: DagSpec,
    values: Mapping[str, ParamValue] = NO_VALUES,
    builtin: Mapping[str, ParamValue] = NO_VALUES,
    *,
    limits: FillLimits = FILL_LIMITS,
) -> DagSpec:
    """The job with every placeholder filled, without params, and with the values that it was filled with: those given
    here, else those it has, else the defaults. `builtin`: what a schedule gives (`BUILTINS`), empty without one.

    Raises `BadDag`, with the first of what is wrong. What comes out must not be filled again: `$${` is gone from it.
    """
    if not (spec.params or spec.values or values or builtin or any(map(may_be_filled, spec.tasks))):
        return spec  # as most are, and of those there may be many
    found, problems = try_filling(spec, values, builtin, limits=limits)
    if problems:
        raise problems[0]
    return found


def try_filling(
    spec: DagSpec,
    values: Mapping[str, ParamValue] = NO_VALUES,
    builtin: Mapping[str, ParamValue] = NO_VALUES,
    *,
    is_sample: bool = False,
    limits: FillLimits = FILL_LIMITS,
) -> tuple[DagSpec, list[BadDag]]:
    """As `filled` does it, as far as it can be done, and all that is wrong, up to a limit.

    `is_sample`: values are given later, and none is missed now. Of problems `field` is where in the job they are:
    `params.day.default`, `values.day` or, of a task, `config` and `key`.
    """
    resolved, problems = values_of(spec.params, {**spec.values, **values}, builtin, is_sample=is_sample)
    filler = Filler(resolved, limits)
    tasks = filler.tasks(spec.tasks)
    problems = [*problems, *filler.problems][: limits.problems]
    return msgspec.structs.replace(spec, tasks=tasks, params={}, values=resolved), problems


def values_for(spec: DagSpec | DagHead) -> dict[str, ParamValue]:
    """Of a job whose tasks follow. Raises `BadDag`, with the first of what is wrong."""
    found, problems = values_of(spec.params, spec.values)
    if problems:
        raise problems[0]
    return found


def values_of(
    params: Mapping[str, Param],
    given: Mapping[str, ParamValue] = NO_VALUES,
    builtin: Mapping[str, ParamValue] = NO_VALUES,
    *,
    is_sample: bool = False,
) -> tuple[dict[str, ParamValue], list[BadDag]]:
    """A value of each param, and what is wrong with the params and with what is given."""
    problems: list[BadDag] = []
    found: dict[str, ParamValue] = {}
    for name, param in params.items():
        wrong = _wrong_param(name, param)
        problems += wrong
        found[name] = SAMPLES[param.type]
        if wrong:
            continue
        try:
            if name in given:
                found[name] = typed(param, given[name])
            elif param.default is not None:
                found[name] = typed(param, param.default)
            elif not is_sample:
                problems.append(_missing(name, param))
        except Invalid as error:
            problems.append(BadDag(f"param {name}: {error}", field=f"values.{name}"))
    for name in given:
        if name not in params:
            problems.append(BadDag(f"there is no param {shown(name)}{_others(name, params)}", field=f"values.{name}"))
    if len(values_text(found)) > VALUES_LIMIT_BYTES:
        text = f"the values of all params have more than {VALUES_LIMIT_BYTES:,} bytes: put long ones into files"
        problems.append(BadDag(text, field="values"))
    return {**found, **builtin}, problems


def typed(param: Param, value: ParamValue) -> ParamValue:
    """The value as one of the param's type, which may also be given as text. Raises `Invalid`."""
    found = READERS[param.type](value)
    if param.choices and found not in [READERS[param.type](choice) for choice in param.choices]:
        raise Invalid(f"{shown(value)} is not one of {', '.join(text_of(choice) for choice in param.choices)}")
    return found


def values_text(values: Mapping[str, ParamValue]) -> bytes:
    """As a job's record has them: JSON, or nothing where there are none. `values_in` reads it."""
    return msgspec.json.encode(values, order="sorted") if values else b""


def values_in(content: bytes) -> dict[str, ParamValue]:
    return _values.decode(content) if content else {}


def plain(values: Mapping[str, ParamValue | date]) -> dict[str, ParamValue]:
    """As they are submitted: Python's dates as text."""
    return {name: value.isoformat() if isinstance(value, date) else value for name, value in values.items()}


def text_of(value: ParamValue) -> str:
    """As it stands inside other text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# Types.


def _string(value: ParamValue) -> ParamValue:
    if not isinstance(value, str):
        raise Invalid(f"{text_of(value)} is not text: write it in quotes")
    if len(value) > TEXT_LIMIT:
        raise Invalid(f"its text has more than {TEXT_LIMIT:,} characters: put it into a file, and its path here")
    return value


def _int(value: ParamValue) -> ParamValue:
    number = int(value) if isinstance(value, str) and INTEGER.fullmatch(value) else value
    if type(number) is not int or not LOWEST <= number <= HIGHEST:
        raise Invalid(f"{shown(value)} is not a whole number of at most 64 bits")
    return number


def _float(value: ParamValue) -> ParamValue:
    number = float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
    # What is left of nan and of infinity without themselves is not 0.
    if isinstance(number, bool | str) or abs(number) > LARGEST or number - number != 0:
        raise Invalid(f"{shown(value)} is not a number")
    return float(number)


def _bool(value: ParamValue) -> ParamValue:
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise Invalid(f"{shown(value)} is neither true nor false")
    return value == "true"


def _date(value: ParamValue) -> ParamValue:
    try:
        if isinstance(value, str) and DAY.fullmatch(value):
            return date.fromisoformat(value).isoformat()
    except ValueError:
        pass  # the 31st of a month that has none
    raise Invalid(f"{shown(value)} is not a date: write it as 2026-11-16")


READERS: Final[Mapping[ParamType, Callable[[ParamValue], ParamValue]]] = {
    "string": _string,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "date": _date,
}


def _wrong_param(name: str, param: Param) -> list[BadDag]:
    """What is wrong with how it is declared."""
    problems: list[BadDag] = []

    def complain(text: str, field: str = "") -> None:
        problems.append(BadDag(f"param {name}: {text}", field=f"params.{name}{field}"))

    if name in BUILTINS:
        complain("schedules give this one: choose another name")
    elif not NAME.fullmatch(name):
        complain("its name must begin with a letter and have letters, digits, _ and - only, at most 64 of them")
    for position, choice in enumerate(param.choices):
        try:
            READERS[param.type](choice)
        except Invalid as error:
            complain(str(error), f".choices[{position}]")
    if param.default is not None and not problems:
        try:
            typed(param, param.default)
        except Invalid as error:
            complain(f"its default {error}", ".default")
    return problems


def _missing(name: str, param: Param) -> BadDag:
    wanted = " or ".join(text_of(choice) for choice in param.choices[:8]) if param.choices else param.type.upper()
    text = f"param {name} has no default and is not given: --param {name}={wanted} gives it"
    return BadDag(text, field=f"params.{name}")


def _others(name: str, names: Mapping[str, object]) -> str:
    close = get_close_matches(name, names, n=1)
    if close:
        return f" (did you mean {close[0]}?)"
    return f": there are {', '.join(list(names)[:20])}" if names else ": the pipeline has none"


# Placeholders.


def may_be_filled(task: TaskSpec) -> bool:
    """Whether the task may have placeholders."""
    return has_placeholder(bytes(task.config)) or "${" in task.key


def has_placeholder(content: bytes) -> bool:
    """Whether a config may have some: JSON can also write the dollar by its number."""
    return b"${" in content or b"\\u00" in content


class _Value(NamedTuple):
    text: str
    content: bytes
    """As JSON."""
    size: int


def written_as(found: "re.Match[str]") -> str:
    """A placeholder; one that is open, with what follows it: by itself it says too little of where it is."""
    return found[0] if found["name"] else found.string[found.start() :][:40]


def stands_in(text: str, placeholder: str) -> bool:
    """Whether the placeholder that is written so is one of the text, and not part of a longer one or of a `$${`."""
    return any(written_as(found) == placeholder for found in PLACEHOLDER.finditer(text))


class Filler:
    """Fills the tasks of one job, one part after the other, and collects what is wrong."""

    def __init__(self, values: Mapping[str, ParamValue], limits: FillLimits = FILL_LIMITS) -> None:
        self.problems: list[BadDag] = []
        self._values: dict[str, _Value] = {}
        for name, value in values.items():
            content = msgspec.json.encode(value)
            self._values[name] = _Value(text_of(value), content, len(content))
        self._limits = limits
        self._room = limits.job_bytes

    def tasks(self, tasks: Sequence[TaskSpec]) -> tuple[TaskSpec, ...]:
        """Those with placeholders anew. Ends early once there are too many problems."""
        found = tuple(tasks)
        wanted = [index for index, task in enumerate(found) if may_be_filled(task)]
        if not wanted:
            return found
        changed = list(found)
        for index in wanted:
            if len(self.problems) >= self._limits.problems or self._room < 0:
                break
            changed[index] = self._task(found[index], index)
        return tuple(changed)

    def _task(self, task: TaskSpec, index: int) -> TaskSpec:
        written = bytes(task.config)
        config = _FieldFilling(self, task, index, "config", self._limits.config_bytes - len(written))
        content = TEXTS.sub(config.token, written)
        key = _FieldFilling(self, task, index, "key", self._limits.key_bytes - len(task.key))
        text = key.text(task.key)
        if config.has_problem or key.has_problem:
            return task
        return msgspec.structs.replace(task, config=msgspec.Raw(content), key=text)

    def value_of(self, found: "re.Match[str]") -> _Value | None:
        """Of a placeholder."""
        return self._values.get(found["name"])

    def problem_of(self, found: "re.Match[str]") -> str:
        """Of a placeholder that has no value."""
        name = found["name"]
        if not name:
            return "${ without a name and a }: $${ stands for the text itself"
        if name in BUILTINS:
            return f"${{{name}}}, which only a pipeline with a schedule has"
        others = _others(name, dict.fromkeys(one for one in self._values if one not in BUILTINS))
        return f"${{{name}}}, and there is no such param{others}; $${{ stands for the text ${{ itself"

    def problem_of_size(self, size: int) -> str:
        """Takes room for so much of values; empty: there is some."""
        self._room -= size
        if self._room >= 0:
            return ""
        limit = f"{self._limits.job_bytes:,} bytes of values"
        return f"the job has more than {limit} once it is filled: put long ones into files, and their paths here"


class _FieldFilling:
    """One field of one task while it is filled."""

    def __init__(self, filler: Filler, task: TaskSpec, index: int, field: str, room: int) -> None:
        self.has_problem = False
        self._filler = filler
        self._task = task
        self._index = index
        self._field = field
        self._room = max(0, room)
        self._told: set[str] = set()

    def token(self, found: "re.Match[bytes]") -> bytes:
        """One text of a config, as JSON."""
        written = found[0]
        if not has_placeholder(written) or self._room < 0:
            return written
        colon = found["colon"] or b""
        text = msgspec.json.decode(written[: len(written) - len(colon)])
        if "${" not in text:
            return written
        whole = PLACEHOLDER.fullmatch(text)
        value = self._filler.value_of(whole) if whole is not None and not colon else None
        if value is None:
            return msgspec.json.encode(self.text(text, is_key=bool(colon))) + colon
        return value.content if self._takes(value.size) else written

    def text(self, text: str, *, is_key: bool = False) -> str:
        # Before anything is put together: what comes out may be far larger than what was written.
        values = [self._filler.value_of(found) for found in PLACEHOLDER.finditer(text)]
        if not self._takes(sum(value.size for value in values if value is not None)):
            return text
        return PLACEHOLDER.sub(lambda found: self._replaced(found, is_key=is_key), text)

    def _takes(self, size: int) -> bool:
        if not size:
            return True
        self._room -= size
        problem = self._filler.problem_of_size(size)
        if self._room < 0:
            problem = f"its {self._field} is too large once it is filled: put it into a file, and its path here"
        if problem:
            self._room = -1
            self._complain(problem, "")
        return not problem

    def _replaced(self, found: "re.Match[str]", *, is_key: bool) -> str:
        if found[0] == "$${":
            return "${"
        value = self._filler.value_of(found)
        if value is None:
            text = f"its {self._field} has {self._filler.problem_of(found)}"
            self._complain(text, written_as(found), is_name=is_key)
        elif is_key:
            text = f"its config has {found[0]} in the name of a field: only values are filled"
            self._complain(text, found[0], is_name=True)
        else:
            return value.text
        return found[0]

    def _complain(self, text: str, placeholder: str, *, is_name: bool = False) -> None:
        self.has_problem = True
        if text not in self._told:
            self._told.add(text)
            problem = BadPlaceholder(
                f"task {self._task.id}: {text}", self._task.id, index=self._index, field=self._field
            )
            problem.placeholder, problem.is_name = placeholder, is_name
            self._filler.problems.append(problem)
