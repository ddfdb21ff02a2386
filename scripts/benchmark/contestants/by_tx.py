"""tx: `tx train` as it is, and translating in an open model, by its own search or by CTranslate2 (engine), as
`tx translate` does it: processes or threads share the batches."""

from __future__ import annotations

import sys
from pathlib import Path

from turn import Translate, Turn, Watch, asked, translate

sys.path.append(str(Path(__file__).parents[1]))


def train(turn: Turn) -> None:
    from prepare import SMALL, settings

    from transformer_cli.config.source import load_config
    from transformer_cli.training import loop, run

    watch, begin = Watch(turn), loop.begin

    def watched(learner, batches, **options):
        watch.update(sum(batch.n_source_tokens + batch.n_target_tokens for batch in batches))
        return begin(learner, batches, **options)

    loop.begin = watched
    endless = ["training.max_steps=1000000", "training.validate_every=1000000", f"threads={turn.threads}"]
    chosen = [*settings(turn.shape, turn.sizes.tokens), *endless, f"precision={turn.precision}"]
    config = load_config(str(SMALL), chosen, to_train=True)
    run.train(config, Path("run"))


def native(turn: Turn) -> Translate:
    import transformer_cli

    shared = {"threads": turn.threads, "decoding.workers": turn.threads}  # whatever the run was trained with
    translator = transformer_cli.load(turn.run, precision=turn.precision, settings=shared)
    return lambda lines: translator.translate(lines, beam_size=turn.beam)


def by_engine(turn: Turn) -> Translate:
    from transformer_cli import engines
    from transformer_cli.checkpoints.find import find_checkpoint
    from transformer_cli.checkpoints.known import open_known
    from transformer_cli.loading import settings_of

    known = open_known(find_checkpoint(turn.run))
    translator = engines.engine_of(known, settings_of(known, [f"threads={turn.threads}"]), tell=lambda message: None)
    return lambda lines: translator.translate(lines, beam_size=turn.beam)


if __name__ == "__main__":
    turn = asked()
    if turn.what == "train":
        train(turn)
    else:
        translate(turn, by_engine(turn) if turn.engine else native(turn))
