"""Blobs on disk: whole and durable, or not there."""

import errno
import hashlib
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from talka.errors import Unavailable
from talka.store.files import blobs as blobs_module
from talka.store.files import folder as folder_module
from talka.store.files.blobs import BadBlob, Blobs
from talka.store.files.folder import StoreFailed

DAY_S = 86_400


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def kept(blobs: Blobs, content: bytes, *, at_s: float | None = None) -> str:
    digest = digest_of(content)
    blobs.put(digest, content)
    if at_s is not None:
        os.utime(blobs.path(digest), (at_s, at_s))
    return digest


def fail(patch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let a function of `os` fail in the store with this number of an error."""

    def failed(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    for module in (blobs_module, folder_module):
        patch.setattr(module, "os", SimpleNamespace(**{**vars(os), name: failed}))


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def test_what_was_put_is_there_also_for_the_next_process(blobs: Blobs, tmp_path: Path) -> None:
    digest = kept(blobs, b"content")

    for each in (blobs, Blobs(tmp_path / "blobs")):
        assert each.has(digest)
        assert each.get(digest) == b"content"
        assert each.path(digest).read_bytes() == b"content"
        assert each.digests() == [digest]


def test_an_empty_blob_is_a_blob(blobs: Blobs) -> None:
    assert blobs.get(kept(blobs, b"")) == b""


def test_what_was_never_put_is_not_there(blobs: Blobs) -> None:
    digest = digest_of(b"other")

    assert not blobs.has(digest)
    assert blobs.get(digest) is None
    assert blobs.digests() == []


def test_only_their_owner_may_read_blobs(blobs: Blobs) -> None:
    path = blobs.path(kept(blobs, b"secret"))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_putting_again_changes_nothing_and_makes_it_young_again(blobs: Blobs) -> None:
    digest = kept(blobs, b"content", at_s=1)

    blobs.put(digest, b"content")

    assert blobs.get(digest) == b"content"
    assert blobs.path(digest).stat().st_mtime > 1


def test_content_that_is_not_what_its_name_says_is_refused(blobs: Blobs) -> None:
    with pytest.raises(BadBlob, match="it was changed on its way"):
        blobs.put(digest_of(b"one"), b"other")

    assert os.listdir(blobs.path(digest_of(b"one")).parent) == []


def test_a_blob_above_the_limit_is_refused(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "small", 4)
    kept(blobs, b"1234")
    with pytest.raises(BadBlob, match="a blob of 5 bytes is not kept .*: at most 4 are"):
        kept(blobs, b"12345")


@pytest.mark.parametrize(
    "name",
    ["", "../../etc/passwd", "a" * 63, "a" * 65, "A" * 64, "a" * 63 + "\n", "a" * 63 + "/"],
    ids=["empty", "path", "short", "long", "upper", "newline", "slash"],
)
def test_a_name_that_is_no_digest_reaches_no_file(blobs: Blobs, name: str) -> None:
    for act in (blobs.path, blobs.has, blobs.get, blobs.remove, lambda name: blobs.put(name, b"")):
        with pytest.raises(BadBlob, match="is not the name of a blob"):
            act(name)


def test_a_file_is_synced_before_it_takes_its_name_and_its_name_after(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def replace(source: Path, target: Path) -> None:
        steps.append("rename")
        os.replace(source, target)

    monkeypatch.setattr(folder_module, "sync_file", lambda descriptor: steps.append("file"))
    monkeypatch.setattr(blobs_module, "sync_folder", lambda path: steps.append(f"folder {path.name}"))
    monkeypatch.setattr(blobs_module, "os", SimpleNamespace(**{**vars(os), "replace": replace}))
    kept(blobs, b"content")

    assert steps == ["file", "rename", "folder blobs"]


# -- damage and full disks


def test_a_damaged_blob_is_set_aside_and_counts_as_absent(blobs: Blobs) -> None:
    digest = kept(blobs, b"content")
    blobs.path(digest).write_bytes(b"contend")

    assert blobs.get(digest) is None
    assert not blobs.has(digest)
    assert blobs.digests() == []
    assert os.listdir(blobs.path(digest).parent) == [f"{digest}.damaged"]
    blobs.put(digest, b"content")
    assert blobs.get(digest) == b"content"


def test_damage_that_two_find_at_once_is_absent_for_both(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = kept(blobs, b"content")
    blobs.path(digest).write_bytes(b"contend")

    def overtaken(path: Path) -> Path:
        path.unlink()
        raise StoreFailed("gone")

    monkeypatch.setattr(blobs_module, "set_aside", overtaken)
    assert blobs.get(digest) is None


def test_damage_that_cannot_be_set_aside_is_said(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = kept(blobs, b"content")
    blobs.path(digest).write_bytes(b"contend")

    def refused(path: Path) -> Path:
        raise StoreFailed("it stays")

    monkeypatch.setattr(blobs_module, "set_aside", refused)
    with pytest.raises(StoreFailed, match="it stays"):
        blobs.get(digest)


@pytest.mark.parametrize("call", ["open", "replace"])
def test_a_write_that_fails_leaves_no_file(blobs: Blobs, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    folder = blobs.path(digest_of(b"")).parent
    with monkeypatch.context() as patch:
        fail(patch, call, errno.ENOSPC)
        with pytest.raises(StoreFailed, match="could not be written .No space left on device.: free some space"):
            kept(blobs, b"content")

    assert os.listdir(folder) == []


def test_a_full_disk_is_a_sentence_and_leaves_what_was_there(small_disk: Path) -> None:
    blobs = Blobs(small_disk / "blobs")
    first = kept(blobs, b"1" * 300_000)

    with pytest.raises(Unavailable, match="No space left on device"):
        kept(blobs, b"2" * 900_000)

    assert os.listdir(small_disk / "blobs") == [first]
    assert blobs.get(first) == b"1" * 300_000
    kept(blobs, b"3" * 300_000)


def test_what_a_killed_process_left_half_written_is_gone_at_the_next_start(tmp_path: Path) -> None:
    first = kept(Blobs(tmp_path), b"content")
    (tmp_path / f"{digest_of(b'other')}.0.new").write_bytes(b"oth")

    assert Blobs(tmp_path).digests() == [first]
    assert os.listdir(tmp_path) == [first]


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreFailed, match="file/blobs could not be made or read"):
        Blobs(tmp_path / "file" / "blobs")


def test_a_folder_that_is_gone_is_named(blobs: Blobs) -> None:
    blobs.path(digest_of(b"")).parent.rmdir()

    with pytest.raises(StoreFailed, match="blobs could not be read"):
        blobs.digests()


# -- forgetting


def test_a_removed_blob_is_gone_and_removing_it_again_is_no_error(blobs: Blobs) -> None:
    digest = kept(blobs, b"content")

    blobs.remove(digest)
    blobs.remove(digest)

    assert not blobs.has(digest)


def test_what_cannot_be_removed_is_named(blobs: Blobs) -> None:
    path = blobs.path(digest_of(b"content"))
    path.mkdir()

    with pytest.raises(StoreFailed, match=f"{path} could not be removed"):
        blobs.remove(path.name)


def test_a_sweep_removes_what_is_old_and_nobody_keeps(blobs: Blobs) -> None:
    old, young, wanted = (
        kept(blobs, b"old", at_s=0),
        kept(blobs, b"young", at_s=DAY_S),
        kept(blobs, b"wanted", at_s=0),
    )

    assert blobs.sweep({wanted}, older_than_s=DAY_S, now_s=DAY_S + 1) == [old]
    assert blobs.digests() == sorted([young, wanted])


def test_a_sweep_removes_the_oldest_beyond_so_many_except_young_ones(blobs: Blobs) -> None:
    ages_s = {kept(blobs, str(age_s).encode(), at_s=DAY_S - age_s): age_s for age_s in range(0, 60, 10)}
    wanted = kept(blobs, b"wanted", at_s=0)
    removed = blobs.sweep({wanted}, older_than_s=45, now_s=DAY_S, most=2, young_s=25)
    assert sorted(ages_s[digest] for digest in removed) == [30, 40, 50]
    assert len(blobs.digests()) == 4


def test_a_blob_that_is_named_again_is_as_young_as_a_new_one(blobs: Blobs) -> None:
    named = kept(blobs, b"named", at_s=0)
    assert blobs.renew(named) == 5
    assert blobs.sweep([], older_than_s=DAY_S, now_s=blobs.path(named).stat().st_mtime + 1) == []
    assert blobs.renew(digest_of(b"another")) is None


def test_a_blob_that_cannot_be_named_again_is_a_sentence(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    named = kept(blobs, b"named")
    fail(monkeypatch, "utime", errno.EACCES)
    with pytest.raises(StoreFailed, match=f"{blobs.path(named)} could not be kept"):
        blobs.renew(named)


def test_a_sweep_removes_old_damage_and_leaves_files_of_others(blobs: Blobs) -> None:
    digest = kept(blobs, b"content")
    folder = blobs.path(digest).parent
    blobs.path(digest).write_bytes(b"contend")
    os.utime(blobs.path(digest), (0, 0))
    blobs.get(digest)
    (folder / "notes").touch()
    os.utime(folder / "notes", (0, 0))

    assert blobs.sweep([], older_than_s=DAY_S, now_s=DAY_S - 1) == []
    assert sorted(os.listdir(folder)) == [f"{digest}.damaged", "notes"]
    assert blobs.sweep([], older_than_s=DAY_S, now_s=DAY_S + 1) == []
    assert os.listdir(folder) == ["notes"]


def test_a_sweep_passes_over_what_another_thread_has_removed(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = digest_of(b"gone")
    monkeypatch.setattr(blobs_module, "os", SimpleNamespace(**{**vars(os), "listdir": lambda folder: [digest]}))

    assert blobs.sweep([], older_than_s=0, now_s=DAY_S) == []
