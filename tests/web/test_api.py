"""Every route: what it answers, and what becomes of bad input."""

import asyncio
import hashlib
import json
import re

import msgspec
import pytest

from talka.client.requests import Conflict, Problem, TooBusy
from talka.errors import Invalid, Superseded, Unavailable, Untrusted
from talka.web.api_limits import API_LIMITS, ApiLimits
from talka.web.auth import Tokens
from talka.wire.orders import JobOrder
from talka.wire.security.access import Asker
from talka.wire.shards import PLAIN_GET, UrlRequest
from talka.wire.views import JobFacts, JobsPage, JobUpdate
from talka.work.lifecycle import JobState
from tests.web.fake_control import Api, Apis, FakeControl, FakeJob

JSON = {"content-type": "application/json"}
CONTENT = b"a bundle"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def problem_in(answer) -> Problem:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = msgspec.json.decode(answer.body, type=Problem)
    assert problem.status == answer.status
    return problem


def submission(order: JobOrder) -> bytes:
    return msgspec.json.encode(order)


# Bundles.


async def test_a_bundle_is_there_once_it_was_put(api: Api) -> None:
    assert (await api.ask("HEAD", f"/v1/bundles/{DIGEST}")).status == 404

    assert (await api.ask("PUT", f"/v1/bundles/{DIGEST}", CONTENT)).status == 204

    assert (await api.ask("HEAD", f"/v1/bundles/{DIGEST}")).status == 200
    assert api.control.bundles == {DIGEST: CONTENT}


async def test_a_bundle_in_chunks_of_unknown_length_is_taken(api: Api) -> None:
    head = f"PUT /v1/bundles/{DIGEST} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()

    answer = await api.send(
        head + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n7\r\n bundle\r\n0\r\nX-Trailer: x\r\n\r\n"
    )

    assert answer.startswith(b"HTTP/1.1 204 ")
    assert api.control.bundles == {DIGEST: CONTENT}


async def test_a_bundle_that_is_not_what_its_digest_says_is_refused(api: Api) -> None:
    answer = await api.ask("PUT", f"/v1/bundles/{DIGEST}", b"something else")

    assert answer.status == 422
    assert problem_in(answer).type == "urn:talka:problem:wrong-digest"
    assert api.control.asked == []


@pytest.mark.parametrize("digest", ["x" * 64, "a" * 63, DIGEST.upper(), "..%2f" + "a" * 59])
async def test_what_is_no_digest_is_refused(api: Api, digest: str) -> None:
    assert (await api.ask("PUT", f"/v1/bundles/{digest}", CONTENT)).status in (404, 422)
    assert (await api.ask("HEAD", f"/v1/bundles/{digest}")).status in (404, 422)
    assert api.control.asked == []


