"""The arguments of an HTTP call, and the bytes they become.

Every argument may be given plain or prepared. A prepared one was checked and encoded once, before the run; it does not
change any more, so whole requests made of prepared arguments can be kept and sent again as they are.
"""

import base64
import dataclasses
import mimetypes
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from talka.engine.clients.urls import PreparedURL
from talka.errors import Invalid

Key = TypeVar("Key")
Value = TypeVar("Value")

TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
COOKIE_VALUE: Final = re.compile(r"[^\x00-\x20\x7f;,]*")
SET_BY_THE_CLIENT: Final = frozenset({"content-length", "transfer-encoding"})
LENGTH_EXPECTED: Final = frozenset({"POST", "PUT", "PATCH"})
JSON_TYPE: Final = "application/json"


class BadHeader(Invalid):
    """A header that cannot be sent."""


class BadParams(Invalid):
    """Parameters of a URL or a form that cannot be encoded."""


class BadCookie(Invalid):
    """A cookie that cannot be sent."""


class BadAuth(Invalid):
    """Credentials that cannot be sent."""


class BadBody(Invalid):
    """A body that cannot be made of the given value."""


class Frozen(dict[Key, Value]):
    """A dict that refuses changes: its encoded form would not follow them."""

    __slots__ = ()

    def _refuse(self, *arguments: object, **named: object) -> NoReturn:
        raise Invalid(f"{type(self).__name__} is encoded already and cannot be changed; copy it with dict(…) first")

    __setitem__ = __delitem__ = _refuse
    __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse


class PreparedHeaders(Frozen[str, str]):
    __slots__ = ("encoded", "names")

    encoded: bytes
    """Whole lines, each with its end."""
    names: frozenset[str]
    """In lower case."""


class PreparedParams(Frozen[str, Any]):
    __slots__ = ("encoded",)

    encoded: str


class PreparedCookies(Frozen[str, str]):
    __slots__ = ("encoded",)

    encoded: bytes
    """The value of the Cookie header."""


class PreparedAuth:
    """The value of the Authorization header, and what it was made from."""

    __slots__ = ("value", "encoded")

    def __init__(self, value: "str | tuple[str, str]", encoded: bytes) -> None:
        self.value = value
        self.encoded = encoded

    def __repr__(self) -> str:
        return "<PreparedAuth>"  # logs and error messages are no place for a password


class PreparedData:
    """A body in bytes, its type, and the value it was made from."""

    __slots__ = ("value", "body", "content_type")

    def __init__(self, value: Any, body: bytes, content_type: str | None) -> None:
        self.value = value
        self.body = body
        self.content_type = content_type

    def __repr__(self) -> str:
        return f"<PreparedData {len(self.body)} bytes, {self.content_type}>"


class PreparedFile(str):
    """The path of a file, with its content at hand. Made by `prepare_file`."""

    __slots__ = ("content", "content_type")

    content: bytes
    content_type: str


class Form(dict[str, Any]):
    """Fields of an HTML form: `data=Form({"name": "Ada"})` is sent URL-encoded."""

    __slots__ = ()


PREPARED: Final = (PreparedHeaders, PreparedParams, PreparedCookies, PreparedAuth, PreparedData, PreparedFile)


def prepare_headers(value: Mapping[str, object]) -> PreparedHeaders:
    if isinstance(value, PreparedHeaders):
        return value
    if not isinstance(value, Mapping):
        raise BadHeader(f"headers must be a mapping of names to values, not {type(value).__name__}")
    texts: dict[str, str] = {}
    lines: list[str] = []
    names: set[str] = set()
    for name, given in value.items():
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise BadHeader(f"header name {name!r} is not a token: use letters, digits and hyphens")
        lower = name.lower()
        if lower in SET_BY_THE_CLIENT:
            raise BadHeader(f"header {name!r} is set by the client from the body; leave it out")
        if lower in names:
            raise BadHeader(f"header {name!r} is given twice")
        if not isinstance(given, str | int | float) or isinstance(given, bool):
            raise BadHeader(f"header {name!r} has a value of type {type(given).__name__}; give a text or a number")
        text = str(given).strip(" \t")
        if CONTROL.search(text):
            raise BadHeader(f"header {name!r} has a line break or control character in its value {text!r}")
        names.add(lower)
        texts[name] = text
        lines.append(f"{name}: {text}\r\n")
    prepared = PreparedHeaders(texts)
    prepared.names = frozenset(names)
    prepared.encoded = utf8("".join(lines), BadHeader, "a header")
    return prepared


