"""Lines in, lines out, whatever the batches between them."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAIRS

import transformer_cli as tx
from transformer_cli.attention_maps.aligner import split_words
from transformer_cli.attention_maps.capture import source_side, target_side
from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.store import OpenedRun, open_run
from transformer_cli.config.data import DataConfig
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.decoding import translator as module
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.scoring import pairs_of
from transformer_cli.decoding.translation import NOTHING
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DataError, DivergedError, ModelError, UsageError
from transformer_cli.loading import translator_of
from transformer_cli.model.build import build_model
from transformer_cli.model.prepared import Prepared
from transformer_cli.tokenizer import BOS, EOS, SPECIALS, Tokenizer, train_tokenizer

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return tx.load(trained_run)


def untrained(tokenizer: Tokenizer, *, decoding: DecodingConfig | None = None, **options: object) -> Translator:
    shape = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1}
    torch.manual_seed(1)
    model = build_model(
        ModelConfig.model_validate(shape | options),
        source_vocab=tokenizer.source_size,
        target_vocab=tokenizer.target_size,
    )
    with torch.no_grad():  # louder than fresh weights are, so that its nonsense varies
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return Translator(model, tokenizer, decoding or DecodingConfig(), source_eos=True)


@pytest.mark.parametrize("beam_size", [1, 5])
def test_what_was_learned_by_heart_is_said(translator: Translator, beam_size: int) -> None:
    assert translator.translate(SOURCES, beam_size=beam_size) == TARGETS


@pytest.mark.parametrize("beam_size", [1, 4])
def test_order_partners_and_batch_size_do_not_matter(trained_run: Path, beam_size: int) -> None:
    tokenizer = tx.load(trained_run).tokenizer
    lines = [*SOURCES, *(" ".join(random.Random(seed).sample(SOURCES, 2)) for seed in range(8)), "", "x"]

    def translated(batch_size: int, order: Sequence[int]) -> list[str]:
        one = untrained(tokenizer, decoding=DecodingConfig(batch_size=batch_size, beam_size=beam_size))
        one.model.double()
        return one.translate([lines[i] for i in order])

    expected = translated(1, range(len(lines)))
    assert len(set(expected)) > len(lines) // 2
    for batch_size in (1, 2, 7, 64):
        order = random.Random(batch_size).sample(range(len(lines)), len(lines))
        assert translated(batch_size, order) == [expected[i] for i in order]


@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 4, "n_best": 3}, {"search": "sampling"}])
def test_what_memory_is_too_little_for_is_translated_in_halves_to_the_same_texts(
    trained_run: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = untrained(tx.load(trained_run).tokenizer)
    subject.model.double()
    expected = subject.translate_all(SOURCES, **options)
    real, sizes = module.search, []

    def search(stepper: Any, source_BS: torch.Tensor, *others: Any, **named: Any) -> Any:
        if len(source_BS) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(source_BS))
        return real(stepper, source_BS, *others, **named)

    monkeypatch.setattr(module, "search", search)
    found = subject.translate_all(SOURCES, **options)
    assert [line.text for line in found] == [line.text for line in expected]
    assert [[one.ids for one in line.n_best] for line in found] == [
        [one.ids for one in line.n_best] for line in expected
    ]
    assert sum(sizes) == len(SOURCES) > max(sizes)
    monkeypatch.setattr(module, "search", lambda *_, **__: search(None, torch.zeros(3, 1)))
    with pytest.raises(torch.OutOfMemoryError):
        subject.translate_all(SOURCES[:1], **options)


def test_lines_without_text_are_empty_and_never_reach_the_model(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    start = Prepared.start
    monkeypatch.setattr(Prepared, "start", lambda self, ids, *rest: seen.append(ids.shape) or start(self, ids, *rest))
    lines = ["", "   ", "\t", SOURCES[0], "\u3000", "\u2028", ""]
    found = translator.translate_all(lines)
    assert [one.text for one in found] == ["", "", "", TARGETS[0], "", "", ""]
    assert found.count(NOTHING) == 6
    assert [one.is_of_nothing for one in found] == [one == NOTHING for one in found]
    assert [shape[0] for shape in seen] == [1]
    assert translator.translate([]) == []


def test_a_text_is_not_taken_for_a_list_of_its_characters(translator: Translator) -> None:
    with pytest.raises(UsageError, match=r"lines is 'ich bin'; expected a list of texts"):
        translator.translate_all("ich bin")


def test_a_translation_carries_its_ids_pieces_and_score(translator: Translator) -> None:
    [found] = translator.translate_all([SOURCES[0]], length_penalty=0.5)
    assert "".join(found.tokens).replace("▁", " ").strip() == found.text == TARGETS[0]
    assert translator.tokenizer.encode_target([TARGETS[0]]) == [list(found.ids)]
    assert found.score == pytest.approx(found.log_probability / (len(found.ids) + 1) ** 0.5)
    assert not found.truncated


def test_the_score_is_what_the_model_gives_the_sentence_at_once(translator: Translator) -> None:
    """Teacher forcing over what was found, end mark included, without any search."""
    for found, source in zip(translator.translate_all(SOURCES, n_best=3), SOURCES, strict=True):
        [ids] = translator.tokenizer.encode_source([source])
        for one in found.n_best:
            target = torch.tensor([[BOS, *one.ids, EOS]])
            with torch.inference_mode():
                source_BS = torch.tensor([[*ids, EOS]])
                hidden_BTD = translator.model(source_BS, torch.tensor([len(ids) + 1]), target[:, :-1])
                logp_BTV = translator.model.project(hidden_BTD).double().log_softmax(-1)
            total = logp_BTV.gather(2, target[:, 1:, None]).sum()
            assert one.log_probability == pytest.approx(float(total), abs=1e-4)


def test_n_best_begin_with_the_best_and_are_distinct(translator: Translator) -> None:
    for found in translator.translate_all(SOURCES, n_best=5):
        assert vars(found.n_best[0]).items() <= vars(found).items()
        assert len({one.ids for one in found.n_best}) == 5
        ranks = [(one.truncated, -one.score) for one in found.n_best]  # what is complete comes first
        assert ranks == sorted(ranks)


@pytest.mark.parametrize(("beam_size", "n_best"), [(1, 2), (5, 6), (5, 0)])
def test_more_translations_than_beams_are_refused(translator: Translator, beam_size: int, n_best: int) -> None:
    with pytest.raises(UsageError, match=f"{n_best} translations"):
        translator.translate_all(["hallo"], beam_size=beam_size, n_best=n_best)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_no_more_pieces_come_out_than_factor_times_source_plus_extra(trained_run: Path, beam_size: int) -> None:
    decoding = DecodingConfig(max_length_factor=0.25, max_length_extra=1, beam_size=beam_size)
    loaded = tx.load(trained_run)
    short = Translator(loaded.model, loaded.tokenizer, decoding, source_eos=True)
    n_cut = 0
    for found, source, target in zip(short.translate_all(SOURCES), SOURCES, TARGETS, strict=True):
        limit = len(loaded.tokenizer.encode_source([source])[0]) // 4 + 1
        assert len(found.ids) <= limit
        if beam_size == 1 and len(wanted := loaded.tokenizer.encode_target([target])[0]) > limit:
            assert found.truncated
            assert list(found.ids) == wanted[:limit]
            n_cut += 1
    assert beam_size > 1 or n_cut > len(SOURCES) // 2


SENTENCES = [SOURCES[0], SOURCES[5], SOURCES[7]]
LONG = "\u2028".join(SENTENCES)


def with_options(translator: Translator, **options: object) -> Translator:
    """The same model, decoded in another way."""
    config = DecodingConfig.model_validate(options)
    return Translator(translator.models, translator.tokenizer, config, source_eos=True)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_long_line_is_translated_by_sentences_and_joined(translator: Translator, beam_size: int) -> None:
    longest = max(len(ids) for ids in translator.encode_source(SENTENCES))
    short = with_options(translator, max_source_length=longest, beam_size=beam_size)
    each = short.translate_all(SENTENCES)
    [found] = short.translate_all([LONG])
    assert "split" not in {flag for one in each for flag in one.flags}
    assert found.flags[-1] == "split"
    assert found.text == " ".join(one.text for one in each)
    assert found.ids == sum((one.ids for one in each), ())
    assert found.log_probability == pytest.approx(sum(one.log_probability for one in each), abs=1e-4)
    assert found.score == pytest.approx(found.log_probability / (len(found.ids) + 3))
    assert [part.source for part in found.parts] == SENTENCES
    assert [(part.source_ids, part.ids) for part in found.parts] == [
        (tuple(ids[:-1]), one.ids) for ids, one in zip(short.encode_source(SENTENCES), each, strict=True)
    ]


def test_the_longest_lines_of_training_are_the_limit_unless_another_is_set(trained_run: Path) -> None:
    translator = tx.load(trained_run)
    assert translator.max_source_length == translator.max_length == 256
    long_line = " ".join(SENTENCES * 40)
    assert "split" in translator.translate_all([long_line], beam_size=1)[0].flags
    wider = Translator(
        translator.model, translator.tokenizer, DecodingConfig(max_source_length=5000), source_eos=True, max_length=256
    )
    assert "split" not in wider.translate_all([long_line], beam_size=1)[0].flags


def test_sentences_that_training_never_had_in_a_line_are_translated_one_by_one(trained_run: Path) -> None:
    """They were translated together as long as they were short enough, and most of their words were lost."""
    translator = tx.load(trained_run)
    texts = [f"{source[0].lower()}{source[1:].rstrip('.?')}." for source in SOURCES]
    each = translator.translate_all(texts, beam_size=1)
    [found] = translator.translate_all([" ".join(texts)], beam_size=1)
    assert [part.source for part in found.parts] == texts
    assert found.text == " ".join(one.text for one in each)
    assert "split" in found.flags
    [whole] = translator.translate_all([" ".join(texts)], beam_size=1, by_sentences=False)
    assert len(whole.parts) == 1


@pytest.mark.parametrize(("configured", "learned", "n_parts"), [(None, None, 1), (None, 1, 3), (None, 3, 1), (2, 3, 3)])
def test_a_line_may_have_as_many_sentences_as_training_lines_had_unless_another_number_is_set(
    translator: Translator, configured: int | None, learned: int | None, n_parts: int
) -> None:
    other = Translator(
        translator.model,
        translator.tokenizer,
        DecodingConfig(max_source_sentences=configured, beam_size=1, long="refuse"),
        source_eos=True,
        max_sentences=learned,
    )
    assert len(other.translate_all([LONG])[0].parts) == n_parts


@pytest.mark.parametrize("positions", ["learned", "sinusoidal-table"])
def test_no_line_is_longer_than_a_table_of_positions(trained_run: Path, positions: str) -> None:
    asked_for_more = DecodingConfig(max_source_length=100)
    short = untrained(tx.load(trained_run).tokenizer, decoding=asked_for_more, positions=positions, max_positions=12)
    found = short.translate_all([SOURCES[0], "", " ".join(SOURCES), "h" * 300, SOURCES[0] + " 日本語" * 30])
    assert [one.flags[-1:] for one in found[2:]] == [("split",)] * 3
    for one in found:
        assert all(len(part.source_ids) < 12 and len(part.ids) < 12 for part in one.parts)


def test_a_long_line_can_be_refused(translator: Translator) -> None:
    longest = max(len(ids) for ids in translator.encode_source(SENTENCES))
    strict = with_options(translator, long="refuse", max_source_length=longest)
    found = strict.translate_all([SOURCES[0], LONG, "", SOURCES[7]])
    assert [one.text for one in found] == [TARGETS[0], "", "", TARGETS[7]]
    assert [one.flags for one in found] == [(), ("refused",), (), ()]
    assert [one.is_of_nothing for one in found] == [False, False, True, False]


def test_a_line_with_a_piece_that_cannot_fit_is_refused_not_cut(trained_run: Path) -> None:
    """Two pieces for a blank and a letter, and room for none of them beside the end mark."""
    narrow = untrained(tx.load(trained_run).tokenizer, decoding=DecodingConfig(max_source_length=2))
    found = narrow.translate_all(["日本", "hundhund"])
    assert [one.flags[-1] for one in found] == ["refused", "split"]


def test_a_long_line_has_the_same_translation_however_many_are_asked_for(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of each part need not make the best of the whole, for lengths weigh: with --n-best another one came
    first. The others are sorted."""
    parts = [
        [Hypothesis((5,) * 1, -0.2), Hypothesis((7,) * 2, -9.0), Hypothesis((6,) * 19, -3.0)],
        [Hypothesis((5,) * 19, -18.0), Hypothesis((7,) * 2, -9.5), Hypothesis((6,) * 1, -1.9)],
    ]

    def found_of(*_: Any, lines: Sequence[int], options: SearchOptions, **__: Any) -> list[list[Hypothesis]]:
        return [parts[line >> 40][: options.n_best] for line in lines]

    monkeypatch.setattr(module, "search", found_of)
    line, short = "\u2028".join(SOURCES[:2]), with_options(translator, max_source_length=9)
    [alone], [found] = (short.translate_all([line], n_best=n) for n in (1, 3))
    assert [one.log_probability for one in found.n_best] == pytest.approx([-18.2, -4.9, -18.5])
    assert [one.score for one in found.n_best] == pytest.approx([-18.2 / 22, -4.9 / 22, -18.5 / 6])
    assert found.ids == found.n_best[0].ids == (5,) * 20
    assert alone == replace(found, n_best=found.n_best[:1])
    assert [part.ids for part in found.parts] == [(5,), (5,) * 19]


