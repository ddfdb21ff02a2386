"""What a run takes of the disk, and of time before its first update, told from a sample of its text."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from transformer_cli.accounting.freezing import frozen
from transformer_cli.checkpoints.overview import bytes_in
from transformer_cli.checkpoints.tensors import size_in_file, weights
from transformer_cli.config.run import RunConfig
from transformer_cli.config.training import TrainingConfig
from transformer_cli.data import binary
from transformer_cli.data.corpus import Corpus
from transformer_cli.data.encoding import Block, Encoder, n_processes
from transformer_cli.data.volumes import Volumes
from transformer_cli.machine import Machine
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.tokenizer import Tokenizer, train_tokenizer
from transformer_cli.tokenizer.learning import MAX_LINES
from transformer_cli.training.moving_average import PREFIX, average_of
from transformer_cli.training.optimizers import build_optimizer, state_tensors

SAMPLE = 4_000
"""Pairs all over the text that tell how many pieces it has, and how long it takes."""
NUMBERS = 2 * np.dtype(np.uint64).itemsize
"""Bytes of a pair that are remembered of its lines: in the volumes of the text, until all are there, and in the run."""


@dataclass(frozen=True)
class Disk:
    """Bytes on the disk of a run.

    text: as ids, with what is kept of it. checkpoint: of one; checkpoints: how many there are at most at a time. there:
    of all that, what the run directory has by now. needed: what is still to be written, and at a time there; a run that
    is replaced goes when the text is encoded. free: for whoever asks.
    """

    text: int
    checkpoint: int
    checkpoints: int
    tokenizer: int
    there: int
    needed: int
    free: int


@dataclass(frozen=True)
class Preparing:
    """Seconds before the first update on this machine; 0 for what is there already."""

    reading: float
    tokenizer: float
    encoding: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.reading + self.tokenizer + self.encoding


def expense(
    config: RunConfig,
    run_dir: Path,
    texts: Mapping[str, Corpus],
    tokenizer: Tokenizer | None,
    *,
    machine: Machine,
    pieces: tuple[int, int],
    overwrite: bool,
    reading_s: float,
) -> tuple[Disk, Preparing]:
    """What a run takes of the disk, and of time before its first update, told from a sample of its text.

    texts: train and valid, as they are used. tokenizer: None where it would still be trained. pieces: of source and
    target, at most. reading_s: how long it took to read the texts.
    """
    sample = texts["train"].sample(SAMPLE)
    n_pairs = sum(len(texts[name]) for name in ("train", "valid") if name in texts)
    tokenizer_s = 0.0
    to_encode = len(texts["train"])
    if not overwrite and tokenizer is not None:
        to_encode = _to_encode(texts["train"], tokenizer, config, run_dir)
    if tokenizer is None:
        tokenizer, tokenizer_s = _learned(sample, len(texts["train"]), config)
    each, encoding_s = _encoded(sample, n_pairs, tokenizer, config)
    text, noted = n_pairs * each, len(texts["train"]) * NUMBERS
    checkpoint = _checkpoint(config, machine, *pieces)
    checkpoints = _most_checkpoints(config.training)
    model = sum(len(vocabulary.model) for vocabulary in tokenizer.models().values())
    there = sum(bytes_in(run_dir / folder) for folder in ("data", "checkpoints", "tokenizer"))
    disk = Disk(
        text=text,
        checkpoint=checkpoint,
        checkpoints=checkpoints,
        tokenizer=model,
        there=there,
        needed=max(text + model if overwrite else 0, text + max(noted, checkpoint * checkpoints) + model - there),
        free=shutil.disk_usage(next(place for place in (run_dir, *run_dir.absolute().parents) if place.is_dir())).free,
    )
    return disk, Preparing(reading_s, tokenizer_s, encoding_s * to_encode / len(texts["train"]))


def _to_encode(text: Corpus, tokenizer: Tokenizer, config: RunConfig, run_dir: Path) -> int:
    """How many pairs of the training text are still to be encoded. To tell, the text may have to be hashed, which takes
    another pass: not where nothing was encoded yet."""
    if not any((run_dir / "data").glob("train-*")):
        return len(text)
    options = config.data
    volumes = Volumes(
        text,
        tokenizer,
        run_dir / "data",
        split="train",
        source_eos=options.source_eos,
        max_length=options.max_length,
    )
    return volumes.n_pairs(volumes.absent())


def _learned(sample: Corpus, n_pairs: int, config: RunConfig) -> tuple[Tokenizer, float]:
    """A tokenizer of the sample, and the seconds that learning one of the whole text takes: those that more lines take
    are told from a part of the sample.
    """
    seconds = []
    for part in (sample.sample(SAMPLE // 4), sample):
        start = time.perf_counter()
        tokenizer, _ = train_tokenizer(
            config.tokenizer, part.source, part.target, seed=config.seed, tags=config.data.tagged
        )
        seconds.append((len(part), time.perf_counter() - start))
    (few, few_s), (many, many_s) = seconds
    more = min(n_pairs, MAX_LINES) - many
    return tokenizer, many_s + (max(0.0, many_s - few_s) / (many - few) * more if many > few else 0.0)


def _encoded(sample: Corpus, n_pairs: int, tokenizer: Tokenizer, config: RunConfig) -> tuple[int, float]:
    """Bytes of a pair on the disk, and the seconds that encoding so many takes on the cores that there are. Timed is
    the second half of the sample: by then the words that are in every text have come once."""
    encoder = Encoder(tokenizer, source_eos=config.data.source_eos, max_length=None, remembers=True)
    tag = next(iter(tokenizer.tags.values()), None)
    blocks = []
    for part in (slice(0, None, 2), slice(len(sample) > 1, None, 2)):
        source, target = (
            "".join(f"{line}\n" for line in side[part]).encode("utf-8") for side in (sample.source, sample.target)
        )
        wall, cpu = time.perf_counter(), time.process_time()
        blocks.append(encoder.encode(source, target, tag))
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    processes = n_processes(n_pairs)
    seconds = n_pairs / blocks[-1].n_pairs * (wall_s if processes == 1 else cpu_s / processes)
    return max(map(_bytes_of_a_pair, blocks)), seconds


def _bytes_of_a_pair(block: Block) -> int:
    """Ids, where they begin, and what is remembered of the lines; rounded up."""
    n_ids = len(block.source) + len(block.target)
    each = {name: dtype.itemsize for name, dtype in binary.ARRAYS.items()}
    numbers = each["pairs"] + each["source_offsets"] + each["target_offsets"] + NUMBERS
    return numbers + -(-n_ids * each["source"] // block.n_pairs)


def _checkpoint(config: RunConfig, machine: Machine, source_vocab: int, target_vocab: int) -> int:
    """Bytes of its tensors, without making them."""
    model = build_model(config.model, source_vocab=source_vocab, target_vocab=target_vocab, device="meta")
    kept, others = weights(model), {}
    for key, tensor in _beside(model, config, machine).items():
        name = key.removeprefix(PREFIX) if key.startswith(PREFIX) else key.rpartition(".")[0]
        others[key] = torch.empty(kept[name].shape if tensor.dim() else (), dtype=tensor.dtype, device="meta")
    return size_in_file(kept) + size_in_file(others)


def _beside(model: Transformer, config: RunConfig, machine: Machine) -> dict[str, Tensor]:
    """What is kept beside the weights, told from a model of the same parts with hardly a number in them."""
    small: dict[nn.Parameter, nn.Parameter] = {}
    model, held = copy.deepcopy(model), frozen(config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            like = nn.Parameter(torch.zeros([2] * parameter.dim()), requires_grad=parameter.requires_grad)
            module.register_parameter(name, small.setdefault(parameter, like))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in held)
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    model.compute_in(machine.dtype, training=True)
    if machine.compiled:
        model.use_compiled()
    optimizer = build_optimizer(model, config.training)
    for group in optimizer.param_groups:
        group["rows"] = [None] * len(group["params"])
    optimizer.step()
    return state_tensors(optimizer, model) | average_of(model, optimizer, config.training.ema).tensors()


def _most_checkpoints(options: TrainingConfig) -> int:
    """That lie on the disk at a time: those that are kept, and the next one, before what it replaces is deleted."""
    every = options.checkpoint_every or options.validate_every
    most = options.keep_best + options.keep_last + 1
    if (last := options.last_step) is None:
        return most
    return min(most, last // options.validate_every + last // every + 1)
