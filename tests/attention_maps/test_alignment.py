"""Which word translates which, and how often that is wrong."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import PAIRS
from hypothesis import given
from hypothesis import strategies as st
from synthetic import synthetic_maps

from transformer_cli.attention_maps.aligner import align_texts, alignments, first_words, split_words
from transformer_cli.attention_maps.alignment import Gold, align, best_layer, error_rate, pharaoh, read_gold
from transformer_cli.attention_maps.capture import attention_maps, source_side
from transformer_cli.attention_maps.maps import Side, words_of
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data.corpus import Corpus
from transformer_cli.decoding import long_lines
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DataError, UsageError
from transformer_cli.model.build import build_model
from transformer_cli.python.model import load
from transformer_cli.tokenizer import Tokenizer, Vocabulary, train_tokenizer
from transformer_cli.tokenizer.renumbering import with_marks


def links(text):
    return frozenset((int(a), int(b)) for a, b in (link.split("-") for link in text.split()))


def with_cross(maps, weights):
    """The maps with these weights in every head of the cross-attention, each row scaled to 1."""
    weights = np.array(weights, dtype=np.float64)
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    blocks = (
        replace(block, weights_HQK=np.stack([weights] * len(block.heads))) if block.kind == "cross" else block
        for block in maps.blocks
    )
    return replace(maps, blocks=tuple(blocks))


GERMAN, ENGLISH = ["▁der", "▁Mann", "▁schlä", "ft"], ["▁the", "▁man", "▁sleeps"]
MAPS = with_cross(
    synthetic_maps(GERMAN, ENGLISH),
    [[8, 1, 1, 1, 9], [1, 8, 1, 1, 9], [1, 1, 1, 8, 9], [1, 1, 8, 1, 9]],
)


def test_the_raw_row_is_the_one_a_word_comes_out_of_the_shifted_one_it_goes_into():
    assert align(MAPS, reading="raw") == links("0-0 1-1 2-2")
    assert align(MAPS, reading="shifted") == links("1-0 2-1 2-2")


def test_marks_are_never_linked():
    """Half of the weight is on the end mark in every row."""
    assert max(source for source, _ in align(MAPS)) == 2


@pytest.mark.parametrize("reading", ["raw", "shifted"])
def test_the_mark_of_a_language_is_no_word(reading):
    """It stands before a target's text, as M2M100 and NLLB have it; its row is that of no word."""
    target, mark = MAPS.target, 77
    marked = replace(
        target,
        pieces=(target.pieces[0], "__en__", *target.pieces[1:]),
        ids=(target.ids[0], mark, *target.ids[1:]),
        words=(0, *(1 + word for word in target.words)),
        language=mark,
    )
    weights = next(block for block in MAPS.blocks if block.kind == "cross").weights_HQK[0]
    row = 1 if reading == "shifted" else 0
    maps = synthetic_maps(GERMAN, ["▁one", *ENGLISH])
    longer = replace(with_cross(maps, np.insert(weights, row, 1, axis=0)), target=marked)
    assert align(longer, reading=reading) == align(MAPS, reading=reading)


def test_pharaoh_is_sorted():
    assert pharaoh(links("2-1 0-10 0-2")) == "0-2 0-10 2-1"
    assert pharaoh(frozenset()) == ""


@pytest.mark.parametrize(("n_layers", "layer"), [(1, 1), (2, 2), (3, 2), (6, 5), (12, 11)])
def test_the_layer_that_is_read_is_the_last_but_one_but_not_the_first_of_two(n_layers, layer):
    assert best_layer(n_layers) == layer


def test_error_rates_by_hand():
    same, other = links("0-0 1-1"), links("0-1 1-0")
    assert error_rate([same], [Gold(same, same)]) == 0
    assert error_rate([same], [Gold(other, other)]) == 1
    gold = Gold(sure=links("0-0"), possible=links("0-0 1-1 2-2"))
    # |A| = 3, |S| = 1; of A one is sure and two are possible.
    assert error_rate([links("0-0 1-1 3-3")], [gold]) == pytest.approx(1 - (1 + 2) / (3 + 1))


