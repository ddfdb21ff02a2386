"""How sure a model is of a translation, and when that is little for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from transformer_cli.decoding.translation import Translation

UNSURE = "unsure"
SHARE = 1 / 8
"""Of the validation text's translations, that are less sure than the rest."""
ROUNDING = 1e-4
"""By which the certainty of one translation differs between batches in fp32."""


Certainty = Annotated[float, Field(strict=True, le=0, allow_inf_nan=False)]
"""A mean of log-probabilities, as a file may say it."""


def certainty(translation: Translation) -> float:
    """The mean log-probability of its pieces, end marks included; 0 where there is none."""
    n_pieces = len(translation.ids) + sum(not part.truncated for part in translation.parts)
    return translation.log_probability / n_pieces if n_pieces else 0.0


def usual_certainty(certainties: Iterable[float]) -> float | None:
    """What all but a `SHARE` of these translations reach, lines without text left out; None where there is none."""
    found = sorted(certainties)
    return found[int(SHARE * len(found))] if found else None
