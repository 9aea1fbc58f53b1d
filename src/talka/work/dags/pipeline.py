"""The builder of dag jobs: tasks are put down one by one, each after those it needs.

dag = Dag("nightly")
pages = [dag.task(f"page[{n}]", "fetch", {"page": n}) for n in range(10)]
dag.task("report", "merge", after=pages, retry={"max": 5})
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from talka.work.dags.dag import (
    BadDag,
    Bounds,
    CatchUp,
    DagSettings,
    DagSpec,
    Duration,
    FailurePolicy,
    Limit,
    Param,
    ParamValue,
    Retry,
    TaskSpec,
    Timeouts,
    Written,
    decode_task,
    examined,
    explained,
    name_problem,
    schedule_problems,
    settings_problems,
)
from talka.work.dags.notify import Notify
from talka.work.dags.params import NO_VALUES, SCHEDULE_SAMPLES, plain, try_filling
from talka.work.deadlines import OnTimeout
from talka.work.durations import shown
from talka.work.handlers import MARK
from talka.work.specs import BadWorkflows, SpecProblem

Submitted = TypeVar("Submitted", covariant=True)
Answer = TypeVar("Answer")
After: TypeAlias = "PipelineNode | str | Iterable[PipelineNode | str]"
Fields: TypeAlias = Mapping[str, Any]
Files: TypeAlias = "Sequence[str | NamesFile]"

_PLAIN: Final = (str, bytes)


class BadPipeline(BadWorkflows):
    """What is wrong with a pipeline, all of it."""


class NamesFile(Protocol):
    """A path that is no text, as `pathlib.Path`."""

    def __fspath__(self) -> str: ...


class Submitter(Protocol[Submitted]):
    """A client, whether its calls wait or are awaited."""

    def submit_dag(self, spec: DagSpec, key: str = "", *, with_files: Files = ()) -> Submitted: ...


class PipelineNode:
    """A task of a `Dag`: name it in `after`."""

    __slots__ = ("dag", "id")

    def __init__(self, id: str, dag: "Dag") -> None:
        self.id, self.dag = id, dag

    def __repr__(self) -> str:
        return f"<task {self.id}>"


class _WithSchedule(msgspec.Struct):
    schedule: str
    timezone: Written
    catch_up: CatchUp


class _Written(msgspec.Struct):
    """A task as it was written, and where. Checked by `Dag.spec`, so that all problems are told at once."""

    fields: dict[str, Any]
    problems: list[str]
    file: str
    line: int


class Dag:
    """A job under construction. What is given as `retry`, `timeouts`, `limits` and `bounds` are mappings with the
    fields that a pipeline file has."""

    def __init__(
        self,
        name: str,
        *,
        on_failure: FailurePolicy = "fail_fast",
        retry: Retry | Fields | None = None,
        timeouts: Timeouts | Fields | None = None,
        timeout: Duration | None = None,
        notify: Notify | Fields | Iterable[Notify | Fields] = (),
        schedule: str = "",
        params: Mapping[str, Param | Fields] | None = None,
        timezone: str = "",
        catch_up: CatchUp = "one",
        on_timeout: OnTimeout = "kill",
    ) -> None:
        """`params`: what is said when it is submitted, and stands in configs as `${name}`."""
        self.name = name
        self.params = params or {}
        self.schedule, self.timezone, self.catch_up = schedule, timezone, catch_up
        self.file, self.line = _written_at()
        self._settings: dict[str, Any] = {"on_failure": on_failure, "on_timeout": on_timeout}
        for field, value in (("retry", retry), ("timeouts", timeouts), ("timeout", timeout)):
            if value is not None:
                self._settings[field] = value
        self._settings["notify"] = notify if isinstance(notify, Notify | Mapping) else list(notify)
        self._tasks: list[_Written] = []

    def __repr__(self) -> str:
        return f"Dag({self.name!r}, {len(self._tasks)} tasks)"

    def __len__(self) -> int:
        return len(self._tasks)

    def __bool__(self) -> bool:
        return True

    def task(
        self,
        id: str,
        handler: str | Callable[..., Any],
        config: Any = None,
        *,
        after: After = (),
        priority: int = 5,
        retry: Retry | Fields | None = None,
        timeouts: Timeouts | Fields | None = None,
        capabilities: Iterable[str] = (),
        min_memory: int | str = 0,
        delay: Duration = 0.0,
        key: str = "",
        limits: Iterable[Limit | Fields] = (),
        bounds: Bounds | Fields | None = None,
        for_each: "PipelineNode | str" = "",
        max_parallel: int = 0,
        on_timeout: OnTimeout | None = None,
    ) -> PipelineNode:
        """Adds a task. `handler` is the name of one, or a function under @handler in the same file or another.

        `for_each`: a task whose output is a list, or "TASK.path.to.list". It becomes a task for each element."""
        problems: list[str] = []
        fields: dict[str, Any] = {
            "id": id,
            "handler": handler if isinstance(handler, str) else _handler_name(handler, problems),
            "config": {} if config is None else config,
            "depends_on": self._ids(after, problems),
            "priority": priority,
            "retry": retry,
            "timeouts": timeouts,
            "capabilities": capabilities if isinstance(capabilities, _PLAIN) else list(capabilities),
            "min_memory": min_memory,
            "delay": delay,
            "key": key,
            "limits": list(limits) if not isinstance(limits, Mapping) else limits,
            "bounds": bounds,
            "for_each": ",".join(self._ids(for_each, problems)) if isinstance(for_each, PipelineNode) else for_each,
            "max_parallel": max_parallel,
            "on_timeout": on_timeout,
        }
        self._tasks.append(_Written(fields, problems, *_written_at()))
        return PipelineNode(id, self)

    def spec(self, values: Mapping[str, ParamValue | date] | None = None) -> DagSpec:
        """The job, as it is submitted. Raises `BadPipeline` with all that is wrong with it.

        `values` of its params are checked with it, and are in what is given back; None: they come later.
        """
        problems: list[SpecProblem] = []
        settings = self._checked_settings(problems)
        params = self._checked_params(problems)
        if not self._tasks:
            problems.append(self._problem('has no tasks: write dag.task("id", "handler")'))
        tasks: list[TaskSpec] = []
        places: list[_Written] = []
        for written in self._tasks:
            texts, task = list(written.problems), None
            try:
                task = decode_task(msgspec.json.encode(written.fields))
            except BadDag as error:
                texts.append(str(error))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                texts.append(f"holds what JSON cannot: {error}")
            label = f"task {written.fields['id']}"
            problems += (SpecProblem(f"{label}: {text}", written.file, written.line) for text in texts)
            if task is not None:
                tasks.append(task)
                places.append(written)
        if len(tasks) == len(self._tasks):  # else one that could not be read would be missed by those after it
            problems += (
                SpecProblem(str(error), places[error.index].file, places[error.index].line)
                for error in examined(tasks)[1]
            )
        given = plain(values or {})
        builtin = SCHEDULE_SAMPLES if self.schedule else NO_VALUES
        tried = DagSpec(name="any", tasks=tuple(tasks), params=params)
        for problem in try_filling(tried, given, builtin, is_sample=values is None)[1]:
            if problem.index >= 0:
                problems.append(SpecProblem(str(problem), places[problem.index].file, places[problem.index].line))
            else:
                problems.append(self._problem(str(problem)))
        if problems:
            raise BadPipeline(problems)
        return DagSpec(
            name=self.name, tasks=tuple(tasks), settings=settings, params=params, values=given, **self._schedule()
        )

    def submit(
        self,
        client: Submitter[Answer],
        key: str = "",
        *,
        values: Mapping[str, ParamValue | date] = NO_VALUES,
        wait_for_workers: bool = False,
        with_files: Files = (),
    ) -> Answer:
        """Whatever the client answers. `key`: the same one again, with the same values, is the same job, not another.
        `values`: of its params; `wait_for_workers`: take it also where no worker could run some of its tasks now;
        `with_files`: they hold handlers that travel with it, to workers that accept code."""
        spec = msgspec.structs.replace(self.spec(values), wait_for_workers=wait_for_workers)
        return client.submit_dag(spec, key, with_files=with_files) if with_files else client.submit_dag(spec, key)

    def _problem(self, text: str) -> SpecProblem:
        return SpecProblem(f"Dag {self.name}: {text}", self.file, self.line)

    def _checked_settings(self, problems: list[SpecProblem]) -> DagSettings:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 200:
            problems.append(self._problem("its name must be text of 1 to 200 characters"))
        elif text := name_problem(self.name):
            problems.append(self._problem(text))
        problems += (self._problem(text) for text in self._schedule_problems())
        try:
            settings = msgspec.json.decode(msgspec.json.encode(self._settings), type=DagSettings)
        except msgspec.MsgspecError as error:
            path, text = explained(error, DagSettings)
            problems.append(self._problem(f"{path}: {text}" if path else text))
            return DagSettings()
        except (TypeError, ValueError) as error:
            problems.append(self._problem(f"its settings hold what JSON cannot: {error}"))
            return DagSettings()
        problems += (self._problem(text) for _, text in settings_problems(settings))
        return settings

    def _checked_params(self, problems: list[SpecProblem]) -> dict[str, Param]:
        try:
            return msgspec.json.decode(msgspec.json.encode(self.params), type=dict[str, Param])
        except msgspec.MsgspecError as error:
            path, text = explained(error, Param)
            problems.append(self._problem(f"params: {path}: {text}" if path else f"params: {text}"))
        except (TypeError, ValueError) as error:
            problems.append(self._problem(f"its params hold what JSON cannot: {error}"))
        return {name: Param() for name in self.params if isinstance(name, str)}

    def _schedule(self) -> Fields:
        return {"schedule": self.schedule, "timezone": self.timezone, "catch_up": self.catch_up}

    def _schedule_problems(self) -> list[str]:
        try:
            read = msgspec.convert(self._schedule(), _WithSchedule)
        except msgspec.ValidationError as error:
            path, text = explained(error, DagSpec)
            return [f"{path}: {text}"]
        return [text for _, text in schedule_problems(read.schedule, read.timezone, read.catch_up)]

    def _ids(self, after: After, problems: list[str]) -> list[str]:
        nodes: Iterable[object] = [after] if isinstance(after, PipelineNode | str) else after
        ids = []
        for node in nodes:
            if isinstance(node, str):
                ids.append(node)
            elif not isinstance(node, PipelineNode):
                problems.append(f"after names {shown(node)}: name tasks or their ids")
            elif node.dag is not self:
                problems.append(f"after names {node.id}, which is a task of another Dag")
            else:
                ids.append(node.id)
        return ids


def _handler_name(function: object, problems: list[str]) -> str:
    name = getattr(getattr(function, MARK, None), "name", None)
    if isinstance(name, str):
        return name
    problems.append(f'its handler {getattr(function, "__name__", "")} is not under @handler("name")')
    return "unknown"


def _written_at() -> tuple[str, int]:
    """Of the nearest caller outside of this file."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
