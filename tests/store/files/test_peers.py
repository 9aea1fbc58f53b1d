"""Remembered peers and the remembered keyring: kept as a whole, or set aside and said so."""

import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.store.files import folder as folder_module
from talka.store.files.folder import StoreFailed
from talka.store.files.keyring import KeyringFile
from talka.store.files.peers import PeerFile, RememberedPeer

A = RememberedPeer("a", "10.0.0.1:7946", 1_700_000_000)
B = RememberedPeer("b", "[fd00::2]:7946", 1_700_000_500)


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    def failed(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(folder_module, "os", SimpleNamespace(**{**vars(os), "write": failed}))


# -- peers


def test_without_a_file_no_peers_are_remembered_and_nothing_is_wrong(tmp_path: Path) -> None:
    file = PeerFile(tmp_path)
    assert (file.load(), file.problem) == ([], "")
    assert os.listdir(tmp_path) == []


def test_saved_peers_are_remembered_the_last_seen_first(tmp_path: Path) -> None:
    PeerFile(tmp_path).save([A, B])
    file = PeerFile(tmp_path)
    assert (file.load(), file.problem) == ([B, A], "")


def test_the_file_is_json_with_one_fact_on_each_line_for_its_owner_alone(tmp_path: Path) -> None:
    PeerFile(tmp_path).save([A])
    path = tmp_path / "peers.json"
    assert '\n      "address": "10.0.0.1:7946",\n' in path.read_text()
    expected = {"name": "a", "address": "10.0.0.1:7946", "last_seen_s": 1_700_000_000}
    assert json.loads(path.read_text()) == {"version": 1, "peers": [expected]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_of_one_name_the_newest_is_kept(tmp_path: Path) -> None:
    moved = RememberedPeer("a", "10.0.0.9:7946", A.last_seen_s + 1)
    file = PeerFile(tmp_path)
    file.save([A, moved, B])
    assert file.load() == [B, moved]


def test_the_newest_1024_are_kept(tmp_path: Path) -> None:
    file = PeerFile(tmp_path)
    file.save(RememberedPeer(f"p{number}", "10.0.0.1:1", number) for number in range(2000))
    loaded = file.load()
    assert [peer.last_seen_s for peer in loaded] == list(range(1999, 975, -1))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(
        st.builds(
            RememberedPeer,
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=128),
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=300),
            st.integers(0, 2**40),
        ),
        unique_by=lambda peer: peer.name,
        max_size=8,
    )
)
def test_whatever_may_be_saved_is_loaded_again(peers: list[RememberedPeer]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = PeerFile(Path(folder))
        file.save(peers)
        assert sorted(file.load(), key=lambda peer: peer.name) == sorted(peers, key=lambda peer: peer.name)
        assert file.problem == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (b'{"version": 1, "peers": [', "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "maximum recursion|array"),
        (b'{"version": 1, "peers": [{"name": "", "address": "h:1", "last_seen_s": 1}]}', "length >= 1"),
        (b'{"version": 1, "peers": [{"name": "a", "address": "h:1", "last_seen_s": -1}]}', ">= 0"),
        (b'{"version": 1, "peers": [{"name": "\xff", "address": "h:1", "last_seen_s": 1}]}', "utf-8"),
        (b'{"version": 2, "peers": []}', "its version is 2, known here is 1"),
    ],
    ids=["empty", "cut", "no-json", "deep", "nameless", "before-time", "no-utf8", "later-version"],
)
def test_a_damaged_or_foreign_file_is_kept_aside_and_nobody_is_remembered(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "peers.json").write_bytes(content)
    file = PeerFile(tmp_path)
    assert file.load() == []
    assert file.problem.startswith(f"{tmp_path / 'peers.json'} is not a list of peers (")
    assert any(word in file.problem for word in reason.split("|"))
    assert (tmp_path / "peers.json.damaged").read_bytes() == content
    file.save([A])
    again = PeerFile(tmp_path)
    assert (again.load(), again.problem) == ([A], "")


