"""`--layers`, `--heads` and `--find`: what they mean, and what they cannot."""

from __future__ import annotations

import pytest
from synthetic import synthetic_maps

from transformer_cli.attention_maps.selection import found, selected
from transformer_cli.errors import UsageError

MAPS = synthetic_maps(2, 2, layers=(4, 2), heads=4)


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("2", "encoder 2, decoder 2, cross 2"),
        ("4", "encoder 4"),
        ("last", "encoder 4, decoder 2, cross 2"),
        ("cross:last", "cross 2"),
        ("cross", "cross 1, cross 2"),
        ("encoder:1-3,cross:2", "encoder 1, encoder 2, encoder 3, cross 2"),
        ("decoder:all, encoder:4", "encoder 4, decoder 1, decoder 2"),
        ("3-4,1", "encoder 1, encoder 3, encoder 4, decoder 1, cross 1"),
    ],
)
def test_layers_are_counted_from_one_and_may_be_of_one_kind(layers, names):
    assert ", ".join(block.name for block in selected(MAPS, layers=layers, heads=None).blocks) == names


def test_heads_keep_their_numbers_and_weights():
    block = selected(MAPS, layers="cross:1", heads="4,2").blocks[0]
    assert block.heads == (2, 4)
    whole = MAPS.of("cross")[0].weights_HQK
    assert (block.weights_HQK == whole[[1, 3]]).all()
    assert selected(MAPS, layers=None, heads="mean").blocks == MAPS.blocks
    assert [block.heads for block in selected(MAPS, layers="all", heads="all").blocks] == [(1, 2, 3, 4)] * 8


@pytest.mark.parametrize(
    ("layers", "heads", "message"),
    [
        ("5", None, r"no layer 5: this model has encoder 1-4, decoder 1-2, cross 1-2"),
        ("cross:3", None, r"no layer 3: this model has cross 1-2"),
        ("1-9999", None, "no layer"),
        ("0", None, "no layer 0"),
        ("middle", None, "expected numbers such as 2"),
        ("2-1", None, "expected numbers"),
        ("", None, "--layers '': expected numbers"),
        ("self:1", None, "no self here"),
        (None, "5", "no head 5: encoder 1 has 1-4"),
        (None, "one", "--heads one: expected numbers"),
        (None, "1,4-2", "--heads 1,4-2: expected numbers such as 2 or 1-3, last or all, found '4-2'"),
        (None, "4-2,1", "expected numbers"),
        ("1,2-1", None, "expected numbers"),
    ],
)
def test_what_is_not_there_or_not_understood_is_refused(layers, heads, message):
    with pytest.raises(UsageError, match=message):
        selected(MAPS, layers=layers, heads=heads)


SOURCE = ["▁the", "▁ani", "mal", "▁knows", "▁the", "▁str", "eet", "▁it", "▁tier"]
TARGET = ["▁das", "▁ti", "er", "▁kennt", "▁es"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("wanted", "kind", "queries", "keys", "words"),
    [
        ("it -> animal", "encoder", [7], [1, 2], ("it", "animal")),
        (" ANIMAL→ Street ", "encoder", [1, 2], [5, 6], ("animal", "street")),
        ("it -> the:2", "encoder", [7], [4], ("it", "the")),
        ("the:1 -> it", "encoder", [0], [7], ("the", "it")),
        ("it -> </s>", "encoder", [7], [9], ("it", "</s>")),
        # What comes out of the row of `kennt`, the fourth piece that the decoder reads.
        ("es -> street", "cross", [4], [5, 6], ("es", "street")),
        ("kennt -> knows", "cross", [3], [3], ("kennt", "knows")),
        ("es -> das", "decoder", [4], [1], ("es", "das")),
    ],
)
def test_the_head_that_looks_most_from_one_word_at_another_is_found(wanted, kind, queries, keys, words, seed):
    maps = synthetic_maps(SOURCE, TARGET, layers=(3, 2), heads=4, seed=seed)
    weights = {
        (block.layer, head): sum(block.weights_HQK[i, row, keys].sum() for row in queries) / len(queries)
        for block in maps.of(kind)
        for i, head in enumerate(block.heads)
    }
    head = found(maps, wanted)
    assert ((head.layer, head.head), head.kind, head.words) == (max(weights, key=weights.get), kind, words)
    assert head.weight == pytest.approx(max(weights.values()))


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ("ewu\u0301re\u0323\u0301 -> goat", "ew\u00far\u1eb9\u0301."),
        ("\u00e0 -> goat", "a\u0300"),
        ("है -> GOAT", "है।"),
        ("น้ำ -> goat", "น้\u0e4dา"),
        ("Ａ１ -> goat", "a1"),
    ],
)
def test_a_word_is_found_however_its_accents_are_encoded_and_with_the_last_of_them(wanted, word):
    """An accent that is a character of its own used to be another word, and none before a full stop."""
    maps = synthetic_maps(["▁a", "▁goat"], ["▁ew\u00far\u1eb9\u0301", ".", "▁a\u0300", "▁है", "।", "▁น้\u0e4dา", "▁a1"])
    assert found(maps, wanted).words == (word, "goat")


