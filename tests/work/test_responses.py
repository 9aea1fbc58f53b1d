"""What a client call returns: headers, bodies and times as users read them."""

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.work import responses
from talka.work.responses import (
    BODY_SHOWN_BYTES,
    BrokenBody,
    CustomResponse,
    HTTPResponse,
    Response,
    ResponseHeaders,
    Timings,
    decoded,
)

quickly = settings(deadline=None, derandomize=True, max_examples=100)


def response_of(body=b"", status=200, **headers):
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return HTTPResponse("GET", "http://shop/", status, raw, body)


def bare_deflate(body):
    deflate = zlib.compressobj(wbits=-15)
    return deflate.compress(body) + deflate.flush()


CODINGS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}


# What all responses have


def test_a_response_is_accepted_and_has_no_times_until_they_are_measured():
    response = Response()

    assert (response.intended_ns, response.sent_ns, response.done_ns, response.accepted) == (0, 0, 0, True)


def test_a_response_without_a_label_is_told_as_accepted_or_not_and_one_with_a_label_by_it():
    class Word(Response):
        label = "BUSY"

    plain, word = Response(), Word()
    word.sent_ns, word.done_ns = 1_000_000, 3_500_000

    assert (plain.label, plain.outcome, plain.describe()) == ("", "", "the answer was not accepted")
    assert (word.outcome, word.describe()) == ("BUSY", "the call was answered BUSY")
    assert word.shown() == ["the call was answered BUSY in 2.50 ms"]


def test_an_http_response_is_counted_under_its_status_and_told_with_what_was_asked():
    response = response_of(b"x" * 500, status=503, X_Served="yes")

    assert (response.label, response.outcome) == ("503", 503)
    assert response.describe() == "GET http://shop/ answered 503"
    assert response.shown() == [
        "503 in 0 ms (first byte 0 ms)",
        "x-served: yes",
        "x" * BODY_SHOWN_BYTES + "… (500 bytes)",
    ]
    assert response_of().shown() == ["200 in 0 ms (first byte 0 ms)"]


@pytest.mark.parametrize(
    ("total_ns", "first_byte_ns", "text"),
    [
        (3_500_000, 2_000_000, "200 in 3.50 ms (first byte 2.00 ms)"),
        (10_000, 4_999, "200 in 0.01 ms (first byte < 0.01 ms)"),
        (9_999, 1, "200 in < 0.01 ms (first byte < 0.01 ms)"),
    ],
)
def test_a_time_that_was_short_is_not_told_as_none(total_ns: int, first_byte_ns: int, text: str) -> None:
    response = response_of()
    response.sent_ns = 7
    response.first_byte_ns, response.done_ns = 7 + first_byte_ns, 7 + total_ns
    assert response.shown() == [text]

    answer = Response()
    answer.done_ns = 9_999
    assert answer.shown() == ["the answer was not accepted in < 0.01 ms"]


def test_a_custom_response_carries_the_value_of_what_was_awaited():
    response = CustomResponse[int](7)

    assert (response.value, response.accepted, response.done_ns) == (7, True, 0)


@pytest.mark.parametrize(("status", "accepted"), [(200, True), (302, True), (399, True), (400, False), (503, False)])
def test_an_answer_of_400_and_above_is_not_accepted(status, accepted):
    response = response_of(status=status)

    assert response.accepted is accepted
    assert response.status == response.status_code == status


def test_an_http_response_has_no_times_until_they_are_measured():
    response = response_of()

    assert (response.intended_ns, response.sent_ns, response.done_ns) == (0, 0, 0)
    assert response.timings == Timings()


def test_a_response_shows_what_was_asked_and_what_came():
    assert repr(response_of(b"hello")) == "<HTTPResponse 200 GET http://shop/ 5 bytes>"


def test_timings_are_milliseconds_since_the_request_was_sent():
    response = response_of()
    response.intended_ns, response.sent_ns = 500_000_000, 1_000_000_000
    response.first_byte_ns, response.done_ns = 1_002_000_000, 1_003_500_000
    response.connect_ns, response.tls_ns = 250_000, 4_000_000

    assert response.timings == Timings(connect_ms=0.25, tls_ms=4.0, first_byte_ms=2.0, total_ms=3.5)


# Headers


def test_headers_are_found_in_any_case():
    headers = ResponseHeaders([(b"Content-Type", b"text/html")])

    assert headers["content-type"] == headers["CONTENT-TYPE"] == "text/html"
    assert "Content-Type" in headers
    assert headers.get("etag") is None


def test_a_header_that_is_not_there_is_a_key_error_with_its_name():
    with pytest.raises(KeyError, match="ETag"):
        ResponseHeaders([])["ETag"]


def test_a_header_that_came_twice_reads_as_one_list_and_can_be_had_apart():
    headers = ResponseHeaders([(b"Set-Cookie", b"a=1"), (b"Server", b"x"), (b"set-cookie", b"b=2")])

    assert headers["Set-Cookie"] == "a=1, b=2"
    assert headers.get_all("SET-COOKIE") == ["a=1", "b=2"]
    assert headers.get_all("etag") == []
    assert list(headers) == ["set-cookie", "server"]
    assert len(headers) == 2


