"""Runs a shard's users with the native driver instead of Tasks. What it decides, it decides as its base class does.

The driver runs the iterations and counts what is usual about them; here is what it calls for the rest.

Decision: docs/decisions/0026-direct-driver.md.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from talka.engine.calls import ExchangeFailed, NodeRun, current_call
from talka.engine.load.direct import DIRECT, Choice, is_users_own
from talka.engine.load.executor import LEFT_BEHIND_S, Executor
from talka.engine.load.recorder import Recorder
from talka.engine.load.steps import Iteration, Iterations, StepNode, VirtualUser
from talka.engine.waits import within
from talka.errors import TalkaError
from talka.stats.histogram import CoarseHistogram, Histogram
from talka.stats.tally import OTHER_CALLS, Sample, StepTally
from talka.stats.windows import StepWindow, Window
from talka.units import SECOND
from talka.work.dsl import BoundStep, Skip, Workflow
from talka.work.load import Shard
from talka.work.responses import Response

if TYPE_CHECKING:
    from talka._native import DrainedHistogram, DrainedRow, Driver

# As native/driver.h numbers them.
STEP, COUNTED, METRIC, CHECK, HOOK = range(5)
START, LAYER, STOP = range(3)
FAILURE, SKIPPED, END = range(3)
NO_RENEWAL, FRESH_COOKIES, FRESH_OBJECT, RENEWED_HERE = range(4)

KINDS: Final = {"metric": METRIC, "check": CHECK}
ADVICE: Final = "the direct driver cannot wait for it; write driver = 'task' in the workflow"


class ForeignAwait(TalkaError):
    """A step awaited something that only an event loop's Task can wait for, and no Task runs it."""


