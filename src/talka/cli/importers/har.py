"""Reads a recording of a browser or a proxy (HAR) into the draft of a test.

Nothing secret that was recorded is passed on: what looks like a secret becomes a variable of the environment, and so
does everything else that holds the same text.
"""

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit

from talka.cli.importers.foreign import (
    HEADER_NAME,
    WHOLE,
    document_in,
    is_json,
    items,
    mapping,
    origin_of,
    plain_kind,
    text,
)
from talka.cli.importers.test_writer import (
    CLASS_NAMES_TAKEN,
    CONSTANTS_TAKEN,
    METHODS,
    MULTIPART_KIND,
    PATH_SAFE,
    Constant,
    Draft,
    DraftRequest,
    Fields,
    Journey,
    Part,
    Variable,
    class_name,
    constant_name,
    multipart,
    request_name,
    unique,
    words_of,
)
from talka.errors import Invalid
from talka.report.text import counted_text

LEAST_PAUSE_S: Final = 0.3
MOST_PAUSE_S: Final = 60.0
"""Whoever went for a coffee while recording does not want every user to."""
MOST_TOOK_MS: Final = 3_600_000
MOST_REQUESTS: Final = 500
"""Beyond this nobody reads the test, and a user would be at it for minutes."""
DEEPEST_BODY: Final = 10

STATIC_KINDS: Final = re.compile(r"(image|font)/|text/css|.*(javascript|ecmascript|font-|fontobject)", re.IGNORECASE)
STATIC_RESOURCES: Final = {"image", "font", "stylesheet", "script"}
STATIC_NAMES: Final = re.compile(
    r".*\.(png|jpe?g|gif|webp|avif|svg|ico|bmp|woff2?|ttf|otf|eot|css|m?js|map)", re.IGNORECASE
)
FOLLOWED: Final = {301, 302, 303, 307, 308}
# What browsers, proxies and the client set by themselves.
NOT_KEPT: Final = set(
    "accept-charset accept-encoding accept-language authorization cache-control connection content-length content-type"
    " cookie dnt expect host if-match if-modified-since if-none-match if-range keep-alive origin pragma priority"
    " proxy-authorization proxy-connection referer te trailer transfer-encoding upgrade upgrade-insecure-requests"
    " user-agent via".split()
)
SCHEMES: Final = {"basic", "bearer", "digest", "token", "negotiate", "apikey"}

SECRET_WORDS: Final = set(
    "key pass pwd passcode passphrase auth authorization sid sig signature otp pin csrf xsrf session jwt".split()
)
SECRET_PARTS: Final = re.compile(r"token|password|passwd|secret|apikey|credential|sessid|sessionid|accesskey")
SECRET_NUMBERS: Final = {"pin", "otp", "password", "passcode"}
SECRET_SHAPES: Final = re.compile(
    r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(sk|pk|rk)_(live|test)_\w+|gh[a-z]_\w{16,}|xox[a-z]-[\w-]+|AKIA[A-Z0-9]{12,}"
    r"|(?i:bearer|basic) [\w.+/=~-]{6,}"
)
# `password: "x"` in a text, but not `$password: String` of a query language, nor `password: $password`.
SECRET_INSIDE: Final = re.compile(
    r"(?<![$\w])\w*(password|passwd|pwd|secret|token|api_?key)[\"'\\]*\s*[:=]\s*[\"'\\]*[^\s\"'\\$,&)}]", re.IGNORECASE
)
SHORTEST_KNOWN: Final = 6
"""A shorter secret says nothing when it is found elsewhere."""
SHORTEST_PART: Final = 8
LONGEST_WORD: Final = 16
SHORTEST_COOKIE: Final = 12


class BadRecording(Invalid):
    """The file is no HAR, or has no request a test can be made of."""


