"""Adam and AdamW, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transformer_cli.config.training import TrainingConfig
from transformer_cli.errors import ModelError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def build_optimizer(model: nn.Module, options: TrainingConfig) -> torch.optim.Optimizer:
    """Adam or AdamW over all that is trained; weight decay applies to the matrices of linear layers alone."""
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    fused = parameters[0].device.type in ("cpu", "cuda")
    beta1, beta2 = options.betas
    # The loop sets the rate before each update.
    return kind(groups, lr=0.0, betas=(beta1, beta2), eps=options.eps, fused=fused)


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's memory: `PARAMETER.exp_avg`, `PARAMETER.exp_avg_sq`, `PARAMETER.step`; empty before a step."""
    return {
        f"{name}.{moment}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def load_state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `state_tensors` took. Raises ModelError where a tensor is missing or of another shape."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        state = {}
        for moment in MOMENTS:
            tensor = tensors.get(f"{name}.{moment}")
            expected = torch.Size([]) if moment == "step" else parameter.shape
            if tensor is None or tensor.shape != expected:
                raise ModelError(f"the checkpoint's optimizer state does not fit the model at {name}.{moment}")
            state[moment] = tensor.to(parameter.device, torch.float32)
        optimizer.state[parameter] = state
