"""`talka cluster keys --repair`: of a node that runs, and of one that does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from talka.cli.nodes.key_repair import audited
from talka.store.files.folder import DataFolder
from talka.store.files.keyring import KeyringFile
from talka.wire.security.keys import Keyring, decode_ring, encode_ring, key_id
from tests.cli.nodes.test_cluster_command import SECRET, member
from tests.node_process import nodes

GOOD = "Vb5nXz1Qm_Ke6WtSy0UhDgLr7AoPi2Cj"
THEIRS = "Zx3cVb7nMq-Lk9jHg5fDs1aPo8iUy4tR"


def audit_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]


def ring_in(folder: Path) -> Keyring:
    kept = KeyringFile(folder).load()
    assert kept is not None
    return decode_ring(kept)


def hostile(folder: Path) -> None:
    KeyringFile(folder).save(encode_ring(Keyring.of((THEIRS,)).with_key(SECRET)))


def damaged(folder: Path) -> None:
    (folder / "keyring").write_bytes(b"no ring")


def whole_and_no_ring(folder: Path) -> None:
    KeyringFile(folder).save(b"whole, and no ring")


def unreadable(folder: Path) -> None:
    (folder / "keyring").mkdir()


@pytest.mark.parametrize("spoil", [hostile, damaged, whole_and_no_ring, unreadable])
def test_the_keys_of_a_node_that_does_not_run_are_replaced_and_what_it_had_is_kept(
    spoil: Any, folder: Path, command: Any
) -> None:
    (folder / "good").write_text(GOOD + "\n")
    (folder / "d").mkdir()
    spoil(folder / "d")

    code, out, err = command("cluster", "keys", "--repair", "good", "--data-dir", "d")

    assert code == 0 and f"keys {key_id(GOOD)}, sealing with {key_id(GOOD)}" in out
    ring = ring_in(folder / "d")
    assert (ring.accepted(), ring.era) == ((key_id(GOOD),), 1)
    assert (folder / "d" / "keyring.damaged").exists()
    assert "start the node with a secret file that holds them" in err
    [line] = audit_of(folder / "d")
    assert (line["what"], line["status"]) == ("keys: repair", 200) and key_id(GOOD) in line["text"]


def test_a_folder_without_keys_gets_them_and_a_second_repair_outranks_the_first(folder: Path, command: Any) -> None:
    (folder / "good").write_text(GOOD + "\n")
    (folder / "d").mkdir()

    assert command("cluster", "keys", "--repair", "good", "--data-dir", "d").code == 0
    assert not (folder / "d" / "keyring.damaged").exists()
    assert command("cluster", "keys", "--repair", "good", "--data-dir", "d").code == 0

    assert ring_in(folder / "d").era == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--repair", "good", "--data-dir", "nowhere"], "nowhere is not the data folder of a node"),
        (["--data-dir", "d"], "--data-dir goes with --repair"),
        (["--repair", "good", "--data-dir", "d", "--to", "127.0.0.1:1"], "--data-dir goes with --repair"),
        (["--repair", "good"], "give --to HOST:PORT"),
        ([], "give --to HOST:PORT"),
        (["--repair", "good", "--use", "0a1b2c3d"], "give one of --rotate, --add, --use, --retire and --repair"),
        (["--repair", "short", "--data-dir", "d"], "short line 1: the secret cannot be used"),
    ],
)
def test_what_is_wrong_is_a_sentence(words: list[str], told: str, folder: Path, command: Any) -> None:
    (folder / "good").write_text(GOOD + "\n")
    (folder / "short").write_text("short\n")
    (folder / "d").mkdir()

    code, out, err = command("cluster", "keys", *words)

    assert (code, out) == (2, "") and told in err


def test_the_folder_of_a_node_that_runs_is_left_alone(folder: Path, command: Any) -> None:
    (folder / "good").write_text(GOOD + "\n")
    with DataFolder(folder / "d"):
        code, out, err = command("cluster", "keys", "--repair", "good", "--data-dir", "d")

    assert (code, out) == (2, "") and "is in use by process" in err


def test_a_node_that_runs_is_repaired_over_the_network_and_the_change_is_in_its_audit_log(
    folder: Path, command: Any
) -> None:
    (folder / "good").write_text(GOOD + "\n")
    with nodes() as start:
        process = member(start, folder, "a")
        address = process.until("ready")["address"]
        code, out, err = command("cluster", "keys", "--repair", "good", "--to", address, "--secret-file", "secret")
        assert code == 0 and out.split() == ["KEY", "USE", key_id(GOOD), "seals", "and", "opens"]
        assert "repair those that differ" in err
        change = process.until("key-change")
        assert (change["what"], change["problem"], change["keys"]) == ("repair", "", key_id(GOOD))
        process.until("keys", keys=key_id(GOOD))
        code, _, err = command("cluster", "keys", "--to", address, "--secret-file", "secret")
        assert code == 7 and "does not know this secret" in err
        assert command("cluster", "keys", "--repair", "good", "--to", address).code == 0, "it knows the good one"
    first, second = audit_of(folder / "a")
    assert (first["what"], first["status"], first["who"][:7]) == ("keys: repair", 200, "client-")
    assert second["what"] == "keys: repair" and ring_in(folder / "a").era >= 1


def test_with_certificates_a_manager_repairs_keys_that_were_taken_over_and_a_client_does_not(
    folder: Path, command: Any
) -> None:
    (folder / "good").write_text(GOOD + "\n")
    command("certs", "init", "pki", "--cluster", "default", "--environment", "default")
    for name, role in (("a", "manager"), ("operator", "manager"), ("client", "client")):
        command("certs", "issue", "pki", "--name", name, "--role", role)
    (folder / "a").mkdir()
    taken = Keyring.of((SECRET,)).with_key(THEIRS).with_primary(key_id(THEIRS)).without(key_id(SECRET))
    KeyringFile(folder / "a").save(encode_ring(taken))
    with nodes() as start:
        process = member(start, folder, "a", "--certs", "pki")
        address = process.until("ready")["address"]
        where = ("--to", address, "--secret-file", "secret", "--certs", "pki")
        code, out, err = command("cluster", "keys", "--repair", "good", *where)
        assert (code, out) == (7, "") and "does not know this secret" in err
        code, out, err = command("cluster", "keys", "--repair", "good", *where, "--name", "operator")
        assert code == 0, err
        assert out.split() == ["KEY", "USE", key_id(GOOD), "seals", "and", "opens"]
    assert [(line["who"], line["status"]) for line in audit_of(folder / "a")] == [("operator", 200)]


def test_a_refused_change_is_audited_and_a_log_that_takes_no_line_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[dict[str, Any]] = []
    event = {"event": "key-change", "what": "add", "who": "x", "source": "s", "keys": "k", "primary": "k", "at": 1.5}

    audited(told.append, folder)({**event, "problem": "it is weak"})
    assert audit_of(folder)[0] == {
        "at": "1970-01-01T00:00:01.500Z",
        "who": "x",
        "what": "keys: add",
        "status": 422,
        "source": "s",
        "text": "it is weak",
    }
    audited(told.append, folder / "nowhere")({**event, "problem": ""})
    assert "did not take a line: No such file or directory" in capsys.readouterr().err
    audited(told.append, folder)({"event": "ready"})
    assert len(told) == 3
