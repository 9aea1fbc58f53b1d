"""HOST:PORT as people write it."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.errors import Invalid
from talka.wire.addresses import BadAddress, format_address, ip_target, is_ip, parse_address, parse_name

quick = settings(deadline=None, derandomize=True, max_examples=200)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.5:7400", "10.0.0.5", 7400),
        ("  10.0.0.5:1\n", "10.0.0.5", 1),
        ("[::1]:65535", "::1", 65535),
        ("[2001:DB8:0:0::1]:7400", "2001:db8::1", 7400),
        ("[fe80::1%eth0]:7400", "fe80::1%eth0", 7400),
        ("localhost:80", "localhost", 80),
        ("Managers.Talka.svc.Cluster.local:80", "managers.talka.svc.cluster.local", 80),
        ("a_b-c.example.:80", "a_b-c.example.", 80),
        ("1.example:80", "1.example", 80),
        ("host:00080", "host", 80),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no port"),
        ("10.0.0.5", "has no port"),
        (":7400", "has no host"),
        ("host:", "no usable port"),
        ("host:0", "a number from 1 to 65535"),
        ("host:65536", "a number from 1 to 65535"),
        ("host:-1", "no usable port"),
        ("host:+80", "no usable port"),
        ("host:8_0", "no usable port"),
        ("host:٨٠", "no usable port"),
        ("host:" + "0" * 100 + "80", "no usable port"),
        ("::1:7400", "in brackets"),
        ("fe80::1:7400", "in brackets"),
        ("[::1]", "no usable port"),
        ("[10.0.0.5]:80", "within its brackets"),
        ("[]:80", "within its brackets"),
        ("[host]:80", "within its brackets"),
        ("10.0.0:80", "four numbers"),
        ("10.0.0.256:80", "four numbers"),
        ("010.0.0.1:80", "four numbers"),
        ("7400:7400", "four numbers"),
        ("a b:80", "not a host name"),
        ("a..b:80", "not a host name"),
        (".:80", "four numbers"),
        ("-a:80", "not a host name"),
        ("a-:80", "not a host name"),
        ("é:80", "not a host name"),
        ("a" * 64 + ":80", "not a host name"),
        ("http://host:80", "in brackets"),
        ("a" * 400 + ":80", "too long"),
    ],
)
def test_what_is_no_address_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadAddress, match=sentence) as caught:
        parse_address(text)
    assert isinstance(caught.value, Invalid)
    assert len(str(caught.value)) < 300


def test_port_0_is_for_listening() -> None:
    assert parse_address("127.0.0.1:0", is_port_0_allowed=True) == ("127.0.0.1", 0)
    with pytest.raises(BadAddress, match="from 0 to 65535"):
        parse_address("127.0.0.1:x", is_port_0_allowed=True)


def test_a_name_has_at_most_253_characters() -> None:
    longest = ".".join(["a" * 49] * 5) + ".abc"
    assert len(longest) == 253
    assert parse_name(longest) == longest
    with pytest.raises(BadAddress, match="not a host name"):
        parse_name(longest + "d")


def test_a_service_has_a_name_with_underscores() -> None:
    assert parse_name(" _Talka._tcp.example.com ") == "_talka._tcp.example.com"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.5", True), ("::1", True), ("fe80::1%eth0", True), ("host", False), ("10.0.0", False), ("a:b", False)],
)
def test_an_ip_address_is_told_from_a_name(host: str, expected: bool) -> None:
    assert is_ip(host) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.5:7400", ("10.0.0.5", 7400)),
        ("[::1]:7400", ("::1", 7400)),
        ("host:7400", None),
        ("10.0.0.5", None),
        ("10.0.0.5:0", None),
    ],
)
def test_only_an_ip_address_with_a_port_is_a_target(text: str, expected: tuple[str, int] | None) -> None:
    assert ip_target(text) == expected


@pytest.mark.parametrize(("host", "text"), [("::1", "[::1]:80"), ("10.0.0.1", "10.0.0.1:80"), ("ada", "ada:80")])
def test_only_an_ipv6_address_is_in_brackets(host: str, text: str) -> None:
    assert format_address(host, 80) == text


@quick
@given(
    st.one_of(
        st.ip_addresses(v=4), st.ip_addresses(v=6), st.from_regex(r"[a-z]{1,9}(\.[a-z0-9]{1,9}){0,3}", fullmatch=True)
    ),
    st.integers(1, 65535),
)
def test_what_is_formatted_is_read_back(host: IPv4Address | IPv6Address | str, port: int) -> None:
    assert parse_address(format_address(str(host), port)) == (str(host), port)


@quick
@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_sentence(text: str) -> None:
    try:
        host, port = parse_address(text)
    except BadAddress:
        return
    assert parse_address(format_address(host, port)) == (host, port)
