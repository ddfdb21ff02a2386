"""What is worth saying about a count: a line to read it by, and the published figures that disagree with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transformer_cli.accounting.parameters import Count
from transformer_cli.config.model import Position

PLACES = {
    "encoder_self": "attention",
    "decoder_self": "attention",
    "cross": "attention",
    "encoder_ffn": "the feed-forward networks",
    "decoder_ffn": "the feed-forward networks",
    "embedding": "the embeddings",
    "unembedding": "the output projection",
    "norm": "the norms",
}


def reading(count: Count) -> str:
    """Where most of the parameters are, in a sentence."""
    held: dict[str, int] = {}
    for group in count.groups("block"):
        place = PLACES.get(group.name, group.name)
        held[place] = held.get(place, 0) + group.parameters
    ordered = sorted(held.items(), key=lambda item: -item[1])
    least = min(count.total, 1000 * ordered[0][1])
    shares = [f"{percent(n, count.total)} in {place}" for place, n in ordered[:3] if 1000 * n >= least]
    text = f"{', '.join(shares[:-1])} and {shares[-1]}" if len(shares) > 1 else shares[0]
    return text.replace(" in", " of the parameters are in", 1) + "."


def percent(part: int, whole: int) -> str:
    """`33.1%`, from integers of any size."""
    tenths = (2000 * part + whole) // (2 * whole) if whole else 0
    return f"{tenths // 10}.{tenths % 10}%"


@dataclass(frozen=True)
class Figure:
    """A figure that somebody published, and why a count comes to another."""

    value: int
    printed: str
    source: str
    reason: str


TABLE_3 = "Vaswani et al. 2017 (arXiv 1706.03762), table 3"
KERAS_HUB = "keras-team/keras-hub@71453d08"
NOT_37000 = (
    "That is {rows:,} rows of embedding, so it does not follow from 37,000 pieces: the ten models of base size in that "
    "table all fit 41,004 to 41,208 rows, the big one 35,368 to 36,343, and no vocabulary fits them all."
)
TWO_ROWS = "It counts 1,024 positions a side; the model's tables have two rows more."

FIGURES: dict[tuple[int, Position], Figure] = {
    (63_045_632, "sinusoidal"): Figure(65_000_000, "65M", TABLE_3, NOT_37000),
    (214_171_648, "sinusoidal"): Figure(213_000_000, "213M", TABLE_3, NOT_37000),
    (139_420_416, "learned"): Figure(139_417_344, "139,417,344", KERAS_HUB, TWO_ROWS),
    (406_291_456, "learned"): Figure(406_287_360, "406,287,360", KERAS_HUB, TWO_ROWS),
    (6_738_415_616, "rotary"): Figure(
        6_738_417_664,
        "6,738,417,664",
        "the size of Llama-2-7B's stored tensors",
        "It includes the frequencies of the rotary positions, 64 in each of 32 layers: buffers, not parameters.",
    ),
    (76_961_152, "none"): Figure(
        60_511_616,
        "60,511,616",
        KERAS_HUB,
        "It is near that of T5's first small model, another network: 60,506,624.",
    ),
    (1_235_814_400, "rotary"): Figure(
        1_498_482_688, "1,498,482,688", KERAS_HUB, "It counts the output, which is tied to the embedding, twice."
    ),
}
"""By the count that the reason explains: its total and its positions."""


def footnotes(count: Count) -> Iterator[str]:
    """The published figures of such a model that are others than its count, with the reason."""
    if figure := FIGURES.get((count.total, count.model.positions_of(count.model.sides[-1]))):
        difference = figure.value - count.total
        rows = abs(difference) // count.model.d_model
        more = f"{abs(difference):,} {'more' if difference > 0 else 'fewer'}"
        yield f"Published: {figure.printed}, {more} ({figure.source}). {figure.reason.format(rows=rows)}"
