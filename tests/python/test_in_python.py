"""What Python is given is what the commands say, bit for bit, and so is what it is told."""

from __future__ import annotations

import copy
import gc
import html
import io
import json
import operator
import os
import pickle
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from conftest import in_bf16

import transformer_cli as tx
from transformer_cli import machine
from transformer_cli.attention_maps.page import page
from transformer_cli.attention_maps.saved import as_json
from transformer_cli.cli import console
from transformer_cli.cli.app import main
from transformer_cli.environment import processors
from transformer_cli.errors import (
    ConfigError,
    DataError,
    Interrupted,
    ModelError,
    ResourceError,
    ToldError,
    TxError,
    UsageError,
)
from transformer_cli.python import host

SOURCES = ["ich mochte ein bier", "", "der hund trinkt nicht", "ein Wombat schläft"]
TARGETS = ["i want a beer", "", "the dog does not drink", "a wombat sleeps"]


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    """A copy, which evaluation may write to; the texts lie beside it."""
    shutil.copytree(trained_run, tmp_path / "runs" / "tiny")
    for name, lines in (("text.de", SOURCES), ("text.en", TARGETS)):
        Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "runs" / "tiny"


@pytest.fixture
def said(capfd):
    """said("translate", ...): the objects that a command prints."""

    def objects(*arguments: str):
        assert main([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.split("\n") if line]

    return objects


def again(value):
    """As JSON has it."""
    return json.loads(json.dumps(value))


def test_translations_are_those_of_the_command(run, said):
    options = ["-m", str(run), "-i", "text.de", "--n-best", "2", "--alignments"]
    found = tx.load(run).translate_all(SOURCES, n_best=2, with_alignments=True)
    assert again([{"source": s, **one.as_json()} for s, one in zip(SOURCES, found, strict=True)]) == said(
        "translate", *options
    )
    assert "unseen" in found[3].flags


def test_a_model_that_stays_open_keeps_nothing_of_what_it_translated(run):
    """Each unseen word was kept, with its count, which only the command tells."""
    model = tx.load(run)
    [found] = model.translate_all(["xyzzy"])
    assert "unseen" in found.flags
    gc.collect()
    assert not [one for one in gc.get_objects() if issubclass(type(one), dict) and "xyzzy" in one]


def test_samples_and_settings_are_those_of_the_command(run, said):
    found = tx.load(run, settings={"seed": 3, "decoding.top_k": 5}).translate(SOURCES, search="sampling")
    options = ["--sample", "--set", "seed=3", "--set", "decoding.top_k=5"]
    assert found == [one["translation"] for one in said("translate", "-m", str(run), "-i", "text.de", *options)]


def test_one_text_has_one_translation(run):
    assert tx.load(run).translate("ich mochte ein bier") == "i want a beer"


def test_scores_are_those_of_the_command(run, said):
    found = tx.load(run).score(SOURCES, TARGETS)
    told = said("score", "-m", str(run), "--source", "text.de", "--target", "text.en")
    assert [again(one.as_json()) for one in found] == [
        {key: value for key, value in one.items() if key not in ("source", "target")} for one in told[:-1]
    ]


def test_attention_is_that_of_the_command_and_a_notebook_shows_its_page(run, capfd):
    maps = tx.load(run).attention(SOURCES[0], "i want a coffee")
    assert main(["visualize-attention", "-m", str(run), SOURCES[0], "--target", "i want a coffee", "--json"]) == 0
    assert as_json(maps) == capfd.readouterr().out.rstrip("\n")
    assert html.unescape(maps._repr_html_().split('srcdoc="')[1].removesuffix('"></iframe>')) == page(maps)


def test_words_are_aligned_as_the_command_aligns_them(run, said):
    model = tx.load(run)
    texts = model.translate(SOURCES)
    told = said("translate", "-m", str(run), "-i", "text.de", "--alignments")
    assert again(model.align(SOURCES, texts)) == [one["alignment"] for one in told]


def test_without_a_precision_asked_for_scores_are_exact(run, monkeypatch):
    """A run in bf16 is scored in fp32, as `tx score` does it."""
    exact = tx.load(run).score(SOURCES, TARGETS)
    in_bf16(run, monkeypatch)
    rounded = tx.load(run)
    assert rounded.model.dtype == torch.bfloat16
    assert rounded.score(SOURCES, TARGETS) == exact
    assert tx.load(run, precision="bf16").score(SOURCES, TARGETS) != exact


def test_evaluation_is_that_of_the_command(run, said, capfd):
    found = tx.evaluate(run, beam_size=2, worst=1)
    assert capfd.readouterr() == ("", "")
    assert found == said("evaluate", "-m", str(run), "--beam-size", "2", "--worst", "1")
    assert json.loads((run / "run.json").read_text())["scores"]["test"]["decoding"]["beam_size"] == 2


def test_test_sets_have_names_here_too(run):
    named = {2016: {"pairs": [[SOURCES[0], TARGETS[0]]]}, 2017: {"pairs": [[SOURCES[1], TARGETS[1]]]}}
    assert [one["set"] for one in tx.evaluate(run, settings={"data.test": named})] == ["2016", "2017"]


def test_a_count_is_that_of_the_command(run, said):
    assert [tx.count("gpt2", by="block", flops=True)] == said("count-params", "gpt2", "--by=block", "--flops")
    assert tx.count(run)["parameters"] == 24_704
    assert tx.count("tiny", settings={"model.d_ff": 8}) == said("count-params", "tiny", "--set", "model.d_ff=8")[0]


def test_training_is_that_of_the_command(trained_run, tmp_path, capfd):
    config, settings = trained_run / "config.yaml", {"training.max_steps": 2, "training.learning_rate": 0.005}
    outcome = tx.train(config, settings=settings, run_dir=tmp_path / "a", quiet=True)
    assert capfd.readouterr() == ("", "")
    options = [f"--set={name}={value}" for name, value in settings.items()]
    assert main(["train", "-c", str(config), "--run-dir", "b", *options]) == 0
    assert outcome.steps == 2
    for name in ("model.safetensors", "optimizer.safetensors"):
        made = [next((tmp_path / one).glob(f"checkpoints/step-*2/{name}")).read_bytes() for one in "ab"]
        assert made[0] == made[1]
    assert tx.load(outcome.run_dir).runs[0].checkpoint == outcome.best


def test_a_notebook_shows_what_a_model_is(run):
    shown = tx.load([run, run])._repr_html_()
    assert shown.startswith("<table>")
    for fact in ("de to en", "49,408", "1 + 1, d_model 32, 2 heads", "beam 5", "float32 on cpu"):
        assert fact in shown


@pytest.mark.parametrize(
    ("use", "kind", "words"),
    [
        (lambda run: tx.load("nowhere"), ModelError, "nowhere does not exist"),
        (lambda run: tx.load(run, precision="fp8"), ConfigError, "fp8"),
        (
            lambda run: tx.load(run, settings={"decoding.beam": 3}),
            ConfigError,
            '{"decoding.beam": 3}: unknown',
        ),
        (lambda run: tx.load(run, settings={"decoding.temperature": float("nan")}), ConfigError, "nan"),
        (lambda run: tx.load(run, settings={"model.d_model": 64}), UsageError, "this model is trained"),
        (lambda run: tx.load(run).translate_all("ein bier"), UsageError, "lines is 'ein bier'; expected a list"),
        (lambda run: tx.load(run).translate(["a", None]), UsageError, "lines, text 2 is None; expected a text"),
        (lambda run: tx.load(run).translate_all(["a", 3]), UsageError, "lines, text 2 is 3 (int); expected a text"),
        (lambda run: tx.load(run).translate([float("nan")]), UsageError, "lines, text 1 is nan (float); expected"),
        (lambda run: tx.load(run).translate(b"ab"), UsageError, "lines is b'ab' (bytes); expected a list of texts"),
        (lambda run: tx.load(run).translate(np.array(["a"])), UsageError, "(ndarray); expected a list of texts"),
        (lambda run: tx.load(run).translate(["a"], prefixes=[None]), UsageError, "prefixes, text 1 is None;"),
        (lambda run: tx.load(run).score(["a", "b"], ["a", b"b"]), UsageError, "targets, text 2 is b'b' (bytes);"),
        (lambda run: tx.load(run).align(["a", None], ["a", "b"]), UsageError, "sources, text 2 is None;"),
        (lambda run: tx.load(run).attention("bier", 3), UsageError, "target is 3 (int); expected a text"),
        (lambda run: tx.load(run).attention("bier", "a\nb"), DataError, "target: a sentence is one line"),
        (lambda run: tx.load([run, None]), UsageError, "run, entry 2 is None; expected a path"),
        (lambda run: tx.load(3), UsageError, "run is 3 (int); expected a path"),
        (lambda run: tx.evaluate([run, None]), UsageError, "run, entry 2 is None; expected a text"),
        (lambda run: tx.evaluate(reference="a", hypotheses=["a", None]), UsageError, "hypotheses, entry 2 is None;"),
        (lambda run: tx.evaluate(run, worst={"n": 3}), UsageError, "worst is {'n': 3} (dict); expected a text"),
        (lambda run: tx.load(run).translate(["bier"], beam_size=2, search="sampling"), UsageError, "has no beam"),
        (lambda run: tx.load(run).translate("bier", search="foo"), UsageError, "there is no search 'foo'"),
        (lambda run: tx.load(run).translate("bier", beam_size=2.5), UsageError, "beam_size is 2.5"),
        (lambda run: tx.load(run).translate("bier", beam_size=True), UsageError, "beam_size is True"),
        (lambda run: tx.load(run).translate("bier", length_penalty="x"), UsageError, "penalty is 'x'"),
        (lambda run: tx.load(run).translate("\ud800"), DataError, "lines, text 1: character 1 is not text"),
        (lambda run: tx.load(run).translate("ein bier", n_best=3), UsageError, "one text for each line"),
        (lambda run: tx.load(run).translate("ein\nbier"), DataError, "lines, text 1: a sentence is one line"),
        (lambda run: tx.load(run).score(["bier"], ["a\nbeer"]), DataError, "targets, text 1: a sentence is one line"),
        (
            lambda run: tx.load(run).translate(["a", "b"], prefixes=["i"]),
            UsageError,
            "prefixes: 1, lines: 2; expected",
        ),
        (lambda run: tx.load(run).translate("a", prefixes="i"), UsageError, "prefixes is 'i'"),
        (lambda run: tx.load(run).translate(None), UsageError, "lines is None"),
        (lambda run: tx.load(run).attention("bier", pad_to="x"), UsageError, "pad_to is 'x'; expected a whole number"),
        (lambda run: tx.load(run).translate_all(["a"], lines_before=-5), UsageError, "lines_before is -5"),
        (
            lambda run: tx.load(run).translate_all(["a"], lines_before=2**40),
            UsageError,
            "lines_before is 1099511627776",
        ),
        (lambda run: tx.load(run).translate_all(["a"], lines_before="3"), UsageError, "lines_before is '3'"),
        (lambda run: tx.load(run, device="tpu"), ConfigError, 'settings={"device": "tpu"}: `device` is'),
        (
            lambda run: tx.load(run, settings={"decoding.engine": "foo"}),
            ConfigError,
            'settings={"decoding.engine": "foo"}:',
        ),
        (
            lambda run: tx.load(run, settings={"decoding.rerank": {"run": 5}}),
            ConfigError,
            "settings={\"decoding.rerank\": {'run': 5}}:",
        ),
        (lambda run: tx.load(run).attention(3), UsageError, "source is 3 (int); expected a text"),
        (lambda run: tx.load([]), UsageError, "run is []"),
        (lambda run: tx.load(run, settings=[1]), UsageError, "settings is [1]"),
        (lambda run: tx.train("tiny", run_dir=""), UsageError, "run_dir: the name is empty"),
        (lambda run: tx.load(run).score(["bier"], []), UsageError, "sources: 1, targets: 0"),
        (lambda run: tx.load(run).align("bier", ["beer"]), UsageError, "sources is 'bier'"),
        (lambda run: tx.load(run).attention(" "), UsageError, "empty"),
        (lambda run: tx.load(run).score(["bier " * 999], ["x"]), DataError, "1,000 pieces"),
        (lambda run: tx.load(""), UsageError, "run: the name is empty"),
        (lambda run: tx.load("a" * 300), UsageError, "is too long, with 300 characters"),
        (lambda run: tx.load([run, "a\0b"]), UsageError, "run, entry 2: the name 'a\\x00b' has the character NUL"),
        (lambda run: tx.train("tiny", run_dir="a\0b"), UsageError, "run_dir: the name 'a\\x00b' has the character NUL"),
        (lambda run: tx.train("tiny", run_dir="\ud800"), UsageError, "has bytes that are not UTF-8"),
        (lambda run: tx.train({"name": "a"}), UsageError, "config is {'name': 'a'} (dict); expected a YAML file or a"),
        (lambda run: tx.count(None), UsageError, "model is None; expected a preset, a YAML file or a run"),
        (lambda run: tx.count("tiny", help=True), UsageError, "no such option: help"),
        (lambda run: tx.evaluate(run, markdown=True), UsageError, "what is returned is what json prints"),
        (lambda run: tx.evaluate(model=run), UsageError, "the run comes first: tx.evaluate(run)"),
        (lambda run: tx.evaluate(run, set=["seed=1"]), UsageError, 'settings={"decoding.beam_size": 3}'),
        (lambda run: tx.evaluate([]), UsageError, "run is [] (list); expected"),
        (lambda run: tx.evaluate(run, hypotheses=[]), UsageError, "hypotheses is [] (list); expected"),
        (lambda run: tx.evaluate(run, source=True, reference="text.en"), UsageError, "source is True (bool); expected"),
        (lambda run: tx.load(run, settings={"decoding.beam_size=3 #": 1}), UsageError, "is no name of a setting"),
        (lambda run: tx.load(run, settings={3: 1}), UsageError, "settings: 3 (int) is no name of a setting"),
        (lambda run: tx.load(run, settings={"": 1}), UsageError, "settings: '' is no name of a setting"),
        (lambda run: tx.load(run, settings={"decoding.banned": {"a"}}), UsageError, "decoding.banned is {'a'} (set);"),
        (lambda run: tx.load(run, settings={"decoding.rerank": {(1, 2): 3}}), UsageError, "{(1, 2): 3} (dict);"),
        (lambda run: pickle.dumps(tx.load(run)), UsageError, "each process opens its own: tx.load("),
        (lambda run: tx.evaluate(run, beam_siz=3), UsageError, "did you mean beam_size"),
        (lambda run: tx.evaluate(run, beam=3), UsageError, "did you mean beam_size"),
        (lambda run: tx.count("gpt2", flop=True), UsageError, "did you mean flops"),
        (lambda run: tx.train("tiny", overwrit=True), UsageError, "did you mean overwrite?"),
        (lambda run: tx.train("tiny", max_steps=3), UsageError, 'settings={"training.max_steps": "..."}'),
        (lambda run: tx.load(run, devise="cpu"), UsageError, "no such option: devise"),
        (lambda run: tx.load(run, beam_size=3), UsageError, 'settings={"decoding.beam_size": "..."}'),
        (lambda run: tx.load(run).translate("bier", prefix="a"), UsageError, "did you mean prefixes?"),
        (lambda run: tx.load(run).translate("bier", beam=3), UsageError, "did you mean beam_size?"),
        (lambda run: tx.load(run).translate_all(["bier"], num_beams=3), UsageError, "did you mean beam_size?"),
        (
            lambda run: tx.load(run).translate("bier", top_k=3),
            UsageError,
            'that is a setting: settings={"decoding.top_k": "..."}, which `tx.load` takes',
        ),
        (lambda run: tx.load(run).translate("bier", settings={}), UsageError, "`tx.load` takes them"),
        (lambda run: tx.load(run).score(["bier"], ["beer"], too="en"), UsageError, "did you mean to?"),
        (lambda run: tx.load(run).align(["bier"], ["beer"], colour="red"), UsageError, "help(tx.Model.align)"),
        (lambda run: tx.load(run).attention("bier", pad=3), UsageError, "did you mean pad_to?"),
        (lambda run: tx.evaluate(run, beam_size=0), UsageError, "beam_size"),
        (lambda run: tx.evaluate(run, source="text.de"), UsageError, "source and reference need each other"),
        (lambda run: tx.count("gpt2", by="colour"), UsageError, "by"),
        (lambda run: tx.count("gpt5.yaml"), ConfigError, "gpt5.yaml"),
        (lambda run: tx.train("tiny.yaml", settings={"training.max_step": 3}), ConfigError, "max_steps"),
    ],
)
def test_mistakes_are_told_in_pythons_words_with_what_to_do(run, use, kind, words):
    with pytest.raises(kind) as caught:
        use(run)
    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert words in "\n".join(told)
    assert not any("--" in line for line in told)
    assert isinstance(caught.value, TxError)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda run: tx.load("runs/my--run"), "runs/my--run does not exist"),
        (lambda run: tx.load(Path("runs/a --beam-size 3 --set b=1")), "runs/a --beam-size 3 --set b=1 does not exist"),
        (lambda run: tx.load("runs/x -m y"), "runs/x -m y does not exist"),
        (lambda run: tx.load(run).translate_all(["a --n-best"], n_best=99), "or lower n_best"),
        (lambda run: tx.count("--help"), "no configuration --help"),
        (lambda run: tx.evaluate(run, source="a--b.de", reference="text.en"), "a--b.de does not exist"),
        (lambda run: tx.load(run).translate("foo --beam-size\nx"), "'foo --beam-size\\nx'"),
        (
            lambda run: tx.load(run, settings={"decoding.search": "a --to"}),
            'search": "a --to"}: `decoding.search` is the',
        ),
        (lambda run: tx.load(run, settings={"model.d_model": 64}), "another model is another run: `tx train` makes it"),
        (lambda run: pickle.dumps(tx.load(run.rename("x -m a--b"))), 'x -m a--b")'),
    ],
)
def test_what_the_caller_named_or_wrote_is_told_as_it_is(run, use, words):
    """`runs/my--run` was said to be `runs/myrun`."""
    with pytest.raises(TxError) as caught:
        use(run)
    assert words in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_all_that_there_is_names_the_option_that_was_meant():
    """`translate(beam=3)` was a TypeError of Python's, which names none."""
    model = tx.Model.__new__(tx.Model)
    methods = [name for name, value in vars(tx.Model).items() if not name.startswith("_") and callable(value)]
    functions = [getattr(tx, name) for name in tx.__all__ if name not in ("Model", "TxError", "__version__")]
    for function in [*functions, *(getattr(model, name) for name in methods)]:
        with pytest.raises(UsageError, match="no such option: quux"):
            function("gpt2", quux=1)


PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_names_all_that_there_is():
    methods = [name for name, value in vars(tx.Model).items() if not name.startswith("_") and callable(value)]
    assert len(methods) == 5
    named = set(re.findall(r"tx\.\w+|\.\w+\(", PAGE))
    assert set(dir(tx)) == set(tx.__all__)  # what completion offers
    assert {f"tx.{name}" for name in tx.__all__ if name != "__version__"} | {f".{name}(" for name in methods} <= named


def test_the_pages_examples_do_what_they_say(run, capsys):
    """Each `print` is followed by what it prints."""
    blocks = re.findall(r"(<!-- slow -->\n)?```python\n(.*?)```", PAGE, re.DOTALL)
    code = "\n".join(text for slow, text in blocks if not slow)
    Path("example.py").write_text(code, encoding="utf-8")
    runpy.run_path("example.py")
    assert capsys.readouterr().out == "".join(line[2:] + "\n" for line in re.findall(r"^# .*", code, re.MULTILINE))


def test_numbers_of_numpys_are_numbers(run):
    settings = {"decoding.beam_size": np.int64(3), "decoding.length_penalty": np.float32(0.5)}
    model = tx.load(run, settings=settings | {"decoding.banned": np.array(["▁i"]), "deterministic": np.bool_(False)})
    assert (model.config.beam_size, model.config.length_penalty, model.config.banned) == (3, 0.5, ["▁i"])
    plain = model.translate_all(["ein bier"], beam_size=2, n_best=2, length_penalty=0.5)
    of_numpy = {"beam_size": np.int64(2), "n_best": np.int32(2), "length_penalty": np.float64(0.5)}
    assert model.translate_all(["ein bier"], **of_numpy) == plain
    assert repr(model).endswith(": de to en>")


