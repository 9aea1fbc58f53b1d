"""What users, strangers and broken programs may send to a cluster: each gets a sentence, and the cluster goes on."""

import asyncio
import hashlib
import http.client
import io
import json
import signal
import stat
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import msgspec
import pytest

from talka.client.client import Client
from talka.client.ordering import OrderOptions, submission_of_file
from talka.client.requests import BUNDLE_LIMIT_BYTES
from talka.wire.orders import JobOrder
from tests.e2e.cluster import SOON_S

WORKFLOWS = Path(__file__).parent / "workflows"
PLAIN = WORKFLOWS / "plain.py"
WITHOUT_SERVER = """
from talka import *

class Quiet(Workflow):
    vus = 1
    iterations = 1
    @step()
    async def nothing(self) -> int:
        return 1
"""


@pytest.fixture
def quiet(tmp_path) -> Path:
    """A test that needs no server."""
    file = tmp_path / "quiet.py"
    file.write_text(WITHOUT_SERVER)
    return file


def asked(cluster, method: str, path: str, body: bytes = b"", name: str = "m1", **headers: str):
    """Status and what was answered, by one manager, without our client."""
    link = http.client.HTTPConnection(cluster.api(name), timeout=60)
    try:
        link.request(method, path, body or None, {key.replace("_", "-"): value for key, value in headers.items()})
        answer = link.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None
    finally:
        link.close()


def order_of(file: Path) -> JobOrder:
    return submission_of_file(str(file), [], OrderOptions()).order


def hand_made(file: Path, bundle: bytes) -> JobOrder:
    """The order of the file, with this for its bundle."""
    order = order_of(file)
    facts = msgspec.structs.replace(
        order.bundle, digest=hashlib.sha256(bundle).hexdigest(), size_bytes=len(bundle), signature=b""
    )
    return msgspec.structs.replace(order, bundle=facts)


def zipped(*entries: tuple[str, str, int]) -> bytes:
    """Name, content and kind of each."""
    stream = io.BytesIO()
    with ZipFile(stream, "w") as archive:
        for name, content, kind in entries:
            info = ZipInfo(name)
            info.external_attr = (kind | 0o600) << 16
            archive.writestr(info, content)
    return stream.getvalue()


def jobs(cluster) -> list[str]:
    return [job.id for job in cluster.client().jobs()]


# Jobs that are not there


@pytest.mark.parametrize("words", [("show",), ("cancel",), ("result",), ("watch",)], ids=lambda words: words[0])
def test_unknown_job_is_said_to_be_unknown(shared_jobs, words) -> None:
    ended = shared_jobs.talka("jobs", *words, "k7fw2xq9bd")
    assert ended.code == 2
    assert "there is no job k7fw2xq9bd" in ended.err
    assert "Traceback" not in ended.text


# Strangers


def test_worker_with_another_secret_is_told_why_it_is_not_let_in(shared_jobs) -> None:
    secret = shared_jobs.write_secret("other-secret", "another-secret-than-that-of-the-cluster")
    shared_jobs.start_worker("stranger", secret_file=secret)
    try:
        told = shared_jobs.wait_for("stranger", "searching")
        assert "same secret" in told["text"]
        assert not shared_jobs.up["stranger"].said("lease")
        assert "stranger" not in [worker.name for worker in shared_jobs.client().workers()]
    finally:
        shared_jobs.kill("stranger")
        shared_jobs.workers.remove("stranger")


def test_worker_of_another_cluster_is_told_why_it_is_not_let_in(shared_jobs) -> None:
    shared_jobs.start_worker("lost", "--cluster", "elsewhere")
    try:
        told = shared_jobs.wait_for("lost", "refused")
        assert "cluster" in told["text"]
        assert not shared_jobs.up["lost"].said("lease")
    finally:
        shared_jobs.kill("lost")
        shared_jobs.workers.remove("lost")


def test_certificate_of_a_client_makes_no_worker(shared_jobs) -> None:
    certs = shared_jobs.folder / "certs"
    assert shared_jobs.talka("certs", "init", str(certs)).code == 0
    issued = shared_jobs.talka("certs", "issue", str(certs), "--name", "w9", "--role", "client")
    assert issued.code == 0, issued.text
    ended = shared_jobs.talka(
        *("worker", "--name", "w9", "--seed", shared_jobs.place("m1").advertised, "--certs", str(certs)),
        *("--secret-file", str(shared_jobs.secret_file), "--data-dir", str(shared_jobs.data("w9")), "--json"),
    )
    assert ended.code == 2
    assert "'client'" in ended.err and "'worker'" in ended.err


