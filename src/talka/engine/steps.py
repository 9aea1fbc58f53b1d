"""One iteration of one virtual user: its steps, layer by layer."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from talka.clock import monotonic_ns
from talka.engine.calls import Call, current_call
from talka.engine.recorder import Recorder, described
from talka.stats.tally import StepTally
from talka.work.clients import Clients
from talka.work.dsl import BoundStep, Workflow
from talka.work.feeds import FeedUsedUp
from talka.work.responses import Response
from talka.work.specs import NodeSpec, WorkflowSpec

METRIC_LIMIT = 1e15
"""Sums of such values stay exact to a few digits; beyond it is no measurement."""


class StepReturnedNothing(Exception):
    """A measured step gave back something that is not a response, so there is nothing to measure."""


class VirtualUser:
    """One user: a workflow object of its own, with its own client. `position` is its place in the shard."""

    __slots__ = ("position", "workflow", "steps", "iterations_left", "is_running", "close")

    def __init__(self, position: int, workflow: Workflow, steps: dict[str, BoundStep[Any]], close: Callable[[], None]):
        self.position = position
        self.workflow = workflow
        self.steps = steps
        self.iterations_left = -1
        """Below 0: no limit of its own."""
        self.is_running = False
        self.close = close


class Node:
    """A node of the graph, ready to run: its prepared arguments and where its results go."""

    __slots__ = ("name", "kind", "function", "is_async", "after", "inputs", "arguments", "measured", "expect", "tally")

    def __init__(self, spec: NodeSpec, arguments: Mapping[str, Any], tally: StepTally) -> None:
        self.name = spec.name
        self.kind = spec.kind
        self.function = spec.function
        self.is_async = spec.is_async
        self.after = spec.after
        self.inputs = spec.inputs
        self.arguments = dict(arguments)
        self.measured = spec.measured
        self.expect = spec.expect
        self.tally = tally


class Iterations:
    """Runs iterations for every virtual user of a shard."""

    def __init__(self, spec: WorkflowSpec, arguments: Mapping[str, Mapping[str, Any]], recorder: Recorder) -> None:
        self._spec = spec
        self._recorder = recorder
        tallies = recorder.tally.steps | recorder.tally.actions
        self.layers = [
            [Node(node, arguments.get(node.name, {}), tallies.get(node.name, StepTally())) for node in layer]
            for layer in spec.layers
        ]
        self.keeps_last = bool(spec.provides)
        self.last: dict[str, Any] = {}
        """The shard's last response of each step, for `Provide` methods."""
        self.is_stopping = False
        """Once set, steps under way end and no further one starts."""
        self.on_used_up: Callable[[str], None] = lambda text: None
        """Told when a feed has no row left for a user."""

    def new_user(
        self, position: int, clients: Clients, context: dict[str, Any], received: Mapping[str, Mapping[str, Any]]
    ) -> VirtualUser:
        workflow = self._spec.workflow()
        workflow.client = clients
        workflow.context = context
        workflow.received = received
        steps = {node.name: getattr(workflow, node.name) for node in self._spec.nodes if node.kind == "step"}
        close: Callable[[], None] = getattr(clients.http, "close", lambda: None)
        return VirtualUser(position, workflow, steps, close)

    async def run(self, user: VirtualUser, intended_ns: int) -> bool:
        """One iteration, meant to start at `intended_ns`. False when it was cut short because the shard is ending."""
        results: dict[str, Any] = {}
        for layer in self.layers:
            if self.is_stopping:
                return False
            if len(layer) == 1:
                await self._run_node(layer[0], user, results, intended_ns)
            else:
                async with asyncio.TaskGroup() as group:
                    for node in layer:
                        group.create_task(self._run_node(node, user, results, intended_ns))
            intended_ns = 0  # later layers are due when the one before them is done
        return True

    async def _run_node(self, node: Node, user: VirtualUser, results: dict[str, Any], intended_ns: int) -> None:
        for name in node.after:
            if name not in results:
                return  # what it waits for failed in this iteration
        arguments = node.arguments
        if node.inputs:
            arguments = {**arguments, **{name: results[name] for name in node.inputs}}
        if node.kind == "check":
            await self._run_check(node, user, arguments)
            return
        if not intended_ns:
            intended_ns = monotonic_ns()
        current_call.set(Call(intended_ns, node.expect))
        try:
            result = node.function(user.workflow, **arguments)
            if node.is_async:
                result = await result
            self.count(node, result)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                node.tally.interrupted += 1
                raise
            self.count_error(node, error, intended_ns)
            return
        except Exception as error:  # noqa: BLE001 - users' code may raise anything; it is counted and the user goes on
            self.count_error(node, error, intended_ns)
            return
        results[node.name] = result
        if node.kind == "step":
            user.steps[node.name].last = result
            if self.keeps_last:
                self.last[node.name] = result

    async def _run_check(self, node: Node, user: VirtualUser, arguments: Mapping[str, Any]) -> None:
        try:
            verdict = node.function(user.workflow, **arguments)
            if node.is_async:
                verdict = await verdict
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            verdict = error
        except Exception as error:  # noqa: BLE001 - users' code may raise anything; it is counted and the user goes on
            verdict = error
        self.count_verdict(node, verdict)

    # What came of a node, however it was run.

    def count(self, node: Node, result: Any) -> None:
        """It returned. Raises when that is nothing to count."""
        if node.measured:
            if not isinstance(result, Response):
                raise StepReturnedNothing(f"{node.name} returned {type(result).__name__}, not a client's response")
            self._recorder.response(node.tally, result)
            return
        if node.kind == "metric" and result is not None:
            self._recorder.tally.metrics[node.name].add(number(result))
        node.tally.ok += 1

    def count_error(self, node: Node, error: BaseException, intended_ns: int) -> None:
        """It raised. A feed without further rows is no error: the shard ends."""
        if isinstance(error, FeedUsedUp):
            self.is_stopping = True
            self.on_used_up(str(error))
        else:
            self._recorder.error(node.tally, error, monotonic_ns(), intended_ns)

    def count_verdict(self, node: Node, verdict: Any) -> None:
        """A check returned this, or raised it."""
        if isinstance(verdict, BaseException):
            self._recorder.check_failed(node.name, described(verdict), monotonic_ns())
        elif verdict is False:
            self._recorder.check_failed(node.name, f"{node.name} returned False", monotonic_ns())
        else:
            self._recorder.tally.checks[node.name].passed += 1


def is_being_cancelled() -> bool:
    """Whether a cancellation came from outside: awaiting something cancelled raises the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def number(value: Any) -> float:
    """What a metric returned, if it can be counted."""
    counted = float(value)
    if not abs(counted) <= METRIC_LIMIT:  # also for NaN
        raise ValueError(f"a metric cannot count {counted}: values go up to {METRIC_LIMIT:g}")
    return counted