def draft_from_har(content: bytes, name: str) -> Draft:
    """The test that repeats the recording. `name` is the file's, for what is said about it."""
    entries = entries_of(content, name)
    skipped: Counter[str] = Counter()
    exchanges = kept(entries, skipped)
    if len(exchanges) > MOST_REQUESTS:
        skipped[f"beyond the first {MOST_REQUESTS}"] = len(exchanges) - MOST_REQUESTS
        del exchanges[MOST_REQUESTS:]
    left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
    if not exchanges:
        reasons = f" ({left_out})" if left_out else ""
        raise BadRecording(f"{name} has no request for a test{reasons}: record requests that are sent over HTTP")
    notes = [f"Skipped {counted_text(skipped.total(), 'request')}: {left_out}."] if left_out else []
    secrets = SecretValues()
    for exchange in exchanges:
        request_of(exchange, secrets)
    # Once more: a secret that is known by its name late may have been sent under another name early.
    secrets.start_over()
    by_origin: dict[str, list[DraftRequest]] = {}
    busy_until: dict[str, float | None] = {}
    for exchange in exchanges:
        pause_s = pause_between(busy_until.get(exchange.origin), exchange.started_s)
        request = replace(request_of(exchange, secrets), pause_s=pause_s)
        by_origin.setdefault(exchange.origin, []).append(request)
        ends = (busy_until.get(exchange.origin), exchange.ended_s)
        busy_until[exchange.origin] = max((end for end in ends if end is not None), default=None)
    return draft(by_origin, secrets, notes, name)


def pause_between(ended_s: float | None, started_s: float | None) -> float:
    """What a user took between two requests; below what people notice it is the browser's own time, and nothing."""
    if ended_s is None or started_s is None or started_s - ended_s < LEAST_PAUSE_S:
        return 0.0
    return min(round(started_s - ended_s, 1), MOST_PAUSE_S)


def draft(by_origin: Mapping[str, list[DraftRequest]], secrets: "SecretValues", notes: list[str], name: str) -> Draft:
    main = max(by_origin, key=lambda origin: len(by_origin[origin]))
    others = [origin for origin in by_origin if origin != main]
    constants = [target("TARGET", main)]
    journeys = [Journey(name="Visitor", base=Variable("TARGET"), requests=by_origin[main])]
    constants_taken, classes_taken = {"TARGET", *secrets.names}, {"Visitor", *CLASS_NAMES_TAKEN}
    for origin in others:
        host = urlsplit(origin).netloc
        constant = unique(constant_name(f"target {host}"), constants_taken)
        journey = unique(class_name(host.removeprefix("www."), "Other"), classes_taken)
        constants_taken.add(constant)
        classes_taken.add(journey)
        constants.append(target(constant, origin))
        journeys.append(
            Journey(
                name=journey,
                base=Variable(constant),
                requests=by_origin[origin],
                comment="Another host. Remove the next line to run this class, if you may put load on the host.",
                is_off=True,
            )
        )
    if others:
        more = counted_text(len(others), "more host")
        notes.append(f"The recording has {more}: a class of a host runs when you remove its line abstract = True.")
    if secrets.constants:
        names = ", ".join(constant.name for constant in secrets.constants)
        notes.append(f"Values that look secret were not written: the test reads {names} from the environment.")
    return Draft(
        title=f"The requests that {name} recorded, in order.",
        constants=[*constants, *secrets.constants],
        journeys=journeys,
        notes=notes,
    )


def target(constant: str, origin: str) -> Constant:
    return Constant(
        name=constant,
        comment=f"The target of the requests. To change it: talka run loadtest.py --env {constant}=http://127.0.0.1:8400",
        default=origin,
    )


# From bytes to entries.


def entries_of(content: bytes, name: str) -> list[Any]:
    document = document_in(content, name, "a HAR", BadRecording)
    if isinstance(document, dict) and ("openapi" in document or "swagger" in document):
        raise BadRecording(f"{name} is an API description, not a HAR: use --from-openapi")
    log = mapping(document).get("log")
    if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
        raise BadRecording(f"{name} is not a HAR: it has no log with entries")
    version = str(log.get("version") or "1.1")
    if not re.fullmatch(r"1\.\d+(\.\d+)?", version):
        raise BadRecording(f"{name} is a HAR of version {version[:20]}, which is not supported: export version 1.2")
    entries: list[Any] = log["entries"]
    return entries


