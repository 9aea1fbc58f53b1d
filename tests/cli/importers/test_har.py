"""A recording becomes a test that repeats it, and nothing secret in it is written down."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.cli.importers.har import MOST_REQUESTS, BadRecording, draft_from_har, is_secret_name
from talka.cli.importers.test_writer import (
    COLUMNS,
    Constant,
    Draft,
    DraftRequest,
    Fields,
    Journey,
    Variable,
    laid_out,
    written,
)

QUIETLY = ("--ui", "none", "--cores", "1")
RECORDINGS = Path(__file__).parent / "recordings"
HARS = ["browser.har", "api.har", "forms.har"]
SECRETS = {
    "browser.har": ["c0ffee5e55104242deadbeef"],
    "api.har": [
        *("correct-horse-battery", "eyJhbGciOiJIUzI1NiJ9", "c2lnbmF0dXJl", "k-93c1f0a7b2", "csrf-5512-aa01"),
        *("YWRhOnNlc2FtZS1vcGVu", "sesame-open"),
    ],
    "forms.har": ["open+sesame!", "open%2Bsesame"],
}
VARIABLES = ("PASSWORD", "AUTHORIZATION", "AUTHORIZATION_2", "API_KEY", "X_CSRF_TOKEN", "RECEIPT", "SESSION")


def recorded(name: str) -> str:
    return written(draft_from_har((RECORDINGS / name).read_bytes(), name))


def entry(method: str = "GET", url: str = "http://a.test/", status: int = 200, **request: Any) -> dict[str, Any]:
    content = {"mimeType": request.pop("answer", "text/html")}
    location = request.pop("location", "")
    return {
        "request": {"method": method, "url": url, "headers": [], **request},
        "response": {"status": status, "content": content, "redirectURL": location},
    }


def draft_of(*entries: dict[str, Any]) -> Draft:
    return draft_from_har(json.dumps({"log": {"version": "1.2", "entries": entries}}).encode(), "x.har")


def test_of(*entries: dict[str, Any]) -> str:
    return written(draft_of(*entries))


test_of.__test__ = False  # type: ignore[attr-defined]


def only(draft: Draft) -> DraftRequest:
    (request,) = draft.journeys[0].requests
    return request


def posted(text: str, kind: str = "application/json", **more: Any) -> dict[str, Any]:
    return entry("POST", postData={"mimeType": kind, "text": text, **more})


def at(second: float, took_ms: object = 0, **more: Any) -> dict[str, Any]:
    minute, second = divmod(second, 60)
    started = f"2026-03-02T09:{int(minute):02d}:{second:06.3f}Z"
    return entry(**more) | {"startedDateTime": started, "time": took_ms}


# Pauses.


def test_pause_of_the_recording_is_kept_between_the_steps() -> None:
    text = test_of(at(1, 500, url="http://a.test/one"), at(2.74, url="http://a.test/two"))

    assert "from talka import URL, HTTPResponse, Workflow, action, step" in text
    assert (
        """
    @action(get_one)
    async def pause_before_get_two(self) -> None:
        await self.pause("1.2s")

    @step(pause_before_get_two)
    async def get_two("""
        in text
    )


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([at(1), at(1.2)], id="too short to be noticed"),
        pytest.param([at(1, 5000), at(2)], id="at the same time"),
        pytest.param([at(9), at(2)], id="out of order"),
        pytest.param([entry(), at(9)], id="unknown"),
        pytest.param([at(1), at(2) | {"startedDateTime": "yesterday"}], id="not an instant"),
        pytest.param([at(1)], id="the first"),
    ],
)
def test_no_pause_is_made_up(entries: list[dict[str, Any]]) -> None:
    assert "pause" not in test_of(*entries)


@pytest.mark.parametrize("took", [None, -1, "long", True, 1e300])
def test_length_that_cannot_be_is_none(took: object) -> None:
    assert 'self.pause("2.0s")' in test_of(at(1, took), at(3))


def test_pause_is_counted_from_the_end_of_what_a_redirect_led_to() -> None:
    led = at(1, 100, url="http://a.test/old", status=302, location="/new")
    text = test_of(led, at(1.1, 900, url="http://a.test/new"), at(4, url="http://a.test/next"))

    assert 'self.pause("2.0s")' in text


def test_nobody_waits_for_a_coffee_break() -> None:
    assert 'self.pause("60.0s")' in test_of(at(1), at(601))


def test_pauses_are_of_each_host_for_itself() -> None:
    text = test_of(at(1), at(2, url="http://b.test/"), at(3))

    assert text.count("self.pause(") == 1 and 'self.pause("2.0s")' in text


# The recordings.


@pytest.mark.parametrize("name", HARS)
def test_recording_becomes_a_test_that_runs(name: str, talka, server, folder: Path) -> None:
    (folder / "loadtest.py").write_text(recorded(name))
    variables = [part for variable in VARIABLES for part in ("--env", f"{variable}=something")]
    done = talka("run", "loadtest.py", "--iterations", "3", "--env", f"TARGET={server.url}", *variables, *QUIETLY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.requests > 0


@pytest.mark.parametrize("name", HARS)
def test_no_recorded_secret_is_written(name: str) -> None:
    text = recorded(name)
    assert all(secret not in text for secret in SECRETS[name])


@pytest.mark.parametrize("name", HARS)
def test_written_test_is_formatted_and_checked(name: str, folder: Path) -> None:
    file = folder / "loadtest.py"
    file.write_text(recorded(name))
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--isolated", "--select", "F,E9,I", file], check=True, capture_output=True)
    subprocess.run([*ruff, "format", "--isolated", "--line-length", "120", "--check", file], check=True)
    compile(file.read_text(), file, "exec")
    assert max(map(len, file.read_text().splitlines())) <= COLUMNS


def test_written_tests_satisfy_the_type_checker(folder: Path) -> None:
    for name in HARS:
        (folder / f"{name[:-4]}.py").write_text(recorded(name))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *(f"{name[:-4]}.py" for name in HARS)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_notes_say_what_was_skipped() -> None:
    draft = draft_from_har((RECORDINGS / "browser.har").read_bytes(), "browser.har")
    assert draft.notes[0].startswith("Skipped 10 requests: 6 for static assets (images, fonts, css, js)")


# What is kept.


def test_requests_are_steps_in_order_with_names_of_their_own() -> None:
    text = test_of(entry(url="http://a.test/"), entry(url="http://a.test/users/17/orders"), entry(url="http://a.test/"))
    names = [line.split("(")[0].split()[-1] for line in text.splitlines() if "async def" in line]
    assert names == ["get_index", "get_users_orders", "get_index_2"]
    assert "@step(get_users_orders)" in text


def test_static_assets_are_skipped_by_kind_and_without_one_by_name() -> None:
    draft = draft_of(
        entry(url="http://a.test/data.js", answer="application/json"),
        entry(url="http://a.test/pixel", answer="image/gif"),
        entry(url="http://a.test/site.css", answer=""),
        entry("POST", "http://a.test/site.css", answer=""),
    )
    assert [request.name for request in draft.journeys[0].requests] == ["get_data_js", "post_site_css"]


def test_where_a_redirect_led_is_left_to_the_client_and_its_status_counts() -> None:
    draft = draft_of(
        entry("POST", "http://a.test/login", 302, location="/home"), entry(url="http://a.test/home", status=404)
    )
    assert only(draft).name == "post_login" and only(draft).expect == (404,)


def test_page_asked_for_again_after_a_redirect_is_a_step() -> None:
    draft = draft_of(
        entry(url="http://a.test/old", status=301, location="http://a.test/new"),
        entry(url="http://a.test/new"),
        entry(url="http://a.test/new"),
    )
    assert [request.name for request in draft.journeys[0].requests] == ["get_old", "get_new"]


def test_status_of_400_or_more_is_expected() -> None:
    assert only(draft_of(entry(status=410))).expect == (410,)
    assert only(draft_of(entry(status=304))).expect == ()


def test_other_hosts_have_classes_that_are_switched_off() -> None:
    draft = draft_of(entry(url="http://b.test/x"), entry(), entry(), entry(url="https://www.c.test:8443/y"))
    assert [(journey.name, journey.is_off) for journey in draft.journeys] == [
        ("Visitor", False),
        ("BTest", True),
        ("CTest8443", True),
    ]
    assert [constant.default for constant in draft.constants] == [
        "http://a.test",
        "http://b.test",
        "https://www.c.test:8443",
    ]


def test_query_is_params_and_repeated_names_are_lists() -> None:
    request = only(draft_of(entry(url="http://a.test/s?q=a%20b&tag=1&tag=2&empty=#top")))
    assert request.params == {"q": "a b", "tag": ["1", "2"], "empty": ""}
    assert request.path == ["/", "s"]


def test_form_is_a_form_whether_recorded_as_text_or_as_fields() -> None:
    form = "application/x-www-form-urlencoded"
    assert only(draft_of(posted("a=1&a=2&b=", form))).data == Fields({"a": ["1", "2"], "b": ""})
    assert only(draft_of(posted("", form, params=[{"name": "c", "value": "3"}]))).data == Fields({"c": "3"})


def test_json_is_a_dict_and_json_of_another_type_keeps_its_type() -> None:
    assert only(draft_of(posted('{"a": [1, null, true]}'))).data == {"a": [1, None, True]}
    request = only(draft_of(posted("[1]", "application/vnd.api+json")))
    assert request.data == [1] and request.headers == {"content-type": "application/vnd.api+json"}


@pytest.mark.parametrize(
    "body",
    ['"text"', "null", "{broken", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 40 + "]" * 40, "9" * 40],
)
def test_json_that_no_dict_can_stand_for_is_sent_as_it_was(body: str) -> None:
    request = only(draft_of(posted(body)))
    assert request.data == body and request.headers == {"content-type": "application/json"}


def test_bytes_are_sent_as_bytes() -> None:
    request = only(draft_of(posted("/wD+", "application/octet-stream", encoding="base64")))
    assert request.data == b"\xff\x00\xfe"


def test_headers_of_the_browser_are_dropped_and_others_kept() -> None:
    headers = [
        {"name": name, "value": "x"}
        for name in (
            "User-Agent",
            ":authority",
            "Sec-Fetch-Mode",
            "Cookie",
            "Referer",
            "If-None-Match",
            "X-Shop",
            "bad name",
        )
    ]
    assert only(draft_of(entry(headers=headers))).headers == {"x-shop": "x"}


def test_path_is_made_safe_for_a_literal() -> None:
    text = test_of(entry(url="http://a.test/a'b\"c\\d{TARGET}/ü%20"))
    ast.parse(text)
    assert "/a%27b%22c%5Cd%7BTARGET%7D/%C3%BC%20" in text


def test_more_requests_than_anybody_reads_are_cut_off_and_it_is_said() -> None:
    draft = draft_of(*[entry()] * (MOST_REQUESTS + 3))
    assert len(draft.journeys[0].requests) == MOST_REQUESTS
    assert f"3 beyond the first {MOST_REQUESTS}" in draft.notes[0]


# Secrets.


@pytest.mark.parametrize(
    "name",
    ["token", "access_token", "accessToken", "X-Api-Key", "apikey", "key", "password", "userPassword", "PHPSESSID"],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["keyword", "monkey", "author", "passenger", "design", "page", "pinned", ""])
def test_names_of_what_is_none(name: str) -> None:
    assert not is_secret_name(name)


SECRET = "s3cr3t-of-ada"


@pytest.mark.parametrize(
    "recording",
    [
        entry(headers=[{"name": "Authorization", "value": f"Bearer {SECRET}"}]),
        entry(headers=[{"name": "authorization", "value": SECRET}]),
        entry(headers=[{"name": "X-Api-Key", "value": SECRET}]),
        entry(headers=[{"name": "Cookie", "value": f"sid={SECRET}"}], url=f"http://a.test/x/{SECRET}"),
        entry(headers=[{"name": "Cookie", "value": f"sid={SECRET}"}], url=f"http://a.test/?next=/x%3Fy%3D{SECRET}"),
        entry(url=f"http://a.test/?token={SECRET}"),
        entry(url=f"http://a.test/?{SECRET}=1&key={SECRET}"),
        entry(url=f"http://ada:{SECRET}@a.test/"),
        entry(url=f"http://a.test/#access_token={SECRET}"),
        posted(json.dumps({"login": {"password": SECRET}, "again": [f"it is {SECRET}"]})),
        posted(json.dumps({"credentials": {"value": SECRET}})),
        posted(json.dumps({"query": f'mutation {{ login(password: "{SECRET}") }}'})),
        posted(f"user=ada&password={SECRET}", "application/x-www-form-urlencoded"),
        posted(f"<password>{SECRET}</password>", "application/xml"),
        posted(f'{{"password": "{SECRET}", "broken', "application/json"),
        entry("POST", postData={"mimeType": "multipart/form-data", "params": [{"name": "pwd", "value": SECRET}]}),
    ],
)
def test_secret_is_never_written_wherever_it_was_recorded(recording: dict[str, Any]) -> None:
    assert SECRET not in test_of(recording)


def test_secret_known_late_is_hidden_where_it_was_sent_early() -> None:
    early, late = f"http://a.test/{SECRET}/eyJhbGciOiJub25lIn0.e30.x", f"http://a.test/?token={SECRET}"
    text = test_of(entry(url=early), entry(url=late))
    assert SECRET not in text and "S3CR3T" not in text.upper()


def test_equal_secrets_share_a_variable_and_others_do_not() -> None:
    urls = [f"http://a.test/?token={value}" for value in ("one-1", "two-2", "one-1")]
    draft = draft_of(*(entry(url=url) for url in urls))
    assert [request.params["token"] for request in draft.journeys[0].requests] == [
        Variable("TOKEN"),
        Variable("TOKEN_2"),
        Variable("TOKEN"),
    ]
    assert draft.needed == ["TOKEN", "TOKEN_2"]


def test_secret_number_stays_a_number_and_a_count_of_tokens_is_none() -> None:
    draft = draft_of(posted('{"pin": 1234, "max_tokens": 100}'))
    assert only(draft).data == {"pin": Variable("PIN"), "max_tokens": 100}
    assert 'PIN = int(os.environ["PIN"])' in written(draft)


def test_variable_is_explained_beside_it() -> None:
    text = test_of(entry(headers=[{"name": "Authorization", "value": f"Bearer {SECRET}"}]))
    assert "# Recorded in the header Authorization; set your own value: --env AUTHORIZATION='Bearer …'." in text
    assert 'AUTHORIZATION = os.environ["AUTHORIZATION"]' in text


# What is no recording.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "no log with entries"),
        (b'{"log": {}}', "no log with entries"),
        (b'{"log": {"entries": {}}}', "no log with entries"),
        (b'{"openapi": "3.0.0"}', "--from-openapi"),
        (b'{"log": {"version": "2.0", "entries": []}}', "version 2.0"),
        (b'{"log": {"version": "1.2", "entries": []}}', "no request"),
        (b'{"log": {"entries": [null, 1, {}, {"request": {"url": "http://[", "method": "GET"}}]}}', "no request"),
    ],
)
def test_what_is_no_recording_is_refused_with_a_sentence(content: bytes, words: str) -> None:
    with pytest.raises(BadRecording, match="x.har") as error:
        draft_from_har(content, "x.har")
    assert words in str(error.value)


def test_recording_of_static_assets_alone_says_so() -> None:
    with pytest.raises(BadRecording, match="1 for static assets"):
        draft_of(entry(answer="image/png"))


# The writer.

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=150), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(values | st.binary(max_size=300))
def test_every_value_is_read_back_as_it_was_and_no_line_is_too_long(value: Any) -> None:
    laid = laid_out(value, 8, 30)
    assert ast.literal_eval(laid) == value
    first, *rest = laid.split("\n")
    assert isinstance(value, int | float) or (len(first) + 30 < COLUMNS and all(len(line) <= COLUMNS for line in rest))


def test_text_full_of_quotes_fits_its_lines() -> None:
    for value in ("\"'" * 200, "\"''" * 200, '\'""' * 200):
        assert ast.literal_eval(laid_out(value, 8, 30)) == value
        assert max(map(len, laid_out(value, 8, 30).splitlines())) <= COLUMNS


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.text(), st.text(), st.dictionaries(st.text(max_size=8), st.text()), st.text())
def test_nothing_given_becomes_code(title: str, path: str, params: dict[str, str], comment: str) -> None:
    request = DraftRequest(name="get", method="GET", path=[path], params=params, comment=comment)
    text = written(
        Draft(
            title=title,
            constants=[Constant(name="TARGET", comment=comment, default=path)],
            journeys=[Journey(name="Visitor", base=Variable("TARGET"), requests=[request])],
        )
    )
    module = ast.parse(text)
    assert [type(node).__name__ for node in module.body] == ["Expr", "Import", "ImportFrom", "Assign", "ClassDef"]
    body = module.body[-1]
    assert isinstance(body, ast.ClassDef)
    assert [type(node).__name__ for node in body.body] == ["Assign"] * 3 + ["AsyncFunctionDef"]
