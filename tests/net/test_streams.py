"""Frames over TCP: whole, on their lane, bounded for strangers, and gone without a trace at the end."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from random import Random

import pytest
from msgspec.structs import replace

from talka.control.member.send_queue import Class, LaneLimits, SendQueue
from talka.net import streams as module
from talka.net.streams import STRANGER_FRAME_BYTES, StreamLimits, Streams
from talka.units import SECOND
from talka.wire.framing import FRAME_LIMIT_BYTES, framed
from talka.wire.security.roles import Proven
from talka.work.retry import RetryPolicy

LIMIT_S = 60.0


PATIENT = StreamLimits(dial_s=LIMIT_S)
"""On a busy machine a good connection may take long."""


class Node:
    """Streams, and what came of them. A frame that begins with `bad` has no good seal."""

    def __init__(self, limits: StreamLimits = PATIENT, **options) -> None:
        self.frames: list[tuple[str, bytes]] = []
        self.refused: list[tuple[str, str, str]] = []
        self.gone: list[tuple[str, bool]] = []
        self.on_arrival: Callable[[str, bytes], None] | None = None
        self.address = ""
        self._news = asyncio.Event()
        self.streams = Streams(
            on_frame=self._on_frame,
            on_refused=lambda *refusal: self._note(self.refused, refusal),
            on_gone=lambda *gone: self._note(self.gone, gone),
            rng=Random(1),
            limits=limits,
            **options,
        )

    async def listen(self, port: int = 0) -> "Node":
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", port))
        sock.setblocking(False)
        self.address = f"127.0.0.1:{sock.getsockname()[1]}"
        await self.streams.listen(sock)
        return self

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def contents(self) -> list[bytes]:
        return [frame for _, frame in self.frames]

    @property
    def counts(self) -> dict[str, int]:
        return self.streams.counts

    def _on_frame(self, source: str, frame: bytes, proven: Proven) -> bool:
        self._note(self.frames, (source, frame))
        if self.on_arrival is not None:
            self.on_arrival(source, frame)
        return not frame.startswith(b"bad")

    def _note(self, where: list, what) -> None:
        where.append(what)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Every arrival, refusal and loss wakes it."""
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()


@pytest.fixture
async def node():
    made: list[Node] = []

    async def make(*, listens: bool = True, **options) -> Node:
        made.append(Node(**options))
        return await made[-1].listen() if listens else made[-1]

    yield make
    before = asyncio.all_tasks()
    for each in made:
        await each.streams.close()
    # Nothing is left: no task but the test's own, and no connection.
    assert asyncio.all_tasks() <= before
    assert not any(each.streams._open for each in made)


