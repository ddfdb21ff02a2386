"""Whether another engine says what tx says: the same logits at every step, the same scores for the same texts.

Searches of engines differ: one may find what another never looks at. So a text that only one of them found is counted,
not refused, as long as both give it the same probability.

T steps, V target vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from transformer_cli.checkpoints.store import OpenedRun
from transformer_cli.data.loader import collate
from transformer_cli.decoding.hypothesis import Hypothesis, LengthPenalty
from transformer_cli.decoding.options import SearchOptions, Symbols
from transformer_cli.decoding.search import search
from transformer_cli.errors import ModelError
from transformer_cli.export.formats import Engine, Found, Walk
from transformer_cli.model.prepared import Prepared
from transformer_cli.tokenizer import BOS, EOS
from transformer_cli.wording import counted

TOLERANCE = 1e-5
"""How far numbers may be apart that are computed in fp32 in another order, as a share of the largest of them."""
AGREEMENT = 0.9
"""The share of steps at which rounded weights have to prefer the same piece."""
BATCH = 16


@dataclass(frozen=True)
class Probe:
    """What both engines translate: ids as the model reads them, and how it is searched."""

    texts: Sequence[str]
    sources: Sequence[Sequence[int]]
    limit: int
    """Most steps of a translation."""
    beam_size: int
    length_penalty: float


@dataclass(frozen=True)
class Line:
    """A line in both engines; score is the log-probability divided by the length penalty."""

    source: str
    text: str
    score: float
    text_there: str
    score_there: float
    scored_here: float
    """What tx gives to the text of the other engine."""


@dataclass(frozen=True)
class Comparison:
    """What came out.

    logit_difference: the largest. largest_logit: what it is a share of. agreeing: the share of `steps` at which both
    prefer the same piece, or tx nearly does. score_difference: the largest between what both give to the same text.
    cut_otherwise, joined_otherwise: lines that become other pieces there, and pieces that become another text. such_as:
    the first of those lines.
    """

    steps: int
    logit_difference: float
    largest_logit: float
    agreeing: float
    score_difference: float
    largest_score: float
    cut_otherwise: int
    joined_otherwise: int
    such_as: str
    lines: tuple[Line, ...]

    @property
    def equal_texts(self) -> int:
        return sum(line.text == line.text_there for line in self.lines)

    def complaints(self, *, rounded: bool) -> list[str]:
        """What differs that must not; rounded: the weights there are not those here."""
        found = []
        if self.cut_otherwise:
            found.append(f"{counted(self.cut_otherwise, 'lines')} of other pieces, such as {self.such_as!r:.100}")
        if self.joined_otherwise:
            found.append(f"{counted(self.joined_otherwise, 'translations')} of the same pieces with another text")
        if rounded:
            few = f"both prefer the same piece at {self.agreeing:.1%} of the steps only"
            return found if self.agreeing >= AGREEMENT else [*found, few]
        if not self.logit_difference <= TOLERANCE * max(1.0, self.largest_logit):
            found.append(
                f"logits differ by up to {self.logit_difference:.3g} (the largest is {self.largest_logit:.3g})"
            )
        if self.agreeing < 1:
            found.append(f"at {1 - self.agreeing:.1%} of the steps another piece is preferred")
        if not self.score_difference <= 10 * TOLERANCE * max(1.0, self.largest_score):
            found.append(f"the same text has another log-probability, by up to {self.score_difference:.3g}")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            **{key: value for key, value in vars(self).items() if key != "lines"},
            "equal_texts": self.equal_texts,
            "lines": [vars(line) for line in self.lines],
        }


@torch.inference_mode()
def compare(run: OpenedRun, engine: Engine, probe: Probe) -> Comparison:
    """Both engines on the probe. Raises ModelError where the other one writes what has no place in a translation."""
    banned = run.tokenizer.banned_target_ids if engine.bans else ()
    prepared = Prepared(run.model)
    walks: list[Walk] = []
    theirs: list[Found] = []
    ours: list[Hypothesis] = []
    for part in _parts(probe.sources):
        walks += engine.greedy(part, limit=probe.limit)
        theirs += engine.beam(part, limit=probe.limit, beam_size=probe.beam_size, length_penalty=probe.length_penalty)
        ours += _beam(run, prepared, part, probe, banned)
    _refuse_nonsense(run, engine, [*(one.ids for one in walks), *(one.ids for one in theirs)])
    n_given = len(run.tokenizer.target.given)
    steps = [_Steps.of(walk, logits_TV, banned, n_given) for walk, logits_TV in _forced(run, probe.sources, walks)]
    scored = [_log_probability(logits_TV, found, n_given) for found, logits_TV in _forced(run, probe.sources, theirs)]
    # What did not end is a piece longer there, where the end mark counts as one.
    written = [one.ids if one.ended else one.ids[: probe.limit - 1] for one in theirs]
    lines = list(_lines(run, probe, ours, theirs, engine.decode(written), scored))
    joined = run.tokenizer.decode_target(written)
    n_steps = sum(one.written for one in walks)
    there = engine.encode(probe.texts)
    cut = [text for text, ids, here in zip(probe.texts, there, probe.sources, strict=True) if ids != list(here)]
    return Comparison(
        steps=n_steps,
        logit_difference=max(one.difference for one in steps),
        largest_logit=max(one.largest for one in steps),
        agreeing=sum(one.agreeing for one in steps) / max(n_steps, 1),
        score_difference=max(abs(here - there.log_probability) for here, there in zip(scored, theirs, strict=True)),
        largest_score=max(map(abs, scored)),
        cut_otherwise=len(cut),
        # Some leave out white space at the end, or at the beginning.
        joined_otherwise=sum(line.text_there.strip() != text.strip() for line, text in zip(lines, joined, strict=True)),
        such_as=cut[0] if cut else "",
        lines=tuple(lines),
    )


@dataclass(frozen=True)
class _Steps:
    """The steps of one walk, here and there."""

    difference: float
    largest: float
    agreeing: int

    @staticmethod
    def of(walk: Walk, here_TV: np.ndarray, banned: Sequence[int], n_given: int) -> _Steps:
        """here_TV: tx's logits at the same steps. A step agrees where no piece is better here by more than what fp32
        leaves open, and where the piece is one of the n_given first, which are not chosen."""
        largest = float(np.abs(here_TV).max(initial=0))
        difference = float(np.abs(here_TV - walk.logits_TV).max(initial=0))
        allowed_TV = here_TV.copy()
        allowed_TV[:, list(banned)] = -np.inf
        pieces = [*walk.ids, EOS][: walk.written]
        lost_T = allowed_TV.max(axis=1) - allowed_TV[np.arange(len(pieces)), pieces]
        lost_T[:n_given] = 0
        return _Steps(difference, largest, int((lost_T <= 2 * TOLERANCE * max(1.0, largest)).sum()))


def _parts(sources: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    for start in range(0, len(sources), BATCH):
        yield sources[start : start + BATCH]


def _beam(
    run: OpenedRun, prepared: Prepared, sources: Sequence[Sequence[int]], probe: Probe, banned: Sequence[int]
) -> list[Hypothesis]:
    batch = collate(sources, [[]] * len(sources))
    options = SearchOptions(beam_size=probe.beam_size, penalty=LengthPenalty(probe.length_penalty))
    mark = run.tokenizer.target.mark_id
    found = search(
        prepared,
        batch.source_BS,
        batch.source_lengths_B,
        limits=[probe.limit - 1] * len(sources),  # the end mark comes on top
        symbols=Symbols(bos=BOS, eos=EOS, banned=tuple(banned), first=mark),
        options=options,
        lines=range(len(sources)),
    )
    return [best for [best] in found]


def _forced(run: OpenedRun, sources: Sequence[Sequence[int]], found: Sequence[Any]) -> Iterator[tuple[Any, np.ndarray]]:
    """What was found, and tx's logits (T, V) for its pieces."""
    for start in range(0, len(sources), BATCH):
        some = found[start : start + BATCH]
        # Of what did not end, the last piece is only written: the model may have no position to read it at.
        read = [one.ids if one.ended else one.ids[:-1] for one in some]
        batch = collate(sources[start : start + BATCH], read)
        hidden_BTD = run.model(batch.source_BS, batch.source_lengths_B, batch.target_in_BT)
        for one, hidden_TD in zip(some, hidden_BTD, strict=True):
            yield one, run.model.project(hidden_TD[: len(one.ids) + one.ended]).float().numpy()


