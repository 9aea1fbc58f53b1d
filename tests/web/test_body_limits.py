"""What the body of a request may have: as `docs/jobs.md` says it, to the byte."""

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.web.fake_control import LIMIT_S, Api, Apis, make_order
from tests.web.fake_dags import FakeDags

DOCS = Path(__file__).parents[2] / "docs" / "jobs.md"
BYTES = {"KiB": 1024, "MiB": 1024 * 1024}
JSON = "application/json"
DAG = json.dumps({"kind": "dag", "name": "nightly", "tasks": [{"id": "a", "handler": "etl"}]}).encode()
ORDER = msgspec.json.encode(make_order())
REASON = b'{"reason": "enough"}'


def documented(what: str) -> int:
    [row] = [line for line in DOCS.read_text().splitlines() if line.startswith("| the body of a request |")]
    [(number, unit)] = re.findall(rf"(\d+) (KiB|MiB) for {what}", row)
    return int(number) * BYTES[unit]


async def send(api: Api, method: str, path: str, kind: str, body: bytes, *, is_chunked: bool) -> int:
    """The status of the answer. An answer that comes before everything was sent is an answer, too."""
    reader, writer = await asyncio.open_connection(api.address.host, api.address.port)
    how = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{how}\r\n\r\n"
    content = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if is_chunked else body
    try:
        writer.write(head.encode() + content)
        async with asyncio.timeout(LIMIT_S):
            return int((await reader.readline()).split()[1])
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["told", "chunked"])
@pytest.mark.parametrize(
    ("what", "limit_bytes", "method", "path", "kind", "body", "has_dags", "status"),
    [
        ("a bundle", 67_108_864, "PUT", f"/v1/bundles/{'0' * 64}", "application/zip", b"", False, 422),
        ("a load job", 393_216, "POST", "/v1/jobs", JSON, ORDER, False, 201),
        ("a load job", 393_216, "POST", "/v1/jobs", JSON, ORDER, True, 201),
        ("a pipeline", 16_777_216, "POST", "/v1/jobs", JSON, DAG, True, 201),
        ("a cancel", 8192, "POST", "/v1/jobs/job1/cancel", JSON, REASON, False, 200),
    ],
)
async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(
    apis: Apis,
    what: str,
    limit_bytes: int,
    method: str,
    path: str,
    kind: str,
    body: bytes,
    has_dags: bool,
    status: int,
    is_chunked: bool,
) -> None:
    api = await apis.start(dags=FakeDags() if has_dags else None)
    api.control.add_job()
    api.control.bundles["a" * 64] = b"x"
    assert documented(what) == limit_bytes

    exact = await send(api, method, path, kind, body.rjust(limit_bytes), is_chunked=is_chunked)
    beyond = await send(api, method, path, kind, body.rjust(limit_bytes + 1), is_chunked=is_chunked)

    assert (exact, beyond) == (status, 413)
