"""One iteration of one virtual user: its steps, layer by layer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from talka.clock import monotonic_ns
from talka.engine.calls import NodeRun, current_call
from talka.engine.load.recorder import Recorder, StepRecords, described, number
from talka.stats.tally import Sample, StepTally
from talka.work.dsl import BoundStep, Skip, Workflow
from talka.work.feeds import FeedUsedUp
from talka.work.specs import NodeSpec, WorkflowSpec


@dataclass(slots=True, eq=False)
class Iteration:
    """How far one iteration has come."""

    results: dict[str, Any] = field(default_factory=dict)
    """What methods returned, by their names."""
    passed: set[str] = field(default_factory=set)
    """Methods that were skipped: what takes their value is skipped too, what only comes after them runs."""
    is_over: bool = False
    """A feed has no row left for it."""

    def clear(self) -> None:
        """For the next one: a user runs one at a time, and a new object each would cost as much as a step."""
        self.results.clear()
        if self.passed:
            self.passed.clear()
        self.is_over = False


@dataclass(slots=True, eq=False)
class VirtualUser:
    """One user: a workflow object of its own, with its own client. `position` is its place in the shard."""

    position: int
    workflow: Workflow
    steps: dict[str, BoundStep[Any]]
    close: Callable[[], None]
    iterations_left: int = -1
    """Below 0: no limit of its own."""
    is_running: bool = False
    has_begun: bool = False
    """Its `@on_start` methods went well."""
    is_used: bool = False
    """It has run an iteration."""
    iteration: Iteration = field(default_factory=Iteration)
    """The present one, or the last."""


class StepNode:
    """A node of the graph, ready to run: its prepared arguments and where its results go."""

    def __init__(self, spec: NodeSpec, arguments: Mapping[str, Any], tally: StepTally, recorder: Recorder) -> None:
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
        self.times = recorder.times_of(spec.name, tally) if spec.measured else []
        self.rows = StepRecords(recorder, spec.name)


class Iterations:
    """Runs iterations for every virtual user of a shard."""

    def __init__(self, spec: WorkflowSpec, arguments: Mapping[str, Mapping[str, Any]], recorder: Recorder) -> None:
        self._recorder = recorder
        tallies = recorder.tally.steps | recorder.tally.actions

        def made(nodes: Sequence[NodeSpec]) -> list[StepNode]:
            return [
                StepNode(node, arguments.get(node.name, {}), tallies.get(node.name, StepTally()), recorder)
                for node in nodes
            ]

        self.layers = [made(layer) for layer in spec.layers]
        self.starts, self.stops = made(spec.starts), made(spec.stops)
        self.has_fresh_users = spec.has_fresh_users
        self.is_renewing = spec.has_fresh_users or spec.connections == "fresh"
        """Whether a user is made ready again before each of its iterations but the first."""
        self.keeps_last = bool(spec.provides)
        self.last: dict[str, Any] = {}
        """The shard's last response of each step, for `Provide` methods."""
        self.under_way = 0
        """How many iterations have begun and not ended."""
        self.is_stopping = False
        """Once set, iterations under way end and no further one starts."""
        self.on_used_up: Callable[[str], None] = lambda text: None
        """Told when a feed has no row left for a user."""
        self.renew: Callable[[VirtualUser], None] = lambda user: None
        """Makes another user out of one that has run, if users are fresh; and takes its connections, if they are."""

    async def run(self, user: VirtualUser, intended_ns: int) -> bool:
        """One iteration, meant to start at `intended_ns`. False when there was no row left for it."""
        tally, began_ns, is_complete = self._recorder.tally, monotonic_ns(), False
        self.under_way += 1
        try:
            if user.is_used and self.is_renewing:
                self.renew(user)
            user.is_used = True
            iteration = user.iteration
            iteration.clear()
            if self.starts and not user.has_begun:
                if not await self._run_hooks(self.starts, user, intended_ns, iteration):
                    is_complete = self._give_up(iteration)
                    return is_complete
                user.has_begun = True
                intended_ns = monotonic_ns()
            for layer in self.layers:
                if len(layer) == 1:
                    await self._run_node(layer[0], user, iteration, intended_ns)
                else:
                    async with asyncio.TaskGroup() as group:
                        for node in layer:
                            group.create_task(self._run_node(node, user, iteration, intended_ns))
                if iteration.is_over:
                    return False
                intended_ns = 0  # later layers are due when the one before them is done
            if self.stops and self.has_fresh_users:
                await self.leave(user)
            is_complete = True
            return True
        except asyncio.CancelledError:
            tally.interrupted_iterations += 1
            raise
        finally:
            tally.iterations += is_complete
            tally.busy_ns += monotonic_ns() - began_ns
            self.under_way -= 1

    async def leave(self, user: VirtualUser) -> None:
        """The user's last methods, if it ever began."""
        if self.stops and (user.has_begun or not self.starts) and user.is_used:
            user.has_begun = False
            await self._run_hooks(self.stops, user, monotonic_ns(), Iteration())

    async def _run_hooks(
        self, hooks: Sequence[StepNode], user: VirtualUser, intended_ns: int, iteration: Iteration
    ) -> bool:
        """One after the other, each due when the one before it is done. False as soon as one failed."""
        for node in hooks:
            await self._run_node(node, user, iteration, intended_ns)
            if node.name not in iteration.results and node.name not in iteration.passed:
                return False
            intended_ns = 0
        return True

    def _give_up(self, iteration: Iteration) -> bool:
        """The user could not begin: its steps have nothing to do."""
        if iteration.is_over:
            return False
        for layer in self.layers:
            for node in layer:
                self.count_skipped(node)
        return True

    async def _run_node(self, node: StepNode, user: VirtualUser, iteration: Iteration, intended_ns: int) -> None:
        results, passed = iteration.results, iteration.passed
        for name in node.after:
            if name not in results:
                if name not in passed:
                    self.count_skipped(node)  # what it waits for failed in this iteration
                    return
                if name in node.inputs:
                    self.count_skipped(node)
                    passed.add(node.name)
                    return
        arguments = node.arguments
        if node.inputs:
            arguments = {**arguments, **{name: results[name] for name in node.inputs}}
        if not intended_ns:
            intended_ns = monotonic_ns()
        run = NodeRun(intended_ns, node.rows, node.expect)
        current_call.set(run)
        try:
            result = node.function(user.workflow, **arguments)
            if node.is_async:
                result = await result
            if node.kind == "check":
                self.count_verdict(node, result)
                return
            has_value = self.count(node, run, result, intended_ns)
        except Skip:
            self.count_skipped(node)
            has_value = False
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                node.tally.interrupted += node.kind != "check"
                raise
            self.count_error(node, run, error, intended_ns, iteration)
            return
        except Exception as error:  # noqa: BLE001 - users' code may raise anything; it is counted and the user goes on
            self.count_error(node, run, error, intended_ns, iteration)
            return
        if not has_value:
            passed.add(node.name)
            return
        results[node.name] = result
        if node.kind == "step":
            user.steps[node.name].last = result
            if self.keeps_last:
                self.last[node.name] = result

    # What came of a node, however it was run.

    def count(self, node: StepNode, run: NodeRun, result: Any, intended_ns: int) -> bool:
        """It returned. False when that means it was skipped: it called nothing and gave nothing."""
        if node.measured:
            if result is None and run.intended_ns and node.kind == "step":  # no call has taken it
                self.count_skipped(node)
                return False
            if run.failure is None:
                self._recorder.ended_well(node.times, monotonic_ns(), intended_ns)
            else:
                # It has failed with its call, but what it returned is there for those that come after it.
                self._failed(node, run, intended_ns, run.failure)
            return True
        self.count_value(node, result)
        return True

    def count_value(self, node: StepNode, result: Any) -> None:
        """What is not measured returned."""
        if node.kind == "metric" and result is not None:
            self._recorder.tally.metrics[node.name].add(number(result))
        node.tally.ok += 1

    def count_skipped(self, node: StepNode) -> None:
        if node.kind != "check":
            node.tally.skipped += 1

    def count_error(
        self, node: StepNode, run: NodeRun, error: BaseException, intended_ns: int, iteration: Iteration
    ) -> None:
        """It raised. A feed without further rows is no error: the shard ends."""
        if isinstance(error, FeedUsedUp):
            self.is_stopping = iteration.is_over = True
            self.on_used_up(str(error))
        elif node.kind == "check":
            self.count_verdict(node, error)
        elif node.measured:
            self._failed(node, run, intended_ns, run.failure or self._recorder.sample(error, monotonic_ns()))
        else:
            node.tally.fail(self._recorder.sample(error, monotonic_ns()))

    def count_verdict(self, node: StepNode, verdict: Any) -> None:
        """A check returned this, or raised it."""
        if isinstance(verdict, BaseException):
            self._recorder.check_failed(node.name, described(verdict), monotonic_ns())
        elif verdict is False:
            self._recorder.check_failed(node.name, f"{node.name} returned False", monotonic_ns())
        else:
            self._recorder.tally.checks[node.name].passed += 1

    def _failed(self, node: StepNode, run: NodeRun, intended_ns: int, failure: Sample) -> None:
        # Refused connections are quick, and would make a dead server look fast (decision 27).
        self._recorder.ended_badly(node.name, node.tally, monotonic_ns(), intended_ns, failure, has_time=run.has_waited)


def is_being_cancelled() -> bool:
    """Whether a cancellation came from outside: awaiting something cancelled raises the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