def test_a_file_too_large_to_be_ours_is_not_read_to_its_end(tmp_path: Path) -> None:
    PeerFile(tmp_path).save([A])
    file = PeerFile(tmp_path, 50)
    assert file.load() == []
    assert "it has more than 50 bytes" in file.problem


@pytest.mark.parametrize(
    "peer",
    [
        RememberedPeer("", "h:1", 1),
        RememberedPeer("x" * 129, "h:1", 1),
        RememberedPeer("a", "", 1),
        RememberedPeer("a", "h:1", -1),
        RememberedPeer("\ud800", "h:1", 1),
    ],
    ids=["nameless", "long-name", "no-address", "before-time", "surrogate"],
)
def test_a_peer_that_could_not_be_read_again_is_refused_and_the_earlier_ones_stay(
    tmp_path: Path, peer: RememberedPeer
) -> None:
    file = PeerFile(tmp_path)
    file.save([A])
    with pytest.raises(Invalid, match=r"the peers cannot be saved to .*peers\.json"):
        file.save([B, peer])
    assert file.load() == [A]


def test_a_full_disk_leaves_the_earlier_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PeerFile(tmp_path)
    file.save([A])
    fill_disk(monkeypatch)
    with pytest.raises(StoreFailed, match=r"peers.json could not be written \(No space left on device\): free some"):
        file.save([B])
    monkeypatch.undo()
    assert file.load() == [A]


def test_a_file_that_cannot_be_read_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "peers.json").mkdir()
    with pytest.raises(StoreFailed, match="peers.json could not be read"):
        PeerFile(tmp_path).load()


# -- the keyring


def test_without_a_file_there_is_no_keyring_and_nothing_is_wrong(tmp_path: Path) -> None:
    file = KeyringFile(tmp_path)
    assert (file.load(), file.problem) == (None, "")


@pytest.mark.parametrize("content", [b"", b"ring", bytes(1 << 20)], ids=["empty", "short", "longest"])
def test_a_saved_keyring_is_loaded_again_by_its_owner_alone(tmp_path: Path, content: bytes) -> None:
    KeyringFile(tmp_path).save(b"an earlier one")
    KeyringFile(tmp_path).save(content)
    file = KeyringFile(tmp_path)
    assert (file.load(), file.problem) == (content, "")
    assert stat.S_IMODE((tmp_path / "keyring").stat().st_mode) == 0o600


def test_a_keyring_with_any_bit_flipped_or_any_byte_missing_is_kept_aside(tmp_path: Path) -> None:
    KeyringFile(tmp_path).save(b"secrets")
    path = tmp_path / "keyring"
    data = path.read_bytes()
    spoilt = [data[:length] for length in range(len(data))] + [data + b"\0"]
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        spoilt.append(bytes(flipped))
    for content in spoilt:
        path.write_bytes(content)
        file = KeyringFile(tmp_path)
        assert file.load() is None
        assert file.problem.startswith(f"{path} is damaged or not a keyring; it was kept as keyring.damaged,")
        aside = tmp_path / "keyring.damaged"
        assert aside.read_bytes() == content
        aside.unlink()


def test_the_bytes_of_a_keyring_file_are_those_of_format_1(tmp_path: Path) -> None:
    KeyringFile(tmp_path).save(b"ring")
    assert (tmp_path / "keyring").read_bytes().hex() == "74616c6b616b65790001" + "00000004" + "8fdcf576" + "72696e67"


def test_a_keyring_that_could_not_be_read_again_is_refused(tmp_path: Path) -> None:
    file = KeyringFile(tmp_path, 4)
    file.save(b"ring")
    with pytest.raises(Invalid, match="a keyring of 5 bytes is not saved to .*: at most 4 are"):
        file.save(b"rings")
    assert file.load() == b"ring"


def test_a_full_disk_leaves_the_earlier_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = KeyringFile(tmp_path)
    file.save(b"ring")
    fill_disk(monkeypatch)
    with pytest.raises(StoreFailed, match="keyring could not be written"):
        file.save(b"next")
    monkeypatch.undo()
    assert file.load() == b"ring"
