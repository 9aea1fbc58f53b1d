"""Secrets, token keys and private keys that others can read are refused with a sentence."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from talka.errors import Invalid
from talka.net.certificates import BadCertificate, issue, make_authority
from talka.net.private_files import openness, read_private


def found(mode: int, owner: int, kind: int = stat.S_IFREG) -> os.stat_result:
    return os.stat_result((kind | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666, 0o644, 0o660, 0o610])
def test_a_file_that_others_can_use_is_refused_with_what_to_do(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"content")
    file.chmod(mode)

    with pytest.raises(Invalid) as refused:
        read_private(file, "the secret file", 100)

    assert str(refused.value) == f"others than its owner may use the secret file {file}: chmod 600 {file}"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_its_owner_alone_is_read_up_to_one_byte_above_the_limit(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"content")
    file.chmod(mode)

    assert read_private(file, "the secret file", 100) == b"content"
    assert read_private(file, "the secret file", 3) == b"cont"


@pytest.mark.parametrize(
    ("mode", "owner", "us", "may"),
    [
        (0o440, 0, 10001, True),  # a volume of Kubernetes: root's, readable by the group of the process
        (0o640, 0, 10001, True),
        (0o444, 0, 10001, False),
        (0o660, 0, 10001, False),
        (0o440, 0, 0, False),
        (0o440, 10001, 10001, False),
        (0o440, 10002, 10001, False),
    ],
)
def test_only_what_root_hands_out_may_be_read_by_the_group(
    mode: int, owner: int, us: int, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: us)

    assert (openness(found(mode, owner), "secret", "the secret file") == "") is may


def test_a_pipe_has_no_mode_that_says_who_reads_it() -> None:
    assert openness(found(0o644, 0, stat.S_IFIFO), "/dev/fd/63", "the secret file") == ""


def test_the_key_of_an_authority_that_others_can_read_issues_nothing(tmp_path: Path) -> None:
    make_authority(tmp_path, "default", "default", now=datetime.now(UTC))
    (tmp_path / "ca.key").chmod(0o640)

    with pytest.raises(BadCertificate, match=r"others than its owner may use the private key .*ca\.key: chmod 600"):
        issue(tmp_path, name="a", role="manager", now=datetime.now(UTC))
