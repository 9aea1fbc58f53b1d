"""Kinds of job: the port that each of them has, and the directory that knows of which kind a job is.

`JobKind` is what can be done with a job whatever its kind: lists, `talka jobs`, the API and dashboards ask for nothing
else. What only one kind can do is on the port of that kind (`Control`, `DagControl`), to which the directory leads.

Decision: docs/decisions/0038-kinds-of-job-share-a-port.md.
"""

import copy
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from talka.client.requests import NoDags, NoSuchJob, WrongKind
from talka.client.sheets import JobSheet
from talka.errors import Invalid, TalkaError, Unavailable
from talka.wire.security.access import Asker
from talka.wire.views import JobFacts
from talka.work.lifecycle import JobState

KNOWN_LIMIT: Final = 10_000
"""Jobs whose kind is remembered."""
REFILLS_LIMIT: Final = 16
"""Pages of one kind that are read for one page of all."""
ABSENT: Final[dict[str, Callable[[], Invalid]]] = {"dag": NoDags.here}
"""Kinds that a manager may not keep, and what it says then."""
SEPARATOR, OVER, MORE = "~", "x", "c"
"""Of a cursor that stands for one of each kind: NAME.x where there are no more, NAME.cCURSOR where it goes on."""

Kind = TypeVar("Kind")


class AnyJob(JobFacts, frozen=True):
    """A job of any kind, as lists show it."""

    kind: str = "load"
    """load, dag, or another of the kinds that the manager keeps."""
    started_at: str = ""
    tasks: int = 0
    counts: dict[str, int] = {}
    """Tasks by state, of a job that has tasks."""


class AnyJobsPage(msgspec.Struct, frozen=True):
    """Jobs of all kinds, newest first."""

    items: list[AnyJob]
    next: str = ""


class KindFacts(Protocol):
    """A job as its kind describes it: with all that `AnyJob` has, or less where it has a default, or more."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> JobState: ...
    @property
    def submitted_at(self) -> str: ...


class KindPage(NamedTuple):
    """Jobs of one kind, newest first."""

    items: Sequence[KindFacts]
    cursors: Sequence[str]
    """For each job the cursor of a page that begins with it."""
    next: str = ""
    """The cursor of the next page; empty on the last one."""


class AllJobsPage(msgspec.Struct, frozen=True):
    """`AnyJobsPage`, before anybody else has read it."""

    items: list[KindFacts]
    next: str = ""


class KindUpdate(NamedTuple):
    content: msgspec.Struct
    """In the words of the kind; `AnyJob` where it has none of its own."""
    is_last: bool
    """The job has ended and its result can be had."""


class SubmitBounds(NamedTuple):
    """What a submission may cost."""

    body_bytes: int
    rate: str
    """The name of the rate limit under which it is counted."""


class JobKind(Protocol):
    """One kind of job. Every call may raise the errors of `requests`; each may be made again.

    States are those of `JobState`, whatever the kind. A job that is not there is NoSuchJob.
    """

    @property
    def name(self) -> str:
        """What `kind` says in a submission and in answers: one word, unlike every other kind's."""

    @property
    def bounds(self) -> SubmitBounds: ...

    def on_behalf(self, asker: Asker) -> "JobKind":
        """The same, for what this person asks. A kind that passes nothing on to others answers with itself."""

    def elsewhere(self, id: str) -> str:
        """What its jobs have instead, for whoever asked for what only another kind has."""

    async def has(self, id: str) -> bool:
        """Out of an index: it is asked for jobs of every kind, and on nobody's behalf."""

    async def submit(self, content: bytes, key: str, by: str) -> KindFacts:
        """Accept a job: from the answer on it is finished, failed with a reason, or under way.

        `content` is JSON whose `kind` is this one; the kind says what is wrong with it. `key` is the submitter's
        idempotency key, empty for none: the same content with the same key is the same job, another one a Conflict.
        `by` is who submits, empty where no tokens are used.
        """

    async def get(self, id: str) -> KindFacts: ...

    async def list(self, state: str, cursor: str, limit: int) -> KindPage:
        """`state` is a JobState, or empty for all; `cursor` is `next` or one of `cursors` of a page before, or
        empty. Cursors have at most 200 characters, and no ~ among them."""

    async def cancel(self, id: str, reason: str) -> KindFacts:
        """Ask a job to stop. Of one that has ended it changes nothing."""

    def watch(self, id: str, steps: bool) -> AsyncGenerator[KindUpdate, None]:
        """How the job stands, at most 20 times a second, the first at once, until the last update. Closing the iterator
        ends the watch. `steps`: in all detail, where there is more than is told else."""

    async def result(self, id: str) -> bytes:
        """What came of it, as JSON. Raises NotEnded while it is under way, NoResult where there is none."""

    async def view(self, id: str) -> JobSheet:
        """What people are shown of it."""


