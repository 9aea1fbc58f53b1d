"""A worker as one pure thing: what managers say, what its cores do and the time come in; words, core processes, writes
and news go out.

It beats to every manager it knows and lives by the lease the leader renews; it obeys whoever has the highest fence of a
job; it keeps each result on disk until a manager has it for good.
See docs/decisions/0017-a-worker-is-a-core-to-its-manager.md,
0018-who-may-act-on-a-job.md, 0033-one-lease.md.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.fencing import Apply, Fence, PersistFirst, Refuse, Token
from talka.cluster.membership.local_health import BeatHealth, Degradation
from talka.control.member.manager_search import ManagerSearch, place_of
from talka.control.member.peer_pool import PooledPeer
from talka.control.member.signers import Signers
from talka.control.tasks.frame_link import FRAMES
from talka.control.tasks.worker_link import ToKeeper
from talka.control.worker.bundles import WorkerBundles
from talka.control.worker.core_turns import TURN_LIMITS, TurnLimits
from talka.control.worker.effects import (
    CoresUntil,
    Drained,
    ExitFacts,
    HandlerEffect,
    LeaseEnded,
    ManagersLearned,
    Undrained,
    WorkerEffect,
    WorkerLeaseGranted,
)
from talka.control.worker.fences import JobFences
from talka.control.worker.handlers_outbox import HANDLER_LIMITS, HandlerLimits
from talka.control.worker.handlers_pool import CodeSource, HandlerPool
from talka.control.worker.held_shards import CLOSED_LIMIT, HeldShards
from talka.control.worker.lease import WorkerLease
from talka.control.worker.machine_told import MachineTold
from talka.control.worker.reporter import ShardReporter
from talka.control.worker.variables import WorkerVariables
from talka.control.worker.writes import WorkerWrites
from talka.units import SECOND
from talka.wire.condition import UNMEASURED, NodeCondition
from talka.wire.jobs import (
    CHANNEL,
    MANAGERS_LIMIT,
    Acknowledge,
    Assign,
    Beat,
    Elsewhere,
    Goodbye,
    Halt,
    JobMessage,
    ManagerAt,
    NoTask,
    Piece,
    Reconcile,
    Renew,
    ResultAccepted,
    Stale,
    Start,
    Sync,
    Synced,
    TaskLoad,
    WantBlob,
    WorkerFacts,
    WorkerSnapshot,
)
from talka.wire.security.roles import Role
from talka.wire.shards import FromCore
from talka.wire.tasks import AskHeld, AssignTasks, FromHandlers, Recall, ResultsStored, TaskInputs, TimeAnswers

FENCE_KEY: Final = "fence"
MANAGERS_KEY: Final = "managers"
WAITING_LIMIT: Final = 1024
REASON_LIMIT: Final = 4096

Command: TypeAlias = Assign | Start | Halt | Acknowledge | ResultAccepted | Reconcile


class Worker:
    """Call `start` once, then the others as things happen, and `tick` when `next_tick_at` has come; carry out what they
    return, in order. A `BundleSource` in a StartCore names no place on disk: the shell puts path and folder in."""

    def __init__(
        self,
        name: str,
        boot: int,
        stored: Mapping[str, bytes],
        facts: WorkerFacts,
        managers: tuple[str, ...],
        rng: Random,
        now: int,
        *,
        signers: Signers,
        variables: WorkerVariables,
        bundles: Iterable[str] = (),
        handlers: tuple[str, ...] = (),
        closed_limit: int = CLOSED_LIMIT,
        handler_limits: HandlerLimits = HANDLER_LIMITS,
        turn_limits: TurnLimits = TURN_LIMITS,
    ) -> None:
        """`bundles` are the digests on disk; `handlers` are files with handlers for tasks of dag jobs. Whether it runs
        handlers that travel with jobs is in its `facts`."""
        self.name = name
        self.boot = boot
        self.facts = msgspec.structs.replace(facts, is_loading=bool(handlers))
        self.search = ManagerSearch(name, place_of(facts), stored.get(MANAGERS_KEY), rng, now)
        self.managers = managers
        self.refused: dict[str, int] = {}
        """Messages that were not obeyed, by reason."""
        self.reports_refused = 0
        """By managers with too much to do."""
        self._signers = signers
        self._lease = WorkerLease()
        self._cores_until = 0
        """What cores were told last. 0: nothing."""
        self._writes = WorkerWrites()
        self._fence = Fence(stored.get(FENCE_KEY))
        self._fences = JobFences(now, stored)
        self.shards = HeldShards(
            name,
            facts.cores,
            WorkerBundles(bundles, PooledPeer(name, place_of(facts)), rng, self._writes),
            signers=signers,
            variables=variables,
            writes=self._writes,
            fences=self._fences,
            closed_limit=closed_limit,
            turn_limits=turn_limits,
        )
        self.handlers = HandlerPool(
            name,
            facts.cores,
            stored,
            boot=boot,
            files=handlers,
            writes=self._writes,
            limits=handler_limits,
            code=CodeSource(self.shards.bundles, signers) if facts.accepts_code else None,
        )
        self.machine = MachineTold()
        self._go_by(managers)
        self.shards.others_want = lambda: self.handlers.room.bundles
        self._problem = ""
        """Of the handlers, as the last beat told it."""
        self._waiting: deque[tuple[int, str, Renew | Command]] = deque()
        """What is carried out once a ticket is on disk."""
        self._beat_at = now
        self._health = BeatHealth()
        self.memory_percent = UNMEASURED
        """Of its machine's memory, in use."""
        self.is_leaving = False
        """It was told to end."""
        self._is_told_to_drain = False
        self._drain_order: tuple[Token, int] | None = None
        """Which renewal the last order to take nothing new, or to take it again, came with."""
        self._has_drained = False
        self._turns_told = 0
        """Which version of its cores' turning the last beat told."""
        self._not_taken_up = self.shards.take_up(now, stored)

    @property
    def is_draining(self) -> bool:
        return self.is_leaving or self._is_told_to_drain

    @property
    def has_lease(self) -> bool:
        return self._lease.is_held

    @property
    def next_tick_at(self) -> int:
        at = min(self._beat_at, self._lease.next_check_at, self._fences.next_sweep_at)
        at = min(at, self.shards.next_tick_at, self.handlers.next_tick_at, self.search.next_tick_at)
        return min([at, *(held.next_at for held in self.shards)])

    # What happens.

    def start(self, now: int) -> list[WorkerEffect]:
        self._beat_at = now  # whatever came between its making and its start is no delay
        effects: list[WorkerEffect] = []
        if self._not_taken_up:
            effects.append(self._writes.persist(tuple((key, None) for key in self._not_taken_up)))
        effects += _framed(self.handlers.start(now))
        return effects + self.tick(now)

    def tick(self, now: int) -> list[WorkerEffect]:
        effects = self._check_lease(now)
        effects += self.search.tick(now)
        if now >= self._beat_at:
            self._health.beat(now, now - self._beat_at)
            effects += self._beat(now)
        if now >= self._fences.next_sweep_at:
            effects += self._sweep(now)
        if now >= self.shards.next_tick_at:
            effects += self.shards.tick(now)
        if now >= self.handlers.next_tick_at:
            effects += _framed(self.handlers.tick(now))
        return self._done(now, effects)

    def on_news(self, now: int, news: object) -> list[WorkerEffect]:
        """A worker neither votes nor leads."""
        return []

    def on_message(
        self, now: int, sender: str, message: JobMessage, boot: int = 0, source: str = "", role: Role | None = None
    ) -> list[WorkerEffect]:
        effects = self._check_lease(now)
        match message:
            case AssignTasks() | ResultsStored() | Recall() | TaskInputs() | AskHeld() | TimeAnswers():
                effects += _framed(self.handlers.on_message(now, sender, message))
            case Renew():
                effects += self._on_renew(now, sender, message)
            case Assign() | Start() | Halt() | Acknowledge() | ResultAccepted() | Reconcile():
                effects += self._on_command(now, sender, message)
            case WantBlob():
                effects.append(Send(CHANNEL, sender, self.shards.piece(message), Lane.RESULTS))
            case Piece():
                effects += self.shards.on_piece(now, sender, message)
            case Sync(number=number):
                effects.append(Send(CHANNEL, sender, Synced(number, now), Lane.CONTROL))
            case Elsewhere(managers=managers):
                effects += self._on_elsewhere(now, managers)
            case _:
                self._count("unexpected")
        return self._done(now, effects)

    def on_core_message(self, now: int, attempt: int, message: FromCore) -> list[WorkerEffect]:
        return self._done(now, self._check_lease(now) + [*self.shards.on_core_message(now, attempt, message)])

    def on_core_turned(self, now: int, process: int) -> list[WorkerEffect]:
        """The event loop of a core process turns."""
        return self._done(now, self._check_lease(now) + [*self.shards.on_core_turned(now, process)])

    def on_core_look(self, now: int, process: int, cpu_ns: int, stack: str) -> list[WorkerEffect]:
        """What a `LookAtCore` showed; it may be told more than once."""
        return self._done(now, self._check_lease(now) + [*self.shards.on_core_look(process, cpu_ns, stack)])

    def on_core_lines(self, now: int, attempt: int, lines: Sequence[str]) -> list[WorkerEffect]:
        effects = self._check_lease(now)
        self.shards.on_core_lines(now, attempt, lines)
        return self._done(now, effects)

    def on_core_exit(self, now: int, attempt: int, cause: str) -> list[WorkerEffect]:
        return self._done(now, self._check_lease(now) + [*self.shards.on_core_exit(now, attempt, cause)])

    def on_handlers_said(self, now: int, core: int, message: FromHandlers) -> list[WorkerEffect]:
        """Of a core that was started by a `StartHandlers`: its numbers are apart from those of other cores."""
        return self._done(now, self._check_lease(now) + _framed(self.handlers.on_handlers_said(now, core, message)))

    def on_handlers_exit(self, now: int, core: int, facts: ExitFacts) -> list[WorkerEffect]:
        return self._done(now, self._check_lease(now) + _framed(self.handlers.on_handlers_exit(now, core, facts)))

    def on_persisted(self, now: int, ticket: int) -> list[WorkerEffect]:
        effects = self._check_lease(now)
        effects += self.shards.on_persisted(now, ticket)
        effects += self._release(now, ticket)
        effects += _framed(self.handlers.on_persisted(now, ticket))
        return self._done(now, effects)

    def on_not_persisted(self, now: int, ticket: int, text: str) -> list[WorkerEffect]:
        """The disk would not take a bundle: who waits for it learns why it cannot run here."""
        effects = self._check_lease(now)
        effects += self.shards.on_not_persisted(now, ticket, text)
        effects += self._release(now, ticket)
        return self._done(now, effects)

    def on_refused(self, now: int, manager: str) -> list[WorkerEffect]:
        """The manager's address refuses connections: nobody listens there."""
        effects = self._check_lease(now)
        self._lease.refused(now, manager)
        return self._done(now, effects)

    def drain(self, now: int) -> list[WorkerEffect]:
        """Take nothing new, as it is to end; `Drained` is told even if nothing was to be done before."""
        if not self.is_leaving:
            self.is_leaving, self._has_drained = True, False
        return self._done(now, self._check_lease(now))

    def leave(self, now: int) -> list[WorkerEffect]:
        """Every core has ended, and this worker with them."""
        return [Send(CHANNEL, manager, Goodbye(), Lane.CONTROL) for manager in self.managers]

    def on_welcomed(self, now: int, address: str, manager: str) -> list[WorkerEffect]:
        """The manager at this address lets this worker in: it need not wait for the next beat."""
        self.search.welcomed(now, address, manager)
        if self._lease.is_held:
            return []  # the leader names all
        self._go_by((*self.managers, manager))
        return self.beat_now(now)

    def beat_now(self, now: int) -> list[WorkerEffect]:
        self._beat_at = now
        return self.tick(now)

    def set_facts(self, facts: WorkerFacts) -> None:
        """What the next beat says of this worker."""
        self.facts = facts
        self.shards.pool.cores = facts.cores

    def counts_of_peers(self) -> dict[str, float]:
        """Of whom it asks: managers that may be there, and those that bundles come from."""
        search, pool = self.search, self.shards.bundles.pool
        return {
            "worker_manager_addresses": len(search.addresses),
            "worker_manager_searches_total": search.searches,
            "worker_manager_greetings_total": search.greetings,
            "worker_manager_greetings_failed_total": search.failures,
            "worker_bundle_sources": len(pool),
            "worker_bundle_source_failures_total": pool.failures,
            "worker_bundle_source_slow_total": pool.slow,
            "worker_bundle_source_switches_total": pool.switches,
            "worker_bundle_source_latency_seconds": pool.latency_ns(pool.current) / SECOND,
        }

    # The lease.

    def _beat(self, now: int) -> list[WorkerEffect]:
        self._beat_at = self._lease.next_beat_at(now)
        running, obeyed = tuple(held.running() for held in self.shards), self.handlers.obeyed()
        others = self.handlers.obeyed_besides()
        quiet, tasks = self.shards.quiet(now), self.handlers.room.task_load
        self._turns_told = self.shards.turns.version
        number = self._lease.beat(now)
        beat = Beat(
            number,
            self._facts(number),
            running,
            obeyed.epoch,
            obeyed.life,
            True,
            others,
            quiet,
            tasks,
            self.is_leaving,
            not self._lease.is_held,
            _condition(self.facts, self.shards.pool.free, tasks, self.memory_percent, self._health.level),
        )
        return [Send(CHANNEL, manager, beat, Lane.CONTROL) for manager in self.managers]

    def _facts(self, number: int) -> WorkerFacts:
        """As the beat of this number tells them."""
        facts, problem = self.facts, self.handlers.room.problem
        if (machine := self.machine.in_beat(number)) is not None:
            facts = msgspec.structs.replace(facts, machine=machine)
        if self.is_draining:
            reason = "it was told to end" if self.is_leaving else "it was told to drain"
            return msgspec.structs.replace(facts, state="draining", reason=reason)
        if not problem:
            return facts
        reason = f"{facts.reason}; {problem}" if facts.reason else problem
        return msgspec.structs.replace(facts, state="degraded", reason=reason[:REASON_LIMIT])

    def _on_renew(self, now: int, sender: str, renew: Renew) -> list[WorkerEffect]:
        token = Token(*renew.token)
        if len(self._waiting) >= WAITING_LIMIT and token >= self._fence.highest:
            return self._count("busy")  # as if it had been lost on the way: the fence must not rise without a write
        match self._fence.admit(token):
            case Apply():
                return self._renewed(now, sender, renew)
            case Refuse():
                return self._count("token")
            case PersistFirst(content=content):  # pragma: no branch - the type checker sees that no other is left
                return self._wait(sender, renew, FENCE_KEY, content)

    def _renewed(self, now: int, sender: str, renew: Renew) -> list[WorkerEffect]:
        had_lease = self._lease.is_held
        if not self._lease.renew(now, sender, renew.number, renew.lease_ns, sole=renew.sole):
            return self._count("beat")
        effects: list[WorkerEffect] = []
        self._beat_at = min(self._beat_at, now + self._lease.beat_every_ns)  # it may be shorter than was thought
        self.machine.renewed(renew.token, renew.number)
        if not had_lease:
            effects.append(WorkerLeaseGranted(sender))
            self.handlers.lease_granted(renew.number)
        self._signers.name(renew.signers)
        self.search.rest()
        names = tuple(manager.name for manager in renew.managers)
        if names:
            effects += self._learned(now, renew.managers, names)
        effects += self._ordered_to_drain(now, renew)
        for held in self.shards:
            if held.job in renew.orphans:
                effects += self.shards.kill(now, held, "its job has ended")
            elif held.job in renew.cancelled and held.stage != "ended":
                effects += self.shards.stop(now, held, is_cancelled=True)
        return effects

    def _on_elsewhere(self, now: int, managers: tuple[ManagerAt, ...]) -> list[WorkerEffect]:
        """A manager that does not lead says where others are. Once there is a lease, the leader does."""
        self.search.heard()
        if self._lease.is_held or not managers:
            return []
        names = dict.fromkeys((*self.managers, *(manager.name for manager in managers)))
        effects = self._learned(now, managers, tuple(names))
        if effects:
            self._beat_at = now  # the leader need not wait for the next beat
        return effects

    def _learned(self, now: int, managers: tuple[ManagerAt, ...], names: tuple[str, ...]) -> list[WorkerEffect]:
        """These were told of; from now on it goes by managers of these names."""
        content = self.search.told(now, managers)
        effects: list[WorkerEffect] = []
        if content is not None:
            effects.append(self._writes.persist(((MANAGERS_KEY, content),)))
        if content is not None or names[-MANAGERS_LIMIT:] != self.managers:
            self._go_by(names)
            effects.append(ManagersLearned(managers))
        return effects

    def _go_by(self, names: tuple[str, ...]) -> None:
        """It beats to these, and fetches bundles from them."""
        self.managers = tuple(dict.fromkeys(names))[-MANAGERS_LIMIT:]
        self.shards.bundles.pool.set_peers(self.search.peer(name) for name in self.managers)

    def _ordered_to_drain(self, now: int, renew: Renew) -> list[WorkerEffect]:
        """It stays as it was ordered until it is ordered otherwise, or started anew: the next leader knows of it by its
        beats."""
        order = (Token(*renew.token), renew.number)
        if not (renew.drain or renew.undrain) or (self._drain_order is not None and order < self._drain_order):
            return []  # an answer that was overtaken by a later one takes nothing back
        self._drain_order = order
        was_draining, self._is_told_to_drain = self.is_draining, renew.drain
        if self.is_draining or not was_draining:
            return []
        self.handlers.undrain()
        return [Undrained(), *self._beat(now)]

    def _tell_cores(self) -> list[WorkerEffect]:
        """Where there is no lease, what was told last has come, and nothing runs."""
        self._cores_until = self._lease.next_check_at
        return [CoresUntil(self._cores_until)] if self.has_lease else []

    def _check_lease(self, now: int) -> list[WorkerEffect]:
        if not self._lease.has_ended(now):
            return []
        self.search.seek(now)
        reason = "no manager renewed the lease in time"
        self.machine.tell_anew()
        effects: list[WorkerEffect] = [LeaseEnded(reason)]
        for held in self.shards:
            if held.stage != "ended":
                effects += self.shards.kill(now, held, reason)
        return effects + _framed(self.handlers.lease_ended(now))

    # Commands.

    def _on_command(self, now: int, sender: str, message: Command) -> list[WorkerEffect]:
        job, fence = message.job, message.fence
        attempt = 0 if isinstance(message, Reconcile) else message.attempt
        if not isinstance(message, Assign | Reconcile):
            if self.shards.get(job, attempt) is None and job not in self._waiting_jobs():
                return self._no_task(sender, message)
        if len(self._waiting) >= WAITING_LIMIT or not self._fences.has_room(job):
            return self._count("busy")
        match self._fences.admit(now, job, fence):
            case Apply():
                self._fences.obeyed(job, fence, sender)
                return self._obey(now, sender, message)
            case Refuse():
                return self._stale(sender, job, attempt)
            case PersistFirst(content=content):  # pragma: no branch - the type checker sees that no other is left
                return self._wait(sender, message, f"{FENCE_KEY}/{job}", content)

    def _obey(self, now: int, sender: str, message: Command) -> list[WorkerEffect]:
        if isinstance(message, Assign):
            if message.boot not in (0, self.boot):
                return self._count("boot")  # meant for an earlier life, by one who may lead no more
            if not self._lease.is_held:
                return self._count("lease")  # it is said again, and a leader may have answered by then
            unable = f"worker {self.name} is draining" if self.is_draining else ""
            return [*self.shards.assign(now, message, unable=unable)]
        if isinstance(message, Reconcile):
            tasks = self.shards.reconcile(now, message.job, message.fence)
            snapshot = WorkerSnapshot(message.job, message.fence, message.number, tasks)
            return [Send(CHANNEL, sender, snapshot, Lane.CONTROL)]
        held = self.shards.get(message.job, message.attempt)
        if held is None:
            return self._no_task(sender, message)
        held.answered()
        if held.is_refused:
            return [*self.shards.forget(held), *self._no_task(sender, message)]
        return self._command_shards(now, sender, message, held)

    def _command_shards(
        self, now: int, sender: str, message: Start | Halt | Acknowledge | ResultAccepted, held: ShardReporter
    ) -> list[WorkerEffect]:
        match message:
            case Start():
                return [*self.shards.go(now, held, message)]
            case Halt(how="stop"):
                return [*self.shards.stop(now, held)]
            case Halt():
                killed = self.shards.kill(now, held, "its manager said so")
                return [*killed, *self._no_task(sender, message)]
            case Acknowledge(sequence=sequence, every_ms=every_ms, answer=answer, over=over):
                self.reports_refused += message.is_refusal
                held.acknowledged(now, sequence, every_ms)
                return [*self.shards.on_time_told(now, held, answer, over)]
            case ResultAccepted():  # pragma: no branch - the type checker sees that no message is left
                return [*self.shards.kill(now, held, "its manager no longer needs it")]

    def _no_task(self, sender: str, message: Start | Halt | Acknowledge | ResultAccepted) -> list[WorkerEffect]:
        if self._fences.is_stale(message.job, message.fence):
            return self._stale(sender, message.job, message.attempt)
        if isinstance(message, ResultAccepted):
            return []  # whoever accepts a result does not ask for it
        return [Send(CHANNEL, sender, NoTask(message.job, message.attempt, message.fence), Lane.RESULTS)]

    def _stale(self, sender: str, job: str, attempt: int) -> list[WorkerEffect]:
        self._count("fence")
        return [Send(CHANNEL, sender, Stale(job, attempt, self._fences.highest(job)), Lane.CONTROL)]

    # Waiting for the disk.

    def _wait(self, sender: str, message: Renew | Command, key: str, content: bytes | None) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = [] if content is None else [self._writes.persist(((key, content),))]
        self._waiting.append((self._writes.last, sender, message))
        return effects

    def _release(self, now: int, ticket: int) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        while self._waiting and self._waiting[0][0] <= ticket:
            _, sender, message = self._waiting.popleft()
            # A later leader or manager may have commanded while this waited: it is looked at again.
            if isinstance(message, Renew):
                self._fence.persisted(Token(*message.token))
                effects += self._on_renew(now, sender, message)
            else:
                self._fences.persisted(message.job, message.fence)
                effects += self._on_command(now, sender, message)
        return effects

    def _waiting_jobs(self) -> list[str]:
        return [message.job for _, _, message in self._waiting if not isinstance(message, Renew)]

    def _sweep(self, now: int) -> list[WorkerEffect]:
        gone = self._fences.sweep(now, [*self.shards.jobs, *self._waiting_jobs()])
        return [self._writes.persist(tuple(gone))] if gone else []

    # Afterwards.

    def _count(self, reason: str) -> list[WorkerEffect]:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return []

    def _done(self, now: int, effects: list[WorkerEffect]) -> list[WorkerEffect]:
        """What is due to be said is said."""
        handlers, room, shards = self.handlers, self.handlers.room, self.shards
        if self._lease.next_check_at != self._cores_until:
            effects = [*self._tell_cores(), *effects]  # whatever is started now has an end
        if room.cores.limit != (free := shards.pool.free):
            effects += _framed(handlers.set_limit(now, free))
        if room.awaited:
            unmet = shards.unmet | shards.bundles.take_problems()
            effects += _framed(handlers.on_bundles(now, unmet))
        shards.unmet.clear()
        is_draining = self.is_draining
        if is_draining and not handlers.is_draining:
            effects += _framed(handlers.drain(now))
        if shards.turns.version != self._turns_told:
            effects += self._beat(now)  # whoever asks about this worker is to know
        known, is_loading = self.facts, room.is_loading
        if room.handlers != known.handlers or room.problem != self._problem or is_loading != known.is_loading:
            self.facts = msgspec.structs.replace(known, handlers=room.handlers, plain=room.plain, is_loading=is_loading)
            self._problem = room.problem
            effects += self._beat(now)  # tasks wait for a worker that has their handler
        for held in shards:
            if now >= held.next_at:
                manager = self._fences.manager(held.job)
                for message, lane in held.sayings(now):
                    # Nobody has commanded yet: it is a result of an earlier life, and any manager may know of it.
                    effects += [Send(CHANNEL, to, message, lane) for to in ((manager,) if manager else self.managers)]
        if not is_draining:
            self._has_drained = False
        elif not self._has_drained and shards.is_idle and handlers.is_idle:
            self._has_drained = True
            effects.append(Drained())
        return effects


def _condition(
    facts: WorkerFacts, free: int, tasks: TaskLoad, memory_percent: int, level: Degradation
) -> NodeCondition:
    load_percent = min(100, facts.load_percent)
    free = max(0, free - tasks.cores)
    return NodeCondition(facts.cores, free, tasks.waiting, load_percent, memory_percent, facts.overload, int(level))


def _framed(effects: list[HandlerEffect]) -> list[WorkerEffect]:
    """What the pool of handlers wants done, with its words to a keeper on the link that nodes have."""
    return [FRAMES.to_keeper(effect) if isinstance(effect, ToKeeper) else effect for effect in effects]
