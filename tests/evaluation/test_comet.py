"""COMET beside its own command line, where TX_COMET names a Python that has it; elsewhere what lies between it and tx,
by a stand-in with its signatures, in an environment of its own as the real one is."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import statistics
import subprocess
import venv
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIRS

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.run import RunConfig, contradictions
from transformer_cli.errors import DataError, ModelError, ResourceError
from transformer_cli.evaluation import comet_process
from transformer_cli.evaluation.metrics import check, measure
from transformer_cli.evaluation.report import System, Text, reports

SOURCE = [source for source, _ in PAIRS]
REFERENCE = [target for _, target in PAIRS]
WORSE = [line.rpartition(" ")[0] for line in REFERENCE]
STAND_IN = """
import os
print("noise on stdout")

class Model:
    def __init__(self, path):
        self.path = path

    def predict(self, samples, batch_size=16, gpus=1, devices=None, mc_dropout=0, progress_bar=True,
                accelerator="auto", num_workers=None, length_batching=True):
        assert (batch_size, gpus, progress_bar) == (16, 0, False)
        share = lambda one: len(set(one["mt"].split()) & set(one["ref"].split())) / len(one["ref"].split())
        return {"scores": [share(one) - 0.001 * len(one["src"]) for one in samples]}

def download_model(model, saving_directory=None, local_files_only=False):
    assert "HF_HUB_OFFLINE" not in os.environ
    return os.environ["FETCHED"]

