"""The OpenAPI 3.1 document of the API, made from the operations and the types they carry.

`python -m talka.web.openapi > docs/openapi.json` writes the copy that is checked in.
"""

import re
import sys
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import _json_schema

from talka.client.requests import PROBLEMS, Problem
from talka.version import VERSION
from talka.web.bodies import NDJSON
from talka.web.operations import OPERATIONS, ApiOperation, Either

TITLES: Final = {
    **{kind.status: kind.title for kind in reversed(PROBLEMS)},
    404: "Not found",
    409: "Conflict",
    415: "The body is not JSON",
    426: "Upgrade required",
    500: "Internal error",
}
ALWAYS: Final = (401, 403, 429, 503)
"""What every operation that takes a role may answer."""
REF: Final = "#/components/schemas/{name}"


@cache
def document() -> bytes:
    types = [operation.answer for operation in OPERATIONS] + [operation.body for operation in OPERATIONS]
    flat = [kind for found in types for kind in (found.kinds if isinstance(found, Either) else (found,))]
    named = [kind for kind in flat if kind not in (None, str, bytes, dict)] + [Problem]
    schemas, components = schemas_of(named)
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
            "summary": "Load tests and dag jobs on a cluster.",
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


def schemas_of(kinds: list[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """msgspec cannot write a default that is JSON already (as of msgspec 0.22): here it is read first."""

    def plain(value: Any, **options: Any) -> Any:
        return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else msgspec.to_builtins(value, **options)

    names = vars(_json_schema)
    usual, names["to_builtins"] = names["to_builtins"], plain
    try:
        schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    finally:
        names["to_builtins"] = usual
    return tuple(map(portable, schemas)), portable(components)


def portable(schema: Any) -> Any:
    """Python's words for the ends of a text are not those of JSON Schema."""
    if isinstance(schema, list | tuple):
        return [portable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: portable(part) for name, part in schema.items()}
    if isinstance(pattern := found.get("pattern"), str):
        found["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
    return found


def described(operation: ApiOperation, by_type: dict[str, Any]) -> dict[str, Any]:
    does = operation.does[0].upper() + operation.does[1:]
    found: dict[str, Any] = {"operationId": operation.name, "summary": does}
    if operation.role is None:
        found["security"] = []
    else:
        found["description"] = f"Takes the role {operation.role}."
        if operation.about:
            found["description"] += f" {operation.about}"
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
        content = {"application/json": {"schema": schema_of(operation.body, by_type)}}
        if operation.name == "submit":
            content[NDJSON] = {"schema": {"type": "string"}}
        found["requestBody"] = {"required": operation.needs_body, "content": content}
    found["responses"] = responses(operation, by_type)
    return found


def schema_of(kind: Any, by_type: dict[str, Any]) -> dict[str, Any]:
    if kind is dict:
        return {"type": "object"}
    if not isinstance(kind, Either):
        found: dict[str, Any] = by_type[str(kind)]
        return found
    any_of = {"anyOf": [by_type[str(one)] for one in kind.kinds]}
    return {"type": "array", "items": any_of} if kind.is_list else any_of


def responses(operation: ApiOperation, by_type: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done"}
    if operation.answer is str:
        good["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif operation.answer is not None:
        good["content"] = {"application/json": {"schema": schema_of(operation.answer, by_type)}}
    status = 101 if operation.method == "WEBSOCKET" else operation.status
    statuses = sorted(
        {
            *([426] if status == 101 else []),
            *operation.problems,
            *(ALWAYS if operation.role else ()),
            *([503] if status == 200 else []),
        }
    )
    problem = {"application/problem+json": {"schema": by_type[str(Problem)]}}
    has_body = operation.method != "HEAD"
    return {str(status): good} | {
        str(status): {"description": TITLES[status]} | ({"content": problem} if has_body else {}) for status in statuses
    }


if __name__ == "__main__":
    sys.stdout.buffer.write(document())
