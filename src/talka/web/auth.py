"""Who may ask what: tokens and roles, and on loopback without tokens the checks that keep browsers' pages out."""

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

import jwt

from talka.client.requests import Forbidden, NotAuthorised
from talka.errors import Invalid

Role = Literal["viewer", "submitter", "operator"]
"""Each may do what those before it may. Whoever may submit runs code of their own on the workers."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)

KEY_LEAST_BYTES: Final = 32
TOKEN_MOST: Final = 4096
NAME_MOST: Final = 200
LEEWAY_S: Final = 30
"""Clocks of two machines differ."""
ALGORITHM: Final = "HS256"
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Identity(NamedTuple):
    name: str
    """Empty where no tokens are used."""
    role: Role

    def check(self, least: Role, what: str) -> None:
        if ROLES.index(self.role) < ROLES.index(least):
            raise Forbidden(f"a {self.role} may not {what}: that takes the role {least}")


LOCAL: Final = Identity("", "operator")
"""Who is on this machine may do everything, as long as no token is configured."""


class Tokens:
    """Bearer tokens of one cluster: JWT, signed with a key that managers share."""

    def __init__(self, keys: Sequence[bytes], cluster: str) -> None:
        """The first key signs, all are accepted: so a key can be changed without a moment at which no token holds."""
        if not keys or any(len(key) < KEY_LEAST_BYTES for key in keys):
            raise Invalid(f"a token key has at least {KEY_LEAST_BYTES} bytes")
        self._keys = tuple(keys)
        self._cluster = cluster

    def issue(self, name: str, role: Role, expires_at_s: int) -> str:
        """A token that holds until `expires_at_s`, in seconds since 1970."""
        if not 0 < len(name) <= NAME_MOST:
            raise Invalid(f"a token is for somebody: give a name of at most {NAME_MOST} characters")
        claims = {"sub": name, "role": role, "exp": expires_at_s, "aud": self._cluster}
        return jwt.encode(claims, self._keys[0], ALGORITHM)

    def identify(self, authorization: str) -> Identity:
        """Who sent this Authorization header. Nothing in a token is believed before its signature was checked."""
        scheme, _, token = authorization.partition(" ")
        if not authorization:
            raise NotAuthorised("this needs a token: send Authorization: Bearer TOKEN")
        if scheme.lower() != "bearer" or not 0 < len(token) <= TOKEN_MOST:
            raise NotAuthorised("the Authorization header holds no bearer token")
        claims = self._claims(token.strip())
        name, role = claims["sub"], claims.get("role")
        if role not in ROLES or not 0 < len(name) <= NAME_MOST:
            raise NotAuthorised("the token names nobody, or no role that there is")
        return Identity(name, role)

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
        raise NotAuthorised("the token does not hold")


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
