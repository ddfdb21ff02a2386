"""`tx average`: the mean of checkpoints is a run like any other."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PAIRS
from safetensors.numpy import load_file

from transformer_cli.checkpoints import store
from transformer_cli.cli import console, failures
from transformer_cli.cli.app import main
from transformer_cli.sealing import sealed, unsealed

TEXT = {"data": {split: {"pairs": PAIRS} for split in ("train", "valid", "test")}}
SETTINGS = {
    "model": {"d_model": 16, "n_heads": 1, "d_ff": 16, "n_layers": 1},
    "tokenizer": {"vocab_size": 100},
    "training": {"max_steps": 4, "validate_every": 1, "best_by": "loss", "validation_bleu": False, "keep_best": 3},
    "precision": "fp32",
    **TEXT,
}


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(list(arguments)))


def train(name: str, **changes: object) -> None:
    Path(f"{name}.yaml").write_text(json.dumps(SETTINGS | changes))
    assert tx("train", "-q", "-c", f"{name}.yaml") == 0


def weights(checkpoint: Path) -> dict[str, np.ndarray]:
    return load_file(checkpoint / "model.safetensors")


def test_a_shape_that_is_written_otherwise_is_of_the_same_kind() -> None:
    """As an imported run has it: it was "not of the same kind"."""
    train("short")
    train("long", model={"d_model": 16, "n_heads": 1, "d_ff": 16, "n_layers": {"encoder": 1, "decoder": 1}})
    assert tx("average", "runs/short", "runs/long", "-o", "mean") == 0


def test_the_mean_of_the_best_is_exact_names_its_parents_and_does_all_that_a_run_does(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train("mine")
    monkeypatch.setattr(console, "_quiet", False)
    scores = json.loads(Path("runs/mine/checkpoints/step-00000004/state.json").read_text())["scores"]
    best = [Path(f"runs/mine/checkpoints/step-{int(step):08}") for step in sorted(scores, key=scores.get, reverse=True)]
    assert len(best) == 3
    assert tx("average", "runs/mine", "--best", "3") == 0
    told = ", ".join(f"{int(step)} ({-scores[step]:.3f})" for step in sorted(scores, key=scores.get, reverse=True))
    shown = capfd.readouterr()
    assert f"best by loss in validation: steps {told}\n" in shown.err
    [place] = Path("runs/mine-average/checkpoints").iterdir()
    assert shown.out == f"{place}\n"

    parents = [weights(path) for path in best]
    for name, tensor in weights(place).items():
        exact = sum(parent[name].astype(np.float64) for parent in parents) / 3
        assert np.array_equal(tensor, exact.astype(np.float32)), name
    named = json.loads((place / "manifest.json").read_text())["parents"]
    digests = [hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest() for path in best]
    assert [(one["run"], one["step"], one["sha256"]) for one in named] == [
        ("mine", int(path.name[5:]), digest) for path, digest in zip(best, digests, strict=True)
    ]

    for known in ("words.tsv.gz", "lines.npy"):
        assert Path("runs/mine-average", known).read_bytes() == Path("runs/mine", known).read_bytes()
    run = ("-m", "runs/mine-average")
    assert tx("translate", *run, PAIRS[0][0]) == 0
    assert tx("evaluate", *run, "--json") == 0
    assert tx("count-params", "runs/mine-average") == 0
    assert tx("train", "-c", "mine.yaml", "--run-dir", "runs/mine-average") == 4
    said = capfd.readouterr().err
    assert "a mean that `tx average` made has none" in said
    assert "never validated" not in said
    assert tx("average", "runs/mine", "--best", "5") == 4
    said = capfd.readouterr().err
    assert "hint: --best 3 takes all that are there; " in said
    assert "and training.validate_every has it validate as often" in said
    assert tx("average", "runs/mine", "--last", "2") == 2
    assert "runs/mine-average is there already" in capfd.readouterr().err
    assert tx("average", "runs/mine", "--last", "2", "-o", "my mean") == 0
    assert "next: tx evaluate -m 'my mean'\n" in capfd.readouterr().err
    for name in ("empty", "mine.yaml", "leads"):
        if name == "leads":
            Path(name).symlink_to("nowhere")
        elif name == "empty":
            Path(name).mkdir()
        assert tx("average", "runs/mine", "--last", "2", "-o", name) == (0 if name == "empty" else 2)
        assert ("is there already" in capfd.readouterr().err) == (name != "empty")
    assert tx("translate", "-m", "empty", PAIRS[0][0]) == 0


@pytest.mark.parametrize("shortlist", [None, 5])
def test_a_mean_does_without_what_cannot_be_read_of_the_text(
    shortlist: int | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there, and the command ended with exit code 3."""
    train("mine", decoding={"shortlist": shortlist})
    monkeypatch.setattr(console, "_quiet", False)
    for known in ("words.tsv.gz", "lines.npy", "lexicon.bin"):
        Path("runs/mine", known).unlink(missing_ok=True)
        Path("runs/mine", known).mkdir()
    assert tx("average", "runs/mine", "--last", "2") == 0
    said = capfd.readouterr().err
    for known in ("words.tsv.gz", "lines.npy"):
        assert f"warning: not copied to runs/mine-average: runs/mine/{known} is not a file\n" in said
        assert not Path("runs/mine-average", known).exists()
    assert said.count("lexicon.bin is not a file") == 1
    assert tx("evaluate", "-m", "runs/mine-average", "--set", "decoding.shortlist=null") == 0


