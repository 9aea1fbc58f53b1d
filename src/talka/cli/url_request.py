"""What the flags `-X -H -d -k --timeout` ask of a URL. They read as curl's do."""

import json
from collections.abc import Iterable
from typing import Any, Final

from talka.cli.config import BadSetting
from talka.engine.clients.requests import prepare_headers
from talka.errors import Invalid
from talka.wire.shards import BODY_LIMIT_BYTES, HEADERS_LIMIT, PLAIN_GET, UrlRequest
from talka.work.durations import parse_duration, shown

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
"""Those of the HTTP client."""
FLAGS: Final = {
    "method": "-X",
    "headers": "-H",
    "data": "-d",
    "insecure": "-k",
    "timeout": "--timeout",
}
FORM_TYPE: Final = "application/x-www-form-urlencoded"
LONGEST_NS: Final = 86_400 * 10**9
FILE_LIMIT_BYTES: Final = 256 * 1024


def take_request(flags: dict[str, Any], target: str) -> UrlRequest:
    """What the flags ask of the target. They are taken out of `flags`: they are no settings."""
    given = {name: flags.pop(name) for name in FLAGS}
    used = [flag for name, flag in FLAGS.items() if given[name] not in (None, (), False)]
    if not used:
        return PLAIN_GET
    if "://" not in target:
        verb = "goes" if len(used) == 1 else "go"
        raise BadSetting(
            f"{', '.join(used)} {verb} with a URL, and {target} is a file: say it in the test (docs/language.md)"
        )
    headers = headers_of(given["headers"])
    body = None if given["data"] is None else content_of("-d", given["data"], BODY_LIMIT_BYTES)
    if body is not None and "content-type" not in {name.lower() for name in headers}:
        headers["Content-Type"] = type_of(body)
    return UrlRequest(
        method=method_of(given["method"], has_body=body is not None),
        headers=headers,
        body=body,
        verify=not given["insecure"],
        timeout_ns=0 if given["timeout"] is None else timeout_of(given["timeout"]),
    )


def method_of(given: str | None, *, has_body: bool) -> str:
    if given is None:
        return "POST" if has_body else "GET"
    method = given.upper()
    if method not in METHODS:
        raise BadSetting(f"-X {shown(given)} is not a method of the client: the methods are {', '.join(METHODS)}")
    return method


def headers_of(given: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        if text.startswith("@"):
            content = content_of("-H", text, FILE_LIMIT_BYTES).decode(errors="surrogateescape")
            lines = [(f"-H {text}, line {number}", line) for number, line in enumerate(content.splitlines(), 1)]
        else:
            lines = [("-H", text)]
        for label, line in lines:
            if not line.strip() and text.startswith("@"):
                continue
            name, colon, value = line.partition(":")
            # What is given is not repeated: it may be a secret, and this may be a log of a CI.
            if not colon or not value.strip():
                missing = "value after the colon" if colon else "colon"
                raise BadSetting(f"{label}: there is no {missing}: write 'Name: value'")
            if name.lower() in {other.lower() for other in found}:
                raise BadSetting(f"{label}: the header {name} is given twice: leave one out")
            found[name] = value.strip()
            try:
                prepare_headers({name: found[name]})
            except Invalid as error:
                raise BadSetting(f"{label}: {error}") from None
    if len(found) > HEADERS_LIMIT:
        raise BadSetting(f"-H: {len(found)} headers are given: {HEADERS_LIMIT} are the most")
    return found


def content_of(label: str, given: str, limit: int) -> bytes:
    """The text itself, or what is in the file after an @, as it is."""
    if not given.startswith("@"):
        content = given.encode(errors="surrogateescape")
    else:
        try:
            with open(given[1:], "rb") as file:
                content = file.read(limit + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise BadSetting(f"{label} {given} cannot be read: {reason}") from None
    if len(content) > limit:
        raise BadSetting(f"{label}: it has more than {limit // 1024} KiB, the most: write a test file, with File(…)")
    return content


def type_of(body: bytes) -> str:
    """As curl has it, except that nobody has to say of JSON that it is."""
    try:
        is_json = isinstance(json.loads(body), dict | list)
    except (ValueError, RecursionError):
        is_json = False
    if is_json:
        return "application/json"
    try:
        body.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return FORM_TYPE


def timeout_of(given: str) -> int:
    timeout_ns = parse_duration(given, what="--timeout")
    if not 0 < timeout_ns <= LONGEST_NS:
        raise BadSetting(f"--timeout = {shown(given)} is not possible: write a duration above 0, at most a day")
    return timeout_ns
