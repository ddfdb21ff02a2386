"""`tx count-params`: where a model's parameters are, with the product that gives each number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.accounting.parameters import By, Convention, Count
from transformer_cli.cli import console, count_costs, options
from transformer_cli.cli.options import Config, Json, Markdown, Overrides, Quiet, Traceback
from transformer_cli.cli.tables import show
from transformer_cli.errors import UsageError
from transformer_cli.files import json_line, shown

if TYPE_CHECKING:
    from transformer_cli.cli.subject import Subject

EXAMPLE = "for example: tx count-params gpt3.yaml"


def count_params(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            autocompletion=options.models,
            help="A preset such as gpt3.yaml, a YAML file, a run or a checkpoint.",
        ),
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
    by: Annotated[
        By | None,
        typer.Option("--by", metavar="PART", show_default="component", help="One row per component, layer or block."),
    ] = None,
    convention: Annotated[
        Convention | None,
        typer.Option("--convention", metavar="WAY", help="exact or weights-only; both when not given."),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="OTHER",
            autocompletion=options.models,
            help="Show the difference from another model, to which --set does not apply.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Also build the module, without allocating memory, and count it: both must agree."
        ),
    ] = False,
    list_presets: Annotated[bool, typer.Option("--list", help="List the presets with their totals.")] = False,
    shapes: count_costs.Shapes = False,
    flops: count_costs.Flops = False,
    memory: count_costs.Memory = False,
    hardware: count_costs.On = None,
    batch_size: count_costs.BatchSize = None,
    source_length: count_costs.SourceLength = None,
    target_length: count_costs.TargetLength = None,
    beam_size: count_costs.BeamSize = None,
    tokens: count_costs.Tokens = None,
    utilisation: count_costs.Utilisation = None,
    markdown: Markdown = False,
    json_output: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Count parameters: every number with the product that gives it.

    There are two conventions: exact is what the network holds; weights-only counts each matrix where it is used, and no
    biases, norms or positions. Without --convention the table leads from one to the other. --shapes, --flops, --memory
    and --hardware add what the model does and costs.

    Examples:
      tx count-params gpt3.yaml
      tx count-params transformer-big --compare transformer-base
      tx count-params gpt2.yaml --flops --memory --hardware h100-sxm
    """
    request = count_costs.Request(
        shapes, flops, memory, hardware, batch_size, source_length, target_length, beam_size, tokens, utilisation
    )
    request.check()
    if (list_presets or compare is not None) and not request.is_empty:
        raise UsageError(
            "shapes, FLOPs, memory and hardware are those of one model", hint="leave --list or --compare out"
        )
    options.refuse_two_formats(json_output=json_output, markdown=markdown)
    if list_presets:
        if any(given is not None for given in (model, config, compare, by, convention)) or overrides or check:
            raise UsageError("--list shows the totals of every preset", hint="it goes with --json or --markdown only")
        _show_presets(markdown=markdown, json_output=json_output)
        return
    if model is not None and config is not None:
        raise UsageError(f"{model} and --config {config} are two models", hint="--compare shows the difference of two")
    model = config if model is None else model
    if model is None:
        raise UsageError("there is no model to count", hint=f"{EXAMPLE}; --list shows the presets")
    by = by or "component"

    from transformer_cli.cli import parameter_tables as tables
    from transformer_cli.cli.subject import find_subject

    subject = find_subject(model, overrides or ())
    count = _count(subject)
    notes = _checks(subject, built=check)
    costs = count_costs.sections(subject, count, request)
    if compare is not None:
        other = find_subject(compare)
        comparison = tables.Comparison(subject, count, other, _count(other), by=by, convention=convention or "exact")
        notes = comparison.told_apart(notes, _checks(other, built=check))
        if json_output:
            _print_json(comparison.as_json(notes))
        else:
            show([comparison.as_table(notes)], markdown=markdown)
    elif json_output:
        counted = tables.count_json(subject, count, by=by, convention=convention, notes=notes)
        _print_json(counted | {section.name: section.fields for section in costs})
    else:
        counted_table = tables.count_table(subject, count, by=by, convention=convention, notes=notes)
        show([counted_table, *(table for section in costs for table in section.tables)], markdown=markdown)


def _show_presets(*, markdown: bool, json_output: bool) -> None:
    from transformer_cli.cli import parameter_tables as tables
    from transformer_cli.cli.subject import find_subject
    from transformer_cli.config.source import preset_names

    subjects = [find_subject(f"{name}.yaml") for name in preset_names()]
    counts = [(subject, _count(subject)) for subject in subjects]
    if json_output:
        for subject, count in counts:
            _print_json(tables.preset_json(subject, count))
    else:
        show([tables.presets_table(counts)], markdown=markdown)


def _count(subject: Subject) -> Count:
    from transformer_cli.accounting.freezing import without_frozen
    from transformer_cli.accounting.parameters import count

    vocabs = {"source_vocab": subject.source_vocab, "target_vocab": subject.target_vocab}
    whole = count(subject.config.counted, **vocabs)
    return without_frozen(whole, subject.config, **vocabs) if subject.config.training.freeze else whole


def _checks(subject: Subject, *, built: bool) -> list[str]:
    """What agrees with a count, in words; what does not is raised. built: whether the built module is asked."""
    found = _check_weights(subject)
    if built:
        from transformer_cli.cli.parameter_check import check

        found.append(str(check(subject)))
    return found


def _check_weights(subject: Subject) -> list[str]:
    """What the weights of a trained model say to its count; ModelError where they contradict it."""
    if subject.checkpoint is None:
        return []
    from transformer_cli.accounting.weights import DTYPE, stored
    from transformer_cli.checkpoints.find import WEIGHTS
    from transformer_cli.checkpoints.fit import check_kinds, kinds_of_file

    path = subject.checkpoint / WEIGHTS
    tensors = stored(subject.config.counted, source_vocab=subject.source_vocab, target_vocab=subject.target_vocab)
    expected = {name: (DTYPE, tensor.shape) for name, tensor in tensors.items()}
    check_kinds(kinds_of_file(path), expected, origin=shown(path))
    return [f"The tensors of {path} are those of this configuration."]


def _print_json(fields: dict[str, Any]) -> None:
    console.result(json_line(fields))
