"""A package of somebody else's, with a recipe of each kind; tx knows of it what its entry points say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.model import ModelConfig, Stack
from transformer_cli.config.training import TrainingConfig
from transformer_cli.decoding.hypothesis import Hypothesis
from transformer_cli.decoding.search import Task, beam
from transformer_cli.decoding.stepper import S, Stepper
from transformer_cli.model.positions import PositionEncoding
from transformer_cli.training.optimizers import Groups


class Relative(PositionEncoding):
    """A trained number per head for each distance, the far ones alike (after Raffel et al. 2020, section 2.1)."""

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__(config, stack)
        self.far = 3
        self.table = nn.Embedding.from_pretrained(torch.empty(2 * self.far + 1, config.n_heads), freeze=False)

    def initialise(self) -> None:
        nn.init.normal_(self.table.weight)

    def relate(self, queries_T: Tensor, keys_S: Tensor) -> Tensor:
        distance_TS = (keys_S - queries_T[:, None]).clamp(-self.far, self.far) + self.far
        return self.table(distance_TS).permute(2, 0, 1)


def shortest(stepper: Stepper[S], source_BS: Tensor, source_lengths_B: Tensor, task: Task) -> list[list[Hypothesis]]:
    """Beam search, and of all that it found the shortest first."""
    every = replace(task, options=replace(task.options, n_best=task.options.beam_size))
    found = beam(stepper, source_BS, source_lengths_B, every)
    return [sorted(several, key=lambda one: len(one.ids))[: task.options.n_best] for several in found]


class Exact:
    """The share of sentences that are one of their references."""

    name = "exact"

    def __init__(self, options: EvaluationConfig) -> None:
        self.lowercase = options.lowercase

    def count(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> list[list[float]]:
        rows = zip(hypotheses, *references, strict=True)
        return [[self._read(line) in map(self._read, others), 1] for line, *others in rows]

    def score(self, sums: Sequence[float]) -> float:
        return 100 * sums[0] / sums[1]

    def signature(self, **test: int) -> str:
        return "|".join(f"{key}:{value}" for key, value in {"lowercase": self.lowercase, **test}.items())

    def _read(self, line: str) -> str:
        return line.lower() if self.lowercase else line


def momentum(groups: Groups, options: TrainingConfig) -> torch.optim.Optimizer:
    """Stochastic gradient descent with Polyak's momentum."""
    return torch.optim.SGD(groups, lr=0.0, momentum=options.betas[0])


def halving(step: int, options: TrainingConfig) -> float:
    """Half the rate each time that the warm-up's length has passed."""
    return 0.5 ** ((step - options.warmup_steps) / max(1, options.warmup_steps))
