"""A Transformer laid out for translating: what a search steps through, in the form that is fastest for so many rows.

B batch, S source length, V vocabulary, R rows (the beams of all sentences), U ids whose logits are wanted
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from transformer_cli.model.compiled import code_to_keep
from transformer_cli.model.compiled_steps import ANY, FEW_POSITIONS, CompiledForm, OneCall, most_rows, suits
from transformer_cli.model.forms import Form
from transformer_cli.model.products import few_rows
from transformer_cli.model.steps import Steps
from transformer_cli.model.transformer import Transformer


class Prepared:
    """A stepper that translates as the model does."""

    def __init__(self, model: Transformer, *, compiled: bool = False) -> None:
        """compiled: by C++ of ours, where it suits the model and can be had."""
        self.model = model
        self.wants_compiled = compiled
        # To find these anew takes longer than to look at all that they hold.
        self.parameters = [held for module in model.modules() if (held := module._parameters)]
        self.made_of: list[tuple[int, int]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        """Of another model, not laid out yet."""
        return Prepared(copy.deepcopy(self.model, memo), compiled=self.wants_compiled)

    def for_now(self) -> Prepared:
        """Itself, laid out anew by the next `start` where a weight of the model is no longer the same."""
        parameters = (p for held in self.parameters for p in held.values() if p is not None)
        made_of = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        if made_of != self.made_of:
            self.made_of = made_of
            for laid_out in ("for_many", "for_few", "few_rows", "is_compiled"):
                self.__dict__.pop(laid_out, None)
        return self

    def lay_out(self) -> None:
        """Now, what `start` and `step` would lay out when they need it."""
        assert self.for_few is not None
        if self.few_rows < ANY:
            assert self.for_many is not None

    @torch.no_grad()
    def start(self, source_BS: Tensor, source_lengths_B: Tensor, only_U: Tensor | None = None) -> Steps:
        """Read the source; the state lets `step` write the target. Every sentence starts with one beam.

        only_U: the ids whose logits `step` is to return, in their order, in place of all.
        """
        state = self._form(source_BS, self.few_positions).start(source_BS, source_lengths_B)
        state.only_U = only_U
        return state

    @torch.no_grad()
    def step(self, tokens_R: Tensor, state: Steps) -> Tensor:
        """Read one more token per beam; returns the logits (R, V) of the next one."""
        return self._form(tokens_R, self.few_rows).step(tokens_R, state)

    def _form(self, ids: Tensor, few: int) -> Form:
        """The form for so many rows. The first steps of a search may have many and the last ones few: both forms take
        its state, whose dtype is the same."""
        return self.for_few if ids.numel() <= few else self.for_many

    @cached_property
    def few_rows(self) -> int:
        """Up to so many are few; where no form is faster for more, that is any number."""
        if not self.is_compiled:
            return few_rows()
        return most_rows(rounds=self.for_few.rounds)

    @property
    def few_positions(self) -> int:
        return max(self.few_rows, FEW_POSITIONS) if self.is_compiled else self.few_rows

    @cached_property
    def is_compiled(self) -> bool:
        return self.wants_compiled and suits(self.model) and code_to_keep().loaded is not None

    @cached_property
    def for_many(self) -> Form:
        dtype = self.model.dtype or self.model.output.weight.dtype
        return CompiledForm(self.model, dtype) if self.is_compiled else Form(self.model, dtype)

    @cached_property
    def for_few(self) -> Form:
        if self.is_compiled:
            return OneCall(self.model, self.model.dtype or self.model.output.weight.dtype)
        return Form(self.model, self.for_many.dtype, few=True) if self.for_many.only_for_many else self.for_many
