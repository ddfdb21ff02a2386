"""Another toolkit's model becomes a run: its weights are the checkpoint of step 0, before any training by tx."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transformer_cli import files
from transformer_cli.checkpoints import store
from transformer_cli.checkpoints.record import versions
from transformer_cli.checkpoints.tensors import portion
from transformer_cli.config.complaints import complaints
from transformer_cli.config.dotted import is_among, settled
from transformer_cli.config.run import RunConfig, contradictions
from transformer_cli.config.section import as_name
from transformer_cli.config.source import dump_config, load_config, load_with_places
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.export import from_fairseq, from_hugging_face
from transformer_cli.export.original import COPY, refuse

FREE = {"tokenizer.sampling", *(f"model.{name}" for name in ("dropout", "attention_dropout", "activation_dropout"))}
"""What may be set anew: only training would heed it."""
MADE = {"model", "tokenizer", "data.source_eos", "data.tags"}
"""What a model was made with, and computes by."""
IMPORTED = "imported"
"""Why the training of such a run has ended: it was somebody else's."""


@dataclass(frozen=True)
class Imported:
    """What was made. left: settings of the original that tx has not, with their values."""

    run_dir: Path
    kind: str
    source: str
    target: str
    parameters: int
    left: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"run_dir": str(self.run_dir)}


def import_model(place: str | Path, run_dir: str | Path, overrides: Sequence[str] = ()) -> Imported:
    """Make a new run out of a directory, or a fairseq checkpoint. overrides: settings of the run, `key=value`.

    Raises UsageError with every reason why tx cannot hold the model, and where something is at `run_dir` already;
    ModelError for what is missing or damaged. Nothing is left behind then.
    """
    place, run_dir = Path(place), Path(run_dir)
    store.check_vacant(run_dir, option="--run-dir")
    asked = _languages(overrides)
    found = (from_fairseq if from_fairseq.is_fairseq(place) else from_hugging_face).read(place, asked)
    for side in ("source", "target"):
        if side not in found.settings["data"].keys() | asked.keys():
            raise UsageError(
                f"{files.shown(place)} does not say what its languages are",
                hint="add --set data.source=... --set data.target=..., such as de and en",
            )
    try:
        settings = RunConfig.model_validate({"name": as_name(run_dir.absolute().name), **found.settings})
    except ValidationError as failure:
        raise ModelError(
            f"{files.shown(place)} has settings that no run has: {complaints(failure)}", hint=COPY
        ) from None
    refuse(place, [one.message for one in contradictions(settings)], hint="tx has no such model")
    with files.atomic_directory(run_dir) as aside:
        files.write_text(aside / "config.yaml", dump_config(settings))
        config = load_config(aside / "config.yaml", overrides)
        _check_same_model(place, settings, config)
        files.write_text(aside / "config.yaml", dump_config(config))
        found.tokenizer.save(aside / "tokenizer")
        fingerprint = found.tokenizer.fingerprint
        checkpoint = store.save_checkpoint(
            aside,
            step=0,
            model=portion(found.tensors),
            optimizer=portion({}),
            state={"step": 0, "finished": IMPORTED},
            config=config,
            tokenizer=fingerprint,
        )
        store.point(aside, "best", 0)
        opened = store.open_run(checkpoint)  # whether the weights are those of the model
        parameters = sum(parameter.numel() for parameter in opened.model.parameters())
        record = {
            "versions": versions(),
            "imported": {"from": str(place.absolute()), "kind": found.kind},
            "tokenizer": fingerprint,
            "parameters": parameters,
            "steps": 0,
            "finished": IMPORTED,
        }
        files.write_json(aside / "run.json", record)
    return Imported(run_dir, found.kind, config.data.source, config.data.target, parameters, found.left)


def _languages(overrides: Sequence[str]) -> dict[str, str]:
    """The `source` and the `target` that are asked for."""
    names = {"data", *(f"data.{side}" for side in ("source", "target"))}
    of_these = [override for override in overrides if override.partition("=")[0].strip() in names]
    config, tree = load_with_places("base", ["data.train=null", *of_these])
    said = tree.child("data") or tree
    return {side: getattr(config.data, side) for side in ("source", "target") if said.child(side)}


def _check_same_model(place: Path, found: RunConfig, config: RunConfig) -> None:
    """UsageError where settings would make another model of the same weights."""
    before, after = settled(found), settled(config)
    changed = [key for key in before | after if is_among(key, MADE) and not is_among(key, FREE)]
    changed = [f"{key}: {before.get(key)}" for key in changed if before.get(key) != after.get(key)]
    if changed:
        raise UsageError(
            f"--set would make another model of the weights in {files.shown(place)}, which has {', '.join(changed)}",
            hint="leave that as it is; how it translates, is evaluated and is trained further can be set",
        )
