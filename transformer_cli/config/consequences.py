"""What follows from several settings of another toolkit together: its tables call such facts `~name`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from transformer_cli.config.expectations import HUGE
from transformer_cli.config.training import MAX_STEPS, TrainingConfig

Fact = tuple[Any, str]
SUPPOSED, IMPLIED, SAID = range(3)
NO_RATE = "no positive number, and the rate follows from it: choose training.learning_rate"


class Facts:
    """Settings of ours and facts, each with its value, its origin and its weight: who says it outweighs a default."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Any, str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def items(self) -> Iterator[tuple[str, Fact]]:
        return ((name, (value, origin)) for name, (_, value, origin) in self._known.items())

    def value(self, name: str, default: Any = None) -> Any:
        return self._known.get(name, (SUPPOSED, default, ""))[1]

    def origin(self, *names: str) -> str:
        """Where they come from, together."""
        return ", ".join(dict.fromkeys(self._known[name][2] for name in names if name in self._known))

    def pop(self, name: str) -> None:
        self._known.pop(name, None)

    def suppose(self, name: str, value: Any, origin: str) -> None:
        """By default; a later default, such as a family's, goes before."""
        self._put(name, value, origin, SUPPOSED)

    def imply(self, name: str, value: Any, origin: str) -> None:
        self._put(name, value, origin, IMPLIED)

    def say(self, name: str, value: Any, origin: str) -> str:
        """Takes it, or tells why not: something else was said already."""
        weight, earlier, by = self._known.get(name, (SUPPOSED, None, ""))
        if weight == SAID and earlier != value:
            return f"{name} is one setting in tx, and {by} says it already"
        self._put(name, value, origin, SAID)
        return ""

    def _put(self, name: str, value: Any, origin: str, weight: int) -> None:
        if self._known.get(name, (SUPPOSED,))[0] <= weight:
            self._known[name] = (weight, value, origin)


def follow(facts: Facts) -> dict[str, str]:
    """Adds the settings that follow; what could not be carried over, with the reason."""
    left: dict[str, str] = {}
    _tying(facts)
    _frozen(facts)
    _rate(facts, left)
    _adam(facts)
    _batch(facts, left)
    _both_sides(facts, left)
    _end(facts, left)
    _stacks(facts, left)
    _norms(facts, left)
    _positions(facts)
    _epochs(facts, left)
    if facts.value("~keeps_all"):
        left[facts.origin("~keeps_all")] = "there all checkpoints; tx keeps training.keep_best and training.keep_last"
    _marians(facts, left)
    if facts.value("~clips"):
        facts.say("training.clip_norm", facts.value("~clip"), facts.origin("~clip"))
    return left


def _tying(facts: Facts) -> None:
    """Where theirs has a word for all three, it goes before those for two."""
    if facts.value("~all_tied"):
        facts.say("model.tied", "all", facts.origin("~all_tied"))
        return
    names = ("~source_is_target", "~target_is_output")
    tied = {(True, True): "all", (True, False): "embeddings", (False, True): "decoder", (False, False): "none"}
    source_is_target, target_is_output = (bool(facts.value(name)) for name in names)
    facts.say("model.tied", tied[source_is_target, target_is_output], facts.origin(*names))


def _frozen(facts: Facts) -> None:
    """JoeyNMT's stacks and embeddings that learn nothing; an output that is not tied is part of its decoder."""
    shared, tied = facts.value("~source_is_target"), facts.value("~target_is_output")
    parts = {
        "~encoder_frozen": ["encoder"],
        "~decoder_frozen": ["decoder"] if tied else ["decoder", "output"],
        "~source_embedding_frozen": ["embeddings" if shared else "source_embedding"],
        "~target_embedding_frozen": ["embeddings" if shared else "target_embedding"],
    }
    if held := [name for name in parts if name in facts]:
        named = [part for name in held for part in parts[name]]
        facts.say("training.freeze", list(dict.fromkeys(named)), facts.origin(*held))


