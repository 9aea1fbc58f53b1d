"""Datagrams: all that wait are heard before any timer, with their age, and no source can flood."""

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from talka.net import datagrams as module
from talka.net.datagrams import DRAIN_LIMIT, Datagrams
from talka.nodes.member import MemberNode, MemberOptions
from talka.units import SECOND

LIMIT_S = 60.0


def bound(host: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, 0))
    return sock


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with bound() as sock:
        sock.settimeout(LIMIT_S)
        yield sock


class Endpoint:
    """What is tested, and what it heard."""

    def __init__(self, sock: socket.socket, *, stale_ns: int = 3600 * SECOND, **options: int) -> None:
        self.heard: list[tuple[str, bytes, int]] = []
        self.stale: list[int] = []
        self.sock = sock
        self.address = sock.getsockname()
        self.datagrams = Datagrams(
            sock,
            lambda *datagram: self.heard.append(datagram),
            on_stale=self.stale.append,
            stale_ns=stale_ns,
            **options,
        )

    @property
    def contents(self) -> list[bytes]:
        return [content for _, content, _ in self.heard]


@pytest.fixture
def endpoint() -> Iterator[Callable[..., Endpoint]]:
    made: list[Endpoint] = []

    def make(sock: socket.socket | None = None, **options: int) -> Endpoint:
        made.append(Endpoint(sock or bound(), **options))
        return made[-1]

    yield make
    for each in made:
        each.sock.close()


def name_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"{host}:{port}"


def test_one_call_reads_all_that_waits_up_to_its_limit(endpoint, peer: socket.socket) -> None:
    here = endpoint()
    sent = [b"%d" % number for number in range(DRAIN_LIMIT + 3)]
    for content in sent:
        peer.sendto(content, here.address)

    assert here.datagrams.drain() == DRAIN_LIMIT
    assert here.contents == sent[:DRAIN_LIMIT]
    assert here.datagrams.drain() == 3
    assert here.contents == sent
    assert here.datagrams.drain() == 0
    assert here.datagrams.received == len(sent)
    assert here.datagrams.received_bytes == sum(map(len, sent))


def test_datagram_comes_with_its_source(endpoint, peer: socket.socket) -> None:
    here = endpoint()
    peer.sendto(b"x", here.address)
    here.datagrams.drain()
    assert here.heard[0][0] == name_of(peer)


async def test_reader_hears_what_arrives_until_it_is_stopped(endpoint, peer: socket.socket) -> None:
    here = endpoint()
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    here.datagrams._on_datagram = lambda *datagram: arrived.set_result(datagram)
    here.datagrams.start(loop)
    peer.sendto(b"x", here.address)
    async with asyncio.timeout(LIMIT_S):
        assert (await arrived)[1] == b"x"
    here.datagrams.stop(loop)
    assert here.sock.fileno() == -1


