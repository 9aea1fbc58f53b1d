"""Reads a pipeline from a file: YAML, JSON, or Python that builds a `Dag`. Everything wrong is said with file and
line."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args

import msgspec
from msgspec.inspect import StructType, UnionType, VarTupleType, type_info

from talka.clock import time_zone
from talka.engine.handlers.positions import Located, read_located
from talka.engine.loader import NoSuchFile, import_file
from talka.errors import Invalid
from talka.work.dags.dag import (
    PARAMS_LIMIT,
    BadDag,
    CatchUp,
    DagSettings,
    DagSpec,
    Param,
    ParamValue,
    TaskSpec,
    decode_task,
    examined,
    explained,
    name_problem,
    schedule_problems,
    settings_problems,
    unknown_field,
)
from talka.work.dags.params import NO_VALUES, SCHEDULE_SAMPLES, BadPlaceholder, stands_in, try_filling
from talka.work.dags.pipeline import BadPipeline, Dag
from talka.work.durations import shown
from talka.work.inspection import no_such
from talka.work.specs import SpecProblem

SIZE_LIMIT_BYTES: Final = 16 * 1024 * 1024
PROBLEMS_LIMIT: Final = 100
SUFFIXES: Final = (".yaml", ".yml", ".json", ".py")
CATCH_UPS: Final[tuple[CatchUp, ...]] = get_args(CatchUp)
NAME: Final = next(field.type for field in msgspec.structs.fields(DagSpec) if field.name == "name")
NOT_IN_FILES: Final = {
    "values": "declare params with defaults, and give --param",
    "wait_for_workers": "give --wait-for-workers",
}
"""Fields of a submission that say something about this one time."""
FILLERS: Final = {"handler": "unknown", "key": "unknown"}
"""In the place of what is missing or wrong, and told, so that the rest can be looked at."""


def read_pipeline(
    path: Path, values: Mapping[str, ParamValue] | None = None, size_limit_bytes: int = SIZE_LIMIT_BYTES
) -> DagSpec:
    """The job that the file describes, checked. `FILE.py:name` names one of several in a Python file.

    `values` of its params are checked with it, and are in what is given back; None: they come later.
    """
    path, name = _split(path)
    if not path.exists():
        raise NoSuchFile(f"there is no file {path}")
    if path.is_dir():
        raise NoSuchFile(f"{path} is a folder: name a pipeline file, which ends in {', '.join(SUFFIXES)}")
    if path.suffix == ".py":
        return _checked(_dag_of(path, name), values)
    if path.suffix not in SUFFIXES:
        raise BadPipeline([SpecProblem(f"is not a pipeline: its name must end in {', '.join(SUFFIXES)}", str(path))])
    text = _text_of(path, size_limit_bytes)
    root, problems = read_located(text, str(path))
    if root is None and not problems:
        problems = [SpecProblem("is empty: write name and tasks", str(path), 1)]
    if root is None:
        raise BadPipeline(problems)
    reader = PipelineReader(str(path), problems, values)
    spec = reader.read(root)
    if reader.problems or spec is None:
        # As they stand in the file, whichever way they were found.
        raise BadPipeline(sorted(reader.problems, key=lambda problem: problem.line or 0)[:PROBLEMS_LIMIT])
    return spec


def dags_of(module: ModuleType) -> dict[str, Dag]:
    """The pipelines of a module by their names in it, each once."""
    found: dict[str, Dag] = {}
    for name, value in vars(module).items():
        if isinstance(value, Dag) and not any(value is other for other in found.values()):
            found[name] = value
    return found


def _split(path: Path) -> tuple[Path, str]:
    file, colon, name = path.name.rpartition(":")
    if colon and file.endswith(".py") and not path.exists():
        return path.with_name(file), name
    return path, ""


def _dag_of(path: Path, name: str) -> Dag:
    dags = dags_of(import_file(path))
    if name:
        if name not in dags:
            text = f"the Dag {name} is asked for, {no_such('one', name, dags)}"
            raise BadPipeline([SpecProblem(text, str(path))])
        return dags[name]
    if not dags:
        raise BadPipeline([SpecProblem('has no Dag: write dag = Dag("name") and dag.task(…)', str(path), 1)])
    if len(dags) > 1:
        last = next(reversed(dags.values()))
        text = f"has {len(dags)} Dags: name one of them, {' or '.join(f'{path.name}:{name}' for name in dags)}"
        raise BadPipeline([SpecProblem(text, str(path), last.line)])
    return next(iter(dags.values()))


def _checked(dag: Dag, values: Mapping[str, ParamValue] | None) -> DagSpec:
    spec = dag.spec(values)
    try:
        time_zone(spec.timezone)
    except Invalid as error:
        raise BadPipeline([SpecProblem(f"Dag {dag.name}: {error}", dag.file, dag.line)]) from None
    return spec


def _text_of(path: Path, limit_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise BadPipeline([SpecProblem(f"cannot be read: {error.strerror}", str(path))]) from None
    if len(content) > limit_bytes:
        text = f"is larger than {limit_bytes >> 20} MiB: submit many tasks as a stream of lines instead"
        raise BadPipeline([SpecProblem(text, str(path), content.count(b"\n") + 1)])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadPipeline([SpecProblem("is not UTF-8: save it in that encoding", str(path), line)]) from None


class PipelineReader:
    """Reads a file's values into a job, and collects what is wrong with them."""

    def __init__(self, file: str, problems: list[SpecProblem], values: Mapping[str, ParamValue] | None = None) -> None:
        self.file = file
        self.problems = problems
        self._values = values

    def complain(self, text: str, line: int) -> None:
        self.problems.append(SpecProblem(text, self.file, line))

    def read(self, root: Located) -> DagSpec | None:
        if not isinstance(root.value, dict):
            self.complain("a pipeline has fields: begin with name: and tasks:", root.line)
            return None
        for field, instead in NOT_IN_FILES.items():
            if field in root.value and root.value[field][1].plain():
                text = f"{field}: is not of the pipeline but of one submission: {instead}"
                self.complain(text, root.value[field][0])
        if (bundle := self.field(root, "bundle")) is not None and bundle.plain() is not None:
            line = root.at("bundle").line
            self.complain("bundle: handlers travel by the command, talka submit … --with handlers.py", line)
        self.unknown(root, DagSpec, "", also="kind")
        for field in ("name", "tasks"):
            if field not in root.value:
                self.complain(f"{field} is missing", root.line)
        kind = self.field(root, "kind")
        if kind is not None and kind.value != "dag":
            self.complain(f"kind: must be dag, not {shown(kind.plain())}", kind.line)
        name = self.field(root, "name")
        if name is not None and self.leaf(name, NAME, "name") and (text := name_problem(name.plain())):
            self.complain(text, name.line)
        settings = self.settings(root)
        schedule = self.schedule(root)
        timezone = self.timezone(root)
        catch_up = self.catch_up(root)
        for field, text in schedule_problems(schedule, timezone, catch_up):
            place = self.field(root, field)
            self.complain(text, root.line if place is None else place.line)
        params = self.params(root)
        tasks = self.tasks(root, params, SCHEDULE_SAMPLES if schedule else NO_VALUES)
        if self.problems:
            return None
        assert name is not None and isinstance(name.value, str)
        return DagSpec(
            name=name.value,
            tasks=tuple(tasks),
            settings=settings,
            schedule=schedule,
            params=params,
            values=dict(self._values or {}),
            timezone=timezone,
            catch_up=catch_up,
        )

    def field(self, located: Located, name: str) -> Located | None:
        return located.value[name][1] if isinstance(located.value, dict) and name in located.value else None

    def settings(self, root: Located) -> DagSettings:
        located = self.field(root, "settings")
        before = len(self.problems)
        fields = self.struct(located, DagSettings, "settings") if located is not None else None
        if located is None or fields is None:
            return DagSettings()
        if len(self.problems) > before:  # nothing can stand for what is missing there
            fields.pop("notify", None)
        settings = msgspec.convert(fields, DagSettings)
        for field, text in settings_problems(settings):
            self.complain(f"settings: {text}", located.at(field).line)
        return settings

    def schedule(self, root: Located) -> str:
        located = self.field(root, "schedule")
        if located is None:
            return ""
        if not isinstance(located.value, str) or not located.value:
            self.complain('schedule: must be text, such as "30 2 * * mon-fri"', located.line)
            return ""
        return located.value

    def timezone(self, root: Located) -> str:
        located = self.field(root, "timezone")
        if located is None:
            return ""
        if not isinstance(located.value, str):
            self.complain("timezone: must be text, such as Europe/Berlin", located.line)
            return ""
        try:
            time_zone(located.value)
        except Invalid as error:
            self.complain(str(error), located.line)
        return located.value

    def catch_up(self, root: Located) -> CatchUp:
        located = self.field(root, "catch_up")
        found = next((choice for choice in CATCH_UPS if located is not None and choice == located.value), None)
        if located is not None and found is None:
            told = shown(str(located.plain()))
            self.complain(f"catch_up: {told} is not one of {', '.join(CATCH_UPS)}", located.line)
        return found or "one"

    def params(self, root: Located) -> dict[str, Param]:
        located = self.field(root, "params")
        if located is None or located.value is None:
            return {}
        if not isinstance(located.value, dict):
            self.complain("params: must have a field for each param, such as day: {type: date}", located.line)
            return {}
        if len(located.value) > PARAMS_LIMIT:
            self.complain(f"params: must have at most {PARAMS_LIMIT} entries", located.line)
            return {}
        found: dict[str, Param] = {}
        for name, (_, item) in located.value.items():
            found[name] = Param(default="")  # there is one of this name, whatever is wrong with it: it is not asked for
            before = len(self.problems)
            fields = self.struct(item, Param, f"param {shown(name)}")
            if len(self.problems) == before:
                found[name] = msgspec.convert(fields, Param)
        return found

    def filled(
        self,
        root: Located,
        tasks: list[TaskSpec],
        places: list[Located],
        params: dict[str, Param],
        builtin: Mapping[str, ParamValue],
    ) -> None:
        """What is wrong with params, their values and the placeholders of tasks."""
        spec = DagSpec(name="any", tasks=tuple(tasks), params=params)
        for problem in try_filling(spec, self._values or {}, builtin, is_sample=self._values is None)[1]:
            field = problem.field
            if problem.index >= 0:
                located = places[problem.index].at(field)
                self.complain(str(problem), line_of(located, problem))
                continue
            # Values are not in the file: what they are for is.
            self.complain(str(problem), root.at(field.replace("values", "params", 1)).line)

    def tasks(self, root: Located, params: dict[str, Param], builtin: Mapping[str, ParamValue]) -> list[TaskSpec]:
        located = self.field(root, "tasks")
        if located is None:
            return []
        if not isinstance(located.value, list):
            self.complain("tasks: must be a list: begin each task with a dash", located.line)
            return []
        if not located.value:
            self.complain("tasks: must have at least 1 entry", located.line)
        found: list[TaskSpec] = []
        places: list[Located] = []
        for number, item in enumerate(located.value, start=1):
            task = self.task(item, number)
            if task is not None:
                found.append(task)
                places.append(item)
        for problem in examined(found)[1]:
            line = places[problem.index].at(problem.field).line if problem.index >= 0 else located.line
            self.complain(str(problem), line)
        self.filled(root, found, places, params, builtin)
        return found

    def task(self, located: Located, number: int) -> TaskSpec | None:
        """The task; one with problems is as it would be without the fields that have them."""
        id = self.field(located, "id")
        given = id.value if id is not None else None
        label = f"task {given}" if isinstance(given, str) and given else f"task number {number}"
        fields = self.struct(located, TaskSpec, label)
        if fields is None or "id" not in fields:
            return None
        try:
            return decode_task(msgspec.json.encode(fields))
        except BadDag as error:  # lists of structs that are too long
            self.complain(f"{label}: {error}", located.at(error.field).line)
            return None

    def struct(self, located: Located, kind: type[msgspec.Struct], label: str) -> dict[str, Any] | None:
        """The fields of such a struct that can be read. What must be there and is not is filled in, except ids."""
        if not isinstance(located.value, dict):
            fields = ", ".join(kind.__struct_fields__[:3])
            self.complain(f"{label}: must have fields, such as {fields}", located.line)
            return None
        self.unknown(located, kind, label)
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            item = self.field(located, field.name)
            if item is None:
                if field.required:
                    self.complain(f"{label}: {field.name} is missing", located.line)
            elif self.is_read(item, field.type, f"{label}: {field.name}", found, field.name):
                continue
            if field.name in FILLERS and field.required:
                found[field.name] = FILLERS[field.name]
        return found

    def is_read(self, item: Located, kind: Any, label: str, into: dict[str, Any], name: str) -> bool:
        """Puts the value of one field into its struct, unless there is something wrong with it."""
        if kind is msgspec.Raw and item.value is None:
            return True  # left blank: nothing is said of it
        inner, is_list, is_either = struct_in(kind)
        is_list = is_list or (is_either and isinstance(item.value, list))
        if inner is None or (item.value is None and not is_list):
            if not self.leaf(item, kind, label):
                return False
            into[name] = item.plain()
        elif not is_list:
            part = self.struct(item, inner, label)
            if part is None:
                return False
            into[name] = part
        elif isinstance(item.value, list):
            parts = [self.struct(part, inner, f"{label}[{position}]") for position, part in enumerate(item.value)]
            into[name] = [{"key": FILLERS["key"]} if part is None else part for part in parts]
        else:
            self.complain(f"{label}: must be a list", item.line)
            return False
        return True

    def leaf(self, located: Located, kind: Any, label: str) -> bool:
        if kind is msgspec.Raw:
            return True  # anything goes
        try:
            msgspec.convert(located.plain(), kind)
        except msgspec.ValidationError as error:
            path, text = explained(error, DagSpec, label)
            self.complain(f"{label}{path}: {text}", located.at(path).line)
            return False
        return True

    def unknown(self, located: Located, kind: type[msgspec.Struct], label: str, *, also: str = "") -> None:
        assert isinstance(located.value, dict)
        for key, (line, _) in located.value.items():
            if key not in kind.__struct_fields__ and key != also:
                self.complain(f"{label}: {unknown_field(key, kind)}" if label else unknown_field(key, kind), line)


