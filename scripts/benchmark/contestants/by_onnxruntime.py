"""ONNX Runtime, which has no search and steps for tx's, on one thread, with what `tx export onnx` wrote."""

from __future__ import annotations

from pathlib import Path

from turn import LONGEST, Translate, Turn, asked, in_batches, translate


def translator(turn: Turn) -> Translate:
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.store import open_run
    from transformer_cli.export.formats import FORMATS

    engine = FORMATS.load("onnx")().open(open_run(find_checkpoint(turn.run)), Path(turn.model) / "onnx")

    def by(lines: list[str]) -> list[str]:
        found = engine.beam(engine.encode(lines), limit=LONGEST, beam_size=turn.beam, length_penalty=1.0)
        return list(engine.decode([one.ids for one in found]))

    return by


if __name__ == "__main__":
    turn = asked()
    translate(turn, in_batches(turn, translator(turn)))
