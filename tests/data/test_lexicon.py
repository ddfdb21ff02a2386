"""What translates what: IBM's Model 1 against the same sums written out, and what a run keeps of it."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from encoded import encode

from transformer_cli.data import lexicon
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.lexicon import LEXICON, lexicon_of, likeliest_targets, translation_table
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.tokenizer import EOS, PAD, Tokenizer

WORDS = {"ein": "a", "das": "the", "hund": "dog", "haus": "house", "katze": "cat", "bier": "beer"}


def model_1(sources: list[list[int]], targets: list[list[int]]) -> dict[tuple[int, int], float]:
    """Equations 17 and 18 of Brown et al. 1993, pair by pair."""
    p: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(lexicon.ROUNDS):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            for t in target:
                whole = sum(p[s, t] for s in [PAD, *source])
                for s in [PAD, *source]:
                    counts[s, t] += p[s, t] / whole
                    totals[s] += p[s, t] / whole
        p = defaultdict(float, {cell: count / totals[cell[0]] for cell, count in counts.items()})
    return p


@pytest.mark.parametrize("seed", range(10))
def test_the_table_is_what_the_paper_says(seed: int) -> None:
    draw = random.Random(seed)
    sources, targets = ([draw.choices(range(4, 12), k=draw.randint(1, 7)) for _ in range(20)] for _ in range(2))
    found = translation_table([np.array(s) for s in sources], [np.array(t) for t in targets])
    expected = {cell: p for cell, p in model_1(sources, targets).items() if p}
    assert {(s, t): p for s, t, p in zip(*(one.tolist() for one in found), strict=True)} == pytest.approx(expected)


@pytest.fixture(scope="module")
def run(trained_run: Path, shared) -> Path:
    """A run's directory with a tokenizer of the phrasebook's, and a text encoded: noun phrases in all pairs."""
    phrases = [(d, n) for d in ("ein", "das") for n in ("hund", "haus", "katze", "bier")]
    lines = [f"{d} {n} {other}" for d, n in phrases for other in WORDS]
    return _encoded(lines, trained_run, shared)


def _encoded(lines: list[str], trained_run: Path, shared) -> Path:
    def make(folder: Path) -> None:
        tokenizer = Tokenizer.load(trained_run / "tokenizer")
        text = Corpus(lines, [" ".join(WORDS[word] for word in line.split()) for line in lines])
        encode(text, tokenizer, folder / "data", split="train", source_eos=True, max_length=40)

    return shared("lexicon", make)


def test_words_become_their_translations() -> None:
    """Of pairs in which each word comes with every other, in any order."""
    german, english = list(WORDS), list(WORDS.values())
    pairs = [(random.Random(n).sample(german, 3), n) for n in range(60)]
    sources = [np.array([german.index(word) + 4 for word in words]) for words, _ in pairs]
    targets = [np.array([english.index(WORDS[word]) + 40 for word in sorted(words)]) for words, _ in pairs]
    best: dict[int, tuple[float, int]] = {}
    for s, t, p in zip(*(one.tolist() for one in translation_table(sources, targets)), strict=True):
        best[s] = max(best.get(s, (0.0, 0)), (p, t))
    assert {german[s - 4]: english[t - 40] for s, (_, t) in best.items() if s != PAD} == WORDS


def test_what_a_run_keeps(run: Path, trained_run: Path) -> None:
    tokenizer = Tokenizer.load(trained_run / "tokenizer")
    table = lexicon_of(run, tokenizer)
    assert (np.load(run / LEXICON) == table).all()
    assert set(tokenizer.encode_target(["a the"])[0]) <= set(table[PAD, :10].tolist())  # the most frequent
    unseen = next(id for id in range(4, tokenizer.source_size) if set(table[id].tolist()) == {id, EOS})
    assert table[unseen, 0] == unseen


def test_a_large_text_is_read_in_part(run: Path, trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(trained_run / "tokenizer")
    corpus = lexicon.encoded_before(run / "data", "train")
    assert corpus is not None
    reads: list[int] = []
    monkeypatch.setattr(type(corpus), "source", lambda self, index: reads.append(index) or self._ids("source", index))
    monkeypatch.setattr(lexicon, "MOST_ENTRIES", int(corpus.lengths.prod(1, dtype=np.int64).sum()) // 3)
    likeliest_targets(corpus, n_sources=tokenizer.source_size, n_targets=tokenizer.target_size, kept=5)
    assert len(corpus) // 4 <= len(reads) <= len(corpus) // 3 + 1
    assert reads[-1] > len(corpus) * 0.9  # from all of it


@pytest.mark.parametrize("damage", [b"", b"what", None, "shape", "dtype", "beyond"])
def test_what_is_not_what_was_kept_is_refused(
    damage: bytes | str | None, run: Path, trained_run: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(trained_run / "tokenizer")
    table = lexicon_of(run, tokenizer)
    path = tmp_path / LEXICON
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    elif damage is None:
        path.mkdir()
    else:
        wrong = {"shape": table[1:], "dtype": table.astype(np.int64), "beyond": table + tokenizer.target_size}
        np.save(path, wrong[damage])
    with pytest.raises(ModelError, match=LEXICON):
        lexicon_of(tmp_path, tokenizer)


def test_without_the_text_nothing_can_be_learned(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no encoded training text to learn decoding\.shortlist from"):
        lexicon_of(tmp_path, Tokenizer.load(trained_run / "tokenizer"))
