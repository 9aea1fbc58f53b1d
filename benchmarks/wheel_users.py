"""The users of `make bench-wheels` that every wheel understands. TARGET is the address of the server."""

import os

from talka import URL, HTTPResponse, Workflow, check, metric, step

TARGET = os.environ["TARGET"]


class Plain(Workflow):
    @step()
    async def get(self, url: URL = f"{TARGET}/") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.status == 200
        return response


class Tasks(Workflow):
    driver = "task"

    @step()
    async def get(self, url: URL = f"{TARGET}/") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.status == 200
        return response


class JSON(Workflow):
    @step()
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        response = await self.client.http.get(url)
        assert response.json()["id"] == 7
        return response


class Chained(Workflow):
    @step()
    async def first(self, url: URL = f"{TARGET}/") -> HTTPResponse:
        return await self.client.http.get(url)

    @step(first)
    async def second(self, first: HTTPResponse, url: URL = f"{TARGET}/json") -> HTTPResponse:
        assert first.status == 200
        return await self.client.http.get(url)


class Post(Workflow):
    @step()
    async def post(self, url: URL = f"{TARGET}/login") -> HTTPResponse:
        return await self.client.http.post(url, json={"user": "ada", "password": "secret", "remember": True})


class Composed(Workflow):
    number = 0

    @step()
    async def get(self) -> HTTPResponse:
        self.number += 1
        return await self.client.http.get(f"{TARGET}/page?id={self.number}")


class Judged(Workflow):
    @step()
    async def get(self, url: URL = f"{TARGET}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    @check()
    def is_answered(self, get: HTTPResponse) -> None:
        assert get.status == 200

    @metric("distribution")
    def answer_bytes(self, get: HTTPResponse) -> float:
        return len(get.content)
