"""Reads documents that other programs wrote: nothing in them is trusted to have the type it should have."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult

from talka.errors import Invalid

WHOLE: Final = range(-(2**63), 2**63)
"""Numbers that can be sent as JSON again."""
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def text(value: object) -> str:
    """A text that can be written; JSON may hold halves of characters."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def document_in(
    content: bytes, name: str, kind: str, error: type[Invalid], otherwise: Callable[[str], Any] | None = None
) -> Any:
    """The JSON in the file. `otherwise` reads a text that does not begin as JSON does."""
    if not content.strip():
        raise error(f"{name} is empty: export it again")
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(f"{name} is not {kind}: it is not text in UTF-8") from None
    try:
        return json.loads(decoded)
    except json.JSONDecodeError as problem:
        if otherwise is not None and not decoded.lstrip().startswith(("{", "[")):
            return otherwise(decoded)
        where = f"line {problem.lineno}, column {problem.colno}"
        raise error(f"{name} is not {kind}: it is not JSON ({problem.msg}, {where})") from None
    except RecursionError:
        raise error(f"{name} is not {kind}: its JSON is nested too deeply") from None


def origin_of(parts: SplitResult) -> str:
    """Scheme, host and port; empty where it is not HTTP. ValueError: it cannot be read."""
    host, port = parts.hostname or "", parts.port
    if parts.scheme not in ("http", "https") or not re.fullmatch(r"[\w.:-]+", host):
        return ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"


def plain_kind(kind: str) -> str:
    """A content type without its parameters."""
    return kind.partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")
