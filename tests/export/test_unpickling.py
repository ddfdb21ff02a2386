"""Nothing in a pickled checkpoint is executed, and the process that reads it has no rights left."""

from __future__ import annotations

import collections
import functools
import io
import os
import shutil
import subprocess
import sys
import types
import typing
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from transformer_cli.cli import failures
from transformer_cli.cli.app import main
from transformer_cli.errors import ModelError, ResourceError
from transformer_cli.export.unpickling import _load, _reason, unpickled

ARGS = {"arch": "transformer", "source_lang": "de", "target_lang": "en", "encoder_attention_heads": 4}


def tx_(*arguments: str) -> int:
    return failures.exit_code(lambda: main(list(arguments)))


class Wild:
    """What a pickle may hold: a call of anything."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Meter:
    """What fairseq's checkpoints hold beside weights."""

    def __init__(self):
        self.count = 3


class DictConfig:
    """The settings of fairseq 0.10, as OmegaConf pickles them: what is in them, and of which types."""

    def __init__(self):
        self.content = {"encoder_attention_heads": 4}
        self.types = [typing.Any, dict, list, int, str]
        self.cache = collections.defaultdict(dict)


def saved_as_fairseq(path: Path, monkeypatch, **others) -> None:
    """A checkpoint with an object of fairseq's in it."""
    for made, name in ((Meter, "fairseq.meters"), (DictConfig, "omegaconf.dictconfig")):
        module = types.ModuleType(name)
        setattr(module, made.__name__, made)
        monkeypatch.setattr(made, "__module__", name)
        monkeypatch.setitem(sys.modules, name.split(".")[0], types.ModuleType("its package"))
        monkeypatch.setitem(sys.modules, name, module)
    state = {"args": Namespace(**ARGS), "model": {"a.weight": torch.ones(2, 3)}, "extra_state": {"meter": Meter()}}
    torch.save(state | others, path)


def test_a_checkpoint_is_opened_by_a_process_of_its_own_and_objects_in_it_are_left_out(tmp_path, monkeypatch):
    saved_as_fairseq(tmp_path / "model.pt", monkeypatch)
    said, tensors = unpickled(tmp_path / "model.pt")
    assert said == {"args": ARGS, "cfg": None}
    assert torch.equal(tensors["a.weight"], torch.ones(2, 3))


CALLS = {
    "posix.system": (os.system, "touch pwned"),
    "eval": (eval, "open('pwned', 'w')"),
    "shutil.rmtree": (shutil.rmtree, "there"),
    "torch.serialization.load": (torch.load, "other.pt"),
    f"{open.__module__}.open": (open, "pwned", "w"),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_call_in_a_checkpoint_is_executed(tmp_path, monkeypatch, name):
    saved_as_fairseq(tmp_path / "model.pt", monkeypatch, wild=Wild(*CALLS[name]))
    with pytest.raises(Exception, match=r"\S") as caught:
        _load(io.BytesIO((tmp_path / "model.pt").read_bytes()))
    assert _reason(caught.value) == f"it names {name}"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_hostile_checkpoint_is_exit_code_4_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    saved_as_fairseq(tmp_path / "model.pt", monkeypatch, wild=Wild(os.system, f"touch {tmp_path}/pwned"))
    assert tx_("import", str(tmp_path / "model.pt"), "--run-dir", str(tmp_path / "run")) == 4
    told = capfd.readouterr().err
    assert "it names posix.system" in told
    assert "nothing of it was executed" in told
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_what_is_no_checkpoint_or_a_bomb_is_refused(tmp_path, capfd):
    with pytest.raises(Exception, match=r"\S"):
        _load(io.BytesIO(b"no checkpoint"))
    torch.save({"model": {"a": torch.ones(1).expand(10**11)}}, tmp_path / "bomb.pt")
    assert tx_("import", str(tmp_path / "bomb.pt"), "--run-dir", "run") == 4
    assert "no checkpoint that can be opened safely" in capfd.readouterr().err
    assert not Path("run").exists()


def test_settings_that_are_objects_of_omegaconf_are_told_to_be_missing(tmp_path, monkeypatch, capfd):
    saved_as_fairseq(tmp_path / "model.pt", monkeypatch, args=None, cfg=DictConfig())
    assert tx_("import", str(tmp_path / "model.pt"), "--run-dir", "run") == 4
    told = capfd.readouterr().err
    assert "does not say its settings, such as the number of heads" in told
    assert "OmegaConf.to_container" in told


def test_a_missing_checkpoint_is_exit_code_4(capfd):
    assert tx_("import", "nothing.pt", "--run-dir", "run") == 4
    assert "nothing.pt does not exist" in capfd.readouterr().err


def test_a_process_that_a_signal_ended_is_told_by_its_number(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_bytes(b"")
    (tmp_path / "python").write_text("#!/bin/sh\nkill -9 $$\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ModelError, match="it was ended by signal 9"):
        unpickled(tmp_path / "model.pt")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
def test_a_full_disk_is_no_fault_of_the_checkpoint(tmp_path, monkeypatch):
    saved_as_fairseq(tmp_path / "model.pt", monkeypatch)
    monkeypatch.setattr("tempfile.TemporaryFile", functools.partial(open, "/dev/full", "wb"))
    with pytest.raises(ResourceError, match=r"cannot hold the weights of .*No space left on device"):
        unpickled(tmp_path / "model.pt")


TRIES = {
    "file": "open('/etc/hostname')",
    "writing": "open('pwned', 'w')",
    "network": "import socket; socket.socket()",
    "child": "os.fork()",
    "program": "os.execv('/bin/true', ['true'])",
    "memory": "bytearray(3 << 30)",
    "import": "import antigravity",
}


def still_done(tries: list[str], first: str = "") -> str:
    """What a process without rights can do all the same, a line each. first: what it does while it has them."""
    code = f"""
import os, socket, sys
from transformer_cli.export.unpickling import _give_up_rights
tries = {{name: compile(text, name, 'exec') for name, text in {TRIES!r}.items() if name in {tries!r}}}
{first}
_give_up_rights(1000)
for name, one in tries.items():
    try:
        {"exec"}(one)
    except (OSError, MemoryError, PermissionError):
        continue
    print(name)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def test_the_process_that_reads_has_no_rights_left():
    assert still_done(list(TRIES)) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's limits")
def test_it_has_none_left_by_the_kernel_either():
    """Without Python's own refusal; the kernel's limit of processes does not bind root."""
    tries = ["file", "writing", "network", "memory", *(["child"] if os.geteuid() else [])]
    assert still_done(tries, "sys.addaudithook = lambda hook: None") == ""
