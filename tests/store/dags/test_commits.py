"""What every store does with commits, whichever engine it is on: in order, under leases, or not at all."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from talka.store.dags.memory import StoreMemory
from talka.store.dags.records import CommitListener, RecordsDiffer, RecordsUnavailable, Store, StoreTaken
from talka.work.dags.records import Change, ClaimTask, Complete, DropSchedule, PutJob, PutTasks
from talka.work.lifecycle import TaskState
from tests.store.dags.engines import Engine, opened
from tests.store.dags.test_records import claim, filled, job, kept_for, task


class Answers:
    """Of one who commits: what it was told, and what holds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.made: list[int] = []
        """Tickets, in the order in which they were known to hold."""
        self.broken: list[BaseException] = []
        self.moved = asyncio.Event()
        store.start(CommitListener(self.committed, self.problem, self.fail))

    def committed(self, tickets: list[int]) -> None:
        self.made += tickets
        self.moved.set()

    def problem(self, text: str) -> None:
        raise AssertionError(text)

    def fail(self, error: BaseException) -> None:
        self.broken.append(error)
        self.moved.set()

    def commit(self, ticket: int, changes: Sequence[Change], *key: str) -> None:
        if self.store.commit(ticket, changes, *key):
            self.made.append(ticket)

    async def until_made(self, ticket: int) -> None:
        await self.until(lambda: ticket in self.made)

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self.moved.clear()
                await self.moved.wait()


@pytest.fixture
async def answers(store: Store) -> Answers:
    return Answers(store)


async def test_commits_are_made_and_answered_in_order(store: Store, answers: Answers) -> None:
    answers.commit(1, [PutJob(job(1, tasks=1)), PutTasks((task(0),))])
    for ticket in range(2, 50):
        answers.commit(ticket, [claim(0, ticket)])
    answers.commit(50, [])
    await answers.until_made(50)
    assert answers.made == list(range(1, 51)) and not answers.broken
    (row,) = await store.tasks_at([(1, 0)])
    assert (row.state, row.fence) == (TaskState.ASSIGNED, 49)


async def test_who_reads_sees_every_commit_that_was_answered(store: Store, answers: Answers) -> None:
    for number in range(1, 20):
        answers.commit(number, [PutJob(job(number))])
        await answers.until_made(number)
        assert await store.next_number() == number + 1


async def test_what_waits_is_made_before_it_is_drained_and_nothing_is_taken_later(engine: Engine) -> None:
    first = await engine.open()
    answers = Answers(first)
    for number in range(1, 30):
        answers.commit(number, [PutJob(job(number))])
    await first.drain()
    assert await first.next_number() == 30
    answers.commit(30, [PutJob(job(30))])
    await first.close()
    async with opened(engine) as again:
        assert await again.next_number() == 30
    with pytest.raises(RecordsUnavailable, match="has been closed: open it again"):
        await first.live_jobs()


async def test_a_store_that_is_not_of_one_mind_with_who_commits_breaks(store: Store, answers: Answers) -> None:
    await filled(store)
    answers.commit(1, [DropSchedule("gone already")])
    await answers.until_made(1)
    answers.commit(2, [ClaimTask(1, 5, 1, 7, "ada#1", 1)])
    await answers.until(lambda: answers.broken)
    answers.commit(3, [claim()])
    await store.drain()
    assert [type(error) for error in answers.broken] == [RecordsDiffer] and answers.made == [1]
    assert await store.counts(1) == {"pending": 1}


async def test_what_it_can_never_take_breaks_it_and_nothing_later_is_made(store: Store, answers: Answers) -> None:
    answers.commit(1, [PutJob(job(1))])
    answers.commit(2, [PutJob(job(1))])
    answers.commit(3, [PutJob(job(2))])
    await answers.until(lambda: answers.broken)
    await store.drain()
    assert await store.next_number() <= 2, "all in one transaction, or the first alone"
    assert 3 not in answers.made


async def test_a_store_that_was_given_up_takes_nothing(store: Store, answers: Answers) -> None:
    store.give_up()
    answers.commit(1, [PutJob(job(1))])
    await store.drain()
    assert answers.made == [] and await store.live_jobs() == []


