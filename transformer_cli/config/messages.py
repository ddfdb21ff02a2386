"""What is wrong with a configuration, all of it at once: place, line, caret, what was found, what was expected."""

from __future__ import annotations

import difflib
import json
import math
import types
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from transformer_cli.config.nodes import Node, Place, Refused, shorten
from transformer_cli.config.section import Section
from transformer_cli.errors import ConfigError

MAX_SHOWN = 20
EXCERPT_WIDTH = 100

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Mistake:
    """One thing to mend. path: the setting it is about, () for the whole text."""

    message: str
    place: Place | None
    path: Path = ()
    also: tuple[str, Place] | None = None

    def render(self) -> str:
        where = f"{self.place}: " if self.place else ""
        lines = [f"{where}{self.message}"]
        if self.place:
            lines.append(excerpt(self.place))
        if self.also:
            words, place = self.also
            lines += [f"  {words} at {place}", excerpt(place)]
        return "\n".join(lines)


def config_error(mistakes: Sequence[Mistake]) -> ConfigError:
    """One error for all mistakes, in the order in which they were written."""
    ordered = sorted(mistakes, key=lambda m: (m.place.source.name, m.place.start) if m.place else ("", -1))
    blocks = [mistake.render() for mistake in ordered[:MAX_SHOWN]]
    if len(ordered) > MAX_SHOWN:
        blocks.append(f"... and {len(ordered) - MAX_SHOWN:,} more")
    if len(ordered) > 1:
        blocks.insert(0, f"{len(ordered):,} mistakes in the configuration")
    return ConfigError("\n".join(blocks))


def refusal(refused: Refused) -> ConfigError:
    """The error for a text that is not acceptable YAML."""
    return config_error([Mistake(refused.message, refused.place, also=refused.also)])


