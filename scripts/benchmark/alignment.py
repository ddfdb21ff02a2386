"""The alignment error rate of cross-attention on the phrasebook, whose grammar knows which word translates which.

    python scripts/benchmark/alignment.py runs/tiny [--pairs 500]

The run must have been trained on the phrasebook. Its held-out test pairs, in plain style, are forced through the model
in fp32; each layer of the decoder is read both ways (see attention_maps/alignment.py) and compared with the grammar's
links, all of which are sure.
"""

from __future__ import annotations

import argparse

from transformer_cli.attention_maps.aligner import align_texts
from transformer_cli.attention_maps.alignment import Gold, error_rate
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import open_run
from transformer_cli.data.phrasebook import phrasebook
from transformer_cli.loading import translator_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--pairs", type=int, default=500)
    arguments = parser.parse_args()
    opened = open_run(find_checkpoint(arguments.run))
    data = opened.config.data
    translator = translator_of(opened, opened.config.model_copy(update={"precision": "fp32"}))
    book = phrasebook(n_pairs=data.phrasebook.n_pairs, seed=data.phrasebook.seed)
    sources, targets, gold = [], [], []
    for pair in book.test[: arguments.pairs]:
        source, target = pair.as_source_target(source=data.source)
        sources.append(source)
        targets.append(target)
        links = frozenset(pair.alignment if data.source == "de" else ((en, de) for de, en in pair.alignment))
        gold.append(Gold(sure=links, possible=links))
    n_layers = opened.config.model.depths.decoder
    print(f"{opened.checkpoint}, {len(gold)} pairs {data.source}-{data.target}")
    for layer in range(1, n_layers + 1):
        for reading in ("raw", "shifted"):
            chosen = {"alignment_layer": layer, "alignment_reading": reading}
            translator.config = translator.config.model_copy(update=chosen)
            rate = error_rate(align_texts(translator, sources, targets), gold)
            print(f"layer {layer} of {n_layers}, {reading:<8} alignment error rate {100 * rate:.1f} %")


if __name__ == "__main__":
    main()