@dataclass(slots=True)
class Exchange:
    """One recorded request, with the status of what came last when redirects were followed."""

    method: str
    url: str
    origin: str
    request: Mapping[str, Any]
    status: int
    user_info: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    """When, where the recording says it."""


def kept(entries: Sequence[Any], skipped: Counter[str]) -> list[Exchange]:
    """The entries that become steps. The target of a redirect is not one: the client goes there by itself."""
    exchanges: list[Exchange] = []
    led_to: dict[str, Exchange] = {}
    for entry in map(mapping, entries):
        request, response = mapping(entry.get("request")), mapping(entry.get("response"))
        url, method, status = text(request.get("url")), text(request.get("method")).upper(), response.get("status")
        first = led_to.pop(url.partition("#")[0], None)
        try:
            parts = urlsplit(url)
            origin = origin_of(parts)
        except ValueError:
            skipped["with a URL that cannot be read"] += 1
            continue
        reason = None
        if not origin:
            reason = "not over HTTP"
        elif method not in METHODS:
            reason = "with a method that the client does not have"
        elif type(status) is not int or not 200 <= status <= 599:
            reason = "without a response"
        elif method == "OPTIONS" and "access-control-request-method" in headers_of(request):
            reason = "for CORS preflights"
        elif first is None and method in ("GET", "HEAD") and is_static(entry, parts.path, response):
            reason = "for static assets (images, fonts, css, js)"
        if reason is not None:
            skipped[reason] += 1
            continue
        assert type(status) is int
        if first is not None:
            first.status = status
            first.ended_s = span_of(entry)[1] or first.ended_s
            skipped["for targets of redirects, which the client follows"] += 1
        else:
            user_info = parts.netloc.rpartition("@")[0]
            first = Exchange(method, url, origin, request, status, user_info, *span_of(entry))
            exchanges.append(first)
        location = text(response.get("redirectURL")) or headers_of(response).get("location", "")
        if status in FOLLOWED and location and len(led_to) < MOST_REQUESTS:
            led_to[urljoin(url, location).partition("#")[0]] = first
    return exchanges


