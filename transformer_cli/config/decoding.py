"""`decoding:` - how a translation is searched for."""

from __future__ import annotations

from transformer_cli.config.section import NonNegativeFloat, NonNegativeInt, PositiveInt, Section


class DecodingConfig(Section):
    """Beam search, or greedy with a beam of one."""

    beam_size: PositiveInt = 5
    """Hypotheses kept per sentence; 1 is greedy search."""
    length_penalty: float = 1.0
    """Scores are divided by length^length_penalty, the end mark counted; 0 disables."""
    max_length_factor: NonNegativeFloat = 2.0
    """A translation has at most factor x source pieces + extra pieces."""
    max_length_extra: NonNegativeInt = 10
    """The extra pieces of that limit."""
    batch_size: PositiveInt = 64
    """Sentences translated together."""
