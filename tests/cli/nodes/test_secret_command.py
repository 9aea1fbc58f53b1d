"""`talka secret` makes a file that nodes take; one that others can read they do not take."""

import stat
from pathlib import Path
from typing import Any

from talka.cli.nodes.secret import read_secrets


def test_a_secret_is_made_once_for_its_owner_alone(folder: Path, command: Any) -> None:
    code, out, err = command("secret", "-o", "secret")

    assert (code, out) == (0, "") and "--secret-file secret" in err
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    [secret] = read_secrets("secret")
    assert len(secret) == 43

    code, out, err = command("secret", "-o", "secret")
    assert code == 2 and "secret is there already" in err
    assert read_secrets("secret") == (secret,)


def test_no_node_and_no_question_takes_a_secret_that_others_can_read(folder: Path, command: Any) -> None:
    command("secret", "-o", "secret")
    (folder / "secret").chmod(0o644)
    told = "others than its owner may use the secret file secret: chmod 600 secret"

    for words in (
        ("member", "--name", "a", "--bind", "127.0.0.1:0", "--data-dir", "d"),
        ("manager", "--name", "a", "--bind", "127.0.0.1:0", "--data-dir", "d"),
        ("worker", "--name", "w", "--seed", "127.0.0.1:1", "--data-dir", "d"),
        ("cluster", "members", "--to", "127.0.0.1:1"),
    ):
        code, out, err = command(*words, "--secret-file", "secret")
        assert (code, out) == (2, "") and told in err, words


def test_a_token_key_that_others_can_read_is_not_taken(folder: Path, command: Any) -> None:
    command("token", "key", "-o", "key")
    (folder / "key").chmod(0o640)

    code, out, err = command("token", "issue", "--key-file", "key", "--role", "view", "--for", "ci")

    assert (code, out) == (2, "") and "others than its owner may use the token key key: chmod 600 key" in err