def line_of(located: Located, problem: BadDag) -> int:
    """Of the text with the placeholder that the problem is about."""
    if not isinstance(problem, BadPlaceholder) or not problem.placeholder:
        return located.line
    open_ones = [located]
    while open_ones:
        found = open_ones.pop()
        if isinstance(found.value, str):
            if not problem.is_name and stands_in(found.value, problem.placeholder):
                return found.line
        elif isinstance(found.value, list):
            open_ones += reversed(found.value)
        elif isinstance(found.value, dict):
            for key, (line, item) in reversed(found.value.items()):
                if problem.is_name and stands_in(key, problem.placeholder):
                    return line
                open_ones.append(item)
    return located.line


@cache
def struct_in(kind: Any) -> tuple[type[msgspec.Struct] | None, bool, bool]:
    """The kind of struct that a field holds, whether it holds a list of them, and whether it may hold either."""
    info = type_info(kind)
    found: list[tuple[type[msgspec.Struct], bool]] = []
    for part in info.types if isinstance(info, UnionType) else (info,):
        match part:
            case StructType(cls=inner):
                found.append((inner, False))
            case VarTupleType(item_type=StructType(cls=inner)):
                found.append((inner, True))
            case _:
                continue
    return (*found[0], len(found) > 1) if found else (None, False, False)
