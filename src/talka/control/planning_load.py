"""From checked workflows to the plan of a load job."""

from collections.abc import Sequence

import msgspec

from talka.control.load_job import JobSpec
from talka.control.shard_group import JobWorkflow
from talka.errors import Invalid
from talka.wire.shards import Settings, Source
from talka.work.durations import format_duration, parse_duration
from talka.work.shapes import (
    ConstantRate,
    ConstantVUs,
    IterationsPerVU,
    LoadShape,
    OpenShape,
    SharedIterations,
)
from talka.work.specs import WorkflowSpec, default_timeout_ns
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
    if not overrides:
        return tuple(specs)
    if overrides.duration is not None:
        parse_duration(overrides.duration, what="--duration")
    changed = []
    for spec in specs:
        if spec.is_test:
            shape = spec.shape
            if spec.workflow.load is None and overrides.duration is not None:
                # Without a duration of its own it would run once; given one, it runs for so long.
                shape = ConstantVUs(spec.plan.vus, overrides.duration)
            shape = overridden(shape, overrides, workflow=spec.name)
            plan = shape.plan()
            timeout_ns = default_timeout_ns(plan) if spec.workflow.timeout is None else spec.timeout_ns
            spec = spec.changed(shape=shape, plan=plan, timeout_ns=timeout_ns)
        changed.append(spec)
    return tuple(changed)


def plan_load_job(
    specs: Sequence[WorkflowSpec],
    *,
    job: str,
    source: Source,
    cores: int,
    settings: Settings,
    thresholds: Sequence[Threshold] = (),
) -> JobSpec:
    by_name = {spec.name: spec for spec in specs}
    return JobSpec(
        job=job,
        source=source,
        workflows=tuple(
            JobWorkflow(
                name=spec.name,
                plan=spec.plan,
                priority=spec.priority,
                is_test=spec.is_test,
                depends_on=spec.depends_on,
                timeout_ns=spec.timeout_ns,
                thresholds=spec.thresholds,
                flows=tuple(flows_into(spec, by_name)),
                is_teardown=spec.is_teardown,
            )
            for spec in specs
        ),
        cores=cores,
        settings=settings,
        thresholds=tuple(thresholds),
    )


def flows_into(spec: WorkflowSpec, by_name: dict[str, WorkflowSpec]) -> list[tuple[str, str]]:
    """(workflow, key) of every value that reaches the workflow: the user names the provider, and the other way round."""
    return [
        (source, provide.key)
        for use in spec.uses
        for source in use.sources
        for provide in by_name[source].provides
        if provide.key in use.types and spec.name in provide.targets
    ]
