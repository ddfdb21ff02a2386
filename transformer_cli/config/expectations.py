"""The schema read back: what a setting accepts, in words, and what a wrong value probably meant."""

from __future__ import annotations

import difflib
import json
import math
import re
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as limit
from pydantic.fields import FieldInfo

from transformer_cli.config.names import shorten
from transformer_cli.config.nodes import Node
from transformer_cli.config.recipes import Recipes
from transformer_cli.config.section import NAME_IN_WORDS, PERCENT, Called, Section

HUGE = 10**12
"""The schema's limit for counts that have none of their own."""
FAR = 10**5
"""From here on a limit is not worth a word unless it is exceeded."""
LIKE = 0.7
"""How like a name has to be that is meant: with the library's 0.6, `serve` is like `score`."""


@dataclass(frozen=True)
class Accepted:
    """The values that a setting takes: a type without its null, and limits such as Gt(0)."""

    annotation: Any
    limits: tuple[Any, ...] = ()

    @property
    def section(self) -> type[Section] | None:
        """The section, where the setting is one and nothing else."""
        one = self.annotation
        return one if isinstance(one, type) and issubclass(one, Section) else None

    @property
    def members(self) -> tuple[Accepted, ...]:
        """The members of a union; the setting itself where it is none."""
        if get_origin(self.annotation) in (Union, types.UnionType):
            return tuple(accepted(member) for member in get_args(self.annotation))
        return (self,)

    @property
    def is_union(self) -> bool:
        return len(self.members) > 1

    @property
    def choices(self) -> tuple[str, ...]:
        named = [name for item in self.limits if isinstance(item, Recipes) for name in item.names]
        return get_args(self.annotation) if get_origin(self.annotation) is Literal else tuple(named)

    @property
    def is_by_name(self) -> bool:
        """Whether it takes values by names that are free."""
        return get_origin(self.annotation) is dict

    def inside(self, step: str | int) -> Accepted | None:
        """What is accepted under a key of a section or at an index of a list; None where nothing is."""
        if self.section:
            field = self.section.model_fields.get(str(step))
            return accepted(field.annotation, *field.metadata) if field else None
        if get_origin(self.annotation) is list and isinstance(step, int):
            return accepted(get_args(self.annotation)[0])
        return accepted(get_args(self.annotation)[1]) if self.is_by_name else None

    def in_words(self, found: object = None) -> str:
        """`a whole number above 0`; a limit that is far away is named only if `found` exceeds it."""
        if self.is_union:
            return ", or ".join(member.in_words(found) for member in self.members)
        if self.choices:
            return self.choices[0] if len(self.choices) == 1 else f"one of {', '.join(self.choices)}"
        if self.section:
            names = list(self.section.model_fields)
            needed = [name for name, field in self.section.model_fields.items() if field.is_required()]
            if len(names) > 4:
                return f"{{{', '.join(needed)}, ...}}" if needed else "`key: value` lines"
            return f"{{{', '.join(names)}}}"
        if get_origin(self.annotation) is list:
            item = self.inside(0)
            assert item is not None
            if item.choices:
                return f"a list of {self._count() or 'any '}of {', '.join(item.choices)}"
            return f"a list of {self._count()}{_plural(item.in_words())}"
        if self.is_by_name:
            return "several by name"
        if self.annotation is bool:
            return "true or false"
        if self.annotation is int:
            return f"a whole number{self._range(found)}"
        if self.annotation is float:
            finite = "a finite number" if isinstance(found, float) and not math.isfinite(found) else "a number"
            return f"{finite}{self._range(found)}"
        patterns = [pattern for item in self.limits if (pattern := getattr(item, "pattern", None))]
        if patterns == [PERCENT]:
            return "a share such as 10%"
        if patterns:
            return NAME_IN_WORDS
        if called := [item.words for item in self.limits if isinstance(item, Called)]:
            return called[0]
        return f"text{self._length()}" if isinstance(found, str) else "text"

    def _range(self, found: object) -> str:
        words = []
        for item in self.limits:
            if isinstance(item, limit.Gt):
                words.append(f"above {item.gt}")
            elif isinstance(item, limit.Ge):
                words.append(f"of at least {item.ge}")
            elif isinstance(item, limit.Lt):
                words.append(f"below {item.lt}")
            elif isinstance(item, limit.Le) and _is_worth_a_word(item.le, found):
                words.append(f"up to {item.le:,}")
        return "".join(f" {'and ' if index else ''}{word}" for index, word in enumerate(words))

    def _length(self) -> str:
        """Of a text; named only where one was found."""
        return f" of {count}characters" if (count := self._count()) else ""

    def _count(self) -> str:
        least = next((item.min_length for item in self.limits if isinstance(item, limit.MinLen)), 0)
        most = next((item.max_length for item in self.limits if isinstance(item, limit.MaxLen)), None)
        if most is None:
            return f"at least {least} " if least else ""
        return f"{least} " if most == least else f"{least} to {most:,} "


