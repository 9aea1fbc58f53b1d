"""Peers a node has met, kept for ever: after the longest outage there is still somebody to ask.

The file is JSON, for people to read and mend.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from talka.errors import Invalid
from talka.store.files.folder import read_file, replace_file, set_aside

PEERS_NAME: Final = "peers.json"
VERSION: Final = 1
MOST_PEERS: Final = 1024
MOST_FILE_BYTES: Final = 4 << 20
NAME_LIMIT: Final = 128
ADDRESS_LIMIT: Final = 300
"""A host name has at most 253 characters, its port 5."""


class RememberedPeer(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LIMIT)]
    address: Annotated[str, msgspec.Meta(min_length=1, max_length=ADDRESS_LIMIT)]
    """HOST:PORT as it was last reached."""
    last_seen_s: Annotated[int, msgspec.Meta(ge=0)]
    """Unix seconds."""


class PeersDocument(msgspec.Struct, frozen=True):
    version: int
    peers: list[RememberedPeer]


_decoder = msgspec.json.Decoder(PeersDocument)


class PeerFile:
    """The remembered peers in a data folder, which this process must have locked."""

    def __init__(self, folder: Path, most_bytes: int = MOST_FILE_BYTES) -> None:
        self._most_bytes = most_bytes
        self.path = folder / PEERS_NAME
        self.problem = ""
        """A sentence when the file was damaged and set aside."""

    def load(self) -> list[RememberedPeer]:
        """The peers, the one last seen first. None are remembered when the file cannot be understood."""
        data = read_file(self.path, self._most_bytes)
        if data is None:
            return []
        try:
            if len(data) > self._most_bytes:
                raise Invalid(f"it has more than {self._most_bytes} bytes")
            return newest(_decode(data))
        except Invalid as error:
            kept = set_aside(self.path)
            self.problem = (
                f"{self.path} is not a list of peers ({error}); it was kept as {kept.name}, and no peers are remembered"
            )
            return []

    def save(self, peers: Iterable[RememberedPeer]) -> None:
        """Remember these in place of the earlier ones: of each name the newest, and of all the newest 1,024."""
        document = PeersDocument(VERSION, newest(peers))
        try:
            data = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
            _decode(data)  # what cannot be read again must not replace what can
        except (Invalid, UnicodeEncodeError) as error:
            raise Invalid(f"the peers cannot be saved to {self.path}: {error}") from None
        replace_file(self.path, data)


def newest(peers: Iterable[RememberedPeer]) -> list[RememberedPeer]:
    kept: dict[str, RememberedPeer] = {}
    for peer in sorted(peers, key=lambda peer: (-peer.last_seen_s, peer.name, peer.address)):
        kept.setdefault(peer.name, peer)
    return list(kept.values())[:MOST_PEERS]


def _decode(data: bytes) -> list[RememberedPeer]:
    try:
        document = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(str(error)) from None
    if document.version != VERSION:
        raise Invalid(f"its version is {document.version}, known here is {VERSION}")
    return document.peers
