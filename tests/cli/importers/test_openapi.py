"""The description of an API becomes a test with a step for each operation."""

import ast
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from talka.cli.importers.openapi import (
    DEFAULT_TARGET,
    MISSING,
    MOST_OPERATIONS,
    ApiReader,
    BadDescription,
    SampleValue,
    draft_from_openapi,
    plain,
    server_of,
)
from talka.cli.importers.test_writer import COLUMNS, Draft, DraftRequest, Fields, Variable, written

QUIETLY = ("--ui", "none", "--cores", "1")
RECORDINGS = Path(__file__).parent / "recordings"
APIS = ["shop-3.0.json", "orders-3.1.json", "account.json"]
VARIABLES = ("BEARER_AUTH", "KEY", "LOGIN_USER", "LOGIN_PASSWORD", "SESSION")
OK = {"200": {"description": "fine"}}


def described(name: str) -> str:
    return written(draft_from_openapi((RECORDINGS / name).read_bytes(), name))


def draft_of(operation: dict[str, Any], path: str = "/x", method: str = "get", **document: Any) -> Draft:
    whole = {"openapi": "3.1.0", "paths": {path: {method: {"responses": OK, **operation}}}, **document}
    return draft_from_openapi(json.dumps(whole).encode(), "api.json")


def request_of(operation: dict[str, Any], path: str = "/x", method: str = "get", **document: Any) -> DraftRequest:
    (request,) = draft_of(operation, path, method, **document).journeys[0].requests
    return request


def with_parameter(path: str = "/x", **parameter: Any) -> DraftRequest:
    return request_of({"parameters": [{"name": "p", "in": "query", **parameter}]}, path)


def with_body(kind: str, **media: Any) -> DraftRequest:
    return request_of({"requestBody": {"content": {kind: media}}}, method="post")


def sample(schema: Any, **schemas: Any) -> Any:
    return SampleValue(ApiReader({"components": {"schemas": schemas}})).of(schema)


# The descriptions.


