"""`evaluation:` - how translations are scored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import NonNegativeInt, Section

METRICS = Recipes(
    "metrics",
    {
        "bleu": "evaluation.metrics:bleu",
        "chrf": "evaluation.metrics:chrf",
        "chrf++": "evaluation.metrics:chrf_plus",
        "ter": "evaluation.metrics:ter",
    },
)


class EvaluationConfig(Section):
    """Metrics and their options, and how much doubt a score carries."""

    metrics: list[Annotated[str, METRICS]] = Field(default=["bleu", "chrf", "chrf++", "ter"], min_length=1)
    """What is computed, in this order."""
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    """sacreBLEU's tokenizer for BLEU."""
    lowercase: bool = False
    """Ignore case."""
    resamples: Annotated[int, Field(ge=40, le=10**6)] = 1000
    """Of the bootstrap, for 95 % intervals and paired tests; sacreBLEU's usual number."""
    trials: Annotated[int, Field(ge=40, le=10**6)] = 10_000
    """Of approximate randomisation between two systems; sacreBLEU's usual number."""
    seed: NonNegativeInt = 12345
    """Of both; sacreBLEU's own, so that its command line gives the same intervals."""
