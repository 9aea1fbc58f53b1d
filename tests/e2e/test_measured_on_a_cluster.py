"""On a cluster too: journeys end, every call has its row, `failed` is the worse share, and each arrival is a new
user."""

import json
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

WORKFLOWS = Path(__file__).parent / "workflows"


@pytest.fixture(scope="module")
def cluster(start_jobs, tmp_path_factory):
    """One manager and two workers of one core, for all tests of this module."""
    with start_jobs(tmp_path_factory.mktemp("jobs"), 1, 2) as cluster:
        yield cluster


def served(server) -> Counter[str]:
    """Requests that the server has had so far, by path."""
    with urllib.request.urlopen(f"{server.url}/count", timeout=60) as answer:
        return Counter(json.load(answer)["paths"])


def run(cluster, server, file: str, *options: str, code: int = 0):
    """The job's document, and what the server had of it by path."""
    before = served(server)
    ended = cluster.submit(WORKFLOWS / file, *options)
    assert ended.code == code, ended.text
    had = served(server)
    had.subtract(before)
    return ended.document(), {path: number for path, number in had.items() if number and path != "/count"}


def rows(document) -> dict[str, dict]:
    [workflow] = document["workflows"]
    assert workflow["cores"] == 2, "on both workers"
    return {step["name"]: step for step in workflow["steps"]}


def test_journeys_under_way_when_the_plan_ends_are_finished_and_counted(cluster, job_server) -> None:
    document, had = run(cluster, job_server, "journey.py")

    steps = rows(document)
    assert {name: (step["count"], step["ok"]) for name, step in steps.items()} == dict.fromkeys(steps, (30, 30))
    assert list(steps) == ["search", "choose", "order"]
    assert had == {"/delay": 90}
    totals = document["totals"]
    assert (totals["iterations"], totals["interrupted_iterations"], totals["requests"]) == (30, 0, 90)
    assert totals["dropped_iterations"] == 0
    assert document["generator"]["machine"]["cpus"] > 0, "what a worker's machine tells comes with its counts"


def test_journeys_that_do_not_end_within_the_grace_are_counted_as_interrupted(cluster, job_server) -> None:
    document, had = run(cluster, job_server, "journey.py", "--grace", "300ms")

    totals = document["totals"]
    assert totals["iterations"] + totals["interrupted_iterations"] == 30
    assert totals["iterations"] > 0 and totals["interrupted_iterations"] > 0
    assert totals["ok"] + totals["failed"] + totals["interrupted"] == totals["requests"] == had["/delay"]
    assert rows(document)["order"]["ok"] == totals["iterations"]


def test_every_call_of_a_step_has_its_row_and_a_slow_one_is_in_the_steps_time(cluster, job_server) -> None:
    document, had = run(cluster, job_server, "calls.py")

    step = rows(document)["read"]
    calls = {call["name"]: call for call in step["calls"]}
    assert {name: call["count"] for name, call in calls.items()} == {"page": 40, "data": 40}
    assert had == {"/delay": calls["page"]["count"], "/json": calls["data"]["count"], "/echo": 40}
    assert document["totals"]["requests"] == 120
    assert step["count"] == step["ok"] == 40
    assert step["response_time_ms"]["min"] >= 120, "its first call stalls so long"
    assert calls["page"]["response_time_ms"]["min"] >= 120 > calls["data"]["service_time_ms"]["min"]


def test_failed_counts_requests_that_a_step_did_not_return(cluster, job_server) -> None:
    document, had = run(cluster, job_server, "half.py", "--threshold", "failed < 1%", code=4)

    assert had == {"/status": 40, "/json": 40}
    totals = document["totals"]
    assert (totals["requests"], totals["failed"], totals["ok"]) == (80, 40, 40)
    step = rows(document)["both"]
    assert (step["count"], step["failed"]) == (40, 20), "a step fails with any of its calls"
    [rule] = document["thresholds"]
    assert not rule["passed"] and rule["value"] == 0.5


def test_an_arrival_has_nothing_of_users_before_it(cluster, job_server) -> None:
    document, had = run(cluster, job_server, "fresh.py")

    assert document["totals"]["iterations"] == 60
    assert had == {"/cookie": 3 * 60}, "each of them signed in"
    [workflow] = document["workflows"]
    checks = {check["name"]: (check["passed"], check["failed"]) for check in workflow["checks"]}
    assert checks == {"is_nobody_yet": (60, 0), "is_known_now": (60, 0)}
    [calls] = [step["calls"] for step in workflow["steps"] if step["name"] == "enter"]
    assert {call["name"]: call["count"] for call in calls} == {"look": 60, "sign in": 60}


TRAVELS = """
import os

from prices import PRICE
from talka import URL, Feed, HTTPResponse, SharedIterations, Workflow, step


class Traveller(Workflow):
    load = SharedIterations(4, 40)
    users = Feed.csv("data/users.csv", order="once")

    @step()
    async def pay(self, url: URL = os.environ["TARGET"] + "/echo") -> HTTPResponse:
        return await self.client.http.post(url, json={"user": self.users.next()["name"], "price": PRICE})
"""


def test_a_test_travels_with_its_module_and_data_starts_everywhere_at_once_and_is_one_result(
    cluster, job_server, tmp_path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "users.csv").write_text("name\n" + "".join(f"user-{n}\n" for n in range(40)))
    (tmp_path / "prices.py").write_text("PRICE = 17\n")
    file = tmp_path / "travels.py"
    file.write_text(TRAVELS)
    before = served(job_server)

    ended = cluster.submit(file)

    assert ended.code == 0, ended.text
    document = ended.document()
    assert rows(document)["pay"]["ok"] == document["totals"]["requests"] == 40
    assert served(job_server)["/echo"] - before["/echo"] == 40, "each row once"
    # Nobody starts before everybody is ready.
    armed, begun = ([event["at"] for _, event in cluster.said(kind, job=ended.job)] for kind in
                    ("task-armed", "task-started"))  # fmt: skip
    assert len(armed) == len(begun) == 2 and max(armed) <= min(begun)
