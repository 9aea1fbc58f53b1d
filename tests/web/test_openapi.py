"""The API's own description."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from talka.web.openapi import document
from talka.web.operations import OPERATIONS
from tests.web.fake_control import Api

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"


def everything_in(value: object) -> list[dict[str, object]]:
    found = [value] if isinstance(value, dict) else []
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        found += everything_in(part)
    return found


def test_the_document_that_is_checked_in_is_current() -> None:
    assert DOCUMENT.read_bytes() == document(), "python -m talka.web.openapi > docs/openapi.json"


def test_the_module_prints_the_document() -> None:
    printed = subprocess.run([sys.executable, "-m", "talka.web.openapi"], capture_output=True, timeout=60, check=True)

    assert printed.stdout == document()


def test_every_operation_is_described_and_every_reference_leads_somewhere() -> None:
    described = json.loads(document())

    assert described["openapi"] == "3.1.0"
    names = [operation["operationId"] for path in described["paths"].values() for operation in path.values()]
    assert sorted(names) == sorted(operation.name for operation in OPERATIONS)
    references = {str(part["$ref"]) for part in everything_in(described) if "$ref" in part}
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert references <= known
    assert {"JobFacts", "JobOrder", "JobUpdate", "Problem", "ResultDocument"} <= set(described["components"]["schemas"])


def test_the_schemas_are_valid_json_schemas() -> None:
    jsonschema = pytest.importorskip("jsonschema")

    for schema in json.loads(document())["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_the_api_serves_it(api: Api) -> None:
    answer = await api.ask("GET", "/v1/openapi.json")

    assert answer.body == document()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/jobs"), ("GET", "/v1/workers"), ("GET", "/v1/cluster"), ("GET", "/v1/jobs/job1")],
)
async def test_answers_are_as_described(api: Api, method: str, path: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    api.control.add_job()
    described = json.loads(document())
    by_path = described["paths"][path.replace("job1", "{id}")]
    schema = by_path[method.lower()]["responses"]["200"]["content"]["application/json"]["schema"]

    answer = json.loads((await api.ask(method, path)).body)

    jsonschema.Draft202012Validator(schema | {"components": described["components"]}).validate(answer)