def test_headers_compare_and_print_like_a_dict():
    headers = ResponseHeaders([(b"Server", b"caf\xe9")])

    assert headers == {"server": "café"}
    assert repr(headers) == "ResponseHeaders({'server': 'café'})"


def test_a_header_name_no_server_can_send_is_simply_not_there():
    assert "€" not in ResponseHeaders([(b"Server", b"x")])


# Content codings


@pytest.mark.parametrize("coding", CODINGS)
def test_a_coded_body_is_read_as_what_was_coded(coding):
    response = response_of(CODINGS[coding](b"hello"), content_encoding=coding.upper())

    assert response.content == b"hello"
    assert response.content is response.content  # worked out once


def test_a_bare_deflate_stream_is_read_as_well():
    assert decoded(bare_deflate(b"hello"), "deflate") == b"hello"


@quickly
@given(body=st.binary(min_size=1), codings=st.lists(st.sampled_from(sorted(CODINGS)), max_size=4))
def test_codings_are_undone_last_applied_first(body, codings):
    coded = body
    for coding in codings:
        coded = CODINGS[coding](coded)

    assert decoded(coded, ", ".join(codings)) == body


def test_a_body_without_coding_is_left_as_it_is():
    assert decoded(b"hello", "") == decoded(b"hello", " , ") == b"hello"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_an_empty_body_has_no_coding_whatever_the_header_says(coding):
    assert response_of(b"", content_encoding=coding).content == b""


def test_compressed_pieces_one_behind_the_other_are_read_to_the_end():
    assert decoded(gzip.compress(b"hello, ") + gzip.compress(b"world"), "gzip") == b"hello, world"


def test_a_body_of_very_many_pieces_is_refused():
    many = gzip.compress(b"") * (responses.PIECES_LIMIT + 1)

    with pytest.raises(BrokenBody, match="more than 1000 pieces"):
        decoded(many, "gzip")
    assert decoded(gzip.compress(b"") * responses.PIECES_LIMIT, "gzip") == b""


@pytest.mark.parametrize(
    ("body", "coding", "problem"),
    [
        (b"hello", "br", "content-encoding 'br' is not one of gzip, deflate, identity"),
        (b"hello", "gzip", "the compressed body is broken"),
        (zlib.compress(b"hello"), "gzip", "the compressed body is broken"),
        (gzip.compress(b"hello" * 100, mtime=0)[:-9], "gzip", "the compressed body ends too early"),
        (gzip.compress(b"hello", mtime=0) + b"rubbish", "gzip", "the compressed body is broken"),
    ],
)
def test_a_body_that_is_not_what_its_header_says_is_an_error_with_a_sentence(body, coding, problem):
    with pytest.raises(BrokenBody, match=problem):
        decoded(body, coding)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_body_may_unfold_up_to_the_limit_and_no_further(pieces):
    piece = gzip.compress(bytes(1000 // pieces))

    assert len(decoded(piece * pieces, "gzip", limit_bytes=1000)) == 1000
    with pytest.raises(BrokenBody, match="unfolds to more than 1000 bytes"):
        decoded(piece * pieces + gzip.compress(b"x"), "gzip", limit_bytes=1000)
    with pytest.raises(BrokenBody, match="unfolds to more than 1000 bytes"):
        decoded(gzip.compress(bytes(1001)), "gzip", limit_bytes=1000)


# Text and JSON


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (None, "häßlich".encode()),
        ("text/html", "häßlich".encode()),
        ("text/html; Charset=ISO-8859-1", "häßlich".encode("latin-1")),
        ("text/html; boundary=x; charset='latin-1'; level=1", "häßlich".encode("latin-1")),
        ('text/html;charset="utf-16"', "häßlich".encode("utf-16")),
    ],
)
def test_text_is_read_in_the_charset_the_answer_names_or_as_utf_8(content_type, body):
    headers = {} if content_type is None else {"content_type": content_type}

    assert response_of(body, **headers).text == "häßlich"


def test_bytes_that_are_no_text_are_replaced_rather_than_refused():
    assert response_of(b"a\xffb").text == "a\ufffdb"


@pytest.mark.parametrize("charset", ["klingon", "hex", "idna"])
def test_a_charset_that_cannot_be_read_is_an_error_with_the_url(charset):
    with pytest.raises(BrokenBody, match=f"http://shop/: the answer names a charset that cannot be read: '{charset}'"):
        _ = response_of(b"\xff", content_type=f"text/html; charset={charset}").text


def test_json_is_decoded_also_from_a_compressed_body():
    body = gzip.compress(b'{"token": "abc", "items": [1, 2.5, null]}')

    assert response_of(body, content_encoding="gzip").json() == {"token": "abc", "items": [1, 2.5, None]}


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a": ', b'"\xff"', b"[" * 100_000])
def test_a_body_that_is_not_json_is_an_error_with_the_url_and_its_beginning(body):
    with pytest.raises(BrokenBody) as caught:
        response_of(body).json()

    assert str(caught.value).startswith("http://shop/: the body is not JSON (")
    assert str(caught.value).endswith(f"it starts with {body[:60]!r}")
