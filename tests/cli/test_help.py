"""Help, completion, and what is said to a command or an option that there is not."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from transformer_cli.cli import app, failures, help
from transformer_cli.cli.options import EVERY
from transformer_cli.cli.unknown import option_error
from transformer_cli.config import elsewhere
from transformer_cli.config.settings import settings
from transformer_cli.export.formats import FORMATS

OPTIONS = {
    name: [option for parameter in help.command(name, entry.load()).params for option in parameter.opts]
    for name, entry in app.COMMANDS.items()
}


@pytest.fixture
def helped(monkeypatch, capsys):
    """A command's help on a terminal of so many columns, or in a pipe."""

    def helped(name: str, *, columns: int = 80, terminal: bool = False, **environment: str) -> str:
        for variable in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in {"COLUMNS": str(columns), **environment}.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
        assert app.main([name, "-h"] if name else ["-h"]) == 0
        return capsys.readouterr().out

    return helped


@pytest.mark.parametrize("name", ["", *app.COMMANDS])
def test_options_come_in_groups_and_what_all_commands_have_is_last(helped, name):
    told = helped(name)
    groups = re.findall(r"^(\S.*):$", told, re.MULTILINE)
    assert groups[-2:] == [EVERY, "Examples"]
    assert len(groups) == len(set(groups)) >= 3
    assert "  -h, --help " in told


@pytest.mark.parametrize("name", app.COMMANDS)
def test_groups_come_in_one_order(helped, name):
    groups = re.findall(r"^(\S.*):$", helped(name), re.MULTILINE)
    order = [
        "Arguments",
        "Text",
        "Model and settings",
        "Options",
        "Search",
        "What it does and costs",
        EVERY,
        "Examples",
    ]
    assert groups == [group for group in order if group in groups]


@pytest.mark.parametrize("name", ["", *app.COMMANDS])
def test_help_says_what_to_type_and_not_what_python_makes_of_it(helped, name):
    told = helped(name)
    assert not re.search(r"<\w+( range|\[\w+\])?>|x<=|x>=|\[\[|\bINTEGER\b", told.replace("<s>", ""))
    assert not re.search(r"{[A-Z]+}", told)
    assert not re.search(r"; [\d.]+\.\s", told), "a default is said in brackets"


@pytest.mark.parametrize("name", ["", *app.COMMANDS])
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal_or_than_a_reader_likes(helped, name, columns):
    text, _, examples = helped(name, columns=columns).partition("\nExamples:\n")
    assert max(map(len, text.split("\n"))) <= min(columns, 100)
    assert max(map(len, examples.split("\n"))) <= 80


@pytest.mark.parametrize("name", ["", *app.COMMANDS])
def test_no_word_stands_alone_on_a_line_and_no_limit_is_broken(helped, name):
    """At 80 columns, which most terminals have."""
    lines = helped(name).splitlines()
    assert [line for line in lines if re.fullmatch(r" {14,}\S+", line)] == []
    assert [line for line in lines if line.count("[") != line.count("]") and "Usage" not in line] == []
    assert [line for line in lines if line.endswith("-")] == []


def test_what_weights_are_rounded_to_is_named(helped):
    told = " ".join(helped("export").split())
    kinds = {name: FORMATS.load(name).quantizations for name in FORMATS.own}
    *first, last = kinds["ctranslate2"]
    assert f"for CTranslate2 {', '.join(first)} or {last}; for ONNX {' '.join(kinds['onnx'])}." in told
    assert kinds["hugging-face"] == ()


def test_help_has_colour_only_on_a_terminal_that_wants_it(helped):
    assert "\x1b[1mExamples\x1b[0m:\n" in helped("train", terminal=True)
    assert "\x1b" not in helped("train")
    assert "\x1b" not in helped("train", terminal=True, NO_COLOR="1")
    assert "\x1b" not in helped("train", terminal=True, TERM="dumb")
    coloured = helped("train", terminal=True)
    assert re.sub(r"\x1b\[\d*m", "", coloured) == helped("train")


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_example_is_understood(name):
    about = importlib.import_module(app.COMMANDS[name].module).__dict__[app.COMMANDS[name].function].__doc__
    examples = [line.strip() for line in about.partition("Examples:")[2].strip().split("\n")]
    for line in examples:
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line.rpartition("| ")[2])]
        made = help.command(name, app.COMMANDS[name].load())
        assert words[:2] == ["tx", name]
        made.make_context(name, words[2:])


