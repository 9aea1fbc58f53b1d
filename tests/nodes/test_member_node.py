"""Members on loopback: they meet, elect, leave and return; what keeps them apart is told in a sentence."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from talka.errors import Invalid
from talka.net.asker import NodeAsker, NodeSilent
from talka.net.discovery import Candidates
from talka.net.listening import CannotListen, listening_sockets
from talka.net.names import NameLookup
from talka.nodes.member import REMEMBER_S, MemberNode, MemberOptions
from talka.store.files.folder import FolderInUse, StoreFailed
from talka.store.files.peers import PeerFile, RememberedPeer
from talka.store.files.voter_file import VoterFile
from talka.units import NEVER
from talka.wire.asking import AskLeader, AskMembers, AskMetrics

LIMIT_S = 60.0
SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
OTHER_SECRET = "pL2k9Vb7Xs4Qw1Zr8Mn5Td3Jh6Gy0Fc"
Event = dict[str, Any]


class Running:
    """One member, and what it told."""

    def __init__(self, options: MemberOptions, news: asyncio.Event, **limits: float) -> None:
        self.events: list[Event] = []
        self._news = news  # of all members of a test
        self.node = MemberNode(options, self._on_event, **limits)
        self.task = asyncio.get_running_loop().create_task(self.node.run())

    @property
    def address(self) -> str:
        return self.node.runtime.address

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def leader(self) -> str:
        """Empty while it knows none."""
        told = self.told("leader")
        return told[-1]["name"] if told else ""

    def told(self, word: str, **fields: Any) -> list[Event]:
        return [
            event
            for event in self.events
            if event["event"] == word and all(event.get(name) == value for name, value in fields.items())
        ]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def sees(self, word: str, **fields: Any) -> Event:
        await self.until(lambda: self.told(word, **fields))
        return self.told(word, **fields)[0]

    async def stop(self) -> None:
        self.node.stop()
        async with asyncio.timeout(LIMIT_S):
            await self.task


@pytest.fixture
async def member(tmp_path: Path):
    """Starts a member; by default it is of the fast preset and knows nobody."""
    made: list[Running] = []
    news = asyncio.Event()

    def start(name: str, *seeds: "Running | str", remember_s: float = REMEMBER_S, **options: Any) -> Running:
        asked = {
            "bind": ("127.0.0.1", 0),
            "secrets": (SECRET,),
            "data_dir": tmp_path / name,
            "preset": "fast",
            "seeds": tuple(seed if isinstance(seed, str) else seed.address for seed in seeds),
        }
        made.append(Running(MemberOptions(name=name, **(asked | options)), news, remember_s=remember_s))
        return made[-1]

    yield start
    for each in made:
        if not each.task.done():
            await each.stop()


# Meeting.


async def test_members_see_each_other_and_one_that_stops_has_left(member) -> None:
    a = member("a")
    b = member("b", a)
    c = member("c", a)
    ready = await a.sees("ready")
    assert (ready["name"], ready["address"], ready["boot"]) == ("a", a.address, str(a.node.runtime.boot))
    for each, others in ((a, "bc"), (b, "ac"), (c, "ab")):
        for name in others:
            joined = await each.sees("joined", name=name)
            assert joined["address"] == {"a": a, "b": b, "c": c}[name].address
    await c.stop()
    assert c.events[-1]["event"] == "stopped"
    for each in (a, b):
        await each.sees("left", name="c")
        assert not each.told("suspected") and not each.told("lost")


async def test_three_voters_elect_one_leader_who_hands_over_when_it_leaves(member) -> None:
    a = member("a", voters=("a", "b", "c"))
    b = member("b", a, voters=("a", "b", "c"))
    c = member("c", a, voters=("a", "b", "c"))
    nodes = {"a": a, "b": b, "c": c}
    await a.until(lambda: a.leader and a.leader == b.leader == c.leader)
    elected = await nodes[a.leader].sees("elected")
    assert elected["token"][1] == elected["term"] >= 1
    facts = {"leader": ""}
    async with (
        asyncio.timeout(LIMIT_S),
        NodeAsker(a.address, a.address, secrets=(SECRET,), cluster="default", environment="default") as asker,
    ):
        while not facts["leader"] or facts["leader"] != a.leader:  # another one may be elected at any moment
            facts = json.loads(await asker.ask(AskLeader()))
    assert facts["voters"] == ["a", "b", "c"]
    await a.until(lambda: a.leader and a.leader == b.leader == c.leader)
    first = a.leader

    await nodes[first].stop()
    assert nodes.pop(first).told("stepped-down")
    second, third = nodes.values()
    await second.until(lambda: second.leader not in ("", first) and second.leader == third.leader)


async def test_two_of_one_name_get_a_sentence_each(member, tmp_path: Path) -> None:
    a = member("a")
    await a.sees("ready")
    twin = member("a", a, data_dir=tmp_path / "twin")

    told = await a.sees("alarm", kind="name")
    assert told["text"].startswith("another node calls itself 'a' as this one does, at 127.0.0.1:")
    await twin.until(lambda: [event for event in twin.events if "another node is called 'a' here" in str(event)])


async def test_remembered_peers_let_a_member_without_seeds_return(member) -> None:
    a = member("a")
    b = member("b", a)
    await b.sees("joined", name="a")
    await a.sees("joined", name="b")
    await b.stop()
    await a.sees("left", name="b")
    again = member("b")
    await again.sees("joined", name="a")
    await a.until(lambda: len(a.told("joined", name="b")) == 2)


async def test_member_that_left_is_not_remembered_as_one_to_return_to(member, tmp_path: Path) -> None:
    a = member("a")
    b = member("b", a)
    await a.sees("joined", name="b")
    await b.sees("joined", name="a")
    await b.stop()
    await a.sees("left", name="b")
    await a.stop()
    assert PeerFile(tmp_path / "a").load() == []


async def test_member_that_is_dead_is_lost_with_accuser_and_reason(member) -> None:
    a = member("a")
    b = member("b", a)
    await a.sees("joined", name="b")
    b.node._leave = lambda: asyncio.sleep(0)  # it dies without a word
    await b.stop()
    lost = await a.sees("lost", name="b")
    assert lost["accuser"] == "a" and lost["own"] is True and lost["reason"]
    assert not a.told("left")


async def test_members_with_certificates_meet(member, tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from talka.net.certificates import issue, make_authority

    certs = tmp_path / "certs"
    make_authority(certs, "default", "default", now=datetime.now(UTC))
    for name in ("a", "b"):
        issue(certs, name=name, role="manager", now=datetime.now(UTC))
    issue(certs, name="client", role="client", now=datetime.now(UTC))
    a = member("a", certs=certs)
    b = member("b", a, certs=certs)
    await a.sees("joined", name="b")
    await b.sees("joined", name="a")
    where = {"secrets": (SECRET,), "cluster": "default", "environment": "default"}
    async with NodeAsker(a.address, a.address, certs=certs, name="client", **where) as asker:
        page = json.loads(await asker.ask(AskMembers()))
    assert [each["name"] for each in page["members"]] == ["a", "b"]
    with pytest.raises(NodeSilent, match="--certs"):
        async with NodeAsker(a.address, a.address, **where):
            pass


# Being refused.


async def metrics(of: Running, secret: str = SECRET, **where: str) -> str:
    where = {"cluster": "default", "environment": "default"} | where
    async with NodeAsker(of.address, of.address, secrets=(secret,), **where) as asker:
        return (await asker.ask(AskMetrics())).decode()


async def test_wrong_secret_is_told_on_both_sides_and_counted(member) -> None:
    a = member("a")
    b = member("b", a, secrets=(OTHER_SECRET,))
    here = await b.sees("refused", reason="seed")
    assert a.address in here["text"] and "does not know this secret" in here["text"]
    assert b.node.runtime.admission.ring.primary_id in here["text"]
    there = await a.sees("refused", reason="seal")
    assert there["address"].startswith("127.0.0.1:") and "key" in there["text"]
    text = await metrics(a)
    assert 'talka_frames_refused_total{reason="key"}' in text
    assert 'talka_stream_problems_total{reason="seal"}' in text
    assert not a.told("joined") and not b.told("joined")


@pytest.mark.parametrize(
    ("options", "reason", "sentence"),
    [
        ({"cluster": "bakery"}, "cluster", "'a' is of cluster 'default', not of 'bakery'"),
        ({"environment": "production"}, "environment", "'a' is of environment 'default', not of 'production'"),
    ],
)
async def test_wrong_group_is_told_by_the_seed_and_counted_there(
    member, options: dict[str, str], reason: str, sentence: str
) -> None:
    a = member("a")
    b = member("b", a, **options)
    refused = await b.sees("refused")
    assert refused["text"] == f"{a.address} does not let this member in: {sentence}"
    assert f'talka_frames_refused_total{{reason="{reason}"}}' in await metrics(a)
    assert not a.told("joined") and not b.told("joined")


async def test_refusals_of_one_kind_and_host_are_told_once(member) -> None:
    a = member("a")
    await a.sees("ready")
    for port in (1, 2, 3):
        a.node.runtime.refused(f"10.0.0.9:{port}", "seal", "its seal is bad")
    a.node.runtime.refused("10.0.0.9:4", "role", "its role is wrong")
    a.node.runtime.refused("10.0.0.8:4", "seal", "its seal is bad")
    assert [event["address"] for event in a.told("refused")] == ["10.0.0.9:1", "10.0.0.9:4", "10.0.0.8:4"]


async def test_source_of_peers_that_fails_is_told(member, tmp_path: Path) -> None:
    a = member("a", f"file:{tmp_path / 'none'}")
    event = await a.sees("searching")
    assert "none was not read" in event["text"]


async def test_silent_name_servers_do_not_keep_a_member_from_seeds_it_was_given(
    member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(names: NameLookup, now: int, name: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(NameLookup, "addresses", wait)
    a = member("a")
    b = member("b", "somewhere:8472", a)
    await a.sees("joined", name="b")
    await b.sees("joined", name="a")


async def test_slip_in_the_search_is_not_passed_over(member, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(candidates: Candidates) -> list[str]:
        raise ZeroDivisionError("a slip")

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    monkeypatch.setattr(Candidates, "at_once", fail)
    a = member("a", "127.0.0.1:1")
    await a.sees("ready")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.wait([a.node._search._task])
    await a.stop()
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_member_that_stops_while_it_searches_ends_at_once(member) -> None:
    a = member("a", "127.0.0.1:1")
    await a.sees("ready")
    leave, was_over = a.node._leave, []

    async def watched() -> None:
        was_over.append(a.node._search._task.cancelled())  # who leaves must not join
        await leave()

    a.node._leave = watched
    await a.stop()
    assert was_over == [True] and a.events[-1]["event"] == "stopped"


# What keeps a member from starting.


def options_of(tmp_path: Path, **options: Any) -> MemberOptions:
    asked = {"name": "a", "bind": ("127.0.0.1", 0), "secrets": (SECRET,), "data_dir": tmp_path / "a"}
    return MemberOptions(**(asked | options))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["TCP", "UDP"])
def test_port_in_use_is_told(tmp_path: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}, TCP and UDP: .*in use"):
            MemberNode(options_of(tmp_path, bind=("127.0.0.1", port)), print)


def test_address_of_another_machine_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="cannot listen on 192.0.2.1:0, TCP and UDP: cannot assign"):
        MemberNode(options_of(tmp_path, bind=("192.0.2.1", 0)), print)


def test_port_that_is_free_for_both_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP's choice may be taken for UDP: another one is tried."""
    tries: list[int] = []

    class Picky(socket.socket):
        def bind(self, address: Any) -> None:
            if self.type is socket.SOCK_DGRAM:
                tries.append(address[1])
                if len(tries) < 3:
                    raise OSError(98, "Address already in use")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Picky)
    stream, datagram = listening_sockets("127.0.0.1", 0)
    with stream, datagram:
        assert stream.getsockname() == datagram.getsockname()
    assert len(tries) == 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_wildcard_needs_an_address_for_others(tmp_path: Path, host: str) -> None:
    with pytest.raises(Invalid, match=f"{host} is every address of this machine: say with --advertise HOST:PORT"):
        MemberNode(options_of(tmp_path, bind=(host, 0)), print)


