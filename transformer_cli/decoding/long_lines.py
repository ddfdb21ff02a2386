"""A line that is too long, or of several sentences to a model that never saw two of them together, becomes parts: at
sentence ends, else at clauses, else at spaces, else anywhere.

Nothing is lost: the parts, put together, are the line, but for white space where it was cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from transformer_cli.writing import begins_unspaced

SAMPLE = 10_000
"""Lines that are enough to know how many sentences a line of a text has."""

_CLOSERS = "\"'»«”’›‹)\\]}」』）】〉》"
# The marks of Sentence_Terminal (Unicode's PropList.txt, UAX #29), but for those that are commas today: those that a
# space follows, since they stand in numbers, addresses and abbreviations, too; those of Han and kana, which end a
# sentence whatever follows; and those of other scripts, where a letter may follow at once. Tibetan's are not in it.
_SPACED = ".!?…\u037e۔\u203c\u203d\u2047-\u2049\u2e2e\u2e53\u2e54"
_IDEOGRAPHIC = "。！？｡．\ufe12\ufe15\ufe16\ufe56\ufe57"
_OPENING = "\u0f0d\u0f0e"  # Tibetan's, of which a second one stands after the space, before the next sentence
_OTHERS = (
    f"{_OPENING}\u0589\u061d-\u061f\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104b\u1362\u1367\u1368\u166e"
    "\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5f\u1b7d-\u1b7f\u1c3b\u1c3c"
    "\u1c7e\u1c7f\u2cf9-\u2cfb\u2e3c\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1"
    "\uabeb"
)
_BEYOND_BMP = (  # apart: Python looks through these one by one for each character that is none
    "\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1"
    "\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    "\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642"
    "\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7"
    "\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e\U00016d6f"
    "\U00016e98\U0001bc9f\U0001da88"
)


@cache
def _sentence_end(others: str) -> re.Pattern[str]:
    marks = _SPACED + others
    return re.compile(  # looks behind, lest a row of marks is tried from each of them
        rf"(?=[{marks}])(?<![{marks}])(?:(?P<spaced>[{marks}]+[{_CLOSERS}]*)\s[\s{_OPENING}]*"
        rf"|(?!^)(?P<unspaced>[{marks}]+(?<=[{others}۔]))[»”’›)\]}}]*(?:\u200b[\s\u200b]*)?(?=[«“‘‹„(\[{{]*[^\W\d_]))"
        rf"|[{_IDEOGRAPHIC}]+[{_CLOSERS}]*\s*|[\v\f\x85\u2028\u2029]+\s*"
    )


_MARK = re.compile(rf"[{_SPACED}]")
_CLAUSE_END = re.compile(rf"[,;:،؛–—][{_CLOSERS}]*\s+|\s[–—-]\s|[、，；：၊፣-፥៖\u1b5e\ua9c8]+\s*")
_SPACE = re.compile(r"\s+")
_PLAIN_END = re.compile(rf"[.\u037e۔]|[!?{_OTHERS}{_BEYOND_BMP}]+")
# Words without a vowel, and others that are hardly ever the last of a sentence. By their letters, not by their length:
# a sentence may end in "Hut." A wrong cut costs little, one that is missing a sentence.
_CONSONANTS = "b-df-hj-np-tv-xz"
_TITLE = re.compile(
    rf"[{_CONSONANTS.upper()}][{_CONSONANTS}]*|Abb|Abs|Art|Aug|Co|Col|Dec|Dept|Dez|Dipl|Feb|Fig|Gen|Gov|Inc|Ing|Jan|Jul"
    "|Jun|Kap|Nov|Oct|Okt|Prof|Rep|Rev|Sen|Sep|Sept|Tel|Vol"
)
_SHORTENED = re.compile(
    rf"[{_CONSONANTS}]+|approx|bes|ca|dept|etc|evtl|exkl|inc|inkl|max|min|prof|sog|urspr|usw", re.IGNORECASE
)
# Latin letters as Urdu spells them: an abbreviation has its full stop after each.
_LETTER = re.compile("اے|بی|سی|ڈی|ای|ایف|جی|ایچ|آئی|جے|کے|ایل|ایم|این|او|پی|کیو|آر|ایس|ٹی|یو|وی|ڈبلیو|ایکس|وائی|زیڈ")


def split(text: str, fits: Callable[[str], bool]) -> list[str]:
    """The sentences of a text, each cut further only where it does not fit.

    A single character stays whole, whether it fits or not.
    """
    return [part for sentence in sentences(text) for part in _fitting(sentence, fits)]


def join(parts: Sequence[str]) -> str:
    """One line again: a space between parts, but none between scripts that write without it."""
    line = ""
    for part in filter(None, parts):
        unspaced = line and _ends_unspaced(line) and begins_unspaced(part)
        line += part if not line or unspaced else f" {part}"
    return line


def usual_sentences(lines: Sequence[str]) -> int:
    """How many sentences a model that learns from these lines can be given at once: one line in a hundred has as many.

    A model drops sentences where it never saw so many together: one that learned from single ones writes two thirds of
    two of them and half of three, however short they are. Of many lines, some thousands all over the text are read.
    """
    counts = sorted(len(sentences(line)) for line in lines[:: len(lines) // SAMPLE + 1])
    return max(counts[-1 - len(counts) // 100], 1) if counts else 1


def sentences(text: str) -> list[str]:
    """A text cut at sentence ends, by marks alone: careful with what may be an abbreviation, a date or initials."""
    others = _OTHERS if text.isascii() or max(text) < "\U00010000" else _OTHERS + _BEYOND_BMP
    ends = [match.end() for match in _sentence_end(others).finditer(text) if _ends_sentence(match)]
    return list(_cut(text, ends))


def _ends_sentence(match: re.Match[str]) -> bool:
    """Not after a full stop behind a number or what may be short for something, whether or not there is a space before
    it, as tokenisers write it. Where a small letter follows, people write in small letters alone, unless the sentence
    goes on: after a quotation, three dots or an abbreviation.
    """
    mark, text = match["spaced"], match.string
    goes_on = bool(mark) and text[match.end() : match.end() + 1].islower()
    if goes_on and not _PLAIN_END.fullmatch(mark):
        return False
    if match["unspaced"] == "۔":
        return not _LETTER.fullmatch(_word_before(match, "۔"))
    if mark != ".":
        return True
    word = _word_before(match, ".")
    is_apart = text[max(0, match.start() - 1) : match.start()].isspace()
    if is_apart and _MARK.match(text, match.end()):  # three dots, each by itself
        return False
    shortened = _TITLE.fullmatch(word) or (goes_on and _SHORTENED.fullmatch(word))
    is_closed = word and word[-1] in _CLOSERS
    return not (shortened or word.isdigit() or (len(word) < 2 and not is_closed))


def _word_before(match: re.Match[str], mark: str) -> str:
    """What stands before a match, or before the space before it, from white space, a parenthesis or such a mark on."""
    return re.split(rf"[\s({mark}]", match.string[max(0, match.start() - 20) : match.start()].rstrip())[-1]


def _fitting(text: str, fits: Callable[[str], bool]) -> Iterator[str]:
    if len(text) < 2 or fits(text):
        yield text
        return
    for half in _cut(text, [_middle(text)]):
        yield from _fitting(half, fits)


def _middle(text: str) -> int:
    """Where to cut a text in two: the clause end, else the space, nearest to its middle and not far from it."""
    length = len(text)
    for mark in (_CLAUSE_END, _SPACE):
        ends = [match.end() for match in mark.finditer(text, length // 4, length - length // 4)]
        if ends and 0 < (end := min(ends, key=lambda end: abs(end - length / 2))) < length:
            return end
    middle = length // 2
    later = range(middle, length - length // 4)
    return next((end for end in later if not _continues(text[end])), middle)


def _continues(char: str) -> bool:
    """Whether a character belongs to the one before it, on which it is written."""
    return unicodedata.category(char).startswith("M") or char == "\u200d"


def _ends_unspaced(line: str) -> bool:
    last = line.rstrip("。！？｡．…" + _CLOSERS.replace("\\", ""))[-1:]
    return begins_unspaced(last)


def _cut(text: str, ends: Sequence[int]) -> Iterator[str]:
    """The text between these places, without white space around it; nothing for what has no text."""
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        if part := text[start:end].strip():
            yield part