class JobDirectory:
    """The kinds of job of a manager, and of which kind each job is.

    Ids of all kinds look alike, so each kind but the last is asked whether it has a job; jobs of no other kind are the
    last one's, which says so itself when there is none. The kind of a job never changes: it is asked for once.
    """

    def __init__(self, *kinds: JobKind, known_limit: int = KNOWN_LIMIT) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        if len(self._kinds) < len(kinds) or not kinds:
            raise Invalid(f"a directory needs kinds with names of their own, not {[kind.name for kind in kinds]}")
        self._known: OrderedDict[str, str] = OrderedDict()
        self._known_limit = known_limit
        self._asker: Asker | None = None
        """Who asks; None: this process itself."""

    def add(self, kind: JobKind) -> None:
        """Before the last."""
        if kind.name in self._kinds:
            raise Invalid(f"there is a kind {kind.name} already")
        last = next(reversed(self._kinds.values()))
        del self._kinds[last.name]
        self._kinds |= {kind.name: kind, last.name: last}

    def on_behalf(self, asker: Asker) -> "JobDirectory":
        other = copy.copy(self)  # everything else is of all of them
        other._asker = asker
        return other

    def _asked(self, kind: JobKind) -> JobKind:
        return kind if self._asker is None else kind.on_behalf(self._asker)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._kinds)

    @property
    def body_bytes(self) -> int:
        """Of the largest submission that some kind takes."""
        return max(kind.bounds.body_bytes for kind in self._kinds.values())

    def named(self, name: str) -> JobKind:
        kind = self._kinds.get(name)
        if kind is None:
            absent = ABSENT.get(name)
            known = ", ".join(self._kinds)
            raise absent() if absent is not None else Invalid(f"no job is of kind {name[:50]!r}: kinds are {known}")
        return kind

    def port(self, type: type[Kind]) -> Kind | None:
        """The kind that has a port of its own; None where it is not kept here."""
        return next((kind for kind in self._kinds.values() if isinstance(kind, type)), None)

    # One job.

    async def of(self, id: str) -> JobKind:
        """Its kind; the last one where nobody has it."""
        name = self._known.get(id)
        if name is not None:
            self._known.move_to_end(id)
            return self._asked(self._kinds[name])
        *others, last = self._kinds.values()
        for kind in others:
            if await kind.has(id):
                self._remember(id, kind)
                return self._asked(kind)
        return self._asked(last)

    async def only(self, id: str, type: type[Kind], error: Callable[[str], TalkaError] = WrongKind) -> Kind:
        """The kind of the job, which must be this one; else an error that says which it is."""
        kind = await self.of(id)
        if isinstance(kind, type):
            return kind
        if id not in self._known:
            if not await self._kinds[kind.name].has(id):
                raise NoSuchJob.named(id)
            self._remember(id, kind)
        raise error(f"job {id} is a {kind.name} job: {kind.elsewhere(id)}")

    async def submit(self, name: str, content: bytes, key: str, by: str) -> KindFacts:
        kind = self.named(name)
        facts = await self._asked(kind).submit(content, key, by)
        self._remember(facts.id, kind)
        return facts

    def _remember(self, id: str, kind: JobKind) -> None:
        self._known[id] = kind.name
        self._known.move_to_end(id)
        while len(self._known) > self._known_limit:
            self._known.popitem(last=False)

    # All jobs together.

    async def list(self, state: str, cursor: str, limit: int) -> AllJobsPage:
        """Newest first over all pages. A job that came after the first page is in none of the others; each job that was
        there then is in one, unless it is deleted or leaves `state` before its page is read."""
        if len(self._kinds) == 1:
            (kind,) = self._kinds.values()
            page = await self._asked(kind).list(state, cursor, limit)
            return AllJobsPage([*page.items], page.next)
        cursors = self._cursors_in(cursor)
        readers = [_KindReader(self._asked(kind), state, cursors[kind.name], limit) for kind in self._kinds.values()]
        items: list[KindFacts] = []
        while len(items) < limit:
            for reader in readers:
                await reader.fill()
            # One that is not over and could not be filled may have what is newer than all others have.
            if any(reader.is_behind for reader in readers) or not (filled := [one for one in readers if one.items]):
                break
            newest = max(filled, key=lambda reader: reader.items[0][0].submitted_at)
            facts = newest.take()
            self._remember(facts.id, newest.kind)
            items.append(facts)
        if all(reader.place is None for reader in readers):
            return AllJobsPage(items)
        return AllJobsPage(items, SEPARATOR.join(f"{reader.kind.name}.{reader.mark}" for reader in readers))

    def _cursors_in(self, cursor: str) -> dict[str, str | None]:
        """By kind; None: there are no more of it."""
        if not cursor:
            return dict.fromkeys(self._kinds, "")
        parts = [part.partition(".") for part in cursor.split(SEPARATOR)]
        found = {name: None if mark == OVER else mark[1:] for name, _, mark in parts}
        is_ours = len(parts) == len(found) and found.keys() == self._kinds.keys()
        if not is_ours or not all(mark == OVER or mark.startswith(MORE) for _, _, mark in parts):
            raise Invalid("the cursor is not known: use `next` of the page before")
        return found


class _KindReader:
    """What is read of one kind for a page of all."""

    def __init__(self, kind: JobKind, state: str, cursor: str | None, limit: int) -> None:
        self.kind = kind
        self.items: list[tuple[KindFacts, str]] = []
        """Not taken yet, each with its cursor."""
        self._next = cursor
        """Of what is not read yet; None: nothing is left."""
        self._state = state
        self._limit = limit
        self._reads = 0

    async def fill(self) -> None:
        """A page may have fewer jobs than there are, even none, and not be the last."""
        while not self.items and self._next is not None and self._reads < REFILLS_LIMIT:
            self._reads += 1
            page = await self.kind.list(self._state, self._next, self._limit)
            if len(page.cursors) != len(page.items):
                raise Unavailable(f"whoever keeps {self.kind.name} jobs tells no cursors: is it of an earlier version?")
            self.items = list(zip(page.items, page.cursors, strict=True))
            self._next = page.next or None

    @property
    def is_behind(self) -> bool:
        return not self.items and self._next is not None

    def take(self) -> KindFacts:
        facts, _ = self.items.pop(0)
        return facts

    @property
    def place(self) -> str | None:
        """Where the next page begins; None: there is none."""
        return self.items[0][1] if self.items else self._next

    @property
    def mark(self) -> str:
        return OVER if self.place is None else f"{MORE}{self.place}"
