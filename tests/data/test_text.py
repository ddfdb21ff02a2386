"""Lines that are read where they lie are the lines of the file, whatever is asked of them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from faults import Saboteur

from transformer_cli import files
from transformer_cli.data import stream
from transformer_cli.data import text as reading
from transformer_cli.data.charsets import BOM
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.lines import LONGEST_LINE, split_lines
from transformer_cli.data.text import FileText, JoinedText, ListedText, Text, unpack, update
from transformer_cli.data.used import learnable
from transformer_cli.errors import DataError, ResourceError

ALPHABET = ["a", "ä", "😀", "\n", "\n", "\r", "\r\n", "\ufeff", "\u2028", "\u3000", "\x85", "\x0c", "\x00", " "]


def drawn(seed: int) -> bytes:
    chance = random.Random(seed)
    return "".join(chance.choices(ALPHABET, k=chance.randint(0, 60))).encode()


def scanned(path: Path, data: bytes) -> FileText:
    path.write_bytes(data)
    return FileText(path, hashlib.sha256())


def without(text: Text, lines: list[str], seed: int) -> tuple[Text, list[str]]:
    places = [place for place in range(len(lines)) if random.Random(seed + place).random() < 0.4]
    return text.without(np.array(places, dtype=np.int64)), [
        line for place, line in enumerate(lines) if place not in places
    ]


@pytest.mark.parametrize("seed", range(100))
def test_it_is_the_text_of_the_file_whatever_blocks_it_was_scanned_in(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1 + seed % 9)
    monkeypatch.setattr("transformer_cli.data.text.BLOCK", 3)
    data, digest = drawn(seed) if seed else BOM, hashlib.sha256()
    expected = split_lines(data, "text")
    (tmp_path / "text").write_bytes(data)
    text = FileText(tmp_path / "text", digest)
    lines = expected.lines
    assert list(text) == lines
    assert [text[place] for place in range(-len(lines), len(lines))] == lines * 2
    assert [text[1:-1], text[::2], text[:]] == [lines[1:-1], lines[::2], lines]
    assert text.counts == expected.counts
    assert text.blank.tolist() == [place for place, line in enumerate(lines) if not line.strip()]
    assert digest.hexdigest() == hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


@pytest.mark.parametrize("seed", range(50))
def test_left_out_and_joined_it_is_what_lists_would_be(seed, tmp_path):
    texts = [scanned(tmp_path / "a", drawn(seed)), ListedText(["x", "", "y"]), scanned(tmp_path / "b", drawn(seed + 1))]
    lines = [line for text in texts for line in text]
    text, lines = without(JoinedText(texts), lines, seed)
    text, lines = without(text, lines, seed + 7)
    assert text == lines
    assert text[2:5] == lines[2:5]
    assert text.blank.tolist() == [place for place, line in enumerate(lines) if not line.strip()]
    digest = hashlib.sha256()
    update(digest, text)
    assert digest.hexdigest() == hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


@pytest.mark.parametrize("knows_files_without_names", [True, False])
def test_a_gz_is_the_text_in_it_and_leaves_no_file_behind(knows_files_without_names, tmp_path, monkeypatch):
    """Nor would it if this process was killed: what it is unpacked to has no name from the beginning, or loses it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not knows_files_without_names:
        monkeypatch.setattr(os, "open", named_only(os.open))
    text = scanned(tmp_path / "a.gz", gzip.compress(b"ein\r\nzwei\n" * 30_000))
    assert len(text) == 60_000
    assert text[59_998:] == ["ein", "zwei"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]


