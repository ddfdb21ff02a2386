"""`tx visualize-attention` from outside: what it shows, writes and refuses."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import PAIRS

from transformer_cli.attention_maps import fonts
from transformer_cli.attention_maps.alignment import align
from transformer_cli.attention_maps.saved import as_npz, read_maps
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.tokenizer import Tokenizer

SOURCE, TARGET = PAIRS[0]


@pytest.fixture
def here(trained_run, tmp_path):
    """A new folder with the trained run's parent as `runs`."""
    (tmp_path / "runs").symlink_to(trained_run.parent)
    return tmp_path


def tx(*arguments):
    return failures.exit_code(lambda: main(["visualize-attention", *arguments]))


def program(command, *arguments, stdin=None, **environment):
    """The program as a process of its own."""
    command = [*command, "visualize-attention", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env=os.environ | environment, check=False)


def test_a_picture_on_stdout_and_the_conversation_on_stderr(here, capfd):
    assert tx(SOURCE) == 0
    shown = capfd.readouterr()
    assert "cross-attention, layer 1, mean of 2 heads" in shown.out
    assert f"target: {TARGET} (beam 5, score -" in shown.err
    assert "source: ▁" in shown.err


def test_every_kind_of_file_is_written_and_twice_the_same(here, capfd):
    names = [f"a{suffix}" for suffix in (".html", ".png", ".svg", ".pdf", ".npz", ".json")]
    contents = []
    for _ in range(2):
        assert tx(SOURCE, *[f"-o{name}" for name in names]) == 0
        contents.append([Path(name).read_bytes() for name in names])
    assert contents[0] == contents[1]
    assert capfd.readouterr().out == ""


def test_saved_numbers_draw_the_same_without_a_model(here, tmp_path, capfd):
    assert tx(SOURCE, "-o", "a.png", "-o", "a.npz", "-o", "a.json", "-o", "a.html") == 0
    Path("runs").unlink()
    for saved in ("a.npz", "a.json"):
        assert tx("--from", saved, "-o", "b.png", "-o", "b.html", "-o", "b.npz") == 0
        for suffix in (".png", ".html", ".npz"):
            assert Path(f"b{suffix}").read_bytes() == Path(f"a{suffix}").read_bytes()


def test_json_is_one_line_on_stdout(here, capfd):
    assert tx(SOURCE, "--json", "--quiet", "--layers", "cross:1", "--heads", "2") == 0
    shown = capfd.readouterr()
    fields = json.loads(shown.out)
    assert (fields["target"]["text"], fields["schema"], shown.err) == (TARGET, 1, "")
    assert [(block["kind"], block["heads"]) for block in fields["blocks"]] == [("cross", [2])]


def test_the_head_that_looks_most_from_a_word_at_another_is_found_and_shown(here, capfd):
    assert tx(SOURCE, "--target", TARGET, "--json") == 0
    blocks = json.loads(capfd.readouterr().out)["blocks"]
    assert tx(SOURCE, "--target", TARGET, "--find", "beer -> bier") == 0
    shown = capfd.readouterr()
    kind, layer, head = re.search(
        r"found: beer → bier has \d\.\d\d of (\S+), layer (\d), head (\d)", shown.err
    ).groups()
    assert kind == "cross-attention"
    assert f"cross-attention, layer {layer}, head {head}\n" in shown.out
    assert shown.out.count("layer 1, head") == 1
    assert tx(SOURCE, "--target", TARGET, "--find", "beer -> bier", "--json", "-o", "beer.html", "-o", "beer.png") == 0
    [block] = json.loads(capfd.readouterr().out)["blocks"]
    assert (block["kind"], block["layer"], block["heads"]) == ("cross", int(layer), [int(head)])
    [whole] = [one for one in blocks if (one["kind"], one["layer"]) == ("cross", int(layer))]
    assert block["weights"] == [whole["weights"][int(head) - 1]]
    assert '"unit":"words"' in Path("beer.html").read_text(encoding="utf-8")


