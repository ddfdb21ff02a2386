"""A count of parameters as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_cli import __version__
from transformer_cli.accounting.parameters import By, Convention, Count, Group
from transformer_cli.accounting.remarks import footnotes, percent, reading
from transformer_cli.cli.subject import Subject
from transformer_cli.cli.tables import Column, Row, Table, tree
from transformer_cli.config.accounting import CountedModel
from transformer_cli.wording import counted

BYTES = {"fp32": 4, "bf16": 2}


def count_table(
    subject: Subject, count: Count, *, by: By, convention: Convention | None, notes: Sequence[str] = ()
) -> Table:
    """Every part with its product and its share, and what they come to.

    convention: without one, the components lead from the weights-only count to the exact one.
    """
    both = convention is None and by == "component"
    chosen: Convention = "weights-only" if both else convention or "exact"
    whole: Convention = convention or "exact"
    lines = list(tree(_lines(count.groups(by, chosen), count, whole)))
    if both:
        subtotal = ("weights only", "each matrix where it is used", f"{count.weights_only:,}", "")
        corrections = tree(_lines(count.corrections(), count, whole, sign="+"))
        lines += [((), 0), (subtotal, 0), ((), 0), *corrections]
    remarks = [] if whole == "weights-only" else [reading(count), *footnotes(count)]
    remarks += ["Shares are of the exact total."] if both else []
    return Table(
        title=f"{subject.name}: {described(count.model)}",
        columns=(
            Column(by.capitalize()),
            Column("Product", optional=True),
            Column("Parameters", "right"),
            Column("Share", "right", optional=True),
        ),
        rows=tuple(row for row, _ in lines),
        shares=tuple(share for _, share in lines),
        totals=tuple(_totals(count, convention)),
        notes=(f"Vocabulary: {vocabulary(subject)}", *remarks, *notes),
    )


def presets_table(counts: Sequence[tuple[Subject, Count]]) -> Table:
    """Models with their totals, a line each."""
    return Table(
        title="",
        columns=(Column("Preset"), Column("Model"), Column("Parameters", "right"), Column("of them frozen", "right")),
        rows=tuple(
            (subject.name, _layers(count.model), f"{count.total:,}", f"{count.frozen:,}" if count.frozen else "")
            for subject, count in counts
        ),
    )


def count_json(
    subject: Subject, count: Count, *, by: By, convention: Convention | None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Integers with their units in the keys; the keys and their order stay."""
    chosen = convention or "exact"
    return {
        **_totals_json(subject, count),
        "convention": chosen,
        "by": by,
        f"{by}s": [_group_json(group) for group in count.groups(by, chosen)],
        "from_weights_only_to_exact": [_group_json(group) for group in count.corrections()],
        "notes": [reading(count), *footnotes(count), *notes],
        "config": subject.config.model_dump(mode="json"),
        "tx": __version__,
    }


def preset_json(subject: Subject, count: Count) -> dict[str, Any]:
    """A model with its totals."""
    return _totals_json(subject, count) | {"tx": __version__}


@dataclass(frozen=True)
class Comparison:
    """Two models side by side, and the exact difference of each part."""

    subject: Subject
    count: Count
    other: Subject
    other_count: Count
    by: By
    convention: Convention

    @property
    def names(self) -> tuple[str, str]:
        """What the two are called; a model that is compared with what --set makes of it has one name for both."""
        name, other = self.subject.name, self.other.name
        return name, f"{other} (other)" if other == name else other

    def told_apart(self, *notes: Sequence[str]) -> list[str]:
        """Notes on the one and notes on the other, with their names."""
        return [f"{name}: {note}" for name, of_one in zip(self.names, notes, strict=True) for note in of_one]

    def as_table(self, notes: Sequence[str] = ()) -> Table:
        """The difference is what the first has more."""
        name, other = self.names
        vocabularies = (
            f"Vocabulary of {name}: {vocabulary(self.subject)}",
            f"Vocabulary of {other}: {vocabulary(self.other)}",
        )
        return Table(
            title=f"{name}, compared with {other}",
            columns=(Column(self.by.capitalize()), *(Column(name, "right") for name in (*self.names, "Difference"))),
            rows=tuple(row for row, _ in tree((name, self._cells(name, *n), 0) for name, n in self._parts().items())),
            totals=tuple((name.replace("-", " "), *_side_by_side(*n)) for name, n in self._totals().items()),
            notes=(*vocabularies, *notes),
        )

    def as_json(self, notes: Sequence[str] = ()) -> dict[str, Any]:
        """Both totals, and of each part both counts and the difference."""
        total, other = self._totals()[self.convention]
        return {
            "model": _totals_json(self.subject, self.count),
            "other": _totals_json(self.other, self.other_count),
            "convention": self.convention,
            "by": self.by,
            "difference_parameters": total - other,
            f"{self.by}s": [
                {"name": name, "parameters": a, "other_parameters": b, "difference_parameters": a - b}
                for name, (a, b) in self._parts().items()
            ],
            "notes": list(notes),
            "tx": __version__,
        }

    def _cells(self, name: str, a: int, b: int) -> Row:
        """Both numbers and their difference; a matrix that another part has already is called tied."""
        *both, difference = _side_by_side(a, b)
        tied = [any(p.shares and p.component == name for p in count.parts) for count in (self.count, self.other_count)]
        shown = ("tied" if is_tied and cell == "0" else cell for is_tied, cell in zip(tied, both, strict=True))
        return *shown, difference

    def _parts(self) -> dict[str, tuple[int, int]]:
        """The parts that one of the two has, and their parameters in both."""
        ours, theirs = (
            {group.name: group.parameters for group in count.groups(self.by, self.convention)}
            for count in (self.count, self.other_count)
        )
        return {name: (ours.get(name, 0), theirs.get(name, 0)) for name in ours | theirs}

    def _totals(self) -> dict[str, tuple[int, int]]:
        if self.convention == "weights-only":
            return {"weights-only": (self.count.weights_only, self.other_count.weights_only)}
        return {
            "exact": (self.count.total, self.other_count.total),
            "trainable": (self.count.trainable, self.other_count.trainable),
            "frozen": (self.count.frozen, self.other_count.frozen),
        }


