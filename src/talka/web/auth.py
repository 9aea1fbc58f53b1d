"""Who may ask what: tokens and roles, and on loopback without tokens the checks that keep browsers' pages out."""

import logging
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import jwt

from talka.client.requests import Forbidden, NotAuthorised
from talka.errors import Invalid, Unavailable
from talka.wire.security.access import USER_ROLES, Asker, UserRole, has_role

Role = UserRole
ROLES: Final = USER_ROLES
ROLE_WORDS: Final[dict[str, Role]] = {
    **{role: role for role in ROLES},
    "view": "viewer",
    "submit": "submitter",
    "operate": "operator",
}
"""What a role may be called, in tokens and on the command line."""

KEY_LEAST_BYTES: Final = 32
TOKEN_MOST: Final = 4096
NAME_MOST: Final = 200
ID_MOST: Final = 64
SOURCE_MOST: Final = 64
LEEWAY_S: Final = 30
"""Clocks of two machines differ."""
ALGORITHM: Final = "HS256"
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
TOKEN_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{ID_MOST}}}")
REVOKED_MOST: Final = 10_000
OWN_SITES: Final = ("same-origin", "none")
"""Of `Sec-Fetch-Site`. `same-site` is not among them: it is said of any other port of this machine."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

logger = logging.getLogger("talka.web")


class Identity(NamedTuple):
    name: str
    """Empty where no tokens are used."""
    role: Role
    token: str = ""
    """The id of the token that was shown."""

    @property
    def counted_as(self) -> str:
        """Whose requests are limited together: those of a token, or of a name whose tokens have no ids. Empty: no
        tokens are used, and nothing is limited."""
        return f"{self.name} {self.token}".strip()

    def check(self, least: Role, what: str) -> None:
        if not has_role(self.role, least):
            raise Forbidden(f"a {self.role} may not {what}: that takes the role {least}")

    def asks(self, operation: str, source: str) -> Asker:
        """For managers that pass it on: the leader asks the same table."""
        return Asker(operation, self.role, self.name, self.token, source[:SOURCE_MOST])


LOCAL: Final = Identity("", "admin")
"""Who is on this machine may do everything, as long as no token is configured."""


class Tokens:
    """Bearer tokens of one cluster: JWT, signed with a key that managers share."""

    def __init__(self, keys: Sequence[bytes], cluster: str, revoked: "Revoked | None" = None) -> None:
        """The first key signs, all are accepted: so a key can be changed without a moment at which no token holds."""
        if not keys or any(len(key) < KEY_LEAST_BYTES for key in keys):
            raise Invalid(f"a token key has at least {KEY_LEAST_BYTES} bytes")
        self._keys = tuple(keys)
        self._cluster = cluster
        self._revoked = revoked

    def issue(self, name: str, role: Role, expires_at_s: int, id: str = "") -> str:
        """A token that holds until `expires_at_s`, in seconds since 1970. By its id it can be revoked."""
        if not 0 < len(name) <= NAME_MOST:
            raise Invalid(f"a token is for somebody: give a name of at most {NAME_MOST} characters")
        claims: dict[str, str | int] = {"sub": name, "role": role, "exp": expires_at_s, "aud": self._cluster}
        if id:
            claims["jti"] = checked_token_id(id)
        return jwt.encode(claims, self._keys[0], ALGORITHM)

    def identify(self, authorization: str) -> Identity:
        """Who sent this Authorization header. Nothing in a token is believed before its signature was checked."""
        scheme, _, token = authorization.partition(" ")
        if not authorization:
            raise NotAuthorised("this needs a token: send Authorization: Bearer TOKEN")
        if scheme.lower() != "bearer" or not 0 < len(token) <= TOKEN_MOST:
            raise NotAuthorised("the Authorization header holds no bearer token")
        claims = self._claims(token.strip())
        name, word, id = claims["sub"], claims.get("role"), claims.get("jti", "")
        role = ROLE_WORDS.get(word) if isinstance(word, str) else None
        if role is None or not 0 < len(name) <= NAME_MOST:
            raise NotAuthorised("the token names nobody, or no role that there is")
        if id and self._revoked is not None and id in self._revoked:
            raise NotAuthorised("the token was revoked: ask for a new one")
        return Identity(name, role, id)

    def _claims(self, token: str) -> dict[str, str]:
        for key in self._keys:
            try:
                claims: dict[str, str] = jwt.decode(
                    token,
                    key,
                    algorithms=[ALGORITHM],
                    audience=self._cluster,
                    leeway=LEEWAY_S,
                    options={"require": ["sub", "exp", "aud"], "strict_aud": True},
                )
                return claims
            except jwt.InvalidSignatureError:
                continue
            except jwt.ExpiredSignatureError:
                raise NotAuthorised("the token has expired: ask for a new one") from None
            except jwt.InvalidAudienceError:
                raise NotAuthorised("the token is for another cluster") from None
            except jwt.InvalidTokenError:
                break
        raise NotAuthorised("the token is not valid")


class Revoked:
    """The ids of tokens that hold no longer: a file with one a line, read anew whenever it has changed.

    While the file is there and cannot be read, nobody knows which tokens hold: none is let in by its id.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._path = Path(file)
        self._stamp: tuple[int, int, int] | None = None
        self._ids: frozenset[str] = frozenset()
        self._problem = ""

    def __contains__(self, id: str) -> bool:
        self._refresh()
        if id in self._ids:  # known from when it could be read
            return True
        if self._problem:
            raise Unavailable(
                f"nobody can tell whether the token was revoked, so it is not let in: {self._problem}. "
                f"Let the manager read the file, or remove it if no token is revoked"
            )
        return False

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._ids = frozenset(read_revoked(self._path))
                self._stamp = stamp
            problem = ""
        except FileNotFoundError:
            self._stamp, self._ids = None, frozenset()
            problem = ""
        except OSError as error:
            problem = f"{self._path} cannot be read ({error.strerror})"
        except Invalid as error:
            problem = str(error)
        if problem and problem != self._problem:
            logger.error("revoked tokens could not be read: %s", problem)
        self._problem = problem

    def add(self, id: str) -> bool:
        """Whether it was not there before. Safe beside managers that read: the file is replaced, never half written."""
        checked_token_id(id)
        ids = read_revoked(self._path) if self._path.exists() else []
        if id in ids:
            return False
        if len(ids) >= REVOKED_MOST:
            raise Invalid(
                f"{self._path} names {REVOKED_MOST} tokens already: change the key instead, which ends them all"
            )
        fresh = self._path.with_name(f"{self._path.name}.new")
        with fresh.open("w", encoding="ascii") as file:
            file.write("\n".join([*ids, id]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        return True


def read_revoked(path: Path) -> list[str]:
    with path.open("rb") as file:
        content = file.read(REVOKED_MOST * (ID_MOST + 2) + 1)
    ids = [line.strip() for line in content.decode("ascii", "replace").splitlines() if line.strip()]
    if len(ids) > REVOKED_MOST:
        raise Invalid(f"{path} names more than {REVOKED_MOST} tokens")
    return ids


def checked_token_id(id: str) -> str:
    if not TOKEN_ID.fullmatch(id):
        raise Invalid(
            f"{id[:80]!r} is not the id of a token: an id has at most {ID_MOST} letters, digits, dots, - and _"
        )
    return id


def check_host(host: str, allowed: Collection[str]) -> None:
    """The Host header names this server. A page whose name was rebound to this address still says its own name."""
    name = host_name(host)
    if name not in allowed:
        raise Forbidden(
            f"this API does not answer to the name {name[:NAME_MOST] or '(none)'}: it knows {_list(allowed)}"
        )


def check_origin(origin: str, host: str, scheme: str) -> None:
    """A browser says which page asks: only pages of this very server may."""
    try:
        parts = urlsplit(origin)
        origin_port = parts.port or DEFAULT_PORTS.get(parts.scheme)
        own = urlsplit(f"{scheme}://{host}")
        own_port = own.port or DEFAULT_PORTS.get(scheme)
    except ValueError:
        raise Forbidden("the Origin header cannot be read") from None
    if (parts.scheme, parts.hostname, origin_port) != (scheme, own.hostname, own_port):
        raise Forbidden(f"pages of {origin[:NAME_MOST]} may not use this API")


def check_site(site: str) -> None:
    """What an image or a link of another page gets names no Origin, but browsers say whose page it is."""
    if site and site.lower() not in OWN_SITES:
        raise Forbidden("pages of other sites may not use this API")


def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty for what is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    is_plain = parts.netloc == host and "@" not in host
    return (parts.hostname or "").rstrip(".") if is_plain else ""


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
