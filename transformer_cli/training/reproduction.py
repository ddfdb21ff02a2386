"""What runs of a configuration came to, kept beside it: a claim that others can try."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from transformer_cli import files
from transformer_cli.checkpoints.find import find_checkpoint, find_run, list_checkpoints, step_of
from transformer_cli.checkpoints.record import UNTRAINED, read_config, read_record
from transformer_cli.config.dotted import flat, is_among, settled
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.names import typed
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import DataError, ModelError, UsageError
from transformer_cli.files import shown
from transformer_cli.tokenizer import read_tokenizer

SUFFIX = ".results.json"
"""Of the file that lies beside `NAME.yaml`."""
FREE = {
    *("name", "seed", "device", "threads"),
    *("data.train", "data.valid", "data.test", "training.init_from", "tokenizer.model"),
    *("training.log_every", "training.tensorboard", "training.keep_best", "training.keep_last", "training.max_hours"),
    *("decoding.engine", "decoding.workers", "decoding.batch_size", "decoding.budget_tokens"),
    *("evaluation.comet", "evaluation.tokenize"),
    *("serving", "accounting"),
}
"""Settings that say where, with what, by which draws and what is kept, not what comes of it: any may be another one.
Signatures say which model COMET is, and which tokenizer BLEU has."""
USED = ("data.train", "training.init_from")
"""Of these what is kept is how they are used, not where they lie: of several texts how often each is seen, and that a
run begins with another, whose weights it records; beside them, that a tokenizer is given, which it records, too."""
BEGUN, GIVEN = "another run", "a given model"


class Kept(BaseModel):
    """Of a JSON file; what else there is, such as the command that was typed, is nobody else's business."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class KeptText(Kept):
    """A text that was learned from."""

    pairs: int
    sha256: str


class KeptScore(Kept):
    """See evaluation.metrics.Score."""

    name: str
    value: float
    signature: str
    margin: float | None

    @property
    def metric(self) -> tuple[str, str]:
        """What it is: comparable whatever sacreBLEU's version, for these have kept their numbers."""
        return self.name, re.sub(r"\|version:[^|]*", "", self.signature)


class KeptTest(Kept):
    """A test set that was scored, and how."""

    sha256: str
    checkpoint: str
    decoding: dict[str, Any]
    evaluation: dict[str, Any]
    scores: list[KeptScore] = Field(min_length=1)


class KeptParent(Kept):
    """What a run began with. sha256: of its weights; None where a run did not record that yet."""

    checkpoint: str
    sha256: str | None = None


class KeptRun(Kept):
    """What of a run.json is read again."""

    seed: int
    processes: int = 1
    tokenizer: str | None = None
    data: dict[str, KeptText]
    versions: dict[str, str]
    machine: dict[str, Any]
    parameters: int
    steps: int
    elapsed_s: float
    finished: str
    scores: dict[str, KeptTest] = Field(min_length=1)
    init_from: KeptParent | None = None

    @property
    def texts(self) -> dict[str, str]:
        """The sha256 of each, by name."""
        learned = {name: text.sha256 for name, text in self.data.items()}
        return learned | {f"test set {name}": found.sha256 for name, found in self.scores.items()}

    @property
    def metrics(self) -> dict[str, list[tuple[str, str]]]:
        return {test: [score.metric for score in found.scores] for test, found in self.scores.items()}

    @property
    def values(self) -> list[float]:
        """Of all scores, in order."""
        return [score.value for found in self.scores.values() for score in found.scores]


