"""A text is the same ids in however many volumes, whoever makes them, and however often that was ended."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import Killer, Saboteur
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from ranks import codes, start

from transformer_cli import files
from transformer_cli.config.data import Direction
from transformer_cli.config.source import load_config
from transformer_cli.config.tokenizer import TokenizerConfig
from transformer_cli.data import encoding, volumes
from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.fingerprints import LINES, fingerprints_of, load_fingerprints
from transformer_cli.data.mixture import Part
from transformer_cli.data.text import ListedText
from transformer_cli.data.volumes import Remembered, Volumes
from transformer_cli.errors import DataError, Interrupted, ResourceError
from transformer_cli.evaluation.words import WORD_COUNTS
from transformer_cli.temporary import temporary_directory
from transformer_cli.tokenizer import EOS, Tokenizer, train_tokenizer
from transformer_cli.training.listening import Listener
from transformer_cli.training.material import Material
from transformer_cli.training.parallel import World, joined
from transformer_cli.training.replacing import sweep
from transformer_cli.training.signals import StopRequest
from transformer_cli.writing import words

LINES_OF_BOTH = ["ein hund", "hund, katze maus", "x" * 60, "\u200b", "möchte ein bier", "ein ein ein hund"]
SOURCE = [f"{LINES_OF_BOTH[n % 6]} {n % 7}" if n % 6 != 3 else "\u200b" for n in range(60)]
TARGET = [line.replace("ein", "a") for line in SOURCE[::-1]]
OPTIONS: dict[str, Any] = {"split": "train", "source_eos": True, "max_length": 40, "remembers": True}
VOLUME, N_VOLUMES = 25, 3
EVERY = "TX_EVERY_FAULT" in os.environ


def directed(*sizes: int) -> Corpus:
    """The text in two directions, so many pairs of each."""
    ways = Direction("de", "en"), Direction("en", "de")
    parts = tuple(Part(str(way), n, 1.0, way) for way, n in zip(ways, sizes, strict=True))
    return Corpus(SOURCE, TARGET, parts=parts)


CORPUS = directed(31, 29)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = TokenizerConfig(vocab_size=60)
    return train_tokenizer(config, SOURCE, TARGET, seed=1, tags=("de", "en"))[0]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "VOLUME", VOLUME)
    monkeypatch.setattr(encoding, "CHUNK", 4)
    monkeypatch.setattr(encoding, "WORTH_A_PROCESS", 1000)
    monkeypatch.setattr(encoding, "processors", lambda: 2)


def made(parts: Volumes) -> tuple[EncodedCorpus, list[Remembered]]:
    kept: list[Remembered] = []
    for _ in parts.make(parts.missing(lambda line: None), lambda n: None):
        pass
    parts.remember(kept.append)
    return parts.open(), kept


def check(found: EncodedCorpus, tokenizer: Tokenizer, corpus: Corpus = CORPUS) -> None:
    """Against the tokenizer itself, line by line."""
    tags = [tokenizer.tags[part.direction.target] for part in corpus.parts for _ in range(part.pairs) if part.direction]
    sides = zip(tags, tokenizer.source.encode(corpus.source), tokenizer.encode_target(corpus.target), strict=True)
    expected, counts = [], Counter[str]()
    for place, (tag, source, target) in enumerate(sides):
        if not source or not target:
            counts["no pieces"] += 1
        elif len(source) + 2 > 40 or len(target) + 1 > 40:
            counts["longer than 40 pieces"] += 1
        else:
            expected.append((place, [tag, *source, EOS], target))
    rows = range(len(found))
    assert [
        (found.pairs[i], source.tolist(), target.tolist())
        for i, source, target in zip(rows, found.sources(rows), found.targets(rows), strict=True)
    ] == expected
    assert found.lengths.tolist() == [[len(source), len(target) + 1] for _, source, target in expected]
    assert found.counts == counts


def check_kept(kept: Remembered, found: EncodedCorpus) -> None:
    assert 0 < len(found) < len(SOURCE)
    for side, lines in ((kept.source, SOURCE), (kept.target, TARGET)):
        assert side == Counter(words("\n".join(lines[place] for place in found.pairs)))
    assert np.array_equal(kept.numbers, np.sort(fingerprints_of(ListedText(SOURCE), ListedText(TARGET))))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("most", "n"), [(100, 3), (3, 3), (2, 2), (1, 1)])
def test_a_larger_text_has_larger_volumes_not_more(
    most: int, n: int, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has four files open as long as training lasts, and systems let a process have 1,024: of 256 million pairs in
    volumes of a million none could be learned from."""
    monkeypatch.setattr(volumes, "MOST_VOLUMES", most)
    before = len(os.listdir("/dev/fd"))
    found, [kept] = made(Volumes(CORPUS, tokenizer, tmp_path, **OPTIONS))
    assert len(found.places) == n
    assert len(os.listdir("/dev/fd")) - before == 4 * n
    check(found, tokenizer)
    check_kept(kept, found)


