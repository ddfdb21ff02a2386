"""The whole configuration: the sections, and the checks across them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.accounting import AccountingConfig, CountedModel, Vocabularies
from transformer_cli.config.data import DataConfig, impossible, texts_that_clash
from transformer_cli.config.decoding import DecodingConfig, searches_that_clash
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.former import former_peak
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.section import Contradiction, Name, NonNegativeInt, Section, is_latest
from transformer_cli.config.serving import ServingConfig
from transformer_cli.config.tokenizer import SideModels, SideVocabSizes, TokenizerConfig
from transformer_cli.config.training import TrainingConfig


class RunConfig(Section):
    """Everything that decides how a run goes."""

    name: Name | None = None
    """The run's name; its directory is runs/NAME. When not given, the file's name."""
    seed: NonNegativeInt = 1
    """Every random choice derives from it."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA, then MPS, unless several processes train, then CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Of activations and matrix products; weights stay in fp32, and moments, but for those of compiled code in bf16.
    auto: bf16 on a CPU with instructions for it (AVX512-BF16, AMX; measured where the system does not tell) and on a
    GPU whose tensor cores support it, fp16 where they do not; else fp32."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Of products in fp32, as in torch.set_float32_matmul_precision: `high` lets GPUs since Ampere use TF32, `medium`
    lets CPUs with fast bf16 products use these; faster, and less exact."""
    deterministic: bool = False
    """Ask PyTorch for algorithms that give the same bits each time. A CPU does not need this; a GPU is slower with
    it."""
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None
    """CPU threads, at most one per processor; PyTorch's choice when not given."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    serving: ServingConfig = ServingConfig()
    accounting: AccountingConfig = AccountingConfig()

    @property
    def counted(self) -> CountedModel:
        """The model with what of it is only counted."""
        return CountedModel.model_validate({**dict(self.model), **dict(self.accounting)})


def vocab_sizes(config: RunConfig) -> tuple[int, int]:
    """Source and target vocabulary: those to count with, else those that the tokenizer is to have."""
    if (sizes := config.accounting.vocab) is not None:
        return (sizes, sizes) if isinstance(sizes, int) else (sizes.source, sizes.target)
    source, target = config.tokenizer.asked(len(config.data.tagged))
    return source + config.tokenizer.extend, target + config.tokenizer.extend


SPECIALS = 4
BYTES = 256
WITH_PIECES = {"embeddings", "source_embedding", "target_embedding", "output", "output_bias"}
"""Parts that training.freeze can name, with a row for each piece."""


def contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """Everything in a configuration that contradicts something else in it."""
    yield from _run(config)
    yield from _architecture(config)
    yield from _shape(config)
    yield from _vocabulary(config)
    yield from texts_that_clash(config.data)
    yield from _files(config)
    yield from searches_that_clash(config.decoding)
    yield from _lengths(config)
    yield from _schedule(config)
    yield from _metrics(config)


def untrainable(config: RunConfig) -> Iterator[Contradiction]:
    """What can be counted but not trained."""
    model, data, accounting = config.model, config.data, config.accounting
    if accounting.architecture != "encoder-decoder":
        yield Contradiction.of(
            f"tx trains encoder-decoder models; one that is {accounting.architecture} it only builds and counts",
            "accounting.architecture",
        )
    if accounting.vocab is not None:
        yield Contradiction.of(
            "a model is trained with the vocabulary of its tokenizer (tokenizer.vocab_size); accounting.vocab only "
            "counts",
            "accounting.vocab",
        )
    if accounting.extra:
        yield Contradiction.of("extras are counted, not built: a model to train has none", "accounting.extra")
    if accounting.attention_biases is not None:
        yield Contradiction.of(
            "biases for some projections only are counted, not built: a model to train has all or none of them "
            "(model.bias)",
            "accounting.attention_biases",
        )
    if data.train is None:
        yield Contradiction.of("there is no text to learn from: data.train is null", "data.train")
    for side in model.sides:
        room = model.room(side)
        if room is not None and 0 < room < data.max_length:
            yield Contradiction.of(
                f"the {side} has positions for {room:,} pieces (model.max_positions), "
                f"but sentences may have data.max_length {data.max_length:,}",
                "model.max_positions",
                "data.max_length",
                "model.positions",
            )
            break


