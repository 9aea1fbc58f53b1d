"""A dag job: each task runs after all tasks it depends on have completed. What users submit, and every error in it.

Tasks are named by their id in what people see, and by their index, the position in the job, everywhere else.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec

from talka.errors import Invalid
from talka.units import SECOND
from talka.work.dags.cron import Cron
from talka.work.dags.notify import STAYS, EndState, Notifies, Notify, notify_problems
from talka.work.deadlines import OnTimeout
from talka.work.durations import LONGEST_NS, NUMBER, BadDuration, parse_duration, parse_rate, shown

TASKS_LIMIT: Final = 2_000_000
"""Of one job."""
DEPENDENCIES_LIMIT: Final = 10_000
"""Of one task."""
ELEMENTS_LIMIT: Final = 100_000
"""Of one list that a task is fanned out over."""
CONFIG_LIMIT_BYTES: Final = 256 * 1024
OUTPUT_LIMIT_BYTES: Final = 768 * 1024
"""A larger one fails its task: return where it is, not what it is. With all that an attempt writes it fits a frame, and
holds a list of as many numbers as a task can be fanned out over."""
INLINE_LIMIT_BYTES: Final = 32 * 1024
"""Larger outputs are kept as a file beside the store, and their row says which."""
PROBLEMS_LIMIT: Final = 100
"""Told of one job: whoever has more mends these first."""
PARAMS_LIMIT: Final = 100
"""Of one job."""
SIZE_LIMIT_BYTES: Final = 1 << 60
MISSING: Final = -1
"""Where an index should be."""
NULL: Final = msgspec.Raw(b"null")
EMPTY: Final = msgspec.Raw(b"{}")
"""What a handler is given as its config where nothing was written."""

TaskId = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._:@/\[\]-]+\Z")]
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Written = Annotated[str, msgspec.Meta(max_length=64)]
Duration: TypeAlias = float | Written
"""Seconds, or text such as "90s" and "5m"."""
FailurePolicy: TypeAlias = Literal["fail_fast", "continue", "skip_dependents"]
CatchUp: TypeAlias = Literal["skip", "one", "all"]
"""What becomes of instants of a schedule that passed while it was not followed: none is made up for, only the last one,
or all of them."""
ParamName = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[A-Za-z_][A-Za-z0-9_-]*\Z")]
ParamType: TypeAlias = Literal["string", "int", "float", "bool", "date"]
ParamValue: TypeAlias = bool | int | float | Annotated[str, msgspec.Meta(max_length=4096)]
ParamValues = Annotated[dict[ParamName, ParamValue], msgspec.Meta(max_length=PARAMS_LIMIT)]


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """After the n-th failure it waits between nothing and `backoff · factor^(n − 1)`, at most `cap`."""

    max: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    """Tries after the first one, whichever way they fail. None: as many as the table of endings says."""
    backoff: Duration = 1.0
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0
    cap: Duration = 60.0
    never: Annotated[tuple[Word, ...], msgspec.Meta(max_length=64)] = ()
    """Names of exceptions after which it is not tried again."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    queue: Duration | None = None
    """From ready to started."""
    attempt: Duration = 300.0
    total: Duration | None = None
    """From when the job was submitted, all attempts together."""


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Shared by every task of every job that names the key; the strictest of what they say counts."""

    key: Word
    concurrency: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Attempts at the same time; 0: any number."""
    rate: Written = ""
    """Starts, such as "10/s" or "300/m"; empty: any."""


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one attempt may use. A task that has any runs in a process of its own."""

    memory: int | Written = 0
    """Bytes, or text such as "512MB"; 0: what its worker allows."""
    cpu: Duration = 0.0
    """Seconds of a processor."""
    files: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Open descriptors."""


class TaskSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One task, as it is submitted and as it is kept."""

    id: TaskId
    handler: Word
    config: msgspec.Raw = EMPTY
    """Any JSON. Read by the handler alone."""
    depends_on: tuple[TaskId, ...] = ()
    priority: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5
    """10 comes first. A minute of waiting counts as much as one of these."""
    retry: Retry | None = None
    """None: the job's."""
    timeouts: Timeouts | None = None
    capabilities: Annotated[tuple[Word, ...], msgspec.Meta(max_length=32)] = ()
    min_memory: int | Written = 0
    """Of the worker's machine: bytes, or text such as "2GB"."""
    delay: Duration = 0.0
    """After its dependencies are done."""
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Idempotency: a task whose key was completed before, in whichever job, is not run again but has that output."""
    limits: Annotated[tuple[Limit, ...], msgspec.Meta(max_length=8)] = ()
    bounds: Bounds | None = None
    for_each: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """It is fanned out over a list: "TASK" or "TASK.path.to.list" names it in the output of another task, which comes
    before it. Each element of the list becomes a task of its own, `ID[0]` and on."""
    max_parallel: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Of the elements that it is fanned out into, so many run at the same time; 0: any number."""
    on_timeout: OnTimeout | None = None
    """What follows once an attempt was warned that its time is over. None: as the job says."""


class DagSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for all tasks of a job."""

    on_failure: FailurePolicy = "fail_fast"
    """fail_fast: what has not ended is cancelled, the job is failed. skip_dependents: what waits for the failed task is
    skipped, the rest goes on. continue: what waits for it runs too, without its output."""
    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()
    timeout: Duration | None = None
    """Of the whole job."""
    notify: Notifies = ()
    """Who is told when the job has ended: one of these, or a list."""
    on_timeout: OnTimeout = "kill"
    """Of an attempt that takes longer than its timeout and gets no more time. kill: it is ended, and that counts as a
    failure. notify: it goes on, up to ten times its timeout. pause: it is ended without counting, and the job is paused
    until somebody resumes it."""


class Param(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What whoever submits the job may say, and must where there is no default."""

    type: ParamType = "string"
    default: ParamValue | None = None
    choices: Annotated[tuple[ParamValue, ...], msgspec.Meta(max_length=100)] = ()
    """Any other value is refused. Empty: any of the type."""
    description: Annotated[str, msgspec.Meta(max_length=1000)] = ""


Params = Annotated[dict[ParamName, Param], msgspec.Meta(max_length=PARAMS_LIMIT)]


class CodeBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Files with handlers that travel with a job, packed into one."""

    digest: Sha256
    """Of the bundle, which is uploaded before the job that names it."""
    size_bytes: Annotated[int, msgspec.Meta(ge=1)]
    files: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=1024)], ...],
        msgspec.Meta(min_length=1, max_length=64),
    ]
    """Those in it that handlers are imported from."""
    handlers: Annotated[tuple[Word, ...], msgspec.Meta(min_length=1, max_length=1024)]
    """Tasks that name one of these run where code is accepted; others run where the worker's own handlers are."""
    plain: Annotated[tuple[Word, ...], msgspec.Meta(max_length=1024)] = ()
    """Those of them that are plain functions or commands."""


