"""What users get wrong, and what strangers try: each is answered with a sentence, and nothing is harmed."""

import http.client
import json
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from talka.cli.nodes.token import read_keys
from talka.web.auth import Tokens
from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import UP, DagCluster, dag_cluster

MEGABYTE = 1 << 20
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagCluster]:
    with dag_cluster(tmp_path_factory.mktemp("input"), cores=1, is_up=True) as cluster:
        yield cluster


# Files

GOOD = """\
name: good
tasks:
  - id: one
    handler: mark
  - id: two
    handler: mark
    depends_on: [one]
"""


GOOD_JSON = """\
{
  "name": "good",
  "tasks": [
    {"id": "one", "handler": "mark"},
    {"id": "two", "handler": "mark", "depends_on": ["one"]}
  ]
}
"""
GOOD_PYTHON = """\
from talka import Dag

dag = Dag("good")
one = dag.task("one", "mark")
two = dag.task("two", "mark", after=[one])
"""
BROKEN = {
    "empty": ("yaml", "", 1, "is empty"),
    "no YAML": ("yaml", "name: [\n", 2, "this is not YAML"),
    "unknown field": ("yaml", GOOD.replace("handler: mark\n  - id: two", "handlr: mark\n  - id: two"), 4, "handlr"),
    "no such dependency": ("yaml", GOOD.replace("[one]", "[ome]"), 7, "depends on ome, but there is no such task"),
    "depends on itself": ("yaml", GOOD.replace("[one]", "[two]"), 7, "depends on itself"),
    "cycle": ("yaml", GOOD.replace("    handler: mark\n  - id: two", "    handler: mark\n    depends_on: [two]\n  - "
                                                                     "id: two"), 5, "waits for itself"),
    "two of one name": ("yaml", GOOD.replace("id: two", "id: one"), 5, "two tasks with the id one"),
    "priority": ("yaml", GOOD + "    priority: 11\n", 8, "priority: must be at most 10"),
    "retries": ("yaml", GOOD + "    retry: {max: -1}\n", 8, "max: must be at least 0"),
    "timeout": ("yaml", GOOD + "    timeouts: {attempt: soon}\n", 8, 'attempt = "soon" is not a duration'),
    "bounds": ("yaml", GOOD + "    bounds: {memory: a lot}\n", 8, 'memory = "a lot" is not a size'),
    "rate": ("yaml", GOOD + "    limits: [{key: door, rate: often}]\n", 8, 'rate = "often" is not a rate'),
    "delay": ("yaml", GOOD + "    delay: [1]\n", 8, "delay"),
    "schedule": ("yaml", GOOD + "schedule: every day\n", 8, "schedule"),
    "policy": ("yaml", GOOD + "settings: {on_failure: panic}\n", 8, '"panic" is not one of'),
    "no tasks": ("yaml", GOOD.replace("tasks:", "task:"), 2, 'unknown field "task"'),
    "tab": ("yaml", GOOD + "\tpriority: 5\n", 8, "a tab stands where the line begins"),
    "another kind": ("yaml", "kind: load\n" + GOOD, 1, "kind: must be dag"),
    "no JSON": ("json", GOOD_JSON.replace('"tasks"', "tasks"), 3, "this is not JSON"),
    "field twice": ("json", GOOD_JSON.replace('"id": "two"', '"id": "two",\n     "id": '
                                                             '"three"'), 6, '"id" is there twice'),
    "type": ("json", GOOD_JSON.replace('["one"]', '["one"],\n     "priority": "5"'), 6, "priority: must be a whole "
                                                                                        "number"),
    "no JSON number": ("json", GOOD_JSON.replace('["one"]', '["one"], "config": NaN'), 5, "NaN is not JSON"),
    "no Python": ("py", GOOD_PYTHON.replace("one = dag", "one = = dag"), 4, "syntax error"),
    "it raises": ("py", GOOD_PYTHON + "1 / 0\n", 6, "raised ZeroDivisionError"),
    "task in Python": ("py", GOOD_PYTHON + 'dag.task("three", "mark", '
                                           'priority=0)\n', 6, "priority: must be at least 1"),
    "two Dags": ("py", GOOD_PYTHON + 'other = Dag("other")\nother.task("a", '
                                     '"mark")\n', 6, "has 2 Dags: name one of them"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_pipeline_gets_a_sentence_with_its_line_and_nothing_is_sent(
    cluster: DagCluster, tmp_path: Path, kind: str
) -> None:
    suffix, content, line, words = BROKEN[kind]
    file = tmp_path / f"broken.{suffix}"
    file.write_text(content)
    before = cluster.ask_api("GET", "/v1/jobs").good()

    ended = cluster.talka("submit", str(file))

    assert ended.code == 3, ended.text
    assert "Traceback" not in ended.err and "internal error" not in ended.err, ended.text
    (told,) = [text for text in ended.err.splitlines() if re.search(rf"broken\.{suffix}:{line}\b", text)]
    assert words in told
    assert cluster.ask_api("GET", "/v1/jobs").good() == before


def test_a_broken_handlers_file_is_told_with_its_line(tmp_path: Path) -> None:
    handlers = "from talka import handler\n\n@handler('a')\ndef a(task)\n    return 1\n"
    with dag_cluster(tmp_path, 1, handlers=handlers, start=False) as cluster:
        cluster.start_manager("m1")
        cluster.start_worker("w1")

        told = cluster.wait_for("w1", "alarm", kind="handlers")

    assert "handlers.py" in told["text"] and "4" in told["text"], told


# Bodies


def first_heard(cluster: DagCluster, ask: Callable[[], T], is_busy: Callable[[T], bool]) -> T:
    """The first answer but that a manager, which a busy machine kept waiting, takes nothing for a moment."""
    while is_busy(answer := ask()):
        cluster.listen(0.2)
    return answer


def test_a_body_of_100_megabytes_is_refused_before_it_is_read(cluster: DagCluster) -> None:
    def ask() -> tuple[int, Any]:
        connection = http.client.HTTPConnection(cluster.api(UP), timeout=60)
        try:
            connection.putrequest("POST", "/v1/jobs")
            connection.putheader("content-type", "application/json")
            connection.putheader("content-length", str(100 * MEGABYTE))
            connection.endheaders(b"x" * 1024)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    status, body = first_heard(cluster, ask, lambda told: told[0] == 429)

    assert status == 413, body
    assert "detail" in body


def test_whoever_sends_the_100_megabytes_all_the_same_is_cut_off(cluster: DagCluster) -> None:
    host, _, port = cluster.api(UP).rpartition(":")
    head = "POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

    def ask() -> tuple[bytes, int]:
        sent = 0
        with socket.create_connection((host, int(port)), timeout=SOON_S) as link:
            link.sendall(f"{head}content-length: {100 * MEGABYTE}\r\n\r\n".encode())
            answer = link.recv(65_536)
            with pytest.raises(OSError, match="reset|Broken pipe"):
                while sent < 100 * MEGABYTE:
                    sent += link.send(b"x" * 65_536)
        return answer, sent

    answer, sent = first_heard(cluster, ask, lambda told: told[0].startswith(b"HTTP/1.1 429 "))

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 50 * MEGABYTE, "it is in the buffers of the kernel, and nobody reads it"
    assert cluster.ask_api("GET", "/livez").status == 200


def test_a_body_without_a_length_is_refused_once_it_is_too_large(cluster: DagCluster) -> None:
    process = psutil.Process(cluster.up[UP].process.pid)
    before = process.memory_info().rss

    def parts() -> Iterator[bytes]:
        yield b'{"kind": "dag", "name": "'
        for _ in range(100):
            yield b"x" * MEGABYTE

    def ask() -> int:
        with suppress(OSError):  # it closes the connection while we still talk
            return cluster.ask_api("POST", "/v1/jobs", parts()).status
        return 0

    status = first_heard(cluster, ask, lambda told: told == 429)

    assert status in (413, 0)
    assert process.memory_info().rss - before < 60 * MEGABYTE
    assert cluster.ask_api("GET", "/livez").status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"{", 400, id="no JSON"),
        pytest.param({"kind": "dag", "name": "x", "tasks": []}, 422, id="no tasks"),
        pytest.param({"kind": "dag", "name": "x", "tasks": [{"id": "a"}]}, 422, id="no handler"),
        pytest.param(
            {
                "kind": "dag",
                "name": "x",
                "tasks": [
                    {"id": "a", "handler": "h", "depends_on": ["b"]},
                    {"id": "b", "handler": "h", "depends_on": ["a"]},
                ],
            },
            422,
            id="a circle",
        ),
        pytest.param(
            {"kind": "dag", "name": "x", "tasks": [{"id": "a", "handler": "h", "config": "c" * 300_000}]},
            422,
            id="config",
        ),
        pytest.param(b'{"kind": "dag", "tasks": ' + b"[" * 100_000, 400, id="deep"),
        pytest.param(b'{"kind": "dag", "name": "\xff", "tasks": []}', 400, id="no UTF-8"),
    ],
)
def test_a_body_that_is_no_job_is_refused_with_a_sentence(cluster: DagCluster, body: object, status: int) -> None:
    answer = cluster.ask_api("POST", "/v1/jobs", body)

    assert answer.status == status, answer
    assert answer.body["detail"], answer


