"""The map of the house, held: who imports whom, what start-up costs, which names are forbidden."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "transformer_cli"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 400

FREE = {"cli", "python", "__main__", "__init__"}
"""They open everything, lazily."""


def arrows(contributing: str) -> tuple[dict[str, set[str]], set[str]]:
    """Which rooms each room may import, as the map says, and those that all but themselves may."""
    drawn = contributing.split("### Who may import whom\n\n```\n")[1].split("```")[0]
    rooms: dict[str, set[str]] = {}
    ground: set[str] = set()
    for line in re.sub(r"\n +->", " ->", drawn).strip().split("\n"):
        left, right = re.split("->|:", line)
        if left.strip() == "everything may import":
            ground = set(right.split())
        else:
            nobody = right.startswith((" nothing", " anything"))
            rooms |= dict.fromkeys(left.split(), set() if nobody else set(right.split()))
    return rooms, ground


MAY_IMPORT, GROUND = arrows((PACKAGE.parent / "CONTRIBUTING.md").read_text("utf-8"))

TORCH_FREE = [
    "config",
    "evaluation",
    "tokenizer",
    "data/phrasebook",
    "data/corpus.py",
    "data/text.py",
    "data/encoding.py",
    "data/mixture.py",
    "data/sampled.py",
    "data/stream.py",
    "data/checks.py",
    "data/shifts.py",
    "data/partners.py",
    "data/batching.py",
    "data/binary.py",
    "data/volumes.py",
    "accounting/flops.py",
    "accounting/hardware.py",
    "accounting/memory.py",
    "accounting/parameters.py",
    "accounting/remarks.py",
    "accounting/shapes.py",
    "accounting/weights.py",
    "checkpoints/find.py",
    "checkpoints/known.py",
    "checkpoints/manifest.py",
    "checkpoints/events.py",
    "checkpoints/fit.py",
    "checkpoints/overview.py",
    "checkpoints/record.py",
    "decoding/engine.py",
    "decoding/options.py",
    "decoding/texts.py",
    "engines.py",
    "environment.py",
    "errors.py",
    "export/formats.py",
    "needs.py",
    "files.py",
    "page.py",
    "sealing.py",
    "temporary.py",
    "trouble.py",
    "writing.py",
]
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_NAMES = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}
CONFINED = "transformer_cli/export/unpickling.py"
"""It may call torch.load, as below: in a process that it has taken all rights from."""
FORBIDDEN_OPTIONS = {"shell", "allow_pickle"}


@dataclass(frozen=True)
class Import:
    """One import: the full name of the module, and whether it happens when the importing module is imported."""

    module: str
    at_start: bool


def dotted(path: Path) -> str:
    """transformer_cli/data/corpus.py -> transformer_cli.data.corpus."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """transformer_cli.data.corpus -> data."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """Where, of what, and how, in all modules."""
    return tuple(
        (f"{named(path)}:{node.lineno}", ast.unparse(node.func), node)
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Call)
    )


NAMES = {dotted(path) for path in MODULES}


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """All imports of a module, those inside functions and for type checking included."""
    return tuple(_imports(tree(path), dotted(path), is_package=path.name == "__init__.py", at_start=True))


def _imports(node: ast.AST, name: str, *, is_package: bool, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, at_start) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                above = name.split(".")[: len(name.split(".")) - child.level + is_package]
                base = ".".join([*above, base] if base else above)
            for alias in child.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in NAMES else base, at_start)
        else:
            lazily = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_for_types(child)
            yield from _imports(child, name, is_package=is_package, at_start=at_start and not lazily)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def test_the_reader_of_imports_sees_what_is_there():
    """A test of the test: nested, relative and aliased imports are all found."""
    source = ast.parse("import a.b as c\nfrom .. import files\nfrom .x import y\ndef f():\n    from torch import nn\n")
    found = list(_imports(source, "transformer_cli.data.corpus", is_package=False, at_start=True))
    assert found == [
        Import("a.b", True),
        Import("transformer_cli.files", True),
        Import("transformer_cli.data.x", True),
        Import("torch", False),
    ]


def ours(path: Path) -> set[str]:
    """The other rooms that a module imports from."""
    rooms = {room(used.module) for used in imports(path) if used.module.split(".")[0] == PACKAGE.name}
    return rooms - {room(dotted(path)), "__init__"}


def test_a_room_imports_only_what_the_map_allows():
    for path in MODULES:
        here = room(dotted(path))
        if here not in FREE:
            assert here in MAY_IMPORT, f"{here} is not on the map in CONTRIBUTING.md"
            assert ours(path) - MAY_IMPORT[here] - (set() if here in GROUND else GROUND) == set(), named(path)


def test_every_arrow_of_the_map_is_used():
    used = {(room(dotted(path)), other) for path in MODULES for other in ours(path)}
    assert {(here, other) for here, others in MAY_IMPORT.items() for other in others} - used == set()


def test_no_imports_run_in_a_circle():
    graph = {dotted(path): {used.module for used in imports(path) if used.at_start} & NAMES for path in MODULES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for used in sorted(graph[module] - {PACKAGE.name}):
                visit(used, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())
    assert done == NAMES


def test_no_rooms_import_each_other():
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        here = room(dotted(path))
        graph.setdefault(here, set()).update(ours(path))
    mutual = {tuple(sorted((a, b))) for a in graph for b in graph[a] if a in graph.get(b, set()) and a != b}
    assert mutual == set()


def test_no_module_is_crowded_or_called_utils():
    for path in MODULES:
        assert path.read_text(encoding="utf-8").count("\n") <= MAX_LINES, named(path)
        assert not set(path.with_suffix("").parts) & {"utils", "util", "helpers", "common", "misc"}


SHAPE = re.compile(r"[a-z]_([A-Z0-9]+n?)$")
LEGEND = re.compile(r"(?:^|[,;]\s|and )([A-Z]|n)\s(?=[a-z])", re.MULTILINE)


def test_every_letter_of_a_shape_is_in_the_legend_of_its_module():
    """`scores_BHTS` can be read beside the paper where the module, or a class in it, says what B, H, T and S are."""
    for path in MODULES:
        if room(dotted(path)) not in ("model", "decoding", "training", "attention_maps"):
            continue
        legends = [tree(path), *(node for node in nodes(path) if isinstance(node, ast.ClassDef))]
        known = {letter for node in legends for letter in LEGEND.findall(ast.get_docstring(node) or "")}
        names = {node.id for node in nodes(path) if isinstance(node, ast.Name)}
        names |= {node.arg for node in nodes(path) if isinstance(node, ast.arg)}
        shapes = {name: match[1] for name in names if (match := SHAPE.search(name))}
        unknown = {name for name, letters in shapes.items() if not {*letters} - {*"0123456789"} <= known}
        assert unknown == set(), named(path)


def test_no_forbidden_name_is_used():
    """Nothing read from disk or from a user may become code, and lines end at a line feed alone."""
    last = {name.rpartition(".")[2] for name in FORBIDDEN_NAMES}
    for path in MODULES:
        assert not {used.module.split(".")[0] for used in imports(path)} & FORBIDDEN_MODULES, named(path)
        for node in nodes(path):
            place = f"{named(path)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in FORBIDDEN_CALLS, place
            if isinstance(node, ast.Attribute):
                assert node.attr != "splitlines", place
                if node.attr in last:  # to write out all of them takes seconds
                    allowed = {"torch.load"} if named(path) == CONFINED else set()
                    assert ast.unparse(node) not in FORBIDDEN_NAMES - allowed, place
            if isinstance(node, ast.keyword) and node.arg in FORBIDDEN_OPTIONS:
                assert ast.unparse(node.value) == "False", place


def test_the_one_reader_of_pickles_reads_weights_only():
    places = [(place, node) for place, function, node in calls() if function == "torch.load"]
    assert len(places) == 1
    [(place, call)] = places
    assert place.startswith(CONFINED)
    assert ("weights_only", "True") in {(word.arg, ast.unparse(word.value)) for word in call.keywords}


def test_json_is_never_written_with_numbers_that_json_does_not_have():
    """`files.json_line` and `json_text` write it; whoever needs another layout says what happens to infinity."""
    for place, function, call in calls():
        if function in ("json.dumps", "json.dump"):
            assert ("allow_nan", "False") in {(word.arg, ast.unparse(word.value)) for word in call.keywords}, place


def test_text_files_are_opened_in_utf8():
    for place, function, call in calls():
        if function in ("open", "io.open", "gzip.open", "os.fdopen"):
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            mode = ast.unparse(call.args[1]) if len(call.args) > 1 else keywords.get("mode", "'r'")
            assert "b" in mode or keywords.get("encoding") == "'utf-8'", place


def test_no_test_sets_the_clock_of_all():
    """A module of its own `time` is another matter: who asks the real one may be a service in another thread, which
    then waits for as many hours as the machine has been up."""
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in nodes(path):
            sets = isinstance(node, ast.Call) and "setattr" in (getattr(node.func, key, "") for key in ("id", "attr"))
            if sets and len(node.args) > 2:
                assert ast.unparse(node.args[0]).split(".")[-1] != "time", f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("place", TORCH_FREE)
def test_declarations_text_and_metrics_never_import_torch(place):
    for path in MODULES:
        if path.relative_to(PACKAGE).as_posix().startswith(place):
            assert "torch" not in {used.module.split(".")[0] for used in imports(path)}, named(path)


def test_importing_the_package_and_the_app_imports_nothing_heavy():
    code = (
        "import sys, transformer_cli, transformer_cli.cli.app\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'yaml', 'sentencepiece', 'sacrebleu', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert shown.stdout == "[]\n"


def test_a_configuration_is_checked_before_torch_is_imported():
    code = (
        "import sys\n"
        "from transformer_cli.config.source import load_config\n"
        "load_config('tiny')\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert shown.stdout == "False False\n"
