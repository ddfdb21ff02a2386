"""Text in, text out: cut into pieces, batched by length, searched, joined, in the order of the input; no torch."""

from __future__ import annotations

import copy
import difflib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Required, Self, TypedDict, Unpack

from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.model import Stack
from transformer_cli.data.lines import check_line
from transformer_cli.decoding import batches, long_lines, quality
from transformer_cli.decoding.doubt import ROUNDING, UNSURE, certainty
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.options import LINE_BITS, NotFinite, SearchOptions, Symbols
from transformer_cli.decoding.translation import NOTHING, SPLIT, TOO_LONG, Candidate, Part, Translation
from transformer_cli.errors import DataError, DivergedError, UsageError
from transformer_cli.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, wanted
from transformer_cli.wording import what_is

Parts = Sequence[Hypothesis]
"""Of a line, each one the translation of a part."""


class Learned(TypedDict, total=False):
    """What a translator knows of its model's training.

    source_eos: whether its sources ended in eos. max_length: the pieces that they had at most. max_sentences: and the
    sentences, usually; None where nobody knows. unsure_below: the certainty (see doubt.py) that is too little; None
    where nobody knows. seed: what sampling draws by. targets: the languages that it can translate into; usual_target:
    the one that is meant where nobody says.
    """

    source_eos: Required[bool]
    max_length: int | None
    max_sentences: int | None
    unsure_below: float | None
    seed: int
    targets: Sequence[str]
    usual_target: str | None


