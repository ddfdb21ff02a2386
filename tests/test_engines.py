"""Which engine translates, what is said of it, and how a run's weights get to it."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import PAIRS

from transformer_cli import engines
from transformer_cli.checkpoints import find
from transformer_cli.checkpoints.known import open_known
from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.decoding.hypothesis import LengthPenalty
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.quality import flags

ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra `ctranslate2` is not installed")

GREEDY = ("--set", "decoding.beam_size=1")
SOURCES = [source for source, _ in PAIRS]


@pytest.fixture(scope="module")
def converted(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the trained run, which has been converted."""
    run = tmp_path_factory.mktemp("engines") / "tiny"
    shutil.copytree(trained_run, run, ignore=shutil.ignore_patterns("ctranslate2"))
    assert main(["translate", "-m", str(run), "-q", *GREEDY, "ich mochte ein bier"]) == 0
    assert len(conversions(run)) == 1
    return run


@pytest.fixture
def run(converted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(converted, tmp_path / "tiny"))


def conversions(run: Path) -> list[Path]:
    return sorted((run / "ctranslate2").iterdir())


def tx(run: Path, *arguments: str, command: str = "translate") -> int:
    return failures.exit_code(lambda: main([command, "-m", str(run), *arguments]))


def test_a_cold_greedy_translation_is_the_engines_and_does_nothing_that_it_needs_not(run):
    """No torch and no numpy are imported, no help is read from the source, the run's file is parsed once."""
    code = (
        "import inspect, sys, yaml; from transformer_cli.cli.app import main\n"
        "find, read = inspect.findsource, []\n"
        "inspect.findsource = lambda of: read.append(of) or find(of)\n"
        "parse, parsed = yaml.parse, []\n"
        "yaml.parse = lambda text, **how: parsed.append(text) or parse(text, **how)\n"
        f"main(['translate', '-m', {str(run)!r}, '--beam-size', '1', 'ich mochte ein bier'])\n"
        "print({'torch', 'numpy'} & set(sys.modules), read, len(parsed))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert shown.stdout == "i want a beer\nset() [] 1\n"
    assert f"engine: CTranslate2 {ctranslate2.__version__} in fp32\n" in shown.stderr
    assert "converting" not in shown.stderr


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="MKL is for x86 alone")
@pytest.mark.parametrize(("given", "used"), [({}, "false"), ({"CT2_USE_MKL": "1"}, "true")])
def test_products_are_onednns_on_any_processor_unless_the_user_says_otherwise(run, given, used):
    command = [sys.executable, "-m", "transformer_cli", "translate", "-m", str(run), *GREEDY, "ich mochte ein bier"]
    clean = {name: value for name, value in os.environ.items() if name != "CT2_USE_MKL"}
    environment = clean | {"CT2_VERBOSE": "1"} | given
    shown = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=True)
    assert shown.stdout == "i want a beer\n"
    assert f"Use Intel MKL: {used}" in shown.stderr


def test_both_engines_say_the_same_in_json(run, capsys):
    said = []
    for engine in ("native", "auto"):
        assert tx(run, "--json", *GREEDY, "--set", f"decoding.engine={engine}", *SOURCES, "", "nie gesehen") == 0
        said.append([json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]])
    for ours, theirs in zip(*said, strict=True):
        for our, their in zip((ours, *ours["n_best"]), (theirs, *theirs["n_best"]), strict=True):
            for name in ("score", "log_probability"):
                assert their[name] == pytest.approx(our.pop(name), abs=1e-4)
                del their[name]
        assert theirs == ours
    last = said[0][-1]
    assert last["flags"] == [*flags(last["source"], last["translation"]), "unsure", "unseen"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--beam-size", "3"], "a beam of 3"),
        (["-b", "1", "--alignments"], "alignments"),
        (["--sample"], "search: sampling"),
        (["-b", "1", "--set", "decoding.min_length=3"], "min_length"),
        (["-b", "1", "--set", "decoding.shortlist=9"], "a shortlist"),
        (["-b", "1", "--set", "decoding.no_repeat_ngram=3"], "no_repeat_ngram"),
        (["-b", "1", "--set", "precision=bf16"], "precision: bf16"),
        (["-b", "1", "--set", "decoding.max_length_extra=5000"], "texts of more than 4,096 pieces"),
    ],
)
def test_what_the_engine_does_otherwise_is_those_of_tx_and_the_reason_is_said(run, capsys, arguments, reason):
    assert tx(run, *arguments, "ich mochte ein bier") == 0
    assert f"engine: native; CTranslate2 differs with {reason}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"qk_norm": True}, ["model.qk_norm: true"]),
        ({"positions": "relative"}, ["model.positions: relative, of another package"]),
        ({}, []),
    ],
)
def test_what_cannot_be_written_for_the_engine_is_not_given_to_it(run, options, reason):
    known = open_known(find.find_checkpoint(str(run)))
    model = known.config.model.model_copy(update=options)
    known = replace(known, config=known.config.model_copy(update={"model": model}))
    search = SearchOptions(beam_size=1)
    assert list(engines.obstacles([known], known.config, search)) == reason