@pytest.mark.parametrize("name", APIS)
def test_description_becomes_a_test_that_runs(name: str, talka, server, folder: Path) -> None:
    (folder / "loadtest.py").write_text(described(name))
    variables = [part for variable in VARIABLES for part in ("--env", f"{variable}=something")]
    done = talka("run", "loadtest.py", "--iterations", "3", "--env", f"TARGET={server.url}", *variables, *QUIETLY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.requests >= 15


@pytest.mark.parametrize("name", APIS)
def test_written_test_is_formatted_and_checked(name: str, folder: Path) -> None:
    file = folder / "loadtest.py"
    file.write_text(described(name))
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--isolated", "--select", "F,E9,I", file], check=True, capture_output=True)
    subprocess.run([*ruff, "format", "--isolated", "--line-length", "120", "--check", file], check=True)
    assert max(map(len, file.read_text().splitlines())) <= COLUMNS


def test_written_tests_satisfy_the_type_checker(folder: Path) -> None:
    files = [f"{name.split('.')[0].replace('-', '_')}.py" for name in APIS]
    for name, file in zip(APIS, files, strict=True):
        (folder / file).write_text(described(name))
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# Operations.


def test_operation_is_named_by_its_id_or_by_its_path() -> None:
    assert request_of({"operationId": "listGoods"}).name == "list_goods"
    assert request_of({"operationId": "class"}).name == "call_class"
    assert request_of({}, "/users/{id}/orders").name == "get_users_orders"


@pytest.mark.parametrize(
    ("responses", "expect"),
    [
        (["200", "404"], ()),
        (["2XX", "404"], ()),
        (["404"], (404,)),
        (["401", "4XX", "500", "default"], (401, range(400, 500))),
        (["default"], ()),
        ([], ()),
    ],
)
def test_refusals_are_expected_only_where_no_success_is_documented(responses: list[str], expect: Any) -> None:
    assert request_of({"responses": dict.fromkeys(responses, {})}).expect == expect


def test_tags_are_tags_of_the_step_and_not_too_long() -> None:
    assert request_of({"tags": ["a", "b"]}).tags == {"tag": "a, b"}
    assert len(request_of({"tags": ["long" * 50]}).tags["tag"]) == 64


def test_more_operations_than_anybody_reads_are_cut_off_and_it_is_said() -> None:
    paths = {f"/{number}": {"get": {"responses": OK}} for number in range(MOST_OPERATIONS + 2)}
    draft = draft_from_openapi(json.dumps({"openapi": "3.0.0", "paths": paths}).encode(), "api.json")
    assert len(draft.journeys[0].requests) == MOST_OPERATIONS and "2 operations" in draft.notes[0]


# Parameters.


@pytest.mark.parametrize(
    ("parameter", "params"),
    [
        ({"example": "e", "schema": {"default": "d"}}, {"p": "e"}),
        ({"examples": {"one": {"value": "first"}}}, {"p": "first"}),
        ({"schema": {"example": 3}}, {"p": 3}),
        ({"schema": {"default": "d"}}, {"p": "d"}),
        ({"schema": {"enum": [None, "a", "b"]}}, {"p": "a"}),
        ({"schema": {"type": "string"}}, {}),
        ({"required": True, "schema": {"type": "string"}}, {"p": "text"}),
        ({"required": True, "schema": {"type": "array", "items": {"type": "integer"}}}, {"p": [1]}),
        ({"example": ["a", "b"], "explode": False}, {"p": "a,b"}),
        ({"example": ["a", "b"], "style": "pipeDelimited"}, {"p": "a|b"}),
        ({"example": {"a": 1}, "style": "deepObject"}, {"p[a]": 1}),
        ({"example": {"a": 1, "b": [1, 2]}}, {"a": 1, "b": [1, 2]}),
        ({"example": {"a": 1}, "explode": False}, {"p": "a,1"}),
        ({"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}, {"p": "{}"}),
    ],
)
def test_value_of_a_query_parameter(parameter: dict[str, Any], params: dict[str, Any]) -> None:
    assert with_parameter(**parameter).params == params


def test_path_is_filled_and_what_nobody_declares_is_one() -> None:
    request = with_parameter("/a/{p}/b/{q}", **{"in": "path", "example": "x/y"})
    assert "".join(map(str, request.path)) == "/a/x%2Fy/b/1"


def test_parameter_of_an_operation_goes_before_that_of_its_path() -> None:
    shared = [{"name": "p", "in": "query", "example": 1}, {"name": "q", "in": "query", "example": 2}]
    item = {"parameters": shared, "get": {"parameters": [{"name": "p", "in": "query", "example": 3}]}}
    draft = draft_from_openapi(json.dumps({"openapi": "3.0.0", "paths": {"/": item}}).encode(), "api.json")
    assert draft.journeys[0].requests[0].params == {"p": 3, "q": 2}


def test_headers_and_cookies_are_put_in_their_place() -> None:
    assert with_parameter(**{"in": "header", "name": "X-A", "example": "a\nb"}).headers == {"X-A": "a b"}
    assert with_parameter(**{"in": "header", "name": "Accept", "example": "a"}).headers == {}
    assert with_parameter(**{"in": "cookie", "example": "a b"}).cookies == {"p": "a%20b"}


# Bodies.


def test_body_is_the_example_before_the_schema() -> None:
    assert with_body("application/json", example={"a": 1}, schema={"type": "object"}).data == {"a": 1}
    assert with_body("application/json", schema={"example": [2]}).data == [2]


def test_body_of_other_kinds() -> None:
    properties = {"type": "object", "properties": {"n": {"type": "integer"}, "o": {"example": {"a": 1}}}}
    assert with_body("application/x-www-form-urlencoded", schema=properties).data == Fields({"n": 1, "o": '{"a": 1}'})
    multipart = with_body("multipart/form-data", schema=properties)
    assert 'name="n"\r\n\r\n1\r\n' in multipart.data and "boundary=" in str(multipart.headers["content-type"])
    text = with_body("text/csv", example="a,b")
    assert text.data == "a,b" and text.headers == {"content-type": "text/csv"}
    scalar = with_body("application/json", example="word")
    assert scalar.data == '"word"' and scalar.headers == {"content-type": "application/json"}
    merge = with_body("application/merge-patch+json", example={"a": 1})
    assert merge.data == {"a": 1} and merge.headers == {"content-type": "application/merge-patch+json"}


def test_json_is_preferred_and_a_get_has_no_body() -> None:
    content = {"text/xml": {"example": "<a/>"}, "application/json": {"example": {"a": 1}}}
    assert request_of({"requestBody": {"content": content}}, method="put").data == {"a": 1}
    assert request_of({"requestBody": {"content": content}}).data is None


# Values of schemas.


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 10}, 10),
        ({"type": "integer", "minimum": 10, "exclusiveMinimum": True}, 11),
        ({"type": "integer", "exclusiveMinimum": 4}, 5),
        ({"type": "number", "maximum": 0.5}, 0.5),
        ({"type": "integer", "exclusiveMaximum": 1}, 0),
        ({"type": "integer", "multipleOf": 5}, 5),
        ({"type": "integer", "minimum": 1e400}, 1),
        ({"type": "boolean"}, True),
        ({"type": ["null", "boolean"]}, True),
        ({"type": "null"}, None),
        ({"type": "string", "minLength": 6}, "textxx"),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "string", "format": "uuid"}, "00000000-0000-4000-8000-000000000001"),
        ({"const": 0}, 0),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"properties": {"a": {"type": "integer"}, "id": {"type": "integer", "readOnly": True}}}, {"a": 1}),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]}, {"a": 1, "b": 2}),
        ({}, "text"),
        (None, "text"),
    ],
)
def test_value_of_a_schema(schema: Any, value: Any) -> None:
    assert sample(schema) == value


