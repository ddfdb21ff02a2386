"""What a block of text becomes does not depend on who encodes it."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections import Counter
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import sentencepiece
from encoded import encode

from transformer_cli.config.tokenizer import SideVocabSizes, TokenizerConfig
from transformer_cli.data import encoding
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.fingerprints import fingerprints_of
from transformer_cli.data.text import ListedText
from transformer_cli.errors import ResourceError
from transformer_cli.tokenizer import EOS, Tokenizer, Vocabulary, train_tokenizer
from transformer_cli.tokenizer.renumbering import Model
from transformer_cli.writing import words

GERMAN = ["ich möchte ein bier", "das ist ein großer Hund\u2028!", "die katze trinkt ein bier", "\u200b", "x" * 200]
ENGLISH = ["i want a beer", "that is a big dog", "the cat drinks a beer", "a beer", "a cat"]
CORPUS = Corpus(GERMAN * 20, ENGLISH * 20)


@pytest.fixture(scope="module", params=[True, False, "marked"], ids=["joint", "two", "marked"])
def tokenizer(request) -> Tokenizer:
    sizes = 80 if request.param else SideVocabSizes(source=60, target=50)
    config = TokenizerConfig(vocab_size=sizes, joint=bool(request.param))
    learned = train_tokenizer(config, GERMAN[:3] * 5, ENGLISH * 5, seed=1)[0]
    return marked(learned.source, "__de__", "__en__") if request.param == "marked" else learned


def marked(vocabulary: Vocabulary, *marks: str) -> Tokenizer:
    """One model for both sides, each with the mark of its language."""
    pieces = [vocabulary.piece(id) for id in range(4, vocabulary.size)]
    model = Model(vocabulary.model).numbered([*pieces, *marks], frozenset(marks)).model
    return Tokenizer(*(Vocabulary(model, mark=mark) for mark in marks))


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(encoding, "WORTH_A_PROCESS", 20)
    monkeypatch.setattr(encoding, "CHUNK", 7)
    monkeypatch.setattr(encoding, "processors", lambda: 2)


def put(folder, tokenizer, **options):
    counted = []
    found = encode(
        CORPUS,
        tokenizer,
        folder,
        **{"split": "train", "source_eos": True, "max_length": 100, "remember": counted.append} | options,
    )
    return {path.name: path.read_bytes() for path in found.places[0].iterdir()}, counted


def reference(tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The arrays as they were once made: pair by pair, in memory."""
    pairs, source, target = [], [], []
    sides = zip(tokenizer.encode_source(CORPUS.source), tokenizer.encode_target(CORPUS.target), strict=True)
    for place, (one, other) in enumerate(sides):
        if one and other and max(len(one) + 1, len(other) + 1) <= 100:
            pairs.append(place)
            source.append([*one, EOS])
            target.append(other)
    arrays = {"pairs": np.array(pairs, dtype=np.int64)}
    for name, rows in (("source", source), ("target", target)):
        arrays[name] = np.array([id for row in rows for id in row], dtype=np.int32)
        arrays[f"{name}_offsets"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return arrays


def test_the_files_are_those_that_numpy_writes_of_the_whole(tmp_path, tokenizer):
    """Runs that were prepared before go on with what they have."""
    found, _ = put(tmp_path / "a", tokenizer)
    for name, array in reference(tokenizer).items():
        np.save(tmp_path / "expected.npy", array)
        assert found[f"{name}.npy"] == (tmp_path / "expected.npy").read_bytes()
        assert hashlib.sha256(found[f"{name}.npy"]).hexdigest() in found["index.json"].decode()


def test_several_processes_write_the_same_and_count_the_same_words(tmp_path, tokenizer, processes):
    together, counted = put(tmp_path / "a", tokenizer)
    encoding.CHUNK = 1000
    alone, counted_alone = put(tmp_path / "b", tokenizer)
    assert together == alone
    [one], [other] = counted, counted_alone
    for name in ("source", "target"):
        learned = "\n".join(getattr(CORPUS, name)[place] for place in reference(tokenizer)["pairs"])
        assert getattr(one, name) == getattr(other, name) == Counter(words(learned))
    expected = np.sort(fingerprints_of(ListedText(CORPUS.source), ListedText(CORPUS.target)))
    assert np.array_equal(one.numbers, expected)
    assert np.array_equal(other.numbers, expected)


def test_a_process_that_is_killed_is_one_error_and_leaves_nothing(tmp_path, tokenizer, processes, monkeypatch):
    started = []

    class Doomed(encoding._Workers):
        def encode(self, *sides):
            started.extend(self.processes)
            os.kill(self.processes[0].pid, signal.SIGKILL)
            return super().encode(*sides)

    monkeypatch.setattr(encoding, "_Workers", Doomed)
    with pytest.raises(ResourceError, match="a process that encodes the text was ended"):
        put(tmp_path, tokenizer)
    assert list(tmp_path.iterdir()) == []
    assert all(process.poll() is not None for process in started)


def test_what_ends_a_job_is_heard_by_the_one_that_asked_alone(tokenizer):
    """A closed terminal, or a queue's signal, ended the processes, too: too little memory, it said."""
    encoder = encoding.Encoder(tokenizer, source_eos=True, max_length=None, remembers=False)
    workers = encoding._Workers(encoder, 1)
    [process] = workers.processes
    try:
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
        line = b"ein hund\n"
        first = workers.encode(line, line, None)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(name)
        assert np.array_equal(workers.encode(line, line, None).source, first.source)
    finally:
        workers.end()
    assert process.returncode == -signal.SIGKILL


def test_a_process_ends_with_the_one_that_asked(tokenizer):
    workers = encoding._Workers(encoding.Encoder(tokenizer, source_eos=True, max_length=None, remembers=False), 1)
    [process] = workers.processes
    try:
        process.stdin.close()
        assert process.wait(timeout=20) == 0
    finally:
        workers.end()


def test_a_process_has_one_thread_for_its_lines(tokenizer, monkeypatch):
    """There are as many processes as processors: a square of that would be more than a container may have."""
    asked, read = [], sentencepiece.SentencePieceProcessor.encode

    def seen(processor, text, **options):
        asked.extend([options.get("num_threads")] if isinstance(text, list) else [])
        return read(processor, text, **options)

    monkeypatch.setattr(sentencepiece.SentencePieceProcessor, "encode", seen)
    monkeypatch.setattr(Vocabulary, "n_threads", -1)
    monkeypatch.setattr(signal, "signal", lambda *how: None)
    requests = BytesIO()
    models = [vocabulary.model for vocabulary in tokenizer.models().values()]
    marks = [vocabulary.mark for vocabulary in tokenizer.models().values()]
    options = {"source_eos": True, "max_length": None, "remembers": False, "marks": marks}
    encoding._send(requests, options, models)
    texts = ["".join(f"{line} {n}\n" for n in range(30)).encode() for line in ("ein bier", "a beer")]
    encoding._send(requests, {"tag": None}, texts)
    requests.seek(0)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=requests))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=BytesIO()))
    encoding.work()
    assert set(asked) == {1}
