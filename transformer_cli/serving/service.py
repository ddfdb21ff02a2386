"""What the service can do: translate as `tx translate` does, and show attention as `tx visualize-attention` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from transformer_cli import engines
from transformer_cli.attention_maps.aligner import alignments
from transformer_cli.attention_maps.capture import attention_maps
from transformer_cli.attention_maps.page import page
from transformer_cli.attention_maps.saved import as_json
from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.config.run import RunConfig
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.texts import TextTranslator
from transformer_cli.decoding.translation import Translation
from transformer_cli.loading import in_fp32, translator_of
from transformer_cli.serving.messages import Refused, Search, Sentence

MAX_WEIGHTS = 1_000_000
"""Of one attention request: a page of 3 MB, or 6 + 6 layers of 8 heads for 83 + 83 pieces."""
BESIDE = {"alignments", "to"}
"""What is asked beside a search."""
Mark = Callable[[Sequence[str], Sequence[Translation]], list[Translation]]
"""Sources and translations to the latter with more flags."""


class Service:
    """Runs that are open, more than one as an ensemble. Its two kinds of work are for one thread; all of it is loaded
    at once, for training may delete a checkpoint while it is served."""

    def __init__(
        self, runs: Sequence[OpenedRun], settings: RunConfig, *, mark: Mark, tell: Callable[[str], None]
    ) -> None:
        """mark: flags what only training's text can tell. tell: what is done that takes a while. Raises UsageError for
        a search that cannot be."""
        self.runs, self.settings, self.mark = runs, settings, mark
        self._engine_is_wanted = lru_cache(maxsize=1000)(self._decide)  # looks for packages and devices: milliseconds
        self.native = translator_of(runs, settings)
        self.precise = in_fp32(self.native, runs, settings)
        self.engine = engines.engine_of(runs[0], settings, tell=tell) if self._engine_is_wanted(Search()) else None
        usual = SearchOptions.of(settings.decoding, seed=settings.seed)
        for target in [self.native.usual_target] if self.native.usual_target else self.native.targets:
            for translator in (self.native, self.precise):
                translator.towards(target).get_ready(usual)

    @property
    def translator(self) -> TextTranslator:
        """Of those who ask for nothing special."""
        return self.engine or self.native

    @property
    def name(self) -> str:
        return self.runs[0].title

    @property
    def granted(self) -> int:
        """How wide a beam may be, and how many translations of a text may be asked for."""
        return max(self.settings.serving.max_beam_size, self.settings.decoding.beam_size)

    @property
    def n_best(self) -> int:
        """The most translations of a text that its own search gives."""
        decoding = self.settings.decoding
        if decoding.mbr is not None:
            return min(self.granted, decoding.mbr.samples)
        return self.granted if decoding.draws else decoding.beam_size

    def check(self, search: Search, prefixes: Sequence[str]) -> bool:
        """Whether CTranslate2 is to answer. Refused, UsageError or DataError for what cannot be searched for."""
        for name, number in (("beam_size", search.beam_size or 0), ("n_best", search.n_best)):
            if number > self.granted:
                raise Refused(400, f"{name}: {number:,} is more than {self.granted:,}, the most that is granted here")
        towards = self.native.towards(search.to)
        begun = towards.forced(prefixes, "prefixes[{}]".format, room=towards.max_target_length)
        return self._engine_is_wanted(search, begun=any(begun)) and self.engine is not None

    def translate(self, asked: tuple[Search, bool], sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
        """What `tx translate --json` says of each. asked: also whether CTranslate2 is to answer."""
        (search, by_engine), (texts, prefixes) = asked, zip(*sentences, strict=True)
        translator = (self.translator if by_engine else self.native).towards(search.to)
        options = search.model_dump(exclude=BESIDE)
        found = self.mark(texts, translator.translate_all(texts, prefixes=prefixes, **options))
        if search.alignments:
            links = alignments(self.native.towards(search.to), texts, found)
            found = [replace(one, alignment=some) for one, some in zip(found, links, strict=True)]
        return [{"source": text, **one.as_json()} for text, one in zip(texts, found, strict=True)]

    def attention(self, asked: tuple[str | None, str | None, bool], texts: Sequence[str]) -> list[str]:
        """All attention of each text and its translation, the model's own unless there is a target: as JSON, or as a
        page. asked: the target, into which language, and whether it is the page."""
        target, to, as_page = asked
        precise = self.precise.towards(to)
        several = (
            attention_maps(precise, text, model=self.name, target=target, max_weights=MAX_WEIGHTS) for text in texts
        )
        return [page(maps) if as_page else as_json(maps) for maps in several]

    def _decide(self, search: Search, *, begun: bool = False) -> bool:
        """Whether CTranslate2 is to answer, as of `tx translate`. begun: whether it is said how a translation begins.
        UsageError for a search that cannot be."""
        asked = search.model_dump(exclude=BESIDE)
        options = SearchOptions.of(self.settings.decoding, seed=self.settings.seed, **asked)
        also = [name for name, is_asked in (("alignments", search.alignments), ("prefixes", begun)) if is_asked]
        obstacles = [*also, *engines.obstacles(self.runs, self.settings, options)]
        return engines.is_wanted(self.settings, options, obstacles)
