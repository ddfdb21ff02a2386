"""Lines as they come in are the lines of the whole text, whatever the blocks they come in."""

from __future__ import annotations

import errno
import gzip
import io
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_cli.data import stream
from transformer_cli.data.lines import split_lines
from transformer_cli.data.stream import LineStream, opened, read_some
from transformer_cli.errors import DataError, ResourceError


class Crumbs:
    """A source that gives few bytes at a time, cut anywhere."""

    def __init__(self, data: bytes, seed: int) -> None:
        self.data = data
        self.random = random.Random(seed)

    def read1(self, size: int, /) -> bytes:
        n = self.random.randint(1, 5)
        crumb, self.data = self.data[:n], self.data[n:]
        return crumb


ALPHABET = ["a", "ä", "😀", "\n", "\n", "\r", "\r\n", "\ufeff", "\u2028", "\x85", "\x0c", "\x00", " "]


@pytest.mark.parametrize("seed", range(200))
def test_blocks_put_together_are_the_lines_of_the_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BLOCK_LINES", 2)
    chance = random.Random(seed)
    data = "".join(chance.choices(ALPHABET, k=chance.randint(0, 60))).encode()
    expected = split_lines(data, "text")
    lines = LineStream(Crumbs(data, seed), "text")
    blocks = list(lines)
    assert [line for block in blocks for line in block] == expected.lines
    assert dict(lines.counts) == expected.counts
    assert all(0 < len(block) <= 2 for block in blocks)


@pytest.mark.parametrize("seed", range(20))
def test_bad_bytes_have_the_same_place_however_they_come_in(seed: int) -> None:
    data = b"gut\n\nnoch gut\n" * seed + b"schl\xe4cht\nende"
    with pytest.raises(DataError) as whole:
        split_lines(data, "text")
    with pytest.raises(DataError) as crumbs:
        list(LineStream(Crumbs(data, seed), "text"))
    assert crumbs.value.message == whole.value.message


@pytest.mark.parametrize("name", ["x.de", "x.de.gz"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_disk_that_fails_is_no_fault_of_the_text(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a text was opened or looked through it was exit code 3, as text that is missing."""

    def fails(*arguments: object) -> bytes:
        raise OSError(number, os.strerror(number))

    (tmp_path / name).write_bytes(gzip.compress(b"ein Hund\n"))
    failing = SimpleNamespace(read1=fails)
    said = f"{name} cannot be read: {os.strerror(number)}$"
    with pytest.raises(ResourceError, match=said) as caught:
        read_some(failing, str(tmp_path / name))
    assert caught.value.hint
    monkeypatch.setattr("builtins.open" if name.endswith("gz") else "pathlib.Path.open", fails)
    with pytest.raises(ResourceError, match=said):
        opened(tmp_path / name)


def test_a_line_is_there_as_soon_as_it_has_ended() -> None:
    """The writer keeps the pipe open and waits for the answer."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source, os.fdopen(write_end, "wb", buffering=0) as writer:
        blocks = iter(LineStream(source, "pipe"))
        writer.write(b"eins\nzw")
        assert next(blocks) == ["eins"]
        writer.write(b"ei\ndrei\n")
        assert next(blocks) == ["zwei", "drei"]
        writer.write(b"vier")
        writer.close()
        assert list(blocks) == [["vier"]]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"x" + data, lambda data: data[:20] + data[21:]]
)
def test_a_damaged_compressed_file_is_said(damage) -> None:
    packed = gzip.compress(b"eine Zeile\n" * 1000)
    with gzip.open(io.BytesIO(damage(packed))) as source, pytest.raises(DataError, match="text is damaged"):
        list(LineStream(source, "text"))
