"""A worker's shelf: what was written as one is there as one, after whatever end."""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from talka.errors import Invalid, Unavailable
from talka.store.files.folder import StoreFailed
from talka.store.files.shelf import BadShelf, Shelf

LIMIT_S = 60
WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from talka.store.files.shelf import Shelf
shelf = Shelf(Path(sys.argv[1]))
shelf.write((("fence", b"1"), ("result/a/1", b"x" * 100_000)))
shelf.write((("fence", b"2"), ("result/a/1", None)))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shelf"


def stored_in(path: Path) -> dict[str, bytes]:
    shelf = Shelf(path)
    shelf.close()
    return shelf.stored


def write(path: Path, *puts: tuple[str, bytes | None]) -> None:
    shelf = Shelf(path)
    shelf.write(puts)
    shelf.close()


def test_a_new_shelf_is_empty_and_its_owners_alone(path: Path) -> None:
    shelf = Shelf(path)
    shelf.write((("fence", b"1"),))

    assert shelf.stored == {}
    modes = [stat.S_IMODE((path.parent / name).stat().st_mode) for name in sorted(os.listdir(path.parent))]
    assert len(modes) > 1 and set(modes) == {0o600}
    shelf.close()


def test_what_was_written_is_there_at_the_next_start(path: Path) -> None:
    write(path, ("fence", b"1"), ("result/a/1", b""), ("result/b/2", bytes(range(256))))

    assert stored_in(path) == {"fence": b"1", "result/a/1": b"", "result/b/2": bytes(range(256))}


def test_later_values_replace_earlier_ones_and_none_removes(path: Path) -> None:
    write(path, ("fence", b"1"), ("result/a/1", b"x"))
    write(path, ("fence", b"2"), ("result/a/1", None), ("never", None), ("fence", b"3"))

    assert stored_in(path) == {"fence": b"3"}


def test_what_was_written_survives_a_process_that_is_killed(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path)], timeout=LIMIT_S)

    assert done.returncode == -signal.SIGKILL
    assert stored_in(path) == {"fence": b"2"}


def test_a_write_that_fails_half_way_changes_nothing(path: Path) -> None:
    shelf = Shelf(path)
    shelf.write((("fence", b"1"),))

    with pytest.raises(TypeError):
        shelf.write((("fence", b"2"), ("result/a/1", 5)))  # type: ignore[arg-type]
    shelf.write((("other", b"3"),))
    shelf.close()

    assert stored_in(path) == {"fence": b"1", "other": b"3"}


def test_a_full_disk_is_a_sentence_and_changes_nothing(small_disk: Path) -> None:
    path = small_disk / "shelf"
    shelf = Shelf(path)
    shelf.write((("fence", b"1"),))

    with pytest.raises(Unavailable, match=f"{path} could not be written .the disk is full.: free some space there"):
        shelf.write((("fence", b"2"), ("result/a/1", b"x" * 2_000_000)))
    shelf.write((("other", b"3"),))
    shelf.close()

    assert stored_in(path) == {"fence": b"1", "other": b"3"}


def test_a_closed_shelf_takes_nothing(path: Path) -> None:
    shelf = Shelf(path)
    shelf.close()
    shelf.close()

    with pytest.raises(Invalid, match="has been closed"):
        shelf.write((("fence", b"1"),))


def test_a_write_whose_outcome_is_unknown_is_the_last_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(path)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR

    class Broken:
        in_transaction = False

        def execute(self, sql: str, values: object = ()) -> None:
            raise error

        def close(self) -> None:
            raise error

    real = shelf._connection
    assert real is not None
    monkeypatch.setattr(shelf, "_connection", Broken())
    with pytest.raises(StoreFailed, match=r"could not be used \(disk I/O error\): fix that and start again"):
        shelf.write((("fence", b"1"),))
    monkeypatch.setattr(shelf, "_connection", real)
    with pytest.raises(StoreFailed, match="nothing more is written .*: an earlier write failed"):
        shelf.write((("fence", b"2"),))
    monkeypatch.setattr(shelf, "_connection", Broken())
    shelf.close()
    real.close()


