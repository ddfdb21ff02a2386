"""What Python's search for garbage leaves alone, in a process of its own: it is the whole process's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OBJECTS = 20_000
PROGRAM = """
import gc, sys
from transformer_cli.cli import app

def work():
    import torch

    n_frozen = gc.get_freeze_count()
    more = [[] for _ in range(5_000)]
    print(n_frozen, torch.looked, gc.isenabled(), gc.get_freeze_count() == n_frozen, len(torch.kept))
    loop = []
    loop.append(loop)
    del loop
    print(gc.collect() > 0)

app.run = work
if sys.argv[1:] == ["program"]:
    from transformer_cli.__main__ import main

    main()
else:
    work()
"""


def test_a_library_is_not_looked_through_for_garbage_and_what_comes_later_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        f"import gc\nlooked = gc.isenabled()\nkept = [[] for _ in range({OBJECTS})]", encoding="utf-8"
    )
    found = {}
    for way in ("program", "alone"):
        asked = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}", way]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        n_frozen, looked, *rest = done.stdout.split()
        assert rest == ["True", "True", str(OBJECTS), "True"]
        found[way] = int(n_frozen) > OBJECTS - 1_000, looked
    assert found == {"program": (True, "False"), "alone": (False, "True")}