@pytest.mark.parametrize("api", [ApiLimits(bundle_bytes=1000)], indirect=True)
async def test_a_bundle_beyond_the_limit_is_refused_whether_or_not_its_length_is_told(api: Api) -> None:
    head = f"PUT /v1/bundles/{DIGEST} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()

    told = await api.ask("PUT", f"/v1/bundles/{DIGEST}", b"x" * 1001)
    untold = await api.send(head + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n")

    assert told.status == 413
    assert problem_in(told).detail == "the body has 1001 bytes: at most 1000 are read"
    assert untold.startswith(b"HTTP/1.1 413 ")


def test_the_limit_of_a_bundle_is_64_mib() -> None:
    assert API_LIMITS.bundle_bytes == 64 * 1024 * 1024


@pytest.mark.parametrize("api", [ApiLimits(chunk_s=0.01)], indirect=True)
async def test_a_body_that_stops_arriving_is_given_up(api: Api) -> None:
    head = f"PUT /v1/bundles/{DIGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\na".encode()
    reader, writer = await asyncio.open_connection(api.address.host, api.address.port)

    writer.write(head)

    assert b" 408 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_only_so_many_bundles_are_uploaded_at_the_same_time(api: Api) -> None:
    api.control.hold = asyncio.Event()
    uploads = [asyncio.create_task(api.ask("PUT", f"/v1/bundles/{DIGEST}", CONTENT)) for _ in range(5)]

    done, waiting = await asyncio.wait(uploads, return_when=asyncio.FIRST_COMPLETED)

    assert [task.result().status for task in done] == [429]
    api.control.hold.set()
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [204] * 4


# Submitting.


async def test_a_submitted_job_can_be_found(api: Api, order_of) -> None:
    api.control.bundles[DIGEST] = CONTENT
    order = order_of(digest=DIGEST)

    answer = await api.ask("POST", "/v1/jobs", submission(order), JSON)

    facts = msgspec.json.decode(answer.body, type=JobFacts)
    assert (answer.status, answer.headers["location"], facts.name) == (201, f"/v1/jobs/{facts.id}", "shop.py")
    assert msgspec.json.decode((await api.ask("GET", f"/v1/jobs/{facts.id}")).body, type=JobFacts) == facts
    assert api.control.jobs_by_id[facts.id].order == order


async def test_the_same_key_is_the_same_job_and_another_order_under_it_a_conflict(api: Api, order_of) -> None:
    api.control.bundles[DIGEST] = CONTENT
    headers = JSON | {"idempotency-key": "k1"}

    first = await api.ask("POST", "/v1/jobs", submission(order_of(digest=DIGEST)), headers)
    again = await api.ask("POST", "/v1/jobs", submission(order_of(digest=DIGEST)), headers)
    other = await api.ask("POST", "/v1/jobs", submission(order_of("other.py", digest=DIGEST)), headers)

    assert first.body == again.body
    assert (other.status, problem_in(other).type) == (409, "urn:talka:problem:conflict")


async def test_a_job_without_its_bundle_is_a_conflict_of_its_own_kind(api: Api, order_of) -> None:
    answer = await api.ask("POST", "/v1/jobs", submission(order_of()), JSON)

    assert (answer.status, problem_in(answer).type) == (409, "urn:talka:problem:bundle-missing")


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"", JSON, 400, "not JSON"),
        (b"{", JSON, 400, "not JSON"),
        (b"\xff\xfe", JSON, 400, "not JSON"),
        (b'{"x":' + b"[" * 100_000, JSON, 400, "not JSON"),
        (b"{}", JSON, 422, "name"),
        (b"[]", JSON, 422, "Expected"),
        (b'{"name": 1}', JSON, 422, r"\$.name"),
        (b"x" * 500_000, JSON, 413, "at most"),
        (b"{}", {"content-type": "text/plain"}, 415, "not text/plain"),
        (b"{}", {}, 415, "of no type"),
        (b"{}", JSON | {"idempotency-key": "k" * 201}, 422, "idempotency key"),
    ],
    ids=range(11),
)
async def test_what_is_no_order_is_refused_in_words(api: Api, body, headers, status, words) -> None:
    answer = await api.ask("POST", "/v1/jobs", body, headers)

    assert answer.status == status
    assert re.search(words, problem_in(answer).detail)
    assert api.control.asked == []


async def test_an_order_whose_load_cannot_be_run_is_refused_with_the_reason(api: Api, order_of) -> None:
    order = json.loads(submission(order_of()))
    order["workflows"][0]["plan"]["vus"] = 0

    answer = await api.ask("POST", "/v1/jobs", json.dumps(order).encode(), JSON)

    assert answer.status == 422
    assert "not one VU is wanted" in problem_in(answer).detail


async def test_an_order_that_the_register_could_not_hold_is_refused(api: Api, order_of) -> None:
    answer = await api.ask("POST", "/v1/jobs", submission(order_of("n" * 100_000)), JSON)

    assert answer.status == 413
    assert "98304" in problem_in(answer).detail


async def test_whoever_shows_a_token_is_the_submitter_whatever_the_order_says(
    apis: Apis, tokens: Tokens, order_of
) -> None:
    api = await apis.start(auth=tokens)
    api.control.bundles[DIGEST] = CONTENT
    order = msgspec.structs.replace(order_of(digest=DIGEST), submitted_by="the queen")

    answer = await api.ask("POST", "/v1/jobs", submission(order), JSON, tokens.issue("ann", "submitter", 2**33))

    assert msgspec.json.decode(answer.body, type=JobFacts).submitted_by == "ann"


