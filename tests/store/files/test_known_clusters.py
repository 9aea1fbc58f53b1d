"""Clusters that commands were answered by."""

import json
import os
import stat
from pathlib import Path

import pytest

from talka.store.files.known_clusters import (
    AGAIN_S,
    CLUSTERS_LIMIT,
    KEPT_S,
    MANAGERS_LIMIT,
    KnownCluster,
    KnownClusters,
    KnownManager,
)

NOW_S = 1_700_000_000


def cluster(name: str = "shop", *hosts: str) -> KnownCluster:
    hosts = hosts or ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    return KnownCluster(name, [KnownManager(f"m{host[-1]}", f"{host}:8470", "z1") for host in hosts])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "clients" / "known.json"


def at(file: Path, now_s: int = NOW_S) -> KnownClusters:
    return KnownClusters(file, now_s)


def test_with_no_file_nothing_is_known_and_none_is_made(file: Path) -> None:
    assert at(file).cluster_of(["10.0.0.1:8470"]) is None
    assert not file.parent.exists()


def test_a_cluster_is_found_by_where_it_was_asked_and_by_where_its_managers_are(file: Path) -> None:
    at(file).note(["lb.example:8470"], cluster())

    assert at(file).cluster_of(["lb.example:8470"]) == cluster()
    assert at(file).cluster_of(["10.9.9.9:8470", "10.0.0.2:8470"]) == cluster()
    assert at(file).cluster_of(["10.9.9.9:8470"]) is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_what_is_known_already_is_not_written_with_every_command(file: Path) -> None:
    at(file).note(["10.0.0.1:8470"], cluster())
    before = file.stat().st_ino
    at(file, NOW_S + AGAIN_S - 1).note(["10.0.0.1:8470"], cluster())
    assert file.stat().st_ino == before
    at(file, NOW_S + AGAIN_S).note(["10.0.0.1:8470"], cluster())
    assert file.stat().st_ino != before


def test_a_cluster_that_changed_takes_the_place_of_what_was_known(file: Path) -> None:
    at(file).note(["10.0.0.1:8470"], cluster())
    at(file).note(["10.0.0.1:8470"], cluster("shop", "10.0.0.1", "10.0.0.9"))
    assert at(file).cluster_of(["10.0.0.1:8470"]) == cluster("shop", "10.0.0.1", "10.0.0.9")
    assert at(file).cluster_of(["10.0.0.2:8470"]) is None


def test_an_address_is_of_the_cluster_that_answered_there_last(file: Path) -> None:
    at(file).note(["10.0.0.1:8470"], cluster())
    at(file).note(["10.0.0.1:8470"], cluster("bank", "10.0.0.1"))
    assert at(file).cluster_of(["10.0.0.1:8470"]) is None, "it has one manager: there is nobody else to ask"
    assert at(file).cluster_of(["10.0.0.3:8470"]) is None, "nobody knows whether the others are still there"


def test_what_was_seen_too_long_ago_is_forgotten(file: Path) -> None:
    at(file).note(["10.0.0.1:8470"], cluster())
    assert at(file, NOW_S + KEPT_S - 1).cluster_of(["10.0.0.1:8470"]) == cluster()
    assert at(file, NOW_S + KEPT_S).cluster_of(["10.0.0.1:8470"]) is None
    assert at(file, NOW_S - 1).cluster_of(["10.0.0.1:8470"]) is None, "a clock that was ahead wrote it"


def test_no_more_clusters_and_managers_are_kept_than_the_limits_say(file: Path) -> None:
    for number in range(CLUSTERS_LIMIT + 3):
        at(file, NOW_S + number).note(
            [f"lb{number}:1"], cluster("shop", *(f"10.{number}.0.{host}" for host in range(MANAGERS_LIMIT + 4)))
        )
    known = json.loads(file.read_text())["clusters"]
    assert len(known) == CLUSTERS_LIMIT
    assert {len(one["cluster"]["managers"]) for one in known} == {MANAGERS_LIMIT}
    assert at(file, NOW_S + 99).cluster_of(["lb0:1"]) is None
    assert at(file, NOW_S + 99).cluster_of([f"lb{CLUSTERS_LIMIT + 2}:1"]) is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"version": 2, "clusters": []}',
        b'{"version": 1, "clusters": [7]}',
        b"[" * 99_999,
    ],
    ids=range(7),
)
def test_a_file_that_cannot_be_understood_is_as_if_nothing_was_known_and_is_replaced(
    file: Path, content: bytes
) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert at(file).cluster_of(["10.0.0.1:8470"]) is None
    at(file).note(["10.0.0.1:8470"], cluster())
    assert at(file).cluster_of(["10.0.0.1:8470"]) == cluster()


def test_a_folder_that_cannot_be_written_keeps_no_command_from_its_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    beneath = tmp_path / "file" / "known.json"
    at(beneath).note(["10.0.0.1:8470"], cluster())
    assert at(beneath).cluster_of(["10.0.0.1:8470"]) is None


def test_managers_on_this_machine_are_not_remembered(file: Path) -> None:
    for host in ("127.0.0.1", "127.8.0.1", "[::1]", "localhost"):
        managers = [KnownManager("a", f"{host}:8470"), KnownManager("b", f"{host}:8480")]
        at(file).note([f"{host}:8470"], KnownCluster("default", managers))
    assert not os.path.exists(file)
