"""A trained run in Python: it translates, scores, aligns and shows its attention as the commands do."""

from __future__ import annotations

import copy
import html
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, overload

import torch

from transformer_cli.attention_maps.aligner import align_texts, alignments
from transformer_cli.attention_maps.capture import attention_maps
from transformer_cli.attention_maps.maps import AttentionMaps
from transformer_cli.checkpoints.find import find_checkpoint, run_of
from transformer_cli.checkpoints.known import open_found
from transformer_cli.checkpoints.store import OpenedRun, open_run
from transformer_cli.cli import console
from transformer_cli.cli.trained import tell_compiler, tell_default, tell_unfinished
from transformer_cli.cli.unseen import Unseen
from transformer_cli.config.run import RunConfig
from transformer_cli.decoding.scoring import Likelihood, score_texts
from transformer_cli.decoding.texts import check_lines, check_text
from transformer_cli.decoding.translation import Translation
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UsageError
from transformer_cli.loading import in_fp32, machine_of, settings_of, translator_as
from transformer_cli.machine import Machine
from transformer_cli.python.host import given_back
from transformer_cli.python.words import check_name, in_pythons_words, overrides, warn
from transformer_cli.threads import Turn
from transformer_cli.wording import counted, what_is


class Model(Translator):
    """A run, or several as an ensemble, ready to use; `tx.load` opens it."""

    runs: tuple[OpenedRun, ...]
    settings: RunConfig
    _machine: Machine
    _turn: Turn
    _known: Collection[str] | None

    @overload
    def translate(self, lines: str, **options: Any) -> str: ...

    @overload
    def translate(self, lines: Sequence[str], **options: Any) -> list[str]: ...

    @in_pythons_words
    def translate(self, lines: str | Sequence[str], **options: Any) -> str | list[str]:
        """The translation of a text, or of each of several, in order; options as of `translate_all`, which has all of
        n_best."""
        if options.get("n_best", 1) != 1:
            raise UsageError("translate gives one text for each line", hint="translate_all(lines, n_best=...) has more")
        found = [one.text for one in self.translate_all([lines] if isinstance(lines, str) else lines, **options)]
        return found[0] if isinstance(lines, str) else found

    @in_pythons_words
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
        with_alignments: bool = False,
        to: str | None = None,
    ) -> list[Translation]:
        """`tx translate`: all there is to know of each translation; `as_json()` is its line of --json.

        search: "beam", or "sampling" to draw; n_best: as many of each; with_alignments: and which word translates
        which; to: into which language, of a model of several. For the others, and for what is raised, see
        `Translator.translate_all`.
        """
        towards = self.towards(to)
        with self._computing():
            found = Translator.translate_all(
                towards,
                lines,
                beam_size=beam_size,
                length_penalty=length_penalty,
                search=search,
                n_best=n_best,
                prefixes=prefixes,
                lines_before=lines_before,
                by_sentences=by_sentences,
                progress=progress,
            )
            found = Unseen(self._known).mark(lines, found)
            if not with_alignments:
                return found
            links = alignments(towards, lines, found)
        return [replace(one, alignment=some) for one, some in zip(found, links, strict=True)]

    @in_pythons_words
    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, to: str | None = None
    ) -> list[Likelihood | None]:
        """`tx score`: what the model gives to translations that are there; None for one of nothing. In fp32, unless
        the model was loaded with another precision."""
        pairs = _pairs(sources, targets)
        with self._computing():
            return score_texts(self._precise.towards(to), *pairs)

    @in_pythons_words
    def align(
        self, sources: Sequence[str], targets: Sequence[str], *, to: str | None = None
    ) -> list[list[tuple[int, int]]]:
        """Which word of each source is translated by which of its target, counted from 0; in fp32, as `score`."""
        pairs = _pairs(sources, targets)
        with self._computing():
            return [sorted(links) for links in align_texts(self._precise.towards(to), *pairs)]

    @in_pythons_words
    def attention(
        self, source: str, target: str | None = None, *, pad_to: int | None = None, to: str | None = None
    ) -> AttentionMaps:
        """`tx visualize-attention`: all attention of a translation, the model's own unless a target is given; a
        notebook shows it as the page of -o FILE.html. In fp32, as `score`."""
        run = self.runs[0]
        check_text("source", source)
        if target is not None:
            check_text("target", target)
        with self._computing():
            return attention_maps(self._precise.towards(to), source, model=run.title, target=target, pad_to=pad_to)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Threads take turns: what takes attention out of a model changes it meanwhile."""
        with self._turn, given_back(self._machine):
            yield

    @cached_property
    def _precise(self) -> Translator:
        return in_fp32(self, self.runs, self.settings)

    def __copy__(self) -> Model:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        other = memo[id(self)] = object.__new__(type(self))
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other

    @in_pythons_words
    def __reduce__(self) -> NoReturn:
        runs = ", ".join(f'"{run.path}"' for run in self.runs)
        raise UsageError(
            "a model is not sent to other processes, nor pickled",
            hint=f"each process opens its own: tx.load({f'[{runs}]' if len(self.runs) > 1 else runs})",
        )

    def __repr__(self) -> str:
        return f"<{', '.join(str(run.checkpoint) for run in self.runs)}: {self.runs[0].languages}>"

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        run, config = self.runs[0], self.model.config
        depths, rerank = config.depths, self.config.rerank
        by = "" if rerank is None else f", ranked by {rerank.run}"
        facts = {
            "model": ", ".join(str(run.checkpoint) for run in self.runs),
            "languages": run.languages,
            "parameters": f"{sum(p.numel() for model in self.models for p in model.parameters()):,}",
            "layers": f"{depths.encoder} + {depths.decoder}, d_model {config.d_model:,}, "
            f"{counted(config.n_heads, 'heads')}",
            "pieces": f"{self.tokenizer.source_size:,} source, {self.tokenizer.target_size:,} target",
            "search": f"{self.config.search}, beam {self.config.beam_size:,}{by}"
            if self.config.mbr is None
            else f"minimum Bayes risk of {self.config.mbr.samples:,} draws",
            "computes": f"{str(self.model.dtype or torch.float32).removeprefix('torch.')} on {self.device}",
        }
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(fact)}</td></tr>" for name, fact in facts.items())
        return f"<table>{rows}</table>"


@in_pythons_words
def load(
    run: str | Path | Sequence[str | Path] | None = None,
    *,
    device: str | None = None,
    precision: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Model:
    """A run, a checkpoint directory, or the latest run (of those that were validated, if any was), as `tx translate`
    opens it.

    run: several translate together, as an ensemble. device: cpu, cuda, mps, or auto. precision: fp32, bf16, fp16, or
    auto. settings: others, such as {"decoding.beam_size": 3}; decoding.engine is always native, decoding.workers 1 if
    it is not among them. The (first) run's own configuration where not given; auto is what the run chose, on the same
    kind of device.
    Raises UsageError, or its ConfigError, for what cannot be set; ModelError where there is no such run, where it is
    damaged, or where runs do not fit together.
    """
    runs = [run] if run is None or isinstance(run, str | Path) else run
    if isinstance(runs, bytes) or not isinstance(runs, Sequence) or not runs:
        raise UsageError(f"run is {what_is(run)}; expected a path, or several", hint='for example "runs/tiny"')
    if run is not None:
        for number, one in enumerate(runs, start=1):
            argument = "run" if one is run else f"run, entry {number:,}"
            check_name(argument, one, what="a path", hint="leave it out")
    given = {"device": device, "precision": precision}
    ours = {"decoding.workers": 1}  # whose process this is may have threads, which no fork has
    given = {name: value for name, value in given.items() if value is not None}
    asked = [*overrides(ours), *overrides(settings), *overrides(given)]
    with given_back():
        opened = [open_found(partial(_found, one), open_run) for one in runs]
        wanted = settings_of(opened[0], asked)
        model = translator_as(Model, opened, wanted)
        with console.collected(warn=warn):
            tell_compiler(opened, wanted)
        # All of it now: later the current directory may be another one, and a run replaced or deleted.
        model.open_all()
        model._known = Unseen.by(opened, warn).known
    model.runs, model.settings = tuple(opened), wanted
    model._machine, model._turn = machine_of(opened[0], wanted), Turn()
    return model


def _found(run: str | Path | None) -> Path:
    """The checkpoint that is meant, wherever this process will be; what nobody should miss of it is a warning."""
    with console.collected(warn=warn):
        if run is None:
            tell_default()
        found = find_checkpoint(None if run is None else os.fspath(run))
        if run is None or Path(run).resolve() != found.resolve():
            tell_unfinished(run_of(found))
    return found.absolute()


def _pairs(sources: Sequence[str], targets: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Both; UsageError unless they are texts, as many of the one as of the other."""
    for name, lines in (("sources", sources), ("targets", targets)):
        check_lines(name, lines)
    if len(sources) != len(targets):
        raise UsageError(
            f"sources: {len(sources):,}, targets: {len(targets):,}",
            hint="each source goes with its target",
        )
    return sources, targets