def excerpt(place: Place) -> str:
    """The line, and carets under the characters that are meant."""
    line, start = place.source.lines[place.row], place.column
    end = max(start + 1, min(start + place.end - place.start, len(line)))
    cut = max(0, start - EXCERPT_WIDTH // 2) if len(line) > EXCERPT_WIDTH else 0
    shown = line[cut : cut + EXCERPT_WIDTH]
    before, marked = shown[: start - cut], shown[start - cut : end - cut]
    gutter = f"{place.row + 1:>5} | " if place.source.is_file else "      | "
    blank = " " * (len(gutter) - 2) + "| "
    carets = " " * _width(before) + "^" * max(1, _width(marked))
    return f"{gutter}{_printable(shown).rstrip()}\n{blank}{carets}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "�" if char != "\t" else " " for char in text)


def _width(text: str) -> int:
    """Columns of a terminal: wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def place_of(root: Node, path: Path) -> Place | None:
    """Where a setting, or the nearest thing around it, was written: the key of a mapping, the value of a scalar."""
    node, place = root, None
    for step in path:
        child = node.child(step)
        if child is None:
            return place
        node = child
        place = node.place if node.key is None or not isinstance(node.value, dict) else node.key
    return place


def is_written(root: Node, path: Path) -> bool:
    """Whether a setting was written at all, rather than left to its default."""
    node: Node | None = root
    for step in path:
        node = node.child(step) if node else None
    return node is not None


def explain(error: ValidationError, root: Node, schema: type[Section]) -> list[Mistake]:
    """Pydantic's errors as mistakes at their places; a union's several complaints become one."""
    by_setting: dict[Path, list[tuple[Path, str]]] = {}
    for entry in error.errors(include_url=False, include_context=False):
        path, branch = _split_at_union(entry["loc"], schema)
        by_setting.setdefault(path, []).append((branch, entry["type"]))
    mistakes: list[Mistake] = []
    for path, complaints in by_setting.items():
        mistakes += _mistakes_of_setting(path, complaints, root, schema)
    return mistakes


def _mistakes_of_setting(
    path: Path, complaints: list[tuple[Path, str]], root: Node, schema: type[Section]
) -> Iterable[Mistake]:
    if not any(branch for branch, _ in complaints):  # no union
        for _, kind in complaints:
            yield _mistake(path, kind, root, schema)
        return
    node = _node(root, path)
    annotation, _ = _declared(schema, path)
    forms = [form for form in _members(annotation) if _is_section(form)]
    if isinstance(node.value, dict):
        keys = set(node.value)
        best = max(forms, key=lambda form: len(keys & set(form.model_fields)), default=None)
        if best is not None and keys & set(best.model_fields):
            for branch, kind in complaints:
                if branch[0] == best.__name__:
                    yield _mistake(branch[1:], kind, node, best, prefix=path)
            return
    yield _mistake(path, "union", root, schema)


def _mistake(path: Path, kind: str, root: Node, schema: type[Section], *, prefix: Path = ()) -> Mistake:
    """root and schema belong together and path starts from them; prefix only completes the name."""
    full = (*prefix, *path)
    name = _dotted(full)
    if kind == "extra_forbidden":
        parent, _ = _declared(schema, path[:-1]) if path[:-1] else (schema, [])
        node = _node(root, path)
        message = f"unknown setting `{name}`{_suggestion(str(path[-1]), parent)}"
        return Mistake(message, node.key, full)
    if kind == "missing":
        around = _node(root, path[:-1])
        return Mistake(f"`{name}` is missing", around.key or around.place, full)
    annotation, metadata = _declared(schema, path)
    node = _node(root, path)
    wanted = expectation(annotation, metadata, found=node.value)
    message = f"`{name}` is {describe(node)}; expected {wanted}{_advice(node, annotation)}"
    return Mistake(message, node.place if not isinstance(node.value, dict) else node.key or node.place, full)


def _dotted(path: Path) -> str:
    """model.d_model; data.train.pairs[0][1]."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else shorten(step)
    return shorten(text, 100)


def _node(root: Node, path: Path) -> Node:
    node = root
    for step in path:
        child = node.child(step)
        assert child is not None, path
        node = child
    return node


# --- the schema, as words -----------------------------------------------------------------------------------------


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _members(annotation: Any) -> list[Any]:
    """The members of a union without None, or the annotation alone."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for member in get_args(annotation) if member is not type(None)]
    return [annotation]


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """Annotated[int, Field(gt=0)] -> int, [Gt(0)]."""
    metadata: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
        for item in extra:
            metadata += item.metadata if isinstance(item, FieldInfo) else [item]
    return annotation, metadata


def _declared(schema: type[Section], path: Path) -> tuple[Any, list[Any]]:
    """The annotation of a setting and its limits; lists are entered by their index."""
    annotation: Any = schema
    metadata: list[Any] = []
    for step in path:
        if _is_section(annotation):
            field = annotation.model_fields[step]
            annotation, metadata = field.annotation, list(field.metadata)
        else:
            annotation, metadata = get_args(annotation)[0], []
        annotation, more = _bare(annotation)
        if len(_members(annotation)) == 1:
            annotation, inner = _bare(_members(annotation)[0])
            more += inner
        metadata += more
    return annotation, metadata


def _split_at_union(loc: Sequence[str | int], schema: type[Section]) -> tuple[Path, Path]:
    """Where pydantic stops naming settings and starts naming the members of a union."""
    annotation: Any = schema
    for depth, step in enumerate(loc):
        if len(_members(annotation)) > 1:
            return tuple(loc[:depth]), tuple(loc[depth:])
        if _is_section(annotation):
            if step not in annotation.model_fields:
                break
            annotation = _declared(annotation, (step,))[0]
        else:
            annotation = _bare(get_args(annotation)[0])[0]
    return tuple(loc), ()


def expectation(annotation: Any, metadata: Sequence[Any] = (), *, found: object = None) -> str:
    """What a setting accepts, in words: `a whole number above 0`."""
    annotation, more = _bare(annotation)
    limits = [*metadata, *more]
    members = _members(annotation)
    if len(members) > 1:
        return ", or ".join(expectation(member, found=found) for member in members)
    if members[0] is not annotation:
        return expectation(members[0], limits, found=found)
    if get_origin(annotation) is Literal:
        choices = [str(choice) for choice in get_args(annotation)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if get_origin(annotation) is list:
        item = get_args(annotation)[0]
        return f"a list of {_count(limits)}{_plural(expectation(item, found=None))}"
    if _is_section(annotation):
        names = ", ".join(annotation.model_fields)
        return f"{{{names}}}" if len(annotation.model_fields) <= 3 else "`key: value` lines"
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return f"a whole number{_limits(limits, found)}"
    if annotation is float:
        finite = "a finite number" if isinstance(found, float) and not math.isfinite(found) else "a number"
        return f"{finite}{_limits(limits, found)}"
    if any(getattr(limit, "pattern", None) for limit in limits):
        return "a name of letters, digits, `.`, `_` and `-` that starts with a letter or digit, 100 at most"
    return "text"


HUGE = 10**12


def _limits(limits: Sequence[Any], found: object) -> str:
    words = []
    for limit in limits:
        match limit:
            case annotated_types.Gt():
                words.append(f"above {limit.gt}")
            case annotated_types.Ge():
                words.append(f"of at least {limit.ge}")
            case annotated_types.Lt():
                words.append(f"below {limit.lt}")
            case annotated_types.Le(le=highest):
                if highest != HUGE or (isinstance(found, int) and found > HUGE):
                    words.append(f"up to {highest:,}")
    return "".join(f" {'and ' if index else ''}{word}" for index, word in enumerate(words))


def _count(limits: Sequence[Any]) -> str:
    least = next((limit.min_length for limit in limits if isinstance(limit, annotated_types.MinLen)), 0)
    most = next((limit.max_length for limit in limits if isinstance(limit, annotated_types.MaxLen)), None)
    if most == least:
        return f"{least} "
    return f"at least {least} " if least else ""


def _plural(words: str) -> str:
    if words == "text":
        return "texts"
    if words.startswith("a list of 2 texts"):
        return "[source, target] pairs"
    return words.removeprefix("a ").replace("number", "numbers", 1)


def describe(node: Node) -> str:
    """What was found, as it could be written: 12, "ten", nothing, a list."""
    value = node.value
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return f"{{{shorten(', '.join(value))}}}"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, str):
        return f"the text {json.dumps(shorten(value), ensure_ascii=False)}"
    written = node.place.source.text[node.place.start : node.place.end]
    return shorten(written) if written else json.dumps(value)


def _suggestion(key: str, section: Any) -> str:
    """`; did you mean x?`, or where the key belongs, or the list of valid names."""
    names = list(section.model_fields)
    if close := nearest(key, names):
        return f"; did you mean `{close}`?"
    for name, field in section.model_fields.items():
        if _is_section(field.annotation) and key in field.annotation.model_fields:
            return f"; it belongs to `{name}`"
    return f"; valid are {', '.join(names)}"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name most like a mistyped word, if one is like it."""
    return next(iter(difflib.get_close_matches(word[:100], list(names), n=1)), None)


def _advice(node: Node, annotation: Any) -> str:
    """A word more, where the slip is a known one."""
    value, members = node.value, [_bare(member)[0] for member in _members(annotation)]
    if isinstance(value, str):
        if get_origin(annotation) is Literal and (close := nearest(value, map(str, get_args(annotation)))):
            return f"; did you mean {close}?"
        if bool in members and value.lower() in ("yes", "no", "on", "off"):
            return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
        if (int in members or float in members) and (number := _plain_number(value)) is not None:
            return f"; write {number} without quotes, `_` or `,`"
    if isinstance(value, float) and int in members and value.is_integer() and abs(value) < HUGE:
        return f"; write {int(value)}"
    if str in members and isinstance(value, bool | int | float):
        return "; quote it"
    return ""


def _plain_number(text: str) -> str | None:
    digits = text.replace("_", "").replace(",", "").strip()
    try:
        number = float(digits)
    except ValueError:
        return None
    return (digits.lstrip("0") or "0") if digits.isdecimal() else f"{number:g}" if math.isfinite(number) else None