@settings(max_examples=25, phases=[Phase.generate])  # to look for a simpler failure takes minutes
@given(size=st.integers(4, 70), first=st.integers(0, 60), ends=st.lists(st.integers(0, 5), max_size=3), data=st.data())
def test_ids_words_and_lines_depend_neither_on_volumes_nor_on_who_was_stopped_where(
    tokenizer: Tokenizer, size: int, first: int, ends: list[int], data: st.DataObject
) -> None:
    corpus = directed(first, 60 - first)
    with pytest.MonkeyPatch.context() as patch, temporary_directory() as folder:
        patch.setattr(volumes, "VOLUME", size)
        patch.setattr(files.Disk, "sync", lambda *_: None)  # which takes most of the time
        for end in ends:
            parts = Volumes(corpus, tokenizer, folder, **OPTIONS)
            missing = data.draw(st.permutations(parts.missing(pytest.fail)))
            list(itertools.islice(parts.make(missing, lambda n: None), end))
        found, [kept] = made(Volumes(corpus, tokenizer, folder, **OPTIONS))
        assert len(found.places) == -(-60 // size)
        check(found, tokenizer, corpus)
        check_kept(kept, found)
        whole, [at_once] = made(Volumes(corpus, tokenizer, folder / "other", **OPTIONS))
        assert np.array_equal(kept.numbers, at_once.numbers)
        assert content(folder / "other") == {
            name: held for name, held in content(folder).items() if not name.startswith("other")
        }
        assert {path.name for place in whole.places for path in place.iterdir()} == {
            *(f"{name}.npy" for name in ("pairs", "source", "source_offsets", "target", "target_offsets")),
            "index.json",
        }


def test_several_processes_leave_the_same_bytes_and_words(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(Volumes(CORPUS, tokenizer, tmp_path / "alone", **OPTIONS))
    monkeypatch.setattr(encoding, "WORTH_A_PROCESS", 10)
    found, [kept] = made(Volumes(CORPUS, tokenizer, tmp_path / "together", **OPTIONS))
    assert content(tmp_path / "together") == content(tmp_path / "alone")
    check(found, tokenizer)
    check_kept(kept, found)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk, which takes most of the time."""
    monkeypatch.setattr(files.Disk, "sync", lambda *_: None)


@pytest.mark.usefixtures("quick")
def test_whenever_it_is_killed_at_most_the_volume_at_hand_is_lost(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """And what is remembered is remembered whole, even of a text that took several starts."""
    of_a_run(tmp_path / "straight", tokenizer).prepare()
    found = set()
    for nth in itertools.count(1, 1 if EVERY else 7):
        run = tmp_path / str(nth)
        if not Killer(nth).run(lambda run=run: of_a_run(run, tokenizer).prepare()):  # type: ignore[misc]
            break
        there = {path: path.stat().st_ino for path in sorted((run / "data").glob("train-*"))}
        found.add(len(there))
        sweep(run)
        of_a_run(run, tokenizer).prepare()
        assert {path: path.stat().st_ino for path in there} == there
        assert content(run) == content(tmp_path / "straight")
    assert found == {*range(N_VOLUMES + 1)}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("failure", ["ENOSPC", "EIO"])
def test_a_disk_that_refuses_takes_what_was_at_hand_and_nothing_else(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    for nth in itertools.count(1, 1 if EVERY else 7):
        folder = tmp_path / str(nth)
        error = OSError(getattr(errno, failure), os.strerror(getattr(errno, failure)))
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", saboteur := Saboteur(nth, error, short=failure == "ENOSPC"))
            with suppress(ResourceError):  # any other is a failure of this test
                made(Volumes(CORPUS, tokenizer, folder, **OPTIONS))
        if not saboteur.struck:
            break
        found, _ = made(Volumes(CORPUS, tokenizer, folder, **OPTIONS))
        check(found, tokenizer)
    assert nth > 50


def test_of_damaged_volumes_only_those_are_made_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    found, _ = made(Volumes(CORPUS, tokenizer, tmp_path, **OPTIONS))
    before = content(tmp_path)
    times = [place.stat().st_ino for place in found.places]
    path = found.places[1] / "target.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    said: list[str] = []
    parts = Volumes(CORPUS, tokenizer, tmp_path, **OPTIONS)
    assert parts.missing(said.append) == [1]
    assert said == [f"{path} is damaged: it is made again from the text"]
    found, kept = made(parts)
    assert content(tmp_path) == before
    assert [place.stat().st_ino == inode for place, inode in zip(found.places, times, strict=True)] == [1, 0, 1]
    assert kept == []


def test_words_and_lines_that_were_changed_are_not_remembered(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name, change in itertools.product(("words.jsonl", "numbers.npy"), (b"", b"7")):
        parts = Volumes(CORPUS, tokenizer, tmp_path / f"{name}{len(change)}", **OPTIONS)
        list(parts.make(parts.missing(pytest.fail), lambda n: None))
        path = parts.places[2] / name
        path.write_bytes(path.read_bytes()[: -1 - len(change)] + change)
        parts.remember(lambda found: pytest.fail("it was kept"))
        check(parts.open(), tokenizer)


def test_a_text_of_several_volumes_leaves_none_of_another_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    made(Volumes(directed(10, 50), tokenizer, tmp_path, **OPTIONS))
    made(Volumes(Corpus(["ein hund"], ["ein hund"]), tokenizer, tmp_path, **OPTIONS | {"split": "valid"}))
    found, _ = made(Volumes(CORPUS, tokenizer, tmp_path, **OPTIONS))
    assert {path for path in tmp_path.iterdir() if path.name.startswith("train")} == set(found.places)
    assert len([*tmp_path.iterdir()]) == N_VOLUMES + 1
    one = replace(CORPUS, source=SOURCE[:25], target=TARGET[:25], parts=())
    (place,) = made(Volumes(one, tokenizer, tmp_path, **OPTIONS))[0].places
    assert {path.name for path in tmp_path.glob("train*")} == {place.name}


# --- in a run --------------------------------------------------------------------------------------------------------


class Stopped(StopRequest):
    """Asked for once so many pairs are encoded."""

    def after(self, n_pairs: int) -> Stopped:
        self.left = n_pairs
        return self

    def advance(self, n: int) -> None:
        self.left -= n
        if self.left <= 0:
            self.signal_number = 2


def of_a_run(
    folder: Path, tokenizer: Tokenizer, *, world: World | None = None, stop: StopRequest | None = None, **heard: Any
) -> Material:
    config = load_config("tiny.yaml")
    config = config.model_copy(update={"data": config.data.model_copy(update={"max_length": 40})})
    folder.mkdir(exist_ok=True)
    return Material(CORPUS, tokenizer, config, folder, world or World(), Listener(**heard), stop or StopRequest())


def test_a_stop_comes_after_the_volume_at_hand_and_the_next_start_says_what_was_there(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    stop, said = Stopped().after(30), list[str]()

    class Watched(Material):
        def _make(self, parts: Volumes, advance: Any) -> None:
            super()._make(parts, lambda n: (advance(n), stop.advance(n)))

    material = of_a_run(tmp_path, tokenizer, stop=stop)
    material.__class__ = Watched
    with pytest.raises(Interrupted, match="stopped encoding the train text: 50 of 60 pairs are there, and the same"):
        material.prepare()
    assert not (tmp_path / LINES).exists()
    material = of_a_run(tmp_path, tokenizer, say=said.append)
    material.prepare()
    assert said[0] == "encoding the train text: 50 of 60 pairs were there"
    check(material.encoded, tokenizer)
    assert (tmp_path / WORD_COUNTS).exists()
    numbers = load_fingerprints(tmp_path)
    assert numbers is not None
    assert numbers.shape == (2, 60)


@pytest.fixture
def machines(tokenizer: Tokenizer, tmp_path: Path) -> list[str]:
    """Which volumes were made by which of three processes, of which two are the first on their machine."""
    run = tmp_path / "run"
    run.mkdir()

    def prepare(rank: int) -> None:
        os.environ["LOCAL_RANK"] = str([0, 1, 0][rank])
        real = Volumes._make

        def watched(self: Volumes, number: int, *arguments: Any) -> None:
            (tmp_path / f"{rank} {number}").touch()
            real(self, number, *arguments)

        Volumes._make = watched  # type: ignore[method-assign]
        with joined("cpu") as world:
            material = of_a_run(run, tokenizer, world=world)
            material.prepare()
            check(material.encoded, tokenizer)

    assert codes(start(3, prepare, tmp_path), limit_s=60) == [0, 0, 0]
    return sorted(path.name for path in tmp_path.glob("? ?"))


def test_volumes_are_dealt_out_over_the_machines(machines: list[str], tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert machines == ["0 0", "0 2", "2 1"]
    of_a_run(tmp_path / "alone", tokenizer).prepare()
    assert content(tmp_path / "alone") == content(tmp_path / "run")


@pytest.mark.parametrize(
    ("line", "max_length", "why", "hint"),
    [
        ("\u200b", 64, "no pieces: 20", "look at the text: it has no visible characters"),
        ("das haus", 2, "longer than 2 pieces: 20", "raise data.max_length, 2"),
    ],
)
def test_why_no_pair_is_left_is_said_and_what_helps(
    line: str, max_length: int, why: str, hint: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    corpus = Corpus([line] * 20, [line] * 20)
    parts = Volumes(corpus, tokenizer, tmp_path, split="train", source_eos=True, max_length=max_length, remembers=False)
    with pytest.raises(DataError) as caught:
        made(parts)
    assert caught.value.message == f"no sentence pair is left to learn from, of 20, {why}"
    assert caught.value.hint == hint
    held = Volumes(corpus, tokenizer, tmp_path, split="valid", source_eos=True, max_length=max_length, remembers=False)
    with pytest.raises(DataError, match="no sentence pair is left to validate with, of 20"):
        made(held)