async def test_data_folder_in_use_is_told_and_free_after_the_end(member, tmp_path: Path) -> None:
    a = member("a")
    await a.sees("ready")
    with pytest.raises(FolderInUse, match="a is in use by process .*: stop that one or name another --data-dir"):
        member("a")
    await a.stop()
    again = member("a")
    await again.sees("ready")


def test_voters_that_cannot_be_leave_nothing_open(tmp_path: Path) -> None:
    for _ in range(2):  # the folder and the sockets of the first are free again
        with pytest.raises(Invalid, match="2 voters decide only while both are there"):
            MemberNode(options_of(tmp_path, voters=("a", "b")), print)


# Disks.


async def test_voter_whose_disk_fails_stops(member, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: VoterFile, puts: object) -> None:
        raise StoreFailed("votes could not be written (no space left on device)")

    monkeypatch.setattr(VoterFile, "write", fail)
    a = member("a", voters=("a",))
    async with asyncio.timeout(LIMIT_S):
        await a.task
    assert str(a.node.failure) == "votes could not be written (no space left on device)"
    assert not a.told("elected") and a.events[-1]["event"] == "stopped"


async def test_peers_that_cannot_be_kept_are_an_alarm_and_no_end(member, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: PeerFile, peers: list[RememberedPeer]) -> None:
        raise StoreFailed("peers could not be written (no space left on device)")

    monkeypatch.setattr(PeerFile, "save", fail)
    a = member("a", remember_s=0.01)
    member("b", a)
    alarm = await a.sees("alarm")
    assert (alarm["kind"], alarm["text"]) == ("files", "peers could not be written (no space left on device)")
    assert not a.task.done()
    await a.stop()
    assert a.node.failure is None and len(a.told("alarm")) >= 2


async def test_damaged_peer_file_is_told_and_set_aside(member, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "peers.json").write_text("not json")
    a = member("a")
    alarm = await a.sees("alarm", kind="files")
    assert "peers.json.damaged" in alarm["text"]


# The end.


async def test_nothing_goes_on_after_the_end(member) -> None:
    a = member("a", voters=("a",))
    await a.sees("ready")
    before = asyncio.all_tasks() - {a.task}
    await a.stop()
    assert asyncio.all_tasks() <= before
    # A write to the disk ends late: that wakes nothing again.
    assert a.node.member.next_tick_at < NEVER
    a.node.runtime.do([])
    assert not a.node.runtime.timer.is_set
    assert not a.node.runtime.streams._open and a.node.runtime.disk.is_idle