class TextTranslator(ABC):
    """A tokenizer, and something that searches for the ids of a translation: lines to lines."""

    name: str
    """Of the engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: DecodingConfig,
        **learned: Unpack[Learned],
    ) -> None:
        """Raises UsageError for a banned piece that does not exist, or is a mark."""
        self.tokenizer = tokenizer
        self.config = config
        self.source_eos = learned["source_eos"]
        self.max_length = learned.get("max_length")
        self.max_sentences = learned.get("max_sentences")
        self.unsure_below = learned.get("unsure_below")
        self.seed = learned.get("seed", 1)
        self.targets: tuple[str, ...] = tuple(learned.get("targets", ()))
        self.usual_target = learned.get("usual_target")
        banned = (*tokenizer.banned_target_ids, *banned_ids(config, tokenizer))
        self.symbols = Symbols(bos=BOS, eos=EOS, banned=banned, first=tokenizer.target.mark_id)

    def towards(self, language: str | None) -> Self:
        """What translates into this language; None: the usual one. UsageError, naming all, where that cannot be."""
        if not self.targets:
            return self
        other = copy.copy(self)
        other.usual_target = wanted(language, self.targets, self.usual_target)
        other.targets = (other.usual_target,)
        other.tokenizer = self.tokenizer.towards(other.usual_target)
        return other

    @property
    def max_source_length(self) -> int | None:
        """The most pieces of a source, end mark included, that are translated at once; None where there is no limit."""
        limits = (self.config.max_source_length or self.max_length, self.room("encoder"))
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def max_target_length(self) -> int | None:
        """The most pieces, end mark included, that a search may write of the longest source; None without a limit."""
        longest, room = self.max_source_length, self.room("decoder")
        if longest is None:
            return room
        limit = int(max(1, self.config.max_length_factor) * longest + self.config.max_length_extra) + 1
        return limit if room is None else min(limit, room)

    @property
    def max_source_sentences(self) -> int | None:
        """The most sentences of a line that are translated at once; None where there is no limit."""
        return self.config.max_source_sentences or self.max_sentences

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        search: str | None = None,
    ) -> list[str]:
        """One translation per line, in order; see `translate_all`."""
        found = self.translate_all(lines, beam_size=beam_size, length_penalty=length_penalty, search=search)
        return [translation.text for translation in found]

    def translate_all(
        self,
        lines: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        search: str | None = None,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        lines_before: int = 0,
        by_sentences: bool = True,
        progress: Callable[[int], object] | None = None,
    ) -> list[Translation]:
        """The translations with their scores, one per line, in order; a line without text gives an empty one.

        beam_size, length_penalty, search: those of the configuration when not given. prefixes: what each translation
        begins with, whole words. lines_before: how many lines of the same text came earlier; they are counted in what
        sampling draws by and in what errors say. by_sentences: whether lines of more than `max_source_sentences` are
        translated in parts. progress: called with the number of lines that are newly done.
        Raises UsageError for what is no list of texts, for more n_best than beams, a beam_size where samples are drawn,
        or a wild penalty; DataError for a text of several lines, or a prefix that cannot be written; DivergedError
        where the model computes no numbers, naming the line.
        """
        _check(lines, prefixes, lines_before)
        options = SearchOptions.of(
            self.config,
            seed=self.seed,
            beam_size=beam_size,
            length_penalty=length_penalty,
            search=search,
            n_best=n_best,
        )
        found = [NOTHING] * len(lines)
        inputs = self._inputs(lines, found, prefixes, lines_before, by_sentences=by_sentences)
        waiting = Counter(one.line for one in inputs)
        of_line: dict[int, list[int]] = {}
        for index, one in enumerate(inputs):
            of_line.setdefault(one.line, []).append(index)
        hypotheses: list[list[Hypothesis]] = [[]] * len(inputs)
        if progress is not None:
            progress(len(lines) - len(waiting))
        plan = batches.by_length(
            [len(one.ids) for one in inputs],
            batch_size=self._batch_size(options),
            budget_tokens=self.config.budget_tokens,
        )

        self.get_ready(options)

        def found_for(number: int) -> list[list[Hypothesis]]:
            return self._found([inputs[index] for index in plan[number]], options, lines_before)

        with closing(self.share(found_for, len(plan))) as shared:
            for number, results in shared:
                batch = plan[number]
                for index, several in zip(batch, results, strict=True):
                    hypotheses[index] = several
                waiting -= (now := Counter(inputs[index].line for index in batch))
                done = [line for line in now if line not in waiting]
                for line in done:
                    parts = of_line[line]
                    found[line] = self._read(
                        lines[line], [inputs[n] for n in parts], [hypotheses[n] for n in parts], options
                    )
                if progress is not None:
                    progress(len(done))
        return found

    def _batch_size(self, options: SearchOptions) -> int:
        """Sentences at once; of many draws fewer, which then have no more rows than those of a beam search."""
        config = self.config
        if options.search != "sampling":
            return config.batch_size
        return min(config.batch_size, max(1, config.batch_size * config.beam_size // options.n_draws))

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """Source ids per line as the model reads them, end mark included; none for a line without text."""
        end = [EOS] * self.source_eos
        # A tokenizer that keeps white space makes pieces of it.
        encoded = zip(lines, self.tokenizer.encode_source(lines), strict=True)
        return [ids + end if ids and line.strip() else [] for line, ids in encoded]

    def get_ready(self, options: SearchOptions) -> None:
        """Do what is done once for all batches of such a search, before they are shared between processes."""
        return

    @abstractmethod
    def room(self, stack: Stack) -> int | None:
        """Positions that the model can tell apart; None where there is no limit."""

    @abstractmethod
    def search(self, inputs: Sequence[Input], options: SearchOptions, lines_before: int) -> list[list[Hypothesis]]:
        """The n_best of each; the inputs are translated together. Raises NotFinite."""

    def _inputs(
        self,
        lines: Sequence[str],
        found: list[Translation],
        prefixes: Sequence[str] | None,
        lines_before: int,
        *,
        by_sentences: bool,
    ) -> list[Input]:
        """What is to be translated; lines that must not be are marked as such in `found`."""
        sources = self.encode_source(lines)
        asked = zip(prefixes or [""] * len(lines), sources, strict=True)
        begun = [prefix if ids else "" for prefix, ids in asked]
        targets = self.forced(begun, lambda n: f"line {lines_before + n + 1:,}: the prefix", room=self.room("decoder"))
        inputs = []
        for line, (text, ids, prefix) in enumerate(zip(lines, sources, targets, strict=True)):
            parts = self._parts(text, ids, by_sentences=by_sentences) if ids else []
            if ids and not parts:
                found[line] = TOO_LONG
            inputs += [Input(line, n, *part, [] if n else prefix) for n, part in enumerate(parts)]
        return inputs

    def _parts(self, text: str, ids: list[int], *, by_sentences: bool) -> list[tuple[str, list[int]]]:
        """A line, or the parts that it is translated in, with their ids; none where it must not be split, or cannot."""
        fits, most = self._fits(ids), self.max_source_sentences if by_sentences else None
        if fits and (most is None or len(long_lines.sentences(text)) <= most):
            return [(text, ids)]
        if not fits and self.config.long == "refuse":
            return []
        texts = long_lines.split(text, lambda part: self._fits(*self.encode_source([part])))
        parts = [(text, ids) for text, ids in zip(texts, self.encode_source(texts), strict=True) if ids]
        return parts if all(self._fits(ids) for _, ids in parts) else []

    def _fits(self, ids: Sequence[int]) -> bool:
        return self.max_source_length is None or len(ids) <= self.max_source_length

    def forced(self, prefixes: Sequence[str], named: Callable[[int], str], *, room: int | None) -> list[list[int]]:
        """Target ids of beginnings that are forced. named: what an error calls the n-th. room: of pieces, with one
        behind them. DataError for one that cannot be written."""
        targets = self.tokenizer.encode_target(prefixes)
        for n, ids in enumerate(targets):
            if not set(ids).isdisjoint(self.symbols.banned):
                raise DataError(f"{named(n)} has characters or pieces that must not be written")
            if room is not None and len(ids) >= room:
                raise DataError(f"{named(n)} has {len(ids):,} pieces; there is room for {room - 1:,}")
        return targets

    def share(
        self, found_for: Callable[[int], list[list[Hypothesis]]], n_batches: int
    ) -> Generator[tuple[int, list[list[Hypothesis]]]]:
        """Every batch's number and what is found for it, in any order."""
        for number in range(n_batches):
            yield number, found_for(number)

    def _found(self, inputs: Sequence[Input], options: SearchOptions, lines_before: int) -> list[list[Hypothesis]]:
        try:
            return self.search(inputs, options, lines_before)
        except NotFinite as failure:
            raise DivergedError(
                f"line {lines_before + inputs[failure.row].line + 1:,}: the model's scores are not finite numbers",
                hint="the weights have diverged or overflow in this precision: try another checkpoint, or fp32",
            ) from failure

    def limit(self, n_pieces: int) -> int:
        """Most pieces of a translation, for so many of the source; a mark that it begins with is counted beside those
        that may be written, and the end mark comes on top."""
        limit = int(self.config.max_length_factor * n_pieces + self.config.max_length_extra)
        limit = max(min(limit, self.config.max_length or limit), self.config.min_length)
        limit += len(self.tokenizer.target.given)
        room = self.room("decoder")
        return limit if room is None else min(limit, room - 1)

    def _read(
        self, line: str, inputs: Sequence[Input], hypotheses: Sequence[Sequence[Hypothesis]], options: SearchOptions
    ) -> Translation:
        """The translation of a line out of those of its parts, however many are asked for; others, or draws, are each
        made of their n-th, and may have the better score for the length of the whole."""
        ranks = zip(*hypotheses, strict=False)
        several = [self._candidate(parts, options) for parts in ranks]
        if options.mbr is not None:
            from transformer_cli.decoding import mbr  # and numpy, which a cold sentence has no need of

            several.sort(key=lambda one: -one[0].log_probability)  # of a text's draws the likeliest stays
            best_first = mbr.by_utility([one.text for one, *_ in several], options.mbr.metric)[: options.n_best]
            several = [(replace(several[n][0], utility=utility), *several[n][1:]) for n, utility in best_first]
        if options.search == "beam":  # what other searches find has an order of their own
            several[1:] = sorted(several[1:], key=lambda one: (one[0].truncated, -one[0].score))
        best, parts, texts = several[0]
        pairs = [(line, best.text), *zip((one.text for one in inputs), texts, strict=True)]
        split = (SPLIT,) if len(inputs) > 1 else ()
        translation = Translation(
            **vars(best),
            n_best=tuple(candidate for candidate, *_ in several),
            flags=quality.flags_of(pairs) + split,
            parts=tuple(
                Part(
                    one.text,
                    tuple(one.ids[: len(one.ids) - self.source_eos]),
                    hypothesis.ids,
                    hypothesis.truncated,
                )
                for one, hypothesis in zip(inputs, parts, strict=True)
            ),
        )
        below = None if self.unsure_below is None else self.unsure_below - ROUNDING
        if below is None or options.search == "sampling" or certainty(translation) >= below:
            return translation
        return replace(translation, flags=(*translation.flags, UNSURE))

    def _candidate(self, parts: Parts, options: SearchOptions) -> tuple[Candidate, Parts, list[str]]:
        """With its parts and their texts."""
        texts = self.tokenizer.decode_target([part.ids for part in parts])
        ids = tuple(id for part in parts for id in part.ids)
        log_probability, back = sum(part.log_probability for part in parts), fmean(part.back for part in parts)
        candidate = Candidate(
            text=long_lines.join(texts),
            score=log_probability / options.penalty(sum(part.length for part in parts)) + back,
            log_probability=log_probability,
            ids=ids,
            tokens=tuple(self.tokenizer.target.piece(id) for id in ids),
            truncated=any(part.truncated for part in parts),
        )
        return candidate, parts, texts


