"""A configuration from files, presets and `--set`: `extends` followed, sections merged, every place remembered."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from transformer_cli.config.accounting import AccountingConfig
from transformer_cli.config.data import PHRASEBOOK
from transformer_cli.config.expectations import accepted, nearest
from transformer_cli.config.former import as_meant_by_a_run, as_written_now
from transformer_cli.config.messages import Mistake, config_error, explain, place_of, refusal, said_last
from transformer_cli.config.names import shorten
from transformer_cli.config.nodes import (
    MAX_DEPTH,
    Node,
    Place,
    Refused,
    Source,
    read_file,
    read_nodes,
    read_scalar,
)
from transformer_cli.config.run import RunConfig, contradictions, untrainable
from transformer_cli.config.section import NO_LETTERS, PERCENT, Contradiction, Section, as_name, composed
from transformer_cli.errors import ConfigError
from transformer_cli.trouble import barred, missing

MAX_CHAIN = 20
PATHS = (("data", "train"), ("data", "valid"), ("data", "test"), ("tokenizer", "model"))
"""Settings that name files: a string, or {source, target}."""


def load_config(name_or_path: str | Path, overrides: Sequence[str] = (), *, to_train: bool = False) -> RunConfig:
    """The configuration of a file or preset, with `--set` overrides such as `model.d_model=64` on top.

    Sections merge key by key along `extends`; any other value, {source, target} and {pairs} included, replaces the
    one it inherits. File names come out absolute: they are relative to the file that writes them, and to the current
    folder in a preset or an override. `name` is not inherited; it defaults to the file's stem.
    Raises ConfigError, which lists every mistake; to_train: also what can be counted but not trained.
    """
    return load_with_places(name_or_path, overrides, to_train=to_train)[0]


def load_with_places(
    name_or_path: str | Path, overrides: Sequence[str] = (), *, to_train: bool = False, of_run: bool = False
) -> tuple[RunConfig, Node]:
    """The configuration, and the tree of what was written, each value with its place; of_run: a run's own file."""
    path = find_config(name_or_path)
    tree = as_meant_by_a_run(_read_chain(path)) if of_run else _read_chain(path)
    own, mistakes = tree.place.source, []
    for override in overrides:
        try:
            above, steps = _override(override)
            tree = _merge(tree, above, RunConfig, steps=steps)
        except Refused as refused:
            mistakes.append(Mistake(refused.message, refused.place, also=refused.also))
    if mistakes:
        raise config_error(mistakes)
    config = _validated(tree, own, to_train=to_train)
    return config if config.name is not None else config.model_copy(update={"name": as_name(path.stem)}), tree


def files_of(name_or_path: str | Path) -> list[Path]:
    """All that a configuration is read from: a file or preset, and what it extends."""
    return [path for path, _ in _chain(find_config(name_or_path))]


def dump_config(config: RunConfig) -> str:
    """YAML of everything, defaults included, with marks at both ends; loading it gives an equal configuration.

    What is only counted is no part of a run: where there is nothing of it, its section is left out.
    """
    left_out = {"accounting"} if config.accounting == AccountingConfig() else set()
    sections = config.model_dump(exclude=left_out)
    return yaml.dump(
        sections,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=110,
        explicit_start=True,
        explicit_end=True,
    )


def preset_names() -> list[str]:
    """The packaged presets, as `-c` takes them: base, big, ..."""
    folder = _preset_folder()
    return sorted(path.stem for path in folder.glob("*.yaml")) if folder else []


def find_config(name_or_path: str | Path) -> Path:
    """The path where it exists, else the packaged preset of that name, else the path with `.yaml` behind it; raises
    ConfigError with the first two places tried."""
    name = str(name_or_path)
    path = _at_home(name)
    # pathlib's own questions raise for a name that is too long.
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    if preset := _preset(name):
        return preset
    if not name.endswith("/") and os.path.isfile(whole := f"{path}.yaml"):
        return Path(whole)
    if barred(str(path)) != str(path):
        return path  # whoever reads it says so
    if os.path.isdir(path):
        hint = f"to go on with that run: -c {name}/config.yaml --run-dir {name}" * os.path.isfile(f"{path}/config.yaml")
        raise ConfigError(f"{name} is a directory, not a configuration", hint=hint or None)
    shown = shorten(name, 255)
    said = (
        f"{shown} {missing(path)}" if os.path.islink(path) else f"no configuration {shown}: neither a file nor a preset"
    )
    raise ConfigError(said, hint=_nearest_config(name, os.path.dirname(path) or "."))


def _nearest_config(name: str, folder: str) -> str:
    """`did you mean base.yaml?` of what lies in the folder and the presets, or all presets."""
    there = glob.glob("*.yaml", root_dir=folder) if os.path.isdir(folder) else []
    files = {file.removesuffix(".yaml"): file for file in sorted(there)}
    presets = preset_names()
    stem = os.path.basename(name).removesuffix(".yaml").removesuffix(".yml")
    begun, close = [one for one in presets if one.startswith(f"{stem}-")], nearest(stem, [*files, *presets])
    meant = begun or ([close] if close else [])
    there = [os.path.join(os.path.dirname(name), files[one]) if one in files else f"{one}.yaml" for one in meant]
    return f"did you mean {' or '.join(there)}?" if there else f"presets: {', '.join(presets)}"


