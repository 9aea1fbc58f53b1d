"""Who has the secret of a certified cluster and no certificate cannot change its keys, nor say where its members
are."""

import asyncio
import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.clock import boottime_ns
from talka.cluster.effects import Lane, Transmit
from talka.control.member.admission import Admission
from talka.control.member.announcement import Announcement, standing_of
from talka.control.member.replay_guard import ReplayGuard
from talka.net.asker import AnswerRefused, NodeAsker, NodeSilent
from talka.net.certificates import issue, make_authority
from talka.nodes.member import MemberNode, MemberOptions
from talka.store.files.keyring import KeyringFile
from talka.wire import greeting
from talka.wire import membership as membership_wire
from talka.wire.asking import AddKey, AskKeys, AskMembers, AskMetrics, RepairKeys
from talka.wire.greeting import Self, ShareRing
from talka.wire.membership import Alive, Gossip, MemberState, Stated
from talka.wire.security.keys import Keyring, decode_ring, encode_ring, key_id
from talka.wire.security.sealing import Seal
from talka.wire.versions import VERSION as PROTOCOL_VERSION

LIMIT_S = 60.0
SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
THEIRS = "pL2k9Vb7Xs4Qw1Zr8Mn5Td3Jh6Gy0Fc2"
Event = dict[str, Any]


class Running:
    """One member, and what it told."""

    def __init__(self, options: MemberOptions) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self.node = MemberNode(options, self._on_event)
        self.task = asyncio.get_running_loop().create_task(self.node.run())

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def told(self, word: str, **fields: Any) -> list[Event]:
        return [
            event
            for event in self.events
            if event["event"] == word and all(event.get(name) == value for name, value in fields.items())
        ]

    async def sees(self, word: str, **fields: Any) -> Event:
        async with asyncio.timeout(LIMIT_S):
            while not self.told(word, **fields):
                self._news.clear()
                await self._news.wait()
        return self.told(word, **fields)[0]

    @property
    def ring(self) -> Keyring:
        admission = self.node.member.admission
        assert admission is not None
        return admission.ring

    async def stop(self) -> None:
        self.node.stop()
        async with asyncio.timeout(LIMIT_S):
            await self.task


class Intruder:
    """A socket of UDP and the secret. It has no certificate."""

    def __init__(self, target: str, *, name: str = "b", secret: str = SECRET) -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", 0))
        self._target = (host, int(port))
        boot = random.getrandbits(61)
        self._admission = Admission(
            replay_guard=ReplayGuard(group="default/default", name=name, boot=boot),
            seal=Seal(Keyring.of((secret,)), boot),
            name=name,
            me=Self("default", "default", "manager", str(PROTOCOL_VERSION)),
            rng=random.Random(boot),
        )

    async def say(self, channel: int, body: bytes, updates: list[bytes] | None = None) -> None:
        """One datagram, and a second one that proves this life, if the member asks for it."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendto(self._socket, self._admission.wrap(boottime_ns(), channel, body, updates), self._target)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                asked, _ = await loop.sock_recvfrom(self._socket, 65_536)
                _, replies = self._admission.receive(boottime_ns(), "member", asked, Lane.DATAGRAM, 0)
                for reply in replies:
                    if isinstance(reply, Transmit):
                        await loop.sock_sendto(self._socket, reply.frame, self._target)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_authority(folder, "default", "default", now=datetime.now(UTC))
    for name in ("a", "b", "operator"):
        issue(folder, name=name, role="manager", now=datetime.now(UTC))
    issue(folder, name="client", role="client", now=datetime.now(UTC))
    return folder


@pytest.fixture
async def member(tmp_path: Path):
    made: list[Running] = []

    def start(name: str, *seeds: Running, **options: Any) -> Running:
        asked = {
            "bind": ("127.0.0.1", 0),
            "secrets": (SECRET,),
            "data_dir": tmp_path / name,
            "preset": "fast",
            "seeds": tuple(seed.node.runtime.address for seed in seeds),
        }
        made.append(Running(MemberOptions(name=name, **(asked | options))))
        return made[-1]

    yield start
    for each in made:
        if not each.task.done():
            await each.stop()


def taken_over() -> Keyring:
    """As the intruder would like it: its own key seals, the cluster's is retired, and no version is above."""
    ring = Keyring.of((SECRET,)).with_key(THEIRS).with_primary(key_id(THEIRS)).without(key_id(SECRET))
    return msgspec.structs.replace(ring, primary=(2**61, key_id(THEIRS)))