class Results(BaseModel):
    """settings: all of them, by dotted name, but those that are free. runs: what each recorded, see run.json."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    settings: dict[str, Any]
    runs: list[KeptRun] = Field(min_length=1)

    def changed(self, config: RunConfig) -> list[str]:
        """The settings that are now others, in words; one that there was not yet then had what is its default now."""
        settings = _respelled(self.settings)
        kept, now = _bound(settings) | _used(settings), settings_of(config)
        then = {**settings_of(RunConfig()), **kept}
        keys = [key for key in dict.fromkeys([*kept, *now]) if then.get(key) != now.get(key)]
        return [f"{key}: {then.get(key)} then, {now.get(key)} now" for key in keys]

    def check_text(self, texts: Mapping[str, str]) -> None:
        """DataError where a text, by its sha256, is another one than those runs had. Tests are called as they are."""
        then = self.runs[0].texts
        wrong = [name for name, digest in then.items() if texts.get(name) != digest]
        if wrong:
            setting = f"data.{wrong[0]}" if wrong[0] in ("train", "valid") else "data.test"
            raise DataError(
                f"{', '.join(wrong)} {'are' if len(wrong) > 1 else 'is'} not the text of the results, by sha256:\n"
                + "\n".join(f"  {name}: {then[name][:16]} then, {texts.get(name, 'none')[:16]} now" for name in wrong),
                hint=f"get the same text, line for line; --set {setting}=PREFIX says where it lies",
            )

    def check_tokenizer(self, config: RunConfig) -> None:
        """DataError where a model that is given (tokenizer.model) is another one than those runs had."""
        then = self.runs[0].tokenizer
        if not config.tokenizer.given or then is None or config.training.init_from is not None:
            return
        if read_tokenizer(*config.tokenizer.given, tags=config.data.tagged).fingerprint != then:
            raise DataError(
                f"{', '.join(map(shown, config.tokenizer.given))} is not the tokenizer of the results",
                hint="get the same file; --set tokenizer.model=FILE says where it lies",
            )

    def claims(self) -> list[Claim]:
        """Each score of each test set: the mean of the runs, and how far another one may be from it."""
        return [
            _claim(test, [run.scores[test].scores[place] for run in self.runs])
            for test, found in self.runs[0].scores.items()
            for place in range(len(found.scores))
        ]


@dataclass(frozen=True)
class Claim:
    """A score that others are to find. value: the mean of n runs. tolerance: how far from it one more run may be."""

    test: str
    name: str
    signature: str
    value: float
    tolerance: float
    n: int


@dataclass(frozen=True)
class Verdict:
    """A claim, and what was found; None where this score is not there, or is another metric's."""

    claim: Claim
    found: float | None

    @property
    def holds(self) -> bool:
        return self.found is not None and abs(self.found - self.claim.value) <= self.claim.tolerance

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.claim), "found": self.found, "holds": self.holds}


def verdicts(results: Results, run: KeptRun) -> list[Verdict]:
    """Of each claim."""
    there = {(test, *score.metric): score.value for test, found in run.scores.items() for score in found.scores}
    metrics = [(test, *metric) for test, of_test in results.runs[0].metrics.items() for metric in of_test]
    return [Verdict(claim, there.get(metric)) for claim, metric in zip(results.claims(), metrics, strict=True)]


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All that a result depends on, by dotted name."""
    used: dict[str, Any] = {"training.init_from": config.training.init_from}
    used |= {"tokenizer.model": GIVEN} if config.tokenizer.given else {}
    if isinstance(config.data.train, list):
        without = {"text", "name"}
        used["data.train"] = [
            one.model_dump(mode="json", exclude=without, exclude_defaults=True) for one in config.data.train
        ]
    return _bound(settled(config)) | _used(used)


def _used(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What of them says how something is used; results have had the place of the run that theirs began with."""
    used = {key: settings[key] for key in USED if key in settings}
    # Results have had its place, or those of both sides.
    is_given = any(is_among(key, {"tokenizer.model"}) and value is not None for key, value in settings.items())
    used |= {"tokenizer.model": GIVEN} if is_given else {}
    return used | ({"training.init_from": BEGUN} if used.get("training.init_from") is not None else {})


def _respelled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of results, which have had the model's as these were written."""
    model: dict[str, Any] = {}
    others = dict(settings)
    for key in (key for key in settings if key.startswith("model.")):
        _, name, *part = key.split(".", 2)
        there = model.get(name)
        sides = there if isinstance(there, dict) else {}
        model[name] = {**sides, part[0]: others.pop(key)} if part else others.pop(key)
    try:
        now = ModelConfig.model_validate(model).settled.model_dump(mode="json")
    except ValidationError:  # of another version: they are compared as they are
        return dict(settings)
    return others | {f"model.{key}": value for key, value in now.items()}


