"""Requests made of the API's own description, right ones and wrong ones, by people of every role, to a real manager
with a store and a worker: none may bring it down, the answers must be as described, and who may do what is as the table
says.

Half of what is named in paths is there: a dag job and a load job that have ended, a task, a dead letter, a worker, a
schedule.
"""

import json
import stat
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from talka.cli.nodes.token import read_keys
from talka.client.ordering import OrderOptions, submission_of_url
from talka.control.load.planning import Overrides
from talka.web.auth import Tokens
from talka.web.openapi import document
from talka.wire.security.access import LEAST, USER_ROLES, has_role
from tests.e2e.dag_cluster import DagCluster, dag_cluster

EXAMPLES = 12
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
NOBODY = "nobody"
JOB = {
    "kind": "dag",
    "name": "known",
    "settings": {"on_failure": "continue", "retry": {"max": 0}},
    "tasks": [{"id": "good", "handler": "mark"}, {"id": "bad", "handler": "no", "config": 1}],
}
HANDLERS = """
from talka import handler

@handler("mark")
async def mark(task):
    task.log("it runs")
    print("it runs")
    return task.config

@handler("no")
async def no(task):
    raise ValueError("no")
"""


class Described(NamedTuple):
    """A manager whose API wants tokens."""

    cluster: DagCluster
    url: str
    tokens: Tokens
    numbers: "count[int]"
    names: dict[str, tuple[str, ...]]
    """What there is, by the parameters of paths."""
    session: requests.Session

    def headers(self, role: str) -> dict[str, str]:
        """With a token of its own for each request, since requests of one are limited."""
        if role == NOBODY:
            return {}
        token = self.tokens.issue(role, role, int(time.time()) + 3600, f"t{next(self.numbers)}")  # type: ignore[arg-type]
        return {"authorization": f"Bearer {token}"}

    def known(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Half of the values that were drawn are names of what there is."""
        found = dict(parameters)
        for name, value in parameters.items():
            number = sum(str(value).encode())
            if number % 2 and (names := self.names.get(name)):
                found[name] = names[number // 2 % len(names)]
        return found


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    folder = tmp_path_factory.mktemp("described")
    key = folder / "key"
    options = ("--token-key-file", str(key))
    with dag_cluster(folder / "c", 1, 1, start=False, handlers=HANDLERS, manager_options=options) as cluster:
        made = cluster.talka("token", "key", "-o", str(key))
        assert made.code == 0 and stat.S_IMODE(key.stat().st_mode) == 0o600, made.text
        cluster.start_nodes()
        url = f"http://{cluster.api(cluster.managers[0])}"
        tokens = Tokens(read_keys(str(key), "key"), "default")
        with requests.Session() as session:
            found = Described(cluster, url, tokens, count(), {}, session)
            dag = session.post(f"{url}/v1/jobs?wait=60s", json=JOB, headers=found.headers("submitter"), timeout=90)
            assert dag.status_code == 201 and dag.json()["state"] == "partial", dag.text
            load = submit_load(found)
            assert load.status_code == 201 and load.json()["state"] == "completed", load.text
            plan = JOB | {"name": "yearly", "schedule": "0 0 1 1 *"}
            answer = session.put(f"{url}/v1/schedules", json=plan, headers=found.headers("operator"), timeout=60)
            assert answer.status_code == 200, answer.text
            found.names.update(
                {
                    "id": (dag.json()["id"], load.json()["id"]),
                    "task": ("good", "bad"),
                    "name": (*cluster.workers, "yearly"),
                }
            )
            yield found


def submit_load(described: Described) -> requests.Response:
    """One request, of which the end is waited for."""
    options = OrderOptions(overrides=Overrides(vus=1, iterations=1), cores=1)
    return described.session.post(
        f"{described.url}/v1/jobs?wait=60s",
        data=msgspec.json.encode(submission_of_url(f"{described.url}/livez", options).order),
        headers={"content-type": "application/json"} | described.headers("submitter"),
        timeout=90,
    )


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: schemathesis.SerializationContext, value: object) -> bytes:
    return str(value).encode(errors="replace")


schema = schemathesis.openapi.from_dict(
    json.loads(document()),
    config=schemathesis.Config.from_dict(
        {
            "seed": 7,
            "generation": {"deterministic": True, "database": "none"},
            # Their bodies are those of POST /v1/jobs, where every way to be wrong is tried.
            "operations": [
                {"include-operation-id": name, "phases": {"coverage": {"enabled": False}}}
                for name in ("bulk", "put_schedule")
            ],
        }
    ),
)


@schema.exclude(operation_id=["watch", "submit_frames"]).parametrize()
@seed(7)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_of_any_role_brings_the_manager_down(case: schemathesis.Case, described: Described) -> None:
    case.path_parameters = described.known(dict(case.path_parameters or {}))
    name = case.operation.definition.raw["operationId"]
    least = LEAST[name]
    drawn = {name: value for name, value in dict(case.headers or {}).items() if name.lower() != "authorization"}
    for role in (NOBODY, *USER_ROLES):
        case.headers = drawn | described.headers(role)
        answer = case.call(base_url=described.url, session=described.session, timeout=60)
        case.validate_response(answer, checks=list(CHECKS))
        if case.method.upper() != case.operation.method.upper():
            continue  # another operation's, or none: what is described is the answer
        if role == NOBODY:
            assert (answer.status_code == 401) == (least is not None), answer.text
        else:
            may = least is None or has_role(role, least)
            assert (answer.status_code == 403) == (not may), f"{role}: {answer.text}"


LATE = {"kind": "dag", "name": "late", "tasks": [{"id": "late", "handler": "mark", "delay": "1h"}]}
MONTHLY = JOB | {"name": "monthly", "schedule": "0 0 1 * *", "timezone": "Europe/Berlin"}
OF_SCHEDULES = ({"name": "monthly"}, {})


def test_what_drawn_requests_seldom_are_right_for_is_answered_as_described_from_its_least_role_on(
    described: Described,
) -> None:
    """What changes something that is there but once: a schedule, a dead letter, a job that waits."""
    answer = described.session.post(
        f"{described.url}/v1/jobs?wait=60s", json=JOB, headers=described.headers("submitter"), timeout=90
    )
    ended = {"id": answer.json()["id"]}
    answer = described.session.post(
        f"{described.url}/v1/jobs", json=LATE, headers=described.headers("submitter"), timeout=60
    )
    late = {"id": answer.json()["id"]}
    steps: list[tuple[str, dict[str, str], dict[str, Any], Any]] = [
        ("put_schedule", {}, {}, MONTHLY),
        ("pause_schedule", *OF_SCHEDULES, None),
        ("resume_schedule", *OF_SCHEDULES, None),
        ("run_schedule", *OF_SCHEDULES, None),
        ("backfill", *OF_SCHEDULES, {"from": "2026-01-01", "to": "2026-03-01", "dry_run": True}),
        ("backfill", *OF_SCHEDULES, {"from": "2026-01-01", "to": "2026-03-01"}),
        ("drop_schedule", *OF_SCHEDULES, None),
        ("output", ended | {"task": "good"}, {"attempt": 1, "stream": "stdout"}, None),
        ("replay", ended | {"task": "bad"}, {}, {"config": 2}),
        ("pause", late, {}, None),
        ("resume", late, {}, None),
        ("skip", late, {}, {"tasks": ["late"]}),
    ]
    for name, path, query, body in steps:
        least = LEAST[name]
        assert least is not None
        more = {} if body is None else {"body": body, "media_type": "application/json"}
        case = schema.find_operation_by_id(name).Case(path_parameters=path, query=query, **more)
        for role in (NOBODY, *USER_ROLES[: USER_ROLES.index(least) + 1]):
            case.headers = described.headers(role)
            answer = case.call(base_url=described.url, session=described.session, timeout=60)
            case.validate_response(answer, checks=list(CHECKS))
            refused = 401 if role == NOBODY else 403
            is_right = answer.status_code < 300 if role == least else answer.status_code == refused
            assert is_right, f"{name} by {role}: {answer.status_code} {answer.text}"


def test_a_load_job_is_waited_for_by_whoever_may_submit_it(described: Described) -> None:
    answer = submit_load(described)

    assert (answer.status_code, answer.json()["state"]) == (201, "completed"), answer.text
