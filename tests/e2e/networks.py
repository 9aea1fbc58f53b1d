"""Networks for members of a test: plain loopback, a relay that can cut, and namespaces whose packets the kernel drops.

All cut the same way: by direction, datagrams or everything, for good or by chance. Nothing leaves the machine.
"""

import asyncio
import os
import random
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from itertools import count, cycle, islice
from typing import Any, NamedTuple, Protocol

import psutil

PORT = 8472
FIRST_PORT, LAST_PORT = 11_000, 20_000
"""Below the ports that the kernel gives to connections."""
LARGEST_BYTES = 65_536
RECORD_LIMIT = 10_000
CALL_TIMEOUT_S = 20

_numbers = count(1)


class Place(NamedTuple):
    """Where a member listens, where others reach it, and what stands before its command."""

    bind: str
    advertised: str
    prefix: tuple[str, ...] = ()


class Network(Protocol):
    def place(self, name: str) -> Place:
        """The same at every call."""

    def cut(self, source: str, target: str, *, datagrams_only: bool = False) -> None:
        """From now on nothing of `source` reaches `target`."""

    def lose(self, percent: int) -> None:
        """Every link loses so many packets."""

    def lost(self) -> int:
        """How many packets `lose` has cost."""

    def mend(self) -> None: ...

    def started(self, name: str, pid: int) -> None: ...

    def close(self) -> None: ...


def part(network: Network, one: Iterable[str], other: Iterable[str], *, datagrams_only: bool = False) -> None:
    """Between the two sides nothing passes, either way."""
    for here in one:
        for there in other:
            network.cut(here, there, datagrams_only=datagrams_only)
            network.cut(there, here, datagrams_only=datagrams_only)


@cache
def _own_ports() -> "cycle[int]":
    """Those that this process may give away. Each of those that run tests beside each other has others."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    ports = range(FIRST_PORT + int(worker.removeprefix("gw")), LAST_PORT, int(workers))
    return cycle(random.SystemRandom().sample(ports, len(ports)))


def free_port(host: str = "127.0.0.1") -> int:
    """One that is free for TCP and UDP, and not given away before: it is bound later, and again by the next life."""
    for port in islice(_own_ports(), 200):
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
            try:
                stream.bind((host, port))
                datagram.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free for both TCP and UDP")


class Loopback:
    """No cuts."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    def place(self, name: str) -> Place:
        if name not in self._places:
            address = f"127.0.0.1:{free_port()}"
            self._places[name] = Place(address, address)
        return self._places[name]

    def cut(self, source: str, target: str, *, datagrams_only: bool = False) -> None:
        raise AssertionError("nothing can be cut on the loopback itself: use cut_members or relayed_members")

    def lose(self, percent: int) -> None:
        raise AssertionError("nothing is lost on the loopback itself: use cut_members or relayed_members")

    def lost(self) -> int:
        return 0

    def mend(self) -> None:
        pass

    def started(self, name: str, pid: int) -> None:
        pass

    def close(self) -> None:
        pass


# The relay


class Datagram(NamedTuple):
    source: str
    target: str
    content: bytes


class _Door(asyncio.DatagramProtocol):
    """Takes the datagrams for one member."""

    def __init__(self, relay: "Relay", name: str) -> None:
        self.relay, self.name = relay, name
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        source = self.relay.speaker_at(address[1])
        if source:
            self.relay.pass_on(Datagram(source, self.name, data))

    def error_received(self, error: Exception) -> None:
        pass  # a member was killed


