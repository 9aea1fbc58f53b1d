"""Core processes of simulated workers, and the truth about what they ran.

A core follows its shard's plan without running anything: it counts the iterations that the plan has it start, a few
times a second, and ends or cuts them as a real one does. Every count goes into the ledger as it happens, so that
checkers can compare what managers make of it.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import msgspec

from talka.control.load.core_effects import KillCore, StartCore, TellCore
from talka.control.member.composite import ClusterMember, MemberEffect
from talka.control.worker.composite import Worker
from talka.control.worker.effects import CoresUntil, LookAtCore, WorkerEffect
from talka.errors import Invalid
from talka.stats.windows import WINDOW_NS, Window
from talka.testing.core_runs import CoreProcess, CoreRun, Ledger
from talka.testing.host import Host
from talka.testing.journeys import ITERATION_NS, JOURNEY_NS, rows_of, totals_of
from talka.testing.line import CallLine
from talka.testing.world import Observer, World
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import (
    Acknowledge,
    Assign,
    Fence,
    Halt,
    JobMessage,
    Reconcile,
    ResultAccepted,
    Stale,
    Start,
)
from talka.wire.security.roles import Role
from talka.wire.shards import (
    CONTEXT_PREFIX,
    Ack,
    Armed,
    FromCore,
    Go,
    Hello,
    ShardAnswer,
    StepTotals,
    Stop,
    TimeAsked,
    TimeOver,
    Totals,
)

AGAIN_NS: Final = 25 * MILLISECOND
"""After which a core tries again to reach a worker that stands still."""
TURN_NS: Final = SECOND
"""Between two words of a core process that its loop turns."""
LOOK_NS: Final = 20 * MILLISECOND
"""After which a worker has the stack of one that does not."""
ASKED_NS: Final = 2 * SECOND
"""How much longer cores that ask for more time say that they take."""
TOKEN: Final = "token"
"""What every simulated workflow provides by name."""
CONTEXT: Final = CONTEXT_PREFIX + "left by "
"""Before its name, what it leaves in `self.context`."""


class Obeyed(msgspec.Struct, frozen=True):
    """News: a worker took a command as one it has to obey."""

    job: str
    attempt: int
    fence: Fence
    what: str


class WorkerPart:
    """A worker as a part of a member: it is started by its first tick, and tells what it obeys."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._is_started = False

    @property
    def next_tick_at(self) -> int:
        return self.worker.next_tick_at

    def tick(self, now: int) -> list[WorkerEffect]:
        if self._is_started:
            return self.worker.tick(now)
        self._is_started = True
        return self.worker.start(now)

    def on_message(
        self, now: int, sender: str, message: JobMessage, boot: int, source: str, role: Role | None = None
    ) -> list[WorkerEffect | Obeyed]:
        effects = self.worker.on_message(now, sender, message, boot, source)
        if isinstance(message, Assign | Start | Halt | Acknowledge | ResultAccepted | Reconcile):
            if not any(isinstance(getattr(effect, "message", None), Stale) for effect in effects):
                attempt = 0 if isinstance(message, Reconcile) else message.attempt
                return [Obeyed(message.job, attempt, message.fence, type(message).__name__), *effects]
        return [*effects]

    def on_news(self, now: int, news: object) -> list[WorkerEffect]:
        return []

    def on_persisted(self, now: int, ticket: int) -> list[WorkerEffect]:
        return self.worker.on_persisted(now, ticket)


class Ends:
    """The end of every core of a host, by that host's clock. Each core knows its own; all were told the same."""

    def __init__(self, world: World, on_over: Callable[[Host], None]) -> None:
        self._world = world
        self._on_over = on_over
        self._ends: dict[str, int] = {}

    def told(self, host: Host, end_ns: int) -> None:
        self._ends[host.name] = end_ns
        self._look(host, end_ns)

    def forget(self, host: Host) -> None:
        self._ends.pop(host.name, None)

    def _look(self, host: Host, end_ns: int) -> None:
        if self._ends.get(host.name) != end_ns:
            return
        world = self._world
        if host.local(world.now) >= end_ns:
            del self._ends[host.name]
            self._on_over(host)
        elif end_ns < NEVER:
            # Its clock may run otherwise by then: it is looked at again.
            world.push(max(host.true_of(end_ns), world.now + 1), self._look, (host, end_ns))


