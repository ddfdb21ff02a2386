"""The built-in German-English corpus: pairs made by a bilingual grammar, with their true word alignment."""

from __future__ import annotations

from transformer_cli.data.phrasebook.pairs import Pair, Phrasebook, phrasebook, styled
from transformer_cli.data.phrasebook.sentences import PHENOMENA
from transformer_cli.data.phrasebook.style import Style, draw_style

__all__ = ["PHENOMENA", "Pair", "Phrasebook", "Style", "draw_style", "phrasebook", "styled"]