def prepare_params(value: Mapping[str, object]) -> PreparedParams:
    """`None` leaves the name out, a list repeats it, truth values read `true` and `false`."""
    if isinstance(value, PreparedParams):
        return value
    if not isinstance(value, Mapping):
        raise BadParams(f"params must be a mapping of names to values, not {type(value).__name__}")
    prepared = PreparedParams(value)
    prepared.encoded = urlencode(list(flat_pairs("params", value)), quote_via=quote)
    return prepared


def prepare_cookies(value: Mapping[str, object]) -> PreparedCookies:
    if isinstance(value, PreparedCookies):
        return value
    if not isinstance(value, Mapping):
        raise BadCookie(f"cookies must be a mapping of names to values, not {type(value).__name__}")
    texts: dict[str, str] = {}
    for name, given in value.items():
        if not isinstance(name, str) or not TOKEN.fullmatch(name):
            raise BadCookie(f"cookie name {name!r} is not a token: use letters, digits and hyphens")
        text = str(given)
        if not COOKIE_VALUE.fullmatch(text):
            raise BadCookie(f"cookie {name!r} has a space, comma, semicolon or control character in its value {text!r}")
        texts[name] = text
    prepared = PreparedCookies(texts)
    prepared.encoded = utf8("; ".join(f"{name}={text}" for name, text in texts.items()), BadCookie, "a cookie")
    return prepared


def prepare_auth(value: "str | tuple[str, str] | PreparedAuth") -> PreparedAuth:
    """A pair is sent as Basic, a text without a space as a Bearer token, any other text as it is."""
    match value:
        case PreparedAuth():
            return value
        case (str(user), str(password)):
            if ":" in user:
                raise BadAuth("auth: a user name for Basic authentication cannot hold a colon")
            pair = utf8(f"{user}:{password}", BadAuth, "auth")
            return PreparedAuth((user, password), b"Basic " + base64.b64encode(pair))
        case str():
            if not value.strip() or CONTROL.search(value):
                raise BadAuth("auth: the text is empty or has a line break or control character")
            header = value if " " in value else f"Bearer {value}"
            return PreparedAuth(value, utf8(header, BadAuth, "auth"))
        case _:
            raise BadAuth(f"auth must be (user, password) or a text, not {type(value).__name__}")


def prepare_data(value: Any) -> PreparedData:
    match value:
        case PreparedData():
            return value
        case PreparedFile():
            return PreparedData(value, value.content, value.content_type)
        case bytes() | bytearray() | memoryview():
            return PreparedData(value, bytes(value), "application/octet-stream")
        case str():
            return PreparedData(value, utf8(value, BadBody, "data"), "text/plain; charset=utf-8")
        case Form():
            fields = urlencode(list(flat_pairs("form", value)))
            return PreparedData(value, fields.encode("ascii"), "application/x-www-form-urlencoded")
        case Mapping() | list() | tuple() | msgspec.Struct():
            return prepare_json(value)
        case _:
            is_model = dataclasses.is_dataclass(value) or hasattr(value, "model_dump_json")
            if is_model and not isinstance(value, type):
                return prepare_json(value)
            raise BadBody(
                f"data of type {type(value).__name__} has no known form as a body; give bytes, text, a dict, a list,"
                " a Form, a File or a model, or use json="
            )


