"""Which core each attempt is given to, and for whose handlers cores are started: those that there are, are shared by
the worker's own files and by every bundle that something here needs.

Code that is alone has all of them. Where others want some too, each has its share; a core that has nothing to do gives
way at once, one that is busy after its turn.

Decisions: docs/decisions/0022-who-runs-a-task.md, docs/decisions/0050-handlers-that-travel.md.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Final

from talka.control.tasks.parts import in_parts
from talka.control.worker.effects import HandlerEffect, StartHandlers, TellHandlers
from talka.control.worker.handlers_attempt import CoreStage, CoreState, HandlerAttempt, is_bounded
from talka.control.worker.handlers_code import OWN, HandlerCode
from talka.control.worker.handlers_cores import HandlerCores
from talka.control.worker.handlers_outbox import HandlerLimits
from talka.units import MILLISECOND, NEVER
from talka.wire.shards import BundleSource
from talka.wire.tasks import HandedBundle, Load, RunTasks

FULL: Final = 64
"""So many attempts are in one core's hands; one that weighs more counts as several."""
RUN_LIMIT_BYTES: Final = 8 * 1024 * 1024
"""Of what a core is told at once, unless one task alone is larger."""
BEGAN_NS: Final = 100 * MILLISECOND
"""What runs for so long is worth a word."""


