from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from transformer_cli.cli import lines
from transformer_cli.cli.app import main
from transformer_cli.errors import DataError, ModelError, UsageError
from transformer_cli.tokenizer import Tokenizer
from transformer_cli.training import replacing

PAIRS = [
    ["das glück", "happiness"],
    ["das unglück", "unhappiness"],
    ["glücklich", "happy"],
    ["die güte", "kindness"],
    ["unfreundlich", "unkind"],
]
CONFIG = f"""
name: small
tokenizer: {{vocab_size: 50}}
data:
  train: {{pairs: {json.dumps(PAIRS, ensure_ascii=False)}}}
  valid: {{pairs: [[glücklich, happy]]}}
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """An empty current folder but for a configuration; nobody at the keyboard and nothing in a pipe."""
    (tmp_path / "small.yaml").write_text(CONFIG, encoding="utf-8")
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield tmp_path


@pytest.fixture
def trained(home, capsys) -> Tokenizer:
    main(["tokenize", "-c", "small.yaml"])
    capsys.readouterr()
    return Tokenizer.load("runs/small/tokenizer")


def output(capsys, *arguments: str) -> list[str]:
    main(["tokenize", *arguments])
    return capsys.readouterr().out.removesuffix("\n").split("\n")


@pytest.mark.parametrize("named", [[], ["--run-dir", "runs/small"]])
def test_a_setting_that_the_tokenizer_there_does_not_have_is_no_setting_of_a_text(trained, capsys, named) -> None:
    """It was left out without a word: who tried a vocabulary on a sentence saw the one before."""
    with pytest.raises(UsageError, match=r"tokenizer\.kind=char would make another tokenizer"):
        main(["tokenize", "-c", "small.yaml", *named, "--set", "tokenizer.kind=char", "glück"])
    assert output(capsys, "-c", "small.yaml", "--set", "name=small", "glück") == output(capsys, *named, "glück")


@pytest.fixture
def feed(home, monkeypatch) -> Callable[[bytes], None]:
    """Puts a file of these bytes in the place of stdin."""
    with ExitStack() as opened:

        def put(data: bytes) -> None:
            (home / "fed").write_bytes(data)
            monkeypatch.setattr(sys, "stdin", opened.enter_context(open(home / "fed", encoding="utf-8")))

        yield put


def test_a_configuration_without_text_trains_and_says_how_it_went(home, capsys):
    main(["tokenize", "-c", "small.yaml"])
    said = capsys.readouterr()
    tokenizer = Tokenizer.load("runs/small/tokenizer")
    assert f"bpe, joint: {tokenizer.source_size} pieces" in said.err
    assert "tokens per word: de " in said.err
    assert "lines used: 10, skipped: 0" in said.err
    assert "saved in runs/small/tokenizer" in said.err
    assert said.out == ""


def test_a_side_without_spaces_is_told_to_have_a_word_per_letter(home, capsys):
    for name, language in (("small.yaml", ""), ("thai.yaml", " (a letter of th is a word)")):
        Path("thai.yaml").write_text(
            "data: {train: {pairs: [[ein Bier, เบียร์หนึ่งแก้ว]]}, valid: {pairs: [[ja, ใช่]]}, target: th}\n"
            "tokenizer: {kind: char}\n",
            encoding="utf-8",
        )
        main(["tokenize", "-c", name])
        [said] = [line for line in capsys.readouterr().err.split("\n") if line.startswith("tokens per word: ")]
        assert re.fullmatch(rf"tokens per word: de [\d.]+, (en|th) [\d.]+{re.escape(language)}", said)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("Sie verabschieden sich, endlich!", '"verabschieden"'),
        ("a ewu\u0301re\u0323\u0301 b", '"ewu\u0301re\u0323\u0301"'),
        ("我母亲昨天想要那本书。好", '"我母亲昨天想要那本书"'),
        ("-- !", "-i FILE"),
    ],
)
def test_a_word_of_the_text_is_suggested_to_be_cut_next(home, capsys, line, word):
    """It was an English one, whatever the language."""
    (home / "t.de").write_text(f"{line}\n", encoding="utf-8")
    (home / "t.en").write_text("a thankful translation\n", encoding="utf-8")
    main(["tokenize", "-c", "small.yaml", "--set", "data.train=t", "--set", "tokenizer.kind=char"])
    said = capsys.readouterr().err
    assert f"next: tx tokenize -m runs/small {word}\n" in said


def test_what_is_suggested_can_be_pasted(home, capsys):
    main(["tokenize", "-c", "small.yaml", "--run-dir", "my run"])
    assert "next: tx tokenize -m 'my run' " in capsys.readouterr().err


def test_training_reports_as_json_too(home, capsys):
    [report] = map(json.loads, output(capsys, "-c", "small.yaml", "--json", "--set", "tokenizer.vocab_size=5000"))
    tokenizer = Tokenizer.load("runs/small/tokenizer")
    assert report["fingerprint"] == tokenizer.fingerprint
    assert report["asked"] == {"joint": 5000}
    assert report["pieces"] == {"joint": tokenizer.source_size}
    assert report["fitted"] is True
    assert report["lines_used"] == 10


def test_a_fitted_vocabulary_and_skipped_lines_are_said(home, capsys):
    (home / "t.de").write_text("a\u2585\nein hund\n\n", encoding="utf-8", newline="\n")
    (home / "t.en").write_text("b\na dog\r\nc\n", encoding="utf-8", newline="\n")
    main(["tokenize", "-c", "small.yaml", "--set", "data.train=t", "--set", "tokenizer.vocab_size=500"])
    said = capsys.readouterr().err
    assert "fitted: the text has no more, 500 were asked for" in said
    assert "skipped: 1 x reserved character U+2585" in said
    assert "text: 1 x empty source" in said
    assert "text: 1 x carriage return stripped" in said


def test_what_no_piece_has_is_counted_and_nothing_else_is_said_to_be_missing(home, capsys):
    """It said that the text had no more characters where the coverage had left some of them out."""
    coverage = ("--set", "tokenizer.kind=char", "--set", "tokenizer.character_coverage=0.98")
    main(["tokenize", "-c", "small.yaml", *coverage])
    said = capsys.readouterr().err
    assert "fitted: within tokenizer.character_coverage 0.98 the text has no more, 50 were asked for" in said
    assert " <unk>, for no piece has " in said
    assert "; tokenizer.character_coverage=1 or tokenizer.byte_fallback=true loses nothing" in said
    main(["tokenize", "-c", "small.yaml", "--set", "tokenizer.kind=char", "--set", "tokenizer.vocab_size=20", "--json"])
    printed = capsys.readouterr()
    assert "; a larger tokenizer.vocab_size or tokenizer.byte_fallback=true loses nothing" in printed.err
    assert min(json.loads(printed.out)["unknown_tokens"].values()) > 0
    main(["tokenize", "-c", "small.yaml", "--json"])
    printed = capsys.readouterr()
    assert "<unk>" not in printed.err
    assert json.loads(printed.out)["unknown_tokens"] == {"source": 0, "target": 0}


def test_the_run_directory_holds_the_configuration_it_was_trained_with(trained, home):
    from transformer_cli.config.source import load_config

    assert load_config("runs/small/config.yaml") == load_config("small.yaml")


def test_training_again_before_there_is_a_model_replaces_the_tokenizer_and_says_so(trained, capsys):
    main(["tokenize", "-c", "small.yaml", "--set", "tokenizer.kind=unigram", "--set", "tokenizer.vocab_size=40"])
    assert Tokenizer.load("runs/small/tokenizer").fingerprint != trained.fingerprint
    assert not list(Path("runs/small").glob(".*"))
    assert "replacing the tokenizer that was in runs/small" in capsys.readouterr().err


def test_a_run_that_begins_with_another_one_has_its_tokenizer(home):
    """One was learned, of which the run then used nothing."""
    with pytest.raises(
        UsageError, match=r"is to begin with runs/parent \(training\.init_from\), and with its tokenizer"
    ):
        main(["tokenize", "-c", "small.yaml", "--set", "training.init_from=runs/parent"])
    assert not (home / "runs").exists()


def test_a_tokenizer_of_another_kind_leaves_nothing_of_the_old_one(trained):
    settings = ["tokenizer.joint=false", "tokenizer.vocab_size=30", "model.tied=none"]
    main(["tokenize", "-c", "small.yaml", *(f"--set={setting}" for setting in settings)])
    names = {path.name for path in Path("runs/small/tokenizer").iterdir()}
    assert names == {"source.model", "target.model", "tokenizer.json"}


@pytest.mark.parametrize(("checkpoints", "said"), [(True, "was trained with"), (False, "began with")])
def test_the_tokenizer_of_a_run_is_not_replaced(trained, home, checkpoints, said):
    """A run that failed before its first checkpoint was said to be trained."""
    (home / "runs/small/run.json").write_text('{"versions": {"tx": "1"}}', encoding="utf-8")
    if checkpoints:
        (home / "runs/small/checkpoints").mkdir()
    main(["tokenize", "-c", "small.yaml"])
    with pytest.raises(UsageError, match=f"{said} another tokenizer"):
        main(["tokenize", "-c", "small.yaml", "--set", "tokenizer.kind=word"])
    assert Tokenizer.load("runs/small/tokenizer").fingerprint == trained.fingerprint


def test_a_run_that_was_to_be_replaced_is_put_back_first(trained, home, capsys):
    """The next training would put it back, and delete the tokenizer that was made meanwhile."""
    (home / "runs/small/checkpoints/step-00000001").mkdir(parents=True)
    record = (home / "runs/small/run.json").read_bytes()
    replacing.set_aside(home / "runs/small", print)
    (home / "runs/small/run.json").write_bytes(record)
    with pytest.raises(UsageError, match="was trained with another tokenizer"):
        main(["tokenize", "-c", "small.yaml", "--set", "tokenizer.kind=word"])
    assert "had not begun: that is there again" in capsys.readouterr().err
    assert Tokenizer.load("runs/small/tokenizer").fingerprint == trained.fingerprint


def test_sides_of_several_languages_have_the_name_of_none(home, capsys):
    both = f"data.train=[{{text: {{pairs: {json.dumps(PAIRS, ensure_ascii=False)}}}, both: true}}]"
    main(["tokenize", "-c", "small.yaml", "--set", both])
    [said] = [line for line in capsys.readouterr().err.split("\n") if line.startswith("tokens per word: ")]
    one, other = re.fullmatch(r"tokens per word: sources ([\d.]+), targets ([\d.]+)", said).groups()
    assert one == other


def test_text_gives_pieces_a_tab_and_ids(trained, capsys):
    [line] = output(capsys, "unhappiness kind")
    pieces, ids = (half.split(" ") for half in line.split("\t"))
    assert "".join(pieces) == "▁unhappiness▁kind"
    assert [trained.source.piece(int(id)) for id in ids] == pieces


@pytest.mark.parametrize("chosen", [[], ["-m", "runs/small"], ["-c", "small.yaml"], ["--run-dir", "runs/small"]])
def test_the_run_can_be_named_in_every_way(trained, capsys, chosen):
    [line] = output(capsys, "happy", "--ids", *chosen)
    assert line == " ".join(map(str, trained.encode_source(["happy"])[0]))


def test_ids_decode_to_the_text(trained, capsys):
    lines = ["unhappiness", "", "das glück"]
    ids = output(capsys, "--ids", *lines)
    assert output(capsys, "--decode", *ids) == lines


def test_json_is_one_object_per_line(trained, capsys):
    [first, second] = map(json.loads, output(capsys, "--json", "unkind", "das glück"))
    assert first == {
        "text": "unkind",
        "pieces": trained.source.pieces(["unkind"])[0],
        "ids": trained.encode_source(["unkind"])[0],
    }
    assert second["text"] == "das glück"
    [decoded] = map(json.loads, output(capsys, "--json", "--decode", " ".join(map(str, first["ids"]))))
    assert decoded == first


def test_a_pipe_gives_a_line_for_each_line(trained, capsys, feed):
    feed("happy\u2028kind\n\n  \nun\rkind\r\nx".encode())
    lines = output(capsys, "--ids")
    expected = trained.encode_source(["happy\u2028kind", "", "  ", "un\rkind", "x"])
    assert lines == [" ".join(map(str, ids)) for ids in expected]


def test_a_pipe_and_a_configuration_tokenize_with_that_run(trained, capsys, feed):
    feed(b"happy\n")
    assert output(capsys, "-c", "small.yaml", "--ids") == output(capsys, "-m", "runs/small", "--ids", "happy")


def test_a_real_pipe_is_read(trained, capsys, monkeypatch):
    read, write = os.pipe()
    os.write(write, b"happy\n")
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert len(output(capsys, "--ids")) == 1


@pytest.mark.parametrize("is_late", [True, False])
def test_who_waits_for_the_end_of_a_pipe_is_told_so_and_how_to_train(home, capsys, monkeypatch, is_late):
    """Of whatever started tx and kept its stdin open: nothing was printed, and nothing happened, for as long."""
    monkeypatch.setattr(lines, "PATIENCE_S", 0.2 if is_late else 60)
    read, write = os.pipe()
    os.write(write, b"\n" * is_late)  # what has come is no end
    closing = threading.Timer(0.6 if is_late else 0, os.close, [write])
    closing.start()
    with os.fdopen(read, encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        with suppress(ModelError):  # where a line came, and nothing was trained
            main(["tokenize", "-c", "small.yaml"])
    closing.join()
    said = "reading stdin to its end ... (</dev/null trains a tokenizer)\n"
    assert capsys.readouterr().err.startswith(said) is is_late


def test_a_socket_is_read_like_a_pipe(trained, capsys, monkeypatch):
    """As which Node, and sshd, give what they feed: it was not looked at, and with -c a tokenizer was trained."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.sendall(b"happy\nkind\n")
        theirs.shutdown(socket.SHUT_WR)
        with open(ours.fileno(), encoding="utf-8", closefd=False) as fed:
            monkeypatch.setattr(sys, "stdin", fed)
            assert len(output(capsys, "-c", "small.yaml", "--ids")) == 2