def test_age_is_the_time_since_the_kernel_took_it(
    endpoint, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = endpoint()
    peer.sendto(b"x", here.address)
    monkeypatch.setattr(module, "realtime_ns", lambda: time.time_ns() + 3 * SECOND)
    here.datagrams.drain()
    assert 3 * SECOND <= here.heard[0][2] < 3 * SECOND + LIMIT_S * SECOND


def test_age_is_never_negative_though_the_clock_was_set_back(
    endpoint, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = endpoint()
    peer.sendto(b"x", here.address)
    monkeypatch.setattr(module, "realtime_ns", lambda: time.time_ns() - 3 * SECOND)
    here.datagrams.drain()
    assert here.heard[0][2] == 0


def test_age_is_unknown_where_the_kernel_does_not_stamp(endpoint, peer: socket.socket) -> None:
    here = endpoint(stamp_option=9999)
    peer.sendto(b"x", here.address)
    assert here.datagrams.drain() == 1
    assert here.heard[0][2] == -1


def test_what_waited_for_too_long_is_thrown_away_unread_and_its_age_told(
    endpoint, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = endpoint(stale_ns=600 * SECOND)
    count = DRAIN_LIMIT + 5
    for _ in range(count):
        peer.sendto(b"old", here.address)
    monkeypatch.setattr(module, "realtime_ns", lambda: time.time_ns() + 3600 * SECOND)
    assert here.datagrams.drain() == count  # they are cheap and do not count against the limit
    assert here.heard == [] and here.datagrams.stale == count
    assert len(here.stale) == count and min(here.stale) >= 3600 * SECOND

    monkeypatch.setattr(module, "realtime_ns", time.time_ns)
    peer.sendto(b"new", here.address)
    assert here.datagrams.drain() == 1
    assert here.contents == [b"new"] and here.datagrams.stale == count


def test_throwing_away_is_bounded_too(endpoint, peer: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    here = endpoint(stale_ns=600 * SECOND, stale_limit=3)
    for _ in range(5):
        peer.sendto(b"old", here.address)
    monkeypatch.setattr(module, "realtime_ns", lambda: time.time_ns() + 3600 * SECOND)
    assert [here.datagrams.drain(), here.datagrams.drain()] == [3, 2]


def test_source_over_its_rate_is_dropped_and_counted(
    endpoint, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "boottime_ns", lambda: 50 * SECOND)
    here = endpoint(rate_per_s=2)
    for number in range(10):
        peer.sendto(b"%d" % number, here.address)
    assert here.datagrams.drain() == 10
    assert here.contents == [b"0", b"1", b"2", b"3"]
    assert here.datagrams.refused == 6

    with bound("127.0.0.2") as other:  # another source has its own
        other.sendto(b"other", here.address)
        here.datagrams.drain()
    assert here.contents[-1] == b"other"

    monkeypatch.setattr(module, "boottime_ns", lambda: 51 * SECOND)
    peer.sendto(b"later", here.address)
    here.datagrams.drain()
    assert here.contents[-1] == b"later"


def test_what_is_longer_than_any_datagram_of_ours_arrives_cut(endpoint, peer: socket.socket) -> None:
    here = endpoint()
    peer.sendto(bytes(60_000), here.address)
    peer.sendto(b"next", here.address)
    assert here.datagrams.drain() == 2
    assert [len(content) for content in here.contents] == [module.LARGEST_BYTES, 4]


def test_closed_port_of_a_peer_costs_nothing(endpoint, peer: socket.socket) -> None:
    here = endpoint()
    with bound() as gone:
        closed = name_of(gone)
    for _ in range(3):
        here.datagrams.send(closed, b"lost")
        here.datagrams.send(name_of(peer), b"arrives")
        assert peer.recv(100) == b"arrives"
    peer.sendto(b"x", here.address)
    here.datagrams.drain()
    assert here.contents == [b"x"]


class Grumbling(socket.socket):
    """Tells the next two calls that a peer's port was closed, as some kernels do."""

    complaints = 2

    def _grumble(self) -> None:
        if self.complaints:
            self.complaints -= 1
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")

    def recvmsg(self, *arguments):
        self._grumble()
        return super().recvmsg(*arguments)

    def sendto(self, *arguments):
        self._grumble()
        return super().sendto(*arguments)


def grumbling(complaints: int) -> Grumbling:
    sock = Grumbling(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.complaints = complaints
    return sock


def test_news_of_a_closed_port_does_not_lose_what_arrived(endpoint, peer: socket.socket) -> None:
    here = endpoint(grumbling(2))
    peer.sendto(b"x", here.address)
    here.datagrams.drain()
    assert here.contents == [b"x"]


def test_news_of_a_closed_port_does_not_lose_what_is_sent(endpoint, peer: socket.socket) -> None:
    here = endpoint(grumbling(1))
    here.datagrams.send(name_of(peer), b"x")
    assert peer.recv(100) == b"x"
    assert (here.datagrams.sent, here.datagrams.sent_bytes, here.datagrams.unsent) == (1, 1, 0)

    here.sock.complaints = 2
    here.datagrams.send(name_of(peer), b"y")
    assert (here.datagrams.sent, here.datagrams.unsent) == (1, 1)


class Full(socket.socket):
    def sendto(self, *arguments):
        raise BlockingIOError


def test_what_the_kernel_does_not_take_is_lost_and_counted(endpoint, peer: socket.socket) -> None:
    sock = Full(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    here = endpoint(sock)
    here.datagrams.send(name_of(peer), b"x")
    assert (here.datagrams.sent, here.datagrams.unsent) == (0, 1)


def test_datagram_that_is_too_long_is_counted_and_raises_nothing(endpoint, peer: socket.socket) -> None:
    here = endpoint()
    here.datagrams.send(name_of(peer), bytes(70_000))
    assert (here.datagrams.sent, here.datagrams.unsent) == (0, 1)


@pytest.mark.parametrize("host", ["localhost", "", "127.1", "#7", "no such name"])
def test_address_that_is_a_name_is_never_looked_up(endpoint, peer: socket.socket, host: str) -> None:
    here = endpoint()
    port = peer.getsockname()[1]
    here.datagrams.send(f"{host}:{port}", b"x")
    assert (here.datagrams.sent, here.datagrams.unsent) == (0, 1)
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recv(100)


def test_names_of_sources_and_targets_are_bounded(endpoint, peer: socket.socket) -> None:
    here = endpoint(names_limit=2)
    for port in range(20_001, 20_010):
        here.datagrams._name_of(("127.0.0.1", port))
        here.datagrams._target_of(f"127.0.0.1:{port}")
    assert len(here.datagrams._names) <= 2 and len(here.datagrams._targets) <= 2
    here.datagrams.send(name_of(peer), b"x")
    assert peer.recv(100) == b"x"


def test_socket_of_ipv6_talks_with_hosts_of_ipv4(endpoint, peer: socket.socket) -> None:
    try:
        sock = bound("::")
    except OSError:
        pytest.skip("there is no IPv6 here")
    here = endpoint(sock)
    peer.sendto(b"x", ("127.0.0.1", here.address[1]))
    here.datagrams.drain()
    assert here.heard[0][0] == name_of(peer)
    here.datagrams.send(name_of(peer), b"y")
    assert peer.recv(100) == b"y"


# Drain first.


@pytest.fixture
async def node(tmp_path: Path):
    """A member that runs, and whose own timer has been taken away."""
    options = MemberOptions(
        name="a", bind=("127.0.0.1", 0), secrets=("vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A",), data_dir=tmp_path / "a"
    )
    ready = asyncio.Event()
    node = MemberNode(options, lambda event: ready.set())
    running = asyncio.get_running_loop().create_task(node.run())
    async with asyncio.timeout(LIMIT_S):
        await ready.wait()
        await asyncio.sleep(0)  # what it does first comes in the same turn
        assert node.runtime.timer.is_set
        node.runtime.timer.close()
        node.runtime.datagrams._stale_ns = 3600 * SECOND  # on a busy machine they may wait for long
        yield node
        node.stop()
        await running


@pytest.mark.parametrize("is_in_queue", [False, True], ids=["due", "in the queue already"])
async def test_answers_that_wait_in_the_socket_are_heard_before_a_timer_that_is_due(
    node: MemberNode, peer: socket.socket, is_in_queue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    order: list[str] = []
    ended = loop.create_future()

    def tick(now: int) -> list[object]:
        order.append("timer")
        if not ended.done():
            ended.set_result(None)
        return []

    node.member.tick = tick  # type: ignore[method-assign]
    node.runtime.datagrams._on_datagram = lambda *_: order.append("answer")

    # The process did not run for a while: answers wait, and the timer is due.
    host, port = node.runtime.address.rsplit(":", 1)
    for _ in range(40):
        peer.sendto(b"x", (host, int(port)))
    monkeypatch.setattr(type(node.member), "next_tick_at", 0)
    if is_in_queue:
        loop.call_soon(node.runtime._on_timer)
    else:
        loop.call_at(loop.time() - 1, node.runtime._on_timer)

    async with asyncio.timeout(LIMIT_S):
        await ended
    assert order == ["answer"] * 40 + ["timer"]