class Relay:
    """Every member is reached through a port of the relay, which knows who speaks and drops what is cut.

    A datagram is known by the port it comes from and goes on from its sender's port here, so that replies take the same
    way. A connection is known by the process that holds its other end. One that is cut in either direction is reset.
    """

    def __init__(self) -> None:
        self.recorded: list[Datagram] = []
        self._places: dict[str, Place] = {}
        self._speakers: dict[int, str] = {}
        self._doors: dict[str, _Door] = {}
        self._servers: list[asyncio.Server] = []
        self._pids: dict[str, int] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._datagram_cuts: set[tuple[str, str]] = set()
        self._percent = self._lost = 0
        self._dice = random.Random(7)
        self._pairs: dict[tuple[str, str], set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def _soon(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        self._call(run())

    # Use

    def place(self, name: str) -> Place:
        if name not in self._places:
            own = free_port()
            self._speakers[own] = name
            advertised = self._call(self._open(name))
            self._places[name] = Place(f"127.0.0.1:{own}", f"127.0.0.1:{advertised}")
        return self._places[name]

    def started(self, name: str, pid: int) -> None:
        self._pids[name] = pid

    def cut(self, source: str, target: str, *, datagrams_only: bool = False) -> None:
        def work() -> None:
            self._datagram_cuts.add((source, target))
            if not datagrams_only:
                self._cuts.add((source, target))
                for pair in ((source, target), (target, source)):
                    for writer in self._pairs.get(pair, set()):
                        writer.transport.abort()

        self._soon(work)

    def lose(self, percent: int) -> None:
        """Datagrams only: what a connection loses its kernel sends again."""
        self._percent = percent

    def lost(self) -> int:
        return self._lost

    def mend(self) -> None:
        def work() -> None:
            self._cuts.clear()
            self._datagram_cuts.clear()
            self._percent = 0

        self._soon(work)

    def send_again(self, datagram: Datagram) -> None:
        """Exactly as it came, from where it came."""
        self._soon(lambda: self._deliver(datagram))

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    # Datagrams

    def speaker_at(self, port: int) -> str:
        return self._speakers.get(port, "")

    def pass_on(self, datagram: Datagram) -> None:
        if (datagram.source, datagram.target) in self._datagram_cuts:
            return
        if self._percent and self._dice.randrange(100) < self._percent:
            self._lost += 1
            return
        if len(self.recorded) < RECORD_LIMIT:
            self.recorded.append(datagram)
        self._deliver(datagram)

    def _deliver(self, datagram: Datagram) -> None:
        host, _, port = self._places[datagram.target].bind.rpartition(":")
        self._doors[datagram.source].transport.sendto(datagram.content, (host, int(port)))

    # Connections

    async def _open(self, name: str) -> int:
        port = free_port()
        replay_guard = _Door(self, name)
        await self._loop.create_datagram_endpoint(lambda: replay_guard, local_addr=("127.0.0.1", port))
        self._doors[name] = replay_guard
        self._servers.append(
            await asyncio.start_server(lambda reader, writer: self._accepted(name, reader, writer), "127.0.0.1", port)
        )
        return port

    def _accepted(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:
            writer.transport.abort()
            return
        task = self._loop.create_task(self._join(target, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        links: set[asyncio.StreamWriter] = set()
        try:
            peer = writer.get_extra_info("peername")
            if peer is None:  # it has gone already
                return
            source = await asyncio.to_thread(self._owner_of, peer[1])
            if (source, target) in self._cuts or (target, source) in self._cuts:
                return
            host, _, own = self._places[target].bind.rpartition(":")
            with suppress(OSError):
                there_reader, there_writer = await asyncio.open_connection(host, int(own))
                ends.add(there_writer)
                links = self._pairs.setdefault((source, target), set())
                links |= ends
                await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
        finally:  # also when it is cancelled at any of these waits
            links -= ends
            for end in ends:
                end.transport.abort()

    def _owner_of(self, port: int) -> str:
        """The member whose process holds this end of a connection."""
        for name, pid in list(self._pids.items()):
            with suppress(psutil.Error):
                if any(link.laddr and link.laddr.port == port for link in psutil.Process(pid).net_connections("tcp")):
                    return name
        return ""

    async def _close(self) -> None:
        self._is_closed = True
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replay_guard in self._doors.values():
            replay_guard.transport.abort()
        for _ in range(5):  # a transport that was aborted closes its socket in a later turn of the loop
            await asyncio.sleep(0)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(LARGEST_BYTES):
            writer.write(data)
            await writer.drain()
        # A dialler that has closed reads nothing any more.
        writer.close()


# Namespaces


class Namespaces:
    """A namespace for each member, joined by a bridge in one more; the receiver's nft drops what is cut."""

    def __init__(self) -> None:
        self._stem = f"talka-{os.getpid()}-{next(_numbers)}"
        self._hub = f"{self._stem}-hub"
        self._names: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        _run("ip", "netns", "add", self._hub)
        try:
            _run("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", self._hub, "link", "set", "bridge", "up")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def why_not() -> str:
        """What is missing here, if anything."""
        if os.geteuid() != 0:
            return "only root may make network namespaces"
        missing = [program for program in ("ip", "nft") if shutil.which(program) is None]
        if missing:
            return f"{' and '.join(missing)} cannot be found"
        name = f"talka-{os.getpid()}-try"
        try:
            _run("ip", "netns", "add", name)
        except AssertionError as problem:
            return f"no network namespace can be made: {problem}"
        try:
            _run("ip", "-n", name, "link", "add", "bridge", "type", "bridge")
            _run("ip", "netns", "exec", name, "nft", TABLE + "add rule inet talka heard numgen random mod 100 < 1 drop")
        except AssertionError as problem:
            return f"the kernel does not drop packets for us: {problem}"
        finally:
            _run("ip", "netns", "del", name)
        return ""

    def place(self, name: str) -> Place:
        if name not in self._names:
            number = len(self._names) + 1
            own, address = f"{self._stem}-{number}", f"10.99.0.{number}"
            _run("ip", "netns", "add", own)
            self._names[name], self._addresses[name] = own, address
            port = f"port{number}"
            _run("ip", "-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", "wire", "netns", own)
            _run("ip", "-n", self._hub, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", own, "link", "set", "lo", "up")
            _run("ip", "-n", own, "addr", "add", f"{address}/24", "dev", "wire")
            _run("ip", "-n", own, "link", "set", "wire", "up")
            self._nft(name, TABLE)
        address = f"{self._addresses[name]}:{PORT}"
        return Place(address, address, ("ip", "netns", "exec", self._names[name]))

    def started(self, name: str, pid: int) -> None:
        pass

    def cut(self, source: str, target: str, *, datagrams_only: bool = False) -> None:
        kind = "meta l4proto udp " if datagrams_only else ""
        self._nft(target, f"add rule inet talka heard ip saddr {self._addresses[source]} {kind}drop")

    def lose(self, percent: int) -> None:
        for name in self._names:
            self._nft(name, f'add rule inet talka heard iifname != "lo" numgen random mod 100 < {percent} counter drop')

    def lost(self) -> int:
        rules = [_run("ip", "netns", "exec", own, "nft", "list", "ruleset") for own in self._names.values()]
        return sum(int(number) for number in re.findall(r"counter packets (\d+)", "".join(rules)))

    def mend(self) -> None:
        for name in self._names:
            self._nft(name, "flush chain inet talka heard")

    def _nft(self, name: str, rules: str) -> None:
        _run("ip", "netns", "exec", self._names[name], "nft", rules)

    def close(self) -> None:
        """Tables and wires go with their namespaces."""
        problems = []
        for own in [*self._names.values(), self._hub]:
            try:
                _run("ip", "netns", "del", own)
            except AssertionError as problem:
                problems.append(str(problem))
        assert not problems, problems


TABLE = "add table inet talka; add chain inet talka heard { type filter hook input priority 0; }; "


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout
