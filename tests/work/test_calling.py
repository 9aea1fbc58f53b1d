"""What reading the code of a method tells of its calls and of what it keeps."""

from collections.abc import Callable
from typing import Any

import pytest

from talka.work.calling import keeps_attributes, makes_several_calls
from talka.work.clients import TYPED


class Methods:
    client: Any
    seen: int

    async def one(self, url: str) -> Any:
        return await self.client.http.get(url)

    async def two(self, url: str) -> Any:
        await self.client.http.get(url)
        return await self.client.http.post(url)

    async def for_each(self, urls: list[str]) -> None:
        for url in urls:
            await self.client.http.get(url)

    async def while_there_is_more(self, url: str) -> None:
        while (await self.client.http.get(url)).json():
            pass

    async def until_something(self, url: str) -> None:
        found = None
        while found is None:
            found = (await self.client.custom.ask(url)).json()

    async def after_a_loop(self, urls: list[str]) -> Any:
        for url in urls:
            assert url
        return await self.client.http.get(urls[0])

    async def named(self, url: str) -> Any:
        await self.client.http.get(url, name="first")
        return await self.client.http.get(url)

    def keeps(self, value: int) -> None:
        self.seen = value

    def adds(this) -> None:
        this.seen += 1

    def gives(self, other: Any) -> None:
        other.seen = self.seen

    def gives_more(self, other: Any) -> None:
        other.seen += self.seen

    @staticmethod
    def nothing() -> int:
        return 1


@pytest.mark.parametrize(
    "method", [Methods.two, Methods.for_each, Methods.while_there_is_more, Methods.until_something]
)
def test_calls_in_several_places_or_in_a_loop_are_several(method: Callable[..., Any]) -> None:
    assert makes_several_calls(method, TYPED)


@pytest.mark.parametrize("method", [Methods.one, Methods.after_a_loop, Methods.keeps, len])
def test_one_call_is_not_several_wherever_there_are_loops(method: Callable[..., Any]) -> None:
    assert not makes_several_calls(method, TYPED)


def test_calls_with_names_were_written_by_somebody_who_knows() -> None:
    assert not makes_several_calls(Methods.named, TYPED)


@pytest.mark.parametrize("method", [Methods.keeps, Methods.adds])
def test_what_is_written_to_self_is_kept(method: Callable[..., Any]) -> None:
    assert keeps_attributes(method)


@pytest.mark.parametrize("method", [Methods.one, Methods.gives, Methods.gives_more, Methods.nothing, len])
def test_what_is_written_elsewhere_or_only_read_is_not_kept(method: Callable[..., Any]) -> None:
    assert not keeps_attributes(method)
