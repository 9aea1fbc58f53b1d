"""Who may be told of the end of a job."""

from ipaddress import ip_address

import msgspec
import pytest

from talka.errors import Invalid
from talka.work.dags.dag import BadDag, DagSettings, decode_dag, settings_problems
from talka.work.dags.notify import Notify, NotifyTarget, is_public, notifies_of, private_problem, target_of


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com", NotifyTarget("https", "example.com", 443, "/")),
        ("http://Example.COM:8080/a?b=c%20d", NotifyTarget("http", "example.com", 8080, "/a?b=c%20d")),
        ("https://example.com?x", NotifyTarget("https", "example.com", 443, "/?x")),
        ("http://[2606:4700::1]:81/x", NotifyTarget("http", "2606:4700::1", 81, "/x")),
        ("http://8.8.8.8/", NotifyTarget("http", "8.8.8.8", 80, "/")),
    ],
)
def test_an_address_is_read(url: str, target: NotifyTarget) -> None:
    assert target_of(url) == target


def test_the_place_of_an_address_has_no_path_and_no_usual_port() -> None:
    assert target_of("https://example.com/secret?token=1").place == "https://example.com"
    assert target_of("http://[2606:4700::1]:81/x").place == "http://[2606:4700::1]:81"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com/x", 'url "example.com": write http://HOST'),
        ("file:///etc/passwd", "write http://HOST"),
        ("example.com", 'url "example.com": write http://HOST'),
        ("http://ada:pw@example.com/", 'url "example.com": write http://HOST'),
        ("http://example.com/#x", "write http://HOST"),
        ("http://example.com/a b", "write http://HOST"),
        ("http://example.com/\r\nx: y", "write http://HOST"),
        ("http://bücher.example/", "write http://HOST"),
        ("http://example.com:0/", "port 0 is not from 1 to 65535"),
        ("http://example.com:99999/", "port 99999 is not from 1 to 65535"),
        ("http://127.1/", 'url "127.1": is no address'),
        ("http://0x7f000001/", "is no address"),
        ("http://2130706433/", "is no address"),
        ("http://0177.0.0.1/", "is no address"),
        ("http://1.2.3.4./", "is no address"),
        ("http://[::1%25lo]/", "write http://HOST"),
        ("http://[1:2]/", "is no address"),
    ],
)
def test_what_is_no_address_of_a_server_is_refused_without_its_path(url: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        target_of(url)
    assert says in str(caught.value)
    assert "pw" not in str(caught.value)


PRIVATE = (
    "0.0.0.0 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.0.1 169.254.169.254 172.16.0.1 172.31.255.255 "
    "192.0.0.8 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 "
    "239.255.255.255 240.0.0.1 255.255.255.255 "
    ":: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 100::1 2001::1 "
    "2001:10::1 2001:db8::1 2002:7f00:1::1 3fff::1 5f00::1 fc00::1 fd12::1 fe80::1 fe80::1%1 fec0::1 ff02::1 4000::1"
).split()


@pytest.mark.parametrize("text", PRIVATE)
def test_an_address_that_is_not_public_is_known_whichever_way_it_is_written(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.17.0.1 "
    "198.20.0.1 223.255.255.255 2606:4700::1111 2a00:1450::1 2001:4860:4860::8888".split(),
)
def test_an_address_that_is_public_is_known_too(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:9/x", "127.0.0.1"),
        ("http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1"),
        ("https://localhost/", "localhost"),
        ("https://api.localhost./", "api.localhost."),
        ("https://printer.local/", "printer.local"),
        ("https://metadata.google.internal/", "metadata.google.internal"),
    ],
)
def test_what_is_private_as_it_is_written_is_told_with_what_allows_it(url: str, host: str) -> None:
    problem = f"{host} is not a public address: a manager tells such ones only if it is started with"
    assert private_problem(url) == f"{problem} --allow-private-notify"


def test_what_a_name_stands_for_is_not_known_yet() -> None:
    for url in ("https://example.com/x", "http://8.8.8.8/", "http://[2606:4700::1]/", "http://mylocal/"):
        assert private_problem(url) == ""


# In the settings of a job.


def test_one_or_several_are_told() -> None:
    one = msgspec.json.decode(b'{"notify":{"on":["failed"],"url":"https://a.example/"}}', type=DagSettings)
    many = msgspec.json.decode(b'{"notify":[{"on":["failed"],"url":"https://a.example/"}]}', type=DagSettings)
    assert notifies_of(one.notify) == notifies_of(many.notify) == (Notify(("failed",), "https://a.example/"),)
    assert notifies_of(DagSettings().notify) == ()
    assert b"notify" not in msgspec.json.encode(DagSettings()), "settings of before are the same order"


@pytest.mark.parametrize(
    ("notify", "says"),
    [
        (b'{"on":["failed"],"url":"ftp://a.example/"}', 'notify.url: url "a.example": write http://HOST'),
        (b'[{"on":["failed"],"url":"http://a.example/"},{"on":["failed"],"url":"x"}]', "notify[1].url: url"),
        (b'{"on":["failed"],"url":"https://a.example/${day}"}', "notify.url: the address has ${: it would stay as it"),
        (b'[{"on":["failed"],"url":"https://a.example/$${day}"}]', "notify[0].url: the address has ${: "),
        (b'{"on":["ended"],"url":"https://a.example/"}', '"ended" is not one of completed, partial, failed, cancelled'),
        (b'{"on":[],"url":"https://a.example/"}', "notify.on: must have at least 1 entry"),
        (b'{"when":["failed"],"url":"https://a.example/"}', 'unknown field "when": there are on, url'),
        (b"[" + b",".join([b'{"on":["failed"],"url":"https://a.example/"}'] * 9) + b"]", "must have at most 8 entries"),
        (b'{"on":["failed"],"url":"https://a.example/' + b"x" * 2000 + b'"}', "must have at most 2000 characters"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_place(notify: bytes, says: str) -> None:
    body = b'{"kind":"dag","name":"n","tasks":[{"id":"a","handler":"h"}],"settings":{"notify":' + notify + b"}}"
    with pytest.raises(BadDag) as caught:
        decode_dag(body)
    assert says in str(caught.value) and caught.value.field.startswith("settings.notify")


def test_good_settings_have_no_problem() -> None:
    assert settings_problems(DagSettings(notify=Notify(("completed",), "https://a.example/"))) == []