class NativeExecutor(Executor):
    """An executor whose users are run by the driver: for workflows of which no layer has two nodes that wait.

    A fresh user needs an object of its own only where users' code may leave something on it.
    """

    def __init__(
        self,
        shard: Shard,
        iterations: Iterations,
        recorder: Recorder,
        new_user: Callable[[int], VirtualUser],
        pulse: Callable[[], int],
        *,
        new_driver: "Callable[..., Driver]",
        choice: Choice,
        fresh_connections: bool,
        grace_ns: int,
        iterations_done: int = 0,
        think: Callable[[], int] | None = None,
        renew: Callable[[VirtualUser], None] = lambda user: None,
        left_behind_s: float = LEFT_BEHIND_S,
    ) -> None:
        super().__init__(
            shard,
            iterations,
            recorder,
            new_user,
            pulse,
            grace_ns=grace_ns,
            iterations_done=iterations_done,
            think=think,
            renew=renew,
            left_behind_s=left_behind_s,
        )
        ordered: list[tuple[int, list[StepNode]]] = [(START, [node]) for node in iterations.starts]
        for number, layer in enumerate(iterations.layers):
            ordered.append((LAYER, in_turn(layer, is_first=number == 0)))
        ordered += [(STOP, [node]) for node in iterations.stops]
        self._nodes = [node for _, layer in ordered for node in layer]
        self._rows: list[list[StepTally]] = [[] for _ in self._nodes]
        """Of each node the rows of its calls, as the driver numbers them."""
        numbers = {node.name: number for number, node in enumerate(self._nodes)}
        self._renewal = NO_RENEWAL
        if fresh_connections:
            self._renewal = RENEWED_HERE
        elif iterations.has_fresh_users:
            self._renewal = FRESH_OBJECT if choice.changes_users or choice.keeps_last else FRESH_COOKIES
        keeps_last = frozenset(numbers) if iterations.keeps_last else choice.keeps_last
        self._at_rest = asyncio.Event()
        self._driver = new_driver(
            nodes=tuple(
                described_node(node, phase, number, numbers, keeps_last)
                for number, (phase, layer) in enumerate(ordered)
                for node in layer
            ),
            outcomes=self,
            think=think,
            last=iterations.last if iterations.keeps_last else None,
            iterations_left=-1 if self._iterations_left is None else self._iterations_left,
            fresh_users=iterations.has_fresh_users,
            renewal=self._renewal,
        )
        self.open_window(recorder.window_ends_ns)
        self.roll = recorder.roll
        recorder.sources.append(self)

    def stop(self) -> None:
        super().stop()
        self._driver.stop()

    def end_at_once(self) -> None:
        super().end_at_once()
        self._at_rest.set()  # nobody waits for it any more

    def _added_user(self) -> VirtualUser | None:
        user = super()._added_user()
        if user is not None:
            template = template_of(user.workflow) if self._renewal == FRESH_OBJECT else None
            # The driver copies the context for its user: what clients other than the native one find there.
            token = current_call.set(DirectRun(self._driver, self._nodes, user.position))
            client = getattr(user.workflow.client, DIRECT)
            self._driver.add(user.workflow, client, template, user.iterations_left)
            current_call.reset(token)
        return user

    def _set_users(self, wanted: int) -> None:
        self._driver.wanted = wanted
        super()._set_users(wanted)

    def _begin(self, user: VirtualUser) -> None:
        self._driver.start(user.position)

    def _has_run_out(self) -> bool:
        if self._iterations_left is not None:
            return self._driver.iterations_left == 0
        return super()._has_run_out()

    def _open(self, from_ns: int) -> None:
        shard = self._shard
        self._driver.open(shard.arrivals(from_ns), self._origin_ns, shard.max_vus, shard.plan.policy == "drop")
        self._driver.look()

    def _pump(self) -> None:
        self._driver.look()

    def _next_due_ns(self) -> int | None:
        return self._driver.next_due()

    async def _finish(self) -> None:
        self._driver.stop()
        await self._rest_within(self._grace_ns / SECOND)
        if self._driver.under_way:
            self._driver.interrupt()
            await self._rest_within(self._left_behind_s)
        self._driver.close()
        self._recorder.settle()
        await super()._finish()

    async def _rest_within(self, seconds: float) -> None:
        if self._driver.under_way:
            self._at_rest.clear()
            await within(seconds, self._at_rest)

    # What the driver calls.

    def ended(self) -> None:
        """The last user came to rest."""
        self._at_rest.set()
        if self._shard.plan.model == "closed" and self._has_run_out():
            self.stop()

    def new_user(self) -> None:
        self._added_user()

    def renewed(self, position: int) -> Workflow:
        """Another user takes the place of one that has run an iteration: its workflow."""
        user = self._users[position]
        self._renewed(user)
        return user.workflow

    def row(self, number: int, name: str | None) -> int:
        """The row of calls under a name that the driver does not know; below 0 for a name that has none of its own."""
        node, rows = self._nodes[number], self._rows[number]
        tally = node.rows.row(name).tally
        place = next((place for place, known in enumerate(rows) if known is tally), len(rows))
        if place == len(rows):
            rows.append(tally)
        is_other = self._recorder.tally.calls[node.name].get(OTHER_CALLS) is tally
        return -1 - place if is_other else place

    def rejected(self, number: int, name: str | None, response: Response) -> Sample | None:
        return self._nodes[number].rows.answered(name, response)

    def unanswered(self, number: int, name: str | None, error: ExchangeFailed, intended_ns: int) -> Sample:
        return self._nodes[number].rows.failed(name, error, intended_ns)

    def cut(self, number: int, name: str | None) -> None:
        self._nodes[number].rows.cut(name)

    def answered(self, number: int, result: Any) -> None:
        """A metric's number."""
        self._iterations.count_value(self._nodes[number], result)

    def judged(self, number: int, verdict: Any) -> None:
        self._iterations.count_verdict(self._nodes[number], verdict)

    def failed(self, number: int, result: Any, intended_ns: int, failure: Sample, has_waited: bool) -> None:
        """It returned, but a call of it had failed."""
        node = self._nodes[number]
        self._iterations.count(node, ended_run(node, failure, has_waited), result, intended_ns)

    def raised(
        self, number: int, error: BaseException, intended_ns: int, failure: Sample | None, has_waited: bool
    ) -> int:
        """What it raised means a failure, or that it was skipped, or that this iteration is over."""
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise error
        node, iteration = self._nodes[number], Iteration()
        if isinstance(error, Skip):
            self._iterations.count_skipped(node)
            return SKIPPED
        if isinstance(error, RuntimeError):
            error = without_task(error) or error
        run = ended_run(node, failure, has_waited)
        self._iterations.count_error(node, run, error, intended_ns, iteration)
        return END if iteration.is_over else FAILURE

    def foreign(self, coroutine: Any, awaited: object) -> ForeignAwait:
        what = "a bare yield" if awaited is None else type(awaited).__name__
        return ForeignAwait(f"{place_of(coroutine)} awaits something that is not a client's call ({what}): {ADVICE}")

    def broken(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self.stop()

    # A source of the recorder.

    def pour(self, window: Window) -> None:
        self.close_window(window)
        tally = self._recorder.tally
        start_lag, nodes = self._driver.drain()
        merge(tally.generator.start_lag, start_lag)
        for node, rows, (ok, skipped, interrupted, response_time, calls) in zip(
            self._nodes, self._rows, nodes, strict=True
        ):
            for row, drained in zip(rows, calls, strict=False):
                if drained is not None:
                    add_calls(row, drained)
            if node.kind == "check":
                tally.checks[node.name].passed += ok
                continue
            node.tally.ok += ok
            node.tally.skipped += skipped
            node.tally.interrupted += interrupted
            if response_time is not None:
                merge(node.tally.response_time, response_time)

    def close_window(self, window: Window) -> None:
        tally = self._recorder.tally
        # Between two looks at the clock all of them may come and leave.
        window.vus = max(window.vus, self._driver.most_under_way)
        started, iterations, interrupted, busy_ns, dropped, under_way, steps = self._driver.drain_window()
        tally.started += started
        tally.iterations += iterations
        tally.interrupted_iterations += interrupted
        tally.busy_ns += busy_ns
        tally.dropped += dropped
        if self._shard.plan.model == "open":
            self._recorder.vus = under_way
        for number, ended, (counts, count, _, _, greatest) in steps:
            step = window.steps.setdefault(self._nodes[number].name, StepWindow())
            step.count += ended
            step.response_time.merge(CoarseHistogram(counts, count, greatest))

    def open_window(self, ends_ns: int) -> None:
        self._driver.window_ends_ns = ends_ns


class DirectRun(NodeRun):
    """Whatever one user of the driver runs, for clients that are not the driver's own."""

    __slots__ = ("_driver", "_nodes", "_position")

    def __init__(self, driver: "Driver", nodes: Sequence[StepNode], position: int) -> None:
        self._driver = driver
        self._nodes = nodes
        self._position = position

    @property
    def intended_ns(self) -> int:  # the driver keeps it
        return self._driver.run_of(self._position)[1]

    @intended_ns.setter
    def intended_ns(self, value: int) -> None:
        self._driver.called(self._position, None, False)

    @property
    def _node(self) -> StepNode:
        return self._nodes[self._driver.run_of(self._position)[0]]

    def answered(self, name: str | None, response: Response) -> None:
        self._driver.called(self._position, self._node.rows.answered(name, response), True)

    def failed(self, name: str | None, error: BaseException, intended_ns: int) -> None:
        failure = self._node.rows.failed(name, error, intended_ns)
        self._driver.called(self._position, failure, failure.kind == "timeout")

    def cut(self, name: str | None) -> None:
        self._node.rows.cut(name)


def merge(into: Histogram, drained: "DrainedHistogram") -> None:
    into.merge(Histogram(*drained))


def add_calls(row: StepTally, drained: "DrainedRow") -> None:
    ok, response_time, service_time, statuses = drained
    row.ok += ok
    merge(row.response_time, response_time)
    merge(row.service_time, service_time)
    for status, times in statuses.items():
        row.saw(str(status), times)


def ended_run(node: StepNode, failure: Sample | None, has_waited: bool) -> NodeRun:
    """What is known of a run in the end: it has made calls, if any of them failed."""
    return NodeRun(0, node.rows, failure=failure, has_waited=has_waited)


def template_of(workflow: Workflow) -> dict[str, Any] | None:
    """What every user of this place begins with; None where making one is more than that."""
    made = type(workflow)
    is_plain = (
        made.__init__ is Workflow.__init__
        and made.__new__ is object.__new__
        and made.__setattr__ is object.__setattr__
        and type(made).__call__ is type.__call__
    )
    if not is_plain:
        return None
    # Steps are bound to their own user, when somebody asks for them.
    return {name: value for name, value in vars(workflow).items() if not isinstance(value, BoundStep)}


def in_turn(layer: Sequence[StepNode], *, is_first: bool) -> list[StepNode]:
    """The nodes of a layer one after the other. Those that wait for nothing come first, as they are over at once.

    In the first layer they stay in their order: what comes before a step there counts as its response time.
    """
    return list(layer) if is_first else sorted(layer, key=lambda node: node.is_async)


def described_node(
    node: StepNode, phase: int, layer: int, numbers: Mapping[str, int], keeps_last: frozenset[str]
) -> tuple[Any, ...]:
    """As the driver wants it."""
    kind = KINDS.get(node.kind, COUNTED)
    if node.measured:
        kind = STEP if node.kind == "step" else HOOK
    return (
        node.name,
        kind,
        phase,
        node.function,
        node.is_async,
        layer,
        tuple(numbers[name] for name in node.after),
        tuple((name, numbers[name]) for name in node.inputs),
        node.arguments,
        node.expect,
        node.kind == "step" and node.name in keeps_last,
    )


def place_of(coroutine: Any) -> str:
    """The innermost line of the users' own code that a coroutine waits in."""
    place = f"{coroutine.cr_code.co_filename}:{coroutine.cr_code.co_firstlineno}"
    while isinstance(coroutine, CoroutineType):
        if coroutine.cr_frame is not None and is_users_own(coroutine.cr_code.co_filename):
            place = f"{coroutine.cr_code.co_filename}:{coroutine.cr_frame.f_lineno}"
        coroutine = coroutine.cr_await
    return place


def without_task(error: RuntimeError) -> ForeignAwait | None:
    """What asyncio raised because no Task was there to do what it was asked for, with the users' own line."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in frames if is_users_own(place[0])]
    if not own or Path(frames[-1][0]).parent != Path(asyncio.__file__).parent:
        return None
    return ForeignAwait(f"{own[-1][0]}:{own[-1][1]}: {error}: {ADVICE}")
