"""Whether a text looks tokenised, cut into pieces or lower-cased: then its scores say less than they seem to."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.evaluation import spelling
from transformer_cli.writing import LOOP, chunks, longest_row, unspaced_script

TOKENISED, IN_PIECES, LOWERCASED = "tokenised", "cut into pieces", "lower-cased"
REMEDY = {
    TOKENISED: "detokenise",
    IN_PIECES: "join the pieces of",
    LOWERCASED: "restore the case of",
}
SAMPLE = 2_000
"""Lines of a text that tell how it is written."""
LEAST_MARKS, LEAST_LETTERS = 5, 200
"""Full stops and commas, and letters that have a case, below which a text tells nothing by itself."""

BY_SPACES = "13a", "intl", "none"
"""sacreBLEU's tokenizers for which a word ends at a space, if not before."""

_WORD = re.compile(r"\w+|[^\w\s]")
# Not before ! ? : ; - the French write a space there.
_SPACED = re.compile(r"(?<=\w) [.,](?=\s|$)", re.MULTILINE)
_GLUED = re.compile(r"(?<=\w)[.,](?=\s|$)", re.MULTILINE)
_ESCAPED = re.compile(r"&(?:apos|quot|#91|#93|#124);|(?<=\s)@[-/.,]@(?=\s)")  # the Moses tokenizer's
_PIECES = re.compile("\u2581|@@(?=\\s|$)", re.MULTILINE)


def signs(lines: Sequence[str], *, however_short: bool = False) -> set[str]:
    """What a text looks like.

    tokenised: at least five spaces between a word and a full stop or comma, and more with the space than without; or
    the Moses tokenizer's escapes in one line of a hundred. cut into pieces: the marks of SentencePiece or subword-nmt
    in one line of a hundred. lower-cased: two hundred letters that have a case, and not one capital among a thousand.
    however_short: without regard to how few marks and letters there are.
    """
    least_marks, least_letters = (1, 1) if however_short else (LEAST_MARKS, LEAST_LETTERS)
    text = "\n".join(lines)
    n_spaced = len(_SPACED.findall(text))
    found = set()
    if (n_spaced >= least_marks and n_spaced > len(_GLUED.findall(text))) or _is_common(_ESCAPED, lines):
        found.add(TOKENISED)
    if _is_common(_PIECES, lines):
        found.add(IN_PIECES)
    n_upper = sum(map(str.isupper, text))
    n_lower = sum(char.islower() and char.title() != char for char in text)  # Georgian has capitals, but not for names
    if n_upper + n_lower >= least_letters and n_upper * 1000 < n_upper + n_lower:
        found.add(LOWERCASED)
    return found


def blank(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[str]:
    """What to say of a side that has no text."""
    sides = {"translations have": hypotheses, "reference has": [line for lines in references for line in lines]}
    return [
        f"the {side} no text at all: no score means anything"
        for side, lines in sides.items()
        if not any(map(str.strip, lines))
    ]


def warnings(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: EvaluationConfig) -> list[str]:
    """What to say about the looks of both sides."""
    return [
        *_looks(hypotheses, references, options),
        *_unspaced(references, options),
        *spelling.warnings(hypotheses, references),
    ]


def _looks(hypotheses: Sequence[str], references: Sequence[Sequence[str]], options: EvaluationConfig) -> list[str]:
    """What either side looks like."""
    translated = [line for line in hypotheses if longest_row(chunks(line)) < LOOP]
    n_different, n_wanted = (len({line for line in lines if line.strip()}) for lines in (translated, references[0]))
    if n_different < min(2, n_wanted):  # a model that writes the same over and over has no way of writing
        return []
    sure = signs(translated).union(*map(signs, references))
    # That a side is otherwise is said of no text that looks the same, though it be too short to be sure.
    theirs = signs(translated, however_short=True)
    ours = set().union(*(signs(lines, however_short=True) for lines in references))
    ignored, said = {LOWERCASED} if options.lowercase else set(), []
    for sign in sorted(sure - ignored):
        if sign in theirs and sign in ours:
            said.append(f"translations and reference look {sign}: scores of such text compare with no others")
        else:
            side, other = ("translations", "reference") if sign in theirs else ("reference", "translations")
            verb, was = ("look", "is") if sign in theirs else ("looks", "are")
            said.append(f"the {side} {verb} {sign}, the {other} {was} not: {REMEDY[sign]} the {side} before scoring")
    return said


def misjudged(references: Sequence[str], options: EvaluationConfig) -> str:
    """What to say before a training whose BLEU, as it is told to count, takes sentences for words, or has too few."""
    sample = references[:SAMPLE]
    if unspaced_script("".join(sample)) is not None:
        return "".join(_unspaced([sample], options.model_copy(update={"metrics": ["bleu"]})))
    if options.tokenize not in ("auto", *BY_SPACES) or not any(map(str.strip, sample)):
        return ""
    if any(len(_WORD.findall(line)) > 3 for line in references):
        return ""
    return "no line has four words in a row, and without any BLEU is 0: the loss tells which checkpoint is the best"


def _unspaced(references: Sequence[Sequence[str]], options: EvaluationConfig) -> list[str]:
    """What counts words by spaces counts whole sentences where there are none."""
    has_bleu = "bleu" in options.metrics and options.tokenize in BY_SPACES
    fooled = ["BLEU"] * has_bleu + ["TER"] * ("ter" in options.metrics)
    if not fooled or unspaced_script("".join(line for lines in references for line in lines)) is None:
        return []
    remedy = "; evaluation.tokenize=auto lets BLEU count characters" if has_bleu else ""
    return [
        f"the reference is written without spaces, and what is between spaces is a word for {' and '.join(fooled)}: "
        f"chrF says more{remedy}"
    ]


def _is_common(pattern: re.Pattern[str], lines: Sequence[str]) -> bool:
    return sum(bool(pattern.search(line)) for line in lines) * 100 >= max(len(lines), 1)
