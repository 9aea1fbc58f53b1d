"""What a stolen certificate of a worker or a client is good for: nothing that its role may not say."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talka.units import SECOND
from talka.wire import asking, jobs, leases
from talka.wire.asking import AddKey, Ask
from talka.wire.entries import JobEntry, encode_entry
from talka.wire.jobs import KeepBlob, Lead, Piece, StoreCheckpoint, WantBlob
from talka.wire.manager_calls import (
    CallAnswer,
    CancelJob,
    DrainWorker,
    GetOrder,
    LeaderCall,
    ListWorkers,
    ManagerCall,
    SubmitJob,
)
from talka.wire.orders import JobOrder, WorkflowOrder
from talka.wire.security.access import Asker
from talka.wire.security.keys import key_id
from talka.wire.security.roles import Role
from talka.wire.shards import Settings
from talka.work.lifecycle import JobState
from tests.e2e.cluster import SOON_S, new_secret
from tests.e2e.intruder import Intruder
from tests.e2e.job_cluster import JobCluster, job_cluster
from tests.sim.sampler import PLAN

HUSH = "hush-4711"
TEST = """
import asyncio
import os
from talka import CustomResponse, Workflow, step

VALUE = os.environ["HUSH"]

class Long(Workflow):
    @step()
    async def idle(self) -> CustomResponse:
        return await self.client.custom.call(asyncio.sleep(0.05))
