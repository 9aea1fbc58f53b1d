"""Which store a file is, and when it begins a new life."""

import contextlib
import itertools
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from talka.store.dags.memory import MEMORY_NAME, STORES_LIMIT, OpenedLife, StoreMemory
from talka.store.dags.records import RecordsUnavailable
from talka.store.dags.sqlite import SqliteRecords
from talka.store.dags.sqlite_file import QUERIES, FileLimits, SqliteFile
from talka.store.dags.sqlite_life import inode_of, open_life
from talka.store.files.folder import StoreFailed
from talka.work.dags.records import DropSchedule

LEASE = "manager"


class Keeper:
    """A manager's folder and its store, opened again and again."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "m1"
        self.folder.mkdir()
        self.file = path / "jobs.sqlite"
        self.drawn = itertools.count(100)

    def open(self) -> OpenedLife:
        with SqliteRecords(str(self.file)) as records:
            records.release("m1", [(lease.key, lease.epoch) for lease in records.leases(LEASE)])
            (lease,) = records.acquire([LEASE], "m1")
            memory = StoreMemory(self.folder)
            opened = open_life(records, lease.epoch, memory, lambda: next(self.drawn))
            memory.remember(opened.store, opened.life, lease.epoch)
            return opened

    def copied(self, name: str) -> Path:
        return Path(shutil.copyfile(self.file, self.file.with_name(name)))

    def backup(self, name: str = "copy.sqlite") -> Path:
        target = self.file.with_name(name)
        file = SqliteFile(str(self.file), as_it_is=True)
        file.backup(target)
        file.close()
        return target

    def put_back(self, copy: Path) -> None:
        """Into the file that is there: its inode stays."""
        shutil.copyfile(copy, self.file)


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path)


def test_a_store_goes_on_with_its_life_as_long_as_it_is_the_same_file(keeper: Keeper) -> None:
    first = keeper.open()

    assert first == (100, 101, "")
    assert [keeper.open() for _ in range(3)] == [first] * 3


def test_a_backup_begins_a_new_life_of_the_same_store_when_it_is_first_opened(keeper: Keeper) -> None:
    first = keeper.open()
    copy = keeper.backup()
    keeper.open()

    keeper.put_back(copy)
    second = keeper.open()

    assert second.store == first.store
    assert second.life not in (first.life, 0)
    assert second.reason == "it is a copy made by talka store backup"
    assert keeper.open() == (*second[:2], "")


def test_every_opening_of_one_backup_begins_a_life_of_its_own(keeper: Keeper) -> None:
    keeper.open()
    copy = keeper.backup()
    lives = set()
    for _ in range(3):
        keeper.put_back(copy)
        lives.add(keeper.open().life)

    assert len(lives) == 3


def test_the_mark_of_a_backup_is_in_the_copy_alone(keeper: Keeper) -> None:
    first = keeper.open()
    copy = keeper.backup()

    assert keeper.open() == first
    assert sorted(path.name for path in copy.parent.iterdir()) == ["copy.sqlite", "jobs.sqlite", "m1"]


def test_looking_at_a_backup_does_not_use_its_mark_up(keeper: Keeper) -> None:
    keeper.open()
    copy = keeper.backup()
    for look in (SqliteFile.problems, SqliteFile.sizes):
        file = SqliteFile(str(copy), as_it_is=True)
        look(file)
        file.close()
    again = SqliteFile(str(copy), as_it_is=True)
    again.backup(copy.with_name("second.sqlite"))
    again.close()

    keeper.put_back(copy.with_name("second.sqlite"))
    assert keeper.open().reason == "it is a copy made by talka store backup"


def test_a_plain_copy_of_before_the_last_start_begins_a_new_life(keeper: Keeper) -> None:
    first = keeper.open()
    copy = keeper.copied("plain.sqlite")
    keeper.open()

    keeper.put_back(copy)
    second = keeper.open()

    assert (second.store, second.life != first.life) == (first.store, True)
    assert second.reason == "it is an older copy: its epoch is 2, and epoch 2 was served from this data folder"


def test_a_plain_copy_of_since_the_last_start_goes_on(keeper: Keeper) -> None:
    """Its next epoch is one that nobody has given anything out under."""
    first = keeper.open()

    keeper.put_back(keeper.copied("plain.sqlite"))

    assert keeper.open() == first


def test_a_plain_copy_of_an_earlier_life_begins_a_new_one(keeper: Keeper) -> None:
    first = keeper.open()
    plain = keeper.copied("plain.sqlite")
    keeper.put_back(keeper.backup())
    second = keeper.open()
    keeper.put_back(plain)
    third = keeper.open()

    assert third.reason == "it is a copy of before this data folder served it last"
    assert len({first.life, second.life, third.life}) == 3


def test_a_plain_copy_in_another_place_begins_a_new_life(keeper: Keeper, tmp_path: Path) -> None:
    first = keeper.open()
    (tmp_path / "elsewhere").mkdir()
    other = Keeper(tmp_path / "elsewhere")
    shutil.copyfile(keeper.file, other.file)

    second = other.open()

    assert (second.store, second.reason) == (first.store, "it was copied here from another place")
    assert keeper.open() == first


def test_a_file_that_another_folder_takes_over_goes_on(keeper: Keeper, tmp_path: Path) -> None:
    """Of a manager that is gone: what its workers hold of this store counts."""
    first = keeper.open()
    keeper.folder = tmp_path / "m2"
    keeper.folder.mkdir()

    assert keeper.open() == first


def test_a_new_store_under_the_same_name_is_another_store(keeper: Keeper) -> None:
    first = keeper.open()
    os.unlink(keeper.file)

    second = keeper.open()

    assert second.store != first.store and second.life != first.life
    assert second.reason == ""


def test_a_store_of_a_version_without_lives_draws_its_first(keeper: Keeper) -> None:
    keeper.open()
    first = keeper.file.with_name("first.sqlite")
    with contextlib.closing(sqlite3.connect(first)) as connection:
        connection.executescript(QUERIES.migrations[0].sql)
        connection.execute("INSERT INTO talka_tasks_version VALUES (1)")
        connection.commit()
    old = SqliteFile(str(first), as_it_is=True)
    old.backup(keeper.file.with_name("old.sqlite"))
    old.close()

    keeper.put_back(keeper.file.with_name("old.sqlite"))

    assert keeper.open() == (102, 103, "")


def test_a_damaged_memory_is_no_proof_that_a_file_is_the_same(keeper: Keeper) -> None:
    first = keeper.open()
    (keeper.folder / MEMORY_NAME).write_bytes(b'{"100": {"life"')

    second = keeper.open()

    assert (second.life != first.life, second.reason) == (True, "what this data folder remembered of it is damaged")
    assert keeper.open() == (*second[:2], "")


def test_a_folder_remembers_a_number_of_stores(keeper: Keeper) -> None:
    memory = StoreMemory(keeper.folder)
    for store in range(STORES_LIMIT + 3):
        memory.remember(store, 7, 1)

    again = StoreMemory(keeper.folder)

    assert again.of(2) is None
    assert [again.of(store) for store in (3, STORES_LIMIT + 2)] == [memory.of(3), memory.of(STORES_LIMIT + 2)]
    assert memory.of(3) is not None


def test_a_store_in_memory_has_no_place(tmp_path: Path) -> None:
    assert inode_of("memory") == 0
    with pytest.raises(StoreFailed, match="cannot be looked at"):
        inode_of(str(tmp_path / ("x" * 300)))


def test_an_epoch_is_raised_by_its_holder_alone(keeper: Keeper) -> None:
    with SqliteRecords(str(keeper.file)) as records:
        (lease,) = records.acquire([LEASE], "m1")
        assert lease.epoch == 1
        assert records.raise_epoch("m1", (LEASE, 1), 9) == 9
        assert records.raise_epoch("m1", (LEASE, 1), 12) == 0, "another epoch is held"
        assert records.raise_epoch("m2", (LEASE, 9), 12) == 0
        assert records.raise_epoch("m1", (LEASE, 9), 3) == 10, "it never goes back"
        assert [one.epoch for one in records.leases(LEASE)] == [10]
        assert [one.epoch for one in records.renew("m1", [(LEASE, 10)])] == [10]


def test_a_change_under_a_lease_goes_on_under_the_epoch_it_was_raised_to(tmp_path: Path) -> None:
    with SqliteRecords(str(tmp_path / "store.db")) as records:
        (lease,) = records.acquire([LEASE], "m1")
        records.fence(lease)
        assert records.raise_epoch("m1", (LEASE, lease.epoch), 10) == 10
        assert records.apply([DropSchedule("none")]) == [0]
        assert records.raise_epoch("m2", (LEASE, 10), 20) == 0
        assert records.apply([DropSchedule("none")]) == [0]


def test_a_raised_epoch_puts_no_changes_under_a_lease_that_were_under_none(tmp_path: Path) -> None:
    with SqliteRecords(str(tmp_path / "store.db")) as records:
        (lease,) = records.acquire([LEASE], "m1")
        assert records.raise_epoch("m1", (LEASE, lease.epoch), 10) == 10
        assert records.release("m1", [(LEASE, 10)]) == 1
        assert records.apply([DropSchedule("none")]) == [0]


def test_an_epoch_that_could_not_be_raised_is_the_one_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteRecords(str(tmp_path / "store.db"), limits=FileLimits(look_ns=-1)) as records:
        (lease,) = records.acquire([LEASE], "m1")
        records.fence(lease)

        def full() -> None:
            raise RecordsUnavailable("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(records.file, "_check_place", full)
            with pytest.raises(RecordsUnavailable):
                records.raise_epoch("m1", (LEASE, lease.epoch), 10)
        assert records.apply([DropSchedule("none")]) == [0]


def test_a_backup_is_nobodys_and_is_had_without_waiting_for_who_has_the_original(tmp_path: Path) -> None:
    with SqliteRecords(str(tmp_path / "store.db")) as records:
        (lease,) = records.acquire([LEASE], "m1")
        records.file.backup(tmp_path / "copy.db")
        assert list(records.leases("")) == [lease]
    with SqliteRecords(str(tmp_path / "copy.db")) as copy:
        assert list(copy.leases("")) == []
        assert [one.epoch for one in copy.acquire([LEASE], "m2")] == [lease.epoch + 1]
