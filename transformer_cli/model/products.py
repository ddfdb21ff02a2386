"""x W^T + b for weights that stay as they are: laid out once, in the way that is fastest here.

R rows, I inputs, O outputs, or those of a part, P parts
"""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, get_num_threads, nn

from transformer_cli.model.compiled import panel_width, run
from transformer_cli.processor import computes_bf16, gains_in_fp32, has_bf16_instructions

Activation = Callable[[Tensor], Tensor]
CODES = {F.relu: 1, F.silu: 2, F.gelu: 3}
"""Of activations, as cpp/panels.h counts them; 0 is none."""


class Product(ABC):
    """A linear layer without gradients."""

    @abstractmethod
    def __call__(self, x_RI: Tensor) -> Tensor:
        """(R, O)."""

    @abstractmethod
    def onto(self, residual_RO: Tensor, x_RI: Tensor) -> Tensor:
        """residual + the product; the residual may be overwritten."""

    def activated(self, x_RI: Tensor, activation: Activation, gate: Product | None = None) -> Tensor:
        """What the activation makes of the product; of a gate, where there is one, and that times the product. oneDNN's
        own rectification, with a product, would make 0 of NaN."""
        if gate is not None:
            return activation(gate(x_RI)).mul_(self(x_RI))
        return self(x_RI).relu_() if activation is F.relu else activation(self(x_RI))

    @staticmethod
    def rows(n: int) -> int:
        """How many rows are to be given for n of them: n, or some more behind them."""
        return n


class Transposed(Product):
    """W^T as it lies in memory: for a single row faster than anything else, and never slower than W."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.weight_IO = weight_OI.t().contiguous()
        self.bias_O = bias_O

    def __call__(self, x_RI: Tensor) -> Tensor:
        return x_RI @ self.weight_IO if self.bias_O is None else torch.addmm(self.bias_O, x_RI, self.weight_IO)

    def onto(self, residual_RO: Tensor, x_RI: Tensor) -> Tensor:
        residual_RO.addmm_(x_RI, self.weight_IO)
        return residual_RO if self.bias_O is None else residual_RO.add_(self.bias_O)


class Split(Product):
    """W^T in parts of its columns, which threads share, for a single row: MKL leaves such a product to one thread, and
    it takes as long as reading the weights does."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.parts = math.gcd(len(weight_OI), _PARTS)
        weight_PIO = weight_OI.view(self.parts, -1, weight_OI.size(1)).transpose(1, 2)
        self.weight_PIO = weight_PIO.clone(memory_format=torch.contiguous_format)
        self.bias_P1O = None if bias_O is None else bias_O.view(self.parts, 1, -1)

    def __call__(self, x_1I: Tensor) -> Tensor:
        x_P1I = x_1I.expand(self.parts, *x_1I.shape)
        if self.bias_P1O is None:
            return torch.bmm(x_P1I, self.weight_PIO).view(1, -1)
        return torch.baddbmm(self.bias_P1O, x_P1I, self.weight_PIO).view(1, -1)

    def onto(self, residual_1O: Tensor, x_1I: Tensor) -> Tensor:
        residual_P1O = residual_1O.view(self.parts, 1, -1)
        residual_P1O.baddbmm_(x_1I.expand(self.parts, *x_1I.shape), self.weight_PIO)
        if self.bias_P1O is not None:
            residual_P1O.add_(self.bias_P1O)
        return residual_1O


_PARTS = 8


