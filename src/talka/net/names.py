"""Names to addresses, without blocking: the hosts file, then the DNS, then whatever else the system knows.

The DNS library is imported at the first name that needs it.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from talka.errors import Unavailable
from talka.units import SECOND
from talka.wire.addresses import is_ip

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.resolver import Answer

TIMEOUT_S: Final = 2.0
SHORTEST_TTL_NS: Final = SECOND
LONGEST_TTL_NS: Final = 3600 * SECOND
SYSTEM_TTL_NS: Final = 30 * SECOND
"""For answers of the system, which come without a time to live."""
NEGATIVE_TTL_NS: Final = 30 * SECOND
NAMES_LIMIT: Final = 1024
ADDRESSES_LIMIT: Final = 256
"""Of one name; more are left out."""
HOSTS_FILE: Final = Path("/etc/hosts")
HOSTS_LIMIT_BYTES: Final = 1 << 20

Found = TypeVar("Found")


class NameUnknown(Unavailable):
    """A name could not be turned into addresses. `is_final`: the servers said no, rather than nothing."""

    def __init__(self, name: str, reason: str, *, is_final: bool) -> None:
        super().__init__(f"the name {name} was not resolved: {reason}")
        self.name, self.reason, self.is_final = name, reason, is_final


class _Cache(Generic[Found]):
    """Answers until they expire, at most `NAMES_LIMIT`; the one stored longest ago gives way."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[int, Found]] = OrderedDict()

    def get(self, now: int, name: str) -> Found | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        until, found = entry
        if now < until:
            return found
        del self._entries[name]
        return None

    def put(self, until: int, name: str, found: Found) -> None:
        self._entries.pop(name, None)
        if len(self._entries) >= NAMES_LIMIT:
            self._entries.popitem(last=False)
        self._entries[name] = (until, found)


