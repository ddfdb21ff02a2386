"""`evaluation:` - how translations are scored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.section import Section


class EvaluationConfig(Section):
    """sacreBLEU's metrics and their options."""

    metrics: Annotated[list[Literal["bleu", "chrf", "ter"]], Field(min_length=1)] = ["bleu", "chrf", "ter"]
    """What is computed, in this order."""
    tokenize: Literal["13a", "intl", "char", "zh", "none"] = "13a"
    """sacreBLEU's tokenizer for BLEU."""
    lowercase: bool = False
    """Ignore case."""
