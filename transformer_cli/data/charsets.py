"""Bytes that are no text in UTF-8, and which text they may be."""

from __future__ import annotations

import unicodedata
from codecs import getincrementaldecoder
from collections import Counter

from transformer_cli.errors import DataError

BOM = b"\xef\xbb\xbf"
SAMPLE = 1 << 16
"""Bytes that are looked at."""
LEAST = 16
"""Bytes that tell whether each second one is low."""
MOST = 0.8
"""Of these, that are: punctuation and letters of another script are beyond."""
LEAST_WIDE = 0.25
"""Of the bytes that a blank or an end of a line has, how many are one in UTF-16: other characters have them, too."""
MOST_BEYOND_ASCII = 0.2
"""Of the bytes of Latin-1, which Western European languages are written in; of other encodings few have so few."""

COMPRESSED = {
    b"\x1f\x8b": "it is compressed by gzip: it is read if its name ends in .gz, and `gzip -dc OLD > NEW` unpacks it",
    b"\xfd7zXZ\0": "it is compressed: `xz -dc OLD > NEW` unpacks it",
    b"\x28\xb5\x2f\xfd": "it is compressed: `zstd -dc OLD > NEW` unpacks it",
    b"BZh": "it is compressed: `bzip2 -dc OLD > NEW` unpacks it",
    b"PK\3\4": "it is compressed: `unzip -p OLD > NEW` unpacks it",
}
"""By what a file begins with; behind BZh comes a digit, and then the digits of pi."""
PI = bytes.fromhex("314159265359")

_LOW = bytes(range(32))
_LITTLE, _BIG = (b"\n\0", b"\r\0", b" \0"), (b"\0\n", b"\0\r", b"\0 ")


def not_utf8(data: bytes, position: int, name: str, *, lines_before: int, bytes_before: int) -> DataError:
    """position: index of the first byte that is wrong."""
    line = lines_before + data.count(b"\n", 0, position) + 1
    column = position - (data.rfind(b"\n", 0, position) + 1) + 1
    return DataError(
        f"{name}, line {line:,}: byte {column:,} of the line (0x{data[position]:02x}, byte "
        f"{bytes_before + position + 1:,} of the file) is not UTF-8",
        hint=_hint(data[:SAMPLE], bytes_before=bytes_before),
    )


def refuse_wide(data: bytes, name: str, *, bytes_before: int) -> None:
    """DataError for what is UTF-8, too, but looks like UTF-16 or UTF-32: all of English is, Russian, Thai or Hindi."""
    if b"\0" in data and data.isascii() and (wide := _wide(data[:SAMPLE], bytes_before)):
        raise DataError(
            f"{name} is not UTF-8: every second byte, or more, is a control character such as NUL", hint=_converts(wide)
        )


def _hint(data: bytes, *, bytes_before: int) -> str:
    if not bytes_before and (how := _unpacks(data)):
        return how
    if wide := _marked(data) if not bytes_before else None:
        return _converts(wide)
    if wide := _wide(data, bytes_before) or _by_blanks(data, bytes_before):
        return _converts(wide)
    if sum(byte > 0x7F for byte in data.removeprefix(BOM)) <= MOST_BEYOND_ASCII * len(data):
        return "if it is Latin-1, `iconv -f latin1 -t utf-8 OLD > NEW` converts it"
    return (
        "find out which encoding it is in (`file -i OLD` guesses); "
        "of GB 18030, `iconv -f gb18030 -t utf-8 OLD > NEW` converts it"
    )


def _converts(name: str) -> str:
    kind = name.upper().removesuffix("LE").removesuffix("BE")
    return f"it looks like {kind}: `iconv -f {name} -t utf-8 OLD > NEW` converts it"


def _unpacks(data: bytes) -> str | None:
    """What to do with a file that is not even text; a text may begin with BZh."""
    how = next((how for magic, how in COMPRESSED.items() if data.startswith(magic)), None)
    return None if data.startswith(b"BZh") and data[4:10] != PI else how


def _marked(data: bytes) -> str | None:
    """By its byte order mark; that of UTF-32 begins as that of UTF-16 does."""
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    return "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else None


def _wide(data: bytes, bytes_before: int) -> str | None:
    """By the bytes that come first, second, third and fourth: of UTF-32 two beside each other are NUL, of UTF-16 one of
    two is low in scripts of few letters."""
    lanes = [data[(lane - bytes_before) % 4 :: 4] for lane in range(4)]
    if len(data) < LEAST:
        return None
    empty = [lane.count(0) > MOST * len(lane) for lane in lanes]
    if empty in ([False, False, True, True], [False, True, True, True]):
        return "utf-32le"
    if empty in ([True, True, False, False], [True, True, True, False]):
        return "utf-32be"
    even, odd = (sum(len(lane) - len(lane.translate(None, _LOW)) for lane in lanes[one::2]) for one in (0, 1))
    n_even, n_odd = (sum(map(len, lanes[one::2])) for one in (0, 1))
    if odd > MOST * n_odd and even < n_even / 2:
        return "utf-16le"
    return "utf-16be" if even > MOST * n_even and odd < n_odd / 2 else None


def _by_blanks(data: bytes, bytes_before: int) -> str | None:
    """By blanks and ends of lines, where other characters have no byte that is low; a NUL that strayed beside one of
    them, in text of another encoding, makes no text of the rest."""
    data = data[bytes_before % 2 :]
    units = Counter(data[place : place + 2] for place in range(0, len(data) - 1, 2))
    little, big = (sum(units[unit] for unit in those) for those in (_LITTLE, _BIG))
    name = "utf-16le" if little > big else "utf-16be"
    blanks = len(data) - len(data.translate(None, b"\n\r "))
    return name if little != big and max(little, big) > LEAST_WIDE * blanks and _is_text(data, name) else None


def _is_text(data: bytes, encoding: str) -> bool:
    """Whether these bytes, of which the last may be missing, are assigned characters by this encoding."""
    try:
        text = getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return False
    return not any(unicodedata.category(char) in ("Cn", "Co") for char in set(text))