def test_the_step_and_standing_are_the_newest_parents_in_whatever_order_they_are_named() -> None:
    train("ordered")
    paths = sorted(map(str, Path("runs/ordered/checkpoints").glob("step-*")))
    newest = json.loads(Path(paths[-1], "state.json").read_text())
    for number, named in enumerate((paths, paths[::-1])):
        assert tx("average", *named, "-o", f"runs/of-{number}") == 0
        [place] = Path(f"runs/of-{number}/checkpoints").iterdir()
        assert place.name == Path(paths[-1]).name
        state = json.loads((place / "state.json").read_text())
        assert {key for key in newest if state[key] != newest[key]} <= {"scores", "finished"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "which run?"),
        (("tiny",), 2, "one checkpoint is its own mean"),
        (("tiny", "--best", "2", "--last", "2"), 2, "two choices"),
        (("tiny", "tiny", "--last", "2"), 2, "choose from one"),
        (("tiny", "tiny"), 2, "with -o"),
        (("tiny", "--best", "3"), 4, "fewer than 3 checkpoints kept as best by validation: {best}"),
        (("tiny", "--last", "9"), 4, "training.keep_last=9"),
        (("tiny", "nowhere", "-o", "new"), 4, "nowhere does not exist"),
    ],
)
def test_what_is_no_mean_is_said(
    trained_run: Path, best: str, arguments: tuple[str, ...], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_run, "tiny")
    assert tx("average", *arguments) == code
    assert said.format(best=best) in capfd.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["tiny"]


