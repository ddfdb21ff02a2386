"""The word alignment of many translations: forced passes in batches, one layer's cross-attention read.

B batch, S source length, T target positions
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice

import torch

from transformer_cli.attention_maps.alignment import Links, best_layer, linked, read_pieces, text_words
from transformer_cli.attention_maps.capture import capture, target_side
from transformer_cli.attention_maps.maps import Side, words_of
from transformer_cli.data.loader import collate
from transformer_cli.decoding import batches
from transformer_cli.decoding.scoring import pairs_of
from transformer_cli.decoding.translation import Part, Translation
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UsageError
from transformer_cli.tokenizer import EOS, UNK, Vocabulary
from transformer_cli.wording import counted


def alignments(translator: Translator, lines: Sequence[str], translations: Sequence[Translation]) -> list[Links]:
    """Links between the words, as `split()` finds them, of each line and its best translation.

    What is read, the translator's configuration says; see `best_layer`. Several models are read together, as the mean
    of all of their heads. A line has none where the pieces of a part cannot be counted off in words. Raises UsageError
    for a layer that one of the decoders does not have.
    """
    parts = [part for translation in translations for part in translation.parts]
    texts = translator.tokenizer.decode_target([part.ids for part in parts])
    several = zip(parts, texts, _align(translator, parts, texts), strict=True)
    found = []
    for line, translation in zip(lines, translations, strict=True):
        mine = list(islice(several, len(translation.parts)))
        sources = first_words(line, [part.source for part, _, _ in mine])
        targets = first_words(translation.text, [text for _, text, _ in mine])
        found.append(
            frozenset(
                (first_source + source, first_target + target)
                for first_source, first_target, (_, _, links) in zip(sources, targets, mine, strict=True)
                for source, target in links
            )
        )
    return found


def first_words(line: str, parts: Sequence[str]) -> list[int]:
    """For each of the parts of a line, in order, the number of the word of `line.split()` that it begins in."""
    ends = [word.end() for word in re.finditer(r"\S+", line)]
    found, place = [], 0
    for part in parts:
        place = line.index(part, place)
        found.append(bisect_right(ends, place))
        place += len(part)
    return found


def align_texts(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
    """The links of translations that are there already, as `alignments`. Raises DataError as `pairs_of` does."""
    parts = [
        Part(text, tuple(pair.source[: len(pair.source) - translator.source_eos]), tuple(pair.target), truncated=False)
        for text, pair in zip(sources, pairs_of(translator, sources, targets), strict=True)
    ]
    return _align(translator, parts, targets)


def _align(translator: Translator, parts: Sequence[Part], texts: Sequence[str]) -> list[Links]:
    """The links of each part and the text of its translation."""
    config, depth = translator.config, min(model.config.depths.decoder for model in translator.models)
    if config.alignment_layer is not None and config.alignment_layer > depth:
        raise UsageError(
            f"decoding.alignment_layer is {config.alignment_layer}, "
            f"but a model's decoder has {counted(depth, 'layers')}"
        )
    found: list[Links] = [frozenset()] * len(parts)
    filled = [index for index, part in enumerate(parts) if part.source_ids and part.ids]
    lengths = [max(len(parts[index].source_ids), len(parts[index].ids)) + 1 for index in filled]
    for batch in batches.by_length(lengths, batch_size=config.batch_size, budget_tokens=config.budget_tokens):
        indices = [filled[place] for place in batch]
        sources = [_source_side(translator, parts[index]) for index in indices]
        targets = [target_side(translator, texts[index], parts[index].ids) for index in indices]
        for index, links in zip(indices, _align_batch(translator, sources, targets), strict=True):
            found[index] = links
    return found


@torch.inference_mode()
def _align_batch(translator: Translator, sources: Sequence[Side], targets: Sequence[Side]) -> list[Links]:
    vocabularies, reading = translator.tokenizer, translator.config.alignment_reading
    batch = collate([side.ids for side in sources], [side.ids[1:-1] for side in targets])
    source_BS, target_BT = batch.source_BS.to(translator.device), batch.target_in_BT.to(translator.device)
    several = []
    for model in translator.models:
        layer = translator.config.alignment_layer or best_layer(model.config.depths.decoder)
        name = f"decoder.layers.{layer - 1}.cross_attention.attend"
        with capture(model, only=name) as weights:
            model(source_BS, batch.source_lengths_B, target_BT)
        several.append(weights[name].float().mean(dim=1))
    cross_BTS = torch.stack(several).mean(dim=0).cpu().numpy()
    found = []
    for b, (source, target) in enumerate(zip(sources, targets, strict=True)):
        weights_TS = cross_BTS[b, : len(target.ids) - 1, : len(source.ids)]
        left = split_words(source, vocabularies.source)
        right = split_words(target, vocabularies.target)
        places = read_pieces(weights_TS, source, target, reading)
        found.append(linked(places, left, right) if left and right else frozenset())
    return found


def _source_side(translator: Translator, part: Part) -> Side:
    vocabulary = translator.tokenizer.source
    ids = (*part.source_ids, *[EOS] * translator.source_eos)
    pieces = tuple(map(vocabulary.piece, ids))
    words = words_of(pieces, ids, vocabulary.mark_id)
    return Side(part.source, pieces, ids, words, language=vocabulary.mark_id)


def split_words(side: Side, vocabulary: Vocabulary) -> list[int]:
    """For each piece of text, which word of `side.text.split()` it is in; empty where that cannot be told.

    The tokenizer's normalisation can make several words out of one; each is then normalised by itself and counted.
    Without it one word can have spaces of another kind, such as Japanese's; then letters are counted off.
    """
    numbers, words = text_words(side), side.text.split()
    n_numbers = max(numbers, default=-1) + 1
    if not words:  # white space alone, where the tokenizer keeps it
        return []
    if n_numbers == len(words):
        return numbers
    counts = [_n_words(vocabulary, word) for word in words]
    if sum(counts) != n_numbers:
        return _by_letters(side, vocabulary, words)
    owners = [number for number, count in enumerate(counts) for _ in range(count)]
    return [owners[number] for number in numbers]


def _by_letters(side: Side, vocabulary: Vocabulary, words: Sequence[str]) -> list[int]:
    """The word that the letters of each piece are in; empty where the pieces spell another text, or one has letters of
    two words. A piece of white space goes with what follows."""
    pieces = [piece for piece, is_mark in zip(side.pieces, side.marks, strict=True) if not is_mark]
    if UNK in side.ids:  # whose name is no text
        cut = vocabulary.pieces([side.text])[0][len(vocabulary.given) :]
        pieces = cut if len(cut) == len(pieces) else []
    spelled = list(map(_letters, pieces))
    if b"".join(spelled) != "".join(words).encode():
        return []
    starts = [0, *accumulate(len(word.encode()) for word in words)]
    places = [0, *accumulate(map(len, spelled))]
    owners = [min(bisect_right(starts, place) - 1, len(words) - 1) for place in places[:-1]]
    ends = zip(owners, places[1:], strict=True)
    return owners if all(end <= starts[owner + 1] for owner, end in ends) else []


def _letters(piece: str) -> bytes:
    """In UTF-8, without white space; of a piece that stands for a byte, that one."""
    if byte := re.fullmatch("<0x([0-9A-F]{2})>", piece):
        return bytes.fromhex(byte[1])
    return "".join(piece.replace("▁", " ").split()).encode()


def _n_words(vocabulary: Vocabulary, word: str) -> int:
    [ids], [pieces] = vocabulary.encode([word]), vocabulary.pieces([word])
    words = words_of(tuple(pieces), tuple(ids), vocabulary.mark_id)
    return len({word for word, id in zip(words, ids, strict=True) if id != vocabulary.mark_id})
