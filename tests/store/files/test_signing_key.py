"""The key with which a manager signs bundles: drawn once, kept for its owner alone."""

import os
from pathlib import Path

import pytest

from talka.store.files.folder import StoreFailed
from talka.store.files.signing_key import KEY_BYTES, NAME, BadSigningKey, signing_key


def test_a_key_is_drawn_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        key = signing_key(tmp_path)
    finally:
        os.umask(previous)

    assert len(key) == KEY_BYTES
    assert signing_key(tmp_path) == key
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_every_manager_draws_its_own(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert signing_key(tmp_path / "a") != signing_key(tmp_path / "b")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    signing_key(tmp_path)
    (tmp_path / NAME).chmod(mode)

    with pytest.raises(BadSigningKey, match="others than its owner may use .*signing.key.*chmod 600"):
        signing_key(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"00" * 31, b"00" * 33, b"zz" * 32, b"\xff" * 64])
def test_what_is_no_key_is_refused_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    signing_key(tmp_path)
    (tmp_path / NAME).write_bytes(content)

    with pytest.raises(BadSigningKey, match="holds no key of 32 bytes in hex: remove it"):
        signing_key(tmp_path)


def test_a_key_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()

    with pytest.raises(StoreFailed, match="could not be read"):
        signing_key(tmp_path)
