"""Members that are killed, stalled, given other keys or false certificates, and spoken to by strangers."""

import os
import signal
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
import pytest

from talka.net.certificates import issue, make_authority
from talka.net.tls import client_context, find_certs, server_context
from talka.wire import greeting
from talka.wire.framing import FRAME_LIMIT_BYTES, framed, packed
from talka.wire.greeting import GreetingHello, Self
from talka.wire.packets import PROTOCOL, Packet, encode_packet
from talka.wire.security.keys import Keyring, key_id
from talka.wire.security.sealing import Seal
from tests.e2e.cluster import SOON_S, Cluster, new_secret
from tests.e2e.networks import Datagram, Relay

VOTERS = ("--voters", "a,b,c,d,e")
STRANGER = "127.0.0.66"
"""Datagrams are rationed by source: strangers of a test do not use up what members have."""
FLAT_BYTES = 4 * 1024 * 1024
LONGEST_SUSPICION_S = 6.0
"""Of up to ten members at the preset `fast`: 4 × 0.25 s, six times that when nobody confirms."""
PROOF_S = 3.0
"""A new life takes frames that were sent within this time before its sender proved to be alive."""


# Deaths and stalls


@pytest.mark.patient
def test_everybody_agrees_on_each_of_five_deaths_and_returns(members: Cluster) -> None:
    members.start_all("abcdef")
    for victim in "bcdef":
        members.kill(victim)
        members.wait_until_all_agree()

        members.start(victim, seeds=["a"])
        members.wait_until_all_agree()

    survivors = [(who, event) for who, event in members.said("lost") if who == "a"]
    assert [event["name"] for _, event in survivors] == list("bcdef")


@pytest.mark.serial
def test_a_member_stalled_for_three_seconds_gives_no_verdict_about_others(members: Cluster) -> None:
    members.start_all("abcdef")
    for _ in range(3):
        members.signal("c", signal.SIGSTOP)
        members.listen(3)
        members.signal("c", signal.SIGCONT)
        members.listen(5)
        members.wait_until_all_agree()

    assert len(members.said("suspected", name="c")) >= 3, "it was away long enough to be missed"
    stalled = members.up["c"]
    assert not stalled.said("lost", own=True), stalled.events
    assert not stalled.said("suspected", accuser="c"), stalled.events
    assert not [event for who, event in members.said("lost") if event["name"] != "c"], members.said("lost")


@pytest.mark.serial
def test_a_member_stalled_while_it_suspects_another_hears_the_refutation_before_its_own_timer(members: Cluster) -> None:
    members.start_all("abcdef")
    stalled, other, accused = members.up["c"], members.up["a"], members.up["e"]

    def both_suspect_e(times: int) -> bool:
        return all(len(life.said("suspected", name="e")) >= times for life in (stalled, other))

    for number in range(1, 3):
        members.signal("e", signal.SIGSTOP)
        members.wait(lambda number=number: both_suspect_e(number), SOON_S, "c and another to suspect e")
        # Its timer for e runs out meanwhile; that e lives is told behind much else.
        members.signal("c", signal.SIGSTOP)
        send_rubbish(members, "c", datagrams=50)
        members.signal("e", signal.SIGCONT)
        members.wait(lambda number=number: len(accused.said("refuted")) >= number, SOON_S, "e to refute")
        members.listen(LONGEST_SUSPICION_S + 1)
        members.signal("c", signal.SIGCONT)
        members.listen(2)
        members.wait_until_all_agree()

    assert not stalled.said("lost"), stalled.events


def test_another_leader_is_elected_when_the_leader_is_killed(members: Cluster) -> None:
    members.start_all("abcde", *VOTERS)
    first = members.wait_for_voters()
    first_term = members.up[first].term

    members.kill(first)
    members.wait(lambda: members.leader() not in ("", first), SOON_S, "another leader")
    facts = members.wait_for_leader_told(members.leader())

    assert facts["leader"] != first
    assert facts["term"] > first_term
    tokens = [event["token"] for _, event in members.said("elected")]
    assert len({tuple(token) for token in tokens}) == len(tokens)


