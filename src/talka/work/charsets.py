"""Which charsets a text may be read in: those of the web, by the names servers give them.

Not every codec of Python is one. Some take hours for a megabyte (punycode), some are no charset but a way to write
something else (unicode_escape, idna), and the server chooses the name.
"""

from typing import Final

_NAMES: Final = {
    "utf-8": "utf8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8",
    "utf-8-sig": "",
    "utf-16": "utf16 unicode csunicode iso-10646-ucs-2 ucs-2",
    "utf-16-le": "utf-16le unicodefeff",
    "utf-16-be": "utf-16be unicodefffe",
    "utf-32": "utf32",
    "utf-32-le": "utf-32le",
    "utf-32-be": "utf-32be",
    "ascii": "us-ascii ansi-x3.4-1968 iso646-us iso-ir-6 646",
    "latin-1": "latin1 iso-8859-1 iso8859-1 iso88591 iso-ir-100 l1 cp819 ibm819 csisolatin1",
    "iso8859-2": "iso-8859-2 iso88592 latin2 latin-2 l2 iso-ir-101 csisolatin2",
    "iso8859-3": "iso-8859-3 iso88593 latin3 latin-3 l3 iso-ir-109 csisolatin3",
    "iso8859-4": "iso-8859-4 iso88594 latin4 latin-4 l4 iso-ir-110 csisolatin4",
    "iso8859-5": "iso-8859-5 iso88595 cyrillic iso-ir-144 csisolatincyrillic",
    "iso8859-6": "iso-8859-6 iso-8859-6-e iso-8859-6-i iso88596 arabic asmo-708 ecma-114 iso-ir-127 csisolatinarabic",
    "iso8859-7": "iso-8859-7 iso88597 greek greek8 ecma-118 elot-928 iso-ir-126 sun-eu-greek csisolatingreek",
    "iso8859-8": "iso-8859-8 iso-8859-8-e iso-8859-8-i iso88598 hebrew logical visual iso-ir-138 csisolatinhebrew",
    "iso8859-9": "iso-8859-9 iso88599 latin5 latin-5 l5 iso-ir-148 csisolatin5",
    "iso8859-10": "iso-8859-10 iso885910 latin6 latin-6 l6 iso-ir-157 csisolatin6",
    "iso8859-11": "iso-8859-11 iso885911",
    "iso8859-13": "iso-8859-13 iso885913 latin7 latin-7 l7",
    "iso8859-14": "iso-8859-14 iso885914 latin8 latin-8 l8",
    "iso8859-15": "iso-8859-15 iso885915 latin9 latin-9 l9 csisolatin9",
    "iso8859-16": "iso-8859-16 iso885916 latin10 latin-10 l10",
    **{f"cp{number}": f"windows-{number} x-cp{number} windows{number}" for number in range(1250, 1259)},
    "cp874": "windows-874 dos-874",
    "tis-620": "tis620",
    **{f"cp{number}": f"ibm{number} {number} csibm{number}" for number in (437, 850, 852, 855, 857, 858, 862, 866)},
    "koi8-r": "koi8 koi koi8r cskoi8r",
    "koi8-u": "koi8-ru koi8u",
    "mac-roman": "macintosh mac x-mac-roman csmacintosh",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "shift-jis": "sjis x-sjis s-jis csshiftjis",
    "cp932": "windows-31j ms932 mskanji ms-kanji",
    "euc-jp": "eucjp x-euc-jp ujis cseucpkdfmtjapanese",
    "iso2022-jp": "iso-2022-jp csiso2022jp",
    "gb2312": "chinese euc-cn euccn csgb2312 csiso58gb231280 gb-2312 gb-2312-80 iso-ir-58",
    "gbk": "x-gbk cp936 936 ms936 windows-936",
    "gb18030": "gb18030-2000",
    "big5": "big5-tw cn-big5 x-x-big5 csbig5",
    "big5hkscs": "big5-hkscs hkscs",
    "cp950": "windows-950 ms950",
    "euc-kr": "euckr korean ks-c-5601 ks-c-5601-1987 ks-c-5601-1989 ksc5601 ksc-5601 iso-ir-149 cseuckr csksc56011987",
    "cp949": "windows-949 ms949 uhc",
}
CODECS: Final = {
    label: codec for codec, labels in _NAMES.items() for label in (codec, codec.replace("-", ""), *labels.split())
}
"""Python's codec for each name, as `codec_of` looks it up."""


def codec_of(charset: str) -> str | None:
    """Python's codec for the charset that a server names; None for what is none of the list."""
    return CODECS.get(charset.strip().lower().replace("_", "-").replace(":", "-"))