async def test_two_datagrams_do_not_take_over_the_keys_of_a_certified_member(
    member: Callable[..., Running], certs: Path, tmp_path: Path
) -> None:
    a = member("a", certs=certs)
    await a.sees("ready")
    with contextlib.closing(Intruder(a.node.runtime.address)) as intruder:
        await intruder.say(greeting.CHANNEL.number, greeting.encode(ShareRing(encode_ring(taken_over()))))
        await a.sees("alarm", kind="keys")

    assert a.ring == Keyring.of((SECRET,))
    await a.stop()
    assert KeyringFile(tmp_path / "a").load() is None

    again = member("a", certs=certs)
    await again.sees("ready")
    assert again.ring == Keyring.of((SECRET,)), "and it does not last over a restart"


async def test_a_datagram_does_not_say_where_another_member_is(member: Callable[..., Running], certs: Path) -> None:
    a = member("a", certs=certs)
    b = member("b", a, certs=certs)
    await a.sees("joined", name="b")
    await b.sees("joined", name="a")
    membership = a.node.member.membership
    assert membership is not None
    elsewhere = Alive("b", b.node.runtime.boot, 1000, "127.0.0.1:9")
    stated = Stated(
        "b", b.node.runtime.boot, MemberState(1000, msgspec.msgpack.encode(Announcement("", api="http://127.0.0.1:9")))
    )
    with contextlib.closing(Intruder(a.node.runtime.address, name="x")) as intruder:
        await intruder.say(
            membership_wire.CHANNEL.number,
            membership_wire.encode(Gossip()),
            [membership_wire.encode_update(elsewhere), membership_wire.encode_update(stated)],
        )
        async with asyncio.timeout(LIMIT_S), asker(a, SECRET, certs, "client") as client:
            while b"talka_records_disbelieved_total 2" not in await client.ask(AskMetrics()):
                continue  # both are heard, and neither is believed

    known = membership.get("b")
    assert known is not None and known.address == b.node.runtime.address and known.incarnation < 1000
    standing = standing_of(known)
    assert standing is None or standing.api == ""


async def test_three_certified_members_learn_of_each_other_through_one(
    member: Callable[..., Running], certs: Path
) -> None:
    issue(certs, name="c", role="manager", now=datetime.now(UTC))
    a = member("a", certs=certs)
    b, c = member("b", a, certs=certs), member("c", a, certs=certs)
    for one, others in ((a, "bc"), (b, "ac"), (c, "ab")):
        for name in others:
            joined = await one.sees("joined", name=name)
            assert joined["address"] == {"a": a, "b": b, "c": c}[name].node.runtime.address
    assert all(each.node.member.membership.disbelieved == 0 for each in (a, b, c))  # type: ignore[union-attr]


# A ring that was taken over all the same, or spoilt.

NEW = "Vb5nXz1Qm_Ke6WtSy0UhDgLr7AoPi2Cj"


def asker(member: Running, secret: str, certs: Path | None, name: str = "") -> NodeAsker:
    at = member.node.runtime.address
    return NodeAsker(
        at,
        at,
        secrets=(secret, NEW),
        cluster="default",
        environment="default",
        certs=certs,
        name=name,
        timeout_s=LIMIT_S,
    )


