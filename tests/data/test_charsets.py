"""Text that is not in UTF-8 is refused wherever it is read, with a command that makes it so."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.data.charsets import LEAST
from transformer_cli.data.lines import split_lines
from transformer_cli.data.stream import read_lines
from transformer_cli.data.text import FileText
from transformer_cli.errors import DataError

TEXTS = {
    "English": "my mother wants the book.\nthe dog sleeps\n" * 3,
    "German": "meine Mutter möchte das Buch.\nder große Hund schläft\n" * 3,
    "Vietnamese": "người đàn ông mang quyển sách hôm nay.\n" * 3,
    "Russian": "моя мать хочет книгу.\nсобака спит\n" * 3,
    "Hindi": "मेरी माँ को किताब चाहिए।\nकुत्ता सोता है\n" * 3,
    "Thai": "แม่ของฉันเห็นน้ำในตลาด\nหมา\n" * 3,
    "Chinese": "我母亲昨天找到一只山羊。\n农夫在夜里吃面包。\n" * 3,
    "Japanese": "私は本を読みます。\n犬\n" * 3,
}
WIDE = ["utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be"]


def by_file(data: bytes, folder: Path) -> None:
    (folder / "x").write_bytes(data)
    FileText(folder / "x", hashlib.sha256())


def by_stream(data: bytes, folder: Path) -> None:
    (folder / "x").write_bytes(data)
    read_lines(folder / "x")


READERS = [by_file, by_stream, lambda data, folder: split_lines(data, "x")]


@pytest.mark.parametrize("read", READERS, ids=["data", "a file", "bytes"])
@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("language", TEXTS)
def test_wide_text_is_refused_and_the_command_converts_it(
    language: str, encoding: str, read: Callable[[bytes, Path], None], tmp_path: Path
) -> None:
    """English and Russian without a byte order mark are UTF-8, too: they were translated, NULs and all."""
    data = TEXTS[language].encode(encoding)
    with pytest.raises(DataError, match="is not UTF-8") as caught:
        read(data, tmp_path)
    [named] = re.findall("iconv -f ([a-z0-9-]+) -t utf-8 OLD > NEW", str(caught.value.hint))
    assert data.decode(named) == TEXTS[language]


@pytest.mark.parametrize("before", [3, 6, 9])
def test_a_later_block_is_known_by_its_place_in_the_file(before: int) -> None:
    """A line feed is the first of two bytes: what follows it begins with the second."""
    data = TEXTS["English"].encode("utf-16le")
    assert re.search("-f utf-16le", hint(data[before:], bytes_before=before))
    data = TEXTS["English"].encode("utf-32be")
    assert re.search("-f utf-32be", hint(data[before:], bytes_before=before))


def hint(data: bytes, *, bytes_before: int = 0) -> str:
    with pytest.raises(DataError) as caught:
        split_lines(data, "x", bytes_before=bytes_before)
    return str(caught.value.hint)


@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        ("Chinese", "gb18030"),
        ("Chinese", "big5hkscs"),
        ("Russian", "koi8-r"),
        ("Russian", "cp1251"),
        ("Japanese", "shift-jis"),
        ("Thai", "tis-620"),
    ],
)
def test_latin1_is_not_offered_for_what_would_be_letters_of_nobody(language: str, encoding: str) -> None:
    """`iconv -f latin1` takes any bytes, and made nonsense of Chinese."""
    said = hint(TEXTS[language].encode(encoding, "ignore"))
    assert "`file -i OLD`" in said
    assert "latin1" not in said
    assert "latin1" in hint(TEXTS["German"].encode("latin-1"))


@given(st.text(st.sampled_from("ab\0\n\t é"), max_size=LEAST - 1))
def test_a_few_control_characters_are_text(text: str) -> None:
    assert "\n".join(split_lines(text.encode(), "x").lines).rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize(
    "text",
    ["\0" * 99, "a\n" * 99, "\n" * 99, "a\t" * 99, "a \0 dog\n" * 9, "\0\n" * 9, "ein\0Hund sieht eine\0Katze\n"],
)
def test_lines_with_control_characters_are_text(text: str) -> None:
    split_lines(text.encode(), "x")


@pytest.mark.parametrize(
    ("language", "encoding"), [("German", "latin-1"), ("Chinese", "gb18030"), ("Russian", "cp1251")]
)
def test_a_nul_that_strayed_into_a_text_makes_no_utf_16_of_it(language: str, encoding: str) -> None:
    """One beside a blank did."""
    data = TEXTS[language].encode(encoding)
    for place in range(len(data) + 1):
        assert "UTF-16" not in hint(data[:place] + b"\0" + data[place:]), place


@pytest.mark.parametrize("place", range(30))
def test_nor_does_one_where_a_byte_is_no_utf_8(place: int) -> None:
    data = b"the old man saw a dog in the garden\xff\n"
    assert "Latin-1" in hint(data[:place] + b"\0" + data[place:])


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", data)
    return file.getvalue()


ZSTD = bytes.fromhex("28b52ffd0058290000") + b"one\nt\xf6o\n"
"""As `zstd -c` begins; Python has no module for it."""


@pytest.mark.parametrize("read", [by_file, by_stream])
@pytest.mark.parametrize(
    ("compress", "hint"),
    [
        (gzip.compress, "it is read if its name ends in .gz, and `gzip -dc OLD > NEW` unpacks it"),
        (lzma.compress, "it is compressed: `xz -dc OLD > NEW` unpacks it"),
        (bz2.compress, "it is compressed: `bzip2 -dc OLD > NEW` unpacks it"),
        (zipped, "it is compressed: `unzip -p OLD > NEW` unpacks it"),
        (lambda data: ZSTD, "it is compressed: `zstd -dc OLD > NEW` unpacks it"),
    ],
)
def test_what_is_compressed_is_told_to_be_so(
    compress: Callable[[bytes], bytes], hint: str, read: Callable[[bytes, Path], None], tmp_path: Path
) -> None:
    """It was taken for GB 18030, whatever its name did not say."""
    with pytest.raises(DataError, match="is not UTF-8") as caught:
        read(compress(TEXTS["German"].encode()), tmp_path)
    assert str(caught.value.hint).endswith(hint)


@pytest.mark.parametrize("start", ["PK", "PKW", "BZh", "BZh91"])
def test_text_that_begins_as_an_archive_is_none(start: str) -> None:
    with pytest.raises(DataError) as caught:
        split_lines(f"{start} fährt vorbei\n".encode("latin1"), "x")
    assert "latin1" in str(caught.value.hint)