def test_certificate_of_another_authority_opens_nothing(tmp_path, make_jobs) -> None:
    """The same names, roles and secret; only the authority is another one."""
    cluster = make_jobs(1, 0, start=False)
    for folder in ("ours", "theirs"):
        assert cluster.talka("certs", "init", str(tmp_path / folder)).code == 0
        for name, role in (("m1", "manager"), ("w1", "worker")):
            words = ("certs", "issue", str(tmp_path / folder), "--name", name, "--role", role, "--host", "127.0.0.1")
            assert cluster.talka(*words).code == 0
    cluster.start_manager("m1", "--certs", str(tmp_path / "ours"))
    cluster.wait_for_leader()
    cluster.start_worker("w1", "--certs", str(tmp_path / "theirs"))
    told = cluster.wait_for("w1", "refused")
    assert "authority" in told["text"]
    assert not cluster.up["w1"].said("lease")
    cluster.restart("w1", "--certs", str(tmp_path / "ours"))
    cluster.wait_for("w1", "lease")


def test_viewer_may_look_and_not_submit(tmp_path, make_jobs, quiet) -> None:
    key = tmp_path / "key"
    cluster = make_jobs(1, 0, start=False)
    assert cluster.talka("token", "key", "-o", str(key)).code == 0
    tokens = {}
    for role in ("viewer", "submitter"):
        tokens[role] = tmp_path / role
        words = ("token", "issue", "--key-file", str(key), "--role", role, "--name", "ada", "-o", str(tokens[role]))
        assert cluster.talka(*words).code == 0
    cluster.start_manager("m1", "--token-key-file", str(key))
    cluster.wait_for_leader()
    assert cluster.talka("jobs", "--token-file", str(tokens["viewer"])).code == 0
    refused = cluster.submit(quiet, "--token-file", str(tokens["viewer"]))
    assert refused.code == 7
    assert "a viewer may not" in refused.err and "submitter" in refused.err
    nobody = cluster.submit(quiet)
    assert nobody.code == 7
    assert "token" in nobody.err
    bearer = {"Authorization": f"Bearer {tokens['viewer'].read_text().strip()}", "Content-Type": "application/json"}
    status, problem = asked(cluster, "POST", "/v1/jobs", msgspec.json.encode(order_of(quiet)), **bearer)
    assert (status, problem["type"]) == (403, "urn:talka:problem:forbidden")
    listed = cluster.talka("jobs", "--json", "--token-file", str(tokens["viewer"]))
    assert json.loads(listed.out) == {"jobs": []}
    taken = cluster.talka("submit", str(quiet), "--detach", "--token-file", str(tokens["submitter"]))
    assert taken.code == 0, taken.text


# Bundles and orders


def test_oversized_bundle_is_refused_before_it_is_read(shared_jobs) -> None:
    link = http.client.HTTPConnection(shared_jobs.api("m1"), timeout=60)
    try:
        link.putrequest("PUT", f"/v1/bundles/{'0' * 64}")
        link.putheader("Content-Length", str(BUNDLE_LIMIT_BYTES + 1))
        link.endheaders(b"PK")
        answer = link.getresponse()
        assert answer.status == 413
        assert str(BUNDLE_LIMIT_BYTES) in json.loads(answer.read())["detail"]
    finally:
        link.close()


def test_bundle_that_is_not_what_its_name_says_is_refused(shared_jobs) -> None:
    status, problem = asked(shared_jobs, "PUT", f"/v1/bundles/{'0' * 64}", b"something else")
    assert (status, problem["type"]) == (422, "urn:talka:problem:wrong-digest")


