import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.engine.clients.urls import BadURL, PreparedURL, parse_url


def test_a_url_is_taken_apart() -> None:
    url = parse_url("http://example.com:8080/a/b?x=1&y=2#part")
    assert (url.scheme, url.host, url.port) == ("http", "example.com", 8080)
    assert url.target == b"/a/b?x=1&y=2"
    assert url.host_header == b"example.com:8080"
    assert url.addresses is None


def test_a_prepared_url_is_still_its_text() -> None:
    url = parse_url("HTTP://Example.com/A#b")
    assert url == "HTTP://Example.com/A#b"
    assert isinstance(url, str)
    assert parse_url(url) is url


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://h", b"/"),
        ("http://h?x=1", b"/?x=1"),
        ("http://h#part", b"/"),
        ("http://h/", b"/"),
        ("http://h/a//b/../c", b"/a//b/../c"),
        ("http://h/?", b"/?"),
        ("http://h/käse?q=ü#ö", b"/k%C3%A4se?q=%C3%BC"),
        ("http://h/a%20b", b"/a%20b"),
        ('http://h/<{"|\\^`}>', b"/%3C%7B%22%7C%5C%5E%60%7D%3E"),
        ("http://h/a?to=http://x/y?z", b"/a?to=http://x/y?z"),
    ],
)
def test_the_target_is_what_the_request_line_may_hold(text: str, target: bytes) -> None:
    assert parse_url(text).target == target


@pytest.mark.parametrize(
    ("text", "host", "port", "header"),
    [
        ("http://h/", "h", 80, b"h"),
        ("https://h/", "h", 443, b"h"),
        ("https://h:80/", "h", 80, b"h:80"),
        ("http://h:/", "h", 80, b"h"),
        ("http://127.0.0.1:1/", "127.0.0.1", 1, b"127.0.0.1:1"),
        ("http://[::1]/", "::1", 80, b"[::1]"),
        ("http://[2001:DB8::1]:65535/", "2001:db8::1", 65535, b"[2001:db8::1]:65535"),
        ("http://Bücher.example/", "xn--bcher-kva.example", 80, b"xn--bcher-kva.example"),
        ("http://my_host.example./", "my_host.example.", 80, b"my_host.example."),
    ],
)
def test_host_port_and_host_header(text: str, host: str, port: int, header: bytes) -> None:
    url = parse_url(text)
    assert (url.host, url.port, url.host_header) == (host, port, header)


def test_origins_are_equal_exactly_when_connections_may_be_shared() -> None:
    assert parse_url("http://h/a").origin == parse_url("HTTP://H:80/b?c").origin
    others = ["http://h/", "https://h/", "http://h:81/", "http://g/", "https://h:80/"]
    assert len({parse_url(text).origin for text in others}) == len(others)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("example.com/", "no scheme"),
        ("", "no scheme"),
        ("ftp://h/", "scheme 'ftp'"),
        ("http:///path", "no host"),
        ("http://:80/", "no host"),
        ("http://h:x/", "port 'x'"),
        ("http://h:0/", "port '0'"),
        ("http://h:65536/", "port '65536'"),
        ("http://h:٣/", "port '٣'"),
        ("http://h:999999999999/", "port"),
        ("http://a:b:80/", "port 'b:80'"),
        ("http://h/a b", "position 10; write it as %20"),
        ("http://h/\r\nX: y", "control character"),
        ("http://h/\x7f", "%7F"),
        ("http://user:secret@h/", "auth="),
        ("http://[::1/", "bracket"),
        ("http://[::1]x/", "bracket"),
        ("http://[hello]/", "not an IPv6 address"),
        ("http://a..b/", "not a host name"),
        (f"http://{'a' * 64}/", "not a host name"),
        (f"http://{'a.' * 127}a/", "not a host name"),
        ("http://a,b/", "not a host name"),
        (f"http://{'ü' * 64}/", "domain name"),
        ("http://h/\ud800", "UTF-8"),
    ],
)
def test_a_bad_url_is_refused_with_a_sentence_that_names_it(text: str, words: str) -> None:
    with pytest.raises(BadURL) as caught:
        parse_url(text)
    assert words in str(caught.value)
    assert repr(text) in str(caught.value)


def test_what_is_not_a_text_is_refused() -> None:
    with pytest.raises(BadURL, match="not a text"):
        parse_url(b"http://h/")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "longer", "target"),
    [
        ("http://h", "http://h?a=1", b"/?a=1"),
        ("http://h/x?b=2", "http://h/x?b=2&a=1", b"/x?b=2&a=1"),
        ("http://h/x?", "http://h/x?a=1", b"/x?a=1"),
        ("http://h/x?b&", "http://h/x?b&a=1", b"/x?b&a=1"),
        ("http://h/x#part", "http://h/x?a=1#part", b"/x?a=1"),
    ],
)
def test_parameters_are_joined_to_the_query(text: str, longer: str, target: bytes) -> None:
    url = parse_url(text)
    url.addresses = []
    joined = url.with_query("a=1")
    assert joined == longer
    assert joined.target == target
    assert joined.addresses is url.addresses
    assert vars_of(joined) == vars_of(parse_url(longer))
    assert url.with_query("") is url


def vars_of(url: PreparedURL) -> tuple[object, ...]:
    return (url.scheme, url.host, url.port, url.origin, url.target, url.host_header)


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_any_path_is_refused_or_becomes_one_clean_line(path: str) -> None:
    try:
        target = parse_url("http://h/" + path).target
    except BadURL:
        return
    assert target.startswith(b"/")
    assert all(0x21 <= byte <= 0x7E for byte in target)
