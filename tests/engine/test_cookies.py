from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talka.engine.clients.cookies import MAX_COOKIES, CookieJar, parse_date

NOW = 1_700_000_000.0


def jar_with(*headers: str, host: str = "www.example.com", target: bytes = b"/shop/cart?x=/y") -> CookieJar:
    jar = CookieJar()
    for header in headers:
        jar.store(header.encode("latin-1"), host, target, NOW)
    return jar


def sent(
    jar: CookieJar, host: str = "www.example.com", target: bytes = b"/shop/cart", tls: bool = False, now: float = NOW
) -> str:
    return jar.header_for(host, target, tls, now).decode("latin-1")


def test_a_cookie_comes_back() -> None:
    jar = jar_with("a=1")
    assert len(jar) == 1
    assert sent(jar) == "a=1"


def test_a_jar_is_false_while_it_is_empty() -> None:
    assert not CookieJar()
    assert jar_with("a=1")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("  a  =  1 ; HttpOnly", "a=1"),
        ('a="1 2"', 'a="1 2"'),
        ("a=", "a="),
        ("a=b=c", "a=b=c"),
        ("a", ""),
        ("=1", ""),
        ("", ""),
        ("a=1; path=/; unknown=x; ; =", "a=1"),
    ],
)
def test_name_and_value_are_parsed_leniently(header: str, expected: str) -> None:
    assert sent(jar_with(header)) == expected


def test_setting_a_cookie_again_replaces_it_in_its_place() -> None:
    assert sent(jar_with("a=1", "b=2", "a=3")) == "a=3; b=2"


@pytest.mark.parametrize(
    ("domain", "host", "is_sent"),
    [
        ("", "www.example.com", True),
        ("", "other.example.com", False),
        ("", "sub.www.example.com", False),
        ("; Domain=example.com", "www.example.com", True),
        ("; Domain=.Example.COM", "other.example.com", True),
        ("; Domain=example.com", "example.com", True),
        ("; Domain=example.com", "badexample.com", False),
        ("; Domain=www.example.com", "sub.www.example.com", True),
        ("; Domain=.", "sub.www.example.com", False),
    ],
)
def test_the_domain_decides_which_hosts_get_it(domain: str, host: str, is_sent: bool) -> None:
    assert sent(jar_with("a=1" + domain), host=host) == ("a=1" if is_sent else "")


@pytest.mark.parametrize("domain", ["other.com", "sub.www.example.com", "com", "xample.com"])
def test_a_cookie_for_a_foreign_domain_is_ignored(domain: str) -> None:
    assert not jar_with(f"a=1; Domain={domain}")


def test_an_address_matches_only_itself() -> None:
    assert not jar_with("a=1; Domain=0.0.1", host="127.0.0.1")
    assert jar_with("a=1; Domain=127.0.0.1", host="127.0.0.1")
    assert jar_with("a=1; Domain=localhost", host="localhost")


@pytest.mark.parametrize(
    ("path", "target", "is_sent"),
    [
        ("", b"/shop/cart", True),
        ("", b"/shop", True),
        ("", b"/shop?x", True),
        ("", b"/shopping", False),
        ("", b"/", False),
        ("; Path=/", b"/anything", True),
        ("; Path=/a/", b"/a/b", True),
        ("; Path=/a/", b"/a", False),
        ("; Path=/a", b"/a/b", True),
        ("; Path=/a", b"/ab", False),
        ("; Path=relative", b"/shop/x", True),
    ],
)
def test_the_path_decides_which_targets_get_it(path: str, target: bytes, is_sent: bool) -> None:
    assert sent(jar_with("a=1" + path), target=target) == ("a=1" if is_sent else "")


def test_the_default_path_of_a_top_level_target_is_the_root() -> None:
    assert sent(jar_with("a=1", target=b"/login"), target=b"/elsewhere") == "a=1"


def test_longer_paths_come_first_then_older_cookies() -> None:
    jar = jar_with("a=1; Path=/", "b=2; Path=/shop", "c=3; Path=/")
    assert sent(jar) == "b=2; a=1; c=3"


def test_secure_cookies_go_over_tls_only() -> None:
    jar = jar_with("a=1; Secure", "b=2")
    assert sent(jar) == "b=2"
    assert sent(jar, tls=True) == "a=1; b=2"


def test_max_age_ends_a_cookie_and_wins_over_expires() -> None:
    jar = jar_with("a=1; Max-Age=10; Expires=Thu, 01 Jan 1970 00:00:00 GMT")
    assert sent(jar, now=NOW + 9.9) == "a=1"
    assert sent(jar, now=NOW + 10) == ""


@pytest.mark.parametrize("end", ["Max-Age=0", "Max-Age=-1", "Expires=Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_cookie_is_deleted_by_an_end_in_the_past(end: str) -> None:
    assert not jar_with("a=1; Path=/", f"a=; Path=/; {end}")
    assert not jar_with(f"a=1; {end}")


def test_a_max_age_that_is_no_number_is_ignored() -> None:
    assert sent(jar_with("a=1; Max-Age=soon"), now=NOW + 1e9) == "a=1"


def test_expires_ends_a_cookie() -> None:
    jar = jar_with("a=1; expires=Wed, 15-Nov-2023 00:00:00 GMT")
    end = datetime(2023, 11, 15, tzinfo=UTC).timestamp()
    assert sent(jar, now=end - 1) == "a=1"
    assert sent(jar, now=end) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "1994 6 november 8:49:37",
        "08:49:37Z; 6th Nov 1994",
    ],
)
def test_dates_are_read_in_any_order(text: str) -> None:
    assert parse_date(text) == datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp()


def test_two_digit_years_from_70_are_of_the_last_century() -> None:
    assert parse_date("1 jan 69 00:00:00") == datetime(2069, 1, 1, tzinfo=UTC).timestamp()
    assert parse_date("1 jan 70 00:00:00") == 0.0


@pytest.mark.parametrize(
    "text", ["", "never", "6 Nov 1994", "30 Feb 1994 08:49:37", "6 Nov 1600 08:49:37", "6 Nov 1994 25:00:00"]
)
def test_a_broken_date_is_none(text: str) -> None:
    assert parse_date(text) is None


def test_a_cookie_of_more_than_4_kib_is_ignored() -> None:
    assert jar_with("a=" + "x" * 4094)
    assert not jar_with("a=" + "x" * 4095)


def test_the_jar_is_bounded_and_the_oldest_goes_first() -> None:
    jar = jar_with(*(f"c{number}=1" for number in range(MAX_COOKIES + 1)))
    assert len(jar) == MAX_COOKIES
    names = sent(jar).replace("=1", "").split("; ")
    assert "c0" not in names and "c1" in names


def test_expired_cookies_make_room_before_living_ones() -> None:
    jar = jar_with("old=1", *(f"c{number}=1; Max-Age=5" for number in range(MAX_COOKIES - 1)))
    jar.store(b"new=1", "www.example.com", b"/shop/cart", NOW + 6)
    assert sent(jar, now=NOW + 6) == "old=1; new=1"


def test_cookies_given_with_a_request_hide_those_of_the_jar() -> None:
    jar = jar_with("a=1", "b=2")
    assert jar.header_for("www.example.com", b"/shop/", False, NOW, without={"a"}) == b"b=2"


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=60)))
def test_no_header_breaks_the_jar_or_the_line_it_sends(headers: list[bytes]) -> None:
    jar = CookieJar()
    for header in headers:
        jar.store(header.translate(None, b"\r\n\0"), "h", b"/", NOW)  # no parser lets these through
    assert b"\n" not in jar.header_for("h", b"/", True, NOW)
