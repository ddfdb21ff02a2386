"""`tx translate` as a process among others: what a shell, a pipe, a signal or a strange text does to it."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.data import stream

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


def tx(*arguments: str) -> int:
    """The program in this process: its exit code."""
    return failures.exit_code(lambda: main(["translate", *arguments]))


@contextmanager
def started(command: list[str], *arguments: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program as a process of its own, its streams open; gone at the end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "translate", *arguments], cwd=cwd, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


STRANGE = [
    "\u2028",
    "a\u2028b\u2029c",
    "next\x85line",
    "form\x0cfeed\x0bvertical",
    "file\x1cgroup\x1drecord\x1e",
    "nul\x00byte",
    "carriage\rreturn",
    "zero\u200dwidth\ufeffnbsp\u00a0",
    "עברית \u202eאבג",
    "e\u0301 😀👩‍👩‍👧",
    "</s> <s> <pad> <unk>",
    "▁ ▁hund",
    "\t",
    "x" * 5000,
    "100 % ||| {} $HOME \\n",
]


def test_every_kind_of_text_comes_out_line_for_line(warm: list[str], here: Path) -> None:
    """One process: a BOM, CRLF, all the characters that others take for line ends, special symbols, empty lines, no
    "\\n" at the end, and a bad byte never."""
    lines = [SOURCES[0], *STRANGE, "", "   ", SOURCES[5] + "\r", *STRANGE[::-1], SOURCES[7]]
    data = b"\xef\xbb\xbf" + "\n".join(lines).encode()
    with started(warm, cwd=here) as process:
        out, err = process.communicate(data, timeout=300)
    assert process.returncode == 0
    found = out.decode().split("\n")
    assert found.pop() == ""
    assert len(found) == len(lines)
    plain = {0: TARGETS[0], 1 + len(STRANGE): "", 2 + len(STRANGE): "", 3 + len(STRANGE): TARGETS[5], -1: TARGETS[7]}
    assert {index: found[index] for index in plain} == plain
    assert [text for line, text in zip(lines, found, strict=True) if not line.strip()] == [""] * 6
    assert not set(b"\r\x00") & set(out)
    assert "1 x byte order mark removed" in err.decode()
    assert "1 x carriage return stripped" in err.decode()


def test_a_translation_is_there_before_the_next_line_is(warm: list[str], here: Path) -> None:
    """The writer waits for each answer, as `coproc` or an editor does, and closes after the last."""
    with started(warm, "-q", cwd=here) as process:
        for source, target in PAIRS[:3]:
            process.stdin.write(f"{source}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{target}\n"
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_no_output_file(
    warm: list[str], here: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out.en"
    with started(warm, "-i", "-", "-o", str(out), cwd=here) as process:
        process.stdin.write(f"{SOURCES[0]}\n".encode())
        process.stdin.flush()
        while not list(tmp_path.iterdir()):  # until it has begun to write
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=300) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_ends_the_program_quietly(warm: list[str], here: Path) -> None:
    """`tx translate < endless | head -1`: nothing is said, and the rest of the input is never read."""
    with started(warm, "-q", cwd=here) as process:
        process.stdin.write(f"{SOURCES[0]}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"{TARGETS[0]}\n"
        process.stdout.close()
        process.stdin.write(f"{SOURCES[0]}\n".encode())
        process.stdin.flush()
        assert process.wait(timeout=300) == 0
        assert process.stderr.read() == b""


def test_named_pipes_on_both_sides(here: Path, tmp_path: Path) -> None:
    """What `tx translate -i <(...) -o >(...)` means to the program; the pipe is still one afterwards."""
    source, target = tmp_path / "source", tmp_path / "target"
    os.mkfifo(source)
    os.mkfifo(target)
    feed = subprocess.Popen(["sh", "-c", f'printf "%s\\n" "$1" "$2" > "{source}"', "sh", *SOURCES[:2]])
    drain = subprocess.Popen(["cat", str(target)], stdout=subprocess.PIPE)
    with feed, drain:
        assert tx("-q", "-i", str(source), "-o", str(target)) == 0
        assert drain.communicate(timeout=60)[0].decode() == f"{TARGETS[0]}\n{TARGETS[1]}\n"
    assert target.is_fifo()


def test_a_pipe_without_a_name_may_be_the_output(here: Path) -> None:
    """`-o >(...)` and `-o /dev/stdout` name a descriptor of the process."""
    read_end, write_end = os.pipe()
    assert tx("-q", "-o", f"/dev/fd/{write_end}", SOURCES[0]) == 0
    os.close(write_end)
    with os.fdopen(read_end, "rb") as reader:
        assert reader.read().decode() == f"{TARGETS[0]}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
def test_an_output_that_refuses_is_named(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("-o", "/dev/full", SOURCES[0]) == 5
    assert "cannot write /dev/full: No space left on device" in capfd.readouterr().err


def test_what_a_link_names_is_written_not_the_link(here: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    assert tx("-q", "-o", str(tmp_path / "link"), SOURCES[0]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == f"{TARGETS[0]}\n"


def test_a_compressed_file_is_read(here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.gz").write_bytes(gzip.compress("\n".join(SOURCES).encode()))
    assert tx("-i", str(tmp_path / "in.gz")) == 0
    assert capfd.readouterr().out.split("\n") == [*TARGETS, ""]


def test_an_empty_line_is_a_line_a_thousand_times(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_bytes(b"\n" * 1000)
    assert tx("-i", str(tmp_path / "in")) == 0
    captured = capfd.readouterr()
    assert captured.out == "\n" * 1000
    assert "without text, so the translation is empty: 1,000 of 1,000 lines" in captured.err


def test_ten_thousand_words_in_a_line_are_translated_in_parts(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text(" ".join(SOURCES[:2] * 1250) + f"\n{SOURCES[7]}", encoding="utf-8")
    assert len((tmp_path / "in").read_text(encoding="utf-8").split()) == 10_003
    assert tx("--json", "-b", "1", "--set", "decoding.max_source_length=7", "-i", str(tmp_path / "in")) == 0
    captured = capfd.readouterr()
    long_one, plain = map(json.loads, captured.out.split("\n")[:2])
    assert "split" in long_one["flags"]
    assert len(long_one["translation"].split()) > 5000
    assert (plain["translation"], plain["flags"]) == (TARGETS[7], [])
    assert "longer than the model is used to, so translated in parts and joined: 1 of 2 lines" in captured.err


def test_a_long_line_that_is_refused_is_empty_and_the_program_ends_with_3(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text(f"{SOURCES[0]}\n{' '.join(SOURCES)}\n{SOURCES[7]}\n", encoding="utf-8")
    options = ("--set", "decoding.long=refuse", "--set", "decoding.max_source_length=12")
    assert tx(*options, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")) == 3
    assert (tmp_path / "out").read_text(encoding="utf-8") == f"{TARGETS[0]}\n\n{TARGETS[7]}\n"
    assert "1 of 3 lines has more pieces than the model translates at once (12)" in capfd.readouterr().err


def test_objects_come_in_and_go_out_with_what_they_carry(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    requests = [
        {"id": 7, "source": SOURCES[0], "nested": {"ä": [None, 1.5]}},
        {"source": "\u200b", "prefix": "the"},
        {"source": SOURCES[5], "prefix": "the cat", "score": "mine"},
    ]
    (tmp_path / "in").write_text("".join(f"{json.dumps(one)}\n" for one in requests), encoding="utf-8")
    assert tx("--jsonl", "-i", str(tmp_path / "in")) == 0
    captured = capfd.readouterr()
    first, empty, forced, counts = map(json.loads, captured.out.split("\n")[:-1])
    assert (first["id"], first["nested"], first["translation"]) == (7, {"ä": [None, 1.5]}, TARGETS[0])
    assert empty["translation"] == ""
    assert forced["translation"].startswith("the cat")
    assert isinstance(forced["score"], float)
    assert counts == {"counts": {"prefix of an empty source left out": 1, "field `score` of the input not kept": 1}}
    assert "1 x field `score` of the input not kept" in captured.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("", "line 2 is not JSON that can be read: Expecting value at character 1\n"),
        ('"text"', "line 2 is no object"),
        ('{"src": "text"}', "called `source`"),
        ('{"source": 1}', "called `source`"),
        ('{"source": "a", "x": NaN}', "NaN is not a JSON number"),
        ('{"source": "a\\nb"}', "line 2, source: a sentence is one line"),
        ('{"source": "\\ud800"}', "line 2, source: character 1 is not text"),
        ('{"source": "a", "x": "\\ud800"}', "is not text"),
        ('{"source": "a", "prefix": 1}', "line 2: `prefix` is not a text"),
        ("[" * 100_000, "line 2 is not JSON that can be read: it is nested too deeply"),
        ('{"source": "a", "x": [{"y": 1, "y": 2}]}', "'y' is there twice"),
    ],
)
def test_an_object_that_is_none_is_named_by_its_line(
    here: Path, tmp_path: Path, line: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text(f'{{"source": ""}}\n{line}\n', encoding="utf-8")
    assert tx("--jsonl", "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")) == 3
    assert words in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_field_of_another_translation_stays(here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The alignment and the utility of an earlier one stayed beside the new text, and were said to be replaced."""
    theirs = {"alignment": [[0, 7]], "id": 3, "utility": 99, "source": SOURCES[0], "flags": "mine"}
    (tmp_path / "in").write_text(json.dumps(theirs), encoding="utf-8")
    assert tx("--jsonl", "-i", str(tmp_path / "in")) == 0
    found, counts = map(json.loads, capfd.readouterr().out.split("\n")[:-1])
    assert next(iter(found)) == "id"
    assert (found["id"], found["flags"], found["translation"]) == (3, [], TARGETS[0])
    assert not found.keys() & {"alignment", "utility"}
    not_kept = ("alignment", "utility", "flags")
    assert counts["counts"] == {f"field `{name}` of the input not kept": 1 for name in not_kept}


