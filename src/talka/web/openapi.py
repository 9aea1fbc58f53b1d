"""The OpenAPI 3.1 document of the API, made from the operations and the types they carry.

`python -m talka.web.openapi > docs/openapi.json` writes the copy that is checked in.
"""

import re
import sys
from functools import cache
from typing import Any, Final

import msgspec

from talka.client.requests import PROBLEMS, Problem
from talka.version import VERSION
from talka.web.operations import OPERATIONS, Operation

TITLES: Final = {
    **{kind.status: kind.title for kind in reversed(PROBLEMS)},
    404: "Not found",
    409: "Conflict",
    415: "The body is not JSON",
    500: "Internal error",
}
ALWAYS: Final = (401, 403, 429, 503)
"""What every operation that takes a role may answer."""
REF: Final = "#/components/schemas/{name}"


@cache
def document() -> bytes:
    types = [operation.answer for operation in OPERATIONS] + [operation.body for operation in OPERATIONS]
    named = [kind for kind in types if kind not in (None, str, bytes, dict)] + [Problem]
    schemas, components = msgspec.json.schema_components(named, ref_template=REF)
    by_type = {str(kind): schema for kind, schema in zip(named, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        method = "get" if operation.method == "WEBSOCKET" else operation.method.lower()
        paths.setdefault(operation.path, {})[method] = described(operation, by_type)
    content = {
        "openapi": "3.1.0",
        "info": {
            "title": "Talka",
            "version": VERSION,
            "summary": "Load tests on a cluster.",
            "description": "Every manager answers. Errors are problem documents (RFC 9457).",
        },
        "servers": [{"url": "/"}],
        # Either way: without a token only where none is configured, on loopback.
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
            "schemas": components,
        },
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def described(operation: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    does = operation.does[0].upper() + operation.does[1:]
    found: dict[str, Any] = {"operationId": operation.name, "summary": does}
    if operation.role is None:
        found["security"] = []
    else:
        found["description"] = f"Takes the role {operation.role}."
    if operation.method == "WEBSOCKET":
        found["description"] += (
            " A WebSocket: each frame is one update. It closes with 1000 after the final one, and with 1012 or 1013 when"
            " the watch is to be opened anew, at this or another manager."
        )
    names = re.findall(r"{(\w+)}", operation.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    parameters += [
        {"name": name, "in": where, "description": about, "schema": schema}
        for name, where, about, schema in operation.parameters
    ]
    if parameters:
        found["parameters"] = parameters
    if operation.body is bytes:
        found["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif operation.body is not None:
        content = {"application/json": {"schema": by_type[str(operation.body)]}}
        found["requestBody"] = {"required": operation.name == "submit", "content": content}
    found["responses"] = responses(operation, by_type)
    return found


def responses(operation: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done"}
    if operation.answer is str:
        good["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif operation.answer is dict:
        good["content"] = {"application/json": {"schema": {"type": "object"}}}
    elif operation.answer is not None:
        good["content"] = {"application/json": {"schema": by_type[str(operation.answer)]}}
    status = 101 if operation.method == "WEBSOCKET" else operation.status
    statuses = sorted({*operation.problems, *(ALWAYS if operation.role else ()), *([503] if status == 200 else [])})
    problem = {"application/problem+json": {"schema": by_type[str(Problem)]}}
    has_body = operation.method != "HEAD"
    return {str(status): good} | {
        str(status): {"description": TITLES[status]} | ({"content": problem} if has_body else {}) for status in statuses
    }


if __name__ == "__main__":
    sys.stdout.buffer.write(document())