"""


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobCluster]:
    """A manager and a worker with certificates, which run a job; and the certificates of two who will misuse theirs."""
    folder = tmp_path_factory.mktemp("roles")
    certs = folder / "certs"
    options = ("--certs", str(certs))
    with job_cluster(folder, 1, 1, start=False, manager_options=options, worker_options=options) as cluster:
        assert cluster.talka("certs", "init", str(certs)).code == 0
        for name, role in (
            ("m1", "manager"),
            ("w1", "worker"),
            ("w2", "worker"),
            ("client", "client"),
            ("operator", "manager"),
        ):
            words = ("certs", "issue", str(certs), "--name", name, "--role", role, "--host", "127.0.0.1")
            assert cluster.talka(*words).code == 0
        cluster.start_nodes()
        yield cluster


@pytest.fixture(scope="module")
def job(certified: JobCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("test") / "long.py"
    file.write_text(TEST)
    words = (str(file), "--vus", "1", "--duration", "10m", "--env", "HUSH", "--detach")
    ended = certified.start_talka("submit", *words, *api(certified), env={"HUSH": HUSH}).ended()
    assert ended.code == 0, ended.text
    found = ended.out.strip()
    certified.wait_until_running(found)
    return found


def api(cluster: JobCluster) -> tuple[str, ...]:
    return ("--to", f"https://{cluster.to}", "--ca", str(cluster.folder / "certs" / "ca.crt"))


def asked(cluster: JobCluster, what: str) -> Any:
    ended = cluster.talka(what, "--json", *api(cluster))
    assert ended.code == 0, ended.text
    return json.loads(ended.out)[what]


def intruder(cluster: JobCluster, name: str, role: Role) -> Intruder:
    place = cluster.place("m1").advertised
    return Intruder(place, secret=cluster.secret, certs=cluster.folder / "certs", name=name, role=role)


def call(asked: LeaderCall) -> ManagerCall:
    return ManagerCall(1, asked)


def an_order() -> JobOrder:
    """Of a submitted test, as somebody without a token would hand it in for another."""
    bundle = jobs.BundleFacts("0" * 64, 1, b"", "", url="http://127.0.0.1:9/")
    flow = WorkflowOrder("Stolen", PLAN, "auto", True, (), 60 * SECOND, (), (), "1 VU", ())
    return JobOrder("stolen", bundle, (flow,), Settings(SECOND), submitted_by="ada")


ATTACKERS = [("w2", Role.WORKER), ("client", Role.CLIENT)]


@pytest.mark.parametrize(("name", "role"), ATTACKERS, ids=["worker", "client"])
def test_with_such_a_certificate_and_the_secret_nothing_is_changed_and_no_order_read(
    certified: JobCluster, job: str, name: str, role: Role
) -> None:
    refused = certified.refused("m1", "--certs", str(certified.folder / "certs")).get("role", 0)
    found = asyncio.run(attack(certified, job, name, role))
    assert HUSH.encode() not in found["heard"], "the values of --env were answered"
    assert found["answers"] == [], "somebody answered a call"
    assert found["key"] != "", "the key was taken"
    assert [one["state"] for one in asked(certified, "jobs")] == ["running"], "a job was cancelled or submitted"
    assert [worker["state"] for worker in asked(certified, "workers")] == ["healthy"], "the worker was drained"
    keys = certified.told("m1", "keys", "--certs", str(certified.folder / "certs"))
    assert len(keys["keys"]) == 1, "a key was added"
    metrics = certified.metrics("m1", "--certs", str(certified.folder / "certs"))
    assert metrics["talka_jobs_led", ""] == 1, "a job was led that nobody submitted"
    assert certified.refused("m1", "--certs", str(certified.folder / "certs")).get("role", 0) - refused >= 9
    assert [line["who"] for line in audit_lines(certified, "m1", "node: Lead") if line["role"] == role] == [name]
    assert certified.said("refused", reason="role", name=name, message="CancelJob")


async def attack(cluster: JobCluster, job: str, name: str, role: Role) -> dict[str, Any]:
    """Everything that an experiment once did."""
    async with intruder(cluster, name, role) as attacker:
        say = attacker.say
        for content in (
            call(GetOrder(job)),
            call(CancelJob(job, "because")),
            call(DrainWorker("w1")),
            call(SubmitJob(an_order())),
            call(ListWorkers()),
        ):
            say(jobs.CHANNEL.number, content)
        record = JobEntry(
            job="J-stolen", key="", order=an_order(), state=JobState.DISPATCHING, number=99, submitted_ms=1, owner="m1",
            fence=(0, 9, 9),
        )  # fmt: skip
        say(jobs.CHANNEL.number, Lead(encode_entry(record)))
        say(jobs.CHANNEL.number, StoreCheckpoint(job, (0, 1, 1), 99, "completed", b""))
        say(jobs.CHANNEL.number, KeepBlob("0" * 64, 0, 1, b"x"))
        say(leases.CHANNEL.number, leases.LeaseCommand((0, 99, 1), 1, b""))
        key = await attacker.ask(asking.CHANNEL.number, Ask(7, AddKey(new_secret())), asking.AskAnswer)
        await attacker.settle()
        cluster.hear(0)
        return {
            "heard": b"".join(msgspec.msgpack.encode(one) for one in attacker.heard if isinstance(one, CallAnswer)),
            "answers": [one for one in attacker.heard if isinstance(one, CallAnswer)],
            "key": key.problem if key is not None else "no answer",
        }


def test_manager_that_passes_on_what_nobody_may_or_nobody_asked_is_refused(certified: JobCluster, job: str) -> None:
    """Also a manager's word goes through the table of users' roles."""

    async def ask_all() -> list[str]:
        problems = []
        async with intruder(certified, "operator", Role.MANAGER) as other:
            for number, asker in enumerate((None, Asker("cancel", "viewer", "eve"), Asker("jobs", "admin", "eve")), 1):
                asked = ManagerCall(number, CancelJob(job, "because"), asker)
                answer = await other.ask(jobs.CHANNEL.number, asked, CallAnswer)
                problems.append(f"{answer.problem}: {answer.text}")
        return problems

    assert asyncio.run(ask_all()) == [
        "invalid: 'cancel' was passed on without who asked for it: the manager that did is of an earlier version",
        "forbidden: a viewer may not ask for 'cancel': that takes the role submitter",
        "forbidden: nobody may ask for 'cancel' by 'jobs'",
    ]
    assert [one["state"] for one in asked(certified, "jobs")] == ["running"]
    lines = audit_lines(certified, "m1", "cancel")
    assert [line["status"] for line in lines] == [403, 403, 403]
    assert [line.get("who", "") for line in lines] == ["", "eve", "eve"]
    assert all("manager operator" in line["source"] for line in lines)


def audit_lines(cluster: JobCluster, manager: str, what: str) -> list[dict[str, Any]]:
    file = cluster.data(manager) / "audit.log"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if line["what"] == what]


def test_worker_gets_no_bundle_of_others_and_no_result(certified: JobCluster, job: str) -> None:
    """w2 has a certificate and works for nobody."""
    digest = bundle_of(certified, job)

    async def fetch(name: str, role: Role) -> Piece:
        async with intruder(certified, name, role) as other:
            found = await other.ask(jobs.CHANNEL.number, WantBlob(digest, 0), Piece)
            assert isinstance(found, Piece)
            return found

    assert asyncio.run(fetch("operator", Role.MANAGER)).data, "it is there"
    refused = asyncio.run(fetch("w2", Role.WORKER))
    assert (refused.size_bytes, refused.data) == (0, b"")


def bundle_of(cluster: JobCluster, job: str) -> str:
    found = cluster.talka("jobs", "show", job, "--json", *api(cluster))
    assert found.code == 0
    [digest] = [path.name for path in (cluster.data("m1") / "blobs").rglob("*") if path.is_file()]
    return digest


def test_keys_are_changed_with_the_certificate_of_a_manager_and_no_other(certified: JobCluster) -> None:
    """As an operator does it: with a certificate of its own that says manager."""
    certs = ("--certs", str(certified.folder / "certs"))
    fresh = new_secret()
    file = certified.write_secret("new-secret", fresh)
    refused = certified.ask("m1", "keys", "--add", str(file), *certs)
    assert refused.returncode != 0
    assert "a client may not change keys" in refused.stderr and "--role manager" in refused.stderr
    assert len(certified.told("m1", "keys", *certs)["keys"]) == 1
    keys = certified.told("m1", "keys", "--add", str(file), *certs, "--name", "operator")
    assert len(keys["keys"]) == 2
    [line] = audit_lines(certified, "m1", "keys: add")
    assert (line["who"], line["role"], line["status"]) == ("operator", "manager", 200)
    assert line["job"] == key_id(fresh) and fresh not in json.dumps(line)


def test_change_through_another_manager_is_in_the_audit_log_of_the_leader(make_jobs: Any, tmp_path: Path) -> None:
    key, token = tmp_path / "key", tmp_path / "ada.token"
    cluster = make_jobs(3, 1, start=False, manager_options=("--token-key-file", str(key)))
    assert cluster.talka("token", "key", "-o", str(key)).code == 0
    issue = ("token", "issue", "--key-file", str(key), "--role", "operator", "--name", "ada", "-o", str(token))
    assert cluster.talka(*issue).code == 0
    cluster.start_nodes()
    leader = cluster.wait_for_leader()
    other = next(name for name in cluster.managers if name != leader)
    words = ("workers", "drain", "w1", "--to", cluster.api(other), "--token-file", str(token))
    ended = cluster.talka(*words)
    assert ended.code == 0, ended.text
    cluster.wait(lambda: audit_lines(cluster, leader, "drain"), SOON_S, "a line in the leader's audit log")
    [line] = audit_lines(cluster, leader, "drain")
    assert (line["who"], line["role"], line["job"], line["status"]) == ("ada", "operator", "w1", 202)
    assert line["source"] == f"127.0.0.1 by manager {other}"
    assert [line["status"] for line in audit_lines(cluster, other, "drain")] == [200], "and in its own"