@pytest.mark.parametrize("seed", range(20))
def test_a_gz_that_is_unpacked_already_is_the_same_text_whoever_reads_it(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1 + seed % 9)
    digests = [hashlib.sha256() for _ in range(3)]
    (path := tmp_path / "a.gz").write_bytes(gzip.compress(drawn(seed)))
    expected, unpacked = FileText(path, digests[0]), unpack(path)
    path.unlink()
    for digest in digests[1:]:
        text = FileText(path, digest, unpacked)
        assert list(text) == list(expected)
        assert text.counts == expected.counts
        assert text.blank.tolist() == expected.blank.tolist()
    assert len({digest.digest() for digest in digests}) == 1


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(b"some text")[:-5]])
def test_a_damaged_gz_is_named_by_whoever_unpacks_it(data, tmp_path):
    (tmp_path / "a.gz").write_bytes(data)
    for read in (unpack, lambda path: FileText(path, hashlib.sha256())):
        with pytest.raises(DataError, match=f"^{tmp_path}/a.gz is damaged: "):
            read(tmp_path / "a.gz")


def named_only(opened: Callable[..., int]) -> Callable[..., int]:
    """A disk like NFS."""
    without_name = getattr(os, "O_TMPFILE", 0)

    def refusing(path, flags, *others, **named):
        if without_name and flags & without_name == without_name:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *others, **named)

    return refusing


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    ("number", "room"),
    [(errno.ENOSPC, r" \([0-9,]+ bytes free\)"), (errno.EDQUOT, ""), (errno.EFBIG, ""), (errno.EIO, "")],
)
def test_a_temporary_folder_that_does_not_take_what_is_unpacked_is_named_with_the_file(
    number, room, nth, tmp_path, monkeypatch
):
    """As where `ulimit -f` is small: "File too large" was all that was said, of no file."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(files, "disk", disk := Saboteur(nth, OSError(number, os.strerror(number)), short=nth > 1))
    words = f"^{tmp_path}/a.gz cannot be unpacked into {folder}: {os.strerror(number)}{room}$"
    with pytest.raises(ResourceError, match=words) as refused:
        scanned(tmp_path / "a.gz", gzip.compress(b"ein\nzwei\n" * 30_000))
    assert disk.struck
    assert "; TMPDIR may name another folder" in refused.value.hint
    assert "gunzip -k" in refused.value.hint
    assert list(folder.iterdir()) == []


def test_a_limit_of_the_system_to_what_is_unpacked_is_named_with_the_file(tmp_path):
    """RLIMIT_FSIZE is a real fault of the kernel, not one of ours."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"ein\nzwei\n" * 30_000))
    program = """
import hashlib, resource
from transformer_cli.data.text import FileText
from transformer_cli.errors import ResourceError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    FileText("a.gz", hashlib.sha256())
except ResourceError as error:
    print(error.message)
"""
    told = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=told)
    assert done.stdout == f"a.gz cannot be unpacked into {tmp_path}: File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]


def test_where_there_is_no_temporary_folder_at_all_that_is_said_of_the_file(tmp_path, monkeypatch):
    def refuse(**options):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(ResourceError, match=r"a\.gz cannot be unpacked into any temporary folder: No usable"):
        scanned(tmp_path / "a.gz", gzip.compress(b"ein\n"))


def test_a_short_write_of_what_is_unpacked_is_gone_on_with(tmp_path, monkeypatch):
    class Dribble(files.Disk):
        def write(self, descriptor, data):
            return os.write(descriptor, data[:7])

    monkeypatch.setattr(files, "disk", Dribble())
    text = scanned(tmp_path / "a.gz", gzip.compress(b"ein\nzwei\n" * 300))
    assert list(text) == ["ein", "zwei"] * 300


def test_a_text_that_comes_bit_by_bit_is_whole_and_one_that_ends_early_is_none(tmp_path, monkeypatch):
    """A short read was taken for a last line without an end, and one was put behind it."""
    text, read = scanned(tmp_path / "text", b"eins\nzwei\ndrei"), os.pread
    expected = ["eins", "zwei", "drei"]
    for most in (1, 3, 4):
        monkeypatch.setattr(os, "pread", lambda file, n, start, most=most: read(file, min(n, most), start))
        assert list(text) == [text[0], text[1], text[2]] == expected
    monkeypatch.setattr(os, "pread", lambda file, n, start: read(file, max(0, min(n, 7 - start)), start))
    assert text[0] == "eins"
    for place in (1, 2):
        with pytest.raises(ResourceError, match="cannot be read"):
            text[place]


