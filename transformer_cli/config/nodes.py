"""Strict YAML: text -> nodes that know where they were written.

The scalars are those of YAML 1.2's core schema in its plain decimal form: `1e-4` is a number; `no`, `on`, `0o17`,
`1_000` and `1:30` are text. Anchors, aliases, merge keys, tags, duplicate keys and several documents are refused.
A key is the same however its letters were typed (NFC).
Source: https://yaml.org/spec/1.2.2, section 10.3.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import yaml

from transformer_cli.config.names import shorten
from transformer_cli.config.section import composed
from transformer_cli.errors import ConfigError
from transformer_cli.trouble import hint_of, reason_of

MAX_BYTES = 256_000
MAX_DEPTH = 16
MAX_DIGITS = 40

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
BOOLEANS = {name: name.lower() == "true" for name in ("true", "True", "TRUE", "false", "False", "FALSE")}
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NO_COLON = "expected `key: value`, a colon and a space between them"
LINE_ENDS_TO_PYYAML = re.compile("[\x85\u2028\u2029]|\r(?!\n)")
SPECIAL_FLOAT = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True)
class Source:
    """A text that was read. name: what a person calls it, a path or `--set key=value`."""

    name: str
    text: str = field(repr=False)
    is_file: bool = True

    @cached_property
    def lines(self) -> list[str]:
        """The lines as a person sees them: ended by a line feed alone."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]


@dataclass(frozen=True)
class Place:
    """Characters start to end (not included) of a source."""

    source: Source
    start: int
    end: int

    @property
    def row(self) -> int:
        """The line, counted from 0."""
        return self.source.text.count("\n", 0, self.start)

    @property
    def column(self) -> int:
        """The character within the line, counted from 0."""
        return self.start - (self.source.text.rfind("\n", 0, self.start) + 1)

    def __str__(self) -> str:
        if not self.source.is_file:
            return self.source.name
        return f"{self.source.name}:{self.row + 1}:{self.column + 1}"


Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Node:
    """A value, where it was written, and where its key was (None for the root and in lists)."""

    value: Scalar | list[Node] | dict[str, Node]
    place: Place
    key: Place | None = None

    def plain(self) -> object:
        """The value without places: dictionaries, lists and scalars."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def child(self, step: str | int) -> Node | None:
        """The node under a key or at an index, if there is one."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and 0 <= step < len(self.value):
            return self.value[step]
        return None


class Refused(Exception):
    """A mistake in the YAML itself, at one place, perhaps with a second one to compare."""

    def __init__(self, place: Place, message: str, *, also: tuple[str, Place] | None = None) -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.also = also


def read_file(path: Path, *, name: str) -> str:
    """The text of a configuration; ConfigError where it cannot be read, or is none."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as failure:
        raise ConfigError(f"cannot read {name}: {reason_of(failure)}", hint=hint_of(failure, reads=True)) from None
    return decode(data, name=name)


def _without_waiting(path: str, flags: int) -> int:
    """A pipe that nobody writes into is at its end, and not waited for."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return descriptor


def decode(data: bytes, *, name: str) -> str:
    """UTF-8 bytes -> text, without a byte order mark; raises ConfigError."""
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{name} is larger than {MAX_BYTES:,} bytes: too large for a configuration",
            hint="sentence pairs belong into files that `data:` names.",
        )
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{name}:{line}: byte {error.start + 1} (0x{data[error.start]:02x}) is not valid UTF-8",
            hint="save the file as UTF-8.",
        ) from None
    if not text.strip():
        raise ConfigError(
            f"{name}:1:1: the file is empty", hint="`extends: base.yaml` is the smallest useful configuration."
        )
    return text


@lru_cache(maxsize=8)  # a command asks several times what its run's file says
def read_nodes(source: Source, *, start: int = 0) -> Node:
    """The one document of a source, from character `start` on; raises Refused."""
    if end := LINE_ENDS_TO_PYYAML.search(source.text):
        raise Refused(_at(source, end.start()), f"{_name(end.group())}; in double quotes, write it as an escape")
    try:
        return _Reader(source, start).document()
    except yaml.reader.ReaderError as error:
        place = _at(source, error.position)
        raise Refused(place, _name(source.text[error.position])) from None
    except (ValueError, OverflowError):  # an escape such as "\\UFFFFFFFF"
        raise Refused(_at(source, start), "an escape in a quoted text names no character") from None
    except yaml.MarkedYAMLError as error:
        raise _refused(error, source) from None