class NameLookup:
    """Looks names up and remembers the answers for as long as they are good.

    `nameservers` as (IP, port) replace those of the system. A failed look-up is not repeated for `NEGATIVE_TTL_NS`.
    """

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        nameservers: Sequence[tuple[str, int]] | None = None,
        hosts_file: Path = HOSTS_FILE,
    ) -> None:
        self._timeout_s = timeout_s
        self._nameservers = nameservers
        self._hosts_file = hosts_file
        self._addresses: _Cache[list[str]] = _Cache()
        self._services: _Cache[list[tuple[str, int]]] = _Cache()
        self._unknown: _Cache[NameUnknown] = _Cache()

    async def addresses(self, now: int, name: str) -> list[str]:
        """The IP addresses of a host, IPv4 first. Raises NameUnknown."""
        name = name.lower()
        if found := self._remembered(now, name, self._addresses):
            return found
        if found := self._in_hosts_file(name):
            # Not kept: the file is quickly read, and changes count at once.
            return found
        try:
            ttl_ns, found = await self._look_up(name)
        except NameUnknown as error:
            self._unknown.put(now + NEGATIVE_TTL_NS, name, error)
            raise
        self._addresses.put(now + ttl_ns, name, found)
        return found

    async def services(self, now: int, name: str) -> list[tuple[str, int]]:
        """(host, port) of a service (SRV), those preferred first. Raises NameUnknown."""
        name = name.lower()
        # A key of its own: a host may have the name of a service.
        key = f"srv:{name}"
        if found := self._remembered(now, key, self._services):
            return found
        try:
            answer = await self._ask(name, "SRV")
            found = _targets(answer)
            if not found:
                raise NameUnknown(name, "its SRV record says that there is no such service", is_final=True)
        except NameUnknown as error:
            self._unknown.put(now + NEGATIVE_TTL_NS, key, error)
            raise
        self._services.put(now + _ttl_ns(answer), key, found)
        return found

    def _remembered(self, now: int, key: str, cache: _Cache[list[Found]]) -> list[Found] | None:
        if (unknown := self._unknown.get(now, key)) is not None:
            # A new error: one that is raised again and again grows a longer traceback each time.
            raise NameUnknown(unknown.name, unknown.reason, is_final=unknown.is_final)
        return cache.get(now, key)

    def _in_hosts_file(self, name: str) -> list[str]:
        """The addresses of a name in the hosts file. `localhost` is this machine wherever it is asked (RFC 6761)."""
        wanted = name.removesuffix(".")
        found: dict[str, None] = {}
        try:
            with self._hosts_file.open(encoding="utf-8", errors="replace") as file:
                lines = file.read(HOSTS_LIMIT_BYTES).splitlines()
        except OSError:
            lines = []
        for line in lines:
            address, *names = line.partition("#")[0].lower().split() or [""]
            if wanted in names and is_ip(address):
                found[address] = None
        if not found and (wanted == "localhost" or wanted.endswith(".localhost")):
            return ["127.0.0.1", "::1"]
        return _sorted(list(found))

    async def _look_up(self, name: str) -> tuple[int, list[str]]:
        """(time to live, addresses) from the DNS, or from the system where the DNS knows nothing."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._try(name, kind)) for kind in ("A", "AAAA")]
        found: list[str] = []
        ttls_ns: list[int] = []
        problems: list[NameUnknown] = []
        for task in asked:
            match task.result():
                case NameUnknown() as problem:
                    problems.append(problem)
                case answer:
                    found.extend(record.address for record in answer)
                    ttls_ns.append(_ttl_ns(answer))
        if found:
            return min(ttls_ns), found[:ADDRESSES_LIMIT]
        # Servers that stay silent would be asked again by the system, in a thread that cannot be stopped.
        for problem in problems:
            if not problem.is_final:
                raise problem
        return SYSTEM_TTL_NS, await self._ask_system(name, problems[0])

    async def _ask_system(self, name: str, problem: NameUnknown) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                infos = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise problem from None
        return _sorted(list(dict.fromkeys(str(info[4][0]) for info in infos)))[:ADDRESSES_LIMIT]

    async def _try(self, name: str, kind: str) -> "Answer | NameUnknown":
        try:
            return await self._ask(name, kind)
        except NameUnknown as problem:
            return problem

    async def _ask(self, name: str, kind: str) -> "Answer":
        import dns.exception
        import dns.resolver

        try:
            resolver = self._resolver()
            # The library measures by the wall clock, which may be set back: hence a limit of our own.
            async with asyncio.timeout(self._timeout_s + 0.5):
                return await resolver.resolve(name, kind, lifetime=self._timeout_s, search=True)
        except (dns.exception.Timeout, TimeoutError):
            reason, is_final = f"no name server answered within {self._timeout_s:g} s", False
        except dns.resolver.NXDOMAIN:
            reason, is_final = "there is no such name", True
        except dns.resolver.NoAnswer:
            reason, is_final = f"it has no {kind} record", True
        except dns.resolver.NoNameservers:
            reason, is_final = "the name servers could not answer", True
        except dns.resolver.NoResolverConfiguration:
            reason, is_final = "this machine has no name servers configured", True
        except (dns.exception.DNSException, OSError) as error:
            reason, is_final = f"{type(error).__name__}: {error}", True
        raise NameUnknown(name, reason, is_final=is_final)

    def _resolver(self) -> "Resolver":
        """A new one for each question: it reads the system's configuration, which may have changed."""
        from dns.asyncresolver import Resolver
        from dns.nameserver import Do53Nameserver

        if self._nameservers is None:
            return Resolver()
        resolver = Resolver(configure=False)
        resolver.nameservers = [Do53Nameserver(host, port) for host, port in self._nameservers]
        return resolver


def _targets(answer: "Answer") -> list[tuple[str, int]]:
    """By preference; a larger weight is a larger share, and the rest makes the order total."""
    records = sorted((record.priority, -record.weight, str(record.target).lower(), record.port) for record in answer)
    # The target "." says: not here.
    found = [(target.removesuffix("."), port) for _, _, target, port in records if target != "." and port]
    return found[:ADDRESSES_LIMIT]


def _ttl_ns(answer: "Answer") -> int:
    ttl_s = answer.rrset.ttl if answer.rrset is not None else 0
    return min(LONGEST_TTL_NS, max(SHORTEST_TTL_NS, ttl_s * SECOND))


def _sorted(addresses: list[str]) -> list[str]:
    """IPv4 first, else as they came."""
    return sorted(addresses, key=lambda address: ":" in address)
