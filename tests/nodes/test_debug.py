"""One iteration, shown: every request and response, what became of each step, and the exit code."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from talka.nodes.debug import debug_job
from talka.nodes.local import LocalJob, LocalOptions
from talka.wire.shards import MemorySource
from talka.work.arguments import URL
from talka.work.dsl import Provide, Use, Workflow, action, check, depends, metric, state, step
from talka.work.inspection import inspect_workflows
from talka.work.outcome import ExitCode
from talka.work.responses import BODY_SHOWN_BYTES, CustomResponse, HTTPResponse
from talka.work.shapes import ConstantVUs
from tests.web.fake_control import free_port

Answer = CustomResponse[Any]


async def debugged(*workflows: type[Workflow]) -> tuple[int, list[str]]:
    """The exit code and the lines said."""
    said: list[str] = []
    job = LocalJob(MemorySource("none"), inspect_workflows(workflows), LocalOptions())
    code = await debug_job(job, said.append)
    return code, said


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """A server that answers with the body it was sent, or else with its name; /missing is missing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (first := await reader.readline()) not in (b"", b"\r\n"):
            size = 0
            while (line := await reader.readline()) not in (b"", b"\r\n"):
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            body = await reader.readexactly(size) or b"the server"
            status = b"404 Not Found" if b"/missing" in first else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nX-Served: yes\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


# What is shown.


async def test_every_request_and_response_is_shown(address: str) -> None:
    class Shop(Workflow):
        @step()
        async def post(self) -> HTTPResponse:
            return await self.client.http.post(f"{address}/cart", data="one book")

    code, said = await debugged(Shop)
    assert code == ExitCode.HELD
    assert said[0] == "── Shop ──"
    assert said[1] == "> POST /cart HTTP/1.1"
    assert any(line.lower().startswith("> host: 127.0.0.1:") for line in said)
    sent, status = said.index("> one book"), next(line for line in said if line.startswith("< 200 in "))
    assert sent < said.index(status) < said.index("< one book")
    assert " ms (first byte " in status
    assert "< x-served: yes" in [line.lower() for line in said]
    assert said[-2:] == ["✓ post", "1 ok, 0 failed"]


async def test_a_long_body_is_cut_short(address: str) -> None:
    class Shop(Workflow):
        @step()
        async def post(self) -> HTTPResponse:
            return await self.client.http.post(address, data="x" * 5000)

    _, said = await debugged(Shop)
    cut = f"{'x' * BODY_SHOWN_BYTES}… (5000 bytes)"
    assert f"> {cut}" in said and f"< {cut}" in said


async def test_an_exchange_that_fails_is_shown_with_its_kind() -> None:
    with free_port() as port:

        class Shop(Workflow):
            @step()
            async def get(self) -> HTTPResponse:
                return await self.client.http.get(f"http://127.0.0.1:{port}/")

        code, said = await debugged(Shop)
    assert "> GET / HTTP/1.1" in said
    assert any(line.startswith("< refused: ") for line in said)
    assert any(line.startswith("✗ get: ") for line in said)
    assert (code, said[-1]) == (ExitCode.INCOMPLETE, "0 ok, 1 failed")


async def test_steps_checks_and_metrics_are_told_with_what_became_of_them(address: str) -> None:
    class Shop(Workflow):
        @step()
        async def found(self) -> HTTPResponse:
            return await self.client.http.get(address)

        @step()
        async def missing(self) -> HTTPResponse:
            return await self.client.http.get(f"{address}/missing")

        @action()
        def broken(self) -> None:
            raise LookupError("no shelf")

        @step("broken")
        async def skipped(self) -> HTTPResponse:
            return await self.client.http.get(address)

        @check("found")
        def is_there(self, found: HTTPResponse) -> bool:
            return found.status == 200

        @check("found")
        def is_small(self, found: HTTPResponse) -> bool:
            return len(found.content) < 3

        @check("skipped")
        def never_asked(self) -> bool:
            return True

        @metric("sample", "found")
        def size(self, found: HTTPResponse) -> float:
            return len(found.content)

    code, said = await debugged(Shop)
    assert code == ExitCode.HELD
    verdicts = [line.partition(" (")[0] for line in said if line[0] in "✓✗-"]
    assert sorted(verdicts) == sorted(
        [
            "✓ found",
            f"✗ missing: GET {address}/missing answered 404",
            "✗ broken: LookupError: no shelf",
            "✓ is_there",
            "✗ is_small: is_small returned False",
            "- never_asked",
            "✓ size",
        ]
    )
    assert said[-1] == "2 ok, 2 failed"


