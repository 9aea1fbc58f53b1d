"""The private key with which a manager signs bundles: drawn once, into its data folder, for its owner alone.

Decision: docs/decisions/0029-signed-by-managers-sealed-to-workers.md.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from talka.errors import Invalid
from talka.store.files.folder import read_file, replace_file

NAME: Final = "signing.key"
KEY_BYTES: Final = 32


class BadSigningKey(Invalid):
    """The file is open to others, or no key."""


def signing_key(folder: Path, draw: Callable[[int], bytes] = os.urandom) -> bytes:
    """The key in this folder, which this process must have locked; a new one where there is none."""
    path = folder / NAME
    text = read_file(path, 2 * KEY_BYTES + 1)
    if text is None:
        key = draw(KEY_BYTES)
        replace_file(path, key.hex().encode() + b"\n")
        return key
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadSigningKey(
            f"others than its owner may use {path}, with which this manager signs what workers run: remove it, and it"
            f" draws another; or, when nobody has read it, chmod 600 {path}"
        )
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadSigningKey(
            f"{path} holds no key of {KEY_BYTES} bytes in hex: remove it, and this manager draws another"
        )
    return key