class Packed(Product):
    """In oneDNN's own layout: in bf16, where PyTorch would else make it anew for every product, up to twice as fast; in
    fp32, where PyTorch would else ask MKL, more than twice as fast on a processor of AMD's with AVX-512."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.contiguous(), _USUAL_ROWS)
        self.bias_O = bias_O

    def __call__(self, x_RI: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x_RI, self.weight, self.bias_O, "none", [], "")

    def onto(self, residual_RO: Tensor, x_RI: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x_RI, residual_RO, self.weight, self.bias_O, "add")

    @staticmethod
    def rows(n: int) -> int:
        """One of few numbers, at most 8 between powers of two: for each oneDNN compiles a kernel, and keeps it."""
        if n <= 8:
            return n
        grain = max(8, 1 << max(0, (n - 1).bit_length() - 4))
        return -(-n // grain) * grain


_USUAL_ROWS = 64


class Panels(Product):
    """W^T in panels of some columns, which compiled code reads from one end to the other. Rounded to bf16, a column's
    numbers lie in pairs, as an instruction multiplies them, and rows are rounded, too; what is made is in fp32, but for
    what an activation makes, which another product reads."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, *, rounded: bool) -> None:
        (n_outputs, n_inputs), width = weight_OI.shape, panel_width()
        together = 2 if rounded else 1
        panels_OI = F.pad(weight_OI, (0, -n_inputs % together, 0, -n_outputs % width))
        panels = panels_OI.reshape(-1, width, panels_OI.size(1) // together, together).transpose(1, 2)
        self.dtype = torch.bfloat16 if rounded else torch.float32
        self.panels = panels.to(self.dtype).contiguous()
        self.bias_O = None if bias_O is None else bias_O.contiguous()
        places = self.panels.data_ptr(), None if self.bias_O is None else self.bias_O.data_ptr()
        self.matrix = Matrix(*places, n_inputs, n_outputs)

    def __call__(self, x_RI: Tensor) -> Tensor:
        return self._made(x_RI, 0, None, torch.float32)

    def activated(self, x_RI: Tensor, activation: Activation, gate: Product | None = None) -> Tensor:
        return self._made(x_RI, CODES[activation], gate, self.dtype)

    def _made(self, x_RI: Tensor, activation: int, gate: Product | None, dtype: torch.dtype) -> Tensor:
        assert gate is None or isinstance(gate, Panels)
        matrices = [one and ctypes.addressof(one.matrix) for one in (self, gate)]
        made_RO = x_RI.new_empty(len(x_RI), self.matrix.outputs, dtype=dtype)
        how = len(x_RI), dtype == torch.bfloat16, get_num_threads()
        run("product", self.dtype, *matrices, activation, x_RI.to(self.dtype), made_RO, *how)
        return made_RO

    def onto(self, residual_RO: Tensor, x_RI: Tensor) -> Tensor:
        return residual_RO.add_(self(x_RI))


class Matrix(ctypes.Structure):
    """Matrix in panels.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("panels", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
    )


class Rounded(Product):
    """A product in bf16, of rows in fp32 or bf16; the residual that it is added to keeps its dtype."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.product = Packed(weight_OI.bfloat16(), None if bias_O is None else bias_O.bfloat16())

    def __call__(self, x_RI: Tensor) -> Tensor:
        return self.product(x_RI.bfloat16())

    def onto(self, residual_RO: Tensor, x_RI: Tensor) -> Tensor:
        return residual_RO.add_(self(x_RI))

    @staticmethod
    def rows(n: int) -> int:
        return Packed.rows(n)


def product_of(
    layer: nn.Linear | nn.Embedding,
    dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    only: Tensor | None = None,
    few: bool = False,
    rounds: bool = False,
    compiled: bool = False,
) -> Product:
    """The fastest of a linear layer, or of a table that is one. bias: where the layer itself has none. only: the
    outputs that are wanted, if not all. few: for few rows. rounds: to bf16, within it, whatever the dtype. compiled: by
    code of ours, where it is for few rows, which may be any number (compiled_steps.most_rows)."""
    own = getattr(layer, "bias", None)
    bias = bias if own is None else own
    weight, bias = layer.weight.detach(), None if bias is None else bias.detach()
    if only is not None:
        weight, bias = weight[only], None if bias is None else bias[only]
    if rounds and not (few and compiled):
        return Rounded(weight, bias)
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if few and compiled:
        return Panels(weight, bias, rounded=rounds)
    if can_pack(weight) and not few:
        return Packed(weight, bias)
    if few and few_rows() == 1 and only is None:
        return Split(weight, bias)
    return Transposed(weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Whether there is a layout of oneDNN's. PyTorch promises nothing about these operations, so they are asked for."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and (gains_in_fp32() if weight.dtype == torch.float32 else weight.dtype == torch.bfloat16 and computes_bf16())
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def few_rows() -> int:
    """On a CPU products of so many rows are fastest in fp32 and by W^T, however long it takes to read the weights."""
    return 1 if gains_in_fp32() else 8


def has_bf16_products(x: Tensor) -> bool:
    """Whether it is in bf16, on a CPU with instructions for that, as far as anybody tells."""
    on_cpu_in_bf16 = x.device.type == "cpu" and x.dtype == torch.bfloat16
    return on_cpu_in_bf16 and has_bf16_instructions() is not False
