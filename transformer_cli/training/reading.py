"""The texts of a run, as each of its processes reads them; what is compressed, each machine unpacks once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from transformer_cli.config.data import DataConfig
from transformer_cli.config.run import RunConfig
from transformer_cli.data.checks import check_all, in_passing, refuse
from transformer_cli.data.corpus import EMPTY, Corpus, load_all, side_files, training_texts
from transformer_cli.data.text import Open, unpack
from transformer_cli.data.used import as_used
from transformer_cli.errors import UsageError
from transformer_cli.evaluation.appearance import misjudged
from transformer_cli.training.listening import Listener
from transformer_cli.training.parallel import World

LEFT_OUT = "left out of the training text"

Offer = tuple[int, int, list[int]]
"""A process, its descriptor of a file, and which file that is."""


def used_texts(
    config: RunConfig,
    given: Mapping[str, Corpus] | None,
    world: World,
    listener: Listener,
    *,
    is_new: bool,
    is_strict: bool,
) -> dict[str, Corpus]:
    """`train` and `valid`, as they are used. given: what `load_all` gave, if it was asked before. What is suspicious
    is said of a new run by the first process, or where is_strict refused by it, for all: DataError. UsageError where
    there is nothing to validate with."""
    with listener.stage("reading the text"):
        texts = read_texts(config.data, given, world)
        used = as_used(texts, config.data)
        if "valid" not in used:
            raise UsageError("there is no validation text", hint="name it in data.valid")
        looks = is_new and given is None and world.is_main and not config.data.is_phrasebook and not is_strict
        suspicion, has_looked = in_passing(texts) if looks else ("", False)
        if suspicion:
            listener.warn(suspicion)
        if not has_looked and not is_strict:
            tell_changes(used, listener)
        if is_new and world.is_main and (words := misjudged(used["valid"].target, config.evaluation)):
            listener.warn(f"validation text: {words}")
    if is_strict and world.is_main:
        with listener.stage("looking for what is suspicious in the text"):
            refuse(check_all(texts))
    return {name: used[name] for name in ("train", "valid")}


def tell_changes(used: Mapping[str, Corpus], listener: Listener) -> None:
    """What of the texts had to be changed or left out."""
    for name, text in (("training text", used["train"]), ("validation text", used["valid"])):
        for reason, n in text.counts.items():
            listener.warn_of(LEFT_OUT if reason in EMPTY else name, {reason: n})


def read_texts(data: DataConfig, given: Mapping[str, Corpus] | None, world: World) -> Mapping[str, Corpus]:
    """What `load_all` gives, unless it is given. Tests, too: what is wrong with them is said before anything is spent,
    not by `tx evaluate` at the end."""
    packed = [] if given or world.size == 1 else _packed(data)
    unpacked = _unpacked(packed, world)  # by all of them, whatever each was given: there they meet
    return given or load_all(data, unpacked)


def _packed(data: DataConfig) -> list[Path]:
    """The compressed files of the training text."""
    return [path for _, way in training_texts(data) for path in side_files(way) or () if path.suffix == ".gz"]


def _unpacked(paths: Iterable[Path], world: World) -> dict[Path, Open | None]:
    """What these are unpacked to by the first process of this machine, which keeps that at least until all meet again.
    None where the system does not let this process open it: it is not Linux, or keeps users or containers apart."""
    names = {str(path.absolute()): path for path in paths}
    is_first = world.rank in world.first_of_each_machine()
    own = {name: unpack(path) for name, path in names.items()} if is_first else {}
    # In ASCII: names may be no Unicode.
    offers = json.dumps({name: _offer(file) for name, file in own.items()}, allow_nan=False)
    said = [json.loads(text) for text in world.gather(offers)]
    return {path: own.get(name) or _taken(one[name] for one in said if name in one) for name, path in names.items()}


def _offer(file: Open) -> Offer:
    return os.getpid(), file.descriptor, _which(os.fstat(file.descriptor))


def _taken(offers: Iterable[Offer]) -> Open | None:
    """The first of these files that is here: on another machine, a process of that number is another one."""
    for process, descriptor, which in offers:
        link = f"/proc/{process}/fd/{descriptor}"
        with suppress(OSError):
            if _which(os.stat(link)) == which:
                return Open(os.open(link, os.O_RDONLY))
    return None


def _which(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
