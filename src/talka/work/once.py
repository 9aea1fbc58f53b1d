"""Setups and teardowns that run once for a job: each kind becomes a workflow of its own, before and after the class's.

So one core runs them, they are retried, told of and handed on as any workflow that measures nothing is, on one machine
and on a cluster. The value of a setup reaches every core of the class by `self.context`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from talka.work.dsl import Workflow
from talka.work.shapes import IterationsPerVU
from talka.work.specs import NodeSpec, WorkflowSpec, default_timeout_ns

ONE_RUN = IterationsPerVU(1, 1)


def with_once(specs: Iterable[WorkflowSpec]) -> tuple[WorkflowSpec, ...]:
    """Also these workflows, each in its place; those that depend on a class depend on nothing else for it."""
    found: list[WorkflowSpec] = []
    for spec in specs:
        before, after = f"{spec.name}.setup", f"{spec.name}.teardown"
        if spec.once_before:
            found.append(_of(spec, before, spec.depends_on, _in_turn(spec.once_before)))
            # What it depends on was there before its setup, and what that left in the context comes by way of it.
            spec = replace(spec, depends_on=frozenset({before}))
        found.append(spec)
        if spec.once_after:
            # One after the other, whatever became of the one before.
            layers = tuple((replace(node, kind="action"),) for node in spec.once_after)
            ran = frozenset({spec.name, before} if spec.once_before else {spec.name})
            found.append(replace(_of(spec, after, ran, layers), is_teardown=True))
    return tuple(found)


def _in_turn(nodes: Iterable[NodeSpec]) -> tuple[tuple[NodeSpec, ...], ...]:
    """One layer each: a setup waits for those before it, and does not run when one of them failed."""
    layers: list[tuple[NodeSpec, ...]] = []
    done: frozenset[str] = frozenset()
    for node in nodes:
        layers.append((replace(node, kind="action", function=_kept(node), is_async=True, after=done),))
        done |= {node.name}
    return tuple(layers)


def _kept(node: NodeSpec) -> Callable[..., Any]:
    """The method, and what it returns is in the context under its name."""

    async def run(workflow: Workflow, **arguments: Any) -> Any:
        value = node.function(workflow, **arguments)
        if node.is_async:
            value = await value
        workflow.context[node.name] = value
        return value

    return run


def _of(
    spec: WorkflowSpec, name: str, depends_on: frozenset[str], layers: tuple[tuple[NodeSpec, ...], ...]
) -> WorkflowSpec:
    plan = ONE_RUN.plan()
    return WorkflowSpec(
        name=name,
        workflow=spec.workflow,
        file=spec.file,
        line=spec.line,
        shape=ONE_RUN,
        plan=plan,
        priority="auto",
        timeout_ns=default_timeout_ns(plan),
        thresholds=(),
        layers=layers,
        depends_on=depends_on,
        provides=(),
        uses=(),
        announcements=(),
        feeds=spec.feeds,
        driver="task",
    )
