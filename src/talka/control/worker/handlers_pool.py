"""A worker's side of tasks of dag jobs: what managers hand it is run by its handler cores, and told until it is taken.

A manager's life has an epoch: the highest seen is obeyed, and on disk before it is. Of tasks nothing is written. All that
is held here is of one store in one of its lives: when another is obeyed, the rest is dropped, and that is told.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.cluster.safeguards import ALL, Safeguards
from talka.control.worker.effects import AttemptsDropped, HandlerEffect
from talka.control.worker.handlers_effects import ExitFacts
from talka.control.worker.handlers_outbox import HandlerOutbox
from talka.control.worker.handlers_room import HandlerRoom
from talka.control.worker.obeyed_epoch import ObeyedEpoch
from talka.control.worker.writes import WorkerWrites
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.attempts import Dropped, StoreLife
from talka.wire.jobs import CHANNEL
from talka.wire.tasks import (
    INPUTS_LIMIT_BYTES,
    AskHeld,
    AssignTasks,
    FromHandlers,
    HandedTask,
    Held,
    Loaded,
    Ran,
    Recall,
    ResultsStored,
    Spent,
    TaskInputs,
    TaskResult,
)

WAITING_LIMIT: Final = 16_384
WAITING_LIMIT_BYTES: Final = 256 * 1024 * 1024
TASK_BYTES: Final = 512
"""What a task takes beside what is in it."""
HELD_BACK_LIMIT: Final = 64
"""Messages that wait until the epoch is on disk."""
FEEDS_LIMIT: Final = 1024
FEEDS_LIMIT_BYTES: Final = 64 * 1024 * 1024
FEED_LIMIT_NS: Final = 30 * SECOND
CLOSED_LIMIT: Final = 65_536
"""Attempts that are over and remembered at least: one that is handed late must not begin again."""
HOLDING_LIMIT: Final = 65_536
"""Of one part."""
REPORTS_LIMIT: Final = 16

TaskCommand: TypeAlias = AssignTasks | Recall | ResultsStored | AskHeld | TaskInputs


class HandlerPool:
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
        safeguards: Safeguards = ALL,
    ) -> None:
        """`files` hold the handlers; without any no core is started and every task refused."""
        self.has_lease = False
        self.first_beat = 0
        """The beat whose answer began the present lease."""
        self.is_draining = False
        self.refused: dict[str, int] = {}
        """Messages that were not obeyed, by reason."""
        self.outcomes: dict[str, int] = {}
        """Results, by outcome."""
        self.repeated = 0
        """Tasks that were handed again."""
        self.dropped = 0
        """Attempts and results of another store, or of another life of it."""
        self.next_tick_at = NEVER
        self._name = name
        self._boot = boot
        self._writes = writes
        self._is_fenced = safeguards.worker_fence
        self._is_named = safeguards.store_life
        self._slots = HandlerRoom(name, files, cores)
        self._outbox = HandlerOutbox()
        self._obeyed = ObeyedEpoch(stored)
        self._outbox.life = self._obeyed.life
        self._reports: list[Dropped] = []
        """What was dropped, until it is clear that the manager knows."""
        self._ticket = 0
        """Of the write that puts it on disk; 0: it is there."""
        self._held_back: list[tuple[str, TaskCommand]] = []
        self._feeds: dict[int, tuple[int, dict[str, bytes]]] = {}
        """By fence: when it came first, and what."""
        self._feeds_bytes = 0
        self._feeds_at = NEVER
        self._closed: dict[int, None] = {}
        self._closed_before: dict[int, None] = {}
        """The ones before these: together they are those remembered."""

    @property
    def handlers(self) -> tuple[str, ...]:
        """Names of those that can run here."""
        return self._slots.handlers

    @property
    def plain(self) -> tuple[str, ...]:
        """Those of them of which a core runs one at a time."""
        return self._slots.plain

    @property
    def problem(self) -> str:
        """Why the handlers' files cannot be used; empty when they can."""
        return self._slots.problem

    @property
    def epoch(self) -> int:
        return self._obeyed.epoch

    @property
    def life(self) -> StoreLife:
        """Whose the epoch is."""
        return self._obeyed.life

    @property
    def limit(self) -> int:
        return self._slots.limit

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs here, and every result was taken."""
        return not self._slots.held and not len(self._outbox)

    def counts(self) -> dict[str, int]:
        """For metrics."""
        slots, outbox = self._slots, self._outbox
        return {
            "handler_cores": slots.cores,
            "handler_cores_started_total": slots.cores_started,
            "handler_cores_died_total": slots.cores_died,
            "handler_cores_spent_total": slots.cores_spent,
            "attempts_waiting": slots.waiting,
            "attempts_running": slots.running,
            "attempts_repeated_total": self.repeated,
            "attempts_dropped_total": self.dropped,
            "results_unknown_total": slots.unknown_results,
            "results_untaken": len(outbox),
            "results_untaken_bytes": outbox.size_bytes,
            "task_lines_dropped_total": outbox.lines_dropped,
            "task_progress_dropped_total": outbox.progress_dropped,
        }

    # What happens.

    def start(self, now: int) -> list[HandlerEffect]:
        """One core tells which handlers there are."""
        return self._settle(now, self._slots.start(now))

    def tick(self, now: int) -> list[HandlerEffect]:
        if now >= self._feeds_at:
            self._forget_feeds(now)
        effects = self._slots.tick(now) if now >= self._slots.next_tick_at else []
        return self._settle(now, effects)

    def on_message(self, now: int, sender: str, message: TaskCommand) -> list[HandlerEffect]:
        obeyed = self._obeyed
        if message.epoch < obeyed.epoch and self._is_fenced:
            return self._count("epoch")
        if message.epoch > obeyed.epoch:
            # What waits is of lower epochs, and would be refused when its turn came.
            self._held_back = [(sender, message)]
            persist = self._writes.persist(obeyed.rise(message.epoch, message.of))
            self._ticket = persist.ticket
            return [persist]
        if message.of != obeyed.life and self._is_named:
            return self._count("life")  # two have the same epoch: whoever is told of this takes a higher one
        if self._ticket:
            if len(self._held_back) >= HELD_BACK_LIMIT:
                return self._count("busy")  # as if it had been lost on the way
            self._held_back.append((sender, message))
            return []
        return self._settle(now, self._obey(now, sender, message))

    def on_persisted(self, now: int, ticket: int) -> list[HandlerEffect]:
        if not self._ticket or ticket < self._ticket:
            return []
        self._ticket = 0
        held_back, self._held_back = self._held_back, []
        effects = self._drop_others(now)
        self._outbox.tell_all()
        for sender, message in held_back:
            effects += self._obey(now, sender, message)
        return self._settle(now, effects)

    def on_handlers_said(self, now: int, core: int, message: FromHandlers) -> list[HandlerEffect]:
        slots = self._slots
        if isinstance(message, Ran):
            effects = slots.ran(now, core, message.results)
            return self._settle(now, effects + slots.fill(now))
        if isinstance(message, Loaded):
            return self._settle(now, slots.loaded(now, core, message))
        if isinstance(message, Spent):
            return self._settle(now, slots.spent(now, core))
        self._outbox.said(message, slots.held)
        return self._settle(now, [])

    def on_handlers_exit(self, now: int, core: int, facts: ExitFacts) -> list[HandlerEffect]:
        return self._settle(now, self._slots.exited(now, core, facts))

    def lease_granted(self, beat: int) -> None:
        """There was none until this beat was answered."""
        self.has_lease = True
        self.first_beat = beat

    def lease_ended(self, now: int) -> list[HandlerEffect]:
        """Nothing goes on, and what waits for the disk does not begin: it was handed under this lease. What ran is told as refused once its process is gone: whoever counts on it still, can give
        it to another; results that were not taken stay, for their fences say whether they count."""
        self.has_lease = False
        self._held_back = [held for held in self._held_back if not isinstance(held[1], AssignTasks | TaskInputs)]
        self._feeds, self._feeds_bytes, self._feeds_at = {}, 0, NEVER
        self._slots.refuse_waiting("lease", f"worker {self._name} lost its lease before it began")
        return self._settle(now, self._slots.kill_all(now))

    def drain(self, now: int) -> list[HandlerEffect]:
        """Finish what runs; what waits may run elsewhere."""
        self.is_draining = True
        self._slots.refuse_waiting("draining", f"worker {self._name} is draining")
        return self._settle(now, [])

    def set_limit(self, now: int, limit: int) -> list[HandlerEffect]:
        """So many cores are left by load tasks. Where there are none, what waits may run elsewhere."""
        if limit <= 0:
            self._slots.refuse_waiting("cores", self._no_cores())
        return self._settle(now, self._slots.set_limit(now, limit))

    def try_again(self, now: int) -> list[HandlerEffect]:
        """Load the files anew, if they could not be used: somebody has mended them."""
        return self._settle(now, self._slots.try_again(now))

    # Commands.

    def _obey(self, now: int, sender: str, message: TaskCommand) -> list[HandlerEffect]:
        self._outbox.manager = sender
        if self._reports and not isinstance(message, AskHeld):
            self._reports = []  # it was told: nobody is given anything before
        match message:
            case AssignTasks(boot=boot) | TaskInputs(boot=boot) if boot not in (0, self._boot):
                return self._count("boot")  # meant for an earlier life
            case AssignTasks():
                return self._hand(now, message)
            case ResultsStored(fences=fences):
                self._took(fences)
                return []
            case Recall(fences=fences, grace_ms=grace_ms):
                return self._recall(now, fences, grace_ms * MILLISECOND)
            case TaskInputs(fence=fence, inputs=inputs):
                self._feed(now, fence, inputs)
                return []
            case AskHeld(epoch=epoch):  # pragma: no branch - the type checker sees that no other is left
                return self._holding(sender, epoch)

    def _hand(self, now: int, hand: AssignTasks) -> list[HandlerEffect]:
        slots, outbox = self._slots, self._outbox
        held, closed, closed_before, feeds = slots.held, self._closed, self._closed_before, self._feeds
        why = self._why_not()
        if why is None and 0 < hand.beat < self.first_beat:
            # Whoever handed it may have given this worker up before the present lease, and the task to another.
            self._count("lease")
            why = "lease", f"worker {self._name} has another lease than when it was handed"
        room = WAITING_LIMIT - slots.waiting
        for task in hand.tasks:
            fence = task.fence
            if fence in held or fence in closed or fence in outbox or fence in closed_before:
                self.repeated += 1
                outbox.tell_again((fence,))
                continue
            if task.fed or fence in feeds:
                fed = self._take_feed(fence)
                if len(fed) < task.fed and why is None:
                    self._refuse(task, "inputs", "inputs that were to come before the task were lost on the way")
                    continue
                task = msgspec.structs.replace(task, inputs={**task.inputs, **fed})
            size_bytes = TASK_BYTES + len(task.config) + len(task.checkpoint)
            if task.inputs:
                size_bytes += sum([len(content) for content in task.inputs.values()])
            if why is not None:
                self._refuse(task, *why)
            elif room <= 0 or slots.waiting_bytes > WAITING_LIMIT_BYTES:
                self._refuse(task, "full", f"worker {self._name} has more tasks waiting than it may")
            else:
                room -= 1
                slots.add(task, size_bytes)
        return slots.fill(now)

    def _why_not(self) -> tuple[str, str] | None:
        """Cause and sentence, where no task at all can be taken."""
        if not self.has_lease:
            return "lease", f"worker {self._name} has no lease"
        if self.is_draining:
            return "draining", f"worker {self._name} is draining"
        if self._slots.is_broken:
            problem = self._slots.problem or "it was started without any; give it files with --handlers"
            return "handlers", f"worker {self._name} has no handlers: {problem}"
        if self._slots.limit <= 0:
            return "cores", self._no_cores()
        if self._outbox.is_full:
            return "full", f"worker {self._name} holds too many results that nobody took"
        return None

    def _no_cores(self) -> str:
        return f"load tests have all cores of worker {self._name}"

    def _refuse(self, task: HandedTask, cause: str, text: str) -> None:
        result = TaskResult(task.fence, "refused", cause=cause, error=text, job=task.job, task=task.id)
        self._slots.ended.append(result)

    def _recall(self, now: int, fences: tuple[int, ...], grace_ns: int) -> list[HandlerEffect]:
        effects, unknown = self._slots.recall(now, fences, grace_ns)
        for fence in unknown:
            if fence in self._closed or fence in self._closed_before:
                continue  # its result is kept for good by whoever asks
            if fence in self._outbox:
                self._outbox.tell_again((fence,))
            elif self._outbox.is_full:
                self._count("busy")
            else:
                # Kept as a result: should it be handed after this, it is not begun.
                text = f"worker {self._name} does not have it"
                self._slots.ended.append(TaskResult(fence, "cancelled", cause="cancelled", error=text))
        return effects + self._slots.fill(now)

    def _took(self, fences: tuple[int, ...]) -> None:
        self._outbox.took(fences)
        self._closed.update(dict.fromkeys(fences))
        if len(self._closed) >= CLOSED_LIMIT:
            self._closed_before, self._closed = self._closed, {}

    def _holding(self, sender: str, epoch: int) -> list[HandlerEffect]:
        fences = [*self._slots.held, *self._outbox.fences]
        parts = max(1, -(-len(fences) // HOLDING_LIMIT))
        return [
            Send(
                CHANNEL,
                sender,
                Held(
                    epoch,
                    tuple(fences[part * HOLDING_LIMIT : (part + 1) * HOLDING_LIMIT]),
                    part,
                    parts,
                    self._outbox.life,
                    tuple(self._reports),
                ),
                Lane.RESULTS,
            )
            for part in range(parts)
        ]

    def _drop_others(self, now: int) -> list[HandlerEffect]:
        """Another store is obeyed, or another life of it: the numbers of what is here may be given out once more."""
        slots, outbox = self._slots, self._outbox
        former, outbox.life = outbox.life, self._obeyed.life
        if former.is_of(self._obeyed.life) or not self._is_named:
            return []
        report = Dropped(former.store, former.life, len(slots.held), len(outbox))
        effects = slots.drop_all(now)
        outbox.drop_all()
        self._closed, self._closed_before = {}, {}
        self._feeds, self._feeds_bytes, self._feeds_at = {}, 0, NEVER
        if report.attempts or report.results:
            self.dropped += report.attempts + report.results
            self._reports = [*self._reports, report][-REPORTS_LIMIT:]
            effects.append(AttemptsDropped(report))
        return effects + slots.fill(now)

    # Inputs that come before their task.

    def _feed(self, now: int, fence: int, inputs: dict[str, bytes]) -> None:
        at, known = self._feeds.pop(fence, (now, {}))
        self._feeds_bytes -= _bytes_of(known)
        together = {**known, **inputs}
        size_bytes = _bytes_of(together)
        if size_bytes > INPUTS_LIMIT_BYTES:
            self._count("inputs")
            return
        self._feeds[fence] = (at, together)
        self._feeds_bytes += size_bytes
        self._feeds_at = min(self._feeds_at, at + FEED_LIMIT_NS)
        while len(self._feeds) > FEEDS_LIMIT or self._feeds_bytes > FEEDS_LIMIT_BYTES:
            self._count("inputs")
            self._take_feed(next(iter(self._feeds)))

    def _take_feed(self, fence: int) -> dict[str, bytes]:
        _, fed = self._feeds.pop(fence, (0, {}))
        self._feeds_bytes -= _bytes_of(fed)
        return fed

    def _forget_feeds(self, now: int) -> None:
        for fence in [fence for fence, (at, _) in self._feeds.items() if now >= at + FEED_LIMIT_NS]:
            self._take_feed(fence)
        self._feeds_at = min((at + FEED_LIMIT_NS for at, _ in self._feeds.values()), default=NEVER)

    # Afterwards.

    def _count(self, reason: str) -> list[HandlerEffect]:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return []

    def _settle(self, now: int, effects: list[HandlerEffect]) -> list[HandlerEffect]:
        """Results are told, and the time of the next tick settled."""
        slots, outbox = self._slots, self._outbox
        if slots.ended:
            outcomes = self.outcomes
            for result in slots.ended:
                outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
            outbox.put(slots.ended)
            slots.ended = []
        if slots.began:
            outbox.began(slots.began)
            slots.began = []
        effects += outbox.flush(now)
        self.next_tick_at = min(self._feeds_at, slots.next_tick_at, outbox.next_tick_at)
        return effects


def _bytes_of(inputs: dict[str, bytes]) -> int:
    return sum([len(content) for content in inputs.values()])
