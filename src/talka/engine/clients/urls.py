"""URLs as the client needs them: taken apart and checked once, then used many times."""

import re
import socket
from typing import Any, Final
from urllib.parse import quote

from talka.errors import Invalid

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
UNSENDABLE: Final = re.compile(r"[\x00-\x20\x7f]")
HOST_NAME: Final = re.compile(r"(?!.{254})[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")
# Besides letters, digits and "_.-~": what RFC 3986 allows in paths and queries, and "%", which begins an escape.
TARGET_SAFE: Final = "!$%&'()*+,/:;=?@[]"

Address = tuple[int, tuple[Any, ...]]
"""An address family and what `connect` takes for it."""


class BadURL(Invalid):
    """The text is not a URL this client can call."""

    def __init__(self, text: object, problem: str) -> None:
        super().__init__(f"URL {text!r} {problem}")


class PreparedURL(str):
    """A URL with its parts at hand, made by `parse_url`. It is still the text it was made from."""

    __slots__ = ("scheme", "host", "port", "origin", "target", "host_header", "addresses")

    scheme: str
    host: str
    """Without brackets, in lower case, non-ASCII names in their IDNA form."""
    port: int
    origin: str
    """Scheme, host and port in one text: equal for URLs that may share connections."""
    target: bytes
    """What the request line asks for: path and query."""
    host_header: bytes
    addresses: list[Address] | None
    """Filled when the name is resolved."""

    def with_query(self, encoded: str) -> "PreparedURL":
        """The same URL with more parameters, which are already encoded."""
        if not encoded:
            return self
        text, hash_sign, fragment = self.partition("#")
        joint = "" if text.endswith(("?", "&")) else "&" if "?" in text else "?"
        longer = PreparedURL(text + joint + encoded + hash_sign + fragment)
        longer.scheme, longer.host, longer.port, longer.origin = self.scheme, self.host, self.port, self.origin
        longer.host_header, longer.addresses = self.host_header, self.addresses
        longer.target = self.target + (joint + encoded).encode("ascii")
        return longer


def parse_url(text: str) -> PreparedURL:
    """Take a URL apart, or raise `BadURL` with a sentence."""
    if isinstance(text, PreparedURL):
        return text
    if not isinstance(text, str):
        raise BadURL(text, "is not a text")
    if found := UNSENDABLE.search(text):
        raise BadURL(
            text, f"has a space or control character at position {found.start()}; write it as %{ord(found[0]):02X}"
        )
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise BadURL(text, "has no scheme; begin it with http:// or https://")
    scheme = scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise BadURL(text, f"has the scheme {scheme!r}; this client speaks http and https")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        raise BadURL(text, "holds a user name or password; leave it out and use auth=(user, password)")
    host, port = host_and_port(text, authority, DEFAULT_PORTS[scheme])

    url = PreparedURL(text)
    url.scheme, url.host, url.port = scheme, host, port
    bracketed = f"[{host}]" if ":" in host else host
    url.origin = f"{scheme}://{bracketed}:{port}"
    url.host_header = (bracketed if port == DEFAULT_PORTS[scheme] else f"{bracketed}:{port}").encode("ascii")
    url.target = target_of(text, rest[len(authority) :])
    url.addresses = None
    return url


def host_and_port(text: str, authority: str, default_port: int) -> tuple[str, int]:
    if authority.startswith("["):
        host, bracket, tail = authority[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise BadURL(text, "has a bracket in its host that is not closed, or text behind it")
        host, port_text = host.lower(), tail[1:]
        try:
            socket.inet_pton(socket.AF_INET6, host)
        except OSError:
            raise BadURL(text, f"has {host!r} in brackets, which is not an IPv6 address") from None
    else:
        host, _, port_text = authority.partition(":")
        host = host_name(text, host)
    if not port_text:
        return host, default_port
    if not (port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and 0 < int(port_text) < 65536):
        raise BadURL(text, f"has the port {port_text!r}; a port is a number from 1 to 65535")
    return host, int(port_text)


def host_name(text: str, host: str) -> str:
    if not host:
        raise BadURL(text, "has no host")
    name = host.lower()
    if not name.isascii():
        try:
            name = host.encode("idna").decode("ascii").lower()
        except UnicodeError as error:
            raise BadURL(text, f"has the host {host!r}, which cannot be written as a domain name: {error}") from None
    if not HOST_NAME.fullmatch(name):
        raise BadURL(text, f"has the host {host!r}, which is not a host name")
    return name


def target_of(text: str, path_and_query: str) -> bytes:
    target = path_and_query.partition("#")[0]
    if not target.startswith("/"):
        target = "/" + target
    try:
        return quote(target, safe=TARGET_SAFE).encode("ascii")
    except UnicodeEncodeError:
        raise BadURL(text, "has a character that cannot be encoded as UTF-8") from None