async def test_a_submitter_of_a_thousand_letters_is_refused(api: Api, order_of) -> None:
    order = msgspec.structs.replace(order_of(), submitted_by="x" * 201)

    assert (await api.ask("POST", "/v1/jobs", submission(order), JSON)).status == 422


async def test_a_load_job_is_waited_for_by_watching_it_in_the_name_of_its_submitter(
    apis: Apis, tokens: Tokens, order_of
) -> None:
    """The leader answers who watches, and refuses who submits: it keeps a table of who may ask for what."""
    api = await apis.start(auth=tokens)
    control = api.control
    control.bundles[DIGEST] = CONTENT
    body, token = submission(order_of(digest=DIGEST)), tokens.issue("ann", "submitter", 2**33, "t1")
    waiting = asyncio.create_task(api.ask("POST", "/v1/jobs?wait=60s", body, JSON, token))
    await control.watchers_become(1)
    job = control.jobs_by_id["job1"]
    job.facts = msgspec.structs.replace(job.facts, state=JobState.COMPLETED)
    await control.tell(job, JobUpdate(job.facts, 1, final=True))

    answer = await waiting

    assert (answer.status, json.loads(answer.body)["state"]) == (201, "completed")
    assert control.askers[-1] == Asker("watch", "submitter", "ann", "t1", "127.0.0.1")


# Looking.


async def test_jobs_come_in_pages(api: Api) -> None:
    for number in range(5):
        api.control.add_job(f"job{number}")

    seen, cursor = [], ""
    for _ in range(3):
        answer = await api.ask("GET", f"/v1/jobs?limit=2&cursor={cursor}&state=running")
        page = msgspec.json.decode(answer.body, type=JobsPage)
        seen += [facts.id for facts in page.items]
        cursor = page.next

    assert (seen, cursor) == ([f"job{number}" for number in range(5)], "")


@pytest.mark.parametrize(
    "query",
    [
        "state=gone",
        "limit=0",
        "limit=501",
        "limit=x",
        "limit=-1",
        "limit=" + "9" * 5000,
        "limit=%C2%B2",
        "cursor=" + "c" * 201,
    ],
    ids=range(8),
)
async def test_a_bad_query_is_refused(api: Api, query: str) -> None:
    answer = await api.ask("GET", f"/v1/jobs?{query}")

    assert answer.status == 422
    assert problem_in(answer).instance == "/v1/jobs"
    assert api.control.asked == []


@pytest.mark.parametrize("id", ["nojob", "a" * 65, "%00", "a%0d%0ab", "%2e%2e", "j%C3%B6b"])
@pytest.mark.parametrize(
    ("method", "rest"), [("GET", ""), ("GET", "/order"), ("GET", "/result"), ("POST", "/cancel")], ids=range(4)
)
async def test_a_job_that_is_not_there_is_not_found(api: Api, id: str, method: str, rest: str) -> None:
    answer = await api.ask(method, f"/v1/jobs/{id}{rest}")

    assert answer.status == 404
    assert problem_in(answer).type == "urn:talka:problem:no-such-job"


async def test_an_order_is_shown_without_the_values_of_its_variables(api: Api) -> None:
    api.control.add_job("job1")

    answer = await api.ask("GET", "/v1/jobs/job1/order")

    shown = msgspec.json.decode(answer.body, type=JobOrder)
    assert (shown.bundle.env, shown.bundle.signature, shown.name) == ({"TOKEN": ""}, b"", "shop.py")
    assert b"secret" not in answer.body


async def test_an_order_is_shown_without_the_headers_and_body_of_its_request(api: Api) -> None:
    job = api.control.add_job("job1")
    request = UrlRequest("POST", {"token": "a secret"}, b"secrets")
    bundle = msgspec.structs.replace(job.order.bundle, url="http://x/", request=request)
    api.control.jobs_by_id["job1"] = FakeJob(job.facts, msgspec.structs.replace(job.order, bundle=bundle))

    answer = await api.ask("GET", "/v1/jobs/job1/order")

    shown = msgspec.json.decode(answer.body, type=JobOrder)
    assert (shown.bundle.url, shown.bundle.request) == ("http://x/", PLAIN_GET)