def _preset_folder() -> Path | None:
    """transformer_cli/configs in a wheel, configs/ beside the package in a checkout."""
    package = Path(__file__).parents[1]
    return next((folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir()), None)


def _preset(name: str) -> Path | None:
    stem = name.removesuffix(".yaml")
    folder = _preset_folder()
    if folder is None or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", stem):
        return None
    path = folder / f"{stem}.yaml"
    return path if os.path.isfile(path) else None


# --- reading ------------------------------------------------------------------------------------------------------


def _read_chain(path: Path) -> Node:
    """A file on top of what it extends."""
    (_, tree), *above = reversed(list(_chain(path)))
    for _, own in above:
        assert isinstance(tree.value, dict)
        inherited = {key: node for key, node in tree.value.items() if key != "name"}
        tree = _merge(replace(tree, value=inherited), own, RunConfig)
    return tree


def _chain(path: Path, below: tuple[Path, ...] = ()) -> Iterator[tuple[Path, Node]]:
    """A file with its own settings, then what it extends, and what that extends."""
    tree = _without_empty_sections(as_written_now(_read_file(path)), RunConfig)
    assert isinstance(tree.value, dict)
    if not tree.value:
        raise refusal(Refused(tree.place, "there are no settings in this file; `extends: base.yaml` is the fewest"))
    chain = (*below, path)
    entries = dict(tree.value)
    extends = entries.pop("extends", None)
    yield path, replace(tree, value=_with_paths(entries, folder=_folder(path)))
    if extends is None:
        return
    parent = _find_parent(extends, path)
    if any(parent.samefile(seen) for seen in chain):
        names = " -> ".join(_display(link) for link in (*chain, parent))
        raise refusal(Refused(extends.place, f"`extends` goes round in a circle: {names}"))
    if len(chain) >= MAX_CHAIN:
        raise refusal(Refused(extends.place, f"more than {MAX_CHAIN} files extend each other"))
    yield from _chain(parent, chain)


def _find_parent(extends: Node, path: Path) -> Path:
    """What `extends` names: a path beside the file that says so, else a preset; that is also meant by a file of its
    name."""
    name = extends.value
    if not isinstance(name, str) or not name:
        raise refusal(Refused(extends.place, "`extends` names one file or preset, such as base.yaml"))
    beside = path.parent / _at_home(name)
    preset = _preset(name)
    if os.path.isfile(beside) and not (preset and beside.samefile(path)):
        return beside
    if preset:
        return preset
    if not name.endswith("/") and os.path.isfile(whole := f"{beside}.yaml"):
        return Path(whole)
    words = f"`extends: {shorten(name)}` names neither a file beside this one nor a preset"
    raise refusal(Refused(extends.place, f"{words}; {_nearest_config(name, os.path.dirname(beside))}"))


def _read_file(path: Path) -> Node:
    name = _display(path)
    return _mapping(Source(name, read_file(path, name=name)))


def _mapping(source: Source) -> Node:
    try:
        tree = read_nodes(source)
        if not isinstance(tree.value, dict):
            raise Refused(tree.place, "a configuration is made of `key: value` lines")
    except Refused as refused:
        raise refusal(refused) from None
    return tree


def _folder(path: Path) -> Path:
    """What file names in this file are relative to."""
    folder = _preset_folder()
    if folder is not None and path.resolve().parent == folder.resolve():
        return Path.cwd()
    return path.parent


def _with_paths(entries: dict[str, Node], *, folder: Path) -> dict[str, Node]:
    """The same entries with the file names in them made absolute."""
    entries = dict(entries)
    for section, key in PATHS:
        node = entries.get(section)
        if node is None or not isinstance(node.value, dict) or key not in node.value:
            continue
        entries[section] = replace(node, value={**node.value, key: _absolute(node.value[key], folder)})
    return entries


def _absolute(node: Node, folder: Path) -> Node:
    value = node.value
    if isinstance(value, list):
        return replace(node, value=[_absolute(one, folder) if isinstance(one.value, dict) else one for one in value])
    if isinstance(value, dict):
        named = {"text"} if "text" in value else value.keys() - {"pairs"}
        return replace(node, value={k: _absolute(one, folder) if k in named else one for k, one in value.items()})
    if not isinstance(value, str) or value in ("", PHRASEBOOK) or "\0" in value or re.fullmatch(PERCENT, value):
        return node
    return replace(node, value=os.path.abspath(folder / _at_home(value)))


def _at_home(name: str) -> Path:
    """`~/x` as a shell would take it; pathlib's own raises where there is no such home, this keeps the `~`."""
    return Path(os.path.expanduser(name))


def _display(path: Path) -> str:
    """The path as a person in the current folder would type it."""
    full = Path(os.path.abspath(path))
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(full)


# --- merging ------------------------------------------------------------------------------------------------------


