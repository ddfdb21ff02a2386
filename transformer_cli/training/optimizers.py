"""Optimisers, and their state as named tensors."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, get_num_threads, nn

from transformer_cli.checkpoints.tensors import as_held
from transformer_cli.config.training import OPTIMIZERS, TrainingConfig
from transformer_cli.errors import ModelError
from transformer_cli.model.attention import stacked
from transformer_cli.model.compiled import run

Groups = list[dict[str, Any]]
"""Parameters, as a recipe gets them, in groups with their `weight_decay`; `hidden` are the matrices inside of layers,
`rows`, for each parameter, how many each of the matrices has that it is made of; None: it is one; `dtype` is what the
model computes in, `compiled` whether by code of its own. The loop sets the rate, `lr`, of each before each update."""
MOMENTS = "exp_avg", "exp_avg_sq"
"""As PyTorch calls them in its Adam's state."""
FUSED = "cpu", "cuda"
"""Devices that PyTorch has a fused kernel of Adam for."""


class Uncompiled(torch.optim.Optimizer):
    """Without what it does for torch.compile, which alone takes as long to import as torch, and 70 MiB."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class Adam(Uncompiled, torch.optim.Adam):
    """Kingma & Ba 2015."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(Uncompiled, torch.optim.AdamW):
    """Loshchilov & Hutter 2019."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class OnePass(Adam):
    """The same by compiled code, of weights in fp32 on a CPU: in one pass over memory gradients are scaled, an average
    follows the weights, and copies of them are rounded. Of a model that computes in bf16 moments are kept in that, too,
    rounded up or down at random (Gupta et al. 2015), but each step is by what they are before."""

    decoupled = False
    """Whether the decay is taken off the weights, not added to their gradients."""

    def __init__(self, groups: Groups, **options: Any) -> None:
        super().__init__(groups, **options)
        self._begin()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Nothing follows a copy's weights."""
        super().__setstate__(state)
        self._begin()

    def _begin(self) -> None:
        self.scale = 1.0
        """What gradients are multiplied with in the next step."""
        self.share = 0.0
        """By how much of what is between them averages come nearer to the weights in it."""
        self._averages_of: dict[Tensor, Tensor] = {}
        self._copies_of: dict[Tensor, Tensor] = {}
        self._parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self._learners: list[Tensor | None] = [x for parameter in self._parameters for x in (parameter, None)]
        """Of each parameter it and its copy, either of which may have the gradient."""
        is_narrow = all(group.get("dtype") == torch.bfloat16 for group in self.param_groups)
        self._moments = torch.bfloat16 if is_narrow else torch.float32
        decays = [group["weight_decay"] for group in self.param_groups for _ in group["params"]]
        self._decays = torch.tensor(decays, dtype=torch.float64)
        self._others: set[Tensor] = set()
        """Parameters that have no moments, whatever else moves them."""
        self._reserved: dict[Tensor, dict[str, Tensor]] = {}
        self._known: list[dict[str, Any]] = []
        self._table = torch.empty(0)
        self._gradients: list[Tensor | None] = []
        """Those in the table, kept so that none of them can be gone."""
        self._places: list[int] = []

    def follow(
        self, *, averages: Mapping[Tensor, Tensor] | None = None, copies: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        """What each step moves with the weights: averages of them, and copies in bf16."""
        self._averages_of.update(averages or {})
        self._copies_of.update(copies or {})
        self._learners = [x for parameter in self._parameters for x in (parameter, self._copies_of.get(parameter))]
        self._known = []

    def reserve(self) -> Iterable[Tensor]:
        """Take the room of moments that the first update will need, before what comes and goes lies between them, and
        give back what those of a checkpoint have too much; of which parameters there is all that an update needs."""
        for state in self.state.values():
            self._narrow(state)
        fresh = [p for p in self._parameters if p not in self.state and p not in self._others]
        self._reserved = {parameter: self._fresh(parameter) for parameter in fresh}
        return [*self.state, *fresh]

    def length(self) -> Tensor:
        """Of all gradients together."""
        found = torch.empty(1, dtype=torch.float64)
        run("length", torch.float32, self._weights(), found, len(self._parameters), get_num_threads())
        return found[0].float()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._gradients = []
        for learned in (*self._parameters, *self._copies_of.values()):
            learned.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group, tensors = self.param_groups[0], (self._weights(), self._decays)  # the rate is the same in all
        numbers = group["lr"], *group["betas"], group["eps"], self.scale, self.share
        run("adam", self._moments, *tensors, len(self._parameters), *numbers, self.decoupled, get_num_threads())
        self.scale = 1.0

    def _weights(self) -> Tensor:
        """Where all of them lie, with what belongs to them: a row for each, `Weights` in adam.cpp. A gradient is one in
        fp32, or in bf16 one that a copy has."""
        states = [self.state[parameter] for parameter in self._parameters]
        if [*map(id, states)] != [*map(id, self._known)]:
            self._table = torch.tensor([self._row(parameter) for parameter in self._parameters])
            self._known = states
            self._gradients = []
        gradients = [x if x is None else x.grad for x in self._learners]
        places = [0 if x is None else x.data_ptr() for x in gradients]
        if places != self._places or [*map(id, gradients)] != [*map(id, self._gradients)]:
            for grad, narrow in zip(gradients[::2], gradients[1::2], strict=True):
                assert grad is None or (narrow is None and is_plain(grad))
                assert narrow is None or (narrow.dtype == torch.bfloat16 and narrow.is_contiguous())
            self._table[:, :2] = torch.tensor(places).view(-1, 2)
            self._gradients, self._places = gradients, places
        return self._table

    def _fresh(self, parameter: Tensor) -> dict[str, Tensor]:
        moments = {name: torch.zeros_like(parameter, dtype=self._moments) for name in MOMENTS}
        return {"step": torch.zeros((), dtype=torch.float32), **moments}

    def _narrow(self, state: dict[str, Tensor]) -> None:
        """Moments as they are kept; of a checkpoint they come in fp32."""
        state.update({name: state[name].to(self._moments) for name in MOMENTS if name in state})

    def _row(self, parameter: Tensor) -> list[int]:
        if parameter in self._others:
            return self._places_of(parameter, None, None, None)
        state = self.state[parameter]
        if not state:
            state.update(self._reserved.pop(parameter, None) or self._fresh(parameter))
        self._narrow(state)
        assert is_plain(state["step"])
        return self._places_of(parameter, *(state[name] for name in MOMENTS), state["step"])

    def _places_of(self, parameter: Tensor, *memory: Tensor | None) -> list[int]:
        """memory: two moments and the count of updates, of what learns in this pass; all else may follow."""
        average, copied = self._averages_of.get(parameter), self._copies_of.get(parameter)
        held = [(x, torch.float32) for x in (parameter, average) if x is not None]
        held += [(x, self._moments) for x in memory[:2] if x is not None]
        assert all(is_plain(x, dtype) and x.shape == parameter.shape for x, dtype in held)
        assert copied is None or (copied.dtype == torch.bfloat16 and copied.is_contiguous())
        places = [0 if x is None else x.data_ptr() for x in (parameter, *memory, average, copied)]
        return [0, 0, *places, parameter.numel()]  # gradients lie elsewhere each time


class DecoupledOnePass(OnePass):
    decoupled = True


def is_plain(x: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether its numbers lie one behind the other as compiled code takes them."""
    return x.dtype == dtype and x.is_cpu and x.is_contiguous() and type(x) in (Tensor, nn.Parameter)


def build_optimizer(model: nn.Module, options: TrainingConfig) -> torch.optim.Optimizer:
    """The configured one over all that is trained; weight decay applies to the matrices of linear layers alone."""
    output = getattr(model, "output", None)
    linear = {module.weight: module is not output for module in model.modules() if isinstance(module, nn.Linear)}
    kinds: dict[bool | None, list[nn.Parameter]] = {True: [], False: [], None: []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kinds[linear.get(parameter)].append(parameter)
    rows = {layer.weight: rows for layer, rows in stacked(model).items()}
    groups = [
        {
            "params": some,
            "weight_decay": 0.0 if hidden is None else options.weight_decay,
            "hidden": bool(hidden),
            "rows": [rows.get(parameter) for parameter in some],
            "dtype": getattr(model, "dtype", None),
            "compiled": getattr(model, "compiled", False),
        }
        for hidden, some in kinds.items()
        if some
    ]
    make: Callable[[Groups, TrainingConfig], torch.optim.Optimizer] = OPTIMIZERS.load(options.optimizer)
    return make(groups, options)


def adam(groups: Groups, options: TrainingConfig) -> torch.optim.Optimizer:
    return fastest(OnePass, Adam, groups, options)


def adamw(groups: Groups, options: TrainingConfig) -> torch.optim.Optimizer:
    return fastest(DecoupledOnePass, AdamW, groups, options)


def fastest(
    one_pass: type[OnePass], usual: type[torch.optim.Optimizer], groups: Groups, options: TrainingConfig
) -> torch.optim.Optimizer:
    """Of two that do the same the first, where compiled code suits."""
    return (one_pass if _suits(groups) else usual)(groups, **adam_options(groups, options))


def _suits(groups: Groups) -> bool:
    """Whether compiled code can update all weights, which is more than to compute by it: they are in one piece."""
    return all(group["compiled"] and all(map(is_plain, group["params"])) for group in groups)


def adam_options(groups: Groups, options: TrainingConfig) -> dict[str, Any]:
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    # The loop sets the rate before each update.
    return {"lr": 0.0, "betas": tuple(options.betas), "eps": options.eps, "fused": devices <= {*FUSED}}


def can_leave_out(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer can leave out an update by itself, by what the device finds, while nobody waits for that.
    PyTorch's fused Adam can, as torch.amp.GradScaler asks it to; its fused SGD would take for momentum what its memory
    held before, and what derives from either, as Muon, does more than its kernel."""
    return type(optimizer) in (Adam, AdamW) and bool(optimizer.defaults["fused"])


def step_unless(optimizer: torch.optim.Optimizer, bad: Tensor, *, divide_by: Tensor) -> None:
    """An update, of gradients divided by a number; none if they are bad. Both are scalars on their device."""
    optimizer.found_inf, optimizer.grad_scale = bad.float(), divide_by.float()  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's memory, of Adam `PARAMETER.exp_avg`, `.exp_avg_sq` and `.step`; empty before a step.

    All that is kept for a parameter is a tensor, a number or one of the parameter's shape.
    """
    return {
        f"{name}.{moment}": tensor
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment, tensor in optimizer.state[parameter].items()
        if isinstance(tensor, Tensor)
    }


def nothing_kept() -> ModelError:
    """What to raise for a checkpoint that keeps nothing that an optimizer, or an average, remembers."""
    return ModelError(
        "the checkpoint's optimizer state is empty: training would not go on as it was",
        hint="a mean that `tx average` made has none: go on with one of the checkpoints themselves",
    )


def load_state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `state_tensors` took. Raises ModelError where a tensor is missing or of another shape."""
    if not tensors and _remembers(optimizer):
        raise nothing_kept()
    names = {parameter: name for name, parameter in model.named_parameters()}
    kept: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, moment = key.rpartition(".")
        kept.setdefault(name, {})[moment] = tensor
    for group in optimizer.param_groups:
        moments = sorted({moment for parameter in group["params"] for moment in kept.get(names[parameter], ())})
        for parameter in group["params"]:
            name, state = names[parameter], {}
            if tensors and not moments:
                raise ModelError(f"the checkpoint's optimizer state does not fit the model at {name}")
            for moment in moments:
                found = kept.get(name, {}).get(moment)
                if found is None or found.shape not in (parameter.shape, torch.Size([])):
                    raise ModelError(f"the checkpoint's optimizer state does not fit the model at {name}.{moment}")
                # A number is where it is asked for: by a fused kernel on its device, else here.
                is_here = not found.dim() and not group.get("fused")
                there = found.to("cpu" if is_here else parameter.device, torch.float32)
                held = as_held(there, parameter) if there.shape == parameter.shape else there
                state[moment] = held.clone()  # the tensor lies in its file, and is none of memory's
            optimizer.state[parameter] = state


def _remembers(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an update leaves anything in its state, which a copy of it tells."""
    one = copy.deepcopy(optimizer)
    for group in one.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    one.step()
    return any(isinstance(value, Tensor) for state in one.state.values() for value in state.values())
