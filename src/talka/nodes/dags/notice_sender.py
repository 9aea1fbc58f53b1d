"""Tells a server of the end of a job: one signed POST, to an address that was judged before anybody is connected.

Decision: docs/decisions/0052-ends-of-jobs-are-told-from-the-store.md.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import httptools

from talka.client.http import read_answer
from talka.clock import realtime_ns
from talka.control.tasks.notices import headers_of
from talka.errors import TalkaError
from talka.version import VERSION
from talka.work.dags.notify import ALLOW, NotifyTarget, address_in, is_public, target_of
from talka.work.dags.records import NoticeRow

ADDRESSES_TRIED: Final = 4

NO_SECRET: Final = "this manager has no secret to sign with: start it with --notify-secret FILE"


class NotifyOptions(NamedTuple):
    """Whom this manager may tell of the ends of jobs."""

    secret: bytes = b""
    """With which notices are signed; empty: none are taken."""
    may_be_private: bool = False
    """Also who is at an address that is not public."""


NO_NOTICES: Final = NotifyOptions()


class SenderLimits(NamedTuple):
    timeout_s: float = 10.0
    """Of everything: looking up, connecting, sending, and the head of the answer."""
    answer_bytes: int = 1 << 20
    """What may come together with the head of an answer. Nothing after that is read."""


class NotDelivered(TalkaError):
    """Nobody took it. `is_final`: nobody ever will."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class NoticeSender:
    def __init__(
        self,
        secret: bytes,
        *,
        may_be_private: bool = False,
        resolve: "Callable[[str, int], Awaitable[list[str]]] | None" = None,
        limits: SenderLimits = SenderLimits(),  # noqa: B008 - a value
    ) -> None:
        """`secret` empty: there is none, and nothing is sent. `resolve`: the addresses of a name."""
        self._secret = secret
        self._may_be_private = may_be_private
        self._resolve = resolve or resolved
        self._limits = limits

    async def send(self, row: NoticeRow) -> None:
        """Until a server has taken it. Raises `NotDelivered`."""
        if not self._secret:
            raise NotDelivered(NO_SECRET)
        target = target_of(row.url)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                addresses = await self._judged(target)
                status = await self._post(target, addresses, row)
        except TimeoutError:
            raise NotDelivered(f"{target.place} did not answer within {self._limits.timeout_s:g} s") from None
        if 200 <= status < 300:
            return
        told = f"{target.place} answered {status}"
        raise NotDelivered(f"{told}: redirects are not followed" if 300 <= status < 400 else told)

    async def _judged(self, target: NotifyTarget) -> list[str]:
        """Of a name with a single address that is not public none is used: somebody may be playing tricks."""
        try:
            found = [target.host] if address_in(target.host) else await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise NotDelivered(f"the address of {target.host} cannot be found: {reason}") from None
        if not found:
            raise NotDelivered(f"{target.host} has no address")
        for text in found:
            address = address_in(text)
            if not self._may_be_private and (address is None or not is_public(address)):
                where = text if text == target.host else f"{target.host} is {text}, which"
                raise NotDelivered(f"{where} is not a public address: {ALLOW}", is_final=True)
        return found[:ADDRESSES_TRIED]

    async def _post(self, target: NotifyTarget, addresses: list[str], row: NoticeRow) -> int:
        """The status of the answer of the first address that can be reached. What a name stands for is not asked
        again: the connection goes to what was judged."""
        problem = ""
        for address in addresses:
            try:
                reader, writer = await self._connected(target, address)
            except OSError as error:
                problem = error.strerror or str(error) or type(error).__name__
                continue
            try:
                writer.write(self._head(target, row) + row.body)
                await writer.drain()
                return (await read_answer(reader, True, self._limits.answer_bytes)).status
            except (OSError, EOFError) as error:
                raise NotDelivered(f"{target.place} broke the connection: {error or type(error).__name__}") from None
            except httptools.HttpParserError as error:
                raise NotDelivered(f"{target.place} does not speak HTTP: {error}") from None
            finally:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        raise NotDelivered(f"{target.place} cannot be reached: {problem}")

    async def _connected(self, target: NotifyTarget, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if target.scheme == "http":
            return await asyncio.open_connection(address, target.port)
        context = await asyncio.to_thread(ssl.create_default_context)  # reads what the machine trusts
        return await asyncio.open_connection(address, target.port, ssl=context, server_hostname=target.host)

    def _head(self, target: NotifyTarget, row: NoticeRow) -> bytes:
        headers = {
            "host": target.place.partition("://")[2],
            "user-agent": f"talka/{VERSION}",
            "connection": "close",
            "content-length": str(len(row.body)),
            **headers_of(row, self._secret, realtime_ns()),
        }
        lines = [f"POST {target.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("ascii")


async def resolved(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
