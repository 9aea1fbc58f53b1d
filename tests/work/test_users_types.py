"""A user's file passes a strict type checker as it is written in the documentation, and mistakes in it do not."""

import re
import subprocess
import sys

import pytest

GOOD = """\
import asyncio
from collections.abc import Mapping
from typing import Any

import talka
from talka import (
    URL, Auth, ConstantRate, ConstantVUs, Cookies, CustomRate, CustomResponse, CustomVUs, Data, Directory, File,
    FileGlob, Form, Headers, HTTPResponse, IterationsPerVU, Params, Provide, RampingRate, RampingVUs, ResultDocument,
    SharedIterations, TalkaError, Timeout, Use, Workflow, action, check, depends, metric, state, step,
)


class Base(Workflow):
    abstract = True

    @step()
    async def home(self, url: URL = "http://shop/home") -> HTTPResponse:
        return await self.client.http.get(url)


class Seed(Base):
    priority = "low"

    @state("Shop")
    def token(self) -> Provide[str]:
        return str(self.home.response.json()["token"])


@depends(Seed)
class Shop(Base):
    load = ConstantRate("50/s", "10s", max_vus=20, policy="drop")
    priority = "high"
    timeout = "1m"
    thresholds = ["failed < 1%", "login.response_time.p99 < 250ms"]
    verify = False

    def __init__(self) -> None:
        super().__init__()
        self.orders = 0

    @step("home", expect=[404, range(500, 502)], tags={"page": "login"})
    async def login(
        self,
        url: URL = "http://shop/login",
        headers: Headers = {"accept": "text/html"},
        params: Params = {"q": "x", "page": 2, "tags": ["a", "b"], "deep": True},
        data: Data = {"name": "Ada"},
        cookies: Cookies = {"a": "b"},
        auth: Auth = ("u", "p"),
        maybe: URL | None = None,
    ) -> HTTPResponse:
        return await self.client.http.post(
            url, headers=headers, params=params, data=data, cookies=cookies, auth=auth, timeout=Timeout(), redirects=3
        )

    @step(login)
    async def upload(
        self,
        login: HTTPResponse,
        file: File = "x",
        files: Directory = "d",
        found: FileGlob = "*.json",
        token: Auth = "t",
    ) -> HTTPResponse | None:
        for path in files:
            if path.endswith(".json") and login.status == 200:
                return await self.client.http.put("http://shop/" + path, data=file, timeout=2.5, redirects=False)
        for path in found:
            await self.client.http.delete(f"http://shop/{path}", auth=token)
        return await self.client.http.patch("http://shop/form", data=Form({"a": "b"}), json={"x": 1})

    @step(login, "upload")
    async def compute(self) -> CustomResponse[int]:
        response = await self.client.custom.call(asyncio.sleep(0.1, 5), timeout=1.0)
        value: int = response.value
        self.orders += value
        return response

    @action(compute)
    async def pause(self) -> None:
        session: str = self.login.response.json()["session"]
        text: str = self.login.response.text
        length: str = self.login.response.headers["content-length"]
        number: int = self.compute.response.value
        self.context["session"] = session + text + length + str(number) + self.received_token()

    @state(Seed)
    def received_token(self, token: str = "") -> Use[str]:
        return token

    @check(login)
    def is_quick(self, login: HTTPResponse) -> bool:
        return login.timings.total_ms < 100

    @check()
    async def is_json(self, login: HTTPResponse) -> Exception | None:
        return None

    @metric("distribution", login)
    def size(self, login: HTTPResponse) -> float:
        return len(login.content)

    @step(login)
    async def again(self) -> dict[str, Any]:
        answer = await self.login("http://shop/again")
        answers: Mapping[str, Any] = answer.json()
        return dict(answers)


class Members(Base):
    vus = 5
    duration = "1m"

    @step()
    async def home(self) -> HTTPResponse:
        return await super().home("http://shop/members")


class Shapes(Base):
    load = RampingVUs([(10, "1m"), (0, "10s")])


class Rates(Base):
    load = RampingRate([("10/s", "1m"), (0, 10)], start=1)


class Custom(Base):
    load = CustomVUs(lambda elapsed_s: 10 + elapsed_s, "1m", every="5s")


class CustomRates(Base):
    load = CustomRate(lambda elapsed_s: 10.5, "1m")


class Each(Base):
    load = IterationsPerVU(10, 5)


class Shared(Base):
    load = SharedIterations(10, 500, max_duration="5m")


class Constant(Base):
    load = ConstantVUs(10, 30)


def main() -> None:
    try:
        result: ResultDocument = talka.run_blocking([Seed, Shop], cores=1, duration="5s")
    except TalkaError as error:
        raise SystemExit(str(error)) from error
    assert result is not None and talka.__version__
"""

BAD = """\
from talka import URL, Headers, HTTPResponse, Workflow, step


class Shop(Workflow):
    load = "fast"  # wrong
    priority = "urgent"  # wrong

    @step(expect=["404"])  # wrong
    async def login(
        self,
        url: URL = 5,  # wrong
        headers: Headers = {"a": 1},  # wrong
    ) -> HTTPResponse:
        return await self.client.http.get(url, header=headers)  # wrong

    @step(login, 5)  # wrong
    async def order(self) -> HTTPResponse:
        self.login.response.jsn()  # wrong
        await self.client.http.fetch("http://shop/")  # wrong
        number: int = await self.login()  # wrong
        return number  # wrong

    @step  # wrong
    async def pay(self: "Shop") -> HTTPResponse:
        return await self.client.http.get("http://shop/")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("users")


def strict_mypy(folder, text):
    (folder / "shop.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={folder / 'cache'}", "shop.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_a_test_file_passes_a_strict_type_checker(folder):
    checked = strict_mypy(folder, GOOD)

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "Success: no issues found in 1 source file\n")


def test_a_type_checker_finds_the_mistakes_in_a_test_file(folder):
    checked = strict_mypy(folder, BAD)

    wrong = {number for number, line in enumerate(BAD.splitlines(), 1) if line.endswith("# wrong")}
    found = {int(number) for number in re.findall(r"^shop\.py:(\d+): error:", checked.stdout, re.MULTILINE)}
    assert wrong <= found, checked.stdout
