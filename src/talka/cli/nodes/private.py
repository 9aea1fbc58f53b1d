"""`talka up --private`: a cluster of one machine that other users of it cannot use.

Its token key and a token are in its data folder, for its user's eyes only. Commands of the same user find the token by
the address they ask: a file in the user's own folder names it. That file is locked as long as the cluster is up, so
that nobody who takes the address afterwards is shown the token.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from talka.errors import Invalid
from talka.units import SECOND

if TYPE_CHECKING:
    from talka.web.auth import Tokens

FOLDER: Final = "~/.local/state/talka/private"
KEY_FILE: Final = "token.key"
TOKEN_FILE: Final = "token"
HOLDS_S: Final = 10 * 365 * 24 * 3600
"""Whoever can read the token can read the key as well, so its end protects nobody."""
CLUSTER: Final = "default"
MOST_BYTES: Final = 8192
OTHERS: Final = 0o077
READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Neither through a link nor waiting for the other end of a pipe."""


class NotPrivate(Invalid):
    """A file that others could have read or written."""


def drawn_tokens(folder: Path) -> tuple["Tokens", Path]:
    """The tokens of the API, by the key in the data folder, and the file with the one of this user."""
    import secrets

    from talka.cli.nodes.token import ID_BYTES, KEY_BYTES, tokens_from
    from talka.clock import realtime_ns
    from talka.store.files.folder import replace_file

    key, file = folder / KEY_FILE, folder / TOKEN_FILE
    if not key.exists():
        replace_file(key, secrets.token_urlsafe(KEY_BYTES).encode() + b"\n")
    read_own(key)
    tokens = tokens_from(str(key), "--private", CLUSTER)
    made = tokens.issue(own_user(), "admin", realtime_ns() // SECOND + HOLDS_S, secrets.token_hex(ID_BYTES))
    replace_file(file, made.encode() + b"\n")
    return tokens, file


@contextlib.contextmanager
def announced(address: str, token_file: Path) -> Iterator[None]:
    """Commands of this user find the token, as long as this lasts and this process lives."""
    place = place_of(address)
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Whatever was left there is no link to somewhere else, and nobody has it open for writing.
        place.unlink(missing_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotPrivate(
            f"{place} cannot be written ({error.strerror}), so commands would not find the token: let this user write"
            " there, or start without --private"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, os.fsencode(token_file.resolve()) + b"\n")
        yield
    finally:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)
        os.close(descriptor)


def found_token(addresses: Sequence[str]) -> str | None:
    """The token of this user's own cluster at this address; None when there is none, or it is not up."""
    if len(addresses) != 1:  # it is shown to nobody else
        return None
    place = place_of(addresses[0])
    if place.name in ("..", place_of("").name):  # it is no address: whoever connects says so
        return None
    try:
        descriptor = os.open(place, READING)
    except OSError:
        return None
    try:
        check_own(place, os.fstat(descriptor))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # whoever made it has ended, and anybody may be at its address
        except BlockingIOError:
            token_file = Path(os.fsdecode(os.read(descriptor, MOST_BYTES).strip()))
    finally:
        os.close(descriptor)
    return read_own(token_file).decode("ascii", "replace").strip() or None


def read_own(path: Path) -> bytes:
    """The content of a file that is this user's and nobody else's."""
    try:
        descriptor = os.open(path, READING)
    except OSError as error:
        raise NotPrivate(f"{path} cannot be read: {error.strerror}") from None
    try:
        check_own(path, os.fstat(descriptor))
        return os.read(descriptor, MOST_BYTES)
    finally:
        os.close(descriptor)


def check_own(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivate(f"{path} is not a regular file: move it away, and start talka up --private again")
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{path} is another user's (uid {found.st_uid}): it is not used; give --token-file FILE")
    if found.st_mode & OTHERS:
        raise NotPrivate(
            f"others can use {path} (mode {stat.S_IMODE(found.st_mode):03o}): its secret may be known to them; remove"
            f" it, and start talka up --private again"
        )


def place_of(address: str) -> Path:
    """By the address as it was told. Another name for it, such as localhost, may lead elsewhere: to ::1."""
    return Path(FOLDER).expanduser() / address.removeprefix("http://").rstrip("/").replace("/", "_")


def own_user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container it may have none
        return f"uid-{os.geteuid()}"
