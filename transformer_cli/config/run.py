"""The whole configuration: the sections, and the checks across them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.data import DataConfig
from transformer_cli.config.decoding import DecodingConfig
from transformer_cli.config.evaluation import EvaluationConfig
from transformer_cli.config.model import ModelConfig
from transformer_cli.config.section import NonNegativeInt, Section
from transformer_cli.config.tokenizer import TokenizerConfig
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