def banned_ids(config: DecodingConfig, tokenizer: Tokenizer) -> list[int]:
    """Of the pieces that the configuration bans. Raises UsageError for one that does not exist, or is a mark."""
    if not config.banned:
        return []
    target = tokenizer.target
    known = {piece: id for id, piece in enumerate(target.names)}
    for piece in config.banned:
        if piece not in known:
            close = difflib.get_close_matches(piece, [f"▁{piece}", *known], n=1)
            raise UsageError(
                f"decoding.banned: the target vocabulary has no piece {piece!r}",
                hint=f"did you mean {close[0]!r}?" if close and close[0] in known else "`tx tokenize` shows pieces",
            )
        if known[piece] in (PAD, UNK, BOS, EOS, *target.given):
            raise UsageError(
                f"decoding.banned: {piece!r} is a mark, not a piece of text",
                hint=f"a translation ends with {target.piece(EOS)}; the other marks are never written anyway",
            )
    return [known[piece] for piece in config.banned]


def _check(lines: Sequence[str], prefixes: Sequence[str] | None, lines_before: int) -> None:
    """What `translate_all` says that it raises of these."""
    check_lines("lines", lines)
    if type(lines_before) is not int or not 0 <= lines_before <= 2**LINE_BITS - len(lines):
        raise UsageError(
            f"lines_before is {lines_before!r:.60}; expected a whole number of at least 0, below 2^{LINE_BITS}"
        )
    if prefixes is not None:
        check_lines("prefixes", prefixes)
        if len(prefixes) != len(lines):
            raise UsageError(
                f"prefixes: {len(prefixes):,}, lines: {len(lines):,}; expected one prefix for each line",
                hint='"" is that of a translation that may begin with anything',
            )


def check_lines(name: str, lines: object) -> None:
    """UsageError unless these are texts: one alone would be taken for a line per character. DataError where one is more
    than a line, or not Unicode."""
    if isinstance(lines, str | bytes | bytearray) or not isinstance(lines, Sequence):
        raise UsageError(f"{name} is {what_is(lines)}; expected a list of texts", hint='for example ["ein bier"]')
    for number, line in enumerate(lines, start=1):
        check_text(f"{name}, text {number:,}", line)


def check_text(name: str, text: object) -> None:
    """The same of one."""
    if not isinstance(text, str):
        raise UsageError(f"{name} is {what_is(text)}; expected a text", hint="leave it out, or make it one by str()")
    check_line(text, place=name)


@dataclass(frozen=True)
class Input:
    """A line, or the part of it at this place; ids as the model reads them, and what its translation begins with."""

    line: int
    place: int
    text: str
    ids: list[int]
    prefix: list[int]
