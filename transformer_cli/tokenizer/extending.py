"""More pieces for a tokenizer that is there: what its own make most often in another text.

Byte-pair encoding (Sennrich et al. 2016) goes on where it ended: each new piece is two that follow each other, of those
that the text is cut into by then. A BPE model merges them in that order, after all of its own. A unigram model has them
by how often they come, and rather than the two. Characters that it does not know come first; of a model of whole words
or of characters there are no other new pieces than those that it does not know.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice, pairwise

import sentencepiece

from transformer_cli.errors import UsageError
from transformer_cli.tokenizer.learning import CHUNK, can_be_piece, usable_lines
from transformer_cli.tokenizer.merges import SPACE, Pair, joined
from transformer_cli.tokenizer.renumbering import Model, appended
from transformer_cli.tokenizer.sampling import LITERAL
from transformer_cli.tokenizer.tokenizer import Tokenizer
from transformer_cli.tokenizer.vocabulary import SPECIALS, UNK, Vocabulary

LEAST = 2
"""What comes less often is no piece."""
LONGEST = 16
"""Characters of a piece, as SentencePiece has it."""
MARGIN = 1e-3
"""By which a unigram model prefers a new piece to the two that it is made of."""
BYTE = re.compile("<0x[0-9A-F]{2}>")


def extended(tokenizer: Tokenizer, n: int, source: Sequence[str], target: Sequence[str], *, seed: int) -> Tokenizer:
    """The tokenizer with up to n pieces more per vocabulary, as its last ids. seed: see train_tokenizer.

    Raises UsageError for two models whose ids are to be the same on both sides.
    """
    if not tokenizer.joint and tokenizer.shares_ids:
        raise UsageError(
            "tokenizer.extend: this tokenizer cuts each side by a model of its own, but both have the same ids",
            hint="such a vocabulary came with a model of another toolkit, and stays as it is",
        )
    skipped: Counter[str] = Counter()
    sides = {"source": source, "target": target}
    lines = [usable_lines(side, skipped, seed=seed, side=name) for name, side in sides.items()]
    if tokenizer.joint:
        return Tokenizer(_extended(tokenizer.source, lines[0] + lines[1], n), tags=tokenizer.tags)
    one, other = _extended(tokenizer.source, lines[0], n), _extended(tokenizer.target, lines[1], n)
    return Tokenizer(one, other, tags=tokenizer.tags)


def cut_before(vocabulary: Vocabulary, before: Vocabulary) -> list[list[int]]:
    """For each piece that came in addition, the ids that it was cut into; none for an unknown character."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=before.model + LITERAL)
    new = vocabulary.names[before.size :]
    return [[id for id in ids if id != UNK] for ids in processor.encode(new)]


def _extended(vocabulary: Vocabulary, lines: Sequence[str], n: int) -> Vocabulary:
    kind = Model(vocabulary.model).kind
    known = set(vocabulary.names)
    parts = _parts(vocabulary, lines, kind)
    total = sum(parts.values())
    unknown = [
        (part, count) for part, count in parts.items() if count >= LEAST and part not in known and can_be_piece(part)
    ]
    new = dict(sorted(unknown, key=lambda one: (-one[1], one[0]))[:n])
    with_parts = appended(vocabulary.model, {part: math.log(count / total) for part, count in new.items()})
    if kind in ("word", "char"):
        return Vocabulary(with_parts, mark=vocabulary.mark)
    words = _words(Vocabulary(with_parts), lines)
    merges = dict(islice(_merges(words, known | new.keys()), n - len(new)))
    scores = _in_order(with_parts, merges) if kind == "bpe" else _by_count(with_parts, merges, total)
    return Vocabulary(appended(with_parts, scores), mark=vocabulary.mark)


def _parts(vocabulary: Vocabulary, lines: Sequence[str], kind: str) -> Counter[str]:
    """How often the text has each of what no piece is smaller than: its characters, or its words."""
    normalize = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model).normalize
    parts: Counter[str] = Counter()
    for text in map(normalize, lines):
        parts.update((SPACE + word for word in text.split(SPACE) if word) if kind == "word" else text)
    return parts


def _words(vocabulary: Vocabulary, lines: Sequence[str]) -> Counter[tuple[str, ...]]:
    """How often the text has each word, cut into pieces; whatever cannot be part of a piece ends one."""
    names = enumerate(vocabulary.names)
    parts = [name if id >= len(SPECIALS) and not BYTE.fullmatch(name) else "" for id, name in names]
    words: Counter[tuple[str, ...]] = Counter()
    for start in range(0, len(lines), CHUNK):
        for ids in vocabulary.encode(lines[start : start + CHUNK]):
            words.update(_of_line([parts[id] for id in ids]))
    return Counter({word: count for word, count in words.items() if len(word) > 1})


def _of_line(pieces: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The words of a line, perhaps empty ones. pieces: "" for what ends a word and is part of none."""
    word: list[str] = []
    for piece in pieces:
        if not piece or piece.startswith(SPACE):
            yield tuple(word)
            word = []
        if piece:
            word.append(piece)
        if piece.endswith(SPACE) and len(piece) > 1:
            yield tuple(word)
            word = []
    yield tuple(word)


def _merges(words: Mapping[tuple[str, ...], int], known: Iterable[str]) -> Iterator[tuple[Pair, int]]:
    """The pairs to join, one after the other, and how often each comes by then; the first of equals by its letters."""
    taken = set(known)
    cuts, counts = [list(word) for word in words], list(words.values())
    pairs: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for index, (cut, count) in enumerate(zip(cuts, counts, strict=True)):
        for pair in pairwise(cut):
            pairs[pair] += count
            where[pair].add(index)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapify(heap)
    while heap:
        count, pair = heappop(heap)
        piece = "".join(pair)
        if -count < LEAST:
            return
        if -count != pairs[pair] or piece in taken or not _is_a_piece(piece):  # it was counted anew, or is none
            continue
        taken.add(piece)
        yield pair, -count
        changed = set()
        for index in where.pop(pair):
            now = list(joined(cuts[index], pair))
            for old in pairwise(cuts[index]):
                pairs[old] -= counts[index]
                changed.add(old)
            for new in pairwise(now):
                pairs[new] += counts[index]
                where[new].add(index)
                changed.add(new)
            cuts[index] = now
        for one in changed:
            if pairs[one] > 0:
                heappush(heap, (-pairs[one], one))


def _is_a_piece(name: str) -> bool:
    """Whether SentencePiece would have learned it: letters of one word, and what is written on them."""
    text = name.strip(SPACE)
    return len(name) <= LONGEST and text != "" and all(unicodedata.category(char)[0] in "LM" for char in text)


def _in_order(model: bytes, merges: Mapping[Pair, int]) -> dict[str, float]:
    """Below all that a BPE model has, so that what it cuts is cut as before, and then joined."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    least = min(processor.get_score(id) for id in range(len(processor)))
    return {"".join(pair): least - 1 - rank for rank, pair in enumerate(merges)}


def _by_count(model: bytes, merges: Mapping[Pair, int], total: int) -> dict[str, float]:
    """What a unigram model takes rather than the two, as likely as they come."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    known = {processor.id_to_piece(id): processor.get_score(id) for id in range(len(processor))}
    new: dict[str, float] = {}
    for pair, count in merges.items():
        together = sum(known[part] for part in pair)
        known["".join(pair)] = new["".join(pair)] = max(math.log(count / total), together + MARGIN)
    return new
