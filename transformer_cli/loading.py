"""A run on disk becomes something that translates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformer_cli.checkpoints.store import OpenedRun, find_checkpoint, open_run
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import load_config
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UsageError
from transformer_cli.machine import decide

FREE = {"decoding", "evaluation", "device", "precision", "threads"}
"""What may be set anew for a model that is trained; data.test too."""


def load(run: str | Path | None = None, *, device: str | None = None, precision: str | None = None) -> Translator:
    """The translator of a run, of a checkpoint directory, or of the latest run; it does what `tx translate` does.

    device: cpu, cuda, mps, or auto. precision: fp32, bf16, or auto. The run's own configuration where not given.
    Raises ModelError where there is no such run, or where it is damaged.
    """
    opened = open_run(find_checkpoint(None if run is None else str(run)))
    given = {"device": device, "precision": precision}
    changes = {name: value for name, value in given.items() if value is not None}
    return translator_of(opened, opened.config.model_copy(update=changes))


def translator_of(opened: OpenedRun, settings: RunConfig) -> Translator:
    """The translator of an opened run, under these settings.

    In bf16 the last digits of a sentence's scores may depend on its neighbours in the batch; `precision: fp32` is there
    for whoever needs them.
    """
    machine = decide(settings).use()
    opened.model.compute_in(machine.dtype, training=False)
    opened.model.use_attention(fused=machine.fused_attention)
    return Translator(
        opened.model,
        opened.tokenizer,
        settings.decoding,
        source_eos=opened.config.data.source_eos,
        device=machine.device,
    )


def settings_of(opened: OpenedRun, overrides: Sequence[str]) -> RunConfig:
    """The run's configuration with overrides on top; UsageError for those that only training could heed."""
    settings = load_config(opened.path / "config.yaml", overrides)
    comparable = settings.model_copy(
        update={"data": settings.data.model_copy(update={"test": opened.config.data.test})}
    )
    for section in RunConfig.model_fields.keys() - FREE:
        if getattr(comparable, section) != getattr(opened.config, section):
            raise UsageError(
                f"{section}: this model is trained; only {', '.join(sorted(FREE))} and data.test can still be set",
                hint="another model is another run: tx train -c ... --set ...",
            )
    return settings
