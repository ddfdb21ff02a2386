"""What is wrong with a configuration, all of it at once: place, line, caret, what was found, what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_origin

from pydantic import ValidationError

from transformer_cli.config.expectations import Accepted, accepted, advice, describe, spaced
from transformer_cli.config.names import shorten
from transformer_cli.config.nodes import Node, Place, Refused, Source
from transformer_cli.config.section import Path, Section
from transformer_cli.config.settings import suggestion
from transformer_cli.errors import ConfigError
from transformer_cli.writing import width

MAX_SHOWN = 100
EXCERPT_WIDTH = 100


@dataclass(frozen=True)
class Mistake:
    """One thing to mend. path: the setting it is about, () for the text as a whole."""

    message: str
    place: Place | None
    path: Path = ()
    also: tuple[str, Place] | None = None
    valid: str = ""

    def render(self, *, lists: bool = True) -> str:
        """`file:line:column: message`, and the line with carets under what is meant.

        lists: say what is valid, too, if there is anything to say.
        """
        message = f"{self.message}; valid are {self.valid}" if lists and self.valid else self.message
        if self.place is None:
            return message
        lines = [f"{self.place}: {message}", excerpt(self.place)]
        if self.also:
            words, place = self.also
            lines += [f"  {words} at {place}", excerpt(place)]
        return "\n".join(lines)


def config_error(mistakes: Sequence[Mistake]) -> ConfigError:
    """One error for all mistakes, in the order in which they were written."""
    ordered = sorted(mistakes, key=lambda m: (m.place.source.name, m.place.start) if m.place else ("", -1))
    listed: set[str] = set()
    blocks = []
    for mistake in ordered[:MAX_SHOWN]:
        blocks.append(mistake.render(lists=mistake.valid not in listed))
        listed.add(mistake.valid)
    if len(ordered) > 1:
        blocks.insert(0, f"{len(ordered):,} mistakes in the configuration")
    if len(ordered) > MAX_SHOWN:
        blocks.append(f"... and {len(ordered) - MAX_SHOWN:,} more")
    hint = "`tx config` lists all settings, and `tx config NAME` explains one" if listed - {""} else None
    return ConfigError("\n".join(blocks), hint=hint)


def refusal(refused: Refused) -> ConfigError:
    """The error for a text that is not acceptable YAML."""
    return config_error([Mistake(refused.message, refused.place, also=refused.also)])


def excerpt(place: Place) -> str:
    """The line, and carets under the characters that are meant; a long line is cut around them."""
    line, start = place.source.lines[place.row], place.column
    cut = max(0, start - EXCERPT_WIDTH // 2) if len(line) > EXCERPT_WIDTH else 0
    shown = line[cut : cut + EXCERPT_WIDTH]
    before, marked = shown[: start - cut], shown[start - cut :][: place.end - place.start]
    number = str(place.row + 1) if place.source.is_file else ""
    carets = " " * width(before) + "^" * max(1, width(marked))
    return f"{number:>5} | {_printable(shown).rstrip()}\n{'':>5} | {carets}"


def _printable(text: str) -> str:
    """As many characters as before, none of them able to move the caret's column."""
    return "".join(char if char.isprintable() else " " if char == "\t" else "\ufffd" for char in text)


def find(root: Node, path: Path) -> Node | None:
    """The node of a setting, None where it was left to its default."""
    node: Node | None = root
    for step in path:
        node = node.child(step) if node else None
    return node


def place_of(root: Node, path: Path) -> Place | None:
    """Where a setting was written, or the nearest thing around it; None where nothing of it was."""
    while path and find(root, path) is None:
        path = path[:-1]
    node = find(root, path)
    return _place(node) if node and path else None


def said_last(root: Node, paths: Sequence[Path], own: Source) -> Path:
    """Of these settings the first of those that --set says, else the file itself (own), else what it extends."""
    sources = {path: place.source for path in paths if find(root, path) and (place := place_of(root, path))}
    return min(sources, key=lambda path: (sources[path].is_file, sources[path] != own), default=paths[0])


def _place(node: Node) -> Place:
    """A mapping is pointed at by its key, anything else by itself."""
    return node.key if node.key and isinstance(node.value, dict) else node.place


