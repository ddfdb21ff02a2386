"""A run on disk becomes something that translates. What needs torch is imported where it is used: settings do not."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter, ValidationError

from transformer_cli.checkpoints.find import find_checkpoint
from transformer_cli.checkpoints.known import KnownRun, open_found
from transformer_cli.checkpoints.manifest import MODEL, STATE, way_out
from transformer_cli.checkpoints.record import read_config
from transformer_cli.config.data import Direction
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.decoding.doubt import Certainty
from transformer_cli.decoding.texts import Learned
from transformer_cli.errors import ModelError, UsageError
from transformer_cli.files import shown

if TYPE_CHECKING:
    from transformer_cli.checkpoints.store import OpenedRun
    from transformer_cli.decoding.rerank import Channel
    from transformer_cli.decoding.shortlist import Shortlist
    from transformer_cli.decoding.translator import Translator
    from transformer_cli.machine import Machine

T = TypeVar("T", bound="Translator")
FREE = {
    "decoding",
    "evaluation",
    "serving",
    "device",
    "precision",
    "matmul_precision",
    "deterministic",
    "seed",
    "threads",
}
"""What may be set anew for a model that is trained; data.test too."""


def translator_of(opened: OpenedRun | Sequence[OpenedRun], settings: RunConfig) -> Translator:
    """The translator of an opened run, or of several as an ensemble, under these settings.

    In bf16 the last digits of a sentence's scores may depend on its neighbours in the batch; `precision: fp32` is there
    for whoever needs them. Raises ModelError for runs that do not share their vocabulary.
    """
    from transformer_cli.decoding.translator import Translator

    return translator_as(Translator, opened if isinstance(opened, Sequence) else [opened], settings)


def translator_as(kind: type[T], runs: Sequence[OpenedRun], settings: RunConfig) -> T:
    """The same, of this class."""
    _check_same_text(runs)
    machine = machine_of(runs[0], settings).use()
    for run in runs:
        run.model.to(machine.device)  # first: where they lie decides which weights are cast
        run.model.compute_in(machine.dtype, training=False)
        run.model.use_attention(fused=machine.fused_attention)
    return kind(
        [run.model for run in runs],
        runs[0].tokenizer,
        settings.decoding,
        device=machine.device,
        workers=settings.decoding.workers,
        shortlist=_shortlist_of(runs, settings.decoding.shortlist),
        channel=_channel_of(runs[0], settings),
        compiled=True,
        **learned_by(runs, settings),
    )


def in_fp32(translator: Translator, runs: Sequence[OpenedRun], settings: RunConfig) -> Translator:
    """The translator of these runs under these settings, or the same in fp32 where no precision was asked for. By the
    same weights, where they are still in fp32, and by what is open already: training may have deleted it since."""
    import torch

    from transformer_cli.checkpoints.store import open_run

    if settings.precision != "auto" or translator.model.dtype in (None, torch.float32):
        return translator

    def again(run: OpenedRun) -> OpenedRun:
        weights = [*run.model.parameters(), *run.model.buffers()]
        if any(weight.dtype != torch.float32 for weight in run.model.parameters()):
            there = open_run(run.checkpoint)
            if there.manifest.files[MODEL] != run.manifest.files[MODEL]:
                raise ModelError(
                    f"{shown(run.checkpoint)} was replaced after it was opened: its weights, which are to be computed "
                    "by in fp32, are gone",
                    hint="open the new one, or keep runs that are open",
                )
            return there
        return replace(run, model=copy.deepcopy(run.model, {id(weight): weight for weight in weights}))

    precise = translator_of([again(run) for run in runs], settings.model_copy(update={"precision": "fp32"}))
    precise.shortlist = translator.shortlist
    if (channel := translator.channel) is not None:
        precise.channel = cache(lambda target: channel(target).in_fp32)
    return precise


def learned_by(runs: Sequence[KnownRun], settings: RunConfig) -> Learned:
    """What their translator has to know of their training."""
    targets = runs[0].targets
    if len(runs) > 1:  # what one of them began with, others may never have seen
        shared = {one.target for one in _shared_directions(runs)}
        targets = tuple(target for target in targets if target in shared)
    return Learned(
        source_eos=runs[0].config.data.source_eos,
        max_length=min(run.config.data.max_length for run in runs),
        max_sentences=min(filter(None, map(usual_sentences_of, runs)), default=None),
        unsure_below=_unsure_below(runs),
        seed=settings.seed,
        targets=targets,
        usual_target=targets[0] if len(targets) == 1 else runs[0].usual_target,
    )


def machine_of(opened: KnownRun, settings: RunConfig) -> Machine:
    """Where and in which precision these settings let the run compute."""
    from transformer_cli.machine import settle

    return settle(settings, opened.record.get("machine"))


def _shortlist_of(runs: Sequence[KnownRun], n: int | None) -> Callable[[], Shortlist] | None:
    """What makes that of so many pieces; None where none is asked for."""
    if n is None:
        return None

    def made() -> Shortlist:
        from transformer_cli.data.lexicon import lexicon_of
        from transformer_cli.decoding.shortlist import Shortlist

        tokenizer = runs[0].tokenizer
        return Shortlist(lexicon_of([run.path for run in runs], tokenizer), n=n, n_targets=tokenizer.target.size)

    return made


def _channel_of(run: KnownRun, settings: RunConfig) -> Callable[[str | None], Channel] | None:
    """What gives the model that ranks translations of this run into a language, opened once; None where none is asked
    for."""
    if (asked := settings.decoding.rerank) is None:
        return None
    opened = cache(partial(_opened_to_rank, os.path.abspath(asked.run), settings))

    def channel(target: str | None) -> Channel:
        from transformer_cli.decoding.rerank import Channel

        there = Direction(*run.languages_into(target))
        if not (there.source and there.target):
            raise UsageError(
                f"{shown(asked.run)} is to rank translations (decoding.rerank), and {shown(run.path)} translates "
                f"{run.languages}: nothing says which of these a text is",
                hint="leave it out: --set decoding.rerank=null",
            )
        other, back, precise = opened()
        if there.reversed not in other.config.data.directions:
            raise UsageError(
                f"{shown(asked.run)} is to rank translations from {there.in_words} (decoding.rerank), and learned "
                f"{other.languages}",
                hint=f"name a run that learned {there.reversed.in_words}, or leave it out: --set decoding.rerank=null",
            )
        return Channel(
            back.towards(there.source),
            asked.weight,
            shown(asked.run),
            precise=lambda: precise().towards(there.source),
        )

    return channel


def _opened_to_rank(path: str, settings: RunConfig) -> tuple[KnownRun, Translator, Callable[[], Translator]]:
    """The run that ranks what others translate, what scores by it, and what gives the same in fp32. ModelError where it
    is missing or damaged."""
    from transformer_cli.checkpoints.store import open_run

    if not Path(path).exists():
        raise ModelError(
            f"{shown(path)}, which is to rank translations (decoding.rerank), does not exist",
            hint="name another run: --set decoding.rerank.run=RUN, or leave it out: --set decoding.rerank=null",
        )
    run = open_found(partial(find_checkpoint, path), open_run)
    decoding = settings.decoding
    plain = DecodingConfig(batch_size=decoding.batch_size, budget_tokens=decoding.budget_tokens)
    settings = settings.model_copy(update={"decoding": plain})
    back = translator_of(run, settings)
    return run, back, cache(partial(in_fp32, back, [run], settings))


def usual_sentences_of(run: KnownRun) -> int | None:
    """Of the lines that it learned from; None where the run does not say."""
    n = run.record.get("data", {}).get("train", {}).get("usual_sentences")
    return n if isinstance(n, int) and n > 0 else None


def _unsure_below(runs: Sequence[KnownRun]) -> float | None:
    """The least of theirs; None where one of them does not say."""
    numbers = [value for value in map(_threshold, runs) if value is not None]
    return min(numbers) if len(numbers) == len(runs) else None


def _threshold(run: KnownRun) -> float | None:
    """What its last validation found to be little. ModelError where that can be no certainty."""
    said = run.state.get("unsure_below")
    try:
        return TypeAdapter[float | None](Certainty | None).validate_python(said)
    except ValidationError:
        raise ModelError(
            f"{shown(run.checkpoint / STATE)} has values that no run can have: unsure_below {said!r:.60}",
            hint=way_out(run.checkpoint),
        ) from None


def _shared_directions(runs: Sequence[KnownRun]) -> set[Direction]:
    return set.intersection(*(set(run.config.data.directions) for run in runs))


def _check_same_text(runs: Sequence[KnownRun]) -> None:
    """ModelError unless all runs read and write the same ids, in the same languages."""
    first = runs[0]
    for place, run in enumerate(runs[1:], start=1):
        if run.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise ModelError(
                f"{shown(run.path)} has another vocabulary than {shown(first.path)}: an ensemble needs one for all",
                hint="train them with the same tokenizer: tokenizer: {model: FILE}, or the same text and seed",
            )
        if run.config.data.source_eos != first.config.data.source_eos:
            raise ModelError(
                f"of {shown(first.path)} and {shown(run.path)}, one was trained on sources that end in </s>",
                hint="an ensemble needs the same data.source_eos for all",
            )
        if not _shared_directions(runs[: place + 1]):
            raise ModelError(
                f"{shown(first.path)} translates {first.languages}, {shown(run.path)} {run.languages}",
                hint="an ensemble needs a direction that all have learned",
            )


def settings_of(opened: KnownRun, overrides: Sequence[str]) -> RunConfig:
    """The run's configuration with overrides on top; UsageError for those that only training could heed."""
    settings = read_config(opened.path, overrides)
    comparable = settings.model_copy(
        update={"data": settings.data.model_copy(update={"test": opened.config.data.test})}
    )
    for section in RunConfig.model_fields.keys() - FREE:
        if getattr(comparable, section) != getattr(opened.config, section):
            raise UsageError(
                f"{section}: this model is trained; only {', '.join(sorted(FREE))} and data.test can still be set",
                hint="another model is another run: `tx train` makes it",
            )
    return settings
