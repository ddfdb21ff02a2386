"""What training holds as it is (training.freeze), by the names of tensors, and what that makes of a count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from transformer_cli.accounting.parameters import Count, Part, Product
from transformer_cli.accounting.weights import stored
from transformer_cli.config.run import RunConfig
from transformer_cli.errors import UsageError

EMBEDDINGS = "embeddings"
BLOCKS = {"self_attention": "{}_self", "cross_attention": "cross", "feed_forward": "{}_ffn", "residuals": "norm"}
_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})")


def frozen(config: RunConfig) -> frozenset[str]:
    """The names of the tensors that training leaves as they are (training.freeze); UsageError where a part is not one
    of the model's, or nothing would be left to train.
    """
    tensors = stored(config.counted, source_vocab=1, target_vocab=1)
    names, fixed = tensors.keys(), {name for name, tensor in tensors.items() if tensor.is_fixed}
    held: set[str] = set()
    for part in config.training.freeze:
        for first, last in _RANGE.findall(part):
            if int(first) > int(last):
                raise UsageError(
                    f"training.freeze: {part}: {first}-{last} is no layer", hint=f"for example {last}-{first}"
                )
        for one in _expanded(part):
            found = {name for name in names if _is_in(name, one)}
            if not found:
                tops = sorted({name.split(".")[0] for name in names if not name.endswith("_embedding.table.weight")})
                raise UsageError(
                    f"training.freeze: {part}: the model has no {one}",
                    hint=f"for example {EMBEDDINGS}, {', '.join(tops)}, encoder.layers.0-2; layers count from 0",
                )
            held |= found
    if held | fixed >= names:
        raise UsageError("training.freeze leaves nothing to train", hint="name fewer parts")
    return frozenset(held)


def _expanded(part: str) -> Iterator[str]:
    """encoder.layers.0-2 is encoder.layers.0, .1 and .2."""
    choices = [
        [str(n) for n in range(int(found[1]), int(found[2]) + 1)] if (found := _RANGE.fullmatch(word)) else [word]
        for word in part.split(".")
    ]
    return (".".join(words) for words in product(*choices))


def _is_in(name: str, part: str) -> bool:
    if part == EMBEDDINGS:
        return "_embedding." in name or ".positions." in name
    return f"{name}.".startswith(f"{part}.")


def without_frozen(count: Count, config: RunConfig, *, source_vocab: int, target_vocab: int) -> Count:
    """The same count, what training.freeze holds told apart as not trainable."""
    tensors = stored(config.counted, source_vocab=source_vocab, target_vocab=target_vocab)
    held: Counter[tuple[str, str, str | None]] = Counter()
    for name in frozen(config):
        tensor = tensors[name]
        for component, n_rows in tensor.rows:
            width = tensor.row[0] if tensor.row else 1
            held[component, *_place(name, component)] += n_rows * width
    return replace(count, parts=tuple(_told_apart(count.parts, held)))


def _place(name: str, component: str) -> tuple[str, str | None]:
    """The block and the stack of the part that a tensor belongs to, as `parameters.py` calls them."""
    side, *rest = name.split(".")
    if component == "norm.heads":
        return "norm", side
    if rest[:1] == ["layers"]:
        return BLOCKS[rest[2]].format(side), side
    return component.partition(".")[0] if component != "output_bias" else "unembedding", None


def _told_apart(parts: Iterable[Part], held: Counter[tuple[str, str, str | None]]) -> Iterator[Part]:
    for part in parts:
        key = (part.component, part.block, part.stack)
        n = 0 if part.shares else min(held[key], part.parameters)
        held[key] -= n
        for numbers, trainable in ((n, False), (part.parameters - n, part.trainable)):
            if numbers == part.parameters:
                yield replace(part, trainable=trainable)
            elif numbers % part.each.value == 0 and numbers:
                yield replace(part, copies=numbers // part.each.value, trainable=trainable)
            elif numbers:
                yield replace(part, each=Product(numbers, f"{numbers:,}"), copies=1, trainable=trainable)
