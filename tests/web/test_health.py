"""What a node without an API answers over HTTP."""

from starlette.applications import Starlette

from talka.web.auth import Tokens
from talka.web.health import make_health_app

KEY = b"k" * 32


async def ask(app: Starlette, path: str, **headers: str) -> tuple[int, str]:
    """One request, straight into the application."""
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)  # type: ignore[arg-type]
    body = b"".join(message.get("body", b"") for message in sent[1:])  # type: ignore[misc]
    return int(str(sent[0]["status"])), body.decode()


async def test_a_node_says_that_it_lives_and_why_it_is_not_ready() -> None:
    reasons = ["no manager has given this worker a lease", ""]
    app = make_health_app(lambda: reasons.pop(0), lambda: "")

    assert await ask(app, "/livez", host="localhost") == (200, "alive\n")
    status, text = await ask(app, "/readyz", host="localhost")
    assert status == 503 and "no manager has given this worker a lease" in text
    assert await ask(app, "/readyz", host="localhost") == (200, "ready\n")


async def test_metrics_are_for_loopback_names_where_there_are_no_tokens() -> None:
    app = make_health_app(lambda: "", lambda: "talka_cores 2\n")

    assert await ask(app, "/metrics", host="127.0.0.1:80") == (200, "talka_cores 2\n")
    assert (await ask(app, "/metrics", host="evil.example"))[0] in (400, 403, 421)


async def test_metrics_want_a_token_where_there_are_tokens_and_probes_never_do() -> None:
    tokens = Tokens([KEY], "default")
    app = make_health_app(lambda: "", lambda: "talka_cores 2\n", auth=tokens)
    token = tokens.issue("prometheus", "viewer", 1 << 40)

    assert (await ask(app, "/metrics", host="w1:80"))[0] == 401
    assert await ask(app, "/metrics", host="w1:80", authorization=f"Bearer {token}") == (200, "talka_cores 2\n")
    assert (await ask(app, "/livez", host="w1:80"))[0] == 200


async def test_a_node_without_an_api_has_no_other_paths() -> None:
    app = make_health_app(lambda: "", lambda: "")

    assert (await ask(app, "/v1/jobs", host="localhost"))[0] == 404
