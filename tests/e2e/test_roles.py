"""What a stolen certificate of a worker or a client is good for: nothing that its role may not say."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from talka.clock import SECOND
from talka.testing.messages import PLAN
from talka.wire import asking, calls, jobs, leases
from talka.wire.asking import AddKey, Ask
from talka.wire.jobs import Account, Answer, Call, KeepBlob, Lead
from talka.wire.records import JobOrder, JobRecord, WorkflowOrder, encode_record
from talka.wire.roles import Role
from talka.wire.shards import Settings
from talka.work.lifecycle import JobState
from tests.e2e.cluster import new_secret
from tests.e2e.intruder import Intruder
from tests.e2e.job_cluster import JobCluster, job_cluster

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


def call(what: str, content: msgspec.Struct) -> Call:
    return Call(1, what, calls.encode(content))


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


async def attack(cluster: JobCluster, job: str, name: str, role: Role) -> dict[str, Any]:
    """Everything that an experiment once did."""
    async with intruder(cluster, name, role) as attacker:
        say = attacker.say
        for content in (
            call("order", calls.NameCall(job)),
            call("cancel", calls.CancelCall(job, "because")),
            call("drain", calls.NameCall("w1")),
            call("submit", calls.SubmitCall(an_order())),
            call("workers", calls.NameCall("")),
        ):
            say(jobs.CHANNEL, content)
        record = JobRecord(
            job="J-stolen", key="", order=an_order(), state=JobState.DISPATCHING, number=99, submitted_ms=1, owner="m1",
            fence=(0, 9, 9),
        )  # fmt: skip
        say(jobs.CHANNEL, Lead(encode_record(record)))
        say(jobs.CHANNEL, Account(job, (0, 1, 1), 99, "completed", b""))
        say(jobs.CHANNEL, KeepBlob("0" * 64, 0, 1, b"x"))
        say(leases.CHANNEL, leases.Command((0, 99, 1), 1, b""))
        key = await attacker.ask(asking.CHANNEL, Ask(7, AddKey(new_secret())), asking.Answer)
        await attacker.settle()
        cluster.hear(0)
        return {
            "heard": b"".join(msgspec.msgpack.encode(one) for one in attacker.heard if isinstance(one, Answer)),
            "answers": [one for one in attacker.heard if isinstance(one, Answer)],
            "key": key.problem if key is not None else "no answer",
        }
