"""Handler cores of simulated workers, and the truth about what they ran.

A handler does nothing but take its time and end as its config has drawn: it returns, raises, lets its process die or
blocks its loop. Every attempt is in the ledger from its first instant to its last.
"""

from collections import deque
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.control.member.composite import ClusterMember, MemberEffect
from talka.control.worker.effects import CoresUntil, EndHandlers, ExitFacts, StartHandlers, TellHandlers, WorkerEffect
from talka.testing.cores import Ends, worker_of
from talka.testing.host import Host
from talka.testing.line import CallLine
from talka.testing.world import Observer, World
from talka.units import MILLISECOND
from talka.wire.tasks import (
    FromHandlers,
    HandedTask,
    HandlerProgress,
    Load,
    Loaded,
    Outcome,
    Ran,
    RunTasks,
    Said,
    Spent,
    StopTasks,
    TaskResult,
    TellTime,
    TimeTold,
    TimeWanted,
    WarnTasks,
)

HANDLERS: Final = ("quick", "plain", "slow")
PLAIN: Final = ("plain",)
FILES: Final = ("handlers.py",)
RUN_NS: Final = MILLISECOND // 5
"""From when a core is told to run something until it does; less than a `StopTasks` takes."""
LEAVES_EVERY: Final = 3
"""Of attempts that do not return, every third leaves a process behind."""
LOOK_AFTER_NS: Final = 50 * MILLISECOND
SIGNALS: Final = ("SIGSEGV", "SIGKILL", "SIGABRT", "SIGTERM")


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """The config of a simulated task: what an attempt at it does. Chances in percent."""

    ms: int = 100
    """How long it takes on average."""
    fails: int = 0
    dies: int = 0
    blocks: int = 0
    """Its loop stands still for some seconds: nothing else in its process goes on."""
    never: bool = False
    """What it raises is not retried."""
    tells: bool = False
    """Progress, once in the middle."""
    parts: int = 0
    """So many at most are in the list that it returns, each time another."""
    advances_ms: int = 0
    """So often it reports something new; 0: never. One that goes on from what an earlier attempt saved takes a quarter
    of its time."""
    asks: int = 0
    """With so many of these reports it asks for more time."""
    saves: bool = False
    """It does something when it is warned: it saves what it has."""


class SimulatedRun:
    """One attempt as it really was."""

    def __init__(self, host: Host, core: int, task: HandedTask, began_at: int, code: str = "") -> None:
        """`code`: digest of the bundle that its core has loaded; empty: the worker's own files."""
        self.number = 0
        """Of all there are, given by the ledger: what no store and no manager gives."""
        self.host = host
        self.boot = host.boot
        self.core = core
        self.code = code
        self.fence = task.fence
        self.job = task.job
        self.id = task.id
        self.attempt = task.attempt
        self.inputs = dict(task.inputs)
        self.item = task.item
        self.checkpoint = task.checkpoint
        self.script = _script.decode(task.config)
        self.began_at = began_at
        self.ended_at = 0
        self.is_alive = True
        self.outcome = ""
        """As it ended: an outcome of `wire.tasks`, or crash with its host."""
        self.output = b""
        self.on_timeout = task.on_timeout
        self.done = 0
        """How often it has advanced."""
        self.granted_ms: list[int] = []
        """More time that it was told of."""
        self.warnings = 0

    @property
    def has_lease(self) -> bool:
        """Whether its worker may run it at this instant: not what its worker has noticed, but what its clock says."""
        if self.host.boot != self.boot or self.host.state == "down":
            return False
        return has_lease(self.host)


class HandlerLedger:
    """What really ran."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], list[SimulatedRun]] = {}
        """By job and task, in the order they began. All others by the ledger's own numbers."""
        self.by_number: dict[int, SimulatedRun] = {}
        self.alive: dict[int, SimulatedRun] = {}

    def add(self, run: SimulatedRun) -> None:
        run.number = len(self.by_number) + 1
        self.runs.setdefault((run.job, run.id), []).append(run)
        self.by_number[run.number] = run
        self.alive[run.number] = run

    def find(self, job: str, task: str, fence: int) -> SimulatedRun | None:
        """The latest of this attempt: a store that was put back may give its number out again."""
        return next((run for run in reversed(self.runs.get((job, task), ())) if run.fence == fence), None)

    def end(self, run: SimulatedRun, at: int, outcome: str) -> None:
        run.is_alive, run.ended_at, run.outcome = False, at, outcome
        self.alive.pop(run.number, None)


