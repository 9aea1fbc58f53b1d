"""How a node finds its first peer, with a DNS server of our own on loopback."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from talka.errors import Invalid, Unavailable
from talka.net.discovery import (
    CANDIDATES_LIMIT,
    FILE_LIMIT_BYTES,
    NAMES_LIMIT,
    REFUSALS_LIMIT,
    SOURCES_LIMIT,
    Candidates,
    ProbePolicy,
    SourceRefused,
    probe,
)
from talka.net.names import NAMES_LIMIT as CACHED_NAMES_LIMIT
from talka.net.names import NameLookup, NameUnknown
from talka.units import SECOND
from talka.work.retry import RetryPolicy


class NameServer(asyncio.DatagramProtocol):
    """Answers from `zone`: (name, type) → (time to live, records). Other names do not exist."""

    def __init__(self) -> None:
        self.zone: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.codes: dict[str, dns.rcode.Rcode] = {}
        self.silent: dict[tuple[str, str], None] = {}
        self.asked: list[tuple[str, str]] = []
        self.port = 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind))
        if (name, kind) in self.silent:
            return
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if name in self.codes:
            response.set_rcode(self.codes[name])
        elif (name, kind) in self.zone:
            ttl_s, records = self.zone[name, kind]
            response.answer.append(dns.rrset.from_text(question.name, ttl_s, "IN", kind, *records))
        elif not any(known == name for known, _ in self.zone):
            response.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(response.to_wire(), addr)


def write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield protocol
    transport.close()
    await asyncio.sleep(0)  # The socket is closed in the next turn of the loop.


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text("# nobody\n")
    return path


@pytest.fixture
def names(server: NameServer, hosts: Path) -> NameLookup:
    return NameLookup(timeout_s=60, nameservers=[("127.0.0.1", server.port)], hosts_file=hosts)


Patient = partial(Candidates, file_timeout_s=60)
"""On a busy machine the thread that reads a file may have to wait."""


@pytest.fixture
def hasty_names(server: NameServer, hosts: Path) -> NameLookup:
    """For silence that is to be waited for."""
    return NameLookup(timeout_s=0.2, nameservers=[("127.0.0.1", server.port)], hosts_file=hosts)


@pytest.fixture(autouse=True)
def no_system_names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the system knows beside the DNS; tests fill it."""
    known: dict[str, list[str]] = {}

    async def getaddrinfo(self: object, host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise OSError(f"no {host}")
        return [(None, None, None, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return known


# Names


async def test_a_name_has_its_ipv4_and_ipv6_addresses(server: NameServer, names: NameLookup) -> None:
    server.zone["both.test", "A"] = (60, ["10.0.0.1", "10.0.0.2"])
    server.zone["both.test", "AAAA"] = (60, ["2001:db8::1"])
    *ipv4, ipv6 = await names.addresses(0, "Both.Test")
    # A server may turn the order of its records.
    assert (sorted(ipv4), ipv6) == (["10.0.0.1", "10.0.0.2"], "2001:db8::1")
    assert sorted(server.asked) == [("both.test", "A"), ("both.test", "AAAA")]


async def test_one_kind_of_address_is_enough(server: NameServer, names: NameLookup) -> None:
    server.zone["six.test", "AAAA"] = (60, ["2001:db8::1"])
    assert await names.addresses(0, "six.test") == ["2001:db8::1"]


async def test_silence_about_one_kind_does_not_hide_the_other(server: NameServer, hosts: Path) -> None:
    # Time enough for the answer about the other kind, on a busy machine too.
    names = NameLookup(timeout_s=5, nameservers=[("127.0.0.1", server.port)], hosts_file=hosts)
    server.zone["half.test", "A"] = (60, ["10.0.0.1"])
    server.silent["half.test", "AAAA"] = None
    assert await names.addresses(0, "half.test") == ["10.0.0.1"]


async def test_an_answer_is_kept_for_its_time_to_live_the_shorter_of_two(server: NameServer, names: NameLookup) -> None:
    server.zone["a.test", "A"] = (90, ["10.0.0.1"])
    server.zone["a.test", "AAAA"] = (60, ["2001:db8::1"])
    await names.addresses(0, "a.test")
    server.zone["a.test", "A"] = (90, ["10.0.0.9"])
    assert await names.addresses(60 * SECOND - 1, "a.test") == ["10.0.0.1", "2001:db8::1"]
    assert len(server.asked) == 2
    assert await names.addresses(60 * SECOND, "a.test") == ["10.0.0.9", "2001:db8::1"]


@pytest.mark.parametrize(("ttl_s", "kept_s"), [(0, 1), (1_000_000, 3600)], ids=["none", "very long"])
async def test_a_time_to_live_is_between_a_second_and_an_hour(
    server: NameServer, names: NameLookup, ttl_s: int, kept_s: int
) -> None:
    server.zone["a.test", "A"] = (ttl_s, ["10.0.0.1"])
    await names.addresses(0, "a.test")
    await names.addresses(kept_s * SECOND - 1, "a.test")
    assert len(server.asked) == 2
    await names.addresses(kept_s * SECOND, "a.test")
    assert len(server.asked) == 4


async def test_a_name_that_does_not_exist_is_not_asked_for_again_for_half_a_minute(
    server: NameServer, names: NameLookup
) -> None:
    with pytest.raises(NameUnknown, match="the name no.test was not resolved: there is no such name"):
        await names.addresses(0, "no.test")
    server.zone["no.test", "A"] = (60, ["10.0.0.1"])
    with pytest.raises(NameUnknown, match="there is no such name"):
        await names.addresses(30 * SECOND - 1, "no.test")
    assert len(server.asked) == 2
    assert await names.addresses(30 * SECOND, "no.test") == ["10.0.0.1"]


async def test_a_name_without_addresses_says_so(server: NameServer, names: NameLookup) -> None:
    server.zone["text.test", "TXT"] = (60, ['"hello"'])
    with pytest.raises(NameUnknown, match="it has no A record"):
        await names.addresses(0, "text.test")


async def test_a_server_that_fails_is_a_sentence(server: NameServer, names: NameLookup) -> None:
    server.codes["broken.test"] = dns.rcode.SERVFAIL
    with pytest.raises(NameUnknown, match="the name servers could not answer"):
        await names.addresses(0, "broken.test")


async def test_a_server_that_stays_silent_is_given_up_and_the_system_not_asked(
    server: NameServer, hasty_names: NameLookup, no_system_names: dict[str, list[str]]
) -> None:
    server.silent = {("mute.test", "A"): None, ("mute.test", "AAAA"): None}
    no_system_names["mute.test"] = ["10.0.0.1"]
    with pytest.raises(NameUnknown, match=r"no name server answered within 0.2 s") as caught:
        await hasty_names.addresses(0, "mute.test")
    assert not caught.value.is_final
    assert isinstance(caught.value, Unavailable)


async def test_the_system_is_asked_for_what_the_dns_does_not_know(
    names: NameLookup, no_system_names: dict[str, list[str]]
) -> None:
    no_system_names["printer"] = ["fe80::1", "10.0.0.7", "10.0.0.7"]
    assert await names.addresses(0, "printer") == ["10.0.0.7", "fe80::1"]
    no_system_names["printer"] = ["10.0.0.8"]
    assert await names.addresses(30 * SECOND - 1, "printer") == ["10.0.0.7", "fe80::1"]
    assert await names.addresses(30 * SECOND, "printer") == ["10.0.0.8"]


async def test_names_of_the_hosts_file_need_no_server(server: NameServer, names: NameLookup, hosts: Path) -> None:
    write(hosts, "10.0.0.5  box.test Box # a box\n::5 box\nnonsense box\n\n10.0.0.6 other\n")
    assert await names.addresses(0, "BOX") == ["10.0.0.5", "::5"]
    write(hosts, "10.0.0.9 box\n")
    assert await names.addresses(0, "box.") == ["10.0.0.9"]
    assert server.asked == []


async def test_localhost_is_this_machine_whatever_the_hosts_file_says(server: NameServer, tmp_path: Path) -> None:
    names = NameLookup(nameservers=[("127.0.0.1", server.port)], hosts_file=tmp_path / "missing")
    assert await names.addresses(0, "localhost") == ["127.0.0.1", "::1"]
    assert await names.addresses(0, "a.localhost") == ["127.0.0.1", "::1"]
    assert len(server.asked) == 0


async def test_services_are_ordered_by_preference(server: NameServer, names: NameLookup) -> None:
    records = ["20 0 7400 c.test.", "10 1 7400 b.test.", "10 9 7401 A.test.", "10 1 0 zero.test."]
    server.zone["_talka._tcp.test", "SRV"] = (60, records)
    assert await names.services(0, "_talka._tcp.test") == [("a.test", 7401), ("b.test", 7400), ("c.test", 7400)]
    await names.services(60 * SECOND - 1, "_talka._tcp.test")
    assert len(server.asked) == 1
    await names.services(60 * SECOND, "_talka._tcp.test")
    assert len(server.asked) == 2


async def test_a_service_that_is_not_offered_is_a_sentence(server: NameServer, names: NameLookup) -> None:
    server.zone["_talka._tcp.test", "SRV"] = (60, ["0 0 0 ."])
    for _ in range(2):
        with pytest.raises(NameUnknown, match="no such service"):
            await names.services(0, "_talka._tcp.test")
    assert len(server.asked) == 1


async def test_the_caches_are_bounded(names: NameLookup, no_system_names: dict[str, list[str]]) -> None:
    no_system_names.update({f"n{number}": ["10.0.0.1"] for number in range(CACHED_NAMES_LIMIT + 1)})
    for name in no_system_names:
        names._addresses.put(10 * SECOND, name, ["10.0.0.2"])
    assert len(names._addresses._entries) == CACHED_NAMES_LIMIT
    assert await names.addresses(0, "n1") == ["10.0.0.2"]
    assert await names.addresses(0, "n0") == ["10.0.0.1"]  # The oldest gave way.


async def test_a_machine_without_name_servers_says_so(monkeypatch: pytest.MonkeyPatch, hosts: Path) -> None:
    import dns.resolver

    def missing(self: object, path: object) -> None:
        raise dns.resolver.NoResolverConfiguration("none")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(dns.resolver.BaseResolver, "read_resolv_conf", missing)
    with pytest.raises(NameUnknown, match="no name servers configured"):
        await NameLookup(hosts_file=hosts).addresses(0, "a.test")


async def test_a_name_the_dns_cannot_carry_is_a_sentence(names: NameLookup) -> None:
    with pytest.raises(NameUnknown, match="was not resolved"):
        await names.addresses(0, "a" * 70 + ".test")


# Candidates


async def test_plain_addresses_are_candidates_as_they_are(server: NameServer, names: NameLookup) -> None:
    candidates = Candidates(["10.0.0.2:7400", "[2001:DB8::1]:7400", "10.0.0.2:7400"], names=names)
    assert await candidates.resolve(0) == ["10.0.0.2:7400", "[2001:db8::1]:7400"]
    assert candidates.problems == []
    assert len(server.asked) == 0


async def test_remembered_peers_come_first_then_configured_ones_then_names(
    server: NameServer, names: NameLookup, tmp_path: Path
) -> None:
    server.zone["named.test", "A"] = (60, ["10.0.0.3"])
    server.zone["named.test", "AAAA"] = (60, ["2001:db8::3"])
    server.zone["_talka._tcp.test", "SRV"] = (
        60,
        ["1 1 7500 named.test.", "2 1 7400 also.test.", "3 1 7400 other.test."],
    )
    server.zone["also.test", "A"] = (60, ["10.0.0.1"])
    server.zone["other.test", "A"] = (60, ["10.0.0.4"])
    (tmp_path / "peers").write_text("# ours\n10.0.0.5:7400 # five\n\n  named.test:7400\n")
    candidates = Patient(
        ["named.test:7400", "srv:_talka._tcp.test", f"file:{tmp_path / 'peers'}", "10.0.0.1:7400"],
        names=names,
        remembered=lambda: ["10.0.0.9:7400"],
    )
    assert await candidates.resolve(0) == [
        "10.0.0.9:7400",
        "10.0.0.1:7400",
        "10.0.0.5:7400",
        "10.0.0.3:7400",
        "[2001:db8::3]:7400",
        "10.0.0.3:7500",
        "[2001:db8::3]:7500",
        "10.0.0.4:7400",
    ]
    assert candidates.problems == []
    assert await candidates.at_once() == ["10.0.0.9:7400", "10.0.0.1:7400", "10.0.0.5:7400"]


async def test_without_names_nothing_is_to_be_asked_beforehand(names: NameLookup) -> None:
    assert await Candidates(["10.0.0.1:7400"], names=names).at_once() == []


async def test_ones_own_address_is_no_candidate(names: NameLookup) -> None:
    candidates = Candidates(["10.0.0.1:7400", "10.0.0.2:7400"], names=names, own=["10.0.0.1:7400"])
    assert await candidates.resolve(0) == ["10.0.0.2:7400"]


async def test_a_file_is_read_anew_each_time(names: NameLookup, tmp_path: Path) -> None:
    path = tmp_path / "peers"
    path.write_text("10.0.0.1:7400\n")
    candidates = Patient([f"file:{path}"], names=names)
    assert await candidates.resolve(0) == ["10.0.0.1:7400"]
    path.write_text("10.0.0.2:7400\n")
    assert await candidates.resolve(0) == ["10.0.0.2:7400"]


async def test_sources_that_fail_are_sentences_and_the_others_count(
    server: NameServer, names: NameLookup, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("10.0.0.7:7400\nnonsense\nmore nonsense\n")
    (tmp_path / "large").write_bytes(b"#" * (FILE_LIMIT_BYTES + 1))
    server.codes["broken.test"] = dns.rcode.SERVFAIL
    files = [f"file:{tmp_path / name}" for name in ("missing", "wrong", "large", ".")]
    candidates = Candidates(
        ["no.test:7400", "broken.test:7400", "srv:_no._tcp.test", *files, "10.0.0.1:7400"],
        names=names,
        remembered=lambda: ["10.0.0.8:7400", "10.0.0.8"],
    )
    assert await candidates.resolve(0) == ["10.0.0.8:7400", "10.0.0.1:7400", "10.0.0.7:7400"]
    assert candidates.problems == [
        'the remembered peers: the address "10.0.0.8" has no port: write HOST:PORT, such as 10.0.0.5:7400',
        f"the file {tmp_path / 'missing'} was not read: No such file or directory",
        f'the file {tmp_path / "wrong"}: the address "nonsense" has no port: write HOST:PORT, such as 10.0.0.5:7400',
        f"the file {tmp_path / 'large'} was not read: it is larger than 1048576 bytes",
        f"the file {tmp_path} was not read: it is not a regular file",
        "the name _no._tcp.test was not resolved: there is no such name",
        "the name no.test was not resolved: there is no such name",
        "the name broken.test was not resolved: the name servers could not answer",
    ]
    server.zone["_no._tcp.test", "SRV"] = (60, ["1 1 7400 10.0.0.3."])
    assert "10.0.0.3:7400" in await candidates.resolve(30 * SECOND)
    assert len(candidates.problems) == 7  # Those of the latest look only.


async def test_a_file_that_cannot_be_read_in_time_is_a_sentence(names: NameLookup, tmp_path: Path) -> None:
    candidates = Candidates([f"file:{tmp_path / 'peers'}", "10.0.0.1:7400"], names=names, file_timeout_s=0)
    assert await candidates.resolve(0) == ["10.0.0.1:7400"]
    assert candidates.problems == [f"the file {tmp_path / 'peers'} was not read within 0 s"]


async def test_what_others_say_is_bounded(server: NameServer, names: NameLookup, tmp_path: Path) -> None:
    path = tmp_path / "peers"
    path.write_text("".join(f"10.{number // 250}.0.{number % 250}:7400\n" for number in range(CANDIDATES_LIMIT + 9)))
    assert len(await Patient([f"file:{path}"], names=names).resolve(0)) == CANDIDATES_LIMIT
    path.write_text("".join(f"n{number}.test:7400\n" for number in range(NAMES_LIMIT + 1)))
    candidates = Patient([f"file:{path}"], names=names)
    assert await candidates.resolve(0) == []
    assert candidates.problems[0] == "257 names of first peers are too many: only 256 were looked up"
    assert len(set(server.asked)) == 2 * NAMES_LIMIT


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nonsense", "has no port"),
        ("srv:a b", "not a host name"),
        ("file:", "names no file"),
        ("host:0", "no usable port"),
    ],
)
def test_a_source_that_is_written_wrongly_is_refused_at_once(source: str, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        Candidates([source])


def test_too_many_sources_are_refused() -> None:
    with pytest.raises(Invalid, match="at most 256"):
        Candidates(["10.0.0.1:7400"] * (SOURCES_LIMIT + 1))


def test_plain_addresses_import_no_dns_library() -> None:
    code = (
        "import asyncio, sys; from talka.net.discovery import Candidates;"
        "found = asyncio.run(Candidates(['10.0.0.1:7400', 'localhost:7400']).resolve(0));"
        "assert '10.0.0.1:7400' in found and '127.0.0.1:7400' in found, found;"
        "loaded = [name for name in ('dns', 'cryptography') if name in sys.modules];"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Probing


class Waits:
    """Sleeps that take no time and are noted."""

    def __init__(self) -> None:
        self.all_s: list[float] = []

    async def __call__(self, wait_s: float) -> None:
        self.all_s.append(wait_s)
        await asyncio.sleep(0)


class Peers:
    """Candidates that answer, refuse, fail or stay silent, and who was asked."""

    def __init__(self, **behaviour: str | Exception | None) -> None:
        self.behaviour = behaviour
        self.asked: list[str] = []
        self.under_way = 0
        self.most = 0
        self.cancelled: list[str] = []
        self.all_asked = asyncio.Event()

    async def __call__(self, address: str) -> str:
        self.asked.append(address)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.under_way == len(self.behaviour):
            self.all_asked.set()
        try:
            match self.behaviour[address]:
                case None:
                    await asyncio.Event().wait()
                case Exception() as error:
                    await asyncio.sleep(0)
                    raise error
                case answer:
                    await asyncio.sleep(0)
                    return str(answer)
        except asyncio.CancelledError:
            self.cancelled.append(address)
            raise
        finally:
            self.under_way -= 1
        raise AssertionError("nobody comes here")


PATIENT, QUICK = ProbePolicy(timeout_ns=60 * SECOND), ProbePolicy(timeout_ns=20_000_000)


def searching(
    candidates: list[str] | Candidates, peers: Callable[[str], Awaitable[str]], **options: object
) -> Awaitable[str | None]:
    """With sleeps that take no time, so the rounds are limited: a search that finds nothing must end."""
    defaults: dict[str, object] = {
        "rng": Random(1),
        "now": lambda: 0,
        "policy": PATIENT,
        "sleep": Waits(),
        "rounds": 20,
    }
    return probe(candidates, peers, **{**defaults, **options})  # type: ignore[arg-type]


async def test_the_first_answer_wins_and_the_other_questions_are_cancelled() -> None:
    peers = Peers(a=None, b="from b", c=None)
    assert await searching(["a", "b", "c"], peers) == "from b"
    assert peers.cancelled == ["a", "c"]
    assert peers.under_way == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_of_two_answers_at_once_one_counts() -> None:
    assert await searching(["a", "b"], Peers(a="from a", b="from b")) == "from a"


@pytest.mark.parametrize("is_answer", [True, False], ids=["answers", "fails"])
async def test_a_question_that_resists_cancelling_changes_nothing(is_answer: bool) -> None:
    asked: list[str] = []

    async def ask(address: str) -> str:
        asked.append(address)
        if address == "stubborn":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if is_answer:
                    return "too late"
                raise OSError("closed") from None
        await asyncio.sleep(0)
        return "in time"

    policy = ProbePolicy(timeout_ns=60 * SECOND, at_once=2)
    assert await searching(["stubborn", "b", "c"], ask, policy=policy) == "in time"
    assert asked == ["stubborn", "b"]


async def test_every_candidate_is_asked_in_each_of_three_rounds_and_then_after_growing_pauses() -> None:
    peers = Peers(a=OSError("refused"), b=Unavailable("not now"))
    waits = Waits()
    assert await searching(["a", "b"], peers, rounds=9, sleep=waits) is None
    assert sorted(peers.asked) == ["a"] * 9 + ["b"] * 9
    jitters = [wait_s for wait_s in waits.all_s if wait_s <= 0.1]
    pauses = [wait_s for wait_s in waits.all_s if wait_s > 0.1]
    assert len(jitters) == 18
    assert len(pauses) == 6
    for pause, expected in zip(pauses, (0.5, 1, 2, 4, 8, 15), strict=True):
        assert expected <= pause <= expected * 1.25
    assert [wait_s > 0.1 for wait_s in waits.all_s[:7]] == [False] * 6 + [True]


async def test_a_silent_candidate_is_given_up_after_the_timeout() -> None:
    peers = Peers(a=None)
    assert await searching(["a"], peers, rounds=2, policy=QUICK) is None
    assert peers.cancelled == ["a", "a"]


async def test_at_most_ten_questions_are_under_way() -> None:
    peers = Peers(**{f"p{number}": OSError("refused") for number in range(25)}, last="found")
    assert await searching([*(f"p{number}" for number in range(25)), "last"], peers) == "found"
    assert peers.most == 10
    assert len(peers.asked) == 26


async def test_each_question_waits_up_to_a_tenth_of_a_second() -> None:
    waits = Waits()
    peers = Peers(**{f"p{number}": OSError("refused") for number in range(200)})
    await searching(list(peers.behaviour), peers, rounds=1, sleep=waits)
    assert min(waits.all_s) < 0.01
    assert 0.09 < max(waits.all_s) <= 0.1


async def test_each_refusal_is_told_once() -> None:
    told: list[str] = []
    peers = Peers(
        a=SourceRefused("the cluster differs"),
        b=SourceRefused("the cluster differs"),
        c=SourceRefused("the role differs"),
    )
    assert await searching(["a", "b", "c"], peers, rounds=3, on_refusal=told.append) is None
    assert told == ["the cluster differs", "the role differs"]
    assert await searching(["a"], peers, rounds=1) is None  # Nobody needs to listen.


async def test_the_refusals_told_are_bounded() -> None:
    told: list[str] = []
    names = [f"p{number}" for number in range(REFUSALS_LIMIT + 5)]
    peers = Peers(**{name: SourceRefused(f"{name} refuses") for name in names})
    await searching(names, peers, rounds=1, on_refusal=told.append)
    assert len(told) == REFUSALS_LIMIT


async def test_a_mistake_in_the_question_is_not_taken_for_silence() -> None:
    peers = Peers(a=ZeroDivisionError("a mistake"), b=None)
    with pytest.raises(ExceptionGroup) as caught:
        await searching(["a", "b"], peers)
    assert caught.group_contains(ZeroDivisionError)
    assert peers.under_way == 0


async def test_cancelling_the_search_leaves_no_question_behind() -> None:
    peers = Peers(a=None, b=None)
    search = asyncio.ensure_future(searching(["a", "b"], peers))
    async with asyncio.timeout(60):
        await peers.all_asked.wait()
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert sorted(peers.cancelled) == ["a", "b"]  # A task group cancels in no order.
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_search_ends_with_the_attempts_of_its_policy() -> None:
    backoff = RetryPolicy(attempts=3, base_ns=SECOND, cap_ns=SECOND, jitter="none")
    waits = Waits()
    policy = ProbePolicy(timeout_ns=60 * SECOND, jitter_ns=0, eager_rounds=2, backoff=backoff)
    peers = Peers(a=OSError("refused"))
    assert await searching(["a"], peers, policy=policy, sleep=waits, rounds=None) is None
    assert waits.all_s == [0, 0, 1, 0, 1, 0]


async def test_without_candidates_the_search_goes_on() -> None:
    waits = Waits()
    assert await searching([], Peers(), rounds=5, sleep=waits) is None
    assert len(waits.all_s) == 2


async def test_the_sources_are_asked_anew_for_every_round(names: NameLookup, tmp_path: Path) -> None:
    path = tmp_path / "peers"
    path.write_text("10.0.0.1:7400")
    asked: list[str] = []

    async def ask(address: str) -> str:
        asked.append(address)
        path.write_text("10.0.0.2:7400")
        if address == "10.0.0.2:7400":
            return "found"
        raise OSError("refused")

    assert await searching(Patient([f"file:{path}"], names=names), ask) == "found"
    assert asked == ["10.0.0.1:7400", "10.0.0.2:7400"]


async def test_silent_name_servers_do_not_keep_a_node_from_addresses_it_has(
    server: NameServer, names: NameLookup
) -> None:
    candidates = Candidates(["mute.test:7400", "10.0.0.1:7400"], names=names)
    assert await searching(candidates, Peers(**{"10.0.0.1:7400": "found"})) == "found"
    assert server.asked == []


async def test_names_are_looked_up_when_the_addresses_do_not_answer(server: NameServer, names: NameLookup) -> None:
    server.zone["a.test", "A"] = (60, ["10.0.0.2"])
    candidates = Candidates(["a.test:7400", "10.0.0.1:7400"], names=names)
    behaviour: dict[str, str | Exception | None] = {"10.0.0.1:7400": OSError("refused"), "10.0.0.2:7400": "found"}
    peers = Peers(**behaviour)
    assert await searching(candidates, peers) == "found"


@pytest.mark.parametrize("field", ["timeout_ns", "at_once", "eager_rounds"])
def test_a_policy_that_asks_nothing_is_refused(field: str) -> None:
    with pytest.raises(Invalid, match="at least 1"):
        ProbePolicy(**{field: 0})  # type: ignore[arg-type]