class Cores(Observer):
    """Runs what workers ask for with StartCore, TellCore and KillCore. Cores live and stand still with their host;
    where the worker alone is frozen they go on, until the end they were told of last."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.ledger = ledger
        self.listeners: list[Callable[[CoreRun], None]] = []
        """Told whenever a core has started iterations."""
        self._world = world
        self._ends = Ends(world, self._over)
        self.blocked: dict[CoreProcess, None] = {}
        """Processes whose loop was blocked at some time."""
        self._runs: dict[str, dict[int, CoreRun]] = {}
        self._processes: dict[tuple[str, int], CoreProcess] = {}
        self._rngs: dict[str, Random] = {}

    def on_effect(self, world: World, host: Host, effect: object) -> None:
        if type(effect) is StartCore:
            self._start(host, effect)
        elif type(effect) is TellCore:
            run = self._runs.get(host.name, {}).get(effect.attempt)
            if run is not None:
                self._told(run, effect.message)
        elif type(effect) is KillCore:
            run = self._runs.get(host.name, {}).get(effect.attempt)
            if run is not None:
                self._end(run, "killed")
        elif type(effect) is LookAtCore:
            self._look_at(host, effect.process)
        elif type(effect) is CoresUntil:
            self._ends.told(host, effect.end_ns)

    def _over(self, host: Host) -> None:
        for run in list(self._runs.get(host.name, {}).values()):
            self._end(run, "killed")

    def on_crash(self, world: World, host: Host) -> None:
        self._ends.forget(host)
        for run in self._runs.pop(host.name, {}).values():
            self._bury(run, "crash")

    def strike(self, rng: Random) -> bool:
        """One core process dies by itself, with all that it runs; False when none runs."""
        runs = [run for runs in self._runs.values() for run in runs.values() if run.is_alive and not run.final]
        if not runs:
            return False
        struck = rng.choice(runs)
        for run in list(self._runs[struck.host.name].values()):
            if run.process is struck.process:
                self._end(run, "died")
        return True

    def block(self, rng: Random, for_ns: int, *, is_computing: bool) -> bool:
        """The event loop of one process that starts iterations stands still for so long; False when there is none."""
        now = self._world.now
        found = [
            process
            for process in self._processes.values()
            if now >= process.blocked_until and any(run.is_working for run in process.runs.values())
        ]
        if not found:
            return False
        struck = rng.choice(found)
        struck.blocked_at, struck.blocked_until, struck.is_computing = now, now + for_ns, is_computing
        self.blocked[struck] = None
        return True

    def runs_on(self, host: Host) -> list[CoreRun]:
        """Those that live."""
        return list(self._runs.get(host.name, {}).values())

    # -- from start to end

    def _rng(self, host: Host) -> Random:
        if host.name not in self._rngs:
            self._rngs[host.name] = self._world.rng("cores", host.name)
        return self._rngs[host.name]

    def _start(self, host: Host, effect: StartCore) -> None:
        worker, number = worker_of(host), effect.attempt
        owner, arm = worker.shards.pool.owner_of(number), worker.shards.arm_for(number)
        if owner is None or arm is None:  # it was given up in the same step
            self._tell_exit(CallLine(self._world, host), host, number, "was given up before it started")
            return
        process = self._processes.get((host.name, effect.process))
        if process is None:
            process = self._processes[host.name, effect.process] = CoreProcess(
                host, effect.process, CallLine(self._world, host)
            )
        run = process.runs[number] = CoreRun(host, number, owner[1], arm, process)
        self._runs.setdefault(host.name, {})[number] = run
        self.ledger.add(run)
        self._world.after(self._rng(host).randrange(50, 600) * MILLISECOND, partial(self._arm, run))

    def _turn(self, process: CoreProcess) -> None:
        if not process.runs:
            return
        host, world = process.host, self._world
        if world.now < process.blocked_until:
            world.push(process.blocked_until, self._turn, (process,))
            return
        if not host.is_running:  # it says so as soon as it goes on
            world.push(world.now + AGAIN_NS, self._turn, (process,))
            return
        worker_act(world, host, process.boot, partial(_hear_turn, process=process.number))
        world.push(host.true_of(host.local(world.now) + TURN_NS), self._turn, (process,))

    def _look_at(self, host: Host, number: int) -> None:
        process = self._processes.get((host.name, number))
        if process is not None:
            seen = partial(_hear_look, process=number, cpu_ns=process.cpu_ns(self._world.now), stack="simulated.py:1")
            self._world.after(LOOK_NS, partial(worker_act, self._world, host, process.boot, seen))

    def _is_blocked(self, run: CoreRun, act: Callable[..., None], *arguments: object) -> bool:
        """Whether it cannot go on now: then `act` follows as soon as it can."""
        until = run.process.blocked_until
        if self._world.now < until:
            self._world.push(until, act, (run, *arguments))
            return True
        return False

    def _arm(self, run: CoreRun) -> None:
        if self._is_blocked(run, self._arm):
            return
        if not run.process.is_turning:  # of a process this is the first word
            run.process.is_turning = True
            self._turn(run.process)
        self._say(run, Hello(run.number, "3.11", "simulated"))
        self._say(run, Armed())

    def _told(self, run: CoreRun, message: object) -> None:
        if not run.is_alive or self._is_blocked(run, self._told, message):
            return
        if isinstance(message, Go):
            if run.go is None:
                run.go = message
                run.last_ns = message.start_at_ns
                begin_at = max(run.host.true_of(message.start_at_ns), self._world.now)
                self._world.at(begin_at, partial(self._begin, run))
        elif isinstance(message, Ack):
            if message.sequence == run.sequence:
                run.acknowledged = message.sequence
                run.known = run.reported
                run.windows.clear()
                if run.final:
                    self._end(run, run.final)
        elif isinstance(message, Stop):
            run.is_stopping = True
            if run.go is None:
                self._end(run, "killed")
        elif isinstance(message, ShardAnswer):
            if run.is_asking and message.number == run.asks:
                run.is_asking = False
                run.given_ns += [message.answer.granted_ns] if message.answer else []
        elif isinstance(message, TimeOver):
            run.warned_at.append(self._world.now)

    def _begin(self, run: CoreRun) -> None:
        if not run.is_alive or self._is_blocked(run, self._begin):
            return
        if not run.host.is_running:
            self._world.after(AGAIN_NS, partial(self._begin, run))
            return
        run.began_at = self._world.now
        run.last_ns = max(run.last_ns, run.host.local(self._world.now))
        self._next(run)

    def _next(self, run: CoreRun) -> None:
        at = run.host.true_of(run.host.local(self._world.now) + run.arm.settings.report_every_ns)
        self._world.push(max(at, self._world.now + 1), self._tick, (run,))

    def _tick(self, run: CoreRun) -> None:
        if not run.is_alive or run.final:
            return
        world = self._world
        if self._is_blocked(run, self._tick):
            run.last_ns = run.host.local(run.process.blocked_until)
            return
        if not run.host.is_running:
            # Nothing ran since: what was due meanwhile is not made up for.
            run.last_ns = run.host.local(world.now + AGAIN_NS)
            world.push(world.now + AGAIN_NS, self._tick, (run,))
            return
        now = run.host.local(world.now)
        run.journeys.advance(now)
        if not run.stopped_ns:
            run.is_over = self._count(run, now)
            if run.is_over or run.is_stopping:
                run.stopped_ns = now
        if run.stopped_ns and not run.journeys.are_over and now >= run.stopped_ns + run.arm.settings.grace_ns:
            run.journeys.cut()
        if run.stopped_ns and run.journeys.are_over:
            run.final = "plan" if run.is_over else "stop"
            self._report(run)
            return
        if run.acknowledged == run.sequence:
            self._report(run)
        self._next(run)

    def _count(self, run: CoreRun, now: int) -> bool:
        """Add what was started since the last look; whether the plan is over."""
        assert run.go is not None
        shard, origin_ns = run.arm.shard, run.go.origin_ns
        plan = shard.plan
        from_ns, to_ns = run.last_ns - origin_ns, now - origin_ns
        run.last_ns = max(now, run.last_ns)
        length_ns = plan.length_ns
        is_over = length_ns is not None and to_ns >= length_ns
        if length_ns is not None:
            to_ns = min(to_ns, length_ns)
        # Where iterations are numbered, slow ones would take longer than a history has room for.
        is_slow = run.manner.is_slow and length_ns is not None
        new = 0
        if run.is_stopping or to_ns <= from_ns:
            pass
        elif plan.model == "open":
            new = shard.arrivals_between(from_ns, to_ns)
        else:
            vus = shard.vus_at(from_ns) if plan.segments else max(1, shard.vus)
            run.rest_ns += vus * (to_ns - from_ns)
            new, run.rest_ns = divmod(run.rest_ns, JOURNEY_NS if is_slow else ITERATION_NS)
            in_all = shard.iterations_in_all
            if in_all is not None:
                left = max(0, in_all - run.arm.iterations_done - run.started)
                if new >= left:
                    new, is_over = left, True
        if new:
            run.journeys.begin(now, new, is_slow=is_slow)
            index = max(0, now - run.go.job_origin_ns) // WINDOW_NS
            if not run.windows or run.windows[-1].index < index:
                run.windows.append(Window(index, started=new, requests=new, vus=shard.vus))
            for listener in self.listeners:
                listener(run)
        return is_over

    def _report(self, run: CoreRun) -> None:
        assert run.go is not None
        run.sequence += 1
        manner, shard, counts = run.manner, run.arm.shard.index, run.journeys.counts
        run.reported = counts
        run.most_under_way = max(run.most_under_way, counts.under_way)
        for row in rows_of(manner, shard, counts) if manner.tells_rows else ():
            if run.sent.get((row.name, row.call)) != row.tally.seen:
                run.sent[row.name, row.call] = row.tally.seen
                self._say(run, StepTotals(run.sequence, row.name, row.tally, row.is_measured, row.call))
        totals = Totals(
            run.sequence,
            totals_of(manner, counts),
            list(run.windows[:40]),
            0 if run.final else run.arm.shard.vus,
            run.go.start_at_ns,
            final=bool(run.final),
            provided=provided_by(run) if run.final in ("plan", "stop") else {},
            ended_at_ns=run.host.local(self._world.now) if run.final else 0,
            made_at_ns=run.host.local(self._world.now),
            asked=_asked_by(run) if manner.asks and not run.final else None,
        )
        self._say(run, totals)

    def _say(self, run: CoreRun, message: FromCore) -> None:
        if run.is_alive:
            call = partial(_hear_core, attempt=run.number, message=message)
            run.process.line.put(_Hearing(run.host, run.boot, call))

    def _end(self, run: CoreRun, how: str) -> None:
        """Its process is gone; the worker hears of it a moment later."""
        if not run.is_alive:
            return
        self._bury(run, how)
        self._runs.get(run.host.name, {}).pop(run.number, None)
        cause = "was killed by a signal" if how in ("killed", "died") else "ended"
        self._tell_exit(run.process.line, run.host, run.number, cause)

    def _tell_exit(self, line: CallLine, host: Host, number: int, cause: str) -> None:
        """Behind all that it said."""
        delay = self._rng(host).randrange(1, 20) * MILLISECOND
        hearing = _Hearing(host, host.boot, partial(_hear_exit, attempt=number, cause=cause))
        self._world.after(delay, partial(line.put, hearing))

    def _bury(self, run: CoreRun, how: str) -> None:
        run.is_alive = False
        run.ended_at = self._world.now
        run.final = how
        self.ledger.gone(run)
        process = run.process
        process.runs.pop(run.number, None)
        if not process.runs and self._processes.get((run.host.name, process.number)) is process:
            del self._processes[run.host.name, process.number]


def _asked_by(run: CoreRun) -> TimeAsked:
    """More time, in every report until it is answered; then again."""
    if not run.is_asking:
        run.asks, run.is_asking = run.asks + 1, True
    return TimeAsked(run.asks, ASKED_NS, "simulated")


def provided_by(run: CoreRun) -> dict[str, bytes]:
    """What a core hands on. Each shard says that it was the one."""
    value = msgspec.msgpack.encode(f"{run.arm.workflow} {run.arm.shard.index}")
    return {TOKEN: value, CONTEXT + run.arm.workflow: value}


def worker_of(host: Host) -> Worker:
    node = host.node
    if not isinstance(node, ClusterMember) or not isinstance(node.jobs, WorkerPart):
        raise Invalid(f"host {host.name} runs no worker; only workers start cores")
    return node.jobs.worker


def _hear_core(worker: Worker, now: int, *, attempt: int, message: FromCore) -> list[WorkerEffect]:
    return worker.on_core_message(now, attempt, message)


def _hear_turn(worker: Worker, now: int, *, process: int) -> list[WorkerEffect]:
    return worker.on_core_turned(now, process)


def _hear_look(worker: Worker, now: int, *, process: int, cpu_ns: int, stack: str) -> list[WorkerEffect]:
    return worker.on_core_look(now, process, cpu_ns, stack)


def _hear_exit(worker: Worker, now: int, *, attempt: int, cause: str) -> list[WorkerEffect]:
    return worker.on_core_exit(now, attempt, cause)


class _Hearing:
    """A call of a worker that waits until its host can take it."""

    __slots__ = ("boot", "call", "host")

    def __init__(self, host: Host, boot: int, call: "partial[list[WorkerEffect]]") -> None:
        self.host = host
        self.boot = boot
        self.call = call

    def __call__(self, now: int) -> list[MemberEffect | WorkerEffect]:
        node = self.host.node
        if self.host.boot != self.boot or not isinstance(node, ClusterMember):
            return []
        return node.act(now, self.call(worker_of(self.host), now))


def worker_act(world: World, host: Host, boot: int, call: "partial[list[WorkerEffect]]") -> None:
    """Let the worker on this host handle `call(worker, now)`: at once, or as soon as it can."""
    hearing = _Hearing(host, boot, call)
    if host.boot == boot and host.state != "down" and not host.act(hearing):
        world.push(world.now + AGAIN_NS, worker_act, (world, host, boot, call))
