"""Reads a description of an API (OpenAPI 3) into the draft of a test: a step for every operation.

Values come from examples where there are any, else from defaults, enumerations and types. References may lead in
circles and schemas may be of any size, so depth and number of values are bounded.
"""

import importlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

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
    step_name,
    unique,
)
from talka.errors import Invalid

MOST_OPERATIONS: Final = 500
MOST_HOPS: Final = 32
"""References that lead to references."""
DEEPEST: Final = 8
MOST_VALUES: Final = 400
"""In one body; a schema of schemas would otherwise grow without end."""
MOST_ITEMS: Final = 5
MOST_TAG_CHARACTERS: Final = 64
DEFAULT_TARGET: Final = "http://127.0.0.1:8400"
IGNORED_HEADERS: Final = {"accept", "content-type", "authorization", "content-length", "transfer-encoding", "cookie"}
FORMATS: Final = {
    "date-time": "2026-01-01T12:00:00Z",
    "date": "2026-01-01",
    "time": "12:00:00Z",
    "duration": "PT1M",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "email": "somebody@example.com",
    "hostname": "localhost",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "http://127.0.0.1/",
    "url": "http://127.0.0.1/",
    "uri-reference": "/",
    "byte": "dGFsa2E=",
}


class BadDescription(Invalid):
    """The file describes no API, or none that a test can be made of."""


class Missing:
    """No value: it was not given, or would go on for ever."""


MISSING: Final = Missing()


def draft_from_openapi(content: bytes, name: str) -> Draft:
    """A test with a step for each operation. `name` is the file's, for what is said about it."""
    document = document_of(content, name)
    reader = ApiReader(document)
    requests = [*reader.requests()]
    if not requests:
        raise BadDescription(f"{name} describes no operation: add one under paths")
    notes = []
    if len(requests) > MOST_OPERATIONS:
        notes.append(f"Skipped {len(requests) - MOST_OPERATIONS} operations beyond the first {MOST_OPERATIONS}.")
        del requests[MOST_OPERATIONS:]
    if reader.unresolved:
        shown = ", ".join(sorted(reader.unresolved)[:3])
        notes.append(f"References without a target in this file were left out: {shown}.")
    if reader.constants:
        names = ", ".join(constant.name for constant in reader.constants)
        notes.append(f"The API requires credentials: the test reads {names} from the environment.")
    title = text(mapping(document.get("info")).get("title"))
    target = Constant(
        name="TARGET",
        comment="The address of the API. To change it: talka run loadtest.py --env TARGET=http://127.0.0.1:8400",
        default=server_of(document),
    )
    return Draft(
        title=f"The operations that {name} describes, in order.",
        constants=[target, *reader.constants],
        journeys=[
            Journey(
                name=unique(class_name(title, "Api"), CLASS_NAMES_TAKEN), base=Variable("TARGET"), requests=requests
            )
        ],
        notes=notes,
    )


# From bytes to a document.


def document_of(content: bytes, name: str) -> Mapping[str, Any]:
    document = document_in(
        content, name, "an OpenAPI description", BadDescription, lambda decoded: yaml_of(decoded, name)
    )
    if not isinstance(document, dict):
        raise BadDescription(f"{name} is not an OpenAPI description: it is not an object")
    if "log" in document and "openapi" not in document:
        raise BadDescription(f"{name} is a HAR recording, not an OpenAPI description: use --from-har")
    if "swagger" in document:
        raise BadDescription(f"{name} is Swagger {str(document['swagger'])[:20]}: convert it to OpenAPI 3 first")
    version = str(document.get("openapi", ""))
    if not version:
        raise BadDescription(f"{name} is not an OpenAPI description: it has no field openapi with a version")
    if not re.match(r"3\.[012](\.|$)", version):
        raise BadDescription(f"{name} is OpenAPI {version[:20]}, which is not supported: use 3.0, 3.1 or 3.2")
    return document


