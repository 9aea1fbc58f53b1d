"""Which charsets a text may be read in."""

import codecs
import encodings.aliases
from collections.abc import Iterator

import pytest

from talka.work.charsets import CODECS, codec_of
from talka.work.responses import BrokenBody, HTTPResponse

NO_CHARSETS = (
    "punycode idna unicode_escape unicode-escape raw_unicode_escape raw-unicode-escape utf-7 utf7 rot13 rot_13 rot-13"
    " hex hex_codec hex-codec base64 base64_codec zlib zlib_codec zip bz2 bz2_codec quopri quoted-printable uu uu_codec"
    " undefined mbcs oem charmap unicode_internal locale filesystem none x-user-defined"
).split()
LONG = 400_000


def answer(charset: str, body: bytes) -> HTTPResponse:
    return HTTPResponse("GET", "http://x/", 200, [(b"Content-Type", f"text/plain; charset={charset}".encode())], body)


@pytest.mark.parametrize("name", NO_CHARSETS)
def test_what_is_no_charset_is_not_decoded_however_long_it_is(name: str) -> None:
    for body in (b"a" * LONG, b"9" * LONG, b"\\u0041" * (LONG // 6), b"x-" + b"b" * LONG):
        with pytest.raises(BrokenBody, match="http://x/: the answer names a charset that cannot be read"):
            _ = answer(name, body).text


@pytest.fixture
def trap() -> Iterator[list[str]]:
    """A codec that anybody could have registered, and that says when it is looked for."""
    asked: list[str] = []

    def search(name: str) -> None:
        asked.append(name)

    codecs.register(search)
    yield asked
    codecs.unregister(search)


def test_a_name_of_a_server_is_never_looked_up_among_all_codecs(trap: list[str]) -> None:
    for name in ("trapped", "os.path", "../x", "x" * 10_000, "\x00", ""):
        with pytest.raises(BrokenBody):
            _ = answer(name, b"x").text

    assert trap == []


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("utf-8", "käse ☃".encode(), "käse ☃"),
        ("UTF8", b"\xff", "\ufffd"),
        ('"latin-1"', b"\xe4", "ä"),
        (" ISO-8859-15 ", b"\xa4", "€"),
        ("windows-1252", b"\x80", "€"),
        ("cp1251", "да".encode("cp1251"), "да"),
        ("Shift_JIS", "日本".encode("shift_jis"), "日本"),
        ("EUC-JP", "日本".encode("euc_jp"), "日本"),
        ("iso-2022-jp", "日本".encode("iso2022_jp"), "日本"),
        ("GB2312", "中文".encode("gb2312"), "中文"),
        ("gb18030", "中文".encode("gb18030"), "中文"),
        ("Big5", "中文".encode("big5"), "中文"),
        ("ks_c_5601-1987", "한국".encode("euc_kr"), "한국"),
        ("KOI8-U", "її".encode("koi8_u"), "її"),
        ("utf-16le", "ä".encode("utf-16-le"), "ä"),
        ("utf-32", "ä".encode("utf-32"), "ä"),
        ("us-ascii", b"a\xe4", "a\ufffd"),
    ],
)
def test_charsets_of_the_web_are_read(charset: str, body: bytes, text: str) -> None:
    assert answer(charset, body).text == text


def test_every_name_on_the_list_is_a_charset_and_means_what_python_means_by_it() -> None:
    for label, codec in CODECS.items():
        found = codecs.lookup(codec)
        assert found._is_text_encoding, label
        if label.replace("-", "_") in encodings.aliases.aliases:
            assert codecs.lookup(label).name == found.name, label
    assert {codec_of(name) for name in NO_CHARSETS} == {None}


@pytest.mark.parametrize("codec", sorted(set(CODECS.values())))
def test_hostile_bytes_of_every_charset_become_text(codec: str) -> None:
    for body in (b"\xff" * LONG, b"\x1b$B" * (LONG // 3), bytes(range(256)) * (LONG // 256)):
        assert isinstance(answer(codec, body).text, str)