def _merge(below: Node, above: Node, schema: type[Section] | None, *, steps: int = 0) -> Node:
    """Two values for one setting: sections merge, everything else is replaced.

    steps: levels at which mappings merge whatever they are, because an override names a key inside.
    """
    descends = steps > 0 or schema is not None
    if not descends or not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    entries = dict(below.value)
    for key, node in above.value.items():
        inner, there = _section(schema, key), entries.get(key)
        parts = schema.in_parts.get(key) if schema and steps > 1 else None
        if parts and there and isinstance(node.value, dict) and not isinstance(there.value, dict):
            entries[key] = replace(there, value=dict.fromkeys(parts, there))
        is_kept = key in entries and not _is_one_of_several(schema, key)
        entries[key] = _merge(entries[key], node, inner, steps=steps - 1) if is_kept else node
    return replace(above, value=entries)


@lru_cache(maxsize=2048)
def _section(schema: type[Section] | None, key: str) -> type[Section] | None:
    """The section declared under a key, if it is one and nothing else: a union is a value, so is one of several."""
    declared = accepted(schema).inside(key) if schema else None
    return declared.section if declared and not _is_one_of_several(schema, key) else None


def _is_one_of_several(schema: type[Section] | None, key: str) -> bool:
    declared = accepted(schema).inside(key) if schema else None
    return bool(declared and declared.section and declared.section.is_one_of_several)


def _without_empty_sections(node: Node, schema: type[Section]) -> Node:
    """A section with nothing under it says nothing; but where there may be none, null says so, and {} that there is."""
    assert isinstance(node.value, dict)
    entries = {}
    for key, child in node.value.items():
        inner = _section(schema, key)
        if inner and isinstance(child.value, dict):
            child = _without_empty_sections(child, inner)
        if not inner or schema.model_fields[key].default is None or child.value not in ({}, None):
            entries[key] = child
    return replace(node, value=entries)


def _override(override: str) -> tuple[Node, int]:
    """`a.b=value` as the tree {a: {b: value}} and its depth; the value is YAML."""
    name, equals, written = override.partition("=")
    source = Source(f"--set {shorten(override, 120)}", override, is_file=False)
    whole = Place(source, 0, len(name))
    keys = name.split(".")
    if not equals or not all(re.fullmatch(f"[^{NO_LETTERS}]+", key) for key in keys):
        raise Refused(whole, "expected a setting and its value, such as model.d_model=64")
    if name == "extends":
        raise Refused(whole, "`extends` belongs into a file")
    if len(keys) > MAX_DEPTH:
        raise Refused(whole, f"nested more than {MAX_DEPTH} levels deep")
    value = Place(source, len(name) + 1, len(override))
    node = read_nodes(source, start=value.start) if written.strip() else Node(None, value)
    end = len(name)
    for key in reversed(keys):
        place = Place(source, end - len(key), end)
        node = Node({composed(key): replace(node, key=place)}, place)
        end = place.start - 1
    node = as_written_now(node)
    assert isinstance(node.value, dict)
    return replace(node, value=_with_paths(node.value, folder=Path.cwd())), len(keys)


# --- checking -----------------------------------------------------------------------------------------------------


def _validated(tree: Node, own: Source, *, to_train: bool) -> RunConfig:
    """The typed configuration; raises one ConfigError for wrong settings and for settings that contradict, each where
    it was said last: by --set, in the file itself (own), or in one that it extends."""
    mistakes: list[Mistake] = []
    found: list[Contradiction] = []
    config: RunConfig | None = None
    try:
        config = RunConfig.model_validate(tree.plain())
    except ValidationError as error:
        mistakes = explain(error, tree, RunConfig)
        with contextlib.suppress(ValidationError):  # what is left may still contradict itself
            config = RunConfig.model_validate(_without(tree, mistakes).plain())
    wrong = [mistake.path for mistake in mistakes]
    if config:
        found += [*contradictions(config), *(untrainable(config) if to_train else ())]
    for contradiction in found:
        if not any(_touch(path, bad) for path in contradiction.paths for bad in wrong):
            path = said_last(tree, contradiction.paths, own)
            mistakes.append(Mistake(contradiction.message, place_of(tree, path), path))
    if mistakes:
        raise config_error(mistakes)
    assert config is not None
    return config


def _without(tree: Node, mistakes: Sequence[Mistake]) -> Node:
    """The tree without its wrong settings, each left out whole."""
    for mistake in mistakes:
        tree = _pruned(tree, mistake.path, RunConfig)
    return tree


def _pruned(node: Node, path: tuple[str | int, ...], schema: type[Section]) -> Node:
    entries = dict(node.value) if isinstance(node.value, dict) else {}
    key = str(path[0])
    if key not in entries:
        return node
    inner = _section(schema, key)
    if inner and len(path) > 1:
        entries[key] = _pruned(entries[key], path[1:], inner)
    else:
        del entries[key]
    return replace(node, value=entries)


def _touch(path: tuple[str | int, ...], other: tuple[str | int, ...]) -> bool:
    """Whether one setting is the other, or lies inside it."""
    shared = min(len(path), len(other))
    return path[:shared] == other[:shared]


class _Dumper(yaml.SafeDumper):
    """Quotes whatever our own reader would not take as text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", text) and isinstance(read_scalar(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)