@pytest.mark.patient
def test_voters_that_all_die_at_once_agree_on_one_leader_again_and_terms_never_go_back(members: Cluster) -> None:
    members.start_all("abcde", *VOTERS)
    members.wait_for_leader()
    for _ in range(3):
        before = {name: life.term for name, life in members.up.items()}

        members.kill(*"abcde")
        members.start_all("abcde", *VOTERS)
        members.wait_for_leader()

        for name, life in members.up.items():
            assert life.term > before[name], (name, before)
            terms = [event["term"] for event in life.said("leader")]
            assert terms == sorted(terms), (name, terms)
            members.wait_for_leader_told(name)
    reigns = [event["term"] for _, event in members.said("elected")]
    assert len(set(reigns)) == len(reigns), "two were elected for one term"


@pytest.mark.serial
def test_a_leader_that_is_told_to_stop_hands_over_and_says_good_bye(members: Cluster) -> None:
    members.start_all("abcde", *VOTERS)
    first = members.wait_for_voters()

    assert members.stop(first) == 0
    members.wait_for_leader()
    members.wait_until_all_agree()

    assert not members.said("lost")
    assert {who for who, _ in members.said("left", name=first)} == set("abcde") - {first}
    assert members.lives[first][0].events[-1]["event"] == "stopped"


@pytest.mark.serial
def test_a_leader_that_was_stalled_follows_the_one_elected_meanwhile(members: Cluster) -> None:
    members.start_all("abcde", *VOTERS)
    first = members.wait_for_voters()
    others = [life for name, life in members.up.items() if name != first]

    members.signal(first, signal.SIGSTOP)
    members.wait(lambda: all(life.leader not in ("", first) for life in others), SOON_S, "another leader")
    members.signal(first, signal.SIGCONT)
    members.wait_for_leader()

    assert members.leader() != first
    assert members.up[first].said("stepped-down")
    reigns = [event["term"] for _, event in members.said("elected")]
    assert len(set(reigns)) == len(reigns), "two were elected for one term"


# Keys


@pytest.mark.patient
def test_a_member_that_was_down_while_keys_changed_rejoins_with_its_old_secret(members: Cluster) -> None:
    cluster = members
    cluster.start_all("abcd")
    old = key_id(cluster.secret)

    def rotate_without_d(name: str) -> Path:
        cluster.kill("d")
        cluster.wait_until_all_agree()
        file = cluster.write_secret(name, secret := new_secret())
        keys = cluster.told("a", "keys", "--rotate", str(file))
        assert [key["id"] for key in keys["keys"] if key["is_primary"]] == [key_id(secret)]
        assert "d" in keys["unconfirmed"]
        wait_until_unconfirmed(cluster, "a", ["d"])
        refused = cluster.ask("a", "keys", "--retire", old, secret_file=file)
        assert refused.returncode != 0
        assert f"key {old} cannot be retired yet: d did not confirm" in refused.stderr
        return file

    # With its files.
    rotate_without_d("second")
    cluster.start("d", seeds=["a"])
    cluster.wait_until_all_agree()
    wait_until_confirmed(cluster, "a")

    # Without them: only the old secret is left to it.
    newest = rotate_without_d("third")
    cluster.start("d", seeds=["a"], data="d-anew")
    cluster.wait_until_all_agree()
    wait_until_confirmed(cluster, "a")

    for key in [key for key in cluster.told("a", "keys")["keys"] if not key["is_primary"]]:
        retired = cluster.ask("a", "keys", "--retire", key["id"], secret_file=newest)
        assert retired.returncode == 0, retired.stderr
        wait_until_confirmed(cluster, "a", newest)
    for name in "abcd":
        keys = cluster.told(name, "keys", secret_file=newest)["keys"]
        assert [key["id"] for key in keys] == [key_id(newest.read_text().strip())]
    assert cluster.ask("a", "members").returncode == 7, "the old secret opens nothing any more"

    # What it has learned it keeps, whatever its file of secrets says.
    cluster.kill("d")
    cluster.wait_until_all_agree()
    cluster.start("d", seeds=["a"], data="d-anew")
    cluster.wait_until_all_agree()