def test_several_runs_are_an_ensemble(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("-m", "runs/tiny", "-m", "runs/tiny", SOURCES[0]) == 0
    assert capfd.readouterr().out == f"{TARGETS[0]}\n"
    assert tx("-m", "runs/tiny", "-m", "runs/other", SOURCES[0]) == 4


def test_samples_are_the_seeds(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def drawn(*arguments: str) -> list[str]:
        hot = ("--set", "decoding.temperature=5")
        assert tx("--sample", "--n-best", "3", *hot, *arguments, *SOURCES) == 0
        return [line.split(" ||| ")[1] for line in capfd.readouterr().out.split("\n")[:-1]]

    assert drawn() == drawn("--set", "decoding.batch_size=2") != drawn("--set", "seed=2")
    assert len(drawn()) == 3 * len(SOURCES)


@pytest.mark.parametrize("arguments", [("--n-best", "2"), ("--json",), ("--sample", "--set", "decoding.temperature=5")])
def test_blocks_of_any_size_give_the_same_lines(
    here: Path, tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their numbers, what is drawn for them and what is counted included."""
    (tmp_path / "in").write_bytes("\r\n".join([*SOURCES, "", "x"]).encode())
    assert tx(*arguments, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "whole")) == 0
    monkeypatch.setattr(stream, "BLOCK_LINES", 3)
    monkeypatch.setattr(stream, "BLOCK_BYTES", 50)
    assert tx(*arguments, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "blocks")) == 0
    number = re.compile(r"-?\d+\.\d+")
    blocks, whole = ((tmp_path / name).read_text("utf-8") for name in ("blocks", "whole"))
    assert number.sub("", blocks) == number.sub("", whole)
    expected = [float(one) for one in number.findall(whole)]
    assert [float(one) for one in number.findall(blocks)] == pytest.approx(expected, abs=1e-5)


def test_a_mistake_in_a_later_block_has_its_true_line(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stream, "BLOCK_LINES", 2)
    (tmp_path / "in").write_text('{"source": ""}\n' * 4 + "{}\n", encoding="utf-8")
    assert tx("--jsonl", "-i", str(tmp_path / "in")) == 3
    assert "line 5 is no object" in capfd.readouterr().err


def test_flags_are_told_and_in_the_json(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cut = ("--set", "decoding.max_length=1", "--json")
    assert tx(*cut, " ".join(SOURCES[:2])) == 0
    captured = capfd.readouterr()
    assert "short" in json.loads(captured.out)["flags"]
    assert "look wrong, of 1 translation: 1 short (line 1)" in captured.err
