"""`tx reproduce`: what a run came to, and whether it does again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIRS

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.config.dotted import flat
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config, load_config
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.errors import ModelError
from transformer_cli.tokenizer import train_tokenizer
from transformer_cli.training.reproduction import SUFFIX, KeptRun, Results, read, settings_of, verdicts

PRESETS = Path(__file__).parents[2] / "configs"


def tx(*arguments: str) -> int:
    return failures.exit_code(lambda: main(list(arguments)))


@pytest.fixture(scope="session")
def evaluated(trained_run: Path, shared: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    def make(folder: Path) -> None:
        shutil.copytree(trained_run, folder / "one")
        assert tx("evaluate", "-m", str(folder / "one"), "-q") == 0

    return shared("evaluated", make) / "one"


@pytest.fixture
def scored(evaluated: Path) -> Path:
    shutil.copytree(evaluated, "runs/one")
    return Path("runs/one")


def with_results(scored: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    """A configuration with its results beside it, as somebody would publish them."""
    assert tx("reproduce", str(scored), "-o", "mine.results.json") == 0
    shutil.copy(scored / "config.yaml", "mine.yaml")
    capfd.readouterr()
    return Path("mine.results.json")


def edited(path: Path, score: float, **more: Any) -> None:
    """As if the first score had been that."""
    found = json.loads(path.read_text())
    found["runs"][0]["scores"]["test"]["scores"][0] |= {"value": score} | more
    path.write_text(json.dumps(found))


def test_a_run_made_again_has_the_same_scores(scored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with_results(scored, capfd)
    assert tx("reproduce", "mine.yaml", "--run-dir", "runs/again", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    then, now = (json.loads(Path(run, "run.json").read_text()) for run in ("runs/one", "runs/again"))
    assert then["scores"]["test"]["scores"] == now["scores"]["test"]["scores"]
    assert then["scores"]["test"]["sha256"] == now["scores"]["test"]["sha256"]
    assert found["holds"]
    assert [one["found"] for one in found["scores"]] == [one["value"] for one in now["scores"]["test"]["scores"]]


def test_a_validation_where_training_ended_for_a_while_is_none_that_training_anew_has(
    scored: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoint was the best one, and offered as what training in one go comes to."""
    chosen = {"schedule": "constant", "learning_rate": 1e-30, "warmup_steps": 0, "validate_every": 4}
    for steps, run in ((3, "two"), (5, "two"), (5, "three")):
        options = [f"--set=training.{key}={value}" for key, value in {**chosen, "max_steps": steps}.items()]
        assert tx("train", "-c", str(scored / "config.yaml"), "--run-dir", f"runs/{run}", *options) == 0
    for run in ("two", "three"):
        assert tx("evaluate", "-m", f"runs/{run}", "-q") == 0
    capfd.readouterr()
    assert tx("reproduce", "runs/two", "-o", "two.results.json") == 4
    assert "of runs/two is of update 3, where training ended for a while" in capfd.readouterr().err
    assert tx("reproduce", "runs/three", "-o", "three.results.json") == 0


