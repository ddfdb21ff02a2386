"""Text to text by tx itself: the search of models that PyTorch computes.

B batch, S source length
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch

from transformer_cli import heap
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import Stack
from transformer_cli.data.loader import padded
from transformer_cli.decoding.ensemble import Ensemble
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.sampling import drawn_as
from transformer_cli.decoding.search import search
from transformer_cli.decoding.shortlist import Shortlist, Shortlisted
from transformer_cli.decoding.stepper import Stepper
from transformer_cli.decoding.texts import Input, Learned, TextTranslator
from transformer_cli.decoding.workers import Found, Work, spread, worth
from transformer_cli.errors import UsageError
from transformer_cli.model.prepared import Prepared
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import Tokenizer
from transformer_cli.trouble import halved, in_halves

if TYPE_CHECKING:
    from transformer_cli.decoding.rerank import Channel


class Translator(TextTranslator):
    """A model, or several, with their tokenizer: lines to lines."""

    name = "native"

    def __init__(
        self,
        models: Transformer | Sequence[Transformer],
        tokenizer: Tokenizer,
        config: DecodingConfig,
        *,
        device: str | torch.device = "cpu",
        workers: int | Literal["auto"] = 1,
        shortlist: Callable[[], Shortlist] | None = None,
        channel: Callable[[str | None], Channel] | None = None,
        compiled: bool = False,
        **learned: Unpack[Learned],
    ) -> None:
        """models: in the precision they are to compute in; several translate as an ensemble. workers: processes
        that batches are shared between, on a CPU. shortlist: makes that which beam search is among; for all else it
        is not asked for. channel: likewise, opens what ranks translations into a language that the beam found.
        compiled: whether there is code of ours, compiled for this processor."""
        super().__init__(tokenizer, config, **learned)
        heap.keep()
        self.models = [model.to(device) for model in ([models] if isinstance(models, Transformer) else models)]
        self._prepared = [Prepared(model, compiled=compiled) for model in self.models]
        self.device = torch.device(device)
        self.workers = workers
        self.shortlist = None if shortlist is None else functools.cache(shortlist)
        self.channel = None if channel is None else functools.cache(channel)

    @property
    def model(self) -> Transformer:
        """The model, or the first of several."""
        return self.models[0]

    def room(self, stack: Stack) -> int | None:
        """Positions that all of the models can tell apart; None where there is no limit."""
        rooms = [room for model in self.models if (room := model.config.room(stack)) is not None]
        return min(rooms, default=None)

    def get_ready(self, options: SearchOptions) -> None:
        if self.shortlist is not None and options.search == "beam":
            self.shortlist()
        if (channel := self._channel_for(options)) is not None and options.beam_size == 1:
            raise UsageError(
                f"{channel.name} is to choose from what a beam finds (decoding.rerank): a beam of 1 finds only one",
                hint="raise --beam-size, or leave it out: --set decoding.rerank=null",
            )

    def open_all(self) -> None:
        """Now, what any search opens when it needs it: which one, and into which language, each call may say."""
        for prepared in self._prepared:
            assert prepared.few_rows  # for that code is compiled, if it never was
        if self.shortlist is not None:
            self.shortlist()
        if self.channel is not None:
            for target in self.targets or [None]:
                # Of several, one that nothing translates back from is told when it is asked for.
                with suppress(UsageError) if len(self.targets) > 1 else nullcontext():
                    self.channel(target)

    def share(self, found_for: Work, n_batches: int) -> Generator[tuple[int, Found]]:
        workers = worth(self.workers, n_batches) if self.device.type == "cpu" else 1
        if workers == 1:
            return super().share(found_for, n_batches)
        for prepared in self._prepared:
            prepared.for_now().lay_out()  # once for all processes, which then share it
        return spread(found_for, n_batches, workers=workers)

    def search(self, inputs: Sequence[Input], options: SearchOptions, lines_before: int) -> list[list[Hypothesis]]:
        parts = in_halves(lambda some: self._search(some, options, lines_before), inputs, halved)
        return [one for found in parts for one in found]

    @torch.inference_mode()
    def _search(self, inputs: Sequence[Input], options: SearchOptions, lines_before: int) -> list[list[Hypothesis]]:
        channel, n_best = self._channel_for(options), options.n_best
        if channel is not None:
            options = replace(options, n_best=options.beam_size)
        source_BS, lengths_B = padded([one.ids for one in inputs])
        prefixes = [one.prefix for one in inputs]
        steppers: list[Stepper[Any]] = [prepared.for_now() for prepared in self._prepared]
        symbols, listed = self.symbols, None
        if self.shortlist is not None and options.search == "beam":
            listed = self.shortlist().of(source_BS, prefixes, symbols)
            steppers = [Shortlisted(prepared, listed) for prepared in self._prepared]
            symbols, prefixes = listed.symbols(symbols), [listed.places(prefix) for prefix in prefixes]
        found = search(
            steppers[0] if len(steppers) == 1 else Ensemble(steppers),
            source_BS.to(self.device),
            lengths_B,
            limits=[self.limit(len(one.ids) - self.source_eos) for one in inputs],
            symbols=symbols,
            options=options,
            lines=[drawn_as(lines_before + one.line, one.place) for one in inputs],
            prefixes=prefixes,
        )
        found = found if listed is None else listed.found(found)
        if channel is None:
            return found
        texts = [self.tokenizer.decode_target([one.ids for one in several]) for several in found]
        return channel.ranked([one.text for one in inputs], texts, found, penalty=options.penalty, n_best=n_best)

    def _channel_for(self, options: SearchOptions) -> Channel | None:
        """What is to rank what such a search finds."""
        if self.channel is None or options.search != "beam":
            return None
        return self.channel(self.targets[0] if len(self.targets) == 1 else None)