@pytest.mark.parametrize("call", ["pread", "fstat"])
def test_a_text_that_its_server_no_longer_has_is_named_with_what_to_do(call, tmp_path, monkeypatch):
    text = scanned(tmp_path / "text", b"eins\nzwei\n")
    words = f"^{tmp_path}/text cannot be read: {os.strerror(errno.ESTALE)}$"
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ESTALE))
        with pytest.raises(ResourceError, match=words) as refused:
            text[1]
    assert refused.value.hint.startswith("the server no longer has that file")


def test_what_was_unpacked_and_cannot_be_read_is_named_with_the_temporary_folder(tmp_path, monkeypatch):
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    text = scanned(tmp_path / "a.gz", gzip.compress(b"eins\nzwei\n"))
    monkeypatch.setattr(os, "pread", failing(errno.EIO))
    words = f"^{tmp_path}/a.gz, unpacked into {folder}, cannot be read: {os.strerror(errno.EIO)}$"
    with pytest.raises(ResourceError, match=words) as refused:
        text[1]
    assert "dmesg" in refused.value.hint
    assert "TMPDIR" in refused.value.hint


def failing(number: int) -> Callable[..., NoReturn]:
    def call(*arguments):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("seed", range(20))
def test_bad_bytes_have_the_place_that_they_have_in_the_whole(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1 + seed)
    data = "\ufeffgut\n\nnoch gut\n".encode() * seed + b"schl\xe4cht\nende"
    with pytest.raises(DataError) as whole:
        split_lines(data, str(tmp_path / "text"))
    with pytest.raises(DataError) as scanning:
        scanned(tmp_path / "text", data)
    assert scanning.value.message == whole.value.message


@pytest.mark.parametrize("end", ["", "\n", "\nb\n"])
def test_a_line_without_an_end_is_no_text(end, tmp_path):
    with pytest.raises(DataError, match="line 2 has more than"):
        scanned(tmp_path / "text", f"a\n{'x' * (LONGEST_LINE + 1)}{end}".encode())


def test_a_file_that_changes_while_it_is_used_is_refused(tmp_path):
    """Its lines would no longer be where they were."""
    text = scanned(tmp_path / "text", b"eins\nzwei\ndrei\n")
    assert text[1] == "zwei"
    (tmp_path / "text").write_bytes(b"eins\nzw\ndrei\n")
    with pytest.raises(DataError, match="text was changed while it was read"):
        text[1]


def test_a_file_that_changes_while_it_is_looked_through_is_refused(tmp_path, monkeypatch):
    """Though it has as many lines as before, half of them are where they were."""
    monkeypatch.setattr(stream, "BLOCK_BYTES", 50)
    path, read = tmp_path / "text", reading.read_some

    def changed_meanwhile(source, name):
        data = read(source, name)
        if source.tell() == 50:
            path.write_bytes(b"EINS, ZWEI\n" * 20)
        return data

    monkeypatch.setattr(reading, "read_some", changed_meanwhile)
    with pytest.raises(DataError, match="text was changed while it was read"):
        scanned(path, b"eins zwei\n" * 20)


def test_a_corpus_takes_arrays_of_numbers_and_nothing_else(tmp_path):
    for side in "ab":
        (tmp_path / side).write_bytes("".join(f"der Hund Nummer {i}\n" for i in range(50_000)).encode() + b"\nx\n" * 50)
    tracemalloc.start()
    digest = hashlib.sha256()
    corpus = learnable(Corpus(FileText(tmp_path / "a", digest), FileText(tmp_path / "b", digest)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(corpus) == 50_050
    assert held < 26 * len(corpus)
