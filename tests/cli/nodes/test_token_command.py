"""`talka token …`: keys and tokens, which nobody else may read."""

import stat
from pathlib import Path
from typing import Any

import jwt
import pytest

from talka.cli.nodes.token import read_keys, tokens_from
from talka.client.requests import NotAuthorised
from talka.clock import realtime_ns
from talka.errors import Invalid
from talka.units import SECOND
from talka.web.auth import Tokens


@pytest.fixture
def key_file(command: Any, folder: Path) -> Path:
    assert command("token", "key", "-o", "key").code == 0
    return folder / "key"


def test_key_is_drawn_for_its_owner_alone(key_file: Path, command: Any) -> None:
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    command("token", "key", "-o", "other")
    [key], [other] = read_keys(str(key_file), "it"), read_keys("other", "it")
    assert len(key) >= 32 and key != other


def test_key_does_not_replace_one_that_may_be_in_use(key_file: Path, command: Any) -> None:
    before = key_file.read_bytes()
    code, _, err = command("token", "key", "-o", "key")
    assert code == 2 and "key is there already" in err and key_file.read_bytes() == before


def test_key_that_cannot_be_written_is_a_sentence(command: Any) -> None:
    code, _, err = command("token", "key", "-o", "nowhere/key")
    assert code == 2 and "nowhere/key cannot be written" in err


@pytest.mark.parametrize("role", ["viewer", "submitter", "operator", "admin"])
def test_token_says_who_and_what_to_a_manager_with_the_same_key(role: str, key_file: Path, command: Any) -> None:
    code, out, _ = command("token", "issue", "--key-file", "key", "--role", role, "--name", "ada")
    keys = read_keys(str(key_file), "it")
    assert code == 0 and Tokens(keys, "default").identify(f"Bearer {out.strip()}")[:2] == ("ada", role)
    with pytest.raises(NotAuthorised, match="another cluster"):
        Tokens(keys, "shop").identify(f"Bearer {out.strip()}")


def test_token_of_a_named_cluster_holds_as_long_as_it_says(key_file: Path, command: Any, folder: Path) -> None:
    flags = ["--key-file", "key", "--role", "viewer", "--name", "ci", "--expires", "12h", "--cluster", "shop"]
    code, out, err = command("token", "issue", *flags, "-o", "ci.token")
    assert (code, out) == (0, "") and "ci.token" in err
    assert stat.S_IMODE((folder / "ci.token").stat().st_mode) == 0o600
    token = (folder / "ci.token").read_text().strip()
    assert token not in err
    claims = jwt.decode(token, read_keys("key", "it")[0], algorithms=["HS256"], audience="shop")
    assert abs(claims["exp"] - (realtime_ns() // SECOND + 12 * 3600)) <= 30


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--expires", "soon"], ["--expires"]),
        (["--expires", "0"], ["--expires", "above 0"]),
        (["--expires", "400d"], ["--expires"]),
        (["--role", "king"], ["--role", "operator"]),
        (["--name", ""], ["name"]),
        (["--cluster", "a b"], ["cluster"]),
        (["--key-file", "nowhere"], ["--key-file", "nowhere"]),
        (["-o", "key"], ["key is there already"]),
    ],
    ids=" ".join,
)
def test_what_is_wrong_is_a_sentence(flags: list[str], words: list[str], key_file: Path, command: Any) -> None:
    code, out, err = command("token", "issue", "--key-file", "key", "--role", "viewer", "--name", "ci", *flags)
    assert (code, out) == (2, "") and all(word in err for word in words)


@pytest.mark.parametrize(
    "content",
    [b"", b"# only a remark\n", b"too short\n", b"k" * 70_000, b"\n".join([b"k" * 40] * 9)],
    ids=["empty", "remark", "short", "large", "many"],
)
def test_file_without_usable_keys_is_a_sentence(content: bytes, folder: Path) -> None:
    (folder / "keys").write_bytes(content)
    with pytest.raises(Invalid, match="keys holds no token key"):
        read_keys("keys", "--key-file")


def test_first_of_several_keys_signs_and_all_are_accepted(folder: Path, command: Any) -> None:
    (folder / "old").write_bytes(b"o" * 40)
    (folder / "both").write_bytes(b"# the new one first\n" + b"n" * 40 + b"\n\n" + b"o" * 40 + b"\n")
    both = Tokens(read_keys("both", "it"), "default")
    for file in ("old", "both"):
        token = command("token", "issue", "--key-file", file, "--role", "viewer", "--name", file).out.strip()
        assert both.identify(f"Bearer {token}").name == file
    with pytest.raises(NotAuthorised):
        Tokens(read_keys("old", "it"), "default").identify(f"Bearer {token}")


@pytest.mark.parametrize(("word", "role"), [("view", "viewer"), ("submit", "submitter"), ("operate", "operator")])
def test_roles_may_be_called_by_what_they_allow(word: str, role: str, key_file: Path, command: Any) -> None:
    _, out, _ = command("token", "issue", "--key-file", "key", "--role", word, "--for", "ada")
    assert Tokens(read_keys(str(key_file), "it"), "default").identify(f"Bearer {out.strip()}")[:2] == ("ada", role)


def test_a_revoked_token_holds_no_longer_while_others_do(key_file: Path, command: Any) -> None:
    flags = ["--key-file", "key", "--role", "view", "--for", "ada"]
    _, first, _ = command("token", "issue", *flags, "--id", "laptop")
    _, second, told = command("token", "issue", *flags)
    tokens = tokens_from(str(key_file), "it", "default")
    assert tokens.identify(f"Bearer {first.strip()}").token == "laptop"

    code, out, err = command("token", "revoke", "laptop", "--key-file", "key")

    assert (code, out) == (0, "") and "laptop holds no longer" in err
    with pytest.raises(NotAuthorised, match="was revoked"):
        tokens.identify(f"Bearer {first.strip()}")
    id = tokens.identify(f"Bearer {second.strip()}").token
    assert len(id) == 16 and f"its id is {id}" in told
    assert "was revoked before" in command("token", "revoke", "laptop", "--key-file", "key").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a b", "--key-file", "key"], ["not the id of a token"]),
        (["laptop", "--key-file", "nowhere"], ["--key-file", "nowhere"]),
        (["laptop"], ["--key-file"]),
    ],
    ids=range(3),
)
def test_what_cannot_be_revoked_is_a_sentence(
    arguments: list[str], words: list[str], key_file: Path, command: Any
) -> None:
    code, _, err = command("token", "revoke", *arguments)
    assert code == 2 and all(word in err for word in words)


def test_a_revocation_that_cannot_be_written_is_a_sentence(key_file: Path, command: Any) -> None:
    (key_file.parent / "key.revoked.new").mkdir()
    code, _, err = command("token", "revoke", "laptop", "--key-file", "key")
    assert code == 2 and "key.revoked cannot be written" in err