def described(model: CountedModel) -> str:
    """The model in a line: `decoder-only, 96 layers, d_model 12,288, 96 heads of 128, d_ff 49,152`."""
    shared = f" ({model.kv_heads:,} for keys and values)" if model.kv_heads != model.n_heads else ""
    heads = f"{counted(model.n_heads, 'heads')} of {model.head_width:,}"
    return f"{_layers(model)}, d_model {model.d_model:,}, {heads}{shared}, d_ff {model.d_ff:,}{' gated' * model.gated}"


def vocabulary(subject: Subject) -> str:
    """How large the vocabulary is, and says who."""
    source, target = subject.source_vocab, subject.target_vocab
    sizes = counted(target, "pieces" if source == target else "target pieces")
    sizes = sizes if source == target else f"{source:,} source and {sizes}"
    parent, new = subject.config.training.init_from, subject.config.tokenizer.extend
    until = "a tokenizer is trained" if parent is None else f"{parent} is there, whose tokenizer training is to take"
    more = f" and up to {new:,} new ones (tokenizer.extend)" if new else ""
    origin = {
        "accounting.vocab": "as accounting.vocab says",
        "tokenizer.vocab_size": f"a wish (tokenizer.vocab_size) until {until}",
        "tokenizer": "those of the trained tokenizer",
        "training.init_from": f"those of {parent} (training.init_from){more}",
    }[subject.vocabulary]
    none = " Where there are 0, vectors come from elsewhere." if 0 in (source, target) else ""
    return f"{sizes}, {origin}.{none}"


def binary(n_bytes: int) -> str:
    """`650.45 GiB`, `40.21 MiB`."""
    power = max(1, min(5, (n_bytes.bit_length() - 1) // 10))
    return f"{n_bytes / 1024**power:,.2f} {'KMGTP'[power - 1]}iB"


def _layers(model: CountedModel) -> str:
    depths = [getattr(model.depths, side) for side in model.sides]
    unit = "layer" if depths == [1] else "layers"
    return f"{model.architecture}, {' + '.join(f'{n:,}' for n in depths)} {unit}"


def _lines(
    groups: Iterable[Group], count: Count, convention: Convention, *, sign: str = ""
) -> Iterator[tuple[str, Row, float]]:
    """Name, cells and share of each group; what is shared has none of the exact count, for it is in another's."""
    whole = count.total if convention == "exact" else count.weights_only
    for group in groups:
        product = group.product
        if group.shares:
            product = f"{product}, shared" if group.parameters > 0 else f"is {group.shares}"
        elif not group.trainable:
            product += ", frozen"
        share = 0 if group.shares and convention == "exact" else group.parameters
        cells = (product, f"{group.parameters:{sign},}", percent(share, whole) if share else "")
        yield group.name, cells, share


def _totals(count: Count, convention: Convention | None) -> Iterator[Row]:
    if convention == "weights-only":
        yield "weights only", "each matrix where it is used", f"{count.weights_only:,}", ""
        return
    yield "exact", "everything the network holds", f"{count.total:,}", ""
    yield "trainable", "", f"{count.trainable:,}", ""
    yield "frozen", "", f"{count.frozen:,}", ""
    yield "tied", "used again, counted once", f"{count.tied:,}", ""
    for precision, width in BYTES.items():
        n = count.total * width
        yield f"{precision} bytes", binary(n), f"{n:,}", ""


def _side_by_side(a: int, b: int) -> Row:
    return f"{a:,}", f"{b:,}", f"{a - b:+,}" if a != b else "0"


def _totals_json(subject: Subject, count: Count) -> dict[str, Any]:
    return {
        "name": subject.name,
        "parameters": count.total,
        "trainable_parameters": count.trainable,
        "frozen_parameters": count.frozen,
        "tied_parameters": count.tied,
        "weights_only_parameters": count.weights_only,
        **{f"{precision}_bytes": count.total * width for precision, width in BYTES.items()},
        "vocabulary": {
            "source_pieces": subject.source_vocab,
            "target_pieces": subject.target_vocab,
            "from": subject.vocabulary,
        },
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "product": group.product,
        "parameters": group.parameters,
        "trainable_parameters": group.trainable,
        "shares": group.shares,
    }