def yaml_of(decoded: str, name: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise BadDescription(
            f"{name} is not JSON. YAML needs PyYAML: pip install pyyaml; or convert the file to JSON"
        ) from None
    try:
        return yaml.safe_load(decoded)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadDescription(f"{name} is not an OpenAPI description: neither JSON nor YAML ({reason})") from None


def server_of(document: Mapping[str, Any]) -> str:
    servers = document.get("servers")
    server = mapping(servers[0]) if isinstance(servers, list) and servers else {}
    url = text(server.get("url"))
    for variable, described in mapping(server.get("variables")).items():
        url = url.replace(f"{{{variable}}}", quote(str(mapping(described).get("default", "")), safe="/:."))
    try:
        parts = urlsplit(url)
        origin = origin_of(parts)
    except ValueError:
        return DEFAULT_TARGET
    path = quote(parts.path, safe="/%:@").rstrip("/")
    if origin:
        return origin + path
    # A server may be given by its path alone: then it is where the description came from.
    return DEFAULT_TARGET + (path if path.startswith("/") and not parts.netloc else "")


@dataclass
class ApiReader:
    """Walks the description. What it comes upon that the test must declare is collected here."""

    document: Mapping[str, Any]
    constants: list[Constant] = field(default_factory=list)
    unresolved: set[str] = field(default_factory=set)

    def requests(self) -> Iterator[DraftRequest]:
        for path, described in mapping(self.document.get("paths")).items():
            item = self.resolved(described)
            shared = items(item.get("parameters"))
            for method, operation in item.items():
                known = str(method).upper() in METHODS and isinstance(operation, dict)
                if known and isinstance(path, str) and path.startswith("/"):
                    yield self.request(str(method).upper(), text(path), operation, shared)

    # References.

    def resolved(self, node: object) -> Mapping[str, Any]:
        """What a node is, or what it refers to; empty if that leads nowhere."""
        for _ in range(MOST_HOPS):
            reference = mapping(node).get("$ref")
            if not isinstance(reference, str):
                return mapping(node)
            node = self.at(reference)
        return {}

    def at(self, reference: str) -> object:
        if not reference.startswith("#"):
            self.unresolved.add(reference[:80])
            return None
        found: Any = self.document
        for name in [part for part in reference[1:].split("/") if part]:
            name = unquote(name).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = mapping(found).get(name)
        if found is None:
            self.unresolved.add(reference[:80])
        return found

    # One operation.

    def request(self, method: str, path: str, operation: Mapping[str, Any], shared: Sequence[Any]) -> DraftRequest:
        values = Values()
        for parameter in self.parameters(operation, shared):
            self.fill(values, parameter)
        data, content_type = self.body(operation) if method not in ("GET", "HEAD", "OPTIONS") else (None, "")
        if content_type:
            values.headers["content-type"] = content_type
        auth = self.security(operation, values)
        name = text(operation.get("operationId"))
        telling = re.sub(r"\{[^}]*\}", "", path)
        return DraftRequest(
            name=step_name(name) if name else request_name(method, telling),
            method=method,
            path=[*path_parts(path, values.path)],
            params=values.query,
            headers=values.headers,
            cookies=values.cookies,
            auth=auth,
            data=data,
            expect=expected(mapping(operation.get("responses"))),
            tags=tags_of(operation),
        )

    def parameters(self, operation: Mapping[str, Any], shared: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
        """Those of the operation go before those of its path."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for given in (*shared, *items(operation.get("parameters"))):
            parameter = self.resolved(given)
            found[text(parameter.get("name")), text(parameter.get("in"))] = parameter
        yield from (parameter for (name, _), parameter in found.items() if name)

    def fill(self, values: "Values", parameter: Mapping[str, Any]) -> None:
        name, place = text(parameter.get("name")), text(parameter.get("in"))
        is_required = parameter.get("required") is True or place == "path"
        value = self.value_of(parameter, is_required)
        if isinstance(value, Missing) or value is None:
            return
        match place:
            case "path":
                values.path[name] = joined(value, ",")
            case "query":
                values.query.update(as_query(name, value, parameter))
            case "header" if name.lower() not in IGNORED_HEADERS and HEADER_NAME.fullmatch(name):
                values.headers[name] = one_line(joined(value, ","))
            case "cookie" if HEADER_NAME.fullmatch(name):
                values.cookies[name] = quote(joined(value, ","), safe="")

    def value_of(self, parameter: Mapping[str, Any], is_required: bool) -> Any:
        """An optional parameter is sent only if the description says with which value."""
        given = self.example_of(parameter)
        if not isinstance(given, Missing):
            return given
        for described in mapping(parameter.get("content")).values():
            media = self.resolved(described)
            value = (
                self.media_value(media) if is_required or not isinstance(self.example_of(media), Missing) else MISSING
            )
            return value if isinstance(value, Missing) else json.dumps(value)
        schema = self.resolved(parameter.get("schema"))
        stated = self.stated(schema)
        if isinstance(stated, Missing) and is_required:
            return SampleValue(self).of(schema)
        return stated

    def example_of(self, described: Mapping[str, Any]) -> Any:
        """`example`, or the first of `examples`, which are named."""
        if "example" in described:
            return plain(described["example"])
        for example in mapping(described.get("examples")).values():
            found = self.resolved(example)
            if "value" in found:
                return plain(found["value"])
        return MISSING

    def stated(self, schema: Mapping[str, Any]) -> Any:
        """A value the schema names itself."""
        for key in ("example", "examples", "default", "const", "enum"):
            if key in schema:
                value = schema[key]
                if key in ("examples", "enum"):
                    # The null among the choices says only that there need not be one.
                    choices = [choice for choice in items(value) if choice is not None]
                    value = choices[0] if choices else MISSING
                value = plain(value)
                if not isinstance(value, Missing):
                    return value
        return MISSING

    def media_value(self, media: Mapping[str, Any]) -> Any:
        given = self.example_of(media)
        return SampleValue(self).of(media.get("schema")) if isinstance(given, Missing) else given

    # The body.

    def body(self, operation: Mapping[str, Any]) -> tuple[Any, str]:
        """The body, and its type when that does not follow from it."""
        content = mapping(self.resolved(operation.get("requestBody")).get("content"))
        kinds = sorted((text(kind) for kind in content), key=preference)
        if not kinds:
            return None, ""
        kind = kinds[0]
        value = self.media_value(self.resolved(content[kind]))
        bare = plain_kind(kind)
        if isinstance(value, Missing):
            return None, ""
        if is_json(bare) or "*" in bare:
            sent_kind = "application/json" if "*" in bare else one_line(kind)
            if isinstance(value, dict | list):
                return value, "" if sent_kind == "application/json" else sent_kind
            return json.dumps(value), sent_kind
        fields = value if isinstance(value, dict) else {}
        if bare == "application/x-www-form-urlencoded":
            return Fields({name: form_value(part) for name, part in fields.items()}), ""
        if bare == "multipart/form-data":
            made = multipart([(name, joined(part, ",")) for name, part in fields.items()])
            return made, MULTIPART_KIND
        return value if isinstance(value, str) else json.dumps(value), one_line(kind)

    # Who is calling.

    def security(self, operation: Mapping[str, Any], values: "Values") -> Variable | tuple[Variable, Variable] | None:
        """The first of the ways the operation accepts; what it needs is put in its place."""
        ways = items(operation.get("security", self.document.get("security")))
        schemes = mapping(mapping(self.document.get("components")).get("securitySchemes"))
        auth: Variable | tuple[Variable, Variable] | None = None
        for name in map(str, mapping(ways[0]) if ways else ()):
            scheme = self.resolved(schemes.get(name))
            kind, place, key = (text(scheme.get(part)) for part in ("type", "in", "name"))
            if kind == "apiKey" and key:
                variable = self.variable(name, f"The API key {key} of the scheme {name}.")
                if place == "query":
                    values.query[key] = variable
                elif place == "header" and HEADER_NAME.fullmatch(key):
                    values.headers[key] = variable
                elif place == "cookie" and HEADER_NAME.fullmatch(key):
                    values.cookies[key] = variable
            elif kind == "http" and text(scheme.get("scheme")).lower() == "basic":
                auth = (
                    self.variable(f"{name} user", f"The user of the scheme {name}."),
                    self.variable(f"{name} password", f"The password of the scheme {name}."),
                )
            elif kind in ("http", "oauth2", "openIdConnect"):
                auth = self.variable(name, f"The token of the scheme {name}, sent as Bearer if it is a single word.")
        if any(header.lower() == "authorization" for header in values.headers):
            return None
        return auth

    def variable(self, name: str, comment: str) -> Variable:
        for constant in self.constants:
            if constant.comment == comment:
                return Variable(constant.name)
        taken = {constant.name for constant in self.constants} | CONSTANTS_TAKEN
        self.constants.append(Constant(name=unique(constant_name(name), taken), comment=comment))
        return Variable(self.constants[-1].name)


@dataclass
class Values:
    """Where the parameters of one operation go."""

    path: dict[str, str] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Part] = field(default_factory=dict)
    cookies: dict[str, Part] = field(default_factory=dict)


def path_parts(path: str, values: Mapping[str, str]) -> Iterator[str]:
    for literal, name in re.findall(r"([^{]*)(?:\{([^}]*)\}?)?", path):
        yield quote(literal, safe="/%:@!$&()*+,;=~")
        if name:
            yield quote(values.get(name, "1"), safe="") or "1"


def as_query(name: str, value: Any, parameter: Mapping[str, Any]) -> dict[str, Any]:
    style = text(parameter.get("style")) or "form"
    explodes = parameter.get("explode", style == "form") is not False
    match value:
        case list():
            parts = [form_value(part) for part in value]
            separator = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(style, ",")
            return {name: parts if explodes else separator.join(map(shown, parts))}
        case dict() if style == "deepObject":
            return {f"{name}[{key}]": form_value(part) for key, part in value.items()}
        case dict() if explodes:
            return {key: form_value(part) for key, part in value.items()}
        case dict():
            return {name: joined(value, ",")}
        case _:
            return {name: value}


def form_value(value: Any) -> Any:
    """A field of a form or a query holds no structure; it is sent as JSON."""
    if isinstance(value, list) and not any(isinstance(part, dict | list) for part in value):
        return [part for part in value if part is not None]
    return json.dumps(value) if isinstance(value, dict | list) else "" if value is None else value


def joined(value: Any, separator: str) -> str:
    if isinstance(value, dict):
        return separator.join(shown(part) for pair in value.items() for part in pair)
    return separator.join(map(shown, value)) if isinstance(value, list) else shown(value)


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def one_line(value: str) -> str:
    return "".join(char if char.isprintable() else " " for char in value)


def preference(kind: str) -> int:
    bare = plain_kind(kind)
    if is_json(bare):
        return 0 if bare == "application/json" else 1
    ranked = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
    return 2 + ranked.index(bare) if bare in ranked else 9


def expected(responses: Mapping[Any, Any]) -> tuple[int | range, ...]:
    """Documented refusals, where nothing else is documented."""
    codes = [str(code).upper() for code in responses]  # YAML has them as numbers
    if any(code.startswith("2") for code in codes):
        return ()
    return tuple(range(400, 500) if code == "4XX" else int(code) for code in codes if re.fullmatch(r"4(\d\d|XX)", code))


def tags_of(operation: Mapping[str, Any]) -> dict[str, str]:
    tags = ", ".join(tag for tag in items(operation.get("tags")) if isinstance(tag, str))
    return {"tag": tags[:MOST_TAG_CHARACTERS]} if tags else {}


# Values.


def plain(value: Any) -> Any:
    """A copy of an example, in types that JSON has; MISSING if it is too large or cannot be sent."""
    left = [MOST_VALUES * 5]

    def copied(part: Any, depth: int) -> Any:
        left[0] -= 1
        if depth == 0 or left[0] < 0:
            raise ValueError
        match part:
            case dict():
                return {str(key): copied(inner, depth - 1) for key, inner in part.items()}
            case list() | tuple():
                return [copied(inner, depth - 1) for inner in part]
            case str():
                part.encode()  # refuses what is no text
                return part
            case bool() | None:
                return part
            case int() if part in WHOLE:
                return part
            case float() if math.isfinite(part):
                return part
            case int() | float() | Missing() | bytes():
                raise ValueError
            case _:
                return str(part)  # YAML has dates

    try:
        return copied(value, DEEPEST)
    except ValueError:
        return MISSING


class SampleValue:
    """Makes one value of a schema, of bounded size."""

    def __init__(self, reader: ApiReader) -> None:
        self._reader = reader
        self._left = MOST_VALUES

    def of(self, schema: object, depth: int = DEEPEST, within: frozenset[str] = frozenset()) -> Any:
        """`within` holds the references that led here: one that comes again would go on for ever."""
        reference = mapping(schema).get("$ref")
        if isinstance(reference, str):
            if reference in within or len(within) >= MOST_HOPS:
                return MISSING
            within = within | {reference}
            target = self._reader.at(reference)
            beside = {key: part for key, part in mapping(schema).items() if key != "$ref"}
            return self.of({**mapping(target), **beside}, depth, within)
        self._left -= 1
        if depth == 0 or self._left < 0:
            return MISSING
        described = mapping(schema)
        stated = self._reader.stated(described)
        if not isinstance(stated, Missing):
            return stated
        if "allOf" in described:
            return self.all_of(described, depth, within)
        for key in ("oneOf", "anyOf"):
            for choice in items(described.get(key)):
                if mapping(choice).get("type") != "null":
                    value = self.of(choice, depth - 1, within)
                    if not isinstance(value, Missing):
                        return value
        return self.of_type(described, depth, within)

    def all_of(self, described: Mapping[str, Any], depth: int, within: frozenset[str]) -> Any:
        rest = {key: part for key, part in described.items() if key != "allOf"}
        merged: Any = MISSING
        for part in (*items(described.get("allOf")), *([rest] if "properties" in rest else [])):
            value = self.of(part, depth - 1, within)
            if isinstance(value, dict) and isinstance(merged, dict):
                merged = {**merged, **value}
            elif isinstance(merged, Missing) or isinstance(value, dict):
                merged = value
        return merged

    def of_type(self, described: Mapping[str, Any], depth: int, within: frozenset[str]) -> Any:
        kind = described.get("type")
        if isinstance(kind, list):
            kind = next((choice for choice in kind if choice != "null"), "null")
        if kind is None:
            kind = "object" if "properties" in described else "array" if "items" in described else "string"
        match kind:
            case "object":
                return self.object(described, depth, within)
            case "array":
                item = self.of(described.get("items", {}), depth - 1, within)
                if isinstance(item, Missing):
                    return []
                return [item] * max(1, min(number(described, "minItems", 1), MOST_ITEMS))
            case "integer" | "number":
                return numeric(described)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return string(described)

    def object(self, described: Mapping[str, Any], depth: int, within: frozenset[str]) -> Any:
        made = {}
        required = items(described.get("required"))
        properties = mapping(described.get("properties"))
        # What must be there comes first, while there is room; the order of the description is kept.
        for name in sorted(properties, key=lambda name: name not in required):
            if self._reader.resolved(properties[name]).get("readOnly") is True:
                continue
            value = self.of(properties[name], depth - 1, within)
            if not isinstance(value, Missing):
                made[str(name)] = value
        return {str(name): made[str(name)] for name in properties if str(name) in made}


def number(described: Mapping[str, Any], key: str, otherwise: int) -> int:
    value = described.get(key)
    return value if type(value) is int and value in WHOLE else otherwise


def numeric(described: Mapping[str, Any]) -> int | float:
    """The number nearest to 1 that the schema allows."""

    def bound(key: str) -> int | float | None:
        value = described.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return value if abs(value) < 2**53 else None  # also for NaN

    least, most = bound("minimum"), bound("maximum")
    # Above and below are whole numbers away; in 3.0 the flags are true or false, in 3.1 they are the bounds.
    above = least if described.get("exclusiveMinimum") is True else bound("exclusiveMinimum")
    below = most if described.get("exclusiveMaximum") is True else bound("exclusiveMaximum")
    if above is not None:
        least = above + 1
    if below is not None:
        most = below - 1
    value: int | float = 1
    if least is not None and value < least:
        value = least
    if most is not None and value > most:
        value = most
    unit = bound("multipleOf")
    if unit is not None and unit > 0:
        value = math.ceil(value / unit) * unit
    return math.ceil(value) if described.get("type") == "integer" else value


def string(described: Mapping[str, Any]) -> str:
    made = FORMATS.get(text(described.get("format")), "text")
    least, most = number(described, "minLength", 0), number(described, "maxLength", 1000)
    if len(made) < least:
        made += "x" * (min(least, 1000) - len(made))
    return made[: max(most, 0)]
