"""Until when a piece of work may take, and how much more time it gets while it is late and advances.

Work that asks for more time gets it a few times, each time half of what it got before, and only if it has advanced
since. When its end has come and it gets no more, it is warned, has a while to save what it has, and is then ended or
paused. Used for workflows of load jobs, for tasks, and for core processes that do not turn.

Decision: docs/decisions/0058-more-time-is-asked-for.md.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from talka.units import MINUTE, NEVER, SECOND
from talka.work.durations import format_duration, tenths_text

OnTimeout: TypeAlias = Literal["kill", "notify", "pause"]
"""What follows the warning. kill: the work is ended after the grace. notify: it goes on up to a later, last end. pause:
after the grace it is put aside until a person resumes it."""
EXTENSION_BASE_NS: Final = 30 * SECOND
EXTENSION_LEAST_NS: Final = SECOND
EXTENSIONS_LIMIT: Final = 5
GRACE_NS: Final = 10 * SECOND
REASON_LIMIT: Final = 200
"""Characters of a reason that are kept."""
NAME_LIMIT: Final = 64


class DeadlineTerms(msgspec.Struct, frozen=True):
    """What a deadline is kept by."""

    base_ns: int = EXTENSION_BASE_NS
    """The first extension is half of it, each further one half of the one before."""
    least_ns: int = EXTENSION_LEAST_NS
    """No extension is shorter."""
    extensions: int = EXTENSIONS_LIMIT
    grace_ns: int = GRACE_NS
    """From the warning until the work is ended or paused: time to save what it has."""
    on_timeout: OnTimeout = "kill"
    last_ns: int = MINUTE
    """From the warning to the last end of work that is only notified."""

    def extension_ns(self, number: int) -> int:
        """Of the extension after `number` others."""
        return max(self.least_ns, self.base_ns >> number + 1)

    @property
    def longest_ns(self) -> int:
        """The most that all extensions and what follows the warning come to."""
        return sum(map(self.extension_ns, range(self.extensions))) + self.after_warning_ns

    @property
    def after_warning_ns(self) -> int:
        return max(self.grace_ns, self.last_ns) if self.on_timeout == "notify" else self.grace_ns


DEADLINE_TERMS: Final = DeadlineTerms()


class Extension(msgspec.Struct, frozen=True, array_like=True):
    """More time that was given, as people are told of it."""

    ns: int
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)] = ""
    """Why the work asked for it; empty: it did not say, but it advanced."""
    at_ns: int = 0
    """When, since the work began."""
    estimate_ns: int = 0
    """How much longer it thought to take; 0: it did not say."""
    name: Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)] = ""
    """Of the ask that it answers; empty: nobody asked."""


class DeadlineRecord(msgspec.Struct, frozen=True, array_like=True):
    """Of a deadline, what must outlive the process that keeps it. Instants count from when the work began: no clock of
    a process outlives it."""

    until_ns: int
    extensions: tuple[Extension, ...] = ()
    done: float = 0
    """How far the work was at the latest extension."""
    is_warned: bool = False
    is_over: bool = False
    denied: Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)] = ""
    """Why it got no more time when it last asked."""


class Granted(msgspec.Struct, frozen=True):
    """The work has more time."""

    ns: int
    left: int
    """How many more extensions there are."""
    until: int


class Denied(msgspec.Struct, frozen=True):
    """The work has no more time than before."""

    why: str
    """A clause that begins with what the work is or has: "it has not advanced ..."."""
    left: int
    until: int


class Warned(msgspec.Struct, frozen=True):
    """The end has come and no more time is given: the work is to save what it has until `until`."""

    until: int


class Evict(msgspec.Struct, frozen=True):
    """End the work now."""


class PutAside(msgspec.Struct, frozen=True):
    """Stop the work now, and keep what it has until a person resumes it."""


Turn: TypeAlias = Granted | Warned | Evict | PutAside
"""What the time brings."""


class Allowance(msgspec.Struct, frozen=True, array_like=True):
    """What work is told that asked for more time. True when it has more."""

    granted_ns: int = 0
    left: int = 0
    """How many more extensions there are."""
    ends_in_ns: int = 0
    """From when the answer was given."""
    why_not: str = ""
    """Why it has no more time; empty when it has."""

    def __bool__(self) -> bool:
        return self.granted_ns > 0

    @property
    def granted_s(self) -> float:
        return self.granted_ns / SECOND

    @property
    def ends_in_s(self) -> float:
        return self.ends_in_ns / SECOND


def more_time(now: int, answer: Granted | Denied) -> Allowance:
    ends_in_ns = max(0, answer.until - now)
    match answer:
        case Granted(ns=ns, left=left):
            return Allowance(ns, left, ends_in_ns)
        case Denied(why=why, left=left):  # pragma: no branch - the type checker sees that no answer is left
            return Allowance(0, left, ends_in_ns, why)


class Deadline:
    """Call `ask` when the work asks for more time, and `tick` once `next_at` has come.

    `done` grows with everything that the work does: without growth no extension follows another, and none is given to
    work that has done nothing.
    """

    def __init__(self, until: int, terms: DeadlineTerms = DEADLINE_TERMS, *, began_ns: int = 0) -> None:
        """`began_ns`: when the work began."""
        self.until = until
        """When the work ends; once it is warned, when it is ended or paused."""
        self.terms = terms
        self.extensions: list[Extension] = []
        """In the order in which they were given; no more than its terms say."""
        self.denied = ""
        """Why it got no more time when it last asked; empty: it never did in vain, or got more since."""
        self.is_warned = False
        self.is_over = False
        self._began_ns = began_ns
        self._done: float = 0

    @property
    def next_at(self) -> int:
        return NEVER if self.is_over else self.until

    @property
    def left(self) -> int:
        """How many more extensions there are."""
        return 0 if self.is_warned else max(0, self.terms.extensions - len(self.extensions))

    def ask(self, now: int, done: float, reason: str = "", *, estimate_ns: int = 0, name: str = "") -> Granted | Denied:
        """The work asks for more time, also long before its end. `estimate_ns`: how much longer it thinks to take, 0 if
        it does not know. `name`: of this ask; heard again before the warning, it is answered as before and given
        nothing more."""
        known = next((given for given in self.extensions if name and given.name == name), None)
        if known is not None and not self.is_warned:
            return Granted(known.ns, self.left, self.until)
        why = self._objection(now, done, estimate_ns)
        if why:
            self.denied = why[:REASON_LIMIT]
            return Denied(why, self.left, self.until)
        ns = self.terms.extension_ns(len(self.extensions))
        at_ns = max(0, now - self._began_ns)
        self.extensions.append(Extension(ns, reason[:REASON_LIMIT], at_ns, estimate_ns, name[:NAME_LIMIT]))
        self.denied, self._done = "", done
        self.until = max(now, self.until) + ns
        return Granted(ns, self.left, self.until)

    def _objection(self, now: int, done: float, estimate_ns: int) -> str:
        """Why it gets no more time; empty: it does."""
        if self.is_over:
            return "it was told to end"
        if self.is_warned:
            return f"it was warned that its time is over, and has {tenths_text(max(0, self.until - now))} to save"
        if not self.left:
            return f"it was given more time {len(self.extensions)} times already, which is the limit"
        if 0 < estimate_ns <= self.until - now:
            left = tenths_text(self.until - now)
            return f"it has {left} left, which is enough for the {format_duration(estimate_ns)} that it asked for"
        if done <= self._done:
            return "it has not advanced since it was given more" if self.extensions else "it has not advanced"
        return ""

    def tick(self, now: int, done: float) -> Turn | None:
        """Once the end has come. Work that advances is taken to ask for more time by that."""
        if now < self.next_at:
            return None
        if self.is_warned:
            self.is_over = True
            return PutAside() if self.terms.on_timeout == "pause" else Evict()
        match self.ask(now, done):
            case Granted() as granted:
                return granted
            case Denied():  # pragma: no branch - the type checker sees that no answer is left
                self.is_warned = True
                self.until = now + self.terms.after_warning_ns
                return Warned(self.until)

    def record(self) -> DeadlineRecord:
        until_ns, extensions = self.until - self._began_ns, tuple(self.extensions)
        return DeadlineRecord(until_ns, extensions, self._done, self.is_warned, self.is_over, self.denied)

    @classmethod
    def restored(cls, record: DeadlineRecord, began_ns: int, terms: DeadlineTerms = DEADLINE_TERMS) -> "Deadline":
        """As it was recorded, by a clock by which the work began at `began_ns`."""
        deadline = cls(began_ns + record.until_ns, terms, began_ns=began_ns)
        deadline.extensions, deadline._done = list(record.extensions), record.done
        deadline.is_warned, deadline.is_over, deadline.denied = record.is_warned, record.is_over, record.denied
        return deadline


def told(extensions: Sequence[Extension], *, is_warned: bool = False) -> str:
    """How often more time was given, by how much and why, and whether it is over, for people; empty when neither."""
    warned = "it was warned that its time is over" if is_warned else ""
    if not extensions:
        return warned
    count, longer = len(extensions), format_duration(sum(extension.ns for extension in extensions))
    reasons = list(dict.fromkeys(extension.reason for extension in extensions if extension.reason))
    why = f": {'; '.join(reasons)}" if reasons else ""
    given = f"it was given {longer} more, in {count} extension{'s' if count > 1 else ''}{why}"
    return f"{given}; {warned}" if warned else given