def _log_probability(logits_TV: np.ndarray, found: Found, n_given: int) -> float:
    """Of what was found, but for the n_given first."""
    logp_TV = torch.from_numpy(logits_TV).double().log_softmax(-1)
    pieces = torch.tensor([*found.ids, EOS][: len(logp_TV)], dtype=torch.int64)
    return float(logp_TV.gather(1, pieces[:, None])[n_given:].sum())


def _lines(
    run: OpenedRun,
    probe: Probe,
    ours: Sequence[Hypothesis],
    theirs: Sequence[Found],
    texts_there: Sequence[str],
    scored: Sequence[float],
) -> Iterator[Line]:
    penalty = LengthPenalty(probe.length_penalty)
    texts = run.tokenizer.decode_target([one.ids for one in ours])
    for source, text, one, text_there, there, here in zip(
        probe.texts, texts, ours, texts_there, theirs, scored, strict=True
    ):
        divisor = penalty(len(there.ids) + there.ended)
        yield Line(source, text, one.score(penalty), text_there, there.log_probability / divisor, here / divisor)


def _refuse_nonsense(run: OpenedRun, engine: Engine, found: Sequence[Sequence[int]]) -> None:
    beyond = [id for ids in found for id in ids if not 0 <= id < run.tokenizer.target_size]
    if beyond:
        raise ModelError(f"{engine.name} writes piece {beyond[0]}, of a vocabulary of {run.tokenizer.target_size:,}")