def test_schema_that_holds_itself_ends() -> None:
    tree = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/components/schemas/Tree"}}}
    assert sample({"$ref": "#/components/schemas/Tree"}, Tree=tree) == {"n": 1}


def test_references_that_lead_in_a_circle_have_no_value() -> None:
    circle = {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}}
    assert sample({"$ref": "#/components/schemas/A"}, **circle) is MISSING
    assert ApiReader({"components": {"schemas": circle}}).resolved({"$ref": "#/components/schemas/A"}) == {}


def test_schema_that_would_grow_without_end_is_bounded() -> None:
    level: dict[str, Any] = {"type": "integer"}
    for _ in range(30):
        level = {"type": "object", "properties": {f"p{number}": level for number in range(10)}}
    assert len(json.dumps(sample(level))) < 20_000


def test_references_with_escapes_and_to_lists_are_found_and_others_told() -> None:
    reader = ApiReader({"a/b": {"~c": [{"x": 1}]}})
    assert reader.at("#/a~1b/~0c/0") == {"x": 1}
    assert reader.at("other.json#/a") is None and reader.at("#/nowhere") is None
    assert reader.unresolved == {"other.json#/a", "#/nowhere"}


def test_example_that_cannot_be_sent_or_is_too_large_is_none() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert all(plain(value) is MISSING for value in (endless, 2**70, float("inf"), "\ud800", [0] * 10_000))
    assert plain({1: date(2026, 1, 2)}) == {"1": "2026-01-02"}


# Who is calling, and where.


def secured(*ways: Any, **schemes: Any) -> tuple[DraftRequest, Draft]:
    draft = draft_of({"security": list(ways)}, components={"securitySchemes": schemes})
    return draft.journeys[0].requests[0], draft