def _rate(facts: Facts, left: dict[str, str]) -> None:
    """The peak at the end of the warm-up, which our learning rate is, from what theirs is a factor of."""
    name = "~warmup" if "~warmup" in facts else "training.warmup_steps"
    if facts.value("~noam"):
        factor = "~factor" if "~factor" in facts else "training.learning_rate"
        _say_peak(facts, left, "the peak of noam", factor=factor, roots=["model.d_model", name])
    elif facts.value("~rate_over_root"):
        roots = [name] if facts.value(name) else []  # theirs divides by 1, at least
        _say_peak(facts, left, "divided by the root of the warm-up", factor="training.learning_rate", roots=roots)
        if facts.value("~begins_at_peak") and facts.value(name):
            left[facts.origin("~begins_at_peak")] = (
                "there the rate is at its peak until the warm-up ends; in tx it rises"
            )
    elif begins := facts.value("~inverse_sqrt"):
        facts.say("training.schedule", "inverse-sqrt", facts.origin("~inverse_sqrt"))
        if begins != (warmup := facts.value(name)):
            left[facts.origin("~inverse_sqrt")] = (
                f"in tx the rate falls as soon as it has risen, from update {warmup} on"
            )
    if "~warmup" in facts:
        is_constant = facts.value("training.schedule") == "constant"  # theirs has no warm-up then
        origin = facts.origin("training.schedule" if is_constant else "~warmup")
        facts.say("training.warmup_steps", 0 if is_constant else facts.value("~warmup"), origin)


def _say_peak(facts: Facts, left: dict[str, str], words: str, *, factor: str, roots: list[str]) -> None:
    """The factor, divided by the root of each of the others."""
    origin = f"{facts.origin('~noam', '~rate_over_root', '~factor')}, {words}"
    facts.say("training.schedule", "inverse-sqrt", origin)
    odd = [name for name in (factor, *roots) if name in facts and not _is_positive(facts.value(name))]
    left.update({facts.origin(name): NO_RATE for name in odd})
    peak = 0.0 if odd else facts.value(factor) / math.sqrt(math.prod(facts.value(name, 512) for name in roots))
    for name in ("training.learning_rate", *odd):
        facts.pop(name)
    if not odd:
        facts.say("training.learning_rate", float(f"{peak:.6g}"), origin)


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= HUGE


def _adam(facts: Facts) -> None:
    if isinstance(parameters := facts.value("~adam"), list):
        facts.say("training.betas", parameters[:2], facts.origin("~adam"))
        if len(parameters) > 2:
            facts.say("training.eps", parameters[2], facts.origin("~adam"))
    if "~beta1" in facts or "~beta2" in facts:
        betas = facts.value("training.betas")
        pair = [facts.value(f"~beta{index + 1}", beta) for index, beta in enumerate(betas)]
        facts.say("training.betas", pair, facts.origin("~beta1", "~beta2"))
    if facts.value("~decays_apart") and facts.value("training.weight_decay"):
        origin = f"{facts.origin('training.weight_decay')}, apart from the gradient there, too"
        facts.say("training.optimizer", "adamw", origin)


def _batch(facts: Facts, left: dict[str, str]) -> None:
    if "~batch" in facts and facts.value("~batch_of") == "tokens":
        facts.say("training.budget_tokens", facts.value("~batch"), facts.origin("~batch"))
    elif "~batch" in facts:
        left[facts.origin("~batch")] = "these are sentences; tx counts padded tokens: choose training.budget_tokens"
    elif "training.budget_tokens" not in facts:
        left["the batches"] = "no size in tokens is said: choose training.budget_tokens"


def _end(facts: Facts, left: dict[str, str]) -> None:
    """Marian's `after`: updates, or epochs as in 20e. fairseq's end of a rate that falls to zero, which in tx is that
    of training."""
    if (zero_at := facts.value("~rate_ends_at")) is not None:
        origin, ends = facts.origin("~rate_ends_at"), facts.value("training.max_steps")
        if type(zero_at) is not int or zero_at < 1:
            left[origin] = "this is no number of updates"
        elif facts.value("training.schedule") != "linear":
            left[origin] = "only a rate that falls linearly ends there"
        elif ends in (None, zero_at):
            facts.say("training.max_steps", zero_at, origin)
        else:
            left[origin] = f"linear ends where training does: training.max_steps, {ends}"
    until, origin = facts.value("~until"), facts.origin("~until")
    if isinstance(until, int) and until > 0:
        facts.say("training.max_steps", until, origin)
    elif isinstance(until, str) and re.fullmatch(r"\d{1,15}e", until):
        if int(until[:-1]):
            facts.say("training.max_epochs", int(until[:-1]), origin)
    elif until is not None:
        left[origin] = "tx ends after updates or epochs: training.max_steps, training.max_epochs"
    if facts.value("training.max_steps") is None:
        left["no limit of updates"] = f"tx has one even so, of {MAX_STEPS:,}: training.max_steps"