async def test_a_manager_repairs_a_cluster_whose_keys_were_taken_over_with_the_secret_of_its_files(
    member: Callable[..., Running], certs: Path, tmp_path: Path
) -> None:
    taken = Keyring.of((SECRET,)).with_key(THEIRS).with_primary(key_id(THEIRS)).without(key_id(SECRET))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        KeyringFile(tmp_path / name).save(encode_ring(taken))
    a = member("a", certs=certs)
    b = member("b", a, certs=certs)
    await a.sees("joined", name="b")
    told = await a.sees("alarm", kind="files")
    assert "put a secret that is in use into the file" in told["text"]

    async with asker(a, SECRET, certs, "operator") as manager:
        assert json.loads(await manager.ask(AskKeys()))["keys"] == [{"id": key_id(THEIRS), "is_primary": True}]
        with pytest.raises(AnswerRefused, match="no longer accepted"):
            await manager.ask(AskMembers())
        facts = json.loads(await manager.ask(RepairKeys((NEW,))))
    assert facts["keys"] == [{"id": key_id(NEW), "is_primary": True}]
    change = await a.sees("key-change", problem="")
    assert (change["what"], change["who"], change["keys"]) == ("repair", "operator", key_id(NEW))
    alarm = await b.sees("alarm", kind="keys")
    assert alarm["text"].startswith("'a' at ") and f"of era 1, keys {key_id(NEW)}" in alarm["text"]
    assert a.ring == b.ring

    await b.stop()
    again = member("b", a, certs=certs)
    await again.sees("ready")
    assert again.ring == a.ring, "and it lasts"


async def test_nobody_else_repairs_a_certified_cluster(member: Callable[..., Running], certs: Path) -> None:
    a = member("a", certs=certs)
    await a.sees("ready")

    with pytest.raises(NodeSilent):
        async with asker(a, SECRET, None):
            pass
    async with asyncio.timeout(LIMIT_S), asker(a, SECRET, certs, "client") as client:
        asking = asyncio.ensure_future(client.ask(RepairKeys((NEW,))))
        await client.ask(AskKeys())  # asked later, answered: what was asked before was not taken
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, AnswerRefused):
            await asking

    assert a.ring == Keyring.of((SECRET,)) and not a.told("key-change")


async def test_a_damaged_ring_is_repaired_where_the_secret_is_still_known(
    member: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "keyring").write_bytes(b"no ring")
    a = member("a")
    alarm = await a.sees("alarm", kind="files")
    assert "keyring.damaged" in alarm["text"] and "--repair FILE" in alarm["text"]

    async with asker(a, SECRET, None) as somebody:
        await somebody.ask(RepairKeys((NEW, SECRET)))

    await a.sees("keys")
    assert (a.ring.era, a.ring.primary_id) == (1, key_id(NEW))


async def test_who_asks_for_other_keys_is_answered_once_they_are_on_disk(
    member: Callable[..., Running], tmp_path: Path
) -> None:
    a = member("a")
    await a.sees("ready")
    goes_on = threading.Event()
    a.node.runtime.disk.do(goes_on.wait, LIMIT_S)

    try:
        async with asker(a, SECRET, None) as somebody:
            changed = asyncio.ensure_future(somebody.ask(AddKey(NEW)))
            await a.sees("keys")
            await somebody.ask(AskKeys())  # asked later, answered: only the change waits for the disk
            assert not changed.done() and not (tmp_path / "a" / "keyring").exists()
            goes_on.set()
            await changed
            kept = KeyringFile(tmp_path / "a").load()
    finally:
        goes_on.set()

    assert kept is not None and key_id(NEW) in decode_ring(kept).accepted()


async def test_content_that_is_whole_and_no_ring_is_set_aside_too(
    member: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    KeyringFile(tmp_path / "a").save(b"whole, and no ring")

    a = member("a")
    await a.sees("alarm", kind="files")

    assert a.ring == Keyring.of((SECRET,))
    assert (tmp_path / "a" / "keyring.damaged").exists()
