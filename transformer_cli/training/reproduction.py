"""What runs of a configuration came to, kept beside it: a claim that others can try."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformer_cli import files
from transformer_cli.checkpoints.find import find_run
from transformer_cli.checkpoints.record import is_record, read_config, read_record
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import DataError, ModelError, UsageError
from transformer_cli.files import shown
from transformer_cli.training.directory import flat

SUFFIX = ".results.json"
"""Of the file that lies beside `NAME.yaml`."""
FREE = {"name", "seed", "device", "threads", "data.train", "data.valid", "data.test", "decoding.engine"} | {
    "evaluation.comet.python",
    "training.log_every",
    "training.tensorboard",
    "training.keep_best",
    "training.keep_last",
    "training.max_hours",
}
"""Settings that say where, with what, by which draws and what is kept, not what comes of it: any may be another one."""
KEPT = ("seed", "data", "versions", "machine", "tokenizer", "parameters", "steps", "elapsed_s", "finished", "scores")


@dataclass(frozen=True)
class Results:
    """settings: all of them, by dotted name, but those that are free. runs: what each recorded, see run.json."""

    settings: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]]

    def changed(self, config: RunConfig) -> list[str]:
        """The settings that are now others, in words; one that there was not yet then had what is its default now."""
        then, now = {**settings_of(RunConfig()), **self.settings}, settings_of(config)
        keys = [key for key in dict.fromkeys([*self.settings, *now]) if then.get(key) != now.get(key)]
        return [f"{key}: {then.get(key)} then, {now.get(key)} now" for key in keys]

    def check_text(self, texts: Mapping[str, str]) -> None:
        """DataError where a text, by its sha256, is another one than those runs had. Tests are called as they are."""
        [then, *_] = [_texts_of(run) for run in self.runs]
        wrong = [name for name, digest in then.items() if texts.get(name) != digest]
        if wrong:
            raise DataError(
                f"{', '.join(wrong)} {'are' if len(wrong) > 1 else 'is'} not the text of the results, by sha256:\n"
                + "\n".join(f"  {name}: {then[name][:16]} then, {texts.get(name, 'none')[:16]} now" for name in wrong),
                hint="get the same text, line for line; --set data.train=PREFIX says where it lies",
            )

    def claims(self) -> list[Claim]:
        """Each score of each test set: the mean of the runs, and how far another one may be from it."""
        return [
            _claim(test, score, [run["scores"][test]["scores"][place] for run in self.runs])
            for test, found in self.runs[0]["scores"].items()
            for place, score in enumerate(found["scores"])
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
    """A claim, and what was found. same_metric: whether signatures agree, but for sacreBLEU's version."""

    claim: Claim
    found: float
    same_metric: bool

    @property
    def holds(self) -> bool:
        return self.same_metric and abs(self.found - self.claim.value) <= self.claim.tolerance

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.claim), "found": self.found, "same_metric": self.same_metric, "holds": self.holds}


def verdicts(claims: Sequence[Claim], scores: Mapping[str, Any]) -> list[Verdict]:
    """Of each claim; scores: of a run, as its run.json has them. ModelError where a score is not there."""
    made = []
    for claim in claims:
        there = {one["name"]: one for one in scores.get(claim.test, {}).get("scores", ())}
        if claim.name not in there:
            raise ModelError(f"the results have {claim.name} of {claim.test}, this run has not")
        found = there[claim.name]
        same = _unversioned(found["signature"]) == _unversioned(claim.signature)
        made.append(Verdict(claim, found["value"], same))
    return made


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All that a result depends on, by dotted name."""
    every = flat(config.model_dump(mode="json", exclude={"accounting", "serving"}))
    kept = {key: value for key, value in every.items() if not any(key == o or key.startswith(f"{o}.") for o in FREE)}
    if isinstance(config.data.train, list):
        kept["data.train"] = [one.model_dump(mode="json", exclude={"text", "name"}) for one in config.data.train]
    return kept


def collect(names: Sequence[str]) -> Results:
    """Of finished runs that `tx evaluate` has scored, of one configuration and one text. UsageError where they are of
    several, or of the same seed; ModelError where one is not finished or has no scores.
    """
    kept, settings = [], []
    for name in names:
        run_dir = find_run(name)
        record = read_record(run_dir)
        if record.get("finished") is None:
            raise ModelError(f"{shown(run_dir)} is not finished", hint="the same `tx train` goes on with it")
        if not record.get("scores"):
            raise ModelError(f"{shown(run_dir)} has no scores", hint=f"tx evaluate -m {shown(run_dir)}")
        config = read_config(run_dir)
        if any(found.get("decoding") != config.decoding.model_dump() for found in record["scores"].values()):
            raise ModelError(
                f"{shown(run_dir)} was scored by another search than its configuration says",
                hint=f"tx evaluate -m {shown(run_dir)}",
            )
        kept.append({key: record[key] for key in KEPT if key in record})
        settings.append(settings_of(config))
    for name, run, its in zip(names[1:], kept[1:], settings[1:], strict=True):
        differences = [key for key in {**settings[0], **its} if settings[0].get(key) != its.get(key)]
        if differences or _texts_of(run) != _texts_of(kept[0]):
            what = ", ".join(differences) or "their texts"
            raise UsageError(f"{name} is not {names[0]} with another seed: they differ in {what}")
    seeds = [run["seed"] for run in kept]
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"two runs have the same seed: {', '.join(map(str, seeds))}", hint="other seeds: --set seed=2")
    return Results(settings[0], kept)


def write(results: Results, path: Path) -> None:
    files.write_json(path, asdict(results))


def read(path: Path) -> Results:
    """ModelError where it is not what `write` wrote."""
    found = files.read_json(path, error=ModelError)
    is_ours = isinstance(found, dict) and found.keys() == {"settings", "runs"} and isinstance(found["settings"], dict)
    if (
        not is_ours
        or not isinstance(found["runs"], list)
        or not found["runs"]
        or not all(map(_is_whole, found["runs"]))
    ):
        raise ModelError(
            f"{shown(path)} does not hold results of runs", hint="`tx reproduce RUN ... -o FILE` writes such a file"
        )
    return Results(**found)


def _is_whole(run: Any) -> bool:
    return is_record(run) and all(
        isinstance(found, dict) and {"scores", "sha256"} <= found.keys()
        for found in run.get("scores", {"": 0}).values()
    )


def _texts_of(run: Mapping[str, Any]) -> dict[str, str]:
    learned = {name: text["sha256"] for name, text in run["data"].items()}
    return learned | {f"test set {name}": found["sha256"] for name, found in run["scores"].items()}


def _claim(test: str, first: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> Claim:
    """One run says how far chance moves its score by other sentences (the bootstrap's 95 % margin); several, how far
    their seeds do: three standard deviations of a difference between one more run and their mean, if that is more."""
    values = [one["value"] for one in every]
    spread = 3 * statistics.stdev(values) * math.sqrt(1 + 1 / len(values)) if len(values) > 1 else 0.0
    tolerance = max(spread, first["margin"] or 0.0)
    return Claim(test, first["name"], first["signature"], statistics.fmean(values), tolerance, len(values))


def _unversioned(signature: str) -> str:
    """sacreBLEU's, whose numbers its versions have kept."""
    return re.sub(r"\|version:[^|]*", "", signature)
