"""The thread that writes: commits that wait become one transaction, in order, each under its lease."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from talka.errors import Invalid
from talka.store.dags.records import CommitListener, RecordsBroken, RecordsUnavailable, StoreTaken
from talka.store.dags.sqlite_file import WriterBusy
from talka.store.dags.sqlite_thread import SMALL, StoreThread, ThreadLimits
from talka.store.files.blobs import Blobs
from talka.store.files.folder import StoreFailed
from talka.work.dags.dag import INLINE_LIMIT_BYTES
from talka.work.dags.records import Change, Complete, DropSchedule, MoveJob
from talka.work.lifecycle import JobState, TaskState


class Slow:
    """Records whose `apply` waits until it may, and fails as it is told."""

    def __init__(self) -> None:
        self.is_quick = False
        self.takes: Callable[[], object] = lambda: None
        """How it takes its time."""
        self.threads: list[str] = []
        """That made each batch."""
        self.checkpoints = 0
        self.may = threading.Event()
        self.may.set()
        self.began = threading.Event()
        self.batches: list[list[Change]] = []
        self.failures: list[BaseException] = []
        self.refused: list[Change] = []
        self.taken: set[str] = set()
        """Keys of leases that somebody else has."""
        self.keys: list[tuple[str, ...]] = []
        """Under which each batch was made."""

        self.is_busy = False
        """Another thread writes."""

    def apply(self, changes: Sequence[Change], keys: Sequence[str], *, waits: bool = True) -> list[int]:
        if self.is_busy and not waits:
            raise WriterBusy
        self.began.set()
        assert self.may.wait(30)
        if self.failures:
            raise self.failures.pop(0)
        if taken := sorted(self.taken & set(keys) or (set() if keys else self.taken)):
            raise StoreTaken.at("here", taken[0])
        self.keys.append(tuple(keys))
        self.batches.append(list(changes))
        self.threads.append(threading.current_thread().name)
        self.takes()
        return [int(change not in self.refused) for change in changes]

    def checkpoint(self) -> None:
        assert threading.current_thread().name == "store"
        self.checkpoints += 1


class Scene:
    def __init__(self, folder: Path, *, is_quick: bool = False, **limits: Any) -> None:
        self.now = 1 << 40
        """Stands still unless it is moved."""
        self.records = Slow()
        self.records.is_quick = is_quick
        self.blobs = Blobs(folder / "blobs")
        self.told: list[Any] = []
        self.event = asyncio.Event()
        self.thread = StoreThread(
            self.records,  # type: ignore[arg-type]
            self.blobs,
            CommitListener(self.tell, self.tell, self.tell),
            ThreadLimits(**{"here_ns": 0, **limits}),
            lambda: self.now,
        )

    def tell(self, what: Any) -> None:
        self.told.append(what)
        self.event.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await self.event.wait()
                self.event.clear()

    def commit(self, ticket: int, *names: str) -> bool:
        return self.thread.commit(ticket, [DropSchedule(name) for name in names])

    def names(self) -> list[list[str]]:
        return [[getattr(change, "name", "") for change in batch] for batch in self.records.batches]


SceneOf = Callable[..., Scene]


@pytest.fixture
async def scene_of(tmp_path: Path) -> AsyncIterator[SceneOf]:
    scenes: list[Scene] = []

    def made(**more: Any) -> Scene:
        scenes.append(Scene(tmp_path, **more))
        return scenes[-1]

    yield made
    for scene in scenes:
        scene.records.may.set()
        await scene.thread.close()


@pytest.fixture
async def scene(scene_of: SceneOf) -> Scene:
    return scene_of(again_s=0.001)


async def busy(scene: Scene) -> None:
    """The store is at work with ticket 1."""
    scene.records.may.clear()
    scene.commit(1, "a")
    assert await asyncio.to_thread(scene.records.began.wait, 30)


async def test_commits_that_came_while_it_was_busy_are_one_transaction(scene: Scene) -> None:
    await busy(scene)
    scene.commit(2, "b", "c")
    scene.commit(3, "d")
    assert scene.told == []
    scene.records.may.set()
    await scene.until(lambda: scene.told == [[1], [2, 3]])
    assert scene.names() == [["a"], ["b", "c", "d"]]
    scene.commit(4, "e")  # it sleeps between
    await scene.until(lambda: scene.told[2:] == [[4]])


class OneByOne(threading.Event):
    """Lets the thread make one batch for each `release`, and the loop whatever it wants."""

    def __init__(self) -> None:
        super().__init__()
        self._batches = threading.Semaphore(0)

    def release(self) -> None:
        self._batches.release()

    def wait(self, timeout: float | None = None) -> bool:
        return (
            self.is_set() or threading.current_thread().name != "store" or self._batches.acquire(timeout=timeout or 30)
        )

    def set(self) -> None:
        super().set()
        self.release()


async def test_no_commit_overtakes_one_that_the_thread_has_taken_up_since(scene_of: SceneOf) -> None:
    scene = scene_of(is_quick=True, small=1, quiet_ns=-1)
    turns = scene.records.may = OneByOne()
    scene.commit(1, "a", "b")
    assert await asyncio.to_thread(scene.records.began.wait, 30)
    scene.commit(2, "c", "d")
    scene.records.began.clear()
    turns.release()
    await scene.until(lambda: scene.told == [[1]])
    assert await asyncio.to_thread(scene.records.began.wait, 30)

    assert not scene.commit(3, "e"), "the loop does not make it while the thread is at work"

    turns.set()
    await scene.until(lambda: scene.told == [[1], [2], [3]])
    assert scene.names() == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_commit_of_no_changes_is_answered_in_its_turn(scene: Scene) -> None:
    await busy(scene)
    scene.commit(2)
    scene.records.may.set()
    await scene.until(lambda: scene.told == [[1], [2]])
    assert scene.names() == [["a"]]


async def test_a_transaction_has_an_end(scene_of: SceneOf) -> None:
    scene = scene_of(changes_at_once=2)
    await busy(scene)
    for ticket in range(2, 6):
        scene.commit(ticket, "x")
    scene.records.may.set()
    await scene.until(lambda: scene.told == [[1], [2, 3], [4, 5]])


async def test_what_the_store_cannot_take_now_is_tried_until_it_can(scene: Scene) -> None:
    scene.records.failures = [RecordsUnavailable("the disk is full"), RecordsUnavailable("the disk is full")]
    scene.commit(1, "a")
    await scene.until(lambda: scene.told == ["the disk is full", "", [1]])
    assert scene.thread.problem == ""
    assert scene.names() == [["a"]]


async def test_the_problem_is_there_as_long_as_it_lasts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, has_room = scene.records.apply, threading.Event()

    def fail_while_full(changes: Sequence[Change], keys: Sequence[str], **_: Any) -> list[int]:
        if not has_room.is_set():
            raise RecordsUnavailable("the disk is full")
        return apply(changes, keys)

    monkeypatch.setattr(scene.records, "apply", fail_while_full)
    scene.commit(1, "a")
    await scene.until(lambda: scene.told == ["the disk is full"])
    assert scene.thread.problem == "the disk is full"
    has_room.set()
    await scene.until(lambda: scene.thread.problem == "")


@pytest.mark.parametrize(
    "error",
    [Invalid("a job is kept already"), RecordsBroken("nobody knows"), MemoryError()],
    ids=["invalid", "broken", "other"],
)
async def test_what_it_can_never_take_breaks_it_and_nothing_later_is_written(scene: Scene, error: Exception) -> None:
    await busy(scene)
    scene.commit(2, "b")
    scene.commit(3, "c")
    scene.records.failures = [error]
    scene.records.may.set()
    await scene.until(lambda: scene.told == [error])
    await scene.thread.close()
    assert scene.names() == []


async def test_large_outputs_go_into_files(scene: Scene) -> None:
    small, large = b"1" * INLINE_LIMIT_BYTES, b"2" * (INLINE_LIMIT_BYTES + 1)
    scene.thread.commit(
        1, [Complete(1, n, 7, TaskState.COMPLETED, 5, output) for n, output in ((0, small), (1, large))]
    )
    await scene.until(lambda: scene.told == [[1]])
    digest = hashlib.sha256(large).hexdigest()
    ((first, second),) = scene.records.batches
    assert isinstance(first, Complete) and isinstance(second, Complete)
    assert (first.output, first.blob) == (small, "")
    assert (second.output, second.blob, second.fence) == (b"", digest, 7)
    assert scene.blobs.get(digest) == large


async def test_a_file_that_cannot_be_written_now_is_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [StoreFailed("the disk is full")]
    put = scene.blobs.put

    def fail_once(digest: str, content: bytes) -> None:
        if failures:
            raise failures.pop()
        put(digest, content)

    monkeypatch.setattr(scene.blobs, "put", fail_once)
    scene.thread.commit(1, [Complete(1, 0, 7, TaskState.COMPLETED, 5, b"2" * (INLINE_LIMIT_BYTES + 1))])
    await scene.until(lambda: scene.told == ["the disk is full", "", [1]])


async def test_what_waits_is_written_before_it_ends(scene_of: SceneOf) -> None:
    scene = scene_of(changes_at_once=2)
    await busy(scene)
    for ticket in range(2, 7):
        scene.commit(ticket, str(ticket))
    scene.records.may.set()
    await scene.thread.close()
    assert [name for batch in scene.names() for name in batch] == ["a", "2", "3", "4", "5", "6"]


async def test_it_ends_though_the_store_takes_nothing(scene_of: SceneOf) -> None:
    scene = scene_of(again_s=3600.0)  # however long it is until the end
    scene.records.failures = [RecordsUnavailable("the disk is full") for _ in range(9)]
    scene.commit(1, "a")
    await scene.until(lambda: scene.told == ["the disk is full"])
    await scene.thread.close()
    assert scene.names() == []
    assert len(scene.records.failures) > 5


def test_nobody_is_told_when_the_loop_is_gone(tmp_path: Path) -> None:
    async def begin() -> Scene:
        scene = Scene(tmp_path)
        await busy(scene)
        return scene

    scene = asyncio.run(begin())
    scene.records.may.set()
    scene.thread._orders.put(None)
    scene.thread._thread.join(30)
    assert not scene.thread._thread.is_alive()
    assert scene.names() == [["a"]] and scene.told == []


# Records whose commits do not wait for the disk.


@pytest.fixture
async def quick(scene_of: SceneOf) -> Scene:
    return scene_of(is_quick=True, quiet_ns=-1, again_s=0.001)  # every commit is taken for a lone one


async def test_a_small_lone_commit_that_need_not_wait_for_the_disk_is_made_at_once(quick: Scene) -> None:
    assert quick.commit(1, "a")
    assert quick.commit(2)
    assert quick.names() == [["a"]]
    assert quick.records.threads == [threading.current_thread().name]


async def test_commits_that_follow_each_other_go_together(scene_of: SceneOf) -> None:
    quick = scene_of(is_quick=True, quiet_ns=1 << 62)
    assert not quick.commit(1, "a")
    await quick.until(lambda: quick.told == [[1]])
    assert quick.records.threads == ["store"]


@pytest.mark.parametrize("what", ["many", "large"])
async def test_what_takes_longer_is_left_to_the_thread(quick: Scene, what: str) -> None:
    if what == "many":
        quick.commit(1, *("x" * (SMALL + 1)))
    else:
        quick.thread.commit(1, [Complete(1, 0, 7, TaskState.COMPLETED, 5, b"x" * (INLINE_LIMIT_BYTES + 1))])
    await quick.until(lambda: quick.told == [[1]])
    assert quick.records.threads == ["store"]


async def test_what_goes_wrong_with_a_lone_commit_is_told_by_the_thread(quick: Scene) -> None:
    quick.records.failures = [RecordsUnavailable("the disk is full"), RecordsUnavailable("the disk is full")]
    quick.commit(1, "a")
    await quick.until(lambda: quick.told == ["the disk is full", "", [1]])
    assert quick.names() == [["a"]]


async def test_the_log_is_brought_to_its_place_by_the_thread(scene_of: SceneOf) -> None:
    quick = scene_of(is_quick=True, quiet_ns=-1, checkpoint_changes=3)
    for ticket in (1, 2, 3):
        quick.commit(ticket, "a")
    quick.commit(4, "b")  # meanwhile: in its turn
    await quick.until(lambda: [4] in quick.told)
    assert quick.records.checkpoints == 1
    assert quick.names() == [["a"], ["a"], ["a"], ["b"]]


# A disk that keeps small commits in a moment.


async def known_quick(scene: Scene) -> Scene:
    """Its disk was seen to be quick."""
    ticket = 0
    while "store" in scene.records.threads[-1:] or not scene.records.threads:
        ticket += 1
        assert ticket < 100
        told = len(scene.told)
        scene.commit(ticket, "seen")
        await scene.until(lambda told=told: len(scene.told) > told)  # type: ignore[misc]
    scene.records.threads.clear()
    scene.records.batches.clear()
    scene.told.clear()
    return scene


@pytest.fixture
async def near(scene_of: SceneOf) -> Scene:
    return await known_quick(scene_of(here_ns=100, again_s=0.001))


async def test_a_disk_is_taken_for_slow_until_it_was_seen(scene_of: SceneOf) -> None:
    scene = scene_of(here_ns=100)
    scene.commit(1, "a")
    await scene.until(lambda: scene.told == [[1]])
    assert scene.records.threads == ["store"]


async def test_small_commits_of_a_turn_are_made_together_at_its_end_where_the_disk_is_quick(near: Scene) -> None:
    assert not near.commit(1, "a")
    assert not near.commit(2, "b")
    assert near.names() == [], "others of this turn may follow"
    await near.until(lambda: near.told == [[1, 2]])
    assert near.names() == [["a", "b"]]
    assert near.records.threads == [threading.current_thread().name]


async def test_a_turn_with_many_changes_is_left_to_the_thread(near: Scene) -> None:
    for ticket in range(SMALL + 1):
        near.commit(ticket, "a")
    await near.until(lambda: sum(near.told, []) == list(range(SMALL + 1)))
    assert set(near.records.threads) == {"store"}


async def test_one_slow_commit_sends_those_that_follow_to_the_thread_until_it_is_forgotten(near: Scene) -> None:
    near.records.takes = lambda: setattr(near, "now", near.now + 1000)
    near.commit(1, "a")
    await near.until(lambda: near.told == [[1]])
    near.records.takes = lambda: None
    near.commit(2, "a")
    await near.until(lambda: near.told == [[1], [2]])
    assert near.records.threads == [threading.current_thread().name, "store"]
    await known_quick(near)


async def test_what_goes_wrong_at_the_end_of_a_turn_is_told_by_the_thread(near: Scene) -> None:
    near.records.failures = [RecordsUnavailable("the disk is full"), RecordsUnavailable("the disk is full")]
    near.commit(1, "a")
    near.commit(2, "b")
    await near.until(lambda: near.told == ["the disk is full", "", [1, 2]])
    assert near.names() == [["a", "b"]]


async def test_rows_that_differ_break_it_also_at_the_end_of_a_turn(near: Scene) -> None:
    near.records.refused = [SURE]
    near.thread.commit(1, [SURE])
    await near.until(lambda: len(near.told) == 1)
    assert isinstance(near.told[0], RecordsBroken)
    assert not near.commit(2, "a")
    assert len(near.records.batches) == 1


async def test_a_commit_is_left_to_the_thread_while_another_one_writes(near: Scene, quick: Scene) -> None:
    for scene, told in ((near, [1]), (quick, [2])):
        scene.told.clear()
        scene.records.is_busy = True
        assert not scene.commit(told[0], "a")
        await scene.until(lambda told=told, scene=scene: scene.told == [told])  # type: ignore[misc]
        assert scene.records.threads[-1] == "store", "the loop would stand still meanwhile"


async def test_what_is_leased_under_a_key_that_was_lost_is_left_to_the_thread(near: Scene) -> None:
    near.thread.give_up("k1")
    near.thread.commit(1, [DropSchedule("a")], "k2")
    await near.until(lambda: near.told == [[1]])
    assert near.records.threads == ["store"]


async def test_what_waits_for_the_end_of_a_turn_is_written_when_it_is_closed_or_given_up(near: Scene) -> None:
    near.commit(1, "a")
    await near.thread.close()
    assert near.names() == [["a"]] and near.records.threads == ["store"]


async def test_nothing_is_made_at_the_end_of_a_turn_in_which_the_store_was_lost(near: Scene) -> None:
    near.commit(1, "a")
    near.thread.give_up()
    await asyncio.sleep(0)
    assert near.names() == []


async def test_the_log_is_brought_to_its_place_by_the_thread_also_then(scene_of: SceneOf) -> None:
    near = await known_quick(scene_of(here_ns=100, checkpoint_changes=3))
    for ticket in (1, 2, 3, 4):
        near.commit(ticket, "a")
        await near.until(lambda ticket=ticket: near.told[-1:] == [[ticket]])  # type: ignore[misc]
    assert near.records.checkpoints == 1


# What the store did not take.

SURE = MoveJob(1, JobState.PAUSED, 5)


async def test_a_store_that_has_other_rows_than_were_written_to_it_breaks_the_manager(scene: Scene) -> None:
    scene.records.refused = [SURE, DropSchedule("late")]
    scene.thread.commit(1, [DropSchedule("late")])
    await scene.until(lambda: len(scene.told) == 1)
    assert scene.told == [[1]], "what came too late is no reason"
    scene.thread.commit(2, [SURE])
    await scene.until(lambda: len(scene.told) == 2)
    assert "what it has is not what was written to it" in str(scene.told[1])
    scene.commit(3, "a")
    await scene.thread.close()
    assert len(scene.records.batches) == 2, "nothing that came later may be written"


async def test_a_commit_of_the_loop_that_the_store_did_not_take_breaks_the_manager_too(quick: Scene) -> None:
    quick.records.refused = [SURE]
    assert not quick.thread.commit(1, [SURE])
    assert not quick.thread.commit(2, [DropSchedule("a")])
    await quick.until(lambda: len(quick.told) == 1)
    assert "what it has is not what was written to it" in str(quick.told[0])
    assert len(quick.records.batches) == 1


async def test_a_store_that_was_given_up_is_not_written_any_more(scene: Scene) -> None:
    await busy(scene)
    scene.commit(2, "b")
    scene.thread.give_up()
    scene.commit(3, "c")
    scene.records.may.set()
    await scene.thread.close()
    assert scene.names() == [["a"]]


# Leases.


async def test_a_transaction_is_made_under_the_leases_of_all_its_commits(scene: Scene) -> None:
    await busy(scene)
    scene.thread.commit(2, [DropSchedule("b")], "x")
    scene.thread.commit(3, [DropSchedule("c")], "y")
    scene.thread.commit(4, [DropSchedule("d")], "x")
    scene.records.may.set()
    await scene.until(lambda: scene.told == [[1], [2, 3, 4]])
    assert scene.records.keys == [(), ("x", "y")]


async def test_what_is_leased_under_other_keys_goes_on_when_one_is_taken(scene: Scene) -> None:
    await busy(scene)
    for ticket, key in enumerate(("x", "y", "x", "z"), 2):
        scene.thread.commit(ticket, [DropSchedule(str(ticket))], key)
    scene.records.taken = {"x"}
    scene.records.failures = []
    scene.records.may.set()
    scene.thread.commit(6, [DropSchedule("6")], "x")
    await scene.until(lambda: any(told == [3, 5] for told in scene.told))
    (error,) = [told for told in scene.told if isinstance(told, StoreTaken)]
    assert error.key == "x" and scene.names()[-1] == ["3", "5"]
    scene.thread.commit(7, [DropSchedule("7")], "x")
    scene.commit(8, "8")
    scene.thread.commit(9, [DropSchedule("9")], "y")
    await scene.until(lambda: scene.told[-1] == [9])
    assert [told for told in scene.told if told not in ([1], error)] == [[3, 5], [9]], "8 is made under all of them"


async def test_one_key_is_given_up_alone(scene: Scene) -> None:
    await busy(scene)
    scene.thread.commit(2, [DropSchedule("2")], "x")
    scene.thread.commit(3, [DropSchedule("3")], "y")
    scene.thread.give_up("x")
    scene.records.may.set()
    await scene.until(lambda: scene.told[-1:] == [[3]])
    assert scene.told == [[1], [3]]
