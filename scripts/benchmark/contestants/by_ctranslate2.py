"""CTranslate2 without tx, with the weights that `tx export ctranslate2` wrote: a thread for each of several batches,
which it cuts itself, or all threads for one line."""

from __future__ import annotations

from pathlib import Path

from turn import LONGEST, Pieces, Translate, Turn, asked, translate


def translator(turn: Turn) -> Translate:
    import ctranslate2

    place = Path(turn.model) / f"ctranslate2-{turn.precision}"
    each = {"intra_threads": turn.threads} if turn.batch == 1 else {"inter_threads": turn.threads, "intra_threads": 1}
    model = ctranslate2.Translator(str(place), device="cpu", **each)
    if (rounded := "int8" in model.compute_type) != (turn.precision == "int8"):
        raise SystemExit(f"CTranslate2 computes in {model.compute_type} here, {'' if rounded else 'not '}in int8")
    pieces = Pieces(turn)

    def by(lines: list[str]) -> list[str]:
        options = {"beam_size": turn.beam, "max_decoding_length": LONGEST, "disable_unk": True}
        options |= {"max_batch_size": turn.batch}
        found = model.translate_batch(pieces.names(lines), **options)
        return [pieces.text(one.hypotheses[0]) for one in found]

    return by


if __name__ == "__main__":
    turn = asked()
    translate(turn, translator(turn))
