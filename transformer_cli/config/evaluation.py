"""`evaluation:` - how translations are scored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from transformer_cli.config.section import Section


class EvaluationConfig(Section):
    """sacreBLEU's metrics and their options."""

    metrics: list[Literal["bleu", "chrf", "ter"]] = Field(default=["bleu", "chrf", "ter"], min_length=1)
    """What is computed, in this order."""
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    """sacreBLEU's tokenizer for BLEU."""
    lowercase: bool = False
    """Ignore case."""