def prepare_json(value: Any) -> PreparedData:
    if isinstance(value, PreparedData):
        return value
    try:
        if hasattr(value, "model_dump_json"):
            return PreparedData(value, utf8(value.model_dump_json(), BadBody, "json"), JSON_TYPE)
        return PreparedData(value, msgspec.json.encode(value), JSON_TYPE)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadBody(f"a {type(value).__name__} cannot be sent as JSON: {error}") from None


def prepare_file(path: str) -> PreparedFile:
    if isinstance(path, PreparedFile):
        return path
    file = PreparedFile(path)
    try:
        with open(path, "rb") as opened:
            file.content = opened.read()
    except (OSError, ValueError) as error:
        raise BadBody(f"file {path!r} cannot be read: {error}") from None
    file.content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return file


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """One request, ready for the wire."""

    method: str
    url: PreparedURL
    payload: bytes
    is_head: bool
    """An answer to HEAD has no body, whatever its headers say."""
    is_last: bool
    """The request itself asks to close the connection."""


def serialise(
    method: str,
    url: PreparedURL,
    user_agent: str,
    headers: PreparedHeaders | None = None,
    cookies: bytes = b"",
    auth: PreparedAuth | None = None,
    data: PreparedData | None = None,
) -> Request:
    """Head and body in one piece, so that one write sends them in one packet when they fit.

    Headers the user names win over the client's own.
    """
    names: frozenset[str] = headers.names if headers is not None else frozenset()
    lines = [b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), url.target)]
    if "host" not in names:
        lines.append(b"Host: %b\r\n" % url.host_header)
    if "user-agent" not in names:
        lines.append(b"User-Agent: %b\r\n" % user_agent.encode("ascii"))
    if "accept" not in names:
        lines.append(b"Accept: */*\r\n")
    if headers is not None:
        lines.append(headers.encoded)
    if auth is not None:
        if "authorization" in names:
            raise BadHeader("credentials are given twice: as auth= and as the header 'Authorization'")
        lines.append(b"Authorization: %b\r\n" % auth.encoded)
    if cookies:
        lines.append(b"Cookie: %b\r\n" % cookies)
    body = b""
    if data is not None:
        body = data.body
        if data.content_type is not None and "content-type" not in names:
            lines.append(b"Content-Type: %b\r\n" % data.content_type.encode("ascii"))
    if data is not None or method in LENGTH_EXPECTED:
        lines.append(b"Content-Length: %d\r\n" % len(body))
    lines.append(b"\r\n")
    lines.append(body)
    is_last = "connection" in names and asks_to_close(headers or {})
    return Request(method, url, b"".join(lines), method == "HEAD", is_last)


def without(headers: Mapping[str, object] | None, names: Container[str]) -> Mapping[str, object] | None:
    """The same headers less some, named in lower case."""
    return None if headers is None else {name: value for name, value in headers.items() if name.lower() not in names}


def asks_to_close(headers: Mapping[str, str]) -> bool:
    return any(
        word.strip().lower() == "close"
        for name, value in headers.items()
        if name.lower() == "connection"
        for word in value.split(",")
    )


def flat_pairs(what: str, fields: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    for name, given in fields.items():
        if not isinstance(name, str):
            raise BadParams(f"{what}: the name {name!r} is not a text")
        for value in given if isinstance(given, list | tuple) else (given,):
            match value:
                case None:
                    continue
                case bool():
                    text = "true" if value else "false"
                case str() | int() | float():
                    text = str(value)
                case _:
                    raise BadParams(
                        f"{what}: {name!r} has a value of type {type(value).__name__}; give a text, a number,"
                        " a truth value or a list of them"
                    )
            utf8(name + text, BadParams, what)
            yield name, text


def utf8(text: str, error: type[Invalid], what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise error(f"{what} has a character that cannot be encoded as UTF-8") from None
