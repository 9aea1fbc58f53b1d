"""Which core processes of a worker make progress: those whose event loop turns, whatever their users wait for.

A process says once a second that its loop turns. One that has not for a while is stalled, then stuck; both are told
with its Python stack. Silence is counted by the worker's own looks: of the time in which the worker itself stood still
next to nothing counts, for then it could not hear.

Decision: docs/decisions/0045-a-core-works-while-its-loop-turns.md.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from talka.units import NEVER, SECOND
from talka.wire.jobs import STACK_LIMIT, QuietState
from talka.work.deadlines import Deadline, DeadlineTerms, Granted


class TurnLimits(msgspec.Struct, frozen=True):
    look_ns: int = SECOND
    """Between two looks; one that comes late counts as two."""
    stalled_ns: int = 10 * SECOND
    stuck_ns: int = 30 * SECOND
    deadline_ns: int = 60 * SECOND
    """Of silence. One that computes, as its processor time shows, gets extensions."""
    terms: DeadlineTerms = DeadlineTerms(grace_ns=0)
    """Its code would not hear a warning, as its loop does not turn."""
    stack_ns: int = 5 * SECOND
    """Between two looks at the stack of one that is quiet."""


TURN_LIMITS: Final = TurnLimits()


class QuietNews(msgspec.Struct, frozen=True):
    """A process is in another state now."""

    process: int
    state: QuietState
    quiet_ns: int


class QuietProcess:
    """One process, as it was heard of and seen."""

    def __init__(self) -> None:
        self.condition: QuietState = "turns"
        self.quiet_ns = 0
        self.since_ns = 0
        """When it last turned."""
        self.stack = ""
        self.is_given_up = False
        self.deadline: Deadline | None = None
        """In nanoseconds of silence, while there is one."""
        self._cpu_ns = 0
        self._cpu_before_ns = -1
        """When it was first seen quiet; -1: it was not."""
        self.stack_at = 0

    def saw(self, cpu_ns: int, stack: str) -> bool:
        """It was looked at. Whether its stack is the first that is known of this silence."""
        self._cpu_ns = cpu_ns
        if self._cpu_before_ns < 0:
            self._cpu_before_ns = cpu_ns
        is_first = bool(stack) and not self.stack
        self.stack = stack[:STACK_LIMIT] or self.stack
        return is_first

    @property
    def computed_s(self) -> int:
        """Whole seconds of processor time since it is quiet: a thread that only waits uses a little, too."""
        return max(0, self._cpu_ns - self._cpu_before_ns) // SECOND


class CoreTurns:
    """Call `turned` for each word, `heard` for whatever else a process says, `gone` when it has ended, `tick` when
    `next_tick_at` has come. A process that never said a word is not judged: how long it may take to begin is for others
    to say."""

    def __init__(self, limits: TurnLimits = TURN_LIMITS) -> None:
        self.next_tick_at = NEVER
        self.version = 0
        """Grows whenever somebody should be told."""
        self._limits = limits
        self._looked_at = 0
        self._processes: dict[int, QuietProcess] = {}
        """Bounded by who calls: of those that run."""

    def __iter__(self) -> Iterator[tuple[int, QuietProcess]]:
        """Those that are quiet."""
        return iter([(number, one) for number, one in self._processes.items() if one.condition != "turns"])

    def turned(self, now: int, process: int) -> list[QuietNews]:
        known = self._processes.get(process)
        if not self._processes:
            self._looked_at, self.next_tick_at = now, now + self._limits.look_ns
        if known is None:
            self._processes[process] = QuietProcess()
            return []
        if known.condition == "turns":
            known.quiet_ns = 0
            return []
        self._processes[process] = QuietProcess()
        self.version += 1
        return [QuietNews(process, "turns", known.quiet_ns)]

    def heard(self, now: int, process: int) -> list[QuietNews]:
        """It said something else, which its loop did."""
        return self.turned(now, process) if process in self._processes else []

    def saw(self, process: int, cpu_ns: int, stack: str) -> bool:
        """What a look at it showed. Whether it is the first stack of this silence."""
        known = self._processes.get(process)
        if known is None or known.condition == "turns":
            return False
        is_first = known.saw(cpu_ns, stack)
        self.version += is_first
        return is_first

    def gone(self, process: int) -> None:
        known = self._processes.pop(process, None)
        if known is not None and known.condition != "turns":
            self.version += 1
        if not self._processes:
            self.next_tick_at = NEVER

    def silence_ns(self, now: int, one: QuietProcess) -> int:
        """For how long it is quiet, also since the last look."""
        return one.quiet_ns + self._passed_ns(now)

    def _passed_ns(self, now: int) -> int:
        """Since the last look, as far as it counts."""
        return min(now - self._looked_at, 2 * self._limits.look_ns)

    def tick(self, now: int) -> list[QuietNews]:
        if now < self.next_tick_at:
            return []
        limits = self._limits
        passed_ns = self._passed_ns(now)
        self._looked_at, self.next_tick_at = now, now + limits.look_ns
        news: list[QuietNews] = []
        for number, one in self._processes.items():
            one.quiet_ns += passed_ns
            state: QuietState = "turns"
            if one.quiet_ns >= limits.stalled_ns:
                state = "stuck" if one.quiet_ns >= limits.stuck_ns else "stalled"
            if state != one.condition:
                one.condition, one.since_ns = state, now - one.quiet_ns
                one.deadline = one.deadline or Deadline(limits.deadline_ns, limits.terms)
                news.append(QuietNews(number, state, one.quiet_ns))
        self.version += len(news)
        return news

    def to_look_at(self, now: int) -> list[int]:
        """Those whose stack should be looked at now."""
        found = [number for number, one in self if now >= one.stack_at]
        for number in found:
            self._processes[number].stack_at = now + self._limits.stack_ns
        return found

    def overdue(self, may_end: Callable[[int], bool]) -> list[tuple[int, int]]:
        """Processes, of those that may be ended, whose deadline is over, and how long they were quiet. Each is told
        once."""
        found: list[tuple[int, int]] = []
        for number, one in self:
            assert one.deadline is not None, "it has one from when it is quiet"
            if one.is_given_up or one.quiet_ns < one.deadline.until or not may_end(number):
                continue
            if not isinstance(one.deadline.tick(one.quiet_ns, one.computed_s), Granted):
                one.is_given_up = True
                found.append((number, one.quiet_ns))
        return found