def load_from_checkpoint(checkpoint_path, reload_hparams=False, strict=False, local_files_only=False):
    assert os.path.isfile(checkpoint_path)
    assert local_files_only is (os.environ.get("HF_HUB_OFFLINE") == "1")
    if os.path.getsize(checkpoint_path) == 1:
        os.kill(os.getpid(), 9)
    if os.path.getsize(checkpoint_path) == 0:
        raise OSError("xlm-roberta-large is not a local folder")
    return Model(checkpoint_path)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The Python that has the stand-in, and a checkpoint."""
    folder = tmp_path_factory.mktemp("comet")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for name, text in {
        "comet/__init__.py": STAND_IN,
        "torch/__init__.py": "class cuda:\n    is_available = staticmethod(lambda: False)\n",
        "unbabel_comet-9.8.7.dist-info/METADATA": "Metadata-Version: 2.1\nName: unbabel-comet\nVersion: 9.8.7\n",
        "../../../../tiny/checkpoints/model.ckpt": "weights",
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    return str(folder / "venv" / "bin" / "python"), str(folder / "tiny" / "checkpoints" / "model.ckpt")


def options(environment: tuple[str, str], **comet: Any) -> EvaluationConfig:
    python, model = environment
    return EvaluationConfig.model_validate(
        {
            "metrics": ["comet", "chrf"],
            "comet": {"python": python, "model": model, **comet},
            "resamples": 40,
            "trials": 40,
        }
    )


def test_it_is_the_mean_of_the_sentences_with_an_interval_a_test_and_a_signature(environment) -> None:
    chosen = options(environment)
    check(chosen)
    better, worse = reports([System("a", REFERENCE), System("b", WORSE)], Text([REFERENCE], SOURCE), chosen, n_worst=0)
    assert better.scores[0].value == pytest.approx(statistics.fmean(100 - 0.1 * len(line) for line in SOURCE))
    assert (better.scores[0].name, better.scores[1].name) == ("COMET", "chrF2")
    assert (better.scores[0].margin or 0) > 0
    assert worse.differences[0].value < 0
    assert (worse.differences[0].p_randomization or 1) < 0.1
    sha256 = hashlib.sha256(b"weights").hexdigest()[:16]
    assert (
        better.scores[0].signature
        == f"nrefs:1|bs:40|seed:12345|model:tiny|sha256:{sha256}|precision:fp32|version:9.8.7"
    )


def test_of_several_references_each_sentence_has_the_mean(environment) -> None:
    counted, _ = measure(REFERENCE, [REFERENCE, WORSE], options(environment), source=SOURCE)
    alone = [measure(REFERENCE, [text], options(environment), source=SOURCE)[0].rows for text in (REFERENCE, WORSE)]
    assert counted.rows == [[pytest.approx((a + b) / 2), 1] for (a, _), (b, _) in zip(*alone, strict=True)]
    assert counted.metric.signature().startswith("nrefs:2|")


def test_the_command_scores_by_it_beside_the_others(environment, trained_run, tmp_path, capsys) -> None:
    python, model = environment
    run = str(shutil.copytree(trained_run, tmp_path / "tiny"))
    named = [f"--set=evaluation.comet={{python: {python}, model: {model}}}", "--set=evaluation.metrics=[bleu, comet]"]
    assert main(["evaluate", "-m", run, "--json", "-q", "-b", "1", *named]) == 0
    scores = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["scores"]}
    assert scores["COMET"] == pytest.approx(statistics.fmean(100 - 0.1 * len(line) for line in SOURCE))


def test_finished_translations_are_not_scored_by_a_model_that_is_missing(environment, tmp_path, capsys) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in REFERENCE), encoding="utf-8")
    named = f"--set=evaluation.comet={{python: {environment[0]}, model: gone.ckpt}}"
    files = [f"--{side}={text}" for side in ("source", "reference", "hypotheses")]
    arguments = ["evaluate", *files, named, "--set=evaluation.metrics=[bleu, comet]"]
    assert failures.exit_code(partial(main, arguments)) == 4
    assert "evaluation.comet.model: gone.ckpt is no file" in capsys.readouterr().err


def test_a_model_is_fetched_only_where_that_is_said(environment, monkeypatch) -> None:
    with pytest.raises(ModelError, match="Unbabel/wmt22-comet-da is no file") as caught:
        check(options(environment, model="Unbabel/wmt22-comet-da"))
    assert "download=true" in str(caught.value.hint)
    monkeypatch.setenv("FETCHED", environment[1])
    fetching = options(environment, model="Unbabel/wmt22-comet-da", download=True)
    check(fetching)
    found, _ = measure(REFERENCE, [REFERENCE], fetching, source=SOURCE)
    assert "model:Unbabel/wmt22-comet-da|" in found.metric.signature()


def test_what_is_missing_is_said_before_anything_is_translated(environment, here, capsys, tmp_path) -> None:
    venv.create(tmp_path / "empty", symlinks=True)
    without = str(tmp_path / "empty" / "bin" / "python")
    for python, words in (
        (without, "the package unbabel-comet is not installed"),
        ("/nowhere/python", "/nowhere/python cannot be started"),
    ):
        named = f"--set=evaluation.comet={{python: {python}, model: {environment[1]}}}"
        arguments = ["evaluate", named, "--set=evaluation.metrics=[comet]"]
        assert failures.exit_code(partial(main, arguments)) == 5
        printed = capsys.readouterr()
        assert words in printed.err
        assert "pip install unbabel-comet" in printed.err
        assert "lines translated" not in printed.err


def test_a_failure_of_comet_says_its_last_words(environment, tmp_path) -> None:
    empty = tmp_path / "empty.ckpt"
    empty.touch()
    with pytest.raises(ResourceError, match="xlm-roberta-large is not a local folder") as caught:
        measure(REFERENCE, [REFERENCE], options(environment, model=str(empty)), source=SOURCE)
    assert "download=true" in str(caught.value.hint)


def test_a_comet_that_was_killed_says_so(environment, tmp_path) -> None:
    large = tmp_path / "large.ckpt"
    large.write_text("x")
    with pytest.raises(ResourceError, match=r"it was ended by SIGKILL$") as caught:
        measure(REFERENCE, [REFERENCE], options(environment, model=str(large)), source=SOURCE)
    assert "memory is too little" in str(caught.value.hint)


def test_its_request_is_in_utf8_whatever_the_locale_says(monkeypatch, capfd) -> None:
    """By the same code, for few machines have another locale."""
    found: list[str] = []
    request = json.dumps({"samples": [{"src": "Zwölf Äpfel"}], "model": "x", "download": False}, ensure_ascii=False)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(request.encode()), encoding="latin-1"))
    monkeypatch.setattr(comet_process, "scored", lambda samples, **_: found.append(samples[0]["src"]) or {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")
    comet_process.main()
    assert found == ["Zwölf Äpfel"]


def test_it_asks_for_a_source_and_for_a_model(environment) -> None:
    with pytest.raises(DataError, match="COMET judges translations by their source") as caught:
        measure(REFERENCE, [REFERENCE], options(environment))
    assert "--source" in str(caught.value.hint)
    [clash] = contradictions(RunConfig.model_validate({"evaluation": {"metrics": ["comet"]}}))
    assert "evaluation.comet.model names" in clash.message


def test_its_scores_are_those_of_its_own_command_line(tmp_path) -> None:
    """Of the real package, with an untrained model; its command line computes in fp16, tx in fp32."""
    python = os.environ.get("TX_COMET")
    if python is None:
        pytest.skip("no COMET here: set TX_COMET to the Python of an environment that has unbabel-comet")
    place = tmp_path / "tiny"
    subprocess.run(
        [python, str(Path(__file__).with_name("tiny_comet.py")), str(place)], check=True, capture_output=True
    )
    model = str(place / "checkpoints" / "model.ckpt")
    files = {}
    for side, lines in {"s": SOURCE, "r": REFERENCE, "t": WORSE}.items():
        files[side] = str(tmp_path / side)
        Path(files[side]).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [
        str(Path(python).with_name("comet-score")),
        "--model",
        model,
        "--gpus",
        "0",
        "--to_json",
        str(tmp_path / "j"),
    ]
    sides = [argument for side, file in files.items() for argument in (f"-{side}", file)]
    subprocess.run([*command, *sides], check=True, capture_output=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    [theirs] = json.loads((tmp_path / "j").read_text()).values()
    ours, _ = measure(WORSE, [REFERENCE], options((python, model)), source=SOURCE)
    assert [row[0] for row in ours.rows] == pytest.approx([100 * one["COMET"] for one in theirs], abs=0.05)
    assert len({round(row[0], 4) for row in ours.rows}) > len(PAIRS) // 2