def _run(config: RunConfig) -> Iterator[Contradiction]:
    if is_latest(config.name or ""):
        yield Contradiction.of(f"a run cannot be named `{config.name}`: runs/latest names the last run", "name")


def _architecture(config: RunConfig) -> Iterator[Contradiction]:
    model = config.counted
    alone = len(model.sides) == 1
    for side, other in (("encoder", "decoder-only"), ("decoder", "encoder-only")):
        depth, place = getattr(model.depths, side), f"model.n_layers.{side}"
        if side not in model.sides and depth:
            words = f"a model of architecture {model.architecture} has no {side} layers, not {depth:,}"
            yield Contradiction.of(words, place, "accounting.architecture")
        elif side in model.sides and not depth and alone:
            yield Contradiction.of(f"a model of architecture {model.architecture} needs at least one layer", place)
        elif side in model.sides and not depth:
            words = f"an encoder-decoder needs at least one {side} layer; accounting.architecture: {other} goes without"
            yield Contradiction.of(words, place)
    if model.architecture == "decoder-only" and model.tied not in ("all", "none"):
        yield Contradiction.of(
            "a decoder-only model has one embedding: the output is that matrix, too (tied: all), or its own (none)",
            "model.tied",
            "accounting.architecture",
        )
    if model.architecture == "encoder-only" and model.tied != "all":
        yield Contradiction.of(
            "an encoder-only model has one embedding and no output: there is nothing to tie or not",
            "model.tied",
            "accounting.architecture",
        )


def _shape(config: RunConfig) -> Iterator[Contradiction]:
    model = config.counted
    divisible = model.d_head is not None or model.d_model % model.n_heads == 0
    if not divisible:
        yield Contradiction.of(
            f"d_model {model.d_model:,} is not divisible by {model.n_heads:,} heads; give d_head to choose their width",
            "model.n_heads",
            "model.d_model",
        )
    if model.n_heads % model.kv_heads:
        yield Contradiction.of(
            f"{model.n_heads:,} heads of queries cannot share {model.kv_heads:,} heads of keys and values evenly",
            "model.n_kv_heads",
            "model.n_heads",
        )
    kinds = {model.positions_of(side) for side in model.sides}
    if "rotary" in kinds and divisible and model.head_width % 2:
        yield Contradiction.of(
            f"rotary positions turn pairs, but a head is {model.head_width:,} wide: an odd number",
            "model.d_head",
            "model.n_heads",
            "model.d_model",
            "model.positions",
        )
    if kinds & {"sinusoidal", "sinusoidal-halves", "sinusoidal-table"} and model.d_model % 2:
        yield Contradiction.of(
            f"sinusoidal positions are pairs of sine and cosine, but d_model {model.d_model:,} is odd",
            "model.d_model",
            "model.positions",
        )
    for side in model.sides:
        room = model.room(side)
        if room is not None and room < 1:
            yield Contradiction.of(
                f"positions begin with {model.first_position:,}, but the {side}'s table ends before",
                "model.first_position",
                "model.max_positions",
                "model.positions",
            )
            break
    biased = model.attention_biases or []
    if len(set(biased)) < len(biased):
        yield Contradiction.of("a projection is named twice", "accounting.attention_biases")
    if biased and not model.biases.attention:
        yield Contradiction.of(
            "model.bias says that no projection of attention has a bias", "accounting.attention_biases", "model.bias"
        )
    names: set[str] = set()
    for index, extra in enumerate(model.extra):
        if extra.name in names:
            yield Contradiction.of(f"two extras are called {extra.name}", f"accounting.extra.{index}.name")
        names.add(extra.name)


