"""The second route to a count: the module itself, built without memory and counted tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from transformer_cli.accounting.halves import build_counted
from transformer_cli.accounting.parameters import count
from transformer_cli.accounting.weights import Stored, stored
from transformer_cli.cli.subject import Subject
from transformer_cli.config.accounting import CountedModel
from transformer_cli.errors import TxError


class Disagreement(TxError):
    """The closed form and the built module differ: one of them is wrong."""


@dataclass(frozen=True)
class Agreement:
    """What was compared, and what could not be, since tx does not build it."""

    n_components: int
    not_built: tuple[str, ...]

    def __str__(self) -> str:
        rest = f"; not built, so not compared: {', '.join(self.not_built)}" if self.not_built else ""
        return f"Checked: the built module has the same total, trainable and {self.n_components} components{rest}."


def check(subject: Subject) -> Agreement:
    """Build the subject on the meta device and compare total, trainable and every component; raise Disagreement."""
    model, not_built = _buildable(subject.config.counted)
    if 0 in (subject.source_vocab, subject.target_vocab):
        not_built = (*not_built, "a vocabulary of 0 pieces (one of a single piece was)")
    vocabs = {"source_vocab": subject.source_vocab or 1, "target_vocab": subject.target_vocab or 1}
    closed = count(model, **vocabs)
    built = dict(build_counted(model, **vocabs, device="meta").named_parameters())
    expected = stored(model, **vocabs)

    wrong = [f"{name} is only in one of them" for name in sorted(built.keys() ^ expected.keys())]
    wrong += [
        f"{name} is {tuple(built[name].shape)}, expected {expected[name].shape}"
        for name in sorted(built.keys() & expected.keys())
        if tuple(built[name].shape) != expected[name].shape
    ]
    ours = {"total": closed.total, "trainable": closed.trainable, **closed.by_component()}
    theirs = {
        "total": sum(tensor.numel() for tensor in built.values()),
        "trainable": sum(tensor.numel() for tensor in built.values() if tensor.requires_grad),
        **_by_component(built, expected),
    }
    wrong += [
        f"{name}: closed form {ours.get(name, 0):,}, built {theirs.get(name, 0):,}"
        for name in sorted(ours | theirs)
        if ours.get(name, 0) != theirs.get(name, 0)
    ]
    if wrong:
        raise Disagreement(
            "\n  ".join([f"{subject.name}: the closed form and the built module disagree:", *wrong]),
            hint="this is a bug in tx; please report it with the configuration",
        )
    return Agreement(len(closed.by_component()), not_built)


def _by_component(built: Mapping[str, Tensor], expected: Mapping[str, Stored]) -> dict[str, int]:
    """The numbers of the built tensors, row by row, by the component that a row belongs to."""
    found: dict[str, int] = {}
    for name in built.keys() & expected.keys():
        for component, n_rows in expected[name].rows:
            found[component] = found.get(component, 0) + n_rows * built[name][0].numel()
    return found


def _buildable(model: CountedModel) -> tuple[CountedModel, tuple[str, ...]]:
    """The model without what can only be counted, and the names of that."""
    not_built = [extra.name for extra in model.extra]
    if model.attention_biases is not None:
        not_built.insert(0, f"attention_bias of {', '.join(model.projections)} alone (that of all was)")
    return model.model_copy(update={"extra": [], "attention_biases": None}), tuple(not_built)