UNSPACED = ["▁我", "母", "亲", "昨天", "<0xE6>", "<0xAF>", "<0x8D>", "。", "▁ok", "ay"]


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        ("it -> 母亲", [1, 2]),
        ("it -> 亲昨天", [2, 3]),
        ("it -> 昨天", [3]),
        ("it -> 我", [0]),
        ("it -> 母:2", [4, 5, 6]),
        ("it -> 母:1", [1]),
        ("it -> 我母亲昨天母。", [*range(8)]),
        ("it -> okay", [8, 9]),
    ],
)
def test_in_text_without_spaces_a_word_is_what_pieces_spell(wanted, keys):
    """Between spaces, which are what parts words, there stands a whole sentence."""
    maps = synthetic_maps(UNSPACED, ["▁it"], layers=(1, 1), heads=4)
    head = found(maps, wanted)
    weights = maps.of("cross")[0].weights_HQK[:, 0, keys].sum(axis=-1)
    assert (head.kind, head.head) == ("cross", weights.argmax() + 1)
    assert head.weight == pytest.approx(weights.max())
    assert maps.source.words == (0,) * 8 + (1, 1, 2)


def test_a_part_of_a_piece_is_refused_with_the_pieces_that_there_are():
    with pytest.raises(UsageError, match="'天' is there, but does not begin and end where pieces do") as caught:
        found(synthetic_maps(UNSPACED, ["▁it"]), "it -> 天")
    assert caught.value.hint.startswith("the pieces are 我, 母, 亲, 昨天, <0xE6>")
    with pytest.raises(UsageError, match="no word '书'") as caught:
        found(synthetic_maps(UNSPACED, ["▁it"]), "it -> 书")
    assert caught.value.hint == "the words are 我, 母, 亲, 昨天, 。, okay, </s>, it, <s>"


def test_of_all_kinds_that_have_both_words_the_greatest_weight_counts():
    maps = synthetic_maps(SOURCE, TARGET, layers=(1, 2), heads=3, seed=1)
    weights = [block.weights_HQK[i, 7, 8] for block in maps.of("encoder") for i in range(3)]
    assert found(maps, "it -> tier").weight == pytest.approx(max(weights))
    # `tier` comes out of the rows of `das` and `ti`, and looks at `it` from there, too.
    weights = [block.weights_HQK[i, 8, 7] for block in maps.of("encoder") for i in range(3)]
    weights += [block.weights_HQK[i, 1:3, 7].mean() for block in maps.of("cross") for i in range(3)]
    assert found(maps, "tier -> it").weight == pytest.approx(max(weights))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("it", "expected two words with an arrow"),
        ("it ->", "expected two words with an arrow"),
        ("it -> the -> animal", "expected two words with an arrow"),
        ("it -> cat", "no word 'cat'"),
        ("it -> the:3", "no word 'the:3'"),
        ("it -> the", "'the' is there 2 times in encoder self-attention"),
        ("it -> the:0", "no word 'the:0': the first one is 'the:1'"),
        ("the:2 -> das", "nothing here looks"),
        ("it -> das", "nothing here looks from the first of these words at the second"),
        ("das -> es", "nothing here looks"),
    ],
)
def test_words_that_are_not_there_or_several_times_are_refused(wanted, message):
    with pytest.raises(UsageError, match=message):
        found(synthetic_maps(SOURCE, TARGET), wanted)


def test_a_word_that_is_there_twice_in_one_kind_of_attention_may_be_found_in_another():
    """`in` is twice in the source, once in the translation."""
    source, target = ["▁the", "▁in", "▁the", "▁in"], ["▁la", "▁in"]
    maps = synthetic_maps(source, target, layers=(1, 1), heads=3, seed=2)
    head = found(maps, "in -> la")
    assert (head.kind, head.words) == ("decoder", ("in", "la"))
    with pytest.raises(UsageError, match="'in' is there 2 times in cross-attention"):
        found(maps, "la -> in")
