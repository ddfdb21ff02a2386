"""`tx config diff A B` and `tx config from TOOLKIT FILE`: two configurations side by side, and another toolkit's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from transformer_cli.cli import console
from transformer_cli.cli.config import Here, read
from transformer_cli.config.names import shorten
from transformer_cli.errors import UsageError


def diff(first: str, second: str, *, json_output: bool) -> None:
    """The settings in which two configurations differ, each of a preset, a file or a run; not those that only spell the
    same model otherwise."""
    from transformer_cli.cli.tables import Column, Table, show
    from transformer_cli.config.dotted import is_among, settled
    from transformer_cli.config.settings import settings
    from transformer_cli.files import json_line

    sides = [read(file := _file_of(name), None, of_run=file != name) for name in (first, second)]
    ours, theirs = (settled(side.config).items() for side in sides)
    alike = {key for key, value in ours if (key, value) in theirs}
    rows = [
        (one.name, *(_value(side, one.name) for side in sides)) for one in settings() if not is_among(one.name, alike)
    ]
    rows = [row for row in rows if row[1] != row[2]]
    if json_output:
        for name, *values in rows:
            console.result(json_line({"setting": name, first: values[0], second: values[1]}))
    elif rows:
        show([Table("", tuple(Column(heading) for heading in ("setting", first, second)), tuple(rows))])
    else:
        console.say(f"{first} and {second} say the same")


def _file_of(name: str) -> str:
    run = os.path.join(name, "config.yaml")
    return run if os.path.isfile(run) else name


def _value(side: Here, name: str) -> str:
    found = side.value(name)
    return found[0] if found else ""


def carried_over(toolkit: str, file: str, *, json_output: bool) -> None:
    """Another toolkit's configuration in our words, and what could not be carried over."""
    from transformer_cli.config.foreign import carry_over, toolkits
    from transformer_cli.files import json_line

    if toolkit not in toolkits():
        raise UsageError(f"tx does not read what {shorten(toolkit)} writes", hint=f"it reads {', '.join(toolkits())}")
    carried = carry_over(toolkit, Path(file))
    if json_output:
        values = {name: value for name, (value, _) in carried.values.items()}
        console.result(json_line({"settings": values, "left": carried.left}))
        return
    sys.stdout.write(carried.as_yaml())
    if carried.left:
        console.say(f"not carried over: {len(carried.left)}, with the reasons at the end")
