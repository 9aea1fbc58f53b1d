"""A worker's side of tasks of dag jobs: attempts that a manager assigns run in its handler cores (`HandlerRoom`), and
their results are told until the manager has stored them (`HandlerOutbox`).

An attempt is named by its fence, a number that one store in one of its lives never gives to another attempt. Each life
of a manager has an epoch: the worker obeys the highest it has seen, once that is on disk. Of tasks nothing is written.
Each partition of a store has a manager and an epoch of its own (`ServedPartition`); cores and the lease are shared. All
that is held of a partition is of one life of one store: when another is obeyed, the rest is dropped, and that is told.
See docs/decisions/0022-who-runs-a-task.md, 0031-whose-attempt-it-is.md, 0034-no-clock-decides-who-has-the-store.md,
0040-partitions-of-jobs.md.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from talka.control.tasks.worker_link import ToKeeper, WorkerEnd
from talka.control.worker.bundles import WorkerBundles
from talka.control.worker.effects import AttemptsDropped, ExitFacts, HandlerEffect, NeedBundle
from talka.control.worker.handlers_attempt import without_run
from talka.control.worker.handlers_code import OWN
from talka.control.worker.handlers_inputs import EarlyInputs
from talka.control.worker.handlers_outbox import HANDLER_LIMITS, HandlerLimits
from talka.control.worker.handlers_partition import ServedPartition
from talka.control.worker.handlers_room import HandlerRoom
from talka.control.worker.obeyed_epoch import ObeyedEpoch, obeyed_partitions
from talka.control.worker.writes import WorkerWrites
from talka.units import MILLISECOND
from talka.wire.attempts import ObeyedLife
from talka.wire.tasks import (
    ERROR_LIMIT,
    AskHeld,
    AssignTasks,
    FromHandlers,
    HandedBundle,
    HandedTask,
    Held,
    KeeperMessage,
    Loaded,
    Ran,
    Recall,
    ResultsStored,
    Said,
    Spent,
    TaskInputs,
    TaskResult,
    TimeAnswers,
)

TASK_BYTES: Final = 512
"""Bytes a task takes beside what is in it."""
HELD_BACK_LIMIT: Final = 64
"""Messages about one partition that wait until its epoch is on disk; of a store with several, their part of these."""
HELD_BACK_LEAST: Final = 4


class CodeJudge(Protocol):
    """Whose word counts for code."""

    @property
    def problem(self) -> str:
        """Why the last word was refused."""

    def judge(self, now: int, digest: str, content: bytes) -> Literal["holds", "unknown", "refused"]:
        """`unknown`: ask again in a moment."""


class CodeSource(NamedTuple):
    """Where code comes from that travels with jobs."""

    bundles: WorkerBundles
    signers: CodeJudge


class HandlerPool(WorkerEnd[HandlerEffect]):
    """Part of a `Worker`, which says when there is a lease, how many cores are left, and when a ticket is on disk."""

    def __init__(
        self,
        name: str,
        cores: int,
        stored: Mapping[str, bytes],
        *,
        boot: int,
        files: tuple[str, ...] = (),
        writes: WorkerWrites,
        limits: HandlerLimits = HANDLER_LIMITS,
        code: CodeSource | None = None,
    ) -> None:
        """`files` hold the handlers; without any no core is started for them and every task of theirs refused. `code`:
        where bundles come from that travel with jobs; None: none are taken."""
        self.has_lease = False
        self.first_beat = 0
        """The beat whose answer began the present lease."""
        self.is_draining = False
        self.refused: dict[str, int] = {}
        """Messages that were not obeyed, by reason."""
        self.outcomes: Counter[str] = Counter()
        """Results, by outcome."""
        self.repeated = 0
        """Tasks that were assigned again."""
        self.dropped = 0
        """Attempts and results of another store, or of another life of it."""
        self._name = name
        self._boot = boot
        self._writes = writes
        self._limits = limits
        self._code = code
        self.room = HandlerRoom(name, files, cores, limits)
        self._early = EarlyInputs()
        self._partitions: dict[int, ServedPartition] = {}
        """By number: no more than a message can name."""
        for number in obeyed_partitions(stored):
            self._partitions[number] = ServedPartition(number, stored, limits)

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs here, and every result was taken."""
        return not self.room.held and not any(served.outbox.results for served in self._partitions.values())

    @property
    def next_tick_at(self) -> int:
        at = min(self._early.next_tick_at, self.room.next_tick_at)
        return min([at, *(served.outbox.next_tick_at for served in self._partitions.values())])

    def obeyed(self, partition: int = 0) -> ObeyedEpoch:
        """Whom it obeys there."""
        return self._partitions[partition].obeyed

    def obeyed_besides(self) -> tuple[ObeyedLife, ...]:
        """In other partitions than the first."""
        served = [self._partitions[number].obeyed for number in sorted(self._partitions) if number]
        return tuple(obeyed.told() for obeyed in served if obeyed.epoch)

    def counts(self) -> dict[str, int]:
        room, outboxes = self.room, [served.outbox for served in self._partitions.values()]
        return {
            "handler_cores": room.cores.count,
            "handler_cores_started_total": room.cores.started,
            "handler_cores_died_total": room.cores.died,
            "handler_cores_spent_total": room.cores.spent,
            "attempts_waiting": room.waiting,
            "attempts_running": room.running,
            "attempts_repeated_total": self.repeated,
            "attempts_dropped_total": self.dropped,
            "attempts_warned_total": room.warned,
            "attempts_evicted_total": room.evicted,
            "results_unknown_total": room.unknown_results,
            "results_untaken": sum(len(outbox.results) for outbox in outboxes),
            "results_untaken_bytes": sum(outbox.size_bytes for outbox in outboxes),
            "task_lines_dropped_total": sum(outbox.lines_dropped for outbox in outboxes),
            "task_progress_dropped_total": sum(outbox.progress_dropped for outbox in outboxes),
        }

    # What happens.

    def start(self, now: int) -> list[HandlerEffect]:
        """One core tells which handlers there are."""
        return self._settle(now, self.room.start(now))

    def tick(self, now: int) -> list[HandlerEffect]:
        if now >= self._early.next_tick_at:
            self._early.tick(now)
        effects = self.room.tick(now) if now >= self.room.next_tick_at else []
        return self._settle(now, effects)

    def on_message(self, now: int, keeper: str, message: KeeperMessage) -> list[HandlerEffect]:
        served = self._served(message.of.partition)
        obeyed = served.obeyed
        if message.epoch < obeyed.epoch:
            return self._count("epoch")
        if message.epoch > obeyed.epoch:
            # What waits is of lower epochs, and would be refused when its turn came.
            served.held_back = [(keeper, message)]
            persist = self._writes.persist(obeyed.rise(message.epoch, message.of))
            served.ticket = persist.ticket
            return [persist]
        if message.of != obeyed.life:
            return self._count("life")  # two have the same epoch: whoever is told of this takes a higher one
        if served.ticket:
            if len(served.held_back) >= max(HELD_BACK_LIMIT // obeyed.life.partitions, HELD_BACK_LEAST):
                return self._count("busy")  # as if it had been lost on the way
            served.held_back.append((keeper, message))
            return []
        return self._settle(now, self._obey(now, served, keeper, message))

    def _served(self, number: int) -> ServedPartition:
        served = self._partitions.get(number)
        if served is None:
            served = self._partitions[number] = ServedPartition(number, {}, self._limits)
        return served

    def on_persisted(self, now: int, ticket: int) -> list[HandlerEffect]:
        effects: list[HandlerEffect] = []
        durable = [served for served in self._partitions.values() if served.ticket and ticket >= served.ticket]
        if not durable:
            return effects
        for served in durable:
            served.ticket = 0
            held_back, served.held_back = served.held_back, []
            effects += self._drop_others(now, served)
            served.outbox.tell_all()
            for keeper, message in held_back:
                effects += self._obey(now, served, keeper, message)
        return self._settle(now, effects)

    def on_handlers_said(self, now: int, core: int, message: FromHandlers) -> list[HandlerEffect]:
        room = self.room
        if isinstance(message, Ran):
            effects = room.ran(now, core, message.results)
            return self._settle(now, effects + room.fill(now))
        if isinstance(message, Loaded):
            return self._settle(now, room.loaded(now, core, message))
        if isinstance(message, Spent):
            return self._settle(now, room.spent(now, core))
        for attempt in room.wrote(core, message.wrote):
            self._partitions[attempt.partition].outbox.wrote(now, attempt)
        effects = room.said(now, core, message)
        for served, words in self._by_partition(message):
            served.outbox.said(words, room.held)
        return self._settle(now, effects)

    def _by_partition(self, message: Said) -> list[tuple[ServedPartition, Said]]:
        """What handlers told, for whom. What is told of an attempt that is not held any more, its lines were overtaken
        by its result, is of whoever has that."""
        if len(self._partitions) == 1:
            return [(served, message) for served in self._partitions.values()]
        split: list[tuple[ServedPartition, Said]] = []
        held = self.room.held
        for served in self._partitions.values():

            def is_its_own(fence: int, served: ServedPartition = served) -> bool:
                attempt = held.get(fence)
                if attempt is not None:
                    return attempt.partition == served.number
                return fence in served.outbox.results or served.is_over(fence)

            progress = tuple(one for one in message.progress if is_its_own(one.fence))
            lines = tuple(one for one in message.lines if is_its_own(one.fence))
            if progress or lines:
                split.append((served, Said(progress, lines)))
        return split

    def on_handlers_exit(self, now: int, core: int, facts: ExitFacts) -> list[HandlerEffect]:
        return self._settle(now, self.room.exited(now, core, facts))

    def lease_granted(self, beat: int) -> None:
        """There was none until this beat was answered."""
        self.has_lease = True
        self.first_beat = beat

    def lease_ended(self, now: int) -> list[HandlerEffect]:
        """Nothing goes on, and what waits for the disk does not begin: it was assigned under this lease. What ran is
        told as refused once its process is gone: whoever still counts on it can give it to another. Results that were
        not stored stay, for their fences say whether they count."""
        self.has_lease = False
        for served in self._partitions.values():
            served.lease_ended()
        self._early = EarlyInputs()
        self.room.refuse_waiting("lease", f"worker {self._name} lost its lease before it began")
        return self._settle(now, self.room.kill_all(now))

    def drain(self, now: int) -> list[HandlerEffect]:
        """Finish what runs; what waits may run elsewhere."""
        self.is_draining = True
        self.room.refuse_waiting("draining", f"worker {self._name} is draining")
        return self._settle(now, [])

    def undrain(self) -> None:
        """Take new ones again."""
        self.is_draining = False

    def set_limit(self, now: int, limit: int) -> list[HandlerEffect]:
        """So many cores are left by load tasks. Where there are none, what waits may run elsewhere."""
        if limit <= 0:
            self.room.refuse_waiting("cores", self._no_cores())
        return self._settle(now, self.room.set_limit(now, limit))

    def on_bundles(self, now: int, unmet: Mapping[str, str]) -> list[HandlerEffect]:
        """Some may be here now, or cannot be had, and why."""
        effects: list[HandlerEffect] = []
        for digest in self.room.awaited:
            if self._code is not None and self._code.bundles.has(digest):
                effects += self.room.arrived(now, digest)
            elif digest in unmet:
                text = f"worker {self._name} could not get the code of its job: {unmet[digest]}"
                self.room.never_came(digest, text[:ERROR_LIMIT])
        return self._settle(now, effects)

    def try_again(self, now: int) -> list[HandlerEffect]:
        """Load the files anew, if they could not be used: somebody has mended them."""
        return self._settle(now, self.room.try_again(now))

    # Commands.

    def _obey(self, now: int, served: ServedPartition, keeper: str, message: KeeperMessage) -> list[HandlerEffect]:
        served.outbox.keeper = keeper
        if served.drops and not isinstance(message, AskHeld):
            served.drops = []  # it was told: nobody is given anything before
        match message:
            case AssignTasks(boot=boot) | TaskInputs(boot=boot) if boot not in (0, self._boot):
                return self._count("boot")  # meant for an earlier life
            case AssignTasks():
                return self._assign(now, served, message)
            case ResultsStored(fences=fences):
                served.close(fences)
                return []
            case Recall(fences=fences, grace_ms=grace_ms):
                return self._recall(now, served, fences, grace_ms * MILLISECOND)
            case TaskInputs(fence=fence, inputs=inputs):
                for _ in range(self._early.put(now, (served.number, fence), inputs)):
                    self._count("inputs")
                return []
            case TimeAnswers(answers=answers):
                return self.room.answered(now, answers, served.number)
            case AskHeld(epoch=epoch):  # pragma: no branch - the type checker sees that no other is left
                return self._tell_held(served, keeper, epoch)

    def _assign(self, now: int, served: ServedPartition, message: AssignTasks) -> list[HandlerEffect]:
        room, outbox, number = self.room, served.outbox, served.number
        held, early = room.held, self._early
        bundle, effects = message.bundle, list[HandlerEffect]()
        why = self._why_not(served)
        if why is None:
            why = self._why_not_own() if bundle is None else self._why_not_code(now, bundle)
        if why is None and 0 < message.beat < self.first_beat:
            # Whoever handed it may have given this worker up before the present lease, and the task to another.
            self._count("lease")
            why = "lease", f"worker {self._name} has another lease than when the task was assigned"
        left, waiting_bytes = self._limits.waiting - room.waiting, self._limits.waiting_bytes
        for task in message.tasks:
            fence = task.fence
            attempt = held.get(fence)
            is_others = attempt is not None and attempt.partition != number
            if (attempt is not None and not is_others) or fence in outbox.results or served.is_over(fence):
                self.repeated += 1
                outbox.tell_again((fence,))
                continue
            if is_others:
                # Of one store this cannot be: here are two, and a core tells attempts apart by this number alone.
                text = f"worker {self._name} has an attempt of another store under its number"
                self._refuse(served, task, "number", text)
                continue
            if task.fed or (number, fence) in early.inputs:
                fed = early.take((number, fence))
                if len(fed) < task.fed and why is None:
                    text = "inputs that were to come before the task were lost on the way"
                    self._refuse(served, task, "inputs", text)
                    continue
                task = msgspec.structs.replace(task, inputs={**task.inputs, **fed})
            size_bytes = TASK_BYTES + len(task.config) + len(task.checkpoint)
            if task.inputs:
                size_bytes += sum([len(content) for content in task.inputs.values()])
            if why is not None:
                self._refuse(served, task, *why)
            elif left <= 0 or room.waiting_bytes > waiting_bytes:
                self._refuse(served, task, "full", f"worker {self._name} has more tasks waiting than it may")
            else:
                left -= 1
                if bundle is not None:
                    effects += self._bring(now, bundle)
                room.add(task, size_bytes, number, OWN if bundle is None else bundle.digest)
        return effects + room.fill(now)

    def _bring(self, now: int, bundle: HandedBundle) -> list[HandlerEffect]:
        """The bundle is here, or on its way."""
        digest, code = bundle.digest, self._code
        assert code is not None, "else its tasks were refused"
        is_here = code.bundles.has(digest)
        self.room.use(bundle, is_here=is_here)
        if is_here:
            code.bundles.use(digest)
        if is_here or code.bundles.is_fetching(digest):
            return []
        return [NeedBundle(digest, bundle.size_bytes), *code.bundles.need(now, digest, bundle.size_bytes)]

    def _why_not(self, served: ServedPartition) -> tuple[str, str] | None:
        """Cause and sentence, where no task at all can be taken."""
        if not self.has_lease:
            return "lease", f"worker {self._name} has no lease"
        if self.is_draining:
            return "draining", f"worker {self._name} is draining"
        if self.room.cores.limit <= 0:
            return "cores", self._no_cores()
        if served.outbox.is_full:
            return "full", f"worker {self._name} holds too many results that nobody took"
        return None

    def _why_not_own(self) -> tuple[str, str] | None:
        if not self.room.is_broken:
            return None
        problem = self.room.problem or "it was started without any; give it files with --handlers"
        return "handlers", f"worker {self._name} has no handlers: {problem}"

    def _why_not_code(self, now: int, bundle: HandedBundle) -> tuple[str, str] | None:
        code, digest = self._code, bundle.digest
        if code is None:
            return "code", f"worker {self._name} takes no code: start it with --accept-code"
        if not bundle.files:
            return "bundle", f"the code of its job, {digest[:12]}, names no files with handlers: submit it again"
        verdict = code.signers.judge(now, digest, bundle.word)
        if verdict == "unknown":
            return "signer", f"worker {self._name} was not told yet who signed the code of its job"
        if verdict == "refused":
            return "bundle", f"worker {self._name} runs nothing unsigned: {code.signers.problem}"
        if problem := self.room.why_not(digest):
            return "bundle", f"worker {self._name} cannot load the handlers of its job: {problem}"[:ERROR_LIMIT]
        bundles = self.room.bundles
        if digest not in bundles and (len(bundles) >= self._limits.bundles or code.bundles.is_busy):
            return "full", f"worker {self._name} has as many bundles in use, or on their way, as it may"
        return None

    def _no_cores(self) -> str:
        return f"load tests have all cores of worker {self._name}"

    def _refuse(self, served: ServedPartition, task: HandedTask, cause: str, text: str) -> None:
        self.room.end(served.number, without_run(task, "refused", cause, text))

    def _recall(self, now: int, served: ServedPartition, fences: tuple[int, ...], grace_ns: int) -> list[HandlerEffect]:
        effects, unknown = self.room.recall(now, fences, grace_ns, served.number)
        for fence in unknown:
            if served.is_over(fence):
                continue  # its result is kept for good by whoever asks
            if fence in served.outbox.results:
                served.outbox.tell_again((fence,))
            elif served.outbox.is_full:
                self._count("busy")
            else:
                # Kept as a result: should it be handed after this, it is not begun.
                text = f"worker {self._name} does not have it"
                self.room.end(served.number, TaskResult(fence, "cancelled", cause="cancelled", error=text))
        return effects + self.room.fill(now)

    def _tell_held(self, served: ServedPartition, keeper: str, epoch: int) -> list[HandlerEffect]:
        fences = [*self.room.of_partition(served.number), *served.outbox.results]
        most = self._limits.held
        parts = [fences[first : first + most] for first in range(0, len(fences), most)] or [[]]
        life, drops = served.outbox.life, tuple(served.drops)
        told = [Held(epoch, tuple(part), number, len(parts), life, drops) for number, part in enumerate(parts)]
        return [ToKeeper(keeper, held) for held in told]

    def _drop_others(self, now: int, served: ServedPartition) -> list[HandlerEffect]:
        """Another store is obeyed, or another life of it: the numbers of what is here may be given out once more. What
        is of partitions that there are none of in that store belongs to nothing any more either."""
        life = served.obeyed.life
        if served.outbox.life.is_of(life):
            served.outbox.life = life
            return []
        gone = [one for one in self._partitions.values() if one is served or one.number >= life.partitions]
        effects = [effect for one in gone for effect in self._drop(now, one)]
        served.outbox.life = life
        return effects + self.room.fill(now)

    def _drop(self, now: int, served: ServedPartition) -> list[HandlerEffect]:
        report = served.forget_all(len(self.room.of_partition(served.number)))
        effects = self.room.drop(now, served.number)
        self._early.drop(served.number)
        if report.attempts or report.results:
            self.dropped += report.attempts + report.results
            effects.append(AttemptsDropped(report))
        return effects

    # Afterwards.

    def _count(self, reason: str) -> list[HandlerEffect]:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return []

    def _settle(self, now: int, effects: list[HandlerEffect]) -> list[HandlerEffect]:
        """Results are told."""
        room, partitions = self.room, self._partitions
        if room.ended:
            for number, results in room.ended.items():
                for result in results:
                    self.outcomes[result.outcome] += 1
                partitions[number].outbox.put(results)
            room.ended = {}
        if room.began:
            for number, fences in room.began.items():
                partitions[number].outbox.began(fences)
            room.began = {}
        if room.asked:
            for number, asked in room.asked.items():
                partitions[number].outbox.ask(asked)
            room.asked = {}
        for served in partitions.values():
            effects += served.outbox.flush(now)
        return effects
