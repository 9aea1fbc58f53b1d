import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import h11
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.engine.clients.requests import (
    BadAuth,
    BadBody,
    BadCookie,
    BadHeader,
    BadParams,
    Form,
    PreparedData,
    Request,
    prepare_auth,
    prepare_cookies,
    prepare_data,
    prepare_file,
    prepare_headers,
    prepare_json,
    prepare_params,
    serialise,
    without,
)
from talka.engine.clients.urls import parse_url
from talka.errors import Invalid

URL = parse_url("http://h:81/a?b=c")


def lines_of(request: Request) -> list[bytes]:
    head, _, _ = request.payload.partition(b"\r\n\r\n")
    return head.split(b"\r\n")


# Headers


def test_headers_become_lines() -> None:
    headers = prepare_headers({"X-Text": "  some text\t", "X-Number": 5, "x-name": "Ünicode"})
    assert headers.encoded == "X-Text: some text\r\nX-Number: 5\r\nx-name: Ünicode\r\n".encode()
    assert headers["X-Number"] == "5"
    assert headers.names == {"x-text", "x-number", "x-name"}
    assert prepare_headers(headers) is headers
    assert prepare_headers({}).encoded == b""


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X": "a\r\nEvil: 1"}, "line break"),
        ({"X": "a\0"}, "control character"),
        ({"X\r\nEvil": "1"}, "not a token"),
        ({"X Y": "1"}, "not a token"),
        ({"": "1"}, "not a token"),
        ({"Ü": "1"}, "not a token"),
        ({5: "1"}, "not a token"),
        ({"X": None}, "NoneType"),
        ({"X": True}, "bool"),
        ({"X": ["a"]}, "list"),
        ({"X": "1", "x": "2"}, "given twice"),
        ({"Content-Length": "5"}, "set by the client"),
        ({"Transfer-Encoding": "chunked"}, "set by the client"),
        ({"X": "\ud800"}, "UTF-8"),
        ([("X", "1")], "mapping"),
    ],
)
def test_bad_headers_are_refused(headers: Any, words: str) -> None:
    with pytest.raises(BadHeader, match=words):
        prepare_headers(headers)


@pytest.mark.parametrize(
    "prepared", [prepare_headers({"a": "1"}), prepare_params({"a": 1}), prepare_cookies({"a": "1"})]
)
def test_prepared_mappings_cannot_be_changed(prepared: Any) -> None:
    for change in (
        lambda: prepared.__setitem__("a", "2"),
        lambda: prepared.__delitem__("a"),
        lambda: prepared.update(a="2"),
        lambda: prepared.pop("a"),
        lambda: prepared.clear(),
    ):
        with pytest.raises(Invalid, match=r"copy it with dict"):
            change()
    with pytest.raises(Invalid):
        prepared |= {"a": "2"}
    assert len(prepared) == 1


# Parameters, cookies, credentials


def test_params_are_encoded() -> None:
    params = prepare_params({"a": 1, "b": [1, "two", True], "c": None, "d": False, "e": 0.5, "f g": "ä&=/ +", "h": ()})
    assert params.encoded == "a=1&b=1&b=two&b=true&d=false&e=0.5&f%20g=%C3%A4%26%3D%2F%20%2B"
    assert params["a"] == 1
    assert prepare_params(params) is params


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"))))
def test_params_survive_the_way_there(params: dict[str, str]) -> None:
    encoded = prepare_params(params).encoded
    assert parse_qsl(encoded, keep_blank_values=True, strict_parsing=bool(params)) == list(params.items())
    assert parse_url("http://h/").with_query(encoded).target.isascii()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"a": {}}, "dict"),
        ({"a": [b"x"]}, "bytes"),
        ({1: "a"}, "not a text"),
        ("a=1", "mapping"),
        ({"a": "\ud800"}, "UTF-8"),
    ],
)
def test_bad_params_are_refused(params: Any, words: str) -> None:
    with pytest.raises(BadParams, match=words):
        prepare_params(params)


def test_cookies_are_joined() -> None:
    cookies = prepare_cookies({"a": "1", "b": 2, "c": '"x"'})
    assert cookies.encoded == b'a=1; b=2; c="x"'
    assert prepare_cookies(cookies) is cookies