def accepted(annotation: Any, *limits: Any) -> Accepted:
    """From a type as it is declared: `Annotated[int, Field(gt=0)] | None` accepts int above 0."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *extra = get_args(annotation)
            for item in extra:
                limits += tuple(item.metadata) if isinstance(item, FieldInfo) else (item,)
        elif get_origin(annotation) in (Union, types.UnionType):
            members = [member for member in get_args(annotation) if member is not type(None)]
            annotation = Union[tuple(members)]  # noqa: UP007
            if len(members) > 1:
                return Accepted(annotation, limits)
        else:
            return Accepted(annotation, limits)


def describe(node: Node) -> str:
    """What was found, as it was written: 12, "ten", null, {source}, or how long the list is."""
    value = node.value
    written = node.place.source.text[node.place.start : node.place.end]
    if isinstance(value, dict):
        return f"{{{shorten(', '.join(value))}}}"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, str):
        return f"the text {json.dumps(shorten(value), ensure_ascii=False, allow_nan=False)}"
    return shorten(written.strip()) or "empty"


def spaced(key: str, node: Node) -> str:
    """A word more on what YAML takes for one long key: `; write d_model: 64, with a space`."""
    name, colon, value = key.partition(":")
    is_one = colon and value and node.value is None and node.place.start == node.place.end
    return f"; write {name}: {value}, with a space" if is_one else ""


def advice(node: Node, wanted: Accepted, name: str) -> str:
    """A word more, where the slip is a known one: `; write 100000`. name: of the setting."""
    value, types_ = node.value, {member.annotation for member in wanted.members}
    if isinstance(value, dict):
        return next(filter(None, (spaced(key, inner) for key, inner in value.items())), "")
    if isinstance(value, str):
        choices = [choice for member in wanted.members for choice in member.choices]
        if close := nearest(value, choices):
            return f"; did you mean {close}?"
        if bool in types_ and value.lower() in ("yes", "no", "on", "off"):
            return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
        if types_ & {int, float} and (number := _as_number(value, is_whole=float not in types_)):
            return f"; write {number}"
    if isinstance(value, float) and int in types_ and abs(value) <= HUGE:
        grouped = _as_number(node.place.source.text[node.place.start : node.place.end].strip(), is_whole=True)
        if meant := [text for text in (grouped, str(int(value)) if value.is_integer() else None) if text]:
            return f"; write {', or '.join(meant)}"
    is_share = name == "data.valid" or {int, str} <= types_
    if isinstance(value, float) and 0 < value < 1 and is_share:
        return f"; write {100 * value:g}%"
    if type(value) is int and 0 < value <= 50 and name == "data.valid":  # a truth value is no number
        return f"; write {value}%, or quote a text's name"
    if isinstance(value, bool | int | float) and str in types_ and int not in types_:
        return "; quote it"
    return ""


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name most like a mistyped word, if one is like it."""
    return next(iter(difflib.get_close_matches(word[:100], list(names), n=1, cutoff=LIKE)), None)


def _as_number(text: str, *, is_whole: bool) -> str | None:
    """How a number in another notation is written here: `1_000` -> 1000, `"12"` -> 12; None for other text. is_whole:
    a comma or a dot groups digits; else it is decimal, `0,3` -> 0.3, and `1,000` may be either."""
    plain = text.replace("_", "").lower()
    if re.fullmatch(r"[1-9]\d{0,2}((,\d{3})+|(\.\d{3})+)", plain, re.ASCII):
        return plain.replace(",", "").replace(".", "") if is_whole else None
    if plain.isascii() and plain.isdecimal():
        return plain.lstrip("0") or "0"
    number = plain.replace(",", ".")
    if is_whole or not re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?", number, re.ASCII):
        return None
    return f"0{number}" if number.startswith(".") else number


def _is_worth_a_word(most: Any, found: object) -> bool:
    return most < FAR or (isinstance(found, int) and found > most)


def _plural(words: str) -> str:
    if words == "text":
        return "texts"
    if words == "a list of 2 texts":
        return "[source, target] pairs"
    return words.removeprefix("a ").replace("number", "numbers", 1)
