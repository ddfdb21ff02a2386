"""`evaluation:` - how translations are scored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import AtHome, NonNegativeInt, Section

METRICS = Recipes(
    "metrics",
    {
        "bleu": "evaluation.metrics:bleu",
        "chrf": "evaluation.metrics:chrf",
        "chrf++": "evaluation.metrics:chrf_plus",
        "ter": "evaluation.metrics:ter",
        "comet": "evaluation.comet:Comet",
    },
)


class CometConfig(Section):
    """COMET (Rei et al. 2020), by the package unbabel-comet, in a separate process."""

    model: AtHome | None = None
    """A checkpoint, such as wmt22-comet-da/checkpoints/model.ckpt, with the hparams.yaml beside its folder; or, with
    `download`, a name such as Unbabel/wmt22-comet-da. Relative to where the command is typed, as `python` is."""
    download: bool = False
    """Let COMET fetch what is not on the disk: a model by its name, its encoder's tokenizer. Otherwise it is told to
    open no connection."""
    python: AtHome | None = None
    """The Python of an environment that has unbabel-comet; tx's own when not given. unbabel-comet needs older packages
    than tx's extras (NumPy 1, transformers 4), so give it an environment of its own, of Python 3.11 or 3.12: for newer
    ones there is no NumPy 1."""


class EvaluationConfig(Section):
    """Metrics and their options, and how uncertain a score is."""

    metrics: list[Annotated[str, METRICS]] = Field(default=["bleu", "chrf", "chrf++", "ter"], min_length=1)
    """The metrics to compute, in this order."""
    comet: CometConfig = CometConfig()
    tokenize: Literal["auto", "13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "auto"
    """sacreBLEU's tokenizer for BLEU. auto: 13a; if the reference is written without spaces, zh for Chinese, else char.
    ja-mecab and ko-mecab cut Japanese and Korean into words, and need packages of their own. The signature says
    which."""
    lowercase: bool = False
    """Ignore case."""
    resamples: Annotated[int, Field(ge=40, le=10**6)] = 1000
    """Resamples of the bootstrap, for 95 % intervals and paired tests; sacreBLEU's usual number."""
    trials: Annotated[int, Field(ge=40, le=10**6)] = 10_000
    """Trials of approximate randomisation between two systems; sacreBLEU's usual number."""
    seed: NonNegativeInt = 12345
    """Seed of both; sacreBLEU's own, so that its command line gives the same intervals."""