def test_lines_with_prefixes_and_ensembles_are_those_of_tx(run, capsys, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"source": "ich mochte ein bier", "prefix": "i drink"}\n')
    assert tx(run, "-b", "1", "--jsonl", "-i", str(tmp_path / "in.jsonl")) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["translation"].startswith("i drink")
    assert "differs with --jsonl, whose lines may have prefixes\n" in told.err
    assert tx(run, "-m", str(run), "-b", "1", "der hund trinkt") == 0
    assert "differs with an ensemble\n" in capsys.readouterr().err


def test_by_its_name_the_engine_searches_with_its_own_beam_and_that_is_said(run, capsys):
    by_name = ("--set", "decoding.engine=ctranslate2")
    assert tx(run, *by_name, "--n-best", "2", "--json", "die katze schläft") == 0
    told = capsys.readouterr()
    best = json.loads(told.out)["n_best"]
    assert (best[0]["translation"], len(best)) == ("the cat sleeps", 2)
    assert "CTranslate2 prunes a beam of 5 otherwise than tx" in told.err
    assert tx(run, *by_name, "--alignments", "die katze schläft") == 2
    assert "CTranslate2 cannot do this: alignments" in capsys.readouterr().err


def test_without_the_package_tx_translates_and_by_its_name_the_extra_is_named(run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert tx(run, "-b", "1", "die katze schläft") == 0
    told = capsys.readouterr()
    assert (told.out, "engine" in told.err) == ("the cat sleeps\n", False)
    assert tx(run, "--set", "decoding.engine=ctranslate2", "die katze schläft") == 5
    assert "[ctranslate2]'" in capsys.readouterr().err


def test_a_conversion_that_is_damaged_is_made_anew(run, capsys):
    [place] = conversions(run)
    model = place / "model.bin"
    whole = model.read_bytes()
    model.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert tx(run, *GREEDY, "die katze schläft") == 0
    said = capsys.readouterr().err
    assert f"converting the weights for CTranslate2, again: what is in {place} is damaged" in said
    assert model.read_bytes() == whole


def test_other_weights_are_another_conversion_and_those_of_a_deleted_checkpoint_go(run):
    other = find.list_checkpoints(run)[0]
    assert find.find_checkpoint(str(run)) != other
    stale = run / "ctranslate2" / "0123456789abcdef"
    stale.mkdir()
    assert main(["translate", "-m", str(other), "-q", *GREEDY, "die katze schläft"]) == 0
    assert (len(conversions(run)), stale.exists()) == (2, False)


def test_a_run_that_cannot_be_written_is_converted_for_this_time(run, capsys, monkeypatch):
    shutil.rmtree(run / "ctranslate2")
    (run / "ctranslate2").write_text("in the way")  # whoever is root may write anywhere
    assert tx(run, *GREEDY, "die katze schläft") == 0
    told = capsys.readouterr()
    assert told.out == "the cat sleeps\n"
    assert "converted for this time alone" in told.err


def test_conversions_at_once_do_not_disturb_each_other(run, monkeypatch):
    """While one is written, another process begins and ends that of the same checkpoint, and that of another one."""
    shutil.rmtree(run / "ctranslate2")
    known = [open_known(checkpoint) for checkpoint in find.list_checkpoints(run)[-2:]]
    convert, told = engines._convert, []

    def beside_others(of, place):
        convert(of, place)
        monkeypatch.setattr(engines, "_convert", convert)
        for one in known:
            engines._loaded(one, 1, told.append)

    monkeypatch.setattr(engines, "_convert", beside_others)
    place, _ = engines._loaded(known[0], 1, told.append)
    assert [path.name for path in conversions(run)] == sorted(engines._key(one.manifest) for one in known)
    assert place == run / "ctranslate2" / engines._key(known[0].manifest)
    assert told == ["converting the weights for CTranslate2, once"] * 3


def test_what_is_not_a_conversion_stays_and_what_a_killed_one_left_goes_in_time(run):
    inside = run / "ctranslate2"
    (inside / "notes.txt").write_text("mine")
    for name in (".tmp-0123456789abcdef-01234567", ".tmp-0123456789abcdef-76543210"):
        (inside / name).mkdir()
    os.utime(inside / name, (0, 0))
    shutil.rmtree(next(path for path in conversions(run) if engines.KEY.fullmatch(path.name)))
    assert tx(run, *GREEDY, "die katze schläft") == 0
    left = {path.name for path in conversions(run) if not engines.KEY.fullmatch(path.name)}
    assert left == {"notes.txt", ".tmp-0123456789abcdef-01234567"}


def test_a_checkpoint_of_any_name_is_converted_though_others_are_damaged(run, capsys):
    first, mine = find.list_checkpoints(run)[0], run / "checkpoints" / "mine"
    shutil.rmtree(run / "ctranslate2")
    find.find_checkpoint(str(run)).rename(mine)
    assert tx(mine, *GREEDY, "die katze schläft") == 0
    told = capsys.readouterr()
    assert told.out == "the cat sleeps\n"
    assert "engine: CTranslate2" in told.err
    shutil.rmtree(run / "ctranslate2")
    (first / "manifest.json").write_text("{}")
    assert tx(mine, *GREEDY, "die katze schläft") == 0
    assert "engine: CTranslate2" in capsys.readouterr().err


@pytest.mark.parametrize("hashes", ["[]", "null", "{}", '{"model.bin": 1}', "{"])
def test_a_conversion_without_its_hashes_is_made_anew(run, capsys, hashes):
    [place] = conversions(run)
    (place / engines.HASHES).write_text(hashes)
    assert tx(run, *GREEDY, "die katze schläft") == 0
    told = capsys.readouterr()
    assert (told.out, "is damaged" in told.err) == ("the cat sleeps\n", True)


def test_where_no_disk_takes_the_weights_tx_translates_unless_the_engine_was_named(run, capsys, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    shutil.rmtree(run / "ctranslate2")
    monkeypatch.setattr(ctranslate2.specs.ModelSpec, "save", refuse)
    assert tx(run, *GREEDY, "die katze schläft") == 0
    told = capsys.readouterr()
    assert told.out == "the cat sleeps\n"
    assert re.search(r"engine: native; CTranslate2 cannot be had: cannot write \S+: no space left", told.err, re.I)
    assert told.err.count("model: ") == 1
    assert tx(run, *GREEDY, "--set", "decoding.engine=ctranslate2", "die katze schläft") == 5


def test_what_the_engine_does_not_open_is_those_of_tx(run, capsys, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("Unsupported model binary version")

    monkeypatch.setattr(ctranslate2, "Translator", refuse)
    assert tx(run, *GREEDY, "die katze schläft") == 0
    told = capsys.readouterr()
    assert told.out == "the cat sleeps\n"
    assert "CTranslate2 does not open" in told.err
    assert tx(run, *GREEDY, "--set", "decoding.engine=ctranslate2", "die katze schläft") == 4


@pytest.mark.parametrize(
    ("threads", "workers", "at_once", "each"), [(2, "auto", 2, 1), (2, 1, 1, 2), (4, 2, 2, 2), (1, "auto", 1, 1)]
)
def test_batches_at_once_and_threads_for_each_are_those_of_the_settings(
    run, monkeypatch, threads, workers, at_once, each
):
    given = []

    def opened(place, **options):
        given.append((options["inter_threads"], options["intra_threads"], options["device"], options["compute_type"]))
        return SimpleNamespace()

    monkeypatch.setattr(ctranslate2, "Translator", opened)
    monkeypatch.setattr(engines, "processors", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    known = open_known(find.find_checkpoint(str(run)))
    decoding = known.config.decoding.model_copy(update={"workers": workers})
    settings = known.config.model_copy(update={"decoding": decoding, "threads": None})
    translator = engines.engine_of(known, settings, tell=lambda line: None)
    translator._for_several()
    assert given == [(1, threads, "cpu", "float32"), (at_once, each, "cpu", "float32")]
    assert translator._workers == at_once


@pytest.mark.parametrize(
    ("device", "n_gpus", "reasons"),
    [
        ("auto", 0, []),
        ("auto", 1, ["the GPU that there is"]),
        ("cpu", 1, []),
        ("cuda", 0, ["device: cuda"]),
    ],
)
def test_a_gpu_is_used_by_tx(run, monkeypatch, device, n_gpus, reasons):
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: n_gpus)
    known = open_known(find.find_checkpoint(str(run)))
    settings = known.config.model_copy(update={"device": device})
    assert list(engines.obstacles([known], settings, SearchOptions(beam_size=1))) == reasons


def test_a_beam_by_another_rule_of_length_is_those_of_tx(run):
    known = open_known(find.find_checkpoint(str(run)))
    penalty = LengthPenalty(1.0, "gnmt")
    for beam_size, reasons in ((1, []), (3, ["length_penalty_family: gnmt"])):
        options = SearchOptions(beam_size=beam_size, penalty=penalty)
        assert list(engines.obstacles([known], known.config, options)) == reasons


def test_evaluation_is_by_the_engine_too_and_keeps_which_it_was(run, capsys):
    assert tx(run, "-b", "1", "-q", command="evaluate") == 0
    kept = json.loads((run / "run.json").read_text("utf-8"))["scores"]["test"]
    assert kept["engine"] == f"CTranslate2 {ctranslate2.__version__} in fp32"
    assert os.path.isdir(run / "ctranslate2")


def test_a_run_begun_anew_leaves_no_conversion(run):
    from transformer_cli.training.replacing import discard

    discard(run)
    assert not run.exists() or list(run.iterdir()) == []
