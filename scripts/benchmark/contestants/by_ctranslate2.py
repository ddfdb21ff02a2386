"""CTranslate2 without tx, with the weights that `tx export ctranslate2` wrote: a thread for each of several batches,
which it cuts itself, or all threads for one line; as it searches by itself, or as tx asks it to (as_tx)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from turn import LONGEST, Pieces, Translate, Turn, asked, translate


def translator(turn: Turn) -> Translate:
    if turn.as_tx:
        os.environ.setdefault("CT2_USE_MKL", "0")
    import ctranslate2

    place = Path(turn.model) / f"ctranslate2-{turn.precision}"
    each = {"intra_threads": turn.threads} if turn.batch == 1 else {"inter_threads": turn.threads, "intra_threads": 1}
    model = ctranslate2.Translator(str(place), device="cpu", **each)
    if (rounded := "int8" in model.compute_type) != (turn.precision == "int8"):
        raise SystemExit(f"CTranslate2 computes in {model.compute_type} here, {'' if rounded else 'not '}in int8")
    pieces = Pieces(turn)

    def by(lines: list[str]) -> list[str]:
        sources = pieces.names(lines)
        its_own = {"max_decoding_length": LONGEST, "disable_unk": True}
        options = {"beam_size": turn.beam, **(of_tx(turn, sources) if turn.as_tx else its_own)}
        found = model.translate_batch(sources, max_batch_size=turn.batch, **options)
        return [pieces.text(one.hypotheses[0]) for one in found]

    return by


def of_tx(turn: Turn, sources: list[list[str]]) -> dict[str, Any]:
    """As transformer_cli/decoding/engine.py has it, for a beam; the limit is that of the longest line."""
    asked = turn.sizes.asked
    limit = int(asked["max_length_factor"] * max(map(len, sources)) + asked["max_length_extra"])
    return {
        "patience": asked["patience"],
        "num_hypotheses": 1,
        "length_penalty": asked["length_penalty"],
        "max_input_length": 0,
        "max_decoding_length": limit + 1,
        "min_decoding_length": 0,
        "return_end_token": True,
        "return_scores": True,
    }


if __name__ == "__main__":
    turn = asked()
    translate(turn, translator(turn))
