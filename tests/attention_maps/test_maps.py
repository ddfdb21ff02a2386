"""What maps hold, how they are checked, merged, labelled."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from synthetic import BOS, EOS, side, synthetic_maps

from transformer_cli import tokenizer
from transformer_cli.attention_maps.maps import KINDS, Side, words_of
from transformer_cli.attention_maps.views import label, merged, piece_labels, plain, view, word_labels, word_texts
from transformer_cli.errors import ModelError

TUTORIAL = synthetic_maps(["▁ich", "▁mochte", "▁ein", "▁bier"], ["▁i", "▁want", "▁a", "▁beer"], n_padding=1)
SENTENCE = synthetic_maps(["▁un", "glück", "lich", "▁", "Mann"], ["▁un", "happy", "▁man"], n_padding=2)


def test_rows_are_queries_and_columns_keys_with_the_labels_of_the_tutorial():
    decoder, cross = view(TUTORIAL, TUTORIAL.of("decoder")[0]), view(TUTORIAL, TUTORIAL.of("cross")[0])
    assert decoder.columns == ("<s>", "i", "want", "a", "beer")
    assert cross.rows == (("<s>", "i"), ("i", "want"), ("want", "a"), ("a", "beer"), ("beer", "</s>"))
    assert cross.columns == ("ich", "mochte", "ein", "bier", "</s>", "<pad>")
    assert view(TUTORIAL, TUTORIAL.of("encoder")[0]).rows == tuple((name,) for name in cross.columns)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_are_the_future_and_padding(kind):
    visible = SENTENCE.visible(kind)
    for q, k in np.ndindex(visible.shape):
        assert visible[q, k] == (k <= q if kind == "decoder" else k < 6)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ("<s> ▁a b ▁ c ▁d </s>", (0, 1, 1, 2, 2, 3, 4)),
        ("<s> ▁ ▁ ▁a ▁ </s> <pad> <pad>", (0, 1, 1, 1, 1, 2, 3, 4)),
        ("a b ▁c", (0, 0, 1)),
        ("<s> </s>", (0, 1)),
        ("▁", (0,)),
    ],
)
def test_a_word_begins_with_a_space_and_a_mark_is_one(pieces, words):
    ids = {"<s>": 2, "</s>": 3, "<pad>": 0}
    names = tuple(pieces.split(" "))
    assert words_of(names, tuple(ids.get(name, 9) for name in names)) == words


def test_marks_and_unknown_pieces_have_the_ids_of_the_tokenizer():
    specials = Side("", tokenizer.SPECIALS, (tokenizer.PAD, tokenizer.UNK, tokenizer.BOS, tokenizer.EOS), (0, 1, 2, 3))
    assert (specials.marks, specials.unknown) == ((True, False, True, True), (1,))


@given(st.integers(1, 9), st.integers(1, 9), st.data())
@settings(max_examples=50)
def test_merged_rows_still_sum_to_one_and_merging_commutes_with_the_mean(n_queries, n_keys, data):
    queries = [0, *sorted(data.draw(st.sets(st.integers(1, n_queries)) if n_queries > 1 else st.just(set())))]
    queries = [q for q in queries if q < n_queries]
    keys = [k for k in (0, *sorted(data.draw(st.sets(st.integers(1, 9))))) if k < n_keys]
    weights = np.random.default_rng(n_queries).dirichlet(np.ones(n_keys), (3, n_queries)).astype(np.float32)
    found = merged(weights, queries, keys)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(merged(weights.mean(0, keepdims=True), queries, keys)[0], found.mean(0), atol=1e-6)


def test_merging_words_of_one_piece_changes_nothing():
    for block in TUTORIAL.blocks:
        by_words = view(TUTORIAL, block, words=True)
        np.testing.assert_allclose(by_words.weights_HQK, block.weights_HQK, atol=1e-7)
        assert by_words.columns == view(TUTORIAL, block).columns


def test_a_word_gets_the_sum_of_its_keys_and_the_mean_of_its_queries():
    block = SENTENCE.of("decoder")[0]
    by_words = view(SENTENCE, block, words=True)
    assert by_words.rows == (("<s>", "unhappy"), ("unhappy", "man"), ("man", "</s>"))
    assert by_words.columns == ("<s>", "unhappy", "man")
    expected = block.weights_HQK[0, 1:3, 1:3].sum(axis=1).mean()  # rows whose input is un, happy
    assert by_words.weights_HQK[0, 1, 1] == pytest.approx(expected, abs=1e-6)


def test_the_source_is_looked_at_for_the_word_that_comes_out():
    """The row of `man` used to be a mean with that of `happy`, which looks at another word."""
    block = SENTENCE.of("cross")[0]
    by_words = view(SENTENCE, block, words=True)
    assert by_words.rows == (("<s>", "unhappy"), ("unhappy", "man"), ("man", "</s>"))
    assert by_words.columns == ("unglücklich", "Mann", "</s>", "<pad>", "<pad>")
    of_pieces = block.weights_HQK[0, :, 0:3].sum(axis=1)
    np.testing.assert_allclose(by_words.weights_HQK[0, :, 0], [of_pieces[:2].mean(), *of_pieces[2:]], atol=1e-6)


def test_byte_pieces_spell_their_character():
    bytes_of = [(f"<0x{byte:02X}>", 10 + byte) for byte in "猫".encode()]
    assert word_texts(side([BOS, ("▁a", 5), *bytes_of, EOS])) == ["<s>", "a猫", "</s>"]


def test_the_sign_of_a_space_is_shown_only_where_a_word_has_several_pieces():
    assert piece_labels(SENTENCE.source)[:2] == ["␣un", "glück"]
    assert piece_labels(TUTORIAL.source)[:2] == ["ich", "mochte"]
    assert word_labels(SENTENCE.source)[0] == "unglücklich"


@given(st.text(max_size=60), st.integers(2, 30))
def test_a_label_is_visible_and_not_wider_than_allowed(text, width):
    shown = label(text, width=width)
    assert cell_len(shown) <= width
    assert not set(shown) & set("\u202e\u200b\u2066\x1b\n\t\u2028\ufeff")


def test_a_label_names_what_cannot_be_seen():
    assert label("a\u202eb") == "aU+202Eb"
    assert label("x" * 200) == "x" * 23 + "…"
    assert label("</script>猫😀") == "</script>猫😀"


@pytest.mark.parametrize("joiner", ["\u200c", "\u200d"])
def test_a_joiner_stays_where_it_shapes_letters_and_is_named_elsewhere(joiner):
    """Sri Lanka was a code point long, and so was every verb of Persian."""
    for word in ("ශ්{}රී", "می{}خورد", "क्{}ष", "CD{}ها", "\U00011107{}\U00011133\U00011107"):
        assert label(word.format(joiner)) == word.format(joiner)
    for text in ("a{}b", "{}می", "می{}", "می {}خورد", "กิ{}น"):
        text = text.format(joiner)
        assert label(text) == text.replace(joiner, f"U+{ord(joiner):04X}")
    assert label(f"می{joiner}{joiner}خورد") == f"میU+{ord(joiner):04X}U+{ord(joiner):04X}خورد"


def test_an_emoji_is_whole_in_a_line_and_in_parts_in_a_label():
    """The translation that was told had other characters than the one that was written."""
    farmer = "👨🏾\u200d🌾"
    assert plain(f"target: {farmer} \u200d🌾") == f"target: {farmer} U+200D🌾"
    assert label(farmer) == "👨🏾🌾"


def test_padding_of_the_target_contradicting_parts_and_impossible_weights_are_refused():
    block = TUTORIAL.blocks[0]

    def weights(change):
        changed = block.weights_HQK.copy()
        change(changed)
        return replace(TUTORIAL, blocks=(replace(block, weights_HQK=changed),))

    def put(value, *place):
        return lambda array: array.__setitem__(place, value)

    with pytest.raises(ModelError, match=r"encoder 1, head 2, row 3: the weights are not finite"):
        weights(put(np.nan, 1, 2, 0))
    with pytest.raises(ModelError, match="not 0 where a key is hidden"):
        weights(put(1e-9, 0, 0, 5))
    with pytest.raises(ModelError, match=r"encoder 1, head 1, row 2: the weights sum to 2\."):
        weights(lambda array: array.__setitem__((0, 1), array[0, 1] * 2.5))
    with pytest.raises(ModelError, match=r"shape \(1, 6, 6\)"):
        replace(TUTORIAL, blocks=(replace(block, heads=(1,)),))
    with pytest.raises(ModelError, match="not in order"):
        replace(TUTORIAL, blocks=TUTORIAL.blocks[::-1])
    with pytest.raises(ModelError, match="4 steps for 5"):
        replace(TUTORIAL, steps=TUTORIAL.steps[1:])
    with pytest.raises(ModelError, match="the source has 6 pieces, 5 ids"):
        replace(TUTORIAL, source=replace(TUTORIAL.source, ids=TUTORIAL.source.ids[1:]))
    with pytest.raises(ModelError, match="the target has padding"):
        replace(TUTORIAL, target=replace(TUTORIAL.target, n_padding=1, ids=(*TUTORIAL.target.ids[:-1], 0)))


def test_a_letter_with_marks_without_end_has_a_label_that_ends():
    """Each of 25,000 marks was measured together with all before it, which took a minute, and stood in the label."""
    shown = label("e" + "\u0301" * 3000)
    assert shown[:9] == "e" + "\u0301" * 8
    assert (len(shown), shown[-1]) == (193, "…")
    assert label("e\u0323\u0301") == "e\u0323\u0301"


def test_of_a_line_of_any_length_the_words_are_there_at_once():
    """For each word all pieces were looked through: a line of 300,000 took hours before it was refused as too long."""
    pieces, n = ("▁un", "happy") * 20_000, 40_000
    started = time.process_time()
    assert words_of(pieces, tuple(range(4, n + 4))) == tuple(i // 2 for i in range(n))
    assert time.process_time() - started < 1
