"""Runs a shard's users with the native driver instead of Tasks. What it decides, it decides as its base class does.

The driver runs the iterations and counts what is usual about them; here is what it calls for the rest.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CoroutineType
from typing import Any, Final, Protocol

from talka.clock import SECOND
from talka.engine.direct import is_users_own
from talka.engine.executor import LEFT_BEHIND_S, Executor
from talka.engine.recorder import Recorder
from talka.engine.steps import Iterations, Node, VirtualUser
from talka.errors import TalkaError
from talka.stats.histogram import CoarseHistogram, Histogram
from talka.stats.windows import Window
from talka.work.load import Shard
from talka.work.responses import Response

MEASURED, COUNTED, METRIC, CHECK = range(4)
KINDS: Final = {"metric": METRIC, "check": CHECK}
ADVICE: Final = "the direct driver cannot wait for it; write driver = 'task' in the workflow"

DrainedHistogram = tuple[dict[int, int], int, int, int, int]
"""Counts by index, count, total, least and greatest value."""
DrainedNode = tuple[int, int, DrainedHistogram | None, DrainedHistogram | None, dict[int, int] | None]


class ForeignAwait(TalkaError):
    """A step awaited something that only an event loop's Task can wait for, and no Task runs it."""


class Driver(Protocol):
    """`talka._native.Driver`, made for an engine, nodes and `Outcomes`."""

    wanted: int
    iterations_left: int
    window_ends_ns: int

    @property
    def under_way(self) -> int: ...
    def add(self, workflow: object, steps: dict[str, Any], iterations_left: int, /) -> int: ...
    def start(self, position: int, /) -> None: ...
    def open(self, arrivals: Iterator[int], origin_ns: int, max_users: int, drops: bool, /) -> None: ...
    def look(self) -> None: ...
    def next_due(self) -> int | None: ...
    def stop(self) -> None: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...
    def drain_window(self) -> tuple[int, int, int, int, DrainedHistogram]: ...
    def drain(self) -> tuple[DrainedHistogram, tuple[DrainedNode, ...]]: ...


NewDriver = Callable[..., Driver]
"""Called with `nodes`, `outcomes`, `think`, `last` and `iterations_left`."""


class DrivenExecutor(Executor):
    """An executor whose users are run by the driver: for workflows of which no layer has two nodes that wait.

    `keeps_last` says of which steps the users' code may ask for the last response.
    """

    def __init__(
        self,
        shard: Shard,
        iterations: Iterations,
        recorder: Recorder,
        new_user: Callable[[int], VirtualUser],
        pulse: Callable[[], int],
        *,
        new_driver: NewDriver,
        keeps_last: frozenset[str],
        grace_ns: int,
        iterations_done: int = 0,
        think: Callable[[], int] | None = None,
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
        )
        ordered = [in_turn(layer, is_first=number == 0) for number, layer in enumerate(iterations.layers)]
        self._nodes = [node for layer in ordered for node in layer]
        numbers = {node.name: number for number, node in enumerate(self._nodes)}
        if iterations.keeps_last:
            keeps_last = frozenset(numbers)
        self._at_rest = asyncio.Event()
        self._driver = new_driver(
            nodes=tuple(
                described_node(node, number, numbers, keeps_last)
                for number, layer in enumerate(ordered)
                for node in layer
            ),
            outcomes=self,
            think=think,
            last=iterations.last if iterations.keeps_last else None,
            iterations_left=-1 if self._iterations_left is None else self._iterations_left,
        )
        self.open_window(recorder.window_ends_ns)
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
            self._driver.add(user.workflow, user.steps, user.iterations_left)
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
            await self._rest_within(LEFT_BEHIND_S)
        self._driver.close()
        self._recorder.settle()
        await super()._finish()

    async def _rest_within(self, seconds: float) -> None:
        if self._driver.under_way:
            self._at_rest.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._at_rest.wait()
            except TimeoutError:
                return

    # What the driver calls.

    def ended(self) -> None:
        """The last user came to rest."""
        self._at_rest.set()
        if self._shard.plan.model == "closed" and self._has_run_out():
            self.stop()

    def new_user(self) -> None:
        self._added_user()

    def roll(self, now: int) -> None:
        self._recorder.roll(now)

    def answered(self, number: int, result: Any) -> None:
        """A metric's number, or a measured step's result that is not the native engine's."""
        self._iterations.count(self._nodes[number], result)

    def rejected(self, number: int, response: Response) -> None:
        """Its times and its status are counted already."""
        self._recorder.rejected(self._nodes[number].tally, response)

    def judged(self, number: int, verdict: Any) -> None:
        self._iterations.count_verdict(self._nodes[number], verdict)

    def raised(self, number: int, error: BaseException, intended_ns: int) -> None:
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise error
        if isinstance(error, RuntimeError):
            error = without_task(error) or error
        node = self._nodes[number]
        if node.kind == "check":
            self._iterations.count_verdict(node, error)
        else:
            self._iterations.count_error(node, error, intended_ns)

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
        for node, (ok, interrupted, response_time, service_time, statuses) in zip(self._nodes, nodes, strict=True):
            if node.kind == "check":
                tally.checks[node.name].passed += ok
                continue
            node.tally.ok += ok
            node.tally.interrupted += interrupted
            if response_time is not None and service_time is not None and statuses is not None:
                merge(node.tally.response_time, response_time)
                merge(node.tally.service_time, service_time)
                for status, times in statuses.items():
                    node.tally.saw_status(status, times)

    def close_window(self, window: Window) -> None:
        tally = self._recorder.tally
        started, iterations, dropped, under_way, (counts, count, _, _, greatest) = self._driver.drain_window()
        tally.started += started
        tally.iterations += iterations
        tally.dropped += dropped
        if self._shard.plan.model == "open":
            self._recorder.vus = under_way
        window.response_time.merge(CoarseHistogram(counts, count, greatest))

    def open_window(self, ends_ns: int) -> None:
        self._driver.window_ends_ns = ends_ns


def merge(into: Histogram, drained: DrainedHistogram) -> None:
    into.merge(Histogram(*drained))


def in_turn(layer: Sequence[Node], *, is_first: bool) -> list[Node]:
    """The nodes of a layer one after the other. Those that wait for nothing come first, as they are over at once.

    In the first layer they stay in their order: what comes before a step there counts as its response time.
    """
    return list(layer) if is_first else sorted(layer, key=lambda node: node.is_async)


def described_node(node: Node, layer: int, numbers: Mapping[str, int], keeps_last: frozenset[str]) -> tuple[Any, ...]:
    """As the driver wants it."""
    kind = MEASURED if node.measured else KINDS.get(node.kind, COUNTED)
    return (
        node.name,
        kind,
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
    place, file = "", ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_users_own(file):
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    is_of_asyncio = Path(file).parent == Path(asyncio.__file__).parent
    return ForeignAwait(f"{place}: {error}: {ADVICE}") if is_of_asyncio and place else None