@pytest.mark.parametrize(
    ("cookies", "words"),
    [
        ({"a": "1; b=2"}, "semicolon"),
        ({"a": "1\r\n"}, "control"),
        ({"a b": "1"}, "not a token"),
        ({1: "1"}, "not a token"),
        ({"a": "\ud800"}, "UTF-8"),
        ("a=1", "mapping"),
    ],
)
def test_bad_cookies_are_refused(cookies: Any, words: str) -> None:
    with pytest.raises(BadCookie, match=words):
        prepare_cookies(cookies)


def test_a_pair_is_basic_a_word_a_bearer_token_and_any_other_text_itself() -> None:
    assert prepare_auth(("Ada", "pässword:1")).encoded == b"Basic " + base64.b64encode("Ada:pässword:1".encode())
    assert prepare_auth("abc.def").encoded == b"Bearer abc.def"
    assert prepare_auth("Digest x=y").encoded == b"Digest x=y"
    prepared = prepare_auth(("a", "b"))
    assert prepare_auth(prepared) is prepared
    assert prepared.value == ("a", "b")
    assert "Basic" not in repr(prepared)


@pytest.mark.parametrize("auth", [("a:b", "c"), ("a",), ("a", 5), "", "  ", "a b\r\nEvil: 1", 5, "\ud800"])
def test_bad_credentials_are_refused(auth: Any) -> None:
    with pytest.raises(BadAuth, match="auth"):
        prepare_auth(auth)


# Bodies


class AStruct(msgspec.Struct):
    a: int


@dataclass
class ADataclass:
    a: int


class AModel(pydantic.BaseModel):
    a: int


@pytest.mark.parametrize(
    ("value", "body", "content_type"),
    [
        (b"raw\0", b"raw\0", "application/octet-stream"),
        (bytearray(b"raw"), b"raw", "application/octet-stream"),
        (memoryview(b"raw"), b"raw", "application/octet-stream"),
        ("käse", "käse".encode(), "text/plain; charset=utf-8"),
        ("", b"", "text/plain; charset=utf-8"),
        ({"a": 1}, b'{"a":1}', "application/json"),
        ([1, None], b"[1,null]", "application/json"),
        ((1, 2), b"[1,2]", "application/json"),
        (AStruct(1), b'{"a":1}', "application/json"),
        (ADataclass(1), b'{"a":1}', "application/json"),
        (AModel(a=1), b'{"a":1}', "application/json"),
        (Form({"a": 1, "b": ["x y", "&"]}), b"a=1&b=x+y&b=%26", "application/x-www-form-urlencoded"),
    ],
)
def test_data_becomes_a_body_with_its_type(value: Any, body: bytes, content_type: str) -> None:
    data = prepare_data(value)
    assert (data.body, data.content_type) == (body, content_type)
    assert data.value is value
    assert prepare_data(data) is data


@pytest.mark.parametrize("value", [5, 1.5, object(), {1, 2}, AModel, ADataclass, lambda: None])
def test_data_of_unknown_form_is_refused(value: Any) -> None:
    with pytest.raises(BadBody, match="no known form"):
        prepare_data(value)


@pytest.mark.parametrize(
    ("value", "body"), [(5, b"5"), ("x", b'"x"'), ({"a": [True]}, b'{"a":[true]}'), (AModel(a=1), b'{"a":1}')]
)
def test_json_takes_anything_that_can_be_json(value: Any, body: bytes) -> None:
    data = prepare_json(value)
    assert (data.body, data.content_type) == (body, "application/json")
    assert prepare_json(data) is data


def test_what_cannot_be_json_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (object(), {"a": object()}, endless, {"a": "\ud800"}):
        with pytest.raises(BadBody, match="JSON"):
            prepare_json(value)


def test_bad_form_fields_and_texts_are_refused() -> None:
    with pytest.raises(BadParams, match="form"):
        prepare_data(Form({"a": object()}))
    with pytest.raises(BadBody, match="UTF-8"):
        prepare_data("\ud800")


def test_a_file_is_read_once_and_typed_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG")
    file = prepare_file(str(path))
    path.unlink()
    assert file == str(path)
    data = prepare_data(file)
    assert (data.body, data.content_type) == (b"\x89PNG", "image/png")
    assert prepare_file(file) is file


