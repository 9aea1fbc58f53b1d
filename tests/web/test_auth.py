"""Who is let in, and who may do what."""

import json

import jwt
import pytest

from talka.client.requests import Forbidden, NotAuthorised
from talka.clock import utc_now
from talka.errors import Invalid
from talka.web.auth import LOCAL, ROLES, Identity, Tokens, check_host, check_origin, host_name
from talka.web.operations import OPERATIONS
from talka.wire.security.access import LEAST, Asker
from tests.web.fake_control import KEY, Api, Apis

NOW_S = int(utc_now().timestamp())
LATER_S = NOW_S + 86_400  # no run takes that long
DIGEST = "a" * 64
CALLS = [
    (operation, operation.path.replace("{digest}", DIGEST).replace("{id}", "job1").replace("{name}", "w1"))
    for operation in OPERATIONS
]
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "x3JJHMbDL1EzLkh9GBhXDw==",
}


def signed(key: bytes = KEY, algorithm: str = "HS256", **claims: object) -> str:
    whole = {"sub": "ann", "role": "viewer", "exp": LATER_S, "aud": "shop", **claims}
    return jwt.encode({name: value for name, value in whole.items() if value is not None}, key, algorithm)


async def ask(api: Api, method: str, path: str, token: str):
    if method == "WEBSOCKET":
        return await api.ask("GET", path, headers=UPGRADE, token=token)
    return await api.ask(method, path, token=token)


# Tokens.


def test_a_token_tells_who_sent_it_and_the_role(tokens: Tokens) -> None:
    for role in ROLES:
        identity = tokens.identify("Bearer " + tokens.issue("ann", role, LATER_S))
        assert identity == ("ann", role, "")


def test_a_token_of_an_earlier_key_holds_until_that_key_is_taken_away(tokens: Tokens) -> None:
    token = tokens.issue("ann", "viewer", LATER_S)

    assert Tokens([b"n" * 32, KEY], "shop").identify(f"Bearer {token}").name == "ann"
    with pytest.raises(NotAuthorised, match="is not valid"):
        Tokens([b"n" * 32], "shop").identify(f"Bearer {token}")


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("", "needs a token"),
        ("Basic YTpi", "no bearer token"),
        ("Bearer", "no bearer token"),
        ("Bearer ", "no bearer token"),
        ("Bearer " + "x" * 5000, "no bearer token"),
        ("Bearer nonsense", "is not valid"),
        ("Bearer a.b.c", "is not valid"),
        ("Bearer " + signed(key=b"o" * 32), "is not valid"),
        ("Bearer " + signed(key=KEY * 2, algorithm="HS512"), "is not valid"),
        (
            "Bearer " + jwt.encode({"sub": "ann", "role": "operator", "aud": "shop", "exp": LATER_S}, "", "none"),
            "not valid",
        ),
        ("Bearer " + signed(exp=NOW_S - 60), "expired"),
        ("Bearer " + signed(nbf=LATER_S - 1), "is not valid"),
        ("Bearer " + signed(aud="other"), "another cluster"),
        ("Bearer " + signed(aud=["shop", "other"]), "another cluster"),
        ("Bearer " + signed(exp=None), "is not valid"),
        ("Bearer " + signed(sub=None), "is not valid"),
        ("Bearer " + signed(aud=None), "is not valid"),
        ("Bearer " + signed(role=None), "no role"),
        ("Bearer " + signed(role="root"), "no role"),
        ("Bearer " + signed(role=["operator"]), "no role"),
        ("Bearer " + signed(sub=""), "names nobody"),
    ],
    ids=range(21),
)
def test_what_is_no_token_of_this_cluster_is_refused(tokens: Tokens, header: str, sentence: str) -> None:
    with pytest.raises(NotAuthorised, match=sentence):
        tokens.identify(header)


def test_a_short_key_and_a_token_for_nobody_are_refused(tokens: Tokens) -> None:
    with pytest.raises(Invalid, match="at least 32 bytes"):
        Tokens([b"short"], "shop")
    with pytest.raises(Invalid, match="at least 32 bytes"):
        Tokens([], "shop")
    with pytest.raises(Invalid, match="for somebody"):
        tokens.issue("", "viewer", LATER_S)


# The matrix of roles, over HTTP.


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_do_what_the_table_says_and_nothing_else(apis: Apis, tokens: Tokens, role) -> None:
    api = await apis.start(auth=tokens)
    token = tokens.issue("ann", role, LATER_S)

    for operation, path in CALLS:
        answer = await ask(api, operation.method, path, token)
        is_allowed = operation.role is None or ROLES.index(operation.role) <= ROLES.index(role)
        assert (answer.status != 403) == is_allowed, operation.name
        assert answer.status not in (401, 500), operation.name


