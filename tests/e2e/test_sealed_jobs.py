"""Signed bundles and sealed variables on processes with certificates: the job runs, and nobody else has its values."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from talka.store.files.signing_key import NAME
from talka.wire import jobs
from talka.wire.manager_calls import CallAnswer, GetOrder, ManagerCall
from talka.wire.security.access import own
from talka.wire.security.roles import Role
from tests.e2e.intruder import Intruder
from tests.e2e.job_cluster import JobCluster, job_cluster

MARKER = "swordfish-5a17c0de"
TEST = """
import os

from talka import CustomResponse, Workflow, step

VALUE = os.environ["SHOP_TOKEN"]

class Shop(Workflow):
    @step()
    async def go(self) -> CustomResponse[int]:
        assert VALUE == "-".join(["swordfish", "5a17c0de"])
        return CustomResponse(1)
"""


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[JobCluster]:
    """A manager and a worker, with certificates."""
    certs = tmp_path / "certs"
    options = ("--certs", str(certs))
    with job_cluster(tmp_path, 1, 1, start=False, manager_options=options, worker_options=options) as cluster:
        assert cluster.talka("certs", "init", str(certs)).code == 0
        for name, role in (("m1", "manager"), ("w1", "worker"), ("operator", "manager"), ("client", "client")):
            words = ("certs", "issue", str(certs), "--name", name, "--role", role, "--host", "127.0.0.1")
            assert cluster.talka(*words).code == 0
        yield cluster.start_nodes()


async def order_of(cluster: JobCluster, job: str) -> bytes:
    """What the node port answers to one with a manager's certificate, whose questions count."""
    place, certs = cluster.place("m1").advertised, cluster.folder / "certs"
    who = Intruder(place, secret=cluster.secret, certs=certs, name="operator", role=Role.MANAGER)
    async with who:
        answer = await who.ask(
            jobs.CHANNEL.number,
            ManagerCall(1, GetOrder(job), own("order")),
            CallAnswer,
        )
    assert answer is not None and answer.problem == "", "it was not answered, and that proves nothing"
    return jobs.encode(answer)


@pytest.mark.timeout(180)
def test_a_job_with_variables_runs_and_no_command_node_or_file_of_a_worker_has_their_values(
    certified: JobCluster, tmp_path: Path
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(TEST)
    api = ("--to", f"https://{certified.to}", "--ca", str(certified.folder / "certs" / "ca.crt"))
    submit = ("submit", str(file), "--iterations", "1", "--ui", "ci", "--env", "SHOP_TOKEN", *api)
    ended = certified.start_talka(*submit, env={"SHOP_TOKEN": MARKER}).ended()
    assert ended.code == 0, ended.text

    told = {"submit": ended.text, "order": asyncio.run(order_of(certified, ended.job)).decode(errors="replace")}
    assert "SHOP_TOKEN" in told["order"], "names are shown"
    for words in (
        ("jobs", "list", "--json"),
        ("jobs", "show", ended.job, "--json"),
        ("jobs", "result", ended.job),
        ("jobs", "logs", ended.job),
        ("workers", "--json"),
    ):
        asked = certified.talka(*words, *api)
        assert asked.code == 0, asked.text
        told[" ".join(words)] = asked.text
    told["metrics"] = str(certified.metrics("m1", "--certs", str(certified.folder / "certs")))
    for name, life in certified.up.items():
        told[name] = json.dumps(life.events) + life.errors.read_text()
    told["audit.log"] = (certified.data("m1") / "audit.log").read_text()
    for path in certified.data("w1").rglob("*"):
        if path.is_file():
            told[str(path)] = path.read_bytes().decode(errors="replace")
    assert [what for what, text in told.items() if MARKER in text] == []

    assert (certified.data("m1") / NAME).stat().st_mode & 0o777 == 0o600
    assert not any(path.name == NAME for path in certified.data("w1").rglob("*")), "a worker cannot sign"