# --- names of others ------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(capsys, monkeypatch):
    """What is said to a command line that is not understood."""
    monkeypatch.setattr(failures, "_traceback_wanted", False)

    def refused(*arguments: str) -> str:
        assert failures.exit_code(lambda: app.main(list(arguments))) == 2
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["train", "--resume"], "tx continues a run by the same command; no option is needed."),
        (["train", "--epochs", "3"], "that is a setting: --set training.max_epochs=..."),
        (["train", "--lr", "3"], "that is a setting: --set training.learning_rate=..."),
        (["train", "--d_model=3"], "that is a setting: --set model.d_model=..."),
        (
            ["train", "--max-length", "3"],
            "that is a setting: --set data.max_length=... or --set decod",
        ),
        (["train", "--gpus", "2"], "tx trains on several devices with `tx train --processes N` or torchrun; "),
        (["train", "--output_dir", "x"], "did you mean --run-dir?"),
        (["train", "--max-hours", "3"], "that is a setting: --set training.max_hours=..."),
        (["train", "--run", "x"], "did you mean --run-dir?"),
        (["train", "--overwrit"], "did you mean --overwrite?"),
        (["translate", "--src", "x"], "did you mean --input?"),
        (["evaluate", "--src", "x"], "did you mean --source?"),
        (["translate", "--beam_size=3"], "did you mean --beam-size?"),
        (["translate", "-src", "x", "-model", "m.pt"], "did you mean --input?"),
        (["translate", "-model", "m.pt"], "did you mean --model?"),
        (["translate", "-q", "-output", "x"], "did you mean --output?"),
        (["translate", "-beam_size", "5"], "did you mean --beam-size?"),
        (["train", "-config=x.yaml"], "did you mean --config?"),
        (
            ["translate", "--prefix", "A dog"],
            "tx takes the words that a translation begins with from `tx tran",
        ),
        (["translate", "--prefixes", "A"], "tx takes the words that a translation begins with from "),
        (
            ["train", "-m", "runs/tiny"],
            "it goes on with a run by that one's configuration: -c RUN/config.yaml --run-dir",
        ),
        (["plot", "-m", "runs/tiny"], "name runs without an option: `tx plot RUN`"),
        (["compare", "--model", "runs/tiny"], "name runs without an option: `tx compare RUN`"),
        (["train", "--finetune-from", "x"], "that is a setting: --set training.init_from=..."),
        (["train", "-layers", "6"], "that is a setting: --set model.n_layers=..."),
        (["train", "--target", "en"], "that is a setting: --set data.target=...\n"),
        (["train", "--weight", "2"], "that is a setting: --set decoding.rerank.weight=...\n"),
        (["evaluate", "--target", "x"], "did you mean --reference?"),
        (["score", "--reference", "x"], "did you mean --target?"),
        (["train", "--zzz"], "`tx train --help` shows what is possible."),
    ],
)
def test_an_option_of_others_is_told_ours(refused, arguments, hint):
    told = refused(*arguments)
    option = arguments[1 + (arguments[1] == "-q")]
    assert told.startswith(f"error: no such option: {option.partition('=')[0]}\n  hint: {hint}")


def test_no_hint_names_a_setting_that_set_cannot_name():
    hints = [option_error(f"--{one.key}", "tx train", ["--set"]).hint for one in settings()]
    assert not [hint for hint in hints if "[]" in hint]


def test_a_value_that_stands_apart_from_its_setting_is_told_to_join_it(refused):
    told = refused("train", "-c", "tiny.yaml", "--set", "seed=2", "--set", "training.max_steps", "500")
    assert told.endswith("  hint: a setting and its value are one word: --set training.max_steps=500\n")