def _stacks(facts: Facts, left: dict[str, str]) -> None:
    """fairseq's stacks norm before or behind a sublayer, and learn positions or not, each by itself."""
    before = [facts.value(f"~{stack}_norms_before") for stack in ("encoder", "decoder")]
    origin = facts.origin("~encoder_norms_before", "~decoder_norms_before")
    if all(before):
        facts.say("model.norm_position", "pre", origin)
    elif any(before) and facts.value("model.norm_position") != "pre":
        left[origin] = "one stack norms before its sublayers, the other behind; in tx both do the same"
    learned = [facts.value(f"~{stack}_learns_positions") for stack in ("encoder", "decoder")]
    origin = facts.origin("~encoder_learns_positions", "~decoder_learns_positions")
    if all(learned):
        facts.say("model.positions", "learned", origin)
        facts.say("model.first_position", 0, origin)
    elif any(learned):
        left[origin] = "one stack learns its positions, and counts them otherwise: choose model.positions"


def _norms(facts: Facts, left: dict[str, str]) -> None:
    """JoeyNMT's stacks norm each by itself, and by default unlike each other."""
    names = ("~encoder_norm", "~decoder_norm")
    encoder, decoder = (facts.value(name) for name in names)
    if encoder != decoder:
        left["layer_norm"] = f"the encoder's is {encoder}, the decoder's {decoder}; choose model.norm_position for both"
    elif names[0] in facts:
        facts.say("model.norm_position", encoder, facts.origin(*names))


def _positions(facts: Facts) -> None:
    """OpenNMT-py says how its sinusoids are arranged apart from whether it has any."""
    if "~sinusoids" in facts and facts.value("model.positions") == "sinusoidal":
        facts.imply("model.positions", facts.value("~sinusoids"), facts.origin("~sinusoids"))


def _epochs(facts: Facts, left: dict[str, str]) -> None:
    """fairseq validates after each epoch, and counts those in patience, where no number of updates is said."""
    if not facts.value("~validates_by_epochs") or "training.validate_every" in facts:
        return
    every = f"in tx after {TrainingConfig().validate_every:,} updates: training.validate_every"
    if "training.patience" in facts:
        left[facts.origin("training.patience")] = f"counts validations, there after each epoch, {every}"
        facts.pop("training.patience")
    else:
        left["a validation after each epoch"] = every


def _marians(facts: Facts, left: dict[str, str]) -> None:
    """An average's decay, which it calls by what is left; of its metrics the first, which counts; and how a unigram
    model, which it trains, is sampled."""
    if facts.value("~samples_by_alpha") and "tokenizer.sampling" in facts:
        facts.imply("tokenizer.kind", "unigram", f"{facts.origin('tokenizer.sampling')}, of SentencePiece's default")
    if isinstance(smoothing := facts.value("~smoothing"), float):
        facts.say("training.ema", round(1 - smoothing, 12), facts.origin("~smoothing"))
    if metrics := facts.value("~metrics"):
        first = metrics[0] if isinstance(metrics, list) else metrics
        score = {"bleu": "bleu", "translation": "bleu", "cross-entropy": "loss", "ce-mean-words": "loss"}
        score |= {"bleu-detok": "bleu", "bleu-segmented": "bleu", "perplexity": "loss"}
        if str(first) in score:
            facts.say("training.best_by", score[first], facts.origin("~metrics"))
        else:
            left[facts.origin("~metrics")] = "tx judges by bleu or loss: training.best_by"


def _both_sides(facts: Facts, left: dict[str, str]) -> None:
    """One value where both sides have the same, {encoder, decoder} or {source, target} where they have not."""
    stacks, sides = ("encoder", "decoder"), ("source", "target")
    for name, parts in {"model.n_layers": stacks, "data.train": sides, "data.valid": sides}.items():
        whole = facts.value(name)
        pair = [facts.value(f"{name}.{part}", whole) for part in parts]
        said = [f"{name}.{part}" for part in parts if f"{name}.{part}" in facts]
        if isinstance(whole, list) and not said:
            pair, said = whole, [name]
        if said:
            origin = facts.origin(*said)
            for one in {name, *said}:
                facts.pop(one)
            if len(pair) != len(parts):
                left[origin] = f"{name} has {' and '.join(parts)}, and here are {len(pair)}"
                continue
            if None in pair:
                left[origin] = f"{name} has a {parts[0]} and a {parts[1]}; the {parts[pair.index(None)]} is not said"
                continue
            facts.say(name, pair[0] if pair[0] == pair[1] else dict(zip(parts, pair, strict=True)), origin)