def test_threads_share_a_model_and_find_what_one_alone_does(run):
    """Attention is taken by hooks, which the passes of other threads filled, too."""
    model = tx.load(run)
    alone = [model.translate_all([line], with_alignments=True) for line in SOURCES]
    scores = [model.score([line], ["i want a beer"]) for line in SOURCES]

    def both(number: int):
        line = SOURCES[number % len(SOURCES)]
        return model.translate_all([line], with_alignments=True), model.score([line], ["i want a beer"])

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(both, range(80)))
    assert together == [(alone[n % len(alone)], scores[n % len(scores)]) for n in range(80)]


@pytest.fixture
def restless():
    """Where the library that parses changes what it shares, other threads go on after each line."""
    files = [str(Path(typer.__file__).parent / name) for name in ("main.py", "_adapters.py")]

    def trace(frame, event, _):
        if event == "line":
            time.sleep(1e-4)
        return trace if frame.f_code.co_filename in files else None

    before = threading.gettrace()
    threading.settrace(trace)
    yield
    threading.settrace(before)


@pytest.mark.usefixtures("restless")
def test_what_threads_ask_of_commands_comes_to_each_of_them(capfd):
    tx.count("tiny")
    asked, environment = ["tiny", "base", "gpt2"] * 4, dict(os.environ)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(tx.count, asked))
    assert [one["name"] for one in found] == asked
    assert dict(os.environ) == environment
    assert capfd.readouterr() == ("", "")
    assert not console.is_quiet()


