"""Everything the virtual users of one shard stand on: what was prepared for them, and what they share."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Protocol, cast

from talka.clock import monotonic_ns
from talka.engine.calls import NodeRun, current_call
from talka.engine.clients.port import ClientParts, Trace
from talka.engine.load import native
from talka.engine.load.direct import DIRECT, driver_for
from talka.engine.load.executor import LEFT_BEHIND_S, Executor
from talka.engine.load.feeds import cursors_for, load_feeds
from talka.engine.load.native_executor import NativeExecutor
from talka.engine.load.prepare import prepare
from talka.engine.load.recorder import Recorder, StepRecords, described
from talka.engine.load.steps import Iterations, VirtualUser
from talka.engine.load.time_asks import TimeAsks
from talka.engine.load.users import (
    VALUES_LIMIT_BYTES,
    ShardEngines,
    ShardHooks,
    UserClients,
    handed_on,
    provided_values,
    received_context,
    received_values,
)
from talka.errors import Invalid
from talka.units import SECOND
from talka.work.dsl import BoundStep, Workflow
from talka.work.load import Shard
from talka.work.specs import NodeSpec, WorkflowSpec


class SetupFailed(Invalid):
    """The user's own code raised before the clock started."""


class LoopEngine(Protocol):
    """What the engine of one client does for all users of a shard, as its core has the event loop."""

    @property
    def pulse(self) -> int:
        """See `Executor`."""

    @property
    def core(self) -> Any:
        """Of the direct driver; on the engine in Python nobody asks for it."""

    def pause(self, length_ns: int) -> Awaitable[None]:
        """What `self.pause` of a user awaits."""