def test_table_of_least_roles_has_every_operation_and_nothing_else() -> None:
    assert set(LEAST) == {operation.name for operation in OPERATIONS}


async def test_who_asks_is_told_to_whoever_it_is_passed_on_to(apis: Apis, tokens: Tokens) -> None:
    api = await apis.start(auth=tokens)
    token = tokens.issue("ann", "operator", LATER_S, "t1")
    await ask(api, "POST", "/v1/workers/w1/drain", token)
    await ask(api, "GET", "/livez", "")
    assert api.control.askers == [Asker("drain", "operator", "ann", "t1", "127.0.0.1")]


def test_the_roles_are_as_documented() -> None:
    by_role = {role: {operation.name for operation in OPERATIONS if operation.role == role} for role in ROLES}

    assert by_role["admin"] == {"audit"}
    schedules = {f"{word}_schedule" for word in ("put", "drop", "pause", "resume", "run")}
    assert by_role["operator"] == {"drain", "undrain", "replay", "backfill", *schedules}
    assert by_role["submitter"] == {
        *("put_bundle", "has_bundle", "submit", "execute", "bulk", "submit_frames"),
        *("cancel", "pause", "resume", "retry", "retry_plan", "skip", "who_could_run"),
    }
    assert {operation.name for operation in OPERATIONS if operation.role is None} == {"livez", "readyz"}
    assert all(operation.method in ("GET", "WEBSOCKET") for operation in OPERATIONS if operation.role == "viewer")


async def test_without_a_token_only_health_is_told(apis: Apis, tokens: Tokens) -> None:
    api = await apis.start(auth=tokens)

    for operation, path in CALLS:
        answer = await ask(api, operation.method, path, "")
        if operation.role is None:
            assert answer.status == 200
            continue
        assert answer.status == 401, operation.name
        assert answer.headers["www-authenticate"].startswith("Bearer")
        if operation.method != "HEAD":
            assert answer.headers["content-type"] == "application/problem+json"
            assert json.loads(answer.body)["type"] == "urn:talka:problem:not-authorised"
    assert (await api.ask("GET", "/nowhere")).status == 401, "a stranger does not learn which paths there are"
    assert api.control.asked == []


async def test_nothing_of_a_body_is_looked_at_before_the_token(apis: Apis, tokens: Tokens) -> None:
    api = await apis.start(auth=tokens)
    viewer = tokens.issue("ann", "viewer", LATER_S)

    for token, status in (("", 401), (viewer, 403)):
        answer = await api.ask("POST", "/v1/jobs", b"{" * 1_000_000, {"content-type": "text/html"}, token)
        assert answer.status == status


async def test_a_refusal_names_the_role_that_it_takes(apis: Apis, tokens: Tokens) -> None:
    api = await apis.start(auth=tokens)

    answer = await api.ask("POST", "/v1/workers/w1/drain", token=tokens.issue("ann", "submitter", LATER_S))

    assert json.loads(answer.body)["detail"] == "a submitter may not drain a worker: that takes the role operator"


async def test_two_authorization_headers_are_one_too_many(apis: Apis, tokens: Tokens) -> None:
    api = await apis.start(auth=tokens)
    line = b"Authorization: Bearer " + tokens.issue("ann", "viewer", LATER_S).encode() + b"\r\n"

    answer = await api.send(b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + line + line + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"more than one authorization header" in answer


# Names and origins.


def get(host: str, *more: str) -> bytes:
    lines = ["GET /v1/jobs HTTP/1.1", *([f"Host: {host}"] if host else []), "Connection: close", *more, "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("host", ["localhost", "localhost:{port}", "127.0.0.1", "LOCALHOST.", "[::1]:{port}"])
async def test_on_loopback_the_names_of_loopback_are_answered(api: Api, host: str) -> None:
    answer = await api.send(get(host.format(port=api.address.port)))

    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "a@localhost", "localhost/", "x:99999", "[", " "],
    ids=range(8),
)
async def test_a_name_that_was_rebound_to_loopback_gets_nothing(api: Api, host: str) -> None:
    answer = await api.send(get(f"{host}"))

    assert answer.split(b" ")[1] in (b"403", b"400")
    assert api.control.asked == []


async def test_a_name_that_was_allowed_is_answered(apis: Apis) -> None:
    api = await apis.start(allowed_hosts=["Talka.Example"])

    assert (await api.send(get("talka.example:8470"))).startswith(b"HTTP/1.1 200 ")
    assert (await api.send(get("evil.example"))).startswith(b"HTTP/1.1 403 ")