def test_a_gold_file_has_sure_and_possible_links(tmp_path):
    (tmp_path / "gold").write_text("0-0 1p2 2?1\n\n3-4\n")
    text = Corpus(["a b c", "d", "e f g h"], ["i j k", "l", "m n o p q"])
    (first, empty, last), counts = read_gold(tmp_path / "gold", text)
    assert counts == {}
    assert first == Gold(links("0-0"), links("0-0 1-2 2-1"))
    assert (empty, last) == (Gold(frozenset(), frozenset()), Gold(links("3-4"), links("3-4")))
    (tmp_path / "gold").write_text("0-0\n0:1\n\n")
    with pytest.raises(DataError, match=r"line 2: expected links such as 0-1 .* found '0:1'"):
        read_gold(tmp_path / "gold", text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0-99", "0-99 links word 99 of the target, which has 4"),
        ("0-0 4-0", "4-0 links word 4 of the source, which has 4"),
        ("1-1 3p4", "3p4 links word 4 of the target, which has 4"),
        ("3?3 999999-0", "999999-0 links word 999999 of the source, which has 4"),
    ],
)
def test_gold_links_between_words_that_are_not_there_are_refused(line, words, tmp_path):
    """They counted as links that the model had missed, and an error rate was printed."""
    (tmp_path / "gold").write_text(f"0-0 3-3\n{line}\n")
    with pytest.raises(DataError, match=re.escape(f"gold, line 2: {words}")) as caught:
        read_gold(tmp_path / "gold", Corpus(["a b\u3000c  d"] * 2, ["e f g h"] * 2))
    assert "counted from 0" in str(caught.value.hint)


@pytest.fixture(scope="module")
def translator(trained_run):
    return load(trained_run)


def test_texts_of_models_whose_targets_begin_with_a_language_are_aligned(translator):
    one = translator.tokenizer.source
    marked = with_marks(one.model, ["__de__", "__en__"])
    tokenizer = Tokenizer(*(Vocabulary(marked, mark=mark) for mark in ("__de__", "__en__")))
    torch.manual_seed(3)
    config = translator.model.config
    model = build_model(config, source_vocab=tokenizer.source_size, target_vocab=tokenizer.target_size).eval()
    imported = Translator(model, tokenizer, translator.config, source_eos=True)
    found = align_texts(imported, ["ein bier", "der hund"], ["a beer", "the big dog"])
    assert [{target for _, target in links} for links in found] == [{0, 1}, {0, 1, 2}]
    assert {source for links in found for source, _ in links} <= {0, 1}


def test_many_sentences_are_aligned_as_each_alone(translator):
    sources = [source for source, _ in PAIRS]
    found = alignments(translator, sources, translator.translate_all(sources))
    assert found == [align(attention_maps(translator, source), layer=1) for source in sources]
    assert all(found)


def test_links_are_between_the_words_of_the_text_also_where_the_tokenizer_sees_others(translator):
    """NFKC makes two words of a diaeresis between letters, and one space of several."""
    line = "  ein \u3000 bier¨x kaffee"
    numbers = split_words(source_side(translator, line), translator.tokenizer.source)
    assert (min(numbers), max(numbers)) == (0, 2)
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("今日は\u3000晴れ です", ("▁今日", "は\u3000", "晴れ", "▁です"), [0, 0, 1, 2]),
        ("10\u202f%\u3000x", ("▁", "10", "\u202f", "%", "\u3000x"), [0, 0, 1, 1, 2]),
        ("é\u3000b c", ("▁", "<0xC3>", "<0xA9>", "\u3000b", "▁c"), [0, 0, 0, 1, 2]),
        ("a\u3000b", ("▁a\u3000b",), []),
    ],
)
def test_words_are_told_apart_by_spaces_that_a_tokenizer_takes_for_letters(translator, text, pieces, expected):
    """With `tokenizer.normalization: identity` a line with a wide space, usual in Japanese, had no links."""
    side = Side(text, (*pieces, "</s>"), (*[9] * len(pieces), 3), words_of((*pieces, "</s>"), (*[9] * len(pieces), 3)))
    assert split_words(side, translator.tokenizer.source) == expected


def test_a_space_that_has_no_piece_parts_words_too():
    lines = ["a dog runs", "the dog sees a cat"] * 9
    tokenizer, _ = train_tokenizer(TokenizerConfig(vocab_size=40, normalization="identity"), lines, lines, seed=1)
    text, vocabulary = "a\u3000dog runs", tokenizer.source
    ids, names = (*vocabulary.encode([text])[0], 3), (*map(vocabulary.piece, vocabulary.encode([text])[0]), "</s>")
    assert "<unk>" in names
    numbers = split_words(Side(text, names, ids, words_of(names, ids)), vocabulary)
    assert [numbers[names.index(name)] for name in ("▁a", "▁runs")] == [0, 2]
    assert set(numbers) == {0, 1, 2}


def test_where_words_of_the_tokenizer_and_of_the_text_cannot_be_matched_there_are_none(translator):
    """A piece may hold a space, if its vocabulary was learned so: two words, and one that the pieces show."""
    side = Side("ein bier", ("▁ein▁bier", "</s>"), (9, 3), (0, 1))
    assert split_words(side, translator.tokenizer.source) == []