def test_values_behind_a_short_option_and_short_ones_together_are_none_of_others(refused):
    """`-mFOLDER` and `-qi` are the library's; what stands behind an option or `--` is what it is."""
    for arguments in (["-mruns/x"], ["-qifile"], ["-m", "-model"], ["-m", "there-is-none", "--", "-model"]):
        assert failures.exit_code(lambda given=arguments: app.main(["translate", *given])) in (3, 4)


@pytest.mark.parametrize(
    ("name", "meant"), [("generate", "translate"), ("eval", "evaluate"), ("preprocess", "tokenize"), ("trian", "train")]
)
def test_a_command_of_others_is_told_ours(refused, name, meant):
    assert refused(name) == f"error: no such command: {name}\n  hint: did you mean `tx {meant}`?\n"


@pytest.mark.parametrize("name", ["help", "version"])
def test_an_option_that_is_given_as_a_command_is_named(refused, name):
    assert refused(name) == f"error: no such command: {name}\n  hint: did you mean `tx --{name}`?\n"


def test_what_is_like_nothing_suggests_nothing(refused):
    assert refused("deploy") == f"error: no such command: deploy\n  hint: commands: {', '.join(app.COMMANDS)}.\n"


def test_options_and_commands_that_others_call_differently_exist():
    there = {option for options in OPTIONS.values() for option in options}
    assert set(elsewhere.table_of("options")) <= there
    assert set(elsewhere.table_of("commands")) <= set(app.COMMANDS)


# --- completion -----------------------------------------------------------------------------------------------------


@pytest.fixture
def completed(monkeypatch, capsys, tmp_path):
    """What could be typed next, as the shell is told; the last word is the one that is being typed."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").touch()
    Path("runs/one").mkdir(parents=True)

    def completed(*words: str) -> list[str]:
        monkeypatch.setenv("_TX_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["tx", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert app.main([]) == 0
        return capsys.readouterr().out.split()

    return completed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tra"], ["train", "translate"]),
        (["train", "--ove"], ["--overwrite"]),
        (["train", "-c", "ti"], ["time-series.yaml", "tiny.yaml"]),
        (["train", "-c", "mi"], ["mine.yaml"]),
        (["train", "--set", "training.learn"], ["training.learning_rate="]),
        (["translate", "-m", "ru"], ["runs/one"]),
        (["config", "decoding.beam"], ["decoding.beam_size"]),
        (["plot", "ru"], ["runs/one"]),
        (["plot", "--over", "m"], ["minutes"]),
        (["compare", "runs/one", "ru"], ["runs/one"]),
        (["average", "ru"], ["runs/one"]),
        (["reproduce", "mi"], ["mine.yaml"]),
        (["count-params", "mi"], ["mine.yaml"]),
        (["count-params", "tiny.yaml", "--compare", "ru"], ["runs/one"]),
        (["count-params", "tiny.yaml", "--hardware", "h100-s"], ["h100-sxm"]),
    ],
)
def test_what_is_being_typed_is_completed(completed, words, expected):
    assert completed(*words) == expected


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --c")])
def test_three_shells_have_a_script(monkeypatch, capsys, shell, mark):
    monkeypatch.setenv("_TX_COMPLETE", f"source_{shell}")
    assert app.main([]) == 0
    assert mark in capsys.readouterr().out


def test_bash_completes_and_nothing_heavy_is_imported(tmp_path):
    """By the script itself, in a bash."""
    program = tmp_path / "tx"
    program.write_text(f"#!{sys.executable} -Ximporttime\nfrom transformer_cli.cli.app import run\nrun()\n", "utf-8")
    program.chmod(0o755)
    script = 'eval "$(_TX_COMPLETE=source_bash tx 2>/dev/null)"; COMP_WORDS=(tx transl); COMP_CWORD=1; '
    done = subprocess.run(
        ["bash", "-c", f"{script} _tx_completion tx; echo ${{COMPREPLY[@]}}"],
        capture_output=True,
        encoding="utf-8",
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert done.stdout == "translate\n"
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.split("\n")}
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "sentencepiece", "sacrebleu"}


def test_the_program_offers_to_install_its_completion():
    names = [option for parameter in get_command(app.app).params for option in parameter.opts]
    assert "--install-completion" in names