async def test_health_is_told_under_any_name(api: Api) -> None:
    for path in (b"/livez", b"/readyz"):
        raw = b"GET %s HTTP/1.1\r\nHost: 10.1.2.3\r\nConnection: close\r\n\r\n" % path
        assert (await api.send(raw)).startswith(b"HTTP/1.1 200 ")


async def test_with_tokens_any_name_will_do_unless_names_are_given(apis: Apis, tokens: Tokens) -> None:
    line = "Authorization: Bearer " + tokens.issue("ann", "viewer", LATER_S)
    anywhere, named = await apis.start(auth=tokens), await apis.start(auth=tokens, allowed_hosts=["talka.example"])

    assert (await anywhere.send(get("m1.internal", line))).startswith(b"HTTP/1.1 200 ")
    assert (await named.send(get("m1.internal", line))).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "https://localhost", "http://["]
)
async def test_a_page_of_another_origin_gets_nothing(api: Api, origin: str) -> None:
    headers = {"origin": origin}

    assert (await api.ask("GET", "/v1/jobs", headers=headers)).status == 403
    assert (await api.ask("GET", "/v1/jobs/job1/watch", headers=headers | UPGRADE)).status == 403
    assert api.control.asked == []


@pytest.mark.parametrize("port", ["", ":1", ":{other}"])
async def test_a_page_of_this_machine_at_another_port_gets_nothing(api: Api, port: str) -> None:
    origin = f"http://{api.address.host}{port.format(other=api.address.port ^ 1)}"
    headers = {"origin": origin}

    assert (await api.ask("GET", "/v1/jobs", headers=headers)).status == 403
    assert (await api.ask("GET", "/v1/jobs/job1/watch", headers=headers | UPGRADE)).status == 403
    assert api.control.asked == []


def test_an_origin_differs_by_its_port_alone() -> None:
    check_origin("http://127.0.0.1:8470", "127.0.0.1:8470", "http")
    for origin in ("http://127.0.0.1:8471", "http://127.0.0.1", "http://127.0.0.1:80"):
        with pytest.raises(Forbidden, match="may not use this API"):
            check_origin(origin, "127.0.0.1:8470", "http")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "something new"])
async def test_what_a_page_elsewhere_makes_a_browser_get_uses_up_nothing_of_anybodys_limits(
    apis: Apis, site: str
) -> None:
    """An image at another site: browsers name no Origin for it."""
    counted: list[tuple[str, str]] = []

    def limiter(operation: str, client: str) -> float:
        counted.append((operation, client))
        return 0.0

    api = await apis.start(limiter=limiter)

    for path in ("/v1/jobs", "/v1/workers", "/metrics", "/v1/jobs/job1/watch"):
        headers = {"sec-fetch-site": site, "sec-fetch-dest": "image", "sec-fetch-mode": "no-cors"}
        answer = await api.ask("GET", path, headers=headers | (UPGRADE if path.endswith("watch") else {}))
        assert answer.status == 403
        assert b"pages of other sites may not use this API" in answer.body

    assert counted == [] and api.control.asked == []
    for own in ("same-origin", "none"):
        assert (await api.ask("GET", "/v1/jobs", headers={"sec-fetch-site": own})).status == 200
    assert counted == [("jobs", "")] * 2
    assert (await api.ask("GET", "/livez", headers={"sec-fetch-site": site})).status == 200


async def test_a_page_of_this_server_may_ask(api: Api) -> None:
    answer = await api.ask("GET", "/v1/jobs", headers={"origin": f"http://{api.address}"})

    assert answer.status == 200


def test_default_ports_belong_to_their_scheme() -> None:
    check_origin("https://talka.example", "talka.example:443", "https")
    check_origin("http://talka.example:80", "talka.example", "http")
    with pytest.raises(Forbidden):
        check_origin("http://talka.example", "talka.example:443", "https")


def test_a_host_header_is_taken_apart() -> None:
    assert host_name("[::1]:8470") == "::1"
    assert host_name("A.Example.:80") == "a.example"
    assert [host_name(bad) for bad in ("", "a:b", "u@a", "a/b", "a?b", "a#b")] == [""] * 6
    with pytest.raises(Forbidden, match="the name .none.: it knows a, b"):
        check_host("", ["b", "a"])


def test_each_token_is_counted_for_itself() -> None:
    assert Identity("ann", "viewer").counted_as == Identity("ann", "admin").counted_as == "ann"
    assert Identity("ann", "viewer", "t1").counted_as != Identity("ann", "viewer", "t2").counted_as
    assert LOCAL.counted_as == "", "nobody is counted where no tokens are used"