class HandlerFilling:
    """What waits, and the cores. What happens to them is decided by `HandlerRoom`, which is the only kind of this."""

    def __init__(self, name: str, files: tuple[str, ...], limit: int, limits: HandlerLimits) -> None:
        self.cores = HandlerCores(limit, limits.idle_ns)
        self.held: dict[int, HandlerAttempt] = {}
        """All that wait or run here, of all partitions, by fence: one store gives none to two of them."""
        self.waiting_bytes = 0
        """Bytes of the attempts that no core was told of."""
        self._name = name
        self._turn_ns = limits.turn_ns
        self._own = HandlerCode(OWN, Load(files, 1, name))
        self._codes: dict[str, HandlerCode] = {OWN: self._own}
        """By digest: the worker's own files, and bundles that something here needs."""
        self._scan_at = NEVER
        """When somebody runs for long, or for too long."""
        self._turn_at = NEVER
        """When a core that is busy may be asked to leave its place."""
        self._turns = 0
        self._has_leaving = False

    @property
    def handlers(self) -> tuple[str, ...]:
        """The worker's own, as a core told them last."""
        return self._own.handlers

    @property
    def plain(self) -> tuple[str, ...]:
        """Those of them that are plain functions."""
        return self._own.plain

    @property
    def problem(self) -> str:
        """Why the worker's own files cannot be used; empty when they can, or nobody knows yet."""
        return self._own.problem

    @property
    def bundles(self) -> list[str]:
        """Digests of those that something here needs."""
        return [digest for digest in self._codes if digest]

    @property
    def awaited(self) -> list[str]:
        """Those of them that are on their way."""
        if len(self._codes) == 1:
            return []
        return [code.digest for code in self._codes.values() if not code.is_here]

    @property
    def waiting(self) -> int:
        return sum([len(code.waiting) + len(code.alone) for code in self._codes.values()])

    def why_not(self, digest: str) -> str:
        """What is known to be wrong with a bundle; empty: nothing."""
        code = self._codes.get(digest)
        return "" if code is None or self.cores.open.get(digest) else code.problem

    def use(self, bundle: HandedBundle, *, is_here: bool) -> None:
        """Attempts follow that need this bundle."""
        if bundle.digest not in self._codes:
            source = BundleSource(f"blob:{bundle.digest}", bundle.digest, bundle.files[0], "", {})
            load = Load(bundle.files, 1, self._name, source)
            self._codes[bundle.digest] = HandlerCode(bundle.digest, load, is_here)

    # Giving attempts to cores.

    def fill(self, now: int) -> list[HandlerEffect]:
        """Give out what waits, and start cores for what is left."""
        self._turn_at = NEVER
        if len(self._codes) == 1:
            self._own.claims = 0
            self._stay()
            if not self._own.has_waiting and self.cores.first is not None:
                return []
            return self._fill(now, self._own) + self._widen(now, self._own, self.cores.limit)
        effects: list[HandlerEffect] = []
        codes = sorted(self._codes.values(), key=_turn_of)
        for code in codes:
            code.claims = 0
        for code in codes:
            effects += self._fill(now, code)
        # A core that is ready has what waits for it by now: one that has nothing may be had by others.
        share = self._share(codes)
        for code in codes:
            effects += self._widen(now, code, share)
            if code.digest and not self._is_used(code):
                del self._codes[code.digest]
        if self._turn_at == NEVER:
            self._stay()
        return effects

    def _fill(self, now: int, code: HandlerCode) -> list[HandlerEffect]:
        effects: list[HandlerEffect] = []
        if code.alone and code.is_here and self.cores.limit > 0:
            effects += self._fill_alone(now, code)
        if code.waiting and self.cores.open.get(code.digest):
            effects += self._fill_shared(now, code)
        return effects

    def _widen(self, now: int, code: HandlerCode, share: int) -> list[HandlerEffect]:
        """More cores for what is left, as far as there are any. `share`: so many it may have while others want some."""
        effects: list[HandlerEffect] = []
        cores = self.cores
        if not code.is_usable:
            return effects
        if code is self._own and cores.first is None:
            effects += self._start_core(now, code)
        while len(code.waiting) > max(0, cores.loading.get(code.digest, 0) - code.claims):
            if cores.of.get(code.digest, 0) - self._resting(code) >= share:
                break
            if cores.count < cores.limit:
                effects += self._start_core(now, code)
                continue
            ended = self._make_room(now, code, share)
            if ended is None:
                break
            effects += ended
            if cores.open.get(code.digest):
                effects += self._fill_shared(now, code)
        return effects

    def _resting(self, code: HandlerCode) -> bool:
        return code is self._own and self.cores.first is not None and self.cores.first.is_resting

    def _make_room(self, now: int, code: HandlerCode, share: int) -> list[HandlerEffect] | None:
        """A core of other code that has nothing to do gives way, at once; one that is busy for long is given nothing
        more. None: not yet."""
        if self.cores.limit <= 0:
            return None
        others = [
            core
            for core in self.cores
            if core.code != code.digest and core.stage is CoreStage.READY and not (core.is_alone or core.is_spent)
        ]
        for core in others:
            if core.tasks or core.is_resting:
                continue
            if core is self.cores.first:  # it rests from now on
                core.is_leaving = False
                return self._start_core(now, code)
            return [self.cores.end(now, core)]
        if any([core.is_leaving for core in others]):
            self._turn_at = min(self._turn_at, now + self._turn_ns)
            return None
        has_none = not self.cores.of.get(code.digest, 0) - self._resting(code)
        able = [core for core in others if core.tasks and (has_none or self.cores.of[core.code] > share)]
        if able:
            most = max([self.cores.of[core.code] for core in able])
            core = min([core for core in able if self.cores.of[core.code] == most], key=_busy_since)
            at = core.busy_since + self._turn_ns
            if now >= at:
                core.is_leaving = self._has_leaving = True
                self.cores.review()
                at = now + self._turn_ns
            self._turn_at = min(self._turn_at, at)
        return None

    def _share(self, codes: Sequence[HandlerCode]) -> int:
        """Of the cores, for each of those that want any."""
        busy = dict.fromkeys([core.code for core in self.cores if core.tasks])
        wanting = sum([code.has_waiting or code.digest in busy for code in codes])
        return max(1, -(-self.cores.limit // max(1, wanting)))

    def _stay(self) -> None:
        """Nobody waits for a place any more."""
        if not self._has_leaving:
            return
        self._has_leaving = False
        for core in self.cores:
            core.is_leaving = False
        self.cores.review()

    def _is_used(self, code: HandlerCode) -> bool:
        """Something here needs it, or is to know what was wrong with it."""
        return code.has_waiting or bool(code.problem) or any([core.code == code.digest for core in self.cores])

    def _fill_shared(self, now: int, code: HandlerCode) -> list[HandlerEffect]:
        """Each to the core with the fewest in its hands."""
        waiting = code.waiting
        touched: list[CoreState] = []
        heap = [(core.load, core.number, core) for core in self.cores.open[code.digest] if core.load < FULL]
        heapify(heap)
        while waiting and heap:
            core = heap[0][2]
            if not core.batch:
                touched.append(core)
            attempt = waiting.popitem(last=False)[1]
            core.tasks[attempt.fence] = attempt
            self._give(now, code, core, attempt)
            if core.load >= FULL:
                heappop(heap)
            elif len(heap) > 1:
                heapreplace(heap, (core.load, core.number, core))
        return [effect for core in touched for effect in self._tell_batch(core)]

    def _fill_alone(self, now: int, code: HandlerCode) -> list[HandlerEffect]:
        """A core with nothing to do becomes that of an attempt without bounds; others are started for theirs."""
        effects: list[HandlerEffect] = []
        coming = self.cores.loading.get(code.digest, 0)
        for attempt in list(islice(code.alone.values(), self.cores.limit + 1)):
            ready = [
                core for core in self.cores if core.stage is CoreStage.READY and not core.is_alone and not core.is_spent
            ]
            idle = [core for core in ready if not core.tasks]
            own = [core for core in idle if core.code == code.digest]
            idle = [core for core in idle if not core.is_resting and (core in own or not self._waits(core.code))]
            claims = sum([each.claims for each in self._codes.values()])
            alone = self.cores.lone + claims
            if alone and alone + sum([bool(core.tasks) for core in ready]) >= self.cores.limit:
                break
            if is_bounded(attempt.task):
                effects += self._thin_out(now, idle)
                effects += self._start_core(now, code, attempt)
            elif own:
                core = own[-1]
                core.is_alone = True
                core.tasks[attempt.fence] = code.alone.pop(attempt.fence)
                self._give(now, code, core, attempt)
                self.cores.review()
                effects += self._tell_batch(core)
            elif coming or not code.problem:
                code.claims += 1
                if not coming:
                    if code.digest:
                        effects += self._thin_out(now, idle)
                    effects += self._start_core(now, code)
                coming = max(0, coming - 1)
        return effects

    def _waits(self, digest: str) -> bool:
        return self._codes[digest].has_waiting

    def _thin_out(self, now: int, idle: list[CoreState]) -> list[HandlerEffect]:
        """Those that have nothing to do give way, but for the last."""
        effects: list[HandlerEffect] = []
        while idle and self.cores.shared > 1 and self.cores.count >= self.cores.limit:
            effects.append(self.cores.end(now, idle.pop()))
        return effects

    def _give(self, now: int, code: HandlerCode, core: CoreState, attempt: HandlerAttempt) -> None:
        if len(core.tasks) == 1:
            core.busy_since = now
        else:
            attempt.has_company = True
            if len(core.tasks) == 2:  # of more than two, each has been told so
                next(iter(core.tasks.values())).has_company = True
        weight = code.weights.get(attempt.handler, 0)
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
        parts = [core.batch] if len(core.batch) == 1 else in_parts(core.batch, _size_of, RUN_LIMIT_BYTES)
        for part in parts:
            tasks = tuple([attempt.task for attempt in part if attempt.task is not None])
            told.append(TellHandlers(core.number, RunTasks(tasks)))
            for attempt in part:
                attempt.task = None
        core.batch = []
        return told

    def _start_core(self, now: int, code: HandlerCode, attempt: HandlerAttempt | None = None) -> list[HandlerEffect]:
        """One that is shared, or with the bounds of an attempt and for it alone."""
        self._turns += 1
        code.turn = self._turns
        task = None if attempt is None else attempt.task
        core = self.cores.draw(now, is_bounded=task is not None, code=code.digest)
        number = core.number
        start = StartHandlers(number)
        if attempt is not None and task is not None:
            start = StartHandlers(number, task.memory_bytes, task.cpu_ms, task.files)
            del code.alone[attempt.fence]
            attempt.core = core
            core.tasks[attempt.fence] = attempt
        self.cores.review()
        return [start, TellHandlers(number, code.load)]


def _turn_of(code: HandlerCode) -> int:
    return code.turn


def _busy_since(core: CoreState) -> int:
    return core.busy_since


def _size_of(attempt: HandlerAttempt) -> int:
    return attempt.size_bytes
