"""How text is written: what a word is, with what is written on its letters, which scripts have no spaces, how wide it
is shown, and what only repeats itself."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Literal

SOUTH_EAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff"
"""Thai and Lao, Myanmar, Khmer, each with its extensions, as a pattern has them in brackets."""
JOINED = "\u0600-\u0dff\u1800-\u18af\U00010a00-\U00011fff\U0001e900-\U0001e95f"
"""Arabic to Sinhala, Mongolian and others whose letters U+200C and U+200D shape."""
_HAN = "\u3005-\u3007\u3021-\u3029\u3031-\u303c\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Those; kana; Han. Korean has spaces.
_UNSPACED = f"{SOUTH_EAST_ASIAN}\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f{_HAN}"
_BEYOND = re.compile("[\u0e00-\U0010ffff]")
_BEGINS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_BEYOND_BMP = "\U00010000"
_FIRST_MARK = "\u0300"
"""What is written in lower letters alone, as Latin is, has no marks and is in no script without spaces."""
_LATIN_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"[^\W\d_]")
# Thai's and Lao's vowel am, which NFKC takes apart into a mark and a letter, around the mark of a tone.
_PARTS_OF_AM = re.compile("[\u0e4d\u0ecd]([\u0e48-\u0e4b\u0ec8-\u0ecb]*)([\u0e32\u0eb2])")


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of a word and of a chunk. Looking for all marks takes as long as importing a module or two."""
    # `\w` has no marks; accents, vowels and viramas are among them. Joiners stand inside words of Persian and Hindi.
    characters = map(chr, [*range(ord(_FIRST_MARK), 0x20000), *range(0xE0100, 0xE01F0)])
    found = [char for char in characters if unicodedata.category(char)[0] == "M"]
    marks = "\u200c\u200d" + "".join(char for char in found if char < _BEYOND_BMP)
    # Python looks through those beyond one by one for each character that is none.
    beyond = f"(?=[{_BEYOND_BMP}-\U0010ffff])[{''.join(char for char in found if char >= _BEYOND_BMP)}]"
    any_marks = f"[{marks}]*(?:{beyond}[{marks}]*)*"
    word = rf"(?=\w)[{_UNSPACED}]{any_marks}|[^\W{_UNSPACED}]+(?:(?:[{marks}]|{beyond})[^\W{_UNSPACED}]*)*"
    return re.compile(word), re.compile(rf"[{_UNSPACED}]{any_marks}|[^\s\u200b{_UNSPACED}]+")


LOOP = 4
"""So many times in a row, and more often than where it comes from, something must stand to be a loop."""
LONGEST_PERIOD = 32
"""Words, or characters inside one, that are looked for again at most."""
MOST_WORDS = 1_000_000
"""Different words of a text that are remembered; where it has more, those that came least often are forgotten."""


class WordCounter:
    """How often each word comes in a text, of which one part after the other is seen."""

    def __init__(self) -> None:
        self._chunks: Counter[str] = Counter()
        self._words: Counter[str] = Counter()

    def add(self, text: str, times: int = 1) -> None:
        """A part that ends where a word does, and comes so often."""
        # No word has white space in it, and most of what stands between white space comes again and again.
        if times == 1:
            self._chunks.update(text.split())
        else:
            for chunk in text.split():
                self._chunks[chunk] += times
        if len(self._chunks) > MOST_WORDS // 4:
            self._settle()

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """What another one counted."""
        items = iter(counts.items())
        while some := dict(islice(items, MOST_WORDS // 4)):
            self._words.update(some)
            self._settle()

    def counts(self) -> Counter[str]:
        """Of each word."""
        self._settle()
        return self._words

    def _settle(self) -> None:
        for chunk, n in self._chunks.items():
            for word in words(chunk):
                self._words[word] += n
        self._chunks.clear()
        least = 1
        while len(self._words) > MOST_WORDS:
            self._words = Counter({word: n for word, n in self._words.items() if n > least})
            least *= 2


def words(text: str) -> list[str]:
    """Runs of letters, digits and what is written on them, without regard to case or to how a letter is encoded; in
    scripts without spaces, each letter by itself.
    """
    text = canonical(text)
    return (_LATIN_WORD if max(text, default="") < _FIRST_MARK else _patterns()[0]).findall(text)


def chunks(text: str) -> list[str]:
    """What white space separates, that without width, too, punctuation included, otherwise like `words`."""
    return separated(unicodedata.normalize("NFC", text.casefold()))


def separated(text: str) -> list[str]:
    """The same with regard to case and to how a letter is encoded."""
    return text.split() if max(text, default="") < _FIRST_MARK else _patterns()[1].findall(text)


def canonical(text: str) -> str:
    """The same for all spellings that a tokenizer reads as the same (NFKC), and for itself; am remains one letter."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    if "\u0e4d" in text or "\u0ecd" in text:
        text = _PARTS_OF_AM.sub(lambda am: am[1] + chr(ord(am[2]) + 1), text)
    return text


def width(text: str) -> int:
    """Columns of a terminal: wide characters take two, marks and joiners none."""
    if max(text, default="") < _FIRST_MARK:
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def begins_unspaced(text: str) -> bool:
    """Whether the first character belongs to a script that is written without spaces."""
    return _BEGINS_UNSPACED.match(text) is not None


def unspaced_script(text: str) -> Literal["han", "other"] | None:
    """Which of the scripts without spaces a text is written in, if most of its letters are; Japanese has more than a
    tenth of kana."""
    if not _BEYOND.search(text):
        return None
    n_unspaced = len(re.findall(rf"(?=\w)[{_UNSPACED}]", text))
    if 2 * n_unspaced <= len(_LETTER.findall(text)):
        return None
    return "han" if 10 * len(re.findall(f"[{_HAN}]", text)) >= 9 * n_unspaced else "other"


def longest_row(words: list[str]) -> int:
    """How often something stands in a row, at most: words, or characters inside one."""
    long = {word for word in words if len(word) >= 2 * LOOP}
    return max(_repeats(words, shortest=1), *(_repeats(word, shortest=2) for word in long), 1)


def _repeats(items: Sequence[str], *, shortest: int) -> int:
    """The most copies in a row that any stretch of at least `shortest` items has; 1 where none is a loop."""
    most = 1
    if len(items) - len(set(items)) < (LOOP - 1) * shortest:  # too few stand there again to be in a loop
        return most
    for period in range(shortest, min(LONGEST_PERIOD, len(items) // LOOP) + 1):
        run = 0  # items in a row that equal the one a period earlier
        for here, before in zip(items[period:], items, strict=False):
            run = run + 1 if here == before else 0
            most = max(most, run // period + 1)
    return most