def test_a_stream_that_is_broken_off_leaves_no_job(cluster: DagCluster) -> None:
    before = len(cluster.stored())
    head = b'{"kind": "dag", "name": "half"}\n'
    tasks = b"".join(b'{"id": "t%d", "handler": "mark"}\n' % n for n in range(5000))

    answer = cluster.ask_api("POST", "/v1/jobs", head + tasks + b'{"id": "bad"\n', kind="application/x-ndjson")
    jobs = cluster.ask_api("GET", "/v1/jobs?limit=500").body["items"]

    assert answer.status in (400, 422), answer
    assert "half" not in {job["name"] for job in jobs}
    cluster.wait(lambda: cluster.listen(0.1) or len(cluster.stored()) == before, SOON_S, "the half to be dropped")


def test_outputs_that_are_too_large_or_no_json_fail_their_task(tmp_path: Path) -> None:
    handlers = (
        "from talka import handler\n"
        "@handler('large')\nasync def large(task):\n    return 'x' * task.config\n"
        "@handler('strange')\nasync def strange(task):\n    return object()\n"
    )
    with dag_cluster(tmp_path, is_up=True, handlers=handlers) as cluster:
        job = cluster.dag(
            "outputs",
            {"id": "too-large", "handler": "large", "config": MEGABYTE},
            {"id": "spilled", "handler": "large", "config": 400_000},
            {"id": "strange", "handler": "strange"},
            settings={"on_failure": "continue", "retry": {"max": 0}},
        )
        cluster.wait_for_end(job)
        tasks = cluster.tasks(job)

    assert {name: task["state"] for name, task in tasks.items()} == {
        "too-large": "dead",
        "spilled": "completed",
        "strange": "dead",
    }
    assert len(tasks["spilled"]["output"]) == 400_000
    assert "over the limit of 768 KiB" in tasks["too-large"]["error"], tasks["too-large"]["error"]


