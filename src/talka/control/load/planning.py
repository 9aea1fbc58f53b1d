"""From checked workflows to the plan of a load job."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from talka.control.load.load_job import JobSpec
from talka.errors import Invalid
from talka.wire.orders import WorkflowOrder
from talka.wire.shards import Settings, Source
from talka.work.durations import format_duration, parse_duration
from talka.work.load import BadShape, Plan
from talka.work.shapes import (
    ConstantRate,
    ConstantVUs,
    IterationsPerVU,
    LoadShape,
    OpenShape,
    SharedIterations,
)
from talka.work.specs import BadWorkflows, NodeOutline, SpecProblem, WorkflowSpec, default_timeout_ns
from talka.work.thresholds import Threshold


class Overrides(msgspec.Struct, frozen=True):
    """What the command line says about the load; it replaces what the file says, in every workflow that measures."""

    vus: int | None = None
    rate: str | float | None = None
    duration: str | float | None = None
    iterations: int | None = None

    def __bool__(self) -> bool:
        return self != Overrides()


class CannotOverride(Invalid):
    """The command asks for something that does not fit the load shape in the file."""


def overridden(shape: LoadShape, overrides: Overrides, *, workflow: str) -> LoadShape:
    """The shape with the command line's values in place of its own."""
    vus, rate, duration, iterations = overrides.vus, overrides.rate, overrides.duration, overrides.iterations
    if rate is not None and iterations is not None:
        raise CannotOverride("--rate and --iterations exclude each other: one says how fast, the other how many")
    plan = shape.plan()
    length = duration
    if duration is None and plan.length_ns is not None:
        length = format_duration(plan.length_ns)
    if iterations is not None:
        # An end in time belongs to the file's own count of iterations, not to its other shapes.
        until = length if isinstance(shape, IterationsPerVU | SharedIterations) else duration
        return SharedIterations(plan.vus if vus is None else vus, iterations, until)
    if rate is not None:
        if length is None:
            raise CannotOverride(f"--rate needs --duration: {workflow} does not say how long it runs")
        if isinstance(shape, OpenShape):
            return ConstantRate(rate, length, shape.max_vus if vus is None else vus, shape.policy)
        return ConstantRate(rate, length, max_vus=vus)
    match shape:
        case IterationsPerVU() | SharedIterations():
            return type(shape)(shape.vus if vus is None else vus, shape.iterations, length)
        case ConstantRate() if vus is None and length is not None:
            return ConstantRate(shape.rate, length, shape.max_vus, shape.policy)
        case _ if vus is None and not isinstance(shape, ConstantVUs):
            raise CannotOverride(
                f"--duration cannot stretch the load of {workflow} ({shape.describe()}): "
                "give --vus or --rate as well, or change the file"
            )
        case _:
            assert length is not None
            return ConstantVUs(plan.vus if vus is None else vus, length)


def with_overrides(specs: Sequence[WorkflowSpec], overrides: Overrides) -> tuple[WorkflowSpec, ...]:
    """The specs with the command line's load, and with their parts of it where they share one."""
    sharing = [spec for spec in specs if spec.share is not None]
    if not overrides and not sharing:
        return tuple(specs)
    if overrides.duration is not None:
        parse_duration(overrides.duration, what="--duration")
    parts = shared_out(sharing, overrides) if sharing else {}
    changed = []
    for spec in specs:
        if spec.name in parts:
            shape, plan = parts[spec.name]
        elif spec.is_test and overrides:
            shape = overridden(without_an_end(spec.shape, spec.workflow.load, overrides), overrides, workflow=spec.name)
            plan = shape.plan()
        else:
            changed.append(spec)
            continue
        timeout_ns = default_timeout_ns(plan) if spec.workflow.timeout is None else spec.timeout_ns
        changed.append(replace(spec, shape=shape, plan=plan, timeout_ns=timeout_ns))
    return tuple(changed)


def without_an_end(shape: LoadShape, given: LoadShape | None, overrides: Overrides) -> LoadShape:
    """What has no duration of its own would run once; given one by the command, it runs for so long."""
    if given is not None or overrides.duration is None:
        return shape
    return ConstantVUs(shape.plan().vus, overrides.duration)


def shared_out(specs: Sequence[WorkflowSpec], overrides: Overrides) -> dict[str, tuple[LoadShape, Plan]]:
    """One load for all of them: the file's, with the command line's values in place of its own."""
    first = specs[0]
    shape = first.shape
    if first.whole is None and not overrides:
        text = (
            f"{first.name} has a share of a load that nobody names: write load = ConstantRate('50/s', '1m') or another"
            " shape at the top level of the file, or give --rate or --vus with the command"
        )
        raise BadWorkflows([SpecProblem(text, first.file, first.line)])
    if overrides:
        shape = overridden(without_an_end(shape, first.whole, overrides), overrides, workflow="the file")
    weights = [spec.share or 0 for spec in specs]
    whole = shape.plan()
    parts: dict[str, tuple[LoadShape, Plan]] = {}
    for index, spec in enumerate(specs):
        try:
            parts[spec.name] = (shape, whole.part(weights, index))
        except BadShape as error:
            text = f"{spec.name}: {error}"
            if overrides:
                raise CannotOverride(text) from None
            raise BadWorkflows([SpecProblem(text, spec.file, spec.line)]) from None
    return parts


def plan_load_job(
    specs: Sequence[WorkflowSpec],
    *,
    job: str,
    source: Source,
    cores: int,
    settings: Settings,
    thresholds: Sequence[Threshold] = (),
) -> JobSpec:
    return JobSpec(
        job=job,
        source=source,
        workflows=workflow_orders(specs),
        cores=cores,
        settings=settings,
        thresholds=tuple(thresholds),
    )


def workflow_orders(specs: Sequence[WorkflowSpec]) -> tuple[WorkflowOrder, ...]:
    by_name = {spec.name: spec for spec in specs}
    return tuple(_workflow_order(spec, by_name) for spec in specs)


def _workflow_order(spec: WorkflowSpec, by_name: dict[str, WorkflowSpec]) -> WorkflowOrder:
    return WorkflowOrder(
        name=spec.name,
        plan=spec.plan,
        priority=spec.priority,
        is_test=spec.is_test,
        depends_on=tuple(sorted(spec.depends_on)),
        timeout_ns=spec.timeout_ns,
        thresholds=spec.thresholds,
        flows=tuple(flows_into(spec, by_name)),
        load=spec.load,
        nodes=tuple(
            NodeOutline(node.name, node.kind, node.measured, dict(node.tags), node.metric_kind) for node in spec.nodes
        ),
        announcements=spec.announcements,
        think_ns=spec.think_ns,
        is_teardown=spec.is_teardown,
        on_timeout=spec.on_timeout,
        saves=bool(spec.evictions),
    )


def flows_into(spec: WorkflowSpec, by_name: dict[str, WorkflowSpec]) -> list[tuple[str, str]]:
    """(workflow, key) of every value that reaches the workflow: the user names the provider, and the other way
    round."""
    return [
        (source, provide.key)
        for use in spec.uses
        for source in use.sources
        for provide in by_name[source].provides
        if provide.key in use.types and spec.name in provide.targets
    ]