def span_of(entry: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """When the request was sent and when its answer was there, in seconds; None where the recording does not tell."""
    try:
        started = datetime.fromisoformat(text(entry.get("startedDateTime")))
        # Without a zone it is taken for UTC: only differences count.
        started_s = (started if started.tzinfo is not None else started.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None, None
    took_ms = entry.get("time")
    if isinstance(took_ms, bool) or not isinstance(took_ms, int | float) or not 0 <= took_ms < MOST_TOOK_MS:
        took_ms = 0.0
    return started_s, started_s + took_ms / 1000


def is_static(entry: Mapping[str, Any], path: str, response: Mapping[str, Any]) -> bool:
    kind = text(mapping(response.get("content")).get("mimeType")).strip()
    if kind and kind != "x-unknown":
        return bool(STATIC_KINDS.match(kind))
    return entry.get("_resourceType") in STATIC_RESOURCES or bool(STATIC_NAMES.fullmatch(path))


def headers_of(message: Mapping[str, Any]) -> dict[str, str]:
    """Headers by their name in lower case; of several, the last."""
    pairs = map(mapping, items(message.get("headers")))
    return {text(pair.get("name")).lower(): text(pair.get("value")) for pair in pairs}


# Secrets.


def is_secret_name(name: str) -> bool:
    words = words_of(name)
    return not SECRET_WORDS.isdisjoint(words) or SECRET_PARTS.search("".join(words)) is not None


class SecretValues:
    """Knows every secret it has seen, and gives each a variable. The secrets themselves stay here."""

    def __init__(self) -> None:
        self._by_value: dict[tuple[str, str], Constant] = {}
        self._known: set[str] = set()
        self._parts: set[str] = set()
        """Those of them that are looked for inside other texts too."""

    @property
    def constants(self) -> list[Constant]:
        return list(self._by_value.values())

    @property
    def names(self) -> set[str]:
        return {constant.name for constant in self.constants}

    def start_over(self) -> None:
        """Forgets the variables and keeps what is secret."""
        self._by_value.clear()

    def know(self, value: str) -> None:
        """From now on this is a secret wherever it is found."""
        if len(value) >= SHORTEST_KNOWN:
            self._known.add(value)
            # A plain word is part of too many texts that have nothing to do with it.
            if len(value) >= LONGEST_WORD or (len(value) >= SHORTEST_PART and not value.isalpha()):
                self._parts.add(value)

    def gives_away(self, value: str) -> bool:
        """Whether a text holds a secret, or looks like one."""
        if SECRET_SHAPES.search(value) or SECRET_INSIDE.search(value):
            return True
        plain = unquote(value)
        return any(secret in value or secret in plain for secret in self._parts)

    def hidden(self, value: str | int | float, name: str, comment: str) -> Variable:
        """The variable that stands for the value."""
        cast: Literal["int", "float"] | None = None
        if not isinstance(value, str):
            cast = "int" if isinstance(value, int) else "float"
        key = (str(value), cast or "")
        if key not in self._by_value:
            constant = unique(constant_name(name), self.names | CONSTANTS_TAKEN)
            self._by_value[key] = Constant(name=constant, comment=comment, cast=cast)
        if isinstance(value, str):
            self.know(value)
        return Variable(self._by_value[key].name)

    def screened(self, value: Any, name: str, where: str, is_secret: bool = False) -> Any:
        """The value with every secret in it replaced. `name` is what it is called where it stands."""
        is_secret = is_secret or is_secret_name(name)
        match value:
            case dict():
                screened = {}
                for key, part in value.items():
                    # A name may be the secret itself, and would be told in a comment.
                    is_hidden = self.gives_away(key)
                    shown = self.hidden(key, "secret", f"Recorded {where}; set your own value.") if is_hidden else key
                    screened[shown] = self.screened(part, "secret" if is_hidden else key, where, is_secret)
                return screened
            case list():
                return [self.screened(part, name, where, is_secret) for part in value]
            case bool() | None:
                return value
            case int() | float() if not SECRET_NUMBERS.isdisjoint(words_of(name)):
                return self.hidden(value, name, f"Recorded as {name[:60]} {where}; set your own value.")
            case str() if value and (is_secret or value in self._known or self.gives_away(value)):
                return self.hidden(value, name, f"Recorded as {name[:60]} {where}; set your own value.")
            case _:
                return value


# From an exchange to a request.


def request_of(exchange: Exchange, secrets: SecretValues) -> DraftRequest:
    parts, headers = urlsplit(exchange.url), headers_of(exchange.request)
    know_cookies(headers, secrets)
    auth = auth_of(exchange, headers, secrets)
    given = parse_qsl(parts.query, keep_blank_values=True)
    params = {name: listed(name, given) for name, _ in given}
    data, content_type = body_of(exchange, headers, secrets)
    sent: dict[str, Part] = {
        name: secrets.screened(value, name, "in a header") for name, value in headers.items() if is_kept(name, value)
    }
    if content_type:
        sent["content-type"] = content_type
    path = [*path_parts(parts.path or "/", secrets)]
    telling = "".join(part if isinstance(part, str) else "/" for part in path)
    return DraftRequest(
        name=request_name(exchange.method, unquote(telling)),
        method=exchange.method,
        path=path,
        params=secrets.screened(params, "", "in a query"),
        headers=sent,
        auth=auth,
        data=data,
        expect=(exchange.status,) if exchange.status >= 400 else (),
    )


def listed(name: str, pairs: Sequence[tuple[str, str]]) -> str | list[str]:
    values = [value for known, value in pairs if known == name]
    return values[0] if len(values) == 1 else values


def know_cookies(headers: Mapping[str, str], secrets: SecretValues) -> None:
    """Cookies are left to the client; what they held may be in a form or a header as well."""
    for cookie in headers.get("cookie", "").split(";"):
        value = cookie.partition("=")[2].strip()
        if len(value) >= SHORTEST_COOKIE:
            secrets.know(value)


def auth_of(exchange: Exchange, headers: Mapping[str, str], secrets: SecretValues) -> Variable | None:
    given = headers.get("authorization", "").strip()
    if not given and exchange.user_info:
        user, _, password = unquote(exchange.user_info).partition(":")
        given = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    if not given:
        return None
    scheme, _, credentials = given.partition(" ")
    secrets.know(credentials.strip())
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(credentials, validate=True).decode("utf-8", "replace")
            secrets.know(decoded.partition(":")[2])
        except (binascii.Error, ValueError):
            pass  # not what it says it is, and hidden all the same
    shown = scheme if scheme.lower() in SCHEMES and credentials else "TOKEN"
    example = f"{shown} …" if shown != "TOKEN" else shown
    comment = f"Recorded in the header Authorization; set your own value: --env AUTHORIZATION='{example}'."
    return secrets.hidden(given, "authorization", comment)


def is_kept(name: str, value: str) -> bool:
    if name in NOT_KEPT or name.startswith((":", "sec-")) or not HEADER_NAME.fullmatch(name):
        return False
    if name == "accept" and (value.strip() == "*/*" or "text/html" in value):
        return False
    return bool(value) and value.isprintable()


def path_parts(path: str, secrets: SecretValues) -> Iterator[Part]:
    before = "path"
    for position, segment in enumerate(path.split("/")):
        if position:
            yield "/"
        plain = unquote(segment)
        if plain and secrets.gives_away(plain):
            yield secrets.hidden(quote(plain, safe=""), before, "Recorded in a path; set your own value.")
        elif segment:
            yield quote(segment, safe=PATH_SAFE)
            before = plain


def body_of(exchange: Exchange, headers: Mapping[str, str], secrets: SecretValues) -> tuple[Any, Part]:
    """The body, and its type when that does not follow from it."""
    posted = mapping(exchange.request.get("postData"))
    kind = text(posted.get("mimeType")) or headers.get("content-type", "")
    bare_kind = plain_kind(kind)
    pairs = map(mapping, items(posted.get("params")))
    fields = [(text(pair.get("name")), text(pair.get("value"))) for pair in pairs if text(pair.get("name"))]
    content: str | bytes = text(posted.get("text"))
    if posted.get("encoding") == "base64" and content:
        try:
            content = base64.b64decode(content, validate=True)
            content = content.decode()
        except (binascii.Error, ValueError):
            pass  # bytes, or a text that is not base64 after all
    if bare_kind == "application/x-www-form-urlencoded":
        if isinstance(content, str) and content:
            fields = parse_qsl(content, keep_blank_values=True)
        if fields:
            form = {name: listed(name, fields) for name, _ in fields}
            return Fields(secrets.screened(form, "", "in a form")), ""
    if bare_kind == "multipart/form-data" and not content and fields:
        content, kind = multipart(fields), MULTIPART_KIND
    if not content:
        return None, ""
    if isinstance(content, str) and is_json(bare_kind):
        value = json_value(content)
        if value is not None:
            return secrets.screened(value, "", "in a body"), "" if bare_kind == "application/json" else kind
    searched = content if isinstance(content, str) else content.decode("latin-1")
    sent_kind = kind if kind.isprintable() and not secrets.gives_away(kind) else ""
    if secrets.gives_away(searched) or any(is_secret_name(word) for word in set(re.findall(r"[\w-]+", searched))):
        comment = "The recorded body seems to hold a secret; set your own body."
        return secrets.hidden(searched, f"body of {exchange.method}", comment), sent_kind
    return content, sent_kind


def json_value(content: str) -> dict[str, Any] | list[Any] | None:
    """A body that can be written as a dict or a list and be sent as the same JSON again; else None."""
    try:
        value = json.loads(content, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) and is_sendable(value, DEEPEST_BODY) else None


def refuse(constant: str) -> None:
    raise ValueError(constant)


def is_sendable(value: Any, depth: int) -> bool:
    match value:
        case dict():
            return depth > 0 and all(
                is_sendable(key, depth) and is_sendable(part, depth - 1) for key, part in value.items()
            )
        case list():
            return depth > 0 and all(is_sendable(part, depth - 1) for part in value)
        case str():
            return not any("\ud800" <= char <= "\udfff" for char in value)
        case float():
            return math.isfinite(value)
        case bool() | None:
            return True
        case _:
            return value in WHOLE
