"""Strict YAML: what is read, what is refused, and where it was written."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config import nodes
from transformer_cli.config.nodes import MAX_BYTES, MAX_DEPTH, Node, Refused, Source, decode, read_file, read_nodes
from transformer_cli.config.section import composed
from transformer_cli.errors import ConfigError


def read(text: str) -> object:
    return read_nodes(Source("f.yaml", text)).plain()


def refused(text: str) -> Refused:
    with pytest.raises(Refused) as caught:
        read_nodes(Source("f.yaml", text))
    return caught.value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-4", 1e-4),
        ("1E4", 1e4),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("+12", 12),
        ("0", 0),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        # YAML 1.1 would make something else of each of these.
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("y", "y"),
        ("0o17", "0o17"),
        ("0x1F", "0x1F"),
        ("017", "017"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-31", "2024-01-31"),
        ("=", "="),
        ("'1'", "1"),
        ('"true"', "true"),
        ("|\n  null\n", "null\n"),
    ],
)
def test_scalars_follow_yaml_1_2(written, meant):
    value = read(f"key: {written}")
    assert value == {"key": meant}
    assert type(value["key"]) is type(meant)


def test_nan_is_a_number():
    assert math.isnan(read("key: .nan")["key"])


def test_keys_are_text_whatever_they_look_like():
    assert read("on: 1\nnull: 2\n3: 4") == {"on": 1, "null": 2, "3": 4}


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("a: &x 1\nb: *x", "f.yaml:1:4", "anchors (&name) are not allowed"),
        ("b: *x", "f.yaml:1:4", "aliases (*name) are not allowed"),
        ("a:\n  <<: {b: 1}", "f.yaml:2:3", "merge keys (<<) are not allowed; `extends:` inherits"),
        ("a: !!python/object/apply:os.system [ls]", "f.yaml:1:4", "are not allowed"),
        ("a: !!int 3", "f.yaml:1:4", "tags (tag:yaml.org,2002:int) are not allowed"),
        ("&x a: 1", "f.yaml:1:1", "anchors (&name) are not allowed"),
        ("a:\n\tb: 1", "f.yaml:2:1", "a tab: YAML is indented with spaces"),
        ("a: 1\n\tb: 2", "f.yaml:2:1", "a tab: YAML is indented with spaces"),
        ("a: b: c", "f.yaml:1:5", "an unexpected colon"),
        ("a: [1, 2", "f.yaml:1:9", "the text ends too early"),
        ("a: 'b", "f.yaml:1:6", "the text ends too early"),
        ("a: 1\nb\n", "f.yaml:2:1", "expected `key: value`, a colon and a space between them"),
        # A colon is missing: PyYAML gives up on the line below.
        ("a x\nb: 1", "f.yaml:1:1", "expected `key: value`, a colon and a space between them"),
        ("a:x\n\n# c\nb: 1", "f.yaml:1:1", "expected `key: value`, a colon and a space between them"),
        ("a: 1\nb = 2\nc:\n  d: 3", "f.yaml:2:1", "expected `key: value`, a colon and a space between them"),
        ("a:\n  b 1\n  c: 2", "f.yaml:2:3", "expected `key: value`, a colon and a space between them"),
        ("a:\n  b: 1\n  c 2\n  d: 3", "f.yaml:3:3", "expected `key: value`, a colon and a space between them"),
        ("a:\n  b x\n  # c\n  d: 1", "f.yaml:2:3", "expected `key: value`, a colon and a space between them"),
        ("a: x\n   b: 1", "f.yaml:2:5", "an unexpected colon"),
        ("a:\n  - x\n    b: 1", "f.yaml:3:6", "an unexpected colon"),
        ("a:\n  - x\n  b: 1", "f.yaml:3:3", "this line does not fit the lines above"),
        # What YAML takes for a key without a value.
        ("{a: 1,000, b: 2}", "f.yaml:1:5", "a comma ends a value: write the number without one"),
        ("{a: 1,000,000}", "f.yaml:1:5", "a comma ends a value: write the number without one"),
        ("{a: 0,3}", "f.yaml:1:5", "a comma ends a value: write the number without one"),
        ("a:\n    b: 1\n  c: 2", "f.yaml:3:3", "this line does not fit the lines above: check the indentation"),
        ("a: @b", "f.yaml:1:4", "a value cannot start with `@`; quote it"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1", "a second document (---) is not allowed"),
        ("%YAML 1.1\n---\na: 1", "f.yaml:1:1", "directives (%) are not allowed"),
        ("? [a]\n: b", "f.yaml:1:3", "a key must be a plain name"),
        ("# nothing\n", "f.yaml:1:1", "the file has comments but no settings"),
        ("a: b\0c", "f.yaml:1:5", "the character U+0000 is not allowed"),
        ("a: b\x1bc", "f.yaml:1:5", "the character U+001B is not allowed"),
        # PyYAML would take these for ends of lines; editors and YAML 1.2 do not.
        ("a: 'b\u2028c'", "f.yaml:1:6", "the character U+2028 is not allowed; in double quotes, write it as an escape"),
        ("a: 'b\x85c'", "f.yaml:1:6", "the character U+0085 is not allowed"),
        ("a: 1\rb: 2", "f.yaml:1:5", "the character U+000D is not allowed"),
        ('a: "\\0"', "f.yaml:1:4", "NUL and surrogates are not allowed"),
        ('a: "\\ud800"', "f.yaml:1:4", "NUL and surrogates are not allowed"),
        ('"\\ud800": 1', "f.yaml:1:1", "NUL and surrogates are not allowed"),
        ('a: "\\UFFFFFFFF"', "f.yaml:1:1", "an escape in a quoted text names no character"),
        (f"a: {'9' * 5000}", "f.yaml:1:4", "a number of more than 40 characters"),
        (f"a: {'[' * 10_000}", f"f.yaml:1:{MAX_DEPTH + 4}", "nested more than 16 levels deep"),
        ("- " * 10_000, f"f.yaml:1:{2 * MAX_DEPTH + 3}", "nested more than 16 levels deep"),
    ],
)
def test_what_yaml_offers_and_we_do_not_is_refused_with_its_place(text, where, words):
    error = refused(text)
    assert str(error.place) == where
    assert words in error.message


def test_a_duplicate_key_names_both_places():
    error = refused("model:\n  d_ff: 1\n  bias: true\n  d_ff: 2\n")
    assert error.message == "`d_ff` is given twice"
    assert str(error.place) == "f.yaml:4:3"
    assert error.also is not None
    assert (error.also[0], str(error.also[1])) == ("first given", "f.yaml:2:3")


@pytest.mark.parametrize(
    ("text", "where", "begun"),
    [("a: {b: 1\nc: {d: 2}", "f.yaml:2:2", "f.yaml:1:4"), ("a: [1,\n  2\nb: 3", "f.yaml:3:2", "f.yaml:1:4")],
)
def test_a_bracket_that_is_not_closed_is_named(text, where, begun):
    error = refused(text)
    assert error.also is not None
    assert (str(error.place), str(error.also[1])) == (where, begun)
    assert error.message == "a comma is missing, or what was opened is not closed"


def test_numbers_may_be_keys_behind_a_comma():
    assert read("{a: 1,2: 3, b: [1,000]}") == {"a": 1, "2": 3, "b": [1, "000"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f.yaml:1:1: the file is empty"),
        (b" \n\n", "f.yaml:1:1: the file is empty"),
        (b"\xef\xbb\xbf", "f.yaml:1:1: the file is empty"),
        (b"a: 1\nb: \xff", "f.yaml:2: byte 9 (0xff) is not valid UTF-8"),
        (b"a" * (MAX_BYTES + 1), f"f.yaml is larger than {MAX_BYTES:,} bytes: too large for a configuration"),
    ],
)
def test_bytes_that_are_no_text_have_one_clear_message(data, message):
    with pytest.raises(ConfigError) as caught:
        decode(data, name="f.yaml")
    assert caught.value.message == message


def test_a_disk_that_fails_is_told_with_what_to_do(monkeypatch, tmp_path):
    def fail(path, flags):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(nodes, "_without_waiting", fail)
    with pytest.raises(ConfigError) as caught:
        read_file(tmp_path / "f.yaml", name="f.yaml")
    assert caught.value.message == "cannot read f.yaml: Input/output error"
    assert "`dmesg`" in str(caught.value.hint)


def test_a_byte_order_mark_moves_no_column():
    text = decode(b"\xef\xbb\xbfa: 1", name="f.yaml")
    node = read_nodes(Source("f.yaml", text)).value["a"]
    assert (str(node.key), str(node.place)) == ("f.yaml:1:1", "f.yaml:1:4")


def test_a_line_ends_with_or_without_a_carriage_return():
    node = read_nodes(Source("f.yaml", "a: x\r\nb: 2\r\n")).value["b"]
    assert str(node.place) == "f.yaml:2:4"
    assert node.place.source.lines == ["a: x", "b: 2", ""]


# JSON is a subset of YAML 1.2, so Python's json is an independent reader.
TEXT = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FFFF, exclude_categories=["Cs", "Cc", "Cn", "Co", "Zl", "Zp"]),
    max_size=20,
)
KEY = TEXT.map(composed)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(JSON, st.sampled_from([None, 2]))
def test_json_reads_as_json(value, indent):
    assert read(json.dumps(value, ensure_ascii=False, indent=indent)) == value


def leaves(node: Node) -> list[Node]:
    if isinstance(node.value, dict):
        return [leaf for child in node.value.values() for leaf in leaves(child)]
    if isinstance(node.value, list):
        return [leaf for child in node.value for leaf in leaves(child)]
    return [node]


@settings(max_examples=60)
@given(st.dictionaries(KEY, JSON, max_size=5), st.sampled_from([None, 2]))
def test_every_place_holds_what_was_read_there(value, indent):
    root = read_nodes(Source("f.json", json.dumps(value, ensure_ascii=False, indent=indent)))
    for leaf in leaves(root):
        place = leaf.place
        assert json.loads(place.source.text[place.start : place.end]) == leaf.value
        line = place.source.lines[place.row]
        assert json.loads(line[place.column :][: place.end - place.start]) == leaf.value


@pytest.fixture(scope="module")
def harmless_s():
    """Processor time that as many numbers as there may be take."""
    return seconds("a: [" + "1, " * (MAX_BYTES // 3 - 3) + "]")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]",
        "[" * MAX_BYTES,
        "a: " + ":" * (MAX_BYTES - 3),
        "? " * (MAX_BYTES // 2),
        "a: 'x\n" + " \n" * (MAX_BYTES // 2 - 4),
        "a: [" + "[], " * (MAX_BYTES // 4 - 2),
    ],
    ids=["aliases", "brackets", "colons", "keys", "blank lines", "lists"],
)
def test_a_hostile_text_takes_about_as_long_as_a_harmless_one(text, harmless_s):
    assert seconds(text) < 4 * harmless_s


def seconds(text):
    start = time.process_time()
    with contextlib.suppress(Refused):
        read(text)
    return time.process_time() - start