@pytest.mark.parametrize(
    ("option", "said"),
    [("--last", "has no checkpoint\n"), ("--best", "has no checkpoint kept as best by validation\n")],
)
def test_a_run_that_has_nothing_to_average_says_so(option: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It had fewer than 1 checkpoints: none."""
    Path("tiny/checkpoints").mkdir(parents=True)
    Path("tiny/config.yaml").write_text(
        "tokenizer: {}\ndata: {}\nmodel: {}\ntraining: {}\ndecoding: {}\nevaluation: {}\n"
    )
    assert tx("average", "tiny", option, "1") == 4
    assert f"error: tiny {said}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer": "another"}, "other/checkpoints/{best} was trained with another tokenizer"),
        ({"model": {"norm_position": "post"}}, "model.norm_position: pre and post"),
        ({"data": {"source_eos": False}}, "data.source_eos: True and False"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(
    trained_run: Path, best: str, change: dict[str, object], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("tiny", "other"):
        shutil.copytree(trained_run, name)
    path = Path(f"other/checkpoints/{best}/manifest.json")
    manifest = unsealed(path.read_bytes())
    for key, value in change.items():
        manifest[key] = manifest[key] | value if isinstance(value, dict) else value
    path.write_bytes(sealed(manifest))
    assert tx("average", "tiny", "other", "-o", "new") == 4
    assert said.format(best=best) in capfd.readouterr().err
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("before", "after", "code", "said"),
    [
        ("source: de", "source: fr", 4, "tiny/config.yaml is not what tiny/checkpoints/step-00000150 was trained with"),
        (
            "norm_position: pre",
            "norm_position: post",
            4,
            "tiny/config.yaml is not what tiny/checkpoints/step-00000150 was trained with",
        ),
        ("\n...\n", "\n", 4, "tiny/config.yaml is damaged: it ends before its last line"),
    ],
)
def test_a_run_that_somebody_has_changed_has_no_mean(
    trained_run: Path, before: str, after: str, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The mean was sealed with what the checkpoint was not trained with: nothing could tell any more."""
    shutil.copytree(trained_run, "tiny")
    config = Path("tiny/config.yaml").read_text("utf-8")
    assert before in config
    Path("tiny/config.yaml").write_text(config.replace(before, after), encoding="utf-8")
    assert tx("average", "tiny", "--last", "1", "-o", "new") == code
    assert said in capfd.readouterr().err
    assert not Path("new").exists()


def test_a_tokenizer_that_is_not_its_own_makes_no_mean(trained_run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(trained_run, "tiny")
    train("other", tokenizer={"kind": "char"})
    shutil.rmtree("tiny/tokenizer")
    shutil.copytree("runs/other/tokenizer", "tiny/tokenizer")
    assert tx("average", "tiny", "--last", "1", "-o", "new") == 4
    assert "tiny/tokenizer is not the tokenizer that tiny/checkpoints/step-00000150 was" in capfd.readouterr().err
    assert not Path("new").exists()


def test_a_state_that_is_none_and_a_place_inside_a_run_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    train("mine")
    assert tx("average", "runs/mine", "--best", "2", "-o", "runs/mine/sub") == 2
    assert "runs/mine lies in the run" in capfd.readouterr().err
    Path("runs/mine/checkpoints/step-00000004/state.json").write_text("[]")
    assert tx("average", "runs/mine", "--best", "2") == 4
    assert "state.json" in capfd.readouterr().err


def test_a_mean_of_a_run_that_is_being_trained_is_of_what_is_there(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training had deleted what was chosen before it was read."""
    train("mine")
    load, gone = store.load_checkpoint, Path("runs/mine/checkpoints/step-00000003")

    def meanwhile(path: Path, **options: Any) -> store.Checkpoint:
        if gone.exists():
            shutil.copytree(gone.with_name("step-00000004"), gone.with_name("step-00000005"))
            manifest = gone.with_name("step-00000005") / "manifest.json"
            manifest.write_bytes(sealed(unsealed(manifest.read_bytes()) | {"step": 5}))
            shutil.rmtree(gone)
        return load(path, **options)

    monkeypatch.setattr(store, "load_checkpoint", meanwhile)
    assert tx("average", "runs/mine", "--last", "2", "--json") == 0
    parents = json.loads(capfd.readouterr().out)["parents"]
    assert [Path(path).name for path in parents] == ["step-00000005", "step-00000004"]
    assert tx("average", str(gone), "runs/mine", "-o", "other") == 4


def test_a_checkpoint_counts_once_however_it_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    train("mine")
    Path("runs/other").symlink_to("mine")
    best = f"runs/mine/checkpoints/{Path('runs/mine/best').read_text().strip()}"
    for again in (best, "runs/other"):
        assert tx("average", best, again, "-o", "runs/both") == 2
        assert "is named more than once" in capfd.readouterr().err
    assert not Path("runs/both").exists()


def test_runs_that_differ_in_dropout_have_a_mean() -> None:
    train("mine")
    train("drier", model={**SETTINGS["model"], "dropout": 0.3})  # type: ignore[dict-item]
    assert tx("average", "runs/mine", "runs/drier", "-o", "runs/both") == 0


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-table"])
def test_a_mean_of_trainings_that_began_apart_is_made_and_said_to_be_of_no_use(
    positions: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever both have from the start, as a table of sinusoids."""
    model: dict[str, Any] = {"model": {**SETTINGS["model"], "positions": positions}}  # type: ignore[dict-item]
    train("mine", **model)
    train("after", training={**SETTINGS["training"], "init_from": "runs/mine"}, **model)  # type: ignore[dict-item]
    train("apart", seed=2, **model)
    monkeypatch.setattr(console, "_quiet", False)
    for others, is_warned in ((["runs/after"], False), (["runs/after", "runs/apart"], True)):
        capfd.readouterr()
        assert tx("average", "runs/mine", *others, "-o", f"runs/{len(others)}") == 0
        warned = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
        assert len(warned) == is_warned
        assert all("step-00000004 has nothing in common with" in line and "-m A -m B" in line for line in warned)


def test_a_mean_that_training_does_not_go_on_from_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    train("mine")
    assert tx("average", "runs/mine", "--best", "2") == 0
    before = Path("runs/mine-average/config.yaml").read_bytes()
    again = ("train", "-c", "mine.yaml", "--run-dir", "runs/mine-average", "--set", "training.max_steps=9")
    assert tx(*again) == 4
    assert "optimizer state is empty" in capfd.readouterr().err
    assert Path("runs/mine-average/config.yaml").read_bytes() == before


@pytest.mark.parametrize(("folder", "named"), [(".", "."), ("checkpoints", "..")])
def test_a_run_that_is_named_by_where_one_stands_has_its_mean_beside_it(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, named: str
) -> None:
    """`tx average .` was a bug of ours, and `..` would have been put into the run."""
    shutil.copytree(trained_run, tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path / "runs" / "mine" / folder)
    assert tx("average", named, "--last", "1") == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine", "mine-average"]


@pytest.mark.parametrize("odd", [None, 1.5, {"x": 1.0}, {"3": "a"}, {"3": [1.0]}], ids=str)
def test_validations_that_can_be_of_no_run_are_named(
    trained_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], odd: object
) -> None:
    """They were a bug of ours where the checkpoint said that they are what was saved."""
    run = shutil.copytree(trained_run, tmp_path / "mine")
    newest = sorted((run / "checkpoints").iterdir())[-1]
    state = json.dumps(json.loads((newest / "state.json").read_text()) | {"losses": {}, "scores": odd}).encode()
    (newest / "state.json").write_bytes(state)
    manifest = unsealed((newest / "manifest.json").read_bytes())
    manifest["files"]["state.json"] = {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
    (newest / "manifest.json").write_bytes(sealed(manifest))
    assert tx("average", str(run), "--best", "1") == 4
    assert "state.json has values that no run can have: scores" in capfd.readouterr().err