@pytest.mark.parametrize(
    ("entry", "flaw"),
    [
        pytest.param(("passwd", "/etc/passwd", stat.S_IFLNK), "is a link", id="link"),
        pytest.param(("/tmp/evil.py", "1", stat.S_IFREG), "is an absolute path", id="absolute path"),
        pytest.param(("../evil.py", "1", stat.S_IFREG), "leads out of the bundle", id="way out"),
    ],
)
def test_hand_made_bundle_fails_its_job_and_nothing_else(shared_jobs, quiet, entry, flaw) -> None:
    bundle = zipped(("quiet.py", WITHOUT_SERVER, stat.S_IFREG), entry)

    async def submit() -> tuple[str, dict]:
        client = Client([shared_jobs.api("m2")])
        job = await client.submit(hand_made(quiet, bundle), bundle=bundle)
        return job.id, json.loads(await client.wait(job.id))

    job, document = asyncio.run(submit())
    facts = shared_jobs.client().job(job)
    assert (facts.state, facts.exit_code) == ("failed", 3)
    assert flaw in facts.reason
    assert flaw in document["reasons"][0]
    assert document["totals"]["requests"] == 0


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        pytest.param(b"{", (400,), id="no JSON"),
        pytest.param(b"\xff\xfe", (400,), id="no text"),
        pytest.param(b"[]", (422,), id="a list"),
        pytest.param(b"{}", (422,), id="nothing in it"),
        pytest.param(b"[" * 100_000, (400, 422), id="deep"),
    ],
)
def test_garbage_for_an_order_is_answered_with_a_sentence(shared_jobs, body, statuses) -> None:
    before = jobs(shared_jobs)
    status, problem = asked(shared_jobs, "POST", "/v1/jobs", body, Content_Type="application/json")
    assert status in statuses
    assert problem["detail"]
    assert jobs(shared_jobs) == before


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"workflows": ()}, "workflows"),
        ({"cores": -1}, "cores"),
        ({"priority": 99}, "priority"),
        ({"name": ""}, "name"),
    ],
    ids=["no workflow", "cores below 0", "priority above all", "no name"],
)
def test_order_that_cannot_be_carried_out_is_refused(shared_jobs, quiet, changes, word) -> None:
    before = jobs(shared_jobs)
    submission = submission_of_file(str(quiet), [], OrderOptions())
    order = msgspec.structs.replace(submission.order, **changes)
    status, _ = asked(shared_jobs, "PUT", f"/v1/bundles/{order.bundle.digest}", submission.bundle)
    assert status == 204
    status, problem = asked(
        shared_jobs, "POST", "/v1/jobs", msgspec.json.encode(order), Content_Type="application/json"
    )
    assert status == 422
    assert word in problem["detail"]
    assert jobs(shared_jobs) == before


def test_order_without_its_bundle_says_so(shared_jobs, quiet) -> None:
    order = hand_made(quiet, b"never sent")
    status, problem = asked(
        shared_jobs, "POST", "/v1/jobs", msgspec.json.encode(order), Content_Type="application/json"
    )
    assert (status, problem["type"]) == (409, "urn:talka:problem:bundle-missing")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("import numpy_of_mine\n", "numpy_of_mine", id="module"),
        pytest.param("import hypothesis\n", "hypothesis", id="installed module"),
        pytest.param("import os\nSECRET = os.environ['MY_SECRET']\n", "MY_SECRET", id="variable"),
        pytest.param("DATA = Feed.csv('nowhere.csv')\n", "nowhere.csv", id="file"),
    ],
)
def test_what_workers_would_miss_is_refused_before_anything_is_sent(shared_jobs, tmp_path, text, word) -> None:
    before = jobs(shared_jobs)
    file = tmp_path / "lacking.py"
    file.write_text(
        f"from talka import *\n{text}\nclass Lacking(Workflow):\n    vus = 1\n    iterations = 1\n"
        f"    {'users = DATA' if 'DATA' in text else 'pass'}\n"
        "    @step()\n    async def nothing(self) -> int:\n        return 1\n"
    )
    started = shared_jobs.start_submit(file, env={"MY_SECRET": "s3cret"})
    ended = started.ended()
    assert ended.code == 3, ended.text
    assert word in ended.err
    assert "s3cret" not in ended.text
    assert jobs(shared_jobs) == before


# Keys


def test_same_key_is_the_same_job_and_other_content_a_conflict(shared_jobs, quiet, tmp_path) -> None:
    first, second = (shared_jobs.talka("submit", str(quiet), "--detach", "--key", "nightly-7") for _ in range(2))
    assert first.code == second.code == 0, first.text + second.text
    assert first.out == second.out
    other = tmp_path / "other.py"
    other.write_text(WITHOUT_SERVER.replace("Quiet", "Other"))
    third = shared_jobs.talka("submit", str(other), "--detach", "--key", "nightly-7")
    assert third.code == 2
    assert "nightly-7" in third.err
    assert jobs(shared_jobs).count(first.out.strip()) == 1