async def test_the_result_is_there_once_the_job_has_ended(api: Api) -> None:
    job = api.control.add_job("job1")
    answer = await api.ask("GET", "/v1/jobs/job1/result")
    assert (answer.status, problem_in(answer).detail) == (409, "job job1 is running: there is no result yet")

    job.result = b'{"schema": "talka"}'

    answer = await api.ask("GET", "/v1/jobs/job1/result")
    assert (answer.status, answer.body) == (200, b'{"schema": "talka"}')


# Cancelling and draining.


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [(b'{"reason": "enough"}', JSON, "enough"), (b"{}", JSON, "cancelled by a user"), (b"", {}, "cancelled by a user")],
    ids=range(3),
)
async def test_a_job_is_cancelled_with_a_reason(api: Api, body: bytes, headers: dict[str, str], reason: str) -> None:
    api.control.add_job("job1")

    answer = await api.ask("POST", "/v1/jobs/job1/cancel", body, headers)

    assert msgspec.json.decode(answer.body, type=JobFacts).cancel == reason


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"reason": 1}', JSON, 422),
        (b"nonsense", JSON, 400),
        (b'{"reason": "%s"}' % (b"x" * 1001), JSON, 422),
        (b"x" * 9000, JSON, 413),
        (b"x", {}, 413),
        (b"x", {"content-type": "text/plain"}, 415),
    ],
    ids=range(6),
)
async def test_a_bad_cancel_is_refused(api: Api, body: bytes, headers: dict[str, str], status: int) -> None:
    api.control.add_job("job1")

    assert (await api.ask("POST", "/v1/jobs/job1/cancel", body, headers)).status == status
    assert api.control.asked == []


async def test_a_worker_is_shown_with_its_handlers_and_its_machine(api: Api) -> None:
    shown = json.loads((await api.ask("GET", "/v1/workers/w1")).body)

    assert (shown["handlers"], shown["machine"]["pid"], shown["machine"]["tags"]) == (["resize"], 4711, {"rack": "7"})


@pytest.mark.parametrize("name", ["w3", "%00", "a%20b", "w" * 257])
async def test_a_worker_that_is_not_there_is_not_shown(api: Api, name: str) -> None:
    answer = await api.ask("GET", f"/v1/workers/{name}")

    assert (answer.status, problem_in(answer).type) == (404, "urn:talka:problem:no-such-worker")


async def test_a_worker_is_drained(api: Api) -> None:
    answer = await api.ask("POST", "/v1/workers/w1/drain")

    assert json.loads(answer.body)["state"] == "draining"


async def test_a_worker_takes_work_again(api: Api) -> None:
    answer = await api.ask("POST", "/v1/workers/w1/undrain")
    assert json.loads(answer.body)["state"] == "healthy"

    answer = await api.ask("POST", "/v1/workers/w2/undrain")

    assert (answer.status, problem_in(answer).type) == (409, "urn:talka:problem:conflict")


@pytest.mark.parametrize("verb", ["drain", "undrain"])
@pytest.mark.parametrize("name", ["w3", "%00", "a%20b", "w" * 257])
async def test_a_worker_that_is_not_there_is_not_found(api: Api, name: str, verb: str) -> None:
    answer = await api.ask("POST", f"/v1/workers/{name}/{verb}")

    assert (answer.status, problem_in(answer).type) == (404, "urn:talka:problem:no-such-worker")


async def test_a_drain_with_a_body_is_refused(api: Api) -> None:
    assert (await api.ask("POST", "/v1/workers/w1/drain", b"{}", JSON)).status == 413


# The cluster and the node.


async def test_the_cluster_and_its_workers_are_shown(api: Api) -> None:
    cluster = json.loads((await api.ask("GET", "/v1/cluster")).body)
    workers = json.loads((await api.ask("GET", "/v1/workers")).body)

    assert (cluster["name"], cluster["leader"], cluster["cores_free"]) == ("shop", "m1", 2)
    assert [(worker["name"], worker["free"]) for worker in workers] == [("w1", 2)]


async def test_a_node_that_is_not_ready_says_why_and_still_lives(api: Api) -> None:
    assert (await api.ask("GET", "/readyz")).status == 200

    api.control.not_ready = "it is joining the cluster"

    answer = await api.ask("GET", "/readyz")
    assert (answer.status, problem_in(answer).detail) == (503, "it is joining the cluster")
    assert (await api.ask("GET", "/livez")).status == 200


