"""Where the time of an update goes, by what the program does in it.

    TX_MULTI30K=data/multi30k python scripts/benchmark/phases.py --shape base

`tx train` as it is, on the CPU, with a clock around each kind of layer, there and back, and around what is done with
the gradients. Markdown: milliseconds of an update, a mean, and their share. What is left over is Python, what PyTorch
notes down for the way back, gradients on their way to the weights, and reading. The clock takes a few milliseconds.
Where several sublayers are one call of compiled code (model/sublayers.py) that is one part; with --apart their steps
are called one by one, which makes the same bits and takes some milliseconds more.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from prepare import SHAPES, SMALL, settings
from torch import Tensor, nn

from transformer_cli.config.source import load_config
from transformer_cli.model import attention, blocks, compiled, layout, spans, sublayers, transformer
from transformer_cli.training import loop, objective, run

REST = "everything else"
PARTS: list[tuple[Any, dict[str, str]]] = [
    (blocks.Linear, {"forward": "products of the layers, with ReLU"}),
    (attention.ScaledDotProductAttention, {"forward": "attention"}),
    (layout.Packed, {"heads": "attention", "merge": "attention"}),
    (spans.InPlace, {"heads": "attention", "merge": "attention"}),
    (layout._Moved, {"apply": "attention"}),
    (spans._Attention, {"apply": "attention"}),
    (blocks.Dropout, {"forward": "dropout", "add": "dropout and residuals"}),
    (blocks, {"_with_norm": "norms"}),
    (blocks.LayerNorm, {"forward": "norms"}),
    (blocks.RMSNorm, {"forward": "norms"}),
    (nn.Embedding, {"forward": "embeddings"}),
    (transformer, {"embedded": "embeddings"}),
    (compiled._Tied, {"apply": "embeddings"}),
    (sublayers._Sublayers, {"apply": "layers"}),
    (objective, {"cross_entropy": "loss, with its products"}),
]
ENDLESS = ("training.max_steps=1000000", "training.validate_every=1000000")


class Enough(Exception):
    """All that was to be measured is."""


class Clock:
    """Gives each moment to one part, the innermost that is at work."""

    def __init__(self) -> None:
        self.seconds, self.at_work, self.since = Counter[str](), [REST], time.perf_counter()

    def taken(self) -> Counter[str]:
        """By each part, since the last time that it was asked."""
        self._count()
        taken, self.seconds = self.seconds, Counter()
        return taken

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, and what autograd does on the way back of its result."""

        def timed(*given: Any, **options: Any) -> Any:
            self._enter(part)
            result = call(*given, **options)
            self._leave()
            first = result[0] if isinstance(result, list | tuple) else result
            is_made_here = isinstance(first, Tensor) and not any(first is one for one in given)
            if is_made_here and first.grad_fn is not None:
                first.grad_fn.register_prehook(lambda gradients: self._enter(part))
                first.grad_fn.register_hook(lambda inputs, outputs: self._leave())
            return result

        return timed

    def of(self, owner: Any, parts: dict[str, str]) -> dict[str, Callable[..., Any]]:
        """Its functions by their names, each with the part that its time is given to."""
        return {name: self.around(part, getattr(owner, name)) for name, part in parts.items()}

    def _enter(self, part: str) -> None:
        self._count()
        self.at_work.append(part)

    def _leave(self) -> None:
        self._count()
        self.at_work.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self.at_work[-1]] += now - self.since
        self.since = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="on Multi30k, as scripts/benchmark/all trains it")
    parser.add_argument("--config", default=str(SMALL), help="in place of such a shape")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--warm", type=int, default=100, help="updates before, in which kernels are compiled")
    parser.add_argument("--apart", action="store_true", help="the steps of sublayers one by one")
    options = parser.parse_args()
    sets = [*(settings(options.shape) if options.shape else ()), *options.set, *ENDLESS]
    config = load_config(options.config, sets, to_train=True)
    seconds = measured(config, warm=options.warm, updates=options.updates, apart=options.apart)
    print(table(seconds, options.updates))


def measured(config: Any, *, warm: int, updates: int, apart: bool = False) -> Counter[str]:
    """The seconds that each part takes in so many updates, once others are behind. apart: sublayers by their steps."""
    clock, begin, n = Clock(), loop.begin, 0

    def begun(learner: Any, *given: Any, **options: Any) -> Any:
        nonlocal n
        n += 1
        if n == 1:
            vars(learner.optimizer).update(clock.of(learner.optimizer, {"step": "optimizer", "zero_grad": "optimizer"}))
            vars(learner.average).update(clock.of(learner.average, {"update": "average of the weights"}))
            of_sharding = {"begin": "weights for products", "length": "norm of the gradients"}
            vars(learner.sharding).update(clock.of(learner.sharding, of_sharding))
        if n == warm + 1:
            clock.taken()
        if n == warm + updates + 1:
            raise Enough
        return begin(learner, *given, **options)

    with ExitStack() as stack:
        for owner, parts in PARTS:
            stack.enter_context(patch.multiple(owner, **clock.of(owner, parts)))
        timed = {name: clock.around("activations", call) for name, call in blocks.ACTIVATIONS.items()}
        stack.enter_context(patch.dict(blocks.ACTIVATIONS, timed))
        stack.enter_context(patch.object(loop, "begin", begun))
        if apart:
            for name in ("at_once", "norm_at_once"):
                stack.enter_context(patch.object(transformer, name, lambda *given: None))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        with suppress(Enough):
            run.train(config, Path(folder, "run"))
        return clock.taken()


def table(seconds: Counter[str], updates: int) -> str:
    whole = sum(seconds.values())
    rows = [(part, spent) for part, spent in seconds.most_common() if spent > 0] + [("an update", whole)]
    lines = [f"| {part} | {1000 * spent / updates:.1f} | {100 * spent / whole:.0f} % |" for part, spent in rows]
    return "\n".join(["| | ms | share |", "| --- | --- | --- |", *lines])


if __name__ == "__main__":
    main()
