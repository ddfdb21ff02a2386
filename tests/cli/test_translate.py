"""`tx translate` from outside: what goes in, what comes out, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli.cli import failures, translate
from transformer_cli.cli.app import main
from transformer_cli.cli.lines import as_request
from transformer_cli.cli.results import as_text
from transformer_cli.errors import DataError, UsageError
from transformer_cli.python.model import load

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


def tx(*arguments: str) -> int:
    """The program in this process: its exit code."""
    return failures.exit_code(lambda: main(["translate", *arguments]))


def program(command: list[str], *arguments: str, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The program as a process of its own."""
    command = [*command, "translate", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, cwd=cwd, check=False)


def test_text_is_translated_one_argument_one_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx(SOURCES[0], SOURCES[7]) == 0
    assert capfd.readouterr().out == f"{TARGETS[0]}\n{TARGETS[7]}\n"


@pytest.mark.parametrize("name", ["in.de", "./in.de", "linked"])
def test_a_file_is_not_replaced_by_its_translation(
    here: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.de"
    source.write_text(f"{SOURCES[0]}\n", encoding="utf-8")
    (tmp_path / "linked").symlink_to(source)
    assert tx("-i", str(source), "-o", f"{tmp_path}/{name}") == 2
    assert f"{name} is read and would be replaced" in capfd.readouterr().err
    assert source.read_text(encoding="utf-8") == f"{SOURCES[0]}\n"


def test_text_that_was_meant_otherwise_is_translated_with_a_warning(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.de").touch()
    assert tx(str(tmp_path / "in.de")) == 0
    assert "in.de is taken for text; a file of that name is read by -i" in capfd.readouterr().err
    assert tx(*SOURCES[0].split()) == 0
    n_words = len(SOURCES[0].split())
    assert f"{n_words} arguments are {n_words} lines; quotes make one of them" in capfd.readouterr().err
    assert tx(SOURCES[0], SOURCES[1]) == 0
    assert "warning" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["runs/tiny", "runs/tiny/checkpoints/step-00000150"])
def test_a_run_or_a_checkpoint_may_be_named(here: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("-m", name, SOURCES[2]) == 0
    assert capfd.readouterr().out == f"{TARGETS[2]}\n"


def test_a_configuration_means_its_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("-c", "tiny.yaml", SOURCES[2]) == 0
    assert capfd.readouterr().out == f"{TARGETS[2]}\n"
    assert tx("-c", "base.yaml", SOURCES[2]) == 4
    assert "tx train -c base.yaml" in capfd.readouterr().err


def test_a_file_gives_a_file_with_as_many_lines(here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Line ends are "\\n" alone; what was touched is counted, and what has no text stays empty."""
    lines = [SOURCES[0], "", SOURCES[5] + "\r", "  ", "\u2028", "a\u2028b\x85c\x0cd\rе", SOURCES[7]]
    source, target = tmp_path / "in.de", tmp_path / "out.en"
    source.write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode())  # no "\n" at the end
    assert tx("-i", str(source), "-o", str(target)) == 0
    out = target.read_bytes().decode().split("\n")
    assert len(out) == len(lines) + 1
    assert [out[i] for i in (0, 1, 2, 3, 4, 6, 7)] == [TARGETS[0], "", TARGETS[5], "", "", TARGETS[7], ""]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "1 x byte order mark removed" in captured.err
    assert "1 x carriage return stripped" in captured.err
    assert "the translation is empty: 3 of 7 lines" in captured.err


def test_an_empty_file_gives_an_empty_file(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert tx("-i", str(tmp_path / "empty"), "-o", str(tmp_path / "out")) == 0
    assert (tmp_path / "out").read_bytes() == b""
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert tx() == 0
    assert capfd.readouterr().out == ""


def test_a_pipe_is_a_filter_and_only_results_go_to_stdout(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quiet, nothing else is said; and from a cold start most of the processor's time goes to PyTorch's import."""
    monkeypatch.setenv("SECONDS_IN", str(tmp_path / "seconds"))
    done = program([sys.executable, "-c", TIMED], "-q", cwd=here, stdin="\n".join(SOURCES).encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "\n".join(TARGETS) + "\n"
    importing_s, all_s = map(float, (tmp_path / "seconds").read_text(encoding="utf-8").split())
    assert all_s < 2 * importing_s


TIMED = """
import atexit, os, time
from pathlib import Path
from transformer_cli import environment
from transformer_cli.__main__ import main
environment.prepare()
import torch
importing_s = time.process_time()
atexit.register(lambda: Path(os.environ["SECONDS_IN"]).write_text(f"{importing_s} {time.process_time()}"))
main()
"""
"""`tx`, and how much of its processor's time had passed when torch was there."""


def test_json_has_one_object_per_line(here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_text(f"{SOURCES[1]}\r\n\n", encoding="utf-8", newline="")
    assert tx("--json", "--n-best", "2", "-i", str(tmp_path / "in")) == 0
    first, empty, counts = map(json.loads, capfd.readouterr().out.splitlines())
    assert first["source"] == SOURCES[1]
    assert first["translation"] == TARGETS[1]
    assert "".join(first["tokens"]).replace("▁", " ").strip() == TARGETS[1]
    assert first["truncated"] is False
    assert first["n_best"][0]["translation"] == TARGETS[1]
    assert len(first["n_best"]) == 2
    assert first["score"] == first["n_best"][0]["score"] > first["n_best"][1]["score"]
    assert (empty["source"], empty["translation"], empty["tokens"]) == ("", "", [])
    assert counts == {"counts": {"carriage return stripped": 1}}


def test_json_of_a_plain_sentence_is_one_object(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("--json", SOURCES[1]) == 0
    assert json.loads(capfd.readouterr().out)["translation"] == TARGETS[1]


def test_n_best_comes_in_the_format_of_moses(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tx("--n-best", "3", "-b", "4", SOURCES[0], "", SOURCES[7]) == 0
    rows = [line.split(" ||| ") for line in capfd.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] + ["2"] * 3
    assert (rows[0][1], rows[4][1]) == (TARGETS[0], TARGETS[7])
    assert [float(row[3]) for row in rows[:3]] == sorted((float(row[3]) for row in rows[:3]), reverse=True)


def test_beam_and_penalty_are_those_of_the_flags_or_the_settings(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def scores(*arguments: str) -> list[float]:
        assert tx("--json", *arguments, SOURCES[0]) == 0
        found = json.loads(capfd.readouterr().out)
        return [found["score"], found["log_probability"]]

    flag, setting = scores("--length-penalty", "0"), scores("--set", "decoding.length_penalty=0")
    assert flag == setting
    assert flag[0] == flag[1] != scores()[0]


def test_translations_that_were_cut_are_counted(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    limits = ("--set", "decoding.max_length_factor=0", "--set", "decoding.max_length_extra=1")
    assert tx(*limits, "-b", "1", "--json", SOURCES[0]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["truncated"] is True
    assert "did not end and were cut at the longest length: 1 of 1 translation" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["hallo", "-i", "x"], 2, "both given"),
        (["--n-best", "9", "hallo"], 2, "--beam-size"),
        (["-b", "0", "hallo"], 2, "--beam-size"),
        (["--length-penalty", "nan", "hallo"], 2, "length penalty of nan"),
        (["--length-penalty", "-1e6", "hallo"], 2, "between -10 and 10"),
        (["--set", "model.d_model=8", "hallo"], 2, "this model is trained"),
        (["--set", "decoding.beam=8", "hallo"], 2, "beam_size"),
        (["--sample", "-b", "5", "hallo"], 2, "hint: without --beam-size they are drawn"),
        (["-b", "5", "--set", "decoding.sample=true", "hallo"], 2, "a beam of 5 was asked for"),
        (["-i", "no-such-file"], 3, "no-such-file does not exist"),
        (["-m", "runs/tina", "hallo"], 4, "runs/tiny"),
        (["a\udcffb"], 3, "character 2"),
        (["-o", "runs/tiny/config.yaml/x", "hallo"], 5, "config.yaml"),
    ],
)
def test_mistakes_end_with_their_code_and_say_what_to_do(
    here: Path, arguments: list[str], code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tx(*arguments) == code
    captured = capfd.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_bad_utf8_names_line_and_byte_and_writes_nothing(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_bytes(b"hallo\nm\xf6chte\n")
    assert tx("-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")) == 3
    assert "line 2: byte 2" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_failure_in_the_middle_leaves_the_old_output_as_it_was(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_cli.decoding.translator import Translator

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "out").write_text("old\n", encoding="utf-8")
    monkeypatch.setattr(Translator, "translate_all", interrupted)
    assert tx("-o", str(tmp_path / "out"), "hallo") == 130
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("out", "old\n")]


def test_without_any_run_the_error_says_what_to_type(warm: list[str], tmp_path: Path) -> None:
    done = program(warm, "ich mochte ein bier", cwd=tmp_path)
    assert done.returncode == 4
    assert b"tx train -c tiny.yaml" in done.stderr
    assert done.stdout == b""
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_ends_the_program_quietly(warm: list[str], here: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*warm, "translate", "-q", *SOURCES],
        stdout=write_end,
        stderr=subprocess.PIPE,
        cwd=here,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def conversation(command: list[str], typed: bytes, *, cwd: Path, **environment: str) -> tuple[int, str, str]:
    """What is answered on a terminal where this is typed: exit code, stdout, stderr."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, "translate"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"} | environment,
    ) as process:
        os.write(ours, typed)
        out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    return process.returncode, out.decode(), err.decode()


def test_a_bare_terminal_gets_a_prompt(warm: list[str], here: Path) -> None:
    """Line by line: a translation, then the next prompt; an empty line ends."""
    code, out, err = conversation(warm, f"{SOURCES[0]}\n{SOURCES[7]}\n\n".encode(), cwd=here)
    assert (code, out.splitlines()) == (0, [TARGETS[0], TARGETS[7]])
    assert "Ctrl-D" in err


def test_in_a_conversation_what_was_cut_and_what_was_refused_is_said(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load(trained_run, settings={"decoding.max_length": 2, "decoding.beam_size": 1})
    [cut] = model.translate_all([SOURCES[0]])
    assert cut.truncated
    typed, refused = iter(["a", "b", ""]), replace(cut, flags=("refused",), truncated=False)
    monkeypatch.setattr(translate, "_ask", lambda: next(typed))
    answers = iter([cut, refused])
    tally = translate._converse(lambda *_: [next(answers)], as_request, as_text, tell=lambda: None)
    said = capfd.readouterr().err
    assert "this translation is cut at the longest length" in said
    assert "this translation is refused" in said
    assert (tally.n_lines, tally.n_truncated) == (2, 1)
    with pytest.raises(DataError, match="1 of 2 lines has more pieces than"):
        tally.refuse(9, splits=False)


def test_bytes_that_are_no_text_do_not_end_a_conversation(warm: list[str], here: Path) -> None:
    """In a UTF-8 locale (en_US.UTF-8, not C.UTF-8) they were once called a bug in tx, which ended."""
    typed = b"\xff\n" + f"{SOURCES[0]}\n\n".encode()
    code, out, err = conversation(warm, typed, cwd=here, PYTHONIOENCODING="utf-8:strict")
    assert (code, out) == (0, f"{TARGETS[0]}\n")
    assert "what was typed: character 1 is not text" in err


def test_what_cannot_be_searched_for_is_said_before_a_line_is_waited_for(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It once took a first sentence to hear it, and an empty file never heard of it."""
    (tmp_path / "in").touch()
    assert tx("--n-best", "9", "-i", str(tmp_path / "in")) == 2
    assert "9 translations per line were asked of a beam of 5" in capfd.readouterr().err


def test_two_names_for_a_run_are_refused(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-c` was once left out of account where `-m` was given."""
    monkeypatch.chdir(trained_run.parents[1])
    with pytest.raises(UsageError, match="both name a run"):
        main(["translate", "-m", "runs/tiny", "-c", "tiny.yaml", "x"])


def test_the_help_says_which_row_an_alignment_is_read_from_and_how_to_read_the_other(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert tx("--help") == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "from the row that a word comes out of" in said
    assert "decoding.alignment_reading=shifted" in said