# -- files that cannot be used


def test_a_shelf_that_another_process_holds_is_refused(path: Path) -> None:
    shelf = Shelf(path)

    with pytest.raises(StoreFailed, match=f"{path} is in use by another process: stop that one"):
        Shelf(path)
    shelf.close()


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"no database at all, and long enough to be sure of it" * 20)

    with pytest.raises(BadShelf, match=f"{path} is damaged .*: start with another --data-dir"):
        Shelf(path)


def test_a_file_with_a_spoilt_page_is_refused(path: Path) -> None:
    write(path, *((f"result/a/{number}", b"x" * 3000) for number in range(20)))
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    path.write_bytes(content)

    with pytest.raises(BadShelf, match="is damaged"):
        Shelf(path)


def test_a_value_that_was_changed_is_noticed(path: Path) -> None:
    write(path, ("fence", b"the fence"))
    content = path.read_bytes()
    assert content.count(b"the fence") == 1
    path.write_bytes(content.replace(b"the fence", b"the fency"))

    with pytest.raises(BadShelf, match=r"is damaged \(the value of 'fence' was changed\)"):
        Shelf(path)


def test_a_database_of_something_else_is_refused_and_left_as_it_is(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    before = path.read_bytes()

    with pytest.raises(BadShelf, match="is a database of something else"):
        Shelf(path)
    assert path.read_bytes() == before


def test_a_file_of_a_later_version_is_refused(path: Path) -> None:
    write(path, ("fence", b"1"))
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 2")
    later.close()

    with pytest.raises(BadShelf, match=r"a later version of talka \(its format is 2, known here is 1\)"):
        Shelf(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="shelf could not be opened"):
        Shelf(tmp_path / "missing" / "shelf")
    with pytest.raises(StoreFailed, match="could not be opened"):
        Shelf(tmp_path)


def test_an_empty_file_of_a_first_start_that_came_no_further_is_a_new_shelf(path: Path) -> None:
    path.touch()

    assert stored_in(path) == {}


# What is on the disk itself.

COUNT_SYNCS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static void note(void)
{
    const char *path = getenv("SYNCS");
    int file = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (file >= 0) {
        if (write(file, ".", 1) < 0) { }
        close(file);
    }
}

int fdatasync(int file)
{
    note();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
}

int fsync(int file)
{
    note();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
"""
WRITE_AND_COUNT = """
import os, sys
from pathlib import Path
from talka.store.files.shelf import Shelf

def syncs():
    return os.path.getsize(os.environ["SYNCS"]) if os.path.exists(os.environ["SYNCS"]) else 0

shelf = Shelf(Path(sys.argv[1]))
counts = [syncs()]
for number in range(5):
    shelf.write((("fence", b"%d" % number),))
    counts.append(syncs())
print(*counts)
"""


def test_the_open_file_waits_for_the_disk_with_every_write(path: Path) -> None:
    """Asked of the connection that writes: another one has settings of its own."""
    shelf = Shelf(path)
    assert shelf._connection is not None
    asked = {
        name: shelf._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")
    }
    shelf.close()

    assert asked == {"synchronous": 2, "journal_mode": "wal"}, "2 is FULL"


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="counts calls with a library it makes"
)
def test_no_write_returns_before_the_kernel_was_told_to_put_it_on_the_disk(path: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "syncs.c", tmp_path / "syncs.so"
    source.write_text(COUNT_SYNCS)
    words = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(words, check=True, timeout=LIMIT_S, capture_output=True)

    told = subprocess.run(
        [sys.executable, "-c", WRITE_AND_COUNT, str(path)],
        env={**os.environ, "LD_PRELOAD": str(library), "SYNCS": str(tmp_path / "syncs")},
        check=True,
        timeout=LIMIT_S,
        capture_output=True,
        text=True,
    ).stdout

    counts = [int(word) for word in told.split()]
    assert len(counts) == 6
    assert all(after > before for before, after in zip(counts, counts[1:], strict=False)), counts