# Ending early


def test_cancel_of_a_job_that_has_ended_changes_nothing(shared_jobs, quiet) -> None:
    ended = shared_jobs.submit(quiet)
    before = shared_jobs.client().job(ended.job)
    cancelled = shared_jobs.talka("jobs", "cancel", ended.job)
    assert cancelled.code == 0
    assert f"has ended: it is {before.state}" in cancelled.out
    assert shared_jobs.client().job(ended.job) == before


@pytest.mark.serial
def test_cancelled_job_keeps_what_it_measured(shared_jobs, job_server) -> None:
    before = job_server.count()
    started = shared_jobs.start_submit(PLAIN, "--rate", "100/s", "--for", "60s", "--grace", "2s")
    job = started.job()
    shared_jobs.wait_until_running(job, 2)
    shared_jobs.wait(lambda: job_server.count() > before + 50, SOON_S, "requests")
    assert shared_jobs.talka("jobs", "cancel", job, "--reason", "enough seen").code == 0
    ended = started.ended()
    assert ended.code == 8, ended.text
    document = ended.document()
    assert document["status"] == "cancelled"
    assert document["totals"]["requests"] == job_server.count() - before >= 50
    facts = shared_jobs.client().job(job)
    assert (facts.state, facts.exit_code, facts.cancel) == ("cancelled", 8, "enough seen")


@pytest.mark.serial
def test_interrupted_submit_cancels_its_job_and_still_reports(shared_jobs, job_server) -> None:
    before = job_server.count()
    started = shared_jobs.start_submit(PLAIN, "--rate", "100/s", "--for", "60s", "--grace", "2s")
    job = started.job()
    shared_jobs.wait(lambda: job_server.count() > before + 50, SOON_S, "requests")
    started.process.send_signal(signal.SIGINT)
    ended = started.ended()
    assert ended.code == 130, ended.text
    document = ended.document()
    assert document["status"] == "cancelled"
    assert document["totals"]["requests"] == job_server.count() - before
    assert "p99" in ended.out
    assert shared_jobs.client().job(job).state == "cancelled"


# Waiting


def test_job_that_wants_more_cores_than_there_are_waits_and_can_be_cancelled(shared_jobs) -> None:
    started = shared_jobs.start_submit(PLAIN, "--for", "1s", "--vus", "8", "--cores", "8")
    job = started.job()
    started.wait_for_text("waits for 8 cores: the pool has 2")
    facts = shared_jobs.client().job(job)
    assert (facts.state, facts.position) == ("queued", 1)
    assert shared_jobs.talka("jobs", "cancel", job).code == 0
    ended = started.ended()
    assert ended.code == 8, ended.text
    assert shared_jobs.client().job(job).state == "cancelled"


def test_job_without_workers_waits_with_the_reason_and_starts_when_one_comes(make_jobs, job_server) -> None:
    cluster = make_jobs(1, 0)
    before = job_server.count()
    started = cluster.start_submit(PLAIN, "--iterations", "50", "--vus", "2")
    started.wait_for_text("no workers")
    cluster.start_worker("w1")
    ended = started.ended()
    assert ended.code == 0, ended.text
    assert ended.document()["totals"]["requests"] == 50 == job_server.count() - before


# What the test prints


def test_what_a_test_prints_on_its_workers_reaches_its_submitter(shared_jobs, tmp_path) -> None:
    file = tmp_path / "chatty.py"
    file.write_text(
        "import logging, os\n"
        "from talka import URL, HTTPResponse, Workflow, setup, step, teardown\n"
        "class Chatty(Workflow):\n"
        "    vus = 2\n"
        "    duration = '3s'\n"
        "    think = '0.5s'\n"
        "    @setup()\n"
        "    def begin(self): print('set up here')\n"
        "    @step()\n"
        "    async def get(self, url: URL = os.environ['TARGET'] + '/') -> HTTPResponse:\n"
        "        logging.warning('a warning of the step')\n"
        "        return await self.client.http.get(url)\n"
    )
    ended = shared_jobs.submit(file, "--logs", "--env", "TARGET")
    assert ended.code == 0, ended.text
    lines = ended.err.splitlines()
    setups = {line for line in lines if line.endswith(": set up here")}
    assert setups == {"w1: set up here", "w2: set up here"}
    assert sum(line.endswith("WARNING:root:a warning of the step") for line in lines) >= 4
