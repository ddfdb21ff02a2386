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
    return _with_search(_with_accounting(tree))


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