def test_text_that_has_ids_is_not_encoded_again(trained_run, monkeypatch):
    """Each source used to be, twice, in a call of its own."""
    translator, [source, _] = load(trained_run), PAIRS[0]
    found = translator.translate_all([source])
    expected = alignments(translator, [source], found)
    for name in ("encode", "pieces"):
        monkeypatch.setattr(Vocabulary, name, None)
    assert alignments(translator, [source], found) == expected


def test_a_line_without_text_has_no_links_and_a_split_one_counts_on(translator):
    line = "der hund schläft"
    [nothing, whole] = translator.translate_all(["", line])
    part = whole.parts[0]
    twice = replace(whole, text=f"{whole.text} {whole.text}", parts=(part, part))
    [none, once, both] = alignments(translator, ["", line, f"{line} {line}"], [nothing, whole, twice])
    assert none == frozenset()
    words = len(whole.text.split())
    assert both == once | {(source + 3, target + words) for source, target in once}
    assert align_texts(translator, [line, ""], ["", "the dog"]) == [frozenset(), frozenset()]


def test_words_of_a_target_that_is_given_are_those_of_its_text(translator):
    """They were those of what its pieces say, which puts spaces around what the vocabulary does not have."""
    [links] = align_texts(translator, ["der hund schläft"], ["the猫dog sleeps"])
    assert {target for _, target in links} == {0, 1}


def test_a_target_with_more_pieces_than_the_model_has_positions_is_refused(trained_run):
    """A bare IndexError came out of the table of positions."""
    translator = load(trained_run)
    config, sizes = translator.model.config, translator.tokenizer
    few = config.model_copy(update={"positions": "learned", "max_positions": 8})
    translator.models = [build_model(few, source_vocab=sizes.source.size, target_vocab=sizes.target.size)]
    with pytest.raises(DataError, match="line 2: the target has 10 pieces, end mark included; at most 8 are possible"):
        align_texts(translator, ["hund", "hund"], ["dog", " ".join(["a"] * 9)])


def test_a_word_that_was_cut_is_one_word_still(trained_run):
    """Each part used to count as words of its own: links went to words that the line does not have."""
    translator = load(trained_run)
    translator.config = translator.config.model_copy(update={"max_source_length": 8})
    line = "ichmochteeinbierundeinenkaffee schläft"
    [found] = translator.translate_all([line])
    assert len(found.parts) > 2
    [links] = alignments(translator, [line], [found])
    assert {source for source, _ in links} == {0, 1}
    assert {target for _, target in links} == set(range(len(found.text.split())))


@given(st.text("ab .。你\u3000\x85", max_size=30), st.integers(1, 6))
def test_parts_begin_in_the_words_that_hold_their_first_letters(line, limit):
    """Parts lose white space alone, so counting the letters before one tells its place; once for the line that was cut,
    once for what was joined again, which may have other words."""
    parts = long_lines.split(line, lambda part: len(part) <= limit)
    for whole in (line, long_lines.join(parts)):
        owners = [number for number, word in enumerate(whole.split()) for _ in word]
        letters = ["".join(part.split()) for part in parts]
        assert first_words(whole, parts) == [owners[sum(map(len, letters[:n]))] for n in range(len(parts))]


def test_an_ensemble_is_aligned_by_the_mean_of_its_models(trained_run):
    """It used to be aligned by its first model alone."""
    one, other, both = load(trained_run), load(trained_run), load([trained_run] * 2)
    with torch.no_grad():
        noise = torch.Generator().manual_seed(1)
        for model in (other.model, both.models[1]):
            for parameter in model.decoder.parameters():
                parameter += torch.randn(parameter.shape, generator=noise.manual_seed(1))
    found = align_texts(both, *zip(*PAIRS, strict=True))
    expected = []
    for source, target in PAIRS:
        maps = [attention_maps(translator, source, target=target) for translator in (one, other)]
        mean = np.mean([one_maps.of("cross")[0].weights_HQK.mean(axis=0) for one_maps in maps], axis=0)
        expected.append(align(with_cross(maps[0], mean)))
    assert found == expected
    assert found not in [align_texts(translator, *zip(*PAIRS, strict=True)) for translator in (one, other)]


def test_a_layer_that_one_model_of_an_ensemble_lacks_is_refused(trained_run):
    translator = load([trained_run] * 2)
    config, sizes = translator.model.config, translator.tokenizer
    deep = config.model_copy(update={"n_layers": 2})
    model = build_model(deep, source_vocab=sizes.source.size, target_vocab=sizes.target.size)
    translator.models.insert(0, model)
    translator.config = translator.config.model_copy(update={"alignment_layer": 2})
    with pytest.raises(UsageError, match="alignment_layer is 2, but a model's decoder has 1 layer"):
        align_texts(translator, ["hund"], ["dog"])
