"""The attempts at tasks on a worker: which wait, which core each is given to, and when one has taken too long.

See docs/decisions/0022-who-runs-a-task.md and 0024-corner-cases-of-tasks.md.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Final

from talka.control.tasks.parts import in_parts
from talka.control.worker.effects import (
    ExitFacts,
    HandlerEffect,
    HandlersBroken,
    HandlersLoaded,
    StartHandlers,
    TellHandlers,
)
from talka.control.worker.handlers_attempt import (
    CoreStage,
    CoreState,
    HandlerAttempt,
    is_bounded,
    last_word,
    without_run,
)
from talka.control.worker.handlers_cores import LOAD_LIMIT_NS, HandlerCores
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.tasks import ERROR_LIMIT, HandedTask, Load, Loaded, RunTasks, StopTasks, TaskResult

FULL: Final = 64
"""So many attempts are in one core's hands; one that weighs more counts as several."""
PLAIN_AHEAD_NS: Final = 20 * MILLISECOND
"""Plain functions run one after the other: a core is given as many as it does in this time, and at least one."""
RUN_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Of what a core is told at once, unless one task alone is larger."""
BEGAN_NS: Final = 100 * MILLISECOND
"""What runs for so long is worth a word."""
STOP_LIMIT_NS: Final = 2 * SECOND
"""An attempt that took too long and was asked to stop is killed after this."""
RETRY_NS: Final = 10 * SECOND
STARTS_LIMIT: Final = 3
"""So many cores in a row that end while they load are a problem of the files."""
PROBLEM_LIMIT: Final = 2000
"""Letters: it is told with every beat."""
SPENT_LIMIT: Final = 8
"""Cores that are given nothing more and wait for what runs in them; with more cores than that, so many."""
NAME_LIMIT: Final = 64
NAMES_LIMIT: Final = 1024


class HandlerRoom:
    """Attempts are added, and given to cores by `fill`; results of those that end otherwise than by a core's word are
    in `ended`."""

    def __init__(self, name: str, files: tuple[str, ...], limit: int) -> None:
        self.files = files
        self.cores = HandlerCores(limit)
        self.handlers: tuple[str, ...] = ()
        self.plain: tuple[str, ...] = ()
        """Names, as a core told them last."""
        self.problem = ""
        """Why the files cannot be used; empty when they can, or nobody knows yet."""
        self.held: dict[int, HandlerAttempt] = {}
        """All that wait or run here, of all partitions, by fence: one store gives none to two of them."""
        self.ended: dict[int, list[TaskResult]] = {}
        """By partition, to be taken by whoever called."""
        self.began: dict[int, list[int]] = {}
        """Likewise: attempts that run since longer than a moment."""
        self.waiting_bytes = 0
        """Bytes of the attempts that no core was told of."""
        self.unknown_results = 0
        """Results of attempts that were in no core."""
        self._load = Load(files, 1, name)
        self._waiting: OrderedDict[int, HandlerAttempt] = OrderedDict()
        self._alone: OrderedDict[int, HandlerAttempt] = OrderedDict()
        """Those among the waiting that want a core of their own."""
        self._weights: dict[str, int] = {}
        """Of plain handlers."""
        self._lengths_us: dict[str, float] = {}
        """How long they take, averaged with the latest weighing most; 0 before the first."""
        self._began = 0
        """How many did ever."""
        self._failed_starts = 0
        self._scan_at = NEVER
        self._retry_at = NEVER
        self._claims = 0
        """So many of those that load are for attempts that want to be alone."""

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._alone)

    @property
    def running(self) -> int:
        return len(self.held) - self.waiting

    @property
    def next_tick_at(self) -> int:
        return min(self.cores.next_look_at, self._scan_at, self._retry_at)

    @property
    def is_broken(self) -> bool:
        """Nothing can run here."""
        return not self.files or (self.problem != "" and not self.cores.open)

    # What happens.

    def start(self, now: int) -> list[HandlerEffect]:
        return self._start_core(now) if self.files else []

    def add(self, task: HandedTask, size_bytes: int, partition: int = 0) -> None:
        """Somebody wants this run; `fill` has to follow."""
        attempt = HandlerAttempt(
            task, size_bytes, task.fence, task.job, task.id, task.handler, task.attempt_ms, partition
        )
        self.held[task.fence] = attempt
        self.waiting_bytes += size_bytes
        waiting = self._alone if task.alone or is_bounded(task) else self._waiting
        waiting[task.fence] = attempt

    def loaded(self, now: int, number: int, message: Loaded) -> list[HandlerEffect]:
        core = self.cores.by_number.get(number)
        if core is None or core.stage is not CoreStage.LOADING:
            return []
        if message.problem:
            return self._not_loaded(now, core, message.problem)
        names = tuple(name for name in message.handlers if len(name) <= NAME_LIMIT)[:NAMES_LIMIT]
        effects: list[HandlerEffect] = [HandlersLoaded(names)] if self.problem or names != self.handlers else []
        self.handlers, self.problem = names, ""
        self.plain = tuple(name for name in message.plain if name in names)
        self._failed_starts, self._retry_at = 0, NEVER
        for name in message.plain:
            self._weights.setdefault(name, FULL)
            self._lengths_us.setdefault(name, 0.0)
        core.stage = CoreStage.READY
        self.cores.idle(now, core)
        self.cores.review()
        for attempt in core.tasks.values():  # of a core with bounds, which was started for it
            self._give(now, core, attempt)
        if core.batch:
            effects += self._tell_batch(core)
        return effects + self.fill(now)

    def ran(self, now: int, number: int, results: Iterable[TaskResult]) -> list[HandlerEffect]:
        """Results of attempts that are in this core are in `ended` then; `fill` has to follow."""
        core = self.cores.by_number.get(number)
        ended, held = self.ended, self.held
        for result in results:
            attempt = None if core is None else core.tasks.pop(result.fence, None)
            if core is None or attempt is None:
                self.unknown_results += 1
                continue
            del held[result.fence]
            core.load -= attempt.weight
            if attempt.is_plain:
                self._measured(now, core, attempt, result.took_us)
            ended.setdefault(attempt.partition, []).append(result)
        if core is None or core.tasks or core.stage is not CoreStage.READY:
            return []
        self.cores.idle(now, core)
        return [self.cores.end(now, core)] if core.is_alone or core.is_surplus or core.is_spent else []

    def spent(self, now: int, number: int) -> list[HandlerEffect]:
        """What runs in this core may end as it would; then it ends, with what an attempt left behind."""
        core = self.cores.by_number.get(number)
        if core is None or core.stage is not CoreStage.READY or core.is_spent:
            return []
        core.is_spent = True
        self.cores.spent += 1
        effects: list[HandlerEffect] = []
        if not core.tasks:
            effects.append(self.cores.end(now, core))
        else:
            self.cores.review()
        left = [other for other in self.cores if other.is_spent and other.stage is CoreStage.READY]
        if len(left) > max(SPENT_LIMIT, self.cores.limit):
            # They use up the machine: whoever is in it runs again.
            effects.append(self.cores.kill(now, left[0], "neighbour"))
        return effects + self.fill(now)

    def exited(self, now: int, number: int, facts: ExitFacts) -> list[HandlerEffect]:
        core = self.cores.by_number.pop(number, None)
        if core is None:
            return []
        effects: list[HandlerEffect] = []
        is_only = len(core.tasks) == 1
        for attempt in core.tasks.values():
            del self.held[attempt.fence]
            if attempt.task is not None:
                self.waiting_bytes -= attempt.size_bytes
            self.end(attempt.partition, last_word(now, core, attempt, facts, is_only=is_only))
        if core.stage <= CoreStage.READY:
            self.cores.died += 1
        if not core.is_bounded and (core.stage is CoreStage.LOADING or core.reason == "load"):
            effects += self._failed_to_start(now, core, facts)
        self.cores.review()
        return effects + self.fill(now)

    def end(self, partition: int, result: TaskResult) -> None:
        """What became of an attempt, for its partition."""
        self.ended.setdefault(partition, []).append(result)

    def of_partition(self, partition: int) -> list[int]:
        """Fences of all that wait or run here."""
        return [fence for fence, attempt in self.held.items() if attempt.partition == partition]

    def recall(
        self, now: int, fences: Iterable[int], grace_ns: int, partition: int = 0
    ) -> tuple[list[HandlerEffect], list[int]]:
        """Stop these, and kill the cores of those that have not stopped after the grace. Answers with those that are
        not here, too: an attempt of another partition is none of these."""
        effects: list[HandlerEffect] = []
        unknown: list[int] = []
        stops: dict[int, list[int]] = {}
        for fence in fences:
            attempt = self.held.get(fence)
            if attempt is None or attempt.partition != partition:
                unknown.append(fence)
            elif attempt.core is None:
                self._forget_waiting(attempt)
                self.end(partition, without_run(attempt, "cancelled", "cancelled", "it had not begun"))
            else:
                core, kill_at = attempt.core, now + grace_ns
                attempt.kill_at = min(attempt.kill_at, kill_at) if attempt.verdict else kill_at
                attempt.verdict = attempt.verdict or "cancelled"
                if core.stage is CoreStage.LOADING:
                    effects.append(self.cores.kill(now, core, "neighbour"))
                elif core.stage is CoreStage.READY:
                    stops.setdefault(core.number, []).append(fence)
                    self._scan_at = min(self._scan_at, attempt.kill_at)
        effects += [TellHandlers(core, StopTasks(tuple(stopped))) for core, stopped in stops.items()]
        return effects, unknown

    def refuse_waiting(self, cause: str, text: str) -> None:
        """Whatever has not begun may run elsewhere."""
        for attempt in [*self._waiting.values(), *self._alone.values()]:
            self._forget_waiting(attempt)
            self.end(attempt.partition, without_run(attempt, "refused", cause, text))

    def kill_all(self, now: int) -> list[HandlerEffect]:
        """The lease is over: nothing may run here. Cores that have nothing to do end by their own clock as well."""
        effects: list[HandlerEffect] = []
        for core in self.cores:
            if core.stage is not CoreStage.KILLED:
                effects.append(self.cores.kill(now, core, "lease"))
            elif core.tasks:
                core.reason = "lease"
        return effects + self.fill(now)

    def drop(self, now: int, partition: int = 0) -> list[HandlerEffect]:
        """Nobody wants to hear of anything of this partition that waits or runs here: it ends without a result. What
        shares its process ends as the neighbour of one that had to be ended."""
        effects: list[HandlerEffect] = []
        for fence in self.of_partition(partition):
            attempt = self.held.pop(fence)
            if attempt.task is not None:
                self.waiting_bytes -= attempt.size_bytes
            if attempt.core is None:
                self._waiting.pop(fence, None)
                self._alone.pop(fence, None)
                continue
            del attempt.core.tasks[fence]
            if attempt.core.stage is not CoreStage.KILLED:
                effects.append(self.cores.kill(now, attempt.core, "neighbour"))
        self.began.pop(partition, None)
        return effects

    def set_limit(self, now: int, limit: int) -> list[HandlerEffect]:
        """So many cores are left by what else runs on this worker."""
        self.cores.limit = limit
        self.cores.review()
        idle = [core for core in self.cores if core.is_surplus and not core.tasks and core.stage <= CoreStage.READY]
        return [*(self.cores.end(now, core) for core in idle), *self.fill(now)]

    def try_again(self, now: int) -> list[HandlerEffect]:
        if not self.problem or self.cores.loading:
            return []
        self._retry_at = now + RETRY_NS
        return self._start_core(now)

    def tick(self, now: int) -> list[HandlerEffect]:
        effects: list[HandlerEffect] = []
        if now >= self.cores.next_look_at:
            effects += self._look_after(now)
        if now >= self._scan_at:
            effects += self._scan(now)
        if now >= self._retry_at:
            self._retry_at = now + RETRY_NS
            effects += self.try_again(now)
        return effects + self.fill(now)

    # Giving attempts to cores.

    def fill(self, now: int) -> list[HandlerEffect]:
        """Give out what waits, and start cores for what is left."""
        effects: list[HandlerEffect] = []
        self._claims = 0
        if self._alone and self.cores.limit > 0:
            effects += self._fill_alone(now)
        if self._waiting and self.cores.open:
            effects += self._fill_shared(now)
        if not self.files or self.problem:
            return effects
        if self.cores.shared == 0:
            effects += self._start_core(now)
        if self._waiting and self.cores.count < self.cores.limit:
            coming = max(0, self.cores.loading - self._claims)
            for _ in range(min(len(self._waiting) - coming, self.cores.limit - self.cores.count)):
                effects += self._start_core(now)
        return effects

    def _fill_shared(self, now: int) -> list[HandlerEffect]:
        """Each to the core with the fewest in its hands."""
        waiting = self._waiting
        touched: list[CoreState] = []
        heap = [(core.load, core.number, core) for core in self.cores.open if core.load < FULL]
        heapify(heap)
        while waiting and heap:
            core = heap[0][2]
            if not core.batch:
                touched.append(core)
            attempt = waiting.popitem(last=False)[1]
            core.tasks[attempt.fence] = attempt
            self._give(now, core, attempt)
            if core.load >= FULL:
                heappop(heap)
            elif len(heap) > 1:
                heapreplace(heap, (core.load, core.number, core))
        return [effect for core in touched for effect in self._tell_batch(core)]

    def _fill_alone(self, now: int) -> list[HandlerEffect]:
        """A core with nothing to do becomes that of an attempt without bounds; others are started for theirs."""
        effects: list[HandlerEffect] = []
        coming = self.cores.loading
        for attempt in list(islice(self._alone.values(), self.cores.limit + 1)):
            ready = [
                core for core in self.cores if core.stage is CoreStage.READY and not core.is_alone and not core.is_spent
            ]
            idle = [core for core in ready if not core.tasks]
            alone = self.cores.lone + self._claims
            if alone and alone + len(ready) - len(idle) >= self.cores.limit:
                break
            if is_bounded(attempt.task):
                while idle and self.cores.shared > 1 and self.cores.count >= self.cores.limit:
                    effects.append(self.cores.end(now, idle.pop()))
                effects += self._start_core(now, attempt)
            elif idle:
                core = idle[-1]
                core.is_alone = True
                core.tasks[attempt.fence] = self._alone.pop(attempt.fence)
                self._give(now, core, attempt)
                self.cores.review()
                effects += self._tell_batch(core)
            elif coming or not self.problem:
                self._claims += 1
                if not coming:
                    effects += self._start_core(now)
                coming = max(0, coming - 1)
        return effects

    def _give(self, now: int, core: CoreState, attempt: HandlerAttempt) -> None:
        weight = self._weights.get(attempt.handler, 0)
        if weight:
            attempt.weight, attempt.is_plain = weight, True
        attempt.core, attempt.run_at = core, now
        core.load += attempt.weight
        core.batch.append(attempt)
        self.waiting_bytes -= attempt.size_bytes
        look_ns = BEGAN_NS if attempt.limit_ms == 0 else min(BEGAN_NS, attempt.limit_ms * MILLISECOND)
        self._scan_at = min(self._scan_at, now + look_ns)

    def _tell_batch(self, core: CoreState) -> list[HandlerEffect]:
        told: list[HandlerEffect] = []
        for part in in_parts(core.batch, _size_of, RUN_LIMIT_BYTES):
            tasks = tuple(attempt.task for attempt in part if attempt.task is not None)
            told.append(TellHandlers(core.number, RunTasks(tasks)))
            for attempt in part:
                attempt.task = None
        core.batch = []
        return told

    def _measured(self, now: int, core: CoreState, attempt: HandlerAttempt, took_us: int) -> None:
        core.free_at = now
        self._scan_at = min(self._scan_at, now + BEGAN_NS)
        known = self._lengths_us[attempt.handler]
        length_us = known + (took_us - known) / 8 if known else took_us + 1.0
        self._lengths_us[attempt.handler] = length_us
        self._weights[attempt.handler] = max(1, min(FULL, round(length_us * 1000 * FULL / PLAIN_AHEAD_NS)))

    def _forget_waiting(self, attempt: HandlerAttempt) -> None:
        del self.held[attempt.fence]
        self._waiting.pop(attempt.fence, None)
        self._alone.pop(attempt.fence, None)
        self.waiting_bytes -= attempt.size_bytes

    # Starting and ending cores.

    def _start_core(self, now: int, attempt: HandlerAttempt | None = None) -> list[HandlerEffect]:
        """One that is shared, or with the bounds of an attempt and for it alone."""
        task = None if attempt is None else attempt.task
        core = self.cores.draw(now, is_bounded=task is not None)
        number = core.number
        start = StartHandlers(number)
        if attempt is not None and task is not None:
            start = StartHandlers(number, task.memory_bytes, task.cpu_ms, task.files)
            del self._alone[attempt.fence]
            attempt.core = core
            core.tasks[attempt.fence] = attempt
        self.cores.review()
        return [start, TellHandlers(number, self._load)]

    def _not_loaded(self, now: int, core: CoreState, problem: str) -> list[HandlerEffect]:
        """Within bounds it may be their fault, without it is that of the files."""
        effects: list[HandlerEffect] = [self.cores.end(now, core)]
        for attempt in core.tasks.values():
            del self.held[attempt.fence]
            self.waiting_bytes -= attempt.size_bytes
            text = f"its core could not load the handlers within the task's bounds: {problem}"[:ERROR_LIMIT]
            result = TaskResult(
                attempt.fence, "failed", cause="load", error=text, alone=True, job=attempt.job, task=attempt.id
            )
            self.end(attempt.partition, result)
        core.tasks = {}
        if not core.is_bounded:
            effects += self._broken(now, problem)
        return effects + self.fill(now)

    def _failed_to_start(self, now: int, core: CoreState, facts: ExitFacts) -> list[HandlerEffect]:
        self._failed_starts += 1
        if core.reason == "load":
            return self._broken(now, f"the handlers' files were not loaded within {LOAD_LIMIT_NS // SECOND} s")
        if self._failed_starts < STARTS_LIMIT:
            return []
        return self._broken(now, f"cores end while they load the handlers' files: {facts.text or facts.cause}")

    def _broken(self, now: int, problem: str) -> list[HandlerEffect]:
        problem = problem[:PROBLEM_LIMIT]
        effects: list[HandlerEffect] = [HandlersBroken(problem)] if problem != self.problem else []
        self.problem = problem
        self._retry_at = now + RETRY_NS
        self.cores.review()
        if self.is_broken:
            self.refuse_waiting("handlers", f"this worker cannot load its handlers: {problem}"[:ERROR_LIMIT])
        return effects

    # Time.

    def _look_after(self, now: int) -> list[HandlerEffect]:
        orders, silent = self.cores.look_after(now)
        effects: list[HandlerEffect] = [*orders]
        text = "it was killed, and nothing was heard of its end"
        for number in silent:
            effects += self.exited(now, number, ExitFacts("SIGKILL", signal="SIGKILL", text=text))
        return effects

    def _scan(self, now: int) -> list[HandlerEffect]:
        """Who runs long enough to be told of, who too long, and whose grace is over."""
        effects: list[HandlerEffect] = []
        at = NEVER
        began = self._began
        for core in self.cores:
            if core.stage is CoreStage.READY and core.tasks:
                over, core_at = self._scan_core(now, core)
                effects += over
                at = min(at, core_at)
        self._scan_at = at
        if self._began > began and self.running > self.cores.count and self.cores.count < self.cores.limit:
            # They share cores though there are others: the next ones need not.
            if not self.cores.loading and not self.problem:
                effects += self._start_core(now)
        return effects

    def _scan_core(self, now: int, core: CoreState) -> tuple[list[HandlerEffect], int]:
        at = NEVER
        late: list[int] = []
        has_plain = False
        for attempt in core.tasks.values():
            run_at = attempt.run_at
            is_queued = attempt.is_plain and has_plain
            if attempt.is_plain and not has_plain:
                has_plain = True
                run_at = max(run_at, core.free_at)
            if attempt.verdict:
                if now >= attempt.kill_at:
                    return [self.cores.kill(now, core, "neighbour")], NEVER
                at = min(at, attempt.kill_at)
                continue
            if is_queued:
                continue
            if not attempt.is_told:
                if now >= run_at + BEGAN_NS:
                    attempt.is_told = True
                    self.began.setdefault(attempt.partition, []).append(attempt.fence)
                    self._began += 1
                else:
                    at = min(at, run_at + BEGAN_NS)
            if attempt.limit_ms:
                until = run_at + attempt.limit_ms * MILLISECOND
                if now >= until:
                    attempt.verdict, attempt.kill_at = "timeout", now + STOP_LIMIT_NS
                    late.append(attempt.fence)
                    until = attempt.kill_at
                at = min(at, until)
        return ([TellHandlers(core.number, StopTasks(tuple(late), "timeout"))] if late else []), at


def _size_of(attempt: HandlerAttempt) -> int:
    return attempt.size_bytes
