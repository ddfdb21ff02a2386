"""What a text loses by a tokenizer: what no piece has, and what its normalization makes something else of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain
from unicodedata import normalize

import sentencepiece

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.tokenizer.renumbering import BLANK
from transformer_cli.tokenizer.vocabulary import UNK, Vocabulary
from transformer_cli.wording import counted, named

EXAMPLES, LONGEST = 5, 40
"""Characters, or words, that a message names; and of such a word so much."""
LINES_WITH_UNKNOWN = 1_000
"""That are looked at for what it is that no piece has."""
SAMPLE = 2_000
"""Lines of a text that are written back."""
WORTH_SAYING = 0.01
"""Of them, how many another one is made of: ordinary text has a ligature here and there."""
NEARBY = 40
"""Characters from the first that is another one; what it became is among them."""


@dataclass(frozen=True)
class Unknown:
    """Of the tokens of a side, those that are `<unk>`. lacking: what some of them stand for, most frequent first."""

    n: int
    tokens: int
    lacking: tuple[str, ...]

    def in_words(self, text: str, side: str, remedy: str) -> str:
        more = ", ..." * (len(self.lacking) > EXAMPLES)
        ours = ", ".join(one[:LONGEST] if len(one) > 1 else named(one) for one in self.lacking[:EXAMPLES]) + more
        unknown = f"{self.n:,} of {counted(self.tokens, 'tokens')} of the {side} {'is' if self.n == 1 else 'are'} <unk>"
        return f"{text}: {unknown}, for no piece has {ours}; {remedy}"


def lacking(vocabulary: Vocabulary, lines: Iterable[str]) -> tuple[str, ...]:
    """The characters that became `<unk>` in these lines, of a model of whole words those; most frequent first."""
    # What is unknown and stands together is one token, blanks included where words are pieces.
    chosen = list(lines)
    cut = zip(vocabulary.encode(chosen), vocabulary.pieces(chosen), strict=True)
    found = [piece for line in cut for id, piece in zip(*line, strict=True) if id == UNK]
    whole = any(BLANK in piece for piece in found)
    parts = chain.from_iterable(piece.split(BLANK) if whole else piece for piece in found)
    return tuple(part for part, _ in Counter(parts).most_common() if part)


def remedy(config: TokenizerConfig, *, is_inherited: bool, is_cut: bool, is_learned: bool = True) -> str:
    """How another run would lose nothing. is_inherited: it has the tokenizer of the run that it begins with. is_cut: by
    the size of the vocabulary, as only characters and words are. is_learned: pieces were learned from that text."""
    if is_inherited:
        return "tokenizer.extend learns pieces for what comes often in the training text"
    if config.model is not None:
        return "the tokenizer was given (tokenizer.model): another one may have them"
    ways = ["a larger tokenizer.vocab_size"] * (is_cut and is_learned)
    ways += ["tokenizer.character_coverage=1"] * (config.character_coverage < 1 and is_learned)
    return f"{' or '.join([*ways, 'tokenizer.byte_fallback=true'])} loses nothing"


def rewriting(
    lines: Sequence[str], config: TokenizerConfig, vocabulary: Vocabulary | None, *, is_inherited: bool = False
) -> str:
    """What to say where many of these targets would be written otherwise than they are, but for runs of white space;
    nothing where nearly all would be as they are. vocabulary: None where there is none yet. is_inherited: as in
    `remedy`."""
    if vocabulary is None and config.normalization == "identity":
        return ""
    sample = list(lines[:: -(-len(lines) // SAMPLE)]) if lines else []
    written = _normalized(sample) if vocabulary is None else _written(sample, vocabulary)
    sides = [(line.split(), other.split()) for line, other in zip(sample, written, strict=True) if other is not None]
    changed = [(" ".join(line), " ".join(other)) for line, other in sides if line != other]
    if len(changed) < max(WORTH_SAYING * len(sample), 1):
        return ""
    [((before, after), _)] = Counter(_first_change(*pair) for pair in changed).most_common(1)
    by, way_out = "the tokenizer", "`tx tokenize --target` shows how it reads them"
    plain = normalize("NFKC", before)
    if BLANK in before:
        by, way_out = "the tokenizer, whose mark of a blank it is,", "keep it out of the text"
    elif plain != after == plain.casefold():
        by = "the tokenizer, which folds case,"
    elif config.model is None and config.normalization == "nfkc" and not is_inherited:
        by, way_out = "tokenizer.normalization nfkc", "`tokenizer.normalization: identity` keeps them"
    of = counted(len(sample), "targets") + f" (a sample of {len(lines):,})" * (len(sample) < len(lines))
    return (
        f"{len(changed):,} of {of} cannot be written as they are: {by} makes {named(after)} of {named(before)}; "
        f"{way_out}"
    )


def _written(lines: Sequence[str], vocabulary: Vocabulary) -> list[str | None]:
    """Lines as a translation could have them; None for one with `<unk>`."""
    ids = vocabulary.encode(lines)
    return [None if UNK in one else text for one, text in zip(ids, vocabulary.decode(ids), strict=True)]


def _normalized(lines: Sequence[str]) -> list[str]:
    """Lines as `tokenizer.normalization: nfkc` makes them."""
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    return [str(normalizer.normalize(line)).replace(BLANK, " ") for line in lines]


def _first_change(before: str, after: str) -> tuple[str, str]:
    """The first characters that are others, and what they became."""
    same = [one == other for one, other in zip(before, after, strict=False)]
    first = same.index(False) if False in same else len(same)
    near = before[first : first + NEARBY], after[first : first + NEARBY]
    changes = SequenceMatcher(None, *near, autojunk=False).get_opcodes()
    return next((near[0][a:b], near[1][c:d]) for what, a, b, c, d in changes if what != "equal")