@pytest.mark.parametrize("cut", [(True, False), (False, True)])
def test_a_long_line_is_cut_if_one_of_its_parts_is(
    translator: Translator, cut: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [[Hypothesis((5,), -1.0, truncated)] for truncated in cut]
    monkeypatch.setattr(module, "search", lambda *_, lines, **__: [parts[line >> 40] for line in lines])
    [found] = with_options(translator, max_source_length=9).translate_all(["\u2028".join(SOURCES[:2])])
    assert found.truncated
    assert tuple(part.truncated for part in found.parts) == cut
    assert found.score == pytest.approx(-2 / 3)  # two pieces and one end mark


def test_signs_of_a_bad_translation_are_flags(trained_run: Path) -> None:
    loud = untrained(tx.load(trained_run).tokenizer)
    flags = {flag for found in loud.translate_all([*SOURCES, *SENTENCES], beam_size=1) for flag in found.flags}
    assert flags <= {"looped", "copied", "short"}
    assert "looped" in flags


def test_a_translation_begins_as_it_must(translator: Translator) -> None:
    prefixes = ["the dog", "", "i want a", "the"]
    found = translator.translate_all([SOURCES[0], SOURCES[1], SOURCES[2], ""], prefixes=prefixes)
    assert found[0].text.startswith("the dog")
    assert [one.text for one in found[1:]] == [TARGETS[1], TARGETS[2], ""]
    with pytest.raises(DataError, match="line 12: the prefix"):
        translator.translate_all(["a", SOURCES[0]], prefixes=["", "日本"], lines_before=10)


def test_the_beginning_of_nothing_is_not_looked_at(trained_run: Path) -> None:
    """It was counted as left out, but one that cannot be written ended the whole stream."""
    short = untrained(tx.load(trained_run).tokenizer, positions="learned", max_positions=12)
    assert short.translate_all([" ", ""], prefixes=["日本", "the dog " * 10]) == [NOTHING] * 2


def test_a_beginning_without_room_is_refused(trained_run: Path) -> None:
    short = untrained(tx.load(trained_run).tokenizer, positions="learned", max_positions=12)
    with pytest.raises(DataError, match=r"line 1: the prefix has \d+ pieces; there is room for 11"):
        short.translate_all(SOURCES[:1], prefixes=["the dog " * 10])


def test_only_the_first_part_of_a_long_line_begins_as_it_must(translator: Translator) -> None:
    short = with_options(translator, max_source_length=9)
    [free], [forced] = short.translate_all([LONG]), short.translate_all([LONG], prefixes=["the unhappy"])
    assert forced.text.startswith("the unhappy")
    assert [part.ids for part in forced.parts[1:]] == [part.ids for part in free.parts[1:]]


def test_equal_parts_of_a_line_are_drawn_apart(translator: Translator) -> None:
    hot = with_options(translator, max_source_length=9, search="sampling", temperature=5)
    [found] = hot.translate_all(["\u2028".join([SOURCES[0]] * 4)])
    assert len({part.ids for part in found.parts}) == 4


def test_banned_pieces_are_not_written(translator: Translator) -> None:
    [piece] = translator.translate_all([SOURCES[0]])[0].tokens[:1]
    banned = with_options(translator, banned=[piece])
    assert all(piece not in one.tokens for one in banned.translate_all(SOURCES, n_best=3)[0].n_best)
    with pytest.raises(UsageError, match="no piece 'beerr'"):
        with_options(translator, banned=["beerr"])


@pytest.mark.parametrize("mark", SPECIALS)
def test_marks_cannot_be_banned(translator: Translator, mark: str) -> None:
    """Without the end mark no translation would end; it was accepted, and all were cut."""
    with pytest.raises(UsageError, match=f"decoding.banned: '{mark}' is a mark"):
        with_options(translator, banned=[mark])


@pytest.mark.parametrize("batch_size", [1, 5])
def test_what_is_drawn_for_a_line_depends_on_its_number_alone(translator: Translator, batch_size: int) -> None:
    lines = [*SOURCES, LONG]
    options = {"search": "sampling", "temperature": 3.0, "max_source_length": 9}
    expected = with_options(translator, **options).translate(lines)
    drawer = with_options(translator, batch_size=batch_size, **options)
    assert drawer.translate(lines) == expected
    later = [one.text for one in drawer.translate_all(lines[4:], lines_before=4)]
    assert later == expected[4:]
    assert drawer.translate(lines[1:]) != expected[1:]


def test_a_model_beside_itself_is_itself(trained_run: Path) -> None:
    alone, twice = tx.load(trained_run), tx.load([trained_run, trained_run])
    for one, two in zip(alone.translate_all(SOURCES), twice.translate_all(SOURCES), strict=True):
        assert one.text == two.text
        assert one.log_probability == pytest.approx(two.log_probability, abs=1e-5)


@pytest.mark.parametrize("lengths", [(256, 9), (9, 256)])
def test_an_ensemble_takes_sources_that_all_of_it_have_learned_from(
    trained_run: Path, lengths: tuple[int, int]
) -> None:
    one = open_run(find_checkpoint(str(trained_run)))
    runs = []
    for length in lengths:
        data = one.config.data.model_copy(update={"max_length": length})
        runs.append(replace(one, config=one.config.model_copy(update={"data": data})))
    assert translator_of(runs, one.config).max_source_length == 9


def test_a_line_of_white_space_is_no_text_for_a_tokenizer_that_keeps_it() -> None:
    """A sentence was made up for it."""
    config = TokenizerConfig.model_validate({"vocab_size": 100, "normalization": "identity"})
    blanks = ["   ", "\t", "\u00a0", "\u3000 "]
    tokenizer, _ = train_tokenizer(config, SOURCES + blanks, TARGETS + blanks, seed=1)
    assert all(tokenizer.encode_source(blanks[:1]))
    one = untrained(tokenizer)
    assert one.translate_all(blanks) == [NOTHING] * 4
    assert [bool(text) for text in one.translate([*blanks, SOURCES[0]])] == [False] * 4 + [True]
    assert [pair.source for pair in pairs_of(one, blanks, blanks)] == [[]] * 4
    for blank in blanks:
        with pytest.raises(UsageError, match="the source is empty"):
            source_side(one, blank)
        [ids] = tokenizer.encode_target([blank])
        assert split_words(target_side(one, blank, tuple(ids)), tokenizer.target) == []


def test_an_ensemble_translates_what_all_of_it_have_learned(trained_run: Path) -> None:
    """Models of opposite directions gave the mean of two tasks."""
    one = open_run(find_checkpoint(str(trained_run)))

    def learned(*directions: tuple[str, str]) -> OpenedRun:
        train = [{"text": {"pairs": PAIRS}, "source": source, "target": target} for source, target in directions]
        data = DataConfig.model_validate({"train": train, "valid": [{"text": {"pairs": PAIRS}}]})
        return replace(one, config=one.config.model_copy(update={"data": data}))

    there, back, both = learned(("de", "en")), learned(("en", "de")), learned(("de", "en"), ("en", "de"))
    with pytest.raises(ModelError, match=r"translates de to en, .* en to de") as told:
        translator_of([there, back], one.config)
    assert told.value.hint == "an ensemble needs a direction that all have learned"
    with pytest.raises(ModelError, match=r"translates de to en, en to de, .* en to de"):
        translator_of([both, there, back], one.config)  # each with the first one, but not all
    for runs in ([there, both], [there, there]):
        assert list(translator_of(runs, one.config).targets) == ["en"]


def test_an_ensemble_needs_one_vocabulary(trained_run: Path, tmp_path: Path) -> None:
    one, other = (open_run(find_checkpoint(str(trained_run))) for _ in range(2))
    changed = Tokenizer(other.tokenizer.source, other.tokenizer.source)
    with pytest.raises(ModelError, match="another vocabulary"):
        translator_of([one, replace(other, tokenizer=changed)], one.config)
    config = other.config.model_copy(update={"data": other.config.data.model_copy(update={"source_eos": False})})
    with pytest.raises(ModelError, match="end in </s>"):
        translator_of([one, replace(other, config=config)], one.config)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_numbers_that_are_none_name_the_line_and_are_no_translation(trained_run: Path, beam_size: int) -> None:
    broken = untrained(tx.load(trained_run).tokenizer, tied="none")
    with torch.no_grad():
        [ids] = broken.tokenizer.encode_source([SOURCES[3]])
        broken.model.source_embedding.table.weight[ids[-1]] = torch.nan
    lines = ["", "hund", SOURCES[3]]
    assert not {ids[-1]} & set(broken.tokenizer.encode_source(["hund"])[0])
    with pytest.raises(DivergedError, match="line 3"):
        broken.translate(lines, beam_size=beam_size)


@pytest.mark.parametrize("n_lines", [1, 12])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_no_product_makes_a_number_of_none(trained_run: Path, beam_size: int, n_lines: int) -> None:
    broken = untrained(tx.load(trained_run).tokenizer)
    with torch.no_grad():
        broken.model.decoder.layers[0].feed_forward.up.weight[0, 0] = torch.nan
    with pytest.raises(DivergedError, match="line 1"):
        broken.translate(SOURCES[:1] * n_lines, beam_size=beam_size)


def test_the_model_is_left_in_the_mode_it_was_in(trained_run: Path) -> None:
    translator = untrained(tx.load(trained_run).tokenizer, dropout=0.5)
    for training in (True, False):
        translator.model.train(training)
        assert translator.translate(SOURCES) == translator.translate(SOURCES)  # no dropout
        assert translator.model.training is training


def test_progress_counts_every_line_once(translator: Translator) -> None:
    done: list[int] = []
    short = with_options(translator, max_source_length=9, batch_size=2)
    short.translate_all([*SOURCES, LONG, "", " "], progress=done.append)
    assert sum(done) == len(SOURCES) + 3
    assert min(done) >= 0


def test_what_is_typed_as_a_mark_is_plain_text(translator: Translator) -> None:
    assert all(EOS not in ids for ids in translator.tokenizer.encode_source(["</s> hund"]))
    assert isinstance(translator.translate(["</s>"])[0], str)


def test_load_says_what_to_type_where_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        tx.load()
    assert "tx train -c tiny.yaml" in (caught.value.hint or "")


def test_importing_the_package_leaves_torch_alone_and_load_is_there() -> None:
    code = "import sys, transformer_cli; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert callable(tx.load)
    assert not hasattr(tx, "no_such_name")