def _vocabulary(config: RunConfig) -> Iterator[Contradiction]:
    tokenizer, model = config.tokenizer, config.counted
    one_matrix = {"all": "one matrix for everything", "embeddings": "one matrix for both embeddings"}
    if model.architecture != "encoder-decoder":
        if isinstance(model.vocab, Vocabularies):
            yield Contradiction.of(
                f"a model of architecture {model.architecture} has one vocabulary", "accounting.vocab"
            )
    elif model.tied in one_matrix:
        needs = f"{one_matrix[model.tied]} (model.tied: {model.tied}) needs one vocabulary"
        source, target = vocab_sizes(config)
        if model.vocab is None and not tokenizer.joint:
            yield Contradiction.of(
                f"{needs} (tokenizer.joint: true); tied: decoder or none goes with two", "model.tied", "tokenizer.joint"
            )
        elif model.vocab is not None and source != target:
            yield Contradiction.of(
                f"{needs}, not {source:,} and {target:,} pieces; tied: decoder or none goes with two",
                "model.tied",
                "accounting.vocab",
            )
    if tokenizer.joint and isinstance(tokenizer.vocab_size, SideVocabSizes):
        yield Contradiction.of(
            "a size for each side needs a tokenizer for each side (tokenizer.joint: false)",
            "tokenizer.vocab_size",
            "tokenizer.joint",
        )
    if tokenizer.joint and isinstance(tokenizer.model, SideModels):
        yield Contradiction.of(
            "a model for each side needs tokenizer.joint: false", "tokenizer.model", "tokenizer.joint"
        )
    if not tokenizer.joint and isinstance(tokenizer.model, str):
        yield Contradiction.of(
            "a tokenizer for each side (joint: false) needs {source, target} models",
            "tokenizer.model",
            "tokenizer.joint",
        )
    if tokenizer.sampling and tokenizer.kind not in ("bpe", "unigram"):
        yield Contradiction.of(
            f"whole {tokenizer.kind}s cannot be sampled: sampling needs kind bpe or unigram",
            "tokenizer.sampling",
            "tokenizer.kind",
        )
    if tokenizer.extend and config.training.init_from is None:
        yield Contradiction.of(
            "new pieces are learned on top of another run's tokenizer: name that run in training.init_from; without "
            "one, tokenizer.vocab_size says how many there are",
            "tokenizer.extend",
            "training.init_from",
        )
    if tokenizer.extend and tokenizer.kind == "byte":
        yield Contradiction.of(
            "a byte tokenizer has all bytes: there is none to add", "tokenizer.extend", "tokenizer.kind"
        )
    for index, part in enumerate(config.training.freeze if tokenizer.extend else ()):
        if part.partition(".")[0] in WITH_PIECES:
            yield Contradiction.of(
                f"new pieces (tokenizer.extend) could not learn: training.freeze keeps {part} fixed",
                f"training.freeze.{index}",
                "tokenizer.extend",
            )
    sizes = tokenizer.vocab_size
    n_tags = 0 if tokenizer.given or tokenizer.kind == "byte" else len(config.data.tagged)
    of_source, of_target = (sizes.source, sizes.target) if isinstance(sizes, SideVocabSizes) else (sizes, sizes)
    for size, tags in ((of_source, n_tags), (of_target, 0)):
        beside, taken = f"the {SPECIALS} specials" + f" and the tags ({tags})" * (tags > 0), SPECIALS + tags
        if tokenizer.byte_fallback and tokenizer.kind != "byte" and size <= BYTES + taken:
            words = f"byte_fallback alone takes {BYTES} pieces besides {beside}: vocab_size must be above "
            yield Contradiction.of(f"{words}{BYTES + taken}", "tokenizer.vocab_size", "tokenizer.byte_fallback")
            break
        if tags and size <= taken:
            words = f"{beside} leave no piece for the text: vocab_size must be above {taken}"
            yield Contradiction.of(words, "tokenizer.vocab_size")
            break


def _files(config: RunConfig) -> Iterator[Contradiction]:
    model = config.tokenizer.model
    if isinstance(model, SideModels):
        yield from impossible([model.source], ("tokenizer", "model", "source"))
        yield from impossible([model.target], ("tokenizer", "model", "target"))
    elif model is not None:
        yield from impossible([model], ("tokenizer", "model"))


