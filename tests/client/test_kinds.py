"""The directory of kinds: which kind a job is of, and one list of all of them."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.client.kinds import AnyJob, JobDirectory, KindFacts, KindPage, KindUpdate, SubmitBounds
from talka.client.requests import Conflict, NoDags, NoSuchJob, Unavailable, WrongKind
from talka.client.sheets import JobSheet
from talka.errors import Invalid
from talka.wire.security.access import Asker
from talka.work.lifecycle import JobState


class ListKind:
    """Jobs in a list, the newest last. A time below 0 is a place that holds nothing to show, as a draft does."""

    bounds = SubmitBounds(100, "submit")

    def __init__(self, name: str, times: Sequence[int] = ()) -> None:
        self.name = name
        self.places: list[AnyJob | None] = []
        self.asked: list[str] = []
        self.askers: list[Asker] = []
        self.asker: Asker | None = None
        for at in times:
            self.add(at)

    def add(self, at: int) -> None:
        id = f"{self.name}{len(self.places)}"
        job = AnyJob(id, "any", JobState.RUNNING, submitted_at=f"{at:04d}", kind=self.name)
        self.places.append(None if at < 0 else job)

    @property
    def jobs(self) -> Sequence[AnyJob]:
        return [job for job in self.places if job is not None]

    def on_behalf(self, asker: Asker) -> "ListKind":
        self.askers.append(asker)
        other = copy.copy(self)
        other.asker = asker
        return other

    def elsewhere(self, id: str) -> str:
        return "it has nothing else"

    async def has(self, id: str) -> bool:
        assert self.asker is None, "whoever may pause a job need not be one for whom a leader looks at jobs"
        self.asked.append(id)
        return any(job.id == id for job in self.jobs)

    async def submit(self, content: bytes, key: str, by: str) -> AnyJob:
        self.add(9999)
        return self.jobs[-1]

    async def get(self, id: str) -> AnyJob:
        for job in self.jobs:
            if job.id == id:
                return job
        raise NoSuchJob.named(id)

    async def list(self, state: str, cursor: str, limit: int) -> KindPage:
        before = int(cursor) if cursor else len(self.places)
        page = range(before - 1, max(-1, before - 1 - limit), -1)
        shown = [(job, str(place + 1)) for place in page if (job := self.places[place]) is not None]
        following = str(page[-1]) if page and page[-1] > 0 else ""
        return KindPage([job for job, _ in shown], [cursor for _, cursor in shown], following)

    async def cancel(self, id: str, reason: str) -> AnyJob:
        return await self.get(id)

    async def watch(self, id: str, steps: bool) -> AsyncGenerator[KindUpdate, None]:
        yield KindUpdate(await self.get(id), is_last=True)

    async def result(self, id: str) -> bytes:
        return b"{}"

    async def view(self, id: str) -> JobSheet:
        return JobSheet(id, self.name, "any", JobState.RUNNING, [])


class OtherKind(ListKind):
    pass


async def pages(directory: JobDirectory, limit: int) -> list[list[KindFacts]]:
    found, cursor = list[list[KindFacts]](), ""
    while cursor or not found:
        page = await directory.list("", cursor, limit)
        found.append(page.items)
        cursor = page.next
    return found


# Of which kind a job is.


async def test_each_kind_but_the_last_is_asked_once_and_what_nobody_has_is_the_last_ones() -> None:
    first, second, last = ListKind("a", [1]), ListKind("b", [1]), ListKind("c", [1])
    directory = JobDirectory(first, second, last)

    assert [await directory.of(id) for id in ("a0", "b0", "b0", "a0", "c0", "nojob")] == [
        *(first, second, second, first, last, last)
    ]
    assert (first.asked, second.asked, last.asked) == (["a0", "b0", "c0", "nojob"], ["b0", "c0", "nojob"], [])


async def test_a_kind_that_cannot_tell_leaves_the_question_open() -> None:
    class Silent(ListKind):
        async def has(self, id: str) -> bool:
            raise Unavailable("it still reads its jobs")

    with pytest.raises(Unavailable):
        await JobDirectory(Silent("a"), ListKind("b", [1])).of("b0")


async def test_jobs_that_were_submitted_or_listed_are_known_without_a_question() -> None:
    first, last = ListKind("a", [1]), ListKind("b", [1])
    directory = JobDirectory(first, last)
    await directory.list("", "", 10)

    id = (await directory.submit("b", b"{}", "", "")).id

    assert [await directory.of(id), await directory.of("a0"), await directory.of("b0")] == [last, first, last]
    assert first.asked == []


async def test_as_many_jobs_are_remembered_as_may_be_and_the_latest_longest() -> None:
    first = ListKind("a", [1, 2, 3])
    directory = JobDirectory(first, ListKind("b"), known_limit=2)

    for id in ("a0", "a1", "a0", "a2", "a0", "a1"):
        await directory.of(id)

    assert first.asked == ["a0", "a1", "a2", "a1"]


async def test_a_job_that_is_unknown_now_may_be_known_later() -> None:
    first, last = ListKind("a"), ListKind("b")
    directory = JobDirectory(first, last)
    assert await directory.of("a0") is last

    first.add(1)

    assert await directory.of("a0") is first


async def test_what_one_kind_alone_has_is_refused_of_another_by_its_name() -> None:
    first, last = OtherKind("a", [1]), ListKind("b", [1])
    directory = JobDirectory(first, last)

    assert await directory.only("a0", OtherKind) is first
    with pytest.raises(WrongKind, match="^job b0 is a b job: it has nothing else$"):
        await directory.only("b0", OtherKind)
    with pytest.raises(Conflict, match="job b0 is a b job"):
        await directory.only("b0", OtherKind, Conflict)
    assert last.asked == ["b0"], "it was remembered"
    with pytest.raises(NoSuchJob, match="there is no job nojob") as refusal:
        await directory.only("nojob", OtherKind)
    assert not isinstance(refusal.value, WrongKind)


async def test_who_asks_is_told_to_the_kind_that_is_asked_and_the_index_is_asked_for_nobody() -> None:
    first, last = OtherKind("a", [1]), ListKind("b", [1])
    directory = JobDirectory(first, last)
    asker = Asker("job", "viewer", "ann")

    asked = directory.on_behalf(asker)
    assert first.askers == last.askers == []
    await asked.of("b0")

    assert (first.askers, last.askers) == ([], [asker])
    with pytest.raises(WrongKind):
        await asked.only("b0", OtherKind)
    last.askers.pop()
    await asked.list("", "", 1)
    assert (first.askers, last.askers) == ([asker], [asker, asker])
    await directory.list("", "", 1)
    assert len(last.askers) == 2, "the directory itself asks for nobody"
    assert asked.port(OtherKind) is first


# Which kinds there are.


def test_names_of_kinds_are_their_own_and_one_is_added_before_the_last() -> None:
    directory = JobDirectory(ListKind("a"), ListKind("b"))
    directory.add(OtherKind("c"))

    assert directory.names == ("a", "c", "b") and directory.named("c").name == "c"
    assert isinstance(directory.port(OtherKind), OtherKind) and JobDirectory(ListKind("a")).port(OtherKind) is None
    with pytest.raises(Invalid, match="there is a kind c already"):
        directory.add(ListKind("c"))
    for kinds in ((), (ListKind("a"), ListKind("a"))):
        with pytest.raises(Invalid, match="kinds with names of their own"):
            JobDirectory(*kinds)


def test_a_kind_that_is_not_here_is_named_in_a_sentence() -> None:
    directory = JobDirectory(ListKind("a"), ListKind("b"))
    with pytest.raises(Invalid, match="no job is of kind 'tree': kinds are a, b"):
        directory.named("tree")
    with pytest.raises(NoDags):
        directory.named("dag")


# One list of all.


@given(
    times=st.lists(st.lists(st.integers(0, 20), max_size=12), min_size=2, max_size=4),
    drafts=st.lists(st.integers(0, 12), max_size=6),
    limit=st.integers(1, 7),
)
@settings(max_examples=100, deadline=None)
def test_pages_lose_and_repeat_nothing_and_are_newest_first_over_all(
    times: list[list[int]], drafts: list[int], limit: int
) -> None:
    times = [sorted(some) for some in times]
    for place in drafts:
        times[place % len(times)].insert(place, -1)
    kinds = [ListKind(f"k{n}", some) for n, some in enumerate(times)]

    found = asyncio.run(pages(JobDirectory(*kinds), limit))

    told = [job for page in found for job in page]
    assert all(len(page) == limit for page in found[:-1])
    assert len(found[-1]) <= limit
    assert sorted(job.id for job in told) == sorted(job.id for kind in kinds for job in kind.jobs)
    assert [job.submitted_at for job in told] == sorted([job.submitted_at for job in told], reverse=True)


@given(st.lists(st.lists(st.integers(0, 20), max_size=8), min_size=2, max_size=3), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_clocks_that_were_set_back_lose_and_repeat_nothing(times: list[list[int]], limit: int) -> None:
    kinds = [ListKind(f"k{n}", some) for n, some in enumerate(times)]

    told = [job.id for page in asyncio.run(pages(JobDirectory(*kinds), limit)) for job in page]

    assert sorted(told) == sorted(job.id for kind in kinds for job in kind.jobs)
    for kind in kinds:
        assert [id for id in told if id.startswith(kind.name)] == [job.id for job in reversed(kind.jobs)]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_jobs_that_come_after_the_first_page_are_on_no_later_one(limit: int) -> None:
    kinds = [ListKind("a", [1, 4, 6]), ListKind("b", [2, 3]), ListKind("c")]
    directory = JobDirectory(*kinds)
    page = await directory.list("", "", limit)
    told = [job.id for job in page.items]

    while page.next:
        for kind in kinds:
            kind.add(9)  # also of a kind of which nothing was told yet, and of one that had none
        page = await directory.list("", page.next, limit)
        told += [job.id for job in page.items]

    assert told == ["a2", "a1", "b1", "b0", "a0"]


async def test_a_page_ends_where_a_kind_gives_nothing_however_often_it_is_asked() -> None:
    class Empty(ListKind):
        async def list(self, state: str, cursor: str, limit: int) -> KindPage:
            self.asked.append(cursor)
            return KindPage([], [], f"{int(cursor or 0) + 1}")

    empty = Empty("a")
    page = await JobDirectory(empty, ListKind("b", [1])).list("", "", 5)

    assert (page.items, page.next, len(empty.asked)) == ([], "a.c16~b.c1", 16)


async def test_a_kind_that_tells_no_cursors_is_named() -> None:
    class Old(ListKind):
        async def list(self, state: str, cursor: str, limit: int) -> KindPage:
            return (await super().list(state, cursor, limit))._replace(cursors=[])

    assert len((await JobDirectory(Old("a", [1])).list("", "", 5)).items) == 1, "alone it needs none"
    with pytest.raises(Unavailable, match="whoever keeps a jobs tells no cursors"):
        await JobDirectory(Old("a", [1]), ListKind("b")).list("", "", 5)


async def test_one_kind_alone_has_its_own_cursors() -> None:
    page = await JobDirectory(ListKind("a", [1, 2, 3])).list("", "", 2)

    assert ([job.id for job in page.items], page.next) == (["a2", "a1"], "1")


@pytest.mark.parametrize(
    "cursor",
    ["1", "a.c1", "a.c1~b", "a.c1~b.q", "a.c1~b.x~a.x", "a.c1~c.x", "~", "a.c1~b.c1~", "a~b", "a.~b.", "a.c1~b.xx"],
)
async def test_a_cursor_that_is_not_ours_is_refused(cursor: str) -> None:
    with pytest.raises(Invalid, match="the cursor is not known"):
        await JobDirectory(ListKind("a", [1]), ListKind("b", [1])).list("", cursor, 5)
