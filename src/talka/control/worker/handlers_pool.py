"""A worker's side of tasks of dag jobs: attempts that a manager assigns run in its handler cores (`HandlerRoom`), and
their results are told until the manager has stored them (`HandlerOutbox`).

An attempt is named by its fence, a number that one store in one of its lives never gives to another attempt. Each life
of a manager has an epoch: the worker obeys the highest it has seen, once that is on disk. Of tasks nothing is written.
All that is held here is of one life of one store: when another is obeyed, the rest is dropped, and that is told.
See docs/decisions/0022-who-runs-a-task.md, 0031-whose-attempt-it-is.md, 0034-no-clock-decides-who-has-the-store.md.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from talka.cluster.effects import Lane, Send
from talka.control.worker.effects import AttemptsDropped, ExitFacts, HandlerEffect
from talka.control.worker.handlers_attempt import without_run
from talka.control.worker.handlers_inputs import EarlyInputs
from talka.control.worker.handlers_outbox import HandlerOutbox
from talka.control.worker.handlers_room import HandlerRoom
from talka.control.worker.obeyed_epoch import ObeyedEpoch
from talka.control.worker.writes import WorkerWrites
from talka.units import MILLISECOND, NEVER
from talka.wire.attempts import Dropped
from talka.wire.jobs import CHANNEL
from talka.wire.tasks import (
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
"""Bytes a task takes beside what is in it."""
HELD_BACK_LIMIT: Final = 64
"""Messages that wait until the epoch is on disk."""
CLOSED_LIMIT: Final = 65_536
"""Attempts that are over and remembered at least: one that is assigned late must not begin again."""
HELD_LIMIT: Final = 65_536
"""Fences in one part of what is told to be held."""
DROPS_LIMIT: Final = 16

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
    ) -> None:
        """`files` hold the handlers; without any no core is started and every task refused."""
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
        self.next_tick_at = NEVER
        self._name = name
        self._boot = boot
        self._writes = writes
        self.room = HandlerRoom(name, files, cores)
        self._outbox = HandlerOutbox()
        self.obeyed = ObeyedEpoch(stored)
        self._outbox.life = self.obeyed.life
        self._drops: list[Dropped] = []
        """What was dropped, until it is clear that the manager knows."""
        self._ticket = 0
        """Ticket of the write that puts the obeyed epoch on disk; 0: it is there."""
        self._held_back: list[tuple[str, TaskCommand]] = []
        self._early = EarlyInputs()
        self._closed: dict[int, None] = {}
        """Fences of attempts whose results are stored."""
        self._closed_before: dict[int, None] = {}
        """Likewise, the ones before these. When `_closed` is full it takes their place: old ones go at once."""

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs here, and every result was taken."""
        return not self.room.held and not self._outbox.results

    def counts(self) -> dict[str, int]:
        room, outbox = self.room, self._outbox
        return {
            "handler_cores": room.cores.count,
            "handler_cores_started_total": room.cores.started,
            "handler_cores_died_total": room.cores.died,
            "handler_cores_spent_total": room.cores.spent,
            "attempts_waiting": room.waiting,
            "attempts_running": room.running,
            "attempts_repeated_total": self.repeated,
            "attempts_dropped_total": self.dropped,
            "results_unknown_total": room.unknown_results,
            "results_untaken": len(outbox.results),
            "results_untaken_bytes": outbox.size_bytes,
            "task_lines_dropped_total": outbox.lines_dropped,
            "task_progress_dropped_total": outbox.progress_dropped,
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

    def on_message(self, now: int, sender: str, message: TaskCommand) -> list[HandlerEffect]:
        obeyed = self.obeyed
        if message.epoch < obeyed.epoch:
            return self._count("epoch")
        if message.epoch > obeyed.epoch:
            # What waits is of lower epochs, and would be refused when its turn came.
            self._held_back = [(sender, message)]
            persist = self._writes.persist(obeyed.rise(message.epoch, message.of))
            self._ticket = persist.ticket
            return [persist]
        if message.of != obeyed.life:
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
        room = self.room
        if isinstance(message, Ran):
            effects = room.ran(now, core, message.results)
            return self._settle(now, effects + room.fill(now))
        if isinstance(message, Loaded):
            return self._settle(now, room.loaded(now, core, message))
        if isinstance(message, Spent):
            return self._settle(now, room.spent(now, core))
        self._outbox.said(message, room.held)
        return self._settle(now, [])

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
        self._held_back = [held for held in self._held_back if not isinstance(held[1], AssignTasks | TaskInputs)]
        self._early = EarlyInputs()
        self.room.refuse_waiting("lease", f"worker {self._name} lost its lease before it began")
        return self._settle(now, self.room.kill_all(now))

    def drain(self, now: int) -> list[HandlerEffect]:
        """Finish what runs; what waits may run elsewhere."""
        self.is_draining = True
        self.room.refuse_waiting("draining", f"worker {self._name} is draining")
        return self._settle(now, [])

    def set_limit(self, now: int, limit: int) -> list[HandlerEffect]:
        """So many cores are left by load tasks. Where there are none, what waits may run elsewhere."""
        if limit <= 0:
            self.room.refuse_waiting("cores", self._no_cores())
        return self._settle(now, self.room.set_limit(now, limit))

    def try_again(self, now: int) -> list[HandlerEffect]:
        """Load the files anew, if they could not be used: somebody has mended them."""
        return self._settle(now, self.room.try_again(now))

    # Commands.

    def _obey(self, now: int, sender: str, message: TaskCommand) -> list[HandlerEffect]:
        self._outbox.manager = sender
        if self._drops and not isinstance(message, AskHeld):
            self._drops = []  # it was told: nobody is given anything before
        match message:
            case AssignTasks(boot=boot) | TaskInputs(boot=boot) if boot not in (0, self._boot):
                return self._count("boot")  # meant for an earlier life
            case AssignTasks():
                return self._assign(now, message)
            case ResultsStored(fences=fences):
                self._stored(fences)
                return []
            case Recall(fences=fences, grace_ms=grace_ms):
                return self._recall(now, fences, grace_ms * MILLISECOND)
            case TaskInputs(fence=fence, inputs=inputs):
                for _ in range(self._early.put(now, fence, inputs)):
                    self._count("inputs")
                return []
            case AskHeld(epoch=epoch):  # pragma: no branch - the type checker sees that no other is left
                return self._tell_held(sender, epoch)

    def _assign(self, now: int, message: AssignTasks) -> list[HandlerEffect]:
        room, outbox = self.room, self._outbox
        held, closed, closed_before, early = room.held, self._closed, self._closed_before, self._early
        why = self._why_not()
        if why is None and 0 < message.beat < self.first_beat:
            # Whoever handed it may have given this worker up before the present lease, and the task to another.
            self._count("lease")
            why = "lease", f"worker {self._name} has another lease than when the task was assigned"
        left = WAITING_LIMIT - room.waiting
        for task in message.tasks:
            fence = task.fence
            if fence in held or fence in closed or fence in outbox.results or fence in closed_before:
                self.repeated += 1
                outbox.tell_again((fence,))
                continue
            if task.fed or fence in early.inputs:
                fed = early.take(fence)
                if len(fed) < task.fed and why is None:
                    self._refuse(task, "inputs", "inputs that were to come before the task were lost on the way")
                    continue
                task = msgspec.structs.replace(task, inputs={**task.inputs, **fed})
            size_bytes = TASK_BYTES + len(task.config) + len(task.checkpoint)
            if task.inputs:
                size_bytes += sum([len(content) for content in task.inputs.values()])
            if why is not None:
                self._refuse(task, *why)
            elif left <= 0 or room.waiting_bytes > WAITING_LIMIT_BYTES:
                self._refuse(task, "full", f"worker {self._name} has more tasks waiting than it may")
            else:
                left -= 1
                room.add(task, size_bytes)
        return room.fill(now)

    def _why_not(self) -> tuple[str, str] | None:
        """Cause and sentence, where no task at all can be taken."""
        if not self.has_lease:
            return "lease", f"worker {self._name} has no lease"
        if self.is_draining:
            return "draining", f"worker {self._name} is draining"
        if self.room.is_broken:
            problem = self.room.problem or "it was started without any; give it files with --handlers"
            return "handlers", f"worker {self._name} has no handlers: {problem}"
        if self.room.cores.limit <= 0:
            return "cores", self._no_cores()
        if self._outbox.is_full:
            return "full", f"worker {self._name} holds too many results that nobody took"
        return None

    def _no_cores(self) -> str:
        return f"load tests have all cores of worker {self._name}"

    def _refuse(self, task: HandedTask, cause: str, text: str) -> None:
        self.room.ended.append(without_run(task, "refused", cause, text))

    def _recall(self, now: int, fences: tuple[int, ...], grace_ns: int) -> list[HandlerEffect]:
        effects, unknown = self.room.recall(now, fences, grace_ns)
        for fence in unknown:
            if fence in self._closed or fence in self._closed_before:
                continue  # its result is kept for good by whoever asks
            if fence in self._outbox.results:
                self._outbox.tell_again((fence,))
            elif self._outbox.is_full:
                self._count("busy")
            else:
                # Kept as a result: should it be handed after this, it is not begun.
                text = f"worker {self._name} does not have it"
                self.room.ended.append(TaskResult(fence, "cancelled", cause="cancelled", error=text))
        return effects + self.room.fill(now)

    def _stored(self, fences: tuple[int, ...]) -> None:
        self._outbox.stored(fences)
        self._closed.update(dict.fromkeys(fences))
        if len(self._closed) >= CLOSED_LIMIT:
            self._closed_before, self._closed = self._closed, {}

    def _tell_held(self, sender: str, epoch: int) -> list[HandlerEffect]:
        fences = [*self.room.held, *self._outbox.results]
        parts = [fences[first : first + HELD_LIMIT] for first in range(0, len(fences), HELD_LIMIT)] or [[]]
        life, drops = self._outbox.life, tuple(self._drops)
        told = [Held(epoch, tuple(part), number, len(parts), life, drops) for number, part in enumerate(parts)]
        return [Send(CHANNEL, sender, held, Lane.RESULTS) for held in told]

    def _drop_others(self, now: int) -> list[HandlerEffect]:
        """Another store is obeyed, or another life of it: the numbers of what is here may be given out once more."""
        room, outbox = self.room, self._outbox
        former, outbox.life = outbox.life, self.obeyed.life
        if former.is_of(self.obeyed.life):
            return []
        report = Dropped(former.store, former.life, len(room.held), len(outbox.results))
        effects = room.drop_all(now)
        outbox.drop_all()
        self._closed, self._closed_before = {}, {}
        self._early = EarlyInputs()
        if report.attempts or report.results:
            self.dropped += report.attempts + report.results
            self._drops = [*self._drops, report][-DROPS_LIMIT:]
            effects.append(AttemptsDropped(report))
        return effects + room.fill(now)

    # Afterwards.

    def _count(self, reason: str) -> list[HandlerEffect]:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return []

    def _settle(self, now: int, effects: list[HandlerEffect]) -> list[HandlerEffect]:
        """Results are told, and the time of the next tick settled."""
        room, outbox = self.room, self._outbox
        if room.ended:
            self.outcomes.update([result.outcome for result in room.ended])
            outbox.put(room.ended)
            room.ended = []
        if room.began:
            outbox.began(room.began)
            room.began = []
        effects += outbox.flush(now)
        self.next_tick_at = min(self._early.next_tick_at, room.next_tick_at, outbox.next_tick_at)
        return effects
