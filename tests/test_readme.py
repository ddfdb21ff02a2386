"""Every command of the README and of docs/ is one that works.

A block of commands is fenced as ```console (lines that begin with `$ ` are commands, the others what they print) or
```bash (every line is a command). `<!-- slow -->` on the line before the fence keeps a block from being executed; it is
parsed all the same. A ```yaml block is a configuration; where its first line is a comment with a file name, such as
`# mine.yaml`, the commands find it under that name.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from transformer_cli.cli.app import app
from transformer_cli.config.source import load_config

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in REPOSITORY.glob("docs/**/*.md")
}
COMMON = {
    "cat",
    "cd",
    "comet/bin/pip",
    "curl",
    "do",
    "docker",
    "done",
    "echo",
    "export",
    "for",
    "git",
    "head",
    "pip",
    "printf",
    "python",
    "sbatch",
    "source",
    "srun",
    "torchrun",
}
FENCE = re.compile(r"(?P<slow><!-- slow -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Readme:
    """What the README shows: the shell blocks, slow or not, and the configurations by file name."""

    commands: list[str] = field(default_factory=list)
    quick: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def read(markdown):
    readme = Readme()
    for block in FENCE.finditer(markdown):
        lines = block["text"].replace("\\\n", " ").split("\n")
        if block["kind"] == "yaml":
            name = re.fullmatch(r"# (\S+\.yaml)", lines[0])
            readme.files[name[1] if name else f"block{len(readme.files)}.yaml"] = block["text"]
        if block["kind"] in ("console", "bash"):
            shell = block["kind"] == "bash"
            commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ") or (shell and line.strip())]
            readme.commands += commands
            readme.quick += [] if block["slow"] else ["\n".join(commands)]
    return readme


def programs(command):
    """The programs of a pipeline, each with its arguments."""
    words = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
    words.whitespace_split = True
    pipeline = [[]]
    for word in words:
        if set(word) <= set("|;&"):
            pipeline.append([])
        else:
            pipeline[-1].append(word)
    return [
        part[: next((i for i, word in enumerate(part) if word in ("<", ">", ">>")), None)] for part in pipeline if part
    ]


def parsed(arguments):
    """What the real command line makes of arguments: the parameters of the command; nothing runs."""
    group = get_command(app)
    context = group.make_context("tx", list(arguments))
    rest = [*context._protected_args, *context.args]
    name, command, rest = group.resolve_command(context, rest)
    return command.make_context(name, rest, parent=context).params


def check(command):
    """Raise unless every program of a command line exists and understands its arguments."""
    for program, *arguments in programs(command):
        if program == "tx":
            try:
                params = parsed(arguments)
            except typer.Exit:  # --help and --version end here
                continue
            if params.get("config"):
                load_config(params["config"], params.get("overrides") or [])
        elif program.startswith(("scripts/", ".ci/")):
            assert os.access(REPOSITORY / program, os.X_OK), f"{program} cannot be run"
        else:
            assert program in COMMON, f"what is {program}?"


@pytest.fixture
def folder(tmp_path):
    """Where a reader would be: the files that the README shows are there."""
    return tmp_path


def lay_out(readme, folder):
    for name, text in readme.files.items():
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in {"README.md": README, **PAGES}.items()])
def test_every_configuration_is_one(text, folder):
    readme = read(text)
    lay_out(readme, folder)
    for name in readme.files:
        load_config(name)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PAGES.items()])
def test_every_command_of_a_page_is_understood(text, folder):
    (folder / "runs" / "mine").mkdir(parents=True, exist_ok=True)
    for name in ("mine.yaml", "runs/mine/config.yaml"):
        (folder / name).write_text("extends: tiny.yaml\n", encoding="utf-8")
    readme = read(text)
    lay_out(readme, folder)
    for command in readme.commands:
        check(command)


def test_every_command_is_understood_and_its_configuration_resolves(folder):
    readme = read(README)
    lay_out(readme, folder)
    for command in readme.commands:
        check(command)
    shown = [program[:2] for command in readme.commands for program in programs(command)]
    for needed in (["scripts/demo"], ["scripts/test"], ["tx", "train"], ["tx", "translate"]):
        assert needed in shown


def test_the_demo_types_commands_that_are_understood(folder):
    lines = (REPOSITORY / "scripts" / "demo").read_text(encoding="utf-8").split("\n")
    typed = [re.sub(r"   .*", "", line.strip()) for line in lines if re.match(r" *tx [a-z]", line)]
    for command in typed:
        check(command)
    assert [command.split()[1] for command in typed][:3] == ["train", "evaluate", "translate"]


QUICK = {name: text for name, text in {"README.md": README, **PAGES}.items() if read(text).quick}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in QUICK.items()])
def test_every_block_that_is_not_slow_runs(text, folder, trained_run, warm, tmp_path_factory):
    """In order and in one folder, as a reader would, with a trained run there."""
    readme = read(text)
    lay_out(readme, folder)
    programs = tmp_path_factory.mktemp("bin")
    (programs / "tx").write_text(f'#!/bin/sh\nexec {shlex.join(warm)} "$@"\n', encoding="utf-8")
    (programs / "tx").chmod(0o755)
    shutil.copytree(trained_run.parent, folder / "runs")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    for block in readme.quick:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


def test_the_script_that_makes_files_from_a_table_leaves_out_what_is_no_pair(folder):
    [script] = re.findall(r"```python\n(# split\.py\n.*?)```", PAGES["docs/how-do-i.md"], re.DOTALL)
    rows = [f'"Haus  {n}\thouse " {n}' for n in range(30)] + ["leer\t", "\tempty", "allein", '"Haus  1\thouse " 1']
    table = "\r\n".join(["\ufeffDeutsch\tEnglisch", *rows, ""])
    (folder / "corpus.tsv").write_text(table, encoding="utf-8", newline="")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "34 rows, 30 pairs; 3 each in dev and test\n"
    found = []
    for name in ("train", "dev", "test"):
        sides = [(folder / f"corpus/{name}.{side}").read_bytes().decode().split("\n") for side in ("de", "en")]
        found += [pair for pair in zip(*sides, strict=True) if any(pair)]
    assert sorted(found) == sorted((f'"Haus {n}', f'house " {n}') for n in range(30))


SAMPLE = """
<!-- slow -->
```console
$ scripts/demo
$ tx train -c tiny.yaml \\
    --set training.max_steps=2
step 1
```
```bash
echo "ein | hund" | tx translate > out.txt
```
```yaml
# mine.yaml
extends: base.yaml
```
"""


def test_blocks_are_told_apart():
    readme = read(SAMPLE)
    assert [line.split() for line in readme.commands][:2] == [
        ["scripts/demo"],
        ["tx", "train", "-c", "tiny.yaml", "--set", "training.max_steps=2"],
    ]
    assert readme.quick == ['echo "ein | hund" | tx translate > out.txt']
    assert programs(readme.quick[0]) == [["echo", "ein | hund"], ["tx", "translate"]]
    assert list(readme.files) == ["mine.yaml"]


@pytest.mark.parametrize(
    "command",
    [
        "tx trian -c tiny.yaml",
        "tx train --confg tiny.yaml",
        "tx train -c tyni.yaml",
        "tx train -c tiny.yaml --set modle.d_model=4",
        "tx translate --beam-size many x",
        "scripts/domo",
        "teh command",
    ],
)
def test_a_command_that_would_fail_is_found(folder, command):
    with pytest.raises(Exception, match=r".+"):
        check(command)