def wait_until_confirmed(cluster: Cluster, name: str, secret_file: Path | None = None) -> None:
    wait_until_unconfirmed(cluster, name, [], secret_file)


def wait_until_unconfirmed(cluster: Cluster, name: str, by: list[str], secret_file: Path | None = None) -> None:
    until = time.monotonic() + SOON_S
    while (unconfirmed := cluster.told(name, "keys", secret_file=secret_file)["unconfirmed"]) != by:
        assert time.monotonic() < until, f"{unconfirmed} did not confirm the keys\n{cluster.story()}"
        cluster.listen(0.25)


# Certificates


def test_false_certificates_are_refused_with_the_reason_and_counted(members: Cluster) -> None:
    cluster = members
    certs, foreign = cluster.folder / "certs", cluster.folder / "foreign"
    now = datetime.now(UTC)
    for folder in (certs, foreign):
        make_authority(folder, "default", "default", now=now - timedelta(days=30))
    for name in "abc":
        issue(certs, name=name, role="manager", now=now)
    issue(certs, name="client", role="client", now=now)
    issue(certs, name="late", role="manager", days=1, now=now - timedelta(days=3))
    issue(certs, name="outside", role="outside-worker", now=now)
    issue(foreign, name="alien", role="manager", now=now)
    options = ("--certs", str(certs))
    cluster.start("a", *options, "--voters", "a,b,c")
    cluster.start("b", *options, "--voters", "a,b,c", seeds=["a"])
    cluster.start("c", *options, "--voters", "a,b,c", seeds=["a"])
    cluster.wait_until_all_agree()
    cluster.wait_for_leader_told("a", *options)

    def refusal(reason: str) -> str:
        text: str = cluster.wait_for("a", "refused", reason=reason)["text"]
        assert cluster.refused("a", *options)[reason] >= 1
        return text

    # Expired: it was good once.
    greet_over_tls(cluster, "a", client_context(find_certs(certs, "late")), "late")
    assert "has expired" in refusal("expired")

    # Foreign: a member like any other, with the right secret, of another authority.
    cluster.start("alien", "--certs", str(foreign), seeds=["a"])
    assert "another authority" in refusal("foreign")
    cluster.listen(3)
    assert not cluster.said("joined", name="alien")
    cluster.kill("alien")

    # Of a role that a manager does not connect to.
    with tls_server(server_context(find_certs(certs, "outside"))) as address:
        cluster.kill("a")
        cluster.start("a", *options, "--seed", address, "--voters", "a,b,c", seeds=["b"])
        assert "a manager may not connect to an outside-worker" in refusal("role")
    cluster.wait_until_all_agree()
    cluster.wait_for_leader()

    # No member starts with such a certificate of its own.
    for name, problem in (("late", "it expired on"), ("outside", "is for role 'outside-worker'")):
        life = cluster.start(name, *options, seeds=["a"])
        cluster.wait(lambda life=life: life.is_over, SOON_S, f"{name} to end")
        assert life.process.wait(10) == 2
        assert problem in life.errors.read_text()
        del cluster.up[name]


def greet_over_tls(cluster: Cluster, name: str, context: ssl.SSLContext, who: str) -> None:
    """The refusal of a client's certificate arrives with its first read."""
    with socket.create_connection(address_of(cluster, name), timeout=SOON_S) as plain, pytest.raises(OSError):
        with context.wrap_socket(plain) as secured:
            secured.sendall(framed(hello(cluster.secret, who)))
            if not secured.recv(1):
                raise ConnectionResetError