@pytest.mark.parametrize("asked", [["-i", "empty"], ["--ids"], ["--decode"], ["--to", "en"], ["--target"]])
def test_a_text_that_was_asked_for_and_is_empty_has_no_lines_and_trains_nothing(home, capsys, feed, asked):
    """It replaced the tokenizer, and all else of the run's directory."""
    main(["tokenize", "-c", "small.yaml"])
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    capsys.readouterr()
    (home / "empty").write_bytes(b"")
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", pipe)
        with suppress(UsageError):  # there are no tags, so that there is no language to write
            main(["tokenize", "-c", "small.yaml", *asked])
    assert capsys.readouterr().out == ""
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before


def test_a_file_is_read_and_what_was_touched_is_said(trained, capsys, home):
    (home / "in.txt").write_bytes(b"\xef\xbb\xbfhappy\r\nkind\n")
    main(["tokenize", "-i", "in.txt"])
    said = capsys.readouterr()
    assert len(said.out.split("\n")) == 3
    assert "1 x byte order mark removed" in said.err
    assert "1 x carriage return stripped" in said.err


def test_counts_are_the_last_object_of_the_json(trained, capsys, home):
    (home / "in.txt").write_bytes(b"happy\r\n")
    *_, last = map(json.loads, output(capsys, "--json", "-i", "in.txt"))
    assert last == {"counts": {"carriage return stripped": 1}}


