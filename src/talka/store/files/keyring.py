"""The ring of cluster keys as a node last knew it: one that was down during a rotation starts from here.

The content is opaque here. It holds secrets, so only its owner may read the file.

Decision: docs/decisions/0030-keys-and-addresses-have-owners.md.
"""

import struct
import zlib
from pathlib import Path
from typing import Final

from talka.errors import Invalid
from talka.store.files.folder import read_file, replace_file, set_aside

KEYRING_NAME: Final = "keyring"
MAGIC: Final = b"talkakey"
FORMAT: Final = 1
HEADER: Final = struct.Struct(">8sHII")
"""Magic, format, length, CRC-32 of the content."""
MOST_BYTES: Final = 1 << 20


class KeyringFile:
    """The encoded keyring in a data folder, which this process must have locked."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self.path = folder / KEYRING_NAME
        self.problem = ""
        """A sentence when the file was damaged and set aside."""

    def load(self) -> bytes | None:
        """What was last saved; None when nothing was, and when it is damaged."""
        data = read_file(self.path, HEADER.size + self._most_bytes)
        if data is None:
            return None
        content = data[HEADER.size :]
        if data[: HEADER.size] == _header(content):
            return content
        self.spoilt()
        return None

    def spoilt(self) -> None:
        """What was saved is no keyring: keep it aside, and say so."""
        kept = set_aside(self.path)
        self.problem = (
            f"{self.path} is damaged or not a keyring; it was kept as {kept.name}, and only the keys of the "
            "secret file are known until another member tells of newer ones; if none does, repair it with "
            "talka cluster keys --repair FILE"
        )

    def save(self, content: bytes) -> None:
        """Keep this in place of what was saved before."""
        if len(content) > self._most_bytes:
            raise Invalid(
                f"a keyring of {len(content)} bytes is not saved to {self.path}: at most {self._most_bytes} are"
            )
        replace_file(self.path, _header(content) + content)


def _header(content: bytes) -> bytes:
    return HEADER.pack(MAGIC, FORMAT, len(content), zlib.crc32(content))