@pytest.fixture
def switches():
    """Those of a program that has chosen for itself."""
    before = machine.Switches.now()
    machine.Switches(2, "medium", deterministic=True, only_warns=True).tell()
    yield machine.Switches.now()
    before.tell()


def test_the_process_is_given_back_as_it_was_found(run, switches):
    seeded = torch.manual_seed(7).get_state()
    choices = {"threads": 1, "matmul_precision": "high"}
    model = tx.load(run, settings=choices)
    model.translate(SOURCES)
    model.score(SOURCES, TARGETS)
    model.align(SOURCES, TARGETS)
    model.attention(SOURCES[0])
    tx.evaluate(run, settings=choices, beam_size=1)
    tx.train(run / "config.yaml", run_dir="other", settings=choices | {"training.max_steps": 1}, quiet=True)
    assert machine.Switches.now() == switches
    assert torch.get_rng_state().equal(seeded)


@contextmanager
def in_float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "entered",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"), lambda: torch.device("meta"), in_float64],
)
def test_what_the_program_does_with_tensors_of_its_own_changes_nothing(run, entered):
    """Training wanted gradients where none were kept, and weights were not those of the configuration."""

    def results(name):
        model = tx.load(run)
        found = model.translate_all(SOURCES, with_alignments=True), model.score(SOURCES, TARGETS)
        maps = as_json(model.attention(SOURCES[0]))
        best = tx.train("tiny", run_dir=name, settings=FEW, quiet=True).best
        return *found, maps, (best / "model.safetensors").read_bytes(), tx.evaluate(run, beam_size=1)

    plain = results("plain")
    with entered():
        assert results("within") == plain


