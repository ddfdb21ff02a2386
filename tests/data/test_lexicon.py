"""What translates what: IBM's Model 1 against the same sums written out, and what a run keeps of it."""

from __future__ import annotations

import random
import shutil
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


@pytest.mark.parametrize("block", [1, 100, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_the_table_is_what_the_paper_says(seed: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "BLOCK", block)
    draw = random.Random(seed)
    sources, targets = ([draw.choices(range(4, 12), k=draw.randint(1, 7)) for _ in range(20)] for _ in range(2))
    found = translation_table([(np.array(s), np.array(t)) for s, t in zip(sources, targets, strict=True)])
    expected = {cell: p for cell, p in model_1(sources, targets).items() if p}
    assert {(s, t): p for s, t, p in zip(*(one.tolist() for one in found), strict=True)} == pytest.approx(expected)


@pytest.fixture(scope="module")
def encoded_run(trained_run: Path, shared) -> Path:
    """A run's directory with a text encoded: noun phrases in all pairs."""

    def make(folder: Path) -> None:
        lines = [f"{d} {n} {other}" for d in ("ein", "das") for n in ("hund", "haus", "katze") for other in WORDS]
        text = Corpus(lines, [" ".join(WORDS[word] for word in line.split()) for line in lines])
        tokenizer = Tokenizer.load(trained_run / "tokenizer")
        encode(text, tokenizer, folder / "data", split="train", source_eos=True, max_length=40)

    return shared("lexicon", make)


@pytest.fixture
def run(encoded_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(encoded_run, tmp_path / "run")


@pytest.fixture
def tokenizer(trained_run: Path) -> Tokenizer:
    return Tokenizer.load(trained_run / "tokenizer")


def test_words_become_their_translations() -> None:
    """Of pairs in which each word comes with every other, in any order."""
    german, english = list(WORDS), list(WORDS.values())
    pairs = [(random.Random(n).sample(german, 3), n) for n in range(60)]
    ids = [([german.index(w) + 4 for w in ws], [english.index(WORDS[w]) + 40 for w in sorted(ws)]) for ws, _ in pairs]
    both = [(np.array(source), np.array(target)) for source, target in ids]
    best: dict[int, tuple[float, int]] = {}
    for s, t, p in zip(*(one.tolist() for one in translation_table(both)), strict=True):
        best[s] = max(best.get(s, (0.0, 0)), (p, t))
    assert {german[s - 4]: english[t - 40] for s, (_, t) in best.items() if s != PAD} == WORDS


def test_what_a_run_keeps(run: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lexicon_of([run], tokenizer)
    assert set(tokenizer.encode_target(["a the"])[0]) <= set(table[PAD, :10].tolist())  # the most frequent
    unseen = next(id for id in range(4, tokenizer.source_size) if set(table[id].tolist()) == {id, EOS})
    assert table[unseen, 0] == unseen
    monkeypatch.setattr(lexicon, "likeliest_targets", lambda *_, **__: pytest.fail("it was learned again"))
    assert (lexicon_of([run.parent, run], tokenizer) == table).all()


def test_a_large_text_is_read_in_part(run: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = lexicon.encoded_before(run / "data", "train")
    assert corpus is not None
    reads: list[int] = []
    sources = type(corpus).sources
    monkeypatch.setattr(type(corpus), "sources", lambda self, rows: reads.extend(rows) or sources(self, rows))
    sizes = corpus.lengths.prod(1, dtype=np.int64)
    monkeypatch.setattr(lexicon, "MOST_ENTRIES", int(sizes.sum()) // 4)
    likeliest_targets(corpus, n_sources=tokenizer.source_size, n_targets=tokenizer.target_size, kept=5)
    assert len(corpus) // 8 <= len(reads) <= len(corpus) // 2
    assert sizes[reads].max() <= np.median(sizes)
    assert sizes[reads].sum() <= lexicon.MOST_ENTRIES
    assert reads[-1] > len(corpus) * 0.7  # from all of it


@pytest.mark.parametrize("damage", ["nothing", "short", "long", "another", "a folder", "PK"])
def test_what_is_not_what_was_kept_is_refused(damage: str, run: Path, tokenizer: Tokenizer) -> None:
    lexicon_of([run], tokenizer)
    data = (run / LEXICON).read_bytes()
    (run / LEXICON).unlink()
    if damage == "a folder":
        (run / LEXICON).mkdir()
    else:
        changed = data[:999] + bytes([data[999] ^ 1]) + data[1000:]
        wrong = {"nothing": b"", "short": data[:-4], "long": data + b"1234", "another": changed, "PK": b"PK" + data[2:]}
        (run / LEXICON).write_bytes(wrong[damage])
    with pytest.raises(ModelError, match=LEXICON):
        lexicon_of([run], tokenizer)


def test_without_the_text_or_with_another_nothing_can_be_learned(run: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"decoding\.shortlist is learned from the encoded training text"):
        lexicon_of([run.parent], tokenizer)
    [ids] = run.glob("data/*/target.npy")
    ids.write_bytes(ids.read_bytes()[:-1])
    with pytest.raises(UsageError, match="or it is damaged"):
        lexicon_of([run], tokenizer)