def test_what_is_found_in_text_without_spaces_is_shown_among_pieces_and_saved_as_it_was(here, capfd):
    assert tx(SOURCE, "--target", TARGET, "-o", "a.json") == 0
    maps = json.loads(Path("a.json").read_text(encoding="utf-8"))
    source = maps["source"]
    n = len(source["pieces"]) - 1
    source["pieces"] = ["▁我", "母", "亲", *"一二三四五六七八九十"[: n - 3], "</s>"]
    source["words"] = [*[0] * n, 1]
    Path("b.json").write_text(json.dumps(maps, ensure_ascii=False), encoding="utf-8")
    capfd.readouterr()
    assert tx("--from", "b.json", "--find", "beer -> 母亲", "--json", "-o", "b.html", "-o", "b.npz") == 0
    shown = capfd.readouterr()
    assert "found: beer → 母亲 has " in shown.err
    assert json.loads(shown.out)["source"] == source
    assert list(read_maps("b.npz").source.words) == source["words"]
    page = Path("b.html").read_text(encoding="utf-8").split('id="maps">')[1].split("</script>")[0]
    assert json.loads(page)["source"]["word_texts"][:3] == ["我", "母亲", "一"]


def test_what_cannot_be_found_is_refused(here, capfd):
    assert tx("ich mochte ein bier.", "--target", "i want a beer!", "--find", "BEER -> bier") == 0
    assert "found: beer! → bier. has " in capfd.readouterr().err
    assert tx(SOURCE, "--find", "beer -> hund") == 2
    assert "--find 'beer -> hund': there is no word 'hund'" in capfd.readouterr().err
    assert tx(SOURCE, "--target", TARGET, "--find", "beer -> bier", "--layers", "encoder") == 2
    assert "--find 'beer -> bier': there is no word 'beer'" in capfd.readouterr().err


def test_a_sentence_may_come_through_a_pipe_and_the_target_be_given(warm, here):
    shown = program(warm, "--target", "the dog", "--layers", "1", "--heads", "all", stdin=SOURCE.encode())
    assert shown.returncode == 0
    assert b"target: the dog (forced)" in shown.stderr
    assert shown.stdout.count(b"self-attention, layer 1, head") == 4
    assert b"\x1b" not in shown.stdout


def test_words_and_padding_are_shown(here, capfd):
    assert tx("die unglückliche katze", "--words", "--pad-to", "20") == 0
    shown = capfd.readouterr().out
    assert "unhappy" in shown
    assert "<pad>" in shown
    assert "×" in shown


@pytest.mark.parametrize(
    ("environment", "escapes"),
    [
        ({"COLORTERM": "truecolor"}, b"48;2;"),
        ({"TERM": "xterm-256color", "COLORTERM": ""}, b"48;5;"),
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, None),
        ({"TERM": "dumb", "COLORTERM": ""}, None),
    ],
    ids=["true colours", "256", "NO_COLOR", "dumb"],
)
def test_a_terminal_gets_the_colours_it_has(here, monkeypatch, capfd, environment, escapes):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tx(SOURCE, "-o", "a.npz") == 0
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8", newline="\n") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert tx("--from", "a.npz") == 0
        monkeypatch.undo()
    shown = os.read(leader, 1 << 16)
    os.close(leader)
    assert (b"\x1b" in shown) == (escapes is not None)
    assert escapes is None or escapes in shown


@pytest.mark.parametrize("heads", ["2", "1-2"])
@pytest.mark.parametrize("layer", [1, 2])
def test_what_was_saved_of_one_layer_is_drawn_again(here, layer, heads, capfd):
    """Of a file with layer 2 alone it drew the first, which was not there."""
    assert tx(SOURCE, "-o", "one.npz") == 0
    maps = read_maps("one.npz")
    [block] = maps.of("cross")
    Path("a.npz").write_bytes(as_npz(replace(maps, blocks=(*maps.blocks, replace(block, layer=2)))))
    assert tx("--from", "a.npz") == 0
    assert "cross-attention, layer 2, mean of 2 heads" in capfd.readouterr().out, "of two layers the second"
    assert tx("--from", "a.npz", "--layers", f"cross:{layer}", "--heads", heads, "-o", "b.npz") == 0
    assert tx("--from", "b.npz", "-o", "b.svg", "-o", "b.html") == 0
    assert tx("--from", "b.npz") == 0
    which = "head 2" if heads == "2" else "mean of 2 heads"
    assert f"cross-attention, layer {layer}, {which}" in capfd.readouterr().out
    assert align(read_maps("b.npz"))