def _lengths(config: RunConfig) -> Iterator[Contradiction]:
    data, training, decoding = config.data, config.training, config.decoding
    if data.max_length > training.budget_tokens:
        yield Contradiction.of(
            f"a sentence of data.max_length {data.max_length:,} does not fit into a batch of "
            f"training.budget_tokens {training.budget_tokens:,}",
            "training.budget_tokens",
            "data.max_length",
        )
    if decoding.max_length_factor == 0 and decoding.max_length_extra == 0:
        yield Contradiction.of(
            "factor and extra are both 0: a translation could not have a single piece",
            "decoding.max_length_factor",
            "decoding.max_length_extra",
        )
    if decoding.max_length is not None and decoding.min_length > decoding.max_length:
        yield Contradiction.of(
            f"a translation of at least {decoding.min_length:,} pieces cannot have at most {decoding.max_length:,}",
            "decoding.min_length",
            "decoding.max_length",
        )
    if decoding.min_length > data.max_length:
        yield Contradiction.of(
            f"a translation of at least {decoding.min_length:,} pieces: the model learns from sentences of "
            f"{data.max_length:,} at most (data.max_length)",
            "decoding.min_length",
            "data.max_length",
        )
    layer, depth = decoding.alignment_layer, config.counted.depths.decoder
    if layer is not None and layer > depth:
        yield Contradiction.of(
            f"alignments cannot be read from decoder layer {layer:,} of {depth:,}",
            "decoding.alignment_layer",
            "model.n_layers",
        )


def _schedule(config: RunConfig) -> Iterator[Contradiction]:
    training = config.training
    limits = ("max_steps", "max_epochs", "stop_loss", "patience")
    others = [name for name in limits if training.budget and getattr(training, name) is not None]
    if others:
        nulls = " and ".join(f"training.{name}=null" for name in others)
        words = f"training ends when its budget is spent and not before: beside it, set {nulls}"
        yield Contradiction.of(words, *(f"training.{name}" for name in others), "training.budget")
    if training.budget and len(training.budget.given) != 1:
        yield Contradiction.of("a budget is one of minutes, tokens and epochs", "training.budget")
    if training.schedule == "noam" and not (isinstance(training.warmup_steps, int) and training.warmup_steps):
        yield Contradiction.of(
            "noam's peak follows from warmup_steps, a number of updates above 0",
            "training.warmup_steps",
            "training.schedule",
        )
    elif training.schedule == "noam" and training.learning_rate is not None:
        peak = former_peak(training.learning_rate, config.model.d_model, training.warmup_updates)
        yield Contradiction.of(
            "noam is the paper's rate, (d_model * warmup_steps)^-0.5 at its peak: it takes no learning_rate (null); "
            f"inverse-sqrt is the same curve up to any other, such as {peak!r}, which this setting used to mean",
            "training.learning_rate",
            "training.schedule",
        )
    if training.schedule != "noam" and training.learning_rate is None:
        yield Contradiction.of(
            f"{training.schedule} needs a learning_rate to rise to; only noam has its own",
            "training.learning_rate",
            "training.schedule",
        )
    if training.optimizer == "schedule-free" and training.schedule != "constant":
        yield Contradiction.of(
            f"schedule-free averages in place of a schedule: it goes with constant, not {training.schedule}",
            "training.schedule",
            "training.optimizer",
        )
    if training.optimizer == "schedule-free" and training.ema is not None:
        yield Contradiction.of(
            "schedule-free has an average of its own: ema goes with the others", "training.ema", "training.optimizer"
        )
    model = config.model
    if training.r_drop is not None and not model.dropout + model.attention_dropout + model.activation_dropout:
        yield Contradiction.of(
            "r_drop compares two draws of dropout, and model.dropout is 0", "training.r_drop", "model.dropout"
        )
    if training.best_by == "bleu" and not training.validation_bleu:
        yield Contradiction.of(
            "best_by: bleu needs validation_bleu: true; best_by: loss does not",
            "training.validation_bleu",
            "training.best_by",
        )


def _metrics(config: RunConfig) -> Iterator[Contradiction]:
    metrics = config.evaluation.metrics
    for index, name in enumerate(metrics):
        if name in metrics[:index]:
            yield Contradiction.of(f"{name} is named twice", f"evaluation.metrics.{index}")
    if "comet" in metrics and config.evaluation.comet.model is None:
        yield Contradiction.of(
            "COMET is a trained model, which evaluation.comet.model names: a checkpoint, or a name to download",
            f"evaluation.metrics.{metrics.index('comet')}",
            "evaluation.comet.model",
        )
