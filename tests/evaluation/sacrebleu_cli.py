"""sacreBLEU's own command line, the reference for every number."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REFERENCE = [
    "A man in an orange hat is starring at something.",
    "A Boston Terrier is running on lush green grass in front of a white fence.",
    "A girl in karate uniform breaking a stick with a front kick.",
    "Five people wearing winter jackets and helmets stand in the snow, with snowmobiles in the background.",
    "People are fixing the roof of a house.",
    "I want a beer",
    "",
]


def damaged(lines: Sequence[str], *, seed: int, rate: float = 0.15) -> list[str]:
    """Words left out, swapped, in another case: what a translation looks like."""
    draw = random.Random(seed)
    out = []
    for line in lines:
        words = [word for word in line.split() if draw.random() > rate]
        if len(words) > 3:
            i = draw.randrange(len(words) - 1)
            words[i], words[i + 1] = words[i + 1], words[i].upper()
        out.append(" ".join(words))
    return out


# Its JSON of paired tests cannot hold the NumPy numbers that chrF and TER come to.
PROGRAM = """
import json
from sacrebleu.sacrebleu import main

json.JSONEncoder.default = lambda self, value: float(value)
main()
"""


def sacrebleu(folder: Path, systems: Sequence[list[str]], references: Sequence[list[str]], *options: str) -> Any:
    """What `sacrebleu REFERENCES -i SYSTEMS` prints as JSON."""
    names = {}
    for kind, texts in (("reference", references), ("system", systems)):
        for number, lines in enumerate(texts):
            path = folder / f"{kind}{number}.txt"
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            names.setdefault(kind, []).append(str(path))
    command = [sys.executable, "-c", PROGRAM, *names["reference"], "-i", *names["system"], "-f", "json"]
    done = subprocess.run([*command, *options], capture_output=True, check=True, encoding="utf-8")
    return json.loads(done.stdout)
