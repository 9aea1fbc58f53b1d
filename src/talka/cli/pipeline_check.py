"""What `talka check` says of a pipeline: what it would run, and who could. Imported only by that command."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final, Literal

import msgspec

from talka.cli.config import CliSettings
from talka.cli.connection import answered, client_of
from talka.cli.output import ResultFile, json_of, say, table, tell
from talka.client.client import Client
from talka.client.dags import WANTS_LIMIT
from talka.report.tame import tame
from talka.report.text import bytes_text, counted_text
from talka.wire.task_views import TaskWants, TaskWorkers
from talka.work.dags.dag import CatchUp, CodeBundle, DagSpec, Param, ParamValue, TaskSpec, bytes_of, checked
from talka.work.dags.params import text_of, values_of
from talka.work.outcome import ExitCode

LAYERS_SHOWN: Final = 12
NAMES_SHOWN: Final = 4
GROUPS_SHOWN: Final = 40
WORKERS_SHOWN: Final = 8


class ParamPlan(msgspec.Struct, frozen=True):
    name: str
    type: str
    value: ParamValue | None
    """None: it must be given."""
    is_default: bool


class LayerPlan(msgspec.Struct, frozen=True):
    """Tasks that may run at the same time, once those of the layers before are done."""

    tasks: int
    first: list[str]
    """Ids of some of them."""


class GroupPlan(msgspec.Struct, frozen=True):
    """Tasks that want the same of a worker."""

    tasks: int
    first: str
    """Id of one of them."""
    handler: str
    capabilities: list[str] = []
    min_memory_bytes: int = 0
    found: TaskWorkers | None = None
    """Who could run them. None: nobody was asked."""
    is_brought: bool = False
    """The handler travels with the job: whoever accepts code has it."""


class FanOutPlan(msgspec.Struct, frozen=True):
    """A task that becomes one for each element of a list, which is known only once it is there."""

    task: str
    for_each: str
    max_parallel: int = 0
    """Elements that run at a time. 0: any number."""


class PipelinePlan(msgspec.Struct, frozen=True):
    """What would be run, for programs."""

    name: str
    tasks: int
    layers: list[LayerPlan]
    groups: list[GroupPlan]
    params: list[ParamPlan]
    schedule: str = ""
    bundle: CodeBundle | None = None
    """What travels with it."""
    fan_outs: list[FanOutPlan] = []
    travels: list[str] = []
    """The files of its bundle."""
    timezone: str = ""
    """In which it is scheduled; empty: UTC."""
    catch_up: CatchUp = "one"
    schema: Literal["talka.pipeline-plan/1"] = "talka.pipeline-plan/1"


def check_pipeline(
    spec: DagSpec,
    settings: CliSettings,
    file: ResultFile | None,
    *,
    travels: Sequence[str] = (),
    asks: bool,
    has_values: bool,
) -> int:
    """`travels`: the files of its bundle. `asks` the cluster who could run its tasks; `has_values`: some were given, so
    that none may be missing."""
    plan = plan_of(spec, travels, has_values=has_values)
    if asks:
        found = answered(settings, workers_for(client_of(settings), plan.groups))
        groups = [msgspec.structs.replace(group, found=one) for group, one in zip(plan.groups, found, strict=True)]
        plan = msgspec.structs.replace(plan, groups=groups)
    if file is not None:
        file.write(json_of(plan))
    if file is None or not file.is_stdout:
        say(plan_text(plan))
    stuck = stuck_groups(plan)
    if stuck:
        tasks = sum(group.tasks for group in stuck)
        tell(
            f"no worker could run {counted_text(tasks, 'task')} of {plan.tasks:,}: start workers that have what they"
            " want, or submit with --wait-for-workers"
        )
        return int(ExitCode.BAD_FILE)
    return int(ExitCode.HELD)


async def workers_for(client: Client, groups: Sequence[GroupPlan]) -> list[TaskWorkers]:
    found: list[TaskWorkers] = []
    wants = [TaskWants(group.handler, group.capabilities, group.min_memory_bytes, group.is_brought) for group in groups]
    for start in range(0, len(wants), WANTS_LIMIT):
        found += await client.who_could_run(wants[start : start + WANTS_LIMIT])
    return found


def stuck_groups(plan: PipelinePlan) -> list[GroupPlan]:
    return [group for group in plan.groups if group.found is not None and group.found.lack]


# What it would run.


def plan_of(spec: DagSpec, travels: Sequence[str] = (), *, has_values: bool) -> PipelinePlan:
    """Of a spec that was checked."""
    return PipelinePlan(
        spec.name,
        len(spec.tasks),
        layers_of(spec.tasks),
        groups_of(spec.tasks, () if spec.bundle is None else spec.bundle.handlers),
        params_of(spec.params, spec.values, has_values=has_values),
        spec.schedule,
        spec.bundle,
        [FanOutPlan(task.id, task.for_each, task.max_parallel) for task in spec.tasks if task.for_each],
        list(travels),
        spec.timezone,
        spec.catch_up,
    )


def layers_of(tasks: Sequence[TaskSpec]) -> list[LayerPlan]:
    """Each task one below the lowest that it waits for."""
    depends_on = checked(tasks)
    depth = [-1] * len(tasks)
    for start in range(len(tasks)):
        stack = [start]  # no recursion: a chain may be a million long
        while stack:
            index = stack[-1]
            if depth[index] >= 0:
                stack.pop()
                continue
            open_ones = [other for other in depends_on[index] if depth[other] < 0]
            if open_ones:
                stack += open_ones
                continue
            depth[index] = 1 + max((depth[other] for other in depends_on[index]), default=-1)
            stack.pop()
    sizes = Counter(depth)
    first: list[list[str]] = [[] for _ in sizes]
    for task, layer in zip(tasks, depth, strict=True):
        if len(first[layer]) < NAMES_SHOWN:
            first[layer].append(task.id)
    return [LayerPlan(sizes[layer], names) for layer, names in enumerate(first)]


def groups_of(tasks: Sequence[TaskSpec], brought: Collection[str] = ()) -> list[GroupPlan]:
    """Handlers that are `brought` travel with the job."""
    counts: dict[tuple[str, tuple[str, ...], int], int] = {}
    first: dict[tuple[str, tuple[str, ...], int], str] = {}
    for task in tasks:
        wants = (task.handler, task.capabilities, bytes_of(task.min_memory, "min_memory"))
        counts[wants] = counts.get(wants, 0) + 1
        first.setdefault(wants, task.id)
    return [
        GroupPlan(counts[wants], id, wants[0], list(wants[1]), wants[2], None, wants[0] in brought)
        for wants, id in first.items()
    ]


def params_of(params: Mapping[str, Param], values: Mapping[str, ParamValue], *, has_values: bool) -> list[ParamPlan]:
    found, _ = values_of(params, values, is_sample=not has_values)
    return [
        ParamPlan(
            name,
            param.type,
            None if name not in values and param.default is None else found[name],
            name not in values,
        )
        for name, param in params.items()
    ]


# As text.


def schedule_text(plan: PipelinePlan) -> str:
    """What follows its size; empty: it is run when it is submitted."""
    if not plan.schedule:
        return ""
    missed = "" if plan.catch_up == "one" else f", catch_up: {plan.catch_up}"
    return f", scheduled at {plan.schedule} in {plan.timezone or 'UTC'}{missed}"


def plan_text(plan: PipelinePlan) -> str:
    widest = max(layer.tasks for layer in plan.layers)
    size = (
        f"{counted_text(plan.tasks, 'task')} in {counted_text(len(plan.layers), 'layer')}, at most {widest:,} at once"
    )
    if plan.fan_outs:
        size += f", and the elements of {len(plan.fan_outs):,} of them"
    lines = [f"{tame(plan.name)}: {size}" + schedule_text(plan)]
    lines += [f"param {tame(param_text(param))}" for param in plan.params]
    lines += map(tame, fan_out_texts(plan.fan_outs))
    if plan.bundle is not None:
        lines += map(tame, bundle_text(plan.bundle, {group.handler for group in plan.groups}, plan.travels))
    rows = [
        (str(number), f"{layer.tasks:,}", names_text(layer.first, layer.tasks))
        for number, layer in enumerate(islice(plan.layers, LAYERS_SHOWN), 1)
    ]
    lines += ["", table(("LAYER", "TASKS", ""), rows)]
    if len(plan.layers) > LAYERS_SHOWN:
        lines.append(f"… and {counted_text(len(plan.layers) - LAYERS_SHOWN, 'layer')} more")
    lines += ["", *groups_text(plan)]
    return "\n".join(lines)


def param_text(param: ParamPlan) -> str:
    if param.value is None:
        return f"{param.name}: must be given, --param {param.name}={param.type.upper()}"
    return f"{param.name} = {text_of(param.value)}" + (" (the default)" if param.is_default else "")


def fan_out_texts(fan_outs: Sequence[FanOutPlan]) -> list[str]:
    lines = [
        f"{one.task}: one task for each element of {one.for_each}"
        + (f", at most {one.max_parallel:,} at once" if one.max_parallel else "")
        for one in fan_outs[:NAMES_SHOWN]
    ]
    more = len(fan_outs) - NAMES_SHOWN
    return [*lines, f"… and {counted_text(more, 'task')} more that are fanned out"] if more > 0 else lines


def bundle_text(bundle: CodeBundle, wanted: Collection[str], travels: Sequence[str]) -> list[str]:
    """What travels, and what does not fit the handlers that tasks name."""
    brought = sorted(bundle.handlers)
    every = list(dict.fromkeys([*bundle.files, *travels]))
    files = names_text(every[:NAMES_SHOWN], len(every))
    handlers = names_text(brought[:NAMES_SHOWN], len(brought))
    lines = [f"travels with it: {files} ({bytes_text(bundle.size_bytes)}), handlers {handlers}"]
    unused = [name for name in brought if name not in wanted]
    own = [with_close(name, unused) for name in sorted(wanted) if name not in bundle.handlers]
    if own:
        lines.append(f"must be on workers: {names_text(own[:NAMES_SHOWN], len(own))}")
    if unused:
        lines.append(f"named by no task: {names_text(unused[:NAMES_SHOWN], len(unused))}")
    return lines


def with_close(name: str, others: Sequence[str]) -> str:
    close = get_close_matches(name, others, n=1)
    return f"{name} (did you mean {close[0]}?)" if close else name


def names_text(first: Sequence[str], count: int) -> str:
    more = f" … {count - len(first):,} more" if count > len(first) else ""
    return ", ".join(first) + more


def groups_text(plan: PipelinePlan) -> list[str]:
    rows = []
    # Those that nobody could run come first: there may be many more of the others.
    groups = sorted(plan.groups, key=lambda group: group.found is None or not group.found.lack)
    for group in groups[:GROUPS_SHOWN]:
        rows.append((group.handler, f"{group.tasks:,}", needs_text(group), found_text(group.found)))
        if group.found is not None and group.found.lack:
            refusals = [reason for reason in group.found.workers if reason.constraint]
            if all(reason.constraint in ("handler", "code") for reason in refusals):
                continue  # what is lacking says it
            rows += [("", "", "", f"  {one.worker}: {one.text}") for one in refusals[:WORKERS_SHOWN]]
    heads = ("HANDLER", "TASKS", "WANTS", "COULD RUN" if any(group.found for group in groups) else "")
    lines = [table(heads, rows)]
    if len(groups) > GROUPS_SHOWN:
        lines.append(f"… and {counted_text(len(groups) - GROUPS_SHOWN, 'handler')} more: --json lists all")
    return lines


def needs_text(group: GroupPlan) -> str:
    memory = [f"{group.min_memory_bytes:,} bytes"] if group.min_memory_bytes else []
    code = ["code accepted"] if group.is_brought else []
    return ", ".join([*code, *group.capabilities, *memory])


def found_text(found: TaskWorkers | None) -> str:
    if found is None:
        return ""
    if found.lack:
        return f"✗ {found.lack}"
    able = [reason.worker for reason in found.workers[: found.able]]
    if not found.able:
        could = (f"{one.worker}: {one.text}" for one in found.workers if not one.is_lasting)
        return f"! not now: {next(could, 'whoever could is away')}"
    return f"✓ {names_text(able[:NAMES_SHOWN], found.able)}"
