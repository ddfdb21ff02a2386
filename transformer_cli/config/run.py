"""The whole configuration: the sections, and the checks across them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.data import PHRASEBOOK, DataConfig
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.section import NonNegativeInt, Section
from transformer_cli.config.tokenizer import SideModels, SideVocabSizes, TokenizerConfig
from transformer_cli.config.training import TrainingConfig


class RunConfig(Section):
    """Everything that decides how a run goes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] | None = None
    """The run's name: its directory is runs/NAME; the file's name when not given."""
    seed: NonNegativeInt = 1
    """Every random choice derives from it."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA, then MPS, then CPU."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 where it was measured to be faster on this machine, else fp32."""
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None
    """CPU threads; PyTorch's choice when not given."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


SPECIALS = 4
BYTES = 256


@dataclass(frozen=True)
class Contradiction:
    """Settings that are each fine but do not go together. paths: the settings, the likeliest culprit first."""

    message: str
    paths: tuple[tuple[str, ...], ...]


def contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """Everything in a configuration that contradicts something else in it."""
    yield from _run(config)
    yield from _shape(config)
    yield from _vocabulary(config)
    yield from _sentences(config)
    yield from _lengths(config)
    yield from _schedule(config)


def _contradiction(message: str, *settings: str) -> Contradiction:
    return Contradiction(message, tuple(tuple(setting.split(".")) for setting in settings))


def _run(config: RunConfig) -> Iterator[Contradiction]:
    if config.name == "latest":
        yield _contradiction("a run cannot be named `latest`: runs/latest names the last run", "name")


def _shape(config: RunConfig) -> Iterator[Contradiction]:
    model = config.model
    if model.d_head is None and model.d_model % model.n_heads:
        yield _contradiction(
            f"d_model {model.d_model:,} is not divisible by {model.n_heads:,} heads; give d_head to choose their width",
            "model.n_heads",
            "model.d_model",
        )
    elif model.positions == "rotary" and model.head_width % 2:
        yield _contradiction(
            f"rotary positions turn pairs, but a head is {model.head_width} wide: an odd number",
            "model.d_head",
            "model.n_heads",
            "model.d_model",
            "model.positions",
        )
    if model.positions == "sinusoidal" and model.d_model % 2:
        yield _contradiction(
            f"sinusoidal positions are pairs of sine and cosine, but d_model {model.d_model:,} is odd",
            "model.d_model",
            "model.positions",
        )
    for side in ("encoder", "decoder"):
        if getattr(model.depths, side) < 1:
            yield _contradiction(f"an encoder-decoder needs at least one {side} layer", f"model.n_layers.{side}")


def _vocabulary(config: RunConfig) -> Iterator[Contradiction]:
    tokenizer, model = config.tokenizer, config.model
    if model.tied == "all" and not tokenizer.joint:
        yield _contradiction(
            "one matrix for everything (model.tied: all) needs one vocabulary (tokenizer.joint: true); "
            "tied: decoder or none goes with two",
            "model.tied",
            "tokenizer.joint",
        )
    if tokenizer.joint and isinstance(tokenizer.vocab_size, SideVocabSizes):
        yield _contradiction(
            "a size for each side needs a tokenizer for each side (tokenizer.joint: false)",
            "tokenizer.vocab_size",
            "tokenizer.joint",
        )
    if tokenizer.joint and isinstance(tokenizer.model, SideModels):
        yield _contradiction("a model for each side needs tokenizer.joint: false", "tokenizer.model", "tokenizer.joint")
    if not tokenizer.joint and isinstance(tokenizer.model, str):
        yield _contradiction(
            "a tokenizer for each side (joint: false) needs {source, target} models",
            "tokenizer.model",
            "tokenizer.joint",
        )
    if tokenizer.sampling and tokenizer.kind == "word":
        yield _contradiction(
            "whole words cannot be sampled: sampling needs kind bpe or unigram", "tokenizer.sampling", "tokenizer.kind"
        )
    sizes = tokenizer.vocab_size
    smallest = min(sizes.source, sizes.target) if isinstance(sizes, SideVocabSizes) else sizes
    if tokenizer.byte_fallback and smallest <= SPECIALS + BYTES:
        yield _contradiction(
            f"byte_fallback alone takes {BYTES} pieces besides the {SPECIALS} specials: "
            f"vocab_size must be above {SPECIALS + BYTES}",
            "tokenizer.vocab_size",
            "tokenizer.byte_fallback",
        )


def _sentences(config: RunConfig) -> Iterator[Contradiction]:
    data = config.data
    if data.train == PHRASEBOOK:
        if {data.source, data.target} != {"de", "en"}:
            yield _contradiction(
                f"the phrasebook is German-English: source and target are de and en in either order, "
                f"not {data.source} and {data.target}",
                "data.source",
                "data.target",
                "data.train",
            )
    else:
        if data.valid is None:
            yield _contradiction("sentences to learn from need others to validate with: data.valid", "data.train")
        for split in ("valid", "test"):
            if getattr(data, split) == PHRASEBOOK:
                yield _contradiction(
                    f"the phrasebook's {split} sentences go with its own train sentences only",
                    f"data.{split}",
                    "data.train",
                )
    splits = {split: getattr(data, split) for split in ("train", "valid", "test")}
    prefixes = {split: value for split, value in splits.items() if isinstance(value, str) and value != PHRASEBOOK}
    for split, prefix in prefixes.items():
        if not prefix:
            yield _contradiction("an empty file name", f"data.{split}")
    if prefixes and data.source == data.target:
        yield _contradiction(
            f"source and target are both {data.source}: the two sides would be the same file",
            "data.target",
            "data.source",
        )
    for side in ("source", "target"):
        language = getattr(data, side)
        if not language or "/" in language or any(char.isspace() for char in language):
            yield _contradiction("a language is the last part of a file name, such as de", f"data.{side}")


def _lengths(config: RunConfig) -> Iterator[Contradiction]:
    data, model, training, decoding = config.data, config.model, config.training, config.decoding
    if data.max_length > training.budget_tokens:
        yield _contradiction(
            f"a sentence of data.max_length {data.max_length:,} does not fit into a batch of "
            f"training.budget_tokens {training.budget_tokens:,}",
            "training.budget_tokens",
            "data.max_length",
        )
    needed = model.first_position + data.max_length
    if model.positions == "learned" and model.max_positions < needed:
        yield _contradiction(
            f"sentences of up to data.max_length {data.max_length:,} need {needed:,} learned positions, "
            f"model.max_positions is {model.max_positions:,}",
            "model.max_positions",
            "data.max_length",
            "model.positions",
        )
    if decoding.max_length_factor == 0 and decoding.max_length_extra == 0:
        yield _contradiction(
            "factor and extra are both 0: a translation could not have a single piece",
            "decoding.max_length_factor",
            "decoding.max_length_extra",
        )


def _schedule(config: RunConfig) -> Iterator[Contradiction]:
    training = config.training
    if training.schedule == "noam" and training.warmup_steps == 0:
        yield _contradiction(
            "noam divides by warmup_steps: it must be above 0", "training.warmup_steps", "training.schedule"
        )
    if training.best_by == "bleu" and not training.validation_bleu:
        yield _contradiction(
            "best_by: bleu needs validation_bleu: true; best_by: loss goes without",
            "training.validation_bleu",
            "training.best_by",
        )