@pytest.mark.parametrize("size", [10, 5_000_000])
async def test_an_output_of_any_size_comes_back_whole(store: Store, answers: Answers, size: int) -> None:
    await filled(store)
    output = b'"' + b"x" * size + b'"'
    answers.commit(1, [claim(), Complete(1, 0, 7, TaskState.COMPLETED, 5, output)])
    await answers.until_made(1)
    assert (await store.fetch([], [(1, 0)])).outputs == {(1, 0): output}
    (row,) = await store.tasks_at([(1, 0)])
    assert (await store.blob(row.blob) if row.blob else row.output) == output
    await store.sweep_blobs(-60.0, 1 << 33)
    assert (await store.fetch([], [(1, 0)])).outputs == {(1, 0): output}, "its task names it"


async def test_commits_under_a_lease_that_was_taken_are_refused_and_those_under_another_go_on(engine: Engine) -> None:
    async with opened(engine) as ada, opened(engine) as bob:
        answers = Answers(ada)
        north, south = await ada.acquire(["north", "south"], "ada")
        ada.fence(north)
        ada.fence(south)
        answers.commit(1, [PutJob(job(1))], "north")
        answers.commit(2, [PutJob(job(2))], "south")
        await answers.until_made(2)
        await bob.take("bob", [north])
        answers.commit(3, [PutJob(job(3))], "south")
        answers.commit(4, [PutJob(job(4))], "north")
        answers.commit(5, [PutJob(job(5))], "south")
        await answers.until(lambda: answers.broken)
        answers.commit(6, [PutJob(job(6))], "north")
        answers.commit(7, [PutJob(job(7))], "south")
        await answers.until_made(7)
        assert [error.key for error in answers.broken if isinstance(error, StoreTaken)] == ["north"]
        assert answers.made == [1, 2, 3, 5, 7]
        assert [row.number for row in await bob.live_jobs()] == [1, 2, 3, 5, 7]


async def test_changes_out_of_line_are_made_under_the_lease_of_their_key(engine: Engine) -> None:
    async with opened(engine) as ada, opened(engine) as bob:
        north, south = await ada.acquire(["north", "south"], "ada")
        ada.fence(north)
        ada.fence(south)
        await bob.take("bob", [north])
        assert await ada.apply([PutJob(job(1))], "south") == [1]
        assert await ada.sweep(1, kept_for(1, 0), 1, "south") == 0
        for key in ("north", "", "east"):
            with pytest.raises(StoreTaken) as refused:
                await ada.apply([PutJob(job(2))], key)
            assert refused.value.key == (key or "north")
            with pytest.raises(StoreTaken):
                await ada.sweep(1, kept_for(1, 0), 1, key)
        assert await ada.next_number() == 2


async def test_changes_go_on_under_the_epoch_that_a_lease_was_raised_to(engine: Engine) -> None:
    async with opened(engine) as ada, opened(engine) as bob:
        (held,) = await ada.acquire(["manager"], "ada")
        ada.fence(held)
        assert await ada.raise_epoch("ada", ("manager", 1), 9) == 9
        assert await ada.raise_epoch("ada", ("manager", 1), 12) == 0, "another epoch is held"
        assert await ada.raise_epoch("bob", ("manager", 9), 12) == 0
        assert await ada.raise_epoch("ada", ("manager", 9), 3) == 10, "it never goes back"
        assert [one.epoch for one in await bob.leases("manager")] == [10]
        assert await ada.apply([PutJob(job(1))]) == [1]
        assert [one.epoch for one in await ada.renew("ada", [("manager", 10)])] == [10]


# Which store it is.


async def test_a_store_goes_on_with_its_life_until_a_folder_knows_better(engine: Engine, tmp_path: Path) -> None:
    drawn = iter(range(100, 200))
    lives = []
    for epoch in (1, 2, 2):
        async with opened(engine) as one:
            memory = StoreMemory(tmp_path)
            lives.append(await one.open_life(epoch, memory, lambda: next(drawn)))
            memory.remember(lives[-1].store, lives[-1].life, epoch)
    assert lives[:2] == [(100, 101, ""), (100, 101, "")]
    assert (lives[2].store, lives[2].life) == (100, 102) and "it is an older copy" in lives[2].reason
