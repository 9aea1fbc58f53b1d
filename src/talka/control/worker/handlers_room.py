"""The attempts at tasks on a worker: which wait, which core each is given to, and when one has taken too long.

See docs/decisions/0022-who-runs-a-task.md and 0024-corner-cases-of-tasks.md.
"""

from collections.abc import Iterable
from typing import Final

from talka.control.worker.effects import (
    ExitFacts,
    HandlerEffect,
    HandlersBroken,
    HandlersLoaded,
    TellHandlers,
)
from talka.control.worker.handlers_attempt import (
    AttemptTime,
    CoreStage,
    CoreState,
    HandlerAttempt,
    is_bounded,
    is_over,
    last_word,
    without_run,
)
from talka.control.worker.handlers_code import OWN, HandlerCode
from talka.control.worker.handlers_cores import LOAD_LIMIT_NS
from talka.control.worker.handlers_filling import BEGAN_NS, FULL, HandlerFilling
from talka.control.worker.handlers_outbox import HANDLER_LIMITS, HandlerLimits
from talka.units import MILLISECOND, NEVER, SECOND
from talka.wire.jobs import TaskLoad
from talka.wire.output_tail import Wrote
from talka.wire.tasks import (
    ERROR_LIMIT,
    HandedTask,
    Loaded,
    MoreTime,
    Said,
    StopTasks,
    TaskResult,
    TellTime,
    TimeAnswer,
    TimeTold,
    WarnTasks,
)
from talka.work.deadlines import Warned

PLAIN_AHEAD_NS: Final = 20 * MILLISECOND
"""Plain functions run one after the other: a core is given as many as it does in this time, and at least one."""
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


