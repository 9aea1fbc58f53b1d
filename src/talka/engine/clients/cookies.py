"""The cookies of one virtual user, after RFC 6265, sections 5.1 to 5.4.

Times are Unix seconds and come from the caller.

Decision: docs/decisions/0006-the-http-client.md.
"""

import re
from collections.abc import Container
from datetime import UTC, datetime
from typing import Final, NamedTuple

MAX_COOKIES: Final = 300
MAX_COOKIE_BYTES: Final = 4096

DELIMITERS: Final = re.compile(r"[\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
TIME: Final = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\D.*)?", re.ASCII)
DAY: Final = re.compile(r"(\d{1,2})(?:\D.*)?", re.ASCII)
YEAR: Final = re.compile(r"(\d{2,4})(?:\D.*)?", re.ASCII)
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
ADDRESS: Final = re.compile(r"[0-9.]+|.*:.*")


class Cookie(NamedTuple):
    value: bytes
    is_host_only: bool
    is_secure: bool
    expires_s: float | None
    """None: kept as long as the jar."""


class CookieJar:
    """Remembers what servers set and says what to send back. False while it is empty."""

    __slots__ = ("_cookies",)

    def __init__(self) -> None:
        # By domain, path and name, the oldest first: a cookie set again keeps its place.
        self._cookies: dict[tuple[str, str, bytes], Cookie] = {}

    def __len__(self) -> int:
        return len(self._cookies)

    def store(self, header: bytes, host: str, target: bytes, now_s: float) -> None:
        """Take in one Set-Cookie header of an answer from this host. What the RFC says to ignore is ignored."""
        if len(header) > MAX_COOKIE_BYTES:
            return
        pair, _, rest = header.partition(b";")
        name, equals, value = pair.partition(b"=")
        name, value = name.strip(), value.strip()
        if not equals or not name:
            return
        attributes = attributes_of(rest.decode("latin-1"))

        named = attributes.get("domain", "").removeprefix(".").lower()
        domain = named or host
        if not domain_matches(host, domain) or (domain != host and "." not in domain):
            return
        path = attributes.get("path", "")
        if not path.startswith("/"):
            path = default_path(target)
        key = (domain, path, name)
        expires_s = expiry(attributes, now_s)
        if expires_s is not None and expires_s <= now_s:
            self._cookies.pop(key, None)
            return
        if key not in self._cookies and len(self._cookies) >= MAX_COOKIES:
            self._make_room(now_s)
        self._cookies[key] = Cookie(value, not named, "secure" in attributes, expires_s)

    def header_for(
        self, host: str, target: bytes, is_secure: bool, now_s: float, without: Container[str] = ()
    ) -> bytes:
        """The value of the Cookie header for a request, empty when there is nothing to send."""
        path = path_of(target)
        found = [
            (len(cookie_path), name + b"=" + cookie.value)
            for (domain, cookie_path, name), cookie in self._cookies.items()
            if (domain == host or (not cookie.is_host_only and domain_matches(host, domain)))
            and path_matches(path, cookie_path)
            and (is_secure or not cookie.is_secure)
            and (cookie.expires_s is None or now_s < cookie.expires_s)
            and name.decode("latin-1") not in without
        ]
        found.sort(key=lambda pair: -pair[0])  # longer paths first, then older ones
        return b"; ".join(text for _, text in found)

    def _make_room(self, now_s: float) -> None:
        for key, cookie in list(self._cookies.items()):
            if cookie.expires_s is not None and cookie.expires_s <= now_s:
                del self._cookies[key]
        if len(self._cookies) >= MAX_COOKIES:
            del self._cookies[next(iter(self._cookies))]


def attributes_of(text: str) -> dict[str, str]:
    """By name in lower case; of several with one name the last counts."""
    attributes: dict[str, str] = {}
    for part in text.split(";"):
        name, _, value = part.partition("=")
        attributes[name.strip().lower()] = value.strip()
    return attributes


def expiry(attributes: dict[str, str], now_s: float) -> float | None:
    max_age = attributes.get("max-age", "")
    if re.fullmatch(r"-?[0-9]{1,12}", max_age):  # twelve digits are thirty thousand years
        return now_s + int(max_age) if int(max_age) > 0 else 0.0
    return parse_date(attributes.get("expires", ""))


def parse_date(text: str) -> float | None:
    """A date as cookies have it: the order of its parts is free, and odd separators are forgiven."""
    hour = minute = second = day = month = year = None
    for word in DELIMITERS.split(text):
        if hour is None and (found := TIME.fullmatch(word)):
            hour, minute, second = (int(number) for number in found.groups())
        elif day is None and (found := DAY.fullmatch(word)):
            day = int(found[1])
        elif month is None and word[:3].lower() in MONTHS:
            month = MONTHS.index(word[:3].lower()) + 1
        elif year is None and (found := YEAR.fullmatch(word)):
            year = int(found[1])
            year += 1900 if 70 <= year <= 99 else 2000 if year <= 69 else 0
    if hour is None or minute is None or second is None or day is None or month is None or year is None or year < 1601:
        return None
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def domain_matches(host: str, domain: str) -> bool:
    return host == domain or (host.endswith("." + domain) and not ADDRESS.fullmatch(host))


def path_of(target: bytes) -> str:
    return target.partition(b"?")[0].decode("latin-1")


def default_path(target: bytes) -> str:
    return path_of(target).rpartition("/")[0] or "/"


def path_matches(path: str, cookie_path: str) -> bool:
    return path.startswith(cookie_path) and (
        len(path) == len(cookie_path) or cookie_path.endswith("/") or path[len(cookie_path)] == "/"
    )