def test_a_file_of_unknown_type_is_just_bytes(tmp_path: Path) -> None:
    path = tmp_path / "data.qqq"
    path.write_bytes(b"")
    assert prepare_file(str(path)).content_type == "application/octet-stream"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBody, match=r"missing.txt.*cannot be read"):
        prepare_file(str(tmp_path / "missing.txt"))


# Whole requests


def test_a_bare_request_names_host_agent_and_nothing_more() -> None:
    request = serialise("GET", URL, "talka/1")
    assert request.payload == b"GET /a?b=c HTTP/1.1\r\nHost: h:81\r\nUser-Agent: talka/1\r\nAccept: */*\r\n\r\n"
    assert (request.method, request.url, request.is_head, request.is_last) == ("GET", URL, False, False)


@pytest.mark.parametrize(
    ("method", "has_length"), [("POST", True), ("PUT", True), ("PATCH", True), ("GET", False), ("DELETE", False)]
)
def test_methods_that_carry_bodies_say_when_there_is_none(method: str, has_length: bool) -> None:
    assert (b"Content-Length: 0" in lines_of(serialise(method, URL, "t"))) == has_length


def test_head_and_body_are_one_piece() -> None:
    request = serialise(
        "POST", URL, "t", prepare_headers({"X": "y"}), b"a=1", prepare_auth("token"), prepare_data({"a": 1})
    )
    assert request.payload == (
        b"POST /a?b=c HTTP/1.1\r\nHost: h:81\r\nUser-Agent: t\r\nAccept: */*\r\nX: y\r\nAuthorization: Bearer token\r\n"
        b'Cookie: a=1\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
    )


def test_headers_of_the_user_win() -> None:
    headers = {"host": "other", "USER-AGENT": "mine", "accept": "a/b", "Content-type": "c/d"}
    lines = lines_of(serialise("POST", URL, "t", prepare_headers(headers), data=prepare_data(b"x")))
    assert lines[1:] == [
        b"host: other",
        b"USER-AGENT: mine",
        b"accept: a/b",
        b"Content-type: c/d",
        b"Content-Length: 1",
    ]


def test_a_body_without_a_type_names_none() -> None:
    lines = lines_of(serialise("POST", URL, "t", data=PreparedData(None, b"x", None)))
    assert lines[-1] == b"Content-Length: 1"
    assert not any(line.startswith(b"Content-Type") for line in lines)


def test_credentials_given_twice_are_refused() -> None:
    with pytest.raises(BadHeader, match="twice"):
        serialise("GET", URL, "t", prepare_headers({"authorization": "x"}), auth=prepare_auth("y"))


@pytest.mark.parametrize(("value", "is_last"), [("close", True), ("Keep-Alive, Close", True), ("keep-alive", False)])
def test_a_request_may_ask_to_close_the_connection(value: str, is_last: bool) -> None:
    assert serialise("GET", URL, "t", prepare_headers({"CONNECTION": value})).is_last is is_last


def test_headers_are_taken_out_in_any_case() -> None:
    assert without({"Cookie": "a", "X": "b"}, ("cookie",)) == {"X": "b"}
    assert without(None, ("cookie",)) is None


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
    st.dictionaries(
        st.from_regex(r"X-[A-Za-z0-9]{1,8}", fullmatch=True),
        st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E)),
        max_size=5,
    ),
    st.one_of(st.none(), st.binary(max_size=200)),
)
def test_a_strict_server_reads_what_was_meant(method: str, headers: dict[str, str], body: bytes | None) -> None:
    if len({name.lower() for name in headers}) < len(headers):
        return
    request = serialise(method, URL, "t", prepare_headers(headers), data=None if body is None else prepare_data(body))
    server = h11.Connection(h11.SERVER)
    server.receive_data(request.payload)
    seen = server.next_event()
    assert isinstance(seen, h11.Request)
    assert (seen.method, seen.target) == (method.encode(), URL.target)
    got = dict(seen.headers)
    assert all(got[name.lower().encode()] == value.encode() for name, value in headers.items())
    received = b""
    while isinstance(event := server.next_event(), h11.Data):
        received += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert received == (body or b"")
    assert server.trailing_data == (b"", False)
