"""More pieces for a tokenizer that is there."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from conftest import PAIRS

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.errors import UsageError
from transformer_cli.tokenizer import UNK, Tokenizer, Vocabulary, cut_before, extended, train_tokenizer
from transformer_cli.tokenizer.extending import LEAST, _merges
from transformer_cli.tokenizer.learning import MAX_PIECE_BYTES

OLD = [text for pair in PAIRS for text in pair]
NEW = [
    "die Schmetterlinge fliegen über den Bierkeller",
    "Schmetterlinge und Kaffeekannen, Bierkeller!",
    "日本語 日本語 2016",
] * 3


def trained(kind: str, size: int = 60, **options) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=size, **options)
    return train_tokenizer(config, OLD, OLD, seed=1)[0]


def new_pieces(now: Vocabulary, before: Vocabulary) -> list[str]:
    return [now.piece(id) for id in range(before.size, now.size)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("options", [{}, {"normalization": "identity"}, {"byte_fallback": True, "size": 330}], ids=str)
def test_old_ids_stay_and_no_text_is_unknown_and_all_new_pieces_are_used(kind, options):
    before = trained(kind, **options).source
    now = extended(Tokenizer(before), 40, NEW, OLD, seed=1).source
    assert [now.piece(id) for id in range(before.size)] == [before.piece(id) for id in range(before.size)]
    assert now.size == before.size + 40
    assert now.decode(now.encode(NEW)) == NEW
    assert sum(map(len, now.encode(NEW))) < 0.7 * sum(map(len, before.encode(NEW)))
    used = {piece for pieces in now.pieces([*NEW, *OLD]) for piece in pieces}
    assert all(any(piece in longer for longer in used) for piece in new_pieces(now, before))
    assert not any(set(piece) & set(",!0123456789") and len(piece) > 1 for piece in new_pieces(now, before))


def few(draw: random.Random) -> list[str]:
    return ["".join(draw.choices("aab", k=draw.randint(1, 6))) for _ in range(20)]


def many(draw: random.Random) -> list[str]:
    return ["".join(draw.choices("abc", k=draw.randint(1, 8))) for _ in range(20)]


@pytest.mark.parametrize("seed", range(5))
def test_a_bpe_model_cuts_as_before_and_then_joins_in_the_order_of_the_new_pieces(seed):
    draw = random.Random(seed)
    old, new = ([" ".join(draw.choices(words(draw), k=8)) for _ in range(60)] for words in (few, many))
    before = train_tokenizer(TokenizerConfig(vocab_size=20, normalization="identity"), old, old, seed=1)[0].source
    now = extended(Tokenizer(before), 30, new, old, seed=1).source
    alone = [piece for piece in new_pieces(now, before) if len(piece) == 1]
    ranks = {piece: rank for rank, piece in enumerate(new_pieces(now, before)) if len(piece) > 1}
    known = {before.piece(id) for id in range(before.size)} | set(alone)
    for line in [*new, *old]:
        pieces = [part for piece in before.pieces([line])[0] for part in ([piece] if piece in known else piece)]
        while best := min((a + b for a, b in pairwise(pieces) if a + b in ranks), key=ranks.__getitem__, default=None):
            place = next(i for i, pair in enumerate(pairwise(pieces)) if "".join(pair) == best)
            pieces[place : place + 2] = [best]
        assert now.pieces([line]) == [pieces]


@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_joined_that_come_most_often_by_then(seed):
    """Beside a count of everything anew for each of them."""
    draw = random.Random(seed)
    words = Counter(tuple(draw.choices("abc", k=draw.randint(2, 7))) for _ in range(30))
    found = list(_merges(words, "abc"))
    cuts = {word: list(word) for word in words}
    expected = []
    while True:
        pairs = Counter()
        for word, cut in cuts.items():
            for pair in pairwise(cut):
                pairs[pair] += words[word]
        taken = {"".join(pair) for pair, _ in expected} | set("abc")
        ordered = sorted(
            (-count, pair) for pair, count in pairs.items() if count >= LEAST and "".join(pair) not in taken
        )
        if not ordered:
            break
        count, pair = ordered[0]
        expected.append((pair, -count))
        for cut in cuts.values():
            place = 0
            while place < len(cut) - 1:
                if tuple(cut[place : place + 2]) == pair:
                    cut[place : place + 2] = ["".join(pair)]
                place += 1
    assert found == expected


def test_a_unigram_model_takes_a_new_piece_rather_than_its_parts():
    before = trained("unigram").source
    now = extended(Tokenizer(before), 40, NEW, OLD, seed=1).source
    for piece, ids in zip(new_pieces(now, before), cut_before(now, before), strict=True):
        if len(piece.strip("\u2581")) > 3 and len(ids) > 1:
            assert len(now.encode([piece.strip("\u2581")])[0]) <= 2


@pytest.mark.parametrize(("kind", "most"), [("char", ["S", "B", "K"]), ("word", ["\u2581Schmetterlinge"])])
def test_whole_words_and_characters_are_those_that_were_unknown_the_most_frequent_first(kind, most):
    before = trained(kind, size=200).source
    now = extended(Tokenizer(before), len(most), NEW, OLD, seed=1).source
    counts = Counter("".join(NEW))
    wanted = sorted((c for c in counts if c != " " and c not in "".join(OLD)), key=lambda c: (-counts[c], c))
    assert new_pieces(now, before) == (wanted[: len(most)] if kind == "char" else most)
    assert cut_before(now, before) == [[]] * len(most)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_what_sentencepiece_takes_for_no_piece_becomes_none(kind):
    before = trained(kind)
    new = [*NEW, *["a\0b" * 2, "x" * (MAX_PIECE_BYTES + 100)] * 2]
    pieces = new_pieces(extended(before, 30, new, OLD, seed=1).source, before.source)
    assert len(pieces) > 5
    assert not any("\0" in piece or len(piece) > MAX_PIECE_BYTES for piece in pieces)


def test_what_comes_once_is_no_piece():
    before = trained("bpe").source
    assert extended(Tokenizer(before), 40, ["Xyz"], [], seed=1).source.size == before.size
    assert "X" in new_pieces(extended(Tokenizer(before), 40, ["Xyz"], ["Xab"], seed=1).source, before)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_new_piece_was_cut_as_its_text_was(kind):
    before = trained(kind).source
    now = extended(Tokenizer(before), 40, NEW, OLD, seed=1).source
    for piece, ids in zip(new_pieces(now, before), cut_before(now, before), strict=True):
        if piece.startswith("\u2581"):
            assert ids == [id for id in before.encode([piece[1:]])[0] if id != UNK]
        elif set(piece) <= set("".join(OLD)):
            assert "".join(map(before.piece, ids)) == piece


def test_each_side_has_its_own_new_pieces():
    config = TokenizerConfig(vocab_size=60, joint=False)
    before, _ = train_tokenizer(config, OLD, OLD, seed=1)
    different = Tokenizer(before.source, train_tokenizer(config, OLD[::2], OLD[1::2], seed=1)[0].target)
    now = extended(different, 10, NEW, ["butterflies butterflies"], seed=1)
    assert "\u2581Schm" in "".join(new_pieces(now.source, different.source)) or now.source.size > different.source.size
    assert set("".join(new_pieces(now.target, different.target))) <= set("\u2581butterflies")
    with pytest.raises(UsageError, match="both have the same ids"):
        extended(before if before.shares_ids else Tokenizer(before.source, before.source), 10, NEW, NEW, seed=1)
