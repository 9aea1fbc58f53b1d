"""Whom commands ask: where they are given, and who was known before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from talka.cli.config import read_settings
from talka.cli.connection import client_of
from talka.client.client import Client
from talka.store.files.known_clusters import KNOWN_NAME, KnownCluster, KnownManager
from talka.wire.views import ClusterView, ManagerView

MANAGERS = [
    ManagerView("m1", "active", "10.0.0.1:8470", zone="z1", datacenter="d1", region="r1"),
    ManagerView("m2", "active", "10.0.0.2:8470", zone="z2", datacenter="d1", region="r1"),
]
KNOWN = KnownCluster("shop", [KnownManager(one.name, one.api, one.zone, "d1", "r1") for one in MANAGERS])


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Client]:
    """Of a command that was given the first manager."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return lambda: client_of(read_settings({"to": "10.0.0.1:8470"}))


def test_a_command_that_is_told_where_it_is_given_asks_a_near_manager_once_it_knows_one(
    client: Callable[[], Client], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "talka.toml").write_text('zone = "z2"\ndatacenter = "d1"\n')
    monkeypatch.setenv("TALKA_REGION", "r1")
    near = client()
    assert near.addresses == ["10.0.0.1:8470"]
    near.book.learn(ClusterView("shop", managers=MANAGERS))
    assert near.addresses[0] == "10.0.0.2:8470"


def test_a_command_knows_the_cluster_that_answered_an_earlier_one(client: Callable[[], Client], tmp_path: Path) -> None:
    first = client()
    assert (first._memory is not None, first._known) == (True, None)
    assert first._memory is not None
    first._memory.note(["10.0.0.1:8470"], KNOWN)

    assert client()._known == KNOWN
    (file,) = tmp_path.rglob(KNOWN_NAME)
    assert file.parent == tmp_path / ".local" / "state" / "talka" / "clients"


def test_the_token_of_this_machines_own_cluster_is_shown_to_nobody_else(
    client: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talka.cli.connection.found_token", lambda addresses: "secret")
    own = client()
    assert own.headers == {"authorization": "Bearer secret"}
    assert own._memory is None
