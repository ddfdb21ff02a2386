"""A checkpoint that PyTorch pickled, opened by a process that may do little else.

A pickle is a program. PyTorch's reader of weights runs none of it: it makes tensors, Python's own containers and the
few classes that it is told. Here it does so in a process that gave up its rights before, so that a fault in the reader
reaches little. The kernel lets it open no file and no connection, and use so much time; on Linux so much memory, too,
and where it may have one, a network of its own with nothing in it. What Python is asked for besides, such as to start a
program, it refuses itself: of the kernel's limits, that of processes does not bind root. What comes back is a line of
JSON and safetensors.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from transformer_cli import files
from transformer_cli.errors import ModelError, ResourceError, TxError
from transformer_cli.trouble import missing, reason_of

NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000
"""Of Linux's `unshare`."""
PROCESSOR_S = 600
NO_ROOM = 74
"""What the process exits with where its answer cannot be written."""
ROOM = 1 << 30
"""Bytes of memory beside three times the size of the checkpoint: what is read, each tensor by itself, their bytes."""
LEFT_OUT = re.compile(r"(fairseq|omegaconf|typing)\..+|collections\.defaultdict|dict|list|tuple|int|float|str|bool")
"""Classes that become nothing: what those of fairseq and OmegaConf hold is of no use; the others are types there."""
MOST_CLASSES = 50
QUIET = ("object.",)
"""What may happen while weights are read."""
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")


def unpickled(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a checkpoint says of itself, and its tensors.

    Raises ModelError for what is no checkpoint, or holds more than weights and settings: nothing of it is executed.
    """
    from transformer_cli.checkpoints.tensors import from_bytes

    package = str(Path(__file__).parents[2])
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join([package, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import work; work()"]
    try:
        with _opened(path) as checkpoint, tempfile.TemporaryFile() as answer:
            done = subprocess.run(
                command, stdin=checkpoint, stdout=answer, stderr=subprocess.PIPE, env=environment, cwd="/", check=False
            )
            if done.returncode != 0:
                raise _failure(path, done.returncode, done.stderr.decode("utf-8", "replace"))
            answer.seek(0)
            said, weights = answer.readline(), answer.read()
    except OSError as failure:
        raise ResourceError(f"{files.shown(path)} cannot be opened: {reason_of(failure)}") from failure
    try:
        return dict(json.loads(said)), from_bytes(weights)
    except ValueError:
        raise ModelError(f"{files.shown(path)} holds no weights that can be read") from None


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise ModelError(f"{files.shown(path)} {missing(path)}") from None
    except OSError as failure:
        raise files.unreadable(path, failure, error=ModelError) from failure


def _failure(path: Path, code: int, told: str) -> TxError:
    """Why there is no answer. code: what the process ended with. told: its stderr."""
    reason = f"it was ended by signal {-code}" if code < 0 else files.shown(told.strip().split("\n")[-1][:200])
    if code == NO_ROOM:
        return ResourceError(
            f"{files.shown(tempfile.gettempdir())} cannot hold the weights of {files.shown(path)}: {reason}",
            hint="free some space there, or name another directory in TMPDIR",
        )
    return ModelError(
        f"{files.shown(path)} is no checkpoint that can be opened safely: {reason}",
        hint="nothing of it was executed; weights as safetensors need no such care",
    )


# --- in the process of its own ------------------------------------------------------------------------------------


class Nothing:
    """Stands for an object that is left out: it takes whatever it is given, and keeps none of it."""

    def __new__(cls, *arguments: object, **named: object) -> Nothing:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        pass


def work() -> None:
    """The checkpoint comes through stdin, the answer goes to stdout; on failure the last line of stderr says why."""
    with suppress(Exception):  # a second lock, where there is such a thing and it is allowed; it needs a single thread
        ctypes.CDLL(None).unshare(NEW_USER_AND_NETWORK)
    source, answer = sys.stdin.buffer, sys.stdout.buffer
    size = os.fstat(source.fileno()).st_size
    _be_ready()
    _give_up_rights(size)
    try:
        said, tensors = _parts(_load(source))
        weights = _saved(tensors)
    except Exception as failure:
        sys.exit(_reason(failure))
    try:
        answer.write(json.dumps(said, allow_nan=False).encode() + b"\n")
        answer.write(weights)
        answer.flush()
    except OSError as failure:
        print(reason_of(failure), file=sys.stderr, flush=True)
        os._exit(NO_ROOM)  # Python's own end would try to write the rest once more


def _load(source: BinaryIO) -> Any:
    """What PyTorch's reader of weights makes of it."""
    import torch

    allowed: list[Any] = [Namespace]
    while True:
        source.seek(0)
        try:
            with torch.serialization.safe_globals(allowed):
                return torch.load(source, map_location="cpu", weights_only=True)
        except Exception as failure:
            name = _unknown(failure)
            if name is None or not LEFT_OUT.fullmatch(name) or len(allowed) > MOST_CLASSES:
                raise
            allowed.append((Nothing, name if "." in name else f"builtins.{name}"))


def _unknown(failure: Exception) -> str | None:
    """The class that it does not know."""
    found = re.search(r"GLOBAL (\S+)", str(failure))
    return None if found is None else found[1]


def _reason(failure: Exception) -> str:
    name = _unknown(failure)
    return f"it names {name}" if name else f"{type(failure).__name__}: {str(failure).strip().split(chr(10))[0]}"


def _parts(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and tensors: of a checkpoint of a training, or of weights alone."""
    import torch

    model = state.get("model") if isinstance(state.get("model"), Mapping) else state
    tensors = {name: tensor for name, tensor in model.items() if isinstance(tensor, torch.Tensor)}
    if not tensors:
        raise ValueError("it holds no weights")
    return {name: _plain(state.get(name)) for name in ("args", "cfg")}, tensors


def _plain(value: Any) -> Any:
    """Numbers, texts and what holds them; nothing for anything else."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) else None


def _saved(tensors: Mapping[str, Any]) -> bytes:
    """Each tensor by itself, also where several were one."""
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()})


def _be_ready() -> None:
    """Import and use once all that will be used, while files can still be opened."""
    import io

    import torch

    torch.set_num_threads(1)
    first = io.BytesIO()
    torch.save({"args": Namespace(a=1), "model": {"a": torch.ones(2), "b": torch.ones(2).half()}}, first)
    with suppress(Exception):
        _load(io.BytesIO(b"no checkpoint"))
    _saved(_parts(_load(first))[1])


def _give_up_rights(size: int) -> None:
    """No file, no network, and so much memory and time; no child, which root is refused by Python only."""
    with suppress(ImportError):
        import resource

        with suppress(OSError, IndexError):
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            room = pages * resource.getpagesize() + 3 * size + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
        limits = {"CPU": PROCESSOR_S, "FSIZE": 2 * size + ROOM, "CORE": 0, "NPROC": 0, "NOFILE": 0}
        for name, limit in limits.items():
            with suppress(ValueError, OSError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: object) -> None:
    if not event.startswith(QUIET):
        raise PermissionError(f"reading weights has no need of {event}")