class KeptSettings(DagSettings, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a job as a store keeps them, with what else of its submission outlives a restart."""

    bundle: CodeBundle | None = None


class DagSpec(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dag", forbid_unknown_fields=True):
    """The body of a submission."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    tasks: Annotated[tuple[TaskSpec, ...], msgspec.Meta(min_length=1)]
    settings: DagSettings = DagSettings()
    schedule: str = ""
    """A cron line: the job is submitted anew whenever it is due."""
    params: Params = {}
    """Named in configs and keys of tasks as `${name}`."""
    values: ParamValues = {}
    """Of params, as they are or as text. Where placeholders are filled already: those that they were filled with."""
    timezone: Written = ""
    """In which the schedule is due, such as Europe/Berlin. Empty: UTC."""
    catch_up: CatchUp = "one"
    bundle: CodeBundle | None = None
    """Handlers that travel with it. It was uploaded before."""
    wait_for_workers: bool = False
    """Take it also where no worker that is known could run some of its tasks: they wait for one."""


class DagHead(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dag", forbid_unknown_fields=True):
    """A `DagSpec` whose tasks follow one by one."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    settings: DagSettings = DagSettings()
    params: Params = {}
    values: ParamValues = {}
    bundle: CodeBundle | None = None
    wait_for_workers: bool = False


class _FirstSpec(msgspec.Struct, frozen=True, tag_field="kind", tag="dag"):
    """What a `DagSpec` had in the first version."""

    name: str
    tasks: tuple[TaskSpec, ...]
    settings: DagSettings
    schedule: str


class BadDag(Invalid):
    """Something in a job cannot be. `task` is the id of the task that is to be mended, `index` its place among those
    that were looked at, −1 when it is the job itself; `field` says where in it, such as `retry.backoff` or
    `depends_on[2]`."""

    def __init__(self, text: str, task: str = "", *, index: int = -1, field: str = "") -> None:
        super().__init__(text)
        self.task, self.index, self.field = task, index, field


def with_bundle(settings: DagSettings, bundle: CodeBundle | None) -> DagSettings:
    """What a store keeps: without a bundle, as it was always kept."""
    if bundle is None:
        return settings
    return KeptSettings(**{name: getattr(settings, name) for name in DagSettings.__struct_fields__}, bundle=bundle)


def bundle_of(settings: DagSettings) -> CodeBundle | None:
    return settings.bundle if isinstance(settings, KeptSettings) else None


# Values as people write them.

SIZE_UNITS: Final = {
    unit: size
    for power, letter in enumerate("KMGTP", start=1)
    for unit, size in (
        (f"{letter}IB", 1024**power),
        (f"{letter}B", 1000**power),
        (letter, 1000**power),
    )
} | {"B": 1, "": 1}
SIZE: Final = re.compile(rf"(?P<number>{NUMBER})\s?(?P<unit>[A-Za-z]{{0,3}})")
_LONGEST_S: Final = LONGEST_NS / SECOND


def seconds_of(duration: Duration, what: str) -> float:
    """`what` names the value in an error."""
    if not isinstance(duration, str) and 0 <= duration <= _LONGEST_S:
        return float(duration)
    return _seconds(duration, what)


@lru_cache(maxsize=4096)  # a million tasks say the same few words
def _seconds(duration: Duration, what: str) -> float:
    return parse_duration(duration, what=what) / SECOND


def bytes_of(value: int | str, what: str) -> int:
    """Of "512MB" (a thousand times a thousand), "2GiB" (1,024 …) or a plain number."""
    if not isinstance(value, str) and 0 <= value <= SIZE_LIMIT_BYTES:
        return value
    return _bytes(value, what)


@lru_cache(maxsize=4096)
def _bytes(value: int | str, what: str) -> int:
    found = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = SIZE_UNITS.get(found["unit"].upper()) if found else None
    if found is None or unit is None:
        raise Invalid(f'{what} = {shown(value)} is not a size: write bytes, or text such as "512MB" or "2GiB"')
    size = round(Fraction(found["number"]) * unit)
    if size > SIZE_LIMIT_BYTES:
        raise Invalid(f"{what} = {shown(value)} is too large: write at most 1 EiB")
    return int(size)


@lru_cache(maxsize=4096)
def rate_of(text: str, what: str) -> Fraction:
    """Starts per second, exactly as written; 0 when nothing is written: any rate."""
    if not text:
        return Fraction(0)
    per_s = parse_rate(text, what=what)
    if not per_s:
        raise Invalid(f'{what} = {shown(text)} lets nothing start: write a rate above 0, such as "10/s", or none')
    return per_s


# What is wrong with tasks and settings.


def checked(tasks: Sequence[TaskSpec], known: Mapping[str, int] = {}, *, forward: bool = True) -> list[tuple[int, ...]]:
    """Indexes of the dependencies of each task, each once. Raises `BadDag`, with the first of what is wrong.

    `known` are the ids of earlier parts of the same job with their indexes, which are 0 to len(known) − 1; these tasks
    follow them. Not `forward`: what a task depends on must come before it.
    """
    dependencies, problems = examined(tasks, known, forward=forward)
    if problems:
        raise problems[0]
    return dependencies


def examined(
    tasks: Sequence[TaskSpec],
    known: Mapping[str, int] = {},
    *,
    forward: bool = True,
    tasks_limit: int = TASKS_LIMIT,
    problems_limit: int = PROBLEMS_LIMIT,
) -> tuple[list[tuple[int, ...]], list[BadDag]]:
    """Dependencies as `checked` gives them, as far as they are right, and all that is wrong, up to a limit."""
    first = len(known)
    if first + len(tasks) > tasks_limit:
        return [], [BadDag(f"the job has more than {tasks_limit:,} tasks: split it into several jobs")]
    places = {task.id: place for place, task in enumerate(tasks, first)}
    problems: list[BadDag] = []
    if len(places) != len(tasks) or not known.keys().isdisjoint(places):
        problems += islice(_doubles(tasks, known), problems_limit)
    dependencies: list[tuple[int, ...]] = []
    fans: dict[str, None] = {}
    points_forward = False
    for place, task in enumerate(tasks, first):
        names = task.depends_on
        if len(task.config) > CONFIG_LIMIT_BYTES or len(names) > DEPENDENCIES_LIMIT:
            problems += (_told(task, place - first, field, text) for field, text in _too_large(task))
        if (
            task.delay
            or task.retry is not None
            or task.timeouts is not None
            or task.min_memory
            or task.limits
            or task.bounds is not None
        ):
            values = (task.delay, task.retry, task.timeouts, task.min_memory, task.limits, task.bounds)
            problems += (_told(task, place - first, field, text) for field, text in _wrong_values(*values))
        if task.capabilities or task.limits or "$" in task.handler:
            unfilled = _not_filled(task.handler, task.capabilities, task.limits)
            problems += (_told(task, place - first, field, text) for field, text in unfilled)
        if task.for_each or task.max_parallel:
            fans[task.id] = None
            names, texts = _fanned_over(task, places, known)
            problems += (_told(task, place - first, field, text) for field, text in texts)
        if not names:
            dependencies.append(())
            continue
        if known:
            found = tuple([places.get(name, known.get(name, MISSING)) for name in names])
        else:
            found = tuple([places.get(name, MISSING) for name in names])
        latest = max(found) if len(found) > 1 else found[0]
        if latest >= place and (not forward or place in found) or MISSING in found:
            found, texts = _sorted_out(names, len(task.depends_on), place, found, places, known, forward=forward)
            problems += (_told(task, place - first, field, text) for field, text in texts)
        if len(found) > 1 and len(set(found)) < len(found):
            found = tuple(dict.fromkeys(found))
        dependencies.append(found)
        points_forward = points_forward or latest > place
        if len(problems) >= problems_limit:
            return dependencies, problems[:problems_limit]
    if fans:
        problems += islice(_elements_named(tasks, fans), problems_limit - len(problems))
    if points_forward:
        for circle in islice(_circles(dependencies, first), problems_limit - len(problems)):
            index = circle[0] - first
            ids = [tasks[place - first].id for place in circle]
            shown_ids = ids if len(ids) <= 12 else [*ids[:6], f"({len(ids) - 8} more)", *ids[-2:]]
            text = f"waits for itself: {' → '.join([*shown_ids, ids[0]])}"
            problems.append(_told(tasks[index], index, "depends_on", text))
    return dependencies, problems


def check_schedule(spec: DagSpec) -> None:
    """Whether there is such a zone is asked elsewhere."""
    for field, text in schedule_problems(spec.schedule, spec.timezone, spec.catch_up):
        raise BadDag(text, field=field)


def schedule_problems(schedule: str, timezone: str, catch_up: CatchUp) -> list[tuple[str, str]]:
    """Fields, and what is wrong with them."""
    problems = []
    try:
        if schedule:
            Cron.parse(schedule)
    except Invalid as error:
        problems.append(("schedule", str(error)))
    for field, is_given in (("timezone", bool(timezone)), ("catch_up", catch_up != "one")):
        if is_given and not schedule:
            problems.append((field, f'{field}: belongs to a schedule, and there is none: write schedule: "0 3 * * *"'))
    return problems


def check_name(name: str) -> None:
    if problem := name_problem(name):
        raise BadDag(problem, field="name")


def name_problem(name: str) -> str:
    """What is wrong with the name of a job; empty: nothing."""
    return _placeholder_in("name", name) if "${" in name else ""


def check_settings(settings: DagSettings) -> None:
    for field, text in settings_problems(settings):
        raise BadDag(f"settings: {text}", field=f"settings.{field}")


def settings_problems(settings: DagSettings) -> list[tuple[str, str]]:
    """Fields, and what is wrong with them."""
    return _wrong_durations(
        ("timeout", settings.timeout, True), *_retry_durations(settings.retry), *_timeouts(settings.timeouts)
    ) + notify_problems(settings.notify)


def _told(task: TaskSpec, index: int, field: str, text: str) -> BadDag:
    return BadDag(f"task {task.id}: {text}", task.id, index=index, field=field)


def _doubles(tasks: Sequence[TaskSpec], known: Mapping[str, int]) -> Iterator[BadDag]:
    seen: dict[str, None] = {}
    for index, task in enumerate(tasks):
        if task.id in seen or task.id in known:
            yield BadDag(f"there are two tasks with the id {task.id}", task.id, index=index, field="id")
        seen[task.id] = None


def source_of(for_each: str, names: Container[str]) -> tuple[str, list[str]]:
    """The task that a `for_each` names, and the path in its output; empty: it names none. Ids may have dots in them:
    the longest that is there is meant."""
    source = for_each
    while source and source not in names:
        source = source.rpartition(".")[0]
    if source == for_each:
        return source, []
    return source, (for_each[len(source) + 1 :] if source else for_each).split(".")


def _fanned_over(
    task: TaskSpec, places: Mapping[str, int], known: Mapping[str, int]
) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """What a task depends on, with what it is fanned out over; and what is wrong with that."""
    texts: list[tuple[str, str]] = []
    if not task.for_each:
        return task.depends_on, [("max_parallel", "max_parallel is for a task with for_each: leave it out")]
    if task.key:
        text = "for_each and key exclude each other, since a key stands for one output: leave key out"
        texts.append(("key", text))
    if "${" in task.for_each:
        return task.depends_on, [*texts, ("for_each", _placeholder_in("for_each", task.for_each))]
    found = source_of(task.for_each, places), source_of(task.for_each, known)
    source, path = max(found, key=lambda one: len(one[0]))
    if not source:
        name = task.for_each.partition(".")[0]
        text = f"for_each = {shown(task.for_each)} names no task: there is no {name}{_close(name, places, known)}"
        return task.depends_on, [*texts, ("for_each", text)]
    if not all(path):
        text = f'for_each = {shown(task.for_each)} has an empty name in its path: write "TASK.path.to.list"'
        texts.append(("for_each", text))
    return (task.depends_on if source in task.depends_on else (*task.depends_on, source)), texts


def _elements_named(tasks: Sequence[TaskSpec], fans: Container[str]) -> Iterator[BadDag]:
    for index, task in enumerate(tasks):
        if task.id.endswith("]") and (fan := task.id.rpartition("[")[0]) in fans:
            text = f"is an id of an element of task {fan}, which is fanned out: name it otherwise"
            yield _told(task, index, "id", text)


def _sorted_out(
    names: Sequence[str],
    depends_on: int,
    place: int,
    found: tuple[int, ...],
    places: Mapping[str, int],
    known: Mapping[str, int],
    *,
    forward: bool,
) -> tuple[tuple[int, ...], list[tuple[str, str]]]:
    """The dependencies that can be, and what is wrong with the others. `depends_on`: so many of the names stand there;
    the last may be what it is fanned out over."""
    good: list[int] = []
    texts: list[tuple[str, str]] = []
    for position, (name, other) in enumerate(zip(names, found, strict=True)):
        if other == MISSING:
            text = f"depends on {name}, but there is no such task{_close(name, places, known)}"
        elif other == place:
            text = "depends on itself"
        elif other > place and not forward:
            text = f"depends on {name}, which comes after it: where tasks are streamed, dependencies come first"
        else:
            good.append(other)
            continue
        texts.append((f"depends_on[{position}]" if position < depends_on else "for_each", text))
    return tuple(good), texts


def _close(name: str, places: Mapping[str, int], known: Mapping[str, int]) -> str:
    # To compare with a million names would take seconds: those of about its length, and of these a thousand.
    near = (other for names in (places, known) for other in names if abs(len(other) - len(name)) <= 2)
    close = get_close_matches(name, islice(near, 1000), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _too_large(task: TaskSpec) -> Iterator[tuple[str, str]]:
    if len(task.config) > CONFIG_LIMIT_BYTES:
        size = f"{len(task.config):,} bytes, more than {CONFIG_LIMIT_BYTES:,}"
        yield "config", f"its config has {size}: put it into a file, and its path here"
    if len(task.depends_on) > DEPENDENCIES_LIMIT:
        text = f"depends on {len(task.depends_on):,} tasks, more than {DEPENDENCIES_LIMIT:,}"
        yield "depends_on", f"{text}: gather them in steps"


@lru_cache(maxsize=1024)  # a million tasks say the same few things
def _wrong_values(
    delay: Duration,
    retry: Retry | None,
    timeouts: Timeouts | None,
    min_memory: int | str,
    limits: tuple[Limit, ...],
    bounds: Bounds | None,
) -> tuple[tuple[str, str], ...]:
    """Fields, and what is wrong with them."""
    wrong = _wrong_durations(
        ("delay", delay, False),
        *(_retry_durations(retry) if retry else ()),
        *(_timeouts(timeouts) if timeouts else ()),
        *((("bounds.cpu", bounds.cpu, False),) if bounds else ()),
    )
    for field, size in (("min_memory", min_memory), ("bounds.memory", bounds.memory if bounds else 0)):
        try:
            bytes_of(size, field)
        except Invalid as error:
            wrong.append((field, str(error)))
    for position, limit in enumerate(limits):
        field = f"limits[{position}].rate"
        try:
            rate_of(limit.rate, field)
        except Invalid as error:
            wrong.append((field, str(error)))
    return tuple(wrong)


@lru_cache(maxsize=1024)  # a million tasks say the same few things
def _not_filled(handler: str, capabilities: tuple[str, ...], limits: tuple[Limit, ...]) -> tuple[tuple[str, str], ...]:
    """Fields with a placeholder that would be taken for a name, and what is wrong with them."""
    words = [("handler", handler)]
    words += ((f"capabilities[{position}]", word) for position, word in enumerate(capabilities))
    words += ((f"limits[{position}].key", limit.key) for position, limit in enumerate(limits))
    return tuple([(field, _placeholder_in(field, word)) for field, word in words if "${" in word])


def _placeholder_in(field: str, word: str) -> str:
    return f"{field} = {shown(word)} {STAYS}"


_Given: TypeAlias = tuple[str, Duration | None, bool]
"""A field, what stands in it, and whether it must leave some time."""


def _retry_durations(retry: Retry) -> tuple[_Given, ...]:
    return ("retry.backoff", retry.backoff, False), ("retry.cap", retry.cap, False)


def _timeouts(timeouts: Timeouts) -> tuple[_Given, ...]:
    return (
        ("timeouts.queue", timeouts.queue, True),
        ("timeouts.attempt", timeouts.attempt, True),
        ("timeouts.total", timeouts.total, True),
    )


def _wrong_durations(*given: _Given) -> list[tuple[str, str]]:
    wrong = []
    for field, duration, is_timeout in given:
        if duration is None:
            continue
        try:
            if seconds_of(duration, field) < 0.001 and is_timeout:
                wrong.append((field, f"{field} = {shown(duration)} leaves no time to run: write at least 1ms"))
        except BadDuration as error:
            wrong.append((field, str(error)))
    return wrong


def _circles(dependencies: Sequence[tuple[int, ...]], first: int) -> Iterator[list[int]]:
    """Indexes of tasks that wait for each other. `first` is the index of the first one here.

    Depth first, without recursion: a chain may be a million long.
    """
    untouched, entered, left = 0, 1, 2
    state = bytearray([left]) * first + bytearray(len(dependencies))
    for root in range(first, len(state)):
        if state[root]:
            continue
        stack = [root]
        while stack:
            index = stack[-1]
            if state[index] != untouched:
                state[index] = left
                stack.pop()
                continue
            state[index] = entered
            for other in dependencies[index - first]:
                if state[other] == untouched:
                    stack.append(other)
                elif state[other] == entered:
                    # One that waits to be entered may lie on the stack twice: it was entered where it lies last.
                    path = [place for place in dict.fromkeys(reversed(stack)) if state[place] == entered]
                    yield path[path.index(other) :: -1]


# Bytes.

_AT: Final = re.compile(r"^(?P<text>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_CHOICES: Final[dict[str, Any]] = {"type": ParamType, "catch_up": CatchUp, "on": EndState, "on_timeout": OnTimeout}
_PARTS: Final[dict[str, type[msgspec.Struct]]] = {
    "tasks": TaskSpec,
    "retry": Retry,
    "timeouts": Timeouts,
    "limits": Limit,
    "bounds": Bounds,
    "settings": DagSettings,
    "params": Param,
    "bundle": CodeBundle,
    "notify": Notify,
}
Spec = TypeVar("Spec")
_LATER: Final = {
    field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    for field in msgspec.structs.fields(DagSpec)
    if field.name not in (*_FirstSpec.__struct_fields__, "wait_for_workers")
}
"""Fields of a `DagSpec` that the first version did not have, and what they are where they are not used."""
_encoder: Final = msgspec.json.Encoder()
_dag_decoder: Final = msgspec.json.Decoder(DagSpec)
_head_decoder: Final = msgspec.json.Decoder(DagHead)
_task_decoder: Final = msgspec.json.Decoder(TaskSpec)


def decode_dag(content: bytes) -> DagSpec:
    """Its name, settings and schedule are checked; its tasks are not: see `checked`."""
    spec = decoded(_dag_decoder, content, DagSpec)
    check_name(spec.name)
    check_settings(spec.settings)
    check_schedule(spec)
    return spec


def decode_head(line: bytes) -> DagHead:
    head = decoded(_head_decoder, line, DagHead)
    check_name(head.name)
    check_settings(head.settings)
    return head


def decode_task(line: bytes) -> TaskSpec:
    return decoded(_task_decoder, line, TaskSpec)


def encode_task(task: TaskSpec) -> bytes:
    return _encoder.encode(task)


def identity_of(spec: DagSpec) -> bytes:
    """Bytes that two submissions have in common if they are the same order. Fields that came later and that a job does
    not use are not in them: a version of Talka knows the orders that the one before it was given."""
    first = _encoder.encode(_FirstSpec(spec.name, spec.tasks, spec.settings, spec.schedule))
    later = {name: value for name, usual in _LATER.items() if (value := getattr(spec, name)) != usual}
    return first + msgspec.json.encode(later, order="sorted") if later else first


def decoded(decoder: "msgspec.json.Decoder[Spec]", content: str | bytes, kind: type[msgspec.Struct]) -> Spec:
    try:
        if isinstance(content, bytes) and not content.isascii():
            content.decode()  # inside a config nobody else looks at the bytes
        return decoder.decode(content)
    except UnicodeDecodeError as error:
        raise BadDag(f"this is not UTF-8: a wrong byte at position {error.start:,}") from None
    except RecursionError:
        raise BadDag("this is nested too deeply") from None
    except msgspec.MsgspecError as error:
        path, text = explained(error, kind)
        raise BadDag(f"{path}: {text}" if path else text, field=path) from None


def explained(error: msgspec.MsgspecError, kind: type[msgspec.Struct], field: str = "") -> tuple[str, str]:
    """The path of what could not be read, such as `tasks[3].priority`, and what is wrong with it. `kind`: what should
    have been read, or what has the `field` that should have been."""
    found = _AT.match(str(error))
    text, path = (found["text"], found["path"]) if found else (str(error), "")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        part = _PARTS.get(re.sub(r"\[[^\[\]]*\]$", "", path).rpartition(".")[2], kind)
        return path, unknown_field(unknown[1], part)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return path, f"{missing[1]} is missing"
    if "matching regex" in text:
        return path, "has a character that an id may not have: write letters, digits and . _ : @ / [ ] -"
    if wrong := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text):
        wanted = " or ".join(_WORDS.get(word, word) for word in wrong[1].split(" | "))
        return path, f"must be {wanted}, not {_WORDS.get(wrong[2], wrong[2])}"
    if bound := re.fullmatch(r"Expected `(int|float|str|array)` (of length )?(<=|>=) (\S+)", text):
        side = "at most" if bound[3] == "<=" else "at least"
        one, more = {"str": (" character", " characters"), "array": (" entry", " entries")}.get(bound[1], ("", ""))
        return path, f"must {'have' if bound[2] else 'be'} {side} {float(bound[4]):g}{one if bound[4] == '1' else more}"
    if choice := re.fullmatch(r"Invalid enum value '(.*)'", text, re.DOTALL):
        where = re.sub(r"\[[^\[\]]*\]$", "", path) or field
        last_word = re.split(r"[. ]", where)[-1]
        choices = ", ".join(get_args(_CHOICES.get(last_word, FailurePolicy)))
        return path, f"{shown(choice[1])} is not one of {choices}"
    if text.startswith("Invalid value"):  # of a tag, and only jobs have one
        return path, 'must be "dag"'
    if text.startswith("JSON is malformed") or text == "Input data was truncated":
        return path, f"this is not JSON: {text.removeprefix('JSON is malformed: ').lower()}"
    return path, text


def unknown_field(name: str, kind: type[msgspec.Struct]) -> str:
    names = kind.__struct_fields__
    if close := get_close_matches(name, names, n=1):
        return f"unknown field {shown(name)} (did you mean {close[0]}?)"
    if kind in (DagSpec, DagHead) and name in DagSettings.__struct_fields__:
        return f"unknown field {shown(name)}: it belongs into settings"
    return f"unknown field {shown(name)}: there are {', '.join(names)}"
