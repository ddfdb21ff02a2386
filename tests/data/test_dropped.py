"""Source words that an update does not see."""

from __future__ import annotations

import numpy as np
import pytest
from encoded import encode

from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.dropped import DroppedCorpus
from transformer_cli.data.sampled import Draw
from transformer_cli.tokenizer import EOS, PAD, Tokenizer, train_tokenizer

WORDS = ["dog", "cats", "sleeping", "and", "nevertheless"]
LINES = [" ".join(WORDS[(i * k) % 5] for k in range(1, 2 + i % 6)) for i in range(60)]


@pytest.fixture(scope="module", params=["bpe", "unigram", "char"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    size = {"vocab_size": 30} if request.param != "char" else {}
    return train_tokenizer(TokenizerConfig(kind=request.param, **size), LINES, LINES, seed=1)[0]


def dropped(folder, tokenizer: Tokenizer, *, rate: float, epoch: int = 0, seed: int = 1) -> DroppedCorpus:
    text = Corpus(LINES, LINES)
    encoded = encode(text, tokenizer, folder, split="train", source_eos=True, max_length=100)
    return DroppedCorpus(encoded, tokenizer.source, Draw(rate, seed, epoch))


def test_words_vanish_whole_and_leave_their_places(tmp_path, tokenizer):
    text = dropped(tmp_path, tokenizer, rate=0.4)
    n_words = n_gone = 0
    for index, line in enumerate(LINES):
        [plain], [ids] = text.text.sources([index]), text.sources([index])
        assert ids[-1] == EOS
        assert np.array_equal(text.targets([index]), text.text.targets([index]))
        assert np.array_equal(ids[ids != PAD], plain[ids != PAD])
        pieces, words = [tokenizer.source.piece(int(one)) for one in plain[:-1]], list[list[int]]()
        for place, piece in enumerate(pieces):
            if piece.startswith("▁"):
                words.append([])
            words[-1].append(place)
        assert len(words) == len(line.split())
        gone = [{bool(ids[place] == PAD) for place in word} for word in words]
        assert all(len(one) == 1 for one in gone)
        n_words, n_gone = n_words + len(words), n_gone + sum(True in one for one in gone)
    assert n_gone / n_words == pytest.approx(0.4, abs=4 * (0.24 / n_words) ** 0.5)


def test_a_draw_depends_on_seed_epoch_and_place_alone(tmp_path, tokenizer):
    def all_of(text: DroppedCorpus) -> list[list[int]]:
        return [ids.tolist() for ids in text.sources(range(len(text.lengths)))]

    one = dropped(tmp_path, tokenizer, rate=0.5)
    assert all_of(one) == [one.sources([i])[0].tolist() for i in reversed(range(len(one.lengths)))][::-1]
    assert all_of(one) != all_of(dropped(tmp_path, tokenizer, rate=0.5, epoch=1))
    assert all_of(one) != all_of(dropped(tmp_path, tokenizer, rate=0.5, seed=2))
    same = [index for index, line in enumerate(LINES) if line == LINES[5]]
    assert len(same) > 1
    assert len(set(map(tuple, one.sources(same)))) > 1