class Stranger:
    """A plain connection that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def name(self) -> str:
        host, port = self.writer.get_extra_info("sockname")
        return f"{host}:{port}"

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(LIMIT_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@pytest.fixture
async def stranger():
    made: list[Stranger] = []

    async def connect(to: Node) -> Stranger:
        made.append(Stranger(*await asyncio.open_connection("127.0.0.1", to.port)))
        return made[-1]

    yield connect
    for each in made:
        each.writer.close()
        try:
            await each.writer.wait_closed()
        except ConnectionError:
            continue


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """Time that stands still until it is told otherwise."""

    class Clock:
        now = 1000 * SECOND

    monkeypatch.setattr(module, "boottime_ns", lambda: Clock.now)
    return Clock


# Frames.


async def test_frames_arrive_whole_and_in_order(node) -> None:
    here, there = await node(), await node()
    sent = [b"%d" % number * size for number, size in enumerate((1, 10, 100_000, 0, 900_000, 3))]
    for frame in sent:
        here.streams.send(there.address, frame, Class.JOBS)
    await there.until(lambda: len(there.frames) == len(sent))
    assert there.contents == sent
    assert there.streams.frames_in == here.streams.frames_out == len(sent)
    assert here.streams.bytes_out == sum(map(len, sent))


async def test_frames_are_cut_out_of_any_segments(node, stranger) -> None:
    here = await node()
    caller = await stranger(here)
    for byte in framed(b"first") + framed(b""):
        caller.say(bytes([byte]))
        await caller.writer.drain()
    caller.say(framed(b"second") + framed(b"third")[:2])
    await here.until(lambda: len(here.frames) == 3)
    caller.say(framed(b"third")[2:])
    await here.until(lambda: len(here.frames) == 4)
    assert here.contents == [b"first", b"", b"second", b"third"]


async def test_votes_have_a_connection_of_their_own(node) -> None:
    here, there = await node(), await node()
    here.streams.send(there.address, b"job", Class.JOBS)
    here.streams.send(there.address, b"statistic", Class.STATISTICS)
    here.streams.send(there.address, b"vote", Class.CONTROL)
    here.streams.send(there.address, b"lease", Class.CONTROL)
    await there.until(lambda: len(there.frames) == 4)
    sources = {frame: source for source, frame in there.frames}
    assert sources[b"vote"] == sources[b"lease"] != sources[b"job"] == sources[b"statistic"]
    assert (here.streams.connections, there.streams.connections) == (2, 2)


async def test_answer_goes_back_on_the_connection_of_the_question(node) -> None:
    here, there = await node(listens=False), await node()
    there.on_arrival = lambda source, frame: there.streams.send(source, b"answer to " + frame, Class.JOBS)
    here.streams.send(there.address, b"question", Class.JOBS)
    await here.until(lambda: bool(here.frames))
    assert here.frames == [(there.address, b"answer to question")]
    assert there.streams.connections == 1


async def test_answer_to_a_connection_that_is_gone_is_counted(node) -> None:
    here = await node()
    here.streams.send("#99", b"answer", Class.CONTROL)
    assert here.counts == {"undeliverable": 1}


async def test_end_of_a_connection_that_was_accepted_is_told_by_its_handle(node, stranger) -> None:
    here = await node()
    guest = await stranger(here)
    guest.say(framed(b"hello"))
    await here.until(lambda: bool(here.frames))

    guest.writer.close()

    await here.until(lambda: here.gone == [(here.frames[0][0], True)])
    assert here.frames[0][0].startswith("#")


@pytest.mark.parametrize("address", ["localhost:80", "", "nonsense", "127.0.0.1", "127.0.0.1:0"])
async def test_address_that_is_no_ip_address_is_not_dialled(node, address: str) -> None:
    here = await node()
    here.streams.send(address, b"frame", Class.JOBS)
    assert here.counts == {"undeliverable": 1} and here.streams.connections == 0


async def test_frame_that_no_peer_would_take_is_not_sent(node) -> None:
    here, there = await node(), await node()
    here.streams.send(there.address, bytes(FRAME_LIMIT_BYTES + 1), Class.JOBS)
    here.streams.send(there.address, b"next", Class.JOBS)
    await there.until(lambda: bool(there.frames))
    assert there.contents == [b"next"] and here.counts == {"undeliverable": 1}


# Strangers.


async def test_first_frame_of_a_stranger_must_be_short(node, stranger) -> None:
    here = await node()
    caller = await stranger(here)
    caller.say((STRANGER_FRAME_BYTES + 1).to_bytes(4, "big"))
    assert await caller.is_closed()
    assert here.counts == {"too-long": 1} and here.frames == []


async def test_frame_over_the_limit_closes_the_connection_of_a_friend_too(node, stranger) -> None:
    here = await node()
    caller = await stranger(here)
    caller.say(framed(b"good"))
    await here.until(lambda: bool(here.frames))
    caller.say((FRAME_LIMIT_BYTES + 1).to_bytes(4, "big"))
    assert await caller.is_closed()
    assert here.counts == {"too-long": 1}


@pytest.mark.parametrize("is_at_once", [True, False], ids=["in one segment", "later"])
async def test_frames_after_the_first_good_one_may_be_long(node, stranger, is_at_once: bool) -> None:
    here = await node()
    caller = await stranger(here)
    short, long = bytes(STRANGER_FRAME_BYTES), bytes(FRAME_LIMIT_BYTES)
    if is_at_once:
        caller.say(framed(short) + framed(long))
    else:
        caller.say(framed(short))
        await here.until(lambda: bool(here.frames))
        caller.say(framed(long))
    await here.until(lambda: len(here.frames) == 2)
    assert here.contents == [short, long] and here.counts == {}


async def test_stranger_without_a_good_seal_is_closed_and_told_of_once(node, stranger) -> None:
    here = await node()
    caller = await stranger(here)
    caller.say(framed(b"bad") + framed(b"good"))
    assert await caller.is_closed()
    assert here.contents == [b"bad"]
    assert here.counts == {"seal": 1}
    [(address, reason, text)] = here.refused
    assert (address, reason) == (caller.name, "seal") and "not sealed with a key" in text


async def test_friend_survives_a_frame_without_a_good_seal(node, stranger) -> None:
    here = await node()
    caller = await stranger(here)
    caller.say(framed(b"good") + framed(b"bad") + framed(b"good again"))
    await here.until(lambda: len(here.frames) == 3)
    assert here.refused == []


async def test_stranger_that_stays_silent_is_closed(node, stranger, clock) -> None:
    here = await node()
    silent, friend = await stranger(here), await stranger(here)
    silent.say(b"\0\0")  # half a header
    friend.say(framed(b"good"))
    await here.until(lambda: bool(here.frames))
    clock.now += module.STRANGER_NS
    here.streams._sweep()
    assert here.streams.connections == 2  # it may be silent for so long
    clock.now += 1
    here.streams._sweep()
    assert await silent.is_closed()
    assert here.counts == {"silent": 1} and here.streams.connections == 1


async def test_strangers_are_limited_and_friends_do_not_count(node, stranger) -> None:
    here = await node(limits=replace(PATIENT, strangers=2))
    friend = await stranger(here)
    friend.say(framed(b"good"))
    await here.until(lambda: bool(here.frames))
    strangers = [await stranger(here) for _ in range(3)]
    assert await strangers[0].is_closed(), "the one that has been silent longest gives way"
    assert here.counts == {"crowded": 1}
    strangers[1].say(framed(b"good"))
    await here.until(lambda: len(here.frames) == 2)
    again = await stranger(here)
    again.say(framed(b"good"))
    await here.until(lambda: len(here.frames) == 3)


async def test_connections_are_limited_in_both_directions(node, stranger) -> None:
    here, there, other = await node(limits=replace(PATIENT, links=1)), await node(), await node()
    first = await stranger(here)
    first.say(framed(b"good"))
    await here.until(lambda: bool(here.frames))
    assert await (await stranger(here)).is_closed()
    assert here.counts == {"crowded": 1}
    here.streams.send(there.address, b"one", Class.JOBS)
    here.streams.send(other.address, b"one too many", Class.JOBS)
    await there.until(lambda: bool(there.frames))
    assert here.counts == {"crowded": 1, "undeliverable": 1} and other.frames == []


# Peers that are not there.


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Refuses while no node listens there. It stays bound: only whoever shares it, as nodes here do, can take it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


async def test_frames_for_nobody_are_given_up_and_the_breaker_opens(node, closed_port: int) -> None:
    hasty = RetryPolicy(attempts=4, base_ns=1, cap_ns=1)
    here = await node(limits=replace(PATIENT, retries=hasty, stream_probe_ns=3600 * SECOND))
    nobody = f"127.0.0.1:{closed_port}"
    for number in (1, 2):
        here.streams.send(nobody, b"frame", Class.JOBS)
        await here.until(lambda number=number: len(here.gone) == number)
    assert here.gone == [(nobody, False)] * 2
    assert here.counts["unreachable"] == module.BREAKER_FAILURES
    assert here.counts["undeliverable"] == 2

    here.streams.send(nobody, b"frame", Class.JOBS)  # it does not even try
    assert here.counts["unreachable"] == module.BREAKER_FAILURES and here.counts["undeliverable"] == 3
    assert here.streams._dialled[(nobody, False)].dialling is None

    there = Node()
    await there.listen(closed_port)
    here.streams.renew(nobody)
    here.streams.send(nobody, b"a new life", Class.JOBS)
    await there.until(lambda: there.contents == [b"a new life"])
    await there.streams.close()


async def test_peer_that_restarts_is_reached_again(node, closed_port: int) -> None:
    here, there = await node(), await (await node(listens=False)).listen(closed_port)
    here.streams.send(there.address, b"before", Class.CONTROL)
    await there.until(lambda: there.contents == [b"before"])
    await there.streams.close()
    await here.until(lambda: here.gone == [(there.address, True)])
    again = Node()
    await again.listen(there.port)
    here.streams.send(there.address, b"after", Class.CONTROL)
    await again.until(lambda: again.contents == [b"after"])
    await again.streams.close()


async def test_frames_that_wait_while_a_connection_breaks_go_on_the_next_one(node, stranger) -> None:
    here, there = await node(), await node()
    here.streams.send(there.address, b"before", Class.JOBS)
    await there.until(lambda: len(there.frames) == 1)
    here.streams._dialled[(there.address, False)].link.close()
    here.streams.send(there.address, b"after", Class.JOBS)  # it is closing, and nobody has said so yet
    await there.until(lambda: len(there.frames) == 2)
    assert there.contents == [b"before", b"after"]


# Peers that do not read.


class Deaf:
    """Listens, takes connections and never reads."""

    def __init__(self) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen()
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"


@pytest.fixture
def deaf():
    peer = Deaf()
    yield peer
    peer.sock.close()


@pytest.fixture
def small_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SendQueue", lambda: SendQueue(LaneLimits(frames=4)))


async def connected(node: Node, address: str, cls: Class) -> None:
    """Until the kernel takes no more of what goes there."""
    async with asyncio.timeout(LIMIT_S):
        node.streams.send(address, bytes(500_000), cls)
        dialled = node.streams._dialled[(address, cls is Class.CONTROL)]
        await dialled.dialling
        while dialled.link._is_writable:
            node.streams.send(address, bytes(500_000), cls)
            await asyncio.sleep(0)


async def test_votes_that_find_no_room_break_the_connection(node, deaf: Deaf, small_queues) -> None:
    here = await node()
    await connected(here, deaf.address, Class.CONTROL)
    for _ in range(4):
        here.streams.send(deaf.address, b"vote", Class.CONTROL)
    assert "stuck" not in here.counts
    here.streams.send(deaf.address, b"vote", Class.CONTROL)
    here.streams.send(deaf.address, b"vote", Class.CONTROL)
    assert here.counts["stuck"] == 1
    await here.until(lambda: here.gone == [(deaf.address, True)])
    assert here.counts["undeliverable"] == 6  # none is lost silently


async def test_peer_that_was_stuck_is_talked_to_again(node, small_queues) -> None:
    here, there = await node(), await node()
    here.streams.send(there.address, b"first", Class.CONTROL)
    await there.until(lambda: len(there.frames) == 1)
    dialled = here.streams._dialled[(there.address, True)]
    dialled.link.pause_writing()  # as if the peer did not read
    for _ in range(5):
        here.streams.send(there.address, b"too many", Class.CONTROL)
    await here.until(lambda: bool(here.gone))
    for frame in (b"second", b"third"):
        here.streams.send(there.address, frame, Class.CONTROL)
    await there.until(lambda: len(there.frames) == 3)
    assert there.contents == [b"first", b"second", b"third"]
    assert here.counts["stuck"] == 1 and dialled.link is not None


async def test_answers_that_find_no_room_break_the_connection_too(node, stranger, small_queues) -> None:
    here = await node()
    caller = await stranger(here)
    caller.say(framed(b"good"))
    await here.until(lambda: bool(here.frames))
    handle = here.frames[0][0]
    here.streams._accepted[handle].pause_writing()
    for _ in range(5):
        here.streams.send(handle, b"vote", Class.CONTROL)
    assert await caller.is_closed()
    assert here.counts["stuck"] == 1 and here.streams.connections == 0


async def test_statistics_for_a_peer_that_does_not_read_are_shed(node, deaf: Deaf, small_queues) -> None:
    here = await node()
    await connected(here, deaf.address, Class.STATISTICS)
    dialled = here.streams._dialled[(deaf.address, False)]
    for number in range(100):
        here.streams.send(deaf.address, b"%d" % number, Class.STATISTICS)
    assert dialled.queue.waiting(Class.STATISTICS) == 4
    assert "stuck" not in here.counts and not dialled.link._transport.is_closing()


async def test_who_waits_for_room_is_told_once_half_of_the_lane_is_free(node, deaf: Deaf, small_queues) -> None:
    here = await node()
    await connected(here, deaf.address, Class.RESULTS)
    told: list[str] = []
    here.streams.send(deaf.address, b"result", Class.RESULTS)
    here.streams.send(deaf.address, b"result", Class.RESULTS)
    here.streams.when_room(deaf.address, lambda: here._note(told, "half"))
    await here.until(lambda: told == ["half"])
    here.streams.send(deaf.address, b"result", Class.RESULTS)
    here.streams.when_room(deaf.address, lambda: here._note(told, "room"))
    await asyncio.sleep(0)
    assert told == ["half"]
    link = here.streams._dialled[(deaf.address, False)].link
    link.resume_writing()
    await asyncio.sleep(0)
    assert told == ["half", "room"], "not only once the connection is gone"


async def test_who_waits_for_room_is_told_when_the_connection_is_gone_or_there_is_none(
    node, stranger, small_queues
) -> None:
    here = await node()
    told: list[str] = []
    here.streams.when_room("127.0.0.1:9", lambda: here._note(told, "nobody"))
    here.streams.when_room("#99", lambda: here._note(told, "no answer"))
    caller = await stranger(here)
    caller.say(framed(b"good"))
    await here.until(lambda: bool(here.frames))
    handle = here.frames[0][0]
    here.streams._accepted[handle].pause_writing()
    for _ in range(3):
        here.streams.send(handle, b"result", Class.RESULTS)
    here.streams.when_room(handle, lambda: here._note(told, "gone"))
    await asyncio.sleep(0)
    assert told == ["nobody", "no answer"]
    here.streams._accepted[handle].abort()
    await here.until(lambda: told == ["nobody", "no answer", "gone"])


# Connections that nobody uses, and the end.


async def test_idle_connection_is_closed_by_its_dialler_and_dialled_again(node, clock) -> None:
    here, there = await node(), await node()
    here.streams.send(there.address, b"one", Class.JOBS)
    await there.until(lambda: len(there.frames) == 1)
    clock.now += module.IDLE_NS + 1
    there.streams._sweep()
    assert there.streams.connections == 1  # the dialler closes first
    here.streams._sweep()
    await here.until(lambda: bool(here.gone))
    here.streams._sweep()
    assert here.streams._dialled == {}
    here.streams.send(there.address, b"two", Class.JOBS)
    await there.until(lambda: len(there.frames) == 2)


async def test_connection_whose_dialler_is_gone_is_closed_in_the_end(node, stranger, clock) -> None:
    here = await node()
    caller = await stranger(here)
    caller.say(framed(b"good"))
    await here.until(lambda: bool(here.frames))
    clock.now += 2 * module.IDLE_NS + 1
    here.streams._sweep()
    assert await caller.is_closed()


async def test_sweeping_ends_when_nothing_is_left(node, clock) -> None:
    here, there = await node(), await node()
    here.streams.send(there.address, b"one", Class.JOBS)
    await there.until(lambda: bool(there.frames))
    assert here.streams._sweeping is not None
    await there.streams.close()
    await here.until(lambda: bool(here.gone))
    here.streams._sweeping.cancel()
    here.streams._sweep()
    assert here.streams._sweeping is None


async def test_end_sends_what_was_written_and_leaves_nothing(node) -> None:
    here, there = await node(), await node()
    here.streams.send(there.address, b"hello", Class.JOBS)
    await there.until(lambda: bool(there.frames))
    here.streams.send(there.address, b"good-bye", Class.JOBS)
    await here.streams.close()
    await there.until(lambda: there.contents == [b"hello", b"good-bye"])
    here.streams.send(there.address, b"too late", Class.JOBS)
    assert here.counts == {"undeliverable": 1}


async def test_end_does_not_wait_for_a_peer_that_does_not_read(node, deaf: Deaf) -> None:
    here = await node(limits=replace(PATIENT, close_s=0.01))
    await connected(here, deaf.address, Class.CONTROL)
    async with asyncio.timeout(LIMIT_S):
        await here.streams.close()
    assert here.streams.connections == 0


async def test_end_while_a_connection_is_being_dialled(node, closed_port: int) -> None:
    here = await node()
    here.streams.send(f"127.0.0.1:{closed_port}", b"frame", Class.JOBS)
    await here.until(lambda: True)
    await here.streams.close()


async def test_nobody_is_let_in_after_the_end(node, stranger) -> None:
    here = await node()
    here.streams._is_closed = True
    assert await (await stranger(here)).is_closed()
    assert here.streams.connections == 0