class _Core:
    """One process."""

    __slots__ = ("blocked_until", "code", "host", "is_alive", "is_loaded", "line", "number", "queue", "tasks")

    def __init__(self, host: Host, number: int, line: CallLine) -> None:
        self.host = host
        self.number = number
        self.line = line
        self.is_alive = True
        self.is_loaded = False
        self.blocked_until = 0
        self.code = ""
        """Digest of the bundle that it was told to load."""
        self.tasks: dict[int, SimulatedRun] = {}
        """Those that have begun."""
        self.queue: deque[HandedTask] = deque()
        """Plain functions: the first one runs."""


class RunListener:
    """Told of attempts as they begin and end."""

    def began(self, run: SimulatedRun) -> None: ...
    def told_time(self, run: SimulatedRun) -> None:
        """More time was given, or a warning."""

    def ended(self, run: SimulatedRun) -> None: ...


class SimulatedHandlerCores(Observer):
    """Runs what workers ask for with StartHandlers, TellHandlers and EndHandlers. A core dies with its host, and goes
    on while the worker's process beside it stands still, until the end that it was told of last."""

    def __init__(self, world: World, ledger: HandlerLedger) -> None:
        self.ledger = ledger
        self.listeners: list[RunListener] = []
        self.ends: dict[str, int] = {}
        """Attempts by how they ended."""
        self._world = world
        self._ends = Ends(world, self._over)
        self._cores: dict[str, dict[int, _Core]] = {}
        self._lines: dict[str, CallLine] = {}
        self._rngs: dict[str, Random] = {}

    def on_boot(self, world: World, host: Host) -> None:
        self._lines[host.name] = CallLine(world, host)

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is StartHandlers:
            core = _Core(host, effect.core, self._lines[host.name])
            self._cores.setdefault(host.name, {})[effect.core] = core
        elif type(effect) is TellHandlers:
            found = self._cores.get(host.name, {}).get(effect.core)
            if found is not None:
                self._told(found, effect.message)
        elif type(effect) is EndHandlers:
            found = self._cores.get(host.name, {}).get(effect.core)
            if found is not None:
                self._asked_to_end(found, hard=effect.hard)
        elif type(effect) is CoresUntil:
            self._ends.told(host, effect.end_ns)

    def _over(self, host: Host) -> None:
        for core in list(self._cores.get(host.name, {}).values()):
            self._die(core, "SIGKILL")

    def on_crash(self, world: World, host: Host) -> None:
        self._ends.forget(host)
        for core in self._cores.pop(host.name, {}).values():
            self._bury(core, "crash")

    def strike(self, rng: Random) -> bool:
        """One core dies by itself, one with tasks if there is any; False when none lives."""
        cores = [core for cores in self._cores.values() for core in cores.values()]
        busy = [core for core in cores if core.tasks]
        if not cores:
            return False
        self._die(rng.choice(busy or cores), rng.choice(SIGNALS))
        return True

    # -- from start to end

    def _rng(self, host: Host) -> Random:
        if host.name not in self._rngs:
            self._rngs[host.name] = self._world.rng("handlers", host.name)
        return self._rngs[host.name]

    def _later(self, core: _Core, delay_ns: int, act: "partial[None]") -> None:
        self._world.after(delay_ns, partial(self._in_turn, core, act))

    def _in_turn(self, core: _Core, act: "partial[None]") -> None:
        """Let a core go on, unless it is gone, or blocked: then once it is not."""
        if not core.is_alive:
            return
        if self._world.now < core.blocked_until:
            self._world.at(core.blocked_until, partial(self._in_turn, core, act))
            return
        act()

    def _told(self, core: _Core, message: object) -> None:
        rng = self._rng(core.host)
        if isinstance(message, Load):
            core.code = "" if message.bundle is None else message.bundle.digest
            self._later(core, rng.randrange(30, 400) * MILLISECOND, partial(self._loaded, core))
        elif isinstance(message, RunTasks):
            self._later(core, RUN_NS, partial(self._run, core, message.tasks))
        elif isinstance(message, StopTasks):
            for fence in message.fences:
                delay_ns = rng.randrange(1, 80) * MILLISECOND
                self._later(core, delay_ns, partial(self._stopped, core, fence, message.reason))
        elif isinstance(message, WarnTasks):
            for fence in message.fences:
                self._later(core, RUN_NS, partial(self._warned, core, fence))
        elif isinstance(message, TellTime):
            for told in message.told:
                self._later(core, RUN_NS, partial(self._told_time, core, told))

    def _loaded(self, core: _Core) -> None:
        core.is_loaded = True
        self._say(core, Loaded(core.number, HANDLERS, plain=PLAIN))

    def _run(self, core: _Core, tasks: tuple[HandedTask, ...]) -> None:
        for task in tasks:
            if task.handler in PLAIN:
                core.queue.append(task)
                if len(core.queue) == 1:
                    self._begin(core, task)
            else:
                self._begin(core, task)

    def _begin(self, core: _Core, task: HandedTask) -> None:
        world, rng = self._world, self._rng(core.host)
        try:
            run = SimulatedRun(core.host, core.number, task, world.now, core.code)
        except msgspec.MsgspecError:
            world.violate("role", f"{core.host.name} runs a task that only a hostile member hands out: {task!r:.200}")
            return
        script = run.script
        core.tasks[run.fence] = run
        self.ledger.add(run)
        for listener in self.listeners:
            listener.began(run)
        takes_ns = int(rng.expovariate(1.0) * script.ms * MILLISECOND) + MILLISECOND // 4
        if script.advances_ms:
            takes_ns //= 4 if run.checkpoint else 1
            self._later(core, script.advances_ms * MILLISECOND, partial(self._advance, core, run))
        if script.saves:
            self._say(core, Said(heeding=(run.fence,)))
        lot = rng.randrange(100)
        if lot < script.dies:
            signal = rng.choice(SIGNALS)
            self._later(core, takes_ns, partial(self._die, core, signal))
            return
        if lot < script.dies + script.blocks:
            core.blocked_until = world.now + rng.randrange(1000, 7000) * MILLISECOND
        if script.tells:
            self._later(core, takes_ns // 2, partial(self._tell_progress, core, run))
        is_failing = rng.randrange(100) < script.fails
        self._later(core, takes_ns, partial(self._ended, core, run, "failed" if is_failing else "completed"))

    def _tell_progress(self, core: _Core, run: SimulatedRun) -> None:
        if run.is_alive:
            self._say(core, Said(progress=(HandlerProgress(run.fence, b'{"at":%d}' % run.fence),)))

    def _advance(self, core: _Core, run: SimulatedRun) -> None:
        """It has got further, and says so."""
        if not run.is_alive:
            return
        run.done += 1
        rng = self._rng(core.host)
        self._say(core, Said(progress=(HandlerProgress(run.fence, b'{"done":%d}' % run.done, run.done),)))
        if rng.randrange(100) < run.script.asks:
            wanted = TimeWanted(run.fence, run.done, run.done, "drawn", rng.randrange(1000, 60_000))
            self._say(core, Said(wanted=(wanted,)))
        self._later(core, run.script.advances_ms * MILLISECOND, partial(self._advance, core, run))

    def _warned(self, core: _Core, fence: int) -> None:
        run = core.tasks.get(fence)
        if run is None:
            return
        run.warnings += 1
        for listener in self.listeners:
            listener.told_time(run)
        if run.script.saves:
            self._say(core, Said(progress=(HandlerProgress(fence, b'{"saved":%d}' % fence, run.done),)))

    def _told_time(self, core: _Core, told: TimeTold) -> None:
        run = core.tasks.get(told.fence)
        if run is None or not told.granted_ms:
            return
        run.granted_ms.append(told.granted_ms)
        for listener in self.listeners:
            listener.told_time(run)

    def _stopped(self, core: _Core, fence: int, reason: Outcome) -> None:
        waiting = [task for task in core.queue if task.fence == fence and fence not in core.tasks]
        if waiting:
            core.queue.remove(waiting[0])
            named = TaskResult(fence, reason, cause=reason, job=waiting[0].job, task=waiting[0].id)
            self._say(core, Ran((named,)))
            return
        run = core.tasks.get(fence)
        if run is not None:
            self._ended(core, run, reason)

    def _ended(self, core: _Core, run: SimulatedRun, outcome: Outcome) -> None:
        if not run.is_alive:
            return
        took_us = (self._world.now - run.began_at) // 1000
        result = TaskResult(run.fence, outcome, took_us=took_us)
        if outcome == "completed":
            output: dict[str, object] = {"task": run.id, "fence": run.fence, "run": run.number}
            if run.script.parts:
                parts = self._rng(core.host).randrange(run.script.parts + 1)
                output["parts"] = [f"{run.number}/{place}" for place in range(parts)]
            run.output = msgspec.json.encode(output)
            result = TaskResult(run.fence, outcome, run.output, took_us=took_us)
        elif outcome == "failed":
            name = "Never" if run.script.never else "Boom"
            result = TaskResult(
                run.fence, outcome, error=f"{name}: drawn", cause=name, took_us=took_us, classes=(name, "Exception")
            )
        elif outcome == "timeout":
            result = TaskResult(run.fence, outcome, cause="timeout", took_us=took_us)
        del core.tasks[run.fence]
        self._end_run(run, outcome)
        self._say(core, Ran((msgspec.structs.replace(result, job=run.job, task=run.id),)))
        if outcome in ("failed", "timeout", "cancelled") and run.fence % LEAVES_EVERY == 0:
            self._later(core, LOOK_AFTER_NS, partial(self._say, core, Spent()))
        if core.queue and core.queue[0].fence == run.fence:
            core.queue.popleft()
            if core.queue:
                self._begin(core, core.queue[0])

    def _end_run(self, run: SimulatedRun, outcome: str) -> None:
        self.ends[outcome] = self.ends.get(outcome, 0) + 1
        self.ledger.end(run, self._world.now, outcome)
        for listener in self.listeners:
            listener.ended(run)

    # -- the end of a core

    def _asked_to_end(self, core: _Core, *, hard: bool) -> None:
        if hard:
            self._die(core, "SIGKILL")
        else:
            delay_ns = self._rng(core.host).randrange(1, 50) * MILLISECOND
            self._world.after(delay_ns, partial(self._exit, core, ExitFacts("exit")))

    def _die(self, core: _Core, signal: str) -> None:
        self._exit(core, ExitFacts(signal, signal=signal))

    def _exit(self, core: _Core, facts: ExitFacts) -> None:
        """Its process is gone; the worker's process hears of it a moment later."""
        if not core.is_alive:
            return
        self._bury(core, "died")
        self._cores.get(core.host.name, {}).pop(core.number, None)
        delay_ns = self._rng(core.host).randrange(1, 20) * MILLISECOND
        call = partial(_hear_exit, host=core.host, core=core.number, facts=facts)
        self._world.after(delay_ns, partial(core.line.put, call))

    def _bury(self, core: _Core, outcome: str) -> None:
        core.is_alive = False
        for run in list(core.tasks.values()):
            self._end_run(run, outcome)
        core.tasks = {}
        core.queue.clear()

    def _say(self, core: _Core, message: FromHandlers) -> None:
        core.line.put(partial(_hear, host=core.host, core=core.number, message=message))


def has_lease(host: Host) -> bool:
    """Whether the worker on this host may run tasks now, by its own clock."""
    # Of private things: nobody else asks a worker for an instant that it has not noticed yet.
    lease = worker_of(host)._lease
    return lease.is_held and host.local(host._world.now) < lease.next_check_at


def _act(host: Host, now: int, effects: list[WorkerEffect]) -> list[MemberEffect | WorkerEffect]:
    assert isinstance(host.node, ClusterMember)
    return host.node.act(now, effects)


def _hear(now: int, *, host: Host, core: int, message: FromHandlers) -> list[MemberEffect | WorkerEffect]:
    return _act(host, now, worker_of(host).on_handlers_said(now, core, message))


def _hear_exit(now: int, *, host: Host, core: int, facts: ExitFacts) -> list[MemberEffect | WorkerEffect]:
    return _act(host, now, worker_of(host).on_handlers_exit(now, core, facts))


_script: Final = msgspec.json.Decoder(Script)
