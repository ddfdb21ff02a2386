"""What a run learns from: its text as ids, encoded once, and what of it each epoch sees in which batches."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_cli import files
from transformer_cli.accounting.flops import Work
from transformer_cli.accounting.memory import Storage, activations
from transformer_cli.checkpoints.find import find_checkpoint, run_of
from transformer_cli.config.run import RunConfig
from transformer_cli.data import batching
from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.fingerprints import LINES, fingerprints_of, save_fingerprints
from transformer_cli.data.mixture import Drawn, MixedCorpus, Mixture, Seen
from transformer_cli.data.sampled import Draw, SampledCorpus
from transformer_cli.data.text import as_text, where_in_words
from transformer_cli.data.volumes import Remembered, Volumes, encoded_before
from transformer_cli.errors import ModelError
from transformer_cli.evaluation.words import WORD_COUNTS, WordCounts, count_words, load_word_counts, save_word_counts
from transformer_cli.machine import Machine
from transformer_cli.tokenizer import Tokenizer
from transformer_cli.tokenizer.losses import LINES_WITH_UNKNOWN, Unknown, lacking, remedy, rewriting
from transformer_cli.training.listening import Advance, Listener
from transformer_cli.training.parallel import World
from transformer_cli.training.signals import StopRequest
from transformer_cli.wording import counted

Epoch = tuple[Drawn | MixedCorpus, list[batching.Indices]]

TOO_LONG = 16
"""Times data.max_length: a pair to validate with that has so many pieces is told of."""


class Material:
    """The training text of a run directory."""

    def __init__(
        self,
        text: Corpus,
        tokenizer: Tokenizer,
        config: RunConfig,
        run_dir: Path,
        world: World,
        listener: Listener,
        stop: StopRequest,
    ) -> None:
        self.text, self.tokenizer, self.config = text, tokenizer, config
        self.run_dir, self.world, self.listener, self.stop = run_dir, world, listener, stop
        self._latest: tuple[tuple[int, tuple[tuple[int, int], ...]], Epoch] | None = None

    def prepare(self) -> None:
        """Encode the text, or find it encoded."""
        if any((self.run_dir / "data").glob("train-sampled-*")):
            self.listener.warn("subwords are drawn batch by batch now: batches are others, and bits will differ")
        self.encoded = self.encode(self.text, "train")
        self.mixture = Mixture(self.text.parts, self.encoded.pairs, temperature=self.config.data.temperature)
        for part, size, weight, seen in zip(self.text.parts, *self._of_parts(), strict=False):
            share, given = seen / sum(self.mixture.seen), part.pairs + part.left_out
            pairs = counted(size, "pairs") + (f" of {given:,}" if given > size else "")
            self.listener.say(f"{part.name}: {pairs}, {weight:.3g} times an epoch, {share:.1%} of it")

    def contributions(self) -> list[dict[str, Any]]:
        """What run.json keeps of each text: the pairs that are learned from, of how many that were given, how often an
        epoch has them, and how many times it has one of them in all."""
        return [
            {"name": part.name, "pairs": size, "given": part.pairs + part.left_out, "weight": weight, "seen": seen}
            for part, size, weight, seen in zip(self.text.parts, *self._of_parts(), strict=False)
        ]

    def _of_parts(self) -> tuple[list[int], list[float], list[int]]:
        return self.mixture.sizes, self.mixture.weights, self.mixture.seen

    def encode(self, text: Corpus, split: str) -> EncodedCorpus:
        """A text as ids; of the training text, words and lines are remembered while it is encoded. What is held out of
        it to validate with is as long as it is. Raises Interrupted where a stop was asked for before all volumes were
        there."""
        is_training = split == "train"
        is_held_out = split == "valid" and self.config.data.held_out is not None
        volumes = Volumes(
            text,
            self.tokenizer,
            self.run_dir / "data",
            split=split,
            source_eos=self.config.data.source_eos,
            max_length=self.config.data.max_length if is_training or is_held_out else None,
            remembers=is_training,
        )
        with self.listener.stage(f"encoding the {split} text", len(text)) as advance:
            self._make(volumes, advance)
            if is_training and self.world.is_main:
                volumes.remember(self._keep)
            encoded = volumes.open()
            if is_training:
                self.remember(encoded)
        if is_held_out:
            share = self.config.data.valid
            self.listener.say(
                f"held out of the training text to validate with: {counted(len(encoded), 'pairs')} ({share})"
            )
            for reason, n in encoded.counts.items():
                self.listener.warn(f"held out: {n:,} {reason}")
        if self.world.is_main:
            self._tell_losses(text, encoded, is_training=is_training)
            if not is_training:
                self._tell_longest(text, encoded)
        return encoded

    def _tell_longest(self, text: Corpus, encoded: EncodedCorpus) -> None:
        """Warn of a pair to validate with that may not fit into memory, where training would meet it first."""
        if not len(encoded):
            return
        longest, limit = int(encoded.lengths.max(axis=1).argmax()), self.config.data.max_length
        if (n := int(encoded.lengths[longest].max())) > TOO_LONG * limit:
            self.listener.warn(
                f"validation text: {where_in_words(text.source, [int(encoded.pairs[longest])])}: {n:,} pieces, where "
                f"what is learned from has {limit:,} at most; none is left out, and memory grows with their square"
            )

    def _tell_losses(self, text: Corpus, encoded: EncodedCorpus, *, is_training: bool) -> None:
        """Say what of a text no piece has, on either side, and which references no translation can equal."""
        config, tokenizer = self.config.tokenizer, self.tokenizer
        name = "training text" if is_training else "validation text"
        is_inherited = self.config.training.init_from is not None
        for side, asked in zip(("source", "target"), config.asked(len(tokenizer.tags)), strict=True):
            n, tokens, places = encoded.unknown(side, LINES_WITH_UNKNOWN)
            if n:
                vocabulary, lines = getattr(tokenizer, side), getattr(text, side)
                found = Unknown(n, tokens, lacking(vocabulary, (lines[place] for place in places.tolist())))
                is_cut = config.kind in ("char", "word") and vocabulary.size == asked
                way_out = remedy(config, is_inherited=is_inherited, is_cut=is_cut, is_learned=is_training)
                self.listener.warn(found.in_words(name, f"{side}s", way_out))
        if not is_training and (words := rewriting(text.target, config, tokenizer.target, is_inherited=is_inherited)):
            self.listener.warn(f"{name}: {words}")

    def _make(self, volumes: Volumes, advance: Advance) -> None:
        """Have all volumes of a text: each machine makes one at a time, by the first of its processes; after each of
        these rounds all agree on whether to go on."""
        world, what, n_pairs = self.world, f"encoding the {volumes.split} text", len(volumes.corpus)
        missing = volumes.missing(self.listener.warn) if world.is_main else []
        missing = json.loads(world.share(files.json_line(missing)))
        advance(there := n_pairs - volumes.n_pairs(missing))
        if missing and there:
            self.listener.say(f"{what}: {there:,} of {n_pairs:,} pairs were there")
        makers = world.first_of_each_machine()
        rounds = [missing[first : first + len(makers)] for first in range(0, len(missing), len(makers))]
        mine = [number for made in rounds for maker, number in zip(makers, made, strict=False) if maker == world.rank]
        with closing(volumes.make(mine, advance)) as making:
            for number, made in enumerate(rounds, start=1):
                start = time.monotonic()
                next(making, None)
                asked = world.sum(*self.stop.asked(next_s=time.monotonic() - start))
                there += volumes.n_pairs(made)
                advance(volumes.n_pairs([other for other in made if other not in mine]))
                if number < len(rounds) and self.stop.is_agreed(asked):
                    world.part()
                    raise self.stop.interruption(
                        f"{what}: {there:,} of {n_pairs:,} pairs are there, and the same command goes on with the rest"
                    )

    def remember(self, encoded: EncodedCorpus | None = None) -> None:
        """Note in the run directory which words and lines the training text has, where that is not there: a text that
        was encoded by an older tx is read once more for it. encoded: the pairs that are learned from; words of others
        do not count."""
        if not self.world.is_main:
            return
        if not (self.run_dir / WORD_COUNTS).exists():
            encoded = encoded_before(self.run_dir / "data", "train") if encoded is None else encoded
            text, every = self.text, np.arange(len(self.text))
            if encoded is not None:
                text = text.without(np.setdiff1d(every, encoded.pairs), {})
            self._save_words(count_words(text.source, text.target))
        if not (self.run_dir / LINES).exists():
            numbers = fingerprints_of(as_text(self.text.source), as_text(self.text.target))
            numbers.sort()
            save_fingerprints(self.run_dir, numbers)

    def _keep(self, found: Remembered) -> None:
        self._save_words(WordCounts(found.source, found.target))
        save_fingerprints(self.run_dir, found.numbers)

    def _save_words(self, counts: WordCounts) -> None:
        """With those that the run which this one began with was trained on: what its weights know is not unseen."""
        before = None
        if (begun := self.config.training.init_from) is not None:
            try:
                before = load_word_counts(run_of(find_checkpoint(begun)))
            except ModelError as failure:
                self.listener.warn(f"words that {begun} was trained on will be taken for unseen: {failure.message}")
        save_word_counts(self.run_dir, counts if before is None else counts.with_those(before))

    @property
    def varies(self) -> bool:
        """Whether one epoch may have more batches than another."""
        return self.config.tokenizer.sampling > 0 or self.mixture.varies

    def epoch(self, number: int, shares: Sequence[tuple[int, int]] = ()) -> Epoch:
        """The text as an epoch sees it, each pair as often as it comes, with subword sampling in its own pieces; and
        this process's batches of it, or of what others have left of it (`shares`). The last that was asked for is kept:
        a plan takes its time."""
        asked = (number, tuple(shares))
        if self._latest is None or self._latest[0] != asked:
            self._latest = None  # before the next one takes as much memory
            with self.world.within("plan"):
                self._latest = asked, self._planned(number, shares)
        return self._latest[1]

    def _planned(self, number: int, shares: Sequence[tuple[int, int]]) -> Epoch:
        drawn, seen = self._drawn(number), self.seen(number)
        text = drawn if seen is None else MixedCorpus(drawn, seen)
        return text, batching.plan_of_rest(
            text.lengths,
            shares,
            budget=self.config.training.budget_tokens,
            seed=self.config.seed,
            epoch=number,
            rank=self.world.rank,
            world=self.world.size,
        )

    def largest(self, number: int, shares: Sequence[tuple[int, int]], machine: Machine) -> Epoch:
        """This process's batches of an epoch that take most memory: the one with the most pieces, and the one with the
        longest sentence, of whose length attention takes the square. On a CPU, where each takes as long as an update,
        only the one that is computed to take more."""
        text, plan = self.epoch(number, shares)
        every = text.lengths
        sizes = [(int(lengths.sum()), int(lengths.max(initial=0))) for lengths in (every[batch] for batch in plan)]
        most, longest = (max(range(len(plan)), key=lambda n, by=by: sizes[n][by]) for by in (0, 1))  # type: ignore[misc]
        largest = [plan[n] for n in dict.fromkeys((most, longest))]
        if machine.kind == "cpu":
            largest = [max(largest, key=lambda batch: self._bytes(every[batch], machine))]
        return text, largest

    def _bytes(self, lengths: npt.NDArray[np.integer], machine: Machine) -> int:
        """Of activations, roughly, without padding. lengths: of a batch's sentences, source and target."""
        work = Work(len(lengths), *(-(-lengths.sum(axis=0) // max(1, len(lengths)))).tolist())
        storage = Storage(precision=machine.precision, fused=machine.fused_attention)
        return sum(item.bytes for item in activations(self.config.counted, work, storage))

    def places(self, indices: Iterable[int]) -> list[int]:
        """Where in the text the pairs lie that batches of the latest epoch name so; each once."""
        assert self._latest is not None
        text, _ = self._latest[1]
        rows = (text.seen.pair(index)[0] if isinstance(text, MixedCorpus) else index for index in indices)
        return list(dict.fromkeys(int(self.encoded.pairs[row]) for row in rows))

    def in_words(self, n_batches: int) -> str:
        """How much there is to learn from, by this process's batches of an epoch."""
        each = f" for each of {self.world.size:,} processes" if self.world.size > 1 else ""
        return f"{counted(len(self.encoded), 'sentence pairs')}, {counted(n_batches, 'batches')} an epoch{each}"

    def lengths(self, epoch: int) -> npt.NDArray[np.integer]:
        """Of the pairs of an epoch, (N, 2), source and target, end marks included."""
        text = self._latest[1][0] if self._latest is not None and self._latest[0][0] == epoch else self.epoch(epoch)[0]
        return text.lengths

    def target_tokens(self, epoch: int) -> int:
        return int(self.lengths(epoch)[:, 1].sum(dtype=np.int64))

    def seen(self, epoch: int) -> Seen | None:
        """See Mixture.epoch."""
        return self.mixture.epoch(seed=self.config.seed, epoch=epoch)

    def _drawn(self, epoch: int) -> Drawn:
        config = self.config
        if not (rate := config.tokenizer.sampling):
            return self.encoded
        draw = Draw(rate, config.seed, epoch)
        return SampledCorpus(self.encoded, self.text, self.tokenizer, draw, max_length=config.data.max_length)