def test_credentials_come_from_the_environment() -> None:
    assert secured({"a": []}, a={"type": "http", "scheme": "Bearer"})[0].auth == Variable("A")
    assert secured({"a": []}, a={"type": "oauth2"})[0].auth == Variable("A")
    basic, draft = secured({"login": []}, login={"type": "http", "scheme": "basic"})
    assert basic.auth == (Variable("LOGIN_USER"), Variable("LOGIN_PASSWORD"))
    assert draft.needed == ["LOGIN_USER", "LOGIN_PASSWORD"]
    for place, where in (("query", "params"), ("header", "headers"), ("cookie", "cookies")):
        request, _ = secured({"a": []}, a={"type": "apiKey", "in": place, "name": "k"})
        assert getattr(request, where) == {"k": Variable("A")}


def test_operation_without_security_has_none_even_if_the_rest_has() -> None:
    schemes = {"securitySchemes": {"a": {"type": "http", "scheme": "bearer"}}}
    document = {"security": [{"a": []}], "components": schemes}
    assert request_of({}, **document).auth == Variable("A")
    assert request_of({"security": []}, **document).auth is None
    assert request_of({"security": [{}]}, **document).auth is None
    assert request_of({"security": [{"unknown": []}]}, **document).auth is None


@pytest.mark.parametrize(
    ("servers", "target"),
    [
        ([{"url": "https://api.test/v1/"}], "https://api.test/v1"),
        ([{"url": "https://{h}:8443", "variables": {"h": {"default": "a.test"}}}], "https://a.test:8443"),
        ([{"url": "https://ada:pw@a.test"}], "https://a.test"),
        ([{"url": "/v2"}], f"{DEFAULT_TARGET}/v2"),
        ([{"url": "ftp://a.test"}], DEFAULT_TARGET),
        ([{"url": "http://["}], DEFAULT_TARGET),
        ([None], DEFAULT_TARGET),
        (None, DEFAULT_TARGET),
    ],
)
def test_target_is_the_first_server(servers: Any, target: str) -> None:
    assert server_of({"servers": servers}) == target


# What is no description.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b'{"openapi": ', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "not an object"),
        (b"{}", "no field openapi"),
        (b'{"log": {"entries": []}}', "--from-har"),
        (b'{"swagger": "2.0"}', "Swagger 2.0"),
        (b'{"openapi": "4.0.0"}', "OpenAPI 4.0.0"),
        (b'{"openapi": "3.0.0"}', "no operation"),
        (b'{"openapi": "3.0.0", "paths": {"/": {"trace": {}}, "x": {"get": {}}, "/y": 3}}', "no operation"),
    ],
)
def test_what_is_no_description_is_refused_with_a_sentence(content: bytes, words: str) -> None:
    with pytest.raises(BadDescription, match="api.json") as error:
        draft_from_openapi(content, "api.json")
    assert words in str(error.value)


def test_yaml_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(BadDescription, match="pip install pyyaml"):
        draft_from_openapi(b"openapi: 3.0.0\n", "api.yaml")


def test_yaml_with_its_package_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"openapi": "3.0.3", "paths": {"/": {"get": {"responses": {404: {}}}}}}
    yaml = SimpleNamespace(safe_load=lambda text: document, YAMLError=ValueError)
    monkeypatch.setitem(sys.modules, "yaml", yaml)
    draft = draft_from_openapi(b"openapi: 3.0.3\n", "api.yaml")
    assert draft.journeys[0].requests[0].expect == (404,)


def test_broken_yaml_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def safe_load(text: str) -> None:
        raise ValueError("mapping values\n  are not allowed here")

    monkeypatch.setitem(sys.modules, "yaml", SimpleNamespace(safe_load=safe_load, YAMLError=ValueError))
    with pytest.raises(BadDescription, match="neither JSON nor YAML .mapping values are not allowed here"):
        draft_from_openapi(b"a: b: c", "api.yaml")


def test_halves_of_characters_do_no_harm() -> None:
    draft = draft_of({"operationId": "\ud800", "tags": ["\ud800"]}, "/\ud800/{p}", info={"title": "\ud800"})
    ast.parse(written(draft).encode())
