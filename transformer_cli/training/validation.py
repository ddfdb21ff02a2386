"""How good is the model by now: loss under teacher forcing, and BLEU of real translations."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from transformer_cli.config.data import DataConfig, Direction
from transformer_cli.config.model import Stack
from transformer_cli.config.run import RunConfig
from transformer_cli.data import batching
from transformer_cli.data.binary import EncodedCorpus
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.loader import batches, divided
from transformer_cli.data.mixture import sources_into
from transformer_cli.decoding.doubt import certainty, usual_certainty
from transformer_cli.decoding.scoring import perplexity
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import DataError
from transformer_cli.evaluation import metrics
from transformer_cli.files import json_line
from transformer_cli.machine import Machine
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import Tokenizer
from transformer_cli.training.listening import Stage, unseen
from transformer_cli.training.objective import loss_of
from transformer_cli.training.parallel import World
from transformer_cli.trouble import in_halves
from transformer_cli.wording import counted

N_SAMPLES = 2
"""Translations that are shown."""
FEW_CHARACTERS, MAX_CHARACTERS = 50, 100
"""Of a line that is offered to be typed: rather, and at most."""


class GivenUpError(Exception):
    """A process was asked to stop, and did not come to the end of its part."""


@dataclass(frozen=True)
class Validation:
    """The validation text, and how it is translated and scored."""

    corpus: Corpus
    encoded: EncodedCorpus
    tokenizer: Tokenizer
    config: RunConfig
    machine: Machine
    usual_sentences: int
    """Of a line that is learned from."""
    world: World
    stage: Stage = unseen
    asked: Callable[[], bool] = lambda: False
    """Whether this process is to stop."""

    def __post_init__(self) -> None:
        """Raise DataError where the model lacks positions for a pair: of validation none is left out."""
        stacks: tuple[Stack, ...] = ("encoder", "decoder")
        for text, stack, lengths in zip(("source", "target"), stacks, self.encoded.lengths.T, strict=True):
            room, longest = self.config.model.room(stack), int(lengths.argmax())
            if room is not None and lengths[longest] > room:
                pair = self.encoded.pairs[longest] + 1
                raise DataError(
                    f"the {text} of validation pair {pair:,} has {counted(lengths[longest], 'pieces')}, "
                    f"but the {stack} has {counted(room, 'positions')}",
                    hint="raise model.max_positions, or leave that pair out of data.valid",
                )

    def results(self, model: Transformer) -> dict[str, Any]:
        """loss (nats per target token, no smoothing), perplexity, bleu with its signature, that of each of several
        directions, a few translations, and the certainty below which a translation is one of the least sure
        (`unsure_below`). Each process has a part of the text, all have the results, and those of one process alone.

        The model's weights and the randomness of training are left as they are. Raises GivenUpError, on each process,
        once one is asked to stop.
        """
        loss = self.loss(model)
        results: dict[str, Any] = {"loss": loss, "perplexity": perplexity(-loss, 1)}
        if self.config.training.validation_bleu:
            results |= self.bleu(model)
        return results

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """Both sides of the pairs that are encoded."""
        source, target = (
            [side[place] for place in self.encoded.pairs] for side in (self.corpus.source, self.corpus.target)
        )
        return source, target

    @property
    def stretches(self) -> list[tuple[Direction | None, tuple[int, int]]]:
        """Which of the pairs that are encoded are in which direction, one stretch after the other."""
        parts = self.corpus.parts
        ends = np.searchsorted(self.encoded.pairs, np.cumsum([0, *(part.pairs for part in parts)])).tolist()
        found = [(part.direction, limits) for part, limits in zip(parts, pairwise(ends), strict=True)]
        return found or [(None, (0, len(self.encoded)))]

    def _rows_by_direction(self) -> dict[Direction, list[int]]:
        """The same, all stretches of a direction together; none where there is one direction, or nobody says."""
        found: dict[Direction, list[int]] = {}
        for direction, limits in self.stretches:
            if direction is not None and limits[0] < limits[1]:
                found.setdefault(direction, []).extend(range(*limits))
        return found if len(found) > 1 else {}

    @torch.inference_mode()
    def loss(self, model: Transformer) -> float:
        """Mean negative log-likelihood of the targets."""
        model.eval()
        plan = batching.plan(self.encoded.lengths, budget=self.budget, seed=0, epoch=0)
        own = range(self.world.rank, len(plan), self.world.size)
        losses, there, gave_up = [0.0] * len(plan), [], True
        ready = batches(self.encoded, [plan[number] for number in own])
        # Closed here: a second signal would be lost in an iterator that is only dropped.
        with self.stage("validation: loss", len(own)) as advance, suppress(GivenUpError), closing(ready):
            for batch in ready:
                self._heed()
                parts = in_halves(partial(loss_of, model, smoothing=0.0), batch, partial(divided, n=2))
                there.append(torch.stack([*parts]).sum())
                self.world.touch()
                advance(1)
            if there:  # of a few batches some processes have none
                losses[own.start :: own.step] = torch.stack(there).cpu().tolist()
            gave_up = False
        # One by one, for sums of sums would have other bits.
        n_given_up, *losses = self.world.sum(float(gave_up), *losses)
        if n_given_up:
            raise GivenUpError
        return sum(losses) / int(self.encoded.lengths[:, 1].sum())

    @property
    def budget(self) -> int:
        """Validation keeps every pair, so its longest one sets the budget where it exceeds that of training."""
        return max(self.config.training.budget_tokens, int(self.encoded.lengths.max()))

    def bleu(self, model: Transformer) -> dict[str, Any]:
        """Greedy translations of the whole text, scored as `tx evaluate` scores them."""
        dtype = self.machine.dtype
        # In fp32 nothing of it is cast, and what trains translates.
        frozen = (model if dtype == torch.float32 else copy.deepcopy(model)).eval().compute_in(dtype, training=False)
        translator = Translator(
            frozen,
            self.tokenizer,
            self.config.decoding,
            device=self.machine.device,
            compiled=self.machine.compiled,
            source_eos=self.config.data.source_eos,
            max_length=self.config.data.max_length,
            max_sentences=self.usual_sentences,
            targets=[one.target for one in self.config.data.directions],
        )
        (lines, references), world = self.texts, self.world
        first, end = (len(lines) * rank // world.size for rank in (world.rank, world.rank + 1))
        found, gave_up = [], True
        with self.stage("validation: translating", end - first) as advance, suppress(GivenUpError):

            def come_further(n: int) -> None:
                self._heed()
                world.touch()
                advance(n)

            for direction, (begin, stop) in self.stretches:
                towards = translator if direction is None else translator.towards(direction.target)
                begin, stop = max(begin, first), min(stop, end)
                found += towards.translate_all(
                    lines[begin:stop], beam_size=1, search="beam", lines_before=begin, progress=come_further
                )
            gave_up = False
        own = [(one.text, None if one.is_of_nothing else certainty(one)) for one in found]
        texts = world.gather("" if gave_up else json_line(own))
        if not all(texts):
            raise GivenUpError
        shares = [json.loads(text) for text in texts]
        translations = [text for share in shares for text, _ in share]
        certainties = [known for share in shares for _, known in share if known is not None]
        options = self.config.evaluation.model_copy(update={"metrics": ["bleu"]})
        (score,) = metrics.score(translations, [references], options)
        shown = [begin for direction, (begin, stop) in self.stretches if direction is not None and begin < stop]
        samples = [
            {"source": lines[i], "reference": references[i], "translation": translations[i]}
            for i in shown or range(min(N_SAMPLES, len(translations)))
        ]
        several = {}
        for direction, rows in self._rows_by_direction().items():
            theirs, ours = ([text[row] for row in rows] for text in (references, translations))
            several[str(direction)] = metrics.score(ours, [theirs], options)[0].value
        return {
            "bleu": score.value,
            **({"directions": several} if several else {}),
            "signature": score.signature,
            "samples": samples,
            "unsure_below": usual_certainty(certainties),
        }

    def _heed(self) -> None:
        """GivenUpError once this process is to stop."""
        if self.asked():
            raise GivenUpError


def example_of(text: Corpus, data: DataConfig) -> tuple[str | None, str | None]:
    """A line of it that is easily typed, and into which language, where several were learned."""
    is_one = len({one.target for one in data.directions}) == 1
    directions = [part.direction for part in text.parts if part.direction is not None and not is_one]
    to = directions[0].target if directions else None
    return short_line(sources_into(text, to)), to


def short_line(lines: Sequence[str]) -> str | None:
    """One that is easily typed: the first of a few words, else the shortest; None where all are long or odd."""
    plain = [line for line in lines if line.isprintable() and line.strip() == line != "" and line[0] != "-"]
    fitting = [line for line in plain if len(line) <= MAX_CHARACTERS]
    short = (line for line in fitting if len(line) <= FEW_CHARACTERS and 3 <= len(line.split()) <= 8)
    return next(short, min(fitting, key=len, default=None))
