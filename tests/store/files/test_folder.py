"""The data folder: made for its owner alone, and for one process at a time."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from talka.errors import Invalid
from talka.store.files import folder as folder_module
from talka.store.files.folder import (
    BadFolder,
    DataFolder,
    FolderInUse,
    StoreFailed,
    read_file,
    replace_file,
    set_aside,
    sync_folder,
)

LIMIT_S = 60
HOLD = """
import sys
from pathlib import Path
from talka.store.files.folder import DataFolder
folder = DataFolder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def fail(patch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let a function of `os` fail in the store with this number of an error."""

    def failed(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(folder_module, "os", SimpleNamespace(**{**vars(os), name: failed}))


# -- the folder


def test_a_missing_folder_is_made_with_its_parents_for_its_owner_alone(tmp_path: Path) -> None:
    with DataFolder(tmp_path / "a" / "b") as folder:
        assert folder.path == tmp_path / "a" / "b"
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert stat.S_IMODE(folder.path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder.path / "lock").stat().st_mode) == 0o600


def test_a_folder_that_another_process_makes_at_the_same_moment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_twice(path: Path, mode: int) -> None:
        os.mkdir(path, mode)
        os.mkdir(path, mode)

    monkeypatch.setattr(folder_module, "os", SimpleNamespace(**{**vars(os), "mkdir": make_twice}))
    DataFolder(tmp_path / "a").release()
    assert (tmp_path / "a" / "lock").exists()


def test_the_path_stays_the_same_when_the_process_moves_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with DataFolder(Path("data")) as folder:
        assert folder.path == tmp_path / "data"


def test_the_name_of_a_new_folder_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(folder_module, "sync_folder", synced.append)
    DataFolder(tmp_path / "a" / "b").release()
    assert synced == [tmp_path, tmp_path / "a"]


# -- the lock


def test_a_second_user_of_a_folder_is_refused_until_the_first_releases_it(tmp_path: Path) -> None:
    first = DataFolder(tmp_path)
    with pytest.raises(FolderInUse, match=f"{tmp_path} is in use by process {os.getpid()}: stop that one") as refusal:
        DataFolder(tmp_path)
    assert isinstance(refusal.value, Invalid)
    assert refusal.value.pid == str(os.getpid())
    first.release()
    first.release()
    DataFolder(tmp_path).release()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    holding = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUse, match=f"in use by process {child.pid}:"):
            DataFolder(tmp_path)
        child.kill()
        child.wait(LIMIT_S)
    DataFolder(tmp_path).release()


def test_programs_started_meanwhile_do_not_keep_the_lock(tmp_path: Path) -> None:
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    folder = DataFolder(tmp_path)
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, close_fds=False) as child:
        folder.release()
        DataFolder(tmp_path).release()
        child.communicate(timeout=LIMIT_S)


def test_a_descriptor_shared_with_a_child_does_not_keep_a_released_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[int] = []

    def open_twice(*arguments: Any) -> int:
        descriptor = os.open(*arguments)
        shared.append(os.dup(descriptor))  # what a fork does
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "os", SimpleNamespace(**{**vars(os), "open": open_twice}))
        DataFolder(tmp_path).release()
    DataFolder(tmp_path).release()
    for descriptor in shared:
        os.close(descriptor)


@pytest.mark.parametrize("text", ["", "x\n", "\xff"], ids=["empty", "word", "no-utf8"])
def test_a_holder_that_has_not_written_its_number_is_another_process(tmp_path: Path, text: str) -> None:
    with DataFolder(tmp_path):
        (tmp_path / "lock").write_bytes(text.encode("latin-1"))
        with pytest.raises(FolderInUse, match="in use by another process"):
            DataFolder(tmp_path)


def test_the_number_of_an_earlier_holder_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99999999999\n")
    with DataFolder(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


# -- what is wrong with a folder


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_in_the_way_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadFolder, match=f"{tmp_path / path} cannot be the data folder: a file is in the way"):
        DataFolder(tmp_path / path)


def test_a_link_to_nowhere_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadFolder, match="a file is in the way"):
        DataFolder(tmp_path / "link")


def test_a_folder_in_place_of_the_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(BadFolder, match="lock is a folder and must be a file"):
        DataFolder(tmp_path)


@pytest.mark.parametrize("call", ["mkdir", "open"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS], ids=["denied", "read-only"])
def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    fail(monkeypatch, call, number)
    with pytest.raises(BadFolder, match=rf"cannot be used \({os.strerror(number)}\): let this user write there"):
        DataFolder(tmp_path / "new" if call == "mkdir" else tmp_path)


def test_a_folder_that_only_others_may_write_is_refused_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    # For root every folder is writable, so the answer is given here.
    monkeypatch.setattr(folder_module, "os", SimpleNamespace(**{**vars(os), "access": lambda path, mode: False}))
    with pytest.raises(BadFolder, match="Permission denied"):
        DataFolder(tmp_path)


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFolder, match="File name too long"):
        DataFolder(tmp_path / ("x" * 300))


def test_a_full_disk_is_no_fault_of_the_path_and_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail(patch, "write", errno.ENOSPC)
        with pytest.raises(StoreFailed, match=r"could not be made or locked \(No space left on device\): free some"):
            DataFolder(tmp_path)
    DataFolder(tmp_path).release()


# -- files in it


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"first")
    for call in ("open", "write", "fdatasync", "replace"):
        with monkeypatch.context() as patch:
            fail(patch, call, errno.ENOSPC)
            with pytest.raises(StoreFailed, match=f"{path} could not be written"):
                replace_file(path, b"second")
        assert path.read_bytes() == b"first"
    replace_file(path, b"third")
    assert path.read_bytes() == b"third"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_is_synced_before_it_takes_its_name_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def replace(source: Path, target: Path) -> None:
        steps.append("rename")
        os.replace(source, target)

    monkeypatch.setattr(folder_module, "sync_file", lambda descriptor: steps.append("file"))
    monkeypatch.setattr(folder_module, "sync_folder", lambda path: steps.append(f"folder {path.name}"))
    monkeypatch.setattr(folder_module, "os", SimpleNamespace(**{**vars(os), "replace": replace}))
    replace_file(tmp_path / "file", b"content")
    assert steps == ["file", "rename", f"folder {tmp_path.name}"]


def test_a_missing_file_is_none_and_a_long_one_is_cut_behind_the_limit(tmp_path: Path) -> None:
    assert read_file(tmp_path / "file", 4) is None
    (tmp_path / "file").write_bytes(b"123456")
    assert read_file(tmp_path / "file", 4) == b"12345"


def test_a_file_that_cannot_be_set_aside_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="gone could not be set aside"):
        set_aside(tmp_path / "gone")


def test_a_folder_is_synced_through_a_descriptor_that_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        os.close(descriptor)

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(folder_module, "os", SimpleNamespace(**{**vars(os), "close": close, "fsync": fsync}))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
    assert len(closed) == 1