def test_more_sentences_than_the_model_is_used_to_are_said(here, capfd):
    """It left out two of three, and the picture looked right."""
    assert tx("ein bier. ein bier. ein bier.") == 0
    assert "warning: 3 sentences at once, of 1 that the model is used to" in capfd.readouterr().err
    assert tx(SOURCE) == 0
    assert tx("ein bier. ein bier.", "--target", "a beer") == 0
    assert "sentences" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([""], 2, "the source is empty"),
        (["  \t"], 2, "the source is empty"),
        (["one", "two"], 2, "2 lines were given, but one sentence is shown at a time"),
        ([SOURCE, "--layers", "7"], 2, "no layer 7: this model has encoder 1, decoder 1, cross 1"),
        ([SOURCE, "--heads", "3"], 2, "no head 3: encoder 1 has 1-2"),
        ([SOURCE, "-o", "a.gif"], 2, "expected a name that ends in .html, .png"),
        ([SOURCE, "-o", "-"], 2, "expected a name that ends in"),
        ([SOURCE, "--pad-to", "1"], 2, "more than --pad-to 1"),
        ([SOURCE, "--pad-to", "0"], 2, "--pad-to"),
        ([SOURCE, "--pad-to", "10001"], 2, "'--pad-to': '10001' is not a number up to 10000"),
        ([SOURCE, "--pad-to", "9999"], 2, "show a part of the sentence, or pad it less"),
        ([SOURCE, "-o", "runs/a.png"], 0, "wrote"),
        (["--from", "a.npz", SOURCE], 2, "it goes without a sentence"),
        (["--from", "a.npz", "-m", "runs/tiny"], 2, "it goes without -m"),
        (["--from", "a.npz", "--set", "decoding.beam_size=1"], 2, "it goes without --set"),
        (["--from", "a.png"], 2, "neither .npz nor .json"),
        (["--from", "none.npz"], 4, "none.npz does not exist"),
        (["\udcff"], 3, "not text"),
        ([SOURCE, "--target", "\udcff"], 3, "--target: character 1 is not text"),
        ([SOURCE, "--set", "precision=bf16"], 2, "taken in fp32, but this model computes in torch.bfloat16"),
        ([SOURCE, "-m", "nowhere"], 4, "nowhere"),
        ([SOURCE, "--set", "model.d_model=8"], 2, "this model is trained"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_code(here, trained_run, capfd, arguments, code, message):
    assert tx(*arguments) == code
    assert message in capfd.readouterr().err
    (trained_run.parent / "a.png").unlink(missing_ok=True)


def test_bad_utf8_in_a_pipe_names_the_byte(warm, here):
    shown = program(warm, stdin=b"ein b\xffer\n")
    assert shown.returncode == 3
    assert b"stdin" in shown.stderr


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        ("tokenizer/spm.model", "", "", "is damaged: its content is not what was saved there"),
        ("config.yaml", "n_heads: 2", "n_heads: 4", "config.yaml is not what"),
        ("checkpoints/{best}/manifest.json", "step", "stop", "is damaged"),
    ],
)
def test_a_damaged_or_contradicting_run_has_code_4(here, trained_run, best, capfd, path, old, new, message):
    shutil.copytree(trained_run, "copy")
    path = path.format(best=best)
    data = (Path("copy") / path).read_bytes()
    (Path("copy") / path).write_bytes(data.replace(old.encode(), new.encode()) if old else data + b"x")
    assert tx(SOURCE, "-m", "copy") == 4
    assert message in capfd.readouterr().err


def test_another_tokenizer_than_the_models_is_refused(here, trained_run, capfd):
    shutil.copytree(trained_run, "copy")
    joint = Tokenizer.load("copy/tokenizer").source
    shutil.rmtree("copy/tokenizer")
    Tokenizer(joint, joint).save("copy/tokenizer")
    assert tx(SOURCE, "-m", "copy") == 4
    assert "is not the tokenizer that" in capfd.readouterr().err