@pytest.mark.parametrize(("score", "code"), [(95.1, 0), (94.9, 4)])
def test_a_score_holds_within_its_margin(
    scored: Path, score: float, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    path = with_results(scored, capfd)
    found = json.loads((scored / "run.json").read_text())["scores"]["test"]["scores"][0]["value"]
    edited(path, found - 100 + score, margin=5.0)
    shutil.copytree(scored, "runs/again")  # finished: nothing is trained
    assert tx("reproduce", "mine.yaml", "--run-dir", "runs/again") == code
    out, err = capfd.readouterr()
    assert "BLEU" in out
    assert ("does not hold" in out) == bool(code)
    assert ("error: 1 of 4 scores do not hold" in err) == bool(code)


def test_a_score_that_is_not_there_is_said(scored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It was a bug in tx, after the training."""
    path = with_results(scored, capfd)
    edited(path, 50.0, name="COMET", signature="comet|model:x")
    assert tx("reproduce", "mine.yaml", "--run-dir", "runs/again") == 4
    said = capfd.readouterr()
    assert "COMET" in said.out
    assert "not there, or another metric by its signature" in said.out
    assert "scores do not hold" in said.err


def test_what_is_no_longer_the_same_is_refused_by_name(scored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with_results(scored, capfd)
    assert tx("reproduce", "mine.yaml", "--set", "model.d_ff=32") == 2
    assert "model.d_ff: 64 then, 32 now" in capfd.readouterr().err
    for split, name in (("train", "train"), ("valid", "valid"), ("test", "test set test")):
        other = [*PAIRS[:-1], ["der glückliche hund", "the happy cat"]]
        assert tx("reproduce", "mine.yaml", "--set", f"data.{split}={json.dumps({'pairs': other})}") == 3
        said = capfd.readouterr().err
        assert f"{name} is not the text of the results" in said
        assert f"--set data.{split}=PREFIX" in said
    assert not [*Path("runs").glob("*-again")]


def test_a_setting_that_results_do_not_know_yet_had_its_default(
    scored: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = with_results(scored, capfd)
    results = json.loads(path.read_text())
    del results["settings"]["training.accumulation"]
    path.write_text(json.dumps(results))
    shutil.copytree(scored, "runs/again")
    assert tx("reproduce", "mine.yaml", "--run-dir", "runs/again") == 0
    assert tx("reproduce", "mine.yaml", "--set", "training.accumulation=2") == 2
    assert "training.accumulation: 1 then, 2 now" in capfd.readouterr().err


def test_a_shape_is_the_same_however_results_have_it_written() -> None:
    """Those of an older tx have it as its file had; it was "2 then, None now"."""
    long = load_config("tiny.yaml", ["model.n_layers={encoder: 2, decoder: 2}", "model.bias={attention: true}"])
    short = load_config("tiny.yaml", ["model.n_layers=2"])
    assert settings_of(long) == settings_of(short)
    for written in (long, short):
        others = {key: value for key, value in settings_of(written).items() if not key.startswith("model.")}
        kept = others | flat({"model": written.model.model_dump(mode="json")})
        results = Results.model_validate({"settings": kept, "runs": [run(1, 2.0)]})
        assert results.changed(long) == results.changed(short) == []
        deeper = load_config("tiny.yaml", ["model.n_layers={encoder: 2, decoder: 3}"])
        assert results.changed(deeper) == ["model.n_layers: 2 then, {'encoder': 2, 'decoder': 3} now"]
        strange = Results(settings=results.settings | {"model.n_layers.encoder": "all"}, runs=results.runs)
        assert strange.changed(long) != []


def test_where_texts_and_a_parent_lie_is_free_but_not_how_they_are_used() -> None:
    def settings(*those: str) -> RunConfig:
        return load_config("tiny.yaml", ["data.valid=v", "data.source=de", "data.target=en", *those])

    config = settings("data.train=[{text: a, weight: 2}, {text: b, both: true}]", "training.init_from=runs/x")
    results = Results.model_validate({"settings": settings_of(config), "runs": [run(1, 2.0)]})
    assert results.changed(config) == []
    train, parent = "data.train=[{text: d/a, weight: 2}, {text: d/b, both: true}]", "training.init_from=runs/y"
    assert results.changed(settings(train, parent)) == []
    assert results.changed(settings(train)) == ["training.init_from: another run then, None now"]
    [seen] = results.changed(settings("data.train=[{text: a}, {text: b, both: true}]", parent))
    assert seen == "data.train: [{'weight': 2.0}, {'both': True}] then, [{}, {'both': True}] now"
    [whole] = results.changed(settings("data.train=a", parent))
    assert whole == "data.train: [{'weight': 2.0}, {'both': True}] then, None now"
    before = Results(settings=results.settings | {"training.init_from": "runs/x"}, runs=results.runs)
    assert before.changed(settings(train, parent)) == []


@pytest.mark.parametrize("sides", [("{}/spm.model",), ("{}/source.model", "{}/target.model")])
def test_where_a_tokenizer_that_is_given_lies_is_free_but_not_that_it_is(sides: tuple[str, ...]) -> None:
    def settings(folder: str) -> RunConfig:
        places = [side.format(folder) for side in sides]
        given = places[0] if len(sides) == 1 else f"{{source: {places[0]}, target: {places[1]}}}"
        apart = ["tokenizer.joint=false", "model.tied=decoder"] if len(sides) > 1 else []
        return load_config("tiny.yaml", [f"tokenizer.model={given}", *apart])

    config = settings("here")
    results = Results.model_validate({"settings": settings_of(config), "runs": [run(1, 2.0)]})
    assert "here" not in json.dumps(results.settings)
    assert results.changed(settings("there")) == []
    without = config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"model": None})})
    assert results.changed(without) == ["tokenizer.model: a given model then, None now"]
    names = ["tokenizer.model"] if len(sides) == 1 else ["tokenizer.model.source", "tokenizer.model.target"]
    others = {name: value for name, value in results.settings.items() if name != "tokenizer.model"}
    before = Results(settings=others | dict.fromkeys(names, "/elsewhere"), runs=results.runs)
    assert before.changed(config) == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda run: run["scores"].clear(), "runs/one has no scores: it was not evaluated yet\n  hint: tx evaluate -m"),
        (lambda run: run.pop("scores"), "runs/one has no scores: it was not evaluated yet\n  hint: tx evaluate -m"),
        (lambda run: run.update(finished=None), "runs/one is not finished\n  hint: the same `tx train` finishes it"),
        (
            lambda run: run["scores"]["test"].pop("sha256"),
            "run.json is damaged: scores.test.sha256 is missing or wrong\n  hint: tx evaluate -m runs/one",
        ),
        (lambda run: run.update(average=[]), "runs/one began as a mean of checkpoints: training it anew does not"),
        (lambda run: run.update(imported={}), "runs/one began as another toolkit's model: training it anew does not"),
        (
            lambda run: run["scores"]["test"]["decoding"].update(beam_size=9),
            "not scored as the run says: decoding.beam",
        ),
        (lambda run: run["scores"]["test"]["evaluation"].update(lowercase=True), "the run says: evaluation.lowercase"),
        (lambda run: run["scores"]["test"]["decoding"].update(mbr={"samples": 9, "metric": "chrf"}), "decoding.mbr"),
        (lambda run: run["scores"]["test"]["evaluation"].update(tokenize="intl"), "the run says: tokenize"),
        (lambda run: run["scores"]["test"].update(checkpoint="step-00000001"), "says: checkpoint (step-00000001)"),
    ],
)
def test_results_are_of_finished_runs_that_were_scored_as_they_say(
    scored: Path, spoil: Any, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = scored / "run.json"
    record = json.loads(path.read_text())
    spoil(record)
    path.write_text(json.dumps(record))
    assert tx("reproduce", str(scored), "-o", "r.json") == 4
    assert says in capfd.readouterr().err
    assert not Path("r.json").exists()


def test_how_a_score_was_computed_may_differ_where_it_changes_nothing(scored: Path) -> None:
    path = scored / "run.json"
    record = json.loads(path.read_text())
    record["scores"]["test"]["decoding"] |= {"engine": "native", "workers": 2, "batch_size": 3}
    path.write_text(json.dumps(record))
    assert tx("reproduce", str(scored), "-o", "r.json") == 0
    assert "command" not in json.loads(Path("r.json").read_text())["runs"][0]  # what was typed names one's own folders


def test_results_replace_no_file_of_a_run_and_no_configuration(scored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (scored / "run.json").read_bytes()
    assert tx("reproduce", str(scored), "-o", str(scored / "run.json")) == 2
    assert (scored / "run.json").read_bytes() == before
    Path("mine.yaml").write_text("extends: tiny.yaml")
    assert tx("reproduce", str(scored), "-o", "mine.yaml") == 2
    assert "ends in .json" in capfd.readouterr().err
    assert Path("mine.yaml").read_text() == "extends: tiny.yaml"


def test_a_run_does_not_try_itself(scored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    [checkpoint, *_] = sorted(Path(scored, "checkpoints").iterdir())
    for named in (scored, checkpoint):
        assert tx("reproduce", str(named), "--run-dir", "./runs/../runs/one") == 2
        assert "would be its own second run" in capfd.readouterr().err
    assert tx("reproduce", str(scored), "--run-dir", "runs/two", "--set", "training.max_steps=1") == 2
    assert "hint: say what was said then, in the configuration or by --set\n" in capfd.readouterr().err


def test_several_runs_differ_in_their_seed_alone(scored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(scored, "runs/two")
    assert tx("reproduce", "runs/one", "runs/two", "-o", "r.json") == 2
    assert "the same seed: 1, 1" in capfd.readouterr().err
    config = Path("runs/two/config.yaml")
    config.write_text(dump_config(load_config(config, ["model.dropout=0.5"])))
    assert tx("reproduce", "runs/one", "runs/two", "-o", "r.json") == 2
    assert "they differ in model.dropout" in capfd.readouterr().err


def test_as_many_processes_train_again_as_did_then(scored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One learned from half as much text in an update as two did, and its score was held beside theirs."""
    shutil.copytree(scored, "runs/two")
    record = json.loads(Path("runs/two/run.json").read_text())
    assert record["processes"] == 1
    Path("runs/two/run.json").write_text(json.dumps(record | {"seed": 2, "processes": 2}))
    assert tx("reproduce", "runs/one", "runs/two", "-o", "r.json") == 2
    assert "they differ in the number of their processes" in capfd.readouterr().err
    assert tx("reproduce", "runs/two", "--run-dir", "runs/again") == 2
    said = capfd.readouterr().err
    assert "the results are of training by 2 processes, not by 1" in said
    assert "tx train --processes 2 -c runs/two" in said
    assert not Path("runs/again").exists()


@pytest.mark.parametrize(("theirs", "code"), [("a" * 64, 2), (None, 0)])
def test_runs_of_two_tokenizers_that_were_given_are_no_seeds_of_one(
    theirs: str | None, code: int, scored: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where both say which: older runs do not."""
    config = scored / "config.yaml"
    config.write_text(dump_config(load_config(config, ["tokenizer.model=/nowhere/spm.model"])))
    shutil.copytree(scored, "runs/two")
    record = json.loads(Path("runs/two/run.json").read_text()) | {"seed": 2, "tokenizer": theirs}
    Path("runs/two/run.json").write_text(json.dumps(record))
    for names in (("runs/one", "runs/two"), ("runs/two", "runs/one")):
        assert tx("reproduce", *names, "-o", "r.json") == code
        assert ("differ in the tokenizer that is given" in capfd.readouterr().err) is bool(code)


def run(seed: int, value: float, signature: str = "tok:13a|version:2.6.0") -> dict[str, Any]:
    """The record of a run with one score."""
    score = {"name": "BLEU", "value": value, "signature": signature, "margin": 0.5}
    test = {"scores": [score], "sha256": "", "checkpoint": "", "decoding": {}, "evaluation": {}}
    facts = {
        "data": {"train": {"sha256": "", "pairs": 1}},
        "parameters": 1,
        "steps": 1,
        "versions": {},
        "machine": {},
        "elapsed_s": 1.0,
        "finished": "max_steps",
    }
    return {"seed": seed, "scores": {"test": test}, **facts}


def test_several_runs_say_how_far_one_more_may_be() -> None:
    def claims(*runs: dict[str, Any]) -> Results:
        return Results.model_validate({"settings": {}, "runs": list(runs)})

    [claim] = claims(run(1, 40.0), run(2, 41.0), run(3, 42.0)).claims()
    assert (claim.value, claim.n) == (41.0, 3)
    assert claim.tolerance == pytest.approx(3 * (1 + 1 / 3) ** 0.5)  # their standard deviation is 1
    one = claims(run(1, 40.0))
    [alone] = one.claims()
    assert (alone.value, alone.tolerance) == (40.0, 0.5)

    def holds(value: float, signature: str) -> bool:
        return verdicts(one, KeptRun.model_validate(run(2, value, signature)))[0].holds

    assert holds(40.4, "tok:13a|version:2.7.0")
    assert not holds(40.6, "tok:13a|version:2.6.0")
    assert not holds(40.0, "tok:intl|version:2.6.0")


@pytest.mark.parametrize(
    "spoil",
    [
        *(lambda one, key=key: one.pop(key) for key in ("data", "versions", "machine", "seed", "elapsed_s", "scores")),
        *(lambda one, key=key: one["scores"]["test"]["scores"][0].pop(key) for key in ("name", "margin", "signature")),
        lambda one: one["scores"]["test"]["scores"][0].update(value="40"),
        lambda one: one["scores"]["test"]["scores"].clear(),
        lambda one: one["scores"].clear(),
        lambda one: one["scores"].update(other=one["scores"]["test"]),
        lambda one: one["scores"]["test"]["scores"][0].update(name="TER"),
        lambda one: one.update(versions=[]),
    ],
)
def test_results_that_lack_something_are_damaged_and_say_so(spoil: Any) -> None:
    runs = [run(1, 40.0), run(2, 41.0)]
    Path("r.json").write_text(json.dumps({"settings": {}, "runs": runs}))
    assert len(read(Path("r.json")).runs) == 2
    spoil(runs[1])
    Path("r.json").write_text(json.dumps({"settings": {}, "runs": runs}))
    with pytest.raises(ModelError, match=r"r\.json does not hold results of runs: "):
        read(Path("r.json"))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"settings": {}, "runs": []}', '{"settings": {}, "runs": [1]}'])
def test_a_file_that_holds_no_results_is_named(scored: Path, content: str, capfd: pytest.CaptureFixture[str]) -> None:
    with_results(scored, capfd).write_text(content)
    assert tx("reproduce", "mine.yaml") == 4
    assert "mine.results.json" in capfd.readouterr().err
    assert tx("reproduce", "tiny.yaml") == 4
    assert "tiny.results.json is not there" in capfd.readouterr().err


def test_a_run_that_begins_with_other_weights_than_then_is_told_so(
    scored: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = with_results(scored, capfd)
    shutil.copytree(scored, "runs/again")
    record = json.loads(Path("runs/again/run.json").read_text())
    for then, now, said in (("a", "b", True), ("a", "a", False), (None, "b", False)):
        found = json.loads(path.read_text())
        found["runs"][0]["init_from"] = {"checkpoint": "runs/x", "sha256": then}
        path.write_text(json.dumps(found))
        begun = {"checkpoint": "runs/x", "sha256": now, "tokenizer": "t"}
        Path("runs/again/run.json").write_text(json.dumps(record | {"init_from": begun}))
        assert tx("reproduce", "mine.yaml", "--run-dir", "runs/again") == 0
        assert ("runs/x, which it begins with, has other weights than then" in capfd.readouterr().err) == said


@pytest.mark.parametrize("results", sorted(PRESETS.glob("*.results.json")), ids=lambda path: path.name)
def test_published_results_are_still_those_of_their_presets(results: Path) -> None:
    """They are for others to try: a default that is another one now would refuse that."""
    config = load_config(results.name.removesuffix(SUFFIX), to_train=True)
    assert read(results).changed(config) == []


def test_a_tokenizer_that_is_given_may_lie_elsewhere_and_is_no_other(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its path was compared: nobody else could try the result, or go on with the run."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    monkeypatch.chdir(mine)
    shutil.copy(trained_run / "tokenizer/spm.model", "some.model")
    tree = load_config(trained_run / "config.yaml").model_dump()
    tree |= {"name": "x", "tokenizer": {"model": "some.model"}}
    tree["training"] |= {"max_steps": 4, "validate_every": 2}
    Path("x.yaml").write_text(dump_config(RunConfig.model_validate(tree)))
    assert [tx(*words) for words in (("train", "-c", "x.yaml"), ("evaluate", "-m", "runs/x"))] == [0, 0]
    assert tx("reproduce", "runs/x", "-o", "x.results.json") == 0
    assert str(mine) not in Path("x.results.json").read_text()
    shutil.copytree(mine, theirs)
    Path("some.model").rename("gone")
    monkeypatch.chdir(theirs)
    capfd.readouterr()
    assert tx("reproduce", "x.yaml") == 0, capfd.readouterr().err
    assert tx("train", "-c", "x.yaml", "--set", "training.max_steps=6") == 0, capfd.readouterr().err
    text = [line for pair in PAIRS for line in pair]
    train_tokenizer(TokenizerConfig(vocab_size=60), text, text, seed=1)[0].save("other")
    others = ("--set", "tokenizer.model=other/spm.model")
    assert tx("reproduce", "x.yaml", "--run-dir", "runs/y", *others) == 3
    assert "other/spm.model is not the tokenizer of the results" in capfd.readouterr().err
    assert tx("train", "-c", "x.yaml", "--set", "training.max_steps=8", *others) == 2
    assert "tokenizer.model:" in capfd.readouterr().err