class _Reader:
    """Builds nodes from PyYAML's events; what it does not accept never becomes an object."""

    def __init__(self, source: Source, start: int) -> None:
        self.source = source
        # Blanks for what comes before keep every position true.
        text = " " * start + source.text[start:]
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)

    def document(self) -> Node:
        next(self.events)  # StreamStart
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            raise Refused(_at(self.source, 0), "the file has comments but no settings")
        if isinstance(event, yaml.DocumentStartEvent) and (event.version or event.tags):
            raise Refused(self.place(event), "directives (%) are not allowed")
        root = self.node(next(self.events), depth=0)
        next(self.events)  # DocumentEnd
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise Refused(self.place(event), "a second document (---) is not allowed: a configuration is one")
        return root

    def node(self, event: yaml.Event, *, depth: int) -> Node:
        self.refuse_magic(event)
        place = self.place(event)
        if depth > MAX_DEPTH:
            raise Refused(place, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.scalar(event, place), place)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(place, depth)
        assert isinstance(event, yaml.MappingStartEvent)
        return self.mapping(place, depth)

    def sequence(self, place: Place, depth: int) -> Node:
        items = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, depth=depth + 1))
        return Node(items, replace(place, end=self.place(event).end))

    def mapping(self, place: Place, depth: int) -> Node:
        entries: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            self.refuse_magic(event)
            key_place = self.place(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise Refused(key_place, "a key must be a plain name")
            key = composed(self.text(event, key_place))
            if key == "<<" and event.style is None:
                raise Refused(key_place, "merge keys (<<) are not allowed; `extends:` inherits from another file")
            if first := entries.get(key):
                assert first.key is not None
                raise Refused(key_place, f"`{shorten(key)}` is given twice", also=("first given", first.key))
            node = self.node(next(self.events), depth=depth + 1)
            self.refuse_commas(key_place, node.place)
            entries[key] = replace(node, key=key_place)
        return Node(entries, replace(place, end=max(place.end, self.place(event).end)))

    def scalar(self, event: yaml.ScalarEvent, place: Place) -> Scalar:
        text = self.text(event, place)
        if event.style is not None:  # quoted or block: text, whatever it looks like
            return text
        if len(text) > MAX_DIGITS and (INTEGER.fullmatch(text) or FLOAT.fullmatch(text)):
            raise Refused(place, f"a number of more than {MAX_DIGITS} characters")
        return read_scalar(text)

    def text(self, event: yaml.ScalarEvent, place: Place) -> str:
        text: str = event.value
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            raise Refused(place, "NUL and surrogates are not allowed")
        return text

    def refuse_commas(self, key: Place, value: Place) -> None:
        """`{max_steps: 1,000}` has a key `000` without a value."""
        text = self.source.text
        number = re.search(r"[0-9]+,$", text[max(0, key.start - MAX_DIGITS) : key.start])
        if number and value.start == value.end and text[key.start : key.end].isdecimal():
            place = replace(key, start=key.start - len(number.group()))
            raise Refused(place, "a comma ends a value: write the number without one")

    def refuse_magic(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            raise Refused(self.place(event), "aliases (*name) are not allowed; write the value out")
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise Refused(self.place(event), "anchors (&name) are not allowed; write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise Refused(self.place(event), f"tags ({shorten(tag)}) are not allowed")

    def place(self, event: yaml.Event) -> Place:
        assert event.start_mark is not None
        assert event.end_mark is not None
        start, end = event.start_mark.index, event.end_mark.index
        return Place(self.source, start, max(start, end))


def read_scalar(text: str) -> Scalar:
    """What an unquoted scalar means; a number of more digits than are read is text."""
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if len(text) <= MAX_DIGITS and INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    if SPECIAL_FLOAT.fullmatch(text):
        return float(text.lower().replace(".", ""))
    return text


def _name(char: str) -> str:
    return f"the character U+{ord(char):04X} is not allowed"


def _at(source: Source, index: int) -> Place:
    """One character; at the end of the text, the last line that has something on it."""
    if index >= len(source.text.rstrip()):
        index = len(source.text.rstrip())
    return Place(source, index, index + 1)


def _refused(error: yaml.MarkedYAMLError, source: Source) -> Refused:
    """At what has to be mended: where a colon is missing, PyYAML gives up on the line below."""
    mark, begun = error.problem_mark or error.context_mark, error.context_mark
    assert mark is not None
    place, problem = _at(source, mark.index), error.problem or ""
    if begun and "could not find expected ':'" in problem:
        return Refused(_at(source, begun.index), NO_COLON)
    is_unexpected = "mapping values are not allowed" in problem or "found '<block mapping start>'" in problem
    if is_unexpected and (above := _above_without_colon(place)):
        return Refused(above, NO_COLON)
    if not begun or begun.line >= place.row or "flow" not in (error.context or ""):
        return Refused(place, _explain(error, place))
    words = _explain(error, place) if "stream" in problem else "a comma is missing, or what was opened is not closed"
    return Refused(place, words, also=("opened", _at(source, begun.index)))


def _above_without_colon(place: Place) -> Place | None:
    """The line above, but for comments, that is no `key: value`; None where an unexpected colon is not its fault."""
    lines = place.source.text.split("\n")
    above = [row for row in range(place.row) if lines[row].strip() and not lines[row].lstrip().startswith("#")]
    if not above or ":" in lines[place.row][: place.column] or re.search(r"^\s*-\s|:(\s|$)", lines[above[-1]]):
        return None
    line, before = lines[above[-1]], sum(len(line) + 1 for line in lines[: above[-1]])
    return Place(place.source, before + len(line) - len(line.lstrip()), before + len(line.rstrip()))


def _explain(error: yaml.MarkedYAMLError, place: Place) -> str:
    """PyYAML's words, or ours where its words name its own machinery."""
    problem = error.problem or "not valid YAML"
    text = place.source.text
    if "\\t" in problem or text[place.start : place.start + 1] == "\t":
        return "a tab: YAML is indented with spaces"
    if "mapping values are not allowed" in problem:
        return "an unexpected colon: check the indentation, and quote a value that has `: ` in it"
    if "<block end>" in problem or "block collection" in str(error.context):
        return "this line does not fit the lines above: check the indentation"
    if "end of stream" in problem or "<stream end>" in problem:
        return "the text ends too early: a bracket, brace or quote is not closed"
    if "cannot start any token" in problem:
        return f"a value cannot start with `{shorten(text[place.start : place.start + 1])}`; quote it"
    return f"not valid YAML: {problem}"