def test_each_side_has_its_own_vocabulary_where_they_are_not_joint(home, capsys):
    settings = ["tokenizer.joint=false", "tokenizer.vocab_size=30", "model.tied=none"]
    main(["tokenize", "-c", "small.yaml", *(f"--set={setting}" for setting in settings)])
    said = capsys.readouterr().err
    assert "bpe, source: 30 pieces" in said
    assert "bpe, target: 30 pieces" in said
    tokenizer = Tokenizer.load("runs/small/tokenizer")
    [source], [target] = output(capsys, "--ids", "happy"), output(capsys, "--ids", "--target", "happy")
    assert source == " ".join(map(str, tokenizer.encode_source(["happy"])[0]))
    assert target == " ".join(map(str, tokenizer.encode_target(["happy"])[0]))
    assert source != target


@pytest.mark.parametrize("word", ["x", "-1", "1.5", "99999", "٣", "9" * 30])
def test_what_is_no_id_is_a_data_error_with_its_line(trained, word):
    with pytest.raises(DataError, match=r"line 2: .* is not an id of this tokenizer, which has 0 to "):
        main(["tokenize", "--decode", "5 6", f"7 {word}"])


def test_ids_of_a_line_break_do_not_break_the_line(home, capsys):
    main(["tokenize", "-c", "small.yaml", "--set", "tokenizer.byte_fallback=true", "--set", "tokenizer.vocab_size=300"])
    newline = Tokenizer.load("runs/small/tokenizer").encode_source(["\n"])  # NFKC makes a space of it: no piece
    assert newline == [[]]
    spelled = next(id for id in range(300) if Tokenizer.load("runs/small/tokenizer").source.piece(id) == "<0x0A>")
    capsys.readouterr()
    main(["tokenize", "--decode", f"{spelled} {spelled}", "5"])
    said = capsys.readouterr()
    assert len(said.out.split("\n")) == 3
    assert "line 1: the ids of line breaks are shown as spaces" in said.err