class HandlerRoom(HandlerFilling):
    """Attempts are added, and given to cores by `fill`; results of those that end otherwise than by a core's word are
    in `ended`."""

    def __init__(self, name: str, files: tuple[str, ...], limit: int, limits: HandlerLimits = HANDLER_LIMITS) -> None:
        super().__init__(name, files, limit, limits)
        self.files = files
        self.ended: dict[int, list[TaskResult]] = {}
        """By partition, to be taken by whoever called."""
        self.began: dict[int, list[int]] = {}
        """Likewise: attempts that run since longer than a moment."""
        self.asked: dict[int, list[MoreTime]] = {}
        """Likewise: what is asked for attempts that are late."""
        self.warned = 0
        """Attempts that were told that their time is over."""
        self.evicted = 0
        """Attempts that were ended because it was."""
        self.unknown_results = 0
        """Results of attempts that were in no core."""
        self._began = 0
        """How many did ever."""

    @property
    def running(self) -> int:
        return len(self.held) - self.waiting

    @property
    def task_load(self) -> TaskLoad:
        """What is told of it with every beat."""
        busy = [core for core in self.cores.by_number.values() if core.tasks]
        plain = [sum([attempt.is_plain for attempt in core.tasks.values()]) for core in busy]
        queued = sum([count - 1 for count in plain if count])
        return TaskLoad(self.running - queued, self.waiting + queued, len(busy))

    @property
    def next_tick_at(self) -> int:
        retry_at = min([code.retry_at for code in self._codes.values()])
        return min(self.cores.next_look_at, self._scan_at, self._turn_at, retry_at)

    @property
    def is_broken(self) -> bool:
        """Nothing of the worker's own can run here."""
        return not self.files or (self.problem != "" and not self.cores.open.get(OWN))

    @property
    def is_loading(self) -> bool:
        """Nobody knows yet which handlers the worker's own files have."""
        return bool(self.files) and not self._own.is_known

    # What happens.

    def start(self, now: int) -> list[HandlerEffect]:
        return self._start_core(now, self._own) if self.files else []

    def add(self, task: HandedTask, size_bytes: int, partition: int = 0, digest: str = OWN) -> None:
        """Somebody wants this run; `fill` has to follow. A bundle was made known to `use` before."""
        attempt = HandlerAttempt(
            task, size_bytes, task.fence, task.job, task.id, task.handler, task.attempt_ms, partition, code=digest
        )
        attempt.on_timeout = task.on_timeout
        self.held[task.fence] = attempt
        self.waiting_bytes += size_bytes
        code = self._codes[digest]
        waiting = code.alone if task.alone or is_bounded(task) else code.waiting
        waiting[task.fence] = attempt

    def arrived(self, now: int, digest: str) -> list[HandlerEffect]:
        """A bundle that was awaited is here."""
        self._codes[digest].is_here = True
        return self.fill(now)

    def never_came(self, digest: str, text: str) -> None:
        """A bundle that was awaited cannot be had: what waits for it may run elsewhere."""
        self._refuse(self._codes.pop(digest), "bundle", text)

    def loaded(self, now: int, number: int, message: Loaded) -> list[HandlerEffect]:
        core = self.cores.by_number.get(number)
        if core is None or core.stage is not CoreStage.LOADING:
            return []
        if message.problem:
            return self._not_loaded(now, core, message.problem)
        code = self._codes[core.code]
        names = tuple(name for name in message.handlers if len(name) <= NAME_LIMIT)[:NAMES_LIMIT]
        effects: list[HandlerEffect] = []
        if code.problem or names != code.handlers:
            effects.append(HandlersLoaded(names, code.digest))
        code.handlers, code.problem, code.is_known = names, "", True
        code.plain = tuple(name for name in message.plain if name in names)
        code.failed_starts, code.retry_at = 0, NEVER
        for name in message.plain:
            code.weights.setdefault(name, FULL)
            code.lengths_us.setdefault(name, 0.0)
        core.stage = CoreStage.READY
        self.cores.idle(now, core)
        self.cores.review()
        for attempt in core.tasks.values():  # of a core with bounds, which was started for it
            self._give(now, code, core, attempt)
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
        is_over = core.is_alone or core.is_surplus or core.is_spent
        is_over = is_over or (core.is_leaving and core is not self.cores.first)
        return [self.cores.end(now, core)] if is_over else []

    def wrote(self, core: int, wrote: Iterable[Wrote]) -> list[HandlerAttempt]:
        """What attempts in this core have written: which those are that run still."""
        state = self.cores.by_number.get(core)
        writers: list[HandlerAttempt] = []
        for one in wrote:
            attempt = None if state is None else state.tasks.get(one.fence)
            if attempt is not None:
                attempt.wrote(one.tails)
                writers.append(attempt)
        return writers

    def said(self, now: int, number: int, message: Said) -> list[HandlerEffect]:
        """What attempts in this core tell of their time."""
        told: list[TimeTold] = []
        times: list[AttemptTime] = []
        for progress in message.progress:
            if (time := self._time_of(number, progress.fence)) is not None:
                time.done = max(time.done, progress.done)
                times.append(time)
        for fence in message.heeding:
            if (time := self._time_of(number, fence)) is not None:
                time.heeds = True
                times.append(time)
        for wanted in message.wanted:
            if (time := self._time_of(number, wanted.fence)) is not None:
                told += time.want(wanted)
                times.append(time)
        self._scan_at = min([self._scan_at, *(time.next_at for time in times)])
        return [TellHandlers(number, TellTime(tuple(told)))] if told else []

    def _time_of(self, number: int, fence: int) -> AttemptTime | None:
        core = self.cores.by_number.get(number)
        attempt = None if core is None else core.tasks.get(fence)
        if core is None or attempt is None:
            return None
        if attempt.time is None:  # it has spoken, so it runs
            attempt.time = AttemptTime(attempt, max(attempt.run_at, core.free_at if attempt.is_plain else 0))
        return attempt.time

    def answered(self, now: int, answers: Iterable[TimeAnswer], partition: int = 0) -> list[HandlerEffect]:
        """Attempts have more time, or not."""
        told: dict[int, list[TimeTold]] = {}
        for answer in answers:
            attempt = self.held.get(answer.fence)
            if attempt is None or attempt.time is None or attempt.core is None or attempt.partition != partition:
                continue
            told.setdefault(attempt.core.number, []).extend(attempt.time.answered(now, answer))
            self._scan_at = min(self._scan_at, attempt.time.next_at)
        return [TellHandlers(number, TellTime(tuple(those))) for number, those in told.items() if those]

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
                self._forget_waiting(self._codes[attempt.code], attempt)
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
        for code in self._codes.values():
            self._refuse(code, cause, text)

    def _refuse(self, code: HandlerCode, cause: str, text: str) -> None:
        for attempt in [*code.waiting.values(), *code.alone.values()]:
            self._forget_waiting(code, attempt)
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
                code = self._codes[attempt.code]
                code.waiting.pop(fence, None)
                code.alone.pop(fence, None)
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
        if not self.problem or self.cores.loading.get(OWN):
            return []
        self._own.retry_at = now + RETRY_NS
        return self._start_core(now, self._own)

    def tick(self, now: int) -> list[HandlerEffect]:
        effects: list[HandlerEffect] = []
        if now >= self.cores.next_look_at:
            effects += self._look_after(now)
        if now >= self._scan_at:
            effects += self._scan(now)
        if now >= self._own.retry_at:
            self._own.retry_at = now + RETRY_NS
            effects += self.try_again(now)
        for code in self._codes.values():
            if code.digest and now >= code.retry_at:
                code.problem, code.failed_starts, code.retry_at = "", 0, NEVER
        return effects + self.fill(now)

    def _measured(self, now: int, core: CoreState, attempt: HandlerAttempt, took_us: int) -> None:
        core.free_at = now
        self._scan_at = min(self._scan_at, now + BEGAN_NS)
        code = self._codes[core.code]
        known = code.lengths_us[attempt.handler]
        length_us = known + (took_us - known) / 8 if known else took_us + 1.0
        code.lengths_us[attempt.handler] = length_us
        code.weights[attempt.handler] = max(1, min(FULL, round(length_us * 1000 * FULL / PLAIN_AHEAD_NS)))

    def _forget_waiting(self, code: HandlerCode, attempt: HandlerAttempt) -> None:
        del self.held[attempt.fence]
        code.waiting.pop(attempt.fence, None)
        code.alone.pop(attempt.fence, None)
        self.waiting_bytes -= attempt.size_bytes

    # Starting and ending cores.

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
            effects += self._broken(now, self._codes[core.code], problem)
        return effects + self.fill(now)

    def _failed_to_start(self, now: int, core: CoreState, facts: ExitFacts) -> list[HandlerEffect]:
        code = self._codes[core.code]
        code.failed_starts += 1
        if core.reason == "load":
            return self._broken(now, code, f"the handlers' files were not loaded within {LOAD_LIMIT_NS // SECOND} s")
        if code.failed_starts < STARTS_LIMIT:
            return []
        return self._broken(now, code, f"cores end while they load the handlers' files: {facts.text or facts.cause}")

    def _broken(self, now: int, code: HandlerCode, problem: str) -> list[HandlerEffect]:
        problem = problem[:PROBLEM_LIMIT]
        effects: list[HandlerEffect] = [HandlersBroken(problem, code.digest)] if problem != code.problem else []
        code.problem, code.is_known = problem, True
        code.retry_at = now + RETRY_NS
        self.cores.review()
        if not self.cores.open.get(code.digest):
            cause, whose = ("bundle", "the job's") if code.digest else ("handlers", "its")
            self._refuse(code, cause, f"this worker cannot load {whose} handlers: {problem}"[:ERROR_LIMIT])
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
        if self._began > began and self.cores.count < self.cores.limit:
            # They share cores though there are others: the next ones need not.
            code = self._crowded()
            if code is not None:
                effects += self._start_core(now, code)
        return effects

    def _crowded(self) -> HandlerCode | None:
        """Code of which more runs than it has cores."""
        for code in self._codes.values():
            running = sum([len(core.tasks) for core in self.cores if core.code == code.digest])
            if running > self.cores.of.get(code.digest, 0) and code.is_usable:
                if not self.cores.loading.get(code.digest):
                    return code
        return None

    def _scan_core(self, now: int, core: CoreState) -> tuple[list[HandlerEffect], int]:
        at = NEVER
        effects: list[HandlerEffect] = []
        late: list[int] = []
        warned: list[int] = []
        has_plain = False
        for attempt in core.tasks.values():
            run_at = attempt.run_at
            is_queued = attempt.is_plain and has_plain
            if attempt.is_plain and not has_plain:
                has_plain = True
                run_at = max(run_at, core.free_at)
            if attempt.verdict:
                if now >= attempt.kill_at:
                    hangs_unseen = any([one.verdict and not one.has_traceback for one in core.tasks.values()])
                    return [self.cores.kill(now, core, "neighbour", shows_stack=hangs_unseen)], NEVER
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
            if attempt.time is None:
                until = run_at + attempt.limit_ms * MILLISECOND
                if now < until or not attempt.limit_ms:
                    at = min(at, until if attempt.limit_ms else NEVER)
                    continue
                attempt.time = AttemptTime(attempt, run_at)
            look = attempt.time.look(now)
            if look.asks:
                self.asked.setdefault(attempt.partition, []).extend(look.asks)
            if look.told:
                effects.append(TellHandlers(core.number, TellTime(tuple(look.told))))
            if is_over(look.turn):
                attempt.verdict, attempt.kill_at = "timeout", now + STOP_LIMIT_NS
                late.append(attempt.fence)
                at = min(at, attempt.kill_at)
                continue
            if isinstance(look.turn, Warned):
                warned.append(attempt.fence)
            at = min(at, attempt.time.next_at)
        self.warned += len(warned)
        self.evicted += len(late)
        if warned:
            effects.append(TellHandlers(core.number, WarnTasks(tuple(warned))))
        if late:
            effects.append(TellHandlers(core.number, StopTasks(tuple(late), "timeout")))
        return effects, at