def test_a_macs_gpu_goes_on_with_its_own_random_numbers(monkeypatch):
    states = ["the program's"]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", states.append)
    tx.train("tiny", run_dir="x", settings=FEW | {"device": "cpu"}, quiet=True)
    assert states == ["the program's"] * 2


def test_no_device_computes_in_the_precision_that_the_program_entered():
    devices = ("cpu", "mps")  # for CUDA there has to be some
    with ExitStack() as entered:
        for device in devices:
            entered.enter_context(torch.autocast(device))  # PyTorch 2.8 asks a Mac alone whether it may be bf16
        before = [torch.is_autocast_enabled(device) for device in devices]
        with host.given_back():
            assert not any(map(torch.is_autocast_enabled, devices))
        assert [torch.is_autocast_enabled(device) for device in devices] == before


def test_each_model_computes_by_its_own_choices(run):
    """The last one that was loaded had decided for all of them."""
    seen = []
    models = [tx.load(run, settings={"matmul_precision": one}) for one in ("high", "highest")]
    for model in models:
        model.translate("ein bier", progress=lambda n: seen.append(torch.get_float32_matmul_precision()))
    assert set(seen[: len(seen) // 2]) == {"high"}
    assert set(seen[len(seen) // 2 :]) == {"highest"}


def test_calls_that_end_in_another_order_give_back_what_the_first_one_found():
    found = machine.Switches.now()
    first, second, another_thread = host.given_back(), host.given_back(), copy_context()
    first.__enter__()
    machine.Switches(found.threads, "high", deterministic=False).tell()
    another_thread.run(second.__enter__)
    machine.Switches(found.threads, "medium", deterministic=False).tell()
    first.__exit__(None, None, None)
    assert machine.Switches.now().matmul_precision == "medium"
    another_thread.run(second.__exit__, None, None, None)
    assert machine.Switches.now() == found


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this PyTorch has one word for all of them")
@pytest.mark.parametrize(("whose", "told"), [("", "tf32"), ("cuda.matmul", "tf32"), ("mkldnn.matmul", "bf16")])
def test_a_program_may_have_told_each_backend_how_exact_products_are(run, whose, told):
    """PyTorch has no word for it then, and its error was that of tx.load."""
    backends = (torch.backends.cuda, torch.backends.mkldnn)
    whose = operator.attrgetter(f"backends.{whose}".rstrip("."))(torch)
    before = whose.fp32_precision
    try:
        whose.fp32_precision = told
        told, seen = [one.matmul.fp32_precision for one in backends], []
        model = tx.load(run, settings={"matmul_precision": "highest"})
        text = model.translate("ein bier", progress=lambda n: seen.append(torch.get_float32_matmul_precision()))
        assert set(seen) == {"highest"}
        assert text == tx.load(run).translate("ein bier")
        assert [one.matmul.fp32_precision for one in backends] == told
    finally:
        whose.fp32_precision = before
        torch.set_float32_matmul_precision("highest")


def test_a_model_is_whole_wherever_its_process_goes_and_whatever_becomes_of_its_run(run, monkeypatch):
    expected = tx.load(run, settings={"decoding.shortlist": 50}).translate_all(SOURCES)
    model = tx.load("runs/tiny", settings={"decoding.shortlist": 50})
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    shutil.rmtree(run)
    assert model.translate_all(SOURCES) == expected
    assert "unseen" in expected[3].flags


def test_a_model_that_draws_is_whole_though_a_call_may_ask_for_a_beam(run):
    settings = {"decoding.shortlist": 5}
    expected = tx.load(run, settings=settings).translate_all(SOURCES)
    model = tx.load(run, settings={**settings, "decoding.search": "sampling"})
    shutil.rmtree(run)
    assert model.translate_all(SOURCES, search="beam") == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_copy_of_a_model_translates_as_the_model_does(run, precision):
    model = tx.load(run, precision=precision)
    expected = model.translate_all(SOURCES)
    assert copy.copy(model).translate_all(SOURCES) == expected
    assert copy.deepcopy(model).translate_all(SOURCES) == expected


def test_a_model_that_ranks_is_whole_too(two_ways, tmp_path, monkeypatch):
    """Of several languages, it was opened when one of them was asked for."""
    shutil.copytree(two_ways, tmp_path / "runs" / "both")
    expected = tx.load(two_ways, settings={"decoding.rerank": {"run": str(two_ways)}}).translate(SOURCES[0], to="en")
    model = tx.load("runs/both", settings={"decoding.rerank": {"run": "runs/both"}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "runs")
    assert model.translate(SOURCES[0], to="en") == expected
    assert model.translate(TARGETS[0], to="de")


@pytest.mark.parametrize("asked", ["decoding.shortlist", "decoding.rerank"])
def test_what_is_in_fp32_beside_bf16_opens_nothing_anew(two_ways, tmp_path, monkeypatch, asked):
    """Attention failed, of a model that still translated."""
    run, ranking = (shutil.copytree(two_ways, tmp_path / "runs" / name) for name in ("both", "ranking"))
    settings = {asked: 50 if asked == "decoding.shortlist" else {"run": str(ranking)}}
    expected = as_json(tx.load(run, settings=settings).attention(SOURCES[0], to="en"))
    for one in (run, ranking):
        in_bf16(one, monkeypatch)
    model = tx.load(run, settings=settings)
    assert model.model.dtype == torch.bfloat16
    shutil.rmtree(tmp_path / "runs")
    assert as_json(model.attention(SOURCES[0], to="en")) == expected


def test_of_several_languages_the_one_that_nothing_ranks_is_told_when_it_is_asked_for(two_ways, trained_run):
    model = tx.load(two_ways, settings={"decoding.rerank": {"run": str(trained_run)}})
    assert model.translate(TARGETS[0], to="de")
    with pytest.raises(UsageError, match="is to rank translations from de to en"):
        model.translate(SOURCES[0], to="en")
    with pytest.raises(ModelError, match="which is to rank translations"):
        tx.load(two_ways, settings={"decoding.rerank": {"run": "nowhere"}})


def test_an_error_is_told_to_another_process_as_it_is():
    """One that could not be read again broke a whole pool of processes."""
    with pytest.raises(ModelError) as caught:
        tx.load("nowhere")
    for error in (caught.value, Interrupted("stopped", signal_number=2, hint="go on"), ToldError(4)):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


FEW = {
    "training.max_steps": 1,
    "tokenizer.vocab_size": 20,
    **{f"data.{name}": {"pairs": [["a b", "c d"]] * 4} for name in ("train", "valid", "test")},
}


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_program_without_streams_has_all_but_the_conversation(run, monkeypatch, stream):
    """pythonw has none; a daemon closes them."""
    closed = io.StringIO()
    closed.close()
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream and closed)
    assert tx.train("tiny", run_dir="few", settings=FEW).steps == 1
    assert tx.load(run).translate("ich mochte ein bier") == "i want a beer"
    assert len(tx.evaluate(run, beam_size=1)) == 1


def test_a_stopped_training_is_an_error_and_its_model_a_warning(monkeypatch, capfd):
    before = signal.getsignal(signal.SIGINT)
    once = iter([signal.SIGINT])
    monkeypatch.setattr(console, "say", lambda line, **how: [signal.raise_signal(number) for number in once])
    with pytest.raises(Interrupted, match="stopped after step 1 of 9; everything is saved in stopped"):
        tx.train("tiny", run_dir="stopped", settings=FEW | {"training.max_steps": 9})
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopping as soon as everything is saved" in capfd.readouterr().err
    Path("stopped").rename("a--b")
    for use in (tx.load, lambda run: tx.evaluate(run, beam_size=1)):
        with pytest.warns(UserWarning, match="^a--b is at step 1 of 9, not finished, never validated"):
            use("a--b")
    assert capfd.readouterr() == ("", "")


def test_what_the_system_refuses_is_such_an_error_too(run, monkeypatch):
    Path("gone").mkdir()
    monkeypatch.chdir("gone")
    Path("../gone").rmdir()
    for use in (tx.load, lambda run: tx.evaluate(run, beam_size=1), lambda run: tx.train("tiny", run_dir="x")):
        with pytest.raises(ResourceError, match="the current folder is not there any more") as caught:
            use(run)
        assert caught.value.__notes__ == ["hint: `cd` into one that is."]
        assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_what_the_programs_own_function_raises_stays_as_it_is(run):
    def full(n: int) -> None:
        raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        tx.load(run).translate(SOURCES, progress=full)


def test_no_option_is_named_where_there_is_none():
    with pytest.raises(ModelError) as caught:
        tx.load()
    assert caught.value.hint.endswith("or name one that lies elsewhere: FOLDER/runs/NAME")


def test_two_trainings_at_once_are_refused():
    """Both would draw by the one generator that a process has."""
    told = []

    def warn(line):
        if not told:
            with pytest.raises(UsageError, match="another training goes on in this process") as caught:
                tx.train("tiny", run_dir="second", settings=FEW)
            told.append(caught.value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "say", lambda line, **how: warn(line))
        tx.train("tiny", run_dir="first", settings=FEW)
    assert told
    assert not Path("second").exists()


def test_a_program_that_may_have_threads_is_not_forked(run, monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    tx.evaluate(run, settings={"threads": 2, "decoding.batch_size": 1, "decoding.engine": "native"}, beam_size=1)


NO_TORCH = """
import sys
import transformer_cli as tx

tx.evaluate(sys.argv[1], settings={"matmul_precision": "high", "decoding.engine": "native"}, beam_size=1)
import torch
assert torch.get_float32_matmul_precision() == "highest"
"""


def test_who_has_not_loaded_torch_finds_it_as_new(run):
    in_another_process(NO_TORCH, run)


def in_another_process(code: str, run: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(tx.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code, str(run)], check=True, env=environment, timeout=120)


FORKED = """
import multiprocessing, sys
import transformer_cli as tx

def work(queue):
    queue.put([model.translate(lines), tx.load(sys.argv[1], settings={"threads": 2}).translate(lines)])

model = tx.load(sys.argv[1], settings={"threads": 2})
lines = ["ich mochte ein bier"] * 99
assert model.score(lines, lines)
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=work, args=(queue,), daemon=True)
process.start()
assert queue.get(timeout=60) == [["i want a beer"] * 99] * 2
"""


@pytest.mark.skipif(processors() < 2, reason="one thread waits for no other")
def test_a_process_forked_from_one_with_threads_translates_by_its_own(run):
    """It waited for ever for threads that only its parent has."""
    in_another_process(FORKED, run)