def test_saved_weights_that_are_not_finite_are_refused_and_nothing_is_drawn(here, capfd):
    assert tx(SOURCE, "-o", "a.json") == 0
    fields = json.loads(Path("a.json").read_text(encoding="utf-8"))
    fields["blocks"][1]["weights"][0][1][0] = float("inf")
    Path("a.json").write_text(json.dumps(fields), encoding="utf-8")
    assert tx("--from", "a.json", "-o", "a.png") == 4
    assert "a.json: decoder 1, head 1, row 2: the weights are not finite numbers" in capfd.readouterr().err
    assert not Path("a.png").exists()


def test_several_files_are_written_or_none(here, monkeypatch, capfd):
    """The page used to be there when the figure after it had failed."""
    monkeypatch.setattr("transformer_cli.attention_maps.figure.MAX_MATRICES", 0)
    assert tx(SOURCE, "-o", "a.html", "-o", "a.png") == 2
    assert list(here.iterdir()) == [here / "runs"]


def test_saved_text_cannot_forge_a_line_of_the_conversation(here, capfd):
    assert tx(SOURCE, "-o", "a.json") == 0
    fields = json.loads(Path("a.json").read_text(encoding="utf-8"))
    forged = "\nerror: call 555\x1b[31m"
    fields["origin"] = fields["target"]["text"] = fields["source"]["pieces"][0] = forged
    fields["source"]["ids"][0] = 1
    Path("a.json").write_text(json.dumps(fields), encoding="utf-8")
    capfd.readouterr()
    assert tx("--from", "a.json") == 0
    shown = capfd.readouterr()
    assert [line.split(":")[0] for line in shown.err.splitlines()] == ["source", "target", "warning"]
    assert "\nerror" not in shown.out


def test_a_page_opens_in_words_and_numbers_say_that_they_have_none(here, capfd):
    """`--words` used to be ignored by all but pictures, in silence."""
    assert tx(SOURCE, "--words", "-o", "a.html") == 0
    assert '"unit":"words"' in Path("a.html").read_text(encoding="utf-8")
    assert "warning" not in capfd.readouterr().err
    assert tx(SOURCE, "--words", "-o", "a.npz") == 0
    assert "--words joins pieces in pictures; numbers are saved by pieces" in capfd.readouterr().err


def test_an_unknown_character_is_shown_and_said(here, capfd):
    assert tx("ein 猫 bier", "--words") == 0
    shown = capfd.readouterr()
    assert "pieces that the model does not know: 猫" in shown.err
    assert "猫" in shown.out


def test_a_missing_font_is_a_warning_and_missing_matplotlib_code_5(here, monkeypatch, capfd):
    only = [font for font in fonts._installed() if font[0] == "DejaVu Sans"]
    monkeypatch.setattr(fonts, "_installed", lambda: iter(only))
    assert tx("ein 猫 bier", "-o", "a.png") == 0
    assert "a.png: no installed font has 猫 (U+732B)" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert tx(SOURCE, "-o", "b.png") == 5
    said = capfd.readouterr().err
    assert "a library cannot be loaded: import of matplotlib halted" in said
    assert "it has to be installed anew" in said
    assert not Path("b.png").exists()


def test_too_many_weights_for_a_page_are_refused_and_no_file_is_left(here, monkeypatch, capfd):
    monkeypatch.setattr("transformer_cli.cli.visualize_attention.MAX_WEIGHTS", 100)
    assert tx(SOURCE, "-o", "a.html") == 2
    assert "weights are too many for .html, which holds 100" in capfd.readouterr().err
    assert list(here.iterdir()) == [here / "runs"]
    assert tx(SOURCE, "-o", "a.html", "--layers", "cross:1", "--heads", "1") == 0


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from transformer_cli.cli.app import main\n"
        "main(['visualize-attention', '--help'])\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'sentencepiece'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert shown.stdout.endswith("[]\n")


def test_a_notebooks_backend_does_not_matter(warm, here):
    """Every program started from a notebook inherits one that only the notebook has; it was called a bug."""
    assert tx(SOURCE, "-o", "a.npz") == 0
    shown = program(warm, "--from", "a.npz", "-o", "backend.png", MPLBACKEND="module://nowhere.backend")
    assert (shown.returncode, Path("backend.png").exists()) == (0, True), shown.stderr
