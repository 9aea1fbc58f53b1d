"""What a manager does by itself from its store, also if somebody kills it meanwhile: it runs what was due, and tells
servers of the ends of jobs."""

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from talka.control.tasks.notices import signature_of
from tests.e2e.cluster import SOON_S
from tests.e2e.dag_cluster import dag_cluster
from tests.e2e.moved_clock import MovedClock

SECRET = "what notices of these tests are signed with"
HOURS_S = 3 * 3600
needs_a_clock = pytest.mark.skipif(bool(MovedClock.why_not()), reason=MovedClock.why_not())


class Told:
    """A server that does not answer until it may, and then takes everything."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.may_answer = threading.Event()
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                told.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                told.may_answer.wait()
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.may_answer.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_who_is_to_be_told_of_the_end_of_a_job_is_told_although_its_manager_is_killed_before(
    tmp_path: Path, told: Told
) -> None:
    secret = tmp_path / "notify.secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    options = ("--notify-secret", str(secret), "--allow-private-notify", "--lease", "60s")
    with dag_cluster(tmp_path / "cluster", 1, 1, manager_options=options) as cluster:
        settings = {"notify": {"on": ["completed"], "url": told.url}}
        job = cluster.dag("told", {"id": "t", "handler": "mark"}, settings=settings)
        cluster.wait_for_end(job)
        cluster.wait(lambda: told.requests, SOON_S, "the server to be told")
        cluster.kill("m1")
        told.may_answer.set()
        cluster.restart("m1")
        cluster.wait_until_ready()

        def is_sent() -> bool:
            cluster.hear(0.05)
            return bool(cluster.facts(job)["notifications"][0]["state"] == "sent")

        cluster.wait(is_sent, SOON_S, "the notice to be sent")
        shown = cluster.talka("jobs", "show", job)

    assert {headers["talka-delivery"] for headers, _ in told.requests} == {f"{told.requests[0][0]['talka-delivery']}"}
    assert len(told.requests) >= 2 and len({body for _, body in told.requests}) == 1
    for headers, body in told.requests:
        signed = signature_of(SECRET.encode(), headers["talka-timestamp"], body)
        assert headers["talka-signature"] == f"sha256={signed}"
    assert "notified" in shown.out and "of completed: sent" in shown.out


@needs_a_clock
def test_a_manager_that_is_killed_while_it_catches_up_with_a_schedule_runs_each_instant_once(tmp_path: Path) -> None:
    clock = MovedClock(tmp_path)
    with dag_cluster(tmp_path / "cluster", 1, 1, start=False, manager_options=("--lease", "60s")) as cluster:
        cluster.own_environment["m1"] = clock.environment
        cluster.start_nodes()
        spec = {
            "name": "often",
            "schedule": "*/10 * * * *",
            "timezone": "Europe/Berlin",
            "catch_up": "all",
            "tasks": [{"id": "t", "handler": "echo", "config": "${scheduled_for}"}],
            "wait_for_workers": True,
        }
        put = cluster.ask_api("PUT", "/v1/schedules", spec).good()
        cluster.kill("m1")
        clock.set(HOURS_S)
        for _ in range(3):
            cluster.restart("m1")
            cluster.wait_until_ready()
            cluster.kill("m1")
        cluster.restart("m1")
        cluster.wait_until_ready()

        def is_followed() -> bool:
            cluster.hear(0.05)
            (schedule,) = cluster.ask_api("GET", "/v1/schedules").good()
            due = datetime.fromisoformat(schedule["next_at"])
            return due - datetime.fromisoformat(put["next_at"]) >= timedelta(seconds=HOURS_S - 600)

        cluster.wait(is_followed, SOON_S, "the schedule to be followed")
        jobs = cluster.ask_api("GET", "/v1/jobs").good()["items"]
        instants = sorted(datetime.fromisoformat(job["params"]["scheduled_for"]) for job in jobs)

    first = datetime.fromisoformat(put["next_in_zone"])
    assert first == datetime.fromisoformat(put["next_at"]) and len(instants) >= HOURS_S // 600 - 1
    assert instants == [first + timedelta(minutes=10 * number) for number in range(len(instants))]
