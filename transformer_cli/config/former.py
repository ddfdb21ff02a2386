"""What once was written otherwise, and is still understood: in older files, and in the configurations of older runs."""

from __future__ import annotations

from dataclasses import replace

from transformer_cli.config.nodes import Node

COUNTED = ("architecture", "vocab", "extra")
"""Settings of `accounting:` that once were part of `model:`."""


def as_written_now(tree: Node) -> Node:
    """The same configuration, every setting at its present place.

    What is written at both places stays where it is, an unknown setting: nobody could tell which of the two is meant.
    """
    return _without_word_dropout(_with_search(_with_accounting(tree)))


def as_meant_by_a_run(tree: Node) -> Node:
    """What runs may still say, and configurations not: `learning_rate` once was noam's factor.

    That is the curve of inverse-sqrt up to another peak; the factor 1 is noam itself.
    """
    model, training = _entries(tree.child("model")), _entries(tree.child("training"))
    numbers = [training.get("learning_rate"), model.get("d_model"), training.get("warmup_steps")]
    schedule = training.get("schedule")
    if schedule is None or schedule.value != "noam":
        return tree
    rate, width, warmup = (node.value if node else None for node in numbers)
    if not (isinstance(rate, int | float) and isinstance(width, int) and isinstance(warmup, int)) or width < 1:
        return tree
    if rate == 1:
        training["learning_rate"] = replace(training["learning_rate"], value=None)
    else:
        training["schedule"] = replace(schedule, value="inverse-sqrt")
        training["learning_rate"] = replace(training["learning_rate"], value=former_peak(rate, width, warmup))
    return replace(tree, value=_entries(tree) | {"training": replace(schedule, value=training)})


def former_peak(factor: float, d_model: int, warmup_steps: int) -> float:
    """Of noam, when its learning_rate was a factor."""
    return float(factor * (d_model * max(warmup_steps, 1)) ** -0.5)


def _without_word_dropout(tree: Node) -> Node:
    """A setting that is no more; what is written where nothing was dropped says nothing."""
    training = tree.child("training")
    entries = _entries(training)
    dropped = entries.pop("word_dropout", None)
    if training is None or dropped is None or dropped.value != 0:
        return tree
    return replace(tree, value=_entries(tree) | {"training": replace(training, value=entries)})


def _with_search(tree: Node) -> Node:
    """`decoding.sample`, true or false, once was all the choice there was."""
    decoding = tree.child("decoding")
    entries = _entries(decoding)
    if decoding is None or "search" in entries or not isinstance(getattr(entries.get("sample"), "value", None), bool):
        return tree
    sample = entries.pop("sample")
    entries["search"] = replace(sample, value="sampling" if sample.value else "beam")
    return replace(tree, value=_entries(tree) | {"decoding": replace(decoding, value=entries)})


def _with_accounting(tree: Node) -> Node:
    """What is only counted once was part of `model:`."""
    model, accounting = tree.child("model"), tree.child("accounting")
    trained, counted = _entries(model), _entries(accounting)
    found = {key: trained.pop(key) for key in COUNTED if key in trained.keys() - counted.keys()}
    biases = _entries(trained.get("bias"))
    if "attention" in biases and isinstance(biases["attention"].value, list) and "attention_biases" not in counted:
        found["attention_biases"] = biases.pop("attention")
        trained["bias"] = replace(trained["bias"], value=biases)
    if not found:
        return tree
    assert model is not None
    sections = {
        "model": replace(model, value=trained),
        "accounting": replace(accounting or model, value=counted | found),
    }
    return replace(tree, value=_entries(tree) | sections)


def _entries(node: Node | None) -> dict[str, Node]:
    return dict(node.value) if node and isinstance(node.value, dict) else {}