async def test_metrics_are_in_prometheus_text_format(api: Api) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    answer = await api.ask("GET", "/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert [family.name for family in text_string_to_metric_families(answer.body.decode())] == ["talka_jobs"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/v1/jobs", 405),
        ("GET", "/v1/bundles/" + DIGEST, 405),
        ("POST", "/v1/jobs/job1", 405),
        ("GET", "/v1/jobs/", 404),
        ("GET", "/v1/jobs/job1/watch", 426),
        ("GET", "/v2/jobs", 404),
        ("GET", "/", 404),
    ],
    ids=range(7),
)
async def test_what_is_no_route_is_a_problem_too(api: Api, method: str, path: str, status: int) -> None:
    answer = await api.ask(method, path)

    assert problem_in(answer).status == status
    assert ("allow" in answer.headers) == (status == 405)


async def test_every_answer_carries_the_headers_that_keep_browsers_out(api: Api) -> None:
    for path in ("/v1/jobs", "/nowhere", "/v1/jobs/nojob", "/livez"):
        headers = (await api.ask("GET", path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "server" not in headers


# When things go wrong behind the API.


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("there is no leader"), 503),
        (Superseded("another leads"), 503),
        (Conflict("no"), 409),
        (Invalid("no"), 422),
        (Untrusted("no"), 400),
        (TooBusy("too many jobs", 2.5), 429),
        (RuntimeError("a secret of the inside"), 500),
    ],
    ids=range(7),
)
async def test_errors_behind_the_api_become_problems(api: Api, error: Exception, status: int) -> None:
    api.control.errors["jobs"] = error

    answer = await api.ask("GET", "/v1/jobs")

    assert problem_in(answer).status == status
    assert b"secret" not in answer.body
    assert answer.headers.get("retry-after") == {429: "3", 503: "2"}.get(status)


@pytest.mark.parametrize("api", [ApiLimits(call_s=0.01)], indirect=True)
async def test_a_cluster_that_does_not_answer_is_unavailable(api: Api) -> None:
    api.control.hold = asyncio.Event()

    answer = await api.ask("GET", "/v1/jobs")

    assert (answer.status, problem_in(answer).detail) == (
        503,
        "nobody who could list jobs answered within 0.01 s: try again",
    )


async def test_whoever_asks_too_often_is_told_when_to_come_back(apis: Apis, tokens: Tokens) -> None:
    seen = []

    def limiter(operation: str, client: str) -> float:
        seen.append((operation, client))
        return 1.5 if operation == "jobs" else 0

    api, guarded = await apis.start(limiter=limiter), await apis.start(auth=tokens, limiter=limiter)

    answer = await api.ask("GET", "/v1/jobs")
    await api.ask("GET", "/livez")
    await guarded.ask("GET", "/v1/cluster", token=tokens.issue("ann", "viewer", 2**33))

    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert seen == [("jobs", ""), ("cluster", "ann")], "where no tokens are used nobody is counted"
    assert api.control.asked == []


async def test_a_client_that_goes_away_while_it_sends_harms_nobody(api: Api, control: FakeControl) -> None:
    head = f"PUT /v1/bundles/{DIGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\na".encode()
    _, writer = await asyncio.open_connection(api.address.host, api.address.port)

    writer.write(head)
    await writer.drain()
    writer.transport.abort()

    assert (await api.ask("GET", "/v1/jobs")).status == 200
    assert control.bundles == {}


async def test_how_long_each_request_takes_can_be_seen_and_how_it_was_answered(apis: Apis) -> None:
    seen: list[tuple[object, ...]] = []

    class Stopwatch:
        def begin(self, operation: str) -> int:
            seen.append(("begin", operation))
            return len(seen)

        def end(self, number: int, status: int) -> None:
            seen.append(("end", number, status))

    def limiter(operation: str, client: str) -> float:
        return 1.0 if operation == "workers" else 0.0

    api = await apis.start(limiter=limiter, stopwatch=Stopwatch())

    assert (await api.ask("GET", "/v1/jobs")).status == 200
    assert (await api.ask("GET", "/v1/workers")).status == 429
    assert seen == [("begin", "jobs"), ("end", 1, 200), ("begin", "workers"), ("end", 3, 429)]