def test_nothing_given_says_what_to_type(home):
    for arguments in ([], ["--ids"], ["-c", "small.yaml", "--ids"]):
        with pytest.raises(UsageError, match="no text to tokenize") as caught:
            main(["tokenize", *arguments])
        assert "tx tokenize -c tiny.yaml" in caught.value.hint


def test_without_any_run_the_error_says_what_to_type(home):
    with pytest.raises(ModelError) as caught:
        main(["tokenize", "unhappiness"])
    assert "tx train -c" in caught.value.hint


def test_options_that_contradict_each_other_are_refused(trained, home):
    for arguments in (["--ids", "--decode", "5"], ["-m", "runs/small", "-c", "small.yaml", "x"], ["x", "-i", "f"]):
        with pytest.raises(UsageError):
            main(["tokenize", *arguments])


def test_a_run_is_named_in_one_way(trained):
    """`-m` was ignored."""
    with pytest.raises(UsageError, match="-m and --run-dir both name a run"):
        main(["tokenize", "-m", "runs/small", "--run-dir", "runs/other", "x"])


def test_an_argument_that_is_not_utf8_is_a_data_error(trained):
    with pytest.raises(DataError, match="bytes that are not UTF-8"):
        main(["tokenize", b"sch\xf6n".decode("utf-8", "surrogateescape")])


def test_a_setting_is_refused_where_there_is_no_configuration_to_change() -> None:
    """It was ignored: the text was cut by the latest run's tokenizer, whatever --set said."""
    with pytest.raises(UsageError, match="--set changes a configuration, and there is none"):
        main(["tokenize", "unhappiness", "--set", "tokenizer.vocab_size=500"])
