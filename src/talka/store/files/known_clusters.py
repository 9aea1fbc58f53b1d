"""Clusters that commands were answered by, and where their managers were: who is asked when the address that was given
does not answer.

The file is JSON in the state folder of its user. Nothing in it gives trust, and no token is in it: it may be deleted.

Decision: docs/decisions/0062-peers-are-remembered-and-near-ones-preferred.md.
"""

import contextlib
import os
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

import msgspec

from talka.errors import TalkaError
from talka.store.files.folder import FILE_MODE, read_file, write_all
from talka.wire.addresses import ip_target

KNOWN_NAME: Final = "known-clusters.json"
VERSION: Final = 1
CLUSTERS_LIMIT: Final = 32
MANAGERS_LIMIT: Final = 16
GIVEN_LIMIT: Final = 16
FILE_LIMIT_BYTES: Final = 1 << 20
KEPT_S: Final = 7 * 86_400
"""Who was not there for so long may be somebody else by now."""
AGAIN_S: Final = 86_400
"""A cluster that has not changed is written again after so long, and not with every command."""

Word = Annotated[str, msgspec.Meta(max_length=300)]


class KnownManager(msgspec.Struct, frozen=True):
    """A manager as its cluster told of it."""

    name: Word
    api: Word
    """HOST:PORT."""
    zone: Word = ""
    datacenter: Word = ""
    region: Word = ""


class KnownCluster(msgspec.Struct, frozen=True):
    name: Word
    managers: Annotated[list[KnownManager], msgspec.Meta(max_length=MANAGERS_LIMIT)]


class _Entry(msgspec.Struct, frozen=True):
    given: Annotated[list[Word], msgspec.Meta(max_length=GIVEN_LIMIT)]
    """Where it was asked."""
    cluster: KnownCluster
    seen_s: int
    """Unix seconds."""


class _Document(msgspec.Struct, frozen=True):
    version: int
    clusters: Annotated[list[_Entry], msgspec.Meta(max_length=CLUSTERS_LIMIT)]


_decoder = msgspec.json.Decoder(_Document)


class KnownClusters:
    """What is remembered, in one file. What cannot be read or written is as if nothing was remembered."""

    def __init__(self, file: Path, now_s: int) -> None:
        self._file = file
        self._now_s = now_s

    def cluster_of(self, given: Sequence[str]) -> KnownCluster | None:
        """The one that was asked at one of these addresses last, or has a manager there."""
        return next((entry.cluster for entry in self._entries() if _is_at(entry, given)), None)

    def note(self, given: Sequence[str], cluster: KnownCluster) -> None:
        """This cluster answered whoever asked at these addresses."""
        there = [manager for manager in cluster.managers if not is_of_this_machine(manager.api)]
        cluster = KnownCluster(cluster.name, there[:MANAGERS_LIMIT])
        earlier = self._entries()
        if any(self._says_it(entry, given, cluster) for entry in earlier):
            return
        # An address is of one cluster: of the one that answered there last.
        others = [entry for entry in earlier if not _is_at(entry, given)]
        if len(cluster.managers) > 1:  # else there is nobody to be asked instead
            others.insert(0, _Entry(list(given)[:GIVEN_LIMIT], cluster, self._now_s))
        if others != earlier:
            self._write(others[:CLUSTERS_LIMIT])

    def _says_it(self, entry: _Entry, given: Sequence[str], cluster: KnownCluster) -> bool:
        return entry.cluster == cluster and set(given) <= set(entry.given) and self._now_s - entry.seen_s < AGAIN_S

    def _entries(self) -> list[_Entry]:
        """The one that was seen last first."""
        try:
            document = _decoder.decode(read_file(self._file, FILE_LIMIT_BYTES) or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TalkaError):
            return []
        if document.version != VERSION:
            return []
        kept = [entry for entry in document.clusters if 0 <= self._now_s - entry.seen_s < KEPT_S]
        return sorted(kept, key=lambda entry: -entry.seen_s)

    def _write(self, entries: list[_Entry]) -> None:
        content = msgspec.json.format(msgspec.json.encode(_Document(VERSION, entries)), indent=1) + b"\n"
        # Of its own: commands that run side by side must not write into each other's.
        beside = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
            try:
                write_all(descriptor, content)
            finally:
                os.close(descriptor)
            os.replace(beside, self._file)


def is_of_this_machine(api: str) -> bool:
    """Whoever else uses this machine can take a port here once a manager has left it: what it was is no hint."""
    target = ip_target(api)
    return api.startswith("localhost:") or (target is not None and ip_address(target[0]).is_loopback)


def _is_at(entry: _Entry, given: Sequence[str]) -> bool:
    places = {*entry.given, *(manager.api for manager in entry.cluster.managers)}
    return any(address in places for address in given)