class ShardRuntime:
    """`set_up`, then users and iterations, then `tear_down`, `provided` and `close`."""

    def __init__(
        self,
        spec: WorkflowSpec,
        values: Mapping[str, Mapping[str, bytes]],
        shard: Shard,
        *,
        seed: int | None = None,
        iterations_done: int = 0,
        trace: Trace | None = None,
        engine: str = "auto",
        asks: TimeAsks | None = None,
    ) -> None:
        """Read and encode all that can be read and encoded before the clock starts. Sends nothing."""
        # The load may be another than the file's, and with it whether arrivals are fresh users.
        self.spec = spec = replace(spec, plan=shard.plan)
        self._arguments = prepare(spec)
        self._received = received_values(spec, values)
        self._cursors = cursors_for(spec, load_feeds(spec), shard, seed=seed, given=iterations_done)
        self.recorder = Recorder(spec)
        is_native = native.is_chosen(engine)
        self._engines = ShardEngines(
            ClientParts(
                exchanges=self.recorder.exchanges, verify=spec.workflow.verify, trace=trace, is_native=is_native
            )
        )
        self._loop_engine = cast(LoopEngine, self._engines.by_name[DIRECT])
        # Drawn apart from the user's own code, which must find the same numbers with the same seed whatever we draw.
        random = Random() if seed is None else Random(f"{seed}/think/{spec.name}/{shard.index}")
        pause = spec.think
        self.think = None if pause is None else lambda: pause.draw_ns(random)
        self.asks = asks or TimeAsks()
        self._hooks = ShardHooks(self.recorder, self._loop_engine.pause, random, self.asks)
        self._choice = driver_for(spec) if is_native else None
        """Of the driver; None on the engine in Python, which has but one."""
        self.iterations = Iterations(spec, self._arguments, self.recorder)
        # A value that a `Use` method receives under the same name is what its users find.
        self._context = received_context(values)
        for received in self._received.values():
            self._context |= received
        self._first: VirtualUser | None = None
        self._step_names = [node.name for node in spec.nodes if node.kind == "step"]

    def new_user(self, position: int) -> VirtualUser:
        clients = self._engines.new_clients()
        workflow = self._new_workflow(clients)
        return VirtualUser(position, workflow, self._steps_of(workflow), clients.close)

    def renew(self, user: VirtualUser) -> None:
        """Another user takes the place: a new object, no session. Connections stay, unless they are to be fresh."""
        clients = cast(UserClients, user.workflow.client)
        clients.forget(connections=self.spec.connections == "fresh", session=self.spec.has_fresh_users)
        if self.spec.has_fresh_users:
            user.workflow = self._new_workflow(clients)
            user.steps = self._steps_of(user.workflow)
            user.has_begun = False

    def _new_workflow(self, clients: UserClients) -> Workflow:
        workflow = self.spec.workflow()
        vars(workflow).update(
            self._cursors,
            client=clients,
            context=self._context,
            received=self._received,
            _hooks=self._hooks,
            pause=self._hooks.pause,  # at hand: it is called as often as requests are made
        )
        return workflow

    def _steps_of(self, workflow: Workflow) -> dict[str, BoundStep[Any]]:
        return {name: getattr(workflow, name) for name in self._step_names}

    async def set_up(self) -> None:
        """Let clients find what they need, such as addresses, make a first user, run the setup methods."""
        await self._engines.prepare(self._arguments)
        try:
            self._first = self.new_user(-1)
        except Exception as error:
            raise SetupFailed(f"{self.spec.name} cannot be made: {described(error)}") from error
        for node in self.spec.setups:
            try:
                await self._run_once(node, self._first)
            except Exception as error:
                raise SetupFailed(f"{self.spec.name}.{node.name} raised {described(error)}") from error

    async def tear_down(self, grace_ns: int) -> None:
        """Run the teardown methods. What they raise is counted, as for any action."""
        for node in self.spec.teardowns:
            await self._run_last(node, grace_ns)

    async def save(self, grace_ns: int) -> None:
        """The time is over: run the methods that are to save what is to be kept, all within the grace."""
        until = monotonic_ns() + grace_ns
        for node in self.spec.evictions:
            await self._run_last(node, max(0, until - monotonic_ns()))

    async def _run_last(self, node: NodeSpec, within_ns: int) -> None:
        if self._first is None:
            return
        try:
            async with asyncio.timeout(within_ns / SECOND):
                await self._run_once(node, self._first)
        except Exception as error:  # noqa: BLE001 - users' code may raise anything
            self.recorder.tally.actions[node.name].fail(self.recorder.sample(error, monotonic_ns()))

    def executor(
        self, shard: Shard, *, grace_ns: int, iterations_done: int = 0, left_behind_s: float = LEFT_BEHIND_S
    ) -> Executor:
        """What runs the users. Make it once, after `set_up`."""
        parts = (shard, self.iterations, self.recorder, self.new_user, lambda: self._loop_engine.pulse)
        if self._choice is not None and self._choice.driver == "direct":
            return NativeExecutor(
                *parts,
                new_driver=partial(native.new_driver, self._loop_engine.core),
                choice=self._choice,
                fresh_connections=self.spec.connections == "fresh",
                grace_ns=grace_ns,
                iterations_done=iterations_done,
                think=self.think,
                renew=self.renew,
                left_behind_s=left_behind_s,
            )
        return Executor(
            *parts,
            grace_ns=grace_ns,
            iterations_done=iterations_done,
            think=self.think,
            renew=self.renew,
            left_behind_s=left_behind_s,
        )

    @property
    def engine(self) -> str:
        """What it runs on: see `wire.shards.engines_of`."""
        return "python" if self._choice is None else f"native/{self._choice.driver}"

    async def provided(self) -> tuple[dict[str, bytes], str | None]:
        return await provided_values(self.spec, self.iterations.last, self._context)

    def handed_on(self, provided: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
        """What its context is to dependents, and what cannot be handed on; `provided` goes with it."""
        return handed_on(self.spec, self._context, VALUES_LIMIT_BYTES - sum(map(len, provided.values())))

    async def close(self) -> None:
        self.asks.close()
        await self._engines.close()

    async def _run_once(self, node: NodeSpec, user: VirtualUser) -> None:
        current_call.set(NodeRun(monotonic_ns(), StepRecords(self.recorder, node.name)))
        result = node.function(user.workflow, **self._arguments.get(node.name, {}))
        if node.is_async:
            await result
        self.recorder.tally.actions[node.name].ok += 1