async def test_the_load_does_not_matter_each_workflow_runs_once() -> None:
    runs: list[int] = []

    class Shop(Workflow):
        load = ConstantVUs(50, "1h")

        @step()
        async def go(self) -> Answer:
            runs.append(1)
            return CustomResponse(1)

    assert (await debugged(Shop))[0] == ExitCode.HELD
    assert runs == [1]


async def test_steps_run_in_the_calling_thread_so_that_breakpoints_work() -> None:
    threads: list[int] = []

    class Shop(Workflow):
        @step()
        async def one(self) -> Answer:
            threads.append(threading.get_ident())
            return CustomResponse(1)

        @action()
        def two(self) -> None:
            threads.append(threading.get_ident())

    await debugged(Shop)
    assert threads == [threading.get_ident()] * 2


async def test_provided_values_flow_to_the_workflows_that_use_them() -> None:
    used: list[str] = []

    class Login(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse("secret")

        @state("Shop")
        def token(self) -> Provide[str]:
            return str(self.go.response.value)

        @state("Shop")
        def nothing(self) -> Provide[str | None]:
            return None

    @depends(Login)
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            used.extend([self.known(nothing="given"), self.context["token"]])
            return CustomResponse(1)

        @state(Login)
        def known(self, token: str, nothing: str | None) -> Use[str]:
            return f"{token} {nothing}"

    assert (await debugged(Login, Shop))[0] == ExitCode.HELD
    assert used == ["secret given", "secret"]


# Exit codes.


async def test_a_failed_setup_ends_it_there() -> None:
    class Setup(Workflow):
        @action()
        def create(self) -> None:
            raise LookupError("no database")

    @depends(Setup)
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            raise AssertionError("must not run")

    code, said = await debugged(Setup, Shop)
    assert code == ExitCode.BAD_FILE
    assert said[-1] == "Setup failed, so nothing that depends on it would run"


async def test_where_nothing_is_measured_the_result_would_be_incomplete() -> None:
    class Setup(Workflow):
        @action()
        def create(self) -> None:
            pass

    code, said = await debugged(Setup)
    assert (code, said[-1]) == (ExitCode.INCOMPLETE, "1 ok, 0 failed")


async def test_a_host_nobody_knows_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_address(*_: Any, **__: Any) -> Any:
        raise OSError("no such name")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_address)

    class Shop(Workflow):
        @step()
        async def get(self, url: URL = "http://nosuch.invalid/") -> HTTPResponse:
            return await self.client.http.get(url)

    code, said = await debugged(Shop)
    assert code == ExitCode.INCOMPLETE
    assert said[-1].startswith("Shop: the address of 'nosuch.invalid' cannot be found")


async def test_a_workflow_that_cannot_be_made_is_a_bad_file() -> None:
    class Shop(Workflow):
        def __init__(self) -> None:
            raise LookupError("no account")

        @step()
        async def go(self) -> Answer: ...

    code, said = await debugged(Shop)
    assert code == ExitCode.BAD_FILE
    assert said[-1].startswith("Shop: Shop cannot be made: LookupError: no account (")


async def test_a_value_that_cannot_be_provided_is_a_bad_file() -> None:
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            return CustomResponse(1)

        @state()
        def token(self) -> Provide[str]:
            raise LookupError("no token")

    code, said = await debugged(Shop)
    assert code == ExitCode.BAD_FILE
    assert "Shop.token could not be provided: LookupError: no token" in said[-1]


async def test_what_a_workflow_leaves_in_its_context_is_there_for_those_that_depend_on_it() -> None:
    found: list[Any] = []

    class Seed(Workflow):
        @step()
        async def go(self) -> Answer:
            self.context["token"] = "secret"
            return CustomResponse(1)

    @depends(Seed)
    class Shop(Workflow):
        @step()
        async def go(self) -> Answer:
            found.append(self.context["token"])
            return CustomResponse(1)

    class Other(Workflow):
        @step()
        async def go(self) -> Answer:
            found.append(dict(self.context))
            return CustomResponse(1)

    code, _ = await debugged(Seed, Shop, Other)

    assert code == ExitCode.HELD
    assert sorted(found, key=str) == ["secret", {}]