@contextmanager
def tls_server(context: ssl.SSLContext) -> Iterator[str]:
    """Shakes hands with all who come, one after the other, and says nothing."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = server.accept()
            except OSError:
                return
            plain.settimeout(10)
            try:
                with context.wrap_socket(plain, server_side=True) as secured:
                    secured.recv(1)
            except OSError:
                plain.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)  # wakes the thread
        server.close()
        thread.join(15)


def test_those_that_count_a_leaders_lease_alike_go_on_and_the_other_is_told(members: Cluster) -> None:
    """Of three voters one was given another preset: a majority leads, and every side names both times."""
    voters = ("--voters", "a,b,c")
    members.start("a", *voters)
    members.start("b", *voters, seeds=["a"])
    members.start("c", *voters, seeds=["a"], preset="wan")

    texts = [members.wait_for(name, "alarm", kind="lease")["text"] for name in "ac"]
    members.wait(lambda: members.up["a"].reigns or members.up["b"].reigns, SOON_S, "those two to have a leader")

    assert all("counts a leader's lease as" in text and "give all the same --preset" in text for text in texts), texts
    assert all("8s" in text for text in texts), texts
    assert not members.up["c"].reigns


# Strangers


def test_members_with_another_secret_cluster_or_environment_are_told_so_and_counted(members: Cluster) -> None:
    members.start("a")
    members.wait_for("a", "ready")

    other = members.write_secret("other", new_secret())
    members.start("x", seeds=["a"], secret_file=other)
    members.wait_until_refused("a", "key", 0)
    members.start("y", "--cluster", "another", seeds=["a"])
    assert "is of cluster 'default', not of 'another'" in members.wait_for("y", "refused")["text"]
    members.start("z", "--environment", "staging", seeds=["a"])
    assert "is of environment 'default', not of 'staging'" in members.wait_for("z", "refused")["text"]

    counts = members.refused("a")
    assert all(counts[reason] >= 1 for reason in ("key", "cluster", "environment")), counts
    assert members.states("a") == {"a": "alive"}
    assert all(not life.view for life in members.up.values())
    wrong_key = members.ask("a", "members", secret_file=other)
    assert wrong_key.returncode == 7
    assert "does not know this secret" in wrong_key.stderr
    wrong_cluster = members.ask("a", "members", "--cluster", "another")
    assert wrong_cluster.returncode == 7
    assert "is of cluster 'default', not of 'another'" in wrong_cluster.stderr


def test_a_datagram_sent_again_is_refused_also_by_the_next_life_of_its_receiver(relayed_members: Cluster) -> None:
    cluster, relay = relayed_members, relayed_members.network
    assert isinstance(relay, Relay)
    cluster.start_all("ab")
    greeted = len(relay.recorded)  # who greets twice is answered twice

    def sent() -> list[Datagram]:
        return [each for each in relay.recorded[greeted:] if (each.source, each.target) == ("b", "a")]

    cluster.listen(3)
    cluster.wait(lambda: len(sent()) > 5, SOON_S, "b to send more than 5 datagrams to a")
    recorded = sent()

    def play() -> None:
        for datagram in recorded:
            relay.send_again(datagram)

    before = cluster.refused("a").get("replayed", 0)
    play()
    cluster.wait_until_refused("a", "replayed", before + len(recorded) - 1)

    # A new life of the receiver, which never saw them, while their sender lives.
    cluster.listen(PROOF_S + 1)
    cluster.kill("a")
    cluster.start("a", seeds=["b"])
    cluster.wait_until_all_agree()
    before = cluster.refused("a").get("replayed", 0)
    play()
    cluster.wait_until_refused("a", "replayed", before + len(recorded) - 1)

    # Nobody is left who could prove anything.
    cluster.kill("a", "b")
    cluster.start("a", data="a-anew")
    cluster.wait_for("a", "ready")
    admitted = cluster.metrics("a")[("talka_frames_admitted_total", "")]
    play()
    cluster.listen(1)
    metrics = cluster.metrics("a")
    # The two askers were asked to prove that they live; so was whoever sent the datagrams.
    assert metrics[("talka_challenges_total", "")] >= 3
    assert metrics[("talka_frames_admitted_total", "")] <= admitted + 2, "only what the askers sent"
    assert cluster.states("a") == {"a": "alive"}
    assert not cluster.up["a"].said("joined")


@pytest.mark.serial
def test_what_strangers_send_is_counted_and_takes_no_memory(members: Cluster) -> None:
    members.start_all("ab")
    process = psutil.Process(members.up["a"].process.pid)
    attack(members, "a", rounds=1)
    before = process.memory_info().rss

    attack(members, "a", rounds=5)
    after = process.memory_info().rss

    assert after - before < FLAT_BYTES, f"{before:,} bytes before, {after:,} after"
    counts = members.refused("a")
    assert all(counts.get(reason, 0) >= 5 for reason in ("bomb", "forged", "key", "short", "too-long")), counts
    members.wait_for_states("a", {"a": "alive", "b": "alive"})
    assert not members.said("lost")


def attack(cluster: Cluster, name: str, *, rounds: int) -> None:
    seal = Seal(Keyring.of((cluster.secret,)), int.from_bytes(os.urandom(7), "big"))
    good = hello(cluster.secret, "stranger")
    forged = good[:-1] + bytes([good[-1] ^ 1])
    unknown = hello(new_secret(), "stranger")
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((STRANGER, 0))
        for number in range(rounds):
            bomb = seal.seal(2 * number + 1, zipped(1_000_000))
            for size in (0, 1, 37, 38, 100, 1400, 9000) * 40:
                datagrams.sendto(os.urandom(size), address_of(cluster, name))
            for _ in range(50):
                datagrams.sendto(bomb, address_of(cluster, name))
                datagrams.sendto(forged, address_of(cluster, name))
                datagrams.sendto(unknown, address_of(cluster, name))
            large_bomb = seal.seal(2 * number + 2, zipped(15_000_000))
            for content in (
                framed(large_bomb),
                framed(forged),
                framed(unknown),
                framed(os.urandom(1000)),
                framed(b""),
                (FRAME_LIMIT_BYTES + 1).to_bytes(4, "big") + bytes(100_000),
                framed(hello(cluster.secret, "stranger")) + b"\xff\xff\xff\xff" + bytes(100_000),
                *(os.urandom(5000) for _ in range(20)),
            ):
                speak(cluster, name, content)
    wait_until_answered(cluster, name)


def send_rubbish(cluster: Cluster, name: str, *, datagrams: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        stranger.bind((STRANGER, 0))
        for _ in range(datagrams):
            stranger.sendto(os.urandom(100), address_of(cluster, name))


def speak(cluster: Cluster, name: str, content: bytes) -> None:
    """Say this over TCP and hear until the member hangs up, which it must."""
    with socket.create_connection(address_of(cluster, name), timeout=SOON_S) as stream:
        try:
            stream.sendall(content)
            while stream.recv(65_536):
                pass
        except ConnectionError:
            pass


def wait_until_answered(cluster: Cluster, name: str) -> None:
    """What was sent before is handled by then: the member reads all that waits before it answers."""
    assert cluster.states(name)[name] == "alive"


# Frames made by hand


def hello(secret: str, who: str) -> bytes:
    boot = int.from_bytes(os.urandom(7), "big")
    body = greeting.encode(
        GreetingHello(Self("default", "default", "manager", "1.0"), os.urandom(greeting.NONCE_BYTES))
    )
    packet = Packet(PROTOCOL, "default/default", who, boot, 1, greeting.CHANNEL.number, msgspec.Raw(body))
    return Seal(Keyring.of((secret,)), boot).seal(1, packed(encode_packet(packet)))


def zipped(size_bytes: int) -> bytes:
    """Compressed content, a thousandth as long as what it opens to."""
    return b"\x01" + zlib.compress(bytes(size_bytes), 9)


def address_of(cluster: Cluster, name: str) -> tuple[str, int]:
    host, _, port = cluster.place(name).bind.rpartition(":")
    return host, int(port)
