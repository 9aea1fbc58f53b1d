"""`talka cluster …` asks real members: tables for people, JSON for programs, and a sentence when nobody answers."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from talka.cli.main import run_command
from talka.cli.nodes.cluster import cores_of, note_of
from talka.control.member.admin_queries import MemberFacts
from talka.net.discovery import Candidates
from talka.wire.versions import VERSION
from tests.node_process import NodeProcess, nodes

LIMIT_S = 60.0
SECRET = "vQ8d0sLk3mZx7Yp2Rt5Wn9Bc4Hf6Jg1A"
OTHER_SECRET = "pL2k9Vb7Xs4Qw1Zr8Mn5Td3Jh6Gy0Fcd"
THIRD_SECRET = "kD7wRq2Nf9Xb4Vm8Zt1Ly6Hs3Pj5Gc0e"


class Cluster(NamedTuple):
    folder: Path
    addresses: dict[str, str]


Start = Callable[..., NodeProcess]


def member(start: Start, folder: Path, name: str, *more: str) -> NodeProcess:
    (folder / "secret").write_text(SECRET + "\n")
    (folder / "secret").chmod(0o600)
    return start(
        *("member", "--name", name, "--bind", "127.0.0.1:0", "--preset", "fast"),
        *("--secret-file", str(folder / "secret"), "--data-dir", str(folder / name), "--json", *more),
    )


def two_members(start: Start, folder: Path) -> tuple[NodeProcess, NodeProcess, Cluster]:
    """`a` leads, `b` has no vote."""
    a = member(start, folder, "a", "--voters", "a", "--datacenter", "north")
    addresses = {"a": a.until("ready")["address"]}
    b = member(start, folder, "b", "--seed", addresses["a"])
    addresses["b"] = b.until("ready")["address"]
    b.until("joined", name="a")
    a.until("elected")
    return a, b, Cluster(folder, addresses)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nobody changes it."""
    with nodes() as start:
        *_, made = two_members(start, tmp_path_factory.mktemp("cluster"))
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    with nodes() as start:
        yield start


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def ask(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Asks `a` with the right secret, unless told otherwise."""
    monkeypatch.delenv("TALKA_SECRET_FILE", raising=False)

    def run(of: Cluster, what: str, *more: str, to: str = "a") -> Done:
        where = ["--to", of.addresses.get(to, to), "--secret-file", str(of.folder / "secret")]
        code = run_command(["cluster", what, *where, *more])
        return Done(code, *capsys.readouterr())

    return run


def once(holds: Callable[[Done], bool], look: Callable[[], Done]) -> Done:
    """What is answered once this holds. On a busy machine a member is suspected, and steps down, for a moment."""
    give_up_at = time.monotonic() + LIMIT_S
    while not holds(answer := look()):
        assert time.monotonic() < give_up_at, answer
    return answer


def are_alive(answer: Done) -> bool:
    return answer.out.count(" alive ") == 2


def rows_of(answer: Done) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in answer.out.splitlines())


# Answers.


def test_members_as_a_table(cluster: Cluster, ask) -> None:
    code, out, err = once(are_alive, lambda: ask(cluster, "members"))
    assert (code, err) == (0, "")
    heading, a, b = [line.split() for line in out.splitlines()]
    assert heading == ["NAME", "STATE", "ADDRESS", "ROLE", "DATACENTER", "PROTOCOL", "NOTE"]
    assert a == ["a", "alive", cluster.addresses["a"], "manager", "north", str(VERSION), "answers", "here"]
    assert b == ["b", "alive", cluster.addresses["b"], "manager", str(VERSION)]


def test_members_as_json(cluster: Cluster, ask) -> None:
    code, out, err = once(
        lambda answer: all(member["state"] == "alive" for member in json.loads(answer.out)),
        lambda: ask(cluster, "members", "--json", to="b"),
    )
    members = json.loads(out)
    assert (code, err) == (0, "") and [member["name"] for member in members] == ["a", "b"]
    for member in members:
        assert member["state"] == "alive" and member["address"] == cluster.addresses[member["name"]]
        assert int(member["boot"]) >= 0 and member["incarnation"] >= 0
        assert member["self"] is (member["name"] == "b")


def test_how_a_member_or_worker_does_is_in_its_note() -> None:
    well = MemberFacts("m1", "alive", "", "1", 0, self=True, overload="normal", health="normal")
    late = MemberFacts(
        "w1", "degraded", "", "1", 0, role="worker", cores=8, free=3, cpu_percent=90, memory_percent=40,
        overload="busy", health="critical", decision="hold", why="it handles everything late",
    )  # fmt: skip
    lost = MemberFacts("m2", "dead", "", "1", 0, decision="evict")

    assert [(cores_of(one), note_of(one)) for one in (well, late, lost)] == [
        ("", "answers here"),
        ("3 of 8 free", "hold: it handles everything late, CPU 90 %, memory 40 %, busy, health critical"),
        ("", "evict"),
    ]


def test_of_a_name_with_several_addresses_the_one_that_listens_is_asked(
    cluster: Cluster, ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(candidates: Candidates, now: int) -> list[str]:
        return ["127.0.0.1:1", cluster.addresses["a"]]

    monkeypatch.setattr(Candidates, "resolve", resolve)
    assert ask(cluster, "leader", to="members.example:8472").code == 0


def test_leader(cluster: Cluster, ask) -> None:
    answer = once(lambda answer: "none known" not in answer.out, lambda: ask(cluster, "leader"))
    rows = rows_of(answer)
    assert answer.code == 0 and (rows["leader"], rows["voters"]) == ("a", "a")
    assert rows["token"].split(".")[1] == rows["term"] and int(rows["term"]) >= 1
    code, out, _ = once(lambda answer: json.loads(answer.out)["leader"], lambda: ask(cluster, "leader", "--json"))
    facts = json.loads(out)
    assert code == 0 and facts["leader"] == "a" and facts["token"][1] == facts["term"] >= int(rows["term"])


def test_leader_asked_of_one_without_a_vote(cluster: Cluster, ask) -> None:
    def is_the_leaders_word(answer: Done) -> bool:
        return [rows_of(answer)[word] for word in ("leader", "term")] == [
            rows_of(ask(cluster, "leader"))[word] for word in ("leader", "term")
        ] and "none known" not in answer.out

    answer = once(is_the_leaders_word, lambda: ask(cluster, "leader", to="b"))
    assert answer.code == 0 and rows_of(answer)["leader"] == "a"
    assert rows_of(answer)["asked"] == "no voter: it was told so by others"


def test_audit_of_a_quiet_cluster(start: Start, ask, folder: Path) -> None:
    alone = member(start, folder, "a")  # of two, on a busy machine, one may have been accused
    quiet = Cluster(folder, {"a": alone.until("ready")["address"]})
    assert ask(quiet, "audit") == (0, "", "no member was accused yet\n")
    code, out, _ = ask(quiet, "audit", "--json")
    assert (code, json.loads(out)) == (0, [])


def test_keys(cluster: Cluster, ask) -> None:
    code, out, _ = ask(cluster, "keys")
    heading, row = out.splitlines()
    assert code == 0 and heading.split() == ["KEY", "USE"] and re.fullmatch(r"[0-9a-f]{8}  seals and opens", row)
    code, out, _ = ask(cluster, "keys", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["keys"] == [{"id": row[:8], "is_primary": True}]
    assert SECRET not in out


def test_metrics_are_what_prometheus_reads(cluster: Cluster, ask) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    def families_in(answer: Done) -> dict[str, Any]:
        return {family.name: family for family in text_string_to_metric_families(answer.out)}

    def is_as_usual(answer: Done) -> bool:
        families = families_in(answer)
        alive = [sample.value for sample in families["talka_members"].samples if sample.labels["state"] == "alive"]
        others = [families[name].samples[0].value for name in ("talka_is_leader", "talka_datagrams_received")]
        return alive == [2] and all(others)

    answer = once(is_as_usual, lambda: ask(cluster, "metrics"))
    families = families_in(answer)
    assert answer.code == 0
    states = {sample.labels["state"]: sample.value for sample in families["talka_members"].samples}
    assert states == {"alive": 2, "suspect": 0, "dead": 0, "left": 0}
    assert families["talka_is_leader"].samples[0].value == 1
    assert families["talka_datagrams_received"].samples[0].value > 0
    assert 0 < families["talka_process_resident_memory_bytes"].samples[0].value < 100e6
    assert all(family.documentation for family in families.values())


def test_member_is_asked_under_its_name(cluster: Cluster, ask) -> None:
    port = cluster.addresses["a"].rpartition(":")[2]
    assert ask(cluster, "members", to=f"localhost:{port}").code == 0


def test_secret_file_may_come_from_the_environment(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALKA_SECRET_FILE", str(cluster.folder / "secret"))
    assert run_command(["cluster", "members", "--to", cluster.addresses["a"]]) == 0
    assert "alive" in capsys.readouterr().out


# Changing keys, and a death.


def test_keys_are_rotated_and_retired_and_a_death_is_in_the_audit(start: Start, ask, folder: Path) -> None:
    a, b, cluster = two_members(start, folder)
    (folder / "new").write_text(OTHER_SECRET + "\n")
    code, out, err = ask(cluster, "keys", "--rotate", "new")
    assert code == 0, err
    old, new = sorted(line.split(maxsplit=1) for line in out.splitlines()[1:])
    if old[1] != "opens":
        old, new = new, old
    assert (old[1], new[1]) == ("opens", "seals and opens")
    (folder / "secret").write_text(OTHER_SECRET + "\n")
    code, out, err = ask(cluster, "keys", "--retire", new[0])
    assert code == 2 and "is the primary one" in err
    once(
        lambda answer: json.loads(answer.out)["unconfirmed"] == [],
        lambda: ask(cluster, "keys", "--json", to="b"),
    )
    code, out, err = ask(cluster, "keys", "--retire", old[0], "--json", to="b")
    assert code == 0, err
    assert [key["id"] for key in json.loads(out)["keys"]] == [new[0]]
    a.until("keys", keys=new[0])
    (folder / "old").write_text(SECRET + "\n")
    code, _, err = ask(cluster, "members", "--secret-file", "old")
    assert code == 7 and "does not know this secret" in err

    b.close()
    once(
        lambda answer: json.loads(answer.out)[1]["state"] == "dead",
        lambda: ask(cluster, "members", "--json"),
    )
    a.until("lost", name="b")
    code, out, _ = ask(cluster, "audit")
    assert code == 0 and out.split()[:5] == ["AGO", "MEMBER", "VERDICT", "BY", "REASON"]
    assert "a (own timer)" in out.splitlines()[-1]
    verdicts = json.loads(ask(cluster, "audit", "--json").out)
    # Before, on a busy machine, each may have waited for the other for a while.
    assert [verdict["verdict"] for verdict in verdicts[-2:]] == ["suspect", "dead"]
    assert {verdict["subject"] for verdict in verdicts[-2:]} == {"b"}
    dead = json.loads(ask(cluster, "members", "--json").out)[1]
    assert (dead["name"], dead["state"], dead["accuser"]) == ("b", "dead", "a") and dead["reason"]
    assert f"a: {dead['reason']}" in ask(cluster, "members").out


# Nobody answers.


def test_nobody_is_there(cluster: Cluster, ask) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{sock.getsockname()[1]}"  # bound: nobody else can take it, and it refuses
        code, out, err = ask(cluster, "members", to=nobody)
    assert (code, out) == (7, "") and err.startswith(f"nobody listens at {nobody}: is the node running")


@pytest.mark.parametrize(("lease", "said"), [("abc", "is not a duration"), ("3ms", "write 500ms to 1m")])
def test_a_lease_that_cannot_be_is_told_before_anybody_is_asked(cluster: Cluster, ask, lease: str, said: str) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        code, out, err = ask(cluster, "lease", lease, to=f"127.0.0.1:{sock.getsockname()[1]}")
    assert (code, out) == (2, "") and "the lease" in err and said in err


def test_one_that_never_answers(cluster: Cluster, ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code, out, err = ask(cluster, "members", "--timeout", "0.2", to=address)
    assert (code, out, err) == (7, "", f"{address} did not answer within 0.2 s\n")


def test_wrong_secret(cluster: Cluster, ask, folder: Path) -> None:
    (folder / "other").write_text(OTHER_SECRET + "\n")
    code, out, err = ask(cluster, "members", "--secret-file", "other")
    assert (code, out) == (7, "") and "it does not know this secret (key " in err and OTHER_SECRET not in err


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--cluster", "'a' is of cluster 'default', not of 'elsewhere'"),
        ("--environment", "'a' is of environment 'default', not of 'elsewhere'"),
    ],
)
def test_wrong_group(cluster: Cluster, ask, option: str, sentence: str) -> None:
    code, out, err = ask(cluster, "leader", option, "elsewhere")
    assert (code, out) == (7, "")
    assert err == f"{cluster.addresses['a']} refuses this client: {sentence}\n"


def test_name_that_nobody_knows(cluster: Cluster, ask) -> None:
    code, out, err = ask(cluster, "members", to="no-such-host.invalid:1")
    assert (code, out) == (7, "") and "no-such-host.invalid" in err


# Wrong command lines.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["members"], ["--to", "talka cluster members --help"]),
        (["members", "--to", "127.0.0.1"], ["has no port"]),
        (["members", "--to", "127.0.0.1:0"], ["no usable port"]),
        (["members", "--to", "127.0.0.1:1"], ["--secret-file FILE", "TALKA_SECRET_FILE"]),
        (["members", "--to", "127.0.0.1:1", "--secret-file", "none"], ["none cannot be read"]),
        (["members", "--to", "127.0.0.1:1", "--secret-file", "short"], ["short line 1: the secret cannot be used"]),
        (
            ["members", "--to", "127.0.0.1:1", "--secret-file", "good", "--cluster", "a/b"],
            ["cluster 'a/b' is not an id"],
        ),
        (
            ["members", "--to", "127.0.0.1:1", "--secret-file", "good", "--environment", ""],
            ["environment '' is not an id"],
        ),
        (["members", "--to", "127.0.0.1:1", "--secret-file", "good", "--name", "a b"], ["name 'a b' is not an id"]),
        (["members", "--to", "127.0.0.1:1", "--secret-file", "good", "--timeout", "0"], ["--timeout"]),
        (["members", "--to", "127.0.0.1:1", "--secret-file", "good", "--timeout", "nan"], ["--timeout", "nan"]),
        (
            ["members", "--to", "127.0.0.1:1", "--secret-file", "good", "--certs", "none"],
            ["not a folder of certificates"],
        ),
        (
            ["keys", "--to", "127.0.0.1:1", "--add", "good", "--use", "1"],
            ["one of --rotate, --add, --use, --retire and --repair"],
        ),
        (["keys", "--to", "127.0.0.1:1", "--force"], ["--force goes with --retire"]),
        (["keys", "--to", "127.0.0.1:1", "--secret-file", "good", "--rotate", "two"], ["two has 2 secrets"]),
        (["keys", "--to", "127.0.0.1:1", "--secret-file", "good", "--add", "none"], ["none cannot be read"]),
        (["memebrs"], ["memebrs", "members"]),
    ],
)
def test_wrong_command_line(
    arguments: list[str],
    words: list[str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TALKA_SECRET_FILE", raising=False)
    (folder / "good").write_text(SECRET + "\n")
    (folder / "short").write_text("short\n")
    (folder / "two").write_text(f"{OTHER_SECRET}\n{THIRD_SECRET}\n")
    assert run_command(["cluster", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) <= 2
    assert all(word in printed.err for word in words), printed.err


def test_use_and_retire_of_a_key_nobody_has(cluster: Cluster, ask) -> None:
    for option in ("--use", "--retire"):
        code, out, err = ask(cluster, "keys", option, "00000000")
        assert (code, out) == (2, "") and "there is no key '00000000' in use" in err


def test_weak_secret_is_not_added(cluster: Cluster, ask, folder: Path) -> None:
    (folder / "weak").write_text("a" * 40 + "\n")
    code, out, err = ask(cluster, "keys", "--add", "weak")
    assert (code, out) == (2, "") and "the secret cannot be used" in err
