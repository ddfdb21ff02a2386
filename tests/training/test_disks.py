"""Whichever operation of training fails on the disk: what was saved stays whole, the error names the place, the same
command goes on to the same bits.

Some operations have their turn; with TX_EVERY_FAULT set all of them, with every failure.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from faults import Saboteur
from ranks import codes, start
from test_run import assert_same_bits, at_update, interrupt, settings

from transformer_cli import files
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.store import load_checkpoint
from transformer_cli.errors import Interrupted, ResourceError
from transformer_cli.training import keeping
from transformer_cli.training.run import Listener, train

pytestmark = pytest.mark.usefixtures("own_threads")

EVERY = "TX_EVERY_FAULT" in os.environ
FAILURES = ["EIO", "ENOSPC", "EDQUOT"]
RUN = Path("run")


def config(max_steps: int, **training: object):
    """Checkpoints and validations come and go: what is best, what is kept, what is deleted changes."""
    options = {"validate_every": 2, "log_every": 1, "ema": 0.9, "best_by": "loss", "validation_bleu": False}
    return settings(max_steps=max_steps, **options, **training)


def saboteur(nth: int, failure: str) -> Saboteur:
    number = getattr(errno, failure)
    return Saboteur(nth, OSError(number, os.strerror(number)), short=failure != "EIO")


def check_what_is_left(step: int) -> None:
    steps = [load_checkpoint(path, with_optimizer=True).step for path in list_checkpoints(RUN)]
    assert max(steps, default=0) >= step


EACH = [(failure, began, at_once) for failure in FAILURES for began in (0, 3, 4) for at_once in (True, False)]
SOME = [("ENOSPC", 0, True), ("EIO", 3, False), ("ENOSPC", 4, True)]
"""After update 4 a validation is owed."""


@pytest.mark.parametrize(("failure", "began", "at_once"), EACH if EVERY else SOME)
def test_whichever_operation_fails_the_same_command_goes_on(
    failure: str, began: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 1 << 30 if at_once else 0)
    if began:
        with at_update(began, interrupt), pytest.raises(Interrupted):
            train(config(6), Path("began"))
    train(config(6), Path("straight"))
    turns = 0
    for nth in itertools.count(1) if EVERY else itertools.count(3 + began, 29 if began == 4 else 53):
        shutil.rmtree(RUN, ignore_errors=True)
        if began:
            shutil.copytree("began", RUN)
        disk, warnings, error = saboteur(nth, failure), [], None
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", disk)
            try:
                train(config(6), RUN, listener=Listener(warn=warnings.append))
            except ResourceError as found:
                error = found
        if not disk.struck:
            break
        turns += 1
        words = os.strerror(getattr(errno, failure))
        if error is None:  # a convenience, without which training goes on
            assert any("runs" in line and words in line for line in warnings), nth
        else:
            assert error.exit_code == 5
            assert re.match(rf"cannot \w+( up| into)? ({RUN}|\.)", error.message), error.message
            assert words in error.message
        check_what_is_left(began)
        train(config(6), RUN)
        assert_same_bits(Path("straight"), RUN)
        assert not [path for path in RUN.rglob("*") if path.name.startswith((files.ASIDE, files.DOOMED))]
    assert turns >= (50 if EVERY else 3)


@pytest.mark.parametrize(("parallel", "which"), [("fsdp", 0), ("fsdp", 1), ("ddp", 0)])
def test_a_disk_that_fails_one_process_ends_both_and_the_same_command_goes_on(
    parallel: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that each hold a part of the weights, each writes its own; of two that hold all, one."""
    monkeypatch.setattr(keeping, "AT_ONCE_BYTES", 0)

    def both(*, nth: int = 0, stop: int = 0) -> list[int]:
        def one(rank: int) -> None:
            if rank == which and nth:
                files.disk = saboteur(nth, "ENOSPC")  # type: ignore[assignment]
            with at_update(stop, interrupt) if stop else nullcontext():
                train(config(6, parallel=parallel), RUN)

        return codes(start(2, one, tmp_path), limit_s=60)

    assert both() == [0, 0]
    RUN.rename("straight")
    assert both(stop=3) == [130, 130]
    RUN.rename("began")
    for nth in itertools.count(1) if EVERY else (2 if which else 45,):
        shutil.copytree("began", RUN)
        ended = both(nth=nth)
        said = (tmp_path / "0").read_text()
        if ended == [0, 0] and nth > (20 if which else 50):
            break
        if ended != [0, 0] or not EVERY:  # of every operation some are conveniences
            assert ended == [5, 5], said
            assert re.search(rf"{'process 1 of 2: ' if which else ''}cannot (write|remove) {RUN}", said), said
        check_what_is_left(3)
        assert both() == [0, 0]
        assert_same_bits(Path("straight"), RUN)
        shutil.rmtree(RUN)