def _bound(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is not free of it."""
    return {key: value for key, value in settings.items() if not is_among(key, FREE)}


def collect(names: Sequence[str]) -> Results:
    """Of finished runs that `tx evaluate` has scored as their configurations say, of one configuration and one text.
    UsageError where they are of several, or of the same seed; ModelError where there is no such score.
    """
    opened = [_scored(name) for name in names]
    (first, run), *others = opened
    for name, (its, other) in zip(names[1:], others, strict=True):
        differences = [key for key in {**first, **its} if first.get(key) != its.get(key)]
        if "tokenizer.model" in first and None not in (tokenizers := {run.tokenizer, other.tokenizer}):
            differences += ["the tokenizer that is given"] * (len(tokenizers) > 1)
        differences += ["the number of their processes"] * (other.processes != run.processes)
        differences += ["their texts"] * (other.texts != run.texts)
        differences += ["their metrics"] * (other.metrics != run.metrics)
        if differences:
            raise UsageError(f"{name} is not {names[0]} with another seed: they differ in {', '.join(differences)}")
    seeds = [run.seed for _, run in opened]
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"two runs have the same seed: {', '.join(map(str, seeds))}", hint="other seeds: --set seed=2")
    return Results(settings=first, runs=[run for _, run in opened])


def scored(run_dir: Path) -> KeptRun:
    """What a run recorded; ModelError where training did not come to it, or `tx evaluate` has not scored it."""
    record = read_record(run_dir)
    for kind, what in UNTRAINED.items():
        if kind in record:
            raise ModelError(
                f"{shown(run_dir)} began as {what}: training it anew does not come to its scores",
                hint="name a run that `tx train` made",
            )
    evaluate, config = f"tx evaluate -m {typed(run_dir)}", read_config(run_dir)
    now = flat(config.model_dump(mode="json")) | {"processes": record.get("processes")}
    places = record.get("changed", {}).items()
    moved = [
        f"{key} was {value} until update {step}, and is {now.get(key)}"
        for step, then in places
        for key, value in then.items()
        if value != now.get(key)
    ]
    if moved:
        raise ModelError(
            f"{shown(run_dir)} went on otherwise than it began: {'; '.join(moved)}. Training it anew does not come to "
            "its scores",
            hint=f"train it in one go: tx train -c {typed(run_dir / 'config.yaml')} --run-dir NEW",
        )
    if not config.data.tests:
        evaluate = f"it has no test set: name one where it is trained (data.test); {evaluate}"
    if not record.get("finished"):
        raise ModelError(f"{shown(run_dir)} is not finished", hint=f"the same `tx train` finishes it, then {evaluate}")
    if not record.get("scores"):
        raise ModelError(f"{shown(run_dir)} has no scores: it was not evaluated yet", hint=f"{evaluate}, then this")
    try:
        return KeptRun.model_validate(record)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        hint = f"{evaluate} writes all scores anew; what else is there, restore from a copy"
        raise ModelError(f"{shown(run_dir / 'run.json')} is damaged: {place} is missing or wrong", hint=hint) from None


def _scored(name: str) -> tuple[dict[str, Any], KeptRun]:
    """The settings of a run, and what it recorded."""
    run_dir = find_run(name)
    run, config, checkpoint = scored(run_dir), read_config(run_dir), find_checkpoint(str(run_dir)).name
    step = step_of(checkpoint)
    if step != step_of(list_checkpoints(run_dir)[-1].name) and (step or 0) % config.training.validate_every:
        raise ModelError(
            f"the best checkpoint of {shown(run_dir)} is of update {step:,}, where training ended for a while: "
            "training it anew has no validation there",
            hint=f"train it in one go: tx train -c {typed(run_dir / 'config.yaml')} --run-dir NEW",
        )
    means = _bound(flat({"decoding": config.decoding.model_dump(), "evaluation": config.evaluation.model_dump()}))
    evaluation = flat(config.evaluation.model_dump())
    named = {key: evaluation[key] for key in ("tokenize", "comet.model") if key in evaluation}  # by signatures
    for test, found in run.scores.items():
        did = _bound(flat({"decoding": found.decoding, "evaluation": found.evaluation}))
        differences = [key for key in {**means, **did} if did.get(key) != means.get(key)]
        differences += [key for key, own in named.items() if flat(found.evaluation).get(key, own) != own]
        differences += [f"checkpoint ({found.checkpoint})"] * (found.checkpoint != checkpoint)
        if differences:
            raise ModelError(
                f"{test} of {shown(run_dir)} was not scored as the run says: {', '.join(differences)}",
                hint=f"tx evaluate -m {typed(run_dir)}",
            )
    return settings_of(config), run


def write(results: Results, path: Path) -> None:
    files.write_json(path, results.model_dump(mode="json"))


def read(path: Path) -> Results:
    """ModelError where it is not what `write` wrote."""
    try:
        results = Results.model_validate(files.read_json(path, error=ModelError))
    except ValidationError as error:
        first = error.errors()[0]
        raise _no_results(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if any((run.texts, run.metrics) != (results.runs[0].texts, results.runs[0].metrics) for run in results.runs):
        raise _no_results(path, "its runs have other texts or metrics than one another")
    return results


def _no_results(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{shown(path)} does not hold results of runs: {why}",
        hint="`tx reproduce RUN ... -o FILE` writes such a file",
    )


def _claim(test: str, every: Sequence[KeptScore]) -> Claim:
    """One run says how far chance moves its score by other sentences (the bootstrap's 95 % margin); several, how far
    their seeds do: three standard deviations of a difference between one more run and their mean, if that is more."""
    values = [one.value for one in every]
    spread = 3 * statistics.stdev(values) * math.sqrt(1 + 1 / len(values)) if len(values) > 1 else 0.0
    tolerance = max(spread, every[0].margin or 0.0)
    return Claim(test, every[0].name, every[0].signature, statistics.fmean(values), tolerance, len(values))