def test_the_tasks_of_talka_up_need_no_frames_between_its_manager_and_its_worker(cluster: DagCluster) -> None:
    links = 200
    before = cluster.metric("stream_frames_sent_total")
    job = cluster.dag(
        "chain", *[{"id": f"t{n}", "handler": "mark", "depends_on": [f"t{n - 1}"] if n else []} for n in range(links)]
    )
    cluster.wait_for_end(job)
    counts = cluster.ask_api("GET", f"/v1/jobs/{job}").good()["counts"]
    assert counts["completed"] == links
    # One for each task and more, if they were frames; the others are answers to beats, two or three a second.
    assert cluster.metric("stream_frames_sent_total") - before < links


# Tokens


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagCluster]:
    """Its API wants tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    key = folder / "key"
    with dag_cluster(folder / "cluster", 1, 1, start=False, manager_options=("--token-key-file", str(key))) as cluster:
        made = cluster.talka("token", "key", "-o", str(key))
        assert made.code == 0, made.text
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        cluster.start_nodes()
        yield cluster


def key_file(cluster: DagCluster) -> Path:
    return cluster.folder.parent / "key"


def token(cluster: DagCluster, role: str, *options: str) -> str:
    words = ("--key-file", str(key_file(cluster)), "--role", role, "--for", f"{role}s", *options)
    made = cluster.talka("token", "issue", *words)
    assert made.code == 0, made.text
    return made.out.strip()


DAG = {"kind": "dag", "name": "asked", "tasks": [{"id": "one", "handler": "mark"}]}


def test_without_a_token_or_with_a_wrong_or_expired_one_it_is_401_and_a_line_is_logged(guarded: DagCluster) -> None:
    tokens = Tokens(read_keys(str(key_file(guarded)), "key"), "default")
    expired = tokens.issue("old", "admin", int(time.time()) - 3600)
    stranger = Tokens([b"k" * 48], "default").issue("stranger", "admin", int(time.time()) + 3600)
    elsewhere = Tokens(read_keys(str(key_file(guarded)), "key"), "other").issue("x", "admin", int(time.time()) + 3600)

    answers = {}
    for name, shown in (("none", ""), ("expired", expired), ("stranger", stranger), ("elsewhere", elsewhere)):
        answers[name] = guarded.ask_api("POST", "/v1/jobs", DAG, token=shown)
        guarded.listen(1.1)  # of refusals one a second is logged

    assert {answer.status for answer in answers.values()} == {401}, answers
    assert "expired" in answers["expired"].body["detail"]
    errors = guarded.up["m1"].errors.read_text()
    assert errors.count("refused POST") >= 2, errors
    assert "expired" in errors
    audit = guarded.data("m1") / "audit.log"  # written behind the answer's back
    guarded.wait(
        lambda: guarded.listen(0.1) or audit.read_text().count('"status":401') >= 4,
        SOON_S,
        "four lines in the audit log",
    )
    assert audit.read_text().count('"status":401') == 4, audit.read_text()


def test_a_role_that_may_not_is_told_so_with_403(guarded: DagCluster) -> None:
    viewer, submitter = token(guarded, "view"), token(guarded, "submit")

    seen = guarded.ask_api("GET", "/v1/jobs", token=viewer)
    refused = guarded.ask_api("POST", "/v1/jobs", DAG, token=viewer)
    taken = guarded.ask_api("POST", "/v1/jobs", DAG, token=submitter)
    replay = guarded.ask_api("POST", f"/v1/dead-letters/{taken.body['id']}/one/replay", token=viewer)

    assert (seen.status, refused.status, taken.status, replay.status) == (200, 403, 201, 403), (refused, taken)
    assert "view" in refused.body["detail"]
    assert taken.body["submitted_by"] == "submits"


def test_a_revoked_token_holds_no_longer(guarded: DagCluster) -> None:
    shown = token(guarded, "admin", "--id", "lost-laptop")
    before = guarded.ask_api("GET", "/v1/jobs", token=shown).status

    revoked = guarded.talka("token", "revoke", "lost-laptop", "--key-file", str(key_file(guarded)))
    after = guarded.ask_api("GET", "/v1/jobs", token=shown)

    assert before == 200
    assert revoked.code == 0, revoked.text
    assert after.status == 401, after
    assert "revoked" in after.body["detail"]


def test_a_pipeline_that_cannot_be_read_back_is_not_there(cluster: DagCluster) -> None:
    asked = {
        path: cluster.ask_api("GET", path).status
        for path in ("/v1/jobs/aaaaaaaaaa", "/v1/jobs/aaaaaaaaaa/tasks", "/v1/jobs/..%2f..%2fetc/tasks/x/logs")
    }

    assert set(asked.values()) == {404}, asked