def explain(error: ValidationError, root: Node, schema: type[Section]) -> list[Mistake]:
    """Pydantic's errors as mistakes at their places; what the members of a union say becomes one mistake."""
    complaints = [(entry["loc"], entry["type"]) for entry in error.errors(include_url=False, include_context=False)]
    return _explain(complaints, root, accepted(schema))


def _explain(
    complaints: Iterable[tuple[Path, str]], root: Node, wanted: Accepted, *, prefix: Path = ()
) -> list[Mistake]:
    """The paths start at root, which `wanted` describes; prefix only completes the settings' names."""
    unions: dict[Path, list[tuple[Path, str]]] = {}
    mistakes: list[Mistake] = []
    for loc, kind in complaints:
        path, within = _split_at_union(loc, wanted)
        if within:
            unions.setdefault(path, []).append((within, kind))
        else:
            mistakes.append(_mistake(path, kind, root, wanted, prefix=prefix))
    for path, inner in unions.items():
        mistakes += _union_mistakes(path, inner, root, wanted, prefix=prefix)
    return mistakes


def _split_at_union(loc: Path, wanted: Accepted) -> tuple[Path, Path]:
    """The setting, and what pydantic appends to it: the name of a union's member and the way inside that."""
    for depth, step in enumerate(loc):
        if wanted.is_union:
            return loc[:depth], loc[depth:]
        inner = wanted.inside(step)
        if inner is None:
            break
        wanted = inner
    return loc, ()


def _union_mistakes(
    path: Path, complaints: list[tuple[Path, str]], root: Node, wanted: Accepted, *, prefix: Path
) -> list[Mistake]:
    """A mapping is judged as the form it comes nearest to, or as values by name, a list of mappings entry by
    entry; anything else by all that the union accepts."""
    node, members = _existing(root, path), _at(wanted, path).members
    forms = {member.section.__name__: member for member in members if member.section}
    related = [
        name for name, form in forms.items() if isinstance(node.value, dict) and any(map(form.inside, node.value))
    ]
    holding = next((member for member in members if get_origin(member.annotation) is type(node.value)), None)
    is_of_mappings = not isinstance(node.value, list) or any(isinstance(one.value, dict) for one in node.value)
    if not related and holding is not None and is_of_mappings:  # which pydantic calls dict[...] or list[...]
        related = [type(node.value).__name__]
        forms = {related[0]: holding}
        complaints = [((str(within[0]).partition("[")[0], *within[1:]), kind) for within, kind in complaints]
    if not related:
        return [_mistake(path, "union", root, wanted, prefix=prefix)]
    meant = min(related, key=lambda name: sum(within[0] == name for within, _ in complaints))
    of_the_form = [(within[1:], kind) for within, kind in complaints if within[0] == meant]
    return _explain(of_the_form, node, forms[meant], prefix=(*prefix, *path))


def _mistake(path: Path, kind: str, root: Node, wanted: Accepted, *, prefix: Path) -> Mistake:
    full = (*prefix, *path)
    name = _dotted(full)
    if kind == "extra_forbidden":
        parent = _at(wanted, path[:-1]).section
        assert parent is not None
        unknown = _existing(root, path)
        meant = spaced(str(path[-1]), unknown) or suggestion(tuple(map(str, full)), parent)
        valid = "" if meant else ", ".join([*(["extends"] if len(full) == 1 else []), *parent.model_fields])
        return Mistake(f"unknown setting `{name}`{meant}", unknown.key, full, valid=valid)
    if kind == "missing":
        around = _existing(root, path[:-1])
        return Mistake(f"`{name}` is missing", _place(around), full)
    node, wanted = _existing(root, path), _at(wanted, path)
    message = f"`{name}` is {describe(node)}; expected {wanted.in_words(node.value)}{advice(node, wanted, name)}"
    return Mistake(message, _place(node), full)


def _existing(root: Node, path: Path) -> Node:
    node = find(root, path)
    assert node is not None
    return node


def _at(wanted: Accepted, path: Path) -> Accepted:
    for step in path:
        inner = wanted.inside(step)
        assert inner is not None
        wanted = inner
    return wanted


def _dotted(path: Path) -> str:
    """model.d_model; data.train.pairs[0][1]."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return shorten(text, 100)
